"""Robust fits: the optimum of the joint problem by SciPy, likelihoods, certificates, units, and every framework."""

import pickle
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.optimize
import scipy.special
import scipy.stats

import xvarpro as xv
from xvarpro.errors import ProblemError
from xvarpro.statistics import weighting

from .support import decays, error, rng, with_offset

T = np.linspace(0.0, 2.0, 60)
START = np.array([0.5, 8.0])
LOSSES = {"huber": xv.losses.Huber, "soft_l1": xv.losses.SoftL1, "cauchy": xv.losses.Cauchy}
TIGHT = {"xtol": 1e-15, "ftol": 1e-15, "gtol": 1e-15}
every_loss = pytest.mark.parametrize("name", LOSSES)


def design(rates):
    return np.exp(-np.outer(T, rates))


def outliers(k=0, seed=0):
    """Two decays with noise, and a tenth of the entries far off."""
    draw = rng(seed)
    w = draw.uniform(1.0, 2.0, (2, k or 1))
    y = design([1.0, 5.0]) @ w + 0.02 * draw.normal(size=(T.size, k or 1))
    far = draw.random(y.shape) < 0.1
    y = y + far * draw.uniform(0.3, 1.0, y.shape)
    return y if k else y[:, 0]


def stated(y, **keywords):
    return xv.separable(decays, y, data={"t": T}, **keywords)


def by_scipy(y, fit, name, scale, weights=1.0, bounds=(-np.inf, np.inf)):
    """Theta and w of the joint problem, from close to the fit, and its cost."""
    from scipy.optimize import least_squares

    shape = fit.w.shape
    low = np.append(np.full(2, bounds[0]), np.full(fit.w.size, -np.inf))
    high = np.append(np.full(2, bounds[1]), np.full(fit.w.size, np.inf))

    def residual(x):
        return (np.sqrt(weights) * (design(x[:2]) @ x[2:].reshape(shape) - y)).ravel()

    near = np.concatenate([fit.theta, fit.w.ravel()]) * (1 + 1e-3 * np.arange(2 + fit.w.size))
    found = least_squares(residual, np.clip(near, low, high), bounds=(low, high), loss=name, f_scale=scale, **TIGHT)
    return found.x[:2], found.x[2:].reshape(shape), found.cost


def profile(y, theta, w, name, scale, lam=0.0):
    """The robust objective at theta, with the best w that a general minimiser finds from w."""
    from scipy.optimize import minimize

    rho = {
        "huber": lambda z: np.where(z <= 1, z, 2 * np.sqrt(np.maximum(z, 1)) - 1),
        "soft_l1": lambda z: 2 * (np.sqrt(1 + z) - 1),
        "cauchy": np.log1p,
    }[name]

    def f(v):
        return 0.5 * scale**2 * np.sum(rho(((design(theta) @ v - y) / scale) ** 2)) + 0.5 * lam * v @ v

    exact = {"xatol": 1e-12, "fatol": 1e-15}
    return min(minimize(f, start, method="Nelder-Mead", options=exact).fun for start in (w, 1.01 * w))


def entrywise(loss, mu, y, weights):
    return loss.unit**2 * np.array([float(loss.value(m, t, w)) for m, t, w in zip(mu, y, weights, strict=True)])


def test_weights_by_row_and_a_mask():
    y, rows = outliers(3), rng(6).uniform(0.5, 2.0, T.size)
    seen = rng(7).random(y.shape) > 0.2
    options = {"loss": xv.losses.Cauchy(0.05), "tol": 1e-9}
    by_row = xv.solve_robust(stated(y, weights=rows), START, **options)
    by_entry = xv.solve_robust(stated(y, weights=np.repeat(rows[:, None], 3, axis=1)), START, **options)
    assert by_row.value == pytest.approx(by_entry.value, rel=1e-14)  # whose plain fit has a design for each column
    holes = xv.solve_robust(stated(np.where(seen, y, np.nan), weights=seen), START, **options)
    theta, w, _ = by_scipy(np.where(seen, y, 0.0), holes, "cauchy", 0.05, seen)
    assert error(holes.theta, theta) < 1e-6
    assert error(holes.w, w) < 1e-6


@every_loss
def test_the_result_is_stationary_with_a_ridge(name):
    """The gradient of the profile, by differences, vanishes; w is given by a general minimiser."""
    y, lam, scale = outliers(), 0.05, 0.1
    fit = xv.solve_robust(stated(y, lam=lam), START, loss=LOSSES[name](scale), tol=1e-9)
    assert profile(y, fit.theta, fit.w, name, scale, lam) == pytest.approx(fit.value, rel=1e-10)
    for e in np.eye(2):
        step = 1e-2 * fit.theta * e
        sides = [profile(y, fit.theta + s * step, fit.w, name, scale, lam) for s in (1, -1)]
        assert min(sides) > fit.value
        assert abs(sides[0] - sides[1]) < 0.1 * (sides[0] + sides[1] - 2 * fit.value)


