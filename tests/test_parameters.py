"""Parameters by name: against the same problems written out by hand, and against plain NumPy."""

import copy
import pickle

import numpy as np
import pytest

import xvarpro as xv
from xvarpro.backends import adapters
from xvarpro.core import trees
from xvarpro.core.namespace import dtype_name
from xvarpro.errors import ProblemError

from .support import HOST_BACKENDS, central_differences, host, interpreted, rng, send_tree, vector

every_backend = pytest.mark.parametrize("name", HOST_BACKENDS)

T = np.linspace(0.1, 2.0, 40)
Y = np.cos(3.0 * T) * (np.exp(-np.outer(T, [1.0, 6.0, 2.1])) @ [2.0, 1.0, -0.5]) + 0.01 * rng(3).normal(size=T.size)
DATA = {"t": T}


def parameters():
    """One bounded, one bounded on one side, one fixed and one tied parameter, not in the order of their names."""
    p = xv.Parameters()
    p.add("omega", 3.0, vary=False)
    p.add("k2", 8.0, min=0.0)
    p.add("k1", 0.5, min=0.0, max=10.0)
    p.add("k3", tie={"k1": 2.0}, offset=0.1)
    return p


def decays(p, data):
    """Decays of one frequency."""
    xp, t = xv.array_namespace(p), xv.array_namespace(p).expand_dims(data["t"], axis=1)
    return xp.cos(p["omega"] * t) * xp.exp(-t * xp.stack([p["k1"], p["k2"], p["k3"]]))


def by_hand(theta, data):
    """The same, without `Parameters`."""
    return decays({"omega": 3.0, **theta, "k3": 2.0 * theta["k1"] + 0.1}, data)


def reduced(theta):
    """The reduced objective from the formula, by least squares of NumPy's."""
    M = by_hand(theta, DATA)
    return 0.5 * np.sum((M @ np.linalg.lstsq(M, Y)[0] - Y) ** 2)


# -- fits --------------------------------------------------------------------------------------------------------------


@every_backend
def test_a_fit_is_that_of_the_problem_written_out_by_hand(name):
    p = parameters()
    boxes = {"k1": xv.sets.Box(0.0, 10.0), "k2": xv.sets.Box(0.0, np.inf)}
    same = {"data": DATA, "solver": xv.lower.SVD()}
    fit = xv.solve(xv.separable(p.model(decays), Y, **same), p.theta0, over=p.over, tol=1e-9, backend=name)
    hand = xv.solve(xv.separable(by_hand, Y, **same), {"k1": 0.5, "k2": 8.0}, over=boxes, tol=1e-9)
    assert fit.success
    assert p.over == boxes
    np.testing.assert_allclose(vector(fit.theta), vector(hand.theta), rtol=1e-9)
    np.testing.assert_allclose(fit.value, hand.value, rtol=1e-12)
    found = p.values(fit.theta)
    assert list(found) == ["omega", "k2", "k1", "k3"]
    assert float(found["omega"]) == 3.0
    np.testing.assert_allclose(float(found["k3"]), 2.0 * float(fit.theta["k1"]) + 0.1, rtol=1e-15)


@every_backend
def test_the_gradient_goes_through_ties(name):
    p, theta = parameters(), {"k1": np.array(0.7), "k2": np.array(5.0)}
    value, gradient = xv.value_and_gradient(
        xv.separable(p.model(decays), Y, data=DATA), theta, backend=interpreted(xv.backends.get(name))
    )
    np.testing.assert_allclose(float(value), reduced(theta), rtol=1e-12)
    np.testing.assert_allclose(vector(gradient), central_differences(reduced, theta), rtol=1e-7)


def test_target_ridge_and_penalty_may_be_functions_of_all_parameters():
    p = xv.Parameters.from_dict({"a": 0.7, "b": {"tie": "a", "offset": 1.0}})

    def M(q, t):
        return t[:, None] ** q["b"]

    def stated(of):
        y, lam, R = lambda q, t: t + q["a"], lambda q, t: q["a"] ** 2, lambda q: q["b"] ** 2
        return xv.separable(of(M), of(y), data=T, lam=of(lam), R=of(R), mu=0.1)

    def by_hand(fun):
        return lambda a, *data: fun({"a": a, "b": a + 1.0}, *data)

    value, gradient = xv.value_and_gradient(stated(p.model), p.theta0)
    want, slope = xv.value_and_gradient(stated(by_hand), np.array(0.7))
    np.testing.assert_allclose((float(value), float(gradient["a"])), (float(want), float(slope)), rtol=1e-14)


