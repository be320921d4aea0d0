"""The short step, and the backtracked estimate of L that makes it usable."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, final

from xvarpro.algorithms.steps.backtracking import backtrack, backtrack_by_slope
from xvarpro.algorithms.steps.interface import Line, Point, Search, StepRule
from xvarpro.core import checks
from xvarpro.core.namespace import namespace_of, positive_or_one
from xvarpro.core.struct import Array
from xvarpro.core.trees import rounding
from xvarpro.errors import ProblemError


@final
@dataclass(frozen=True)
class ShortStep(StepRule):
    """``alpha = min(cap, gap / (L |d|^2))``, with an L that is given or estimated (Pedregosa et al. 2020).

    With the actual ``|d|^2`` in place of the squared diameter the paper's bound still holds and the step is longer. On
    a free block with an l2 ball the move is ``min(radius, |g|_* / L)``: a gradient step, clipped (Pethick et al. 2025).

    An estimate starts each iteration at ``gap^2 / (2 decrease |d|^2)``, with the last decrease of the objective, no
    lower than `shrink` times the last estimate and no higher than that; it grows until
    ``f(theta + alpha d) <= f - alpha gap + alpha^2 L |d|^2 / 2``. Where the two values differ by rounding only, the
    sign of the slope at the trial decides instead.

    Parameters
    ----------
    L : float, (float, float), {"A": float, "B": float} or None
        Lipschitz constant of the reduced gradient, > 0; one for the constrained block A and one for the free block B,
        if given as a pair, for `algorithms.Separate`. A step that breaks the bound above by more than rounding shows
        that L is too small: it is raised for that step. None estimates.
    shrink : float
        In (0, 1].
    grow : float
        > 1.
    limit : int
        Trials after which the search gives up.

    Notes
    -----
    Formula : ``alpha = min(cap, gap / (L |d|^2))``
    Evaluations : a value per trial; a gradient at the start and some near rounding, none if L is given
    Monotone : yes
    Needs : nothing; L of each block where it is known
    When : the default

    Examples
    --------
    >>> import xvarpro as xv
    >>> xv.steps.ShortStep(L=10.0).L
    10.0
    >>> xv.steps.ShortStep(L={"A": 10.0, "B": 0.1}).L
    (10.0, 0.1)
    """

    L: float | tuple[float, float] | None = None
    shrink: float = 0.9
    grow: float = 2.0
    limit: int = 60

    def __post_init__(self) -> None:
        object.__setattr__(self, "L", _constants(self.L))
        checks.whole(self, "limit", 1)
        checks.share(self, "shrink")
        checks.above(self, "grow", 1)

    @property
    def uses_curvature(self) -> bool:
        return self.L is None

    def of_block(self, free: bool) -> ShortStep:
        return replace(self, L=self.L[free]) if isinstance(self.L, tuple) else self

    def init(self, L: Array) -> Array:
        xp = namespace_of(L)
        if self.L is not None:
            L = xp.full_like(L, self.L)
        return xp.stack([L, xp.zeros_like(L)])

    def search(self, line: Line, memory: Array) -> Search:
        value, gap, dd, cap = line.value, line.gap, line.dd, line.cap
        xp = namespace_of(value)
        L, decrease = memory[0, ...], memory[1, ...]
        given = self.L is not None
        first = L if given else self._warm(L, decrease, gap, dd)

        def propose(L: Array) -> Array:
            curved = L * dd
            bends = curved > 0
            short = xp.minimum(cap, xp.where(gap > 0, gap, 0) / xp.where(bends, curved, 1))
            return xp.where(bends, short, cap)

        def accept(alpha: Array, point: Point, L: Array) -> Array:
            # differences, not values: a promise too small to see in a value is not kept by standing still
            promised = alpha * gap - (0.5 * alpha * alpha) * (L * dd)
            kept = value - point.value >= promised
            if not given:
                return kept
            # an L that is given has the benefit of the doubt, until a value has contradicted it
            return kept | ((first >= L) & (value - point.value >= promised - rounding(xp, value)))

        def worsen(L: Array) -> Array:
            return L * self.grow

        if given:
            return backtrack(line, propose, accept, worsen, first, self.limit)._replace(memory=memory)
        found = backtrack_by_slope(line, propose, accept, worsen, first, self.limit)
        estimate = xp.where(found.n_values > self.limit, L, found.memory)
        return found._replace(memory=xp.stack([estimate, value - found.point.value]))

    def _warm(self, L: Array, decrease: Array, gap: Array, dd: Array) -> Array:
        """The L for which a short step would have fallen as far as the last step did, near the last estimate."""
        xp = namespace_of(L)
        fitted = (gap / positive_or_one(2 * decrease)) * (gap / positive_or_one(dd))
        least = self.shrink * L
        known = (decrease > 0) & (fitted > least)
        return xp.where(known, xp.minimum(fitted, L), least)


def _constants(L: Any) -> float | tuple[float, float] | None:
    if L is None:
        return None
    if isinstance(L, Mapping):
        if set(L) != {"A", "B"}:
            raise ProblemError(f"ShortStep: L by block must have the keys 'A' and 'B'; got {sorted(map(str, L))}")
        L = (L["A"], L["B"])
    if isinstance(L, tuple | list):
        if len(L) != 2:
            raise ProblemError(f"ShortStep: L by block must be a pair (constrained, free); got {L!r}")
        return _constant(L[0]), _constant(L[1])
    return _constant(L)


def _constant(L: Any) -> float:
    if not isinstance(L, int | float) or isinstance(L, bool) or not (math.isfinite(L) and L > 0):
        raise ProblemError(f"ShortStep: L must be > 0 or None; got {L!r}")
    return float(L)
