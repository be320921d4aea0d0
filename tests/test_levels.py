"""Data as it comes: weights, missing entries, several sets of rows, and a ridge that the upper level chooses."""

import numpy as np
import pytest
import scipy.optimize

import xvarpro as xv
from xvarpro.errors import ProblemError

from .support import decays, error, in_turn, rng

T = np.linspace(0.0, 2.0, 14)
LATE = np.linspace(0.1, 1.9, 9)
START = np.array([0.7, 2.0, 4.5])
Y = rng(0).normal(size=(14, 3))
DATA = {"t": T, "late": LATE, "ramp": np.linspace(0.5, 1.5, 14)}


def late(theta, data):
    return decays(theta, data["late"])


MASK = rng(5).random(size=(14, 3)) > 0.25
HOLES = np.where(MASK, Y, np.nan)
WEIGHTS = rng(6).uniform(0.2, 3.0, size=14)
SETS = [rng(7).normal(size=(14, 2)), rng(8).normal(size=(9, 2))]


def test_several_sets_of_rows_are_one_under_the_other():
    def both(theta, data):
        return xv.array_namespace(theta).concat([decays(theta, data), late(theta, data)])

    joined = np.concatenate(SETS)
    got, want = (xv.value_and_gradient(xv.separable(both, y, data=DATA), START) for y in (SETS, joined))
    assert float(got[0]) == pytest.approx(float(want[0]), rel=1e-14)
    assert error(got[1], want[1]) <= 1e-13


def test_weights_by_entry_are_never_compressed():
    y = rng(9).normal(size=(14, 40))
    problem = xv.separable(decays, y, data=DATA, lam=1e-2, weights=rng(1).random(size=y.shape) > 0.5)
    assert not xv.solve(problem, START, max_iter=1).provenance["compressed"]


def test_the_upper_level_chooses_a_ridge():
    """Weights that noise has spoilt: the second sample wants a ridge, and finds the best one."""
    A, B = rng(0).normal(size=(12, 8)), rng(1).normal(size=(30, 8))
    w = rng(2).normal(size=8)
    y, z = A @ w + rng(3).normal(size=12), B @ w

    def lam(theta, data):
        return xv.array_namespace(theta).exp(theta[0])

    problem = xv.bilevel(
        lower=xv.Level(lambda theta, data: data["A"], y, lam=lam),
        upper=xv.Level(lambda theta, data: data["B"], z),
        data={"A": A, "B": B},
    )
    fit = xv.solve(problem, np.array([0.0]), over=xv.sets.Box(-12.0, 8.0), tol=1e-12)
    grid = np.linspace(-12.0, 8.0, 4001)
    values = [0.5 * np.sum((B @ np.linalg.solve(A.T @ A + np.exp(s) * np.eye(8), A.T @ y) - z) ** 2) for s in grid]
    assert fit.theta[0] == pytest.approx(grid[np.argmin(values)], abs=6e-3)


@in_turn(
    ("options", "message"),
    [
        ({"weights": -WEIGHTS}, "weights of squared residuals must be >= 0"),
        ({"weights": np.where(np.arange(14) == 3, -1.0, WEIGHTS)}, "weights of squared residuals must be >= 0"),
        ({"weights": WEIGHTS + 0j}, "got a negative or a complex one"),
        ({"weights": WEIGHTS[:5]}, "got 5 x 1 of them for 14 x 3 entries of y"),
        ({"weights": np.ones((14, 2))}, "one entry per row of y or one per entry"),
        ({"weights": np.full(14, np.nan)}, "weights must be finite"),
        ({"y": HOLES, "weights": np.ones((14, 3))}, "where its weight is not 0"),
        ({"weights": np.zeros(14)}, "weights must not all be 0"),
        ({"weights": 3.0}, r"weights must have shape \(m,\) or \(m, k\)"),
        ({"weights": np.ones((2, 2, 2))}, "weights must have shape"),
    ],
)
def test_weights_that_do_not_fit(options, message):
    with pytest.raises(ProblemError, match=message):
        xv.solve(xv.separable(decays, **{"y": Y, "data": DATA, **options}), START)


def test_one_ridge_under_weights_in_a_set_is_where_a_line_search_finds_it(subtests):
    """Where faces change the objective has kinks, and its minimum may be one: both slopes show that."""
    draw, x = rng(5), np.linspace(0, 1, 40)[:, None]
    E = np.exp(-0.5 * ((x - np.linspace(0.15, 0.85, 4)) / 0.12) ** 2)
    E = np.concatenate([E, E[:, :2] + 0.02 * draw.normal(size=(40, 2))], axis=1)
    Y = E[:, :4] @ draw.dirichlet(np.ones(4), size=6).T + 0.05 * draw.normal(size=(40, 6))
    for W in (xv.lower.Simplex(), xv.lower.Bounded(0.0, 0.5)):
        with subtests.test(type(W).__name__):
            low = xv.Level(lambda th, D: D["a"], Y[1::2], lam=lambda th, D: xv.array_namespace(th).exp(th[0]), W=W)
            upper = xv.Level(lambda th, D: D["b"], Y[::2])
            problem = xv.bilevel(lower=low, upper=upper, data={"a": E[1::2], "b": E[::2]})
            fit = xv.solve(problem, np.array([-3.0]), over=xv.sets.Box(-12.0, 4.0))

            def value(g, problem=problem):
                return float(xv.solve_lower(problem, np.array([g])).value)

            line = scipy.optimize.minimize_scalar(value, bounds=(-12, 4), method="bounded")
            assert fit.status is xv.Status.CONVERGED
            assert fit.value <= line.fun * (1 + 1e-9)
            assert fit.counts.values <= 2 * line.nfev
