"""Vector sets beyond the suite: regimes of their parameters, sets that are one another, values by hand, refusals."""

import numpy as np
import pytest

from xvarpro import backends, sets
from xvarpro.backends import registry
from xvarpro.core import trees
from xvarpro.errors import ProblemError
from xvarpro.sets import region
from xvarpro.sets.vectors import norm

from .support import error, gradients, host, in_turn, inner, rng, send

EPS = np.finfo(np.float64).eps
RAMP = np.array([0.5, 2.0, 1.0, 4.0])


def moved(backend, C, dtype="float64"):
    """The set with its arrays on `backend`, as a solve hands it over."""
    return trees.map_arrays(lambda x: send(backend, host(x).astype(dtype)), C)


def compiled(backend, fun):
    """Every call of a loop compiles it anew on JAX, unless the whole function is compiled."""
    if backend.name != "jax":
        return fun
    import jax

    return jax.jit(fun)


ATOMS = rng(9).normal(size=(7, 4))
GROUPS = ((0, 3), (2,), (1,))
LOW, HIGH = np.array([[-1.0, 0.5, 0.0, 2.0], [0.5, 3.0, 0.0, 2.5]])
FALLING = np.array([3.0, 2.0, 1.0, 0.5])
SPD = np.array([[2.0, 0.5, 0.0, 0.1], [0.5, 1.0, 0.2, 0.0], [0.0, 0.2, 3.0, -0.4], [0.1, 0.0, -0.4, 0.5]])


@pytest.mark.parametrize("p", [1.0001, 1e4])
def test_the_ends_of_lp(p):
    end = sets.L1Ball(2.0) if p < 2 else sets.LinfBall(2.0)
    for g in gradients(100, (5,)):
        for scale in (1e-30, 1.0, 1e30):
            v = sets.LpBall(p, 2.0).lmo(scale * g)
            assert float(sets.LpBall(p, 2.0).violation(v)) <= 10 * EPS
            assert inner(g, v) == pytest.approx(inner(g, end.lmo(g)), rel=1e-3)


# -- sets that are one another -----------------------------------------------------------------------------------------

FIRST = np.eye(5)[0]
SPREAD = np.diag([0.0, 1.0, 0.0, 2.0, 0.5])
TWO = np.array([1.0, 1.0, 0.0, 0.0, 0.0])
SAME = {
    "l1": [sets.L1Ball(1.5), sets.KNormBall(5, 1.5), sets.OWLBall(np.ones(5), 1.5), sets.GroupL12Ball(1, 1.5)],
    "linf": [
        sets.LinfBall(1.5),
        sets.KSparsePolytope(9, 1.5),
        sets.OWLBall(FIRST, 1.5),
        sets.KNormBall(1, 1.5),
        sets.GroupL1InfBall(5, 1.5),
        sets.Groups(sets.L2Ball(1.5), 1),
    ],
    "cube": [sets.Box(0.0, 1.5), sets.UnitHypersimplex(7, 1.5)],
    "unit cube": [sets.Box(0.0, 1.0), sets.ContinuousKnapsack(2.0, 100.0), sets.ContinuousKnapsack(1.0, 5.0)],
    "of no width": [
        sets.WeightedL1Ball(np.array([0.0, 1.0, 0.0, 2.0, 0.5])),
        sets.ConvexHull(np.concatenate([SPREAD, -SPREAD])),
    ],
    "permutations": [sets.Hypersimplex(2), sets.Permutahedron(TWO)],
}


@in_turn("name", SAME)
def test_equivalent_sets_agree(name):
    first, *others = SAME[name]
    g = gradients(45, (5,))
    for C in others:
        reached = np.sum(g * C.lmo(g), axis=-1)
        assert (np.abs(reached - np.sum(g * first.lmo(g), axis=-1)) <= 20 * EPS * np.abs(g).sum(axis=-1)).all()
        assert np.abs(C.project(g) - first.project(g)).max() <= 100 * EPS
        assert [C.violation(x) > 1e-12 for x in g] == [first.violation(x) > 1e-12 for x in g]  # a box's is of all rows
        assert C.diameter(g[0]) == pytest.approx(first.diameter(g[0]), rel=1e-14)


