"""Every step rule with every way of stepping the blocks, on problems whose constants, vertices and minima are known."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import xvarpro as xv
from xvarpro.algorithms import AcceleratedProjectedGradient, FrankWolfe, Separate, Together
from xvarpro.algorithms.steps import Armijo, Constant, ExactStep, LogAdaptive, OpenLoop, ShortStep
from xvarpro.core import trees
from xvarpro.core.status import Status
from xvarpro.sets import CappedSimplex, Free, L1Ball, Simplex
from xvarpro.sets.region import resolve

from .support import Quadratic, rng, states

RULES = {
    "Armijo": Armijo(),
    "warm Armijo": Armijo(warm=True),
    "short, estimated": ShortStep(),
    "short, given": ShortStep(L=11.0),
    "short, by block": ShortStep(L=(11.0, 9.0)),
    "exact": ExactStep(),
    "exact, quadratic": ExactStep(quadratic=True),
    "open loop": OpenLoop(),
    "log-adaptive": LogAdaptive(),
    "constant": Constant(),
}
BLOCKS = [Together(), Separate()]


METHODS = {
    f"{name}, {type(blocks).__name__}": FrankWolfe(rule, blocks)
    for (name, rule), blocks in itertools.product(RULES.items(), BLOCKS)
    if not (isinstance(blocks, Together) and rule.of_block(free=True) is not rule)
}
MONOTONE = {name: method for name, method in METHODS.items() if method.step.monotone}
EPS = np.finfo(np.float64).eps

pytestmark = pytest.mark.filterwarnings("ignore::xvarpro.DeadUnitsWarning")


@pytest.fixture(params=METHODS)
def method(request):
    return METHODS[request.param]


OVER = {"a": CappedSimplex(2.0), "b": L1Ball(1.5), "x": None, "z": Free(radius=2.0)}
THETA = {"a": np.full(4, 0.25), "b": np.zeros((2, 2)), "x": np.zeros(2), "z": np.zeros(3)}
SIZES = (4, 4, 2, 3)
FREE = slice(8, 13)


def mixed(low=0.5, high=10.0, seed=0, backend=None):
    """Two constrained leaves and two free balls; eigenvalues of H from `low` to `high`."""
    Q, _ = np.linalg.qr(rng(seed).normal(size=(13, 13)))
    H = (Q * np.linspace(low, high, 13)) @ Q.T
    f = Quadratic((H + H.T) / 2, 3 * rng(seed + 1).normal(size=13), offset=20.0, backend=backend)
    leaves = tuple(f.backend.asarray(x) for x in trees.leaves(THETA))
    return f, resolve(OVER, THETA), leaves


# -- the certificate ---------------------------------------------------------------------------------------------------


def test_gap_of_a_linear_objective_at_its_optimum_is_zero():
    """At random feasible points the gap is exact, at the optimum 0."""
    f, region = Quadratic(np.zeros((5, 5)), rng(3).normal(size=5)), resolve(Simplex(), np.ones(5))
    best = np.eye(5)[np.argmax(f.b)]
    for seed in range(50):
        x = rng(seed).dirichlet(np.ones(5))
        first = next(states(FrankWolfe(), f, region, (x,), 0))
        assert float(first.gap_A) == pytest.approx(f.b @ (best - x), rel=1e-12)
        assert float(first.gap_A) >= 0
    assert float(next(states(FrankWolfe(), f, region, (best,), 0)).gap_A) == 0


def test_gap_scales_with_the_objective_and_the_radius():
    f, region, theta = mixed()
    here = next(states(FrankWolfe(), f, region, theta, 0))
    for c in (2.0**-40, 8.0, 2.0**40):
        there = next(states(FrankWolfe(), f.scaled(c), region, theta, 0))
        assert (float(there.gap_A), float(there.gap_B)) == (c * float(here.gap_A), c * float(here.gap_B))
    wide = resolve({**OVER, "x": Free(radius=4.0), "z": Free(radius=8.0)}, THETA)
    there = next(states(FrankWolfe(), f, wide, theta, 0))
    assert float(there.gap_A) == float(here.gap_A)
    assert float(there.gap_B) == 4 * float(here.gap_B)


# -- the contract ------------------------------------------------------------------------------------------------------


def test_slopes_near_rounding_are_counted():
    """A minimum that values cannot resolve: the rule asks for slopes, and each of them is counted."""
    f = Quadratic(np.diag([1.0, 3.0, 9.0]), np.zeros(3), offset=1e8)
    theta = (np.array([1e-3, 1e-3, 1e-3]),)
    *_, last = states(FrankWolfe(ShortStep()), f, resolve(None, theta[0]), theta, 60)
    assert int(last.counts.gradients) == f.gradients > 2 + 60
    assert int(last.counts.values) == f.values
    assert float(last.gap_B) <= 1e-8, "values alone stop far above"
    *_, armijo = states(FrankWolfe(Armijo()), f, resolve(None, theta[0]), theta, 60)
    assert float(armijo.gap_B) > 1e-6


@pytest.mark.parametrize(
    ("method", "setup", "values", "gradients", "lmos"),
    [
        (FrankWolfe(ShortStep(L=11.0)), 1, 1, 1, 1),
        (FrankWolfe(ShortStep(L=11.0), Separate()), 1, 2, 2, 2),
        (FrankWolfe(ShortStep(), Separate()), 3, None, 2, 2),
        (FrankWolfe(ExactStep(quadratic=True)), 1, 2, 1, 1),
        (FrankWolfe(OpenLoop()), 1, 1, 1, 1),
        (FrankWolfe(Armijo()), 1, None, 1, 1),
    ],
    ids=repr,
)
def test_cost_of_an_iteration(method, setup, values, gradients, lmos):
    """`setup` gradients to begin with, one of them for each L that has to be measured."""
    for n, iterate in enumerate(states(method, *mixed(), 12)):
        assert int(iterate.counts.gradients) == setup + gradients * n
        assert int(iterate.counts.lmos) == 1 + lmos * n
        if values:
            assert int(iterate.counts.values) == setup + values * n


@pytest.mark.parametrize("name", [n for n in METHODS if n not in MONOTONE])
def test_rules_by_the_clock_go_on_where_the_objective_rises(name):
    values = []
    for iterate in states(METHODS[name], *mixed(), 60):
        values.append(float(iterate.value))
        assert int(iterate.status) == Status.RUNNING.code
    assert (np.diff(values) > 0).any()
    assert min(values) < values[0]


# -- rates -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [n for n in METHODS if n.split(",")[0] in ("short", "exact") and not isinstance(METHODS[n].blocks, Together)],
)
def test_converges_to_a_vertex_and_a_free_minimiser(name):
    """The constrained leaf ends at a vertex, the free ones at the least squares solution for that vertex."""
    H = np.eye(6) + 0.1 * np.ones((6, 6))
    f = Quadratic(H, np.array([9.0, 0.0, 0.0, 1.0, -2.0, 0.5]))
    theta = (np.full(3, 1 / 3), np.zeros(3))
    *_, last = states(METHODS[name], f, resolve((Simplex(), None), theta), theta, 150 if "exact" in name else 500)
    z = np.linalg.solve(H[3:, 3:], f.b[3:] - H[3:, 0])
    assert last.theta[0] == pytest.approx(np.eye(3)[0], abs=1e-8)
    assert last.theta[1] == pytest.approx(z, abs=1e-6)


# -- free blocks -------------------------------------------------------------------------------------------------------


def test_a_short_step_on_a_free_ball_is_a_clipped_gradient_step():
    """It moves by ``min(radius, |g| / L)``."""
    f = Quadratic(np.diag([1.0, 4.0]), np.array([30.0, 0.0]))
    theta, region = (np.array([0.0, 1.0]),), resolve(Free(radius=2.0), np.zeros(2))
    iterates = list(states(FrankWolfe(ShortStep(L=4.0)), f, region, theta, 60))
    lengths = [np.linalg.norm(b.theta[0] - a.theta[0]) for a, b in itertools.pairwise(iterates)]
    wanted = [min(2.0, np.linalg.norm(f.H @ a.theta[0] - f.b) / 4.0) for a in iterates[:-1]]
    assert lengths == pytest.approx(wanted, rel=1e-9)
    assert lengths[0] == pytest.approx(2.0, rel=1e-14)
    assert lengths[-1] < 1e-3


def least_squares(theta, data):
    return xv.array_namespace(theta).expand_dims(data["shift"] + theta, axis=1)


def curve():
    """A free block: the direction of one column that is best for two targets."""
    problem = xv.separable(least_squares, rng(0).normal(size=(3, 2)), data={"shift": np.ones(3)})
    return problem, np.array([0.5, -0.5, 0.2])


def test_a_step_of_fixed_length_is_never_called_converged():
    problem, start = curve()
    fit = xv.solve(problem, start, over=Free(radius=0.5), algorithm=FrankWolfe(Constant(1.0)), max_iter=300, tol=1e-6)
    assert fit.status is Status.MAX_ITER
    assert not fit.success
    assert fit.gap_B > 1e-6 * fit.value


@pytest.mark.parametrize("blocks", BLOCKS, ids=repr)
def test_a_clipped_step_converges(blocks):
    problem, start = curve()
    fit = xv.solve(problem, start, over=Free(radius=0.5), algorithm=FrankWolfe(blocks=blocks), max_iter=2000, tol=1e-8)
    assert fit.status is Status.CONVERGED


# -- blocks ------------------------------------------------------------------------------------------------------------


def test_one_l_for_both_blocks_is_what_costs_most():
    """A free block with a curvature of its own: the constrained one creeps unless each has its L."""
    draw = rng(0)
    A, B = draw.normal(size=(60, 30)), 20 * draw.normal(size=(60, 8))
    M, y = np.hstack([A, B]), draw.normal(size=60) + A @ np.eye(30)[0]
    f = Quadratic(M.T @ M, M.T @ y, offset=0.5 * y @ y)
    theta = (np.full(30, 1 / 30), np.zeros(8))
    region = resolve((Simplex(), None), theta)
    L, L_A, L_B = (float(np.linalg.norm(X, 2) ** 2) for X in (M, A, B))
    *_, last = states(AcceleratedProjectedGradient(), f, region, theta, 600)
    lowest = float(last.value)

    def excess(rule, blocks):
        *_, last = states(FrankWolfe(rule, blocks), f, region, theta, 200)
        return float(last.value) - lowest

    shared = excess(ShortStep(L=L), Together())
    assert excess(ShortStep(L=(L_A, L_B)), Separate()) < 0.25 * shared


@pytest.mark.parametrize("blocks", BLOCKS, ids=repr)
def test_cap_holds_the_constrained_block_alone(blocks):
    f, region, theta = mixed()
    method = FrankWolfe(ShortStep(), blocks, cap=2.0**-10)
    iterates = list(states(method, f, region, theta, 12))[1:]
    assert max(float(i.alpha_A) for i in iterates) == 2.0**-10
    if not isinstance(blocks, Together):
        assert max(float(i.alpha_B) for i in iterates) > 2.0**-10
