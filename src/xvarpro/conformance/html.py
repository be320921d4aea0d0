"""A record as one page that needs nothing else: readable in the light, in the dark, on paper and without colours."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from importlib.resources import files
from itertools import groupby
from typing import Any

from xvarpro.conformance import words

# worst errors in tolerances, a step of the scale each: what passes with room to spare, what passes, what fails
SCALE = (
    (0.01, "at most 0.01"),
    (0.1, "at most 0.1"),
    (1.0, "at most 1"),
    (10.0, "above 1: fails"),
    (1e3, "above 10"),
    (math.inf, "above 1000"),
)


def page(record: Mapping[str, Any]) -> str:
    """The whole report.

    Parameters
    ----------
    record : mapping
        What `Report.record` makes and `read` reads.
    """
    here = files("xvarpro.conformance")
    title = f"xvarpro conformance: {'passed' if record['ok'] else 'failed'}"
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            _element("title", title),
            f"<style>\n{here.joinpath('page.css').read_text(encoding='utf-8')}</style>",
            "</head>",
            "<body>",
            "<main>",
            *_body(record),
            "</main>",
            f"<script>\n{here.joinpath('page.js').read_text(encoding='utf-8')}</script>",
            "</body>",
            "</html>",
            "",
        ]
    )


def _body(record: Mapping[str, Any]) -> Iterator[str]:
    state = "passed" if record["ok"] else "failed"
    yield f'<h1>xvarpro conformance <span class="verdict {state}">{state}</span></h1>'
    yield _element("p", words.verdict(record), "lead")
    yield _element("p", f"xvarpro {record['xvarpro']}, {record['date']}, {words.seconds(record):.0f} s", "dim")
    yield _element("h2", "Targets and areas")
    yield _element("p", words.LEGEND)
    yield from _matrix(record, _field)
    yield from _scale()
    if record["failures"]:
        yield _element("h2", "Failures")
        yield from _failures(record["failures"])
    yield _element("h2", "Versions and precision switches")
    yield from _table(("", ""), words.versions(record), header=True)
    for title, (columns, *rows) in (
        ("Exemptions", words.exemptions(record)),
        ("What does not apply", words.inapplicable(record)),
    ):
        if rows:
            yield _element("h2", title)
            yield from _table(columns, rows)
    yield _element("h2", "What was checked")
    for area, checks in groupby(record["checks"], key=lambda c: c["area"]):
        yield from _checks(area, list(checks))
    yield _element("h2", "Seconds")
    yield from _matrix(record, lambda cell: f"<td>{cell['seconds']:.1f}</td>")


# -- the matrix --------------------------------------------------------------------------------------------------------


def _matrix(record: Mapping[str, Any], field: Any) -> Iterator[str]:
    yield '<div class="wide"><table class="matrix">'
    heads = (
        f'<th scope="col">{escape(t["backend"])}<br>{escape(t["device"])}<br>{escape(t["dtype"])}</th>'
        for t in record["targets"]
    )
    yield f"<thead><tr><td></td>{''.join(heads)}</tr></thead>"
    yield "<tbody>"
    for area in record["areas"]:
        found = (t["areas"].get(area) for t in record["targets"])
        fields = "".join("<td></td>" if cell is None else field(cell) for cell in found)
        yield f'<tr><th scope="row">{escape(area)}</th>{fields}</tr>'
    yield "</tbody></table></div>"


def _field(cell: Mapping[str, Any]) -> str:
    what = f'<span class="count">{escape(words.count(cell))}</span>'
    return f'<td class="{_step(cell)}">{what}<span class="units">{words.units(cell["units"])}</span></td>'


def _step(cell: Mapping[str, Any]) -> str:
    """Where a field is on the scale."""
    if cell["units"] is None:
        return "none"
    return f"step{next(i for i, (bound, _) in enumerate(SCALE) if float(cell['units']) <= bound)}"


def _scale() -> Iterator[str]:
    yield '<p class="scale">Worst error, in tolerances:'
    yield from (f'<span class="step{i}">{escape(name)}</span>' for i, (_, name) in enumerate(SCALE))
    yield "</p>"


# -- the rest ----------------------------------------------------------------------------------------------------------


def _failures(failures: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for i, failure in enumerate(failures):
        yield f"<details{' open' if i == 0 else ''}>"
        far = f"{words.units(failure['units'])} tolerances" if failure["state"] == "failed" else "raised"
        yield (
            f"<summary><code>{escape(failure['address'])}</code> <span>{escape(words.target(failure))}</span> "
            f'<span class="far">{escape(far)}</span></summary>'
        )
        yield _element("p", failure["says"], "says")
        if failure["exemption"]:
            yield _element("p", f"The tolerance is wider already: {failure['exemption']}")
        for value in failure["values"]:
            yield f"<p><strong>{escape(value['what'])}</strong>: {escape(words.off(value))}</p>"
            yield from _table(("at", "got", "want"), words.entries(value), "values")
        if failure["note"]:
            yield f"<pre>{escape(failure['note'].rstrip())}</pre>"
        yield f'<div class="command"><code>{escape(failure["command"])}</code><button type="button">Copy</button></div>'
        yield "</details>"


def _checks(area: str, checks: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield f"<details><summary>{escape(area)} <span>{words.number(len(checks), 'statement')}</span></summary>"
    rows = ((c["check"], c["says"], str(c["cases"]), words.units(c["units"]), f"{c['seconds']:.1f}") for c in checks)
    yield from _table(("statement", "", "cases", "worst, in tolerances", "seconds"), rows)
    yield "</details>"


def _table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], name: str = "list", header: bool = False
) -> Iterator[str]:
    yield f'<div class="wide"><table class="{name}">'
    if any(columns):
        yield "<thead><tr>" + "".join(f'<th scope="col">{escape(c)}</th>' for c in columns) + "</tr></thead>"
    yield "<tbody>"
    for first, *rest in rows:
        head = f'<th scope="row">{escape(first)}</th>' if header else _element("td", first)
        yield f"<tr>{head}{''.join(_element('td', x) for x in rest)}</tr>"
    yield "</tbody></table></div>"


def _element(tag: str, text: str, name: str = "") -> str:
    named = f' class="{name}"' if name else ""
    return f"<{tag}{named}>{escape(text)}</{tag}>"
