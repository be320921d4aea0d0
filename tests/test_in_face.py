"""Conditional gradient inside the faces of a set: linear rates without a list of atoms, and no step out of the set."""

from types import SimpleNamespace

import numpy as np
import pytest

import xvarpro as xv
from xvarpro.algorithms import AwayStep, BlendedPairwise, FrankWolfe, InFaceFrankWolfe, InFaceGradient, Pairwise
from xvarpro.algorithms.in_face import _reach
from xvarpro.sets import Columns, L2Ball, Simplex
from xvarpro.sets.region import resolve
from xvarpro_conformance import problems

from .support import rng
from .test_active_set import CASES, EPS, LeastSquares, case, conditioned, run, turning

# a full step to a vertex of a ball kills units: honest, and not what is asked here
pytestmark = pytest.mark.filterwarnings("ignore::xvarpro.DeadUnitsWarning")

CORRECTIONS = [AwayStep(), Pairwise(), BlendedPairwise(), InFaceGradient()]


@pytest.fixture(params=CORRECTIONS, ids=repr)
def correction(request):
    return request.param


# -- the rate ----------------------------------------------------------------------------------------------------------


def test_the_gradient_in_the_face_needs_no_more_than_its_condition_asks():
    """Condition 10 in 20 dimensions: a hundred iterations, as many as projected gradient takes, on every polytope."""
    for name in CASES:
        here = case(name)
        states = list(run(InFaceFrankWolfe(), here.f, here.over, here.vertex, 150, 1e-8))
        assert len(states) <= 100, name


# -- the set -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_hundreds_of_steps_stay_in_the_set(name, correction):
    """Toward a target that turns the method changes faces all the time, and never leaves the set."""
    here, ends = case(name, 10, 4), set()
    for state in turning(InFaceFrankWolfe(correction), here, 10, 16):
        assert float(here.over.violation(state.iterate.theta[0])) <= 200 * EPS
        ends.add(tuple(here.over.tangent(np.eye(10), state.iterate.theta[0]).any(axis=1).tolist()))
    assert len(ends) > 5, "the faces did change"


@pytest.mark.parametrize("name", CASES)
def test_steps_end_exactly_at_the_faces_they_meet(name, correction):
    """The minimiser's face is found as such: what should be 0 or at a bound is held there, to rounding."""
    here = case(name)
    *_, last = run(InFaceFrankWolfe(correction), here.f, here.over, here.inside, 600, 1e-9)
    directions = here.over.tangent(np.eye(20), last.iterate.theta[0])
    want = here.over.tangent(np.eye(20), here.best)
    if isinstance(correction, InFaceGradient | AwayStep | BlendedPairwise):
        assert directions == pytest.approx(want, abs=1e-12)
    assert np.linalg.matrix_rank(directions, tol=0.1) >= np.linalg.matrix_rank(want, tol=0.1)


def test_ties_stay_in_the_face_and_what_is_no_number_leaves_it():
    """A step in the face asks for no vertex; where nothing is known of the face, the vertex is what is left."""
    for correction, promises, tie in (
        (InFaceGradient(), (2.0, 0.0, 2.0), (0.0, 0.0, 1.0)),
        (BlendedPairwise(), (2.0, 1.0, 1.0), (0.0, 1.0, 1.0)),
        (AwayStep(), (2.0, 2.0, 0.0), (1.0, 0.0, 0.0)),
    ):
        assert tuple(map(float, correction.mix(*map(np.asarray, promises)))) == tie
        if not isinstance(correction, AwayStep):
            unknown = correction.mix(*map(np.asarray, (1.0, np.nan, np.nan)))
            assert tuple(map(float, unknown)) == (1.0, 0.0, 0.0)


