"""What every algorithm promises, over all that `xvarpro.algorithms` exports: a newcomer is found by its export."""

import inspect
from functools import cache
from itertools import pairwise

import numpy as np
import pytest

import xvarpro as xv
from xvarpro import algorithms
from xvarpro.algorithms import FrankWolfe, Separate, Together, cr_varpro
from xvarpro.algorithms._polish import Way
from xvarpro.algorithms.accelerated import AcceleratedInFace
from xvarpro.algorithms.common import curvature, feasible_search
from xvarpro.algorithms.interface import Algorithm
from xvarpro.algorithms.quasi_newton import _inverse_hessian
from xvarpro.algorithms.spectral import SpectralInFace, _bounded, _length
from xvarpro.algorithms.steps import Armijo, Constant, ExactStep, OpenLoop, ShortStep
from xvarpro.core import trees
from xvarpro.core.status import Status
from xvarpro.driver.prepare import prepare
from xvarpro.errors import ProblemError
from xvarpro.sets import Box, CappedSimplex, Free, L1Ball, Simplex
from xvarpro.sets.region import resolve

from .support import Point, Quadratic, decays, dictionary_problem, dictionary_start, error, rng, states, vector

EXPORTED = [getattr(algorithms, name) for name in algorithms.__all__]
KINDS = [x for x in EXPORTED if inspect.isclass(x) and issubclass(x, Algorithm) and not inspect.isabstract(x)]
VARIANTS = {
    # Levenberg-Marquardt takes residuals, which the quadratic of these tests has not: it has a file of its own
    **{kind.__name__: kind() for kind in KINDS if kind is not algorithms.LevenbergMarquardt},
    "cr_varpro": cr_varpro(),
    "warm Armijo": FrankWolfe(Armijo(warm=True)),
    "separate": FrankWolfe(blocks=Separate()),
    "capped": FrankWolfe(Armijo(), cap=0.2),
    "monotone spectral": algorithms.SpectralProjectedGradient(memory=1),
    "quasi-Newton at once": algorithms.ProjectedQuasiNewton(settle=0),
    "quasi-Newton, accelerated": algorithms.ProjectedQuasiNewton(
        settle=3, base=algorithms.AcceleratedProjectedGradient()
    ),
    "quasi-Newton in the face at once": algorithms.InFaceQuasiNewton(settle=0),
    "quasi-Newton in the face with momentum": algorithms.InFaceQuasiNewton(momentum=True),
}
ARMIJO = [name for name, a in VARIANTS.items() if isinstance(getattr(a, "step", None), Armijo)]
# every step rule with both ways of stepping the blocks, where iterates are looked at one by one
RULES = (Armijo(warm=True), ShortStep(L=11.0), ShortStep(L=(11.0, 9.0)), ExactStep(), ExactStep(quadratic=True))
CLOCKS = (OpenLoop(), OpenLoop("log"), Constant())
STEPWISE = VARIANTS | {
    f"{rule!r}, {blocks!r}": FrankWolfe(rule, blocks)
    for rule in RULES + CLOCKS
    for blocks in (Together(), Separate())
    if isinstance(blocks, Separate) or rule.of_block(free=True) is rule
}
MONOTONE = {
    name: a
    for name, a in STEPWISE.items()
    if getattr(a, "memory", 1) == 1 and getattr(getattr(a, "step", None), "monotone", True)
}
EPS = np.finfo(np.float64).eps


# a full step to a vertex of a ball kills atoms: honest, and not what is asked here
pytestmark = pytest.mark.filterwarnings("ignore::xvarpro.DeadUnitsWarning")


DESCENDING = {name: a for name, a in VARIANTS.items() if a.certifies_every_iteration}


def quadratic(n=6, low=0.5, high=10.0, seed=0):
    Q, _ = np.linalg.qr(rng(seed).normal(size=(n, n)))
    return Quadratic((Q * np.linspace(low, high, n)) @ Q.T, 3 * rng(seed + 1).normal(size=n))


MIXED = {"x": CappedSimplex(2.0), "z": None}
START = {"x": np.full(4, 0.25), "z": np.zeros(2)}


def mixed():
    """A constrained block of 4 and a free one of 2."""
    return quadratic(6), resolve(MIXED, START), (START["x"], START["z"])


