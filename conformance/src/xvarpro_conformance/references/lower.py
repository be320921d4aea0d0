"""The reduced objective in a hundred digits, from the statement of a problem: normal equations, a column at a time.

Derivatives are differences of these values: with a step of 1e-20 they have as many digits as double precision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from xvarpro import ColumnChunks, Level, Problem, RowChunks, lower
from xvarpro.core import trees
from xvarpro.core.struct import Tree
from xvarpro_conformance.references import designs
from xvarpro_conformance.references.digits import digits, numbers, real, rounded, solution

STEP = 20  # differences of 10^-20
LEAST = 30  # a ridge of 10^-30 selects the solution of least norm
DIRECTIONS = 2

Vector = np.ndarray  # of numbers of any kind


class Written(NamedTuple):
    """A level at one theta, written out: a design and a vector of weights for each right-hand side."""

    A: list[Vector]  # k of (m, n)
    y: Vector  # (m, k)
    heavy: Vector  # (m, k): weights of squared residuals
    lam: Vector  # (n, k)
    Omega: Vector  # (r, n)

    def gram(self, j: int) -> Vector:
        """``A^H diag(heavy) A + Omega^H diag(lam) Omega`` of a column."""
        A, heavy = self.A[j], self.heavy[:, j : j + 1]
        return designs.adjoint(A) @ (heavy * A) + designs.adjoint(self.Omega) @ (self.lam[:, j : j + 1] * self.Omega)

    def slope(self, j: int) -> Vector:
        """``A^H diag(heavy) y`` of a column."""
        found: Vector = designs.adjoint(self.A[j]) @ (self.heavy[:, j] * self.y[:, j])
        return found

    def residual(self, w: Vector) -> Vector:
        """``A w - y``, not weighted."""
        return np.stack([self.A[j] @ w[:, j] for j in range(len(self.A))], axis=1) - self.y

    def value(self, w: Vector) -> Any:
        """The level's objective."""
        r, Ow = self.residual(w), self.Omega @ w
        return (np.sum(self.heavy * _squares(r)) + np.sum(self.lam * _squares(Ow))) / 2

    @property
    def condition(self) -> float:
        """Of the stacked matrix, its singular values of 0 left out; the largest over the right-hand sides."""
        stacked = [
            np.vstack([np.sqrt(rounded(h))[:, None] * rounded(A), np.sqrt(rounded(s))[:, None] * rounded(self.Omega)])
            for A, h, s in zip(self.A, self.heavy.T, self.lam.T, strict=True)
        ]
        values = [np.linalg.svd(S, compute_uv=False) for S in stacked]
        return max(float(s[0] / s[s > 1e-12 * s[0]][-1]) for s in values)


def _squares(x: Vector) -> Vector:
    return np.asarray(real(x * np.conj(x)))


def written(level: Level, M: Callable[..., Any], theta: Tree, data: Tree) -> Written:
    """A level as the user states it; `M` in the place of its design where that takes no long numbers."""
    given: Any = level.y
    if isinstance(given, RowChunks):
        pieces: Any = given.source() if callable(given.source) else given.source
        pieces = map(partial(trees.map_arrays, digits), pieces)
        chunks = [(chunk, given.y(theta, chunk)) if given.y else chunk for chunk in pieces]
        A, y = (np.concatenate(parts) for parts in zip(*((_dense(M(theta, x)), y) for x, y in chunks), strict=True))
    else:
        A = _dense(M(theta, data))
        y = given(theta, data) if callable(given) else given
        y = np.concatenate(list(y), axis=1) if isinstance(y, ColumnChunks) else y
    y = y[:, None] if y.ndim == 1 else y
    heavy = np.ones(y.shape)
    if level.weights is not None:
        weights: Any = level.weights
        heavy = heavy * (weights if weights.ndim == 2 else weights[:, None])
        y = np.where(heavy > 0, y, 0.0)  # what is missing may be NaN
    lam, weight = (f(theta, data) if callable(f) else f for f in (level.lam, level.Omega))
    Omega = np.eye(A.shape[-1]) if weight is None else designs.dense(weight)
    lam = np.broadcast_to(np.asarray(lam), (len(Omega), y.shape[1]))
    y, heavy, lam, Omega = (np.asarray(digits(x)) for x in (y, heavy, lam, Omega))
    return Written([A] * y.shape[1] if A.ndim == 2 else list(A), y, heavy, lam, Omega)


