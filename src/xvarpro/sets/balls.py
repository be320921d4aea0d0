"""The l1 and the l2 ball."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from array_api_compat import array_namespace

from xvarpro import backends, checks
from xvarpro.protocols import Array, Set
from xvarpro.sets._arithmetic import direction, first_index, negligible, norm, onto_simplex, ratio_test
from xvarpro.sets.simplex import Simplex


@final
@dataclass(frozen=True)
class L1Ball(Set):
    """Ball ``{sum |x| <= radius}`` along the last axis; on a matrix leaf of a solve, the entrywise l1 ball.

    Parameters
    ----------
    radius : float
        Radius, >= 0.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> xv.sets.L1Ball().lmo(np.array([1.0, -3.0, 3.0]))
    array([0., 1., 0.])
    """

    radius: float = 1.0

    polytope = True

    def __post_init__(self) -> None:
        checks.nonnegative(self, "radius")

    def lmo(self, g: Array) -> Array:
        xp = array_namespace(g)
        best = xp.argmax(xp.abs(g), axis=-1)
        steepest = xp.take_along_axis(g, xp.expand_dims(best, axis=-1), axis=-1)
        # zero counts as positive: sign(0) = 0 would be no vertex
        entry = xp.where(steepest < 0, xp.full_like(steepest, self.radius), xp.full_like(steepest, -self.radius))
        return xp.astype(first_index(g, best), g.dtype) * entry

    def project(self, x: Array) -> Array:
        xp = array_namespace(x)
        size = xp.abs(x)
        fits = xp.sum(size, axis=-1, keepdims=True) <= self.radius
        return xp.where(fits, x, xp.sign(x) * onto_simplex(size, self.radius))

    def diameter(self, like: Array) -> float:
        return 2 * self.radius

    def violation(self, x: Array) -> Array:
        xp = array_namespace(x)
        excess = xp.sum(xp.abs(x), axis=-1) - self.radius
        return xp.maximum(excess, xp.zeros_like(excess)) / (self.radius or 1.0)

    # A point on the boundary lies in the face of its signs, a simplex in ``|x|``; one inside has the ball for a face.

    def _tight(self, x: Array) -> Array:
        xp = array_namespace(x)
        return negligible(self.radius - xp.sum(xp.abs(x), axis=-1, keepdims=True), self.radius)

    def away(self, g: Array, x: Array) -> Array:
        xp = array_namespace(g)
        sign = _sign(x)
        return xp.where(self._tight(x), sign * Simplex(self.radius).away(sign * g, xp.abs(x)), self.lmo(-g))

    def tangent(self, d: Array, x: Array) -> Array:
        xp = array_namespace(d)
        sign = _sign(x)
        return xp.where(self._tight(x), sign * Simplex(self.radius).tangent(sign * d, xp.abs(x)), d)

    def reach(self, d: Array, x: Array) -> Array:
        xp = array_namespace(d)
        within = ratio_test(xp.abs(x), -_sign(x) * d)
        return xp.where(self._tight(x)[..., 0], within, self._exit(d, x))

    def _exit(self, d: Array, x: Array) -> Array:
        """Where the ray from `x` along `d` leaves the ball: Newton's method from the right, on a convex function."""
        xp = array_namespace(d)
        size = xp.sum(xp.abs(d), axis=-1)
        some = size > 0
        far = (self.radius + xp.sum(xp.abs(x), axis=-1)) / xp.where(some, size, xp.ones_like(size))

        def body(state: tuple[Array, Array]) -> tuple[Array, Array]:
            alpha, _ = state
            there = x + xp.expand_dims(alpha, axis=-1) * d
            excess = xp.sum(xp.abs(there), axis=-1) - self.radius
            slope = xp.sum(xp.where(there < 0, -d, d), axis=-1)
            going = (excess > 0) & (slope > 0)
            drop = xp.where(going, excess / xp.where(going, slope, xp.ones_like(slope)), xp.zeros_like(excess))
            return alpha - drop, drop

        smallest = xp.finfo(d.dtype).eps
        alpha, _ = backends.owner(x).while_loop(
            lambda state: xp.any(state[1] > smallest * state[0]), body, (far, xp.ones_like(far) + far)
        )
        return xp.where(some, alpha, xp.full_like(alpha, xp.inf))


@final
@dataclass(frozen=True)
class L2Ball(Set):
    """Ball ``{|x|_2 <= radius}`` along the last axis; on a leaf of any shape of a solve, the Frobenius ball.

    Parameters
    ----------
    radius : float
        Radius, >= 0.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> xv.sets.L2Ball(10.0).lmo(np.array([3.0, -4.0]))
    array([-6.,  8.])
    """

    radius: float = 1.0

    def __post_init__(self) -> None:
        checks.nonnegative(self, "radius")

    def lmo(self, g: Array) -> Array:
        return -self.radius * direction(g)

    def project(self, x: Array) -> Array:
        xp = array_namespace(x)
        return xp.where(norm(x) <= self.radius, x, self.radius * direction(x))

    def diameter(self, like: Array) -> float:
        return 2 * self.radius

    def violation(self, x: Array) -> Array:
        xp = array_namespace(x)
        excess = norm(x)[..., 0] - self.radius
        return xp.maximum(excess, xp.zeros_like(excess)) / (self.radius or 1.0)


def _sign(x: Array) -> Array:
    """1 or -1; zero counts as positive."""
    xp = array_namespace(x)
    return xp.where(x < 0, -xp.ones_like(x), xp.ones_like(x))