def test_a_set_takes_the_place_of_bounds():
    p = xv.Parameters()
    p.add("shares", np.full(3, 1 / 3), over=xv.sets.Simplex())
    A = rng(0).normal(size=(12, 3))
    problem = xv.separable(p.model(lambda q, A: (A @ q["shares"])[:, None]), A @ [0.5, 0.5, 0.0], data=A)
    fit = xv.solve(problem, p.theta0, over=p.over)
    np.testing.assert_allclose(fit.theta["shares"], [0.5, 0.5, 0.0], atol=1e-4)


def test_bounds_of_a_fit_may_be_pairs(tmp_path):
    theta0 = {"k1": 0.5, "k2": 8}  # a whole number is a number
    problem = xv.separable(by_hand, Y, data=DATA)
    fit = xv.solve(problem, theta0, over={"k1": (0.0, 10.0), "k2": (0.0, None)})
    want = xv.solve(problem, theta0, over={"k1": xv.sets.Box(0.0, 10.0), "k2": xv.sets.Box(0.0, np.inf)})
    np.testing.assert_array_equal(vector(fit.theta), vector(want.theta))
    fit.save(tmp_path / "fit.npz")
    assert xv.verify(xv.Result.load(tmp_path / "fit.npz"), problem).ok


# -- values ------------------------------------------------------------------------------------------------------------

MASK = np.array([[True, False, True], [False, False, True]])


def mixed():
    """Parameters of every kind with more than one axis."""
    p = xv.Parameters()
    p.add("z", 3.0)
    p.add("B", np.arange(6.0).reshape(2, 3), min=-1.0, vary=MASK)
    p.add("a", [1.0, 2.0, 3.0], max=[5.0, 5.0, 9.0])
    p.add("c", [7.0, 8.0], vary=False)
    p.add("sum", tie={"B": 2.0, "a": [1.0, 0.0, -1.0], "z": -1.0}, offset=[[0.5], [1.5]])
    p.add("twice", tie={"sum": 2.0})
    p.add("same", tie="a")
    return p


def filled(theta):
    """`mixed` by NumPy's assignment."""
    B = np.arange(6.0).reshape(2, 3)
    B[MASK] = theta["B"]
    total = 2.0 * B + np.array([1.0, 0.0, -1.0]) * theta["a"] - theta["z"] + np.array([[0.5], [1.5]])
    own = {"z": theta["z"], "B": B, "a": theta["a"], "c": np.array([7.0, 8.0])}
    return own | {"sum": total, "twice": 2 * total, "same": theta["a"]}


def point(seed=0):
    return {name: x + rng(seed).normal(size=x.shape) for name, x in mixed().theta0.items()}


@every_backend
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_values_are_those_of_plain_numpy_on_every_framework(name, dtype):
    backend, theta = xv.backends.get(name), point()
    with backend.scope(dtype):
        sent = send_tree(backend, theta, dtype)
        found = mixed().values(sent)
    for key, want in filled(theta).items():
        assert adapters.owner(found[key]).name == name
        assert dtype_name(found[key]) == dtype
        np.testing.assert_allclose(host(found[key]), want, rtol=1e-15 if dtype == "float64" else 1e-5)


def test_values_take_leading_axes():
    thetas = [point(seed) for seed in range(4)]
    stacked = {name: np.stack([t[name] for t in thetas]).reshape(2, 2, *thetas[0][name].shape) for name in thetas[0]}
    found = mixed().values(stacked)
    for key in mixed():
        want = np.stack([filled(t)[key] for t in thetas])
        np.testing.assert_allclose(found[key], want.reshape(2, 2, *want.shape[1:]), rtol=1e-15)


def test_values_without_a_theta_are_the_start():
    theta = mixed().theta0
    for key, want in filled(theta).items():
        np.testing.assert_array_equal(mixed().values()[key], want)
    np.testing.assert_array_equal(theta["B"], [0.0, 2.0, 5.0])
    fixed = xv.Parameters.from_dict({"a": {"value": 2.0, "vary": False}})
    assert (fixed.theta0, fixed.over, fixed.names) == ({}, {}, ())
    assert float(fixed.values({})["a"]) == 2.0


