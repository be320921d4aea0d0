"""The first sets by name: boxes, simplices, the l1 and the l2 ball, one set per column."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xvarpro import sets
from xvarpro.core import trees
from xvarpro.errors import ProblemError

from .support import host, rng, send

EPS = np.finfo(np.float64).eps


def gradients(count, n=4, seed=0):
    """Random gradients, a third of them rounded, so that ties and zeros are common."""
    g = 2 * rng(seed).normal(size=(count, n))
    g[::3] = np.round(g[::3])
    return g


def inner(a, b):
    return float(np.sum(np.asarray(a) * np.asarray(b)))


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
    for g in gradients(40 if backend.name != "numpy" else 300):
        v = host(C.lmo(send(backend, g)))
        values = np.asarray(vertices) @ g
        assert inner(g, v) == pytest.approx(values.min(), rel=1e-13, abs=1e-13)
        assert any((v == vertex).all() for vertex in vertices)


def _on(backend, C):
    return trees.map_arrays(lambda x: send(backend, x), C)


@pytest.mark.parametrize("name", VERTICES)
def test_columns_pick_the_best_vertex_of_every_column(name):
    inner_set, vertices = VERTICES[name]
    C = sets.Columns(inner_set)
    for G in rng(3).integers(-2, 3, size=(50, 4, 3)).astype(float):
        v = C.lmo(G)
        for g, column in zip(G.T, v.T, strict=True):
            assert inner(g, column) == pytest.approx((np.asarray(vertices) @ g).min(), abs=1e-13)


def test_l2_ball_reaches_the_dual_norm(backend):
    for g in gradients(30):
        v = host(sets.L2Ball(1.5).lmo(send(backend, g)))
        assert inner(g, v) == pytest.approx(-1.5 * np.linalg.norm(g), rel=1e-14, abs=0)


def test_ties_go_to_the_first_index(backend):
    ones = send(backend, np.ones(4))
    first = [1.0, 0.0, 0.0, 0.0]
    assert host(sets.Simplex().lmo(ones)).tolist() == first
    assert host(sets.CappedSimplex().lmo(-ones)).tolist() == first
    assert host(sets.L1Ball().lmo(-ones)).tolist() == first
    assert host(sets.L1Ball().lmo(send(backend, np.array([0.0, 2.0, -2.0, 2.0])))).tolist() == [0.0, -1.0, 0.0, 0.0]


@pytest.mark.parametrize("kind", [sets.Simplex, sets.CappedSimplex, sets.L1Ball, sets.L2Ball])
def test_radius_zero_is_a_point(kind, backend):
    g = send(backend, rng(0).normal(size=5))
    for x in (kind(0.0).lmo(g), kind(0.0).project(g)):
        assert not host(x).any()
    assert kind(0.0).diameter(g) == 0
    assert bool(kind(0.0).contains(kind(0.0).lmo(g)))


@pytest.mark.parametrize("name", VERTICES)
def test_diameter_of_sets_with_other_parameters(name):
    C, vertices = VERTICES[name]
    far = max(np.linalg.norm(np.subtract(a, b)) for a in vertices for b in vertices)
    assert C.diameter(np.ones(4)) == pytest.approx(far)
    assert sets.Columns(C).diameter(np.ones((4, 3))) == pytest.approx(np.sqrt(3) * far)


def test_bounds_are_not_handed_out(backend):
    lower, upper = send(backend, LOW), send(backend, HIGH)
    C = sets.Box(lower, upper)
    C.lmo(send(backend, np.ones(4)))
    C.project(send(backend, np.ones(4)))
    assert (host(lower) == LOW).all()
    assert (host(upper) == HIGH).all()
    if backend.name == "numpy":
        assert not np.shares_memory(C.lmo(np.ones(4)), lower)


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
    for x in np.abs(gradients(20)) + 1:
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
