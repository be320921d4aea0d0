"""The l1 and the l2 ball."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from array_api_compat import array_namespace

from xvarpro import checks
from xvarpro.protocols import Array, Set
from xvarpro.sets._arithmetic import direction, first_index, norm, onto_simplex


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

    polytope: ClassVar[bool] = True

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
