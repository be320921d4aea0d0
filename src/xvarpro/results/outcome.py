"""The record of a solve: what it found, what was verified there, and how both read as text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from xvarpro.backends import modules, to_numpy
from xvarpro.core import trees
from xvarpro.core.namespace import dtype_name
from xvarpro.core.status import Status
from xvarpro.core.struct import Array, Tree
from xvarpro.errors import ProblemError, warn_caller
from xvarpro.problem.column_chunks import ColumnChunks
from xvarpro.problem.problem import Level, Problem
from xvarpro.results.recipe import Recipe, changed

if TYPE_CHECKING:
    from xvarpro.losses.interface import Loss

NEAR_ZERO = 1e-12  # of the largest entry of theta: an entry below it has gone to 0, whatever its units
FAR_UNITS = 1e6  # between sizes of entries of theta, from which on an end without descent speaks of units
CANCELS = 1e4  # terms over their sum, from which on a result says that they cancel


def lost_digits(result: Any) -> str:
    """Words on digits that a result has lost since it was computed; "" where it has them all."""
    held = {dtype_name(x) for x in trees.leaves(modules.taken(result.theta))} - {result.provenance["dtype"]}
    if not held:
        return ""
    return (
        f"a result computed in {result.provenance['dtype']} has become {held.pop()}, in a process whose framework "
        "rounds, as JAX does while jax_enable_x64 is off: turn it on before results of other processes arrive"
    )


def warn_of_lost_digits(result: Any) -> None:
    """To call where a pickle has been read: an exception would end the thread of a pool that reads it."""
    if said := lost_digits(result):
        warn_caller(said, UserWarning)


@dataclass(frozen=True)
class Verified:
    """Measurements at the theta that is returned.

    Attributes
    ----------
    violation : float
        Largest violation of a set, relative to its size.
    condition : float
        Condition number of the matrix that the lower-level solver factored, with columns scaled to length 1, so that
        it does not depend on the units of w; unscaled for `SVD`, whose minimum-norm solution depends on them. The
        gradient's relative error is at most about this times the machine epsilon. inf if the factorisation failed.
    units, dead_units : int
        Number of columns of the lower design, and of those that are zero, with a ridge also to rounding of the largest:
        atoms or latents that contribute nothing, have zero gradient and stay zero; none where its weight is not 0, as
        an Omega or a set may have it. The status does not speak of them.
    kinks : int
        Number of entries of w at a bound with a multiplier of 0 to working precision. There the one-sided derivatives
        of w differ, and the gradient of a bilevel problem jumps; that of a separable problem is continuous.
    lower_residual : float
        Relative residual of an iterative lower-level solver, the larger of w's and the adjoint's; 0 for a direct one.
    gradient_error : float
        Estimated Euclidean norm of the resulting error of the gradient, which the gap includes; 0 for a direct solver.
    cancellation : float
        The largest term ``|w_j| |M_j|`` over ``|y|``, to its order: where it is far above 1, terms of opposite signs
        cancel. 0 of rows in chunks.
    """

    violation: float
    condition: float
    units: int
    dead_units: int
    kinks: int = 0
    lower_residual: float = 0.0
    gradient_error: float = 0.0
    cancellation: float = 0.0


@dataclass(frozen=True)
class Counts:
    """Work of a solve: objective values, gradients, calls of the LMO, projections, factorisations, rows.

    `rows` are those on which values evaluated M, of both levels, certificates included, the checks before and after
    the iterations not; right-hand sides where mini-batches are drawn from these. What is not a mini-batch has all of
    them. Chunks count with their mean.
    """

    values: int
    gradients: int
    lmos: int
    projections: int
    factorisations: int
    rows: int


@dataclass(frozen=True)
class Trace:
    """One entry per iterate, the start included; NumPy arrays of length ``n_iter + 1``, or fewer with `trace_every`.

    Attributes
    ----------
    iteration : array of int
        The iteration of each entry: ``0, 1, ..., n_iter``, where the trace is whole.
    value, gap_A, gap_B : arrays
        Objective and both parts of the gap at the iterate.
    alpha_A, alpha_B : arrays
        Steps that led to it, per block; 0 at the start.
    values, gradients, lmos, projections, rows : arrays
        Cumulative numbers of evaluations, and of the rows on which M was evaluated: see ``Result.counts``.
    seconds : array
        Time since the first iteration began, without set-up and compilation. The iterations of one call of a compiled
        loop share its time evenly.
    """

    iteration: np.ndarray
    value: np.ndarray
    gap_A: np.ndarray
    gap_B: np.ndarray
    alpha_A: np.ndarray
    alpha_B: np.ndarray
    values: np.ndarray
    gradients: np.ndarray
    lmos: np.ndarray
    projections: np.ndarray
    rows: np.ndarray
    seconds: np.ndarray

    @property
    def gap(self) -> np.ndarray:
        """The gap of the whole step, ``gap_A + gap_B``."""
        return self.gap_A + self.gap_B


@dataclass(frozen=True, repr=False, eq=False)
class Outcome:
    """Fields of a `Result`, described there, and what follows from them alone."""

    theta: Tree
    value: float
    gap_A: float
    gap_B: float
    status: Status
    n_iter: int
    counts: Counts
    trace: Trace
    verified: Verified
    algorithm: str
    provenance: dict[str, Any]
    seconds: float
    setup_seconds: float
    recipe: Recipe
    _problem: Problem | None = None
    _weights: Callable[[], Iterator[Array]] | None = None
    _w: Array | None = None
    _held: Mapping[str, np.ndarray] | None = None  # of the modules of theta, where it comes from a file without them
    _continuation: Callable[[], Any] | None = None  # see driver.checkpoint
    _prepared: Any = None  # a `driver.prepare.Prepared`, where the solve was one of this process
    _unknown: tuple[str, ...] = ()  # leaves of theta by which a finite objective has no finite derivative
    loss: Loss | None = None

    @property
    def gap(self) -> float:
        """``gap_A + gap_B``."""
        return self.gap_A + self.gap_B

    @property
    def success(self) -> bool:
        """Whether the tolerance was met, or as much of it as the precision allows."""
        return self.status.success

    @property
    def w(self) -> Array:
        """The eliminated variable at theta, shape (n,) or (n, k), for the target as given.

        For `ColumnChunks` and for a large target of many columns it is solved for on first access, from the arrays of
        the problem, which must not have changed; `w_chunks` does it in blocks.
        """
        w = joined(self.w_chunks())
        object.__setattr__(self, "_w", w)
        return w

    def w_chunks(self) -> Iterator[Array]:
        """Yield blocks of columns of w: the chunks of a `ColumnChunks` target, else a number, or w itself if known."""
        if self._w is not None:
            return iter((self._w,))
        return self._weights() if self._weights else iter(())

    @property
    def in_columns(self) -> bool:
        """Whether right-hand sides come in chunks, and so w with what belongs to it."""
        return self._problem is not None and isinstance(self._problem.lower.y, ColumnChunks)

    @property
    def stated(self) -> Problem:
        """The problem, unchanged since the solve; a `ProblemError` where it is not known or has changed."""
        if self._problem is None:
            raise ProblemError(
                "fitted values and statistics need the problem, which a file and a pickle do not hold; got a result "
                "without one. Use result.attach(problem)"
            )
        if found := changed(self._problem, self.recipe.fingerprints):
            raise ProblemError(
                f"fitted values and statistics need the problem as it was solved; got another {', '.join(found)}. "
                "Solve again, or pass copies of your arrays to the problem"
            )
        return self._problem

    @property
    def known_noise(self) -> bool:
        """Whether the loss says how large the noise is."""
        return self.loss is not None and self.loss.likelihood

    @property
    def message(self) -> str:
        """The status as a sentence, and what to do next."""
        sentence, advice, condition = self.status.sentence, self.status.advice, self.verified.condition
        if by := ", ".join(self._unknown[:3]):
            sentence = f"The objective is finite at the last iterate, its derivative by {by} is not."
            advice = (
                "Where a power, a root or a logarithm meets 0, put another number in the place of its argument by "
                "xp.where (docs/models.md, powers at 0), or bound theta to where there are derivatives."
            )
        stuck = self.status in (Status.NO_DESCENT, Status.STALLED)
        if stuck and condition > np.finfo(self.provenance["dtype"]).eps ** -0.3:
            advice = (
                f"The columns of M(theta) are nearly dependent there, condition {condition:.1e}, as where two rates "
                f"become equal{self._cancelled}: leave one out, keep them apart by bounds, bound the amplitudes by "
                "W=xv.lower.Nonnegative(), add a ridge lam, or start elsewhere, as by xv.multistart."
            )
        if self.status is Status.NO_DESCENT and self._problem is not None and self._problem.in_rows:
            advice += (
                " Every pass over the chunks must give the same rows: one that draws or augments anew has no descent."
            )
        if self.status is Status.NON_FINITE and self._problem is not None:
            advice = " ".join([*self._problem.advice, advice])
        lost = self.status in (Status.NON_FINITE, Status.RANK_DEFICIENT)
        if self._problem and self.status is Status.RANK_DEFICIENT:
            return dependence(self._problem.lower, len(self.w))
        if self._problem and (lost or self.loss) and (said := empty_columns(self._problem.lower)):
            return said if lost else f"{sentence} {said}"
        sizes = np.concatenate([np.abs(to_numpy(x)).ravel() for x in trees.leaves(self.theta)])
        most = np.max(sizes, initial=0.0)
        least = np.min(sizes[sizes > NEAR_ZERO * most], initial=np.inf)
        if self.status is Status.NO_DESCENT and most >= FAR_UNITS * least:
            advice += (
                f" Entries of theta have sizes from {least:.0e} to {most:.0e}: measure them in units that bring them "
                "near 1, so that steps of every method move all of them."
            )
        return f"{sentence} {advice}"

    @property
    def _cancelled(self) -> str:
        """Words on terms that cancel, where they do."""
        found = self.verified.cancellation
        return f", and terms of opposite signs cancel: |w| |M| is {found:.0e} times |y|" if found > CANCELS else ""

    def __getstate__(self) -> dict[str, Any]:
        """For pickle and copies: w is computed, and functions that hold the solve are left out."""
        private = ("_problem", "_weights", "_continuation", "_prepared")
        return {**vars(self), "_w": self.w, **dict.fromkeys(private)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        modules.adopt(trees.leaves(self.theta))  # a module of a class that this process has not met
        warn_of_lost_digits(self)

    @property
    def summary(self) -> list[str]:
        """Lines on the solve: objective, gap, work, what was verified, where it was computed."""
        v, c = self.verified, self.counts
        inexact = f"lower residual {v.lower_residual:.1e}, gradient error {v.gradient_error:.1e} (estimated)"
        return [
            f"  objective   {self.value:.10g}",
            f"  gap         {self.gap_A:.3g} (constrained), {self.gap_B:.3g} (free)",
            f"  iterations  {self.n_iter} in {self.seconds:.3g} s (set-up {self.setup_seconds:.3g} s)",
            f"  work        {c.values} values, {c.gradients} gradients, {c.lmos} LMOs, {c.projections} projections",
            f"  verified    violation {v.violation:.1e}, condition {v.condition:.1e}",
            f"              {v.dead_units} of {v.units} columns of M(theta) are dead",
            *([f"              entries of w at a bound with a multiplier of zero: {v.kinks}"] if v.kinks else []),
            *([f"              {inexact}"] if v.lower_residual else []),
            *([f"              columns nearly dependent{self._cancelled}"] if self._cancelled else []),
            *([f"  loss        {self.loss}"] if self.loss is not None else []),
            f"  algorithm   {self.algorithm}",
            f"  computed    {', '.join(f'{k} {x}' for k, x in self.provenance.items() if not isinstance(x, dict))}",
        ]

    @property
    def headline(self) -> str:
        """The status, and `message` where it is no success."""
        return f"{self.status.name}: {self.status.sentence if self.success else self.message}"

    def __repr__(self) -> str:
        return "\n".join([self.headline, *self.summary])


def joined(blocks: Iterable[Array], axis: int = 1) -> Array:
    """Blocks of columns, or along another axis, as one array; a vector is one block."""
    parts = list(blocks)
    return parts[0] if len(parts) == 1 else trees.array_namespace(parts[0]).concat(parts, axis=axis)


def dependence(level: Level, n: int) -> str:
    """What to do about n columns of M(theta) that are linearly dependent."""
    if said := empty_columns(level, n):
        return said
    sentence, advice = Status.RANK_DEFICIENT.sentence, Status.RANK_DEFICIENT.advice
    return f"{sentence} {advice if level.W is None else advice.partition('; solver=')[0] + '.'}"


def empty_columns(level: Level, n: int = 0) -> str:
    """What to do about columns of a target that end the solve of all, as dark pixels; empty where there are none.

    They have no data, or without a ridge fewer than n.
    """
    if not trees.is_array(level.y) or level.y.ndim != 2:
        return ""
    y, given = to_numpy(level.y), level.weights
    weights = to_numpy(given).reshape(len(y), -1) if trees.is_array(given) else np.ones((1, 1))
    bare = np.broadcast_to(~np.any(weights, axis=0), y.shape[1:])
    starved = level.loss and (level.loss.positive or (level.loss.linked and not level.ridge.present))
    dark = ~np.any(y * (weights != 0), axis=0) & bool(starved)
    n = 0 if level.ridge.present or len(weights) < len(y) else level.W.dimension(n) if level.W else n
    short = np.broadcast_to(np.count_nonzero(weights, axis=0) < n, y.shape[1:])
    for what, at in (
        ("no weight but 0: leave out what has no data", bare),
        ("no entry but 0, which a positive model fits the better the smaller it is: leave out what has none", dark),
        (f"fewer data with a weight than the {n} that w needs: pass lam > 0, or leave out what has so few", short),
    ):
        if at.any():
            first = ", ".join(map(str, np.flatnonzero(at)[:3]))
            count = f"{at.sum()} columns of y, the first {first}, have" if at.sum() > 1 else f"Column {first} of y has"
            return f"{count} {what}, of y and of weights; weights of 0 do not help."
    return ""
