"""Fits with their reports over lmfit's: same optimum, same standard errors, how long in CPU seconds.

pip install lmfit; python benchmarks/fits.py [--runs 15] [--backends numpy torch jax]

Calls of all libraries take turns in one process, on one thread, after a warm-up; ratios are of medians. A report is
what ``print(fit)`` and ``fit_report`` show. With several right-hand sides lmfit fits all rates and amplitudes together.

Like is compared with like: where lmfit's model is a line of NumPy, ours is that line in the array API; over lmfit's own
models it is `xv.models.exponentials`.
"""

from __future__ import annotations

import os

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"

import argparse  # noqa: E402
import time  # noqa: E402
from collections.abc import Callable  # noqa: E402
from typing import Any  # noqa: E402

import lmfit  # noqa: E402
import lmfit.models  # noqa: E402
import numpy as np  # noqa: E402

import xvarpro as xv  # noqa: E402

# rates and starts of two and of three decays
CASES = {2: (np.array([1.0, 5.0]), np.array([0.5, 8.0])), 3: (np.array([0.5, 3.0, 15.0]), np.array([0.3, 2.0, 19.0]))}
BOX = xv.sets.Box(0.0, 20.0)


def line(theta: Any, data: Any) -> Any:
    xp = xv.array_namespace(theta)
    return xp.exp(-xp.expand_dims(data["t"], axis=1) * theta)


def library(theta: Any, data: Any) -> Any:
    return xv.models.exponentials(data["t"], theta)


def rival(t: np.ndarray, y: np.ndarray, start: np.ndarray) -> Callable[[], Any]:
    """Lmfit's fit of all parameters, with its report."""
    columns = y if y.ndim == 2 else y[:, None]
    k, n = columns.shape[1], len(start)
    parameters = lmfit.Parameters()
    for j, rate in enumerate(start):
        parameters.add(f"k{j}", rate, min=0.0, max=20.0)
    for j in range(n):
        for i in range(k):
            parameters.add(f"w{j}_{i}", 1.0)

    def residual(p: Any) -> np.ndarray:
        values = np.array([x.value for x in p.values()])
        return (np.exp(-np.outer(t, values[:n])) @ values[n:].reshape(n, k) - columns).ravel()

    def run() -> Any:
        found = lmfit.minimize(residual, parameters)
        return found, lmfit.fit_report(found, show_correl=k == 1)

    return run


def by_model(t: np.ndarray, y: np.ndarray, start: np.ndarray) -> Callable[[], Any]:
    """Lmfit's own models of two exponentials, which know lifetimes, with their report."""
    model = lmfit.models.ExponentialModel(prefix="slow_") + lmfit.models.ExponentialModel(prefix="fast_")
    parameters = model.make_params(slow_amplitude=1.0, fast_amplitude=1.0)
    for name, rate in zip(("slow_decay", "fast_decay"), start, strict=True):
        parameters[name].set(1 / rate, min=1 / 20.0)

    def run() -> Any:
        found = model.fit(y, parameters, x=t)
        return found, found.fit_report()

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--backends", nargs="+", default=["numpy", "torch", "jax"])
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    print("| fit | backend | time over lmfit's | value off | standard errors off |\n|---|---|---|---|---|")
    for label, n, m, k, make in (
        ("200 points", 2, 200, 1, rival),
        ("200 points, over lmfit's own models", 2, 200, 1, by_model),
        ("10,000 points", 2, 10_000, 1, rival),
        ("10,000 points, over lmfit's own models", 2, 10_000, 1, by_model),
        ("10,000 points, three decays", 3, 10_000, 1, rival),
        ("100,000 points", 2, 100_000, 1, rival),
        ("100,000 points, three decays", 3, 100_000, 1, rival),
        ("50 right-hand sides of 200", 2, 200, 50, rival),
    ):
        rates, start = CASES[n]
        t = np.linspace(0.0, 2.0, m)
        w = np.array([2.0, 1.0, 1.0])[:n] if k == 1 else rng.uniform(0.5, 2.0, (n, k))
        y = np.exp(-np.outer(t, rates)) @ w
        y = y + 0.01 * rng.normal(size=y.shape)
        other = make(t, y, start)
        problem = xv.separable(line if make is rival else library, y, data={"t": t})

        def ours(backend: str, problem: Any = problem, start: np.ndarray = start) -> Any:
            fit = xv.solve(problem, start, over=BOX, backend=backend)
            return fit, str(fit.report())

        calls = {"lmfit": other, **{name: lambda name=name: ours(name) for name in options.backends}}
        found = {name: call() for name, call in calls.items()}
        times: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(options.runs):
            for name, call in calls.items():
                began = time.process_time()
                call()
                times[name].append(time.process_time() - began)
        theirs = found["lmfit"][0]
        # of lifetimes, in another order, where the models are lmfit's
        errors = np.array([p.stderr for p in theirs.params.values()]) if make is rival else None
        for name in options.backends:
            fit, s = found[name][0], found[name][0].statistics()
            own = np.concatenate([s.theta_stderr, s.w_stderr.ravel()])
            off = "" if errors is None else f"{np.max(np.abs(own - errors) / errors):.0e}"
            ratio = np.median(times[name]) / np.median(times["lmfit"])
            print(f"| {label} | {name} | {ratio:.2f} | {2 * fit.value / theirs.chisqr - 1:.0e} | {off} |", flush=True)


if __name__ == "__main__":
    main()
