"""What few-shot learners are compared with. Every one is given both splits, and all run on every backend."""

from __future__ import annotations

import math
import time
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

import xvarpro as xv
from xvarpro import Result, Status, backends
from xvarpro.backends import exchange
from xvarpro.core import trees
from xvarpro.core.namespace import device
from xvarpro.core.struct import Array, Leaves, Tree
from xvarpro_experiments.fewshot.problem import Features
from xvarpro_experiments.fewshot.tasks import FewShotTask, with_head
from xvarpro_experiments.fewshot.validation import Validated
from xvarpro_experiments.methods import SPACING, Budget, Curve, Method, Outcome, Task


@dataclass(frozen=True)
class FrozenRidge(Method):
    """Ridge regression on the frozen features of all shots: theta stays where it was pretrained."""

    name: str = "frozen ridge"
    family: str = "rival"

    def run(self, task: Task, budget: Budget, progress: bool | None = None) -> Outcome:
        assert isinstance(task, FewShotTask)
        assert task.pool is not None
        seconds = math.inf
        for _ in range(2):  # the first time compiles, where a backend does
            began = time.perf_counter()
            found = task.certify(task.theta0, task.pool)
            assert found is not None
            w = np.asarray(found.w)
            seconds = min(seconds, time.perf_counter() - began)
        here = with_head(task.started, w)
        at = np.zeros(1), np.full(1, seconds)
        measured = {name: Curve(*at, np.full(1, measure(here))) for name, measure in task.measures.items()}
        return _outcome(self, task, here, Curve(*at, np.full(1, here.value)), measured, 0, seconds, Status.CONVERGED)


@dataclass(frozen=True)
class Descent(Method):
    """Adam (Kingma, Ba 2015) on a loss that is differentiated as a whole, at a constant rate.

    Parameters
    ----------
    rate : float
        Learning rate, > 0: `Validated` finds one.
    """

    name: str = ""
    rate: float = 1e-2
    family: str = "rival"

    loss: ClassVar[Callable[..., Array]]

    @abstractmethod
    def stage(self, task: FewShotTask, clock: Clock, budget: Budget) -> tuple[Tree, Tree, Any]:
        """Unknowns, data and what the loss is compiled for."""

    @abstractmethod
    def reading(self, task: FewShotTask, unknowns: Tree) -> tuple[Tree, np.ndarray | None]:
        """Theta and head in NumPy; no head of its own where the lower level's is meant."""

    def run(self, task: Task, budget: Budget, progress: bool | None = None) -> Outcome:
        assert isinstance(task, FewShotTask)
        clock = Clock(task)
        unknowns, data, static = self.stage(task, clock, budget)
        points = clock.descend(self.loss, static, unknowns, data, self.rate, budget)
        read = [self.reading(task, unknowns) for _, _, unknowns in points]
        certified = [task.started if theta is task.theta0 else task.certify(theta) for theta, _ in read]
        here = [c if c is None or w is None else with_head(c, w) for c, (_, w) in zip(certified, read, strict=True)]
        at = np.array([n for n, _, _ in points]), np.array([s for _, s, _ in points])
        curve = Curve(*at, np.array([math.nan if c is None else c.value for c in here]))
        measured = {
            name: Curve(*at, np.array([math.nan if c is None else measure(c) for c in here]))
            for name, measure in task.measures.items()
        }
        n, seconds, _ = points[-1]
        ended = Status.MAX_ITER if budget.iterations == n else Status.TIME_LIMIT
        status = ended if here[-1] is not None else Status.NON_FINITE
        return _outcome(self, task, here[-1], curve, measured, n, seconds, status)


