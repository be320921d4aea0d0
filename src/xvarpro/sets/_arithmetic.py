"""Arithmetic that sets share: vertices without scatter, directions without overflow, thresholds without sorting."""

from __future__ import annotations

from typing import Any

from array_api_compat import array_namespace, device

from xvarpro import backends
from xvarpro.protocols import Array


def first_index(x: Array, best: Array) -> Array:
    """One-hot mask along the last axis at index `best`: a vertex that JAX accepts and ties cannot spoil."""
    xp = array_namespace(x)
    return xp.arange(x.shape[-1], device=device(x), dtype=best.dtype) == xp.expand_dims(best, axis=-1)


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


def direction(x: Array) -> Array:
    """``x / |x|`` along the last axis, 0 where x is 0: exact zero test, no additive epsilon."""
    xp = array_namespace(x)
    unit, _ = scaled(x)
    length = xp.sqrt(xp.sum(_square(unit), axis=-1, keepdims=True))
    return unit / xp.where(length > 0, length, xp.ones_like(length))


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
    scale = xp.max(xp.abs(x), axis=-1, keepdims=True)
    # written so that NaN stays NaN
    return x / xp.where(scale == 0, xp.ones_like(scale), scale), scale


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
