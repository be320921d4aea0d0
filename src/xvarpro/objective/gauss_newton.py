"""Gauss-Newton models of the reduced objective, from one tangent of the user's functions for each entry of theta."""

from __future__ import annotations

from typing import Any, NamedTuple

from xvarpro.backends import Backend
from xvarpro.core.namespace import as_complex, device, namespace_of
from xvarpro.core.struct import Array, Leaves
from xvarpro.core.trees import changed, gram, inner, is_complex, raveled, unraveled
from xvarpro.lower.interface import Accumulation
from xvarpro.objective.in_memory import ModelOutputs, ModelStructure, Solved
from xvarpro.objective.least_squares import EvaluatedLevel, LevelOutputs, as_matrix
from xvarpro.objective.passes import Block, Pass
from xvarpro.objective.reduced import Reduced
from xvarpro.objective.streamed import Streamed
from xvarpro.operators import BlockDiagonal, Dense, Stacked, Weighted
from xvarpro.operators.interface import Operator
from xvarpro.problem.problem import Problem

UNROLLED = 16  # entries of theta up to which a program has the tangent of each; of more, one in a loop
RIGHT_HAND_SIDES = 8  # of rows in chunks


class Local(NamedTuple):
    """The objectives of a batch of problems at one point each, and their Gauss-Newton matrices."""

    value: Array  # (b,)
    grad: Array  # (b, p)
    curvature: Any  # (b, p, p), or an `Arrow`
    deficient: Array  # (b,), whether the lower level has no unique solution
    w: Any = ()  # of a single problem, see `reduced.Point.start`; of an arrow, what its value is the sum of


def has_jacobian(problem: Problem, structure: ModelStructure) -> bool:
    """Whether `gauss_newton` is for this problem: as `has_tangents`.

    Rows in chunks are those of a separable problem of least squares with few right-hand sides, of each of which a
    triangle has columns.
    """
    few = problem.is_separable and problem.lower.loss is None and structure.w_shape[1] <= RIGHT_HAND_SIDES
    if problem.in_rows and not few:
        return False
    return has_tangents(problem, structure)


def has_tangents(problem: Problem, structure: ModelStructure) -> bool:
    """Whether residuals move with theta as `residual_tangent` says.

    That is where designs are arrays or blocks of arrays, the lower level is solved directly, the ridge of the level
    that the objective measures is constant, and so is the target of a loss; not of a marginal likelihood.
    """
    losses: list[Any] = [level for level in problem.levels if level.loss is not None]
    if problem.noise is not None or not structure.exact or any(callable(level.y) for level in losses):
        return False
    outputs = structure.skeleton.fill(structure.arrays)  # each array as its shape and dtype
    levels = [level for level in (outputs.lower, outputs.upper) if level is not None]
    return all(_of_arrays(_unweighted(level.M)) for level in levels) and levels[-1][2:] == (None, None)


def _unweighted(M: Operator) -> Operator:
    return M.M if isinstance(M, Weighted) else M


def _of_arrays(M: Operator) -> bool:
    """Whether the tangent of M is M of the tangents of its arrays."""
    return all(map(_of_arrays, M.blocks)) if isinstance(M, BlockDiagonal | Stacked) else isinstance(M, Dense)


