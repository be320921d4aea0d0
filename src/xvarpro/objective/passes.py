"""Passes over the rows of a level: what one chunk does to the state of a pass, and how two states become one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from xvarpro.backends import Backend
from xvarpro.backends.interface import linalg_errors
from xvarpro.core.namespace import namespace_of
from xvarpro.core.struct import Array, Leaves
from xvarpro.core.trees import partition, plus
from xvarpro.errors import ModelError, ProblemError
from xvarpro.lower.interface import Accumulation, Adjoint
from xvarpro.objective.in_memory import InMemory, ModelOutputs
from xvarpro.objective.least_squares import EvaluatedLevel, LevelOutputs
from xvarpro.objective.mini_batch import rows_of_batch
from xvarpro.objective.reduced import Reduced
from xvarpro.objective.reductions import Merge, added
from xvarpro.problem.problem import Level, Problem
from xvarpro.problem.row_chunks import Chunk, leading


@contextmanager
def _named(chunk: str, failures: tuple[type[Exception], ...]) -> Iterator[None]:
    """Name the chunk in errors; what a framework raises on a singular matrix is a value, not an error."""
    try:
        yield
    except failures:
        raise
    except (ProblemError, ModelError) as error:
        raise type(error)(f"{chunk}: {error}") from error
    except Exception as error:
        raise ModelError(f"{chunk}: a model function failed: {type(error).__name__}: {error}") from error


@dataclass(frozen=True)
class Step:
    """What one chunk does to the state of a pass. It holds no array, and is pickled where the functions are.

    Attributes
    ----------
    fun : callable
        ``state = fun(block, state, *args)``, a function of this module.
    M, y : callable
        The functions of the level; None for a y that comes with its chunk.
    treedef, n, accumulation, program
        Structure of theta, number of columns of M, how rows are condensed, and the name of what M computes.
    scale
        Factor of all rows.
    loss, weights
        Of the level.
    """

    fun: Callable[..., Any]
    M: Callable[..., Any]
    y: Callable[..., Any] | None
    treedef: Any
    n: int
    accumulation: Accumulation
    program: Any
    scale: float = 1.0
    loss: Any = None
    weights: Any = None

    def __call__(
        self, chunk: Chunk, name: str, compiler: Backend, state: Any, args: tuple[Any, ...]
    ) -> tuple[Any, int]:
        """The state with the rows of a chunk added, and how many these are; errors have the name of the chunk."""
        y: Any = self.y if chunk.y is None else chunk.y
        level = Level(self.M, y, weights=chunk.weights, loss=self.loss)  # without ridge
        if self.scale != 1.0:
            level = rows_of_batch(level, leading(chunk), self.scale)
        with _named(name, linalg_errors()):
            return self.of(Problem(level, data=chunk.data), compiler, state, args)

    def of(self, piece: Problem, compiler: Backend, state: Any, args: tuple[Any, ...]) -> tuple[Any, int]:
        """As a call, for rows that are a problem in memory."""
        held, skeleton = partition(piece)
        fun, treedef, n, accumulation = self.fun, self.treedef, self.n, self.accumulation

        def make(arrays: Leaves) -> Callable[..., Any]:
            block = Block(Reduced(skeleton.fill(arrays), compiler, treedef), n, accumulation)

            def do(state: Any, *args: Any) -> tuple[Any, Array]:
                return fun(block, state, *args), namespace_of(args[0][0]).asarray(block.rows)

            return do

        run = compiler.call(make, (fun, accumulation, n, skeleton, treedef, self.program))
        state, count = run(held, state, *args)
        # read here: a framework that computes asynchronously would let chunks pile up
        return state, round(compiler.to_floats([count])[0])


class Pass(NamedTuple):
    """A pass over rows: what a block does to the state, and how the states of two parts become that of both."""

    fun: Callable[..., Any]
    merge: Merge


# -- functions of one block of rows: functions of the module, since compiled ones are kept by name ---------------------


class Block:
    """The user's functions on one block of rows."""

    def __init__(self, objective: InMemory, n: int, accumulation: Accumulation) -> None:
        self._objective, self._n = objective, n
        self.backend, self.accumulation, self.rows = objective.backend, accumulation, 0

    def evaluate(self, theta: Leaves) -> EvaluatedLevel:
        """The block's rows of the level."""
        return self._level(self._objective.evaluate_or_nan(theta)[0])

    def linearise(self, theta: Leaves) -> tuple[EvaluatedLevel, LevelOutputs, Callable[[LevelOutputs], Leaves]]:
        """The block's rows of the level, the outputs of its functions, and the pull-back from these to theta."""
        outputs, pullback = self._objective.linearise(theta)
        return self._level(outputs), outputs.lower, lambda cotangents: pullback(ModelOutputs(cotangents, None, None))

    def tangents(self, theta: Leaves) -> tuple[EvaluatedLevel, Callable[[Leaves], LevelOutputs]]:
        """The block's rows of the level, and the map of tangents of theta to those of its functions."""
        outputs, push = self._objective.tangents(theta)
        return self._level(outputs), lambda tangent: push(tangent).lower

    def _level(self, outputs: ModelOutputs) -> EvaluatedLevel:
        level, _ = self._objective.levels(outputs)
        (m, n), rows = level.M.shape, level.y.shape[0]
        if n != self._n:
            raise ProblemError(f"M(theta, data) must have shape (rows, {self._n}); got {(m, n)}")
        if level.M.columns is not None:
            raise ProblemError(
                f"M(theta, data) must be one matrix for all columns of y where rows come in chunks; got "
                f"{type(level.M).__name__} with one per column"
            )
        if rows != m:
            raise ProblemError(f"M(theta, data) and y must have the same number of rows; got {m} and {rows}")
        self.rows = m
        return level


