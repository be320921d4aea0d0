"""From what a user handed over to what a solve computes with: checked, moved once, in one dtype on one device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from typing import Any

import numpy as np

from xvarpro import backends
from xvarpro.backends import Backend, exchange
from xvarpro.core import trees
from xvarpro.core.struct import Array, Leaves, Tree
from xvarpro.driver.model_check import check_model, first_rows, outputs_of
from xvarpro.driver.transfer import FLOATS, Transfer
from xvarpro.errors import ExchangeError, ProblemError
from xvarpro.objective.inexact import Inexact
from xvarpro.objective.interface import Objective
from xvarpro.objective.reduced import ModelStructure, Reduced
from xvarpro.objective.streamed import Streamed
from xvarpro.operators import dottest
from xvarpro.problem.column_chunks import ColumnChunks, compress
from xvarpro.problem.problem import Problem
from xvarpro.sets.region import Region, resolve


@dataclass(frozen=True)
class CallerLayout:
    """Where theta0 came from, and so where results go."""

    backend: Backend
    dtype: str
    devices: tuple[Any, ...]  # one per leaf
    treedef: Any

    def to_caller(self, leaves: Leaves, source: Backend) -> Tree:
        """Leaves of a computation as the caller's tree of the caller's arrays."""
        return trees.unflatten(
            self.treedef, [self.array(x, source, device) for x, device in zip(leaves, self.devices, strict=True)]
        )

    def array(self, x: Array, source: Backend, device: Any = None) -> Array:
        """One array, by default on the device of the first leaf."""
        device = self.devices[0] if device is None else device
        with self.backend.scope(self.dtype):
            dtype = FLOATS[self.dtype] if trees.is_complex(x) else self.dtype
            moved = exchange.move(x, self.backend, dtype=dtype, device=device)
            # what another framework holds may be read-only
            return moved if source is self.backend else self.backend.xp.asarray(moved, copy=True)


@dataclass(frozen=True)
class Prepared:
    """A problem on its backend, with the layout of the results."""

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
    tally: exchange.Tally
    progress: bool | None = None

    @property
    def assemble(self) -> Callable[..., Objective]:
        """What makes the reduced objective of this problem from traced arrays. It holds no array itself: compiled
        functions are kept under it.
        """
        shared = {"backend": self.backend, "treedef": self.layout.treedef, "structure": self.structure}
        if self.problem.in_rows:
            return partial(Streamed, **shared, compiler=self.compiler, progress=self.progress)
        return partial(Reduced if self.structure.exact else Inexact, **shared)

    @property
    def vector(self) -> bool:
        """Whether the caller's target, and so w, is a vector rather than a matrix of columns."""
        y = self.original.lower.y
        return (y.ndim if trees.is_array(y) else self.structure.y_ndim) == 1

    def target(self, block: Array) -> Array:
        """Columns of the caller's lower target as this solve sees them."""
        weights = self.problem.lower.weights
        with self.backend.scope(self.dtype):
            transfer = Transfer(self.backend, self.dtype, self.device)
            return transfer.weighed(transfer(block, "y", real=True, gaps=weights is not None), weights, "y")

    def to_backend(self, x: Array) -> Array:
        """An array of the caller's, shaped like theta or w, as this solve computes with it."""
        with self.backend.scope(self.dtype):
            kind = exchange.dtype_name(x)
            dtype = FLOATS[self.dtype] if kind.startswith("complex") else self.dtype
            return exchange.move(x, self.backend, dtype=dtype, device=self.device)

    def certify_designs(self) -> None:
        """`operators.dottest` of every level's design at theta0; of a level in chunks, of the first one."""
        problem = first_rows(self.problem) if self.problem.in_rows else self.problem
        reduced = Reduced(problem, self.backend, self.layout.treedef)
        with self.backend.scope(self.dtype):
            for stated in outputs_of(reduced.evaluate(self.theta, reduced.constants)):
                dottest(stated.M)

    def call(self, fun: Callable[..., Any], *args: Any) -> Any:
        """``fun(reduced, *args)`` inside the backend's scope, compiled where it compiles. `fun` must be a module's."""
        operands, skeleton = trees.partition(self.problem)
        assemble = self.assemble

        def make(operands: Leaves) -> Callable[..., Any]:
            reduced = assemble(skeleton.fill(operands))
            return lambda *args: fun(reduced, *args)

        with self.backend.scope(self.dtype):
            return self.backend.call(make, (fun, skeleton, self.layout.treedef))(operands, *args)