@cache
def recorded(name):
    """Forty iterates of a method on the mixed problem, each with what had been asked for by then."""
    f, region, theta = mixed()
    asked = {"lmos": 0, "projections": 0}

    class Counted(type(region)):
        def blmo(self, *args):
            asked["lmos"] += 1
            return region.blmo(*args)

        def project(self, *args):
            asked["projections"] += 1
            return region.project(*args)

    run = states(STEPWISE[name], f, Counted(**vars(region)), theta, 40)
    return [(iterate, [f.values, f.gradients, *asked.values()]) for iterate in run]


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
    if setup == 1:  # a block alone is stepped once
        *_, one = states(method, quadratic(), resolve(Simplex(2.0), np.zeros(6)), (np.full(6, 1 / 3),), 5)
        assert int(one.counts.gradients) == 1 + 5


@pytest.mark.parametrize("blocks", [Together(), Separate()], ids=repr)
@pytest.mark.parametrize("rule", CLOCKS, ids=repr)
def test_rules_by_the_clock_go_on_where_the_objective_rises(rule, blocks):
    values = []
    for iterate in states(FrankWolfe(rule, blocks), *mixed(), 60):
        values.append(float(iterate.value))
        assert int(iterate.status) == Status.RUNNING.code
    assert (np.diff(values) > 0).any()
    assert min(values) < values[0]


def test_iterates_are_feasible_certified_and_counted(subtests):
    """Both parts of the gap are of the theta that is reported with them; a monotone method does not rise."""
    f, region, _ = mixed()
    vertices = np.stack([np.zeros(4), *(2.0 * np.eye(4))])
    for name, method in STEPWISE.items():
        with subtests.test(name):
            lowest = np.inf
            for iterate, asked in recorded(name):
                assert float(region.violation(iterate.theta)) <= 100 * EPS
                x = np.concatenate(iterate.theta)
                g = f.H @ x - f.b
                gaps = ((x[:4] - vertices) @ g[:4]).max(), np.linalg.norm(g[4:])
                for gap, want in zip((iterate.gap_A, iterate.gap_B), gaps, strict=True):
                    assert abs(gap - want) <= max(1e-9 * want, 1e-12)
                value = 0.5 * x @ (g - f.b)
                assert abs(iterate.value - value) <= 1e-12 * abs(value)
                assert [int(n) for n in iterate.counts[:4]] == asked
                if isinstance(method, FrankWolfe) and asked[1] > 1:
                    assert 0 <= float(iterate.alpha_A) <= method.cap
                    assert 0 <= float(iterate.alpha_B) <= 1
                if name in MONOTONE:
                    assert float(iterate.value) <= lowest + 4 * EPS * abs(lowest if np.isfinite(lowest) else 0.0)
                lowest = float(iterate.value)


def test_converges_on_a_free_block(subtests):
    """Steps on a free block must shrink near the solution: a normalised step of fixed length never ends."""
    f = quadratic(4)
    theta, best = (np.zeros(4),), np.linalg.solve(f.H, f.b)
    for name, algorithm in DESCENDING.items():
        if name not in ARMIJO:
            with subtests.test(name):
                run = states(algorithm, f, resolve(None, theta[0]), theta, 300)
                assert any(error(i.theta[0], best) <= 1e-5 for i in run)


POLISHED = {
    "spectral": algorithms.ProjectedQuasiNewton(settle=5),
    "accelerated": algorithms.ProjectedQuasiNewton(settle=5, base=algorithms.AcceleratedProjectedGradient()),
    "in the face": algorithms.InFaceQuasiNewton(settle=5),
    "in the face, momentum": algorithms.InFaceQuasiNewton(settle=5, momentum=True),
}


def iterations(algorithm, f, region, theta, gap):
    """Until the gap is that small."""
    run = states(algorithm, f, region, theta, 1500)
    return next(n for n, iterate in enumerate(run) if float(iterate.gap_A + iterate.gap_B) <= gap)


@pytest.mark.parametrize("over", [Simplex(), L1Ball(), CappedSimplex(), Box(-0.1, 0.3)], ids=repr)
def test_a_polish_ends_a_solve_in_few_iterations(over):
    """Condition 1e4, eight digits: a small multiple of the dimension, whatever the base would take."""
    n = 20
    Q, _ = np.linalg.qr(rng(0).normal(size=(n, n)))
    f = Quadratic((Q * np.geomspace(1e-2, 1e2, n)) @ Q.T, rng(1).normal(size=n), offset=10.0)
    theta = (np.full(n, 1 / n),)
    region = resolve(over, theta[0])
    needed = {name: iterations(algorithm, f, region, theta, 1e-8) for name, algorithm in POLISHED.items()}
    assert max(needed.values()) <= 6 * n, needed
    assert needed["accelerated"] < 0.5 * iterations(POLISHED["accelerated"].first_order, f, region, theta, 1e-8)