# -- complex points ----------------------------------------------------------------------------------------------------


def complex_gradients(count, n=4, seed=0):
    g = gradients(count, (n,), seed) + 1j * gradients(count, (n,), seed + 1)
    g[::4, 0] = 0
    return g


def test_complex_gradients_of_any_size_have_the_same_vertex(backend):
    """And one as good for the gradient that came: `violation` of what is complex as well."""
    G = complex_gradients(20)
    for C in (
        sets.LinfBall(1.5), sets.L1Ball(1.5), sets.WeightedL1Ball(RAMP, LOW), sets.L2Ball(1.5, LOW), sets.LpBall(3.0),
        sets.GroupL12Ball(GROUPS), sets.Groups(sets.L2Ball(), GROUPS),
    ):  # fmt: skip
        on = moved(backend, C)
        lmo, violation = compiled(backend, on.lmo), compiled(backend, on.violation)
        want = host(lmo(send(backend, G)))
        for scale in (1e-300, 1e200):
            V = lmo(send(backend, scale * G))
            np.testing.assert_allclose(host(V), want, atol=1e-12)
            assert host(violation(V)).max() <= 10 * EPS
        assert (host(violation(send(backend, 100 * G[1:4]))) > 1).all()


# -- ties and degenerate parameters ------------------------------------------------------------------------------------


def test_sorted_weights_that_add_up_to_less_than_one_for_rounding():
    """Ten times 0.1."""
    assert sets.OWLBall(0.1).lmo(np.ones(10)).tolist() == [-10.0, *[0.0] * 9]


def test_of_atoms_that_tie_the_first_is_taken():
    assert sets.ConvexHull(np.array([[0.0, 1.0], [1.0, 0.0], [-1.0, 2.0]])).lmo(np.ones(2)).tolist() == [0.0, 1.0]


def test_bounds_are_not_handed_out(backend):
    lower, upper = send(backend, LOW), send(backend, HIGH)
    C = sets.Box(lower, upper)
    C.lmo(send(backend, np.ones(4)))
    C.project(send(backend, np.ones(4)))
    assert (host(lower) == LOW).all()
    assert (host(upper) == HIGH).all()
    if backend.name == "numpy":
        assert not np.shares_memory(C.lmo(np.ones(4)), lower)


def test_parameters_in_the_framework_of_the_points_do_not_visit_the_host(backend, monkeypatch):
    """Where a program is traced they have no values there."""
    C, x = sets.WeightedL1Ball(send(backend, RAMP), send(backend, LOW)), send(backend, np.full(4, 3.0))

    def visited(_):
        raise AssertionError

    for module in (backends, registry):
        monkeypatch.setattr(module, "to_numpy", visited)
    found = C.lmo(x), C.project(x), C.violation(x), C.center(x)
    monkeypatch.undo()
    want = sets.WeightedL1Ball(RAMP, LOW)
    for a, method in zip(found, ("lmo", "project", "violation", "center"), strict=True):
        np.testing.assert_allclose(host(a), getattr(want, method)(np.full(4, 3.0)), rtol=1e-14)


@in_turn("kind", [sets.Simplex, sets.CappedSimplex, sets.L1Ball, sets.L2Ball])
@in_turn("r", [1e-9, 1e9])
def test_violation_does_not_see_units(kind, r):
    x = rng(4).normal(size=5)
    assert kind(r).violation(r * x) == pytest.approx(kind(1.0).violation(x), rel=1e-12)


# -- wrong parameters --------------------------------------------------------------------------------------------------


