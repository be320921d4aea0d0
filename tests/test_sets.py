"""What every set promises beyond the suite, which compares oracle, support, violation, projection, centre and diameter
with definitions: extremes, other sizes, batches of batches. A newcomer is found by its export.

A set says through `examples` for which parameters and event shapes it wants to be tested; nothing here names a set.
"""

from __future__ import annotations

import inspect
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xvarpro import backends, sets
from xvarpro.backends.calculus import hessian_product
from xvarpro.core import trees
from xvarpro.errors import ProblemError
from xvarpro.sets.interface import Set

from .support import compiles_for_long, host, in_turn, inner, rng, send

EXPORTED = [getattr(sets, name) for name in sets.__all__]
KINDS = [x for x in EXPORTED if inspect.isclass(x) and issubclass(x, Set) and not inspect.isabstract(x)]
EPS = np.finfo(np.float64).eps
POINT, COVECTOR, WAY = np.array([[3.0, -1.0, 2.0], [1.0, 0.5, -2.0], [0.5, 2.0, 1.0]])


def shapes(n):
    """Events that a set may be of: a vector, a matrix, a square one, a kernel."""
    return (n,), (n, 3), (n, n), (n, 2, 1, 1)


def examples(kind, n=5):
    """Every instance that the class wants tested, with the shape of one event."""
    for shape in shapes(n):
        found = []
        for C in kind.examples(shape):
            try:
                C.check(shape)
            except ProblemError:
                continue
            if C.event_ndim in (0, len(shape)):
                found.append((C, shape))
        if found:
            return found
    return []


CASES = [pytest.param(case, id=f"{kind.__name__}-{i}") for kind in KINDS for i, case in enumerate(examples(kind))]
PROJECTED = [p for p in CASES if p.values[0][0].has_projection]
each = in_turn("case", CASES)
each_projected = in_turn("case", PROJECTED)


each_dtype = in_turn("dtype", ["float64", "float32"])


def gradients(shape, count, seed=0, dtype="float64"):
    """Random gradients, a third of them rounded, so that ties and zeros are common."""
    g = 2 * rng(seed).normal(size=(count, *shape))
    g[::3] = np.round(g[::3])
    return g.astype(dtype)


@cache
def points(C_and_shape):
    """Feasible points, inside and on the boundary: vertices, the centre, and projections where offered."""
    C, shape = C_and_shape.value
    found = [*C.lmo(rng(1).normal(size=(20, *shape))), C.center(np.zeros(shape))]
    if C.has_projection:
        found += [x for s in (0.01, 1.0, 30.0) for x in C.project(s * rng(1).normal(size=(4, *shape)))]
    return np.array(found)


class Key:
    """A case as a key of a cache: sets with arrays do not hash."""

    def __init__(self, value):
        self.value = value

    def __hash__(self):
        return id(self.value)

    def __eq__(self, other):
        return self.value is other.value


def feasible(case):
    return points(Key(case))


def rounding(C, shape, dtype="float64"):
    """What a value or a violation may be off by: a decomposition costs more digits than a comparison."""
    return (200 if C.event_ndim >= 2 else 40) * np.finfo(dtype).eps * np.sqrt(np.prod(shape))


def on(backend, C):
    """The set with its arrays on a backend."""
    return trees.map_arrays(lambda x: send(backend, x), C)


def compiled(backend, C, method):
    """A method of the set as the backend runs it inside a solve, compiled once for all tests."""
    key = (backend.name, Key(C), method)
    if key not in COMPILED:
        fun = getattr(on(backend, C), method)
        if backend.name == "jax" and C.compiles:
            import jax

            fun = jax.jit(fun)
        COMPILED[key] = fun
    return COMPILED[key]


COMPILED = {}


def test_every_set_is_found_and_offers_examples():
    assert len(KINDS) >= 6
    assert not [kind.__name__ for kind in KINDS if not examples(kind)]


# -- the linear minimisation oracle ------------------------------------------------------------------------------------


DEGENERATE = {
    "zero": lambda g: 0 * g,
    "minus zero": lambda g: -0.0 * abs(g),
    "denormal": lambda g: 5e-324 * np.sign(g),
    "tiny": lambda g: 1e-310 * g,
    "all equal": lambda g: np.ones_like(g),
    "all equal and negative": lambda g: -np.ones_like(g),
    "one entry": lambda g: g * (np.arange(g.size).reshape(g.shape) == 1),
    "huge": lambda g: 1e300 * np.sign(g),
}


