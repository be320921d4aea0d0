"""Faces of polytopes: the vertex to leave, the directions that stay, and how far they go, against enumeration."""

from __future__ import annotations

from functools import cache
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest

from xvarpro.sets import (
    Box,
    CappedSimplex,
    Columns,
    Counted,
    L1Ball,
    LinfBall,
    Product,
    Set,
    ShiftScale,
    Simplex,
    WeightedSimplex,
)
from xvarpro.sets.interface import BENDS

from .support import rng

N = 5
LOWER, UPPER = np.array([-1.0, 0.0, 2.0, -3.0, 5.0]), np.array([1.0, 4.0, 2.5, -3.0, 6.0])


WEIGHTS = np.array([0.5, 2.0, 1.0, 4.0, 1.0])
ROOM = np.diag((1.5 + WEIGHTS @ WEIGHTS) / WEIGHTS)


def eye(r):
    return [r * e for e in np.eye(N)]


# each with its vertices
SETS = {
    "box": (Box(-1.0, 2.0), [np.array(v) for v in product((-1.0, 2.0), repeat=N)]),
    "far box": (Box(1e6, 1e6 + 1.0), [1e6 + np.array(v) for v in product((0.0, 1.0), repeat=N)]),
    "box of bounds": (Box(LOWER, UPPER), [np.array(v) for v in product(*zip(LOWER, UPPER, strict=True))]),
    "simplex": (Simplex(3.0), eye(3.0)),
    "capped simplex": (CappedSimplex(0.5), [np.zeros(N), *eye(0.5)]),
    "l1 ball": (L1Ball(2.0), [*eye(2.0), *eye(-2.0)]),
    "linf ball": (LinfBall(1.5), [np.array(v) for v in product((-1.5, 1.5), repeat=N)]),
    "weighted simplex": (WeightedSimplex(WEIGHTS, -WEIGHTS, 1.5), [-WEIGHTS, *(-WEIGHTS + ROOM)]),
}


@pytest.fixture(params=SETS)
def case(request):
    return SETS[request.param]


def points(vertices, count=None):
    """Points of which the face is known: mixtures of vertices, and the vertices that span the face they lie in."""
    name = next(name for name, (_, known) in SETS.items() if known is vertices)
    return _points(name)[:count]


@cache
def _points(name):
    return list(_mixtures(np.unique(np.asarray(SETS[name][1]), axis=0)))


def _mixtures(vertices):
    for seed in range(6):
        draw = rng(seed)
        k = int(draw.integers(1, min(len(vertices), N + 2) + 1))
        some = vertices[draw.permutation(len(vertices))[:k]]
        x = draw.dirichlet(np.ones(k)) @ some
        yield x, face(vertices, x)


def face(vertices, x):
    """The vertices of the smallest face that holds x: those from which x can be reached and passed."""
    kept = [v for v in vertices if furthest(vertices, x, x - v) > 1e-7]
    return np.array(kept)


def furthest(vertices, x, d):
    """Largest alpha with ``x + alpha d`` in the hull, by linear programming; inf for no direction."""
    from scipy.optimize import linprog

    if not np.any(np.abs(d) > 1e-13 * np.abs(vertices).max()):
        return np.inf
    V = np.asarray(vertices).T
    centre = V.mean(axis=1)
    A = np.vstack([np.hstack([V - centre[:, None], -d[:, None]]), np.append(np.ones(V.shape[1]), 0.0)])
    b = np.append(x - centre, 1.0)
    cost = np.zeros(A.shape[1])
    cost[-1] = -1.0
    found = linprog(cost, A_eq=A, b_eq=b, bounds=(0, None), method="highs")
    assert found.status == 0, found.message
    return -found.fun


def tangent_basis(vertices):
    """Orthonormal directions of the affine hull, as columns."""
    spread = (vertices - vertices[0]).T
    U, s, _ = np.linalg.svd(spread, full_matrices=False)
    return U[:, s > 1e-9 * max(s.max(), 1e-300)]


def test_away_is_the_worst_vertex_of_the_face(case):
    C, vertices = case
    for seed, (x, spanning) in enumerate(points(vertices)):
        g = rng(seed).normal(size=N)
        if seed % 3 == 0:
            g = np.round(g)  # ties
        a = C.away(g, x)
        size = np.abs(vertices).max()
        # a box leaves a held entry where it is, which is at the bound to rounding
        assert np.min(np.abs(spanning - a).max(axis=1)) <= 1e-12 * size
        assert g @ a == pytest.approx(np.max(spanning @ g), abs=1e-12 * size * np.abs(g).sum())


