"""Who competes on one instance of an experiment, and what is kept of a run."""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np

import xvarpro as xv
from xvarpro import IterationInfo, Problem, Result, Status
from xvarpro.algorithms.interface import Algorithm
from xvarpro.core import trees
from xvarpro.core.struct import Tree
from xvarpro.errors import ProblemError
from xvarpro_experiments.rivals import JointMethod, Periodic

# What is read off an iterate beside the objective, off the clock. It is given a result of no iterations at the iterate,
# of the problem that the method solves: its theta, its w, what was verified
Measure: TypeAlias = Callable[[Result], float]

FAMILIES = ("paper", "ours", "rival", "floor")  # a floor is no method, but a line that others are measured against
DEFAULT = "xvarpro's default"  # the name of `algorithm=None` in every table
SPACING = 1.3  # of the iterates that are kept, in the logarithm of their number


@dataclass(frozen=True)
class Budget:
    """Limits of a run, the same for every method; set-up and compilation do not count.

    Parameters
    ----------
    iterations : int or None
        >= 1; None for as many as the time allows.
    seconds : float
        > 0.
    """

    iterations: int | None = None
    seconds: float = 20.0

    def __post_init__(self) -> None:
        if self.iterations is not None and self.iterations < 1:
            raise ProblemError(f"iterations must be a whole number >= 1, got {self.iterations}")
        if not 0 < self.seconds < math.inf:
            raise ProblemError(f"time must be a finite number of seconds > 0, got {self.seconds}")

    @property
    def max_iter(self) -> int:
        """A number that `xvarpro.solve` takes."""
        return 10**9 if self.iterations is None else self.iterations


class Curve(NamedTuple):
    """Something measured at iterates of a run, the start included."""

    iterations: np.ndarray
    seconds: np.ndarray
    value: np.ndarray

    def at(self, axis: str, x: float) -> float:
        """The last value at or before `x` on the axis ``"iterations"`` or ``"seconds"``."""
        return float(self.value[max(0, np.searchsorted(getattr(self, axis), x, side="right") - 1)])

    def reached(self, target: float) -> float:
        """Seconds at which the value is first no larger than `target`; inf where it never is."""
        found = np.flatnonzero(self.value <= target)
        return float(self.seconds[found[0]]) if found.size else math.inf


