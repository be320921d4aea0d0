"""Conditional gradient with corrections: linear rates in every form; over a list of atoms also its bookkeeping."""

from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest

from xvarpro import backends
from xvarpro.algorithms import (
    ActiveSetFrankWolfe,
    AwayStep,
    BlendedPairwise,
    FrankWolfe,
    InFaceFrankWolfe,
    InFaceGradient,
    Pairwise,
)
from xvarpro.algorithms.steps import Armijo, ShortStep
from xvarpro.core.status import Status
from xvarpro.objective.interface import Objective
from xvarpro.sets import Box, CappedSimplex, Columns, L1Ball, Simplex
from xvarpro.sets.region import resolve

from .support import Point, rng

# a full step to a vertex of a ball kills units: honest, and not what is asked here
pytestmark = pytest.mark.filterwarnings("ignore::xvarpro.DeadUnitsWarning")

EPS = np.finfo(np.float64).eps
CORRECTIONS = [AwayStep(), Pairwise(), BlendedPairwise()]
METHODS = [
    *(ActiveSetFrankWolfe(correction) for correction in CORRECTIONS),
    *(InFaceFrankWolfe(correction) for correction in (*CORRECTIONS, InFaceGradient())),
]


class LeastSquares:
    """``1/2 |A x - y|^2`` in the place of a reduced objective: exact to the rounding of its value."""

    exact = True

    def __init__(self, A, y):
        self.backend, self.A, self.y = backends.get("numpy"), A, y

    def point(self, theta, ahead=False):
        r = self.A @ np.concatenate([x.ravel() for x in theta]) - self.y
        return Point(theta, 0.5 * (r @ r))

    probed = Objective.probed

    def rounding(self, value):
        return 4 * np.finfo(value.dtype).eps * abs(value)

    def gradient(self, point):
        g = self.A.T @ (self.A @ np.concatenate([x.ravel() for x in point.theta]) - self.y)
        cuts = np.cumsum([x.size for x in point.theta])[:-1]
        return tuple(part.reshape(x.shape) for part, x in zip(np.split(g, cuts), point.theta, strict=True))

    def value_and_gradient(self, theta):
        point = self.point(theta)
        return point, self.gradient(point)


class Case(NamedTuple):
    """A strongly convex problem whose minimiser over the set is known, inside a face."""

    over: Any
    f: LeastSquares
    best: np.ndarray
    vertex: np.ndarray
    inside: np.ndarray


def conditioned(n, seed, high=10.0):
    draw = rng(seed)
    U, _ = np.linalg.qr(draw.normal(size=(n, n)))
    V, _ = np.linalg.qr(draw.normal(size=(n, n)))
    return (U * np.sqrt(np.linspace(1.0, high, n))) @ V.T


def case(name, n=20, k=7, seed=0):
    """The gradient at the minimiser is a multiplier that belongs to the face, strictly."""
    draw, A = rng(seed), conditioned(n, seed)
    weights = np.concatenate([draw.uniform(0.5, 1.5, k), np.zeros(n - k)])
    weights /= weights.sum()
    off = np.where(weights > 0, 0.0, draw.uniform(0.3, 1.0, n))
    signs = np.where(np.arange(n) % 2, 1.0, -1.0)
    last = np.eye(n)[n - 1]
    if name == "simplex":
        over, best, multiplier, vertex, inside = Simplex(), weights, off - 0.2, last, np.full(n, 1 / n)
    elif name == "capped simplex":
        over, best, multiplier, vertex, inside = CappedSimplex(), weights, off - 0.5, last, np.full(n, 0.5 / n)
    elif name == "l1 ball":
        over, best, multiplier = L1Ball(), signs * weights, signs * np.where(weights > 0, -1.0, off - 0.9)
        vertex, inside = -last, np.zeros(n)
    else:
        over, vertex, inside = Box(-1.0, 1.0), -np.ones(n), np.zeros(n)
        best = np.where(weights > 0, signs, draw.uniform(-0.5, 0.5, n))
        multiplier = np.where(weights > 0, -signs, 0.0)
    return Case(over, LeastSquares(A, A @ best - np.linalg.solve(A.T, multiplier)), best, vertex, inside)


CASES = ["simplex", "capped simplex", "l1 ball", "box"]


