"""Figures of fits: data with fit and components, residuals, correlations, profiles, and of what compares fits."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np

from xvarpro import backends
from xvarpro.core import trees
from xvarpro.core.checks import confidence
from xvarpro.core.struct import Array
from xvarpro.errors import ProblemError
from xvarpro.fit.curves import Curve, abscissae, finer
from xvarpro.fit.profiles import profile
from xvarpro.problem.parameters import Parameters
from xvarpro.results.figures import COLOURS, Figure, FigureBase, MaxNLocator, blank, dated, legend_above, positive, tidy
from xvarpro.results.outcome import Outcome
from xvarpro.statistics.bands import joined, parts_of
from xvarpro.statistics.intervals import quantile, student
from xvarpro.statistics.names import given_names
from xvarpro.statistics.prediction import components, fitted, residuals, roots
from xvarpro.statistics.standard_errors import Statistics
from xvarpro.statistics.theory import statistics
from xvarpro.statistics.weighting import least_squares

if TYPE_CHECKING:
    from xvarpro.fit.comparison import Comparison
    from xvarpro.fit.ridges import CrossValidation, RidgePath

GREY = "0.45"
SHOWN = len(COLOURS) - 1  # components that have a colour each
LABELLED = 12  # rows of a table of correlations that show numbers
NAMED = 30  # rows of it that have a name, beyond which only some have
BANDED = 20_000_000  # derivatives, of data by entries of theta, that a band is computed from: networks have more
ACROSS = 3  # data sets next to one another


def plot_fit(
    fit: Outcome,
    x: Array | Sequence[Any] | None = None,
    *,
    column: int = 0,
    xlabel: str = "",
    ylabel: str = "",
    names: Sequence[str] | None = None,
    level: float | None = 0.95,
    prediction: bool = False,
    absolute_sigma: bool | None = None,
    points: int = 400,
    figure: FigureBase | None = None,
) -> Figure:
    """Data, the fit with its confidence band and its components, and the residuals below.

    Curves are computed between the samples too where these are few, the problem's `data` hold abscissae as floats
    in which `x` is linear, and M takes any number of them, each row depending on its own one alone, which is checked
    at the samples. Elsewhere, as for convolutions, rows in chunks, whole numbers, which may be labels, and what the
    data do not determine, curves join values at the samples.

    Residuals are scaled by the roots of their weights, those of counts by the roots of what is expected. Data of
    weight 0 are hollow; they do not set the limits and may lie beyond them. In a global fit each data set has axes
    of its own, and only the components that are not zero throughout it; real and imaginary part have axes each.

    Parameters
    ----------
    fit : Result
    x : array, shape (m,), or list of arrays, optional
        Abscissae, numbers or dates, a list for data sets whose rows follow one another; by default the only array
        of that length in the problem's `data`, or the only one of one axis, or the only list of arrays of that length
        together, else the index.
    column : int
        The right-hand side that is drawn.
    xlabel, ylabel : str
        With units in brackets, such as ``"signal (V)"``; residuals without weights have those of `ylabel`.
    names : sequence of str, optional
        Of the components, one per column of M; those of one name share a colour. None is drawn where there are more
        than 6 names, or one component only.
    level : float or None
        Of the bands, in (0, 1), by linear theory; None for none. They are left out where there are no standard
        errors, and for networks, where they would take minutes.
    prediction : bool
        Draw the band of new observations too, with the noise of those at the samples.
    absolute_sigma : bool
        Whether the problem's weights are 1 / sigma^2 of the data, which are then drawn with bars of sigma.
    points : int
        How many a curve has at least where there are fewer samples; 0 joins values at the samples.
    figure : matplotlib Figure or SubFigure, optional
        Where to draw, such as ``plt.figure()`` or a part of another figure; by default a new one, unknown to
        pyplot.

    Returns
    -------
    matplotlib Figure
        The given one or a new one, which ``figure.savefig("fit.pdf")`` saves.

    Raises
    ------
    ProblemError
        There is no such right-hand side, or `x` or `names` have another length; `x` holds neither numbers nor dates;
        `level` is not in (0, 1); a band for observations is asked of a fit by another loss.
    """
    if level is not None:
        confidence(level)
    if prediction and fit.loss is not None:
        raise ProblemError("a band for new observations needs the noise of least squares; got a fit by another loss")
    if fit.loss is not None and not fit.loss.by_entry:
        raise ProblemError(f"a figure of a fit needs a loss of every entry of y; got {fit.loss!r}. Draw fit.mean")
    at_solution = fit.stated, fit.theta, fit.w
    found = fitted(*at_solution), fitted(*at_solution, mean=True), residuals(*at_solution)
    values, expected, residual = (_column(x, column) for x in found)
    linked = fit.loss is not None and fit.loss.linked
    shown: Any = fit.loss.mean if fit.loss is not None else np.asarray
    root = _roots(fit, len(values), column)
    along = abscissae(fit, x, len(values))
    at, sets = along.at, along.sets
    banded = level is not None and math.prod(found[0].shape) * _entries(fit) <= BANDED
    s, stderr = _errors(fit, column, absolute_sigma, len(at)) if banded else (None, np.full(len(at), np.nan))
    parts = backends.to_numpy(components(*at_solution, column)).T
    orders = [rows[np.argsort(at[rows], kind="stable")] for rows in sets]
    curves = finer(fit, column, along, parts, s, points) or [
        Curve(at[order], values[order], parts[:, order], stderr[order]) for order in orders
    ]
    fixed = getattr(fit.stated.lower.M, "fixed_columns", 0)  # the last ones, of a fit by `find_components`
    places = [f"component {j}" for j in range(len(parts) - fixed)]
    named = _names(names, places + [f"fixed column {j}" for j in range(fixed)], "one per column of M")
    colours = dict(zip(dict.fromkeys(named), COLOURS[1:], strict=False))
    drawn = list(enumerate(named)) if len(parts) > 1 and len(set(named)) <= SHOWN and not linked else []
    weighted = not np.isin(root, (0, 1)).all()
    bracket = None if weighted else re.search(r"\s*[(\[][^(\[]*[)\]]$", ylabel)
    name_below = ("weighted\nresidual" if weighted else "residual") + (bracket[0] if bracket else "")
    views = {"real part": np.real, "imaginary part": np.imag} if np.iscomplexobj(residual) else {"": np.real}
    panels = [(i, view) for i in range(len(sets)) for view in views]
    fig, pairs = _pairs(len(panels), figure)
    handles: dict[str, Any] = {}
    for j, ((i, view), (top, below)) in enumerate(zip(panels, pairs, strict=True)):
        rows, order, curve = sets[i], orders[i], Curve(curves[i].at, *map(views[view], curves[i][1:]))
        data, left = views[view](expected + residual), views[view](residual)
        used = rows[root[rows] > 0]
        top.plot(at[used], data[used], ".", color=GREY, markersize=5, label="data")
        if absolute_sigma and weighted:
            sigma = 1 / root[used]
            top.vlines(at[used], data[used] - sigma, data[used] + sigma, color=GREY, linewidth=0.7, label="± sigma")
        if s is not None and level is not None:
            share = f"{100 * level:.4g}%"
            bands = [(curve.stderr, f"{share} band", 0.25)]
            seen = order[root[order] > 0]
            if prediction and seen.size:
                noise = np.interp(curve.at, at[seen], s.variance**0.5 / root[seen])
                bands.append((np.hypot(curve.stderr, noise), f"{share} of observations", 0.1))
            for error, name, alpha in bands:
                low, high = curve.fitted - student(s, level) * error, curve.fitted + student(s, level) * error
                top.fill_between(
                    curve.at, shown(low), shown(high), color=COLOURS[0], alpha=alpha, linewidth=0, label=name
                )
        top.plot(curve.at, shown(curve.fitted), color=COLOURS[0], linewidth=1.4, zorder=3, label="fit")
        for k, name in drawn:
            if views[view](parts[k, rows]).any():
                top.plot(curve.at, curve.parts[k], color=colours[name], linewidth=1.0, linestyle="--", label=name)
        below.axhline(0.0, color=COLOURS[0], linewidth=1.0)
        below.plot(at[used], (left * root)[used], ".", color=GREY, markersize=5)
        out = rows[(root[rows] == 0) & np.isfinite(data[rows])]
        for ax, y in ((top, data), (below, left)):
            if out.size and not (weighted and ax is below):
                limits = ax.get_ylim()
                ax.plot(at[out], y[out], "o", color="0.7", fillstyle="none", markersize=4, label="left out")
                ax.set_ylim(limits)
            tidy(ax)
        if along.dates:
            dated(below)
        below.set_xlabel(xlabel or along.label)
        if j % ACROSS == 0:
            top.set_ylabel(ylabel)
            below.set_ylabel(name_below)
        titles = [f"data set {i}"] * (len(sets) > 1) + [view] * (len(views) > 1)
        top.set_title(", ".join(titles), loc="left", fontsize="small")
        for handle, name in zip(*top.get_legend_handles_labels(), strict=True):
            handles.setdefault(name, handle)
    fig.legend(handles.values(), handles.keys(), loc="outside right upper", frameon=False)
    fig.align_ylabels()
    return fig


def plot_residuals(
    fit: Outcome,
    x: Array | Sequence[Any] | None = None,
    *,
    column: int = 0,
    xlabel: str = "",
    ylabel: str = "",
    figure: FigureBase | None = None,
) -> Figure:
    """Residuals along x, their histogram, and their quantiles against those of a normal distribution.

    Parameters
    ----------
    fit : Result
    x, column, xlabel, figure
        As for `plot_fit`. Residuals are scaled as there; those without weight are left out.
    ylabel : str
        Of the residuals, with units; by default "residual", or "weighted residual" where weights scale them.

    Returns
    -------
    matplotlib Figure

    Raises
    ------
    ProblemError
        There is no such right-hand side, or `x` has another length or holds neither numbers nor dates.
    """
    r = _column(residuals(fit.stated, fit.theta, fit.w), column)
    root = _roots(fit, len(r), column)
    x_axis, used = abscissae(fit, x, len(r)), root > 0
    both = parts_of(r[used] * root[used])
    at, r = np.tile(x_axis.at[used], len(both)), np.concatenate(both)
    name = ylabel or ("residual" if (root[used] == 1).all() else "weighted residual")
    spread = float(np.std(r)) or 1.0
    fig = blank(figure, 9.0, 2.8)
    along, counts, normal = fig.subplots(1, 3)
    along.axhline(0.0, color=COLOURS[0], linewidth=1.0)
    along.plot(at, r, ".", color=GREY, markersize=4)
    along.set(xlabel=xlabel or x_axis.label, ylabel=name)
    counts.hist(r, bins="auto", density=True, color="0.8")
    grid = np.linspace(r.min(), r.max(), 200)
    density = np.exp(-0.5 * ((grid - r.mean()) / spread) ** 2) / (spread * np.sqrt(2 * np.pi))
    counts.plot(grid, density, color=COLOURS[0], label="normal")
    counts.set(xlabel=name, ylabel="density")
    ranks = quantile((np.arange(r.size) + 0.5) / r.size)
    normal.plot(ranks, ranks * spread + r.mean(), color=COLOURS[0], linewidth=1.0)
    normal.plot(ranks, np.sort(r), ".", color=GREY, markersize=4)
    normal.set(xlabel="normal quantile", ylabel=f"ordered {name}")
    for axes in (along, counts, normal):
        axes.locator_params(nbins=4)
        tidy(axes)
    if x_axis.dates:
        dated(along)
    return fig


def plot_correlation(
    fit: Outcome,
    names: Sequence[str] | Mapping[str, Any] | Parameters | None = None,
    amplitudes: Sequence[str] | None = None,
    *,
    absolute_sigma: bool | None = None,
    figure: FigureBase | None = None,
) -> Figure:
    """Correlations of theta's entries and w's, from -1 in red to 1 in blue.

    Parameters
    ----------
    fit : Result
    names, amplitudes, absolute_sigma
        As for `report`. Beyond 30 entries only some names are written; of a complex w the real parts come first.
    figure
        As for `plot_fit`.

    Returns
    -------
    matplotlib Figure

    Raises
    ------
    ProblemError
        As `linear_theory`; there are more or fewer names than entries.
    """
    C = statistics(fit, absolute_sigma=absolute_sigma).correlation
    of_theta, of_w = given_names(fit.theta, tuple(fit.w.shape), names, amplitudes)
    if np.iscomplexobj(backends.to_numpy(fit.w)):
        of_w = [f"{part} {name}" for part in ("Re", "Im") for name in of_w]
    named = [*of_theta, *of_w]
    size = 1.6 + 0.42 * min(len(C), 16)
    fig = blank(figure, size + 0.8, size, "compressed")
    ax = fig.subplots()
    image = ax.imshow(C, cmap="RdBu", vmin=-1, vmax=1)
    some = range(0, len(C), -(-len(C) // NAMED))
    ax.set_xticks(some, [named[i] for i in some], rotation=90)
    ax.set_yticks(some, [named[i] for i in some])
    if len(C) <= LABELLED:
        for i, j in np.argwhere(np.isfinite(C)).tolist():
            dark = abs(C[i, j]) > 0.6
            text = f"{round(C[i, j], 2) + 0.0:.2f}"  # without the sign of -0.00
            ax.text(j, i, text, ha="center", va="center", fontsize=7, color="w" if dark else "k")
    fig.colorbar(image, label="correlation", shrink=0.8)
    return fig


def plot_profile(
    fit: Outcome,
    entry: int | str = 0,
    *,
    level: float = 0.95,
    points: int = 21,
    width: float = 3.0,
    xlabel: str = "",
    absolute_sigma: bool | None = None,
    figure: FigureBase | None = None,
) -> Figure:
    """The profile of an entry of theta: how the objective rises where it is held elsewhere, and linear theory.

    The height is the profile t of Bates and Watts, the signed root of the rise of twice the objective over the
    variance of the noise.

    Parameters
    ----------
    fit : Result
    entry : int or str
        Of theta, in the order of its leaves, or its name in the report, such as ``"theta[0]"``.
    level : float
        Whose confidence interval is marked, in (0, 1).
    points, width
        As for `Result.profile`.
    xlabel, figure
        As for `plot_fit`.
    absolute_sigma : bool
        As for `report`: whether the variance of the noise is 1 over the weights.

    Returns
    -------
    matplotlib Figure

    Raises
    ------
    ProblemError
        As `profile`; `level` is not in (0, 1).
    """
    confidence(level)
    curve = profile(fit, entry, points=points, width=width, absolute_sigma=absolute_sigma)
    s = statistics(fit, absolute_sigma=absolute_sigma)
    t, best = student(s, level), curve.best
    fig = blank(figure, 5.2, 3.4)
    ax = fig.subplots()
    if curve.stderr > 0:
        ax.plot(curve.at, (curve.at - best) / curve.stderr, color=GREY, linewidth=1.0, label="linear theory")
    ax.plot(curve.at, curve.height, color=COLOURS[0], marker=".", label="profile")
    for height, label in ((-t, None), (t, f"{100 * level:.4g}%")):
        ax.axhline(height, color=COLOURS[1], linewidth=1.0, linestyle="--", label=label)
    ax.axvline(best, color="0.8", linewidth=1.0, zorder=0)
    ax.set(xlabel=xlabel or (entry if isinstance(entry, str) else s.names[entry]), ylabel="profile t")
    tidy(ax)
    legend_above(ax, ncols=3)
    return fig


def plot_trace(fit: Outcome, *, figure: FigureBase | None = None) -> Figure:
    """Draw objective and gap of a run against its iterations.

    Parameters
    ----------
    fit : Result
    figure
        As for `plot_fit`.

    Returns
    -------
    matplotlib Figure
        Log scale, unless the objective takes negative values. A part of the gap that is 0 throughout is left out.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> problem = xv.separable(lambda theta, data: theta, np.ones(3), lam=1.0)
    >>> fit = xv.solve(problem, np.array([[1.0], [0.0], [0.0]]), over=xv.sets.L2Ball(1.0))
    >>> fit.plot().axes[0].get_xlabel()
    'iteration'
    """
    trace, fig = fit.trace, blank(figure, 5.2, 3.4)
    ax = fig.subplots()
    ax.plot(trace.iteration, trace.value, color=COLOURS[0], label="objective")
    parts = (("gap, constrained block", trace.gap_A, COLOURS[1]), ("gap, free block", trace.gap_B, COLOURS[2]))
    for label, gap, colour in parts:
        if np.any(gap > 0):
            ax.plot(trace.iteration, positive(gap), color=colour, linewidth=1.0, label=label)
    if not np.any(trace.value < 0):
        ax.set_yscale("log")
    ax.set_xlabel("iteration")
    ax.set_ylabel("objective and gap")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    tidy(ax)
    legend_above(ax)
    return fig


def plot_comparison(found: Comparison, *, figure: FigureBase | None = None) -> Figure:
    """Draw the differences of theta, and what rounding explains of them.

    On a log scale, in a new matplotlib Figure or the caller's.
    """
    fig = blank(figure, 6.4, 4.2)
    ax = fig.subplots()
    for i, (name, r) in enumerate(found.relations.items()):
        equal = "" if np.any(r.differences > 0) else ": equal"  # a log scale has no place for zero
        ax.plot(r.iterations, positive(r.differences), color=COLOURS[i % 6], label=f"theta, {name}{equal}")
    ax.plot(r.iterations, r.rounding, color="0.5", linestyle="-.", label="theta, by rounding")
    ax.set_xscale("symlog", linthresh=1)
    ax.set_yscale("log")
    ax.set_xlabel("iteration")
    ax.set_ylabel(f"relative difference from {next(iter(found.fits))}")
    tidy(ax)
    fig.legend(loc="outside upper center", ncols=2, frameon=False)
    return fig


def plot_ridge_path(found: RidgePath, *, figure: FigureBase | None = None) -> Figure:
    """The L-curve, and generalised cross-validation against the ridge, in a new figure or the caller's."""
    fig = blank(figure, 7.2, 3.0)
    curve, score = fig.subplots(1, 2)
    curve.loglog(found.residual_norm, found.weight_norm, color=COLOURS[0], marker=".")
    curve.set(xlabel="|M w − y|", ylabel="|Ω w|")
    score.loglog(found.lam, found.gcv, color=COLOURS[0], marker=".")
    score.set(xlabel="ridge λ", ylabel="GCV")
    ring = {"markersize": 10.0, "fillstyle": "none", "markeredgewidth": 1.6}  # which both may share
    for i, style, label in (
        (found.best, {"color": COLOURS[1]}, "least GCV"),
        (found.corner, {"color": COLOURS[2], **ring}, "corner"),
    ):
        name = f"{label}, λ = {found.lam[i]:.2g}"
        curve.plot(found.residual_norm[i], found.weight_norm[i], "o", label=name, **style)
        score.plot(found.lam[i], found.gcv[i], "o", **style)
    legend_above(curve, ncols=1)
    tidy(curve)
    tidy(score)
    return fig


