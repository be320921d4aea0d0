"""Marginal likelihoods on unconstrained coordinates, and draws: against closed forms, quadrature and other samplers."""

import pickle
import sys
import types

import numpy as np
import pytest

import xvarpro as xv
from xvarpro.bayes.draws import effective_size

T = np.linspace(0.0, 2.0, 30)


def decays(theta, t):
    xp = xv.array_namespace(theta)
    return xp.exp(-xp.expand_dims(t, axis=1) * theta)


def fixed(theta, A):
    return A + 0 * theta[0]


Y = 2.0 * np.exp(-T) + 0.1 * np.random.default_rng(0).normal(size=T.size)
ONE = xv.marginal(xv.separable(decays, Y, data=T, lam=1e-2))
BOX = xv.sets.Box(0.1, 4.0)


def near(values, mean, sd, ess, width=4.5):
    """Mean and standard deviation of draws, to `width` Monte Carlo errors of so many independent ones."""
    assert np.all(np.abs(values.mean(axis=0) - mean) < width * sd / ess**0.5)
    assert np.all(np.abs(values.std(axis=0) / sd - 1) < width / (2 * ess) ** 0.5)


# -- coordinates


THETA = {"a": np.array([[0.5, 2.0, -1.0], [3.0, 0.1, 7.0]]), "s": np.array([0.2, 1.1, 0.7]), "z": np.array([0.3, 5.0])}
LOW = [[0.0, 1.0, -np.inf], [-np.inf, -5.0, 7.0]]
HIGH = [[1.0, np.inf, 2.0], [np.inf, 1e3, 7.0]]
OVER = {"a": xv.sets.Box(LOW, HIGH), "s": xv.sets.Simplex(2.0)}


def all_leaves(theta, t):
    xp = xv.array_namespace(theta)
    rates = xp.concat([xp.reshape(theta["a"], (-1,)), theta["s"], theta["z"]])
    return xp.exp(-xp.expand_dims(t, axis=1) * xp.abs(rates[:2])) + xp.sum(rates**2)


def prior_theta(theta):
    return -xv.array_namespace(theta).sum(theta["z"] ** 2)


@pytest.fixture(scope="module")
def target():
    m = xv.marginal(xv.separable(all_leaves, Y, data=T, lam=0.3), 0.5)
    return m.unconstrained(THETA, OVER, prior_theta=prior_theta)


def differences(fun, u, h=1e-6):
    return np.stack([(fun(u + h * d) - fun(u - h * d)) / (2 * h) for d in np.eye(u.size)], axis=-1)


def test_coordinates_lead_back_to_theta(target):
    u = target.from_theta(THETA)
    assert u.shape == (target.size,) == (5 + 2 + 2,)  # without the entry that is fixed, and one of the simplex
    for key, x in target.to_theta(u).items():
        np.testing.assert_allclose(x, THETA[key], rtol=1e-12)
    np.testing.assert_allclose(target.from_theta(target.to_theta(u - 0.4)), u - 0.4, rtol=1e-9)
    assert pickle.loads(pickle.dumps(target)).log_density(u) == target.log_density(u)


def test_the_density_has_the_jacobian_of_the_map(target):
    def moving(u):
        theta = target.to_theta(u)
        return np.concatenate([theta["a"].ravel()[:5], theta["s"][:-1], theta["z"]])

    for shift in (0.0, -0.7, 2.0):
        u = target.from_theta(THETA) + shift
        theta = target.to_theta(u)
        jacobian = np.linalg.slogdet(differences(moving, u))[1]
        known = float(target.problem.log_density(theta)) - np.sum(theta["z"] ** 2) + jacobian
        assert float(target.log_density(u)) == pytest.approx(known, abs=1e-6)


def test_the_gradient_is_that_of_the_density(target):
    u = target.from_theta(THETA) + 0.3
    value, gradient = target.log_density_and_gradient(u)
    assert value == target.log_density(u)
    np.testing.assert_allclose(gradient, differences(target.log_density, u), rtol=1e-6, atol=1e-6)


