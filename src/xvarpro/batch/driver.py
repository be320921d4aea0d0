"""The driver of a batch: iterate those that run, take out those that have ended, put all together again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from xvarpro.algorithms.levenberg_marquardt import LevenbergMarquardt, Point
from xvarpro.backends import Backend, to_numpy
from xvarpro.backends.interface import select
from xvarpro.batch.objective import Batch, Linear
from xvarpro.batch.prepare import Prepared, restricted
from xvarpro.core import trees
from xvarpro.core.namespace import device, namespace_of, positive_or_one
from xvarpro.core.status import Bar, Status
from xvarpro.core.struct import Array, Leaves
from xvarpro.driver.iteration import OWN_MODEL, negligible_decrease, negligible_gap, noise
from xvarpro.lower.stack import units
from xvarpro.objective.gauss_newton import diagonal
from xvarpro.problem.problem import Problem
from xvarpro.results.recipe import provenance
from xvarpro.sets import each
from xvarpro.sets.region import Region

PARTINGS = 3  # of problems in a saddle, at most
FEW = 4096  # problems whose iterations, all together, take less time than code that is a third faster takes to compile
SMALLEST, COMPILED = 64, 1024  # problems that are not worth being made fewer, nor another compilation
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
        self.tol = self.backend.xp.asarray(tol, dtype=prepared.theta.dtype, device=device(prepared.theta))
        backend = self.backend
        _, skeleton = self._operands(prepared.problem, prepared.region)

        def filled(operands: Leaves) -> tuple[Batch, LevenbergMarquardt, Array]:
            tol, *rest = operands
            problem, region, method = skeleton.fill(rest)
            return prepared.assemble(problem, region), method, tol

        def start(operands: Leaves) -> Callable[[Array], BatchState]:
            return partial(_start, *filled(operands))

        def advance(operands: Leaves) -> Callable[[BatchState, Array, Array], BatchState]:
            """Iterations until `left` are made or at most `least` problems run."""
            step = partial(_step, *filled(operands))

            def run(state: BatchState, left: Array, least: Array) -> BatchState:
                def going(carry: tuple[BatchState, Array]) -> Array:
                    status, left = carry[0].status, carry[1]
                    xp = namespace_of(status)
                    running = xp.sum(xp.astype(status == Status.RUNNING.code, xp.int32), dtype=xp.int32)
                    return (left > 0) & (running > least)

                return backend.while_loop(going, lambda carry: (step(carry[0]), carry[1] - 1), (state, left))[0]

            return run

        def end(operands: Leaves) -> Callable[[BatchState], tuple[Array, Array, Array]]:
            f, _, tol = filled(operands)
            return partial(_end, f, tol)

        key = (skeleton, prepared.layout.treedef, prepared.found, prepared.program)
        few = max(prepared.theta.shape[0], len(prepared.y_units)) <= FEW  # the fastest code is for iterations of many
        self._start, self._advance, self._end = (
            backend.call(make, (make.__name__, *key), once=few or make is not advance) for make in (start, advance, end)
        )

    def _operands(self, problem: Problem, region: Region) -> tuple[Leaves, Any]:
        rest, skeleton = trees.partition((problem, region, self.method))
        return (self.tol, *rest), skeleton

    def start(self) -> None:
        """The first state."""
        prepared = self.prepared
        state = self._start(self._operands(prepared.problem, prepared.region)[0], prepared.theta)
        # the problems, -1 for what fills a batch, and their states; one assignment, for an interruption finds it whole
        self.pieces = [(np.arange(prepared.theta.shape[0]), state)]

    def part(self) -> bool:
        """Problems that have ended in a saddle start again at a lower point next to it; whether there are any.

        A direction without curvature in the Gauss-Newton matrix, as two equal rates have, is tried both ways.
        """
        prepared, backend, region = self.prepared, self.backend, self.prepared.region
        state = self._gathered()
        down = _flat_directions(
            *(backend.to_numpy(x) for x in (state.status, state.point.theta, state.point.local.curvature))
        )
        asked = down.any(axis=1)
        if not asked.any() or region.without_projection:
            return False
        # a compiled function is compiled for its size
        members = np.arange(len(down)) if backend.compiled else np.flatnonzero(asked)
        take = self._taken(members)
        region = each.taken(region, take)
        operands, _ = self._operands(restricted(prepared.problem, take), region)
        ended = parted = trees.map_leaves(take, state)
        xp, found, (x, local, *_) = backend.xp, ended.status < 0, ended.point
        margin = noise(local.value, ended.floor) + self.tol * xp.abs(local.value)
        for step in (0.5, -0.5, 0.1, -0.1):
            moved = x + backend.asarray(step * down[members], dtype=prepared.dtype, device=device(x))
            there = self._start(operands, each.plain(region).nearest(moved, local.grad))
            lower = ~found & (there.point.local.value < local.value - margin)
            parted = select(backend, lower, there._replace(floor=ended.floor, n_iter=ended.n_iter), parted)
            found = found | lower
        rest = np.setdiff1d(np.arange(len(down)), members)
        others = trees.map_leaves(self._taken(rest), state)
        self.pieces = [(rest, others), (members, parted)]
        return bool(xp.any(found))

    def iterate(self, max_iter: int, bar: Bar) -> None:
        """All problems until they end, the running ones together."""
        backend, problem, region = self.backend, self.prepared.problem, self.prepared.region
        b, (operands, _) = self.prepared.theta.shape[0], self._operands(problem, region)
        members, state = np.arange(b), self._gathered()
        self.pieces = [(members, state)]
        while True:
            running = np.flatnonzero(backend.to_numpy(state.status) == Status.RUNNING.code)
            bar.update(max(b - len(running) - self.done, 0))
            self.done = max(b - len(running), self.done)
            used = int(np.max(backend.to_numpy(state.n_iter), initial=0))
            if not len(running) or used >= max_iter:
                return
            size = _fewer(len(running), len(members), backend.compiled)
            if size < len(members):
                out = np.setdiff1d(np.arange(len(members)), running)
                ended = [*self.pieces[:-1], (members[out], trees.map_leaves(self._taken(out), state))]
                # the rest is filled with one that has ended: it stays as it is, and is left out of the result
                picked = np.concatenate([running, np.repeat(out[:1], size - len(running))])
                members = np.where(np.arange(size) < len(running), members[picked], -1)
                state = trees.map_leaves(self._taken(picked), state)
                problem, region = restricted(problem, self._taken(picked)), each.taken(region, self._taken(picked))
                operands, _ = self._operands(problem, region)
                self.pieces = [*ended, (members, state)]
            counts = (min(max_iter - used, TOGETHER), _least(len(members), backend.compiled))
            state = self._advance(operands, state, *(backend.xp.full_like(state.status[0], n) for n in counts))
            self.pieces = [*self.pieces[:-1], (members, state)]

    def _taken(self, members: np.ndarray) -> Callable[[Array], Array]:
        """What takes the entries of some members from an array."""
        at = self.backend.asarray(members.astype(np.int64), device=device(self.prepared.theta))
        return lambda x: namespace_of(x).take(x, at, axis=0)

    def _gathered(self) -> BatchState:
        """The states in the order of the problems."""
        order = np.concatenate([members for members, _ in self.pieces])
        real = np.flatnonzero(order >= 0)
        taken = self._taken(real[np.argsort(order[real])])
        return trees.map_leaves(
            lambda *parts: taken(namespace_of(*parts).concat(parts, axis=0)), *(state for _, state in self.pieces)
        )

    def to_end(self, max_iter: int, bar: Bar) -> None:
        """All problems, and those again that have ended in a saddle."""
        self.iterate(max_iter, bar)
        for _ in range(0 if self.prepared.shared else PARTINGS):
            if not self.part():
                break
            self.iterate(max_iter, bar)

    def found(self, unended: Status) -> dict[str, Any]:
        """The fields of a result, with the status `unended` for problems that still run."""
        prepared, backend, state = self.prepared, self.backend, self._gathered()
        point, layout = state.point, prepared.layout
        operands, _ = self._operands(prepared.problem, prepared.region)
        w, condition, codes = self._end(operands, state)
        status = backend.to_numpy(codes).astype(np.int64)
        unit = backend.asarray(prepared.y_units.astype(prepared.dtype), device=device(w))
        own = point.local.w[0, :] if prepared.shared else point.local.value
        gaps = (backend.xp.broadcast_to(x, own.shape) for x in (point.gap_A, point.gap_B))
        value, gap_A, gap_B = (layout.array(x / unit / unit, backend) for x in (own, *gaps))
        w = w / unit[:, None, None]
        # among problems that share leaves of theta, those that do not count in the sum
        lost = np.isnan(to_numpy(value)) & (status != Status.RANK_DEFICIENT.code)
        status = np.where(lost, Status.NON_FINITE.code, status)
        return dict(
            theta=prepared.to_caller(point.theta),
            w=layout.array(w[:, 0, :] if prepared.vector else w.mT, backend),
            value=value,
            gap_A=gap_A,
            gap_B=gap_B,
            condition=layout.array(condition, backend),
            status=np.where(status == Status.RUNNING.code, unended.code, status),
            n_iter=np.broadcast_to(backend.to_numpy(state.n_iter).astype(np.int64), status.shape),
            shared=prepared.shared,
            method=repr(self.method),
            provenance=provenance(backend, prepared.theta),
            _prepared=replace(prepared, theta=point.theta),
        )


def linear(prepared: Prepared, members: np.ndarray) -> Linear:
    """Some problems to first order in theta and w, as NumPy's arrays in double precision."""
    backend = prepared.backend
    with backend.scope(prepared.dtype):
        at = backend.asarray(members.astype(np.int64), device=device(prepared.theta))
        problem = restricted(prepared.problem, lambda x: namespace_of(x).take(x, at, axis=0))
        region = each.taken(prepared.region, lambda x: namespace_of(x).take(x, at, axis=0))
        operands, skeleton = trees.partition((problem, region))

        def make(operands: Leaves) -> Callable[[Array], Linear]:
            return prepared.assemble(*skeleton.fill(operands)).linear

        key = (skeleton, prepared.layout.treedef, prepared.found, prepared.program)
        found = backend.call(make, ("linear", *key), once=True)(operands, backend.xp.take(prepared.theta, at, axis=0))

        def host(x: Any) -> Any:
            x = None if x is None else backend.to_numpy(x)
            return x if x is None or x.dtype.kind == "b" else x.astype(np.result_type(x.dtype, np.float64))

        return Linear(*map(host, found))