@each
def test_lmo_of_a_degenerate_gradient_is_feasible_and_optimal(case, backend):
    C, shape = case
    lmo = compiled(backend, C, "lmo")
    for kind, degenerate in DEGENERATE.items():
        g = degenerate(gradients(shape, 2)[1])
        v = host(lmo(send(backend, g)))
        assert np.isfinite(v).all(), kind
        assert float(C.violation(v)) <= rounding(C, shape), kind
        if kind in ("denormal", "tiny"):
            continue  # flushed to zero by some frameworks: every point of the set is optimal then
        scaled = np.sign(g) if kind == "huge" else g
        best = (feasible(case).reshape(-1, g.size) @ scaled.ravel()).min()
        assert inner(scaled, v) <= best + rounding(C, shape) * (1 + C.diameter(g)) * np.abs(scaled).sum(), kind


@in_turn("kind", KINDS, ids=lambda k: k.__name__)
def test_an_idle_gradient_still_gives_a_vertex(kind):
    """One of those that gradients without ties lead to, not a mixture of them."""
    for C, shape in examples(kind, 2):
        if C.polytope:
            v = C.lmo(np.zeros(shape))
            vertices = C.lmo(rng(5).normal(size=(200 if C.compiles else 40, *shape)))
            assert min(np.abs(v - vertex).max() for vertex in vertices) <= 4 * EPS * C.diameter(v)


@compiles_for_long
@each
def test_what_is_not_finite_never_passes_for_a_number(case, backend):
    C, shape = case
    g = gradients(shape, 2)[1]
    with backend.scope("float64"):
        for bad in (np.nan, np.inf, -np.inf):
            g.flat[2] = bad
            there, there_C = send(backend, g), on(backend, C)
            assert not bool(there_C.contains(there))
            if not np.isnan(bad):
                continue
            try:
                v = host(there_C.lmo(there))
            except (ValueError, np.linalg.LinAlgError, RuntimeError):
                continue
            assert np.isnan(inner(g, v))
            if C.event_ndim:
                clean = gradients(shape, 2)
                both = host(there_C.lmo(send(backend, np.stack([clean[0], g, clean[1]]))))
                want = host(there_C.lmo(send(backend, clean)))
                assert np.abs(both[::2] - want).max() <= 4 * rounding(C, shape) * (1 + np.abs(want).max())
            if C.has_projection:
                assert np.isnan(host(there_C.project(there))).any()


@in_turn("kind", KINDS, ids=lambda k: k.__name__)
@in_turn("n", [1, 2, 24])
def test_other_sizes(kind, n):
    for C, shape in examples(kind, n):
        g = starts(shape, 1, n)[0]
        size = 1 + np.linalg.norm(g) + C.diameter(g)
        assert float(C.violation(C.lmo(g))) <= rounding(C, shape)
        assert float(C.violation(C.center(g))) <= rounding(C, shape)
        if C.has_projection:
            p = C.project(g)
            assert float(C.violation(p)) <= rounding(C, shape) * size
            assert inner(g - p, C.lmo(p - g) - p) <= 4 * rounding(C, shape) * size**2


@compiles_for_long
@each
def test_empty_batch(case, backend):
    C, shape = case
    g = send(backend, np.zeros((0, *shape)), "float32")
    like = C.lmo(send(backend, np.ones(shape), "float32"))
    for method in ("lmo", *(["project"] if C.has_projection else [])):
        found = compiled(backend, C, method)(g)
        assert (found.shape, found.dtype) == (g.shape, like.dtype)
    if C.event_ndim:
        for method in ("support", "violation"):
            found = getattr(C, method)(g)
            assert (found.shape, found.dtype) == ((0,), like.dtype)


def test_a_radius_of_zero_leaves_one_point():
    """The centre, which every gradient and every point leads to."""
    for case in (p.values[0] for p in CASES if hasattr(p.values[0][0], "radius")):
        C, shape = replace(case[0], radius=0.0), case[1]
        for g in gradients(shape, 4):
            np.testing.assert_allclose(C.lmo(g), C.center(g), atol=1e-12)
            if C.has_projection:
                np.testing.assert_allclose(C.project(g), C.center(g), atol=1e-12)
        assert float(C.violation(C.center(np.zeros(shape)))) <= rounding(*case)
        assert C.diameter(np.zeros(shape)) == 0