@pytest.mark.frameworks
def test_frameworks_differentiate_and_compile_the_density():
    """What samplers written for PyTorch and JAX do; the gradient is the exact one, not that of the operations."""
    jax, torch = pytest.importorskip("jax"), pytest.importorskip("torch")
    u = np.array([0.3])
    value, slope = ONE.unconstrained(np.ones(1), BOX).log_density_and_gradient(u)
    at = torch.asarray(u).requires_grad_()
    found = ONE.unconstrained(torch.ones(1, dtype=torch.float64), BOX).log_density(at)
    np.testing.assert_allclose(found.item(), value, rtol=1e-12)
    np.testing.assert_allclose(torch.autograd.grad(2 * found, at)[0], 2 * slope, rtol=1e-10)
    with jax.enable_x64(True):
        own = ONE.unconstrained(jax.numpy.ones(1), BOX)
        found, gradient = jax.jit(jax.value_and_grad(lambda u: 2 * own.log_density(u)))(jax.numpy.asarray(u))
        np.testing.assert_allclose(found, 2 * value, rtol=1e-12)
        np.testing.assert_allclose(gradient, 2 * slope, rtol=1e-10)
    found, gradient = ONE.unconstrained(np.ones(1), BOX, backend="jax").log_density_and_gradient(u)  # whatever its flag
    np.testing.assert_allclose(found, value, rtol=1e-12)
    np.testing.assert_allclose(gradient, slope, rtol=1e-10)


def test_coordinates_far_out_have_numbers(target):
    for size in (1e3, 1e30):
        for sign in (-1, 1):
            u = np.zeros(target.size)
            u[:2] = u[4:7] = sign * size
            theta = target.to_theta(u)
            assert all(np.isfinite(x).all() for x in theta.values())
            assert target.log_density(u) < -0.9 * size


def test_no_density_is_minus_infinity(subtests):
    m = xv.marginal(xv.separable(decays, Y, data=T), 0.1)
    flat = m.unconstrained(np.array([1.0, 2.0]), BOX)
    u = flat.from_theta(np.array([1.5, 1.5]))
    value, gradient = flat.log_density_and_gradient(u)
    assert value == flat.log_density(u) == -np.inf
    assert not gradient.any()
    with subtests.test("a set"), pytest.raises(xv.errors.ProblemError, match="Box, a LinfBall or a Simplex"):
        m.unconstrained(np.ones(2), xv.sets.L2Ball(3.0))
    with subtests.test("the boundary"), pytest.raises(xv.errors.ProblemError, match="inside its set"):
        flat.from_theta(np.array([0.1, 1.0]))
    with subtests.test("a length"), pytest.raises(xv.errors.ProblemError, match=r"shape \(2,\)"):
        flat.log_density(np.ones(3))


# -- theta


@pytest.fixture(scope="module")
def quadrature():
    """Mean and standard deviation of the rate of `ONE`."""
    at = np.linspace(0.6, 1.6, 81)
    logs = np.array([float(ONE.log_density(np.array([x]))) for x in at])
    p = np.exp(logs - logs.max())
    assert p[[0, -1]].max() < 1e-5
    mean = np.average(at, weights=p)
    return mean, np.average((at - mean) ** 2, weights=p) ** 0.5


@pytest.fixture(scope="module")
def fit():
    return xv.solve(ONE, np.array([0.5]), over=BOX)


@pytest.fixture(scope="module")
def draws(fit):
    return fit.sample(300)


def test_draws_of_a_rate_have_the_moments_of_quadrature(draws, quadrature):
    assert draws.acceptance > 0.8
    (ess,) = draws.ess
    assert 150 < ess <= 300
    near(draws.theta[:, 0], *quadrature, ess)
    np.testing.assert_allclose(draws.log_density[7], ONE.log_density(draws.theta[7]), rtol=1e-10)


def test_hamiltonian_monte_carlo_has_them_too(quadrature):
    target, draw = ONE.unconstrained(np.array([1.0]), BOX), np.random.default_rng(1)
    u, step, found = target.from_theta(np.array([1.0])), 0.25, []
    value, slope = target.log_density_and_gradient(u)
    for _ in range(40):
        p, (x, level, g) = draw.normal(size=1), (u, value, slope)
        energy = value - 0.5 * p @ p
        p = p + 0.5 * 0.2 * step * g
        for _ in range(3):
            x = x + 0.2 * step * p
            level, g = target.log_density_and_gradient(x)
            p = p + 0.2 * step * g
        p = p - 0.5 * 0.2 * step * g
        if np.log(draw.uniform()) < level - 0.5 * p @ p - energy:
            u, value, slope = x, level, g
        found.append(target.to_theta(u))
    found = np.array(found)
    near(found, *quadrature, effective_size(found[:, 0]))


