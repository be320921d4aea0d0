"""Step rules on functions of one variable, where everything they promise can be checked by hand."""

import inspect
from typing import Any, NamedTuple

import numpy as np
import pytest

from xvarpro import backends, steps
from xvarpro.algorithms.steps import Armijo, ExactStep, OpenLoop, ShortStep, interface
from xvarpro.algorithms.steps.interface import StepRule

from .support import in_turn, rng

EXPORTED = [getattr(steps, name) for name in steps.__all__]
KINDS = [x for x in EXPORTED if inspect.isclass(x) and issubclass(x, StepRule) and not inspect.isabstract(x)]
VARIANTS = [
    *(k() for k in KINDS),
    Armijo(warm=True),
    Armijo(0.8, 0.4),
    ShortStep(shrink=1.0, grow=10.0),
    ShortStep(L=3.0),
    ExactStep(quadratic=True),
    OpenLoop(4.0),
]
MONOTONE = [rule for rule in VARIANTS if rule.monotone]
EPS = np.finfo(np.float64).eps


class Point(NamedTuple):
    value: Any
    alpha: Any = None


class Line:
    """``f(alpha)`` along a direction of squared length `dd`, with slope ``-gap`` at 0."""

    def __init__(self, f, gap, dd=1.0, backend=None, slope=None):
        self.backend = backend or backends.get("numpy")
        self.f, self.gap, self.dd, self.derivative = f, gap, dd, slope
        self.tried, self.asked = [], []

    def number(self, x):
        return self.backend.asarray(np.asarray(x, dtype=np.float64))

    def phi(self, alpha):
        self.tried.append(float(alpha))
        return Point(self.number(self.f(float(alpha))), alpha)

    def slope(self, point):
        self.asked.append(float(point.alpha))
        return self.number(self.derivative(float(point.alpha)))

    def search(self, rule, memory=None, cap=1.0):
        """`memory` is the last alpha of a rule that keeps it, the last L or (L, decrease) of one that estimates it."""
        self.tried, self.asked = [], []
        gap, dd, value = self.number(self.gap), self.number(self.dd), self.number(self.f(0.0))
        start = rule.init(self.number(1.0))
        if memory is not None:
            memory = self.number(memory)
            start = rule.init(memory) if memory.ndim < start.ndim else memory
        slope = None if self.derivative is None else self.slope
        with self.backend.scope("float64"):
            line = interface.Line(self.backend, self.phi, value, gap, dd, self.number(cap), slope)
            found = rule.search(line, start)
        assert int(found.n_values) == len(self.tried)
        assert int(found.n_gradients) == len(self.asked)
        return float(found.alpha), found

    @property
    def value(self):
        return self.f(0.0)


def parabola(gap, curvature, start=1.0):
    return lambda alpha: start - gap * alpha + 0.5 * curvature * alpha**2


def wavy(gap, seed):
    """Not convex: a parabola with ripples; slope ``-gap`` at 0."""
    a, b = rng(seed).uniform(0.1, 3.0), rng(seed + 1).uniform(5.0, 40.0)
    return lambda alpha: 5.0 - gap * alpha + a * (1 - np.cos(b * alpha)) + 4 * alpha**2


def lines(count=25):
    for seed in range(count):
        draw = rng(seed)
        gap, curvature = 10.0 ** draw.uniform(-2, 1), 10.0 ** draw.uniform(-2, 4)
        yield Line(parabola(gap, curvature), gap)
        yield Line(wavy(gap, seed), gap)


def test_warm_armijo_starts_from_the_last_step():
    rule = Armijo(warm=True)
    line = Line(parabola(1.0, 1e-3), 1.0)
    alpha, found = line.search(rule, memory=1 / 16)
    assert line.tried[0] == alpha == 1 / 8
    assert float(found.memory) == alpha
    assert Line(parabola(1.0, 1e-3), 1.0).search(rule, memory=1.0)[0] == 1.0, "never above the largest step"


def test_short_step_is_its_formula():
    for seed in range(40):
        gap, L, dd = (10.0 ** rng(seed).uniform(-3, 3, 3)).tolist()
        line = Line(parabola(gap, L * dd), gap, dd)
        alpha, found = line.search(ShortStep(L=L))
        assert alpha == pytest.approx(min(1.0, gap / (L * dd)), rel=1e-14)
        assert line.tried == [alpha]
        assert int(found.n_values) == 1


@pytest.mark.parametrize("rule", [ShortStep(), ShortStep(L=2.0)], ids=repr)
def test_a_short_step_where_curvature_underflows_is_the_longest(rule):
    alpha, _ = Line(lambda alpha: 1.0 - 1e-3 * alpha, 1e-3, dd=0.0).search(rule, cap=0.75)
    assert alpha == 0.75


def test_estimate_of_l_falls_and_rises():
    rule = ShortStep(shrink=0.5, grow=2.0)
    _, found = Line(parabola(1.0, 1e-3), 1.0).search(rule, memory=8.0)
    assert float(found.memory[0]) == 4.0
    _, found = Line(parabola(1.0, 64.0), 1.0).search(rule, memory=8.0)
    assert float(found.memory[0]) == 64.0
    assert int(found.n_values) == 5


