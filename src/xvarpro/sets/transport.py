"""Doubly stochastic matrices and transport plans: polytopes whose oracle is a solver on the host."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from xvarpro import backends
from xvarpro.core.namespace import device, dtype_name, namespace_of
from xvarpro.core.struct import Array
from xvarpro.errors import BackendNotInstalledError, ProblemError
from xvarpro.sets._parameters import as_like, host_numbers
from xvarpro.sets.interface import Set, check_matrix
from xvarpro.sets.vectors import positive_part

_TOLERANCE = 1e-10  # the least that HiGHS accepts


class _OnHost(Set):
    """Matrices on the last two axes, with an oracle that is a solver of SciPy."""

    event_ndim = 2
    polytope = True
    compiles = False

    def check(self, shape: tuple[int, ...]) -> None:
        check_matrix(self, shape)


@final
@dataclass(frozen=True)
class Birkhoff(_OnHost):
    """Birkhoff polytope ``{X >= 0, rows and columns sum to 1}`` of square matrices; its vertices are permutations.

    The oracle is SciPy's assignment solver: it runs on the host, one matrix after the other, and not inside a compiled
    loop.

    Notes
    -----
    LMO : the permutation of least cost; any
    Cost : O(n^3), SciPy on the host
    Diameter : ``sqrt(2 n)``; 0 for n = 1
    Projection : none, because it takes a quadratic program

    References
    ----------
    Crouse, "On implementing 2D rectangular assignment algorithms", IEEE Transactions on Aerospace and Electronic
    Systems 52, 2016.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> xv.sets.Birkhoff().lmo(np.array([[1.0, 0.0], [0.0, 1.0]]))
    array([[0., 1.],
           [1., 0.]])
    """

    def check(self, shape: tuple[int, ...]) -> None:
        check_matrix(self, shape, square=True)

    def lmo(self, g: Array) -> Array:
        return _solved_on_host(self, _assignment, g)

    def diameter(self, like: Array) -> float:
        n = like.shape[-1]
        return math.sqrt(2 * n) if n > 1 else 0.0

    def violation(self, x: Array) -> Array:
        ones = np.ones(x.shape[-1])
        return _outside(x, ones, ones, 1.0)

    def center(self, like: Array) -> Array:
        return namespace_of(like).full_like(like, 1 / like.shape[-1])


@final
@dataclass(frozen=True)
class Transport(_OnHost):
    """Transport plans ``{X >= 0, X 1 = a, X^T 1 = b}``.

    The oracle is the dual simplex of HiGHS through SciPy, on the host as that of `Birkhoff`. The flow of its vertex is
    computed anew from the support, so that it is feasible to rounding; it is optimal to the solver's tolerance,
    ``1e-10 sum(a) max|g|``, which `certified` reports.

    Parameters
    ----------
    a, b : array, optional
        Row and column sums, >= 0, with equal totals; the default is ``1/m`` and ``1/n``.

    Notes
    -----
    LMO : a plan of least cost, a vertex; any
    Cost : a linear program, HiGHS on the host
    Diameter : upper bound, ``sqrt(2) min(|a|_2, |b|_2)``
    Projection : none, because it takes a quadratic program

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> C = xv.sets.Transport(np.array([0.5, 0.5]), np.array([0.25, 0.75]))
    >>> C.lmo(np.array([[0.0, 1.0], [1.0, 0.0]]))
    array([[0.25, 0.25],
           [0.  , 0.5 ]])
    """

    a: Array | None = None
    b: Array | None = None

    def __post_init__(self) -> None:
        totals = []
        for name, x in (("a", self.a), ("b", self.b)):
            if x is None:
                totals.append(1.0)
                continue
            sums = host_numbers(x)
            if sums is None or sums.ndim != 1 or not (np.isfinite(sums) & (sums >= 0)).all() or not sums.sum() > 0:
                raise ProblemError(f"Transport: {name} must be a vector of finite numbers >= 0, not all 0, got {x!r}")
            if backends.of(x) is None:
                object.__setattr__(self, name, sums)
            totals.append(float(sums.sum()))
        if not abs(totals[0] - totals[1]) <= 1e-6 * totals[0]:
            raise ProblemError(f"Transport: a and b must have equal totals, got {totals[0]} and {totals[1]}")

    @classmethod
    def examples(cls, shape: tuple[int, ...]) -> tuple[Set, ...]:
        if len(shape) != 2:
            return (cls(),)
        m, n = shape
        a, b = np.arange(1.0, m + 1), np.arange(2.0, n + 2) ** 2
        return cls(), cls(a, b * (a.sum() / b.sum()))

    def check(self, shape: tuple[int, ...]) -> None:
        _OnHost.check(self, shape)
        for name, x, n in (("a", self.a, shape[-2]), ("b", self.b, shape[-1])):
            if x is not None and x.shape != (n,):
                raise ProblemError(f"Transport: {name} has shape {tuple(x.shape)}, but the leaf has shape {shape}")

    def _sums(self, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        """A and b in float64, with equal totals."""
        m, n = shape[-2:]
        a = np.full(m, 1 / m) if self.a is None else backends.to_numpy(self.a).astype(np.float64)
        b = np.full(n, 1 / n) if self.b is None else backends.to_numpy(self.b).astype(np.float64)
        return a, b * (a.sum() / b.sum())

    def lmo(self, g: Array) -> Array:
        return _solved_on_host(self, lambda cost: _plan(cost, *self._sums(g.shape)), g)

    def certified(self, g: Array) -> tuple[Array, Array | None]:
        a, _ = self._sums(g.shape)
        xp = namespace_of(g)
        return self.lmo(g), (2 * _TOLERANCE * float(a.sum())) * xp.max(xp.abs(g), axis=(-2, -1))

    def diameter(self, like: Array) -> float:
        if 1 in like.shape[-2:]:
            return 0.0
        return math.sqrt(2) * min(float(np.linalg.norm(x)) for x in self._sums(like.shape))

    def violation(self, x: Array) -> Array:
        a, b = self._sums(x.shape)
        return _outside(x, a, b, float(max(a.max(), b.max())))

    def center(self, like: Array) -> Array:
        a, b = self._sums(like.shape)
        return namespace_of(like).zeros_like(like) + as_like(np.outer(a, b / b.sum()), like)


def _solved_on_host(owner: Set, solve: Callable[[np.ndarray], np.ndarray], g: Array) -> Array:
    """`solve` for every matrix of g, (..., m, n), on the host; NaN where one is not finite."""
    backend = backends.owner(g)
    try:
        costs = backend.to_numpy(g)
    except (TypeError, RuntimeError) as error:
        raise ProblemError(
            f"{type(owner).__name__} calls a solver on the host and cannot be compiled: solve on NumPy, CuPy or PyTorch"
        ) from error
    out = np.zeros_like(costs)
    for at in np.ndindex(costs.shape[:-2]):
        top = np.abs(costs[at]).max()
        # in units of the largest entry, for the solver's tolerances are absolute
        out[at] = solve(costs[at] / (top if top > 0 else 1.0)) if np.isfinite(top) else np.nan
    return backend.asarray(out, dtype=dtype_name(g), device=device(g))


def _scipy(module: str) -> Any:
    try:
        return importlib.import_module(f"scipy.{module}")
    except ModuleNotFoundError as error:
        raise BackendNotInstalledError(
            "the oracles of Birkhoff and Transport need the package 'scipy', which is not installed: "
            "pip install 'xvarpro[scipy]'"
        ) from error


def _assignment(cost: np.ndarray) -> np.ndarray:
    rows, columns = _scipy("optimize").linear_sum_assignment(cost)
    out = np.zeros_like(cost)
    out[rows, columns] = 1.0
    return out


def _plan(cost: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """A vertex of the plans of least cost."""
    optimize, sparse = _scipy("optimize"), _scipy("sparse")
    m, n = cost.shape
    total = a.sum()
    by_row, by_column = sparse.kron(sparse.eye(m), np.ones((1, n))), sparse.kron(np.ones((1, m)), sparse.eye(n))
    options = {"primal_feasibility_tolerance": _TOLERANCE, "dual_feasibility_tolerance": _TOLERANCE}
    found = optimize.linprog(
        cost.ravel(),
        A_eq=sparse.vstack([by_row, by_column]).tocsr(),
        b_eq=np.concatenate([a, b]) / total,
        method="highs-ds",
        options=options,
    )
    if found.status != 0:
        raise ProblemError(f"Transport: the linear program was not solved: {found.message}")
    return total * _flow(found.x.reshape(m, n), a / total, b / total)


def _flow(x: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The flow on the support of a vertex, which is a forest: each leaf sends what it has and leaves the forest."""
    m, _ = x.shape
    left = np.concatenate([a, b])
    neighbours: list[set[int]] = [set() for _ in left]
    for i, j in zip(*np.nonzero(x > 0), strict=True):
        neighbours[i].add(m + int(j))
        neighbours[m + j].add(int(i))
    out = np.zeros_like(x)
    leaves = [i for i, near in enumerate(neighbours) if len(near) == 1]
    while leaves:
        leaf = leaves.pop()
        if not neighbours[leaf]:
            continue
        (other,) = neighbours[leaf]
        out[(leaf, other - m) if leaf < m else (other, leaf - m)] = max(left[leaf], 0.0)
        left[other] -= left[leaf]
        neighbours[leaf].clear()
        neighbours[other].discard(leaf)
        if len(neighbours[other]) == 1:
            leaves.append(other)
    # a support with a cycle is no vertex: keep the flow that the solver returned
    return x if any(neighbours) else out


def _outside(x: Array, a: np.ndarray, b: np.ndarray, size: float) -> Array:
    """Largest negative entry, or error of a row or column sum, over `size`."""
    xp = namespace_of(x)
    rows = xp.abs(xp.sum(x, axis=-1) - as_like(a, x))
    columns = xp.abs(xp.sum(x, axis=-2) - as_like(b, x))
    worst = xp.maximum(xp.max(rows, axis=-1), xp.max(columns, axis=-1))
    return positive_part(xp.maximum(worst, xp.max(-x, axis=(-2, -1)))) / size
