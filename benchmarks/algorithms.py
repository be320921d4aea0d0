"""Objective against seconds: every algorithm of the package and every joint baseline, side by side in one process.

A row is a problem, its set and its starts. Measured is the time until the reduced objective is within 1 %, 0.1 % and
1e-6 of the best value that any run of that row and start came to; it holds the set-up of the solve, compression
included, but not compilation, which a first run of one iteration takes away. A joint method's reduced objective is
computed at iterates kept while it ran, off the clock, 5 % of the iterations apart: its times are at most so much late.
Joint methods run as a user would run them and, where the target can be compressed, given our compression. Those with
a parameter to be found have it tuned on start 0, for a fifth of the time per candidate, off the clock.

    XVARPRO_DATA=<folder> python benchmarks/algorithms.py [--seconds 60] [--starts 3] [--rows digits] [--backend numpy]
        [--algorithms Spectral iPALM] [--json out.json] [--plot out.png] [--quick]

`--rows` and `--algorithms` keep what contains one of the words. A row takes its share of `--seconds` per run. Two more
rows, of hundredths of a second, run where they are asked for: ``--rows small``.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from xvarpro_experiments import datasets, rivals
from xvarpro_experiments.descent import Budget
from xvarpro_experiments.methods import Method, Task

import xvarpro as xv
from xvarpro.algorithms import Algorithm
from xvarpro.errors import ProblemError

ACCURACIES = (1e-2, 1e-3, 1e-6)
TOL = 1e-10
DEFAULT = "default"
SPACING = 1.05  # of the iterates of a joint method whose reduced objective is computed

# -- rows --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One problem with its set, starts by random generator, share of the seconds, and what joint methods solve."""

    problem: xv.Problem
    over: Any
    start: Callable[[np.random.Generator], Any]
    share: float = 0.05
    joint: xv.Problem | None = None


def identity(theta: Any, _: Any) -> Any:
    return theta


def decays(theta: Any, t: Any) -> Any:
    xp = xv.array_namespace(theta)
    return xp.exp(-xp.expand_dims(t, axis=1) * theta)


def mixture(theta: Any, K: Any) -> Any:
    return xv.array_namespace(theta).tensordot(K, theta, axes=((2,), (0,)))


def calibration(theta: Any, data: Any) -> Any:
    xp = xv.array_namespace(theta)
    seen = data["A"] @ xp.reshape(theta, (-1,))
    return xp.expand_dims(seen, axis=1) * data["sensor"]


def network(split: str) -> Callable[[Any, Any], Any]:
    def M(theta: Any, data: Any) -> Any:
        return xv.array_namespace(theta).tanh(data[split] @ theta["A"]) * theta["s"]

    return M


def weight(theta: Any) -> Any:
    return xv.array_namespace(theta).sum(theta["A"] * theta["A"])


def given(name: str) -> Any:
    """A set by name; rows whose set is not there are left out."""
    if not hasattr(xv.sets, name):
        raise LookupError(f"there is no xv.sets.{name}")
    return getattr(xv.sets, name)


def l1_dictionary(mnist: bool, rho: float, lam: float) -> Row:
    if mnist and datasets.find_mnist() is None:
        raise LookupError(f"MNIST is not in ${datasets.VARIABLE}")
    X = datasets.images(3000).X if mnist else datasets.digits().X
    shape = (X.shape[0], 128 if mnist else 32)

    def start(rng: np.random.Generator) -> Any:
        D = rng.normal(size=shape)
        return D * (rho / np.abs(D).sum())

    return Row(xv.separable(identity, X, lam=lam), xv.sets.L1Ball(rho), start, 1.0 if mnist else 0.2)


def nonnegative_dictionary() -> Row:
    over = xv.sets.Columns(given("NonnegativeL2Ball")(1.0))
    X = datasets.digits().X

    def start(rng: np.random.Generator) -> Any:
        D = np.abs(rng.normal(size=(X.shape[0], 32)))
        return D / np.linalg.norm(D, axis=0)

    return Row(xv.separable(identity, X, lam=1e-2), over, start, 0.2)