class Clock:
    """Runs stages of Adam on a task's backend; what is compiled is compiled before the time is taken."""

    def __init__(self, task: FewShotTask) -> None:
        self.task, self.backend = task, task.runs_on
        self.dtype = str(trees.leaves(task.theta0)[0].dtype)
        self.seconds = 0.0

    def bring(self, tree: Tree) -> Tree:
        """Arrays of the backend, in its device and the task's dtype."""
        place = None if self.task.device is None else exchange.find_device(self.backend, self.task.device)
        with self.backend.scope(self.dtype):
            return trees.map_arrays(lambda x: self.backend.asarray(x, dtype=self.dtype, device=place), tree)

    def home(self, tree: Tree) -> Tree:
        """NumPy arrays."""
        return trees.map_arrays(lambda x: np.array(self.backend.to_numpy(x)), tree)

    def timed(self, fun: Callable[..., Array], key: Any, *args: Tree) -> Array:
        """Value of a function of trees, its second evaluation on the clock."""
        leaves, skeleton = trees.partition(args)
        run = self.backend.call(lambda _: lambda *x: fun(*skeleton.fill(x)), (fun, skeleton, key))
        with self.backend.scope(self.dtype):
            if self.backend.compiled:
                _wait(self.backend, run((), *leaves))
            began = time.perf_counter()
            out = run((), *leaves)
            _wait(self.backend, out)
        self.seconds += time.perf_counter() - began
        return out

    def descend(
        self, loss: Callable[..., Array], static: Any, unknowns: Tree, data: Tree, rate: float, budget: Budget
    ) -> list[tuple[int, float, Tree]]:
        """Adam from `unknowns`: iterations, seconds and the unknowns at iterates kept evenly in the logarithm."""
        fixed, shape = trees.partition(data)
        x, skeleton = trees.partition(unknowns)
        size = len(x)

        def make(operands: Leaves) -> Callable[..., Leaves]:
            def gradient(*x: Array) -> Leaves:
                def value(*x: Array) -> Leaves:
                    return (loss(static, skeleton.fill(x[:size]), shape.fill(x[size:])),)

                (out,), pull = self.backend.vjp(value, x, operands)
                return pull((trees.array_namespace(out).ones_like(out),))

            def step(rate: Array, k: Array, *state: Array) -> Leaves:
                x, first, second = state[:size], state[size : 2 * size], state[2 * size :]
                xp = trees.array_namespace(k)
                grad = gradient(*x)
                first = tuple(0.9 * m + 0.1 * g for m, g in zip(first, grad, strict=True))
                second = tuple(0.999 * v + 0.001 * g * g for v, g in zip(second, grad, strict=True))
                one, two = 1 - 0.9**k, 1 - 0.999**k
                moved = tuple(
                    y - rate * (m / one) / (xp.sqrt(v / two) + 1e-8) for y, m, v in zip(x, first, second, strict=True)
                )
                return (*moved, *first, *second)

            return step

        run = self.backend.call(make, (loss, static, skeleton, shape))
        with self.backend.scope(self.dtype):
            like = trees.sum_([trees.inner(y, y) for y in x])
            xp = trees.array_namespace(like)
            state = (*x, *(xp.zeros_like(y) for y in x), *(xp.zeros_like(y) for y in x))
            speed = xp.full_like(like, rate)
            if self.backend.compiled:
                _wait(self.backend, run(fixed, speed, xp.full_like(like, 1.0), *state)[0])
            kept, due, n = [(0, self.seconds, skeleton.fill(x))], 1, 0
            while n != budget.iterations and self.seconds < budget.seconds:
                began = time.perf_counter()
                n += 1
                state = run(fixed, speed, xp.full_like(like, float(n)), *state)
                _wait(self.backend, state[0])
                self.seconds += time.perf_counter() - began
                if n >= due:
                    due = math.ceil(SPACING * n + 0.1)
                    kept.append((n, self.seconds, skeleton.fill(state[:size])))
            if n != kept[-1][0]:
                kept.append((n, self.seconds, skeleton.fill(state[:size])))
        return kept


def cross_entropy(M: Array, w: Array, Y: Array, decay: float) -> Array:
    """Mean cross-entropy of the logits ``M w`` plus half of `decay` times ``|w|^2``; targets are those of `targets`."""
    xp = xv.array_namespace(M)
    z = M @ w
    # the largest logit is taken off: it changes nothing, and no exponential overflows
    z = z - xp.max(z, axis=1, keepdims=True)
    likely = xp.sum(z * (Y + 1 / Y.shape[1]), axis=1) - xp.log(xp.sum(xp.exp(z), axis=1))
    return 0.5 * decay * xp.sum(w * w) - xp.mean(likely)


def _probe(decay: float, unknowns: Tree, data: Tree) -> Array:
    return cross_entropy(data["M"], unknowns["w"], data["Y"], decay)


def _fine_tuned(static: tuple[Features, float], unknowns: Tree, data: Tree) -> Array:
    features, decay = static
    return cross_entropy(features(unknowns["theta"], data["X"]), unknowns["w"], data["Y"], decay)


