"""Base classes of sets that are made of other sets, and checks of these."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np

from xvarpro.core.struct import Array
from xvarpro.errors import ProblemError
from xvarpro.sets.interface import Set


class _MadeOfSets(Set):
    """A set made of others: it has a property if all of them have it, an optional method if it defines it, too."""

    @property
    @abstractmethod
    def _parts(self) -> tuple[Set, ...]:
        """The sets that it is made of."""

    @property
    def event_ndim(self) -> int:
        return max(C.event_ndim for C in self._parts)

    @property
    def polytope(self) -> bool:
        return all(C.polytope for C in self._parts)

    @property
    def takes_complex(self) -> bool:
        return all(C.takes_complex for C in self._parts)

    @property
    def compiles(self) -> bool:
        return all(C.compiles for C in self._parts)

    @property
    def has_projection(self) -> bool:
        return super().has_projection and all(C.has_projection for C in self._parts)

    @property
    def projects_quickly(self) -> bool:
        return super().projects_quickly and all(C.projects_quickly for C in self._parts)

    @property
    def has_faces(self) -> bool:
        return super().has_faces and all(C.has_faces for C in self._parts)

    def check(self, shape: tuple[int, ...]) -> None:
        for C in self._parts:
            C.check(shape)


class WrappedSet(_MadeOfSets):
    """A set made of one other, `inner`."""

    inner: Set

    @property
    def _parts(self) -> tuple[Set, ...]:
        return (self.inner,)

    @property
    def spectral(self) -> bool:
        return self.inner.spectral


class MappedSet(WrappedSet):
    """`inner` in other coordinates: those of points, and of gradients and directions; by default its own."""

    @property
    def strictly_convex(self) -> bool:
        return self.inner.strictly_convex

    def _in(self, x: Array) -> Array:
        """The point of `inner` for a point."""
        return x

    def _out(self, z: Array, like: Array) -> Array:
        """Inverse of `_in`, for a point shaped as `like`."""
        return z

    def _along(self, x: Array) -> Array:
        """The gradient or direction of `inner` for one of the set."""
        return x

    def _back(self, z: Array, like: Array) -> Array:
        """Inverse of `_along`, for a direction shaped as `like`."""
        return z

    def lmo(self, g: Array) -> Array:
        return self._out(self.inner.lmo(self._along(g)), g)

    def certified(self, g: Array) -> tuple[Array, Array | None]:
        v, slack = self.inner.certified(self._along(g))
        return self._out(v, g), slack

    def project(self, x: Array) -> Array:
        return self._out(self.inner.project(self._in(x)), x)

    def diameter(self, like: Array) -> float:
        return self.inner.diameter(self._along(like))

    def violation(self, x: Array) -> Array:
        return self.inner.violation(self._in(x))

    def center(self, like: Array) -> Array:
        return self._out(self.inner.center(self._along(like)), like)

    def away(self, g: Array, x: Array) -> Array:
        return self._out(self.inner.away(self._along(g), self._in(x)), x)

    def tangent(self, d: Array, x: Array) -> Array:
        return self._back(self.inner.tangent(self._along(d), self._in(x)), d)

    def reach(self, d: Array, x: Array) -> Array:
        return self.inner.reach(self._along(d), self._in(x))

    def slide(self, d: Array, x: Array) -> Array:
        return self._out(self.inner.slide(self._along(d), self._in(x)), x)


class CompositeSet(_MadeOfSets):
    """A set made of several, `sets`."""

    sets: tuple[Set, ...]

    @property
    def _parts(self) -> tuple[Set, ...]:
        return self.sets

    @property
    def event_ndim(self) -> int:
        return max(1, super().event_ndim)


def is_set(owner: object, inner: object, name: str = "inner") -> None:
    """Refuse what is no bounded set."""
    if not isinstance(inner, Set):
        raise ProblemError(f"{type(owner).__name__}: {name} must be a set such as xv.sets.Simplex(), got {inner!r}")
    if not inner.bounded:
        raise ProblemError(
            f"{type(owner).__name__}: {name} must be bounded, got {inner!r}. Give finite bounds, or a leaf of its own"
        )


def members(owner: CompositeSet, most: int) -> None:
    """Refuse what is no tuple of sets of one kind: of vectors, or of matrices where `most` is 2."""
    if not isinstance(owner.sets, tuple | list) or not owner.sets:
        raise ProblemError(f"{type(owner).__name__}: sets must be a tuple of sets, got {owner.sets!r}")
    for C in owner.sets:
        is_set(owner, C, "sets")
    object.__setattr__(owner, "sets", tuple(owner.sets))
    kinds = {C.event_ndim for C in owner.sets} - {0}
    if len(kinds) > 1 or max(kinds, default=1) > most:
        what = "sets of vectors" if most == 1 else "sets of vectors or sets of matrices, not both"
        raise ProblemError(f"{type(owner).__name__}: sets must be {what}, got {owner.sets!r}")


def one(C: Set, like: Array) -> np.ndarray:
    """Zeros on the host in the shape of one point of a set of vectors or of matrices."""
    return np.zeros(tuple(like.shape[like.ndim - C.event_ndim :]))


def total(terms: list[Any]) -> Any:
    """Sum of the terms that are not None; None where all are."""
    found = [x for x in terms if x is not None]
    return sum(found[1:], found[0]) if found else None
