"""Dictionary learning under an entrywise l1 budget, the paper's Example 2, and the methods that compete on it.

``min 1/2 |D W - X|^2 + lam/2 |W|^2  over W and over |D|_1 <= radius``: the codes W are eliminated, the dictionary D is
theta. The paper drops the factor 1/2.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

import xvarpro as xv
from xvarpro import Moment, Problem, Result, Status
from xvarpro.errors import ProblemError
from xvarpro.experiments.agreement import Agreement
from xvarpro.experiments.rivals import IPALM, JointProjectedGradient
from xvarpro.protocols import Algorithm, Array


def design(theta: Array, data: Any) -> Array:
    """``M(theta) = D``. A module's function: compiled loops are found again under it."""
    return theta


def problem(X: Array, lam: float = 1e-5, compress: bool = True) -> Problem:
    """The dictionary problem of images X.

    Parameters
    ----------
    X : array, shape (pixels, samples)
    lam : float
        Ridge on the codes, >= 0.
    compress : bool
        Whether a solve may replace the samples by as many columns as there are pixels.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> from xvarpro.experiments import dictionary
    >>> X = np.random.default_rng(0).normal(size=(6, 40))
    >>> D0 = dictionary.start(X, atoms=3, radius=1.0, seed=0)
    >>> fit = xv.solve(dictionary.problem(X), D0, over=xv.sets.L1Ball(1.0), max_iter=50)
    >>> fit.value < fit.trace.value[0]
    True
    """
    return xv.separable(design, X, lam=lam, compress=compress)


def start(X: Array, atoms: int, radius: float = 1.0, seed: int = 0) -> np.ndarray:
    """Gaussian dictionary with ``|D|_1 = radius``, drawn with NumPy: every backend starts from the same bits.

    Parameters
    ----------
    X : array, shape (pixels, samples)
        Only its height is used.
    atoms : int
        >= 1.
    radius : float
        Of the l1 ball, > 0.
    seed : int
        >= 0.

    Returns
    -------
    array, shape (pixels, atoms), float64
    """
    for name, value in (("atoms", atoms), ("radius", radius)):
        if not 0 < value < math.inf:
            raise ProblemError(f"{name} must be a finite number > 0, got {value}")
    if seed < 0:
        raise ProblemError(f"seed must be >= 0, got {seed}")
    D = np.random.default_rng(seed).normal(size=(X.shape[0], atoms))
    return D * (radius / np.sum(np.abs(D)))


@dataclass(frozen=True)
class Method:
    """A name in the table and what it runs; `joint` methods keep W as a variable."""

    name: str
    algorithm: Algorithm
    joint: bool = False


PAPER = Method("CR-VarPro (the paper)", xv.algorithms.cr_varpro())
METHODS = (
    PAPER,
    Method("Frank-Wolfe, adaptive L", xv.algorithms.FrankWolfe()),
    Method("accelerated projected gradient", xv.algorithms.AcceleratedProjectedGradient()),
    Method("spectral projected gradient", xv.algorithms.SpectralProjectedGradient()),
    Method("joint projected gradient, 1/L", JointProjectedGradient(), joint=True),
    Method("joint iPALM", IPALM(), joint=True),
)


class Curve(NamedTuple):
    """Reduced objective of the iterates of a run, the start included."""

    iterations: np.ndarray
    seconds: np.ndarray
    objective: np.ndarray


@dataclass(frozen=True)
class Outcome:
    """A method's run and what was measured at the D it ended with.

    Attributes
    ----------
    method : Method
    fit : Result
        Of the method itself.
    certificate : Result or None
        Of the reduced problem at the same D; None where D is not finite.
    curve : Curve
    """

    method: Method
    fit: Result
    certificate: Result | None
    curve: Curve

    @property
    def objective(self) -> float:
        """Reduced objective, NaN where D is not finite."""
        return math.nan if self.certificate is None else self.certificate.value

    def record(self) -> dict[str, Any]:
        """What the table and the summary show."""
        fit, gap = self.fit, math.nan if self.certificate is None else self.certificate.gap
        # a joint method ends on time through its callback
        status = Status.TIME_LIMIT if fit.status is Status.STOPPED else fit.status
        return {
            "method": self.method.name,
            "joint": self.method.joint,
            "objective": self.objective,
            "own_objective": fit.value,
            "gap": gap,
            "relative_gap": gap / abs(self.objective) if self.objective else math.nan,
            "infeasibility": fit.verified.violation,
            "iterations": fit.n_iter,
            "seconds": fit.seconds,
            "setup_seconds": fit.setup_seconds,
            "nonzeros": int(np.count_nonzero(fit.theta)),
            "live_atoms": fit.verified.units - fit.verified.dead_units,
            "atoms": fit.verified.units,
            "status": status.name,
            "algorithm": fit.algorithm,
        }


@dataclass(frozen=True)
class Budget:
    """Limits of a run, the same for every method; set-up and compilation do not count.

    Parameters
    ----------
    iterations : int
        >= 1.
    seconds : float
        > 0.
    """

    iterations: int = 200
    seconds: float = 20.0

    def __post_init__(self) -> None:
        if self.iterations < 1:
            raise ProblemError(f"iterations must be a whole number >= 1, got {self.iterations}")
        if not 0 < self.seconds < math.inf:
            raise ProblemError(f"time must be a finite number of seconds > 0, got {self.seconds}")


