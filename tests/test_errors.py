"""Bad input: a clear error before any work, which says what was needed, what came, and what to do."""

import traceback

import numpy as np
import pytest

import xvarpro as xv
from xvarpro.core.namespace import dtype_name
from xvarpro.errors import ExchangeError, ModelError, ProblemError, XvarproError
from xvarpro.sets import Box

from .support import HOST_BACKENDS, SIGNAL, T, decays, send

START = np.array([0.5, 8.0])
Y2 = np.stack([SIGNAL, SIGNAL], axis=1)


class Watched:
    """A model that knows how often it was called."""

    def __init__(self, model=decays):
        self.model, self.calls = model, 0

    def __call__(self, theta, data):
        self.calls += 1
        return self.model(theta, data)


@pytest.fixture
def model():
    """A model that must not run: the check that fails is cheaper than any work."""
    watched = Watched()
    yield watched
    assert watched.calls == 0


def refused(kind, message, model, theta0=START, *, y=SIGNAL, data=None, over=None, problem=None, **keywords):
    problem = problem or xv.separable(model, y, data={"t": T} if data is None else data)
    with pytest.raises(kind, match=message) as caught:
        xv.solve(problem, theta0, over=over, **keywords)
    assert isinstance(caught.value, XvarproError)
    return str(caught.value)


