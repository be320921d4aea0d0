"""Searches behind projections and violations: what they promise, and what those who call them promise."""

import math
from fractions import Fraction
from importlib import import_module

import numpy as np
import pytest

from xvarpro import sets
from xvarpro.sets import _isotonic, _nearest_point, _thresholds, ellipsoid, groups, lp, ordered_weighted
from xvarpro.sets._nearest_point import nearest_point
from xvarpro.sets._root_finding import root

from .support import rng

EPS = np.finfo(np.float64).eps
N = 6
RAMP = np.linspace(0.5, 2.0, N)
GROUPS = ((0, 3), (2, 4, 5), (1,))
SPD = np.diag(RAMP) + 0.1 * np.ones((N, N))
SEARCHED = [
    sets.WeightedSimplex(RAMP, -RAMP[::-1], 1.5),
    sets.WeightedL1Ball(RAMP, 0.25),
    sets.ContinuousKnapsack(RAMP, 1.7),
    sets.Hypersimplex(2, 0.75),
    sets.UnitHypersimplex(2, 0.75),
    sets.KSparsePolytope(3, 0.5),
    sets.OWLBall(RAMP[::-1], 1.5),
    sets.KNormBall(2, 1.5),
    sets.Permutahedron(RAMP**2),
    sets.OrderedBox(-1.0, 2.0),
    sets.GroupL1InfBall(GROUPS, 1.5),
    sets.LpBall(1.25, 1.5),
    sets.LpBall(3.0, 0.5),
    sets.Ellipsoid(RAMP, 0.5, 1.5),
    sets.Ellipsoid(SPD, 0.0, 0.5),
]


def points():
    """Around the set and further away, some rounded, so that entries tie."""
    x = 3 * rng(1).normal(size=(6, N))
    x[::3] = np.round(x[::3])
    return x * np.array([[0.5], [1.0], [1.0], [1.0], [5.0], [50.0]])


@pytest.fixture
def watched(monkeypatch):
    """Hands every search to a function, which runs it."""

    def install(look):
        for module in (_thresholds, _isotonic, lp, ellipsoid, ordered_weighted, groups):
            monkeypatch.setattr(module, "root", look)

    return install


def searched(fun, low, high, start):
    """The bracket holds a root and the start; slopes are those of differences, where both sides agree."""
    live = high - low > 1e-3 * np.maximum(np.abs(low), np.abs(high))  # in a shorter one values are rounding
    below, above = (fun(t)[0] for t in (low, high))
    size = np.maximum(np.abs(below), np.abs(above))
    assert (below >= -1e-12 * size)[live].all()
    assert (above <= 1e-12 * size)[live].all()
    assert ((low <= start) & (start <= high))[live].all()
    compared = 0
    for share in (0.137, 0.5123, 0.861):
        width = np.where(live, high - low, 0.0)
        t, h = low + share * width, 1e-6 * width
        _, slope = fun(t)
        left, right = ((fun(x)[0] - fun(y)[0]) / np.where(live, h, 1.0) for x, y in ((t, t - h), (t + h, t)))
        smooth = live & (np.abs(left - right) <= 1e-4 * np.abs(left + right))
        assert slope[smooth] == pytest.approx(0.5 * (left + right)[smooth], rel=3e-7)
        compared += int(smooth.sum())
    return compared


def test_functions_that_are_searched_fall_through_the_bracket_as_fast_as_they_say(watched):
    """A wrong slope costs bisections, and a bracket without the root the projection; searches take few steps."""
    compared, steps = [], []

    def look(fun, low, high, start, **keywords):
        calls = []
        if len(compared) < 60 and (low < high).any():
            compared.append(searched(fun, low, high, start))
        found = root(lambda t: calls.append(t) or fun(t), low, high, start, **keywords)
        steps.append(len(calls))
        return found

    watched(look)
    for C in SEARCHED:
        del compared[:], steps[:]
        for x in points():
            C.project(x)
        assert sum(compared) > 5, C
        assert np.mean(steps) <= 6, C


