"""array-api-strict, which has a device whose arrays refuse to meet those of the host."""

from __future__ import annotations

from functools import partial

import array_api_strict as xp
import numpy as np

from xvarpro.core.struct import Array
from xvarpro_conformance.frameworks import Fixture, Hooks


class StrictHooks(Hooks):
    """Of array-api-strict."""

    suite_devices = ("cpu", "device1")

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