def _through_solver(static: tuple[Features, float], unknowns: Tree, data: Tree) -> Array:
    """Example 4's objective with the head solved for inside the differentiated text, in the dual."""
    features, lam = static
    upper, lower = (features(unknowns["theta"], data[part]) for part in ("X1", "X2"))
    xp = xv.array_namespace(lower)
    eye = xp.eye(lower.shape[0], dtype=lower.dtype, device=device(lower))
    K = lower @ lower.mT + lam * eye
    r = upper @ (lower.mT @ xp.linalg.solve(K, data["Y2"])) - data["Y1"]
    return 0.5 * xp.sum(r * r)


@dataclass(frozen=True)
class Probe(Descent):
    """A linear head on frozen features, trained with cross-entropy.

    Parameters
    ----------
    rate : float
    decay : float
        Weight decay of the head, >= 0, in the units of the features.
    """

    decay: float = 1e-3

    loss = staticmethod(_probe)

    def stage(self, task: FewShotTask, clock: Clock, budget: Budget) -> tuple[Tree, Tree, Any]:
        assert task.features is not None
        X, Y = task.shots
        theta, X, Y = clock.bring((task.theta0, X, Y))
        M = clock.timed(task.features, "features", theta, X)
        w = np.zeros((M.shape[1], Y.shape[1]), clock.dtype)
        return clock.bring({"w": w}), {"M": M, "Y": Y}, self.decay

    def reading(self, task: FewShotTask, unknowns: Tree) -> tuple[Tree, np.ndarray | None]:
        return task.theta0, Clock(task).home(unknowns)["w"]


@dataclass(frozen=True)
class LPFT(Descent):
    """A linear probe, then head and features together (Kumar et al. 2022).

    The probe is part of the time; the iterations count what follows it.

    Parameters
    ----------
    rate : float
        Of the second stage.
    probe : Probe or Validated
        The first stage: as it is, or the candidate that did best.
    steps : int
        Its iterations.
    """

    probe: Any = field(default_factory=Probe)
    steps: int = 100

    loss = staticmethod(_fine_tuned)

    def stage(self, task: FewShotTask, clock: Clock, budget: Budget) -> tuple[Tree, Tree, Any]:
        probe: Any = self.probe.chosen(budget)[0] if isinstance(self.probe, Validated) else self.probe
        first, data, static = probe.stage(task, clock, budget)
        points = clock.descend(probe.loss, static, first, data, probe.rate, Budget(self.steps, 1e6))
        X, Y = task.shots
        data = clock.bring({"X": X, "Y": Y})
        return {"theta": clock.bring(task.theta0), "w": points[-1][2]["w"]}, data, (task.features, probe.decay)

    def reading(self, task: FewShotTask, unknowns: Tree) -> tuple[Tree, np.ndarray | None]:
        read = Clock(task).home(unknowns)
        return read["theta"], read["w"]


@dataclass(frozen=True)
class ThroughSolver(Descent):
    """The two-split problem with a ridge head that autodiff goes through (R2-D2, Bertinetto et al. 2019)."""

    loss = staticmethod(_through_solver)

    def stage(self, task: FewShotTask, clock: Clock, budget: Budget) -> tuple[Tree, Tree, Any]:
        lower, upper = task.splits
        data = clock.bring({"X1": upper.X, "Y1": upper.Y, "X2": lower.X, "Y2": lower.Y})
        return {"theta": clock.bring(task.theta0)}, data, (task.features, task.problem.lower.lam)

    def reading(self, task: FewShotTask, unknowns: Tree) -> tuple[Tree, np.ndarray | None]:
        return Clock(task).home(unknowns)["theta"], None


def _outcome(
    method: Method,
    task: FewShotTask,
    end: Result | None,
    curve: Curve,
    measured: dict[str, Curve],
    iterations: int,
    seconds: float,
    status: Status,
) -> Outcome:
    return Outcome(
        method=method.name,
        family=method.family,
        theta=None if end is None else end.theta,
        objective=math.nan if end is None else end.value,
        own_objective=math.nan,
        gap=math.nan if end is None else end.gap,
        violation=0.0,
        iterations=iterations,
        seconds=seconds,
        setup_seconds=0.0,
        status=status,
        curve=curve,
        measured=measured,
        told=repr(method),
        fit=end,
    )


def _wait(backend: backends.Backend, x: Array) -> None:
    """Frameworks that compute in the background are waited for."""
    backend.to_floats([x[(0,) * x.ndim]])
