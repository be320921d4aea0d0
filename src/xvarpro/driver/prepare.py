"""From what a user passes to what a solve computes with: find the destination, move, check, compress."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import zip_longest
from typing import Any, cast

import numpy as np

from xvarpro import operators
from xvarpro.backends import Backend, exchange, modules, registry
from xvarpro.backends.group import Group
from xvarpro.backends.registry import uncompiled
from xvarpro.core import trees
from xvarpro.core.namespace import device, dtype_name, namespace_of
from xvarpro.core.struct import Array, Leaves, Tree
from xvarpro.driver.model_check import check_feasible, check_model, first_rows, is_feasible, outputs_of
from xvarpro.driver.transfer import CallerLayout, Destination, Transfer, destination
from xvarpro.driver.units import for_design, multiplied, targets_near_one, theta_near_one
from xvarpro.errors import ProblemError, warn_caller
from xvarpro.objective.in_memory import ModelStructure
from xvarpro.objective.inexact import Inexact
from xvarpro.objective.interface import Objective
from xvarpro.objective.reduced import Reduced
from xvarpro.objective.streamed import Streamed
from xvarpro.problem.column_chunks import ColumnChunks, Passes, compress
from xvarpro.problem.problem import Level, Problem
from xvarpro.results.recipe import Fingerprints
from xvarpro.sets.promises import check_promises
from xvarpro.sets.region import Region, resolve


@dataclass(frozen=True)
class Prepared:
    """A checked problem with its arrays on one backend, and how results return to the caller."""

    problem: Problem  # arrays of `backend`; targets compressed where that is exact
    backend: Backend
    compiler: Backend  # of the parts that compile where the rest does not; else the same
    dtype: str
    device: Any
    theta: Leaves
    region: Region
    layout: CallerLayout
    original: Problem
    compressed: bool
    structure: ModelStructure
    y_unit: float  # power of two by which the targets of `problem` were multiplied
    theta_units: tuple[float, ...]  # powers of two by which the leaves of theta were multiplied
    progress: bool | None
    theta0: Tree  # before a solve: the start in NumPy's arrays, in the caller's units
    fingerprints: Fingerprints  # of problem and theta0
    columns: int = 0  # right-hand sides of this process, where they come in chunks

    @cached_property
    def assemble(self) -> Callable[..., Objective]:
        """Make the reduced objective of a problem like this one, of traced arrays too.

        It holds no array itself: compiled functions are kept under it.
        """
        shared = {"backend": self.backend, "treedef": self.layout.treedef, "structure": self.structure}
        if self.problem.noise is not None:
            from xvarpro.objective import marginal

            if self.problem.in_rows:
                return partial(marginal.StreamedMarginal, **shared, compiler=self.compiler, progress=self.progress)
            return partial(marginal.Marginal, **shared)
        if self.problem.in_rows:
            streamed: Any = Streamed
            if self.problem.lower.loss is not None:
                from xvarpro.objective.streamed_losses import StreamedLosses

                streamed = StreamedLosses
            return partial(streamed, **shared, compiler=self.compiler, progress=self.progress)
        if self.problem.lower.chunks_in_set:
            from xvarpro.objective.by_chunk import ByChunk

            return partial(ByChunk, **shared, compiler=self.compiler)
        group = self.group if self.in_columns else None
        return partial(Reduced if self.structure.exact else Inexact, **shared, group=group)

    @cached_property
    def group(self) -> Group | None:
        """The processes that hold rows or columns of the targets."""
        return self.original.group

    @property
    def rank(self) -> int:
        """Of this process among them."""
        return 0 if self.group is None else self.group.rank

    def together(self) -> AbstractContextManager[None]:
        """Let all of them raise where one does."""
        return nullcontext() if self.group is None else self.group.together()

    @property
    def in_columns(self) -> bool:
        """Whether processes hold right-hand sides of their own, as they are."""
        return self.group is not None and not (self.compressed or self.problem.in_rows)

    @property
    def vector(self) -> bool:
        """Whether the caller's target, and so w, is a vector rather than a matrix of columns."""
        y = self.original.lower.y
        return (y.ndim if trees.is_array(y) else self.structure.y_ndim) == 1

    def tree(self, theta: Leaves) -> Tree:
        """Leaves as the user's functions take them."""
        return trees.unflatten(self.layout.treedef, theta)

    def as_stated(self, theta: Leaves) -> Leaves:
        """Leaves in the caller's units."""
        return multiplied(theta, [1 / unit for unit in self.theta_units])

    def to_caller(self, theta: Leaves) -> Tree:
        """Leaves as the caller's arrays, in the caller's units."""
        return self.layout.to_caller(self.as_stated(theta), self.backend)

    def w_to_caller(self, w: Array) -> Array:
        """``w``, (n, k), in the caller's units and shape."""
        with self.backend.scope(self.dtype):
            w = w if self.y_unit == 1.0 else w / self.y_unit
            return self.layout.array(w[:, 0] if self.vector else w, self.backend)

    def at(self, problem: Problem, theta: Tree, over: Tree) -> Prepared | None:
        """What `prepare` returns for the same problem at another theta; None where it has to be asked.

        That is where this computes elsewhere than in theta's framework, has targets in chunks of columns, or has other
        targets or units than stated.
        """
        leaves, treedef = trees.flatten(modules.taken(theta))
        here = self.backend, self.dtype, self.device
        own = treedef == self.layout.treedef and all(
            (registry.of(x), dtype_name(x), device(x)) == here and tuple(x.shape) == tuple(y.shape)
            for x, y in zip(leaves, self.theta, strict=True)
        )
        stated = problem is self.original and self.y_unit == 1.0 and set(self.theta_units) == {1.0}
        chunks = isinstance(problem.lower.y, ColumnChunks)
        if chunks or self.compressed or self.group is not None or not (own and stated):
            return None
        with self.backend.scope(self.dtype):
            transfer = Transfer(self.backend, self.dtype, self.device)
            moved = transfer.theta(leaves, trees.paths(theta))
            region = trees.map_arrays(transfer.plain, resolve(over, trees.unflatten(treedef, moved)))
        return replace(self, theta=moved, region=region)

    def target(self, block: Array) -> Array:
        """Columns (m, k) of the caller's lower target, moved and weighted as those of the problem were."""
        weights = self.problem.lower.weights
        with self.backend.scope(self.dtype):
            transfer = Transfer(self.backend, self.dtype, self.device, warn=False)  # it has been moved before
            y = transfer.weighted(transfer(block, "y", real=True, gaps=trees.is_array(weights)), weights, "y")
            return y if self.y_unit == 1.0 else self.y_unit * y

    def to_backend(self, x: Array) -> Array:
        """An array of the caller's, shaped like theta or w, in the dtype of the work."""
        with self.backend.scope(self.dtype):
            return Transfer(self.backend, self.dtype, self.device).plain(x)

    def certify_designs(self) -> None:
        """Run `operators.dottest` on every level's design at theta0, where rows come in chunks on the first of them."""
        problem = first_rows(self.problem) if self.problem.in_rows else self.problem
        reduced = Reduced(problem, self.backend, self.layout.treedef)
        with self.backend.scope(self.dtype):
            for outputs in outputs_of(reduced.evaluate(self.theta, reduced.constants)):
                operators.dottest(outputs.M)

    def certify_sets(self) -> None:
        """Run `sets.check` on every set that the package does not define."""
        with self.backend.scope(self.dtype):
            for i, C in self.region.constrained:
                if C.is_own:
                    check_promises(C, self.backend, self.theta[i])

    @cached_property
    def agree(self) -> Callable[[float], float]:
        """Makes a number that differs from process to process, such as the clock, that of process 0."""
        return (self.group or self.compiler.placement).agree

    def synchronised(self, fun: Callable[..., Any]) -> Callable[..., Any]:
        """`fun` with results that are those of process 0 to the last bit, so that all of them take the same steps."""
        group = self.group
        return fun if group is None else lambda *args: group.same(fun(*args))

    def call(self, fun: Callable[..., Any], *args: Any, once: bool = False) -> Any:
        """``fun(objective, *args)``, compiled where the backend compiles; `fun` must be a function of a module."""
        operands, skeleton = partition(self.backend, self.dtype, self.problem)
        assemble = self.assemble

        def make(operands: Leaves) -> Callable[..., Any]:
            return partial(fun, assemble(skeleton.fill(operands)))

        with self.backend.scope(self.dtype):
            key = fun, skeleton, self.layout.treedef, self.structure
            return self.backend.call(make, key, once)(operands, *args)


