"""Sets made of other sets: shifted, mapped, summed, joined."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import combinations
from typing import final

import numpy as np

from xvarpro import backends
from xvarpro.core import checks
from xvarpro.core.namespace import adjoint as conjugate_transpose
from xvarpro.core.namespace import namespace_of
from xvarpro.core.struct import Array
from xvarpro.errors import ProblemError
from xvarpro.sets._composite import CompositeSet, MappedSet, WrappedSet, is_set, members, one, total
from xvarpro.sets._nearest_point import distance_bound
from xvarpro.sets.balls import L1Ball, L2Ball
from xvarpro.sets.box import Box
from xvarpro.sets.interface import Set
from xvarpro.sets.simplex import Simplex
from xvarpro.sets.vectors import apply, as_like, broadcasts, divisor, finite, norm, or_one, real_inner


@final
@dataclass(frozen=True)
class ShiftScale(MappedSet):
    """``{scale z + shift : z in inner}``.

    Parameters
    ----------
    inner : Set
    scale : float
        Factor, > 0.
    shift : float or array
        Broadcasts to a point of the set.

    Notes
    -----
    LMO : ``scale v + shift``, v that of `inner`
    Cost : that of `inner`
    Diameter : ``scale D``, D that of `inner`
    Projection : that of `inner`, shifted and scaled

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> xv.sets.ShiftScale(xv.sets.Simplex(), 2.0, np.array([1.0, 0.0])).lmo(np.array([3.0, 1.0]))
    array([1., 2.])
    """

    inner: Set = field(default_factory=L2Ball)
    scale: float = 1.0
    shift: float | Array = 0.0

    def __post_init__(self) -> None:
        is_set(self, self.inner)
        checks.above(self, "scale", 0)
        finite(self, "shift", "finite numbers", kinds="iufc")

    @classmethod
    def examples(cls, shape: tuple[int, ...]) -> tuple[Set, ...]:
        shift = np.linspace(-1.0, 2.0, shape[-1])
        return cls(), cls(L1Ball(2.0), 0.5, shift), cls(Simplex(), 3.0, -1.0), cls(Box(), 2.0, shift)

    def check(self, shape: tuple[int, ...]) -> None:
        self.inner.check(shape)
        event = (math.prod(shape),) if self.event_ndim == 1 else shape
        broadcasts(self, "shift", self.shift, event)

    def _in(self, x: Array) -> Array:
        return (x - as_like(self.shift, x)) / self.scale

    def _out(self, z: Array, like: Array) -> Array:
        return self.scale * z + as_like(self.shift, z)

    def certified(self, g: Array) -> tuple[Array, Array | None]:
        v, slack = super().certified(g)
        return v, None if slack is None else self.scale * slack

    def diameter(self, like: Array) -> float:
        return self.scale * super().diameter(like)

    # lengths count: those of directions of `inner` are shorter by the scale

    def reach(self, d: Array, x: Array) -> Array:
        return super().reach(d / self.scale, x)

    def slide(self, d: Array, x: Array) -> Array:
        return super().slide(d / self.scale, x)


@final
@dataclass(frozen=True)
class LinearImage(WrappedSet):
    """``{matrix z + shift : z in inner}``, vectors on the last axis.

    `violation` is a lower bound on the distance over the diameter: 0 inside, and where the distance is below the square
    root of rounding. Where ``matrix^H g`` has ties the point of the oracle may be no vertex.

    Parameters
    ----------
    inner : Set
        A vector set, or an elementwise one.
    matrix : array, optional
        m x n; the default is the identity.
    shift : float or array
        Broadcasts to m.

    Notes
    -----
    LMO : ``matrix v + shift``, v that of `inner` for ``matrix^H g``
    Cost : two products and that of `inner`
    Diameter : upper bound, ``|matrix|_2 D``, D that of `inner`
    Projection : none, because it takes a program over `inner`

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> A = np.array([[1.0, 1.0], [0.0, 2.0], [1.0, 0.0]])
    >>> xv.sets.LinearImage(xv.sets.Simplex(), A).lmo(np.array([0.0, -1.0, 0.0]))
    array([1., 2., 0.])
    """

    inner: Set = field(default_factory=Simplex)
    matrix: Array | None = None
    shift: float | Array = 0.0

    event_ndim = 1

    def __post_init__(self) -> None:
        is_set(self, self.inner)
        if self.inner.event_ndim > 1:
            raise ProblemError(f"LinearImage: inner must be a set of vectors, got {self.inner!r}")
        if self.matrix is not None:
            matrix = finite(self, "matrix", "finite numbers", kinds="iufc")
            if matrix.ndim != 2 or 0 in matrix.shape:
                raise ProblemError(f"LinearImage: matrix must have two axes, got shape {matrix.shape}")
        finite(self, "shift", "finite numbers", kinds="iufc")

    @classmethod
    def examples(cls, shape: tuple[int, ...]) -> tuple[Set, ...]:
        n = shape[-1]
        falls = np.tril(np.ones((n, n)))
        return cls(), cls(L1Ball(2.0), falls), cls(Box(0.0, 1.0), 2 * falls, 1.0)

    def check(self, shape: tuple[int, ...]) -> None:
        m = math.prod(shape)
        rows, columns = (m, m) if self.matrix is None else self.matrix.shape
        if rows != m:
            raise ProblemError(f"LinearImage: matrix must have {m} rows for this leaf, got shape {(rows, columns)}")
        self.inner.check((columns,))
        broadcasts(self, "shift", self.shift, (m,))

    def _out(self, z: Array) -> Array:
        return self._times(z, adjoint=False) + as_like(self.shift, z)

    def _times(self, z: Array, adjoint: bool) -> Array:
        if self.matrix is None:
            return z
        xp = namespace_of(z)
        A = xp.astype(as_like(self.matrix, z), z.dtype, copy=False)
        return apply(conjugate_transpose(A) if adjoint else A, z)

    def lmo(self, g: Array) -> Array:
        return self._out(self.inner.lmo(self._times(g, adjoint=True)))

    def certified(self, g: Array) -> tuple[Array, Array | None]:
        v, slack = self.inner.certified(self._times(g, adjoint=True))
        return self._out(v), slack

    def diameter(self, like: Array) -> float:
        if self.matrix is None:
            return self.inner.diameter(one(self, like))
        return float(self._width(backends.to_numpy(self.matrix)))

    def _width(self, A: Array) -> Array:
        return namespace_of(A).linalg.matrix_norm(A, ord=2) * self.inner.diameter(np.zeros(A.shape[1]))

    def violation(self, x: Array) -> Array:
        if self.matrix is None:
            return distance_bound(self, x) / divisor(self.diameter(x))
        D = self._width(as_like(self.matrix, x))  # where a program is traced the matrix has no values yet
        return distance_bound(self, x) / namespace_of(x).where(D > 0, D, 1.0)

    def center(self, like: Array) -> Array:
        return self._out(self.inner.center(self._times(like, adjoint=True)))


class _SameSpace(CompositeSet):
    """Made of sets of one kind of point; `violation` is a lower bound on the distance over the diameter."""

    def __post_init__(self) -> None:
        members(self, most=2)

    def violation(self, x: Array) -> Array:
        return distance_bound(self, x) / divisor(self.diameter(x))


@final
@dataclass(frozen=True)
class MinkowskiSum(_SameSpace):
    """``{sum_i z_i : z_i in sets[i]}``.

    `violation` is as for `LinearImage`. Where several sets have ties the point of the oracle may be no vertex.

    Parameters
    ----------
    sets : tuple of Set
        Sets of one kind, of vectors or of matrices; elementwise ones count as either.

    Notes
    -----
    LMO : the sum of theirs
    Cost : the sum of theirs
    Diameter : upper bound, ``sum D_i``
    Projection : none, because it takes a program over all sets

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> xv.sets.MinkowskiSum((xv.sets.L1Ball(), xv.sets.Box(-0.5, 0.5))).lmo(np.array([1.0, -2.0]))
    array([-0.5,  1.5])
    """

    sets: tuple[Set, ...] = field(default_factory=lambda: (L1Ball(), L2Ball()))

    @classmethod
    def examples(cls, shape: tuple[int, ...]) -> tuple[Set, ...]:
        return cls(), cls((Box(-1.0, 0.5), Simplex())), cls((L2Ball(2.0), Simplex(), Box(0.0, 1.0)))

    def lmo(self, g: Array) -> Array:
        return total([C.lmo(g) for C in self.sets])

    def certified(self, g: Array) -> tuple[Array, Array | None]:
        parts = [C.certified(g) for C in self.sets]
        return total([v for v, _ in parts]), total([slack for _, slack in parts])

    def diameter(self, like: Array) -> float:
        event = one(self, like)
        return sum(C.diameter(event) for C in self.sets)

    def center(self, like: Array) -> Array:
        return total([C.center(like) for C in self.sets])


@final
@dataclass(frozen=True)
class HullOfUnion(_SameSpace):
    """Convex hull of the union of sets.

    `violation` is as for `LinearImage`. Where sets tie the point of the oracle may be no vertex.

    Parameters
    ----------
    sets : tuple of Set
        Sets of one kind, of vectors or of matrices; elementwise ones count as either.

    Notes
    -----
    LMO : the best of theirs; first set
    Cost : the sum of theirs
    Diameter : upper bound, ``max (|c_i - c_j|_2 + D_i + D_j)``, c the centres
    Projection : none, because it takes a program over all sets

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> C = xv.sets.HullOfUnion((xv.sets.L1Ball(), xv.sets.Box(-0.75, 0.75)))
    >>> C.lmo(np.array([4.0, 1.0])) + 0.0, C.lmo(np.array([3.0, 4.0]))
    (array([-1.,  0.]), array([-0.75, -0.75]))
    """

    sets: tuple[Set, ...] = field(default_factory=lambda: (L1Ball(), L2Ball(0.75)))

    numbers = None  # distances of the sets are measured on the host

    @classmethod
    def examples(cls, shape: tuple[int, ...]) -> tuple[Set, ...]:
        return cls(), cls((L1Ball(2.0), Box(-1.0, 1.0))), cls((Simplex(), ShiftScale(L2Ball(), 0.5, 3.0)))

    def lmo(self, g: Array) -> Array:
        return self._best(g, [(C.lmo(g), None) for C in self.sets])[0]

    def certified(self, g: Array) -> tuple[Array, Array | None]:
        return self._best(g, [C.certified(g) for C in self.sets])

    def _best(self, g: Array, found: list[tuple[Array, Array | None]]) -> tuple[Array, Array | None]:
        xp = namespace_of(g)
        # in units of the largest entry: comparing must not overflow
        axes = tuple(range(-self.event_ndim, 0))
        top = xp.max(xp.abs(g), axis=axes, keepdims=True)
        unit = g / or_one(top)
        best, _ = found[0]
        least = real_inner(unit, best, self.event_ndim)
        for v, _ in found[1:]:
            value = real_inner(unit, v, self.event_ndim)
            better = value < least
            least = xp.where(better, value, least)
            best = xp.where(xp.reshape(better, (*better.shape, *(1,) * self.event_ndim)), v, best)
        if all(slack is None for _, slack in found):
            return best, None
        # the smallest of what any of the sets might still reach
        size = xp.reshape(top, least.shape)
        lower = least * size
        for v, slack in found:
            if slack is not None:
                lower = xp.minimum(lower, real_inner(unit, v, self.event_ndim) * size - slack)
        return best, least * size - lower

    def diameter(self, like: Array) -> float:
        event = one(self, like)
        spans = [C.diameter(event) for C in self.sets]
        centers = [C.center(event) for C in self.sets]
        pairs = combinations(range(len(spans)), 2)
        apart = [float(norm(np.asarray(centers[i] - centers[j]).ravel())[0]) + spans[i] + spans[j] for i, j in pairs]
        return max([*spans, *apart])

    def center(self, like: Array) -> Array:
        return total([C.center(like) for C in self.sets]) / len(self.sets)
