"""CuPy."""

from __future__ import annotations

from functools import partial

import cupy as cp
import numpy as np
from cupy import ndarray
from cupyx import geterr

from xvarpro_conformance.frameworks import Fixture, Hooks


class CuPyHooks(Hooks):
    """Of CuPy."""

    def array_fixtures(self) -> dict[str, Fixture]:
        x = np.arange(6.0).reshape(2, 3) / 3  # digits that no shorter format holds

        def cast(dtype: str) -> tuple[ndarray, np.ndarray]:
            return cp.asarray(x, dtype=dtype), x.astype(dtype)

        return {
            "plain": lambda: (cp.asarray(x), x),
            "negative strides": lambda: (cp.asarray(x[::-1, ::-1])[::-1, ::-1], x),
            "every other entry": lambda: (cp.asarray(np.repeat(x, 2, axis=1))[:, ::2], x),
            "column order": lambda: (cp.asfortranarray(cp.asarray(x)), x),
            "zero strides": lambda: (cp.broadcast_to(cp.asarray(x[1]), (2, 3)), x[[1, 1]]),
            "0-d": lambda: (cp.asarray(1.5), np.array(1.5)),
            "empty": lambda: (cp.zeros((0, 3)), np.zeros((0, 3))),
            **{name: partial(cast, name) for name in ("float32", "float16", "complex64", "int64", "int32", "bool")},
        }

    def settings(self) -> dict[str, object]:
        return {"device": cp.cuda.runtime.getDevice(), "linalg errors": geterr()["linalg"]}
