"""A solve as functions of arrays alone, eager or compiled: its start, a step, its end, and all of it in one loop."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from xvarpro.algorithms.common import at, certified
from xvarpro.algorithms.interface import Algorithm, Iterate
from xvarpro.algorithms.levenberg_marquardt import LevenbergMarquardt, alone
from xvarpro.backends import Backend
from xvarpro.backends.interface import select
from xvarpro.core import trees
from xvarpro.core.namespace import namespace_of, positive_or_one
from xvarpro.core.status import Status
from xvarpro.core.struct import Array, Leaves
from xvarpro.core.trees import axpy
from xvarpro.driver.prepare import Prepared, partition
from xvarpro.objective.decrease import affordable, free_decrease, line_decrease, set_decrease
from xvarpro.objective.gauss_newton import gauss_newton
from xvarpro.objective.interface import LowerError, Objective
from xvarpro.sets.region import Region

ROUNDING = 10.0  # machine epsilons of 1/2 |y|^2 below which a gap is rounding
# of the tolerance, for a method that certifies by its own model of the objective: it needs half a step more for a digit
# of the standard errors, which are read where it ends
OWN_MODEL = 0.1
# of the value, for such a method: the decrease that rounding may leave open, some 2e-3 standard errors of 100 numbers;
# in single precision rounding of a target a thousand times its noise would pass for some 1e-2 of them
OPEN = 1e-7


class State(Protocol):
    """The state of an algorithm: a named tuple of arrays with a field `iterate`."""

    @property
    def iterate(self) -> Iterate: ...
    def _replace(self, **fields: Any) -> Any: ...


class Tracked(NamedTuple):
    """The state of an algorithm, and the best iterate before it; () where the objective never rises."""

    state: Any
    best: Any = ()
    lower: Any = ()  # whether the state's iterate is better than that, 0-d bool

    @classmethod
    def of(cls, state: State, best: Iterate) -> Tracked:
        return cls(state, best, state.iterate.value < best.value)

    @property
    def iterate(self) -> Iterate:
        """The last iterate."""
        found: Iterate = self.state.iterate
        return found

    def after(self, backend: Backend, state: State) -> Tracked:
        """With the state that follows."""
        if not self.best:
            return Tracked(state)
        # which one is the best is known by now: it was read with the record
        return self.of(state, select(backend, self.lower, self.iterate, self.best))

    def ahead(self, floor: Array) -> Array:
        """Whether the best iterate is better than the last one by more than rounding, 0-d bool."""
        # written so that an objective that is not finite is worse
        return ~(self.iterate.value <= self.best.value + noise(self.best.value, floor))


@dataclass(frozen=True)
class Program:
    """A prepared problem with its region and algorithm, without their arrays: compiled functions are kept under it.

    Each method makes a function of states from the arrays ``(tol, floor, *rest)``: the tolerance, 0-d; the size of what
    the objective is a difference of, 0-d; and the arrays of problem, region and algorithm.
    """

    assemble: Callable[..., Objective]
    skeleton: trees.Skeleton

    @classmethod
    def of(cls, prepared: Prepared, algorithm: Algorithm) -> tuple[Program, Leaves]:
        """The program and the arrays of problem, region and algorithm."""
        rest, skeleton = partition(prepared.backend, prepared.dtype, (prepared.problem, prepared.region, algorithm))
        return cls(prepared.assemble, skeleton), rest

    def start(self, operands: Leaves) -> Callable[[Leaves], tuple[Tracked, Array]]:
        """The state at a theta, and the floor ``max(|f|, 1/2 |y|^2)`` there, which `operands` does not have yet."""
        tol, *rest = operands
        problem, region, algorithm = self.skeleton.fill(rest)
        f = self.assemble(problem).with_lower_tolerance(math.inf)

        def run(theta: Leaves) -> tuple[Tracked, Array]:
            state = algorithm.init(f, region, theta)
            value = state.iterate.value
            xp = namespace_of(value)
            floor = xp.maximum(xp.abs(value), f.scale(theta))
            state = with_status(state, algorithm, tol, floor, f.size)
            return Tracked(state) if algorithm.monotone else Tracked.of(state, state.iterate), floor

        return run

    def step(self, operands: Leaves) -> Callable[[Tracked], Tracked]:
        """One iteration."""
        f, region, algorithm, tol, floor = self._filled(operands)

        def run(now: Tracked) -> Tracked:
            state = algorithm.advance(_for_step(f, now.state, tol, floor), region, now.state)
            return now.after(f.backend, with_status(state, algorithm, tol, floor, f.size))

        return run

    def end(self, operands: Leaves) -> Callable[[Tracked], Tracked]:
        """The certificate of an algorithm that does not certify every iteration.

        Where it seems to have converged only now, no later iteration looks at what a model far away has promised.
        """
        f, region, algorithm, tol, floor = self._filled(operands)

        def run(now: Tracked) -> Tracked:
            state = algorithm.finish(_for_step(f, now.state, tol, floor), region, now.state)
            found = now.after(f.backend, with_status(state, algorithm, tol, floor, f.size))
            if not doubtful(f.exact, region, algorithm, found):
                return found
            newly = running(now) & (found.iterate.status == Status.CONVERGED.code)
            return f.backend.when(newly, self.recheck(operands), found)

        return run

    def recheck(self, operands: Leaves) -> Callable[[Tracked], Tracked]:
        """The certificate of a point that seems to have converged anew: see `doubtful`.

        An inexact lower level is solved as tightly as it can be, and the curvature is looked at.
        """
        f, region, algorithm, tol, floor = self._filled(operands)

        def run(now: Tracked) -> Tracked:
            it = now.iterate
            point, grad, direction = certified(f, region, it.theta)
            it = at(it, point, direction, 1, 1)._replace(status=0 * it.status)
            found = _by_block(f, region, it.theta, grad, direction.d, algorithm.needs_projection)
            measured = _followed(it, algorithm) ** 2
            # inf where the objective bends down, which would be for good: the next look is where the gap has halved
            xp = namespace_of(found)
            found = xp.where(xp.isfinite(found), found, 4 * negligible_decrease(f.size(it.value), tol, floor))
            it = it._replace(bend=found / positive_or_one(measured))
            return now._replace(state=with_status(now.state._replace(iterate=it), algorithm, tol, floor, f.size))

        return run

    def assess(self, operands: Leaves) -> Callable[[Tracked], Tracked]:
        """A success in the place of an end without descent, where all that is left to gain is rounding, or below tol.

        An algorithm whose own model still promises more ends by the rule of those without a model: where no step keeps
        the promise, it is the model that is wrong.
        """
        f, region, _, tol, floor = self._filled(operands)

        def run(now: Tracked) -> Tracked:
            it = now.iterate
            xp = namespace_of(it.value)
            point, grad, direction = certified(f, region, it.theta)
            if isinstance(it.decrease, tuple):
                left = promised_decrease(f, region, it.theta, grad, direction.d)
                end, better = left <= noise(it.value, floor), Status.ROUNDING
            else:
                left = _by_block(f, region, it.theta, grad, direction.d)
                size, most = f.size(it.value), (tol * tol) * f.size(it.value)
                small = direction.gap_A + direction.slack <= negligible_gap(size, tol, floor)
                # values of a model may round more than those of numbers: without descent half a digit less is enough
                end, better = (it.decrease <= most) | (small & (left <= most)), Status.CONVERGED
            code = xp.where(end, better.code, it.status)
            if f.problem.kinked and sum(math.prod(x.shape) for x in it.theta) == 1:
                between = line_decrease(f, region, it.theta) <= negligible_gap(it.value, tol, floor)
                code = xp.where(between, Status.CONVERGED.code, code)
            it = at(it, point, direction, 1, 1)._replace(status=code)
            return now._replace(state=now.state._replace(iterate=it))

        return run

    def probe(self, operands: Leaves) -> Callable[[Leaves, Leaves], Array]:
        """The gradient in the smallest face of theta, (p,), after a step inside that face."""
        f, region, _, _, _ = self._filled(operands)

        def run(theta: Leaves, step: Leaves) -> Array:
            _, grad = f.value_and_gradient(axpy(1.0, region.tangent(step, theta), theta))
            return trees.raveled(region.tangent(grad, theta))

        return run

    def whole(self, backend: Backend, tol: Array, rest: Leaves, theta: Leaves, max_iter: int) -> tuple[Iterate, Array]:
        """A solve in one loop, to compile, differentiate or map over a batch: its last iterate, and w there, (n, k).

        A method whose objective may rise starts again at its best iterate, as long as that leads lower.
        """
        state, floor = self.start((tol, *rest))(theta)
        operands = (tol, floor, *rest)
        step, recheck, end = self.step(operands), self.recheck(operands), self.end(operands)
        f, region, algorithm, *_ = self._filled(operands)
        in_doubt = doubtful(f.exact, region, algorithm, state)

        def going(carry: tuple[Array, Tracked]) -> Array:
            return (carry[0] < max_iter) & running(carry[1])

        def converge(carry: tuple[Array, Tracked]) -> tuple[Array, Tracked]:
            return backend.while_loop(going, lambda carry: (carry[0] + 1, step(carry[1])), carry)

        def converge_and_recheck(carry: tuple[Any, Array]) -> tuple[Any, Array]:
            n, state = converge(carry[0])
            return (n, recheck(state)), carry[1] & ~carry[1]

        def attempt(carry: tuple[Array, Tracked]) -> tuple[Array, Tracked]:
            if in_doubt:
                # the start is looked at too: the first pass is made in any case
                first = carry[0] >= 0
                body = converge_and_recheck
                (n, state), _ = backend.while_loop(lambda now: now[1] | going(now[0]), body, (carry, first))
            else:
                n, state = converge(carry)
            return n, state if algorithm.certifies_every_iteration else end(state)

        def again(carry: tuple[Array, Array, Tracked, Array]) -> tuple[Array, Array, Tracked, Array]:
            first, n, state, _ = carry
            begun = backend.when(~first, lambda now: self.start((tol, *rest))(now.best.theta)[0], state)
            n, ended = attempt((namespace_of(n).where(first, n, n + 1), begun))
            return first & ~first, n, ended, state.best.value

        def worn(carry: tuple[Array, Array, Tracked, Array]) -> Array:
            first, n, state, before = carry
            it, best = state.iterate, state.best
            stuck = (it.status == Status.NO_DESCENT.code) | (it.status == Status.STALLED.code)
            lower = best.value < before - noise(best.value, floor)
            return first | ((n < max_iter) & (stuck | (success(it) & state.ahead(floor))) & lower)

        n = 0 * state.iterate.status
        if state.best:
            _, _, state, _ = backend.while_loop(worn, again, (n == 0, n, state, state.best.value))
        else:
            _, state = attempt((n, state))
        last, code = state.iterate, state.iterate.status
        xp = namespace_of(code)
        code = xp.where(code == Status.RUNNING.code, Status.MAX_ITER.code, code)
        if state.best:
            behind = state.ahead(floor)
            code = xp.where(behind & success(last), Status.STALLED.code, code)
            last = select(backend, behind, state.best, last)
        return last._replace(status=code), f.solve_lower(last.theta)

    def _filled(self, operands: Leaves) -> tuple[Objective, Region, Algorithm, Array, Array]:
        """Objective, whose lower level is solved as tightly as it can be, region, algorithm, tolerance and floor."""
        tol, floor, *rest = operands
        problem, region, algorithm = self.skeleton.fill(rest)
        return self.assemble(problem, energy=floor), region, algorithm, tol, floor


def doubtful(exact: bool, region: Region, algorithm: Algorithm, state: State | Tracked) -> bool:
    """Whether a point that has converged is looked at again: its certificate depends on what it does not know.

    A loose tolerance of an inexact lower level may leave out a direction that hardly shows in the residual. What a
    gradient says of the decrease that is left depends on the curvature, in free leaves and within a face.
    """
    open_ = region.unbounded or algorithm.needs_projection
    return not exact or (open_ and isinstance(state.iterate.decrease, tuple))


def _followed(it: Iterate, algorithm: Algorithm) -> Array:
    """The part of the gap whose square the promised decrease follows.

    That of the free block alone for methods without a projection: they approach what they promise within a face slowly.
    """
    return it.gap_A + it.gap_B if algorithm.needs_projection else it.gap_B


def promised_decrease(f: Objective, region: Region, theta: Leaves, grad: Leaves, d: Leaves) -> Array:
    """What a model of the objective promises to one step, 0-d; `d` is the direction of Algorithm 2.

    For few parameters that of Levenberg-Marquardt, else what parabolas promise in both blocks. The former is of the
    whole set, a sum over as many conjugate directions as there are entries: a method that goes by one direction at a
    time sees the equal part of it at least, and may see no more.
    """
    if affordable(f, theta):
        one: Any = f
        point, *model = gauss_newton(one, theta)
        x, local = trees.raveled(theta)[None, :], alone(f.backend.xp, point.value, *model)
        found: Array = LevenbergMarquardt().first(f, region, x, local).decrease[0]
        return found / x.shape[1]
    return _by_block(f, region, theta, grad, d)


def _by_block(f: Objective, region: Region, theta: Leaves, grad: Leaves, d: Leaves, in_sets: bool = True) -> Array:
    """What models of both blocks promise, each with the other held, 0-d; of the free one alone without `in_sets`."""
    found = 0 * trees.corner(theta[0])
    if region.unbounded:
        found = found + free_decrease(f, region, theta, grad)
    if in_sets and region.constrained:
        found = found + set_decrease(f, region, theta, grad, region.block(d, free=False))
    return found


def running(state: State | Tracked) -> Array:
    """Whether the iterations go on, 0-d bool."""
    return state.iterate.status == Status.RUNNING.code


def success(it: Iterate) -> Array:
    """`Status.success`, 0-d bool."""
    return (it.status == Status.CONVERGED.code) | (it.status == Status.ROUNDING.code)


def negligible_gap(value: Array, tol: Array, floor: Array) -> Array:
    """The gap below which a solve has converged: the tolerance, or what rounding of the data leaves open; 0-d."""
    xp = namespace_of(value)
    return xp.maximum(tol * xp.abs(value), (ROUNDING * xp.finfo(value.dtype).eps) * floor)


def negligible_decrease(value: Array, tol: Array, floor: Array, most: float | None = None) -> Array:
    """The decrease below which a solve has converged: ``tol^2 |f|``, or what rounding of the data leaves open.

    The latter is no more than `most` of the value where that is given, unless a tenth of the rounding leaves more open.

    Twice a Gauss-Newton model's decrease over ``|r|^2`` is the square of the relative offset of Bates and Watts (1981),
    which does not change with the units of theta.
    """
    xp = namespace_of(value)
    rounding = ROUNDING * xp.finfo(value.dtype).eps
    size, smallest = xp.abs(value), rounding**2 * floor
    least = smallest if most is None else xp.clip(most * size, 0.01 * smallest, smallest)
    # a residual that is 0 to rounding has no slope that means anything
    return xp.where(size <= 100 * smallest, xp.inf, xp.maximum((tol * tol) * size, least))


def noise(value: Array, floor: Array) -> Array:
    """By how much computed objectives near `value` may differ from rounding alone; see `Objective.rounding`."""
    xp = namespace_of(value)
    size = xp.abs(value)
    return trees.rounding(xp, size + xp.sqrt(size * floor))


def with_status(
    state: State, algorithm: Algorithm, tol: Array, floor: Array, size: Callable[[Array], Array] = abs
) -> State:
    """The state with CONVERGED and NON_FINITE read off its certificate, for every algorithm alike."""
    it = state.iterate
    xp = namespace_of(it.value)
    code, value = it.status, size(it.value)
    if isinstance(it.decrease, tuple):
        small = it.gap_A + it.slack <= negligible_gap(value, tol, floor)
        done = small & (it.bend * _followed(it, algorithm) ** 2 <= negligible_decrease(value, tol, floor))
    else:
        done = it.decrease <= negligible_decrease(value, OWN_MODEL * tol, floor, OPEN)
        flat = (code == Status.NO_DESCENT.code) & (it.decrease <= noise(it.value, floor))
        code = xp.where(flat, Status.ROUNDING.code, code)
    code = xp.where(done, Status.CONVERGED.code, code)
    if isinstance(it.lower, LowerError):
        code, error = _inexact_status(it, it.lower, code, negligible_gap(value, tol, floor))
        it = it._replace(lower=error)
    finite = xp.isfinite(it.value + it.gap_A + it.gap_B)
    code = xp.where(finite, code, Status.NON_FINITE.code)
    return state._replace(iterate=it._replace(status=code))


def _inexact_status(it: Iterate, error: LowerError, code: Array, small: Array) -> tuple[Array, LowerError]:
    """The status where the lower level is inexact, and its error with the residual that the next step starts from.

    A search that finds no descent may have met the error of the values: it is tried again with a tolerance below the
    residual that was left. A lower level that has not reached its tolerance, and leaves open as much as the gap, has
    failed.
    """
    xp = namespace_of(it.value)
    gap = xp.maximum(it.gap_A + it.gap_B, small)
    retried = (code == Status.NO_DESCENT.code) & error.reached & (error.slack > 1e-3 * gap)
    failed = ~error.reached & (error.slack > gap) & (code != Status.CONVERGED.code)
    code = xp.where(retried, Status.RUNNING.code, code)
    code = xp.where(failed, Status.LOWER_LEVEL.code, code)
    tighter = error.residual * xp.minimum(error.slack, gap) / gap
    return code, error._replace(residual=xp.where(retried, tighter, error.residual))


def _for_step(f: Objective, state: State, tol: Array, floor: Array) -> Objective:
    """The objective for a step from this state: its lower level starts from the last w, or has a tolerance.

    The tolerance of an inexact one follows the gap.

    The error of the gradient is proportional to the residual that was left: that gives the tolerance at which it is as
    large as the gap.
    """
    it = state.iterate
    if f.exact or not isinstance(it.lower, LowerError):
        return f if isinstance(it.w, tuple) else f.starting_at(it.w)
    xp, error = namespace_of(it.value), it.lower
    small = negligible_gap(it.value, tol, floor)
    gap = xp.maximum(xp.where(it.gap_A > 0, it.gap_A, 0 * small) + it.gap_B, small)
    known = error.slack > 0
    level = xp.where(known, error.residual, gap) * gap
    return f.with_lower_tolerance(level / xp.where(known, error.slack, gap))