@in_turn(
    ("C", "message"),
    [
        (sets.L2Ball(1.0, LOW), "L2Ball: offset has 4 entries, theta's leaf of shape (2, 3) has 6"),
        (sets.WeightedSimplex(RAMP, LOW, 12.0), "WeightedSimplex: weights has 4 entries"),
        (sets.WeightedSimplex(1.0, 1.0, 5.0), "<weights, lower> must be <= bound, got 6 > 5"),
        (sets.WeightedL1Ball(RAMP), "WeightedL1Ball: widths has 4"),
        (sets.ContinuousKnapsack(RAMP), "ContinuousKnapsack: weights has 4"),
        (sets.OWLBall(FALLING), "OWLBall: weights has 4"),
        (sets.Permutahedron(FALLING), "Permutahedron: weights has 4"),
        (sets.Hypersimplex(7), "Hypersimplex: k must be at most 6"),
        (sets.Ellipsoid(SPD), "Ellipsoid: matrix has shape (4, 4)"),
        (sets.ConvexHull(ATOMS), "ConvexHull: atoms have 4 entries"),
        (sets.Groups(groups=GROUPS), "Groups: groups hold 4 entries, theta's leaf of shape (2, 3) has 6"),
        (sets.Groups(sets.Hypersimplex(3), 2), "Hypersimplex: k must be at most 2"),
        (sets.GroupL12Ball(GROUPS), "GroupL12Ball: groups hold 4"),
        (sets.Columns(sets.Hypersimplex(3)), "Hypersimplex: k must be at most 2"),
        (sets.Rows(sets.Hypersimplex(4)), "Hypersimplex: k must be at most 3"),
        (sets.Product((sets.Simplex(), sets.Hypersimplex(3)), (4, 2)), "Hypersimplex: k must be at most 2"),
        (sets.Product((sets.Simplex(), sets.Simplex()), (4, 1)), "sizes must add up to the axis of length 6"),
        (sets.ShiftScale(sets.Hypersimplex(7)), "Hypersimplex: k must be at most 6"),
        (sets.ShiftScale(sets.L2Ball(), 1.0, np.ones((2, 3))), "ShiftScale: shift must broadcast to a point of shape"),
        (sets.LinearImage(sets.Hypersimplex(3), np.ones((6, 2))), "Hypersimplex: k must be at most 2"),
        (sets.LinearImage(sets.L2Ball(), None, np.ones(5)), "LinearImage: shift must broadcast to a point of shape"),
        (sets.MinkowskiSum((sets.L2Ball(), sets.Hypersimplex(7))), "Hypersimplex: k must be at most 6"),
        (sets.HullOfUnion((sets.L2Ball(), sets.Hypersimplex(7))), "Hypersimplex: k must be at most 6"),
        (sets.GroupL1InfBall(GROUPS), "GroupL1InfBall: groups hold 4"),
        (sets.WeightedSimplex(1.0, LOW, 12.0), "WeightedSimplex: lower has 4 entries"),
        (sets.WeightedL1Ball(1.0, LOW), "WeightedL1Ball: offset has 4 entries"),
        (sets.Ellipsoid(1.0, LOW), "Ellipsoid: offset has 4 entries"),
    ],
)
def test_a_leaf_that_does_not_fit_is_refused(C, message):
    with pytest.raises(ProblemError) as caught:
        region.resolve(C, np.ones((2, 3)))
    assert message in str(caught.value)


def test_what_is_just_allowed():
    """A set of one point, all entries of a vertex, totals that are equal to a part in a million."""
    for C in (sets.Box(1.0, 1.0), sets.OrderedBox(2.0, 2.0), sets.WeightedSimplex(np.ones(2), 1.0, 2.0)):
        assert C.diameter(np.zeros(2)) == 0
    sets.Hypersimplex(6).check((2, 3))
    sets.Fantope(3).check((3, 3))
    for C in (sets.Spectraplex(), sets.Birkhoff(), sets.Fantope()):
        C.check((2, 3, 3))
    sets.Columns(sets.Hypersimplex(2)).check((2, 3))
    sets.Rows(sets.Hypersimplex(3)).check((2, 3))
    sets.Groups(sets.Hypersimplex(2), 2).check((6,))
    sets.WeightedSimplex(1.0, 0.5, 3.0).check((6,))
    sets.Transport(np.array([1.0, 1.0]), np.array([2.0 + 1e-6]))
    with pytest.raises(ProblemError, match="equal totals"):
        sets.Transport(np.array([1.0, 1.0]), np.array([2.0 + 4e-6]))
    sets.Ellipsoid(np.diag([1.0, 1e-14]))
    with pytest.raises(ProblemError, match="positive definite"):
        sets.Ellipsoid(np.diag([1.0, 1e-16]))
    assert sets.Oracle(sets.L2Ball(0.0).lmo, 0.0).diameter(np.zeros(2)) == 0
    assert sets.bounds(0.0, 0.0) == sets.LinfBall(0.0)


