"""Wrong arguments of every kind: an error of the package that names the argument and says what to do."""

import math
import time
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import xvarpro as xv
from tests.support import HOST_BACKENDS, SIGNAL, T, decays, send, together
from xvarpro.errors import ModelError, XvarproError
from xvarpro.sets import Box, Simplex

START, BOX = np.array([0.5, 8.0]), Box(0.0, 10.0)


def stated(y=SIGNAL, t=T, M=decays, lam=1e-9, **keywords):
    return xv.separable(M, y, data={"t": t}, lam=lam, **keywords)


def solved(problem=None, theta0=START, over=BOX, max_iter=3, **keywords):
    return xv.solve(problem or stated(), theta0, over, max_iter=max_iter, **keywords)


def raised(call):
    """The message of what `call` raises, which is an error of the package."""
    with pytest.raises(XvarproError) as caught:
        call()
    return str(caught.value)


def holding_itself(key):
    tree = {key: T}
    tree["self"] = tree
    return tree


def nested(x, depth):
    for _ in range(depth):
        x = [x]
    return x


EMPTY = {
    "M(theta) must have at least one row": lambda: stated(np.ones(0), np.ones(0)),
    "y must have at least one row and one column; got": lambda: stated(np.ones((T.size, 0))),
    "one column; got shape (40, 0)": lambda: stated(M=lambda theta, data: decays(theta, data)[:, :0]),
    "must yield at least one row and one column": lambda: stated(xv.ColumnChunks(lambda: [np.ones((T.size, 0))])),
}


@pytest.mark.parametrize("message", EMPTY)
@pytest.mark.parametrize("backend", HOST_BACKENDS)
def test_a_problem_without_entries(message, backend):
    assert message in raised(lambda: solved(EMPTY[message](), backend=backend))


def test_a_start_without_entries():
    assert "theta0 must hold at least one number" in raised(lambda: solved(theta0=np.ones(0), over=None))
    two = {"rates": START, "none": np.ones((0, 3))}
    problem = stated(M=lambda theta, data: decays(theta["rates"], data))
    assert solved(problem, two, None).theta["none"].shape == (0, 3)
    assert "theta['none'] of shape (0, 3)" in raised(lambda: solved(problem, two, {"none": Simplex()}))


@pytest.mark.parametrize("backend", HOST_BACKENDS)
def test_a_design_of_three_axes_is_reported_with_its_own_shape(backend):
    def thrice(theta, data):
        return xv.array_namespace(theta).stack([decays(theta, data)] * 3)

    message = raised(lambda: solved(stated(M=thrice), backend=backend))
    assert "(k, m, n) for a design per column of y; got (3, 40, 2) and y of shape (40,)" in message
    message = raised(lambda: solved(stated(M=thrice, y=np.ones((3, 40))), backend=backend))
    assert message.endswith("y of shape (3, 40). Pass y.T")


@pytest.mark.parametrize("backend", HOST_BACKENDS)
def test_a_model_that_raises_midway_is_named_with_its_own_words(backend):
    error, left = RuntimeError("no more of this"), iter(range(3))  # the calls that check it are fewer

    def late(theta, data):
        if next(left, None) is None:
            raise error
        return decays(theta, data)

    said = rf"a model function failed on the {backend} backend: RuntimeError: no more of this\. It comes from lines of"
    with pytest.raises(ModelError, match=said) as caught:
        solved(stated(M=late), backend=backend)
    assert caught.value.__cause__ is error


WRONG_LINES = {
    "KeyError: 'cfg'. It comes from lines of your own": lambda theta, data: data["cfg"],
    "TypeError: 'dict' object is not callable. Of a module": lambda theta, data: data(theta),
    "namespace, inside of operators too; got numpy.ndarray. Compute": lambda theta, data: np.ones((40, 2)),
}


@pytest.mark.parametrize("said", WRONG_LINES)
def test_the_advice_is_of_what_went_wrong(said):
    assert said in raised(lambda: solved(stated(M=WRONG_LINES[said]), backend="numpy"))


