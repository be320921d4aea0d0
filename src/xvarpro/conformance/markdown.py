"""A record as Markdown: for a comment on a change, the summary of a job, a page of documentation."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from xvarpro.conformance import words
from xvarpro.conformance.words import Fields


def page(record: Fields) -> str:
    """The whole report.

    Parameters
    ----------
    record : mapping
        What `Report.record` makes and `read` reads.
    """
    return "\n".join(_page(record)).rstrip("\n") + "\n"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of a table; nothing in a cell is markup."""
    lines = ["| " + " | ".join(plain(x) for x in row) + " |" for row in (columns, *rows)]
    return [lines[0], "|" + "---|" * len(columns), *lines[1:]]


def plain(text: str) -> str:
    """Text on one line that shows as it is."""
    return re.sub(r"([\\`*_<|])", r"\\\1", " ".join(text.split()))


def _page(record: Fields) -> Iterator[str]:
    verdict = words.verdict(record)
    yield f"# xvarpro conformance: {'passed' if record['ok'] else 'failed'}"
    yield from ("", f"{plain(verdict[:1].upper() + verdict[1:])}. xvarpro {record['xvarpro']}, {record['date']}.", "")
    if record["processors"]:
        yield from _section("Processor paths", words.PROCESSORS, words.processors(record))
    if record["targets"]:
        yield from (words.LEGEND, "", *_matrix(record, _field), "")
    if record["failures"]:
        yield from ("## Failures", "")
        for failure in record["failures"]:
            yield from _failure(failure)
    inapplicable = [
        (f"{x['area']}/{x['check']}", str(x["cases"]), x["reason"], _where(x, record)) for x in record["inapplicable"]
    ]
    yield from _section("What does not apply", ("check", "cases", "why", "targets"), inapplicable)
    exemptions = [(words.exempted(e), str(e["cases"]), str(e["needed"]), e["reason"]) for e in record["exemptions"]]
    yield from _section("Exemptions", ("tolerance", "cases", "that needed it", "why"), exemptions)
    yield from _section("Versions and precision switches", ("", ""), words.versions(record))
    checks = [
        (f"{c['area']}/{c['check']}", c["says"], str(c["cases"]), words.units(c["units"])) for c in record["checks"]
    ]
    yield from _section("What was checked", ("check", "statement", "cases", "worst, in tolerances"), checks)
    yield from ("## Seconds", "", *_matrix(record, lambda cell: f"{cell['seconds']:.1f}"))


def _section(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    if rows := list(rows):
        yield from (f"## {title}", "", *table(columns, rows), "")


def _matrix(record: Fields, field: Callable[[Fields], str]) -> list[str]:
    """Areas and targets."""
    found = [[(t["areas"].get(area)) for t in record["targets"]] for area in record["areas"]]
    rows = zip(record["areas"], found, strict=True)
    return table(
        ("area", *map(words.target, record["targets"])),
        [(area, *("" if cell is None else field(cell) for cell in cells)) for area, cells in rows],
    )


def _field(cell: Fields) -> str:
    return ", ".join(filter(None, (words.count(cell), words.units(cell["units"]))))


def _where(found: Fields, record: Fields) -> str:
    return "all" if len(found["targets"]) == len(record["targets"]) else ", ".join(found["targets"])


def _failure(failure: Fields) -> Iterator[str]:
    yield f"### {words.target(failure)}: {failure['address']}"
    yield from ("", plain(failure["says"]), "")
    if failure["exemption"]:
        yield from (f"The tolerance is wider already: {plain(failure['exemption'])}", "")
    for value in failure["values"]:
        yield from (f"{plain(value['what'])}: {words.off(value)}", "")
        yield from (*table(("at", "got", "want"), words.entries(value)), "")
    if failure["note"]:
        yield from ("```", failure["note"].rstrip(), "```", "")
    yield from ("```sh", failure["command"], "```", "")
