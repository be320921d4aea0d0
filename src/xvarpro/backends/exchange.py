"""Arrays in from any framework, results out to the caller's: never a silent change of dtype, never a shared write."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from xvarpro.backends import get, of, owner
from xvarpro.backends.interface import Array, Backend
from xvarpro.errors import ExchangeError, UnsupportedDtypeError, UnsupportedError


def dtype_name(x: Any) -> str:
    """Standard name of the dtype of an array of any known framework."""
    backend = of(x)
    return backend.dtype_name(x) if backend else str(x.dtype)


@dataclass(frozen=True)
class Tally:
    """Which arrays came from where, and at what cost.

    Attributes
    ----------
    counts : dict
        ``counts["torch to jax"]`` says how many arrays were ``"shared"`` and how many ``"copied"``.
    """

    counts: dict[str, dict[str, int]] = field(default_factory=dict)

    def add(self, x: Array, y: Array) -> None:
        """Count an array `y` of a backend's that `x` has become."""
        source, to = of(x), owner(y)
        start = source.address(x) if source else get("numpy").address(_host(None, x, ""))
        shared = math.prod(y.shape) == 0 or start == to.address(y)
        name = f"{source.name if source else type(x).__name__} to {to.name}"
        count = self.counts.setdefault(name, {"shared": 0, "copied": 0})
        count["shared" if shared else "copied"] += 1


def move(x: Array, to: Backend, *, dtype: str | None = None, device: Any = None, tally: Tally | None = None) -> Array:
    """`x`, of any framework, as an array of backend `to`.

    The result may share memory with `x` and must not be written to. Arrays that live on an accelerator go through
    DLPack; everything on the host goes through NumPy, which every framework reads without a copy. A `tally` counts it.

    Raises
    ------
    ExchangeError
        The target cannot hold the dtype of `x`, and no `dtype` was asked for: an `UnsupportedDtypeError` where it has
        no such dtype at all.
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
    except (AttributeError, TypeError, BufferError, UnsupportedError) as error:
        owner = source.name if source else type(x).__name__
        kind = UnsupportedDtypeError if isinstance(error, UnsupportedError) else ExchangeError
        raise kind(
            f"cannot move a {owner} array of dtype {dtype_name(x)} to {to.name}: {error}. "
            "Convert it to float32 or float64 first."
        ) from error
    if to.dtype_name(y) != want:
        remedy = "pass it as int32" if "int" in want else "ask for dtype='float32'"
        raise ExchangeError(
            f"a {want} array became {to.dtype_name(y)} on {to.name}, which would lose digits"
            + (f"; turn jax_enable_x64 on, or {remedy}" if to.name == "jax" else "")
        )
    if tally is not None:
        tally.add(x, y)
    return y


def _host(source: Backend | None, x: Array, dtype: str) -> np.ndarray:
    if source is None:
        return np.from_dlpack(x) if hasattr(x, "__dlpack__") else np.asarray(x)
    kind = source.dtype_name(x)
    # NumPy has no bfloat16: widen before leaving. Nobody else has NumPy's longest: round, where that was asked for
    half, longest = kind in ("bfloat16", "float16"), kind == np.dtype(np.longdouble).name
    if (half or longest) and dtype != kind and dtype in ("float32", "float64"):
        x = source.asarray(x, dtype="float32" if half else dtype)
    return source.to_numpy(x)


def _on_host(backend: Backend, x: Array | None, device: Any = None) -> bool:
    where = backend.device_of(x) if x is not None else device
    return where is None or "cpu" in str(where).lower()
