"""Searches that sets share: roots of monotone functions, top entries, isotonic regression; all batched."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from xvarpro import backends
from xvarpro.core.namespace import array_namespace, device
from xvarpro.core.struct import Array

Curve = Callable[[Array], tuple[Array, Array]]  # t -> value and slope of a function that does not rise


def root(fun: Curve, low: Array, high: Array, start: Array, *, close: Array | float, near: Array) -> Array:
    """Where a continuous function that does not rise crosses 0, one per entry of `low`.

    Newton's method inside a bracket; a step that leaves the bracket, or that is not half as long as the step before
    last, is replaced by a bisection (Brent's safeguard), so a function of any shape takes O(log 1/eps) evaluations and
    a piecewise linear one ends on the exact root of its last piece. Entries are independent of one another: one that is
    done rests, so that a batch gives the bits of a loop.

    Parameters
    ----------
    fun : callable
        t -> value and slope there, in the shape of t.
    low, high : arrays
        ``fun(low) >= 0 >= fun(high)``.
    start : array
        First trial.
    close, near : arrays or floats
        A step at most `close` (or one rounding of t) long ends the search; so does a value of at most `near`.
    """
    xp = array_namespace(low)
    backend = backends.owner(low)
    eps = xp.finfo(low.dtype).eps
    budget = -4 * round(math.log2(eps))
    State = tuple[Array, Array, Array, Array, Array, Array, Array]

    def body(state: State) -> State:
        t, low, high, last, before, active, k = state
        value, slope = fun(t)
        low = xp.where(value > 0, t, low)
        high = xp.where(value < 0, t, high)
        # no division unless its result is short enough to be taken
        steep = (slope < 0) & (2 * xp.abs(value) <= -slope * before)
        step = xp.where(steep, value, xp.zeros_like(value)) / xp.where(steep, -slope, xp.ones_like(slope))
        newton = steep & (t + step >= low) & (t + step <= high)
        new = xp.where(newton, t + step, low + 0.5 * (high - low))
        moved = xp.abs(new - t)
        found = ~(xp.abs(value) > near)  # a NaN ends the search and stays
        settled = ~(moved > xp.maximum(close + xp.zeros_like(t), eps * xp.abs(t)))
        t = xp.where(active & ~found, new, t)
        return t, low, high, moved, last, active & ~found & ~settled, k + 1

    far = xp.abs(high - low) + xp.abs(start)
    far = 4 * xp.where(far > 0, far, xp.ones_like(far))
    count = xp.zeros((), dtype=xp.int32, device=device(low))
    state = (start, low, high, far, far, low < high, count)
    return backend.while_loop(lambda state: xp.any(state[5]) & (state[6] < budget), body, state)[0]


def onto_slice(y: Array, weights: Array, upper: Array | None, total: Array | float) -> Array:
    """Projection onto ``{0 <= x <= upper, <weights, x> = total}`` along the last axis.

    For ``weights > 0`` and ``0 <= total <= <weights, upper>``. The level is sought again from what the first search
    leaves, so that the result adds up to the rounding of the set however far `y` was: every search takes the digits of
    the dtype off the distance.
    """
    xp = array_namespace(y)
    y = y - level(y, weights, upper, total) * weights
    for _ in range(1 if xp.finfo(y.dtype).eps < 1e-10 else 2):
        y = y - level(y, weights, upper, total, xp.zeros_like(y[..., :1])) * weights
    y = xp.where(y < 0, xp.zeros_like(y), y)
    return y if upper is None else xp.where(y > upper, xp.zeros_like(y) + upper, y)


def level(y: Array, weights: Array, upper: Array | None, total: Array | float, start: Array | None = None) -> Array:
    """The t with ``<weights, clip(y - t weights, 0, upper)> = total``, keepdims."""
    xp = array_namespace(y)
    weights = xp.broadcast_to(weights, (y.shape[-1],))
    squares = weights * weights
    total = xp.zeros_like(y[..., :1]) + total
    near = xp.finfo(y.dtype).eps * total
    high = xp.max(y / weights, axis=-1, keepdims=True)
    if upper is None:
        low = xp.max((y - total / weights) / weights, axis=-1, keepdims=True)
        first = low
    else:
        low = xp.min((y - upper) / weights, axis=-1, keepdims=True)
        first = low + 0.5 * (high - low)

    def surplus(t: Array) -> tuple[Array, Array]:
        z = y - t * weights
        inside = z > 0 if upper is None else (z > 0) & (z < upper)
        z = xp.where(z < 0, xp.zeros_like(z), z)
        z = z if upper is None else xp.where(z > upper, xp.zeros_like(z) + upper, z)
        rate = xp.sum(xp.where(inside, squares, xp.zeros_like(z)), axis=-1, keepdims=True)
        return xp.sum(weights * z, axis=-1, keepdims=True) - total, -rate

    first = first if start is None else xp.minimum(xp.maximum(start, low), high)
    return root(surplus, low, high, first, close=near / xp.sum(squares), near=near)


def top(a: Array, k: Array | int) -> Array:
    """Mask of the `k` largest entries along the last axis, the first of those that tie. `k` may differ by batch."""
    xp = array_namespace(a)
    n = a.shape[-1]
    if isinstance(k, int):
        if k >= n:
            return a == a
        last = xp.sort(a, axis=-1, descending=True)[..., k - 1 : k]
    else:
        last = xp.take_along_axis(xp.sort(a, axis=-1, descending=True), xp.expand_dims(k, axis=-1) - 1, axis=-1)
        k = xp.expand_dims(xp.astype(k, xp.int32), axis=-1)
    above, level = a > last, a == last
    room = k - xp.sum(xp.astype(above, xp.int32), axis=-1, keepdims=True, dtype=xp.int32)
    return above | (level & (xp.cumulative_sum(xp.astype(level, xp.int32), axis=-1, dtype=xp.int32) <= room))


def ranked(a: Array) -> tuple[Array, Array]:
    """Stable order of the entries from the largest down, and the place of each entry in it."""
    xp = array_namespace(a)
    order = xp.argsort(-a, axis=-1, stable=True)
    return order, xp.argsort(order, axis=-1, stable=True)


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


def antitonic(x: Array, *carried: Array) -> tuple[Array, ...]:
    """Nearest sequence that does not rise along the last axis, and what is `carried` averaged likewise."""
    y, *rest = isotonic(-x, *carried)
    return (-y, *rest)


def phase(x: Array) -> Array:
    """``x / |x|``, for real x a sign; zero counts as positive: sign(0) = 0 would be no vertex."""
    xp = array_namespace(x)
    if not xp.isdtype(x.dtype, "complex floating"):
        return xp.where(x < 0, -xp.ones_like(x), xp.ones_like(x))
    # the larger part first: the modulus of what is denormal has no digits
    size = xp.maximum(xp.abs(xp.real(x)), xp.abs(xp.imag(x)))
    unit = x / xp.where(size == 0, xp.ones_like(size), size)
    length = xp.abs(unit)
    return xp.where(length == 0, xp.ones_like(x), unit / xp.where(length == 0, xp.ones_like(length), length))


def with_phase(size: Array, x: Array) -> Array:
    """``size x / |x|``, for ``size >= 0``."""
    xp = array_namespace(x)
    return size * phase(x) if xp.isdtype(x.dtype, "complex floating") else xp.copysign(size, x)


def real_part(x: Array) -> Array:
    """The real part, for real x the array itself."""
    xp = array_namespace(x)
    return xp.real(x) if xp.isdtype(x.dtype, "complex floating") else x


def apply(matrix: Array, x: Array) -> Array:
    """``matrix @ x`` along the last axis of `x`, by sums rather than products, which round by the size of the batch."""
    xp = array_namespace(x)
    return xp.sum(matrix * xp.expand_dims(x, axis=-2), axis=-1)


def excess(size: Array, radius: Any) -> Array:
    """``max(size - radius, 0)`` relative to the radius: what a ball answers to `violation`."""
    xp = array_namespace(size)
    over = size - radius
    return xp.maximum(over, xp.zeros_like(over)) / (radius or 1.0)