def test_the_gaps_are_those_of_the_gradient_of_the_profile():
    y, scale, low, high = outliers(seed=3), 0.05, np.array([0.5, 3.0]), np.array([2.0, 9.0])
    over, loss = xv.sets.Box(low, high), xv.losses.SoftL1(scale)
    fit = xv.solve_robust(stated(y), np.array([0.6, 3.5]), over, loss=loss, tol=0.01)
    x = fit.theta

    def f(theta):
        return profile(y, theta, fit.w, "soft_l1", scale)

    g = np.array([f(x + e) - f(x - e) for e in 1e-4 * np.eye(2)]) / 2e-4
    assert fit.gap_A > 1e-5 * fit.value
    assert fit.gap_A == pytest.approx(g @ (x - np.where(g > 0, low, high)), rel=0.05)


def test_the_weights_are_those_of_the_residuals_of_the_result(tmp_path):
    y, theta0 = outliers(), START.copy()
    for x in (y, theta0):
        x.flags.writeable = False
    fit = fitted(y, xv.losses.Huber(0.05), theta0)
    r = np.abs(design(fit.theta) @ fit.w - y)
    np.testing.assert_allclose(fit.weights, np.minimum(1.0, 0.05 / r), rtol=1e-12)
    copy = pickle.loads(pickle.dumps(fit))
    assert copy.loss == xv.losses.Huber(0.05)
    assert np.array_equal(copy.w, fit.w)
    assert "Huber(scale=0.05)" in repr(fit)
    assert fit.n_iter == len(fit.trace.value) - 1
    assert fit.counts.values == fit.counts.factorisations > fit.trace.values[0]
    fit.save(tmp_path / "fit.npz")
    loaded = xv.Result.load(tmp_path / "fit.npz")
    assert loaded.loss == xv.losses.Huber(0.05)
    np.testing.assert_array_equal(loaded.attach(stated(y)).weights, fit.weights)


@every_loss
def test_a_scale_is_that_of_the_residuals_that_are_left(name):
    y = np.exp(-np.outer(T, [1.0, 5.0])) @ np.array([2.0, 1.0]) + 0.02 * rng(0).normal(size=T.size)
    y[4::8] += 1.0  # 12 %, which spoil the plain fit
    plain = xv.solve(stated(y), START)
    fit = xv.solve_robust(stated(y), START, loss=LOSSES[name]())
    spread = np.median(np.abs(fit.residuals)) / 0.6744897501960817
    constant = {"huber": 1.345, "soft_l1": 1.287, "cauchy": 2.385}[name]
    assert fit.loss.scale == pytest.approx(constant * spread, rel=5e-3)
    assert spread < 0.04
    assert error(fit.theta, [1.0, 5.0]) < 0.5 * error(plain.theta, [1.0, 5.0])


@pytest.mark.parametrize("loss", ["huber", xv.losses.Huber(0.07)], ids=repr)
def test_a_start_that_is_better_than_the_plain_fit_is_taken(loss):
    """A spike next to a line draws the plain fit away from the line."""
    x, truth = np.linspace(0.0, 10.0, 60), {"c": np.array([5.0]), "g": 1.0}

    def M(theta, x):
        return xv.models.columns(xv.models.lorentzians(x, theta["c"], theta["g"]), xv.models.polynomials(x, 0))

    y = M(truth, x) @ [4.0, 0.5] + 0.05 * rng(0).normal(size=60)
    y[28] += 3.0
    start, over = {"c": np.array([4.5]), "g": np.array([0.7])}, {"c": (0.0, 10.0), "g": (0.05, 5.0)}
    assert xv.solve(xv.separable(M, y, data=x), start, over=over).theta["g"][0] < 0.3
    fit = xv.solve_robust(xv.separable(M, y, data=x), start, over, loss=loss)
    assert error(fit.theta["g"], [1.0]) < 0.1
    assert 0.05 < fit.loss.scale < 0.09


def test_a_scale_is_of_the_fit_that_is_returned(monkeypatch):
    """Cosmic rays hold rough fits, from which a whole one goes on."""
    x, truth = np.linspace(400.0, 600.0, 201), {"c": np.array([480.0, 520.0]), "g": np.array([6.0, 9.0])}

    def M(theta, x):
        return xv.models.columns(xv.models.lorentzians(x, theta["c"], theta["g"]), xv.models.polynomials(x, 1))

    y = M(truth, x) @ [9000.0, 14000.0, 100.0, 15.0] + 5.0 * rng(10).normal(size=201)
    y[[30, 77, 120, 121]] += [400.0, 900.0, 1500.0, 700.0]
    start, over = {"c": np.array([475.0, 525.0]), "g": np.full(2, 8.0)}, {"c": (400.0, 600.0), "g": (0.5, 40.0)}
    fit = xv.solve_robust(xv.separable(M, y, data=x), start, over, loss=xv.losses.Huber())
    assert fit.loss.scale == pytest.approx(1.345 / 0.6745 * np.median(np.abs(fit.residuals)), rel=1e-3)
    assert error(fit.theta["g"], truth["g"]) < 0.02
    monkeypatch.setattr("xvarpro.fit.scale.RESCALINGS", 2)
    with pytest.warns(RuntimeWarning, match="after 2 fits it still changes: 65.98 is held"):
        xv.solve_robust(xv.separable(M, y, data=x), start, over, loss="huber", max_iter=1)


