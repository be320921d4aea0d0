"""A separable problem at a solution, to first order: design and tangents of the residual as NumPy arrays."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from xvarpro import backends
from xvarpro.core import trees
from xvarpro.core.namespace import device, is_complex, namespace_of, positive_or_one
from xvarpro.core.struct import Array, Leaves, Tree
from xvarpro.driver.prepare import Prepared, prepare
from xvarpro.errors import ProblemError
from xvarpro.lower.weight_sets.interface import WeightSet
from xvarpro.objective.gauss_newton import condensed, has_tangents, residual_tangent
from xvarpro.objective.reduced import Reduced
from xvarpro.objective.streamed import Streamed
from xvarpro.problem.column_chunks import ColumnChunks, check_same_columns
from xvarpro.problem.problem import Problem
from xvarpro.problem.whitening import Whitening
from xvarpro.sets import Box
from xvarpro.sets.projection import degenerate, jacobian, matrix, nearest
from xvarpro.statistics.weighting import Stacked

TOGETHER = 64  # tangents that are computed at once in a compiled program
LARGEST = 5000  # columns of the triangle of rows in chunks
NEARBY = 1e-3  # of theta's largest entry, of 1 where that is 0: as far as a step from a solution leads
STOPPED = 1e-6  # what projectors, and cosines of right angles, may be off by
SMALLEST = 1e-306  # squares below this, or beyond one over it, are no longer numbers of full precision


class Linearised(NamedTuple):
    """Rows are scaled by the roots of their weights, and those of weight 0 are rows of zeros, or they are whitened.

    Rows that come in chunks are condensed to few, ``Q^H`` times all of them, with the same inner products of columns.
    Right-hand sides that come in chunks are those of the compressed target, ``y V`` with a unitary V: all that is a sum
    over right-hand sides is the same for them.

    """

    prepared: Prepared  # what it was computed with; uncompressed, but for right-hand sides in chunks
    theta: np.ndarray  # all entries, (p,), in the order of its leaves
    M: np.ndarray  # the design, (1, m, n), or one for each right-hand side, (k, m, n)
    y: np.ndarray  # (m, k)
    w: np.ndarray  # (n, k)
    X: np.ndarray  # ``dM w - dy`` along each entry of theta, (p, m, k)
    ridge: np.ndarray  # ``sqrt(lam) Omega``, (1, r, n), or one for each right-hand side; no rows without a ridge
    # roots of the weights of the squared residuals, (m, k); None of condensed rows and compressed right-hand sides
    root: np.ndarray | None
    columns: int  # right-hand sides of the target as given, of all processes
    data: int  # numbers in the target whose weight is not 0; a complex one counts twice
    spread: float  # weighted sum of squares of the target about its mean, column by column
    directions: list[np.ndarray]  # (n, r_j), columns that span those of w in its set; one, or one per right-hand side
    gradient: np.ndarray  # (p,)
    J: np.ndarray  # derivative of the projection onto the sets of theta at ``theta - step * gradient``, (p, p)
    step: float
    degenerate: bool  # whether some constraint is active with a multiplier of 0

    @property
    def residual(self) -> np.ndarray:
        """``M w - y``, shape (m, k)."""
        return (self.M @ self.w.T[:, :, None])[:, :, 0].T - self.y

    @property
    def flat(self) -> np.ndarray:
        """Sizes of entries of the gradient below which they are 0: an entry is <tangent, residual>."""
        tolerance = max(STOPPED, float(np.finfo(self.prepared.dtype).eps) ** 0.5)
        lengths: np.ndarray = np.linalg.norm(self.X.reshape(len(self.X), -1), axis=1)
        return tolerance * lengths * float(np.linalg.norm(self.residual))

    def row_by_row(self, what: str) -> np.ndarray:
        """`root`, for what needs the rows themselves."""
        if self.root is None:
            which = "right-hand sides" if self.in_columns else "rows"
            raise ProblemError(
                f"{what} need all {which} of the target in memory; got them in chunks. Pass y as one array"
            )
        return self.root

    def whitened(self, x: np.ndarray) -> np.ndarray:
        """Rows as the covariance of the data makes them, where there is one: real parts may be above imaginary ones."""
        return self._with_whitening(np.matmul, x)

    def unwhitened(self, x: np.ndarray) -> np.ndarray:
        """Its inverse."""
        return self._with_whitening(np.linalg.solve, x)

    def _with_whitening(self, fun: Callable[[np.ndarray, np.ndarray], np.ndarray], x: np.ndarray) -> np.ndarray:
        weights = self.prepared.problem.lower.weights
        if not isinstance(weights, Whitening):
            return x
        P = _host(weights.P)
        return fun(P, x.reshape(-1, len(P), math.prod(x.shape[1:]))).reshape(x.shape)

    @property
    def in_columns(self) -> bool:
        """Whether right-hand sides come in chunks."""
        return isinstance(self.prepared.original.lower.y, ColumnChunks)

    @property
    def slope(self) -> np.ndarray:
        """Gradient of the lower level by w, (n, k)."""
        back = self.M.conj().mT @ self.residual.T[:, :, None]
        back = back + self.ridge.conj().mT @ (self.ridge @ self.w.T[:, :, None])
        return back[:, :, 0].T

    @property
    def in_real_numbers(self) -> Linearised:
        """The same with real numbers only: real parts above imaginary ones, for w too where it is complex."""
        if not np.iscomplexobj(self.y):
            return self
        free = self.prepared.problem.lower.W is None or not self.prepared.problem.lower.W.real
        M, ridge = (_parts(x, free) for x in (self.M, self.ridge))
        return self._replace(
            M=M,
            ridge=ridge,
            y=_parts(self.y),
            w=_parts(self.w) if free else self.w.real,
            X=_parts(self.X),
            root=None if self.root is None else np.concatenate([self.root, self.root]),
            directions=[_parts(B, True) for B in self.directions] if free else self.directions,
        )


def linearised(
    problem: Problem, theta: Tree, over: Tree, solved: Prepared | None = None, backend: Any = None, **place: Any
) -> Linearised:
    """Linearise a problem at a solution; `backend` and `place`, device and dtype, are where to compute.

    `solved` is what a solve has prepared, which is used again where it is the same.
    """
    if isinstance(problem, Problem) and (why := unlike_least_squares(problem)):
        raise ProblemError(f"statistics need {why}")
    columns, prepared = 0, None if solved is None or backend is not None else solved.at(problem, theta, over)
    if prepared is None:
        prepared, columns = _prepared(problem, theta, over, solved, {"backend": backend, **place})
    problem = prepared.problem
    if why := unlike_arrays(prepared):
        raise ProblemError(f"statistics need {why}")
    M, y, root, w, X, slopes, data = _in_rows(prepared) if problem.in_rows else _in_memory(prepared)
    if not all(np.isfinite(x).all() for x in (M, w, X)):
        raise ProblemError(
            "statistics need w and the derivatives of the model to be finite; got NaN or inf at this theta"
        )
    p, rows = X.shape[0], X.reshape(X.shape[0], -1)
    weights = problem.lower.weights
    one = _host(weights.P) @ root if isinstance(weights, Whitening) else root  # what a constant target has become
    mean = np.sum(one.conj() * y, axis=0) / np.sum(np.abs(one) ** 2, axis=0)
    size = float(np.max(np.abs(rows), initial=0.0))
    if size and not SMALLEST < size * size < 1 / SMALLEST:
        raise ProblemError(
            "statistics need derivatives of the residual by theta with their squares in the range of the precision; "
            f"got {size:.3g}. Give the target or theta other units"
        )
    J, flat, step = _projection(prepared, slopes, 1.0 / (float(np.sum(np.abs(rows) ** 2)) / p or 1.0))
    at = Linearised(
        prepared,
        np.concatenate([_host(x).ravel() for x in prepared.theta]),
        M if M.ndim == 3 else M[None],
        y,
        w,
        X,
        _ridge(problem, w),
        None if problem.in_rows or columns else root,
        columns or y.shape[1],
        (data // y.shape[1] * columns if columns else data) * (1 + np.iscomplexobj(y)),
        float(np.sum(np.abs(y - one * mean) ** 2)),
        _directions(problem.lower.W, w, prepared.dtype),
        slopes,
        J,
        step,
        flat,
    )
    if isinstance(M_of := problem.lower.M, Stacked) and M_of.V.shape[0] > M_of.V.shape[1]:
        B = np.kron(np.eye(w.shape[0] // M_of.V.shape[1]), M_of.V)
        at = at._replace(M=at.M @ B.T, w=B @ at.w, ridge=at.ridge @ B.T, directions=[B])
    return at._replace(J=_held(at))


def scattered(at: Linearised) -> tuple[Linearised, np.ndarray]:
    """The sizes of residuals, (m, k), and `at` with rows that have them.

    Condensed rows ``Q^H J`` of one column, J the derivatives by theta and w, are turned so that ``J^H D^2 J``, with
    residuals of all rows in D, is one of independent noise as well.
    """
    if at.root is not None or at.in_columns or at.y.shape[1] > 1 or np.iscomplexobj(at.y):
        at.row_by_row("standard errors by the sandwich formula")
        return at, np.abs(at.in_real_numbers.residual)
    J = np.concatenate([at.M[0], at.X[:, :, 0].T], axis=1)
    size = positive_or_one(np.linalg.norm(J, axis=0))
    T = _host(at.prepared.call(_condensed, at.prepared.theta, 1.0)[1])[:, : len(size)]
    _, s, turn = np.linalg.svd(T / size @ np.linalg.pinv(J / size))
    return at._replace(M=turn @ at.M, X=turn @ at.X, y=turn @ at.y), s[:, None]


def unlike_arrays(prepared: Prepared) -> str:
    """What sets the design of least squares apart from one whose residuals can be linearised; empty as below."""
    problem, solver = prepared.problem, prepared.problem.lower.solver
    if not prepared.structure.exact:
        return (
            f"w to working precision; {'the design' if solver is None else type(solver).__name__} iterates. Give a "
            "design that is an array, and no solver="
        )
    if not has_tangents(problem, prepared.structure):
        return "a design that is an array or blocks of arrays; got another operator. Return its dense() from the model"
    return ""


def unlike_least_squares(problem: Problem) -> str:
    """What sets a problem apart from least squares in theta and w, and what to do; empty where nothing does."""
    if problem.lower.chunks_in_set:
        return "right-hand sides in memory where w lies in a set; got ColumnChunks. Pass y as an array"
    derivative = "xv.implicit.gradient has the derivative of a solution by the data, from which errors follow"
    if problem.noise is not None:
        return "least squares; got a marginal likelihood. fit.laplace() has its covariance"
    if not problem.is_separable:
        return f"one level; got two, where theta does not minimise the residual that w does. {derivative}"
    if problem.lower.loss is not None:
        return f"least squares; got the loss {problem.lower.loss!r}. fit.statistics() has those of a solve with it"
    if problem.mu:
        return f"theta without a penalty; got R with mu={problem.mu:.6g}. {derivative}"
    moving = [name for name in ("lam", "Omega") if callable(getattr(problem.lower, name))]
    if moving:
        kind = "lam that is a number" if moving[0] == "lam" else "Omega that is a matrix"
        return (
            f"a ridge {kind}; got a function of theta. Pass its value at the solution: errors are then those for this "
            "ridge"
        )
    return ""


def _prepared(
    problem: Problem, theta: Tree, over: Tree, solved: Prepared | None, place: dict[str, Any]
) -> tuple[Prepared, int]:
    """The problem with its right-hand sides as they are, and 0; or, of chunks, compressed ones, and how many it has."""
    if not (isinstance(problem, Problem) and isinstance(problem.lower.y, ColumnChunks)):
        plain = trees.changed(problem, compress=False) if isinstance(problem, Problem) else problem
        return prepare(plain, theta, over=over, **place), 0
    stated = replace(problem, compress=True)
    prepared = prepare(stated, theta, over=over, **place)
    with prepared.together():
        if solved is not None and solved.original is problem:
            check_same_columns(solved.columns, prepared.columns)
    group = problem.group
    return prepared, prepared.columns if group is None else int(group.numbers([prepared.columns]).sum())


def _in_memory(prepared: Prepared) -> tuple[Any, ...]:
    """Design, target, roots of its weights, w, tangents, gradient, and the number of data."""
    M, y, w, X, slopes = map(_host, prepared.call(_tangents, prepared.theta, once=True))
    weights = prepared.problem.lower.weights
    root = np.ones(y.shape) if not trees.is_array(weights) else np.broadcast_to(_host(weights) ** 0.5, y.shape)
    return M, y, root, w, X, slopes, int(np.sum(root > 0))


def _in_rows(prepared: Prepared) -> tuple[Any, ...]:
    """As `_in_memory`, of condensed rows."""
    (n, k), p = prepared.structure.w_shape, sum(math.prod(x.shape) for x in prepared.theta)
    if n + (p + 1) * k > LARGEST:
        raise ProblemError(
            f"statistics of rows in chunks need n + (p + 1) k <= {LARGEST}, columns of a triangle, for n weights, p "
            f"entries of theta and k right-hand sides; got n = {n}, p = {p} and k = {k}. Pass fewer columns of y"
        )
    *found, rows, unused = prepared.call(_condensed, prepared.theta)
    w, R, slopes = map(_host, found)
    M, X, root, y = np.split(R, [n, n + p * k, n + p * k + 1], axis=1)
    return M, y, root, w, X.reshape(len(R), p, k).transpose(1, 0, 2), slopes, (rows - round(float(unused))) * k


def _condensed(f: Streamed, theta: Leaves, power: float = 0.0) -> tuple[Any, ...]:
    w = f.point(theta).w
    return w, *condensed(f, theta, w, power=power)


def _tangents(f: Reduced, theta: Leaves) -> tuple[Array, ...]:
    """Design, target, w, tangents of the residual with w held, one along each entry of theta, and the gradient."""
    outputs, push = f.tangents(theta)
    low, _, solver, system = f.solved(outputs)
    w, r = f.solution(solver, low, solver.factor(f.backend, system))
    flat = trees.raveled(theta)
    xp, p = namespace_of(flat), flat.shape[0]
    eye = xp.eye(p, dtype=flat.dtype, device=device(flat))

    def along(e: Array) -> tuple[Array]:
        return (residual_tangent(low, push(trees.unraveled(e, theta)).lower, w),)

    if f.backend.compiled:  # some at once: a program of one after the other takes minutes to compile for some hundreds
        X = xp.concat([f.backend.vmap(along, (eye[j : j + TOGETHER, :],))[0] for j in range(0, p, TOGETHER)])
    else:
        X = xp.stack([along(eye[j, :])[0] for j in range(p)])
    slopes = xp.conj(xp.reshape(X, (p, -1))) @ xp.reshape(r, (-1,))
    return low.M.dense(), low.y, w, X, xp.real(slopes) if is_complex(slopes) else slopes


def _projection(prepared: Prepared, gradient: np.ndarray, step: float) -> tuple[np.ndarray, bool, float]:
    """The derivative of the projection onto the sets of theta, (p, p), whether it depends on the side, and the step."""
    backend, region, theta = prepared.backend, prepared.region, prepared.theta
    with backend.scope(prepared.dtype):
        g = trees.unraveled(prepared.to_backend(gradient), theta)
        q = trees.axpy(-step, g, theta)
        size = float(np.max(np.abs(_host(trees.raveled(theta))), initial=0.0)) or 1.0
        moved = np.abs(_host(trees.raveled(nearest(region, theta, q)) - trees.raveled(theta)))
        if not np.max(moved, initial=0.0) <= NEARBY * size:
            # the data say so little of theta that what is left of the gradient leads elsewhere, not to a constraint
            step = NEARBY * size / float(np.max(np.abs(gradient)))
            q = trees.axpy(-step, g, theta)
        J = jacobian(backend, region, theta, q)
        found = _host(matrix(region, theta, J))
        return 0.5 * (found + found.T), bool(degenerate(region, theta, q, J)), step


def _held(at: Linearised) -> np.ndarray:
    """J, with a direct look at the entries of boxes: a step is one for all of them, and they may have units apart.

    An entry is held that is at a bound, to what projectors may be off by, unless the gradient leads away from there.
    """
    sets: dict[int, Any] = dict(at.prepared.region.constrained)
    J, flat, stop = at.J.copy(), at.flat, 0
    for i, leaf in enumerate(at.prepared.theta):
        x, C = _host(leaf).ravel(), sets.get(i)
        here = np.arange(stop, stop := stop + x.size)
        if isinstance(C, Box):
            lower, upper = (np.ravel(np.broadcast_to(_host(b), leaf.shape)) for b in (C.lower, C.upper))
            eps = float(np.finfo(at.prepared.dtype).eps)
            J[here, here] = ~held_by(x, lower, upper, at.gradient[here], flat[here], eps)
    return J


def held_by(
    x: np.ndarray, lower: np.ndarray, upper: np.ndarray, gradient: np.ndarray, flat: np.ndarray, eps: float
) -> np.ndarray:
    """Which entries are held by bounds of a box; the last axis has the entries of a leaf."""
    size = np.max(np.abs(x), axis=-1, keepdims=True, initial=0.0)
    held = np.zeros(x.shape, dtype=bool)
    for bound, down in ((lower, gradient), (upper, -gradient)):
        at_bound = (np.abs(x - bound) <= STOPPED * np.abs(x)) & (down >= -flat)
        rounded = np.abs(x - bound) <= eps * size
        held |= at_bound | ((bound == 0) & rounded & (down > flat))
    return held


def _ridge(problem: Problem, w: np.ndarray) -> np.ndarray:
    ridge = trees.map_arrays(_host, problem.lower.ridge)
    found: Any = ridge.dense(w.T) if ridge.present else np.zeros((0, len(w)), w.dtype)
    return found if found.ndim == 3 else found[None]


def _directions(W: WeightSet | None, w: np.ndarray, dtype: str) -> list[np.ndarray]:
    """Of w in the precision of the solve, in which it is at a bound where it is equal to it."""
    if W is None:
        return [np.eye(w.shape[0])]
    return W.directions(w.astype(np.result_type(dtype, 1j) if np.iscomplexobj(w) else dtype))


def _parts(x: np.ndarray, both: bool = False) -> np.ndarray:
    """Real parts above imaginary ones; with `both`, of a matrix that acts on real parts above imaginary ones."""
    column = np.concatenate([x.real, x.imag], axis=-2)
    return np.concatenate([column, np.concatenate([-x.imag, x.real], axis=-2)], axis=-1) if both else column


def _host(x: Any) -> np.ndarray:
    """An array of any framework as NumPy's, in double precision."""
    x = backends.to_numpy(x)
    return x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)
