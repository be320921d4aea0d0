"""Marginal likelihoods under an Omega that is a function of theta or has fewer rows than amplitudes."""

import mpmath
import numpy as np
import pytest

import xvarpro as xv
from xvarpro.driver.prepare import prepare
from xvarpro.objective.curvature import marginal_hessian

T = np.linspace(0.0, 1.0, 7)
THETA = np.array([0.7, 1.9])


def design(kind):
    """Three columns, complex where asked."""
    turn = 1.0 + (0.5j if kind == "complex" else 0.0)

    def M(theta, t):
        xp = xv.array_namespace(theta)
        t = xp.expand_dims(t, axis=1)
        return xp.concat([xp.exp(-t * theta[0]), turn * t * theta[1], xp.cos(t * theta[1]) + 0 * turn], axis=1)

    return M


def moving(theta, t):
    """Four rows for three amplitudes."""
    xp = xv.array_namespace(theta)
    a, b, one = theta[0], theta[1], 1 + 0 * theta[0]
    return xp.stack([xp.stack(row) for row in ([a, b, one], [one, a * b, -b], [0 * a, a, b], [one, -one, a * a])])


def strength(theta, t):
    return xv.array_namespace(theta).exp(theta[1] - theta[0])


def moving_wide(theta, t):
    """Two rows, whose null space turns."""
    return moving(theta, t)[:2, :]


def strengths(theta, t):
    return xv.array_namespace(theta).exp(theta)


WIDE = np.array([[1.0, -2.0, 1.0], [0.5, 0.0, 3.0]])
CASES = {
    "Omega of theta": (moving, strength),
    "wide Omega of theta": (moving_wide, strength),
    "wide": (WIDE, strength),
    "wide, constant": (WIDE, 0.3),
}
BLOCKS = [np.diff(np.eye(3), axis=0), np.array([[1.0, 0.0, -1.0]])]  # three rows of rank two


def known(M, Omega, lam, theta, y, sigma):
    """The log density, with 60 digits in the determinants."""
    with mpmath.workdps(60):
        A = mpmath.matrix(M(theta, T).tolist())
        B = mpmath.matrix((Omega(theta, T) if callable(Omega) else Omega).tolist())
        lam = mpmath.mpf(float(lam(theta, T) if callable(lam) else lam))
        b, n = mpmath.matrix(y.tolist()), A.cols
        parts, rank = 2 if np.iscomplexobj(y) else 1, min(B.rows, n)
        H = A.H * A + lam * B.H * B
        w = mpmath.lu_solve(H, A.H * b)
        r = A * w - b
        S = mpmath.re((r.H * r)[0] + lam * ((B * w).H * (B * w))[0])
        prior = mpmath.det(B.H * B if rank == n else B * B.H)
        V = mpmath.log(mpmath.re(mpmath.det(H))) / 2 - (mpmath.log(mpmath.re(prior)) + rank * mpmath.log(lam)) / 2
        nu = parts * (len(y) - n + rank)
        return -float(nu * mpmath.log(2 * mpmath.pi * sigma**2) / 2 + parts * V + S / (2 * sigma**2))


@pytest.mark.parametrize("kind", ["real", "complex"])
@pytest.mark.parametrize("case", CASES)
def test_density_and_gradient_are_those_of_many_digits(case, kind):
    (Omega, lam), M = CASES[case], design(kind)
    y = np.cos(3 * T) + (1j * T if kind == "complex" else 0.0)
    m = xv.marginal(xv.separable(M, y, data=T, lam=lam, Omega=Omega), 0.4)
    value, gradient = m.log_density_and_gradient(THETA)
    assert value == pytest.approx(known(M, Omega, lam, THETA, y, 0.4), rel=1e-11)
    h = 1e-5
    slopes = [
        (known(M, Omega, lam, THETA + h * e, y, 0.4) - known(M, Omega, lam, THETA - h * e, y, 0.4)) / (2 * h)
        for e in np.eye(2)
    ]
    np.testing.assert_allclose(gradient, slopes, rtol=1e-7, atol=1e-7)


def spline(theta, x):
    xp = xv.array_namespace(theta)
    return xp.eye(x.shape[0]) + 0 * theta[0]


X = np.linspace(0.0, 1.0, 20)
D = np.diff(np.eye(X.size), 2, axis=0)


def smoothed(y, noise=None):
    """The fit of the logarithm of lam, and the effective degrees of freedom."""

    def lam(theta, x):
        return xv.array_namespace(theta).exp(theta[0])

    m = xv.marginal(xv.separable(spline, y, data=X, lam=lam, Omega=D), noise)
    fit = xv.solve(m, np.array([2.0]), over=xv.sets.Box(-5.0, 15.0), tol=1e-9)
    return fit, np.trace(np.linalg.inv(np.eye(X.size) + np.exp(fit.theta[0]) * D.T @ D))


def by_contrasts(y):
    """Patterson and Thompson (1971): the likelihood of what is orthogonal to straight lines, on a fine grid."""
    K = np.linalg.svd(np.stack([X**0, X], axis=1))[0][:, 2:]
    bends, V = np.linalg.eigh(K.T @ np.linalg.pinv(D.T @ D) @ K)
    z, log_lam = V.T @ (K.T @ y), np.linspace(-5.0, 15.0, 2001)
    sizes = 1 + bends / np.exp(log_lam)[:, None]
    best = log_lam[np.argmin(z.size * np.log(np.sum(z**2 / sizes, axis=1)) + np.sum(np.log(sizes), axis=1))]
    return 2 + np.sum(bends / (bends + np.exp(best)))


