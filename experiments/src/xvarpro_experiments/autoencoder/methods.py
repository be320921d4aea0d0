"""What runs on the autoencoder besides xvarpro's algorithms: PCA as a floor, and Adam, on mini-batches or on all."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np

import xvarpro as xv
from xvarpro import Problem, Status
from xvarpro_experiments.autoencoder import model
from xvarpro_experiments.autoencoder.data import Data
from xvarpro_experiments.checks import positive, whole
from xvarpro_experiments.descent import Budget, Descent, Point, adam, means
from xvarpro_experiments.methods import Curve, Method, Outcome, Repeated, Task
from xvarpro_experiments.rivals import Joint, State
from xvarpro_experiments.trees import Array, Tree


@dataclass(frozen=True, kw_only=True)
class PCA(Method):
    """The best linear code of the same width.

    Its objective is the smallest value that the upper data term can take with so many latents, whatever the encoder:
    the squares of the singular values of the images of the upper level which are left out. Its test loss is that of
    principal axes of all training images.
    """

    data: Data = field(repr=False)
    width: int
    splits: int = 2
    units: float = 1.0
    names: tuple[str, ...] = ()
    name: str = "PCA of the same width"
    family: str = "floor"

    def run(self, task: Task, budget: Budget) -> Outcome:
        began = time.perf_counter()
        X, k, at = self.data.train, self.width, [Point(0, 0.0, None)]
        upper = X[X.shape[0] // 2 :] if self.splits == 2 else X
        least = float(model.pca_loss(model.principal_axes(upper), upper)[k]) * len(upper) * self.units**2
        loss = float(model.pca_loss(model.principal_axes(X)[:, :k], self.data.test)[k])
        values = dict(zip(self.names, (loss, float(k)), strict=False))
        return Outcome(
            self.name,
            self.family,
            theta=None,
            objective=least,
            status=Status.CONVERGED,
            curve=Curve.along(at, [least]),
            measured={name: Curve.along(at, [value]) for name, value in values.items()},
            run_as=f"{k} principal axes",
            seconds=time.perf_counter() - began,
        )


@dataclass(frozen=True)
class Adam(Repeated):
    """Adam, projected after every step; on mini-batches, with a rate that falls to 0 over the budget.

    A step on mini-batches draws `batch` images of every split without replacement and takes the exact gradient of the
    problem that they are by themselves, decoder and adjoint included, with the ridge of the level in proportion: an
    unbiased gradient of another objective, whose decoder sees fewer images. With `joint` the decoder is a variable
    instead, as a user without the reduction would have it.
    """

    rate: float = 1e-3  # of the first step, > 0
    batch: int | None = None  # images of each split, >= 1; all of them, at a constant rate, if None
    joint: bool = False  # whether W is kept as a variable

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(rate=self.rate)
        whole(batch=self.batch)

    def measured_by(self, task: Task) -> Problem | None:
        return task.joint if self.joint else None

    def descend(self, task: Task, budget: Budget) -> Descent:
        machine = task.machine
        backend = machine.backend
        given = machine.to_backend((task.together if self.joint else task.problem, task.over))
        sizes = [cast("Array", level.y).shape[0] for level in given[0].levels]
        batches = [min(self.batch or n, n) for n in sizes]
        draws = [shuffled(n, batch, seed) for seed, (n, batch) in enumerate(zip(sizes, batches, strict=True))]

        def feed(used: float) -> Tree:
            if self.batch is None:
                return machine.to_backend({"rate": np.asarray(self.rate)})
            fed = {"rate": np.asarray(self.rate * (1 - used)), "at": [next(draw) for draw in draws]}
            return machine.to_backend(fed)

        with machine.scope():
            theta = machine.to_backend(task.theta0)
            w = Joint(given[0], backend).best_w(theta) if self.joint else ()
            state = State(theta, w, means((theta, w)))
            step = _Step(self, backend, 1e-8 * batches[-1] / sizes[-1])
            return machine.iterate(step, state, given, budget, State.read, feed, compiled=self.joint)


@dataclass(frozen=True)
class _Step:
    method: Adam
    backend: xv.backends.Backend
    epsilon: float  # in the units of the gradient of a sum over a part of the images

    def __call__(self, given: tuple[Problem, Any], k: Array, at: State, fed: Tree) -> State:
        part = batch(given[0], fed["at"]) if "at" in fed else given[0]
        if self.method.joint:
            grad = Joint(part, self.backend).gradient(at.theta, at.w)
        else:
            grad = (xv.value_and_gradient(part, at.theta)[1], ())
        (theta, w), memory = adam((at.theta, at.w), grad, at.memory, k, fed["rate"], epsilon=self.epsilon)
        return State(xv.project(theta, given[1]), w, memory)


def batch(problem: Problem, at: list[Array]) -> Problem:
    """The problem of some images of each of its levels, which is one of `model.problem`."""
    levels, data = [], {}
    for name, level, index in zip(("lower", "upper"), problem.levels, at, strict=False):
        y, lam = cast("Array", level.y), cast("float", level.lam)
        X = xv.array_namespace(y).take(y, index, axis=0)
        levels.append(replace(level, y=X, lam=lam * (X.shape[0] / y.shape[0])))
        data[name] = {**problem.data[name], "X": X}
    return replace(problem, lower=levels[0], upper=levels[1] if len(levels) > 1 else None, data=data)


def shuffled(n: int, size: int, seed: int) -> Iterator[np.ndarray]:
    """Every index once before any comes twice, `size` at a time; drawn with NumPy for every backend."""
    rng = np.random.default_rng(seed)
    while True:
        order = rng.permutation(n).astype(np.int32)
        for a in range(0, n - size + 1, size):
            yield order[a : a + size]
