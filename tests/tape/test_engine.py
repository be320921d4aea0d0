"""The tape itself beyond the suite: constants, nesting, operators, and the namespace that functions see."""

import gc
import math
import operator
import re
import weakref

import array_api_compat as aac
import array_api_strict as xps
import numpy as np
import pytest

from xvarpro.backends.tape import NoRuleError, vjp

from .namespaces import NUMPY, RAW, STRICT, host, jvp

X = np.array([0.5, -1.5, 2.0])
Y = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])


def ns(x):
    return x.__array_namespace__()


# ------------------------------------------------------------------------------------------- structure in and out


def test_what_does_not_depend_on_the_primals_has_gradient_zero():
    raw = np.array([1.0, 2.0])
    y, pullback = vjp(lambda x: (raw, ns(x).zeros(2), x), (X,), **NUMPY.how)
    assert y[0] is raw
    np.testing.assert_array_equal(pullback((np.ones(2), np.ones(2), np.zeros(3)))[0], np.zeros(3))
    _, pullback = vjp(lambda x: raw, (X,), **NUMPY.how)
    np.testing.assert_array_equal(pullback(raw)[0], np.zeros(3))
    _, dy = jvp(lambda x: (raw, 2 * x), (X,), (X,), **NUMPY.how)
    np.testing.assert_array_equal(dy[0], np.zeros(2))
    np.testing.assert_array_equal(dy[1], 2 * X)


def test_an_output_that_is_returned_twice_moves_twice():
    """The sum of both cotangents is a node behind those of all outputs."""

    def f(x):
        y = 3 * x
        return y, y, x * x

    _, moved = jvp(f, (X,), (X,), **NUMPY.how)
    for found, want in zip(moved, (3 * X, 3 * X, 2 * X * X), strict=True):
        np.testing.assert_array_equal(found, want)


@pytest.mark.parametrize("name", RAW)
def test_constants_share_the_namespace_and_get_no_gradient(name):
    raw = RAW[name]
    seen = []

    def f(x, c, n):
        assert ns(c) is ns(x)
        assert n == 3
        before = len(x.tape.nodes)
        c2 = ns(c).tanh(c * c) + c[..., ::1]
        seen.append(len(x.tape.nodes) - before)
        return c2 * x  # strict refuses a raw array on the left; a constant is not raw

    y, (g,) = (lambda v: (v[0], v[1](raw.array(np.ones(3)))))(vjp(f, (raw.array(X),), (raw.array(X + 1), 3), **raw.how))
    assert seen == [0]
    np.testing.assert_allclose(host(g), np.tanh((X + 1) ** 2) + X + 1)
    np.testing.assert_allclose(host(y), host(g) * X)


def test_inputs_are_not_written_to():
    x, g = X.copy(), np.ones(3)
    for a in (x, g):
        a.flags.writeable = False
    _, pullback = vjp(lambda x: ns(x).concat([x, x])[:3] + x[ns(x).asarray([0, 0, 1])], (x,), **NUMPY.how)
    np.testing.assert_array_equal(pullback(g)[0], [3.0, 2.0, 1.0])


# --------------------------------------------------------------------------------------------------------- nesting


def test_three_levels():
    def derivative(f):
        def df(x):
            _, pullback = vjp(f, (x,), xp=ns(x) if hasattr(x, "tape") else NUMPY.xp, index_add=NUMPY.index_add)
            return pullback(x / x)[0]

        return df

    np.testing.assert_allclose(derivative(derivative(derivative(lambda x: x**5)))(X), 60 * X**2, rtol=1e-12)


def test_an_inner_function_may_use_outer_arrays():
    """d/dx of [d/dy (x y^2) at y = 3] = 2 y: no confusion between the two traces."""

    def outer(x):
        _, pullback = vjp(lambda y: x * y * y + y * x * 0.0, (3.0 * ns(x).ones_like(x),), xp=ns(x), index_add=None)
        return pullback(ns(x).ones_like(x))[0]

    y, pullback = vjp(outer, (X,), **NUMPY.how)
    np.testing.assert_allclose(y, 6 * X)
    np.testing.assert_allclose(pullback(np.ones(3))[0], [6.0, 6.0, 6.0])