def moved(theta, data):
    return data["y"] - data["X"] @ theta


def constant(theta, data):
    return data["M"] + 0 * theta[0]


def test_a_linear_model_has_its_closed_form():
    """With y - X theta for the target and a normal prior, theta and w are the coefficients of one regression."""
    X, M = (np.random.default_rng(2).normal(size=(20, k)) for k in (2, 1))
    y = X @ [1.0, -1.0] + M @ [0.5] + 0.1 * np.random.default_rng(3).normal(size=20)
    problem = xv.separable(constant, moved, data={"y": y, "X": X, "M": M})
    fit = xv.solve(xv.marginal(problem, 0.1), np.zeros(2))
    draws = fit.sample(200, prior_theta=lambda theta: -400.0 * xv.array_namespace(theta).sum((theta - 1) ** 2))
    A = np.hstack([X, M])
    C = np.linalg.inv(100 * A.T @ A + np.diag([800.0, 800.0, 0.0]))
    mean = C @ (100 * A.T @ y + [800.0, 800.0, 0.0])
    found = np.hstack([draws.theta, draws.w])
    near(found, mean, np.diagonal(C) ** 0.5, draws.ess.min())
    turned = np.linalg.solve(np.linalg.cholesky(C), found.T)
    assert np.abs(np.cov(turned) - np.eye(3)).max() < 5 / draws.ess.min() ** 0.5
    known = float(fit.stated.log_density(draws.theta[3])) - 400.0 * np.sum((draws.theta[3] - 1) ** 2)
    assert draws.log_density[3] == pytest.approx(known, rel=1e-12)


def test_the_evidence_of_draws_counts_the_volume_of_the_sets():
    """A density that does not depend on theta is its own evidence."""
    m = xv.marginal(xv.separable(lambda theta, t: decays(0 * theta["a"][:1] + 1, t), Y, data=T, lam=1e-2))
    theta = {"a": np.ones(2), "b": np.ones(3), "c": np.zeros(1)}
    over = {"a": xv.sets.Box(0.5, 3.0), "b": xv.sets.Simplex(3.0), "c": xv.sets.LinfBall(4.0)}
    draws = xv.solve(m, theta, over=over).sample(200)
    assert abs(draws.log_evidence - m.log_density(theta)) < 4 * draws.log_evidence_error < 0.5
    assert xv.solve(ONE, np.ones(1)).sample(20).log_evidence is None


def test_a_maximum_at_a_bound_is_sampled_inside():
    """A rate below the one of the data: its density falls from the bound."""
    fit = xv.solve(ONE, np.array([2.0]), over=xv.sets.Box(1.2, 4.0))
    assert fit.theta[0] == pytest.approx(1.2, rel=1e-12)
    draws = fit.sample(150)
    at = np.linspace(1.2, 1.8, 61)
    logs = np.array([float(ONE.log_density(np.array([x]))) for x in at])
    p = np.exp(logs - logs.max())
    p[0] *= 0.5
    mean = np.average(at, weights=p)
    sd = np.average((at - mean) ** 2, weights=p) ** 0.5
    known = logs.max() + np.log(p.sum() * 0.01 / 2.8)
    assert draws.log_evidence == pytest.approx(known, abs=4 * draws.log_evidence_error + 0.01)
    assert fit.laplace().log_evidence == pytest.approx(known, abs=0.05)
    assert draws.theta.min() >= 1.2
    assert draws.acceptance > 0.5
    assert abs(draws.theta.mean() - mean) < 4 * sd / draws.ess[0] ** 0.5


def test_a_seed_gives_its_draws(fit):
    one, again, other = (fit.sample(20, seed=seed) for seed in (5, 5, 6))
    for name in ("theta", "w", "sigma", "log_density"):
        assert np.array_equal(getattr(one, name), getattr(again, name))
        assert not np.isin(getattr(one, name), getattr(other, name)).any()


# -- w


FIRST_ORDER = 0.3 * 0.6 ** np.abs(np.subtract.outer(np.arange(12), np.arange(12)))


