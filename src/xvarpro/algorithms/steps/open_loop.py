"""Steps that depend on the iteration number only: baselines, which need no constant and may raise the objective."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, final

from xvarpro.algorithms.steps.backtracking import backtrack
from xvarpro.algorithms.steps.interface import Line, Search, StepRule
from xvarpro.core import checks
from xvarpro.core.namespace import namespace_of
from xvarpro.core.struct import Array
from xvarpro.errors import ProblemError

LIMIT = 60  # halvings of a step at whose end the objective is not finite


class Scheduled(StepRule):
    """A step by the number t of steps taken so far, halved only while the objective is not finite."""

    monotone: ClassVar[bool] = False

    @abstractmethod
    def at(self, t: Array) -> Array:
        """Step number t = 0, 1, ... of a search."""

    def init(self, L: Array) -> Array:
        return namespace_of(L).zeros_like(L)

    def search(self, line: Line, memory: Array) -> Search:
        xp = namespace_of(memory)
        found = backtrack(
            line,
            propose=lambda alpha: alpha,
            accept=lambda alpha, point, _: xp.isfinite(point.value),
            worsen=lambda alpha: 0.5 * alpha,
            memory=xp.minimum(line.cap, self.at(memory)),
            limit=LIMIT,
        )
        return found._replace(memory=memory + 1)


@final
@dataclass(frozen=True)
class OpenLoop(Scheduled):
    """``alpha = l / (t + l)``, ``2 / (t + 2)`` by default (Frank, Wolfe 1956; Jaggi 2013). Not monotone.

    Where the objective rises it goes on; the result is the best iterate.

    Parameters
    ----------
    l : float or "log"
        >= 1. More than 2 is faster on some sets (Wirth, Kerdreux, Pokutta 2023); "log", ``l = 2 + ln(t + 1)``, is for
        any growth of the objective (Pokutta 2023).

    Notes
    -----
    Formula : ``alpha = l / (t + l)``, l a number or ``2 + ln(t + 1)``
    Evaluations : 1 value, more only while it is not finite
    Monotone : no
    Needs : nothing
    When : a baseline; values too noisy or too expensive to compare

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> xv.steps.OpenLoop().at(np.arange(4.0))
    array([1.        , 0.66666667, 0.5       , 0.4       ])
    >>> np.round(xv.steps.OpenLoop("log").at(np.arange(4.0)), 3)
    array([1.   , 0.729, 0.608, 0.53 ])
    """

    l: float | str = 2.0  # noqa: E741 - the letter of the literature

    def __post_init__(self) -> None:
        if not isinstance(self.l, str):
            checks.nonnegative(self, "l")
        if self.l != "log" if isinstance(self.l, str) else self.l < 1:
            raise ProblemError(f'OpenLoop: l must be >= 1, or "log"; got {self.l!r}')

    def at(self, t: Array) -> Array:
        l = 2 + namespace_of(t).log(t + 1) if isinstance(self.l, str) else self.l  # noqa: E741
        return l / (t + l)


@final
@dataclass(frozen=True)
class Constant(Scheduled):
    """``alpha`` the same in every iteration. Not monotone, and on a free block it never settles.

    A normalised step of fixed length ends in an orbit around the solution; its certificate says so.

    Parameters
    ----------
    alpha : float
        In (0, 1].

    Notes
    -----
    Formula : ``alpha`` as given
    Evaluations : 1 value, more only while it is not finite
    Monotone : no
    Needs : an alpha that suits the problem
    When : a baseline; to repeat a fixed-length recipe

    Examples
    --------
    >>> import xvarpro as xv
    >>> xv.steps.Constant(0.25)
    Constant(alpha=0.25)
    """

    alpha: float = 0.1

    def __post_init__(self) -> None:
        checks.share(self, "alpha")

    def at(self, t: Array) -> Array:
        return namespace_of(t).full_like(t, self.alpha)
