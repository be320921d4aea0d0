"""Rows in chunks with a loss that is no square: every Newton step, and every trial of one, is a pass over the rows."""

from __future__ import annotations

from typing import Any

from xvarpro.core.namespace import namespace_of
from xvarpro.core.struct import Array, Leaves
from xvarpro.core.trees import inner
from xvarpro.lower.newton import descended
from xvarpro.lower.stack import as_one, identity, joined
from xvarpro.objective.interface import LowerReport, Objective
from xvarpro.objective.losses import apart
from xvarpro.objective.passes import CURVED, FIRST_STEP, STEP, Pass, StepSums
from xvarpro.objective.streamed import Streamed, StreamedPoint


class StreamedLosses(Streamed):
    """As `Streamed`, with a loss below: all columns of w are one, since a loss may couple them."""

    def rounding(self, value: Array) -> Array:
        return Objective.rounding(self, value)

    def _solved(self, theta: Leaves) -> tuple[Array, Array, Array, Array, int]:
        ridge, xp = self.problem.lower.ridge, namespace_of(theta[0])
        last: list[Any] = []  # a w, the sums of the pass there, and its rows

        def at(w: Array) -> tuple[StepSums, int]:
            """The sums of a pass at w, which is often the last one again."""
            if not last or not bool(xp.all(last[0] == w)):
                last[:] = w, *self._walk(STEP, theta, w)
            return last[1], last[2]

        def value(w: Array) -> Array:
            found = at(w)[0][1]
            return found + ridge.value(w) if ridge.present else found

        start: Any = self.start
        if isinstance(start, tuple) or not bool(xp.isfinite(value(start))):
            start = self.ridge(theta)[1]
            if self.problem.lower.loss.by_entry:
                start = self._step(self._walk(FIRST_STEP, theta, start)[0], start)[0]
        w = descended(self.backend, value, lambda w, error: self._step(at(w)[0], w), start)
        (state, _, energy), rows = at(w)
        R = self._accumulation.condensed(self.backend, state).R
        return w, R, value(w), energy, rows * w.shape[1]

    def _walk(self, one: Pass, theta: Leaves, w: Array) -> tuple[StepSums, int]:
        """A pass from the rows of the ridge."""
        a = w @ apart(self.problem.lower.loss, w)
        A, a, zero = joined(self.ridge(theta)[0], identity(a)), as_one(a, a.shape[1]), 0 * inner(w, w)
        state = self._accumulation.start(0 * A, 0 * a)
        if self.problem.lower.ridge.present:
            state = self._accumulation.fold(self.backend, state, A, -A @ a)
        return self.walk(0, one, (state, zero, zero), theta, w)

    def _step(self, sums: StepSums, w: Array) -> tuple[Array, Array]:
        """The Newton step from w, and the square of its length by the Hessian, 0-d."""
        condensed, group = self._accumulation.condensed(self.backend, sums[0]), self.problem.group
        found = self._whole(condensed.argmin(self.backend), w), inner(condensed.z, condensed.z)
        return found if group is None else group.same(found)

    def _whole(self, x: Array, w: Array) -> Array:
        """One column as an array like w."""
        return namespace_of(w).reshape(x, (w.shape[0], -1)) @ apart(self.problem.lower.loss, w).mT

    def _adjoint(self, point: StreamedPoint) -> Array:
        (state, *_), _ = self._walk(CURVED, point.theta, point.w)
        c = point.slope @ apart(self.problem.lower.loss, point.w)
        R = self._accumulation.condensed(self.backend, state).R
        return self._whole(super()._adjoint(point._replace(R=R, slope=as_one(c, c.shape[1]))), point.w)

    def diagnose(self, theta: Leaves) -> LowerReport:
        """Of the design; w is that of the loss."""
        return super().diagnose(theta)._replace(w=self._solved(theta)[0])
