"""Figures of the few-shot experiment: accuracy against time, and differences episode by episode."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from xvarpro_experiments.fewshot.accuracy import ACCURACY, accuracies, paired
from xvarpro_experiments.figures import DASHED, tidy
from xvarpro_experiments.race import Race

COLOURS = ("#0072b2", "#56b4e9", "#d55e00", "#e69f00", "#000000", "#cc79a7", "#999999", "#009e73", "#a6761d")


def accuracy(race: Race) -> Figure:
    """Mean test accuracy against training seconds, with its 95 % confidence band over episodes.

    Every method stops where it was best on validation episodes: a dot, at its median time. Frozen ridge, which takes no
    steps, is a line across.
    """
    figure = Figure(figsize=(7.6, 4.8), layout="constrained")
    ax = figure.subplots()
    first = min(
        float(np.median([o.measured[ACCURACY].seconds[1] for o in race.of(name)]))
        for name in race.names
        if len(race.of(name)[0].measured[ACCURACY].seconds) > 1
    )
    for i, name in enumerate(race.names):
        curves = [o.measured[ACCURACY] for o in race.of(name)]
        colour = COLOURS[i % len(COLOURS)]
        if len(curves[0].value) == 1:
            mean, half = paired(np.array([c.value[0] for c in curves]))
            ax.axhline(mean, color=colour, linewidth=1.2, label=name, zorder=1.5)
            if np.isfinite(half):
                ax.axhspan(mean - half, mean + half, color=colour, alpha=0.08, linewidth=0)
            continue
        # an iterate has its time in every episode: the mean is of equal iterates, at the median of their times
        steps = sorted(set.intersection(*({int(n) for n in c.iterations} for c in curves)) - {0})
        where = [[int(np.flatnonzero(c.iterations == n)[0]) for c in curves] for n in steps]
        seconds = [float(np.median([c.seconds[j] for c, j in zip(curves, at, strict=True)])) for at in where]
        found = np.array([paired(np.array([c.value[j] for c, j in zip(curves, at, strict=True)])) for at in where])
        means, halves = found[:, 0], found[:, 1]
        rival = race.of(name)[0].family == "rival"
        ax.plot(seconds, means, color=colour, linestyle=DASHED if rival else "-", linewidth=1.7, label=name)
        ax.plot(seconds[-1:], means[-1:], "o", color=colour, markersize=5)
        if np.all(np.isfinite(halves)):
            ax.fill_between(seconds, means - halves, means + halves, color=colour, alpha=0.08, linewidth=0)
    ax.set_xscale("log")
    ax.set_xlim(left=0.8 * first)
    ax.set_xlabel("training time [s]")
    ax.set_ylabel(ACCURACY)
    low, high = ax.get_ylim()
    ax.set_ylim(max(low, 0.0), min(high, 100.0))
    tidy(ax)
    figure.legend(loc="outside upper center", ncols=2, frameon=False, fontsize=9)
    return figure


def differences(race: Race) -> Figure:
    """Accuracy over that of frozen ridge, a point per episode, with mean and 95 % confidence interval."""
    found = accuracies(race)
    floor = found.pop("frozen ridge")
    figure = Figure(figsize=(7.6, 0.55 * len(found) + 1.1), layout="constrained")
    ax = figure.subplots()
    rng = np.random.default_rng(0)
    names = list(found)
    for y, name in enumerate(reversed(names)):
        colour = COLOURS[race.names.index(name) % len(COLOURS)]
        d = found[name] - floor
        ax.plot(d, y + rng.uniform(-0.22, 0.22, len(d)), ".", color=colour, alpha=0.45, markersize=6, linewidth=0)
        mean, half = paired(found[name], floor)
        ax.errorbar(
            mean, y, xerr=half if np.isfinite(half) else None, fmt="D", color=colour, capsize=4, markersize=6,
            markeredgecolor="white", linewidth=2,
        )  # fmt: skip
    ax.axvline(0, color="0.3", linewidth=0.9, zorder=0)
    ax.set_yticks(range(len(names)), list(reversed(names)))
    ax.set_xlabel("test accuracy over that of frozen ridge [percentage points]")
    tidy(ax)
    return figure
