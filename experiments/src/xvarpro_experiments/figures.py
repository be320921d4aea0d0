"""What the figures of all experiments share, and the two that every race gets. Nothing here touches pyplot."""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter
from sklearn.isotonic import isotonic_regression

from xvarpro_experiments.methods import Curve
from xvarpro_experiments.race import TARGETS, Race

# Okabe and Ito's colours, which readers with any colour vision can distinguish
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")
RIVALS = ("#8c6d31", "#7b4173", "#5b7f2b", "#ad494a", "#3f7f93", "#636363", "#c48a00", "#8172b3")
DASHED = (0, (4, 1.5))
PLAIN = FuncFormatter(lambda value, _: f"{value:,.6g}".replace(",", "\N{THIN SPACE}"))


def of(race: Race) -> dict[str, Figure]:
    """The figures that every race gets: the objective, and each measure that moves."""
    known = all(optimum is not None for optimum in race.optima.values())
    label = f"relative excess over the {'optimal' if known else 'lowest'} {race.experiment.objective.partition(',')[0]}"
    # Each run ends in a local minimum of its own. Below the last target a line would dive where its minimum is the
    # lowest one found, which says nothing of its distance from the optimum.
    least = 1e-16 if known else min(TARGETS)
    label += "" if known else f" of all runs, cut at {least:g}"
    above = [_above(race, n, least) for n in race.names]
    if race.experiment.compared_by != "objective":  # runs are not compared by how low it gets
        above, label = [[o.curve for o in race.of(n)] for n in race.names], race.experiment.objective
    out = {"convergence": convergence(race, above, label, sooner(race))}
    names = dict.fromkeys(name for each in race.outcomes.values() for o in each for name in o.measured)
    for name in names:
        curves = [[o.measured[name] for o in race.of(n) if name in o.measured] for n in race.names]
        ends = {
            n: float(np.median([c.value[-1] for c in each])) for n, each in zip(race.names, curves, strict=True) if each
        }
        if np.ptp(np.concatenate([c.value for each in curves for c in each])) > 0:
            plain = "-".join("".join(c if c.isalnum() else " " for c in name.partition("[")[0]).split())
            title = f"{name.partition('[')[0].strip()}: " + ended(race, ends)
            out[plain] = convergence(race, curves, name, title, "linear")
    return out


def sooner(race: Race) -> str:
    """What the method that was declared before the race is over the best rival, in a sentence."""
    if race.experiment.compared_by != "objective":
        return f"The objective; what decides between the methods is the {race.experiment.compared_by}"
    duel = race.duel(race.declared)
    return f"{race.declared} {race.sooner(duel)}" if duel["rivals"] else f"{race.declared}, without rivals"


def ended(race: Race, ends: Mapping[str, float]) -> str:
    """Where the declared method ended in a measure, and its rivals."""
    rivals = [ends[m.name] for m in race.experiment.methods if m.family == "rival" and m.name in ends]
    said = [f"{ends[race.declared]:.3g} with {race.declared}"] if race.declared in ends else []
    return ", ".join(said + ([f"{min(rivals):.3g} to {max(rivals):.3g} with rivals"] if rivals else []))


def _above(race: Race, name: str, least: float) -> list[Curve]:
    """How far a method's objectives are above the best value known; at `least` where it is less."""
    out = []
    for outcome, seed in zip(race.of(name), race.outcomes, strict=True):
        out.append(outcome.curve._replace(value=np.fmax(race.above(seed, outcome.curve.value), least)))
    return out


def convergence(
    race: Race, curves: Sequence[Sequence[Curve]], ylabel: str, title: str = "", yscale: str = "log"
) -> Figure:
    """A number against iterations and against seconds, medians over the starts, each curve with its name at its end."""
    methods = race.experiment.methods
    figure = Figure(figsize=(9.6, 4.4), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True, gridspec_kw={"wspace": 0.06})
    moving = [(m, c) for m, c in zip(methods, curves, strict=True) if m.family != "floor" and c]
    starts = np.asarray([c.value[0] for _, each in moving for c in each])
    levels = {m.name: c[0].value[-1] for m, c in zip(methods, curves, strict=True) if m.family == "floor" and c}
    if yscale == "log":
        levels = {"1 %": 0.01} if race.experiment.compared_by == "objective" else {}
    if starts.size and np.ptp(starts) <= 1e-6 * abs(starts[0]):
        levels = {"start": starts[0], **levels}
    drawn = np.concatenate([c.value for _, each in moving for c in each] or [np.ones(1)])
    for ax, axis, label in zip(axes, ("iterations", "seconds"), ("iteration", "time / s"), strict=True):
        ax.set(yscale=yscale, xlabel=label)
        lines(ax, race, [c for _, c in moving], axis, [m.name for m, _ in moving])
        for value in dict.fromkeys(levels.values()):
            if math.isfinite(value):
                mark(ax, ", ".join(name for name, level in levels.items() if level == value), value)
    axes[0].set_ylabel(textwrap.fill(ylabel, 50))
    if yscale == "log":
        shown = drawn[drawn > np.min(drawn)]  # the least is where a logarithm was cut off
        axes[0].set_ylim(bottom=0.5 * np.min(shown, initial=np.max(drawn)))
        readable(axes[0], shown)
    elif np.all(drawn == np.round(drawn)):  # a count
        axes[0].yaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    name_ends(axes[1])
    figure.suptitle(textwrap.fill(title, 96), x=0.01, ha="left", fontsize=11)
    return figure


