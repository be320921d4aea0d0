"""What a solve looks at where its method has ended: known objectives, and methods that say what they are told."""

import time
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

import xvarpro as xv
from xvarpro.algorithms.common import arrived, start
from xvarpro.algorithms.interface import Iterate
from xvarpro.core.status import Status
from xvarpro.driver import run
from xvarpro.driver.iteration import Program
from xvarpro.driver.prepare import prepare
from xvarpro.objective.decrease import free_decrease
from xvarpro.sets import Box

EPS = np.finfo(np.float64).eps
NEAR = 1e-7  # relative, on either side of a threshold


EITHER = ((1 - NEAR, Status.CONVERGED), (1 + NEAR, Status.NO_DESCENT))


def total(x):
    return xv.array_namespace(x).sum(x)


class State(NamedTuple):
    iterate: Iterate


@dataclass(frozen=True)
class Told(xv.algorithms.Algorithm):
    """Goes by `step` in every iteration; what a model promises after the first one, and its matrix, are given."""

    step: Any = 0.0
    decrease: Any = 1e3  # None for a method without a model
    slack: float = 0.0
    matrix: Any = None
    status: Status = Status.NO_DESCENT
    monotone: bool = True
    forgets: bool = False  # what a model has promised, so that every certificate is in doubt

    def init(self, f, region, theta):
        iterate, *_ = start(f, region, theta)
        return State(iterate if self.decrease is None else iterate._replace(decrease=0 * iterate.value + 1e3))

    def advance(self, f, region, state):
        it = state.iterate
        it, *_ = arrived(f, region, it, f.point(tuple(x + self.step for x in it.theta)), 1)
        if self.decrease is not None:
            it = it._replace(decrease=0 * it.value + self.decrease)
        if self.forgets:
            it = it._replace(bend=0 * it.bend)
        return State(it._replace(slack=it.slack + self.slack, status=0 * it.status + self.status.code))

    def gauss_newton(self, state):
        return self.matrix


def fitted(R, y=1.0, dtype="float64"):
    """``f(theta) = y^2 + R(theta)``: the residual of a constant to a target without a mean is the target."""

    def ones(theta, data):
        return 0 * xv.array_namespace(theta).reshape(theta[:1], (1, 1)) + data

    y = y * np.array([1.0, -1.0], dtype=dtype)
    return xv.separable(ones, y, data=np.ones((2, 1), dtype=dtype), R=R, mu=2.0)


def solved(R, theta0, method=None, over=None, y=1.0, **options):
    dtype = options.get("dtype", "float64")
    problem = fitted(R, y, dtype)
    return xv.solve(problem, np.asarray(theta0, dtype=dtype), over, algorithm=method or Told(), **options)


def bowl(value, bends, away):
    """A quadratic function with its minimum at (1, 1, ...) and `value` where it is asked: a start, and less ``1``."""
    bends, theta0 = np.atleast_1d(bends), 1.0 + np.atleast_1d(away)

    def R(theta):
        xp = xv.array_namespace(theta)
        H, d = (np.asarray(x, dtype=theta.dtype) for x in (bends, theta0 - 1.0))
        return value - 1.0 + 0.5 * xp.sum(H * ((theta - 1.0) ** 2 - d**2))

    return R, theta0


# -- an end without descent, at a minimum ------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [1.0, -1.0, 3.0, -0.25])
def test_what_is_left_within_the_tolerance_is_convergence(value):
    """``tol^2 |f|``, as for every method, whatever its own model promises."""
    tol, bend = 1e-2, 0.25 * abs(value)
    away = np.sqrt(2 * tol**2 * abs(value) / bend)
    for factor, status in EITHER:
        assert solved(*bowl(value, bend, factor * away), tol=tol).status is status


