"""Arithmetic that sets share: vertices without scatter, directions without overflow, thresholds without sorting."""

from __future__ import annotations

from array_api_compat import array_namespace, device

from xvarpro import backends
from xvarpro.protocols import Array


def first_index(x: Array, best: Array) -> Array:
    """One-hot mask along the last axis at index `best`: a vertex that JAX accepts and ties cannot spoil."""
    xp = array_namespace(x)
    return xp.arange(x.shape[-1], device=device(x), dtype=best.dtype) == xp.expand_dims(best, axis=-1)


def norm(x: Array) -> Array:
    """Euclidean norm along the last axis, keepdims, scaled so that squares neither overflow nor underflow."""
    xp = array_namespace(x)
    unit, scale = _scaled(x)
    return scale * xp.sqrt(xp.sum(unit * unit, axis=-1, keepdims=True))


def direction(x: Array) -> Array:
    """``x / |x|`` along the last axis, 0 where x is 0: exact zero test, no additive epsilon."""
    xp = array_namespace(x)
    unit, _ = _scaled(x)
    length = xp.sqrt(xp.sum(unit * unit, axis=-1, keepdims=True))
    return unit / xp.where(length > 0, length, xp.ones_like(length))


def _scaled(x: Array) -> tuple[Array, Array]:
    xp = array_namespace(x)
    if x.shape[-1] == 0:
        return x, xp.ones((*x.shape[:-1], 1), dtype=x.dtype, device=device(x))
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
