"""What every ``xvarpro run`` shares: its options, the checks before any work, the race, its table and figures."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, TypeAlias, get_type_hints

import typer

import xvarpro as xv
from xvarpro.backends import Backend
from xvarpro.cli import options as shared
from xvarpro.cli import tables
from xvarpro.errors import ProblemError
from xvarpro_experiments import datasets, figures, race, report
from xvarpro_experiments.descent import Budget
from xvarpro_experiments.methods import STARTS, TUNING
from xvarpro_experiments.race import Experiment

Command: TypeAlias = Callable[..., dict[str, Any]]
Data: TypeAlias = Annotated[Path | None, typer.Option(help=f"Folder with the data. Default: ${datasets.VARIABLE}.")]
Seed: TypeAlias = Annotated[int, typer.Option(help="Seed of the first start.")]
Out: TypeAlias = Annotated[
    Path, typer.Option(help="Folder for figures, result and summary. A run that was interrupted goes on from there.")
]
_COMPARED = 50  # iterations on each backend
_FIRST = 3  # options that come before those of an experiment


@dataclass(frozen=True)
class Options:
    """The options of every experiment, and `run`, which does what they ask for."""

    backend: shared.Backend = "numpy"
    device: shared.Device = None
    dtype: Annotated[str | None, typer.Option(help="float64 or float32.")] = "float64"
    units: Annotated[
        float, typer.Option(help="Factor on the units: the same reduced problem, another one for joint methods.")
    ] = 1.0
    iterations: Annotated[int | None, typer.Option(help="Iterations per method. Default: what the time allows.")] = None
    time: Annotated[float | None, typer.Option(help="Seconds per method; set-up and compilation do not count.")] = None
    seed: Seed = 0
    repeat: Annotated[int, typer.Option(help="Starts: this many seeds, one after the other.")] = 1
    data: Data = None
    out: Out = Path("xvarpro-out")
    compare: Annotated[
        str | None, typer.Option(help="Also run the paper's method on these backends, such as numpy,torch,jax.")
    ] = None

    def __post_init__(self) -> None:
        if self.data is not None and not self.data.is_dir():
            raise ProblemError(f"data must be a folder that exists, got {self.data}")

    def run(
        self, stated: Callable[..., Experiment], notice: str | None = None, seconds: float = 60.0
    ) -> dict[str, Any]:
        """Run an experiment of ``units, dtype, backend, device``, print and write what came out; the summary.

        `notice` is what a reader has to know before anything else; each method gets so many seconds where no time is
        asked for.
        """
        framework = shared.check_backend(self.backend, self.device)
        budget = Budget(self.iterations, seconds if self.time is None else self.time)
        if self.repeat < 1:
            raise ProblemError(f"repeat must be >= 1, got {self.repeat}")
        if self.seed < 0:
            raise ProblemError(f"seed must be >= 0, got {self.seed}")
        seeds = range(self.seed, self.seed + self.repeat)
        others = [shared.check_backend(name).name for name in shared.split(self.compare)] if self.compare else []
        stated = functools.partial(stated, units=self.units)
        dtype = None if self.dtype is None else shared.check_dtype(self.dtype)
        experiment = stated(dtype=dtype, backend=self.backend, device=self.device)
        screen = tables.console()
        screen.print(f"xvarpro {xv.__version__}: {experiment.title}", style="bold")
        if notice:
            screen.print(notice, style="yellow")
        screen.print(tables.facts(_facts(experiment, framework, budget, seeds)))
        self.out.mkdir(parents=True, exist_ok=True)
        lasts = _lasts(race.longest(experiment, budget, seeds))
        sooner = "" if budget.iterations is None else f", less where {budget.iterations} iterations end sooner"
        apart = "set-up, compilation and measuring apart"
        screen.print(f"It takes {lasts} at most, {apart}{sooner}; each run says its name first.")
        announce = functools.partial(screen.print, style="dim")
        found = race.run(experiment, budget, seeds, folder=self.out / "runs", announce=announce)
        screen.print(report.race(screen, found))
        screen.print(report.legend(found), style="dim")
        if (measured := report.measures(screen, found)) is not None:
            screen.print(measured)
        for sentence in (*report.tuned(found), *report.endings(found), *report.duel(found)):
            screen.print(sentence)
        for sentence in experiment.notes(found) if experiment.notes else ():
            screen.print(sentence)
        same = None
        if others:
            task = stated(dtype="float64").task(self.seed)  # wherever it computes by default
            same = xv.compare(
                task.problem, task.theta0, over=task.over, backends=others, algorithm=xv.algorithms.cr_varpro(),
                max_iter=min(_COMPARED, self.iterations or _COMPARED),
            )  # fmt: skip
            screen.print("\nthe paper's method from the same start in float64", style="bold")
            screen.print(tables.agreement(screen, same))
            screen.print(same.verdict, style="green" if same.agree else "red")

        drawn = figures.of(found) | (dict(experiment.figures(found)) if experiment.figures else {})
        for name, figure in drawn.items():
            for kind in ("png", "svg", "pdf"):
                figure.savefig(self.out / f"{name}.{kind}", dpi=200)
        best = found.best()
        if best.fit is not None:
            best.fit.save(self.out / "result.npz")
        summary = {**found.record(), "best": best.method}
        summary["provenance"] = None if best.fit is None else best.fit.provenance
        summary["compare"] = None if same is None else same.record()
        tables.write_summary(self.out / "summary.json", summary)
        names = ", ".join(f"{name}.png" for name in drawn)
        screen.print(f"\nwrote {names} (and .svg, .pdf), result.npz ({best.method}) and summary.json to {self.out}")
        return summary


def command(small: Mapping[str, Any] | None = None, **defaults: Any) -> Callable[[Command], Command]:
    """A command with all of `Options`, from a function of them and of options of its own.

    A default replaces that of `Options`; in a pair a help comes with it, and hides the option where it is None. `small`
    are the arguments with which ``xvarpro run all --budget small`` calls it.
    """
    hints = get_type_hints(Options, include_extras=True)

    def common(name: str, default: Any) -> inspect.Parameter:
        kind, hint = inspect.Parameter.KEYWORD_ONLY, hints[name]
        if isinstance(default, tuple):
            default, text = default
            hint = Annotated[hint.__origin__, typer.Option(help=text, hidden=text is None)]
        return inspect.Parameter(name, kind, default=default, annotation=hint)

    def decorated(body: Command) -> Command:
        shared_ = [common(f.name, defaults.get(f.name, f.default)) for f in fields(Options)]
        own = list(inspect.signature(body, eval_str=True).parameters.values())[1:]
        every = [*shared_[:_FIRST], *own, *shared_[_FIRST:]]

        def run(**given: Any) -> dict[str, Any]:
            given = {p.name: p.default for p in every} | given
            return body(Options(**{p.name: given.pop(p.name) for p in shared_}), **given)

        functools.update_wrapper(run, body)
        run.__annotations__ = {p.name: p.annotation for p in every}
        signature = inspect.Signature([p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in every])
        vars(run).update({"__signature__": signature} | ({} if small is None else {"small": small}))
        return run

    return decorated


def _lasts(seconds: float) -> str:
    """A time as people say it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} hours"


def _facts(experiment: Experiment, framework: Backend, budget: Budget, seeds: range) -> list[tuple[str, str]]:
    config = experiment.config
    limit = f"{budget.seconds:g} s for each method" + (
        "" if budget.iterations is None else f" or {budget.iterations} iterations, whichever comes first"
    )
    starts = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]} to {seeds[-1]}"
    where = config.get("device") or next(iter(framework.devices()))
    tuning = (
        f"each candidate for {TUNING:.0%} of the budget from the first start, "
        f"then the best two that do not oscillate for all of it, from {min(STARTS, len(seeds))} of the starts"
    )
    return [
        *experiment.facts.items(),
        ("budget", f"{limit}; {starts}"),
        ("tuning", tuning),
        ("backend", f"{framework.name} on {where}, {config.get('dtype', 'float64')}"),
        ("versions", tables.versions(framework.describe())),
    ]
