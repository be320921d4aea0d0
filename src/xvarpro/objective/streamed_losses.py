"""Rows in chunks with a loss that is no square: every Newton step, and every trial of one, is a pass over the rows."""

from __future__ import annotations

import copy
from typing import Any

from xvarpro.core.namespace import device, namespace_of
from xvarpro.core.struct import Array, Leaves
from xvarpro.core.trees import inner
from xvarpro.lower.newton import descended
from xvarpro.lower.stack import as_one, identity, joined
from xvarpro.objective.interface import LowerReport, Objective
from xvarpro.objective.losses import apart
from xvarpro.objective.passes import CURVED, FIRST_STEP, STEP, Pass, StepSums
from xvarpro.objective.streamed import Solved, Streamed, StreamedPoint


class StreamedLosses(Streamed):
    """As `Streamed`, with a loss below: all columns of w are one, since a loss may couple them."""

    start: Any = ()

    def starting_at(self, w: Array) -> StreamedLosses:
        other = copy.copy(self)
        other.start = w
        return other

    def rounding(self, value: Array) -> Array:
        return Objective.rounding(self, value)

    def _solved(self, theta: Leaves) -> Solved:
        ridge = self.problem.lower.ridge
        last: list[Any] = []  # a w, the sums of the pass there, and its rows

        def at(w: Array) -> tuple[StepSums, int]:
            """The sums of a pass at w, which is often the last one again."""
            if not last or not bool(namespace_of(w).all(last[0] == w)):
                last[:] = w, *self._walk(STEP, theta, w)
            return last[1], last[2]

        def value(w: Array) -> Array:
            return at(w)[0].value + ridge.value(w) if ridge.present else at(w)[0].value

        def step(w: Array, error: Array) -> tuple[Array, Array]:
            return self._step(at(w)[0], w)

        start: Any = self.start
        if isinstance(start, tuple) or not bool(namespace_of(start).isfinite(value(start))):
            start = self.ridge(theta)[1]
            if self.problem.lower.loss.by_entry:
                start = self._step(self._walk(FIRST_STEP, theta, start)[0], start)[0]
        w, _ = descended(self.backend, value, step, start)
        sums, rows = at(w)
        R = self._accumulation.condensed(self.backend, sums.rows).R
        return Solved(w, R, value(w), sums.energy, rows * w.shape[1], w)

    def _walk(self, one: Pass, theta: Leaves, w: Array) -> tuple[StepSums, int]:
        """A pass from the rows of the ridge."""
        V, zero = apart(self.problem.lower.loss, w), 0 * inner(w, w)
        A = joined(self.ridge(theta)[0], identity(w @ V))
        xp = namespace_of(w)
        n = A.shape[1]
        square, column = (xp.zeros((n, c), dtype=w.dtype, device=device(w)) for c in (n, 1))
        rows = self._accumulation.start(square, column)
        if self.problem.lower.ridge.present:
            rows = self._accumulation.fold(self.backend, rows, A, -A @ as_one(w @ V, V.shape[1]))
        return self.walk(0, one, StepSums(rows, zero, zero), theta, w)

    def _step(self, sums: StepSums, w: Array) -> tuple[Array, Array]:
        """The Newton step from w, and the square of its length by the Hessian, 0-d."""
        condensed = self._accumulation.condensed(self.backend, sums.rows)
        found = self._whole(condensed.argmin(self.backend), w), inner(condensed.z, condensed.z)
        group = self.problem.group
        return found if group is None else group.same(found)

    def _whole(self, x: Array, w: Array) -> Array:
        """One column as an array like w."""
        V = apart(self.problem.lower.loss, w)
        return namespace_of(w).reshape(x, (w.shape[0], -1)) @ V.mT

    def _adjoint(self, point: StreamedPoint) -> Array:
        sums, _ = self._walk(CURVED, point.theta, point.w)
        V = apart(self.problem.lower.loss, point.w)
        R = self._accumulation.condensed(self.backend, sums.rows).R
        v = super()._adjoint(point._replace(R=R, slope=as_one(point.slope @ V, V.shape[1])))
        return self._whole(v, point.w)

    def diagnose(self, theta: Leaves) -> LowerReport:
        """Of the design; w is that of the loss."""
        return super().diagnose(theta)._replace(w=self._solved(theta).w)