def mixtures(m: int = 2000, k: int = 20, p: int = 200, share: float = 0.1) -> Row:
    rng = np.random.default_rng(10)
    K = rng.normal(size=(m, k, p))
    y = (K @ rng.dirichlet(np.full(p, 0.1))) @ rng.normal(size=k) + 0.05 * rng.normal(size=m)
    problem = xv.separable(mixture, y, data=K, lam=1e-3)
    return Row(problem, xv.sets.Simplex(1.0), lambda rng: rng.dirichlet(np.ones(p)), share)


def nuclear(n: int = 48, m: int = 5000, sensors: int = 20, share: float = 0.15) -> Row:
    """Blind calibration: every sensor weighs the same low-rank matrix by known masks and an unknown gain."""
    over = given("NuclearBall")(1.0)
    rng = np.random.default_rng(11)
    shape = (n, n)
    truth = rng.normal(size=(n, 2)) @ rng.normal(size=(2, n))
    truth /= np.linalg.norm(truth, "nuc")
    data = {"A": rng.normal(size=(m, n * n)), "sensor": np.eye(sensors)[rng.integers(sensors, size=m)]}
    y = calibration(truth, data) @ rng.uniform(0.5, 2.0, size=sensors) + 0.02 * rng.normal(size=m)

    def start(rng: np.random.Generator) -> Any:
        theta = rng.normal(size=shape)
        return theta / np.linalg.norm(theta, "nuc")

    return Row(xv.separable(calibration, y, data=data, lam=1e-4), over, start, share)


def exponentials() -> Row:
    rng = np.random.default_rng(12)
    t = np.linspace(0.0, 2.0, 200)
    y = np.exp(-np.outer(t, [0.5, 2.5, 9.0])) @ np.array([1.0, -2.0, 3.0]) + 1e-3 * rng.normal(size=200)
    return Row(
        xv.separable(decays, y, data=t, lam=1e-6), xv.sets.Simplex(12.0), lambda rng: 12.0 * rng.dirichlet(np.ones(3))
    )


def blocks(two_levels: bool) -> Row:
    """A network whose gates share a budget and whose weights are free."""
    rng = np.random.default_rng(13)
    data = {"train": rng.normal(size=(400, 8)), "validation": rng.normal(size=(300, 8))}
    turn = rng.normal(size=(8, 3)) / 2
    target = {name: np.sin(x @ turn) + 0.05 * rng.normal(size=(len(x), 3)) for name, x in data.items()}
    M = network("train")
    pooled = None
    if two_levels:

        def both(theta: Any, data: Any) -> Any:
            return xv.array_namespace(theta["s"]).concat([network(name)(theta, data) for name in target])

        y = np.concatenate(list(target.values()))
        pooled = xv.separable(both, y, data=data, lam=1e-2, R=weight, mu=1e-3)
        upper = xv.Level(network("validation"), target["validation"])
        lower = xv.Level(M, target["train"], lam=1e-2)
        problem = xv.bilevel(lower=lower, upper=upper, data=data, R=weight, mu=1e-3)
    else:
        problem = xv.separable(M, target["train"], data=data, lam=1e-2, R=weight, mu=1e-3)

    def start(rng: np.random.Generator) -> Any:
        return {"A": 0.5 * rng.normal(size=(8, 20)), "s": np.full(20, 0.05)}

    return Row(problem, {"s": xv.sets.CappedSimplex(1.0)}, start, 0.1, pooled)


ROWS: dict[str, Callable[[], Row]] = {
    "dictionary, digits, rho 1": partial(l1_dictionary, False, 1.0, 1e-5),
    "dictionary, digits, rho 1000": partial(l1_dictionary, False, 1000.0, 10.0),
    "dictionary, MNIST, rho 1": partial(l1_dictionary, True, 1.0, 1e-5),
    "dictionary, MNIST, rho 1000": partial(l1_dictionary, True, 1000.0, 10.0),
    "dictionary, nonnegative atoms": nonnegative_dictionary,
    "mixture in a simplex": mixtures,
    "blind calibration, nuclear norm": nuclear,
    "exponential sums in a simplex": exponentials,
    "network, free and gated": partial(blocks, False),
    "network, two levels": partial(blocks, True),
}

