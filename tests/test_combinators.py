"""Sets made of sets beyond the suite: complex points, what parts leave, faces that pass through, counts, bounds."""

from dataclasses import dataclass

import numpy as np
import pytest
import scipy.optimize

import xvarpro as xv
from xvarpro import sets

from .support import compiles_for_long, gradients, host, rng, send

FALLS = np.array([[1.0, 2.0, 0.0], [0.0, 1.0, -1.0], [3.0, 0.0, 1.0], [1.0, 1.0, 1.0]])
SHIFT = np.array([1.0, -2.0, 0.5, 0.0])


def test_violation_sees_a_small_distance():
    C = sets.HullOfUnion((sets.L1Ball(2.0), sets.Box(-1.0, 1.0), sets.ShiftScale(sets.Simplex(), 1.0, 2.0)))
    for g in gradients(20, (4,), 3):
        v = C.lmo(g)
        for step in (1e-2, 1e-4, 1e-6):
            outside = v - step * g / np.linalg.norm(g)
            assert C.violation(outside) * C.diameter(v) == pytest.approx(step, rel=1e-2)


@compiles_for_long
def test_matrices_and_complex_points(backend):
    inner_sets = (sets.NuclearBall(), sets.SpectralBall(0.3))
    draw = rng(5)
    g = draw.normal(size=(3, 5, 4)) + 1j * draw.normal(size=(3, 5, 4))
    there = send(backend, g)
    values = [-host(C.support(there)) for C in inner_sets]

    def value(C):
        return np.sum(np.real(np.conj(g) * host(C.lmo(there))), axis=(1, 2))

    both, hull = sets.MinkowskiSum(inner_sets), sets.HullOfUnion(inner_sets)
    assert (both.event_ndim, hull.event_ndim, both.takes_complex) == (2, 2, True)
    assert value(both) == pytest.approx(values[0] + values[1], rel=1e-12)
    assert value(hull) == pytest.approx(np.minimum(*values), rel=1e-12)
    for C in (both, hull):
        assert np.abs(host(C.violation(C.lmo(there)))).max() <= 1e-12
        assert (host(C.violation(10 * there)) > 1).all()
    shifted = sets.ShiftScale(sets.L2Ball(2.0), 0.5, 1.0 + 2.0j)
    z = host(shifted.lmo(send(backend, g[0, 0])))
    assert z == pytest.approx(1 + 2j - g[0, 0] / np.linalg.norm(g[0, 0]))


def test_a_complex_image(backend):
    A = np.array([[1.0, 1j], [2.0, 0.0], [0.0, 1 - 1j]])
    C = sets.LinearImage(sets.L1Ball(), A)
    g = rng(6).normal(size=3) + 1j * rng(7).normal(size=3)
    v = host(C.lmo(send(backend, g)))
    assert np.real(np.vdot(g, v)) == pytest.approx(-np.abs(A.conj().T @ g).max(), rel=1e-13)


def test_complex_distances_are_those_of_real_and_imaginary_parts():
    """Of points of a batch too: an image and a sum of discs."""
    C = sets.MinkowskiSum((sets.L2Ball(), sets.ShiftScale(sets.L2Ball(), 2.0, 1 - 1j)))  # the ball of 3 around 1 - i
    z = np.array([[1 - 1j, 1 - 1j], [7 - 1j, 1 - 1j], [1 - 1j, 1 + 7j], [1 - 7j, 1 - 9j]])
    want = np.array([0.0, 3.0, 5.0, 7.0]) / 6
    assert C.violation(z) == pytest.approx(want, rel=2e-3, abs=1e-9)
    assert C.violation(z.reshape(2, 2, 2)) == pytest.approx(want.reshape(2, 2), rel=2e-3, abs=1e-9)
    assert [float(C.violation(x)) for x in z] == pytest.approx(want, rel=2e-3, abs=1e-9)
    disc = sets.LinearImage(sets.L2Ball(), np.array([[1j, 0.0], [0.0, 1.0]]))
    assert float(disc.violation(np.array([3 + 0j, 4j]))) == pytest.approx(2.0, rel=2e-3)


