"""A report as a file: the record as it is, or made into a page."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from xvarpro.conformance import html, markdown
from xvarpro.errors import ProblemError

FORMAT = 1  # of the record; goes up where a reader of the last one would misread it


def _json(record: Mapping[str, Any]) -> str:
    return json.dumps(record, indent=1, allow_nan=False, default=str) + "\n"


RENDERINGS: dict[str, Callable[[Mapping[str, Any]], str]] = {".html": html.page, ".md": markdown.page, ".json": _json}


def rendering(path: str | Path) -> Callable[[Mapping[str, Any]], str]:
    """What makes the text of a report from its record, by the ending of the file.

    Raises
    ------
    ProblemError
        Nothing makes files of that ending.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in RENDERINGS:
        raise ProblemError(f"a report ends in {', '.join(RENDERINGS)}: got {str(path)!r}")
    return RENDERINGS[suffix]


def write(record: Mapping[str, Any], path: str | Path) -> None:
    """A record as a page (``.html``), text (``.md``) or itself (``.json``).

    Raises
    ------
    ProblemError
        Another ending.
    """
    Path(path).write_text(rendering(path)(record), encoding="utf-8")


def read(path: str | Path) -> dict[str, Any]:
    """The record in a JSON report, to render it again or to merge it with others.

    Raises
    ------
    ProblemError
        The file is no report, or of a format that this version does not read.
    """
    try:
        record = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ProblemError(f"{path} is no JSON: {error}") from error
    if not isinstance(record, dict) or "targets" not in record:
        raise ProblemError(f"{path} is no conformance report: write one with --report {Path(path).stem}.json")
    if record.get("format") != FORMAT:
        raise ProblemError(
            f"{path} has format {record.get('format')!r}, this version reads {FORMAT}: run the suite again"
        )
    return record
