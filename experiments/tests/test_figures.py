"""Figures of races: names where lines end, medians over the starts, the package before its rivals, one sentence."""

from dataclasses import replace

import matplotlib.colors
import numpy as np
import pytest
from xvarpro_experiments import figures
from xvarpro_experiments.descent import Budget
from xvarpro_experiments.methods import Curve, Method, Outcome
from xvarpro_experiments.race import Experiment, Race

from xvarpro import Status


class Raced(Method):
    def run(self, task, budget):
        raise AssertionError("it has been")


def outcome(name, iterations, seconds, value):
    curve = Curve(*(np.asarray(x, float) for x in (iterations, seconds, value)))
    end, last = float(curve.value[-1]), float(curve.seconds[-1])
    return Outcome(name, name, None, end, Status.TIME_LIMIT, curve, seconds=last)


def raced(*outcomes, optimum=None):
    methods = tuple(Raced(o.method, o.family) for o in outcomes)
    return Race(Experiment("e", "t", None, methods, {}, {}), Budget(), {0: outcomes}, {0: optimum})


def both(value, optimum=None):
    """The paper's method, within 1 % of the best after 0.1 s, and a rival."""
    return raced(
        outcome("paper", [0, 1, 2], [0.0, 0.1, 0.2], [3.0, 1.0, 1.0]),
        outcome("rival", [0, 1, 2], [0.0, 0.4, 0.9], [3.0, value, value]),
        optimum=optimum,
    )


@pytest.mark.parametrize(
    ("places", "want"),
    [
        ([0.2, 0.7], [0.2, 0.7]),
        ([0.5, 0.5], [0.45, 0.55]),
        ([0.55, 0.5], [0.575, 0.475]),
        ([0.0, 0.0, 0.02], [0.0, 0.1, 0.2]),
        ([1.0, 0.98], [1.0, 0.9]),
    ],
)
def test_names_are_as_near_to_their_ends_as_there_is_room(places, want):
    np.testing.assert_allclose(figures.spread(places, 0.1), want, atol=1e-12)


def test_more_names_than_there_is_room_for_go_on_above():
    np.testing.assert_allclose(figures.spread([0.5] * 4, 0.4), [0.0, 0.4, 0.8, 1.2])


def test_starts_hold_their_last_value_up_to_the_end_of_the_longest():
    short, long = (np.array([0.0, 1.0]), np.array([9.0, 5.0])), (np.array([0.0, 2.0, 4.0]), np.array([9.0, 3.0, 1.0]))
    x, middle, low, high = figures.over_starts([short, long])
    assert (x[0], x[-1]) == pytest.approx((2.0, 4.0))
    assert (low[-2], middle[-2], high[-2]) == (3.0, 4.0, 5.0)
    np.testing.assert_array_equal(high, 5.0)
    for found, want in zip(figures.over_starts([long]), ([2.0, 4.0], *3 * ([3.0, 1.0],)), strict=True):
        np.testing.assert_array_equal(found, want)  # a logarithm has no place for the start


@pytest.mark.parametrize(
    ("race", "said"),
    [
        (both(1.0), "paper is within 1 % of the best value known 4 times as fast as the first rival"),
        (both(2.0), "paper is within 1 % of the best value known, no rival is"),
        (raced(outcome("paper", [0, 1], [0.0, 0.1], [3.0, 1.0])), "paper, without rivals"),
    ],
)
def test_one_sentence_says_what_the_race_came_to(race, said):
    assert figures.sooner(race) == said


def test_a_race_is_drawn_above_its_best_value_with_names_at_the_ends():
    figure = figures.of(both(1.5))["convergence"]
    assert figure.get_suptitle() == "paper is within 1 % of the best value known, no rival is"
    left, right = figure.axes
    said = "relative excess over the lowest reduced objective of all runs, cut at 0.001"
    assert left.get_ylabel().replace("\n", " ") == said
    for ax, x in ((left, [1, 2]), (right, [0.4, 0.9])):
        lines = {line.get_label(): line for line in ax.lines if not line.get_label().startswith("_")}
        np.testing.assert_allclose(lines["rival"].get_xydata(), np.stack([x, [0.5, 0.5]], axis=1))
        np.testing.assert_array_equal(lines["paper"].get_ydata(), 1e-3)  # the best value, cut off
        assert lines["paper"].get_zorder() > lines["rival"].get_zorder()
        assert lines["paper"].get_linewidth() > lines["rival"].get_linewidth()
        assert matplotlib.colors.same_color(lines["rival"].get_color(), figures.RIVALS[0])
        assert lines["paper"].get_color() == figures.COLOURS[0]
    names = {text.get_text(): text for text in right.texts if text.get_text() in lines}
    assert not {*names} & {text.get_text() for text in left.texts}
    assert names["paper"].get_position()[1] < names["rival"].get_position()[1]
    assert names["paper"].get_fontweight() == "bold"


@pytest.mark.parametrize(("second", "bands"), [(4.0, 1), (400.0, 0)])
def test_a_band_over_the_starts_does_not_fill_the_panel(second, bands):
    starts = {
        seed: (outcome("paper", [0, 1, 2, 9], [0.0, 0.1, 0.2, 0.9], [1.0 + height * x for x in (9, 3, 2, 1)]),)
        for seed, height in enumerate((1.0, second))
    }
    race = Race(Experiment("e", "t", None, (Raced("paper", "paper"),), {}, {}), Budget(), starts, {0: 1.0, 1: 1.0})
    assert [len(ax.collections) for ax in figures.of(race)["convergence"].axes] == [bands, bands]


def test_where_the_optimum_is_known_the_excess_is_over_it():
    left, _ = figures.of(both(1.5, optimum=0.5))["convergence"].axes
    assert left.get_ylabel().replace("\n", " ") == "relative excess over the optimal reduced objective"
    assert {1.0, 2.0} <= {line.get_ydata()[-1] for line in left.lines}


def test_an_objective_that_does_not_decide_is_drawn_itself():
    race = both(1.5)
    figure = figures.of(replace(race, experiment=replace(race.experiment, compared_by="test accuracy")))["convergence"]
    assert figure.get_suptitle() == "The objective; what decides between the methods is the test accuracy"
    left, _ = figure.axes
    assert left.get_ylabel() == "reduced objective"
    assert {1.0, 1.5} <= {line.get_ydata()[-1] for line in left.lines}


def test_atoms_are_drawn_by_decreasing_norm_scaled_to_their_largest_entry():
    D = np.zeros((4, 3))
    D[:, 0], D[:, 2] = [1.0, 0.0, 0.0, 0.5], [0.0, -4.0, 2.0, 0.0]
    figure = figures.atoms(D, (2, 2), "digits")
    ax, bar = figure.axes
    assert ax.get_title() == "digits\n2 of 3 atoms, by decreasing norm, the rest are zero"
    mosaic = np.ma.filled(ax.images[0].get_array(), np.nan)
    np.testing.assert_array_equal(mosaic[1:3, 1:3], [[0.0, 1.0], [-0.5, 0.0]])
    np.testing.assert_array_equal(mosaic[1:3, 4:6], [[1.0, 0.0], [0.0, 0.5]])
    assert np.isnan(mosaic[4:6, 1:3]).all()
    assert bar.get_ylabel() == "entry / largest entry of its atom"
