"""Figures of fits: what is drawn is what the fit says, in every format, without a global setting."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

import xvarpro as xv
from xvarpro.errors import ProblemError

from .support import RATES, T, decays, rng

Y = np.exp(-np.outer(T, RATES)) @ np.array([2.0, 1.0]) + 0.02 * rng(1).normal(size=T.size)
BOX = xv.sets.Box(0.0, 40.0)
FIT = xv.solve(xv.separable(decays, Y, data={"t": T}), RATES, over=BOX, tol=1e-9)


def lines(ax):
    return {line.get_label(): line.get_xydata() for line in ax.lines}


def test_data_fit_components_and_residuals_are_drawn():
    top, below = FIT.plot_fit(xlabel="time (ns)", ylabel="signal (V)", names=["slow", "fast"]).axes
    drawn = lines(top)
    assert list(drawn) == ["data", "slow", "fast", "fit"]
    np.testing.assert_allclose(drawn["data"], np.stack([T, Y], axis=1))
    np.testing.assert_allclose(drawn["fit"], np.stack([T, FIT.fitted], axis=1))
    for name, rate, w in zip(["slow", "fast"], FIT.theta, FIT.w, strict=True):
        np.testing.assert_allclose(drawn[name][:, 1], w * np.exp(-T * rate))
    np.testing.assert_allclose(below.lines[1].get_xydata(), np.stack([T, FIT.residuals], axis=1), atol=1e-15)
    assert (below.get_xlabel(), top.get_ylabel()) == ("time (ns)", "signal (V)")


def test_the_band_is_that_of_the_fitted_values():
    top, _ = FIT.plot_fit(level=0.9).axes
    (band,) = top.collections
    s = FIT.statistics()
    t = scipy.stats.t.ppf(0.95, s.dof)
    J = np.concatenate([-T[:, None] * np.exp(-np.outer(T, FIT.theta)) * FIT.w, np.exp(-np.outer(T, FIT.theta))], axis=1)
    width = t * np.sqrt(np.sum((J @ s.covariance) * J, axis=1))
    np.testing.assert_allclose(s.fitted_stderr(), width / t, rtol=1e-6)
    (path,) = band.get_paths()
    edges = path.vertices
    np.testing.assert_allclose(edges[:, 1].max(), (FIT.fitted + width).max(), rtol=1e-6)
    np.testing.assert_allclose(edges[:, 1].min(), (FIT.fitted - width).min(), rtol=1e-6)
    assert not FIT.plot_fit(level=None).axes[0].collections
    _, wide = FIT.plot_fit(level=0.9, prediction=True).axes[0].collections
    edges, width = wide.get_paths()[0].vertices, np.sqrt(width**2 + t**2 * s.residual_variance)
    np.testing.assert_allclose(edges[:, 1].max(), (FIT.fitted + width).max(), rtol=1e-6)


def test_abscissae_in_any_order_and_right_hand_sides_by_number():
    order = rng(2).permutation(T.size)
    y = np.exp(-np.outer(T, RATES)) @ rng(3).normal(size=(2, 3))
    fit = xv.solve(xv.separable(decays, y[order], data={"t": T[order]}), RATES, over=BOX, max_iter=2)
    top, _ = fit.plot_fit(column=2).axes
    np.testing.assert_array_equal(lines(top)["fit"][:, 0], T)
    np.testing.assert_allclose(lines(top)["fit"][:, 1], fit.fitted[np.argsort(T[order]), 2])
    assert top.get_xlabel() == ""
    with pytest.raises(ProblemError, match="column must be one of 0 to 2"):
        fit.plot_fit(column=3)


def test_the_abscissa_is_what_the_data_hold_or_the_index():
    assert FIT.plot_fit().axes[1].get_xlabel() == "t"
    two = xv.solve(xv.separable(decays, Y, data={"t": T, "u": T}), RATES, over=BOX, max_iter=1)
    top, below = two.plot_fit().axes
    assert below.get_xlabel() == "index"
    np.testing.assert_array_equal(lines(top)["fit"][:, 0], np.arange(T.size))
    np.testing.assert_array_equal(lines(two.plot_fit(2 * T).axes[0])["fit"][:, 0], 2 * T)
    with pytest.raises(ProblemError, match="x must hold 40 numbers"):
        two.plot_fit(T[:5])


def test_weights_scale_residuals_and_leave_out_what_has_none():
    weights = np.where(np.arange(T.size) % 4 == 0, 0.0, rng(4).uniform(0.5, 2.0, T.size))
    fit = xv.solve(xv.separable(decays, Y, data={"t": T}, weights=weights), RATES, over=BOX)
    along, counts, normal = fit.plot_residuals().axes
    want = (np.sqrt(weights) * fit.residuals)[weights > 0]
    np.testing.assert_allclose(along.lines[1].get_ydata(), want)
    np.testing.assert_allclose(normal.lines[1].get_ydata(), np.sort(want))
    assert along.get_ylabel() == "weighted residual"
    assert sum(bar.get_height() * bar.get_width() for bar in counts.patches) == pytest.approx(1.0)
    assert np.isnan(fit.statistics().fitted_stderr()[::4]).all()
    assert np.isfinite(fit.statistics().fitted_stderr()[1::4]).all()


def test_correlations_and_profiles_are_drawn():
    figure = FIT.plot_correlation()
    (image,) = figure.axes[0].images
    np.testing.assert_array_equal(image.get_array(), FIT.statistics().correlation)
    assert image.get_clim() == (-1, 1)
    assert [x.get_text() for x in figure.axes[0].get_yticklabels()] == ["theta[0]", "theta[1]", "w[0]", "w[1]"]
    with pytest.raises(ProblemError, match="names must hold 4 names"):
        FIT.plot_correlation(["a"])
    ax = FIT.plot_profile(1, points=7).axes[0]
    curve = xv.statistics.profile(FIT, 1, points=7)
    np.testing.assert_allclose(lines(ax)["profile"], np.stack([curve.at, curve.height], axis=1))
    np.testing.assert_allclose(lines(ax)["linear theory"][:, 1], (curve.at - curve.best) / curve.stderr)
    assert ax.get_xlabel() == "theta[1]"
    t = scipy.stats.t.ppf(0.975, FIT.statistics().dof)
    levels = [x.get_ydata()[0] for x in ax.lines if len(x.get_ydata()) == 2 and len(set(x.get_ydata())) == 1]
    assert sorted(levels)[0] == pytest.approx(-t)
    assert sorted(levels)[-1] == pytest.approx(t)


def test_the_histogram_of_residuals_has_the_normal_density():
    _, counts, normal = FIT.plot_residuals().axes
    r = np.asarray(FIT.residuals)
    x, density = lines(counts)["normal"].T
    np.testing.assert_allclose(density, scipy.stats.norm.pdf(x, r.mean(), r.std()), rtol=1e-9)
    line, points = (x.get_xydata() for x in normal.lines)
    np.testing.assert_allclose(line[:, 1], r.mean() + r.std() * line[:, 0], rtol=1e-9)
    np.testing.assert_array_equal(points[:, 1], np.sort(r))


def test_fits_without_standard_errors_are_drawn_without_a_band():
    problem = xv.bilevel(lower=xv.Level(decays, Y), upper=xv.Level(decays, Y), data={"t": T})
    assert not xv.solve(problem, RATES, over=BOX).plot_fit().axes[0].collections


def test_complex_fits_and_wrong_names_are_refused():
    fit = xv.solve(xv.separable(decays, Y * (1 + 1j), data={"t": T}), RATES, over=BOX)
    with pytest.raises(ProblemError, match="real data; got complex"):
        fit.plot_fit()
    with pytest.raises(ProblemError, match="names must hold 2 names, one per column of M"):
        FIT.plot_fit(names=["one"])


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_figures_are_written_in_all_formats(suffix, tmp_path):
    for figure in (FIT.plot_fit(), FIT.plot_residuals(), FIT.plot_correlation(), FIT.plot_trace().figure):
        figure.savefig(tmp_path / f"figure.{suffix}")
        assert (tmp_path / f"figure.{suffix}").stat().st_size > 1000
