"""Columns of numbers from a CSV file, as spreadsheets and instruments write them."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from xvarpro.errors import ProblemError

SEPARATORS = {",": "comma", ";": "semicolon", "\t": "tab"}
MISSING = ("", "-", "na", "n/a", "nan", "none", "null")


def read(path: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    r"""Columns of a file whose first line has their names; a cell without a number is NaN.

    Parameters
    ----------
    path : Path
        Text in UTF-8, with commas, semicolons or tabs between cells; the first line decides which. Empty lines and
        those that begin with ``#`` are left out. Where the separator is no comma, a comma may be the decimal sign.
    names : sequence of str
        The columns to read.

    Returns
    -------
    dict of str to array, shape (m,)

    Raises
    ------
    ProblemError
        The file is no such text, has no names, no rows or no such column, a line has another number of cells than the
        first, or a cell is neither a number nor empty. The message says where.
    OSError
        The file cannot be opened.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from xvarpro.cli.columns import read
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "data.csv"
    >>> _ = path.write_text("t;U\n0,5;1\n1,0;\n", encoding="utf-8")
    >>> read(path, ["t", "U"])
    {'t': array([0.5, 1. ]), 'U': array([ 1., nan])}
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ProblemError(f"{path} is no text in UTF-8. Save it as CSV UTF-8") from error
    lines = [(i, line) for i, line in enumerate(text.splitlines(), 1) if line.strip() and not line.startswith("#")]
    if not lines:
        raise ProblemError(f"{path} has no lines but empty ones and comments: a line of names and rows are required")
    separator = max(SEPARATORS, key=lambda sign: len(_cells(lines[0][1], sign)))
    head = _cells(lines[0][1], separator)
    places = [_place(path, head, name) for name in names]
    if len(lines) == 1:
        raise ProblemError(f"{path} has the names {', '.join(head)} and no rows")
    rows = [(i, _cells(line, separator)) for i, line in lines[1:]]
    for i, row in rows:
        if len(row) < len(head) or any(row[len(head) :]):
            raise ProblemError(f"{path}, line {i}: as many cells as names are required, {len(head)}; got {len(row)}")
    cells = {name: [(i, row[at]) for i, row in rows] for name, at in zip(names, places, strict=True)}
    comma = separator != "," and _comma(path, cells)
    return {
        name: np.array([_number(path, i, name, cell, comma) for i, cell in column]) for name, column in cells.items()
    }


def _cells(line: str, separator: str) -> list[str]:
    return [cell.strip() for cell in next(csv.reader([line], delimiter=separator, skipinitialspace=True))]


def _place(path: Path, head: list[str], name: str) -> int:
    """Where a column is."""
    if all(_is_number(cell) for cell in head):
        raise ProblemError(f"{path}: the first line must hold the names of the columns; got {', '.join(head)}")
    if (found := head.count(name)) == 1:
        return head.index(name)
    if found:
        raise ProblemError(f"{path} has {found} columns {name!r}: rename all but one")
    hint = "" if len(head) > 1 else f" The first line has no {', '.join(SEPARATORS.values())} between names"
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
        raise ProblemError(f"{path}, line {line}, column {name!r}: a number or an empty cell is required; got {cell!r}")
    if not math.isfinite(x := float(plain)):
        raise ProblemError(f"{path}, line {line}, column {name!r}: a finite number is required; got {cell!r}")
    return x


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell  # Python's own sign between digits
