"""A loop over columns that end at different times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from xvarpro.backends.interface import Backend, State
from xvarpro.core.namespace import device
from xvarpro.core.struct import Array
from xvarpro.core.trees import map_leaves


def column_loop(
    backend: Backend,
    running: Callable[[State], Array],
    advance: Callable[[State, Any], State],
    state: State,
    given: Any,
) -> State:
    """``state = advance(state, given)`` for each column, as long as ``running(state)``, (k,) of bool, holds for it.

    Parameters
    ----------
    backend : Backend
        Where the columns are.
    running : callable
        Which columns have not ended.
    advance : callable
        A step of all columns at hand. It leaves those that have ended as they are, but for entries that nothing reads.
    state, given : nested tuples of arrays
        The last axis of each array holds the k columns.
    """
    xp = backend.xp
    if backend.compiled:
        return backend.while_loop(lambda state: xp.any(running(state)), lambda state: advance(state, given), state)
    # once fewer than half of the columns at hand run, the others are set aside: the rest is then cheaper to advance
    ended: list[Any] = []
    places: Any = None  # of the columns at hand among all
    while True:
        on = running(state)
        (left,) = xp.nonzero(on)
        if left.shape[0] == 0:
            break
        if 2 * left.shape[0] < on.shape[0]:
            places = xp.arange(on.shape[0], dtype=left.dtype, device=device(left)) if places is None else places
            (out,) = xp.nonzero(~on)
            ended.append(_take(xp, (state, places), out))
            state, places, given = _take(xp, (state, places, given), left)
        state = advance(state, given)
    if not ended:
        return state
    parts = [*ended, (state, places)]
    whole, places = map_leaves(lambda *x: xp.concat(x, axis=-1), *parts)
    return _take(xp, whole, xp.argsort(places))


def _take(xp: Any, tree: Any, index: Array) -> Any:
    return map_leaves(lambda x: xp.take(x, index, axis=-1), tree)
