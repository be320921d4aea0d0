"""Tables: of a text, and of pandas, which is optional."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pandas import DataFrame


def data_frame(columns: Mapping[str, Any], names: Sequence[str]) -> DataFrame:
    """Columns as a data frame whose rows have names; an ImportError with the pip command without pandas."""
    try:
        from pandas import DataFrame
    except ImportError as error:
        raise ImportError("data frames need pandas: pip install 'xvarpro[pandas]'", name="pandas") from error
    return DataFrame(columns, index=names)


def aligned(rows: Iterable[tuple[str, ...]]) -> list[str]:
    """Rows of a text as lines, in columns."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  " + "   ".join(x.ljust(n) for x, n in zip(row, widths, strict=True)).rstrip() for row in rows]
