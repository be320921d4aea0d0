"""Functions that the standard lacks: values, derivatives of several orders and fits, on every backend."""

import sys
from pathlib import Path

import mpmath
import numpy as np
import pytest

import xvarpro as xv
from xvarpro import backends
from xvarpro.backends.special import FUNCTIONS, evaluate
from xvarpro.errors import BackendNotInstalledError, ModelError, UnsupportedError

from .support import BACKENDS, central_differences, error, host, host_tree, rng, send

FAR = np.concatenate([np.linspace(-26.3, 6.1, 60), [1.999, 2.001, 9.0, 12.0, 20.0, 25.0, 1e3, 1e5, 1e10]])
POSITIVE = np.concatenate([np.logspace(-30, 10, 41), np.linspace(0.03, 8.0, 41), [0.999, 1.001, 1.999, 2.001]])
LONG = {"erf": mpmath.erf, "erfc": mpmath.erfc, "gammaln": mpmath.loggamma,
        "erfcx": lambda x: mpmath.exp(x * x) * mpmath.erfc(x)}  # fmt: skip


def check_values(name, found, grid):
    """To a few roundings, and those of the argument of ``exp(x^2)``; the suite has derivatives, at fewer points."""
    info = np.finfo(found.dtype)
    for got, x in zip(found.tolist(), grid.tolist(), strict=True):
        with mpmath.workdps(80):
            want = LONG[name](mpmath.mpf(x))
        if 1e4 * info.tiny < abs(want) < info.max:
            size = max(abs(want), 1) if name == "gammaln" else abs(want) * (1 + x * x * (name != "erf" and abs(x) < 30))
            assert abs(got - want) <= (20 if name == "gammaln" else 3) * info.eps * size, (x, got, want)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", LONG)
def test_values_far_away(name, dtype, backend):
    grid = (POSITIVE if name == "gammaln" else FAR).astype(dtype)
    with backend.scope(dtype):
        found = [host(evaluate(send(backend, grid), name, n)) for n in range(3)]
        double = [evaluate(grid.astype(float), name, n) for n in range(3)]
    assert all(x.dtype == dtype for x in found)
    check_values(name, found[0], grid)
    if dtype == "float32":  # whose derivatives are those of double precision, rounded
        near = grid > 0.02 if name == "gammaln" else np.abs(grid) < 3
        for got, want in zip(found[1:], double[1:], strict=True):
            np.testing.assert_allclose(got[near], want[near], rtol=2e-4, atol=1e-6)


def test_extremes(backend):
    def values(name, *xs):
        with backend.scope("float64"):
            return host(getattr(xv.special, name)(send(backend, np.array(xs))))

    inf = np.inf
    np.testing.assert_array_equal(values("erf", -inf, 0.0, inf), [-1.0, 0.0, 1.0])
    np.testing.assert_array_equal(values("erfc", -inf, 30.0, inf), [2.0, 0.0, 0.0])
    np.testing.assert_array_equal(values("erfcx", -30.0, 0.0, inf), [inf, 1.0, 0.0])
    np.testing.assert_allclose(values("erfcx", 1e10, 1e200) * np.sqrt(np.pi), [1e-10, 1e-200], rtol=1e-15)
    np.testing.assert_allclose(values("gammaln", 1e-300, 1e300), [300 * np.log(10), 1e300 * (300 * np.log(10) - 1)])
    assert all(np.isnan(values(name, np.nan)) for name in LONG)
    with backend.scope("float64"):
        slopes = [host(evaluate(send(backend, np.array([-30.0, 1e10, inf])), "erfcx", n)) for n in (1, 2)]
    np.testing.assert_allclose(slopes[0], [-inf, -1e-20 / np.sqrt(np.pi), 0.0])
    np.testing.assert_allclose(slopes[1], [inf, 2e-30 / np.sqrt(np.pi), 0.0])


@pytest.mark.frameworks
def test_compiled_and_mapped_by_jax():
    import jax

    with jax.enable_x64(True):
        x = jax.numpy.linspace(-1.0, 3.0, 6).reshape(2, 3) + 1.5
        for name in LONG:
            function = getattr(xv.special, name)
            second = jax.jit(jax.vmap(jax.vmap(jax.grad(jax.grad(function)))))
            np.testing.assert_allclose(second(x), evaluate(x, name, 2), rtol=1e-14)
            np.testing.assert_allclose(jax.jvp(function, (x,), (x,))[1], x * evaluate(x, name, 1), rtol=1e-14)


