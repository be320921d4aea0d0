"""Mini-batches of the upper level: what they estimate, what the method that uses them reports."""

from itertools import combinations

import numpy as np
import pytest

import xvarpro as xv
from xvarpro.algorithms import Momentum, SpectralProjectedGradient, StochasticFrankWolfe, VarianceReduced
from xvarpro.driver.prepare import prepare
from xvarpro.errors import ProblemError
from xvarpro.operators.interface import Operator
from xvarpro.sets import L1Ball, Simplex
from xvarpro.sets.region import resolve

from .support import (
    RATES,
    Quadratic,
    T,
    decay_problem,
    decays,
    dictionary_problem,
    dictionary_start,
    error,
    rng,
    vector,
)

ESTIMATORS = [Momentum(), VarianceReduced(), VarianceReduced(recursive=False)]
estimators = pytest.mark.parametrize("estimator", ESTIMATORS, ids=repr)
pytestmark = pytest.mark.filterwarnings("ignore::xvarpro.DeadUnitsWarning")


# -- the estimate ------------------------------------------------------------------------------------------------------


def penalty(theta):
    xp = xv.array_namespace(theta)
    return xp.sum(theta * theta)


def judging(theta, data):
    xp = xv.array_namespace(theta)
    return xp.exp(-xp.expand_dims(data["s"], axis=1) * theta)


def moving(theta, data):
    """A target of the upper level that is a function of theta."""
    xp = xv.array_namespace(theta)
    return data["z"] * xp.sum(theta) + data["s"]


def several(theta, data):
    """Four right-hand sides that are functions of theta."""
    return data["Y"] * xv.array_namespace(theta).sum(theta)


LOWER = xv.Level(decays, np.exp(-T), lam=0.05)
DATA = {"t": T, "s": np.linspace(0.0, 1.0, 6), "z": rng(3).normal(size=6), "Y": rng(4).normal(size=(T.size, 4))}
UPPER = xv.Level(judging, rng(2).normal(size=6), lam=0.3, Omega=np.array([[2.0, 0.5], [0.0, 1.0]]))
CASES = {
    "columns": (xv.separable(decays, DATA["Y"], data=DATA, lam=0.05, R=penalty, mu=0.7, compress=False), 4),
    "columns of theta": (xv.separable(decays, several, data=DATA, lam=0.05), 4),
    "columns with weights of entries": (
        xv.separable(decays, DATA["Y"], data=DATA, lam=0.05, weights=1.0 + rng(6).random((T.size, 4))),
        4,
    ),
    "columns with a design each": (
        xv.separable(
            lambda th, d: xv.array_namespace(th).stack([j * decays(th, d) for j in (1, 2, 3, 4)]),
            DATA["Y"],
            data=DATA,
            lam=0.05,
            weights=1.0 + rng(6).random(T.size),
        ),
        4,
    ),
    "columns, compressed": (dictionary_problem(m=3, k=9), 3),
    "rows, one level": (xv.separable(judging, DATA["z"], data=DATA, lam=0.1, R=penalty, mu=0.7), 6),
    "rows, one level, target of theta": (xv.separable(judging, moving, data=DATA), 6),
    "rows, two levels": (xv.bilevel(lower=LOWER, upper=UPPER, data=DATA, R=penalty, mu=0.2), 6),
    "rows, target of theta": (xv.bilevel(lower=LOWER, upper=xv.Level(judging, moving), data=DATA), 6),
    "rows of several right-hand sides": (
        xv.bilevel(
            lower=xv.Level(decays, DATA["Y"], lam=0.05),
            upper=xv.Level(judging, rng(5).normal(size=(6, 4))),
            data=DATA,
            compress=False,
        ),
        6,
    ),
}


def of_batch(reduced, theta, indices):
    point, gradient = reduced.restricted(indices).value_and_gradient(theta)
    return point.value, gradient, point.w


def of_all(reduced, theta):
    point, gradient = reduced.value_and_gradient(theta)
    return point.value, gradient, point.w


