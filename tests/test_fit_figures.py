"""Figures of fits: what is drawn is what the fit says, in every format, without a global setting."""

import inspect
import re
import tracemalloc
from functools import cache, partial
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from matplotlib.figure import Figure

import xvarpro as xv
from xvarpro.errors import ProblemError

from .support import RATES, T, decays, rng

Y = np.exp(-np.outer(T, RATES)) @ np.array([2.0, 1.0]) + 0.02 * rng(1).normal(size=T.size)
BOX = xv.sets.Box(0.0, 40.0)


@cache
def example():
    return xv.solve(xv.separable(decays, Y, data={"t": T}), RATES, over=BOX, tol=1e-9)


def lines(ax):
    return {line.get_label(): line.get_xydata() for line in ax.lines}


def at(x, curve):
    """The points of a curve at some abscissae, among which it has others."""
    found = curve[np.isin(curve[:, 0], x)]
    np.testing.assert_array_equal(found[:, 0], np.unique(x))
    return found


def test_data_fit_components_and_residuals_are_drawn():
    top, below = example().plot_fit(xlabel="time (ns)", ylabel="signal (V)", names=["slow", "fast"]).axes
    drawn = lines(top)
    assert list(drawn) == ["data", "fit", "slow", "fast"]
    np.testing.assert_allclose(drawn["data"], np.stack([T, Y], axis=1))
    np.testing.assert_allclose(at(T, drawn["fit"])[:, 1], example().fitted)
    for name, rate, w in zip(["slow", "fast"], example().theta, example().w, strict=True):
        x, y = drawn[name].T
        np.testing.assert_allclose(y, w * np.exp(-x * rate))
    np.testing.assert_allclose(below.lines[1].get_xydata(), np.stack([T, example().residuals], axis=1), atol=1e-15)
    assert (below.get_xlabel(), top.get_ylabel(), below.get_ylabel()) == ("time (ns)", "signal (V)", "residual (V)")
    assert example().plot_fit(ylabel="f(x) of it").axes[1].get_ylabel() == "residual"


def test_the_band_is_that_of_the_fitted_values():
    top, _ = example().plot_fit(level=0.9).axes
    (band,) = top.collections
    s = example().statistics()
    t = scipy.stats.t.ppf(0.95, s.dof)
    J = np.concatenate(
        [-T[:, None] * np.exp(-np.outer(T, example().theta)) * example().w, np.exp(-np.outer(T, example().theta))],
        axis=1,
    )
    width = t * np.sqrt(np.sum((J @ s.covariance) * J, axis=1))
    np.testing.assert_allclose(s.fitted_stderr(), width / t, rtol=1e-6)
    (path,) = band.get_paths()
    edges = path.vertices
    np.testing.assert_allclose(edges[:, 1].max(), (example().fitted + width).max(), rtol=1e-6)
    np.testing.assert_allclose(edges[:, 1].min(), (example().fitted - width).min(), rtol=1e-6)
    assert not example().plot_fit(level=None).axes[0].collections
    _, wide = example().plot_fit(level=0.9, prediction=True).axes[0].collections
    edges, width = wide.get_paths()[0].vertices, np.sqrt(width**2 + t**2 * s.residual_variance)
    np.testing.assert_allclose(edges[:, 1].max(), (example().fitted + width).max(), rtol=1e-6)


X = np.array([0.0, 0.6, 1.1, 1.8, 2.5, 3.1, 3.7, 4.4, 6.0, 9.0])  # few, with a gap
SIGNAL = 2.0 * np.exp(-0.5 * ((X - 2.1) / 0.5) ** 2) + 0.3 + 0.02 * rng(11).normal(size=X.size)
START = np.array([2.0, 0.6])


def peak(theta, data):
    xp = xv.array_namespace(theta)
    u = (data["x"] - theta[0]) / theta[1]
    return xp.stack([xp.exp(-0.5 * u * u), xp.ones_like(u)], axis=-1)


