"""The driver of a batch: iterate those that run, some at a time, and put them back among those that have ended."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np

from xvarpro.algorithms.levenberg_marquardt import LevenbergMarquardt, Point
from xvarpro.backends import Backend, to_numpy
from xvarpro.backends.interface import select
from xvarpro.batch.objective import Batch, Linear
from xvarpro.batch.prepare import Prepared, restricted
from xvarpro.core import trees
from xvarpro.core.namespace import device, is_host, namespace_of, positive_or_one
from xvarpro.core.status import Bar, Status
from xvarpro.core.struct import Array, Leaves
from xvarpro.driver.iteration import OWN_MODEL, negligible_decrease, negligible_gap, noise
from xvarpro.lower.stack import units
from xvarpro.objective.gauss_newton import diagonal
from xvarpro.results.recipe import provenance
from xvarpro.sets import each

T = TypeVar("T")
PARTINGS = 3  # of problems in a saddle, at most
FEW = 4096  # problems whose iterations, all together, take less time than code that is a third faster takes to compile
SMALLEST, COMPILED = 64, 1024  # problems that are not worth being made fewer, nor another compilation
# numbers in the designs of a block, on a processor, whose cache then has what it has written: fewer in a compiled loop,
# which has no operations that cost by themselves
CACHE, COMPILED_CACHE = 2**18, 2**16
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
        backend, b = self.backend, prepared.theta.shape[0]
        _, skeleton = trees.partition((prepared.problem, prepared.region, method))
        on_host, design = is_host(device(prepared.theta)), dict(prepared.found)["M_L"][0]
        at_once = COMPILED_CACHE if backend.compiled else CACHE
        blocks = max(-(-b * math.prod(design) // at_once), 1) if on_host else 1
        self.every, self.size = np.arange(b), max(-(-b // blocks), 1)

        assemble = prepared.assemble  # what is compiled is kept: it must hold no arrays

        def filled(operands: Leaves) -> tuple[Batch, LevenbergMarquardt, Array]:
            tol, *rest = operands
            problem, region, method = skeleton.fill(rest)
            return assemble(problem, region), method, tol

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

        self._start, self._advance, self._end = (_call(prepared, make, skeleton) for make in (start, advance, end))

    def _operands(self, take: Callable[[Array], Array]) -> Leaves:
        prepared = self.prepared
        some = restricted(prepared.problem, take), each.taken(prepared.region, take), self.method
        return self.tol, *trees.partition(some)[0]

    def start(self) -> None:
        """The first state."""
        self.state = self._put(self._found(self._start, self._blocks(self.every), self.prepared.theta))

    def part(self) -> bool:
        """Problems that have ended in a saddle start again at a lower point next to it; whether there are any.

        A direction without curvature in the Gauss-Newton matrix, as two equal rates have, is tried both ways.
        """
        prepared, backend, state = self.prepared, self.backend, self.state
        down = _flat_directions(
            *(backend.to_numpy(x) for x in (state.status, state.point.theta, state.point.local.curvature))
        )
        members = np.flatnonzero(down.any(axis=1))
        if not len(members) or prepared.region.without_projection:
            return False
        blocks = self._blocks(members)
        members = np.concatenate(blocks)
        take = self._taken(members)
        region = each.plain(each.taken(prepared.region, take))
        ended = parted = trees.map_leaves(take, state)
        xp, found, (x, local, *_) = backend.xp, ended.status < 0, ended.point
        margin = noise(local.value, ended.floor) + self.tol * xp.abs(local.value)
        for step in (0.5, -0.5, 0.1, -0.1):
            moved = x + backend.asarray(step * down[members], dtype=prepared.dtype, device=device(x))
            theta = self._put([(members, region.nearest(moved, local.grad))], state.point.theta)
            there = trees.map_leaves(take, self._put(self._found(self._start, blocks, theta), state))
            lower = ~found & (there.point.local.value < local.value - margin)
            parted = select(backend, lower, there._replace(floor=ended.floor, n_iter=ended.n_iter), parted)
            found = found | lower
        self.state = self._put([(members, parted)], state)
        return bool(xp.any(found))

    def iterate(self, max_iter: int, bar: Bar) -> None:
        """All problems until they end, the running ones together."""
        backend, size = self.backend, self.size
        share, enough = (4, COMPILED) if backend.compiled else (2, SMALLEST)
        while True:
            status, n_iter = (backend.to_numpy(x) for x in (self.state.status, self.state.n_iter))
            running = np.flatnonzero(status == Status.RUNNING.code)
            bar.update(max(len(status) - len(running) - self.done, 0))
            self.done = max(len(status) - len(running), self.done)
            running = running[n_iter[running] < max_iter]
            if not len(running):
                return
            while backend.compiled and size > enough and len(running) <= size // share:  # few sizes to compile for
                size = max(enough, -(-size // share))
            blocks = self._blocks(running, size)
            least = len(blocks[0]) // share if len(running) > enough else 0
            counts = min(max_iter - int(np.max(n_iter[running])), TOGETHER), least
            left, least = (backend.xp.full_like(self.state.status[0], n) for n in counts)
            pieces = list[tuple[np.ndarray, BatchState]]()
            try:
                for piece in self._found(self._advance, blocks, self.state, left, least):
                    pieces.append(piece)
            finally:  # an interruption leaves the others as they were
                self.state = self._put(pieces, self.state) if pieces else self.state

    def _blocks(self, members: np.ndarray, size: int = 0) -> list[np.ndarray]:
        """Members in blocks. A function is compiled for a size: to this the first ones fill the last block."""
        size = size or self.size
        count = max(-(-len(members) // size), 1)
        if self.backend.compiled and len(members):
            members = np.resize(members, count * size)
        return np.array_split(members, count)

    def _found(
        self, run: Callable[..., T], blocks: list[np.ndarray], given: Any, *more: Array
    ) -> Iterator[tuple[np.ndarray, T]]:
        """Blocks of problems, each with what `run` makes of its part of what is `given` for all."""
        for block in blocks:
            take = self._taken(block)
            yield block, run(self._operands(take), trees.map_leaves(take, given), *more)

    def _taken(self, members: np.ndarray) -> Callable[[Array], Array]:
        """What takes the entries of some members from an array."""
        if np.array_equal(members, self.every):
            return lambda x: x
        at = self.backend.asarray(members, device=device(self.prepared.theta))
        return lambda x: namespace_of(x).take(x, at, axis=0)

    def _put(self, pieces: Iterable[tuple[np.ndarray, T]], before: T | None = None) -> T:
        """Arrays of all problems: entries of pieces, each of which is of some members, among those from before."""
        members, parts = map(list, zip(*pieces, strict=True))
        if len(parts) == 1 and np.array_equal(members[0], self.every):
            return parts[0]
        backend, at, b = self.backend, np.concatenate(members), 0 if before is None else len(self.every)
        given = parts if before is None else [before, *parts]
        order = self.every.copy()
        order[at] = b + np.arange(len(at))

        def put(*arrays: Array) -> Array:
            place = device(arrays[0])
            # a framework that compiles would do so for every other number of parts
            arrays = tuple(map(backend.to_numpy, arrays)) if is_host(place) else arrays
            xp = namespace_of(*arrays)
            taken = xp.take(xp.concat(arrays, axis=0), xp.asarray(order, device=device(arrays[0])), axis=0)
            return backend.asarray(taken, device=place)

        return trees.map_leaves(put, *given)

    def to_end(self, max_iter: int, bar: Bar) -> None:
        """All problems, and those again that have ended in a saddle."""
        self.iterate(max_iter, bar)
        for _ in range(0 if self.prepared.shared else PARTINGS):
            if not self.part():
                break
            self.iterate(max_iter, bar)

    def found(self, unended: Status) -> dict[str, Any]:
        """The fields of a result, with the status `unended` for problems that still run."""
        prepared, backend, state = self.prepared, self.backend, self.state
        point, layout = state.point, prepared.layout
        w, condition, codes = self._put(self._found(self._end, self._blocks(self.every), state))
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
        assemble = prepared.assemble

        def make(operands: Leaves) -> Callable[[Array], Linear]:
            return assemble(*skeleton.fill(operands)).linear

        found = _call(prepared, make, skeleton)(operands, backend.xp.take(prepared.theta, at, axis=0))

        def host(x: Any) -> Any:
            x = None if x is None else backend.to_numpy(x)
            return x if x is None or x.dtype.kind == "b" else x.astype(np.result_type(x.dtype, np.float64))

        return Linear(*map(host, found))


def _call(prepared: Prepared, make: Callable[[Leaves], Callable[..., Any]], skeleton: Any) -> Callable[..., Any]:
    """What is compiled once for all batches of the same problem; the fastest code is for many problems."""
    few = max(prepared.theta.shape[0], len(prepared.y_units)) <= FEW
    key = (make.__qualname__, few, skeleton, prepared.layout.treedef, prepared.found, prepared.program)
    return prepared.backend.call(make, key, once=few)


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
