"""``xvarpro run all``."""

from __future__ import annotations

import importlib
import time
from enum import Enum
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any

import typer

from xvarpro import backends
from xvarpro.cli import options as shared
from xvarpro.cli import tables
from xvarpro_experiments import frame, report, sanity

_COMPARED = ("numpy", "torch", "jax", "array-api-strict")


class Size(str, Enum):
    """How much of every experiment is run."""

    small = "small"
    full = "full"


def command(
    budget: Annotated[
        Size, typer.Option(help="small: minutes, on a part of the data. full: every experiment's own defaults.")
    ] = Size.small,
    backend: shared.Backend = "numpy",
    data: frame.Data = None,
    seed: frame.Seed = 0,
    out: frame.Out = Path("xvarpro-out"),
) -> None:
    """Run every installed experiment and check its descent, certificate, feasibility and agreement of the backends."""
    shared.check_backend(backend)
    compared = ",".join(name for name in _COMPARED if backends.installed(name))
    found: dict[str, Any] = {}
    for name, (run, small) in _experiments().items():
        began = time.perf_counter()
        summary = run(
            **(small if budget is Size.small else {}),
            backend=backend,
            data=data,
            seed=seed,
            out=out / name,
            compare=compared if "," in compared else None,
        )
        checks = [{**check._asdict(), "passed": check.passed} for check in sanity.checks(summary)]
        found[name] = {"seconds": time.perf_counter() - began, "best": summary["best"], "checks": checks}
    screen = tables.console()
    screen.print("\nall experiments", style="bold")
    screen.print(report.sanity(screen, found))
    tables.write_summary(out / "summary.json", {"budget": budget.value, "backend": backend, "experiments": found})
    screen.print(f"wrote summary.json to {out}")
    if not all(check["passed"] for each in found.values() for check in each["checks"]):
        raise typer.Exit(1)


def _experiments() -> dict[str, tuple[frame.Command, dict[str, Any]]]:
    """Registered commands whose modules say how to run them small, with the arguments for it, by name."""
    found = {}
    for entry in sorted(entry_points(group="xvarpro.experiments"), key=lambda entry: entry.name):
        small = getattr(importlib.import_module(entry.module), "SMALL", None)
        if small is not None:
            found[entry.name] = entry.load(), small
    return found
