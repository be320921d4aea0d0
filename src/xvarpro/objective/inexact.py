"""The reduced objective over a lower level solved by iteration: tolerances follow the gap, errors are estimated."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

from xvarpro.core.struct import Array, Leaves
from xvarpro.core.trees import dot, sub
from xvarpro.lower.krylov import LSMR
from xvarpro.objective._error_estimate import corrected
from xvarpro.objective.interface import LowerError
from xvarpro.objective.least_squares import EvaluatedLevel
from xvarpro.objective.reduced import Point, Reduced
from xvarpro.sets.region import Direction, Region


class Assessed(NamedTuple):
    """A point, the gradient there, and what is known of its error."""

    point: Point
    gradient: Leaves
    change: Leaves  # of the gradient, when the lower level was solved thirty times better
    residual: Array  # relative, after that
    reached: Array  # whether it is below the tolerance


class Inexact(Reduced):
    """As `Reduced`, for a lower level whose solver is `lower.LSMR`.

    `level` is the relative residual that the next step asks for: 0 for the tightest, inf for the loosest.
    """

    exact = False

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.level: Array | float = 0.0

    def solver(self, side: EvaluatedLevel) -> LSMR:
        solver = super().solver(side)
        assert isinstance(solver, LSMR)
        return solver.with_tolerance(self.level, self.problem.is_separable)

    def with_lower_tolerance(self, tol: Array | float) -> Inexact:
        other = copy.copy(self)
        other.level = tol
        return other

    def restricted(self, indices: Array) -> Reduced:
        part: Any = super().restricted(indices)
        part.level = self.level
        return part

    def certified(self, region: Region, theta: Leaves, point: Point | None = None) -> tuple[Point, Leaves, Direction]:
        """Point, gradient, and the direction of Algorithm 2 there, whose slack counts what the lower level leaves open.

        `point` is the one at theta, where it is known; what comes back is better.
        """
        seen = self.assessed(theta, point)
        direction = region.blmo(theta, seen.gradient)
        hidden = region.hidden(theta, seen.change)
        error = LowerError(seen.residual, dot(seen.change, seen.change) ** 0.5, hidden, seen.reached)
        return seen.point, seen.gradient, direction._replace(slack=direction.slack + hidden, lower=error)

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
        better, left = corrected(self.backend, solver, low, upper, point.factor, first)
        gradient = pullback(self.cotangents(parts, better))
        value = self.objective(parts, upper, better.w, better.upper_r)
        # without the error that is of first order
        value = value if left.excess is None else value - left.excess
        point = point._replace(value=value, w=better.w, r=better.upper_r)
        return Assessed(point, gradient, sub(gradient, rough), left.residual, left.residual <= solver.tol)