@pytest.mark.parametrize("name", POLISHED)
def test_the_end_is_superlinear_where_the_memory_covers_the_face(name):
    """Three decays that hardly differ (Lanczos): the condition of the Hessian is beyond 1e6."""
    t = np.linspace(0.0, 1.15, 24)
    y = 0.0951 * np.exp(-t) + 0.8607 * np.exp(-3 * t) + 1.5576 * np.exp(-5 * t)
    problem = xv.separable(decays, np.round(y, 4), data={"t": t})
    fit = xv.solve(problem, np.array([0.7, 2.5, 6.0]), over=Box(0.0, 10.0), algorithm=POLISHED[name], tol=1e-8)
    assert fit.status is Status.CONVERGED
    assert fit.n_iter <= 100
    gaps = fit.trace.gap_A[-6:]
    assert np.min(gaps[1:] / gaps[:-1]) <= 0.05
    slow = xv.solve(
        problem, np.array([0.7, 2.5, 6.0]), over=Box(0.0, 10.0), algorithm=POLISHED[name].first_order, tol=1e-8,
        max_iter=150,
    )  # fmt: skip
    assert slow.status is not Status.CONVERGED


def test_a_polish_waits_until_the_face_has_settled():
    """Up to then every iterate is the base's, bit for bit."""
    f, region, theta = mixed()
    for name, algorithm in POLISHED.items():
        first, alone = (list(states(a, f, region, theta, 5)) for a in (algorithm, algorithm.first_order))
        for a, b in zip(first, alone, strict=True):
            assert vector(a.theta).tolist() == vector(b.theta).tolist(), name


@pytest.mark.parametrize(("slope", "taken"), [(-1.0, 1.0), (0.0, 0.0), (1.0, 0.0), (np.nan, 0.0)])
def test_a_search_goes_down_alone(slope, taken):
    """A constant objective on a slope of nothing: what is not known to descend is no step."""
    f, x = Quadratic(np.zeros((2, 2)), np.array([1.0, 0.0])), np.zeros(2)
    d = (np.array([1.0, 0.0]),)
    with f.backend.scope("float64"):
        numbers = map(np.asarray, (slope, 0.0, 0.0))
        alpha, point, n = feasible_search(f, (x,), d, *numbers, 1e-4, 40)
    assert (float(alpha), float(point.value), int(n)) == (taken, -taken, 1)


@pytest.mark.parametrize("limit", [1, 2, 7])
def test_a_search_ends_where_it_began_after_as_many_trials_as_it_may_make(limit):
    """An objective that rises by an amount, however short the step: each trial is half of the last one."""
    f, x = Quadratic(np.zeros((1, 1)), np.zeros(1)), np.array([3.0])
    tried, honest = [], f.point

    def risen(theta, ahead=False):
        tried.append(float(theta[0][0] - x[0]))
        return honest(theta)._replace(value=np.float64(1.0 if tried[-1] else 0.0))

    f.point = risen
    with f.backend.scope("float64"):
        numbers = map(np.asarray, (-1e-9, 0.0, 0.0))
        alpha, point, n = feasible_search(f, (x,), (np.ones(1),), *numbers, 1e-4, limit)
    assert (float(alpha), float(point.value), int(n)) == (0.0, 0.0, limit + 1)
    assert tried == pytest.approx([*(0.1**k for k in range(limit)), 0.0])


def bfgs(S, Y, first):
    """The inverse Hessian after one pair after the other (Nocedal, Wright 2006, equation 6.17)."""
    H = first * np.eye(S.shape[1])
    for s, y in zip(S, Y, strict=True):
        V = np.eye(s.size) - np.outer(y, s) / (s @ y)
        H = V.T @ H @ V + np.outer(s, s) / (s @ y)
    return H


@pytest.mark.parametrize(("theta", "far"), [(1e-3, 5.0), (3.0, 5.0), (30.0, 5.0), (0.0, 5.0), (3.0, 0.0)])
def test_the_first_curvature_is_a_difference_next_to_theta(theta, far):
    """Over eps^(1/3) of theta, or of the direction where that is shorter; rounded to a quarter of a power of 2."""
    f, seen = quadratic(), []
    x, d = theta * np.full(6, 6**-0.5), far * np.eye(6)[0]
    grad = f.gradient(f.point((x,)))
    honest = f.value_and_gradient

    def watched(at):
        seen.append(np.linalg.norm(at[0] - x))
        return honest(at)

    f.value_and_gradient = watched
    with f.backend.scope("float64"):
        found, calls = map(float, curvature(f, (x,), grad, (d,)))
    want = [EPS ** (1 / 3) * min(theta or far, far)] if far else []
    assert seen == pytest.approx(want, rel=1e-6)
    assert calls == len(seen)
    unit = abs(grad[0] @ d) / (d @ d) if far else 1.0
    want = np.linalg.norm(f.H @ d) / far if far else 1.0
    assert found == pytest.approx(unit * 2 ** (round(4 * np.log2(want / unit)) / 4), rel=1e-12)


