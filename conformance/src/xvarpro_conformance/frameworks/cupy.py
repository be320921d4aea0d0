"""CuPy."""

from __future__ import annotations

import cupy as cp
from cupyx import geterr

from xvarpro_conformance.frameworks import NUMBERS, Fixture, Hooks, usual


class CuPyHooks(Hooks):
    """Of CuPy."""

    def array_fixtures(self) -> dict[str, Fixture]:
        x = NUMBERS
        return {
            **usual(cp.asarray, ("float32", "float16", "complex64", "int64", "int32", "bool")),
            "negative strides": lambda: (cp.asarray(x[::-1, ::-1])[::-1, ::-1], x),
            "column order": lambda: (cp.asfortranarray(cp.asarray(x)), x),
            "zero strides": lambda: (cp.broadcast_to(cp.asarray(x[1]), (2, 3)), x[[1, 1]]),
        }

    def settings(self) -> dict[str, object]:
        return {"device": cp.cuda.runtime.getDevice(), "linalg errors": geterr()["linalg"]}