def test_arrays_of_unrelated_traces_do_not_mix():
    """An inner vjp over the raw namespace would cut the outer gradient."""

    def outer(x):
        vjp(lambda y: y * x, (X,), **NUMPY.how)
        return x

    with pytest.raises(TypeError, match="one trace met the namespace of another"):
        vjp(outer, (X,), **NUMPY.how)
    with pytest.raises(TypeError, match="one trace met the namespace of another"):
        vjp(lambda x: vjp(lambda y: ns(x).add(x, y), (x,), xp=ns(x), index_add=None)[0], (X,), **NUMPY.how)


# ---------------------------------------------------------------------------------------------------------- memory


def test_what_no_derivative_reads_is_dropped_at_once_and_all_else_with_the_pullback():
    kept = {}

    def fun(x):
        xp = ns(x)
        summed = x + 1.0
        through = xp.tanh(summed)
        doubled = xp.reshape(through * 2.0, (3, 1))
        root = xp.sqrt(doubled * doubled + 1.0)
        factor = xp.exp(root)
        sine, (w, V) = xp.sin(factor), xp.linalg.eigh(xp.eye(3) * x)
        arrays = {"sum": summed, "tanh": through, "double": doubled, "root": root, "exponential": factor, "sine": sine}
        kept.update({what: weakref.ref(y.value) for what, y in arrays.items()})
        kept["vectors"], kept["tape"], kept["array"] = weakref.ref(V.value), weakref.ref(x.tape), weakref.ref(w)
        return xp.sum(sine), xp.sum(V * w)

    def alive():
        return {what for what, reference in kept.items() if reference() is not None}

    gc.collect()
    gc.disable()
    try:
        values, pullback = vjp(fun, (X,), **NUMPY.how)
        held = alive()
        pullback(tuple(map(np.ones_like, values)))
        del pullback, values
        left = alive()
    finally:
        gc.enable()
    assert held == {"tanh", "double", "root", "exponential", "vectors", "tape"}
    assert not left


def test_arrays_of_nested_tapes_die_with_the_pullback():
    """No reference cycle: with the collector off, everything goes when the last reference goes."""
    alive = []

    def gradient(x):
        xp = ns(x)
        y, pullback = vjp(lambda z: ns(z).tanh(z) * z, (x,), xp=xp, index_add=None)
        alive.extend([weakref.ref(xp), weakref.ref(y)])
        return pullback(xp.ones_like(x))[0]

    gc.collect()
    gc.disable()
    try:
        _, pullback = vjp(gradient, (X,), **NUMPY.how)
        pullback(np.ones(3))
        jvp(gradient, (X,), (X,), **NUMPY.how)
        del pullback
        left = sum(r() is not None for r in alive)
    finally:
        gc.enable()
    assert alive
    assert left == 0


# ------------------------------------------------------------------------------------------------- what is refused


def matrix(x, xp):
    return xp.stack([x, x * x], axis=1)


# what a function of the traced array and its namespace does; the error; words of the remedy
REFUSED = {
    "bool": (lambda x, xp: bool(x[0] > 0), TypeError, "bool() of a traced array would cut its gradient"),
    "float": (lambda x, xp: float(x[0]), TypeError, "keep it an array"),
    "int": (lambda x, xp: int(x[0]), TypeError, "keep it an array"),
    "complex": (lambda x, xp: complex(x[0]), TypeError, "keep it an array"),
    "index": (lambda x, xp: operator.index(x[0]), TypeError, "xp.take"),
    "an array of NumPy": (lambda x, xp: np.asarray(x), TypeError, "call functions of xp"),
    "an assignment": (lambda x, xp: operator.setitem(x, 0, 1.0), TypeError, "xp.where"),
    "a method": (lambda x, xp: x.sum(), AttributeError, "xp.sum(x)"),
    "T of a vector": (lambda x, xp: x.T, ValueError, "x.mT"),
    "len of a number": (lambda x, xp: len(x[0]), TypeError, "without axes"),
    "a function without a rule": (lambda x, xp: xp.unique_values(x), AttributeError, "rule for 'unique_values'."),
    "of an extension": (lambda x, xp: xp.linalg.none_such(x), AttributeError, "rule for 'linalg.none_such'."),
    "a list of traced arrays": (lambda x, xp: xp.asarray([x[0], x[1]]), TypeError, "xp.stack"),
    "lists of them": (lambda x, xp: xp.asarray([[1.0], (x[1],)]), TypeError, "xp.stack"),
    "numbers from a traced array": (lambda x, xp: xp.arange(x[0]), NoRuleError, "'arange' of a traced array"),
    "the same by keyword": (lambda x, xp: xp.linspace(0.0, stop=x[0], num=3), NoRuleError, "of a traced array"),
    "another device": (lambda x, xp: xp.asarray(x, device="another"), NoRuleError, "to another"),
    "a key with a list": (lambda x, xp: x[[0, 1]], TypeError, "integers, slices"),
    "take at a matrix": (lambda x, xp: xp.take(x, xp.asarray([[0]]), axis=0), ValueError, "x[indices]"),
    "take without an axis": (lambda x, xp: xp.take(matrix(x, xp), xp.asarray([0])), ValueError, "needs an axis"),
    "a complete QR": (lambda x, xp: xp.linalg.qr(matrix(x, xp), mode="complete"), NoRuleError, "mode='reduced'"),
    "a full SVD": (lambda x, xp: xp.linalg.svd(matrix(x, xp)), NoRuleError, "full_matrices=True"),
    "of a stack": (lambda x, xp: xp.linalg.svd(xp.stack([matrix(x, xp)] * 2)), NoRuleError, "full_matrices=True"),
    "an unknown norm": (lambda x, xp: xp.linalg.matrix_norm(matrix(x, xp), ord=3), NoRuleError, "ord=3"),
    "a number as a result": (lambda x, xp: 1.0, TypeError, "expected an array, got float"),
}


