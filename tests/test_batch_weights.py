"""Weights of residuals, masks, and bounds of w in a batch: the answers of a loop, of SciPy and of differences."""

import numpy as np
import pytest
from scipy.optimize import lsq_linear

import xvarpro as xv
from xvarpro.batch.prepare import prepare

from .support import decays, error, host, rng, together
from .test_many import BOX, T, noisy, start

EPS = np.finfo(np.float64).eps
B = 4
DRAWN = rng(11).uniform(0.2, 3.0, (B, T.size, 2))
SEEN = rng(12).random((B, T.size, 2)) > 0.2


def gappy(y, weights):
    """The target with NaN where nothing is to be fitted."""
    return np.where(weights > 0, y, np.nan)


# weights of a batch, and those of its problem i; whether targets have two right-hand sides
WEIGHTS = {
    "by row": (DRAWN[0, :, 0], lambda i: DRAWN[0, :, 0], 0),
    "by row, of each": (DRAWN[:, :, 0], lambda i: DRAWN[i, :, 0], 0),
    "mask of each": (SEEN[:, :, 0], lambda i: SEEN[i, :, 0], 0),
    "by row, two columns": (DRAWN[0, :, 0], lambda i: DRAWN[0, :, 0], 2),
    "by entry": (DRAWN[0], lambda i: DRAWN[0], 2),
    "by row of each, two columns": (DRAWN[:, :, :1], lambda i: DRAWN[i, :, 0], 2),
    "by entry of each": (DRAWN, lambda i: DRAWN[i], 2),
    "mask of entries": (SEEN, lambda i: SEEN[i], 2),
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_weighted_solutions_are_those_of_a_loop(backend, name):
    weights, own, k = WEIGHTS[name]
    y, lam = noisy(B, k=k), np.linspace(0.0, 1e-2, B)
    y = gappy(y, weights) if weights.dtype == bool else y
    problem = xv.separable(together, y, data={"t": T}, weights=weights, lam=lam)
    fit = xv.solve_many(problem, start(B), over=BOX, tol=1e-10, backend=backend)
    assert fit.success.all()
    for i in range(B):
        one = xv.separable(decays, y[i], data={"t": T}, weights=own(i), lam=lam[i])
        want = xv.solve(one, start()[0], over=BOX, tol=1e-10)
        assert host(fit.value)[i] == pytest.approx(want.value, rel=1e-10)
        np.testing.assert_allclose(host(fit.theta)[i], want.theta, rtol=1e-5)
        np.testing.assert_allclose(host(fit.w)[i], want.w, rtol=1e-4)
        if "entr" not in name:  # with a design of its own for every column the worst is another measure
            assert host(fit.condition)[i] == pytest.approx(want.verified.condition, rel=1e-3)


@pytest.mark.parametrize("name", WEIGHTS)
def test_lifted_weights_are_the_same(name):
    weights, _, k = WEIGHTS[name]
    y = noisy(B, k=k)
    want = xv.solve_many(xv.separable(together, y, data={"t": T}, weights=weights), start(B), over=BOX)
    of_each = weights.ndim == np.ndim(y)
    marked = xv.Each(weights[:, :, 0] if weights.shape[-1] == 1 else weights) if of_each else weights
    problem = xv.many.lifted(xv.separable(decays, xv.Each(y), data={"t": T}, weights=marked))
    np.testing.assert_allclose(xv.solve_many(problem, start(B), over=BOX).theta, want.theta, rtol=1e-12)


def test_a_weighted_target_that_all_share():
    y, weights = noisy(k=2)[0], DRAWN[0]
    problem = xv.many.lifted(xv.separable(decays, y, data={"t": T}, weights=weights))
    fit = xv.solve_many(problem, start(3) * np.array([[0.8], [1.0], [1.2]]), over=BOX, tol=1e-10)
    want = xv.solve(xv.separable(decays, y, data={"t": T}, weights=weights), start()[0], over=BOX, tol=1e-10)
    np.testing.assert_allclose(fit.value, want.value, rtol=1e-10)
    np.testing.assert_allclose(fit.w, np.broadcast_to(want.w, (3, 2, 2)), rtol=1e-4)


def test_nan_where_there_is_a_weight_ends_its_problem_alone(backend):
    y, weights = np.array(noisy(B)), np.array(DRAWN[:, :, 0])
    y[1, 3] = y[2, 5] = np.nan
    weights[2, 5] = 0.0
    weights[3] = 0.0
    problem = xv.separable(together, y, data={"t": T}, weights=weights)
    fit = xv.solve_many(problem, start(B), over=BOX, backend=backend)
    assert fit.ended(xv.Status.NO_DATA).tolist() == [1, 3]
    assert fit.success.tolist() == [True, False, True, False]


# -- bounds of w -------------------------------------------------------------------------------------------------------


def upper_design(theta, data):
    return together(1.3 * theta, data)


def upper_of_one(theta, data):
    return decays(1.3 * theta, data)


Y = {k: rng(13).normal(size=(B, T.size, k)) + 0.5 for k in (1, 2)}
BOUNDS = {
    "nonnegative": (xv.lower.Nonnegative(), (0.0, np.inf)),
    "bounded": (xv.lower.Bounded(np.array([-0.3, -5.0]), np.array([0.4, 0.6])), ([-0.3, -5.0], [0.4, 0.6])),
}
RATES = np.array([[1.0, 4.0], [0.5, 6.0], [2.0, 3.0], [1.5, 9.0]])


@pytest.mark.parametrize("lam", [0.0, 0.3])
@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("name", BOUNDS)
def test_weights_between_bounds_are_those_of_scipy(backend, name, k, lam):
    W, bounds = BOUNDS[name]
    y = Y[k] if k > 1 else Y[k][:, :, 0]
    problem = xv.separable(together, y, data={"t": T}, W=W, lam=lam)
    fit = xv.solve_many(problem, RATES, over=BOX, max_iter=0, backend=backend)
    w = host(fit.w).reshape(B, 2, k)
    A = np.concatenate([np.exp(-RATES[:, None, :] * T[:, None]), np.tile(lam**0.5 * np.eye(2), (B, 1, 1))], axis=1)
    held = 0
    for i in range(B):
        for j in range(k):
            b = np.concatenate([Y[k][i, :, j], np.zeros(2)])
            want = lsq_linear(A[i], b, bounds, method="bvls", tol=1e-14)
            np.testing.assert_allclose(w[i, :, j], want.x, atol=1e-12)
            held += np.sum(want.active_mask != 0)
    assert 0 < held < 2 * B * k


def described(kind, W, k, at=slice(None)):
    y = Y[k][at] if k > 1 else Y[k][at, :, 0]
    if kind == "separable":
        return xv.separable(together, y, data={"t": T}, W=W, lam=0.1)
    weights = DRAWN[at] if kind == "weighted" else None
    lower, upper = xv.Level(together, y, 0.1, W=W, weights=weights), xv.Level(upper_design, y[:, ::-1, ...], 0.05)
    return xv.bilevel(lower=lower, upper=upper, data={"t": T})


def batch(kind, W, k, backend):
    prepared = prepare(described(kind, W, k), RATES, over=BOX, backend=backend)
    return prepared.assemble(prepared.problem, prepared.region), prepared.theta


@pytest.mark.parametrize(("kind", "k"), [("separable", 1), ("separable", 2), ("bilevel", 1), ("weighted", 2)])
@pytest.mark.parametrize("name", BOUNDS)
def test_gradients_between_bounds_are_those_of_differences(backend, name, kind, k):
    f, x = batch(kind, BOUNDS[name][0], k, backend)
    with backend.scope("float64"):
        local = f.local(x)
    f, x = batch(kind, BOUNDS[name][0], k, xv.backends.get("numpy"))
    h = 1e-6
    steps = [f.local(x + h * e).value - f.local(x - h * e).value for e in np.eye(2)]
    assert error(local.grad, np.stack(steps, axis=1) / (2 * h)) <= 1e-7


@pytest.mark.parametrize("name", BOUNDS)
def test_the_gauss_newton_matrix_between_bounds_is_that_of_the_upper_residual(name):
    f, x = batch("bilevel", BOUNDS[name][0], 1, xv.backends.get("numpy"))

    def residual(x):
        out = f.weighted(f.outputs(x))
        low = f.lower(out)
        r = low.w @ out.M_U.mT - f._target(f.problem.upper, out.y_U, B)
        return f._ridge_below(r, low.w).reshape(B, -1)

    h = 1e-6
    J = np.stack([(residual(x + h * e) - residual(x - h * e)) / (2 * h) for e in np.eye(2)], axis=1)
    assert error(f.local(x).curvature, J @ J.mT) <= 1e-7


@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("name", BOUNDS)
def test_solutions_between_bounds_are_those_of_a_loop(backend, name, k):
    W = BOUNDS[name][0]
    y = np.exp(-RATES[:, None, :] * T[:, None]) @ np.array([[0.5, -0.2], [0.4, 0.5]])[:, :k]
    y = y + 1e-2 * rng(3).normal(size=y.shape)
    y = y if k > 1 else y[..., 0]
    theta0 = np.tile([0.7, 4.0], (B, 1))
    fit = xv.solve_many(xv.separable(together, y, data={"t": T}, W=W), theta0, over=BOX, tol=1e-9, backend=backend)
    assert fit.success.all()
    same = 0
    for i in range(B):
        one = xv.separable(decays, y[i], data={"t": T}, W=W)
        value, gradient = xv.value_and_gradient(one, host(fit.theta)[i])
        assert host(fit.value)[i] == pytest.approx(float(value), rel=1e-10)
        assert np.abs(gradient).max() <= 1e-6 * float(value)
        want = xv.solve(one, theta0[i], over=BOX, tol=1e-9)
        same += host(fit.value)[i] == pytest.approx(want.value, rel=1e-7)
    assert same >= B - 1  # a quasi-Newton method may end in another minimum


def test_bounds_go_with_the_units_of_targets():
    W = xv.lower.Bounded(0.0, np.array([0.4, 0.6]))
    size = 2.0**60
    fits = [
        xv.solve_many(
            xv.separable(together, c * Y[1][..., 0], data={"t": T}, W=xv.lower.Bounded(0.0, c * W.upper)),
            RATES,
            over=BOX,
            max_iter=20,
        )
        for c in (1.0, size)
    ]
    np.testing.assert_allclose(fits[1].theta, fits[0].theta, rtol=1e-9)
    np.testing.assert_allclose(fits[1].w / size, fits[0].w, rtol=1e-9)


# -- what is refused ---------------------------------------------------------------------------------------------------

BAD = {
    r"must have shape \(m,\), \(m, k\)": {"weights": np.ones((3, T.size))},
    "must be >= 0": {"weights": -np.ones(T.size)},
    "weights must be finite": {"weights": np.full(T.size, np.nan)},
    "must be made for length 2": {"W": xv.lower.Bounded(np.zeros(3), 1.0)},
    "one entry per row of M": {"y": lambda theta, data: together(theta, data)[:, :, 0], "weights": np.ones((1, 4))},
    "got a function of theta": {"lam": lambda theta, data: theta[0]},
}


@pytest.mark.parametrize("match", BAD)
def test_what_does_not_fit_is_refused(match):
    given = {"y": noisy(B), "data": {"t": T}} | BAD[match]
    with pytest.raises(xv.errors.ProblemError, match=match):
        xv.solve_many(xv.separable(together, given.pop("y"), **given), start(B), over=BOX)


def test_weights_of_a_batch_are_refused_by_solve():
    with pytest.raises(xv.errors.ProblemError, match="solve_many"):
        xv.solve(xv.separable(decays, noisy(k=2)[0], data={"t": T}, weights=DRAWN), start()[0])


# -- in chunks ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("b", [0, 1, 3, 4, 5, 7])
def test_every_problem_is_in_a_batch_whatever_is_left_for_the_last(b):
    weights, lam = rng(14).uniform(0.2, 3.0, (b, T.size)), np.array([[1e-3], [0.0]])
    problem = xv.separable(together, noisy(7)[:b], data={"t": T}, weights=weights, lam=lam)
    fit = xv.solve_many(problem, start(b), BOX, chunks=3)
    want = xv.solve_many(problem, start(b), BOX)
    assert len(fit) == b
    np.testing.assert_array_equal(fit.status, want.status)
    np.testing.assert_allclose(fit.theta, want.theta, rtol=1e-7)
    np.testing.assert_allclose(fit.w, want.w, rtol=1e-7)
