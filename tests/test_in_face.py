"""Conditional gradient inside the faces of a set: linear rates without a list of atoms, and no step out of the set."""

from __future__ import annotations

import numpy as np
import pytest

import xvarpro as xv
from xvarpro.algorithms import (
    AwayStep,
    BlendedPairwise,
    FrankWolfe,
    InFaceFrankWolfe,
    InFaceGradient,
    Pairwise,
    Separate,
    Together,
)
from xvarpro.algorithms.steps import Armijo, ShortStep
from xvarpro.conformance import problems
from xvarpro.errors import ProblemError
from xvarpro.sets import Box, Columns, L1Ball, L2Ball, Simplex
from xvarpro.sets.region import resolve

from .support import rng
from .test_active_set import CASES, EPS, LeastSquares, case, conditioned, run, whole

# a full step to a vertex of a ball kills units: honest, and not what is asked here
pytestmark = pytest.mark.filterwarnings("ignore::xvarpro.DeadUnitsWarning")

CORRECTIONS = [AwayStep(), Pairwise(), BlendedPairwise(), InFaceGradient()]


@pytest.fixture(params=CORRECTIONS, ids=repr)
def correction(request):
    return request.param


# -- the rate ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", ["vertex", "inside"])
@pytest.mark.parametrize("name", CASES)
def test_linear_convergence_inside_a_face(name, start, correction):
    """To the rounding of f, where Frank-Wolfe with the same steps is not below 1e-4 after as many."""
    here, budget = case(name), 600 if name == "box" else 200
    # toward the corners of a box every entry moves at full speed: there rounding ends the search sooner
    tol = 1e-7 if name == "box" else 2e-8
    *_, last = run(InFaceFrankWolfe(correction), here.f, here.over, getattr(here, start), budget, tol)
    assert float(last.iterate.gap_A) <= tol * float(last.iterate.value)
    assert np.abs(last.iterate.theta[0] - here.best).max() <= 1e-6
    *_, plain = run(FrankWolfe(), here.f, here.over, getattr(here, start), budget, 1e-8)
    assert float(plain.iterate.gap_A) > 1e-4 * float(plain.iterate.value)


def test_the_gradient_in_the_face_needs_no_more_than_its_condition_asks():
    """Condition 10 in 20 dimensions: a hundred iterations, as many as projected gradient takes, on every polytope."""
    for name in CASES:
        here = case(name)
        states = list(run(InFaceFrankWolfe(), here.f, here.over, here.vertex, 150, 1e-8))
        assert len(states) <= 100, name


def test_rates_hold_with_every_rule(correction):
    here = case("simplex")
    L = float(np.linalg.norm(here.f.A, 2) ** 2)
    for rule in (ShortStep(L=L), Armijo(), Armijo(warm=True)):
        *_, last = run(InFaceFrankWolfe(correction, step=rule), here.f, here.over, here.vertex, 600, 1e-6)
        assert float(last.iterate.gap_A) <= 1e-6 * float(last.iterate.value), rule


def test_agrees_with_projected_gradient(correction):
    """A minimiser that is not known."""
    A, y = rng(3).normal(size=(12, 8)), 2 * rng(4).normal(size=12)
    f, x0 = LeastSquares(A, y), np.full(8, 1 / 8)
    *_, projected = run(xv.algorithms.SpectralProjectedGradient(), f, Simplex(), x0, 300, 1e-10)
    *_, last = run(InFaceFrankWolfe(correction), f, Simplex(), x0, 800, 1e-10)
    assert float(last.iterate.value) == pytest.approx(float(projected.iterate.value), rel=1e-10)


