"""Figures of the autoencoder: latents that stay, reconstructions, loss against latents."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from xvarpro_experiments.figures import COLOURS, name_ends, tidy
from xvarpro_experiments.race import Race


def collapse(race: Race) -> Figure:
    """The sorted s that each method ends with."""
    figure = Figure(figsize=(7.0, 4.4), layout="constrained")
    ax = figure.subplots()
    ended = {o.method: o.theta for o in next(iter(race.outcomes.values())) if o.theta is not None}
    for i, (name, theta) in enumerate(ended.items()):
        s, colour = np.sort(theta["s"])[::-1], COLOURS[i % len(COLOURS)]
        ax.plot(np.arange(1, s.size + 1), s, "o-", color=colour, markersize=3, linewidth=1.2, label=name)
    ax.set_yscale("symlog", linthresh=1e-5)
    ax.set_ylim(bottom=0)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set(xlabel="latent, by decreasing s", ylabel="s at the end")
    tidy(ax)
    name_ends(ax)
    return figure


def selection(race: Race, latents: str, loss: str, refitted: str, axes: str) -> Figure:
    """Test loss against active latents, a point for each method of a race, and what PCA has with as many axes."""
    figure = Figure(figsize=(6.4, 4.4), layout="constrained")
    ax = figure.subplots()
    ended = [o for o in next(iter(race.outcomes.values())) if axes in o.measured]
    ended = sorted(ended, key=lambda o: o.measured[latents].value[-1])
    at = {name: np.array([o.measured[name].value[-1] for o in ended]) for name in (latents, loss, refitted, axes)}
    ax.plot(at[latents], at[axes], ".-", color="0.4", linewidth=1.2, label="PCA with as many axes")
    ax.plot(at[latents], at[loss], "o", color=COLOURS[0], label="autoencoder")
    ax.plot(at[latents], at[refitted], "D", color=COLOURS[0], markerfacecolor="white", label="decoder refitted")
    for o, x, y in zip(ended, at[latents], at[loss], strict=True):
        ax.annotate(o.method, (x, y), xytext=(5, 5), textcoords="offset points", fontsize=7.5)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set(xlabel=latents, ylabel=loss)
    tidy(ax)
    ax.legend(frameon=False, fontsize=8.5)
    return figure


def reconstructions(rows: Mapping[str, np.ndarray]) -> Figure:
    """Rows of images, named."""
    n = max(map(len, rows.values()))
    figure = Figure(figsize=(1.0 * n + 1.9, 1.05 * len(rows)), layout="constrained")
    axes = figure.subplots(len(rows), n, squeeze=False)
    for line, (name, images) in zip(axes, rows.items(), strict=True):
        for ax, image in zip(line, images, strict=True):
            shown = np.clip(image, 0, 1)
            colour = shown.ndim == 3
            shown = np.moveaxis(shown, 0, -1) if colour else shown
            ax.imshow(shown, cmap=None if colour else "gray_r", vmin=0, vmax=1, interpolation="none")
            ax.set(xticks=[], yticks=[])
            ax.spines[:].set_color("0.8")
        label = name.replace(", ", ",\n").replace(" (", "\n(")
        line[0].set_ylabel(label, rotation=0, ha="right", va="center", fontsize=8)
    return figure