def _dense(M: Any) -> Vector:
    return np.asarray(designs.dense(M), dtype=object)


# -- where w may lie ---------------------------------------------------------------------------------------------------


class Face(NamedTuple):
    """``w = start + basis z``, and the rest of the set where that is a face of it."""

    start: Vector  # (n,)
    basis: Vector  # (n, f)
    slope: Vector = np.zeros(1)  # of a penalty on the face, (n,)


def faces(W: Any, n: int, j: int) -> Iterator[Face]:
    """The affine subspaces that a set is made of: one; of a box every choice of the bounds that hold.

    Of a penalty: every choice of signs.
    """
    kind = "None" if W is None else type(W).__name__
    if kind == "None":
        yield Face(np.zeros(n), np.eye(n))
    elif kind in BOXES:
        low, high = _bounds(W, n, j)
        for sides in product("-01", repeat=n):
            start = np.array([{"-": a, "0": 0.0, "1": b}[side] for side, a, b in zip(sides, low, high, strict=True)])
            if np.isfinite(start).all():
                yield Face(start, np.eye(n)[:, np.array(sides) == "0"])
    elif kind == "Simplex":
        for free in (np.flatnonzero(pattern) for pattern in product((0, 1), repeat=n) if any(pattern)):
            corners = W.total * np.eye(n)[:, free]
            yield Face(corners[:, 0], corners[:, 1:] - corners[:, :1])
    elif kind == "L1":
        for signs in product((0, 1) if W.nonnegative else (-1, 0, 1), repeat=n):
            yield Face(np.zeros(n), np.eye(n)[:, np.array(signs) != 0], W.alpha * np.array(signs, float))
    elif kind == "Affine":
        yield Face(np.zeros(n) if W.w0 is None else _column(W.w0, j), W.B)
    elif kind == "Equality":
        # the first of the unknowns from the others
        C, p = np.asarray(digits(W.C)), len(W.C)
        d = np.asarray(digits(np.broadcast_to(_column(W.d, j), (p,))))
        both = _solved(C[:, :p], np.concatenate([d[:, None], -C[:, p:]], axis=1))
        yield Face(np.concatenate([both[:, 0], np.zeros(n - p)]), np.concatenate([both[:, 1:], np.eye(n - p)]))
    else:
        raise NotImplementedError(f"the suite has no definition of {kind}: add one to conformance/references/lower")


BOXES = ("Nonnegative", "Bounded")
REAL = (*BOXES, "Simplex", "L1")  # whose w is real


def _inside(W: Any, w: Vector, slope: np.ndarray, j: int, by: float = 0.0) -> bool:
    """Whether w, the best point of a face or beyond it, lies in the set, or has the signs that gave it its slope.

    Or is outside `by` so much.
    """
    kind = type(W).__name__
    if kind in BOXES:
        low, high = _bounds(W, len(w), j)
        return all(a - by <= x <= c + by for a, x, c in zip(low.tolist(), w, high.tolist(), strict=True))
    if kind == "Simplex":
        return all(x >= -by for x in w)
    return kind != "L1" or all(x * s >= -by for x, s in zip(w, slope.tolist(), strict=True))


def _column(x: Any, j: int) -> np.ndarray:
    x = np.asarray(x)
    return 1.0 * (x[:, min(j, x.shape[1] - 1)] if x.ndim == 2 else x)


def _bounds(W: Any, n: int, j: int) -> tuple[np.ndarray, np.ndarray]:
    low, high = (0.0, np.inf) if type(W).__name__ == "Nonnegative" else (W.lower, W.upper)
    return np.broadcast_to(_column(low, j), (n,)), np.broadcast_to(_column(high, j), (n,))


def _solved(A: Vector, b: Vector) -> Vector:
    """``A^-1 b`` by the normal equations, for which digits are enough."""
    return solution(designs.adjoint(A) @ A, designs.adjoint(A) @ b)


class Weights(NamedTuple):
    """The minimiser of one column, and the directions in which it may move, (n, f)."""

    w: Vector
    basis: Vector


def weights(H: Vector, b: Vector, W: Any, j: int) -> Weights:
    """The least ``1/2 <w, H w> - Re <b, w>`` over the set: of all minimisers over faces the best one inside."""
    if type(W).__name__ in REAL:
        H, b = np.asarray(real(H)), np.asarray(real(b))
    found = []
    for face in _likely(H, b, W, j):
        start, basis, slope = (np.asarray(digits(x)) for x in face)
        w = start + along(H, b - slope - H @ start, basis)
        if _inside(W, w, face.slope, j):
            energy = np.sum(real(np.conj(w) * (H @ w))) / 2 - np.sum(real(np.conj(b - slope) * w))
            found.append((energy, Weights(w, basis)))
    return min(found, key=lambda pair: pair[0])[1]


