"""The interface of a convex set."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np

from xvarpro.core.namespace import array_namespace, device
from xvarpro.core.struct import Array, Struct


class Set(Struct):
    """A compact convex set `C`, reached through its linear minimisation oracle.

    Elementwise sets (`event_ndim == 0`) act on every entry, vector sets (1) on the last axis, matrix sets (2) on the
    last two; all leading axes are batch axes. Inside a solve a vector set constrains the whole leaf it is given,
    flattened: ``over=L1Ball(1.0)`` on a matrix is the entrywise l1 ball, ``over=Columns(L1Ball(1.0))`` one ball per
    column. The inner product is ``Re sum conj(g) v``.
    """

    @property
    def event_ndim(self) -> int:
        """Trailing axes that make one point of the set."""
        return 1

    @property
    def polytope(self) -> bool:
        """Whether the set is the convex hull of finitely many points, all of which `lmo` returns."""
        return False

    @property
    def strictly_convex(self) -> bool:
        """Whether no segment lies in the boundary, as of a Euclidean ball: every face is a point."""
        return False

    @property
    def spectral(self) -> bool:
        """Whether singular values or eigenvalues are what is constrained: a projection decomposes the whole matrix."""
        return False

    @property
    def takes_complex(self) -> bool:
        """Whether points may be complex."""
        return False

    @property
    def compiles(self) -> bool:
        """Whether the oracle runs inside a compiled loop; one that calls a solver on the host does not."""
        return True

    @property
    def has_projection(self) -> bool:
        """Whether `project` is offered."""
        return type(self).project is not Set.project

    @property
    def has_faces(self) -> bool:
        """Whether `away`, `tangent` and `reach` are offered."""
        return type(self).tangent is not Set.tangent

    @abstractmethod
    def lmo(self, g: Array) -> Array:
        """``argmin <g, v> over v in C``. Ties go to the first index; ``lmo(0)`` is feasible and finite."""

    def certified(self, g: Array) -> tuple[Array, Array | None]:
        """``lmo(g)``, and how far ``<g, v>`` may lie above the minimum: batch shape, None where the oracle is exact.

        An inexact oracle under-estimates the Frank-Wolfe gap by at most that much.
        """
        return self.lmo(g), None

    def support(self, g: Array) -> Array:
        """``max <g, v> over v in C``. Batch shape."""
        return self._sum(_real_product(g, self.lmo(-g)))

    def project(self, x: Array) -> Array:
        """Euclidean projection of `x`. A set that offers none leaves this as it is."""
        raise NotImplementedError(f"{type(self).__name__} offers no projection: use a Frank-Wolfe method")

    @abstractmethod
    def diameter(self, like: Array) -> float:
        """Euclidean diameter of the set for an event shaped like `like`; an upper bound where the class says so."""

    @abstractmethod
    def violation(self, x: Array) -> Array:
        """How far `x` is outside, relative to the size of the set; 0 inside. Batch shape."""

    def contains(self, x: Array, tol: float = 1e-9) -> Array:
        """Whether `x` violates the set by at most `tol`, relative to the size of the set. Batch shape, boolean."""
        return self.violation(x) <= tol

    def center(self, like: Array) -> Array:
        """A point in the relative interior, shaped like `like`: the origin unless the set says otherwise."""
        return array_namespace(like).zeros_like(like)

    def random_point(self, like: Array, seed: int = 0) -> Array:
        """A random feasible point shaped like `like`, the same on every framework: a mixture of eight vertices.

        Not uniform: what is uniform on one set has no cheap algorithm on another.
        """
        xp, rng = array_namespace(like), np.random.default_rng(seed)
        shape = (8, *like.shape)
        g: Any = rng.normal(size=shape)
        if xp.isdtype(like.dtype, "complex floating"):
            g = g + 1j * rng.normal(size=shape)
        vertices = self.lmo(xp.asarray(g, dtype=like.dtype, device=device(like)))
        shares = rng.dirichlet(np.ones(8)).reshape(8, *(1,) * like.ndim)
        return xp.sum(xp.asarray(shares, dtype=like.dtype, device=device(like)) * vertices, axis=0)

    # -- faces, for methods that stay inside them ----------------------------------------------------------------------

    def away(self, g: Array, x: Array) -> Array:
        """``argmax <g, v> over v in the smallest face that contains x``: the vertex to leave."""
        raise NotImplementedError(f"{type(self).__name__} does not describe its faces")

    def tangent(self, d: Array, x: Array) -> Array:
        """Orthogonal projection of a direction on those that stay in the affine hull of the smallest face of `x`."""
        raise NotImplementedError(f"{type(self).__name__} does not describe its faces")

    def reach(self, d: Array, x: Array) -> Array:
        """Largest alpha with ``x + alpha d`` in the set, for a direction of `tangent` or towards a vertex. Batch shape;
        inf where the direction is zero.
        """
        raise NotImplementedError(f"{type(self).__name__} does not describe its faces")

    def slide(self, d: Array, x: Array) -> Array | None:
        """Where a way of length 1 from `x` along `d` ends that stays in the smallest face of `x`, and in each face that
        it meets; None where it has to be walked from one to the next, with `tangent` and `reach`.
        """
        return None

    # -- parameters ----------------------------------------------------------------------------------------------------

    def check(self, shape: tuple[int, ...]) -> None:
        """Raise `ProblemError` if a leaf of that shape cannot lie in the set."""

    @classmethod
    def examples(cls, shape: tuple[int, ...]) -> tuple[Set, ...]:
        """Instances for an event of that shape: what the contract suite tests and the documentation measures.

        A class whose parameters depend on the shape, or that has more than one regime, overrides it.
        """
        return (cls(),)

    def _sum(self, x: Array) -> Array:
        """Sum over the axes of an event; over all of them for an elementwise set."""
        axes = tuple(range(-self.event_ndim, 0)) if self.event_ndim else None
        return array_namespace(x).sum(x, axis=axes)


def _real_product(g: Array, v: Array) -> Array:
    """``Re conj(g) v``, entry by entry."""
    xp = array_namespace(g)
    if not xp.isdtype(g.dtype, "complex floating"):
        return g * v
    return xp.real(g) * xp.real(v) + xp.imag(g) * xp.imag(v)
