"""What every ``xvarpro run`` does: say what is run, run it, print the table, write figures, result and summary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from xvarpro import Comparison, __version__
from xvarpro.backends import Backend
from xvarpro.cli import tables
from xvarpro_experiments import race, report
from xvarpro_experiments.descent import Budget
from xvarpro_experiments.race import Experiment


def conduct(
    experiment: Experiment,
    framework: Backend,
    budget: Budget,
    seeds: Sequence[int],
    out: Path,
    agreement: Callable[[], Comparison] | None = None,
    notice: str | None = None,
) -> dict[str, Any]:
    """Run an experiment, print and write what came out; the summary."""
    from xvarpro_experiments import figures as draw  # matplotlib: that it is missing should be known before any work

    screen = tables.console()
    screen.print(f"xvarpro {__version__}: {experiment.title}", style="bold")
    if notice:
        screen.print(notice, style="yellow")
    screen.print(tables.facts(_facts(experiment, framework, budget, seeds)))
    out.mkdir(parents=True, exist_ok=True)
    found = race.run(
        experiment,
        budget,
        seeds,
        folder=out / "runs",
        announce=lambda text: screen.print(text, style="dim") if screen.is_terminal else None,
    )
    screen.print(report.race(screen, found))
    screen.print(report.legend(found), style="dim")
    if (measured := report.measures(screen, found)) is not None:
        screen.print(measured)
    for sentence in (*report.tuned(found), *report.endings(found), *report.duel(found)):
        screen.print(sentence)
    for sentence in experiment.notes(found) if experiment.notes else ():
        screen.print(sentence)
    same = None if agreement is None else agreement()
    if same is not None:
        screen.print("\nthe paper's method from the same start in float64", style="bold")
        screen.print(tables.agreement(screen, same))
        screen.print(same.verdict, style="green" if same.agree else "red")

    figures = draw.of(found) | (dict(experiment.figures(found)) if experiment.figures else {})
    for name, figure in figures.items():
        figure.savefig(out / f"{name}.png", dpi=200)
    best = found.best()
    if best.fit is not None:
        best.fit.save(out / "result.npz")
    summary = {**found.record(), "best": best.method, "provenance": None if best.fit is None else best.fit.provenance}
    summary["compare"] = None if same is None else same.record()
    tables.write_summary(out / "summary.json", summary)
    names = ", ".join(f"{name}.png" for name in figures)
    screen.print(f"\nwrote {names}, result.npz ({best.method}) and summary.json to {out}")
    return summary


def _facts(experiment: Experiment, framework: Backend, budget: Budget, seeds: Sequence[int]) -> list[tuple[str, str]]:
    config = experiment.config
    limit = f"{budget.seconds:g} s for each method" + (
        "" if budget.iterations is None else f" or {budget.iterations} iterations, whichever comes first"
    )
    starts = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]} to {seeds[-1]}"
    where = config.get("device") or next(iter(framework.devices()))
    return [
        *experiment.facts.items(),
        ("budget", f"{limit}; {starts}"),
        (
            "tuning",
            f"from the first start: each candidate for {race.TUNING:.0%} of the budget, the best two for all of it",
        ),
        ("backend", f"{framework.name} on {where}, {config.get('dtype', 'float64')}"),
        ("versions", tables.versions(framework.describe())),
    ]
