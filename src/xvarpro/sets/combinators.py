"""Sets made of other sets, and of plain functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate, combinations
from numbers import Integral
from typing import Any, final

import numpy as np
from array_api_compat import array_namespace

from xvarpro import backends, checks
from xvarpro.errors import ProblemError
from xvarpro.protocols import Array, Set, Tree
from xvarpro.sets._arithmetic import beside
from xvarpro.sets._parameters import host
from xvarpro.sets._search import apply
from xvarpro.sets._separation import distance_bound
from xvarpro.sets.balls import L1Ball, L2Ball
from xvarpro.sets.box import Box
from xvarpro.sets.free import Free
from xvarpro.sets.linf import LinfBall
from xvarpro.sets.simplex import Simplex


@final
@dataclass(frozen=True)
class Product(Set):
    """Product of sets over consecutive blocks of the last axis.

    For blocks that are arrays of their own no set is needed: ``over=`` takes a tree of sets beside a tree of arrays.

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

    def __post_init__(self) -> None:
        _members(self, most=1)
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
            raise ProblemError(f"Product: blocks of sizes {sizes} do not make up an axis of length {n}")
        ends = list(accumulate(sizes))
        return [(C, slice(end - size, end)) for C, size, end in zip(self.sets, sizes, ends, strict=True)]

    def check(self, shape: tuple[int, ...]) -> None:
        for C, at in self._cuts(math.prod(shape)):
            C.check((at.stop - at.start,))

    @property
    def polytope(self) -> bool:
        return all(C.polytope for C in self.sets)

    @property
    def takes_complex(self) -> bool:
        return all(C.takes_complex for C in self.sets)

    @property
    def compiles(self) -> bool:
        return all(C.compiles for C in self.sets)

    @property
    def has_projection(self) -> bool:
        return all(C.has_projection for C in self.sets)

    @property
    def has_faces(self) -> bool:
        return all(C.has_faces for C in self.sets)

    def _blocks(self, method: str, *arrays: Array) -> Array:
        """A method of every set on its block of the arrays, side by side."""
        cuts = self._cuts(arrays[0].shape[-1])
        parts = [getattr(C, method)(*(x[..., at] for x in arrays)) for C, at in cuts]
        return array_namespace(*arrays).concat(parts, axis=-1)

    def lmo(self, g: Array) -> Array:
        return self._blocks("lmo", g)

    def certified(self, g: Array) -> tuple[Array, Array | None]:
        parts = [C.certified(g[..., at]) for C, at in self._cuts(g.shape[-1])]
        return array_namespace(g).concat([v for v, _ in parts], axis=-1), _total([slack for _, slack in parts])

    def project(self, x: Array) -> Array:
        return self._blocks("project", x)

    def diameter(self, like: Array) -> float:
        event = _one(self, like)
        return math.sqrt(sum(C.diameter(event[at]) ** 2 for C, at in self._cuts(event.shape[-1])))

    def violation(self, x: Array) -> Array:
        xp = array_namespace(x)
        parts = [_by_event(C, "violation", x[..., at]) for C, at in self._cuts(x.shape[-1])]
        return xp.max(xp.stack(parts), axis=0)

    def center(self, like: Array) -> Array:
        return self._blocks("center", like)

    def away(self, g: Array, x: Array) -> Array:
        return self._blocks("away", g, x)

    def tangent(self, d: Array, x: Array) -> Array:
        return self._blocks("tangent", d, x)

    def reach(self, d: Array, x: Array) -> Array:
        xp = array_namespace(x)
        parts = [_by_event(C, "reach", d[..., at], x[..., at]) for C, at in self._cuts(x.shape[-1])]
        return xp.min(xp.stack(parts), axis=0)


