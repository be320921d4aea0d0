"""What follows from a fit by a loss: Fisher's information, deviances, means, profiles and files."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
import scipy.optimize
import scipy.stats
from scipy.special import expit, xlogy

import xvarpro as xv
from xvarpro.errors import ProblemError
from xvarpro_conformance.members import together

from .support import HOST_BACKENDS, error, rng

T = np.linspace(0.0, 2.0, 120)
LOGISTIC, LOG_POISSON = xv.losses.Logistic(), xv.losses.LogPoisson()


def design(theta, t):
    xp = xv.array_namespace(theta)
    return xp.stack([xp.exp(-theta[0] * t), xp.ones_like(t)], axis=1)


def target(loss, seed=0):
    draw, z = rng(seed), design(np.array([1.5]), T) @ np.array([3.0, -1.0])
    if isinstance(loss, xv.losses.Logistic):
        return (draw.random(T.size) < expit(z)).astype(float)
    if isinstance(loss, xv.losses.LogPoisson | xv.losses.Poisson):
        return draw.poisson(np.exp(z)).astype(float)
    if isinstance(loss, xv.losses.SquaredHinge):
        return 2.0 * (draw.random(T.size) < expit(z)) - 1
    return z + 0.1 * draw.normal(size=T.size)


def stated(loss, y=None, **keywords):
    return xv.separable(design, target(loss) if y is None else y, data=T, loss=loss, **keywords)


def solved(loss, y=None, over=None, **keywords):
    return xv.solve(stated(loss, y, **keywords), np.ones(1), over, tol=1e-10)


def jacobian(fit):
    M = design(fit.theta, T)
    return np.stack([-T * M[:, 0] * fit.w[0], *M.T], axis=1)


def mean_and_variance(loss, z):
    p = expit(z) if isinstance(loss, xv.losses.Logistic) else np.exp(z)
    return p, p * (1 - p) if isinstance(loss, xv.losses.Logistic) else p


@pytest.mark.parametrize("loss", [LOGISTIC, LOG_POISSON], ids=repr)
def test_the_covariance_is_the_inverse_of_fishers_information(loss):
    weights = rng(5).integers(0, 3, T.size).astype(float)
    fit = solved(loss, weights=weights)
    J, (mean, variance) = jacobian(fit), mean_and_variance(loss, fit.fitted)
    C = np.linalg.inv(J.T @ ((weights * variance)[:, None] * J))
    s, used = fit.statistics(), weights > 0
    np.testing.assert_allclose(s.covariance, C, rtol=1e-6)
    np.testing.assert_allclose(np.append(s.theta_stderr, s.w_stderr), np.diagonal(C) ** 0.5, rtol=1e-6)
    band = np.einsum("ij,jk,ik->i", J, C, J) ** 0.5
    np.testing.assert_allclose(s.fitted_stderr()[used], band[used], rtol=1e-6)
    assert (s.data, s.parameters) == (used.sum(), pytest.approx(3))
    y = target(loss)
    assert s.chi2 == pytest.approx(np.sum((weights * (y - mean) ** 2 / variance)[used]), rel=1e-8)  # Pearson's
    assert np.isnan(s.r_squared)
    meat = J.T @ ((weights * (y - mean))[:, None] ** 2 * J) * used.sum() / (used.sum() - 3)
    np.testing.assert_allclose(fit.statistics(sandwich=True).covariance, C @ meat @ C, rtol=1e-5)
    spread = fit.statistics(absolute_sigma=False, sandwich=False)
    np.testing.assert_allclose(spread.covariance, C * s.chi2 / s.dof, rtol=1e-6)
    low, high = fit.interval(0.9).lower[0], fit.interval(0.9).upper[0]
    np.testing.assert_allclose((high - low) / 2, scipy.stats.norm.ppf(0.95) * s.theta_stderr[0], rtol=1e-8)


def test_a_linear_model_has_the_hessian_of_the_likelihood():
    """Theta is held: the covariance of w, by differences of the log likelihood."""
    fit = solved(LOGISTIC, over=xv.sets.Box(1.0, 1.0))
    y, M = target(LOGISTIC), design(np.ones(1), T)

    def loss(w):
        return np.sum(np.logaddexp(0, M @ w) - y * (M @ w))

    h, e = 1e-3, np.eye(2)
    at = [[loss(fit.w + h * (a * e[i] + b * e[j])) for a in (1, -1) for b in (1, -1)] for i in (0, 1) for j in (0, 1)]
    H = np.array([pp - pm - mp + mm for pp, pm, mp, mm in at]).reshape(2, 2) / (4 * h * h)
    np.testing.assert_allclose(fit.statistics().covariance[1:, 1:], np.linalg.inv(H), rtol=1e-4)


@pytest.mark.parametrize(
    ("loss", "y", "likelihood"),
    [
        (LOGISTIC, None, lambda y, z: scipy.stats.bernoulli.logpmf(y, expit(z))),
        (LOG_POISSON, None, lambda y, z: scipy.stats.poisson.logpmf(y, np.exp(z))),
    ],
    ids=["logistic", "log_poisson"],
)
def test_the_deviance_is_twice_what_the_likelihood_lacks(loss, y, likelihood):
    fit = solved(loss)
    y, s = target(loss), fit.statistics()
    full = 0.0 if loss == LOGISTIC else scipy.stats.poisson.logpmf(y, y).sum()
    exact = -2 * likelihood(y, fit.fitted).sum()
    assert fit.deviance == s.deviance == pytest.approx(exact + 2 * full)
    assert s.aic == pytest.approx(fit.deviance + 6)
    assert s.bic == pytest.approx(fit.deviance + 3 * np.log(T.size))
    assert f"deviance             {s.deviance:.6g}" in str(fit)
    assert "from the loss as a log likelihood" in str(fit)


def test_shares_with_numbers_of_trials_have_the_deviance_of_binomials():
    n = rng(1).integers(1, 9, T.size)
    y = rng(2).binomial(n, expit(design(np.array([1.5]), T) @ np.array([3.0, -1.0]))) / n
    fit = solved(LOGISTIC, y, weights=n.astype(float))
    p = expit(fit.fitted)
    want = 2 * np.sum(n * (xlogy(y, y) - xlogy(y, p) + xlogy(1 - y, 1 - y) - xlogy(1 - y, 1 - p)))
    assert fit.deviance == pytest.approx(want)


@pytest.mark.parametrize("name", HOST_BACKENDS)
@pytest.mark.parametrize("loss", [LOGISTIC, LOG_POISSON, xv.losses.Huber(0.1)], ids=repr)
def test_means_are_of_the_target_and_predictions_of_the_model(loss, name):
    backend = xv.backends.get(name)
    with backend.scope("float64"):
        fit = xv.solve(stated(loss), backend.asarray(np.ones(1)))
    fitted, mean, residuals = map(backend.to_numpy, (fit.fitted, fit.mean, fit.residuals))
    linked = not isinstance(loss, xv.losses.Huber)
    np.testing.assert_allclose(mean, mean_and_variance(loss, fitted)[0] if linked else fitted, rtol=1e-12)
    np.testing.assert_allclose(residuals, target(loss) - mean, atol=1e-12)
    np.testing.assert_allclose(backend.to_numpy(fit.predict(T[:3])), fitted[:3], rtol=1e-12)
    np.testing.assert_allclose(backend.to_numpy(fit.predict(T[:3], mean=True)), mean[:3], rtol=1e-12)
    assert xv.backends.of(fit.mean) is backend


def classes(seed=0):
    scores = design(np.array([1.5]), T) @ np.array([[3.0, 0.0, -1.0], [-1.0, 0.0, 1.0]])
    return np.eye(3)[np.argmax(scores + rng(seed).gumbel(size=scores.shape), axis=1)]


def information(fit, weights=1.0):
    """On theta and the rows of w, ``sum_i J_i^T (diag(p_i) - p_i p_i^T) J_i``."""
    M, p = design(fit.theta, T), fit.mean
    slope = -T[:, None] * M[:, :1] * fit.w[:1]  # of M w by theta, (m, k)
    J = np.concatenate([slope[:, :, None], np.einsum("ij,ab->iajb", M, np.eye(3)).reshape(T.size, 3, 6)], axis=2)
    H = p[:, :, None] * np.eye(3) - p[:, :, None] * p[:, None, :]
    return np.einsum("iap,iab,ibq->pq", J, np.reshape(weights, (-1, 1, 1)) * H, J)


@pytest.mark.parametrize("lam", [0.0, 0.5])
def test_classes_have_probabilities_a_deviance_and_errors(lam):
    y, weights = classes(), rng(5).integers(0, 3, T.size).astype(float)
    fit = solved(xv.losses.Softmax(), y, lam=lam, weights=weights)
    np.testing.assert_allclose(fit.mean.sum(axis=1), 1.0)
    np.testing.assert_allclose(fit.residuals, y - fit.mean)
    assert fit.deviance == pytest.approx(-2 * np.sum(weights[:, None] * y * np.log(fit.mean)))
    F, s = information(fit, weights), fit.statistics()
    H = F + lam * np.diag([0.0] + [1.0] * 6)
    inverse = np.linalg.pinv(H, rcond=1e-12)
    C = inverse @ F @ inverse
    np.testing.assert_allclose(s.covariance, C, rtol=1e-5, atol=1e-9)
    np.testing.assert_allclose(s.w_stderr, np.diagonal(C)[1:].reshape(2, 3) ** 0.5, rtol=1e-5)
    assert s.parameters == pytest.approx(np.trace(inverse @ F))
    assert s.aic == pytest.approx(fit.deviance + 2 * s.parameters)
    assert s.bic == pytest.approx(fit.deviance + np.log(np.sum(weights > 0)) * s.parameters)
    difference = s.propagate(lambda theta, w: w[0, 0] - w[0, 1])
    assert difference.stderr == pytest.approx((C[1, 1] + C[2, 2] - 2 * C[1, 2]) ** 0.5, rel=1e-5)
    assert "w[1, 2]" in str(fit)
    for given in ({"sandwich": True}, {"absolute_sigma": False}):
        with pytest.raises(ProblemError, match="entries of a row are not independent"):
            fit.statistics(**given)
    with pytest.raises(ProblemError, match="a loss of every entry"):
        fit.band()
    with pytest.raises(ProblemError, match=r"Draw fit\.mean"):
        fit.plot_fit()


def test_two_classes_have_the_errors_of_the_logistic_loss():
    """Whose w is the difference of both columns."""
    y = target(LOGISTIC)
    one, two = solved(LOGISTIC), solved(xv.losses.Softmax(), np.stack([1 - y, y], axis=1))
    s, other = one.statistics(), two.statistics()
    difference = other.propagate(lambda theta, w: w[:, 1] - w[:, 0])
    np.testing.assert_allclose(difference.stderr, s.w_stderr, rtol=1e-5)
    np.testing.assert_allclose(other.theta_stderr, s.theta_stderr, rtol=1e-5)
    assert (other.data, other.dof) == (s.data, pytest.approx(s.dof))
    assert (other.aic, other.bic, other.chi2) == pytest.approx((s.aic, s.bic, s.chi2))


@pytest.mark.parametrize(
    "loss", [xv.losses.Quantile(0.3, 0.1), xv.losses.Custom(lambda mu, y: (mu - y) ** 4)], ids=["quantile", "custom"]
)
def test_other_losses_have_the_sandwich_of_their_own_curvature(loss):
    fit = solved(loss)
    J, y = jacobian(fit), target(loss)
    psi = loss.slope(fit.fitted[:, None], y[:, None], 1.0)[:, 0]
    bend = loss.second(fit.fitted[:, None], y[:, None], 1.0)[:, 0]
    inverse = np.linalg.inv(J.T @ (bend[:, None] * J))
    C = inverse @ (J.T @ (psi[:, None] ** 2 * J)) @ inverse * T.size / (T.size - 3)
    s = fit.statistics()
    np.testing.assert_allclose(s.covariance, C, rtol=1e-5)
    assert np.isnan([s.chi2, s.reduced_chi2, s.r_squared, s.aic, s.deviance]).all()
    assert not any("no more data" in reason for reason in s.reasons)
    for given in ({"absolute_sigma": True}, {"sandwich": False}):
        with pytest.raises(ProblemError, match="are those of the sandwich formula"):
            fit.statistics(**given)


def test_a_robust_loss_of_a_problem_is_that_of_solve_robust():
    y = target(None)
    y[::9] += 2.0
    fit = xv.solve(stated("huber", y), np.ones(1))
    robust = xv.solve_robust(xv.separable(design, y, data=T), np.ones(1), loss="huber")
    assert fit.loss == robust.loss
    assert fit.loss.scale == pytest.approx(1.345 * np.median(np.abs(fit.residuals)) / 0.6744897501960817, rel=5e-3)
    np.testing.assert_array_equal(fit.theta, robust.theta)
    np.testing.assert_array_equal(fit.weights, robust.weights)
    np.testing.assert_array_equal(fit.statistics().covariance, robust.statistics().covariance)
    again = xv.solve(stated("huber", y), fit)
    assert again.loss == fit.loss
    level = xv.Level(design, y, loss="huber")
    with pytest.raises(ProblemError, match="two levels must have a scale"):
        xv.bilevel(lower=level, upper=level)


def test_a_bound_next_to_predictions_of_zero_has_its_multiplier():
    """Rows that nothing but the background reaches: Fisher's information of it is 1 / mu there, up to 1e34."""

    def M(theta, t):
        xp = xv.array_namespace(theta)
        return xp.stack([xp.exp(-(((t - theta[0]) / 0.1) ** 2)), xp.ones_like(t)], axis=1)

    y = np.where(T < 1.0, np.round(20 * np.exp(-(((T - 0.4) / 0.1) ** 2))), 0.0)
    problem = xv.separable(M, y, data=T, loss="poisson", W=xv.lower.Nonnegative())
    fit = xv.solve(problem, np.array([0.42]))
    assert np.min(M(fit.theta, T) @ fit.w) < 1e-20
    assert fit.w[1] == 0.0
    assert not any("multiplier of zero" in reason for reason in fit.statistics().reasons)