@pytest.mark.parametrize(("dtype", "e"), [("float64", -900), ("float64", -60), ("float32", -30), ("float32", 90)])
def test_the_nearest_point_of_what_points_hull_does_not_see_units(dtype, e):
    """Nor what is said of points outside a set without a projection."""
    unit, atoms = np.asarray(2.0, dtype) ** e, np.array([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0]], dtype)
    x, hull = unit * np.array([2.0, 3.0], dtype), sets.ConvexHull(unit * atoms)
    assert error(hull.project(x) / unit, [0.5, 1.5]) <= 8 * np.finfo(dtype).eps
    assert float(hull.violation(x)) == pytest.approx(1.5 * 2**0.5 / 2, rel=1e-5)
    image = sets.LinearImage(hull, np.eye(2, dtype=dtype))
    of_one = sets.LinearImage(sets.ConvexHull(atoms), np.eye(2, dtype=dtype))
    assert float(image.violation(x)) == pytest.approx(float(of_one.violation(x / unit)), rel=1e-5)


def test_lists_are_vectors():
    assert sets.WeightedL1Ball([1.0, 3.0]).lmo(np.ones(2)).tolist() == [0.0, -3.0]
    assert sets.Groups(groups=[[0], [1]]).groups == ((0,), (1,))


@pytest.mark.parametrize(
    "wrap", [sets.Columns, sets.Rows, lambda C: sets.Groups(C, 2)], ids=["columns", "rows", "groups"]
)
def test_a_product_runs_where_its_factors_run(wrap):
    """One oracle on the host keeps the whole product there."""
    oracle = sets.Oracle(lambda g: 0 * g, compiled=False)
    assert not wrap(oracle).compiles
    assert wrap(sets.L2Ball()).compiles


# -- how far outside ---------------------------------------------------------------------------------------------------

THIN = np.array([0.0, 2.0])
VIOLATIONS = [
    # an entry without a width is measured by itself
    (sets.Box(0.0, np.inf), [-2.0, 5.0], 1.0),
    (sets.Box(-np.inf, 3.0), [7.0], 4 / 7),
    (sets.Box(-np.inf, 3.0), [3.5], 0.5 / 3.5),
    (sets.Box(0.0, 0.0), [-3.0], 3.0),
    (sets.Simplex(0.0), [3.0, 0.0], 3.0),
    (sets.OrderedBox(0.0, 0.0), [0.0, 3.0], 3.0),
    # relative to the largest width, or offset
    (sets.WeightedL1Ball(THIN, np.array([-3.0, 1.0])), [-1.0, 1.0], 2 / 3),
    (sets.WeightedL1Ball(2 * THIN, np.array([-3.0, 1.0])), [-1.0, 1.0], 0.5),
    (sets.ContinuousKnapsack(np.array([1.0, 2.0]), 0.0), [0.25, 0.0], 0.25),
    (sets.Oracle(sets.L2Ball(2.0).lmo), [3.0, 4.0], 3.0),
    (sets.LinearImage(sets.L2Ball(), np.zeros((2, 2))), [3.0, 4.0], 5.0),
]


def test_violations_of_sets_without_width_or_bounds():
    for C, x, want in VIOLATIONS:
        close = 2e-3 if type(C) in (sets.Oracle, sets.LinearImage) else 1e-14
        assert float(C.violation(np.array(x))) == pytest.approx(want, rel=close), (C, x)
        assert not (C.event_ndim and C.contains(np.array(x)))


