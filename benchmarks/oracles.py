"""Linear-time oracles against the bandwidth of memory: one read of the gradient, one write of the vertex.

An array that the set holds, as weights of every entry, has to be read as well. The vertex of an lp ball is a power of
the gradient: where it takes more than one square root, arithmetic binds and not memory, and the limit is one pass of
the framework's own power of ``|g|``.

The limit is measured in the same process and framework, and between the runs of the oracle, so that what else the
machine does weighs on both: ``-x`` into an array made for it (jitted on JAX), and the maximum of every array that the
set holds. Both count with the median of their runs; `at best` is the share of the fastest ones. Peers that can be
imported get the same gradient: copt on NumPy, chop on Torch. They return ``s - x`` for a point x and not the vertex s,
which is one more pass, so xvarpro's ``lmo(g) - x`` stands beside them; within 5 % the two are level.

    python benchmarks/oracles.py [--n 10000000] [--frameworks numpy torch jax] [--dtypes float32] [--sets Box ..]
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

import xvarpro as xv
from xvarpro import sets
from xvarpro.core import trees
from xvarpro.sets import norms

BARS = {"numpy": 0.25, "torch": 0.5, "jax": 0.5}
PEERS = {
    "numpy": ("copt", "constraint", {"L1Ball": "L1Ball", "Simplex": "SimplexConstraint"}),
    "torch": ("chop", "constraints", {k: k for k in ("LinfBall", "L1Ball", "L2Ball", "Simplex")}),
}


def linear(n: int) -> dict[str, Any]:
    """Sets whose oracle reads the gradient a fixed number of times."""
    ramp = np.linspace(0.5, 2.0, n)
    return {
        "Box": sets.Box(-1.0, 2.0),
        "Box of arrays": sets.Box(-ramp, 2 * ramp),
        "LinfBall": sets.LinfBall(2.0),
        "Simplex": sets.Simplex(2.0),
        "CappedSimplex": sets.CappedSimplex(2.0),
        "L1Ball": sets.L1Ball(2.0),
        "L2Ball": sets.L2Ball(2.0),
        "NonnegativeL2Ball": sets.NonnegativeL2Ball(2.0),
        "LpBall, p = 3": sets.LpBall(3.0, 2.0),
        "LpBall, p = 3/2": sets.LpBall(3 / 2, 2.0),
        "LpBall, p = 5/3": sets.LpBall(5 / 3, 2.0),
        "LpBall, p = 4": sets.LpBall(4.0, 2.0),
        "LpBall, p = 5": sets.LpBall(5.0, 2.0),
        "KNormBall": sets.KNormBall(3, 2.0),
        "WeightedSimplex": sets.WeightedSimplex(1.0, 0.0, 2.0),
        "WeightedSimplex of arrays": sets.WeightedSimplex(ramp, -ramp, 2.0),
        "WeightedL1Ball": sets.WeightedL1Ball(2.0),
        "WeightedL1Ball of arrays": sets.WeightedL1Ball(ramp, ramp),
        "Groups of L2Ball": sets.Groups(sets.L2Ball(2.0), 100),
        "GroupL12Ball": sets.GroupL12Ball(100, 2.0),
        "GroupL1InfBall": sets.GroupL1InfBall(100, 2.0),
        "Ellipsoid": sets.Ellipsoid(ramp, radius=2.0),
        "OrderedBox": sets.OrderedBox(-1.0, 2.0),
        "TotalVariationBall": sets.TotalVariationBall(2.0),
        "Free, L2": Step(norms.L2()),
        "Free, Sign": Step(norms.Sign()),
        "Free, L1": Step(norms.L1()),
        "Free, ColumnNorm": Step(norms.ColumnNorm(), 1000),
        "Free, RowNorm": Step(norms.RowNorm(), 1000),
    }


POWERS = {"LpBall, p = 4": 1 / 3, "LpBall, p = 5": 1 / 4}  # of the gradient, where they take longer than memory


@dataclass(frozen=True)
class Step:
    """The direction of a free block, of a vector or of a matrix of that many columns."""

    norm: norms.Norm
    columns: int | None = None

    def lmo(self, g: Any) -> Any:
        x = g if self.columns is None else xv.array_namespace(g).reshape(g, (-1, self.columns))
        return self.norm.dual((x,))[0][0]


def peer(framework: str, name: str) -> Any:
    """The set of that name and of radius 2 in the framework's peer; None where it has none or does not import."""
    package, module, names = PEERS.get(framework, ("", "", {}))
    if name not in names:
        return None
    try:
        return getattr(import_module(f"{package}.{module}"), names[name])(2.0)
    except Exception as error:
        return f"not installed ({error})"


