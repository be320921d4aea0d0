"""Few-shot learning as it is run: backbones, episodes, methods, accuracies."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import numpy as np

import xvarpro as xv
from xvarpro import Problem
from xvarpro.errors import ProblemError
from xvarpro_experiments.checks import one_of, positive, whole
from xvarpro_experiments.descent import Machine
from xvarpro_experiments.fewshot.accuracy import ACCURACY, REFIT, differences, notes
from xvarpro_experiments.fewshot.data import Backbone, Episode, Scaled, digits_backbone, episode
from xvarpro_experiments.fewshot.methods import LPFT, FewShotTask, FrozenRidge, Probe, ThroughSolver, Validated
from xvarpro_experiments.fewshot.problem import Features, adapter, head, pooled, problem, start
from xvarpro_experiments.methods import DEFAULT, Certificate, Measure, Method, Solver, Task
from xvarpro_experiments.race import Experiment
from xvarpro_experiments.trees import Tree, arrays, partition

RIDGES = tuple(10.0**k for k in range(1, -6, -1))  # in units of the mean squared length of the frozen features
RATES = tuple(10.0 ** (k / 2) for k in range(-6, 0))  # of Adam on theta, in units of the typical size of its entries
HEAD_RATES = (1e-2, 1e-1, 1.0, 10.0)  # of Adam on a head, in units of one over the length of the features
PROBED = 100  # iterations of a linear probe at most, whatever the budget: they cost next to nothing
RADII = (0.003, 0.01, 0.03, 0.1)  # of a tensor's ball, in units of its norm
DECAYS = (1e-4, 1e-3, 1e-2)  # of a head, in units of the mean squared length of the features


def evaluate(
    features: Features, theta: Tree, X: np.ndarray, backend: str | None = None, device: str | None = None
) -> np.ndarray:
    """Features of X by theta as NumPy arrays, computed on a backend in pieces."""
    machine = Machine(backend, device, str(X.dtype))
    with machine.scope():
        moved = machine.to_backend(theta)
        pieces = [machine.to_caller(features(moved, machine.to_backend(X[i : i + 100]))) for i in range(0, len(X), 100)]
    return np.concatenate(pieces)


@dataclass(frozen=True)
class _Accuracy:
    """Accuracies on the test images of an episode; features of a theta are computed once."""

    episode: Episode
    features: Features
    lam: float
    backend: str | None
    device: str | None
    _known: dict[bytes, np.ndarray] = field(default_factory=dict)

    def measures(self) -> dict[str, Measure]:
        return {ACCURACY: self.own, REFIT: self.refit}

    def own(self, found: Certificate) -> float:
        """With the head that belongs to the method."""
        return self._right(self.shown(found.theta)[0] @ np.asarray(found.w))

    def refit(self, found: Certificate) -> float:
        """With a ridge head on all shots at the method's theta."""
        tested, learned = self.shown(found.theta)
        Y = np.concatenate([self.episode.lower.Y, self.episode.upper.Y])
        return self._right(tested @ head(learned, Y, self.lam))

    def _right(self, scores: np.ndarray) -> float:
        return 100 * float(np.mean(np.argmax(scores, axis=1) == self.episode.labels))

    def shown(self, theta: Tree) -> tuple[np.ndarray, np.ndarray]:
        """Features of the test images and of the shots."""
        key, e = hashlib.sha256(b"".join(np.ascontiguousarray(x).data for x in arrays(theta))).digest(), self.episode
        if key not in self._known:
            X = np.concatenate([e.X, e.lower.X, e.upper.X])
            self._known[key] = evaluate(self.features, theta, X, self.backend, self.device)
        return self._known[key][: len(e.X)], self._known[key][len(e.X) :]


