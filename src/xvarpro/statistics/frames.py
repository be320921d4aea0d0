"""Tables of pandas, which is optional."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