def cases():
    draw = np.random.default_rng(4)
    A, y = draw.normal(size=(12, 2)), draw.normal(size=(12, 3))
    B = A + 1j * draw.normal(size=A.shape)
    wide = draw.normal(size=(2, 3))
    weights, lam = draw.uniform(0.5, 2, (12, 3)), np.array([[0.5, 1.0, 4.0]])
    mean, Omega = draw.normal(size=2), np.array([[1.0, 0.5], [0.0, 2.0]])
    return {
        "flat": (A, y[:, 0], {}, 0.3, None),
        "ridge, Omega, a mean and many": (A, y, {"lam": 2.0, "Omega": Omega}, 0.3, mean),
        "a ridge and weights of each": (A, y, {"lam": lam, "weights": weights}, 0.3, None),
        "complex": (B, y[:, 0] * (1 + 1j), {"lam": 0.5}, 0.3, None),
        "wide": (wide, y[:2, 0], {"lam": 0.5}, 0.3, None),
        "a covariance, a ridge of theta": (A, y[:, 0], {"lam": lambda theta, A: 2.0 * theta[0]}, FIRST_ORDER, None),
        "unknown noise": (A, y[:, 0], {"lam": 0.5}, xv.InverseGamma(3.0, 2.0), None),
    }


@pytest.mark.parametrize("name", cases())
def test_amplitudes_given_theta_have_their_mean_and_covariance(name):
    A, y, options, noise, mean = cases()[name]
    m = xv.marginal(xv.separable(fixed, y, data=A, **options), noise, mean)
    fit = xv.solve(m, np.ones(1), over=xv.sets.Box(1.0, 1.0))
    n = 4000
    draws = fit.sample(n)
    lam = 2.0 if callable(options.get("lam")) else options.get("lam", 0.0)
    Omega, lam = options.get("Omega", np.eye(A.shape[1])), np.broadcast_to(lam, (1, 3))
    weights = np.broadcast_to(options.get("weights", 1.0), (A.shape[0], 3))
    np.testing.assert_allclose(xv.solve_lower(m, fit.theta).w, fit.w, rtol=1e-12)
    for j in range(1 if y.ndim == 1 else 3):
        P = np.linalg.inv(noise) if isinstance(noise, np.ndarray) else np.diag(weights[:, j])
        H = A.conj().T @ P @ A + lam[0, j] * Omega.T @ Omega
        L = np.linalg.cholesky(H)
        w, draw = (fit.w, draws.w) if y.ndim == 1 else (fit.w[:, j], draws.w[..., j])
        off = (draw - w) @ L.conj() / draws.sigma[:, None]  # L^H off has covariance sigma^2
        parts = np.hstack([off.real, off.imag]) if np.iscomplexobj(off) else off
        assert np.abs(parts.mean(axis=0)).max() < 5 / n**0.5
        assert np.abs(np.cov(parts.T) - np.eye(parts.shape[1])).max() < 5 * (2 / n) ** 0.5
    if isinstance(noise, xv.InverseGamma):
        half = 0.5 * (np.sum((A @ fit.w - y) ** 2) + 0.5 * fit.w @ fit.w)
        shape, scale = 3 + 6, 2 + half
        assert np.mean(draws.sigma**2) == pytest.approx(scale / (shape - 1), rel=4 / (n * (shape - 2)) ** 0.5)
    else:
        assert (draws.sigma == (1.0 if isinstance(noise, np.ndarray) else 0.3)).all()


def test_rows_in_chunks_and_many_columns_have_the_draws_of_all(subtests):
    many = np.stack([Y, 1.1 * Y], axis=1)
    for noise in (0.1, None):
        whole = xv.marginal(xv.separable(decays, many, data=T, lam=0.1), noise)
        rows = xv.RowChunks([(T[i : i + 7], many[i : i + 7]) for i in range(0, T.size, 7)])
        chunked = xv.marginal(xv.separable(decays, rows, lam=0.1), noise)
        at = xv.sets.Box(1.0, 1.0)
        a, b = (xv.solve(m, np.ones(1), over=at).sample(6) for m in (whole, chunked))
        with subtests.test(noise=noise):
            np.testing.assert_allclose(a.w, b.w, rtol=1e-10)
    columns = np.outer(Y, np.linspace(1, 2, 40))  # compressed in a solve
    both = [xv.marginal(xv.separable(decays, columns, data=T, lam=0.1, compress=c), 0.1) for c in (True, False)]
    a, b = (xv.solve(m, np.ones(1), over=at).sample(4) for m in both)
    assert a.w.shape == (4, 1, 40)
    np.testing.assert_allclose(a.w, b.w, rtol=1e-10)


# -- what draws are for


