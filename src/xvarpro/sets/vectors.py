"""Arithmetic that sets share: vertices without scatter, directions without overflow, thresholds without sorting."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from xvarpro import backends
from xvarpro.core.namespace import array_namespace, device
from xvarpro.core.struct import Array

_PIECE = 4096  # entries whose maximum is taken at a time


def first_index(x: Array, best: Array) -> Array:
    """One-hot mask along the last axis at index `best`, the smallest that may be: ties cannot spoil it."""
    xp = array_namespace(x)
    return xp.arange(x.shape[-1], device=device(x), dtype=best.dtype) == xp.expand_dims(best, axis=-1)


def first_largest(x: Array) -> Array:
    """Index of the largest entry along the last axis, the first of those that tie, keepdims; any where x has a NaN."""
    xp = array_namespace(x)
    return _first(lambda x: x, lambda x: xp.max(_pieces(x), axis=-1), x)


def first_smallest(x: Array) -> Array:
    """As `first_largest`, of ``-x``."""
    xp = array_namespace(x)
    return _first(lambda x: -x, lambda x: -xp.min(_pieces(x), axis=-1), x)


def first_steepest(x: Array) -> Array:
    """As `first_largest`, of ``|x|``, which for real x is not made: the extremes of x are those of ``|x|``."""
    xp = array_namespace(x)
    if xp.isdtype(x.dtype, "complex floating"):
        return first_largest(xp.abs(x))
    return _first(xp.abs, lambda x: peak(_pieces(x)), x)


def first_peak(height: Callable[..., Array], *arrays: Array) -> Array:
    """As `first_largest`, of ``height(*arrays)``, entry by entry, of which no more is made than what a cache holds."""
    xp = array_namespace(*arrays)

    def peaks(*arrays: Array) -> Array:
        def some(*arrays: Array) -> Array:
            return xp.max(_pieces(height(*arrays)), axis=-1)

        return backends.owner(arrays[0]).piecewise(some, *arrays, unit=_PIECE)

    return _first(height, peaks, *xp.broadcast_arrays(*arrays))


def peak(x: Array) -> Array:
    """The largest ``|x|`` along the last axis, for real x without making ``|x|``."""
    xp = array_namespace(x)
    if xp.isdtype(x.dtype, "complex floating"):
        return xp.max(xp.abs(x), axis=-1)
    return xp.maximum(xp.max(x, axis=-1), -xp.min(x, axis=-1))


def total(height: Callable[..., Array], *arrays: Array) -> Array:
    """Sum of ``height(*arrays)``, entry by entry, along the last axis, keepdims, made as in `first_peak`."""
    xp, n = array_namespace(*arrays), arrays[0].shape[-1]
    if n < 2 * _PIECE:
        return xp.sum(height(*arrays), axis=-1, keepdims=True)

    def sums(*arrays: Array) -> Array:
        return xp.sum(_pieces(height(*arrays)), axis=-1)

    whole = backends.owner(arrays[0]).piecewise(sums, *arrays, unit=_PIECE)
    rest = height(*(x[..., n - n % _PIECE :] for x in arrays))
    return xp.sum(whole, axis=-1, keepdims=True) + xp.sum(rest, axis=-1, keepdims=True)


def signed_power(x: Array, p: float, scale: Array | None = None) -> tuple[Array, Array]:
    """``|z|^p z / |z|`` for ``z = x / scale``, and the sum of ``|z|^(p+1)`` along the last axis, keepdims."""
    xp, backend, n = array_namespace(x), backends.owner(x), x.shape[-1]
    unit = max(1, n) if n < 2 * _PIECE else _PIECE
    made, sums = backend.signed_power(x, p, unit, scale)
    spent, rest = xp.sum(sums, axis=-1, keepdims=True), n % unit
    return made, spent + backend.signed_power(x[..., n - rest :], p, rest, scale)[1] if rest else spent


def _pieces(x: Array) -> Array:
    return backends.owner(x).units(x, _PIECE)


def _first(height: Callable[..., Array], peaks: Callable[..., Array], *arrays: Array) -> Array:
    """The first index of the largest ``height(*arrays)``, whose maxima over whole pieces are ``peaks(*arrays)``.

    Of a long axis only the first piece that holds the peak is searched: a maximum is taken at the speed of memory,
    its index is not on every framework.
    """
    like = arrays[0]
    xp = array_namespace(like)
    n = like.shape[-1]
    if n < 2 * _PIECE:
        return xp.argmax(height(*arrays), axis=-1, keepdims=True)
    # the last piece is as long as the others: what it shares with the one before, that one is asked for first
    last = peaks(*(x[..., n - _PIECE :] for x in arrays))
    best = xp.argmax(xp.concat([peaks(*arrays), last], axis=-1), axis=-1, keepdims=True)
    start = xp.minimum(best * _PIECE, xp.full_like(best, n - _PIECE))
    inside = start + xp.arange(_PIECE, dtype=best.dtype, device=device(like))
    return start + xp.argmax(height(*(xp.take_along_axis(x, inside, axis=-1) for x in arrays)), axis=-1, keepdims=True)


def one_hot(like: Array, index: Array, entry: Array | float, base: float | Array = 0.0) -> Array:
    """`base` in the shape of `like`, and `entry` more at `index`, both keepdims: a vertex."""
    xp = array_namespace(like)
    if isinstance(entry, float | int):
        entry = xp.full(index.shape, entry, dtype=like.dtype, device=device(like))
    if isinstance(base, float) and not base:
        return backends.owner(like).one_hot(like, index, entry)
    rest = xp.astype(xp.broadcast_to(beside(base, like), like.shape), like.dtype, copy=False)
    return backends.owner(like).one_hot(like, index, entry + xp.take_along_axis(rest, index, axis=-1), rest)


def stepped(like: Array, k: Array, low: Array | float, high: Array | float) -> Array:
    """The first k entries `low`, keepdims as k, the others `high`, in the shape of `like`."""
    xp, n = array_namespace(like), like.shape[-1]
    low, high = beside(low, like), beside(high, like)
    if n < 2 * _PIECE:
        return xp.where(xp.arange(n, dtype=k.dtype, device=device(like)) < k, low, high)
    # pieces before and behind the step have one value
    step = xp.expand_dims(xp.minimum(k // _PIECE, xp.full_like(k, (n - 1) // _PIECE)), axis=-1)
    low, high = xp.broadcast_to(low, k.shape)[..., None], xp.broadcast_to(high, k.shape)[..., None]
    pieces = xp.arange(-(-n // _PIECE), dtype=k.dtype, device=device(like))[:, None]
    places = xp.arange(_PIECE, dtype=k.dtype, device=device(like))
    inside = xp.where(step * _PIECE + places < k[..., None], low, high)
    base = xp.where(pieces < step, low, high)
    shape = (*base.shape[:-1], _PIECE)
    out = backends.owner(like).one_hot(xp.broadcast_to(base, shape), step, inside, base, axis=-2)
    return xp.reshape(out, (*shape[:-2], -1))[..., :n]


def by_sign(x: Array, high: Array | float, low: Array | float) -> Array:
    """`high` where ``x < 0``, `low` elsewhere, in the shape of `x`, for ``low <= high``."""
    return backends.owner(x).by_sign(x, beside(high, x), beside(low, x))


def beside(parameter: Any, like: Array) -> Array:
    """A parameter of a set, a number or an array of any framework, in the framework, dtype and device of `like`."""
    xp = array_namespace(like)
    dtype = real_dtype(like)
    owner = backends.of(parameter)
    if owner is not None and owner is not backends.owner(like):
        parameter = owner.to_numpy(parameter)
    return xp.asarray(parameter, dtype=dtype, device=device(like))


def real_dtype(x: Array) -> Any:
    """The dtype of the real part of `x`."""
    xp = array_namespace(x)
    if not xp.isdtype(x.dtype, "complex floating"):
        return x.dtype
    return xp.float32 if x.dtype == xp.complex64 else xp.float64


def ratio_test(room: Array, d: Array) -> Array:
    """Largest alpha with ``alpha d <= room`` along the last axis, for ``room >= 0``; inf where no entry of d rises."""
    xp = array_namespace(d)
    rising = d > 0
    alpha = xp.where(rising, room / xp.where(rising, d, xp.ones_like(d)), xp.full_like(d, xp.inf))
    return xp.maximum(xp.min(alpha, axis=-1), xp.zeros_like(alpha[..., 0]))


def centred(d: Array, kept: Array) -> Array:
    """`d` on the entries `kept`, less their mean there; 0 elsewhere."""
    xp = array_namespace(d)
    inside = xp.where(kept, d, xp.zeros_like(d))
    count = xp.sum(xp.astype(kept, d.dtype), axis=-1, keepdims=True)
    mean = xp.sum(inside, axis=-1, keepdims=True) / xp.maximum(count, xp.ones_like(count))
    return xp.where(kept, d - mean, xp.zeros_like(d))


def negligible(x: Array, size: Array | float) -> Array:
    """Whether an entry that should be >= 0 is 0 up to the rounding of a set of that size."""
    return x <= (16 * array_namespace(x).finfo(x.dtype).eps) * size


def tight(slack: Array, size: Array | float) -> Array:
    """Whether what is left of a bound on a sum is the rounding of many terms and many steps.

    Wider than `negligible`: to take a point for one of the face that it all but lies in keeps it feasible, to take a
    point of a face for one inside leaves it no way to go.
    """
    return slack <= (array_namespace(slack).finfo(slack.dtype).eps ** 0.75) * size


def norm(x: Array) -> Array:
    """Euclidean norm along the last axis, keepdims, scaled so that squares neither overflow nor underflow."""
    xp = array_namespace(x)
    unit, scale = scaled(x)
    return scale * xp.sqrt(xp.sum(_square(unit), axis=-1, keepdims=True))


def fast_norm(x: Array, order: int = 2) -> Array:
    """l1 or l2 norm along the last axis, in one pass where it can be: sums overflow, and squares underflow."""
    xp = array_namespace(x)
    return backends.owner(x).norm(xp.abs(x) if xp.isdtype(x.dtype, "complex floating") else x, order)[..., 0]


def direction(x: Array) -> Array:
    """``x / |x|`` along the last axis, 0 where x is 0: exact zero test, no additive epsilon."""
    xp = array_namespace(x)
    unit, _ = scaled(x)
    length = xp.sqrt(xp.sum(_square(unit), axis=-1, keepdims=True))
    return unit / xp.where(length > 0, length, xp.ones_like(length))


def of_length(x: Array, size: float, spent: bool = False) -> Array:
    """``size x / |x|`` along the last axis, 0 where x is 0: `direction` in one pass for the length, one to divide.

    An x that is `spent` is nobody else's, and may be written to.
    """
    return _turned(x, size, spent)[0] if size else size * direction(x)


def unit(x: Array, axis: int = -1) -> tuple[Array, Array]:
    """`direction` and `norm` in two passes, as `of_length`, along the last axis or the one before."""
    u, length, safe = _turned(x, 1.0, axis=axis)
    xp = array_namespace(x)
    return u, backends.owner(x).when(
        xp.any(~safe), lambda length: xp.where(safe, length, _along(norm, x, axis)), length
    )


def _along(fun: Callable[[Array], Array], x: Array, axis: int) -> Array:
    """What works along the last axis, along that one or the one before."""
    xp = array_namespace(x)
    return fun(x) if axis == -1 else xp.matrix_transpose(fun(xp.matrix_transpose(x)))


def _turned(x: Array, size: float, spent: bool = False, axis: int = -1) -> tuple[Array, Array, Array]:
    """``size x / |x|``, and ``|x|`` where it is safe.

    Only where squares have overflowed, or have underflowed to a loss of digits, and where x is 0 or not finite, the
    entry of largest size is taken out first.
    """
    xp = array_namespace(x)
    if xp.isdtype(x.dtype, "complex floating") or 0 in x.shape:
        length = _along(norm, x, axis)
        return size * _along(direction, x, axis), length, length == length
    backend = backends.owner(x)
    length = backend.norm(x) if axis == -1 else backend.norms(x, 2, axis)
    divisor = length / size
    info = xp.finfo(x.dtype)
    safe = (length > math.sqrt(info.smallest_normal * x.shape[axis] / info.eps)) & (length < xp.inf) & divides(divisor)
    # row by row, lest the rows of a batch see one another: those to be rescued are still as they were
    divisor = xp.where(safe, divisor, xp.ones_like(divisor))
    vertex = backend.divided(x, divisor) if spent else x / divisor
    vertex = backend.when(xp.any(~safe), lambda x: xp.where(safe, x, size * _along(direction, x, axis)), vertex)
    return vertex, length, safe


def in_range(spent: Array, n: int) -> Array:
    """Whether a sum of n powers has neither overflowed nor lost digits to underflow."""
    xp = array_namespace(spent)
    info = xp.finfo(spent.dtype)
    return (spent > info.smallest_normal * n / info.eps) & (spent < xp.inf)


def divides(x: Array) -> Array:
    """Whether division by `x` keeps all digits."""
    xp = array_namespace(x)
    return (xp.abs(x) >= xp.finfo(x.dtype).smallest_normal) & (xp.abs(x) < xp.inf)


def _square(x: Array) -> Array:
    """``|x|^2``, entry by entry."""
    xp = array_namespace(x)
    if not xp.isdtype(x.dtype, "complex floating"):
        return x * x
    return xp.real(x) * xp.real(x) + xp.imag(x) * xp.imag(x)


def scaled(x: Array) -> tuple[Array, Array]:
    """``x / max |x|`` along the last axis, 0 where x is 0, and that maximum, keepdims: what is scaled sums up."""
    xp = array_namespace(x)
    if x.shape[-1] == 0:
        return x, xp.ones((*x.shape[:-1], 1), dtype=real_dtype(x), device=device(x))
    scale = xp.expand_dims(peak(x), axis=-1)
    return x / or_one(scale), scale


def largest_size(x: Array) -> Array:
    """``max |x|`` along the last axis, 1 where x is 0, keepdims: a divisor that leaves what sums up."""
    return or_one(array_namespace(x).expand_dims(peak(x), axis=-1))


def or_one(size: Array) -> Array:
    """A size, 1 where it is 0: a divisor. NaN stays NaN."""
    xp = array_namespace(size)
    return xp.where(size == 0, xp.ones_like(size), size)


def onto_simplex(x: Array, radius: float) -> Array:
    """Projection onto ``{x >= 0, sum x = radius}`` along the last axis.

    Newton's method on ``sum max(x - tau, 0) = radius``, from the left: the function is convex, decreasing and piecewise
    linear, so the iterates rise to the root in finitely many steps (Michelot 1986, Condat 2016). About ten passes over
    the data replace a sort, which is the dearer of the two on every framework.
    """
    xp = array_namespace(x)
    backend = backends.owner(x)
    y = x - xp.max(x, axis=-1, keepdims=True)
    smallest = xp.finfo(x.dtype).eps * radius
    tau = xp.maximum(xp.full_like(y[..., :1], -radius), (xp.sum(y, axis=-1, keepdims=True) - radius) / x.shape[-1])

    def body(state: tuple[Array, Array]) -> tuple[Array, Array]:
        tau, _ = state
        above = y - tau
        active = above > 0
        excess = xp.sum(xp.where(active, above, xp.zeros_like(above)), axis=-1, keepdims=True) - radius
        count = xp.sum(xp.astype(active, x.dtype), axis=-1, keepdims=True)
        rise = excess / xp.maximum(count, xp.ones_like(count))
        return xp.where(rise > 0, tau + rise, tau), rise

    tau, _ = backend.while_loop(lambda state: xp.any(state[1] > smallest), body, (tau, xp.ones_like(tau)))
    above = y - tau
    # a NaN of x stays one
    return xp.where(above < 0, xp.zeros_like(above), above)
