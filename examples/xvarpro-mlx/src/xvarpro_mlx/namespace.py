"""MLX as an array-API namespace: what `mlx.core` spells otherwise, or gets wrong in double precision.

Whatever is not here is `mlx.core`'s own.
"""

from __future__ import annotations

from typing import Any

import array_api_compat.numpy as np_xp
import mlx.core as mx
import numpy as np

from xvarpro_mlx import fft, linalg  # noqa: F401  (the extensions of the standard)
from xvarpro_mlx.host import through_numpy, to_mlx

bool = mx.bool_


def __getattr__(name: str) -> Any:
    return getattr(mx, name)


# -- creation: the standard names a device, and double precision comes by dtype ---------------------------------


def asarray(x: Any, /, *, dtype: Any = None, device: Any = None, copy: Any = None) -> mx.array:
    """Keep the dtype of what is an array: MLX would make doubles single."""
    if isinstance(x, mx.array):
        x = x if dtype is None or x.dtype == dtype else x.astype(dtype)
        return mx.array(x) if copy else x
    if dtype is None and isinstance(x, (np.ndarray, np.generic)):
        return to_mlx(np.asarray(x))
    return mx.array(x, dtype=dtype)


def zeros(shape: Any, *, dtype: Any = None, device: Any = None) -> mx.array:
    return mx.zeros(shape, dtype=dtype or mx.float32)


def ones(shape: Any, *, dtype: Any = None, device: Any = None) -> mx.array:
    return mx.ones(shape, dtype=dtype or mx.float32)


def full(shape: Any, fill_value: Any, *, dtype: Any = None, device: Any = None) -> mx.array:
    return mx.full(shape, fill_value, dtype=dtype)


def eye(n: int, m: int | None = None, /, *, k: int = 0, dtype: Any = None, device: Any = None) -> mx.array:
    return mx.eye(n, m, k=k, dtype=dtype or mx.float32)


def arange(start: Any, stop: Any = None, step: Any = 1, *, dtype: Any = None, device: Any = None) -> mx.array:
    start, stop = (0, start) if stop is None else (start, stop)
    kind = mx.int64 if all(isinstance(x, int) for x in (start, stop, step)) else mx.float32
    return mx.arange(start, stop, step, dtype=dtype or kind)


def linspace(start: Any, stop: Any, num: int, *, dtype: Any = None, device: Any = None) -> mx.array:
    return mx.linspace(start, stop, num, dtype=dtype or mx.float32)


def empty(shape: Any, *, dtype: Any = None, device: Any = None) -> mx.array:
    return zeros(shape, dtype=dtype)


def zeros_like(x: mx.array, /, *, dtype: Any = None, device: Any = None) -> mx.array:
    return zeros(x.shape, dtype=dtype or x.dtype)


def ones_like(x: mx.array, /, *, dtype: Any = None, device: Any = None) -> mx.array:
    return ones(x.shape, dtype=dtype or x.dtype)


def full_like(x: mx.array, /, fill_value: Any, *, dtype: Any = None, device: Any = None) -> mx.array:
    return mx.full(x.shape, fill_value, dtype=dtype or x.dtype)


def astype(x: mx.array, dtype: Any, /, *, copy: Any = True, device: Any = None) -> mx.array:
    return x.astype(dtype)


# -- functions that are less exact than their dtype --------------------------------------------------------------------


def _exact(name: str) -> Any:
    single, double = getattr(mx, name), through_numpy(getattr(np_xp, name))
    return lambda x, /: double(x) if x.dtype == mx.float64 else single(x)


# in doubles their kernels compute in singles
exp, sin, cos = _exact("exp"), _exact("sin"), _exact("cos")
logaddexp, sign = through_numpy(np_xp.logaddexp), through_numpy(np_xp.sign)  # with exp inside; of NaN, 0


