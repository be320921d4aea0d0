"""What an experiment says: a table for people, a summary for programs, both from the same records."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from xvarpro import Status
from xvarpro.cli import tables
from xvarpro_experiments.methods import Tuned
from xvarpro_experiments.race import LONGER, Race


def race(screen: Console, found: Race) -> Table:
    """One row per method: medians over the starts. The method of the package that ended lowest is bold."""
    record, best = found.record(), found.best().method
    several = len(found.outcomes) > 1
    numbers = ["equal time", "equal iter.", "end", *(["spread"] if several else [])]
    numbers += ["rel. gap", "infeas.", "iter.", "s to 1 %", "live"]
    out = tables.table(screen, "method", *numbers, right=numbers, wrap="method")
    for m in record["methods"]:
        end, live = m["objective"], found.of(m["method"])[0].record()
        cells = [number(m[key]["median"]) for key in ("at_equal_seconds", "at_equal_iterations", "objective")]
        if several:
            cells.append(_small((end["max"] - end["min"]) / abs(end["median"]) if end["median"] else math.nan))
        cells += [_small(m["relative_gap"]["median"]), _small(m["infeasibility"]), f"{m['iterations']['median']:.0f}"]
        cells.append("" if m["family"] == "floor" else _seconds(middle(found.seconds_to(m["method"], 0.01))))
        cells.append(f"{live['live']}/{live['units']}" if (live["units"] or -1) > 0 else "")
        out.add_row(m["method"], *cells, style="bold" if m["method"] == best else "")
    return out


def measures(screen: Console, found: Race) -> Table | None:
    """What was measured besides the objective where the methods ended; None where nothing was."""
    record, best = found.record(), found.best().method
    names = list(dict.fromkeys(name for m in record["methods"] for name in m["measures"]))
    if not names:
        return None
    letters = [f"({chr(ord('a') + i)})" for i in range(len(names))]
    out = tables.table(screen, "method", *letters, right=letters, wrap="method")
    for m in record["methods"]:
        cells = [_ranged(m["measures"][name]) if name in m["measures"] else "" for name in names]
        out.add_row(m["method"], *cells, style="bold" if m["method"] == best else "")
    names_ = "; ".join(f"{letter} {name}" for letter, name in zip(letters, names, strict=True))
    out.caption = names_ + (" (medians; from smallest to largest)" if len(found.outcomes) > 1 else "")
    out.caption_justify = "left"
    return out


def _ranged(x: Mapping[str, float]) -> str:
    if x["min"] == x["max"]:
        return number(x["median"])
    return f"{number(x['median'])} ({number(x['min'])} to {number(x['max'])})"


def legend(found: Race) -> str:
    """What the columns of `race` mean."""
    seconds = min(found.common(seed, "seconds") for seed in found.outcomes)
    iterations = min(found.common(seed, "iterations") for seed in found.outcomes)
    several = " Medians over the starts; spread: largest minus smallest, relative." if len(found.outcomes) > 1 else ""
    return (
        f"equal time, equal iter., end: lowest reduced objective after {seconds:.3g} s, after {iterations:.0f} "
        "iterations, of the whole run, with the w that is optimal for each theta; rel. gap: Frank-Wolfe gap there over "
        "the objective; infeas.: how far theta is outside its set, relative; s to 1 %: seconds to within 1 % of the "
        f"best value known from that start, also of a run {LONGER} times as long; live: columns of the design that are "
        f"not zero.{several}"
    )


def tuned(found: Race) -> list[str]:
    """A sentence for every method that was tuned: what came out."""
    names = [m.name for m in found.experiment.methods if isinstance(m, Tuned)]
    return [f"tuned: {name} is {found.of(name)[0].run_as}" for name in names]


def duel(found: Race) -> list[str]:
    """Sentences on the paper's method and the declared one against the rivals, where the objective decides."""
    if found.experiment.compared_by != "objective":
        return [f"The methods are compared by {found.experiment.compared_by}, not by the objective."]
    start = max(float(o[0].curve.value[0]) for o in found.outcomes.values())
    names = dict.fromkeys([m.name for m in found.experiment.methods if m.family == "paper"] + [found.declared])
    out = []
    for d in (found.duel(name) for name in names):
        if d["rivals"]:
            ours, lowest = d["objective"]["median"], d["lowest"]["median"]
            near_zero = not lowest > 0.01 * start  # of which a percentage says nothing
            apart = f"{ours:.3g} where they have {lowest:.3g}" if near_zero else f"{d['excess']['median']:+.2%}"
            out.append(f"{d['method']} against the rivals: {apart} at equal time; it {found.sooner(d)}")
    return out


def endings(found: Race) -> list[str]:
    """A sentence for every status with which methods ended before a limit, after their names."""
    methods: dict[Status, dict[str, None]] = {}
    for each in found.outcomes.values():
        for o in each:
            if o.status not in (Status.MAX_ITER, Status.TIME_LIMIT) and o.fit is not None:
                methods.setdefault(o.status, {})[o.method] = None
    return [f"{', '.join(names)}: {status.sentence}" for status, names in methods.items()]


def sanity(screen: Console, found: Mapping[str, Any]) -> Table:
    """One row per check of every experiment."""
    out = tables.table(screen, "experiment", "check", "found", "at most", "", right=("found", "at most"), wrap="check")
    for name, each in found.items():
        for i, check in enumerate(each["checks"]):
            passed = check["passed"]
            cells = (name if i == 0 else "", check["what"], f"{check['worst']:.2g}", f"{check['bound']:.2g}")
            out.add_row(*cells, "ok" if passed else "FAILED", style="" if passed else "bold red")
    return out


def number(x: float) -> str:
    """An objective, as a table shows it."""
    return f"{x:.1f}" if 1000 <= abs(x) < 1e8 else f"{x:.5g}"


def middle(x: Sequence[float]) -> float:
    """The median, the later of two: a mean would make inf of one."""
    return sorted(x)[len(x) // 2]


def _seconds(x: float) -> str:
    return "" if math.isnan(x) else f"{x:.2g}" if math.isfinite(x) else "never"


def _small(x: float) -> str:
    return "" if math.isnan(x) else "0" if x == 0 else f"{x:.1e}"