def prepare(
    problem: Problem,
    theta0: Tree,
    *,
    over: Tree = None,
    backend: str | Backend | None = None,
    device: Any = None,
    dtype: str | None = None,
    progress: bool | None = None,
    deterministic: bool = False,
    solving: bool = False,
    units: bool = True,
    debug: bool = False,
) -> Prepared:
    """Check everything and move it. Raises before any work; see `solve` for the errors.

    Before the first solve with a function it is called once more, to check that it returns the same; with `debug`
    before every one. Targets and leaves of theta that are far from 1 are then multiplied by powers of two, so that no
    square leaves the range of the precision; not without `units`, for methods whose steps depend on them.
    """
    if not isinstance(problem, Problem):
        raise ProblemError(f"problem must come from xv.separable or xv.bilevel; got {type(problem).__name__}")
    group = problem.group
    with nullcontext() if group is None else group.together():
        to = destination(theta0, backend, device, dtype, deterministic, problem)
        prepared = _checked(problem, theta0, over, to, progress, solving, units, debug)
    backend, dtype, structure = prepared.compiler, prepared.dtype, prepared.structure
    with backend.scope(dtype):
        if group is not None:
            shapes = ", ".join(str(tuple(x.shape)) for x in prepared.theta)
            kind = "complex" if structure.complex_w else "real"
            group.check_same("shapes and dtype", f"theta {shapes}, {kind} w {structure.w_shape} in {dtype}")
            prepared = replace(prepared, theta=group.same(prepared.theta))
        if solving and units:  # of the theta that all processes have
            problem, region, theta, theta_units = theta_near_one(
                prepared.problem, prepared.region, prepared.theta, backend, dtype
            )
            prepared = replace(prepared, problem=problem, region=region, theta=theta, theta_units=theta_units)
        region = prepared.region if structure.exact else prepared.region.measured(prepared.theta)
        moved, compressed, columns = _compressed(prepared.problem, backend, structure)
        y: Any = moved.lower.y
        if isinstance(prepared.original.lower.y, ColumnChunks) and trees.is_array(y) and not compressed:
            columns = y.shape[1]
    return replace(prepared, problem=moved, region=region, compressed=compressed, columns=columns)


