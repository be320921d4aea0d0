"""Columns of numbers from a CSV file, as spreadsheets and instruments write them."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path

import numpy as np

from xvarpro.errors import ProblemError

SEPARATORS = {",": "comma", ";": "semicolon", "\t": "tab"}
Column = list[tuple[int, str]]  # cells, each with its line
UNIT = re.compile(r"\S\s*\[([^][]+)\]$|\S\s+\(((?:[^()]|\([^()]*\))+)\)$|\S\s+/\s*(\S.*)$")
MISSING = ("", "-", "na", "n/a", "nan", "none", "null")


def read(path: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    r"""Columns of a file whose first line has their names; a cell without a number is NaN, or NaT among dates.

    It is text in UTF-8, with commas, semicolons, tabs or blanks between cells; the first line decides which. Empty
    lines and those that begin with ``#`` are left out. Where the separator is no comma, a comma may be the decimal
    sign. A column may hold dates as ISO 8601 writes them, such as ``2026-03-01 14:30``: it is an array of datetime64,
    in universal time where a zone is given. A line break in a name counts as a space.

    Raises
    ------
    ProblemError
        The file is no such text, has no names, no rows or no such column, a line has another number of cells than the
        first, or a cell is neither a number nor empty. The message says where.
    OSError
        The file cannot be opened.
    """
    try:
        text: str | None = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        text = None
    if text is None or "\0" in text:  # as in UTF-16 without a mark at its start
        raise ProblemError(f"{path} is no text in UTF-8. Save it as CSV UTF-8")
    found = {sign: len(next(_rows(path, text, sign, strict=False), (0, ""))[1]) for sign in SEPARATORS}
    separator = max(found, key=found.__getitem__) if max(found.values()) > 1 else " "
    rows = list(_rows(path, text, separator))
    if not rows:
        raise ProblemError(f"{path} has no lines but empty ones and comments: a line of names and rows are required")
    head = [" ".join(cell.split()) for cell in rows.pop(0)[1]]
    places = [_place(path, head, name) for name in names]
    if not rows:
        raise ProblemError(f"{path} has the names {', '.join(head)} and no rows")
    for i, row in rows:
        if len(row) < len(head) or any(row[len(head) :]):
            raise ProblemError(f"{path}, line {i}: as many cells as names are required, {len(head)}; got {len(row)}")
    cells = {name: [(i, row[at]) for i, row in rows] for name, at in zip(names, places, strict=True)}
    comma = separator != "," and _comma(path, cells)
    return {
        name: np.array(
            [_moment(path, i, name, cell) for i, cell in column]
            if _holds_dates(column)
            else [_number(path, i, name, cell, comma) for i, cell in column]
        )
        for name, column in cells.items()
    }


def unit(name: str) -> str:
    """The unit in the name of a column, such as ``t [s]``, ``t (s)`` or ``t / s``; an empty text if it has none.

    Examples
    --------
    >>> [unit(name) for name in ("time [s]", "t (1/ns)", "signal / mV", "m/z", "f(x)")]
    ['s', '1/ns', 'mV', '', '']
    """
    found = UNIT.search(" ".join(name.split()))
    return next(filter(None, found.groups())).strip() if found else ""


def _holds_dates(column: Column) -> bool:
    """Whether the first cell that is not empty is a date, and no number such as 2026."""
    first = next((cell for _, cell in column if cell.lower() not in MISSING), "")
    return not _is_number(first) and _date(first) is not None


def _moment(path: Path, line: int, name: str, cell: str) -> np.datetime64:
    found = _date(cell)
    if found is None and cell.lower() not in MISSING:
        raise ProblemError(
            f"{path}, line {line}, column {name!r}: a date or an empty cell is required; got {cell[:50]!r}"
        )
    return np.datetime64(found, "us")


def _date(cell: str) -> datetime | None:
    try:
        found = datetime.fromisoformat(cell)
    except ValueError:
        return None
    return found.astimezone(timezone.utc).replace(tzinfo=None) if found.tzinfo else found


def _rows(path: Path, text: str, separator: str, strict: bool = True) -> Iterator[tuple[int, list[str]]]:
    """Rows that are not empty, each with its line; `strict` refuses quotes that do not enclose a whole cell."""
    lines = ("\n" if line.startswith("#") else line for line in io.StringIO(text))
    if separator == " ":
        lines = (line.strip() + "\n" for line in lines)
    reader = csv.reader(lines, delimiter=separator, skipinitialspace=True, strict=strict)
    try:
        for row in reader:
            cells = [cell.strip() for cell in row]
            if any(cells):
                yield reader.line_num, cells
    except csv.Error as error:
        raise ProblemError(f"{path}, line {reader.line_num}: cells must be those of a CSV file; got {error}") from error


def _place(path: Path, head: list[str], name: str) -> int:
    """Where a column is."""
    if all(_is_number(cell) for cell in head):
        raise ProblemError(
            f"{path}: the first line that does not begin with # must hold the names of the columns; got "
            f"{', '.join(head)}"
        )
    wanted = " ".join(name.split())
    if (found := head.count(wanted)) == 1:
        return head.index(wanted)
    if found:
        raise ProblemError(f"{path} has {found} columns {name!r}: rename all but one")
    hint = "" if len(head) > 1 else f" The first line has no {', '.join(SEPARATORS.values())} or blank between names"
    raise ProblemError(f"{path} has no column {name!r}; its columns are {', '.join(map(repr, head))}.{hint}")


def _comma(path: Path, cells: dict[str, list[tuple[int, str]]]) -> bool:
    """Whether the comma is the decimal sign, which nothing tells where points occur as well."""
    signs = {sign: [at for column in cells.values() for at in column if sign in at[1]] for sign in ",."}
    if all(signs.values()):
        (i, one), (j, other) = signs[","][0], signs["."][0]
        raise ProblemError(f"{path} must have one decimal sign; got {one!r} in line {i} and {other!r} in line {j}")
    return bool(signs[","])


def _number(path: Path, line: int, name: str, cell: str, comma: bool) -> float:
    if cell.lower() in MISSING:
        return math.nan
    plain = cell.replace(",", ".") if comma else cell
    if not _is_number(plain):
        raise ProblemError(
            f"{path}, line {line}, column {name!r}: a number or an empty cell is required; got {cell[:50]!r}. "
            "A line of units or remarks begins with #"
        )
    if not math.isfinite(x := float(plain)):
        raise ProblemError(f"{path}, line {line}, column {name!r}: a finite number is required; got {cell[:50]!r}")
    return x


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell  # Python's own sign between digits
