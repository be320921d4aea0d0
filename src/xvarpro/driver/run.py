"""One solve: its state, its trace, its clock, and what is verified at the end."""

from __future__ import annotations

import math
import time
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
from xvarpro.driver.iteration import Program, State, running
from xvarpro.driver.prepare import Prepared, violation
from xvarpro.errors import warn_caller
from xvarpro.objective.interface import LowerError, LowerReport, Objective
from xvarpro.problem.column_chunks import ColumnChunks, columns
from xvarpro.results.provenance import provenance
from xvarpro.results.recipe import Recipe
from xvarpro.results.result import Counts, Result, Verified
from xvarpro.results.trace import Trace

_RECORD = ("value", "gap_A", "gap_B", "alpha_A", "alpha_B", "status", "values", "gradients", "lmos", "projections")


class DeadUnitsWarning(UserWarning):
    """Columns of the design are exactly zero at the result: they have zero gradient and never come back."""


@dataclass(frozen=True)
class IterationInfo:
    """What a callback receives after an iteration.

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
        """The iterate, as the caller's arrays; moved when it is read."""
        return self._theta()


def _record(state: State) -> tuple[Array, ...]:
    it = state.iterate
    return (it.value, it.gap_A + it.slack, it.gap_B, it.alpha_A, it.alpha_B, it.status, *it.counts)


class Run:
    """One solve of a prepared problem.

    Attributes
    ----------
    state : State
        Of the algorithm, once the solve is started.
    rows : list of list of float
        One row of `_RECORD` per iterate, the start included.
    seconds : list of float
        Time of each, since the iterations began.
    """

    def __init__(self, prepared: Prepared, algorithm: Algorithm, tol: float) -> None:
        self.prepared, self.algorithm, self.tol = prepared, algorithm, float(tol)
        backend, treedef = prepared.backend, prepared.layout.treedef
        program, rest = Program.of(prepared, algorithm)
        self.operands = (backend.xp.full_like(trees.corner(prepared.theta[0]), tol), *rest)
        self._start = backend.call(program.start, ("start", program.skeleton, treedef))
        self._end = backend.call(program.end, ("end", program.skeleton, treedef))
        self._recheck = backend.call(program.recheck, ("recheck", program.skeleton, treedef))
        self._loop = backend.loop(program.step, _record, running, ("step", program.skeleton, treedef))

    def start(self) -> None:
        """The first state; a compiled loop compiles here, on no iterations, so that the clock does not count it."""
        state, floor = self._start(self.operands, self.prepared.theta)
        self.operands = (self.operands[0], floor, *self.operands[1:])
        self.state: State = self._loop(self.operands, state, 0)[0]
        self.rows = [self._row()]
        self.seconds = [0.0]

    @property
    def scale(self) -> float:
        """What rounding of the objective is relative to, once the solve is started."""
        return self.prepared.backend.to_floats([self.operands[1]])[0] / self.prepared.unit**2

    @property
    def status(self) -> Status:
        """Of the last iterate."""
        return Status.of(self.rows[-1][_RECORD.index("status")])

    def iterate(
        self, max_iter: int, time_limit: float | None, callback: Callable[[IterationInfo], bool | None] | None, bar: Bar
    ) -> Status:
        """Iterate until the status, a limit or the callback ends it."""
        began = time.perf_counter() - self.seconds[-1]
        limit = math.inf if time_limit is None else time_limit
        while self.status is Status.RUNNING:
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
            self.rows += [self._in_units(row) for row in rows]
            self.seconds += [elapsed + (now - elapsed) * (i + 1) / len(rows) for i in range(len(rows))]
            value, gap_A, gap_B = self.rows[-1][:3]
            bar.update(len(rows), value, gap_A + gap_B)
            if callback is not None and callback(self._iteration_info()):
                return Status.STOPPED if self.status is Status.RUNNING else self.status
        return self.status

    def continues(self) -> bool:
        """Look at the certificate of the last iterate again where it is in doubt: whether the iterations go on."""
        prepared = self.prepared
        if prepared.structure.exact and (self.modelled or not prepared.region.unbounded):
            return False
        self.state = self._recheck(self.operands, self.state)
        self.rows[-1] = self._row()
        return self.status is Status.RUNNING

    @property
    def modelled(self) -> bool:
        """Whether the algorithm carries a model of the objective, which certifies its iterates."""
        return not isinstance(self.state.iterate.decrease, tuple)

    def finish(self, status: Status) -> Status:
        """Certify the last iterate where the algorithm does not certify every one, in place of the last row."""
        if self.algorithm.certifies_every_iteration:
            return status
        self.state = self._end(self.operands, self.state)
        self.rows[-1] = self._row()
        return status if self.status is Status.RUNNING else self.status

    def result(self, status: Status, setup: float, recipe: Callable[[], Recipe]) -> Result:
        """Verify the last iterate and return it to the caller."""
        prepared, theta = self.prepared, self.state.iterate.theta
        status, verified = self._verified(status)
        table = dict(zip(_RECORD, np.asarray(self.rows, dtype=np.float64).T, strict=True))
        table.pop("status")
        last = {name: column[-1].item() for name, column in table.items()}
        work = {name: int(last[name]) for name in ("values", "gradients", "lmos", "projections")}
        return Result(
            theta=prepared.layout.to_caller(theta, prepared.backend),
            value=last["value"],
            gap_A=last["gap_A"],
            gap_B=last["gap_B"],
            status=status,
            n_iter=len(self.rows) - 1,
            counts=Counts(**work, factorisations=work["values"]),
            trace=Trace(**table, seconds=np.asarray(self.seconds)),
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
            _weights=lambda: coefficients(prepared, theta),
            _recipe=recipe,
        )

    def _row(self) -> list[float]:
        return self._in_units(self.prepared.backend.to_floats(_record(self.state)))

    def _in_units(self, row: list[float]) -> list[float]:
        """A row of `_RECORD` with value and gaps in the caller's units."""
        unit = self.prepared.unit
        return row if unit == 1.0 else [*(x / unit / unit for x in row[:3]), *row[3:]]

    def _batch(self, elapsed: float, done: int, limit: float) -> int:
        """Steps for the next call of a compiled loop: half a second's worth, or what the time limit leaves."""
        if not self.prepared.backend.compiled:
            return 1
        per_step = max(elapsed / done, 1e-9) if done else math.inf
        return max(1, int(min(0.5, limit - elapsed) / per_step))

    def _iteration_info(self) -> IterationInfo:
        theta, layout, backend = self.state.iterate.theta, self.prepared.layout, self.prepared.backend

        def moved() -> Tree:  # a copy: what a callback does to it must not reach the solve
            return layout.to_caller(tuple(backend.xp.asarray(x, copy=True) for x in theta), backend)

        value, gap_A, gap_B, alpha_A, alpha_B = self.rows[-1][:5]
        return IterationInfo(len(self.rows) - 1, value, gap_A, gap_B, alpha_A, alpha_B, self.seconds[-1], moved)

    def _verified(self, status: Status) -> tuple[Status, Verified]:
        prepared, iterate = self.prepared, self.state.iterate
        report = prepared.call(_diagnose, iterate.theta)
        if status is Status.NON_FINITE and bool(report.deficient) and bool(report.finite):
            status = Status.RANK_DEFICIENT
        # a separable objective has a gradient at a kink as well
        if status is Status.NO_DESCENT and int(report.kinks) and not prepared.problem.is_separable:
            status = Status.KINK
        dead, units = int(report.zero_columns), int(report.columns)
        if dead:
            warn_caller(
                f"{dead} of {units} columns of M(theta) are exactly zero at the result. Their gradient is zero, so no "
                "method moves them again: start from other values, or cap the first steps",
                DeadUnitsWarning,
            )
        left = {}
        if isinstance(iterate.lower, LowerError):
            floats = prepared.backend.to_floats([iterate.lower.residual, iterate.lower.gradient])
            left = dict(zip(("lower_residual", "gradient_error"), floats, strict=True))
        condition = prepared.backend.to_floats([report.condition])[0]
        outside = float(violation(prepared.compiler, prepared.region, iterate.theta))
        return status, Verified(outside, condition, units, dead, int(report.kinks), **left)


