"""A covariance of the data: fits, errors and intervals of SciPy, and of the problem that is whitened by hand."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.optimize

import xvarpro as xv
from xvarpro.errors import ProblemError

from .support import decays, error, host, rng, send

T = np.linspace(0.0, 3.0, 25)
C = 4e-4 * np.exp(-np.abs(T[:, None] - T) / 0.3) * np.outer(1 + T, 1 + T) + 1e-6 * np.eye(25)
L = np.linalg.cholesky(C)
START = np.array([0.5, 5.0])


def curve(t, first, second, a, b):
    return a * np.exp(-first * t) + b * np.exp(-second * t)


Y = curve(T, 0.7, 4.0, 2.0, 1.0) + L @ rng().normal(size=25)


def whitened(theta, data):
    return data["P"] @ decays(theta, data["t"])


def both(y=Y, **keywords):
    """The problem with a covariance, and the same whitened by hand."""
    P = np.linalg.inv(L)
    by_hand = xv.separable(whitened, P @ y, data={"t": T, "P": P}, **keywords)
    return xv.separable(decays, y, data=T, covariance=C, **keywords), by_hand


def test_fits_and_errors_are_those_of_scipy(backend):
    fit = xv.solve(
        xv.separable(decays, send(backend, Y), data=send(backend, T), covariance=send(backend, C)),
        send(backend, START),
        tol=1e-9,
    )
    for absolute in (True, False):
        want, covariance = scipy.optimize.curve_fit(
            curve, T, Y, [0.5, 5.0, 1.0, 1.0], C, absolute, xtol=1e-15, ftol=1e-15, gtol=1e-15
        )
        s = fit.statistics(absolute_sigma=absolute)
        assert error(np.r_[host(fit.theta), host(fit.w)], want) <= 1e-6
        assert error(np.r_[host(s.theta_stderr), host(s.w_stderr)], np.diag(covariance) ** 0.5) <= 1e-6
        assert xv.backends.of(s.theta_stderr) is xv.backends.of(s.w_stderr) is backend
        assert "covariance" in s.noise_from
    J = scipy.optimize.approx_fprime(want, lambda x: curve(T, *x), 1e-7)
    assert error(s.fitted_stderr(), np.sqrt(np.einsum("ij,jk,ik->i", J, covariance, J))) <= 1e-5
    widths = fit.band(prediction=True).upper - host(fit.fitted)
    scale = widths / np.sqrt(s.fitted_stderr() ** 2 + s.variance * np.diag(C))
    assert np.ptp(scale) <= 1e-9


def test_it_is_the_whitened_problem(subtests):
    """Many right-hand sides and complex ones, two levels, one batch."""
    many = np.stack([Y + 0.01 * rng(i).normal(size=25) for i in range(30)], axis=1)
    for name, y in {"compressed": many, "complex": many[:, :2] * np.exp(0.3j)}.items():
        with subtests.test(name):
            got, want = (xv.solve(problem, START, tol=1e-9) for problem in both(y))
            assert error(got.theta, want.theta) <= 1e-9
            assert np.abs(got.w - want.w).max() <= 1e-9
            errors = [fit.statistics().theta_stderr for fit in (got, want)]
            assert error(*errors) <= 1e-9
    first, second = both()
    with subtests.test("a target that is a function, a design in parts"):
        found = [
            xv.solve(xv.separable(M, lambda theta, t: Y + 0 * theta[0], data=T, covariance=C), START, tol=1e-9)
            for M in (decays, lambda theta, t: xv.operators.Stacked([decays(theta, t[:9]), decays(theta, t[9:])]))
        ]
        assert error(found[0].theta, found[1].theta) <= 1e-9
        assert found[0].w.shape == found[1].w.shape == (2,)
    with subtests.test("two levels"):
        values = [
            xv.value_and_gradient(xv.bilevel(lower=replace(p.lower, lam=0.1), upper=p.lower, data=p.data), START)
            for p in (first, second)
        ]
        assert error(values[0][1], values[1][1]) <= 1e-9
    with subtests.test("batch"):
        found = [xv.solve_many(xv.many.lifted(p), np.stack([START, 0.9 * START])).theta for p in (first, second)]
        assert error(*found) <= 1e-6


@pytest.mark.parametrize(
    "by",
    [
        xv.statistics.Bootstrap(8),
        pytest.param(xv.statistics.Bootstrap(8, parametric=True), marks=pytest.mark.thorough),
        pytest.param(xv.statistics.Profile(), marks=pytest.mark.thorough),
    ],
    ids=repr,
)
def test_intervals_are_those_of_the_whitened_problem(by):
    """Of profiles, and of a bootstrap, whose samples have noise of this covariance."""
    got, want = (xv.solve(problem, START, tol=1e-9).interval(by=by).upper for problem in both())
    assert error(got, want) <= 1e-4


def test_what_cannot_have_a_covariance_is_named(subtests):
    problem, rows = xv.separable(decays, Y, data=T, covariance=C), np.arange(25)
    for words, call in (
        ("a row for each of the 25 rows of y; got shape (9, 9)", lambda: solved(covariance=C[:9, :9])),
        ("positive definite; got a least eigenvalue of -", lambda: solved(covariance=C - 0.1 * np.eye(25))),
        ("must be a real, finite, symmetric matrix", lambda: solved(covariance=C + np.triu(C, 1))),
        ("must be a real, finite, symmetric matrix", lambda: solved(covariance=C * np.nan)),
        ("must have shape (m, m)", lambda: solved(covariance=Y)),
        ("no weights", lambda: solved(covariance=C, weights=np.ones(25))),
        ("got y as ColumnChunks", lambda: xv.separable(decays, xv.ColumnChunks(lambda: iter([Y])), covariance=C)),
        ("got covariance", lambda: xv.solve_robust(problem, START, loss="huber")),
        (
            "cross-validation needs",
            lambda: xv.statistics.cross_validate(problem, START, lam=(0.1, 1.0), folds=rows % 3),
        ),
        (
            "a mini-batch of rows needs",
            lambda: solved(
                data=xv.Samples(T), covariance=C, algorithm=xv.algorithms.StochasticFrankWolfe(batch=8), over=(0.0, 9.0)
            ),
        ),
    ):
        with subtests.test(words), pytest.raises(ProblemError) as caught:
            call()
        assert words in str(caught.value)


def solved(data=T, algorithm=None, over=None, **keywords):
    return xv.solve(xv.separable(decays, Y, data=data, **keywords), START, over, algorithm=algorithm)
