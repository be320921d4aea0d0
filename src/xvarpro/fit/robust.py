"""Fits by a loss other than least squares: reweighted least squares with w eliminated, certified where it ends."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any, NamedTuple, cast

import numpy as np

from xvarpro import backends
from xvarpro.algorithms.interface import Algorithm
from xvarpro.backends import Backend
from xvarpro.core import trees
from xvarpro.core.checks import described, instance
from xvarpro.core.namespace import namespace_of, positive_or_one
from xvarpro.core.status import Bar, Status
from xvarpro.core.struct import Array, Leaves, Tree
from xvarpro.driver.iteration import negligible_decrease, noise
from xvarpro.driver.model_check import check_limits, check_unchanged
from xvarpro.driver.outcome import outcome, recipe
from xvarpro.driver.prepare import Prepared, prepare
from xvarpro.driver.run import WORK, Record, Run
from xvarpro.errors import ProblemError
from xvarpro.fit.result import Result
from xvarpro.fit.solve import chosen
from xvarpro.objective.reduced import Reduced
from xvarpro.problem.problem import Problem, refuse_covariance
from xvarpro.statistics.losses import Loss

FIRST = 0.1  # tolerance of the first weighted fits; of the next, this times the root of the last relative decrease
INNER, PLAIN = 50, 1000  # iterations at most of a weighted fit, and of the plain one that gives a scale
HALVINGS = 30  # of a step that does not lower the loss
RESCALINGS = 40  # fits at most from which a scale is estimated
SETTLED = 1e-3  # relative change of a scale that ends these, and their tolerance


@dataclass(frozen=True, repr=False, eq=False)
class RobustResult(Result):
    """Outcome of `solve_robust`: a `Result` whose value, gaps and trace are those of the loss.

    Attributes
    ----------
    loss : Loss
        With the scale that was used.
    weights : array, shape (m,) or (m, k)
        By what the loss multiplies the weights of the problem at the residuals of the result, in theta0's framework:
        near 0 for an outlier, 1 for least squares, ``1 / mu`` for `Poisson`.
    """

    loss: Loss | None = None
    weights: Array | None = None

    @property
    def message(self) -> str:
        own = {Status.NON_FINITE: self.loss.advice if self.loss else "", Status.MAX_ITER: "Raise max_iter."}
        advice = own.get(self.status)
        return f"{self.status.sentence} {advice}" if advice else super().message

    @property
    def summary(self) -> list[str]:
        return [*super().summary, f"  loss        {self.loss}"]

    @property
    def least_squares(self) -> Problem:
        """The problem that Newton's method, or Fisher's scoring, would solve next, which the result solves too.

        Its weights are those of the problem times the curvature of the loss that is expected; its target is the model
        minus slope over curvature of the loss, entry by entry.
        """
        problem, loss, factor = self.stated, cast(Loss, self.loss), backends.to_numpy(self.weights)
        mu, y, weights = self._at_the_data
        curvature: Any = loss.curvature(mu, y, weights)
        anew = {"y": mu - factor / curvature * (mu - y), "weights": curvature * weights}
        return replace(problem, lower=replace(problem.lower, **{k: x.astype(mu.dtype) for k, x in anew.items()}))

    @property
    def deviance(self) -> float:
        """Twice the `Poisson` loss of the data: -2 times the log likelihood, less that of a model equal to each count.

        It has no part of a ridge or of a penalty; NaN for a loss that is no log likelihood.
        """
        loss = cast(Loss, self.loss)
        return 2 * float(loss.value(*(x.astype(float) for x in self._at_the_data))) if loss.likelihood else math.nan

    @property
    def _at_the_data(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Model, target and weights as NumPy arrays of one shape; the target is the model where it has no weight."""
        level: Any = self.stated.lower
        mu, y = backends.to_numpy(self.fitted), backends.to_numpy(level.y)
        weights = backends.to_numpy(level.weights).reshape(mu.shape)
        return mu, np.where(weights > 0, y, mu), weights

    def again(self, theta0: Tree, over: Tree, tol: float) -> RobustResult:
        """A fit by the same loss, with the scale that was used, from another start in other sets."""
        return solve_robust(self.stated, theta0, over, loss=cast(Loss, self.loss), tol=tol)

    def attach(self, problem: Problem) -> Result:
        return super().attach(_by_entry(problem))

    def save(self, path: str | PathLike[str], problem: str | None = None) -> None:
        """Refused: a file of `Result.save` holds no loss."""
        raise ProblemError("a result of solve_robust must be pickled to be kept; got save, whose files hold no loss")


