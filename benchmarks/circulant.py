"""A circulant lower level by Fourier division over the same one as an array: time of a value and gradient.

Both are asked for the reduced objective of one blind deconvolution and its gradient; runs alternate in one process, the
ratio of medians is printed with what the two differ by, and the load of the machine.

    python benchmarks/circulant.py [--lengths 1024 4096] [--signals 1] [--backend numpy] [--levels separable bilevel]
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

import numpy as np

import xvarpro as xv


def structured(theta: Any, _: Any) -> Any:
    return xv.operators.StackedCirculant(theta)


def dense(theta: Any, index: Any) -> Any:
    xp = xv.array_namespace(theta)
    N, D = theta.shape
    return xp.reshape(xp.take(theta, index, axis=1), (N * D, D))


def problem(levels: str, model: Any, data: Any, y: np.ndarray, lam: float) -> Any:
    if levels == "separable":
        return xv.separable(model, y[0], data=data, lam=lam)
    return xv.bilevel(lower=xv.Level(model, y[0], lam=lam), upper=xv.Level(model, y[1]), data=data)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", nargs="+", type=int, default=[1024, 4096])
    parser.add_argument("--signals", type=int, default=1)
    parser.add_argument("--backend", default="numpy")
    parser.add_argument("--levels", nargs="+", default=["separable", "bilevel"], choices=["separable", "bilevel"])
    parser.add_argument("--repeats", type=int, default=3, help="of the dense route, and ten times as many of the other")
    args = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.2f}, {args.backend}, N = {args.signals}, float64")
    print("| levels | D | dense, ms | Fourier, ms | ratio | value differs by | gradient differs by |")
    print("|---|---|---|---|---|---|---|")
    for levels in args.levels:
        for D in args.lengths:
            rng = np.random.default_rng(0)
            theta, y = rng.normal(size=(args.signals, D)) / D**0.5, rng.normal(size=(2, args.signals * D))
            i = np.arange(D)
            index = ((i[:, None] - i) % D).ravel()
            routes = {"dense": (dense, index, 1), "fourier": (structured, None, 10)}
            times: dict[str, list[float]] = {name: [] for name in routes}
            found = {}
            for _ in range(args.repeats):
                for name, (model, data, often) in routes.items():
                    stated = problem(levels, model, data, y, 1e-3)
                    for _ in range(often):
                        began = time.perf_counter()
                        found[name] = xv.value_and_gradient(stated, theta, backend=args.backend)
                        times[name].append(time.perf_counter() - began)
            (f, g), (f_dense, g_dense) = found["fourier"], found["dense"]
            a, b = (1e3 * float(np.median(times[name])) for name in ("dense", "fourier"))
            df, dg = abs(f - f_dense) / f_dense, np.linalg.norm(g - g_dense) / np.linalg.norm(g_dense)
            print(f"| {levels} | {D} | {a:.0f} | {b:.2f} | {a / b:.0f} | {df:.1e} | {dg:.1e} |", flush=True)
    print(f"load {os.getloadavg()[0]:.2f}")


if __name__ == "__main__":
    main()