def test_a_scale_of_data_without_noise(monkeypatch):
    y = 2.0 * design([0.75])[:, 0] + (np.arange(T.size) % 15 == 3)
    fit = fitted(y, xv.losses.Huber(), np.ones(1), (0.0, 20.0))
    assert error(fit.theta, [0.75]) < 1e-8
    assert fit.loss.scale < 5e-8
    monkeypatch.setattr("xvarpro.lower.newton.STEPS", 3)
    with pytest.raises(ProblemError, match="Pass a larger scale="):
        fitted(y, xv.losses.Huber(), np.ones(1), (0.0, 20.0))


@pytest.mark.parametrize("kind", LOSSES.values())
def test_constants_for_a_scale_have_95_percent_efficiency(kind):
    """``E[psi']^2 / E[psi^2]`` on normal residuals, against 1 for the mean."""
    x = np.linspace(-10, 10, 200001)
    density = np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi) * (x[1] - x[0])
    loss, z = kind(kind.tuning), (x / kind.tuning) ** 2
    efficiency = np.sum(loss.psi_prime(z) * density) ** 2 / np.sum((x * loss.weight(z)) ** 2 * density)
    assert efficiency == pytest.approx(0.95, abs=1e-3)


@pytest.mark.parametrize(
    ("loss", "y", "unit", "of_value"),
    [
        (lambda c: xv.losses.Huber(0.05 * c), outliers, 1e6, 2),
        (lambda c: xv.losses.SoftL1(0.05 * c), outliers, 1e-6, 2),
        (lambda c: xv.losses.Cauchy(0.05 * c), outliers, 1e-40, 2),
        (lambda c: xv.losses.Poisson(), lambda: counts(), 1e7, 1),
    ],
)
def test_units_of_the_target_do_not_matter(loss, y, unit, of_value):
    one, other = (fitted(c * y(), loss(c), over=xv.sets.Box(0.0, 20.0)) for c in (1.0, unit))
    assert one.status is other.status
    assert error(other.theta, one.theta) < 1e-8
    assert error(other.w / unit, one.w) < 1e-8
    assert other.value == pytest.approx(unit**of_value * one.value, rel=1e-9)
    assert other.gap == pytest.approx(unit**of_value * one.gap, rel=1e-3)


def test_single_precision():
    y = outliers()
    double = xv.solve_robust(stated(y), START, loss=xv.losses.Huber(0.05))
    problem = xv.separable(decays, y.astype(np.float32), data={"t": T.astype(np.float32)})
    single = xv.solve_robust(problem, START.astype(np.float32), loss=xv.losses.Huber(0.05), tol=1e-3)
    assert single.success
    assert single.theta.dtype == single.w.dtype == single.weights.dtype == np.float32
    assert error(single.theta, double.theta) < 1e-2
    assert single.value == pytest.approx(double.value, rel=1e-4)


@pytest.mark.parametrize(("name", "tol"), [("soft_l1", 0.0), ("huber", 1e-14)])
def test_more_than_the_precision_ends_at_rounding(name, tol):
    fit = fitted(outliers(), LOSSES[name](0.05), tol=tol)
    assert fit.success
    assert error(fit.theta, by_scipy(outliers(), fit, name, 0.05)[0]) < 1e-6


def test_nonnegative_weights_and_a_method_without_a_model():
    y, over, loss = outliers(), xv.sets.Box(0.0, 20.0), xv.losses.Huber(0.05)
    free = fitted(y, loss, over=over, tol=1e-8)
    method = xv.algorithms.ProjectedQuasiNewton()
    fit = xv.solve_robust(stated(y, W=xv.lower.Nonnegative()), START, over, loss=loss, algorithm=method, tol=1e-8)
    assert fit.success
    assert error(fit.theta, free.theta) < 1e-5


def test_a_limit_is_no_success():
    problem = stated(outliers())
    few = xv.solve_robust(problem, START, loss=xv.losses.Cauchy(0.05), max_iter=2)
    assert few.status is xv.Status.MAX_ITER
    assert "Raise max_iter" in few.message
    full = xv.solve_robust(problem, START, loss=xv.losses.Cauchy(0.05))
    assert full.value < few.value