@pytest.mark.parametrize("name", RAW)
def test_what_cuts_a_gradient_or_has_no_rule_says_what_to_write_instead(name, subtests):
    raw = RAW[name]
    for what, (fun, kind, words) in REFUSED.items():
        with subtests.test(what), pytest.raises(kind, match=re.escape(words)):
            vjp(lambda x, fun=fun: (fun(x, ns(x)),), (raw.array(X),), **raw.how)


def test_cotangents_are_like_the_outputs_and_arguments_are_floating():
    _, pullback = vjp(lambda x: (x * x, 2.0 * x), (X,), **NUMPY.how)
    for cotangents, kind, words in (
        ((X,), ValueError, "2 outputs, got 1"),
        ((X, 1.0), TypeError, "must be an array, got float"),
        ((X, X[:2]), ValueError, r"output, \(3,\), got \(2,\)"),
        ((X.astype("float32"), X), TypeError, "float64"),
    ):
        with pytest.raises(kind, match=words):
            pullback(cotangents)
    with pytest.raises(TypeError, match="floating-point arrays"):
        vjp(lambda x: (x,), (np.arange(3),), **NUMPY.how)


# --------------------------------------------------------------------------------------------- the traced array


def traced(check, *arrays, raw=NUMPY):
    """Run `check` on traced arrays."""

    def f(*xs):
        check(*xs)
        return xs[0]

    vjp(f, tuple(raw.array(a) for a in (arrays or (X,))), **raw.how)


def test_a_traced_array_says_that_it_is_one():
    def check(x):
        assert "traced" in repr(x)
        assert "constant" in repr(x > 0)
        assert "tape1" in repr(ns(x))
        assert not hasattr(x, "numpy")

    traced(check)


NUMPY_CALLS = {
    "sin": np.sin,
    "asarray": np.asarray,
    "sum": np.sum,
    "add": lambda x: np.add(X, x),
    "concatenate": lambda x: np.concatenate([x, X]),
    "solve": lambda x: np.linalg.solve(np.eye(3), x),
    "einsum": lambda x: np.einsum("i,i", x, X),
    "fill": lambda x: np.full(3, x[0]),
    "assign": lambda x: X.copy().__setitem__(0, x[0]),
}


@pytest.mark.parametrize("name", NUMPY_CALLS)
def test_numpy_never_gets_hold_of_a_traced_array(name):
    def check(x):
        # NumPy wraps the TypeError of an element assignment in a ValueError
        with pytest.raises((TypeError, ValueError)):
            NUMPY_CALLS[name](x)

    traced(check)


def test_augmented_operators_rebind():
    def check(x):
        y = x
        y += 1.0
        y *= 2.0
        assert y is not x
        np.testing.assert_array_equal(x.value, X)
        np.testing.assert_array_equal(y.value, (X + 1) * 2)
        with pytest.raises(TypeError, match=r"use xp\.asarray"):
            x[..., (0, 0)]

    traced(check)


