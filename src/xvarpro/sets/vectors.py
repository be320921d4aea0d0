"""Arithmetic on vectors that sets share: vertices, lengths without overflow, faces, thresholds without sorting."""

from __future__ import annotations

from typing import Any

from xvarpro import backends
from xvarpro.core.namespace import array_namespace, device, is_complex
from xvarpro.core.struct import Array


def mask_at(like: Array, index: Array) -> Array:
    """Whether an entry of the last axis is the one at `index`, keepdims."""
    return array_namespace(like).arange(like.shape[-1], device=device(like), dtype=index.dtype) == index


def vertex(like: Array, index: Array, entry: Array | float) -> Array:
    """`entry` at `index`, both keepdims, and 0 elsewhere, in the shape of `like`."""
    xp = array_namespace(like)
    return xp.where(mask_at(like, index), entry, xp.zeros_like(like))


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
    if not is_complex(x):
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


def unit(x: Array, axis: int = -1) -> tuple[Array, Array]:
    """``x / |x|``, 0 where x is 0, and the Euclidean norm ``|x|``, keepdims.

    The largest entry is taken out first, so that squares neither overflow nor underflow.
    """
    xp = array_namespace(x)
    y, scale = scaled(x, axis)
    square = xp.real(y) ** 2 + xp.imag(y) ** 2 if is_complex(x) else y * y
    length = xp.sqrt(xp.sum(square, axis=axis, keepdims=True))
    return y / or_one(length), scale * length


def norm(x: Array) -> Array:
    """Euclidean norm along the last axis, keepdims."""
    return unit(x)[1]


def direction(x: Array) -> Array:
    """``x / |x|`` along the last axis, 0 where x is 0."""
    return unit(x)[0]


def scaled(x: Array, axis: int = -1) -> tuple[Array, Array]:
    """``x / max |x|``, 0 where x is 0, and that maximum, keepdims: sums of what is scaled do not overflow."""
    xp = array_namespace(x)
    if x.shape[axis] == 0:
        return x, xp.sum(xp.abs(x), axis=axis, keepdims=True)
    scale = xp.max(xp.abs(x), axis=axis, keepdims=True)
    return x / or_one(scale), scale


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