@final
@dataclass(frozen=True)
class ShiftScale(Set):
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
        _is_set(self, self.inner)
        checks.nonnegative(self, "scale")
        if not self.scale:
            raise ProblemError("ShiftScale: scale must be > 0, got 0.0")
        _finite(self, "shift")

    @classmethod
    def examples(cls, shape: tuple[int, ...]) -> tuple[Set, ...]:
        shift = np.linspace(-1.0, 2.0, shape[-1])
        return cls(), cls(L1Ball(2.0), 0.5, shift), cls(Simplex(), 3.0, -1.0), cls(Box(), 2.0, shift)

    def check(self, shape: tuple[int, ...]) -> None:
        self.inner.check(shape)
        event = (math.prod(shape),) if self.event_ndim == 1 else shape
        _broadcasts(self, "shift", self.shift, event)

    @property
    def event_ndim(self) -> int:
        return self.inner.event_ndim

    @property
    def polytope(self) -> bool:
        return self.inner.polytope

    @property
    def takes_complex(self) -> bool:
        return self.inner.takes_complex

    @property
    def compiles(self) -> bool:
        return self.inner.compiles

    @property
    def has_projection(self) -> bool:
        return self.inner.has_projection

    @property
    def has_faces(self) -> bool:
        return self.inner.has_faces

    def _out(self, z: Array) -> Array:
        return self.scale * z + _alongside(self.shift, z)

    def _in(self, x: Array) -> Array:
        return (x - _alongside(self.shift, x)) / self.scale

    def lmo(self, g: Array) -> Array:
        return self._out(self.inner.lmo(g))

    def certified(self, g: Array) -> tuple[Array, Array | None]:
        v, slack = self.inner.certified(g)
        return self._out(v), None if slack is None else self.scale * slack

    def project(self, x: Array) -> Array:
        return self._out(self.inner.project(self._in(x)))

    def diameter(self, like: Array) -> float:
        return self.scale * self.inner.diameter(like)

    def violation(self, x: Array) -> Array:
        return self.inner.violation(self._in(x))

    def center(self, like: Array) -> Array:
        return self._out(self.inner.center(like))

    def away(self, g: Array, x: Array) -> Array:
        return self._out(self.inner.away(g, self._in(x)))

    def tangent(self, d: Array, x: Array) -> Array:
        return self.inner.tangent(d, self._in(x))

    def reach(self, d: Array, x: Array) -> Array:
        return self.inner.reach(d / self.scale, self._in(x))