# over in hundredths of a second, in which Python's part of an iteration decides
SMALL: dict[str, Callable[[], Row]] = {
    "mixture, small": partial(mixtures, 300, 8, 60, 0.05),
    "blind calibration, small": partial(nuclear, 16, 800, 8, 0.05),
}

# -- entries -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Entry:
    """One line of a table: an algorithm, None for the default, and whether the target may be compressed."""

    name: str
    algorithm: Algorithm | Method | None
    compress: bool = True

    @property
    def joint(self) -> bool:
        return isinstance(self.algorithm, Method)


def ours() -> list[Entry]:
    """The default, everything in `xvarpro.algorithms` that can be built without arguments, and two variants."""
    found = {
        "FrankWolfe, separate": xv.algorithms.FrankWolfe(blocks=xv.algorithms.Separate()),
        "InFaceQuasiNewton, momentum": xv.algorithms.InFaceQuasiNewton(momentum=True),
    }
    for name in xv.algorithms.__all__:
        try:
            made = getattr(xv.algorithms, name)()
        except (TypeError, ProblemError):  # abstract, or with something that it has to be given
            continue
        if isinstance(made, Algorithm):
            found[name] = made
    return [Entry(DEFAULT, None), *(Entry(name, found[name]) for name in sorted(found))]


def theirs(tuned: dict[str, Method], compressed: Iterable[bool]) -> list[Entry]:
    methods = rivals.BASELINES | tuned
    return [
        Entry(f"{name}, compressed" if small else name, method, small)
        for small in compressed
        for name, method in methods.items()
    ]


# -- runs --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Curve:
    """The lowest reduced objective so far against seconds, set-up included; `end` is where the run ended."""

    entry: Entry
    seconds: np.ndarray
    objective: np.ndarray
    end: float
    iterations: int
    status: str
    algorithm: str

    def time_to(self, target: float) -> float:
        """Seconds to the target, inf where it was not reached."""
        hit = np.nonzero(self.objective <= target)[0]
        return float(self.seconds[hit[0]]) if hit.size else math.inf


