"""Balls of the group lasso."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from xvarpro.core.namespace import device, namespace_of
from xvarpro.core.struct import Array
from xvarpro.sets._ball import NormBall
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
from xvarpro.sets._thresholds import onto_simplex, threshold
from xvarpro.sets.interface import Set
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
    Projection : the group norms onto `Simplex`, O(n) a pass

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
    Projection : root search, another per group a trial

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
        # twice: what is far away comes back with the rounding of where it was
        return self._project(self._project(x))

    def _project(self, x: Array) -> Array:
        xp = namespace_of(x)
        n, eps = x.shape[-1], xp.finfo(x.dtype).eps
        fits = xp.expand_dims(self._size(x), axis=-1) <= self.radius
        if vanishes(self.radius):
            return 0 * x
        parts = [xp.abs(part) for part in split(self.groups, x)]

        def cuts(loss: Array) -> list[Array]:
            """Where each group is cut to lose that much: at 0 where it has no more."""
            out = []
            for part in parts:
                lost = xp.zeros_like(part[..., :1]) + xp.expand_dims(loss, axis=-1)
                cut = threshold(part, xp.ones((), dtype=x.dtype, device=device(x)), None, lost)
                out.append(xp.where(xp.sum(part, axis=-1, keepdims=True) > lost, cut, xp.zeros_like(cut))[..., 0])
            return out

        def surplus(loss: Array) -> tuple[Array, Array]:
            heights, rates = cuts(loss), []
            for part, cut in zip(parts, heights, strict=True):
                count = xp.sum(xp.astype(part > xp.expand_dims(cut, axis=-1), x.dtype), axis=-1)
                rates.append(xp.where(cut > 0, 1 / xp.maximum(count, xp.ones_like(count)), 0 * count))
            value = xp.sum(by_group(self.groups, heights, n), axis=-1, keepdims=True) - self.radius
            return value, -xp.sum(by_group(self.groups, rates, n), axis=-1, keepdims=True)

        high = xp.max(self._over(xp.sum, x), axis=-1, keepdims=True)
        near = eps * self.radius
        loss = root(surplus, xp.zeros_like(high), high, 0.5 * high, close=near, near=near)
        heights = by_entry(self.groups, by_group(self.groups, cuts(loss), n), n)
        return xp.where(fits, x, phase(x) * xp.minimum(xp.abs(x), heights))

    def diameter(self, like: Array) -> float:
        plan = plan_of(self.groups, like.shape[-1])
        return 2 * self.radius * math.sqrt(max(entries for _, entries in plan.sizes))

    def _size(self, x: Array) -> Array:
        return namespace_of(x).sum(self._over(largest, x), axis=-1)