def peak_fit(M=peak, x=X, **options):
    return xv.solve(xv.separable(M, SIGNAL, data={"x": x}, **options), START, over=xv.sets.Box(0.1, 9.0), tol=1e-9)


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
def test_between_few_samples_curves_and_bands_are_those_of_the_model(backend):
    to, dtype, rtol = xv.backends.get(backend), *(("f4", 1e-4) if backend == "jax" else ("f8", 1e-9))
    problem = xv.separable(peak, SIGNAL.astype(dtype), data={"x": xv.Samples(to.asarray(X.astype(dtype)))})
    fit = xv.solve(problem, to.asarray(START.astype(dtype)), over=xv.sets.Box(0.1, 9.0), tol=1e-7)
    top, below = fit.plot_fit(names=["peak", "line"]).axes
    x, y = lines(top)["fit"].T
    assert below.get_xlabel() == "x"
    assert 400 <= len(x) <= 800 + len(X)
    assert np.diff(x).max() < 9.0 / 399  # in the gap too
    there = {"x": to.asarray(x.astype(dtype))}
    np.testing.assert_allclose(y, xv.backends.to_numpy(fit.predict(there)), rtol=rtol)
    assert y.max() > SIGNAL.max() + 0.05
    np.testing.assert_allclose(lines(top)["peak"][:, 1] + lines(top)["line"][:, 1], y, rtol=rtol)
    band = fit.band(there)
    edges = top.collections[0].get_paths()[0].vertices
    at_peak = edges[edges[:, 0] == x[np.argmax(y)], 1]
    found = [at_peak.min(), at_peak.max()]
    np.testing.assert_allclose(found, [band.lower[np.argmax(y)], band.upper[np.argmax(y)]], rtol=max(rtol, 1e-6))


def test_the_band_of_many_samples_takes_memory_in_proportion():
    t = np.linspace(0.0, 3.0, 3000)
    y = np.exp(-np.outer(t, RATES)) @ np.array([2.0, 1.0]) + 0.02 * rng(1).normal(size=t.size)
    s = xv.statistics.linear_theory(xv.separable(decays, y, data={"t": t}), RATES)
    tracemalloc.start()
    s.fitted_stderr()
    assert tracemalloc.get_traced_memory()[1] < 3000 * 8 * 100  # 3000 numbers for each of them would be 72 MB
    tracemalloc.stop()


def test_of_weighted_data_the_band_of_observations_has_the_noise_of_its_place():
    weights = np.where(X < 3, 1.0, 25.0)
    weights[[1, 8]] = 0.0
    fit = peak_fit(weights=weights)
    top = fit.plot_fit(prediction=True).axes[0]
    inner, outer = (np.ptp(band.get_paths()[0].vertices[:, 1]) for band in top.collections)
    edges = top.collections[1].get_paths()[0].vertices
    s, t = fit.statistics(), scipy.stats.t.ppf(0.975, fit.statistics().dof)
    noise = s.variance**0.5 / np.sqrt(weights[[0, 9]])
    for x, size, error in zip(X[[0, 9]], noise, s.fitted_stderr()[[0, 9]], strict=True):
        assert np.ptp(edges[edges[:, 0] == x, 1]) == pytest.approx(2 * t * np.hypot(size, error), rel=1e-6)
    assert outer > inner
    assert np.isfinite(edges).all()  # where a datum has no weight too


def summed(theta, data):
    return xv.array_namespace(theta).cumulative_sum(peak(theta, data), axis=0)


BACKGROUND = rng(12).uniform(0.5, 1.0, X.size)


def with_background(theta, data):
    xp = xv.array_namespace(theta)
    return xp.stack([peak(theta, data)[:, 0], xp.asarray(BACKGROUND)], axis=1)


def joined_to_background(theta, data):
    return xv.models.columns(peak(theta, data)[:, 0], xv.array_namespace(theta).asarray(BACKGROUND))


def of_a_function(theta, data):
    """As of a profile of SciPy's next to a polynomial."""
    held = xv.special.external(lambda p: np.exp(-0.5 * ((X - p[0]) / p[1]) ** 2), theta)
    return xv.models.columns(held, xv.models.polynomials(data["x"], 0))


def undetermined(theta, data):
    xp = xv.array_namespace(theta)
    return xp.stack([peak(theta, data)[:, 0], 1.0 + 0.0 * data["x"], 1.0 + 0.0 * data["x"]], axis=1)


@pytest.mark.parametrize("M", [summed, with_background, joined_to_background, of_a_function, undetermined])
def test_curves_join_the_samples_where_rows_of_the_model_hang_together(M):
    fit = peak_fit(M, solver=xv.lower.SVD() if M is undetermined else None)
    top = fit.plot_fit().axes[0]
    np.testing.assert_allclose(lines(top)["fit"], np.stack([X, fit.fitted], axis=1))