class UpperSums(NamedTuple):
    """Sums over the rows of the upper level, w fixed."""

    value: Array  # 1/2 |M w - y|^2
    slope: Array  # M^H (M w - y)
    energy: Array  # 1/2 |y|^2

    def with_rows(self, level: EvaluatedLevel, w: Array, r: Array) -> UpperSums:
        """With a block of rows added, of residual `r`."""
        value, slope = self.value + level.value(w, r), self.slope + level.slope(w, r)
        return UpperSums(value, slope, self.energy + level.size)


def _fold(block: Block, state: Any, theta: Leaves) -> Any:
    level = block.evaluate(theta)
    return block.accumulation.fold(block.backend, state, level.M.dense(), level.y)


def _survey(block: Block, state: tuple[Any, Array], theta: Leaves) -> tuple[Any, Array]:
    """As `_fold`, with the sum of absolute entries of every column."""
    level = block.evaluate(theta)
    A = level.M.dense()
    xp = namespace_of(A)
    folded = block.accumulation.fold(block.backend, state[0], A, level.y)
    return folded, state[1] + xp.sum(xp.abs(A), axis=0)


def _sums(block: Block, state: UpperSums, theta: Leaves, w: Array) -> UpperSums:
    level = block.evaluate(theta)
    return state.with_rows(level, w, level.residual(w))


def _sums_and_gradient(
    block: Block, state: tuple[UpperSums, Leaves], theta: Leaves, w: Array
) -> tuple[UpperSums, Leaves]:
    level, outputs, pullback = block.linearise(theta)
    r = level.residual(w)
    return state[0].with_rows(level, w, r), plus(state[1], pullback(level.value_cotangents(outputs, w, r)))


def _value_gradient(block: Block, total: Leaves, theta: Leaves, w: Array) -> Leaves:
    """With the gradient of ``1/2 |M w - y|^2`` added, w held."""
    level, outputs, pullback = block.linearise(theta)
    return plus(total, pullback(level.value_cotangents(outputs, w, level.residual(w))))


def _condition_gradient(block: Block, total: Leaves, theta: Leaves, w: Array, v: Array) -> Leaves:
    """With the gradient of ``-<M w - y, M v>`` added, w and v held."""
    level, outputs, pullback = block.linearise(theta)
    adjoint = Adjoint(level.M.matvec(v), ((level.residual(w), v),), v)
    return plus(total, pullback(level.condition_cotangents(outputs, w, adjoint)))


StepSums: TypeAlias = tuple[Any, UpperSums]  # of a Newton step: the state of an accumulation, and sums at w


def _with_step(block: Block, state: StepSums, level: Any, w: Array, z: Array, curvature: Any) -> StepSums:
    rows = block.accumulation.fold(block.backend, state[0], *level.step(w, z, curvature))
    return rows, state[1].with_rows(level, w, z)


def _first_step(block: Block, state: StepSums, theta: Leaves, w: Array) -> StepSums:
    """The step to a first w, from predictions that the loss makes of the target."""
    level: Any = block.evaluate(theta)
    return _with_step(block, state, level, w, level.loss.start(level.y), level.loss.scoring)


def _step(block: Block, state: StepSums, theta: Leaves, w: Array) -> StepSums:
    level: Any = block.evaluate(theta)
    return _with_step(block, state, level, w, level.residual(w), level.loss.model)


def _curved(block: Block, state: StepSums, theta: Leaves, w: Array) -> StepSums:
    """With the Hessian itself, for an adjoint."""
    level: Any = block.evaluate(theta)
    return _with_step(block, state, level, w, level.residual(w), level.loss.second)


def _merged_steps(backend: Backend, accumulation: Accumulation, a: Any, b: Any) -> Any:
    return accumulation.merge(backend, a[0], b[0]), added(backend, accumulation, a[1], b[1])


def _merged(backend: Backend, accumulation: Accumulation, a: Any, b: Any) -> Any:
    return accumulation.merge(backend, a, b)


FOLD, SURVEY = Pass(_fold, _merged), Pass(_survey, _merged_steps)
SUMS, SUMS_AND_GRADIENT = Pass(_sums, added), Pass(_sums_and_gradient, added)
FIRST_STEP, STEP, CURVED = (Pass(fun, _merged_steps) for fun in (_first_step, _step, _curved))
VALUE_GRADIENT, CONDITION_GRADIENT = Pass(_value_gradient, added), Pass(_condition_gradient, added)