# -- the set -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_hundreds_of_steps_stay_in_the_set(name, correction):
    """A target that turns: the method never settles, changes faces all the time, and never leaves the set."""
    here = case(name, 10, 4)
    algorithm, region, turn = (
        InFaceFrankWolfe(correction),
        resolve(here.over, here.vertex),
        rng(0).normal(size=(25, 10)),
    )
    state = algorithm.init(here.f, region, (here.vertex,))
    ends = set()
    for k in range(400):
        if k % 16 == 0:
            f = LeastSquares(here.f.A, here.f.y + 3 * turn[k // 16])
            point, grad = f.value_and_gradient(state.iterate.theta)
            direction = region.blmo(point.theta, grad)
            iterate = state.iterate._replace(value=point.value, gap_A=direction.gap_A)
            state = state._replace(iterate=iterate, grad=grad, d=direction.d)
        with f.backend.scope("float64"):
            state = algorithm.advance(f, region, state)
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


@pytest.mark.parametrize("name", CASES)
def test_a_start_at_the_minimiser_stays(name, correction):
    here = case(name)
    *_, last = run(InFaceFrankWolfe(correction), here.f, here.over, here.best, 5)
    assert last.iterate.theta[0] == pytest.approx(here.best, abs=1e-7)


def test_a_minimiser_at_a_vertex_is_reached(correction):
    f = LeastSquares(np.eye(5), np.array([9.0, 0.0, 0.0, 0.0, 0.0]))
    for x0 in (np.eye(5)[3], np.full(5, 0.2), np.eye(5)[0]):
        *_, last = run(InFaceFrankWolfe(correction), f, Simplex(), x0, 60)
        assert last.iterate.theta[0] == pytest.approx(np.eye(5)[0], abs=1e-12)


def test_a_set_that_is_a_point(correction):
    f = LeastSquares(np.eye(2), np.ones(2))
    for over, x in ((Simplex(0.0), np.zeros(2)), (Box(1.5, 1.5), np.full(2, 1.5)), (L1Ball(0.0), np.zeros(2))):
        *_, last = run(InFaceFrankWolfe(correction), f, over, x, 3, until=-1.0)
        assert last.iterate.theta[0].tolist() == x.tolist()
        assert float(last.iterate.gap_A) == 0


# -- products and blocks -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("blocks", [Separate(), Together()], ids=repr)
def test_leaves_and_a_free_block(blocks, correction):
    """Two constrained leaves, one of them a matrix of simplices, and a free leaf: against the projected gradient."""
    A, y = conditioned(15, 5), 2 * rng(6).normal(size=15)
    over, theta = [L1Ball(), Columns(Simplex()), None], [np.zeros(4), np.full((3, 2), 1 / 3), np.zeros(5)]
    f, region = LeastSquares(A, y), resolve(over, theta)

    def fit(algorithm, n):
        with f.backend.scope("float64"):
            state = algorithm.init(f, region, tuple(theta))
            for _ in range(n):
                state = algorithm.advance(f, region, state)
        return state.iterate

    want = fit(xv.algorithms.SpectralProjectedGradient(), 200)
    got = fit(InFaceFrankWolfe(correction, blocks=blocks), 600)
    tol = 1e-7 if isinstance(blocks, Separate) else 1e-2
    assert float(got.value - want.value) <= tol * float(want.value)
    assert float(region.violation(got.theta)) <= 100 * EPS


def test_a_set_without_faces_takes_frank_wolfe_steps():
    f, x = LeastSquares(conditioned(6, 0), rng(1).normal(size=6)), np.zeros(6)
    ours, plain = (run(a, f, L2Ball(0.5), x, 30) for a in (InFaceFrankWolfe(), FrankWolfe()))
    for a, b in zip(ours, plain, strict=True):
        assert a.iterate.theta[0] == pytest.approx(b.iterate.theta[0], abs=1e-14)


def test_one_call_of_the_oracle_per_iteration(correction):
    here = case("simplex")
    for k, state in enumerate(run(InFaceFrankWolfe(correction), here.f, here.over, here.vertex, 30)):
        assert int(state.iterate.counts.lmos) == k + 1
        assert int(state.iterate.counts.projections) == 0


# -- single precision, backends, whole problems ------------------------------------------------------------------------


def test_rounding_decides_nothing(correction):
    """Starts that are a rounding of single precision apart go through the same faces."""
    for make in (problems.dictionary, problems.atoms):
        reference = make()

        def values(theta0, reference=reference):
            how = {"over": reference.over, "algorithm": InFaceFrankWolfe(correction), "tol": 0.0, "max_iter": 20}
            return xv.solve(reference.problem, theta0, **how).trace.value

        want, draw = values(reference.theta0), rng(0)
        for _ in range(5):
            apart = reference.theta0 * (1 + 1e-8 * draw.normal(size=reference.theta0.shape))
            np.testing.assert_allclose(values(apart), want, rtol=1e-4)


@pytest.mark.parametrize("make", problems.ALL, ids=lambda make: make.__name__)
def test_whole_problems(make, correction):
    """Feasible, certified, monotone."""
    reference, fit = make(), whole(make, InFaceFrankWolfe(correction), max_iter=150)
    assert (np.diff(fit.trace.value) <= 8 * EPS * fit.trace.value[:-1]).all()
    assert fit.verified.violation <= 100 * EPS
    value, _ = xv.value_and_gradient(reference.problem, fit.theta)
    assert fit.value == pytest.approx(float(value), rel=1e-12)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: InFaceFrankWolfe("away"), "correction must be one such as"),
        (lambda: InFaceFrankWolfe(step="armijo"), "step must be one of"),
        (lambda: InFaceFrankWolfe(blocks="together"), "blocks must be"),
    ],
)
def test_wrong_parameters(make, message):
    with pytest.raises(ProblemError, match=message):
        make()
