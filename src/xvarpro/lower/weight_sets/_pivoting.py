"""Least squares between bounds, for many right-hand sides at once, by block principal pivoting.

``min 1/2 |R x - z|^2 over lower <= x <= upper``, one problem per column of z. A guess which entries are free gives x by
an unconstrained solve, and multipliers for the rest; entries that break their bound or have a multiplier of the wrong
sign change sides, all of them at once while that makes them fewer, else the last one alone, which ends after finitely
many steps (Murty 1974; Judice, Pires 1994; Kim, Park 2011). Columns of R have length 1.

Arrays have one problem per column. X stands for the pseudo-inverses of the free columns of R, one per problem, with
zeros in the rows of the others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from xvarpro.core import trees
from xvarpro.core.namespace import array_namespace, device
from xvarpro.core.struct import Array

# entries of the pseudo-inverses that are held at a time
BLOCK = 2**22
# block exchanges that may fail to make the violations fewer before one entry is moved at a time
PATIENCE = 3


class Inverses(Protocol):
    """X of k problems."""

    @property
    def refinements(self) -> int:
        """How many a product with X needs to be as accurate as a solve by QR."""

    def times(self, u: Array) -> Array:
        """``X u``, column by column."""

    def transposed(self, t: Array) -> Array:
        """``X^T t``."""


Invert = Callable[[Array], Inverses]  # free, (n, k) of bool -> X


class Box(NamedTuple):
    """The problems. Bounds are (n, k) and may be infinite."""

    R: Array  # (n, n), upper triangular
    z: Array  # (n, k)
    lower: Array
    upper: Array

    def part(self, some: slice) -> Box:
        """Some of them."""
        return Box(self.R, *(x[:, some] for x in self[1:]))

    def held(self, free: Array, high: Array) -> Array:
        """Values of the entries that are not free, 0 for the others."""
        xp = array_namespace(self.z)
        return xp.where(free, xp.zeros_like(self.z), xp.where(high, self.upper, self.lower))

    def target(self, held: Array) -> Array:
        """What the free entries have to fit."""
        return self.z - self.R @ held

    def outside(self, x: Array, small: Array) -> Array:
        """Entries beyond their bounds."""
        return (x < self.lower - small) | (x > self.upper + small)

    def above(self, x: Array) -> Array:
        """Entries beyond their upper bound."""
        return x > self.upper

    def downhill(self, gradient: Array, high: Array, small: Array) -> Array:
        """Entries that would lower the objective by leaving their bound."""
        return (high & (gradient > small)) | (~high & (gradient < -small))


class Orthant(NamedTuple):
    """Bounds 0 and inf, for which there is less to do."""

    R: Array
    z: Array

    def part(self, some: slice) -> Orthant:
        """Some of the problems."""
        return Orthant(self.R, self.z[:, some])

    def held(self, free: Array, high: Array) -> float:
        """Values of the entries that are not free, 0 for the others."""
        return 0.0

    def target(self, held: float) -> Array:
        """What the free entries have to fit."""
        return self.z

    def outside(self, x: Array, small: Array) -> Array:
        """Entries beyond their bounds."""
        return x < -small

    def above(self, x: Array) -> Array:
        """Entries beyond their upper bound."""
        return x == array_namespace(x).inf

    def downhill(self, gradient: Array, high: Array, small: Array) -> Array:
        """Entries that would lower the objective by leaving their bound."""
        return gradient < -small


class Solution(NamedTuple):
    """What pivoting has found; (n, k) each, but for `running`."""

    x: Array
    free: Array
    high: Array  # of the entries that are not free: at the upper bound
    gradient: Array  # of the objective
    wrong: Array  # entries on the wrong side
    running: Array  # (k,): problems that the limit of steps has left unsolved


class _State(NamedTuple):
    solution: Solution
    fewest: Array  # (k,)
    patience: Array
    step: Array


def pivot(backend: Any, box: Box | Orthant, free: Array, high: Array) -> Solution:
    """Solve from a first guess of the free entries and of those at the upper bound."""
    n, k = box.z.shape
    width = max(1, BLOCK // (n * n))
    if k <= width:
        return _block(backend, box, free, high)
    some = (slice(start, min(start + width, k)) for start in range(0, k, width))
    parts = [_block(backend, box.part(s), free[:, s], high[:, s]) for s in some]
    return Solution(*(array_namespace(box.z).concat(arrays, axis=-1) for arrays in zip(*parts, strict=True)))


def solve_free(X: Inverses, R: Array, u: Array) -> Array:
    """``X u``, as accurate as a QR factorisation of the free columns."""
    x = X.times(u)
    for _ in range(X.refinements):
        x = x + X.times(u - R @ x)
    return x


def solve_adjoint(X: Inverses, R: Array, c: Array) -> Array:
    """``X^T c``: ``R_F v`` of the v that solves ``R_F^T R_F v = c_F``; `c` is 0 where entries are not free."""
    t = X.transposed(c)
    for _ in range(X.refinements):
        t = t + X.transposed(c - R.mT @ t)
    return t


def inverses(backend: Any, R: Array, k: int) -> Invert:
    """How to invert R on the free entries of k problems.

    With few unknowns there are fewer sets of entries than problems: all are factored, and looked up.
    """
    return _table(backend, R) if 2 ** R.shape[0] <= k else _by_factoring(backend, R)


# -- pseudo-inverses ---------------------------------------------------------------------------------------------------


class _Looked(NamedTuple):
    """X, (n, n, k), of few unknowns and many problems."""

    X: Array
    refinements: int = 1

    # written out: a compiler fuses the sum, and would fuse a product and its reduction badly

    def times(self, u: Array) -> Array:
        return trees.sum_(self.X[:, i, :] * u[i, :] for i in range(u.shape[0]))

    def transposed(self, t: Array) -> Array:
        return trees.sum_(self.X[i, :, :] * t[i, :] for i in range(t.shape[0]))


class _Factored(NamedTuple):
    """X as ``left right base``: (k, n, n) twice and (n, n). The product is not formed: it would cost more than it."""

    left: Array
    right: Array
    base: Array
    refinements: int = 2

    def times(self, u: Array) -> Array:
        return _each(self.left, _each(self.right, self.base @ u))

    def transposed(self, t: Array) -> Array:
        return self.base.mT @ _each(self.right.mT, _each(self.left.mT, t))


def _each(X: Array, u: Array) -> Array:
    """Matrix j times column j."""
    return (X @ array_namespace(u).expand_dims(u.mT, axis=2))[:, :, 0].mT


def _by_qr(backend: Any, R: Array, free: Array) -> tuple[Array, Array]:
    """``X = left right`` from ``[R P; I - P] = Q T``: the error stays at the condition of the free columns."""
    xp = array_namespace(R)
    n = R.shape[0]
    mask, eye = _mask(R, free)
    Q, T = backend.qr(xp.concat([R * mask, eye * (1 - mask)], axis=1))
    eye = xp.broadcast_to(eye, T.shape)
    return backend.solve_triangular(T, eye) * mask.mT, Q[:, :n, :].mT


def _by_gram(backend: Any, R: Array, free: Array) -> tuple[Array, Array]:
    """``X = left right R^T`` from ``P R^T R P + I - P = L L^T``: far cheaper for a batch.

    It is off by the square of the condition, which is refined away.
    """
    mask, eye = _mask(R, free)
    L = backend.cholesky((R.mT @ R) * mask * mask.mT + eye * (1 - mask))
    half = backend.solve_triangular(L, array_namespace(R).broadcast_to(eye, L.shape), lower=True) * mask
    return half.mT, half


def _mask(R: Array, free: Array) -> tuple[Array, Array]:
    """P as rows (k, 1, n) of zeros and ones, and the identity."""
    xp = array_namespace(R)
    mask = xp.expand_dims(xp.astype(free.mT, R.dtype), axis=1)
    return mask, xp.eye(R.shape[0], dtype=R.dtype, device=device(R))


def _table(backend: Any, R: Array) -> Invert:
    xp = array_namespace(R)
    n = R.shape[0]
    powers = xp.asarray([2**i for i in range(n)], dtype=xp.int32, device=device(R))
    every = xp.arange(2**n, dtype=xp.int32, device=device(R))
    bits = (xp.expand_dims(every, axis=0) // xp.expand_dims(powers, axis=1)) % 2
    left, right = _by_qr(backend, R, bits == 1)
    X = xp.permute_dims(left @ right, (1, 2, 0))

    def look_up(free: Array) -> Inverses:
        index = trees.sum_(xp.astype(free[i, :], xp.int32) * powers[i] for i in range(n))
        return _Looked(xp.take(X, index, axis=2))

    return look_up


def _by_factoring(backend: Any, R: Array) -> Invert:
    """By the Gram matrix where refinement makes up for its condition, judged by the worst case, all entries free."""
    xp = array_namespace(R)
    s = backend.svd(R)[1]
    # with an error e = n eps cond^2 in X, two refinements leave e^3, which has to be below eps cond; NaN is hard
    hard = ~(xp.min(s) > (R.shape[0] ** 0.5 * xp.finfo(R.dtype).eps ** 0.375) * xp.max(s))

    eye = xp.eye(R.shape[0], dtype=R.dtype, device=device(R))
    base = xp.where(hard, eye, R.mT)

    def factored(free: Array) -> Inverses:
        none = xp.zeros((free.shape[1], *R.shape), dtype=R.dtype, device=device(R))
        pair = backend.when(~hard, lambda _: _by_gram(backend, R, free), (none, none))
        left, right = backend.when(hard, lambda _: _by_qr(backend, R, free), pair)
        return _Factored(left, right, base)

    return factored


# -- pivoting ----------------------------------------------------------------------------------------------------------


def _limit(n: int) -> int:
    """Exchanges after which a problem counts as unsolved: some five are usual, and only rounding makes for more."""
    return 100 + 10 * n


def _block(backend: Any, box: Box | Orthant, free: Array, high: Array) -> Solution:
    xp = array_namespace(box.z)
    n, k = box.z.shape
    limit = _limit(n)
    invert = inverses(backend, box.R, k)
    first = _solved(invert, box, free, high)
    steps = xp.zeros((k,), dtype=xp.int32, device=device(box.z))
    state = _State(first, steps + (n + 1), steps + PATIENCE, steps)

    def running(state: _State) -> Array:
        return state.solution.running & (state.step < limit)

    def advance(state: _State, columns: tuple[Array, ...]) -> _State:
        some: Box | Orthant = type(box)(box.R, *columns)
        change, fewest, patience = _exchange(state)
        free, high, x = state.solution.free, state.solution.high, state.solution.x
        leaving = change & free
        free, high = free ^ change, (leaving & some.above(x)) | (~leaving & high)
        return _State(_solved(invert, some, free, high), fewest, patience, state.step + 1)

    return backend.settle(running, advance, state, tuple(box[1:])).solution


def _exchange(state: _State) -> tuple[Array, Array, Array]:
    """Which entries change sides: those on the wrong one, or the last of them."""
    wrong = state.solution.wrong
    xp = array_namespace(wrong)
    order = xp.expand_dims(xp.arange(wrong.shape[0], dtype=xp.int32, device=device(wrong)), axis=1)
    count = xp.sum(xp.astype(wrong, xp.int32), axis=0, dtype=xp.int32)
    fewer = count < state.fewest
    together = fewer | (state.patience > 0)
    left = xp.where(state.patience > 0, state.patience - 1, state.patience)
    last = xp.max(xp.where(wrong, order, xp.full_like(order, -1)), axis=0)
    change = wrong & (together | (order == last))
    return change, xp.where(fewer, count, state.fewest), xp.where(fewer, xp.full_like(left, PATIENCE), left)


def _solved(invert: Invert, box: Box | Orthant, free: Array, high: Array) -> Solution:
    """The solution for a guess, and where the guess is wrong by more than rounding."""
    xp = array_namespace(box.z)
    R, z = box.R, box.z
    held = box.held(free, high)
    x = solve_free(invert(free), R, box.target(held)) + held  # type: ignore[arg-type]
    gradient = R.mT @ (R @ x - z)
    small_x, small_g = _rounding(z, x)
    wrong = (free & box.outside(x, small_x)) | (~free & box.downhill(gradient, high, small_g))
    return Solution(x, free, high, gradient, wrong, xp.any(wrong, axis=0))


def _rounding(z: Array, x: Array) -> tuple[Array, Array]:
    """What entries of x and of the gradient may be off by, at least; (1, k)."""
    xp = array_namespace(z)
    unit = 10 * z.shape[0] * xp.finfo(z.dtype).eps
    size = xp.max(xp.abs(x), axis=0, keepdims=True)
    return unit * size, unit * (size + xp.max(xp.abs(z), axis=0, keepdims=True))