def run(algorithm, f, over, theta, n, until=0.0):
    """States 0 to at most n: ends where the gap is below `until` times the objective, or where nothing moves."""
    theta = tuple(theta) if isinstance(theta, tuple | list) else (theta,)
    region = resolve(over, theta if len(theta) > 1 else theta[0])
    with f.backend.scope("float64"):
        state = algorithm.init(f, region, theta)
        yield state
        for _ in range(n):
            gap = float(state.iterate.gap_A + state.iterate.gap_B)
            if gap <= until * float(state.iterate.value) or int(state.iterate.status):
                return
            state = algorithm.advance(f, region, state)
            yield state


def summed(state):
    return [np.tensordot(w, a, axes=1) for a, w in zip(state.carrier.atoms, state.carrier.weights, strict=True)]


def sound(state, over, rounds=200):
    """What holds after every step: a point of the set; weights of a mean, atoms of the set, the iterate their mean."""
    assert float(over.violation(state.iterate.theta[0])) <= rounds * EPS
    if not hasattr(state.carrier, "atoms"):
        return
    for x, total, atoms, w in zip(
        state.iterate.theta, summed(state), state.carrier.atoms, state.carrier.weights, strict=False
    ):
        assert (w >= 0).all()
        assert w.sum() == pytest.approx(1.0, abs=4 * w.size * EPS)
        size = np.abs(atoms).max()
        assert np.abs(total - x).max() <= rounds * EPS * size
        for atom in atoms[w > 0]:
            assert float(over.violation(atom)) <= rounds * EPS


@pytest.fixture(params=CORRECTIONS, ids=repr)
def correction(request):
    return request.param


@pytest.fixture(params=METHODS, ids=lambda method: f"{type(method).__name__}({method.correction})")
def method(request):
    return request.param


# -- the rate ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", ["vertex", "inside"])
@pytest.mark.parametrize("name", CASES)
def test_linear_convergence_inside_a_face(name, start, method):
    """To the rounding of f, where Frank-Wolfe with the same steps is not below 1e-4 after as many."""
    here = case(name)
    budget = 600 if name == "box" else 200
    theta = getattr(here, start)
    # along a difference d of vertices f falls by `gap^2 / (2 L |d|^2)`, which has to show in values: 6e-7 on the box
    L, value = np.linalg.norm(here.f.A, 2) ** 2, here.f.point((here.best,)).value
    tol = float(np.sqrt(2 * L * here.over.diameter(theta) ** 2 * EPS / value))
    *_, last = run(method, here.f, here.over, theta, budget, tol)
    assert float(last.iterate.gap_A) <= tol * float(last.iterate.value)
    assert np.abs(last.iterate.theta[0] - here.best).max() <= 1e-6
    assert left_by_frank_wolfe(name, start, budget) > 1e-4
    sound(last, here.over)


@cache
def left_by_frank_wolfe(name, start, budget):
    here = case(name)
    *_, plain = run(FrankWolfe(), here.f, here.over, getattr(here, start), budget, 1e-8)
    return float(plain.iterate.gap_A) / float(plain.iterate.value)


def test_rates_hold_with_every_rule(method):
    here = case("simplex")
    L = float(np.linalg.norm(here.f.A, 2) ** 2)
    for rule in (ShortStep(L=L), Armijo(), Armijo(warm=True)):
        *_, last = run(replace(method, step=rule), here.f, here.over, here.vertex, 600, 1e-6)
        assert float(last.iterate.gap_A) <= 1e-6 * float(last.iterate.value), rule


# -- the bookkeeping ---------------------------------------------------------------------------------------------------


def test_a_point_that_has_drifted_is_summed_again_before_it_moves(correction):
    here = case("simplex")
    *_, state = run(ActiveSetFrankWolfe(correction), here.f, here.over, here.vertex, 5)
    theta, carrier = state.iterate.theta[0], state.carrier
    drifted = state._replace(
        iterate=state.iterate._replace(theta=(theta + 1e-9 * here.best,)),
        carrier=carrier._replace(drift=np.float64(1e9), stale=np.True_),
    )
    region = resolve(here.over, theta)
    with here.f.backend.scope("float64"):
        after = ActiveSetFrankWolfe(correction).advance(here.f, region, drifted)
    assert np.abs(summed(after)[0] - after.iterate.theta[0]).max() <= 50 * EPS