def on_the_boundary(x):
    """Sets whose size is that of the point x >= 0, to the last bit."""
    n = x.size
    yield sets.L1Ball(float(np.abs(x).sum()))
    yield sets.CappedSimplex(float(x.sum()))
    yield sets.LinfBall(float(np.abs(x).max()))
    yield sets.L2Ball(float(norm(x)[0]))
    yield sets.NonnegativeL2Ball(float(norm(x)[0]))
    yield sets.Ellipsoid(1.0, 0.0, float(norm(x)[0]))
    yield sets.LpBall(3.0, float(sets.LpBall(3.0)._size(x)))
    yield sets.GroupL12Ball(1, float(np.abs(x).sum()))
    yield sets.GroupL1InfBall(1, float(np.abs(x).sum()))
    yield sets.OWLBall(np.linspace(2.0, 1.0, n), float(sets.OWLBall(np.linspace(2.0, 1.0, n))._size(x)))
    yield sets.UnitHypersimplex(1, float(x.sum()))
    yield sets.KSparsePolytope(1, float(np.abs(x).sum()))
    yield sets.ContinuousKnapsack(np.ones(n), float(x.sum()))
    yield sets.WeightedSimplex(np.ones(n), 0.0, float(x.sum()))


def test_a_point_of_the_boundary_stays_to_the_last_bit():
    for seed in range(5):
        x = rng(seed).dirichlet(np.ones(5))
        for C in on_the_boundary(x):
            np.testing.assert_array_equal(C.project(x), x, err_msg=repr(C))


def test_where_all_entries_count_the_bounds_are_met_to_the_last_bit():
    """A sum of n times a number is not n times the number."""
    for n in range(1, 12):
        x = np.abs(rng(n).normal(size=(5, n)))
        assert (sets.Hypersimplex(n, 0.1).project(x) == 0.1).all()
        np.testing.assert_array_equal(sets.UnitHypersimplex(n, 0.1).project(x + 3), np.full_like(x, 0.1))
        np.testing.assert_array_equal(sets.KSparsePolytope(n, 0.1).project(-x - 3), np.full_like(x, -0.1))


def test_parts_of_a_complex_number_may_be_of_any_size():
    g = np.array([1e-310 - 1j, -1j, -1 + 1e-310j, 3e-300 - 4e-300j, -3e-300 - 4e-300j, -1e300 + 1e-300j, 0j])
    want = -2 * np.array([-1j, -1j, -1, 0.6 - 0.8j, -0.6 - 0.8j, -1, 1])
    assert sets.LinfBall(2.0).lmo(g) == pytest.approx(want, abs=1e-12)


def test_a_nearly_symmetric_matrix_counts_as_the_mean_of_both_triangles():
    A = np.array([[2.0, 0.5], [0.5 + 1e-7, 1.0]])
    C, same = sets.Ellipsoid(A, radius=2.0), sets.Ellipsoid((A + A.T) / 2, radius=2.0)
    for g in gradients(5, (2,)):
        assert C.support(g) == pytest.approx(same.support(g), rel=1e-14)
    with pytest.raises(ProblemError, match="must be symmetric"):
        sets.Ellipsoid(A + np.array([[0.0, 0.0], [1e-5, 0.0]]))


def test_a_mean_that_is_far_away_does_not_count():
    """A step of which single precision holds four digits: partial sums of thousands of entries still see it."""
    n, k = 4096, 1000
    g = (1e3 + np.where(np.arange(n) < k, 1.0, 0.0)).astype(np.float32)
    v = sets.TotalVariationBall().lmo(g)
    assert np.flatnonzero(np.diff(v)).tolist() == [k - 1]


def test_complex_points_of_a_set_stay_to_the_last_bit():
    z = complex_gradients(8)
    z = z / np.abs(z).sum(axis=1, keepdims=True)
    for C in (
        sets.L1Ball(1.25), sets.LinfBall(), sets.L2Ball(), sets.WeightedL1Ball(2.0), sets.LpBall(3.0),
        sets.GroupL12Ball(2, 1.25), sets.Groups(), sets.ShiftScale(sets.L2Ball(), 2.0),
    ):  # fmt: skip
        np.testing.assert_array_equal(C.project(z), z, err_msg=repr(C))


