"""The array-API namespace of arrays, by `array_api_compat`, remembered by type: small problems ask often."""

from __future__ import annotations

from typing import Any

import array_api_compat
from array_api_compat import device

__all__ = ["array_namespace", "device"]

_known: dict[type, Any] = {}


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
