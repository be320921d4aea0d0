"""The one loop that every rule with trials shares."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from array_api_compat import array_namespace, device

from xvarpro.protocols import Array, Search


class _Trial(NamedTuple):
    alpha: Array
    memory: Array
    point: Any
    n: Array
    n_gradients: Array
    accepted: Array
    pending: Array  # whether only the slope can tell
    rise: Array  # of the last trial that was higher than the start beyond doubt; 0 if there was none
    promised: Array  # the decrease that alpha * gap had promised there


def backtrack(
    backend: Any,
    phi: Callable[[Array], Any],
    value: Array,
    gap: Array,
    propose: Callable[[Array], Array],
    accept: Callable[[Array, Any, Array], Array],
    worsen: Callable[[Array], Array],
    memory: Array,
    limit: int,
    *,
    slope: Callable[[Any], Array] | None = None,
    done: Array | None = None,
    rise: Array | None = None,
    promised: Array | None = None,
) -> Search:
    """Try ``alpha = propose(memory)``, ``memory = worsen(memory)`` until ``accept(alpha, point, memory)``.

    After `limit` trials the step is 0: the point is then the one that the search started from, so that a failed
    search hands back a consistent state without keeping a second copy of it, and the memory is the one it began with.
    Acceptance tests must let NaN fail. The memory handed back is otherwise the one whose proposal was accepted.

    With `slope`, a trial whose value is the start's up to rounding is judged by the sign of the slope there, not by
    `accept`: the difference of two such values says nothing (Hager, Zhang 2005; Pokutta 2023). A gradient that does not
    belong to the objective would pass that test for ever; so it has to explain the rise that an earlier, longer trial
    of the same search has seen.

    `done`, `rise` and `promised` continue a search: trials made so far, and the last of them that rose.
    """
    xp = array_namespace(value)
    zero, one = xp.zeros_like(value), xp.ones_like(value)

    def trial(memory: Array, n: Array, n_gradients: Array, rise: Array, promised: Array) -> _Trial:
        proposed = propose(memory)
        alpha = xp.where(n > limit, xp.zeros_like(proposed), proposed)
        point = phi(alpha)
        accepted = accept(alpha, point, memory) & xp.isfinite(point.value)
        pending = accepted & ~accepted
        if slope is not None:
            change, promise = point.value - value, xp.sum(alpha * gap)
            pending = (xp.abs(change) <= rounding(value)) & (promise > 0)
            accepted = accepted & ~pending
            worse = xp.isfinite(change) & (change > rounding(value))
            rise, promised = xp.where(worse, change, rise), xp.where(worse, promise, promised)
        return _Trial(alpha, memory, point, n, n_gradients, accepted, pending, rise, promised)

    def again(t: _Trial) -> _Trial:
        return trial(worsen(t.memory), t.n + 1, t.n_gradients, t.rise, t.promised)

    def ask(t: _Trial) -> _Trial:
        # the parabola with the slopes -promise at 0 and `end` at 1 has to pass above half of the earlier trial's rise
        assert slope is not None
        promise, end = xp.sum(t.alpha * gap), xp.sum(t.alpha * slope(t.point))
        far = t.promised / promise
        explained = far * (0.5 * far * (end + promise) - promise) >= 0.5 * t.rise
        accepted = (end <= 0) & ((t.rise == 0) | explained)
        return t._replace(accepted=accepted, pending=t.pending & ~t.pending, n_gradients=t.n_gradients + 1)

    def more(t: _Trial) -> _Trial:
        if slope is None:
            return again(t)
        t = backend.when(t.pending, ask, t)
        return backend.when(~t.accepted & (t.n <= limit), again, t)

    n = one if done is None else done + 1
    first = trial(memory, n, zero, zero if rise is None else rise, zero if promised is None else promised)
    last = backend.while_loop(lambda t: t.pending | ((t.n <= limit) & ~t.accepted), more, first)
    kept = xp.where(last.n > limit, memory, last.memory)
    return Search(last.alpha, last.point, kept, last.n, last.n_gradients)


def bounded(cap: Any, like: Array) -> Array:
    """The largest step allowed, a number or an array, in the framework, dtype and device of `like`."""
    return array_namespace(like).asarray(cap, dtype=like.dtype, device=device(like))


def rounding(value: Array) -> Array:
    """What two computed objectives near `value` may differ by without meaning anything."""
    xp = array_namespace(value)
    return (4 * xp.finfo(value.dtype).eps) * xp.abs(value)
