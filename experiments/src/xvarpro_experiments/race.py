"""Methods against each other: one budget, several starts, tuned by one rule, kept as they finish."""

from __future__ import annotations

import hashlib
import json
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

import xvarpro as xv
from xvarpro import Result, Status
from xvarpro.cli import tables
from xvarpro.errors import ProblemError
from xvarpro_experiments.descent import Budget
from xvarpro_experiments.methods import DEFAULT, STARTS, Curve, Method, Outcome, Task

LONGER = 3  # times the budget, of the run that looks for a lower value than any method's
REFERENCE = "longer run"
TARGETS = (0.1, 0.01, 0.001)  # relative distances from the best value known at which methods are timed


@dataclass(frozen=True)
class Experiment:
    """A problem with its rivals, as `xvarpro run` runs it."""

    name: str
    title: str
    task: Callable[[int], Task]  # the instance of a seed
    methods: tuple[Method, ...]  # in the order of the table
    config: Mapping[str, Any]  # all that decides what is run, as JSON takes it: where it is the same, a race goes on
    facts: Mapping[str, str]  # what is printed before the table
    objective: str = "reduced objective"  # its name with its unit, for axes
    figures: Callable[[Race], Mapping[str, Any]] | None = None  # Matplotlib's figures of its own, by file name
    notes: Callable[[Race], Sequence[str]] | None = None  # sentences below the table
    compared_by: str = "objective"  # what decides between methods; where it is another, `notes` say who wins


