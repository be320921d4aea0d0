"""The driver of a batch: iterate those that run, take out those that have ended, put all together again."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from xvarpro.backends import Backend
from xvarpro.batch import _small, methods
from xvarpro.batch.methods import Method, Point
from xvarpro.batch.objective import Batch
from xvarpro.batch.prepare import Prepared, prepare, restricted
from xvarpro.batch.region import Regions
from xvarpro.batch.result import ManyResult
from xvarpro.core import trees
from xvarpro.core.namespace import array_namespace, device
from xvarpro.core.progress import Bar
from xvarpro.core.status import Status
from xvarpro.core.struct import Array, Leaves, Tree
from xvarpro.core.trees import rounding
from xvarpro.errors import ProblemError
from xvarpro.problem.problem import Problem
from xvarpro.results.provenance import provenance

REJECTIONS = 60  # in a row, after which a problem has no descent
SMALLEST, COMPILED = 64, 1024  # problems that are not worth being made fewer, nor another compilation
SLICE = 20  # iterations between looks at what has ended


class State(NamedTuple):
    """A batch on its way; every array but `n` has an entry per problem."""

    point: Point
    floor: Array  # size of what the objective is a difference of
    status: Array
    n_iter: Array
    rejected: Array  # trials in a row
    n: Array  # iterations left in this slice, 0-d


def solve_many(
    problem: Problem,
    theta0: Tree,
    *,
    over: Tree = None,
    method: Method | None = None,
    tol: float = 1e-6,
    max_iter: int = 200,
    backend: str | Backend | None = None,
    device: Any = None,
    dtype: str | None = None,
    progress: bool | None = None,
) -> ManyResult:
    """Solve thousands of independent problems together: pixels, voxels, spectra, bootstrap samples.

    The problem is stated once, for the whole batch: functions are given leaves (b, ...) of theta, and return designs
    (b, m, n); targets are (b, m), or (b, m, k) for k right-hand sides. ``M[i]`` may depend on ``theta[i]`` alone, and
    on the i-th entry of what `Each` marks in `data`: functions are called with all problems or with those that still
    run. The first problems are compared with themselves beside others, and an error raised where they differ.

    Parameters
    ----------
    problem : Problem
        From `separable` or `bilevel`, in batch form. ``lam`` is a number or an array (b,); ``Omega`` is shared; ``R``
        returns (b,).
    theta0 : array or pytree of arrays
        Feasible starts, leaves (b, ...), float32 or float64.
    over : Set, Free or a tree of them, optional
        Sets for the leaves of one problem; each problem has its own point in them. What is not named is free.
    method : Method, optional
        `many.LevenbergMarquardt`, `many.SpectralGradient` or `many.ShortStep`; None takes the first for up to 16
        entries of theta per problem, the second for more, the third where a set offers no projection.
    tol : float
        Per problem, both parts of the gap must fall below ``tol * |f|``.
    max_iter : int
        Iterations per problem at most, each of which is one trial point.
    backend, device, dtype : optional
        Where and in what precision to compute; theta0's by default.
    progress : bool, optional
        Progress bar; None shows one on a terminal only.

    Returns
    -------
    ManyResult
        With a status per problem. NaN or inf in the data of a problem makes that one NON_FINITE and no other.

    Raises
    ------
    ProblemError
        Shapes, sets or starts that do not fit together, an infeasible start, problems that depend on one another.
    ModelError
        A model function returned the wrong thing or left its array namespace.
    ExchangeError, UnknownBackendError, BackendNotInstalledError
        As for `solve`.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> def M(theta, data):
    ...     xp = xv.array_namespace(theta)
    ...     return xp.exp(-xp.expand_dims(theta, axis=1) * data["t"][None, :, None])
    >>> t, rates = np.linspace(0.0, 2.0, 64), np.array([[1.0, 5.0], [0.5, 3.0], [2.0, 9.0]])
    >>> y = np.exp(-rates[:, None, :] * t[:, None]) @ np.array([2.0, 1.0])
    >>> problem = xv.separable(M, y, data={"t": t})
    >>> fit = xv.solve_many(problem, np.tile([0.7, 4.0], (3, 1)), over=xv.sets.Box(0.0, 20.0))
    >>> np.round(fit.theta, 3)
    array([[1. , 5. ],
           [0.5, 3. ],
           [2. , 9. ]])
    >>> fit
    ManyResult(3 problems: 3 CONVERGED)
    """
    began = time.perf_counter()
    if not (isinstance(tol, int | float) and 0 <= tol < math.inf):
        raise ProblemError(f"tol must be a finite number >= 0, got {tol!r}")
    if not (isinstance(max_iter, int) and max_iter >= 0):
        raise ProblemError(f"max_iter must be a whole number >= 0, got {max_iter!r}")
    if not (method is None or isinstance(method, Method)):
        raise ProblemError(f"method must be one of xvarpro.many or None, got {method!r}")
    prepared = prepare(problem, theta0, over=over, backend=backend, device=device, dtype=dtype)
    region = prepared.regions.region
    chosen = method or methods.choose(prepared.regions)
    if chosen.needs_projection and region.without_projection:
        raise ProblemError(f"{type(chosen).__name__} projects, and {region.without_projection[0]!r} does not")
    hosted = [C for _, C in region.constrained if not C.compiles]
    if prepared.backend.compiled and hosted:
        raise ProblemError(f"{hosted[0]!r} calls a solver on the host, which {prepared.backend.name} cannot compile")
    with prepared.backend.scope(prepared.dtype):
        run = _Run(prepared, chosen, tol)
        setup = time.perf_counter() - began
        with Bar(prepared.theta.shape[0], progress, "problem") as bar:
            state = run.iterate(max_iter, bar)
        return run.result(state, time.perf_counter() - began - setup, setup)


class _Run:
    """One solve of a batch."""

    def __init__(self, prepared: Prepared, method: Method, tol: float) -> None:
        self.prepared, self.method = prepared, method
        self.backend = prepared.backend
        self.tol = self.backend.xp.asarray(tol, dtype=prepared.theta.dtype, device=device(prepared.theta))
        assemble, backend = prepared.assemble, self.backend
        _, skeleton = self._operands(prepared.problem)

        def filled(operands: Leaves) -> tuple[Batch, Regions, Method]:
            problem, regions, method = skeleton.fill(operands)
            return assemble(problem, regions), regions, method

        def start(operands: Leaves) -> Callable[[Array], State]:
            f, regions, method = filled(operands[1:])
            return lambda theta: _start(f, regions, method, operands[0], theta)

        def advance(operands: Leaves) -> Callable[[State, Array], State]:
            f, regions, method = filled(operands[1:])

            def going(carry: tuple[State, Array]) -> Array:
                state, least = carry
                xp = array_namespace(state.status)
                running = xp.sum(xp.astype(state.status == Status.RUNNING.code, xp.int32), dtype=xp.int32)
                return (state.n > 0) & (running > least)

            def step(carry: tuple[State, Array]) -> tuple[State, Array]:
                return _step(f, regions, method, operands[0], carry[0]), carry[1]

            return lambda state, least: backend.while_loop(going, step, (state, least))[0]

        def end(operands: Leaves) -> Callable[[Array], tuple[Array, Array]]:
            f, _, _ = filled(operands[1:])
            return lambda theta: _end(f, theta)

        key = (skeleton, prepared.layout.treedef)
        self._start, self._advance, self._end = (
            backend.call(make, (make.__name__, *key)) for make in (start, advance, end)
        )

    def _operands(self, problem: Problem) -> tuple[Leaves, Any]:
        return trees.partition((problem, self.prepared.regions, self.method))

    def iterate(self, max_iter: int, bar: Bar) -> State:
        """All problems until they end, the running ones together; returned in their order."""
        backend, problem = self.backend, self.prepared.problem
        operands = (self.tol, *self._operands(problem)[0])
        state = self._start(operands, self.prepared.theta)
        members, pieces, done = np.arange(self.prepared.theta.shape[0]), [], 0
        while True:
            running = np.flatnonzero(backend.to_numpy(state.status) == Status.RUNNING.code)
            ended = self.prepared.theta.shape[0] - len(running)
            bar.update(ended - done, math.nan, math.nan)
            done = ended
            used = int(np.max(backend.to_numpy(state.n_iter), initial=0))
            if not len(running) or used >= max_iter:
                pieces.append((members, state))
                return self._gathered(pieces)
            size = _fewer(len(running), len(members), backend.compiled)
            if size < len(members):
                out = np.setdiff1d(np.arange(len(members)), running)
                pieces.append((members[out], self._taken(state, out)))
                # in the place of nobody, one that has ended: it stays as it is, and is not looked at again
                picked = np.concatenate([running, np.repeat(out[:1], size - len(running))])
                members = np.where(np.arange(size) < len(running), members[picked], -1)
                state = self._taken(state, picked)
                problem = self._restricted(problem, picked)
                operands = (self.tol, *self._operands(problem)[0])
            n = backend.xp.full_like(state.n, min(SLICE, max_iter - used))
            least = _least(len(members), backend.compiled)
            state = self._advance(operands, state._replace(n=n), backend.xp.full_like(state.n, least))

    def _index(self, members: np.ndarray) -> Array:
        return self.backend.asarray(members.astype(np.int64), device=self.backend.device_of(self.prepared.theta))

    def _restricted(self, problem: Problem, members: np.ndarray) -> Problem:
        at = self._index(members)
        return restricted(problem, lambda x: array_namespace(x).take(x, at, axis=0))

    def _taken(self, state: State, members: np.ndarray) -> State:
        at = self._index(members)
        return trees.map_tuples(lambda x: array_namespace(x).take(x, at, axis=0) if x.ndim else x, state)

    def _gathered(self, pieces: list[tuple[np.ndarray, State]]) -> State:
        """The pieces in the order of the problems."""
        order = np.concatenate([members for members, _ in pieces])
        real = np.flatnonzero(order >= 0)
        at = self._index(real[np.argsort(order[real])])

        def one(*parts: Array) -> Array:
            xp = array_namespace(*parts)
            return xp.take(xp.concat(parts, axis=0), at, axis=0) if parts[0].ndim else parts[0]

        return trees.map_tuples(one, *(state for _, state in pieces))

    def result(self, state: State, seconds: float, setup: float) -> ManyResult:
        prepared, backend = self.prepared, self.backend
        point, layout = state.point, prepared.layout
        operands = (self.tol, *self._operands(prepared.problem)[0])
        w, condition = self._end(operands, point.theta)
        status = backend.to_numpy(state.status).astype(np.int64)
        value, gap_A, gap_B, condition = (
            layout.array(x, backend) for x in (point.local.value, point.gap_A, point.gap_B, condition)
        )
        return ManyResult(
            theta=layout.to_caller(prepared.regions.split(point.theta), backend),
            w=layout.array(w[:, 0, :] if prepared.vector else w.mT, backend),
            value=value,
            gap_A=gap_A,
            gap_B=gap_B,
            condition=condition,
            status=np.where(status == Status.RUNNING.code, Status.MAX_ITER.code, status),
            n_iter=backend.to_numpy(state.n_iter).astype(np.int64),
            method=repr(self.method),
            provenance=provenance(backend, prepared.theta, exchange=prepared.tally.counts),
            seconds=seconds,
            setup_seconds=setup,
        )


def _start(f: Batch, regions: Regions, method: Method, tol: Array, theta: Array) -> State:
    xp = array_namespace(theta)
    local = method.evaluate(f, theta)
    direction = regions.toward(theta, local.grad)
    point = Point(theta, local, direction.gap_A, direction.gap_B, method.init(regions, theta, local))
    zero = xp.zeros((theta.shape[0],), dtype=xp.int32, device=device(theta))
    floor = xp.maximum(xp.abs(local.value), f.energy(theta))
    state = State(point, floor, zero, zero, zero, xp.zeros((), dtype=xp.int32, device=device(theta)))
    status = xp.where(_finite(point), _judged(f, state, point, tol), xp.full_like(zero, Status.NON_FINITE.code))
    return state._replace(status=xp.where(local.deficient, xp.full_like(zero, Status.RANK_DEFICIENT.code), status))


def _step(f: Batch, regions: Regions, method: Method, tol: Array, state: State) -> State:
    """One trial per problem; problems that have ended stay as they are, bit by bit."""
    point = state.point
    xp = array_namespace(point.theta)
    running = state.status == Status.RUNNING.code
    trial, plan = method.trial(f.backend, regions, point)
    local = method.evaluate(f, trial)
    direction = regions.toward(trial, local.grad)
    gaps = direction.gap_A + direction.gap_B
    value = point.local.value
    # a residual is off by eps |y|, hence its square by 2 eps |y| |r|, which is more than eps |r|^2
    noise = rounding(xp.abs(value) + xp.sqrt(xp.abs(value) * state.floor))
    level = (local.value <= value + noise) & (gaps < point.gap_A + point.gap_B)
    accepted, memory = method.judge(point, trial, local, plan, level)
    accepted = accepted & xp.isfinite(local.value) & xp.isfinite(gaps)
    step = trial - point.theta
    eps = xp.finfo(trial.dtype).eps
    # NaN counts as moved: a shorter step may be better
    still = xp.vecdot(step, step) <= (eps * eps) * xp.vecdot(point.theta, point.theta)
    rejected = xp.where(accepted, xp.zeros_like(state.rejected), state.rejected + 1)
    after = trees.select(accepted, Point(trial, local, direction.gap_A, direction.gap_B, memory), point)
    after = trees.select(running, after._replace(memory=memory), point)
    lost = running & ~accepted & (still | (rejected > REJECTIONS))
    status = xp.where(running, _judged(f, state, after, tol), state.status)
    status = xp.where(lost, xp.full_like(status, Status.NO_DESCENT.code), status)
    n_iter = state.n_iter + xp.astype(running, state.n_iter.dtype)
    return State(after, state.floor, status, n_iter, rejected, state.n - 1)


def _judged(f: Batch, state: State, point: Point, tol: Array) -> Array:
    """CONVERGED where both parts of the gap are small, or as small as rounding of the data lets them be."""
    xp = array_namespace(point.theta)
    value = point.local.value
    small = xp.maximum(tol * xp.abs(value), (10 * xp.finfo(value.dtype).eps) * state.floor)
    done = (point.gap_A <= small) & (point.gap_B <= small)
    if not f.problem.mu:
        # no objective is below 0: one that is 0 to rounding of its residual is at its minimum, whatever its slope
        done = done | (value <= (100 * xp.finfo(value.dtype).eps) ** 2 * state.floor)
    running = xp.full_like(state.status, Status.RUNNING.code)
    return xp.where(done, xp.full_like(running, Status.CONVERGED.code), running)


def _finite(point: Point) -> Array:
    xp = array_namespace(point.theta)
    return xp.isfinite(point.local.value) & xp.isfinite(point.gap_A) & xp.isfinite(point.gap_B)


def _end(f: Batch, theta: Array) -> tuple[Array, Array]:
    low = f.lower(f.outputs(theta))
    return low.w, _small.condition(f.backend, low.factor.R)


def _least(size: int, compiled: bool) -> int:
    """How many may be running still when it is time to let the others go."""
    if compiled:
        return 0 if size <= COMPILED else _bucket(size)
    return 0 if size <= SMALLEST else size // 2


def _fewer(running: int, size: int, compiled: bool) -> int:
    """What size to go on with; a compiled loop knows few, each of which it compiles once."""
    if running > _least(size, compiled):
        return size
    if not compiled:
        return running
    bucket = _bucket(size)
    while bucket > COMPILED and _bucket(bucket) >= running:
        bucket = _bucket(bucket)
    return bucket


def _bucket(size: int) -> int:
    """The largest of `COMPILED` times 1, 4, 16, ... that is at most half of a size, or the first of them."""
    bucket = COMPILED
    while 8 * bucket <= size:
        bucket *= 4
    return bucket
