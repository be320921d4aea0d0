"""The figure of a comparison of backends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from xvarpro.results.plotting import COLOURS, Figure, positive, tidy

if TYPE_CHECKING:
    from xvarpro.reproducibility.comparison import Comparison


def plot_comparison(found: Comparison) -> Figure:
    """Draw the differences of objectives at every iteration, and of theta and gradients at the sampled ones.

    The gradients are those of both backends at one point; machine epsilon times the condition number is drawn for
    comparison.
    """
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    ax = figure.subplots()
    n = np.arange(found.iterations + 1)
    ax.plot(n, positive(found.value_difference), color=COLOURS[-1], linewidth=1.0, label="objective, all backends")
    for i, (name, deviation) in enumerate(found.deviations.items()):
        colour = COLOURS[i % (len(COLOURS) - 1)]
        for y, style, label in (
            (deviation.theta, "o-", f"theta, {name}"),
            (deviation.gradient, "s--", f"gradient at one point, {name}"),
        ):
            ax.plot(found.sampled, positive(y), style, color=colour, markersize=4, label=label)
    ax.plot(found.sampled, found.predicted, color="0.5", linestyle=":", label="eps x condition")
    ax.set_xscale("symlog", linthresh=1)
    ax.set_yscale("log")
    ax.set_xlabel("iteration")
    ax.set_ylabel(f"relative difference from {next(iter(found.fits))}")
    tidy(ax)
    figure.legend(loc="outside upper center", ncols=2, frameon=False)
    return figure
