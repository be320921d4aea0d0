"""Balls of the group lasso."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from xvarpro.core.namespace import device, namespace_of
from xvarpro.core.struct import Array
from xvarpro.sets._grouping import (
    Grouping,
    by_entry,
    by_group,
    fitting,
    grouping,
    groupings,
    join,
    plan_of,
    split,
)
from xvarpro.sets._root_finding import root
from xvarpro.sets._thresholds import level, onto_simplex
from xvarpro.sets.interface import NormBall, Set
from xvarpro.sets.vectors import direction, largest, norm, phase, scaled, vanishes


@dataclass(frozen=True)
class _GroupBall(NormBall):
    """A ball in a sum of norms of groups of entries."""

    groups: Grouping = 2
    radius: float = 1.0

    def __post_init__(self) -> None:
        grouping(self)
        super().__post_init__()

    @classmethod
    def examples(cls, shape: tuple[int, ...]) -> tuple[Set, ...]:
        return (cls(), *(cls(groups, 2.0) for groups in groupings(shape)))

    def check(self, shape: tuple[int, ...]) -> None:
        fitting(self, shape)

    def _in_best_group(self, sizes: Array, vertex: Array) -> Array:
        """``-radius vertex`` in the first group of the largest size, 0 in all others."""
        xp = namespace_of(vertex)
        best = xp.argmax(sizes, axis=-1, keepdims=True)
        groups = xp.arange(sizes.shape[-1], dtype=best.dtype, device=device(best))
        chosen = by_entry(self.groups, groups, vertex.shape[-1]) == best
        return xp.where(chosen, -self.radius * vertex, xp.zeros_like(vertex))


@final
@dataclass(frozen=True)
class GroupL12Ball(_GroupBall):
    """Ball of the group lasso, ``{sum over groups of |x_G|_2 <= radius}``, along the last axis.

    Parameters
    ----------
    groups : int or tuple of tuples of int
        The entries of each group, every one in one group; a number makes groups of that many consecutive entries, the
        last one of what is left.
    radius : float
        Radius, >= 0.

    Notes
    -----
    LMO : ``-radius g_G / |g_G|_2`` in the group with most ``|g_G|_2``; first group
    Cost : O(n)
    Diameter : ``2 radius``
    Projection : the group norms onto `Simplex`

    Yuan and Lin (2006).

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> xv.sets.GroupL12Ball(2).lmo(np.array([3.0, -4.0, 2.0, 2.0]))
    array([-0.6,  0.8,  0. ,  0. ])
    """

    takes_complex = True

    def _directions(self, x: Array) -> Array:
        """``x_G / |x_G|_2``, group by group."""
        return join(self.groups, [direction(part) for part in split(self.groups, x)])

    def _norms(self, x: Array) -> Array:
        return by_group(self.groups, [norm(part)[..., 0] for part in split(self.groups, x)], x.shape[-1])

    def lmo(self, g: Array) -> Array:
        return self._in_best_group(self._norms(g), self._directions(g))

    def project(self, x: Array) -> Array:
        xp = namespace_of(x)
        sizes = self._norms(x)
        fits = xp.sum(sizes, axis=-1, keepdims=True) <= self.radius
        kept = by_entry(self.groups, onto_simplex(sizes, self.radius), x.shape[-1])
        return xp.where(fits, x, kept * self._directions(x))

    def diameter(self, like: Array) -> float:
        return 2 * self.radius

    def _size(self, x: Array) -> Array:
        return namespace_of(x).sum(self._norms(x), axis=-1)


@final
@dataclass(frozen=True)
class GroupL1InfBall(_GroupBall):
    """Ball ``{sum over groups of max |x_G| <= radius}`` along the last axis.

    Parameters
    ----------
    groups : int or tuple of tuples of int
        The entries of each group, every one in one group; a number makes groups of that many consecutive entries, the
        last one of what is left.
    radius : float
        Radius, >= 0.

    Notes
    -----
    LMO : ``-radius sign(g_G)`` in the group with most ``|g_G|_1``; first group
    Cost : O(n)
    Diameter : ``2 radius sqrt(max |G|)``
    Projection : sort, then root search, O(n) a trial

    Quattoni, Carreras, Collins, Darrell (2009). The projection cuts every group at a height of its own, so that all
    groups that remain lose the same sum: one root over that sum, with a simplex projection per group inside.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> xv.sets.GroupL1InfBall(2).lmo(np.array([3.0, -4.0, 2.0, 2.0]))
    array([-1.,  1.,  0.,  0.])
    """

    polytope = True

    def _over(self, reduce: Callable[..., Array], x: Array) -> Array:
        """``|x_G|_1`` or ``|x_G|_inf``, one per group."""
        parts = [reduce(namespace_of(x).abs(part), axis=-1) for part in split(self.groups, x)]
        return by_group(self.groups, parts, x.shape[-1])

    def lmo(self, g: Array) -> Array:
        return self._in_best_group(self._over(namespace_of(g).sum, scaled(g)[0]), phase(g))

    def project(self, x: Array) -> Array:
        xp = namespace_of(x)
        n, eps = x.shape[-1], xp.finfo(x.dtype).eps
        fits = xp.expand_dims(self._size(x), axis=-1) <= self.radius
        if vanishes(self.radius):
            return 0 * x
        sizes = [xp.abs(part) for part in split(self.groups, x)]
        # of what is far away differences count: what is kept of each group, and not what it loses, is sought, from what
        # the largest one holds; and no group is cut higher than at the radius
        whole = [xp.sum(part, axis=-1, keepdims=True) for part in sizes]
        highest = xp.max(by_group(self.groups, [part[..., 0] for part in whole], n), axis=-1, keepdims=True)
        cut_off = [xp.minimum(part, xp.full_like(part, self.radius)) for part in sizes]
        parts = [xp.sort(part, axis=-1, descending=True, stable=False) for part in cut_off]
        below = [part - xp.expand_dims(highest, axis=-1) for part in whole]

        def cuts(minus_kept: Array) -> list[Array]:
            """Where each group is cut to keep that much: at 0 where it has to lose more than it has."""
            out = []
            for part, less in zip(parts, below, strict=True):
                most, kept = xp.sum(part, axis=-1, keepdims=True), less - xp.expand_dims(minus_kept, axis=-1)
                lost = xp.where(kept < most, most - kept, xp.zeros_like(most))
                cut = level(part, lost)
                out.append(xp.where(kept > 0, cut, xp.zeros_like(cut))[..., 0])
            return out

        def surplus(minus_kept: Array) -> tuple[Array, Array]:
            heights, rates = cuts(minus_kept), []
            for part, cut in zip(parts, heights, strict=True):
                count = xp.sum(xp.astype(part > xp.expand_dims(cut, axis=-1), x.dtype), axis=-1)
                rates.append(xp.where((cut > 0) & (count > 0), 1 / xp.maximum(count, xp.ones_like(count)), 0 * count))
            value = xp.sum(by_group(self.groups, heights, n), axis=-1, keepdims=True) - self.radius
            return value, -xp.sum(by_group(self.groups, rates, n), axis=-1, keepdims=True)

        most = self.radius * max(entries for _, entries in plan_of(self.groups, n).sizes)
        low, near = -xp.where(highest > most, most + 0 * highest, highest), eps * self.radius
        kept = root(surplus, low, 0 * low, 0.5 * low, close=0.0, near=near)
        heights = by_entry(self.groups, by_group(self.groups, cuts(kept), n), n)
        return xp.where(fits, x, phase(x) * xp.minimum(xp.abs(x), heights))

    def diameter(self, like: Array) -> float:
        plan = plan_of(self.groups, like.shape[-1])
        return 2 * self.radius * math.sqrt(max(entries for _, entries in plan.sizes))

    def _size(self, x: Array) -> Array:
        return namespace_of(x).sum(self._over(largest, x), axis=-1)
