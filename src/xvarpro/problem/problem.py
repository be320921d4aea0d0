"""Levels, penalty and data of a problem: pure functions of ``(theta, data)``, of no framework."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias, final

from xvarpro.backends import exchange, modules
from xvarpro.backends.group import Group
from xvarpro.core import checks, trees
from xvarpro.core.struct import Array, Struct, Tree
from xvarpro.core.trees import array_namespace, is_array
from xvarpro.errors import ProblemError
from xvarpro.lower.interface import LowerSolver, Ridge
from xvarpro.lower.weight_sets.interface import WeightSet
from xvarpro.operators import Stacked
from xvarpro.operators.interface import Operator
from xvarpro.problem.column_chunks import ColumnChunks
from xvarpro.problem.row_chunks import RowChunks
from xvarpro.problem.whitening import Whitening
from xvarpro.sets.each import Each

if TYPE_CHECKING:
    from xvarpro.losses.interface import Loss
    from xvarpro.problem.noise import Noise

Design: TypeAlias = Callable[[Tree, Tree], Array | Operator]
Target: TypeAlias = Array | Sequence[Array] | Callable[[Tree, Tree], Array] | ColumnChunks | RowChunks | Each
Weights: TypeAlias = Any  # an array or None; in a batch of problems also `Each`
Lam: TypeAlias = float | Array | Callable[[Tree, Tree], Array] | Each
# blocks are one below the other
Omegas: TypeAlias = Array | Operator | Sequence[Any] | Callable[[Tree, Tree], Any] | None


@final
@dataclass(frozen=True)
class Level(Struct):
    """One regularised level, ``1/2 |M(theta) w - y(theta)|^2 + lam/2 |Omega w|^2``, or another loss of ``M w`` and y.

    Design, target and so `w` may be complex; theta is real.

    Parameters
    ----------
    M : callable
        ``M(theta, data)`` -> design, an array of shape (m, n) or one of `xvarpro.operators`, written with
        ``xp = xv.array_namespace(theta)``.
    y : array, list, callable, ColumnChunks or RowChunks
        Target, shape (m,) or (m, k) for k right-hand sides that share M; several data sets, one below the other, as a
        list of arrays; or ``y(theta, data)``; or `ColumnChunks` of columns; or `RowChunks`, whose chunks bring their
        own data for M.
    lam : float, array or callable
        Ridge, >= 0; or ``lam(theta, data)`` > 0, chosen by the upper level. An array has two axes: (n, 1), one number
        for each weight, or row of ``Omega w``, (1, k), one for each right-hand side, or (n, k); the term is then
        ``1/2 <Omega w, lam Omega w>``, and numbers may be 0. In a batch: see `solve_many`.
    Omega : array, Operator, list or callable, shape (r, n), optional
        Weight of the ridge, such as a difference operator; None is the identity. ``[M; Omega]`` must have full rank. A
        list has blocks, one below the other, and `lam` is then a number for all, or has one axis and one number for
        each block, as has what ``lam(theta, data)`` returns; or ``Omega(theta, data)`` -> array, or list of arrays.
        Rows in chunks take a constant invertible one. Of a form ``w^T P w`` Omega is a factor, ``Omega^T Omega = P``.
    solver : LowerSolver, optional
        How the level is solved; None chooses by structure and shape (`lower.choose`). Only a lower level uses it.
    weights : array, list or callable, shape (m,) or (m, k), optional
        Weights of the squared residuals, >= 0, by row or by entry; booleans are a mask; a list of arrays where `y` is
        one. Entries of weight 0 may be NaN in `y`. Weights by entry give every right-hand side a design of its own. Of
        `RowChunks` they are ``weights(data)``, from the data of a chunk. In a batch: see `solve_many`.
    W : WeightSet, optional
        Where w may lie, such as ``xv.lower.Nonnegative()``; None is everywhere. Only a lower level takes it.
    covariance : array, shape (m, m), optional
        Covariance C of the data of each column of `y`, positive definite, in the place of weights: residuals r count as
        ``r^H C^-1 r``. Known up to a factor, as weights are, unless statistics are asked for with `absolute_sigma`.
    loss : Loss or str, optional
        One of `xvarpro.losses` in the place of half the squared residual, or its name, such as "softmax"; weights then
        multiply its terms. w is real, and the lower level solved by Newton's method.
    """

    M: Design
    y: Target
    lam: Lam = 0.0
    Omega: Any = None
    solver: LowerSolver | None = None
    weights: Weights = None
    W: WeightSet | None = None
    covariance: Array | None = None
    loss: Any = None

    numbers = ("lam",)

    @property
    def ridge(self) -> Ridge:
        """Of a constant lam."""
        return Ridge(self.lam, self.Omega)

    def __post_init__(self) -> None:
        if not callable(self.M):
            raise ProblemError(f"M must be a function M(theta, data) -> design; got {type(self.M).__name__}")
        for name in ("y", "weights"):
            object.__setattr__(self, name, _joined(getattr(self, name), name))
        if isinstance(self.Omega, list | tuple) and any(map(_is_matrix, self.Omega)):
            object.__setattr__(self, "Omega", Stacked(self.Omega))
        for name in ("lam", "Omega", "covariance"):
            object.__setattr__(self, name, exchange.numbers(getattr(self, name), name))
        if not (is_array(self.y) or callable(self.y) or isinstance(self.y, ColumnChunks | RowChunks | Each)):
            if hasattr(self.y, "dtype"):  # a column of texts
                raise ProblemError(f"y must hold numbers; got dtype {self.y.dtype}. Convert it to floats")
            raise ProblemError(
                "y must be an array, a list of arrays, a function y(theta, data), ColumnChunks or RowChunks; "
                f"got {type(self.y).__name__}. Batches of rows, as of a loader, are xv.RowChunks(loader)"
            )
        if is_array(self.y) and self.y.ndim not in (1, 2, 3):  # (b, m, k) in a batch of problems
            raise ProblemError(f"y must have shape (m,) or (m, k); got {tuple(self.y.shape)}")
        if isinstance(self.Omega, Stacked) and is_array(self.lam) and self.lam.ndim == 1:
            object.__setattr__(self, "lam", by_block(self.lam, self.Omega.blocks))
        if not (callable(self.lam) or isinstance(self.lam, Each) or (is_array(self.lam) and self.lam.ndim)):
            checks.nonnegative(self, "lam")
        if not (self.Omega is None or callable(self.Omega) or _is_matrix(self.Omega)):
            raise ProblemError(
                f"Omega must be a matrix, a list of them or a function of theta; got {checks.described(self.Omega)}"
            )
        # three axes, and marks, in a batch of problems
        given = is_array(self.weights) and self.weights.ndim in (1, 2, 3)
        given = given or self.weights is None or isinstance(self.weights, Each | Whitening)
        if not (given or (callable(self.weights) and isinstance(self.y, RowChunks))):
            raise ProblemError(
                "weights must have shape (m,) or (m, k), such as numpy.full(m, 1 / sigma**2), or be a function "
                f"weights(data) of chunks where y is given as RowChunks; got {checks.described(self.weights)}. Where "
                "they are computed, as in front of a layer, multiply the rows of M and y by their roots"
            )
        if self.loss is not None:
            self._check_loss()
        C = self.covariance
        if C is not None and not (is_array(C) and C.ndim == 2 and C.shape[0] == C.shape[1]):
            raise ProblemError(f"covariance must have shape (m, m), for the m rows of y; got {checks.described(C)}")
        if C is not None and (self.weights is not None or isinstance(self.y, ColumnChunks | RowChunks)):
            found = "weights" if self.weights is not None else f"y as {type(self.y).__name__}"
            raise ProblemError(
                f"covariance needs a target in memory, and no weights: its diagonal has the variances; got {found}"
            )
        if self.solver is not None and not isinstance(self.solver, LowerSolver):
            raise ProblemError(f"solver must be one of xvarpro.lower, such as xv.lower.QR(); got {self.solver!r}")
        if self.W is not None:
            if not isinstance(self.W, WeightSet):
                raise ProblemError(f"W must be a set of xvarpro.lower, such as xv.lower.Nonnegative(); got {self.W!r}")
            self.W.solver(self.solver)
            y: Any = self.y
            if self.chunks_in_set and (self.W.columns not in (None, 1) or y.group is not None):
                raise ProblemError(
                    "W must be the same for all columns, and these those of one process, where y is given as "
                    f"ColumnChunks and W is no linear subspace; got {self.W!r} and group={y.group!r}. Pass y as "
                    "an array"
                )

    @property
    def chunks_in_set(self) -> bool:
        """Whether y comes as `ColumnChunks` that are not compressed, since w lies in a set that is no subspace."""
        return isinstance(self.y, ColumnChunks) and self.W is not None and not self.W.linear

    def _check_loss(self) -> None:
        """Make the loss of its name, and refuse what it does not go with; squares are no loss of their own."""
        from xvarpro.losses.choice import named
        from xvarpro.lower import LSMR

        loss = named(self.loss)
        object.__setattr__(self, "loss", loss)
        if loss is None:
            return
        given = ["weights; got covariance="] if self.covariance is not None else []
        direct = self.solver is None or self.solver.exact or (isinstance(self.solver, LSMR) and self.W is None)
        given += [] if direct else [f"a direct solver, or LSMR where there is no W; got solver={self.solver!r}"]
        given += ["y in memory or as RowChunks; got y as ColumnChunks"] if isinstance(self.y, ColumnChunks) else []
        unscaled = isinstance(self.y, RowChunks) and loss.needs_scale
        given += ["a scale where y comes as RowChunks; got y as RowChunks, and no scale"] if unscaled else []
        W = self.W
        given += [f"lam as its penalty on w; got W={W!r}"] if W is not None and W.penalises else []
        if W is not None and not loss.by_entry and W.joined(W.columns or 1) is None:
            given += [f"a W that bounds or fixes single weights, or has linear equations, for all classes; got W={W!r}"]
        if given:
            raise ProblemError(f"the loss {loss!r} takes {given[0]}")


@dataclass(frozen=True)
class Problem(Struct):
    """A separable or bilevel problem, made by `separable` or `bilevel`.

    Attributes
    ----------
    lower, upper : Level
        `upper` is None for a separable problem, whose two levels are the same function, ridge included.
    R, mu : callable, float
        Penalty ``mu/2 R(theta)``.
    data : pytree
        Handed to M and y as their second argument: arrays in the places of columns of tables and of lists of numbers.
    compress : bool
        Replace k right-hand sides by an equivalent m x m target where that is exact.
    noise : optional
        Of a `marginal` likelihood; None where the objective is that of the levels.
    """

    lower: Level
    upper: Level | None = None
    R: Callable[[Tree], Array] | None = None
    mu: Any = None  # 0 without R
    data: Tree = None
    compress: bool = True
    noise: Noise | None = None

    def __post_init__(self) -> None:
        if self.R is not None and self.mu is None:
            raise ProblemError("R needs its weight, mu=..., > 0; got R alone")
        object.__setattr__(self, "mu", 0.0 if self.mu is None else self.mu)
        checks.nonnegative(self, "mu")
        checks.switch("compress", self.compress)
        if self.R is not None and not callable(self.R):
            raise ProblemError(f"R must be a function R(theta) -> scalar; got {type(self.R).__name__}")
        if self.mu and self.R is None:
            raise ProblemError(f"R must be a function R(theta) -> scalar where mu > 0; got R=None and mu={self.mu}")
        if self.upper is not None and self.upper.W is not None:
            raise ProblemError(
                f"W of the upper level must be None, since the lower level determines w; got {self.upper.W!r}"
            )
        if self.upper is not None and any(level.loss is not None and level.loss.needs_scale for level in self.levels):
            raise ProblemError(
                "a robust loss of two levels must have a scale, such as xv.losses.Huber(1.0): that of their residuals "
                "would change with theta; got scale=None"
            )
        if self.upper is not None and isinstance(self.upper.y, ColumnChunks) != isinstance(self.lower.y, ColumnChunks):
            raise ProblemError("y must be given as ColumnChunks in both levels or in neither; got one")
        if self.upper is not None and self.lower.chunks_in_set:
            raise ProblemError(
                "a problem of two levels with y as ColumnChunks must have no W, or a linear subspace; got "
                f"{self.lower.W!r}. Pass y as an array in both levels"
            )
        if isinstance(self.lower.y, ColumnChunks) and not self.compress and self.group is None:
            raise ProblemError("compress must be True where y is given as ColumnChunks; got False. Omit compress=")
        groups = {level.y.group for level in self.levels if isinstance(level.y, ColumnChunks | RowChunks)} - {None}
        if len(groups) > 1:
            raise ProblemError(f"both levels must be held by one group of processes; got {groups}")
        if self.in_rows:
            self._check_rows()
        object.__setattr__(self, "data", exchange.arrays(self.data, "data"))
        modules.adopt(trees.leaves(self.data))  # a module in data is a tree of arrays from the start

    def _check_rows(self) -> None:
        solver = self.lower.solver
        if solver is not None and solver.accumulation is None:
            raise ProblemError(
                "solver must be lower.QR() or lower.Cholesky() where y is given as RowChunks; got "
                f"{solver!r}, which needs all rows in memory. Omit solver= or pass y as an array"
            )
        if not (self.is_separable or self.lower.loss is None or self.lower.loss.convex):
            raise ProblemError(
                f"the lower of two levels must have a convex loss where rows come as RowChunks; got {self.lower.loss!r}"
            )
        for level in self.levels:
            chunked = isinstance(level.y, RowChunks)
            given = ["W"] if level.W is not None else []
            given += ["weights"] if chunked and is_array(level.weights) else []
            given += ["lam(theta, data)"] if callable(level.lam) else []
            given += ["Omega(theta, data)"] if callable(level.Omega) else []
            given += [] if given or level.ridge.square else ["an Omega that is a list or not square"]
            given += [] if given or level.ridge.columns is None else ["a lam for each right-hand side"]
            if given:
                raise ProblemError(
                    "a level with y given as RowChunks must have weights that are a function weights(data) of a chunk, "
                    "and the problem no W and a constant ridge, of a square Omega, one for all right-hand sides; got "
                    f"{given[0]}. Pass y as an array"
                )
        if self.data is not None and all(isinstance(level.y, RowChunks) for level in self.levels):
            raise ProblemError(
                "data must be None where every level is given as RowChunks, whose M receives the data of a chunk; got "
                f"{type(self.data).__name__}. Put into each chunk what M reads"
            )

    @property
    def levels(self) -> tuple[Level, ...]:
        """The level of a separable problem, or both."""
        return (self.lower,) if self.upper is None else (self.lower, self.upper)

    @property
    def advice(self) -> list[str]:
        """What its losses say of an objective that is not finite."""
        return [level.loss.advice for level in self.levels if level.loss is not None and level.loss.advice]

    @property
    def in_rows(self) -> bool:
        """Whether the target of a level is given as `RowChunks`."""
        return isinstance(self.lower.y, RowChunks) or (self.upper is not None and isinstance(self.upper.y, RowChunks))

    @property
    def group(self) -> Group | None:
        """The processes that hold rows or columns of the targets; None where this one has all of them."""
        for level in self.levels:
            if isinstance(level.y, ColumnChunks | RowChunks) and level.y.group is not None:
                return level.y.group
        return None

    @property
    def kinked(self) -> bool:
        """Whether the objective may have kinks: those of w, of which only a separable objective shows none."""
        W = self.lower.W
        return not (self.is_separable or W is None or W.linear)

    @property
    def is_separable(self) -> bool:
        """Whether both levels are the same function, so that no adjoint is needed."""
        return self.upper is None


def by_level(problem: Problem, fun: Callable[[Level], Any], **fields: Any) -> Problem:
    """The problem with what `fun` makes of each level, and other fields."""
    upper = None if problem.upper is None else fun(problem.upper)
    return replace(problem, lower=fun(problem.lower), upper=upper, **fields)


def reading(level: Level, i: int) -> Level:
    """The level with functions that read entry i of the data, where both levels have data of their own.

    A ridge is one of w, and so of the rows that determine w: it reads entry 0 in both levels.
    """
    at = {"M": i, "y": i, "lam": 0, "Omega": 0}
    read: dict[str, Any] = {name: _Reads(fun, k) for name, k in at.items() if callable(fun := getattr(level, name))}
    return replace(level, **read)


@dataclass(frozen=True)
class _Reads:
    """A function that reads one entry of the data. No closure: equal ones are compiled once."""

    fun: Callable[..., Any]
    i: int

    def __call__(self, theta: Tree, data: tuple[Tree, ...]) -> Any:
        return self.fun(theta, data[self.i])


def separable(
    M: Design,
    y: Target,
    *,
    data: Tree = None,
    lam: Lam = 0.0,
    Omega: Omegas = None,
    R: Callable[[Tree], Array] | None = None,
    mu: float | None = None,
    solver: LowerSolver | None = None,
    weights: Weights = None,
    W: WeightSet | None = None,
    covariance: Array | None = None,
    loss: Loss | str | None = None,
    compress: bool = True,
) -> Problem:
    """Classical separable least squares: ``min over theta, w of 1/2 |M w - y|^2 + lam/2 |Omega w|^2 + mu/2 R``.

    Parameters
    ----------
    M : callable
        ``M(theta, data)`` -> design, shape (m, n).
    y : array, list of arrays, callable, ColumnChunks or RowChunks
        Target, shape (m,) or (m, k); as chunks of columns; or chunks of rows, which bring their own data. It is a
        constant of a solve, also where PyTorch would take a gradient by it: `layers` have gradients by `data`.
    data : pytree, optional
        Arrays (and anything else) that M and y read; moved to the backend once per solve. Lists of numbers and columns
        of tables become arrays; tuples stay, for shapes and intervals. `Samples` marks those of which a mini-batch
        needs a part.
    R : callable, optional
        Penalty ``R(theta)`` -> scalar.
    mu : float, optional
        Its weight, >= 0; needed with R.
    lam, Omega, solver, weights, W, covariance, loss : optional
        Ridge and its weight, the lower solver, weights or covariance of the data, the set of w, and the loss in the
        place of squares, as of `Level`. A separable problem makes ``lam(theta, data)`` as small as theta allows.
    compress : bool
        Replace k > m right-hand sides by m equivalent ones; same value and gradient to rounding.

    Returns
    -------
    Problem

    Raises
    ------
    ProblemError
        M or R is not a function, lam or mu is negative, or y is neither a vector nor a matrix.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> def M(theta, data):
    ...     xp = xv.array_namespace(theta)
    ...     return xp.exp(-xp.expand_dims(data["t"], axis=1) * theta)
    >>> t = np.linspace(0.0, 1.0, 50)
    >>> problem = xv.separable(M, np.exp(-3.0 * t), data={"t": t})
    >>> fit = xv.solve(problem, np.array([1.0]), over=xv.sets.Box(0.0, 10.0))
    >>> round(float(fit.theta[0]), 4)
    3.0
    """
    return Problem(Level(M, y, lam, Omega, solver, weights, W, covariance, loss), None, R, mu, data, compress)


def with_loss(problem: Problem, loss: Loss | None) -> Problem:
    """The problem of a result with this loss: as stated for `solve_robust` it has none, or it lacks the scale."""
    own = problem.lower.loss
    if loss is None or not problem.is_separable or not (own is None or own.needs_scale):
        return problem
    return replace(problem, lower=replace(problem.lower, loss=loss))


def refuse_covariance(problem: Problem, what: str, advice: str) -> None:
    """Raise `ProblemError` for what takes the noise of each datum for independent of the others."""
    if any(level.covariance is not None or isinstance(level.weights, Whitening) for level in problem.levels):
        raise ProblemError(
            f"{what} needs data with independent noise; got covariance=. {advice}, or give the inverse of its diagonal "
            "as weights"
        )


def refuse_marginal(problem: Problem, what: str, advice: str) -> None:
    """Raise `ProblemError` for what takes the objective for that of the levels."""
    if isinstance(problem, Problem) and problem.noise is not None:
        raise ProblemError(f"{what} a problem of least squares; got a marginal likelihood. {advice}")


def bilevel(
    *,
    lower: Level,
    upper: Level,
    data: Tree = None,
    R: Callable[[Tree], Array] | None = None,
    mu: float | None = None,
    compress: bool = True,
) -> Problem:
    """Two levels: `lower` determines ``w(theta)``, `upper` is minimised over theta.

    Parameters
    ----------
    lower, upper : Level
        The ridge of `upper` is what its ``lam`` says: 0 unless given, whatever the lower level has.
    data, R, mu, compress
        As in `separable`.

    Returns
    -------
    Problem

    Raises
    ------
    ProblemError
        `lower` or `upper` is not a `Level`, or mu is negative.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> M = lambda theta, data: data * theta
    >>> A, y = np.ones((3, 1)), np.ones(3)
    >>> problem = xv.bilevel(lower=xv.Level(M, y, lam=1.0), upper=xv.Level(M, y), data=A)
    >>> value, gradient = xv.value_and_gradient(problem, np.array([1.0]))
    >>> round(float(value), 4)
    0.0938
    """
    for name, level in (("lower", lower), ("upper", upper)):
        if not isinstance(level, Level):
            raise ProblemError(f"{name} must be a Level(M, y, ...); got {type(level).__name__}")
    return Problem(lower, upper, R, mu, data, compress)


def by_block(lam: Array, blocks: Sequence[Any]) -> Array:
    """One number for each block of Omega, as one for each of its rows, (r, 1)."""
    if lam.shape[0] != len(blocks):
        raise ProblemError(f"lam must have a number for each of the {len(blocks)} blocks of Omega; got {lam.shape[0]}")
    xp = array_namespace(lam)
    return xp.concat([xp.broadcast_to(lam[i : i + 1, None], (b.shape[0], 1)) for i, b in enumerate(blocks)])


def _is_matrix(x: Any) -> bool:
    return (is_array(x) or isinstance(x, Operator)) and len(x.shape) == 2


def _joined(x: Any, name: str) -> Any:
    """A target or weights as an array, if given as numbers in another form or as several data sets."""
    if not isinstance(x, list | tuple):
        return exchange.as_array(x, name)
    parts = [exchange.as_array(part, f"{name}[{i}]") for i, part in enumerate(x)]
    if parts and not any(is_array(part) and part.ndim for part in parts):
        return exchange.numbers(x, name)
    if not parts or not all(map(is_array, parts)) or len({(type(part), part.shape[1:]) for part in parts}) > 1:
        found = ", ".join(map(checks.described, parts[:6])) or "nothing"
        raise ProblemError(
            f"{name} given as a list must hold arrays with the same number of columns, of one framework; got a list of "
            f"{found}{' and others' if parts[6:] else ''}"
        )
    return array_namespace(*parts).concat(parts)
