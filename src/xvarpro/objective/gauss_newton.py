"""Gauss-Newton models of the reduced objective, from one tangent of the user's functions for each entry of theta."""

from __future__ import annotations

from typing import Any, NamedTuple

from xvarpro.backends import Backend
from xvarpro.core.namespace import device, namespace_of
from xvarpro.core.struct import Array, Leaves
from xvarpro.core.trees import gram, inner, is_complex, raveled, unraveled
from xvarpro.objective.in_memory import ModelStructure
from xvarpro.objective.least_squares import EvaluatedLevel, LevelOutputs, as_matrix
from xvarpro.objective.reduced import Point, Reduced
from xvarpro.operators import BlockDiagonal, Dense, Stacked, Weighted
from xvarpro.operators.interface import Operator
from xvarpro.problem.problem import Problem

UNROLLED = 16  # entries of theta up to which a program has the tangent of each; of more, one in a loop


class Local(NamedTuple):
    """The objectives of a batch of problems at one point each, and their Gauss-Newton matrices."""

    value: Array  # (b,)
    grad: Array  # (b, p)
    curvature: Array  # (b, p, p)
    deficient: Array  # (b,), whether the lower level has no unique solution


def has_jacobian(problem: Problem, structure: ModelStructure) -> bool:
    """Whether `gauss_newton` is for this problem: as `has_tangents`, with w free or in a linear set."""
    W = problem.lower.W
    return (W is None or W.linear) and has_tangents(problem, structure)


def has_tangents(problem: Problem, structure: ModelStructure) -> bool:
    """Whether residuals move with theta as `residual_tangent` says.

    That is where designs are arrays or blocks of arrays, all rows are in memory, the lower level is solved directly,
    and the ridge of the level that the objective measures is constant.
    """
    if not structure.exact or problem.in_rows:
        return False
    outputs = structure.skeleton.fill(structure.arrays)  # each array as its shape and dtype
    levels = [level for level in (outputs.lower, outputs.upper) if level is not None]
    return all(_of_arrays(_unweighted(level.M)) for level in levels) and levels[-1].lam is None


def _unweighted(M: Operator) -> Operator:
    return M.M if isinstance(M, Weighted) else M


def _of_arrays(M: Operator) -> bool:
    """Whether the tangent of M is M of the tangents of its arrays."""
    return all(map(_of_arrays, M.blocks)) if isinstance(M, BlockDiagonal | Stacked) else isinstance(M, Dense)


def gauss_newton(f: Reduced, theta: Leaves) -> tuple[Point, Array, Array]:
    """The point at theta, the gradient (p,), and the Gauss-Newton matrix ``J J^T``, (p, p).

    J has the tangents of the upper residual, with the rows of its ridge.

    The tangent of w along an entry of theta is ``dw = -H^-1 (M^H (dM w - dy) + dM^H r)``. The second term is orthogonal
    to the residual of a separable problem and left out there (Kaufman 1975): the gradient stays ``Re J r``, and the
    Gauss-Newton matrix changes by terms of the order that it leaves out anyway.
    """
    outputs, push = f.tangents(theta)
    point = f.point_of(theta, outputs)
    low, upper = f.levels(outputs)
    solver, system = f.solver(low), low.system
    r = point.r if f.problem.is_separable else low.residual(point.w)
    w, r = solver.refine(f.backend, system, point.factor, low.y, point.w, r)
    flat = raveled(theta)
    xp, p = namespace_of(flat), flat.shape[0]
    separable = f.problem.is_separable

    def along(v: Array) -> tuple[Array, Array]:
        """Slope of a separable objective along v, 0-d, and the tangent of the residual."""
        moved: Any = push(unraveled(v, theta))
        X = residual_tangent(low, moved.lower, w)
        dw = -solver.argmin(f.backend, system, point.factor, X)
        if separable:
            slope = inner(X, r)
            slope = slope if moved.R is None else slope + f.half_mu * moved.R
            return slope, _row(f.backend, low, X + low.M.matvec(dw), dw)
        C = _over(low.M, moved.lower.M).rmatvec(r)
        if moved.lower.lam is not None:
            C = C + low._replace(lam=moved.lower.lam).ridge(w)
        adjoint = solver.adjoint(f.backend, system, point.factor, C, low.y, w, r).v
        dw = dw if adjoint is None else dw - adjoint
        return 0 * v[0], _row(f.backend, upper, residual_tangent(upper, moved.upper, w) + upper.M.matvec(dw), dw)

    if f.backend.compiled and p > UNROLLED:
        places = xp.arange(p, device=device(flat))

        def fill(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            j, slopes, J = state
            here = places == j
            slope, tangent = along(xp.astype(here, flat.dtype))
            return j + 1, xp.where(here, slope, slopes), xp.where(here[:, None, None], tangent, J)

        (m, k), ridged = upper.y.shape, upper.system.ridged
        rows = (m + ridged * w.shape[0]) * (1 + is_complex(upper.y))
        J = xp.zeros((p, rows, k), dtype=flat.dtype, device=device(flat))
        blank = 0 * places[0], xp.zeros_like(flat), J
        _, slopes, J = f.backend.while_loop(lambda state: state[0] < p, fill, blank)
    else:
        eye = xp.eye(p, dtype=flat.dtype, device=device(flat))
        slopes, J = map(xp.stack, zip(*(along(eye[j, :]) for j in range(p)), strict=True))
    return point, f.summed(slopes) if separable else raveled(f.gradient(point)), f.summed(gram(J))


def _over(M: Operator, dM: Operator) -> Operator:
    """The tangent of a design: constant weights scale its rows."""
    return Weighted(dM.M, M.s) if isinstance(M, Weighted) and isinstance(dM, Weighted) else dM


def residual_tangent(level: EvaluatedLevel, moved: LevelOutputs, w: Array) -> Array:
    """``dM w - dy``, the tangent of ``M w - y`` with w held, (m, k)."""
    X = _over(level.M, moved.M).matvec(w)
    return X if moved.y is None else X - as_matrix(moved.y)


def _row(backend: Backend, level: EvaluatedLevel, dr: Array, dw: Array) -> Array:
    """The tangent of a level's residual above that of the rows of its ridge, in real numbers."""
    if level.system.ridged:
        dr = backend.placement.concat_rows(dr, level.system.root * level.times_omega(dw))
    xp = namespace_of(dr)
    return backend.placement.concat_rows(xp.real(dr), xp.imag(dr)) if is_complex(dr) else dr
