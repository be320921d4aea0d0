"""Models that are no pure functions of (theta, data), or that change their shape: an error that says so."""

import itertools

import numpy as np
import pytest

import xvarpro as xv
from xvarpro.core.namespace import device
from xvarpro.errors import ModelError

from .support import HOST_BACKENDS, SIGNAL, Quarter, T, decays, host, send, together

START = np.array([0.5, 8.0])


def solve(model, name="numpy", theta0=START, **keywords):
    return xv.solve(xv.separable(model, SIGNAL, data={"t": T}, **keywords), theta0, backend=name, max_iter=20)


class Changing:
    """A model of which one call after another is scaled by the next factor."""

    def __init__(self, *factors):
        self.factors, self.calls = factors, 0

    def __call__(self, theta, data):
        self.calls += 1
        return decays(theta, data) * self.factors[min(self.calls, len(self.factors)) - 1]


def test_a_random_layer_of_jax_is_refused():
    import jax.numpy as jnp

    rng = np.random.default_rng(0)
    problem = xv.separable(lambda theta, data: decays(theta, data) * float(rng.normal()), lambda theta, data: data["y"])
    layer = xv.layers.jax.solve(problem, jnp.array([0.5, 8.0], dtype="float32"))
    with pytest.raises(ModelError, match="pure function"):
        layer({"t": jnp.asarray(T, dtype="float32"), "y": jnp.asarray(SIGNAL, dtype="float32")})


@pytest.mark.parametrize("name", ["numpy", "torch", "array-api-strict"])
def test_rounding_of_another_order_of_sums_is_allowed(name):
    assert solve(Changing(1.0, 1 + 1e-14, 1.0), name).success


def changing(like):
    """Functions whose second call differs from the first, in ways that every framework shows."""
    calls = itertools.count(1)

    def entry(x):
        xp = xv.array_namespace(x)
        small = 4e4 * xp.finfo(x.dtype).eps * next(calls)
        first, term = (xp.asarray(y, **like(x)) for y in ([0.25, 0.5, 1.0], [0.0, 0.0, small]))
        return (x * first + 1024.0 * term,)

    return {
        "a number": lambda x: (x[:1] * next(calls),),
        "an entry": entry,
        "a shape": lambda x: (0.0 * x[: 1 + next(calls) % 2],),
        "the last of its results": lambda x: (x, x[:0], x * next(calls)),
    }


@pytest.mark.parametrize("name", HOST_BACKENDS)
def test_a_function_that_is_called_twice_has_to_give_the_same(name, subtests):
    backend = xv.backends.get(name)

    def like(x):
        return {"dtype": x.dtype, "device": device(x)}

    def pure(x):
        xp = xv.array_namespace(x)
        own = xp.zeros_like(x)
        own += xp.asarray([1.0, 2.0, 3.0], **like(x))  # in place, where the framework can
        gaps = xp.asarray([1.0, 0.0, float("nan")], **like(x))
        kept = xp.where(xp.isnan(gaps), x, x * gaps)
        return xp.cumulative_sum(kept * own), x[:0], xp.astype(x, xp.int32), 0.0 * x

    with backend.scope("float64"):
        x = send(backend, np.array([0.5, -1.25, 2.0]) * 1024.0)
        assert [tuple(y.shape) for y in backend.program(pure, (x,))[0]] == [(3,), (0,), (3,), (3,)]
        for what, fun in changing(like).items():
            with subtests.test(what), pytest.raises(ModelError, match="must be a pure function"):
                backend.program(fun, (x,))


def wider(theta, data):
    xp = xv.array_namespace(theta)
    M = decays(theta, data)
    return xp.concat([M, M[:, :1] ** 2], axis=1)


def shorter(theta, data):
    return decays(theta, data)[:-1, :]


def single(theta, data):
    xp = xv.array_namespace(theta)
    return xp.astype(decays(theta, data), xp.float32)


@pytest.mark.parametrize("name", HOST_BACKENDS)
@pytest.mark.parametrize("other", [wider, shorter, single])
def test_a_model_that_changes_midway_is_named(other, name):
    calls = []

    def model(theta, data):
        calls.append(1)
        return (decays if len(calls) < 3 else other)(theta, data)

    solve(decays, name)  # a compiled program that is known is looked at once
    with pytest.raises(ModelError, match="same shapes and dtypes at every theta; got"):
        solve(model, name)


def test_a_batch_that_changes_midway_is_named():
    calls = []

    def model(theta, data):
        calls.append(1)
        M = together(theta, data)
        return M if len(calls) < 8 else xv.array_namespace(theta).concat([M, M], axis=2)

    with pytest.raises(ModelError, match="same shapes and dtypes at every theta; got"):
        solve_two(model)