def test_sets_of_one_point_and_of_bounds_make_sets_of_their_kind():
    mixed = sets.MinkowskiSum((sets.Box(-1.0, 1.0), sets.SpectralBall(0.5)))
    assert (mixed.event_ndim, sets.HullOfUnion((sets.SpectralBall(), sets.Box())).event_ndim) == (2, 2)
    assert sets.MinkowskiSum((sets.Box(), sets.Box())).event_ndim == 1
    g = rng(3).normal(size=(2, 3, 3))
    assert mixed.lmo(g) == pytest.approx(-np.sign(g) + sets.SpectralBall(0.5).lmo(g), abs=1e-14)
    assert mixed.support(g).shape == (2,)
    shifted = sets.ShiftScale(sets.L2Ball(), 1.0, np.float64(2.0))
    assert type(shifted.shift) is float
    assert shifted == sets.ShiftScale(sets.L2Ball(), 1.0, 2.0)
    assert sets.Transport([0.5, 0.5], [1.0]).a.shape == (2,)


def test_products_of_bounds_take_batches_of_any_shape():
    """One violation and one reach for each point, and none for none."""
    C = sets.Product((sets.Simplex(), sets.Box(0.0, 1.0)), (2, 2))
    x = np.array([[0.5, 0.5, 0.0, 1.0], [0.5, 0.5, 3.0, 0.5], [2.0, 0.5, 0.0, 0.0], [0.5, 0.5, -0.5, 1.0]])
    want = np.array([0.0, 2.0, 1.5, 0.5])
    d = np.array([[-1.0, 1.0, 0.25, 0.0]] * 4)
    assert C.violation(x) == pytest.approx(want)
    assert C.violation(x.reshape(2, 2, 4)) == pytest.approx(want.reshape(2, 2))
    start = np.array([[0.5, 0.5, 0.0, 1.0], [0.5, 0.5, 0.9375, 0.5], [0.25, 0.75, 0.0, 0.0], [1.0, 0.0, 0.5, 1.0]])
    assert C.reach(d, start) == pytest.approx([0.5, 0.25, 0.25, 1.0])
    assert C.reach(d.reshape(2, 2, 4), start.reshape(2, 2, 4)) == pytest.approx(np.array([[0.5, 0.25], [0.25, 1.0]]))
    for shape in ((0, 4), (3, 0, 4)):
        assert C.violation(np.zeros(shape)).shape == shape[:-1]
        assert C.reach(np.zeros(shape), np.zeros(shape)).shape == shape[:-1]
    columns = sets.Columns(sets.Box(0.0, 1.0))
    assert columns.violation(np.stack([np.zeros((2, 3)), np.full((2, 3), 3.0)])).tolist() == [0.0, 2.0]


def test_faces_pass_through():
    """Those of a product are of each part, for every point of a batch; with a part that has none there are none."""
    C = sets.Product((sets.Simplex(), sets.Box(0.0, 1.0)), (3, 1))
    x, d = np.array([0.5, 0.5, 0.0, 0.0]), np.array([1.0, 0.0, 5.0, 2.0])
    assert C.tangent(d, x).tolist() == [0.5, -0.5, 0.0, 0.0]
    assert C.away(np.array([1.0, 2.0, 3.0, 0.0]), x).tolist() == [0.0, 1.0, 0.0, 0.0]
    d = np.array([[-1.0, 1.0, 0.0, 0.0], [-0.5, 0.5, 0.0, 4.0]])
    assert C.reach(d, np.stack([x, x])) == pytest.approx([0.5, 0.25])
    assert sets.Product((sets.Simplex(), sets.Box())).has_faces
    assert not sets.Product((sets.Simplex(), sets.L2Ball())).has_faces


