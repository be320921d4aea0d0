"""``xvarpro run all``."""

from __future__ import annotations

import importlib
import pkgutil
import time
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer

from xvarpro import backends
from xvarpro.cli import options as shared
from xvarpro.cli import tables
from xvarpro_experiments import commands, report, sanity
from xvarpro_experiments.commands import _frame

_COMPARED = ("numpy", "torch", "jax")


class Size(str, Enum):
    """How much of every experiment is run."""

    small = "small"
    full = "full"


def command(
    budget: Annotated[
        Size, typer.Option(help="small: minutes, on a part of the data. full: every experiment's own defaults.")
    ] = Size.small,
    backend: shared.Backend = "numpy",
    data: _frame.Data = None,
    seed: _frame.Seed = 0,
    out: _frame.Out = Path("xvarpro-out"),
) -> None:
    """Run every experiment, and check what came out: descent, certificate, feasibility, agreement of the backends."""
    shared.check_backend(backend)
    compared = ",".join(name for name in _COMPARED if backends.installed(name))
    found: dict[str, Any] = {}
    for name, module in _experiments():
        began = time.perf_counter()
        arguments = dict(module.SMALL) if budget is Size.small else {}
        summary = module.command(
            **arguments,
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


def _experiments() -> Iterator[tuple[str, ModuleType]]:
    """Those that can be run small, in the order of their names."""
    for info in pkgutil.iter_modules(commands.__path__):
        if not info.name.startswith("_") and info.name != "all":
            yield info.name, importlib.import_module(f"{commands.__name__}.{info.name}")
