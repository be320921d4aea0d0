"""What every set promises, over all that `xvarpro.sets` exports: a newcomer is found by its export."""

from __future__ import annotations

import inspect
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import xvarpro as xv
from xvarpro import sets
from xvarpro.errors import ProblemError
from xvarpro.protocols import Set

from .support import host, rng, send

EXPORTED = [getattr(sets, name) for name in sets.__all__]
KINDS = [x for x in EXPORTED if inspect.isclass(x) and issubclass(x, Set) and not inspect.isabstract(x)]
NUMPY = xv.backends.get("numpy")
EPS = np.finfo(np.float64).eps


@pytest.fixture(params=KINDS, ids=lambda s: s.__name__)
def C(request):
    return request.param()


def shape_of(C, n=5):
    """An event of the set: a vector, or a matrix for a set of matrices."""
    return (n, 3) if C.event_ndim == 2 else (n,)


def gradients(C, count, n=5, seed=0):
    """Random gradients, a third of them rounded, so that ties and zeros are common."""
    g = 2 * rng(seed).normal(size=(count, *shape_of(C, n)))
    g[::3] = np.round(g[::3])
    return g


def feasible_points(C, count, n=5, seed=1):
    """Points of the set, inside and on its boundary, by projection."""
    x = rng(seed).normal(size=(count, *shape_of(C, n))) * np.logspace(-2, 3, count).reshape(
        -1, *(1,) * len(shape_of(C))
    )
    return np.array([C.project(p) for p in x])


def inner(a, b):
    return float(np.sum(np.asarray(a) * np.asarray(b)))


def test_every_set_is_found():
    assert len(KINDS) == len([x for x in EXPORTED if inspect.isclass(x)]) - 2  # the seam and the free block


# -- the linear minimisation oracle ------------------------------------------------------------------------------------


def test_lmo_is_no_worse_than_any_feasible_point(C):
    points = feasible_points(C, 300)
    for g in gradients(C, 150):
        best = inner(g, C.lmo(g))
        assert best <= np.sum(points * g, axis=tuple(range(1, points.ndim))).min() + 20 * EPS * np.abs(g).sum()


def test_lmo_is_the_limit_of_projections(C):
    """``P(-t g)`` minimises ``<g, v> + |v|^2 / 2t`` over the set: its value falls to that of the LMO."""
    for g in gradients(C, 30):
        far = [inner(g, C.project(-t * g)) for t in (1e3, 1e6)]
        slack = 1e-9 * np.abs(g).sum()
        assert inner(g, C.lmo(g)) <= far[1] + slack
        assert far[1] <= inner(g, C.lmo(g)) + (1e-6 + 1e-9) * (1 + np.abs(g).sum()) * C.diameter(g) ** 2


def cube(*bounds):
    return list(product(*bounds))


def signed_units(n, r):
    return [s * r * e for e in np.eye(n) for s in (1.0, -1.0)]


LOW, HIGH = np.array([-1.0, 0.0, 2.0, -0.5]), np.array([0.5, 3.0, 2.0, 0.5])
VERTICES = {
    "Box": (sets.Box(LOW, HIGH), cube(*zip(LOW, HIGH, strict=True))),
    "Box of numbers": (sets.Box(-1.0, 2.0), cube(*[(-1.0, 2.0)] * 4)),
    "Simplex": (sets.Simplex(2.5), list(2.5 * np.eye(4))),
    "CappedSimplex": (sets.CappedSimplex(2.5), [np.zeros(4), *(2.5 * np.eye(4))]),
    "L1Ball": (sets.L1Ball(0.5), signed_units(4, 0.5)),
}


@pytest.mark.parametrize("name", VERTICES)
def test_lmo_picks_the_best_vertex(name, backend):
    C, vertices = VERTICES[name]
    C = _on(backend, C)
    for g in gradients(C, 40 if backend.name != "numpy" else 300, n=4):
        v = host(C.lmo(send(backend, g)))
        values = np.asarray(vertices) @ g
        assert inner(g, v) == pytest.approx(values.min(), rel=1e-13, abs=1e-13)
        assert any((v == vertex).all() for vertex in vertices)