def test_sets_are_those_of_what_varies():
    over = mixed().over
    assert list(over) == ["B", "a"]
    assert over["B"] == xv.sets.Box(-1.0, np.inf)
    np.testing.assert_array_equal(over["a"].upper, [5.0, 5.0, 9.0])
    p = xv.Parameters()
    p.add("x", [1.0, 2.0, 3.0], min=[0.0, 1.0, 2.0], vary=[True, False, True])
    np.testing.assert_array_equal(p.over["x"].lower, [0.0, 2.0])


def test_the_linear_map_is_that_of_values():
    p, theta = mixed(), point()
    A, b, rows = p.linear_map()
    z = np.concatenate([np.ravel(x) for x in trees.leaves(theta)])
    want = filled(theta)
    np.testing.assert_allclose(A @ z + b, np.concatenate([np.ravel(want[key]) for key in sorted(want)]), rtol=1e-14)
    assert A.shape == (len(rows), len(p.names))
    # a name says which entry it is
    for row, value in zip(rows, A @ z + b, strict=True):
        key, _, at = row.partition("[")
        np.testing.assert_allclose(value, want[key][tuple(map(int, at[:-1].split(",")))] if at else want[key])
    for column, entry in enumerate(p.names):
        np.testing.assert_array_equal(A[rows.index(entry)], np.eye(len(z))[column])


def test_factors_of_the_linear_map_are_not_rounded_at_the_size_of_offsets():
    p = xv.Parameters.from_dict({"a": 1.0, "b": {"tie": {"a": 1e-9 / 3}, "offset": 1e9}})
    assert p.linear_map().A[1, 0] == 1e-9 / 3


def test_names_are_in_the_order_of_theta():
    p = mixed()
    assert p.names == ("B[0, 0]", "B[0, 2]", "B[1, 2]", "a[0]", "a[1]", "a[2]", "z")
    labels = {"B": ["B[0, 0]", "B[0, 2]", "B[1, 2]"], "a": ["a[0]", "a[1]", "a[2]"], "z": "z"}
    assert p.names == tuple(trees.leaves({name: labels[name] for name in p.theta0}))


# -- changes -----------------------------------------------------------------------------------------------------------


def test_what_was_made_before_a_change_stays():
    p = parameters()
    model, theta0, over = p.model(decays), p.theta0, p.over
    want = model(theta0, DATA)
    p.add("k4", 1.0)
    p.set("omega", 1.0, vary=True)
    np.testing.assert_array_equal(model(theta0, DATA), want)
    assert set(theta0) == set(over) == {"k1", "k2"}
    with pytest.raises(ProblemError, match=r"theta must be a dict with the keys \['k2', 'k1'\]"):
        model(p.theta0, DATA)


def test_nothing_is_shared_with_what_was_passed_or_returned():
    start, low = np.array([1.0, 2.0]), np.zeros(2)
    p = xv.Parameters()
    p.add("a", start, min=low)
    start[:], low[:] = -5.0, 7.0
    p.theta0["a"][:] = 9.0
    np.testing.assert_array_equal(p.theta0["a"], [1.0, 2.0])
    assert p.over["a"] == xv.sets.Box(0.0, np.inf)
    with pytest.raises(ValueError, match="read-only"):
        p["a"].value[0] = 3.0


def test_a_copy_is_changed_alone():
    p = parameters()
    q = copy.copy(p)
    q.set("k1", vary=False)
    assert (p.names, q.names) == (("k1", "k2"), ("k2",))


def test_set_keeps_what_is_not_given():
    def fields():
        return [float(getattr(p["k1"], name)) for name in ("value", "min", "max", "vary")]

    p = parameters()
    p.set("k1", 2.0)
    assert fields() == [2.0, 0.0, 10.0, True]
    p.set("k1", max=3.0, vary=False)
    assert fields() == [2.0, 0.0, 3.0, False]
    p.set("k1", min=-np.inf, max=np.inf, vary=True)
    assert set(p.over) == {"k2"}


def test_a_dict_makes_the_same():
    p = xv.Parameters.from_dict(
        {
            "omega": {"value": 3.0, "vary": False},
            "k2": (8.0, 0.0),
            "k1": (0.5, 0.0, 10.0),
            "k3": {"tie": {"k1": 2.0}, "offset": 0.1},
        }
    )
    assert repr(p) == repr(parameters())
    assert repr(xv.Parameters.from_dict({"a": [1.0, 2.0]})["a"].value) == "array([1., 2.])"