@pytest.mark.parametrize("loss", [xv.losses.Huber(), xv.losses.Huber(0.05), xv.losses.Poisson()], ids=repr)
def test_failures_are_statuses(loss):
    equal = xv.solve_robust(stated(counts()), np.array([2.0, 2.0]), loss=loss)
    assert equal.status is xv.Status.RANK_DEFICIENT
    assert not np.isfinite(equal.value)
    nowhere = xv.separable(lambda theta, data: np.nan * decays(theta, data), counts(), data={"t": T})
    assert xv.solve_robust(nowhere, START, loss=loss).status is xv.Status.NON_FINITE


def test_an_outlier_of_any_size_has_no_pull_on_a_loss_that_forgets():
    y, loss = outliers(), xv.losses.Cauchy(0.05)
    y[3] = 1e9
    without, fit = fitted(y, loss, tol=1e-8, weights=np.arange(T.size) != 3), fitted(y, loss, tol=1e-8)
    assert error(np.sort(fit.theta), np.sort(without.theta)) < 1e-6


def test_a_loss_that_bends_down_leads_to_the_minimum_near_the_rates():
    """Steps are those of least squares above it: others lead to a rate without bounds, or to a higher minimum."""
    y, rates = outliers(), np.array([1.0, 5.0])
    ridged = stated(y, lam=0.05, loss=xv.losses.Cauchy(0.1))
    assert xv.solve(ridged, START).value == pytest.approx(xv.solve(ridged, rates).value, rel=1e-6)
    best = xv.solve(stated(y, loss=xv.losses.Cauchy(0.05)), rates).value
    fit = xv.solve_robust(stated(y), START, xv.sets.Box(0.0, 20.0), loss=xv.losses.Cauchy(0.05))
    assert fit.value == pytest.approx(best, rel=1e-6)


# -- counts ------------------------------------------------------------------------------------------------------------


def counts(seed=0, size=30.0):
    return rng(seed).poisson(design([1.0, 5.0]) @ np.array([2.0, 1.0]) * size).astype(float)


@pytest.mark.parametrize(("weighted", "size"), [(False, 3.0), (True, 300.0)])
def test_counts_have_the_largest_likelihood(size, weighted):
    from scipy.optimize import minimize
    from scipy.special import xlogy

    y, weights = counts(1, size), rng(3).integers(0, 3, T.size).astype(float) if weighted else np.ones(T.size)
    over = xv.sets.Box(0.2, 20.0)
    problem = stated(y, W=xv.lower.Nonnegative(), weights=weights)
    fit = xv.solve_robust(problem, START, over, loss=xv.losses.Poisson(), tol=1e-8)

    def f(x):
        mu = design(x[:2]) @ (size * x[2:])
        return np.sum(weights * (mu - y - xlogy(y, mu) + xlogy(y, y)))

    near = np.concatenate([fit.theta, fit.w / size]) + 0.01
    bounds = [(0.2, 20.0)] * 2 + [(0.0, None)] * 2
    exact = {"xatol": 1e-10, "fatol": 1e-13, "maxiter": 9000, "maxfev": 9000}
    found = minimize(f, near, method="Nelder-Mead", bounds=bounds, options=exact)
    assert fit.success
    assert fit.value <= found.fun * (1 + 1e-10)
    assert fit.value == pytest.approx(found.fun, rel=1e-7)
    np.testing.assert_allclose(fit.weights[weights > 0], 1 / (design(fit.theta) @ fit.w)[weights > 0], rtol=1e-9)


def test_a_model_that_is_not_positive_is_said():
    y = np.where(T < 1, 0.0, 50.0) + counts()
    line = xv.separable(lambda theta, t: xv.array_namespace(t).stack([theta[0] + 0 * t, t], axis=1), y, data=T - 1)
    fit = xv.solve_robust(line, np.array([1.0]), loss=xv.losses.Poisson(), max_iter=20)
    mu = fit.w[0] * fit.theta[0] + fit.w[1] * (T - 1)
    assert fit.status in (xv.Status.NON_FINITE, xv.Status.NO_DESCENT, xv.Status.MAX_ITER) or (mu > 0).all()
    steep = xv.separable(lambda theta, t: theta[0] * t[:, None], np.abs(T - 1), data=T - 1)
    fit = xv.solve_robust(steep, np.array([1.0]), loss=xv.losses.Poisson())
    assert fit.status is xv.Status.NON_FINITE
    assert fit.value == np.inf
    assert "must be positive" in fit.message


def test_a_mean_far_below_a_count_has_the_digits_of_both():
    y = np.array([3.0, 3.0, 3.0, 3.0, 0.0])
    for mu in (np.array([1e-40, 1e-9, 1.5, 3.0 + 1e-9, 1e-30]), np.array([1e-3, 1.4999, 1.5001, 1e9, 2.0])):
        exact = mu - y - y * (np.log(mu) - np.log(np.maximum(y, 1.0)))
        found = [float(xv.losses.Poisson().value(mu[[i]], y[[i]], np.ones(1))) for i in range(5)]
        np.testing.assert_allclose(found, exact, rtol=1e-12, atol=1e-15)