@pytest.mark.parametrize("bad", [(), (1,), (3,), (0, 1, 2, 3)])
def test_the_compact_form_is_that_of_one_update_after_the_other(bad):
    """Pairs without curvature are left out; the newest good one sets the scale, the length of a step where none is."""
    draw = rng(0)
    S, q = draw.normal(size=(4, 7)), draw.normal(size=7)
    Y = S @ np.diag(np.linspace(0.5, 4.0, 7))
    Y[list(bad)] *= -1
    good = [i for i in range(4) if i not in bad]
    first = S[good[-1]] @ Y[good[-1]] / (Y[good[-1]] @ Y[good[-1]]) if good else 0.3
    found = _inverse_hessian(xv.backends.get("numpy"), S, Y, q, np.asarray(0.3))
    assert found == pytest.approx(bfgs(S[good], Y[good], first) @ q, rel=1e-12)
    for unit in (1e-9, 1e9):
        in_units = _inverse_hessian(xv.backends.get("numpy"), unit * S, unit * Y, q, np.asarray(0.3))
        assert in_units == pytest.approx(found, rel=1e-12)


WITHOUT_UNITS = {name: a for name, a in VARIANTS.items() if not a.has_units}


def test_units_of_the_objective_change_nothing(subtests):
    """``c f``, from 1e-12 to 1e12: the same iterates bit for bit, so there is no absolute number anywhere."""
    f, region, theta = mixed()
    for name, algorithm in WITHOUT_UNITS.items():
        with subtests.test(name):
            for c in (2.0**-40, 2.0**40):
                there = states(algorithm, Quadratic(c * f.H, c * f.b), region, theta, 15)
                for (a, _), b in zip(recorded(name)[:16], there, strict=True):
                    assert vector(a.theta).tolist() == vector(b.theta).tolist()
                    assert float(b.value) == c * float(a.value)
                    assert int(a.status) == int(b.status)


def test_units_of_theta_change_nothing(subtests):
    """``x`` in units of 1e-9 or 1e9."""
    f, theta = quadratic(), np.full(6, 0.1)
    for name, algorithm in WITHOUT_UNITS.items():
        with subtests.test(name):
            here = list(states(algorithm, f, resolve(L1Ball(), theta), (theta,), 15))
            for u in (2.0**-30, 2.0**30):
                scaled = Quadratic(f.H / u**2, f.b / u)
                there = states(algorithm, scaled, resolve(L1Ball(u), theta), (u * theta,), 15)
                for a, b in zip(here, there, strict=True):
                    assert (u * a.theta[0]).tolist() == b.theta[0].tolist()
                    assert float(a.gap_A) == float(b.gap_A)


def test_a_wrong_gradient_ends_the_search(subtests):
    f, region, theta = mixed()
    honest = f.gradient
    f.gradient = lambda point: tuple(-g for g in honest(point))
    f.value_and_gradient = lambda theta: (f.point(theta), f.gradient(Point(theta, None)))
    for name, algorithm in DESCENDING.items():
        with subtests.test(name):
            *_, last = states(algorithm, f, region, theta, 3)
            assert int(last.status) == Status.NO_DESCENT.code
            assert vector(last.theta) == pytest.approx(vector(theta))


def test_momentum_restarts_where_the_gradient_points_against_the_step():
    """From 1 a step to 0.2, or past the minimum of x^2/2 to -0.2."""
    f, theta = Quadratic(np.eye(1), np.zeros(1)), (np.ones(1),)
    method, region = algorithms.AcceleratedProjectedGradient(), resolve(Box(-4.0, 4.0), theta[0])
    state = method.init(f, region, theta)
    for end, forward in ((0.2, True), (-0.2, False)):
        ahead = state._replace(z=(np.full(1, 2 * end),), t=np.float64(2.0), L=np.float64(2 / method.shrink))
        after = method.step(f, region, ahead, None)
        assert after.iterate.theta[0] == pytest.approx(end)
        assert (float(after.t) > 2, float(after.t) == 1) == (forward, not forward)
        assert (after.z[0] == after.iterate.theta[0]) != forward


