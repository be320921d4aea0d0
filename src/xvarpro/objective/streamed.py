"""The reduced objective of a problem whose rows come in chunks: the same value and gradient, one chunk in memory.

A value is a pass over the lower rows that leaves a triangle (`lower.accumulation`), from which w follows; where another
level judges, a pass over its rows with w fixed. A gradient is a pass over each level with w, and the adjoint v, fixed:
the sum over chunks of one VJP of the user's functions. The loop over chunks is Python's, and so are the loops around
it; what is done with a chunk is one function, compiled where the framework compiles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from xvarpro.backends import Backend
from xvarpro.core.namespace import array_namespace, device
from xvarpro.core.progress import Bar
from xvarpro.core.struct import Array, Leaves
from xvarpro.core.trees import corner, inner, is_complex, partition, plus, rounding, scaled, unflatten
from xvarpro.errors import ModelError, ProblemError
from xvarpro.lower import Cholesky
from xvarpro.lower.accumulation import Accumulation, Gram, Triangle
from xvarpro.objective.interface import Objective, units
from xvarpro.objective.least_squares import EvaluatedLevel, LevelOutputs, complexified, like_target, outers
from xvarpro.objective.reduced import ModelStructure, Parts, Reduced
from xvarpro.operators import Dense, as_operator
from xvarpro.problem.problem import Level, Problem
from xvarpro.problem.row_chunks import Chunk, RowChunks


class StreamedPoint(NamedTuple):
    """The reduced objective at one theta; nothing in it is as long as a chunk."""

    theta: Leaves
    value: Array
    w: Array
    R: Array  # triangular factor of the lower level
    slope: Array  # derivative of the upper level with respect to w; that of a separable problem is zero, and R again
    energy: Array  # 1/2 |y|^2 of the upper level


class Judged(NamedTuple):
    """Sums over the rows of the upper level, w fixed."""

    square: Array  # |M w - y|^2
    slope: Array  # M^H (M w - y)
    energy: Array  # |y|^2

    def with_rows(self, M: Any, y: Array, r: Array) -> Judged:
        """With a block of rows added, of residual `r`."""
        return Judged(self.square + inner(r, r), self.slope + M.rmatvec(r), self.energy + inner(y, y))


class Streamed(Objective):
    """The reduced objective of a prepared problem of which one level or both come in `RowChunks`.

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
        self._way: Accumulation = Gram() if isinstance(problem.lower.solver, Cholesky) else Triangle()
        self._latest: StreamedPoint | None = None
        self._ahead: tuple[Leaves, Leaves] | None = None  # theta, and the upper level's part of the gradient there

    def rounding(self, value: Array) -> Array:
        if not self.problem.is_separable:  # the upper residual is computed, not condensed
            return super().rounding(value)
        size = array_namespace(value).abs(value)
        return rounding(size + self._way.noise(size, self.energy))

    @property
    def target_shape(self) -> tuple[int, int]:
        raise ProblemError("a residual is asked for as a whole, to seed units from, and the rows come in chunks")

    @property
    def samples(self) -> int:
        raise ProblemError("mini-batches are drawn from rows in memory, and the rows come in chunks")

    def restricted(self, indices: Array) -> Objective:
        raise ProblemError("mini-batches are drawn from rows in memory, and the rows come in chunks")

    # -- values --------------------------------------------------------------------------------------------------------

    def point(self, theta: Leaves, ahead: bool = False) -> StreamedPoint:
        """Value at theta: a pass over every level. With `ahead` the upper one gives its part of the gradient too."""
        self._ahead = None
        try:
            self._latest = self._point(theta, ahead)
        except self.backend.failures:
            self._latest = self._nowhere(theta)
        return self._latest

    def _point(self, theta: Leaves, ahead: bool) -> StreamedPoint:
        problem = self.problem
        state, rows = self._walk(0, _fold, self._start(theta), theta)
        condensed = self._way.condensed(self.backend, state)
        w = condensed.argmin(self.backend)
        if problem.upper is None:
            value, slope, energy = 0.5 * condensed.rest, condensed.R, condensed.energy()
        else:
            value, slope, energy = self._judged(theta, w, ahead)
        if problem.R is not None and problem.mu:
            value = value + (0.5 * problem.mu) * problem.R(unflatten(self.treedef, theta))
        if not problem.lower.lam:
            xp = array_namespace(value)
            deficient = self._way.deficient(self.backend, condensed.R, rows)
            value = xp.where(deficient, xp.full_like(value, xp.nan), value)
        return StreamedPoint(theta, value, w, condensed.R, slope, energy)

    def _judged(self, theta: Leaves, w: Array, ahead: bool) -> tuple[Array, Array, Array]:
        """Value of the upper level, its derivative with respect to w, and its energy."""
        level = self.upper
        nought = inner(w, w) * 0
        state: Any = Judged(nought, array_namespace(w).zeros_like(w), nought)
        if ahead:
            (state, gradient), _ = self._walk(1, _judge_and_differentiate, (state, scaled(0.0, theta)), theta, w)
            self._ahead = (theta, gradient)
        else:
            state, _ = self._walk(1, _judge, state, theta, w)
        value, slope = 0.5 * state.square, state.slope
        if level.lam:
            ridge = EvaluatedLevel(Dense(w), w, level.lam, level.Omega)  # of which no row is asked
            value, slope = value + level.lam * ridge.half_ridge(w), slope + ridge.ridge(w)
        return value, slope, 0.5 * state.energy

    def _start(self, theta: Leaves) -> Any:
        level, (n, k), like = self.problem.lower, self.structure.w_shape, theta[0]
        xp, where = array_namespace(like), {"dtype": like.dtype, "device": device(like)}
        zero = xp.zeros((n, k), **where)
        weight = None if level.Omega is None else as_operator(level.Omega).dense()
        Omega = xp.eye(n, **where) if weight is None else weight
        if self.structure.complex_w:
            zero, Omega = (x if is_complex(x) else complexified(x) for x in (zero, Omega))
        lam: Any = level.lam
        return self._way.start(lam**0.5 * Omega, zero)

    def _nowhere(self, theta: Leaves) -> StreamedPoint:
        """Where the user's function inverts a singular matrix there is no value."""
        condensed = self._way.condensed(self.backend, self._start(theta))
        R, w = (array_namespace(x).full_like(x, float("nan")) for x in (condensed.R, condensed.z))
        value = array_namespace(w).abs(corner(w))
        return StreamedPoint(theta, value, w, R, R if self.problem.is_separable else w, value)

    def solve_lower(self, theta: Leaves, *y: Array) -> Array:
        state, _ = self._walk(0, _fold, self._start(theta), theta)
        return self._way.condensed(self.backend, state).argmin(self.backend)

    def scale(self, theta: Leaves) -> Array:
        known = self._latest is not None and _same(self._latest.theta, theta)
        point = self._latest if known and self._latest is not None else self.point(theta)
        return point.energy

    def diagnose(self, theta: Leaves) -> tuple[Array, ...]:
        start = self._start(theta)
        top = array_namespace(theta[0]).zeros_like(
            array_namespace(theta[0]).abs(self._way.condensed(self.backend, start).z[:, 0])
        )
        (state, top), rows = self._walk(0, _survey, (start, top), theta)
        R = self._way.condensed(self.backend, state).R
        deficient = self._way.deficient(self.backend, R, rows)
        xp = array_namespace(top)
        dead, columns = units(top)
        kinks = xp.zeros_like(dead)
        return deficient, xp.all(xp.isfinite(top)), self._way.condition(self.backend, R), dead, columns, kinks

    # -- gradients -----------------------------------------------------------------------------------------------------

    def gradient(self, point: StreamedPoint) -> Leaves:
        """Gradient at a point: a pass over every level, or over the lower alone where the upper's part is at hand."""
        theta, w = point.theta, point.w
        total = self._penalty(theta)
        if self.problem.upper is None:
            return self._walk(0, _differentiate, total, theta, w)[0]
        ahead, self._ahead = self._ahead, None
        if ahead is not None and _same(ahead[0], theta):
            total = plus(total, ahead[1])
        else:
            total, _ = self._walk(1, _differentiate, total, theta, w)
        solve = self.backend.solve_triangular
        v = solve(point.R, solve(point.R, point.slope, transpose=True))
        return self._walk(0, _differentiate_lower, total, theta, w, v)[0]

    def value_and_gradient(self, theta: Leaves) -> tuple[StreamedPoint, Leaves]:
        point = self.point(theta, ahead=True)
        return point, self.gradient(point)

    def _penalty(self, theta: Leaves) -> Leaves:
        """Gradient of ``mu/2 R``."""
        problem, penalty = self.problem, self.problem.R
        if penalty is None or not problem.mu:
            return scaled(0.0, theta)
        (value,), pullback = self.backend.vjp(lambda *leaves: (penalty(unflatten(self.treedef, leaves)),), theta)
        return pullback((array_namespace(value).full_like(value, 0.5 * problem.mu),))

    # -- passes --------------------------------------------------------------------------------------------------------

    def _walk(self, which: int, fun: Callable[..., Any], state: Any, *args: Any) -> tuple[Any, int]:
        """``state = fun(block, state, *args)`` over the chunks of a level; the state and the number of rows."""
        level = self.problem.levels[which]
        if not isinstance(level.y, RowChunks):
            return self._do(fun, Problem(Level(level.M, level.y), data=self.problem.data), state, args)
        stream: Any = level.y.source
        pieces, rows, i = map(partial(_piece, level), stream()), 0, 0
        with Bar(stream.found and stream.found[1], self.progress, "chunk", "rows", delay=1.0) as bar:
            while (piece := next(pieces, None)) is not None:
                with _named(f"{stream.name}chunk {i}", self.backend.failures):
                    state, count = self._do(fun, piece, state, args)
                rows += count
                piece = None  # before the next one is made
                i += 1
                bar.update()
        stream.confirm(rows, i)
        return state, rows

    def _do(self, fun: Callable[..., Any], piece: Problem, state: Any, args: tuple[Any, ...]) -> tuple[Any, int]:
        """What `fun` makes of the state with one block of rows, and how many these are."""
        held, skeleton = partition(piece)
        treedef, compiler, n, way = self.treedef, self.compiler, self.structure.w_shape[0], self._way

        def make(arrays: Leaves) -> Callable[..., Any]:
            block = _Block(Reduced(skeleton.fill(arrays), compiler, treedef), n, way)

            def do(state: Any, *args: Any) -> tuple[Any, Array]:
                state = fun(block, state, *args)
                like = args[0][0]
                xp = array_namespace(like)
                return state, xp.full((), block.rows, dtype=xp.int32, device=device(like))

            return do

        run = self.compiler.call(make, (fun, way, n, skeleton, treedef))
        state, count = run(held, state, *args)
        # read here: a framework that computes behind our back would let chunks pile up
        return state, round(self.backend.to_floats([count])[0])


