"""Who competes on one instance of an experiment, and what is kept of a run."""

from __future__ import annotations

import itertools
import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np

import xvarpro as xv
from xvarpro import IterationInfo, Problem, Result, Status
from xvarpro.algorithms import Algorithm
from xvarpro_experiments.checks import one_of
from xvarpro_experiments.descent import Budget, Descent, Machine, Point
from xvarpro_experiments.trees import Tree, arrays, is_finite

TUNING = 0.2  # of the budget, for the first trial of every candidate
STARTS = 3  # from which finalists of a grid run, at most
COARSE = 2.0  # spacing of the iterates that are looked at there
OSCILLATES = 0.01  # relative: a candidate whose objective ends that far above its lowest is discarded
FAMILIES = ("paper", "ours", "rival", "floor")  # a floor is no method, but a line that others are measured against
DEFAULT = "xvarpro's default"  # the name of `algorithm=None` in every table


@dataclass(frozen=True)
class Certificate:
    """What is known of an iterate, off the clock."""

    theta: Tree  # of NumPy arrays
    value: float  # of the reduced objective
    gap: float = math.nan  # NaN where it is not computed
    fit: Result | None = None  # of no iterations at theta
    head: np.ndarray | None = None  # the w of a method that has its own

    @property
    def w(self) -> np.ndarray:
        """The method's own w, or the one that is optimal for theta."""
        if self.head is not None:
            return self.head
        assert self.fit is not None
        return np.asarray(self.fit.w)


# a number that is computed from an iterate, off the clock
Measure: TypeAlias = Callable[[Certificate], float]


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

    def lowest(self) -> Curve:
        """The smallest value so far, that of the best iterate."""
        return self._replace(value=np.fmin.accumulate(self.value))

    @classmethod
    def along(cls, points: Sequence[Point], values: Sequence[float]) -> Curve:
        """Values that were found at points of a run."""
        iterations, seconds, *_ = zip(*points, strict=True)
        return cls(np.asarray(iterations), np.asarray(seconds), np.asarray(values, np.float64))


@dataclass(frozen=True)
class Task:
    """One instance: what is minimised, from where, over what, and what is measured."""

    problem: Problem  # of the methods on the reduced objective
    theta0: Tree  # of NumPy arrays, in the dtype of the work
    over: Any  # a set, or a pytree of sets
    joint: Problem | None = None  # of joint methods, as a user of theirs would state it, if another one
    reduced: Problem | None = None  # what is evaluated off the clock, such as with compressed data, if another one
    measures: Mapping[str, Measure] = field(default_factory=dict)  # by their names in tables and figures
    optimum: float | None = None  # smallest value of the objective, where it is known
    backend: str | None = None  # as in `xvarpro.solve`
    device: str | None = None

    @property
    def machine(self) -> Machine:
        """Where methods compute."""
        return Machine(self.backend, self.device, str(arrays(self.theta0)[0].dtype))

    @property
    def together(self) -> Problem:
        """The problem of joint methods."""
        return self.joint or self.problem

    def solve(self, algorithm: Algorithm | None, problem: Problem, theta: Tree, **limits: Any) -> Result:
        """`xvarpro.solve` from theta; a dead unit is a number in a table here, not a warning."""
        options = {"over": self.over, "backend": self.backend, "device": self.device, "progress": False, **limits}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", xv.DeadUnitsWarning)
            return xv.solve(problem, theta, algorithm=algorithm, **options)

    def certify(self, theta: Tree, problem: Problem | None = None) -> Certificate | None:
        """Reduced objective, gap and w at theta, of `reduced` by default; None where theta is not finite."""
        if not is_finite(theta):
            return None
        fit = self.solve(None, problem or self.reduced or self.problem, theta, max_iter=0)
        return Certificate(theta, fit.value, fit.gap, fit)