def test_a_fit_goes_on_with_other_parameters_fixed():
    p = parameters()
    p.set("k2", vary=False)
    first = xv.solve(xv.separable(p.model(decays), Y, data=DATA), p.theta0, over=p.over)
    p = p.at(first.theta)
    p.set("k2", vary=True)
    assert float(p.theta0["k1"]) == float(first.theta["k1"])
    assert xv.solve(xv.separable(p.model(decays), Y, data=DATA), p.theta0, over=p.over).value < first.value


def test_a_start_at_a_solution_in_single_precision_is_within_bounds():
    p = xv.Parameters.from_dict({"k1": (0.5, 0.1, 0.7), "k2": (8.0, 0.1, 8.0)})
    q = p.at({"k1": np.float32(0.7), "k2": np.float32(0.1)})
    q.set("k1", vary=False)
    assert 0.1 <= q["k2"].value <= q["k1"].value <= 0.7


def test_parameters_and_their_models_can_be_pickled():
    p = parameters()
    problem = pickle.loads(pickle.dumps(xv.separable(p.model(decays), Y, data=DATA)))
    q = pickle.loads(pickle.dumps(p))
    assert repr(q) == repr(p)
    np.testing.assert_array_equal(problem.lower.M(q.theta0, DATA), by_hand(p.theta0, DATA))


def test_the_table_says_everything():
    p = parameters()
    p.add("rates", [1.0, 2.5], min=[0.0, -np.inf], vary=[True, False])
    p.add("s", np.full((2, 2), 0.25), over=xv.sets.Simplex())
    p.add("rest", tie={"k1": -1.0, "rates": -1.0 / 3.0}, offset=1.0)
    p.add("long", np.linspace(0.0, 1.0, 101), vary=False)
    rows = [line.split("  ") for line in repr(p).splitlines()]
    assert [[cell.strip() for cell in row if cell] for row in rows] == [
        ["name", "value", "min", "max", "vary", "over", "tie"],
        ["omega", "3", "-inf", "inf", "False"],
        ["k2", "8", "0", "inf", "True"],
        ["k1", "0.5", "0", "10", "True"],
        ["k3", "1.1", "2 k1 + 0.1"],
        ["rates", "[1, 2.5]", "[0, -inf]", "inf", "[True, False]"],
        ["s", "[[0.25, 0.25], [0.25, 0.25]]", "True", "Simplex(radius=1.0)"],
        ["rest", "[0.166667, -0.333333]", "-1 k1 - 0.333333 rates + 1"],
        ["long", "[0, 0.01, ..., 0.99, 1]", "-inf", "inf", "False"],
    ]
    header, k3 = repr(p).splitlines()[0], repr(p).splitlines()[4]
    assert k3[header.index("tie") :] == "2 k1 + 0.1"
    assert repr(xv.Parameters()) == "Parameters()"


# -- errors ------------------------------------------------------------------------------------------------------------

