"""Nothing is silently wrong: what surrounds a solve, what its arrays are, and what becomes of them later."""

import re
from contextlib import ExitStack, contextmanager
from functools import partial

import jax
import numpy as np
import pytest
import scipy.sparse
import torch
from torch.overrides import TorchFunctionMode

import xvarpro as xv
from xvarpro.errors import ModelError, ProblemError
from xvarpro_conformance.frameworks import hooks

T = np.linspace(0.0, 2.0, 50)
Y = 2.0 * np.exp(-T) + np.exp(-5.0 * T)
START, BOX = np.array([0.5, 8.0]), xv.sets.Box(0.0, 10.0)
SIMPLE = {"algorithm": xv.algorithms.FrankWolfe(), "solver": xv.lower.QR()}  # compile in less time than the defaults
BACKENDS = ("numpy", "torch", "jax")


def M(theta, data):
    xp = xv.array_namespace(theta)
    return xp.exp(-xp.expand_dims(data["t"], axis=1) * xp.expand_dims(theta, axis=0))


def stated(y=Y, t=T, model=M, lam=1e-9, **fields):
    return xv.separable(model, y, data={"t": t}, lam=lam, **fields)


def solved(y=Y, t=T, theta0=START, model=M, backend=None, over=BOX, algorithm=None, max_iter=30, **fields):
    problem = stated(y, t, model, **fields)
    return xv.solve(problem, theta0, over=over, backend=backend, algorithm=algorithm, max_iter=max_iter)


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
}  # each by itself: the suite's numerics scope/modes of the caller


@contextmanager
def all_of(backend):
    with ExitStack() as stack:
        for setting in SETTINGS[backend].values():
            stack.enter_context(setting())
        yield


