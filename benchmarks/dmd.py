"""Residuals of `xvarpro.sklearn.DMD` next to PyDMD's BOPDMD without bagging, on examples of PyDMD's tutorials.

For each example, rank and constraint: relative residuals of both, how far both are from the data without noise, the
largest real part, and seconds of the processor. Both minimise over all of the data (`use_proj=False`), or with
``--projected`` over as many principal components as eigenvalues, which is BOPDMD's default.

    pip install pydmd
    python benchmarks/dmd.py
    python benchmarks/dmd.py --projected

"standing" is tutorial 1, two standing waves under noise with two delays; "travelling" the complex signals of tutorial
10 under noise, and "uneven" 60 of their 129 times; "pulse" tutorial 14; "wake" is made like the flow past a cylinder of
the manual of BOPDMD, a mean and five harmonics in 400 points: the file of that flow is not read.
"""

from __future__ import annotations

import argparse
import time
import warnings

import numpy as np
from pydmd import BOPDMD

from xvarpro.sklearn import DMD

OURS = {"none": {}, "stable": {"real": (-np.inf, 0.0)}, "imag": {"real": (0.0, 0.0)}}


def examples(rng):
    """Name, times, snapshots without noise and with it, rank, and whether eigenvalues come in pairs."""
    x, t = np.linspace(-5, 5, 65), np.linspace(0, 4 * np.pi, 129)
    first, second = 1 / np.cosh(x + 3), 2 / np.cosh(x) * np.tanh(x)
    clean = np.outer(np.cos(2.3 * t), first) + np.outer(np.sin(2.8 * t), second)
    noisy = clean + 0.2 * rng.normal(size=clean.shape)
    yield "standing", t[:-1], *(np.hstack([X[:-1], X[1:]]) for X in (clean, noisy)), 4, True
    clean = np.outer(np.exp(2.3j * t), first) + np.outer(np.exp(2.8j * t), second)
    noisy = clean + 0.2 * (rng.normal(size=clean.shape) + 1j * rng.normal(size=clean.shape))
    yield "travelling", t, clean, noisy, 2, False
    kept = np.sort(rng.choice(t.size, 60, replace=False))
    yield "uneven", t[kept], clean[kept], noisy[kept], 2, False
    x, t = np.linspace(-3, 3, 80), np.arange(0, 6.4, 0.4)
    clean = np.outer(np.exp((-0.115 - 1j) * np.pi / 2 * t), np.outer(2 / np.cosh(x), 1 / np.cosh(x)))
    yield "pulse", t, clean, clean + rng.normal(0, 0.4, clean.shape), 1, False
    x, t = np.linspace(0, 20, 400), np.arange(151.0)
    clean = np.tile(np.tanh(x), (t.size, 1))
    for j in range(1, 6):
        clean = clean + 2.0**-j * np.sin(j * (1.1 * x - 2 * np.pi * t[:, None] / 30)) * np.exp(-((x - 8 - j) ** 2) / 40)
    yield "wake", t, clean, clean + 0.4 * rng.normal(size=clean.shape), 11, True


def rival(X, t, r, constraints, projected):
    model = BOPDMD(svd_rank=r, num_trials=0, use_proj=projected, eig_constraints=constraints or None)
    model.fit(X.T, t)
    return model.eigs, model.forecast(t).T


def ours(X, t, r, pairs, projected, **bounds):
    model = DMD(r, conjugate=pairs, rank=r if projected else None, **bounds).fit(X, t=t)
    return model.eigenvalues_, model.forecast(t)


def timed(fun, *args, **given):
    began = time.process_time()
    found = fun(*args, **given)
    return *found, time.process_time() - began


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--projected", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    for name, t, clean, noisy, r, pairs in examples(np.random.default_rng(given.seed)):
        for constraint, bounds in OURS.items():
            asked = ({constraint} - {"none"}) | ({"conjugate_pairs"} if pairs else set())
            both = (
                ("BOPDMD", timed(rival, noisy, t, r, asked, given.projected)),
                ("DMD", timed(ours, noisy, t, r, pairs, given.projected, **bounds)),
            )
            for who, (values, found, seconds) in both:
                off, far = (np.linalg.norm(found - X) / np.linalg.norm(X) for X in (noisy, clean))
                print(
                    f"{name:>10} {constraint:>6} {who:>6}: residual {off:.8f}, off the truth {far:.5f}, "
                    f"largest real part {values.real.max():9.2e}, {seconds:.3f} s"
                )


if __name__ == "__main__":
    main()
