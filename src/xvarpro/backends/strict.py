"""array-api-strict: the array API standard and nothing else. A backend for tests: it finds what is not portable."""

from __future__ import annotations

from functools import partial
from typing import Any

import array_api_strict as xp
import numpy as np

from xvarpro.backends.hosted import HostedBackend
from xvarpro.backends.testing import Fixture, SuiteHooks
from xvarpro.core.namespace import find_dtype
from xvarpro.core.struct import Array


class StrictBackend(SuiteHooks, HostedBackend):
    """array-api-strict on the host, and on a device whose arrays refuse to meet those of the host."""

    name = "array-api-strict"
    roots = ("array_api_strict",)
    xp = xp
    suite_devices = ("cpu", "device1")

    def asarray(self, x: Any, *, dtype: str | None = None, device: Any = None) -> Array:
        kind = None if dtype is None else find_dtype(xp, dtype)
        return xp.asarray(x, dtype=kind, device=device)

    def to_numpy(self, x: Array) -> np.ndarray:
        return np.from_dlpack(x)  # type: ignore[arg-type]

    def array_fixtures(self) -> dict[str, Fixture]:
        x = np.arange(6.0).reshape(2, 3) / 3  # digits that no shorter format holds

        def cast(dtype: str) -> tuple[Array, np.ndarray]:
            return xp.asarray(x.astype(dtype)), x.astype(dtype)

        return {
            "plain": lambda: (xp.asarray(x), x),
            "every other entry": lambda: (xp.asarray(np.repeat(x, 2, axis=1))[:, ::2], x),
            "0-d": lambda: (xp.asarray(1.5), np.array(1.5)),
            "empty": lambda: (xp.zeros((0, 3)), np.zeros((0, 3))),
            **{name: partial(cast, name) for name in ("float32", "complex128", "int64", "bool")},
        }

    def devices(self) -> dict[str, Any]:
        return {"cpu": xp.Device("CPU_DEVICE"), "device1": xp.Device("device1")}

    def deterministic(self) -> StrictBackend:
        return self

    def describe(self) -> dict[str, Any]:
        return {"array-api-strict": xp.__version__, "numpy": np.__version__, "derivatives": "tape"}