def oracle(framework: str, C: Any) -> Callable[[Any], Any]:
    if framework != "jax":
        return C.lmo
    import jax

    # the set's arrays are no constants of what is compiled
    held, skeleton = trees.partition(C)
    return partial(jax.jit(lambda held, g: skeleton.fill(held).lmo(g)), held)


def milliseconds(fun: Callable[..., Any], *args: Any) -> float:
    began = time.perf_counter()
    out = fun(*args)
    # a device works on after the call has returned: JAX can be waited for, elsewhere reading an entry waits
    getattr(out, "block_until_ready", lambda: xv.backends.owner(out).to_numpy(out[:1]))()
    return 1e3 * (time.perf_counter() - began)


def alternating(runs: dict[str, Callable[[], Any]], repeats: int) -> dict[str, list[float]]:
    """Milliseconds of every run, one after the other, after one of each that does not count."""
    times: dict[str, list[float]] = {key: [] for key in runs}
    for run in runs.values():
        milliseconds(run)
    for _ in range(repeats):
        for key, run in runs.items():
            times[key].append(milliseconds(run))
    return times


def measure(framework: str, dtype: str, name: str, C: Any, g: Any, repeats: int) -> str:
    """One row of the table."""
    backend = xv.backends.get(framework)
    C = trees.map_arrays(lambda a: backend.asarray(a, dtype=dtype), C)
    held, _ = trees.partition(C)
    lmo, rival = oracle(framework, C), peer(framework, name)
    x = 0 * g
    runs: dict[str, Callable[[], Any]] = {"limit": limit(framework, g, POWERS.get(name)), "lmo": lambda: lmo(g)}
    if rival is not None:
        runs["step"] = lambda: lmo(g) - x
    if rival is not None and not isinstance(rival, str):
        # a peer maximises, and chop wants a batch
        u, at = (-g, x) if framework == "numpy" else (-g[None, :], x[None, :])
        runs["peer"] = lambda: rival.lmo(u, at)[0]  # the direction, and what else it found
    if held:
        runs["read"] = read(framework, g)
    times = alternating(runs, repeats)
    passes = ["limit", *("read" for a in held if a.shape == g.shape)]
    bound, ours = sum(np.median(times[key]) for key in passes), np.median(times["lmo"])
    share, calm = bound / ours, sum(min(times[key]) for key in passes) / min(times["lmo"])
    step, theirs = (f"{np.median(times[key]):.1f}" if key in times else "" for key in ("step", "peer"))
    slower = "peer" in times and np.median(times["peer"]) < 0.95 * np.median(times["step"])
    met = share >= BARS[framework] and not slower
    theirs = rival if isinstance(rival, str) else theirs
    return (
        f"| {framework} | {dtype} | {name} | {bound:.1f} | {ours:.1f} | {share:.2f} | {calm:.2f} | "
        f"{BARS[framework]} | {step} | {theirs} | {'yes' if met else 'no'} |"
    )


def limit(framework: str, g: Any, power: float | None = None) -> Callable[[], Any]:
    if power is None:
        return compiled(framework, lambda x: -x, g)
    return compiled(framework, lambda x: x**power, abs(g))


def read(framework: str, g: Any) -> Callable[[], Any]:
    return compiled(framework, lambda x: xv.array_namespace(x).reshape(xv.array_namespace(x).max(x), (1,)), g)


def compiled(framework: str, fun: Callable[[Any], Any], g: Any) -> Callable[[], Any]:
    if framework == "jax":
        import jax

        fun = jax.jit(fun)
    return lambda: fun(g)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=10**7)
    parser.add_argument("--frameworks", nargs="+", default=list(BARS), choices=list(BARS))
    parser.add_argument("--dtypes", nargs="+", default=["float32", "float64"])
    parser.add_argument("--sets", nargs="+", help="names as the table prints them")
    parser.add_argument("--repeats", type=int, default=9)
    args = parser.parse_args()
    found = linear(args.n)
    print(f"n = {args.n}; load when begun: {' '.join(f'{x:.1f}' for x in os.getloadavg())} on {os.cpu_count()} cores\n")
    print("| framework | dtype | set | limit, ms | lmo, ms | share | at best | bar | lmo - x, ms | peer, ms | met |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    g = np.random.default_rng(0).normal(size=args.n)
    for framework in args.frameworks:
        backend = xv.backends.get(framework)
        for dtype in args.dtypes:
            with backend.scope(dtype):
                there = backend.asarray(g.astype(dtype))
                for name in args.sets or found:
                    print(measure(framework, dtype, name, found[name], there, args.repeats), flush=True)


if __name__ == "__main__":
    main()