def test_a_set_without_faces_is_left_by_no_direction_to_a_vertex():
    """A step of 1 ends at the vertex, also where an entry of the direction is 0; a leaf that stays does not count."""
    d, x = np.array([0.5, 0.0]), np.zeros(2)
    region = resolve({"a": L2Ball(), "b": Simplex()}, {"a": x, "b": np.full(2, 0.5)})
    theta, way = (x, np.full(2, 0.5)), np.array([0.25, -0.25])
    for first, want in ((d, 1.0), (-d, 1.0), (0 * d, 2.0)):
        assert float(_reach(region, (first, way), theta)) == want


def test_the_first_of_many_matrices_to_meet_a_face_ends_the_step():
    x, d = np.full((2, 3, 2), 1 / 3), np.zeros((2, 3, 2))
    for i, fall in ((0, 0.5), (1, 2.0)):
        d[i, :, 1] = [-fall, fall, 0.0]
    assert float(_reach(resolve(Columns(Simplex()), x), (d,), (x,))) == pytest.approx(1 / 6)


@pytest.mark.parametrize("correction", [AwayStep(), BlendedPairwise()], ids=repr)
def test_a_face_that_ends_at_once_is_left_by_a_vertex(correction):
    """Away from the third vertex, of weight 1e-14, the way is steep and has no length."""
    f, x = LeastSquares(np.eye(3), np.array([0.6, 0.4, -10.0])), np.array([0.5, 0.5 - 1e-14, 1e-14])
    (*_, state), (*_, plain) = (run(a, f, Simplex(), x, 1) for a in (InFaceFrankWolfe(correction), FrankWolfe()))
    assert state.iterate.theta[0] == pytest.approx(plain.iterate.theta[0], abs=1e-15)
    assert 0.52 < state.iterate.theta[0][0] < 0.68  # the objective falls up to there


# -- products and blocks -----------------------------------------------------------------------------------------------


def test_a_set_without_faces_takes_frank_wolfe_steps():
    f, x = LeastSquares(conditioned(6, 0), rng(1).normal(size=6)), np.zeros(6)
    ours, plain = (run(a, f, L2Ball(0.5), x, 30) for a in (InFaceFrankWolfe(), FrankWolfe()))
    for a, b in zip(ours, plain, strict=True):
        assert a.iterate.theta[0] == pytest.approx(b.iterate.theta[0], abs=1e-14)


# -- single precision, backends, whole problems ------------------------------------------------------------------------


def test_rounding_decides_nothing(correction):
    """Starts that are a rounding of single precision apart go through the same faces."""
    for make in (problems.dictionary, problems.atoms):
        reference = make()

        def values(theta0, reference=reference):
            how = {"over": reference.over, "algorithm": InFaceFrankWolfe(correction), "tol": 0.0, "max_iter": 20}
            return xv.solve(reference.problem, theta0, **how).trace.value

        want, draw = values(reference.theta0), rng(0)
        for _ in range(2):
            apart = reference.theta0 * (1 + 1e-8 * draw.normal(size=reference.theta0.shape))
            np.testing.assert_allclose(values(apart), want, rtol=1e-4)


def test_curvature_is_measured_by_what_a_step_lost():
    """``2 (expected - drop) / |step|^2``, of 1.5 expected along a step of length 1/2."""
    number, state = np.float64, SimpleNamespace(carrier=np.float64(1.0))
    move = SimpleNamespace(gap=number(3.0), d=(np.array([1.0, 0.0]),))
    for alpha, drop, carrier in [
        (0.5, 0.5, 8.0),
        (0.5, 1.4999, 0.5),  # at least half of the last one
        (0.0, 0.5, 1.0),
        (0.5, 0.0, 1.0),  # what rounding has eaten says nothing
        (0.5, -0.1, 1.0),
        (0.5, 1.5 * (1 - 2.0**-30), 1.0),
    ]:
        found, dropped, adds = InFaceFrankWolfe().settle(None, None, state, move, number(alpha), number(drop))
        assert (float(found), bool(dropped), float(adds)) == (pytest.approx(carrier), False, 0.0)
