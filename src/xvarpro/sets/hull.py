"""The convex hull of given points."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import final

import numpy as np

from xvarpro import backends
from xvarpro.backends.transformations import with_derivative
from xvarpro.core.namespace import namespace_of
from xvarpro.core.struct import Array
from xvarpro.errors import ProblemError
from xvarpro.sets._nearest_point import nearest_point
from xvarpro.sets.interface import Set
from xvarpro.sets.vectors import apply, as_like, direction, finite, largest, norm, or_one, scaled


@final
@dataclass(frozen=True)
class ConvexHull(Set):
    """Convex hull of given atoms, along the last axis.

    Parameters
    ----------
    atoms : matrix
        One atom a row: k atoms of n entries. The unit segment if left out.

    Notes
    -----
    LMO : the atom with the least ``<g, a>``; first atom
    Cost : O(k n)
    Diameter : largest distance between two atoms
    Projection : Wolfe's method, O(n^3) a step

    Each step of the projection (Wolfe, 1976) is one eigenvalue decomposition; `violation` is the distance to it.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> C = xv.sets.ConvexHull(np.array([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0]]))
    >>> C.lmo(np.array([1.0, -1.0])), C.project(np.array([2.0, 2.0]))
    (array([0., 2.]), array([1., 1.]))
    """

    atoms: Array = field(default_factory=lambda: np.array([[0.0], [1.0]]))

    polytope = True

    def __post_init__(self) -> None:
        wanted = "a finite matrix of real numbers, one atom a row"
        finite(self, "atoms", wanted, lambda x: x.ndim == 2 and x.size)

    @classmethod
    def examples(cls, shape: tuple[int, ...]) -> tuple[Set, ...]:
        n = math.prod(shape)
        grid = np.cos(np.arange(float((n + 3) * n)) ** 2).reshape(n + 3, n)
        return (cls(2.0 * np.eye(n)), cls(grid), cls(np.concatenate([grid[:2], grid[:1]]) + 1.0))

    def check(self, shape: tuple[int, ...]) -> None:
        if self.atoms.shape[1] != math.prod(shape):
            raise ProblemError(
                f"ConvexHull: atoms have {self.atoms.shape[1]} entries, theta's leaf of shape {shape} "
                f"has {math.prod(shape)}"
            )

    def lmo(self, g: Array) -> Array:
        xp = namespace_of(g)
        atoms = as_like(self.atoms, g)
        best = xp.argmin(apply(atoms, scaled(g)[0]), axis=-1)
        return xp.reshape(xp.take(atoms, xp.reshape(best, (-1,)), axis=0), g.shape)

    def project(self, x: Array) -> Array:
        return with_derivative(self._nearest, self.slope, x)

    def slope(self, x: Array) -> Callable[[Array], Array]:
        """The derivative of `project` at x: the projector onto the span of the face that x sees."""
        xp = namespace_of(x)
        p, atoms = self._nearest(x), as_like(self.atoms, x)
        r, (k, n), eps = x - p, atoms.shape, xp.finfo(x.dtype).eps
        V = atoms - xp.expand_dims(p, axis=-2)
        size = xp.max(norm(V)[..., 0], axis=-1, keepdims=True)
        drop = -xp.sum(V * xp.expand_dims(direction(r), axis=-2), axis=-1)
        # a point inside comes back to rounding: it sees all atoms
        inside = norm(r) <= 256 * eps * xp.maximum(size, xp.max(xp.abs(x), axis=-1, keepdims=True))
        V = xp.where(xp.expand_dims(inside | (drop <= eps**0.5 * size), axis=-1), V / or_one(size)[..., None], 0 * V)
        values, Q = xp.linalg.eigh(V.mT @ V)
        span = xp.astype(values > (k + n) * eps * values[..., -1:], x.dtype)
        J = (Q * xp.expand_dims(span, axis=-2)) @ Q.mT
        return lambda d: (J @ xp.expand_dims(d, axis=-1))[..., 0]

    def _nearest(self, x: Array) -> Array:
        k, n = self.atoms.shape
        xp = namespace_of(x)
        # further away than this products with atoms that tie differ by more than the atoms do
        size, far = xp.max(xp.abs(as_like(self.atoms, x))), xp.max(xp.abs(x), axis=-1, keepdims=True)
        most = size * xp.finfo(x.dtype).eps ** -0.5
        x = xp.where(far > most, x / or_one(far) * most, x)
        return nearest_point(lambda r: self.lmo(-r), x, capacity=min(k, n + 1) + 1, rounds=8 * k + 64)[0]

    def diameter(self, like: Array) -> float:
        atoms = backends.to_numpy(self.atoms).astype(np.float64)
        return max(float(largest(norm(atoms - atom))) for atom in atoms)

    def violation(self, x: Array) -> Array:
        size = namespace_of(x).max(norm(as_like(self.atoms, x)))
        return norm(x - self.project(x))[..., 0] / or_one(size)

    def center(self, like: Array) -> Array:
        xp = namespace_of(like)
        return xp.zeros_like(like) + xp.mean(as_like(self.atoms, like), axis=0)
