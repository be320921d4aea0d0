"""Weights on a simplex."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from xvarpro.core import checks
from xvarpro.core.struct import Array
from xvarpro.core.trees import changed
from xvarpro.lower.interface import LowerSolver
from xvarpro.lower.weight_sets._faces import InBox
from xvarpro.lower.weight_sets.interface import WeightSet, refuse_solver


@final
@dataclass(frozen=True)
class Simplex(WeightSet):
    """``w >= 0, sum w = total``, column by column: mixtures, and the codes of archetypal analysis.

    M must have full column rank, or the level a ridge, as for `Nonnegative`, and `w` is differentiable where it is
    there: where no weight is 0 with a multiplier of 0.

    Parameters
    ----------
    total : float
        > 0.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> A, y = np.eye(3), np.array([0.9, 0.5, 0.0])
    >>> problem = xv.separable(lambda theta, data: theta * data, y, data=A, W=xv.lower.Simplex())
    >>> np.round(xv.solve(problem, np.ones(1), over=xv.sets.Box(1.0, 1.0)).w, 12)
    array([0.7, 0.3, 0. ])
    """

    total: float = 1.0

    numbers = ("total",)

    def __post_init__(self) -> None:
        checks.above(self, "total", 0.0)

    def dimension(self, n: int) -> int:
        return n - 1

    def part(self, indices: Array, scale: float) -> Simplex:
        return changed(self, total=scale * self.total)

    def directions(self, w: np.ndarray) -> list[np.ndarray]:
        return [_without_sum(column != 0) for column in w.T]

    def solver(self, given: LowerSolver | None) -> LowerSolver:
        refuse_solver(self, given)
        return InBox(total=self.total)

    @classmethod
    def examples(cls, n: int) -> tuple[Simplex, ...]:
        return cls(), cls(3.0)


def _without_sum(free: np.ndarray) -> np.ndarray:
    """The directions in which the free entries move and their sum does not: each of them but the first, against it."""
    first, *others = np.flatnonzero(free)
    eye = np.eye(len(free))
    return eye[:, others] - eye[:, [first]]
