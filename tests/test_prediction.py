"""Fitted values, residuals, predictions and the lower level at a theta, against products written out."""

import io
import pickle
from dataclasses import replace

import numpy as np
import pytest
import scipy.stats

import xvarpro as xv
from xvarpro.errors import ModelError, ProblemError
from xvarpro.statistics.prediction import predict

from .support import HOST_BACKENDS, RATES, T, decays, error, host, rng, send

Y = np.exp(-np.outer(T, RATES)) @ np.array([2.0, 1.0]) + 0.01 * rng(1).normal(size=T.size)
MANY = rng(2).normal(size=(T.size, 100))  # more right-hand sides than rows: they are compressed
BOX = xv.sets.Box(0.0, 20.0)


def by_rows(theta, t):
    return decays(theta, {"t": t})


PROBLEMS = {
    "vector": (xv.separable(decays, Y, data={"t": T}, lam=0.1), Y),
    "complex": (xv.separable(decays, Y * (1 + 2j), data={"t": T}), Y * (1 + 2j)),
    "weights": (xv.separable(decays, Y, data={"t": T}, weights=rng(3).uniform(0.1, 1.0, T.size)), Y),
    "compressed": (xv.separable(decays, MANY, data={"t": T}), MANY),
    "columns in chunks": (
        xv.separable(decays, xv.ColumnChunks(lambda: iter([MANY[:, :70], MANY[:, 70:]])), data={"t": T}),
        MANY,
    ),
    "rows in chunks": (xv.separable(by_rows, xv.RowChunks.cut(T, Y, 13)), Y),
    "matrix of rows in chunks": (xv.separable(by_rows, xv.RowChunks.cut(T, MANY[:, :3], 13)), MANY[:, :3]),
    "target by theta": (xv.separable(decays, lambda theta, data: data["y"] + 0 * theta[0], data={"t": T, "y": Y}), Y),
    "target of chunks by theta": (
        xv.separable(
            lambda theta, data: decays(theta, data),
            xv.RowChunks.cut({"t": T, "y": Y}, lambda theta, data: data["y"] + 0 * theta[0], 13),
        ),
        Y,
    ),
    "two levels": (
        xv.bilevel(
            lower=xv.Level(lambda theta, data: decays(theta, data)[:20, :], Y[:20], lam=0.1),
            upper=xv.Level(lambda theta, data: decays(theta, data)[20:, :], Y[20:]),
            data={"t": T},
        ),
        Y[20:],
    ),
}


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_fitted_values_and_residuals_are_products_with_w(backend, subtests):
    for kind, (problem, y) in PROBLEMS.items():
        fit = xv.solve(problem, RATES, over=BOX, max_iter=3, backend=backend)
        rows = slice(20, None) if kind == "two levels" else slice(None)
        want = np.exp(-np.outer(T, fit.theta))[rows] @ fit.w
        with subtests.test(kind):
            assert fit.fitted.shape == fit.residuals.shape == y.shape
            np.testing.assert_allclose(fit.fitted, want, rtol=1e-13, atol=1e-14)
            np.testing.assert_allclose(fit.residuals, y - want, atol=1e-13)


def test_the_lower_level_at_a_theta_is_least_squares(subtests):
    for kind, (problem, _) in PROBLEMS.items():
        w, value = xv.solve_lower(problem, RATES)
        same = xv.solve(problem, RATES, over=BOX, max_iter=0)
        with subtests.test(kind):
            np.testing.assert_allclose(w, same.w, rtol=1e-10, atol=1e-12)
            np.testing.assert_allclose(value, same.value, rtol=1e-12)


def test_weights_that_are_not_unique_are_said():
    problem = xv.separable(decays, np.ones(T.size), data={"t": T})
    with pytest.warns(RuntimeWarning, match="w is not finite.*linearly dependent.*SVD"):
        assert np.isnan(xv.solve_lower(problem, np.array([2.0, 2.0])).w).all()


def test_predictions_are_of_other_data_in_the_framework_of_theta():
    torch = xv.backends.get("torch")
    fit = xv.solve(PROBLEMS["vector"][0], send(torch, RATES), over=BOX, max_iter=2)
    t = np.linspace(-1.0, 5.0, 7)
    found = fit.predict({"t": t})
    assert xv.backends.of(found) is torch
    assert error(host(found), np.exp(-np.outer(t, host(fit.theta))) @ host(fit.w)) < 1e-14


