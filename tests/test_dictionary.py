"""Example 2 and its methods: one start, one budget, one measure for all."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import xvarpro as xv
from xvarpro import datasets
from xvarpro.errors import ProblemError
from xvarpro.experiments import dictionary, race
from xvarpro.experiments.agreement import Agreement
from xvarpro.experiments.dictionary import METHODS, Task
from xvarpro.experiments.race import Budget

RADIUS = 2.0
BUDGET = Budget(20, 60.0)
JOINT = [m for m in METHODS if m.joint]


@pytest.fixture(scope="module")
def task():
    X = datasets.digits(120).X
    return Task(X, dictionary.start(X, 6, RADIUS, seed=3), 1e-4, RADIUS)


@pytest.fixture(scope="module")
def outcomes(task):
    return [race.run(task, method, BUDGET) for method in METHODS]


def test_every_method_descends_within_the_set_and_the_budget(task, outcomes):
    for o in outcomes:
        r = o.record()
        assert r["objective"] < o.curve.objective[0], r["method"]
        assert r["infeasibility"] <= 1e-12
        assert np.sum(np.abs(o.fit.theta)) <= RADIUS * (1 + 1e-12)
        assert 1 <= r["iterations"] <= BUDGET.iterations
        assert r["gap"] >= 0
        assert r["nonzeros"] == np.count_nonzero(o.fit.theta)
        assert r["live_atoms"] == np.count_nonzero(np.any(o.fit.theta != 0, axis=0))


def test_the_objective_is_the_one_of_the_definition(task, outcomes):
    for o in outcomes:
        D, k = o.fit.theta, o.fit.theta.shape[1]
        W = np.linalg.solve(D.T @ D + task.lam * np.eye(k), D.T @ task.X)
        value = 0.5 * np.sum((D @ W - task.X) ** 2) + 0.5 * task.lam * np.sum(W**2)
        assert o.objective == pytest.approx(value, rel=1e-8)


def test_curves_share_their_start_and_end_at_the_objective(task, outcomes):
    for o in outcomes:
        assert o.curve.iterations[0] == o.curve.seconds[0] == 0
        assert o.curve.objective[0] == pytest.approx(outcomes[0].curve.objective[0], rel=1e-10)
        assert o.curve.objective[-1] == o.objective
        assert o.curve.iterations[-1] == o.fit.n_iter
        assert np.all(np.diff(o.curve.iterations) > 0)
        assert np.all(np.diff(o.curve.seconds) >= 0)


def test_a_joint_objective_is_never_below_the_reduced_one(outcomes):
    for o in outcomes:
        if o.method.joint:
            assert o.objective <= o.fit.value * (1 + 1e-12)


@pytest.mark.parametrize("method", JOINT, ids=lambda m: m.name)
@pytest.mark.parametrize("iterations", [7, 20])
def test_a_joint_objective_belongs_to_the_last_iterate(task, method, iterations):
    told = race.run(task, method, Budget(iterations, 60.0)).fit
    every = xv.solve(
        dictionary.problem(task.X, task.lam, compress=False),
        task.D0,
        over=task.over,
        algorithm=replace(method.algorithm, certify=1),
        max_iter=iterations,
    )
    assert told.n_iter == iterations
    assert told.value == pytest.approx(every.value, rel=1e-12)
    np.testing.assert_allclose(told.theta, every.theta, atol=1e-12)


def test_time_ends_every_method_and_a_joint_one_where_its_objective_is_fresh(task):
    for method in METHODS:
        o = race.run(task, method, Budget(10**6, 0.02))
        assert o.record()["status"] in ("TIME_LIMIT", "CONVERGED")
        assert o.fit.n_iter < 10**6
        assert not method.joint or o.fit.n_iter % 5 == 0


@pytest.mark.parametrize("method", JOINT, ids=lambda m: m.name)
def test_joint_methods_agree_between_backends(task, method):
    budget = Budget(4, 600.0)
    here = race.run(task, method, budget)
    for name in ("torch", "jax"):
        there = race.run(replace(task, backend=name), method, budget)
        assert there.fit.value == pytest.approx(here.fit.value, rel=1e-9)
        assert there.objective == pytest.approx(here.objective, rel=1e-9)


def test_a_start_is_the_same_bits_for_the_same_seed():
    X = np.zeros((9, 2))
    D = dictionary.start(X, 4, RADIUS, seed=5)
    np.testing.assert_array_equal(D, dictionary.start(X, 4, RADIUS, seed=5))
    assert D.shape == (9, 4)
    assert np.sum(np.abs(D)) == pytest.approx(RADIUS)
    assert np.any(dictionary.start(X, 4, RADIUS, seed=6) != D)


def test_backends_agree(task):
    found = dictionary.compare(task, ["numpy", "torch", "jax"], iterations=50)
    assert found.same, found.verdict
    assert found.relative_difference <= 1e-9
    assert found.iterations == 50
    assert "the same objective" in found.verdict
    assert "the same 50 step sizes" in found.verdict


def fit(values, alphas):
    trace = SimpleNamespace(value=np.asarray(values), alpha_A=np.asarray(alphas))
    return SimpleNamespace(trace=trace, n_iter=len(values) - 1)


@pytest.mark.parametrize(
    ("other", "difference", "first"),
    [
        (fit([4.0, 2.0, 1.0], [0.0, 1.0, 0.5]), 0.0, None),
        (fit([4.0, 2.0, 2.0], [0.0, 1.0, 0.5]), 0.5, None),
        (fit([4.0, 2.0, 1.0], [0.0, 1.0, 0.25]), 0.0, 2),
        (fit([4.0, 2.0], [0.0, 1.0]), 0.0, 2),
        (fit([4.0, math.nan, math.nan], [0.0, 1.0, 0.5]), math.nan, None),
    ],
    ids=["equal", "objective", "step", "shorter", "nan"],
)
def test_a_disagreement_is_found_and_said(other, difference, first):
    found = Agreement({"a": fit([4.0, 2.0, 1.0], [0.0, 1.0, 0.5]), "b": other})
    assert found.relative_difference == pytest.approx(difference, nan_ok=True)
    assert found.first_difference == first
    assert found.same == (difference == 0 and first is None)
    assert ("the same objective" in found.verdict) == (difference == 0)
    assert ("different step sizes from iteration 2" in found.verdict) == (first == 2)


def test_the_best_is_a_reduced_method_that_is_finite(outcomes):
    winner = race.best(outcomes)
    assert not winner.method.joint
    assert winner.objective == min(o.objective for o in outcomes if not o.method.joint)
    lost = replace(winner, certificate=None)
    assert math.isnan(lost.record()["gap"])
    assert race.best([lost, outcomes[0]]) is outcomes[0]


def test_a_dictionary_that_is_not_finite_has_no_certificate(task):
    assert task.certify(np.full_like(task.D0, np.nan)) is None
    assert math.isnan(task.value(np.full_like(task.D0, np.inf)))


@pytest.mark.parametrize(
    ("build", "match"),
    [
        (lambda X: dictionary.start(X, 0), "atoms"),
        (lambda X: dictionary.start(X, 2, math.inf), "radius"),
        (lambda X: dictionary.start(X, 2, seed=-1), "seed"),
        (lambda X: Task(X, X, lam=-1.0), "lam"),
        (lambda X: Budget(0), "iterations"),
        (lambda X: Budget(1, math.nan), "time"),
    ],
)
def test_bad_numbers_are_refused(build, match):
    with pytest.raises(ProblemError, match=match):
        build(np.ones((3, 3)))
