"""Nothing is silently wrong: what surrounds a solve, what its arrays are, and what becomes of them later."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager

import jax
import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

import xvarpro as xv
from xvarpro.errors import ModelError, ProblemError

T = np.linspace(0.0, 2.0, 50)
Y = 2.0 * np.exp(-T) + np.exp(-5.0 * T)
START, BOX = np.array([0.5, 8.0]), xv.sets.Box(0.0, 10.0)
SIMPLE = xv.algorithms.FrankWolfe()  # compiles in less time than the default
BACKENDS = ("numpy", "torch", "jax")


def M(theta, data):
    xp = xv.array_namespace(theta)
    return xp.exp(-xp.expand_dims(data["t"], axis=1) * xp.expand_dims(theta, axis=0))


def stated(y=Y, t=T, model=M, lam=1e-9, **fields):
    return xv.separable(model, y, data={"t": t}, lam=lam, **fields)


def solved(y=Y, t=T, theta0=START, model=M, backend=None, over=BOX, algorithm=None, **fields):
    problem = stated(y, t, model, **fields)
    return xv.solve(problem, theta0, over=over, backend=backend, algorithm=algorithm, max_iter=30)


def as_dtype(dtype):
    return Y.astype(dtype), T.astype(dtype), START.astype(dtype)


# -- settings of the caller --------------------------------------------------------------------------------------------


@contextmanager
def switched(on, off):
    on()
    try:
        yield
    finally:
        off()


class Rounding(TorchFunctionMode):
    """Products in half precision, which is no setting that a solve knows."""

    def __torch_function__(self, fun, types, args=(), kwargs=None):
        found = fun(*args, **(kwargs or {}))
        return found.bfloat16() if fun is torch.Tensor.matmul and not found.ndim else found


SETTINGS = {
    "torch": {
        "autocast to bfloat16": lambda: torch.autocast("cpu", torch.bfloat16),
        "autocast to float16": lambda: torch.autocast("cpu", torch.float16),
        "inference mode": torch.inference_mode,
        "no gradients": torch.no_grad,
        "default dtype": lambda: switched(
            lambda: torch.set_default_dtype(torch.float16), lambda: torch.set_default_dtype(torch.float32)
        ),
        "default device": lambda: torch.device("meta"),
        "deterministic algorithms": lambda: switched(
            lambda: torch.use_deterministic_algorithms(True), lambda: torch.use_deterministic_algorithms(False)
        ),
    },
    "jax": {
        "x64": lambda: jax.enable_x64(True),
        "products in bfloat16": lambda: jax.default_matmul_precision("bfloat16"),
        "default device": lambda: jax.default_device(jax.devices("cpu")[0]),
        "strict promotion": lambda: jax.numpy_dtype_promotion("strict"),
        "NaN checks": lambda: jax.debug_nans(True),
        "inf checks": lambda: jax.debug_infs(True),
        "rank promotion": lambda: jax.numpy_rank_promotion("raise"),
        "transfer guard": lambda: jax.transfer_guard("disallow"),
        "transfer guard one way": lambda: jax.transfer_guard_host_to_device("disallow_explicit"),
    },
    "numpy": {
        "errors raised": lambda: np.errstate(all="raise"),
        "print options": lambda: np.printoptions(precision=1, threshold=2),
    },
}


@contextmanager
def all_of(backend):
    with ExitStack() as stack:
        for setting in SETTINGS[backend].values():
            stack.enter_context(setting())
        yield


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("backend", "name"), [(b, name) for b, settings in SETTINGS.items() for name in settings])
def test_a_gradient_does_not_depend_on_the_settings_around_it(backend, name, dtype):
    y, t, theta0 = as_dtype(dtype)
    value, gradient = xv.value_and_gradient(stated(y, t), theta0, backend)
    settings = xv.backends.get(backend).settings
    with SETTINGS[backend][name]():
        before = settings()
        found, slope = xv.value_and_gradient(stated(y, t), theta0, backend)
        assert settings() == before
    assert found.dtype == dtype
    assert found == value
    np.testing.assert_array_equal(slope, gradient)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_solve_does_not_depend_on_the_settings_around_it(backend):
    y, t, theta0 = as_dtype("float32")
    plain = solved(y, t, theta0, backend=backend, algorithm=SIMPLE)
    with all_of(backend):
        found = solved(y, t, theta0, backend=backend, algorithm=SIMPLE)
        w = found.w
    assert (found.status, found.n_iter, found.value) == (plain.status, plain.n_iter, plain.value)
    np.testing.assert_array_equal(found.theta, plain.theta)
    np.testing.assert_array_equal(w, plain.w)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_failed_factorisation_stays_a_status_whatever_is_switched_on(backend):
    def twice(theta, data):
        xp = xv.array_namespace(theta)
        return xp.stack([data["t"] * theta[0], data["t"] * theta[0]], axis=1)

    with all_of(backend):
        found = solved(model=twice, lam=0.0, backend=backend, algorithm=SIMPLE)
    assert found.status.name == "RANK_DEFICIENT"


def test_a_model_that_casts_by_itself_is_refused():
    def half(theta, data):
        with torch.autocast("cpu", torch.bfloat16):
            return M(theta, data) @ torch.eye(2, dtype=theta.dtype)

    y, t, theta0 = as_dtype("float32")
    with pytest.raises(ModelError, match="must return float32, theta's dtype; got bfloat16"):
        solved(y, t, theta0, half, "torch")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_an_objective_in_another_dtype_is_refused(dtype):
    y, t, theta0 = map(torch.as_tensor, as_dtype(dtype))
    with Rounding(), pytest.raises(ModelError, match=f"must be computed in {dtype}"):
        xv.value_and_gradient(stated(y, t), theta0)
    with Rounding(), pytest.raises(ModelError, match=f"must be computed in {dtype}"):
        solved(y, t, theta0, algorithm=SIMPLE)


# -- arrays that change after the solve, or during it ------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_result_is_that_of_the_solve_whatever_becomes_of_its_arrays(backend, tmp_path):
    y, t, weights, theta0, upper = Y.copy(), T.copy(), np.ones(50), START.copy(), np.full(2, 10.0)
    found = solved(y, t, theta0, backend=backend, over=xv.sets.Box(0.0, upper), weights=weights, algorithm=SIMPLE)
    for x in (y, t, weights, theta0, upper):
        x *= 0.5
    found.save(tmp_path / "fit.npz")
    problem = stated(weights=np.ones(50))
    for fit in (found, xv.Result.load(tmp_path / "fit.npz")):
        best = np.linalg.lstsq(M(fit.theta, {"t": T}), Y)[0]
        np.testing.assert_allclose(fit.w, best, rtol=1e-6)
        assert (fit.recipe.over.upper == 10.0).all()
        assert (fit.recipe.theta0 == START).all()
        assert xv.verify(fit, problem, rerun=False).ok


MANY = Y[:, None] * np.linspace(1.0, 2.0, 60)  # more columns than rows: it is compressed


@pytest.mark.parametrize("backend", BACKENDS)
def test_w_of_many_columns_is_that_of_the_solve(backend):
    y = MANY.copy()
    found = solved(y, backend=backend, algorithm=SIMPLE)
    y *= 10.0
    np.testing.assert_allclose(found.w, np.linalg.lstsq(M(found.theta, {"t": T}), MANY)[0], rtol=1e-6)


@pytest.mark.parametrize("kind", ["array", "chunks"])
def test_w_that_is_solved_for_later_says_that_its_arrays_have_changed(kind, monkeypatch):
    monkeypatch.setattr("xvarpro.driver.outcome.ORDINARY", 0)
    y = MANY.copy()
    target = y if kind == "array" else xv.ColumnChunks([y[:, :30], y[:, 30:]])
    found = solved(target, algorithm=SIMPLE)
    y *= 10.0
    with pytest.raises(ProblemError, match=r"another lower\.y.* than that of the solve"):
        found.w  # noqa: B018
    y[:] = MANY
    np.testing.assert_allclose(found.w, np.linalg.lstsq(M(found.theta, {"t": T}), MANY)[0], rtol=1e-6)


def by_item(x):
    x[0] = 7.0


def by_method(x):
    x.mul_(1.5)


def by_data(x):
    x.data[0] = 7.0


def by_numpy(x):
    np.asarray(x)[0] = 7.0


def late():
    """A write after the checks, which call a model a few times."""
    calls = iter(range(1000))

    def write(x):
        if next(calls) > 5:
            x[0] = 7.0

    return write


@pytest.mark.parametrize("write", [by_item, by_method, by_data, by_numpy, late()])
def test_a_model_that_writes_to_data_is_an_error(write):
    def model(theta, data):
        write(data["t"])
        return M(theta, data)

    with pytest.raises(ModelError, match=r"must be a pure function|data\['t'\]"):
        solved(torch.tensor(Y), torch.tensor(T), torch.tensor(START), model)


@pytest.mark.parametrize("backend", ["numpy", "jax"])
@pytest.mark.parametrize("write", [by_item, by_numpy])
def test_nothing_that_is_passed_is_written_to(backend, write):
    def model(theta, data):
        write(data["t"])
        return M(theta, data)

    t = T.copy()
    with pytest.raises(ModelError):
        solved(Y, t, model=model, backend=backend)
    assert (t == T).all()


def test_data_that_a_callback_changes_is_an_error():
    y = Y.copy()

    def callback(info):
        y[0] = 7.0

    with pytest.raises(ModelError, match=r"got another lower\.y after it"):
        xv.solve(stated(y), START, over=BOX, callback=callback)