@dataclass(frozen=True)
class Task:
    """One instance: data, start, set, and where to compute.

    Parameters
    ----------
    X : array, shape (pixels, samples)
    D0 : array, shape (pixels, atoms)
        In X's dtype, which is the dtype of the work.
    lam, radius : float
    backend, device : str, optional
        As in `xvarpro.solve`.
    """

    X: np.ndarray
    D0: np.ndarray
    lam: float = 1e-5
    radius: float = 1.0
    backend: str | None = None
    device: str | None = None

    def __post_init__(self) -> None:
        problem(self.X, self.lam)  # refuses a bad ridge before any work

    @property
    def over(self) -> xv.sets.L1Ball:
        """The feasible set."""
        return xv.sets.L1Ball(self.radius)

    def solve(self, algorithm: Algorithm | None, problem: Problem, D: np.ndarray, **limits: Any) -> Result:
        """`xvarpro.solve` from D; a dead atom is a number in the table here, not a warning."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", xv.DeadUnitsWarning)
            return xv.solve(
                problem,
                D,
                over=self.over,
                algorithm=algorithm,
                backend=self.backend,
                device=self.device,
                **limits,
            )

    @cached_property
    def judge(self) -> Problem:
        """The reduced problem with its data compressed once, for evaluations off the clock."""
        return problem(xv.compress(self.X), self.lam)

    def certify(self, D: np.ndarray) -> Result | None:
        """Reduced objective and gap at D, None where D is not finite."""
        return self.solve(None, self.judge, D, max_iter=0, progress=False) if np.all(np.isfinite(D)) else None

    def value(self, D: np.ndarray) -> float:
        """Reduced objective at D, NaN where D is not finite."""
        if not np.all(np.isfinite(D)):
            return math.nan
        return float(xv.value_and_gradient(self.judge, D, self.backend, device=self.device)[0])


def run(task: Task, method: Method, budget: Budget, progress: bool | None = None) -> Outcome:
    """One method on the task, until either limit.

    A joint method runs on the uncompressed data, as its user would run it. It knows its own objective only every few
    iterations; it is stopped at one of those, so that everything reported belongs to the same iterate. On time that is
    up to four iterations late, in its favour.

    Parameters
    ----------
    task : Task
    method : Method
    budget : Budget
    progress : bool, optional
        As in `xvarpro.solve`.

    Examples
    --------
    >>> import numpy as np
    >>> from xvarpro.experiments import dictionary
    >>> X = np.random.default_rng(0).normal(size=(6, 40))
    >>> task = dictionary.Task(X, dictionary.start(X, atoms=3))
    >>> outcomes = [dictionary.run(task, method, dictionary.Budget(20)) for method in dictionary.METHODS]
    >>> all(o.objective <= o.curve.objective[0] for o in outcomes)
    True
    """
    if not method.joint:
        fit = task.solve(
            method.algorithm,
            problem(task.X, task.lam),
            task.D0,
            max_iter=budget.iterations,
            time_limit=budget.seconds,
            progress=progress,
        )
        return Outcome(method, fit, fit, Curve(np.arange(fit.n_iter + 1), fit.trace.seconds, fit.trace.value))
    every = next(n for n in (5, 4, 3, 2, 1) if budget.iterations % n == 0)
    checkpoints = _Checkpoints(budget.seconds, every)
    fit = task.solve(
        replace(method.algorithm, certify=every),  # type: ignore[call-arg]
        problem(task.X, task.lam, compress=False),
        task.D0,
        max_iter=budget.iterations,
        callback=checkpoints,
        progress=progress,
    )
    certificate = task.certify(fit.theta)
    last = math.nan if certificate is None else certificate.value
    return Outcome(method, fit, certificate, checkpoints.curve(task, fit, last))


def compare(task: Task, backends: Sequence[str], iterations: int = 50) -> Agreement:
    """The paper's method from the same start on several backends, each on its default device.

    Parameters
    ----------
    task : Task
        In float64, the precision in which backends can be expected to agree.
    backends : sequence of str
        At least two.
    iterations : int
        On each.
    """
    limits = {"tol": 0.0, "max_iter": iterations, "progress": False}
    tasks = {name: replace(task, backend=name, device=None) for name in backends}
    stated = problem(task.X, task.lam)
    return Agreement({name: on.solve(PAPER.algorithm, stated, task.D0, **limits) for name, on in tasks.items()})


class _Checkpoints:
    """Callback of a joint method: keeps an iterate now and then, evenly in the logarithm, and stops it on time."""

    def __init__(self, seconds: float, every: int) -> None:
        self._seconds, self._every = seconds, every
        self._next = 1
        self._kept: list[tuple[int, float, np.ndarray]] = []

    def __call__(self, moment: Moment) -> bool:
        if moment.iteration >= self._next:
            self._next = math.ceil(1.3 * moment.iteration + 0.1)
            self._kept.append((moment.iteration, moment.seconds, moment.theta))
        return moment.seconds >= self._seconds and moment.iteration % self._every == 0

    def curve(self, task: Task, fit: Result, last: float) -> Curve:
        points = [(0, 0.0, task.value(task.D0))]
        points += [(n, seconds, task.value(D)) for n, seconds, D in self._kept if n < fit.n_iter]
        points.append((fit.n_iter, fit.seconds, last))
        n, seconds, objective = zip(*points, strict=True)
        return Curve(np.asarray(n), np.asarray(seconds), np.asarray(objective))


def best(outcomes: list[Outcome]) -> Outcome:
    """The reduced method that ended lowest; the first where none is finite."""
    reduced = [o for o in outcomes if not o.method.joint]
    return min(reduced, key=lambda o: (not math.isfinite(o.objective), o.objective))