BAD = [
    (("", 1.0), {}, "the name of a parameter must be a string"),
    (("a[0]", 1.0), {}, "without square brackets, got 'a\\[0\\]'"),
    (("k1", 1.0), {}, r"'k1' is there already. Change it by set\('k1', ...\)"),
    (("a",), {}, "a must have a value, or a tie to other parameters, got neither"),
    (("a", np.nan), {}, "a: value must be a number or an array of numbers, got nan"),
    (("a", np.inf), {}, "a: value must be finite numbers"),
    (("a", []), {}, "a: value .* got \\[\\]"),
    (("a", True), {}, "a: value must be a number or an array of numbers, got True"),
    (("a", [1.0, [2.0]]), {}, "a: value given as a list must hold numbers"),
    (("a", np.ma.masked_array([1.0, 2.0], [True, False])), {}, "a: value must be an array without masked entries"),
    (("a", 1.0), {"min": 2.0, "max": 1.0}, "a: min must be at most max .* got min=2 and max=1"),
    (("a", 1.0), {"min": np.nan}, "a: min must be a number .* got nan"),
    (("a", 1.0), {"min": np.inf}, "no bound beyond all numbers"),
    (("a", 1.0), {"max": "10"}, "a: max must be a number"),
    (("a", 12.0), {"min": 0.0, "max": 10.0}, "a: value must lie .*, got 12 with min=0 and max=10. Move the start"),
    (("a", [1.0, -1.0]), {"min": 0.0}, r"a\[1\]: value must lie between min and max, got -1"),
    (("a", [1.0, 2.0]), {"min": [0.0] * 3}, r"a: min must broadcast to the shape \(2,\) of .* got shape \(3,\)"),
    (("a", 1.0), {"vary": 1}, "a: vary must be True or False, or an array of these, got 1"),
    (("a", [1.0, 2.0]), {"vary": [True] * 3}, "a: vary must broadcast to the shape"),
    (("a", 1.0), {"over": 3.0}, r"a: over must be a set such as xv.sets.Simplex\(\), got 3.0"),
    (("a", [1.0]), {"over": xv.sets.Simplex(), "min": 0.0}, "a: over takes the place of min and max"),
    (("a", [0.5, 0.5]), {"over": xv.sets.Simplex(), "vary": [True, False]}, "for all entries of a set"),
    (("a", [1.0, 2.0]), {"over": xv.sets.Box(np.zeros(3), 1.0)}, "Box: lower must broadcast"),
    (("a", 1.0), {"offset": 1.0}, "a: offset belongs to a tie"),
    (("a",), {"tie": {"b": 1.0}}, "added before it, omega, k2, k1, k3; got 'b', which is not there"),
    (("a",), {"tie": {"a": 1.0}}, "added before it, .* got 'a', itself"),
    (("a",), {"tie": {}}, "a: tie must be a dict of factors such as"),
    (("a",), {"tie": {"k1": "2"}}, "a: the factor of k1 must be a number"),
    (("a",), {"tie": {"k1": np.inf}}, "a: factors and offset of a tie must be finite"),
    (("a",), {"tie": "k1", "offset": np.nan}, "a: offset must be a number"),
    (("a",), {"tie": {"k1": [1.0, 2.0]}, "offset": [1.0] * 3}, r"to one shape, got shapes \(\), \(2,\), \(3,\)"),
    (("a", 1.0), {"tie": "k1"}, "a tied parameter must have no value, got 1.0. .* give an offset"),
    (("a",), {"tie": "k1", "min": 0.0}, "must have no min, got 0.0. Bound the parameters that .*Simplex"),
    (("a",), {"tie": "k1", "vary": False}, "must have no vary, got False. It varies with"),
]  # fmt: skip


def test_bad_input_is_named(subtests):
    for args, keywords, message in BAD:
        p = parameters()
        with subtests.test(message):
            with pytest.raises(ProblemError, match=message):
                p.add(*args, **keywords)
            assert list(p) == list(parameters())


def test_other_bad_input_is_named(subtests):
    for change, message in (
        (lambda p: p.set("k9", 1.0), "there is no parameter 'k9' among omega, k2, k1, k3"),
        (lambda p: p["k9"], "there is no parameter 'k9'"),
        (lambda p: p.set("k3", 1.0), "k3 is tied: set the parameters that it is tied to, k1"),
        (lambda p: xv.Parameters.from_dict({"a": {"tie": "b"}, "b": {"tie": "a"}}), "got 'b', which is not there"),
        (lambda p: xv.Parameters()["a"], "there is no parameter 'a' among none"),
        (lambda p: p.set("k1", 11.0), "k1: value must lie between"),
        (lambda p: p.set("k1", max=0.2), "k1: value must lie between"),
        (lambda p: p.set("k1", [1.0, 2.0]), r"k1: value must keep the shape \(\), got shape \(2,\)"),
        (lambda p: xv.Parameters.from_dict([("k1", 1.0)]), "from_dict must be given a dict, got list"),
        (lambda p: xv.Parameters.from_dict({"a": {"value": 1.0, "expr": "2 b"}}), "a must have fields .* got 'expr'"),
        (lambda p: xv.Parameters.from_dict({"a": (1.0, 0.0, 2.0, True)}), r"a must be a tuple \(value, min, max\), go"),
        (lambda p: p.values({"k1": 1.0}), r"theta must be a dict with the keys \['k2', 'k1'\], .* got \['k1'\]"),
        (lambda p: p.values(np.ones(2)), "theta must be a dict .* got ndarray"),
        (lambda p: p.values({"k1": np.ones(2), "k2": 1.0}), r"theta\['k1'\] must have shape \(\), .* got shape \(2,\)"),
        (lambda p: mixed().values({**mixed().theta0, "a": np.ones(4)}), r"theta\['a'\] must have shape \(3,\)"),
        (lambda p: xv.Parameters().linear_map(), "linear_map needs a parameter that varies"),
        (lambda p: xv.solve(xv.separable(p.model(decays), Y, data=DATA), {}), "theta0 must hold at least one array"),
    ):
        with subtests.test(message), pytest.raises(ProblemError, match=message):
            change(parameters())