TRACED = """x + k, k + x, x + c, 1.0 + x, x - k, k - x, 1.0 - x, k * x, 2.0 * x, x / k, k / x, 1.0 / x, x**2, 2.0**x,
    x % 0.7, -x, +x, abs(x), x @ k, k @ x"""
CONSTANT = """x < k, k <= x, x < 1.0, x >= 0, x == k, x != 1.0, ~(x > 0), (x > 0) & (x < 1), (x > 0) | (x < 1),
    (x > 0) ^ (x < 1), x // 0.7, k + k, i << 1, i >> 1"""


@pytest.mark.parametrize("name", RAW)
def test_operators_in_every_combination(name):
    """Traced with traced, with numbers on both sides, with constants; raw arrays on the right everywhere."""
    raw = RAW[name]
    c = raw.array(X)

    def check(x):
        names = {"x": x, "c": c, "k": ns(x).asarray(c), "i": ns(x).asarray([4, 2])}
        for texts, recorded in ((TRACED, True), (CONSTANT, False)):
            for text in texts.replace("\n", " ").split(", "):
                assert (eval(text.strip(), names).index is not None) == recorded, text

    traced(check, raw=raw)


def test_a_raw_array_on_the_left_defers():
    def check(x):
        for y in (X + x, X - x, X * x, X / x, X**2 @ x, np.float64(2.0) * x, np.abs(X) ** x):
            assert y.index is not None
        assert (x > X).index is None

    traced(check)


def test_a_strict_array_on_the_left_is_an_error_not_a_silence():
    def check(x):
        with pytest.raises(TypeError):
            xps.asarray(X) * x

    traced(check, raw=STRICT)


# --------------------------------------------------------------------------------------------- the traced namespace


@pytest.mark.parametrize("name", RAW)
def test_the_helpers_of_array_api_compat_work(name):
    raw = RAW[name]
    c = raw.array(X)

    def check(x):
        xp = aac.array_namespace(x)
        assert xp is ns(x)
        assert aac.array_namespace(x, 2 * x, 1.0) is xp
        assert aac.is_array_api_obj(x)
        assert not aac.is_numpy_array(x)
        assert aac.device(x) == aac.device(c)
        assert aac.size(x) == 3
        # the one thing worse than an error would be the raw namespace
        with pytest.raises(TypeError, match="Multiple namespaces"):
            aac.array_namespace(c, x)

    traced(check, raw=raw)


def test_creation_makes_constants_that_mix_with_traced_arrays():
    def check(x):
        xp = ns(x)
        made = [
            xp.zeros(3), xp.ones((3,)), xp.full(3, 2.0), xp.arange(3.0), xp.linspace(0, 1, 3), xp.empty(3),
            xp.asarray([1.0, 2.0, 3.0]), xp.zeros_like(x), xp.ones_like(x), xp.full_like(x, 3.0), xp.empty_like(x),
            xp.eye(3)[0], xp.asarray(X), xp.asarray(2.0), xp.fft.fftfreq(3), xp.fft.rfftfreq(4),
        ]  # fmt: skip
        for y in made:
            assert y.index is None
            assert (y * x).index is not None
        assert xp.full_like(x, 1, dtype=xp.int64).dtype == np.int64

    traced(check)


def test_dtypes_and_questions_pass_through():
    def check(x):
        xp = ns(x)
        assert xp.float32 == np.float32
        assert xp.pi == math.pi
        assert xp.newaxis is None
        assert xp.isdtype(x.dtype, "real floating")
        assert xp.finfo(x.dtype).eps == np.finfo(np.float64).eps
        assert xp.finfo(x).eps == np.finfo(np.float64).eps
        assert xp.iinfo(xp.int32).max == 2**31 - 1
        assert xp.result_type(x, xp.float32) == np.float64
        assert xp.can_cast(x, xp.float64)
        assert xp.broadcast_shapes((3, 1), (2,)) == (3, 2)
        assert xp.__array_namespace_info__().default_dtypes()["real floating"] == np.float64
        assert xp.__name__ != NUMPY.xp.__name__

    traced(check)


