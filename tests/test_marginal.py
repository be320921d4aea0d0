"""Marginal likelihoods: against a hundred digits, SciPy's normal density, other forms of the same problem, in words."""

import math
import pickle

import numpy as np
import pytest
from scipy.stats import multivariate_normal

import xvarpro as xv
from xvarpro_conformance.references.marginal import drawn

EPS = np.finfo(float).eps
T = np.linspace(0.0, 2.0, 60)
THETA = np.array([0.8, 4.0])
NOISES = [0.01, None, xv.InverseGamma(2.0, 1e-3)]
RIDGES = "flat", "number", "rows", "some", "columns", "entries", "theta"


def decays(theta, t):
    xp = xv.array_namespace(theta)
    return xp.exp(-xp.expand_dims(t, axis=1) * theta)


def scaled(theta, data):
    return theta * data["A"]


def target(columns=1, seed=0):
    draw = np.random.default_rng(seed)
    y = decays(np.array([1.0, 5.0]), T) @ draw.uniform(1, 2, (2, columns)) + 0.01 * draw.normal(size=(T.size, columns))
    return y[:, 0] if columns == 1 else y


def chunked(y, **options):
    rows = xv.RowChunks([(T[i : i + 13], y[i : i + 13]) for i in range(0, T.size, 13)])
    return xv.separable(decays, rows, **options)


def differs(a, b, theta=THETA):
    """The relative differences of two densities and of their gradients."""
    (v, g), (w, h) = (m.log_density_and_gradient(theta) for m in (a, b))
    return abs(v - w) / abs(w), np.linalg.norm(g - h) / np.linalg.norm(h)


def random_case(seed):
    """A problem of a random kind: priors, noise, weights, right-hand sides, real or complex, conditions to 1e6."""
    draw = np.random.default_rng(seed)

    def one(*kinds):
        return kinds[draw.integers(len(kinds))]

    wide = draw.random() < 0.15
    ridge = one(*(("number", "entries", "theta") if wide else RIDGES))
    return drawn(
        draw,
        ridge,
        one(1.3, 0.2, None, xv.InverseGamma(2.0, 0.3)),
        complex_=one(True, False),
        shape=(3, 7) if wide else (7, 3),
        columns=one(1, 2, 3),
        condition=10 ** draw.uniform(0, 6),
        Omega=ridge not in ("flat", "some") and one(True, False),
        weights="" if wide else one("", "rows", "entries", "covariance", "toeplitz"),
        mean=ridge != "flat" and one(True, False),
        solver=None if wide else one(None, None, xv.lower.SVD()),
    )


@pytest.mark.parametrize("seed", range(8))
def test_density_and_gradient_have_the_digits_of_their_terms(seed):
    case = random_case(seed)
    value, gradient = case.problem.log_density_and_gradient(case.theta)
    known, size = case.value()
    n, slope = case.A.shape[2], case.gradient()
    assert abs(value + float(known)) <= 1e-12 * float(size) + 4 * n * EPS * case.condition
    assert np.linalg.norm(gradient + slope) <= 100 * EPS * case.condition * np.linalg.norm(slope)
    assert case.problem.log_density(case.theta) == pytest.approx(value, rel=1e-12, abs=1e-12 * float(size))


@pytest.mark.parametrize("lam", [1e-2, np.array([[1.0], [4.0]])])
def test_a_proper_prior_is_a_normal_density_of_the_data(lam):
    """Mean M w0, covariance sigma^2 (I + M (lam)^-1 M^T)."""
    y, w0, sigma, A = target(), np.array([1.0, 0.5]), 0.2, decays(THETA, T)
    C = sigma**2 * (np.eye(T.size) + A @ (A.T / np.broadcast_to(lam, (2, 1))))
    known = multivariate_normal(A @ w0, C).logpdf(y)
    m = xv.marginal(xv.separable(decays, y, data=T, lam=lam), sigma, w0)
    assert float(m.log_density(THETA)) == pytest.approx(known, rel=1e-11)