@pytest.mark.parametrize("name", CASES)
def test_batches_have_the_objective_and_its_gradient_for_a_mean(name, backend):
    """Over all subsets of two terms, each once: equality, not statistics."""
    problem, samples = CASES[name]
    start = dictionary_start(3, 2) if name == "columns, compressed" else RATES
    prepared = prepare(problem, start, backend=backend)
    assert prepared.assemble(prepared.problem).samples == samples
    value, gradient, w = prepared.call(of_all, prepared.theta)
    batches = [backend.asarray(np.array(pair, np.int32)) for pair in combinations(range(samples), 2)]
    found = [prepared.call(of_batch, prepared.theta, batch) for batch in batches]
    assert np.mean([vector(v)[0] for v, _, _ in found]) == pytest.approx(vector(value)[0], rel=1e-12)
    mean = np.mean([vector(g) for _, g, _ in found], axis=0)
    assert error(mean, vector(gradient)) <= 1e-11
    assert max(error(vector(g), vector(gradient)) for _, g, _ in found) > 1e-3  # they do differ
    if name.startswith("rows"):
        assert all(error(part, w) <= 1e-12 for _, _, part in found)  # the lower level is solved as a whole


def test_rows_of_an_operator_are_refused():
    class Implicit(Operator):
        shape = (6, 2)
        matvec = rmatvec = outer = dense = None

    def implicit(theta, data):
        return object.__new__(Implicit)

    Implicit.__abstractmethods__ = frozenset()
    ready = prepare(CASES["rows, two levels"][0], RATES)
    stated = xv.bilevel(lower=LOWER, upper=xv.Level(implicit, DATA["z"]), data=DATA)
    part = ready.assemble(stated).restricted(np.array([0], np.int32))
    with pytest.raises(ProblemError, match="where mini-batches are drawn from rows; got Implicit"):
        part.value_and_gradient((RATES,))


def test_operators_of_one_right_hand_side_each_are_refused():
    def blocks(theta, data):
        xp = xv.array_namespace(theta)
        parts = [xp.stack([j * decays(theta, {"t": t}) for j in (1, 2, 3, 4)]) for t in (data["t"][:2], data["t"][2:])]
        return xv.operators.BlockDiagonal(parts)

    ready = prepare(xv.separable(blocks, DATA["Y"], data=DATA, lam=0.05), RATES)
    part = ready.assemble(ready.problem).restricted(np.array([0], np.int32))
    with pytest.raises(ProblemError, match="from right-hand sides with a design each; got BlockDiagonal"):
        part.value_and_gradient((RATES,))


def test_draws_are_subsets_in_which_every_term_is_equally_likely():
    drawn = StochasticFrankWolfe(batch=3, period=4000).draws(10)
    assert drawn.shape == (4000, 3)
    assert drawn.dtype == np.int32
    assert all(len(set(row)) == 3 for row in drawn.tolist())
    counts = np.bincount(drawn.ravel(), minlength=10)
    # 4000 draws that hit each term with probability 0.3: five standard deviations
    assert np.abs(counts - 1200).max() <= 5 * np.sqrt(4000 * 0.3 * 0.7)
    assert (drawn == StochasticFrankWolfe(batch=3, period=4000).draws(10)).all()
    assert (drawn != StochasticFrankWolfe(batch=3, period=4000, seed=1).draws(10)).any()
    assert StochasticFrankWolfe(batch=10).draws(10).shape == (1, 0)


# -- the method --------------------------------------------------------------------------------------------------------

A, B = rng(6).normal(size=(120, 4)), rng(7).normal(size=(120, 8))


def design(theta, data):
    return data["A"]


def shifted(theta, data):
    """With this target the reduced objective is ``1/2 |P (b - B theta)|^2``: convex."""
    return data["b"] - data["B"] @ theta


TRUE = np.array([0.6, 0.3, 0.1, 0.0, 0.0, 0.0, 0.0, 0.0])
CONVEX = xv.separable(
    design, shifted, data={"A": A, "B": B, "b": B @ TRUE + A @ np.ones(4) + 0.3 * rng(8).normal(size=120)}
)
MIDDLE = np.full(8, 0.125)


def convex_fit(estimator, max_iter=600, backend=None, **parameters):
    algorithm = StochasticFrankWolfe(**{"batch": 12, "certify": 20, "estimator": estimator, **parameters})
    return xv.solve(CONVEX, MIDDLE, over=Simplex(), algorithm=algorithm, max_iter=max_iter, tol=0.0, backend=backend)


