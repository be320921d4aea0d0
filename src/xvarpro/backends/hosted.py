"""A base of backends for frameworks that compute on the CPU: NumPy does what the framework lacks."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from xvarpro.backends.eager import TapedBackend
from xvarpro.backends.registry import get
from xvarpro.core.namespace import device, dtype_name
from xvarpro.core.struct import Array


class HostedBackend(TapedBackend):
    """Factorisations and scattered sums by NumPy, on copies; one device, the host.

    A subclass defines `name`, `roots`, `xp`, `asarray` and `to_numpy`. It may replace every other method by what the
    framework does itself.
    """

    def to_floats(self, scalars: Sequence[Array]) -> list[float]:
        return [float(self.to_numpy(x)) for x in scalars]

    def devices(self) -> dict[str, Any]:
        return {"cpu": "cpu"}

    def index_add(self, x: Array, key: Any, v: Array) -> Array:
        out = np.array(self.to_numpy(x))
        np.add.at(out, self.to_numpy(key), self.to_numpy(v))
        return self._from_numpy(out, x)

    def householder_qr(self, A: Array, mode: str = "reduced") -> tuple[Array, Array]:
        return self._by_numpy("householder_qr", A, mode=mode)

    def svd(self, A: Array) -> tuple[Array, Array, Array]:
        return self._by_numpy("svd", A)

    def cholesky(self, A: Array) -> Array:
        return self._by_numpy("cholesky", A)

    def solve_triangular(self, R: Array, B: Array, *, lower: bool = False, transpose: bool = False) -> Array:
        return self._by_numpy("solve_triangular", R, B, lower=lower, transpose=transpose)

    def special(self, x: Array, name: str, n: int) -> Array:
        """Derivative n of a function of `xv.special`, by SciPy."""
        return self._by_numpy("special", x, name=name, n=n)

    def _by_numpy(self, method: str, *arrays: Array, **options: Any) -> Any:
        out = getattr(get("numpy"), method)(*(self.to_numpy(x) for x in arrays), **options)
        like = arrays[0]
        return tuple(self._from_numpy(x, like) for x in out) if isinstance(out, tuple) else self._from_numpy(out, like)

    def _from_numpy(self, x: np.ndarray, like: Array) -> Array:
        # not every framework reads strides that run backwards
        return self.asarray(np.array(x, order="C"), dtype=dtype_name(x), device=device(like))

    @contextmanager
    def scope(self, dtype: str) -> Iterator[None]:
        with get("numpy").scope(dtype):
            yield

    def describe(self) -> dict[str, Any]:
        version = getattr(importlib.import_module(self.roots[0]), "__version__", "unknown")
        return {self.name: version, **get("numpy").describe()}
