"""The driver of a batch: iterate those that run, take out those that have ended, put all together again."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np

from xvarpro.algorithms.levenberg_marquardt import LevenbergMarquardt, MarquardtState, Point
from xvarpro.backends import to_numpy
from xvarpro.backends.interface import select
from xvarpro.batch import small
from xvarpro.batch.objective import Batch, Linear
from xvarpro.batch.prepare import Prepared
from xvarpro.core import trees
from xvarpro.core.namespace import device, is_host, namespace_of, positive_or_one
from xvarpro.core.status import Bar, Status
from xvarpro.core.struct import Array, Leaves
from xvarpro.driver.gradient_check import IN_STEPS, REACH
from xvarpro.driver.iteration import OPEN, OWN_MODEL, negligible_decrease, negligible_gap, noise
from xvarpro.driver.restarts import STEPS, Look, dependent, left_behind, parabola, without_curvature
from xvarpro.lower.stack import units
from xvarpro.objective.gauss_newton import diagonal, times
from xvarpro.problem.problem import Problem
from xvarpro.results.recipe import provenance
from xvarpro.sets import each
from xvarpro.sets.region import Region

PARTINGS = 3  # of problems in a saddle, at most
FEW = 2**12  # problems that take less time, all together, than code that is a third faster takes to compile
SMALLEST, COMPILED = 64, 1024  # problems that are not worth being made fewer, nor another compilation
AT_ONCE = 2**17  # entries of the designs of problems that are computed together
TOGETHER = 8  # iterations between two looks at which problems run; Ctrl-C waits for as many of a compiled loop


class BatchState(NamedTuple):
    """State of a batch; every array has an entry per problem."""

    point: Point
    floor: Array  # size of what the objective is a difference of
    status: Array
    n_iter: Array


class Run:
    """One solve of a batch."""

    def __init__(self, prepared: Prepared, method: LevenbergMarquardt, tol: float) -> None:
        self.prepared, self.method = prepared, method
        self.backend, self.done = prepared.backend, 0
        self.b, self.size = prepared.theta.shape[0], _size(prepared)
        self.state: Any = None  # of all problems, on the host
        self.tol = self.backend.xp.asarray(tol, dtype=prepared.theta.dtype, device=device(prepared.theta))
        backend = self.backend
        _, skeleton = self._operands(prepared.problem, prepared.region)

        assemble = prepared.assemble  # what is compiled is kept: it must hold no arrays

        def filled(operands: Leaves) -> tuple[Batch, LevenbergMarquardt, Array]:
            tol, *rest = operands
            problem, region, method = skeleton.fill(rest)
            return assemble(problem, region), method, tol

        def start(operands: Leaves) -> Callable[[Array], BatchState]:
            return partial(_start, *filled(operands))

        def advance(operands: Leaves) -> Callable[[BatchState, Array, Array], BatchState]:
            """Some iterations, until at most `least` problems run that have made less than `most`."""
            f, method, tol = filled(operands)

            def run(state: BatchState, least: Array, most: Array) -> BatchState:
                def going(carry: tuple[BatchState, Array]) -> Array:
                    state, left = carry
                    xp = namespace_of(left)
                    return (left > 0) & (xp.sum(xp.astype(_runs(state, most), xp.int32), dtype=xp.int32) > least)

                def step(carry: tuple[BatchState, Array]) -> tuple[BatchState, Array]:
                    return _step(f, method, tol, most, carry[0]), carry[1] - 1

                return backend.while_loop(going, step, (state, 0 * least + TOGETHER))[0]

            return run

        def end(operands: Leaves) -> Callable[[BatchState], tuple[Array, Array]]:
            return partial(_end, filled(operands)[0])

        def assess(operands: Leaves) -> Callable[[BatchState], Array]:
            f, _, tol = filled(operands)
            return lambda state: _assessed(f, tol, state, state.status)

        def bends(operands: Leaves) -> Callable[[BatchState], tuple[Array, Array, Array]]:
            return partial(_bends, filled(operands)[0])

        self._start, self._advance, self._end = (_call(prepared, make, skeleton) for make in (start, advance, end))
        self._assess, self._bends = (_call(prepared, make, skeleton, once=True) for make in (assess, bends))

    def _operands(self, problem: Problem, region: Region) -> tuple[Leaves, Any]:
        rest, skeleton = trees.partition((problem, region, self.method))
        return (self.tol, *rest), skeleton

    def _of(self, members: np.ndarray) -> Leaves:
        """The operands of some problems."""
        prepared = self.prepared
        every = len(members) == self.b and np.all(members == np.arange(self.b))
        return self._operands(*((prepared.problem, prepared.region) if every else prepared.of(members)))[0]

    def _first(self, members: np.ndarray) -> BatchState:
        found: BatchState = self._start(self._of(members), self.prepared.taken(self.prepared.theta, members))
        return found

    def _blocks(self, members: np.ndarray) -> Iterator[np.ndarray]:
        for i in range(0, len(members) or not self.b, max(self.size, 1)):
            yield self._padded(members[i : i + self.size], self.size)

    def _padded(self, members: np.ndarray, size: int) -> np.ndarray:
        """The first one more often, for a compiled function has its size."""
        more = size - len(members) if self.backend.compiled and len(members) else 0
        return np.concatenate([members, np.repeat(members[:1], more)])

    def _moved(self, x: np.ndarray) -> Array:
        return self.backend.asarray(x, device=device(self.prepared.theta))

    def _states(self, members: np.ndarray) -> BatchState:
        # a compiled function moves arrays itself, in less time than one by one
        move = (lambda x: x) if self.backend.compiled else self._moved
        found: BatchState = trees.map_leaves(lambda x: move(x[members]), self.state)
        return found

    def _keep(self, members: np.ndarray, state: BatchState) -> None:
        self._kept = members, state  # an interruption may leave some of what follows undone
        self.state = put(self.state, members, state, self.b)

    def start(self) -> None:
        """The first states."""
        for members in self._blocks(np.arange(self.b)):
            self._keep(members, self._first(members))

    @property
    def _has_faces(self) -> bool:
        return self.prepared.problem.lower.W is not None

    def part(self, members: np.ndarray) -> np.ndarray:
        """Which of some problems start again, at a lower point than that where they have ended."""
        if self.prepared.region.without_projection:
            return members[:0]
        members = members[_ended(self.state.status[members])]
        opened = self._again(members, left_behind, lowest=True) if self._has_faces else members[:0]
        return np.concatenate([opened, self._again(np.setdiff1d(members, opened), without_curvature, lowest=False)])

    def _nearest(self, members: np.ndarray, x: np.ndarray) -> np.ndarray:
        """The feasible points next to x, by NumPy, which compiles nothing."""
        own = each.taken(self.prepared.region, partial(self.prepared.taken, members=members))
        region = trees.map_arrays(self.backend.to_numpy, each.plain(own))
        found: np.ndarray = region.nearest(x, self.state.point.local.grad[members])
        return found

    def _again(self, asked: np.ndarray, look: Callable[..., Look], lowest: bool) -> np.ndarray:
        """Which of some problems start again at the first point of a look that is lower, or at the lowest one."""
        x, B = self.state.point.theta, self.state.point.local.curvature

        def found_by(members: np.ndarray) -> Look:
            return look(x[members], B[members], lambda step: self._nearest(members, x[members] + step))

        began = [asked[:0]]
        for members in self._blocks(asked[found_by(asked)[0]]):
            operands, ended = self._of(members), trees.map_leaves(self._moved, self._states(members))
            value, xp = ended.point.local.value, self.backend.xp
            least = xp.maximum(noise(value, ended.floor), self.tol * xp.abs(value))
            below, state, found = value - least, ended, ended.status < 0
            for step in found_by(members)[1]:
                tried = self._nearest(members, x[members] + step).astype(self.prepared.dtype)
                there = self._start(operands, self._moved(tried))
                lower = there.point.local.value < below
                state = select(self.backend, lower, there._replace(floor=ended.floor, n_iter=ended.n_iter), state)
                below = xp.where(lower, there.point.local.value if lowest else -xp.inf, below)
                found = found | lower
            self._keep(members, state)
            began.append(members[self.backend.to_numpy(found)])
        return np.concatenate(began)

    def iterate(self, max_iter: int, bar: Bar) -> None:
        """All problems until they end, some at a time: those that have ended make place for others."""
        compiled, size = self.backend.compiled, self.size
        members, waiting = np.arange(0), self._running(np.arange(self.b), max_iter)
        while len(members) + len(waiting):
            room = size - len(members)
            members, waiting = np.concatenate([members, waiting[:room]]), waiting[room:]
            if not len(waiting):
                size = _fewer(len(members), size, compiled)
            least = size - size // 4 if len(waiting) else _least(size, compiled)
            block = self._padded(members, size)
            limits = (self._moved(np.asarray(n, dtype=np.int32)) for n in (least, max_iter))
            self._keep(block, self._advance(self._of(block), self._states(block), *limits))
            members = self._running(members, max_iter)
            ended = self.b - len(members) - len(waiting)
            bar.update(max(ended - self.done, 0))
            self.done = max(ended, self.done)

    def _running(self, members: np.ndarray, max_iter: int) -> np.ndarray:
        _, _, status, n_iter = self.state
        return members[(status[members] == Status.RUNNING.code) & (n_iter[members] < max_iter)]

    def to_end(self, max_iter: int, bar: Bar) -> None:
        """All problems; again those that have a lower point near, and, nearer to their start, those without descent."""
        self.iterate(max_iter, bar)
        if self.prepared.shared:
            return
        self._parted(np.arange(self.b), max_iter, bar)
        members = self._dependent()
        self.iterate(max_iter, bar)
        if len(members):
            before = trees.map_leaves(lambda x: x[members], self.state)
            for block in self._blocks(members):
                state = self._first(block)
                nearer = self.method.nearer(MarquardtState(cast(Any, None), state.point))
                self._keep(block, state._replace(point=nearer.point))
            self.iterate(max_iter, bar)
            self._parted(members, max_iter, bar)
            value, was = self.state.point.local.value[members], before.point.local.value
            worse = ~(value <= was + noise(was, before.floor))
            self._keep(members[worse], trees.map_leaves(lambda x: self._moved(x[worse]), before))

    def _dependent(self) -> np.ndarray:
        """Problems without descent whose columns have become dependent on the way."""
        lost = np.flatnonzero(self._assessed(again=self._has_faces) == Status.NO_DESCENT.code)
        return lost[dependent(self._ends(lost)[1][lost])] if len(lost) else lost

    def _assessed(self, again: bool = False) -> np.ndarray:
        """The statuses, some of them another one at a second look, which may start `again` at a lower point."""
        status, region = self.state.status.copy(), self.prepared.region
        if region.constrained and not region.unbounded:
            for members in self._blocks(np.flatnonzero(status == Status.NO_DESCENT.code)):
                status[members] = self.backend.to_numpy(self._assess(self._of(members), self._states(members)))
        few = self.state.point.theta.shape[1] <= STEPS and not self.prepared.shared
        if few and not region.without_projection:
            unsure = np.isin(status, [Status.NO_DESCENT.code, Status.ROUNDING.code])
            for members in self._blocks(np.flatnonzero(unsure)):
                status[members] = self._at_parabolas(members, status[members], again)
        return status

    def _at_parabolas(self, members: np.ndarray, status: np.ndarray, again: bool) -> np.ndarray:
        """The statuses of some problems, by the parabola of the objective itself, to whose lowest point they have gone.

        A model that is singular, as where two rates are equal, promises what no step keeps, and is no guide to the end.
        """
        operands, host = self._of(members), self.backend.to_numpy
        tol: Any = host(self.tol)
        for steps_left in (True, False):
            now = self._states(members)
            slope, H, size = map(host, self._bends(operands, now))
            left, step = parabola(slope, H)
            point, floor = self.state.point, self.state.floor[members]
            value, gap = point.local.value[members], point.gap_A[members]
            least, margin = tol * tol * np.abs(value), np.asarray(noise(value, floor))
            ended = (left <= np.maximum(margin, least)) & (gap <= negligible_gap(value, tol, floor))
            status = np.where(ended, np.where(left <= least, Status.CONVERGED.code, Status.ROUNDING.code), status)
            if steps_left and not (status == Status.CONVERGED.code).all():
                x = self._nearest(members, point.theta[members] + size * step)
                there = self._start(operands, self._moved(x.astype(self.prepared.dtype)))
                at = host(there.point.local.value)
                opens = self._has_faces & (status == Status.ROUNDING.code)
                better = (opens | (left <= margin)) & (host(there.point.gap_A) < gap) & (at <= value + margin)
                status = np.where(again & better & (at < value - margin), host(there.status), status)
                to, now = trees.map_leaves(self._moved, (better, now._replace(status=status)))
                there = there._replace(floor=now.floor, status=now.status, n_iter=now.n_iter)
                self._keep(members, select(self.backend, to, there, now))
        return status

    def _ends(self, asked: np.ndarray) -> Any:
        """The weights and conditions of some problems, among those of all; where theta is shared, of all."""
        ends: Any = None
        for members in self._blocks(asked):
            end = self._end(self._of(members), self._states(members))
            ends = tuple(map(self.backend.to_numpy, end)) if self.prepared.shared else put(ends, members, end, self.b)
        return ends

    def steps(self) -> str:
        """As `driver.gradient_check.steps`, of the first problems."""
        ended = np.flatnonzero(_ended(self.state.status))[: min(self.size, SMALLEST)]
        if self.prepared.shared or not len(ended):
            return ""
        members = self._padded(ended, self.size)
        x, value, grad = self.state.point.theta[members], *(a[members] for a in self.state.point.local[:2])
        eps, size, began = np.finfo(x.dtype).eps, np.where(x == 0, 1, np.abs(x)), to_numpy(self.prepared.theta)[members]
        least = np.asarray(noise(value, self.state.floor[members]))
        still = (np.abs(x - began) <= eps**0.5 * np.abs(began)) & (np.abs(grad * size) <= least[:, None])
        for far in REACH * (-1.0) ** np.arange(len(REACH)) if still.any() else ():  # one way may end at a bound
            tried = self._nearest(members, x + far * still * size)
            there = self._start(self._of(members), self._moved(tried.astype(x.dtype))).point.local
            other = np.where(still, np.abs(to_numpy(there.grad) * size) > least[:, None], tried != x).any(axis=1)
            change = np.where(other, 0, np.abs(to_numpy(there.value) - value))
            if (found := change > eps**-0.5 * least).any():
                return IN_STEPS.format(f"entries {np.flatnonzero(still[found][0])} of theta", change[found][0])
        return ""

    def _parted(self, members: np.ndarray, max_iter: int, bar: Bar) -> None:
        for _ in range(PARTINGS):
            members = members[self.state.n_iter[members] < max_iter]
            members = self.part(members) if len(members) else members
            if not len(members):
                return
            self.iterate(max_iter, bar)

    def found(self, unended: Status) -> dict[str, Any]:
        """The fields of a result, with the status `unended` for problems that still run."""
        self._keep(*self._kept)
        prepared, backend, state = self.prepared, self.backend, self.state
        point, layout = state.point, prepared.layout
        unit, status = prepared.y_units.astype(prepared.dtype), self._assessed().astype(np.int64)
        w, condition = self._ends(np.arange(self.b))
        own = point.local.w[0, :] if prepared.shared else point.local.value
        numbers = [np.broadcast_to(x, own.shape) / unit / unit for x in (own, point.gap_A, point.gap_B)]
        value, gap_A, gap_B, condition = (layout.array(self._moved(x), backend) for x in (*numbers, condition))
        # among problems that share leaves of theta, those that do not count in the sum
        lost = ~np.isfinite(numbers[0]) & (status != Status.RANK_DEFICIENT.code)
        status = np.where(lost, Status.NON_FINITE.code, status)
        w, theta = self._moved(w / unit[:, None, None]), self._moved(point.theta)
        return dict(
            theta=prepared.to_caller(theta),
            w=layout.array(w[:, 0, :] if prepared.vector else w.mT, backend),
            value=value,
            gap_A=gap_A,
            gap_B=gap_B,
            condition=condition,
            status=np.where(status == Status.RUNNING.code, unended.code, status),
            n_iter=np.broadcast_to(state.n_iter.astype(np.int64), status.shape),
            shared=prepared.shared,
            method=repr(self.method),
            provenance=provenance(backend, prepared.theta),
            _prepared=replace(prepared, theta=theta),
        )


def put(whole: Any, at: Any, part: Any, b: int) -> Any:
    """What some of b problems have, among that of all, on the host."""
    part = trees.map_leaves(to_numpy, part)
    if whole is None:
        whole = trees.map_leaves(lambda x: np.empty((b, *x.shape[1:]), x.dtype), part)
    whole = trees.map_leaves(lambda x, y: x.astype(np.result_type(x, y), copy=False), whole, part)
    trees.map_leaves(lambda x, y: x.__setitem__(at, y), whole, part)
    return whole


def linear(prepared: Prepared, members: np.ndarray) -> Linear:
    """Some problems to first order in theta and w, as NumPy's arrays in double precision."""
    backend = prepared.backend
    with backend.scope(prepared.dtype):
        operands, skeleton = trees.partition(prepared.of(members))
        assemble = prepared.assemble

        def make(operands: Leaves) -> Callable[[Array], Linear]:
            return assemble(*skeleton.fill(operands)).linear

        found = _call(prepared, make, skeleton)(operands, prepared.taken(prepared.theta, members))

        def host(x: Any) -> Any:
            x = None if x is None else backend.to_numpy(x)
            return x if x is None or x.dtype.kind == "b" else x.astype(np.result_type(x.dtype, np.float64))

        return Linear(*map(host, found))


