"""Figures of the autoencoder: latents that stay, reconstructions, loss against latents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from xvarpro_experiments.autoencoder import model
from xvarpro_experiments.figures import COLOURS, legend, lines, mark, measured, readable, tidy
from xvarpro_experiments.race import Race

_LOSS = "test loss: mean of 1/2 |x - x̂|² per image"


def collapse(race: Race, loss: str, latents: str) -> Figure:
    """Active latents and test loss against iterations, and the sorted s that each method ends with."""
    figure = Figure(figsize=(10.8, 4.4), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    names = [m.name for m in race.experiment.methods if m.family != "floor"]
    for ax, name in ((left, latents), (middle, loss)):
        lines(ax, race, [measured(race, n, name) for n in names], "iterations", names)
        ax.set_xlabel("iteration")
    left.set_ylabel(f"active latents (s_i > {model.ACTIVE:g} max s)")
    left.set_ylim(bottom=0)
    left.yaxis.set_major_locator(MaxNLocator(integer=True))
    middle.set(ylabel=_LOSS, yscale="log")
    readable(middle, np.concatenate([o.measured[loss].value for f in race.outcomes.values() for o in f]))
    for method in (m for m in race.experiment.methods if m.family == "floor"):
        mark(middle, method.name, float(measured(race, method.name, loss)[0].value[-1]))
    thetas = [o.theta for o in next(iter(race.outcomes.values())) if o.theta is not None]
    for i, theta in enumerate(thetas):
        s = np.sort(theta["s"])[::-1]
        right.plot(np.arange(1, s.size + 1), s, "o-", color=COLOURS[i % len(COLOURS)], markersize=3, linewidth=1.2)
    right.set_yscale("symlog", linthresh=1e-5)
    right.set_ylim(bottom=0)
    right.xaxis.set_major_locator(MaxNLocator(integer=True))
    right.set(xlabel="latent, by decreasing s", ylabel="s at the end")
    tidy(right)
    legend(figure, left, 3)
    return figure


def sweep(found: Sequence[model.Kept], title: str = "") -> Figure:
    """Test loss against active latents, a point for each ridge, above the line of PCA with as many axes."""
    figure = Figure(figsize=(6.4, 4.4), layout="constrained")
    ax = figure.subplots()
    n, floor = np.array([k.active for k in found]), np.array([k.floor for k in found])
    order = np.argsort(n)
    ax.plot(n[order], floor[order], color="0.4", linewidth=1.2, marker=".", label="PCA with as many axes")
    ax.fill_between(n[order], floor[order], 1.1 * floor[order], color="0.9", label="within 10 % of it")
    for i, splits in enumerate(sorted({k.splits for k in found})):
        here = [k for k in found if k.splits == splits]
        at, colour = [k.active for k in here], COLOURS[i]
        name = "autoencoder, two levels" if splits == 2 else "autoencoder, one level"
        ax.plot(at, [k.loss for k in here], "o", color=colour, markersize=5, label=name)
        open_: dict[str, Any] = {"color": colour, "markerfacecolor": "white", "markersize": 5}
        ax.plot(at, [k.refitted for k in here], "D", label="its active latents, decoder refitted", **open_)
        for k in here:
            text: dict[str, Any] = {"xytext": (5, 5 - 10 * i), "textcoords": "offset points", "fontsize": 7.5}
            ax.annotate(f"{k.ridge:.0e}", (k.active, k.loss), color=colour, **text)
    ax.set_yscale("log")
    readable(ax, np.concatenate([floor, [k.loss for k in found]]))
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set(xlabel="active latents (labels: ridge per image)", ylabel=_LOSS)
    ax.set_title(title, fontsize=10)
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