def _checked(
    problem: Problem,
    theta0: Tree,
    over: Tree,
    to: Destination,
    progress: bool | None,
    solving: bool,
    units: bool,
    debug: bool,
) -> Prepared:
    """As `prepare`, without a word to other processes; theta has its own units, and nothing is compressed yet."""
    group, in_set = problem.group, problem.lower.chunks_in_set
    if all(0 in x.shape for x in to.leaves):
        raise ProblemError(
            f"theta0 must hold at least one number; got no entries in {', '.join(to.names)}. For a model without "
            "nonlinear parameters pass np.ones(1) with over=xv.sets.Box(1.0, 1.0), which the model need not read"
        )
    with to.backend.scope(to.dtype):
        transfer = Transfer(to.backend, to.dtype, to.device)
        theta = transfer.theta(to.leaves, to.names)
        region = resolve(over, trees.unflatten(to.layout.treedef, theta))
        if solving:
            _warn_of_slices(region, trees.unflatten(to.layout.treedef, theta), to.names)
        region = trees.map_arrays(transfer.plain, region)
        if not is_feasible(off := violation(to.backend, region, theta)):
            each = [replace(region, constrained=(pair,)) for pair in region.constrained]
            worst, C = max(each, key=lambda one: float(violation(to.backend, one, theta))).constrained[0]
            nearest = "xv.project(theta0, over) gives the nearest one"
            if not C.has_projection:
                nearest = f"{type(C).__name__} has no projection; its random_point(theta0) and center(theta0) are some"
            check_feasible(off, to.names[worst].replace("theta", "theta0", 1), nearest)
        moved = transfer.problem(problem)
        # before the model is called, since it may write to what it is given
        theta0 = (
            trees.unflatten(to.layout.treedef, [np.array(to.backend.to_numpy(x)) for x in theta]) if solving else None
        )
        stamps = Fingerprints(problem, theta0)
        structure = check_model(moved, problem, to.backend, to.layout.treedef, theta, solving, debug)
        if moved.noise is not None:
            from xvarpro.objective.marginal import settled

            moved, units = settled(moved, structure, to.backend, to.dtype, to.device), False
        moved, y_unit = targets_near_one(moved, to.backend, to.dtype) if solving and units else (moved, 1.0)
        W = moved.lower.W
        if W is not None and W.has_choice:
            one: Any = moved.lower.y  # of chunks, of which none is in memory, any column will do
            if isinstance(one, ColumnChunks):
                one = to.backend.xp.zeros((structure.rows[0], 1), dtype=theta[0].dtype, device=device(theta[0]))
            alone = replace(moved, lower=replace(moved.lower, y=one))
            low = Reduced(alone, to.backend, to.layout.treedef).lower_level(theta)[2]
            given: Any = problem.lower.W
            W = for_design(given, low, theta[0]).part(np.arange(low.y.shape[1]), y_unit)
            W = trees.map_arrays(transfer.plain, W)
            moved = replace(moved, lower=replace(moved.lower, W=W))
        moved = moved if moved.compress else _joined(moved, structure.rows)
    return Prepared(
        problem=moved,
        # chunks are read, and processes speak to each other, between compiled parts
        backend=uncompiled(to.backend) if group is not None or problem.in_rows or in_set else to.backend,
        compiler=to.backend,
        dtype=to.dtype,
        device=to.device,
        theta=theta,
        region=region,
        layout=to.layout,
        original=problem,
        compressed=False,
        structure=structure,
        y_unit=y_unit,
        theta_units=(1.0,) * len(theta),
        progress=progress if group is None or group.rank == 0 else False,
        theta0=theta0,
        fingerprints=stamps,
    )