@pytest.mark.parametrize("kept", ["ieee", "tf32"])
def test_short_products_that_a_program_switches_on_are_off_in_a_solve(kept, monkeypatch):
    """By the switch of PyTorch 2.9, after which the older one cannot be read."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    products, seen = torch.backends.cuda.matmul, []
    use = partial(setattr, products, "fp32_precision")

    def model(theta, data):
        seen.append(products.fp32_precision)
        return M(theta, data)

    with switched(partial(use, kept), partial(use, products.fp32_precision)):
        solved(model=model, backend="torch")
        assert products.fp32_precision == kept
    assert set(seen) == {"ieee"}


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_solve_does_not_depend_on_the_settings_around_it(backend):
    y, t, theta0 = as_dtype("float32")
    plain = solved(y, t, theta0, backend=backend, **SIMPLE)
    settings = hooks(xv.backends.get(backend)).settings
    with all_of(backend):
        before = settings()
        found = solved(y, t, theta0, backend=backend, **SIMPLE)
        w = found.w
        assert settings() == before
    assert (found.status, found.n_iter, found.value) == (plain.status, plain.n_iter, plain.value)
    np.testing.assert_array_equal(found.theta, plain.theta)
    np.testing.assert_array_equal(w, plain.w)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_failed_factorisation_stays_a_status_whatever_is_switched_on(backend):
    def twice(theta, data):
        xp = xv.array_namespace(theta)
        return xp.stack([data["t"] * theta[0], data["t"] * theta[0]], axis=1)

    with all_of(backend):
        found = solved(model=twice, lam=0.0, backend=backend, **SIMPLE)
    assert found.status.name == "RANK_DEFICIENT"


@pytest.mark.parametrize("backend", BACKENDS)
def test_numbers_outside_of_a_model_may_change_between_solves(backend):
    """A compiled function would keep those that it met first."""
    outside = {"rate": 1.0, "offset": np.zeros(1)}

    def model(theta, data):
        xp = xv.array_namespace(theta)
        t = data["t"] + xp.asarray(outside["offset"], dtype=theta.dtype)
        return xp.exp(-outside["rate"] * xp.expand_dims(t, axis=-1) * xp.expand_dims(theta, axis=-2))

    many = xv.separable(model, np.stack([Y, Y]), data={"t": xv.Each(np.stack([T, T]))}, lam=1e-9)
    found = []
    for outside["rate"] in (1.0, 1.0 + 1e-9):
        found.append((
            xv.solve_many(many, START[:1] + np.zeros((2, 1)), backend=backend).theta[0, 0],
            solved(model=model, backend=backend, **SIMPLE).theta[1],
            xv.value_and_gradient(stated(model=model), START, backend=backend)[0],
        ))  # fmt: skip
    first, near = np.array(found)
    assert (near != first).all()
    np.testing.assert_allclose(near, first, rtol=1e-6)
    outside["offset"] = np.full(1, 0.25)  # the weights take it up, but for the ridge
    shifted = xv.value_and_gradient(stated(model=model), START, backend=backend)[0]
    assert abs(shifted - near[2]) > 1e-8


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
    for call in (lambda: xv.value_and_gradient(stated(y, t), theta0), lambda: solved(y, t, theta0, **SIMPLE)):
        with Rounding(), pytest.raises(ModelError, match=f"must be computed in {dtype}"):
            call()


def test_fingerprints_are_made_when_they_are_asked_for_and_stay_those_of_the_solve(monkeypatch):
    def refuse(*_):
        raise AssertionError("an array was hashed")

    y = Y.copy()
    with monkeypatch.context() as patch:
        patch.setattr("hashlib.sha256", refuse)
        found, fit = solved(y, T, START, **SIMPLE), solved(torch.tensor(Y), torch.tensor(T), torch.tensor(START))
        assert found.fitted.shape == fit.fitted.shape == Y.shape
    assert len(found.recipe.fingerprints) == 6
    y *= 0.5
    assert xv.verify(found, stated(), rerun=False).ok


# -- arrays that change after the solve, or during it ------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_result_is_that_of_the_solve_whatever_becomes_of_its_arrays(backend, tmp_path):
    y, t, weights, theta0, upper = Y.copy(), T.copy(), np.ones(50), START.copy(), np.full(2, 10.0)
    found = solved(y, t, theta0, backend=backend, over=xv.sets.Box(0.0, upper), weights=weights, **SIMPLE)
    for x in (y, t, weights, theta0, upper):
        x *= 0.5
    found.save(tmp_path / "fit.npz")
    problem = stated(weights=np.ones(50))
    written = ", ".join(f"{name} (written to after the solve)" for name in ("data['t']", "lower.weights", "lower.y"))
    for fit in (found, xv.Result.load(tmp_path / "fit.npz")):
        best = np.linalg.lstsq(M(fit.theta, {"t": T}), Y)[0]
        np.testing.assert_allclose(fit.w, best, rtol=1e-6)
        assert (fit.recipe.over.upper == 10.0).all()
        assert (fit.recipe.theta0 == START).all()
        of_data, *others = xv.verify(fit, problem, rerun=False).checks
        assert of_data.sentence == f"differ: {written}"
        assert all(check.passed for check in others)


MANY = Y[:, None] * np.linspace(1.0, 2.0, 60)  # more columns than rows: it is compressed


@pytest.mark.parametrize("kind", ["array", "chunks"])
def test_w_that_is_solved_for_later_says_that_its_arrays_have_changed(kind, monkeypatch):
    monkeypatch.setattr("xvarpro.driver.outcome.ORDINARY", 0)
    y = MANY.copy()
    target = y if kind == "array" else xv.ColumnChunks([y[:, :30], y[:, 30:]])
    found = solved(target, **SIMPLE)
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


def test_a_model_that_writes_to_data_past_its_framework_is_an_error_in_one_evaluation_and_a_batch():
    def model(theta, data):
        by_numpy(data["t"])
        return M(theta, data)

    def batched(theta, data):
        by_numpy(data["t"])
        return torch.exp(-theta[:, None, :] * data["t"][None, :, None])

    y, start = torch.tensor(Y), torch.tensor(START)
    many = stated(y[None, :].repeat(3, 1), torch.tensor(T), batched)
    for call in (
        lambda: xv.solve_many(many, start.repeat(3, 1), over=BOX),
        lambda: xv.value_and_gradient(stated(y, torch.tensor(T), model), start),
    ):
        with pytest.raises(ModelError, match=r"got another data\['t'\] afterwards"):
            call()


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

    with pytest.raises(ModelError, match=r"got another lower\.y afterwards"):
        xv.solve(stated(y), START, over=BOX, callback=callback)


# -- what counts as an array -------------------------------------------------------------------------------------------

# Every form is asked of the suite's exchange/arrays in other forms; here, that all places where one is given ask.


class Column:
    """A column of a table: pandas.Series, polars.Series, xarray.DataArray."""

    def __init__(self, values):
        self.values = np.asarray(values)

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.values, dtype)

    dtype = property(lambda self: self.values.dtype)


class MeasuredArray(np.ndarray):
    """astropy.units.Quantity, unyt_array."""

    unit = "m"


PLACES = {
    "y": lambda make, backend: solved(make(Y), backend=backend),
    "weights": lambda make, backend: solved(weights=make(np.ones(50)), backend=backend),
    "Omega": lambda make, backend: solved(Omega=make(np.eye(2)), backend=backend),
    "theta": lambda make, backend: solved(theta0=make(START), backend=backend),
    "data['t']": lambda make, backend: solved(t=make(T), backend=backend),
}
FORMS = {"column": Column, "read-only, backwards": lambda x: np.broadcast_to(x, (1, *x.shape))[0][::-1][::-1]}
LISTS = {
    "list": lambda x: x.tolist(),
    "tuple": lambda x: tuple(x.tolist()),
    "of NumPy's numbers": lambda x: list(x) if x.ndim == 1 else [list(row) for row in x],
}


def test_what_is_an_array_in_another_form_is_one(subtests):
    for place, use in PLACES.items():
        plain = use(np.asarray, "numpy")
        for form, make in {**FORMS, **({} if place.startswith("data") else LISTS)}.items():
            with subtests.test(f"{place}: {form}"):
                found = use(make, "numpy")
                assert type(found.theta) is np.ndarray
                np.testing.assert_array_equal(found.theta, plain.theta)
                assert found.recipe.fingerprints == plain.recipe.fingerprints


def test_a_model_that_computes_with_dates_is_told_how():
    with pytest.raises(ModelError, match="pass the time since one, such as"):
        xv.solve(xv.separable(lambda k, t: np.exp(-k * t)[:, None], Y, data=T.astype("datetime64[s]")), 0.05)


NO_ARRAYS = {
    "masked": (lambda x: np.ma.masked_array(x, x == x.flat[1]), r"without masked entries.*~x\.mask"),
    "array with units": (lambda x: x.view(MeasuredArray), "which has units"),
    "dates": (lambda x: Column(x.astype("datetime64[s]")), r"dates\. Pass the time since one"),
    "sparse of SciPy": (lambda x: scipy.sparse.csr_array(np.atleast_2d(x)), "which is sparse"),
}
NO_NUMBERS = {
    "objects": lambda x: x.astype(object),
    "dates": lambda x: np.arange(x.size).reshape(x.shape).astype("datetime64[s]"),
    "differences of dates": lambda x: np.arange(x.size).reshape(x.shape).astype("timedelta64[s]"),
    "texts": lambda x: x.astype(str),
    "bytes": lambda x: x.astype("S9"),
    "structures": lambda x: np.zeros(x.shape, dtype=[("a", float)]),
    "column of texts": lambda x: Column(x.astype(str)),
}


def test_what_is_no_array_of_numbers_is_refused_by_name(subtests):
    for place, use in PLACES.items():
        for kind, (make, message) in NO_ARRAYS.items():
            with (
                subtests.test(f"{place}: {kind}"),
                pytest.raises(ProblemError, match=f"^{re.escape(place)} must be .*{message}"),
            ):
                use(make, "numpy")


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_what_holds_no_numbers_is_refused_by_name(backend, subtests):
    for place in ("y", "weights", "Omega", "theta"):
        for kind, make in NO_NUMBERS.items():
            with subtests.test(f"{place}: {kind}"), pytest.raises(ProblemError, match=f"^{place} must "):
                PLACES[place](make, backend)


def test_lists_in_a_tree_of_parameters_are_leaves():
    def model(theta, data):
        return M(theta["rates"], data) * theta["scale"]

    theta0 = {"rates": [0.5, 8.0], "scale": 1.0}
    found = xv.solve(stated(model=model), theta0, over={"rates": BOX, "scale": xv.sets.Box(1.0, 1.0)})
    assert found.theta["rates"].shape == (2,)
    np.testing.assert_allclose(found.theta["rates"], [1.0, 5.0], atol=1e-6)


def test_data_may_hold_anything(subtests):
    def model(theta, data):
        assert data["name"] == "x"
        return M(theta, data) * len(data["extra"].dtype.name) ** 0

    for kind, make in {**NO_NUMBERS, "objects": lambda x: np.array(["a", None, x], dtype=object)}.items():
        with subtests.test(kind):
            data = {"t": T, "extra": make(START), "name": "x"}
            assert xv.solve(xv.separable(model, Y, data=data, lam=1e-9), START, over=BOX).success
    data = {"t": T, "when": np.arange(50).astype("datetime64[s]")}
    with pytest.raises(ProblemError, match=r"data\['when'\] must hold numbers on torch; got dtype datetime64"):
        xv.solve(xv.separable(M, Y, data=data), START, over=BOX, backend="torch")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_data_have_fingerprints(dtype):
    y = torch.tensor(Y).to(dtype)
    found = solved(y, theta0=torch.tensor(START))
    y[3] += 1.0
    assert found.recipe.fingerprints != solved(y, theta0=torch.tensor(START)).recipe.fingerprints


def test_masked_bounds_and_chunks_are_refused():
    masked = np.ma.masked_array([10.0, 10.0], [False, True])
    with pytest.raises(ProblemError, match="without masked entries"):
        solved(over=xv.sets.Box(0.0, masked))
    rows = [({"t": np.ma.masked_array(T, T > 1.0)}, Y)]
    for source in (rows, lambda: iter(rows)):
        with pytest.raises(ProblemError, match=r"\['t'\].* must be an array without masked entries"):
            xv.solve(xv.separable(M, xv.RowChunks(source)), START, over=BOX)
    columns = [np.ma.masked_array(MANY, MANY > 3.0)]
    for source in (columns, lambda: iter(columns)):
        with pytest.raises(ProblemError, match=r"y.* must be an array without masked entries"):
            solved(xv.ColumnChunks(source))


@pytest.mark.frameworks
def test_a_solve_runs_while_jax_does_not_compile():
    with jax.disable_jit():
        found = solved(backend="jax", max_iter=2, **SIMPLE)
    np.testing.assert_allclose(found.theta, solved(max_iter=2, **SIMPLE).theta, rtol=1e-9)
