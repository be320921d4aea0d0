"""``xvarpro conformance``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from tqdm import tqdm

from xvarpro.cli import options, programs, tables
from xvarpro.conformance import words
from xvarpro.conformance.changes import changes
from xvarpro.conformance.processors import Request, merged, paths, prove
from xvarpro.conformance.record import check_suffix, read, write
from xvarpro.conformance.report import Outcome, Report, address
from xvarpro.conformance.runner import DTYPES, absent, run, selection, targets, usable
from xvarpro.conformance.suite import Target
from xvarpro.errors import ProblemError

WORTHWHILE = 500  # cases from which on several processes share them
SHOWN = 20  # causes of failures on a screen; reports have all of them


def command(
    backend: Annotated[
        str | None, typer.Option(help="Backends, with commas. Default: every one that is installed and has a device.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="Devices, with commas, such as cpu,cuda:0. Default: each backend's first.")
    ] = None,
    dtype: Annotated[str, typer.Option(help="Precisions, with commas.")] = ",".join(DTYPES),
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="ADDRESS", help="Area, area/check, area/check/case or a pattern. May be given again."),
    ] = None,
    report: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Write .md or .json. May be given again."),
    ] = None,
    source: Annotated[
        Path | None, typer.Option("--from", metavar="FILE.json", help="Run nothing: show a report that was written.")
    ] = None,
    since: Annotated[
        Path | None,
        typer.Option(metavar="FILE.json", help="Say what changed since an earlier report; it decides the exit status."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A few cases of each check, for all of them: under five minutes.")
    ] = False,
    thorough: Annotated[
        bool, typer.Option(help="Compile every example in both precisions; by default one of its class.")
    ] = False,
    processors: Annotated[
        bool, typer.Option("--processors", help="Run on every kernel that the libraries have for this processor.")
    ] = False,
    path: Annotated[
        list[str] | None,
        typer.Option(metavar="PATH", help="With --processors: numpy/Haswell/2 or a pattern. May be given again."),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Processes. Default: one for each core, four at most; one for a GPU or few cases."
        ),
    ] = None,
    listed: Annotated[
        bool, typer.Option("--list", help="Run nothing: list addresses with their statements, or processor paths.")
    ] = False,
) -> None:
    """Check that backends give the right answers. Exit status 0: all pass; 1: something fails; 2: wrong use.

    With --since 1 says that something fails that did not before, or is gone.
    """
    screen = tables.console()
    if path and not processors:
        raise ProblemError("--path requires --processors; got --path alone: add --processors")
    if quick and thorough:
        raise ProblemError("--quick leaves out what --thorough adds; omit one of them")
    earlier = None if since is None else read(since)
    if listed:
        if processors:
            there = usable() if backend is None else options.listed(backend)
            screen.print("\n".join(each.name for each in paths(there, path or ())))
        else:
            _list(screen, only or ())
        return
    for file in report or ():
        check_suffix(file)
        file.parent.mkdir(parents=True, exist_ok=True)
    if source is not None:
        if backend or device or only or processors or quick:
            raise ProblemError(
                "--from shows a report as it was written; omit --backend, --device, --only, --processors and --quick"
            )
        record = read(source)
    else:
        # arrays of the suite are small: where cores are shared, threads that wait for each other take ten times as long
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        programs.keep()
        names = None if backend is None else options.listed(backend)
        if processors and device is not None:
            raise ProblemError(f"--processors requires the cpu; got --device {device}: omit it")
        devices = ["cpu"] if processors else None if device is None else options.listed(device)
        among = targets(names, devices, options.listed(dtype), thorough, quick)
        found = _prove(among, only or (), path or (), jobs) if processors else _run(among, only or (), jobs)
        record = replace(found, absent=absent() if names is None else {}).record()
    if earlier is not None:
        record["since"] = changes(record, earlier)
    _show(screen, record)
    for file in report or ():
        write(record, file)
    if report:
        screen.print(f"wrote {', '.join(map(str, report))}")
    if not (record["ok"] if earlier is None else record["since"]["ok"]):
        raise typer.Exit(1)


def _total(among: Sequence[Target], only: Sequence[str]) -> int:
    chosen = selection(only)
    return sum(len(cases) for target in among for check, cases in chosen if target.dtype in check.dtypes)


def _run(among: Sequence[Target], only: Sequence[str], jobs: int | None) -> Report:
    """The suite, with a bar where there is a terminal."""
    total, failed = _total(among, only), 0
    with tqdm(total=total, unit="case", leave=False, disable=None) as bar:

        def advance(outcome: Outcome) -> None:
            nonlocal failed
            failed += not outcome.ok
            bar.set_description_str(f"{' '.join(outcome.target)} {outcome.area}", refresh=False)
            bar.set_postfix_str(f"{failed} failed" if failed else "", refresh=False)
            bar.update()

        return run(among, only, advance, _jobs(among, total) if jobs is None else jobs)


def _prove(among: Sequence[Target], only: Sequence[str], path: Sequence[str], jobs: int | None) -> Report:
    """The suite on every processor path of the backends, with a bar where there is a terminal."""
    if not (total := _total(among, only)):
        raise ProblemError(
            f"--only must select a check of the precisions; got {', '.join(only)}; add the other precision"
        )
    jobs = _jobs(among, total) if jobs is None else jobs
    dtypes = tuple(dict.fromkeys(target.dtype for target in among))
    chosen = paths(dict.fromkeys(target.backend.name for target in among), path)
    found = []
    with tqdm(chosen, unit="path", leave=False, disable=None) as bar:
        for each in bar:
            bar.set_description_str(each.name)
            shared = max(1, jobs // (each.threads or 1))
            found.append(prove(Request(each, dtypes, tuple(only), among[0].thorough, among[0].quick, shared)))
    return merged(found, only=tuple(only), quick=among[0].quick)


def _jobs(among: Sequence[Target], total: int) -> int:
    """Processes that share a GPU would each want all of its memory, and a process is seconds of imports."""
    # array-api-strict calls memory of the host "device1" as well
    alone = total < WORTHWHILE or not all(target.device.startswith(("cpu", "device")) for target in among)
    return 1 if alone else min(os.cpu_count() or 1, 4)


def _list(screen: Console, only: Sequence[str]) -> None:
    """Checks, and their cases where some were asked for."""
    for check, cases in selection(only):
        where = address(check.area, check.name, "")
        screen.print(f"{where}  ({words.number(len(cases), 'case')})", style="bold")
        screen.print(f"    {check.says}")
        for case in cases if only else ():
            screen.print(f"    {address(check.area, check.name, case)}")


def _show(screen: Console, record: words.Fields) -> None:
    screen.print(f"xvarpro {record['xvarpro']} conformance, {record['date']}", style="bold")
    if record["processors"]:
        out = tables.table(screen, *words.PROCESSORS, right=("passed", "failed", "worst"), wrap=words.PROCESSORS[-1])
        for proof, row in zip(record["processors"], words.processors(record), strict=True):
            out.add_row(*row, style="bold red" if proof["state"] in ("failed", "not proven") else "")
        screen.print(out)
    if record["targets"]:
        _matrix(screen, record)
        screen.print(words.LEGEND, style="dim")
    for i, cause in enumerate(record["causes"][:SHOWN], 1):
        _cause(screen, i, cause, record["failures"][cause["failures"][0]])
    if (more := len(record["causes"]) - SHOWN) > 0:
        screen.print(f"\nand {more} more: --report FILE.md has all of them", style="bold red")
    for title, state in (("left out", "left out"), ("does not apply", "inapplicable")):
        if rows := [(n, f"{why} ({checks}; {where})") for n, why, checks, where in words.not_run(record, state)]:
            screen.print(f"\n{title}", style="bold")
            screen.print(tables.facts(rows))
    if record["exemptions"]:
        screen.print("\nexemptions", style="bold")
        for e in record["exemptions"]:
            screen.print(f"{words.exempted(e)}, needed by {e['needed']} of {e['cases']} cases: {e['reason']}")
    screen.print("\nproven against", style="bold")
    columns, counts = words.proofs(record)
    out = tables.table(screen, *columns, right=columns[1:], wrap="area")
    for found in counts:
        out.add_row(*found)
    screen.print(out)
    screen.print("\nversions", style="bold")
    screen.print(tables.facts(words.versions(record)))
    style = "green" if record["ok"] else "bold red"
    screen.print(f"\n{words.verdict(record)}, {words.seconds(record):.0f} s", style=style)
    if "since" in record:
        for row in words.changed(record):
            screen.print("; ".join(filter(None, row)))
        screen.print(words.since(record["since"]), style="green" if record["since"]["ok"] else "bold red")


def _matrix(screen: Console, record: words.Fields) -> None:
    """Areas and targets, as many targets side by side as the screen holds."""
    widest = max(len(line) for cell in words.cells(record) for line in _field(cell).split("\n"))
    widest = max(widest, *(len(name) for t in record["targets"] for name in (t["backend"], t["device"], t["dtype"])))
    side = max(1, (screen.width - max(map(len, record["areas"]))) // (widest + 2))
    for start in range(0, len(record["targets"]), side):
        shown = record["targets"][start : start + side]
        names = ["\n".join((t["backend"], t["device"], t["dtype"])) for t in shown]
        out = tables.table(screen, "area", *names, right=names)
        for area in record["areas"]:
            found = [t["areas"].get(area) for t in shown]
            fails = any(cell and cell["failed"] for cell in found)
            out.add_row(area, *map(_field, found), style="bold red" if fails else "")
        screen.print(out)


def _field(cell: words.Fields | None) -> str:
    return "" if cell is None else "\n".join(words.field(cell))


def _cause(screen: Console, i: int, cause: words.Fields, worst: words.Fields) -> None:
    screen.print(f"\n{i}. {worst['state']}: {words.title(cause)}", style="bold red")
    screen.print(words.extent(cause))
    screen.print(worst["says"])
    screen.print(words.blame(cause), style="bold")
    if worst["exemption"]:
        screen.print(f"the tolerance is wider already: {worst['exemption']}")
    screen.print(f"the worst: {words.target(worst)} {worst['address']}")
    for value in worst["values"]:
        screen.print(f"{value['what']}: {words.off(value)}")
        out = tables.table(screen, "at", "got", "want", wrap="want")
        for row in words.entries(value):
            out.add_row(*row)
        screen.print(out)
    if worst["note"]:
        screen.print(worst["note"].rstrip())
    screen.print(worst["command"], style="cyan", soft_wrap=True)
