"""Mini-batches: the problem in which some terms of the upper level, scaled up, represent all of them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, final

from xvarpro.core.namespace import device, namespace_of
from xvarpro.core.struct import REQUIRED, Array, Struct, Tree
from xvarpro.core.trees import is_array, leaves
from xvarpro.errors import ProblemError
from xvarpro.lower.interface import Ridge
from xvarpro.objective.least_squares import as_matrix, evaluate_level, evaluate_ridge, scaled, weighted
from xvarpro.operators import Dense, Weighted
from xvarpro.operators.interface import Operator, as_operator
from xvarpro.problem.problem import Level, Problem, reading, refuse_covariance
from xvarpro.problem.samples import lengths, taken


class LowerRows(Struct):
    """Which rows determine w where a mini-batch of rows represents the upper level of a separable problem."""

    draws = 1  # mini-batches that an iteration needs

    @abstractmethod
    def rows(self, batch: int, whole: int) -> int:
        """Rows on which M is evaluated, for a mini-batch of so many out of `whole`."""

    @abstractmethod
    def problem(self, whole: Problem, *parts: tuple[Level, Tree]) -> Problem:
        """The problem of an iteration, from the level on each of its `draws` mini-batches, with their data."""


@final
@dataclass(frozen=True)
class SameBatch(LowerRows):
    """w from the mini-batch itself: the reduced objective of a smaller problem, at the least work.

    This is biased. w fits the b rows of its batch better than the w of all rows does, so values are too low on average,
    by about n/b of the residual for n unknowns. Gradients belong to that lower objective, which rewards a design that
    can fit few rows. A ridge and batches of many times n rows make the bias small. Certificates are of all rows, so
    that what a solve reports is right in any case, but it may not come to a minimum.

    Notes
    -----
    Gradient : biased, of order n/b
    Rows : b
    When : b is many times the number of unknowns; the default with `Samples` and `RowChunks`

    Examples
    --------
    >>> import xvarpro as xv
    >>> xv.algorithms.StochasticFrankWolfe(lower=xv.algorithms.SameBatch()).lower
    SameBatch()
    """

    def rows(self, batch: int, whole: int) -> int:
        return batch

    def problem(self, whole: Problem, *parts: tuple[Level, Tree]) -> Problem:
        (level, data), *_ = parts
        return replace(whole, lower=level, data=data)


@final
@dataclass(frozen=True)
class SecondBatch(LowerRows):
    """w from a second mini-batch, drawn independently: the paper's split into two levels, with the adjoint.

    The gradient is without bias for another objective: the mean residual of all rows at a w that b rows determine. It
    is higher than the objective, by about n/b of the residual for n unknowns, and a design that fits only its own batch
    does not lower it.

    Notes
    -----
    Gradient : of the objective at a w from b rows
    Rows : 2 b
    When : batches of few times the number of unknowns; fits that must hold on new rows

    Examples
    --------
    >>> import xvarpro as xv
    >>> xv.algorithms.StochasticFrankWolfe(lower=xv.algorithms.SecondBatch()).lower
    SecondBatch()
    """

    draws = 2

    def rows(self, batch: int, whole: int) -> int:
        return 2 * batch

    def problem(self, whole: Problem, *parts: tuple[Level, Tree]) -> Problem:
        (upper, above), (lower, below) = parts
        upper = replace(upper, solver=None, W=None)
        return replace(whole, lower=reading(lower, 0), upper=reading(upper, 1), data=(below, above))


@final
@dataclass(frozen=True)
class AllRows(LowerRows):
    """w from all rows: exact, and the gradient without bias.

    Only the upper level is a mini-batch, so that M is evaluated on all rows for w.

    Notes
    -----
    Gradient : without bias
    Rows : all, and b
    When : all rows fit in memory and M is cheap; the default without `Samples`

    Examples
    --------
    >>> import xvarpro as xv
    >>> xv.algorithms.StochasticFrankWolfe(lower=xv.algorithms.AllRows()).lower
    AllRows()
    """

    def rows(self, batch: int, whole: int) -> int:
        return whole + batch

    def problem(self, whole: Problem, *parts: tuple[Level, Tree]) -> Problem:
        (upper, data), *_ = parts
        upper = replace(upper, solver=None, W=None)
        return replace(whole, lower=reading(whole.lower, 0), upper=reading(upper, 1), data=(whole.data, data))


def chosen(problem: Problem, lower: LowerRows | None, by_column: bool) -> LowerRows:
    """What determines w: the choice of a user, or the default."""
    marked = bool(lengths(problem.data))
    if by_column or not problem.is_separable:
        if lower is None or (isinstance(lower, AllRows) and not by_column):
            return SameBatch() if by_column else AllRows()
        raise ProblemError(
            f"lower must be left out where {'each right-hand side has' if by_column else 'the lower level determines'} "
            f"w of its own; got {lower!r}"
        )
    if not (lower is None or marked or isinstance(lower, AllRows)):
        raise ProblemError(
            f"lower={lower!r} needs data marked xv.Samples, to evaluate M on the rows of a batch; got none. Mark in "
            "data what has one entry per row"
        )
    found = lower or (SameBatch() if marked else AllRows())
    W = problem.lower.W
    if W is not None and W.penalises and not isinstance(found, SameBatch):
        raise ProblemError(
            f"w must be determined by the mini-batch itself, SameBatch() on data marked xv.Samples, where {W!r} adds a "
            f"penalty to both levels alike; got {found!r}"
        )
    return found


def rows_evaluated(problem: Problem, batch: int, whole: int, lower: LowerRows | None, by_column: bool) -> int:
    """Rows, or right-hand sides, on which a mini-batch evaluates the model; `whole` is what a value evaluates."""
    if by_column:
        return batch
    if not lengths(problem.data):  # both levels, or the one twice
        return whole if not problem.is_separable else 2 * whole
    rows = chosen(problem, lower, by_column).rows(batch, whole)
    return rows if problem.is_separable else rows - max(lengths(problem.data))


def mini_batch(
    problem: Problem, indices: Array, samples: int, by_column: bool, lower: LowerRows | None = None
) -> Problem:
    """The problem whose upper level has the terms at `indices` only, scaled by ``samples / len(indices)``.

    Averaged over index sets in which every term is equally likely, its value and gradient are those of the whole
    problem, or what `lower` says. Where `by_column`, a term is a right-hand side of a separable problem, with
    coefficients of its own; else a row of the upper level. `indices` holds those of all `LowerRows.draws`, one after
    the other. Ridges and penalty are not scaled.
    """
    if not by_column:
        refuse_covariance(problem, "a mini-batch of rows", "Leave algorithm= out")
    lower = chosen(problem, lower, by_column)
    batch = indices.shape[0] // lower.draws
    scale = (samples / batch) ** 0.5
    if by_column:
        return some_columns(problem, indices, scale)
    level = problem.upper or problem.lower
    if not lengths(problem.data):
        return replace(problem, upper=_rows_of_all(level, indices, scale))
    parts = []
    for i in range(lower.draws):
        drawn = indices[i * batch : (i + 1) * batch]
        parts.append((rows_of_batch(level, batch, scale, drawn), taken(problem.data, drawn)))
    return lower.problem(problem, *parts)


def rows_of_batch(level: Level, batch: int, scale: float, indices: Array | None = None) -> Level:
    """The level of a batch, its functions called with the batch's data; `indices` picks its rows of y and weights."""

    def some(x: Array) -> Array:
        return x if indices is None else namespace_of(x).take(x, indices, axis=0)

    weights = None if level.weights is None else some(level.weights)
    root, inside = (scale, weights) if level.loss is None else (1.0, None)
    y: Any = level.y
    y = BatchTarget(y, batch, root, inside) if callable(y) else root * some(as_matrix(y))
    M = BatchDesign(level.M, batch, root, inside)
    loss = level.loss and level.loss.multiplied(scale**2)
    return replace(level, M=M, y=y, weights=weights if inside is None else None, loss=loss)


