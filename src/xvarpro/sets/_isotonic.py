"""Isotonic regression, over whole batches and without a loop over entries."""

from __future__ import annotations

from xvarpro.core.namespace import array_namespace
from xvarpro.core.struct import Array
from xvarpro.sets._root_finding import root


def isotonic(x: Array, *carried: Array) -> tuple[Array, ...]:
    """Nearest sequence that does not fall along the last axis, and what is `carried` averaged over the pooled blocks.

    Two fitted halves need one pooled block between them, ``min(left, m)`` and ``max(right, m)`` at the root m of
    ``sum max(left - m, 0) = sum max(m - right, 0)``: log2(n) levels of halves that double, all of a level at once,
    where pooling adjacent violators would go entry by entry.
    """
    xp = array_namespace(x)
    eps = xp.finfo(x.dtype).eps
    n = x.shape[-1]
    if n < 2:
        return (x, *carried)
    batch = x.shape[:-1]
    size = 1 << (n - 1).bit_length()
    if size > n:
        # entries that are above all others pool with nothing
        filler = xp.broadcast_to(xp.max(x, axis=-1, keepdims=True), (*batch, size - n))
        x = xp.concat([x, filler], axis=-1)
        carried = tuple(xp.concat([c, xp.zeros_like(filler)], axis=-1) for c in carried)
    width = 1
    while width < size:
        shape = (*batch, size // (2 * width), 2, width)
        pairs = xp.reshape(x, shape)
        left, right = pairs[..., 0, :], pairs[..., 1, :]
        height = _height(left, right, 0.25 * eps)
        pooled = xp.concat([xp.expand_dims(left > height, axis=-2), xp.expand_dims(right < height, axis=-2)], axis=-2)
        x = xp.reshape(xp.where(pooled, xp.expand_dims(height, axis=-1), pairs), (*batch, size))
        if carried:
            count = xp.sum(xp.astype(pooled, x.dtype), axis=(-2, -1), keepdims=True)
            count = xp.maximum(count, xp.ones_like(count))
            parts = [xp.reshape(c, shape) for c in carried]
            sums = [xp.sum(xp.where(pooled, c, xp.zeros_like(c)), axis=(-2, -1), keepdims=True) for c in parts]
            means = [xp.where(pooled, total / count, c) for total, c in zip(sums, parts, strict=True)]
            carried = tuple(xp.reshape(c, (*batch, size)) for c in means)
        width *= 2
    return tuple(c[..., :n] for c in (x, *carried))


def antitonic(x: Array, *carried: Array) -> tuple[Array, ...]:
    """Nearest sequence that does not rise along the last axis, and what is `carried` averaged likewise."""
    y, *rest = isotonic(-x, *carried)
    return (-y, *rest)


def _height(left: Array, right: Array, eps: float) -> Array:
    """Height of the block between two sequences that do not fall, keepdims."""
    xp = array_namespace(left)
    bottom, peak = right[..., :1], left[..., -1:]
    falls = peak > bottom
    low, high = xp.where(falls, bottom, peak), peak

    def surplus(m: Array) -> tuple[Array, Array]:
        over, under = left - m, m - right
        value = xp.where(over > 0, over, xp.zeros_like(over)) - xp.where(under > 0, under, xp.zeros_like(under))
        count = xp.astype(over > 0, m.dtype) + xp.astype(under > 0, m.dtype)
        return xp.sum(value, axis=-1, keepdims=True), -xp.sum(count, axis=-1, keepdims=True)

    close = eps * xp.maximum(xp.abs(low), xp.abs(high))
    height = root(surplus, low, high, low + 0.5 * (high - low), close=close, near=close)
    # a NaN on either side must not pass for order
    return height + 0 * bottom + 0 * peak
