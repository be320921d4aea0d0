"""Amplitudes integrated out: numbers of components, samplers, smoothness, and cost.

python benchmarks/marginal.py evidence [--sets 20]       how often the right number of decays, and by BIC: a minute
python benchmarks/marginal.py grid                       that of docs/marginal.md by quadrature: a quarter of one
python benchmarks/marginal.py ringdown                   effective samples, amplitudes integrated out or not: half one
python benchmarks/marginal.py spline mcycle.csv          restricted maximum likelihood, and mgcv's figures
python benchmarks/marginal.py cost                       value and gradient, over those of the reduced objective

Times are CPU seconds. `ringdown` needs emcee and NumPyro; the wheel of pygam 0.9.0 has the file of `spline`.
"""

from __future__ import annotations

import argparse
import math
import time
from functools import partial
from typing import Any

import numpy as np

import xvarpro as xv


def decays(theta: Any, t: Any) -> Any:
    xp = xv.array_namespace(theta)
    return xp.exp(-xp.expand_dims(t, axis=1) * theta)


def oscillations(theta: Any, t: Any) -> Any:
    """Frequencies, then rates; the cosines, then the sines."""
    xp, t, n = xv.array_namespace(theta), t[:, None], theta.shape[0] // 2
    envelope = xp.exp(-t * theta[n:])
    return xp.concat([envelope * xp.cos(theta[:n] * t), envelope * xp.sin(theta[:n] * t)], axis=1)


def exp(x: Any) -> Any:
    return xv.array_namespace(x).exp(x)


def evidence(args: argparse.Namespace) -> None:
    """One, two and three decays in turn, of a signal to noise of 50, rates at least a factor of 6 apart."""
    t, sets, right, by_bic = np.linspace(0.0, 4.0, 200), args.sets, 0, 0
    for seed in range(sets):
        rng, n = np.random.default_rng(seed), 1 + seed % 3
        rates = rng.uniform(0.3, 0.6) * np.cumprod([1.0, *rng.uniform(6.0, 8.0, n - 1)])
        clean = decays(rates, t) @ rng.uniform(0.7, 1.4, n)
        y = clean + clean.max() / 50 * rng.normal(size=t.size)
        ridged = xv.separable(lambda x, t: decays(exp(x[:-1]), t), y, data=t, lam=lambda x, t: exp(x[-1]))
        m, models, plain, bic = xv.marginal(ridged), {}, xv.separable(decays, y, data=t), {}
        for k in (1, 2, 3, 4):
            over = xv.sets.Box(np.array([math.log(0.02)] * k + [-20.0]), np.array([math.log(100.0)] * k + [5.0]))
            starts = [np.append(-0.7 + s * np.arange(k), -6.0) for s in (0.7, 1.2, 1.6)]
            best = min((xv.solve(m, x, over=over) for x in starts), key=lambda fit: fit.value)
            models[str(k)] = best.laplace(components=k)
            values = [float(xv.solve(plain, np.exp(x[:-1]), over=xv.sets.Box(0.02, 100.0)).value) for x in starts]
            bic[k] = t.size * math.log(2 * min(values) / t.size) + 2 * k * math.log(t.size)
        right += xv.compare_models(models).best == str(n)
        by_bic += min(bic, key=bic.__getitem__) == n
    print(f"right in {right} of {sets}, BIC in {by_bic}")


def grid(_: argparse.Namespace) -> None:
    """The evidence of the models of docs/marginal.md: its likelihood at the middles of cells of log rates."""
    t = np.linspace(0.0, 2.0, 60)
    y = decays(np.array([1.0, 5.0]), t) @ np.ones(2) + 0.01 * np.random.default_rng(0).normal(size=t.size)
    m = xv.marginal(xv.separable(decays, y, data=t, lam=1e-4))
    for k, N in ((1, 2000), (2, 700), (3, 170), (3, 240)):
        ends = np.geomspace(0.1, 20.0, N + 1)
        at, width, total = np.sqrt(ends[1:] * ends[:-1]), np.log(np.diff(ends) / 19.9), []
        for first in range(N):  # rates in order: k! over the factorials of those that are equal
            rest = first + np.indices((N - first,) * (k - 1)).reshape(k - 1, (N - first) ** (k - 1)).T
            index = np.insert(rest[(np.diff(rest, axis=1) >= 0).all(1)], 0, first, axis=1)
            same = np.sum(np.diff(index, axis=1) == 0, axis=1)
            orders = math.factorial(k) / np.array([1, 2, 6])[same]
            total.append(np.logaddexp.reduce(_closed(at[index], t, y) + width[index].sum(1) + np.log(orders)))
        shift = float(m.log_density(at[:k])) - _closed(at[None, :k], t, y)[0]
        print(f"{k} decays, {N} cells each: log evidence {np.logaddexp.reduce(total) + shift:.3f}", flush=True)


