"""Amplitudes integrated out: calibration of posteriors, samplers, smoothness, numbers of components, and cost.

python benchmarks/marginal.py calibration [--sets 500] [--models linear]    ranks of true values among draws, of three models
python benchmarks/marginal.py evidence [--sets 20]        how often the right number of decays, and Laplace's error
python benchmarks/marginal.py ringdown [--seconds 20]     emcee and NUTS, with amplitudes integrated out and sampled
python benchmarks/marginal.py samplers                    five samplers against quadrature
python benchmarks/marginal.py spline mcycle.csv           restricted maximum likelihood, against mgcv's figures
python benchmarks/marginal.py cost                        value and gradient, over those of the reduced objective

Times are CPU seconds of the process. `samplers` and `ringdown` need emcee, NumPyro, BlackJAX and Pyro; the file of
`spline` is in the wheel of pygam 0.9.0.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.stats import chisquare

import xvarpro as xv

# -- calibration -----------------------------------------------------------------------------------------------------

DRAWS, THIN = 59, 4  # ranks are 0 to 59, of which 54 are inside an interval of 90 %
GAMMA = xv.InverseGamma(shape=4.0, scale=3 * 0.05**2)


def line(theta: Any, t: Any) -> Any:
    xp = xv.array_namespace(theta)
    return xp.stack([xp.ones_like(t), t ** theta[0]], axis=1)


def decays(theta: Any, t: Any) -> Any:
    xp = xv.array_namespace(theta)
    return xp.exp(-xp.expand_dims(t, axis=1) * theta)


def oscillation(theta: Any, t: Any) -> Any:
    xp = xv.array_namespace(theta)
    envelope = xp.exp(-t * theta[1])
    return xp.stack([envelope * xp.cos(theta[0] * t), envelope * xp.sin(theta[0] * t)], axis=1)


MODELS = {  # columns, bounds of theta, means of w, its ridge, noise
    "linear": (line, [[0.5], [3.0]], [1.0, 2.0], 0.05**2, GAMMA),
    "exponential": (decays, [[0.3, 3.0], [2.0, 12.0]], [1.0, 1.0], 0.05**2 / 0.3**2, 0.05),
    "oscillating": (oscillation, [[5.0, 0.2], [15.0, 2.0]], [1.0, 0.5], 0.2**2 / 0.3**2, 0.2),
}


def ranks(name: str, seed: int) -> dict[str, int]:
    """Of the true theta, w and sigma of one data set from the prior among draws given the data."""
    M, bounds, mean, lam, noise = MODELS[name]
    rng, t, w0, (low, high) = np.random.default_rng(seed), np.linspace(0.04, 2.0, 50), np.array(mean), np.array(bounds)
    theta = rng.uniform(low, high)
    sigma = noise if isinstance(noise, float) else math.sqrt(noise.scale / rng.gamma(noise.shape))
    w = w0 + sigma / math.sqrt(lam) * rng.normal(size=w0.size)
    y = M(theta, t) @ w + sigma * rng.normal(size=t.size)
    m = xv.marginal(xv.separable(M, y, data=t, lam=lam), noise, w0)
    starts = [low + (high - low) * x for x in ((0.2, 0.4, 0.6, 0.8) if M is oscillation else (0.5,))]
    fit = min((xv.solve(m, x, over=xv.sets.Box(low, high)) for x in starts), key=lambda fit: fit.value)
    draws = fit.sample(DRAWS * THIN, seed=seed)
    true = dict(zip(draws.columns(), (*theta, *w, sigma), strict=False))
    return {key: int(np.sum(draws.columns()[key][::THIN] < x)) for key, x in true.items()} | {
        "acceptance": draws.acceptance
    }


def calibration(args: argparse.Namespace) -> None:
    print("| model | quantity | in the interval of 90 % | p of chi2 |\n|---|---|---|---|")
    for name in args.models or MODELS:
        found = [ranks(name, seed) for seed in range(args.sets)]
        accepted = [x.pop("acceptance") for x in found]
        for key in found[0]:
            x = np.array([rank[key] for rank in found])
            inside, p = np.mean((x >= 3) & (x <= 56)), chisquare(np.bincount(x // 3, minlength=20)).pvalue
            print(f"| {name} | {key} | {inside:.3f} | {p:.3f} |", flush=True)
        print(f"{name}: accepted {np.median(accepted):.2f}, at least {min(accepted):.2f}", flush=True)



def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("calibration", "evidence", "ringdown", "samplers", "spline", "cost"))
    parser.add_argument("--sets", type=int, default=500)
    parser.add_argument("--models", nargs="+", choices=tuple(MODELS))
    args = parser.parse_args()
    globals()[args.what](args)


if __name__ == "__main__":
    main()
