"""Sets of sequences: entries in order, or with little variation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

from xvarpro.core import checks
from xvarpro.core.namespace import device, namespace_of
from xvarpro.core.struct import Array
from xvarpro.errors import ProblemError
from xvarpro.sets._isotonic import isotonic
from xvarpro.sets.interface import RadiusSet, Set
from xvarpro.sets.vectors import as_like, divisor, excess, largest, phase, positive_part, scaled


@final
@dataclass(frozen=True)
class OrderedBox(Set):
    """Ordered box ``{lower <= x_1, x_i <= x_(i+1), x_n <= upper}`` along the last axis.

    Parameters
    ----------
    lower, upper : float
        Finite bounds, ``lower <= upper``.

    Notes
    -----
    LMO : ``lower`` up to k, ``upper`` behind, ``k = argmax (g_1 + .. + g_k)`` of k = 0, .., n; first k
    Cost : O(n)
    Diameter : ``(upper - lower) sqrt(n)``
    Projection : an isotonic regression, then clip

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> C = xv.sets.OrderedBox(0.0, 2.0)
    >>> C.lmo(np.array([-1.0, 3.0, -4.0])), C.project(np.array([1.5, 0.5, 3.0]))
    (array([0., 0., 2.]), array([1., 1., 2.]))
    """

    lower: float = 0.0
    upper: float = 1.0

    polytope = True

    def __post_init__(self) -> None:
        checks.above(self, "lower", -math.inf)
        checks.above(self, "upper", -math.inf)
        if self.lower > self.upper:
            raise ProblemError(f"OrderedBox: lower must be <= upper, got lower={self.lower!r}, upper={self.upper!r}")

    @classmethod
    def examples(cls, shape: tuple[int, ...]) -> tuple[Set, ...]:
        return (cls(), cls(-2.0, 0.5))

    def lmo(self, g: Array) -> Array:
        xp = namespace_of(g)
        x = scaled(g)[0]
        sums = xp.concat([xp.zeros_like(x[..., :1]), xp.cumulative_sum(x, axis=-1)], axis=-1)
        return _stepped(g, xp.argmax(sums, axis=-1, keepdims=True), self.lower, self.upper)

    def project(self, x: Array) -> Array:
        xp = namespace_of(x)
        (y,) = isotonic(x)
        return xp.minimum(xp.maximum(y, xp.full_like(y, self.lower)), xp.full_like(y, self.upper))

    def diameter(self, like: Array) -> float:
        return (self.upper - self.lower) * math.sqrt(like.shape[-1])

    def violation(self, x: Array) -> Array:
        xp = namespace_of(x)
        ends = xp.maximum(self.lower + largest(-x, axis=-1), largest(x, axis=-1) - self.upper)
        worst = positive_part(ends)
        if x.shape[-1] > 1:
            worst = xp.maximum(worst, xp.max(x[..., :-1] - x[..., 1:], axis=-1))
        return worst / (max(-self.lower, self.upper) or 1.0)

    def center(self, like: Array) -> Array:
        xp = namespace_of(like)
        n = like.shape[-1]
        share = xp.arange(1, n + 1, dtype=like.dtype, device=device(like)) / (n + 1)
        return self.lower * (1 - share) + self.upper * share + xp.zeros_like(like)


@final
@dataclass(frozen=True)
class TotalVariationBall(RadiusSet):
    """Sequences of mean 0 and little variation, ``{sum x = 0, sum |x_(i+1) - x_i| <= radius}``, along the last axis.

    Parameters
    ----------
    radius : float
        Largest total variation, >= 0.

    Notes
    -----
    LMO : one centred step of ``+- radius`` after k, ``k = argmax |sum_(i<=k) (g_i - mean g)|``; first k
    Cost : O(n)
    Diameter : ``2 radius sqrt(k (n - k) / n)``, ``k = floor(n/2)``
    Projection : none, because its proximal operators go entry by entry

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> xv.sets.TotalVariationBall(3.0).lmo(np.array([2.0, 0.0, -1.0]))
    array([-2.,  1.,  1.])
    """

    radius: float = 1.0

    polytope = True

    @classmethod
    def examples(cls, shape: tuple[int, ...]) -> tuple[Set, ...]:
        return (cls(), cls(3.0))

    def lmo(self, g: Array) -> Array:
        xp, n = namespace_of(g), g.shape[-1]
        if n < 2:
            return xp.zeros_like(g)
        x = scaled(g)[0]
        x = x - xp.mean(x, axis=-1, keepdims=True)
        # the partial sums would add up what rounding has left of the mean
        x = x - xp.mean(x, axis=-1, keepdims=True)
        sums = xp.cumulative_sum(x, axis=-1)[..., :-1]
        best = xp.argmax(xp.abs(sums), axis=-1, keepdims=True)
        rise = self.radius * phase(xp.take_along_axis(sums, best, axis=-1))
        k = best + 1
        share = xp.astype(k, g.dtype) / n
        return _stepped(g, k, rise * (share - 1), rise * share)

    def diameter(self, like: Array) -> float:
        n = like.shape[-1]
        return 2 * self.radius * math.sqrt((n // 2) * (n - n // 2) / n)

    def violation(self, x: Array) -> Array:
        xp = namespace_of(x)
        off = xp.abs(xp.sum(x, axis=-1)) / (divisor(self.radius) * x.shape[-1])
        rises = xp.abs(x[..., 1:] - x[..., :-1])
        return xp.maximum(off, excess(xp.sum(rises, axis=-1), self.radius))


def _stepped(like: Array, k: Array, low: Array | float, high: Array | float) -> Array:
    """The first k entries `low`, the others `high`, in the shape of `like`."""
    xp = namespace_of(like)
    places = xp.arange(like.shape[-1], dtype=k.dtype, device=device(like))
    return xp.where(places < k, as_like(low, like), as_like(high, like))