def test_a_search_that_never_ends_is_cut_off_by_its_own_limit():
    """Along a way by when its step has become 0, and before that by the trials that are allowed for a way."""
    f, region, theta = mixed()
    honest = f.gradient
    f.gradient = lambda point: tuple(-g for g in honest(point))
    f.value_and_gradient = lambda theta: (f.point(theta), f.gradient(Point(theta, None)))
    method = algorithms.AcceleratedProjectedGradient(limit=3)
    state = method.init(f, region, theta)
    uphill = tuple(-g for g in state.grad)
    for way, trials in ((None, 1 + 3), (Way(uphill, np.asarray(True), 1e-4, 5), 1 + 5)):
        f.values = 0
        with np.errstate(divide="ignore"):
            after = method.step(f, region, state, way)
        assert f.values == trials
        assert int(after.iterate.counts.values) - int(state.iterate.counts.values) == trials


@pytest.mark.parametrize("kind", ["SpectralProjectedGradient", "AcceleratedProjectedGradient"])
def test_a_step_along_a_way_may_rise_by_rounding_alone(kind):
    """Whatever the objective was before: quasi-Newton steps are monotone under a method that is not."""
    f, theta, method = Quadratic(np.eye(2), np.zeros(2)), (np.array([1.0, 0.0]),), VARIANTS[kind]
    f.rounding = lambda value: 0 * value + 0.1
    region = resolve(Box(-4.0, 4.0), theta[0])
    state = method.init(f, region, theta)
    if "recent" in state._fields:
        state = state._replace(recent=np.full_like(state.recent, 7.0))
    for rise, whole in ((-0.1, True), (0.09, True), (0.11, False)):
        d = np.array([-1 - np.sqrt(1 + 2 * rise), 0.0])  # to the other side, where the objective is 1/2 + rise
        after = method.step(f, region, state, Way((d,), np.asarray(True), 1e-9, 40))
        assert (float(after.iterate.alpha_A) == 1) == whole
        assert float(after.iterate.value) <= 0.6


def test_a_model_has_a_whole_memory_when_the_face_has_settled():
    f, theta = quadratic(), (np.full(6, 0.1),)
    region = resolve(Box(-1e3, 1e3), theta[0])
    method = algorithms.ProjectedQuasiNewton(memory=3, settle=5)
    state = method.init(f, region, theta)
    while state.calm < 5:
        state = method.advance(f, region, state)
    assert (np.abs(state.pairs).max(axis=(1, 2)) > 0).all()
    # after a model that led nowhere there is the newest pair alone
    after = method.advance(f, region, state._replace(failed=np.True_, way=((theta[0],), np.False_)))
    assert (np.abs(after.pairs).max(axis=(1, 2)) > 0).tolist() == [False, False, True]


def test_states_keep_the_precision_of_theta():
    """Every number that is carried along, from the first to the last."""
    X = rng(0).normal(size=(12, 9)).astype(np.float32)
    start = (rng(1).normal(size=(12, 4)) / 100).astype(np.float32)
    prepared = prepare(xv.separable(lambda theta, _: theta, X, lam=0.1), start, over=L1Ball())
    f = prepared.assemble(prepared.problem)
    for name, algorithm in STEPWISE.items():
        state = algorithm.init(f, prepared.region, prepared.theta)
        for _ in range(3):
            found = {str(x.dtype) for x in trees.partition(state)[0] if x.dtype.kind == "f"}
            assert found == {"float32"}, name
            state = algorithm.advance(f, prepared.region, state)


def test_a_path_to_where_it_starts_asks_for_one_vertex():
    f, region, theta = mixed()
    end, calls = SpectralInFace().nearest(f, region, theta, theta)
    assert vector(end).tolist() == vector(theta).tolist()
    assert int(calls) == 1


def test_where_an_objective_is_linear_its_slope_stands_for_its_curvature():
    for unit in (1e-9, 1.0, 1e9):
        f, theta, d = Quadratic(np.zeros((2, 2)), unit * np.array([3.0, 4.0])), (np.ones(2),), (np.array([0.0, 2.0]),)
        with np.errstate(divide="ignore"):
            assert float(curvature(f, theta, f.gradient(f.point(theta)), d)[0]) == pytest.approx(2 * unit)


