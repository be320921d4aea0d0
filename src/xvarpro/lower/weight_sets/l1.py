"""Weights with an l1 penalty."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from xvarpro.core import checks
from xvarpro.core.namespace import namespace_of
from xvarpro.core.struct import Array
from xvarpro.core.trees import changed
from xvarpro.lower.interface import LowerSolver
from xvarpro.lower.weight_sets._faces import Lasso
from xvarpro.lower.weight_sets.interface import WeightSet, refuse_solver


@final
@dataclass(frozen=True)
class L1(WeightSet):
    """A penalty ``alpha |w|_1`` in the lower level, summed over all columns: sparse codes.

    A separable problem has it in its value; the upper level of a bilevel one has not. M must have full column rank, or
    the level a ridge (an elastic net), so that w is unique. The gradient of a separable problem exists and is
    continuous wherever w is unique; that of a bilevel one exists where no weight is 0 with a slope of exactly alpha:
    ``Result.verified.kinks`` counts those. Complex M and y are fitted by a real w.

    Parameters
    ----------
    alpha : float
        > 0.
    nonnegative : bool
        Whether w >= 0 besides.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> A, y = np.eye(3), np.array([0.9, -0.5, 0.1])
    >>> problem = xv.separable(lambda theta, data: theta * data, y, data=A, W=xv.lower.L1(0.2))
    >>> np.round(xv.solve(problem, np.ones(1), over=xv.sets.Box(1.0, 1.0)).w, 12)
    array([ 0.7, -0.3,  0. ])
    """

    alpha: float = 1.0
    nonnegative: bool = False

    numbers = ("alpha",)
    penalises = True

    def __post_init__(self) -> None:
        checks.above(self, "alpha", 0.0)
        checks.switch("nonnegative", self.nonnegative)

    def penalty(self, w: Array) -> Array | float:
        xp = namespace_of(w)
        return self.alpha * xp.sum(xp.abs(w))

    def part(self, indices: Array, scale: float) -> L1:
        return changed(self, alpha=scale * self.alpha)

    def directions(self, w: np.ndarray) -> list[np.ndarray]:
        return [np.eye(len(w))[:, column != 0] for column in w.T]

    def solver(self, given: LowerSolver | None) -> LowerSolver:
        refuse_solver(self, given)
        return Lasso(self.alpha, self.nonnegative)

    @classmethod
    def examples(cls, n: int) -> tuple[L1, ...]:
        return cls(), cls(0.3, nonnegative=True)
