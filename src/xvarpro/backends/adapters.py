"""What authors of backends, and of parts that run on all of them, need: no program that only fits takes these names."""

from xvarpro.backends.columns import column_loop
from xvarpro.backends.eager import EagerBackend, TapedBackend
from xvarpro.backends.group import Group
from xvarpro.backends.hosted import HostedBackend
from xvarpro.backends.interface import linalg_errors
from xvarpro.backends.registry import (
    ENTRY_POINT_GROUP,
    is_deterministic,
    owner,
    placed,
    prove,
    sparse_product,
    uncompiled,
    vmap,
)
from xvarpro.core.namespace import find_dtype

__all__ = [
    "ENTRY_POINT_GROUP",
    "EagerBackend",
    "Group",
    "HostedBackend",
    "TapedBackend",
    "column_loop",
    "find_dtype",
    "is_deterministic",
    "linalg_errors",
    "owner",
    "placed",
    "prove",
    "sparse_product",
    "uncompiled",
    "vmap",
]
