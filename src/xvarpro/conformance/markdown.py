"""A record as Markdown: for a comment on a change, the summary of a job, a page of documentation."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from xvarpro.conformance import words
from xvarpro.conformance.suite import AGAINST
from xvarpro.conformance.words import Fields

VALUES = 3  # of a failure that are shown
CASES = 50  # of a cause that are named


def page(record: Fields) -> str:
    """The whole report.

    Parameters
    ----------
    record : mapping
        What `Report.record` makes and `read` reads.
    """
    return "\n".join(_page(record)).rstrip("\n") + "\n"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of a table; nothing in a cell is markup, and its lines stay."""
    lines = ["| " + " | ".join("<br>".join(map(plain, x.split("\n"))) for x in row) + " |" for row in (columns, *rows)]
    return [lines[0], "|" + "---|" * len(columns), *lines[1:]]


def plain(text: str) -> str:
    """Text on one line that shows as it is."""
    return re.sub(r"([\\`*_<|])", r"\\\1", " ".join(re.split(r"[ \t\r\n]+", text.strip())))


def _page(record: Fields) -> Iterator[str]:
    verdict = words.verdict(record)
    yield f"# xvarpro conformance: {'passed' if record['ok'] else 'failed'}"
    yield from ("", f"{plain(verdict[:1].upper() + verdict[1:])}. xvarpro {record['xvarpro']}, {record['date']}.", "")
    if "since" in record:
        text = words.since(record["since"])
        yield from (f"{plain(text[:1].upper() + text[1:])}.", "")
        yield from _section("What changed", ("what", "where", "targets"), words.changed(record))
    if record["processors"]:
        yield from _section("Processor paths", words.PROCESSORS, words.processors(record))
    if record["targets"]:
        yield from (*_matrix(record, _field), "", words.LEGEND, "")
    if record["causes"]:
        yield from ("## Failures", "")
        for i, cause in enumerate(record["causes"], 1):
            yield from _cause(i, cause, record)
    yield from _section("What it is proven against", *words.proofs(record))
    yield from _section("", ("", "what that is"), ((kind, AGAINST[kind]) for kind in words.proofs(record)[0][1:]))
    yield from _section("What was left out", words.NOT_RUN, words.not_run(record, "left out"))
    yield from _section("What does not apply", words.NOT_RUN, words.not_run(record, "inapplicable"))
    exemptions = [(words.exempted(e), str(e["cases"]), str(e["needed"]), e["reason"]) for e in record["exemptions"]]
    yield from _section("Exemptions", ("tolerance", "cases", "that needed it", "why"), exemptions)
    yield from _section("Versions and precision switches", ("", "version"), words.versions(record))
    checks = [
        (f"{c['area']}/{c['check']}", c["says"], c["against"], f"{c['cases']:,}", words.units(c["units"]))
        for c in record["checks"]
    ]
    columns = ("check", "statement", "proven against", "cases", "worst, in tolerances")
    yield from _section("What was checked", columns, checks)
    yield from ("## Seconds", "", *_matrix(record, lambda cell: f"{cell['seconds']:.1f}"))


def _section(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    if rows := list(rows):
        yield from ((f"## {title}", "") if title else ())
        yield from (*table(columns, rows), "")


def _matrix(record: Fields, field: Callable[[Fields], str]) -> list[str]:
    """Areas and targets; a line of a field does not wrap."""
    names = [f"{t['backend']}\n{t['device']}\n{t['dtype']}" for t in record["targets"]]
    found = [[t["areas"].get(area) for t in record["targets"]] for area in record["areas"]]
    rows = [["" if cell is None else field(cell) for cell in cells] for cells in found]
    lines = table(("area", *names), [(area, *row) for area, row in zip(record["areas"], rows, strict=True)])
    return [re.sub(r"([\d,]+\xa0FAIL)", r"**\1**", line) for line in lines]


def _field(cell: Fields) -> str:
    return "\n".join(words.field(cell)).replace(" ", "\xa0")


def _cause(i: int, cause: Fields, record: Fields) -> Iterator[str]:
    """One box: whose fault, how much fails, the worst of it, and the rest by name."""
    found = [record["failures"][place] for place in cause["failures"]]
    worst = found[0]
    yield f"### {i}. {words.title(cause)}"
    yield from ("", plain(worst["says"]), "", f"**{plain(words.blame(cause))}**", "")
    yield from (plain(words.extent(cause)), "")
    if worst["exemption"]:
        yield from (f"The tolerance is wider already: {plain(worst['exemption'])}", "")
    yield from (f"The worst: {plain(words.target(worst))}, {plain(worst['address'])}", "")
    for value in worst["values"][:VALUES]:
        yield from (f"{plain(value['what'])}: {words.off(value)}", "")
        yield from (*table(("at", "got", "want"), words.entries(value)), "")
    if (more := len(worst["values"]) - VALUES) > 0:
        yield from (f"and {words.number(more, 'value')} more of this case", "")
    if worst["note"]:
        yield from ("```", worst["note"].rstrip(), "```", "")
    yield from ("```sh", worst["command"], "```", "")
    if len(found) > 1:
        rows = [(each["address"], words.target(each), words.units(each["units"])) for each in found[:CASES]]
        lines = table(("case", "target", "worst, in tolerances"), rows)
        which = f"all {len(found)}" if len(found) <= CASES else f"the worst {CASES}; --report FILE.json has all"
        yield from (f"<details><summary>{which}</summary>", "", *lines, "", "</details>", "")