@dataclass
class Race:
    """One row: its runs by start."""

    name: str
    row: Row
    backend: str
    seconds: float
    curves: list[dict[str, Curve]] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # data that was compressed once serves every evaluation off the clock
        self._reduced = problem = self.row.problem
        level = problem.lower
        if problem.is_separable and level.y.ndim == 2 and level.y.shape[1] > level.y.shape[0]:
            self._reduced = replace(problem, lower=replace(level, y=xv.compress(level.y)))

    def start(self, seed: int) -> Any:
        return self.row.start(np.random.default_rng(seed))

    def compresses(self) -> bool:
        """Whether a solve of this row replaces its target by a smaller one."""
        return bool(self.solve(Entry(DEFAULT, None), self.start(0), max_iter=0).provenance["compressed"])

    def solve(self, entry: Entry, theta: Any, **limits: Any) -> xv.Result:
        problem = replace(self.row.problem, compress=entry.compress)
        return xv.solve(
            problem, theta, over=self.row.over, algorithm=entry.algorithm, tol=TOL, backend=self.backend,
            progress=False, **limits,
        )  # fmt: skip

    def run(self, entry: Entry, seed: int, seconds: float) -> Curve:
        if entry.joint:
            return self._joint(entry, seed, seconds)
        theta = self.start(seed)
        self.solve(entry, theta, max_iter=1)
        # a callback of no use, where the joint methods keep iterates: it costs microseconds, to be borne by both
        idle = None if xv.backends.get(self.backend).compiled else lambda info: None
        fit = self.solve(entry, theta, callback=idle, max_iter=10**7, time_limit=seconds)
        value = fit.trace.value
        lowest = np.fmin.accumulate(np.where(np.isfinite(value), value, np.inf))
        times = fit.setup_seconds + fit.trace.seconds
        return Curve(entry, times, lowest, float(value[-1]), fit.n_iter, fit.status.name, fit.algorithm)

    def _joint(self, entry: Entry, seed: int, seconds: float) -> Curve:
        assert isinstance(entry.algorithm, Method)
        problem = replace(self.row.joint or self.row.problem, compress=False)
        if entry.compress:
            problem = self._reduced
        task = Task(problem, self.start(seed), self.row.over, reduced=self._reduced, backend=self.backend)
        done = entry.algorithm.run(task, Budget(None, seconds, SPACING))
        lowest = np.fmin.accumulate(np.where(np.isfinite(done.curve.value), done.curve.value, np.inf))
        times, end = done.setup_seconds + done.curve.seconds, float(done.curve.value[-1])
        return Curve(entry, times, lowest, end, done.iterations, done.status.name, done.run_as)

    def tuned(self, names: Iterable[str], thin: int) -> dict[str, Method]:
        def score(method: Method) -> float:
            return self.run(Entry("", method, compress=False), 0, self.seconds / 5).end  # NaN where it diverged

        return {name: rivals.tune(rivals.GRIDS[name][::thin], score) for name in names}

    def go(self, entries: Iterable[Entry], starts: int) -> None:
        """All entries from all starts; what a row's sets or sizes rule out is left out, with the reason."""
        entries = list(entries)
        for seed in range(starts):
            done: dict[str, Curve] = {}
            for entry in entries:
                if entry.name in self.skipped:
                    continue
                began = time.perf_counter()
                try:
                    done[entry.name] = self.run(entry, seed, self.seconds)
                except (ProblemError, NotImplementedError) as error:
                    self.skipped[entry.name] = str(error)
                spent = time.perf_counter() - began
                print(f"{self.name}, start {seed}, {entry.name}: {spent:.1f} s in all", file=sys.stderr, flush=True)
            self.curves.append(done)

    # -- what it comes to

    def best(self, seed: int) -> float:
        return min(float(c.objective[-1]) for c in self.curves[seed].values())

    def times(self, accuracy: float, choose: Callable[[Curve], bool]) -> np.ndarray:
        """Per start, the shortest time to that accuracy among the curves chosen."""
        return np.array(
            [
                min((c.time_to(self.best(i) * (1 + accuracy)) for c in done.values() if choose(c)), default=math.nan)
                for i, done in enumerate(self.curves)
            ]
        )

    def ratio(self, accuracy: float, a: Callable[[Curve], bool], b: Callable[[Curve], bool]) -> float:
        """Median over starts of the time of the best of `a` over that of the best of `b`."""
        return median(quotient(self.times(accuracy, a), self.times(accuracy, b)))

    def to_their_end(self, joint: Callable[[Curve], bool]) -> float:
        """Median over starts: our time to within 0.1 % of where the best joint method ended, over its own."""
        out = []
        for done in self.curves:
            ends = [float(c.objective[-1]) for c in done.values() if joint(c)]
            if not ends:
                return math.nan
            target = 1.001 * min(ends)
            mine, other = (min((c.time_to(target) for c in done.values() if f(c)), default=math.nan)
                           for f in (is_ours, joint))  # fmt: skip
            out.append(quotient(np.array([mine]), np.array([other]))[0])
        return median(np.array(out))

    def names(self) -> list[str]:
        return list(dict.fromkeys(name for done in self.curves for name in done))

    def table(self) -> list[dict[str, Any]]:
        """One record per entry, medians over starts."""
        out = []
        for name in self.names():
            runs = [(i, done[name]) for i, done in enumerate(self.curves) if name in done]
            out.append(
                {
                    "row": self.name,
                    "method": name,
                    "joint": runs[0][1].entry.joint,
                    "algorithm": runs[0][1].algorithm,
                    "excess": median(np.array([c.objective[-1] / self.best(i) - 1 for i, c in runs])),
                    "seconds": {
                        a: median(np.array([c.time_to(self.best(i) * (1 + a)) for i, c in runs])) for a in ACCURACIES
                    },
                    "iterations": median(np.array([float(c.iterations) for _, c in runs])),
                    "status": sorted({c.status for _, c in runs}),
                }
            )
        return sorted(out, key=lambda r: (r["joint"], [r["seconds"][a] for a in (1e-6, 1e-3, 1e-2)], r["excess"]))

    def summary(self) -> dict[str, dict[float, float]]:
        """The ratios that the targets speak of."""
        out = {"default / best of ours": self._each(is_default, is_listed)}
        if self.row.problem.is_separable:
            # with two levels a joint method solves another problem: nothing to compare with
            for family, joint in (("as a user runs it", as_user), ("given our compression", is_joint)):
                out[f"best of ours / best joint, {family}"] = self._each(is_ours, joint)
                out[f"the same, to where that one ended, {family}"] = {1e-3: self.to_their_end(joint)}
        if self._polytope():
            out["projection-free / projected"] = self._each(is_projection_free, is_projected)
        return out

    def _each(self, a: Callable[[Curve], bool], b: Callable[[Curve], bool]) -> dict[float, float]:
        return {accuracy: self.ratio(accuracy, a, b) for accuracy in ACCURACIES}

    def _polytope(self) -> bool:
        over = self.row.over
        return all(s.polytope for s in (over.values() if isinstance(over, dict) else [over]))


