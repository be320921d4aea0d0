"""What the figures of all experiments share, and the two that every race gets. Nothing here touches pyplot."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from xvarpro_experiments.methods import Curve
from xvarpro_experiments.race import Race

# Okabe and Ito's colours, which readers with any colour vision can distinguish
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")
DASHED = (0, (4, 1.5))
PLAIN = FuncFormatter(lambda value, _: f"{value:,.6g}".replace(",", "\N{THIN SPACE}"))


def of(race: Race) -> dict[str, Figure]:
    """The figures that every race gets: the objective and each measure."""
    optima = list(race.optima.values())
    known = all(optimum is not None for optimum in optima)
    label = "distance from the optimum, relative" if known else race.experiment.objective
    out = {"convergence": convergence(race, [_above(race.of(n), optima) for n in race.names], label)}
    names = dict.fromkeys(name for each in race.outcomes.values() for o in each for name in o.measured)
    for name in names:
        plain = "-".join("".join(c if c.isalnum() else " " for c in name.partition("[")[0]).split())
        curves = [[o.measured[name] for o in race.of(n) if name in o.measured] for n in race.names]
        out[plain] = convergence(race, curves, name, "linear")
    return out


def _above(outcomes: Sequence[Any], optima: Sequence[float | None]) -> list[Curve]:
    """Objectives, or how far they are above a known optimum; what rounding leaves of that has no logarithm."""
    out = []
    for outcome, optimum in zip(outcomes, optima, strict=True):
        curve = outcome.curve
        if optimum is not None:
            above = curve.value / optimum - 1
            curve = curve._replace(value=np.where(above > 1e-16, above, np.nan))
        out.append(curve)
    return out


def convergence(race: Race, curves: Sequence[Sequence[Curve]], ylabel: str, yscale: str = "log") -> Figure:
    """A number against iterations and against seconds: the median over the starts, in a band from least to largest."""
    methods = race.experiment.methods
    ncols = 3 if max(len(m.name) for m in methods) <= 30 else 2
    figure = Figure(figsize=(9.0, 3.6 + 0.25 * math.ceil(len(methods) / ncols)), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    moving = [(m, c) for m, c in zip(methods, curves, strict=True) if m.family != "floor" and c]
    starts = np.asarray([c.value[0] for _, each in moving for c in each])
    levels = {m.name: c[0].value[-1] for m, c in zip(methods, curves, strict=True) if m.family == "floor" and c}
    if yscale == "log":
        levels = {}
    if starts.size and np.ptp(starts) <= 1e-6 * abs(starts[0]):
        levels = {"start": starts[0], **levels}
    for ax, axis, label in zip(axes, ("iterations", "seconds"), ("iteration", "time [s]"), strict=True):
        lines(ax, race, [c for _, c in moving], axis, [m.name for m, _ in moving])
        ax.set(yscale=yscale, xlabel=label)
        for value in dict.fromkeys(levels.values()):
            if math.isfinite(value):
                mark(ax, ", ".join(name for name, level in levels.items() if level == value), value)
    axes[0].set_ylabel(textwrap.fill(ylabel, 44))
    drawn = np.concatenate([c.value for _, each in moving for c in each] or [np.ones(1)])
    if yscale == "log":
        readable(axes[0], drawn)
    elif np.all(drawn == np.round(drawn)):  # a count
        axes[0].yaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    legend(figure, axes[0], ncols)
    return figure


def lines(ax: Axes, race: Race, curves: Sequence[Sequence[Curve]], axis: str, names: Sequence[str]) -> None:
    """Curves of methods on a logarithmic axis: median and range over the starts, rivals dashed."""
    families = {m.name: m.family for m in race.experiment.methods}
    seen = {True: 0, False: 0}
    for name, each in zip(names, curves, strict=True):
        rival = families[name] == "rival"
        colour = COLOURS[seen[rival] % len(COLOURS)]
        seen[rival] += 1
        x, middle, low, high = over_starts([(getattr(c, axis), c.value) for c in each])
        ax.plot(x, middle, color=colour, linestyle=DASHED if rival else "-", linewidth=1.6, label=name)
        ax.plot(x[-1:], middle[-1:], "o", color=colour, markersize=4)
        if len(each) > 1:
            ax.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
    ax.set_xscale("log")
    ax.xaxis.set_major_formatter(PLAIN)
    tidy(ax)


def over_starts(curves: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, ...]:
    """Abscissae, median, least and largest; a logarithm has no place for the start.

    Every start holds its last value up to the next one, and to the end of the longest.
    """
    if len(curves) == 1:
        x, y = curves[0]
        return x[x > 0], *(y[x > 0] for _ in range(3))
    first = max((x[x > 0][0] for x, _ in curves if np.any(x > 0)), default=1.0)
    last = max((x[-1] for x, _ in curves), default=1.0)
    grid = np.geomspace(first, max(first, last), 200)
    values = np.stack([y[np.maximum(np.searchsorted(x, grid, side="right") - 1, 0)] for x, y in curves])
    return grid, np.median(values, axis=0), np.min(values, axis=0), np.max(values, axis=0)


def mark(ax: Axes, name: str, level: float) -> None:
    """A named line across, the name at the left, where what falls is still high."""
    ax.axhline(level, color="0.6", linewidth=0.8, linestyle=":", zorder=0)
    at: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "xytext": (4, 2), "textcoords": "offset points"}
    ax.annotate(name, (0.0, level), color="0.45", fontsize=8, **at)


def legend(figure: Figure, ax: Axes, ncols: int) -> None:
    """The names of an axes' lines above the figure."""
    handles, labels = ax.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=ncols, frameon=False, fontsize=8.5)


