"""Step rules on functions of one variable, where everything they promise can be checked by hand."""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple

import numpy as np
import pytest

from xvarpro import backends, steps
from xvarpro.errors import ProblemError
from xvarpro.protocols import StepRule
from xvarpro.steps import Armijo, ShortStep

from .support import rng

EXPORTED = [getattr(steps, name) for name in steps.__all__]
KINDS = [x for x in EXPORTED if inspect.isclass(x) and issubclass(x, StepRule) and not inspect.isabstract(x)]
VARIANTS = [*(k() for k in KINDS), Armijo(warm=True), Armijo(0.8, 0.4), ShortStep(shrink=1.0, grow=10.0)]
EPS = np.finfo(np.float64).eps


class Point(NamedTuple):
    value: Any


class Line:
    """``f(alpha)`` along a direction of squared length `dd`, with slope ``-gap`` at 0."""

    def __init__(self, f, gap, dd=1.0, backend=None):
        self.backend = backend or backends.get("numpy")
        self.f, self.gap, self.dd = f, gap, dd
        self.tried = []

    def number(self, x):
        return self.backend.asarray(np.asarray(float(x)))

    def phi(self, alpha):
        self.tried.append(float(alpha))
        return Point(self.number(self.f(float(alpha))))

    def search(self, rule, memory=None, cap=1.0):
        gap, dd, value = self.number(self.gap), self.number(self.dd), self.number(self.f(0.0))
        memory = rule.init(self.number(1.0)) if memory is None else self.number(memory)
        found = rule.search(self.backend, self.phi, value, gap, dd, memory, cap)
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


@pytest.mark.parametrize("rule", [Armijo(), Armijo(0.8, 0.4), Armijo(0.1, 0.01)], ids=repr)
def test_armijo_takes_the_smallest_power_that_passes(rule):
    for line in lines():

        def passes(alpha, line=line):
            return line.value - line.f(alpha) >= rule.gamma * alpha * line.gap

        alpha, found = line.search(rule)
        j = int(found.n_values) - 1
        assert alpha == pytest.approx(rule.delta**j, rel=1e-14)
        assert passes(alpha)
        assert not any(passes(rule.delta**i) for i in range(j))
        assert len(line.tried) == j + 1
        assert float(found.point.value) == line.f(alpha)


@pytest.mark.parametrize("rule", [Armijo(), Armijo(0.8, 0.4)], ids=repr)
def test_armijo_step_has_a_lower_bound(rule):
    """``alpha >= min(1, 2 delta (1 - gamma) gap / (L |d|^2))`` where the gradient is L-Lipschitz."""
    for seed in range(40):
        draw = rng(seed)
        gap, L, dd = (10.0 ** draw.uniform(-3, 3) for _ in range(3))
        alpha, _ = Line(parabola(gap, L * dd), gap, dd).search(rule)
        assert alpha >= min(1.0, 2 * rule.delta * (1 - rule.gamma) * gap / (L * dd)) * (1 - 1e-12)


def test_warm_armijo_starts_from_the_last_step():
    rule = Armijo(warm=True)
    line = Line(parabola(1.0, 1e-3), 1.0)
    alpha, found = line.search(rule, memory=1 / 16)
    assert line.tried[0] == alpha == 1 / 8
    assert float(found.memory) == alpha
    assert Line(parabola(1.0, 1e-3), 1.0).search(rule, memory=1.0)[0] == 1.0, "never above the largest step"


def test_warm_armijo_backtracks_less():
    cold, warm = Line(parabola(1.0, 1e4), 1.0), Line(parabola(1.0, 1e4), 1.0)
    alpha, found = cold.search(Armijo())
    again, _ = warm.search(Armijo(warm=True), memory=float(found.memory))
    assert again == alpha
    assert len(warm.tried) == 2 < len(cold.tried)


def test_short_step_is_its_formula():
    for seed in range(40):
        gap, L, dd = (10.0 ** rng(seed).uniform(-3, 3, 3)).tolist()
        line = Line(parabola(gap, L * dd), gap, dd)
        alpha, found = line.search(ShortStep(L=L))
        assert alpha == pytest.approx(min(1.0, gap / (L * dd)), rel=1e-14)
        assert line.tried == [alpha]
        assert int(found.n_values) == 1


def test_short_step_decrease():
    """At least ``gap^2 / (2 L |d|^2)`` where alpha < 1, at least ``gap / 2`` where alpha = 1."""
    for seed in range(40):
        gap, L, dd = (10.0 ** rng(seed).uniform(-2, 2, 3)).tolist()
        curvature = rng(seed + 1).uniform(-1.0, 1.0) * L * dd
        f = parabola(gap, curvature, start=0.0)
        alpha, found = Line(f, gap, dd).search(ShortStep(L=L))
        promised = gap / 2 if alpha == 1 else gap**2 / (2 * L * dd)
        assert -float(found.point.value) >= promised * (1 - 1e-13)


def test_short_step_is_exact_along_an_eigendirection():
    line = Line(parabola(3.0, 12.0), 3.0, dd=2.0)
    alpha, _ = line.search(ShortStep(L=6.0))
    assert alpha == pytest.approx(3.0 / 12.0, rel=1e-15)


