"""CuPy: NumPy's interface on CUDA devices, with the package's own tape for derivatives."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, partial
from typing import Any

import array_api_compat.cupy as xp
import cupy as cp
import numpy as np
from cupyx import errstate, geterr, scatter_add
from cupyx.scipy.linalg import solve_triangular

from xvarpro.backends.interface import Array
from xvarpro.backends.taped import TapedBackend
from xvarpro.core.namespace import adjoint

# arrays find their backend by their type: inside the scope of a reproducible one, both have to know
_reproducibly: ContextVar[bool] = ContextVar("reproducibly", default=False)


class CuPyBackend(TapedBackend):
    """CuPy on a CUDA device.

    Parameters
    ----------
    reproducible : bool
        Whether sums over indices that repeat are taken in their order; `deterministic` makes such a backend.
    """

    name = "cupy"
    package = "cupy"
    roots = ("cupy",)
    extra = "cuda12"
    xp = xp

    def __init__(self, reproducible: bool = False) -> None:
        self.reproducible = reproducible

    def asarray(self, x: Any, *, dtype: str | None = None, device: Any = None) -> Array:
        with cp.cuda.Device(self._index(device, x)):
            return cp.asarray(x, dtype=dtype)

    def _index(self, device: Any, x: Any) -> int:
        if device is None:
            return x.device.id if isinstance(x, cp.ndarray) else cp.cuda.runtime.getDevice()
        return self.parse_device(device).id

    def to_numpy(self, x: Array) -> np.ndarray:
        return cp.asnumpy(x)

    def to_floats(self, scalars: Sequence[Array]) -> list[float]:
        # float64 holds every count exactly; one transfer instead of one per scalar
        return cp.stack([cp.asarray(x, dtype="float64") for x in scalars]).tolist()

    def dtype_name(self, x: Array) -> str:
        return x.dtype.name

    def device_of(self, x: Array) -> Any:
        return x.device

    def address(self, x: Array) -> int:
        return x.data.ptr

    def awkward(self) -> dict[str, Callable[[], tuple[Array, np.ndarray]]]:
        x = np.arange(6.0).reshape(2, 3) / 3  # digits that no shorter format holds

        def cast(dtype: str) -> tuple[Array, np.ndarray]:
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

    def state(self) -> dict[str, Any]:
        return {"device": cp.cuda.runtime.getDevice(), "linalg errors": geterr()["linalg"]}

    def parse_device(self, device: Any) -> Any:
        if isinstance(device, str):
            kind, _, index = device.partition(":")
            if kind not in ("cuda", "gpu"):
                raise ValueError(f"the cupy backend computes on CUDA devices: got device={device!r}, want 'cuda:0'")
            return cp.cuda.Device(int(index or 0))
        return device

    def devices(self) -> list[str]:
        return [f"cuda:{i}" for i in range(cp.cuda.runtime.getDeviceCount())]

    def index_add(self, x: Array, key: Any, v: Array) -> Array:
        if _reproducibly.get():  # the device adds in the order in which threads end, the host in that of the indices
            host = cp.asnumpy(x)
            np.add.at(host, cp.asnumpy(key), cp.asnumpy(v))
            return self.asarray(host, device=x.device)
        out = x.copy()
        scatter_add(out, key, v)
        return out

    def householder_qr(self, A: Array) -> tuple[Array, Array]:
        return cp.linalg.qr(A)

    def qr_r(self, A: Array) -> Array:
        return cp.linalg.qr(A, mode="r")

    def svd(self, A: Array) -> tuple[Array, Array, Array]:
        return cp.linalg.svd(A, full_matrices=False)

    def cholesky(self, A: Array) -> Array:
        # cuSOLVER leaves the untouched part of an indefinite matrix behind: a pivot that is not positive says so
        L = cp.linalg.cholesky(A)
        good = cp.all(cp.diagonal(L, axis1=-2, axis2=-1) > 0, axis=-1)
        return cp.where(good[..., None, None], L, cp.nan).astype(A.dtype, copy=False)

    def solve_triangular(self, R: Array, B: Array, *, lower: bool = False, transpose: bool = False) -> Array:
        if R.ndim > 2:  # cuSOLVER's triangular solve takes one matrix; LU of a triangular matrix is itself
            return cp.linalg.solve(adjoint(R) if transpose else R, B)
        return solve_triangular(R, B, lower=lower, trans=2 if transpose else 0, check_finite=False)

    def sparse_product(self, rows: Array, columns: Array, data: Array, shape: tuple[int, int], w: Array) -> Array:
        if _reproducibly.get():  # cuSPARSE adds up in the order in which threads end
            return super().sparse_product(rows, columns, data, shape, w)
        from cupyx.scipy.sparse import coo_matrix  # slow to import, and few ask

        return coo_matrix((data, (rows, columns)), shape=shape).tocsr() @ w

    @contextmanager
    def scope(self, dtype: str) -> Iterator[None]:
        before = _reproducibly.set(self.reproducible or _reproducibly.get())
        try:
            with errstate(linalg="ignore"), np.errstate(all="ignore"):
                yield
        finally:
            _reproducibly.reset(before)

    def deterministic(self) -> CuPyBackend:
        return self if self.reproducible else _reproducible()

    def unpromised(self, device: Any) -> tuple[str, ...]:
        return ("cuBLAS, cuSOLVER and cuFFT are taken as they come: CuPy has no switch for them.",)

    def describe(self) -> dict[str, Any]:
        return {
            "cupy": cp.__version__,
            "cuda runtime": cp.cuda.runtime.runtimeGetVersion(),
            "CUPY_TF32": os.environ.get("CUPY_TF32", "0"),
            "NVIDIA_TF32_OVERRIDE": os.environ.get("NVIDIA_TF32_OVERRIDE", "unset"),
        }


@cache
def _reproducible() -> CuPyBackend:
    return CuPyBackend(reproducible=True)