def turning(algorithm, here, times, steps):
    """States toward a target that turns after so many steps: the method never settles."""
    region = resolve(here.over, here.vertex)
    state, turn = algorithm.init(here.f, region, (here.vertex,)), 3 * rng(0).normal(size=(times, here.vertex.size))
    for y in turn:
        f = LeastSquares(here.f.A, here.f.y + y)
        point, grad = f.value_and_gradient(state.iterate.theta)
        direction = region.blmo(point.theta, grad)
        iterate = state.iterate._replace(value=point.value, gap_A=direction.gap_A)
        state = state._replace(iterate=iterate, grad=grad, d=direction.d)
        with f.backend.scope("float64"):
            for _ in range(steps):
                state = algorithm.advance(f, region, state)
                yield state


@pytest.mark.parametrize("capacity", [3, 30])
def test_hundreds_of_steps_leave_no_trace_of_rounding(correction, capacity):
    here = case("simplex", 10, 4)
    *_, state = turning(ActiveSetFrankWolfe(correction, capacity=capacity), here, 15, 20)
    sound(state, here.over)


def test_a_drop_step_empties_a_slot(correction):
    """The start is the one atom that the minimiser has no use for."""
    here = case("simplex")
    states = list(run(ActiveSetFrankWolfe(correction), here.f, here.over, here.vertex, 200, 1e-8))
    counts = [int((s.carrier.weights[0] > 0).sum()) for s in states]
    assert counts[0] == 1
    assert (np.diff(counts) < 0).any() or isinstance(correction, Pairwise)
    last = states[-1].carrier
    kept = last.atoms[0][last.weights[0] > 0]
    assert (np.abs(kept - here.vertex).max(axis=1) > 0.5).all(), "the start is gone"
    assert sorted(np.argmax(kept, axis=1)) == list(range(7)), "and each vertex of the face is there once"


def test_a_dropped_atom_does_not_come_back_by_itself():
    """Weight 0 is an empty slot: it is neither the worst nor the best atom, whatever its array says."""
    here = case("simplex")
    algorithm, region = ActiveSetFrankWolfe(AwayStep()), resolve(here.over, here.vertex)
    *_, state = run(algorithm, here.f, here.over, here.vertex, 60, 1e-8)
    carrier, grad = state.carrier, state.grad
    empty = carrier.weights[0] == 0
    assert empty.any()
    poisoned = np.where(empty[:, None], 1e6 * np.sign(grad[0]), carrier.atoms[0])
    before, after = (
        algorithm.move(here.f, region, state._replace(carrier=carrier._replace(atoms=(atoms,))))
        for atoms in (carrier.atoms[0], poisoned)
    )
    assert before.d[0].tolist() == after.d[0].tolist()
    assert float(before.cap) == float(after.cap)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("capacity", [2, 5])
def test_a_full_set_merges_its_lightest_atoms(name, capacity, correction):
    """Nothing is lost but the rate: the identity, feasibility and descent stay."""
    here = case(name)
    previous = np.inf
    for state in run(ActiveSetFrankWolfe(correction, capacity=capacity), here.f, here.over, here.vertex, 60):
        sound(state, here.over)
        assert (state.carrier.weights[0] > 0).sum() <= capacity
        assert float(state.iterate.value) <= previous * (1 + 8 * EPS)
        previous = float(state.iterate.value)
    *_, plain = run(FrankWolfe(), here.f, here.over, here.vertex, 60)
    lowest = float(here.f.point((here.best,)).value)
    excess, plain_excess = (float(s.iterate.value) - lowest for s in (state, plain))
    assert excess <= 2 * plain_excess
    if capacity == 2 and not isinstance(correction, Pairwise):
        assert excess == pytest.approx(plain_excess, rel=1e-6), "two slots are plain Frank-Wolfe"


# -- starts ------------------------------------------------------------------------------------------------------------


def test_a_set_that_is_a_point(method):
    f = LeastSquares(np.eye(2), np.ones(2))
    for over, x in ((Simplex(0.0), np.zeros(2)), (Box(1.5, 1.5), np.full(2, 1.5)), (L1Ball(0.0), np.zeros(2))):
        *_, last = run(method, f, over, x, 3, until=-1.0)
        assert last.iterate.theta[0].tolist() == x.tolist()
        assert float(last.iterate.gap_A) == 0
        assert int(last.iterate.status) == Status.NO_DESCENT.code


# -- products and blocks -----------------------------------------------------------------------------------------------