@dataclass(frozen=True)
class Outcome:
    """A method's run, measured by the best of its iterates."""

    method: str
    family: str
    theta: Tree | None  # where it ended, in NumPy arrays; None of a method whose unknowns are others
    objective: float  # the smallest reduced objective of its iterates
    status: Status
    curve: Curve  # the smallest reduced objective so far
    measured: Mapping[str, Curve] = field(default_factory=dict)  # measures of the task at iterates that were kept
    run_as: str = ""  # the method as it was run, its tuned numbers included
    own_objective: float = math.nan  # of the method itself; NaN where there is none, as of the next two
    gap: float = math.nan
    violation: float = 0.0  # relative infeasibility of theta
    last: float = math.nan  # reduced objective at theta; NaN where it is not finite
    iterations: int = 0
    seconds: float = 0.0
    setup_seconds: float = 0.0
    fit: Result | None = None  # of the method itself, or the certificate of where it ended

    @property
    def oscillates(self) -> bool:
        """Whether it ended clearly above the best of its iterates, or not at a number."""
        return not self.last <= self.objective + OSCILLATES * abs(self.objective)

    @property
    def settled(self) -> bool:
        """Whether it ended by itself, so that more of the budget would have changed nothing."""
        return self.status not in (Status.MAX_ITER, Status.TIME_LIMIT)

    def record(self) -> dict[str, Any]:
        """What the table and the summary show."""
        verified = None if self.fit is None else self.fit.verified
        hidden = ("theta", "last", "violation", "status", "curve", "measured", "fit")
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in hidden} | {
            "start_gap": None if self.fit is None else float(self.fit.trace.gap[0]),
            "relative_gap": self.gap / abs(self.objective) if self.objective else math.nan,
            "infeasibility": self.violation,
            "live": None if verified is None else verified.units - verified.dead_units,
            "units": None if verified is None else verified.units,
            "status": self.status.name,
            "measures": {name: float(curve.value[-1]) for name, curve in self.measured.items()},
        }


@dataclass(frozen=True)
class Method(ABC):
    """A name in the table and what it runs."""

    name: str = ""
    family: str = "ours"  # one of `FAMILIES`

    def __post_init__(self) -> None:
        one_of("family", self.family, FAMILIES)

    def tuned(self, tasks: Sequence[Task], budget: Budget) -> Method:
        """The method with the numbers that tasks and a budget choose; itself where there is nothing to tune."""
        return self

    def runs(self, starts: int) -> float:
        """How many runs of the whole budget it takes from so many starts, tuning included."""
        return starts

    @abstractmethod
    def run(self, task: Task, budget: Budget) -> Outcome:
        """Run on the task until either limit."""

    def outcome(
        self,
        task: Task,
        points: Sequence[Point],
        status: Status,
        problem: Problem | None = None,
        setup_seconds: float = 0.0,
        own_objective: float = math.nan,
    ) -> Outcome:
        """The outcome of a run by the iterates that it kept, the last one its end."""
        seen = [task.certify(p.theta) for p in points]
        curve = Curve.along(points, [math.nan if c is None else c.value for c in seen])
        end = seen[-1]
        fit = None if end is None else end.fit
        return Outcome(
            method=self.name,
            family=self.family,
            theta=None if end is None else points[-1].theta,
            objective=float(curve.lowest().value[-1]),
            own_objective=own_objective,
            gap=math.nan if end is None else end.gap,
            violation=math.nan if end is None else 0.0 if fit is None else fit.verified.violation,
            last=float(curve.value[-1]),
            iterations=points[-1].iteration,
            seconds=points[-1].seconds,
            setup_seconds=setup_seconds,
            status=Status.NON_FINITE if end is None else status,
            curve=curve.lowest(),
            measured=measured(task, points, seen, problem),
            run_as=repr(self),
            fit=fit,
        )


def measured(
    task: Task, points: Sequence[Point], seen: Sequence[Certificate | None], problem: Problem | None
) -> dict[str, Curve]:
    """The measures of a task at points of a run, at the w of `problem`, or at the method's own."""
    if not task.measures:
        return {}
    if problem is not None or task.reduced is not None:  # the w of compressed data is not that of the data
        seen = [task.certify(p.theta, problem or task.problem) for p in points]
    seen = [c if c is None or p.w is None else replace(c, head=p.w) for c, p in zip(seen, points, strict=True)]
    return {
        name: Curve.along(points, [math.nan if c is None else measure(c) for c in seen])
        for name, measure in task.measures.items()
    }


@dataclass(frozen=True)
class Solver(Method):
    """An algorithm of xvarpro, or one with its interface."""

    algorithm: Algorithm | None = None  # None is xvarpro's default
    problem: Callable[[Task], Problem] | None = None  # what it solves, from the task; its problem by default
    over: Any = field(default=None, repr=False)  # what it solves it over; the task's set by default

    def run(self, task: Task, budget: Budget) -> Outcome:
        task = task if self.over is None else replace(task, over=self.over)
        own = None if self.problem is None else self.problem(task)
        kept = Kept(budget)
        callback = None if own is None and not task.measures else kept
        fit = task.solve(self.algorithm, own or task.problem, task.theta0, callback=callback, **budget.limits)
        points = kept.points(task.theta0, fit.n_iter, fit.seconds, fit.theta)
        done = self.outcome(task, points, fit.status, own, fit.setup_seconds, fit.value)
        done = replace(done, run_as=fit.algorithm, fit=fit)
        if own is not None:
            return done
        curve = Curve(np.arange(fit.n_iter + 1), fit.trace.seconds, fit.trace.value).lowest()
        done = replace(done, objective=fit.value, last=fit.value, curve=curve)
        return replace(done, gap=fit.gap, violation=fit.verified.violation)


