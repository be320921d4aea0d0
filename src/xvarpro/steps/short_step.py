"""The short step, and the backtracked estimate of L that makes it usable."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, final

from array_api_compat import array_namespace

from xvarpro import checks
from xvarpro.errors import ProblemError
from xvarpro.protocols import Array, Search, StepRule
from xvarpro.steps._backtrack import backtrack


@final
@dataclass(frozen=True)
class ShortStep(StepRule):
    """``alpha = min(cap, gap / (L |d|^2))``.

    With the actual ``|d|^2`` in place of the squared diameter the paper's bound still holds and the step is longer.

    Parameters
    ----------
    L : float or None
        Lipschitz constant of the reduced gradient, > 0. None estimates it as Pedregosa et al. (2020) do: shrink the
        last estimate by `shrink`, multiply by `grow` until ``f(theta + alpha d) <= f - alpha gap + alpha^2 L |d|^2/2``.
    shrink : float
        In (0, 1].
    grow : float
        > 1.
    limit : int
        Trials after which the search gives up.

    Examples
    --------
    >>> import xvarpro as xv
    >>> xv.steps.ShortStep(L=10.0).L
    10.0
    """

    L: float | None = None
    shrink: float = 0.9
    grow: float = 2.0
    limit: int = 60

    uses_curvature: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.L is not None and not (math.isfinite(self.L) and self.L > 0):
            raise ProblemError(f"ShortStep needs L > 0 or None, got {self.L!r}")
        checks.limit(self, self.limit)
        if not (0 < self.shrink <= 1 < self.grow):
            raise ProblemError(f"ShortStep needs 0 < shrink <= 1 < grow, got {self.shrink!r}, {self.grow!r}")

    def init(self, L: Array) -> Array:
        return L if self.L is None else array_namespace(L).full_like(L, self.L)

    def search(
        self, backend: Any, phi: Callable[[Array], Any], value: Array, gap: Array, dd: Array, memory: Array, cap: float
    ) -> Search:
        xp = array_namespace(value)
        largest = xp.full_like(value, cap)

        def propose(L: Array) -> Array:
            return xp.where(L * dd > 0, xp.minimum(largest, gap / (L * dd)), largest)

        def accept(alpha: Array, point: Any, L: Array) -> Array:
            return point.value <= value - alpha * gap + (0.5 * alpha * alpha) * (L * dd)

        if self.L is not None:
            alpha = propose(memory)
            return Search(alpha, phi(alpha), memory, xp.ones_like(alpha))
        return backtrack(backend, phi, propose, accept, lambda L: L * self.grow, memory * self.shrink, self.limit)