def is_default(c: Curve) -> bool:
    return c.entry.name == DEFAULT


def is_ours(c: Curve) -> bool:
    return not c.entry.joint


def is_listed(c: Curve) -> bool:
    return is_ours(c) and not is_default(c)


def is_joint(c: Curve) -> bool:
    return c.entry.joint


def as_user(c: Curve) -> bool:
    return c.entry.joint and not c.entry.compress


def is_projected(c: Curve) -> bool:
    return is_listed(c) and c.entry.algorithm.needs_projection


def is_projection_free(c: Curve) -> bool:
    return is_listed(c) and not c.entry.algorithm.needs_projection


def quotient(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """``a / b``; NaN where neither got there, inf or 0 where one did."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(np.isinf(a) & np.isinf(b), np.nan, a / b)


def median(x: np.ndarray) -> float:
    """The middle one, of those that are numbers; the larger of two."""
    x = np.sort(x[~np.isnan(x)])
    return float(x[x.size // 2]) if x.size else math.nan


# -- output ------------------------------------------------------------------------------------------------------------


def shown(x: float) -> str:
    return "-" if math.isnan(x) else "never" if math.isinf(x) else f"{x:.3g}"


def report(race: Race) -> None:
    columns = [f"s to {100 * a:g} %" for a in ACCURACIES]
    print(f"\n{race.name}: {race.seconds:g} s per run, {len(race.curves)} starts, {race.backend}")
    print(f"| method | {' | '.join(columns)} | above the best | iterations | ends |")
    print("|---" * (len(columns) + 4) + "|")
    for r in race.table():
        times = " | ".join(shown(r["seconds"][a]) for a in ACCURACIES)
        ends = ", ".join(s.lower() for s in r["status"])
        print(f"| {r['method']} | {times} | {r['excess']:.1e} | {r['iterations']:.0f} | {ends} |")
        if r["method"] == DEFAULT:
            print(f"| ({r['algorithm']}) {'| ' * (len(columns) + 4)}".rstrip())
    for name, reason in race.skipped.items():
        print(f"left out: {name}: {reason}")
    for what, ratios in race.summary().items():
        ratio = [f"{shown(x) if x else '0, the other never'} (to {100 * a:g} %)" for a, x in ratios.items()]
        print(f"{what}: {', '.join(ratio)}", flush=True)


def finite(x: Any) -> Any:
    """Numbers for JSON, which has no infinity: never and nothing are null."""
    if isinstance(x, dict):
        return {str(k): finite(v) for k, v in x.items()}
    if isinstance(x, list):
        return [finite(v) for v in x]
    return None if isinstance(x, float) and not math.isfinite(x) else x


def record(race: Race) -> dict[str, Any]:
    return finite(
        {
            "row": race.name,
            "backend": race.backend,
            "seconds": race.seconds,
            "best": [race.best(i) for i in range(len(race.curves))],
            "methods": race.table(),
            "summary": race.summary(),
            "left out": race.skipped,
            "curves": [{name: thinned(c) for name, c in done.items()} for done in race.curves],
        }
    )


def thinned(curve: Curve) -> dict[str, list[float]]:
    """Where a curve falls, at most 400 points of it."""
    falls = np.nonzero(np.diff(curve.objective, prepend=np.inf) < 0)[0]
    kept = falls[np.unique(np.linspace(0, falls.size - 1, 400).astype(int))] if falls.size else falls
    return {"seconds": curve.seconds[kept].tolist(), "objective": curve.objective[kept].tolist()}


def plot(races: list[Race], path: str) -> None:
    """Excess over the best against seconds, start 0, a panel per row: ours in colour, joint methods in grey."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    columns = min(2, len(races))
    figure = Figure(figsize=(7.5 * columns, 4.2 * math.ceil(len(races) / columns)), layout="constrained")
    axes = np.atleast_1d(figure.subplots(math.ceil(len(races) / columns), columns)).ravel()
    for ax, race in zip(axes, races, strict=False):
        best = race.best(0)
        listed = [name for name in race.names() if name in race.curves[0]]
        mine = [name for name in listed if not race.curves[0][name].entry.joint]
        for name in listed:
            curve = race.curves[0][name]
            excess = curve.objective / best - 1
            seen = (curve.seconds > 0) & (excess > 1e-12)
            other = curve.entry.joint
            style: dict[str, Any] = {"color": "0.6", "linestyle": "--" if curve.entry.compress else ":"}
            if not other:
                style = {"color": colormaps["tab20"](mine.index(name) % 20)}
            ax.plot(curve.seconds[seen], excess[seen], linewidth=1.0 if other else 1.6, label=name, **style)
        ax.set(xscale="log", yscale="log", title=race.name, xlabel="time [s]", ylabel="f / best - 1")
        ax.grid(color="0.9")
        ax.legend(fontsize=5, ncols=2, frameon=False)
    for ax in axes[len(races) :]:
        ax.set_axis_off()
    figure.savefig(path, dpi=150)


def matching(names: Iterable[str], words: list[str] | None) -> list[str]:
    return [n for n in names if not words or any(w.lower() in n.lower() for w in words)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument("--rows", nargs="+")
    parser.add_argument("--algorithms", nargs="+")
    parser.add_argument("--backend", default="numpy")
    parser.add_argument("--json")
    parser.add_argument("--plot")
    parser.add_argument("--quick", action="store_true", help="one start, little time: that it runs, not how fast")
    args = parser.parse_args()
    if args.quick:
        args.seconds, args.starts = min(args.seconds, 1.0), 1
    warnings.simplefilter("ignore", xv.DeadUnitsWarning)
    races: list[Race] = []
    rows = {**ROWS, **SMALL} if args.rows else ROWS
    for name in matching(rows, args.rows):
        try:
            row = rows[name]()
        except LookupError as error:
            print(f"\n{name}: left out, {error.args[0]}", flush=True)
            continue
        race = Race(name, row, args.backend, row.share * args.seconds)
        grids = [n for n in matching(rivals.GRIDS, args.algorithms)]
        tuned = race.tuned(grids, thin=4 if args.quick else 1)
        for label, method in tuned.items():
            print(f"\n{name}: {label}: {method}", flush=True)
        entries = ours() + theirs(tuned, (False, True) if race.compresses() else (False,))
        wanted = {*matching([e.name for e in entries], args.algorithms), DEFAULT}
        race.go([e for e in entries if e.name in wanted], args.starts)
        report(race)
        races.append(race)
    if args.json:
        with open(args.json, "w") as file:
            json.dump([record(race) for race in races], file, indent=1)
    if args.plot and races:
        plot(races, args.plot)


if __name__ == "__main__":
    main()