@pytest.mark.parametrize("name", RAW)
def test_arrays_that_are_made_of_a_traced_one_have_its_gradient(name):
    raw = RAW[name]
    seen = []

    def made(x):
        xp, first = ns(x), x[0]
        seen[:] = tuple(x.shape), x.ndim, x.size, len(x), len(list(x)), x.dtype, x.device
        here = {"dtype": x.dtype, "device": x.device}
        return (
            xp.asarray(x, dtype=xp.float32), xp.asarray(x), xp.asarray([3.0, 4.0], **here),
            xp.full((2,), first, dtype=x.dtype), xp.full(2, first), xp.full((2, 1), 3.0, **here),
            xp.full_like(x, first), xp.full_like(x, 2.0), xp.full_like(x, 2.0, dtype=xp.float32),
            xp.unstack(xp.asarray([3.0, 4.0]))[1], xp.expand_dims(x, axis=0).T, xp.expand_dims(x, axis=0).mT,
        )  # fmt: skip

    x, twos = raw.array(X), np.full(3, 2.0)
    values, pullback = vjp(made, (x,), **raw.how)
    halves = np.full(2, 0.5)
    want = X, X, [3.0, 4.0], halves, halves, np.full((2, 1), 3.0), 0.25 * twos, twos, twos, 4.0, X[:, None], X[:, None]
    assert seen == [(3,), 1, 3, 3, 3, x.dtype, x.device]
    for i, (y, right) in enumerate(zip(values, want, strict=True)):
        np.testing.assert_array_equal(host(y), right)
        default = raw.xp.asarray([3.0]).dtype
        assert y.dtype == (raw.xp.float32 if i in (0, 8) else default if i == 9 else x.dtype)
    (gradient,) = pullback(tuple(raw.xp.ones_like(y) for y in values))
    np.testing.assert_array_equal(host(gradient), [4.0 + 2 + 2 + 3, 4.0, 4.0])


def test_constants_answer_data_dependent_questions():
    """A mask or an index of a constant is as good as that of a raw array."""

    def f(x):
        xp = ns(x)
        (where,) = xp.nonzero(x > 0)
        place = xp.searchsorted(xp.asarray([0.0, 1.0, 3.0]), x)
        return xp.take(x, where), x[place * 0], x[x > 0]

    y, pullback = vjp(f, (X,), **NUMPY.how)
    np.testing.assert_array_equal(y[0], [0.5, 2.0])
    np.testing.assert_array_equal(pullback((np.ones(2), np.ones(3), np.ones(2)))[0], [5.0, 0.0, 2.0])


def test_the_scatter_add_of_the_backend_is_asked_for_one_axis_only():
    keys = []

    def add(x, key, v):
        keys.append((key.ndim, x.shape[1:] == v.shape[1:], np.issubdtype(key.dtype, np.integer)))
        return NUMPY.index_add(x, key, v)

    def f(y):
        xp = ns(y)
        i = xp.asarray([0, 1, 0])
        return y[i, i], y[:, i], xp.take(y, i, axis=1), xp.take_along_axis(y, xp.asarray([[0], [2]]), axis=1), y[y > 2]

    y, pullback = vjp(f, (Y,), xp=NUMPY.xp, index_add=add)
    pullback(tuple(np.ones_like(v) for v in y))
    assert keys == [(1, True, True)] * 5


class Unbroadcast:
    """NumPy, whose systems of equations take stacks of one shape alone, as CuPy's do."""

    def __init__(self, xp):
        self._xp, self.linalg = xp, self
        self.__name__ = xp.__name__

    def __getattr__(self, name):
        return getattr(self._xp, name)

    def solve(self, A, b):
        assert b.ndim == 1 or A.shape[:-2] == b.shape[:-2]
        return np.linalg.solve(A, b)


@pytest.mark.parametrize(("of_A", "of_b"), [((3, 3), (2, 3, 4)), ((2, 3, 3), (3, 4)), ((2, 3, 3), (3,))])
def test_systems_of_stacks_are_brought_to_one_shape(of_A, of_b):
    draw = np.random.default_rng(0)
    A, b, dA, db = np.eye(3) + 0.1 * draw.normal(size=of_A), *(draw.normal(size=s) for s in (of_b, of_A, of_b))
    how = {**NUMPY.how, "xp": Unbroadcast(NUMPY.how["xp"])}
    x, pullback = vjp(lambda A, b: ns(A).linalg.solve(A, b), (A, b), **how)
    u = draw.normal(size=x.shape)
    gA, gb = pullback(u)
    ahead, behind = (np.sum(u * np.linalg.solve(A + h * dA, b + h * db)) for h in (1e-6, -1e-6))
    assert np.sum(gA * dA) + np.sum(gb * db) == pytest.approx((ahead - behind) / 2e-6, rel=1e-7)