def experiment(
    source: str = "digits",
    data: str | os.PathLike[str] | None = None,
    weights: str | os.PathLike[str] | None = None,
    trained: str = "layer",
    shots: int = 1,
    tests: int = 100,
    validation: int = 5,
    units: float = 1.0,
    size: int = 64,
    backend: str | None = None,
    device: str | None = None,
    dtype: str | None = None,
) -> Experiment:
    """Episodes of few-shot learning; a seed is an episode.

    The ridge is the one, of `RIDGES`, with which *frozen ridge* is most accurate on validation episodes. Rates and
    radii, and for every method the number of iterations, are those with which it is most accurate there; the budget is
    the most iterations. Images of validation episodes are none of those that are reported on.

    Parameters
    ----------
    source : {"digits", "cifar10"}
        A small network pretrained here on digits 0 to 4 with 5-way episodes on 5 to 9; or a ResNet-18 pretrained on
        ImageNet with 10-way episodes of CIFAR-10, which needs Torch, the images and the weights.
    data : path, optional
        Folder of the images, ``$XVARPRO_DATA`` by default. Digits are MNIST's where it has them.
    weights : path, optional
        Safetensors file of the ResNet-18; looked for in the folder by default. None is shipped.
    trained : {"layer", "adapter"}
        What theta is: the last layer of the network, layer 4 of a ResNet-18 (on Torch); or an `adapter` on the frozen
        features of all layers, on any backend.
    shots : int
        Of every class in each of the two splits, >= 1.
    tests : int
        Images of every class on which an episode is tested, >= 1.
    validation : int
        Episodes from which numbers are chosen, >= 1.
    units : float
        Features are taken this many times as large, > 0: an equivalent problem in theta.
    size : int
        Side to which images of CIFAR-10 are enlarged, >= 32.
    backend, device, dtype : str, optional
        As in `xvarpro.solve`; float64, for a ResNet-18 float32.
    """
    positive(units=units)
    whole(validation=validation)
    one_of("source", source, ("digits", "cifar10"))
    one_of("trained", trained, ("layer", "adapter"))
    backbone, backend = _backbone(source, data, weights, trained, size, backend, dtype)
    features: Features = backbone.features if units == 1 else Scaled(backbone.features, units)
    episodes = [episode(backbone, shots, tests, seed, "validation") for seed in range(validation)]
    frozen = partial(evaluate, features, backbone.theta0, backend=backend, device=device)
    square, relative = _ridge(episodes, frozen)
    lam = relative * square
    place: dict[str, Any] = {"backend": backend, "device": device}

    def task(e: Episode) -> Task:
        seen, splits = _Accuracy(e, features, lam, backend, device), (e.lower, e.upper)
        return FewShotTask(
            problem(features, *splits, lam), backbone.theta0, xv.sets.Free(radius=1.0), **place,
            measures=seen.measures(), features=features, shown=seen.shown, splits=splits, lam=lam,
            pool=pooled(features, splits, lam),
        )  # fmt: skip

    config = {
        "source": backbone.source, "trained": trained, "shots": shots, "tests": tests, "validation": validation,
        "lam": relative, "units": units, "backend": backend, "dtype": str(backbone.X.dtype),
    }  # fmt: skip
    return Experiment(
        name="fewshot",
        title="Few-shot learning (Example 4)",
        task=lambda seed: task(episode(backbone, shots, tests, seed)),
        methods=_methods(cache(lambda: [task(e) for e in episodes]), square, backbone.theta0),
        config=config,
        facts={
            "data": backbone.source,
            "episodes": f"{backbone.ways}-way, {shots} + {shots} shots, {len(episodes[0].labels)} test images",
            "theta": f"{backbone.size} entries, free",
            "ridge": f"{relative:g} times the mean squared length of frozen features, {square:.3g}: best for frozen "
            "ridge on validation episodes",
        },
        objective="upper level, 1/2 sum of squares",
        figures=lambda race: {"differences": differences(race)},
        notes=notes,
        compared_by=ACCURACY.partition(" [")[0],
    )


def _backbone(
    source: str, data: Any, weights: Any, trained: str, size: int, backend: str | None, dtype: str | None
) -> tuple[Backbone, str | None]:
    if source == "digits":
        backbone = digits_backbone(data, np.dtype(dtype or "float64"))
    else:
        from xvarpro_experiments.fewshot import resnet  # Torch, only here

        backbone = resnet.backbone(data, weights, size, np.dtype(dtype or "float32"))
        if trained == "layer":
            if backend not in (None, "torch"):
                raise ProblemError(
                    f"layer 4 of the ResNet-18 is a module of Torch, and backend is {backend!r}: use torch, or "
                    "trained='adapter', which runs on every backend"
                )
            return backbone, "torch"
    return backbone if trained == "layer" else _adapted(backbone), backend


