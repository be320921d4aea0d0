"""Every step rule that `xvarpro.steps` exports, on lines whose decisions rounding does not make."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from xvarpro.algorithms import steps
from xvarpro.algorithms.steps import interface
from xvarpro.algorithms.steps.interface import Point, StepRule
from xvarpro.backends import Backend
from xvarpro.core import trees
from xvarpro.core.namespace import namespace_of
from xvarpro.core.struct import Array
from xvarpro_conformance.suite import NUMPY, Measured, Target, check, exported

ROUNDING = 64.0  # of a step, in eps: it is a quotient of differences of values of its own size


class Line(NamedTuple):
    """``start - gap alpha + curvature alpha^2 / 2 + ripple (1 - cos(pitch alpha))``, infinite beyond `wall`.

    Where `hidden` is 1 values show `start` alone, as next to a large constant: then only slopes differ. Where `lie` is
    not 0 values rise by that much more than gap and slopes say, as with a gradient of another function.
    """

    gap: Array
    curvature: Array
    start: Array = np.asarray(1.0)
    ripple: Array = np.asarray(0.0)
    pitch: Array = np.asarray(1.0)
    wall: Array = np.asarray(2.0)
    hidden: Array = np.asarray(0.0)
    lie: Array = np.asarray(0.0)
    dd: Array = np.asarray(1.0)
    cap: Array = np.asarray(1.0)

    def scaled(self, c: float) -> Line:
        """The line of c f."""
        return self._replace(
            **{name: c * getattr(self, name) for name in ("gap", "curvature", "start", "ripple", "lie")}
        )


def _line(**parts: Any) -> Line:
    return Line(**{name: np.asarray(x, dtype=np.float64) for name, x in parts.items()})


# in the order in which a rule meets them, its memory in hand
LINES = {
    "slopes of another function": _line(gap=1.128, curvature=0.0, lie=2.256),
    "steep parabola": _line(gap=2.0, curvature=80.0),
    "flat parabola": _line(gap=0.75, curvature=0.125),
    "largest step": _line(gap=0.5, curvature=3.0, cap=0.25, dd=4.0),
    "ripples": _line(gap=1.5, curvature=8.0, start=5.0, ripple=0.375, pitch=17.0),
    "not finite beyond": _line(gap=1.0, curvature=0.5, wall=0.15625),
    "slopes alone": _line(gap=0.25, curvature=3.0, hidden=1.0),
    "nothing finite": _line(gap=1.0, curvature=1.0, wall=0.0),
    # the decrease at 1 is (1 - c / 2) gap: either side of Armijo's 1e-4
    "just enough": _line(gap=0.5, curvature=0.99975),
    "just short": _line(gap=0.5, curvature=0.99995),
}
# a rise of 5e-10 at 1, which single precision does not hold
FINE = {"a slight rise": _line(gap=1e-9, curvature=3e-9)}
# parameters that another text runs for
REGIMES = (
    steps.Armijo(warm=True),
    steps.Armijo(delta=0.25, gamma=0.375, limit=20),
    steps.Constant(0.75),
    steps.OpenLoop(4.0),
    steps.OpenLoop("log"),
    steps.ShortStep(L=3.0),
    steps.ShortStep(shrink=0.5, grow=4.0, limit=20),
    steps.ExactStep(quadratic=True),
)


@cache
def rules() -> dict[str, StepRule]:
    """Every rule as it is built without arguments, and the other regimes; a newcomer is found by its export."""
    plain = [kind() for kind in exported(steps, StepRule)]
    return {repr(rule).replace("'", ""): rule for rule in (*plain, *REGIMES)}  # addresses for a shell


class _Point(NamedTuple):
    theta: tuple[Array]  # alpha
    value: Array


def _at(line: Line, alpha: Any, xp: Any) -> tuple[Any, Any]:
    """Value and slope at alpha."""
    bent = 0.5 * line.curvature * alpha * alpha - line.gap * alpha
    change = bent + line.ripple * (1 - xp.cos(line.pitch * alpha)) + line.lie * alpha
    value = line.start + (1 - line.hidden) * change
    slope = line.curvature * alpha - line.gap + line.ripple * line.pitch * xp.sin(line.pitch * alpha)
    return xp.where(alpha > line.wall, xp.full_like(value, xp.inf), value), slope


def _search(backend: Backend, rule: StepRule, line: Line, memory: Array) -> tuple[Array, ...]:
    """What the rule decides: alpha, the value there, its memory, trials and gradients."""
    xp = namespace_of(line.gap)

    def phi(alpha: Array) -> _Point:
        return _Point((alpha,), _at(line, alpha, xp)[0])

    def slope(point: Point) -> Array:
        return _at(line, point.theta[0], xp)[1]

    found = rule.search(interface.Line(backend, phi, line.start, line.gap, line.dd, line.cap, slope), memory)
    return found.alpha, found.point.value, found.memory, found.n_values, found.n_gradients


class Decision(NamedTuple):
    """One search of a rule, on the host."""

    alpha: np.ndarray
    value: np.ndarray
    memory: np.ndarray
    trials: int
    gradients: int
    dtypes: tuple[str, ...]  # of step, value and memory


def lines(target: Target) -> dict[str, Line]:
    """Those that the precision of a target holds."""
    return {**LINES, **FINE} if target.dtype == "float64" else LINES


def walk(target: Target, rule: StepRule, scale: float = 1.0) -> dict[str, Decision]:
    """A search on each line, from the memory that the last one left; of ``scale f``."""
    if (L := getattr(rule, "L", None)) is not None:
        rule = trees.changed(rule, L=scale * L)
    start = np.asarray(scale)
    memory, found = target.eager.compute(lambda rule, L: rule.init(L), rule, start), {}
    for name, line in lines(target).items():
        asked = target.backend, rule, line.scaled(scale), memory
        (alpha, value, memory, trials, gradients), kinds = target.typed(_search, *asked)
        found[name] = Decision(alpha, value, memory, int(trials), int(gradients), kinds[:3])
    return found


@cache
def wanted(rule: StepRule, dtype: str) -> dict[str, Decision]:
    """What NumPy decides."""
    return walk(replace(NUMPY, dtype=dtype), rule)


def determined() -> dict[str, StepRule]:
    """Rules whose trials no rounding moves."""
    return {name: r for name, r in rules().items() if not isinstance(r, steps.ExactStep) or r.quadratic}


@check("steps", determined)
def decisions(target: Target, rule: StepRule) -> Iterator[Measured]:
    """Step and value on every line are those of NumPy, trials and gradients those of NumPy in the same precision."""
    got, alike, exact = target.once(walk, rule), wanted(rule, target.dtype), wanted(rule, "float64")
    for name, line in lines(target).items():
        found, want, value = got[name], alike[name], abs(float(line.start))
        yield Measured(f"trials, {name}", found.trials, want.trials)
        yield Measured(f"gradients, {name}", found.gradients, want.gradients)
        if (want.trials, want.gradients) == (exact[name].trials, exact[name].gradients):
            want = exact[name]
        # a step is a quotient of differences of values
        yield Measured(f"alpha, {name}", found.alpha, want.alpha, ROUNDING * target.eps * (1 + value / float(line.gap)))
        yield Measured(f"value, {name}", found.value, want.value, ROUNDING * target.eps, value)


@check("steps", rules)
def promises(target: Target, rule: Any) -> Iterator[Measured]:
    """A step is in its bounds, and its value that of the line; a monotone rule rises nowhere.

    An exact step ends in the valley, and of Armijo's trials the first that lowers the objective enough is taken.
    """
    got = target.once(walk, rule)
    for name, line in lines(target).items():
        found, start, cap = got[name], float(line.start), float(line.cap)
        alpha = float(found.alpha)
        value, slope = map(float, _at(line, np.asarray(alpha), np))
        rounding = ROUNDING * target.eps * start
        yield Measured(f"dtypes, {name}", found.dtypes, (target.dtype,) * 3)
        yield Measured(f"from 0 to the cap, {name}", 0.0 <= alpha <= cap, True)
        yield Measured(f"a step, {name}", bool(alpha > 0 or line.wall == 0 or line.lie or line.hidden), True)
        yield Measured(f"value, {name}", found.value, value, ROUNDING * target.eps, start)
        yield Measured(f"trials within the limit, {name}", found.trials <= getattr(rule, "limit", 60) + 1, True)
        if rule.monotone:
            yield Measured(f"no rise, {name}", value <= start + rounding and not (line.hidden and slope > 0), True)
        if isinstance(rule, steps.Armijo):
            yield from _enough(rule, line, alpha, name, rounding)
        if isinstance(rule, steps.ExactStep) and not (line.ripple or line.lie or line.hidden or line.wall == 0):
            finite = next(end for end in (cap / 2**j for j in range(60)) if end <= line.wall)
            want = min(float(line.gap) / (float(line.curvature) or math.inf), finite)
            # values tell a minimum to the root of their rounding, relative to how far they fall
            seen = 4 * (target.eps * start / float(line.gap)) ** 0.5
            yield Measured(f"the valley, {name}", alpha, want, max(rule.tol, seen))


def _enough(rule: Any, line: Line, alpha: float, name: str, rounding: float) -> Iterator[Measured]:
    start, gap, longer = float(line.start), float(line.gap), alpha / rule.delta

    def short_by(alpha: float) -> float:
        return rule.gamma * alpha * gap - start + float(_at(line, np.asarray(alpha), np)[0])

    yield Measured(f"enough, {name}", alpha == 0 or short_by(alpha) <= rounding, True)
    if 0 < longer <= float(line.cap) and not rule.warm:
        yield Measured(f"not enough before, {name}", short_by(longer) >= -rounding, True)


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
