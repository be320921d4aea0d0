"""Arithmetic of faces: which bounds a point meets, and how far a direction goes."""

from __future__ import annotations

from xvarpro.core.namespace import namespace_of
from xvarpro.core.struct import Array
from xvarpro.sets.interface import Set


def negligible(x: Array, size: Array | float) -> Array:
    """Whether an entry that should be >= 0 is 0 up to the rounding of a set of that size."""
    return x <= (16 * namespace_of(x).finfo(x.dtype).eps) * size


def tight(slack: Array, size: Array | float) -> Array:
    """Whether what is left of a bound on a sum is the rounding of many terms and many steps.

    Wider than `negligible`: a point that is taken for one of the face next to it stays feasible; a point of a face that
    is taken for one inside cannot move.
    """
    return slack <= (namespace_of(slack).finfo(slack.dtype).eps ** 0.75) * size


def ratio_test(room: Array, d: Array) -> Array:
    """Largest alpha with ``alpha d <= room`` along the last axis, for ``room >= 0``; inf where no entry of d rises."""
    xp = namespace_of(d)
    rising = d > 0
    alpha = xp.where(rising, room / xp.where(rising, d, xp.ones_like(d)), xp.full_like(d, xp.inf))
    return xp.maximum(xp.min(alpha, axis=-1), xp.zeros_like(alpha[..., 0]))


def rise_of_sum(terms: Array) -> Array:
    """Sum along the last axis, keepdims; 0 where it is what rounding leaves of a direction that keeps the sum."""
    xp = namespace_of(terms)
    rise = xp.sum(terms, axis=-1, keepdims=True)
    return xp.where(negligible(rise, xp.sum(xp.abs(terms), axis=-1, keepdims=True)), xp.zeros_like(rise), rise)


def centred(d: Array, kept: Array) -> Array:
    """`d` on the entries `kept`, less their mean there; 0 elsewhere."""
    xp = namespace_of(d)
    inside = xp.where(kept, d, xp.zeros_like(d))
    count = xp.sum(xp.astype(kept, d.dtype), axis=-1, keepdims=True)
    mean = xp.sum(inside, axis=-1, keepdims=True) / xp.maximum(count, xp.ones_like(count))
    return xp.where(kept, d - mean, xp.zeros_like(d))


def slide_by_projection(C: Set, d: Array, x: Array) -> Array:
    """`Set.slide` of a set with bounds entry by entry: the projection of ``x + d`` for the tangent part d.

    That projection only ever lowers what moves, so that an entry at its bound stays there.
    """
    return C.project(x + C.tangent(d, x))
