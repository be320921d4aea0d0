"""Thousands of bi-exponential decays: problems per second of batches, of a loop of solves, of scipy's curve_fit.

python benchmarks/many.py [--problems 10000] [--points 64] [--sample 100] [--write]
                          [--backends numpy torch jax]

Models are in batch form, and stated for one problem and lifted. Loops are timed on a sample, whose rate is the rate of
the whole. `--write` puts the table into docs/many.md.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import OptimizeWarning, curve_fit

import xvarpro as xv

PAGE = Path(__file__).parents[1] / "docs" / "many.md"
MARK = "<!-- measured: benchmarks/many.py -->"
START = np.array([0.7, 4.0])
BOX = xv.sets.Box(0.0, 20.0)


def decays(theta: Any, data: Any) -> Any:
    xp = xv.array_namespace(theta)
    return xp.exp(-xp.expand_dims(theta, axis=1) * data["t"][None, :, None])


def decay(theta: Any, data: Any) -> Any:
    xp = xv.array_namespace(theta)
    return xp.exp(-xp.expand_dims(data["t"], axis=1) * theta)


def signals(b: int, t: np.ndarray) -> np.ndarray:
    rng = np.random.default_rng(0)
    rates = np.stack([rng.uniform(0.5, 1.5, b), rng.uniform(3.0, 8.0, b)], axis=1)
    w = rng.uniform(0.5, 2.0, (b, 2, 1))
    clean = (np.exp(-rates[:, None, :] * t[:, None]) @ w)[..., 0]
    return clean + 1e-2 * rng.normal(size=clean.shape)


def batched(y: np.ndarray, t: np.ndarray, backend: str, M: Any) -> tuple[list[float], list[float], xv.ManyResult]:
    """Seconds of solves, the first one's compilations included, and of the statistics after each; the last result."""
    problem, theta0 = xv.separable(M, xv.Each(y), data={"t": t}), np.tile(START, (len(y), 1))
    problem = xv.many.lifted(problem) if M is decay else problem
    seconds, more = [], []
    for _ in range(4):
        began = time.perf_counter()
        fit = xv.solve_many(problem, theta0, over=BOX, backend=backend, progress=False)
        seconds.append(time.perf_counter() - began)
        fit.statistics()
        more.append(time.perf_counter() - began - seconds[-1])
    return seconds, more, fit


def looped(y: np.ndarray, t: np.ndarray, backend: str) -> tuple[float, np.ndarray]:
    values = []
    xv.solve(xv.separable(decay, y[0], data={"t": t}), START, over=BOX, backend=backend)
    began = time.perf_counter()
    for row in y:
        values.append(xv.solve(xv.separable(decay, row, data={"t": t}), START, over=BOX, backend=backend).value)
    return time.perf_counter() - began, np.asarray(values)


def joint(t: Any, a: float, b: float, u: float, v: float) -> Any:
    return u * np.exp(-a * t) + v * np.exp(-b * t)


def scipy(y: np.ndarray, t: np.ndarray) -> tuple[float, np.ndarray]:
    values = []
    bounds = ([0.0, 0.0, -np.inf, -np.inf], [20.0, 20.0, np.inf, np.inf])
    began = time.perf_counter()
    for row in y:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", OptimizeWarning)
            found, _ = curve_fit(joint, t, row, p0=[*START, 1.0, 1.0], bounds=bounds)
        values.append(0.5 * np.sum((joint(t, *found) - row) ** 2))
    return time.perf_counter() - began, np.asarray(values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--problems", type=int, default=10_000)
    parser.add_argument("--points", type=int, default=64)
    parser.add_argument("--sample", type=int, default=100)
    parser.add_argument("--backends", nargs="+", default=["numpy", "torch", "jax"])
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    t = np.linspace(0.0, 2.0, args.points)
    y = signals(args.problems, t)
    sample = y[: args.sample]
    lines = [
        f"{args.problems} problems of {args.points} points, load {os.getloadavg()[0]:.2f}, "
        f"{os.environ.get('OMP_NUM_THREADS', 'all')} threads",
        "",
        "| method | problems per second | errors add | first call, s | converged | objective over the best, at most |",
        "|---|---|---|---|---|---|",
    ]
    rows: list[tuple[str, float, str, np.ndarray]] = []
    for backend, M in product(args.backends, (decays, decay)):
        (first, *later), more, fit = batched(y, t, backend, M)
        shown = f"{min(more) / min(later):.0%} | {first:.1f} | {fit.success.mean():.2%}"
        name = f"`solve_many`, {'lifted, ' * (M is decay)}{backend}"
        rows.append((name, len(y) / min(later), shown, np.asarray(fit.value)[: args.sample]))
    for backend in args.backends:
        seconds, values = looped(sample, t, backend)
        rows.append((f"loop of `solve`, {backend} ({len(sample)} timed)", len(sample) / seconds, "| |", values))
    seconds, values = scipy(sample, t)
    rows.append((f"loop of `curve_fit` ({len(sample)} timed)", len(sample) / seconds, "| |", values))
    best = np.min([values for *_, values in rows], axis=0)
    for name, rate, shown, values in rows:
        lines.append(f"| {name} | {rate:.0f} | {shown} | {np.max(values / best - 1):.1e} |")
    print("\n".join(lines))
    if args.write:
        head, _, _ = PAGE.read_text(encoding="utf-8").partition(MARK)
        PAGE.write_text("\n".join([head + MARK, "", *lines, ""]), encoding="utf-8")


if __name__ == "__main__":
    main()
