"""The reduced objective of a problem whose rows come in chunks: the same value and gradient, one chunk in memory.

A value is a pass over the lower rows that leaves a triangle (`lower.accumulation`), from which w follows, and a pass
over the upper rows with w fixed where they are others. A gradient is a pass over each level with w, and the adjoint v,
fixed: the sum over chunks of one VJP of the user's functions, with the cotangents of `least_squares.EvaluatedLevel`.
The loop over chunks is Python's, and so are the loops around it; the function of one chunk is compiled where the
framework compiles. Where several processes hold the chunks, each passes over its own, and `reductions` puts together
what they found.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from xvarpro.backends import Backend
from xvarpro.backends.interface import linalg_errors
from xvarpro.core.namespace import device, namespace_of
from xvarpro.core.status import Bar
from xvarpro.core.struct import Array, Leaves
from xvarpro.core.trees import complexified, corner, inner, partition, plus, rounding, scaled, unflatten
from xvarpro.errors import ProblemError
from xvarpro.lower import QR
from xvarpro.lower.stack import condition_of
from xvarpro.objective.in_memory import ModelStructure
from xvarpro.objective.interface import LowerReport, Objective, dead_columns
from xvarpro.objective.least_squares import as_matrix
from xvarpro.objective.mini_batch import AllRows, LowerRows, SameBatch, rows_of_batch
from xvarpro.objective.passes import (
    CONDITION_GRADIENT,
    FOLD,
    SUMS,
    SUMS_AND_GRADIENT,
    SURVEY,
    VALUE_GRADIENT,
    Pass,
    Step,
    UpperSums,
)
from xvarpro.objective.reduced import Point, Reduced
from xvarpro.objective.reductions import across
from xvarpro.problem.problem import Level, Problem
from xvarpro.problem.row_chunks import RowChunks, leading

BAR_DELAY = 1.0  # seconds that a pass takes before it shows a progress bar


class StreamedPoint(NamedTuple):
    """The reduced objective at one theta; nothing in it has the length of a chunk."""

    theta: Leaves
    value: Array  # 0-d
    w: Array  # (n, k)
    R: Array  # triangular factor of the lower level, (n, n)
    slope: Array  # derivative of the upper level with respect to w, (n, k); R again for a separable problem
    energy: Array  # 1/2 |y|^2 of the upper level, 0-d
    upper_gradient: Leaves | None = None  # the upper level's part of the gradient, where it was asked for
    start: Any = ()  # as of `reduced.Point`


class Streamed(Objective):
    """The reduced objective of a prepared problem with one level or both given as `RowChunks`.

    Parameters
    ----------
    problem : Problem
        Its `RowChunks` have a `Stream` for a source; what is not in chunks is on the backend.
    backend : Backend
        For everything around the chunks: one whose loops are not compiled.
    compiler : Backend
        For what is done with one chunk.
    treedef : optree.PyTreeSpec
        Structure of theta.
    structure : ModelStructure
    energy : array, 0-d
        As for `Reduced`.
    progress : bool or None
        Whether long passes show a bar.
    """

    def __init__(
        self,
        problem: Problem,
        backend: Backend,
        compiler: Backend,
        treedef: Any,
        structure: ModelStructure,
        energy: Any = 0.0,
        progress: bool | None = False,
    ) -> None:
        super().__init__(problem, backend, energy)
        self.compiler, self.treedef, self.structure, self.progress = compiler, treedef, structure, progress
        self._accumulation: Any = (problem.lower.solver or QR()).accumulation  # `Problem` refuses rows without one
        self._latest: StreamedPoint | None = None  # for `scale`: the energy would take another pass
        self._folds = 1  # chunks of a level, once they were counted

    def rounding(self, value: Array) -> Array:
        if not (
            self.problem.is_separable and self.problem.lower.loss is None
        ):  # the upper residual is computed, not condensed
            return super().rounding(value)
        xp, size = self.backend.xp, abs(value)
        # every fold rounds once more
        return rounding(xp, size + self._accumulation.noise(size, self.energy) * self._folds**0.5)

    @property
    def target_shape(self) -> tuple[int, int]:
        raise ProblemError(
            "y must be given as an array where the algorithm reads the whole residual, to re-seed units from it; got "
            "RowChunks. Pass y as an array, or use another algorithm"
        )

    @property
    def samples(self) -> int:
        return self._found[0]

    @property
    def chunks(self) -> int:
        return self._found[1]

    @property
    def _found(self) -> tuple[int, int]:
        """Rows and chunks of the level whose chunks are mini-batches, which a pass has counted."""
        source: Any = self._batches.source
        found: tuple[int, int] = source.found  # an algorithm begins with a certificate
        return found

    @property
    def _batches(self) -> RowChunks:
        if not isinstance(self.upper.y, RowChunks) or (
            not self.problem.is_separable and isinstance(self.problem.lower.y, RowChunks)
        ):
            raise ProblemError(
                "a bilevel problem whose chunks are mini-batches must have RowChunks in its upper level, and an array "
                "in the lower one, which determines w from all of its rows; got them otherwise"
            )
        return self.upper.y

    @property
    def rows(self) -> int:
        ys: list[Any] = [level.y for level in self.problem.levels]
        chunked = (type(y) is RowChunks for y in ys)
        found = zip(ys, chunked, self.structure.rows, strict=True)
        return sum(y.source.found[0] if many else rows for y, many, rows in found)

    def rows_of_batch(self, batch: int, lower: LowerRows | None) -> float:
        rows, chunks = self._found
        drawn = rows / chunks * (1 if lower is None else lower.draws)
        return drawn if self.problem.is_separable else drawn + self.rows - rows

    def restricted(self, indices: Array, lower: LowerRows | None = None) -> Objective:
        problem, level = self.problem, self.upper
        stream: Any = self._batches.source
        own: Any = level.y
        if isinstance(lower, AllRows) or (lower is not None and not problem.is_separable):
            raise ProblemError(
                f"lower must be SameBatch() or SecondBatch() for the RowChunks of a separable problem, and be left out "
                f"for a bilevel one; got {lower!r}. For AllRows() hold data in memory, marked xv.Samples"
            )
        chosen = self.backend.to_numpy(indices).tolist()
        if own.group is not None:
            with own.group.together():
                levels = [replace(level, y=replace(own, source=stream.drawn(i))) for i in chosen]
            return self._on(*levels)
        parts = []
        for i in chosen:
            chunk = stream.chunk(i)
            y = own.y if chunk.y is None else as_matrix(chunk.y)
            size = leading(chunk)
            drawn = rows_of_batch(replace(level, y=y, weights=chunk.weights), size, (self.samples / size) ** 0.5)
            parts.append((drawn, chunk.data))
        if problem.is_separable:
            problem = (lower or SameBatch()).problem(problem, *parts)
        else:
            problem = AllRows().problem(problem, *parts)
        return _OfChunks(problem, self.compiler, self.treedef, program=self.structure.program)

    def _on(self, drawn: Level, second: Level | None = None) -> Streamed:
        """The objective on a chunk of each process; w follows from the second, if any."""
        problem = self.problem
        if not problem.is_separable:
            problem = replace(problem, upper=drawn)
        elif second is None:
            problem = replace(problem, lower=drawn)
        else:
            problem = replace(problem, lower=second, upper=replace(drawn, solver=None, W=None))
        return type(self)(problem, self.backend, self.compiler, self.treedef, self.structure)

    # -- values --------------------------------------------------------------------------------------------------------

    def point(self, theta: Leaves, ahead: bool = False) -> StreamedPoint:
        """Value at theta: a pass over every level. With `ahead` the upper one gives its part of the gradient too."""
        try:
            self._latest = self._point(theta, ahead)
        except linalg_errors():
            self._latest = self._nowhere(theta)
        group = self.problem.group
        if group is not None:  # a search compares values: processors that round otherwise must go the same way
            self._latest = self._latest._replace(value=group.same(self._latest.value))
        return self._latest

    def _point(self, theta: Leaves, ahead: bool) -> StreamedPoint:
        problem = self.problem
        w, R, value, energy, rows = self._solved(theta)
        slope, gradient = R, None
        if problem.upper is not None:
            value, slope, energy, gradient = self._upper(theta, w, ahead)
        if problem.R is not None and problem.mu:
            value = value + (0.5 * problem.mu) * problem.R(unflatten(self.treedef, theta))
        if not problem.lower.ridge.definite:
            xp = namespace_of(value)
            deficient = self._accumulation.deficient(self.backend, R, rows)
            value = xp.where(deficient, xp.full_like(value, xp.nan), value)
        return StreamedPoint(theta, value, w, R, slope, energy, gradient, () if problem.lower.loss is None else w)

    def _solved(self, theta: Leaves) -> tuple[Array, Array, Array, Array, int]:
        """Of the lower level w, the triangle, value, energy and number of rows."""
        state, rows = self.walk(0, FOLD, self._start(theta), theta)
        condensed = self._accumulation.condensed(self.backend, state)
        return condensed.argmin(self.backend), condensed.R, 0.5 * condensed.rest, condensed.energy(), rows

    def _upper(self, theta: Leaves, w: Array, ahead: bool) -> tuple[Array, Array, Array, Leaves | None]:
        """Value of the upper level, its derivative with respect to w, its energy, and its part of the gradient."""
        level, gradient = self.upper, None
        zero = inner(w, w) * 0
        state = UpperSums(zero, namespace_of(w).zeros_like(w), zero)
        if ahead:
            start = (state, scaled(0.0, theta))
            (state, gradient), _ = self.walk(1, SUMS_AND_GRADIENT, start, theta, w)
        else:
            state, _ = self.walk(1, SUMS, state, theta, w)
        value, slope = state.value, state.slope
        if level.ridge.present:
            value, slope = value + level.ridge.value(w), slope + level.ridge.slope(w)
        return value, slope, state.energy, gradient

    def _start(self, theta: Leaves) -> Any:
        return self._accumulation.start(*self.ridge(theta))

    def ridge(self, theta: Leaves) -> tuple[Array, Array]:
        """``sqrt(lam) Omega``, (n, n), and zeros in the shape of w."""
        like = theta[0]
        zero = namespace_of(like).zeros(self.structure.w_shape, dtype=like.dtype, device=device(like))
        zero = complexified(zero) if self.structure.complex_w else zero
        return self.problem.lower.ridge.dense(zero.mT), zero

    def _nowhere(self, theta: Leaves) -> StreamedPoint:
        """The point where the user's function inverts a singular matrix: NaN."""
        R, w = (x + float("nan") for x in self.ridge(theta))
        value = namespace_of(w).abs(corner(w))
        return StreamedPoint(theta, value, w, R, w, value)

    def solve_lower(self, theta: Leaves, *y: Array) -> Array:
        return self._solved(theta)[0]

    def scale(self, theta: Leaves) -> Array:
        point = self._latest
        if point is None or any(x is not y for x, y in zip(point.theta, theta, strict=True)):
            point = self.point(theta)
        return point.energy

    def diagnose(self, theta: Leaves) -> LowerReport:
        start = self._start(theta)
        like = theta[0]
        top = namespace_of(like).zeros((self.structure.w_shape[0],), dtype=like.dtype, device=device(like))
        (state, top), rows = self.walk(0, SURVEY, (start, top), theta)
        condensed = self._accumulation.condensed(self.backend, state)
        deficient = self._accumulation.deficient(self.backend, condensed.R, rows)
        xp = namespace_of(top)
        condition, w = condition_of(self.backend, condensed.R), condensed.argmin(self.backend)
        dead = dead_columns(top, self.problem.lower.ridge, w)
        columns = xp.full_like(dead, top.shape[0])
        kinks = xp.zeros_like(dead)
        return LowerReport(deficient, xp.all(xp.isfinite(top)), condition, dead, columns, kinks, w, 0 * condition)

    # -- gradients -----------------------------------------------------------------------------------------------------

    def gradient(self, point: StreamedPoint) -> Leaves:
        """Gradient at a point: a pass over every level, or over the lower alone where the upper's part is known."""
        theta, w = point.theta, point.w
        total = self.penalty_gradient(theta)
        if self.problem.upper is None:
            return self.walk(0, VALUE_GRADIENT, total, theta, w)[0]
        if point.upper_gradient is None:
            total, _ = self.walk(1, VALUE_GRADIENT, total, theta, w)
        else:
            total = plus(total, point.upper_gradient)
        return self.walk(0, CONDITION_GRADIENT, total, theta, w, self._adjoint(point))[0]

    def _adjoint(self, point: StreamedPoint) -> Array:
        solve = self.backend.solve_triangular
        return solve(point.R, solve(point.R, point.slope, transpose=True))

    def value_and_gradient(self, theta: Leaves) -> tuple[StreamedPoint, Leaves]:
        point = self.point(theta, ahead=True)
        return point, self.gradient(point)

    def penalty_gradient(self, theta: Leaves) -> Leaves:
        """Gradient of ``mu/2 R``."""
        problem, penalty = self.problem, self.problem.R
        if penalty is None or not problem.mu:
            return scaled(0.0, theta)
        (value,), pullback = self.backend.vjp(lambda *leaves: (penalty(unflatten(self.treedef, leaves)),), theta)
        return pullback((namespace_of(value).full_like(value, 0.5 * problem.mu),))

    # -- passes --------------------------------------------------------------------------------------------------------

    def walk(self, which: int, one: Pass, state: Any, *args: Any) -> tuple[Any, int]:
        """``state = one.fun(block, state, *args)`` over the chunks of a level; the state and the number of rows."""
        level, shared = self.problem.levels[which], (self.treedef, self.structure.w_shape[0], self._accumulation)
        step = Step(one.fun, level.M, getattr(level.y, "y", None), *shared, self.structure.program, loss=level.loss)
        if not isinstance(level.y, RowChunks):
            bare = Level(level.M, level.y, weights=level.weights, loss=level.loss)
            return step.of(Problem(bare, data=self.problem.data), self.compiler, state, args)
        stream: Any = level.y.source
        step = replace(step, scale=stream.scale, weights=level.weights)
        shown = Bar(stream.own and stream.own[1], self.progress, "chunk", "rows", delay=BAR_DELAY)

        def over_chunks(state: Any) -> tuple[Any, int, int]:
            rows, i = 0, 0
            with closing(stream()) as chunks, shown as bar:
                while (chunk := next(chunks, None)) is not None:
                    state, count = step(chunk, f"{stream.name}chunk {i}", self.compiler, state, args)
                    rows += count
                    chunk = None  # before the next one is made
                    i += 1
                    bar.update()
            stream.own = rows, i
            return state, rows, i

        group, remote, merge = level.y.group, stream.remote, partial(one.merge, self.backend, self._accumulation)
        if remote is not None:
            with shown as bar:
                found, rows, i = remote.walk(step, one.merge, stream.name, self.compiler, state, args, bar.update)
            stream.own = rows, i
            state = merge(state, found)
        else:
            state, rows, i = over_chunks(state) if group is None else across(group, over_chunks, merge, state)
        stream.confirm(rows, i)
        self._folds = max(self._folds, i)
        return state, rows


class _OfChunks(Reduced):
    """The objective on a mini-batch of chunks, in one program where the framework compiles."""

    def __init__(self, problem: Problem, backend: Backend, treedef: Any, program: str) -> None:
        super().__init__(problem, backend, treedef)
        self._program = program

    def value_and_gradient(self, theta: Leaves) -> tuple[Point, Leaves]:
        held, skeleton = partition(self.problem)
        backend, treedef = self.backend, self.treedef

        def make(arrays: Leaves) -> Callable[[Leaves], tuple[Array, Array, Leaves]]:
            f = Reduced(skeleton.fill(arrays), backend, treedef)

            def run(theta: Leaves) -> tuple[Array, Array, Leaves]:
                point, gradient = f.value_and_gradient(theta)
                return point.value, point.w, gradient

            return run

        value, w, gradient = backend.call(make, ("mini-batch", skeleton, treedef, self._program))(held, theta)
        return Point(theta, value, w, w, ()), gradient