def test_torch_modules_and_tensors_of_a_model_are_used_as_they_are_pure():
    """Batch norms and dropout in training mode are refused, and work in evaluation, as does writing to one's own."""
    import torch

    torch.manual_seed(0)
    norm = torch.nn.BatchNorm1d(2).double().requires_grad_(False)  # its scales are constant

    def model(theta, data):
        return norm(decays(theta, data))

    def written(theta, data):
        M = decays(theta, data).clone()
        M[:, 1] *= 2.0
        return torch.nn.functional.dropout(M, 0.5, training=False).add_(0.0)

    with pytest.raises(ModelError, match=r"BatchNorm.*\.eval\(\)"):
        solve(model, "torch")
    with pytest.raises(ModelError, match="BatchNorm"):
        xv.layers.torch.Solve(xv.separable(model, torch.tensor(SIGNAL)), torch.tensor(START))({"t": torch.tensor(T)})
    with pytest.raises(ModelError, match="dropout"):
        solve(lambda theta, data: torch.nn.functional.dropout(decays(theta, data), 0.5), "torch")
    norm.eval()
    assert np.isfinite(solve(model, "torch").value)
    assert solve(written, "torch").success


def test_a_negative_ridge_of_a_step_is_refused_and_of_an_iterate_is_named():
    fit = solve(decays, lam=lambda theta, data: theta[0] - 0.4, solver=xv.lower.QR())
    assert host(fit.theta)[0] >= 0.4
    assert np.isfinite(fit.value)
    problem = xv.separable(decays, SIGNAL, data={"t": T}, lam=lambda theta, data: 1e-3 * (0.6 - theta[0]))
    blind = xv.algorithms.FrankWolfe(Quarter())
    fit = xv.solve(problem, START, over=xv.sets.Box(0.0, 10.0), algorithm=blind, max_iter=20)
    assert fit.status is xv.Status.NEGATIVE_RIDGE
    assert "exponential of a parameter" in fit.message


@pytest.mark.parametrize("name", HOST_BACKENDS)
def test_a_negative_ridge_is_named_at_the_start(name):
    with pytest.raises(ModelError, match=r"ridge lam must return a number >= 0; got -0\.5 at theta0"):
        solve(decays, name, lam=lambda theta, data: theta[0] - 1.0)


@pytest.mark.parametrize("name", HOST_BACKENDS)
def test_an_end_at_a_ridge_of_zero_is_named(name):
    problem = xv.separable(decays, SIGNAL, data={"t": T}, lam=lambda theta, data: 0.9 - theta[0])
    fit = xv.solve(problem, START, over=xv.sets.Box(0.0, 10.0), backend=name)
    assert fit.status is xv.Status.NEGATIVE_RIDGE
    assert host(fit.theta)[0] == pytest.approx(0.9)


@pytest.mark.thorough
def test_one_model_takes_data_of_several_sizes_and_precisions():
    """What was compiled for one of them says nothing about the others."""
    for dtype, n in (("float64", 40), ("float64", 30), ("float32", 40)):
        problem = xv.separable(decays, SIGNAL[:n].astype(dtype), data={"t": T[:n].astype(dtype)})
        assert xv.solve(problem, START.astype(dtype), backend="jax", max_iter=1).n_iter


@pytest.mark.frameworks
def test_a_first_trace_may_hold_more_than_the_ones_after_it():
    """As those of functions of `jax.numpy` that JAX keeps once they have been traced."""
    jax = pytest.importorskip("jax")
    traced = []

    def M(theta, t):
        if not traced:
            jax.numpy.zeros(0)
        traced.append(theta)
        return jax.numpy.exp(-t[:, None] * theta)

    t = np.linspace(0.0, 1.0, 20)
    problem, method = xv.separable(M, np.exp(-t), data=t, lam=1e-3, solver=xv.lower.QR()), xv.algorithms.FrankWolfe()
    fit = xv.solve(problem, np.array([1.0, 3.0]), (0.0, 9.0), algorithm=method, backend="jax", max_iter=1)
    assert np.isfinite(fit.value)


@pytest.mark.parametrize("name", HOST_BACKENDS)
def test_a_random_model_and_a_random_batch_are_refused(name):
    rng = np.random.default_rng(0)

    def noisy(theta, data):
        return decays(theta, data) * (1 + 1e-9 * float(rng.normal()))

    def batched(theta, data):
        return together(theta, data) * float(rng.normal())

    with pytest.raises(ModelError, match=r"pure function of \(theta, data\).*random numbers"):
        solve(noisy, name)
    with pytest.raises(ModelError, match="pure function"):
        solve_two(batched, name)


def solve_two(model, name="numpy"):
    """A batch."""
    return xv.solve_many(xv.separable(model, np.stack([SIGNAL] * 2), data=T), np.tile(START, (2, 1)), backend=name)