class SlicesWarning(UserWarning):
    """A set of matrices holds a convolution kernel, each of whose slices it takes for a matrix of its own."""


def _warn_of_slices(region: Region, theta: Tree, names: list[str]) -> None:
    leaves, kernels = trees.leaves(theta), modules.kernel_rows(theta)
    for i, C in region.constrained:
        shape, rows = tuple(leaves[i].shape), kernels[i]
        if rows and C.event_ndim == 2 and len(shape) > 2:
            m, n = math.prod(shape[:rows]), math.prod(shape[rows:])
            warn_caller(
                f"{C!r} holds every slice of {names[i]} over its last two axes, {shape[-2]} x {shape[-1]}, by itself. "
                f"For the matrix of the kernel, {m} x {n}, write xv.sets.Flattened({C!r}, axes={len(shape)}, "
                f"rows={rows}); where slices are meant, ignore xv.SlicesWarning",
                SlicesWarning,
            )
            return  # once for a solve


def partition(backend: Backend, dtype: str, obj: Any) -> tuple[Leaves, trees.Skeleton]:
    """Arrays of problem, region or algorithm, and the rest; numbers that are not compiled are among the arrays."""
    if backend.compiled:
        obj = trees.with_numbers(obj, lambda x: np.asarray(x, dtype))
    return trees.partition(obj)


