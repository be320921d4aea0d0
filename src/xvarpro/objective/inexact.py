"""The reduced objective over a lower level solved by iteration: tolerances follow the gap, errors are estimated."""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING, Any, NamedTuple

from xvarpro.core.namespace import array_namespace
from xvarpro.core.struct import Array, Leaves
from xvarpro.core.trees import dot, sub
from xvarpro.lower.interface import LowerSolver
from xvarpro.lower.krylov import Iterative
from xvarpro.objective._error_estimate import Sharper, Witness
from xvarpro.objective.interface import LowerError
from xvarpro.objective.least_squares import EvaluatedLevel
from xvarpro.objective.reduced import Parts, Point, Reduced
from xvarpro.sets.region import Direction, Region

if TYPE_CHECKING:
    from xvarpro.algorithms.interface import Iterate


class Assessed(NamedTuple):
    """A point, the gradient there, and what is known of its error."""

    point: Point
    gradient: Leaves
    change: Leaves  # of the gradient, when the lower level was solved thirty times better
    residual: Array  # relative, after that
    reached: Array  # whether it is below the tolerance


class Inexact(Reduced):
    """As `Reduced`, for a lower level whose solver is `lower.krylov.Iterative`.

    `level` is the relative residual that the next step asks for: 0 for the tightest, inf for the loosest.
    """

    exact = False

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.level: Any = 0.0
        self._instead: LowerSolver | None = None  # of the problem's solver

    def solver(self, side: EvaluatedLevel) -> LowerSolver:
        if self._instead is not None:
            return self._instead
        return super().solver(side).toward(self.level, self.problem.is_separable)

    def loosest(self) -> Inexact:
        return self._with(level=math.inf)

    def sharp(self) -> Inexact:
        return self._with(level=0.0)

    def tied(self, iterate: Iterate, small: Array) -> Inexact:
        xp = array_namespace(iterate.value)
        error = iterate.lower
        wanted = xp.maximum(xp.where(iterate.gap_A > 0, iterate.gap_A, 0 * small) + iterate.gap_B, small)
        level = xp.where(error.slack > 0, error.residual, wanted) * wanted
        return self._with(level=level / xp.where(error.slack > 0, error.slack, wanted))

    def restricted(self, indices: Array) -> Reduced:
        part: Any = super().restricted(indices)
        part.level = self.level
        return part

    def _with(self, level: Any = None, instead: LowerSolver | None = None) -> Inexact:
        other = copy.copy(self)
        other._latest = other._ahead = None
        other.level, other._instead = self.level if level is None else level, instead
        return other

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
        parts, pullback = self.linearise(theta)
        point = self._point(theta, parts) if point is None else point
        solver: Any = self.solver(self.levels(parts)[0])
        assert isinstance(solver, Iterative)
        witness = Witness(solver)
        first = pullback(self._with(instead=witness)._cotangents(point, parts))
        sharper = Sharper(solver, *((witness.seen[0].v, witness.seen[0].q) if witness.seen else ()))
        parts, pullback = self.linearise(theta)
        gradient = pullback(self._with(instead=sharper)._cotangents(point, parts))
        residual, point = sharper.residual(), self._revalued(point, parts, sharper)
        return Assessed(point, gradient, sub(gradient, first), residual, residual <= solver.tol)

    def _revalued(self, point: Point, parts: Parts, sharper: Sharper) -> Point:
        """The point with the better w, and its value without the error that is of first order."""
        w, excess = sharper.seen[0].x, sharper.excess()
        upper = self.levels(parts)[1]
        r = upper.residual(w)
        value = self.objective(parts, upper, w, r)
        return point._replace(value=value if excess is None else value - excess, w=w, r=r)