CHUNKED = {
    "logistic": LOGISTIC,
    "log_poisson": LOG_POISSON,
    "poisson": xv.losses.Poisson(),
    "huber": xv.losses.Huber(0.15),
    "quantile": xv.losses.Quantile(0.3, 0.1),
    "softmax": xv.losses.Softmax(),
    "squares": None,
}


def weights_of(data):
    return data["weights"]


def design_of(theta, data):
    return design(theta, data["t"])


@pytest.mark.parametrize("lam", [0.0, 0.05])
@pytest.mark.parametrize(("name", "k"), [(name, k) for name in CHUNKED for k in (1, 2)])
def test_rows_in_chunks_have_the_statistics_of_all_rows_at_once(name, k, lam):
    loss, marked, weights = CHUNKED[name], xv.Samples(T) if lam else T, rng(3).integers(0, 3, T.size) + 0.5
    weights[::9] = 0.0
    y = np.stack([target(loss), target(loss, seed=1)], axis=1)
    if name == "softmax":
        y = np.eye(k + 1)[rng(4).integers(0, k + 1, T.size)]
    elif name == "poisson":  # whose mean is positive
        y = rng(0).poisson(10 * design(np.array([1.5]), T) @ np.ones((2, 2))).astype(float)
    y = y if k > 1 or name == "softmax" else y[:, 0]
    whole = xv.solve(xv.separable(design, y, data=marked, weights=weights, loss=loss, lam=lam), np.ones(1))
    parts = [slice(i, i + 25) for i in range(0, T.size, 25)]
    rows = xv.RowChunks([({"t": T[p], "weights": weights[p]}, y[p]) for p in parts])
    problem = xv.separable(design_of, rows, weights=weights_of, loss=loss, lam=lam)
    fit = replace(xv.solve(problem, whole.theta, max_iter=0), theta=whole.theta, status=whole.status, _w=whole.w)
    if loss is not None and loss.likelihood:
        assert fit.deviance == pytest.approx(whole.deviance, rel=1e-9)
    alone = name != "softmax" and (k == 1 or loss is not None)
    for given in ({}, {"sandwich": True})[: 1 + alone]:
        found, want = fit.statistics(**given), whole.statistics(**given)
        for each in ("covariance", "theta_stderr", "w_stderr", "data", "parameters", "dof", "chi2", "aic", "bic"):
            np.testing.assert_allclose(getattr(found, each), getattr(want, each), rtol=1e-8, atol=1e-14, err_msg=each)
        assert found.w_names == want.w_names
    if k == 1:
        assert found.r_squared == pytest.approx(want.r_squared, rel=1e-9, nan_ok=True)


