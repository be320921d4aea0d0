"""A choice between two trees, which follows from how a backend runs."""

from __future__ import annotations

import math
from typing import Any

from xvarpro.backends.interface import Backend
from xvarpro.core.struct import Array
from xvarpro.core.trees import map_leaves


def select(backend: Backend, condition: Array, a: Any, b: Any) -> Any:
    """``a`` where `condition` holds, else ``b``, in every array of two nested tuples of one structure.

    `condition` is 0-d, or has the leading axes of the arrays: one entry per problem of a batch.
    """
    xp = backend.xp
    if not backend.compiled and math.prod(condition.shape) == 1:
        return a if bool(xp.all(condition)) else b

    def where(x: Array, y: Array) -> Array:
        ones = (1,) * (x.ndim - condition.ndim) if condition.ndim else ()
        return xp.where(xp.reshape(condition, (*condition.shape, *ones)) if ones else condition, x, y)

    return map_leaves(where, a, b)
