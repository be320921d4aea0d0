"""The minimiser along the direction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, final

from xvarpro.algorithms.steps.backtracking import backtrack_by_slope
from xvarpro.algorithms.steps.interface import Line, Search, StepRule
from xvarpro.core import checks
from xvarpro.core.namespace import array_namespace
from xvarpro.core.struct import Array
from xvarpro.core.trees import rounding
from xvarpro.errors import ProblemError

GOLDEN = 0.38196601125010515  # (3 - sqrt 5) / 2: the smaller part of an interval


class _Bracket(NamedTuple):
    """``left < middle < right`` with the middle lowest, for a function with one valley; n trials made so far."""

    left: Array
    at_left: Array
    middle: Array
    at_middle: Array
    right: Array
    at_right: Array
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
        checks.whole(self, "limit", 1)
        if self.limit < 5:
            raise ProblemError(f"ExactStep needs a limit >= 5, got {self.limit!r}")
        checks.nonnegative(self, "tol")
        if not 0 < self.tol <= 0.1:
            raise ProblemError(f"ExactStep needs 0 < tol <= 0.1, got {self.tol!r}")

    def init(self, L: Array) -> Array:
        return array_namespace(L).zeros_like(L)

    def search(self, line: Line, memory: Array) -> Search:
        value, gap = line.value, line.gap
        xp = array_namespace(value)

        def trial(alpha: Array) -> Array:
            found = line.phi(alpha).value
            return xp.where(xp.isfinite(found), found, xp.full_like(found, xp.inf))

        right, at_right, n = self._finite(line.backend, trial, line.cap)
        vertex = _vertex(right, at_right, value, gap)
        best = xp.minimum(vertex, right)
        rise = promised = xp.zeros_like(value)
        if not self.quadratic:
            middle = xp.where(vertex < right, vertex, (1 - self.tol) * right)
            zero = xp.zeros_like(value)
            bracket = _Bracket(zero, value, middle, trial(middle), right, at_right, n + 1)
            bracket = self._descend(line.backend, trial, bracket, gap)
            rose = bracket.at_right - value
            doubtless = xp.isfinite(rose) & (rose > rounding(value))
            rise = xp.where(doubtless, rose, rise)
            promised = xp.where(doubtless, gap * bracket.right, promised)
            bracket = self._narrow(line.backend, trial, bracket)
            best, n = xp.where(at_right < bracket.at_middle, right, bracket.middle), bracket.n
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

    def _finite(self, backend: Any, trial: Callable[[Array], Array], cap: Array) -> tuple[Array, Array, Array]:
        """The largest ``cap / 2^j`` at which the objective is finite, its value there, the trials that it took."""
        xp = array_namespace(cap)

        def again(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            alpha = 0.5 * state[0]
            return alpha, trial(alpha), state[2] + 1

        first = (cap, trial(cap), xp.ones_like(cap))
        return backend.while_loop(lambda s: ~xp.isfinite(s[1]) & (s[2] < self.limit - 1), again, first)

    def _descend(self, backend: Any, trial: Callable[[Array], Array], b: _Bracket, gap: Array) -> _Bracket:
        """Move the middle towards the left until it is lower than it, up to rounding."""
        xp = array_namespace(gap)

        def higher(b: _Bracket) -> Array:
            return ~(b.at_middle <= b.at_left + rounding(b.at_left)) & (b.n < self.limit)

        def again(b: _Bracket) -> _Bracket:
            vertex = _vertex(b.middle, b.at_middle, b.at_left, gap)
            middle = xp.minimum(xp.maximum(vertex, 0.1 * b.middle), 0.5 * b.middle)
            return _Bracket(b.left, b.at_left, middle, trial(middle), b.middle, b.at_middle, b.n + 1)

        return backend.while_loop(higher, again, b)

    def _narrow(self, backend: Any, trial: Callable[[Array], Array], b: _Bracket) -> _Bracket:
        """Shorten the bracket to ``tol`` of its place: a parabola's vertex, and a golden section every third time."""
        xp = array_namespace(b.middle)

        def wide(b: _Bracket) -> Array:
            depth = xp.maximum(xp.abs(b.at_left - b.at_middle), xp.abs(b.at_right - b.at_middle))
            seen = depth > rounding(b.at_middle)
            return seen & (b.right - b.left > 2 * self.tol * b.middle) & (b.n < self.limit)

        def again(b: _Bracket) -> _Bracket:
            below, above = b.middle - b.left, b.right - b.middle
            golden = xp.where(above > below, b.middle + GOLDEN * above, b.middle - GOLDEN * below)
            p, q = below * (b.at_right - b.at_middle), above * (b.at_left - b.at_middle)
            least = 0.5 * self.tol * b.middle
            curved = p + q > 0
            shift = 0.5 * (above * q - below * p) / xp.where(curved, p + q, xp.ones_like(p))
            # a vertex at the middle says nothing new: look just beside it, where the bracket is wider
            beside = xp.where(above > below, least, -least)
            shift = xp.where(xp.abs(shift) < least, beside, shift)
            inside = curved & (shift > 0.5 * least - below) & (shift < above - 0.5 * least)
            edge = b.at_right < b.at_middle  # no valley in sight yet: to the right
            turn = xp.remainder(b.n, xp.full_like(b.n, 3.0)) == 0
            new = xp.where(inside & ~turn & ~edge, b.middle + shift, golden)
            new = xp.where(edge, b.middle + (1 - GOLDEN) * above, new)
            return _narrower(b, new, trial(new))

        return backend.while_loop(wide, again, b)


def _vertex(alpha: Array, at: Array, value: Array, gap: Array) -> Array:
    """Minimiser of the parabola through ``value``, with the slope ``-gap`` there, and the trial; inf if it has none."""
    xp = array_namespace(alpha)
    excess = (at - value) + alpha * gap
    curved = excess > 0
    share = (0.5 * alpha * gap) / xp.where(curved, excess, xp.ones_like(excess))
    return xp.where(curved, alpha * share, xp.full_like(alpha, xp.inf))


def _narrower(b: _Bracket, new: Array, at_new: Array) -> _Bracket:
    """The bracket with one more trial: the lower one of the inner two places is the middle."""
    xp = array_namespace(new)
    first = new < b.middle
    low, at_low = xp.where(first, new, b.middle), xp.where(first, at_new, b.at_middle)
    high, at_high = xp.where(first, b.middle, new), xp.where(first, b.at_middle, at_new)
    up = at_high < at_low
    return _Bracket(
        xp.where(up, low, b.left),
        xp.where(up, at_low, b.at_left),
        xp.where(up, high, low),
        xp.where(up, at_high, at_low),
        xp.where(up, b.right, high),
        xp.where(up, b.at_right, at_high),
        b.n + 1,
    )