def test_a_fit_to_chunks_by_a_loss_has_a_band_and_a_report():
    y = target(LOGISTIC)
    chunks = xv.RowChunks([(T[:50], y[:50]), (T[50:], y[50:])])
    fit, whole = xv.solve(xv.separable(design, chunks, loss="logistic"), np.ones(1), tol=1e-10), solved(LOGISTIC)
    np.testing.assert_allclose(fit.band(T[:5]), whole.band(T[:5]), rtol=1e-4)
    assert "deviance" in str(fit)


def test_members_of_a_group_have_the_statistics_of_all_rows():
    y = target(None)
    loss = xv.losses.Huber(0.15)
    whole = xv.solve(stated(loss, y), np.ones(1), max_iter=0)

    def found(group):
        own = slice(60 * group.rank, 60 * group.rank + 60)
        problem = xv.separable(design, xv.RowChunks([(T[own], y[own])], group=group), loss=loss)
        return xv.solve(problem, np.ones(1), max_iter=0).statistics().covariance

    for C in together(2, found):
        np.testing.assert_allclose(C, whole.statistics().covariance, rtol=1e-9)


def test_what_has_no_meaning_is_said():
    hinge = solved(xv.losses.SquaredHinge())
    assert np.isfinite(hinge.statistics().theta_stderr).all()
    with pytest.raises(ProblemError, match="says nothing of probabilities"):
        _ = hinge.mean
    with pytest.raises(ProblemError, match="a robust loss, or Poisson, gives to residuals; got SquaredHinge"):
        _ = hinge.weights
    logistic = solved(LOGISTIC)
    with pytest.raises(ProblemError, match=r"bootstraps must be of least squares.* got a fit by Logistic"):
        logistic.interval(0.9, "bootstrap")
    with pytest.raises(ProblemError, match="needs the noise of least squares"):
        logistic.band(prediction=True)
    with pytest.raises(ProblemError, match="ridge paths compare residuals"):
        xv.statistics.ridge_path(stated(LOGISTIC), np.ones(1), lam=[0.1, 1.0, 10.0])
    with pytest.raises(ProblemError, match="got the loss Logistic"):
        xv.statistics.linear_theory(stated(LOGISTIC), np.ones(1))
    with pytest.raises(ProblemError, match="got a fit of least squares"):
        _ = xv.solve(xv.separable(design, target(None), data=T), np.ones(1)).weights


