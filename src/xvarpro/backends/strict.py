"""array-api-strict: the array API standard and nothing else. A backend for tests: it finds what is not portable."""

from __future__ import annotations

from typing import Any

import array_api_strict as xp
import numpy as np

from xvarpro.backends.hosted import HostedBackend
from xvarpro.core.namespace import find_dtype
from xvarpro.core.struct import Array


class StrictBackend(HostedBackend):
    """array-api-strict on the host, and on a device whose arrays refuse to meet those of the host."""

    name = "array-api-strict"
    roots = ("array_api_strict",)
    xp = xp

    def asarray(self, x: Any, *, dtype: str | None = None, device: Any = None) -> Array:
        kind = None if dtype is None else find_dtype(xp, dtype)
        return xp.asarray(x, dtype=kind, device=device)

    def to_numpy(self, x: Array) -> np.ndarray:
        return np.from_dlpack(x)  # type: ignore[arg-type]

    def devices(self) -> dict[str, Any]:
        return {"cpu": xp.Device("CPU_DEVICE"), "device1": xp.Device("device1")}

    def deterministic(self) -> StrictBackend:
        return self
