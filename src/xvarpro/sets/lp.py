"""The lp ball between l1 and linf."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from xvarpro.core import checks
from xvarpro.core.namespace import namespace_of, positive_or_one
from xvarpro.core.struct import Array
from xvarpro.sets._root_finding import root
from xvarpro.sets.interface import NormBall, Set
from xvarpro.sets.vectors import or_one, phase, scaled, vanishes


@final
@dataclass(frozen=True)
class LpBall(NormBall):
    """Ball ``{sum |x|^p <= radius^p}`` along the last axis, 1 < p < inf.

    Parameters
    ----------
    p : float
        Exponent, > 1.
    radius : float
        Radius, >= 0.

    Notes
    -----
    LMO : ``-radius sign(g) |g|^(q-1) / |g|_q^(q-1)``, ``1/p + 1/q = 1``; 0 for g = 0
    Cost : O(n)
    Diameter : ``2 radius max(1, n^(1/2 - 1/p))``
    Projection : two root searches, one inside the other, O(n) a pass

    The linear oracle is the equality case of Hoelder's inequality. The projection solves ``y + t y^(p-1) = |x|`` entry
    by entry, inside a search for the t at which y is as long as the radius.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> xv.sets.LpBall(3.0).lmo(np.array([4.0, -4.0])).round(6)
    array([-0.793701,  0.793701])
    """

    p: float = 2.0
    radius: float = 1.0

    strictly_convex = True
    takes_complex = True

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.above(self, "p", 1.0)

    @classmethod
    def examples(cls, shape: tuple[int, ...]) -> tuple[Set, ...]:
        return (cls(), cls(1.5, 2.0), cls(3.0), cls(20.0, 0.5))

    def _norm(self, x: Array, p: float) -> Array:
        """``|x|_p`` along the last axis, keepdims."""
        xp = namespace_of(x)
        unit, size = scaled(xp.abs(x))
        return size * xp.sum(unit**p, axis=-1, keepdims=True) ** (1 / p)

    def lmo(self, g: Array) -> Array:
        xp, unit = namespace_of(g), scaled(g)[0]
        size = xp.abs(unit)
        # no root of 0 is taken: it has no derivative
        length = or_one(xp.sum(size ** (self.p / (self.p - 1)), axis=-1, keepdims=True)) ** (1 / self.p)
        share = xp.where(size == 0, size, or_one(size) ** (1 / (self.p - 1)))
        return -self.radius * phase(unit) * share / length

    def project(self, x: Array) -> Array:
        xp = namespace_of(x)
        size = self._norm(x, self.p)
        fits = size <= self.radius
        if vanishes(self.radius):
            return 0 * x
        b = xp.abs(x) / self.radius
        high = self._norm(b, self.p / (self.p - 1))
        low = xp.maximum(xp.max(b, axis=-1, keepdims=True) - 1, xp.zeros_like(high))
        # no search where x is inside
        low = xp.where(fits, high, xp.minimum(low, high))

        def surplus(t: Array) -> tuple[Array, Array]:
            y = self._shrunk(b, t)
            if self.p <= 2:
                bend = y ** (2 - self.p) + t * (self.p - 1)
                rate = y**self.p / positive_or_one(bend)
            else:
                rate = y ** (2 * self.p - 2) / (1 + t * (self.p - 1) * y ** (self.p - 2))
            value = xp.sum(y**self.p, axis=-1, keepdims=True) - 1
            return value, -self.p * xp.sum(rate, axis=-1, keepdims=True)

        t = root(surplus, low, high, low + 0.5 * (high - low), close=0.0, near=xp.finfo(b.dtype).eps)
        y = self._shrunk(b, t)
        # what rounding leaves of the constraint
        length = self._norm(y, self.p)
        y = y / or_one(length)
        return xp.where(fits, x, self.radius * phase(x) * y)

    def _shrunk(self, b: Array, t: Array) -> Array:
        """The y in [0, b] with ``y + t y^(p-1) = b``, entry by entry."""
        xp = namespace_of(b)
        some = t > 0
        alone = (b / xp.where(some, t, xp.ones_like(t))) ** (1 / (self.p - 1))  # without the first term
        high = xp.where(some, xp.minimum(b, alone), b)

        def rest(y: Array) -> tuple[Array, Array]:
            second = t * y ** (self.p - 1)
            return b - y - second, -1 - (self.p - 1) * second / or_one(y)

        return root(rest, xp.zeros_like(high), high, high, close=0.0, near=xp.finfo(b.dtype).eps * b)

    def diameter(self, like: Array) -> float:
        return 2 * self.radius * max(1.0, like.shape[-1] ** (0.5 - 1 / self.p))

    def _size(self, x: Array) -> Array:
        return self._norm(x, self.p)[..., 0]