def test_a_parameter_may_be_a_0d_array(backend):
    """A radius, a scale, a bound and a count, kept as Python's numbers; truth values and vectors are no numbers."""
    two, k = send(backend, np.array(2.0)), send(backend, np.array(2))
    found = sets.Simplex(two), sets.ShiftScale(sets.Simplex(), two), sets.KNormBall(k, two), sets.OrderedBox(-two, two)
    same = sets.Simplex(2.0), sets.ShiftScale(sets.Simplex(), 2.0), sets.KNormBall(2, 2.0), sets.OrderedBox(-2.0, 2.0)
    assert found == same
    for wrong in (np.ones(1), np.array(True)):
        with pytest.raises(ProblemError, match="radius must be a finite number"):
            sets.Simplex(send(backend, wrong))


def test_a_simplex_of_any_size_projects():
    for radius in (1e-300, 1e17, 1e300):
        x, want = radius * np.array([[3.0, 2.5, -2.0], [0.75, 0.25, 0.0]])
        np.testing.assert_allclose(sets.Simplex(radius).project(x), want)
        np.testing.assert_allclose(sets.WeightedL1Ball(radius).project(np.abs(x) / (1, 1, 4)), want)


def test_sorted_weights_come_in_any_order():
    x = np.array([3.0, -1.0, 2.0])
    falling, mixed = (sets.OWLBall(np.array(weights)) for weights in ([3.0, 2.0, 1.0], [2.0, 1.0, 3.0]))
    np.testing.assert_array_equal(mixed.weights, falling.weights)
    np.testing.assert_array_equal(mixed.project(x), falling.project(x))


def test_shapes_that_no_point_has_are_refused():
    plans, wide = (sets.Birkhoff(), sets.Transport(np.ones(2) / 2)), np.ones((3, 2))
    calls = [getattr(C, method) for C in plans for method in ("lmo", "project", "violation", "center")]
    calls += [sets.Spectraplex().lmo, sets.Fantope().project]
    for call in calls:
        with pytest.raises(ProblemError, match="leaf"):
            call(wide)
    for C in (sets.GroupL12Ball(), sets.Groups()):
        with pytest.raises(ProblemError, match="must have entries"):
            C.check((0,))


@pytest.mark.parametrize("name", ["torch", pytest.param("jax", marks=pytest.mark.frameworks)])
def test_derivatives_of_projections_where_a_search_or_a_decomposition_has_none(name):
    """The second of a search for a root, the first at equal singular values, that of a plan with full support."""
    target = backends.get(name)
    with target.scope("float64"):
        x, c, d, E, twice = (
            target.asarray(y) for y in (POINT, COVECTOR, WAY, np.arange(9.0).reshape(3, 3), 2 * np.eye(3))
        )
        _, bent = hessian_product(target, lambda z: target.xp.sum(c * sets.Ellipsoid(1.0).project(z)), (x,))
        # of <c, x / |x|>
        r, a, b = np.linalg.norm(POINT), COVECTOR, WAY
        u = POINT / r
        want = (3 * (u @ a) * (u @ b) * u - (u @ a) * b - (u @ b) * a - (a @ b) * u) / r**2
        np.testing.assert_allclose(host(bent((d,))[0]), want, rtol=1e-9)
        (found,) = target.vjp(lambda z: (sets.SpectralBall().project(z),), (twice,))[1]((E,))
        np.testing.assert_allclose(host(found), 0.25 * host(E - E.mT), atol=1e-12)
        (found,) = target.vjp(lambda z: (sets.Birkhoff().project(z),), (0 * twice,))[1]((E,))
        means = [host(E).mean(axis=i, keepdims=True) for i in (0, 1, None)]
        np.testing.assert_allclose(host(found), host(E) - means[0] - means[1] + means[2], atol=1e-12)


@each
def test_nothing_is_divided_by_zero(case):
    """Zeros, vertices, points far away and a batch of these."""
    C, shape = case
    g = gradients(shape, 3)
    x = np.stack([np.zeros(shape), np.ones(shape), C.center(g[0]), *C.lmo(g), 1e9 * g[0]])
    with np.errstate(divide="raise", invalid="raise"):
        for method in ("lmo", "support", "violation", *(["project"] if C.has_projection else [])):
            for point in (x, x[0], x[2]) if C.event_ndim else x:
                getattr(C, method)(point)
        if C.has_faces:
            for point in x[1:-1]:
                p = C.project(point)
                for d in x:
                    along = C.tangent(d, p)
                    C.away(d, p), C.reach(along, p), C.slide(d, p)