def _on(backend, C):
    return xv.trees.map_arrays(lambda x: send(backend, x), C)


@pytest.mark.parametrize("name", VERTICES)
def test_columns_pick_the_best_vertex_of_every_column(name):
    inner_set, vertices = VERTICES[name]
    C = sets.Columns(inner_set)
    for G in rng(3).integers(-2, 3, size=(50, 4, 3)).astype(float):
        v = C.lmo(G)
        for g, column in zip(G.T, v.T, strict=True):
            assert inner(g, column) == pytest.approx((np.asarray(vertices) @ g).min(), abs=1e-13)


def test_l2_ball_reaches_the_dual_norm(backend):
    for g in gradients(sets.L2Ball(), 30):
        v = host(sets.L2Ball(1.5).lmo(send(backend, g)))
        assert inner(g, v) == pytest.approx(-1.5 * np.linalg.norm(g), rel=1e-14, abs=0)


def test_ties_go_to_the_first_index(backend):
    ones = send(backend, np.ones(4))
    first = [1.0, 0.0, 0.0, 0.0]
    assert host(sets.Simplex().lmo(ones)).tolist() == first
    assert host(sets.CappedSimplex().lmo(-ones)).tolist() == first
    assert host(sets.L1Ball().lmo(-ones)).tolist() == first
    assert host(sets.L1Ball().lmo(send(backend, np.array([0.0, 2.0, -2.0, 2.0])))).tolist() == [0.0, -1.0, 0.0, 0.0]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_lmo_is_feasible_at_every_scale(C, dtype, backend):
    limit = 30 if dtype == "float64" else 12
    eps = np.finfo(dtype).eps
    for k in range(-limit, limit + 1, 6):
        for g in gradients(C, 6) * 10.0**k:
            v = C.lmo(send(backend, g.astype(dtype)))
            assert backend.dtype_name(v) == dtype
            assert float(C.violation(v)) <= 10 * eps


def test_lmo_sees_the_direction_only(C, backend):
    for g in gradients(C, 12):
        v = host(C.lmo(send(backend, g)))
        for c in (2.0**-40, 2.0**40):
            assert (host(C.lmo(send(backend, c * g))) == v).all()


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


@pytest.mark.parametrize("kind", DEGENERATE)
def test_lmo_of_a_degenerate_gradient_is_feasible_and_optimal(C, kind, backend):
    g = DEGENERATE[kind](gradients(C, 2)[1])
    v = host(C.lmo(send(backend, g)))
    assert np.isfinite(v).all()
    assert float(C.violation(v)) <= 10 * EPS
    if backend.name == "jax" and kind in ("denormal", "tiny"):
        g = 0 * g  # XLA flushes denormals: any vertex is right
    scaled = np.sign(g) if kind in ("denormal", "huge") else g / (np.abs(g).max() or 1.0)
    assert inner(scaled, v) <= min(inner(scaled, p) for p in feasible_points(C, 50)) + 1e-12


def test_an_idle_gradient_still_gives_a_vertex(C):
    if C.polytope:
        shape = shape_of(C, 2)
        zero = C.lmo(np.zeros(shape))
        vertices = [C.lmo(g) for g in rng(5).normal(size=(2000, *shape))]
        assert any((zero == v).all() for v in vertices)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_never_passes_for_a_number(C, bad, backend):
    g = gradients(C, 2)[1]
    g.flat[2] = bad
    with backend.scope("float64"):
        v = C.lmo(send(backend, g))
        p = C.project(send(backend, g))
        if np.isnan(bad):
            assert np.isnan(inner(g, host(v)))
            assert np.isnan(host(p)).any()
        assert not bool(C.contains(send(backend, g)))