def test_away_breaks_ties_by_the_first_index():
    x = np.array([0.0, 0.5, 0.5, 0.0, 0.0])
    assert Simplex().away(np.ones(5), x).tolist() == [0, 1, 0, 0, 0]
    assert CappedSimplex().away(np.zeros(5), x).tolist() == [0, 1, 0, 0, 0]
    assert L1Ball().away(np.array([9.0, -1.0, 1.0, 9.0, 9.0]), x * [1, -1, 1, 1, 1]).tolist() == [0, -1, 0, 0, 0]


def test_tangent_is_the_orthogonal_projector(case):
    C, vertices = case
    for seed, (x, spanning) in enumerate(points(vertices)):
        Q = tangent_basis(spanning)
        P = np.array([C.tangent(e, x) for e in np.eye(N)])
        assert pytest.approx(Q @ Q.T, abs=1e-12) == P
        d = rng(seed).normal(size=N)
        once = C.tangent(d, x)
        assert C.tangent(once, x) == pytest.approx(once, abs=1e-14)
        inside = (rng(seed).dirichlet(np.ones(len(spanning))) - 1 / len(spanning)) @ spanning
        assert C.tangent(inside, x) == pytest.approx(inside, abs=1e-12 * np.abs(vertices).max())


def directions(C, x, seed):
    """Of the face, toward a vertex, away from one of the face, and from one of the face to any."""
    draw = rng(seed)
    g = draw.normal(size=N)
    yield C.tangent(g, x)
    yield C.lmo(g) - x
    yield C.tangent(x - C.away(g, x), x)
    yield C.lmo(g) - C.away(g, x)
    yield C.lmo(-g) - C.away(g, x)


def test_reach_is_the_largest_step(case):
    C, vertices = case
    size, largest = np.ptp(np.asarray(vertices), axis=0).max(), np.abs(vertices).max()
    for seed, (x, _) in enumerate(points(vertices)):
        for d in directions(C, x, seed):
            alpha = float(C.reach(d, x))
            if not np.abs(d).max() > 1e-13 * largest:
                continue
            assert alpha == pytest.approx(furthest(vertices, x, d), rel=1e-6, abs=1e-9 * size)
            for share in (0.0, 0.5, 0.99, 1.0):
                assert float(C.violation(x + share * alpha * d)) <= 1e-14
            beyond = x + (1 + 1e-6) * alpha * d + 1e-6 * (size / np.abs(d).max()) * d
            assert float(C.violation(beyond)) > 1e-15


def test_reach_of_no_direction_is_infinite(case):
    C, vertices = case
    for x, _ in points(vertices, 5):
        assert float(C.reach(np.zeros(N), x)) == np.inf


def test_slide_ends_where_the_walk_from_face_to_face_does(case):
    C, vertices = case
    size = np.abs(vertices).max()
    for seed, (x, _) in enumerate(points(vertices)):
        d = 10.0 ** rng(seed).uniform(-2, 1) * np.ptp(np.asarray(vertices)) * rng(seed + 1).normal(size=N)
        end = C.slide(d, x)
        assert end == pytest.approx(Set.slide(C, d, x), abs=1e-11 * size)
        assert float(C.violation(end)) <= 1e-14
        assert C.tangent(end - x, x) == pytest.approx(end - x, abs=1e-11 * size), "it left the face"


def test_the_walk_takes_batches_and_keeps_precision():
    """Every point of a batch walks as alone: vectors, matrices, and an elementwise set as one point."""
    for C, shape in ((Simplex(2.0), (N,)), (L1Ball(), (N,)), (Columns(Simplex()), (N, 3)), (Box(), (N,))):
        draw = rng(3)
        x = np.stack([C.lmo(draw.normal(size=shape)) * 0.5 + C.lmo(draw.normal(size=shape)) * 0.5 for _ in range(6)])
        d = draw.normal(size=x.shape) * np.array([1e-3, 0.1, 0.3, 1.0, 3.0, 0.0]).reshape(-1, *(1,) * len(shape))
        alone = np.stack([Set.slide(C, a, b) for a, b in zip(d, x, strict=True)])
        assert alone == pytest.approx(np.stack([C.slide(a, b) for a, b in zip(d, x, strict=True)]), abs=1e-12)
        if C.event_ndim:
            np.testing.assert_allclose(Set.slide(C, d, x), alone, atol=1e-15)
            if len(shape) == 1:
                both = Set.slide(C, d.reshape(2, 3, N), x.reshape(2, 3, N))
                np.testing.assert_allclose(both.reshape(6, N), alone, atol=1e-15)
        single = Set.slide(C, d[3].astype(np.float32), x[3].astype(np.float32))
        assert single.dtype == np.float32
        assert single == pytest.approx(alone[3], abs=1e-5)


