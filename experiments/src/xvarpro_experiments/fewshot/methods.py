"""An episode as a task, what few-shot learners are compared with, and numbers that are chosen on validation episodes.

Every method is given both splits, and all run on every backend.
"""

from __future__ import annotations

import math
import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

import xvarpro as xv
from xvarpro import Problem, Status
from xvarpro_experiments.descent import Budget, Descent, Machine, Point, adam, means
from xvarpro_experiments.fewshot.problem import Features, Split, head
from xvarpro_experiments.methods import Certificate, Method, Outcome, Repeated, Task
from xvarpro_experiments.trees import Array, Tree, arrays, is_finite, partition, size

LARGE = 1_000_000  # entries of theta from which on the networks of all methods and episodes are not kept


@dataclass(frozen=True, kw_only=True)
class FewShotTask(Task):
    """A task that remembers what it was made of."""

    features: Features
    splits: tuple[Split, Split]  # the lower one first
    pool: Problem  # one split of all shots
    lam: float  # of both problems
    shown: Callable[[Tree], tuple[np.ndarray, np.ndarray]]  # features of the test images and of the shots at a theta

    def certify(self, theta: Tree, problem: Problem | None = None) -> Certificate | None:
        """As of any task; of a large network head and objective alone, from the features that its test needs anyway."""
        if not is_finite(theta) or size(theta) <= LARGE:
            return super().certify(theta, problem)
        M, (lower, upper) = self.shown(theta)[1], self.splits
        if problem is self.pool:
            w = head(M, self.shots[1], self.lam)
            value = 0.5 * float(np.sum((M @ w - self.shots[1]) ** 2)) + 0.5 * self.lam * float(np.sum(w * w))
        else:
            w = head(M[: len(lower.Y)], lower.Y, self.lam)
            value = 0.5 * float(np.sum((M[len(lower.Y) :] @ w - upper.Y) ** 2))
        return Certificate(theta, value, head=w)

    @cached_property
    def shots(self) -> tuple[np.ndarray, np.ndarray]:
        """All examples and their targets."""
        return np.concatenate([s.X for s in self.splits]), np.concatenate([s.Y for s in self.splits])


@dataclass(frozen=True)
class FrozenRidge(Method):
    """Ridge regression on the frozen features of all shots: theta stays where it was pretrained."""

    name: str = "frozen ridge"
    family: str = "rival"

    def run(self, task: Task, budget: Budget) -> Outcome:
        assert isinstance(task, FewShotTask)
        seconds = math.inf
        for _ in range(2):  # the first time compiles, where a backend does
            began = time.perf_counter()
            found = task.certify(task.theta0, task.pool)
            assert found is not None
            w = np.asarray(found.w)
            seconds = min(seconds, time.perf_counter() - began)
        done = self.outcome(task, [Point(0, seconds, task.theta0, w)], Status.CONVERGED)
        return replace(done, theta=task.theta0)


class Stage(NamedTuple):
    """What a descent starts with: its unknowns and data on a backend, the loss of both, and seconds already spent."""

    unknowns: Tree
    data: Tree
    loss: Callable[[Tree, Tree], Array]
    seconds: float = 0.0


@dataclass(frozen=True)
class Learner(Repeated):
    """Adam (Kingma, Ba 2015) on a loss that is differentiated as a whole, at a constant rate."""

    family: str = "rival"
    rate: float = 1e-2

    @abstractmethod
    def stage(self, task: FewShotTask, machine: Machine, budget: Budget) -> Stage:
        """What it starts with."""

    def read(self, machine: Machine, task: FewShotTask) -> Callable[[Tree], tuple[Tree, Array | None]]:
        """Theta and head of a state; no head of its own where the lower level's is meant."""
        return lambda state: (state[0]["theta"], state[0].get("w"))

    def descend(self, task: Task, budget: Budget) -> Descent:
        assert isinstance(task, FewShotTask)
        machine = task.machine
        with machine.scope():
            stage = self.stage(task, machine, budget)
            state = (stage.unknowns, means(stage.unknowns))
        step, read = _Step(stage.loss, self.rate, machine), self.read(machine, task)
        return machine.iterate(step, state, stage.data, budget, read, seconds=stage.seconds)


@dataclass(frozen=True)
class _Step:
    loss: Callable[[Tree, Tree], Array]
    rate: float
    machine: Machine

    def __call__(self, given: Tree, k: Array, state: tuple[Tree, Tree], fed: Tree) -> tuple[Tree, Tree]:
        unknowns, memory = state
        (x, rest), (data, whole) = partition(unknowns), partition(given)

        def value(*leaves: Array) -> tuple[Array]:
            return (self.loss(rest.fill(leaves[: len(x)]), whole.fill(leaves[len(x) :])),)

        (out,), pull = self.machine.backend.vjp(value, x, data)
        grad = rest.fill(pull((xv.array_namespace(out).ones_like(out),)))
        return adam(unknowns, grad, memory, k, self.rate)


def cross_entropy(M: Array, w: Array, Y: Array, decay: float) -> Array:
    """Mean cross-entropy of the logits ``M w`` plus half of `decay` times ``|w|^2``; targets are those of `targets`."""
    xp = xv.array_namespace(M)
    z = M @ w
    # the largest logit is taken off: it changes nothing, and no exponential overflows
    z = z - xp.max(z, axis=1, keepdims=True)
    likely = xp.sum(z * (Y + 1 / Y.shape[1]), axis=1) - xp.log(xp.sum(xp.exp(z), axis=1))
    return 0.5 * decay * xp.sum(w * w) - xp.mean(likely)