def test_where_all_entries_count_there_is_nothing_to_search_for(watched):
    def look(*_, **__):
        raise AssertionError

    watched(look)
    for C in (sets.Hypersimplex(N), sets.UnitHypersimplex(N), sets.UnitHypersimplex(N + 1), sets.KSparsePolytope(N)):
        C.project(points())


@pytest.mark.parametrize(("dtype", "scales"), [("float64", (1e5, 1e9)), ("float32", (1e3, 1e9, 1e12))])
def test_what_is_far_away_comes_back_with_the_rounding_of_the_set(dtype, scales):
    """Not with that of where it was; and small sets and large ones alike."""
    for C in SEARCHED:
        for scale in scales:
            x = (scale * rng(4).normal(size=(5, N))).astype(dtype)
            p = C.project(x)
            assert p.dtype == dtype
            assert (C.violation(p) <= (1e-14 if dtype == "float64" else 4e-7)).all(), (C, scale)
            if dtype == "float64":
                assert C.project(p) == pytest.approx(p, abs=1e-13), C


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [2, 9, 60])
def test_a_projection_onto_a_simplex_has_the_digits_of_the_simplex(n, dtype):
    """Next to rational numbers: ties, one entry far ahead, entries of all sizes, sets and points large and small."""
    g, place = rng(n).normal(size=n), np.arange(1.0, n + 1)
    x = [g, np.round(g), 0.1 + 0 * g, 1e5 + g, -1e4 * abs(g), 10 ** (4 * g), 1 / place, np.where(place == 2, 1e6, g)]
    # of a sum in pairs, of a threshold, and of an entry less that
    rounding = (2 + math.log2(n)) * np.finfo(dtype).eps
    for scale, radius in ((1.0, 1.0), (1.0, n / 2), (1e-20, 1.0), (1e20, 1.0), (1.0, 1e-20), (1e-20, 1e-20)):
        y, r = (scale * np.array(x)).astype(dtype), float(np.dtype(dtype).type(radius))
        want = np.array([nearest(row, r) for row in y])
        assert np.abs(sets.Simplex(r).project(y) - want).max() <= rounding * r, (scale, radius)


def test_a_sum_of_many_entries_has_the_digits_of_one():
    x = rng(0).uniform(size=100_000).astype(np.float32)
    total = sets.Simplex(5e4).project(x).sum(dtype=np.float64)
    assert total == pytest.approx(5e4, rel=float((2 + math.log2(x.size)) * np.finfo(x.dtype).eps))


def nearest(x, radius):
    """The nearest point of a simplex in rational numbers, rounded to doubles."""
    x, total, t = [Fraction(float(v)) for v in x], -Fraction(radius), None
    for k, v in enumerate(sorted(x, reverse=True), 1):
        total += v
        t = total / k if t is None else max(t, total / k)
    return [float(max(v - t, 0)) for v in x]


# -- the search itself -------------------------------------------------------------------------------------------------


def found(value, slope, low, high, start, **keywords):
    """The root of a function of a number, and the evaluations that it took."""
    calls = []

    def fun(t):
        calls.append(t)
        return value(t), slope(t)

    keywords = {"close": 0.0, "near": np.zeros_like(low), **keywords}
    return root(fun, low, high, start, **keywords), len(calls)


def test_a_search_stays_in_its_bracket():
    """A Newton step from either end leaves it."""
    zero, one = np.zeros(1), np.ones(1)

    def inside(t):
        assert (t >= 0).all()
        assert (t <= 1).all()
        return t

    curves = {
        0.0: (lambda t: 1 - 0.7 * inside(t) - 5 * t**4, lambda t: -0.7 - 20 * t**3),
        1.0: (lambda t: -(1 - 0.7 * (1 - inside(t)) - 5 * (1 - t) ** 4), lambda t: -0.7 - 20 * (1 - t) ** 3),
    }
    for start, (value, slope) in curves.items():
        t, _ = found(value, slope, zero, one, start * one)
        assert abs(value(t)) <= 1e-14


