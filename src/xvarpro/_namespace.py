"""The array-API namespace of arrays, by `array_api_compat`, and what else small problems often ask, by type."""

from __future__ import annotations

from typing import Any

import array_api_compat
from array_api_compat import device

__all__ = ["adjoint", "array_namespace", "device", "is_array", "is_complex", "is_inexact"]

_known: dict[type, Any] = {}
_arrays: dict[type, bool] = {}
_complex: dict[tuple[type, Any], bool] = {}


def array_namespace(*arrays: Any) -> Any:
    """The namespace that all of the arrays belong to; `TypeError` where there is none.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> xv.array_namespace(np.ones(2)).__name__
    'array_api_compat.numpy'
    """
    kinds = {type(x) for x in arrays}
    if len(kinds) != 1:
        return array_api_compat.array_namespace(*arrays)
    (kind,) = kinds
    if kind in _known:
        return _known[kind]
    found = array_api_compat.array_namespace(*arrays)
    # a framework's own type, not one such as a traced array, of which each may belong to a namespace of its own
    if kind.__module__.partition(".")[0] == getattr(found, "__name__", "").rpartition(".")[2]:
        _known[kind] = found
    return found


def is_complex(x: Any) -> bool:
    """Whether the dtype of `x` is complex."""
    key = type(x.dtype), x.dtype  # dtypes of two frameworks are not to be compared
    found = _complex.get(key)
    if found is None:
        found = _complex[key] = array_namespace(x).isdtype(x.dtype, "complex floating")
    return found


def is_inexact(x: Any) -> bool:
    """Whether the dtype of an array is real or complex floating."""
    return array_namespace(x).isdtype(x.dtype, ("real floating", "complex floating"))


def is_array(x: Any) -> bool:
    """Whether `x` is an array of a framework that follows the standard."""
    kind = type(x)
    found = _arrays.get(kind)
    if found is None:
        found = _arrays[kind] = array_api_compat.is_array_api_obj(x)
    return found


def adjoint(A: Any) -> Any:
    """``A^H``: transpose and conjugate of the last two axes."""
    return array_namespace(A).conj(A.mT) if is_complex(A) else A.mT
