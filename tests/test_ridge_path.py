"""Choosing a ridge: scores by their definitions, the least and the corner of known problems."""

from itertools import pairwise

import numpy as np
import pytest
from matplotlib.figure import Figure

import xvarpro as xv
from xvarpro.errors import ProblemError

from .support import rng

m, n = 40, 30
A = rng(1).normal(size=(m, n)) * np.logspace(0, -4, n)
TRUTH = rng(2).normal(size=n)
Y = A @ TRUTH + 0.01 * rng(3).normal(size=m)
ONE = xv.sets.Box(1.0, 1.0)
LAM = np.logspace(-8, 2, 21)


def problem(y=Y, **keywords):
    return xv.separable(lambda theta, A: theta * A, y, data=A, **keywords)


@pytest.mark.parametrize("case", ["identity", "Omega", "weights", "columns"])
def test_scores_are_what_their_definitions_say(case):
    Omega = np.eye(n) - 0.9 * np.eye(n, k=1) if case == "Omega" else np.eye(n)
    weights = rng(4).uniform(0.5, 2.0, m) if case == "weights" else np.ones(m)
    y = np.stack([Y, Y[::-1]], axis=1) if case == "columns" else Y[:, None]
    keywords = {"Omega": Omega} if case == "Omega" else {"weights": weights} if case == "weights" else {}
    path = xv.statistics.ridge_path(problem(y if case == "columns" else Y, **keywords), np.ones(1), ONE, lam=LAM[::4])
    B, z = np.sqrt(weights)[:, None] * A, np.sqrt(weights)[:, None] * y
    for i, lam in enumerate(path.lam):
        inverse = np.linalg.solve(B.T @ B + lam * Omega.T @ Omega, B.T)
        w, trace = inverse @ z, y.shape[1] * np.trace(B @ inverse)
        rest = np.sum((B @ w - z) ** 2)
        np.testing.assert_allclose(path.residual_norm[i], rest**0.5, rtol=1e-6)
        np.testing.assert_allclose(path.weight_norm[i], np.linalg.norm(Omega @ w), rtol=1e-6)
        np.testing.assert_allclose(path.parameters[i], trace, rtol=1e-6)
        np.testing.assert_allclose(path.gcv[i], y.size * rest / (y.size - trace) ** 2, rtol=1e-6)
        assert path.fits[i].w.shape == (w[:, 0] if case != "columns" else w).shape


def test_both_choices_are_near_the_best_prediction():
    path = xv.statistics.ridge_path(problem(), np.ones(1), ONE, lam=LAM)
    assert (np.diff(path.lam) < 0).all()
    errors = np.array([np.linalg.norm(A @ fit.w - A @ TRUTH) for fit in path.fits])
    assert errors[path.best] < 1.5 * errors.min()
    assert path.gcv[path.best] == path.gcv.min()
    # the corner of a curve of two straight arms is where they meet
    made = xv.statistics.RidgePath(
        np.logspace(3, -3, 13),
        10.0 ** np.maximum(np.linspace(3, -3, 13), 0.0),
        10.0 ** np.maximum(-np.linspace(3, -3, 13), 0.0),
        np.ones(13), np.ones(13), [],
    )  # fmt: skip
    assert made.corner == 6
    # a slight bend that is passed quickly is none
    angle = np.repeat([np.pi, np.pi / 2, np.pi / 2 - 0.3], [6, 5, 5])
    step = np.repeat([0.01, 5.0], [9, 7])
    x, y = (np.append(0.0, np.cumsum(step * f(angle))) for f in (np.cos, np.sin))
    ones = np.ones(17)
    quick = xv.statistics.RidgePath(np.logspace(8, -8, 17), np.exp(x), np.exp(y), ones, ones, [])
    assert quick.corner == 6


def test_theta_follows_the_ridge_and_the_path_prints():
    def M(theta, t):
        return xv.models.exponentials(t, theta)

    t = np.linspace(0.0, 2.0, 60)
    y = np.exp(-t) + 0.5 * np.exp(-4 * t) + 0.01 * rng(5).normal(size=60)
    path = xv.statistics.ridge_path(
        xv.separable(M, y, data=t), np.array([0.7, 3.0]), xv.sets.Box(0.0, 20.0), lam=[1e-3, 1e-1, 1e-6, 1e-2]
    )
    for lam, fit in zip(path.lam, path.fits, strict=True):
        alone = xv.solve(xv.separable(M, y, data=t, lam=lam), np.array([0.7, 3.0]), over=xv.sets.Box(0.0, 20.0))
        np.testing.assert_allclose(fit.value, alone.value, rtol=1e-6)
    assert "least GCV" in repr(path).splitlines()[1 + path.best]
    curve, score = path.plot(figure=Figure(layout="constrained").subfigures()).axes
    np.testing.assert_array_equal(curve.lines[0].get_xydata(), np.stack([path.residual_norm, path.weight_norm], axis=1))
    np.testing.assert_array_equal(score.lines[0].get_ydata(), path.gcv)


@pytest.mark.parametrize("widest", [1.5, 6.0, 30.0])
def test_ticks_of_log_scales_keep_apart(widest):
    """Over less than two decades minor ticks have labels in Matplotlib."""
    lam, norm = np.logspace(0, -3, 4), np.geomspace(0.13 * widest, 0.13, 4)
    figure = xv.statistics.RidgePath(lam, norm, norm[::-1], np.ones(4), norm, []).plot()
    figure.draw_without_rendering()
    curve = figure.axes[0]
    left, right = curve.get_xlim()
    shown = [
        (label.get_window_extent().x0, label.get_window_extent().x1)
        for which in ("major", "minor")
        for at, label in zip(curve.get_xticks(minor=which == "minor"), curve.get_xticklabels(which=which), strict=True)
        if label.get_text() and left <= at <= right
    ]
    assert len(shown) > 1
    assert all(a[1] < b[0] for a, b in pairwise(sorted(shown)))


@pytest.mark.parametrize("lam", [[1.0, 2.0], [1.0, 0.0, 2.0], [1.0, np.nan, 2.0], [1.0, np.inf, 3.0]])
def test_too_few_ridges_and_none_are_refused(lam):
    with pytest.raises(ProblemError, match="at least three finite numbers > 0"):
        xv.statistics.ridge_path(problem(), np.ones(1), ONE, lam=lam)


def test_the_marks_of_least_gcv_and_of_the_corner_may_share_a_point():
    lam, norm = np.array([3.0, 2.0, 1.0, 0.5]), np.array([1.9, 1.5, 1.2, 1.1])
    path = xv.statistics.RidgePath(lam, norm, norm[::-1], np.ones(4), np.array([3.0, 2.0, 2.0, 4.0]), [])
    path.gcv[path.corner] = 1.0
    assert path.best == path.corner
    for ax in path.plot().axes:
        _, dot, ring = ax.lines
        np.testing.assert_array_equal(dot.get_xydata(), ring.get_xydata())
        assert (dot.get_fillstyle(), ring.get_fillstyle()) == ("full", "none")
        assert ring.get_markersize() > 1.5 * dot.get_markersize()
