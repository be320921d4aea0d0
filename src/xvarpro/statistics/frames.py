"""Results on the host: as NumPy's arrays, and as tables of a text, of pandas, which is optional, and of notebooks."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from xvarpro import backends
from xvarpro.core import trees
from xvarpro.errors import ProblemError, needs

if TYPE_CHECKING:
    from pandas import DataFrame
    from xarray import Dataset


def data_frame(columns: Mapping[str, Any], names: Sequence[Any]) -> DataFrame:
    """Columns as a data frame whose rows have names; an ImportError with the pip command without pandas."""
    with needs("a data frame", "pandas"):
        from pandas import DataFrame
    return DataFrame(columns, index=names)


def dataset(variables: Mapping[str, Any]) -> Dataset:
    """Axes and arrays as a dataset; an ImportError with the pip command without xarray."""
    with needs("a dataset", "xarray"):
        from xarray import Dataset
    return Dataset(variables)


def on_grid(x: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """An array (b, ...) in the shape of an image or a cube, (*shape, ...)."""
    if math.prod(shape) != len(x):
        raise ProblemError(f"shape must be of {len(x)} problems, such as (ny, nx) of an image; got {tuple(shape)}")
    return x.reshape(*shape, *x.shape[1:])


def aligned(rows: Iterable[tuple[str, ...]], left: int = 0) -> list[str]:
    """Rows of a text as lines, in columns, and how many are `left` out."""
    rows, more = list(rows), [f"  and {left} more"] if left > 0 else []
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  " + "   ".join(x.ljust(n) for x, n in zip(row, widths, strict=True)).rstrip() for row in rows]
    return [*lines, *more]


def html_table(title: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Cells as a table of HTML with a caption; no line of heads where `head` is empty."""

    def line(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(x)}</{tag}>" for x in cells) + "</tr>"

    body = "".join(line(row, "td") for row in rows)
    return f"<table><caption>{title}</caption>{line(head, 'th') if head else ''}{body}</table>"


def vector(tree: Any) -> np.ndarray:
    """All entries of a tree of arrays and numbers, leaf by leaf."""
    return np.concatenate([np.ravel(on_host(x)) for x in trees.leaves(tree)] or [np.zeros(0)])


def on_host(x: Any) -> np.ndarray:
    """An array of any framework, or a number, as NumPy's."""
    return backends.to_numpy(x) if trees.is_array(x) else np.asarray(x)