def test_predictions_have_the_noise_of_observations(draws):
    at = np.array([0.5, 1.0, 1.5])
    values = draws.predict(at)
    np.testing.assert_allclose(values[3], np.exp(-at * draws.theta[3]) * draws.w[3], rtol=1e-12)
    noisy = draws.predict(at, noise=True, seed=1)
    spread = (noisy - values) / draws.sigma[:, None]
    assert np.abs(spread.std() - 1) < 4 / (2 * spread.size) ** 0.5
    band = draws.band(at, level=0.5)
    np.testing.assert_allclose(band.value, values.mean(axis=0))
    assert np.mean((values > band.lower) & (values < band.upper)) == pytest.approx(0.5, abs=0.02)


def test_predictions_of_complex_columns_have_bands_of_both_parts():
    B = np.ones((6, 1)) * np.exp(1j * np.arange(6))[:, None]
    m = xv.marginal(xv.separable(fixed, B @ np.ones((1, 2)) * (1 + 2j), data=B), 0.1)
    draws = xv.solve(m, np.ones(1), over=xv.sets.Box(1.0, 1.0)).sample(50)
    assert draws.predict(noise=True).shape == (50, 6, 2)
    band = draws.band()
    assert np.all((band.lower.real < band.value.real) & (band.value.imag < band.upper.imag))
    assert "Im w[0, 1]" in str(draws)


def test_draws_are_a_table_and_a_figure(draws):
    lines = str(draws).splitlines()
    assert lines[0].startswith("300 draws, ")
    assert lines[1] == f"log evidence {draws.log_evidence:.2f} +- {draws.log_evidence_error:.2g}"
    assert [line.split()[0] for line in lines[3:]] == ["theta[0]", "w[0]", "sigma"]
    figure = draws.plot(["rate"])
    shown = [ax for ax in figure.axes if ax.get_visible()]
    assert len(shown) == 6
    assert shown[-1].get_xlabel() == "sigma"
    assert shown[1].get_ylabel() == "w[0]"
    assert "rate" in draws.columns(["rate"])


def test_draws_go_to_arviz(draws, monkeypatch):
    given = {}
    monkeypatch.setitem(sys.modules, "arviz", types.SimpleNamespace(from_dict=given.update))
    draws.to_arviz()
    assert given["posterior"]["theta"].shape == (1, 300, 1)
    assert set(given["posterior"]) == {"theta", "w", "sigma"}
    assert given["sample_stats"]["lp"].shape == (1, 300)
    monkeypatch.setitem(sys.modules, "arviz", None)
    with pytest.raises(ImportError, match="pip install arviz"):
        draws.to_arviz()


def test_effective_sizes_are_those_of_an_autoregression():
    """A chain x' = 0.5 x + e counts a third of its draws."""
    e, x = np.random.default_rng(7).normal(size=20_000), np.zeros(20_000)
    for i in range(1, e.size):
        x[i] = 0.5 * x[i - 1] + e[i]
    assert effective_size(x) == pytest.approx(e.size / 3, rel=0.1)
    assert effective_size(e) == pytest.approx(e.size, rel=0.1)
    assert effective_size(np.ones(9)) == 9


def test_what_has_no_draws_is_a_sentence(fit, draws, subtests):
    squares = xv.solve(xv.separable(decays, Y, data=T), np.ones(1), over=BOX)
    with subtests.test("least squares"), pytest.raises(xv.errors.ProblemError, match="fit of a marginal likelihood"):
        squares.sample()
    data = np.stack([np.exp(-T), T], axis=1)
    idle = xv.marginal(xv.separable(fixed, Y, data=data, lam=0.1), 0.1)
    with subtests.test("an entry left open"), pytest.raises(xv.errors.ProblemError, match="no bound holds"):
        xv.solve(idle, np.ones(2)).sample()
    with subtests.test("a number"), pytest.raises(xv.errors.ProblemError, match="whole number"):
        fit.sample(0)
    correlated = xv.solve(xv.marginal(xv.separable(decays, Y[:12], data=T[:12], lam=1.0), FIRST_ORDER), np.ones(1), BOX)
    with subtests.test("a covariance"), pytest.raises(xv.errors.ProblemError, match="covariance is not drawn"):
        correlated.sample(2).predict(noise=True)
    with subtests.test("a level"), pytest.raises(xv.errors.ProblemError, match="level"):
        draws.band(T, level=90)
