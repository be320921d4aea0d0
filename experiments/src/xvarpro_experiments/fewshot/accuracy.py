"""Accuracies over episodes: the statistics of the few-shot experiment, and their figure."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.figure import Figure

from xvarpro_experiments.figures import COLOURS, RIVALS, tidy
from xvarpro_experiments.race import Race

ACCURACY = "test accuracy [%]"
REFIT = "head refit on all shots [%]"
PARTS = ("two splits, ball", "one split, ball")


def accuracies(race: Race, measure: str = ACCURACY) -> dict[str, np.ndarray]:
    """What every method ended with, by episode."""
    return {name: np.array([o.measured[measure].value[-1] for o in race.of(name)]) for name in race.names}


def paired(a: np.ndarray, b: np.ndarray | float = 0.0) -> tuple[float, float]:
    """Mean of a - b over episodes, and half of its 95 % confidence interval (Student's t); NaN for a single episode."""
    from scipy.stats import t  # only here

    d = np.asarray(a) - b
    n = len(d)
    half = float(t.ppf(0.975, n - 1) * np.std(d, ddof=1) / n**0.5) if n > 1 else math.nan
    return float(np.mean(d)), half


def notes(race: Race) -> list[str]:
    """Accuracies with their confidence intervals, and differences to frozen ridge episode by episode."""
    own, refit = accuracies(race), accuracies(race, REFIT)
    floor = own["frozen ridge"]
    lines = [f"Over {len(floor)} episodes, mean and 95 % confidence interval of the test accuracy:"]
    for name, found in own.items():
        (mean, half), (more, spread), (again, _) = paired(found), paired(found, floor), paired(refit[name])
        seconds = float(np.median([o.seconds for o in race.of(name)]))
        versus = "" if name == "frozen ridge" else f"; over frozen ridge {more:+.1f} +- {spread:.1f}"
        lines.append(
            f"{name}: {mean:.1f} +- {half:.1f} % in {seconds:.3g} s{versus}; head refit on all shots {again:.1f} %"
        )
    two, one = (next((n for n in race.names if n.startswith("CR-VarPro") and part in n), None) for part in PARTS)
    if one and two:
        mean, half = paired(own[one], own[two])
        lines.append(f"One split over two, CR-VarPro with a ball per tensor: {mean:+.1f} +- {half:.1f} points.")
    return lines


def differences(race: Race) -> Figure:
    """Accuracy over that of frozen ridge, a point per episode, with mean and 95 % confidence interval."""
    found = accuracies(race)
    floor = found.pop("frozen ridge")
    means = {name: paired(each, floor) for name, each in found.items()}
    figure = Figure(figsize=(7.6, 0.42 * len(found) + 1.3), layout="constrained")
    ax = figure.subplots()
    rng = np.random.default_rng(0)
    names = list(found)
    for y, name in enumerate(reversed(names)):
        colour = RIVALS[0] if race.of(name)[0].family == "rival" else COLOURS[0]
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
    mean, half = means[race.declared]
    interval = f" \N{PLUS-MINUS SIGN} {half:.1f}" if np.isfinite(half) else ""
    said = f"{mean:+.1f}{interval} points over frozen ridge in {len(floor)} episode{'s' * (len(floor) > 1)}"
    figure.suptitle(f"{race.declared}: {said}", x=0.01, ha="left", fontsize=11)
    return figure