def test_curves_join_the_samples_where_other_abscissae_are_not_known():
    fit = peak_fit()
    for options in ({"points": 0}, {"points": X.size}, {"x": np.sqrt(X)}, {"x": X**2}, {"x": [X[:4], X[4:]]}):
        found = [lines(ax)["fit"] for ax in fit.plot_fit(**options).axes[::2]]
        np.testing.assert_allclose(np.concatenate(found)[:, 1], fit.fitted, err_msg=str(options))
    whole = peak_fit(lambda theta, data: peak(theta, {"x": 1.0 * data["x"]}), np.arange(X.size))
    np.testing.assert_allclose(lines(whole.plot_fit().axes[0])["fit"][:, 1], whole.fitted)
    same = xv.solve(xv.separable(lambda th, x: x[:, None] * th, SIGNAL, data=np.ones(X.size)), np.ones(1), max_iter=1)
    assert len(lines(same.plot_fit().axes[0])["fit"]) == X.size


def test_abscissae_may_be_a_column():
    def M(theta, data):
        return peak(theta, {"x": data["x"][:, 0]})

    column, plain = peak_fit(M, X[:, None]), peak_fit()
    drawn = [lines(fit.plot_fit(x=3 * X + 1).axes[0])["fit"] for fit in (column, plain)]
    np.testing.assert_allclose(*drawn, rtol=1e-6)
    assert len(drawn[0]) > 400
    assert (drawn[0][0, 0], drawn[0][-1, 0]) == (1.0, 28.0)


DAYS = np.datetime64("2021-03-28") + np.round(40 * X).astype("timedelta64[D]")


@pytest.mark.parametrize("kind", ["numpy", "zone", "days", "data"])
def test_dates_are_abscissae_with_dates_at_their_ticks(kind):
    from matplotlib.dates import date2num

    fit, x = peak_fit(x=np.round(40 * X) / 40), DAYS
    if kind == "data":  # of a model that computes with them, on NumPy
        start, x = DAYS[0], None
        fit = peak_fit(lambda theta, data: peak(theta, {"x": (data["x"] - start) / np.timedelta64(40, "D")}), DAYS)
    elif kind == "zone":
        x = pd.Series(DAYS).dt.tz_localize("Europe/Berlin")
    elif kind == "days":
        x = list(DAYS.tolist())
    figure, residuals = fit.plot_fit(x), fit.plot_residuals(x)
    top, below = figure.axes
    hours = 24 * (date2num(DAYS) - lines(top)["data"][:, 0])
    np.testing.assert_allclose(hours[[0, 5]], [1, 2] if kind == "zone" else [0, 0], atol=1e-6)  # in universal time
    curve = lines(top)["fit"]
    assert len(curve) == len(X) if kind in ("data", "zone") else len(curve) > 400
    for fig, ax in ((figure, below), (residuals, residuals.axes[0]))[: 2 if kind == "numpy" else 1]:
        fig.draw_without_rendering()
        labels = [label.get_text() for label in ax.get_xticklabels()]
        assert 3 <= len(labels) <= 8
        assert "2022" in labels
        assert {"Jul", "Sep", "May"} & {*labels}
        boxes = [label.get_window_extent() for label in ax.get_xticklabels()]
        assert all(a.x1 < b.x0 for a, b in pairwise(boxes))


def test_abscissae_in_any_order_and_right_hand_sides_by_number():
    order = rng(2).permutation(T.size)
    y = np.exp(-np.outer(T, RATES)) @ rng(3).normal(size=(2, 3))
    fit = xv.solve(xv.separable(decays, y[order], data={"t": T[order]}), RATES, over=BOX, max_iter=2)
    top, _ = fit.plot_fit(column=2).axes
    np.testing.assert_allclose(at(T, lines(top)["fit"])[:, 1], fit.fitted[np.argsort(T[order]), 2])
    assert top.get_xlabel() == ""
    with pytest.raises(ProblemError, match="column must be one of 0 to 2"):
        fit.plot_fit(column=3)


def test_the_abscissa_is_what_the_data_hold_or_the_index():
    assert example().plot_fit().axes[1].get_xlabel() == "t"
    two = xv.solve(xv.separable(decays, Y, data={"t": T, "u": T}), RATES, over=BOX, max_iter=1)
    for x, label, drawn in ((None, "index", np.arange(T.size)), (2 * T, "x", 2 * T)):
        top, below = two.plot_fit(x).axes
        assert below.get_xlabel() == label
        np.testing.assert_array_equal(lines(top)["fit"][:, 0], drawn)
    assert two.plot_residuals(list(T)).axes[0].get_xlabel() == "x"


