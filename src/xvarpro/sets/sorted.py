"""Sets whose linear oracle sorts: polytopes that see the largest entries, or all of them in order."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np
from array_api_compat import array_namespace, device

from xvarpro import checks
from xvarpro.errors import ProblemError
from xvarpro.protocols import Array, Set
from xvarpro.sets._arithmetic import by_sign, first_index, first_steepest, one_hot, scaled
from xvarpro.sets._parameters import fits, on_host, spread, vector, whole
from xvarpro.sets._search import antitonic, excess, onto_slice, phase, ranked, root, top


@final
@dataclass(frozen=True)
class KSparsePolytope(Set):
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

    k: int = 1
    radius: float = 1.0

    polytope = True

    def __post_init__(self) -> None:
        whole(self, "k")
        checks.nonnegative(self, "radius")

    @classmethod
    def examples(cls, shape: tuple[int, ...]) -> tuple[Set, ...]:
        return tuple(cls(k, radius) for k, radius in _counts(shape))

    def lmo(self, g: Array) -> Array:
        xp = array_namespace(g)
        return xp.where(top(xp.abs(g), self.k), -self.radius * phase(g), xp.zeros_like(g))

    def support(self, g: Array) -> Array:
        return self.radius * _sum_of_top(array_namespace(g).abs(g), self.k)

    def project(self, x: Array) -> Array:
        xp = array_namespace(x)
        size = xp.abs(x)
        near = UnitHypersimplex(self.k, self.radius).project(size)
        return xp.where(near == size, x, phase(x) * near)

    def diameter(self, like: Array) -> float:
        return 2 * self.radius * math.sqrt(min(self.k, like.shape[-1]))

    def violation(self, x: Array) -> Array:
        xp = array_namespace(x)
        size = xp.abs(x)
        return xp.maximum(
            excess(xp.max(size, axis=-1), self.radius), excess(xp.sum(size, axis=-1), self.k * self.radius)
        )


@final
@dataclass(frozen=True)
class Hypersimplex(Set):
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

    k: int = 1
    radius: float = 1.0

    polytope = True

    def __post_init__(self) -> None:
        whole(self, "k")
        checks.nonnegative(self, "radius")

    @classmethod
    def examples(cls, shape: tuple[int, ...]) -> tuple[Set, ...]:
        return tuple(cls(k, radius) for k, radius in _counts(shape))

    def check(self, shape: tuple[int, ...]) -> None:
        if self.k > math.prod(shape):
            raise ProblemError(
                f"Hypersimplex is empty for k={self.k} > {math.prod(shape)}, theta's leaf of shape {shape}"
            )

    def lmo(self, g: Array) -> Array:
        return self.radius * array_namespace(g).astype(top(-g, self.k), g.dtype)

    def support(self, g: Array) -> Array:
        return self.radius * _sum_of_top(g, self.k)

    def project(self, x: Array) -> Array:
        xp = array_namespace(x)
        ones = xp.ones_like(x)
        if self.k >= x.shape[-1]:
            return self.radius * ones + 0 * x
        return onto_slice(x, _ones(x), self.radius * ones, self.k * self.radius)

    def diameter(self, like: Array) -> float:
        n = like.shape[-1]
        return self.radius * math.sqrt(2 * max(min(self.k, n - self.k), 0))

    def violation(self, x: Array) -> Array:
        xp = array_namespace(x)
        off = xp.abs(xp.sum(x, axis=-1) - self.k * self.radius) / (self.k * self.radius or 1.0)
        return xp.maximum(_outside(x, self.radius), off)

    def center(self, like: Array) -> Array:
        return array_namespace(like).full_like(like, self.radius * min(self.k / like.shape[-1], 1.0))


@final
@dataclass(frozen=True)
class UnitHypersimplex(Set):
    """Hypersimplex with what lies under it, ``{0 <= x <= radius, sum x <= k radius}`` along the last axis.

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

    k: int = 1
    radius: float = 1.0

    polytope = True

    def __post_init__(self) -> None:
        whole(self, "k")
        checks.nonnegative(self, "radius")

    @classmethod
    def examples(cls, shape: tuple[int, ...]) -> tuple[Set, ...]:
        return tuple(cls(k, radius) for k, radius in _counts(shape))

    def lmo(self, g: Array) -> Array:
        return self.radius * array_namespace(g).astype(top(-g, self.k) & (g < 0), g.dtype)

    def support(self, g: Array) -> Array:
        xp = array_namespace(g)
        return self.radius * _sum_of_top(xp.maximum(g, xp.zeros_like(g)), self.k)

    def project(self, x: Array) -> Array:
        xp = array_namespace(x)
        upper = self.radius * xp.ones_like(x)
        clipped = xp.minimum(xp.maximum(x, xp.zeros_like(x)), upper)
        if self.k >= x.shape[-1]:
            return clipped
        total = self.k * self.radius
        inside = xp.sum(clipped, axis=-1, keepdims=True) <= total
        return xp.where(inside, clipped, onto_slice(x, _ones(x), upper, total))

    def diameter(self, like: Array) -> float:
        return self.radius * math.sqrt(min(2 * self.k, like.shape[-1]))

    def violation(self, x: Array) -> Array:
        xp = array_namespace(x)
        return xp.maximum(_outside(x, self.radius), excess(xp.sum(x, axis=-1), self.k * self.radius))

    def center(self, like: Array) -> Array:
        share = min(0.5, self.k / (like.shape[-1] + 1))
        return array_namespace(like).full_like(like, self.radius * share)