def vector(*x):
    return np.array(x, dtype=np.float64)


def test_a_root_of_any_function_is_found():
    """Flat, steep, with slopes that are wrong by any factor, or none at all."""
    low, high, start = vector(-1.0, -2.0, 0.0), vector(3.0, 1.0, 4.0), vector(2.5, -2.0, 4.0)
    at = vector(1.0, 0.25, math.pi)
    for value, slope in (
        (lambda t: at - t, lambda t: -np.ones_like(t)),
        (lambda t: (at - t) ** 5, lambda t: -5 * (at - t) ** 4),
        (lambda t: np.cbrt(at - t), lambda t: -np.cbrt(at - t) / (3 * np.where(t == at, 1, at - t))),
        (lambda t: np.tanh(50 * (at - t)), lambda t: -50 / np.cosh(50 * (at - t)) ** 2),
        (lambda t: at - t, lambda t: -1e-3 * np.ones_like(t)),
        (lambda t: at - t, lambda t: -1e3 * np.ones_like(t)),
        (lambda t: at - t, lambda t: np.ones_like(t)),
        (lambda t: np.sign(at - t), lambda t: 0 * t),
    ):
        t, steps = found(value, slope, low, high, start)
        flat = abs(value(at + 1e-4)).max() < 1e-9
        assert t == pytest.approx(at, rel=2e-3 if flat else 4 * EPS)
        assert steps <= 4 * 52


def test_a_line_takes_one_step_and_a_line_with_a_bend_ends_exactly():
    at = vector(0.3)
    t, steps = found(lambda t: at - t, lambda t: -np.ones_like(t), vector(0.0), vector(1.0), vector(0.9))
    assert (t, steps) == (at, 2)
    bent = (lambda t: np.where(t < 0.5, 4 - 7 * t, 1 - t), lambda t: np.where(t < 0.5, -7.0, -1.0))
    t, steps = found(*bent, vector(0.0), vector(2.0), vector(0.0))
    assert t == 1
    assert steps <= 4


def test_a_root_at_an_end_of_the_bracket_takes_one_step():
    for low, high in ((-1.0, 3.0), (-1e3, 1.0), (-2e3, -1.0)):
        for at, start in ((low, high), (high, low)):
            line = (lambda t, at=at: at - t, lambda t: -np.ones_like(t))
            t, steps = found(*line, vector(low), vector(high), vector(start))
            assert (t, steps) == (at, 2)


def test_a_search_below_zero_takes_as_many_steps_as_one_above():
    low, high, start, at = vector(0.0), vector(1.0), vector(0.4), 0.3
    _, above = found(lambda t: np.sign(at - t), lambda t: 0 * t, low, high, start)
    _, below = found(lambda t: np.sign(-at - t), lambda t: 0 * t, -high, -low, -start)
    assert below == above


def test_a_search_ends_where_it_is_told_to():
    """With a step of at most `close`, or a value of at most `near`; an entry that has ended does not move."""
    low, high, start = vector(0.0, 0.0), vector(1.0, 1.0), vector(0.5, 0.5)
    at = vector(0.5, 0.3)
    step = (lambda t: np.sign(at - t), lambda t: 0 * t)
    t, steps = found(*step, low, high, start, close=1e-3)
    assert t[0] == 0.5
    assert 1e-5 < abs(t[1] - 0.3) <= 1e-3
    assert steps <= 11
    t, steps = found(lambda t: at - t, lambda t: 0 * t, low, high, start, near=np.array([0.0, 0.06]))
    assert (t[0], t[1], steps) == (0.5, 0.25, 2)
    t, steps = found(lambda t: at - t, lambda t: -1 + 0 * t, low, low, start)
    assert (t.tolist(), steps) == ([0.5, 0.5], 0)


