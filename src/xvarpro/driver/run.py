"""One solve as it runs: its state, its trace, its clock, and what is verified when it has ended."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from xvarpro.algorithms.interface import Algorithm
from xvarpro.backends import linalg_errors
from xvarpro.core import trees
from xvarpro.core.progress import Bar
from xvarpro.core.status import Status
from xvarpro.core.struct import Array, Leaves, Tree
from xvarpro.driver.iteration import Program, running, with_status
from xvarpro.driver.prepare import Prepared
from xvarpro.objective.interface import Objective
from xvarpro.problem.column_chunks import ColumnChunks, columns
from xvarpro.results.provenance import provenance
from xvarpro.results.recipe import Recipe
from xvarpro.results.result import Counts, Result, Trace, Verified

_RECORD = ("value", "gap_A", "gap_B", "alpha_A", "alpha_B", "status", "values", "gradients", "lmos", "projections")


class DeadUnitsWarning(UserWarning):
    """Columns of the design are exactly zero at the result: they have zero gradient and never come back."""


@dataclass(frozen=True)
class IterationInfo:
    """What a callback sees after an iteration.

    Attributes
    ----------
    iteration : int
    value, gap_A, gap_B, alpha_A, alpha_B : float
    seconds : float
        Since the iterations began.
    """

    iteration: int
    value: float
    gap_A: float
    gap_B: float
    alpha_A: float
    alpha_B: float
    seconds: float
    _theta: Callable[[], Tree]

    @property
    def theta(self) -> Tree:
        """The iterate, as the caller's arrays; brought over when asked for."""
        return self._theta()


def _record(state: Any) -> tuple[Array, ...]:
    it = state.iterate
    return (it.value, it.gap_A + it.slack, it.gap_B, it.alpha_A, it.alpha_B, it.status, *it.counts)