def test_reml_of_a_smoothing_spline_on_a_straight_line_keeps_two_degrees_of_freedom():
    _, dof = smoothed(1 + 2 * X, noise=0.1)
    assert 2.0 <= dof <= 2.1


def test_reml_of_a_smoothing_spline_on_a_noisy_line_is_that_of_contrasts():
    """A line is the estimate of most samples; of the others the noise happens to bend."""
    found = []
    for seed in range(8):
        y = 1 + 2 * X + 0.1 * np.random.default_rng(seed).normal(size=X.size)
        fit, dof = smoothed(y)
        assert dof == pytest.approx(by_contrasts(y), abs=0.02)
        assert fit.laplace().active == (["theta[0]"] if fit.theta[0] == 15.0 else [])
        found.append(dof)
    assert 4 <= np.sum(np.array(found) < 2.1) < 8


def test_an_omega_that_loses_a_rank_at_theta_has_no_density():
    def singular(theta, t):
        one = 1 + 0 * theta[0]
        xp = xv.array_namespace(theta)
        return xp.stack(
            [xp.stack([theta[0], 0 * one, -theta[0]]), xp.stack([0 * one, one, one]), xp.stack([one, one, one])]
        )

    m = xv.marginal(xv.separable(design("real"), T, data=T, lam=1.0, Omega=singular), 0.4)
    assert np.isfinite(m.log_density(THETA))
    with pytest.raises(xv.errors.ProblemError, match="finite"):
        m.log_density(np.array([0.0, 1.0]))


@pytest.mark.parametrize(("kind", "noise"), [("real", 0.4), ("complex", None)])
@pytest.mark.parametrize("case", [*CASES, "blocks"])
def test_hessians_are_differences_of_gradients(case, kind, noise):
    """With right-hand sides that have weights of their own, so that each has a factor."""
    Omega, lam = {**CASES, "blocks": (BLOCKS, strengths)}[case]
    y = np.stack([np.cos(3 * T), T**2], axis=1) * (1 + (0.5j if kind == "complex" else 0.0))
    weights, u, h = np.stack([1 + T, 2 - T], axis=1), np.array([0.6, -1.1]), 1e-5
    m = xv.marginal(xv.separable(design(kind), y, data=T, lam=lam, Omega=Omega, weights=weights), noise)
    prepared = prepare(m, THETA)
    (found,) = prepared.call(marginal_hessian, prepared.theta, (u,))
    low, high = (m.log_density_and_gradient(THETA + s * h * u)[1] for s in (-1, 1))
    np.testing.assert_allclose(found, (low - high) / (2 * h), rtol=1e-7)


def test_columns_with_weights_of_their_own_add_up_and_blocks_are_their_stack(subtests):
    y, weights = np.stack([np.cos(3 * T), T**2], axis=1), np.stack([1 + T, 2 - T], axis=1)
    for Omega in (moving, WIDE):
        whole = xv.separable(design("real"), y, data=T, lam=strength, Omega=Omega, weights=weights)
        value, gradient = xv.marginal(whole, 0.4).log_density_and_gradient(THETA)
        alone = [
            xv.separable(design("real"), y[:, j], data=T, lam=strength, Omega=Omega, weights=weights[:, j])
            for j in range(2)
        ]
        found = [xv.marginal(p, 0.4).log_density_and_gradient(THETA) for p in alone]
        with subtests.test("columns", moving=Omega is moving):
            assert value == pytest.approx(sum(v for v, _ in found), rel=1e-12)
            np.testing.assert_allclose(gradient, sum(g for _, g in found), rtol=1e-10)
    with subtests.test("blocks"):

        def lams(theta, t):
            return xv.array_namespace(theta).exp(theta)

        blocks = xv.separable(design("real"), y[:, 0], data=T, lam=lams, Omega=[WIDE[:1], WIDE[1:]])
        stack = np.exp(THETA / 2)[:, None] * WIDE
        m = xv.marginal(blocks, 0.4)
        value, gradient = m.log_density_and_gradient(THETA)
        assert value == pytest.approx(known(design("real"), stack, 1.0, THETA, y[:, 0], 0.4), rel=1e-11)
        h = 1e-5
        ends = [[m.log_density(THETA + s * h * e) for s in (-1, 1)] for e in np.eye(2)]
        np.testing.assert_allclose(gradient, [(b - a) / (2 * h) for a, b in ends], rtol=1e-6)


@pytest.mark.frameworks
@pytest.mark.parametrize("name", ["torch", "jax"])
def test_gradients_are_the_same_in_every_framework(name):
    pytest.importorskip(name)
    m = xv.marginal(xv.separable(design("real"), np.cos(3 * T), data=T, lam=strength, Omega=moving), 0.4)
    other, here = (m.log_density_and_gradient(THETA, backend=backend)[1] for backend in (name, "numpy"))
    np.testing.assert_allclose(np.asarray(other), here, rtol=1e-9)
