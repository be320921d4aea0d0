"""The figure of the few-shot experiment: differences of accuracies episode by episode."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from xvarpro_experiments.fewshot.accuracy import accuracies, paired
from xvarpro_experiments.figures import COLOURS, GREY, tidy
from xvarpro_experiments.race import Race


def differences(race: Race) -> Figure:
    """Accuracy over that of frozen ridge, a point per episode, with mean and 95 % confidence interval; rivals grey."""
    found = accuracies(race)
    floor = found.pop("frozen ridge")
    means = {name: paired(each, floor) for name, each in found.items()}
    figure = Figure(figsize=(7.6, 0.42 * len(found) + 1.3), layout="constrained")
    ax = figure.subplots()
    rng = np.random.default_rng(0)
    names = list(found)
    for y, name in enumerate(reversed(names)):
        colour = GREY if race.of(name)[0].family == "rival" else COLOURS[0]
        d = found[name] - floor
        ax.plot(d, y + rng.uniform(-0.22, 0.22, len(d)), ".", color=colour, alpha=0.45, markersize=6, linewidth=0)
        mean, half = means[name]
        ax.errorbar(
            mean, y, xerr=half if np.isfinite(half) else None, fmt="D", color=colour, capsize=4, markersize=6,
            markeredgecolor="white", linewidth=2,
        )  # fmt: skip
    ax.axvline(0, color="0.3", linewidth=0.9, zorder=0)
    ax.set_yticks(range(len(names)), list(reversed(names)))
    ax.set_xlabel("test accuracy over that of frozen ridge [percentage points]")
    tidy(ax)
    first = max(means, key=lambda name: means[name][0])
    mean, half = means[first]
    interval = f" \N{PLUS-MINUS SIGN} {half:.1f}" if np.isfinite(half) else ""
    said = f"{mean:+.1f}{interval} points over frozen ridge in {len(floor)} episode{'s' * (len(floor) > 1)}"
    figure.suptitle(f"{first}: {said}", x=0.01, ha="left", fontsize=11)
    return figure
