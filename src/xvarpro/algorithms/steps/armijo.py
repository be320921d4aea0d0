"""Armijo's rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from xvarpro.algorithms.steps.backtracking import backtrack
from xvarpro.algorithms.steps.interface import Line, Search, StepRule
from xvarpro.core import checks
from xvarpro.core.namespace import namespace_of
from xvarpro.core.struct import Array


@final
@dataclass(frozen=True)
class Armijo(StepRule):
    """``alpha = delta^j`` with the smallest j >= 0 such that ``f(theta) - f(theta + alpha d) >= gamma alpha gap``.

    Parameters
    ----------
    delta : float
        Reduction factor, in (0, 1).
    gamma : float
        Share of the predicted decrease that is asked for, in (0, 1/2).
    warm : bool
        Start from the previous step divided by `delta`, not from the largest step allowed (the paper).
    limit : int
        Trials after which the search gives up.

    Notes
    -----
    Formula : ``alpha = cap delta^j``, the least j with ``f - f(alpha) >= gamma alpha gap``
    Evaluations : a value per trial, no gradient
    Monotone : yes
    Needs : nothing
    When : the paper's rule; not for the last digits, where values differ by rounding only

    Examples
    --------
    >>> import xvarpro as xv
    >>> xv.algorithms.FrankWolfe(step=xv.steps.Armijo(warm=True)).step.warm
    True
    """

    delta: float = 0.5
    gamma: float = 1e-4
    warm: bool = False
    limit: int = 60

    def __post_init__(self) -> None:
        checks.whole(self, "limit", 1)
        checks.between(self, "delta", 0, 1)
        checks.between(self, "gamma", 0, 0.5)

    def init(self, L: Array) -> Array:
        return namespace_of(L).ones_like(L)

    def search(self, line: Line, memory: Array) -> Search:
        first = namespace_of(memory).minimum(line.cap, memory / self.delta) if self.warm else line.cap
        return backtrack(
            line,
            propose=lambda alpha: alpha,
            accept=lambda alpha, point, _: line.value - point.value >= (self.gamma * alpha) * line.gap,
            worsen=lambda alpha: alpha * self.delta,
            memory=first,
            limit=self.limit,
        )
