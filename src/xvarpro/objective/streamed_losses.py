"""Rows in chunks with a loss that is no square: every Newton step, and every trial of one, is a pass over the rows."""

from __future__ import annotations

from typing import Any

from xvarpro.core.namespace import namespace_of
from xvarpro.core.struct import Array, Leaves
from xvarpro.core.trees import inner
from xvarpro.lower.interface import Condensed
from xvarpro.lower.newton import descended
from xvarpro.lower.stack import as_one, identity, joined
from xvarpro.objective.interface import LowerReport
from xvarpro.objective.losses import apart
from xvarpro.objective.passes import CURVED, FIRST_STEP, STEP, Pass, StepSums, UpperSums
from xvarpro.objective.streamed import Streamed, StreamedPoint


class StreamedLosses(Streamed):
    """As `Streamed`, with a loss below: all columns of w are one, since a loss may couple them."""

    def _solved(self, theta: Leaves) -> tuple[Array, Array, Array, Array, int]:
        ridge = self.problem.lower.ridge

        def at(w: Array) -> tuple[Array, tuple[StepSums, int]]:
            """The objective at w, the sums of a pass there, and its rows."""
            sums, rows = self._walk(STEP, theta, w)
            value = sums[1].value
            return value + ridge.value(w) if ridge.present else value, (sums, rows)

        def first() -> Array:
            """A w fitted to predictions that the loss makes of the target; of classes 0."""
            w = self.ridge(theta)[1]
            if not self.problem.lower.loss.by_entry:
                return w
            return self._whole(self._condensed(self._walk(FIRST_STEP, theta, w)[0]).argmin(self.backend), w)

        w, value, (found,) = descended(self.backend, at, self._step, self.start, [first], None)
        sums, rows = found or at(w)[1]  # no step was made where theta is NaN
        return w, self._condensed(sums).R, value + 0 * inner(w, w), sums[1].energy, rows * w.shape[1]

    def _walk(self, one: Pass, theta: Leaves, w: Array) -> tuple[StepSums, int]:
        """A pass from the rows of the ridge."""
        a = w @ apart(self.problem.lower.loss, w)
        zero = 0 * inner(w, w)
        state = self._accumulation.start(joined(self.ridge(theta)[0], identity(a)), 0 * as_one(a, a.shape[1]))
        return self.walk(0, one, (state, UpperSums(zero, 0 * w, zero)), theta, w)

    def _condensed(self, sums: StepSums) -> Condensed:
        return self._accumulation.condensed(self.backend, sums[0])

    def _step(self, w: Array, found: tuple[StepSums, int], *given: Any) -> tuple[Array, Array, tuple[StepSums, int]]:
        """The Newton step from w, and the square of its length by the Hessian, 0-d.

        By the slope: targets of rows that hardly bend are so large that the step would be their rounding.
        """
        ridge, group, (sums, _) = self.problem.lower.ridge, self.problem.group, found
        g = sums[1].slope + ridge.slope(w) if ridge.present else sums[1].slope
        d = -self._inverse(self._condensed(sums).R, g)
        d, decrement = (d, -inner(g, d)) if group is None else group.same((d, -inner(g, d)))
        return d, decrement, found

    def _inverse(self, R: Array, c: Array) -> Array:
        """``H^-1 c``."""
        a, solve = c @ apart(self.problem.lower.loss, c), self.backend.solve_triangular
        return self._whole(solve(R, solve(R, as_one(a, a.shape[1]), transpose=True)), c)

    def _whole(self, x: Array, w: Array) -> Array:
        """One column as an array like w."""
        return namespace_of(w).reshape(x, (w.shape[0], -1)) @ apart(self.problem.lower.loss, w).mT

    def _adjoint(self, point: StreamedPoint) -> Array:
        sums, _ = self._walk(CURVED, point.theta, point.w)
        return self._inverse(self._condensed(sums).R, point.slope)

    def diagnose(self, theta: Leaves) -> LowerReport:
        """Of the design; w is that of the loss."""
        return super().diagnose(theta)._replace(w=self._solved(theta)[0])