def test_patience_runs_where_nothing_falls():
    """Whatever the size of the objective."""
    f, theta = Quadratic(np.eye(2), np.zeros(2), offset=1e3), (np.zeros(2),)
    region, method = resolve(Box(-1.0, 1.0), theta[0]), algorithms.ProjectedQuasiNewton()
    state = method.init(f, region, theta)
    for n in range(1, 4):
        state = method.advance(f, region, state)
        assert int(state.stalled) == n
    for n in (method.patience - 1, method.patience):
        state = method.advance(f, region, state._replace(stalled=np.float64(n - 1)))
        assert (int(state.iterate.status) == Status.STALLED.code) == (n == method.patience)


@pytest.mark.parametrize("over", [None, Box(-4.0, 4.0)])
def test_patience_ends_where_neither_value_nor_gap_falls(over):
    """A gap below half of the least one so far is progress, also where rounding has eaten what the objective falls."""
    f, theta = Quadratic(np.diag([1.0, 4.0]), np.ones(2)), (np.zeros(2),)
    region, method = resolve(over, theta[0]), algorithms.ProjectedQuasiNewton()
    state = method.init(f, region, theta)
    after = method.advance(f, region, state).iterate
    gap = float(after.gap_A + after.gap_B)
    for least, stalled in ((2.1 * gap, 0), (2 * gap, 8), (1.9 * gap, 8)):
        lowest = np.float64(-np.inf), np.float64(least)
        found = method.advance(f, region, state._replace(lowest=lowest, stalled=np.float64(7.0)))
        assert int(found.stalled) == stalled
        assert float(found.lowest[1]) == min(gap, least)


def test_patience_begins_anew_where_something_falls():
    f, region, theta = mixed()
    method = algorithms.ProjectedQuasiNewton()
    state = method.init(f, region, theta)._replace(stalled=np.float64(7.0))
    after = method.advance(f, region, state)
    assert int(after.stalled) == 0
    assert after.lowest == (after.iterate.value, min(state.lowest[1], after.iterate.gap_A + after.iterate.gap_B))
    # what has been lower before does not fall
    for value, gap in ((-1e9, 1e-9), (-1e9, 1.9 * float(after.lowest[1]))):
        state = state._replace(lowest=(np.float64(value), np.float64(gap)))
        after = method.advance(f, region, state)
        assert int(after.stalled) == 8
        assert after.lowest == (value, min(gap, float(after.iterate.gap_A + after.iterate.gap_B)))


@pytest.mark.parametrize(("share", "taken"), [(1e-3, True), (1e-10, False), (-1e-10, False), (-1.0, False)])
def test_a_model_that_leads_along_a_level_is_not_followed(monkeypatch, share, taken):
    """The cosine of its way and the steepest one: below the root of a rounding the values tell nothing."""
    f, theta = quadratic(), (np.full(6, 0.1),)
    region = resolve(Box(-1e3, 1e3), theta[0])
    method, base = algorithms.ProjectedQuasiNewton(settle=0), algorithms.SpectralProjectedGradient
    state = method.init(f, region, theta)
    (g,) = state.rest.grad
    level = np.array([g[1], -g[0], 0, 0, 0, 0]) / np.linalg.norm(g[:2])
    way = 1e-3 * (level - share * g / np.linalg.norm(g))
    monkeypatch.setattr(base, "toward", lambda *_: (way,))
    step = method.advance(f, region, method.init(f, region, theta)).iterate.theta[0] - theta[0]
    plain = base().advance(f, region, base().init(f, region, theta)).iterate.theta[0] - theta[0]
    if taken:
        assert step / np.linalg.norm(step) == pytest.approx(way / np.linalg.norm(way), rel=1e-9)
    else:
        assert step.tolist() == plain.tolist()


@pytest.mark.parametrize(("share", "taken"), [(0.45, False), (0.55, True)])
def test_a_model_is_followed_where_half_of_the_descent_is_in_the_face(share, taken):
    """The first entry is at its bound and would leave it."""
    g, theta = np.array([-((1 - share) ** 0.5), share**0.5]), np.array([0.0, 100.0])
    f, region = Quadratic(np.eye(2), theta - g), resolve(Box(0.0, 1e3), theta)
    method = algorithms.ProjectedQuasiNewton(settle=0)
    (end,) = method.advance(f, region, method.init(f, region, (theta,))).iterate.theta
    assert bool(end[0] == 0.0) == taken


def test_a_path_ends_where_the_gap_of_the_projection_is_half_of_the_squared_step():
    f, theta = Quadratic(np.eye(6), np.zeros(6)), np.eye(6)[0]
    region = resolve(Simplex(), theta)
    for seed in range(40):
        goal = theta + 0.3 * rng(seed).normal(size=6)
        (end,), calls = SpectralInFace().nearest(f, region, (goal,), (theta,))
        gap = float((end - goal) @ end - np.min(end - goal))
        assert gap <= 0.5 * float(np.sum((end - theta) ** 2)) or int(calls) == 6


