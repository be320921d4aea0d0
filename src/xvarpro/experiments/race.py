"""Methods on one instance of the dictionary problem, under one budget and measured alike."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from xvarpro import Moment, Result, Status
from xvarpro.errors import ProblemError
from xvarpro.experiments.dictionary import Method, Task, problem
from xvarpro.experiments.rivals import JointMethod, Periodic


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
    >>> from xvarpro.experiments import dictionary, race
    >>> X = np.random.default_rng(0).normal(size=(6, 40))
    >>> task = dictionary.Task(X, dictionary.start(X, atoms=3))
    >>> outcomes = [race.run(task, method, race.Budget(20)) for method in dictionary.METHODS]
    >>> all(o.objective <= o.curve.objective[0] for o in outcomes)
    True
    """
    algorithm = method.algorithm
    if isinstance(algorithm, JointMethod):
        return _run_joint(task, method, algorithm, budget, progress)
    fit = task.solve(
        algorithm,
        problem(task.X, task.lam),
        task.D0,
        max_iter=budget.iterations,
        time_limit=budget.seconds,
        progress=progress,
    )
    return Outcome(method, fit, fit, Curve(np.arange(fit.n_iter + 1), fit.trace.seconds, fit.trace.value))


def _run_joint(task: Task, method: Method, algorithm: JointMethod, budget: Budget, progress: bool | None) -> Outcome:
    every = next(n for n in (5, 4, 3, 2, 1) if budget.iterations % n == 0)
    checkpoints = _Checkpoints(budget.seconds, every)
    fit = task.solve(
        replace(algorithm, certify=every) if isinstance(algorithm, Periodic) else algorithm,
        problem(task.X, task.lam, compress=False),
        task.D0,
        max_iter=budget.iterations,
        callback=checkpoints,
        progress=progress,
    )
    certificate = task.certify(fit.theta)
    last = math.nan if certificate is None else certificate.value
    return Outcome(method, fit, certificate, checkpoints.curve(task, fit, last))


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


def best(outcomes: Sequence[Outcome]) -> Outcome:
    """The reduced method that ended lowest; the first where none is finite."""
    reduced = [o for o in outcomes if not o.method.joint]
    return min(reduced, key=lambda o: (not math.isfinite(o.objective), o.objective))
