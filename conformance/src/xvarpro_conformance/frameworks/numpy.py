"""NumPy."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy import ndarray

from xvarpro_conformance.frameworks import Fixture, Hooks


class NumPyHooks(Hooks):
    """Of NumPy."""

    def array_fixtures(self) -> dict[str, Fixture]:
        x = np.arange(6.0).reshape(2, 3) / 3  # digits that no shorter format holds

        def frozen() -> ndarray:
            y = x.copy()
            y.flags.writeable = False
            return y

        def unaligned() -> ndarray:
            return np.frombuffer(bytearray(b"?" + x.tobytes()), offset=1).reshape(2, 3)

        def cast(dtype: str) -> tuple[ndarray, ndarray]:
            return x.astype(dtype), x.astype(dtype)

        longest = ("longdouble",) if np.dtype(np.longdouble).itemsize > 8 else ()
        casts = ("float32", "float16", *longest, "complex64", "complex128", "int64", "int32", "uint8", "bool")
        return {
            "plain": lambda: (x.copy(), x),
            "read-only": lambda: (frozen(), x),
            "negative strides": lambda: (x[::-1, ::-1].copy()[::-1, ::-1], x),
            "rows backwards": lambda: (x[::-1].copy()[::-1], x),
            "every other entry": lambda: (np.repeat(x, 2, axis=1)[:, ::2], x),
            "column order": lambda: (np.asfortranarray(x), x),
            "zero strides": lambda: (np.broadcast_to(x[1], (2, 3)), x[[1, 1]]),
            "big-endian": lambda: (x.astype(">f8"), x),
            "big-endian float32": lambda: (x.astype(">f4"), x.astype("float32")),
            "unaligned": lambda: (unaligned(), x),
            "masked": lambda: (np.ma.masked_array(x.copy()), x),
            "0-d": lambda: (np.array(1.5), np.array(1.5)),
            "scalar": lambda: (np.float64(1.5), np.array(1.5)),
            "empty": lambda: (np.zeros((0, 3)), np.zeros((0, 3))),
            **{name: partial(cast, name) for name in casts},
        }

    def settings(self) -> dict[str, object]:
        state: Any = np.random.get_state()  # noqa: NPY002 - the caller's, which is only read
        return {
            "errstate": np.geterr(),
            "random": hash((state[1].tobytes(), *state[2:])),
            "print options": np.get_printoptions(),
        }

    def modes(self) -> dict[str, Any]:
        return {"errors": partial(np.errstate, all="raise")}
