"""Least squares between bounds, for many right-hand sides at once, by block principal pivoting.

``min 1/2 |R x - z|^2 over lower <= x <= upper``, one problem per column of z. A guess which entries are free gives x by
an unconstrained solve, and multipliers for the rest. Entries that break their bound or have a multiplier of the wrong
sign are wrong, and change sides. All of them do so at once while that makes the wrong ones fewer, which takes few steps
but may cycle; where it has not for three exchanges, the last one alone does, which ends after finitely many (Murty
1974; Judice, Pires 1994; Kim, Park 2011).

Arrays have one problem per column. Columns of R have length 1. X stands for the pseudo-inverses of the free columns of
R, one per problem, with zeros in the rows of the others.
"""

from __future__ import annotations

from typing import NamedTuple

from xvarpro.backends import Backend, column_loop
from xvarpro.core.namespace import device, namespace_of
from xvarpro.core.struct import Array
from xvarpro.lower.stack import as_column, as_columns

# entries of the pseudo-inverses that are held at a time
BLOCK = 2**22
# block exchanges that may fail to make the wrong entries fewer before one entry is moved at a time
PATIENCE = 3


class Box(NamedTuple):
    """The problems. Bounds are (n, k) and may be infinite."""

    R: Array  # (n, n), upper triangular
    z: Array  # (n, k)
    lower: Array
    upper: Array


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
    fewest: Array  # (k,): the fewest wrong entries so far
    patience: Array
    step: Array