@pytest.mark.filterwarnings("error")
def test_few_counts_whose_first_fit_is_nearly_zero_there():
    t, y = np.linspace(0.0, 4.0, 57), np.zeros(57)
    y[[0, 3, 36]] = 2.0, 1.0, 1.0

    problem = xv.separable(with_offset, y, data=t, W=xv.lower.Nonnegative())
    fits = [xv.solve_robust(problem, np.array([x]), (0.05, 20.0), loss="poisson") for x in (1.8, 15.0)]
    assert all(fit.success for fit in fits)
    assert fits[0].deviance == pytest.approx(fits[1].deviance, rel=1e-6)
    none = xv.solve_robust(
        xv.separable(with_offset, 0 * y, data=t, W=xv.lower.Nonnegative()), np.ones(1), loss="poisson"
    )
    assert none.status is xv.Status.NON_FINITE
    assert "all 0" in none.message


# -- wrong use ---------------------------------------------------------------------------------------------------------


def test_what_it_is_not_for(subtests):
    y = outliers()
    negative = counts()
    negative[7] = -1.0
    huber = xv.losses.Huber(1.0)
    for problem, loss, match in (
        (stated(y), "hubert", "loss must be one of xvarpro.losses.*huber, soft_l1, cauchy"),
        ("problem", xv.losses.Huber(), "problem must come from xv.separable"),
        (xv.bilevel(lower=stated(y).lower, upper=stated(y).lower), xv.losses.Huber(), "two levels"),
        (xv.separable(decays, xv.ColumnChunks(lambda: iter([]))), xv.losses.Huber(), "y as ColumnChunks"),
        (stated(y + 0j), huber, "one of real numbers"),
        (stated(y, weights=np.ones(7)), huber, "weights must have one entry per row"),
        (stated(negative), xv.losses.Poisson(), "counts >= 0 where its weight is not 0; got -1"),
        (stated(np.zeros(T.size)), xv.losses.Huber(), "Pass scale="),
    ):
        with subtests.test(match), pytest.raises(ProblemError, match=match):
            xv.solve_robust(problem, START, loss=loss)
    one = np.ones(1)
    with pytest.raises(ProblemError, match="A fit estimates it"):
        xv.losses.Huber().value(one, one, one)
    loss = xv.losses.Cauchy(0.1)
    problem = xv.separable(lambda theta, t: t[:, None] * theta, 1.0 + T, data=T, loss=loss)
    far = SimpleNamespace(stated=problem, theta=np.ones(1), w=np.ones(1), loss=loss)  # at residuals of 1
    with pytest.raises(ProblemError, match="Pass a larger scale"):
        weighting.least_squares(far)


def test_a_loss_by_name_or_by_class_is_the_loss():
    problem = stated(outliers())
    for name, loss in LOSSES.items():
        fits = [xv.solve_robust(problem, START, loss=given, max_iter=1) for given in (name, loss)]
        want = loss(fits[0].loss.scale)
        assert fits[0].loss == fits[1].loss == want
        np.testing.assert_array_equal(fits[0].theta, fits[1].theta)


@every_loss
def test_scales_are_positive_numbers(name, subtests):
    for scale in (0.0, -1.0, np.nan, np.inf, True, "1"):
        with subtests.test(repr(scale)), pytest.raises(ProblemError, match="scale must be a finite number > 0"):
            LOSSES[name](scale)


def test_a_loss_of_zero_is_an_end():
    fit = fitted(np.zeros(T.size), xv.losses.Huber(0.1))
    assert (fit.success, fit.value) == (True, 0)


@pytest.mark.parametrize("seed", [6])
def test_a_deviance_falls_from_iteration_to_iteration(seed):
    fit = xv.solve_robust(stated(counts(seed, 1.0)), START, loss=xv.losses.Poisson())
    assert fit.success
    assert (np.diff(fit.trace.value) <= 1e-12 * fit.value).all()


def test_a_method_that_does_not_certify_every_iteration_is_certified_at_the_end():
    over, y = xv.sets.Box(0.0, 20.0), outliers(2)
    method = xv.algorithms.StochasticFrankWolfe(batch=1)
    fit = xv.solve_robust(stated(y), START, over, loss=xv.losses.Huber(0.05), algorithm=method, max_iter=3)
    weighted = xv.solve(stated(y, weights=fit.weights), fit.theta, over, max_iter=0)
    assert fit.gap_A == pytest.approx(weighted.gap_A, rel=1e-6)


def joint_jacobian(fit):
    """That of ``M(theta) w`` by theta and w, (m, 2 + n), by hand."""
    M = design(fit.theta)
    return np.concatenate([-T[:, None] * M * fit.w, M], axis=1)


