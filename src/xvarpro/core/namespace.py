"""Questions about arrays, as their namespace, device and dtype; the answers are kept by type."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from operator import attrgetter
from typing import Any, TypeGuard

import array_api_compat
import numpy as np

from xvarpro.core.struct import Array
from xvarpro.errors import UnsupportedError

_known: dict[type, Any] = {}
_devices: dict[type, Callable[[Any], Any]] = {}
_arrays: dict[type, bool] = {}
TRACED: set[type] = set()  # types of arrays that each belong to a namespace of their own
COMPILED: set[Any] = set()  # namespaces of frameworks that compile: what they contract keeps its shape, and its place


def namespace_of(*arrays: Any) -> Any:
    """The namespace that all of the arrays belong to; `TypeError` where there is none.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> xv.array_namespace(np.ones(2)).__name__
    'array_api_compat.numpy'
    """
    kind = type(arrays[0]) if arrays else object
    if kind in _known and (len(arrays) == 1 or all(type(x) is kind for x in arrays)):
        return _known[kind]
    if kind in TRACED and len(arrays) == 1:
        return arrays[0].__array_namespace__()
    found = array_api_compat.array_namespace(*arrays)
    # kept for the types of frameworks only: each traced array may belong to another namespace
    if kind.__module__.partition(".")[0] == getattr(found, "__name__", "").rpartition(".")[2]:
        _known[kind] = found
    return found


def device(x: Array) -> Any:
    """Device of an array, as its framework spells it."""
    found = _devices.get(type(x))
    return array_api_compat.device(x) if found is None else found(x)


def is_host(device: Any) -> bool:
    """Whether arrays of a device are in the memory of the host, by its name."""
    return device is None or "cpu" in str(device).lower()


def copied(x: Array) -> Array:
    """A copy of an array where it lies: CuPy's `asarray` would make it on the current device."""
    return namespace_of(x).asarray(x, device=device(x), copy=True)


def find_dtype(xp: Any, name: str) -> Any:
    """Dtype of a namespace by its name in the standard.

    Raises
    ------
    UnsupportedError
        The namespace has no such dtype.

    Examples
    --------
    >>> import array_api_strict as xp
    >>> find_dtype(xp, "float32")
    array_api_strict.float32
    """
    found = getattr(xp, name, None)
    if found is None:
        raise UnsupportedError(f"dtype {name!r} is required; {xp.__name__} has none of that name")
    return found


def dtype_name(x: Array) -> str:
    """Name in the standard of an array's dtype."""
    kind = x.dtype
    name = getattr(kind, "name", None)  # of NumPy, CuPy and JAX, whose str may name a byte order
    return str(kind).rpartition(".")[2] if name is None else str(name)


def named_dtype(kind: Any) -> str:
    """Name of a dtype that a user writes: the name itself, or an object of NumPy's or of another framework's.

    Examples
    --------
    >>> import numpy as np
    >>> named_dtype("float32"), named_dtype(np.float32), named_dtype(np.ones(1).dtype)
    ('float32', 'float32', 'float64')
    """
    if isinstance(kind, str):
        return kind
    try:
        return np.dtype(kind).name
    except (TypeError, ValueError):  # of a framework that NumPy does not know
        return str(kind).rpartition(".")[2]


def adopt(kind: type, namespace: Any, place: Any) -> None:
    """Register a class of arrays: their namespace is `namespace`, their device ``x.device``, or else `place`.

    Where `place` is a function, their device is ``place(x)``.

    For a framework whose arrays have no ``__array_namespace__``, or return one that is not the standard in full; of one
    that is known it saves every question some microseconds.
    """
    own = attrgetter("device") if hasattr(kind, "device") else lambda x: getattr(x, "device", place)
    _known[kind], _devices[kind], _arrays[kind] = namespace, place if callable(place) else own, True


# dtypes of two frameworks are not to be compared; NumPy's have a kind, those of others a name only


@lru_cache(typed=True)
def complex_dtype(dtype: Any) -> bool:
    """Whether a dtype, of whatever framework, is complex."""
    return getattr(dtype, "kind", "V") == "c" or "complex" in str(dtype)


@lru_cache(typed=True)
def inexact_dtype(dtype: Any) -> bool:
    """Whether a dtype, of whatever framework, is real or complex floating, so that a derivative makes sense."""
    return getattr(dtype, "kind", "V") == "f" or "float" in str(dtype) or complex_dtype(dtype)


def is_complex(x: Any) -> bool:
    """Whether the dtype of `x` is complex."""
    return complex_dtype(x.dtype)


def complexified(x: Any) -> Any:
    """An array in the complex dtype of its precision: not every framework multiplies real matrices by complex ones."""
    if is_complex(x):
        return x
    xp = namespace_of(x)
    return xp.astype(x, xp.complex64 if x.dtype == xp.float32 else xp.complex128)


def as_complex(x: Any, like: Any) -> Any:
    """A real array as a complex one where it meets complex numbers."""
    return complexified(x) if is_complex(like) else x


def in_double(x: Any) -> Any:
    """An array in double precision, or as it is where its framework or its device has none."""
    xp, name = namespace_of(x), "complex128" if is_complex(x) else "float64"
    inspect = getattr(xp, "__array_namespace_info__", None)
    dtypes = {} if inspect is None else inspect().dtypes()
    try:
        return xp.astype(x, dtypes[name], copy=False) if name in dtypes else x
    except TypeError:  # of a device, such as Apple's
        return x


def is_inexact(x: Any) -> bool:
    """Whether the dtype of an array is real or complex floating."""
    return inexact_dtype(x.dtype)


def is_array(x: object) -> TypeGuard[Array]:
    """Whether `x` is an array of a framework that follows the standard."""
    kind = type(x)
    found = _arrays.get(kind)
    if found is None:
        found = _arrays[kind] = array_api_compat.is_array_api_obj(x)
    return found


def conj(x: Any) -> Any:
    """Conjugate; a real array is returned as it is."""
    return namespace_of(x).conj(x) if complex_dtype(x.dtype) else x


def adjoint(A: Any) -> Any:
    """``A^H``: transpose and conjugate of the last two axes."""
    return namespace_of(A).conj(A.mT) if complex_dtype(A.dtype) else A.mT


def positive_or_one(x: Any) -> Any:
    """`x` where it is > 0, else 1, also for NaN: a divisor whose numerator is 0, NaN or not used there."""
    xp = namespace_of(x)
    return xp.where(x > 0, x, 1)


def solve(xp: Any, A: Any, b: Any) -> Any:
    """``A^-1 b`` by `xp`, of stacks as the standard has them: not every framework broadcasts, or factors one A once."""
    *lead, n, k = b.shape if b.ndim > 1 else (*A.shape[:-2], *b.shape, 1)
    if A.shape[:-2] == tuple(lead):
        return xp.linalg.solve(A, b)
    if A.ndim == 2:
        columns = xp.reshape(xp.moveaxis(b, -2, 0), (n, math.prod(lead) * k))
        return xp.moveaxis(xp.reshape(xp.linalg.solve(A, columns), (n, *lead, k)), 0, -2)
    shape = np.broadcast_shapes(A.shape[:-2], tuple(lead))
    A, b = (xp.broadcast_to(x, (*shape, *x.shape[-2:])) for x in (A, b))
    return xp.linalg.solve(A, b)