def _call(
    prepared: Prepared, make: Callable[[Leaves], Callable[..., Any]], skeleton: Any, once: bool = False
) -> Callable[..., Any]:
    """What is compiled once for all batches of the same problem, for many of them by the fastest code."""
    once = once or max(prepared.theta.shape[0], len(prepared.y_units)) <= FEW
    key = (make.__qualname__, once, skeleton, prepared.layout.treedef, prepared.found, prepared.program)
    return prepared.backend.call(make, key, once)


def _ended(status: np.ndarray) -> np.ndarray:
    """Where a lower point may be near: after no descent too, since a model without curvature promises rounding."""
    return np.isin(status, [s.code for s in Status if s.success or s is Status.NO_DESCENT])


def _start(f: Batch, method: LevenbergMarquardt, tol: Array, theta: Array) -> BatchState:
    xp = namespace_of(theta)
    point = method.first(f, f.region, theta, f.local(theta))
    zero = xp.zeros((theta.shape[0],), dtype=xp.int32, device=device(theta))
    floor = xp.maximum(xp.abs(point.local.value), f.energy(theta))
    status = _status(f, point, tol, floor)
    status = xp.where(point.local.deficient, xp.full_like(zero, Status.RANK_DEFICIENT.code), status)
    return BatchState(point, floor, status, zero)