def _flat_directions(status: np.ndarray, x: np.ndarray, curvature: np.ndarray) -> np.ndarray:
    """Directions along which the model of a problem that has ended well has no curvature, (b, p); else 0.

    No descent counts: what a model without curvature promises may be rounding, divided by nearly 0. The entry that
    changes most does so by its own size.
    """
    eps, B = np.finfo(x.dtype).eps, curvature.astype(np.float64)
    size = np.sqrt(np.abs(np.diagonal(B, axis1=1, axis2=2)))
    ends = [s.code for s in Status if s.success or s is Status.NO_DESCENT]
    ended = np.isin(status, ends) & (size > 0).all(axis=1) & np.isfinite(size).all(axis=1)
    down = np.zeros_like(size)
    bends, vectors = np.linalg.eigh(B[ended] / size[ended, :, None] / size[ended, None, :])
    steps, own = vectors[:, :, 0] / size[ended], np.abs(x[ended])
    own = np.where(own > 0, own, np.mean(own, axis=1, keepdims=True))
    reach = np.max(np.abs(steps) / np.where(own > 0, own, 1.0), axis=1)
    down[ended] = np.where(bends[:, 0] <= eps**0.5, 1 / reach, 0.0)[:, None] * steps
    return down


def _start(f: Batch, method: LevenbergMarquardt, tol: Array, theta: Array) -> BatchState:
    xp = namespace_of(theta)
    point = method.first(f, f.region, theta, f.local(theta))
    zero = xp.zeros((theta.shape[0],), dtype=xp.int32, device=device(theta))
    floor = xp.maximum(xp.abs(point.local.value), f.energy(theta))
    status = _status(f, point, tol, floor)
    status = xp.where(point.local.deficient, xp.full_like(zero, Status.RANK_DEFICIENT.code), status)
    return BatchState(point, floor, status, zero)