def quasi_newton(memory: int = 10) -> Algorithm:
    """L-BFGS in a face from the first iteration, for problems where the faces that a start meets are good ones."""
    spectral = xv.algorithms.SpectralProjectedGradient()
    return xv.algorithms.ProjectedQuasiNewton(memory=memory, settle=0, base=spectral)


OURS: tuple[Method, ...] = (
    Solver("CR-VarPro (the paper)", "paper", xv.algorithms.cr_varpro()),
    Solver(DEFAULT),
    Solver("Frank-Wolfe, adaptive L", algorithm=xv.algorithms.FrankWolfe()),
    Solver("accelerated projected gradient", algorithm=xv.algorithms.AcceleratedProjectedGradient()),
    Solver("spectral projected gradient", algorithm=xv.algorithms.SpectralProjectedGradient()),
)


@dataclass(frozen=True)
class Tuned(Method):
    """The best of several methods.

    Each candidate runs from the first start for `TUNING` of the budget. In the order in which they ended they then run
    for all of it, from up to `STARTS` starts, until two have ended where they were lowest: a step may diverge late. The
    one whose worst start is lowest is chosen.
    """

    family: str = "rival"
    candidates: tuple[Method, ...] = field(default=(), repr=False)

    def tuned(self, tasks: Sequence[Task], budget: Budget) -> Method:
        part = None if budget.iterations is None else max(1, round(TUNING * budget.iterations))
        blind = [replace(task, measures={}) for task in tasks[:STARTS]]

        def worst(each: Method, tasks: Sequence[Task], budget: Budget) -> float:
            found = [each.run(task, budget) for task in tasks]
            return math.inf if any(o.oscillates for o in found) else max(o.objective for o in found)

        first = Budget(part, TUNING * budget.seconds, COARSE)
        ranked = sorted(self.candidates, key=lambda each: worst(each, blind[:1], first))
        every = ((worst(each, blind, replace(budget, spacing=COARSE)), each) for each in ranked)
        finalists = list(itertools.islice((found for found in every if math.isfinite(found[0])), 2))
        best = min(finalists, key=lambda found: found[0])[1] if finalists else ranked[0]
        return replace(best, name=self.name, family=self.family)

    def runs(self, starts: int) -> float:
        return starts + TUNING * len(self.candidates) + 2 * min(STARTS, starts)

    def run(self, task: Task, budget: Budget) -> Outcome:
        return self.tuned([task], budget).run(task, budget)


class Kept:
    """A callback of `xvarpro.solve` that keeps an iterate now and then, evenly in the logarithm."""

    def __init__(self, budget: Budget, theta: Callable[[Tree], Tree] = lambda theta: theta) -> None:
        self._budget, self._theta, self._next = budget, theta, 1
        self._points: list[Point] = []

    def __call__(self, info: IterationInfo) -> None:
        if info.iteration >= self._next:
            self._next = self._budget.following(info.iteration)
            self._points.append(Point(info.iteration, info.seconds, self._theta(info.theta)))

    def points(self, theta0: Tree, n_iter: int, seconds: float, theta: Tree) -> list[Point]:
        """The start, what was kept, the end."""
        between = [p for p in self._points if p.iteration < n_iter]
        return [Point(0, 0.0, theta0), *between, *([Point(n_iter, seconds, theta)] if n_iter else [])]


class Repeated(Method):
    """A method that repeats a step of its own on a backend."""

    def run(self, task: Task, budget: Budget) -> Outcome:
        done = self.descend(task, budget)
        limit = Status.MAX_ITER if done.points[-1].iteration == budget.iterations else Status.TIME_LIMIT
        return self.outcome(task, done.points, limit, self.measured_by(task), done.setup_seconds)

    @abstractmethod
    def descend(self, task: Task, budget: Budget) -> Descent:
        """The iterations."""

    def measured_by(self, task: Task) -> Problem | None:
        """The problem whose w measures are taken of; None for the task's."""
        return None
