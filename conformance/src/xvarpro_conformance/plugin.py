"""A plugin of pytest: options that say what of the suite runs where, and a table of what passed.

``xvarpro conformance`` is pytest with this plugin.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from xvarpro import backends
from xvarpro.errors import XvarproError
from xvarpro_conformance import runner
from xvarpro_conformance.suite import AREAS, Target

PROPERTY = "conformance"  # of a test: where it ran, and how its cases ended
TARGETS = pytest.StashKey[list[Target]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Called by pytest."""
    group = parser.getgroup("conformance", "what of the conformance suite runs where")
    group.addoption("--backend", type=_names, help="backends, with commas; default: all that are installed")
    group.addoption("--device", type=_names, help="devices, as cpu,cuda:0; default: each backend's first")
    group.addoption("--dtype", type=_names, default=runner.DTYPES, help="precisions, with commas; default: both")
    group.addoption(
        "--only",
        action="append",
        default=[],
        metavar="ADDRESS",
        help="area, area/check, area/check/case or a pattern of them; may come again",
    )
    group.addoption("--quick", action="store_true", help="a few cases of each check")
    group.addoption("--thorough", action="store_true", help="compile every example in both precisions")
    group.addoption("--table", type=Path, metavar="FILE.md", help="write how many cases passed, as Markdown")


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def pytest_configure(config: pytest.Config) -> None:
    """Called by pytest: targets are made, and wrong ones end it, before anything runs."""
    option = config.option
    if option.quick and option.thorough:
        raise pytest.UsageError("--quick leaves out what --thorough adds; omit one of them")
    try:
        config.stash[TARGETS] = runner.targets(option.backend, option.device, option.dtype, option.thorough)
        if option.only:
            runner.selection(option.only)
    except XvarproError as error:
        raise pytest.UsageError(str(error)) from error
    if not hasattr(config, "workerinput"):  # a worker of xdist: the others' process has the table
        config.pluginmanager.register(Table(option.table))


class ByArea(LoadScopeScheduling):
    """A process keeps to an area of a target: checks of one case look at the same solve."""

    def _split_scope(self, nodeid: str) -> str:
        return nodeid.rpartition(": ")[0]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByArea:
    """Called by pytest-xdist."""
    return ByArea(config, log)


class Table:
    """How the cases of each area ended on each target.

    Parameters
    ----------
    file : Path or None
        Where to write it.
    """

    def __init__(self, file: Path | None) -> None:
        self.file = file
        self.states: defaultdict[tuple[str, str, str, str], Counter[str]] = defaultdict(Counter)
        self.worst: defaultdict[tuple[str, str], float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        found: Any = dict(report.user_properties).get(PROPERTY)
        if found is not None and report.when == "call":
            (backend, device, dtype, area), states, worst = found
            self.states[backend, device, dtype, area] += Counter(states)
            self.worst[backend, device] = max(self.worst[backend, device], worst)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self.states:
            return
        terminalreporter.section("conformance")
        terminalreporter.write_line("\n".join(self.of_backends()))
        if self.file is not None:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            lines = [*self.of_backends(), "", *self.of_areas(), ""]
            self.file.write_text("\n".join(lines), encoding="utf-8")
            terminalreporter.write_line(f"wrote {self.file}")

    def of_backends(self) -> list[str]:
        """A row of each backend and device: its version, cases of each precision, areas, and the worst error."""
        today = f"{datetime.now(timezone.utc):%Y-%m-%d}"
        rows = []
        for place in self.worst:
            here = {(dtype, area): found for (*at, dtype, area), found in self.states.items() if tuple(at) == place}
            areas = {area for (_, area), found in here.items() if found["passed"] + found["failed"]}
            passed = areas - {area for (_, area), found in here.items() if found["failed"]}
            counts = [_count(*(x for (of, _), x in here.items() if of == dtype)) for dtype in runner.DTYPES]
            version = " ".join(map(str, next(iter(backends.get(place[0]).describe().items()))))
            worst = f"{self.worst[place]:.2g}"
            rows.append([" ".join(place), version, *counts, f"{len(passed)} of {len(areas)}", worst, today])
        return table(["", "version", *runner.DTYPES, "areas passed", "worst error", "date"], rows)

    def of_areas(self) -> list[str]:
        """A row of each area, with the cases of each target."""
        targets = list(dict.fromkeys(where[:3] for where in self.states))
        areas = [area for area in AREAS if any(where[3] == area for where in self.states)]
        rows = [[area, *(_count(self.states.get((*t, area), Counter())) for t in targets)] for area in areas]
        return table(["area", *map(" ".join, targets)], rows)


def measured(found: Sequence[runner.Outcome]) -> tuple[list[str], dict[str, int], float]:
    """What a test hands to the table: its target and area, its cases by state, and the worst error in tolerances."""
    first = found[0]
    states = Counter("failed" if not outcome.ok else outcome.state for outcome in found)
    units = [math.inf if outcome.state == "raised" else outcome.units for outcome in found]
    worst = float(max((x for x in units if not math.isnan(x)), default=0.0))  # xdist sends no numbers of NumPy
    return [first.backend, first.device, first.dtype, first.area], dict(states), worst


def _count(*found: Counter[str]) -> str:
    states: Counter[str] = sum(found, Counter())
    ran = states["passed"] + states["failed"]
    total = ran + states["left out"]
    if states["failed"]:
        return f"{states['failed']:,} FAIL of {total:,}"
    return "not run" if not ran else f"{ran:,} passed" + (f" of {total:,}" if total > ran else "")


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    """Lines of Markdown."""
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]