@pytest.fixture(scope="module")
def optimum():
    fit = xv.solve(CONVEX, MIDDLE, over=Simplex(), algorithm=SpectralProjectedGradient(), tol=1e-10)
    assert fit.success
    return fit


@estimators
def test_converges_to_the_deterministic_optimum(estimator, optimum):
    """A tenth of the rows at a time: 0.1 % of the excess of the start is left, 1 % where noise is only averaged."""
    fit = convex_fit(estimator, 320)
    left = (fit.value - optimum.value) / (fit.trace.value[0] - optimum.value)
    assert 0 <= left <= (1e-2 if isinstance(estimator, Momentum) else 1e-3)
    assert fit.value - optimum.value <= fit.gap_A  # convex: the certificate bounds the error


def test_a_start_at_zero_is_one():
    """The count of iterations begins at 0 also where the objective does."""
    f, theta = Quadratic(np.eye(2), np.zeros(2)), (np.zeros(2),)
    region = resolve(L1Ball(), theta[0])
    state = StochasticFrankWolfe().init(f, region, theta)
    assert (float(state.iterate.value), float(state.k)) == (0.0, 0.0)


def test_momentum_averages_as_it_says():
    fit = convex_fit(Momentum(), 30, batch=120, certify=30)
    theta, d = MIDDLE, xv.value_and_gradient(CONVEX, MIDDLE)[1]
    for k in range(1, 31):
        rho = 4 / (k + 8) ** (2 / 3)
        d = (1 - rho) * d + rho * xv.value_and_gradient(CONVEX, theta)[1]
        theta = theta + 2 / (k + 8) * (Simplex().lmo(d) - theta)
    assert error(fit.theta, theta) <= 1e-12


@pytest.mark.parametrize("recursive", [True, False])
def test_variance_is_reduced_where_the_points_are_close(recursive):
    """At the anchor the estimate is exact; near it, closer to the gradient than the batch's own by far."""
    prepared = prepare(CONVEX, MIDDLE)
    f = prepared.assemble(prepared.problem)
    exact = f.value_and_gradient((MIDDLE,))[1]
    near = (MIDDLE + 1e-3 * rng(9).normal(size=8),)
    there = f.value_and_gradient(near)[1]
    part = f.restricted(np.array([3, 50, 70], np.int32))
    estimator = VarianceReduced(recursive)
    memory = estimator.init((MIDDLE,), exact)
    assert error(estimator.estimate(part, (MIDDLE,), None, memory).grad, exact) <= 1e-13
    estimated = error(estimator.estimate(part, near, None, memory).grad, there)
    assert estimated <= 0.01 * error(part.value_and_gradient(near)[1], there)
    moved = estimator.estimate(part, near, None, memory).memory
    assert (vector(moved.theta) == vector(near if recursive else (MIDDLE,))).all()


# -- what it reports ---------------------------------------------------------------------------------------------------


@estimators
def test_the_trace_is_exact_and_changes_at_certificates_only(estimator):
    seen = []
    algorithm = StochasticFrankWolfe(batch=12, certify=8, seed=2, estimator=estimator)
    limits = {"max_iter": 40, "tol": 0.0, "callback": lambda info: seen.append((info.value, info.theta))}
    fit = xv.solve(CONVEX, MIDDLE, over=Simplex(), algorithm=algorithm, **limits)
    for value, theta in seen:
        assert value == pytest.approx(float(xv.value_and_gradient(CONVEX, theta)[0]), rel=1e-13)
    values = fit.trace.value
    assert (np.diff(values) <= 0).all()
    assert {int(k) for k in np.flatnonzero(np.diff(values)) + 1} <= set(range(8, 41, 8))
    assert len(set(values)) >= 4
    per_iteration = 1 if isinstance(estimator, Momentum) else 2
    n, done = np.arange(41), np.arange(41) // 8
    assert (fit.trace.values == 1 + per_iteration * n + done).all()
    assert (fit.trace.gradients == fit.trace.values).all()
    assert (fit.trace.lmos == 1 + n + done).all()
    assert fit.trace.alpha_A[1:] == pytest.approx(2 / (n[1:] + 8), rel=1e-14)