def destination(
    theta0: Tree, backend: str | Backend | None, device: Any, dtype: str | None, deterministic: bool = False
) -> tuple[list[Any], list[str], Backend, str, Any, CallerLayout]:
    """Leaves of theta0 and their names; the backend, dtype and device to compute with; the way back."""
    leaves, treedef = trees.flatten(theta0)
    names = trees.paths(theta0)
    leaves = [np.asarray(x) if isinstance(x, float) else x for x in leaves]
    source = _owner(leaves, names)
    own_dtype = _common_dtype(leaves, names, source)
    to = source if backend is None else backend if isinstance(backend, Backend) else backends.get(backend)
    to = to.deterministic() if deterministic else to
    work = dtype or own_dtype
    if work not in FLOATS:
        raise ProblemError(f"dtype must be 'float32' or 'float64', got {work!r}")
    place = _place(to, device) if device is not None else to.device_of(leaves[0]) if to.name == source.name else None
    layout = CallerLayout(source, work, tuple(source.device_of(x) for x in leaves), treedef)
    _check_return_dtype(layout, own_dtype)
    return leaves, names, to, work, place, layout


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
) -> Prepared:
    """Check everything, then move it. Raises before any work; see `solve` for what."""
    if not isinstance(problem, Problem):
        raise ProblemError(f"problem must come from xv.separable or xv.bilevel, got {type(problem).__name__}")
    leaves, names, to, work, place, layout = destination(theta0, backend, device, dtype, deterministic)
    treedef = layout.treedef
    with to.scope(work):
        # a copy: the result must not share memory with what the caller may write to
        theta = tuple(to.xp.asarray(exchange.move(x, to, dtype=work, device=place), copy=True) for x in leaves)
        tally = exchange.Tally()
        for x, moved in zip(leaves, theta, strict=True):
            tally.add(x, moved)
        _check_finite(to, theta, names)
        region = resolve(over, trees.unflatten(treedef, theta))
        region = trees.map_arrays(lambda x: exchange.move(x, to, dtype=work, device=place, tally=tally), region)
        _check_feasible(to, region, theta)
        transfer = Transfer(to, work, place, tally=tally)
        moved = transfer.problem(problem)
        sample = first_rows(moved) if problem.in_rows else moved
        structure = check_model(Reduced(sample, to, treedef), sample if problem.in_rows else problem, theta, work)
        moved, compressed = _compressed(moved, to, structure)
        region = region if structure.exact else region.measured(theta)
    around = to.uncompiled() if problem.in_rows else to  # files are read between one chunk and the next
    return Prepared(
        moved, around, to, work, place, theta, region, layout, problem, compressed, structure, tally, progress
    )


def _place(backend: Backend, device: Any) -> Any:
    try:
        place = backend.parse_device(device)
        backend.asarray(np.zeros(1, np.float32), device=place)
    except Exception as error:  # each framework has its own type for this, some an AssertionError
        raise ProblemError(
            f"device {device!r} cannot be used by the {backend.name} backend ({error}); it has "
            f"{', '.join(backend.devices())}"
        ) from error
    return place


def _owner(leaves: list[Any], names: list[str]) -> Backend:
    if not leaves:
        raise ProblemError("theta0 has no arrays")
    owners: dict[str, str] = {}
    for x, name in zip(leaves, names, strict=True):
        owner = backends.of(x)
        if owner is None:
            raise ProblemError(f"{name} must be an array or a float, got {type(x).__name__}")
        owners.setdefault(owner.name, name)
    if len(owners) > 1:
        found = ", ".join(f"{name} is a {owner} array" for owner, name in owners.items())
        raise ProblemError(f"theta0 mixes frameworks: {found}. Bring all of it to one; the solve follows theta0")
    return backends.get(next(iter(owners)))