def test_a_covariance_in_three_forms_is_that_of_the_normal_density():
    y, first = target(), 0.01**2 * 0.6 ** np.arange(T.size)
    C = first[np.abs(np.subtract.outer(range(T.size), range(T.size)))]
    inverse = np.linalg.inv(np.linalg.cholesky(C))

    def whiten(x):
        xp = xv.array_namespace(x)
        return xp.asarray(inverse) @ x

    problem, A = xv.separable(decays, y, data=T, lam=0.5), decays(THETA, T)
    known = multivariate_normal(None, C + A @ A.T / 0.5).logpdf(y)
    for noise in (C, first, (whiten, np.linalg.slogdet(C)[1])):
        m = xv.marginal(problem, noise)
        assert float(m.log_density(THETA)) == pytest.approx(known, rel=1e-10)
        assert differs(m, xv.marginal(problem, C))[1] < 1e-10


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("lam", [0.0, 1e-2])
def test_rows_in_chunks_have_the_density_of_all_of_them(lam, noise, subtests):
    for columns in (1, 3):
        y = target(columns)
        for weights, by_chunk in ((None, None), (1 + T, lambda t: 1 + t)):
            with subtests.test(columns=columns, weighted=weights is not None):
                whole = xv.marginal(xv.separable(decays, y, data=T, lam=lam, weights=weights), noise)
                parts = xv.marginal(chunked(y, lam=lam, weights=by_chunk), noise)
                assert max(differs(parts, whole)) < 1e-11


@pytest.mark.parametrize("noise", NOISES)
def test_compressed_right_hand_sides_count_as_stated(noise):
    y = target(90)
    one, many = (xv.separable(decays, y, data=T, lam=1e-2, compress=c) for c in (True, False))
    assert max(differs(xv.marginal(one, noise), xv.marginal(many, noise))) < 1e-11


def test_a_mean_is_shared_by_right_hand_sides_that_would_be_compressed():
    y, w0 = target(90), np.array([1.0, 0.5])
    m = xv.marginal(xv.separable(decays, y, data=T, lam=2.0), 0.1, w0)
    each = [xv.marginal(xv.separable(decays, y[:, j], data=T, lam=2.0), 0.1, w0).log_density(THETA) for j in range(90)]
    assert float(m.log_density(THETA)) == pytest.approx(sum(each), rel=1e-11)
    (A,) = (decays(THETA, T),)
    w = w0[:, None] + np.linalg.solve(A.T @ A + 2 * np.eye(2), A.T @ (y - (A @ w0)[:, None]))
    np.testing.assert_allclose(xv.solve_lower(m, THETA).w, w, rtol=1e-10)


def test_structured_designs_have_the_density_of_their_arrays():
    y = target()

    def halves(theta, t):
        return xv.operators.BlockDiagonal([decays(theta[:1], t[:20]), decays(theta[1:], t[20:])])

    def dense(theta, t):
        return halves(theta, t).dense()

    for lam in (0.0, 0.3):
        a, b = (xv.marginal(xv.separable(M, y, data=T, lam=lam), 0.1) for M in (halves, dense))
        assert max(differs(a, b)) < 1e-12


@pytest.mark.parametrize("noise", NOISES)
def test_a_solve_ends_where_the_gradient_is_zero(noise):
    m = xv.marginal(xv.separable(decays, target(), data=T, lam=1e-4), noise)
    fit = xv.solve(m, THETA, over=xv.sets.Box(0.1, 20.0), tol=1e-8)
    assert fit.success
    assert fit.value == pytest.approx(-float(m.log_density(fit.theta)), rel=1e-14)
    _, slope = m.log_density_and_gradient(fit.theta)
    assert np.linalg.norm(slope * fit.theta) < 1e-3
    values = [float(m.log_density(fit.theta + 0.05 * d)) for d in (np.eye(2)[0], np.eye(2)[1], -np.ones(2))]
    assert max(values) < -fit.value


