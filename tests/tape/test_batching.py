"""A function mapped at once by arrays with a hidden axis: values, dtypes and gradients are those of a loop."""

import numpy as np
import pytest

from tests.support import in_turn
from xvarpro.backends.interface import one_by_one
from xvarpro.backends.tape import NoBatchError, ground, vjp
from xvarpro.backends.tape.batching import RULES, vmap
from xvarpro.backends.tape.rules.table import PRIMITIVES

from .functions import CASES
from .namespaces import NUMPY, RAW, host
from .test_rules import double, flat, weights
from .test_table import STEPS

B = 3
LOOPS = {("roll", 0), ("_getitem", 17), ("_getitem", 20)}  # without a rule: they are in REFUSED, too
ALL = [
    (name, i, case)
    for name, cases in CASES.items()
    for i, case in enumerate(cases)
    if not i % (1 + len(cases) // 8) and (name, i) not in LOOPS  # of functions with many signatures some
]


def alike(fun, mapped, shared=(), raw=NUMPY, rtol=1e-11):
    """Check `fun` of arrays of each problem, and of all, at once and under a derivative, against a loop."""
    n, arrays = len(mapped), tuple(map(raw.array, (*mapped, *shared)))

    def outputs(*xs):
        return flat(fun(xs[0].__array_namespace__(), *xs))

    def at_once(*xs):
        return vmap(ground(raw.xp, raw.index_add), outputs, xs[:n], xs[n:])

    found = at_once(*arrays)
    want, pull = vjp(lambda *xs: one_by_one(outputs, xs[:n], xs[n:], ""), arrays, **raw.how)
    got, pull_at_once = vjp(at_once, arrays, **raw.how)
    ws = tuple(map(raw.array, weights([host(y) for y in want])))
    for a, b in zip((*found, *got, *pull_at_once(ws)), (*want, *want, *pull(ws)), strict=True):
        a, b = host(a), host(b)
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(a, b, rtol=0, atol=rtol * max(1.0, np.max(np.abs(b), initial=0.0)))


def numbers(*shape):
    return np.random.default_rng(shape).normal(size=shape)


def of_each(x):
    return x * (1 + 1e-2 * numbers(B, *x.shape)).astype(x.real.dtype)


@pytest.mark.parametrize("raw", ["numpy", "array-api-strict"])
@in_turn("name, i, case", ALL)
def test_every_function(name, i, case, raw):
    if raw != "numpy" and not case.strict:
        return
    # of several operands all are mapped, or one
    own = [len(case.args) == 1 or i % 3 in (0, j + 1) for j in range(len(case.args))]
    places = sorted(range(len(own)), key=lambda j: not own[j])
    given = [of_each(case.args[j]) if own[j] else case.args[j] for j in places]

    alike(
        lambda xp, *xs: case.fun(xp, *(xs[places.index(j)] for j in range(len(own)))),
        *(given[: sum(own)], given[sum(own) :], RAW[raw], 1e-9 if double(case) else 1e-5),
    )


def test_every_primitive_has_a_rule():
    """All others have that of elementwise functions, or are written with functions that have one."""
    assert set(PRIMITIVES) <= set(RULES)


@in_turn("name", STEPS)
def test_functions_with_steps_only(name):
    def fun(xp, x, A):
        z = x > 0 if name.startswith("logical") else x
        return getattr(xp, name)(z, *STEPS[name]), getattr(xp, name)(z if z is not x else A[0, :], *STEPS[name])

    alike(fun, [numbers(B, 3)], [numbers(2, 3)])


def ranks(xp, c, A, v):  # a number and a matrix of each, a vector of all
    return c * v + xp.sum(A, axis=-1)[0], A - v, xp.maximum(A, c), v / c, xp.where(c > 0, A, v), xp.clip(A, 0.0, c)


def parts(xp, v, A):
    a, *rest = v
    return (
        a,
        rest[-1],
        xp.unstack(A)[1],
        A[::-1, None, 0],
        v[None],
        A[..., -1:],
        xp.asarray(len(v)) * a,
        A.T,
        A.mT @ A,
        -v % 2,
    )


def constants(xp, v, A):
    return xp.ones(2), A, xp.full((2,), v[0]), xp.full_like(A, 3.0), xp.zeros_like(v), xp.asarray(1.5), np.eye(2), v


def keys(xp, k, x, table):
    i = xp.astype(k, xp.int64)  # (2, 2): where each problem reads
    j = i[0, :]
    return table[i], table[i, 0], x[i], x[i, :], x[j, i, :], xp.take(table, j, axis=1), xp.take(x, j, axis=-1)


def interpolation(xp, at, grid, values):
    i = xp.searchsorted(grid, at) - 1
    part = (at - xp.take(grid, i)) / (xp.take(grid, i + 1) - xp.take(grid, i))
    return xp.take(values, i) * (1 - part) + xp.take(values, i + 1) * part


def products(xp, v, A, M):
    return (
        M @ v,
        v @ M,
        v @ v,
        A @ v,
        v @ A,
        M @ A,
        A @ M,
        xp.linalg.solve(A @ A.mT + M @ M.T, v),
        xp.tensordot(A, v, axes=1),
    )


EXPRESSIONS = {
    "operands of other ranks": (ranks, [numbers(B), numbers(B, 2, 3)], [numbers(3)]),
    "parts": (parts, [numbers(B, 3), numbers(B, 2, 3)], []),
    "what is the same for all": (constants, [numbers(B, 3)], [numbers(2, 2)]),
    "keys": (keys, [numbers(B, 2, 2) % 2, numbers(B, 2, 2, 3)], [numbers(2, 2)]),
    "interpolation": (interpolation, [numbers(B, 4) % 0.9], [np.linspace(-0.1, 1.0, 9), numbers(9)]),
    "products": (products, [numbers(B, 3), numbers(B, 3, 3)], [numbers(3, 3)]),
}


@in_turn("name", EXPRESSIONS)
def test_expressions(name):
    alike(*EXPRESSIONS[name])


REFUSED = {
    "an axis that would be the hidden one": lambda xp, v, A: xp.sum(A, axis=-3),
    "one of several": lambda xp, v, A: xp.flip(A, axis=(0, -3)),
    "one of two operands": lambda xp, v, A: xp.vecdot(v, v, axis=-2),
    "values of each to look for": lambda xp, v, A: xp.isin(A, v),
    "the transpose of a vector": lambda xp, v, A: xp.matrix_transpose(v),
    "a product with a number": lambda xp, v, A: xp.matmul(v[0], A),
    "too few axes": lambda xp, v, A: xp.broadcast_to(A, (3,)),
    "all entries as one line": lambda xp, v, A: xp.roll(A, 2),
    "a key with arrays apart": lambda xp, v, A: xp.stack([A, A])[1, :, xp.asarray([0, 2])],
    "as many entries as are positive": lambda xp, v, A: A[v > 0],
    "a branch": lambda xp, v, A: v if v[0] > 0 else -v,
    "a number": lambda xp, v, A: float(v[0]) * v,
    "a shape": lambda xp, v, A: xp.nonzero(v > 0)[0],
    "a function that is none of the standard": lambda xp, v, A: xp.erf(v),
}


@in_turn("name", REFUSED)
def test_nothing_else_is_taken_for_a_batch(name):
    with pytest.raises(NoBatchError):
        vmap(ground(NUMPY.xp, NUMPY.index_add), lambda *xs: (REFUSED[name](xs[0].__array_namespace__(), *xs),),
             (numbers(B, 3), numbers(B, 3, 3)))  # fmt: skip
