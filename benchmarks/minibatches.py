"""Time to a validation loss: mini-batch variable projection against end-to-end Adam, on CIFAR-10, Torch and JAX.

XVARPRO_DATA=... python benchmarks/minibatches.py [--seconds 40] [--frameworks torch jax] [--samples 20000]

A small convolutional network (13,000 parameters) on images pooled to 16 x 16, and a linear head by squares on one-hot
labels with a ridge. All methods minimise the same objective, from the same start, with the same grid of learning rates,
on one thread; every rate is a row, failures included. Seconds are those of the training, without set-up and validation.
Those of variable projection have its certificates, value and gradient on all rows after every second epoch, and stand
in parentheses without them; on JAX they have the compilation of its functions of a chunk. The loss is
``1/2 |M w - y|^2`` for an image of the test set, of variable projection at its certified iterate with w of all training
rows.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from typing import Any, NamedTuple

import numpy as np
from xvarpro_experiments.datasets import cifar10

import xvarpro as xv

# one thread for every framework
os.environ |= {"OMP_NUM_THREADS": "1", "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"}
RATES = (1e-3, 3e-3, 1e-2, 3e-2)
BATCH, LAM, WIDTH, EPOCHS = 256, 10.0, 64, 2
TARGETS = (0.36, 0.35, 0.34)
LOWER = {
    "same batch of 256": (256, xv.algorithms.SameBatch()),
    "same batch of 1,000": (1000, xv.algorithms.SameBatch()),
    "second batch of 1,000": (1000, xv.algorithms.SecondBatch()),
}


def images(train: bool, samples: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Images (samples, 3, 16, 16) of mean 0 and deviation about 1, one-hot labels, labels."""
    found = cifar10(train=train, samples=samples)
    x = found.images.reshape(-1, 3, 16, 2, 16, 2).mean(axis=(3, 5)) / 255
    return ((x - 0.47) / 0.24).astype(np.float32), np.eye(10, dtype=np.float32)[found.labels], found.labels


def start(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)

    def drawn(*shape: int) -> np.ndarray:
        return (rng.normal(size=shape) * math.sqrt(2 / math.prod(shape[1:]))).astype(np.float32)

    layers = {"k1": drawn(16, 3, 3, 3), "k2": drawn(32, 16, 3, 3), "W": drawn(WIDTH, 128)}
    return layers | {"b" + name: np.zeros(len(x), np.float32) for name, x in layers.items()}


def by_torch(theta: dict[str, Any], x: Any) -> Any:
    import torch
    from torch.nn import functional

    for name in ("k1", "k2"):
        x = functional.max_pool2d(functional.relu(functional.conv2d(x, theta[name], theta["b" + name])), 2)
    h = torch.tanh(x.flatten(1) @ theta["W"].T + theta["bW"])
    return torch.cat([h, torch.ones_like(h[:, :1])], dim=1)


def by_jax(theta: dict[str, Any], x: Any) -> Any:
    import jax
    from jax import numpy as jnp

    for name in ("k1", "k2"):
        x = jax.lax.conv(x, theta[name], (1, 1), "VALID") + theta["b" + name][:, None, None]
        side = x.shape[-1] // 2  # as max_pool2d drops an odd row
        x = jnp.maximum(x, 0)[:, :, : 2 * side, : 2 * side]
        x = x.reshape(*x.shape[:2], side, 2, side, 2).max(axis=(3, 5))
    h = jnp.tanh(x.reshape(x.shape[0], -1) @ theta["W"].T + theta["bW"])
    return jnp.concatenate([h, jnp.ones_like(h[:, :1])], axis=1)


MODELS = {"torch": by_torch, "jax": by_jax}


def arrays(framework: str, tree: Any) -> Any:
    if framework == "torch":
        import torch

        return {name: torch.tensor(x) for name, x in tree.items()} if isinstance(tree, dict) else torch.tensor(tree)
    from jax import numpy as jnp

    return {name: jnp.asarray(x) for name, x in tree.items()} if isinstance(tree, dict) else jnp.asarray(tree)


class Measure(NamedTuple):
    """How far a training has come."""

    seconds: float
    plain: float  # seconds without certificates
    loss: float
    accuracy: float


