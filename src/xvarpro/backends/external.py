"""Functions of NumPy arrays inside of models, with derivatives that are given or taken by differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from xvarpro.backends.registry import of, owner, to_numpy
from xvarpro.core.namespace import device, is_array, namespace_of
from xvarpro.core.struct import Array
from xvarpro.errors import ModelError, UnsupportedError

Function = Callable[[np.ndarray], Any]


def call(fun: Function, x: Array, jacobian: Function | None, step: float | None) -> Array:
    """``fun(x)``: see `xv.special.external`."""
    if not is_array(x) or not (xp := namespace_of(x)).isdtype(x.dtype, "real floating"):
        found = getattr(x, "dtype", type(x).__name__)
        raise ModelError(
            f"xv.special.external needs one real floating array; got {found}. Convert it with xp.astype, or join the "
            "entries of a dict with xp.stack"
        )
    if step is not None and not step > 0:
        raise ModelError(f"step of xv.special.external must be > 0, relative to each entry of x; got {step!r}")
    if of(x) is None:
        value = xp._untraced(x)
    else:  # PyTorch records on the array itself; its backend takes the values alone
        value = owner(x).asarray(x) if getattr(x, "requires_grad", False) else x
    backend = owner(value)
    try:
        host = to_numpy(value)
    except TypeError as error:
        raise UnsupportedError(
            f"xv.special.external needs the values of its argument, which {backend.name} lacks while it compiles. "
            "Choose backend='numpy' or 'torch', or write the function for this framework"
        ) from error

    def sent(y: np.ndarray) -> Array:
        return backend.asarray(y.astype(host.dtype), device=device(value))

    y = _array(fun, host)
    if value is x:
        return sent(y)
    slope = _differences(fun, host, y, step) if jacobian is None else _array(jacobian, host)
    if slope.shape != (shape := (*y.shape, *x.shape)):
        raise ModelError(f"jacobian must return an array of shape {shape}, of fun and of x; got {slope.shape}")
    # the tangent, which has the value of fun at x: no derivative reaches y and slope
    change = xp.reshape(x - value, (host.size, 1))
    return xp.add(sent(y), xp.reshape(xp.matmul(sent(slope.reshape(y.size, host.size)), change), y.shape))


def _array(fun: Function, x: np.ndarray) -> np.ndarray:
    y = np.asarray(fun(x.copy()))  # a copy, for it may be written to
    if y.dtype.kind not in "fiu":
        raise ModelError(f"functions of xv.special.external must return real arrays; got {y.dtype}")
    return y


def _differences(fun: Function, x: np.ndarray, y: np.ndarray, step: float | None) -> np.ndarray:
    """Central differences, one-sided where one side is not finite, as beyond a bound."""
    x, columns = x.astype(np.float64), []
    h = (np.finfo(np.float64).eps ** (1 / 3) if step is None else step) * np.where(x == 0, 1.0, np.abs(x))
    for at in np.ndindex(x.shape):
        ends, values = [x[at]], [y.astype(np.float64)]
        for sign in (1, -1):
            moved = x.copy()
            moved[at] += sign * h[at]
            value = _array(fun, moved).astype(np.float64)
            if np.isfinite(value).all():
                ends.append(moved[at])
                values.append(value)
        if len(ends) == 1:
            columns.append(np.full(y.shape, np.nan))
        else:
            (*_, a, b), (*_, left, right) = ends, values
            columns.append((left - right) / (a - b))
    return np.stack(columns, axis=-1).reshape(*y.shape, *x.shape)
