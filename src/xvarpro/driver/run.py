"""One solve: its state, its trace, its clock, and where it starts again."""

from __future__ import annotations

import math
import sys
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import add
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from xvarpro.algorithms.interface import Algorithm, Iterate
from xvarpro.backends.interface import linalg_errors
from xvarpro.core import trees
from xvarpro.core.checks import described, number
from xvarpro.core.namespace import copied
from xvarpro.core.status import Bar, Status
from xvarpro.core.struct import Array, Leaves, Tree
from xvarpro.driver.gradient_check import gradient, steps
from xvarpro.driver.iteration import ROUNDING, Program, Tracked, doubtful, noise, running
from xvarpro.driver.model_check import check_value
from xvarpro.driver.prepare import Prepared
from xvarpro.driver.restarts import kinked, restart
from xvarpro.driver.weights import weights
from xvarpro.errors import ProblemError, warn_caller
from xvarpro.sets.promises import Promises
from xvarpro.sets.region import event

if TYPE_CHECKING:
    from xvarpro.driver.checkpoint import Schedule
RECORD = (
    "value", "gap_A", "gap_B", "alpha_A", "alpha_B", "status", "values", "gradients", "lmos", "projections", "rows",
)  # fmt: skip
WORK = -5  # where the counts begin in a row of RECORD
Mark: TypeAlias = tuple[int, list[float]]  # how many numbers are kept, and the last row
BATCH = 0.2  # seconds that Ctrl-C waits for a compiled loop
RESTARTS = 10  # of a solve, from its best iterate or from a lower point next to it


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
    _w: Callable[[], Array]

    @property
    def theta(self) -> Tree:
        """The iterate, as the caller's arrays; moved when it is read."""
        return self._theta()

    @property
    def w(self) -> Array:
        """The eliminated variable at the iterate, as `Result.w`: the lower level is solved again when it is read."""
        return self._w()


class Record:
    """Rows ``(iteration, seconds, *RECORD)``: the first, those of every so many iterations, and the last.

    Parameters
    ----------
    table : array (n, 13)
        The rows so far, one or more.
    every : int
        Iterations between the rows that are kept from here on.
    """

    done: int  # number of iterations
    seconds: float  # time of the last iterate
    row: list[float]  # the last iterate's numbers, as `RECORD` names them

    def __init__(self, table: np.ndarray, every: int) -> None:
        self.every = every
        self._kept = array("d", table[:-1].tobytes())  # a tenth of the memory of lists of floats
        self.rewind((len(self._kept), table[-1].tolist()))

    def add(self, row: Sequence[float], seconds: float) -> None:
        """The row of the next iterate."""
        if self.done % self.every == 0:
            self._kept.extend((self.done, self.seconds, *self.row))
        self.done, self.seconds, self.row = self.done + 1, seconds, list(row)

    def mark(self) -> Mark:
        """What `rewind` and `table` take to return to this row."""
        return len(self._kept), [self.done, self.seconds, *self.row]

    def rewind(self, mark: Mark) -> None:
        """Forget the rows since a mark."""
        n, (done, self.seconds, *self.row) = mark
        self.done = int(done)
        del self._kept[n:]

    def table(self, mark: Mark | None = None) -> np.ndarray:
        """All rows, or those up to a mark, (n, 13)."""
        n, last = mark or self.mark()
        return np.append(np.array(self._kept[:n]), last).reshape(-1, len(last))


class Position(NamedTuple):
    """A place in a run that it can go on from, to the same bits."""

    state: Tracked
    record: Mark
    work: list[float]
    restarts: int
    restarted: float
    unseen: bool


def stops(answer: object) -> bool:
    """Whether a callback asks for the end. What is neither a truth value nor None was meant for something else."""
    if answer is None or isinstance(answer, bool | np.bool_):
        return bool(answer)
    if trees.is_array(answer) and not answer.ndim and "bool" in str(answer.dtype):
        return bool(answer)
    raise ProblemError(
        f"callback must return True to stop the solve, and None or False to go on; got {described(answer)}"
    )


def _record(it: Iterate) -> tuple[Array, ...]:
    return (it.value, it.gap_A + it.slack, it.gap_B, it.alpha_A, it.alpha_B, it.status, *it.counts)