@pytest.mark.parametrize(("value", "least"), [(4.0, 2e-2), (0.25, 2.5e-3)])
def test_in_a_face_that_is_no_box_gap_and_parabolas_decide(value, least):
    """On the middle of an edge, away from its minimum: the gap is `away`, what is left its square."""
    for away, status in ((factor * least, status) for factor, status in EITHER):

        def R(theta, away=away):
            return value - 1.0 + away * (theta[1] - theta[0]) + 0.5 * total((theta - 0.5) ** 2)

        fit = solved(R, [0.5, 0.5], over=xv.sets.Simplex(), tol=1e-2)
        assert fit.gap_A == pytest.approx(away)
        assert fit.status is status


@pytest.mark.parametrize("value", [1.0, -1.0, 3.0, -0.25])
def test_descent_has_come_to_its_end_where_the_slope_is_below_the_tolerance(value):
    """It is measured by the size of theta, which is 1 and the distance."""
    tol, bend = 1e-2, 4.0 * abs(value)
    away = 0.5 * (np.sqrt(1 + 4 * tol * abs(value) / bend) - 1)
    for factor, status in EITHER:
        assert solved(*bowl(value, bend, factor * away), tol=tol).status is status


def test_what_is_left_within_rounding_is_rounding():
    slope = np.sqrt(EPS)
    for tol, bend, factor, status in (
        (0.0, 0.25, 1 - 1e-6, Status.ROUNDING),
        (0.0, 0.25, 1 + 1e-6, Status.NO_DESCENT),
        (1e-7, 0.25, 1 + 1e-6, Status.CONVERGED),
        (0.0, 0.01, 0.9, Status.NO_DESCENT),
    ):
        assert solved(*bowl(1.0, bend, factor * slope / bend), tol=tol).status is status


def test_a_gap_that_is_open_is_closed_by_a_step_to_the_lowest_point():
    tol, bend, width = 1e-2, 0.25, 10.0
    away = 0.5 * (np.sqrt(width**2 + 4 * tol / bend) - width)  # to the far bound it is the width more
    over = Box(1.0 - width, 1.0 + width)
    for factor, moved in ((1 - NEAR, False), (1 + NEAR, True)):
        R, theta0 = bowl(1.0, bend, factor * away)
        fit = solved(R, theta0, over=over, tol=tol)
        assert fit.status is Status.CONVERGED
        np.testing.assert_allclose(fit.theta, 1.0 if moved else theta0, rtol=1e-9)


def test_what_oracles_may_hide_of_a_gap_is_open():
    for slack, status in ((0.9e-2, Status.CONVERGED), (1.1e-2, Status.NO_DESCENT)):
        assert solved(*bowl(1.0, 0.25, 1e-3), Told(slack=slack), tol=1e-2).status is status


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_gap_of_rounding_is_closed(dtype):
    """Four units in the last place from the minimum: a gap of an epsilon."""
    R, theta0 = bowl(1.0, 0.25, 4 * float(np.finfo(dtype).eps))
    assert solved(R, theta0, over=Box(0.0, 2.0), tol=0.0, dtype=dtype).status is Status.ROUNDING
    # relative to the objective at the start, where that is more than the target; else a step leads to the minimum
    for value, status in ((-16.0, Status.ROUNDING), (-4.0, Status.CONVERGED)):
        R, theta0 = bowl(value, 20.0, 4 * float(np.finfo(dtype).eps))
        assert solved(R, theta0, over=Box(0.0, 2.0), tol=0.0, dtype=dtype).status is status


def test_a_look_is_taken_in_the_precision_and_on_the_device_of_the_solve():
    seen = set()

    def R(theta):
        seen.add((str(theta.dtype), str(theta.device)))
        return 0.5 * (theta[0] - 1.0) ** 2

    fit = solved(R, [1.001], tol=1e-2, backend="array-api-strict", device="device1", dtype="float32")
    assert fit.status is Status.CONVERGED
    assert seen == {("array_api_strict.float32", "array_api_strict.Device('device1')")}


@pytest.mark.parametrize(("size", "looks"), [(64, True), (65, False)])
def test_few_parameters_are_looked_at(size, looks):
    fit = solved(*bowl(1.0, np.ones(size), np.full(size, 1e-4)), tol=1e-2)
    assert (fit.counts.gradients > 2) is looks


