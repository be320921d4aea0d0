"""What a result says of its solve, and what it takes from files."""

import pickle

import jax
import numpy as np
import pytest

import xvarpro as xv
from xvarpro.backends import exchange
from xvarpro.core.status import Status
from xvarpro.driver.prepare import violation
from xvarpro.errors import ProblemError
from xvarpro.sets import Box, Free
from xvarpro.sets.region import resolve

from .support import SIGNAL, T, decay_problem, decays, rng

START = np.array([0.5, 8.0])
MANY = SIGNAL[:, None] * np.linspace(1.0, 2.0, 60) + 0.01 * rng(3).normal(size=(40, 60))


@pytest.mark.parametrize("size", [1.0, 1e-9, 1e9])
@pytest.mark.parametrize("later", [False, True])
def test_w_of_a_compressed_target_with_weights_is_that_of_the_target(size, later, monkeypatch):
    if later:
        monkeypatch.setattr("xvarpro.driver.outcome.ORDINARY", 0)
    weights, y = rng(4).uniform(0.5, 2.0, 40), size * MANY
    fit = xv.solve(xv.separable(decays, y, data={"t": T}, weights=weights), START, max_iter=4)
    assert fit.provenance["compressed"]
    root = np.sqrt(weights)[:, None]
    M = decays(fit.theta, {"t": T})
    w = np.linalg.lstsq(root * M, root * y)[0]
    assert fit.w == pytest.approx(w, rel=1e-7)
    assert fit.value == pytest.approx(0.5 * np.sum((root * (M @ w - y)) ** 2), rel=1e-9)
    y *= 2.0
    assert fit.w == pytest.approx(w, rel=1e-7)  # once it is there it stays


@pytest.mark.parametrize(("columns", "compressed"), [(40, False), (41, True)])
def test_targets_with_more_columns_than_rows_are_compressed(columns, compressed):
    fit = xv.solve(xv.separable(decays, MANY[:, :columns], data={"t": T}), START, max_iter=1)
    assert fit.provenance["compressed"] is compressed
    both = xv.bilevel(
        lower=xv.Level(decays, MANY[:, :columns]), upper=xv.Level(decays, MANY[:, :columns]), data={"t": T}
    )
    assert xv.solve(both, START, max_iter=1).provenance["compressed"] is False


def test_the_error_of_an_iterative_solver_is_part_of_the_result():
    fit = xv.solve(decay_problem(noise=0.01, lam=1e-3, solver=xv.lower.LSMR()), START, max_iter=3)
    exact = xv.solve(decay_problem(noise=0.01, lam=1e-3), START, max_iter=3)
    assert 0 < fit.verified.lower_residual < 1
    assert fit.verified.gradient_error > 0
    assert (exact.verified.lower_residual, exact.verified.gradient_error) == (0.0, 0.0)
    assert "lower residual" in repr(fit)
    assert "lower residual" not in repr(exact)


def test_a_result_of_another_process_has_no_place_to_go_on_from():
    fit = xv.solve(decay_problem(), START, max_iter=2)
    with pytest.raises(ProblemError, match="comes from a file or another process"):
        xv.solve(decay_problem(), pickle.loads(pickle.dumps(fit)))


@pytest.mark.frameworks
def test_digits_that_another_process_loses_are_missed(tmp_path):
    """As results of workers that turned JAX's flag on, in a process that did not."""
    with jax.enable_x64(True):
        start, problem = jax.numpy.asarray(START), decay_problem()
        kept = pickle.dumps(xv.solve(problem, start, max_iter=1))
        batch = pickle.dumps(xv.solve_many(xv.many.lifted(problem), start[None, :], max_iter=1))
        assert pickle.loads(kept).theta.dtype == "float64"
    for one in (kept, batch):
        with pytest.warns(UserWarning, match="computed in float64 has become float32, .* jax_enable_x64 is off: turn"):
            fit = pickle.loads(one)
    with pytest.warns(UserWarning, match="float32"):
        fit = pickle.loads(kept)
    with pytest.raises(ProblemError, match=r"Result\.save needs the digits that were computed; got a result"):
        fit.save(tmp_path / "fit.npz")


def test_a_result_goes_on_where_it_was_computed():
    given = {"backend": "array-api-strict", "device": "device1"}
    fit = xv.solve(decay_problem(noise=0.01), START, max_iter=2, over=Box(0.0, 9.0), **given)
    on = xv.solve(decay_problem(noise=0.01), fit, max_iter=4)
    assert "device1" in fit.provenance["device"]
    assert on.provenance["device"] == fit.provenance["device"]
    assert on.n_iter == 4
    other = xv.solve(decay_problem(noise=0.01), fit, max_iter=4, device="cpu")
    assert other.provenance["device"] != fit.provenance["device"]


def test_a_callback_that_does_not_say_what_it_takes_is_called():
    fit = xv.solve(decay_problem(noise=0.01), START, callback=bool)
    assert fit.status is Status.STOPPED
    assert fit.n_iter == 1


def test_violations_are_the_same_by_every_way_to_them(monkeypatch):
    """On the processor by NumPy, on an accelerator in one program."""
    compiled = xv.backends.get("jax")
    over, theta0 = {"a": Box(0.0, 1.0), "b": Free()}, {"a": np.array([0.5, 1.3]), "b": np.ones(2)}
    region = resolve(over, theta0)
    theta = tuple(theta0.values())
    want = float(violation(xv.backends.get("numpy"), region, theta))
    assert want == pytest.approx(0.3, rel=0.5)
    with compiled.scope("float64"):
        there = tuple(compiled.asarray(x) for x in theta)
        assert float(violation(compiled, region, there)) == pytest.approx(want, rel=1e-12)
        monkeypatch.setattr(exchange, "readable", lambda *x: x)
        assert float(violation(compiled, region, there)) == pytest.approx(want, rel=1e-12)


def test_results_are_compared_by_what_they_are():
    """Arrays have no one truth value: a result is itself, in a list and as a key."""
    fits = [xv.solve(decay_problem(), np.array([0.5, 6.0]), max_iter=1) for _ in range(2)]
    assert fits[0] != fits[1]
    assert fits.index(fits[1]) == 1
    assert len({*fits, *fits}) == 2
