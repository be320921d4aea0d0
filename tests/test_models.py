"""Columns of designs: values and derivatives against plain formulas in many digits, shapes, errors and whole fits."""

from functools import cache
from pathlib import Path

import mpmath
import numpy as np
import pytest
from mpmath import erfc, exp, log, pi, sqrt

import xvarpro as xv
from xvarpro.core.namespace import dtype_name
from xvarpro.errors import ProblemError

from .support import HOST_BACKENDS, error, host, host_tree, rng, send, send_tree, vector

models = xv.models

# -- values and derivatives --------------------------------------------------------------------------------------------

# all are numbers of float32 too: both precisions have one reference
X = np.float32([-1e4, -30.0, -2.0, -0.5, 0.0, 0.25, 0.251, 0.75, 3.0, 40.0, 1e4])
TINY = 2.0**-24
PEAKS = np.float32([[0.25, 0.125], [0.25, TINY], [0.0, 30.0], [-29.0, 1.5], [9990.0, 5e3]])
SHAPES = np.float32([[0.25, 0.125, 0.5], [0.25, TINY, 0.25], [0.0, 30.0, 0.0], [-29.0, 1.5, 1.0], [9990.0, 5e3, 0.75]])
SLOW = np.float32([[0.005], [0.0], [-0.001], [1e-6]])
DAMPED = np.float32([[0.25, 0.0], [1.5, 0.002], [1e-5, -0.001]])
# rate, centre, width: slow, a step, rate times width of 3750 and of 1e6, hardly any width, growth, a long response
RESPONSES = np.float32([
    [0.5, 0.25, 0.125], [0.0, 0.25, 0.125], [3e4, 0.25, 0.125], [1e6, 0.0, 1.0],
    [1.0, 0.25, TINY], [-0.001, 0.5, 0.25], [1e-6, 0.25, 30.0], [8.0, 0.0, 0.25],
])  # fmt: skip


def gaussian(x, c, s):
    return exp(-((x - c) ** 2) / (2 * s**2)) / (s * sqrt(2 * pi))


def lorentzian(x, c, g):
    return g / pi / ((x - c) ** 2 + g**2)


def pseudo_voigt(x, c, width, f):
    return f * lorentzian(x, c, width / 2) + (1 - f) * gaussian(x, c, width / sqrt(8 * log(2)))


def decay(t, k, c, s):
    return exp(k**2 * s**2 / 2 - k * (t - c)) * erfc((k * s - (t - c) / s) / sqrt(2)) / 2


# the function, its columns one by one in plain formulas, and a row of parameters for each column
CASES = {
    "exponentials": (models.exponentials, lambda t, k: exp(-k * t), SLOW),
    "decays": (models.decays, decay, RESPONSES),
    "gaussians": (models.gaussians, gaussian, PEAKS),
    "lorentzians": (models.lorentzians, lorentzian, PEAKS),
    "pseudo_voigts": (models.pseudo_voigts, pseudo_voigt, SHAPES),
    "oscillations": (
        lambda t, f, k: models.oscillations(t, f, k)[:, :3],
        lambda t, f, k: exp(-k * t) * mpmath.cos(2 * pi * f * t),
        DAMPED,
    ),
    "oscillations, sines": (
        lambda t, f, k: models.oscillations(t, f, k)[:, 3:],
        lambda t, f, k: exp(-k * t) * mpmath.sin(2 * pi * f * t),
        DAMPED,
    ),
}


@cache
def reference(name, order=None):
    """Entries or their derivatives by parameter `order`, and what rounding the arguments changes each by, in eps."""
    _, formula, parameters = CASES[name]
    found = np.empty((2, len(X), len(parameters)), dtype=object)
    with mpmath.workdps(60):
        for i, x in enumerate(X):
            for j, row in enumerate(parameters):
                at = [mpmath.mpf(float(p)) for p in (x, *row)]
                first = [0] * len(at)
                if order is not None:
                    first[order + 1] = 1
                value = mpmath.diff(formula, tuple(at), tuple(first)) if order is not None else formula(*at)
                unit = np.eye(len(at), dtype=int)
                moved = [abs(at[a] * mpmath.diff(formula, tuple(at), tuple(first + unit[a]))) for a in range(len(at))]
                found[:, i, j] = value, abs(value) + sum(moved)
    return found