def test_a_profile_ends_where_the_deviance_has_risen():
    fit = solved(LOG_POISSON, over=xv.sets.Box(0.01, 20.0))
    y = target(LOG_POISSON)

    def rise(rate):
        M = design(np.array([rate]), T)

        def deviance(w):
            mu = np.exp(M @ w)
            return 2 * np.sum(mu - y - xlogy(y, mu) + xlogy(y, y)), 2 * M.T @ (mu - y)

        return scipy.optimize.minimize(deviance, fit.w, jac=True, tol=1e-12).fun - fit.deviance - 3.841458820694124

    found, best = fit.interval(0.95, "profile"), float(fit.theta[0])
    ends = [scipy.optimize.brentq(rise, best, best + side) for side in (-0.9 * best, 3.0)]
    np.testing.assert_allclose([found.lower[0], found.upper[0]], ends, rtol=5e-4)
    assert found.notes == []


def test_figures_show_the_mean_beside_the_target():
    fit, y = solved(LOGISTIC), target(LOGISTIC)
    top, below = fit.plot_fit().axes
    lines = {line.get_label(): line for line in top.lines}
    np.testing.assert_allclose(lines["data"].get_ydata(), y, atol=1e-12)
    assert 0 < lines["fit"].get_ydata().min() < lines["fit"].get_ydata().max() < 1
    pearson = (y - fit.mean) / np.sqrt(fit.mean * (1 - fit.mean))
    np.testing.assert_allclose(below.lines[1].get_ydata(), pearson, rtol=1e-9)
    np.testing.assert_allclose(fit.plot_residuals().axes[0].lines[1].get_ydata(), pearson, rtol=1e-9)


