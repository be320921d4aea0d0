"""Doubly stochastic matrices and transport plans: polytopes whose oracle is a solver on the host."""

from __future__ import annotations

import importlib
import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from xvarpro.backends import registry
from xvarpro.backends.transformations import with_derivative
from xvarpro.core.namespace import device, dtype_name, namespace_of
from xvarpro.core.struct import Array
from xvarpro.errors import ProblemError, needs
from xvarpro.sets._faces import negligible
from xvarpro.sets.interface import Set, check_matrix
from xvarpro.sets.vectors import as_like, finite, norm, positive_part

_TOLERANCE = 1e-10  # the least that HiGHS accepts
ROUNDS = 500  # of Newton's method: matrices of 30 by 30 take up to 50


class _OnHost(Set):
    """Plans on the last two axes, with an oracle that is a solver of SciPy."""

    event_ndim = 2
    polytope = True
    compiles = False
    projects_quickly = False

    @abstractmethod
    def _sums(self, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        """Those of rows and of columns in float64, with equal totals."""

    @abstractmethod
    def _cheapest(self, cost: np.ndarray) -> np.ndarray:
        """A vertex of least cost."""

    def check(self, shape: tuple[int, ...]) -> None:
        check_matrix(self, shape)

    def lmo(self, g: Array) -> Array:
        # a vertex stays one while g moves a little
        return with_derivative(self._vertex, lambda _: lambda d: 0 * d, g)

    def _vertex(self, g: Array) -> Array:
        # in units of the largest entry, for the solver's tolerances are absolute
        return _solved_on_host(self, lambda cost: self._cheapest(cost / (np.abs(cost).max() or 1.0)), g)

    def project(self, x: Array) -> Array:
        return with_derivative(self._nearest, self.slope, x)

    def _nearest(self, x: Array) -> Array:
        a, b = self._sums(x.shape)
        return _solved_on_host(self, lambda x: _nearest_plan(x.astype(np.float64), a, b), x)

    def slope(self, x: Array) -> Callable[[Array], Array]:
        """The derivative of `project` at x: on the support, what leaves the sums as they are."""
        xp, (m, _) = namespace_of(x), x.shape[-2:]
        P = self.project(x)
        M = xp.astype(~negligible(P, xp.max(P, axis=(-2, -1), keepdims=True)), x.dtype)
        inverse = xp.linalg.pinv(_system(xp, M))

        def along(d: Array) -> Array:
            inside = M * d
            sums = xp.concat([xp.sum(inside, axis=-1), xp.sum(inside, axis=-2)], axis=-1)
            u = xp.sum(inverse * sums[..., None, :], axis=-1)
            return inside - M * (u[..., :m, None] + u[..., None, m:])

        return along


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
    Projection : Newton's method on the dual, O(n^3) a step, on the host

    References
    ----------
    Crouse, "On implementing 2D rectangular assignment algorithms", IEEE Transactions on Aerospace and Electronic
    Systems 52, 2016. Li, Sun and Toh, "On the efficient computation of a generalized Jacobian of the projector over the
    Birkhoff polytope", Mathematical Programming 179, 2020.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> xv.sets.Birkhoff().lmo(np.array([[1.0, 0.0], [0.0, 1.0]]))
    array([[0., 1.],
           [1., 0.]])
    """

    def check(self, shape: tuple[int, ...]) -> None:
        check_matrix(self, shape, square=True)

    def _sums(self, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        self.check(shape)
        return (np.ones(shape[-1]),) * 2

    def _cheapest(self, cost: np.ndarray) -> np.ndarray:
        rows, columns = _scipy("optimize").linear_sum_assignment(cost)
        out = np.zeros_like(cost)
        out[rows, columns] = 1.0
        return out

    def diameter(self, like: Array) -> float:
        n = like.shape[-1]
        return math.sqrt(2 * n) if n > 1 else 0.0

    def violation(self, x: Array) -> Array:
        return _outside(x, *self._sums(x.shape), 1.0)

    def center(self, like: Array) -> Array:
        self.check(like.shape)
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
    Projection : Newton's method on the dual, O((m + n)^3) a step, on the host

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
            wanted = "a vector of finite numbers >= 0, not all 0"
            sums = finite(self, name, wanted, lambda x: x.ndim == 1 and (x >= 0).all() and x.sum() > 0)
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
            if not n:
                raise ProblemError(f"Transport: theta's leaf must have entries, got shape {shape}")
            if x is not None and x.shape != (n,):
                raise ProblemError(f"Transport: {name} has shape {tuple(x.shape)}, but the leaf has shape {shape}")

    def _sums(self, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        self.check(shape)
        m, n = shape[-2:]
        a = np.full(m, 1 / m) if self.a is None else registry.to_numpy(self.a).astype(np.float64)
        b = np.full(n, 1 / n) if self.b is None else registry.to_numpy(self.b).astype(np.float64)
        return a, b * (a.sum() / b.sum())

    def _cheapest(self, cost: np.ndarray) -> np.ndarray:
        return _plan(cost, *self._sums(cost.shape))

    def certified(self, g: Array) -> tuple[Array, Array | None]:
        a, _ = self._sums(g.shape)
        xp = namespace_of(g)
        return self.lmo(g), (2 * _TOLERANCE * float(a.sum())) * xp.max(xp.abs(g), axis=(-2, -1))

    def diameter(self, like: Array) -> float:
        if 1 in like.shape[-2:]:
            return 0.0
        return math.sqrt(2) * min(float(norm(x)[0]) for x in self._sums(like.shape))

    def violation(self, x: Array) -> Array:
        a, b = self._sums(x.shape)
        return _outside(x, a, b, float(max(a.max(), b.max())))

    def center(self, like: Array) -> Array:
        a, b = self._sums(like.shape)
        return namespace_of(like).zeros_like(like) + as_like(np.outer(a, b / b.sum()), like)


def _solved_on_host(owner: Set, solve: Callable[[np.ndarray], np.ndarray], g: Array) -> Array:
    """`solve` for every matrix of g, (..., m, n), on the host; NaN where one is not finite."""
    owner.check(g.shape)
    backend = registry.owner(g)
    try:
        costs = backend.to_numpy(g)
    except (TypeError, RuntimeError) as error:
        raise ProblemError(
            f"{type(owner).__name__} calls a solver on the host and cannot be compiled, nor mapped by jax.vmap: solve "
            "on NumPy, CuPy or PyTorch; outside of a solve give all matrices at once, along leading axes, without jit"
        ) from error
    out = np.zeros_like(costs)
    for at in np.ndindex(costs.shape[:-2]):
        out[at] = solve(costs[at]) if np.isfinite(costs[at]).all() else np.nan
    return backend.asarray(out, dtype=dtype_name(g), device=device(g))


def _scipy(module: str) -> Any:
    with needs("the solver of Birkhoff and Transport", "scipy"):
        return importlib.import_module(f"scipy.{module}")


def _system(xp: Any, M: Any) -> Any:
    """The sums of rows and columns that one number per row and one per column, added where M is 1, bring about."""
    eyes = (xp.eye(n, dtype=M.dtype, device=device(M)) for n in M.shape[-2:])
    by_row, by_column = (xp.sum(M, axis=i)[..., None] * eye for i, eye in zip((-1, -2), eyes, strict=True))
    return xp.concat([xp.concat([by_row, M], axis=-1), xp.concat([M.mT, by_column], axis=-1)], axis=-2)


def _nearest_plan(x: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The projection of x, of which beyond half of the digits of the set's size the direction alone counts."""
    # powers of two: what ties goes on to tie
    unit = math.frexp(max(a.max(), b.max()))[1]
    x = np.ldexp(x, -max(unit, math.frexp(np.abs(x).max())[1] - 26))
    a, b = np.ldexp(a, -unit), np.ldexp(b, -unit)
    size = max(a.max(), b.max())
    z = _balanced(x, a, b, size)
    if np.abs(x).max() > 16 * size:
        # where the plan is 0 it stays so; the rest once more, by numbers of the size of the set
        support = z > -1e-4 * size
        z = _balanced(np.where(support, _levelled(x, support), -np.inf), a, b, size)
    return np.ldexp(np.maximum(z, 0.0), unit)


def _balanced(z: np.ndarray, a: np.ndarray, b: np.ndarray, size: float) -> np.ndarray:
    """What z is plus numbers of rows and of columns with which ``max(z, 0)`` has the sums a and b.

    Newton's method on the dual, which is concave and piecewise quadratic, with the best step of at most 1 along each
    direction. NaN where that does not end.
    """
    sums, eps = np.concatenate([a, b]), np.finfo(np.float64).eps
    xp, ridge, brentq = namespace_of(z), 1e-12 * np.eye(len(sums)), _scipy("optimize").brentq
    for _ in range(ROUNDS):
        P = np.maximum(z, 0.0)
        left = sums - np.concatenate([P.sum(axis=1), P.sum(axis=0)])
        if np.abs(left).max() <= 4 * eps * size:
            return z
        # parts of the support that are not joined have their own constant, along which the dual rises without a bend
        d = np.linalg.solve(_system(xp, (z > 0).astype(np.float64)) + ridge, left)
        D = d[: len(a), None] + d[len(a) :]

        def rise(t: float, z: np.ndarray = z, d: np.ndarray = d, D: np.ndarray = D) -> float:
            return float(d @ sums - (np.maximum(z + t * D, 0.0) * D).sum())

        bent = rise(1.0) < 0 < rise(0.0)
        z = z + (brentq(rise, 0.0, 1.0, xtol=1e-300, rtol=4 * eps, maxiter=200, disp=False) if bent else 1.0) * D
    return z if np.abs(left).max() <= eps**0.5 * size else np.full_like(z, np.nan)


def _levelled(x: np.ndarray, support: np.ndarray) -> np.ndarray:
    """What x is less a number per row and per column, 0 along a spanning tree of each part of the support."""
    rows, columns = np.full(len(x), np.nan), np.full(x.shape[1], np.nan)
    for root in range(len(x)):
        reached = [root] if np.isnan(rows[root]) else []
        rows[reached] = 0.0
        while reached:
            i = reached.pop()
            for j in np.flatnonzero(support[i] & np.isnan(columns)):
                columns[j] = x[i, j] - rows[i]
                more = np.flatnonzero(support[:, j] & np.isnan(rows))
                rows[more] = x[more, j] - columns[j]
                reached += more.tolist()
    return x - rows[:, None] - np.nan_to_num(columns)


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
