"""Bounds of each problem of a batch: those of single solves, in chunks, from more starts, in statistics, one by one."""

from functools import lru_cache

import numpy as np
import pytest

import xvarpro as xv
from xvarpro.errors import ProblemError

from .support import host, rng, together

T = np.linspace(0.0, 2.0, 40)
Each, Box = xv.Each, xv.sets.Box


@lru_cache
def case(b=6):
    draw = rng(7)
    rates = np.stack([draw.uniform(0.5, 1.5, b), draw.uniform(3.0, 8.0, b)], axis=1)
    y = np.exp(-rates[:, None, :] * T[:, None]) @ [2.0, 1.0] + 0.01 * draw.normal(size=(b, T.size))
    lower = np.stack([draw.uniform(0.1, 0.8, b), draw.uniform(2.0, 5.0, b)], axis=1)
    return y, lower, lower + draw.uniform(0.3, 3.0, (b, 2))


def problem(b=6, **more):
    return xv.separable(together, case(b)[0], data={"t": T}, **more)


def within(x, lower, upper):
    return ((lower <= x) & (x <= upper)).all() and ((x == lower) | (x == upper)).any()


@lru_cache
def alone():
    _, lower, upper = case()
    over, starts = Box(Each(lower), Each(upper)), 0.5 * (lower + upper)
    single = xv.many.single
    fits = [xv.solve(single(problem(), i), starts[i], single(over, i), tol=1e-9) for i in range(6)]
    return np.stack([fit.theta for fit in fits]), np.stack([fit.statistics().theta_stderr for fit in fits])


def test_bounds_of_each_problem_are_those_of_solves_by_themselves(backend):
    _, lower, upper = case()
    over = Box(Each(lower), Each(upper))
    fit = xv.solve_many(problem(), 0.5 * (lower + upper), over, tol=1e-9, backend=backend)
    theta, errors = alone()
    assert fit.success.all()
    assert 0 < np.sum(errors == 0) < errors.size
    np.testing.assert_allclose(host(fit.theta), theta, rtol=1e-7)
    np.testing.assert_allclose(host(fit.statistics().theta_stderr), errors, rtol=1e-6)


def test_bounds_go_with_their_problems():
    """As others end and leave, in chunks, and from more starts; one entry may stand for several."""
    upper = case(150)[2]
    over, start = {"x": (0.0, Each(upper))}, {"x": 0.5 * upper}
    one = xv.separable(lambda theta, data: together(theta["x"], data), case(150)[0], data={"t": T})
    more = {"tol": 1e-9, "starts": {"x": np.array([[0.2, 1.0]])}}
    fit = xv.solve_many(one, start, over, **more)
    assert np.ptp(fit.n_iter) > 1
    assert within(fit.theta["x"], 0.0, upper)
    found = xv.solve_many(one, start, over, chunks=40, **more)
    np.testing.assert_allclose(found.theta["x"], fit.theta["x"], rtol=1e-6)
    errors, expected = (f.statistics().theta_stderr["x"] for f in (found, fit))
    np.testing.assert_allclose(errors, expected, rtol=1e-4)
    most = upper.max(axis=1, keepdims=True)
    assert within(xv.solve_many(one, start, {"x": Box(0.0, Each(most))}).theta["x"], 0.0, most)


def test_problems_that_are_solved_one_after_the_other_have_their_bounds():
    _, lower, upper = case()
    given = problem(loss=xv.losses.Cauchy(0.05)), 0.5 * (lower + upper), Box(Each(lower), Each(upper))
    fit = xv.solve_many(*given)
    assert "one problem after the other" in fit.method
    assert within(fit.theta, lower, upper)
    assert (fit.statistics().theta_stderr[(fit.theta == lower) | (fit.theta == upper)] == 0).all()


def test_bounds_that_do_not_fit_are_refused(subtests):
    _, lower, upper = case()
    crossed, start = lower.copy(), 0.5 * (lower + upper)
    crossed[4] = upper[4] + 1
    bad = {
        "upper=an array of shape .* for problem 4": lambda: Box(Each(crossed), Each(upper)),
        r"shape \(6, 2\).*got \(5, 2\): problem 5 has none": lambda: Box(Each(lower[:5]), 9.0),
        r"shape \(6, 2\).*got \(6,\)": lambda: Box(Each(lower[:, 0]), 9.0),
        "must broadcast to a point": lambda: Box(Each(np.ones((6, 3))), 9.0),
        r"shape \(2,\), as for one.*xv\.Each": lambda: Box(lower, 9.0),
        r"shape \(2,\), as for one.*got \(6,\)": lambda: Box(lower[:, 0], 9.0),
        "no part of another": lambda: xv.sets.ShiftScale(Box(Each(lower), Each(upper)), 2.0),
        "theta0 of problem 2 must be feasible": lambda: Box(Each(np.where(np.eye(6)[:, 2:3] > 0, upper, lower)), 9.0),
    }
    for match, over in bad.items():
        with subtests.test(match), pytest.raises(ProblemError, match=match):
            xv.solve_many(problem(), start, over())
    with pytest.raises(ProblemError, match=r"but in xv\.solve_many"):
        xv.solve(xv.many.single(problem(), 0), start[0], Box(Each(lower), 9.0))
