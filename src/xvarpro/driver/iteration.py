"""What runs, as functions of arrays alone: the start, a step and the end of a solve, and all of it in one loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from xvarpro.algorithms.common import at
from xvarpro.algorithms.interface import Algorithm
from xvarpro.core import trees
from xvarpro.core.namespace import array_namespace
from xvarpro.core.status import Status
from xvarpro.core.struct import Array, Leaves
from xvarpro.driver.prepare import Prepared
from xvarpro.objective.interface import Objective


@dataclass(frozen=True)
class Program:
    """A prepared problem with its algorithm, taken apart: each function is made of arrays, and can be compiled.

    The arrays are ``(tol, floor, *rest)``: the tolerance, what the objective is a small difference of, and those of the
    problem, the region and the algorithm. It holds no array itself: compiled functions are kept under it.
    """

    assemble: Callable[..., Objective]
    skeleton: trees.Skeleton

    @classmethod
    def of(cls, prepared: Prepared, algorithm: Algorithm) -> tuple[Program, Leaves]:
        """The program and the arrays of problem, region and algorithm."""
        rest, skeleton = trees.partition((prepared.problem, prepared.region, algorithm))
        return cls(prepared.assemble, skeleton), rest

    def start(self, rest: Leaves) -> Callable[[Leaves], Any]:
        """The state at a theta, and the scale of what the objective is a difference of."""
        problem, region, algorithm = self.skeleton.fill(rest)
        f = self.assemble(problem).with_lower_tolerance(float("inf"))
        return lambda theta: (algorithm.init(f, region, theta), f.scale(theta))

    def step(self, operands: Leaves) -> Callable[[Any], Any]:
        """One iteration."""
        tol, floor, *rest = operands
        problem, region, algorithm = self.skeleton.fill(rest)
        f = self.assemble(problem, energy=floor)
        tied = partial(_with_tolerance, f, tol, floor)
        return lambda state: with_status(algorithm.advance(tied(state), region, state), tol, floor)

    def end(self, operands: Leaves) -> Callable[[Any], Any]:
        """The certificate that an algorithm owes when the iterations have ended."""
        tol, floor, *rest = operands
        problem, region, algorithm = self.skeleton.fill(rest)
        f = self.assemble(problem, energy=floor)
        tied = partial(_with_tolerance, f, tol, floor)
        return lambda state: with_status(algorithm.finish(tied(state), region, state), tol, floor)

    def sharp(self, operands: Leaves) -> Callable[[Any], Any]:
        """Value and certificate anew, from an inexact lower level as tight as it can be solved."""
        tol, floor, *rest = operands
        problem, region, _ = self.skeleton.fill(rest)
        f = self.assemble(problem, energy=floor)
        return lambda state: with_status(_certified(f, region, state), tol, floor)

    def whole(self, backend: Any, tol: Array, rest: Leaves, theta: Leaves, max_iter: int) -> tuple[Any, Array]:
        """A solve without a look at it in between: its last iterate and the weights there.

        For a solve inside a function that is compiled, differentiated or mapped over a batch as a whole.
        """
        state, energy = self.start(rest)(theta)
        xp = array_namespace(state.iterate.value)
        floor = xp.maximum(xp.abs(state.iterate.value), energy)
        operands = (tol, floor, *rest)
        step, sharp = self.step(operands), self.sharp(operands)

        def going(carry: tuple[Any, Any]) -> Array:
            return (carry[0] < max_iter) & running(carry[1])

        def iterate(carry: tuple[Any, Any]) -> tuple[Any, Any]:
            return backend.while_loop(going, lambda carry: (carry[0] + 1, step(carry[1])), carry)

        def certain(carry: tuple[Any, Any]) -> tuple[Any, Any]:
            n, state = iterate(carry)
            return n, sharp(state)

        carry = (0 * state.iterate.status, with_status(state, tol, floor))
        exact = state.iterate.lower == ()
        _, state = iterate(carry) if exact else backend.while_loop(going, certain, carry)
        *_, algorithm = self.skeleton.fill(rest)
        if not algorithm.certifies_every_iteration:
            state = self.end(operands)(state)
        code = state.iterate.status
        code = xp.where(code == Status.RUNNING.code, xp.full_like(code, Status.MAX_ITER.code), code)
        problem, _, _ = self.skeleton.fill(rest)
        w = self.assemble(problem).with_lower_tolerance(0.0).solve_lower(state.iterate.theta)
        return state.iterate._replace(status=code), w


def with_status(state: Any, tol: Array, floor: Array) -> Any:
    """The state with its status: converged and non-finite are read off the certificate, for every algorithm alike."""
    it = state.iterate
    xp = array_namespace(it.value)
    small = negligible_gap(it.value, tol, floor)
    code = xp.where(
        (it.gap_A + it.slack <= small) & (it.gap_B <= small), xp.full_like(it.status, Status.CONVERGED.code), it.status
    )
    if it.lower != ():
        it, code = _unsettled(it, code, small)
    finite = xp.isfinite(it.value) & xp.isfinite(it.gap_A) & xp.isfinite(it.gap_B)
    code = xp.where(finite, code, xp.full_like(code, Status.NON_FINITE.code))
    return state._replace(iterate=it._replace(status=code))


def _unsettled(it: Any, code: Array, small: Array) -> tuple[Any, Array]:
    """The iterate with its status where the lower level is inexact.

    A search that finds no descent may have met the error of the values: it is tried again with a tolerance below the
    residual that was left. A level that has not reached its tolerance, and leaves open as much as the gap, has nothing
    more to give.
    """
    xp = array_namespace(it.value)
    error, gap = it.lower, xp.maximum(it.gap_A + it.gap_B, small)
    stuck = code == Status.NO_DESCENT.code
    retried = stuck & error.reached & (error.slack > 1e-3 * gap)
    failed = ~error.reached & (error.slack > gap) & (code != Status.CONVERGED.code)
    code = xp.where(retried, xp.full_like(code, Status.RUNNING.code), code)
    code = xp.where(failed, xp.full_like(code, Status.LOWER_LEVEL.code), code)
    residual = xp.where(retried, error.residual * xp.minimum(error.slack, gap) / gap, error.residual)
    return it._replace(lower=error._replace(residual=residual)), code


def _certified(f: Any, region: Any, state: Any) -> Any:
    """The state with value and certificate anew, from the lower level as tight as `f` solves it."""
    it = state.iterate
    point, _, direction = f.certified(region, it.theta)
    return state._replace(iterate=at(it, point, direction, 1, 1)._replace(status=0 * it.status))


def negligible_gap(value: Array, tol: Array, floor: Array) -> Array:
    """The gap that counts as none: it is known to rounding of the data, however small the objective has become."""
    xp = array_namespace(value)
    return xp.maximum(tol * xp.abs(value), (10 * xp.finfo(value.dtype).eps) * floor)


def _with_tolerance(f: Objective, tol: Array, floor: Array, state: Any) -> Objective:
    """The objective as a step from this state needs it: the tolerance of an inexact lower level follows the gap.

    The error of the gradient is proportional to the residual that was left: that gives the tolerance at which it is as
    large as the gap.
    """
    if f.exact:
        return f
    it = state.iterate
    xp = array_namespace(it.value)
    small, error = negligible_gap(it.value, tol, floor), it.lower
    gap = xp.maximum(xp.where(it.gap_A > 0, it.gap_A, 0 * small) + it.gap_B, small)
    known = error.slack > 0
    level = xp.where(known, error.residual, gap) * gap
    return f.with_lower_tolerance(level / xp.where(known, error.slack, gap))


def running(state: Any) -> Array:
    """Whether the iterations go on."""
    return state.iterate.status == Status.RUNNING.code
