"""Arrays in from any framework, results out to the caller's: never a silent change of dtype, never a shared write."""

from __future__ import annotations

from typing import Any

import numpy as np

from xvarpro.backends import of
from xvarpro.backends.protocol import Array, Backend
from xvarpro.errors import ExchangeError


def dtype_name(x: Any) -> str:
    """Standard name of the dtype of an array of any known framework."""
    backend = of(x)
    return backend.dtype_name(x) if backend else str(x.dtype)


def move(x: Array, to: Backend, *, dtype: str | None = None, device: Any = None) -> Array:
    """`x`, of any framework, as an array of backend `to`.

    The result may share memory with `x` and must not be written to. Arrays that live on an accelerator go through
    DLPack; everything on the host goes through NumPy, which every framework reads without a copy.

    Raises
    ------
    ExchangeError
        The target cannot hold the dtype of `x`, and no `dtype` was asked for.
    """
    source = of(x)
    if source is None and not hasattr(x, "__dlpack__") and not hasattr(x, "__array__"):
        raise ExchangeError(f"expected an array of a known framework or one with __dlpack__, got {type(x).__name__}")
    want = dtype or dtype_name(x)
    try:
        if source is not None and source.name == to.name:  # one framework may be two backends, deterministic and not
            y = to.asarray(x, dtype=want, device=device)
        elif source is not None and not _on_host(source, x) and not _on_host(to, None, device):
            y = to.asarray(to.xp.from_dlpack(x), dtype=want, device=device)
        else:
            y = to.asarray(_host(source, x, want), dtype=want, device=device)
    except (AttributeError, TypeError, BufferError) as error:
        owner = source.name if source else type(x).__name__
        raise ExchangeError(
            f"cannot move a {owner} array of dtype {dtype_name(x)} to {to.name}: {error}. "
            "Convert it to float32 or float64 first."
        ) from error
    if to.dtype_name(y) != want:
        raise ExchangeError(
            f"a {dtype_name(x)} array became {to.dtype_name(y)} on {to.name}, which would lose digits"
            + ("; turn jax_enable_x64 on, or ask for dtype='float32'" if to.name == "jax" else "")
        )
    return y


def _host(source: Backend | None, x: Array, dtype: str) -> np.ndarray:
    if source is None:
        return np.from_dlpack(x) if hasattr(x, "__dlpack__") else np.asarray(x)
    # NumPy has no bfloat16: widen before leaving
    half = source.dtype_name(x) in ("bfloat16", "float16") and dtype in ("float32", "float64")
    return source.to_numpy(source.asarray(x, dtype="float32") if half else x)


def _on_host(backend: Backend, x: Array | None, device: Any = None) -> bool:
    where = backend.device_of(x) if x is not None else device
    return where is None or "cpu" in str(where).lower()