@dataclass(frozen=True)
class Settled(sets.Set):
    """A simplex whose oracle goes no further than the centre, and says how much that leaves."""

    def lmo(self, g):
        return self.center(g)

    def certified(self, g):
        return self.center(g), g.mean(axis=-1) - g.min(axis=-1)

    def center(self, like):
        return sets.Simplex().center(like)

    def diameter(self, like):
        return sets.Simplex().diameter(like)

    def violation(self, x):
        return sets.Simplex().violation(x)


SETTLED = [
    (
        sets.Product((Settled(), sets.L1Ball(2.0), Settled()), (3, 2, 1)),
        sets.Product((sets.Simplex(), sets.L1Ball(2.0), sets.Simplex()), (3, 2, 1)),
        (6,),
    ),
    (sets.Columns(Settled()), sets.Columns(sets.Simplex()), (4, 3)),
    (sets.Rows(Settled()), sets.Rows(sets.Simplex()), (4, 3)),
    (sets.Groups(Settled(), ((0, 3), (2, 4), (1,))), sets.Groups(sets.Simplex(), ((0, 3), (2, 4), (1,))), (5,)),
    (sets.ShiftScale(Settled(), 2.0, 1.0), sets.ShiftScale(sets.Simplex(), 2.0, 1.0), (4,)),
    (sets.LinearImage(Settled(), FALLS, SHIFT), sets.LinearImage(sets.Simplex(), FALLS, SHIFT), (4,)),
    (
        sets.MinkowskiSum((Settled(), sets.L1Ball(), sets.ShiftScale(Settled(), 2.0))),
        sets.MinkowskiSum((sets.Simplex(), sets.L1Ball(), sets.Simplex(2.0))),
        (4,),
    ),
    (
        sets.HullOfUnion((Settled(), sets.ShiftScale(Settled(), 2.0, -0.25), sets.L1Ball(0.5))),
        sets.HullOfUnion((sets.Simplex(), sets.ShiftScale(sets.Simplex(), 2.0, -0.25), sets.L1Ball(0.5))),
        (4,),
    ),
]


def test_what_the_parts_leave_adds_up():
    """For each point of a batch; and the support is no less for it."""
    for C, exact, shape in SETTLED:
        g = rng(8).normal(size=(2, 3, *shape))
        v, slack = C.certified(g)
        reached = np.sum(g * v, axis=tuple(range(2, g.ndim)))
        least = -exact.support(-g)
        assert slack.shape == (2, 3)
        assert (reached - least > 1e-3).any()
        assert reached - slack == pytest.approx(least, abs=1e-13), C
        assert C.support(g) == pytest.approx(exact.support(g), abs=1e-13), C
        np.testing.assert_array_equal(C.lmo(g), v)


@compiles_for_long
def test_any_function_is_an_oracle(backend):
    """What is not given is derived from the function, or refused."""
    C = sets.Oracle(sets.Simplex().lmo)
    x = send(backend, np.array([0.25, 0.25, 0.5]))
    assert C.diameter(x) == np.inf
    assert not C.has_projection
    assert bool(C.contains(x))
    assert not bool(C.contains(2 * x))
    assert float(C.violation(2 * x)) == pytest.approx(1 / np.sqrt(3), rel=2e-3)  # from the plane of the simplex
    assert bool(C.contains(C.center(x)))
    with pytest.raises(NotImplementedError, match="offers no projection"):
        C.project(x)
    given = sets.Oracle(sets.L2Ball().lmo, 2.0, sets.L2Ball().violation, sets.L2Ball().project)
    assert given.has_projection
    assert float(given.violation(8 * x)) == float(sets.L2Ball().violation(8 * x))


# -- bounds ------------------------------------------------------------------------------------------------------------