def test_what_is_no_number_ends_its_own_search_only():
    at = vector(np.nan, 0.3)
    t, steps = found(lambda t: at - t, lambda t: 0 * t, vector(0.0, 0.0), vector(1.0, 1.0), vector(0.5, 0.5))
    assert t[1] == pytest.approx(0.3, rel=4 * EPS)
    assert steps <= 60


def test_a_search_that_cannot_settle_ends():
    """At 0 there is no rounding of t; brackets are halved until no number is left."""
    _, steps = found(lambda t: np.sign(-t), lambda t: 0 * t, vector(-1.0), vector(2.0), vector(0.1))
    assert steps <= 2 * (1024 + 52)


# -- isotonic regression -----------------------------------------------------------------------------------------------


def pooled(x):
    """Pooling adjacent violators, entry by entry."""
    blocks = []
    for v in x:
        blocks.append([v, 1])
        while len(blocks) > 1 and blocks[-2][0] >= blocks[-1][0]:
            (a, m), (b, n) = blocks[-2:]
            blocks[-2:] = [[(m * a + n * b) / (m + n), m + n]]
    return np.concatenate([np.full(n, v) for v, n in blocks])


def test_isotonic_regression_pools_adjacent_violators():
    """Carried arrays are averaged over the same blocks, and left alone elsewhere."""
    for n in (1, 2, 3, 4, 5, 7, 8, 13, 33):
        x, carried = rng(n).normal(size=(2, 3, 4, n))
        x = x + np.linspace(0.0, 1.0, 4)[:, None] * np.arange(n)  # from disorder to order
        y, mean = _isotonic.isotonic(x, carried)
        down, same = _isotonic.antitonic(-x, carried)
        for i in np.ndindex(3, 4):
            want = pooled(x[i])
            assert y[i] == pytest.approx(want, abs=1e-13)
            block = np.cumsum(np.r_[0, np.diff(want) > 1e-9])
            means = np.array([carried[i][block == b].mean() for b in block])
            assert mean[i] == pytest.approx(means, abs=1e-13)
        np.testing.assert_array_equal(down, -y)
        np.testing.assert_array_equal(same, mean)


def test_isotonic_regression_has_as_many_levels_as_a_tree(watched):
    levels = []

    def look(*given, **keywords):
        levels.append(given[1].shape)
        return root(*given, **keywords)

    watched(look)
    for n in (2, 3, 4, 5, 8, 9, 32, 33):
        del levels[:]
        _isotonic.isotonic(rng(n).normal(size=n))
        assert [shape[0] for shape in levels] == [2**k for k in reversed(range(math.ceil(math.log2(n))))]


def test_isotonic_regression_keeps_what_is_no_number():
    for k in range(5):
        x = rng(0).normal(size=(2, 5))
        x[1, k] = np.nan
        y = sets.OrderedBox(-2.0, 2.0).project(x)
        assert np.isnan(y[1]).any()
        np.testing.assert_array_equal(y[0], sets.OrderedBox(-2.0, 2.0).project(x[0]))


# -- the nearest point from the oracle ---------------------------------------------------------------------------------


def test_a_distance_takes_few_calls_of_the_oracle():
    """Far away, near the boundary and inside; a batch as many as its worst point, and each as alone."""
    for inner in (sets.L2Ball(2.0), sets.L1Ball(2.0), sets.Box(-1.0, 1.0)):
        calls = []
        counted = sets.Oracle(
            lambda g, lmo=inner.lmo, calls=calls: calls.append(1) or lmo(g), inner.diameter(np.ones(4))
        )
        C = sets.MinkowskiSum((counted, sets.Simplex()))
        x = np.concatenate([s * rng(2).normal(size=(4, 4)) for s in (0.05, 3.0, 1e3, 1e9)])
        alone = []
        for point in x:
            before = len(calls)
            alone.append((float(C.violation(point)), len(calls) - before))
        before = len(calls)
        together = C.violation(x)
        taken = len(calls) - before
        assert together == pytest.approx([value for value, _ in alone], rel=2e-3, abs=1e-15)
        assert taken <= max(n for _, n in alone) + 1 <= 20
        assert np.median([n for _, n in alone]) <= 6


