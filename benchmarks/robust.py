"""A robust bi-exponential fit of 200 points with 5 % outliers: time over a plain fit and over SciPy's joint one.

``python benchmarks/robust.py`` prints ratios of medians for every loss, and how far each ends from the joint optimum;
with ``--outliers`` the rates that each loss finds beside more and more outliers.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from scipy.optimize import least_squares

import xvarpro as xv

T = np.linspace(0.0, 2.0, 200)
START = np.array([0.5, 8.0])
SCALE = 0.05
LOSSES = {"huber": xv.losses.Huber(SCALE), "soft_l1": xv.losses.SoftL1(SCALE), "cauchy": xv.losses.Cauchy(SCALE)}
REPEATS = 15


def M(theta, data):
    xp = xv.array_namespace(theta)
    return xp.exp(-xp.expand_dims(data["t"], axis=1) * theta)


def data(seed=0):
    rng = np.random.default_rng(seed)
    y = 2.0 * np.exp(-T) + np.exp(-5.0 * T) + 0.02 * rng.normal(size=T.size)
    far = rng.choice(T.size, T.size // 20, replace=False)
    y[far] += rng.normal(0.5, 1.0, size=far.size)
    return y


def joint(y, name, x0=None, **tolerances):
    """Theta and w at once, from the w of least squares at the start."""

    def residual(x):
        return np.exp(-np.outer(T, x[:2])) @ x[2:] - y

    if x0 is None:
        x0 = np.append(START, np.linalg.lstsq(np.exp(-np.outer(T, START)), y, rcond=None)[0])
    return least_squares(residual, x0, loss=name, f_scale=SCALE, **tolerances)


def medians(*functions):
    """Median seconds of functions that take turns."""
    seconds = [[] for _ in functions]
    for _ in range(REPEATS):
        for f, found in zip(functions, seconds, strict=True):
            began = time.perf_counter()
            f()
            found.append(time.perf_counter() - began)
    return np.median(seconds, axis=1)


def by_outliers():
    losses = None, xv.losses.Huber(), xv.losses.Cauchy(), xv.losses.Cauchy(0.05)
    print("| outliers | " + " | ".join("plain" if loss is None else repr(loss) for loss in losses) + " |")
    for share in (0.0, 0.05, 0.15, 0.25, 0.35):
        rng = np.random.default_rng(0)
        y = 2.0 * np.exp(-T) + np.exp(-5.0 * T) + 0.02 * rng.normal(size=T.size)
        y[rng.choice(T.size, int(share * T.size), replace=False)] += 1.0
        problem, over = xv.separable(M, y, data={"t": T}), xv.sets.Box(0.0, 20.0)
        fits = [xv.solve_robust(problem, START, over, loss=x) if x else xv.solve(problem, START, over) for x in losses]
        print(f"| {share:.0%} | " + " | ".join(", ".join(f"{x:.2f}" for x in fit.theta) for fit in fits) + " |")


def times():
    y = data()
    problem = xv.separable(M, y, data={"t": T})
    print(f"{'loss':<8} {'ms':>6} {'over solve':>10} {'over SciPy':>10}  error of theta, w   SciPy's   reweightings")
    for name, loss in LOSSES.items():
        fit, rival = xv.solve_robust(problem, START, loss=loss), joint(y, name)
        best = joint(y, name, rival.x, xtol=1e-15, ftol=1e-15, gtol=1e-15).x
        off = [np.abs(x / best - 1).max() for x in (np.append(fit.theta, fit.w), rival.x)]
        own, plain, scipy = medians(
            lambda loss=loss: xv.solve_robust(problem, START, loss=loss),
            lambda: xv.solve(problem, START),
            lambda name=name: joint(y, name),
        )
        ratios = f"{own / plain:10.1f} {own / scipy:10.1f}"
        print(f"{name:<8} {1e3 * own:6.1f} {ratios}  {off[0]:17.1e} {off[1]:9.1e} {fit.n_iter:14d}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--outliers", action="store_true")
    by_outliers() if parser.parse_args().outliers else times()
