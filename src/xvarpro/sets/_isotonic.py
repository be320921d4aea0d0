"""Isotonic regression, over whole batches and without a loop over entries."""

from __future__ import annotations

from xvarpro.core.namespace import namespace_of
from xvarpro.core.struct import Array
from xvarpro.sets._root_finding import root


def isotonic(x: Array, *carried: Array) -> tuple[Array, ...]:
    """Nearest nondecreasing sequence along the last axis; `carried` arrays are averaged over the pooled blocks.

    The standard algorithm, pooling adjacent violators (Ayer et al., Annals of Mathematical Statistics 26, 1955), goes
    entry by entry. Here the sequence is merged from fitted halves. The fit of two halves that are fitted already has at
    most one block that reaches across the middle, since within each half the order holds; outside that block nothing
    changes. With its height m the fit is ``min(left, m)`` and ``max(right, m)``, and a block is as high as its mean:
    ``sum max(left - m, 0) = sum max(m - right, 0)``, a root of a piecewise linear function. So log2(n) levels, all
    halves of a level at once.
    """
    xp = namespace_of(x)
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
    """Nearest nonincreasing sequence along the last axis; `carried` arrays as in `isotonic`."""
    y, *rest = isotonic(-x, *carried)
    return (-y, *rest)


def _height(left: Array, right: Array, eps: float) -> Array:
    """Height of the block across the middle of two nondecreasing sequences, keepdims."""
    xp = namespace_of(left)
    bottom, peak = right[..., :1], left[..., -1:]
    falls = peak > bottom
    low, high = xp.where(falls, bottom, peak), peak

    def surplus(m: Array) -> tuple[Array, Array]:
        over, under = left - m, m - right
        value = xp.where(over > 0, over, xp.zeros_like(over)) - xp.where(under > 0, under, xp.zeros_like(under))
        count = xp.astype(over > 0, m.dtype) + xp.astype(under > 0, m.dtype)
        return xp.sum(value, axis=-1, keepdims=True), -xp.sum(count, axis=-1, keepdims=True)

    close = eps * xp.maximum(-low, high)
    return root(surplus, low, high, low + 0.5 * (high - low), close=close, near=close)