class Fit(NamedTuple):
    """A theta and a w, with the model and the objective there."""

    theta: Leaves
    w: Array  # (n, k), in the units of the prepared problem
    mu: Array  # (m, k), in the caller's
    value: float  # in the units of the prepared problem


def solve_robust(
    problem: Problem,
    theta0: Tree,
    over: Tree = None,
    *,
    loss: Loss | str,
    algorithm: Algorithm | None = None,
    tol: float = 1e-6,
    max_iter: int = 200,
    backend: str | Backend | None = None,
    device: Any = None,
    dtype: str | None = None,
    deterministic: bool = False,
) -> RobustResult:
    """Minimise a loss of the residuals, such as Huber's, over theta in its sets and w.

    With ``z = weights (M(theta) w - y)^2 / scale^2``, entry by entry, the objective is ``1/2 sum scale^2 rho(z) +
    lam/2 |Omega w|^2 + mu/2 R(theta)``, or that with half the deviance for `losses.Poisson`. Least squares with the
    weights multiplied by ``rho'(z)`` at the last residuals has the same gradient there and, rho being concave, lies
    above it but for a constant. So iterations on that problem, with w eliminated as in `solve`, lower the loss; then
    the weights are taken anew. For `losses.Poisson`, where no such bound holds, a step is halved until it lowers the
    loss.

    Parameters
    ----------
    problem : Problem
        From `separable`, with real arrays in memory. Its weights, 1/sigma^2, multiply in: the loss sees residuals times
        their roots.
    theta0, over
        As in `solve`. The first fit is a rough one by plain least squares.
    loss : losses.Huber, losses.SoftL1, losses.Cauchy or losses.Poisson, or a name such as "huber" or "soft_l1"
        Without a scale a plain fit comes first: the scale is the median size of its weighted residuals times a
        constant. Fits with this loss and new scales take turns until both agree; then the scale is held.
    algorithm : Algorithm, optional
        For the weighted problems; None chooses as `solve` does.
    tol : float
        As in `solve`: what the objective can still lose, relative to it.
    max_iter : int
        Reweightings at most, >= 0, with up to 50 iterations each.
    backend, device, dtype, deterministic
        As in `solve`.

    Returns
    -------
    RobustResult
        With ``value`` and both gaps of the objective above, at theta and w. `CONVERGED` says that at weights which are
        those of its own residuals neither theta nor w has more to gain than the tolerance, by the model that `solve`
        has of the weighted problem. Of a concave rho that bends up as much as the loss or more, so that the loss may
        have somewhat more to gain; the gap of sets is that of the loss.

    Raises
    ------
    ProblemError
        As `solve`; the problem has two levels, chunks, a target that is a function, complex numbers or a lower level
        that is solved iteratively; counts are negative; half of the residuals that should give a scale are zero.
    ModelError, ExchangeError, UnknownBackendError, BackendNotInstalledError
        As `solve`.

    References
    ----------
    P. W. Holland, R. E. Welsch, Robust regression using iteratively reweighted least-squares, Comm. Statist. 6 (1977).

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> def M(theta, data):
    ...     xp = xv.array_namespace(theta)
    ...     return xp.exp(-xp.expand_dims(data["t"], axis=1) * theta)
    >>> t = np.linspace(0.0, 2.0, 100)
    >>> y = 2.0 * np.exp(-3.0 * t) + 1e-3 * np.sin(50 * t)
    >>> y[10] = 5.0
    >>> fit = xv.solve_robust(xv.separable(M, y, data={"t": t}), np.array([1.0]), loss=xv.losses.Huber(1e-3))
    >>> np.round(fit.theta, 2), np.round(fit.w, 2), bool(fit.weights[10] < 1e-3)
    (array([3.]), array([2.]), True)
    """
    began = time.perf_counter()
    tol, max_iter = check_limits(tol, max_iter)
    found: Loss | None = instance(loss, Loss)
    if found is None:
        raise ProblemError(
            "loss must be 'huber', 'soft_l1', 'cauchy' or 'poisson', or one of xvarpro.losses, such as "
            f"xv.losses.Huber(); got {described(loss)}"
        )
    prepared = prepare(
        _by_entry(problem),
        theta0,
        over=over,
        backend=backend,
        device=device,
        dtype=dtype,
        deterministic=deterministic,
        solving=True,
    )
    if not prepared.structure.exact or prepared.structure.complex_w:
        kind = "complex numbers" if prepared.structure.complex_w else "one that is solved iteratively"
        raise ProblemError(f"solve_robust needs a real lower level that is solved directly; got {kind}")
    method = chosen(prepared, algorithm)
    with prepared.backend.scope(prepared.dtype):
        descent = _Descent(prepared, method, found, tol)
        setup = time.perf_counter() - began
        status = descent.first()
        if status is Status.RUNNING:
            status = descent.reweight(max_iter)
        check_unchanged(prepared.original, prepared.fingerprints)
        return descent.outcome(status, over, max_iter, setup)


