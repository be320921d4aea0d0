"""Evidence by Laplace's method: where it is exact, against quadrature, on faces, and models compared by it."""

import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import multivariate_normal, norm

import xvarpro as xv
from tests.test_marginal import THETA, T, chunked, decays, random_case, target
from xvarpro.driver.prepare import prepare
from xvarpro.objective.curvature import marginal_hessian

EPS = np.finfo(float).eps
BOX = xv.sets.Box(0.1, 20.0)
X = np.linspace(0.0, 1.0, 12)


def shifted(theta, x):
    """A target that theta moves: the density is normal in theta."""
    return x["y"] - x["a"] @ theta


def linear(sigma=0.3, lam=0.5, seed=0):
    draw = np.random.default_rng(seed)
    data = {"y": draw.normal(size=X.size), "a": draw.normal(size=(X.size, 2)), "A": draw.normal(size=(X.size, 2))}
    return xv.marginal(xv.separable(lambda theta, x: x["A"] + 0 * theta[0], shifted, data=data, lam=lam), sigma), data


@pytest.mark.parametrize("seed", range(5))
def test_hessians_are_those_of_differences_in_a_hundred_digits(seed):
    case = random_case(seed)
    u = np.random.default_rng(0).normal(size=case.theta.size)
    known = case.hessian(u)
    prepared = prepare(case.problem, case.theta)
    (found,) = prepared.call(marginal_hessian, prepared.theta, (u,))
    assert np.linalg.norm(found - known) <= 100 * EPS * case.condition**2 * np.linalg.norm(known)


def test_the_evidence_is_exact_where_the_density_is_normal_in_theta():
    m, data = linear()
    fit = xv.solve(m, np.zeros(2), over=xv.sets.Box(-30.0, 40.0), tol=1e-9)
    C = 0.09 * (np.eye(X.size) + data["A"] @ data["A"].T / 0.5)
    precision = data["a"].T @ np.linalg.solve(C, data["a"])
    best = np.linalg.solve(precision, data["a"].T @ np.linalg.solve(C, data["y"]))
    known = multivariate_normal(None, C).logpdf(data["y"] - data["a"] @ best) - 2 * math.log(70)
    known += math.log(2 * math.pi) - 0.5 * np.linalg.slogdet(precision)[1]
    found = fit.laplace()
    assert found.log_evidence == pytest.approx(known, rel=1e-10)
    np.testing.assert_allclose(found.covariance, np.linalg.inv(precision), rtol=1e-9)
    assert fit.laplace(components=3).log_evidence == pytest.approx(known + math.log(6), rel=1e-10)
    assert len(xv.solve(linear(seed=2)[0], fit.theta, fit.recipe.over).laplace(components=2).not_normal) == 2


@pytest.mark.parametrize("ahead", [-1.0, 0.2, 3.0])
def test_a_normal_density_is_cut_off_at_a_bound(ahead):
    """So many standard deviations before its maximum, or behind it, where the density rises toward the bound."""
    m, _ = linear()
    whole = xv.solve(m, np.zeros(2), over=xv.sets.Box(-30.0, 40.0), tol=1e-9)
    free = whole.laplace()
    bound = whole.theta[0] - ahead * free.theta_stderr[0]
    box = xv.sets.Box(np.array([bound, -30.0]), 40.0)
    found = xv.solve(m, np.array([39.0, 0.0]), over=box, tol=1e-9).laplace()
    known = free.log_evidence + math.log(70 / (40 - bound)) + norm.logcdf(ahead)
    assert found.log_evidence == pytest.approx(known, abs=1e-7)
    assert found.active == (["theta[0]"] if ahead < 0 else [])


def test_a_normal_prior_of_theta_moves_the_mode():
    """With it the density is still normal: the quadratic model has its own maximum."""
    m, data = linear()
    fit = xv.solve(m, np.zeros(2), tol=1e-9)
    C = 0.09 * (np.eye(X.size) + data["A"] @ data["A"].T / 0.5) + 4.0 * data["a"] @ data["a"].T

    def prior(theta):
        return -0.125 * theta @ theta - math.log(2 * math.pi * 4.0)

    assert fit.laplace(prior_theta=prior).log_evidence == pytest.approx(multivariate_normal(None, C).logpdf(data["y"]))


@pytest.mark.parametrize("lower", [0.1, 1.3])
def test_the_evidence_of_one_rate_is_that_of_quadrature(lower):
    """Inside the set, and at a bound that the density rises toward."""
    y = decays(np.array([1.0]), T)[:, 0] + 0.01 * np.random.default_rng(0).normal(size=T.size)
    m = xv.marginal(xv.separable(decays, y, data=T, lam=1e-4), 0.01)
    fit = xv.solve(m, np.array([1.4]), over=xv.sets.Box(lower, 10.0), tol=1e-9)
    top, found = -fit.value, fit.laplace()
    ends = (0.9, 1.1) if lower < 1 else (1.3, 1.5)
    area, _ = quad(lambda x: math.exp(float(m.log_density(np.array([x]))) - top), *ends, epsrel=1e-6)
    assert found.log_evidence == pytest.approx(top + math.log(area / (10.0 - lower)), abs=0.02)
    assert found.active == ([] if lower < 1 else ["theta[0]"])
    assert ("at a bound" in str(found)) is (lower > 1)


