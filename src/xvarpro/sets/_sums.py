"""Partial sums of long sequences: which of them is largest, without making all of them."""

from __future__ import annotations

from collections.abc import Callable

from xvarpro import backends
from xvarpro.core.namespace import array_namespace, device
from xvarpro.core.struct import Array
from xvarpro.sets.vectors import first_index, largest_size, scaled

_SPAN = 512  # entries whose sum, and sum of sizes, bound the partial sums among them
_BLOCK = 64  # spans that are searched at a time
_LENGTH = _SPAN * _BLOCK

Height = Callable[[Array], Array]


def highest_sum(g: Array, height: Height, centred: bool = False) -> tuple[Array, Array]:
    """Length k and value of the partial sum ``S_k = g_1 + .. + g_k`` with the largest `height`, the first of those.

    Of all k = 0, .., n; `centred`, of ``g - mean g`` and of k = 1, .., n - 1. Along the last axis, keepdims. The
    height is a convex function, entry by entry.
    """
    return (_of_short if g.shape[-1] < 2 * _LENGTH else _of_long)(g, height, centred)


def _of_short(g: Array, height: Height, centred: bool) -> tuple[Array, Array]:
    xp = array_namespace(g)
    x, scale = scaled(g)
    if centred:
        x = x - xp.mean(x, axis=-1, keepdims=True)
        # what rounding has left of the mean would add up
        x = x - xp.mean(x, axis=-1, keepdims=True)
    sums = xp.cumulative_sum(x, axis=-1)
    sums = sums[..., :-1] if centred else xp.concat([xp.zeros_like(sums[..., :1]), sums], axis=-1)
    best = xp.argmax(height(sums), axis=-1, keepdims=True)
    return best + int(centred), scale * xp.take_along_axis(sums, best, axis=-1)


def _of_long(g: Array, height: Height, centred: bool) -> tuple[Array, Array]:
    """Searches only those blocks that can hold a larger one than was found: of a random walk, a few.

    Partial sums wait for one another, which takes several times as long as to read them. How far they go inside a span
    follows from where it begins, and from how much all that rises and all that falls there comes to.
    """
    xp, backend, n = array_namespace(g), backends.owner(g), g.shape[-1]
    zero = xp.zeros_like(g[..., :1])

    def measured(g: Array) -> tuple[Array, ...]:
        # a sample is near enough to the mean for what is left of it to be little
        shift = xp.mean(g[..., :: n // _SPAN], axis=-1, keepdims=True) if centred else zero
        change, size = _spans(g, shift)
        left = xp.sum(change, axis=-1, keepdims=True) / n if centred else zero
        lengths = xp.clip(n - _SPAN * xp.arange(change.shape[-1], device=device(g)), 0, _SPAN)
        lengths = xp.astype(lengths, g.dtype)
        change, size = change - lengths * left, size + lengths * xp.abs(left)
        ends = xp.cumulative_sum(change, axis=-1)
        starts = xp.concat([zero, ends[..., :-1]], axis=-1)
        bounds = xp.maximum(height(starts + 0.5 * (change + size)), height(starts + 0.5 * (change - size)))
        return shift, left, starts, xp.max(xp.reshape(bounds, (*bounds.shape[:-1], -1, _BLOCK)), axis=-1)

    found = measured(g)
    safe = xp.max(xp.abs(found[-1]), axis=-1, keepdims=True) < 0.25 * xp.finfo(g.dtype).max

    def rescued(state: tuple[Array, ...]) -> tuple[Array, ...]:
        scale = xp.where(safe, state[0], largest_size(g))
        return (scale, *measured(g / scale))

    scale, shift, left, starts, bounds = backend.when(xp.any(~safe), rescued, (zero + 1, *found))

    def promising(state: tuple[Array, ...]) -> Array:
        bounds, best, k, _ = state
        most, block = xp.max(bounds, axis=-1, keepdims=True), xp.argmax(bounds, axis=-1, keepdims=True)
        return (most > best) | ((most == best) & (block * _LENGTH < k))

    def body(state: tuple[Array, ...]) -> tuple[Array, ...]:
        bounds, best, k, sum_ = state
        block = xp.argmax(bounds, axis=-1, keepdims=True)
        places = block * _LENGTH + xp.arange(_LENGTH, device=device(g), dtype=block.dtype)
        ends = places < n - int(centred)
        x = xp.take_along_axis(g, xp.where(ends, places, xp.zeros_like(places)), axis=-1) / scale - shift - left
        start = xp.take_along_axis(starts, places[..., ::_SPAN] // _SPAN, axis=-1)
        spans = xp.cumulative_sum(xp.reshape(x, (*x.shape[:-1], _BLOCK, _SPAN)), axis=-1)
        sums = xp.reshape(spans + xp.expand_dims(start, axis=-1), x.shape)
        heights = xp.where(ends, height(sums), -xp.inf)
        at = xp.argmax(heights, axis=-1, keepdims=True)
        found, ended = xp.take_along_axis(heights, at, axis=-1), block * _LENGTH + at + 1
        better = promising(state) & ((found > best) | ((found == best) & (ended < k)))
        return (
            xp.where(first_index(bounds, block[..., 0]), -xp.inf, bounds),
            xp.where(better, found, best),
            xp.where(better, ended, k),
            xp.where(better, xp.take_along_axis(sums, at, axis=-1), sum_),
        )

    # the sum of none
    k = xp.zeros_like(xp.argmax(bounds, axis=-1, keepdims=True)) + int(centred)
    best = zero - xp.inf if centred else height(zero)
    _, _, k, sum_ = backend.while_loop(lambda state: xp.any(promising(state)), body, (bounds, best, k, zero))
    return k, scale * sum_


def _spans(g: Array, shift: Array) -> tuple[Array, Array]:
    """Of every span the sum of ``g - shift`` and that of its size, and 0 up to a whole block."""
    xp, backend, n = array_namespace(g), backends.owner(g), g.shape[-1]

    def sums(x: Array) -> Array:
        spans = backend.units(x, _SPAN)
        return xp.stack([xp.sum(spans, axis=-1), xp.sum(xp.abs(spans), axis=-1)])

    rest = g[..., n - n % _SPAN :] - shift
    spare = xp.zeros((*g.shape[:-1], -n % _LENGTH), dtype=g.dtype, device=device(g))
    whole = backend.piecewise(lambda g: sums(g - shift), g, unit=_SPAN)
    both = xp.concat([whole, sums(xp.concat([rest, spare], axis=-1))], axis=-1)
    return both[0, ...], both[1, ...]