def test_complex_entries_without_width_stay_at_the_offset():
    C = sets.WeightedL1Ball(np.array([1.0, 0.0, 2.0]), np.array([0.5, -1.0, 0.0]))
    z = np.array([0.5 + 3j, 4.0 - 2j, 0.0])
    assert C.project(z) == pytest.approx([0.5 + 1j, -1.0, 0.0], abs=1e-15)
    assert C.lmo(np.array([1j, 9.0, 0.0])) == pytest.approx([0.5 - 1j, -1.0, 0.0], abs=1e-15)
    assert float(C.violation(z)) == pytest.approx(abs(5 - 2j) / 2)
    assert float(C.violation(np.array([0.5 + 3j, -1.0, 0.0]))) == pytest.approx(2.0)
    assert float(C.violation(np.array([0.5, -1.0 + 1j, 0.0]))) == pytest.approx(0.5)


def test_a_complex_shift_has_the_precision_of_the_points():
    A = np.array([[1.0, 1j], [2.0, 0.0], [0.0, 1 - 1j]])
    for C, n in (
        (sets.ShiftScale(sets.L2Ball(), 2.0, 1 / 3 + 2j), 3),
        (sets.LinearImage(sets.L1Ball(), A, 1 / 3 + 2j), 3),
    ):
        g = rng(6).normal(size=n) + 1j * rng(7).normal(size=n)
        want = C.lmo(g)
        assert want.dtype == np.complex128
        if isinstance(C, sets.ShiftScale):
            assert want == pytest.approx(1 / 3 + 2j - 2 * g / np.linalg.norm(g), abs=1e-15)
        found = C.lmo(g.astype(np.complex64))
        assert found.dtype == np.complex64
        assert found == pytest.approx(want, rel=1e-6)


def test_points_of_no_entries():
    x = np.zeros((2, 0))
    for call in (sets.L2Ball().lmo, sets.L2Ball().project, sets.LpBall().lmo, sets.NonnegativeL2Ball().lmo):
        assert call(x).shape == (2, 0)
    assert norm(x).tolist() == [[0.0], [0.0]]


DIAMETERS = [
    (sets.LinearImage(sets.L2Ball(), np.diag([1.0, 4.0])), (2,), 8.0),
    (sets.MinkowskiSum((sets.L2Ball(), sets.L1Ball(3.0), sets.Box(0.0, 4.0))), (2,), 8.0 + 4 * np.sqrt(2)),
    # of the largest, or of two that are far from each other
    (sets.HullOfUnion((sets.L2Ball(3.0), sets.ShiftScale(sets.L2Ball(), 1.0, np.array([3.0, 4.0])))), (2,), 13.0),
    (sets.HullOfUnion((sets.ShiftScale(sets.L2Ball(), 1.0, np.array([3.0, 4.0])), sets.L2Ball(3.0))), (2,), 13.0),
    (
        sets.HullOfUnion(
            (sets.L2Ball(), sets.ShiftScale(sets.L2Ball(), 1.0, 12.0), sets.ShiftScale(sets.L2Ball(), 2.0, -3.0))
        ),
        (4,),
        36.0,
    ),
    (sets.Product((sets.Simplex(3.0), sets.Box(0.0, 4.0)), (3, 1)), (4,), np.sqrt(18.0 + 16.0)),
    (sets.Groups(sets.LinfBall(0.5), ((0, 1, 2, 3), (4,), (5, 6, 7, 8))), (9,), 3.0),
    # twice the capacity, the lightest first: 1, 1/2 of the second
    (sets.ContinuousKnapsack(np.array([4.0, 1.0, 2.0]), 1.0), (3,), np.sqrt(1.5)),
    (sets.Transport(), (2, 3), np.sqrt(2 / 3)),
    (sets.Transport(np.array([3.0, 4.0]), np.array([2.0, 5.0])), (2, 2), 5 * np.sqrt(2)),
    (sets.Transport(), (1, 3), 0.0),
    (sets.Box(np.array([0.0, 1.0]), np.array([3.0, 5.0])), (2,), 5.0),
]


