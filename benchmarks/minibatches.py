"""A small convolutional network on CIFAR-10: mini-batch variable projection beside end-to-end Adam, on Torch and JAX.

XVARPRO_DATA=<folder> python benchmarks/minibatches.py [--seconds 20] [--backends torch jax]

Images are pooled to 16 x 16; 20,000 are for training, 5,000 test images for validation. Both methods fit one-hot
labels less 0.1 by squares, with batches of 256, the same network and start, and a rate from the same grid. Variable
projection has Adam's rule for the network and the exact last layer of each batch; every other epoch a certificate on
all images, which is part of its time, gives the last layer that validation takes. End-to-end Adam trains the last
layer with the rest. Looking at validation images is part of no time. It needs the package in ``experiments``.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

import xvarpro as xv
from xvarpro_experiments.datasets.cifar import cifar10

BATCH, EVERY, FEATURES, LAM = 256, 2, 64, 10.0
RATES = (3e-4, 1e-3, 3e-3, 1e-2)


class Data(NamedTuple):
    """Images (samples, 3, 16, 16), targets (samples, 10) and classes, in float32."""

    X: np.ndarray
    Y: np.ndarray
    labels: np.ndarray


class Look(NamedTuple):
    """Validation after so many seconds of training: half the mean squared error, and the accuracy."""

    seconds: float
    loss: float
    accuracy: float


def load(train: bool, samples: int, mean: Any = None, deviation: Any = None) -> tuple[Data, Any, Any]:
    found = cifar10(train=train, samples=samples)
    X = found.images.reshape(-1, 3, 16, 2, 16, 2).mean(axis=(3, 5)) / 255
    if mean is None:
        mean, deviation = X.mean(axis=(0, 2, 3), keepdims=True), X.std(axis=(0, 2, 3), keepdims=True)
    Y = np.eye(10)[found.labels] - 0.1
    return Data(((X - mean) / deviation).astype(np.float32), Y.astype(np.float32), found.labels), mean, deviation


class Torch:
    """The network, and end-to-end Adam, in PyTorch."""

    def __init__(self) -> None:
        import torch

        torch.manual_seed(0)
        self.torch, nn = torch, torch.nn
        conv = [nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        conv += [nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        self.theta0 = nn.Sequential(*conv, nn.Flatten(), nn.Linear(512, FEATURES), nn.ReLU())

    def array(self, x: np.ndarray) -> Any:
        return self.torch.from_numpy(x)

    def features(self, net: Any, X: Any) -> Any:
        H = net(X)
        return self.torch.cat([H, self.torch.ones_like(H[:, :1])], dim=1)

    def outputs(self, net: Any, w: Any, X: Any) -> np.ndarray:
        with self.torch.no_grad():
            return np.asarray(self.features(net, X) @ w)

    def end_to_end(self, X: Any, Y: Any, rate: float) -> Callable[[np.ndarray], tuple[Any, Any]]:
        """A function of the indices of a batch that makes a step and returns the network and the last layer."""
        import copy

        torch = self.torch
        net, w = copy.deepcopy(self.theta0), torch.nn.Parameter(0.1 * torch.randn(FEATURES + 1, 10))
        optimiser = torch.optim.Adam([*net.parameters(), w], lr=rate)

        def step(batch: np.ndarray) -> tuple[Any, Any]:
            at = torch.from_numpy(batch)
            optimiser.zero_grad()
            loss = 0.5 * ((self.features(net, X[at]) @ w - Y[at]) ** 2).sum() / len(batch)
            loss.backward()
            optimiser.step()
            return net, w

        return step


class Jax:
    """The same in JAX."""

    def __init__(self) -> None:
        import jax

        self.jax = jax
        draw = np.random.default_rng(0)
        shapes = {"a": (16, 3, 3, 3), "b": (32, 16, 3, 3), "c": (FEATURES, 512)}
        sizes = {name: np.sqrt(1 / (3 * np.prod(shape[1:]))) for name, shape in shapes.items()}
        self.theta0 = {
            name: jax.numpy.asarray(size * draw.uniform(-1, 1, shapes[name]) * np.sqrt(3), "float32")
            for name, size in sizes.items()
        } | {f"bias {name}": jax.numpy.zeros(shape[0], "float32") for name, shape in shapes.items()}

    def array(self, x: np.ndarray) -> Any:
        return self.jax.numpy.asarray(x)

    def features(self, theta: Any, X: Any) -> Any:
        lax, jnp = self.jax.lax, self.jax.numpy
        for name in ("a", "b"):
            X = lax.conv(X, theta[name], (1, 1), "SAME") + theta[f"bias {name}"][:, None, None]
            X = lax.reduce_window(jnp.maximum(X, 0), -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
        H = jnp.maximum(X.reshape(len(X), -1) @ theta["c"].T + theta["bias c"], 0)
        return jnp.concatenate([H, jnp.ones_like(H[:, :1])], axis=1)

    def outputs(self, theta: Any, w: Any, X: Any) -> np.ndarray:
        return np.asarray(self.jax.jit(self.features)(theta, X) @ w)

    def end_to_end(self, X: Any, Y: Any, rate: float) -> Callable[[np.ndarray], tuple[Any, Any]]:
        import optax

        jax, jnp = self.jax, self.jax.numpy
        optimiser = optax.adam(rate)
        w = 0.1 * np.random.default_rng(1).normal(size=(FEATURES + 1, 10))
        unknowns = (self.theta0, jnp.asarray(w, "float32"))
        held = [unknowns, optimiser.init(unknowns)]

        def loss(unknowns: Any, at: Any) -> Any:
            theta, w = unknowns
            return 0.5 * jnp.sum((self.features(theta, X[at]) @ w - Y[at]) ** 2) / len(at)

        @jax.jit
        def stepped(unknowns: Any, state: Any, at: Any) -> Any:
            updates, state = optimiser.update(jax.grad(loss)(unknowns, at), state, unknowns)
            return optax.apply_updates(unknowns, updates), state

        stepped(*held, jnp.zeros(BATCH, "int32"))  # compilation does not count

        def step(batch: np.ndarray) -> tuple[Any, Any]:
            held[:] = stepped(*held, jnp.asarray(batch, "int32"))
            found: tuple[Any, Any] = jax.block_until_ready(held[0])
            return found

        return step


class Validation:
    """Looks at validation images, outside of the time."""

    def __init__(self, framework: Any, data: Data) -> None:
        self.framework, self.data = framework, data
        self.X = framework.array(data.X)
        self.looks: list[Look] = []

    def __call__(self, seconds: float, theta: Any, w: Any) -> None:
        outputs = self.framework.outputs(theta, w, self.X)
        loss = 0.5 * float(np.mean(np.sum((outputs - self.data.Y) ** 2, axis=1)))
        self.looks.append(Look(seconds, loss, float(np.mean(outputs.argmax(axis=1) == self.data.labels))))


def batches(samples: int) -> Iterator[np.ndarray]:
    draw = np.random.default_rng(0)
    while True:
        yield draw.choice(samples, BATCH, replace=False)


def projected(framework: Any, train: Data, valid: Data, rate: float, seconds: float) -> list[Look]:
    """Mini-batch variable projection."""
    X, Y = framework.array(train.X), framework.array(train.Y)
    problem = xv.separable(framework.features, Y, data=xv.Samples(X), lam=LAM, compress=False)
    certify = EVERY * (len(train.X) // BATCH)
    method = xv.algorithms.StochasticProjectedGradient(
        batch=BATCH, update=xv.algorithms.Adam(rate), certify=certify, lower=xv.algorithms.SameBatch()
    )
    look, looking = Validation(framework, valid), 0.0

    def callback(info: xv.IterationInfo) -> bool:
        nonlocal looking
        if info.iteration % certify == 0:
            began = time.perf_counter()
            look(info.seconds - looking, info.theta, info.w)
            looking += time.perf_counter() - began
        return bool(info.seconds - looking > seconds)

    xv.solve(problem, framework.theta0, algorithm=method, max_iter=10**6, callback=callback, progress=False)
    return look.looks


def end_to_end(framework: Any, train: Data, valid: Data, rate: float, seconds: float) -> list[Look]:
    step = framework.end_to_end(framework.array(train.X), framework.array(train.Y), rate)
    look, spent = Validation(framework, valid), 0.0
    for k, batch in enumerate(batches(len(train.X)), 1):
        began = time.perf_counter()
        found = step(batch)
        spent += time.perf_counter() - began
        if k % (len(train.X) // BATCH) == 0:
            look(spent, *found)
        if spent > seconds:
            return look.looks
    raise AssertionError


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--backends", nargs="+", default=["torch", "jax"])
    options = parser.parse_args()
    warnings.simplefilter("ignore", xv.DeadUnitsWarning)  # some of the 64 features are zero for all images
    train, *scale = load(True, 20_000)
    valid, *_ = load(False, 5_000, *scale)
    columns = ("rate", "least validation loss", "accuracy there", "seconds to Adam's least loss", "of other rates")
    print("| | method |", " | ".join(columns), "|\n|---|---|" + "---|" * len(columns))
    for name in options.backends:
        found: dict[str, dict[float, list[Look]]] = {}
        for method in (end_to_end, projected):
            framework = {"torch": Torch, "jax": Jax}[name]()
            runs = {rate: method(framework, train, valid, rate, options.seconds) for rate in RATES}
            found[method.__name__] = {rate: looks for rate, looks in runs.items() if looks}
        goal = min(look.loss for looks in found["end_to_end"].values() for look in looks)
        for method, runs in found.items():
            rate = min(runs, key=lambda rate: min(look.loss for look in runs[rate]))
            best = min(runs[rate], key=lambda look: look.loss)
            at = next((f"{look.seconds:.1f}" for look in runs[rate] if look.loss <= goal), "never")
            others = ", ".join(
                f"{r:g}: {min(look.loss for look in looks):.4f}" for r, looks in runs.items() if r != rate
            )
            print(
                f"| {name} | {method} | {rate:g} | {best.loss:.4f} | {100 * best.accuracy:.1f} % | {at} | {others} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