def _runs(state: BatchState, most: Array) -> Array:
    return (state.status == Status.RUNNING.code) & (state.n_iter < most)


def _step(f: Batch, method: LevenbergMarquardt, tol: Array, most: Array, state: BatchState) -> BatchState:
    """One trial per problem; problems that have ended, or made `most` of them, stay as they are."""
    xp, running = namespace_of(state.point.theta), _runs(state, most)
    margin = noise(state.point.local.value, state.floor)
    trial = method.trial(f, f.region, state.point)
    after, _, lost = method.after(f, f.region, state.point, trial, f.local(trial[0]), margin)
    after = select(f.backend, running, after, state.point)
    found = _status(f, after, tol, state.floor)
    flat, done = after.decrease <= margin, after.decrease <= (tol * tol) * xp.abs(after.local.value)
    for ends, code in ((lost, Status.NO_DESCENT), (lost & flat, Status.ROUNDING), (lost & done, Status.CONVERGED)):
        found = xp.where(ends, xp.full_like(found, code.code), found)
    n_iter, status = state.n_iter + xp.astype(running, state.n_iter.dtype), xp.where(running, found, state.status)
    return BatchState(after, state.floor, status, n_iter)


def _status(f: Batch, point: Point, tol: Array, floor: Array) -> Array:
    """CONVERGED where the certificate is small, or as small as rounding of the data lets it be; NON_FINITE."""
    xp, value = namespace_of(point.theta), point.local.value
    # towards vertices alone a digit more takes ten times the steps
    share, most = (1.0, None) if f.region.without_projection else (OWN_MODEL, OPEN)
    done = point.decrease <= negligible_decrease(value, share * tol, floor, most)
    finite = xp.isfinite(value) & xp.isfinite(point.gap_A) & xp.isfinite(point.gap_B)
    running = xp.zeros(done.shape, dtype=xp.int32, device=device(done))
    code = xp.where(done, xp.full_like(running, Status.CONVERGED.code), running)
    return xp.where(finite, code, xp.full_like(code, Status.NON_FINITE.code))


