"""What sets share: their parameters, checked once and read on the host, and arithmetic on the last axis."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from xvarpro.backends import registry
from xvarpro.core.checks import shown
from xvarpro.core.namespace import complex_dtype, device, is_array, is_complex, namespace_of
from xvarpro.core.struct import Array
from xvarpro.errors import ProblemError


def mask_at(like: Array, index: Array) -> Array:
    """Whether an entry of the last axis is the one at `index`, keepdims."""
    return namespace_of(like).arange(like.shape[-1], device=device(like), dtype=index.dtype) == index


def entries_at(vector: Array, index: Array) -> Array:
    """Entries of a vector, in the shape of `index`."""
    xp = namespace_of(vector)
    return xp.reshape(xp.take(vector, xp.reshape(index, (-1,)), axis=0), index.shape)


def vertex(like: Array, index: Array, entry: Array | float) -> Array:
    """`entry` at `index`, both keepdims, and 0 elsewhere, in the shape of `like`."""
    xp = namespace_of(like)
    return xp.where(mask_at(like, index), entry, xp.zeros_like(like))


def ranked(a: Array) -> tuple[Array, Array]:
    """Stable order of the entries from the largest down, and the place of each entry in it."""
    xp = namespace_of(a)
    order = xp.argsort(-a, axis=-1, stable=True)
    return order, xp.argsort(order, axis=-1, stable=True)


def top(a: Array, k: Array | int) -> Array:
    """Mask of the `k` largest entries along the last axis, the first of those that tie; k an int, or keepdims."""
    return ranked(a)[1] < k


def unit(x: Array, axis: int = -1) -> tuple[Array, Array]:
    """``x / |x|``, 0 where x is 0, and the Euclidean norm ``|x|``, keepdims.

    The largest entry is taken out first, so that squares neither overflow nor underflow.
    """
    xp = namespace_of(x)
    y, scale = scaled(x, axis)
    square = xp.real(y) ** 2 + xp.imag(y) ** 2 if is_complex(x) else y * y
    # its root has a derivative where x is 0: `scale` is the factor that is 0
    length = xp.sqrt(or_one(xp.sum(square, axis=axis, keepdims=True)))
    return y / length, scale * length


def norm(x: Array) -> Array:
    """Euclidean norm along the last axis, keepdims."""
    return unit(x)[1]


def direction(x: Array) -> Array:
    """``x / |x|`` along the last axis, 0 where x is 0."""
    return unit(x)[0]


def scaled(x: Array, axis: int = -1) -> tuple[Array, Array]:
    """``x / max |x|``, 0 where x is 0, and that maximum, keepdims: sums of what is scaled do not overflow."""
    xp = namespace_of(x)
    if x.shape[axis] == 0:
        return x, xp.sum(xp.abs(x), axis=axis, keepdims=True)
    scale = xp.max(xp.abs(x), axis=axis, keepdims=True)
    return x / or_one(scale), scale


def largest(x: Array, axis: int | None = None) -> Array:
    """The largest entry, NaN where one is NaN: `max` of 4,096 or more loses it in XLA on a CPU."""
    xp = namespace_of(x)
    top = xp.max(x, axis=axis)
    return xp.where(xp.any(xp.isnan(x), axis=axis), xp.nan, top)


def or_one(size: Array) -> Array:
    """A size, 1 where it is 0: a divisor. NaN stays NaN."""
    xp = namespace_of(size)
    return xp.where(size == 0, 1, size)


def positive_part(x: Array) -> Array:
    """``max(x, 0)``, entry by entry."""
    xp = namespace_of(x)
    return xp.maximum(x, xp.zeros_like(x))


def excess(size: Array, radius: float) -> Array:
    """``max(size - radius, 0)`` relative to the radius: what a ball answers to `violation`."""
    return positive_part(size - radius) / divisor(radius)


def divisor(size: float | Array) -> Any:
    """A parameter >= 0, 1 where it is the number 0; an array is > 0."""
    return size if is_array(size) else size or 1.0


def vanishes(size: float | Array) -> bool:
    """Whether a parameter is the number 0."""
    return not is_array(size) and not size


def real_inner(g: Array, v: Array, ndim: int) -> Array:
    """``Re sum conj(g) v`` over the last `ndim` axes."""
    xp = namespace_of(g)
    product = xp.real(g) * xp.real(v) + xp.imag(g) * xp.imag(v) if is_complex(g) else g * v
    return xp.sum(product, axis=tuple(range(-ndim, 0)))


def phase(x: Array) -> Array:
    """``x / |x|``, for real x a sign; zero counts as positive: sign(0) = 0 would be no vertex."""
    xp = namespace_of(x)
    if not is_complex(x):
        return xp.where(x < 0, -1, xp.ones_like(x))
    # the larger part first: the modulus of what is denormal has no digits
    size = xp.maximum(xp.abs(xp.real(x)), xp.abs(xp.imag(x)))
    unit = x / or_one(size)
    length = xp.abs(unit)
    return xp.where(length == 0, 1, unit / or_one(length))


def real_dtype(x: Array) -> Any:
    """The dtype of the real part of `x`."""
    if not complex_dtype(x.dtype):
        return x.dtype
    xp = namespace_of(x)
    return xp.float32 if x.dtype == xp.complex64 else xp.float64


def apply(matrix: Array, x: Array) -> Array:
    """``matrix @ x`` for every vector x on the last axis."""
    return x @ namespace_of(x).matrix_transpose(matrix)


def vector(owner: object, name: str, need: str = "", ok: Callable[[np.ndarray], Any] = np.isfinite) -> None:
    """Refuse a field that is no finite number nor a vector of such, or one for which ``ok(values)`` fails somewhere."""
    wanted = f"finite{' and ' + need if need else ''}, a number or a vector"
    finite(owner, name, wanted, lambda x: x.ndim <= 1 and x.size and np.all(ok(x)))


def finite(
    owner: object, name: str, wanted: str, ok: Callable[[np.ndarray], Any] | None = None, kinds: str = "iuf"
) -> np.ndarray:
    """The values of a field on the host; refuse what is no array of finite numbers, or one for which ``ok`` fails.

    Numbers and NumPy's scalars are kept as Python floats, lists and the like as arrays.
    """
    value = getattr(owner, name)
    numbers = host_numbers(value, kinds)
    if numbers is None or not np.isfinite(numbers).all() or not (ok is None or ok(numbers)):
        raise ProblemError(f"{type(owner).__name__}: {name} must be {wanted}, got {shown(value)}")
    if numbers.dtype.kind != "c":
        numbers = numbers.astype(np.float64)
    if not numbers.ndim or registry.of(value) is None:
        object.__setattr__(owner, name, numbers if numbers.ndim else numbers.item())
    return numbers


def host_numbers(value: Any, kinds: str = "iuf") -> np.ndarray | None:
    """A number, an array of any framework or nested lists of numbers on the host; None for anything else.

    `kinds` are those of NumPy's dtypes.
    """
    try:
        values = registry.to_numpy(value)
    except (TypeError, ValueError):  # of a sparse or a traced array, of lists of different lengths
        return None
    return values if values.dtype.kind in kinds else None


def fits(owner: object, shape: tuple[int, ...], *names: str) -> None:
    """Refuse a leaf whose number of entries is not the length of the fields that are vectors."""
    n = math.prod(shape)
    for name in names:
        got = registry.to_numpy(getattr(owner, name)).shape
        if got not in ((), (n,)):
            raise ProblemError(
                f"{type(owner).__name__}: {name} has {got[0]} entries, theta's leaf of shape {shape} has {n}"
            )


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
    xp, real, place, found = namespace_of(like), like.dtype, device(like), []
    if complex_dtype(real):
        real = real_dtype(like)
    for parameter in parameters:
        dtype, owner = real, None if isinstance(parameter, float) else registry.of(parameter)
        if owner is not None and owner is not registry.owner(like):
            parameter = registry.to_numpy(parameter)
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
    return np.broadcast_to(registry.to_numpy(parameter).astype(np.float64), (n,))
