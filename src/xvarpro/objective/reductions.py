"""Rows and right-hand sides that lie in several processes: what each of them finds is put together here.

All processes run the same program on the same theta, each with rows or columns of its own. What they exchange is small:
triangles, sums and one gradient, whose sizes do not depend on how many rows there are. A reduction gives every process
the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from xvarpro.backends import Backend
from xvarpro.backends.group import Group
from xvarpro.backends.interface import linalg_errors
from xvarpro.core.trees import partition, plus, scaled
from xvarpro.lower.interface import Accumulation

Merge: TypeAlias = Callable[[Backend, Accumulation, Any, Any], Any]  # the state of two parts from those of each


def added(backend: Backend, accumulation: Accumulation, a: Any, b: Any) -> Any:
    """The `Merge` of states that are sums."""
    (x, skeleton), (y, _) = partition(a), partition(b)
    return skeleton.fill(plus(x, y))


def across(group: Group, walk: Callable[[Any], tuple[Any, int, int]], merge: Any, state: Any) -> tuple[Any, int, int]:
    """What ``walk(state)`` finds in the rows of all processes: state, number of rows, and of chunks where most are.

    Sums are reduced as such. Other states are gathered and merged by a fixed tree, in every process: triangles in that
    of a tall-skinny QR (Demmel, Grigori, Hoemmen, Langou 2012).

    Raises
    ------
    GroupError
        One of them failed; in all of them, with its message.
    """
    arrays, skeleton = partition(state)
    begun = state if group.rank == 0 else skeleton.fill(scaled(0.0, arrays))  # what it begins with counts once
    with group.together(linalg_errors()):
        found, rows, chunks = walk(begun)
    arrays, skeleton = partition(found)
    if merge.func is added:
        found = skeleton.fill(group.total(arrays))
    else:
        found = tree(merge, [skeleton.fill(part) for part in group.gather(arrays)])
    counts = group.numbers([rows, chunks])
    return found, int(counts[:, 0].sum()), int(counts[:, 1].max())


def tree(merge: Callable[[Any, Any], Any], parts: list[Any]) -> Any:
    """Parts merged in pairs of neighbours, and so on: the order does not depend on who is fast."""
    while len(parts) > 1:
        pairs = [merge(*parts[i : i + 2]) for i in range(0, len(parts) - 1, 2)]
        parts = pairs + parts[len(parts) - len(parts) % 2 :]
    return parts[0]