def test_the_tolerance_is_applied_to_exact_gaps(optimum):
    algorithm = StochasticFrankWolfe(batch=12, certify=5)
    fit = xv.solve(CONVEX, MIDDLE, over=Simplex(), algorithm=algorithm, tol=3e-2, max_iter=2000)
    assert fit.success
    assert fit.n_iter % 5 == 0
    assert fit.value - optimum.value <= fit.gap_A <= 3e-2 * fit.value


def root(theta, data):
    xp = xv.array_namespace(theta)
    return xp.sqrt(xp.expand_dims(data["t"], axis=1) - theta)


def test_not_a_number_is_reported():
    """Steps lead to where the model has no value: the next certificate says so, and the solve ends there."""
    problem = xv.separable(root, np.sqrt(T + 1.0), data={"t": T + 1.0})
    algorithm = StochasticFrankWolfe(batch=8, certify=3)
    fit = xv.solve(problem, np.array([0.9]), over=xv.sets.Box(-1.0, 4.0), algorithm=algorithm, max_iter=60)
    assert fit.value < fit.trace.value[0]  # downwards it has one

    def repelled(theta, data):
        return root(theta, data) * xv.array_namespace(theta).exp(3.0 * theta)

    problem = xv.separable(repelled, T, data={"t": T + 1.0}, R=lambda theta: -1e3 * theta[0], mu=1.0)
    fit = xv.solve(problem, np.array([0.9]), over=xv.sets.Box(-1.0, 4.0), algorithm=algorithm, max_iter=60)
    assert fit.status is xv.Status.NON_FINITE
    assert fit.n_iter % 3 == 0
    assert fit.n_iter < 60
    assert np.isfinite(fit.trace.value[:-1]).all()


# -- everywhere --------------------------------------------------------------------------------------------------------


def dictionary_fit(backend, estimator, max_iter=50, **parameters):
    algorithm = StochasticFrankWolfe(**{"batch": 3, "estimator": estimator, **parameters})
    problem = dictionary_problem(compress=False)
    return xv.solve(
        problem, dictionary_start(), over=L1Ball(4.0), algorithm=algorithm, max_iter=max_iter, tol=0.0, backend=backend
    )


def test_seeds_differ_and_batches_repeat_after_their_period():
    fits = [dictionary_fit("numpy", Momentum(), 20, seed=s) for s in (0, 0, 1)]
    assert (fits[0].theta == fits[1].theta).all()
    assert (fits[0].theta != fits[2].theta).any()
    prepared = prepare(dictionary_problem(compress=False), dictionary_start(), over=L1Ball(4.0))
    f, algorithm = prepared.assemble(prepared.problem), StochasticFrankWolfe(batch=3, period=4)
    state, seen = algorithm.init(f, prepared.region, prepared.theta), []
    for _ in range(8):
        seen.append(algorithm._part(f, state).problem.lower.y)
        state = algorithm.advance(f, prepared.region, state)
    for i in range(4):
        assert (seen[i] == seen[i + 4]).all()
    assert any((seen[0] != y).any() for y in seen[1:4])


def test_free_blocks_and_caps():
    problem = decay_problem(noise=0.1)
    algorithm = StochasticFrankWolfe(batch=10, cap=0.05)
    fit = xv.solve(problem, np.array([0.5, 8.0]), algorithm=algorithm, max_iter=50, tol=0.0)
    assert fit.value < fit.trace.value[0]
    assert fit.trace.alpha_B[1:].max() == 0.05
    _, g = xv.value_and_gradient(problem, fit.theta)
    assert fit.gap_B == pytest.approx(np.linalg.norm(g), rel=1e-6)


def test_a_start_without_a_finite_value_has_the_status_of_the_default(subtests):
    A = rng(0).normal(size=(33, 2))
    problem = xv.separable(lambda theta, A: A @ theta, A[:, 0] + 1, data=A)  # 5 columns of rank 2, no ridge
    start = rng(1).normal(size=(2, 5)) / 20
    for method in (None, StochasticFrankWolfe(batch=3), xv.algorithms.StochasticProjectedGradient(batch=3)):
        with subtests.test(str(method)):
            fit = xv.solve(problem, start, over=xv.sets.L2Ball(9.0), algorithm=method)
            assert fit.status is xv.Status.RANK_DEFICIENT