@pytest.mark.parametrize("event", [1, 2])
def test_small_events(C, event):
    g = np.ones(shape_of(C, event))
    assert float(C.violation(C.lmo(g))) <= EPS
    assert float(C.violation(C.project(3 * g))) <= 4 * EPS


def test_empty_batch(C, backend):
    g = send(backend, np.zeros((0, *shape_of(C))))
    assert C.lmo(g).shape == g.shape
    assert C.project(g).shape == g.shape


@pytest.mark.parametrize("kind", [sets.Simplex, sets.CappedSimplex, sets.L1Ball, sets.L2Ball])
def test_radius_zero_is_a_point(kind, backend):
    g = send(backend, rng(0).normal(size=5))
    for x in (kind(0.0).lmo(g), kind(0.0).project(g)):
        assert not host(x).any()
    assert kind(0.0).diameter(g) == 0
    assert bool(kind(0.0).contains(kind(0.0).lmo(g)))


# -- projections -------------------------------------------------------------------------------------------------------


def starts(C, count=40, seed=2):
    x = 3 * rng(seed).normal(size=(count, *shape_of(C)))
    x[::3] = np.round(x[::3])
    return x


def few(backend, C, count=40):
    return starts(C, count if backend.name == "numpy" else 6)


def test_one_call_of_the_lmo_certifies_a_projection(C, backend):
    """``<x - Px, y - Px> <= 0`` for every y of the set, hence for ``y = LMO(Px - x)``."""
    for x in few(backend, C):
        p = host(C.project(send(backend, x)))
        y = host(C.lmo(send(backend, p - x)))
        assert float(C.violation(p)) <= 20 * EPS
        assert inner(x - p, y - p) <= 100 * EPS * (1 + inner(x, x))


def test_projection_is_idempotent(C, backend):
    for x in few(backend, C):
        once = host(C.project(send(backend, x)))
        assert np.abs(host(C.project(send(backend, once))) - once).max() <= 20 * EPS


def test_projection_does_not_move_what_is_inside(C):
    vertices = np.array([C.lmo(g) for g in gradients(C, 20)])
    for x in 0.5 * (vertices + vertices[::-1]):
        assert np.abs(C.project(x) - x).max() <= 20 * EPS


def test_projection_is_not_expansive(C):
    x = starts(C, 30)
    p = np.array([C.project(v) for v in x])
    for i, j in combinations(range(len(x)), 2):
        assert np.linalg.norm(p[i] - p[j]) <= np.linalg.norm(x[i] - x[j]) * (1 + 1e-12) + 1e-14


@pytest.mark.parametrize("scale", [1e-12, 1e-6, 1e6, 1e12])
def test_projections_of_far_and_of_near_points(C, scale, backend):
    for x in few(backend, C, 10):
        p = host(C.project(send(backend, scale * x)))
        y = host(C.lmo(send(backend, p - scale * x)))
        assert float(C.violation(p)) <= 20 * EPS * max(1.0, scale)
        assert inner(scale * x - p, y - p) <= 100 * EPS * (1 + scale * np.linalg.norm(x)) * (
            1 + scale * np.linalg.norm(x)
        )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_projection_keeps_the_dtype(C, dtype, backend):
    x = send(backend, starts(C, 1)[0].astype(dtype))
    assert backend.dtype_name(C.project(x)) == dtype
    assert backend.dtype_name(C.violation(x)) == dtype


# -- the rest of the contract ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 4])
def test_diameter_is_the_largest_distance_of_two_vertices(C, n):
    vertices = np.array([C.lmo(g) for g in gradients(C, 200, n)] + [C.lmo(-g) for g in gradients(C, 200, n)])
    flat = np.unique(vertices.reshape(len(vertices), -1), axis=0)
    far = np.linalg.norm(flat[:, None] - flat, axis=2).max()
    assert C.diameter(np.ones(shape_of(C, n))) == pytest.approx(far, rel=1e-12)