def _step(f: Batch, method: LevenbergMarquardt, tol: Array, state: BatchState) -> BatchState:
    """One trial per problem; problems that have ended stay as they are."""
    xp = namespace_of(state.point.theta)
    running = state.status == Status.RUNNING.code
    margin = noise(state.point.local.value, state.floor)
    trial = method.trial(f, f.region, state.point)
    after, _, lost = method.after(f, f.region, state.point, trial, f.local(trial[0]), margin)
    after = select(f.backend, running, after, state.point)
    status = xp.where(running, _status(f, after, tol, state.floor), state.status)
    for ends, code in ((lost, Status.NO_DESCENT), (lost & (after.decrease <= margin), Status.ROUNDING)):
        status = xp.where(running & ends, xp.full_like(status, code.code), status)
    n_iter = state.n_iter + xp.astype(running, state.n_iter.dtype)
    return BatchState(after, state.floor, status, n_iter)


def _status(f: Batch, point: Point, tol: Array, floor: Array) -> Array:
    """CONVERGED where the certificate is small, or as small as rounding of the data lets it be; NON_FINITE."""
    xp = namespace_of(point.theta)
    value = point.local.value
    # towards vertices alone a digit more takes ten times the steps
    share = 1.0 if f.region.without_projection else OWN_MODEL
    done = point.decrease <= negligible_decrease(value, share * tol, floor)
    finite = xp.isfinite(value) & xp.isfinite(point.gap_A) & xp.isfinite(point.gap_B)
    running = xp.zeros(done.shape, dtype=xp.int32, device=device(done))
    code = xp.where(done, xp.full_like(running, Status.CONVERGED.code), running)
    return xp.where(finite, code, xp.full_like(code, Status.NON_FINITE.code))


