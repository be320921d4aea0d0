"""``xvarpro run dictionary``."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from xvarpro import __version__, datasets
from xvarpro.errors import ProblemError
from xvarpro.experiments import dictionary, race, report
from xvarpro.experiments.agreement import Agreement
from xvarpro.experiments.commands import _options as options
from xvarpro.experiments.dictionary import Task
from xvarpro.experiments.race import Budget, Outcome

_ITERATIONS, _COMPARED = 200, 50
_LEGEND = (
    "objective: with the W that is optimal for the method's D; own J: a joint method's objective at its own W; "
    "rel. gap: Frank-Wolfe gap of the reduced problem at D over the objective; infeas.: how far D is outside the ball, "
    "over its radius; live: atoms that are not exactly zero."
)


def command(
    backend: options.Backend = "numpy",
    device: options.Device = None,
    dtype: options.Dtype = "float64",
    atoms: Annotated[int | None, typer.Option(help="Atoms. Default: 128 for MNIST, 32 for the digits.")] = None,
    radius: Annotated[float, typer.Option(help="Bound on the sum of the dictionary's absolute values, > 0.")] = 1.0,
    ridge: Annotated[float, typer.Option(help="Ridge lambda on the codes, >= 0.")] = 1e-5,
    samples: Annotated[int | None, typer.Option(help="Images. Default: 3000 of MNIST, all of the digits.")] = None,
    iterations: Annotated[
        int | None,
        typer.Option(help=f"Iterations per method. Default: {_ITERATIONS}; {_COMPARED} on each compared backend."),
    ] = None,
    time: options.Seconds = 20.0,
    seed: options.Seed = 0,
    data: Annotated[
        Path | None, typer.Option(help=f"Folder with MNIST's IDX files. Default: ${datasets.VARIABLE}.")
    ] = None,
    out: options.Out = Path("xvarpro-out/dictionary"),
    compare: Annotated[
        str | None, typer.Option(help="Also run the paper's method on these backends, such as numpy,torch,jax.")
    ] = None,
) -> None:
    """Learn a dictionary of images under an l1 budget with the paper's method and its rivals (Example 2)."""
    from xvarpro import plotting  # matplotlib: needed here, and by no other command

    framework = options.check_backend(backend, device)
    options.check_dtype(dtype)
    compared = [options.check_backend(name).name for name in options.split(compare)] if compare else []
    budget = Budget(_ITERATIONS if iterations is None else iterations, time)
    images, notice = _load(samples, data)
    n = (128 if images.side == 28 else 32) if atoms is None else atoms
    double = Task(images.X, dictionary.start(images.X, n, radius, seed), ridge, radius)
    task = replace(double, X=images.X.astype(dtype), D0=double.D0.astype(dtype), backend=backend, device=device)
    out.mkdir(parents=True, exist_ok=True)

    screen = report.console()
    screen.print(f"xvarpro {__version__}: dictionary learning under an l1 budget (Example 2)", style="bold")
    if notice:
        screen.print(notice, style="yellow")
    pixels, count = images.X.shape
    rows = [
        ("data", f"{images.source}, X {pixels} x {count}"),
        (
            "problem",
            f"min 1/2 |D W - X|^2 + lambda/2 |W|^2 over W and |D|_1 <= {radius:g}; lambda = {ridge:g}, {n} atoms",
        ),
        ("start", f"Gaussian, |D|_1 = {radius:g}, seed {seed}"),
        ("budget", f"{budget.iterations} iterations or {budget.seconds:g} s for each method, whichever comes first"),
        ("backend", f"{backend} on {device or framework.devices()[0]}, {dtype}"),
        ("versions", report.versions(framework.describe())),
    ]
    screen.print(report.facts(rows))

    outcomes = []
    for i, method in enumerate(dictionary.METHODS, 1):
        if screen.is_terminal:
            screen.print(f"{i}/{len(dictionary.METHODS)} {method.name}", style="dim")
        outcomes.append(race.run(task, method, budget))
    winner, records = race.best(outcomes), [o.record() for o in outcomes]
    screen.print(report.methods(screen, records, winner.method.name))
    screen.print(_LEGEND, style="dim")
    for sentence in report.endings(records):
        screen.print(sentence)
    found = None
    if compared:
        found = dictionary.compare(double, compared, _COMPARED if iterations is None else iterations)
        screen.print(f"\n{dictionary.PAPER.name} from the same start in float64", style="bold")
        screen.print(report.agreement(screen, found))
        screen.print(found.verdict, style="green" if found.same else "red")

    title = f"{images.source}: dictionary by {winner.method.name}"
    plotting.atoms(winner.fit.theta, (images.side, images.side), title).savefig(out / "atoms.png", dpi=200)
    plotting.convergence([_line(plotting, o) for o in outcomes], "reduced objective").savefig(
        out / "convergence.png", dpi=200
    )
    winner.fit.save(out / "result.npz")
    config = {
        "backend": backend, "device": device, "dtype": dtype, "atoms": n, "radius": radius, "ridge": ridge,
        "samples": count, "iterations": budget.iterations, "time": time, "seed": seed,
        "data": images.source, "pixels": pixels, "compare": compared,
    }  # fmt: skip
    report.write_summary(out / "summary.json", _summary(config, records, winner, found))
    screen.print(f"\nwrote atoms.png, convergence.png, result.npz ({winner.method.name}) and summary.json to {out}")


def _load(samples: int | None, data: Path | None) -> tuple[datasets.Images, str | None]:
    """The images, and what to tell someone who gets the fallback."""
    if samples is not None and samples < 1:
        raise ProblemError(f"samples must be a whole number >= 1, got {samples}")
    if datasets.find_mnist(data) is not None or data is not None:
        return datasets.images(3000 if samples is None else samples, data), None
    named = os.environ.get(datasets.VARIABLE)
    why = f"{datasets.VARIABLE}={named} holds no MNIST files" if named else "No MNIST files were named"
    remedy = f"for the paper's data, point --data or {datasets.VARIABLE} to a folder with train-images-idx3-ubyte.gz"
    return datasets.digits(samples), f"{why}, so this runs on scikit-learn's 8 x 8 digits; {remedy}."


def _line(plotting: Any, outcome: Outcome) -> Any:
    return plotting.Line(outcome.method.name, *outcome.curve, dashed=outcome.method.joint)


def _summary(
    config: dict[str, Any], records: list[dict[str, Any]], winner: Outcome, found: Agreement | None
) -> dict[str, Any]:
    return {
        "experiment": "dictionary",
        "config": config,
        "provenance": winner.fit.provenance,
        "start_objective": winner.curve.objective[0],
        "methods": records,
        "best_reduced": winner.method.name,
        "compare": None if found is None else found.record(),
    }
