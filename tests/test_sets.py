"""What every set promises beyond the suite, which compares oracle, support, violation, projection, centre and diameter
with definitions: extremes, other sizes, batches of batches. A newcomer is found by its export.

A set says through `examples` for which parameters and event shapes it wants to be tested; nothing here names a set.
"""

import inspect
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from xvarpro import backends, sets
from xvarpro.backends.calculus import hessian_product
from xvarpro.core import trees
from xvarpro.errors import ProblemError
from xvarpro.sets.interface import Set

from .support import compiles_for_long, gradients, host, in_turn, inner, send

EXPORTED = [getattr(sets, name) for name in sets.__all__]
KINDS = [x for x in EXPORTED if inspect.isclass(x) and issubclass(x, Set) and not inspect.isabstract(x)]
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
each = in_turn("case", CASES)


def rounding(C, shape, dtype="float64"):
    """What a value or a violation may be off by: a decomposition costs more digits than a comparison."""
    return (200 if C.event_ndim >= 2 else 40) * np.finfo(dtype).eps * np.sqrt(np.prod(shape))


def methods(C):
    return ("lmo", "violation", "support", *(["project"] if C.has_projection else []))


def on(backend, C):
    """The set with its arrays on a backend."""
    return trees.map_arrays(lambda x: send(backend, x), C)


def compiled(backend, C, method):
    """A method of the set as the backend runs it inside a solve, compiled once for all tests."""
    key = (backend.name, id(C), method)
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
    "one entry": lambda g: g * (np.arange(g.size).reshape(g.shape) == 1),
    "huge": lambda g: 1e300 * np.sign(g),
    "of all sizes": lambda g: np.sign(g) * 10.0 ** np.linspace(-300, 300, g.size).reshape(g.shape),
}


@each
def test_lmo_of_a_degenerate_gradient_is_feasible_and_optimal(case, backend):
    C, shape = case
    lmo = compiled(backend, C, "lmo")
    for kind, degenerate in DEGENERATE.items():
        g = degenerate(gradients(2, shape)[1])
        v = host(lmo(send(backend, g)))
        assert np.isfinite(v).all(), kind
        assert float(C.violation(v)) <= rounding(C, shape), kind
        if kind in ("denormal", "tiny"):
            continue  # flushed to zero by some frameworks: every point of the set is optimal then
        unit = g / (np.abs(g).max() or 1.0)
        best = min(inner(unit, u) for u in C.lmo(np.stack([unit, -unit, *gradients(20, shape)])))
        assert inner(unit, v) <= best + rounding(C, shape) * (1 + C.diameter(g)) * np.abs(unit).sum(), kind


@compiles_for_long
@each
def test_what_is_not_finite_never_passes_for_a_number(case, backend):
    C, shape = case
    clean, g = gradients(2, shape), gradients(2, shape)[1]
    there_C = on(backend, C)
    with backend.scope("float64"):
        for bad in (np.inf, -np.inf, np.nan):
            g.flat[2] = bad
            assert not bool(there_C.contains(send(backend, g)))
        try:
            v = host(there_C.lmo(send(backend, g)))
        except (ValueError, np.linalg.LinAlgError, RuntimeError):
            return
        assert np.isnan(inner(g, v))
        if C.event_ndim:
            both, want = (host(there_C.lmo(send(backend, x))) for x in (np.stack([clean[0], g, clean[1]]), clean))
            assert np.abs(both[::2] - want).max() <= 4 * rounding(C, shape) * (1 + np.abs(want).max())
        if C.has_projection:
            assert np.isnan(host(there_C.project(send(backend, g)))).any()


@in_turn("kind", KINDS, ids=lambda k: k.__name__)
@in_turn("n", [1, 24])
def test_other_sizes(kind, n):
    """In both precisions, and for points very near and far away: one call of the oracle certifies a projection.

    ``<x - Px, y - Px> <= 0`` for every y of the set, hence for ``y = LMO(Px - x)``.
    """
    for (C, shape), dtype in product(examples(kind, n), ("float64", "float32")):
        x, far = gradients(2, shape, n)[1], 1e9 if dtype == "float64" else 1e3
        assert float(C.violation(C.center(x))) <= rounding(C, shape)
        for scale in (1.0, 1 / far, far):
            g = (scale * x).astype(dtype)
            size = 1 + np.linalg.norm(g.ravel())
            slack = rounding(C, shape, dtype)
            assert float(C.violation(C.lmo(g))) <= slack
            if C.has_projection:
                p = C.project(g)
                assert p.dtype == dtype
                assert float(C.violation(p)) <= slack * size
                away, along = (a.astype(np.float64) for a in (g - p, C.lmo(p - g) - p))
                assert inner(away, along) <= 4 * slack * size * (size + C.diameter(x))


@compiles_for_long
@each
def test_empty_batch(case, backend):
    C, shape = case
    g = send(backend, np.zeros((0, *shape)), "float32")
    dtype = C.lmo(send(backend, np.ones(shape), "float32")).dtype
    for method in methods(C):
        of_numbers = method in ("support", "violation")
        if C.event_ndim or not of_numbers:
            found = (getattr(C, method) if of_numbers else compiled(backend, C, method))(g)
            assert (found.shape, found.dtype) == ((0,) if of_numbers else g.shape, dtype), method


def test_a_radius_of_zero_leaves_one_point():
    """The centre, which every gradient and every point leads to."""
    for case in (p.values[0] for p in CASES if hasattr(p.values[0][0], "radius")):
        C, shape = replace(case[0], radius=0.0), case[1]
        for g in gradients(4, shape):
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
    g = gradients(3, shape)
    x = np.stack([np.zeros(shape), np.ones(shape), C.center(g[0]), *C.lmo(g), 1e9 * g[0]])
    with np.errstate(divide="raise", invalid="raise"):
        for method, point in product(methods(C), (x, x[0], x[2]) if C.event_ndim else x):
            getattr(C, method)(point)
        for point, d in product(x[1:-1] if C.has_faces else (), x):
            p = C.project(point)
            along = C.tangent(d, p)
            C.away(d, p), C.reach(along, p), C.slide(d, p)


# -- the rest of the contract ------------------------------------------------------------------------------------------


@each
def test_batch_equals_loop(case):
    """Over one and over two leading axes; arguments are read alone, and may be strided."""
    C, shape = case
    x = gradients(6, shape)
    kept, strided = x.copy(), np.flip(x[1])
    x.flags.writeable = False
    for method in methods(C):
        fun = getattr(C, method)
        assert np.abs(fun(strided) - fun(strided.copy())).max() <= rounding(C, shape) * 8, method
        alone = fun(x[4])
        assert not np.shares_memory(alone, x) or (alone == x[4]).all(), method
        if C.event_ndim:  # an elementwise set has no batch axes
            got, want = fun(x.reshape(2, 3, *shape)), fun(x).reshape(2, 3, *alone.shape)
            room = 4 * rounding(C, shape) * (1 + np.abs(want).max())
            assert got.shape == want.shape, method
            assert max(np.abs(got - want).max(), np.abs(alone - want[1, 1]).max()) <= room, method
        assert (x == kept).all(), method


@in_turn("kind", KINDS[::3], ids=lambda k: k.__name__)
def test_the_check_for_sets_of_ones_own_passes(kind):
    sets.check(*examples(kind, 2)[0])