class Run:
    """One solve: its state, its trace, its clock."""

    def __init__(self, prepared: Prepared, algorithm: Algorithm, tol: float) -> None:
        self.prepared, self.algorithm, self.tol = prepared, algorithm, float(tol)
        backend, treedef = prepared.backend, prepared.layout.treedef
        program, whole = Program.of(prepared, algorithm)
        like = prepared.theta[0]
        self.operands = (backend.xp.full_like(trees.corner(like), tol), *whole)
        self._init = backend.call(lambda operands: program.start(operands[1:]), ("init", program.skeleton, treedef))
        self._end = backend.call(program.end, ("end", program.skeleton, treedef))
        self._sharp = backend.call(program.sharp, ("sharp", program.skeleton, treedef))
        self._loop = backend.loop(program.step, _record, running, ("step", program.skeleton, treedef))

    def warm_up(self) -> None:
        """The first state; a compiled loop compiles here, on no iterations, so that the clock does not see it."""
        backend = self.prepared.backend
        state, energy = self._init(self.operands, self.prepared.theta)
        floor = backend.xp.maximum(backend.xp.abs(state.iterate.value), energy)
        state = with_status(state, self.operands[0], floor)
        self.operands = (self.operands[0], floor, *self.operands[1:])
        self.state, _ = self._loop(self.operands, state, 0)
        self.rows = [backend.to_floats(_record(self.state))]
        self.seconds = [0.0]

    @property
    def scale(self) -> float:
        """What rounding of the objective is relative to, once the solve is warm."""
        return self.prepared.backend.to_floats([self.operands[1]])[0]

    def iterate(
        self, max_iter: int, time_limit: float | None, callback: Callable[[IterationInfo], bool | None] | None, bar: Bar
    ) -> Status:
        status = Status.of(self.rows[-1][5])
        began = time.perf_counter() - self.seconds[-1]
        limit = math.inf if time_limit is None else time_limit
        while status is Status.RUNNING:
            done, elapsed = len(self.rows) - 1, self.seconds[-1]
            if done >= max_iter:
                return Status.MAX_ITER
            if elapsed >= limit:
                return Status.TIME_LIMIT
            batch = 1 if callback is not None else self._batch(elapsed, done, limit)
            try:
                self.state, rows = self._loop(self.operands, self.state, min(batch, max_iter - done))
            except linalg_errors():
                return Status.NON_FINITE
            now = time.perf_counter() - began
            self.rows += rows
            self.seconds += [elapsed + (now - elapsed) * (i + 1) / len(rows) for i in range(len(rows))]
            status = Status.of(self.rows[-1][5])
            bar.update(len(rows), self.rows[-1][0], self.rows[-1][1] + self.rows[-1][2])
            if callback is not None and callback(self._iteration_info()):
                return Status.STOPPED if status is Status.RUNNING else status
        return status

    def recheck_with_tight_lower_level(self) -> bool:
        """Whether a solve that has converged goes on: its gap does not stand when an inexact level is solved tightly.

        A loose tolerance may leave out a direction that hardly shows in the residual: at the end that is looked at.
        """
        if self.state.iterate.lower == ():
            return False
        self.state = self._sharp(self.operands, self.state)
        self.rows[-1] = self.prepared.backend.to_floats(_record(self.state))
        return Status.of(self.rows[-1][5]) is Status.RUNNING

    def finish(self, status: Status) -> Status:
        """The certificate that an algorithm owes at the end, in place of the last row of the trace."""
        if self.algorithm.certifies_every_iteration:
            return status
        self.state = self._end(self.operands, self.state)
        self.rows[-1] = self.prepared.backend.to_floats(_record(self.state))
        last = Status.of(self.rows[-1][5])
        return status if last is Status.RUNNING else last

    def _batch(self, elapsed: float, done: int, limit: float) -> int:
        """Steps for the next call of a compiled loop: half a second's worth, or what the time limit leaves."""
        if not self.prepared.backend.compiled:
            return 1
        per_step = max(elapsed / done, 1e-9) if done else math.inf
        return max(1, int(min(0.5, limit - elapsed) / per_step))

    def _iteration_info(self) -> IterationInfo:
        theta, layout, backend = self.state.iterate.theta, self.prepared.layout, self.prepared.backend
        value, gap_A, gap_B, alpha_A, alpha_B = self.rows[-1][:5]
        return IterationInfo(
            iteration=len(self.rows) - 1,
            value=value,
            gap_A=gap_A,
            gap_B=gap_B,
            alpha_A=alpha_A,
            alpha_B=alpha_B,
            seconds=self.seconds[-1],
            # a copy: what a callback does to it must not reach the solve
            _theta=lambda: layout.to_caller(tuple(backend.xp.asarray(x, copy=True) for x in theta), backend),
        )

    def result(self, status: Status, setup: float, recipe: Callable[[], Recipe]) -> Result:
        prepared, iterate = self.prepared, self.state.iterate
        status, verified = self._verified(status)
        last = dict(zip(_RECORD, self.rows[-1], strict=True))
        columns = dict(zip(_RECORD, np.asarray(self.rows, dtype=np.float64).T, strict=True))
        columns.pop("status")
        work = {k: int(last[k]) for k in ("values", "gradients", "lmos", "projections")}
        return Result(
            theta=prepared.layout.to_caller(iterate.theta, prepared.backend),
            value=last["value"],
            gap_A=last["gap_A"],
            gap_B=last["gap_B"],
            status=status,
            n_iter=len(self.rows) - 1,
            counts=Counts(**work, factorisations=work["values"]),
            trace=Trace(**columns, seconds=np.asarray(self.seconds)),
            verified=verified,
            algorithm=repr(self.algorithm),
            provenance=provenance(
                prepared.backend,
                prepared.theta[0],
                compressed=prepared.compressed,
                exchange=prepared.tally.counts,
            ),
            seconds=self.seconds[-1],
            setup_seconds=setup,
            _weights=lambda: coefficients(prepared, iterate.theta),
            _recipe=recipe,
        )

    def _verified(self, status: Status) -> tuple[Status, Verified]:
        prepared, theta = self.prepared, self.state.iterate.theta
        backend = prepared.backend
        deficient, finite, condition, dead, units, kinks = prepared.call(_diagnose, theta)
        kappa = backend.to_floats([condition])[0]
        if status is Status.NON_FINITE and bool(deficient) and bool(finite):
            status = Status.RANK_DEFICIENT
        verified = Verified(
            violation=float(prepared.region.violation(theta)),
            condition=kappa,
            units=int(units),
            dead_units=int(dead),
            kinks=int(kinks),
            **self._left(),
        )
        # a separable objective has a gradient there as well
        if status is Status.NO_DESCENT and verified.kinks and not prepared.problem.is_separable:
            status = Status.KINK
        if verified.dead_units > 0:
            warnings.warn(
                f"{verified.dead_units} of {verified.units} columns of M(theta) are exactly zero at the result. Their "
                "gradient is zero, so no method moves them again: start from other values, or cap the first steps",
                DeadUnitsWarning,
                stacklevel=4,
            )
        return status, verified

    def _left(self) -> dict[str, float]:
        """What an inexact lower level leaves open at the result."""
        error = self.state.iterate.lower
        if error == ():
            return {}
        residual, gradient = self.prepared.backend.to_floats([error.residual, error.gradient])
        return {"lower_residual": residual, "gradient_error": gradient}


def _diagnose(objective: Objective, theta: Leaves) -> tuple[Array, ...]:
    return objective.diagnose(theta)


def coefficients(prepared: Prepared, theta: Leaves) -> Iterator[Array]:
    """``w`` at theta, a block of columns at a time, as the caller's arrays.

    A compressed target stands for one that may not fit in memory: the caller's own is walked through again.
    """
    y = prepared.original.lower.y
    for block in _blocks(prepared, y):
        w = prepared.call(_solve, theta, block)
        yield prepared.layout.array(w[:, 0] if prepared.vector else w, prepared.backend)


def _blocks(prepared: Prepared, y: Any) -> Iterator[tuple[Array, ...]]:
    """Blocks of the caller's target, on the backend; empty where the level knows its own."""
    level = prepared.problem.lower
    if isinstance(y, ColumnChunks):
        yield from ((prepared.target(block),) for block in y)
    elif prepared.compressed:
        yield from ((prepared.target(block),) for block in columns(y, max(y.shape[0], 1024)))
    else:
        yield (level.y,) if trees.is_array(level.y) else ()


def _solve(objective: Objective, theta: Leaves, y: tuple[Array, ...]) -> Array:
    return objective.solve_lower(theta, *y)