@pytest.mark.parametrize("name", [*LOSSES, "poisson"])
def test_standard_errors_are_those_of_a_sandwich(name):
    """``H^-1 (sum psi^2 J J^T) H^-1`` with the expected curvature in H, times ``m / (m - p)``; weights too."""
    weights = rng(5).uniform(0.5, 2.0, T.size) * (np.arange(T.size) % 9 > 0)
    loss, y = (xv.losses.Poisson(), counts(size=3e3)) if name == "poisson" else (LOSSES[name](0.05), outliers())
    fit = xv.solve_robust(stated(y, weights=weights), START, loss=loss, tol=1e-10)
    J, used, r = joint_jacobian(fit), weights > 0, fit.fitted - y
    psi = fit.weights * weights * r
    if name == "poisson":
        bend = 1 / fit.fitted
    else:
        bend = np.mean(fit.loss.psi_prime(weights * (r / fit.loss.scale) ** 2)[used])
    inverse = np.linalg.inv(J.T @ ((bend * weights)[:, None] * J))
    C = inverse @ (J.T @ (psi[:, None] ** 2 * J)) @ inverse * used.sum() / (used.sum() - 4)
    s = fit.statistics()
    np.testing.assert_allclose(s.covariance, C, rtol=1e-5)
    np.testing.assert_allclose([*s.theta_stderr, *s.w_stderr], np.sqrt(np.diagonal(C)), rtol=1e-5)
    band = np.sqrt(np.einsum("ij,jk,ik->i", J, C, J))
    np.testing.assert_allclose(s.fitted_stderr()[used], band[used], rtol=1e-5)
    alike = fit.statistics(sandwich=False)
    spread = np.sum(psi[used] ** 2 / (bend * weights)[used]) / (used.sum() - 4)
    np.testing.assert_allclose(alike.covariance, inverse * spread, rtol=1e-5)
    assert (s.data, s.dof) == (used.sum(), pytest.approx(used.sum() - 4))
    known = fit.statistics(absolute_sigma=True)
    np.testing.assert_allclose(known.covariance, inverse, rtol=1e-5)


def test_a_sandwich_of_least_squares_is_whites():
    problem = stated(outliers(2)[:, :1].ravel())
    fit = xv.solve(problem, START, tol=1e-9)
    J, r = joint_jacobian(fit), fit.residuals
    inverse = np.linalg.inv(J.T @ J)
    C = inverse @ (J.T @ (r[:, None] ** 2 * J)) @ inverse * T.size / (T.size - 4)
    s = fit.statistics(sandwich=True)
    np.testing.assert_allclose(s.covariance, C, rtol=1e-6)
    np.testing.assert_allclose(s.noise[:, 0], np.abs(r) * (T.size / (T.size - 4)) ** 0.5, rtol=1e-6)
    with pytest.raises(ProblemError, match="must not both be True"):
        fit.statistics(absolute_sigma=True, sandwich=True)


def test_a_robust_fit_has_a_report_and_intervals_but_no_profile():
    y = outliers()
    fit = fitted(y, xv.losses.Huber(0.05))
    np.testing.assert_allclose(fit.fitted, design(fit.theta) @ fit.w, rtol=1e-12)
    np.testing.assert_allclose(fit.residuals, y - fit.fitted, atol=1e-12)
    np.testing.assert_allclose(fit.predict({"t": T[:3]}), fit.fitted[:3], rtol=1e-12)
    s, said = fit.statistics(), fit.report()
    assert [row.stderr for row in said.parameters] == pytest.approx(list(s.theta_stderr))
    assert any("by the sandwich" in note for note in said.notes)
    found = fit.interval(0.95)
    assert np.all((found.lower[:2] < [1.0, 5.0]) & (found.upper[:2] > [1.0, 5.0]))
    for by in (xv.statistics.Profile(), xv.statistics.Bootstrap(10)):
        with pytest.raises(ProblemError, match="of least squares"):
            fit.interval(0.95, by)
    pickled = pickle.loads(pickle.dumps(fit))
    assert pickled.attach(stated(y)).statistics().theta_stderr == pytest.approx(s.theta_stderr)


def test_models_of_counts_are_compared_by_their_likelihood():
    """AIC and BIC differ as -2 times SciPy's log likelihoods do; without a ridge and what has no weight."""
    weights = (np.arange(T.size) % 7 > 0).astype(float)
    y = np.where(weights > 0, counts(2, 6.0), np.nan)
    used, found = weights > 0, []
    for start in (np.array([1.0]), START):
        problem = stated(y, W=xv.lower.Nonnegative(), weights=weights, lam=1e-3)
        fit = xv.solve_robust(problem, start, xv.sets.Box(0.1, 20.0), loss="poisson")
        exact = -2 * scipy.stats.poisson.logpmf(y[used], fit.fitted[used]).sum()
        s = fit.statistics()
        found.append((s.aic - exact - 2 * s.parameters, s.bic - exact - np.log(used.sum()) * s.parameters))
        assert s.deviance == fit.deviance == pytest.approx(s.aic - 2 * s.parameters)
        assert f"deviance             {s.deviance:.6g}" in str(fit)
    saturated = 2 * scipy.stats.poisson.logpmf(y[used], y[used]).sum()
    np.testing.assert_allclose(found, saturated, rtol=1e-12)