@in_turn(
    ("decrease", "first"),
    [(0.125, 8.0), (0.1, 8.0), (0.2, 5.0), (0.5, 4.0), (1e300, 4.0), (0.0, 4.0), (-1.0, 4.0), (np.nan, 4.0)],
)
def test_estimate_starts_from_the_last_decrease(decrease, first):
    """``gap^2 / (2 decrease |d|^2)`` between half of the last L and all of it (Pedregosa et al. 2020, Algorithm 2)."""
    line = Line(parabola(2.0, 1e-3), 2.0, dd=2.0)
    _, found = line.search(ShortStep(shrink=0.5), memory=[8.0, decrease])
    assert line.tried == [2.0 / (first * 2.0)]
    assert float(found.memory[0]) == pytest.approx(first, rel=1e-15)
    assert float(found.memory[1]) == line.value - line.f(line.tried[0])


def test_rules_with_an_estimate_ask_for_curvature():
    assert [rule for rule in VARIANTS if rule.uses_curvature] == [r for r in VARIANTS if getattr(r, "L", 0) is None]
    line = Line(parabola(1.0, 1.0), 1.0)
    assert ShortStep().init(line.number(7.0)).tolist() == [7.0, 0.0]
    assert ShortStep(L=3.0).init(line.number(7.0)).tolist() == [3.0, 0.0]


def test_a_given_l_that_is_too_small_is_raised_for_the_step_alone():
    line = Line(parabola(1.0, 8.0), 1.0)
    alpha, found = line.search(ShortStep(L=1.0))
    assert line.tried == [1.0, 0.5, 0.25, 0.125]
    assert alpha == 0.125
    assert found.memory.tolist() == [1.0, 0.0]


def test_a_given_l_of_a_block():
    pair = ShortStep(L=(2.0, 5.0), grow=3.0)
    assert pair.of_block(free=False) == ShortStep(L=2.0, grow=3.0)
    assert pair.of_block(free=True) == ShortStep(L=5.0, grow=3.0)
    assert ShortStep(L={"B": 5, "A": 2.0}, grow=3.0) == pair
    for rule in VARIANTS:
        assert rule.of_block(free=True) is rule


# -- near rounding -----------------------------------------------------------------------------------------------------


def flat(gap, curvature, high=1e8):
    """A parabola on top of a value so large that no trial differs from the start."""
    return Line(lambda alpha: high, gap, slope=lambda alpha: curvature * alpha - gap)


def test_slope_decides_where_values_cannot():
    """Accepted iff the slope at the trial is not positive: the estimate of L rises to half the curvature at least."""
    rule = ShortStep(shrink=1.0)
    for curvature in (1e-3, 1.0, 3.0, 1e3):
        line = flat(1e-10, curvature * 1e-10)
        alpha, found = line.search(rule, memory=1e-10)
        assert line.asked == line.tried
        assert alpha == pytest.approx(min(1.0, 1e-10 / float(found.memory[0])))
        assert alpha * curvature <= 1
        assert all(tried * curvature > 1 for tried in line.tried[:-1])
        assert alpha > 0.5 * min(1.0, 1 / curvature)


def test_values_alone_stop_there():
    line = flat(1e-7, 1e-7)
    line.derivative = None
    assert line.search(ShortStep(shrink=1.0), memory=1e-7)[0] == 0
    line = Line(lambda alpha: 1e8 if alpha == 0 else 1e8 * (1 + EPS), 1e-7)
    assert line.search(ShortStep(shrink=1.0), memory=1e-7)[0] == 0


def test_no_gradient_is_asked_for_where_values_tell():
    for line in lines():
        line.derivative = lambda alpha: pytest.fail("a gradient for nothing")
        line.search(ShortStep(), memory=0.5)
        line.search(ExactStep())


@pytest.mark.parametrize("ratio", [3.0, 10.0, 1e4])
def test_a_long_first_trial_does_not_lose_an_honest_slope(ratio):
    """The first trial rises beyond rounding, the best decrease is below it: only the slope can find the step."""
    curvature = 20 * EPS
    gap = 2 * EPS / ratio
    line = Line(lambda a: 1 + (0.5 * curvature * a**2 - gap * a), gap, slope=lambda a: curvature * a - gap)
    alpha, _ = line.search(ShortStep(shrink=1.0), memory=gap)
    assert line.f(1.0) > 1 + 4 * EPS
    assert alpha > 0
    assert gap / (4 * curvature) < alpha <= gap / curvature


@pytest.mark.parametrize(("rise", "accepted"), [(0.49, 0.25), (0.5, 0.25), (0.51, 0.0)])
def test_a_slope_explains_a_rise_of_twice_its_parabola_at_most(rise, accepted):
    """``a^2 / 2 - a / 4`` is 1/4 at the first trial; its minimum is at 1/4."""
    line = Line(lambda a: 1 + rise * (a == 1), 0.25, slope=lambda a: a - 0.25)
    assert line.search(ShortStep(shrink=1.0), memory=0.25)[0] == accepted


