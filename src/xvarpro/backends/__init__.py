"""Array frameworks: the registry of backends, and the classes that new ones derive from."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from xvarpro.backends.columns import column_loop
from xvarpro.backends.interface import Backend, linalg_errors
from xvarpro.backends.registry import (
    ENTRY_POINT_GROUP,
    get,
    installed,
    is_deterministic,
    known,
    of,
    owner,
    placed,
    prove,
    sparse_product,
    to_numpy,
    uncompiled,
    vmap,
)
from xvarpro.core.namespace import find_dtype

if TYPE_CHECKING:
    from xvarpro.backends.eager import EagerBackend, TapedBackend
    from xvarpro.backends.hosted import HostedBackend

__all__ = [
    "ENTRY_POINT_GROUP",
    "Backend",
    "EagerBackend",
    "HostedBackend",
    "TapedBackend",
    "column_loop",
    "find_dtype",
    "get",
    "installed",
    "is_deterministic",
    "known",
    "linalg_errors",
    "of",
    "owner",
    "placed",
    "prove",
    "sparse_product",
    "to_numpy",
    "uncompiled",
    "vmap",
]

_BASES = {
    "EagerBackend": "xvarpro.backends.eager",
    "HostedBackend": "xvarpro.backends.hosted",
    "TapedBackend": "xvarpro.backends.eager",
}


def __getattr__(name: str) -> Any:
    """Base classes of backends, imported on first use: they need the registry, and few programs use them."""
    if name not in _BASES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_BASES[name]), name)