@dataclass(frozen=True)
class Task:
    """One instance: what is minimised, from where, over what, and what is measured.

    Parameters
    ----------
    problem : Problem
        What the methods on the reduced objective solve.
    theta0 : pytree of NumPy arrays
        In the dtype of the work.
    over : Set or pytree of sets
    joint : Problem, optional
        What joint methods solve, as a user of theirs would state it; `problem` by default.
    judge : Problem, optional
        The reduced problem as it is evaluated off the clock, such as with compressed data; `problem` by default.
    measures : mapping of str to Measure
        By their names in tables and figures.
    optimum : float, optional
        Smallest value of the objective, where it is known.
    backend, device : str, optional
        As in `xvarpro.solve`.
    followed : bool
        Whether iterates on the way are judged, or the end alone.
    """

    problem: Problem
    theta0: Tree
    over: Any
    joint: Problem | None = None
    judge: Problem | None = None
    measures: Mapping[str, Measure] = field(default_factory=dict)
    optimum: float | None = None
    backend: str | None = None
    device: str | None = None
    followed: bool = True

    def solve(self, algorithm: Algorithm | None, problem: Problem, theta: Tree, **limits: Any) -> Result:
        """`xvarpro.solve` from theta; a dead unit is a number in a table here, not a warning."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", xv.DeadUnitsWarning)
            return xv.solve(
                problem,
                theta,
                over=self.over,
                algorithm=algorithm,
                backend=self.backend,
                device=self.device,
                **limits,
            )

    def certify(self, theta: Tree, problem: Problem | None = None) -> Result | None:
        """Reduced objective, gap and w at theta, by the judge unless told otherwise; None where theta is not finite."""
        if not all(np.all(np.isfinite(x)) for x in trees.flatten(theta)[0]):
            return None
        return self.solve(None, problem or self.judge or self.problem, theta, max_iter=0, progress=False)

    @cached_property
    def started(self) -> Result:
        """The certificate of theta0."""
        found = self.certify(self.theta0)
        assert found is not None  # a start is finite, or `solve` has refused it
        return found


@dataclass(frozen=True)
class Outcome:
    """A method's run, and what was measured at the iterate it ended with.

    Attributes
    ----------
    method, family : str
    theta : pytree of NumPy arrays or None
        None of a method whose unknowns are others.
    objective, own_objective, gap, violation : float
        Reduced objective and gap at theta, the method's own objective, relative infeasibility; NaN where there is none.
    iterations : int
    seconds, setup_seconds : float
    status : Status
    curve : Curve
        Reduced objective of the iterates.
    measured : mapping of str to Curve
        The measures of the task at iterates that were kept.
    told : str
        The method as it was run, its tuned numbers included.
    fit : Result or None
        Of the method itself.
    """

    method: str
    family: str
    theta: Tree | None
    objective: float
    own_objective: float
    gap: float
    violation: float
    iterations: int
    seconds: float
    setup_seconds: float
    status: Status
    curve: Curve
    measured: Mapping[str, Curve]
    told: str
    fit: Result | None = None

    @property
    def settled(self) -> bool:
        """Whether it ended by itself, so that more of the budget would have changed nothing."""
        return self.status not in (Status.MAX_ITER, Status.TIME_LIMIT)

    def record(self) -> dict[str, Any]:
        """What the table and the summary show."""
        verified = None if self.fit is None else self.fit.verified
        return {
            "method": self.method,
            "family": self.family,
            "objective": self.objective,
            "own_objective": self.own_objective,
            "gap": self.gap,
            "start_gap": None if self.fit is None else float(self.fit.trace.gap[0]),
            "relative_gap": self.gap / abs(self.objective) if self.objective else math.nan,
            "infeasibility": self.violation,
            "iterations": self.iterations,
            "seconds": self.seconds,
            "setup_seconds": self.setup_seconds,
            "live": None if verified is None else verified.units - verified.dead_units,
            "units": None if verified is None else verified.units,
            "status": self.status.name,
            "run_as": self.told,
            "measures": {name: float(curve.value[-1]) for name, curve in self.measured.items()},
        }


class Method(ABC):
    """A name in the table and what it runs.

    Attributes
    ----------
    name : str
    family : str
        One of `FAMILIES`.
    """

    name: str
    family: str

    @property
    def grid(self) -> tuple[Method, ...]:
        """The same method with other numbers, from which it is tuned; empty where there is nothing to tune."""
        return ()

    @abstractmethod
    def run(self, task: Task, budget: Budget, progress: bool | None = None) -> Outcome:
        """Run on the task until either limit."""


@dataclass(frozen=True)
class Solver(Method):
    """An algorithm of the package, or one with its seam.

    A joint method runs on ``task.joint``. It knows its own objective only every few iterations; it is stopped at one of
    those, so that everything reported belongs to the same iterate. On time that is up to four iterations late, in its
    favour.

    Parameters
    ----------
    name : str
    algorithm : Algorithm or None
        None is the package's default.
    family : str
    candidates : tuple of Algorithm
        From which `algorithm` is tuned.
    problem : callable, optional
        What it solves, from the task; by default what the task says.
    """

    name: str
    algorithm: Algorithm | None = None
    family: str = "ours"
    candidates: tuple[Algorithm, ...] = ()
    problem: Callable[[Task], Problem] | None = None

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            raise ProblemError(f"family must be one of {', '.join(FAMILIES)}, got {self.family!r}")

    @property
    def joint(self) -> bool:
        """Whether it keeps w as a variable beside theta."""
        return isinstance(self.algorithm, JointMethod)

    @property
    def grid(self) -> tuple[Method, ...]:
        return tuple(replace(self, algorithm=each, candidates=()) for each in self.candidates)

    def run(self, task: Task, budget: Budget, progress: bool | None = None) -> Outcome:
        if self.problem is not None:
            problem = self.problem(task)
        else:
            problem = (task.joint or task.problem) if self.joint else task.problem
        traced = not self.joint and self.problem is None  # its trace is the reduced objective
        kept = Kept(budget, _every(budget) if self.joint else None)
        algorithm = self.algorithm
        if isinstance(algorithm, Periodic):
            algorithm = replace(algorithm, certify=_every(budget))
        fit = task.solve(
            algorithm,
            problem,
            task.theta0,
            max_iter=budget.max_iter,
            time_limit=None if self.joint else budget.seconds,
            callback=None if traced and not task.measures else kept,
            progress=progress,
            **({"tol": 0.0} if self.joint else {}),
        )
        points = kept.points(task.theta0, fit.n_iter, fit.seconds, fit.theta)
        if not task.followed:
            points = points[-1:]
        judged = None if traced and not task.measures else [task.certify(theta) for _, _, theta in points]
        if traced:
            curve = Curve(np.arange(fit.n_iter + 1), fit.trace.seconds, fit.trace.value)
        else:
            assert judged is not None
            curve = along(points, [math.nan if c is None else c.value for c in judged])
        end: Result | None = fit if traced else judged[-1] if judged else None
        status = Status.TIME_LIMIT if fit.status is Status.STOPPED else fit.status
        return Outcome(
            method=self.name,
            family=self.family,
            theta=fit.theta,
            objective=math.nan if end is None else end.value,
            own_objective=fit.value,
            gap=math.nan if end is None else end.gap,
            violation=fit.verified.violation,
            iterations=fit.n_iter,
            seconds=fit.seconds,
            setup_seconds=fit.setup_seconds,
            status=status,
            curve=curve,
            measured=self._measured(task, points, judged),
            told=fit.algorithm,
            fit=fit,
        )

    def _measured(self, task: Task, points: list[Point], judged: list[Result | None] | None) -> dict[str, Curve]:
        if not task.measures or judged is None:
            return {}
        if self.problem is None and task.judge is None:
            own = judged
        else:  # a judge's w may be that of compressed data
            stated = task.problem if self.problem is None else self.problem(task)
            own = [task.certify(p.theta, stated) for p in points]
        return {
            name: along(points, [math.nan if c is None else measure(c) for c in own])
            for name, measure in task.measures.items()
        }


class Point(NamedTuple):
    """An iterate that was kept."""

    iteration: int
    seconds: float
    theta: Tree


class Kept:
    """A callback that keeps an iterate now and then, evenly in the logarithm; it ends a joint method on time."""

    def __init__(self, budget: Budget, every: int | None) -> None:
        self._seconds, self._every = budget.seconds, every
        self._next = 1
        self._points: list[Point] = []

    def __call__(self, info: IterationInfo) -> bool:
        if info.iteration >= self._next:
            self._next = math.ceil(SPACING * info.iteration + 0.1)
            self._points.append(Point(info.iteration, info.seconds, info.theta))
        late = self._every is not None and info.seconds >= self._seconds
        return late and info.iteration % (self._every or 1) == 0

    def points(self, theta0: Tree, n_iter: int, seconds: float, theta: Tree) -> list[Point]:
        """The start, what was kept, the end."""
        between = [p for p in self._points if p.iteration < n_iter]
        return [Point(0, 0.0, theta0), *between, *([Point(n_iter, seconds, theta)] if n_iter else [])]


def _every(budget: Budget) -> int:
    """Iterations between certificates of a joint method: the last iteration has one."""
    return 5 if budget.iterations is None else next(n for n in (5, 4, 3, 2, 1) if budget.iterations % n == 0)


def along(points: Sequence[Point], values: Sequence[float]) -> Curve:
    """Values that were found at points of a run, as a curve."""
    n, seconds, _ = zip(*points, strict=True)
    return Curve(np.asarray(n), np.asarray(seconds), np.asarray(values, np.float64))
