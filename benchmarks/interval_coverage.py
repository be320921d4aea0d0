"""How often 95 % intervals of each method cover the truth, for three models, one of them strongly nonlinear.

python benchmarks/interval_coverage.py [--sets 2000] [--samples 200]

Every data set of a model is solved in one batch; intervals are then those of `Result.interval`, data set by data set.
Bootstraps are made for a tenth of the data sets, 200 of 2,000. A bound that is active at the truth is a row of its own.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

import xvarpro as xv

T = np.linspace(0.0, 2.0, 60)


class Case(NamedTuple):
    """A model with the truth and the noise."""

    design: Callable[..., object]
    theta: np.ndarray
    w: np.ndarray
    sigma: float
    over: object


def _exponentials(theta, data):
    return xv.models.exponentials(data, theta)


def _peaks(theta, data):
    return xv.models.columns(
        xv.models.gaussians(data, theta[:1], theta[1:]), xv.models.polynomials(data, 1, (0.0, 2.0))
    )


def _saturation(theta, data):
    xp = xv.array_namespace(theta)
    return xp.expand_dims(data / (theta[0] + data), axis=1)


CASES = {
    "two decays": Case(_exponentials, np.array([1.0, 6.0]), np.array([2.0, 1.0]), 0.02, xv.sets.Box(0.0, 100.0)),
    "a peak on a line": Case(_peaks, np.array([0.9, 0.2]), np.array([1.0, 0.5, 0.2]), 0.1, xv.sets.Box(0.01, 2.0)),
    "saturation, strongly nonlinear": Case(_saturation, np.array([1.5]), np.array([1.0]), 0.1, xv.sets.Box(1e-3, 1e3)),
    "two decays, one at its bound": Case(
        _exponentials, np.array([1.0, 6.0]), np.array([2.0, 1.0]), 0.02, xv.sets.Box(0.0, np.array([100.0, 6.0]))
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sets", type=int, default=2000)
    parser.add_argument("--samples", type=int, default=200)
    options = parser.parse_args()
    print("| model | parameter | linear theory | profile | bootstrap |\n|---|---|---|---|---|")
    for name, case in CASES.items():
        for row in covered(name, case, options.sets, options.samples):
            print(row, flush=True)


def covered(name: str, case: Case, sets: int, samples: int) -> list[str]:
    """Rows of the table."""
    rng = np.random.default_rng(7)
    clean = np.asarray(case.design(case.theta, T)) @ case.w
    methods = (xv.statistics.Linear(), xv.statistics.Profile(), xv.statistics.Bootstrap(samples))
    p, truth = case.theta.size, np.concatenate([case.theta, case.w])
    hits: list[list[np.ndarray]] = [[], [], []]
    for i in range(sets):
        y = clean + case.sigma * rng.normal(size=T.size)
        fit = xv.solve(xv.separable(case.design, y, data=T), case.theta, over=case.over, progress=False)
        for found, by in zip(hits, methods, strict=True):
            if isinstance(by, xv.statistics.Bootstrap) and i >= sets // 10:
                continue
            ends = fit.interval(0.95, by)
            found.append((ends.lower <= truth[: ends.value.size]) & (truth[: ends.value.size] <= ends.upper))
    shares = [np.mean(x, axis=0) for x in hits]
    rows = []
    for j in range(truth.size):
        cells = [f"{share[j]:.1%}" if j < share.size else "" for share in shares]
        label = f"theta[{j}]" if j < p else f"w[{j - p}]"
        rows.append(f"| {name} | {label} | {' | '.join(cells)} |")
    return rows


if __name__ == "__main__":
    main()
