"""``w`` at a theta, for the caller."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from xvarpro.core.struct import Array, Leaves
from xvarpro.driver.prepare import Prepared
from xvarpro.errors import ProblemError
from xvarpro.objective.interface import Objective
from xvarpro.problem.column_chunks import ColumnChunks, Passes, columns
from xvarpro.results.outcome import joined
from xvarpro.results.recipe import changed


def weights(prepared: Prepared, theta: Leaves) -> Array:
    """``w`` at theta, for the target as given, as the caller's array."""
    if prepared.compressed:
        return joined(coefficients(prepared, theta))
    return prepared.w_to_caller(prepared.call(_solve_lower, theta, once=True))


def coefficients(prepared: Prepared, theta: Leaves) -> Iterator[Array]:
    """``w`` at theta for a target that was compressed, as the caller's arrays, a block of columns (n, k_i) at a time.

    The target may not fit in memory, so that this is another pass over the caller's.
    """
    y: Any = prepared.original.lower.y
    if found := changed(prepared.original, prepared.fingerprints):
        raise ProblemError(
            f"w of many right-hand sides is solved for from the problem's own arrays; got another {', '.join(found)} "
            "than that of the solve. Take .w before you write to them, or pass copies to the problem"
        )
    moved: Any = prepared.problem.lower.y
    before = moved.source.columns if prepared.problem.lower.chunks_in_set else prepared.columns
    passes = Passes(y, prepared.structure.rows[0], before) if isinstance(y, ColumnChunks) else None
    for block in passes() if passes else columns(y, max(y.shape[0], 1024)):
        yield prepared.w_to_caller(prepared.call(_solve_lower, theta, prepared.target(block), once=True))


def _solve_lower(objective: Objective, theta: Leaves, *y: Array) -> Array:
    return objective.solve_lower(theta, *y)
