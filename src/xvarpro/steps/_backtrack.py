"""The one loop that every backtracking rule shares."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from array_api_compat import array_namespace

from xvarpro.protocols import Array, Search


def backtrack(
    backend: Any,
    phi: Callable[[Array], Any],
    propose: Callable[[Array], Array],
    accept: Callable[[Array, Any, Array], Array],
    worsen: Callable[[Array], Array],
    memory: Array,
    limit: int,
) -> Search:
    """Try ``alpha = propose(memory)``, ``memory = worsen(memory)`` until ``accept(alpha, point, memory)``.

    After `limit` failures the step is 0: the point is then the one that the search started from, so that a failed
    search hands back a consistent state without keeping a second copy of it. Acceptance tests must let NaN fail.
    The memory handed back is the one whose proposal was accepted.
    """
    xp = array_namespace(memory)
    one = xp.ones_like(memory)

    def trial(memory: Array, n: Array) -> tuple[Array, Array, Any, Array]:
        alpha = xp.where(n > limit, 0 * one, propose(memory))
        return alpha, memory, phi(alpha), n

    def rejected(state: tuple[Array, Array, Any, Array]) -> Array:
        alpha, memory, point, n = state
        return (n <= limit) & ~accept(alpha, point, memory)

    def again(state: tuple[Array, Array, Any, Array]) -> tuple[Array, Array, Any, Array]:
        return trial(worsen(state[1]), state[3] + 1)

    alpha, memory, point, n = backend.while_loop(rejected, again, trial(memory, one))
    return Search(alpha, point, memory, n)
