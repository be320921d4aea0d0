"""What figures have in common. They use neither pyplot nor a global setting."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from xvarpro.core.checks import described
from xvarpro.errors import ProblemError, needs

with needs("a figure", "plot"):
    from matplotlib.axes import Axes
    from matplotlib.collections import PolyCollection
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num
    from matplotlib.figure import Figure as _Figure
    from matplotlib.figure import FigureBase
    from matplotlib.patches import Patch
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

__all__ = [
    "COLOURS",
    "Figure",
    "FigureBase",
    "MaxNLocator",
    "Patch",
    "PolyCollection",
    "blank",
    "date2num",
    "dated",
    "legend_above",
    "positive",
    "tidy",
]

# Okabe and Ito's colours, which readers with any colour vision can distinguish
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")


class Figure(_Figure):
    """A figure that notebooks show, which otherwise takes pyplot."""

    def _repr_png_(self) -> bytes:
        png = io.BytesIO()
        self.savefig(png, format="png", dpi=100)
        return png.getvalue()


def blank(figure: FigureBase | None, width: float, height: float, layout: Any = "constrained") -> Any:
    """The caller's figure or a part of one, or a new one; laid out with room for labels where no layout was chosen."""
    if figure is None:
        return Figure(figsize=(width, height), layout=layout)
    if not isinstance(figure, FigureBase):
        raise ProblemError(f"figure must be a Figure or SubFigure of matplotlib, or None; got {described(figure)}")
    if isinstance(figure, _Figure) and figure.get_layout_engine() is None:
        figure.set_layout_engine(layout)
    return figure


def positive(x: np.ndarray) -> np.ndarray:
    """`x` with NaN where a log scale has no place for it."""
    return np.where(x > 0, x, np.nan)


def legend_above(ax: Axes, ncols: int = 2) -> None:
    """The legend where it covers nothing."""
    ax.legend(frameon=False, loc="lower left", bbox_to_anchor=(0.0, 1.0), borderaxespad=0.0, ncols=ncols)


def dated(ax: Axes) -> None:
    """Label numbers of `date2num` along x as dates."""
    locator = AutoDateLocator(minticks=3, maxticks=6)
    ax.xaxis.set_major_locator(locator)
    ax.xaxis.set_major_formatter(ConciseDateFormatter(locator))


def tidy(ax: Axes) -> None:
    """Remove the upper and right frame, draw a light grid behind the lines, and keep labels of log scales apart."""
    for axis in (ax.xaxis, ax.yaxis):
        low, high = sorted(axis.get_view_interval())
        if axis.get_scale() == "log" and high < 100 * low:  # there minor ticks have labels too
            axis.set_major_locator(MaxNLocator(4) if high < 10 * low else LogLocator(subs=(1, 3)))
            axis.set_major_formatter("{x:g}")
            axis.set_minor_formatter(NullFormatter())
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(True, which="major", color="0.9", linewidth=0.6)
    ax.set_axisbelow(True)