def test_a_length_is_that_of_barzilai_and_borwein_or_twice_the_last_one():
    """``<s, s> / <s, y>``; along a direction that is straight, or bent down, there is no such length."""
    d, last = (np.array([3.0, 4.0]),), np.float64(0.7)
    for curved, want in ((2.0, 0.5 * 25 / 2), (0.0, 1.4), (-2.0, 1.4), (np.nan, 1.4)):
        assert float(_length(np.float64(0.5), d, np.float64(25.0), (curved * d[0] / 25,), last)) == pytest.approx(want)
    assert float(_length(np.float64(0.0), d, np.float64(25.0), d, last)) == 1.4  # after a step of nothing


def test_barzilai_and_borwein_s_steps_may_rise_below_the_worst_value_that_is_kept():
    f, theta = Quadratic(np.diag([1.0, 5.0, 30.0, 100.0]), np.zeros(4)), (np.ones(4),)
    rises = {}
    for memory in (1, 10):
        method = algorithms.SpectralProjectedGradient(memory=memory)
        values = [float(x.value) for x in states(method, f, resolve(Box(-2.0, 2.0), theta[0]), theta, 12)]
        rises[memory] = [i for i, (a, b) in enumerate(pairwise(values)) if b > a]
        assert all(values[i + 1] <= max(values[max(0, i + 1 - memory) : i + 1]) for i in rises[memory])
    assert rises[10]
    assert not rises[1]


def test_momentum_is_that_of_beck_and_teboulle():
    """``t' = (1 + sqrt(1 + 4 t^2)) / 2``, from the new point on by ``(t - 1) / t'`` of the step."""
    f, theta = Quadratic(np.diag([1.0, 3.0, 40.0]), np.zeros(3)), (np.array([1.0, -1.0, 1.0]),)
    method, region = algorithms.AcceleratedProjectedGradient(), resolve(Box(-2.0, 2.0), theta[0])
    state, seen = method.init(f, region, theta), 0
    for _ in range(8):
        (x,), t, state = state.iterate.theta, float(state.t), method.step(f, region, state, None)
        (new,), (z,) = state.iterate.theta, state.z
        if float(state.t) > 1:
            later, seen = 0.5 * (1 + (1 + 4 * t * t) ** 0.5), seen + 1
            assert float(state.t) == pytest.approx(later)
            np.testing.assert_allclose(z, new + (t - 1) / later * (new - x), rtol=1e-12)
    assert seen >= 3


def test_a_length_is_a_million_times_what_moves_at_most():
    """Theta or the last step, whichever is longer, over the gradient."""
    theta, grad = (np.array([3.0, 4.0]),), (np.array([0.0, 0.5]),)
    for dd, longest in ((0.0, 5.0), (100.0, 10.0)):
        for length in (1.0, 1e30, np.inf):
            found = float(_bounded(np.float64(length), theta, np.float64(dd), grad))
            assert found == pytest.approx(min(length, 1e6 * longest / 0.5))


@pytest.mark.parametrize("momentum", [False, True])
def test_momentum_is_that_of_the_gradient_steps(momentum):
    method = algorithms.InFaceQuasiNewton(momentum=momentum)
    assert isinstance(method.first_order, AcceleratedInFace if momentum else SpectralInFace)


def test_start_at_the_optimum_stays(subtests):
    f = Quadratic(np.eye(4), np.array([3.0, 0.0, 0.0, 0.0]))
    theta = (np.array([1.0, 0.0, 0.0, 0.0]),)
    for name, algorithm in STEPWISE.items():
        with subtests.test(name):
            for iterate in states(algorithm, f, resolve(Simplex(), theta[0]), theta, 3):
                assert float(iterate.gap_A) == 0
                assert (iterate.theta[0] == theta[0]).all()


# -- blocks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("blocks", [Together(), Separate()], ids=repr)
def test_cap_holds_the_constrained_block_alone(blocks):
    f, region, theta = mixed()
    method = FrankWolfe(ShortStep(), blocks, cap=2.0**-10)
    iterates = list(states(method, f, region, theta, 12))[1:]
    assert max(float(i.alpha_A) for i in iterates) == 2.0**-10
    if not isinstance(blocks, Together):
        assert max(float(i.alpha_B) for i in iterates) > 2.0**-10