def _end(f: Batch, state: BatchState) -> tuple[Array, Array]:
    """The weights, (b, k, n), and conditions, (b,)."""
    theta = state.point.theta
    low = f.lower(f.weighted(f.outputs(theta)))
    w = low.w if f.columns == 1 else f.together(low.w)[:, :, 0, :]
    return w, namespace_of(theta).max(f.together(small.condition(f.backend, units(low.R))), axis=1)


def _assessed(f: Batch, tol: Array, state: BatchState, code: Array) -> Array:
    """The statuses, CONVERGED for an end without descent where parabolas promise less than the tolerance squared.

    A model without curvature promises what no step keeps, as where columns of M depend on each other: that of the
    objective itself decides then, toward a vertex and along the projected gradient, as in a solve of one problem.
    """
    (value, grad, H), x, region = state.point.local[:3], state.point.theta, f.region
    xp = namespace_of(x)
    D = positive_or_one(region.evened(diagonal(xp, H)))  # units of the entries

    def dots(a: Array, b: Array) -> Array:
        return xp.sum(a * b, axis=1)

    def parabola(d: Array) -> tuple[Array, Array]:
        """The largest decrease for steps of at most 1, and the second derivative, from a difference of gradients."""
        size, length = (positive_or_one(xp.sqrt(dots(a, D * a))) for a in (x, d))
        h = xp.finfo(x.dtype).eps ** (1 / 3) * size / length  # beyond the end of a short step: less is rounding
        slope, bend = -dots(grad, d), dots(f.local(x + h[:, None] * d).grad - grad, d) / h
        alpha = xp.where(bend > slope, slope / positive_or_one(bend), 1)
        return xp.where(slope > 0, alpha * (slope - 0.5 * alpha * bend), 0 * slope), bend

    d = region.vertices(grad, x) - x
    left, bend = parabola(d)
    length = xp.where(bend > 0, dots(d, D * d) / positive_or_one(bend), 1)
    step = region.nearest(x - length[:, None] * grad / D, grad) - x
    left = xp.maximum(left, parabola(step)[0])
    small = state.point.gap_A <= negligible_gap(value, tol, state.floor)
    done = (code == Status.NO_DESCENT.code) & small & (left <= (tol * tol) * xp.abs(value))
    return xp.where(done, xp.full_like(code, Status.CONVERGED.code), code)