def test_data_sets_of_a_global_fit_have_axes_of_their_own():
    t = [T, T[::2] + 0.1]
    y = np.concatenate([decays(RATES, {"t": x}) @ w for x, w in zip(t, ([2.0, 1.0], [1.0, 3.0]), strict=True)])

    def blocks(theta, data):
        return xv.operators.BlockDiagonal([decays(theta, {"t": x}) for x in data["time (ns)"]])

    problem = xv.separable(blocks, y + 0.02 * rng(5).normal(size=y.size), data={"time (ns)": t})
    fit = xv.solve(problem, RATES, over=BOX)
    by_data = fit.plot_fit(names=["slow", "fast"] * 2, ylabel="signal")
    assert len(by_data.axes) == 4
    for i, (top, below) in enumerate(zip(by_data.axes[::2], by_data.axes[1::2], strict=True)):
        assert [line.get_label() for line in top.lines] == ["data", "fit", "slow", "fast"]
        part = lines(top)["fast"]
        np.testing.assert_allclose(part[:, 1], fit.w[2 * i + 1] * np.exp(-part[:, 0] * fit.theta[1]))
        np.testing.assert_allclose(at(t[i], lines(top)["fit"])[:, 1], fit.fitted[40 * i : 40 + 20 * i])
        assert len(lines(top)["fit"]) > 400
        np.testing.assert_allclose(below.lines[1].get_ydata(), fit.residuals[40 * i : 40 + 20 * i])
        assert below.get_xlabel() == "time (ns)"
        assert top.get_title(loc="left") == f"data set {i}"
    assert example().plot_fit().axes[0].get_title(loc="left") == ""
    (legend,) = by_data.legends
    assert [text.get_text() for text in legend.get_texts()] == ["data", "95% band", "fit", "slow", "fast"]
    assert [line.get_label() for line in fit.plot_fit().axes[2].lines][2:] == ["component 2", "component 3"]
    # joined abscissae are cut as the data are; a list has its own cuts
    joined, listed = fit.plot_fit(2 * np.concatenate(t)), fit.plot_fit([y[:10], y[10:25], y[25:50], y[50:]])
    np.testing.assert_array_equal(lines(joined.axes[2])["data"][:, 0], 2 * t[1])
    assert [len(lines(ax)["data"]) for ax in listed.axes[::2]] == [10, 15, 25, 10]
    listed.draw_without_rendering()
    assert listed.axes[6].get_window_extent().y1 < listed.axes[1].get_window_extent().y0  # in a second row
    np.testing.assert_array_equal(fit.plot_residuals().axes[0].lines[1].get_xdata(), np.concatenate(t))


def test_data_of_weight_zero_are_hollow_and_do_not_set_the_limits():
    y, weights = Y.copy(), np.ones(T.size)
    y[[3, 20, 30]], weights[[3, 20, 30]] = (100.0, Y[20] + 0.03, np.nan), 0.0
    fit = xv.solve(xv.separable(decays, y, data={"t": T}, weights=weights), RATES, over=BOX)
    top, below = fit.plot_fit().axes
    for ax, value in ((top, y), (below, y - fit.fitted)):
        out = next(line for line in ax.lines if line.get_label() == "left out")
        np.testing.assert_allclose(out.get_xydata(), np.stack([T, value], axis=1)[[3, 20]])
        assert out.get_fillstyle() == "none"
        assert ax.get_ylim()[1] < 5
    assert np.isin(T[[3, 20, 30]], lines(top)["data"][:, 0]).sum() == 0


def test_residuals_are_called_weighted_only_where_weights_scale_them():
    def labels(fit, **options):
        along, counts, normal = fit.plot_residuals(**options).axes
        return along.get_ylabel(), counts.get_xlabel(), normal.get_ylabel()

    masked = xv.separable(decays, Y, data={"t": T}, weights=T > 0.1)
    assert labels(xv.solve(masked, RATES, over=BOX)) == ("residual", "residual", "ordered residual")
    robust = xv.solve_robust(masked, RATES, over=BOX, loss=xv.losses.Huber(0.01))
    assert labels(robust)[0] == "residual"
    weighted = xv.solve(xv.separable(decays, Y, data={"t": T}, weights=4 * np.ones(T.size)), RATES, over=BOX)
    assert labels(weighted) == ("weighted residual", "weighted residual", "ordered weighted residual")
    assert labels(weighted, ylabel="residual (sigma)") == (*["residual (sigma)"] * 2, "ordered residual (sigma)")
    with pytest.raises(ProblemError, match="needs the noise of least squares"):
        robust.plot_fit(prediction=True)