def test_every_leaf_is_the_mean_of_its_atoms_after_every_step(correction):
    """One step length for all leaves: the first atom that is used up ends it."""
    theta, method = (np.full(4, 0.25), np.zeros(5)), ActiveSetFrankWolfe(correction)
    region, dropped = resolve([Simplex(), L1Ball()], list(theta)), 0
    for seed in range(4):
        f = LeastSquares(conditioned(9, seed), 2 * rng(seed).normal(size=9))
        state = method.init(f, region, theta)
        for _ in range(30):
            held = [w > 0 for w in state.carrier.weights]
            state = method.advance(f, region, state)
            dropped += sum(bool((was & (w == 0)).any()) for was, w in zip(held, state.carrier.weights, strict=True))
            for x, total in zip(state.iterate.theta, summed(state), strict=True):
                assert total == pytest.approx(x, abs=50 * EPS)
    assert dropped


def test_rounding_grows_as_a_step_away_stretches_what_is_left():
    """``x + alpha (x - a)`` is off by ``1 + alpha`` times what x was, and by a rounding more; other steps by that."""
    x, f = np.array([0.2, 0.3, 0.5]), LeastSquares(np.eye(3), np.array([9.0, 0.0, 1.0]))
    for correction, way in ((AwayStep(), 1), (Pairwise(), 0)):
        method, region = ActiveSetFrankWolfe(correction), resolve(Simplex(), x)
        *_, state = run(method, f, Simplex(), x, 3)
        state = state._replace(carrier=state.carrier._replace(drift=np.float64(5.0)))
        move = method.move(f, region, state)
        mix = move.detail.mix._replace(vertex=np.float64(1 - way), away=np.float64(1.0), inner=np.float64(0.0))
        move = move._replace(detail=move.detail._replace(mix=mix))
        carrier, *_ = method.settle(f, region, state, move, np.float64(0.25), np.float64(1.0))
        assert float(carrier.drift) == 5.0 * (1 + 0.25 * way) + 1


def test_to_use_up_an_atom_is_progress_however_short_the_step():
    """Of many slots one is enough; an atom that keeps weight, or a direction of zeros, is none."""
    here = case("simplex")
    method, region = ActiveSetFrankWolfe(Pairwise()), resolve(here.over, here.inside)
    *_, state = run(method, here.f, here.over, here.inside, 5)
    move = method.move(here.f, region, state)
    cap, still = float(move.cap), move._replace(d=tuple(0 * d for d in move.d))
    for way, alpha, want in ((move, cap, True), (move, 0.5 * cap, False), (still, cap, False)):
        _, dropped, _ = method.settle(here.f, region, state, way, np.float64(alpha), np.float64(0.0))
        assert bool(dropped) == want


def test_a_move_promises_what_it_descends_and_leaves_free_leaves_alone():
    theta = np.eye(4)[0], np.full((3, 2), 1 / 3), np.zeros(5)
    f = LeastSquares(conditioned(15, 5), 2 * rng(6).normal(size=15))
    region = resolve([L1Ball(), Columns(Simplex()), None], list(theta))
    for method in METHODS:
        state = method.init(f, region, theta)
        for _ in range(6):
            move = method.move(f, region, state)
            assert (move.d[2] == 0).all(), method
            slope = sum(np.sum(g * d) for g, d in zip(state.grad, move.d, strict=True))
            assert float(move.gap) == pytest.approx(-slope, rel=1e-9, abs=1e-12), method
            end = tuple(x + move.cap * d for x, d in zip(state.iterate.theta, move.d, strict=True))
            assert float(region.violation(end)) <= 100 * EPS, method
            state = method.advance(f, region, state)


def test_without_constraints_it_is_the_ball_step(correction):
    f, z = LeastSquares(conditioned(4, 0), rng(1).normal(size=4)), np.zeros(4)
    # one after the other: scopes that are left in another order would leave NumPy's settings changed
    ours, plain = (list(run(method, f, None, z, 20)) for method in (ActiveSetFrankWolfe(correction), FrankWolfe()))
    for a, b in zip(ours, plain, strict=True):
        assert a.iterate.theta[0].tolist() == b.iterate.theta[0].tolist()


def test_a_vertex_costs_a_call_of_its_own(correction):
    """One LMO for the certificate, one more where a vertex joins the atoms."""
    here = case("simplex")
    for k, state in enumerate(run(ActiveSetFrankWolfe(correction), here.f, here.over, here.vertex, 30)):
        assert k + 1 <= int(state.iterate.counts.lmos) <= 2 * k + 1
        assert int(state.iterate.counts.projections) == 0
