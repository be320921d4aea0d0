"""CuPy: NumPy's interface on CUDA devices, with the package's own tape for derivatives."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

import array_api_compat.cupy as xp
import cupy as cp
import numpy as np
from cupy import ndarray
from cupyx import errstate
from cupyx.scipy.linalg import solve_triangular

from xvarpro.backends import checksums
from xvarpro.backends.eager import TapedBackend
from xvarpro.backends.special import derivative

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
    roots = ("cupy",)
    xp = xp

    def __init__(self, reproducible: bool = False) -> None:
        self.reproducible = reproducible

    def asarray(self, x: Any, *, dtype: str | None = None, device: Any = None) -> ndarray:
        if device is None:
            device = x.device if isinstance(x, ndarray) else cp.cuda.Device()
        with device:
            return cp.asarray(x, dtype=dtype)

    def to_numpy(self, x: ndarray) -> np.ndarray:
        return cp.asnumpy(x)

    def checksum(self, x: ndarray) -> Any:
        with x.device:
            flat = (x.T if x.flags.f_contiguous else x).ravel()
            return checksums.of_integers(flat.view(f"i{checksums.width(x.dtype.itemsize, x.dtype.kind == 'c')}"))

    def lent(self, x: ndarray) -> ndarray:
        if x.flags.forc and min(x.strides, default=0) >= 0:  # an axis of one entry may run backwards
            return x
        with x.device:
            return x.copy(order="C")

    def to_floats(self, scalars: Sequence[ndarray]) -> list[float]:
        if not scalars:
            return []
        # float64 holds every count exactly; one transfer instead of one per scalar
        return cp.stack([cp.asarray(x, dtype="float64") for x in scalars]).tolist()

    def devices(self) -> dict[str, Any]:
        return {f"cuda:{i}": cp.cuda.Device(i) for i in range(cp.cuda.runtime.getDeviceCount())}

    def index_add(self, x: ndarray, key: Any, v: ndarray) -> ndarray:
        if _reproducibly.get():  # the device adds in the order in which threads end, the host in that of the indices
            host = cp.asnumpy(x)
            np.add.at(host, cp.asnumpy(key), cp.asnumpy(v))
            return self.asarray(host, device=x.device)
        out = x.copy()
        if out.dtype.kind == "c":  # there is no atomic addition of complex numbers
            out.real, out.imag = self.index_add(x.real, key, v.real), self.index_add(x.imag, key, v.imag)
        else:
            cp.add.at(out, key, v)
        return out

    def householder_qr(self, A: ndarray, mode: str = "reduced") -> tuple[ndarray, ndarray]:
        return (A, cp.linalg.qr(A, mode="r")) if mode == "r" else cp.linalg.qr(A)

    def svd(self, A: ndarray) -> tuple[ndarray, ndarray, ndarray]:
        return cp.linalg.svd(A, full_matrices=False)

    def cholesky(self, A: ndarray) -> ndarray:
        # cuSOLVER leaves the untouched part of an indefinite matrix behind: a pivot that is not positive says so
        L = cp.linalg.cholesky(A)
        good = cp.all(cp.diagonal(L, axis1=-2, axis2=-1) > 0, axis=-1)
        return cp.where(good[..., None, None], L, cp.nan).astype(A.dtype, copy=False)

    def solve_triangular(self, R: ndarray, B: ndarray, *, lower: bool = False, transpose: bool = False) -> ndarray:
        if max(R.ndim, B.ndim) > 2:  # stacks do not broadcast
            stacks = np.broadcast_shapes(R.shape[:-2], B.shape[:-2])
            R, B = (cp.broadcast_to(x, (*stacks, *x.shape[-2:])) for x in (R, B))
        if 0 in B.shape:
            return B.copy()
        return solve_triangular(R, B, lower=lower, trans=2 if transpose else 0, check_finite=False)

    def sparse_product(
        self, rows: ndarray, columns: ndarray, data: ndarray, shape: tuple[int, int], w: ndarray
    ) -> ndarray:
        if _reproducibly.get():  # cuSPARSE adds up in the order in which threads end
            return super().sparse_product(rows, columns, data, shape, w)
        from cupyx.scipy.sparse import coo_matrix  # slow to import, and few use it

        return coo_matrix((data, (rows, columns)), shape=shape).tocsr() @ w

    def special(self, x: ndarray, name: str, n: int) -> ndarray:
        import cupyx.scipy.special  # slow to import, and few use it

        return derivative(cupyx.scipy.special, x, name, n)

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

    def nondeterministic_operations(self, device: Any) -> tuple[str, ...]:
        return ("CuPy has no switch for the algorithms of cuBLAS, cuSOLVER and cuFFT.",)

    def describe(self) -> dict[str, Any]:
        return {
            "cupy": cp.__version__,
            "derivatives": "tape",
            "cuda runtime": cp.cuda.runtime.runtimeGetVersion(),
            "CUPY_TF32": os.environ.get("CUPY_TF32", "0"),
            "NVIDIA_TF32_OVERRIDE": os.environ.get("NVIDIA_TF32_OVERRIDE", "unset"),
        }


@cache
def _reproducible() -> CuPyBackend:
    return CuPyBackend(reproducible=True)