def projected(framework: str, rate: float, seconds: float, kind: Any, data: Any) -> list[Measure]:
    """Variable projection, measured at each certificate."""
    (x, y, _), (held, target, labels) = data
    model, (batch, lower) = MODELS[framework], kind
    # in chunks a certificate, too, works on a few rows at a time: all at once take XLA ten times as long on a CPU
    chunks = xv.RowChunks.cut(x, y, rows=batch)
    problem = xv.separable(model, chunks, lam=LAM, solver=xv.lower.Cholesky())
    update = xv.algorithms.Adam(rate=rate)
    epoch, found, paused = -(-len(x) // batch), [], 0.0
    last, certificates, steps = 0.0, 0.0, []
    method = xv.algorithms.StochasticProjectedGradient(lower=lower, update=update, certify=EPOCHS * epoch)
    seen = arrays(framework, x), arrays(framework, held)

    def each_epoch(info: Any) -> bool:
        nonlocal paused, last, certificates
        began, now = time.perf_counter(), info.seconds - paused
        took, last = now - last, now
        if info.iteration % (EPOCHS * epoch):
            steps.append(took)
            return False
        certificates += took - float(np.median(steps))
        A, B = (np.asarray(model(info.theta, z)) for z in seen)
        w = np.linalg.solve(A.T @ A + LAM * np.eye(WIDTH + 1, dtype=A.dtype), A.T @ y)
        found.append(Measure(now, now - certificates, *measured(B @ w, target, labels)))
        paused += time.perf_counter() - began
        return now > seconds

    theta0 = arrays(framework, start(0))
    xv.solve(problem, theta0, algorithm=method, max_iter=1000 * epoch, tol=0.0, progress=False, callback=each_epoch)
    return found


def measured(outputs: np.ndarray, target: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    loss = 0.5 * float(((outputs - target) ** 2).sum(axis=1).mean())
    return loss, float((outputs.argmax(axis=1) == labels).mean())


def end_to_end(framework: str, rate: float, seconds: float, data: Any) -> list[Measure]:
    """Adam on network and head together, as `projected`."""
    (x, y, _), (held, target, labels) = data
    model, rng = MODELS[framework], np.random.default_rng(0)
    theta = start(0) | {"head": np.zeros((WIDTH + 1, 10), np.float32)}
    x, y, held, theta = (arrays(framework, z) for z in (x, y, held, theta))
    step = torch_step(model, theta, rate, x, y) if framework == "torch" else jax_step(model, theta, rate, x, y)
    spent, found = 0.0, []
    step(np.arange(BATCH), False)  # compiles
    while spent <= seconds:
        order = rng.permutation(len(x))
        began = time.perf_counter()
        for i in range(0, len(order) - BATCH + 1, BATCH):
            theta = step(order[i : i + BATCH], True)
        np.asarray(theta["head"])
        spent += time.perf_counter() - began
        outputs = np.asarray(model(theta, held) @ theta["head"])
        found.append(Measure(spent, spent, *measured(outputs, target, labels)))
    return found


def torch_step(model: Any, theta: Any, rate: float, x: Any, y: Any) -> Any:
    import torch

    leaves = {name: z.requires_grad_() for name, z in theta.items()}
    optimiser = torch.optim.Adam(leaves.values(), lr=rate)

    def step(rows: np.ndarray, move: bool) -> Any:
        if move:
            at = torch.from_numpy(rows)
            r = model(leaves, x[at]) @ leaves["head"] - y[at]
            loss = 0.5 * (r * r).sum() / len(rows) + 0.5 * LAM / len(x) * (leaves["head"] ** 2).sum()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        return {name: z.detach() for name, z in leaves.items()}

    return step


def jax_step(model: Any, theta: Any, rate: float, x: Any, y: Any) -> Any:
    import jax
    import optax

    rule = optax.adam(rate)

    def loss(theta: Any, rows: Any) -> Any:
        r = model(theta, x[rows]) @ theta["head"] - y[rows]
        return 0.5 * (r * r).sum() / len(rows) + 0.5 * LAM / len(x) * (theta["head"] ** 2).sum()

    @jax.jit
    def updated(theta: Any, memory: Any, rows: Any) -> Any:
        step, memory = rule.update(jax.grad(loss)(theta, rows), memory)
        return optax.apply_updates(theta, step), memory

    state = [theta, rule.init(theta)]

    def step(rows: np.ndarray, move: bool) -> Any:
        after = updated(*state, rows)
        if move:
            state[:] = after
        return state[0]

    return step


def _seconds(m: Measure | None, certified: bool) -> str:
    if m is None:
        return "-"
    return f"{m.seconds:.1f} ({m.plain:.1f})" if certified else f"{m.seconds:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--frameworks", nargs="+", default=["torch", "jax"])
    options = parser.parse_args()
    data = images(True, options.samples), images(False, 4000)
    heads = " | ".join(f"s to {target}" for target in TARGETS)
    print(f"| framework | method | rate | {heads} | best loss | accuracy | epochs |\n|{'---|' * (6 + len(TARGETS))}")
    for framework in options.frameworks:
        methods = {f"variable projection, {name}": kind for name, kind in LOWER.items()} | {"end-to-end Adam": None}
        for name, kind in methods.items():
            for rate in RATES:
                if kind is None:
                    found = end_to_end(framework, rate, options.seconds, data)
                else:
                    found = projected(framework, rate, options.seconds, kind, data)
                first = [next((m for m in found if m.loss <= target), None) for target in TARGETS]
                losses = [m.loss if math.isfinite(m.loss) else math.inf for m in found]
                best = int(np.argmin(losses))
                row = [
                    framework,
                    name,
                    f"{rate:g}",
                    *(_seconds(m, kind is not None) for m in first),
                    f"{losses[best]:.4f}",
                    f"{found[best].accuracy:.3f}",
                    len(found) * (1 if kind is None else EPOCHS),
                ]
                print(f"| {' | '.join(map(str, row))} |", flush=True)


if __name__ == "__main__":
    main()
