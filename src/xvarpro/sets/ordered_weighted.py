"""Polytopes whose linear oracle sorts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np

from xvarpro.core.namespace import device, namespace_of
from xvarpro.core.struct import Array
from xvarpro.sets._isotonic import antitonic
from xvarpro.sets._root_finding import root
from xvarpro.sets.interface import NormBall, Set
from xvarpro.sets.vectors import (
    entries_at,
    fits,
    mask_at,
    norm,
    on_host,
    or_one,
    phase,
    positive_part,
    ranked,
    scaled,
    spread,
    top,
    vector,
)


@final
@dataclass(frozen=True)
class OWLBall(NormBall):
    """Ball of a sorted l1 norm, ``{sum_i weights_i |x|_(i) <= radius}`` with ``|x|_(i)`` falling in i, last axis.

    Parameters
    ----------
    weights : float or vector
        Weights >= 0, one of them > 0, in any order: they are sorted, the largest first. A number makes the l1 ball.
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
        vector(self, "weights", ">= 0, one > 0", lambda x: (x >= 0) & (np.max(x) > 0))
        if not isinstance(self.weights, float):
            object.__setattr__(self, "weights", -namespace_of(self.weights).sort(-self.weights))
        super().__post_init__()

    @classmethod
    def examples(cls, shape: tuple[int, ...]) -> tuple[Set, ...]:
        n = math.prod(shape)
        first = np.where(np.arange(n) == 0, 1.0, 0.0)
        return (cls(), cls(first, 2.0), cls(np.linspace(2.0, 0.5, n)), cls(np.maximum(3.0 - np.arange(n), 0.0), 2.0))

    def check(self, shape: tuple[int, ...]) -> None:
        fits(self, shape, "weights")

    def lmo(self, g: Array) -> Array:
        xp = namespace_of(g)
        weights = spread(self.weights, g)
        total = xp.cumulative_sum(weights)
        size = xp.abs(scaled(g)[0])
        value = xp.cumulative_sum(xp.sort(size, axis=-1, descending=True), axis=-1) / total
        # k entries are no vertex where one more costs nothing, nor where each of them could do alone
        after = xp.concat([weights[1:], xp.ones_like(weights[:1])])
        lone = mask_at(weights, xp.argmax(weights, axis=-1, keepdims=True))
        extreme = (after > 0) & (lone | (weights < weights[:1]))
        best = xp.argmax(xp.where(extreme, value, -xp.inf), axis=-1, keepdims=True)
        height = self.radius / entries_at(total, best)
        return xp.where(top(size, best + 1), -height * phase(g), xp.zeros_like(g))

    def _size(self, x: Array) -> Array:
        xp = namespace_of(x)
        return xp.sum(spread(self.weights, x) * xp.sort(xp.abs(x), axis=-1, descending=True), axis=-1)

    def project(self, x: Array) -> Array:
        xp = namespace_of(x)
        weights = spread(self.weights, x) + xp.zeros_like(x)
        order, place = ranked(xp.abs(x))
        falling = xp.take_along_axis(xp.abs(x), order, axis=-1)
        # ``falling - t weights`` in terms of ``late = highest - t``: the first k entries have the mean 0 at the highest
        sums, total = xp.cumulative_sum(falling, axis=-1), xp.cumulative_sum(weights, axis=-1)
        k = xp.argmax(sums / total, axis=-1, keepdims=True)
        S_k, W_k = (xp.take_along_axis(v, k, axis=-1) for v in (sums, total))
        first = xp.arange(x.shape[-1], dtype=k.dtype, device=device(x)) <= k
        over = (falling - falling[..., :1]) - (S_k / W_k) * (weights - weights[..., :1])
        count = xp.astype(k + 1, x.dtype)
        over = over - xp.sum(xp.where(first, over, xp.zeros_like(over)), axis=-1, keepdims=True) / count
        # the first block alone reaches the radius there. Sums so far below 0 that no trial lifts them above it are no
        # ends of a block: what is far away leaves numbers of the set's size
        latest = self.radius * count / W_k**2
        reached = xp.where(mask_at(x, k), xp.zeros_like(over), xp.cumulative_sum(over, axis=-1))
        reached = xp.maximum(xp.where(reached > 0, 0 * reached, reached), -4 * latest * total[..., -1:])
        over = xp.concat([reached[..., :1], reached[..., 1:] - reached[..., :-1]], axis=-1)

        def prox(minus_late: Array) -> tuple[Array, Array]:
            y, slope = antitonic(over - minus_late * weights, weights)
            return xp.where(y < 0, xp.zeros_like(y), y), slope

        def surplus(minus_late: Array) -> tuple[Array, Array]:
            y, slope = prox(minus_late)
            rate = xp.sum(xp.where(y > 0, slope * slope, xp.zeros_like(y)), axis=-1, keepdims=True)
            return xp.sum(weights * y, axis=-1, keepdims=True) - self.radius, -rate

        inside = xp.expand_dims(self._size(x), axis=-1) <= self.radius
        near = xp.finfo(x.dtype).eps * self.radius
        # where x is inside there is no search
        low = xp.where(inside, 0 * latest, -latest)
        late = root(surplus, low, 0 * low, low, close=0.0, near=near)
        y = xp.take_along_axis(prox(late)[0], place, axis=-1)
        # what rounding leaves of the constraint
        length = xp.expand_dims(self._size(y), axis=-1)
        y = xp.where(length > self.radius, y * (self.radius / or_one(length)), y)
        return xp.where(inside, x, phase(x) * y)

    def diameter(self, like: Array) -> float:
        n = like.shape[-1]
        total = np.cumsum(on_host(self.weights, n))
        return 2 * self.radius * float(np.max(np.sqrt(np.arange(1, n + 1)) / total))


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

    Lim and Wright (2016); Blondel et al. (2020).

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
        xp = namespace_of(like)
        weights = self._host(like) if self.weights is None else self.weights
        return xp.sort(spread(weights, like), descending=True)

    def _host(self, like: Array) -> np.ndarray:
        n = like.shape[-1]
        return np.arange(n, 0.0, -1.0) if self.weights is None else np.sort(on_host(self.weights, n))[::-1]

    def lmo(self, g: Array) -> Array:
        xp = namespace_of(g)
        _, place = ranked(-g)
        return xp.take_along_axis(self._falling(g) + xp.zeros_like(g), place, axis=-1)

    def project(self, x: Array) -> Array:
        xp = namespace_of(x)
        order, place = ranked(x)
        weights = self._falling(x) + xp.zeros_like(x)
        # entries further apart than the weights are not pooled: what is far away leaves numbers of the set's size
        falling = xp.take_along_axis(x, order, axis=-1)
        gaps = xp.minimum(falling[..., :-1] - falling[..., 1:], 2 * (weights[..., :1] - weights[..., -1:]))
        falling = xp.concat([xp.zeros_like(x[..., :1]), -xp.cumulative_sum(gaps, axis=-1)], axis=-1)
        # block by block, ``falling - mean(falling) + mean(weights)``: what is far apart meets the weights exactly
        _, middle, height = antitonic(falling - weights, falling, weights)
        return xp.take_along_axis((falling - middle) + height, place, axis=-1)

    def diameter(self, like: Array) -> float:
        falling = self._host(like)
        return float(norm(falling - falling[::-1])[0])

    def violation(self, x: Array) -> Array:
        xp = namespace_of(x)
        falling = self._falling(x)
        over = xp.cumulative_sum(xp.sort(x, axis=-1, descending=True) - falling, axis=-1)
        size = xp.sum(xp.abs(falling))
        worst = xp.maximum(xp.max(over, axis=-1), -over[..., -1])
        return positive_part(worst) / or_one(size)

    def center(self, like: Array) -> Array:
        xp = namespace_of(like)
        return xp.zeros_like(like) + xp.mean(self._falling(like))