@final
@dataclass(frozen=True)
class OWLBall(Set):
    """Ball of a sorted l1 norm, ``{sum_i weights_i |x|_(i) <= radius}`` with ``|x|_(1) >= |x|_(2) >= ..``, last axis.

    Parameters
    ----------
    weights : float or vector
        Weights that do not rise, >= 0, the first > 0. A number makes the l1 ball.
    radius : float
        Radius, >= 0.

    Notes
    -----
    LMO : ``-radius/W_k sign(g_i)`` at the k largest ``|g_i|``, the k with most ``sum |g_i| / W_k``; first k, first
        indices
    Cost : O(n log n)
    Diameter : ``2 radius max_k sqrt(k) / W_k``
    Projection : root search, an isotonic regression a trial

    Ordered weighted l1 norm, Zeng and Figueiredo (2014); SLOPE, Bogdan et al. (2015). Vertices have k equal entries
    ``+- radius / W_k``, ``W_k = weights_1 + .. + weights_k``. The projection seeks the level at which the proximal
    operator, an isotonic regression, reaches the ball.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> xv.sets.OWLBall(np.array([0.5, 0.25, 0.25])).lmo(np.array([-2.0, 3.0, 0.1]))
    array([ 1.33333333, -1.33333333,  0.        ])
    """

    weights: float | Array = 1.0
    radius: float = 1.0

    polytope = True

    def __post_init__(self) -> None:
        vector(self, "weights", ">= 0, not rising, the first > 0", _falls)
        checks.nonnegative(self, "radius")

    @classmethod
    def examples(cls, shape: tuple[int, ...]) -> tuple[Set, ...]:
        n = math.prod(shape)
        first = np.where(np.arange(n) == 0, 1.0, 0.0)
        return (cls(), cls(first, 2.0), cls(np.linspace(2.0, 0.5, n)), cls(np.maximum(3.0 - np.arange(n), 0.0), 2.0))

    def check(self, shape: tuple[int, ...]) -> None:
        fits(self, shape, "weights")

    def lmo(self, g: Array) -> Array:
        xp = array_namespace(g)
        weights = spread(self.weights, g)
        total = xp.cumulative_sum(weights)
        size = xp.abs(scaled(g)[0])
        value = xp.cumulative_sum(xp.sort(size, axis=-1, descending=True), axis=-1) / total
        # k entries are no vertex where one more costs nothing, nor where each of them could do alone
        after = xp.concat([weights[1:], xp.ones_like(weights[:1])])
        lone = first_index(weights, xp.argmax(weights))
        extreme = (after > 0) & (lone | (weights < weights[:1]))
        best = xp.argmax(xp.where(extreme, value, -xp.inf), axis=-1)
        height = self.radius / xp.take(total, xp.reshape(best, (-1,)), axis=0)
        height = xp.expand_dims(xp.reshape(height, best.shape), axis=-1)
        return xp.where(top(size, best + 1), -height * phase(g), xp.zeros_like(g))

    def support(self, g: Array) -> Array:
        xp = array_namespace(g)
        sums = xp.cumulative_sum(xp.sort(xp.abs(g), axis=-1, descending=True), axis=-1)
        return self.radius * xp.max(sums / xp.cumulative_sum(spread(self.weights, g)), axis=-1)

    def _size(self, x: Array) -> Array:
        xp = array_namespace(x)
        return xp.sum(spread(self.weights, x) * xp.sort(xp.abs(x), axis=-1, descending=True), axis=-1)

    def project(self, x: Array) -> Array:
        # twice: what is far away comes back with the rounding of where it was
        return self._project(self._project(x))

    def _project(self, x: Array) -> Array:
        xp = array_namespace(x)
        weights = spread(self.weights, x) + xp.zeros_like(x)
        order, place = ranked(xp.abs(x))
        falling = xp.take_along_axis(xp.abs(x), order, axis=-1)

        def prox(t: Array) -> tuple[Array, Array]:
            y, slope = antitonic(falling - t * weights, weights)
            return xp.where(y < 0, xp.zeros_like(y), y), slope

        def surplus(t: Array) -> tuple[Array, Array]:
            y, slope = prox(t)
            rate = xp.sum(xp.where(y > 0, slope * slope, xp.zeros_like(y)), axis=-1, keepdims=True)
            return xp.sum(weights * y, axis=-1, keepdims=True) - self.radius, -rate

        sums = xp.cumulative_sum(falling, axis=-1) / xp.cumulative_sum(weights, axis=-1)
        high = xp.max(sums, axis=-1, keepdims=True)
        inside = xp.expand_dims(self._size(x), axis=-1) <= self.radius
        # where x is inside the root is 0: no search
        high = xp.where(inside, 0 * high, high)
        near = xp.finfo(x.dtype).eps * self.radius
        t = root(surplus, xp.zeros_like(high), high, xp.zeros_like(high), close=0.0, near=near)
        y = xp.take_along_axis(prox(t)[0], place, axis=-1)
        # what rounding leaves of the constraint
        length = xp.expand_dims(self._size(y), axis=-1)
        y = xp.where(length > self.radius, y * (self.radius / xp.where(length > 0, length, xp.ones_like(length))), y)
        return xp.where(inside, x, phase(x) * y)

    def diameter(self, like: Array) -> float:
        n = like.shape[-1]
        total = np.cumsum(on_host(self.weights, n))
        return 2 * self.radius * float(np.max(np.sqrt(np.arange(1, n + 1)) / total))

    def violation(self, x: Array) -> Array:
        return excess(self._size(x), self.radius)


