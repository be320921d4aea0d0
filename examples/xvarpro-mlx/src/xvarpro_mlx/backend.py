"""The backend: MLX on processors, in single and double precision."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
import numpy as np

from xvarpro.backends.adapters import HostedBackend, find_dtype
from xvarpro_mlx import namespace
from xvarpro_mlx.host import to_mlx, to_numpy

Array = Any


class MLXBackend(HostedBackend):
    """MLX on the host: its GPUs know no doubles."""

    name = "mlx"
    roots = ("mlx",)
    array_types = (mx.array,)  # their own namespace is mlx.core, and they have no device
    xp = namespace

    def asarray(self, x: Any, *, dtype: str | None = None, device: Any = None) -> Array:
        if not isinstance(x, mx.array):
            x = to_mlx(np.asarray(x, dtype=dtype))
        return x if dtype is None else namespace.astype(x, find_dtype(namespace, dtype))

    def to_numpy(self, x: Array) -> np.ndarray:
        return to_numpy(x)

    # -- what MLX does itself ------------------------------------------------------------------------------------------

    def to_floats(self, scalars: Sequence[Array]) -> list[float]:
        mx.eval(*scalars)  # all of them at once
        return [float(x.item()) for x in scalars]

    def index_add(self, x: Array, key: Any, v: Array) -> Array:
        return x if 0 in v.shape else x.at[key].add(v)  # MLX refuses to add nothing

    def norm(self, x: Array, order: int = 2) -> Array:
        return self._by_numpy("norm", x, order=order)  # added up piece by piece, which MLX's sums are not

    def deterministic(self) -> MLXBackend:
        return self  # its kernels on processors add in one order

    @contextmanager
    def scope(self, dtype: str) -> Iterator[None]:
        with mx.stream(mx.cpu), super().scope(dtype):
            yield

    def describe(self) -> dict[str, Any]:
        return {"mlx": mx.__version__, "numpy": np.__version__}
