"""NumPy."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy import ndarray

from xvarpro_conformance.frameworks import NUMBERS, Fixture, Hooks, usual


class NumPyHooks(Hooks):
    """Of NumPy."""

    def array_fixtures(self) -> dict[str, Fixture]:
        x = NUMBERS

        def frozen() -> ndarray:
            y = x.copy()
            y.flags.writeable = False
            return y

        def unaligned() -> ndarray:
            return np.frombuffer(bytearray(b"?" + x.tobytes()), offset=1).reshape(2, 3)

        longest = ("longdouble",) if np.dtype(np.longdouble).itemsize > 8 else ()
        casts = ("float32", "float16", *longest, "complex64", "complex128", "int64", "int32", "uint8", "bool")
        return {
            **usual(np.asarray, casts),
            "read-only": lambda: (frozen(), x),
            "negative strides": lambda: (x[::-1, ::-1].copy()[::-1, ::-1], x),
            "rows backwards": lambda: (x[::-1].copy()[::-1], x),
            "column order": lambda: (np.asfortranarray(x), x),
            "zero strides": lambda: (np.broadcast_to(x[1], (2, 3)), x[[1, 1]]),
            "big-endian": lambda: (x.astype(">f8"), x),
            "big-endian float32": lambda: (x.astype(">f4"), x.astype("float32")),
            "unaligned": lambda: (unaligned(), x),
            "masked": lambda: (np.ma.masked_array(x.copy()), x),
            "scalar": lambda: (np.float64(1.5), np.array(1.5)),
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
