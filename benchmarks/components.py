"""How often the number of lines of a spectrum is found, how near their places are, and in what time.

Spectra have 1 to 6 Gaussian lines of unknown widths, from half a width apart, at a ratio of the strongest line to the
noise of 20 to 200. Rivals of `xv.find_components`: nonnegative least squares on a grid of places and widths, whose
neighbouring weights are one line, above a threshold, the best one for these spectra; and the smallest BIC of fits of
0, 1, 2, ... lines, each the best of 16 random starts, in one batch of `xv.solve_many`. Times are of the processor.

    python benchmarks/components.py --spectra 200 --rivals 20      eleven minutes, nine of them for 20 multi-starts
    python benchmarks/components.py --draws 25
    python benchmarks/components.py --ports Agilent_E5071B.s4p

The second is a pair of close tones next to ESPRIT, which is given their number, and lines found in noise alone; the
third scattering parameters of a file in decibels and Hz, by pairs of poles that all ports share.
"""

from __future__ import annotations

import argparse
import math
import time
from typing import Any

import numpy as np
from scipy.optimize import nnls

import xvarpro as xv

X = np.linspace(0.0, 10.0, 300)
OVER = {"centre": xv.sets.Box(0.0, 10.0), "width": xv.sets.Box(0.1, 0.6)}
FWHM = 2.3548
POSITIVE = xv.lower.Nonnegative()
MOST = 8  # lines that rivals go up to
THRESHOLDS = np.geomspace(1e-3, 0.5, 28)


def lines(theta, x):
    """Gaussians of unit area."""
    return xv.models.gaussians(x, theta["centre"], theta["width"])


def spectrum(seed):
    """True places, and data with their noise."""
    rng = np.random.default_rng(seed)
    n, snr = int(rng.integers(1, 7)), math.exp(rng.uniform(math.log(20), math.log(200)))
    while True:
        centre, width = np.sort(rng.uniform(1.0, 9.0, n)), rng.uniform(0.15, 0.45, n)
        apart = np.diff(centre) / (FWHM * np.maximum(width[1:], width[:-1]))
        if (apart >= 0.5).all():
            break
    theta = {"centre": centre, "width": width}
    height = rng.uniform(0.3, 1.0, n)
    height /= height.max()
    clean = lines(theta, X) @ (height * width * math.sqrt(2 * math.pi))
    return theta, clean + rng.normal(size=X.size) / snr, 1 / snr


def cramer_rao(theta, y, sigma):
    """Standard deviations of the places that no unbiased estimate goes below."""
    problem = xv.separable(lines, y, data=X, weights=np.full(X.size, sigma**-2))
    return xv.statistics.linear_theory(problem, theta, OVER, absolute_sigma=True).theta_stderr["centre"]


def by_grid(places, widths):
    """Number and places of lines at each threshold, by nonnegative least squares on a grid."""
    centres, widths = np.linspace(0.0, 10.0, places), np.linspace(0.1, 0.6, widths)
    c, s = (a.ravel() for a in np.meshgrid(centres, widths, indexing="ij"))
    A = lines({"centre": c, "width": s}, X)
    A /= np.linalg.norm(A, axis=0)

    def found(y):
        w = nnls(A, y, maxiter=20 * A.shape[1])[0].reshape(len(centres), -1).sum(axis=1)
        at = np.flatnonzero(w)
        groups = np.split(at, 1 + np.flatnonzero(np.diff(centres[at]) > 0.13))
        sums, places = np.array([(w[g].sum(), w[g] @ centres[g] / w[g].sum()) for g in groups]).T
        return [places[sums >= share * sums.max()] for share in THRESHOLDS]

    return found


def by_starts(y, starts=16, patience=2):
    """Places of the fit with the smallest BIC."""
    rng, N = np.random.default_rng(0), X.size
    problem = xv.many.lifted(xv.separable(lines, y, data=X, W=POSITIVE))
    scores, places = [N * math.log(y @ y / N)], [np.zeros(0)]
    for n in range(1, MOST + 1):
        theta0 = {"centre": rng.uniform(0.0, 10.0, (starts, n)), "width": rng.uniform(0.1, 0.6, (starts, n))}
        ends = xv.solve_many(problem, theta0, OVER, progress=False)
        value = np.where(np.isfinite(ends.value), ends.value, np.inf)
        i = int(np.argmin(value))
        scores.append(N * math.log(2 * value[i] / N) + 3 * n * math.log(N))
        places.append(np.sort(ends.theta["centre"][i]))
        if n - int(np.argmin(scores)) >= patience:
            break
    return places[int(np.argmin(scores))]


def by_search(y):
    """Places by `xv.find_components`."""
    return np.sort(xv.find_components(lines, y, OVER, data=X, W=POSITIVE).components.places[:, 0])


def esprit(z, k, rows=32):
    """Frequencies of k tones, by the rotation that shifts the range of a Hankel matrix."""
    U = np.linalg.svd(np.lib.stride_tricks.sliding_window_view(z, rows).T, full_matrices=False)[0][:, :k]
    return np.sort(np.angle(np.linalg.eigvals(np.linalg.pinv(U[:-1]) @ U[1:])))