def _closed(rates: np.ndarray, t: np.ndarray, y: np.ndarray, lam: float = 1e-4) -> np.ndarray:
    """The log density of rates (n, k) but for a constant, from normal equations."""
    k, X = rates.shape[1], np.exp(-t[:, None] * rates[:, None])
    G, b = np.swapaxes(X, 1, 2) @ X + lam * np.eye(k), np.einsum("nmk,m->nk", X, y)
    S = y @ y - np.sum(b * np.linalg.solve(G, b[..., None])[..., 0], axis=1)
    return 0.5 * (k * math.log(lam) - np.linalg.slogdet(G)[1] - t.size * np.log(S))


def ringdown(_: argparse.Namespace) -> None:
    """Two detectors of 400 points: two frequencies and rates, eight amplitudes, noise of a known covariance."""
    import jax
    import jax.numpy as jnp
    from emcee.autocorr import integrated_time
    from numpyro.infer import MCMC, NUTS

    jax.config.update("jax_enable_x64", True)
    rng, t, lam, ends = np.random.default_rng(0), np.linspace(0.0, 1.0, 400), 0.1, ([20, 40, 0.5, 1], [30, 60, 5, 12.0])
    first, (low, high) = 0.5 * 0.8 ** np.arange(400.0) + 0.1 * (np.arange(400) == 0), np.array(ends)
    L = np.linalg.cholesky(first[np.abs(np.subtract.outer(range(400), range(400)))])
    y = oscillations(np.array([25, 48, 1.5, 4]), t) @ rng.normal(size=(4, 2)) * 3 + L @ rng.normal(size=(400, 2))
    m, box = xv.marginal(xv.separable(oscillations, y, data=t, lam=lam), first), xv.sets.Box(low, high)
    inverse, b, times = jnp.asarray(np.linalg.inv(L)), jnp.asarray(np.linalg.solve(L, y)), jnp.asarray(t)

    def by_hand(u: Any) -> Any:
        """The log density of coordinates of theta, and of w."""
        rise, w = 1 / (1 + jnp.exp(-u[:4])), jnp.reshape(u[4:], (4, 2))
        r = inverse @ (oscillations(low + (high - low) * rise, times) @ w) - b
        return jnp.sum(jnp.log(rise * (1 - rise))) - 0.5 * jnp.sum(r * r) - 0.5 * lam * jnp.sum(w * w)

    print("| sampler, w | means of theta | deviations | effective, least | CPU s | 1,000 in, s |\n" + "|---" * 6 + "|")
    began = time.process_time()
    fit = xv.solve(m, np.array([25.5, 49.0, 2.0, 5.0]), over=box)
    found = [("fit.sample, integrated out", fit.sample(1600).theta[:, None], time.process_time() - began)]
    target = m.unconstrained(jnp.asarray(fit.theta), box)
    u = target.from_theta(jnp.asarray(fit.theta))
    both = jnp.concatenate([u, jnp.asarray(fit.w.ravel())])
    for name, fun, at in (("integrated out", target.log_density, u), ("sampled", by_hand, both)):
        began = time.process_time()
        kernel = NUTS(potential_fn=lambda u, fun=fun: -fun(u))
        chain = MCMC(kernel, num_warmup=300, num_samples=1000, progress_bar=False)
        chain.run(jax.random.PRNGKey(0), init_params=at)
        theta = low + (high - low) / (1 + np.exp(-np.asarray(chain.get_samples())[:, None, :4]))
        found.append((f"NUTS, {name}", theta, time.process_time() - began))
    for name, theta, seconds in found:
        ess = len(theta) / integrated_time(theta, quiet=True).max()
        cells = theta.mean((0, 1)).round(3), theta.std((0, 1)).round(3), round(ess), f"{seconds:.1f}"
        print("|", " | ".join(map(str, (name, *cells, f"{1000 * seconds / ess:.1f}"))), "|")