def test_a_search_of_the_nearest_point_takes_as_many_rounds_as_it_may():
    """An ellipsoid has no vertices: every round finds another point of it."""
    s = np.array([1.0, 2.0, 4.0])
    for rounds in (1, 2, 5):
        calls = []

        def farthest(r, calls=calls):
            calls.append(r)
            return s * (s * r) / np.linalg.norm(s * r, axis=-1, keepdims=True)

        nearest_point(farthest, np.array([3.0, 4.0, 5.0]), capacity=5, rounds=rounds)
        assert len(calls) == 1 + rounds


def hull(vertices, x, **keywords):
    """The nearest point of the hull of vertices, a lower bound on the distance, and the calls of the oracle."""
    calls = []

    def farthest(r):
        calls.append(r)
        return vertices[np.argmax(r @ vertices.T, axis=-1)]

    p, bound = nearest_point(farthest, x, capacity=vertices.shape[1] + 2, rounds=200, **keywords)
    return p, float(bound[0]), len(calls)


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
def test_a_search_for_the_nearest_point_ends_within_the_tolerance_and_no_later(size):
    """In any units: the bound lies within `rel` of the distance of p, and below that of the nearest point."""
    early = 0
    for seed in range(20):
        vertices, x = size * rng(seed).normal(size=(60, 10)), 3 * size * rng(seed + 100).normal(size=10)
        nearest, _, most = hull(vertices, x)
        least = np.linalg.norm(x - nearest)
        assert ((vertices - nearest) @ (x - nearest) <= 1e-12 * size**2).all()  # no vertex lies further that way
        for rel in (0.3, 0.05, 1e-3):
            p, bound, calls = hull(vertices, x, rel=rel)
            assert (1 - rel) * np.linalg.norm(x - p) <= bound * (1 + 1e-12)
            assert bound <= least * (1 + 1e-12)
            early += calls < most
    assert early > 20


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
def test_a_search_ends_near_a_point_of_the_set(size):
    """Within `near` of the largest entry of point and vertex, also where other entries are 0."""
    fewer, x = 0, np.zeros(10)
    for seed in range(20):
        vertices = size * rng(seed).normal(size=(60, 10))
        vertices[:, -1] = 0
        vertices -= vertices.mean(axis=0)
        p, _, most = hull(vertices, x)
        assert np.linalg.norm(x - p) <= 1e-14 * size * 10
        p, _, calls = hull(vertices, x, near=0.3)
        assert np.linalg.norm(x - p) <= 0.3 * np.abs(vertices).max()
        fewer += calls < most
    assert fewer > 10


def test_a_corral_has_room_for_the_points_that_it_may_need(monkeypatch):
    """One more than affinely independent points of so many entries, and than there are."""
    given = []

    def look(*asked, **keywords):
        given.append(keywords["capacity"])
        return nearest_point(*asked, **keywords)

    for module in (_nearest_point, import_module("xvarpro.sets.hull")):
        monkeypatch.setattr(module, "nearest_point", look)
    for atoms in (np.eye(4), np.ones((2, 4)), rng(0).normal(size=(9, 4))):
        sets.ConvexHull(atoms).project(np.zeros((3, 5, 4)))
    both = sets.MinkowskiSum((sets.L2Ball(), sets.L2Ball()))
    for x in (np.ones((2, 3, 4)), np.ones((7, 2), np.complex128), np.ones((1, 50))):
        both.violation(x)
    assert given == [5, 3, 6, 6, 6, 32]
