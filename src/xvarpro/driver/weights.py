"""The eliminated variable for the target as it was given, block by block."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from xvarpro.core import trees
from xvarpro.core.struct import Array, Leaves
from xvarpro.driver.prepare import Prepared
from xvarpro.objective.interface import Objective
from xvarpro.problem.column_chunks import Chunks, columns


def weights(prepared: Prepared, theta: Leaves) -> Iterator[Array]:
    """``w`` at theta, a block of columns at a time, as the caller's arrays.

    A compressed target stands for one that may not fit in memory: the caller's own is walked through again.
    """
    y = prepared.original.lower.y
    for block in _blocks(prepared, y):
        w = prepared.call(_solve, theta, block)
        yield prepared.home.array(w[:, 0] if prepared.vector else w, prepared.backend)


def _blocks(prepared: Prepared, y: Any) -> Iterator[tuple[Array, ...]]:
    """Blocks of the caller's target, on the backend; empty where the level knows its own."""
    level = prepared.problem.lower
    if isinstance(y, Chunks):
        yield from ((prepared.target(block),) for block in y)
    elif prepared.compressed:
        yield from ((prepared.target(block),) for block in columns(y, max(y.shape[0], 1024)))
    else:
        yield (level.y,) if trees.is_array(level.y) else ()


def _solve(objective: Objective, theta: Leaves, y: tuple[Array, ...]) -> Array:
    return objective.weights(theta, *y)
