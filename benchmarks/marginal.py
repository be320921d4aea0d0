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



# -- samplers --------------------------------------------------------------------------------------------------------


def quadrature(m: Any, low: np.ndarray, high: np.ndarray, nodes: int = 40) -> tuple[float, np.ndarray, np.ndarray]:
    """The logarithm of the integral of the density over a box, mean and standard deviations, by Gauss-Legendre."""
    x, weight = np.polynomial.legendre.leggauss(nodes)
    points = np.stack(np.meshgrid(*(0.5 * np.outer(high - low, 1 + x) + low[:, None])), axis=-1).reshape(-1, low.size)
    weights = np.prod(np.meshgrid(*(0.5 * np.outer(high - low, weight))), axis=0).ravel()
    logs = np.array([float(m.log_density(point)) for point in points])
    p = weights * np.exp(logs - logs.max())
    mean = np.average(points, axis=0, weights=p)
    return logs.max() + math.log(p.sum()), mean, np.average((points - mean) ** 2, axis=0, weights=p) ** 0.5


def by_emcee(log_density: Callable, u: np.ndarray, steps: int) -> np.ndarray:
    """Draws (steps, walkers, size) after a fifth of them."""
    import emcee

    rng, walkers = np.random.default_rng(0), 2 * u.size + 2
    found = emcee.EnsembleSampler(walkers, u.size, log_density)
    found.random_state = np.random.RandomState(0).get_state()
    found.run_mcmc(u + 0.01 * rng.normal(size=(walkers, u.size)), steps + steps // 4)
    return found.get_chain(discard=steps // 4)


def by_numpyro(log_density: Callable, u: Any, steps: int) -> np.ndarray:
    import jax
    from numpyro.infer import MCMC, NUTS

    chain = MCMC(NUTS(potential_fn=lambda u: -log_density(u)), num_warmup=steps // 4, num_samples=steps, progress_bar=False)
    chain.run(jax.random.PRNGKey(0), init_params=u)
    return np.asarray(chain.get_samples())[:, None]


def by_blackjax(log_density: Callable, u: Any, steps: int) -> np.ndarray:
    import blackjax
    import jax

    first, second = jax.random.split(jax.random.PRNGKey(0))
    (state, found), _ = blackjax.window_adaptation(blackjax.nuts, log_density).run(first, u, num_steps=steps // 4)
    step = blackjax.nuts(log_density, **found).step

    def move(state: Any, key: Any) -> tuple[Any, Any]:
        state, _ = step(key, state)
        return state, state.position

    return np.asarray(jax.lax.scan(move, state, jax.random.split(second, steps))[1])[:, None]


def by_pyro(log_density: Callable, u: Any, steps: int) -> np.ndarray:
    import pyro
    from pyro.infer import MCMC, NUTS

    pyro.set_rng_seed(0)
    kernel = NUTS(potential_fn=lambda at: -log_density(at["u"]))
    chain = MCMC(kernel, steps, steps // 4, initial_params={"u": u}, disable_progbar=True)
    chain.run()
    return chain.get_samples()["u"].numpy()[:, None]


def effective(x: np.ndarray) -> np.ndarray:
    """Effective sizes (p,) of draws (steps, walkers, p), by the integrated time of emcee."""
    import emcee

    return x.shape[0] * x.shape[1] / emcee.autocorr.integrated_time(x, quiet=True)


def samplers(args: argparse.Namespace) -> None:
    """Of two rates, the first of which is near a bound."""
    import jax
    import torch

    jax.config.update("jax_enable_x64", True)
    t, low, high = np.linspace(0.0, 2.0, 40), np.array([0.9, 3.0]), np.array([1.5, 9.0])
    y = decays(np.array([1.0, 5.0]), t) @ np.ones(2) + 0.05 * np.random.default_rng(0).normal(size=t.size)
    m, box = xv.marginal(xv.separable(decays, y, data=t, lam=0.05**2), 0.05), xv.sets.Box(low, high)
    _, mean, sd = quadrature(m, low, high)
    print(f"quadrature: means {mean.round(5)}, standard deviations {sd.round(5)}")
    print("| sampler | means | deviations | errors of means | of variances | effective | CPU s |\n" + "|---" * 7 + "|")
    start = xv.solve(m, np.array([1.1, 5.0]), over=box).theta
    start = np.clip(start, low + 0.05, high - 0.05)
    for run, like, steps in (
        ("sample", np.asarray, 20000), (by_emcee, np.asarray, 2500), (by_numpyro, jax.numpy.asarray, 8000),
        (by_blackjax, jax.numpy.asarray, 8000), (by_pyro, torch.asarray, 1500),
    ):  # fmt: skip
        began = time.process_time()
        if run == "sample":
            x = xv.solve(m, start, over=box).sample(steps // 4).theta[:, None]
        else:
            target = m.unconstrained(like(start), box)
            us = run(target.log_density, target.from_theta(like(start)), steps)
            x = low + (high - low) / (1 + np.exp(-us))
        seconds, square = time.process_time() - began, ((x - mean) / sd) ** 2
        ess, errors = effective(x), (square.mean((0, 1)) - 1) / (square.std((0, 1)) / effective(square) ** 0.5)
        name = run if isinstance(run, str) else run.__name__[3:]
        off = (x.mean((0, 1)) - mean) / sd * ess**0.5
        print(f"| {name} | {x.mean((0, 1)).round(4)} | {x.std((0, 1)).round(4)} | {off.round(1)} | {errors.round(1)} "
              f"| {ess.min():.0f} | {seconds:.0f} |", flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("calibration", "evidence", "ringdown", "samplers", "spline", "cost"))
    parser.add_argument("--sets", type=int, default=500)
    parser.add_argument("--models", nargs="+", choices=tuple(MODELS))
    args = parser.parse_args()
    globals()[args.what](args)


if __name__ == "__main__":
    main()