@pytest.mark.parametrize("name", VERTICES)
def test_diameter_of_sets_with_other_parameters(name):
    C, vertices = VERTICES[name]
    far = max(np.linalg.norm(np.subtract(a, b)) for a in vertices for b in vertices)
    assert C.diameter(np.ones(4)) == pytest.approx(far)
    assert sets.Columns(C).diameter(np.ones((4, 3))) == pytest.approx(np.sqrt(3) * far)


@pytest.mark.parametrize("method", ["lmo", "project", "violation"])
def test_batch_equals_loop(C, method, backend):
    """Bit for bit, ties included, over one and over two leading axes."""
    if C.event_ndim == 0:
        pytest.skip("an elementwise set has no batch axes")
    x = gradients(C, 6)
    fun = getattr(C, method)
    one = np.array([host(fun(send(backend, v))) for v in x])
    assert (host(fun(send(backend, x))) == one).all()
    two = x.reshape(2, 3, *x.shape[1:])
    assert (host(fun(send(backend, two))) == one.reshape(2, 3, *one.shape[1:])).all()


@pytest.mark.parametrize("method", ["lmo", "project"])
def test_strided_input(C, method):
    x = gradients(C, 8)[::-2]
    fun = getattr(C, method)
    for v in x:
        reverse = v[::-1]
        assert (fun(reverse) == fun(reverse.copy())).all()


@pytest.mark.parametrize("method", ["lmo", "project", "violation"])
def test_arguments_are_not_written_to(C, method):
    x = gradients(C, 1)[0]
    kept = x.copy()
    x.flags.writeable = False
    out = getattr(C, method)(x)
    assert (x == kept).all()
    assert not np.shares_memory(out, x) or (out == x).all()


def test_bounds_are_not_handed_out(backend):
    lower, upper = send(backend, LOW), send(backend, HIGH)
    C = sets.Box(lower, upper)
    C.lmo(send(backend, np.ones(4)))
    C.project(send(backend, np.ones(4)))
    assert (host(lower) == LOW).all()
    assert (host(upper) == HIGH).all()
    if backend.name == "numpy":
        assert not np.shares_memory(C.lmo(np.ones(4)), lower)


@pytest.mark.parametrize("method", ["lmo", "project", "violation"])
def test_compiled_equals_eager(C, method):
    import jax

    with jax.enable_x64(True):
        fun = getattr(C, method)
        for x in gradients(C, 6):
            x = jax.numpy.asarray(x)
            assert np.abs(host(jax.jit(fun)(x)) - host(fun(x))).max() <= 4 * EPS


@pytest.mark.parametrize("method", ["lmo", "project", "violation"])
def test_backends_agree(C, method, backend):
    fun = getattr(C, method)
    for x in gradients(C, 12):
        assert np.abs(host(fun(send(backend, x))) - host(fun(x))).max() <= 10 * EPS


def test_violation_is_relative_and_zero_inside(C):
    for p in feasible_points(C, 10):
        assert 0 <= float(C.violation(p)) <= 20 * EPS
    outside = 10.0 + np.abs(gradients(C, 1)[0])
    assert float(C.violation(outside)) > 1
    assert not C.contains(outside)


@pytest.mark.parametrize("kind", [sets.Simplex, sets.CappedSimplex, sets.L1Ball, sets.L2Ball])
@pytest.mark.parametrize("r", [1e-9, 1e9])
def test_violation_does_not_see_units(kind, r):
    x = rng(4).normal(size=5)
    assert kind(r).violation(r * x) == pytest.approx(kind(1.0).violation(x), rel=1e-12)


EQUIVALENT = {
    "l1 is a box on the line": (sets.L1Ball(0.7), sets.Box(-0.7, 0.7), lambda d: d.normal(size=1)),
    "l2 is l1 on the line": (sets.L2Ball(0.7), sets.L1Ball(0.7), lambda d: d.normal(size=1)),
    "capped simplex is a box on the line": (sets.CappedSimplex(0.7), sets.Box(0.0, 0.7), lambda d: d.normal(size=1)),
    "one column": (sets.Columns(sets.L2Ball(2.0)), sets.L2Ball(2.0), lambda d: d.normal(size=(5, 1))),
    "columns of a box": (sets.Columns(sets.Box(-1.0, 2.0)), sets.Box(-1.0, 2.0), lambda d: d.normal(size=(4, 3))),
}