@final
@dataclass(frozen=True)
class LinearImage(Set):
    """``{matrix z + shift : z in inner}``, vectors on the last axis.

    It has an oracle, ``matrix lmo(matrix^H g) + shift``, and no projection. `violation` is a lower bound on the
    distance over the diameter, 0 inside, that sees distances down to the square root of rounding. The diameter is an
    upper bound, ``|matrix|_2`` times that of `inner`. Where ``matrix^H g`` has ties the point of the oracle may be no
    vertex.

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

    def __post_init__(self) -> None:
        _is_set(self, self.inner)
        if self.inner.event_ndim > 1:
            raise ProblemError(f"LinearImage needs a set of vectors, got {self.inner!r}")
        if self.matrix is not None:
            matrix = _finite(self, "matrix")
            if matrix.ndim != 2 or 0 in matrix.shape:
                raise ProblemError(f"LinearImage: matrix must have two axes, got shape {matrix.shape}")
        _finite(self, "shift")

    @classmethod
    def examples(cls, shape: tuple[int, ...]) -> tuple[Set, ...]:
        n = shape[-1]
        falls = np.tril(np.ones((n, n)))
        return cls(), cls(L1Ball(2.0), falls), cls(Box(0.0, 1.0), 2 * falls, 1.0)

    def check(self, shape: tuple[int, ...]) -> None:
        m = math.prod(shape)
        rows, columns = (m, m) if self.matrix is None else self.matrix.shape
        if rows != m:
            raise ProblemError(f"LinearImage: a matrix of shape {(rows, columns)} does not make points of length {m}")
        self.inner.check((columns,))
        _broadcasts(self, "shift", self.shift, (m,))

    @property
    def polytope(self) -> bool:
        return self.inner.polytope

    @property
    def takes_complex(self) -> bool:
        return self.inner.takes_complex

    @property
    def compiles(self) -> bool:
        return self.inner.compiles

    def _out(self, z: Array) -> Array:
        return self._times(z, adjoint=False) + _alongside(self.shift, z)

    def _times(self, z: Array, adjoint: bool) -> Array:
        if self.matrix is None:
            return z
        xp = array_namespace(z)
        A = _alongside(self.matrix, z)
        if adjoint:
            A = xp.matrix_transpose(A)
            A = xp.conj(A) if xp.isdtype(A.dtype, "complex floating") else A
        return apply(A, z)

    def lmo(self, g: Array) -> Array:
        return self._out(self.inner.lmo(self._times(g, adjoint=True)))

    def certified(self, g: Array) -> tuple[Array, Array | None]:
        v, slack = self.inner.certified(self._times(g, adjoint=True))
        return self._out(v), slack

    def _before(self, like: Array) -> Array:
        """Something shaped like a point of `inner`."""
        return array_namespace(like).zeros_like(self._times(like, adjoint=True))

    def diameter(self, like: Array) -> float:
        if self.matrix is None:
            return self.inner.diameter(_one(self, like))
        A = host(self.matrix)
        return float(np.linalg.norm(A, 2)) * self.inner.diameter(np.zeros(A.shape[1]))

    def violation(self, x: Array) -> Array:
        return distance_bound(self, x) / (self.diameter(x) or 1.0)

    def center(self, like: Array) -> Array:
        return self._out(self.inner.center(self._before(like)))


@final
@dataclass(frozen=True)
class MinkowskiSum(Set):
    """``{z_1 + ... + z_k : z_i in sets[i]}``.

    It has an oracle, the sum of the oracles, and no projection. `violation` is a lower bound on the distance over the
    diameter, 0 inside, that sees distances down to the square root of rounding. The diameter is an upper bound, the sum
    of the diameters. Where several sets have ties the point of the oracle may be no vertex.

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

    def __post_init__(self) -> None:
        _members(self, most=2)

    @classmethod
    def examples(cls, shape: tuple[int, ...]) -> tuple[Set, ...]:
        return cls(), cls((Box(-1.0, 0.5), Simplex())), cls((L2Ball(2.0), Simplex(), Box(0.0, 1.0)))

    def check(self, shape: tuple[int, ...]) -> None:
        for C in self.sets:
            C.check(shape)

    @property
    def event_ndim(self) -> int:
        return max(1, *(C.event_ndim for C in self.sets))

    @property
    def polytope(self) -> bool:
        return all(C.polytope for C in self.sets)

    @property
    def takes_complex(self) -> bool:
        return all(C.takes_complex for C in self.sets)

    @property
    def compiles(self) -> bool:
        return all(C.compiles for C in self.sets)

    def lmo(self, g: Array) -> Array:
        return _total([C.lmo(g) for C in self.sets])

    def certified(self, g: Array) -> tuple[Array, Array | None]:
        parts = [C.certified(g) for C in self.sets]
        return _total([v for v, _ in parts]), _total([slack for _, slack in parts])

    def diameter(self, like: Array) -> float:
        event = _one(self, like)
        return sum(C.diameter(event) for C in self.sets)

    def violation(self, x: Array) -> Array:
        return distance_bound(self, x) / (self.diameter(x) or 1.0)

    def center(self, like: Array) -> Array:
        return _total([C.center(like) for C in self.sets])