@final
@dataclass(frozen=True)
class KNormBall(Set):
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
    Cost : O(n)
    Diameter : ``2 radius max(1, sqrt(n) / k)``
    Projection : that of `OWLBall`

    The ball of the vector k-norm (Ky Fan), the OWL ball with k weights 1 and the rest 0.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> xv.sets.KNormBall(2).lmo(np.array([1.0, -3.0, 1.0])), xv.sets.KNormBall(2).lmo(np.array([1.0, -2.0, 2.0]))
    (array([0., 1., 0.]), array([-0.5,  0.5, -0.5]))
    """

    k: int = 1
    radius: float = 1.0

    polytope = True

    def __post_init__(self) -> None:
        whole(self, "k")
        checks.nonnegative(self, "radius")

    @classmethod
    def examples(cls, shape: tuple[int, ...]) -> tuple[Set, ...]:
        return tuple(cls(k, radius) for k, radius in _counts(shape))

    def lmo(self, g: Array) -> Array:
        xp = array_namespace(g)
        best = first_steepest(g)
        at = xp.take_along_axis(g, best, axis=-1)
        peak = xp.abs(at)
        size = xp.abs(g / xp.where(peak == 0, xp.ones_like(peak), peak))
        # one k of entries all at once only for k < n: a cube inside a l1 ball has no vertex of the hull
        alone = xp.sum(size, axis=-1, keepdims=True) <= xp.where(peak == 0, 0 * peak, self.k + 0 * peak)
        if self.k == 1:
            alone = 0 * peak > 0
        if self.k >= g.shape[-1]:
            alone = 0 * peak <= 0
        vertex = one_hot(g, best, -self.radius * phase(at))
        return xp.where(alone, vertex, by_sign(g, self.radius / self.k, -self.radius / self.k))

    def support(self, g: Array) -> Array:
        xp = array_namespace(g)
        size = xp.abs(g)
        return self.radius * xp.maximum(xp.max(size, axis=-1), xp.sum(size, axis=-1) / self.k)

    def project(self, x: Array) -> Array:
        weights = np.where(np.arange(x.shape[-1]) < self.k, 1.0, 0.0)
        return OWLBall(weights, self.radius).project(x)

    def diameter(self, like: Array) -> float:
        return 2 * self.radius * max(1.0, math.sqrt(like.shape[-1]) / self.k)

    def violation(self, x: Array) -> Array:
        return excess(_sum_of_top(array_namespace(x).abs(x), self.k), self.radius)


@final
@dataclass(frozen=True)
class Permutahedron(Set):
    """Hull of all permutations of a vector, along the last axis.

    Parameters
    ----------
    weights : vector, optional
        The vector; n, .., 2, 1 if left out.

    Notes
    -----
    LMO : the largest weight where g is smallest, and so on; first index
    Cost : O(n log n)
    Diameter : ``|w - reversed w|_2``, w the sorted weights
    Projection : sort, then an isotonic regression

    The projection is an isotonic regression (Lim and Wright, 2016; Blondel et al., 2020).

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> xv.sets.Permutahedron().lmo(np.array([5.0, -1.0, 2.0]))
    array([1., 3., 2.])
    """

    weights: Array | None = None

    polytope = True

    def __post_init__(self) -> None:
        if self.weights is not None:
            vector(self, "weights")

    @classmethod
    def examples(cls, shape: tuple[int, ...]) -> tuple[Set, ...]:
        n = math.prod(shape)
        return (cls(), cls(np.where(np.arange(n) % 2 == 0, 0.5, -1.0)), cls(np.linspace(1.0, -1.0, n) ** 3))

    def check(self, shape: tuple[int, ...]) -> None:
        if self.weights is not None:
            fits(self, shape, "weights")

    def _falling(self, like: Array) -> Array:
        """The vector sorted from the largest entry down."""
        xp = array_namespace(like)
        weights = self._host(like) if self.weights is None else self.weights
        return xp.sort(spread(weights, like), descending=True)

    def _host(self, like: Array) -> np.ndarray:
        n = like.shape[-1]
        return np.arange(n, 0.0, -1.0) if self.weights is None else np.sort(on_host(self.weights, n))[::-1]

    def lmo(self, g: Array) -> Array:
        xp = array_namespace(g)
        _, place = ranked(-g)
        return xp.take_along_axis(self._falling(g) + xp.zeros_like(g), place, axis=-1)

    def support(self, g: Array) -> Array:
        xp = array_namespace(g)
        return xp.sum(xp.sort(g, axis=-1, descending=True) * self._falling(g), axis=-1)

    def project(self, x: Array) -> Array:
        # twice: what is far away comes back with the rounding of where it was
        return self._project(self._project(x))

    def _project(self, x: Array) -> Array:
        xp = array_namespace(x)
        order, place = ranked(x)
        falling = xp.take_along_axis(x, order, axis=-1)
        weights = self._falling(x) + xp.zeros_like(x)
        # block by block, ``falling - mean(falling) + mean(weights)``: what is far apart meets the weights exactly
        _, middle, height = antitonic(falling - weights, falling, weights)
        return xp.take_along_axis((falling - middle) + height, place, axis=-1)

    def diameter(self, like: Array) -> float:
        falling = self._host(like)
        return float(np.linalg.norm(falling - falling[::-1]))

    def violation(self, x: Array) -> Array:
        xp = array_namespace(x)
        falling = self._falling(x)
        over = xp.cumulative_sum(xp.sort(x, axis=-1, descending=True) - falling, axis=-1)
        size = xp.sum(xp.abs(falling))
        worst = xp.maximum(xp.max(over, axis=-1), -over[..., -1])
        return xp.maximum(worst, xp.zeros_like(worst)) / xp.where(size > 0, size, xp.ones_like(size))

    def center(self, like: Array) -> Array:
        xp = array_namespace(like)
        return xp.zeros_like(like) + xp.mean(self._falling(like))


def _falls(weights: np.ndarray) -> bool:
    weights = np.atleast_1d(weights)
    return bool((np.diff(weights) <= 0).all() and weights[-1] >= 0 and weights[0] > 0)


def _counts(shape: tuple[int, ...]) -> list[tuple[int, float]]:
    n = math.prod(shape)
    return [(k, 1.0 if k == 1 else 0.75) for k in sorted({1, (n + 1) // 2, n})]


def _ones(x: Array) -> Array:
    return array_namespace(x).ones((x.shape[-1],), dtype=x.dtype, device=device(x))


def _outside(x: Array, radius: float) -> Array:
    """How far entries are outside ``[0, radius]``, relative to it."""
    xp = array_namespace(x)
    worst = xp.maximum(xp.max(-x, axis=-1), xp.max(x, axis=-1) - radius) / (radius or 1.0)
    return xp.maximum(worst, xp.zeros_like(worst))


def _sum_of_top(a: Array, k: int) -> Array:
    xp = array_namespace(a)
    return xp.sum(xp.sort(a, axis=-1, descending=True)[..., : min(k, a.shape[-1])], axis=-1)
