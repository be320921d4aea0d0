"""Levels with a loss whose design is known by its products, or comes in chunks of rows: as those of arrays."""

import numpy as np
import pytest

import xvarpro as xv

from .support import central_differences, error, host, rng, send
from .test_losses import LOSSES, THETA, data, design, every_loss, target, two_levels

# -- products ----------------------------------------------------------------------------------------------------------


def products(theta, data):
    def forward(p, w):
        return design(p, data) @ w

    return xv.operators.MatrixFree(forward, None, (data["t"].shape[0], 3), theta)


def by_products(name, two, put=np.asarray, solver=xv.lower.LSMR(), **given):  # noqa: B008 - it has no state
    level = xv.Level(products, put(target(name)), loss=LOSSES[name], solver=solver, **given)
    upper = two_levels(name, put).upper if two else None
    return xv.Problem(level, upper, data={k: put(x) for k, x in data().items()})


@every_loss
@pytest.mark.parametrize("lam", [0.0, 0.1])
def test_products_give_the_gradients_of_arrays_on_every_framework(backend, name, lam):
    for two in (False, True):
        of_array = xv.Level(design, target(name), loss=LOSSES[name], lam=lam)
        problem = xv.Problem(of_array, two_levels(name).upper if two else None, data=data())
        want = xv.value_and_gradient(problem, THETA)
        found = xv.value_and_gradient(by_products(name, two, lambda x: send(backend, x), lam=lam), send(backend, THETA))
        assert error([host(x) for x in found], list(want)) < 1e-9


@pytest.mark.parametrize("name", ["logistic", "softmax"])
def test_gradients_by_products_are_those_of_the_value(name):
    problem = by_products(name, True, lam=0.1)

    def derivative(theta):
        """Differences of two widths, so that the error is of fourth order."""
        fine, wide = (
            central_differences(lambda x: float(xv.value_and_gradient(problem, x)[0]), theta, h) for h in (1e-3, 2e-3)
        )
        return (4 * fine - wide) / 3

    assert error(xv.value_and_gradient(problem, THETA)[1], derivative(THETA)) < 1e-9


def scaled(theta, data):
    return xv.operators.MatrixFree(lambda p, w: p * w, None, (4096, 4096), theta)


def test_a_design_that_is_too_large_for_an_array_takes_products_by_itself():
    y = (np.arange(4096) % 3 == 0).astype(float)
    problem = xv.separable(scaled, y, loss="logistic", lam=0.1)
    w = xv.solve_lower(problem, np.array([2.0])).w
    assert np.max(np.abs(2 * (1 / (1 + np.exp(-2 * w)) - y) + 0.1 * w)) < 1e-12
    assert xv.solve(problem, np.array([2.0]), xv.sets.Box(1.0, 3.0)).success


@pytest.mark.parametrize(
    "preconditioner",
    [xv.lower.Jacobi(), xv.lower.Given(lambda M, P, x: P * x, np.geomspace(1, 1e-4, 20)[:, None] ** 2)],
    ids=["Jacobi", "Given"],
)
def test_preconditioners_save_products_with_badly_scaled_columns(preconditioner):
    A, calls = rng(0).normal(size=(200, 20)) * np.geomspace(1, 1e4, 20), []
    y = (A[:, 0] + rng(1).normal(size=200) > 0).astype(float)

    def count(solver):
        def forward(p, w):
            calls.append(1)
            return p * (A @ w)

        def M(theta, data):
            return xv.operators.MatrixFree(forward, lambda p, r: p * (A.T @ r), A.shape, theta)

        problem = xv.separable(M, y, loss="logistic", lam=1e-3, solver=solver)
        calls.clear()
        w = xv.solve_lower(problem, np.ones(1)).w
        return len(calls), w

    few, w = count(xv.lower.LSMR(preconditioner=preconditioner))
    many, _ = count(xv.lower.LSMR())
    assert few < many / 3
    g = A.T @ (1 / (1 + np.exp(-A @ w)) - y) + 1e-3 * w
    assert np.max(np.abs(g) / np.linalg.norm(A, axis=0)) < 1e-10


def test_too_few_products_are_no_gradient():
    fit = xv.solve(by_products("logistic", True, solver=xv.lower.LSMR(limit=1)), THETA, xv.sets.Box(0.1, 3.0))
    assert fit.status is xv.Status.NON_FINITE