def test_the_walk_ends_with_its_path_or_after_so_many_faces():
    for reach, faces in ((np.inf, 1), (1.0, 1), (0.5, 2), (0.25, 4), (0.0, BENDS)):
        met = []

        def tangent(d, y, met=met):
            met.append(y)
            return d

        C = SimpleNamespace(event_ndim=1, tangent=tangent, reach=lambda d, y, reach=reach: np.asarray(reach))
        assert Set.slide(C, np.ones(2), np.zeros(2)).tolist() == [min(reach, 1.0) * min(faces, 4)] * 2
        assert len(met) == faces


def test_a_face_far_from_zero_is_seen_through_rounding():
    """Entries within a rounding of bounds of 10^8 are at the bound, and the sum is at its own."""
    a = np.array([1.0, 2.0, 0.5, 1.0])
    for far in (1e8, -1e8):
        low = np.full(4, far)
        C = WeightedSimplex(a, low, float(a @ low) + 8.0)
        ulp = np.spacing(1e8)
        d = np.array([1.0, 2.0, -1.0, 3.0])
        inside = low + np.array([0.0, 1.0, ulp, 2.0])
        assert C.tangent(d, inside).tolist() == [0.0, 2.0, 0.0, 3.0]
        assert C.away(d, inside).tolist() == (low + np.array([0.0, 0.0, 0.0, 8.0])).tolist()
        full = low + np.array([0.0, 3.0, ulp, 2.0])  # 2 * 3 + 2 = 8, to the rounding of the sum
        along = C.tangent(d, full)
        assert along == pytest.approx([0.0, 2.0 - 7 / 5 * 2, 0.0, 3.0 - 7 / 5], rel=1e-12)
        assert C.away(-d, full).tolist() == (low + np.array([0.0, 4.0, 0.0, 0.0])).tolist()
        assert C.away(-d, inside).tolist() == low.tolist()


@pytest.mark.parametrize(
    ("C", "shape"),
    [
        (Columns(L1Ball(2.0)), (N, 3)),
        (Product((Simplex(), Box(-1.0, 1.0)), (3, 2)), (N,)),
        (ShiftScale(L1Ball(), 2.0, 1.0), (N,)),
        (Counted(CappedSimplex()), (4, N)),
        (LinfBall(2.0), (N,)),
        (WeightedSimplex(np.linspace(1.0, 2.0, N)), (N,)),
    ],
    ids=lambda x: type(x).__name__,
)
def test_sets_of_sets_slide_part_by_part(C, shape):
    for seed in range(5):
        like = np.zeros(shape)
        x = C.lmo(rng(seed).normal(size=shape)) if seed % 2 else C.random_point(like, seed)
        d = rng(seed).normal(size=shape)
        short = C.slide(1e-9 * d, x)
        assert short == pytest.approx(x + 1e-9 * C.tangent(d, x), abs=1e-15)
        assert float(np.max(C.violation(C.slide(5.0 * d, x)))) <= 1e-14


def test_a_step_of_reach_ends_in_a_smaller_face(case):
    """Inside the face until nothing is left: at most N + 1 steps to a vertex."""
    C, vertices = case
    for seed, (x, _) in enumerate(points(vertices)):
        for k in range(N + 2):
            d = C.tangent(rng(100 * seed + k).normal(size=N), x)
            if not d.any():
                break
            x = x + C.reach(d, x) * d
        assert not C.tangent(rng(seed).normal(size=N), x).any(), "a vertex has no directions"
        assert np.min(np.abs(np.asarray(vertices) - x).max(axis=1)) <= 1e-11 * np.abs(vertices).max()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("C", [Simplex(2.0), CappedSimplex(2.0), L1Ball(2.0)], ids=lambda C: type(C).__name__)