def test_entries_without_weight_may_be_missing():
    gaps = np.where(np.arange(T.size) % 5 == 0, np.nan, Y)
    fit = xv.solve(xv.separable(decays, gaps, data={"t": T}, weights=~np.isnan(gaps)), RATES, over=BOX)
    assert np.isfinite(fit.fitted).all()
    np.testing.assert_array_equal(np.isnan(fit.residuals), np.isnan(gaps))


def test_a_result_without_its_problem_takes_it_again(tmp_path):
    problem, _ = PROBLEMS["vector"]
    fit = xv.solve(problem, RATES, over=BOX, max_iter=2)
    fit.save(tmp_path / "fit.npz")
    loaded = xv.Result.load(tmp_path / "fit.npz")
    for other in (loaded, pickle.loads(pickle.dumps(loaded))):
        for use in (lambda r: r.fitted, lambda r: r.residuals, lambda r: r.predict({"t": T}), lambda r: r.statistics()):
            with pytest.raises(ProblemError, match=r"result\.attach\(problem\)"):
                use(other)
        found = other.attach(problem)
        np.testing.assert_array_equal(found.fitted, fit.fitted)
        np.testing.assert_array_equal(found.statistics().theta_stderr, fit.statistics().theta_stderr)
        with pytest.raises(ProblemError, match=r"got another lower\.y"):
            other.attach(xv.separable(decays, Y + 1.0, data={"t": T}, lam=0.1))
        with pytest.raises(ProblemError, match=r"model functions of the solve; got an objective"):
            other.attach(replace(problem, lower=replace(problem.lower, M=lambda *given: decays(*given) ** 2)))


def test_data_that_has_changed_since_the_solve_is_refused():
    t = T.copy()
    fit = xv.solve(xv.separable(decays, Y, data={"t": t}), RATES, over=BOX, max_iter=1)
    t[0] = 7.0
    with pytest.raises(ProblemError, match="as it was solved"):
        _ = fit.residuals


def test_data_and_weights_that_do_not_fit_are_refused():
    fit = xv.solve(PROBLEMS["vector"][0], RATES, over=BOX, max_iter=1)
    with pytest.raises(ModelError, match="model function failed"):
        fit.predict({"x": T})
    for ask in (fit.predict, fit.band):
        with pytest.raises(ProblemError, match=r"with k = 1, one for each.*got \(5, 1, 2\)"):
            ask({"t": T[:5, None]})
        with pytest.raises(ProblemError, match=r"data must hold data\['t'\] as the problem's do; got one array"):
            ask(T[:5])
    with pytest.raises(ProblemError, match="w must have 2 rows"):
        predict(PROBLEMS["vector"][0], RATES, np.ones(3), {"t": T})


def jacobian(fit, t):
    M = np.exp(-np.outer(t, fit.theta))
    return np.concatenate([-t[:, None] * M * fit.w, M], axis=1)


@pytest.mark.parametrize("name", HOST_BACKENDS)
def test_a_band_is_the_spread_of_the_model_at_other_data(name):
    backend, far = xv.backends.get(name), np.array([0.0, 0.3, 5.0])
    weights = rng(3).uniform(0.5, 2.0, T.size)
    problem = xv.separable(decays, Y, data={"t": T}, weights=weights)
    with backend.scope("float64"):
        fit = xv.solve(problem, send(backend, np.array([0.8, 3.0])), over=BOX, tol=1e-9)
        bands = [fit.band({"t": far}, 0.9), fit.band({"t": far}, 0.9, prediction=True, weights=1), fit.band()]
        same = fit.band({"t": T}, 0.95, absolute_sigma=True)
    plain = xv.solve(problem, np.array([0.8, 3.0]), over=BOX, tol=1e-9)
    s, J = plain.statistics(), jacobian(plain, far)
    error2 = np.sum((J @ s.covariance) * J, axis=1)
    quantile = scipy.stats.t.ppf(0.95, s.dof)
    for band, variance in zip(bands[:2], (0.0, s.variance), strict=True):
        width = quantile * np.sqrt(error2 + variance)
        np.testing.assert_allclose(band.value, plain.predict({"t": far}), rtol=1e-6)
        np.testing.assert_allclose(band.upper - band.value, width, rtol=1e-5)
        np.testing.assert_allclose(band.value - band.lower, width, rtol=1e-5)
    own = bands[2]
    np.testing.assert_allclose(own.upper - own.value, scipy.stats.t.ppf(0.975, s.dof) * s.fitted_stderr(), rtol=1e-5)
    known = plain.statistics(absolute_sigma=True)
    np.testing.assert_allclose(same.upper - same.value, scipy.stats.norm.ppf(0.975) * known.fitted_stderr(), rtol=1e-5)


