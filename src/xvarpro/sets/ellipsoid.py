"""Ellipsoids."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np

from xvarpro import backends
from xvarpro.core.namespace import namespace_of
from xvarpro.core.struct import Array
from xvarpro.errors import ProblemError
from xvarpro.sets._root_finding import root
from xvarpro.sets.interface import RadiusSet, Set
from xvarpro.sets.vectors import (
    apply,
    as_like,
    direction,
    finite,
    fits,
    host_numbers,
    norm,
    or_one,
    positive_part,
    spread,
    vanishes,
    vector,
)


@final
@dataclass(frozen=True)
class Ellipsoid(RadiusSet):
    """Ellipsoid ``{(x - offset)^T matrix (x - offset) <= radius^2}`` along the last axis.

    Parameters
    ----------
    matrix : float, vector or matrix
        Symmetric and positive definite; a vector is its diagonal, a number a multiple of the identity. Decomposed once,
        on the host, when the set is made.
    offset : float or vector
        The middle.
    radius : float
        Radius in the norm of the matrix, >= 0.

    Notes
    -----
    LMO : ``offset - radius A^-1 g / sqrt(g^T A^-1 g)``; ``offset`` for g = 0
    Cost : O(n); O(n^2) for a full matrix
    Diameter : ``2 radius / sqrt(lambda_min(A))``
    Projection : root search, O(n) a pass; O(n^2) for a full matrix

    In the coordinates of the principal axes the projection is one root of a secular equation.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> C = xv.sets.Ellipsoid(np.array([1.0, 4.0]), radius=2.0)
    >>> C.lmo(np.array([0.0, 3.0])) + 0.0, C.diameter(np.zeros(2))
    (array([ 0., -1.]), 4.0)
    """

    matrix: float | Array = 1.0
    offset: float | Array = 0.0
    radius: float = 1.0
    axes: Array | None = field(init=False, repr=False, compare=False, default=None)  # rows; None for those of x
    lengths: Any = field(init=False, repr=False, compare=False, default=None)  # half-axes of the ellipsoid of radius 1

    strictly_convex = True

    def __post_init__(self) -> None:
        vector(self, "offset")
        super().__post_init__()
        matrix = host_numbers(self.matrix)
        if matrix is None or matrix.ndim < 2:
            vector(self, "matrix", "> 0, or a positive definite matrix", lambda x: x > 0)
            values = 1 / np.sqrt(backends.to_numpy(self.matrix).astype(np.float64))
            object.__setattr__(self, "lengths", values if values.ndim else float(values))
            return
        matrix = finite(self, "matrix", "finite and square", lambda x: x.ndim == 2 and x.shape[0] == x.shape[1])
        if np.abs(matrix - matrix.T).max() > 1e-6 * np.abs(matrix).max():
            raise ProblemError(f"Ellipsoid: matrix must be symmetric, got {self.matrix!r}")
        values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
        if not values[0] > len(values) * np.finfo(np.float64).eps * values[-1]:
            raise ProblemError(
                f"Ellipsoid: matrix must be positive definite, its eigenvalues are {values[0]:g} to {values[-1]:g}"
            )
        object.__setattr__(self, "axes", np.ascontiguousarray(vectors.T))
        object.__setattr__(self, "lengths", 1 / np.sqrt(values))

    @classmethod
    def examples(cls, shape: tuple[int, ...]) -> tuple[Set, ...]:
        n = math.prod(shape)
        factor = np.tril(np.cos(np.arange(float(n * n))).reshape(n, n)) + 1.5 * np.eye(n)
        return (cls(), cls(np.linspace(0.25, 4.0, n), 0.5, 2.0), cls(factor @ factor.T, np.linspace(-1.0, 1.0, n), 1.5))

    def check(self, shape: tuple[int, ...]) -> None:
        fits(self, shape, "offset")
        n, got = math.prod(shape), backends.to_numpy(self.matrix).shape
        if got and got[0] != n:
            raise ProblemError(f"Ellipsoid: matrix has shape {got}, theta's leaf of shape {shape} has {n} entries")

    def _along(self, x: Array) -> Array:
        """Coordinates in the principal axes."""
        return x if self.axes is None else apply(as_like(self.axes, x), x)

    def _back(self, z: Array) -> Array:
        return z if self.axes is None else apply(namespace_of(z).matrix_transpose(as_like(self.axes, z)), z)

    def lmo(self, g: Array) -> Array:
        lengths, offset = spread(self.lengths, g), spread(self.offset, g)
        step = lengths * direction(lengths * self._along(direction(g)))
        return offset - self.radius * self._back(step)

    def project(self, x: Array) -> Array:
        xp = namespace_of(x)
        lengths, offset = spread(self.lengths, x), spread(self.offset, x)
        z = self._along(x - offset)
        fits = norm(z / lengths) <= self.radius
        if vanishes(self.radius):
            return offset + 0 * z
        # y = z s^2 / (s^2 + t): |y / s| = radius; in units of the longest axis and of z
        longest = xp.max(lengths)
        s = lengths / longest
        unit = norm(z / longest)
        w = z / longest / or_one(unit)
        # the ball of radius c holds the set of t with |w s / (s^2 + t)| <= 1/c
        goal = self.radius / or_one(unit)
        high = norm(s * w) / goal
        low = xp.where(fits, high, xp.zeros_like(high))

        def surplus(t: Array) -> tuple[Array, Array]:
            # 1/goal - 1/|y| is nearly a line (Reinsch; More and Sorensen): Newton's method needs few steps
            part = w * s / (s * s + t)
            safe = or_one(norm(part))
            rate = xp.sum((part / safe) ** 2 / (s * s + t), axis=-1, keepdims=True)
            return 1 / goal - 1 / safe, -rate / safe

        near = xp.finfo(x.dtype).eps / goal
        t = root(surplus, low, high, low, close=0.0, near=near)
        y = w * (s * s) / (s * s + t)
        y = lengths * direction(y / s)
        return xp.where(fits, x, offset + self.radius * self._back(y))

    def diameter(self, like: Array) -> float:
        return 2 * self.radius * float(np.max(backends.to_numpy(self.lengths)))

    def violation(self, x: Array) -> Array:
        xp = namespace_of(x)
        lengths, offset = spread(self.lengths, x), spread(self.offset, x)
        over = norm(self._along(x - offset) / lengths)[..., 0] - self.radius
        size = xp.maximum(norm(offset)[0] / xp.min(lengths), xp.zeros_like(offset[0]) + self.radius)
        return positive_part(over) / or_one(size)

    def center(self, like: Array) -> Array:
        return spread(self.offset, like) + namespace_of(like).zeros_like(like)
