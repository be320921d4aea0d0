"""A report as JSON: its format, its files, and comparisons that failed as JSON takes them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from xvarpro.conformance import markdown
from xvarpro.errors import ProblemError
from xvarpro.results.files import write_atomically

if TYPE_CHECKING:
    from xvarpro.conformance.suite import Measured

Record = Mapping[str, Any]

FORMAT = 3  # goes up where a reader of the last one would misread it
ENTRIES = 6  # of an array that is off: those that differ most
LONGEST = 2000  # characters of anything else


def check_suffix(path: str | Path) -> str:
    """The ending of a report's file.

    Raises
    ------
    ProblemError
        Not ``.md`` or ``.json``.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in (".md", ".json"):
        raise ProblemError(f"a report's file must end in .md or .json; got {str(path)!r}")
    return suffix


def write(record: Record, path: str | Path) -> None:
    """Write a record as a page (``.md``) or as it is (``.json``).

    Raises
    ------
    ProblemError
        Another ending.
    """
    page = check_suffix(path) == ".md"
    text = markdown.page(record) if page else json.dumps(record, indent=1, allow_nan=False, default=str) + "\n"
    write_atomically(path, lambda file: file.write(text.encode()))


def read(path: str | Path) -> dict[str, Any]:
    """Read the record of a JSON report, to render it again or to merge it with others.

    Raises
    ------
    ProblemError
        The file is no report, or of a format that this version does not read.
    """
    try:
        record = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ProblemError(f"a report must be JSON; got {path}: {error}; write one with --report FILE.json") from error
    if not isinstance(record, dict) or "targets" not in record:
        raise ProblemError(
            f"a conformance report is required; got {path}; write one with --report {Path(path).stem}.json"
        )
    if record.get("format") != FORMAT:
        raise ProblemError(
            f"a report of format {FORMAT} is required; {path} has format {record.get('format')!r}; run the suite again"
        )
    return record


def compared(m: Measured) -> dict[str, Any]:
    """A comparison as JSON takes it: of two arrays of one shape the entries that differ most."""
    out = {"what": m.what, "error": number(m.error), "tolerance": m.tolerance, "units": number(m.units)}
    if m.difference is None:
        return {**out, "got": _shortened(m.got), "want": _shortened(m.want)}
    got, want, difference = np.asarray(m.got), np.asarray(m.want), np.nan_to_num(m.difference, nan=np.inf)
    most = np.argsort(-difference, axis=None, kind="stable")[: min(ENTRIES, np.count_nonzero(difference))]
    places = [np.unravel_index(i, difference.shape) for i in most]
    return {
        **out,
        "shape": list(difference.shape),
        "differ": int(np.count_nonzero(difference)),
        "size": difference.size,
        "entries": [{"at": [int(i) for i in at], "got": str(got[at]), "want": str(want[at])} for at in places],
    }


def _shortened(x: object) -> str:
    """An array or anything else in a few lines; shapes first, as they are what differs."""
    if isinstance(x, np.ndarray):
        return f"shape {x.shape}: " + np.array2string(x, threshold=ENTRIES, edgeitems=2, separator=", ")
    text = repr(x)
    return text if len(text) <= LONGEST else text[:LONGEST] + " ..."


def number(x: float) -> float | str | None:
    """A number as JSON takes it, and ``float`` takes back: null where there is none."""
    x = float(x)
    return x if math.isfinite(x) else None if math.isnan(x) else str(x)