def _diagnose(objective: Objective, theta: Leaves) -> LowerReport:
    return objective.diagnose(theta)


def coefficients(prepared: Prepared, theta: Leaves) -> Iterator[Array]:
    """``w`` at theta as the caller's arrays, a block of columns (n, k_i) at a time, or (n,) for a vector target.

    A compressed target replaces one that may not fit in memory, so that this is another pass over the caller's.
    """
    y = prepared.original.lower.y
    for block in _blocks(prepared, y):
        w = prepared.call(_solve_lower, theta, block)
        w = w if prepared.unit == 1.0 else w / prepared.unit
        yield prepared.layout.array(w[:, 0] if prepared.vector else w, prepared.backend)


def _blocks(prepared: Prepared, y: Any) -> Iterator[tuple[Array, ...]]:
    """Blocks of the caller's target, on the backend; () where the objective has the target itself."""
    level = prepared.problem.lower
    if isinstance(y, ColumnChunks):
        yield from ((prepared.target(block),) for block in y)
    elif prepared.compressed:
        yield from ((prepared.target(block),) for block in columns(y, max(y.shape[0], 1024)))
    else:
        yield (level.y,) if trees.is_array(level.y) else ()


def _solve_lower(objective: Objective, theta: Leaves, y: tuple[Array, ...]) -> Array:
    return objective.solve_lower(theta, *y)
