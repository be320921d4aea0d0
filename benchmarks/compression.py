"""What compressing k right-hand sides buys: time per iteration with and without, value and gradient compared.

python benchmarks/compression.py [--columns 3000 60000] [--backend numpy]
"""

from __future__ import annotations

import argparse
import time
import warnings
from typing import Any

import numpy as np

import xvarpro as xv


def identity(D: Any, _: Any) -> Any:
    return D


def main() -> None:
    warnings.simplefilter("ignore", xv.DeadUnitsWarning)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--columns", nargs="+", type=int, default=[3000, 60000])
    parser.add_argument("--backend", default="numpy")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    print("| X | plain, ms/it | compressed, ms/it | ratio | compressing, s | value differs by | gradient differs by |")
    print("|---|---|---|---|---|---|---|")
    for k in args.columns:
        rng = np.random.default_rng(0)
        X = np.abs(rng.normal(size=(784, 16))) @ np.abs(rng.normal(size=(16, k))) / 16
        X += 0.1 * rng.normal(size=X.shape)
        D = rng.normal(size=(784, 128))
        D /= np.abs(D).sum()
        plain = xv.separable(identity, X, lam=1e-5, compress=False)
        small = xv.separable(identity, X, lam=1e-5)
        times: dict[str, list[float]] = {"plain": [], "small": []}
        for _ in range(args.repeats):
            for name, problem in (("plain", plain), ("small", small)):
                fit = xv.solve(
                    problem, D, over=xv.sets.L1Ball(1.0), algorithm=xv.algorithms.cr_varpro(), tol=0.0, max_iter=3,
                    backend=args.backend, progress=False,
                )  # fmt: skip
                times[name].append(fit.seconds / fit.n_iter)
        began = time.perf_counter()
        xv.compress(X)
        compressing = time.perf_counter() - began
        (f, g), (f_small, g_small) = (xv.value_and_gradient(p, D, backend=args.backend) for p in (plain, small))
        a, b = (float(np.median(times[name])) for name in ("plain", "small"))
        df, dg = abs(f - f_small) / f, np.abs(g - g_small).max() / np.abs(g).max()
        print(
            f"| 784 x {k} | {1e3 * a:.1f} | {1e3 * b:.1f} | {a / b:.1f} | {compressing:.2f} | {df:.1e} | {dg:.1e} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
