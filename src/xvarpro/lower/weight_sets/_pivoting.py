"""Least squares between bounds, for many right-hand sides at once, by block principal pivoting.

``min 1/2 |R x - z|^2 over lower <= x <= upper``, and over ``<a, x> = t`` where there is such an equation, one problem
per column of z. A guess which entries are free gives x by
an unconstrained solve, and multipliers for the rest. Entries that break their bound or have a multiplier of the wrong
sign are wrong, and change sides. All of them do so at once while that makes the wrong ones fewer, which takes few steps
but may cycle (Judice, Pires 1994; Kim, Park 2011). Where it has not for three exchanges, the problem is solved by the
active set method of Lawson and Hanson (1974), from there: a point between the bounds walks towards the solution for the
guess, entries at which it meets a bound are held there, and at the solution the entry of the steepest multiplier is
freed. Its objective only falls, so that it ends, and does so where columns are nearly dependent too.

Arrays have one problem per column, which share R or have one each. Columns of R have length 1. X stands for the
pseudo-inverses of the free columns of R, one per problem, with zeros in the rows of the others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from xvarpro.backends import Backend
from xvarpro.backends.columns import column_loop
from xvarpro.core.namespace import device, namespace_of, positive_or_one
from xvarpro.core.struct import Array
from xvarpro.lower.stack import as_column, as_columns

# entries of the pseudo-inverses that are held at a time
BLOCK = 2**22
# steps towards a first guess
GUESS = 50
# block exchanges that may fail to make the wrong entries fewer before one entry is moved at a time
PATIENCE = 3
# exchanges of a problem at most, and ten more for each of its unknowns; some five are usual
EXCHANGES = 100


Equation: TypeAlias = tuple[()] | tuple[Array, Array]


class Box(NamedTuple):
    """The problems. Bounds are (n, k) and may be infinite."""

    R: Array  # (n, n) or (k, n, n)
    z: Array  # (n, k)
    lower: Array
    upper: Array
    equation: Equation = ()  # a > 0, (n, k), and t > 0, (k,); with lower bounds of 0 and without upper ones

    def some(self, here: slice) -> Box:
        """Some of the problems."""
        R = self.R if self.R.ndim == 2 else self.R[here, ...]
        equation = self.equation and (self.equation[0][:, here], self.equation[1][here])
        return Box(R, self.z[:, here], self.lower[:, here], self.upper[:, here], equation)

    @property
    def start(self) -> Array:
        """A point between the bounds."""
        xp = namespace_of(self.z)
        p = xp.zeros_like(self.z)
        if self.equation:
            a, t = self.equation
            return t / (a * a.shape[0])
        return xp.minimum(xp.maximum(p, self.lower), self.upper)

    def nearest(self, x: Array) -> Array:
        """A point between the bounds, and no farther from x than rounding where x is one."""
        xp = namespace_of(x)
        x = xp.minimum(xp.maximum(x, self.lower), self.upper)
        if self.equation:
            a, t = self.equation
            return x * (t / xp.sum(a * x, axis=0))
        return x

    def nearly_nearest(self, x: Array) -> Array:
        """The nearest point between the bounds; where there is an equation, two of Newton's steps towards it."""
        xp = namespace_of(x)
        if self.equation:
            a, t = self.equation
            for _ in range(2):
                on = xp.astype(x > 0, x.dtype) * a
                x = x - a * ((xp.sum(on * x, axis=0) - t) / positive_or_one(xp.sum(on * on, axis=0)))
        return xp.minimum(xp.maximum(x, self.lower), self.upper)


class Solution(NamedTuple):
    """What pivoting has found; (n, k) each."""

    x: Array
    free: Array
    high: Array  # of the entries that are not free: at the upper bound
    gradient: Array  # of the objective


class _State(NamedTuple):
    solution: Solution
    change: Array  # (n, k): entries that change sides next
    fewest: Array  # (k,): the fewest wrong entries so far
    patience: Array  # (k,): exchanges of all wrong entries that may yet fail; -1 from Lawson and Hanson's method on
    inside: Array  # (n, k): between the bounds, on the way to the solution
    value: Array  # (k,): the least objective of such points
    barred: Array  # (n, k): entries held again that were freed to no avail, until the objective falls
    step: Array