def check(found, name, order, dtype, allowed):
    assert found.dtype == dtype
    assert np.isfinite(found).all()
    (value, condition), (column, _) = reference(name, order), reference(name)
    # some frameworks flush numbers below the least normal one to zero, factors of a derivative among them
    flushed = 1e4 * float(np.finfo(dtype).tiny)
    counts = np.full(column.shape, True) if order is None else np.abs(column) > flushed
    assert counts.sum() > len(X)
    off = np.abs(found.astype(object) - value)
    assert (off <= allowed * np.finfo(dtype).eps * condition + flushed)[counts].all()


@pytest.mark.parametrize("name", CASES)
def test_values_and_derivatives_of_hard_arguments(name, backend):
    """To a few eps of what one rounding of each argument changes; by forward and by reverse mode."""
    for dtype in ("float64", "float32"):
        check_hard_arguments(name, dtype, backend)


def check_hard_arguments(name, dtype, backend):
    function, _, rows = CASES[name]
    x, parameters = send(backend, X, dtype), tuple(send(backend, p, dtype) for p in rows.T)
    with backend.scope(dtype):
        check(host(function(x, *parameters)), name, None, dtype, 8)
        tangent = backend.linearise(lambda *args: (function(args[-1], *args[:-1]),), parameters, (x,))[1]
        pullback = backend.vjp(lambda *args: (function(args[-1], *args[:-1]),), parameters, (x,))[1]
        weights = rng(1).uniform(0.5, 1.5, (len(X), len(rows))).astype(dtype)
        gradient = pullback((send(backend, weights, dtype),))
        for i in range(len(parameters)):
            ones = [send(backend, np.full(len(rows), float(i == j)), dtype) for j in range(len(parameters))]
            slope = host(tangent(tuple(ones))[0])
            check(slope, name, i, dtype, 60)
            terms = weights.astype(np.float64) * slope
            off = np.abs(host(gradient[i]) - terms.sum(axis=0))
            assert (off <= 60 * np.finfo(dtype).eps * np.abs(terms).sum(axis=0)).all()


@pytest.mark.parametrize("rate", [0.0, 0.4, 3.0, -0.2])
def test_a_decay_is_the_convolution(rate):
    centre, width, t = 0.3, 0.2, np.array([-0.4, 0.1, 0.3, 0.5, 1.1, 4.0])
    since = np.linspace(0.0, 6.0, 60001)  # after the decay began
    for at, found in zip(t, models.decays(t, rate, centre, width)[:, 0], strict=True):
        response = np.exp(-0.5 * ((at - since - centre) / width) ** 2) / (width * np.sqrt(2 * np.pi))
        np.testing.assert_allclose(found, np.trapezoid(response * np.exp(-rate * since), since), rtol=1e-6)


@pytest.mark.parametrize("degree", [0, 1, 2, 7])
def test_polynomials_are_those_of_numpy(degree, backend):
    x = np.linspace(-2.0, 6.0, 30)
    with backend.scope("float64"):
        found = host(models.polynomials(send(backend, x), degree, (-2.0, 6.0)))
        powers = host(models.polynomials(send(backend, x), min(degree, 1)))
    np.testing.assert_allclose(found, np.polynomial.legendre.legvander((x - 2) / 4, degree), atol=1e-14)
    np.testing.assert_array_equal(powers, np.vander(x, min(degree, 1) + 1, increasing=True))
    w = np.arange(1.0, degree + 2)
    np.testing.assert_allclose(found @ w, np.polynomial.Legendre(w, [-2, 6])(x), rtol=1e-12)


def test_a_pair_of_weights_is_an_amplitude_and_a_phase():
    t = np.linspace(0.0, 3.0, 40)
    a, b = w = np.array([0.6, -1.1])
    want = np.hypot(a, b) * np.exp(-0.5 * t) * np.cos(2 * np.pi * 1.3 * t + np.arctan2(-b, a))
    np.testing.assert_allclose(models.oscillations(t, 1.3, 0.5) @ w, want, atol=1e-14)
    np.testing.assert_array_equal(models.oscillations(t, 1.3), models.oscillations(t, np.array([1.3]), np.array([0.0])))


