"""Smooth maps of one leaf of theta: from vectors (size,) to its entries, with the logarithm of the Jacobian."""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np

from xvarpro.core.namespace import device, namespace_of
from xvarpro.core.struct import Array
from xvarpro.errors import ProblemError
from xvarpro.sets import Box, LinfBall, Simplex
from xvarpro.sets.interface import Set


def _limited(u: Array) -> tuple[Array, Array]:
    """The part of u whose exponential is a number, and by how much u goes beyond."""
    xp = namespace_of(u)
    most = xp.full_like(u, 0.5 * math.log(xp.finfo(u.dtype).max))
    c = xp.minimum(xp.maximum(u, -most), most)
    return c, xp.abs(u - c)


def _constants(u: Array, *constants: np.ndarray) -> list[Array]:
    return [namespace_of(u).asarray(x, dtype=u.dtype, device=device(u)) for x in constants]


class Bounds:
    """Entries between bounds, of which both may be infinite."""

    def __init__(self, lower: np.ndarray, upper: np.ndarray) -> None:
        self.moving = lower < upper
        self.fixed = np.where(self.moving, 0.0, lower)
        self.lower, self.upper = lower[self.moving], upper[self.moving]
        self.size, self.log_volume = self.lower.size, float(np.sum(np.log(self.upper - self.lower)))

    def __call__(self, u: Array) -> tuple[Array, Array]:
        xp, low, high = namespace_of(u), np.isfinite(self.lower), np.isfinite(self.upper)
        width = np.subtract(self.upper, self.lower, out=np.ones(self.size), where=low & high)
        ends = np.where(low, self.lower, 0.0), np.where(high, self.upper, 0.0)
        a, b, width = _constants(u, *ends, width)
        both, above, below = (xp.asarray(x, device=device(u)) for x in (low & high, low & ~high, high & ~low))
        c, beyond = _limited(u)
        rise = xp.exp(c)
        logistic = xp.log(width) - xp.log1p(xp.exp(-c)) - xp.log1p(rise) - beyond
        x = xp.where(both, a + width / (1 + xp.exp(-c)), xp.where(above, a + rise, xp.where(below, b - rise, u)))
        jacobian = xp.where(both, logistic, xp.where(above | below, c - beyond, 0 * u))
        if self.size < self.moving.size:  # entries that do not move have places among the others
            places, fixed = _constants(u, np.eye(self.moving.size)[:, self.moving], self.fixed)
            x = fixed + places @ x
        return x, xp.sum(jacobian)

    def inverse(self, x: np.ndarray) -> np.ndarray:
        x = x[self.moving]
        from_low, from_high = np.log(x - self.lower), np.log(self.upper - x)
        both = np.where(np.isfinite(self.upper), from_low - from_high, from_low)
        return np.where(np.isfinite(self.lower), both, np.where(np.isfinite(self.upper), from_high, x))


class Sticks:
    """A simplex: each entry breaks a part off what those before have left."""

    def __init__(self, radius: float, n: int) -> None:
        self.radius, self.size = radius, n - 1
        self.shift = np.log(np.arange(n - 1, 0, -1.0))  # u = 0 is the centre
        self.log_volume = (n - 1) * math.log(radius) - math.lgamma(n)  # in all entries but the last

    def __call__(self, u: Array) -> tuple[Array, Array]:
        xp = namespace_of(u)
        shift, before = _constants(u, self.shift, np.tri(self.size + 1, self.size, -1))
        c, beyond = _limited(u - shift)
        part, rest = -xp.log1p(xp.exp(-c)), -xp.log1p(xp.exp(c))
        left = before @ rest  # the logarithm of what is left before each entry
        x = self.radius * xp.exp(xp.concat([left[:-1] + part, left[-1:]]))
        return x, xp.sum(part + rest - beyond + left[:-1]) + self.size * math.log(self.radius)

    def inverse(self, x: np.ndarray) -> np.ndarray:
        after = np.cumsum(x[::-1])[::-1][1:]
        return np.log(x[:-1]) - np.log(after) + self.shift


Chart: TypeAlias = Bounds | Sticks


def chart(C: Set | None, shape: tuple[int, ...]) -> Chart:
    """The map onto a set, or onto all of ``R^n``, for a leaf of this shape."""
    if isinstance(C, Simplex) and C.radius > 0:
        return Sticks(float(C.radius), math.prod(shape))
    if (found := bounds(C, shape)) is None:
        raise ProblemError(
            "unconstrained coordinates need entries that are free, in a Box, a LinfBall or a Simplex; got "
            f"{C!r}. Write theta as a smooth function of free entries in the model"
        )
    return Bounds(*found)


def bounds(C: Set | None, shape: tuple[int, ...]) -> list[np.ndarray] | None:
    """Lower and upper bounds of the entries of a leaf, (n,) each; None where its set, in NumPy's arrays, is another."""
    if isinstance(C, Box):
        ends = C.lower, C.upper
    elif C is None or isinstance(C, LinfBall):
        reach = math.inf if C is None else C.radius
        ends = -reach, reach
    else:
        return None
    return [np.broadcast_to(np.asarray(x, float), shape).ravel() for x in ends]
