"""What `algorithm=None` chooses from for few parameters on two levels.

Of every method: how many problems end above the best method, how many without success, and gradients per problem.

python benchmarks/two_levels.py [--problems 20]
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

import xvarpro as xv

ALGORITHMS = {
    "Levenberg-Marquardt": xv.algorithms.LevenbergMarquardt(),
    "quasi-Newton, spectral": xv.algorithms.ProjectedQuasiNewton(),
    "quasi-Newton, accelerated": xv.algorithms.ProjectedQuasiNewton(base=xv.algorithms.AcceleratedProjectedGradient()),
}
Stated = tuple[xv.Problem, Any, Any]


def rows(draw: np.random.Generator, p: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Features and targets of the rows that fit and of those that choose."""
    X = {"fit": draw.normal(size=(40, p)), "choice": draw.normal(size=(30, p))}
    w = draw.normal(size=p) * (draw.random(p) < 0.6)
    return X, {name: x @ w + 0.3 * draw.normal(size=len(x)) for name, x in X.items()}


def gates(draw: np.random.Generator, over: xv.sets.Set) -> Stated:
    X, y = rows(draw, 6)
    lower = xv.Level(lambda s, X: X["fit"] * s, y["fit"], lam=1.0)
    upper = xv.Level(lambda s, X: X["choice"] * s, y["choice"])
    return xv.bilevel(lower=lower, upper=upper, data=X), np.full(6, 1 / 6), over


def gates_and_ridge(draw: np.random.Generator) -> Stated:
    X, y = rows(draw, 6)

    def lam(theta: Any, X: Any) -> Any:
        return xv.array_namespace(theta["r"]).exp(theta["r"][0])

    lower = xv.Level(lambda theta, X: X["fit"] * theta["s"], y["fit"], lam=lam)
    upper = xv.Level(lambda theta, X: X["choice"] * theta["s"], y["choice"])
    start = {"s": 1.8 * draw.dirichlet(np.ones(6)), "r": np.zeros(1)}
    over = {"s": xv.sets.CappedSimplex(2.0), "r": xv.sets.Box(-8.0, 5.0)}
    return xv.bilevel(lower=lower, upper=upper, data=X), start, over


def rates(draw: np.random.Generator) -> Stated:
    def decays(theta: Any, t: Any) -> Any:
        xp = xv.array_namespace(theta)
        return xp.exp(-xp.expand_dims(t, axis=1) * theta)

    true, t = np.array([0.5, 4.0]), np.sort(draw.uniform(0.0, 3.0, 80))
    y = decays(true, t) @ draw.uniform(1.0, 3.0, 2) + 0.1 * draw.normal(size=80)
    problem = xv.bilevel(
        lower=xv.Level(lambda theta, t: decays(theta, t["fit"]), y[::2], lam=1e-3),
        upper=xv.Level(lambda theta, t: decays(theta, t["choice"]), y[1::2]),
        data={"fit": t[::2], "choice": t[1::2]},
    )
    return problem, true * draw.uniform(0.4, 2.5, 2), xv.sets.Box(0.0, 50.0)


KINDS: dict[str, Callable[[np.random.Generator], Stated]] = {
    "gates, `CappedSimplex(3)`": lambda draw: gates(draw, xv.sets.CappedSimplex(3.0)),
    "gates, `Box(0, 2)`": lambda draw: gates(draw, xv.sets.Box(0.0, 2.0)),
    "gates and a ridge": gates_and_ridge,
    "two rates": rates,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", type=int, default=20)
    args = parser.parse_args()
    warnings.simplefilter("ignore", xv.DeadUnitsWarning)
    print("| " + " | ".join(["problem", *ALGORITHMS]) + " |")
    print("|---" * (1 + len(ALGORITHMS)) + "|")
    for kind, make in KINDS.items():
        fits = {name: [] for name in ALGORITHMS}
        for seed in range(args.problems):
            problem, start, over = make(np.random.default_rng(seed))
            for name, algorithm in ALGORITHMS.items():
                fits[name].append(xv.solve(problem, start, over=over, algorithm=algorithm, progress=False))
        best = np.min([[fit.value for fit in found] for found in fits.values()], axis=0)
        cells = []
        for found in fits.values():
            above = sum(fit.value > (1 + 1e-4) * least for fit, least in zip(found, best, strict=True))
            failed = sum(not fit.status.success for fit in found)
            cells.append(f"{above}, {failed}; {np.mean([fit.counts.gradients for fit in found]):.0f}")
        print("| " + " | ".join([kind, *cells]) + " |", flush=True)


if __name__ == "__main__":
    main()