@dataclass(frozen=True)
class Race:
    """What an experiment came to."""

    experiment: Experiment
    budget: Budget
    outcomes: Mapping[int, tuple[Outcome, ...]]  # by seed, in the order of the methods
    optima: Mapping[int, float | None] = field(default_factory=dict)  # by seed: the smallest value, where it is known
    # by seed: where the method that ended lowest came to in a run `LONGER` times as long, if there was one
    references: Mapping[int, float] = field(default_factory=dict)

    @property
    def declared(self) -> str:
        """The method that figures are about, whatever came out: the package's default, or else its first."""
        own = [m.name for m in self.experiment.methods if m.family in ("paper", "ours")]
        return next((name for name in own if name.startswith(DEFAULT)), own[0])

    @property
    def names(self) -> list[str]:
        """Of the methods, in the order of the table."""
        return [method.name for method in self.experiment.methods]

    def of(self, name: str) -> list[Outcome]:
        """A method's outcomes over the seeds."""
        return [o for found in self.outcomes.values() for o in found if o.method == name]

    def best(self, seed: int | None = None, families: Sequence[str] = ("paper", "ours")) -> Outcome:
        """The outcome that ended lowest, of the families, from one seed.

        From all seeds, each with a lowest value of its own, that of the method whose median above these is lowest.
        """
        seeds = list(self.outcomes) if seed is None else [seed]
        above: dict[str, list[float]] = defaultdict(list)
        runs = [(s, o) for s in seeds for o in self.outcomes[s] if o.family in families]
        for s, o in runs:
            above[o.method].append(float(np.nan_to_num(self.above(s, o.objective), nan=math.inf)))
        first = min(above, key=lambda name: np.median(above[name]))
        ends = [o for _, o in runs if o.method == first]
        return min(ends, key=lambda o: (not math.isfinite(o.objective), o.objective))

    def above(self, seed: int, value: Any) -> Any:
        """How far objectives are above the best value known from a start, relative to it."""
        best = self.target(seed, 0.0)
        return (value - best) / (abs(best) or 1.0)

    def common(self, seed: int, axis: str) -> float:
        """The largest number on an axis, of iterations or seconds, that every method reached unless it had settled."""
        reached = [float(getattr(o, axis)) for o in self.outcomes[seed] if o.family != "floor" and not o.settled]
        return min(reached, default=max(float(getattr(o, axis)) for o in self.outcomes[seed]))

    def readings(self, name: str, axis: str) -> np.ndarray:
        """A method's objective at equal iterations or equal seconds, by seed."""
        runs = zip(self.outcomes, self.of(name), strict=True)
        return np.asarray([o.curve.at(axis, self.common(seed, axis)) for seed, o in runs])

    def target(self, seed: int, above: float) -> float:
        """A value that far above the best one known from a start: the optimum, or the lowest of all runs."""
        known = [o.objective for o in self.outcomes[seed] if o.family != "floor" and math.isfinite(o.objective)]
        if seed in self.references:
            known.append(self.references[seed])
        best = min(known, default=math.nan) if (optimum := self.optima[seed]) is None else optimum
        return best + above * abs(best)

    def seconds_to(self, name: str, above: float) -> list[float]:
        """A method's time to `target`, by seed; inf for never."""
        runs = zip(self.outcomes, self.of(name), strict=True)
        return [o.curve.reached(self.target(seed, above)) for seed, o in runs]

    def duel(self, name: str) -> dict[str, Any]:
        """A method against all rivals, over the seeds: its objective over the lowest of theirs at equal time, and, for
        each target that one of them reached, the time of the first of them over its own.

        Where no rival arrives, the length of their runs is a lower bound of their time; 0 is for a method that never
        arrives.
        """
        rivals = [m.name for m in self.experiment.methods if m.family == "rival"]
        if not rivals:
            return {"method": name, "rivals": 0}
        lowest = np.nanmin([self.readings(rival, "seconds") for rival in rivals], axis=0)
        speedups, arrived = {}, {}
        for above in TARGETS:
            first = np.min([self.seconds_to(rival, above) for rival in rivals], axis=0)
            longest = [max(o.seconds for o in found if o.method in rivals) for found in self.outcomes.values()]
            own = self.seconds_to(name, above)
            found = [
                min(theirs, limit) / max(ours, 1e-9)
                for theirs, limit, ours in zip(first, longest, own, strict=True)
                if math.isfinite(min(theirs, ours))
            ]
            speedups[above] = spread(found) if found else None
            arrived[above] = bool(np.isfinite(first).any())
        values = self.readings(name, "seconds")
        return {
            "method": name,
            "rivals": len(rivals),
            "objective": spread(values),
            "lowest": spread(lowest),
            "excess": spread(values / lowest - 1),
            "speedup": speedups,
            "arrived": arrived,
        }

    def sooner(self, duel: Mapping[str, Any], above: float = 0.01) -> str:
        """What a `duel` says of the time to a target, after the name of the method."""
        times, target = duel["speedup"][above], f"within {100 * above:g} % of the best value known"
        if times is None:
            return f"is not {target}, and no rival is"
        if not times["median"]:
            return f"is not {target}, a rival is"
        if not duel["arrived"][above]:
            return f"is {target}, no rival is"
        return f"is {target} {times['median']:.2g} times as fast as the first rival"

    def record(self) -> dict[str, Any]:
        """For the summary."""
        return {
            "experiment": self.experiment.name,
            "config": dict(self.experiment.config),
            "budget": {"iterations": self.budget.iterations, "seconds": self.budget.seconds},
            "seeds": list(self.outcomes),
            "start_objective": {s: float(found[0].curve.value[0]) for s, found in self.outcomes.items()},
            "optimum": {s: x for s, x in self.optima.items() if x is not None},
            "longer_run": dict(self.references),
            "equal_iterations": {s: self.common(s, "iterations") for s in self.outcomes},
            "equal_seconds": {s: self.common(s, "seconds") for s in self.outcomes},
            "methods": [self._of(name) for name in self.names],
            "duels": [self.duel(m.name) for m in self.experiment.methods if m.family in ("paper", "ours")],
            "runs": [{"seed": s, **o.record()} for s, found in self.outcomes.items() for o in found],
        }

    def _of(self, name: str) -> dict[str, Any]:
        found = self.of(name)
        return {
            "method": name,
            "family": found[0].family,
            "run_as": found[0].run_as,
            "at_equal_seconds": spread(self.readings(name, "seconds")),
            "at_equal_iterations": spread(self.readings(name, "iterations")),
            "objective": spread([o.objective for o in found]),
            "relative_gap": spread([o.record()["relative_gap"] for o in found]),
            "seconds_to": {
                above: [t if math.isfinite(t) else None for t in self.seconds_to(name, above)] for above in TARGETS
            },
            "infeasibility": float(max(o.violation for o in found)),
            "iterations": spread([o.iterations for o in found]),
            "measures": {
                key: spread([o.measured[key].value[-1] for o in found if key in o.measured])
                for key in dict.fromkeys(k for o in found for k in o.measured)
            },
        }


def spread(values: Any) -> dict[str, float]:
    """Median, smallest and largest."""
    x = np.asarray(values, dtype=np.float64)
    return {"median": float(np.median(x)), "min": float(np.min(x)), "max": float(np.max(x))}


