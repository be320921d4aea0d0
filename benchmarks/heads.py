"""A head by least squares on one-hot labels and a logistic one, on the same features: accuracy, calibration, time.

[XVARPRO_DATA=...] python benchmarks/heads.py [--data digits cifar10] [--epochs 20]

A network is trained by mini-batch variable projection, or end to end by cross-entropy; then it is frozen, and both
heads are fitted to its features of the training rows, with the ridge that is best on a quarter of them held back.
Calibration is the expected error over 15 bins of confidence (ECE); a head by least squares has no probabilities: its
outputs are clipped to [0, 1] and divided by their sum for it, and the share of outputs outside [0, 1] is given.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from minibatches import BATCH, WIDTH, arrays, by_torch, images, start
from sklearn.datasets import load_digits
from torch.nn import functional

import xvarpro as xv

RIDGES = 10.0 ** np.arange(-3, 4)


def digits() -> Any:
    x, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    x = (x[order] / 8 - 1).astype(np.float32)
    y, labels = np.eye(10, dtype=np.float32)[labels[order]], labels[order]
    return (x[:1200], y[:1200], labels[:1200]), (x[1200:], y[1200:], labels[1200:])


def dense(theta: Any, x: Any) -> Any:
    h = torch.tanh(x @ theta["W"] + theta["b"])
    return torch.cat([h, torch.ones_like(h[:, :1])], dim=1)


def dense_start() -> Any:
    rng = np.random.default_rng(0)
    return {"W": (rng.normal(size=(64, WIDTH)) / 8).astype(np.float32), "b": np.zeros(WIDTH, np.float32)}


def by_projection(model: Any, theta: Any, x: Any, y: Any, epochs: int) -> Any:
    problem = xv.separable(model, y, data=xv.Samples(x), lam=1.0)
    method = xv.algorithms.StochasticProjectedGradient(batch=BATCH, update=xv.algorithms.Adam(rate=3e-3))
    return xv.solve(problem, theta, algorithm=method, max_iter=epochs * -(-len(x) // BATCH), tol=0.0).theta


def by_cross_entropy(model: Any, theta: Any, x: Any, y: Any, epochs: int) -> Any:
    leaves = {name: z.clone().requires_grad_() for name, z in theta.items()}
    leaves["head"] = torch.zeros(WIDTH + 1, 10, requires_grad=True)
    optimiser, rng = torch.optim.Adam(leaves.values(), lr=3e-3), np.random.default_rng(0)
    for _ in range(epochs):
        order = torch.from_numpy(rng.permutation(len(x)))
        for at in order.split(BATCH):
            optimiser.zero_grad()
            functional.cross_entropy(model(leaves, x[at]) @ leaves["head"], y[at]).backward()
            optimiser.step()
    return {name: z.detach() for name, z in leaves.items() if name != "head"}


def least_squares(A: np.ndarray, y: np.ndarray, lam: float) -> np.ndarray:
    problem = xv.separable(lambda theta, A: A + 0 * theta, y, data=A, lam=lam, compress=False)
    return np.asarray(xv.solve_lower(problem, np.zeros(())).w)


def logistic(A: np.ndarray, y: np.ndarray, lam: float) -> np.ndarray:
    """Cross-entropy with the same ridge, by L-BFGS to its own end."""
    features, target = torch.tensor(A), torch.tensor(y)
    w = torch.zeros(A.shape[1], 10, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([w], max_iter=300, line_search_fn="strong_wolfe", tolerance_grad=1e-4)

    def closure() -> Any:
        optimiser.zero_grad()
        value = functional.cross_entropy(features @ w, target, reduction="sum") + 0.5 * lam * (w * w).sum()
        value.backward()
        return value

    optimiser.step(closure)
    return w.detach().numpy()


def shares(outputs: np.ndarray) -> np.ndarray:
    p = np.clip(outputs, 0.0, 1.0)
    return p / np.maximum(p.sum(axis=1, keepdims=True), 1e-12)


def softmax(outputs: np.ndarray) -> np.ndarray:
    p = np.exp(outputs - outputs.max(axis=1, keepdims=True))
    return p / p.sum(axis=1, keepdims=True)


def calibration(p: np.ndarray, labels: np.ndarray, bins: int = 15) -> float:
    sure, right = p.max(axis=1), p.argmax(axis=1) == labels
    at = np.minimum((sure * bins).astype(int), bins - 1)
    return float(sum(abs((sure[at == i] - right[at == i]).sum()) for i in range(bins)) / len(p))


def fitted(head: Callable[..., np.ndarray], A: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, float, float]:
    """The head with the ridge that names most of the last quarter right, that ridge, and the seconds of one fit."""
    n = len(A) * 3 // 4
    right = [(((A[n:] @ head(A[:n], y[:n], lam)).argmax(1) == y[n:].argmax(1)).mean()) for lam in RIDGES]
    lam = float(RIDGES[int(np.argmax(right))])
    began = time.perf_counter()
    w = head(A, y, lam)
    return w, lam, time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", nargs="+", default=["digits", "cifar10"])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--samples", type=int, default=5000)
    options = parser.parse_args()
    columns = ("data", "features by", "head", "ridge", "accuracy", "ECE", "outputs outside [0, 1]", "s")
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for name in options.data:
        data = digits() if name == "digits" else (images(True, options.samples), images(False, 4000))
        model, theta = (dense, dense_start()) if name == "digits" else (by_torch, start(0))
        (x, y, _), (held, _, labels) = data
        tensors = [arrays("torch", z) for z in (x, y, held)]
        for way, train in (("projection", by_projection), ("cross-entropy", by_cross_entropy)):
            trained = train(model, arrays("torch", theta), tensors[0], tensors[1], options.epochs)
            A, B = (model(trained, z).numpy().astype(np.float64) for z in (tensors[0], tensors[2]))
            for kind, head, read in (("least squares", least_squares, shares), ("logistic", logistic, softmax)):
                w, lam, seconds = fitted(head, A, y.astype(np.float64))
                outputs = B @ w
                p = read(outputs)
                outside = f"{((outputs < 0) | (outputs > 1)).mean():.0%}" if kind == "least squares" else "-"
                accuracy = (outputs.argmax(axis=1) == labels).mean()
                row = [name, way, kind, f"{lam:g}", f"{accuracy:.3f}", f"{calibration(p, labels):.3f}", outside]
                print(f"| {' | '.join([*row, f'{seconds:.3f}'])} |", flush=True)


if __name__ == "__main__":
    main()
