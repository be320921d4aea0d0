"""Algorithm 1 of the paper, CR-VarPro: conditional gradient on the reduced objective."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

from xvarpro.algorithms._conditional_gradient import (
    Blocks,
    ConditionalGradient,
    ConditionalGradientState,
    Move,
    Together,
)
from xvarpro.algorithms.steps import Armijo, ShortStep
from xvarpro.algorithms.steps.interface import StepRule
from xvarpro.core import checks
from xvarpro.core.namespace import namespace_of
from xvarpro.objective.interface import Objective
from xvarpro.sets.region import Region


@final
@dataclass(frozen=True)
class FrankWolfe(ConditionalGradient):
    """Conditional gradient with a linear minimisation oracle on block A and a ball step on block B.

    Parameters
    ----------
    step : StepRule
        One of `xvarpro.steps`; the default, `steps.ShortStep`, estimates L by backtracking. With a rule that is not
        monotone, such as `steps.OpenLoop`, the objective rises in between; the result is the best iterate.
    blocks : Blocks
        `Together` (the paper) or `Separate`.
    cap : float
        Largest step of block A, in (0, 1]: a full step to a vertex of a ball zeroes everything else.

    Notes
    -----
    Oracle : LMO
    Per iteration : per search of `blocks`: values by `step`, 1 gradient, 1 LMO
    Memory : a few vectors
    Polytope only : no
    When : sets without a projection or faces, such as sums and images; the paper's method and its baselines

    Examples
    --------
    >>> import xvarpro as xv
    >>> xv.algorithms.FrankWolfe(cap=0.5).cap
    0.5
    """

    step: StepRule = field(default_factory=ShortStep)
    blocks: Blocks = field(default_factory=Together)
    cap: float = 1.0

    def __post_init__(self) -> None:
        checks.share(self, "cap")
        self._check()

    def move(self, f: Objective, region: Region, state: ConditionalGradientState) -> Move:
        gap = state.iterate.gap_A
        return Move(region.block(state.d, free=False), gap, namespace_of(gap).full_like(gap, self.cap))


def cr_varpro(delta: float = 0.5, gamma: float = 1e-4) -> FrankWolfe:
    """The paper's configuration: one Armijo step from alpha = 1 for both blocks.

    Parameters
    ----------
    delta, gamma : float
        Armijo's constants, which the paper leaves open.

    Examples
    --------
    >>> import xvarpro as xv
    >>> xv.algorithms.cr_varpro().step
    Armijo(delta=0.5, gamma=0.0001, warm=False, limit=60)
    """
    return FrankWolfe(Armijo(delta, gamma), Together())
