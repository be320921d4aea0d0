"""`least_squares`: models in which nothing is linear are fitted as SciPy fits them, with the errors of theta alone."""

import numpy as np
import pytest
import scipy.optimize

import xvarpro as xv
from xvarpro.errors import ModelError, ProblemError

from .support import error, rng, send, vector

OMEGA = 2 * np.pi * np.logspace(0.0, 5.0, 40)
T = np.linspace(0.0, 8.0, 30)


def impedance(theta, omega):
    return 1 / (1 / theta["R"] + 1j * omega * theta["C"])


MEASURED = impedance({"R": 1e9, "C": 1e-12}, OMEGA)
MEASURED = MEASURED * (1 + 1e-3 * (rng().normal(size=40) + 1j * rng(1).normal(size=40)))


def in_parts(theta, data):
    """A resistor parallel to a capacitor, real parts above imaginary ones."""
    xp = xv.array_namespace(theta["R"])
    d = 1 / theta["R"] ** 2 + (data["omega"] * theta["C"]) ** 2
    z = xp.concat([1 / theta["R"] / d, -data["omega"] * theta["C"] / d])
    return z - data["z"]


def rosenbrock(theta):
    xp = xv.array_namespace(theta)
    return xp.stack([10.0 * (theta[1] - theta[0] ** 2), 1.0 - theta[0]])


def saturating(theta, data):
    """Of the shape of NIST's Misra1a, with its two parameters tied so that neither is linear."""
    xp = xv.array_namespace(theta)
    return theta[0] * (1.0 - xp.exp(-theta[1] * theta[0] * data["t"])) - data["y"]


OUTLIERS = {"t": T, "y": 2.0 * (1.0 - np.exp(-T)) + 0.02 * np.sin(9.0 * T) + (np.arange(30) % 10 == 4)}


def test_parameters_of_any_units_are_found_by_every_framework(backend):
    """R and C differ by 1e21 and start ten times off: no column of the Jacobian is like another."""
    data = {"omega": send(backend, OMEGA), "z": send(backend, np.r_[MEASURED.real, MEASURED.imag])}
    start = {"R": send(backend, np.array(1e8)), "C": send(backend, np.array(1e-11))}
    fit = xv.least_squares(in_parts, start, data=data)
    assert fit.status is xv.Status.CONVERGED
    assert np.all(np.abs(vector(fit.theta) / [1e-12, 1e9] - 1) <= 1e-3)


def test_errors_are_those_of_the_jacobian_and_of_complex_residuals_those_of_their_parts():
    start = {"R": np.array(1e8), "C": np.array(1e-11)}
    data = {"omega": OMEGA, "z": np.r_[MEASURED.real, MEASURED.imag]}
    fit = xv.least_squares(in_parts, start, data=data)
    units = np.array([1e-12, 1e9])  # C, R
    scipys = scipy.optimize.least_squares(
        lambda x: in_parts({"C": x[0] * 1e-12, "R": x[1] * 1e9}, data), vector(fit.theta) / units, xtol=1e-15
    )
    J = scipys.jac / units
    want = np.sqrt(np.diag(np.linalg.inv((J * units).T @ (J * units)) * 2 * scipys.cost / 78)) * units
    for name, found in (
        ("parts", fit),
        ("complex", xv.least_squares(lambda p, d: impedance(p, d["omega"]) - MEASURED, start, data=data)),
    ):
        errors = vector(found.statistics().theta_stderr)
        assert np.all(np.abs(vector(found.theta) / units / scipys.x - 1) <= 1e-6), name
        assert np.all(np.abs(errors / want - 1) <= 1e-5), name
        assert found.statistics().dof == pytest.approx(78), name
        assert "amplitudes" not in str(found.report()), name