def _by_entry(problem: Problem) -> Problem:
    """The problem with weights for every entry of its target, uncompressed: the loss sees each of them."""
    if not isinstance(problem, Problem):
        raise ProblemError(f"problem must come from xv.separable; got {type(problem).__name__}")
    refuse_covariance(problem, "a loss of each residual", "Use xv.solve")
    level = problem.lower
    y: Any = level.y
    if not problem.is_separable or not trees.is_array(y):
        kind = f"y as {type(y).__name__}" if problem.is_separable else "two levels"
        raise ProblemError(f"solve_robust needs a separable problem with an array y in memory; got {kind}")
    m, k = tuple(y.shape) if y.ndim == 2 else (y.shape[0], 1)
    given = np.ones(m, bool) if level.weights is None else backends.to_numpy(level.weights)
    weights = given[:, None] if given.ndim == 1 else given
    weights = np.repeat(weights, k, axis=1) if weights.shape[1] == 1 else weights
    return replace(problem, lower=replace(level, weights=weights), compress=False)


class _Descent:
    """Reweighted least squares: where it is, the last weighted problem with what multiplies weights, and the record."""

    now: Fit
    factor: Array  # (m, k)

    def __init__(self, prepared: Prepared, method: Algorithm, loss: Loss, tol: float) -> None:
        self.prepared, self.method, self.loss, self.tol = prepared, method, loss, tol
        self.unit, self.began = prepared.y_unit, time.perf_counter()
        level: Any = prepared.problem.lower
        self.weights: Array = level.weights
        self.y: Array = level.y / positive_or_one(namespace_of(level.y).sqrt(level.weights)) / self.unit
        loss.check(backends.to_numpy(self.y))
        self.run: Any = None  # of the last weighted problem
        self.work = np.zeros(-WORK)  # before it
        self.record: Any = None

    def first(self) -> Status:
        """Fit by least squares, find the scale if there is none, and look at the loss there."""
        scaling = self.loss.needs_scale
        self.start(self.prepared.theta, self.loss.first_factor(self.y), SETTLED if scaling else FIRST)
        status = self.iterate(PLAIN if scaling else INNER)
        theta = self.run.best()[0].theta
        if scaling and status is not Status.NON_FINITE:
            theta = self.scaled(theta)
        self.now = Fit(theta, *self.model(theta)[:2], math.nan) if self.loss.needs_scale else self.fit(theta)
        if math.isfinite(self.now.value):
            return Status.RUNNING
        self.note(1.0)
        return Status.NON_FINITE

    def scaled(self, theta: Leaves) -> Leaves:
        """Give the loss the scale of the residuals that it leaves itself; the theta of the last fit.

        Outliers spoil the residuals of the plain fit, and with them a first scale: fits and scales take turns. The loss
        is left without a scale where a fit is not finite.
        """
        unscaled, last = self.loss, math.inf
        used = backends.to_numpy(self.weights) > 0
        size = backends.to_numpy(namespace_of(self.y).sqrt(self.weights) * self.y)[used]
        least = float(
            np.finfo(self.prepared.dtype).eps ** 0.5 * np.max(np.abs(size))
        )  # below it data are without noise
        for _ in range(RESCALINGS):
            w, mu, _ = self.model(theta)
            r = backends.to_numpy(namespace_of(mu).sqrt(self.weights) * (mu - self.y))[used]
            if not np.isfinite(r).all():
                self.loss = unscaled
                break
            self.loss = unscaled.scaled_by(r)
            scale = self.loss.unit
            if abs(scale - last) <= SETTLED * scale or scale <= least:
                break
            last, self.now = scale, Fit(theta, w, mu, math.nan)
            self.restart(SETTLED)
            self.iterate(INNER)
            theta = self.run.best()[0].theta
        return theta

    def reweight(self, max_iter: int) -> Status:
        """Reweight until neither theta nor w has more to gain than the tolerance."""
        level, alpha = max(self.tol, FIRST), 1.0
        for left in range(max_iter, -1, -1):
            now, tight = self.now, not left or level <= self.tol
            self.restart(self.tol if tight else level)
            self.note(alpha)
            status = self.iterate(INNER if left else 0, tight)
            trial, still = self.fit(self.run.best()[0].theta), not self.run.record.done
            certified = tight and status.success and self.same(trial)
            if still and (certified or status is Status.NON_FINITE):
                return status
            if left:
                rounding = self.rounding
                alpha, self.now = self.toward(trial, rounding)
                lost = now.value - self.now.value
                # what a rough fit says of descent is not looked at again: a tight one follows
                if not alpha or (tight and lost <= rounding and status not in (Status.CONVERGED, Status.MAX_ITER)):
                    self.now = now
                    self.restart(self.tol)
                    return status if alpha else Status.NO_DESCENT
                level = FIRST * math.sqrt(max(lost, 0.0) / self.now.value) if self.now.value > 0 else 0.0
        return Status.MAX_ITER

    def outcome(self, status: Status, over: Tree, max_iter: int, setup: float) -> RobustResult:
        """That of the last weighted problem, with the objective of the loss."""
        prepared, run = self.prepared, self.run
        run.certify()
        asked = replace(recipe(run, over, max_iter), tol=self.tol)
        weighted = outcome(run, self.record, status, setup, asked, lambda: None)
        own = {
            "value": self.now.value / self.unit / self.unit,
            "seconds": time.perf_counter() - self.began,
            "loss": self.loss,
            "weights": prepared.layout.array(self.factor[:, 0] if prepared.vector else self.factor, prepared.backend),
            "_w": prepared.w_to_caller(self.now.w),
            "_weights": None,
            "_continuation": None,
            "_prepared": None,  # with the weights of the last of them
        }
        return RobustResult(**weighted | own)

    # -- the loss

    @property
    def rounding(self) -> float:
        """By how much objectives may differ from rounding alone."""
        floor = self.prepared.backend.to_floats([self.run.operands[1]])[0]
        return float(noise(*(np.asarray(x, self.prepared.dtype) for x in (self.now.value, floor))))

    def model(self, theta: Leaves, *w: Array) -> tuple[Array, Array, Array]:
        """w, by default that of the weighted problem; the model in the caller's units; ridge and penalty."""
        weighted = self.run.prepared
        found, product, rest = weighted.call(_model, theta, *w, once=True)
        self.work[0] += 1
        root = namespace_of(product).sqrt(weighted.problem.lower.weights)
        return found, product / positive_or_one(root) / self.unit, rest

    def fit(self, theta: Leaves, *w: Array) -> Fit:
        """The model and the objective at theta and w."""
        found, mu, rest = self.model(theta, *w)
        floats = self.prepared.backend.to_floats([self.loss.value(mu, self.y, self.weights), rest])
        return Fit(theta, found, mu, floats[0] * (self.loss.unit * self.unit) ** 2 + floats[1])

    def toward(self, trial: Fit, rounding: float) -> tuple[float, Fit]:
        """The longest of the steps 1, 1/2, 1/4, ... to a trial that does not raise the objective, and its end."""
        now, alpha, found = self.now, 1.0, trial
        for _ in range(HALVINGS):
            if found.value <= now.value + rounding:  # of a concave rho the first one, by theory
                return alpha, found
            alpha *= 0.5
            theta = trees.axpy(alpha, trees.sub(trial.theta, now.theta), now.theta)
            found = self.fit(theta, now.w + alpha * (trial.w - now.w))
        return 0.0, now

    def same(self, trial: Fit) -> bool:
        """Whether the exact w of the weighted problem at `now` gains no more than the tolerance."""
        xp = namespace_of(trial.mu)
        moved = ((trial.mu - self.now.mu) * self.unit) ** 2
        tol, floor = self.run.operands[:2]
        least = negligible_decrease(self.run.state.iterate.value, tol, floor)
        return bool(0.5 * xp.sum(self.factor * self.weights * moved) <= least)

    # -- weighted least squares

    def start(self, theta: Leaves, factor: Array, tol: float) -> None:
        """Look at the weighted problem at theta."""
        if self.run is not None:
            self.work = self.done
        self.factor = factor
        level: Any = self.prepared.problem.lower
        y = namespace_of(factor).sqrt(factor) * level.y
        problem = replace(self.prepared.problem, lower=replace(level, y=y, weights=factor * level.weights))
        self.run = Run(replace(self.prepared, problem=problem, theta=theta), self.method, tol)
        self.run.start()

    def restart(self, tol: float) -> None:
        """Look at the problem whose weights are those of the residuals where it is."""
        self.start(self.now.theta, self.loss.factor(self.now.mu, self.y, self.weights), tol)

    def iterate(self, limit: int, certified: bool = False) -> Status:
        """Iterate on it; with `certified`, an end is looked at again as `solve` does."""
        run, silent = self.run, (limit, None, None, Bar(limit, False), None)
        status: Status = run.iterate(*silent)
        while certified and (status is not Status.CONVERGED or not run.record.done) and run.continues(status, limit):
            status = run.iterate(*silent)
        return run.finish(status) if certified else status

    @property
    def done(self) -> np.ndarray:
        """All work so far, as `RECORD` ends."""
        return self.work + self.run.record.row[WORK:]

    def note(self, alpha: float) -> None:
        """Record where it is, with the certificate there and the step that led to it."""
        value, gaps = self.now.value / self.unit / self.unit, self.run.row()[1:3]
        began = self.record is None
        row = [value, *gaps, *([0.0, 0.0] if began else [alpha, alpha]), Status.RUNNING.code, *self.done]
        seconds = time.perf_counter() - self.began
        if began:
            self.record = Record(np.array([[0.0, seconds, *row]]), 1)
        else:
            self.record.add(row, seconds)


def _model(f: Reduced, theta: Leaves, *w: Array) -> tuple[Array, Array, Array]:
    """w, given or exact, (n, k); ``M w`` with its rows weighted, (m, k); ridge and penalty, 0-d."""
    outputs, _ = f.evaluate_or_nan(theta)
    level, _ = f.levels(outputs)
    exact = w[0] if w else f.lower_solution(f.point_of(theta, outputs), outputs).w
    product = level.M.matvec(exact)
    return exact, product, f.objective(outputs, level, exact, 0 * product)
