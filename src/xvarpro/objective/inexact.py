"""The reduced objective over a lower level solved by iteration: tolerances follow the gap, errors are estimated."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

from xvarpro import lower
from xvarpro.backends import Backend
from xvarpro.core.namespace import namespace_of, positive_or_one
from xvarpro.core.struct import Array, Leaves
from xvarpro.core.trees import dot, inner, sub
from xvarpro.lower.interface import Adjoint
from xvarpro.objective.interface import LowerError
from xvarpro.objective.least_squares import EvaluatedLevel, LowerSolution
from xvarpro.objective.mini_batch import LowerRows
from xvarpro.objective.reduced import Point, Reduced
from xvarpro.sets.region import Direction, Region

CORRECTION = 0.03  # relative residual to which a correction is solved


class Remainder(NamedTuple):
    """What a correction has left; 0-d arrays."""

    residual: Array  # the largest relative residual of the systems corrected, each over all its columns
    # by how much the upper objective lies above that of the exact w, to second order: <v, H (w - w*)>; None for a
    # separable problem, where the first order vanishes and the value is an upper bound
    excess: Array | None


class Assessed(NamedTuple):
    """A point, the gradient there, and what is known of its error."""

    point: Point
    gradient: Leaves
    change: Leaves  # of the gradient, when the lower level was solved thirty times better
    residual: Array  # relative, after that
    reached: Array  # whether it is below the tolerance


class Inexact(Reduced):
    """As `Reduced`, for a lower level whose solver is `lower.LSMR`.

    `lower_tol` is the relative residual that the next step asks for: 0 for the tightest, inf for the loosest.
    """

    exact = False
    lower_tol: Array | float = 0.0

    def solver(self, low: EvaluatedLevel) -> lower.LSMR:
        solver = super().solver(low)
        assert isinstance(solver, lower.LSMR)
        return solver.with_tolerance(self.lower_tol, self.problem.is_separable)

    def with_lower_tolerance(self, tol: Array | float) -> Inexact:
        other = copy.copy(self)
        other.lower_tol = tol
        return other

    def restricted(self, indices: Array, lower: LowerRows | None = None) -> Reduced:
        part: Any = super().restricted(indices, lower)
        part.lower_tol = self.lower_tol
        return part

    def certified(self, region: Region, theta: Leaves, point: Point | None = None) -> tuple[Point, Leaves, Direction]:
        """Point, gradient, and the direction of Algorithm 2 there, whose slack counts what the lower level leaves open.

        `point` is the one at theta, where it is known; what comes back is better.
        """
        found = self.assessed(theta, point)
        direction = region.blmo(theta, found.gradient)
        hidden = region.hidden(theta, found.change)
        error = LowerError(found.residual, dot(found.change, found.change) ** 0.5, hidden, found.reached)
        return found.point, found.gradient, direction._replace(slack=direction.slack + hidden, lower=error)

    def assessed(self, theta: Leaves, point: Point | None = None) -> Assessed:
        """Gradient at theta, and at the point there what the lower level leaves of its error.

        The answers of the lower level are improved thirtyfold, and the gradients of both are compared: the change is
        about the error of the first, and the second is returned.
        """
        parts, pullback = self.linearise(theta) if point is None else self.linearised(point)
        point = self.point_of(theta, parts) if point is None else point
        first = self.lower_solution(point, parts)
        rough = pullback(self.cotangents(parts, first))
        parts, pullback = self.linearise(theta)
        low, upper = self.levels(parts)
        solver = self.solver(low)
        better, left = _corrected(self.backend, solver, low, upper, point.factor, first)
        gradient = pullback(self.cotangents(parts, better))
        value = self.objective(parts, upper, better.w, better.upper_r)
        # without the error that is of first order
        value = value if left.excess is None else value - left.excess
        point = point._replace(value=value, w=better.w, r=better.upper_r)
        return Assessed(point, gradient, sub(gradient, rough), left.residual, left.residual <= solver.tol)


def _corrected(
    backend: Backend, solver: lower.LSMR, low: EvaluatedLevel, upper: EvaluatedLevel, factor: Any, first: LowerSolution
) -> tuple[LowerSolution, Remainder]:
    """A solution of the lower level, and its adjoint, with errors thirty times smaller.

    `w` and v are linear in their right-hand sides: the error of either solves the same system with the residual there,
    so that to correct it takes no memory of how it was found.
    """
    system, y = low.system, low.y
    normal, again = solver.normal(system, factor), solver.to(CORRECTION, CORRECTION)

    def solved(c: Array, w: Array, r: Array) -> Adjoint:
        return again.adjoint(backend, system, factor, c, y, w, r)

    def relative(left: Array, whole: Array) -> Array:
        left, whole = (inner(size, size) ** 0.5 for size in map(normal.size, (left, whole)))
        return left / positive_or_one(whole)

    w, r = first.w, first.r
    change = solved(-low.slope(w, r), w, r)
    assert change.v is not None
    w, r = w + change.v, r + change.q
    left = low.slope(w, r)
    residual = relative(left, system.M.rmatvec(y))
    if first.adjoint is None:
        return LowerSolution(w, r, r, None), Remainder(residual, None)
    v, q = first.adjoint.v, first.adjoint.q
    assert v is not None
    upper_r = upper.residual(w)
    c = upper.slope(w, upper_r)
    change = solved(c - low.slope(v, q), w, r)
    assert change.v is not None
    v, q = v + change.v, q + change.q
    worst = namespace_of(residual).maximum(residual, relative(c - low.slope(v, q), c))
    return LowerSolution(w, r, upper_r, Adjoint(q, ((r, v),), v)), Remainder(worst, inner(v, left))
