"""Whether the same solve gives the same bits: in fresh processes, with other addresses in memory, with other threads.

For every backend and number of threads there are two processes. Each solves with arrays of the caller's that begin at a
multiple of 64 bytes, and with some that begin 8 bytes beyond one. What is printed is a hash of all objectives, gaps and
steps and of the last theta; equal hashes are equal bits.

    python benchmarks/bits.py [--backends numpy torch jax] [--threads 1 2] [--dtype float64]
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
from typing import Any

import numpy as np

import xvarpro as xv

ROWS, INPUTS, UNITS, ITERATIONS = 2001, 17, 37, 10


def design(theta: Any, data: Any) -> Any:
    xp = xv.array_namespace(theta)
    return xp.tanh(data @ theta)


def shifted(x: np.ndarray, by: int) -> np.ndarray:
    """A copy that begins `by` bytes beyond a multiple of 64."""
    raw = np.empty(x.nbytes + 128, np.uint8)
    first = -raw.ctypes.data % 64 + by
    out = raw[first : first + x.nbytes].view(x.dtype).reshape(x.shape)
    out[...] = x
    return out


def solved(backend: str, deterministic: bool, shift: int, dtype: str) -> str:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(ROWS, INPUTS))
    y = np.sin(X @ rng.normal(size=INPUTS)) + 0.1 * rng.normal(size=ROWS)
    start = 0.1 * rng.normal(size=(INPUTS, UNITS))
    X, y, start = (shifted(a.astype(dtype), shift) for a in (X, y, start))
    problem = xv.separable(design, y, data=X, lam=1e-3)
    fit = xv.solve(
        problem,
        start,
        over=xv.sets.Box(-1.0, 1.0),
        algorithm=xv.algorithms.cr_varpro(),
        tol=0.0,
        max_iter=ITERATIONS,
        backend=backend,
        deterministic=deterministic,
    )
    t = fit.trace
    found = hashlib.sha256()
    for x in (t.value, t.gap_A, t.alpha_A, fit.theta):
        found.update(x.tobytes())
    return f"{fit.value!r} {found.hexdigest()[:12]}"


MODES, SHIFTS = ("plain", "deterministic"), (0, 8)


def in_a_process(threads: int, *args: str) -> list[str]:
    pools = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NPROC")
    env = {**os.environ, **dict.fromkeys(pools, str(threads))}
    command = [sys.executable, __file__, "--child", str(threads), *args]
    return subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()


def child(threads: str, backend: str, dtype: str) -> None:
    from threadpoolctl import threadpool_limits

    with threadpool_limits(int(threads)):  # OpenBLAS takes no more threads than processors from the environment
        for mode in MODES:
            for shift in SHIFTS:
                print(solved(backend, mode == "deterministic", shift, dtype), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backends", nargs="+", default=["numpy", "torch", "jax"])
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--dtype", default="float64")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        child(*given.child)
        return
    print(f"{'backend':<17} {'mode':<14} {'threads':>7} {'bytes':>5}  objective and hash in both processes")
    for backend in given.backends:
        for threads in given.threads:
            runs = [in_a_process(threads, backend, given.dtype) for _ in range(2)]
            cases = [(mode, shift) for mode in MODES for shift in SHIFTS]
            for (mode, shift), first, second in zip(cases, *runs, strict=True):
                change = "the same" if first == second else second
                print(f"{backend:<17} {mode:<14} {threads:>7} {shift:>5}  {first}  {change}", flush=True)


if __name__ == "__main__":
    main()