def thin_plate(x: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Wood's basis of rank k (J. R. Statist. Soc. B 65, 2003), as mgcv scales it, and a root of its penalty."""
    knots, at = np.unique(x, return_inverse=True)
    T, (d, U) = np.stack([knots**0, knots - x.mean()], axis=1), np.linalg.eigh(np.abs(knots[:, None] - knots) ** 3 / 12)
    d, U = d[kept := np.argsort(-np.abs(d))[:k]], U[:, kept]
    Z = np.linalg.qr(U.T @ T, mode="complete")[0][:, 2:]
    X = np.concatenate([U * d @ Z, T], axis=1)[at]
    Omega = np.concatenate([np.linalg.cholesky(Z.T @ (d[:, None] * Z)).T, np.zeros((k - 2, 2))], axis=1)
    size = np.mean(X**2, axis=0) ** 0.5
    return X / size, Omega / size


def spline(args: argparse.Namespace) -> None:
    """``gam(accel ~ s(times), data = MASS::mcycle, method = "REML")``; G. Simpson, Fitting GAMs with brms, has it."""
    x, y = np.genfromtxt(args.file, delimiter=",", skip_header=1, usecols=(1, 2), unpack=True)
    X, Omega = thin_plate(x, 10)
    problem = partial(xv.separable, lambda theta, X: X + 0 * theta[0], y, data=X, Omega=Omega)
    m = xv.marginal(problem(lam=lambda theta, X: exp(theta[0])))
    fit = xv.solve(m, np.zeros(1), over=xv.sets.Box(-40.0, 40.0), tol=1e-10)
    lam = math.exp(fit.theta[0])
    edf = np.trace(np.linalg.solve(X.T @ X + lam * Omega.T @ Omega, X.T @ X))
    scale = (np.sum((y - X @ fit.w) ** 2) + lam * np.sum((Omega @ fit.w) ** 2)) / (y.size - 2)
    reml = -float(xv.marginal(problem(lam=lam), math.sqrt(scale)).log_density(fit.theta))
    print(f"edf of s(times) {edf - 1:.3f} (mgcv 8.625), -REML {reml:.2f} (616.14), scale {scale:.2f} (506.35)")


def cost(_: argparse.Namespace) -> None:
    from xvarpro.driver.evaluate import evaluated
    from xvarpro.driver.prepare import prepare

    print("| rows | columns | right-hand sides | weights of each | reduced, ms | ratio | bar |\n" + "|---" * 7 + "|")
    shapes = [(60, 2, 1, 0), (1000, 4, 1, 0), (2000, 16, 4, 0), (2000, 64, 1, 0), (2000, 32, 64, 0)]
    for m, n, k, each in (*shapes, (200, 2, 40, 1), (1000, 8, 8, 1), (1000, 16, 8, 1), (1000, 32, 8, 1)):
        rng, t, theta = np.random.default_rng(0), np.linspace(0.0, 2.0, m), np.linspace(0.5, 8.0, n)
        y, weights = rng.normal(size=(m, k)), rng.uniform(0.5, 2.0, (m, k)) if each else None
        plain = xv.separable(decays, y, data=t, lam=1e-2, weights=weights, compress=False)
        pair, times = [prepare(p, theta) for p in (plain, xv.marginal(plain, 0.1))], []
        for _ in range(60):
            at = [time.process_time()]
            for one in pair:
                one.call(evaluated, one.theta)
                at.append(time.process_time())
            times.append(np.diff(at))
        first, second = np.median(times[2:], axis=0)
        bar = 1.3 if n <= 16 or k >= n else 2.5
        print(f"| {m} | {n} | {k} | {each} | {1e3 * first:.2f} | {second / first:.2f} | {bar} |", flush=True)


if __name__ == "__main__":
    RUNS = {run.__name__: run for run in (evidence, grid, ringdown, spline, cost)}
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=RUNS)
    parser.add_argument("file", nargs="?")
    parser.add_argument("--sets", type=int, default=20)
    args = parser.parse_args()
    RUNS[args.what](args)