def _likely(H: Vector, b: Vector, W: Any, j: int) -> list[Face]:
    """The faces whose best points are, in double precision and but for 1e-6, inside and as good as any."""
    every, near = list(faces(W, len(H), j)), 1e-6
    if len(every) == 1:
        return every
    found, (A, c) = [], (rounded(H), rounded(b))
    for face in every:
        B, g = face.basis, c - face.slope
        w = face.start + B @ np.linalg.solve(B.T @ A @ B, B.T @ (g - A @ face.start))
        if _inside(W, w, face.slope, j, near * (1 + abs(w).max())):
            found.append((w @ A @ w / 2 - g @ w, face))
    least = min(energy for energy, _ in found)
    return [face for energy, face in found if energy <= least + near * (1 + abs(least))]


def along(H: Vector, c: Vector, basis: Vector) -> Vector:
    """``B (B^H H B)^-1 B^H c``."""
    if not basis.shape[1]:
        return 0 * c
    turned = designs.adjoint(basis)
    found: Vector = basis @ solution(turned @ H @ basis, turned @ c)
    return found


# -- the reduced objective ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class At:
    """A problem at one theta and one data, of long numbers."""

    problem: Problem
    theta: Tree
    data: Tree
    M: Callable[..., Any] | None = None

    @cached_property
    def low(self) -> Written:
        return written(self.problem.lower, self.M or self.problem.lower.M, self.theta, self.data)

    @cached_property
    def high(self) -> Written:
        upper = self.problem.upper
        return self.low if upper is None else written(upper, upper.M, self.theta, self.data)

    def gram(self, j: int) -> Vector:
        H = self.low.gram(j)
        if isinstance(self.problem.lower.solver, lower.SVD):
            H = H + np.eye(len(H)) * numbers().mpf(10) ** -LEAST
        return H

    @cached_property
    def found(self) -> list[Weights]:
        """Of every column."""
        low = self.low
        shared = self.problem.lower.weights is None and all(A is low.A[0] for A in low.A)
        shared = shared and bool(np.all(low.lam == low.lam[:, :1]))
        W = self.problem.lower.W
        if shared and W is None:  # one matrix
            b = designs.adjoint(low.A[0]) @ low.y
            found = solution(self.gram(0), b)
            return [Weights(w, np.eye(len(w))) for w in found.T]
        return [weights(self.gram(j), low.slope(j), W, j) for j in range(len(low.A))]

    def turned(self, dy: Vector) -> Vector:
        """The slope of w as the target moves by dy."""
        low = self.low._replace(y=dy)
        part = real if type(self.problem.lower.W).__name__ in REAL else np.asarray
        columns = [along(part(self.gram(j)), part(low.slope(j)), w.basis) for j, w in enumerate(self.found)]
        return np.stack(columns, axis=1)

    @cached_property
    def w(self) -> Vector:
        return np.stack([x.w for x in self.found], axis=1)

    @cached_property
    def value(self) -> Any:
        value, problem = self.high.value(self.w), self.problem
        if isinstance(problem.lower.W, lower.L1) and problem.upper is None:
            value = value + np.sum(np.abs(self.w)) * numbers().mpf(problem.lower.W.alpha)
        if problem.R is not None and problem.mu:
            value = value + numbers().mpf(problem.mu) / 2 * np.asarray(problem.R(self.theta)).item()
        return value