def test_diameters_by_hand():
    for C, shape, want in DIAMETERS:
        assert C.diameter(np.zeros(shape)) == pytest.approx(want, rel=1e-14), C


@pytest.mark.parametrize("unit", [2.0**-900, 2.0**900])
def test_diameters_do_not_see_units(unit):
    for of in (
        lambda s: sets.Columns(sets.L2Ball(s)),
        lambda s: sets.ConvexHull(s * np.eye(3)),
        lambda s: sets.Box(0.0, s),
        lambda s: sets.Permutahedron(s * np.arange(3.0)),
        lambda s: sets.Transport(s * np.ones(2), s * np.ones(2)),
        lambda s: sets.HullOfUnion([sets.Box(0.0, s), sets.Box(s, 2 * s)]),
    ):
        shape = (3,) if of(1.0).event_ndim < 2 else (2, 2)
        assert of(unit).diameter(np.zeros(shape)) == unit * of(1.0).diameter(np.zeros(shape)), of(unit)


# -- where a start may be taken from -----------------------------------------------------------------------------------

CENTERS = [
    (sets.Simplex(3.0), [1.0, 1.0, 1.0]),
    (sets.CappedSimplex(2.0), [0.5, 0.5, 0.5]),
    (sets.WeightedSimplex(np.array([1.0, 2.0, 4.0]), np.array([-1.0, 0.0, 0.5]), 5.0), [0.0, 0.5, 0.75]),
    (sets.ContinuousKnapsack(np.array([1.0, 2.0, 3.0]), 2.0), [0.25, 0.25, 0.25]),
    (sets.Hypersimplex(2, 3.0), [2.0, 2.0, 2.0]),
    (sets.Hypersimplex(3, 3.0), [3.0, 3.0, 3.0]),
    (sets.UnitHypersimplex(1, 3.0), [0.75, 0.75, 0.75]),
    (sets.UnitHypersimplex(3, 3.0), [1.5, 1.5, 1.5]),
    (sets.OrderedBox(-1.0, 3.0), [0.0, 1.0, 2.0]),
    (sets.Permutahedron(np.array([6.0, 1.0, 2.0])), [3.0, 3.0, 3.0]),
    (sets.ConvexHull(np.array([[1.0, 0.0, 0.0], [0.0, 2.0, 5.0]])), [0.5, 1.0, 2.5]),
    (sets.NonnegativeL2Ball(np.sqrt(12.0)), [1.0, 1.0, 1.0]),
    # half a line: as far inside as its end is from 0, and 1/2
    (sets.Box(np.array([-1.0, -np.inf, 2.0]), np.array([2.0, 5.0, np.inf])), [0.5, 2.0, 3.5]),
    (sets.ShiftScale(sets.CappedSimplex(), 2.0, np.array([1.0, 0.0, -1.0])), [1.5, 0.5, -0.5]),
    (sets.LinearImage(sets.Simplex(), np.diag([3.0, 6.0, 9.0]), 1.0), [2.0, 3.0, 4.0]),
    (sets.MinkowskiSum((sets.Simplex(3.0), sets.CappedSimplex(2.0))), [1.5, 1.5, 1.5]),
    (sets.HullOfUnion((sets.Simplex(3.0), sets.CappedSimplex(2.0))), [0.75, 0.75, 0.75]),
    (sets.Product((sets.Simplex(3.0), sets.Box(0.0, 1.0)), (2, 1)), [1.5, 1.5, 0.5]),
]


def test_centers():
    """Of a polytope the mean of its vertices, where these are few; else a point with room on all sides."""
    for C, want in CENTERS:
        found = C.center(np.ones(3))
        assert found == pytest.approx(want, rel=1e-14), C
        single = trees.map_arrays(lambda x: x.astype(np.float32), C).center(np.ones((2, 3), np.float32))
        assert (single.dtype, single.shape) == (np.float32, (2, 3)), C
        assert single == pytest.approx(np.broadcast_to(found, (2, 3)), rel=1e-6), C
