"""What is computed by NumPy on the host, where MLX has no function or one that is not exact enough."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import mlx.core as mx
import numpy as np

from xvarpro.errors import UnsupportedError


def to_numpy(x: mx.array) -> np.ndarray:
    """The values on the host; shares memory, which nothing writes to."""
    return np.asarray(x)


def to_mlx(x: np.ndarray) -> mx.array:
    """An MLX array of the same dtype.

    Raises
    ------
    UnsupportedError
        Complex numbers in double precision, which MLX lacks.
    """
    if x.dtype == np.complex128:
        raise UnsupportedError("MLX has no complex128: complex problems, and Fourier transforms, are for float32")
    # MLX reads native byte order and no negative strides
    x = np.asarray(x, dtype=x.dtype.newbyteorder("="))
    x = x.copy() if any(stride < 0 for stride in x.strides) else x
    return mx.array(x, dtype=getattr(mx, "bool_" if x.dtype == bool else x.dtype.name))


def through_numpy(fun: Callable[..., Any]) -> Callable[..., Any]:
    """`fun`, a function of NumPy arrays, as one of MLX arrays."""

    @wraps(fun)
    def on_mlx(*args: Any, **keywords: Any) -> Any:
        out = fun(*(to_numpy(x) if isinstance(x, mx.array) else x for x in args), **keywords)
        return tuple(to_mlx(np.asarray(x)) for x in out) if isinstance(out, tuple) else to_mlx(np.asarray(out))

    return on_mlx