class Clock:
    """Goes on by a second whenever the objective is computed, which is told after the start."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr(run, "time", SimpleNamespace(perf_counter=lambda: self.now))

    def of(self, R):
        def slow(theta):
            self.now += 1.0
            return R(theta)

        return slow


@pytest.mark.parametrize(("bend", "limit"), [(2.0, 2.5), (-1e-3, 2.5), (-1e-3, 6.5)])
def test_a_look_ends_at_the_time_limit(bend, limit, monkeypatch):
    """In the gradients around a minimum, and in the steps from a saddle."""
    clock = Clock(monkeypatch)
    R, theta0 = bowl(1.0, [1.0, bend], [1e-4, 0.0])
    whole = solved(clock.of(R), theta0, tol=1e-2).counts.gradients
    fit = solved(clock.of(R), theta0, tol=1e-2, time_limit=limit)
    assert fit.status is Status.NO_DESCENT
    assert fit.counts.gradients < min(whole, limit + 3)


def test_entries_are_measured_by_where_they_began():
    """The slope of what has gone to almost nothing is not nothing."""
    for began, status in ((0.9, Status.CONVERGED), (1.1, Status.NO_DESCENT)):
        method = Told(step=1e-4 - began)
        fit = solved(lambda theta: 0.5 * total((theta - 0.01) ** 2), [began], method, tol=1e-2 * (1 - 1e-4 / 0.01))
        assert fit.theta == pytest.approx([1e-4], rel=1e-6)
        assert fit.status is status


def test_entries_that_are_zero_are_measured_by_the_others():
    sizes, slope = np.array([3.0, 0.6, 1.2]), np.array([0.002, 0.004, 0.001])  # in the place of 0 the mean of all
    for factor, status in EITHER:

        def R(theta, slope=factor * slope):
            change = theta - np.array([-3.0, 0.6, 0.0])
            return total(slope * change) + 0.5 * total(change**2)

        assert solved(R, [-3.0, 0.6, 0.0], tol=np.linalg.norm(sizes * slope)).status is status


def test_where_all_entries_are_zero_they_are_measured_by_1():
    for factor, status in EITHER:
        slope = factor * 0.01
        fit = solved(lambda theta, slope=slope: slope * total(theta + 50 * theta**2), [0.0], tol=0.01)
        assert fit.status is status


def test_the_work_of_a_look_is_counted():
    fit = solved(*bowl(1.0, [1.0, 2.0], [1e-3, 1e-3]), tol=1e-2)
    assert fit.status is Status.CONVERGED
    c = fit.counts
    assert (c.values, c.gradients, c.lmos, c.projections) == (1 + 1 + 3, 1 + 1 + 3, 2, 0)
    c = solved(*bowl(1.0, [1.0, -1e-3], [0.0, 0.0]), tol=1e-2).counts
    assert (c.values, c.gradients, c.lmos) == (1 + 1 + 3 + 10, 1 + 1 + 3 + 10, 2 + 10)


@pytest.mark.parametrize("value", [1.0, -1.0, 3.0])
def test_a_saddle_is_left_for_a_point_that_is_lower_by_more_than_the_tolerance(value):
    """Steps of half of theta: an eighth of the curvature."""
    bend = 0.1
    for factor, iterations in ((1 - NEAR, 3), (1 + NEAR, 1)):
        tol = factor * bend / 8 / abs(value)
        fit = solved(*bowl(value, -bend, 0.0), tol=tol, max_iter=100)
        assert fit.n_iter == iterations
        if iterations == 3:
            assert fit.trace.value == pytest.approx([value] * 2 + [value - bend / 8] * 2, rel=1e-7)
            # two starts with an iteration each, and two looks of two gradients
            c = fit.counts
            assert (c.values, c.gradients, c.lmos) == (8, 8, 4)


def stairs(theta):
    """Falls by 0.1 from a maximum at each power of 1.5 to the next, where it is as steep: a step of half of theta."""
    xp = xv.array_namespace(theta)
    u = xp.log(theta) / np.log(1.5)
    return 0.1 * xp.sum(xp.sin(2 * np.pi * u) / (2 * np.pi) - u + xp.cos(2 * np.pi * u) / 50)


def test_a_solve_starts_again_ten_times():
    began = time.perf_counter()
    fit = solved(stairs, [1.0], tol=1e-3, max_iter=100)
    assert (np.diff(fit.trace.seconds) > 0).all()
    assert fit.seconds == fit.trace.seconds[-1] <= time.perf_counter() - began
    assert fit.n_iter == 1 + 2 * 10
    assert fit.trace.value[1::2] == pytest.approx(1.002 - 0.1 * np.arange(11), rel=1e-6)
    assert fit.status is Status.NO_DESCENT


def test_a_saddle_is_left_where_target_and_objective_are_zero():
    def R(theta):
        return theta[0] ** 4 - theta[0] ** 2

    fit = solved(R, [0.0], xv.algorithms.LevenbergMarquardt(), y=0.0)
    assert fit.status is Status.CONVERGED
    assert fit.value == pytest.approx(-0.25, rel=1e-9)


@pytest.mark.parametrize(
    ("least", "residual", "looks"),
    [(0.3, 0.3 + NEAR, True), (0.3, 0.3 - NEAR, False), (1.6e-8, 0.0, False), (1.3e-8, 0.0, True)],
)
def test_a_minimum_is_taken_from_the_methods_own_matrix(least, residual, looks):
    """Its least eigenvalue, columns of length 1, is compared with the residual relative to the target."""
    size = np.array([2.0, 100.0])
    matrix = np.array([[1.0, 1.0 - least], [1.0 - least, 1.0]]) * np.outer(size, size)
    method = Told(step=1.0, decrease=0.0, matrix=matrix, status=Status.RUNNING)
    fit = solved(lambda theta: residual**2 - 1.0 + 0.1 * total((theta - 2.0) ** 2), [1.0, 1.0], method)
    assert (fit.status, fit.n_iter) == (Status.CONVERGED, 1)
    assert (fit.counts.gradients > 2) is looks


def test_a_matrix_that_does_not_know_a_direction_shows_nothing():
    method = Told(step=1.0, decrease=0.0, matrix=np.diag([1.0, 0.0]), status=Status.RUNNING)
    fit = solved(lambda theta: total(np.array([0.1, 0.2]) * (theta - 2.0) ** 2), [1.0, 1.0], method)
    assert (fit.status, fit.counts.gradients) == (Status.CONVERGED, 2 + 3)


def test_a_method_without_a_model_starts_again_once_but_at_rounding():
    """From where it was, since it may be worn out; what is lower by rounding is not lower."""
    for away, tol, status, n_iter in ((0.5, 1e-6, Status.NO_DESCENT, 3), (1e-9, 0.0, Status.ROUNDING, 1)):
        fit = solved(*bowl(1.0, 1.0, away), method=Told(decrease=None), tol=tol)
        assert (fit.status, fit.n_iter) == (status, n_iter)
    method = Told(decrease=None, step=np.array([0.0, 1.0]))
    fit = solved(lambda theta: 0.5 * theta[0] ** 2 - 1e-15 * theta[1], [1.5, 1.0], method=method, tol=1e-6)
    assert (fit.status, fit.n_iter) == (Status.NO_DESCENT, 3)
    assert (np.diff(fit.trace.value)[[0, 2]] < 0).all()


def test_a_start_is_looked_at_whatever_the_matrix_shows():
    """There a symmetry of the start may hide what the objective can lose."""
    fit = solved(*bowl(1.0, [1.0, -1.0], [0.0, 0.0]), Told(decrease=0.0, matrix=np.eye(2)), tol=1e3, max_iter=5)
    assert fit.n_iter == 0
    assert fit.counts.gradients > 1


# -- methods without a model -------------------------------------------------------------------------------------------


def test_a_method_starts_again_where_it_has_come_lower():
    fit = solved(*bowl(1.0, 1.0, 0.5), method=Told(decrease=None, step=-0.1), tol=1e-6)
    assert fit.theta == pytest.approx([1.0])
    assert (fit.status, fit.n_iter) == (Status.CONVERGED, 5 + 4)  # steps and starts


def test_a_method_that_climbs_starts_again_from_the_best_iterate():
    fit = solved(*bowl(1.0, 1.0, 0.5), method=Told(decrease=None, step=0.1, monotone=False), tol=1e-6)
    assert fit.theta.tolist() == [1.5]
    assert fit.trace.value == pytest.approx([1.0, 1.055, 1.0, 1.055], rel=1e-12)


def test_a_certificate_without_a_model_is_checked_against_what_one_promises():
    """The parabola along the gradient, where a penalty bends."""
    tol = 1e-2
    for factor, status, iterations in ((1 - 1e-6, Status.CONVERGED, 0), (1 + 1e-6, Status.NO_DESCENT, 3)):
        fit = solved(*bowl(1.0, 0.25, factor * tol * np.sqrt(2.0 / 0.25)), method=Told(decrease=None), tol=tol)
        assert (fit.status, fit.n_iter) == (status, iterations)


def test_callbacks_are_heard_where_a_certificate_is_in_doubt_and_at_a_point_to_start_again_from():
    method = Told(step=-0.01, decrease=None, forgets=True, status=Status.RUNNING)
    for given, at in (((*bowl(1.0, 1.0, 0.5), method), 3), (bowl(1.0, -0.1, 0.0), 2)):
        callback, seen = asks(at)
        fit = solved(*given, tol=1e-6, callback=callback)
        assert fit.status is Status.STOPPED
        assert seen == list(range(1, at + 1))
    assert fit.theta != [1.0]


def test_an_end_without_descent_is_checked_against_rounding():
    least = 4 * EPS * 2
    for factor, status in ((1 - 1e-6, Status.ROUNDING), (1 + 1e-6, Status.NO_DESCENT)):
        away = factor * np.sqrt(2 * least)
        assert solved(*bowl(1.0, 1.0, away), method=Told(decrease=None), tol=0.0).status is status


def test_the_work_of_checks_is_counted():
    """The start, its check, and gradients around it; then with an iteration that finds no descent, and its check."""
    c = solved(*bowl(1.0, [1.0, 2.0], [1e-3, 1e-3]), method=Told(decrease=None), tol=1e-2).counts
    assert (c.values, c.gradients, c.lmos) == (1 + 1 + 3, 1 + 1 + 3, 1 + 1)
    c = solved(*bowl(1.0, [1.0, 2.0], [1e-9, 1e-9]), method=Told(decrease=None), tol=0.0).counts
    assert (c.values, c.gradients, c.lmos) == (4 + 3, 4 + 3, 4)


def asks(*iterations):
    """A callback that asks for the end at some iterations, and what it has seen."""
    seen = []

    def callback(info):
        seen.append(info.iteration)
        return info.iteration in iterations

    return callback, seen


def test_a_saddle_where_a_callback_has_stopped_is_no_success():
    method = Told(step=1.0, decrease=0.0, status=Status.RUNNING)
    for bend, status in ((-0.1, Status.STOPPED), (0.1, Status.CONVERGED)):

        def R(theta, bend=bend):
            return 0.05 * theta[1] ** 2 + 0.5 * bend * (theta[0] - 2.0) ** 2

        callback, seen = asks(1)
        fit = solved(R, [1.0, -1.0], method, callback=callback)
        assert fit.status is status
        assert seen == [1]


def test_what_converges_above_the_best_iterate_has_stalled():
    """By steps, and in one loop as a layer runs it."""
    R, theta0 = bowl(1.0, 1.0, 0.5)
    method = Told(step=0.1, decrease=0.0, monotone=False, status=Status.RUNNING)
    fit = solved(R, theta0, method)
    assert fit.status is Status.STALLED
    assert fit.theta.tolist() == theta0.tolist()
    prepared = prepare(fitted(R), theta0, solving=True)
    program, rest = Program.of(prepared, method)
    it, _ = program.whole(prepared.backend, np.asarray(1e-6), rest, prepared.theta, 10)
    assert Status.of(int(it.status)) is Status.STALLED
    assert it.theta[0].tolist() == theta0.tolist()


@pytest.mark.parametrize(("bend", "promised"), [(0.0, np.inf), (-2.0, np.inf), (2.0, 65.0)])
def test_what_does_not_bend_up_may_lose_anything(bend, promised):
    """Of more parameters than a Jacobian is made for: the parabola along the gradient."""
    R = fitted(lambda theta: total((2 - bend) * theta + 0.5 * bend * (theta + 1) ** 2), y=0.0)
    prepared = prepare(R, np.zeros(65))
    f = prepared.assemble(prepared.problem)
    grad = f.gradient(f.point(prepared.theta))
    assert float(free_decrease(f, prepared.region, prepared.theta, grad)) == pytest.approx(promised)


def test_a_start_where_many_parameters_bend_down_is_no_end_for_good():
    """What is promised there is no number; further on it is one."""
    method = xv.algorithms.ProjectedQuasiNewton()
    fit = solved(lambda theta: total((theta**2 - 1.0) ** 2), np.full(80, 0.1), method)
    assert fit.status is Status.CONVERGED
    np.testing.assert_allclose(fit.theta, 1.0, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_is_promised_where_an_objective_bends_down_is_no_certificate_at_the_end(dtype):
    """The gap has more than halved since then, without a certificate in between. By steps, and in one loop."""
    method = xv.algorithms.StochasticProjectedGradient(update=xv.algorithms.SGD(rate=0.55), certify=4)
    problem = fitted(lambda theta: total((theta**2 - 1.0) ** 2), 32.0, dtype)
    theta0 = np.full(80, 0.5, dtype)
    fit = xv.solve(problem, theta0, algorithm=method, max_iter=1)
    assert fit.trace.gap_B[-1] < 0.5 * fit.trace.gap_B[0]
    assert fit.status is Status.MAX_ITER
    prepared = prepare(problem, theta0, solving=True, units=False)
    program, rest = Program.of(prepared, method)
    it, _ = program.whole(prepared.backend, np.asarray(1e-6, dtype), rest, prepared.theta, 1)
    assert Status.of(int(it.status)) is Status.MAX_ITER
    assert it.theta[0].tolist() == fit.theta.tolist()


def test_a_penalty_bends_where_the_residual_does_not_see_a_parameter():
    """What a Gauss-Newton matrix promises there is the slope of the penalty, divided by nearly 0."""

    def hardly(theta, t):
        xp = xv.array_namespace(theta)
        return xp.stack([xp.cos(t + 1e-6 * xp.sum(theta)), t], axis=1)

    def R(theta):
        xp = xv.array_namespace(theta)
        return xp.sum(xp.sqrt(1.0 + (theta - xp.arange(12.0)) ** 2))

    t = np.linspace(0.0, 1.0, 30)
    problem = xv.separable(hardly, np.exp(t), data=t, R=R, mu=1.0)
    fit = xv.solve(problem, np.zeros(12), algorithm=xv.algorithms.ProjectedQuasiNewton(), tol=1e-2, max_iter=100)
    assert fit.status is Status.CONVERGED
    np.testing.assert_allclose(fit.theta, np.arange(12.0), atol=0.1)


def test_two_rates_that_have_become_one_at_a_bound_part_again():
    """There neither may move down, so that a Hessian of what is free sees nothing."""
    t, draw = np.linspace(0.0, 2.0, 30), np.random.default_rng(10)
    y = (draw.random(30) < 1 / (1 + np.exp(2 - 2 * np.exp(-np.outer(t, [1.0, 5.0])).sum(axis=1)))).astype(float)

    def M(theta, t):
        xp = xv.array_namespace(theta)
        return xp.exp(-xp.expand_dims(t, axis=1) * theta)

    problem = xv.separable(M, y, data=t, lam=0.01, loss="logistic")
    fit = xv.solve(problem, np.array([0.7, 4.0]), xv.sets.Box(0.0, 20.0))
    one = xv.solve_lower(problem, np.zeros(2))
    assert fit.status.success
    assert fit.value < float(one.value) - 0.1
