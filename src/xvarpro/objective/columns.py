"""The reduced objective of right-hand sides that several processes hold: sums are what they exchange."""

from __future__ import annotations

from typing import Any

from xvarpro.backends.group import Group
from xvarpro.core.struct import Array, Leaves
from xvarpro.errors import ProblemError
from xvarpro.objective.interface import LowerReport
from xvarpro.objective.mini_batch import LowerRows
from xvarpro.objective.reduced import Point, Reduced


class Columns(Reduced):
    """As `Reduced`, of which the targets are the own columns, and value and gradient those of all."""

    def __init__(self, *args: Any, group: Group, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.group = group

    @property
    def half_mu(self) -> Any:
        return super().half_mu / self.group.size

    @property
    def rows(self) -> int:
        if not self.problem.is_separable:
            return super().rows
        return int(self.group.numbers([self.target_shape[1]]).sum())

    def summed(self, x: Array) -> Array:
        return self.group.total((x,))[0]

    def gradient(self, point: Point) -> Leaves:
        return self.group.total(super().gradient(point))

    def value_and_gradient(self, theta: Leaves) -> tuple[Point, Leaves]:
        point, gradient = super().value_and_gradient(theta)
        return point, self.group.total(gradient)

    def scale(self, theta: Leaves) -> Array:
        return self.summed(super().scale(theta))

    def diagnose(self, theta: Leaves) -> LowerReport:
        report = super().diagnose(theta)
        return report._replace(kinks=self.summed(report.kinks))

    def restricted(self, indices: Array, lower: LowerRows | None = None) -> Reduced:
        raise ProblemError(
            "mini-batches are drawn from targets in one process; got columns in several. Take another algorithm"
        )
