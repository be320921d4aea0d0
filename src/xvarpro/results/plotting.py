"""Figures: a run, a dictionary, methods against each other. Nothing here touches pyplot or a global setting."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

try:
    from matplotlib import colormaps
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter
except ImportError as error:
    raise ImportError("figures need matplotlib: pip install 'xvarpro[plot]'", name="matplotlib") from error

# Okabe and Ito's colours, which readers with any colour vision can tell apart
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")
_PLAIN = FuncFormatter(lambda value, _: f"{value:,.6g}".replace(",", "\N{THIN SPACE}"))


def plot_comparison(found: Any) -> Figure:
    """How far backends are apart: objectives at every iteration, theta and gradients where they were looked at.

    Parameters
    ----------
    found : Comparison

    Returns
    -------
    matplotlib Figure
        The gradients are those of both backends at one point, next to machine epsilon times the condition.
    """
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    ax = figure.subplots()
    n = np.arange(found.iterations + 1)
    ax.plot(n, _positive(found.value_difference), color=_COLOURS[-1], linewidth=1.0, label="objective, all backends")
    for i, (name, deviation) in enumerate(found.deviations.items()):
        colour = _COLOURS[i % (len(_COLOURS) - 1)]
        ax.plot(found.sampled, _positive(deviation.theta), "o-", color=colour, markersize=4, label=f"theta, {name}")
        shown, label = _positive(deviation.gradient), f"gradient at one point, {name}"
        ax.plot(found.sampled, shown, "s--", color=colour, markersize=4, label=label)
    ax.plot(found.sampled, found.predicted, color="0.5", linestyle=":", label="eps x condition")
    ax.set_xscale("symlog", linthresh=1)
    ax.set_yscale("log")
    ax.set_xlabel("iteration")
    ax.set_ylabel(f"relative difference from {next(iter(found.fits))}")
    _tidy(ax)
    figure.legend(loc="outside upper center", ncols=2, frameon=False)
    return figure


def _positive(x: np.ndarray) -> np.ndarray:
    """What a logarithm can show of it."""
    return np.where(x > 0, x, np.nan)


class Line(NamedTuple):
    """One method in a convergence figure.

    Attributes
    ----------
    name : str
    curves : sequence of (iterations, seconds, value)
        Arrays of equal length, the start included; one entry per repetition.
    dashed : bool
        Sets a family of methods apart.
    """

    name: str
    curves: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]]
    dashed: bool = False


def plot_trace(result: Any, ax: Axes | None = None) -> Axes:
    """Objective and gap of a run against its iterations.

    Parameters
    ----------
    result : Result
    ax : matplotlib Axes, optional
        Where to draw; a new figure if None.

    Returns
    -------
    matplotlib Axes
        Log scale, unless the objective takes negative values. A part of the gap that is 0 all along is left out.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> problem = xv.separable(lambda theta, data: theta, np.ones(3), lam=1.0)
    >>> fit = xv.solve(problem, np.array([[1.0], [0.0], [0.0]]), over=xv.sets.L2Ball(1.0))
    >>> fit.plot().get_xlabel()
    'iteration'
    """
    ax = Figure(figsize=(5.2, 3.4), layout="constrained").subplots() if ax is None else ax
    trace = result.trace
    ax.plot(trace.value, color=_COLOURS[0], label="objective")
    parts = (("gap, constrained block", trace.gap_A, _COLOURS[1]), ("gap, free block", trace.gap_B, _COLOURS[2]))
    for label, gap, colour in parts:
        if np.any(gap > 0):
            ax.plot(np.where(gap > 0, gap, np.nan), color=colour, linewidth=1.0, label=label)
    if not np.any(trace.value < 0):
        ax.set_yscale("log")
    ax.set_xlabel("iteration")
    ax.set_ylabel("objective and gap")
    _tidy(ax)
    ax.legend(frameon=False)
    return ax


def convergence(
    lines: Sequence[Line], ylabel: str = "objective", yscale: str = "log", levels: Mapping[str, float] | None = None
) -> Figure:
    """A number against iterations and against seconds: the median over repetitions, in a band from least to largest.

    Parameters
    ----------
    lines : sequence of Line
        Where all of them start at one value, it is marked.
    ylabel : str
    yscale : {"log", "linear"}
    levels : mapping of str to float, optional
        Values to compare with, as lines across.

    Returns
    -------
    matplotlib Figure
    """
    ncols = 3 if max((len(line.name) for line in lines), default=0) <= 30 else 2
    rows = math.ceil(len(lines) / ncols)
    figure = Figure(figsize=(9.0, 3.6 + 0.25 * rows), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    starts = np.asarray([curve[2][0] for line in lines for curve in line.curves])
    level = starts[0] if starts.size and np.ptp(starts) <= 1e-6 * abs(starts[0]) else math.nan
    for ax, abscissa, xlabel in zip(axes, (0, 1), ("iteration", "time [s]"), strict=True):
        seen = {True: 0, False: 0}
        for line in lines:
            colour = _COLOURS[seen[line.dashed] % len(_COLOURS)]
            seen[line.dashed] += 1
            x, middle, low, high = _over_repetitions([(c[abscissa], c[2]) for c in line.curves])
            style = (0, (4, 1.5)) if line.dashed else "-"
            ax.plot(x, middle, color=colour, linestyle=style, linewidth=1.6, label=line.name)
            ax.plot(x[-1:], middle[-1:], "o", color=colour, markersize=4)
            if len(line.curves) > 1:
                ax.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
        ax.set_xscale("log")
        ax.set_yscale(yscale)
        ax.set_xlabel(xlabel)
        ax.xaxis.set_major_formatter(_PLAIN)
        _tidy(ax)
        named: dict[float, list[str]] = {}
        for name, value in {"start": level, **(levels or {})}.items():
            named.setdefault(value, []).append(name)
        for value, names in named.items():
            if math.isfinite(value):
                _mark(ax, ", ".join(names), value)
    axes[0].set_ylabel(textwrap.fill(ylabel, 44))
    drawn = np.concatenate([c[2] for line in lines for c in line.curves] or [np.ones(1)])
    if yscale == "log":
        _readable(axes[0], drawn)
    elif np.all(drawn == np.round(drawn)):  # a count
        axes[0].yaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=ncols, frameon=False)
    return figure


def _over_repetitions(curves: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, ...]:
    """Abscissae, median, least and largest; a logarithm has no place for the start.

    Every repetition holds its last value up to the next one, and to the end of the longest.
    """
    if len(curves) == 1:
        x, y = curves[0]
        return x[x > 0], *(y[x > 0] for _ in range(3))
    first = max((x[x > 0][0] for x, _ in curves if np.any(x > 0)), default=1.0)
    last = max((x[-1] for x, _ in curves), default=1.0)
    grid = np.geomspace(first, max(first, last), 200)
    values = np.stack([y[np.maximum(np.searchsorted(x, grid, side="right") - 1, 0)] for x, y in curves])
    return grid, np.median(values, axis=0), np.min(values, axis=0), np.max(values, axis=0)


def _mark(ax: Any, name: str, level: float) -> None:
    # at the left, where what falls is still high
    ax.axhline(level, color="0.6", linewidth=0.8, linestyle=":", zorder=0)
    ax.annotate(
        name,
        (0.0, level),
        xycoords=("axes fraction", "data"),
        xytext=(4, 2),
        textcoords="offset points",
        color="0.45",
        fontsize=8,
    )


def atoms(D: np.ndarray, shape: tuple[int, int], title: str = "") -> Figure:
    """Columns of a dictionary as a grid of images, largest norm first.

    Parameters
    ----------
    D : array, shape (height * width, n)
    shape : (height, width)
    title : str
        Placed before what the figure says about itself.

    Returns
    -------
    matplotlib Figure
        Each atom is divided by its entry of largest size: norms differ by orders of magnitude, and the sign of an atom
        means nothing, since its code takes the other one. Atoms that are exactly zero come last, as empty tiles.

    Examples
    --------
    >>> import numpy as np
    >>> from xvarpro.results import plotting
    >>> figure = plotting.atoms(np.eye(4), (2, 2))
    """
    norms = np.linalg.norm(D, axis=0)
    live = int(np.count_nonzero(norms))
    shown = D[:, np.argsort(-norms, kind="stable")[:live]]
    largest = np.take_along_axis(shown, np.argmax(np.abs(shown), axis=0)[None, :], axis=0)
    mosaic, columns = _mosaic(shown / largest, D.shape[1], shape)
    rows = math.ceil(D.shape[1] / columns)
    figure = Figure(figsize=(7.2, 7.2 * rows * shape[0] / (columns * shape[1]) * 0.9 + 0.55), layout="compressed")
    ax = figure.subplots()
    image = ax.imshow(
        mosaic, cmap=colormaps["RdBu_r"].with_extremes(bad="white"), vmin=-1, vmax=1, interpolation="none"
    )
    _frames(ax, D.shape[1], columns, shape)
    ax.set_axis_off()
    told = f"{live} of {D.shape[1]} atoms, by decreasing norm" + (", the rest are zero" if live < D.shape[1] else "")
    ax.set_title("\n".join(filter(None, (title, told))), fontsize=10)
    bar = figure.colorbar(image, ax=ax, shrink=0.6, aspect=30, pad=0.015, ticks=(-1, 0, 1))
    bar.set_label("entry / largest entry of its atom", fontsize=9)
    bar.outline.set_visible(False)
    return figure


def _mosaic(units: np.ndarray, n: int, shape: tuple[int, int]) -> tuple[np.ndarray, int]:
    """Images side by side, one pixel apart, NaN where there is nothing; and how many stand in a row."""
    height, width = shape
    columns = math.ceil(math.sqrt(2 * n * height / width))  # about twice as wide as high
    rows = math.ceil(n / columns)
    out = np.full((rows * (height + 1) + 1, columns * (width + 1) + 1), np.nan)
    for i, unit in enumerate(units.T):
        y, x = divmod(i, columns)
        out[y * (height + 1) + 1 : (y + 1) * (height + 1), x * (width + 1) + 1 : (x + 1) * (width + 1)] = unit.reshape(
            shape
        )
    return out, columns


def _frames(ax: Any, n: int, columns: int, shape: tuple[int, int]) -> None:
    """A thin line around every tile, the empty ones included: what is missing can be counted."""
    height, width = shape
    for i in range(n):
        y, x = divmod(i, columns)
        left, top = x * (width + 1), y * (height + 1)
        box = (
            [left, left + width + 1, left + width + 1, left, left],
            [top, top, top + height + 1, top + height + 1, top],
        )
        ax.plot(*box, color="0.8", linewidth=0.5)


def _tidy(ax: Any) -> None:
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(True, which="major", color="0.9", linewidth=0.6)
    ax.set_axisbelow(True)


def _readable(ax: Any, values: np.ndarray) -> None:
    """Plain numbers on a logarithmic axis that spans too little for powers of ten to be enough."""
    good = values[np.isfinite(values) & (values > 0)]
    if not good.size or np.max(good) / np.min(good) > 1e3:
        return
    ax.yaxis.set_major_locator(LogLocator(base=10, subs=(1, 1.5, 2, 3, 4, 5, 7)))
    ax.yaxis.set_major_formatter(_PLAIN)
    ax.yaxis.set_minor_formatter(NullFormatter())