def _bends(f: Batch, state: BatchState) -> tuple[Array, Array, Array]:
    """Gradients in the smallest faces, Hessians there by differences, (b, p, p), in units of theta, and these, (b, p).

    What is held bends up as much as the rest does.
    """
    x, grad, region = state.point.theta, state.point.local.grad, f.region
    xp, p, P, size = namespace_of(x), x.shape[1], region.tangents(x), abs(x)
    size = region.evened(positive_or_one(xp.where(size > 0, size, xp.mean(size, axis=1, keepdims=True))))
    h, eye = xp.finfo(x.dtype).eps ** (1 / 3), xp.eye(p, dtype=x.dtype, device=device(x))

    def column(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        j, H = carry
        unit = xp.take(eye, xp.reshape(j, (1,)), axis=0)
        change = f.local(x + h * times(P, size * unit)).grad - grad
        return j + 1, H + ((size / h) * times(P, change))[:, :, None] * unit

    j = xp.zeros((), dtype=xp.int32, device=device(x))
    _, H = f.backend.while_loop(lambda carry: carry[0] < p, column, (j, 0 * P))
    held = xp.max(xp.abs(diagonal(xp, H)), axis=1)[:, None, None]
    return size * times(P, grad), H + held * (eye - P), size


def _size(prepared: Prepared) -> int:
    """How many problems are computed together: as a cache holds, or all of them where there is none to speak of."""
    b, shape = prepared.theta.shape[0], dict(prepared.found).get("M_L", ((1,),))[0]
    return min(b, max(SMALLEST, AT_ONCE // math.prod(shape))) if is_host(device(prepared.theta)) else b


def _least(size: int, compiled: bool) -> int:
    """How many may be running still when the others are left out."""
    if compiled:
        return 0 if size <= COMPILED else size // 4
    return 0 if size <= SMALLEST else size // 2


def _fewer(running: int, size: int, compiled: bool) -> int:
    """The size to go on with; a compiled loop is compiled once per size, so that it gets few: quarters."""
    while compiled and running <= _least(size, compiled):
        size = max(COMPILED, -(-size // 4))
    return size if compiled else running