def tidy(ax: Axes) -> None:
    """A light grid, and no frame at the top and the right."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(True, which="major", color="0.9", linewidth=0.6)
    ax.set_axisbelow(True)


def readable(ax: Axes, values: np.ndarray) -> None:
    """Plain numbers on a logarithmic axis that spans too little for powers of ten to be enough."""
    good = values[np.isfinite(values) & (values > 0)]
    if not good.size or np.max(good) / np.min(good) > 1e3:
        return
    ax.yaxis.set_major_locator(LogLocator(base=10, subs=(1, 1.5, 2, 3, 4, 5, 7)))
    ax.yaxis.set_major_formatter(PLAIN)
    ax.yaxis.set_minor_formatter(NullFormatter())


def atoms(D: np.ndarray, shape: tuple[int, int], title: str = "") -> Figure:
    """Columns of a dictionary as a grid of images, largest norm first."""
    height, width = shape
    n = D.shape[1]
    norms = np.linalg.norm(D, axis=0)
    live = int(np.count_nonzero(norms))
    columns = math.ceil(math.sqrt(2 * n * height / width))  # about twice as wide as high
    rows = math.ceil(n / columns)
    mosaic = np.full((rows * (height + 1) + 1, columns * (width + 1) + 1), np.nan)
    figure = Figure(figsize=(7.2, 7.2 * rows * height / (columns * width) * 0.9 + 0.55), layout="compressed")
    ax = figure.subplots()
    for i, j in enumerate(np.argsort(-norms, kind="stable")):
        top, left = i // columns * (height + 1), i % columns * (width + 1)
        atom = D[:, j].reshape(shape)
        if norms[j]:
            mosaic[top + 1 : top + 1 + height, left + 1 : left + 1 + width] = atom / atom.flat[np.argmax(np.abs(atom))]
        box = np.array([[0, width + 1, width + 1, 0, 0], [0, 0, height + 1, height + 1, 0]])
        ax.plot(left + box[0], top + box[1], color="0.8", linewidth=0.5)  # empty tiles can be counted
    cmap = colormaps["RdBu_r"].with_extremes(bad="white")
    image = ax.imshow(mosaic, cmap=cmap, vmin=-1, vmax=1, interpolation="none")
    ax.set_axis_off()
    said = f"{live} of {n} atoms, by decreasing norm" + (", the rest are zero" if live < n else "")
    ax.set_title("\n".join(filter(None, (title, said))), fontsize=10)
    bar = figure.colorbar(image, ax=ax, shrink=0.6, aspect=30, pad=0.015, ticks=(-1, 0, 1))
    bar.set_label("entry / largest entry of its atom", fontsize=9)
    bar.outline.set_visible(False)
    return figure
