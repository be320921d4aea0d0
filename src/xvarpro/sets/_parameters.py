"""Parameters of sets: numbers or arrays that a user typed, checked once and read on the host."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from xvarpro import backends
from xvarpro.core.checks import shown
from xvarpro.core.namespace import device, is_complex, namespace_of
from xvarpro.core.struct import Array
from xvarpro.errors import ProblemError
from xvarpro.sets.vectors import real_dtype


def vector(owner: object, name: str, need: str = "", ok: Callable[[np.ndarray], Any] | None = None) -> None:
    """Refuse a field that is no finite number nor a vector of such, or one for which ``ok(values)`` fails somewhere.

    NumPy's scalars count as arrays; they are kept as Python floats.
    """
    value: Any = getattr(owner, name)
    values = host_numbers(value)
    if (
        values is None
        or values.ndim > 1
        or not values.size
        or not np.isfinite(values).all()
        or (ok is not None and not np.all(ok(values)))
    ):
        wanted = f"finite{' and ' + need if need else ''}, a number or a vector"
        raise ProblemError(f"{type(owner).__name__}: {name} must be {wanted}, got {shown(value)}")
    if values.ndim == 0:
        object.__setattr__(owner, name, float(values))
    elif backends.of(value) is None:
        object.__setattr__(owner, name, values.astype(np.float64))


def host_numbers(value: Any, kinds: str = "iuf") -> np.ndarray | None:
    """A number, an array of any framework or nested lists of numbers on the host; None for anything else.

    `kinds` are those of NumPy's dtypes.
    """
    try:
        values = backends.to_numpy(value)
    except (TypeError, ValueError):  # of a sparse or a traced array, of lists of different lengths
        return None
    return values if values.dtype.kind in kinds else None


def fits(owner: object, shape: tuple[int, ...], *names: str) -> None:
    """Refuse a leaf whose number of entries is not the length of the fields that are vectors."""
    n = math.prod(shape)
    for name in names:
        got = backends.to_numpy(getattr(owner, name)).shape
        if got not in ((), (n,)):
            raise ProblemError(
                f"{type(owner).__name__}: {name} has {got[0]} entries, theta's leaf of shape {shape} has {n}"
            )


def finite(owner: object, name: str) -> np.ndarray:
    """The values of a field on the host; refuse what is no finite number nor an array of such."""
    value = getattr(owner, name)
    numbers = host_numbers(value, "iufc")
    if numbers is None or not np.isfinite(numbers).all():
        raise ProblemError(f"{type(owner).__name__}: {name} must be finite numbers, got {shown(value)}")
    if numbers.ndim == 0:
        object.__setattr__(owner, name, numbers.item())
    elif backends.of(value) is None:
        object.__setattr__(owner, name, numbers)
    return numbers


def broadcasts(owner: object, name: str, value: Array | complex, shape: tuple[int, ...]) -> None:
    """Refuse a value that does not broadcast to a point of that shape."""
    got = tuple(getattr(value, "shape", ()))
    try:
        fits = np.broadcast_shapes(got, shape) == shape
    except ValueError:
        fits = False
    if not fits:
        raise ProblemError(
            f"{type(owner).__name__}: {name} must broadcast to a point of shape {shape}, got shape {got}"
        )


def as_like(parameter: Array | complex, like: Array) -> Array:
    """A parameter of a set, a number or an array of any framework, in the framework, device and precision of `like`.

    A real one stays real, a complex one complex.
    """
    return all_like((parameter,), like)[0]


def all_like(parameters: Iterable[Array | complex], like: Array) -> list[Array]:
    """`as_like` of several."""
    xp, real, place, found = namespace_of(like), real_dtype(like), device(like), []
    for parameter in parameters:
        dtype, owner = real, None if isinstance(parameter, float) else backends.of(parameter)
        if owner is not None and owner is not backends.owner(like):
            parameter = backends.to_numpy(parameter)
        if isinstance(parameter, complex) or (owner is not None and is_complex(parameter)):
            dtype = xp.complex64 if real == xp.float32 else xp.complex128
        found.append(xp.asarray(parameter, dtype=dtype, device=place))
    return found


def spread(parameter: Array | float, like: Array) -> Array:
    """A parameter as a vector as long as the last axis of `like`."""
    xp = namespace_of(like)
    return xp.broadcast_to(as_like(parameter, like), (like.shape[-1],))


def on_host(parameter: Array | float, n: int) -> np.ndarray:
    """A parameter as a NumPy vector of `n` doubles."""
    return np.broadcast_to(backends.to_numpy(parameter).astype(np.float64), (n,))
