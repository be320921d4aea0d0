"""Accuracies over episodes: the statistics of the few-shot experiment."""

from __future__ import annotations

import math

import numpy as np

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
