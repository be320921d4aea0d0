"""What a Kronecker design A x I costs next to the closed form written by hand; one process, interleaved.

python benchmarks/operators.py [--shape 784 128] [--columns 3000] [--backends numpy torch jax]

The closed forms take A and return the value and the gradient in A of the reduced objective: by Cholesky of the normal
equations, and by QR. The bar is 1.1 times QR, which is as accurate. A x B is compared with the product, formed, at a
size where that exists.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import xvarpro as xv
from xvarpro import lower
from xvarpro.core import trees
from xvarpro.lower.interface import System
from xvarpro.operators import Dense, Kronecker


def ours(backend: Any, M: Any, lam: float, y: Any) -> tuple[Any, ...]:
    """Value and gradient of a separable level, as `Reduced` asks for them."""
    solver, system = lower.choose(M, lam), System(M, lam, None)
    factor = solver.factor(backend, system)
    w = solver.argmin(backend, system, factor, y)
    r = M.residual(w, y)
    value = 0.5 * trees.inner(r, r) + 0.5 * lam * trees.inner(w, w)
    w, r = solver.refine(backend, system, factor, y, w, r)
    return value, *trees.partition(M.outer(r, w))[0]


def by_qr(backend: Any, A: Any, lam: float, Y: Any) -> tuple[Any, Any]:
    xp = xv.array_namespace(A)
    m, n = A.shape
    Q, R = backend.qr(xp.concat([A, lam**0.5 * xp.eye(n, dtype=A.dtype)]))
    W = backend.solve_triangular(R, Q[:m, :].mT @ Y)
    r = A @ W
    r -= Y
    return 0.5 * trees.inner(r, r) + 0.5 * lam * trees.inner(W, W), r @ W.mT


def by_normal_equations(backend: Any, A: Any, lam: float, Y: Any) -> tuple[Any, Any]:
    xp = xv.array_namespace(A)
    L = backend.cholesky(A.mT @ A + lam * xp.eye(A.shape[1], dtype=A.dtype))
    W = backend.solve_triangular(L, A.mT @ Y, lower=True)
    W = backend.solve_triangular(L, W, lower=True, transpose=True)
    r = A @ W
    r -= Y
    return 0.5 * trees.inner(r, r) + 0.5 * lam * trees.inner(W, W), r @ W.mT


def timed(backend: Any, runs: dict[str, Callable[[], Any]], repeats: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in runs}
    for i in range(repeats + 2):
        for name, run in runs.items():
            began = time.perf_counter()
            found = run()
            backend.to_floats([trees.corner(x) for x in found])
            if i >= 2:  # the first compile, and touch the memory
                times[name].append(time.perf_counter() - began)
    return times


def folded(backend: Any, p: int, lam: float, x: Any) -> tuple[Any, ...]:
    return ours(backend, Kronecker(x[0], None, p), lam, x[1])


def factored(backend: Any, lam: float, x: Any) -> tuple[Any, ...]:
    return ours(backend, Kronecker(x[0], x[1]), lam, x[2])


def formed(backend: Any, lam: float, x: Any) -> tuple[Any, ...]:
    return ours(backend, Dense(Kronecker(x[0], x[1]).dense()), lam, x[2])


def prepared(backend: Any, name: str, fun: Callable[..., Any], operands: Any) -> Callable[[], Any]:
    """``fun(operands)`` as the package would run it: compiled where the framework compiles."""
    run = backend.call(lambda operands: lambda: fun(operands), (name, fun))
    return lambda: run(operands)


def agree(backend: Any, one: tuple[Any, ...], two: tuple[Any, ...]) -> None:
    """The same value and gradient, to rounding."""
    for x, y in zip(one, two, strict=True):
        u, v = backend.to_numpy(x), backend.to_numpy(y)
        assert np.abs(u - v).max() <= 1e-11 * np.abs(v).max()


def report(title: str, times: dict[str, list[float]], against: str) -> None:
    base = np.array(times[against])
    for name, seconds in times.items():
        ratio = np.median(np.array(seconds) / base)
        print(f"| {title} | {name} | {1e3 * np.median(seconds):.2f} | {ratio:.2f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", nargs=2, type=int, default=[784, 128])
    parser.add_argument("--columns", type=int, default=3000)
    parser.add_argument("--backends", nargs="+", default=["numpy", "torch", "jax"])
    parser.add_argument("--repeats", type=int, default=15)
    args = parser.parse_args()
    (m, n), p, lam = args.shape, args.columns, 1e-3
    print(f"load {os.getloadavg()[0]:.2f}; {os.environ.get('OMP_NUM_THREADS', 'all')} threads\n")
    print("| problem | route | ms, median | median ratio |\n|---|---|---|---|")
    rng = np.random.default_rng(0)
    A, Y = rng.normal(size=(m, n)), rng.normal(size=(m, p))
    B, C, z = rng.normal(size=(40, 12)), rng.normal(size=(30, 10)), rng.normal(size=(1200, 1))
    for name in args.backends:
        backend = xv.backends.get(name)
        with backend.scope("float64"):
            a, Y_, y, b, c, z_ = (backend.asarray(x, dtype="float64") for x in (A, Y, Y.reshape(-1, 1), B, C, z))
            runs = {
                "A x I": prepared(backend, name, partial(folded, backend, p, lam), (a, y)),
                "QR by hand": prepared(
                    backend, name, lambda x, backend=backend: by_qr(backend, x[0], lam, x[1]), (a, Y_)
                ),
                "normal equations by hand": prepared(
                    backend, name, lambda x, backend=backend: by_normal_equations(backend, x[0], lam, x[1]), (a, Y_)
                ),
            }
            agree(backend, runs["A x I"](), runs["QR by hand"]())
            report(f"{name}, {m} x {n}, {p} columns", timed(backend, runs, args.repeats), "QR by hand")
            runs = {
                "A x B": prepared(backend, name, partial(factored, backend, lam), (b, c, z_)),
                "formed": prepared(backend, name, partial(formed, backend, lam), (b, c, z_)),
            }
            report(f"{name}, (40 x 12) x (30 x 10)", timed(backend, runs, max(3, args.repeats // 5)), "formed")
    print(f"\nload {os.getloadavg()[0]:.2f}")


if __name__ == "__main__":
    main()
