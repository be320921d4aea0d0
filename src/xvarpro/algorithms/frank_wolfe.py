"""Algorithm 1 of the paper, CR-VarPro: conditional gradient on the reduced objective."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, final

from xvarpro.algorithms._blocks import Blocks, Simultaneous, State, Together
from xvarpro.algorithms.interface import Algorithm
from xvarpro.algorithms.steps import Armijo, ShortStep
from xvarpro.algorithms.steps.interface import StepRule
from xvarpro.core.struct import Leaves
from xvarpro.errors import ProblemError


@final
@dataclass(frozen=True)
class FrankWolfe(Algorithm):
    """Conditional gradient with a linear minimisation oracle on block A and a ball step on block B.

    Parameters
    ----------
    step : StepRule
        One of `xvarpro.steps`; the default, `steps.ShortStep`, estimates L by backtracking. With a rule that is not
        monotone, such as `steps.OpenLoop`, the result is the last iterate, not the best.
    blocks : Blocks
        `Together` (the paper), `Separate`, `Simultaneous`, `Cyclic` or `Randomised`.
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
        if not 0 < self.cap <= 1:
            raise ProblemError(f"FrankWolfe needs 0 < cap <= 1, got {self.cap!r}")
        if not isinstance(self.blocks, Blocks):
            raise ProblemError(f"blocks must be one such as Together() or Separate(), got {self.blocks!r}")
        if not isinstance(self.step, StepRule):
            raise ProblemError(f"step must be one of xvarpro.steps, such as xv.steps.Armijo(), got {self.step!r}")
        if isinstance(self.blocks, Simultaneous) and not self.step.separable:
            raise ProblemError(f"Simultaneous() needs a rule with a step per block, ShortStep, got {self.step!r}")
        if isinstance(self.blocks, Together) and self.step.of_block(free=True) is not self.step:
            raise ProblemError(f"Together() takes one step for both blocks, and {self.step!r} has two constants")

    def init(self, f: Any, region: Any, theta: Leaves) -> State:
        return self.blocks.init(self.step, f, region, theta)

    def advance(self, f: Any, region: Any, state: State) -> State:
        return self.blocks.advance(self.step, self.cap, f, region, state)


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