@pytest.mark.parametrize("name", ["exponentials", "pseudo_voigts", "oscillations"])
def test_a_parameter_is_a_number_a_0d_array_or_a_vector_and_may_have_a_batch(name, backend):
    function, _, rows = CASES[name]
    if name.startswith("oscillations"):
        function = models.oscillations
    x, p = X[2:9].astype(np.float64), rows[:2].astype(np.float64)
    with backend.scope("float64"):
        each = [host(function(send(backend, x), *(float(v) for v in row))) for row in p]
        assert each[0].shape == (7, 2 if function is models.oscillations else 1)
        scalars = host(function(send(backend, x), *(send(backend, v) for v in p[1])))
        np.testing.assert_array_equal(scalars, each[1])
        first, *rest = (send(backend, v) for v in p.T)
        shared = host(function(send(backend, x), first, *(v[:1] for v in rest)))
        want = [host(function(send(backend, x), float(k), *(float(v) for v in p[0, 1:]))) for k in p[:, 0]]
        order = np.argsort([0, 2, 1, 3]) if function is models.oscillations else slice(None)
        np.testing.assert_allclose(shared, np.concatenate(want, axis=1)[:, order], rtol=1e-14)
        both = np.stack([x, x + 0.5])  # two problems with samples and parameters of their own, one column each
        batch = host(function(send(backend, both), *(send(backend, v[:, None]) for v in p.T)))
    np.testing.assert_allclose(batch[0], each[0], rtol=1e-14)
    np.testing.assert_allclose(batch[1], host(function(both[1], *(float(v) for v in p[1]))), rtol=1e-12, atol=1e-300)


def test_columns_joins_matrices_vectors_and_batches(backend):
    a, b, c = rng(0).normal(size=(5, 2)), rng(1).normal(size=5), rng(2).normal(size=(3, 5, 2))
    with backend.scope("float64"):
        A, b_, C = (send(backend, x) for x in (a, b, c))
        np.testing.assert_array_equal(host(models.columns(A, b_)), np.column_stack([a, b]))
        np.testing.assert_array_equal(host(models.columns(b_)), b[:, None])
        for i, found in enumerate(host(models.columns(A, C, b_))):
            np.testing.assert_array_equal(found, np.column_stack([a, c[i], b]))


@pytest.mark.parametrize("framework", HOST_BACKENDS)
def test_whole_numbers_and_lists_are_samples_and_parameters(framework):
    owner = xv.backends.get(framework)
    x, centres, widths = np.arange(5), [1, 2], [0.5, 2.0]
    want = models.gaussians(x.astype("float32"), np.array(centres, "float32"), np.array(widths, "float32"))
    with owner.scope("float32"):
        s = owner.asarray(np.array(widths, "float32"))
        for samples in (owner.asarray(x), x.tolist()):
            found = models.gaussians(samples, centres, s)
            assert dtype_name(found) == "float32"
            np.testing.assert_allclose(xv.backends.to_numpy(found), want, rtol=1e-6)
    fit = xv.solve(
        xv.separable(lambda theta, x: models.exponentials(x, theta), np.exp(-0.5 * x), data=x),
        np.ones(1),
        backend=framework,
    )
    np.testing.assert_allclose(fit.theta, 0.5, rtol=1e-6)
    assert models.polynomials(x, 1).dtype == np.float64


T = np.linspace(-1.0, 2.0, 7)