def _piece(level: Level, chunk: Chunk) -> Problem:
    """The rows of a chunk as a problem in memory, without ridge."""
    rows: Any = level.y
    return Problem(Level(level.M, rows.y if chunk.y is None else chunk.y), data=chunk.data)


@contextmanager
def _named(chunk: str, failures: tuple[type[Exception], ...]) -> Iterator[None]:
    """An error says which chunk it is about; what a framework raises on a singular matrix is a value, not an error."""
    try:
        yield
    except failures:
        raise
    except (ProblemError, ModelError) as error:
        raise type(error)(f"{chunk}: {error}") from error
    except Exception as error:
        raise ModelError(f"{chunk}: a model function failed: {type(error).__name__}: {error}") from error


def _same(theta: Leaves, other: Leaves) -> bool:
    return all(x is y for x, y in zip(theta, other, strict=True))


# -- what is done with one block of rows: functions of a module, since compiled ones are kept by name ------------------


class _Block:
    """The user's functions on one block of rows."""

    def __init__(self, reduced: Reduced, n: int, way: Accumulation) -> None:
        self._reduced, self._n = reduced, n
        self.backend, self.way, self.rows = reduced.backend, way, 0

    def evaluate(self, theta: Leaves) -> tuple[Any, Array]:
        """M and y."""
        side = self._side(self._reduced.evaluate_or_nan(theta))
        return side.M, side.y

    def linearise(self, theta: Leaves) -> tuple[Any, Array, Callable[..., Leaves]]:
        """M, y, and the gradient of ``sum of <r, M w> over (r, w) in pairs, plus <s, y>`` as a function of both."""
        parts, pullback = self._reduced.linearise(theta)
        side = self._side(parts)

        def gradient(s: Array, *pairs: tuple[Array, Array]) -> Leaves:
            return pullback(
                Parts(LevelOutputs(outers(side.M, *pairs), like_target(s, parts.lower.y), None), None, None)
            )

        return side.M, side.y, gradient

    def _side(self, parts: Parts) -> EvaluatedLevel:
        side, _ = self._reduced.levels(parts)
        M, y = side.M, side.y
        m, n = M.shape
        if n != self._n:
            raise ProblemError(f"M(theta, data) has shape {(m, n)}, expected (rows, {self._n})")
        if M.columns is not None:
            raise ProblemError(f"{type(M).__name__} has a matrix per column of y, and rows in chunks need one for all")
        if y.shape[0] != m:
            raise ProblemError(f"M(theta, data) has {m} rows and y has {y.shape[0]}: they need the same number")
        self.rows = m
        return side