@final
@dataclass(frozen=True)
class HullOfUnion(Set):
    """Convex hull of the union of sets.

    It has an oracle, the best of the oracles with ties to the first set, and no projection. `violation` is a lower
    bound on the distance over the diameter: 0 inside, and more than 0 outside once a separating hyperplane is found.
    The diameter is an upper bound, from the distances of the centres. Where sets tie the point of the oracle may be no
    vertex.

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

    def __post_init__(self) -> None:
        _members(self, most=2)

    @classmethod
    def examples(cls, shape: tuple[int, ...]) -> tuple[Set, ...]:
        return cls(), cls((L1Ball(2.0), Box(-1.0, 1.0))), cls((Simplex(), ShiftScale(L2Ball(), 0.5, 3.0)))

    def check(self, shape: tuple[int, ...]) -> None:
        for C in self.sets:
            C.check(shape)

    @property
    def event_ndim(self) -> int:
        return max(1, *(C.event_ndim for C in self.sets))

    @property
    def polytope(self) -> bool:
        return all(C.polytope for C in self.sets)

    @property
    def takes_complex(self) -> bool:
        return all(C.takes_complex for C in self.sets)

    @property
    def compiles(self) -> bool:
        return all(C.compiles for C in self.sets)

    def lmo(self, g: Array) -> Array:
        return self._best(g, [(C.lmo(g), None) for C in self.sets])[0]

    def certified(self, g: Array) -> tuple[Array, Array | None]:
        return self._best(g, [C.certified(g) for C in self.sets])

    def _best(self, g: Array, found: list[tuple[Array, Array | None]]) -> tuple[Array, Array | None]:
        xp = array_namespace(g)
        # in units of the largest entry: comparing must not overflow
        axes = tuple(range(-self.event_ndim, 0))
        top = xp.max(xp.abs(g), axis=axes, keepdims=True)
        unit = g / xp.where(top == 0, xp.ones_like(top), top)
        best, _ = found[0]
        least = lower = self._value(unit, best)
        for v, _ in found[1:]:
            value = self._value(unit, v)
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
                lower = xp.minimum(lower, self._value(unit, v) * size - slack)
        return best, least * size - lower

    def _value(self, g: Array, v: Array) -> Array:
        xp = array_namespace(g)
        product = xp.real(xp.conj(g) * v) if xp.isdtype(g.dtype, "complex floating") else g * v
        return xp.sum(product, axis=tuple(range(-self.event_ndim, 0)))

    def diameter(self, like: Array) -> float:
        event = _one(self, like)
        spans = [C.diameter(event) for C in self.sets]
        centers = [C.center(event) for C in self.sets]
        pairs = combinations(range(len(spans)), 2)
        apart = [float(np.linalg.norm(centers[i] - centers[j])) + spans[i] + spans[j] for i, j in pairs]
        return max([*spans, *apart])

    def violation(self, x: Array) -> Array:
        return distance_bound(self, x) / (self.diameter(x) or 1.0)

    def center(self, like: Array) -> Array:
        return _total([C.center(like) for C in self.sets]) / len(self.sets)


class Calls:
    """How often a `Counted` set was asked."""

    def __init__(self) -> None:
        self.lmo = self.project = 0

    def __repr__(self) -> str:
        return f"Calls(lmo={self.lmo}, project={self.project})"


@final
@dataclass(frozen=True)
class Counted(Set):
    """A set that counts the calls of its oracle and of its projection, in ``calls.lmo`` and ``calls.project``.

    The counts are kept on the host: a compiled loop calls once per compilation, whatever the number of its iterations,
    and a call counts once whatever its batch. ``result.counts`` says what a solve did on every backend.

    Parameters
    ----------
    inner : Set
    calls : Calls, optional
        Counts to go on from; a new set starts at 0.

    Notes
    -----
    LMO : that of `inner`, counted
    Cost : that of `inner`
    Diameter : that of `inner`
    Projection : that of `inner`, counted

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> C = xv.sets.Counted(xv.sets.Simplex())
    >>> _ = C.lmo(np.ones(3)), C.lmo(np.ones((5, 3)))
    >>> C.calls
    Calls(lmo=2, project=0)
    """

    inner: Set = field(default_factory=L2Ball)
    calls: Calls = field(default_factory=Calls, compare=False)

    def __post_init__(self) -> None:
        _is_set(self, self.inner)

    def check(self, shape: tuple[int, ...]) -> None:
        self.inner.check(shape)

    @property
    def event_ndim(self) -> int:
        return self.inner.event_ndim

    @property
    def polytope(self) -> bool:
        return self.inner.polytope

    @property
    def takes_complex(self) -> bool:
        return self.inner.takes_complex

    @property
    def compiles(self) -> bool:
        return self.inner.compiles

    @property
    def has_projection(self) -> bool:
        return self.inner.has_projection

    @property
    def has_faces(self) -> bool:
        return self.inner.has_faces

    def lmo(self, g: Array) -> Array:
        self.calls.lmo += 1
        return self.inner.lmo(g)

    def certified(self, g: Array) -> tuple[Array, Array | None]:
        self.calls.lmo += 1
        return self.inner.certified(g)

    def support(self, g: Array) -> Array:
        return self.inner.support(g)

    def project(self, x: Array) -> Array:
        self.calls.project += 1
        return self.inner.project(x)

    def diameter(self, like: Array) -> float:
        return self.inner.diameter(like)

    def violation(self, x: Array) -> Array:
        return self.inner.violation(x)

    def center(self, like: Array) -> Array:
        return self.inner.center(like)

    def random_point(self, like: Array, seed: int = 0) -> Array:
        return self.inner.random_point(like, seed)

    def away(self, g: Array, x: Array) -> Array:
        return self.inner.away(g, x)

    def tangent(self, d: Array, x: Array) -> Array:
        return self.inner.tangent(d, x)

    def reach(self, d: Array, x: Array) -> Array:
        return self.inner.reach(d, x)


@final
@dataclass(frozen=True)
class Oracle(Set):
    """Any function ``g -> argmin <g, v>`` as a set.

    What is not given is derived from the function: `violation` is a lower bound on the distance, 0 inside; `center` is
    a mixture of eight vertices, which is feasible.

    Parameters
    ----------
    fun : callable
        Takes a gradient and returns a point of the set of its shape, framework and dtype. Leading axes are batch axes.
    width : float, optional
        An upper bound on the diameter, >= 0; inf if not given.
    outside : callable, optional
        ``x -> violation``, batch shape.
    projection : callable, optional
        ``x -> nearest point``.
    ndim : int
        Trailing axes that make one point: 1 for vectors, 2 for matrices.
    vertices : bool
        Whether `fun` returns one of finitely many points.
    compiled : bool
        Whether `fun` runs inside a compiled loop.

    Notes
    -----
    LMO : ``fun(g)``; ties are its own
    Cost : that of `fun`
    Diameter : upper bound, ``width``; inf if not given
    Projection : as given, else none

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> C = xv.sets.Oracle(lambda g: -np.sign(g), width=2.0)
    >>> C.lmo(np.array([3.0, -1.0]))
    array([-1.,  1.])
    """

    fun: Callable[[Array], Array]
    width: float | None = None
    outside: Callable[[Array], Array] | None = None
    projection: Callable[[Array], Array] | None = None
    ndim: int = 1
    vertices: bool = False
    compiled: bool = True

    def __post_init__(self) -> None:
        for name in ("fun", "outside", "projection"):
            value = getattr(self, name)
            if not callable(value) and (name == "fun" or value is not None):
                raise ProblemError(f"Oracle: {name} must be a function of one array, got {value!r}")
        if self.width is not None:
            checks.nonnegative(self, "width")
        if self.ndim not in (1, 2):
            raise ProblemError(f"Oracle: ndim must be 1 for vectors or 2 for matrices, got {self.ndim!r}")
        for name in ("vertices", "compiled"):
            if not isinstance(getattr(self, name), bool):
                raise ProblemError(f"Oracle: {name} must be True or False, got {getattr(self, name)!r}")

    @classmethod
    def examples(cls, shape: tuple[int, ...]) -> tuple[Set, ...]:
        C = L1Ball(2.0)
        given = cls(C.lmo, C.diameter(np.zeros(shape)), C.violation, C.project, vertices=True)
        return given, cls(Simplex().lmo, Simplex().diameter(np.zeros(shape)), vertices=True)

    @property
    def event_ndim(self) -> int:
        return self.ndim

    @property
    def polytope(self) -> bool:
        return self.vertices

    @property
    def compiles(self) -> bool:
        return self.compiled

    @property
    def has_projection(self) -> bool:
        return self.projection is not None

    def lmo(self, g: Array) -> Array:
        return self.fun(g)

    def project(self, x: Array) -> Array:
        return Set.project(self, x) if self.projection is None else self.projection(x)

    def diameter(self, like: Array) -> float:
        """As given: an upper bound."""
        return math.inf if self.width is None else self.width

    def violation(self, x: Array) -> Array:
        if self.outside is not None:
            return self.outside(x)
        return distance_bound(self, x) / (self.width or 1.0)

    def center(self, like: Array) -> Array:
        return self.random_point(like)


def bounds(lower: Tree, upper: Tree = None) -> Any:
    """The set of everything between two bounds: a `Box`, a `LinfBall` for one number and its negative, `Free` for none.

    Parameters
    ----------
    lower : float, array, sequence of pairs, object with ``lb`` and ``ub``, or dict of these
        Lower bounds; without `upper`, both: SciPy's ``[(low, high), ...]`` or ``Bounds``. None and infinities stand for
        no bound. A dict gives a dict of sets, as ``over=`` takes it.
    upper : as `lower`
        Upper bounds.

    Returns
    -------
    Box, LinfBall, Free, or a dict of them

    Raises
    ------
    ProblemError
        Some entries are bounded on both sides and others are not, or one side alone: a linear function has no minimum
        there. Parts without bounds belong in a leaf of their own.

    Examples
    --------
    >>> import xvarpro as xv
    >>> xv.sets.bounds(0.0, 2.0)
    Box(lower=0.0, upper=2.0)
    >>> xv.sets.bounds({"rate": [(0.0, 1.0), (0.0, 5.0)], "offset": None})["rate"]
    Box(lower=array([0., 0.]), upper=array([1., 5.]))
    """
    if isinstance(lower, Mapping):
        if upper is None:
            return {key: bounds(part) for key, part in lower.items()}
        if not isinstance(upper, Mapping) or set(upper) != set(lower):
            raise ProblemError(f"bounds: upper must have the keys {sorted(map(str, lower))}, got {upper!r}")
        return {key: bounds(part, _unbounded(upper[key], math.inf)) for key, part in lower.items()}
    if upper is None and hasattr(lower, "lb") and hasattr(lower, "ub"):
        lower, upper = lower.lb, lower.ub
    elif upper is None and isinstance(lower, list | tuple):
        if not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in lower):
            raise ProblemError(f"bounds: without upper, lower must be pairs (low, high), got {lower!r}")
        pairs = lower
        lower = np.array([_unbounded(low, -math.inf) for low, _ in pairs])
        upper = np.array([_unbounded(high, math.inf) for _, high in pairs])
    lower, upper = _unbounded(lower, -math.inf), _unbounded(upper, math.inf)
    low, high = _numbers(lower), _numbers(upper)
    without = int(np.sum(np.isinf(low))) + int(np.sum(np.isinf(high)))
    if (low == -math.inf).all() and (high == math.inf).all():
        return Free()
    if without:
        raise ProblemError(
            "bounds: every entry of a leaf needs both bounds, or none of them any, since a linear function has no "
            f"minimum on a half-line; got lower={lower!r}, upper={upper!r}: put entries without bounds in a leaf of "
            "their own"
        )
    if not low.shape and not high.shape and 0 <= high == -low:
        return LinfBall(float(high))
    return Box(lower, upper)


def _unbounded(x: Any, infinity: float) -> Any:
    return infinity if x is None else x


def _numbers(x: Any) -> np.ndarray:
    try:
        return np.asarray(host(x), dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ProblemError(f"bounds must be numbers or arrays of numbers, got {x!r}") from error


# -- what they share ---------------------------------------------------------------------------------------------------


def _is_set(owner: object, inner: object) -> None:
    if not isinstance(inner, Set):
        raise ProblemError(f"{type(owner).__name__} needs a set such as xv.sets.Simplex(), got {inner!r}")


def _is_length(n: Any) -> bool:
    return isinstance(n, Integral) and not isinstance(n, bool) and int(n) >= 1


def _members(owner: Any, most: int) -> None:
    """Refuse what is no tuple of sets on the same axes, at most `most` of them."""
    if not isinstance(owner.sets, tuple | list) or not owner.sets:
        raise ProblemError(f"{type(owner).__name__} needs a tuple of sets, got {owner.sets!r}")
    for C in owner.sets:
        _is_set(owner, C)
    object.__setattr__(owner, "sets", tuple(owner.sets))
    kinds = {C.event_ndim for C in owner.sets} - {0}
    if len(kinds) > 1 or max(kinds, default=1) > most:
        what = "sets of vectors" if most == 1 else "sets of vectors or sets of matrices, not both"
        raise ProblemError(f"{type(owner).__name__} needs {what}, got {owner.sets!r}")


def _finite(owner: Any, name: str) -> np.ndarray:
    value = getattr(owner, name)
    try:
        numbers = host(value)
    except (TypeError, ValueError):
        numbers = np.asarray(None)
    if numbers.dtype.kind not in "iufc" or not np.isfinite(numbers).all():
        raise ProblemError(f"{type(owner).__name__}: {name} must be finite numbers, got {value!r}")
    if numbers.ndim == 0:
        object.__setattr__(owner, name, numbers.item())
    elif backends.of(value) is None:
        object.__setattr__(owner, name, numbers)
    return numbers


def _broadcasts(owner: object, name: str, value: Any, shape: tuple[int, ...]) -> None:
    got = tuple(getattr(value, "shape", ()))
    try:
        fits = np.broadcast_shapes(got, shape) == shape
    except ValueError:
        fits = False
    if not fits:
        raise ProblemError(
            f"{type(owner).__name__}: {name} of shape {got} does not broadcast to a point of shape {shape}"
        )


def _alongside(parameter: Any, like: Array) -> Array:
    """A parameter in the framework, device and dtype of `like`: complex where that is, so that products take it."""
    xp = array_namespace(like)
    if not xp.isdtype(like.dtype, "complex floating"):
        return beside(parameter, like)
    owner = backends.of(parameter)
    kind = isinstance(parameter, complex) if owner is None else owner.dtype_name(parameter).startswith("complex")
    if not kind:
        return xp.astype(beside(parameter, like), like.dtype)
    backend = backends.owner(like)
    if owner is backend:
        return xp.astype(parameter, like.dtype)
    return backend.asarray(host(parameter), dtype=backend.dtype_name(like), device=backend.device_of(like))


def _one(C: Set, like: Array) -> np.ndarray:
    """An event on the host: an elementwise set takes all axes of what it is given for one."""
    return np.zeros(tuple(like.shape[like.ndim - C.event_ndim :]))


def _total(terms: list[Any]) -> Any:
    """Sum of what there is; None where there is nothing."""
    there = [x for x in terms if x is not None]
    if not there:
        return None
    total = there[0]
    for x in there[1:]:
        total = total + x
    return total


def _by_event(C: Set, method: str, *arrays: Array) -> Array:
    """A method that reduces vectors to numbers. An elementwise set reduces the whole array: one vector at a time."""
    fun = getattr(C, method)
    batch = arrays[0].shape[:-1]
    if C.event_ndim or not batch:
        return fun(*arrays)
    xp = array_namespace(*arrays)
    if 0 in batch:
        return xp.sum(arrays[0], axis=-1)
    rows = [xp.reshape(x, (-1, x.shape[-1])) for x in arrays]
    return xp.reshape(xp.stack([fun(*(x[i, :] for x in rows)) for i in range(rows[0].shape[0])]), batch)