def test_the_best_ridge_of_a_likelihood_predicts_best():
    cv = xv.statistics.cross_validate(stated(LOGISTIC), np.ones(1), xv.sets.Box(1.0, 1.0), lam=(1e-3, 1e3), folds=4)
    assert cv.fit.loss == LOGISTIC
    assert cv.error < cv.errors.max()
    assert cv.error == pytest.approx(cv.errors.min(), rel=0.05)


@pytest.mark.parametrize(
    "loss", [LOGISTIC, xv.losses.Quantile(0.2, 0.05), xv.losses.Custom(lambda mu, y: (mu - y) ** 4)]
)
def test_files_keep_the_loss_where_they_can(loss, tmp_path):
    problem = stated(loss)
    fit = xv.solve(problem, np.ones(1))
    fit.save(tmp_path / "fit.npz")
    loaded = xv.Result.load(tmp_path / "fit.npz")
    assert loaded.loss == (None if isinstance(loss, xv.losses.Custom) else loss)
    s = loaded.attach(problem).statistics()
    np.testing.assert_array_equal(s.covariance, fit.statistics().covariance)
    assert xv.verify(tmp_path / "fit.npz", problem).ok
    if loaded.loss is not None:
        plain = xv.separable(design, problem.lower.y, data=T)
        np.testing.assert_array_equal(loaded.attach(plain).statistics().covariance, s.covariance)
        other = stated(xv.losses.Poisson() if loss == LOGISTIC else LOGISTIC, problem.lower.y)
        for found in (loaded, fit):
            with pytest.raises(ProblemError, match=r"got another lower\.loss"):
                found.attach(other)
        assert pickle.loads(pickle.dumps(fit)).loss == loss


