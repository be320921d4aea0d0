"""Rows beyond memory: value, gradient and w against a closed form, peak memory of the process, time per row.

python benchmarks/streaming.py [--gigabytes 20] [--rows 200000] [--backend numpy] [--gram]

Columns of the design are cosines of the data, the target is a sum of others, and the data lie on a grid: every inner
product of columns is a geometric series, whatever the number of rows. They are summed by formula in 50 digits, and the
normal equations solved there. A row is what the source gives: the data of eight columns and the target, 72 bytes.
"""

from __future__ import annotations

import argparse
import os
import resource
import time
from typing import Any

import mpmath as mp
import numpy as np

import xvarpro as xv

SPEEDS = np.array([3.0, 7.0, 12.0, 18.0, 25.0, 33.0, 42.0, 52.0])
TARGET = np.array([[5.0, 1.0], [20.0, -2.0], [37.0, 0.5]])  # frequencies, amplitudes
THETA = 1.0 + 0.125 * np.array([0.0, 1.0, -1.0, 2.0, -2.0, 1.0, 0.0, -1.0])  # few bits: exact in mpmath
STEP = mp.mpf(10) ** -20
ROW = 8 * (SPEEDS.size + 1)


def M(theta: Any, x: Any) -> Any:
    xp = xv.array_namespace(theta)
    return xp.cos(x * theta)


class Source:
    """Rows made when they are asked for."""

    def __init__(self, m: int, rows: int) -> None:
        self.m, self.rows = m, rows

    def __call__(self) -> Any:
        for a in range(0, self.m, self.rows):
            t = np.arange(a, min(a + self.rows, self.m)) / self.m
            yield t[:, None] * SPEEDS, np.cos(t[:, None] * TARGET[:, 0]) @ TARGET[:, 1]


def cosines(a: Any, b: Any, m: int) -> Any:
    """``sum of cos(a i/m) cos(b i/m) for i < m``."""

    def series(c: Any) -> Any:
        if c == 0:
            return mp.mpf(m)
        z = mp.expj(c / m)
        return ((1 - mp.expj(c)) / (1 - z)).real

    return (series(a - b) + series(a + b)) / 2


def closed(theta: list[Any], m: int) -> tuple[Any, Any]:
    """Value and w at theta, from normal equations in many digits."""
    w_ = [mp.mpf(float(s)) * x for s, x in zip(SPEEDS, theta, strict=True)]
    f_, a_ = ([mp.mpf(float(v)) for v in column] for column in TARGET.T)
    H = mp.matrix([[cosines(p, q, m) for q in w_] for p in w_])
    b = mp.matrix([mp.fsum(a * cosines(p, f, m) for f, a in zip(f_, a_, strict=True)) for p in w_])
    square = mp.fsum(a * c * cosines(f, g, m) for f, a in zip(f_, a_, strict=True) for g, c in zip(f_, a_, strict=True))
    w = mp.lu_solve(H, b)
    return (square - mp.fsum(p * q for p, q in zip(b, w, strict=True))) / 2, w


def exact(m: int) -> tuple[float, np.ndarray, np.ndarray]:
    """Value, gradient by differences in 50 digits, and w."""
    with mp.workdps(50):
        theta = [mp.mpf(float(x)) for x in THETA]

        def f(i: int, h: Any) -> Any:
            return closed([x + (h if i == j else 0) for j, x in enumerate(theta)], m)[0]

        value, w = closed(theta, m)
        gradient = [float((f(i, STEP) - f(i, -STEP)) / (2 * STEP)) for i in range(THETA.size)]
        return float(value), np.array(gradient), np.array([float(x) for x in w])


def off(got: Any, want: Any) -> float:
    return float(np.linalg.norm(np.asarray(got) - want) / np.linalg.norm(want))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--gigabytes", type=float, default=20.0, help="of rows, for the last line; 1/4 and 1/2 before it"
    )
    parser.add_argument("--rows", type=int, default=200_000, help="per chunk")
    parser.add_argument("--backend", default="numpy")
    parser.add_argument("--gram", action="store_true", help="normal equations instead of QR")
    args = parser.parse_args()
    solver = xv.lower.Cholesky() if args.gram else None
    print(f"load {os.getloadavg()[0]:.2f} at the start, {args.backend}, chunks of {args.rows} rows", flush=True)
    print("| rows | GB | value and gradient, s | ns per row | value off by | gradient | w | peak, GB |")
    print("|---|---|---|---|---|---|---|---|")
    per_row = []
    for share in (0.25, 0.5, 1.0):
        m = int(args.gigabytes * share * 1e9 / ROW)
        problem = xv.separable(M, xv.RowChunks(Source(m, args.rows)), solver=solver)
        began = time.perf_counter()
        value, gradient = xv.value_and_gradient(problem, THETA, backend=args.backend)
        seconds = time.perf_counter() - began
        per_row.append(seconds / m)
        want_value, want_gradient, want_w = exact(m)
        w = xv.solve(problem, THETA, max_iter=0, backend=args.backend).w if share == 0.25 else None
        errors = [off(value, want_value), off(gradient, want_gradient)]
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
        print(
            f"| {m} | {m * ROW / 1e9:.2f} | {seconds:.1f} | {1e9 * per_row[-1]:.1f} | {errors[0]:.1e} "
            f"| {errors[1]:.1e} | {'' if w is None else f'{off(w, want_w):.1e}'} | {peak:.2f} |",
            flush=True,
        )
    # ratios mean something on a machine that does nothing else
    print(f"time per row varies by {100 * (max(per_row) / min(per_row) - 1):.1f} %; load {os.getloadavg()[0]:.2f}")


if __name__ == "__main__":
    main()