@dataclass(frozen=True)
class _OfBatch(Struct):
    """A function of a level on a batch, its rows scaled. No closure: equal ones are compiled once."""

    fun: Callable[..., Any] = REQUIRED
    rows: int = 0
    scale: float = 1.0
    weights: Array | None = None  # (rows, 1) or (rows, k)

    @property
    def plain(self) -> bool:
        """Whether no row is scaled."""
        return self.scale == 1.0 and self.weights is None

    def root(self, theta: Tree) -> Array:
        like = next(x for x in leaves(theta) if is_array(x))
        xp = namespace_of(like)
        ones = xp.full((self.rows, 1), self.scale, dtype=like.dtype, device=device(like))
        return ones if self.weights is None else ones * namespace_of(self.weights).sqrt(self.weights)

    def check(self, name: str, rows: int) -> None:
        if rows != self.rows:
            raise ProblemError(
                f"{name}(theta, data) must return as many rows as the data of a mini-batch has, {self.rows}; got "
                f"{rows}. Mark with xv.Samples every array of data that has one entry per row, and take the number "
                "of rows from it"
            )


@final
@dataclass(frozen=True)
class BatchDesign(_OfBatch):
    """M on a batch."""

    def __call__(self, theta: Tree, data: Tree) -> Any:
        M = as_operator(self.fun(theta, data))
        self.check("M", M.shape[0])
        return M if self.plain else weighted(M, self.root(theta))


