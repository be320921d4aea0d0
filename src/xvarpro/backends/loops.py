"""A loop around a trial, which stands in a compiled program once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from xvarpro.backends.interface import Backend
from xvarpro.core.struct import Array
from xvarpro.core.trees import map_leaves

T = TypeVar("T")


def retry(
    backend: Backend,
    trial: Callable[[Any], T],
    rejected: Callable[[T], Array],
    following: Callable[[T], Any],
    first: Any,
) -> T:
    """``last = trial(first)``, then ``last = trial(following(last))`` while ``rejected(last)``.

    A trial may evaluate the objective, and a compiled program takes the longer to compile, the more often it does so in
    different places. A compiled loop calls `following` of the last trial too.
    """
    if not backend.compiled:
        return backend.while_loop(rejected, lambda last: trial(following(last)), trial(first))
    blank = map_leaves(lambda x: backend.xp.zeros(x.shape, dtype=x.dtype), backend.eval_shape(trial, first))

    def body(state: tuple[Any, T, Array]) -> tuple[Any, T, Array]:
        last = trial(state[0])
        return following(last), last, rejected(last)

    more = backend.xp.ones((), dtype=backend.xp.bool)
    return backend.while_loop(lambda state: state[2], body, (first, blank, more))[1]
