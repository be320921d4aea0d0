"""Figures of the autoencoder: latents that stay, reconstructions, loss against latents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from xvarpro.results import plotting
from xvarpro_experiments.autoencoder import model
from xvarpro_experiments.methods import Outcome
from xvarpro_experiments.race import Race

_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")
_STYLES = {"paper": "-", "ours": "-", "rival": (0, (4, 1.5))}
_WIDEST = 8  # images in a row


def collapse(race: Race, loss: str, measure: str) -> Figure:
    """Active latents and test loss against iterations, and the sorted s that each method ends with."""
    figure = Figure(figsize=(10.8, 4.4), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    _lines(left, race, "iterations", measure)
    _lines(middle, race, "iterations", loss)
    left.set_ylabel(f"active latents (s_i > {model.ACTIVE:g} max s)")
    left.set_ylim(bottom=0)
    left.yaxis.set_major_locator(MaxNLocator(integer=True))
    middle.set_ylabel("test loss: mean of 1/2 |x - x̂|² per image")
    middle.set_yscale("log")
    plotting._readable(middle, np.concatenate([o.measured[loss].value for f in race.outcomes.values() for o in f]))
    _floor(middle, race, loss)
    for ax in (left, middle):
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter(plotting._PLAIN)
        ax.set_xlabel("iteration")
    first = next(iter(race.outcomes.values()))
    ends: list[Any] = [o.theta for o in first if o.theta is not None]
    for i, theta in enumerate(ends):
        s = np.sort(np.asarray(theta["s"]))[::-1]
        right.plot(np.arange(1, s.size + 1), s, "o-", color=_COLOURS[i % len(_COLOURS)], markersize=3, linewidth=1.2)
    right.set_yscale("symlog", linthresh=1e-5)
    right.set_ylim(bottom=0)
    right.xaxis.set_major_locator(MaxNLocator(integer=True))
    right.set_xlabel("latent, by decreasing s")
    right.set_ylabel("s at the end")
    for ax in (left, middle, right):
        plotting._tidy(ax)
    figure.legend(*left.get_legend_handles_labels(), loc="outside upper center", ncols=3, frameon=False, fontsize=8.5)
    return figure


def sweep(found: Sequence[Any], title: str = "") -> Figure:
    """Test loss against active latents, a point for each ridge, above the line of PCA with as many axes.

    Parameters
    ----------
    found : sequence of Kept
    title : str
    """
    figure = Figure(figsize=(6.4, 4.4), layout="constrained")
    ax = figure.subplots()
    n = np.array([k.active for k in found])
    floor = np.array([k.floor for k in found])
    order = np.argsort(n)
    ax.plot(n[order], floor[order], color="0.4", linewidth=1.2, marker=".", label="PCA with as many axes")
    ax.fill_between(n[order], floor[order], 1.1 * floor[order], color="0.9", label="within 10 % of it")
    for i, splits in enumerate(sorted({k.splits for k in found})):
        here = [k for k in found if k.splits == splits]
        name = "autoencoder, two levels" if splits == 2 else "autoencoder, one level"
        ax.plot([k.active for k in here], [k.loss for k in here], "o", color=_COLOURS[i], markersize=5, label=name)
        ax.plot(
            [k.active for k in here],
            [k.refitted for k in here],
            "D",
            color=_COLOURS[i],
            markerfacecolor="white",
            markersize=5,
            label="its active latents, decoder refitted",
        )
        for k in here:
            ax.annotate(
                f"{k.ridge:.0e}",
                (k.active, k.loss),
                xytext=(5, 5 - 10 * i),
                textcoords="offset points",
                fontsize=7.5,
                color=_COLOURS[i],
            )
    ax.set_yscale("log")
    plotting._readable(ax, np.concatenate([floor, [k.loss for k in found]]))
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_xlabel("active latents (labels: ridge per image)")
    ax.set_ylabel("test loss: mean of 1/2 |x - x̂|² per image")
    if title:
        ax.set_title(title, fontsize=10)
    plotting._tidy(ax)
    ax.legend(frameon=False, fontsize=8.5)
    return figure


def reconstructions(of: Any, race: Race) -> Figure:
    """Test images above what the best method and the paper's make of them, with PCA's below.

    Parameters
    ----------
    of : Setting
    race : Race
    """
    data, k = of.data, of.widths[-1]
    X = data.test[:_WIDEST]
    rows = [("test images", X)]
    best = race.best(families=("ours",))
    for o in dict.fromkeys((race.of(race.names[0])[0].method, best.method)):
        rows.append((o, _decoded(of, race.of(o)[0], X)))
    V = model.principal_axes(data.train)[:, :k]
    rows.append((f"PCA, {k} axes", (X @ V) @ V.T))
    figure = Figure(figsize=(1.0 * len(X) + 1.9, 1.05 * len(rows)), layout="constrained")
    axes = figure.subplots(len(rows), len(X), squeeze=False)
    for line, (name, images) in zip(axes, rows, strict=True):
        for ax, image in zip(line, images, strict=True):
            shown = np.clip((image + data.mean).reshape(data.shape), 0, 1)
            colour = shown.ndim == 3
            ax.imshow(
                np.moveaxis(shown, 0, -1) if colour else shown,
                cmap=None if colour else "gray_r",
                vmin=0,
                vmax=1,
                interpolation="none",
            )
            ax.set_xticks([])
            ax.set_yticks([])
            ax.spines[:].set_color("0.8")
        line[0].set_ylabel(
            name.replace(", ", ",\n").replace(" (", "\n("), rotation=0, ha="right", va="center", fontsize=8
        )
    return figure


def _decoded(of: Any, outcome: Outcome, X: np.ndarray) -> np.ndarray:
    """Reconstructions with the decoder that is optimal for all training images."""
    scale = 1 / of.data.rms
    M: Any = model.design(outcome.theta, {"X": of.data.train, "scale": scale})
    lam = of.ridge * len(M)
    W = np.linalg.solve(M.T @ M + lam * np.eye(M.shape[1]), M.T @ of.data.train)
    return np.asarray(model.reconstruct(outcome.theta, W, X, scale))


def _lines(ax: Any, race: Race, axis: str, measure: str) -> None:
    """Median over the seeds as a line, the range as a band, on a grid that all seeds reach."""
    shown = [m for m in race.experiment.methods if m.family != "floor"]
    for i, method in enumerate(shown):
        curves = [o.measured[measure] for o in race.of(method.name) if measure in o.measured]
        if not curves:
            continue
        x = getattr(curves[0], axis)
        x = x[x > 0]  # a logarithm has no place for the start
        values = np.array([[c.at(axis, at) for at in x] for c in curves])
        colour = _COLOURS[i % len(_COLOURS)]
        ax.plot(
            x,
            np.median(values, axis=0),
            color=colour,
            linestyle=_STYLES[method.family],
            linewidth=2.6 - 1.4 * i / max(1, len(shown) - 1),  # what lies below another line can be seen beside it
            label=method.name,
        )
        if len(curves) > 1:
            ax.fill_between(x, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.15, linewidth=0)


def _floor(ax: Any, race: Race, measure: str) -> None:
    for method in race.experiment.methods:
        if method.family != "floor":
            continue
        level = float(race.of(method.name)[0].measured[measure].value[-1])
        ax.axhline(level, color="0.4", linewidth=1.0, linestyle=":")
        ax.annotate(
            method.name,
            (0.0, level),
            xycoords=("axes fraction", "data"),
            xytext=(4, 3),
            textcoords="offset points",
            color="0.35",
            fontsize=8,
        )