def pivot(backend: Backend, box: Box, free: Array, high: Array, limit: int | None) -> Solution:
    """Solve from a first guess of the free entries and of those at the upper bound.

    After `limit` exchanges a problem counts as unsolved. Some five are usual; None is ``100 + 10 n``, which only
    rounding exceeds.
    """
    n, k = box.z.shape
    limit = 100 + 10 * n if limit is None else limit
    width = max(1, BLOCK // (n * n))
    parts = []
    for start in range(0, k, width):
        some = slice(start, min(start + width, k))
        part = Box(box.R, *(x[:, some] for x in box[1:]))
        parts.append(_pivot(backend, part, free[:, some], high[:, some], limit))
    return Solution(*(namespace_of(box.z).concat(arrays, axis=-1) for arrays in zip(*parts, strict=True)))


# -- pseudo-inverses ---------------------------------------------------------------------------------------------------


class Inverses(NamedTuple):
    """X as ``left right base``: (k, n, n) twice and (n, n). The product is not formed: it would cost more than it.

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
            x = x + self._times(u - self.R @ x)
        return x

    def adjoint(self, c: Array) -> Array:
        """``X^T c``: ``R_F v`` of the v that solves ``R_F^T R_F v = c_F``; `c` is 0 where entries are not free."""
        t = self._transposed(c)
        for _ in range(2):
            t = t + self._transposed(c - self.R.mT @ t)
        return t

    def _times(self, u: Array) -> Array:
        return as_columns(self.left @ (self.right @ as_column(self.base @ u, self.right)))

    def _transposed(self, t: Array) -> Array:
        return self.base.mT @ as_columns(self.right.mT @ (self.left.mT @ as_column(t, self.left)))


class Inverter:
    """How to invert R on the free entries: by the Gram matrix, far cheaper for a batch, where its condition allows."""

    def __init__(self, backend: Backend, R: Array) -> None:
        xp = namespace_of(R)
        s = backend.svd(R)[1]
        # the worst case has all entries free. With an error e = n eps cond^2 in X two refinements leave e^3, which has
        # to be below eps cond; NaN is hard
        hard = ~(xp.min(s) > (R.shape[0] ** 0.5 * xp.finfo(R.dtype).eps ** 0.375) * xp.max(s))
        self._backend, self._R, self._hard = backend, R, hard
        self._eye = xp.eye(R.shape[0], dtype=R.dtype, device=device(R))
        self._base = xp.where(hard, self._eye, R.mT)

    def __call__(self, free: Array) -> Inverses:
        R, xp, when = self._R, namespace_of(self._R), self._backend.when
        mask = xp.expand_dims(xp.astype(free.mT, R.dtype), axis=1)  # P as rows (k, 1, n) of zeros and ones
        none = xp.zeros((free.shape[1], *R.shape), dtype=R.dtype, device=device(R))
        pair = when(~self._hard, lambda _: self._by_gram(mask), (none, none))
        left, right = when(self._hard, lambda _: self._by_qr(mask), pair)
        return Inverses(R, left, right, self._base)

    def _by_gram(self, mask: Array) -> tuple[Array, Array]:
        """``X = left right R^T`` from ``P R^T R P + I - P = L L^T``: off by the square of the condition."""
        R, eye = self._R, self._eye
        L = self._backend.cholesky((R.mT @ R) * mask * mask.mT + eye * (1 - mask))
        eye = namespace_of(R).broadcast_to(eye, L.shape)
        half = self._backend.solve_triangular(L, eye, lower=True) * mask
        return half.mT, half

    def _by_qr(self, mask: Array) -> tuple[Array, Array]:
        """``X = left right`` from ``[R P; I - P] = Q T``: the error stays at the condition of the free columns."""
        R, eye, xp = self._R, self._eye, namespace_of(self._R)
        Q, T = self._backend.qr(xp.concat([R * mask, eye * (1 - mask)], axis=1))
        half = self._backend.solve_triangular(T, xp.broadcast_to(eye, T.shape)) * mask.mT
        return half, Q[:, : R.shape[0], :].mT


# -- pivoting ----------------------------------------------------------------------------------------------------------


def _pivot(backend: Backend, box: Box, free: Array, high: Array, limit: int) -> Solution:
    xp = namespace_of(box.z)
    n, k = box.z.shape
    invert = Inverter(backend, box.R)
    steps = xp.zeros((k,), dtype=xp.int32, device=device(box.z))
    state = _State(_solved(invert, box, free, high), steps + (n + 1), steps + PATIENCE, steps)

    def running(state: _State) -> Array:
        return state.solution.running & (state.step < limit)

    def advance(state: _State, columns: tuple[Array, ...]) -> _State:
        some = Box(box.R, *columns)
        change, fewest, patience = _exchange(state)
        free, high = state.solution.free, state.solution.high
        leaving = change & free
        high = (leaving & (state.solution.x > some.upper)) | (~leaving & high)
        return _State(_solved(invert, some, free ^ change, high), fewest, patience, state.step + 1)

    return column_loop(backend, running, advance, state, tuple(box[1:])).solution


def _exchange(state: _State) -> tuple[Array, Array, Array]:
    """Which entries change sides: those on the wrong one, or the last of them; then `fewest` and `patience`."""
    wrong = state.solution.wrong
    xp = namespace_of(wrong)
    order = xp.expand_dims(xp.arange(wrong.shape[0], dtype=xp.int32, device=device(wrong)), axis=1)
    count = xp.sum(xp.astype(wrong, xp.int32), axis=0, dtype=xp.int32)
    fewer = count < state.fewest
    together = fewer | (state.patience > 0)
    left = xp.where(state.patience > 0, state.patience - 1, state.patience)
    last = xp.max(xp.where(wrong, order, xp.full_like(order, -1)), axis=0)
    change = wrong & (together | (order == last))
    return change, xp.where(fewer, count, state.fewest), xp.where(fewer, xp.full_like(left, PATIENCE), left)


def _solved(invert: Inverter, box: Box, free: Array, high: Array) -> Solution:
    """The solution for a guess, and where the guess is wrong by more than rounding."""
    R, z, lower, upper = box
    xp = namespace_of(z)
    held = xp.where(free, xp.zeros_like(z), xp.where(high, upper, lower))
    x = invert(free).solve(z - R @ held) + held
    gradient = R.mT @ (R @ x - z)
    # what entries of x and of the gradient may be off by, at least
    unit, size = 10 * z.shape[0] * xp.finfo(z.dtype).eps, xp.max(xp.abs(x), axis=0, keepdims=True)
    small_x, small_g = unit * size, unit * (size + xp.max(xp.abs(z), axis=0, keepdims=True))
    outside = (x < lower - small_x) | (x > upper + small_x)
    downhill = (high & (gradient > small_g)) | (~high & (gradient < -small_g))
    wrong = (free & outside) | (~free & downhill)
    return Solution(x, free, high, gradient, wrong, xp.any(wrong, axis=0))