def test_residuals_below_a_fit_are_scaled_as_the_noise_is():
    """By roots of weights, those of counts by roots of what is expected; outliers are as large as they are."""
    weights = np.where(np.arange(T.size) % 4 == 0, 0.0, rng(4).uniform(0.5, 2.0, T.size))
    used, y = weights > 0, rng(2).poisson(30 * np.exp(-np.outer(T, RATES)) @ np.array([2.0, 1.0])).astype(float)
    problem = xv.separable(decays, y, data={"t": T}, weights=weights, W=xv.lower.Nonnegative())
    plain = xv.separable(decays, y, data={"t": T}, W=xv.lower.Nonnegative())
    squares, counts = xv.solve(problem, RATES, over=BOX), xv.solve_robust(problem, RATES, over=BOX, loss="poisson")
    huber, all_counts = (xv.solve_robust(plain, RATES, over=BOX, loss=loss) for loss in ("huber", "poisson"))
    for fit, root, label in (
        (squares, weights**0.5, "weighted\nresidual"),
        (counts, (weights / counts.fitted) ** 0.5, "weighted\nresidual"),
        (all_counts, all_counts.fitted**-0.5, "weighted\nresidual"),
        (huber, np.ones(T.size), "residual (V)"),
    ):
        top, below = fit.plot_fit(ylabel="signal (V)").axes
        shown = root > 0
        want = (root * fit.residuals)[shown]
        np.testing.assert_allclose(below.lines[1].get_ydata(), want, atol=1e-12)
        along, histogram, normal = fit.plot_residuals().axes
        np.testing.assert_allclose(along.lines[1].get_ydata(), want)
        np.testing.assert_allclose(normal.lines[1].get_ydata(), np.sort(want))
        assert sum(bar.get_height() * bar.get_width() for bar in histogram.patches) == pytest.approx(1.0)
        assert below.get_ylabel() == label
        assert len(top.collections) == 1  # the band: no bars of a sigma that is not known
        bars = [x for x in fit.plot_fit(absolute_sigma=True).axes[0].collections if x.get_label() == "± sigma"]
        assert len(bars) == (fit is not huber)
        for ends in bars:
            low, high = np.array(ends.get_segments())[:, :, 1].T
            np.testing.assert_allclose([(low + high) / 2, (high - low) / 2], [y[shown], 1 / root[shown]])
    assert not [line for line in squares.plot_fit().axes[1].lines if line.get_label() == "left out"]
    np.testing.assert_array_equal(np.isfinite(squares.statistics().fitted_stderr()), used)


def test_correlations_and_profiles_are_drawn():
    figure = example().plot_correlation()
    (image,) = figure.axes[0].images
    np.testing.assert_array_equal(image.get_array(), example().statistics().correlation)
    assert image.get_clim() == (-1, 1)
    assert [x.get_text() for x in figure.axes[0].get_yticklabels()] == ["theta[0]", "theta[1]", "w[0]", "w[1]"]
    named = example().plot_correlation(["slow", "fast"], ["large", "small"]).axes[0]
    assert [x.get_text() for x in named.get_yticklabels()] == ["slow", "fast", "large", "small"]
    ax = example().plot_profile(1, points=7).axes[0]
    curve = example().profile(1, points=7)
    np.testing.assert_allclose(lines(ax)["profile"], np.stack([curve.at, curve.height], axis=1))
    np.testing.assert_allclose(lines(ax)["linear theory"][:, 1], (curve.at - curve.best) / curve.stderr)
    named = example().plot_profile("theta[1]", points=7).axes[0]
    np.testing.assert_array_equal(lines(named)["profile"], lines(ax)["profile"])
    assert named.get_xlabel() == ax.get_xlabel() == "theta[1]"
    t = scipy.stats.t.ppf(0.975, example().statistics().dof)
    levels = [x.get_ydata()[0] for x in ax.lines if len(x.get_ydata()) == 2 and len(set(x.get_ydata())) == 1]
    assert sorted(levels)[:: len(levels) - 1] == pytest.approx([-t, t])


