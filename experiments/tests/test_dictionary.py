"""Example 2: the problem, its start, and the methods on it."""

from dataclasses import replace

import numpy as np
import pytest
from xvarpro_experiments import datasets, dictionary, race
from xvarpro_experiments.descent import Budget

RADIUS, LAM = 2.0, 1e-4
BUDGET = Budget(6, 60.0)


@pytest.fixture(scope="module")
def stated(less_tuned):
    def of(**options):
        made = dictionary.experiment(datasets.digits(60).X, shape=(8, 8), atoms=6, radius=RADIUS, lam=LAM, **options)
        return replace(made, methods=less_tuned(made.methods))

    return of


@pytest.fixture(scope="module")
def found(stated):
    return race.run(stated(), BUDGET, seeds=(3,))


def test_every_method_descends_within_the_set_and_the_budget(found):
    for o in found.outcomes[3]:
        assert o.objective < o.curve.value[0], o.method
        assert o.violation <= 1e-12
        assert np.sum(np.abs(o.theta)) <= RADIUS * (1 + 1e-12)
        assert 1 <= o.iterations <= BUDGET.iterations
        assert o.gap >= 0


def test_the_objective_is_the_one_of_the_definition(found):
    X = datasets.digits(60).X
    for o in found.outcomes[3]:
        D = o.theta
        W = np.linalg.solve(D.T @ D + LAM * np.eye(6), D.T @ X)
        value = 0.5 * np.sum((D @ W - X) ** 2) + 0.5 * LAM * np.sum(W**2)
        assert o.last == pytest.approx(value, rel=1e-8)
        assert o.objective <= o.last * (1 + 1e-12)


def test_units_change_joint_gradient_steps_and_no_reduced_method(found, stated):
    joint, made = "joint projected gradient, 1/L", stated(units=100.0)  # steps per block, as iPALM's, have no units
    methods = tuple(m for m in made.methods if m.family != "rival" or m.name == joint)
    for there in race.run(replace(made, methods=methods), BUDGET, seeds=(3,)).outcomes[3]:
        (here,) = found.of(there.method)
        assert (there.objective == pytest.approx(here.objective, rel=1e-7)) == (here.method != joint), here.method


def test_a_start_is_the_same_bits_for_the_same_seed():
    X = np.zeros((9, 2))
    D = dictionary.start(X, 4, RADIUS, seed=5)
    np.testing.assert_array_equal(D, dictionary.start(X, 4, RADIUS, seed=5))
    assert D.shape == (9, 4)
    assert np.sum(np.abs(D)) == pytest.approx(RADIUS)
    assert np.any(dictionary.start(X, 4, RADIUS, seed=6) != D)
