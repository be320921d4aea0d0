"""The feasible region ``C_A x R^p``: which set holds which leaf of theta, and Algorithm 2 (BLMO) over all of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from numbers import Real
from typing import TYPE_CHECKING, Any, NamedTuple, final

from xvarpro.backends import to_numpy
from xvarpro.core import trees
from xvarpro.core.checks import shown
from xvarpro.core.namespace import device, is_array, namespace_of
from xvarpro.core.struct import Array, Leaves, Struct, Tree
from xvarpro.errors import ProblemError
from xvarpro.sets.box import Box, are_bounds, bounds
from xvarpro.sets.each import unmarked
from xvarpro.sets.free import Free
from xvarpro.sets.interface import Set
from xvarpro.sets.norms import L2
from xvarpro.sets.vectors import largest, or_one, real_dtype

if TYPE_CHECKING:
    from xvarpro.objective.interface import LowerError


class Direction(NamedTuple):
    """The Frank-Wolfe direction ``d = BLMO(theta, grad) - theta`` and its certificate; all but d are 0-d arrays."""

    d: Leaves
    gap_A: Array  # -<grad, d> of block A
    gap_B: Array  # -<grad, d> of block B
    slack: Array  # the most by which inexact oracles under-estimate the gap
    lower: LowerError | tuple[()] = ()  # where an inexact lower level is part of the slack


@final
@dataclass(frozen=True)
class Region(Struct):
    """The set of each leaf of theta. `Leaves` are tuples of arrays in the order of theta's leaves.

    Methods of leaves take those of one problem; the last ones take vectors (b, p), all leaves of each of b problems.

    Parameters
    ----------
    constrained : tuple of (int, Set)
        Block A: the set of each constrained leaf.
    free : tuple of (tuple of int, Free)
        Block B: groups of leaves, each with the norm of its ball.
    diameters : tuple of arrays, 0-d
        Those of the constrained leaves, where an inexact lower level needs them; see `measured`.
    shapes : tuple of tuple of int
        Of the leaves of one problem; axes before these are of a batch.
    """

    constrained: tuple[tuple[int, Set], ...] = ()
    free: tuple[tuple[tuple[int, ...], Free], ...] = ()
    diameters: tuple[Array, ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()

    def measured(self, theta: Leaves) -> Region:
        """The region with its `diameters`, computed on the host before a loop is compiled."""
        widths = [(theta[i], C.diameter(event(C, theta[i]))) for i, C in self.constrained]
        return replace(self, diameters=tuple(namespace_of(x).full_like(trees.corner(x), d) for x, d in widths))

    @cached_property
    def on_host(self) -> Region:
        """The region with arrays of NumPy."""
        found: Region = trees.map_arrays(to_numpy, self)
        return found

    @property
    def without_projection(self) -> list[Set]:
        """The sets that offer no projection."""
        return [s for _, s in self.constrained if not s.has_projection]

    def blmo(self, theta: Leaves, grad: Leaves) -> Direction:
        """Algorithm 2: a vertex of block A, a point on the ball around the iterate for block B."""
        d = list(theta)
        gap_A = gap_B = slack = _zero(theta)
        for i, C in self.constrained:
            if not C.bounded:
                way, rest = C.ahead(grad[i], theta[i])
                (step,), size = Free().norm.dual((rest,))
                d[i] = way - step
                gap_A, gap_B = gap_A - trees.inner(grad[i], way), gap_B + size
                continue
            v, hidden = C.certified(event(C, grad[i]))
            d[i] = namespace_of(v).reshape(v, theta[i].shape) - theta[i]
            slack = slack if hidden is None else slack + namespace_of(v).sum(hidden)
            gap_A = gap_A - trees.inner(grad[i], d[i])
        for group, ball in self.free:
            u, size = ball.norm.dual(tuple(grad[i] for i in group))
            for i, x in zip(group, u, strict=True):
                d[i] = -ball.radius * x
            gap_B = gap_B + ball.radius * size
        return Direction(tuple(d), gap_A, gap_B, slack)

    @property
    def unbounded(self) -> bool:
        """Whether some linear functions have no minimum: with free leaves, or sets with infinite bounds."""
        return bool(self.free) or not all(C.bounded for _, C in self.constrained)

    def outward(self, grad: Leaves, theta: Leaves) -> Leaves:
        """The part of a gradient that no bound stops: all of it in free leaves, 0 in bounded ones."""
        out = list(self.block(grad, free=True))
        for i, C in self.constrained:
            if not C.bounded:
                out[i] = C.ahead(grad[i], theta[i])[1]
        return tuple(out)

    def hidden(self, theta: Leaves, error: Leaves) -> Array:
        """The most by which both parts of the gap change if the gradient changes by `error`, 0-d.

        Of the constrained leaves only the length of the error counts, not its direction: an estimate is not known to
        more than that.
        """
        total = _zero(theta)
        for n, (i, C) in enumerate(self.constrained):
            width: Array | float = self.diameters[n]
            if not C.bounded:  # the ball of an unbounded entry, and the ways to bounds there are
                ways = [C.ahead(namespace_of(error[i]).full_like(error[i], s), theta[i])[0] for s in (-1.0, 1.0)]
                width = 1 + sum(trees.inner(way, way) for way in ways) ** 0.5
            total = total + width * trees.inner(error[i], error[i]) ** 0.5
        for group, ball in self.free:
            _, size = ball.norm.dual(tuple(error[i] for i in group))
            total = total + ball.radius * size
        return total

    def block(self, d: Leaves, free: bool) -> Leaves:
        """`d` with the other block's leaves set to 0."""
        keep = {i for group, _ in self.free for i in group} if free else {i for i, _ in self.constrained}
        return tuple(x if i in keep else namespace_of(x).zeros_like(x) for i, x in enumerate(d))

    def project(self, theta: Leaves) -> Leaves:
        """Nearest feasible point; free leaves stay."""
        out = list(theta)
        for i, C in self.constrained:
            out[i] = _of_event(C, C.project, theta[i], theta[i].shape)
        return tuple(out)

    def tangent(self, d: Leaves, theta: Leaves) -> Leaves:
        """The part of a direction that stays in the smallest face of `theta`; all of it where faces are not known.

        Leaves of `d` may have more leading axes than those of `theta`: one direction each.
        """
        out = list(d)
        for i, C in self.constrained:
            if C.has_faces:
                moved = C.tangent(event(C, d[i], self.shapes[i]), event(C, theta[i], self.shapes[i]))
                out[i] = namespace_of(moved).reshape(moved, d[i].shape)
        return tuple(out)

    def slide(self, d: Leaves, theta: Leaves) -> Leaves:
        """End of the path ``theta + t d``, t in [0, 1], that turns into each face it meets; see `Set.slide`.

        Leaves without faces stay. One evaluation of the objective then pays for all faces on the path, of which a dense
        point meets many.
        """
        out = [x + v for x, v in zip(theta, d, strict=True)]
        for i, C in self.constrained:
            out[i] = theta[i]
            if C.has_faces:
                end = C.slide(event(C, d[i]), event(C, theta[i]))
                out[i] = namespace_of(end).reshape(end, theta[i].shape)
        return tuple(out)

    def moved(self, d: Leaves, theta: Leaves) -> Leaves:
        """A feasible point at ``theta + d`` or on the way there."""
        if self.without_projection:
            return self.slide(d, theta)
        return self.project(trees.plus(theta, d))

    def violation(self, theta: Leaves) -> Array:
        """Largest relative violation of any set, by any problem of a batch, 0-d."""
        worst = _zero(theta)
        for i, C in self.constrained:
            if theta[i].shape[:1] != (0,):
                xp = namespace_of(theta[i])
                worst = xp.maximum(worst, largest(C.violation(event(C, theta[i], self.shapes[i]))))
        return worst

    def diameter(self, theta: Leaves) -> float:
        """``sqrt(Delta_A^2 + sum of (2 radius)^2)`` of the sets and of the balls of the free block."""
        widths = [C.diameter(event(C, theta[i])) for i, C in self.constrained]
        return math.hypot(*widths, *(2 * ball.radius for _, ball in self.free))

    # -- a batch

    def join(self, leaves: Leaves) -> Array:
        """Vectors (b, p) of leaves (b, ...): the inverse of `trees.parts` by `shapes`."""
        return trees.raveled(leaves, rows=leaves[0].ndim - len(self.shapes[0]))

    def nearest(self, x: Array, slope: Array) -> Array:
        """Nearest feasible points; of sets without a projection the vertices down the slope. Free leaves stay."""
        out = list(trees.parts(x, self.shapes))
        for i, C in self.constrained:
            here, oracle = (out, C.project) if C.has_projection else (trees.parts(slope, self.shapes), C.lmo)
            out[i] = _of_event(C, oracle, here[i], self.shapes[i])
        return trees.raveled(tuple(out), rows=1)

    def vertices(self, slope: Array, x: Array) -> Array:
        """Points of the bounded sets down the slope; free leaves and unbounded ones are those of x."""
        out, g = list(trees.parts(x, self.shapes)), trees.parts(slope, self.shapes)
        for i, C in self.constrained:
            if C.bounded:
                out[i] = _of_event(C, C.lmo, g[i], self.shapes[i])
        return self.join(tuple(out))

    def evened(self, x: Array) -> Array:
        """Vectors (b, p) with the largest entry of a leaf everywhere in it, unless its set is one of bounds."""
        xp, out = namespace_of(x), list(trees.parts(x, self.shapes))
        for i, C in self.constrained:
            if C.event_ndim:
                flat = trees.raveled((out[i],), rows=1)
                out[i] = xp.reshape(xp.max(flat, axis=1, keepdims=True) + xp.zeros_like(flat), out[i].shape)
        return self.join(tuple(out))

    def tangents(self, x: Array) -> Array:
        """The matrices that project directions on the smallest face of each point, shape (b, p, p)."""
        xp = namespace_of(x)
        b, p = x.shape
        eye = xp.eye(p, dtype=x.dtype, device=device(x))[:, None, :]
        directions, points = (trees.parts(xp.broadcast_to(a, (p, b, p)), self.shapes) for a in (eye, x))
        return xp.permute_dims(self.join(self.tangent(directions, points)), (1, 0, 2))

    def reach(self, d: Array, x: Array) -> Array:
        """The largest share of directions in faces, at most 1, that stays feasible, (b,)."""
        xp = namespace_of(x)
        share = xp.ones_like(x[:, 0])
        ways, leaves = trees.parts(d, self.shapes), trees.parts(x, self.shapes)
        for i, C in self.constrained:
            way, at = event(C, ways[i], self.shapes[i]), event(C, leaves[i], self.shapes[i])
            if C.event_ndim:
                share = xp.minimum(share, C.reach(way, at))
            else:  # bounds of each entry: what the projection leaves of it
                end = at + way
                inside = (way == 0) | (C.project(end) == end)
                kept = xp.where(inside, 1, (C.project(end) - at) / or_one(way))
                share = xp.minimum(share, xp.min(trees.raveled((kept,), rows=1), axis=1))
        return xp.maximum(share, xp.zeros_like(share))

    def gaps(self, x: Array, grad: Array) -> tuple[Array, Array]:
        """Both parts of the gap of Algorithm 2 for every problem, (b,), with what oracles hide."""
        xp = namespace_of(x)
        leaves, g = trees.parts(x, self.shapes), trees.parts(grad, self.shapes)
        gap_A = gap_B = xp.zeros((x.shape[0],), dtype=x.dtype, device=device(x))
        for i, C in self.constrained:
            if not C.bounded:
                way, rest = C.ahead(g[i], leaves[i])
                gap_A, gap_B = gap_A - _each(xp, g[i] * way), gap_B + xp.sqrt(_each(xp, rest * rest))
                continue
            v, hidden = C.certified(event(C, g[i], self.shapes[i]))
            gap_A = gap_A - _each(xp, g[i] * (xp.reshape(v, leaves[i].shape) - leaves[i]))
            if hidden is not None:
                gap_A = gap_A + _each(xp, hidden)
        for group, ball in self.free:
            if isinstance(ball.norm, L2):
                size = xp.sqrt(trees.sum_(_each(xp, g[i] * g[i]) for i in group))
            else:
                size = xp.stack([ball.norm.dual(tuple(g[i][n, ...] for i in group))[1] for n in range(x.shape[0])])
            gap_B = gap_B + ball.radius * size
        return gap_A, gap_B


