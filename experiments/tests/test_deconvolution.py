"""Example 3: its objective against the definition, its optimum against every other point, its methods against both."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from xvarpro_experiments import deconvolution, race
from xvarpro_experiments.descent import Budget
from xvarpro_experiments.methods import Tuned

import xvarpro as xv

RHO, LAM = 0.7, 1e-2
MADE = deconvolution.signals(4, 15, seed=1, noise=0.1)
Y = MADE.Y
X0 = deconvolution.start(Y, RHO, seed=2)


def circulant(x):
    i = np.arange(x.size)
    return x[(i[:, None] - i) % x.size]


def reduced(X, Y=Y, lam=LAM):
    """The definition, with dense matrices."""
    M = np.concatenate([circulant(x) for x in X])
    w = np.linalg.solve(M.T @ M + lam * np.eye(M.shape[1]), M.T @ Y.ravel())
    return 0.5 * np.sum((M @ w - Y.ravel()) ** 2) + 0.5 * lam * np.sum(w**2)


def test_the_value_is_that_of_the_definition():
    value, _ = xv.value_and_gradient(deconvolution.problem(Y, LAM), X0)
    assert value == pytest.approx(reduced(X0), rel=1e-12)


@pytest.mark.parametrize("lam", [1e-6, 1e-2, 1.0, 1e4])
@pytest.mark.parametrize("shape", [(4, 15), (3, 4, 6), (1, 8)])
def test_the_optimum_is_attained_and_no_point_is_below_it(shape, lam):
    rng = np.random.default_rng(3)
    Y = rng.normal(size=shape) * np.linspace(1.0, 5.0, shape[-1])
    found = deconvolution.optimum(Y, RHO, lam)
    problem = deconvolution.problem(Y, lam)
    assert np.linalg.norm(found.X) <= RHO * (1 + 1e-12)
    at = xv.solve(problem, found.X, over=xv.sets.L2Ball(RHO), max_iter=0)
    assert at.value == pytest.approx(found.value, rel=1e-9)
    np.testing.assert_allclose(np.reshape(at.w, shape[1:]), found.w, rtol=1e-7, atol=1e-9 * np.max(np.abs(found.w)))
    assert at.gap <= 1e-7 * found.value
    for scale in (1e-3, 0.1, 10.0):
        X = found.X + scale * rng.normal(size=shape) * np.max(np.abs(found.X))
        X *= min(1.0, RHO / np.linalg.norm(X))
        assert xv.value_and_gradient(problem, X)[0] >= found.value * (1 - 1e-12)


def test_nothing_measured_costs_nothing():
    found = deconvolution.optimum(np.zeros((2, 4)), RHO, LAM)
    assert found.value == 0
    assert not np.any(found.X)


def test_units_leave_the_reduced_problem_as_it_is():
    one, other = (deconvolution.optimum(c * Y, RHO, LAM).value for c in (1.0, 30.0))
    assert other == pytest.approx(900 * one)
    options = {"over": xv.sets.L2Ball(RHO), "max_iter": 8, "tol": 0.0}
    fits = [xv.solve(deconvolution.problem(c * Y, LAM), X0, **options) for c in (1.0, 32.0)]
    np.testing.assert_allclose(fits[1].theta, fits[0].theta, rtol=1e-9, atol=1e-12)


def test_a_match_knows_shifts_and_signs_only():
    w = MADE.w
    assert deconvolution.match(-2 * np.roll(w, 4), w) == pytest.approx(1.0)
    assert deconvolution.match(np.eye(1, 15)[0], w) < 0.6
    assert deconvolution.match(0 * w, w) == 0


def test_measured_signals_are_the_true_ones_blurred():
    made = deconvolution.signals(3, 16, seed=5, noise=0.0)
    for x, y in zip(made.X, made.Y, strict=True):
        np.testing.assert_allclose(circulant(made.w) @ x, y, atol=1e-14)
    np.testing.assert_array_equal(made.Y, deconvolution.signals(3, 16, seed=5, noise=0.0).Y)


def test_every_method_descends_towards_the_optimum():
    methods = tuple(m.candidates[3] if isinstance(m, Tuned) else m for m in deconvolution.METHODS)
    stated = replace(deconvolution.experiment(n=3, length=16), methods=methods)
    found = race.run(stated, Budget(8, 20.0), seeds=(0,))
    for outcome in found.outcomes[0]:
        gap = outcome.curve.value - found.optima[0]
        assert np.nanmin(gap) >= -1e-12 * gap[0]
        if np.isfinite(outcome.objective) and "tuned" not in outcome.method:
            assert gap[-1] < gap[0]
            assert outcome.violation <= 1e-12
    assert found.optima[0] <= found.best(0).objective < 0.1 * found.best(0).curve.value[0]
    assert any("does not identify" in sentence for sentence in stated.notes(found))
