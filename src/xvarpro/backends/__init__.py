"""Array frameworks: the registry of backends, and the classes that new ones derive from."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from xvarpro.backends.interface import Backend
from xvarpro.backends.registry import (
    ENTRY_POINT_GROUP,
    get,
    installed,
    known,
    of,
    owner,
    prove,
    sparse_product,
    to_numpy,
)

if TYPE_CHECKING:
    from xvarpro.backends.eager import EagerBackend
    from xvarpro.backends.hosted import HostedBackend
    from xvarpro.backends.taped import TapedBackend

__all__ = [
    "ENTRY_POINT_GROUP",
    "Backend",
    "EagerBackend",
    "HostedBackend",
    "TapedBackend",
    "get",
    "installed",
    "known",
    "of",
    "owner",
    "prove",
    "sparse_product",
    "to_numpy",
]

_BASES = {
    "EagerBackend": "xvarpro.backends.eager",
    "HostedBackend": "xvarpro.backends.hosted",
    "TapedBackend": "xvarpro.backends.taped",
}


def __getattr__(name: str) -> Any:
    """The classes that backends derive from: they need the registry, and most programs never ask for them."""
    if name not in _BASES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_BASES[name]), name)
