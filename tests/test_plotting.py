"""Figures hold the numbers they were given."""

from dataclasses import replace

import numpy as np
import pytest
from matplotlib.figure import Figure

import xvarpro as xv


@pytest.fixture(scope="module")
def result():
    X = np.random.default_rng(0).normal(size=(5, 8))
    problem = xv.separable(lambda theta, data: theta, X, lam=0.1)
    return xv.solve(problem, np.eye(5)[:, :2] / 2, over=xv.sets.L1Ball(1.0), max_iter=10)


def lines(ax):
    return {line.get_label(): line.get_ydata() for line in ax.lines}


def test_a_trace_shows_objective_and_gap(result):
    (ax,) = result.plot().axes
    gap = result.trace.gap_A
    assert set(lines(ax)) == {"objective", "gap, constrained block"}  # there is no free block
    np.testing.assert_array_equal(lines(ax)["objective"], result.trace.value)
    np.testing.assert_array_equal(lines(ax)["gap, constrained block"], np.where(gap > 0, gap, np.nan))
    assert ax.get_yscale() == "log"
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("iteration", "objective and gap")
    assert [text.get_text() for text in ax.get_legend().get_texts()] == list(lines(ax))
    assert all(tick == round(tick) for tick in ax.get_xticks())
    ax.figure.draw_without_rendering()
    assert ax.get_legend().get_window_extent().y0 >= ax.get_window_extent().y1  # above the lines


def test_a_negative_objective_has_a_linear_scale(result):
    below = replace(result.trace, value=-result.trace.value, gap_B=np.ones_like(result.trace.gap_B))
    ax = replace(result, trace=below).plot().axes[0]
    assert ax.get_yscale() == "linear"
    np.testing.assert_array_equal(lines(ax)["gap, free block"], 1.0)


@pytest.mark.parametrize("values", [[3.0, np.nan, 1.0], [1e9, 1.0, 1e-9], [2.0, 2.0, 2.0], [2.0]])
def test_any_values_are_drawn(tmp_path, result, values):
    values = np.asarray(values)
    drawn = {"value": values, "gap_A": 0 * values, "gap_B": 0 * values, "iteration": np.arange(values.size)}
    ax = replace(result, trace=replace(result.trace, **drawn)).plot().axes[0]
    assert set(lines(ax)) == {"objective"}
    np.testing.assert_array_equal(lines(ax)["objective"], values)
    ax.figure.savefig(tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_a_trace_is_drawn_in_the_figure_of_the_caller(result):
    figure = Figure()
    assert result.plot(figure=figure) is figure
    assert "objective" in lines(figure.axes[0])


def test_a_notebook_shows_a_figure_without_pyplot():
    problem = xv.separable(lambda theta, data: theta, np.ones(3), lam=1.0)
    fit = xv.solve(problem, np.array([[1.0], [0.0], [0.0]]), over=xv.sets.L2Ball(1.0))
    assert fit.plot_trace()._repr_png_().startswith(b"\x89PNG")