@dataclass(frozen=True)
class CrossEntropy:
    """The loss of a head on features, or on those of a network that is trained with it."""

    decay: float
    features: Features | None = None

    def __call__(self, unknowns: Tree, data: Tree) -> Array:
        M = data["X"] if self.features is None else self.features(unknowns["theta"], data["X"])
        return cross_entropy(M, unknowns["w"], data["Y"], self.decay)


@dataclass(frozen=True)
class ThroughRidge:
    """Example 4's objective with the head solved for inside the differentiated text, in the dual."""

    features: Features
    lam: float

    def __call__(self, unknowns: Tree, data: Tree) -> Array:
        upper, lower = (self.features(unknowns["theta"], data[part]) for part in ("X1", "X2"))
        xp = xv.array_namespace(lower)
        K = lower @ lower.mT + self.lam * data["eye"]
        r = upper @ (lower.mT @ xp.linalg.solve(K, data["Y2"])) - data["Y1"]
        return 0.5 * xp.sum(r * r)


@dataclass(frozen=True)
class Probe(Learner):
    """A linear head on frozen features, trained with cross-entropy."""

    decay: float = 1e-3

    def stage(self, task: FewShotTask, machine: Machine, budget: Budget) -> Stage:
        given = machine.to_backend((task.theta0, task.shots[0]))
        call = machine.compiled(task.features, *given)
        for _ in range(2):  # the first time compiles, where a backend does
            began = time.perf_counter()
            (M,) = call(arrays(given))
            machine.wait(M)
            seconds = time.perf_counter() - began
        Y = task.shots[1]
        unknowns = machine.to_backend({"w": np.zeros((M.shape[1], Y.shape[1]), machine.dtype)})
        return Stage(unknowns, {"X": M, "Y": machine.to_backend(Y)}, CrossEntropy(self.decay), seconds)

    def read(self, machine: Machine, task: FewShotTask) -> Callable[[Tree], tuple[Tree, Array | None]]:
        theta = machine.to_backend(task.theta0)
        return lambda state: (theta, state[0]["w"])


@dataclass(frozen=True)
class LPFT(Learner):
    """A linear probe, then head and features together (Kumar et al. 2022).

    The probe is part of the time; the iterations count what follows it.
    """

    probe: Probe | Validated = field(default_factory=Probe)
    steps: int = 100

    def stage(self, task: FewShotTask, machine: Machine, budget: Budget) -> Stage:
        probe = self.probe.chosen(budget).method if isinstance(self.probe, Validated) else self.probe
        assert isinstance(probe, Probe)
        done = probe.descend(task, Budget(self.steps, 1e6))
        X, Y = task.shots
        unknowns = {"theta": machine.to_backend(task.theta0), "w": done.state[0]["w"]}
        loss = CrossEntropy(probe.decay, task.features)
        return Stage(unknowns, machine.to_backend({"X": X, "Y": Y}), loss, done.points[-1].seconds)


@dataclass(frozen=True)
class ThroughSolver(Learner):
    """The two-split problem with a ridge head that autodiff goes through (R2-D2, Bertinetto et al. 2019)."""

    def stage(self, task: FewShotTask, machine: Machine, budget: Budget) -> Stage:
        lower, upper = task.splits
        eye = np.eye(len(lower.Y), dtype=machine.dtype)
        data = {"X1": upper.X, "Y1": upper.Y, "X2": lower.X, "Y2": lower.Y, "eye": eye}
        loss = ThroughRidge(task.features, task.lam)
        return Stage(machine.to_backend({"theta": task.theta0}), machine.to_backend(data), loss)


class Choice(NamedTuple):
    """What did best on validation episodes: a method, its number of iterations, and the mean of the measure."""

    method: Method
    iterations: int
    mean: float


@dataclass(frozen=True)
class Validated(Method):
    """A method with numbers, and a last iteration, that did best on validation episodes: early stopping for all."""

    candidates: tuple[Method, ...] = field(default=(), repr=False)
    episodes: Callable[[], Sequence[Task]] = field(default=lambda: (), repr=False)
    measure: str = ""
    limit: int | None = None
    _found: list[Choice] = field(default_factory=list, compare=False, repr=False)

    def chosen(self, budget: Budget) -> Choice:
        """The choice, made once, within the budget of the first call; the first of equals, and of its iterations the
        fewest.
        """
        if not self._found:
            budget = replace(budget, iterations=self.limit or budget.iterations)
            best: Choice | None = None
            for candidate in self.candidates:
                curves = [candidate.run(task, budget).measured[self.measure] for task in self.episodes()]
                for n in sorted({int(n) for c in curves for n in c.iterations if n > 0}):
                    mean = float(np.mean([c.at("iterations", n) for c in curves]))
                    if best is None or mean > best.mean:
                        best = Choice(candidate, n, mean)
            assert best is not None
            self._found.append(best)
        return self._found[0]

    def runs(self, starts: int) -> float:
        return starts + len(self.candidates) * len(self.episodes())

    def run(self, task: Task, budget: Budget) -> Outcome:
        method, n, _ = self.chosen(budget)
        done = method.run(task, replace(budget, iterations=n))
        run_as = ", ".join(filter(None, (done.run_as, method.name, f"{n} iterations")))
        done = replace(done, method=self.name, family=self.family, run_as=run_as)
        large = done.theta is not None and size(done.theta) > LARGE
        return replace(done, theta=None, fit=None) if large else done
