"""Time to the joint baselines' final objective, on MNIST (784 x 3000) with 128 atoms, at two scalings of the units.

The rivals run uncompressed, as a user would write them; iPALM's inertia and step factor are tuned on start 0. What
has to be reached is the reduced objective at a rival's last D, which is never above the rival's own; its time is when
this came to within a small share (`--within`) of where it ended. The default's time includes compression
and all other set-up. One backend, one process, one run after the other.

    XVARPRO_DATA=<folder> python benchmarks/rivals.py [--seconds 30] [--starts 3] [--backend numpy]
"""

from __future__ import annotations

import argparse
import itertools
import warnings
from typing import Any

import numpy as np
from xvarpro_experiments import datasets
from xvarpro_experiments.descent import Budget
from xvarpro_experiments.methods import Method, Task
from xvarpro_experiments.rivals import IPALM, JointProjectedGradient, tune

import xvarpro as xv

ATOMS = 128
SCALINGS = ((1.0, 1e-5), (1000.0, 10.0))


def identity(D: Any, _: Any) -> Any:
    return D


class Bench:
    """One problem at one scaling."""

    def __init__(self, X: np.ndarray, rho: float, lam: float, backend: str, within: float) -> None:
        self.within = within
        self.rho, self.backend, self.shape = rho, backend, X.shape
        self.compressed = xv.separable(identity, X, lam=lam)
        self.plain = xv.separable(identity, X, lam=lam, compress=False)
        self.over = xv.sets.L1Ball(rho)

    def start(self, seed: int) -> np.ndarray:
        D = np.random.default_rng(seed).normal(size=(self.shape[0], ATOMS))
        return D * (self.rho / np.abs(D).sum())

    def rival(self, method: Method, seed: int, seconds: float) -> tuple[float, float, int]:
        """Final reduced objective, the time at which it came near its last, iterations."""
        task = Task(self.plain, self.start(seed), self.over, reduced=self.compressed, backend=self.backend)
        done = method.run(task, Budget(None, seconds, 1.05))
        near = done.curve.reached((1 + self.within) * done.objective)
        return done.objective, near, done.iterations

    def run(self, problem: Any, algorithm: Any, seed: int, seconds: float) -> Any:
        return xv.solve(
            problem, self.start(seed), over=self.over, algorithm=algorithm, tol=0.0, max_iter=10**6,
            time_limit=seconds, backend=self.backend, progress=False,
        )  # fmt: skip

    def tuned(self, seconds: float) -> Any:
        grid = [IPALM(inertia=b, scale=s) for b, s in itertools.product((0.0, 0.3, 0.6, None), (0.9, 1.5))]
        return tune(grid, lambda a: self.rival(a, 0, seconds)[0])


def time_to(fit: Any, target: float) -> float:
    hit = np.nonzero(fit.trace.value <= target)[0]
    return float("inf") if hit.size == 0 else fit.setup_seconds + float(fit.trace.seconds[hit[0]])


def main() -> None:
    warnings.simplefilter("ignore", xv.DeadUnitsWarning)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument("--backend", default="numpy")
    parser.add_argument("--within", type=float, default=1e-3)
    args = parser.parse_args()
    images = datasets.images(3000)
    print(f"{images.source}, X {images.X.shape}, {ATOMS} atoms, {args.backend}, {args.seconds:g} s each")
    print(
        "| rho, lambda | rival | start | its objective | its time, s | iterations | default's time to it, s | ratio |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for rho, lam in SCALINGS:
        bench = Bench(images.X, rho, lam, args.backend, args.within)
        ipalm = bench.tuned(args.seconds / 5)
        ratios: dict[str, list[float]] = {}
        for seed in range(args.starts):
            fit = bench.run(bench.compressed, None, seed, args.seconds)
            for name, rival in (("joint PG 1/L", JointProjectedGradient()), (f"tuned {ipalm}", ipalm)):
                final, seconds, iterations = bench.rival(rival, seed, args.seconds)
                ours = time_to(fit, final)
                ratios.setdefault(name, []).append(ours / seconds)
                print(
                    f"| {rho:g}, {lam:g} | {name} | {seed} | {final:.0f} | {seconds:.2f} | {iterations} | {ours:.2f} | "
                    f"{ours / seconds:.3f} |",
                    flush=True,
                )
            print(
                f"| {rho:g}, {lam:g} | default | {seed} | {fit.trace.value.min():.0f} | | {fit.n_iter} | | |",
                flush=True,
            )
        for name, values in ratios.items():
            print(f"| {rho:g}, {lam:g} | {name} | median | | | | | {np.median(values):.3f} |", flush=True)


if __name__ == "__main__":
    main()
