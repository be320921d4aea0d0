"""Polytopes in which the k largest entries count."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np

from xvarpro.core import checks
from xvarpro.core.namespace import device, namespace_of
from xvarpro.core.struct import Array
from xvarpro.errors import ProblemError
from xvarpro.sets._thresholds import onto_slice
from xvarpro.sets.interface import RadiusSet, Set
from xvarpro.sets.ordered_weighted import OWLBall
from xvarpro.sets.vectors import divisor, excess, phase, positive_part, top


@dataclass(frozen=True)
class TopK(RadiusSet):
    """A polytope given by the `k` largest entries and a `radius`."""

    k: int = 1
    radius: float = 1.0

    polytope = True

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.whole(self, "k", 1)

    @classmethod
    def examples(cls, shape: tuple[int, ...]) -> tuple[Set, ...]:
        n = math.prod(shape)
        return tuple(cls(k, 1.0 if k == 1 else 0.75) for k in sorted({1, (n + 1) // 2, n}))


@final
@dataclass(frozen=True)
class KSparsePolytope(TopK):
    """Hull of the vectors with `k` entries ``+- radius``: ``{max |x| <= radius, sum |x| <= k radius}``, last axis.

    Parameters
    ----------
    k : int
        Entries of a vertex, >= 1; more than there are count as all.
    radius : float
        Size of each, >= 0.

    Notes
    -----
    LMO : ``-radius sign(g_i)`` at the k largest ``|g_i|``; first indices
    Cost : O(n log n)
    Diameter : ``2 radius sqrt(min(k, n))``
    Projection : clip, or root search, O(n) a pass

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> xv.sets.KSparsePolytope(2).lmo(np.array([1.0, -3.0, 2.0]))
    array([ 0.,  1., -1.])
    """

    def lmo(self, g: Array) -> Array:
        xp = namespace_of(g)
        return xp.where(top(xp.abs(g), self.k), -self.radius * phase(g), xp.zeros_like(g))

    def project(self, x: Array) -> Array:
        xp = namespace_of(x)
        size = xp.abs(x)
        near = UnitHypersimplex(self.k, self.radius).project(size)
        return xp.where(near == size, x, phase(x) * near)

    def diameter(self, like: Array) -> float:
        return 2 * self.radius * math.sqrt(min(self.k, like.shape[-1]))

    def violation(self, x: Array) -> Array:
        xp = namespace_of(x)
        size = xp.abs(x)
        return xp.maximum(
            excess(xp.max(size, axis=-1), self.radius), excess(xp.sum(size, axis=-1), self.k * self.radius)
        )


@final
@dataclass(frozen=True)
class Hypersimplex(TopK):
    """Hypersimplex ``{0 <= x <= radius, sum x = k radius}`` along the last axis.

    Parameters
    ----------
    k : int
        Entries of a vertex that are not 0, >= 1, at most the length of x.
    radius : float
        Size of each, >= 0.

    Notes
    -----
    LMO : ``radius`` at the k smallest ``g_i``; first indices
    Cost : O(n log n)
    Diameter : ``radius sqrt(2 min(k, n - k))``
    Projection : root search, O(n) a pass

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> xv.sets.Hypersimplex(2).lmo(np.array([1.0, -3.0, 2.0]))
    array([1., 1., 0.])
    """

    def check(self, shape: tuple[int, ...]) -> None:
        if self.k > math.prod(shape):
            raise ProblemError(
                f"Hypersimplex: k must be at most {math.prod(shape)} for theta's leaf of shape {shape}, got {self.k}"
            )

    def lmo(self, g: Array) -> Array:
        return self.radius * namespace_of(g).astype(top(-g, self.k), g.dtype)

    def project(self, x: Array) -> Array:
        xp = namespace_of(x)
        ones = xp.ones_like(x)
        if self.k >= x.shape[-1]:
            return self.radius * ones + 0 * x
        return onto_slice(x, _ones(x), self.radius * ones, self.k * self.radius)

    def diameter(self, like: Array) -> float:
        n = like.shape[-1]
        return self.radius * math.sqrt(2 * max(min(self.k, n - self.k), 0))

    def violation(self, x: Array) -> Array:
        xp = namespace_of(x)
        off = xp.abs(xp.sum(x, axis=-1) - self.k * self.radius) / divisor(self.k * self.radius)
        return xp.maximum(_outside(x, self.radius), off)

    def center(self, like: Array) -> Array:
        return namespace_of(like).full_like(like, self.radius * min(self.k / like.shape[-1], 1.0))


@final
@dataclass(frozen=True)
class UnitHypersimplex(TopK):
    """Points under a hypersimplex, ``{0 <= x <= radius, sum x <= k radius}`` along the last axis.

    Parameters
    ----------
    k : int
        Most entries of a vertex that are not 0, >= 1; more than there are make a box.
    radius : float
        Size of each, >= 0.

    Notes
    -----
    LMO : ``radius`` at those of the k smallest ``g_i`` that are < 0; first indices
    Cost : O(n log n)
    Diameter : ``radius sqrt(min(2 k, n))``
    Projection : clip, or root search, O(n) a pass

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> xv.sets.UnitHypersimplex(2).lmo(np.array([1.0, -3.0, 2.0]))
    array([0., 1., 0.])
    """

    def lmo(self, g: Array) -> Array:
        return self.radius * namespace_of(g).astype(top(-g, self.k) & (g < 0), g.dtype)

    def project(self, x: Array) -> Array:
        xp = namespace_of(x)
        upper = self.radius * xp.ones_like(x)
        clipped = xp.minimum(positive_part(x), upper)
        if self.k >= x.shape[-1]:
            return clipped
        total = self.k * self.radius
        inside = xp.sum(clipped, axis=-1, keepdims=True) <= total
        return xp.where(inside, clipped, onto_slice(x, _ones(x), upper, total))

    def diameter(self, like: Array) -> float:
        return self.radius * math.sqrt(min(2 * self.k, like.shape[-1]))

    def violation(self, x: Array) -> Array:
        xp = namespace_of(x)
        return xp.maximum(_outside(x, self.radius), excess(xp.sum(x, axis=-1), self.k * self.radius))

    def center(self, like: Array) -> Array:
        share = min(0.5, self.k / (like.shape[-1] + 1))
        return namespace_of(like).full_like(like, self.radius * share)


@final
@dataclass(frozen=True)
class KNormBall(TopK):
    """Hull of a l1 and a linf ball, ``conv(B_1(radius) u B_inf(radius / k))``, along the last axis.

    What counts is the sum of the k largest ``|x|``: at most the radius.

    Parameters
    ----------
    k : int
        Entries that count, >= 1; from the length of x on, the ball is that of l1.
    radius : float
        Radius, >= 0.

    Notes
    -----
    LMO : the better of those of `L1Ball`, radius, and `LinfBall`, radius/k; the former
    Cost : O(n log n)
    Diameter : ``2 radius max(1, sqrt(n) / k)``
    Projection : that of `OWLBall`

    The ball of the vector k-norm (Ky Fan), the OWL ball with k weights 1 and the rest 0.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> xv.sets.KNormBall(2).lmo(np.array([1.0, -3.0, 1.0])), xv.sets.KNormBall(2).lmo(np.array([1.0, -2.0, 2.0]))
    (array([0., 1., 0.]), array([-0.5,  0.5, -0.5]))
    """

    def _ordered(self, like: Array) -> OWLBall:
        return OWLBall(np.where(np.arange(like.shape[-1]) < self.k, 1.0, 0.0), self.radius)

    def lmo(self, g: Array) -> Array:
        return self._ordered(g).lmo(g)

    def project(self, x: Array) -> Array:
        return self._ordered(x).project(x)

    def diameter(self, like: Array) -> float:
        return self._ordered(like).diameter(like)

    def violation(self, x: Array) -> Array:
        return self._ordered(x).violation(x)


def _ones(x: Array) -> Array:
    return namespace_of(x).ones((x.shape[-1],), dtype=x.dtype, device=device(x))


def _outside(x: Array, radius: float) -> Array:
    """How far entries are outside ``[0, radius]``, relative to it."""
    xp = namespace_of(x)
    return positive_part(xp.maximum(xp.max(-x, axis=-1), xp.max(x, axis=-1) - radius)) / divisor(radius)
