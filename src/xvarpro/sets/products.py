"""Products: a set per block of a vector, per column or row of a matrix, per group of entries."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, field
from itertools import accumulate
from numbers import Integral
from typing import Any, ClassVar, final

from xvarpro.core.namespace import namespace_of
from xvarpro.core.struct import Array
from xvarpro.errors import ProblemError
from xvarpro.sets._composite import CompositeSet, WrappedSet, is_set, members, one, total
from xvarpro.sets._grouping import Grouping, fitting, grouping, groupings, join, split
from xvarpro.sets.balls import L1Ball, L2Ball
from xvarpro.sets.box import Box
from xvarpro.sets.interface import Set, check_matrix
from xvarpro.sets.simplex import Simplex
from xvarpro.sets.vectors import largest


class _Blockwise(Set):
    """A product of sets of vectors: each block of a point lies in a set of its own."""

    @abstractmethod
    def _blocks(self, x: Array) -> list[tuple[Set, Array]]:
        """The blocks of x, (*batch, *event), each (*batch, vectors, length), with the set of its vectors."""

    @abstractmethod
    def _whole(self, parts: list[Array]) -> Array:
        """Inverse of `_blocks`, without the sets."""

    def _each(self, method: str, *arrays: Array) -> list[Any]:
        """What a method of every set returns for its block of the arrays."""
        blocks = [self._blocks(x) for x in arrays]
        return [getattr(row[0][0], method)(*(x for _, x in row)) for row in zip(*blocks, strict=True)]

    def _by_block(self, method: str, *arrays: Array) -> Array:
        return self._whole(self._each(method, *arrays))

    def _numbers(self, method: str, *arrays: Array) -> Array:
        """One number per vector, those of a point along the last axis."""
        blocks, batch = [self._blocks(x) for x in arrays], arrays[0].ndim - self.event_ndim
        numbers = [_by_point(row[0][0], method, batch, *(x for _, x in row)) for row in zip(*blocks, strict=True)]
        return namespace_of(*arrays).concat(numbers, axis=-1)

    def lmo(self, g: Array) -> Array:
        return self._by_block("lmo", g)

    def certified(self, g: Array) -> tuple[Array, Array | None]:
        parts = self._each("certified", g)
        xp = namespace_of(g)
        slack = [xp.sum(x, axis=-1) for _, x in parts if x is not None]
        return self._whole([v for v, _ in parts]), total(slack)

    def project(self, x: Array) -> Array:
        return self._by_block("project", x)

    def diameter(self, like: Array) -> float:
        blocks = self._blocks(one(self, like))
        return math.hypot(*(math.sqrt(x.shape[-2]) * C.diameter(x[..., 0, :]) for C, x in blocks))

    def violation(self, x: Array) -> Array:
        return largest(self._numbers("violation", x), axis=-1)

    def center(self, like: Array) -> Array:
        return self._by_block("center", like)

    def away(self, g: Array, x: Array) -> Array:
        return self._by_block("away", g, x)

    def tangent(self, d: Array, x: Array) -> Array:
        return self._by_block("tangent", d, x)

    def reach(self, d: Array, x: Array) -> Array:
        return namespace_of(x).min(self._numbers("reach", d, x), axis=-1)

    def slide(self, d: Array, x: Array) -> Array:
        return self._by_block("slide", d, x)


@final
@dataclass(frozen=True)
class Product(_Blockwise, CompositeSet):
    """Product of sets over consecutive blocks of the last axis.

    For blocks that are arrays of their own no set is needed: ``over=`` takes a tree of sets for a tree of arrays.

    Parameters
    ----------
    sets : tuple of Set
        One vector set, or elementwise one, per block.
    sizes : tuple of int, optional
        Length of each block; the default divides the axis evenly.

    Notes
    -----
    LMO : that of each set, block by block
    Cost : the sum of theirs
    Diameter : ``sqrt(sum D_i^2)``
    Projection : that of each set, block by block

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> C = xv.sets.Product((xv.sets.Simplex(), xv.sets.Box(-1.0, 1.0)), (3, 2))
    >>> C.lmo(np.array([1.0, 0.0, 2.0, 1.0, -1.0]))
    array([ 0.,  1.,  0., -1.,  1.])
    """

    sets: tuple[Set, ...] = field(default_factory=lambda: (Simplex(),))
    sizes: tuple[int, ...] | None = None

    event_ndim = 1

    def __post_init__(self) -> None:
        members(self, most=1)
        if self.sizes is None:
            return
        sizes: Any = self.sizes
        whole = isinstance(sizes, tuple | list) and all(_is_length(n) for n in sizes)
        if not whole or len(sizes) != len(self.sets):
            raise ProblemError(
                f"Product: sizes must be {len(self.sets)} whole numbers >= 1, one per set, got {self.sizes!r}"
            )
        object.__setattr__(self, "sizes", tuple(int(n) for n in sizes))

    @classmethod
    def examples(cls, shape: tuple[int, ...]) -> tuple[Set, ...]:
        n = shape[-1]
        if n < 2:
            return (cls(),)
        return cls(), cls((Simplex(2.0), Box(-1.0, 2.0)), (n - 1, 1)), cls((L2Ball(0.5), L1Ball()), (1, n - 1))

    def _cuts(self, n: int) -> list[tuple[Set, slice]]:
        sizes = self.sizes or (n // len(self.sets),) * len(self.sets)
        if sum(sizes) != n:
            raise ProblemError(f"Product: sizes must add up to the axis of length {n}, got {sizes}")
        ends = list(accumulate(sizes))
        return [(C, slice(end - size, end)) for C, size, end in zip(self.sets, sizes, ends, strict=True)]

    def check(self, shape: tuple[int, ...]) -> None:
        for C, at in self._cuts(math.prod(shape)):
            C.check((at.stop - at.start,))

    def _blocks(self, x: Array) -> list[tuple[Set, Array]]:
        return [(C, x[..., None, at]) for C, at in self._cuts(x.shape[-1])]

    def _whole(self, parts: list[Array]) -> Array:
        return namespace_of(*parts).concat(parts, axis=-1)[..., 0, :]


class Repeated(_Blockwise, WrappedSet):
    """The product of one `inner` per vector that a point is made of."""

    def __post_init__(self) -> None:
        is_set(self, self.inner)
        if self.inner.event_ndim > 1:
            raise ProblemError(f"{type(self).__name__}: inner must be a set of vectors, got {self.inner!r}")


class _OfMatrix(Repeated):
    """The vectors are those along `axis` of a matrix."""

    event_ndim = 2
    axis: ClassVar[int]

    def check(self, shape: tuple[int, ...]) -> None:
        check_matrix(self, shape)
        self.inner.check((shape[self.axis],))


@final
@dataclass(frozen=True)
class Columns(_OfMatrix):
    """Matrices each of whose columns lies in `inner`: the product of one `inner` per column.

    Parameters
    ----------
    inner : Set
        A vector set or an elementwise one.

    Notes
    -----
    LMO : that of `inner`, column by column
    Cost : that of `inner` per column
    Diameter : ``sqrt(columns) D``, D that of `inner`
    Projection : that of `inner`, column by column

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> xv.sets.Columns(xv.sets.Simplex()).lmo(np.array([[0.0, 2.0], [1.0, 1.0]]))
    array([[1., 0.],
           [0., 1.]])
    """

    inner: Set = field(default_factory=L2Ball)

    axis = -2

    def _blocks(self, x: Array) -> list[tuple[Set, Array]]:
        return [(self.inner, x.mT)]

    def _whole(self, parts: list[Array]) -> Array:
        return parts[0].mT


@final
@dataclass(frozen=True)
class Rows(_OfMatrix):
    """Matrices each of whose rows lies in `inner`: the product of one `inner` per row.

    Parameters
    ----------
    inner : Set
        A vector set or an elementwise one.

    Notes
    -----
    LMO : that of `inner`, row by row
    Cost : that of `inner` per row
    Diameter : ``sqrt(rows) D``, D that of `inner`
    Projection : that of `inner`, row by row

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> xv.sets.Rows(xv.sets.Simplex()).lmo(np.array([[0.0, 2.0], [1.0, -1.0]]))
    array([[1., 0.],
           [0., 1.]])
    """

    inner: Set = field(default_factory=L2Ball)

    axis = -1

    def _blocks(self, x: Array) -> list[tuple[Set, Array]]:
        return [(self.inner, x)]

    def _whole(self, parts: list[Array]) -> Array:
        return parts[0]


@final
@dataclass(frozen=True)
class Groups(Repeated):
    """Vectors each of whose groups of entries lies in `inner`: the product of one `inner` per group.

    Parameters
    ----------
    inner : Set
        A vector set.
    groups : int or tuple of tuples of int
        The entries of each group, every one in one group; a number makes groups of that many consecutive entries, the
        last one of what is left.

    Notes
    -----
    LMO : that of `inner`, group by group
    Cost : that of `inner` per group
    Diameter : ``sqrt(sum D_G^2)``
    Projection : that of `inner`, group by group

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> xv.sets.Groups(xv.sets.L2Ball(), ((0, 2), (1,))).lmo(np.array([3.0, 7.0, -4.0]))
    array([-0.6, -1. ,  0.8])
    """

    inner: Set = field(default_factory=L2Ball)
    groups: Grouping = 2

    event_ndim = 1

    def __post_init__(self) -> None:
        is_set(self, self.inner)
        if self.inner.event_ndim != 1:
            raise ProblemError(f"Groups: inner must be a set of vectors, got {self.inner!r}")
        grouping(self)

    @classmethod
    def examples(cls, shape: tuple[int, ...]) -> tuple[Set, ...]:
        return (cls(), *(cls(L2Ball(2.0), groups) for groups in groupings(shape)))

    def check(self, shape: tuple[int, ...]) -> None:
        for _, entries in fitting(self, shape).sizes:
            self.inner.check((entries,))

    def _blocks(self, x: Array) -> list[tuple[Set, Array]]:
        return [(self.inner, part) for part in split(self.groups, x)]

    def _whole(self, parts: list[Array]) -> Array:
        return join(self.groups, parts)


def _is_length(n: object) -> bool:
    return isinstance(n, Integral) and not isinstance(n, bool) and int(n) >= 1


def _by_point(C: Set, method: str, batch: int, *arrays: Array) -> Array:
    """Numbers of the vectors of a block, (*batch, vectors); of an elementwise set one for all vectors of a point."""
    fun = getattr(C, method)
    if C.event_ndim:
        return fun(*arrays)
    xp, shape = namespace_of(*arrays), arrays[0].shape[:batch]
    if 0 in shape:
        return xp.sum(arrays[0], axis=-1)
    points = [xp.reshape(x, (-1, *x.shape[batch:])) for x in arrays]
    numbers = xp.stack([fun(*(x[i, ...] for x in points)) for i in range(points[0].shape[0])])
    return xp.reshape(numbers, (*shape, 1))