def test_a_profile_and_correlations_may_be_of_known_sigma():
    """Its interval ends where the curve meets the normal quantile."""
    weights = np.full(T.size, 0.05**-2)
    fit = xv.solve(xv.separable(decays, Y, data={"t": T}, weights=weights), RATES, over=BOX, tol=1e-9)
    found = fit.interval(0.9, "profile", absolute_sigma=True)
    ax = fit.plot_profile(1, level=0.9, points=61, absolute_sigma=True).axes[0]
    at, height = lines(ax)["profile"].T
    t = scipy.stats.norm.ppf(0.95)
    np.testing.assert_allclose(np.interp([-t, t], height, at), [found.lower[1], found.upper[1]], rtol=2e-3)
    assert found.upper[1] > 1.1 * fit.interval(0.9, "profile").upper[1]
    levels = {x.get_ydata()[0] for x in ax.lines if len(x.get_ydata()) == 2}
    assert {-t, t} <= levels
    few = xv.solve(xv.separable(decays, Y[:4], data={"t": T[:4]}), RATES, over=BOX, max_iter=3)
    C = few.statistics(absolute_sigma=True).correlation
    np.testing.assert_array_equal(few.plot_correlation(absolute_sigma=True).axes[0].images[0].get_array(), C)


def heads(text):
    """The lines of a docstring that are not indented: sentences, and names of parameters."""
    return " ".join(line for line in text.splitlines() if not line.startswith(" "))


FIGURES = ("plot_fit", "plot_residuals", "plot_correlation", "plot_profile")


@pytest.mark.parametrize("name", ["statistics", "report", "interval", "band", "save", "like", "plot_trace", *FIGURES])
def test_a_method_is_a_function_that_describes_what_it_takes(name):
    method = getattr(xv.Result, name)
    said, taken = heads(inspect.getdoc(method)), list(inspect.signature(method).parameters)[1:]
    assert [x for x in taken if not re.search(rf"\b{x}\b", said)] == []
    assert getattr(example(), name).__func__ is method


def test_the_histogram_of_residuals_has_the_normal_density():
    _, counts, normal = example().plot_residuals().axes
    r = np.asarray(example().residuals)
    x, density = lines(counts)["normal"].T
    np.testing.assert_allclose(density, scipy.stats.norm.pdf(x, r.mean(), r.std()), rtol=1e-9)
    line, points = (x.get_xydata() for x in normal.lines)
    np.testing.assert_allclose(line[:, 1], r.mean() + r.std() * line[:, 0], rtol=1e-9)
    np.testing.assert_array_equal(points[:, 1], np.sort(r))


def test_fits_without_standard_errors_are_drawn_without_a_band():
    problem = xv.bilevel(lower=xv.Level(decays, Y), upper=xv.Level(decays, Y), data={"t": T})
    assert not xv.solve(problem, RATES, over=BOX).plot_fit().axes[0].collections


def test_of_complex_weights_correlations_are_drawn_and_profiles_refused():
    fit = xv.solve(xv.separable(decays, Y * (1 + 1j) + 0.02j * rng(6).normal(size=T.size), data={"t": T}), RATES)
    ax = fit.plot_correlation().axes[0]
    named = ["theta[0]", "theta[1]", "Re w[0]", "Re w[1]", "Im w[0]", "Im w[1]"]
    assert [x.get_text() for x in ax.get_yticklabels()] == named

    def parts(theta, w):
        xp = xv.array_namespace(w)
        return xp.stack([xp.real(w[1]), xp.imag(w[0])])

    pair = fit.statistics().propagate(parts).covariance
    want = pair[0, 1] / np.sqrt(pair[0, 0] * pair[1, 1])
    np.testing.assert_allclose(ax.images[0].get_array()[named.index("Re w[1]"), named.index("Im w[0]")], want)
    with pytest.raises(ProblemError, match="solve for a real w"):
        fit.plot_profile()