def test_an_oracle_that_returns_something_else():
    for answer in (None, "x", np.ones(1), np.ones(2, int)):
        over = xv.sets.Oracle(lambda g, answer=answer: answer, width=1.0, outside=lambda x: 0 * x[0])
        message = raised(lambda over=over: solved(over=over, algorithm=xv.algorithms.FrankWolfe()))
        assert "Oracle: fun must return an array with the shape and dtype of its argument, (2,)" in message


def of_torch(kind, values):
    import torch

    x = torch.from_numpy(np.array(values))
    return {"meta": lambda: x.to("meta"), "sparse": lambda: x.to_sparse()}[kind]()


@pytest.mark.parametrize("kind", ["meta", "sparse"])
@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_tensors_without_dense_memory(kind, backend):
    cases = {
        "theta": lambda: solved(theta0=of_torch(kind, START), backend=backend),
        "y": lambda: solved(stated(of_torch(kind, SIGNAL)), backend=backend),
        "data['t']": lambda: solved(stated(t=of_torch(kind, T)), backend=backend),
        "weights": lambda: solved(stated(weights=of_torch(kind, T + 1)), backend=backend),
    }
    for name, call in cases.items():
        assert raised(call).startswith(f"{name} must be a dense array of numbers; got a torch.Tensor")


def test_a_solve_within_a_transformation():
    import jax
    import jax.numpy as jnp
    import torch

    theta, y = jnp.asarray(START.astype("float32")), jnp.asarray(SIGNAL.astype("float32"))
    calls = {
        "theta": [
            lambda: jax.jit(lambda x: solved(theta0=x).theta)(theta),
            lambda: jax.grad(lambda x: solved(theta0=x).value)(theta),
            lambda: jax.vmap(lambda x: solved(theta0=x).theta)(jnp.stack([theta, theta])),
            lambda: jax.jit(lambda x: xv.value_and_gradient(stated(), x))(theta),
            lambda: jax.jit(lambda x: solved(theta0=theta).value)(y),
            lambda: jax.jit(lambda x: xv.solve_many(stated(), x).theta)(theta[None, :]),
            lambda: torch.vmap(lambda x: solved(theta0=x).theta)(torch.from_numpy(np.stack([START, START]))),
        ],
        "y": [
            lambda: jax.jit(lambda x: solved(stated(x)).theta)(y),
            lambda: jax.jit(lambda x: solved(stated(x), theta).theta)(y),
        ],
        "data['t']": [lambda: jax.jit(lambda x: solved(stated(t=x), theta).theta)(y)],
    }
    for name, each in calls.items():
        for call in each:
            message = raised(call)
            assert message.startswith(f"{name} must be a dense array of numbers")
            assert "traced by a transformation (jit, grad, vmap). Solve outside of transformations" in message
            assert "xv.ridge" in message


@pytest.mark.parametrize("depth", [3000])
def test_trees_without_an_end(depth):
    many = np.tile(START, (3, 1))
    calls = {
        "theta": [
            lambda: solved(theta0=holding_itself("rates"), over=None),
            lambda: solved(theta0=nested(START, depth), over=None),
            lambda: xv.value_and_gradient(stated(), holding_itself("rates")),
            lambda: xv.project(holding_itself("rates"), None),
            lambda: xv.solve_many(stated(), holding_itself("rates")),
        ],
        "data": [
            lambda: solved(xv.separable(decays, SIGNAL, data=holding_itself("t"))),
            lambda: solved(xv.separable(decays, SIGNAL, data=nested(T, depth))),
            lambda: xv.solve_many(xv.separable(decays, SIGNAL[None, :], data=holding_itself("t")), many),
        ],
    }
    for name, each in calls.items():
        for call in each:
            assert raised(call).startswith(f"{name} must be a tree of arrays; got a")


# -- options -----------------------------------------------------------------------------------------------------------