# -- projections -------------------------------------------------------------------------------------------------------


def starts(shape, count, seed=2):
    x = 3 * rng(seed).normal(size=(count, *shape))
    x[::3] = np.round(x[::3])
    return x


@each_projected
@each_dtype
def test_one_call_of_the_lmo_certifies_a_projection(case, dtype):
    """``<x - Px, y - Px> <= 0`` for every y of the set, hence for ``y = LMO(Px - x)``; very near and far away."""
    C, shape = case
    far = 9 if dtype == "float64" else 3
    for scale in (10.0**-far, 10.0**far):
        found = (scale * starts(shape, 2)).astype(dtype)
        for x in (found[1], -np.abs(found[1])):
            p = C.project(x)
            assert p.dtype == dtype
            y = C.lmo(p - x)
            size = 1 + np.linalg.norm(x.ravel())
            slack = rounding(C, shape, dtype) * size
            assert float(C.violation(p)) <= slack
            x64, p64, y64 = (a.astype(np.float64) for a in (x, p, y))
            assert inner(x64 - p64, y64 - p64) <= 4 * slack * (size + C.diameter(x))


# -- the rest of the contract ------------------------------------------------------------------------------------------


@in_turn("n", [1, 2])
def test_diameter_is_the_largest_distance_of_two_points(n):
    """Never less, and no more unless the class calls it an upper bound."""
    for C, shape in [example for kind in KINDS for example in examples(kind, n)]:
        g = gradients(shape, (60 if C.polytope else 300) if C.compiles else 5, n)
        g = np.concatenate([g, np.sign(g)])
        pairs = np.concatenate([C.lmo(g), C.lmo(-g)]).reshape(-1, g[0].size)
        flat = np.unique(np.round(pairs, 12), axis=0)[:600]
        far = np.sqrt(max(np.max(np.sum((flat - x) ** 2, axis=1)) for x in flat))
        D = C.diameter(np.ones(shape))
        assert far <= D * (1 + 1e-9) + 1e-9, C
        if "Diameter : upper bound" not in type(C).__doc__:
            assert far >= D * (1 - 1e-9 if C.polytope else 0.97) - 1e-11, C


@each
def test_batch_equals_loop(case):
    """Over one and over two leading axes."""
    C, shape = case
    if C.event_ndim == 0:
        return  # an elementwise set has no batch axes
    x = gradients(shape, 6)
    for method in ("lmo", "violation", "support", *(["project"] if C.has_projection else [])):
        fun = getattr(C, method)
        got, alone = fun(x.reshape(2, 3, *shape)), fun(x[4])
        want = fun(x).reshape(2, 3, *alone.shape)
        room = 4 * rounding(C, shape) * (1 + np.abs(want).max())
        assert got.shape == want.shape, method
        assert np.abs(got - want).max() <= room, method
        assert np.abs(alone - want[1, 1]).max() <= room, method


@each
def test_arguments_are_read_only_and_may_be_strided(case):
    C, shape = case
    x = gradients(shape, 2)[1]
    kept, strided = x.copy(), np.flip(x)
    x.flags.writeable = False
    for method in ("lmo", "violation", "support", *(["project"] if C.has_projection else [])):
        fun = getattr(C, method)
        out = fun(x)
        assert (x == kept).all()
        assert not np.shares_memory(out, x) or (out == x).all()
        assert np.abs(fun(strided) - fun(strided.copy())).max() <= rounding(C, shape) * 8


@settings(deadline=None, max_examples=150)
@given(
    st.sampled_from([p.values[0] for p in CASES]),
    st.lists(st.floats(-1e300, 1e300), min_size=25, max_size=25),
)
def test_lmo_of_anything_is_feasible_and_finite(case, entries):
    C, shape = case
    g = np.array(entries[: int(np.prod(shape))]).reshape(shape)
    v = C.lmo(g)
    assert np.isfinite(v).all()
    assert float(C.violation(v)) <= rounding(C, shape)
    unit = g / (np.abs(g).max() or 1)
    assert inner(unit, v) <= inner(unit, C.lmo(-g)) + rounding(C, shape) * (1 + C.diameter(g)) * g.size


@in_turn("kind", KINDS, ids=lambda k: k.__name__)
def test_the_check_for_sets_of_ones_own_passes(kind):
    sets.check(*examples(kind, 2)[0])