def lines(ax: Axes, race: Race, curves: Sequence[Sequence[Curve]], axis: str, names: Sequence[str]) -> None:
    """Medians over the starts on a logarithmic axis: the package's in full lines, above the rivals in dashed ones.

    On a logarithmic axis the paper's method and the declared one have a band from the least to the largest start,
    unless it spans a factor of ten or more over half of the axis, where it would fill the panel.
    """
    families = {m.name: m.family for m in race.experiment.methods}
    own = sorted(
        (n for n in names if families[n] != "rival"), key=lambda n: (n != race.declared, families[n] != "paper")
    )
    rivals = [n for n in names if families[n] == "rival"]
    colours = dict(zip(own, itertools.cycle(COLOURS), strict=False)) | dict(
        zip(rivals, itertools.cycle(RIVALS), strict=False)
    )
    for name, each in zip(names, curves, strict=True):
        rival, first = name in rivals, name == race.declared
        x, middle, low, high = over_starts([(getattr(c, axis), c.value) for c in each])
        look: dict[str, Any] = {"color": colours[name], "zorder": 2 + (not rival) + first}
        ax.plot(x, middle, linestyle=DASHED if rival else "-", linewidth=2.4 if first else 1.5, label=name, **look)
        ax.plot(x[-1:], middle[-1:], "o", markersize=4, **look)
        narrow = len(each) > 1 and ax.get_yscale() == "log" and np.median(high / low) < 10
        if narrow and (first or families[name] == "paper"):
            ax.fill_between(x, low, high, color=look["color"], alpha=0.15, linewidth=0)
    ax.set_xscale("log")
    ax.xaxis.set_major_locator(LogLocator(base=10, subs=(1,)))
    ax.xaxis.set_major_formatter(PLAIN)
    tidy(ax)


def name_ends(ax: Axes, fontsize: float = 8.5) -> None:
    """The names of an axes' lines to its right, each at the height where its line ends, or as near as there is room."""
    named = [line for line in ax.lines if not str(line.get_label()).startswith("_")]
    to_axes = ax.transData + ax.transAxes.inverted()
    ends = []
    for line in named:
        x, y = (np.asarray(part, dtype=float) for part in line.get_data())
        seen = np.flatnonzero(np.isfinite(y))
        ends.append(float(np.clip(to_axes.transform((x[seen[-1]], y[seen[-1]]))[1], 0, 1)) if len(seen) else 0.0)
    height = 72 * ax.bbox.height / ax.figure.dpi  # points
    for line, end, place in zip(named, ends, spread(ends, 1.25 * fontsize / height), strict=True):
        colour = line.get_color()
        ax.annotate(
            str(line.get_label()), (1.01, end), (1.07, place), xycoords="axes fraction", color=colour,
            fontsize=fontsize, fontweight="bold" if line.get_linewidth() > 2 else "normal", va="center",
            arrowprops={"arrowstyle": "-", "color": colour, "lw": 0.7, "shrinkA": 0, "shrinkB": 0, "relpos": (0, 0.5)},
            annotation_clip=False,
        )  # fmt: skip


def spread(places: Sequence[float], distance: float) -> np.ndarray:
    """Places in [0, 1] near the given ones, in their order, at least `distance` apart: the nearest such, in squares."""
    order = np.argsort(places, kind="stable")
    steps = distance * np.arange(len(places))
    level = isotonic_regression(np.asarray(places)[order] - steps)
    out = np.empty(len(places))
    out[order] = np.clip(level, 0, max(0.0, 1 - distance * (len(places) - 1))) + steps
    return out


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
    ax.annotate(
        name, (0.0, level), color="0.45", fontsize=8, annotation_clip=True, xycoords=("axes fraction", "data"),
        xytext=(4, 2), textcoords="offset points",
    )  # fmt: skip


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
    ax.yaxis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5)))
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
    bar.ax.set_ylim(min(0.0, float(np.nanmin(mosaic, initial=0.0))), 1)  # no colours that no atom has
    return figure
