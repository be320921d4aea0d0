"""The backend: MLX on processors, in single and double precision."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
import numpy as np

from xvarpro.backends import TapedBackend, get
from xvarpro_mlx import namespace
from xvarpro_mlx.host import through_numpy, to_mlx, to_numpy

Array = Any


class MLXBackend(TapedBackend):
    """MLX on the host: its GPUs know no doubles."""

    name = "mlx"
    package = "mlx"
    roots = ("mlx",)
    array_types = (mx.array,)
    reproducible = True  # its kernels on processors add in one order
    xp = namespace

    # -- arrays --------------------------------------------------------------------------------------------------------

    def asarray(self, x: Any, *, dtype: str | None = None, device: Any = None) -> Array:
        if not isinstance(x, mx.array):
            x = to_mlx(np.asarray(x, dtype=dtype))
        return x if dtype is None else namespace.astype(x, self.dtype(dtype))

    def to_numpy(self, x: Array) -> np.ndarray:
        return to_numpy(x)

    def to_floats(self, scalars: Sequence[Array]) -> list[float]:
        mx.eval(*scalars)
        return [float(x.item()) for x in scalars]

    def device_of(self, x: Array) -> Any:
        return mx.cpu

    def parse_device(self, device: Any) -> Any:
        if device not in ("cpu", mx.cpu):
            raise ValueError(f"the mlx backend computes on the host: device must be 'cpu', got {device!r}")
        return mx.cpu

    def devices(self) -> list[str]:
        return ["cpu"]

    def norm(self, x: Array) -> Array:
        return through_numpy(get("numpy").norm)(x)

    # -- for the tape --------------------------------------------------------------------------------------------------

    def index_add(self, x: Array, key: Any, v: Array) -> Array:
        return x.at[key].add(v)

    # -- linear algebra: NaN where a matrix is singular, which the NumPy backend knows how to give ---------------------

    def householder_qr(self, A: Array) -> tuple[Array, Array]:
        return through_numpy(get("numpy").householder_qr)(A)

    def qr_r(self, A: Array) -> Array:
        return through_numpy(get("numpy").qr_r)(A)

    def svd(self, A: Array) -> tuple[Array, Array, Array]:
        return through_numpy(get("numpy").svd)(A)

    def cholesky(self, A: Array) -> Array:
        return through_numpy(get("numpy").cholesky)(A)

    def solve_triangular(self, R: Array, B: Array, *, lower: bool = False, transpose: bool = False) -> Array:
        return through_numpy(get("numpy").solve_triangular)(R, B, lower=lower, transpose=transpose)

    # -- numerics ------------------------------------------------------------------------------------------------------

    @contextmanager
    def scope(self, dtype: str) -> Iterator[None]:
        with mx.stream(mx.cpu), get("numpy").scope(dtype):
            yield

    def describe(self) -> dict[str, Any]:
        return {"mlx": mx.__version__, "numpy": np.__version__}
