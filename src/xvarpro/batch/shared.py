"""Problems that share leaves of theta: one problem, a batch of one, whose model is an arrow.

Its vectors have the entries that problems have for themselves, one problem after the other, then those that they share.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from xvarpro.backends import modules, to_numpy
from xvarpro.batch.objective import Batch, Outputs, rows
from xvarpro.batch.prepare import Prepared, batch_size, prepare
from xvarpro.core import trees
from xvarpro.core.namespace import device, namespace_of
from xvarpro.core.struct import REQUIRED, Array, Leaves, Tree
from xvarpro.driver.transfer import destination
from xvarpro.errors import ModelError, ProblemError
from xvarpro.lower import Bounded
from xvarpro.objective.gauss_newton import Arrow, Local, joined
from xvarpro.problem.problem import Problem
from xvarpro.sets import Box, Free, each
from xvarpro.sets.region import Region


class Sharing(NamedTuple):
    """How entries of theta, in the order of its leaves, lie in the vector of a batch."""

    b: int
    leaves: tuple[bool, ...]  # whether each is of problems
    own: tuple[int, ...]
    shared: tuple[int, ...]

    def vector(self, theta: Array) -> Array:
        """Vectors of problems (b, p + q) as one, (1, b p + q)."""
        return joined(_taken(theta, self.own, 1), _taken(theta, self.shared, 1)[0, :])

    def apart(self, x: Array) -> Array:
        """The vector (1, b p + q) as vectors (b, p + q) of problems."""
        xp, n = namespace_of(x), self.b * len(self.own)
        shared = xp.broadcast_to(x[:, n:], (self.b, len(self.shared)))
        columns = xp.concat([xp.reshape(x[:, :n], (self.b, -1)), shared], axis=1)
        return _taken(columns, np.argsort(self.own + self.shared), 1)

    def summed(self, g: Array) -> Array:
        """The gradient of a sum, from those of its terms, (b, p + q)."""
        xp = namespace_of(g)
        return joined(_taken(g, self.own, 1), xp.sum(_taken(g, self.shared, 1), axis=0))

    def arrow(self, H: Array) -> Arrow:
        """The second derivatives of a sum, from those of its terms, (b, p + q, p + q)."""
        xp, own, shared = namespace_of(H), _taken(H, self.own, 1), _taken(H, self.shared, 1)
        corner = xp.sum(_taken(shared, self.shared, 2), axis=0)
        return Arrow(_taken(own, self.own, 2)[None, ...], _taken(shared, self.own, 2)[None, ...], corner[None, ...])


def _taken(x: Array, at: Any, axis: int) -> Array:
    xp = namespace_of(x)
    return xp.take(x, xp.asarray([int(i) for i in at], device=device(x)), axis=axis)


class Coupled:
    """The sum of the objectives of a batch. Problems without data do not count: NaN or inf in them, or no weight.

    Nor do counts that are all 0, where a model must be positive: it nears the 0 that is the best value, at any theta.
    What is not said here is that of the batch.
    """

    def __init__(self, batch: Batch, stated: Problem, region: Region, sharing: Sharing) -> None:
        self.batch, self.region, self.sharing = batch, region, sharing
        given = [x.array for x in each.leaves(stated.data) if each.is_each(x)]
        self.weights = [level.weights for level in stated.levels if trees.is_array(level.weights)]
        given += [*self.weights, *(level.y for level in stated.levels)]
        counts = (level for level in stated.levels if level.loss is not None and level.loss.positive)
        self.counts: list[Any] = [level.y for level in counts if not isinstance(stated.lower.W, Bounded)]
        self.given = [x for x in given if trees.is_array(x) and trees.is_inexact(x)]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.batch, name)

    def outputs(self, x: Array) -> Outputs:
        return self.batch.outputs(self.sharing.apart(x))

    def energy(self, x: Array) -> Array:
        return _total(self._counted(self.batch.energy(self.sharing.apart(x))))

    def local(self, x: Array) -> Local:
        found = self.batch.local(self.sharing.apart(x))
        value, grad, H = map(self._counted, found[:3])
        deficient = namespace_of(x).any(self._counted(found.deficient))[None]
        return Local(_total(value), self.sharing.summed(grad), self.sharing.arrow(H), deficient, found.value[None, :])

    def _counted(self, x: Array) -> Array:
        """Numbers of all problems with 0 for those that do not count."""
        xp = namespace_of(x)
        finite = [xp.all(xp.isfinite(y), axis=tuple(range(1, y.ndim))) for y in self.given]
        seen = [xp.any(w != 0, axis=(1, 2)) for w in self.weights]
        seen += [xp.all(xp.any(rows(y) != 0, axis=2), axis=1) for y in self.counts]
        for fine in [*finite, *seen]:
            x = xp.where(xp.reshape(fine, (-1, *(1,) * (x.ndim - 1))), x, xp.zeros_like(x))
        return x


def _total(x: Array) -> Array:
    return namespace_of(x).sum(x)[None]


@dataclass(frozen=True)
class Shared(Prepared):
    """A batch of one, made of a batch."""

    batch: Prepared = REQUIRED  # of vectors (b, p + q)
    sharing: Sharing = REQUIRED

    @property
    def assemble(self) -> Callable[[Problem, Region], Any]:
        batch, sharing, bare = self.batch.assemble, self.sharing, Region(shapes=self.batch.region.shapes)
        return lambda problem, region: Coupled(batch(problem, bare), problem, region, sharing)

    def apart(self) -> Prepared:
        with self.backend.scope(self.dtype):
            return replace(self.batch, theta=self.sharing.apart(self.theta))

    def leaves(self, x: Array) -> Leaves:
        return self._own(self.batch.leaves(self.sharing.apart(x)))

    def measures(self, x: np.ndarray) -> Tree:
        with self.backend.scope(self.dtype):
            leaves = trees.parts(self._moved(x), self.batch.region.shapes)
            return self.layout.measures(self._own(leaves), self.backend)

    @property
    def free(self) -> np.ndarray:
        """Which shared entries are at no bound, (q,)."""
        with self.backend.scope(self.dtype):
            leaves = trees.parts(self.theta, self.region.shapes)
            ones = tuple(map(self.backend.xp.ones_like, leaves))
            return to_numpy(self.region.tangent(ones, leaves)[1])[0] > 0

    def _own(self, leaves: Leaves) -> Leaves:
        """Those of problems, and once those that they share."""
        return tuple(x if own else x[0, ...] for x, own in zip(leaves, self.sharing.leaves, strict=True))


def separate(theta0: Tree, why: str = "") -> Tree:
    """theta0 without marks; with problems that share leaves, of which some are not marked, an error if it says why."""
    marks = each.marks(modules.taken(theta0))
    if all(marks) or not any(marks):
        return each.plain(theta0)
    if why:
        raise ProblemError(f"problems that share leaves of theta are one problem, and {why}: mark all leaves, or none")
    return theta0


def prepare_shared(problem: Problem, theta0: Tree, *, over: Tree = None, **place: Any) -> Prepared:
    """As `prepare`, for leaves of theta0 that are those of problems where they are marked."""
    marks = each.marks(modules.taken(theta0))
    if not any(marks):
        return prepare(problem, theta0, over=over, **place)
    given = destination(each.plain(theta0), None, None, None)
    own = [(x, name) for x, name, mark in zip(given.leaves, given.names, marks, strict=True) if mark]
    b = batch_size(*map(list, zip(*own, strict=True)))
    every = [
        x if mark else namespace_of(x).broadcast_to(x, (b, *x.shape))
        for x, mark in zip(given.leaves, marks, strict=True)
    ]
    try:
        batch = prepare(problem, trees.unflatten(given.layout.treedef, every), over=over, one_unit=True, **place)
    except (ModelError, ProblemError) as error:
        alike = zip(given.leaves, given.names, marks, strict=True)
        if not (lost := [name for x, name, mark in alike if not mark and x.shape[:1] == (b,)]):
            raise
        raise type(error)(
            f"{error}. {' and '.join(lost)}, not marked, is shared by all problems: mark it, xv.Each(array), if its "
            f"{b} entries along the first axis are one per problem"
        ) from error
    columns = np.repeat(marks, [math.prod(shape) for shape in batch.region.shapes])
    sharing = Sharing(b, tuple(marks), *(tuple(np.flatnonzero(x).tolist()) for x in (columns, ~columns)))
    with batch.backend.scope(batch.dtype):
        region = _region(batch, sharing)
        fields = {field.name: getattr(batch, field.name) for field in dataclasses.fields(Prepared)}
        fields |= {"region": region, "theta": sharing.vector(batch.theta), "program": f"{batch.program} {sharing}"}
    shared = tuple(name for name, own in zip(given.names, marks, strict=True) if not own)
    return Shared(**fields | {"shared": shared}, batch=batch, sharing=sharing)


def spread(theta: Tree, shared: tuple[str, ...], b: int) -> Tree:
    """A tree like theta with the leaves that problems share for each of them."""
    leaves, names, treedef = trees.named(theta)
    every = zip(leaves, names, strict=True)
    return trees.unflatten(
        treedef, [namespace_of(x).broadcast_to(x, (b, *x.shape)) if name in shared else x for x, name in every]
    )


def _region(batch: Prepared, sharing: Sharing) -> Region:
    """The bounds of all leaves as those of the problems, (b, p), and of what they share, (q,)."""
    others: list[Any] = [C for _, C in batch.region.constrained if not isinstance(C, Box)]
    others += [ball for _, ball in batch.region.free if ball != Free()]
    if others:
        raise ProblemError(f"where problems share leaves of theta, all must be free or in a Box; got {others[0]!r}")
    region, shapes = each.plain(batch.region), ((sharing.b, len(sharing.own)), (len(sharing.shared),))
    ends = [batch.backend.xp.full_like(batch.theta, side * math.inf) for side in (-1, 1)]
    lower, upper = (to_numpy(region.nearest(x, x)) for x in ends)
    if any((x[:, sharing.shared] != x[:1, sharing.shared]).any() for x in (lower, upper)):
        raise ProblemError("bounds of a leaf that problems share must be the same for all; got xv.Each with others")
    sets = [(x[:, sharing.own], x[0, sharing.shared]) for x in (lower, upper)]
    boxes = [Box(*map(batch.array, pair)) for pair in zip(*sets, strict=True)]
    boxed = tuple((i, C) for i, C in enumerate(boxes) if np.isfinite([to_numpy(C.lower), to_numpy(C.upper)]).any())
    free = tuple(i for i in (0, 1) if i not in dict(boxed))
    return Region(boxed, ((free, Free()),) if free else (), shapes=shapes)
