"""What first-order methods offer so that quasi-Newton steps can take turns with theirs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

from xvarpro.algorithms.common import add
from xvarpro.algorithms.interface import Algorithm
from xvarpro.backends import Backend
from xvarpro.core.namespace import namespace_of, positive_or_one
from xvarpro.core.struct import Array, Leaves
from xvarpro.core.trees import axpy, corner, dot, sub
from xvarpro.objective.interface import Objective
from xvarpro.sets.region import Region


class Way(NamedTuple):
    """A feasible direction of descent for steps up to 1, and whether a step is to be searched along it."""

    d: Leaves
    taken: Array
    gamma: float  # share of the predicted decrease that is asked for
    limit: int  # trials after which the search gives up

    def otherwise(self, backend: Backend, fun: Callable[[Any], Any], state: Any) -> Any:
        """`fun(state)` where the way is not taken, which is in compiled loops alone: other steps then have none."""
        return backend.when(~self.taken, fun, state) if backend.compiled else state

    def instead(self, own: float, other: float, like: Array) -> Array:
        """`other` where the way is taken, else a method's `own`; 0-d."""
        xp = namespace_of(like)
        return xp.where(self.taken, xp.full_like(like, other), xp.full_like(like, own))


class FirstOrder(Algorithm):
    """A method whose states have `iterate` and `grad`, the gradient there, and that can step along another's way."""

    oracle: ClassVar[str]  # what `nearest` calls, by its name among the counts

    @abstractmethod
    def tangent(self, region: Region, d: Leaves, theta: Leaves) -> Leaves:
        """The part of a direction that stays in the face of theta."""

    @abstractmethod
    def toward(self, f: Objective, region: Region, d: Leaves, theta: Leaves) -> Leaves:
        """The feasible direction nearest to `d`, for steps up to 1."""

    @abstractmethod
    def length(self, state: Any) -> Array:
        """The length of a gradient step from here."""

    @abstractmethod
    def nearest(self, f: Objective, region: Region, goal: Leaves, theta: Leaves) -> tuple[Leaves, Array]:
        """A feasible point at `goal` or on the way there from `theta`, and the calls of the oracle."""

    def direction(self, f: Objective, region: Region, state: Any) -> tuple[Leaves, Any]:
        """A feasible direction of descent that may leave the face, and the state with its work counted."""
        theta = state.iterate.theta
        end, calls = self.nearest(f, region, axpy(-self.length(state), state.grad, theta), theta)
        return sub(end, theta), worked(state, **{self.oracle: calls})

    @abstractmethod
    def step(self, f: Objective, region: Region, state: Any, way: Way | None) -> Any:
        """State after one iteration, along `way` where it is taken: both kinds evaluate the objective in one place."""

    def advance(self, f: Objective, region: Region, state: Any) -> Any:
        # a compiled step with branches that are never taken is a fifth quicker than one without them
        it = state.iterate
        never = Way(it.theta, it.status < 0, 0.0, 0) if f.backend.compiled else None
        return self.step(f, region, state, never)


def worked(state: Any, **work: Array | int) -> Any:
    """The state with work counted."""
    iterate = state.iterate
    return state._replace(iterate=iterate._replace(counts=add(iterate.counts, **work)))


def push(rows: Array, row: Array) -> Array:
    """The rows without the first and with another at the end."""
    xp = namespace_of(rows)
    return xp.concat([rows[1:, ...], xp.expand_dims(row, axis=0)])


class Projecting(FirstOrder):
    """Steps that leave a set are projected back onto it."""

    needs_projection = True
    oracle = "projections"

    def tangent(self, region: Region, d: Leaves, theta: Leaves) -> Leaves:
        return region.tangent(d, theta)

    def toward(self, f: Objective, region: Region, d: Leaves, theta: Leaves) -> Leaves:
        return sub(region.project(axpy(1.0, d, theta)), theta)

    def nearest(self, f: Objective, region: Region, goal: Leaves, theta: Leaves) -> tuple[Leaves, Array]:
        return region.project(goal), namespace_of(theta[0]).ones_like(corner(theta[0]))


class InFace(FirstOrder):
    """Conditional gradient sliding (Lan, Zhou 2016): no projection, but a few steps of Frank-Wolfe toward one.

    A path bends into each face that it meets, and so finds the nearest point of the faces it ends in; a step toward the
    vertex that lies furthest ahead then leaves these. Sets without faces take the latter steps only.
    """

    oracle = "lmos"
    slides = 5  # a handful: better minima of dictionaries than with 20 of them, which come closer to the projection
    share = 0.5  # of the squared step that the gap of the projection may be; below 1 the step descends

    def tangent(self, region: Region, d: Leaves, theta: Leaves) -> Leaves:
        d = region.tangent(d, theta)
        without = {i for i, C in region.constrained if not C.has_faces}
        return tuple(0 * x if i in without else x for i, x in enumerate(d))

    def toward(self, f: Objective, region: Region, d: Leaves, theta: Leaves) -> Leaves:
        return sub(region.slide(d, theta), theta)

    def nearest(self, f: Objective, region: Region, goal: Leaves, theta: Leaves) -> tuple[Leaves, Array]:
        def slid(theta: Leaves, n: Array) -> _Slid:
            end = region.slide(sub(goal, theta), theta)
            ahead = region.blmo(end, region.block(sub(end, goal), free=False))
            return _Slid(end, region.block(ahead.d, free=False), ahead.gap_A, n)

        def going(now: _Slid) -> Array:
            step = region.block(sub(now.end, theta), free=False)
            return (now.gap > self.share * dot(step, step)) & (now.n < self.slides)

        def again(now: _Slid) -> _Slid:
            dd = dot(now.ahead, now.ahead)
            xp = namespace_of(dd)
            alpha = xp.minimum(now.gap / positive_or_one(dd), xp.ones_like(dd))
            return slid(axpy(alpha, now.ahead, now.end), now.n + 1)

        last = f.backend.while_loop(going, again, slid(theta, namespace_of(theta[0]).zeros_like(corner(theta[0]))))
        return last.end, last.n + 1


class _Slid(NamedTuple):
    """The end of a path, the direction from it to the best vertex for the projection, its gap, the vertices taken."""

    end: Leaves
    ahead: Leaves
    gap: Array
    n: Array
