"""Time of a solve over a hand-written loop with the analytic gradient, in the same framework and process.

Both run the paper's method (Frank-Wolfe, Armijo from alpha = 1) with QR of the stacked system, from the same start, and
must reach the same objective. The hand-written loop keeps w and the residual of the accepted trial, as a careful author
would. Runs alternate; the ratio of medians is printed.

    python benchmarks/overhead.py [--frameworks numpy torch jax] [--repeats 7]
"""

from __future__ import annotations

import argparse
import importlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

import xvarpro as xv

DELTA, GAMMA = 0.5, 1e-4


@dataclass
class Case:
    """A problem twice: for xvarpro, and as the pieces of a hand-written loop."""

    name: str
    problem: Any
    over: Any
    start: np.ndarray
    y: np.ndarray
    lam: float
    kind: str
    iterations: int
    limit: float


def exponentials(dtype: str) -> Case:
    t = np.linspace(0.0, 2.0, 200)
    rng = np.random.default_rng(0)
    y = np.exp(-np.outer(t, [0.7, 2.0, 7.0])) @ np.array([1.0, -2.0, 3.0]) + 1e-2 * rng.normal(size=200)
    t, y, start = (a.astype(dtype) for a in (t, y, np.array([0.5, 3.0, 8.0])))
    problem = xv.separable(decays, y, data=t, lam=1e-4)
    return Case(f"tiny 200x3 {dtype}", problem, xv.sets.Box(0.0, 10.0), start, y, 1e-4, "decays", 200, 5.0)


def decays(theta: Any, t: Any) -> Any:
    xp = xv.array_namespace(theta)
    return xp.exp(-xp.expand_dims(t, axis=1) * theta)


def identity(theta: Any, _: Any) -> Any:
    return theta


def dictionary(dtype: str, compress: bool, columns: int = 3000) -> Case:
    rng = np.random.default_rng(0)
    X = (np.abs(rng.normal(size=(784, 16))) @ np.abs(rng.normal(size=(16, columns))) / 16).astype(dtype)
    D = rng.normal(size=(784, 128))
    D = (D / np.abs(D).sum()).astype(dtype)
    problem = xv.separable(identity, X, lam=1e-5, compress=compress)
    y = np.ascontiguousarray(np.linalg.qr(X.T, mode="r").T) if compress else X
    name = f"784x128x{columns} {dtype}{' compressed' if compress else ''}"
    return Case(name, problem, xv.sets.L1Ball(1.0), D, y, 1e-5, "dictionary", 10, 1.15)


# -- the hand-written loops ------------------------------------------------------------------------------------------


def hand_eager(case: Case, framework: str) -> Callable[[], float]:
    """In NumPy or PyTorch: one text, since they name the same functions alike."""
    xp = importlib.import_module(framework)
    y, start = xp.asarray(case.y.reshape(len(case.y), -1)), xp.asarray(case.start)
    t = xp.asarray(case.problem.data)[:, None] if case.kind == "decays" else None
    eye = case.lam**0.5 * xp.eye(3 if t is not None else start.shape[1], dtype=y.dtype)

    def solve(R: Any, c: Any) -> Any:  # NumPy has none for a triangle
        return xp.linalg.solve(R, c) if framework == "numpy" else xp.linalg.solve_triangular(R, c, upper=True)

    def dot(a: Any, b: Any) -> Any:
        return xp.dot(a.reshape(-1), b.reshape(-1))

    def value(theta: Any) -> tuple:
        M = theta if t is None else xp.exp(-t * theta)
        Q, R = xp.linalg.qr(xp.concatenate([M, eye]))
        w = solve(R, Q[: len(M)].T @ y)
        r = M @ w
        r -= y
        return 0.5 * dot(r, r) + 0.5 * case.lam * dot(w, w), M, w, r

    def gradient(M: Any, w: Any, r: Any) -> Any:
        G = r @ w.T
        return G if t is None else -(G * t * M).sum(0)

    def lmo(g: Any) -> Any:
        if t is not None:
            return xp.asarray(xp.where(g < 0, 10.0, 0.0), dtype=g.dtype)
        v, flat = xp.zeros_like(g), g.reshape(-1)
        i = xp.abs(flat).argmax()
        v.reshape(-1)[i] = 1.0 if flat[i] < 0 else -1.0
        return v

    def run() -> float:
        theta = start
        f, M, w, r = value(theta)
        g = gradient(M, w, r)
        for _ in range(case.iterations):
            d = lmo(g) - theta
            gap = -dot(g, d)
            alpha = 1.0
            f_new, M, w, r = value(theta + alpha * d)
            while not f - f_new >= GAMMA * alpha * gap:
                alpha *= DELTA
                f_new, M, w, r = value(theta + alpha * d)
            theta, f = theta + alpha * d, f_new
            g = gradient(M, w, r)
        return float(f)

    return run