def test_of_complex_fits_both_parts_are_drawn():
    y = Y * (1 + 1j) + 0.02j * rng(6).normal(size=T.size)
    fit = xv.solve(xv.separable(decays, y, data={"t": T}), RATES)
    band, (re, _, im, _) = fit.band(), fit.plot_fit(points=0).axes
    assert [ax.get_title(loc="left") for ax in (re, im)] == ["real part", "imaginary part"]
    for ax, part in ((re, np.real), (im, np.imag)):
        np.testing.assert_array_equal(ax.lines[0].get_ydata(), part(y))
        drawn = ax.collections[0].get_paths()[0].vertices
        for x in (band.lower, band.upper):
            assert np.isin(np.round(part(x), 9), np.round(drawn[:, 1], 9)).all()
    points = fit.plot_residuals().axes[2].lines[1].get_ydata()
    np.testing.assert_allclose(points, np.sort([fit.residuals.real, fit.residuals.imag], axis=None))


def test_what_cannot_be_drawn_is_refused(subtests):
    fit = example()
    for draw, given, why in (
        (fit.plot_fit, {"column": 1.5}, "column must be one of 0 to 0, a right-hand side; got 1.5"),
        (fit.plot_fit, {"figure": 3}, "figure must be a Figure or SubFigure of matplotlib, or None; got 3"),
        (fit.plot_fit, {"x": np.full(T.size, np.nan)}, "x must hold a number or a date for every row .*; got NaN"),
        *((fit.plot_fit, {"x": x}, "x must hold 40 numbers") for x in (T[:5], [], [T, T])),
        *(
            (draw, {"x": x}, "x must hold numbers or dates; got dtype")
            for draw in (fit.plot_fit, fit.plot_residuals)
            for x in (["a"] * T.size, T.astype("timedelta64[s]"), T + 1j)
        ),
        *((fit.plot_fit, {"names": x}, "names must hold 2 names, one per column of M") for x in (["a"], "ab", [1, 2])),
        *(
            (draw, {"level": level}, r"level must be a number in \(0, 1\), such as 0.95; got")
            for draw in (fit.plot_fit, fit.plot_profile)
            for level in (95, 0.0, 1.0, "0.95")
        ),
        (fit.plot_correlation, {"names": ["a"]}, "names must hold 2 names"),
        (fit.plot_correlation, {"amplitudes": "ab"}, "amplitudes must hold 2"),
        *(
            (fit.plot_profile, {"entry": x}, r"entry must be one of 0 to 1, .* or a name such as 'theta\[0\]'")
            for x in ("theta", 2, -1, 0.5)
        ),
    ):
        with subtests.test(why), pytest.raises(ProblemError, match=why):
            draw(**given)


def test_names_of_correlations_are_thinned_and_whole():
    y = np.exp(-np.outer(T, RATES)) @ rng(7).normal(size=(2, 40)) + 0.02 * rng(8).normal(size=(T.size, 40))
    many = xv.solve(xv.separable(decays, y, data={"t": T}), RATES, over=BOX).plot_correlation()
    few = example().plot_correlation()
    for figure in (many, few):
        figure.draw_without_rendering()
        labels = figure.axes[0].get_yticklabels()
        boxes = [label.get_window_extent() for label in labels]
        assert min(box.x0 for box in boxes) >= 0
        assert all(a.y0 > b.y1 for a, b in pairwise(boxes))
    assert [label.get_text() for label in many.axes[0].get_yticklabels()][:3] == ["theta[0]", "w[0, 1]", "w[0, 4]"]
    assert not many.axes[0].texts
    assert "-0.00" not in [text.get_text() for text in few.axes[0].texts]


@pytest.mark.parametrize("name", ["plot_fit", "plot_residuals", "plot_correlation", "plot_profile", "plot_trace"])
def test_figures_are_drawn_where_the_caller_says(name):
    import matplotlib
    from matplotlib import pyplot as plt

    draw = partial(getattr(example(), name), **({"points": 3} if name == "plot_profile" else {}))
    alone = [ax.get_ylabel() for ax in draw().axes]
    with matplotlib.rc_context({"backend": "agg"}):
        assert not plt.get_fignums()  # a figure of its own is no business of pyplot
        mine = plt.figure(layout="tight")
        try:
            assert draw(figure=mine) is mine is plt.gcf()
        finally:
            plt.close(mine)
    assert "Tight" in type(mine.get_layout_engine()).__name__  # the caller's choice
    left, right = Figure(figsize=(12.0, 4.0), layout="constrained").subfigures(1, 2)
    assert draw(figure=right) is right
    assert not left.axes
    for figure in (mine, right):
        assert [ax.get_ylabel() for ax in figure.axes] == alone
    right.figure.draw_without_rendering()
    assert draw(figure=Figure()).get_layout_engine() is not None