def _adapted(backbone: Backbone) -> Backbone:
    """An adapter on all layers of a backbone, which is thereby frozen."""
    torch = backbone.X.ndim > 2
    X = evaluate(backbone.features, backbone.theta0, backbone.X, "torch" if torch else None)
    theta0 = start(X.shape[1], 64, float(np.sqrt(np.mean(X * X))), dtype=X.dtype)
    return Backbone(adapter, theta0, X, backbone.labels, backbone.half, f"{backbone.source}; adapter of 64 units")


def _ridge(episodes: Sequence[Episode], frozen: Callable[[np.ndarray], np.ndarray]) -> tuple[float, float]:
    """Mean squared length of features, and in its units the ridge with which frozen ridge is most accurate."""
    known = []
    for e in episodes:
        M, Y = frozen(np.concatenate([e.lower.X, e.upper.X, e.X])), np.concatenate([e.lower.Y, e.upper.Y])
        known.append((M[: len(Y)], Y, M[len(Y) :], e.labels))
    square = float(np.mean([np.mean(np.sum(M * M, axis=1)) for M, *_ in known]))

    def right(lam: float) -> float:
        return float(np.mean([np.mean(np.argmax(T @ head(M, Y, lam * square), 1) == y) for M, Y, T, y in known]))

    return square, max(RIDGES, key=right)


def balls(theta0: Tree, radius: float) -> Tree:
    """A ball for each tensor, as large as `radius` times its norm: steps then change all layers alike.

    One ball for all of theta moves tensors by their share of the gradient, whatever their size. (You, Gitman, Ginsburg
    2017 scale rates that way.)

    Examples
    --------
    >>> import numpy as np
    >>> from xvarpro_experiments import fewshot
    >>> fewshot.balls({"A": np.ones((2, 2))}, 0.5)["A"].radius
    1.0
    """
    leaves, rest = partition(theta0)
    typical = _typical(theta0)
    sizes = [float(np.linalg.norm(x)) or typical * float(x.size) ** 0.5 for x in leaves]
    return rest.fill(xv.sets.Free(radius=radius * size) for size in sizes)


def _typical(theta: Tree) -> float:
    """Root mean square of the entries of theta that are not zero."""
    x = np.concatenate([np.ravel(x) for x in arrays(theta)])
    return float(np.sqrt(np.mean(x[x != 0] ** 2)))


def _methods(episodes: Callable[[], Sequence[Task]], square: float, theta0: Tree) -> tuple[Method, ...]:
    def tuned(name: str, family: str, *candidates: Method, limit: int | None = None) -> Validated:
        return Validated(name, family, candidates, episodes, ACCURACY, limit)

    def per_tensor(problem: Callable[[Task], Problem] | None = None) -> tuple[Method, ...]:
        names = {r: f"balls of {r:g} times the norm of each tensor" for r in RADII}
        return tuple(Solver(name, "ours", paper, problem, balls(theta0, r)) for r, name in names.items())

    paper = xv.algorithms.cr_varpro()
    typical = _typical(theta0)
    heads = [(rate / square**0.5, decay * square) for rate in HEAD_RATES for decay in DECAYS]
    probe = tuned("CE linear probe", "rival", *(Probe(rate=r, decay=d) for r, d in heads), limit=PROBED)
    return (
        tuned("CR-VarPro, two splits (the paper)", "paper", Solver("", "paper", paper)),
        tuned("CR-VarPro, two splits, ball per tensor", "ours", *per_tensor()),
        tuned("CR-VarPro, one split, ball per tensor", "ours", *per_tensor(_pool)),
        tuned(f"{DEFAULT}, two splits", "ours", Solver()),
        tuned(f"{DEFAULT}, one split", "ours", Solver(problem=_pool)),
        FrozenRidge(),
        probe,
        tuned("LP-FT", "rival", *(LPFT(rate=rate * typical, probe=probe) for rate in RATES)),
        tuned("two splits, autodiff through the solver", "rival", *(ThroughSolver(rate=r * typical) for r in RATES)),
    )


def _pool(task: Task) -> Problem:
    assert isinstance(task, FewShotTask)
    return task.pool