# -- the minimiser along the direction ---------------------------------------------------------------------------------


@pytest.mark.parametrize("cap", [1.0, 0.01])
def test_exact_step_on_a_parabola_takes_two_trials(cap):
    for seed in range(40):
        gap, curvature = (10.0 ** rng(seed).uniform(-3, 3, 2)).tolist()
        line = Line(parabola(gap, curvature, start=0.0), gap)
        alpha, _ = line.search(ExactStep(quadratic=True), cap=cap)
        assert alpha == pytest.approx(min(cap, gap / curvature), rel=1e-9)
        assert line.tried == [cap, alpha]


@pytest.mark.parametrize(("rise", "then"), [(1e-3, 0.25), (0.25, 1 / 6), (10.0, 0.05)])
def test_a_trial_that_is_higher_is_followed_by_a_tenth_to_a_half_of_it(rise, then):
    """By the vertex of the parabola through the trial where that lies between."""
    line = Line(lambda alpha: 1 + rise * (alpha == 0.5) - alpha * (1 - alpha) * (alpha != 0.5), 1.0)
    line.search(ExactStep())
    assert line.tried[:3] == pytest.approx([1.0, 0.5, then], rel=5e-3)


def test_exact_step_on_a_concave_parabola_goes_to_the_end():
    line = Line(parabola(1.0, -3.0), 1.0)
    assert line.search(ExactStep(quadratic=True))[0] == 1.0
    assert line.search(ExactStep())[0] == 1.0


def test_a_bottom_at_the_largest_step_is_bracketed_like_any():
    line = Line(parabola(1.0, 1.0), 1.0)
    alpha, _ = line.search(ExactStep())
    assert line.tried[:2] == [1.0, 1 - ExactStep().tol]
    assert alpha == pytest.approx(1.0, rel=2e-4)


@pytest.mark.parametrize("skewed", [False, True])
def test_parabolas_find_the_bottom_faster_than_golden_sections(skewed):
    """And narrow skewed valleys from both sides."""
    for at, *limits in ((0.9, 11, 14), (0.3, 12, 15), (1e-2, 14, 13), (0.7, 13, 15), (0.1, 14, 16)):
        f = (
            (lambda a, at=at: np.exp(4 * (at - a)) + 4 * (a - at))
            if skewed
            else (lambda a, at=at: np.cosh(3 * (a - at)))
        )
        line = Line(f, 4 * np.exp(4 * at) - 4 if skewed else 3 * np.sinh(3 * at))
        assert line.search(ExactStep())[0] == pytest.approx(at, rel=1e-3)
        assert len(line.tried) <= limits[skewed]


def test_of_a_plateau_the_near_end_is_taken():
    for end in (0.5, 0.9):
        line = Line(lambda a, end=end: max(1 - a, 1 - end), 1.0)
        assert line.search(ExactStep())[0] == pytest.approx(end, rel=1e-3)


def test_exact_step_takes_no_step_without_a_slope():
    """Where the objective is lower all the same: no search is made along a direction that promises nothing."""
    assert Line(lambda a: 1 - a**2, 0.0).search(ExactStep())[0] == 0.0


def test_a_decrease_below_rounding_is_believed_where_it_explains_the_rise():
    line = Line(lambda a: 1 + 0.5 * a**2 - 1e-9 * a, 1e-9, slope=lambda a: a - 1e-9)
    alpha, _ = line.search(ExactStep())
    assert 0 < alpha <= 1e-9 * (1 + 1e-3)
    assert line.asked


# -- what every rule promises ------------------------------------------------------------------------------------------


each = in_turn("rule", VARIANTS, ids=repr)


@in_turn("bad", [np.nan, np.inf, -np.inf])
@each
def test_a_search_without_a_finite_trial_hands_back_where_it_began(rule, bad):
    line = Line(lambda alpha: 1.0 if alpha == 0 else bad, 1.0)
    alpha, found = line.search(rule)
    assert alpha == 0
    assert float(found.point.value) == 1.0
    assert len(line.tried) == getattr(rule, "limit", 60) + 1
    if rule.monotone:
        again = line.search(rule, memory=found.memory)[1]
        assert again.memory.tolist() == found.memory.tolist(), "a search that found nothing has learnt nothing"


@pytest.mark.parametrize("rule", MONOTONE, ids=repr)
def test_a_search_without_descent_hands_back_where_it_began(rule):
    line = Line(lambda alpha: 1.0 if alpha == 0 else 2.0 + alpha, 1.0)
    alpha, found = line.search(rule)
    assert alpha == 0
    assert float(found.point.value) == 1.0
    assert len(line.tried) == rule.limit + 1


@in_turn(("gap", "dd"), [(0.0, 0.0), (0.0, 1.0), (-1e-17, 1.0), (1.0, 1e-300), (1e-300, 1e300)])
@each
def test_degenerate_directions(rule, gap, dd):
    """No warning, no NaN, no step backwards."""
    alpha, found = Line(lambda a: 1.0 - gap * a, gap, dd).search(rule)
    assert 0 <= alpha <= 1
    assert np.isfinite(found.memory).all()
