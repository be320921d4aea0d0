"""Sets with a weight on every entry: a simplex, a l1 ball, a knapsack."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np

from xvarpro import backends
from xvarpro.core import checks
from xvarpro.core.namespace import namespace_of
from xvarpro.core.struct import Array
from xvarpro.errors import ProblemError
from xvarpro.sets._faces import negligible, ratio_test, rise_of_sum, slide_by_projection
from xvarpro.sets._thresholds import onto_slice
from xvarpro.sets.interface import Set
from xvarpro.sets.vectors import (
    entries_at,
    fits,
    mask_at,
    on_host,
    or_one,
    phase,
    positive_part,
    scaled,
    spread,
    vector,
    vertex,
)


@final
@dataclass(frozen=True)
class WeightedSimplex(Set):
    """Weighted simplex ``{x >= lower, <weights, x> <= bound}`` along the last axis.

    Parameters
    ----------
    weights : float or vector
        Weights, > 0.
    lower : float or vector
        Lower bounds, finite.
    bound : float
        Largest weighted sum, at least that of the lower bounds.

    Notes
    -----
    LMO : ``lower + r_i e_i``, ``i = argmin r g``, if ``g_i < 0``, else ``lower``; first index
    Cost : O(n)
    Diameter : ``hypot`` of the two largest ``r_i``
    Projection : clip, or root search, O(n) a pass

    Here ``r = (bound - <weights, lower>) / weights``: how far each entry may rise alone.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> C = xv.sets.WeightedSimplex(np.array([1.0, 4.0]), bound=2.0)
    >>> C.lmo(np.array([-1.0, -5.0])), C.project(np.array([3.0, 1.0]))
    (array([0. , 0.5]), array([2., 0.]))
    """

    weights: float | Array = 1.0
    lower: float | Array = 0.0
    bound: float = 1.0

    polytope = True

    def __post_init__(self) -> None:
        vector(self, "weights", "> 0", lambda x: x > 0)
        vector(self, "lower")
        checks.above(self, "bound", -math.inf)
        n = max(backends.to_numpy(self.weights).size, backends.to_numpy(self.lower).size)
        if backends.to_numpy(self.weights).ndim or backends.to_numpy(self.lower).ndim:
            self._room(n)

    @classmethod
    def examples(cls, shape: tuple[int, ...]) -> tuple[Set, ...]:
        n = math.prod(shape)
        ramp = np.linspace(0.5, 2.0, n) if n > 1 else np.ones(1)
        return (cls(), cls(2.0, 0.0, 3.0), cls(ramp, -ramp[::-1].copy(), 1.5))

    def check(self, shape: tuple[int, ...]) -> None:
        fits(self, shape, "weights", "lower")
        self._room(math.prod(shape))

    def _room(self, n: int) -> float:
        """What the lower bounds leave of the bound, on the host."""
        a, low = backends.to_numpy(self.weights), backends.to_numpy(self.lower)
        if {a.shape, low.shape} - {(), (n,)}:
            raise ProblemError(f"WeightedSimplex: weights and lower must be of one length, got {a.size} and {low.size}")
        room = float(self.bound - np.sum(on_host(self.weights, n) * on_host(self.lower, n)))
        if room < 0:
            raise ProblemError(
                f"WeightedSimplex: <weights, lower> must be <= bound, got {self.bound - room:g} > {self.bound:g}"
            )
        return room

    def _parts(self, like: Array) -> tuple[Array, Array, Array]:
        """Weights, lower bounds, and the room between them and the bound, keepdims."""
        xp = namespace_of(like)
        a, low = spread(self.weights, like), spread(self.lower, like)
        return a, low, self.bound - xp.reshape(a @ low, (1,))

    def lmo(self, g: Array) -> Array:
        xp = namespace_of(g)
        a, low, room = self._parts(g)
        # numbers of size <= 1: neither may a ratio overflow
        slope = scaled(g)[0] * (xp.min(a) / a)
        at = mask_at(g, xp.argmin(slope, axis=-1, keepdims=True))
        return low + xp.where(at & (g < 0), room / a, xp.zeros_like(g))

    def project(self, x: Array) -> Array:
        xp = namespace_of(x)
        a, low, room = self._parts(x)
        y = x - low
        clipped = positive_part(y)
        inside = xp.sum(a * clipped, axis=-1, keepdims=True) <= room
        return low + xp.where(inside, clipped, onto_slice(y, a, None, room))

    def diameter(self, like: Array) -> float:
        n = like.shape[-1]
        reach = np.sort(self._room(n) / on_host(self.weights, n))
        return math.hypot(*reach[-2:])

    def violation(self, x: Array) -> Array:
        xp = namespace_of(x)
        a, low, room = self._parts(x)
        size = or_one(xp.maximum(room / a, xp.abs(low)))
        total = or_one(xp.maximum(room, xp.sum(a * xp.abs(low), axis=-1, keepdims=True)))
        over = (xp.sum(a * (x - low), axis=-1, keepdims=True) - room) / total
        return positive_part(xp.maximum(xp.max((low - x) / size, axis=-1), over[..., 0]))

    def center(self, like: Array) -> Array:
        a, low, room = self._parts(like)
        return low + room / ((like.shape[-1] + 1) * a) + namespace_of(like).zeros_like(like)

    # The faces are those of the capped simplex, in coordinates ``a (x - lower)``.

    def _free(self, x: Array) -> tuple[Array, Array]:
        """Entries above their lower bound, and whether the bound on the sum is met, keepdims."""
        xp = namespace_of(x)
        a, low, room = self._parts(x)
        share = a * (x - low)
        size = room + a * xp.abs(low)
        slack = room - xp.sum(share, axis=-1, keepdims=True)
        return ~negligible(share, size), negligible(slack, room + xp.sum(a * xp.abs(low), axis=-1, keepdims=True))

    def away(self, g: Array, x: Array) -> Array:
        xp = namespace_of(g)
        a, low, room = self._parts(x)
        free, tight = self._free(x)
        slope = xp.where(free, scaled(g)[0] / a, -xp.inf)
        best = xp.max(slope, axis=-1, keepdims=True)
        # the vertex `lower` belongs to the face unless the sum is at its bound
        leave = tight | (best > 0)
        at = mask_at(g, xp.argmax(slope, axis=-1, keepdims=True))
        return low + xp.where(at & leave, room / a, xp.zeros_like(g))

    def tangent(self, d: Array, x: Array) -> Array:
        xp = namespace_of(d)
        a, _, _ = self._parts(x)
        free, tight = self._free(x)
        inside = xp.where(free, d, xp.zeros_like(d))
        normal = xp.where(free, a, xp.zeros_like(d))
        length = xp.sum(normal * normal, axis=-1, keepdims=True)
        along = xp.sum(normal * inside, axis=-1, keepdims=True) / or_one(length)
        return xp.where(tight, inside - along * normal, inside)

    def reach(self, d: Array, x: Array) -> Array:
        xp = namespace_of(d)
        a, low, room = self._parts(x)
        slack = room - xp.sum(a * (x - low), axis=-1, keepdims=True)
        return ratio_test(xp.concat([x - low, slack], axis=-1), xp.concat([-d, rise_of_sum(a * d)], axis=-1))

    slide = slide_by_projection


@final
@dataclass(frozen=True)
class WeightedL1Ball(Set):
    """Diamond ``{sum |x - offset| / widths <= 1}`` along the last axis: the l1 ball with a half-width for every entry.

    Parameters
    ----------
    widths : float or vector
        Half-widths, >= 0: an entry of width 0 stays at its offset.
    offset : float or vector
        The middle of the ball.

    Notes
    -----
    LMO : ``offset - widths_i sign(g_i) e_i``, ``i = argmax widths |g|``; first index
    Cost : O(n)
    Diameter : ``2 max widths``
    Projection : root search, O(n) a pass

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> C = xv.sets.WeightedL1Ball(np.array([1.0, 4.0]))
    >>> C.lmo(np.array([3.0, -1.0])), C.project(np.array([0.0, 9.0]))
    (array([0., 4.]), array([0., 4.]))
    """

    widths: float | Array = 1.0
    offset: float | Array = 0.0

    polytope = True
    takes_complex = True

    def __post_init__(self) -> None:
        vector(self, "widths", ">= 0", lambda x: x >= 0)
        vector(self, "offset")

    @classmethod
    def examples(cls, shape: tuple[int, ...]) -> tuple[Set, ...]:
        n = math.prod(shape)
        ramp = np.linspace(0.5, 2.0, n) if n > 1 else np.ones(1)
        return (cls(), cls(ramp, -ramp[::-1].copy()), cls(np.where(np.arange(n) % 3 == 2, 0.0, ramp), 0.25))

    def check(self, shape: tuple[int, ...]) -> None:
        fits(self, shape, "widths", "offset")

    def lmo(self, g: Array) -> Array:
        xp = namespace_of(g)
        widths = spread(self.widths, g)
        gain = xp.abs(scaled(g)[0]) * widths
        # an entry without width has no vertex of its own, and comes first only where all are as good
        best = xp.argmax(gain, axis=-1, keepdims=True)
        best = xp.where(entries_at(widths, best) > 0, best, xp.argmax(widths))
        return spread(self.offset, g) + vertex(
            g, best, -entries_at(widths, best) * phase(xp.take_along_axis(g, best, axis=-1))
        )

    def project(self, x: Array) -> Array:
        xp = namespace_of(x)
        widths, offset = spread(self.widths, x), spread(self.offset, x)
        wide = widths > 0
        z = x - offset
        size = xp.where(wide, xp.abs(z), 0 * xp.abs(z))
        inside = xp.sum(size / or_one(widths), axis=-1, keepdims=True) <= 1
        # in units of the widest: squares of weights neither overflow nor vanish
        widest = or_one(xp.max(widths))
        weights = xp.where(wide, widest / or_one(widths), 1)
        near = xp.where(inside, size, widest * onto_slice(size / widest, weights, None, 1.0))
        return offset + xp.where(wide & (near == xp.abs(z)), z, xp.where(wide, near, 0 * near) * phase(z))

    def diameter(self, like: Array) -> float:
        return 2 * float(np.max(backends.to_numpy(self.widths)))

    def violation(self, x: Array) -> Array:
        xp = namespace_of(x)
        widths, offset = spread(self.widths, x), spread(self.offset, x)
        wide, size = widths > 0, xp.abs(x - offset)
        weights = xp.where(wide, 1 / or_one(widths), xp.zeros_like(widths))
        unit = xp.sum(weights * xp.abs(offset), axis=-1)
        over = (xp.sum(size * weights, axis=-1) - 1) / xp.maximum(unit, xp.ones_like(unit))
        stray = xp.max(xp.where(wide, 0 * size, size), axis=-1) / or_one(
            xp.maximum(xp.max(widths), xp.max(xp.abs(offset)))
        )
        return positive_part(xp.maximum(over, stray))

    def center(self, like: Array) -> Array:
        return spread(self.offset, like) + namespace_of(like).zeros_like(like)


@final
@dataclass(frozen=True)
class ContinuousKnapsack(Set):
    """Continuous knapsack ``{0 <= x <= 1, <weights, x> <= bound}`` along the last axis.

    Parameters
    ----------
    weights : float or vector
        Weights, > 0.
    bound : float
        Capacity, >= 0.

    Notes
    -----
    LMO : greedy (Dantzig) by ``g / weights`` while ``g < 0``, the last in part; first index
    Cost : O(n log n)
    Diameter : upper bound, by a knapsack of capacity ``2 bound``
    Projection : clip, or root search, O(n) a pass

    `diameter` is an upper bound: ``|x - y|^2 <= sum z`` over ``0 <= z <= 1, <weights, z> <= 2 bound``.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> xv.sets.ContinuousKnapsack(np.array([1.0, 2.0, 4.0]), 2.0).lmo(np.array([-1.0, -4.0, 3.0]))
    array([0., 1., 0.])
    """

    weights: float | Array = 1.0
    bound: float = 1.0

    polytope = True

    def __post_init__(self) -> None:
        vector(self, "weights", "> 0", lambda x: x > 0)
        checks.nonnegative(self, "bound")

    @classmethod
    def examples(cls, shape: tuple[int, ...]) -> tuple[Set, ...]:
        n = math.prod(shape)
        ramp = np.linspace(0.5, 2.0, n) if n > 1 else np.ones(1)
        return (cls(), cls(0.7, 1.0), cls(ramp, 1.7), cls(ramp, 3.0 * n))

    def check(self, shape: tuple[int, ...]) -> None:
        fits(self, shape, "weights")

    def lmo(self, g: Array) -> Array:
        xp = namespace_of(g)
        weights = spread(self.weights, g)
        order = xp.argsort(scaled(g)[0] / (weights / xp.max(weights)), axis=-1, stable=True)
        load = xp.take_along_axis(xp.where(g < 0, weights, 0 * g), order, axis=-1)
        before = xp.cumulative_sum(load, axis=-1) - load
        share = positive_part((self.bound - before) / or_one(load))
        share = xp.minimum(share, xp.ones_like(share))
        share = xp.where(load > 0, share, 0 * load)
        return xp.take_along_axis(share, xp.argsort(order, axis=-1, stable=True), axis=-1)

    def project(self, x: Array) -> Array:
        xp = namespace_of(x)
        weights = spread(self.weights, x)
        one = xp.ones_like(x)
        clipped = xp.minimum(positive_part(x), one)
        inside = xp.sum(weights * clipped, axis=-1, keepdims=True) <= self.bound
        total = xp.minimum(xp.sum(weights), xp.zeros_like(weights[0]) + self.bound)
        return xp.where(inside, clipped, onto_slice(x, weights, one, total))

    def diameter(self, like: Array) -> float:
        # the smallest weights first fill the doubled knapsack with most entries
        weights = np.sort(on_host(self.weights, like.shape[-1]))
        before = np.cumsum(weights) - weights
        return math.sqrt(np.clip((2 * self.bound - before) / weights, 0.0, 1.0).sum())

    def violation(self, x: Array) -> Array:
        xp = namespace_of(x)
        over = (xp.sum(spread(self.weights, x) * x, axis=-1) - self.bound) / (self.bound or 1.0)
        return positive_part(xp.maximum(xp.maximum(xp.max(-x, axis=-1), xp.max(x, axis=-1) - 1), over))

    def center(self, like: Array) -> Array:
        xp = namespace_of(like)
        total = xp.sum(spread(self.weights, like))
        return xp.zeros_like(like) + self.bound / (total + self.bound)
