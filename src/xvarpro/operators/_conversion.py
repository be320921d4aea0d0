"""What operators made of operators share: arrays as operators, one number of columns, one dense form."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from xvarpro.core.namespace import namespace_of
from xvarpro.core.struct import Array
from xvarpro.core.trees import is_array, is_complex
from xvarpro.errors import ProblemError
from xvarpro.operators.interface import Operator, as_operator


def parts_of(name: str, given: Any) -> tuple[Operator, ...]:
    """A sequence of arrays and operators as operators.

    Raises
    ------
    ProblemError
        Something in it is neither.
    """
    if is_array(given) or not isinstance(given, Iterable):
        raise ProblemError(f"{name} needs a sequence of arrays or operators, got {type(given).__name__}")
    parts = tuple(given)
    for i, part in enumerate(parts):
        if not (isinstance(part, Operator) or (is_array(part) and part.ndim in (2, 3))):
            found = f"an array of shape {tuple(part.shape)}" if is_array(part) else type(part).__name__
            raise ProblemError(f"{name}: part {i} must be a matrix or an operator, got {found}")
    operators = tuple(as_operator(part) for part in parts)
    common_columns(name, operators)
    return operators


def common_columns(name: str, parts: Sequence[Operator]) -> int | None:
    """How many right-hand sides the parts are made for, None where every one takes any number."""
    found = {part.columns for part in parts} - {None}
    if len(found) > 1:
        raise ProblemError(
            f"{name}: its parts are made for {sorted(map(str, found))} right-hand sides; they need one number"
        )
    return found.pop() if found else None


def dense_forms(parts: Sequence[Operator]) -> list[Array]:
    """The parts as arrays of one dtype and one number of axes: one matrix, or one for each right-hand side."""
    arrays = [part.dense() for part in parts]
    xp = namespace_of(arrays[0])
    k = max((x.shape[0] for x in arrays if x.ndim == 3), default=None)
    if k is not None:
        arrays = [x if x.ndim == 3 else xp.broadcast_to(x, (k, *x.shape)) for x in arrays]
    kind = next((x.dtype for x in arrays if is_complex(x)), arrays[0].dtype)
    return [x if x.dtype == kind else xp.astype(x, kind) for x in arrays]