def test_fits_are_those_of_scipy(subtests):
    cases = {
        "free": (rosenbrock, [-1.2, 1.0], None, None, None),
        "at a bound": (rosenbrock, [-1.2, 0.4], (-2.0, 0.5), None, None),
        "data": (saturating, [1.0, 0.2], None, OUTLIERS, None),
        "soft_l1": (saturating, [1.0, 0.2], (0.0, 10.0), OUTLIERS, "soft_l1"),
    }
    for name, (residual, start, over, data, loss) in cases.items():
        with subtests.test(name):
            fit = xv.least_squares(
                residual, np.array(start), over, data=data, loss=loss and xv.losses.SoftL1(0.05), tol=1e-9
            )
            args = () if data is None else (data,)
            bounds = over or (-np.inf, np.inf)
            want = scipy.optimize.least_squares(
                residual, start, args=args, bounds=bounds, loss=loss or "linear", f_scale=0.05, xtol=1e-15, ftol=1e-15
            )
            assert fit.status is xv.Status.CONVERGED
            assert error(fit.theta, want.x) <= 1e-5
            assert fit.value <= want.cost * (1 + 1e-9) + 1e-12
            assert error(fit.fitted, residual(fit.theta, *args)) <= 1e-12


def test_a_minimum_where_every_residual_is_stationary_is_found():
    """The Jacobian is 0 there, so that the method's own matrix promises all of the value at every point around."""
    fit = xv.least_squares(lambda theta: theta**2 + 5.0, np.ones(4))
    assert fit.status is xv.Status.CONVERGED
    assert np.abs(fit.theta).max() <= 1e-6  # the root of what the rounding of values hides


def test_a_level_with_all_weights_given_has_statistics_of_theta_alone(subtests):
    """By the mask, and by equations that determine them; with a ridge, which then is a constant."""
    t, w = np.linspace(0.0, 2.0, 40), np.array([2.0, 1.0])

    def decays(theta, t):
        return xv.array_namespace(theta).exp(-t[:, None] * theta)

    y = np.exp(-t[:, None] * [1.0, 5.0]) @ w + 0.01 * np.sin(40.0 * t)
    alone = xv.least_squares(lambda theta, t: decays(theta, t) @ w - y, np.array([0.5, 8.0]), data=t)
    for name, W in {"Fixed": xv.lower.Fixed(np.ones(2, bool), w), "Equality": xv.lower.Equality(np.eye(2), w)}.items():
        with subtests.test(name):
            fit = xv.solve(xv.separable(decays, y, data=t, W=W, lam=0.1), np.array([0.5, 8.0]))
            assert error(fit.theta, alone.theta) <= 1e-6
            assert not np.any(fit.w - w + fit.statistics().w_stderr)
            assert error(fit.statistics().theta_stderr, alone.statistics().theta_stderr) <= 1e-5


def test_what_is_no_residual_is_named(subtests):
    one = np.ones(1)
    for kind, words, call in (
        (ProblemError, "shape .1,. without data=", lambda: xv.least_squares(one, one)),
        (ProblemError, "function without data=", lambda: xv.least_squares(lambda theta, data: theta, one)),
        (ProblemError, "function with data=", lambda: xv.least_squares(lambda theta: theta, one, data=one)),
        (ModelError, "residual must return an array", lambda: xv.least_squares(lambda theta: [theta], one)),
    ):
        with subtests.test(words), pytest.raises(kind, match=words):
            call()


def test_a_step_over_a_minimum_to_the_same_value_is_made_shorter():
    """From 1 the first step of x^2 + 5 ends at the bound -1."""
    fit = xv.least_squares(lambda x: x**2 + 5, np.ones(1), over=(-1.0, 3.0))
    assert fit.status is xv.Status.CONVERGED
    assert abs(fit.theta[0]) <= 1e-7


def test_curvature_that_is_not_that_of_the_jacobian_is_learned():
    """J tends to 0 and the residual does not: with each step forgetting what the last one had learned it took 236."""
    start, low, high = np.array([0.3, -2.0, 1.5]), np.full(3, -4.0), np.full(3, 3.0)
    fit = xv.least_squares(lambda x: x**2 + 5, start, over=xv.sets.Box(low, high))
    assert fit.status is xv.Status.CONVERGED
    np.testing.assert_allclose(fit.theta, 0, atol=1e-6)
    assert fit.n_iter <= 60
