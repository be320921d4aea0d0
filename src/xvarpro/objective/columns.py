"""The reduced objective of right-hand sides that several processes hold: sums are what they exchange."""

from __future__ import annotations

from typing import Any

import numpy as np

from xvarpro.backends.group import Group
from xvarpro.core.namespace import device
from xvarpro.core.struct import Array, Leaves
from xvarpro.objective.mini_batch import LowerRows, chosen, mini_batch, some_columns
from xvarpro.objective.reduced import Point, Reduced
from xvarpro.problem.samples import lengths


class Columns(Reduced):
    """As `Reduced`, of which the targets are the own columns, and value and gradient those of all."""

    def __init__(self, *args: Any, group: Group, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.group = group
        self._counted: np.ndarray | None = None

    @property
    def half_mu(self) -> Any:
        return super().half_mu / self.group.size

    @property
    def samples(self) -> int:
        return int(self._counts.sum()) if self._by_column else super().samples

    @property
    def _by_column(self) -> bool:
        return self.problem.is_separable and not lengths(self.problem.data)

    @property
    def _counts(self) -> np.ndarray:
        """How many right-hand sides each process has."""
        if self._counted is None:
            self._counted = self.group.numbers([self.target_shape[1]])[:, 0].astype(int)
        return self._counted

    def summed(self, x: Array) -> Array:
        return self.group.total((x,))[0]

    def gradient(self, point: Point) -> Leaves:
        return self.group.total(super().gradient(point))

    def value_and_gradient(self, theta: Leaves) -> tuple[Point, Leaves]:
        point, gradient = super().value_and_gradient(theta)
        return point, self.group.total(gradient)

    def scale(self, theta: Leaves) -> Array:
        return self.summed(super().scale(theta))

    def restricted(self, indices: Array, lower: LowerRows | None = None) -> Columns:
        """As ever; of right-hand sides, numbered from process to process, each process has those of its own."""
        if not self._by_column:
            problem = mini_batch(self.problem, indices, self.samples, False, lower)
        else:
            chosen(self.problem, lower, True)
            places = self.backend.to_numpy(indices) - int(self._counts[: self.group.rank].sum())
            own = places[(places >= 0) & (places < self._counts[self.group.rank])]
            # where none is drawn, one of weight 0: not every framework multiplies matrices without columns
            scale, own = ((self.samples / places.size) ** 0.5, own) if own.size else (0.0, np.zeros(1, places.dtype))
            problem = some_columns(self.problem, self.backend.asarray(own, device=device(indices)), scale)
        return Columns(problem, self.backend, self.treedef, group=self.group)