def event(C: Set, x: Array, shape: tuple[int, ...] | None = None) -> Array:
    """A leaf in the shape that its set takes: flattened for a vector set; axes before those of `shape` stay."""
    if C.event_ndim != 1:
        return x
    shape = x.shape if shape is None else shape
    return namespace_of(x).reshape(x, (*x.shape[: x.ndim - len(shape)], math.prod(shape)))


def _of_event(C: Set, fun: Callable[[Array], Array], x: Array, shape: tuple[int, ...]) -> Array:
    """What a method of a set makes of a leaf, in the shape of that."""
    return namespace_of(x).reshape(fun(event(C, x, shape)), x.shape) if C.event_ndim == 1 else fun(x)


def _each(xp: Any, x: Array) -> Array:
    """Sums over all axes but the first."""
    return xp.sum(x, axis=tuple(range(1, x.ndim))) if x.ndim > 1 else x


def _zero(theta: Leaves) -> Array:
    return namespace_of(theta[0]).zeros((), dtype=real_dtype(theta[0]), device=device(theta[0]))


def resolve(over: Tree, theta: Tree, b: int | None = None) -> Region:
    """Match a tree of sets with theta.

    Parameters
    ----------
    over : None, Set, Free, a pair of bounds, or a tree of them
        A set for each constrained leaf, or ``(lower, upper)`` or SciPy's ``Bounds`` for a `Box`, None being no bound.
        In a dict, keys that are left out are free; so is None. A key may be a pattern, ``"*.weight"``, for all that
        match and are not named.
    theta : pytree of arrays
    b : int, optional
        The number of problems of a batch, of which theta is one: a `Box` may have bounds of each.

    Raises
    ------
    ProblemError
        A key or a position that theta does not have, a pattern that matches none, two for one leaf, a set for something
        that is not one array, a set that cannot hold an array of that shape.
    """
    leaves, treedef = trees.flatten(theta)
    indices = trees.unflatten(treedef, range(len(leaves)))
    constrained: dict[int, Set] = {}
    free: list[tuple[tuple[int, ...], Free]] = []
    rest: list[int] = []

    def walk(over: Tree, at: Tree, path: str) -> None:
        if over is None:
            rest.extend(trees.leaves(at))
        elif isinstance(over, Free):
            free.append((tuple(trees.leaves(at)), over))
        elif isinstance(over, Set):
            if not isinstance(at, int):
                raise _unlike(over, at, path)
            if 0 in leaves[at].shape:
                raise ProblemError(f"a leaf with a set must have entries, got {path} of shape {leaves[at].shape}")
            own = {"b": b} if isinstance(over, Box) else {}
            over.check(tuple(leaves[at].shape), **own)
            constrained[at] = over
        elif isinstance(over, Mapping):
            if not isinstance(at, Mapping):
                raise _unlike(over, at, path)
            by_key = _spread(over, at, path)
            for key in at:
                walk(by_key.get(key), at[key], f"{path}[{key!r}]")
        elif are_bounds(over):
            walk(bounds(over), at, path)
        elif isinstance(over, list | tuple) and isinstance(at, int):
            walk(_box(over, path), at, path)
        elif isinstance(over, Sequence) and not isinstance(over, str):
            if not isinstance(at, Sequence):
                raise _unlike(over, at, path)
            if len(over) != len(at):
                raise ProblemError(
                    f"over must have {len(at)} entries for {path}, got {len(over)}: None marks a free one"
                )
            for i, (o, a) in enumerate(zip(over, at, strict=True)):
                walk(o, a, f"{path}[{i}]")
        else:
            raise ProblemError(
                f"over must hold sets such as xv.sets.Box(0.0, 1.0), or bounds (0.0, 1.0), got {over!r} for {path}"
            )

    walk(over, indices, "theta")
    if rest:
        free.append((tuple(sorted(rest)), Free()))
    return Region(tuple(sorted(constrained.items())), tuple(free), shapes=tuple(tuple(x.shape) for x in leaves))


