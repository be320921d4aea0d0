"""The l1 and the l2 ball, and the part of the latter that is not negative."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np

from xvarpro.backends import registry
from xvarpro.core.namespace import namespace_of
from xvarpro.core.struct import Array
from xvarpro.sets._faces import negligible, tight
from xvarpro.sets._thresholds import onto_simplex
from xvarpro.sets.interface import NormBall, RadiusSet, Set
from xvarpro.sets.simplex import Simplex
from xvarpro.sets.vectors import (
    direction,
    divisor,
    excess,
    fits,
    norm,
    or_one,
    phase,
    positive_part,
    spread,
    vector,
    vertex,
)


@final
@dataclass(frozen=True)
class L1Ball(NormBall):
    """Ball ``{sum |x| <= radius}`` along the last axis; on a matrix leaf of a solve, the entrywise l1 ball.

    Points may be complex. Faces are described for real ones: those of the complex ball are not finitely many.

    Parameters
    ----------
    radius : float
        Radius, >= 0.

    Notes
    -----
    LMO : ``-radius sign(g_i) e_i``, ``i = argmax |g|``; first index
    Cost : O(n)
    Diameter : ``2 radius``
    Projection : ``|x|`` onto `Simplex` where outside

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> xv.sets.L1Ball().lmo(np.array([1.0, -3.0, 3.0]))
    array([0., 1., 0.])
    """

    radius: float = 1.0

    polytope = True
    takes_complex = True

    def lmo(self, g: Array) -> Array:
        xp = namespace_of(g)
        best = xp.argmax(xp.abs(g), axis=-1, keepdims=True)
        return vertex(g, best, -self.radius * phase(xp.take_along_axis(g, best, axis=-1)))

    def project(self, x: Array) -> Array:
        xp = namespace_of(x)
        size = xp.abs(x)
        fits = xp.sum(size, axis=-1, keepdims=True) <= self.radius
        return xp.where(fits, x, phase(x) * onto_simplex(size, self.radius))

    def diameter(self, like: Array) -> float:
        return 2 * self.radius

    def _size(self, x: Array) -> Array:
        xp = namespace_of(x)
        return xp.sum(xp.abs(x), axis=-1)

    # A point on the boundary lies in the face of its signs, a simplex in ``|x|``; one inside has the ball for a face.

    def _tight(self, x: Array) -> Array:
        return namespace_of(x).expand_dims(tight(self.radius - self._size(x), self.radius), axis=-1)

    def away(self, g: Array, x: Array) -> Array:
        xp = namespace_of(g)
        sign = phase(x)
        return xp.where(self._tight(x), sign * Simplex(self.radius).away(sign * g, xp.abs(x)), self.lmo(-g))

    def tangent(self, d: Array, x: Array) -> Array:
        xp = namespace_of(d)
        sign = phase(x)
        return xp.where(self._tight(x), sign * Simplex(self.radius).tangent(sign * d, xp.abs(x)), d)

    def slide(self, d: Array, x: Array) -> Array:
        xp = namespace_of(d)
        inside = ~self._tight(x)

        def outward(_: tuple[Array, Array]) -> tuple[Array, Array]:
            # straight to the boundary: on the way signs do not count
            step = xp.expand_dims(self._boundary(xp.where(inside, d, xp.zeros_like(d)), x)[0], axis=-1)
            step = xp.where(inside, xp.minimum(step, xp.ones_like(step)), xp.zeros_like(step))
            return x + step * d, 1 - step

        y, left = registry.owner(x).when(xp.any(inside), outward, (x, xp.ones_like(x[..., :1])))
        sign = phase(y)
        return xp.where(left > 0, sign * Simplex(self.radius).slide(left * sign * d, xp.abs(y)), y)

    def reach(self, d: Array, x: Array) -> Array:
        xp = namespace_of(d)
        alpha, rounding = self._boundary(d, x)
        # the sum tells the end to its own rounding; an entry that is 0 there, to that of the entry
        end = xp.expand_dims(alpha, axis=-1)
        falls = x * d < 0
        zero = x / xp.where(falls, -d, xp.ones_like(d))
        there = x + xp.where(falls, end, xp.zeros_like(end)) * d
        same = falls & (xp.abs(there) <= xp.expand_dims(rounding, axis=-1)) & (zero > 0.999 * end)
        exact = xp.min(xp.where(same, zero, xp.full_like(zero, xp.inf)), axis=-1)
        return xp.where(xp.isfinite(exact), exact, alpha)

    def _boundary(self, d: Array, x: Array) -> tuple[Array, Array]:
        """The last alpha with ``|x + alpha d|_1 <= radius``, and the rounding of that sum.

        Newton's method from the right: the sum is convex and piecewise linear.
        """
        xp = namespace_of(d)
        eps = xp.finfo(d.dtype).eps
        size, start = self._size(d), self._size(x)
        some = size > 0
        far = (self.radius + start) / or_one(size)
        # of the sum; a point that rounding has put outside is not brought back, but goes no further out
        rounding = 4 * eps * self.radius + positive_part(start - self.radius)

        def body(state: tuple[Array, Array]) -> tuple[Array, Array]:
            alpha, _ = state
            there = x + xp.expand_dims(alpha, axis=-1) * d
            over = self._size(there) - self.radius
            slope = xp.sum(xp.where(there < 0, -d, d), axis=-1)
            # along a face the sum is constant but for rounding, which has no root and no slope
            going = (over > rounding) & ~negligible(slope, size)
            drop = xp.where(going, over / xp.where(going, slope, xp.ones_like(slope)), xp.zeros_like(over))
            return positive_part(alpha - drop), drop

        alpha, _ = registry.owner(x).while_loop(
            lambda state: xp.any(state[1] > eps * state[0]), body, (far, xp.where(some, 1 + far, xp.zeros_like(far)))
        )
        return xp.where(some, alpha, xp.full_like(alpha, xp.inf)), rounding


@final
@dataclass(frozen=True)
class L2Ball(RadiusSet):
    """Ball ``{|x - offset|_2 <= radius}`` along the last axis; on a leaf of any shape of a solve, the Frobenius ball.

    Parameters
    ----------
    radius : float
        Radius, >= 0.
    offset : float or vector
        The middle of the ball, real. Points may be complex.

    Notes
    -----
    LMO : ``offset - radius g / |g|_2``; ``offset`` for g = 0
    Cost : O(n)
    Diameter : ``2 radius``
    Projection : shorten, O(n)

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> xv.sets.L2Ball(10.0).lmo(np.array([3.0, -4.0]))
    array([-6.,  8.])
    >>> xv.sets.L2Ball(1.0, np.array([2.0, 0.0])).project(np.zeros(2))
    array([1., 0.])
    """

    radius: float = 1.0
    offset: float | Array = 0.0

    strictly_convex = True
    takes_complex = True

    def __post_init__(self) -> None:
        super().__post_init__()
        vector(self, "offset")

    @classmethod
    def examples(cls, shape: tuple[int, ...]) -> tuple[Set, ...]:
        return (cls(), cls(2.5, np.linspace(-1.0, 2.0, math.prod(shape))))

    def check(self, shape: tuple[int, ...]) -> None:
        fits(self, shape, "offset")

    def lmo(self, g: Array) -> Array:
        return spread(self.offset, g) - self.radius * direction(g)

    def project(self, x: Array) -> Array:
        xp = namespace_of(x)
        offset = spread(self.offset, x)
        z = x - offset
        return xp.where(norm(z) <= self.radius, x, offset + self.radius * direction(z))

    def diameter(self, like: Array) -> float:
        return 2 * self.radius

    def violation(self, x: Array) -> Array:
        xp = namespace_of(x)
        offset = spread(self.offset, x)
        over = norm(x - offset)[..., 0] - self.radius
        return positive_part(over) / or_one(xp.maximum(norm(offset)[0], xp.full_like(offset[0], self.radius)))

    def center(self, like: Array) -> Array:
        return spread(self.offset, like) + namespace_of(like).zeros_like(like)


@final
@dataclass(frozen=True)
class NonnegativeL2Ball(RadiusSet):
    """Part of a ball that is not negative, ``{x >= 0, |x|_2 <= radius}`` along the last axis.

    Parameters
    ----------
    radius : float
        Radius, >= 0.

    Notes
    -----
    LMO : ``radius p / |p|_2``, ``p = max(-g, 0)``; 0 for p = 0
    Cost : O(n)
    Diameter : ``sqrt(2) radius``; ``radius`` for n = 1
    Projection : clip, then shorten, O(n)

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> C = xv.sets.NonnegativeL2Ball(10.0)
    >>> C.lmo(np.array([-3.0, -4.0, 5.0])) + 0.0, C.project(np.array([-1.0, 2.0, -3.0]))
    (array([6., 8., 0.]), array([0., 2., 0.]))
    """

    radius: float = 1.0

    def lmo(self, g: Array) -> Array:
        return self.radius * direction(positive_part(-g))

    def project(self, x: Array) -> Array:
        # clipped first and shortened then: the other order is no projection
        clipped = positive_part(x)
        return namespace_of(x).where(norm(clipped) <= self.radius, clipped, self.radius * direction(clipped))

    def diameter(self, like: Array) -> float:
        return (math.sqrt(2) if like.shape[-1] > 1 else 1.0) * self.radius

    def violation(self, x: Array) -> Array:
        xp = namespace_of(x)
        below = xp.max(-x, axis=-1) / divisor(self.radius)
        return xp.maximum(below, excess(norm(x)[..., 0], self.radius))

    def center(self, like: Array) -> Array:
        return namespace_of(like).full_like(like, 0.5 * self.radius / math.sqrt(like.shape[-1]))