def test_a_bound_without_a_slope_is_cut_off_at_the_width_of_the_set():
    m, _ = linear()
    first = xv.solve(m, np.zeros(2), tol=1e-9).theta[0] + 1e-7
    low, high = np.array([first, -30.0]), np.array([first + 1e-6, 30.0])
    fit = xv.solve(m, np.array([first, 0.0]), over=xv.sets.Box(low, high), tol=1e-12)
    found = fit.laplace()
    assert found.active == ["theta[0]"]
    beside = xv.solve(m, np.array([low[0], 0.0]), over=xv.sets.Box(low, np.array([low[0], 30.0])), tol=1e-12).laplace()
    assert found.log_evidence == pytest.approx(beside.log_evidence, abs=1e-4)
    assert beside.parameters == 1


def test_a_density_that_is_not_normal_is_named():
    """A rate that the data do not have comes to equal another, and a ridge leads away."""
    y = decays(np.array([1.0, 5.0]), T) @ np.ones(2) + 0.01 * np.random.default_rng(0).normal(size=T.size)
    m = xv.marginal(xv.separable(decays, y, data=T, lam=1e-4))
    two, three = (xv.solve(m, np.array(x), over=BOX) for x in ([0.5, 8.0], [0.5, 4.0, 15.0]))
    found = [two.laplace(components=2), three.laplace(components=3)]
    assert [x.not_normal for x in found] == [[], ["theta[1]", "theta[2]"]]
    assert str(found[1]).splitlines()[3].startswith("  theta[1]   ")
    assert str(found[1]).splitlines()[5].startswith("far from a normal density along theta[1]")
    assert str(xv.compare_models(found)).splitlines()[3].startswith("model 1: far from a normal density along theta[1]")
    draws, ridge = two.sample(500, components=2), three.sample(500, components=3)
    assert draws.log_evidence == pytest.approx(found[0].log_evidence, abs=0.1)
    assert "to be trusted" not in str(draws)
    assert all(words in str(ridge) for words in ("components overlap: ", "to be trusted"))


def test_a_density_takes_theta_of_another_size():
    m = xv.marginal(xv.separable(decays, target(), data=T, lam=1e-4))
    one, two = (float(m.log_density(np.array(x))) for x in ([1.0], [1.0, 5.0]))
    assert one < two


def test_what_has_no_evidence_is_a_sentence(subtests):
    problem = xv.separable(decays, target(), data=T, lam=1e-4)
    m = xv.marginal(problem, 0.01)
    free, boxed, plain = xv.solve(m, THETA), xv.solve(m, THETA, over=BOX), xv.solve(problem, THETA, over=BOX)
    sums = xv.separable(lambda theta, t: decays(theta[:1] + theta[1:], t), target(), data=T, lam=1e-4)
    in_rows = xv.marginal(chunked(target(), lam=1e-4), 0.01)
    asked = {
        "bounded": free.laplace,
        "xv.marginal": plain.laplace,
        "chunks": xv.solve(in_rows, THETA, over=BOX).laplace,
        "ended with": xv.solve(m, THETA, over=BOX, max_iter=1).laplace,
        "whole number": lambda: boxed.laplace(components=0),
        "do not determine": xv.solve(xv.marginal(sums, 0.01), np.ones(2), over=BOX).laplace,
        "between bounds": xv.solve(m, THETA, over=xv.sets.L2Ball(20.0)).laplace,
    }
    for words, ask in asked.items():
        with subtests.test(words), pytest.raises(xv.errors.ProblemError, match=words):
            ask()


def test_models_are_compared_in_a_table(subtests):
    y = target()

    def solved(y, start, lam=1e-4, noise=0.01):
        return xv.solve(xv.marginal(xv.separable(decays, y, data=T, lam=lam), noise), start, over=BOX)

    one, two = solved(y, np.array([2.0])), solved(y, THETA)
    table = xv.compare_models({"one": one, "two": two.laplace(components=2)})
    assert table.best == "two"
    assert table.probabilities[1] > 0.999
    assert "effective parameters" in str(table)
    assert len(str(table).splitlines()) == 3
    a = table.models[1]
    assert a.aic == pytest.approx(2 * 2 + 2 * two.value)
    assert a.bic == pytest.approx(2 * math.log(60) + 2 * two.value)
    assert 3.9 < a.effective_parameters < 4.0
    refused = {
        "same data": [one, solved(2 * y, THETA)],
        "flat": [one, solved(y, THETA, lam=0.0)],
        "Jeffreys": [one, solved(y, THETA, noise=None)],
        "none": [],
    }
    for words, models in refused.items():
        with subtests.test(words), pytest.raises(xv.errors.ProblemError, match=words):
            xv.compare_models(models)