NUMBERS = {
    "tol": (
        [np.float32(1e-6), np.float64(1e-6), Fraction(1, 10**6), 1, None],
        [True, np.True_, "1e-6", 1j, -1, 10**400, math.nan],
    ),
    "max_iter": ([np.int64(3), np.int32(3), np.uint8(3), 0], [True, np.True_, 3.0, "3", None, [3], -1, math.inf]),
    "time_limit": ([np.float32(9), np.int64(9), 10**400, None], [True, np.True_, "9", -1, math.nan, [9], np.ones(1)]),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_of_numpy_are_numbers_and_truth_values_are_not(name, tmp_path):
    accepted, refused = NUMBERS[name]
    for value in accepted:
        fit = solved(**{"max_iter": 3, name: value})
        assert fit.n_iter <= 3
        fit.save(tmp_path / "fit.npz")  # what is kept of them can be written
    for value in refused:
        assert raised(lambda value=value: solved(**{name: value})).startswith(f"{name} must be ")
    if name != "time_limit":
        assert raised(lambda: xv.solve_many(stated(), START, **{name: True})).startswith(f"{name} must be ")


WRONG = {
    "algorithm must be one of xvarpro.algorithms": [{"algorithm": x} for x in ("fw", xv.algorithms.FrankWolfe)],
    f"algorithm must be one of xvarpro.algorithms or None; got {xv.algorithms.SGD()!r}, an update rule: pass "
    "StochasticProjectedGradient(update=SGD(...))": [{"algorithm": xv.algorithms.SGD()}],
    "debug must be True": [{"debug": x} for x in ("no", 1, [], np.ones(2))],
    "deterministic must be True": [{"deterministic": x} for x in ("no", 1, [], np.ones(2))],
    "progress must be True": [{"progress": x} for x in ("no", 1, [], np.ones(2))],
    "dtype must be 'float32' or 'float64'; got": [
        {"dtype": x} for x in ("", [], {}, 3, int, np.float16, "double", True)
    ],
    "backend must be one of numpy, torch, jax": [{"backend": x} for x in (3, [], {}, np, True)],
    "callback must be a function of one IterationInfo": [
        {"callback": x} for x in (3, "f", False, lambda: None, lambda a, b: None, lambda *, info: None)
    ],
    "device must be one": [{"device": x} for x in ("meta", "", "cpu:7", "banana", 3, [], object())],
}


def test_options_that_are_none(subtests):
    for message, rows in WRONG.items():
        for options in rows:
            with subtests.test(str(options)):
                assert raised(lambda options=options: solved(**options)).startswith(message)
    for value in ("numpy", ["numpy"], 3, [1, 2], ["numpy", "numpy"], None):
        message = raised(lambda value=value: xv.compare(stated(), START, BOX, backends=value))
        assert message.startswith("backends must be two or more different names"), value


def test_dtypes_may_be_those_of_a_framework():
    import jax.numpy as jnp
    import torch

    for value in (np.float32, np.dtype("float32"), torch.float32, jnp.float32):
        with pytest.warns(xv.PrecisionWarning):
            fit = solved(dtype=value)
        assert fit.provenance["dtype"] == "float32"
    assert xv.verify(fit, stated(), dtype=np.float32).provenance["dtype"] == "float32"
    assert raised(lambda: solved(dtype=torch.bfloat16)) == "dtype must be 'float32' or 'float64'; got torch.bfloat16"


@pytest.mark.parametrize("backend", HOST_BACKENDS)
def test_what_a_callback_may_return(backend):
    there, how = xv.backends.get(backend), {"algorithm": xv.algorithms.FrankWolfe(), "backend": backend}
    problem = stated(solver=xv.lower.QR())  # compiles fast
    ends = [True, np.True_, send(there, np.array(True))]
    assert {solved(problem, callback=lambda info, x=x: x, **how).status for x in ends} == {xv.Status.STOPPED}
    for answer in (None, False, np.False_):
        assert solved(problem, callback=lambda info, x=answer: x, **how).n_iter == 3
    for answer in (np.zeros(2), send(there, np.zeros(2, bool)), "no", 0, 1):
        message = raised(lambda x=answer: solved(problem, callback=lambda info: x, **how))
        assert message.startswith("callback must return True to stop the solve, and None or False to go on; got")


def test_what_a_callback_raises_reaches_the_caller():
    def stop(info):
        raise StopIteration(info.iteration)

    with pytest.raises(StopIteration, match="1"):
        solved(callback=stop)


NO_NUMBERS = ["a", None, 1j, np.array([1j]), np.array(["a"]), np.array([None]), [[0.0], [0.0, 1.0]], {}, object(), True]
PARAMETERS = {
    "Box: lower must be": lambda x: Box(x, 1.0),
    "ConvexHull: atoms must be": xv.sets.ConvexHull,
    "Permutahedron: weights must be": xv.sets.Permutahedron,
    "Transport: b must be": lambda x: xv.sets.Transport(np.ones(1), x),
    "Groups: groups must": lambda x: xv.sets.Groups(Simplex(), x),
    "L1Ball: radius must be": xv.sets.L1Ball,
    "Free: norm must be": lambda x: xv.sets.Free(norm=x),
}


def test_parameters_of_sets_that_are_no_numbers(subtests):
    # None is a default of some and no bound of others, and nested lists are groups
    taken = {"Box": type(None), "Transport": type(None), "Permutahedron": type(None), "Groups": list}
    for name, make in PARAMETERS.items():
        with subtests.test(name):
            for value in [x for x in NO_NUMBERS if not isinstance(x, taken.get(name.partition(":")[0], ()))]:
                assert raised(lambda make=make, value=value: make(value)).startswith(name), value


def test_bounds_of_two_shapes_and_bounds_as_lists():
    assert raised(lambda: Box(np.zeros(2), np.ones(3))).startswith("Box: lower and upper must broadcast to one shape")
    assert raised(lambda: Box(0.0, np.ones(0))).startswith("Box: upper must be a real number")
    assert Box([0, 0], [1, 2]).project(np.array([-1.0, 5.0])).tolist() == [0.0, 2.0]
    assert "must broadcast to a point of shape (2,)" in raised(lambda: solved(over=Box([0, 0, 0], 9.0)))
    assert xv.sets.ConvexHull([[0, 1], [1, 0]]).atoms.dtype == np.float64


@pytest.mark.parametrize("scale", [1e300, 1e-160, 1e-300, 5e-324])
def test_targets_of_any_size(scale):
    assert solved(stated(scale * SIGNAL)).n_iter <= 3


def test_numbers_beyond_the_floats():
    assert raised(lambda: stated(lam=np)).startswith("Level: lam must be")
    for call in (lambda: xv.sets.L1Ball(10**400), lambda: stated(lam=10**400), lambda: Box(0, 10**400)):
        assert "must be" in raised(call)


# -- where a mistake is ------------------------------------------------------------------------------------------------


def many(theta0, **keywords):
    theta0 = np.asarray(theta0)
    return xv.solve_many(stated(np.tile(SIGNAL, (len(theta0), 1)), M=together, **keywords), theta0, BOX, max_iter=3)


@pytest.mark.parametrize("i", [0, 5, 11, 12])
def test_the_infeasible_problem_of_a_batch_is_named(i):
    theta0 = np.tile(START, (13, 1))
    theta0[i, 1] = 15.0
    assert raised(lambda: many(theta0)).startswith(f"theta0 of problem {i} must be feasible; got one that violates its")


def test_options_of_a_batch():
    theta0 = np.tile(START, (3, 1))
    assert raised(lambda: many(theta0, lam=1.0, Omega=xv.operators.Diagonal(np.ones(2)))).startswith("Omega of a batch")
    assert "Stack its blocks" in raised(lambda: many(theta0, lam=1.0, Omega=[np.eye(2), np.eye(2)]))
    assert "R must return an array; got NoneType" in raised(lambda: many(theta0, R=lambda theta: None, mu=1.0))


def test_projections_of_what_has_none():
    lacking = xv.sets.Oracle(Simplex().lmo)
    assert "Oracle offers no projection" in raised(lambda: xv.project(np.ones(3), lacking))
    assert "must hold floating-point numbers; got dtype int64" in raised(lambda: xv.project(np.ones(3, int), Simplex()))
    assert "theta must be real to be projected" in raised(lambda: xv.project(np.array([1j, 1.0]), Simplex()))
    assert "must have entries, got theta of shape (0,)" in raised(lambda: xv.project(np.ones(0), Simplex()))


@pytest.mark.parametrize("source", [lambda: None, lambda: [1, 2], lambda: 3])
def test_chunks_that_are_no_arrays(source):
    assert "array" in raised(lambda: solved(stated(xv.ColumnChunks(source))))


def test_a_list_of_two_frameworks_and_backends_by_other_names():
    import torch

    assert "with the same number of columns, of one framework; got" in raised(lambda: stated([SIGNAL, torch.ones(3)]))
    assert raised(lambda: xv.backends.get([])).startswith("backend must be one of numpy, torch, jax")


def test_a_namespace_of_nothing():
    assert "array_namespace must be given at least one array; got nothing" in raised(xv.array_namespace)
    assert "got str" in raised(lambda: xv.array_namespace("theta"))


ODD = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.integers(-(10**400), 10**400), st.floats(), st.complex_numbers(),
    st.text(max_size=5), st.binary(max_size=3), st.lists(st.floats(), max_size=3),
    st.dictionaries(st.text(max_size=2), st.floats(), max_size=2),
    st.sampled_from([np.float32(1e-3), np.int64(2), np.True_, np.ones(2), np.array(1.0), np.array(None), object()]),
    st.sampled_from([START, BOX, Box, xv.algorithms.FrankWolfe(), xv.algorithms.FrankWolfe, decays, "numpy", np, int]),
)  # fmt: skip