@dataclass(frozen=True, eq=False)
class Exact:
    """The reduced objective at theta0, each part computed when it is asked for.

    Derivatives are along orthonormal directions D of theta, a few where theta has many entries, with u their sum.

    Parameters
    ----------
    problem : Problem
    theta0 : pytree of NumPy arrays
    M : callable, optional
        The lower design as a matrix, where the problem's own takes no long numbers.
    """

    problem: Problem
    theta0: Tree
    M: Callable[..., Any] | None = None

    @cached_property
    def D(self) -> np.ndarray:
        """Orthonormal directions, (p, d)."""
        p = sum(x.size for x in trees.leaves(self.theta0))
        return np.linalg.qr(np.random.default_rng(p).normal(size=(p, min(p, DIRECTIONS))))[0]

    @cached_property
    def u(self) -> np.ndarray:
        """The sum of the directions, (p,)."""
        return self.D.sum(axis=1)

    @cached_property
    def e(self) -> Tree:
        """A direction of the data."""
        rng = np.random.default_rng(0)
        return trees.map_arrays(lambda x: rng.normal(size=x.shape) if x.dtype.kind == "f" else x, self.problem.data)

    @cached_property
    def value(self) -> np.ndarray:
        """0-d."""
        return rounded(self._start.value)

    @cached_property
    def w(self) -> np.ndarray:
        """Shape (n, k)."""
        return rounded(self._start.w)

    @cached_property
    def condition(self) -> float:
        """Of the lower level."""
        return self._start.low.condition

    @cached_property
    def energy(self) -> np.ndarray:
        """``1/2 |y|^2`` of the upper level, 0-d."""
        high = self._start.high
        return rounded(np.sum(high.heavy * _squares(high.y)) / 2)

    @cached_property
    def slopes(self) -> np.ndarray:
        """``D^T grad f``, (d,)."""
        return rounded([(x.value - self._start.value) / step() for x in self._ahead])

    @cached_property
    def bends(self) -> np.ndarray:
        """Slopes of the real parts of w, each times the number of its row, in all, (d,): their sum may be fixed."""
        rows = np.arange(1, self.w.shape[0] + 1)[:, None]
        return rounded([np.sum(rows * real(x.w - self._start.w)) / step() for x in self._ahead])

    @cached_property
    def curvature(self) -> np.ndarray:
        """``D^T H u``, (d,)."""
        start, side, h = self._start, self._at(self.u), step()
        beyond = [self._at(self.u, d).value - side.value for d in self.D.T]
        ahead = [x.value - start.value for x in self._ahead]
        return rounded([(x - y) / h**2 for x, y in zip(beyond, ahead, strict=True)])

    @cached_property
    def data_slope(self) -> np.ndarray:
        """Of ``<u, grad f>`` along e, 0-d."""
        start, side = self._start, self._at(self.u)
        moved = self._at(self.u, data=True).value - self._at(data=True).value
        return rounded((moved - (side.value - start.value)) / step() ** 2)

    @cached_property
    def jacobian(self) -> np.ndarray:
        """Slopes of the upper residual and of its ridge's rows, (d, N): Kaufman's where there is one level."""
        return np.stack([rounded(self._row(x)) for x in self._ahead])

    @cached_property
    def _start(self) -> At:
        return self._at()

    @cached_property
    def _ahead(self) -> list[At]:
        return [self._at(d) for d in self.D.T]

    def _at(self, *steps: np.ndarray, data: bool = False) -> At:
        """The problem steps away, in theta and along e in the data."""
        leaves, treedef = trees.flatten(self.theta0)
        cuts = np.cumsum([x.size for x in leaves])[:-1]
        parts = zip(*(np.split(step, cuts) for step in steps), strict=True) if steps else [()] * len(leaves)
        theta = trees.unflatten(treedef, [_moved(x, *ds) for x, ds in zip(leaves, parts, strict=True)])
        given, structure = trees.flatten(self.problem.data)
        along = trees.leaves(self.e)
        here = [_moved(x, d) if data else digits(x) for x, d in zip(given, along, strict=True)]
        return At(self.problem, theta, trees.unflatten(structure, here), self.M)

    def _row(self, ahead: At) -> Vector:
        start, h = self._start, step()
        if self.problem.is_separable:
            # Kaufman: the part of dM w - dy that no w reaches
            X = (ahead.low.residual(start.w) - start.low.residual(start.w)) / h
            dw = start.turned(-X)
            dr = X + start.low.residual(dw) + start.low.y
        else:
            dw = (ahead.w - start.w) / h
            dr = (ahead.high.residual(ahead.w) - start.high.residual(start.w)) / h
        root = np.frompyfunc(numbers().sqrt, 1, 1)
        rows = root(start.high.heavy) * dr, root(start.high.lam) * (start.high.Omega @ dw)
        return np.concatenate([x.ravel() for x in rows])


def step() -> Any:
    """Of differences."""
    return numbers().mpf(10) ** -STEP


def _moved(x: np.ndarray, *directions: np.ndarray) -> Any:
    """Some steps away; each direction as it is, since the sum of two would be rounded."""
    found = digits(x)
    for d in directions if x.dtype.kind == "f" else ():
        found = found + digits(d.reshape(x.shape)) * step()
    return found
