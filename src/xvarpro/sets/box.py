"""Bounds entry by entry: the box, the linf ball, and the set that given bounds make."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np

from xvarpro import backends
from xvarpro.core.checks import shown
from xvarpro.core.namespace import device, namespace_of
from xvarpro.core.struct import Array, Tree
from xvarpro.errors import ProblemError
from xvarpro.sets._faces import negligible, ratio_test, slide_by_projection
from xvarpro.sets.each import is_each, unmarked
from xvarpro.sets.free import Free
from xvarpro.sets.interface import NormBall, Set
from xvarpro.sets.vectors import all_like, broadcasts, host_numbers, largest, norm, or_one, phase


class _Entrywise(Set):
    """Bounds entry by entry. A face holds the entries that are at a bound."""

    @abstractmethod
    def _held(self, x: Array) -> Array:
        """Whether an entry is at a bound."""

    def away(self, g: Array, x: Array) -> Array:
        return namespace_of(g).where(self._held(x), x, self.lmo(-g))

    def tangent(self, d: Array, x: Array) -> Array:
        xp = namespace_of(d)
        return xp.where(self._held(x), 0, d)

    slide = slide_by_projection


@final
@dataclass(frozen=True)
class Box(_Entrywise):
    """Box ``{x : lower <= x <= upper}``.

    Infinite bounds leave an entry unbounded on that side. Methods that project take such a set, the default among
    them; methods that step toward vertices, as Frank-Wolfe, and sets made of other sets need finite bounds. What the
    gradient of an entry promises toward an infinite bound belongs to `gap_B`, as that of a free block.

    Parameters
    ----------
    lower, upper : float, array, list or Each
        Bounds, ``lower <= upper``, of which `lower` may be ``-inf`` and `upper` ``inf``, or None, also in lists; arrays
        must broadcast to the shape of what they bound. For `solve_many`, what is marked ``xv.Each(array)`` has bounds
        of each problem, with the axes of a leaf of theta0 there: (b, ...).

    Raises
    ------
    ProblemError
        Bounds are NaN or empty; or, from `lmo` and what calls it, infinite.

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

    Rates that are not negative:

    >>> rates = xv.sets.Box(0.0, np.inf)
    >>> rates.project(np.array([-1.0, 7.0])), rates.bounded
    (array([0., 7.]), False)
    """

    lower: Any = 0.0
    upper: Any = 1.0
    bounded: bool = field(init=False, repr=False, compare=False, default=True)

    event_ndim = 0

    def __post_init__(self) -> None:
        lower, upper = (_real(self, name) for name in ("lower", "upper"))
        try:
            ordered = (lower <= upper) & (lower < np.inf) & (upper > -np.inf)
        except ValueError:
            raise ProblemError(
                f"Box: lower and upper must broadcast to one shape, got shapes {lower.shape} and {upper.shape}"
            ) from None
        if not ordered.all():
            marked = is_each(self.lower) or is_each(self.upper)
            where = f" for problem {np.argwhere(~ordered)[0, 0]}" if marked else ""
            raise ProblemError(
                "Box: bounds must be lower < inf, upper > -inf and lower <= upper, "
                f"got lower={shown(unmarked(self.lower))}, upper={shown(unmarked(self.upper))}{where}"
            )
        object.__setattr__(self, "bounded", bool(np.isfinite(lower).all() and np.isfinite(upper).all()))

    @property
    def polytope(self) -> bool:
        return self.bounded

    def check(self, shape: tuple[int, ...], b: int | None = None) -> None:
        """As `Set.check`; in a batch of b problems with bounds of each."""
        for name in ("lower", "upper"):
            bound = getattr(self, name)
            got = tuple(bound.array.shape) if is_each(bound) else shape
            if is_each(bound) and b is None:
                raise ProblemError(
                    f"Box: {name} must not be marked xv.Each but in xv.solve_many, where the Box is no part of another "
                    "set: give bounds of one problem"
                )
            if is_each(bound) and (len(got) != 1 + len(shape) or got[0] != b):
                lost = f": problem {got[0]} has none" if got and got[0] < (b or 0) else ""
                raise ProblemError(f"Box: {name} marked xv.Each must have shape {(b, *shape)}, got {got}{lost}")
            size = tuple(getattr(bound, "shape", ()))
            if b is not None and (size == (b, *shape) or (size == (b,) and b not in (1, *shape[-1:]))):
                raise ProblemError(
                    f"Box: {name} must have shape {shape}, as for one problem, got {size}. Mark bounds of each "
                    f"problem, {name}=xv.Each(...), of shape {(b, *shape)}"
                )
            broadcasts(self, name, unmarked(bound), (*got[: len(got) - len(shape)], *shape))

    def lmo(self, g: Array) -> Array:
        if not self.bounded:
            raise ProblemError(
                "Box: a linear function has a minimum between finite bounds only, "
                f"got lower={shown(self.lower)}, upper={shown(self.upper)}. Give finite bounds, or use a method that "
                "projects"
            )
        return namespace_of(g).where(g < 0, *all_like((self.upper, self.lower), g))

    def ahead(self, g: Array, x: Array) -> tuple[Array, Array]:
        xp, zero = namespace_of(g), namespace_of(g).zeros_like(g)
        lower, upper = all_like((self.lower, self.upper), g)
        end = xp.where(g < 0, upper, lower)
        met = xp.isfinite(end)
        return xp.where(met, end, x) - x, xp.where(met, zero, g)

    def project(self, x: Array) -> Array:
        xp, (lower, upper) = namespace_of(x), all_like((self.lower, self.upper), x)
        return xp.minimum(xp.maximum(x, lower), upper)

    def diameter(self, like: Array) -> float:
        width = np.broadcast_to(backends.to_numpy(self.upper) - backends.to_numpy(self.lower), like.shape)
        return float(norm(width.ravel())[0]) if self.bounded else math.inf

    def violation(self, x: Array) -> Array:
        xp = namespace_of(x)
        lower, upper = all_like((self.lower, self.upper), x)
        finite = xp.isfinite(x)
        x = xp.where(finite, x, 0)
        # an entry with an infinite bound has no width: it is measured by itself
        width = xp.where(xp.isfinite(upper - lower), upper - lower, xp.abs(x))
        outside = xp.abs(x - xp.minimum(xp.maximum(x, lower), upper)) / or_one(xp.maximum(width, _sizes(lower, upper)))
        relative = xp.where(finite, outside, xp.inf)
        return xp.max(relative) if 0 not in x.shape else xp.sum(relative)

    def center(self, like: Array) -> Array:
        xp = namespace_of(like)
        lower, upper = (xp.zeros_like(like) + bound for bound in all_like((self.lower, self.upper), like))
        wide = 1 + _sizes(lower, upper)  # instead of an infinite distance to the other bound, or to 0
        low = xp.where(xp.isfinite(lower), lower, xp.minimum(upper, wide) - wide)
        high = xp.where(xp.isfinite(upper), upper, xp.maximum(lower, -wide) + wide)
        return 0.5 * low + 0.5 * high

    def random_point(self, like: Array, seed: int = 0) -> Array:
        if self.bounded:
            return super().random_point(like, seed)
        draw = np.random.default_rng(seed).normal(size=like.shape)
        xp = namespace_of(like)
        return self.project(self.center(like) + xp.asarray(draw, dtype=like.dtype, device=device(like)))

    def _held(self, x: Array) -> Array:
        lower, upper = all_like((self.lower, self.upper), x)
        # a step that ends at a bound is rounded at the size of that bound: the other one may be in other units
        return negligible(x - lower, _sizes(lower, lower)) | negligible(upper - x, _sizes(upper, upper))

    def reach(self, d: Array, x: Array) -> Array:
        xp = namespace_of(d)
        lower, upper = all_like((self.lower, self.upper), x)
        return ratio_test(xp.reshape(xp.where(d < 0, x - lower, upper - x), (-1,)), xp.reshape(xp.abs(d), (-1,)))


def _sizes(lower: Array, upper: Array) -> Array:
    """The larger of the finite bounds of every entry; 0 without any."""
    xp = namespace_of(lower)
    low, high = xp.where(xp.isfinite(lower), xp.abs(lower), 0), xp.where(xp.isfinite(upper), xp.abs(upper), 0)
    return xp.maximum(low, high)


@final
@dataclass(frozen=True)
class LinfBall(NormBall, _Entrywise):
    """Ball ``{max |x| <= radius}`` along the last axis; for complex x, the polydisc.

    Parameters
    ----------
    radius : float
        Radius, >= 0.

    Notes
    -----
    LMO : ``-radius sign(g)``, ``sign(0) = 1``
    Cost : O(n)
    Diameter : ``2 radius sqrt(n)``
    Projection : clip the moduli, O(n)

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> xv.sets.LinfBall(2.0).lmo(np.array([1.0, -3.0, 0.0]))
    array([-2.,  2., -2.])
    >>> xv.sets.LinfBall().project(np.array([3.0 + 4.0j, 0.5j]))
    array([0.6+0.8j, 0. +0.5j])
    """

    radius: float = 1.0

    polytope = True
    takes_complex = True

    def lmo(self, g: Array) -> Array:
        return -self.radius * phase(g)

    def project(self, x: Array) -> Array:
        xp = namespace_of(x)
        return xp.where(xp.abs(x) <= self.radius, x, self.radius * phase(x) + 0 * x)

    def diameter(self, like: Array) -> float:
        return 2 * self.radius * math.sqrt(like.shape[-1])

    def _size(self, x: Array) -> Array:
        return largest(namespace_of(x).abs(x), axis=-1)

    def _held(self, x: Array) -> Array:
        return negligible(self.radius - namespace_of(x).abs(x), self.radius)

    def reach(self, d: Array, x: Array) -> Array:
        xp = namespace_of(d)
        return ratio_test(xp.where(d < 0, self.radius + x, self.radius - x), xp.abs(d))


def _real(owner: Box, name: str) -> np.ndarray:
    """A bound on the host; lists are kept as arrays, with infinities for None."""
    given = unmarked(getattr(owner, name))
    value = unbounded(given, -math.inf if name == "lower" else math.inf)
    bound = host_numbers(value)
    if bound is None or not bound.size:
        raise ProblemError(f"Box: {name} must be a real number or an array of them, got {shown(value)}")
    if given is None or (backends.of(value) is None and bound.ndim):
        object.__setattr__(owner, name, bound if bound.ndim else value)
    return bound


def bounds(lower: Tree, upper: Tree = None) -> Any:
    """The set of everything between two bounds: a `Box`, a `LinfBall` for one number and its negative, `Free` for none.

    Parameters
    ----------
    lower : float, array, sequence of pairs, object with ``lb`` and ``ub``, or dict of these
        Lower bounds; without `upper`, both: SciPy's ``[(low, high), ...]`` or ``Bounds``. None and infinities are
        missing bounds. A dict gives a dict of sets, as ``over=`` takes it.
    upper : as `lower`
        Upper bounds.

    Returns
    -------
    Box, LinfBall, Free, or a dict of them

    Raises
    ------
    ProblemError
        Bounds are no numbers, or empty.

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
            raise ProblemError(f"bounds: upper must have the keys {sorted(map(str, lower))}, got {shown(upper)}")
        return {key: bounds(part, unbounded(upper[key], math.inf)) for key, part in lower.items()}
    if upper is None and are_bounds(lower):
        lower, upper = lower.lb, lower.ub
    elif upper is None and isinstance(lower, list | tuple):
        if not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in lower):
            raise ProblemError(f"bounds: without upper, lower must be pairs (low, high), got {shown(lower)}")
        pairs = lower
        lower, upper = [low for low, _ in pairs], [high for _, high in pairs]
    lower, upper = unbounded(lower, -math.inf), unbounded(upper, math.inf)
    low, high = _numbers(lower), _numbers(upper)
    if (low == -math.inf).all() and (high == math.inf).all():
        return Free()
    if not low.shape and not high.shape and 0 <= high == -low:
        return LinfBall(float(high))
    return Box(lower, upper)


def are_bounds(x: object) -> bool:
    """Whether an object has bounds as SciPy's ``Bounds`` has: those of a linear constraint are not of theta."""
    return hasattr(x, "lb") and hasattr(x, "ub") and not (hasattr(x, "A") or hasattr(x, "fun"))


def unbounded(x: Any, infinity: float) -> Any:
    """A bound, or lists of bounds, with an infinity for each None."""
    if isinstance(x, list | tuple):
        return [unbounded(e, infinity) for e in x]
    return infinity if x is None else x


def _numbers(x: object) -> np.ndarray:
    found = host_numbers(x)
    if found is None:
        raise ProblemError(f"bounds must be numbers or arrays of numbers, got {shown(x)}")
    return found