@pytest.mark.parametrize("name", EQUIVALENT)
def test_equivalent_sets_agree(name):
    A, B, draw = EQUIVALENT[name]
    for i in range(20):
        x = 2 * draw(rng(i))
        flat = x if B.event_ndim == 0 else x.ravel()
        assert np.abs(A.lmo(x).ravel() - B.lmo(flat).ravel()).max() <= 4 * EPS
        assert np.abs(A.project(x).ravel() - B.project(flat).ravel()).max() <= 4 * EPS


def test_capped_simplex_is_the_simplex_where_it_is_tight():
    for x in np.abs(starts(sets.Simplex(), 20)) + 1:
        assert np.abs(sets.CappedSimplex(2.0).project(x) - sets.Simplex(2.0).project(x)).max() <= 4 * EPS
        assert (sets.CappedSimplex(2.0).lmo(-x) == sets.Simplex(2.0).lmo(-x)).all()
        assert np.abs(sets.L1Ball(2.0).project(x) - sets.CappedSimplex(2.0).project(x)).max() <= 4 * EPS


def sorted_simplex_projection(x, r):
    """Held, Wolfe, Crowder (1974), with a sort."""
    u = np.sort(x)[::-1]
    excess = (np.cumsum(u) - r) / np.arange(1, x.size + 1)
    return np.maximum(x - excess[np.nonzero(u > excess)[0][-1]], 0)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=12), st.floats(1e-6, 1e6))
def test_simplex_projection_equals_the_one_by_sorting(entries, r):
    x = np.array(entries)
    want = sorted_simplex_projection(x, r)
    assert np.abs(sets.Simplex(r).project(x) - want).max() <= 1e-13 * (r + np.abs(x).max()) * x.size


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from([k for k in KINDS if k.event_ndim < 2]), st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=8)
)
def test_lmo_of_anything_is_feasible_and_finite(kind, entries):
    C, g = kind(), np.array(entries)
    v = C.lmo(g)
    assert np.isfinite(v).all()
    assert float(C.violation(v)) <= 10 * EPS
    assert inner(g / (np.abs(g).max() or 1), v) <= inner(g / (np.abs(g).max() or 1), C.lmo(-g)) + 1e-13


# -- wrong parameters --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("radius", [-1.0, np.nan, np.inf, "1", None])
@pytest.mark.parametrize("kind", [sets.Simplex, sets.CappedSimplex, sets.L1Ball, sets.L2Ball])
def test_radius_is_checked(kind, radius):
    with pytest.raises(ProblemError, match=rf"{kind.__name__}: radius must be a finite number >= 0, got"):
        kind(radius)


def test_box_bounds_are_checked():
    with pytest.raises(ProblemError, match=r"lower <= upper, got lower=2.0, upper=1.0"):
        sets.Box(2.0, 1.0)
    with pytest.raises(ProblemError, match="finite bounds"):
        sets.Box(0.0, np.inf)
    with pytest.raises(ProblemError, match="finite bounds"):
        sets.Box(np.nan, 1.0)


def test_columns_are_of_vectors():
    with pytest.raises(ProblemError, match="needs a set of vectors, got Columns"):
        sets.Columns(sets.Columns())
    with pytest.raises(ProblemError, match="needs a set of vectors"):
        sets.Columns(1.0)


@pytest.mark.parametrize("radius", [-1.0, 0.0, np.nan])
def test_a_free_block_needs_a_ball(radius):
    with pytest.raises(ProblemError, match=r"Free.* radius"):
        sets.Free(radius=radius)


def test_radius_may_be_an_integer():
    assert sets.L1Ball(2).lmo(np.array([1.0, 3.0])).tolist() == [0.0, -2.0]