def hand_jax(case: Case) -> Callable[[], float]:
    import jax
    import jax.numpy as jnp
    from jax.lax import while_loop

    with jax.enable_x64(case.y.dtype == np.float64):
        y = jnp.asarray(case.y.reshape(len(case.y), -1))
        t = jnp.asarray(np.asarray(case.problem.data))[:, None] if case.kind == "decays" else None
        start = jnp.asarray(case.start)

    def value(theta: Any, y: Any, t: Any) -> tuple:
        M = theta if t is None else jnp.exp(-t * theta)
        Q, R = jnp.linalg.qr(jnp.concatenate([M, case.lam**0.5 * jnp.eye(M.shape[1], dtype=M.dtype)]))
        w = jax.scipy.linalg.solve_triangular(R, Q[: len(M)].T @ y)
        r = M @ w - y
        return 0.5 * jnp.vdot(r, r) + 0.5 * case.lam * jnp.vdot(w, w), w, r

    def gradient(theta: Any, w: Any, r: Any, t: Any) -> Any:
        G = r @ w.T
        return G if t is None else -jnp.sum(G * t * jnp.exp(-t * theta), axis=0)

    def lmo(g: Any) -> Any:
        if t is not None:
            return jnp.where(g < 0, 10.0, 0.0).astype(g.dtype)
        flat = g.reshape(-1)
        i = jnp.abs(flat).argmax()
        return jnp.zeros_like(flat).at[i].set(jnp.where(flat[i] < 0, 1.0, -1.0)).reshape(g.shape)

    @jax.jit
    def loop(theta: Any, y: Any, t: Any) -> Any:
        def body(s: tuple) -> tuple:
            k, theta, f, g = s
            d = lmo(g) - theta
            gap = -jnp.vdot(g, d)
            alpha, trial = while_loop(
                lambda a: ~(f - a[1][0] >= GAMMA * a[0] * gap),
                lambda a: (a[0] * DELTA, value(theta + a[0] * DELTA * d, y, t)),
                (jnp.ones_like(f), value(theta + d, y, t)),
            )
            theta = theta + alpha * d
            return k + 1, theta, trial[0], gradient(theta, trial[1], trial[2], t)

        f, w, r = value(theta, y, t)
        return while_loop(lambda s: s[0] < case.iterations, body, (0, theta, f, gradient(theta, w, r, t)))[2]

    def run() -> float:
        with jax.enable_x64(case.y.dtype == np.float64), jax.default_matmul_precision("highest"):
            return float(loop(start, y, t))

    return run


HAND = {name: partial(hand_eager, framework=name) for name in ("numpy", "torch")} | {"jax": hand_jax}


# -- the comparison --------------------------------------------------------------------------------------------------


def ours(case: Case, framework: str) -> tuple[float, float]:
    """Objective, and seconds of the iterations."""
    fit = xv.solve(
        case.problem, case.start, over=case.over, algorithm=xv.algorithms.cr_varpro(DELTA, GAMMA), tol=0.0,
        max_iter=case.iterations, backend=framework, progress=False,
    )  # fmt: skip
    assert fit.n_iter == case.iterations, fit
    return fit.value, fit.seconds


def compare(case: Case, framework: str, repeats: int) -> tuple[float, float]:
    """Median seconds per iteration, hand-written and ours, alternating."""
    hand = HAND[framework](case)
    agree = abs(hand() - ours(case, framework)[0]) / abs(hand())
    assert agree < (1e-9 if "float64" in case.name else 1e-3), f"{case.name}: objectives differ by {agree}"
    times: dict[str, list[float]] = {"hand": [], "ours": []}
    for _ in range(repeats):
        began = time.perf_counter()
        hand()
        times["hand"].append(time.perf_counter() - began)
        times["ours"].append(ours(case, framework)[1])
    return tuple(float(np.median(times[k])) / case.iterations for k in ("hand", "ours"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--frameworks", nargs="+", default=["numpy", "torch", "jax"])
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()
    print("| problem | framework | hand-written, ms/it | xvarpro, ms/it | ratio | bar |")
    print("|---|---|---|---|---|---|")
    for dtype in ("float64", "float32"):
        for case in (exponentials(dtype), dictionary(dtype, compress=False), dictionary(dtype, compress=True)):
            for framework in args.frameworks:
                # milliseconds against seconds: the small problem affords what its noise asks for
                hand, mine = compare(case, framework, args.repeats * (5 if case.kind == "decays" else 1))
                bar = 1.15 if framework == "jax" else case.limit
                print(
                    f"| {case.name} | {framework} | {1e3 * hand:.3f} | {1e3 * mine:.3f} | {mine / hand:.2f} | {bar} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