class Run:
    """One solve of a prepared problem.

    Attributes
    ----------
    state : Tracked
        Of the algorithm, once the solve is started, and the best iterate so far.
    record : Record
        Of the iterates, the start included.
    position : Position
        The last place that it can go on from: after an iteration, before its end was looked at.
    """

    def __init__(self, prepared: Prepared, algorithm: Algorithm, tol: float) -> None:
        self.prepared, self.algorithm, self.tol = prepared, algorithm, float(tol)
        backend = prepared.backend
        program, rest = Program.of(prepared, algorithm)
        key = program.skeleton, prepared.layout.treedef, prepared.structure
        self.operands = (backend.asarray(np.asarray(tol, prepared.dtype), device=prepared.device), *rest)
        self._start, self._end, self._recheck, self._assess, self._probe = (
            prepared.synchronised(backend.call(make, (make.__name__, *key), once=True))
            for make in (program.start, program.end, program.recheck, program.assess, program.probe)
        )
        loop = backend.loop(program.step, lambda state: _record(state.iterate), running, ("step", *key))
        self._loop, self._shared = prepared.synchronised(loop), prepared.synchronised(np.asarray)

    def start(self, trace_every: int = 1) -> None:
        """The first state; a compiled loop compiles here, on no iterations, so that the clock does not count it."""
        state, floor = self._start(self.operands, self.prepared.theta)
        check_value(state.iterate.value, self.prepared.dtype)
        self.operands = (self.operands[0], floor, *self.operands[1:])
        self.state: Tracked = self._loop(self.operands, state, 0)[0]
        f = self.prepared.assemble(self.prepared.problem)
        # rows of a value, and of one on a mini-batch: a pass over chunks has counted them
        self._sizes = f.rows, self.algorithm.rows_of_batch(f)
        self.work = [0.0] * len(RECORD[WORK:])
        self.restarts, self.restarted = 0, math.inf  # how many, and the objective at the last one from a best iterate
        self.cut = False  # whether the solve had to end although a lower point is known
        self.unseen = False  # whether the last iterate is a start that no callback has seen
        self.stopped = False  # whether a callback has asked for the end
        self.record = Record(np.array([[0.0, 0.0, *self.row()]]), trace_every)
        self._earlier = 0.0  # seconds before this call of solve
        self._pace = 0.0  # seconds per iteration, in the last call of the loop
        self._mark()

    def resume(
        self,
        state: Tracked,
        floor: Array,
        table: np.ndarray,
        work: list[float],
        restarts: int,
        restarted: float,
        unseen: bool,
    ) -> None:
        """Go on from where another run of the same solve was, after `start`."""
        self.operands = (self.operands[0], floor, *self.operands[2:])
        self.state = self._loop(self.operands, state, 0)[0]  # compiles here if its types are others
        self.record = Record(table, self.record.every)
        self.work, self.restarts, self.restarted, self.unseen = work, restarts, restarted, unseen
        self._earlier = self.record.seconds
        self._mark()

    def clock(self) -> float:
        """Seconds, of one clock where several processes take the same steps."""
        return self.prepared.agree(time.perf_counter())

    def _mark(self) -> None:
        # one assignment: an interruption finds this or the position before
        self.position = Position(self.state, self.record.mark(), self.work, self.restarts, self.restarted, self.unseen)

    def rewind(self) -> None:
        """Return to the last position, from wherever an interruption came."""
        self.state, mark, self.work, self.restarts, self.restarted, self.unseen = self.position
        self.record.rewind(mark)
        self.cut = False

    @property
    def scale(self) -> float:
        """What rounding of the objective is relative to, once the solve is started."""
        return self.floor / self.prepared.y_unit / self.prepared.y_unit

    @property
    def floor(self) -> float:
        """As `scale`, in the units of the solve."""
        return self.prepared.backend.to_floats([self.operands[1]])[0]

    @property
    def status(self) -> Status:
        """Of the last iterate."""
        return Status.of(self.record.row[RECORD.index("status")])

    def iterate(
        self,
        max_iter: int,
        time_limit: float | None,
        callback: Callable[[IterationInfo], bool | None] | None,
        bar: Bar,
        schedule: Schedule | None,
    ) -> Status:
        """Iterate until the status, a limit or the callback ends it."""
        began = self.clock() - self.record.seconds
        limit = math.inf if time_limit is None else self._earlier + number(time_limit)
        self._deadline = began + limit
        if self.unseen:
            self.unseen = False
            self._mark()
            self._tell(callback)
        while self.status is Status.RUNNING:
            if self.stopped:
                return Status.STOPPED
            done, elapsed = self.record.done, self.record.seconds
            if done >= max_iter:
                return Status.MAX_ITER
            if elapsed >= limit:
                return Status.TIME_LIMIT
            batch = 1 if callback is not None else self._batch(elapsed, done, limit)
            try:
                batch = min(batch, max_iter - done, sys.maxsize if schedule is None else schedule.left(done))
                state, rows = self._loop(self.operands, self.state, batch)
            except linalg_errors():
                return Status.NON_FINITE
            rows = self._shared(rows).tolist()
            now = self.clock() - began
            self._pace = (now - elapsed) / len(rows)
            for i, row in enumerate(rows):
                self.record.add(self._totalled(row), elapsed + self._pace * (i + 1))
            self.state = state
            self._mark()
            value, gap_A, gap_B = self.record.row[:3]
            bar.update(len(rows), value, gap_A + gap_B)
            if schedule is not None:
                schedule.after(self.record.done)
            self._tell(callback)
        return self.status

    def _tell(self, callback: Callable[[IterationInfo], bool | None] | None) -> None:
        with self.prepared.together():
            stopped = callback is not None and stops(callback(self._iteration_info()))
        self.stopped = bool(self.prepared.agree(stopped))

    def recheck(self) -> None:
        """Look at the certificate of the last iterate again, where it is in doubt."""
        prepared, exact = self.prepared, self.prepared.structure.exact
        stationary = exact and not any(self.record.row[1:3])  # no curvature changes what a gap of 0 promises
        if not stationary and doubtful(exact, prepared.region, self.algorithm, self.state):
            self.state = self._recheck(self.operands, self.state)
            self.record.row = self.row()

    def _promises_little(self) -> bool:
        """Whether a model of the objective promises less than the tolerance, though more than its own half digit."""
        it = self.state.iterate
        left, value = self.prepared.backend.to_floats([it.decrease, it.value])
        return left <= self.tol**2 * abs(value)

    def continues(self, status: Status, max_iter: int) -> bool:
        """Whether the iterations go on after an end: it was in doubt, or a lower point is known.

        In the latter case the method starts again there, which counts as an iteration.
        """
        began = self.clock()
        if not (status.success or status in (Status.NO_DESCENT, Status.STALLED)):
            return False
        if status is Status.CONVERGED:
            self.recheck()
        elif not self.modelled or (
            status is Status.NO_DESCENT
            and (self.prepared.region.constrained or kinked(self.prepared) or self._promises_little())
        ):
            self.state = self._assess(self.operands, self.state)
            self.record.row = self.row()
        if self.status is Status.RUNNING:
            return True  # to end at once where a callback has asked for it
        state = restart(self) if self.restarts < RESTARTS else None
        self.record.row = self.row()  # with the work of looking for it
        if state is None:
            return False
        if self.stopped or self.record.done >= max_iter:
            self.cut = True
            return False
        self.restarts += 1
        self.unseen = True
        self.work = self.record.row[WORK:]
        self.state = state
        self.record.add(self.row(), self.record.seconds + self.clock() - began)
        self._mark()
        return True

    @property
    def late(self) -> bool:
        """Whether the time limit has passed."""
        return self.clock() >= self._deadline

    def slope(self, theta: Leaves, step: Leaves) -> np.ndarray:
        """The gradient in the face of theta after a step in that face, (p,)."""
        self.worked((1, 1, 0, 0, 0))
        return self.prepared.backend.to_numpy(self._probe(self.operands, theta, step)).astype(np.float64)

    def end_with(self, status: Status) -> None:
        """Give the last iterate a status."""
        state, it = self.state.state, self.state.iterate
        code = self.prepared.backend.asarray(np.asarray(status.code, np.int32), device=self.prepared.device)
        self.state = self.state._replace(state=state._replace(iterate=it._replace(status=code)))

    def worked(self, counts: Sequence[float]) -> None:
        """Add to the work that the state does not count."""
        self.work = list(map(add, self.work, self._rows(counts)))

    def _rows(self, counts: Sequence[float]) -> list[float]:
        """Counts with rows in the place of mini-batches: in numbers of the host, which float32 would round."""
        *work, batches = counts
        of_all, of_batch = self._sizes
        return [*work, round((work[0] - batches) * of_all + batches * of_batch)]

    def started(self, theta: Leaves) -> Tracked:
        """The first state at a point."""
        tol, _, *rest = self.operands
        return self._start((tol, *rest), theta)[0]

    def best(self) -> tuple[Iterate, float, float]:
        """The iterate to return, its value, and what rounding is there: the last one unless an earlier one is lower."""
        last, best = self.state.iterate, self.state.best or self.state.iterate
        floats = self.prepared.backend.to_floats([last.value, best.value, self.operands[1]])
        value, lowest, floor = np.asarray(floats, dtype=self.prepared.dtype)
        lowest = value if value < lowest else lowest
        margin = noise(np.asarray(lowest), np.asarray(floor))
        # written so that an objective that is not finite is worse; a certificate counts more than rounding
        if not value <= lowest + (margin if self.status.success else 0):
            return best, float(lowest), float(margin)
        return last, float(value), float(margin)

    @property
    def modelled(self) -> bool:
        """Whether the algorithm carries a model of the objective, which certifies its iterates."""
        return not isinstance(self.state.iterate.decrease, tuple)

    def certify(self) -> None:
        """Certify the last iterate where the algorithm does not certify every one, in place of the last row."""
        if not self.algorithm.certifies_every_iteration:
            self.state = self._end(self.operands, self.state)
            self.record.row = self.row()

    def finish(self, status: Status) -> Status:
        """The status of the result, at the end of the iterations."""
        self.certify()
        status = status if self.status is Status.RUNNING else self.status
        self._check_sets(status)
        if status.success and self.record.done and (found := steps(self.prepared, self.state.iterate.theta)):
            warn_caller(found, UserWarning)
        # a certificate is of the last iterate
        if status.success and (self.cut or self.best()[0] is not self.state.iterate):
            limit = Status.STOPPED if self.stopped else Status.MAX_ITER
            return limit if self.cut else Status.STALLED
        return status

    def _check_sets(self, status: Status) -> None:
        """Raise where the end of a solve looks as if a method of a set were wrong, and it is.

        Iterates are mixtures of what `lmo` and `project` return, and so in the set. A gap below zero belongs to no
        minimum of ``<g, s>``. Where no step along a projection helps, and the gap promises much, the projection is
        looked at.
        """
        prepared, gap_A = self.prepared, self.record.row[1]
        theta = self.state.iterate.theta
        for i, C in prepared.region.constrained:
            if C.is_own:
                x = prepared.backend.to_numpy(theta[i])
                advice = "See lmo, center, project and violation"
                Promises(C, prepared.backend, theta[i]).is_member(x, "what a solve ends at", advice)
        eps = float(np.finfo(prepared.dtype).eps)
        below = gap_A < -ROUNDING * eps * self.scale
        stuck = self.algorithm.needs_projection and status in (Status.ROUNDING, Status.NO_DESCENT, Status.STALLED)
        if not (below or (stuck and gap_A > eps**0.5 * self.scale)):
            return
        grad = prepared.call(gradient, theta, once=True)
        for i, C in prepared.region.constrained:
            if not C.bounded:
                continue
            promises = Promises(C, prepared.backend, theta[i])
            x, g = (prepared.backend.to_numpy(event(C, leaf[i])).astype(np.float64) for leaf in (theta, grad))
            promises.is_minimiser(g, [x])
            if stuck and C.has_projection and g.any():
                length = np.linalg.norm(promises.lmo(g)[0] - x)
                promises.is_nearest(x - length / np.linalg.norm(g) * g, [x])

    def row(self, iterate: Iterate | None = None) -> list[float]:
        return self._totalled(self.prepared.backend.to_floats(_record(iterate or self.state.iterate)))

    def _totalled(self, row: list[float]) -> list[float]:
        """A row of `RECORD` with value and gaps in the caller's units, and all work that has been done."""
        unit = self.prepared.y_unit
        value, gap_A, gap_B, *rest = row
        counts = map(add, self._rows(rest[WORK:]), self.work)
        return [value / unit / unit, gap_A / unit / unit, gap_B / unit / unit, *rest[:WORK], *counts]

    def _batch(self, elapsed: float, done: int, limit: float) -> int:
        """Steps for the next call of a compiled loop: a fifth of a second's worth, or what the time limit leaves."""
        if not self.prepared.backend.compiled:
            return 1
        per_step = max(elapsed / done, self._pace, 1e-9) if done else math.inf  # later ones may take longer
        return max(1, int(min(BATCH, limit - elapsed) / per_step))

    def _iteration_info(self) -> IterationInfo:
        theta, prepared = self.state.iterate.theta, self.prepared

        def moved() -> Tree:  # a copy: what a callback does to it must not reach the solve
            return prepared.to_caller(tuple(map(copied, theta)))

        value, gap_A, gap_B, alpha_A, alpha_B = self.record.row[:5]
        w = partial(weights, prepared, theta)
        return IterationInfo(self.record.done, value, gap_A, gap_B, alpha_A, alpha_B, self.record.seconds, moved, w)