def test_new_observations_have_the_noise_of_their_weights():
    sigma = np.linspace(0.01, 0.05, T.size)
    fit = xv.solve(xv.separable(decays, Y, data={"t": T}, weights=sigma**-2), RATES, over=BOX)
    mean = fit.band(absolute_sigma=True)
    for band in (
        fit.band(prediction=True, absolute_sigma=True),
        fit.band({"t": T}, prediction=True, absolute_sigma=True, weights=sigma**-2),
    ):
        noise = np.sqrt((band.upper - band.value) ** 2 - (mean.upper - mean.value) ** 2)
        np.testing.assert_allclose(noise, scipy.stats.norm.ppf(0.975) * sigma, rtol=1e-6)
    for given, why in (
        ({}, "needs their weights.* or 1 / variance .* without data the band is at the problem.s own"),
        ({"weights": sigma[1:]}, "weights must be positive numbers of shape"),
        ({"weights": 0.0}, "weights must be positive"),
        ({"weights": 1.0, "prediction": False}, "without prediction=True"),
    ):
        with pytest.raises(ProblemError, match=why):
            fit.band({"t": T}, **{"prediction": True, **given})
    # of matrices by entry; where data are left out the noise is unknown
    weights = rng(7).integers(0, 3, (T.size, 2)).astype(float)
    many = xv.solve(xv.separable(decays, np.stack([Y, Y], axis=1), data={"t": T}, weights=weights), RATES, over=BOX)
    np.testing.assert_array_equal(np.isinf(many.band(prediction=True).upper), weights == 0)


@pytest.mark.parametrize("name", HOST_BACKENDS)
def test_a_model_may_ask_the_data_for_their_namespace(name):
    def by_data(theta, data):
        xp = xv.array_namespace(data["t"])
        return xp.exp(-xp.expand_dims(data["t"], axis=1) * theta)

    backend, far = xv.backends.get(name), {"t": np.array([0.0, 0.3, 5.0])}
    with backend.scope("float64"):
        start = send(backend, np.array([0.8, 3.0]))
        asked, usual = (xv.solve(xv.separable(M, Y, data={"t": T}), start, over=BOX) for M in (by_data, decays))
        for found, want in zip(asked.band(far), usual.band(far), strict=True):
            np.testing.assert_array_equal(found, want)
        asked.plot_fit()


def test_a_band_is_infinite_where_the_data_do_not_determine_the_prediction():
    """The data have one rate, the product of two parameters; other data ask for the second one too."""

    def model(theta, data):
        xp = xv.array_namespace(theta)
        return xp.exp(-xp.expand_dims(data["t"] * theta[0] * theta[1] + data["u"] * theta[1], axis=1))

    y = np.exp(-2.0 * T) + 0.01 * rng(6).normal(size=T.size)
    problem = xv.separable(model, y, data={"t": T, "u": 0 * T})
    fit = xv.solve(problem, np.array([1.5, 1.5]), over=xv.sets.Box(0.1, 9.0))
    assert np.all(np.isinf(fit.statistics().theta_stderr))
    one = xv.solve(xv.separable(decays, y, data={"t": T}), np.array([1.5]), over=xv.sets.Box(0.1, 9.0))
    found = fit.band({"t": np.array([0.5, 3.0, 0.5]), "u": np.array([0.0, 0.0, 1.0])})
    want = one.band({"t": np.array([0.5, 3.0])})
    width, known = found.upper - found.value, want.upper - want.value
    # one more parameter is counted than the data determine
    np.testing.assert_allclose(width[:2], known, rtol=0.02)
    assert np.isinf(width[2])


