"""Problems whose data lie in several processes or on several machines, on engines that exist."""

from __future__ import annotations

import importlib
from typing import Any

from xvarpro.backends.group import Group

__all__ = ["Group", "TorchGroup", "dask_rows", "dask_solve_many"]

_ENGINES = {
    "TorchGroup": "xvarpro.backends.torch_group",
    "dask_rows": "xvarpro.distributed.dask",
    "dask_solve_many": "xvarpro.distributed.many",
}


def __getattr__(name: str) -> Any:
    """Engines, imported on first use: each needs a framework."""
    if name not in _ENGINES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_ENGINES[name]), name)