def _spread(over: Mapping[Any, Tree], at: Mapping[Any, Tree], path: str) -> dict[Any, Tree]:
    """What `over` has for each key of `at`: by the key itself, else by the one pattern that matches it."""
    found = {key: over[key] for key in over if key in at}
    matched: dict[Any, Any] = {}
    for pattern in over:
        if pattern in at:
            continue
        keys = [key for key in at if isinstance(pattern, str) and isinstance(key, str) and fnmatchcase(key, pattern)]
        if not keys:
            raise ProblemError(
                f"over must have keys of {path}, {sorted(map(str, at))}, got {pattern!r}, which matches none of them"
            )
        for key in keys:
            if key in matched and key not in found:
                raise ProblemError(
                    f"over must say once what holds {path}[{key!r}], got {matched[key]!r} and {pattern!r}: write its "
                    "name, which goes before patterns"
                )
            matched[key] = pattern
    return {**{key: over[pattern] for key, pattern in matched.items()}, **found}


def _box(pair: list[Any] | tuple[Any, ...], path: str) -> Box:
    """The box between a pair of bounds; a list of them would say lower and upper, or two pairs."""
    if len(pair) != 2 or not all(x is None or isinstance(x, Real) or is_array(unmarked(x)) for x in pair):
        raise ProblemError(
            f"over must hold a set or one pair of bounds (lower, upper) for {path}, which is one array, got {pair!r}. "
            "For bounds of each entry write Box(lower, upper) with arrays, or bounds([(low, high), ...]), of xv.sets"
        )
    lower, upper = pair
    try:
        return Box(-math.inf if lower is None else lower, math.inf if upper is None else upper)
    except ProblemError as error:
        raise ProblemError(f"over for {path}: {error}") from None


def _unlike(over: Tree, at: Tree, path: str) -> ProblemError:
    """The error for what is not shaped as a part of theta, with how to write it."""
    what, how = "one array", "one set, or a pair of bounds"
    if isinstance(at, Mapping):
        names = [repr(name) for name in at]
        what = f"several by name: {', '.join(names[:6])}{', ...' if len(names) > 6 else ''}"
        how = (
            f"a dict such as {{{names[0]}: xv.sets.Box(0.0, 1.0)}}; '*' stands for all names, what is left out is free"
        )
    elif not isinstance(at, int):
        what = f"a {type(at).__name__} of {len(at)}"
        how = "as many sets, None for what is free, or join the arrays to one, as by np.array"
    return ProblemError(f"over must hold a set per array; got {shown(over)} for {path}, which is {what}. Write {how}")
