"""Faces of polytopes beyond the suite, which compares them with inequalities: ties, walks, batches and rounding."""

from types import SimpleNamespace

import numpy as np
import pytest

from xvarpro.sets import Box, CappedSimplex, Columns, L1Ball, LinfBall, Set, ShiftScale, Simplex, WeightedSimplex
from xvarpro.sets.interface import BENDS

from .support import rng

N = 5
LOWER, UPPER = np.array([-1.0, 0.0, 2.0, -3.0, 5.0]), np.array([1.0, 4.0, 2.5, -3.0, 6.0])
WEIGHTS = np.array([0.5, 2.0, 1.0, 4.0, 1.0])
SETS = {
    "box": Box(-1.0, 2.0),
    "far box": Box(1e6, 1e6 + 1.0),
    "box of bounds": Box(LOWER, UPPER),
    "simplex": Simplex(3.0),
    "capped simplex": CappedSimplex(0.5),
    "l1 ball": L1Ball(2.0),
    "linf ball": LinfBall(1.5),
    "weighted simplex": WeightedSimplex(WEIGHTS, -WEIGHTS, 1.5),
}


@pytest.fixture(params=SETS)
def case(request):
    return SETS[request.param]


def points(C, count=6):
    """Points on faces of several dimensions: mixtures of vertices."""
    for seed in range(count):
        draw = rng(seed)
        k = int(draw.integers(1, N + 2))
        yield draw.dirichlet(np.ones(k)) @ C.lmo(draw.normal(size=(k, N)))


def test_away_breaks_ties_by_the_first_index():
    x = np.array([0.0, 0.5, 0.5, 0.0, 0.0])
    assert Simplex().away(np.ones(5), x).tolist() == [0, 1, 0, 0, 0]
    assert CappedSimplex().away(np.zeros(5), x).tolist() == [0, 1, 0, 0, 0]
    assert L1Ball().away(np.array([9.0, -1.0, 1.0, 9.0, 9.0]), x * [1, -1, 1, 1, 1]).tolist() == [0, -1, 0, 0, 0]


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


def test_a_step_of_reach_ends_in_a_smaller_face(case):
    """Inside the face until nothing is left: at most N + 1 steps to a vertex. Without a direction there is no end."""
    size = np.abs(case.lmo(np.stack([np.ones(N), -np.ones(N)]))).max()
    for seed, x in enumerate(points(case)):
        assert float(case.reach(np.zeros(N), x)) == np.inf
        for k in range(N + 2):
            d = case.tangent(rng(100 * seed + k).normal(size=N), x)
            if not d.any():
                break
            inside, x = x, x + case.reach(d, x) * d
            assert float(case.violation(x)) <= 1e-14
            assert float(case.violation(x + 1e-6 * (x - inside) + 1e-6 * (size / np.abs(d).max()) * d)) > 1e-15
        assert not case.tangent(rng(seed).normal(size=N), x).any(), "a vertex has no directions"
        assert np.abs(case.away(rng(seed).normal(size=N), x) - x).max() <= 1e-11 * size


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
    C, eps = case, np.finfo(dtype).eps
    for x in points(C, 3):
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
