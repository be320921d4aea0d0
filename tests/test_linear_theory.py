"""Standard errors and covariances against joint Jacobians written out, certified values, solutions of moved data."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import xvarpro as xv
from xvarpro.errors import ModelError, ProblemError
from xvarpro.lower.weight_sets.subspace import exchanged

from .support import HOST_BACKENDS, RATES, T, decays, error, host, rng, send, vector, with_offset

TWO = np.exp(-np.outer(T, RATES))
Y = TWO @ np.array([2.0, 1.0]) + 0.01 * rng(1).normal(size=T.size)


@cache
def example():
    return xv.solve(xv.separable(decays, Y, data={"t": T}), np.array([0.8, 3.0]), tol=1e-9)


ALONE = st.tuples(st.integers(0, 4), st.integers(-150, 150)).map(lambda at: [at[1] * (i == at[0]) for i in range(5)])


@settings(deadline=None, max_examples=20)
@given(powers=ALONE | st.lists(st.integers(-70, 70), min_size=5, max_size=5))
def test_statistics_do_not_depend_on_units(powers):
    """Of the target, of each parameter and of each column: one of them, or all at once, by as much as squares bear."""
    target, *others = 10.0 ** np.array(powers)
    rates, columns = np.split(np.array(others), 2)
    problem = xv.separable(lambda theta, data: decays(theta / rates, data) * columns, target * Y, data={"t": T})
    fit = xv.solve(problem, rates * np.array([0.8, 3.0]), over=(0.0, 20.0 * rates), tol=1e-9)
    found, want = fit.statistics(), example().statistics()
    assert fit.status is xv.Status.CONVERGED
    assert error(found.theta_stderr / rates, want.theta_stderr) < 1e-6
    assert error(found.w_stderr * columns / target, want.w_stderr) < 1e-6
    np.testing.assert_allclose(found.correlation[:2, :2], want.correlation[:2, :2], rtol=1e-6)
    assert (found.r_squared, found.reasons) == (pytest.approx(want.r_squared, rel=1e-7), [])


def joint_covariance(model, x, target, roots=1.0):
    """``sigma^2 (J^T J)^-1`` for residuals ``roots * (model(x) - target)``, J by central differences, and sigma^2."""
    columns = []
    for i, e in enumerate(np.eye(x.size)):
        h = 1e-6 * max(abs(x[i]), 0.1)
        columns.append(roots * (model(x + h * e) - model(x - h * e)) / (2 * h))
    J = np.stack([np.ravel(c) for c in columns], axis=1)
    r = np.ravel(roots * (model(x) - target))
    J, r = (np.concatenate([J.real, J.imag]), np.concatenate([r.real, r.imag])) if np.iscomplexobj(J) else (J, r)
    variance = r @ r / (np.sum(np.any(J != 0, axis=1)) - x.size)
    return variance * np.linalg.inv(J.T @ J), variance


def model_of(k):
    """Two decays as a function of all parameters: rates, then w row by row."""
    return lambda x: np.exp(-np.outer(T, x[:2])) @ (x[2:].reshape(2, k) if k else x[2:])


CASES = {
    "vector": (Y, None),
    "columns": (TWO @ rng(2).normal(size=(2, 3)) + 0.02 * rng(3).normal(size=(T.size, 3)), None),
    "weights by row": (Y, rng(4).uniform(0.2, 3.0, size=T.size)),
    "mask": (Y, rng(5).uniform(size=T.size) < 0.7),
    "weights by entry": (
        TWO @ rng(6).normal(size=(2, 2)) + 0.02 * rng(7).normal(size=(T.size, 2)),
        rng(8).uniform(0.5, 2.0, size=(T.size, 2)) * (rng(9).uniform(size=(T.size, 2)) < 0.8),
    ),
}


@pytest.mark.parametrize(
    ("backend", "case"),
    [(b, c) for b in HOST_BACKENDS for c in CASES if b != "jax" or c == "weights by entry"],  # which compiles each
)
def test_the_covariance_is_that_of_the_joint_jacobian(backend, case):
    y, weights = CASES[case]
    problem = xv.separable(decays, y, data={"t": T}, weights=weights)
    fit = xv.solve(problem, np.array([0.8, 5.0]), over=xv.sets.Box(0.0, 20.0), tol=1e-10, backend=backend)
    found = fit.statistics(backend=backend)
    x = np.concatenate([fit.theta, fit.w.ravel()])
    roots = 1.0 if weights is None else np.sqrt(weights.astype(float))
    roots = roots[:, None] if np.ndim(roots) == 1 and y.ndim == 2 else roots
    want, variance = joint_covariance(model_of(y.shape[1] if y.ndim == 2 else 0), x, y, roots)
    assert error(found.covariance, want) < 1e-6
    stderr = np.sqrt(np.diag(want))
    assert error(found.theta_stderr, stderr[:2]) < 1e-6
    assert error(found.w_stderr.ravel(), stderr[2:]) < 1e-6
    assert found.w_stderr.shape == fit.w.shape
    np.testing.assert_allclose(found.residual_variance, variance, rtol=1e-8)
    size = np.sqrt(np.diag(found.covariance))
    np.testing.assert_allclose(found.correlation * np.outer(size, size), found.covariance, rtol=1e-12)
    assert found.reasons == []


def test_complex_amplitudes_have_errors_of_both_parts():
    w = np.array([2.0 + 1.0j, -1.0 + 0.5j])
    y = TWO @ w + 0.01 * (rng(1).normal(size=T.size) + 1j * rng(2).normal(size=T.size))
    fit = xv.solve(xv.separable(decays, y, data={"t": T}), np.array([0.8, 5.0]), over=xv.sets.Box(0.0, 20.0), tol=1e-10)
    found = fit.statistics()
    x = np.concatenate([fit.theta, fit.w.real, fit.w.imag])
    want, _ = joint_covariance(lambda x: np.exp(-np.outer(T, x[:2])) @ (x[2:4] + 1j * x[4:]), x, y)
    assert error(found.covariance, want) < 1e-6
    stderr = np.sqrt(np.diag(want))
    assert error([found.w_stderr.real, found.w_stderr.imag], [stderr[2:4], stderr[4:]]) < 1e-6
    assert found.dof == 2 * T.size - 6
    moduli = found.propagate(lambda theta, w: xv.array_namespace(w).abs(w))
    slopes = np.zeros((2, 6))
    slopes[:, 2:4], slopes[:, 4:] = np.diag(fit.w.real / abs(fit.w)), np.diag(fit.w.imag / abs(fit.w))
    assert error(moduli.covariance, slopes @ want @ slopes.T) < 1e-6


# -- problems that are linear in everything, so that linear theory is exact at any residual ----------------------------

A, B, C = rng(10).normal(size=(12, 3)), rng(11).normal(size=(12, 4)), rng(12).normal(size=12)


def linear_problem(c=C, **keywords):
    """``1/2 |A w - (c - B theta)|^2``, jointly linear in w and theta."""
    return xv.separable(
        lambda theta, data: data["A"] + 0 * theta[0],
        lambda theta, data: data["c"] - data["B"] @ theta,
        data={"A": A, "B": B, "c": c},
        **keywords,
    )


REGIONS = {
    "free": (None, 0.0, {}),
    "active bounds": (xv.sets.Box(-0.05, 0.05), 0.0, {}),
    "one active bound": (xv.sets.Box(np.array([-np.inf, -9, -9, -9]), np.array([-1.0, 9, 9, 9])), -1.5, {}),
    "simplex": (xv.sets.Simplex(1.0), 0.25, {}),
    "l1 ball": (xv.sets.L1Ball(0.2), 0.0, {}),
    "curved boundary": (xv.sets.L2Ball(0.1), 0.0, {}),
    "inside of a ball": (xv.sets.L2Ball(10.0), 0.0, {}),
    "Omega": (None, 0.0, {"lam": 0.7, "Omega": np.eye(3) - 0.5 * np.eye(3, k=1)}),
    "ridge on a curved boundary": (xv.sets.L2Ball(0.1), 0.0, {"lam": 2.0}),
    "nonnegative w": (None, 0.0, {"W": xv.lower.Nonnegative()}),
    "bounded w": (xv.sets.Simplex(1.0), 0.25, {"W": xv.lower.Bounded(-0.1, 0.1)}),
    "shared w": (None, 0.0, {"W": xv.lower.Affine(np.array([1.0, 0.0, 0.0]), np.array([[1.0], [-1.0], [2.0]]))}),
    "weights": (xv.sets.Simplex(1.0), 0.25, {"weights": rng(13).uniform(0.2, 2.0, size=12)}),
}


def test_the_covariance_is_how_solutions_of_moved_data_spread(subtests):
    for region in REGIONS:
        with subtests.test(region):
            check_by_moved_data(*REGIONS[region])


def check_by_moved_data(over, start, keywords):
    def solution(c):
        problem = linear_problem(c, **keywords)
        fit = xv.solve(problem, np.full(4, start), over=over, tol=1e-13, max_iter=20000)
        return np.concatenate([fit.theta, fit.w]), fit

    h = 1e-4
    at, fit = solution(C)
    # on a face and inside of a set the solution is linear in the data, and a difference to one side exact
    inside = isinstance(over, xv.sets.L2Ball) and np.linalg.norm(fit.theta) < 0.5 * over.radius
    linear = over is None or over.polytope or inside
    sides = [(solution(C + h * e)[0], at if linear else solution(C - h * e)[0]) for e in np.eye(C.size)]
    K = np.stack([(there - back) / (h if linear else 2 * h) for there, back in sides], axis=1)
    found = xv.statistics.linear_theory(linear_problem(**keywords), fit.theta, over, absolute_sigma=True)
    root = keywords.get("weights", np.ones(C.size)) ** 0.5
    want = (K / root) @ (K / root).T
    assert np.max(np.abs(found.covariance - want)) < 1e-4 * np.max(np.abs(want))
    errors = [*vector(found.theta_stderr), *found.w_stderr]
    np.testing.assert_allclose(errors, np.sqrt(np.diag(want)), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(found.parameters, np.trace(np.concatenate([B, A], axis=1) @ K), rtol=1e-4)
    assert found.dof == found.data - found.parameters
    residual = root * (A @ fit.w + B @ fit.theta - C)
    np.testing.assert_allclose(found.chi2, residual @ residual, rtol=1e-10)


def test_goodness_of_fit_by_its_definitions():
    y = CASES["columns"][0]
    fit = xv.solve(xv.separable(decays, y, data={"t": T}), RATES, over=xv.sets.Box(0.0, 20.0))
    found, N, P = fit.statistics(), y.size, 2 + 6
    np.testing.assert_allclose(found.chi2, 2 * fit.value, rtol=1e-10)
    np.testing.assert_allclose(found.r_squared, 1 - found.chi2 / np.sum((y - y.mean(axis=0)) ** 2), rtol=1e-12)
    np.testing.assert_allclose(found.aic, N * np.log(found.chi2 / N) + 2 * P, rtol=1e-12)
    np.testing.assert_allclose(found.bic, N * np.log(found.chi2 / N) + np.log(N) * P, rtol=1e-12)
    assert (found.data, found.dof) == (N, N - P)
    assert found.reduced_chi2 == found.residual_variance == found.chi2 / found.dof
    for dof, text in ((7999996.0, "7999996"), (7999995.9999, "7999996"), (47.31283, "47.3128")):
        assert dict(replace(found, dof=dof, data=8_000_000).goodness)["degrees of freedom"] == text
    assert dict(replace(found, data=8_000_000).goodness)["data"] == "8000000"


def test_units_whose_squares_are_no_numbers_are_refused():
    for unit, scale in ((1e-150, 1e-6), (1e150, 1e6)):
        problem = xv.separable(decays, unit * Y, data={"t": scale * T})
        fit = xv.solve(problem, RATES / scale, over=xv.sets.Box(0.0, 20.0 / scale))
        with pytest.raises(ProblemError, match=r"with their squares in the range of the precision.*other units"):
            fit.statistics()


# Misra1a of the NIST Statistical Reference Datasets (public domain): volume over pressure, y = b1 (1 - exp(-b2 x))
VOLUME = [10.07, 14.73, 17.94, 23.93, 29.61, 35.18, 40.02, 44.82, 50.76, 55.05, 61.01, 66.40, 75.47, 81.78]
PRESSURE = [77.6, 114.9, 141.1, 190.8, 239.9, 289.0, 332.8, 378.4, 434.8, 477.3, 536.8, 593.1, 689.1, 760.0]


@pytest.mark.parametrize("backend", HOST_BACKENDS)
def test_certified_standard_deviations(backend):
    def M(theta, x):
        return 1 - xv.array_namespace(theta).exp(-x * theta)

    problem = xv.separable(M, np.array(VOLUME), data=np.array(PRESSURE)[:, None], solver=xv.lower.QR())
    found = xv.solve(problem, np.array([5e-4]), tol=1e-10, backend=backend).statistics(backend=backend)
    np.testing.assert_allclose(found.theta_stderr, 7.2668688436e-06, rtol=1e-9)
    np.testing.assert_allclose(found.w_stderr, 2.7070075241e00, rtol=1e-9)
    np.testing.assert_allclose(found.residual_variance**0.5, 1.0187876330e-01, rtol=1e-9)


# -- numbers far apart: closed forms of a linear problem, whose theta a box holds --------------------------------------


def linear_statistics(A, **level):
    """Statistics of ``A w - y`` at its solution, for a noise of 1."""
    y = rng(1).normal(size=len(A)).astype(A.dtype)
    problem = xv.separable(lambda theta, A: theta * A, y, data=A, **level)
    return xv.solve(problem, np.ones(1), over=xv.sets.Box(1.0, 1.0)).statistics(absolute_sigma=True)


def test_errors_under_an_equation_whose_coefficients_are_far_apart():
    A, c = rng(3).normal(size=(9, 2)), 1e-12
    found = linear_statistics(A, W=xv.lower.Equality(np.array([[1.0, c]]), 2.0)).w_stderr
    error = 1 / np.linalg.norm(A[:, 1] - c * A[:, 0])
    np.testing.assert_allclose(found, [c * error, error], rtol=1e-9)


def test_errors_next_to_a_ridge_that_crushes_weights_of_all_sizes():
    A = np.linalg.qr(rng(3).normal(size=(9, 3)))[0] * np.array([1.0, 1e-6, 1e-12])
    size = np.linalg.norm(A, axis=0)
    np.testing.assert_allclose(linear_statistics(A, lam=1e20).w_stderr, size / (size**2 + 1e20), rtol=1e-9)


def test_complex_weights_under_an_equation_with_a_right_hand_side_have_errors_of_both_parts():
    A = rng(3).normal(size=(9, 3)) + 1j * rng(4).normal(size=(9, 3))
    found, without = (
        linear_statistics(A, W=xv.lower.Fixed(np.array([True, False, False]), 1.0)),
        linear_statistics(A[:, 1:]),
    )
    np.testing.assert_allclose(found.w_stderr[1:], without.w_stderr, rtol=1e-9)
    assert found.dof == without.dof == 18 - 4


def test_errors_of_which_rounding_leaves_nothing_say_so():
    """Next to a ridge a weight answers to nothing but what theta answers to already."""
    problem = xv.separable(
        lambda theta, t: xv.array_namespace(theta).stack(
            [decays(theta, {"t": t})[:, 0], t * decays(theta, {"t": t})[:, 0]], axis=1
        ),
        np.exp(-T),
        data=T,
        lam=1e17,
        W=xv.lower.Fixed(np.array([True, False]), 1.0),
    )
    found = xv.statistics.linear_theory(problem, np.array([0.9]), absolute_sigma=True)
    assert np.isposinf(found.w_stderr[1])
    assert "rounding leaves no digits of the standard errors of w[1]" in found.reasons


def test_bounds_hold_entries_that_are_there_in_their_own_units():
    """And only where the gradient does not lead away from them; of a point that is no solution."""
    theta = np.array([0.5, 1e9, 0.0, 0.0])
    _, g = xv.value_and_gradient(linear_problem(), theta)
    assert g[0] != 0
    for bound, held in ((0.4, False), (0.5, True)):
        sides = (bound, 9.0) if g[0] > 0 else (-9.0, 1.0 - bound)
        box = xv.sets.Box(*(np.array([b, *[s] * 3]) for b, s in zip(sides, (-np.inf, np.inf), strict=True)))
        found = xv.statistics.linear_theory(linear_problem(), theta, box, absolute_sigma=True)
        assert (found.limits[0].held, found.theta_stderr[0] == 0) == (held, held)
    sides = (0.5, 9.0) if g[0] < 0 else (-9.0, 0.5)
    box = xv.sets.Box(*(np.array([b, *[s] * 3]) for b, s in zip(sides, (-np.inf, np.inf), strict=True)))
    found = xv.statistics.linear_theory(linear_problem(), theta, box, absolute_sigma=True)
    assert not found.limits[0].held
    assert found.theta_stderr[0] > 0


def test_a_function_that_returns_no_array_is_refused():
    found = xv.solve(xv.separable(decays, Y, data={"t": T}), RATES).statistics()
    for fun, message in (
        (lambda theta, w: "theta", "must return an array"),
        (lambda theta, w: float(theta[0]), r"must return arrays.*Leave float\(\) out"),
        (lambda theta, w: w.sum(), r"no attribute 'sum'.*xp\.sum\(x\) of xp = xv\.array_namespace\(x\)"),
    ):
        with pytest.raises(ModelError, match=message):
            found.propagate(fun)


def test_a_tuple_is_joined_to_a_vector_and_a_matrix_keeps_its_shape(backend):
    fit = xv.solve(xv.separable(decays, Y, data={"t": T}), send(backend, RATES), backend=backend)
    s = fit.statistics()
    found, theta = s.propagate(lambda theta, w: (theta, w[0])), host(fit.theta)
    np.testing.assert_allclose(found.value, [*theta, float(fit.w[0])])
    np.testing.assert_allclose(found.covariance, s.covariance[:3, :3], rtol=1e-6)
    column = s.propagate(lambda theta, w: theta[:, None])
    np.testing.assert_allclose([column.value, column.stderr], np.stack([theta, host(s.theta_stderr)])[..., None])


# -- what has no standard errors ---------------------------------------------------------------------------------------


def test_entries_that_the_data_do_not_determine_are_named():
    def M(theta, data):  # the product of both entries is all that matters; the third has its own column
        xp = xv.array_namespace(theta)
        t = data["t"]
        return xp.stack([xp.exp(-t * theta[0] * theta[1]), xp.exp(-t * theta[2])], axis=1)

    problem = xv.separable(M, Y, data={"t": T})
    fit = xv.solve(problem, np.array([0.9, 1.1, 5.0]), over=xv.sets.Box(0.1, 20.0))
    found = fit.statistics()
    assert np.isposinf(found.theta_stderr[:2]).all()
    want, _ = joint_covariance(model_of(0), np.concatenate([[fit.theta[0] * fit.theta[1], fit.theta[2]], fit.w]), Y)
    np.testing.assert_allclose(found.theta_stderr[2], np.sqrt(want[1, 1]), rtol=1e-5)
    np.testing.assert_allclose(found.w_stderr, np.sqrt(np.diag(want))[2:], rtol=1e-5)
    assert found.dof == T.size - 4
    assert "do not determine theta[0], theta[1]" in found.reasons[0]
    assert np.isposinf(found.propagate(lambda theta, w: theta[:1]).stderr).all()
    product = found.propagate(lambda theta, w: theta[:1] * theta[1:2])
    assert np.isposinf(product.stderr) or product.stderr > 0


FIXED = xv.sets.Box(1.0, 1.0)


def held(y, A, W):
    """The problem of ``A w`` alone: theta is 1."""
    return xv.separable(lambda theta, A: theta[0] * A, y, data=A, W=W)


def test_a_bound_with_no_multiplier_is_said():
    theta = xv.solve(linear_problem(), np.zeros(4), tol=1e-13).theta
    upper = np.array([theta[0], 9.0, 9.0, 9.0])
    found = xv.statistics.linear_theory(linear_problem(), theta, xv.sets.Box(-9.0, upper))
    assert any("multiplier of zero, theta[0]: errors there" in said for said in found.reasons)
    assert [limit.kink for limit in found.limits[:4]] == [True, False, False, False]


def test_an_entry_that_is_off_its_bound_by_rounding_is_held():
    bounds = xv.sets.Box(-9.0, np.array([0.0, 9.0, 9.0, 9.0]))
    theta = xv.solve(linear_problem(), np.zeros(4), over=bounds, tol=1e-12).theta
    assert theta[0] == 0
    theta[0] = -1e-17
    limit = xv.statistics.linear_theory(linear_problem(), theta, bounds).limits[0]
    assert (limit.note, limit.held, limit.kink, limit.rounding) == ("at upper bound", True, False, 1e-17)


def test_a_weight_at_a_bound_with_no_multiplier_is_said():
    """Where the target asks for 0 itself, and not where it asks for less."""
    A = np.kron(np.eye(2), np.ones((20, 1)))
    noise = 0.1 * rng(0).normal(size=20)
    for low, said in ((0.0, True), (-0.1, False)):
        problem = held(np.concatenate([1.0 + noise, np.full(20, low)]), A, xv.lower.Nonnegative())
        s = xv.statistics.linear_theory(problem, np.ones(1), FIXED)
        assert s.w_stderr[1] == 0
        assert any("active with a multiplier of zero, w[1]: errors there" in reason for reason in s.reasons) == said


def test_a_weight_that_is_zero_to_rounding_is_at_its_bound():
    """Its column is orthogonal to the residual of the others: it and its multiplier are 0, or rounding of any sign."""
    A = rng(3).normal(size=(40, 3))
    Q, _ = np.linalg.qr(A)
    for seed in range(5):
        noise = rng(seed).normal(size=40)
        y = A[:, :2] @ np.array([1.0, 0.5]) + 0.1 * (noise - Q @ (Q.T @ noise))
        fit = xv.solve(held(y, A, xv.lower.Nonnegative()), np.ones(1), over=FIXED)
        assert 0 <= fit.w[2] < 1e-15
        assert fit.verified.kinks == 1
        assert [limit.kink for limit in fit.statistics().limits] == [False, False, False, True]
        assert fit.report().amplitudes[2].cells == ("w[2]", "0", "-", "", "[0, inf] at lower bound, multiplier 0", "")
        assert np.isnan(fit.report().to_frame().loc["w[2]", "stderr"])
        found = fit.interval()
        assert (found.lower[3], found.upper[3]) == (0.0, np.inf)
        assert any("multiplier is zero, linear theory gives no ends" in note for note in found.notes)


def test_a_small_multiplier_is_measured_by_the_residual_of_its_own_column():
    """A neighbour whose residual is a billion times as large makes no kink of it."""
    A, noise = np.kron(np.eye(2), np.ones((20, 1))), rng(0).normal(size=40)
    y = np.concatenate([1.0 + 0.1 * noise[:20], -1e-3 + 1e-4 * noise[20:]])
    both = np.stack([y, np.concatenate([2e9 + 1e9 * noise[:20], 3e9 + 1e9 * noise[20:]])], axis=1)
    s = xv.statistics.linear_theory(held(both, A, xv.lower.Nonnegative()), np.ones(1), FIXED)
    assert s.w_stderr[1, 0] == 0
    assert not any("multiplier of zero" in reason for reason in s.reasons)


def test_multipliers_of_complex_designs_are_slopes():
    draw = rng(2)
    A = draw.normal(size=(30, 3)) + 1j * draw.normal(size=(30, 3))
    y = A @ np.array([1.0, -0.5, 2.0]) + 0.1 * (draw.normal(size=30) + 1j * draw.normal(size=30))
    fit = xv.solve(held(y, A, xv.lower.Nonnegative()), np.ones(1), over=FIXED)
    limit = fit.report().amplitudes[1].limit
    assert limit.note == "at lower bound"
    assert limit.multiplier == pytest.approx((A.conj().T @ (A @ fit.w - y)).real[1], rel=1e-9)


def test_a_residual_of_zero_is_said():
    fit = xv.solve(xv.separable(decays, TWO @ np.ones(2), data={"t": T}), np.array([0.8, 5.0]), tol=1e-12)
    assert any("zero to rounding" in said for said in fit.statistics().reasons)


def test_a_rate_of_an_amplitude_that_is_rounding_has_a_large_error():
    """Though the residual is 0."""
    t, rates = np.linspace(0.0, 2.0, 60), np.array([1.0, 6.0])
    y = 2.0 * np.exp(-t)
    found = xv.statistics.linear_theory(xv.separable(decays, y, data={"t": t}), rates)
    assert found.residual_variance < 1e-30
    assert 0 < found.theta_stderr[0] < 1e-14
    assert found.theta_stderr[1] > 1
    assert (found.w_stderr > 0).all()


@pytest.mark.filterwarnings("error")
def test_amplitudes_near_the_largest_numbers_have_no_warnings():
    x = np.linspace(0.0, 1.0, 50)
    y = np.exp(-(((x - 0.5) / 0.2) ** 2))
    problem = xv.separable(lambda theta, x: xv.models.gaussians(x, theta[:1], theta[1:]), y, data=x)
    for centre in np.linspace(1.2, 1.4, 41):  # of columns from 1e-90 to beyond the smallest number
        try:
            s = xv.statistics.linear_theory(problem, np.array([centre, -0.01]))
        except ProblemError:
            continue
        assert not np.isnan([*s.theta_stderr, *s.w_stderr]).any()
        s.propagate(lambda theta, w: theta)


def test_as_many_parameters_as_data_need_known_variances():
    t = T[:4]
    problem = xv.separable(decays, Y[:4], data={"t": t})
    fit = xv.solve(problem, RATES, over=xv.sets.Box(0.1, 20.0), max_iter=3)
    with pytest.raises(ProblemError, match=r"more data than parameters; got 4 numbers .* 4 parameters"):
        fit.statistics()
    known = fit.statistics(absolute_sigma=True)
    assert known.variance == 1.0
    assert np.isfinite([*known.theta_stderr, *known.w_stderr]).all()
    assert np.isnan([known.residual_variance, known.r_squared, known.aic, known.bic]).all()
    assert known.reasons == [
        "there are no more data than parameters: the residual says nothing of the fit",
        *known.remarks,
    ]
    with pytest.raises(ProblemError, match="bootstrap of residuals needs more data than parameters"):
        fit.interval(by="bootstrap", absolute_sigma=True)


def few_data(m, p, seed):
    """Of p rates and p amplitudes by m data with known errors; more unknowns than data."""
    t = np.linspace(0.0, 3.0, m)
    problem = xv.separable(decays, np.exp(-t) + 0.01 * np.sin(9 * t + seed), data={"t": t}, weights=np.full(m, 1e4))
    return xv.solve(problem, np.geomspace(0.2, 9.0, p) * rng(seed).uniform(0.9, 1.1, p), over=(0.0, 100.0), max_iter=3)


@pytest.mark.parametrize(("m", "p"), [(2, 2), (4, 4), (6, 4), (5, 3), (7, 5)])
def test_fewer_data_than_parameters_determine_none_of_them(m, p):
    """Where w takes all data, or all but for too few for theta, rounding is what is left of the tangents."""
    refused = rf"got {m} numbers in the target and more parameters. Fix or leave(?!.*absolute_sigma)"
    for fit in (few_data(m, p, seed) for seed in range(2)):
        known = fit.statistics(absolute_sigma=True)
        assert (known.dof, known.parameters) == (0, pytest.approx(m))
        assert np.isinf([*known.theta_stderr, *known.w_stderr]).all()
        assert np.isnan([known.residual_variance, known.r_squared, known.aic, known.bic]).all()
        text = str(fit.report(absolute_sigma=True))
        assert text.count("undetermined") == 2 * p
        assert "the data do not determine theta[0], theta[1]" in text
        assert not {"AIC", "BIC", "R2", "reduced"} & {line.split()[0] for line in text.splitlines() if line.split()}
        with pytest.raises(ProblemError, match=refused):
            fit.statistics()
        assert np.isinf(fit.interval(absolute_sigma=True).upper).all()


def test_what_a_few_data_just_determine_has_the_errors_of_the_joint_jacobian():
    """Columns of the design and tangents that are nearly dependent are not taken for ones that are."""
    t = np.linspace(0.0, 1.0, 9)
    rates = np.array([1.0, 1.3, 1.7])  # the joint Jacobian has the condition 4.5e7
    problem = xv.separable(decays, np.exp(-np.outer(t, rates)) @ np.ones(3), data={"t": t})
    found = xv.statistics.linear_theory(problem, rates, absolute_sigma=True)
    E = np.exp(-np.outer(t, rates))
    _, s, Vh = np.linalg.svd(np.concatenate([-t[:, None] * E, E], axis=1))
    want = np.linalg.norm(Vh.T / s, axis=1)
    np.testing.assert_allclose([*found.theta_stderr, *found.w_stderr], want, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_square_design_leaves_nothing_to_determine_theta(dtype):
    """Though its columns are orthogonal: what is left of the tangents is rounding."""

    def rotation(theta, data):
        xp = xv.array_namespace(theta)
        c, s = xp.cos(theta), xp.sin(theta)
        return xp.stack([xp.concat(row) for row in ([c, s, data * s], [-s, c, data * c], [0 * s, data * s, c])], axis=1)

    for seed in range(20):
        y, angle, data = (
            x.astype(dtype) for x in (rng(seed).normal(size=3), rng(seed).random(1), 0.1 * rng(seed).random(1))
        )
        problem = xv.separable(rotation, y, data=data)
        found = xv.statistics.linear_theory(problem, angle, absolute_sigma=True)
        assert np.isinf([*found.theta_stderr, *found.w_stderr]).all()


def test_columns_that_are_equal_or_too_many_leave_w_open():
    def equal(theta, t):
        xp = xv.array_namespace(theta)
        return xp.stack([xp.exp(-theta[0] * t)] * 2, axis=1)

    def many(theta, t):
        return xv.models.exponentials(t, theta[0] + xv.array_namespace(theta).arange(5.0))

    for M, m, over, determined in ((equal, 2, None, True), (many, 3, None, False), (many, 3, FIXED, True)):
        problem = xv.separable(M, np.array([1.0, 0.3, 0.2])[:m], data=np.arange(float(m)), solver=xv.lower.SVD())
        found = xv.statistics.linear_theory(problem, np.ones(1), over, absolute_sigma=True)
        assert np.isfinite(found.theta_stderr[0]) == determined
        assert np.isinf(found.w_stderr).all()
        with pytest.raises(ProblemError, match=rf"got {m} numbers in the target and more parameters. Fix or leave out"):
            xv.statistics.linear_theory(problem, np.ones(1), over)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("others", [[], [5.0]])
def test_errors_near_equal_rates_are_right_or_infinite(others, dtype):
    """What w leaves of the tangents is rounding long before a column of the design is another."""
    t, far = np.linspace(0.0, 2.0, 12), 1e-3

    def errors(apart, dtype):
        rates = np.array([1.0, 1.0 + apart, *others])
        y = np.exp(-np.outer(t, rates)) @ np.ones(len(rates))
        problem = xv.separable(decays, y.astype(dtype), data={"t": t.astype(dtype)})
        return xv.statistics.linear_theory(problem, rates.astype(dtype), absolute_sigma=True).theta_stderr[:2]

    # they rise as 1 / apart^2
    each = np.geomspace(0.2, 2e-5, 20)
    want = [errors(max(apart, far), "float64") * max(far / apart, 1.0) ** 2 for apart in each]
    found = np.array([errors(apart, dtype) for apart in each]) / want
    assert ((np.abs(found - 1) <= 0.4) | np.isinf(found)).all()
    assert np.isfinite(found[:3]).all()
    assert np.isinf(found[-1]).all()


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_equal_rates_of_amplitudes_at_bounds_are_undetermined(dtype):
    """A solve leaves them a little apart."""
    t = np.linspace(0.0, 2.0, 60)
    for seed in range(2):
        y = np.exp(-np.outer(t, [1.0, 5.0])) @ [2.0, 1.0] + 0.02 * rng(seed).normal(size=60)
        problem = xv.separable(decays, y.astype(dtype), data={"t": t.astype(dtype)}, W=xv.lower.Bounded(0.0, 1.0))
        method = xv.algorithms.ProjectedQuasiNewton()  # which brings them nearer to each other in single precision
        fit = xv.solve(problem, np.array([0.5, 8.0], dtype), over=(0.0, 20.0), algorithm=method)
        s = fit.statistics()
        np.testing.assert_array_equal(fit.w, 1.0)
        assert np.isinf(s.theta_stderr).all()
        assert any("do not determine theta[0], theta[1]" in reason for reason in s.reasons)


@pytest.mark.parametrize("upper", [1.2, np.array([1.2, 3.0])])
def test_a_weight_in_single_precision_is_at_a_bound_that_was_given_in_double(upper):
    """1.2 rounds up to a float32, 1.3 down."""
    t = np.linspace(0.0, 2.0, 60, dtype="float32")
    for bound in (upper, upper + 0.1):
        y = np.exp(-np.outer(t, [1.0, 5.0])) @ [1.7, 1.0] + 0.02 * rng(0).normal(size=60)
        W = xv.lower.Bounded(0.0, bound)
        s = xv.solve(xv.separable(decays, y, data={"t": t}, W=W), np.array([0.5, 4.0]), over=(0.0, 20.0)).statistics()
        short = xv.separable(decays, y.astype("float32"), data={"t": t}, W=W)
        fit = xv.solve(short, np.array([0.5, 4.0], "float32"), over=(0.0, 20.0))
        assert fit.w[0] == np.float32(np.atleast_1d(bound)[0])
        np.testing.assert_allclose(fit.statistics().w_stderr, s.w_stderr, rtol=1e-2)
        np.testing.assert_allclose(fit.statistics().theta_stderr, s.theta_stderr, rtol=1e-2)


def test_only_weights_that_move_with_what_is_open_are_undetermined():
    """A rate and the amplitude of its derivative are confounded; the errors of the others are those without it."""

    def model(columns):
        def M(theta, t):
            xp = xv.array_namespace(theta)
            e = xp.exp(-t * theta[0])
            return xp.stack([e, xp.ones_like(e), t * e][:columns], axis=1)

        return M

    t = np.linspace(0.0, 2.0, 60)
    y = 2.0 * np.exp(-t) + np.exp(-5.0 * t) + 0.02 * rng(0).normal(size=60)
    without, fit = (
        xv.solve(xv.separable(model(n), y, data=t), np.array([0.5]), over=(0.0, 20.0), tol=1e-12) for n in (2, 3)
    )
    s, want = fit.statistics(), without.statistics()
    np.testing.assert_allclose(fit.w[2], 0.0, atol=1e-13)
    assert np.isinf([s.theta_stderr[0], s.w_stderr[2]]).all()
    np.testing.assert_allclose(s.w_stderr[:2], want.w_stderr, rtol=1e-6)
    # and so are the errors of the fitted values
    np.testing.assert_allclose(s.fitted_stderr(), want.fitted_stderr(), rtol=1e-6)


KINDS = {
    "bilevel": (
        lambda y: xv.bilevel(lower=xv.Level(decays, y), upper=xv.Level(decays, y), data={"t": T}),
        "one level; got two",
    ),
    "penalty": (
        lambda y: xv.separable(decays, y, data={"t": T}, R=lambda theta: theta @ theta, mu=0.5),
        "without a penalty; got R with mu=0.5",
    ),
    "lam by theta": (
        lambda y: xv.separable(decays, y, data={"t": T}, lam=lambda theta, data: theta[0]),
        "lam that is a number; got a function",
    ),
    "too many tangents of rows in chunks": (
        lambda y: xv.separable(lambda th, t: decays(th, {"t": t}), xv.RowChunks.cut(T, y[:, None] * np.ones(2000), 10)),
        r"n \+ \(p \+ 1\) k <= 5000, .* n = 2, p = 2 and k = 2000",
    ),
    "iterative": (
        lambda y: xv.separable(decays, y, data={"t": T}, lam=0.1, solver=xv.lower.LSMR()),
        "working precision; LSMR iterates",
    ),
    "matrix-free": (
        lambda y: xv.separable(
            lambda theta, data: xv.operators.MatrixFree(lambda p, w: TWO @ (p[:, None] * w), None, TWO.shape, theta), y
        ),
        "working precision; the design iterates",
    ),
    "operator": (
        lambda y: xv.separable(lambda theta, data: xv.operators.Diagonal(data["t"] + theta[0]), y, data={"t": T}),
        "design that is an array",
    ),
}


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("kind", ["vector", "matrix", "complex"])
def test_rows_in_chunks_have_the_statistics_of_all_rows_at_once(kind, backend):
    """Also with a ridge, a bound that is active, and a mean far from 0."""
    noise = rng(2).normal(size=(2, T.size, 3))
    y = {
        "vector": Y + 9.0,
        "matrix": Y[:, None] * [1.0, 2.0, 3.0] + 0.1 * noise[0],
        "complex": Y[:, None] * np.exp([1j, 2j]) + noise[0, :, :2] + 1j * noise[1, :, :2],
    }[kind]
    over = xv.sets.Box(np.zeros(2), np.array([0.9, 20.0]))
    start = np.array([0.8, 5.0])
    whole = xv.solve(xv.separable(decays, y, data={"t": T}, lam=0.01), start, over=over, tol=1e-10)
    rows = xv.RowChunks.cut({"t": T}, y, 7)
    fit = xv.solve(xv.separable(decays, rows, lam=0.01), start, over=over, tol=1e-10, backend=backend)
    want, found = whole.statistics(), fit.statistics(backend=backend)
    assert found.theta_stderr[0] == 0
    assert found.limits[0].held
    for name in ("covariance", *NUMBERS):
        np.testing.assert_allclose(getattr(found, name), getattr(want, name), rtol=1e-8, atol=1e-12, err_msg=name)


def turning(theta, data):
    return decays(theta, data) ** (1 + 0.3j)


NUMBERS = ("data", "parameters", "dof", "chi2", "residual_variance", "r_squared", "aic", "bic")
BLOCKS = ("theta_stderr", "theta_covariance")
COLUMNS = TWO @ rng(2).uniform(1, 2, size=(2, 70)) + 0.05 * rng(3).normal(size=(T.size, 70))
OF_COLUMNS = {
    "plain": (decays, COLUMNS, {}),
    "few": (decays, COLUMNS[:, :5], {}),
    "ridge": (decays, COLUMNS, {"lam": 0.3, "Omega": np.array([[1.0, 0.2], [0.0, 2.0]])}),
    "weights": (decays, COLUMNS, {"weights": rng(4).uniform(size=T.size) * (rng(5).uniform(size=T.size) < 0.8)}),
    "linear W": (decays, COLUMNS, {"lam": 0.1, "W": xv.lower.Equality(np.array([[1.0, -1.5]]))}),
    "complex": (turning, COLUMNS + 1j * COLUMNS[:, ::-1] + 0.1j * rng(6).normal(size=COLUMNS.shape), {"lam": 0.1}),
    "active bound": (decays, COLUMNS, {"over": xv.sets.Box(np.zeros(2), np.array([0.9, 20.0]))}),
    "curved boundary": (decays, COLUMNS, {"over": xv.sets.L2Ball(4.5)}),
}


@pytest.mark.parametrize(
    ("backend", "case"),
    [(b, c) for b in ("numpy", "torch", "jax") for c in OF_COLUMNS if b != "jax" or c in ("linear W", "complex")],
)
def test_columns_in_chunks_have_the_statistics_of_all_at_once(backend, case):
    pytest.importorskip(backend)
    model, y, given = OF_COLUMNS[case]
    over, given = given.get("over", xv.sets.Box(0.0, 20.0)), {k: x for k, x in given.items() if k != "over"}
    whole = xv.separable(model, y, data={"t": T}, **given)
    theta = xv.solve(whole, np.array([0.8, 3.0]), over=over, tol=1e-10).theta
    chunked = xv.separable(model, xv.ColumnChunks([y[:, :2], y[:, 2:]]), data={"t": T}, **given)
    want = xv.statistics.linear_theory(whole, theta, over)
    found = xv.statistics.linear_theory(chunked, theta, over, backend=backend)
    for name in (*NUMBERS, *BLOCKS):
        np.testing.assert_allclose(getattr(found, name), getattr(want, name), rtol=1e-8, atol=1e-12, err_msg=name)
    assert found.reasons == want.reasons
    assert [limit.note for limit in found.limits] == [limit.note for limit in want.limits[:2]]


def test_a_factor_that_w_takes_up_stays_and_spoils_no_error():
    """It ran off to 1e14, and the rate was called undetermined, as is the amplitude that curve_fit wants in a model."""
    t = np.linspace(0.0, 5.0, 80)
    y = 3.0 * np.exp(-t / 1.5) + 0.01 * np.random.default_rng(0).normal(size=80)

    def decay(k, t):
        return xv.array_namespace(k).exp(-k[..., None] * t)[..., None]

    def scaled(at, t):
        return at["a"][..., None, None] * decay(at["k"], t)

    want = xv.solve(xv.separable(decay, y, data=t), np.array(0.3))
    fit = xv.solve(xv.separable(scaled, y, data=t), {"a": np.array(5.0), "k": np.array(0.3)})
    starts = {"a": np.array([1.0, 5.0]), "k": np.full(2, 0.3)}
    found, batch = fit.statistics(), xv.solve_many(xv.separable(scaled, np.stack([y, y]), data=t), starts)
    assert fit.status.name == "CONVERGED"
    np.testing.assert_allclose([fit.theta["a"], *np.ravel(batch.theta["a"])], [5.0, 1.0, 5.0], rtol=1e-9)
    np.testing.assert_allclose([fit.theta["k"], *np.ravel(batch.theta["k"])], float(want.theta), rtol=1e-7)
    np.testing.assert_allclose(found.theta_stderr["k"], want.statistics().theta_stderr, rtol=1e-6)
    assert found.parameters == pytest.approx(2.0)
    assert "do not determine a, w[0]: w takes up what a does" in found.reasons[0]


def test_what_right_hand_sides_in_chunks_do_not_determine_is_named():
    def moved(theta, data):  # at one sum of both entries their difference scales w: nothing where that is 0
        return xv.array_namespace(theta).exp(theta[0]) * decays(theta[:1] + theta[1:], data)

    y = COLUMNS[:, :3] * [1.0, 0.0, 1.0]
    found = xv.statistics.linear_theory(xv.separable(moved, xv.ColumnChunks([y]), data={"t": T}), np.array([0.5, 0.6]))
    assert "do not determine theta[0], theta[1], w[0]" in found.reasons[0]
    assert np.isinf(found.theta_covariance[0, 0])
    # of the compressed target the first column may be one of zeros
    first = xv.ColumnChunks([y * [0.0, 1.0, 1.0]])
    found = xv.statistics.linear_theory(
        xv.separable(moved, first, data={"t": T}, weights=np.r_[0.0, np.ones(39)]), np.array([0.5, 0.6])
    )
    assert "do not determine theta[0], theta[1], w[0]" in found.reasons[0]


def passes(*given):
    """A source whose passes differ, the last of them again and again."""
    left = list(given)
    return lambda: iter(left.pop(0) if len(left) > 1 else left[0])


def of_chunks(source):
    problem = xv.separable(decays, xv.ColumnChunks(source), data={"t": T})
    return xv.solve(problem, np.array([0.8, 3.0]), over=xv.sets.Box(0.0, 20.0))


def test_a_chunk_may_be_empty():
    found = of_chunks([COLUMNS[:, :9], COLUMNS[:, :0], COLUMNS[:, 9:]])
    assert [x.shape for x in found.w_chunks()] == [(2, 9), (2, 0), (2, 61)]


def test_passes_over_chunks_must_be_of_the_same_columns():
    """Those of the solve, of its statistics, and of w."""
    parts, short = [COLUMNS[:, :30], COLUMNS[:, 30:]], [COLUMNS[:, :30]]
    said = "the same columns on every pass; got 30 of them on this pass and 70 before"
    rows = "same number of rows; got 40 and y, chunk 0, of shape "
    for message, call in (
        (said, lambda: of_chunks(passes(parts, short)).statistics()),
        (said, lambda: of_chunks(passes(parts, short)).w),
        (rows + r"\(70, 40\)", lambda: of_chunks([COLUMNS.T])),
        (rows + r"\(39, 70\)", lambda: of_chunks(passes(parts, [COLUMNS[1:]])).w),
    ):
        with pytest.raises(ProblemError, match=message):
            call()


def all_are_refused(asked):
    for why, ask in asked.items():
        with pytest.raises(ProblemError, match=why):
            ask()


def test_what_needs_all_columns_is_refused_for_chunks():
    y = COLUMNS.copy()
    fit = of_chunks([y[:, :30], y[:, 30:]])
    s = fit.statistics()

    def sign(x):  # has no derivative by w
        return xv.array_namespace(x).sign(x)

    all_are_refused({
        "sandwich formula need all right-hand sides": lambda: fit.statistics(sandwich=True),
        "fitted values need all right-hand sides": lambda: s.fitted_stderr(),
        "Use theta_covariance": lambda: s.covariance,
        "has standard errors only where y is one array": lambda: s.w_stderr,
        "functions of w need all right-hand sides": lambda: s.propagate(lambda theta, w: sign(theta[0] * w[0])),
        "theta and w needs all right-hand sides": lambda: fit.plot_correlation(),
        "functions of w need all": lambda: s.propagate(lambda theta, w: theta[0] * w[0, 1]),
        "in batches, with all right-hand sides": lambda: fit.interval(by="profile"),
        "solve in batches, with all right-hand sides": lambda: fit.interval(by="bootstrap"),
        "bands need all right-hand sides": lambda: fit.band(),
    })  # fmt: skip
    assert fit._w is None
    found = s.propagate(lambda theta, w: 1 / theta)
    np.testing.assert_allclose(found.stderr, s.theta_stderr / fit.theta**2)


def test_r_squared_of_complex_data_takes_the_complex_mean():
    y = TWO @ np.ones(2) * (3 + 4j) + 0.1 * rng(3).normal(size=(2, T.size)).T @ [1, 1j]
    found = xv.solve(xv.separable(decays, y, data={"t": T}), RATES).statistics()
    assert found.r_squared == pytest.approx(1 - found.chi2 / np.sum(np.abs(y - y.mean()) ** 2), rel=1e-12)


def test_what_needs_the_rows_is_refused_for_chunks():
    fit = xv.solve(xv.separable(decays, xv.RowChunks.cut({"t": T}, Y, 7)), RATES, over=xv.sets.Box(0.0, 20.0))
    two = xv.RowChunks.cut({"t": T}, np.stack([Y, 2 * Y], axis=1), 7)
    several = xv.solve(xv.separable(decays, two), RATES, over=xv.sets.Box(0.0, 20.0), max_iter=0)
    all_are_refused({
        "sandwich formula need all rows": lambda: several.statistics(sandwich=True),
        "fitted values need all rows": lambda: fit.statistics().fitted_stderr(),
        "in batches, with all rows": lambda: fit.interval(by="profile"),
        "solve in batches, with all rows": lambda: fit.interval(by="bootstrap"),
        "rows in chunks needs data=": lambda: fit.band(),
    })  # fmt: skip
    whole = xv.solve(xv.separable(decays, Y, data={"t": T}), RATES, over=xv.sets.Box(0.0, 20.0))
    np.testing.assert_allclose(fit.band({"t": T[:3]}), whole.band({"t": T[:3]}), rtol=1e-6)


def test_problems_of_other_kinds_are_refused_by_what_they_have():
    for make, why in KINDS.values():
        with pytest.raises(ProblemError, match=why):
            xv.statistics.linear_theory(make(Y), RATES)


def test_statistics_print_what_they_hold():
    found = example().statistics()
    text = str(found)
    assert f"theta[1]   {found.theta_stderr[1]:.6g}\n" in text
    assert f"chi2                 {found.chi2:.6g}\n" in text
    assert "notes" not in text
    known = few_data(4, 2, 0).statistics(absolute_sigma=True)
    assert "degrees of freedom   0\n" in str(known)


def test_a_solve_that_did_not_end_at_a_minimum_is_said():
    fit = xv.solve(xv.separable(decays, Y, data={"t": T}), np.array([0.8, 3.0]), max_iter=0)
    said = "the solve ended with MAX_ITER: errors are those of this point, which need not be a minimum"
    assert said in fit.statistics().reasons
    assert said in fit.interval().notes
    assert said in str(fit)


@pytest.mark.parametrize(("lam", "said"), [(1e-3, False), (1e12, True)])
def test_a_ridge_that_outweighs_the_residual_leaves_theta_off_and_that_is_said(lam, said):
    problem = xv.separable(decays, Y, data={"t": T}, lam=lam, W=xv.lower.Bounded(1.0, 3.0))
    fit = xv.solve(problem, np.array([0.8, 3.0]), over=xv.sets.Box(0.1, 20.0))
    assert any("tol is relative to the objective" in reason for reason in fit.statistics().reasons) == said


def test_errors_that_the_sandwich_makes_smaller_are_those_that_tol_is_compared_with():
    """An outlier at the end: 0.64 of the errors that count it as noise of all data."""
    y = Y + 0.3 * (T.max() == T)
    problem = xv.separable(decays, y, data={"t": T}, lam=1e9, W=xv.lower.Bounded(1.0, 3.0))
    fit = xv.solve(problem, np.array([0.8, 3.0]), over=xv.sets.Box(0.1, 20.0), tol=2.2e-7)
    for sandwich in (False, True):
        reasons = fit.statistics(sandwich=sandwich).reasons
        assert any("tol is relative to the objective" in reason for reason in reasons) == sandwich


def test_the_covariance_of_too_many_entries_is_refused():
    y = rng(1).normal(size=(T.size, 2600))
    found = xv.statistics.linear_theory(xv.separable(decays, y, data={"t": T}), RATES)
    with pytest.raises(ProblemError, match="at most 5000 of them; got 5202"):
        _ = found.covariance
    assert found.w_stderr.shape == (2, 2600)


def test_statistics_of_a_fit_call_the_model_once():
    calls = []

    def counted(theta, data):
        calls.append(theta)
        return decays(theta, data)

    over = (np.array([0.0, 0.0]), np.array([20.0, 30.0]))
    problem, start = xv.separable(counted, Y, data={"t": T}), np.array([0.8, 3.0])
    fit = xv.solve(problem, start, over=over)
    over[1][:] = 1.0  # the caller's array: the sets of the fit are those of the solve
    calls.clear()
    found = fit.statistics()
    assert len(calls) == 1
    want = xv.statistics.linear_theory(problem, fit.theta, (0.0, np.array([20.0, 30.0])))
    assert np.array_equal(found.covariance, want.covariance)
    assert found.limits == want.limits
    # where the solve had other units, another target or another model it is prepared anew
    tiny = xv.separable(counted, 1e-60 * Y, data={"t": T})
    wide = xv.separable(counted, np.repeat(Y[:, None], 2 * T.size, axis=1), data={"t": T})
    for other in (tiny, wide):
        fit = xv.solve(other, start)
        assert np.array_equal(fit.statistics().w_stderr, xv.statistics.linear_theory(other, fit.theta).w_stderr)
    moved = fit.attach(xv.separable(lambda theta, data: 2 * decays(theta, data), wide.lower.y, data={"t": T}))
    assert error(moved.statistics().w_stderr, 0.5 * fit.statistics().w_stderr) < 1e-6


# -- units, and starts of which the data say nothing -------------------------------------------------------------------


@pytest.mark.parametrize("first", [0.0, 1400.0, 1600.0, 2011.0])
def test_errors_do_not_depend_on_where_the_axis_begins(first):
    """Years: columns from 1600 on are above 1e154, and their squares beyond the range of numbers."""
    y = np.array([255.0, 350, 450, 555, 660])
    problem = xv.separable(lambda b, x: xv.models.exponentials(x, -b), y, data=first + np.arange(5))
    found = xv.solve(problem, 0.1).statistics()
    assert found.theta_stderr == pytest.approx(0.0152794, rel=1e-4)
    assert found.dof == pytest.approx(3.0)
    assert 0 < found.w_stderr[0] < np.inf


def test_a_start_of_which_the_data_say_nothing_has_an_error_of_that_size():
    """What is left of the gradient, at a rate of 40, leads out of the box, where no constraint is."""
    t = np.arange(60.0)
    y = 3 * np.exp(-t / 10) + 1 + 0.02 * rng(0).normal(size=60)
    fit = xv.solve(xv.separable(with_offset, y, data=t), 40.0, over=(0, 100))
    found, k, w = fit.statistics(), float(fit.theta), fit.w[0]
    tangent = -w * t * np.exp(-k * t)
    tangent -= np.mean(tangent[1:]) * (t > 0)  # off the span of both columns
    assert found.theta_stderr == pytest.approx(np.sqrt(found.variance) / np.linalg.norm(tangent), rel=1e-3)


@pytest.mark.parametrize("over", [None, (-1.0, 1.0), xv.sets.L2Ball(1.0)], ids=["free", "box", "ball"])
def test_a_theta_of_zero_that_is_no_minimum_has_errors(over):
    problem = xv.separable(decays, Y, data={"t": T})
    found = xv.solve(problem, np.zeros(1), over=over, max_iter=0).statistics()
    np.testing.assert_allclose(
        found.theta_stderr, xv.solve(problem, np.full(1, 1e-9), max_iter=0).statistics().theta_stderr
    )


@pytest.mark.parametrize("upper", [np.inf, 1.0, 1e3, 1e12])
def test_an_entry_is_at_a_bound_by_the_rounding_of_that_bound(upper):
    """And not by that of the other one, which may be in other units."""
    x = np.linspace(0, 5, 50)
    y = 3 * np.exp(-x) + 1 + 0.02 * rng(0).normal(size=50)
    found = xv.solve(
        xv.separable(lambda k, x: with_offset(k / 1e-12, x), y, data=x), 5e-13, over=(0, upper)
    ).statistics()
    assert found.theta_stderr == pytest.approx(7.5117e-15, rel=1e-4)
    assert not found.reasons


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_of_exact_data_theta_is_off_by_no_more_than_three_errors(dtype):
    """What a solve leaves of a residual of zero is alike from one datum to the next."""
    t = np.linspace(0.0, 2.0, 8192, dtype=dtype)
    y = (2 * np.exp(-t) + np.exp(-5 * t)).astype(dtype)
    fit = xv.solve(xv.separable(decays, y, data={"t": t}), np.array([0.5, 8.0], dtype), over=xv.sets.Box(0.0, 10.0))
    s = fit.statistics()
    assert s.theta_stderr.dtype == s.w_stderr.dtype == dtype
    assert (np.abs(fit.theta - np.array([1.0, 5.0])) < 3 * s.theta_stderr).all()


def test_errors_of_nearly_dependent_parameters_say_that_rounding_takes_their_digits():
    """Two rates 3 % apart: in single precision the difference of their columns has few digits, in double many."""
    theta = np.array([1.0, 1.03])
    y = decays(theta, {"t": T}) @ np.array([2.0, 1.0]) + 0.01 * np.sin(40 * T)
    for dtype, said in (("float32", True), ("float64", False)):
        problem = xv.separable(decays, y.astype(dtype), data={"t": T.astype(dtype)})
        found = xv.statistics.linear_theory(problem, theta.astype(dtype))
        assert np.isfinite(found.theta_stderr).all()
        assert any("fewer than three digits" in reason for reason in found.reasons) == said


@pytest.mark.parametrize("ratio", [1e9, 1e19])
def test_directions_of_weights_in_units_far_apart_keep_their_small_entries(ratio):
    """Of ``c w = 0`` the small entry was lost where another one took its place: one minus its inverse is 1."""
    B, rows = exchanged(np.array([[ratio, 3.0], [1.0, 0.0], [0.0, 1.0]]), np.array([1, 2]), np.ones(3))
    np.testing.assert_allclose(B, [[1.0, 0.0], [1 / ratio, -3 / ratio], [0.0, 1.0]], rtol=1e-15)
    assert rows.tolist() == [0, 2]


@pytest.mark.parametrize("angle", [2.0**-26, 2.0**-29, 2.0**-33, 2.0**-36])
def test_a_direction_that_the_data_hardly_tell_has_its_share_in_the_errors_of_others(angle):
    """Of angles far above rounding: without it the error of the third entry would be 0.7 of this."""
    A = np.array([[1.0, 1.0, 0.0], [0.0, angle, 1.0], [0.0, 0.0, 1.0], *np.zeros((3, 3))])
    y = np.array([1.0, 0.0, 0.0, 0.1, -0.1, 0.1])
    found = xv.least_squares(lambda theta, data: data["A"] @ theta - data["y"], np.zeros(3), data={"A": A, "y": y})
    s = found.statistics()
    first, second, third = s.theta_stderr / s.variance**0.5
    assert first == second == np.inf
    assert third == np.inf or abs(third - 1) < 1e-3


@pytest.mark.parametrize(("frequency", "said"), [(10.0, True), (0.1, False)])
def test_an_error_as_small_as_the_rounding_of_its_parameter_says_so(frequency, said):
    t = np.linspace(0.0, 20.0, 50, dtype="float32")

    def waves(theta, t):
        xp = xv.array_namespace(theta)
        phase = xp.expand_dims(6.2831853 * theta[0] * t, axis=1)
        return xp.concat([xp.cos(phase), xp.sin(phase)], axis=1)

    y = np.cos(6.2831853 * frequency * t) + 1e-3 * rng(0).normal(size=50).astype("float32")
    found = xv.solve(xv.separable(waves, y, data=t), np.array([frequency], dtype="float32")).statistics()
    assert any("rounding of theta[0] in float32" in reason for reason in found.reasons) == said