def pivot(backend: Backend, box: Box, free: Array, high: Array) -> Solution:
    """Solve from a first guess of what is free and what at the upper bound; x is NaN where that has not ended."""
    n, k = box.z.shape
    if box.equation:  # which no point meets without a free entry
        free = free | ~namespace_of(free).any(free, axis=0)
    width = max(1, BLOCK // (n * n))
    parts = []
    for start in range(0, k, width):
        here = slice(start, min(start + width, k))
        parts.append(_pivot(backend, box.some(here), free[:, here], high[:, here]))
    return Solution(*(namespace_of(box.z).concat(arrays, axis=1) for arrays in zip(*parts, strict=True)))


# -- a first guess -----------------------------------------------------------------------------------------------------


def is_worth_a_guess(box: Box) -> bool:
    """Whether products of matrices for all problems at once cost less than the exchanges that they save."""
    n, k = box.z.shape
    return box.R.ndim == 2 and k > n


def nearly(backend: Backend, R: Array, z: Array, nearest: Callable[[Array, Array], Array]) -> Array:
    """A point near the minimiser of ``1/2 |R x - z|^2 + g(x)``, by accelerated proximal gradients, (n, k).

    Parameters
    ----------
    nearest : callable
        ``nearest(v, step)`` is the least of ``1/2 |x - v|^2 + step g(x)``.

    Notes
    -----
    With the constant momentum that suits the condition (Nesterov, Lectures on convex optimization, 2018, 2.2): for
    condition 20 fifty steps leave few of a thousand entries on the wrong side.
    """
    xp, s = namespace_of(z), backend.svd(R)[1]
    largest, smallest = xp.max(s), xp.min(s)
    step, momentum = 1 / largest**2, (largest - smallest) / (largest + smallest)
    H, q = step * (R.mT @ R), step * (R.mT @ z)

    def body(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        x, v, i = state
        new = nearest(v - (H @ v - q), step)
        return new, new + momentum * (new - x), i + 1

    zero = xp.zeros_like(z)
    count = xp.zeros((), dtype=xp.int32, device=device(z))
    return backend.while_loop(lambda state: state[2] < GUESS, body, (zero, zero, count))[0]


# -- pseudo-inverses ---------------------------------------------------------------------------------------------------


class Inverses(NamedTuple):
    """X as ``left right base``: (k, n, n) twice and R's shape. The product is not formed: it would cost more than it.

    A product with X by the Gram matrix is off by ``n eps cond^2``, of which every refinement leaves the square, the
    cube, and so on.
    """

    R: Array
    left: Array
    right: Array
    base: Array

    def solve(self, u: Array) -> Array:
        """``X u``, as accurate as by a QR factorisation of the free columns."""
        x = self._times(u)
        for _ in range(2):
            x = x + self._times(u - product(self.R, x))
        return x

    def adjoint(self, c: Array) -> Array:
        """``X^T c``: ``R_F v`` of the v that solves ``R_F^T R_F v = c_F``."""
        t = self._transposed(c)
        for _ in range(2):
            t = t + self._transposed(c - product(self.R.mT, t))
        return t

    def _times(self, u: Array) -> Array:
        return as_columns(self.left @ (self.right @ as_column(product(self.base, u), self.right)))

    def _transposed(self, t: Array) -> Array:
        return product(self.base.mT, as_columns(self.right.mT @ (self.left.mT @ as_column(t, self.left))))


class Inverter:
    """How to invert R on the free entries: by the Gram matrix, far cheaper for a batch, where its condition allows."""

    def __init__(self, backend: Backend, R: Array) -> None:
        xp = namespace_of(R)
        s, n = backend.svd(R)[1], R.shape[-1]
        # the worst case has all entries free. With an error e = n eps cond^2 in X two refinements leave e^3, which has
        # to be below eps cond; NaN is hard
        easy = xp.min(s, axis=-1) > (n**0.5 * xp.finfo(R.dtype).eps ** 0.375) * xp.max(s, axis=-1)
        self._backend, self._hard = backend, ~xp.all(easy)
        self._eye = xp.eye(n, dtype=R.dtype, device=device(R))

    def __call__(self, R: Array, free: Array) -> Inverses:
        """For the R that it was made for, or some of a stack."""
        xp, when = namespace_of(R), self._backend.when
        mask = xp.expand_dims(xp.astype(free.mT, R.dtype), axis=1)  # P as rows (k, 1, n) of zeros and ones
        none = xp.zeros((free.shape[1], *R.shape[-2:]), dtype=R.dtype, device=device(R))
        pair = when(~self._hard, lambda _: self._by_gram(R, mask), (none, none))
        left, right = when(self._hard, lambda _: self._by_qr(R, mask), pair)
        return Inverses(R, left, right, xp.where(self._hard, self._eye, R.mT))

    def _by_gram(self, R: Array, mask: Array) -> tuple[Array, Array]:
        """``X = left right R^T`` from ``P R^T R P + I - P = L L^T``: off by the square of the condition."""
        eye = self._eye
        L = self._backend.cholesky((R.mT @ R) * mask * mask.mT + eye * (1 - mask))
        eye = namespace_of(R).broadcast_to(eye, L.shape)
        half = self._backend.solve_triangular(L, eye, lower=True) * mask
        return half.mT, half

    def _by_qr(self, R: Array, mask: Array) -> tuple[Array, Array]:
        """``X = left right`` from ``[R P; I - P] = Q T``: the error stays at the condition of the free columns."""
        eye, xp = self._eye, namespace_of(R)
        Q, T = self._backend.qr(xp.concat([R * mask, eye * (1 - mask)], axis=1))
        half = self._backend.solve_triangular(T, xp.broadcast_to(eye, T.shape)) * mask.mT
        return half, Q[:, : R.shape[-1], :].mT


def product(R: Array, x: Array) -> Array:
    """``R x`` for one R, or for a stack with one for each column of x."""
    return as_columns(R @ as_column(x, R))


# -- pivoting ----------------------------------------------------------------------------------------------------------


def _pivot(backend: Backend, box: Box, free: Array, high: Array) -> Solution:
    xp = namespace_of(box.z)
    n, k = box.z.shape
    invert = Inverter(backend, box.R)
    steps = xp.zeros((k,), dtype=xp.int32, device=device(box.z))
    first = _State(
        _solved(invert, box, free, high),
        change=free,
        fewest=steps + (n + 1),
        patience=steps + PATIENCE,
        inside=box.start,
        value=xp.full_like(box.z[0, :], xp.inf),
        barred=xp.zeros_like(free),
        step=steps,
    )

    def running(state: _State) -> Array:
        return xp.any(state.change, axis=0) & (state.step < EXCHANGES + 10 * n)

    stack = () if box.R.ndim == 2 else (xp.permute_dims(box.R, (1, 2, 0)),)

    def advance(state: _State, given: Any) -> _State:
        z, lower, upper, equation, own = given
        some = Box(xp.permute_dims(own[0], (2, 0, 1)) if own else box.R, z, lower, upper, equation)
        x, free, high, _ = state.solution
        leaving = state.change & free
        high = (leaving & (x > some.upper)) | (~leaving & high)
        solution = _solved(invert, some, free ^ state.change, high)
        return _decided(some, state._replace(solution=solution, step=state.step + 1))

    end = column_loop(backend, running, advance, _decided(box, first), (*box[1:], stack))
    x = end.solution.x
    return end.solution._replace(x=xp.where(xp.any(end.change, axis=0), xp.full_like(x, xp.nan), x))


def _solved(invert: Inverter, box: Box, free: Array, high: Array) -> Solution:
    """The solution for a guess."""
    R, z, lower, upper, equation = box
    xp = namespace_of(z)
    held = xp.where(free, xp.zeros_like(z), xp.where(high, upper, lower))
    X = invert(R, free)
    x = X.solve(z - product(R, held)) + held
    if not equation:
        return Solution(x, free, high, product(R.mT, product(R, x) - z))
    a, t = equation
    b = X.adjoint(a)
    nu = (t - xp.sum(a * x, axis=0)) / xp.sum(b * b, axis=0)
    x = x + nu * X.solve(b)
    return Solution(x, free, high, product(R.mT, product(R, x) - z) - nu * a)


def _decided(box: Box, state: _State) -> _State:
    """With the entries that change sides after a solution for a guess; none where it solves the problem."""
    R, z, lower, upper, equation = box
    x, free, high, gradient = state.solution
    xp = namespace_of(z)
    # what entries of x and of the gradient may be off by, at least: where columns are nearly dependent, a multiplier
    # that is hardly more than rounding promises much
    unit = z.shape[0] ** 0.5 * xp.finfo(z.dtype).eps
    small_x, small_g = (unit * xp.max(xp.abs(array), axis=0) for array in (x, z))
    if equation:  # x is as large as the equation wants it
        small_g = small_g + small_x
    outside = free & ((x < lower - small_x) | (x > upper + small_x))
    downhill = ~free & ((high & (gradient > small_g)) | (~high & (gradient < -small_g)))

    count = xp.sum(xp.astype(outside | downhill, xp.int32), axis=0, dtype=xp.int32)
    fewer = count < state.fewest
    left = xp.where(fewer, xp.full_like(count, PATIENCE), state.patience - 1)
    patience = xp.where(state.patience < 0, state.patience, left)
    walking = patience < 0

    # the walk towards x, to the first bound on the way
    p, bound = state.inside, xp.where(x > upper, upper, lower)  # before it begins, p is the nearest such point to x
    room = xp.where(outside, (bound - p) / xp.where(outside, x - p, xp.ones_like(x)), xp.ones_like(x))
    length = xp.min(room, axis=0)
    blocked = outside & (room <= length)
    p = box.nearest(xp.where(walking, xp.where(blocked, bound, p + length * (x - p)), x))
    value = xp.sum((product(R, p) - z) ** 2, axis=0)
    falls = walking & (value < (1 - unit) * state.value)
    barred = ~falls & (state.barred | blocked)
    steepest = _first_largest(xp.where(downhill & ~barred, xp.abs(gradient), xp.zeros_like(gradient)))
    single = xp.where(xp.any(outside, axis=0), blocked, steepest)

    return _State(
        state.solution,
        change=xp.where(walking, single, outside | downhill),
        fewest=xp.where(fewer, count, state.fewest),
        patience=patience,
        inside=p,
        value=xp.where(falls, value, state.value),
        barred=barred,
        step=state.step,
    )


def _first_largest(x: Array) -> Array:
    """The first of the largest entries of each column, where they are > 0."""
    xp = namespace_of(x)
    largest = xp.argmax(x, axis=0)
    order = xp.expand_dims(xp.arange(x.shape[0], dtype=largest.dtype, device=device(x)), axis=1)
    return (x > 0) & (order == xp.expand_dims(largest, axis=0))
