"""Nonnegative least squares for many right-hand sides: pivoting on all at once against a loop over scipy's `nnls`.

python benchmarks/nnls.py [--rows 100] [--unknowns 5] [--columns 10000] [--backends numpy torch jax]
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.optimize import nnls

import xvarpro as xv
from xvarpro.lower.interface import System
from xvarpro.operators import Dense


def scipy_loop(A: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.stack([nnls(A, column)[0] for column in y.T], axis=1)


def pivoting(backend: Any) -> Callable[[Any, Any], Any]:
    """Factorisation and weights, as one evaluation of a reduced objective does them."""
    solver = xv.lower.Nonnegative().solver(None)

    def run(A: Any, y: Any) -> Any:
        system = System(Dense(A), 0.0, None)
        return solver.argmin(backend, system, solver.factor(backend, system), y)

    return backend.call(lambda _: run, "nnls")


def timed(fun: Callable[[], Any], repeats: int) -> tuple[float, Any]:
    """The fastest of some runs, after one that may compile."""
    result, best = fun(), np.inf
    for _ in range(repeats):
        began = time.perf_counter()
        result = fun()
        best = min(best, time.perf_counter() - began)
    return best, result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=100)
    parser.add_argument("--unknowns", type=int, default=5)
    parser.add_argument("--columns", type=int, default=10_000)
    parser.add_argument("--backends", nargs="+", default=["numpy", "torch", "jax"])
    parser.add_argument("--repeats", type=int, default=9)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    A = rng.normal(size=(args.rows, args.unknowns))
    y = A @ rng.normal(size=(args.unknowns, args.columns)) + rng.normal(size=(args.rows, args.columns))
    print(f"{args.columns} right-hand sides of a {args.rows} x {args.unknowns} design, load {os.getloadavg()[0]:.2f}")
    # contiguous columns: the loop shall not pay for copies
    rows = np.asfortranarray(y)
    loop, want = timed(lambda: scipy_loop(A, rows), max(1, args.repeats // 3))
    print(f"{np.mean(want == 0):.0%} of the weights are 0")
    print("| | ms | scipy's loop is slower by | w differs by | objective differs by |")
    print("|---|---|---|---|---|")
    print(f"| scipy.optimize.nnls, one by one | {1e3 * loop:.1f} | 1 | | |")
    best = np.sum((A @ want - y) ** 2, axis=0)
    for name in args.backends:
        backend = xv.backends.get(name)
        with backend.scope("float64"):
            run, given = pivoting(backend), (backend.asarray(A), backend.asarray(y))

            def once(run: Any = run, given: Any = given, backend: Any = backend) -> np.ndarray:
                return backend.to_numpy(run((), *given))

            seconds, w = timed(once, args.repeats)
        off = np.abs(w - want).max() / np.abs(want).max()
        worse = np.abs(np.sum((A @ w - y) ** 2, axis=0) / best - 1).max()
        print(f"| {name} | {1e3 * seconds:.1f} | {loop / seconds:.1f} | {off:.1e} | {worse:.1e} |", flush=True)
        assert max(off, worse) <= 1e-10, f"{name} disagrees with scipy"


if __name__ == "__main__":
    main()