@every_loss
def test_a_loss_without_a_likelihood_has_no_information_criteria(name):
    fit = xv.solve_robust(stated(outliers()), START, loss=LOSSES[name](0.05))
    s, said = fit.statistics(), fit.report()
    assert np.isnan([s.aic, s.bic, s.deviance, fit.deviance]).all()
    assert "the loss is no log likelihood of the data: AIC and BIC are not given" in said.notes
    assert "\n  AIC" not in str(said)
    assert "log likelihood" not in str(fit.interval())


def deviance_end(fit, y, entry, sign, level, variance):
    """Where the deviance has risen to the level, by SciPy's minimisation over all that is not held."""
    other, bounds = 1 - entry, [(0.1, 30.0), (0.0, None), (0.0, None)]
    near, tight = np.array([fit.theta[other], *fit.w]), {"xatol": 1e-7, "fatol": 1e-10, "maxiter": 9000, "maxfev": 9000}

    def rise(c):
        def f(x):
            rates = np.array([x[0], x[0]])
            rates[entry] = c
            mu = design(rates) @ x[1:]
            return 2 * np.sum(mu - y - scipy.special.xlogy(y, mu) + scipy.special.xlogy(y, y))

        found = scipy.optimize.minimize(f, near, method="Nelder-Mead", bounds=bounds, options=tight).fun
        return (found - 2 * fit.value) / variance - level

    best, width = fit.theta[entry], fit.statistics(absolute_sigma=True).theta_stderr[entry]
    return scipy.optimize.brentq(rise, best + sign * 0.5 * width, best + sign * 6 * width, rtol=1e-5)


def test_intervals_of_counts_end_where_the_deviance_has_risen():
    y = counts(4, 200.0)
    problem = stated(y)
    fit = xv.solve_robust(problem, START, xv.sets.Box(0.1, 30.0), loss="poisson")
    plain = xv.solve_robust(problem, START, loss="poisson", tol=1e-10)
    found = fit.interval(0.9, "profile", absolute_sigma=True)
    for j in range(2):
        ends = [deviance_end(plain, y, j, sign, scipy.stats.chi2.ppf(0.9, 1), 1.0) for sign in (-1, 1)]
        np.testing.assert_allclose([found.lower[j], found.upper[j]], ends, rtol=5e-4)
    assert found.notes == []


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_intervals_of_counts_with_more_than_their_noise_end_by_their_spread(backend):
    """One rate, whose best amplitude makes the sum of what is expected that of the counts."""
    y = rng(4).poisson(200.0 * np.exp(-T) * rng(5).gamma(20.0, 0.05, T.size)).astype(float)
    start = xv.backends.get(backend).asarray(np.ones(1))
    fit = xv.solve_robust(stated(y), start, xv.sets.Box(0.1, 30.0), loss="poisson", tol=1e-10)
    s = fit.statistics()
    assert s.reduced_chi2 > 2

    def rise(k):
        mu = np.exp(-k * T) * y.sum() / np.exp(-k * T).sum()
        deviance = 2 * np.sum(mu - y - scipy.special.xlogy(y, mu) + scipy.special.xlogy(y, y))
        return (deviance - 2 * fit.value) / s.reduced_chi2 - scipy.stats.t.ppf(0.95, T.size - 2) ** 2

    found, best = fit.interval(0.9, "profile"), float(fit.theta[0])
    ends = [scipy.optimize.brentq(rise, best, best + sign * 6 * s.theta_stderr[0]) for sign in (-1, 1)]
    np.testing.assert_allclose([found.lower[0], found.upper[0]], ends, rtol=5e-4)
    (said,) = found.notes
    assert "times the reduced chi2" in said


def test_profiles_of_counts_have_figures_and_stay_in_their_bounds():
    problem = stated(counts(4, 200.0))
    free = xv.solve_robust(problem, START, loss="poisson")
    top = free.theta[1] + 0.01
    fit = xv.solve_robust(problem, np.array([0.5, 4.0]), xv.sets.Box(0.0, [20.0, top]), loss="poisson")
    found = fit.interval(0.95, "profile", absolute_sigma=True)
    assert found.upper[1] == top
    assert any("does not rise enough to give the upper end of theta[1]" in note for note in found.notes)
    lower = deviance_end(free, problem.lower.y, 1, -1, scipy.stats.chi2.ppf(0.95, 1), 1.0)
    np.testing.assert_allclose(found.lower[1], lower, rtol=1e-3)
    width = (fit.theta[1] - found.lower[1]) / fit.statistics(absolute_sigma=True).theta_stderr[1]
    _, drawn, *_ = fit.plot_profile(1, points=3, width=width, absolute_sigma=True).axes[0].lines
    np.testing.assert_allclose(drawn.get_xdata(), [found.lower[1], fit.theta[1], fit.theta[1] + 0.01], rtol=1e-5)
    np.testing.assert_allclose(drawn.get_ydata()[:2], [-scipy.stats.norm.ppf(0.975), 0.0], rtol=1e-3, atol=1e-2)
    simplex = xv.solve_robust(problem, np.array([0.3, 0.7]), xv.sets.Simplex(1.0), loss="poisson")
    with pytest.raises(ProblemError, match="each entry must be free or in a Box"):
        simplex.interval(0.95, "profile")
    with pytest.raises(ProblemError, match="bootstraps must be of least squares"):
        fit.interval(0.95, "bootstrap")


