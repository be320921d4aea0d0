"""One solve: its state, its trace, its clock, and where it starts again."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from xvarpro.algorithms.interface import Algorithm, Iterate
from xvarpro.backends import linalg_errors
from xvarpro.core import trees
from xvarpro.core.checks import described, number
from xvarpro.core.progress import Bar
from xvarpro.core.status import Status
from xvarpro.core.struct import Array, Leaves, Tree
from xvarpro.driver.iteration import ROUNDING, Program, Tracked, doubtful, negligible_gap, noise, running
from xvarpro.driver.model_check import check_value
from xvarpro.driver.prepare import Prepared
from xvarpro.driver.record import RECORD, WORK, Mark, Record, Schedule
from xvarpro.driver.saddle import curvature
from xvarpro.driver.weights import weights
from xvarpro.errors import ProblemError
from xvarpro.objective.decrease import MANY
from xvarpro.objective.interface import Objective
from xvarpro.sets.promises import Promises, is_own
from xvarpro.sets.region import event
from xvarpro.sets.regions import Regions

BATCH = 0.2  # seconds that Ctrl-C waits for a compiled loop
RESTARTS = 10  # of a solve, from its best iterate or from a lower point next to it
LOOKS = 8  # other values of an entry of theta that a closed weight has left, in equal steps and in equal ratios
AROUND = np.array([0.1, 0.03, 0.01])  # of the size of a single theta: where another of many minima may be


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


def _gradient(f: Objective, theta: Leaves) -> Leaves:
    grad: Leaves = f.value_and_gradient(theta)[1]
    return grad


def _condition(f: Objective, theta: Leaves) -> Array:
    return f.diagnose(theta).condition


def _value(f: Objective, theta: Leaves) -> Array:
    value: Array = f.point(theta).value
    return value


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
        self._loop = prepared.synchronised(loop)

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
        return self.prepared.backend.to_floats([self.operands[1]])[0] / self.prepared.y_unit / self.prepared.y_unit

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
        schedule: Schedule,
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
                state, rows = self._loop(self.operands, self.state, min(batch, max_iter - done, schedule.left(done)))
            except linalg_errors():
                return Status.NON_FINITE
            rows = self.prepared.synchronised(np.asarray)(rows).tolist()
            now = self.clock() - began
            self._pace = (now - elapsed) / len(rows)
            for i, row in enumerate(rows):
                self.record.add(self._totalled(row), elapsed + self._pace * (i + 1))
            self.state = state
            self._mark()
            value, gap_A, gap_B = self.record.row[:3]
            bar.update(len(rows), value, gap_A + gap_B)
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
            self.record.replace(self.row())

    def continues(self, status: Status, max_iter: int) -> bool:
        """Whether the iterations go on after an end: it was in doubt, or a lower point is known.

        In the latter case the method starts again there, which counts as an iteration.
        """
        began = self.clock()
        if not (status.success or status in (Status.NO_DESCENT, Status.STALLED)):
            return False
        if status is Status.CONVERGED:
            self.recheck()
        elif not self.modelled or (status is Status.NO_DESCENT and (self.prepared.region.constrained or self._kinked)):
            self.state = self._assess(self.operands, self.state)
            self.record.replace(self.row())
        if self.status is Status.RUNNING:
            return True  # to end at once where a callback has asked for it
        state = self._restart() if self.restarts < RESTARTS else None
        self.record.replace(self.row())  # with the work of looking for it
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

    def _restart(self) -> Tracked | None:
        """The first state at a lower point than the last iterate, or at the same where the method may be worn out."""
        found, value, margin = self.best()
        last = found is self.state.iterate
        worn = not (self.status.success and last) and not self.modelled
        if worn and value < self.restarted - margin:
            self.restarted = value
            return self._started(found.theta)
        if not last:
            return None
        state = self._opened(found.theta, value, margin) or self._below(found.theta, value, margin)
        return state or self._again(found)

    def _again(self, found: Iterate) -> Tracked | None:
        """The start with steps that stay nearer to it, once, where columns of M have become dependent on the way.

        Two terms that have become one, with weights of opposite signs that grow, are left by no step.
        """
        prepared = self.prepared
        if self.status is not Status.NO_DESCENT or self.state.best or not prepared.structure.exact:
            return None
        condition = prepared.backend.to_floats([prepared.call(_condition, found.theta, once=True)])[0]
        if not condition > float(np.finfo(prepared.dtype).eps) ** -0.3:
            return None
        state = self.algorithm.nearer(self._started(prepared.theta).state)
        return None if state is None else Tracked(state, found)

    @property
    def _has_faces(self) -> bool:
        W = self.prepared.problem.lower.W
        return not (W is None or W.linear)

    def _opened(self, theta: Leaves, value: float, rounding: float) -> Tracked | None:
        """The first state where another value of an entry of theta that a closed weight has left behind is lower.

        Such an entry does nothing, or has gone to a bound.
        """
        prepared, backend = self.prepared, self.prepared.backend
        B = self.algorithm.gauss_newton(self.state.state)
        if B is None or not self._has_faces:
            return None
        points: list[Leaves] = []
        for j, bend in enumerate(np.diagonal(backend.to_numpy(B))):
            points += self._along(theta, j, idle=bend == 0)
        if not points or self.clock() >= self._deadline:
            return None
        values = np.asarray(backend.to_floats([prepared.call(_value, point) for point in points]))
        self._worked((len(points), 0, 0, 0, 0))
        lowest = int(np.argmin(np.where(np.isnan(values), np.inf, values)))
        lower = values[lowest] < value - max(rounding, self.tol * abs(value))
        return self._started(points[lowest]) if lower else None

    def _along(self, theta: Leaves, j: int, idle: bool) -> list[Leaves]:
        """Points with other values of one entry of theta over its set, where it is idle or at a bound.

        In equal steps and in equal ratios.
        """
        prepared = self.prepared
        x = np.asarray(prepared.backend.to_numpy(trees.raveled(theta)), dtype=np.float64)
        size = np.abs(x[j]) or 1.0

        def moved(step: float) -> Leaves:
            d = trees.unraveled(np.where(np.arange(x.size) == j, step, 0.0), theta)
            leaves = (prepared.backend.asarray(y, dtype=prepared.dtype, device=prepared.device) for y in d)
            return prepared.region.moved(tuple(leaves), theta)

        def reached(step: float) -> float:
            return float(np.asarray(prepared.backend.to_numpy(trees.raveled(moved(step))))[j])

        low, high = reached(-1e3 * size), reached(1e3 * size)
        if not low < high or not (idle or x[j] in (low, high)):
            return []
        ends = np.linspace(low, high, LOOKS + 2)[1:-1].tolist()
        if low * high >= 0:
            near, far = sorted((abs(low), abs(high)))
            ratios = np.geomspace(max(near, 1e-3 * far), far, LOOKS + 2)[1:-1]
            ends += (ratios if high > 0 else -ratios).tolist()
        return [moved(end - x[j]) for end in ends]

    @property
    def _kinked(self) -> bool:
        """Whether the objective is a function on a line with kinks, hence with many small minima."""
        return self.prepared.problem.kinked and sum(math.prod(x.shape) for x in self.prepared.theta) == 1

    def _below(self, theta: Leaves, value: float, rounding: float) -> Tracked | None:
        """The first state at a point next to a saddle, lower than it by more than the tolerance; None at a minimum.

        On a line with kinks, at the lowest of some points around. None also where the time limit ends the search.
        A minimum has the status of one then.
        """
        prepared, backend = self.prepared, self.prepared.backend
        few = sum(math.prod(x.shape) for x in theta) <= MANY
        if not few or not prepared.structure.exact or prepared.problem.in_rows:
            return None
        kinked = self._kinked
        if self.status.success and not kinked and self._well_determined():
            return None

        def leaves(step: np.ndarray) -> Leaves:
            parts = trees.unraveled(step, theta)
            return tuple(backend.asarray(x, dtype=prepared.dtype, device=prepared.device) for x in parts)

        def probe(step: np.ndarray) -> np.ndarray:
            if self.clock() >= self._deadline:
                raise TimeoutError
            self._worked((1, 1, 0, 0, 0))
            return backend.to_numpy(self._probe(self.operands, theta, leaves(step))).astype(np.float64)

        # an entry that goes to 0 is measured by where it began
        pairs = zip(theta, prepared.theta, strict=True)
        sizes = [np.maximum(*(np.abs(backend.to_numpy(x)) for x in pair)) for pair in pairs]
        host: Leaves = tuple(x.astype(np.float64) for x in sizes)
        size = np.asarray(trees.raveled(host))
        size = np.where(size > 0, size, size.mean() or 1.0)
        scale = np.asarray(Regions(prepared.region, host).evened(size[None, :]))[0, :]
        eps = float(np.finfo(prepared.dtype).eps)
        if kinked:
            steps = [sign * share * scale for share in AROUND for sign in (1, -1)]
            points = [prepared.region.moved(leaves(step), theta) for step in steps]
            values = backend.to_floats([prepared.call(_value, point) for point in points])
            self._worked((len(steps), 0, 0, 0, 0))
            lowest = int(np.argmin(np.where(np.isnan(values), np.inf, values)))
            steps, slope, left = steps[lowest : lowest + 1], 0.0, math.inf
            if not values[lowest] < value - max(rounding, self.tol * abs(value)):
                return None
        else:
            try:
                steps, slope, left = curvature(probe, scale, eps)
            except TimeoutError:
                return None
            if steps and self._has_faces:  # where weights meet their bounds a Hessian is one-sided: entry by entry too
                steps += [0.25 * sign * row for row in np.diag(scale) for sign in (1, -1)]
        least = self.tol * self.tol * abs(value)  # tol**2 of a large float raises
        if not self.status.success and not slope <= max(self.tol, eps**0.5) * abs(value):
            return None  # descent has not come to its end: what its gradients say is in doubt
        if not self.status.success and left <= max(rounding, least) and self._is_certified():
            # where the method's own matrix is singular, what it promises is rounding, divided by nearly 0
            self._end_with(Status.CONVERGED if left <= least else Status.ROUNDING)
        for step in steps:
            if self.clock() >= self._deadline:
                return None
            state = self._started(prepared.region.moved(leaves(step), theta))
            if backend.to_floats([state.iterate.value])[0] < value - max(rounding, self.tol * abs(value)):
                return state
            self._worked(backend.to_floats(state.iterate.counts))
        return None

    def _is_certified(self) -> bool:
        """Whether the gap of the sets at the last iterate is below the tolerance."""
        it = self.state.iterate
        floats = self.prepared.backend.to_floats([it.gap_A + it.slack, it.value, self.operands[1]])
        gap, value, floor = (np.asarray(x, dtype=self.prepared.dtype) for x in floats)
        return bool(gap <= negligible_gap(value, np.asarray(self.tol, dtype=self.prepared.dtype), floor))

    def _end_with(self, status: Status) -> None:
        state, it = self.state.state, self.state.iterate
        code = self.prepared.backend.asarray(np.asarray(status.code, np.int32), device=self.prepared.device)
        self.state = self.state._replace(state=state._replace(iterate=it._replace(status=code)))

    def _worked(self, counts: Sequence[float]) -> None:
        """Add to the work that the state does not count."""
        self.work = [a + b for a, b in zip(self.work, self._rows(counts), strict=True)]

    def _rows(self, counts: Sequence[float]) -> list[float]:
        """Counts with rows in the place of mini-batches: in numbers of the host, which float32 would round."""
        *work, batches = counts
        of_all, of_batch = self._sizes
        return [*work, round((work[0] - batches) * of_all + batches * of_batch)]

    def _well_determined(self) -> bool:
        """Whether the method's own matrix shows that the objective bends up in every direction.

        Where columns of the Jacobian have length 1, the terms that a Gauss-Newton matrix leaves out are of the order of
        the residual, relative to the target.
        """
        B = self.algorithm.gauss_newton(self.state.state)
        if B is None or self.record.done == 0:
            return False
        B = self.prepared.backend.to_numpy(B).astype(np.float64)
        size = np.sqrt(np.diagonal(B))
        value, floor = self.prepared.backend.to_floats([self.state.iterate.value, self.operands[1]])
        left_out = max(math.sqrt(abs(value) / floor), float(np.finfo(self.prepared.dtype).eps) ** 0.5) if floor else 0.0
        return bool(size.all()) and bool(np.linalg.eigvalsh(B / np.outer(size, size))[0] > left_out)

    def _started(self, theta: Leaves) -> Tracked:
        tol, _, *rest = self.operands
        return self._start((tol, *rest), theta)[0]

    def best(self) -> tuple[Iterate, float, float]:
        """The iterate to return, its value, and what rounding is there: the last one unless an earlier one is lower."""
        last, best = self.state.iterate, self.state.best or self.state.iterate
        floats = self.prepared.backend.to_floats([last.value, best.value, self.operands[1]])
        value, lowest, floor = np.asarray(floats, dtype=self.prepared.dtype)
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
            self.record.replace(self.row())

    def finish(self, status: Status) -> Status:
        """The status of the result, at the end of the iterations."""
        self.certify()
        status = status if self.status is Status.RUNNING else self.status
        self._check_sets(status)
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
            if is_own(C):
                x = prepared.backend.to_numpy(theta[i])
                advice = "See lmo, center, project and violation"
                Promises(C, prepared.backend, theta[i]).is_member(x, "what a solve ends at", advice)
        eps = float(np.finfo(prepared.dtype).eps)
        below = gap_A < -ROUNDING * eps * self.scale
        stuck = self.algorithm.needs_projection and status in (Status.ROUNDING, Status.NO_DESCENT, Status.STALLED)
        if not (below or (stuck and gap_A > eps**0.5 * self.scale)):
            return
        grad = prepared.call(_gradient, theta, once=True)
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
        counts = [n + before for n, before in zip(self._rows(row[WORK:]), self.work, strict=True)]
        return [x / unit / unit for x in row[:3]] + row[3:WORK] + counts

    def _batch(self, elapsed: float, done: int, limit: float) -> int:
        """Steps for the next call of a compiled loop: a fifth of a second's worth, or what the time limit leaves."""
        if not self.prepared.backend.compiled:
            return 1
        per_step = max(elapsed / done, self._pace, 1e-9) if done else math.inf  # later ones may take longer
        return max(1, int(min(BATCH, limit - elapsed) / per_step))

    def _iteration_info(self) -> IterationInfo:
        theta, prepared = self.state.iterate.theta, self.prepared

        def moved() -> Tree:  # a copy: what a callback does to it must not reach the solve
            return prepared.to_caller(tuple(prepared.backend.xp.asarray(x, copy=True) for x in theta))

        value, gap_A, gap_B, alpha_A, alpha_B = self.record.row[:5]
        w = partial(weights, prepared, theta)
        return IterationInfo(self.record.done, value, gap_A, gap_B, alpha_A, alpha_B, self.record.seconds, moved, w)
