"""Simplices: nonnegative entries with a sum that is fixed, or capped."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

from xvarpro.core.namespace import namespace_of
from xvarpro.core.struct import Array
from xvarpro.sets._faces import centred, negligible, ratio_test, rise_of_sum, slide_by_projection, tight
from xvarpro.sets._thresholds import onto_simplex
from xvarpro.sets.interface import RadiusSet
from xvarpro.sets.vectors import divisor, mask_at, positive_part, vertex


@final
@dataclass(frozen=True)
class Simplex(RadiusSet):
    """Simplex ``{x >= 0, sum x = radius}`` along the last axis.

    Parameters
    ----------
    radius : float
        The sum, >= 0.

    Notes
    -----
    LMO : ``radius e_i``, ``i = argmin g``; first index
    Cost : O(n)
    Diameter : ``sqrt(2) radius``; 0 for n = 1
    Projection : one threshold, O(n log n)

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> xv.sets.Simplex(2.0).lmo(np.array([1.0, -1.0, -1.0]))
    array([0., 2., 0.])
    """

    radius: float = 1.0

    polytope = True

    def lmo(self, g: Array) -> Array:
        return vertex(g, namespace_of(g).argmin(g, axis=-1, keepdims=True), self.radius)

    def project(self, x: Array) -> Array:
        return onto_simplex(x, self.radius)

    def diameter(self, like: Array) -> float:
        return math.sqrt(2) * self.radius if like.shape[-1] > 1 else 0.0

    def violation(self, x: Array) -> Array:
        xp = namespace_of(x)
        return xp.maximum(xp.max(-x, axis=-1), xp.abs(xp.sum(x, axis=-1) - self.radius)) / divisor(self.radius)

    def center(self, like: Array) -> Array:
        return namespace_of(like).full_like(like, self.radius / like.shape[-1])

    def _held(self, x: Array) -> Array:
        """Entries that are 0 next to the largest one: of many entries all may be small next to the radius."""
        return negligible(x, namespace_of(x).max(x, axis=-1, keepdims=True))

    def away(self, g: Array, x: Array) -> Array:
        xp = namespace_of(g)
        held = self._held(x)
        return vertex(g, xp.argmax(xp.where(held, -xp.inf, g), axis=-1, keepdims=True), self.radius)

    def tangent(self, d: Array, x: Array) -> Array:
        return centred(d, ~self._held(x))

    def reach(self, d: Array, x: Array) -> Array:
        return ratio_test(x, -d)

    slide = slide_by_projection


@final
@dataclass(frozen=True)
class CappedSimplex(RadiusSet):
    """Capped simplex ``{x >= 0, sum x <= radius}`` along the last axis.

    Parameters
    ----------
    radius : float
        Largest sum, >= 0.

    Notes
    -----
    LMO : ``radius e_i``, ``i = argmin g``, if ``g_i < 0``, else 0; first index
    Cost : O(n)
    Diameter : ``sqrt(2) radius``; ``radius`` for n = 1
    Projection : clip, or onto `Simplex`

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> xv.sets.CappedSimplex(2.0).project(np.array([3.0, 1.0, -1.0]))
    array([2., 0., 0.])
    """

    radius: float = 1.0

    polytope = True

    def lmo(self, g: Array) -> Array:
        xp = namespace_of(g)
        at = mask_at(g, xp.argmin(g, axis=-1, keepdims=True))
        return xp.where(at & (g < 0), self.radius, xp.zeros_like(g))

    def project(self, x: Array) -> Array:
        xp = namespace_of(x)
        clipped = positive_part(x)
        fits = xp.sum(clipped, axis=-1, keepdims=True) <= self.radius
        return xp.where(fits, clipped, onto_simplex(x, self.radius))

    def diameter(self, like: Array) -> float:
        return (math.sqrt(2) if like.shape[-1] > 1 else 1.0) * self.radius

    def violation(self, x: Array) -> Array:
        xp = namespace_of(x)
        worst = xp.maximum(xp.max(-x, axis=-1), xp.sum(x, axis=-1) - self.radius)
        return positive_part(worst) / divisor(self.radius)

    def center(self, like: Array) -> Array:
        return namespace_of(like).full_like(like, self.radius / (like.shape[-1] + 1))

    def away(self, g: Array, x: Array) -> Array:
        xp = namespace_of(g)
        # the cap as one more coordinate, whose vertex is 0 and whose slope is 0
        full = self._with_slack(x)
        slope = xp.concat([g, xp.zeros_like(g[..., :1])], axis=-1)
        return Simplex(self.radius).away(slope, full)[..., :-1]

    def tangent(self, d: Array, x: Array) -> Array:
        xp = namespace_of(d)
        full = self._with_slack(x)
        held = negligible(full, xp.max(full, axis=-1, keepdims=True))
        free, capped = ~held[..., :-1], held[..., -1:]
        return xp.where(capped, centred(d, free), xp.where(free, d, xp.zeros_like(d)))

    def reach(self, d: Array, x: Array) -> Array:
        return ratio_test(self._with_slack(x), namespace_of(d).concat([-d, rise_of_sum(d)], axis=-1))

    slide = slide_by_projection

    def _with_slack(self, x: Array) -> Array:
        """What is left of the cap as the last entry: the coordinate of the vertex 0."""
        xp = namespace_of(x)
        slack = self.radius - xp.sum(x, axis=-1, keepdims=True)
        return xp.concat([x, xp.where(tight(slack, self.radius), xp.zeros_like(slack), slack)], axis=-1)