@pytest.mark.parametrize(("seed", "tol", "lower"), [(5, 1e-2, False), (5, 1e-3, True)])
def test_a_lower_minimum_of_counts_is_more_than_what_the_tolerance_leaves(seed, tol, lower):
    """A fit that ends early leaves a part of its objective to the profile: no other minimum for that."""
    problem = stated(counts(seed, 6.0), W=xv.lower.Nonnegative())
    method = xv.algorithms.ProjectedQuasiNewton()
    fit = xv.solve_robust(problem, START, xv.sets.Box(0.1, 30.0), loss="poisson", algorithm=method, tol=tol)
    found = fit.interval(0.95, "profile", absolute_sigma=True)
    assert any("a lower minimum was found on the way" in note for note in found.notes) == lower


@pytest.mark.parametrize("loss", ["huber", "poisson"])
def test_an_interval_outside_of_the_bounds_offers_what_there_is(loss):
    problem = stated(counts(4, 200.0))
    best = xv.solve_robust(problem, START, loss=loss).theta
    fit = xv.solve_robust(problem, np.array([0.5, 4.0]), xv.sets.Box(0.0, best + 0.01), loss=loss)
    (said,) = [note for note in fit.interval().notes if "leave the bounds of" in note]
    assert ("Profile() respects those of theta" in said) == (loss == "poisson")
    assert "Bootstrap" not in said


def fitted(y, loss, start=START, over=None, tol=1e-6, **keywords):
    return xv.solve_robust(stated(y, **keywords), start, over, loss=loss, tol=tol)


@pytest.mark.parametrize("loss", [*(kind(0.7) for kind in LOSSES.values()), xv.losses.Poisson()], ids=repr)
def test_factor_and_curvature_are_derivatives_of_the_value(loss):
    """The mean of the second ones over the entries that have a weight; of a count, as large as it is expected to be."""
    mu, y, weights = np.array([0.35, 2.0, 5.0, 1.0]), np.array([1.0, 2.1, 0.0, 40.0]), np.array([1.0, 0.5, 2.0, 3.0])
    h = 1e-4
    up, down = (entrywise(loss, mu + step, y, weights) for step in (h, -h))
    np.testing.assert_allclose(loss.factor(mu, y, weights) * weights * (mu - y), (up - down) / (2 * h), rtol=1e-5)
    counts, weights = isinstance(loss, xv.losses.Poisson), np.array([1.0, 0.5, 0.0, 3.0])
    y = mu if counts else np.array([1.0, 2.1, 5.1, 1.4])
    up, at, down = (entrywise(loss, mu + step, y, np.ones(4) if counts else weights) for step in (h, 0.0, -h))
    seen, slopes = weights > 0, (up - 2 * at + down) / h**2
    want = slopes if counts else np.mean(slopes[seen] / weights[seen])
    found = loss.curvature(mu[:, None], y[:, None], weights[:, None])
    np.testing.assert_allclose(found[:, 0], want, rtol=1e-5)
    assert found.shape == (4, 1)


@every_loss
@pytest.mark.parametrize("case", ["vector", "columns", "bound and weights"])
def test_the_optimum_of_the_joint_problem(name, case):
    y = outliers(0 if case == "vector" else 3)
    weights, bounds, start = 1.0, (-np.inf, np.inf), START
    if case == "bound and weights":  # below the second rate
        weights, bounds, start = rng(5).uniform(0.5, 2.0, (T.size, 3)), (0.0, 4.0), np.array([0.5, 3.0])
    given = {} if case != "bound and weights" else {"weights": weights, "over": xv.sets.Box(*bounds)}
    fit = fitted(y, LOSSES[name](0.05), start, tol=1e-9, **given)
    theta, w, cost = by_scipy(y, fit, name, 0.05, weights, bounds)
    assert fit.success
    assert fit.theta.max() == (4.0 if given else pytest.approx(theta.max()))
    assert error(fit.theta, theta) < 1e-6
    assert error(fit.w, w) < 1e-6
    assert fit.value == pytest.approx(cost, rel=1e-9)
    assert fit.weights.shape == y.shape
    assert (np.diff(fit.trace.value) <= 1e-12 * fit.value).all()