def test_a_solve_by_a_loss_goes_on_from_its_checkpoint(tmp_path):
    y = target(None)
    y[::9] += 2.0
    whole = xv.solve(stated("huber", y), np.ones(1), tol=1e-10)
    part = xv.solve(stated("huber", y), np.ones(1), tol=1e-10, max_iter=1, checkpoint=tmp_path / "c.npz")
    ends = [
        xv.solve(stated("huber", y), np.ones(1), tol=1e-10, resume=tmp_path / "c.npz"),
        xv.solve(stated("huber", y), part, tol=1e-10),
    ]
    for end in ends:
        assert end.loss == whole.loss
        np.testing.assert_array_equal(end.theta, whole.theta)
    with pytest.raises(ProblemError, match=r"lower\.loss"):
        xv.solve(stated(xv.losses.SoftL1(part.loss.scale), y), np.ones(1), tol=1e-10, resume=tmp_path / "c.npz")


@pytest.mark.parametrize("unit", [1e-40, 1e6])
def test_units_of_a_target_change_no_robust_fit(unit):
    y = target(None)
    one, other = (solved(xv.losses.SoftL1(0.05 * c), c * y) for c in (1.0, unit))
    assert error(other.theta, one.theta) < 1e-8
    assert error(other.w / unit, one.w) < 1e-8
    assert other.value == pytest.approx(unit**2 * one.value, rel=1e-9)