def test_estimated_short_step_stays_below_its_model():
    for line in lines():
        alpha, found = line.search(ShortStep(), memory=0.5)
        L = float(found.memory)
        model = line.value - alpha * line.gap + 0.5 * alpha**2 * L * line.dd
        assert float(found.point.value) <= model + 4 * EPS * abs(line.value)
        assert alpha == pytest.approx(min(1.0, line.gap / (L * line.dd)), rel=1e-14)
        assert float(found.point.value) < line.value


def test_estimate_of_l_falls_and_rises():
    rule = ShortStep(shrink=0.5, grow=2.0)
    _, found = Line(parabola(1.0, 1e-3), 1.0).search(rule, memory=8.0)
    assert float(found.memory) == 4.0
    _, found = Line(parabola(1.0, 64.0), 1.0).search(rule, memory=8.0)
    assert float(found.memory) == 64.0
    assert int(found.n_values) == 5


def test_rules_with_an_estimate_ask_for_curvature():
    assert ShortStep.uses_curvature
    assert not Armijo.uses_curvature
    line = Line(parabola(1.0, 1.0), 1.0)
    assert float(ShortStep().init(line.number(7.0))) == 7.0
    assert float(ShortStep(L=3.0).init(line.number(7.0))) == 3.0


# -- what every rule promises ------------------------------------------------------------------------------------------


@pytest.fixture(params=VARIANTS, ids=repr)
def rule(request):
    return request.param


@pytest.mark.parametrize("cap", [1.0, 0.3, 1e-3])
def test_cap_bounds_every_trial(rule, cap):
    for line in lines(8):
        alpha, _ = line.search(rule, cap=cap)
        assert 0 < alpha <= cap
        assert max(line.tried) <= cap


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_trial_that_is_not_finite_is_rejected(rule, bad):
    line = Line(lambda alpha: bad if alpha > 0.1 else 1 - alpha, 1.0)
    alpha, found = line.search(rule)
    assert 0 < alpha <= 0.1
    assert np.isfinite(float(found.point.value))


@pytest.mark.parametrize("bad", [np.nan, np.inf, 2.0])
def test_a_search_that_fails_hands_back_where_it_began(rule, bad):
    """NaN, inf or no descent everywhere: after `limit` trials the step is 0 and the point is the start."""
    line = Line(lambda alpha: 1.0 if alpha == 0 else bad + alpha, 1.0)
    alpha, found = line.search(rule)
    assert alpha == 0
    assert float(found.point.value) == 1.0
    assert len(line.tried) == rule.limit + 1


@pytest.mark.parametrize("power", [-40, -20, 20, 40])
def test_units_of_the_objective_change_no_decision(rule, power):
    """``2^power f``: the same trials, bit for bit; L is in the units of f."""
    c = 2.0**power
    for line in lines(8):
        memory = 0.5
        scaled = Line(lambda alpha, line=line: c * line.f(alpha), c * line.gap)
        line.search(rule, memory)
        scaled.search(rule, c * memory if rule.uses_curvature else memory)
        assert scaled.tried == line.tried


def test_same_decisions_on_every_backend(rule, backend):
    if backend.name == "jax":
        pytest.skip("a compiled search cannot call a Python function; see test_algorithms for JAX")
    for line in lines(4):
        line.search(rule)
        there = Line(line.f, line.gap, backend=backend)
        there.search(rule)
        assert there.tried == line.tried


def test_compiled_search_makes_the_same_decisions(rule):
    import jax
    import jax.numpy as jnp

    with jax.enable_x64(True):
        for line in list(lines(4))[::2]:
            alpha, found = line.search(rule)
            gap, curvature = line.gap, 2 * (line.f(1.0) - line.f(0.0) + line.gap)

            def phi(alpha, gap=gap, curvature=curvature):
                return Point(1.0 - gap * alpha + 0.5 * curvature * alpha**2)

            def search(memory, phi=phi, gap=gap):
                one = jnp.ones(())
                return rule.search(backends.get("jax"), phi, one, gap * one, one, memory, 1.0)

            compiled = jax.jit(search)(rule.init(jnp.ones(())))
            assert float(compiled.alpha) == pytest.approx(alpha, rel=1e-12)
            assert int(compiled.n_values) == int(found.n_values)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Armijo(delta=1.0), "0 < delta < 1, got 1.0"),
        (lambda: Armijo(delta=0.0), "0 < delta < 1"),
        (lambda: Armijo(gamma=0.5), "0 < gamma < 1/2, got 0.5"),
        (lambda: Armijo(gamma=-0.1), "0 < gamma < 1/2"),
        (lambda: ShortStep(L=0.0), "L > 0 or None, got 0.0"),
        (lambda: ShortStep(L=float("nan")), "L > 0 or None"),
        (lambda: ShortStep(grow=1.0), "0 < shrink <= 1 < grow"),
        (lambda: ShortStep(shrink=0.0), "0 < shrink <= 1 < grow"),
        (lambda: Armijo(limit=0), "limit"),
        (lambda: ShortStep(limit=-1), "limit"),
    ],
)
def test_wrong_parameters(make, message):
    with pytest.raises(ProblemError, match=message):
        make()
