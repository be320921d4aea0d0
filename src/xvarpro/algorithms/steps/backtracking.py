"""Backtracking, the loop of every rule with trials: public, for step rules of one's own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from xvarpro.algorithms.steps.interface import Line, Point, Search
from xvarpro.core.namespace import namespace_of
from xvarpro.core.struct import Array
from xvarpro.core.trees import rounding


def backtrack(
    line: Line,
    propose: Callable[[Array], Array],
    accept: Callable[[Array, Point, Array], Array],
    worsen: Callable[[Array], Array],
    memory: Array,
    limit: int,
    trials: Array | None = None,
) -> Search:
    """Try ``alpha = propose(memory)``, ``memory = worsen(memory)`` until ``accept(alpha, point, memory)``.

    Parameters
    ----------
    line : Line
        As `StepRule.search` gets it.
    propose : callable
        From the memory, of any shape, to an alpha in (0, cap], 0-d.
    accept : callable
        From alpha, the point there and the memory to a boolean, 0-d. Comparisons with NaN are False: write the test so
        that NaN is refused. A point whose value is not finite is refused without it.
    worsen : callable
        From the memory to that of the next trial, which proposes a shorter step.
    memory : array
        Of the first trial.
    limit : int
        Trials at most. After them alpha is 0, the point is the one that the search started from, and the memory the
        first one.
    trials : array, 0-d, optional
        Trials made before the call, to be counted with its own.

    Returns
    -------
    Search
        With the memory whose proposal was accepted.

    Examples
    --------
    Armijo's rule from the largest step, as a step rule's ``search(line, memory)``:

    >>> from xvarpro.algorithms.steps.backtracking import backtrack
    >>> def search(line, memory):
    ...     return backtrack(
    ...         line,
    ...         propose=lambda alpha: alpha,
    ...         accept=lambda alpha, point, _: line.value - point.value >= 1e-4 * alpha * line.gap,
    ...         worsen=lambda alpha: 0.5 * alpha,
    ...         memory=line.cap,
    ...         limit=60,
    ...     )
    """
    return backtrack_by_slope(line._replace(slope=None), propose, accept, worsen, memory, limit, trials)


class _Trial(NamedTuple):
    alpha: Array
    memory: Array
    point: Any  # a `Point`
    n: Array
    n_gradients: Array
    accepted: Array
    pending: Array  # whether only the slope can decide
    rise: Array  # of the last trial that was higher than the start beyond doubt; 0 if there was none
    promised: Array  # the decrease that alpha * gap had promised there


def backtrack_by_slope(
    line: Line,
    propose: Callable[[Array], Array],
    accept: Callable[[Array, Point, Array], Array],
    worsen: Callable[[Array], Array],
    memory: Array,
    limit: int,
    trials: Array | None = None,
    rise: Array | None = None,
    promised: Array | None = None,
) -> Search:
    """`backtrack`, but near rounding the sign of the slope at a trial decides, not `accept`.

    The difference of two values that are equal up to rounding says nothing (Hager, Zhang 2005; Pokutta 2023). A
    gradient that does not belong to the objective would pass that test for ever; so it has to explain the rise that an
    earlier, longer trial of the same search has seen.

    A line without a slope is searched by its values alone. Of the last trial before the call that rose, `rise` says by
    how much, `promised` the decrease that ``alpha gap`` had promised.
    """
    slope, value = line.slope, line.value
    xp = namespace_of(value)
    zero, one, tiny = xp.zeros_like(value), xp.ones_like(value), rounding(xp, value)

    def trial(memory: Array, n: Array, n_gradients: Array, rise: Array, promised: Array) -> _Trial:
        alpha = propose(memory)
        alpha = alpha if n is one else xp.where(n > limit, 0 * alpha, alpha)  # one trial is allowed
        point = line.phi(alpha)
        accepted = accept(alpha, point, memory) & xp.isfinite(point.value)
        if slope is None:
            return _Trial(alpha, memory, point, n, n_gradients, accepted, n < 0, rise, promised)
        change, promise = point.value - value, alpha * line.gap
        pending = (xp.abs(change) <= tiny) & (promise > 0)
        worse = xp.isfinite(change) & (change > tiny)
        rise, promised = xp.where(worse, change, rise), xp.where(worse, promise, promised)
        return _Trial(alpha, memory, point, n, n_gradients, accepted, pending, rise, promised)

    def again(t: _Trial) -> _Trial:
        return trial(worsen(t.memory), t.n + 1, t.n_gradients, t.rise, t.promised)

    def ask(t: _Trial, slope: Callable[[Point], Array]) -> _Trial:
        # the parabola with the slopes -promise at 0 and `end` at 1 has to pass above half of the earlier trial's rise
        promise, end = t.alpha * line.gap, xp.sum(t.alpha * slope(t.point))
        far = t.promised / promise
        explained = far * (0.5 * far * (end + promise) - promise) >= 0.5 * t.rise
        accepted = (end <= 0) & ((t.rise == 0) | explained)
        return t._replace(accepted=accepted, pending=t.pending & ~t.pending, n_gradients=t.n_gradients + 1)

    def more(t: _Trial) -> _Trial:
        if slope is None:
            return again(t)
        t = line.backend.when(t.pending, partial(ask, slope=slope), t)
        return line.backend.when(~t.accepted & (t.n <= limit), again, t)

    n = one if trials is None else trials + 1
    first = trial(memory, n, zero, zero if rise is None else rise, zero if promised is None else promised)
    last = line.backend.while_loop(lambda t: t.pending | ((t.n <= limit) & ~t.accepted), more, first)
    kept = memory if last.memory is memory else xp.where(last.n > limit, memory, last.memory)
    return Search(last.alpha, last.point, kept, last.n, last.n_gradients)