def _end(f: Batch, tol: Array, state: BatchState) -> tuple[Array, Array, Array]:
    """The weights, (b, k, n), conditions and statuses, (b,)."""
    theta, region = state.point.theta, f.region
    low = f.lower(f.weighted(f.outputs(theta)))
    w = low.w if f.columns == 1 else f.together(low.w)[:, :, 0, :]
    xp = namespace_of(theta)
    code, lost = state.status, state.status == Status.NO_DESCENT.code
    if region.constrained and not region.unbounded:
        code = f.backend.when(xp.any(lost), partial(_assessed, f, tol, state), code)
    return w, xp.max(f.together(_condition(f.backend, units(low.R))), axis=1), code


def _assessed(f: Batch, tol: Array, state: BatchState, code: Array) -> Array:
    """The statuses, CONVERGED for an end without descent where parabolas promise less than the tolerance squared.

    A model without curvature promises what no step keeps, as where columns of M depend on each other: that of the
    objective itself decides then, toward a vertex and along the projected gradient, as in a solve of one problem.
    """
    (value, grad, H), x, region = state.point.local[:3], state.point.theta, f.region
    xp = namespace_of(x)
    D = positive_or_one(region.evened(diagonal(H)))  # units of the entries

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


def _condition(backend: Backend, R: Array) -> Array:
    """2-norm condition numbers, (b,), of matrices with columns of length 1; NaN where one is not finite."""
    xp = namespace_of(R)
    fine = xp.all(xp.isfinite(xp.abs(R)), axis=(1, 2))
    eye = xp.eye(R.shape[-1], dtype=R.dtype, device=device(R))
    # a library's decomposition may raise for all where one holds NaN
    s = backend.svd(xp.where(fine[:, None, None], R, eye))[1]
    ratio = xp.max(s, axis=1) / xp.min(s, axis=1)
    return xp.where(fine, ratio, xp.full_like(ratio, xp.nan))


def _least(size: int, compiled: bool) -> int:
    """How many may be running still when the others are left out."""
    if compiled:
        return 0 if size <= COMPILED else size // 4
    return 0 if size <= SMALLEST else size // 2


def _fewer(running: int, size: int, compiled: bool) -> int:
    """The size to go on with; a compiled loop is compiled once per size, so that it gets few: quarters."""
    if not compiled:
        return running if running <= _least(size, compiled) else size
    while running <= _least(size, compiled):
        size = max(COMPILED, -(-size // 4))
    return size