def _summed(name: str) -> Any:
    found = through_numpy(getattr(np_xp, name))

    def reduce(x: mx.array, /, *, axis: Any = None, dtype: Any = None, keepdims: Any = False) -> mx.array:
        return found(x if dtype is None else x.astype(dtype), axis=axis, keepdims=keepdims)

    return reduce


# MLX adds one by one: a million terms in singles keep two digits
sum, mean, prod, vecdot = _summed("sum"), _summed("mean"), _summed("prod"), through_numpy(np_xp.vecdot)


# -- what MLX lacks ----------------------------------------------------------------------------------------------------

copysign, hypot, nonzero, signbit = map(through_numpy, (np_xp.copysign, np_xp.hypot, np_xp.nonzero, np_xp.signbit))
repeat = through_numpy(np_xp.repeat)  # by a count for every entry
var, std = through_numpy(np_xp.var), through_numpy(np_xp.std)  # with corrections that are not whole numbers


def expm1(x: mx.array, /) -> mx.array:
    return through_numpy(np_xp.expm1)(x) if x.dtype == mx.complex64 else mx.expm1(x)


# -- other spellings ---------------------------------------------------------------------------------------------------


def reshape(x: mx.array, /, shape: Any, *, copy: Any = None) -> mx.array:
    return mx.reshape(x, shape)


def moveaxis(x: mx.array, source: Any, destination: Any, /) -> mx.array:
    source, destination = ([a % x.ndim for a in ((i,) if isinstance(i, int) else i)] for i in (source, destination))
    order = [i for i in range(x.ndim) if i not in source]
    for place, axis in sorted(zip(destination, source, strict=True)):
        order.insert(place, axis)
    return mx.transpose(x, order)


def concat(arrays: Any, /, *, axis: int | None = 0) -> mx.array:
    return mx.concatenate([x.reshape(-1) for x in arrays] if axis is None else list(arrays), axis=axis or 0)


def clip(x: mx.array, /, min: Any = None, max: Any = None) -> mx.array:
    return x if min is None and max is None else mx.clip(x, min, max)


def _places(name: str) -> Any:
    found, empty = getattr(mx, name), through_numpy(getattr(np_xp, name))  # MLX refuses arrays without entries

    def place(x: mx.array, /, *, axis: int | None = None, keepdims: Any = False) -> mx.array:
        return (found if x.size else empty)(x, axis=axis, keepdims=keepdims).astype(mx.int64)

    return place


argmax, argmin = _places("argmax"), _places("argmin")


def sort(x: mx.array, /, *, axis: int = -1, descending: Any = False, stable: Any = True) -> mx.array:
    found = mx.sort(x, axis=axis)
    return mx.flip(found, axis=axis) if descending else found


def argsort(x: mx.array, /, *, axis: int = -1, descending: Any = False, stable: Any = True) -> mx.array:
    # the standard keeps equal entries in order, from either end
    if not descending:
        return mx.argsort(x, axis=axis).astype(mx.int64)
    return x.shape[axis] - 1 - mx.flip(argsort(mx.flip(x, axis=axis), axis=axis), axis=axis)


def cumulative_sum(x: mx.array, /, *, axis: Any = None, dtype: Any = None, include_initial: Any = False) -> mx.array:
    axis = 0 if axis is None else axis
    out = mx.cumsum(x if dtype is None else x.astype(dtype), axis=axis)
    return _with_initial(out, mx.zeros, axis) if include_initial else out


def cumulative_prod(x: mx.array, /, *, axis: Any = None, dtype: Any = None, include_initial: Any = False) -> mx.array:
    axis = 0 if axis is None else axis
    out = mx.cumprod(x if dtype is None else x.astype(dtype), axis=axis)
    return _with_initial(out, mx.ones, axis) if include_initial else out


def _with_initial(x: mx.array, made: Any, axis: int) -> mx.array:
    shape = list(x.shape)
    shape[axis] = 1
    return mx.concatenate([made(shape, dtype=x.dtype), x], axis=axis)
