"""array-api-strict: the array API standard and nothing else. A backend for tests: it finds what is not portable."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import array_api_strict as xp
import numpy as np

from xvarpro.backends.factorisations import each_matrix, nan_if_not_finite
from xvarpro.backends.taped import TapedBackend
from xvarpro.backends.testing import Fixture, SuiteHooks
from xvarpro.core.namespace import adjoint, find_dtype
from xvarpro.core.struct import Array


class StrictBackend(SuiteHooks, TapedBackend):
    """array-api-strict on the host."""

    name = "array-api-strict"
    roots = ("array_api_strict",)
    xp = xp

    def asarray(self, x: Any, *, dtype: str | None = None, device: Any = None) -> Array:
        kind = None if dtype is None else find_dtype(xp, dtype)
        return xp.asarray(x, dtype=kind, device=device)

    def to_numpy(self, x: Array) -> np.ndarray:
        return np.from_dlpack(x)  # type: ignore[arg-type]

    def to_floats(self, scalars: Sequence[Array]) -> list[float]:
        return [float(x) for x in scalars]

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
        return {"cpu": xp.Device("CPU_DEVICE")}

    def deterministic(self) -> StrictBackend:
        return self

    def index_add(self, x: Array, key: Any, v: Array) -> Array:
        out = np.array(self.to_numpy(x))
        parts = key if isinstance(key, tuple) else (key,)
        host = tuple(self.to_numpy(k) if hasattr(k, "dtype") else k for k in parts)
        np.add.at(out, host, self.to_numpy(v))
        return xp.asarray(out)

    def householder_qr(self, A: Array, mode: str = "reduced") -> tuple[Array, Array]:
        Q, R = xp.linalg.qr(A)
        return Q, R

    def svd(self, A: Array) -> tuple[Array, Array, Array]:
        U, s, Vh = each_matrix(lambda A: xp.linalg.svd(A, full_matrices=False), _no_svd, nan_if_not_finite(A))
        return U, s, Vh

    def cholesky(self, A: Array) -> Array:
        return each_matrix(lambda A: (xp.linalg.cholesky(A),), lambda A: (xp.full_like(A, xp.nan),), A)[0]

    def solve_triangular(self, R: Array, B: Array, *, lower: bool = False, transpose: bool = False) -> Array:
        # as in `NumPyBackend`
        R = adjoint(R) if transpose else R
        if lower != transpose:
            return xp.flip(self.solve_triangular(xp.flip(R, axis=(-2, -1)), xp.flip(B, axis=-2)), axis=-2)
        return each_matrix(lambda R, B: (xp.linalg.solve(R, B),), lambda R, B: (xp.full_like(B, xp.nan),), R, B)[0]

    @contextmanager
    def scope(self, dtype: str) -> Iterator[None]:
        with np.errstate(all="ignore"):
            yield

    def describe(self) -> dict[str, Any]:
        return {"array-api-strict": xp.__version__, "numpy": np.__version__, "derivatives": "tape"}


def _no_svd(A: Array) -> tuple[Array, ...]:
    return tuple(xp.full_like(f, xp.nan) for f in xp.linalg.svd(xp.zeros_like(A), full_matrices=False))