def test_transforms_of_torch():
    import torch

    x = torch.linspace(0.5, 4.5, 6, dtype=torch.float64)
    for name in LONG:
        function = getattr(xv.special, name)
        second = torch.func.vmap(torch.func.grad(torch.func.grad(function)))
        torch.testing.assert_close(second(x), evaluate(x, name, 2))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_erfcx_for_a_jax_that_has_none(dtype):
    import jax

    from xvarpro.backends.jax import _erfcx

    with jax.enable_x64(True):
        check_values("erfcx", np.asarray(_erfcx(jax.numpy.asarray(FAR.astype(dtype)))), FAR.astype(dtype))


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("x", [3.0, [1.0], np.ones(2, int), np.ones(2, complex), None])
def test_what_is_no_real_floating_array(x):
    with pytest.raises(ModelError, match=r"erf needs a real floating array; got (float|list|int64|complex|NoneType)"):
        xv.special.erf(x)


def test_scipy_is_an_extra(monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "scipy"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "scipy", None)
    message = r"xv\.special\.erfcx needs the package 'scipy', .*pip install 'xvarpro\[scipy\]'"
    with pytest.raises(BackendNotInstalledError, match=message):
        xv.special.erfcx(np.ones(2))
    with pytest.raises(BackendNotInstalledError, match=message):  # by name, not as a failing model
        xv.solve(xv.separable(lambda theta, t: xv.special.erfcx(t * theta), np.ones((3, 1)), data=T), np.ones(1))


def test_a_backend_without_them_says_what_to_define(monkeypatch):
    monkeypatch.delattr(type(backends.get("numpy")), "special")
    with pytest.raises(UnsupportedError, match=r"needs a backend with a method `special`; numpy has none\. Derive it"):
        xv.special.erf(np.ones(2))


# -- fits --------------------------------------------------------------------------------------------------------------

T = np.linspace(-2.0, 12.0, 120)
TRUTH = {"at": np.array([0.1]), "k": np.array([0.4, 3.0]), "s": np.array([0.15])}
START = {"at": np.array([0.0]), "k": np.array([0.2, 5.0]), "s": np.array([0.3])}
OVER = {"at": xv.sets.Box(-1.0, 1.0), "k": xv.sets.Box(0.01, 50.0), "s": xv.sets.Box(0.01, 2.0)}


def emg(theta, data):
    """Decays convolved with a Gaussian response: (..., m, 2) from leaves (..., 1) and (..., 2)."""
    xp = xv.array_namespace(theta)
    at, k, s = (xp.expand_dims(theta[name], axis=-2) for name in ("at", "k", "s"))
    t = xp.expand_dims(data, axis=-1) - at
    z = (k * s - t / s) / 2**0.5
    before = xp.exp(-0.5 * (t / s) ** 2) * xv.special.erfcx(xp.clip(z, 0.0, None))
    after = xp.exp(xp.clip(0.5 * (k * s) ** 2 - k * t, None, 0.0)) * xv.special.erfc(xp.clip(z, None, 0.0))
    return 0.5 * xp.where(z > 0, before, after)


def counts(noise):
    return emg(TRUTH, T) @ np.array([2.0, 5.0]) + noise * np.random.default_rng(0).normal(size=T.size)


def test_fit_of_decays_behind_a_gaussian_response(backend):
    theta0 = {name: send(backend, x) for name, x in START.items()}
    fit = xv.solve(xv.separable(emg, counts(0.01), data=T), theta0, over=OVER)
    reference = xv.solve(xv.separable(emg, counts(0.01), data=T), START, over=OVER)
    assert fit.status is xv.Status.CONVERGED
    assert error(host_tree(fit.theta), reference.theta) < 1e-6
    assert error(host_tree(fit.theta), TRUTH) < 0.05
    exactly = xv.solve(xv.separable(emg, counts(0.0), data=T), theta0, over=OVER)
    assert error(host_tree(exactly.theta), TRUTH) < 1e-8


