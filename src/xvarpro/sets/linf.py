"""The linf ball."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

from xvarpro.core import checks
from xvarpro.core.namespace import array_namespace
from xvarpro.core.struct import Array
from xvarpro.sets._search import excess, phase
from xvarpro.sets.interface import Set
from xvarpro.sets.vectors import negligible, ratio_test


@final
@dataclass(frozen=True)
class LinfBall(Set):
    """Ball ``{max |x| <= radius}`` along the last axis; for complex x, the polydisc.

    Parameters
    ----------
    radius : float
        Radius, >= 0.

    Notes
    -----
    LMO : ``-radius sign(g)``, ``sign(0) = 1``
    Cost : O(n)
    Diameter : ``2 radius sqrt(n)``
    Projection : clip the moduli, O(n)

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> xv.sets.LinfBall(2.0).lmo(np.array([1.0, -3.0, 0.0]))
    array([-2.,  2., -2.])
    >>> xv.sets.LinfBall().project(np.array([3.0 + 4.0j, 0.5j]))
    array([0.6+0.8j, 0. +0.5j])
    """

    radius: float = 1.0

    polytope = True
    takes_complex = True

    def __post_init__(self) -> None:
        checks.nonnegative(self, "radius")

    def lmo(self, g: Array) -> Array:
        return -self.radius * phase(g)

    def support(self, g: Array) -> Array:
        xp = array_namespace(g)
        return self.radius * xp.sum(xp.abs(g), axis=-1)

    def project(self, x: Array) -> Array:
        xp = array_namespace(x)
        return xp.where(xp.abs(x) <= self.radius, x, self.radius * phase(x) + 0 * x)

    def diameter(self, like: Array) -> float:
        return 2 * self.radius * math.sqrt(like.shape[-1])

    def violation(self, x: Array) -> Array:
        xp = array_namespace(x)
        return excess(xp.max(xp.abs(x), axis=-1), self.radius)

    # A real point holds the entries that are at a bound; the rest of the ball is the face.

    def _held(self, x: Array) -> Array:
        return negligible(self.radius - array_namespace(x).abs(x), self.radius)

    def away(self, g: Array, x: Array) -> Array:
        return array_namespace(g).where(self._held(x), x, self.lmo(-g))

    def tangent(self, d: Array, x: Array) -> Array:
        xp = array_namespace(d)
        return xp.where(self._held(x), xp.zeros_like(d), d)

    def reach(self, d: Array, x: Array) -> Array:
        xp = array_namespace(d)
        return ratio_test(xp.where(d < 0, self.radius + x, self.radius - x), xp.abs(d))

    def slide(self, d: Array, x: Array) -> Array:
        # what is at its bound stays there: the projection only ever takes from what moves
        return self.project(x + self.tangent(d, x))