def gauss_newton(f: Reduced | Streamed, theta: Leaves) -> tuple[Any, Array, Array]:
    """The point at theta, the gradient (p,), and the Gauss-Newton matrix ``J J^T``, (p, p).

    J has the tangents of the upper residual, with the rows of its ridge.

    The tangent of w along an entry of theta is ``dw = -H^-1 (M^H (dM w - dy) + dM^H r)``. The second term is orthogonal
    to the residual of a separable problem and left out there (Kaufman 1975): the gradient stays ``Re J r``, and the
    Gauss-Newton matrix changes by terms of the order that it leaves out anyway. Where w lies in a set, H is that of the
    entries that are free on the face that w has ended on; the others stay where they are.
    """
    if isinstance(f, Streamed):
        return _of_rows(f, theta)
    found: tuple[Any, Array, Array] | None = f.model_of_chunks(theta)
    if found is not None:
        return found
    outputs, push = f.tangents(theta)
    solved = low, upper, solver, system = f.solved(outputs)
    point, separable = f.point_of(theta, outputs, solved), f.problem.is_separable
    w, factor = point.w, point.factor
    if f.problem.lower.loss is not None or f.upper.loss is not None:
        low, upper, solver, system, factor, push = _squares(f, solved, point, push)
        r = low.residual(w)
    else:
        r = point.r if separable else low.residual(w)
        w, r = solver.refine(f.backend, system, factor, low.y, w, r)

    # what the tangents leave of the slope of a loss: with w held they would find what is 0 but for the rounding of w
    off = _row(f.backend, low, r, w) if separable and f.problem.lower.loss is not None else None

    def inverse(C: Array) -> Any:
        return solver.adjoint(f.backend, system, factor, C, low.y, w, r).v

    of_rows = not (f.problem.lower.loss is None or f.problem.lower.loss.by_entry)
    turned = (lambda X: inverse(low.M.rmatvec(X))) if of_rows else solver.tangent(f.backend, system, factor, low.y, w)
    flat = raveled(theta)
    xp, p = f.backend.xp, flat.shape[0]

    # one solve for the tangents of all entries, where right-hand sides share design and face; a compiled program
    # gains nothing by it, and sharded columns side by side would have to be gathered
    alone = f.backend.compiled or low.M.columns is not None or low.ridge.columns is not None
    together = separable and not alone and (low.W is None or low.W.linear)

    def along(v: Array) -> tuple[Array, Array]:
        """Slope of a separable objective along v, 0-d, and the tangent of the residual: `together` with w held."""
        moved: Any = push(unraveled(v, theta))
        X = residual_tangent(low, moved.lower, w)
        if separable:
            slope = 0 * v[0] if off is not None else inner(X, r)
            slope = slope if moved.R is None else slope + f.half_mu * moved.R
            return slope, X if together else answered(X)
        dw = -turned(X)
        C = design_tangent(low.M, moved.lower.M).rmatvec(r)
        if moved.lower.lam is not None:
            C = C + low.ridge._replace(lam=moved.lower.lam).slope(w)
        if moved.lower.Omega is not None:
            C = C + low.ridge.slope_tangent(moved.lower.Omega, w)
        adjoint = inverse(C)
        dw = dw if adjoint is None else dw - adjoint
        return 0 * v[0], _row(f.backend, upper, residual_tangent(upper, moved.upper, w) + upper.M.matvec(dw), dw)

    def answered(X: Array) -> Array:
        """Minus the tangents of the residual, columns side by side, from those with w held."""
        minus_dw = turned(X)
        return _row(f.backend, low, low.M.residual(minus_dw, X), minus_dw)

    if f.backend.compiled and (of_rows or p > UNROLLED):
        places = xp.arange(p, device=device(flat))

        def fill(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            j, slopes, J = state
            here = places == j
            slope, tangent = along(xp.astype(here, flat.dtype))
            return j + 1, xp.where(here, slope, slopes), xp.where(here[:, None, None], tangent, J)

        (m, k), n = upper.y.shape, w.shape[0]
        rows = (m + upper.ridge.present * upper.ridge.height(n)) * (1 + is_complex(upper.y))
        J = xp.zeros((p, rows, k), dtype=flat.dtype, device=device(flat))
        blank = 0 * places[0], xp.zeros_like(flat), J
        _, slopes, J = f.backend.while_loop(lambda state: state[0] < p, fill, blank)
    else:
        eye = xp.eye(p, dtype=flat.dtype, device=device(flat))
        slopes, J = map(xp.stack, zip(*[along(eye[j, :]) for j in range(p)], strict=True))
    if together:
        m, k = low.y.shape
        J = answered(xp.reshape(xp.permute_dims(J, (1, 0, 2)), (m, p * k)))
        J = xp.permute_dims(xp.reshape(J, (-1, p, k)), (1, 0, 2))
    if off is not None:
        slopes = slopes - xp.sum(off * J, axis=(1, 2))
    return point, f.summed(slopes) if separable else raveled(f.gradient(point)), f.summed(gram(xp, J))


def _squares(f: Reduced, solved: Solved, point: Any, push: Any) -> tuple[Any, ...]:
    """Levels of least squares in the places of losses, with solver, factor and tangents: generalised Gauss-Newton.

    Weights are the second derivatives of the losses, so that slopes are theirs; the curvature of the model is left out.
    """
    low, upper, solver, system = solved
    w, factor = point.w, point.factor
    levels: Any = [level.linear(w, level.residual(w)) for level in ((low,) if upper is low else (low, upper))]
    if low.loss is not None and low.loss.by_entry:
        newton: Any = solver
        solver, system = newton.inner, levels[0].system
        factor = solver.factor(f.backend, system)

    def tangents(u: Leaves) -> ModelOutputs:
        moved = push(u)
        lower, *above = (
            out if level.loss is None else out._replace(M=changed(near.M, M=design_tangent(level.M, out.M)))
            for level, near, out in zip((low, upper), levels, (moved.lower, moved.upper), strict=False)
        )
        return moved._replace(lower=lower, upper=above[0] if above else None)

    return levels[0], levels[-1], solver, system, factor, tangents


def _of_rows(f: Streamed, theta: Leaves) -> tuple[Any, Array, Array]:
    """As `gauss_newton`, from a pass for w, and one that condenses the rows to a triangle.

    ``X^T P X``, with P the projection off the range of M, is ``T^T T`` for the rows T of the triangle below those of M.
    """
    point = f.point(theta)
    R, slopes, *_ = condensed(f, theta, point.w, f.ridge(theta)[0])
    xp, (n, k), p = namespace_of(R), point.w.shape, slopes.shape[0]
    size = n + p * k
    T = xp.permute_dims(xp.reshape(R[n:size, n:size], (p * k, p, k)), (1, 0, 2))
    T = xp.concat([xp.real(T), xp.imag(T)], axis=1) if is_complex(T) else T
    return point, slopes + raveled(f.penalty_gradient(theta)), gram(xp, T)


def condensed(f: Streamed, theta: Leaves, w: Array, ridge: Any = None, power: float = 0.0) -> tuple[Any, ...]:
    """All rows in one pass: the triangle of ``[ridge; M, X, s, y]``, the slopes ``Re <X, M w - y>``, numbers of rows.

    X has k columns for each entry of theta, the tangents of the residual with w held, and s those of roots of weights:
    ones without any. All inner products of columns are in the triangle. Of the rows, the last number have a weight of
    0. Of one right-hand side, rows of the triangle are multiplied by this power of their residuals.
    """
    flat = raveled(theta)
    xp, (n, k), p = namespace_of(flat), w.shape, flat.shape[0]
    size = n + p * k + 1 + k
    corner = xp.zeros((size, size), dtype=w.dtype, device=device(w))
    if ridge is not None:
        corner = xp.concat([xp.concat([ridge, corner[:n, n:]], axis=1), corner[n:, :]])
    zero = 0 * flat[0]
    (R, slopes, unused), rows = f.walk(0, TANGENTS, (corner, 0 * flat, zero), theta, w, zero + power)
    return R, slopes, rows, unused


def _fold_tangents(block: Block, state: Leaves, theta: Leaves, w: Array, power: Array) -> Leaves:
    level, push = block.tangents(theta)
    flat, y = raveled(theta), level.y
    xp, r = namespace_of(flat), level.residual(w)
    root = xp.sqrt(level.weights + 0 * xp.abs(y[:, :1]))
    eye = xp.eye(flat.shape[0], dtype=flat.dtype, device=device(flat))
    X = [residual_tangent(level, push(unraveled(eye[j, :], theta)), w) for j in range(flat.shape[0])]
    rows = xp.concat([as_complex(x, state[0]) for x in (level.M.dense(), *X, root, y)], axis=1)
    slopes, unused = xp.stack([inner(x, r) for x in X]), xp.sum(xp.astype(root == 0, flat.dtype))
    # rows alone first, as in `Triangle.fold`
    R = block.backend.qr(xp.abs(r[:, :1]) ** power * rows, mode="r")[1]
    return _merged_tangents(block.backend, block.accumulation, state, (R, slopes, unused))


def _merged_tangents(backend: Backend, accumulation: Accumulation, a: Leaves, b: Leaves) -> Leaves:
    R = backend.qr(namespace_of(a[0]).concat([a[0], b[0]]), mode="r")[1]
    return R, a[1] + b[1], a[2] + b[2]


TANGENTS = Pass(_fold_tangents, _merged_tangents)


def design_tangent(M: Operator, dM: Operator) -> Operator:
    """The tangent of a design: constant weights scale its rows."""
    return Weighted(dM.M, M.s) if isinstance(M, Weighted) and isinstance(dM, Weighted) else dM


def residual_tangent(level: EvaluatedLevel, moved: LevelOutputs, w: Array) -> Array:
    """``dM w - dy``, the tangent of ``M w - y`` with w held, (m, k)."""
    X = design_tangent(level.M, moved.M).matvec(w)
    return X if moved.y is None else X - as_matrix(moved.y)


def _row(backend: Backend, level: EvaluatedLevel, dr: Array, dw: Array) -> Array:
    """The tangent of a level's residual above that of the rows of its ridge, in real numbers."""
    if level.ridge.present:
        dr = backend.placement.concat_rows(dr, level.ridge.rows(dw))
    return backend.placement.concat_rows(backend.xp.real(dr), backend.xp.imag(dr)) if is_complex(dr) else dr


# -- matrices of models: arrays (b, p, p) for problems of a batch, or an arrow


class Arrow(NamedTuple):
    """The matrix of a model of n problems that share q unknowns, which alone couple them.

    ``[[H_1, 0, C_1^T], [0, H_2, C_2^T], [C_1, C_2, H]]`` is that of a batch of one, with vectors (1, n p + q).
    """

    own: Array  # (1, n, p, p)
    cross: Array  # (1, n, q, p)
    shared: Array  # (1, q, q)

    def parts(self, x: Array) -> tuple[Array, Array]:
        """A vector as those of the problems, (n, p), and of what they share, (q,)."""
        n, p = self.own.shape[1:3]
        return namespace_of(x).reshape(x[0, : n * p], (n, p)), x[0, n * p :]

    def times(self, x: Array) -> Array:
        xp, (own, shared) = namespace_of(x), self.parts(x)
        cross = self.cross[0, ...]
        by_own = (self.own[0, ...] @ own[:, :, None])[:, :, 0] + (cross.mT @ shared[:, None])[:, :, 0]
        return joined(by_own, self.shared[0, ...] @ shared + xp.sum((cross @ own[:, :, None])[:, :, 0], axis=0))

    def solve(self, c: Array) -> Array:
        """By elimination of the problems: the Schur complement of theirs is that of what they share."""
        xp, (own, shared), cross = namespace_of(c), self.parts(c), self.cross[0, ...]
        q = shared.shape[0]
        X = solve_scaled(xp, self.own[0, ...], xp.concat([cross.mT, own[:, :, None]], axis=2))
        down = xp.sum(cross @ X, axis=0)
        x = solve_scaled(xp, self.shared - down[None, :, :q], (shared - down[:, q])[None, :])[0, :]
        return joined(X[:, :, q] - (X[:, :, :q] @ x[:, None])[:, :, 0], x)


def joined(own: Array, shared: Array) -> Array:
    """Numbers of problems (n, p) and of what they share, (q,), as a vector (1, n p + q)."""
    xp = namespace_of(own)
    return xp.concat([xp.reshape(own, (-1,)), shared])[None, :]


def diagonal(xp: Any, B: Array | Arrow) -> Array:
    """Vectors (b, p)."""
    if isinstance(B, Arrow):
        return joined(*(xp.linalg.diagonal(x[0, ...]) for x in (B.own, B.shared)))
    return xp.linalg.diagonal(B)


def plus(xp: Any, B: Any, added: Array) -> Any:
    """``B`` with a diagonal (b, p) added."""
    if isinstance(B, Arrow):
        own, shared = B.parts(added)
        return B._replace(own=plus(xp, B.own, own), shared=plus(xp, B.shared, shared))
    return B + added[..., None] * xp.eye(added.shape[-1], dtype=added.dtype, device=device(added))


def times(B: Array | Arrow, x: Array) -> Array:
    """``B x`` for vectors (b, p)."""
    return B.times(x) if isinstance(B, Arrow) else (B @ x[:, :, None])[..., 0]


def solve_scaled(xp: Any, K: Array | Arrow, c: Array) -> Array:
    """``K^-1 c`` for positive definite `K`, shapes (b, p, p), (b, p) or (b, p, k); it needs no pivoting.

    Rows and columns are scaled to a diagonal of ones: units of the unknowns do not count.
    """
    if isinstance(K, Arrow):
        return K.solve(c)
    p, C = K.shape[-1], c if c.ndim == 3 else c[:, :, None]
    root = xp.sqrt(xp.linalg.diagonal(K))
    root = xp.where(root > 0, root, 1)[:, :, None]
    A = xp.concat([K / root / root.mT, C / root], axis=2)
    place = xp.arange(p, device=device(K))[:, None]
    for j in range(p):
        row = A[:, j : j + 1, :] / A[:, j : j + 1, j : j + 1]
        A = xp.where(place == j, row, A - A[:, :, j : j + 1] * row)
    return xp.reshape(A[:, :, p:] / root, c.shape)