def plot_cross_validation(found: CrossValidation, *, figure: FigureBase | None = None) -> Figure:
    """The error of predictions against the ridge, with the least one, in a new figure or the caller's."""
    fig = blank(figure, 3.8, 3.0)
    axes = fig.subplots()
    axes.loglog(found.looked, found.errors, color=COLOURS[0], marker=".", label="at the theta of a plain fit")
    axes.plot(found.lam, found.error, "o", color=COLOURS[1], label=f"least, λ = {found.lam:.2g}")
    axes.set(xlabel="ridge λ", ylabel="error of predictions")
    legend_above(axes, ncols=1)
    tidy(axes)
    return fig


def _entries(fit: Outcome) -> int:
    return sum(backends.to_numpy(x).size for x in trees.leaves(fit.theta))


def _errors(fit: Outcome, column: int, absolute_sigma: bool | None, m: int) -> tuple[Statistics | None, np.ndarray]:
    """The statistics of a fit and the standard errors of its values at the samples; None and NaN without them."""
    try:
        s = statistics(fit, absolute_sigma=absolute_sigma)
        error = s.fitted_stderr(column)
        return s, joined(np.split(error, error.size // m))  # of each part
    except ProblemError:  # a figure is drawn without bands where there are none
        return None, np.full(m, np.nan)


def _roots(fit: Outcome, rows: int, column: int) -> np.ndarray:
    """Of the weights of residuals; of likelihoods Pearson's. Of other losses no more is known of the noise."""
    root = roots(fit.stated, rows, column)
    if fit.loss is None or not (fit.loss.likelihood and fit.loss.by_entry):
        return root
    pearson = roots(least_squares(fit), rows, column)
    return np.divide(root**2, pearson, out=0 * root, where=root > 0) if fit.loss.linked else pearson


def _column(x: Array, column: int) -> np.ndarray:
    host = backends.to_numpy(x)
    host = host[:, None] if host.ndim == 1 else host
    if not isinstance(column, Integral) or not 0 <= column < host.shape[1]:
        raise ProblemError(f"column must be one of 0 to {host.shape[1] - 1}, a right-hand side; got {column!r}")
    return host[:, column]


def _names(names: Sequence[str] | None, default: list[str], whose: str) -> list[str]:
    if names is None:
        return default
    if isinstance(names, str) or len(names) != len(default) or not all(isinstance(x, str) for x in names):
        raise ProblemError(f"names must hold {len(default)} names, {whose}; got {names!r:.80}")
    return list(names)


def _pairs(sets: int, figure: FigureBase | None) -> tuple[Figure, list[Any]]:
    """A figure with axes for the fit and the residuals of each data set."""
    across, down = min(sets, ACROSS), -(-sets // ACROSS)
    fig = blank(figure, 1.6 + (5.4 if across == 1 else 2.8 * across), 4.4 if down == 1 else 3.4 * down)
    grid = fig.add_gridspec(down, across)
    cells = [grid[divmod(i, across)] for i in range(sets)]
    return fig, [cell.subgridspec(2, 1, height_ratios=[3, 1]).subplots(sharex=True) for cell in cells]