def run(
    experiment: Experiment,
    budget: Budget,
    seeds: Sequence[int] = (0,),
    folder: Path | None = None,
    announce: Callable[[str], None] = lambda _: None,
) -> Race:
    """Every method from every seed; what there is to tune is tuned on the first few.

    Where no optimum is known, the method that ended lowest runs once more, `LONGER` times as long: the best value known
    is then none that a method of the race has by definition.

    Finished runs are kept in `folder`, and found again by the same experiment; `announce` is called with the name of
    what begins.

    Examples
    --------
    >>> import numpy as np
    >>> from dataclasses import replace
    >>> from xvarpro_experiments import dictionary, race
    >>> from xvarpro_experiments.descent import Budget
    >>> made = dictionary.experiment(np.random.default_rng(0).normal(size=(6, 20)), atoms=2)
    >>> found = race.run(replace(made, methods=made.methods[:3]), Budget(3), seeds=(4,))
    >>> all(o.objective <= o.curve.value[0] for o in found.outcomes[4])
    True
    """
    if not seeds or min(seeds) < 0:
        raise ProblemError(f"seeds must be whole numbers >= 0, at least one, got {list(seeds)}")
    shelf = None if folder is None else _Shelf(folder, experiment, budget)
    chosen: dict[str, Method] = {}
    outcomes: dict[int, tuple[Outcome, ...]] = {}
    optima: dict[int, float | None] = {}
    references: dict[int, float] = {}

    def outcome(seed: int, task: Task, method: Method, limits: Budget, name: str, what: str) -> Outcome:
        """Found on the shelf, or run now."""
        kept = None if shelf is None else shelf.find(seed, name)
        if kept is None:
            announce(f"seed {seed}, {what}")
            if method.name not in chosen:
                chosen[method.name] = method.tuned([experiment.task(s) for s in seeds[:STARTS]], budget)
            kept = replace(chosen[method.name].run(task, limits), method=name)
            if shelf is not None:
                shelf.keep(seed, kept)
        return kept

    for seed in seeds:
        task = experiment.task(seed)
        optima[seed] = task.optimum
        found = [
            outcome(seed, task, method, budget, method.name, f"{i}/{len(experiment.methods)}: {method.name}")
            for i, method in enumerate(experiment.methods, 1)
        ]
        outcomes[seed] = tuple(found)
        lowest = min(found, key=lambda o: (o.family == "floor", not math.isfinite(o.objective), o.objective))
        if task.optimum is None and experiment.compared_by == "objective" and not lowest.settled:
            method = experiment.methods[found.index(lowest)]
            longer = Budget(budget.iterations and LONGER * budget.iterations, LONGER * budget.seconds)
            run_ = outcome(seed, task, method, longer, REFERENCE, f"{LONGER} times as long: {method.name}")
            references[seed] = run_.objective
    return Race(experiment, budget, outcomes, optima, references)


def longest(experiment: Experiment, budget: Budget, seeds: Sequence[int]) -> float:
    """Seconds that a race takes at most, set-up and compilation apart."""
    runs = sum(method.runs(len(seeds)) for method in experiment.methods)
    return (runs + LONGER * len(seeds) * (experiment.compared_by == "objective")) * budget.seconds


class _Shelf:
    """Finished runs on disk. A run that was cut off leaves no file, and one whose files are damaged counts as such."""

    def __init__(self, folder: Path, experiment: Experiment, budget: Budget) -> None:
        what = [xv.__version__, experiment.name, dict(experiment.config), budget.iterations, budget.seconds]
        text = json.dumps(what, sort_keys=True, default=str)
        self._folder = folder / hashlib.sha256(text.encode()).hexdigest()[:16]
        self._folder.mkdir(parents=True, exist_ok=True)

    def find(self, seed: int, method: str) -> Outcome | None:
        path = self._path(seed, method)
        try:
            kept = json.loads(path.read_text(encoding="utf-8"))
            fit = Result.load(path.with_suffix(".npz")) if kept["fit"] else None
        except (OSError, ValueError, TypeError, KeyError):
            return None
        curves = {name: Curve(*map(np.asarray, parts)) for name, parts in kept["curves"].items()}
        theta, status = None if fit is None else fit.theta, Status[kept["status"]]
        return Outcome(theta=theta, status=status, curve=curves.pop(""), measured=curves, fit=fit, **kept["plain"])

    def keep(self, seed: int, outcome: Outcome) -> None:
        curves = {"": outcome.curve, **outcome.measured}
        plain = {f.name for f in fields(outcome)} - {"theta", "status", "curve", "measured", "fit"}
        kept = {
            "plain": {name: getattr(outcome, name) for name in sorted(plain)},
            "status": outcome.status.name,
            "curves": {name: [part.tolist() for part in curve] for name, curve in curves.items()},
            "fit": outcome.fit is not None,
        }
        path = self._path(seed, outcome.method)
        if outcome.fit is not None:
            outcome.fit.save(path.with_suffix(".npz"))
        tables.write_text(path, json.dumps(kept))

    def _path(self, seed: int, method: str) -> Path:
        plain = "".join(c if c.isalnum() else "-" for c in method)
        return self._folder / f"{seed}-{plain}.json"
