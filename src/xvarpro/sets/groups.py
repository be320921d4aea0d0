"""Sets by groups of entries: products over rows or over any groups, and the balls of the group lasso."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np
from array_api_compat import array_namespace, device

from xvarpro import checks
from xvarpro.errors import ProblemError
from xvarpro.protocols import Array, Set
from xvarpro.sets._arithmetic import direction, norm, onto_simplex, scaled
from xvarpro.sets._search import excess, level, phase, root
from xvarpro.sets.balls import L2Ball

Grouping: TypeAlias = int | tuple[tuple[int, ...], ...]


@final
@dataclass(frozen=True)
class Rows(Set):
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

    event_ndim = 2

    def __post_init__(self) -> None:
        _of_vectors(self)

    @property
    def polytope(self) -> bool:
        """A product of polytopes is one."""
        return self.inner.polytope

    @property
    def takes_complex(self) -> bool:
        """Where the inner set does."""
        return self.inner.takes_complex

    @property
    def compiles(self) -> bool:
        return self.inner.compiles

    def check(self, shape: tuple[int, ...]) -> None:
        if len(shape) < 2:
            raise ProblemError(f"Rows constrains a matrix: theta's leaf must have 2 or more axes, got shape {shape}")
        self.inner.check((shape[-1],))

    def lmo(self, g: Array) -> Array:
        return self.inner.lmo(g)

    def support(self, g: Array) -> Array:
        return _over_rows(array_namespace(g).sum, self.inner.support(g))

    def project(self, x: Array) -> Array:
        return self.inner.project(x)

    def diameter(self, like: Array) -> float:
        return math.sqrt(like.shape[-2]) * self.inner.diameter(like[..., 0, :])

    def violation(self, x: Array) -> Array:
        return _over_rows(array_namespace(x).max, self.inner.violation(x))

    def center(self, like: Array) -> Array:
        return self.inner.center(like)

    @property
    def has_projection(self) -> bool:
        return self.inner.has_projection

    @property
    def has_faces(self) -> bool:
        return self.inner.has_faces

    def away(self, g: Array, x: Array) -> Array:
        return self.inner.away(g, x)

    def tangent(self, d: Array, x: Array) -> Array:
        return self.inner.tangent(d, x)

    def reach(self, d: Array, x: Array) -> Array:
        return _over_rows(array_namespace(x).min, self.inner.reach(d, x))


def _over_rows(reduce: Callable[..., Array], x: Array) -> Array:
    return reduce(x, axis=-1) if x.ndim else x


@final
@dataclass(frozen=True)
class Groups(Set):
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

    def __post_init__(self) -> None:
        if not isinstance(self.inner, Set) or self.inner.event_ndim != 1:
            raise ProblemError(f"Groups needs a set of vectors, got {self.inner!r}")
        _grouping(self)

    @classmethod
    def examples(cls, shape: tuple[int, ...]) -> tuple[Set, ...]:
        return (cls(), *(cls(L2Ball(2.0), groups) for groups in _groupings(shape)))

    @property
    def polytope(self) -> bool:
        """A product of polytopes is one."""
        return self.inner.polytope

    @property
    def takes_complex(self) -> bool:
        """Where the inner set does."""
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

    def check(self, shape: tuple[int, ...]) -> None:
        plan = _fitting(self, shape)
        for entries in plan.entries:
            self.inner.check((entries.shape[1],))

    def _each(self, fun: Callable[..., Array], *arrays: Array) -> Array:
        parts = zip(*(_split(self.groups, x) for x in arrays), strict=True)
        return _join(self.groups, [fun(*part) for part in parts])

    def _gather(self, reduce: str, fun: Callable[..., Array], *arrays: Array) -> Array:
        xp = array_namespace(*arrays)
        parts = zip(*(_split(self.groups, x) for x in arrays), strict=True)
        each = [fun(*part) for part in parts]
        return getattr(xp, reduce)(_by_group(self.groups, each, arrays[0].shape[-1]), axis=-1)

    def lmo(self, g: Array) -> Array:
        return self._each(self.inner.lmo, g)

    def support(self, g: Array) -> Array:
        return self._gather("sum", self.inner.support, g)

    def project(self, x: Array) -> Array:
        return self._each(self.inner.project, x)

    def diameter(self, like: Array) -> float:
        parts = _split(self.groups, like)
        return math.sqrt(sum(part.shape[-2] * self.inner.diameter(part[..., 0, :]) ** 2 for part in parts))

    def violation(self, x: Array) -> Array:
        return self._gather("max", self.inner.violation, x)

    def center(self, like: Array) -> Array:
        return self._each(self.inner.center, like)

    def away(self, g: Array, x: Array) -> Array:
        return self._each(self.inner.away, g, x)

    def tangent(self, d: Array, x: Array) -> Array:
        return self._each(self.inner.tangent, d, x)

    def reach(self, d: Array, x: Array) -> Array:
        return self._gather("min", self.inner.reach, d, x)


@final
@dataclass(frozen=True)
class GroupL12Ball(Set):
    """Ball of the group lasso, ``{sum over groups of |x_G|_2 <= radius}``, along the last axis.

    Parameters
    ----------
    groups : int or tuple of tuples of int
        The entries of each group, every one in one group; a number makes groups of that many consecutive entries, the
        last one of what is left.
    radius : float
        Radius, >= 0.

    Notes
    -----
    LMO : ``-radius g_G / |g_G|_2`` in the group with most ``|g_G|_2``; first group
    Cost : O(n)
    Diameter : ``2 radius``
    Projection : the group norms onto `Simplex`, O(n) a pass

    Yuan and Lin (2006). The linear oracle spends all of the radius on the group whose gradient is the longest.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> xv.sets.GroupL12Ball(2).lmo(np.array([3.0, -4.0, 2.0, 2.0]))
    array([-0.6,  0.8,  0. ,  0. ])
    """

    groups: Grouping = 2
    radius: float = 1.0

    takes_complex = True

    def __post_init__(self) -> None:
        _grouping(self)
        checks.nonnegative(self, "radius")

    @classmethod
    def examples(cls, shape: tuple[int, ...]) -> tuple[Set, ...]:
        return (cls(), *(cls(groups, 2.0) for groups in _groupings(shape)))

    def check(self, shape: tuple[int, ...]) -> None:
        _fitting(self, shape)

    def _norms(self, x: Array) -> Array:
        return _by_group(self.groups, [norm(part)[..., 0] for part in _split(self.groups, x)], x.shape[-1])

    def lmo(self, g: Array) -> Array:
        xp = array_namespace(g)
        unit, _ = scaled(g)
        best = xp.argmax(self._norms(unit), axis=-1)
        chosen = _own(
            self.groups, best, g.shape[-1], [-self.radius * direction(part) for part in _split(self.groups, unit)]
        )
        return _join(self.groups, chosen)

    def support(self, g: Array) -> Array:
        return self.radius * array_namespace(g).max(self._norms(g), axis=-1)

    def project(self, x: Array) -> Array:
        xp = array_namespace(x)
        sizes = self._norms(x)
        fits = xp.sum(sizes, axis=-1, keepdims=True) <= self.radius
        kept = _to_parts(self.groups, onto_simplex(sizes, self.radius), x.shape[-1])
        near = [xp.expand_dims(k, axis=-1) * direction(p) for k, p in zip(kept, _split(self.groups, x), strict=True)]
        return xp.where(fits, x, _join(self.groups, near))

    def diameter(self, like: Array) -> float:
        return 2 * self.radius

    def violation(self, x: Array) -> Array:
        return excess(array_namespace(x).sum(self._norms(x), axis=-1), self.radius)


@final
@dataclass(frozen=True)
class GroupL1InfBall(Set):
    """Ball ``{sum over groups of max |x_G| <= radius}`` along the last axis.

    Parameters
    ----------
    groups : int or tuple of tuples of int
        The entries of each group, every one in one group; a number makes groups of that many consecutive entries, the
        last one of what is left.
    radius : float
        Radius, >= 0.

    Notes
    -----
    LMO : ``-radius sign(g_G)`` in the group with most ``|g_G|_1``; first group
    Cost : O(n)
    Diameter : ``2 radius sqrt(max |G|)``
    Projection : root search, another per group a trial

    Quattoni, Carreras, Collins, Darrell (2009). The projection cuts every group at a height of its own, so that all
    groups that remain lose the same sum: one root over that sum, with a simplex projection per group inside.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> xv.sets.GroupL1InfBall(2).lmo(np.array([3.0, -4.0, 2.0, 2.0]))
    array([-1.,  1.,  0.,  0.])
    """

    groups: Grouping = 2
    radius: float = 1.0

    polytope = True

    def __post_init__(self) -> None:
        _grouping(self)
        checks.nonnegative(self, "radius")

    @classmethod
    def examples(cls, shape: tuple[int, ...]) -> tuple[Set, ...]:
        return (cls(), *(cls(groups, 2.0) for groups in _groupings(shape)))

    def check(self, shape: tuple[int, ...]) -> None:
        _fitting(self, shape)

    def _over(self, reduce: str, x: Array) -> Array:
        """``|x_G|_1`` or ``|x_G|_inf``, one per group."""
        xp = array_namespace(x)
        parts = [getattr(xp, reduce)(xp.abs(part), axis=-1) for part in _split(self.groups, x)]
        return _by_group(self.groups, parts, x.shape[-1])

    def lmo(self, g: Array) -> Array:
        xp = array_namespace(g)
        best = xp.argmax(self._over("sum", scaled(g)[0]), axis=-1)
        signs = [-self.radius * phase(part) for part in _split(self.groups, g)]
        return _join(self.groups, _own(self.groups, best, g.shape[-1], signs))

    def support(self, g: Array) -> Array:
        return self.radius * array_namespace(g).max(self._over("sum", g), axis=-1)

    def project(self, x: Array) -> Array:
        # twice: what is far away comes back with the rounding of where it was
        return self._project(self._project(x))

    def _project(self, x: Array) -> Array:
        xp = array_namespace(x)
        n, eps = x.shape[-1], xp.finfo(x.dtype).eps
        fits = xp.sum(self._over("max", x), axis=-1, keepdims=True) <= self.radius
        if not self.radius:
            return 0 * x
        parts = [xp.abs(part) for part in _split(self.groups, x)]

        def cuts(loss: Array) -> list[Array]:
            """Where each group is cut to lose that much: at 0 where it has no more."""
            out = []
            for part in parts:
                lost = xp.zeros_like(part[..., :1]) + xp.expand_dims(loss, axis=-1)
                cut = level(part, xp.ones((), dtype=x.dtype, device=device(x)), None, lost)
                out.append(xp.where(xp.sum(part, axis=-1, keepdims=True) > lost, cut, xp.zeros_like(cut)))
            return out

        def surplus(loss: Array) -> tuple[Array, Array]:
            heights, rates = [], []
            for part, cut in zip(parts, cuts(loss), strict=True):
                count = xp.sum(xp.astype(part > cut, x.dtype), axis=-1)
                heights.append(cut[..., 0])
                rates.append(xp.where(cut[..., 0] > 0, 1 / xp.maximum(count, xp.ones_like(count)), 0 * count))
            value = xp.sum(_by_group(self.groups, heights, n), axis=-1, keepdims=True) - self.radius
            return value, -xp.sum(_by_group(self.groups, rates, n), axis=-1, keepdims=True)

        high = xp.max(self._over("sum", x), axis=-1, keepdims=True)
        near = eps * self.radius
        loss = root(surplus, xp.zeros_like(high), high, 0.5 * high, close=near, near=near)
        signs = [phase(part) for part in _split(self.groups, x)]
        cut = [s * xp.minimum(part, c) for s, part, c in zip(signs, parts, cuts(loss), strict=True)]
        return xp.where(fits, x, _join(self.groups, cut))

    def diameter(self, like: Array) -> float:
        plan = _plan(self.groups, like.shape[-1])
        return 2 * self.radius * math.sqrt(max(entries.shape[1] for entries in plan.entries))

    def violation(self, x: Array) -> Array:
        return excess(array_namespace(x).sum(self._over("max", x), axis=-1), self.radius)


# -- groups of one size are worked on together -------------------------------------------------------------------------


class _Plan(NamedTuple):
    entries: tuple[np.ndarray, ...]  # per size: which entries, one group a row
    groups: tuple[np.ndarray, ...]  # per size: which groups
    back: np.ndarray  # entries in the order of the parts -> entries in their own order
    order: np.ndarray  # the same for groups


@lru_cache(maxsize=256)
def _plan(groups: Grouping, n: int) -> _Plan:
    if isinstance(groups, int):
        groups = tuple(tuple(range(i, min(i + groups, n))) for i in range(0, n, groups))
    sizes = np.array([len(group) for group in groups])
    which = tuple(np.flatnonzero(sizes == size).astype(np.int32) for size in np.unique(sizes))
    entries = tuple(np.array([groups[i] for i in some], dtype=np.int32) for some in which)
    flat = np.concatenate([part.ravel() for part in entries])
    if not np.array_equal(np.sort(flat), np.arange(n)):
        raise ProblemError(f"groups of {flat.size} entries do not hold each of {n} entries once")
    back, order = np.argsort(flat), np.argsort(np.concatenate(which))
    return _Plan(entries, which, back.astype(np.int32), order.astype(np.int32))


def _take(x: Array, indices: np.ndarray) -> Array:
    xp = array_namespace(x)
    return xp.take(x, xp.asarray(indices, device=device(x)), axis=-1)


def _split(groups: Grouping, x: Array) -> list[Array]:
    """Groups as rows, one array per size of group."""
    xp = array_namespace(x)
    plan = _plan(groups, x.shape[-1])
    return [xp.reshape(_take(x, part.ravel()), (*x.shape[:-1], *part.shape)) for part in plan.entries]


def _join(groups: Grouping, parts: list[Array]) -> Array:
    """Inverse of `_split`."""
    xp = array_namespace(*parts)
    flat = [xp.reshape(part, (*part.shape[:-2], part.shape[-2] * part.shape[-1])) for part in parts]
    whole = xp.concat(flat, axis=-1)
    return _take(whole, _plan(groups, whole.shape[-1]).back)


def _by_group(groups: Grouping, parts: list[Array], n: int) -> Array:
    """One number per group, in the order of the groups."""
    return _take(array_namespace(*parts).concat(parts, axis=-1), _plan(groups, n).order)


def _to_parts(groups: Grouping, numbers: Array, n: int) -> list[Array]:
    """Inverse of `_by_group`."""
    return [_take(numbers, some) for some in _plan(groups, n).groups]


def _own(groups: Grouping, best: Array, n: int, parts: list[Array]) -> list[Array]:
    """The parts with every group but `best` set to 0."""
    xp = array_namespace(best)
    out = []
    for some, part in zip(_plan(groups, n).groups, parts, strict=True):
        chosen = xp.asarray(some, dtype=best.dtype, device=device(best)) == xp.expand_dims(best, axis=-1)
        out.append(xp.where(xp.expand_dims(chosen, axis=-1), part, xp.zeros_like(part)))
    return out


def _of_vectors(owner: Any) -> None:
    if not isinstance(owner.inner, Set) or owner.inner.event_ndim > 1:
        raise ProblemError(f"{type(owner).__name__} needs a set of vectors, got {owner.inner!r}")


def _grouping(owner: Any) -> None:
    groups, name = owner.groups, type(owner).__name__
    if isinstance(groups, int) and not isinstance(groups, bool) and groups >= 1:
        return
    try:
        groups = tuple(tuple(int(i) for i in group) for group in groups)
    except TypeError:
        raise ProblemError(
            f"{name}: groups must be a number >= 1 or a tuple of tuples of int, got {groups!r}"
        ) from None
    flat = sorted(i for group in groups for i in group)
    if not groups or not all(groups) or flat != list(range(len(flat))):
        raise ProblemError(f"{name}: groups must be none empty and hold each of 0, 1, .. once, got {groups!r}")
    object.__setattr__(owner, "groups", groups)


def _fitting(owner: Any, shape: tuple[int, ...]) -> _Plan:
    n = math.prod(shape)
    if not isinstance(owner.groups, int) and (got := sum(map(len, owner.groups))) != n:
        raise ProblemError(f"{type(owner).__name__}: groups hold {got} entries, theta's leaf of shape {shape} has {n}")
    return _plan(owner.groups, n)


def _groupings(shape: tuple[int, ...]) -> tuple[Grouping, ...]:
    """One group, groups of one, and groups of two sizes that are not next to each other."""
    n = math.prod(shape)
    odd = (tuple(range(1, n, 2)), (0,), *((i,) for i in range(2, n, 2)))
    return (n, 1, tuple(group for group in odd if group))
