"""The figure of the few-shot experiment: differences of accuracies episode by episode."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from xvarpro_experiments.fewshot.accuracy import accuracies, paired
from xvarpro_experiments.figures import COLOURS, tidy
from xvarpro_experiments.race import Race


def differences(race: Race) -> Figure:
    """Accuracy over that of frozen ridge, a point per episode, with mean and 95 % confidence interval; rivals apart."""
    found = accuracies(race)
    floor = found.pop("frozen ridge")
    figure = Figure(figsize=(7.6, 0.55 * len(found) + 1.1), layout="constrained")
    ax = figure.subplots()
    rng = np.random.default_rng(0)
    names = list(found)
    for y, name in enumerate(reversed(names)):
        colour = COLOURS[race.of(name)[0].family == "rival"]
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
