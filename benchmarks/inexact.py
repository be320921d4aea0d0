"""Products and time to the same certified gap: a tolerance tied to the gap against a fixed tight one.

Blind tomography: 10^5 random sparse rays through an image, each seen through a detector whose response to the length of
a ray, and whose drift in time, are the parameters of the model. The design is known through its products only. The runs
share problem, start, method and the tolerance of the gap; products with M and M^H are counted, derivatives apart.

    python benchmarks/inexact.py [--rows 100000] [--side 64] [--tol 1e-4] [--repeats 3]
"""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from typing import Any

import numpy as np

import xvarpro as xv
from xvarpro.operators import Operator

CALLS = {"matvec": 0, "rmatvec": 0, "outer": 0}
PIXELS = 24  # that a ray meets


@dataclass(frozen=True, eq=False)
class Geometry:
    """Which pixels a ray meets, and for how long."""

    pixels: np.ndarray
    weights: np.ndarray
    size: int

    def forward(self, w: Any) -> Any:
        return np.einsum("rp,rpk->rk", self.weights, w[self.pixels])

    def back(self, r: Any) -> Any:
        flat = self.pixels.ravel()
        return np.stack([np.bincount(flat, (self.weights * x[:, None]).ravel(), self.size) for x in r.T], axis=1)


@dataclass(frozen=True)
class Rays(Operator):
    """``diag(gain) S``, S sparse with `PIXELS` weighted entries per row."""

    gain: Any = None
    rays: Any = None

    @property
    def shape(self) -> tuple[int, int]:
        return self.gain.shape[0], self.rays.size

    @property
    def explicit(self) -> bool:
        return False

    def matvec(self, w: Any) -> Any:
        CALLS["matvec"] += 1
        return self.gain[:, None] * self.rays.forward(w)

    def rmatvec(self, r: Any) -> Any:
        CALLS["rmatvec"] += 1
        return self.rays.back(self.gain[:, None] * r)

    def outer(self, r: Any, w: Any) -> Rays:
        CALLS["outer"] += 1
        return Rays(np.sum(r * self.rays.forward(w), axis=1), self.rays)

    def dense(self) -> Any:
        raise AssertionError("the design is known through its products")


def build(rows: int, side: int) -> tuple[Any, Any, Any]:
    """What makes a problem of a solver, the start, and the set."""
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, side * side, size=(rows, PIXELS))
    weights = rng.uniform(0.2, 1.0, size=(rows, PIXELS)) * np.exp(rng.normal(size=side * side))[pixels]
    time = np.linspace(0.0, 1.0, rows)
    data = {"rays": Geometry(pixels, weights, side * side), "length": np.sum(weights, axis=1) / PIXELS, "time": time}

    def M(theta: Any, data: Any) -> Rays:
        xp = xv.array_namespace(theta)
        gain = xp.exp(-theta[0] * data["length"] - theta[1] * data["time"] + theta[2] * data["time"] ** 2)
        return Rays(gain, data["rays"])

    truth = np.array([0.7, 0.4, 0.2])
    image = rng.uniform(size=(side * side, 1)) ** 3
    clean = M(truth, data).matvec(image)
    y = clean + 0.02 * np.std(clean) * rng.normal(size=clean.shape)

    def problem(solver: Any) -> Any:
        return xv.separable(M, y, data=data, lam=1e-3, solver=solver)

    return problem, np.array([0.2, 0.8, 0.6]), xv.sets.Box(0.0, 1.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--side", type=int, default=64)
    parser.add_argument("--tol", type=float, default=1e-4)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    problem, start, over = build(args.rows, args.side)
    plain, scaled = xv.lower.Identity(), xv.lower.Jacobi()
    runs = {
        f"{name}{', Jacobi' if P is scaled else ''}": xv.lower.LSMR(preconditioner=P, **keywords)
        for P in (plain, scaled)
        for name, keywords in (("tied to the gap", {}), ("fixed at 1e-10", {"loosest": 1e-10}))
    }
    print(f"load {os.getloadavg()[0]:.2f}; {args.rows} x {args.side**2}, gap {args.tol} |f|\n")
    print("| lower level | status | steps | value | gap | products | in derivatives | seconds, median |")
    print("|---|---|---|---|---|---|---|---|")
    for name, solver in runs.items():
        seconds = []
        for _ in range(args.repeats):
            CALLS.update(dict.fromkeys(CALLS, 0))
            fit = xv.solve(problem(solver), start, over=over, tol=args.tol, max_iter=200, progress=False)
            seconds.append(fit.seconds)
        products = CALLS["matvec"] + CALLS["rmatvec"]
        print(
            f"| {name} | {fit.status.name} | {fit.n_iter} | {fit.value:.8g} | {fit.gap:.2g} | {products} | "
            f"{CALLS['outer']} | {np.median(seconds):.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