def test_every_error_of_the_package_has_one_base():
    kinds = [kind for kind in vars(xv.errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    assert len(kinds) > 5
    assert all(issubclass(kind, XvarproError) for kind in kinds)
    assert issubclass(ProblemError, ValueError)
    assert issubclass(ModelError, TypeError)
    assert {ExchangeError, xv.errors.UnsupportedError} <= set(xv.errors.UnsupportedDtypeError.__mro__)


# -- theta0 ------------------------------------------------------------------------------------------------------------


def test_integer_theta0(model, backend):
    """NumPy's are doubles, as lists of integers are; other frameworks name their precision."""
    if backend.name == "numpy":
        problem = xv.separable(decays, SIGNAL, data={"t": T})
        found = [xv.value_and_gradient(problem, x) for x in (np.array([1, 8]), [1, 8], np.array([1.0, 8.0]))]
        assert len({float(value) for value, _ in found}) == 1
        assert all(gradient.dtype == np.float64 for _, gradient in found)
        return
    refused(ProblemError, r"theta must be float32 or float64; got dtype int64", model, send(backend, np.ones(2, int)))


LEAVES = [
    *(
        ({"a": START, "b": np.ones(2, kind)}, rf"theta\['b'\] must be float32 or float64; got dtype {kind}\. {remedy}")
        for kind, remedy in {"complex128": "Pass real and imag", "bool": "Convert", "float16": "Convert"}.items()
    ),
    ({"a": START, "b": START.astype("float32")}, r"one dtype; got theta\['a'\] is float64, theta\['b'\] is float32"),
    *((empty, "theta0 must hold at least one array") for empty in ({}, [], None)),
    (xv.sets.Box(0.0, 1.0), r"theta0 must be arrays; got a set, Box\(.*Pass it as over="),
    *(
        ({"a": leaf}, rf"theta\['a'\] must be an array or a number; got {type(leaf).__name__}")
        for leaf in ("1.0", True, object())
    ),
    (type("Net", (), {}), r"got type Net\. Pass an object of it, as Net\(\.\.\.\)"),
    (xv.Parameters(), "got Parameters. Pass its theta0, and its over as over="),
    ((x for x in [START]), "got generator. Of a PyTorch module pass the module itself"),
    (type("Net", (), {"apply": None})(), "got Net. Of a module pass its parameters, .* call its apply in M"),
]


def test_theta0_with_leaves_of_another_kind(model, subtests):
    for theta0, message in LEAVES:
        with subtests.test(message):
            refused(ProblemError, message, model, theta0)


def test_mixed_frameworks_in_theta0(model):
    import torch

    message = r"one framework; got theta\['a'\] is a numpy array, theta\['b'\] is a torch array"
    refused(ProblemError, message, model, {"a": START, "b": torch.ones(2, dtype=torch.float64)})


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_theta0_that_is_not_finite(bad, model, backend):
    refused(
        ProblemError,
        r"theta\[1\] must be finite; got NaN or inf",
        model,
        [send(backend, START), send(backend, np.array([bad]))],
    )


def test_infeasible_theta0_says_how_far_and_offers_a_projection(model, backend):
    theta0 = send(backend, np.array([-1.0, 8.0]))
    over = Box(0.0, 5.0)
    text = refused(ProblemError, r"theta0 must be feasible", model, theta0, over=over)
    assert "0.6" in text, "3 beyond an upper bound of 5, relative to a width of 5"
    assert "xv.project(theta0, over)" in text
    refused(ProblemError, r"theta0\[1\] must be feasible", model, [theta0, theta0], over=[None, over])
    refused(ProblemError, r"over for theta\[1\]: Box: bounds must be", model, [theta0, theta0], over=[None, (5.0, 0.0)])
    few = xv.sets.TotalVariationBall(2.3)
    refused(
        ProblemError, r"TotalVariationBall has no projection; its random_point\(theta0\) and", model, theta0, over=few
    )
    with pytest.raises(xv.errors.UnsupportedError, match=r"center\(x\) or random_point\(x\)"):
        xv.project(theta0, few)
    fit = xv.solve(xv.separable(decays, SIGNAL, data={"t": T}), xv.project(theta0, over), over=over, max_iter=1)
    assert fit.verified.violation <= 1e-12


NO_WEIGHTS = [-1.0, float("nan"), float("inf"), "1", None, True]


def test_negative_weights(subtests):
    for value in NO_WEIGHTS:
        with subtests.test(repr(value)):
            for name in ("lam", *["mu"] * (value is not None)):
                with pytest.raises(ProblemError, match=rf"{name} must be a finite number >= 0, got {value!r}"):
                    xv.separable(decays, SIGNAL, **{name: value})
            with pytest.raises(ProblemError, match="lam must be a finite number >= 0"):
                xv.Level(decays, SIGNAL, lam=value)


def test_numpy_numbers_are_weights():
    assert xv.separable(decays, SIGNAL, lam=np.float64(0.5)).lower.lam == 0.5
    assert float(xv.separable(decays, SIGNAL, lam=np.float32(0.5)).lower.lam) == 0.5
    assert xv.sets.L1Ball(np.float32(0.5)).radius == 0.5
    assert xv.sets.L1Ball(np.int64(2)).radius == 2


# -- the statement of the problem --------------------------------------------------------------------------------------


NO_PROBLEMS = [
    (lambda: xv.separable(np.ones((3, 2)), SIGNAL), r"M must be a function M\(theta, data\).*got ndarray"),
    (lambda: xv.separable(decays, [np.ones(2), 2.0]), r"y given as a list must hold arrays.*got a list of an array of"),
    (lambda: xv.separable(decays, np.ones((2, 3, 4, 5))), r"y must have shape \(m,\) or \(m, k\); got \(2, 3, 4, 5\)"),
    (lambda: xv.separable(decays, np.float64(1.0)), r"y must"),
    (lambda: xv.separable(decays, SIGNAL, R=1.0, mu=1.0), r"R must be a function R\(theta\).*got float"),
    (lambda: xv.separable(decays, SIGNAL, mu=1.0), r"where mu > 0; got R=None"),
    (lambda: xv.separable(decays, SIGNAL, R=np.sum), r"R needs its weight, mu=\.\.\., > 0"),
    (lambda: xv.separable(decays, SIGNAL, Omega=np.ones(3), lam=1.0), r"Omega must be a matrix.*\(3,\)"),
    (
        lambda: xv.separable(decays, SIGNAL, Omega=[np.eye(2), np.ones((1, 2))], lam=[1.0, 2.0, 3.0]),
        "lam must have a number for each of the 2 blocks of Omega; got 3",
    ),
    (lambda: xv.separable(decays, SIGNAL, Omega=2.0, lam=1.0), r"Omega must be a matrix.*; got 2.0"),
    (lambda: xv.separable(decays, SIGNAL, solver=xv.lower.QR), r"solver must be one of xvarpro.lower"),
    (lambda: xv.bilevel(lower=decays, upper=xv.Level(decays, SIGNAL)), r"lower must be a Level\(M, y, ...\); got"),
    (lambda: xv.lower.SVD(rtol=2.0), r"0 <= rtol < 1, got 2.0"),
    (lambda: xv.solve(decays, START), r"problem must come from xv.separable or xv.bilevel; got function"),
]


def test_a_problem_that_is_none(subtests):
    for make, message in NO_PROBLEMS:
        with subtests.test(message), pytest.raises(ProblemError, match=message):
            make()


def test_a_device_without_a_driver(model, monkeypatch):
    """The first line of what the framework says is the reason."""

    def asarray(self, x, *, dtype=None, device=None):
        raise RuntimeError("no driver was found\n  in a file")

    monkeypatch.setattr(type(xv.backends.get("numpy")), "asarray", asarray)
    message = r"device must be one that numpy can use; got 'cpu' \(no driver was found\)$"
    refused(ProblemError, message, model, backend="numpy", device="cpu")


# -- shapes ------------------------------------------------------------------------------------------------------------


def test_rows_of_m_and_y_are_both_named(backend):
    message = r"M\(theta\) and y must have the same number of rows; got shapes \(40, 2\) and \(39,\)"
    refused(ProblemError, message, decays, y=SIGNAL[:-1], backend=backend.name)
    y, weights = np.tile(SIGNAL[:-1, None], 2), np.ones((39, 2))
    problem = xv.separable(decays, y, data={"t": T}, weights=weights)
    refused(ProblemError, message.replace("39,", "39, 2"), None, problem=problem, backend=backend.name)


def first_rate(theta, data):
    return decays(theta[:1], data)


def pair(theta, data):
    xp = xv.array_namespace(theta)
    return xp.stack([data["t"] * theta[0], data["t"]], axis=1)


def one_level(y, t=T, **keywords):
    return xv.separable(decays, y, data={"t": t}, **keywords)


def two_levels(y=SIGNAL, upper=decays, z=SIGNAL):
    return xv.bilevel(lower=xv.Level(decays, y), upper=xv.Level(upper, z), data={"t": T})


SHAPES = [
    (one_level(Y2[:-1]), r"same number of rows; got shapes \(40, 2\) and \(39, 2\)"),
    (one_level(np.ones((200, 40))), r"shapes \(40, 2\) and \(200, 40\)\. Rows .* xv\.Each\(y\), .* y\.T$"),
    (one_level(np.ones((5, 8))), r"shapes \(40, 2\) and \(5, 8\)\. Pass the image as y\.reshape\(-1\)"),
    # compressed: the m x m factor is ours, and the message is about what the user wrote
    (one_level(np.ones((30, 200))), r"same number of rows; got shapes \(40, 2\) and \(30, 200\)"),
    (one_level(SIGNAL, lam=1.0, Omega=np.eye(3)), r"Omega must have shape \(r, 2\) .*; got \(3, 3\)"),
    (one_level(SIGNAL[:1], T[:1]), r"got 1 rows and 2 unknowns without a ridge.*lam > 0, or solver=xv.lower.SVD\(\)"),
    (two_levels(z=SIGNAL[:-1]), r"upper M\(theta\) and upper y must .* got shapes \(40, 2\) and \(39,\)"),
    (two_levels(upper=first_rate), r"same number of columns of M.*: 2.*: 1"),
    (two_levels(Y2), "same number of columns of y, since they share w"),
    (two_levels(pair), "same number of columns of y"),
]


def test_rows_that_a_batch_leaves_unmarked():
    with pytest.raises(ProblemError, match=SHAPES[1][1]):
        xv.solve_many(xv.many.lifted(SHAPES[1][0]), np.stack([START] * 200))


def test_shapes_that_do_not_fit(subtests):
    for problem, message in SHAPES:
        with subtests.test(message):
            refused(ProblemError, message, decays, problem=problem)


SINGULAR = {
    "zero": np.zeros((2, 2)),
    "difference operator": np.array([[-1.0, 1.0], [0.0, 0.0]]),
    "equal columns": np.array([[1.0, 1.0], [2.0, 2.0]]),
    "to rounding": np.array([[1.0, 1.0], [1.0, 1.0 + 1e-15]]),
}


def with_omega(Omega, lam=1.0, model=decays, **level):
    return xv.separable(model, SIGNAL, data={"t": T}, lam=lam, Omega=Omega, **level)


@pytest.mark.parametrize("kind", SINGULAR)
def test_a_singular_omega_is_as_one_with_a_row_of_zeros_where_no_inverse_is_needed(kind, backend):
    Omega, more = SINGULAR[kind], np.vstack([SINGULAR[kind], np.zeros(2)])

    def found(*args):
        return np.hstack(xv.value_and_gradient(with_omega(*args), START, backend=backend.name))

    np.testing.assert_allclose(found(Omega), found(more), rtol=1e-12)
    np.testing.assert_allclose(
        found(Omega, np.array([[1.0], [2.0]])), found(more, np.array([[1.0], [2.0], [9.0]])), rtol=1e-12
    )
    np.testing.assert_allclose(
        found(Omega, lambda theta, data: theta[0]), found(more, lambda theta, data: theta[0]), rtol=1e-12
    )
    refused(
        ProblemError,
        r"^DualQR needs .* got .* an Omega without",
        decays,
        problem=with_omega(Omega, solver=xv.lower.DualQR()),
    )
    chunks = xv.RowChunks.cut({"t": T}, SIGNAL, rows=9)
    message = r"^Omega must be invertible .* singular in float64: its condition, .* is (inf|nan|[0-9.]+e\+[0-9]+)\. "
    refused(ProblemError, message, decays, problem=xv.separable(decays, chunks, lam=1.0, Omega=Omega))


def test_wide_designs_and_wrong_shapes_of_a_singular_omega():
    ring = np.roll(np.eye(9), 1, 0) - np.eye(9)
    A, y = np.random.default_rng(0).normal(size=(4, 9)), np.arange(4.0)
    given = [ring, [ring], np.vstack([ring, np.zeros(9)]), xv.operators.Circulant(ring[:, 0])]
    found = [
        xv.solve_lower(xv.separable(lambda s, A: s * A, y, data=A, lam=1.0, Omega=Omega), np.array(1.0))[0]
        for Omega in given
    ]
    np.testing.assert_allclose(found, np.broadcast_to(found[2], (4, 9)), rtol=1e-10)
    refused(ProblemError, r"shape \(r, 2\) .* got \(9, 9\)", decays, problem=with_omega(ring))


def test_an_omega_is_checked_in_the_dtype_of_the_solve(backend):
    nearly = np.array([[1.0, 1.0], [1.0, 1.0 + 1e-9]])
    problem = xv.separable(decays, SIGNAL, data={"t": T}, lam=1.0, Omega=nearly)
    assert np.isfinite(xv.value_and_gradient(problem, START, backend=backend.name)[0])
    dual = with_omega(nearly, solver=xv.lower.DualQR())
    assert np.isfinite(xv.value_and_gradient(dual, START, backend=backend.name)[0])
    with pytest.warns(xv.PrecisionWarning), pytest.raises(ProblemError, match="an Omega without"):
        xv.value_and_gradient(dual, START.astype("float32"), backend=backend.name)


@pytest.mark.parametrize("Omega", [np.diag([1e-20, 1.0]), np.diag([1.0, -1.0]), np.array([[0.0, 1.0], [1.0, 0.0]])])
def test_units_and_signs_make_no_omega_singular(Omega, backend):
    """``|Omega w|^2`` asks for an inverse and for nothing else."""
    problem = xv.separable(decays, SIGNAL, data={"t": T}, lam=1.0, Omega=Omega)
    assert np.isfinite(xv.value_and_gradient(problem, START, backend=backend.name)[0])


def test_the_omega_of_an_upper_level_may_be_singular():
    upper = xv.Level(decays, SIGNAL, lam=1.0, Omega=SINGULAR["difference operator"])
    problem = xv.bilevel(lower=xv.Level(decays, SIGNAL), upper=upper, data={"t": T})
    assert np.isfinite(xv.value_and_gradient(problem, START)[0])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_data_that_are_not_finite_are_named(bad, model, backend):
    t, y, Omega, there = T.copy(), SIGNAL.copy(), np.eye(2), backend.name
    t[3] = y[3] = Omega[0, 0] = bad
    two = xv.bilevel(lower=xv.Level(model, SIGNAL), upper=xv.Level(model, y), data={"t": T})
    for name, given in (
        (r"data\['t'\]", {"data": {"t": t}}),
        (r"data\['x'\]\[1\]", {"data": {"t": T, "x": [T, t]}}),
        ("y", {"y": y}),
        ("Omega", {"problem": xv.separable(model, SIGNAL, data={"t": T}, lam=1.0, Omega=Omega)}),
        (r"upper\.y", {"problem": two}),
    ):
        message = rf"{name} must be finite; got NaN or inf at index \[(3|0, 0)\]"
        message += r"\. One that is missing takes weights=" if name.endswith("y") else "$"
        refused(ProblemError, message, model, backend=there, **given)


@pytest.mark.parametrize("framework", HOST_BACKENDS)
def test_wider_data_are_rounded_with_a_warning_that_names_them_and_narrow_ones_widen_silently(framework):
    owner = xv.backends.get(framework)
    t, y = (send(owner, x.astype("float32")) for x in (T, SIGNAL))
    with pytest.warns(xv.PrecisionWarning, match=r"data\['t'\] is float64 and the solve is in float32") as caught:
        fit = xv.solve(xv.separable(decays, y, data={"t": T}), send(owner, START.astype("float32")), max_iter=1)
    assert dtype_name(fit.theta) == "float32"
    assert caught[0].filename == __file__
    assert xv.solve(xv.separable(decays, y, data={"t": t}), START, max_iter=1).theta.dtype == np.float64


def test_every_wide_array_is_named_once():
    problem = xv.separable(decays, SIGNAL, data={"t": T}, lam=1.0, Omega=np.eye(2))
    with pytest.warns(xv.PrecisionWarning) as caught:
        xv.value_and_gradient(problem, START.astype("float32"))
    assert sorted(str(w.message).split(" is ")[0] for w in caught) == ["Omega", "data['t']", "y"]
    assert {w.filename for w in caught} == {__file__}
    wide = xv.separable(decays, np.outer(SIGNAL, np.ones(80)), data={"t": T.astype("float32")})
    with pytest.warns(xv.PrecisionWarning) as caught:  # compressed: w is that of the target as it was
        xv.solve(wide, START.astype("float32"), max_iter=1)
    assert len(caught) == 1
    batch = xv.separable(decays, xv.Each(SIGNAL[None].astype("float32")), data={"t": xv.Each(T[None])})
    with pytest.warns(xv.PrecisionWarning, match=r"^data\['t'\] is .* kept by a theta0 in float64, of NumPy"):
        xv.solve_many(xv.many.lifted(batch), START[None].astype("float32"), max_iter=1)


def test_integer_targets_are_numbers():
    y = np.arange(T.size)
    fit, want = (xv.solve(xv.separable(decays, v, data={"t": T}), START, max_iter=2) for v in (y, y.astype(float)))
    assert fit.theta.tolist() == want.theta.tolist()


# -- model functions ---------------------------------------------------------------------------------------------------


def rejects(model, kind, message, backend, y=SIGNAL, **keywords):
    problem = xv.separable(model, y, data={"t": T}, **keywords)
    with pytest.raises(kind, match=message) as caught:
        xv.solve(problem, START, backend=backend.name)
    return caught.value


def constant(shape):
    return lambda theta, data: xv.array_namespace(theta).zeros(shape, dtype=theta.dtype)


def as_dtype(name):
    def M(theta, data):
        xp = xv.array_namespace(theta)
        return xp.astype(xp.round(4 * decays(theta, data)), getattr(xp, name))

    return M


# what a design returns of the right one
DESIGNS = [
    (lambda M: M[:, 0], r"M must return a matrix \(m, n\); got shape \(40,\).*column for each"),
    (lambda M: M[None, None, ...], r"M must return a matrix \(m, n\); got shape \(1, 1, 40, 2\)"),
    (lambda M: None, r"M must return an array or an operator; got"),
    (lambda M: M @ M, r"failed on .*`data` only\. M is called once, .* one sample is mapped .*vmap"),
    (lambda M: (M, M), r"M must return an array or an operator; got tuple. Join its parts"),
]


FUNCTIONS = [
    ({"y": lambda theta, data: data["t"][1:] * theta[0]}, ProblemError, r"got shapes \(40, 2\) and \(39,\)"),
    ({"y": constant(())}, ModelError, r"y must return .*\(m,\) or \(m, k\); got shape"),
    ({"R": lambda theta: theta, "mu": 1.0}, ModelError, r"R must return a scalar; got shape \(2,\)"),
    ({"R": lambda theta: 1.0, "mu": 1.0}, ModelError, r"R must return an array; got float. Make a number an array of"),
    ({"model": as_dtype("float32")}, ModelError, r"M must return float64, theta's dtype; got float32"),
    ({"model": as_dtype("int32")}, ModelError, r"M must return float64, theta's dtype; got int32"),
]


def test_functions_that_return_the_wrong_thing(backend, subtests):
    for result, message in DESIGNS:
        with subtests.test(message):
            rejects(lambda theta, data, of=result: of(decays(theta, data)), ModelError, message, backend)
    for given, kind, message in FUNCTIONS:
        with subtests.test(message):
            rejects(**{"model": decays, **given}, kind=kind, message=message, backend=backend)


def leaves_through_numpy(theta, data):
    return np.exp(-np.outer(T, np.asarray(theta)))


def leaves_through_torch(theta, data):
    import torch

    return torch.exp(-torch.outer(torch.from_numpy(T), torch.from_numpy(np.asarray(theta))))


def leaves_with_a_constant(theta, data):
    return np.ones((40, 2))


@pytest.mark.parametrize("model", [leaves_through_numpy, leaves_with_a_constant])
@pytest.mark.filterwarnings("ignore:.*will be removed.*:DeprecationWarning")
def test_model_that_leaves_its_namespace(model, backend):
    rejects(model, ModelError, r"xv\.array_namespace\(theta\)", backend)


def numpys_exponential(theta, data):
    return data["t"][..., None] * np.exp(theta[..., None, :])


@pytest.mark.filterwarnings("ignore:.*__array_wrap__.*:DeprecationWarning")
def test_model_that_calls_numpy_is_given_the_line_to_write(backend):
    problem = xv.separable(numpys_exponential, SIGNAL, data={"t": T})
    message = r"array of NumPy's .*In the place of np\.exp, write xp\.exp with xp = xv\.array_namespace\(theta\)\."
    message += r" A function of SciPy's goes into xv\.special\.external\(fun, theta\): fun reads .* not those of data"
    with pytest.raises(ModelError, match=message):
        xv.solve(problem, START[:1], backend=backend.name)
    batch = xv.separable(numpys_exponential, np.stack([SIGNAL, SIGNAL]), data={"t": T})
    with pytest.raises(ModelError, match=message):
        xv.solve_many(batch, START[:, None], backend=backend.name)


OUTSIDE = {
    "on the left": lambda theta: T[:, None] * theta,
    "on the right": lambda theta: theta * T[:, None],
    "in a function": lambda theta: xv.array_namespace(theta).sin(T),
}


@pytest.mark.parametrize("M", OUTSIDE.values(), ids=list(OUTSIDE))
@pytest.mark.parametrize("many", [False, True])
def test_model_that_finds_an_array_of_numpy_outside_of_data(M, many):
    problem, solve = xv.separable(lambda theta, _: M(theta), SIGNAL), xv.solve_many if many else xv.solve
    with pytest.raises(ModelError, match=r"an array of NumPy's next to .* Take arrays from `data` only\."):
        solve(xv.many.lifted(problem) if many else problem, START[None] if many else START, backend="torch")


@pytest.mark.parametrize("name", ["numpy", "array-api-strict", "jax"])
def test_model_that_moves_to_another_framework(name):
    rejects(leaves_through_torch, ModelError, r"xv\.array_namespace\(theta\)", xv.backends.get(name))


@pytest.mark.parametrize(
    ("M", "advice"),
    [
        (lambda theta, t: (t[:, None] @ theta[None]).exp(), r"Integers of data stay integers: .* x\.double\(\)$"),
        (lambda theta, t: theta[t.double()[:, None]], "from `data` only$"),  # which has to be integers
        ("module", r"given as theta0, and M calls it: M = lambda net, x: net\(x\)$"),
    ],
    ids=["integers", "indices", "module"],
)
def test_what_torch_says_comes_with_advice(M, advice):
    import torch

    M = torch.nn.Linear(1, 2) if M == "module" else M
    problem = xv.separable(M, torch.ones(3), data=torch.arange(3))
    with pytest.raises(ModelError, match=advice):
        xv.solve(problem, torch.ones(2))


@pytest.mark.frameworks
def test_model_that_calls_another_framework_is_given_the_backend_to_pass():
    import jax.numpy as jnp
    import torch

    for name, exp in {"jax": jnp.exp, "torch": torch.exp}.items():
        problem = xv.separable(lambda theta, data, exp=exp: exp(-data["t"][:, None] * theta), SIGNAL, data={"t": T})
        with pytest.raises(ModelError, match=rf'^Pass backend="{name}", since a model function calls .{{,200}}$'):
            xv.solve(problem, START)


def test_arrays_of_inference_mode_are_named():
    import torch

    with torch.inference_mode():
        t = -torch.as_tensor(T)[:, None]
    problem = xv.separable(lambda theta, data: torch.exp(t * theta), SIGNAL)
    with pytest.raises(ModelError, match=r"made inside torch\.inference_mode\(\).*inside torch\.no_grad\(\)$"):
        xv.solve(problem, START, backend="torch")


@pytest.mark.parametrize("name", ["numpy", "array-api-strict", "torch", "jax"])
def test_value_and_gradient_checks_as_solve_does(name):
    problem = xv.separable(decays, SIGNAL[:-1], data={"t": T})
    with pytest.raises(ProblemError, match="same number of rows"):
        xv.value_and_gradient(problem, START, backend=name)


def test_project_checks_its_sets():
    with pytest.raises(ProblemError, match=r"over must have keys of .* got 'b'"):
        xv.project({"a": START}, {"b": Box()})
    with pytest.raises(XvarproError, match=r"array"):
        xv.project({"a": "x"}, {"a": Box()})


def test_uncaught_errors_are_short():
    """What a user sees at the end of the traceback is the sentence, not a page of the package."""
    with pytest.raises(ProblemError) as caught:
        xv.solve(xv.separable(lambda t, d: t, np.ones(3)), np.ones(2, bool))
    *_, last = "".join(traceback.format_exception(caught.value)).splitlines()
    assert last.startswith("xvarpro.errors.ProblemError: theta must be float32 or float64")