def test_bands_of_many_right_hand_sides_and_what_has_none():
    y = np.exp(-np.outer(T, RATES)) @ rng(4).normal(size=(2, 3)) + 0.01 * rng(5).normal(size=(T.size, 3))
    fit = xv.solve(xv.separable(decays, y, data={"t": T}), RATES, over=BOX)
    found, s = fit.band(), fit.statistics()
    for j in range(3):
        width = scipy.stats.t.ppf(0.975, s.dof) * s.fitted_stderr(j)
        np.testing.assert_allclose(found.upper[:, j] - found.value[:, j], width, rtol=1e-7)
    robust = xv.solve_robust(xv.separable(decays, Y, data={"t": T}), RATES, loss=xv.losses.Huber(0.01))
    assert np.all(robust.band().upper > robust.band().lower)
    for call, why in (
        (lambda: fit.band(level=95), "level must be"),
        (lambda: fit.band(prediction="yes"), "prediction must be True or False"),
        (lambda: robust.band(prediction=True), "noise of least squares"),
    ):
        with pytest.raises(ProblemError, match=why):
            call()
    with pytest.raises(ModelError):
        fit.band({"x": T})


def test_a_band_of_complex_weights_has_the_error_of_each_part():
    y = Y + 1j * Y[::-1] + 0.05j * rng(1).normal(size=T.size)
    fit = xv.solve(xv.separable(decays, y, data={"t": T}), RATES)
    s, found = fit.statistics(), fit.band()

    def parts(theta, w):
        xp = xv.array_namespace(w)
        x = xp.astype(xp.exp(-theta * T[7]), w.dtype) @ w
        return xp.stack([xp.real(x), xp.imag(x)])

    width = (found.upper - found.value)[7] / scipy.stats.t.ppf(0.975, s.dof)
    np.testing.assert_allclose([width.real, width.imag], s.propagate(parts).stderr, rtol=1e-6)


def test_complex_data_with_real_weights_have_intervals_and_a_band_for_each_part():
    """As the same problem in real numbers, real parts above imaginary ones."""
    f = np.linspace(0, 10, 200)
    y = 10 * np.cos(4 * f) + 5j * np.sin(4 * f) + 0.1 * (rng(0).normal(size=200) + 1j * rng(1).normal(size=200))

    def parts(p, f):
        xp = xv.array_namespace(p)
        zero = 0 * f
        return xp.stack([xp.cos(p * f), zero], axis=1), xp.stack([zero, xp.sin(p * f)], axis=1)

    def M(p, f):
        re, im = parts(p, f)
        return re + 1j * im

    def both(p, f):
        return xv.array_namespace(p).concat(parts(p, f))

    fit = xv.solve(xv.separable(M, y, data=f, W=xv.lower.Bounded(-np.inf, np.inf)), 4.02)
    real = xv.solve(xv.separable(both, np.concatenate([y.real, y.imag]), data=f), 4.02)
    one, other = fit.interval(0.95), real.interval(0.95)
    np.testing.assert_allclose(one.upper - one.lower, other.upper - other.lower, rtol=1e-6)
    for method in ("profile", xv.statistics.Bootstrap(20), xv.statistics.Bootstrap(20, parametric=True)):
        one, other = fit.interval(0.95, method), real.interval(0.95, method)
        np.testing.assert_allclose(one.upper, other.upper, rtol=1e-6)
    for prediction in (False, True):
        band, wanted = fit.band(level=0.9, prediction=prediction), real.band(level=0.9, prediction=prediction)
        for got, want in zip(band, wanted, strict=True):
            np.testing.assert_allclose(np.concatenate([got.real, got.imag]), want, rtol=1e-6, atol=1e-8)


def test_a_result_is_saved_to_a_path():
    fit = xv.solve(PROBLEMS["vector"][0], RATES, over=BOX, max_iter=1)
    with pytest.raises(ProblemError, match="writes to a path; got BytesIO"):
        fit.save(io.BytesIO())


def test_an_objective_beyond_the_largest_number_is_no_success():
    huge = 1e200 * Y
    fit = xv.solve(xv.separable(decays, huge, data={"t": T}), RATES, over=BOX)
    problem = xv.many.lifted(xv.separable(decays, xv.Each(np.stack([huge, Y])), data={"t": T}))
    many = xv.solve_many(problem, np.stack([RATES] * 2), BOX)
    assert fit.status is xv.Status.NON_FINITE
    assert many.status.tolist() == [xv.Status.NON_FINITE.code, xv.Status.CONVERGED.code]