def _common_dtype(leaves: list[Any], names: list[str], source: Backend) -> str:
    dtypes: dict[str, str] = {}
    for x, name in zip(leaves, names, strict=True):
        dtypes.setdefault(source.dtype_name(x), name)
    for dtype, name in dtypes.items():
        if dtype not in FLOATS:
            raise ProblemError(
                f"{name} has dtype {dtype}: theta0 must be float32 or float64, since steps are real numbers"
            )
    if len(dtypes) > 1:
        found = ", ".join(f"{name} is {dtype}" for dtype, name in dtypes.items())
        raise ProblemError(f"theta0 mixes dtypes: {found}. The whole solve is done in theta0's dtype: choose one")
    return next(iter(dtypes))


def _check_return_dtype(layout: CallerLayout, own_dtype: str) -> None:
    """A caller who asks for another dtype must be able to hold it: JAX rounds float64 while its x64 flag is off."""
    if layout.dtype == own_dtype:
        return
    probe = layout.backend.asarray(np.zeros(1, layout.dtype))
    if layout.backend.dtype_name(probe) != layout.dtype:
        raise ExchangeError(
            f"dtype={layout.dtype!r} was asked for and theta0 is a {own_dtype} {layout.backend.name} array: the result "
            f"cannot be returned as {layout.dtype} while jax_enable_x64 is off. Turn it on, pass theta0 as a NumPy "
            "array, or leave out dtype="
        )


def _check_finite(backend: Backend, arrays: Leaves, names: list[str]) -> None:
    for x, name in zip(arrays, names, strict=True):
        if not bool(backend.xp.all(backend.xp.isfinite(x))):
            raise ProblemError(f"{name} contains NaN or inf")


def _check_feasible(backend: Backend, region: Region, theta: Leaves) -> None:
    violation = float(region.violation(theta))
    # a point that a projection in this dtype returns must pass
    if not violation <= 1e3 * backend.xp.finfo(theta[0].dtype).eps:
        raise ProblemError(
            f"theta0 is infeasible: it violates its set by {violation:.3g}, relative to the set's size. "
            "Start from xv.project(theta0, over), or from a point of the set"
        )


def _compressed(problem: Problem, backend: Backend, structure: ModelStructure) -> tuple[Problem, bool]:
    """The problem with the k right-hand sides of both levels turned by one orthogonal matrix into few."""
    levels = [problem.lower] if problem.upper is None else [problem.lower, problem.upper]
    chunked = isinstance(problem.lower.y, ColumnChunks)
    linear = problem.lower.W is None or problem.lower.W.linear
    whole = problem.in_rows or any(callable(level.y) for level in levels) or structure.columns is not None
    if whole or not linear:
        return problem, False
    if not chunked:
        columns = {level.y.shape[1] for level in levels}
        fits = len(columns) == 1 and columns.pop() > sum(level.y.shape[0] for level in levels)
        if not (problem.compress and fits):
            return problem, False
    elif not problem.compress:
        raise ProblemError("a target in ColumnChunks is always compressed: leave out compress=False")
    if len(levels) == 1:
        stacked = levels[0].y
    elif chunked:
        stacked = ColumnChunks(partial(_stacked_chunks, backend, levels[0].y, levels[1].y))
    else:
        stacked = backend.xp.concat([level.y for level in levels])
    L = compress(stacked, backend)
    if len(levels) == 1:
        return replace(problem, lower=replace(problem.lower, y=L)), True
    m = next(iter(levels[0].y)).shape[0] if chunked else levels[0].y.shape[0]
    return (
        replace(problem, lower=replace(levels[0], y=L[:m, :]), upper=replace(levels[1], y=L[m:, :])),
        True,
    )


def _stacked_chunks(backend: Backend, lower: ColumnChunks, upper: ColumnChunks) -> Iterator[Array]:
    for i, (a, b) in enumerate(zip_longest(lower, upper)):
        if a is None or b is None or a.shape[1] != b.shape[1]:
            found = " and ".join("no chunk" if x is None else f"shape {tuple(x.shape)}" for x in (a, b))
            raise ProblemError(f"chunk {i} of the two targets: {found}; they need the same number of columns")
        yield backend.xp.concat([a, b])
