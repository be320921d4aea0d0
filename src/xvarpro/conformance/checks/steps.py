"""Every step rule that `xvarpro.steps` exports, on lines whose decisions rounding does not make."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from xvarpro.algorithms import steps
from xvarpro.algorithms.steps.interface import Point, StepRule
from xvarpro.backends import Backend
from xvarpro.conformance.suite import Measured, Target, check, exported
from xvarpro.core import trees
from xvarpro.core.namespace import dtype_name, namespace_of
from xvarpro.core.struct import Array

ROUNDING = 64.0  # of a step, in eps: it is a quotient of differences of values of its own size


class Line(NamedTuple):
    """``start - gap alpha + curvature alpha^2 / 2 + ripple (1 - cos(pitch alpha))``, infinite beyond `wall`.

    Where `hidden` is 1 values show `start` alone, as next to a large constant: then only slopes differ.
    """

    gap: Array
    curvature: Array
    start: Array = np.asarray(1.0)
    ripple: Array = np.asarray(0.0)
    pitch: Array = np.asarray(1.0)
    wall: Array = np.asarray(2.0)
    hidden: Array = np.asarray(0.0)
    dd: Array = np.asarray(1.0)
    cap: Array = np.asarray(1.0)

    def scaled(self, c: float) -> Line:
        """The line of c f."""
        return self._replace(**{name: c * getattr(self, name) for name in ("gap", "curvature", "start", "ripple")})


def _line(**parts: Any) -> Line:
    return Line(**{name: np.asarray(x, dtype=np.float64) for name, x in parts.items()})


# in the order in which a rule meets them, its memory in hand
LINES = {
    "steep parabola": _line(gap=2.0, curvature=80.0),
    "flat parabola": _line(gap=0.75, curvature=0.125),
    "largest step": _line(gap=0.5, curvature=3.0, cap=0.25, dd=4.0),
    "ripples": _line(gap=1.5, curvature=8.0, start=5.0, ripple=0.375, pitch=17.0),
    "not finite beyond": _line(gap=1.0, curvature=0.5, wall=0.15625),
    "slopes alone": _line(gap=0.25, curvature=3.0, hidden=1.0),
    "nothing finite": _line(gap=1.0, curvature=1.0, wall=0.0),
}
# parameters that another text runs for
REGIMES = (steps.Armijo(warm=True), steps.ShortStep(L=3.0), steps.ExactStep(quadratic=True))


@cache
def rules() -> dict[str, StepRule]:
    """Every rule as it is built without arguments, and the other regimes; a newcomer is found by its export."""
    plain = [kind() for kind in exported(steps, StepRule)]
    return {repr(rule): rule for rule in (*plain, *REGIMES)}


class _Point(NamedTuple):
    theta: tuple[Array]  # alpha
    value: Array


def _search(backend: Backend, rule: StepRule, line: Line, memory: Array) -> tuple[Array, ...]:
    """What the rule decides: alpha, the value there, its memory, trials and gradients."""
    xp = namespace_of(line.gap)

    def phi(alpha: Array) -> _Point:
        bent = 0.5 * line.curvature * alpha * alpha - line.gap * alpha
        change = bent + line.ripple * (1 - xp.cos(line.pitch * alpha))
        value = line.start + (1 - line.hidden) * change
        return _Point((alpha,), xp.where(alpha > line.wall, xp.full_like(value, xp.inf), value))

    def slope(point: Point) -> Array:
        (alpha,) = point.theta
        sine = line.ripple * line.pitch * xp.sin(line.pitch * alpha)
        return line.curvature * alpha - line.gap + sine

    found = rule.search(steps.Line(backend, phi, line.start, line.gap, line.dd, line.cap, slope), memory)
    return found.alpha, found.point.value, found.memory, found.n_values, found.n_gradients


def _init(rule: StepRule, L: Array) -> Array:
    return rule.init(L)


class Decision(NamedTuple):
    """One search of a rule, on the host."""

    alpha: np.ndarray
    value: np.ndarray
    memory: np.ndarray
    trials: int
    gradients: int


def walk(target: Target, rule: StepRule, scale: float = 1.0) -> dict[str, Decision]:
    """A search on each line, from the memory that the last one left; of ``scale f``."""
    if (L := getattr(rule, "L", None)) is not None:
        rule = trees.changed(rule, L=scale * L)
    start = np.asarray(scale)
    memory, found = target.eager.compute(_init, rule, start), {}
    for name, line in LINES.items():
        asked = target.backend, rule, line.scaled(scale), memory
        alpha, value, memory, trials, gradients = target.compute(_search, *asked)
        found[name] = Decision(alpha, value, memory, int(trials), int(gradients))
    return found


def _compared(target: Target, rule: Any) -> Iterator[Measured]:
    got, want = (t.once(walk, rule) for t in (target, target.reference))
    # values tell a minimiser to the root of their rounding, and a bracket is narrowed as far as they tell
    brackets = getattr(rule, "quadratic", True) is False
    tolerance = max(rule.tol, 4 * target.eps**0.5) if brackets else ROUNDING * target.eps
    for name, line in LINES.items():
        one, other = got[name], want[name]
        yield Measured(f"alpha, {name}", one.alpha, other.alpha, tolerance)
        yield Measured(f"value, {name}", one.value, other.value, ROUNDING * target.eps, abs(float(line.start)))
        if not brackets or target.dtype == "float64":
            yield Measured(f"trials, {name}", one.trials, other.trials)
            yield Measured(f"gradients, {name}", one.gradients, other.gradients)


@check("steps", rules)
def decisions(target: Target, rule: StepRule) -> Iterator[Measured]:
    """Step, trials and gradients on every line equal NumPy's in double precision."""
    yield from _compared(target, rule)


@check("steps", rules)
def units_of_the_objective(target: Target, rule: StepRule) -> Iterator[Measured]:
    """2^-40 f and 2^40 f, some 1e-12 and 1e12, lead to the same decisions, bit for bit."""
    plain = target.once(walk, rule)
    for power in (-40, 40):
        for name, got in walk(target, rule, scale=2.0**power).items():
            want = plain[name]
            yield Measured(f"alpha of 2^{power} f, {name}", got.alpha, want.alpha)
            yield Measured(f"value of 2^{power} f, {name}", got.value, 2.0**power * want.value)
            yield Measured(f"trials of 2^{power} f, {name}", got.trials, want.trials)
            yield Measured(f"gradients of 2^{power} f, {name}", got.gradients, want.gradients)


@check("steps", rules)
def precision(target: Target, rule: StepRule) -> Iterator[Measured]:
    """Steps and memory have the precision of the objective."""
    with target.scope():
        memory = rule.init(target.send(np.asarray(1.0)))
        alpha, value, after, *_ = target.call(
            _search, target.backend, rule, target.send_tree(LINES["steep parabola"]), memory
        )
    for name, x in (("alpha", alpha), ("value", value), ("memory", memory), ("memory after a search", after)):
        yield Measured(name, dtype_name(x), target.dtype)
