"""A record as Markdown: for a comment on a change, a log, a page of documentation."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from xvarpro.conformance import words


def page(record: Mapping[str, Any]) -> str:
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


def matrix(record: Mapping[str, Any]) -> list[str]:
    """Areas and targets."""
    columns = ["area", *(words.target(t) for t in record["targets"])]
    rows = [[area, *(_field(t["areas"].get(area)) for t in record["targets"])] for area in record["areas"]]
    return table(columns, rows)


def _field(cell: Mapping[str, Any] | None) -> str:
    if cell is None:
        return ""
    return ", ".join(filter(None, (words.count(cell), words.units(cell["units"]))))


def _page(record: Mapping[str, Any]) -> Iterator[str]:
    yield f"# xvarpro conformance: {'passed' if record['ok'] else 'failed'}"
    yield ""
    yield f"{_sentence(words.verdict(record))} xvarpro {record['xvarpro']}, {record['date']}."
    yield from ("", words.LEGEND, "", *matrix(record), "")
    if record["failures"]:
        yield from ("## Failures", "")
        for failure in record["failures"]:
            yield from _failure(failure)
    for title, (columns, *rows) in (
        ("What does not apply", words.inapplicable(record)),
        ("Exemptions", words.exemptions(record)),
    ):
        if rows:
            yield from (f"## {title}", "", *table(columns, rows), "")
    yield from ("## Versions", "")
    yield from table(("", ""), words.versions(record))
    yield from ("", "## Seconds", "")
    yield from table(
        ("area", *(words.target(t) for t in record["targets"])),
        [[area, *(_seconds(t["areas"].get(area)) for t in record["targets"])] for area in record["areas"]],
    )


def _seconds(cell: Mapping[str, Any] | None) -> str:
    return "" if cell is None else f"{cell['seconds']:.1f}"


def _failure(failure: Mapping[str, Any]) -> Iterator[str]:
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


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."
