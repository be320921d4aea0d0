"""What runs on the autoencoder beside the package's algorithms: PCA as a floor, and steps on mini-batches."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from xvarpro import Status
from xvarpro.core.namespace import device as device_of
from xvarpro.core.struct import Array, Leaves
from xvarpro.driver.prepare import Prepared, prepare
from xvarpro.errors import ProblemError
from xvarpro.problem.problem import Problem
from xvarpro_experiments.autoencoder import model
from xvarpro_experiments.autoencoder.data import Data
from xvarpro_experiments.methods import FAMILIES, SPACING, Budget, Curve, Method, Outcome, Point, Task, along
from xvarpro_experiments.rivals import Joint


@dataclass(frozen=True)
class PCA(Method):
    """The best linear code of the same width.

    Its objective is the smallest value that the upper data term can take with so many latents, whatever the encoder:
    the squares of the singular values of the images that judge which are left out. Its test loss is that of principal
    axes of all training images.

    Parameters
    ----------
    data : Data
    width : int
        Latents, >= 1.
    splits : int
    units : float
    names : tuple of str
        Of the measures: the test loss, its mean squared error, the number of active latents.
    """

    data: Data
    width: int
    splits: int = 2
    units: float = 1.0
    names: tuple[str, ...] = ()
    name: str = "PCA of the same width"
    family: str = "floor"

    def run(self, task: Task, budget: Budget, progress: bool | None = None) -> Outcome:
        began = time.perf_counter()
        X, k = self.data.train, self.width
        judged = X[X.shape[0] // 2 :] if self.splits == 2 else X
        least = model.pca_loss(model.principal_axes(judged), judged)[k] * len(judged) * self.units**2
        loss = float(model.pca_loss(model.principal_axes(X)[:, :k], self.data.test)[k])
        seconds = time.perf_counter() - began
        measured = dict(zip(self.names, (loss, 2 * loss / X.shape[1], float(k)), strict=False))
        return Outcome(
            method=self.name,
            family=self.family,
            theta=None,
            objective=float(least),
            own_objective=math.nan,
            gap=math.nan,
            violation=0.0,
            iterations=0,
            seconds=seconds,
            setup_seconds=0.0,
            status=Status.CONVERGED,
            curve=_flat(float(least)),
            measured={name: _flat(value) for name, value in measured.items()},
            told=f"{k} principal axes",
        )


@dataclass(frozen=True)
class MiniBatches(Method):
    """Adam on mini-batches of the images, projected after every step, the rate falling to 0 over the budget.

    A step draws `batch` images of every split without replacement and takes the exact gradient of the problem that they
    are by themselves, decoder and adjoint included, with the ridge of the level in proportion: an unbiased gradient of
    another objective, whose decoder sees fewer images. With `joint` the decoder is a variable instead, as a user
    without the reduction would have it.

    Parameters
    ----------
    name : str
    rate : float
        Of the first step, > 0.
    batch : int
        Images of each split, >= 1; all where there are no more.
    joint : bool
        Whether W is kept as a variable.
    family : str
    rates : tuple of float
        From which `rate` is tuned.
    beta1, beta2 : float
        In [0, 1).
    """

    name: str
    rate: float = 1e-3
    batch: int = 500
    joint: bool = False
    family: str = "ours"
    rates: tuple[float, ...] = ()
    beta1: float = 0.9
    beta2: float = 0.999

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            raise ProblemError(f"family must be one of {', '.join(FAMILIES)}, got {self.family!r}")
        if not 0 < self.rate < math.inf:
            raise ProblemError(f"rate must be a finite number > 0, got {self.rate}")
        if self.batch < 1:
            raise ProblemError(f"batch must be a whole number >= 1, got {self.batch}")

    @property
    def grid(self) -> tuple[Method, ...]:
        return tuple(replace(self, rate=rate, rates=()) for rate in self.rates)

    def run(self, task: Task, budget: Budget, progress: bool | None = None) -> Outcome:
        began = time.perf_counter()
        stated = (task.joint or task.problem) if self.joint else task.problem
        prepared = prepare(stated, task.theta0, over=task.over, backend=task.backend, device=task.device)
        steps = _Steps(self, prepared)
        steps.warm_up()
        setup, began = time.perf_counter() - began, time.perf_counter()
        points, wanted, n, off = [Point(0, 0.0, task.theta0)], 1, 0, 0.0
        while n < budget.max_iter and (elapsed := time.perf_counter() - began - off) < budget.seconds:
            used = max(elapsed / budget.seconds, 0.0 if budget.iterations is None else n / budget.iterations)
            steps.advance(self.rate * (1 - used))
            n += 1
            if n >= wanted:
                wanted, paused = math.ceil(SPACING * n + 0.1), time.perf_counter()
                steps.wait()
                points.append(Point(n, paused - began - off, steps.exported()))
                off += time.perf_counter() - paused
        steps.wait()
        seconds = time.perf_counter() - began - off
        points = [p for p in points if p.iteration < n] + [Point(n, seconds, steps.exported())]
        judged = [task.certify(p.theta) for p in points]
        own = [task.certify(p.theta, stated) for p in points] if self.joint and task.measures else judged
        end = judged[-1]
        return Outcome(
            method=self.name,
            family=self.family,
            theta=points[-1].theta,
            objective=math.nan if end is None else end.value,
            own_objective=math.nan,
            gap=math.nan if end is None else end.gap,
            violation=math.nan if end is None else end.verified.violation,
            iterations=n,
            seconds=seconds,
            setup_seconds=setup,
            status=Status.MAX_ITER if n >= budget.max_iter else Status.TIME_LIMIT,
            curve=along(points, [math.nan if c is None else c.value for c in judged]),
            measured={
                name: along(points, [math.nan if c is None else measure(c) for c in own])
                for name, measure in task.measures.items()
            },
            told=repr(self),
            fit=end,
        )


class _Steps:
    """The iterate on its backend, with Adam's means."""

    def __init__(self, method: MiniBatches, prepared: Prepared) -> None:
        self._method, self._prepared = method, prepared
        self._backend, self._region = prepared.backend, prepared.region
        self._z: Leaves = prepared.theta
        self._size = len(prepared.theta)
        targets: list[Any] = [level.y for level in prepared.problem.levels]
        sizes = [y.shape[0] for y in targets]
        self._draws = [_shuffled(n, min(method.batch, n), seed) for seed, n in enumerate(sizes)]
        self._scale = sizes[-1] / min(method.batch, sizes[-1])
        if method.joint:
            self._z = (*self._z, prepared.call(_best_w, prepared.theta))
        xp = self._backend.xp
        self._first = self._second = tuple(xp.zeros_like(x) for x in self._z)
        self._k = 0

    def warm_up(self) -> None:
        """Compile, where that is done, and forget the outcome."""
        kept = self._z
        for _ in range(2):  # what the first step returns is compiled for once more by the second
            self.advance(0.0)
        self._z, self._k = kept, 0
        self._first = self._second = tuple(self._backend.xp.zeros_like(x) for x in kept)
        self.wait()

    def advance(self, rate: float) -> None:
        """One step."""
        m, b1, b2 = self._method, self._method.beta1, self._method.beta2
        part = replace(self._prepared, problem=self._part())
        grad = part.call(_slopes if m.joint else _gradient, self._z)
        self._k += 1
        unbias1, unbias2 = 1 - b1**self._k, 1 - b2**self._k
        with self._backend.scope(self._prepared.dtype):
            xp = self._backend.xp
            self._first = tuple(b1 * a + (1 - b1) * g for a, g in zip(self._first, grad, strict=True))
            self._second = tuple(b2 * a + (1 - b2) * (g * g) for a, g in zip(self._second, grad, strict=True))
            tiny = 1e-8 / self._scale  # of the gradient of a sum over a part of the images
            z = tuple(
                x - (rate / unbias1) * a / (xp.sqrt(v / unbias2) + tiny)
                for x, a, v in zip(self._z, self._first, self._second, strict=True)
            )
            self._z = (*self._region.project(z[: self._size]), *z[self._size :])

    def wait(self) -> None:
        """Until what was asked for is there."""
        float(self._z[0][(0,) * self._z[0].ndim])

    def exported(self) -> Any:
        """The point as the caller's arrays."""
        return self._prepared.layout.to_caller(self._z[: self._size], self._backend)

    def _part(self) -> Problem:
        """The problem of the images of one mini-batch."""
        problem = self._prepared.problem
        names = ("lower", "upper")
        levels, data = [], {}
        for name, level, draws in zip(names, problem.levels, self._draws, strict=False):
            backend = self._backend
            y: Any = level.y
            lam: Any = level.lam
            at = backend.asarray(next(draws), device=device_of(y))
            X = backend.xp.take(y, at, axis=0)
            levels.append(replace(level, y=X, lam=lam * (X.shape[0] / y.shape[0])))
            data[name] = {**problem.data[name], "X": X}
        return replace(problem, lower=levels[0], upper=levels[1] if len(levels) > 1 else None, data=data)


def _gradient(objective: Any, theta: Leaves) -> Leaves:
    return objective.value_and_gradient(theta)[1]


def _slopes(objective: Any, z: Leaves) -> Leaves:
    return Joint(objective).slopes(z)


def _best_w(objective: Any, theta: Leaves) -> Array:
    return Joint(objective).best_w(theta)


def _shuffled(n: int, size: int, seed: int) -> Iterator[np.ndarray]:
    """Every index once before any comes twice, `size` at a time; drawn with NumPy for every backend."""
    rng = np.random.default_rng(seed)
    while True:
        order = rng.permutation(n).astype(np.int32)
        for a in range(0, n - size + 1, size):
            yield order[a : a + size]


def _flat(value: float) -> Curve:
    return Curve(np.zeros(1, int), np.zeros(1), np.array([value]))
