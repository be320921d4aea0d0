"""The minimiser along the direction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, final

from xvarpro.algorithms.steps.backtracking import backtrack_by_slope
from xvarpro.algorithms.steps.interface import Line, Search, StepRule
from xvarpro.backends.interface import select
from xvarpro.core import checks
from xvarpro.core.namespace import namespace_of
from xvarpro.core.struct import Array
from xvarpro.core.trees import rounding

GOLDEN = 0.38196601125010515  # (3 - sqrt 5) / 2: the smaller part of an interval


class _Trial(NamedTuple):
    alpha: Array
    value: Array  # inf where the objective is not finite


class _Bracket(NamedTuple):
    """Three trials from left to right, the middle one lowest, for a function with one valley; n trials made so far."""

    left: _Trial
    middle: _Trial
    right: _Trial
    n: Array


@final
@dataclass(frozen=True)
class ExactStep(StepRule):
    """``argmin f(theta + alpha d) over 0 < alpha <= cap``, for an objective with one valley along the direction.

    Parabolas through the three best trials, with golden sections where they fail (Brent 1973), in values only. The
    result is checked like any other trial: a step that does not lower the objective is halved.

    Parameters
    ----------
    quadratic : bool
        The objective is a parabola along every direction: its value, its slope and one trial give the step.
    tol : float
        Relative accuracy of alpha, in (0, 0.1]; the decrease is exact to the square of it.
    limit : int
        Trials after which the search gives up, >= 5.

    Notes
    -----
    Formula : ``alpha = argmin f(theta + alpha d)``, ``0 < alpha <= cap``
    Evaluations : a value per trial: 2 on a parabola with `quadratic`, else until the bracket is narrow; gradients near
        rounding only
    Monotone : yes
    Needs : one valley along d, or a parabola
    When : values are cheap next to gradients, or the objective is quadratic along d

    Examples
    --------
    >>> import xvarpro as xv
    >>> xv.algorithms.FrankWolfe(xv.steps.ExactStep(quadratic=True)).step.quadratic
    True
    """

    quadratic: bool = False
    tol: float = 1e-4
    limit: int = 60

    def __post_init__(self) -> None:
        checks.whole(self, "limit", 5)
        checks.share(self, "tol", 0.1)

    def init(self, L: Array) -> Array:
        return namespace_of(L).zeros_like(L)

    def search(self, line: Line, memory: Array) -> Search:
        value, gap = line.value, line.gap
        xp = namespace_of(value)
        zero = rise = promised = xp.zeros_like(value)

        def trial(alpha: Array) -> _Trial:
            found = line.phi(alpha).value
            return _Trial(alpha, xp.where(xp.isfinite(found), found, xp.full_like(found, xp.inf)))

        # the largest cap / 2^j at which the objective is finite
        right, n = line.backend.while_loop(
            lambda state: ~xp.isfinite(state[0].value) & (state[1] < self.limit - 1),
            lambda state: (trial(0.5 * state[0].alpha), state[1] + 1),
            (trial(line.cap), xp.ones_like(line.cap)),
        )
        vertex = _vertex(right, value, gap)
        best = xp.minimum(vertex, right.alpha)
        if not self.quadratic:
            middle = trial(xp.where(vertex < right.alpha, vertex, (1 - self.tol) * right.alpha))
            bracket = self._descend(line, trial, _Bracket(_Trial(zero, value), middle, right, n + 1))
            rose = bracket.right.value - value
            doubtless = xp.isfinite(rose) & (rose > rounding(xp, value))
            rise = xp.where(doubtless, rose, zero)
            promised = xp.where(doubtless, gap * bracket.right.alpha, zero)
            bracket = self._narrow(line, trial, bracket)
            best, n = xp.where(right.value < bracket.middle.value, right.alpha, bracket.middle.alpha), bracket.n
        return backtrack_by_slope(
            line,
            propose=lambda alpha: alpha,
            accept=lambda alpha, point, _: point.value < value,
            worsen=lambda alpha: 0.5 * alpha,
            memory=xp.where(gap > 0, best, xp.zeros_like(best)),
            limit=self.limit,
            trials=n,
            rise=rise,
            promised=promised,
        )._replace(memory=memory)

    def _descend(self, line: Line, trial: Callable[[Array], _Trial], b: _Bracket) -> _Bracket:
        """Move the middle towards the left until its value is no higher than there, up to rounding."""
        xp = namespace_of(line.gap)

        def higher(b: _Bracket) -> Array:
            return ~(b.middle.value <= b.left.value + rounding(xp, b.left.value)) & (b.n < self.limit)

        def again(b: _Bracket) -> _Bracket:
            vertex = _vertex(b.middle, b.left.value, line.gap)
            middle = xp.minimum(xp.maximum(vertex, 0.1 * b.middle.alpha), 0.5 * b.middle.alpha)
            return _Bracket(b.left, trial(middle), b.middle, b.n + 1)

        return line.backend.while_loop(higher, again, b)

    def _narrow(self, line: Line, trial: Callable[[Array], _Trial], b: _Bracket) -> _Bracket:
        """Shorten the bracket to ``tol`` of its place: a parabola's vertex, and a golden section every third time."""
        xp = namespace_of(line.gap)

        def wide(b: _Bracket) -> Array:
            depth = xp.maximum(b.left.value, b.right.value) - b.middle.value
            resolved = depth > rounding(xp, b.middle.value)
            return resolved & (b.right.alpha - b.left.alpha > 2 * self.tol * b.middle.alpha) & (b.n < self.limit)

        def again(b: _Bracket) -> _Bracket:
            at = b.middle.alpha
            below, above = at - b.left.alpha, b.right.alpha - at
            golden = xp.where(above > below, at + GOLDEN * above, at - GOLDEN * below)
            p, q = below * (b.right.value - b.middle.value), above * (b.left.value - b.middle.value)
            least = 0.5 * self.tol * at
            curved = p + q > 0
            shift = 0.5 * (above * q - below * p) / xp.where(curved, p + q, xp.ones_like(p))
            # a vertex at the middle is no new trial: take one at the least distance, where the bracket is wider
            shift = xp.where(xp.abs(shift) < least, xp.where(above > below, least, -least), shift)
            inside = curved & (shift > 0.5 * least - below) & (shift < above - 0.5 * least)
            edge = b.right.value < b.middle.value  # no valley in sight yet: to the right
            turn = xp.remainder(b.n, xp.full_like(b.n, 3.0)) == 0
            alpha = xp.where(inside & ~turn & ~edge, at + shift, golden)
            new = trial(xp.where(edge, at + (1 - GOLDEN) * above, alpha))
            # the lower one of the inner two trials is the middle
            low, high = select(line.backend, new.alpha < at, (new, b.middle), (b.middle, new))
            left, middle, right = select(
                line.backend, high.value < low.value, (low, high, b.right), (b.left, low, high)
            )
            return _Bracket(left, middle, right, b.n + 1)

        return line.backend.while_loop(wide, again, b)


def _vertex(trial: _Trial, value: Array, gap: Array) -> Array:
    """Minimiser of the parabola through ``value``, with the slope ``-gap`` there, and the trial; inf if it has none."""
    xp = namespace_of(gap)
    excess = (trial.value - value) + trial.alpha * gap
    curved = excess > 0
    share = (0.5 * trial.alpha * gap) / xp.where(curved, excess, xp.ones_like(excess))
    return xp.where(curved, trial.alpha * share, xp.full_like(gap, xp.inf))
