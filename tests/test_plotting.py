"""Figures hold the numbers they were given."""

import subprocess
import sys

import numpy as np
import pytest

import xvarpro as xv
from xvarpro.results import plotting
from xvarpro.results.plotting import Line


@pytest.fixture(scope="module")
def result():
    X = np.random.default_rng(0).normal(size=(5, 8))
    problem = xv.separable(lambda theta, data: theta, X, lam=0.1)
    return xv.solve(problem, np.eye(5)[:, :2] / 2, over=xv.sets.L1Ball(1.0), max_iter=10)


def test_a_trace_shows_objective_and_gap(result):
    ax = result.plot()
    shown = {line.get_label(): line.get_ydata() for line in ax.lines}
    np.testing.assert_array_equal(shown["objective"], result.trace.value)
    gap = result.trace.gap_A
    np.testing.assert_array_equal(shown["gap, constrained block"], np.where(gap > 0, gap, np.nan))
    assert "gap, free block" not in shown
    assert ax.get_yscale() == "log"
    assert ax.get_xlabel()
    assert ax.get_ylabel()


def test_a_trace_is_drawn_where_the_caller_says(result):
    ax = plotting.Figure().subplots()
    assert result.plot(ax) is ax


def test_both_panels_show_every_method_without_the_start():
    n = np.arange(4)
    lines = [Line("one", [(n, n / 10, 10.0 / (n + 1))]), Line("two", [(n, n / 5, 10.0 / (n + 2))], dashed=True)]
    figure = plotting.convergence(lines, "objective")
    for i, ax in enumerate(figure.axes):
        drawn = {line.get_label(): line for line in ax.lines}
        for line in lines:
            (curve,) = line.curves
            np.testing.assert_array_equal(drawn[line.name].get_xdata(), curve[i][1:])
            np.testing.assert_array_equal(drawn[line.name].get_ydata(), curve[2][1:])
        assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    assert figure.axes[1].get_xlabel() == "time [s]"
    assert figure.axes[0].get_ylabel() == "objective"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["one", "two"]


@pytest.mark.parametrize("objective", [[3.0, np.nan, 1.0], [1e9, 1.0, 1e-9], [2.0, 2.0, 2.0]])
def test_a_convergence_figure_survives_any_values(tmp_path, objective):
    n = np.arange(3)
    plotting.convergence([Line("one", [(n, n * 1.0, np.asarray(objective))])]).savefig(tmp_path / "figure.png")


def test_repetitions_are_a_median_in_a_band():
    n = np.array([0, 1, 4, 16])
    curves = [(n, n * 0.1, factor / (n + 1.0)) for factor in (1.0, 2.0, 4.0)]
    ax = plotting.convergence([Line("one", curves)]).axes[0]
    x, y = ax.lines[0].get_data()
    held = 1 / (n[np.searchsorted(n, x, side="right") - 1] + 1.0)  # the last value holds until the next
    np.testing.assert_allclose(y, 2 * held)
    band = ax.collections[0].get_paths()[0].vertices[:, 1]
    assert band.max() == pytest.approx(4 * held[0])
    assert band.min() == pytest.approx(held[-1])


def test_a_method_that_made_no_iteration_is_no_error(tmp_path):
    zero = np.zeros(1)
    plotting.convergence([Line("one", [(zero, zero, zero + 1)])]).savefig(tmp_path / "figure.png")


def test_levels_that_coincide_share_a_label_and_counts_have_whole_ticks():
    n = np.arange(1.0, 6.0)
    lines = [Line("one", [(n, n, np.full(5, 8.0))])]
    ax = plotting.convergence(lines, "latents", "linear", {"floor": 8.0, "below": 7.0}).axes[0]
    assert [text.get_text() for text in ax.texts] == ["start, floor", "below"]
    flat = plotting.convergence(lines, "latents", "linear", {"floor": 8.0}).axes[0]
    assert all(tick == round(tick) for tick in [*ax.get_yticks(), *flat.get_yticks()])


def test_atoms_stand_by_norm_and_dead_ones_are_empty():
    D = np.zeros((6, 5))
    D[0, 1], D[5, 3], D[2, 3] = -1.0, 4.0, 1.0
    image = plotting.atoms(D, (2, 3), "dictionary").axes[0].images[0]
    mosaic = np.ma.filled(image.get_array(), np.nan)
    tiles = [mosaic[1:3, 1 + 4 * i : 4 + 4 * i] for i in range(2)]
    np.testing.assert_array_equal(tiles[0].ravel(), D[:, 3] / 4)
    np.testing.assert_array_equal(tiles[1].ravel(), D[:, 1] / -1)
    assert np.count_nonzero(~np.isnan(mosaic)) == 12
    assert (image.norm.vmin, image.norm.vmax) == (-1, 1)


def test_the_title_counts_the_living():
    title = plotting.atoms(np.eye(4)[:, :3] * np.array([1.0, 0.0, 2.0]), (2, 2), "these").axes[0].get_title()
    assert "these" in title
    assert "2 of 3 atoms" in title


def test_a_dictionary_of_dead_atoms_is_drawn(tmp_path):
    plotting.atoms(np.zeros((4, 3)), (2, 2)).savefig(tmp_path / "atoms.png")


def test_pyplot_is_never_imported(tmp_path):
    code = (
        "import sys, numpy as np; from xvarpro.results import plotting; "
        f"plotting.atoms(np.eye(4), (2, 2)).savefig({str(tmp_path / 'a.png')!r}); "
        "sys.exit('matplotlib.pyplot' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
