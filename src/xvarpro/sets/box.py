"""The box: bounds entry by entry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np

from xvarpro import backends
from xvarpro.core.namespace import array_namespace, device
from xvarpro.core.struct import Array
from xvarpro.errors import ProblemError
from xvarpro.sets.interface import Set
from xvarpro.sets.vectors import beside, negligible, ratio_test


@final
@dataclass(frozen=True)
class Box(Set):
    """Box ``{x : lower <= x <= upper}``.

    Parameters
    ----------
    lower, upper : float or array
        Finite bounds, ``lower <= upper``; arrays must broadcast to the shape of what they bound.

    Notes
    -----
    LMO : ``upper`` where ``g < 0``, else ``lower``; 0 gives ``lower``
    Cost : O(n)
    Diameter : ``|upper - lower|_2``
    Projection : clip, O(n)

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> xv.sets.Box(0.0, 2.0).lmo(np.array([1.0, -1.0]))
    array([0., 2.])
    """

    lower: float | Array = 0.0
    upper: float | Array = 1.0

    event_ndim = 0
    polytope = True

    def __post_init__(self) -> None:
        lower, upper = _host(self.lower), _host(self.upper)
        if not (np.isfinite(lower).all() and np.isfinite(upper).all()):
            raise ProblemError("Box needs finite bounds, since a linear function has no minimum on an unbounded box")
        if not (lower <= upper).all():
            raise ProblemError(f"Box needs lower <= upper, got lower={self.lower!r}, upper={self.upper!r}")

    def check(self, shape: tuple[int, ...]) -> None:
        got = np.broadcast_shapes(_host(self.lower).shape, _host(self.upper).shape)
        try:
            fits = np.broadcast_shapes(got, shape) == shape
        except ValueError:
            fits = False
        if not fits:
            raise ProblemError(f"Box bounds of shape {got} do not broadcast to theta's shape {shape}")

    def _bounds(self, like: Array) -> tuple[Array, Array]:
        zero = array_namespace(like).zeros_like(like)
        return zero + beside(self.lower, like), zero + beside(self.upper, like)

    def lmo(self, g: Array) -> Array:
        lower, upper = self._bounds(g)
        return array_namespace(g).where(g < 0, upper, lower)

    def project(self, x: Array) -> Array:
        xp = array_namespace(x)
        lower, upper = self._bounds(x)
        return xp.minimum(xp.maximum(x, lower), upper)

    def diameter(self, like: Array) -> float:
        width = np.broadcast_to(_host(self.upper) - _host(self.lower), like.shape)
        return float(np.linalg.norm(width))

    def violation(self, x: Array) -> Array:
        lower, upper = self._bounds(x)
        xp = array_namespace(x)
        outside = xp.maximum(lower - x, x - upper)
        width = xp.maximum(upper - lower, xp.maximum(xp.abs(lower), xp.abs(upper)))
        relative = xp.where(outside > 0, outside / xp.where(width > 0, width, xp.ones_like(width)), 0 * outside)
        return _largest(relative)

    def center(self, like: Array) -> Array:
        lower, upper = self._bounds(like)
        return 0.5 * lower + 0.5 * upper

    def _held(self, x: Array) -> Array:
        """Entries at a bound."""
        xp = array_namespace(x)
        lower, upper = self._bounds(x)
        # a step that ends at a bound is rounded at the size of the bound
        size = xp.maximum(xp.abs(lower), xp.abs(upper))
        return negligible(x - lower, size) | negligible(upper - x, size)

    def away(self, g: Array, x: Array) -> Array:
        return array_namespace(g).where(self._held(x), x, self.lmo(-g))

    def tangent(self, d: Array, x: Array) -> Array:
        xp = array_namespace(d)
        return xp.where(self._held(x), xp.zeros_like(d), d)

    def reach(self, d: Array, x: Array) -> Array:
        xp = array_namespace(d)
        lower, upper = self._bounds(x)
        return ratio_test(xp.reshape(xp.where(d < 0, x - lower, upper - x), (-1,)), xp.reshape(xp.abs(d), (-1,)))

    def slide(self, d: Array, x: Array) -> Array:
        # what is at its bound stays there: the projection only ever takes from what moves
        return self.project(x + self.tangent(d, x))


def _host(bound: Any) -> np.ndarray:
    owner = backends.of(bound)
    return np.asarray(bound if owner is None else owner.to_numpy(bound))


def _largest(x: Array) -> Array:
    xp = array_namespace(x)
    return xp.max(x) if 0 not in x.shape else xp.zeros((), dtype=x.dtype, device=device(x))