def test_a_solve_whose_value_is_nearly_zero_converges():
    """The tolerance is relative to half the number of data where the density is near 1."""
    y = target()
    at = xv.solve(xv.marginal(xv.separable(decays, y, data=T, lam=1e-4), 0.01), THETA, xv.sets.Box(0.1, 20.0))
    unit = math.exp(-at.value / T.size)  # in which the density at the maximum is 1
    m = xv.marginal(xv.separable(decays, unit * y, data=T, lam=1e-4), 0.01 * unit)
    fit = xv.solve(m, THETA, xv.sets.Box(0.1, 20.0))
    assert abs(fit.value) < 1e-4
    assert fit.status is xv.Status.CONVERGED
    np.testing.assert_allclose(fit.theta, at.theta, rtol=1e-4)


def test_targets_of_any_size_are_taken_as_they_are():
    y = target()
    for unit in (1e-9, 1e9):
        m = xv.marginal(xv.separable(decays, unit * y, data=T, lam=1e-4), 0.01 * unit)
        fit = xv.solve(m, THETA, xv.sets.Box(0.1, 20.0))
        assert fit.success
        assert fit.value == pytest.approx(-float(m.log_density(fit.theta)), rel=1e-13)


def test_a_ridge_is_chosen_by_its_likelihood():
    """At the best lam of known noise, ``lam |w|^2 / sigma^2`` is what the data determine of w (MacKay 1992)."""

    def ridge(theta, A):
        return xv.array_namespace(theta).exp(theta[0])

    A = decays(THETA, T)
    m = xv.marginal(xv.separable(lambda theta, A: A + 0 * theta[0], target(), data=A, lam=ridge), 0.01)
    fit = xv.solve(m, np.array([-3.0]), over=xv.sets.Box(-20.0, 5.0), tol=1e-9)
    lam = math.exp(fit.theta[0])
    H = A.T @ A + lam * np.eye(2)
    assert lam * fit.w @ fit.w / 0.01**2 == pytest.approx(np.trace(np.linalg.solve(H, A.T @ A)), rel=1e-5)


def test_many_starts_lead_to_one_minimum():
    m = xv.marginal(xv.separable(decays, target(), data=T, lam=1e-4), 0.01)
    found = xv.multistart(m, THETA, xv.sets.Box(0.5, 10.0), starts=2, canonical=np.sort)
    assert len(found.minima) == 1
    assert found.best.value == pytest.approx(-float(m.log_density(found.best.theta)), rel=1e-12)