def own_names(arguments):
    """Names of functions among arguments: their own errors name them."""
    return [x.__name__ for x in arguments.values() if hasattr(x, "__name__")]


OPTIONS = [
    "over", "algorithm", "tol", "max_iter", "time_limit", "callback", "progress", "debug", "backend", "device", "dtype",
    "deterministic", "theta0",
]  # fmt: skip
STATEMENTS = ["M", "y", "lam", "Omega", "R", "mu", "solver", "weights", "W", "compress"]


def returns_or_says(call, names):
    """A call that gives a result, or an error of the package that names one of `names`."""
    message = ""
    try:
        call()
    except XvarproError as error:
        message = str(error)
    assert not message or any(name in message for name in names), message


@pytest.mark.filterwarnings("ignore")
@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.dictionaries(st.sampled_from(OPTIONS), ODD, min_size=1, max_size=3))
def test_random_options_end_in_a_result_or_in_an_error_that_names_one(options):
    returns_or_says(lambda: solved(**{"max_iter": 1, "progress": False, **options}), [*options, "theta"])


@pytest.mark.filterwarnings("ignore")
@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.dictionaries(st.sampled_from(STATEMENTS), ODD, min_size=1, max_size=2))
def test_random_statements_end_in_a_result_or_in_an_error_that_names_one(statement):
    def call():
        solved(xv.separable(**{"M": decays, "y": SIGNAL, "data": {"t": T}, **statement}), max_iter=1)

    returns_or_says(call, [*statement, "model function", *own_names(statement)])


@pytest.mark.parametrize("algorithm", [None, xv.algorithms.FrankWolfe(), xv.algorithms.ProjectedQuasiNewton()])
@pytest.mark.parametrize("tol", [0.0, 0.1])
def test_a_time_limit_is_kept_by_all_that_follows_the_iterations(algorithm, tol):
    calls = []

    def slow(theta, data):
        time.sleep(0.02)
        calls.append(time.perf_counter())
        return decays(theta, data)

    began, rates = time.perf_counter(), np.linspace(0.5, 8.0, 12)
    y = np.random.default_rng(0).normal(size=T.size)
    fit = solved(stated(y, M=slow), rates, algorithm=algorithm, tol=tol, max_iter=10**6, time_limit=0.2)
    late = [t for t in calls if t > began + fit.setup_seconds + 0.2]
    assert len(late) <= 12, "of a step, its certificate and what the result says; the look for saddles takes 24"