def compare_tones(draws):
    """Numbers found, root mean squared errors of frequencies, and lines in noise alone."""

    def tones(omega: Any, t: Any) -> Any:
        return xv.array_namespace(omega).exp(1j * omega * t[:, None])

    t, omega, full, found = np.arange(64.0), np.array([-1.0, 0.5, 0.5 + 1.8 * np.pi / 64]), (-np.pi, np.pi), []
    for seed in range(draws):
        rng = np.random.default_rng(seed)
        z = tones(omega, t) @ np.array([1.0, 1.0, 0.8j])
        z = z + 0.3 / math.sqrt(2) * (rng.normal(size=64) + 1j * rng.normal(size=64))
        three = xv.find_components(tones, z, full, data=t, max_components=3).components.places[:, 0]
        found.append((xv.find_components(tones, z, full, data=t).n, three - omega, esprit(z, 3) - omega))
    n, ours, theirs = zip(*found, strict=True)
    noise = [np.random.default_rng(seed).normal(size=X.size) for seed in range(draws)]
    print("lines found in noise", np.bincount([len(by_search(y)) for y in noise]))
    print("tones", np.bincount(n), *(np.sqrt(np.mean(np.square(x), axis=0)) for x in (ours, theirs)))


def pairs(theta, f):
    """Poles with their conjugates, two columns each, real and imaginary parts as rows."""
    xp = xv.array_namespace(theta)
    s = 1j * f[:, None]
    upper = 1 / (s + theta["damping"] - 1j * theta["frequency"])
    lower = 1 / (s + theta["damping"] + 1j * theta["frequency"])
    both = xp.stack([upper + lower, 1j * (upper - lower)], axis=2)
    return xp.concat([xp.real(both), xp.imag(both)], axis=0)


def compare_ports(path):
    """Print the error of a fit for some numbers of pairs and degrees of a polynomial in the frequency."""
    with open(path) as file:
        numbers = [float(x) for line in file if line[0] not in "!#" for x in line.split()]
    ports = int(path.rpartition(".s")[2].rstrip("p"))
    table = np.reshape(numbers, (-1, 1 + 2 * ports**2))
    f, S = table[:, 0] / 1e9, 10 ** (table[:, 1::2] / 20) * np.exp(1j * np.radians(table[:, 2::2]))
    y, zero = np.concatenate([S.real, S.imag]), np.zeros_like(f)
    powers = [np.concatenate([zero, f**k] if k % 2 else [f**k, zero]) for k in range(5)]  # real in the time domain
    over, beyond = {"damping": (0.003, 5.0), "frequency": (0.0, 9.5)}, np.linspace(0.01, 10.0, 2000)
    for n, columns in ((26, powers[:1]), (26, powers), (27, powers[:2]), (28, powers[:1])):
        began = time.process_time()
        fit = xv.find_components(pairs, y, over, data=f, columns=np.stack(columns, axis=1), max_components=n).fit
        took = time.process_time() - began
        wide = np.split(pairs(fit.theta, beyond).reshape(2 * beyond.size, -1) @ fit.w[: 2 * n], 2)
        model = (wide[0] + fit.w[2 * n] + 1j * wide[1]).reshape(-1, ports, ports)
        largest = np.linalg.norm(model, 2, axis=(1, 2))
        inside = largest[(beyond >= f.min()) & (beyond <= f.max())]
        passive = "" if len(columns) > 1 else f", singular values to {inside.max():.3f}, beyond to {largest.max():.3f}"
        print(f"{n} pairs, {len(columns)} columns: {math.sqrt(2 * fit.value / f.size):.5f}, {took:.0f} s{passive}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--spectra", type=int, default=200)
    parser.add_argument("--rivals", type=int, default=10, help="spectra with multi-starts, the first ones")
    parser.add_argument("--grid", type=int, nargs=2, default=(161, 9), help="numbers of places and of widths")
    parser.add_argument("--draws", type=int, help="of tones and of noise alone")
    parser.add_argument("--ports", help="a Touchstone file")
    args = parser.parse_args()
    if args.ports:
        compare_ports(args.ports)
        return
    if args.draws:
        compare_tones(args.draws)
        return
    grid, by_threshold, right, close, seconds = by_grid(*args.grid), [], {}, {}, {}
    for seed in range(args.spectra):
        theta, y, sigma = spectrum(seed)
        n, bound = len(theta["centre"]), cramer_rao(theta, y, sigma)
        rivals = {"multi-start and BIC": by_starts} if seed < args.rivals else {}
        for name, method in {"find_components": by_search, "grid": grid, **rivals}.items():
            began = time.process_time()
            places = method(y)
            seconds.setdefault(name, []).append(time.process_time() - began)
            if name == "grid":
                by_threshold.append([len(p) == n for p in places])
                continue
            right.setdefault(name, []).append(len(places) == n)
            if len(places) == n:
                close.setdefault(name, []).append(np.mean(np.abs(places - theta["centre"]) <= 3 * bound))
    right["grid"] = np.array(by_threshold)[:, np.argmax(np.mean(by_threshold, axis=0))]
    if first := right["find_components"][: args.rivals]:
        print(f"find_components on the first {len(first)}: {np.mean(first):.1%} right")
    for name, given in right.items():
        within = f", {np.mean(close[name]):.1%} of the places within 3 errors" if name in close else ""
        print(f"{name}, {len(given)} spectra: {np.mean(given):.1%} right{within}, {np.mean(seconds[name]):.3f} s each")


if __name__ == "__main__":
    main()
