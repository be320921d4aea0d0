"""Figures of fits: data with fit and components, residuals, correlations, profiles."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from xvarpro import backends
from xvarpro.core import trees
from xvarpro.core.namespace import is_array
from xvarpro.core.struct import Array
from xvarpro.errors import ProblemError
from xvarpro.results.plotting import COLOURS, Figure, tidy
from xvarpro.results.result import Result
from xvarpro.statistics.intervals import quantile, student
from xvarpro.statistics.prediction import components
from xvarpro.statistics.profiles import profile

GREY = "0.45"
SHOWN = len(COLOURS) - 1  # components that have a colour each
LABELLED = 12  # rows of a table of correlations that show numbers


def plot_fit(
    fit: Result,
    x: Array | None = None,
    *,
    column: int = 0,
    xlabel: str = "",
    ylabel: str = "",
    names: Sequence[str] | None = None,
    level: float | None = 0.95,
    prediction: bool = False,
) -> Figure:
    """Data, the fit with its confidence band and its components, and the residuals below.

    Parameters
    ----------
    fit : Result
        With real data.
    x : array, shape (m,), optional
        Abscissae; by default the only array of that length in the problem's `data`, else the index.
    column : int
        The right-hand side that is drawn.
    xlabel, ylabel : str
        With units.
    names : sequence of str, optional
        Of the components, one per column of M; up to 6 are drawn, none if there is one only.
    level : float or None
        Of the bands, by linear theory; None for none. They are left out where there are no standard errors.
    prediction : bool
        Draw the band of new observations too, each with the noise of the one at its place.

    Returns
    -------
    matplotlib Figure
        Save it by ``figure.savefig("fit.pdf")``.

    Raises
    ------
    ProblemError
        The fit is complex, there is no such right-hand side, or `x` or `names` have another length.
    """
    fitted, residual = _column(fit.fitted, column), _column(fit.residuals, column)
    at, label = _abscissae(fit, x, len(fitted))
    order = np.argsort(at, kind="stable")
    figure = Figure(figsize=(5.6, 4.4), layout="constrained")
    top, below = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    top.plot(at, fitted + residual, ".", color=GREY, markersize=4, label="data")
    parts = backends.to_numpy(components(fit.stated, fit.theta, fit.w, column)).T
    named = [f"component {j}" for j in range(len(parts))] if names is None else list(names)
    if len(named) != len(parts):
        raise ProblemError(f"names must hold {len(parts)} names, one per column of M; got {names!r:.80}")
    if 1 < len(parts) <= SHOWN:
        for part, name, colour in zip(parts, named, COLOURS[1:], strict=False):
            top.plot(at[order], part[order], color=colour, linewidth=1.0, linestyle="--", label=name)
    widths = [] if level is None else _half_widths(fit, column, level)[: 1 + prediction]
    for width, alpha, kind in zip(widths, (0.25, 0.1), ("band", "of observations"), strict=False):
        low, high = (fitted - width)[order], (fitted + width)[order]
        top.fill_between(at[order], low, high, color=COLOURS[0], alpha=alpha, linewidth=0, label=f"{level:.0%} {kind}")
    top.plot(at[order], fitted[order], color=COLOURS[0], linewidth=1.8, label="fit")
    below.axhline(0.0, color=COLOURS[0], linewidth=1.0)
    below.plot(at, residual, ".", color=GREY, markersize=4)
    top.set_ylabel(ylabel)
    below.set(xlabel=xlabel or label, ylabel="residual")
    tidy(top)
    tidy(below)
    top.legend(frameon=False)
    figure.align_ylabels()
    return figure


def plot_residuals(fit: Result, x: Array | None = None, *, column: int = 0, xlabel: str = "") -> Figure:
    """Residuals along x, their histogram, and their quantiles against those of a normal distribution.

    Parameters
    ----------
    fit, x, column, xlabel
        As for `plot_fit`. Residuals are scaled by the roots of their weights; those without weight are left out.

    Returns
    -------
    matplotlib Figure
    """
    r = _column(fit.residuals, column)
    at, label = _abscissae(fit, x, len(r))
    weights = fit.stated.lower.weights
    if weights is not None:
        w = backends.to_numpy(weights)
        root = np.sqrt(w if w.ndim == 1 else w[:, column])
        at, r = at[root > 0], (np.where(root > 0, r, 0.0) * root)[root > 0]
    spread = float(np.std(r)) or 1.0
    figure = Figure(figsize=(8.4, 2.8), layout="constrained")
    along, counts, normal = figure.subplots(1, 3)
    along.axhline(0.0, color=COLOURS[0], linewidth=1.0)
    along.plot(at, r, ".", color=GREY, markersize=4)
    along.set(xlabel=xlabel or label, ylabel="residual" if weights is None else "weighted residual")
    counts.hist(r, bins="auto", density=True, color="0.8")
    grid = np.linspace(r.min(), r.max(), 200)
    density = np.exp(-0.5 * ((grid - r.mean()) / spread) ** 2) / (spread * np.sqrt(2 * np.pi))
    counts.plot(grid, density, color=COLOURS[0], label="normal")
    counts.set(xlabel="residual", ylabel="density")
    ranks = quantile((np.arange(r.size) + 0.5) / r.size)
    normal.plot(ranks, ranks * spread + r.mean(), color=COLOURS[0], linewidth=1.0)
    normal.plot(ranks, np.sort(r), ".", color=GREY, markersize=4)
    normal.set(xlabel="normal quantile", ylabel="ordered residual")
    for axes in (along, counts, normal):
        axes.locator_params(nbins=5)
        tidy(axes)
    return figure


def plot_correlation(fit: Result, names: Sequence[str] | None = None) -> Figure:
    """Correlations of theta's entries and w's, from -1 in red to 1 in blue.

    Parameters
    ----------
    fit : Result
    names : sequence of str, optional
        Of theta's entries, then w's.

    Returns
    -------
    matplotlib Figure
    """
    s = fit.statistics()
    C, named = s.correlation, [*s.names, *s.w_names] if names is None else list(names)
    if len(named) != len(C):
        raise ProblemError(f"names must hold {len(C)} names, of theta's entries and w's; got {names!r:.80}")
    size = 1.6 + 0.42 * min(len(C), 16)
    figure = Figure(figsize=(size + 0.8, size), layout="constrained")
    ax = figure.subplots()
    image = ax.imshow(C, cmap="RdBu", vmin=-1, vmax=1)
    ax.set_xticks(range(len(C)), named, rotation=90)
    ax.set_yticks(range(len(C)), named)
    if len(C) <= LABELLED:
        for i, j in np.argwhere(np.isfinite(C)).tolist():
            dark = abs(C[i, j]) > 0.6
            ax.text(j, i, f"{C[i, j]:.2f}", ha="center", va="center", fontsize=7, color="w" if dark else "k")
    figure.colorbar(image, label="correlation", shrink=0.8)
    return figure


def plot_profile(
    fit: Result, entry: int = 0, *, level: float = 0.95, points: int = 21, width: float = 3.0, xlabel: str = ""
) -> Figure:
    """The profile of an entry of theta: how the objective rises where it is held elsewhere, and linear theory's line.

    The height is the profile t of Bates and Watts, the signed root of the rise of twice the objective over the variance
    of the noise.

    Parameters
    ----------
    fit : Result
    entry : int
        Of theta, in the order of its leaves.
    level : float
        Whose confidence interval is marked, in (0, 1).
    points, width
        As for `profile`.
    xlabel : str

    Returns
    -------
    matplotlib Figure
    """
    curve, s = profile(fit, entry, points=points, width=width), fit.statistics()
    t, best = student(s, level), curve.best
    figure = Figure(figsize=(5.2, 3.4), layout="constrained")
    ax = figure.subplots()
    if curve.stderr > 0:
        ax.plot(curve.at, (curve.at - best) / curve.stderr, color=GREY, linewidth=1.0, label="linear theory")
    ax.plot(curve.at, curve.height, color=COLOURS[0], marker=".", label="profile")
    for height in (-t, t):
        ax.axhline(
            height, color=COLOURS[1], linewidth=1.0, linestyle="--", label=f"{level:.0%}" if height > 0 else None
        )
    ax.axvline(best, color="0.8", linewidth=1.0, zorder=0)
    ax.set(xlabel=xlabel or s.names[entry], ylabel="profile t")
    tidy(ax)
    ax.legend(frameon=False)
    return figure


def _half_widths(fit: Result, column: int, level: float) -> list[np.ndarray]:
    """Of the band of the fit, and of that of observations."""
    try:
        s = fit.statistics()
        error = s.fitted_stderr(column)
    except ProblemError:  # a figure is drawn without bands where there are none
        return []
    with np.errstate(divide="ignore"):
        noise = s.variance**0.5 / s.at.root[:, column]
    return [student(s, level) * x for x in (error, np.hypot(error, noise))]


def _column(x: Array, column: int) -> np.ndarray:
    host = backends.to_numpy(x)
    if np.iscomplexobj(host):
        raise ProblemError(
            "figures of fits need real data; got complex. Draw real and imaginary parts of result.fitted"
        )
    host = host[:, None] if host.ndim == 1 else host
    if not 0 <= column < host.shape[1]:
        raise ProblemError(f"column must be one of 0 to {host.shape[1] - 1}, a right-hand side; got {column!r}")
    return host[:, column]


def _abscissae(fit: Result, x: Array | None, m: int) -> tuple[np.ndarray, str]:
    """Abscissae and a label: those given, else the only array of m numbers in the problem's data, else the index."""
    if x is not None:
        given = np.ravel(backends.to_numpy(x) if is_array(x) else np.asarray(x))
        if given.shape != (m,):
            raise ProblemError(f"x must hold {m} numbers, one per row of the fit; got {given.size}")
        return given, ""
    data = fit.stated.data
    found = [
        (np.ravel(backends.to_numpy(leaf)), path)
        for path, leaf in zip(trees.paths(data, "data"), trees.leaves(data), strict=True)
        if is_array(leaf) and leaf.size == m == max(leaf.shape)
    ]
    if len(found) != 1:
        return np.arange(m), "index"
    at, path = found[0]
    return at, path.rpartition("[")[2].strip("]'") if "[" in path else ""