def test_gradient_where_one_form_is_infinite(backend):
    """At t / s near 80, `erfcx` of the unclipped argument is infinite."""
    problem = xv.separable(emg, counts(0.01), data=T)
    gradient = xv.value_and_gradient(problem, {name: send(backend, x) for name, x in TRUTH.items()})[1]
    want = central_differences(lambda theta: float(xv.value_and_gradient(problem, theta)[0]), TRUTH)
    np.testing.assert_allclose(np.concatenate([host(gradient[name]) for name in TRUTH]), want, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("name", BACKENDS[:4])
def test_a_batch_of_fits(name):
    y = np.stack([counts(0.0), 3.0 * counts(0.0)])
    theta0 = {key: np.stack([x, x]) for key, x in START.items()}
    fit = xv.solve_many(xv.separable(emg, y, data=T), theta0, over=OVER, backend=name)
    np.testing.assert_allclose(fit.theta["k"], [TRUTH["k"]] * 2, rtol=1e-7)


def test_every_function_is_public_and_documented():
    assert set(xv.special.__all__) - {"external"} == set(FUNCTIONS) == set(LONG)
    page = (Path(__file__).parents[1] / "docs" / "special.md").read_text(encoding="utf-8")
    assert all(f"`{name}(x)`" in page for name in LONG)


def powers(x):
    return np.sum(x) * x[:, None] ** np.arange(3.0)


def slopes(x):
    n, own = np.arange(3.0), np.eye(len(x))
    falls = n * x[:, None] ** np.maximum(n - 1, 0)
    return x[:, None, None] ** n[:, None] + np.sum(x) * falls[:, :, None] * own[:, None, :]


@pytest.mark.parametrize("name", [name for name in BACKENDS[:4] if name != "jax"])
def test_functions_of_numpy_have_the_derivative_that_is_given_or_differences(name):
    backend = backends.get(name)
    x, g = np.array([0.5, 2.0]), rng(0).normal(size=(2, 3))
    with backend.scope("float64"):
        for jacobian, digits in ((slopes, 1e-14), (None, 1e-9)):
            for scale in (1.0, 2.0):  # also where the argument is computed

                def fun(x, jacobian=jacobian, scale=scale):
                    return (xv.special.external(powers, scale * x, jacobian),)

                (y,), pull = backend.vjp(fun, (send(backend, x),))
                np.testing.assert_array_equal(host(y), powers(scale * x))
                want = scale * np.einsum("ij,ijk", g, slopes(scale * x))
                np.testing.assert_allclose(host(pull((send(backend, g),))[0]), want, rtol=digits)


def test_differences_are_one_sided_where_a_function_ends():
    def M(theta, data):
        return xv.special.external(lambda x: np.sqrt(x[0]) * np.ones((4, 1)), theta)

    problem = xv.separable(M, np.full(4, 2.0), W=xv.lower.Fixed(np.ones(1, bool), 1.0))
    slope = xv.value_and_gradient(problem, np.array([1e-300]))[1]
    assert np.isfinite(slope).all()
    assert slope[0] < 0


def test_a_function_in_the_data_predicts_elsewhere():
    t = np.arange(4.0)
    problem = xv.separable(lambda theta, f: xv.special.external(f, theta), t**2, data=lambda x: np.outer(t, x))
    fit = xv.solve(problem, np.array([1.0]), over=(1.0, 1.0))
    np.testing.assert_allclose(fit.predict(lambda x: np.outer([2.0, 3.0], x)), [2.0, 3.0] * fit.w)


def test_functions_of_numpy_say_what_is_wrong():
    x = np.array([1.0, 2.0])
    with pytest.raises(ModelError, match="real floating"):
        xv.special.external(powers, x + 0j)
    with pytest.raises(ModelError, match=r"one real floating array; got dict.*xp\.stack"):
        xv.special.external(powers, {"x": x})
    with pytest.raises(ModelError, match="real arrays"):
        xv.special.external(lambda x: x + 1j, x)
    with pytest.raises(ModelError, match="must be > 0"):
        xv.special.external(powers, x, step=0.0)
    for name, jacobian, words in (("numpy", powers, "must return an array of shape"), ("jax", None, "backend='numpy'")):
        problem = xv.separable(lambda theta, data, j=jacobian: xv.special.external(powers, theta, j), np.ones(2))
        with pytest.raises(ModelError, match=words):
            xv.solve(problem, x, backend=name)