def violation(backend: Backend, region: Region, theta: Leaves) -> Array:
    """The largest relative violation of any set, 0-d; where the backend compiles, by NumPy or in one program."""
    if not (backend.compiled and all(C.compiles for _, C in region.constrained)):
        return region.violation(theta)
    x = exchange.readable(*theta)
    if x[0] is not theta[0]:
        with registry.owner(x[0]).scope(dtype_name(x[0])):
            return trees.map_arrays(registry.to_numpy, region).violation(x)
    operands, skeleton = partition(backend, dtype_name(theta[0]), region)
    run = backend.call(lambda operands: skeleton.fill(operands).violation, ("violation", skeleton), once=True)
    return run(operands, theta)


def _compressed(problem: Problem, backend: Backend, structure: ModelStructure) -> tuple[Problem, bool, int]:
    """The problem with the right-hand sides of both levels rotated by one orthogonal matrix into few, and whether.

    Of right-hand sides in chunks it says how many they were.
    """
    levels, W = problem.levels, problem.lower.W
    if problem.in_rows or structure.columns is not None or any(callable(x.y) or x.loss is not None for x in levels):
        return problem, False, 0
    if problem.lower.chunks_in_set:
        passes = Passes(cast(ColumnChunks, problem.lower.y), structure.rows[0])
        return replace(problem, lower=replace(problem.lower, y=ColumnChunks(passes))), False, 0
    if not (problem.compress and (W is None or W.linear)):
        return problem, False, 0
    ys: list[Any] = [level.y for level in levels]
    chunked = isinstance(ys[0], ColumnChunks)
    if not chunked and (len({y.shape[1] for y in ys}) > 1 or ys[0].shape[1] <= sum(y.shape[0] for y in ys)):
        return problem, False, 0
    columns = 0
    if chunked:
        both = ys[0] if len(ys) == 1 else ColumnChunks(partial(_stacked_chunks, backend, *ys), ys[0].group)
        passes = Passes(both, sum(structure.rows))
        L, columns = compress(ColumnChunks(passes, both.group), backend), passes.columns
    else:
        parts = exchange.readable(*ys)
        small = compress(parts[0] if len(ys) == 1 else namespace_of(parts[0]).concat(parts))
        L = backend.asarray(small, device=device(ys[0]))
    if len(ys) == 1:
        return replace(problem, lower=replace(levels[0], y=L)), True, columns
    m = structure.rows[0]
    return replace(problem, lower=replace(levels[0], y=L[:m, :]), upper=replace(levels[1], y=L[m:, :])), True, columns


def _joined(problem: Problem, rows: Sequence[int]) -> Problem:
    """The problem with chunks of columns as one target."""

    def joined(level: Level, m: int) -> Level:
        if not isinstance(level.y, ColumnChunks):
            return level
        blocks = list(Passes(level.y, m)())
        return replace(level, y=blocks[0] if len(blocks) == 1 else namespace_of(blocks[0]).concat(blocks, axis=1))

    lower, *upper = map(joined, problem.levels, rows)
    return replace(problem, lower=lower, upper=upper[0] if upper else None)


def _stacked_chunks(backend: Backend, lower: ColumnChunks, upper: ColumnChunks) -> Iterator[Array]:
    for i, (a, b) in enumerate(zip_longest(lower, upper)):
        if a is None or b is None or a.shape[1] != b.shape[1]:
            found = " and ".join("no chunk" if x is None else f"shape {tuple(x.shape)}" for x in (a, b))
            raise ProblemError(f"chunk {i} of both targets must have the same number of columns; got {found}")
        yield backend.xp.concat([a, b])