def _fold(block: _Block, state: Any, theta: Leaves) -> Any:
    M, y = block.evaluate(theta)
    return block.way.fold(block.backend, state, M.dense(), y)


def _survey(block: _Block, state: tuple[Any, Array], theta: Leaves) -> tuple[Any, Array]:
    """As `_fold`, with the largest absolute entry of every column."""
    M, y = block.evaluate(theta)
    A = M.dense()
    xp = array_namespace(A)
    return block.way.fold(block.backend, state[0], A, y), xp.maximum(state[1], xp.max(xp.abs(A), axis=0))


def _judge(block: _Block, state: Judged, theta: Leaves, w: Array) -> Judged:
    M, y = block.evaluate(theta)
    return state.with_rows(M, y, M.residual(w, y))


def _judge_and_differentiate(
    block: _Block, state: tuple[Judged, Leaves], theta: Leaves, w: Array
) -> tuple[Judged, Leaves]:
    M, y, gradient = block.linearise(theta)
    r = M.residual(w, y)
    return state[0].with_rows(M, y, r), plus(state[1], gradient(-r, (r, w)))


def _differentiate(block: _Block, total: Leaves, theta: Leaves, w: Array) -> Leaves:
    """Of ``1/2 |M w - y|^2`` with w held fixed."""
    M, y, gradient = block.linearise(theta)
    r = M.residual(w, y)
    return plus(total, gradient(-r, (r, w)))


def _differentiate_lower(block: _Block, total: Leaves, theta: Leaves, w: Array, v: Array) -> Leaves:
    """Of ``-<M w - y, M v>`` with w and v held fixed."""
    M, y, gradient = block.linearise(theta)
    q = M.matvec(v)
    return plus(total, gradient(q, (-q, w), (-M.residual(w, y), v)))