@final
@dataclass(frozen=True)
class BatchTarget(_OfBatch):
    """y on a batch."""

    def __call__(self, theta: Tree, data: Tree) -> Array:
        y = self.fun(theta, data)
        self.check("y", y.shape[0])
        return y if self.plain else scaled(y, self.root(theta))


def some_columns(problem: Problem, indices: Array, scale: float) -> Problem:
    """The problem of some of the right-hand sides, whose design is the same, scaled.

    A scaled target scales w and its residual; of a loss that is no square, loss and ridge are multiplied.
    """
    level = problem.lower
    squares = level.loss is None
    root, times = (scale, 1.0) if squares else (1.0, scale**2)

    def some(x: Array) -> Array:
        return root * namespace_of(x).take(x, indices, axis=1)

    def design(theta: Tree, data: Tree) -> Any:
        return _of_columns(evaluate_level(level, theta, data, level.weights).M, indices)

    def target(theta: Tree, data: Tree) -> Array:
        y: Any = evaluate_level(level, theta, data, level.weights).y
        return some(as_matrix(y))

    def ridge(theta: Tree, data: Tree) -> Array:
        return times * Ridge(evaluate_ridge(level, theta, data)[0]).part(indices).lam

    given: Any = level.y
    y = target if callable(given) else some(as_matrix(given))
    lam = ridge if callable(level.lam) else times * level.ridge.part(indices).lam
    W = None if level.W is None else level.W.part(indices, root)
    weights = None if squares or level.weights is None else level.weights
    if weights is not None and weights.shape[1] > 1:
        weights = some(weights)
    lower = replace(
        level, M=design, y=y, lam=lam, weights=weights, W=W, loss=level.loss and level.loss.multiplied(scale**2)
    )
    return replace(problem, lower=lower)


def _of_columns(M: Operator, indices: Array) -> Operator:
    """The designs of some of the right-hand sides, where each has one of its own."""
    if M.columns is None:
        return M
    if isinstance(M, Weighted):
        s = M.s if M.s.shape[1] == 1 else namespace_of(M.s).take(M.s, indices, axis=1)
        return Weighted(_of_columns(M.M, indices), s)
    if isinstance(M, Dense):
        return Dense(namespace_of(M.array).take(M.array, indices, axis=0))
    raise ProblemError(
        f"M must return arrays where mini-batches are drawn from right-hand sides with a design each; got "
        f"{type(M).__name__}. Use an algorithm that evaluates all of them"
    )


def _rows_of_all(level: Level, indices: Array, scale: float) -> Level:
    """Some of the rows of what the functions return for all."""
    root = scale if level.loss is None else 1.0

    def some(x: Array) -> Array:
        return root * namespace_of(x).take(x, indices, axis=0)

    def design(theta: Tree, data: Tree) -> Any:
        M = evaluate_level(level, theta, data, level.weights).M
        if not isinstance(M, Dense):
            raise ProblemError(
                f"M must return an array where mini-batches are drawn from rows; got {type(M).__name__}. "
                "Use an algorithm that evaluates all rows, or mark data with xv.Samples"
            )
        return some(M.array)

    def target(theta: Tree, data: Tree) -> Array:
        y: Any = evaluate_level(level, theta, data, level.weights).y
        return some(as_matrix(y))

    given: Any = level.y
    y = target if callable(given) else some(as_matrix(given))
    # those of squares are in what the functions return
    weights = None if level.loss is None or level.weights is None else some(level.weights)
    return replace(
        level, M=design, y=y, weights=weights, solver=None, W=None, loss=level.loss and level.loss.multiplied(scale**2)
    )