def test_the_entry_that_ends_a_face_is_zero_to_its_own_rounding(C, dtype):
    """A rounding of the radius there would be taken for an entry that is in use."""
    n, eps = 120, np.finfo(dtype).eps
    for seed in range(20):
        x = (2 * rng(seed).dirichlet(np.ones(n))).astype(dtype)
        d = (C.lmo(rng(seed).normal(size=n).astype(dtype)) - 2 * np.eye(n, dtype=dtype)[seed]).astype(dtype)
        if isinstance(C, L1Ball):
            d = C.tangent(d, x)
        alpha = C.reach(d, x)
        end = x + alpha * d
        assert alpha > 0
        assert (np.abs(end) <= eps * x).any()


def test_an_entry_is_zero_at_the_end_of_a_face_that_rounding_has_moved_outwards():
    x, d = np.array([0.5, -0.3, 0.2 + 1e-10]), np.array([1.0, 0.0, -1.0])
    assert (x + L1Ball().reach(d, x) * d)[2] == 0


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rounding_does_not_move_a_point_off_its_face(case, dtype):
    """Hundreds of steps inside one face: it stays the face, and the point in the set."""
    C, vertices = case
    eps = np.finfo(dtype).eps
    for x, _ in points(vertices, 3):
        x = x.astype(dtype)
        # the face after rounding may be a smaller one; what counts is that it does not grow
        before = np.linalg.matrix_rank(np.array([C.tangent(e, x) for e in np.eye(N, dtype=dtype)]), tol=0.1)
        for k in range(200):
            d = C.tangent(rng(k).normal(size=N).astype(dtype), x)
            x = x + np.asarray(0.3 * min(C.reach(d, x), C.reach(-d, x), 1.0), dtype=dtype) * d
        after = np.linalg.matrix_rank(np.array([C.tangent(e, x) for e in np.eye(N, dtype=dtype)]), tol=0.1)
        assert after <= before
        assert float(C.violation(x)) <= 50 * eps


def test_many_equal_entries_in_single_precision_are_not_held():
    """1/n is below a fixed share of the radius for large n, and is not 0."""
    n = 1_000_000
    x = np.full(n, 1 / n, dtype=np.float32)
    d = np.zeros(n, dtype=np.float32)
    d[:2] = 1, -1
    for C in (Simplex(), CappedSimplex(), L1Ball()):
        assert C.tangent(d, x)[:2] == pytest.approx(d[:2], abs=1e-5)
        assert C.away(d, x)[0] == 1


@pytest.mark.parametrize("radius", [0.0, 1e-30, 1e30])
def test_extreme_sizes(radius):
    for C in (Simplex(radius), CappedSimplex(radius), L1Ball(radius), Box(0.0, radius)):
        x = C.lmo(np.array([1.0, -1.0]))
        g = np.array([1.0, 2.0])
        assert np.isfinite(C.away(g, x)).all()
        assert C.tangent(C.away(g, x) - x, x) == pytest.approx(0 * x, abs=1e-16 * radius)
        toward = C.lmo(-g) - x
        assert float(C.violation(x + min(float(C.reach(toward, x)), 1.0) * toward)) <= 1e-15


def test_a_set_of_one_point_has_no_directions():
    one = np.array([1.0, 0.0, 0.5])
    for C in (
        Simplex(0.0), CappedSimplex(0.0), L1Ball(0.0), LinfBall(0.0), Box(0.0, 0.0), Box(one, one),
        WeightedSimplex(2.0, one, 3.0), ShiftScale(L1Ball(0.0), 2.0, one),
    ):  # fmt: skip
        x, d = C.lmo(np.ones(3)), rng(0).normal(size=3)
        assert not C.tangent(d, x).any(), C
        assert C.slide(d, x).tolist() == C.away(d, x).tolist() == x.tolist(), C


@pytest.mark.parametrize("inner", [Simplex(2.0), L1Ball(), CappedSimplex(), Box(-1.0, 1.0)], ids=repr)
def test_columns_have_a_face_each(inner):
    C, X, g, d = Columns(inner), np.zeros((4, 3)), rng(0).normal(size=(4, 3)), rng(1).normal(size=(4, 3))
    for j in range(3):
        X[:, j] = 0.3 * inner.lmo(g[:, j]) + 0.7 * inner.lmo(rng(j + 2).normal(size=4))
    for j in range(3):
        np.testing.assert_array_equal(C.away(g, X)[:, j], inner.away(g[:, j], X[:, j]))
        np.testing.assert_array_equal(C.tangent(d, X)[:, j], inner.tangent(d[:, j], X[:, j]))
    T = C.tangent(d, X)
    assert float(C.reach(T, X)) == min(float(inner.reach(T[:, j], X[:, j])) for j in range(3))
    assert C.has_faces
    assert not Columns().has_faces