def test_separate_steps_the_free_block_first_and_the_other_from_its_gradient():
    f, region, theta = mixed()
    *_, after = states(FrankWolfe(ShortStep(L=float(f.L)), Separate()), f, region, theta, 1)
    g = f.gradient(Point(theta, None))
    gap = np.linalg.norm(g[1])
    z = theta[1] - min(1.0, gap / f.L) * g[1] / gap
    assert after.theta[1] == pytest.approx(z, rel=1e-13)
    g = f.gradient(Point((theta[0], z), None))[0]
    d = CappedSimplex(2.0).lmo(g) - theta[0]
    assert after.theta[0] == pytest.approx(theta[0] + min(1.0, -(g @ d) / (f.L * (d @ d))) * d, rel=1e-13)


# -- free blocks -------------------------------------------------------------------------------------------------------


def test_a_short_step_on_a_free_ball_is_a_clipped_gradient_step():
    """It moves by ``min(radius, |g| / L)``."""
    f = Quadratic(np.diag([1.0, 4.0]), np.array([30.0, 0.0]))
    theta, region = (np.array([0.0, 1.0]),), resolve(Free(radius=2.0), np.zeros(2))
    iterates = list(states(FrankWolfe(ShortStep(L=4.0)), f, region, theta, 60))
    lengths = [np.linalg.norm(b.theta[0] - a.theta[0]) for a, b in pairwise(iterates)]
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


# -- on real problems, compiled and everywhere -------------------------------------------------------------------------

L1 = L1Ball(4.0)


def test_the_default_follows_the_sets():
    class NoProjection(type(L1)):  # faces, and an LMO
        project, slide = xv.sets.Set.project, xv.sets.Set.slide

    class LMOAlone(NoProjection):
        tangent = xv.sets.Set.tangent

    class Smooth(LMOAlone):
        polytope = False

    choose = algorithms.choose
    nuclear = xv.sets.ShiftScale(xv.sets.NuclearBall())
    for sets, size in (([L1], 1_000), ([nuclear], 100_000)):
        assert choose(sets, size) == algorithms.ProjectedQuasiNewton(base=algorithms.SpectralProjectedGradient())
    accelerated = algorithms.AcceleratedProjectedGradient()
    for sets, size, free in (([L1], 1_001, False), ([L1], 10_000, False), ([L1], 100, True), ([L1], 10_000, True)):
        assert choose(sets, size, free) == algorithms.ProjectedQuasiNewton(base=accelerated)
    spectral = algorithms.SpectralProjectedGradient()
    for sets, size in (([], 100), ([L1], 10_001)):
        assert choose(sets, size, True) == algorithms.ProjectedQuasiNewton(memory=5, settle=0, base=spectral)
    assert choose([xv.sets.L2Ball(), xv.sets.ShiftScale(xv.sets.Ellipsoid())], 5_000) == spectral
    assert choose([xv.sets.L2Ball(), L1], 100) == algorithms.ProjectedQuasiNewton(base=spectral)
    balls = xv.sets.Columns(xv.sets.NonnegativeL2Ball())
    assert choose([L1], 10_001) == choose([balls], 2_000) == choose([nuclear, balls], 2_000) == accelerated
    assert choose([L1], 16, jacobian=True) == algorithms.LevenbergMarquardt() != choose([L1], 17, jacobian=True)
    two = choose([L1], 16, jacobian=True, two_levels=True)
    assert two == algorithms.ProjectedQuasiNewton(base=accelerated)
    assert choose([nuclear], 16, two_levels=True) == choose([nuclear], 16)
    assert choose([], 2, True, True, two_levels=True) == algorithms.LevenbergMarquardt()
    assert choose([L1, NoProjection()], 2) == algorithms.InFaceQuasiNewton()
    assert choose([L1, NoProjection()], 2, True) == algorithms.InFaceQuasiNewton(momentum=True)
    assert choose([L1, LMOAlone()], 2) == algorithms.ActiveSetFrankWolfe()
    assert choose([L1, Smooth()], 2) == FrankWolfe(blocks=algorithms.Separate())
    for over in (L1, NoProjection(), LMOAlone(), Smooth()):
        fit = xv.solve(dictionary_problem(), dictionary_start(), over=over, max_iter=3)
        assert fit.algorithm == repr(choose([over], dictionary_start().size))


def test_projection_methods_refuse_a_set_without_projection():
    class NoProjection(type(L1)):
        project = xv.sets.Set.project

    for kind in KINDS:
        if kind().needs_projection:
            with pytest.raises(ProblemError, match=r"NoProjection.* projection.*algorithm= out, for InFace"):
                xv.solve(dictionary_problem(), dictionary_start(), over=NoProjection(), algorithm=kind(), max_iter=2)