def test_a_wrong_argument_says_what_is_required(subtests):
    for call, message in (
        (lambda: models.exponentials(["a", "b"], 1.0), r"t given as a list must hold numbers.*a list of 2, the first"),
        (lambda: models.exponentials(1.0, 1.0), r"t must be an array of numbers of shape \(m,\); got 1\.0"),
        (lambda: models.exponentials(T > 0, 1.0), r"t must be an array of numbers .* got dtype bool"),
        (lambda: models.exponentials(np.array(1.0), 1.0), r"t must be .* got shape \(\)\. Reshape it"),
        (lambda: models.polynomials("x", 1), r"x must be an array of numbers .* got 'x'"),
        (lambda: models.exponentials(T, [T[:1], 1.0]), r"rates must be .* got a list of 2, .*\. Join them by xp\.stac"),
        (lambda: models.exponentials(T, None), r"rates must be a number or an array of numbers .* got NoneType"),
        (lambda: models.exponentials(T, True), r"rates must be a number or an array of numbers"),
        (
            lambda: models.gaussians(T, np.ones(2), np.ones(3)),
            r"one length, or length 1 where columns share them; got {'centres': 2, 'widths': 3}",
        ),
        (lambda: models.polynomials(T, -1), r"degree must be a whole number >= 0; got -1"),
        (lambda: models.polynomials(T, 1.0), r"degree must be a whole number >= 0; got 1\.0"),
        (lambda: models.polynomials(T, 1, (1.0, 1.0)), r"two finite numbers that increase; got \(1\.0, 1\.0\)"),
        (lambda: models.polynomials(T, 1, (0.0, np.inf)), r"two finite numbers that increase"),
        (lambda: models.polynomials(T, 1, (np.nan, 1.0)), r"two finite numbers that increase"),
        (lambda: models.polynomials(T, 1, 3.0), r"two finite numbers that increase; got 3\.0"),
        (lambda: models.columns(), r"the same number of rows; got no design"),
        (lambda: models.columns(T, T[1:]), r"the same number of rows; got \(7,\), \(6,\)"),
        (lambda: models.columns(T[:, None], T[None, :1]), r"the same number of rows; got \(7, 1\), \(1, 1\)"),
        (lambda: models.columns(T, 1.0), r"design 1 of columns must be an array of shape \(m, n\) or \(m,\); got 1\.0"),
    ):
        with subtests.test(message), pytest.raises(ProblemError, match=message):
            call()


# -- fits --------------------------------------------------------------------------------------------------------------

TIMES = np.concatenate([np.linspace(-1.0, 1.0, 80), np.linspace(1.05, 12.0, 80)])
KINETICS = {"rates": np.array([0.4, 3.0]), "t0": np.array(0.1), "width": np.array(0.15)}
GUESS = {"rates": np.array([0.2, 5.0]), "t0": np.array(0.0), "width": np.array(0.3)}
WITHIN = {"rates": xv.sets.Box(0.01, 50.0), "t0": xv.sets.Box(-1.0, 1.0), "width": xv.sets.Box(0.01, 2.0)}


def kinetics(theta, data):
    return models.columns(
        models.decays(data["t"], theta["rates"], theta["t0"], theta["width"]),
        models.gaussians(data["t"], theta["t0"], theta["width"]),
        models.polynomials(data["t"], 0),
    )


def test_a_fit_of_decays_an_artefact_and_an_offset(backend):
    """Times are an array of `data`, parameters a vector and two 0-d arrays."""
    w = np.array([[2.0, 1.0], [5.0, -1.0], [0.3, 0.0], [0.5, 0.1]])
    y = kinetics(KINETICS, {"t": TIMES}) @ w
    problem = xv.separable(kinetics, y, data={"t": TIMES})
    fit = xv.solve(problem, send_tree(backend, GUESS), over=WITHIN)
    assert fit.status is xv.Status.CONVERGED
    assert error(host_tree(fit.theta), KINETICS) < 1e-8
    np.testing.assert_allclose(host(fit.w), w, atol=1e-7)


def test_samples_that_the_model_has_from_elsewhere():
    """Plain arrays meet traced parameters, with the derivatives of arrays of `data`."""
    y = rng(0).normal(size=TIMES.size)
    found = xv.value_and_gradient(xv.separable(lambda theta, _: kinetics(theta, {"t": TIMES}), y), KINETICS)
    want = xv.value_and_gradient(xv.separable(kinetics, y, data={"t": TIMES}), KINETICS)
    np.testing.assert_array_equal(vector(found[1]), vector(want[1]))


def test_every_function_is_documented():
    page = (Path(__file__).parents[1] / "docs" / "models.md").read_text(encoding="utf-8")
    assert all(f"`{name}(" in page for name in models.__all__)