REFUSED = {
    "a set of w": (lambda p: {"W": xv.lower.Nonnegative()}, 0.1, None, "closed form"),
    "a loss": (lambda p: {"loss": xv.losses.Huber(1.0)}, 0.1, None, "loss"),
    "a penalty": (lambda p: {"R": lambda theta: theta @ theta, "mu": 1.0}, 0.1, None, "penalty"),
    "no noise": (lambda p: {}, 0.0, None, "standard deviation > 0"),
    "standard deviations": (lambda p: {}, np.full(60, 0.1), None, "weights=1 / sigma"),
    "a mean without a prior": (lambda p: {}, 0.1, np.ones(2), "flat prior"),
    "a gamma density": (lambda p: {}, xv.InverseGamma(0.0, 1.0), None, "InverseGamma must be > 0"),
    "half a pair": (lambda p: {}, (np.linalg.inv,), None, "pair"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_closed_form_is_refused_in_words(name):
    options, noise, prior, words = REFUSED[name]
    with pytest.raises(xv.errors.ProblemError, match=words):
        xv.marginal(xv.separable(decays, target(), data=T, **options(None)), noise, prior)


def test_a_density_that_is_not_finite_is_a_sentence(subtests):
    y = target()
    problem = xv.separable(decays, y, data=T)
    with (
        subtests.test("equal columns, and a flat prior"),
        pytest.raises(xv.errors.ProblemError, match="finite"),
    ):
        xv.marginal(problem, 0.1).log_density(np.ones(2))
    with subtests.test("no residual, and unknown noise"), pytest.raises(xv.errors.ProblemError, match="finite"):
        xv.marginal(xv.separable(decays, 0 * y, data=T)).log_density(THETA)
    with subtests.test("as few data as amplitudes"), pytest.raises(xv.errors.ProblemError, match="more data"):
        xv.marginal(xv.separable(decays, y[:2], data=T[:2])).log_density(THETA)
    iterative = xv.separable(decays, y, data=T, lam=1.0, solver=xv.lower.LSMR())
    with subtests.test("an iterative solver"), pytest.raises(xv.errors.ProblemError, match=r"SVD.* array then"):
        xv.marginal(iterative, 0.1).log_density(THETA)
    for name, options in {"solver": {"solver": xv.lower.SVD()}, "lam": {"lam": np.array([[0.0]])}}.items():
        smooth = xv.separable(decays, y, data=T, **{"lam": 1.0, **options}, Omega=np.array([[1.0, -1.0]]))
        with subtests.test(f"a wide Omega, another {name}"), pytest.raises(xv.errors.ProblemError, match="lam > 0"):
            xv.marginal(smooth, 0.1).log_density(THETA)
    moving = xv.separable(decays, y, data=T, lam=lambda theta, t: 0 * theta[0])
    with subtests.test("a ridge that is 0 at theta"), pytest.raises(xv.errors.ProblemError, match="finite"):
        xv.marginal(moving, 0.1).log_density(THETA)
    ridged = xv.separable(decays, y, data=T, lam=1.0)
    with subtests.test("a mean that is not finite"), pytest.raises(xv.errors.ProblemError, match="prior must be"):
        xv.marginal(ridged, 0.1, np.array([1.0, np.nan])).log_density(THETA)
    with subtests.test("equal columns during a solve"):
        fit = xv.solve(xv.marginal(problem, 0.1), np.ones(2), over=xv.sets.Box(0.5, 2.0))
        assert fit.status is xv.Status.RANK_DEFICIENT


def test_what_takes_least_squares_says_that_this_is_none(subtests):
    m = xv.marginal(xv.separable(decays, target(), data=T, lam=1e-4), 0.01)
    fit = xv.solve(m, THETA, over=xv.sets.Box(0.1, 20.0))
    asked = {
        "statistics": fit.statistics,
        "interval": fit.interval,
        "a derivative of the solution": lambda: xv.implicit.gradient(m, fit, lambda theta, w: theta[0]),
        "a ridge path": lambda: xv.statistics.ridge_path(m, THETA, lam=[1.0, 2.0, 3.0]),
        "folds": lambda: xv.statistics.cross_validate(m, THETA, lam=(1.0, 2.0)),
        "a robust fit": lambda: xv.solve_robust(m, THETA, loss=xv.losses.Huber(1.0)),
        "one more": lambda: xv.marginal(m),
        "rows at random": lambda: xv.solve(m, THETA, algorithm=xv.algorithms.StochasticProjectedGradient(batch=5)),
    }
    for name, ask in asked.items():
        with subtests.test(name), pytest.raises(xv.errors.ProblemError, match="marginal likelihood"):
            ask()
    assert "objective" in str(fit)


def test_a_density_is_pickled_and_a_solve_goes_on_from_a_file(tmp_path):
    data = {"A": decays(THETA, T)}
    m = xv.marginal(xv.separable(scaled, target(), data=data, lam=1e-4), 0.01)
    value = m.log_density(np.array([1.3]))
    assert pickle.loads(pickle.dumps(m)).log_density(np.array([1.3])) == value
    options = {"over": xv.sets.Box(0.1, 5.0), "tol": 1e-10}
    whole = xv.solve(m, np.array([4.0]), **options)
    xv.solve(m, np.array([4.0]), max_iter=2, checkpoint=tmp_path / "half", **options)
    assert xv.solve(m, np.array([4.0]), resume=tmp_path / "half", **options).value == whole.value


def test_fields_of_a_fit_are_those_of_the_data_as_given():
    m = xv.marginal(xv.separable(decays, target(), data=T, lam=1e-4), 0.01)
    fit = xv.solve(m, THETA, over=xv.sets.Box(0.1, 20.0))
    np.testing.assert_allclose(fit.fitted, decays(fit.theta, T) @ fit.w, rtol=1e-12)
    assert xv.verify(fit, m).ok
