"""What `algorithm=None` chooses from, on problems of every kind: evaluations and seconds to within 0.1 % of the best.

python benchmarks/default.py [--backend jax] [--iterations 3000] [--seconds 20]
"""

from __future__ import annotations

import argparse
import warnings
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

import xvarpro as xv

ALGORITHMS = {
    "spectral": xv.algorithms.SpectralProjectedGradient(),
    "accelerated": xv.algorithms.AcceleratedProjectedGradient(),
    "quasi-Newton, spectral": xv.algorithms.ProjectedQuasiNewton(),
    "quasi-Newton, accelerated": xv.algorithms.ProjectedQuasiNewton(base=xv.algorithms.AcceleratedProjectedGradient()),
    "quasi-Newton, in the face": xv.algorithms.InFaceQuasiNewton(),
    "Frank-Wolfe, estimated L": xv.algorithms.FrankWolfe(),
    "Frank-Wolfe, separate": xv.algorithms.FrankWolfe(blocks=xv.algorithms.Separate()),
    "Frank-Wolfe, warm Armijo": xv.algorithms.FrankWolfe(xv.steps.Armijo(warm=True)),
    "CR-VarPro": xv.algorithms.cr_varpro(),
}


def decays(theta: Any, t: Any) -> Any:
    xp = xv.array_namespace(theta)
    return xp.exp(-xp.expand_dims(t, axis=1) * theta)


def mixture(theta: Any, K: Any) -> Any:
    return xv.array_namespace(theta).tensordot(K, theta, axes=((2,), (0,)))


def network(theta: Any, X: Any) -> Any:
    xp = xv.array_namespace(theta)
    return xp.tanh(X @ theta["A"] + theta["b"]) * theta["s"]


def identity(theta: Any, _: Any) -> Any:
    return theta


def problems() -> dict[str, tuple[xv.Problem, Any, Any]]:
    rng = np.random.default_rng(0)
    t = np.linspace(0.0, 1.15, 24)
    lanczos = np.round(0.0951 * np.exp(-t) + 0.8607 * np.exp(-3 * t) + 1.5576 * np.exp(-5 * t), 4)
    t200 = np.linspace(0.0, 2.0, 200)
    clean = np.exp(-np.outer(t200, [0.7, 2.0, 7.0]))
    noisy = clean @ np.array([1.0, -2.0, 3.0]) + 1e-2 * rng.normal(size=200)
    many = clean @ rng.normal(size=(3, 50)) + 1e-2 * rng.normal(size=(200, 50))
    box = xv.sets.Box(0.0, 10.0)
    K = rng.normal(size=(60, 5, 20))
    mixed = (K @ rng.dirichlet(np.full(20, 0.2))) @ rng.normal(size=5) + 0.05 * rng.normal(size=60)
    X = rng.normal(size=(200, 8))
    y = np.sin(X[:, 0]) + 0.3 * X[:, 1] * X[:, 2]
    net0 = {"A": 0.3 * rng.normal(size=(8, 10)), "b": np.zeros(10), "s": np.full(10, 0.1)}
    digits = load_digits().data.T / 16.0
    out: dict[str, tuple[xv.Problem, Any, Any]] = {
        "three decays, 24 points (Lanczos3)": (xv.separable(decays, lanczos, data=t), np.array([0.7, 2.5, 6.0]), box),
        "three decays, 200 points": (xv.separable(decays, noisy, data=t200, lam=1e-6), np.array([0.5, 3.0, 8.0]), box),
        "three decays, 50 curves": (xv.separable(decays, many, data=t200), np.array([0.5, 3.0, 8.0]), box),
        "mixture of 20, simplex": (
            xv.separable(mixture, mixed, data=K, lam=1e-3), np.full(20, 0.05), xv.sets.Simplex(1.0)
        ),
        "network, gates in a simplex": (
            xv.separable(network, y, data=X, lam=1e-3), net0, {"s": xv.sets.CappedSimplex(1.0)}
        ),
        "network, free": (xv.separable(network, y, data=X, lam=1e-3), net0, None),
    }  # fmt: skip
    for rho, lam in ((1.0, 1e-5), (1000.0, 10.0)):
        D = rng.normal(size=(64, 32))
        D *= rho / np.abs(D).sum()
        problem = xv.separable(identity, digits, lam=lam)
        out[f"dictionary of digits, rho {rho:g}"] = (problem, D, xv.sets.L1Ball(rho))
    return out


def main() -> None:
    warnings.simplefilter("ignore", xv.DeadUnitsWarning)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="jax")
    parser.add_argument("--iterations", type=int, default=3000)
    parser.add_argument("--seconds", type=float, default=20.0)
    args = parser.parse_args()
    print("| problem | entries | algorithm | objective | values to 0.1 % of the best | seconds to it | default |")
    print("|---|---|---|---|---|---|---|")
    for name, (problem, theta0, over) in problems().items():
        size = sum(x.size for x in (theta0.values() if isinstance(theta0, dict) else [theta0]))
        sets = [] if over is None else list(over.values()) if isinstance(over, dict) else [over]
        free = over is None or (isinstance(over, dict) and len(over) < len(theta0))
        default = xv.algorithms.choose(sets, size, free)
        fits = {
            label: xv.solve(
                problem, theta0, over=over, algorithm=algorithm, tol=1e-10, max_iter=args.iterations,
                time_limit=args.seconds, backend=args.backend, progress=False,
            )
            for label, algorithm in ALGORITHMS.items()
        }  # fmt: skip
        target = 1.001 * min(fit.trace.value.min() for fit in fits.values())
        for label, fit in fits.items():
            hit = np.nonzero(fit.trace.value <= target)[0]
            values, seconds = ("-", "-") if not hit.size else (
                f"{fit.trace.values[hit[0]]:.0f}", f"{fit.trace.seconds[hit[0]]:.3f}"
            )  # fmt: skip
            chosen = "chosen" if ALGORITHMS[label] == default else ""
            print(f"| {name} | {size} | {label} | {fit.trace.value.min():.6g} | {values} | {seconds} | {chosen} |")


if __name__ == "__main__":
    main()