def test_bounds_pick_a_set():
    assert sets.bounds(0.0, 2.0) == sets.Box(0.0, 2.0)
    assert sets.bounds(-2.0, 2.0) == sets.LinfBall(2.0)
    assert sets.bounds(None) == sets.Free()
    assert sets.bounds(-np.inf, np.inf) == sets.Free()
    pairs = sets.bounds([(0, 1), (-1, 5.0)])
    assert (pairs.lower.tolist(), pairs.upper.tolist()) == ([0, -1], [1, 5])
    assert sets.bounds([(None, None), (-np.inf, None)]) == sets.Free()
    of_scipy = sets.bounds(scipy.optimize.Bounds([0.0, 0.0], [1.0, 2.0]))
    assert of_scipy.upper.tolist() == [1.0, 2.0]
    for low, high in (([-np.inf, 0.0], np.inf), (-np.inf, [0.0, np.inf])):
        assert isinstance(sets.bounds(low, high), sets.Box)
    tree = sets.bounds({"a": 0.0, "b": None}, {"a": np.ones(3), "b": None})
    assert isinstance(tree["a"], sets.Box)
    assert tree["b"] == sets.Free()


def test_a_set_in_other_coordinates_is_strictly_convex_where_its_inner_one_is():
    for inner, expected in ((sets.L2Ball(), True), (sets.Simplex(), False)):
        assert sets.ShiftScale(inner, 2.0).strictly_convex is expected


def test_a_flattened_kernel_is_a_matrix():
    """Every method, of sets with faces too, over batches."""
    draw, shape = rng(4), (3, 2, 2, 2)
    for inner, rows in ((sets.Rows(sets.L1Ball(2.0)), 1), (sets.SpectralBall(), 1), (sets.Columns(sets.Simplex()), 3)):
        C = sets.Flattened(inner, 4, rows)
        C.check(shape)
        matrix = (5, int(np.prod(shape[:rows])), int(np.prod(shape[rows:])))
        g, x, y = draw.normal(size=(3, 5, *shape))
        assert (C.polytope, C.has_faces, C.has_projection) == (inner.polytope, inner.has_faces, inner.has_projection)
        for name, args in {"lmo": (g,), "support": (g,), "project": (x,), "violation": (x,), "center": (x,)}.items():
            want = getattr(inner, name)(*(a.reshape(matrix) for a in args))
            got = getattr(C, name)(*args)
            np.testing.assert_allclose(got.reshape(want.shape), want, rtol=1e-12, atol=1e-12)
            assert got.shape in ((5, *shape), (5,))
        assert C.diameter(x) == inner.diameter(x.reshape(matrix)[0])
        if C.has_faces:
            x = C.lmo(g)
            d = C.tangent(y, x)
            np.testing.assert_array_equal(d.reshape(matrix), inner.tangent(y.reshape(matrix), x.reshape(matrix)))
            np.testing.assert_array_equal(C.reach(d, x), inner.reach(d.reshape(matrix), x.reshape(matrix)))
            for way in ("away", "slide"):
                want = getattr(inner, way)(y.reshape(matrix), x.reshape(matrix))
                np.testing.assert_array_equal(getattr(C, way)(y, x).reshape(matrix), want)


def test_none_is_no_bound():
    C = sets.Box([0.0, None], [None, 2.0])
    assert (C.lower.tolist(), C.upper.tolist()) == ([0.0, -np.inf], [np.inf, 2.0])
    assert (sets.Box(None, 1.0), sets.Box([[None, 0.0]], None).upper) == (sets.Box(-np.inf, 1.0), np.inf)
    assert not C.bounded
    assert sets.bounds([None, 0.0], [1.0, None]).upper.tolist() == [1.0, np.inf]
    p = xv.Parameters()
    p.add("k", [1.0, 2.0], min=[0.0, None], max=[None, 3.0])
    assert (p.over["k"].lower.tolist(), p.over["k"].upper.tolist()) == ([0.0, -np.inf], [np.inf, 3.0])
