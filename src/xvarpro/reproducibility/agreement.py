"""Two solves of one problem: whether it can tell their ends apart, why their iterates part, and which backend errs."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from xvarpro.algorithms.interface import Algorithm
from xvarpro.algorithms.steps import Armijo
from xvarpro.backends import linalg_errors, to_numpy
from xvarpro.core import trees
from xvarpro.core.struct import Leaves, Tree
from xvarpro.driver.outcome import DeadUnitsWarning
from xvarpro.driver.prepare import prepare
from xvarpro.driver.transfer import PrecisionWarning
from xvarpro.objective.interface import Objective
from xvarpro.problem.problem import Problem
from xvarpro.results.outcome import Trace
from xvarpro.results.result import Result
from xvarpro.sets.region import event

GRADIENT = 30.0  # machine epsilons times the condition number: error of a gradient, relative
# A stable solver returns the exact solution for data that are changed by a few machine epsilons. How far such a change
# moves an iterate is a random number: the largest of three is rarely below a tenth of what another rounding does.
DRAWS, SAFETY = 3, 10.0


@dataclass(frozen=True)
class Relation:
    """How the solve of one backend is related to the reference's.

    Attributes
    ----------
    end : str
        ``"same"``: theta is equal to what rounding explains by the condition. ``"rounding"``: it is as far apart as the
        reference's own theta moves when the data change by one machine epsilon. ``"indistinguishable"``: the objective
        does not depend on the difference. ``"two solutions"``: objectives and gaps are equal, theta is not, and the
        objective is another one in between or the residual is: no backend errs. ``"different"``: none of these.
    distance : float
        Of both thetas, relative, in the leaf where it is largest.
    sentence : str
        The same in words, with the figures.
    first_difference : int or None
        The first recorded iterate at which theta differs by more than rounding explains, or that only one of both has.
    reason : str
        Why; empty where no iterate does.
    fault : str
        The evidence that one of both backends errs, and which one; empty where there is none.
    """

    end: str
    distance: float
    sentence: str
    first_difference: int | None = None
    reason: str = ""
    fault: str = ""

    @property
    def agrees(self) -> bool:
        """Whether theta is equal as far as the problem determines it, and no evaluation shows an error."""
        return self.end in ("same", "rounding", "indistinguishable") and not self.fault


@dataclass(frozen=True)
class Evaluation:
    """A problem at one theta. The residual, (m, k), is None where rows come in chunks."""

    value: float
    gradient: list[np.ndarray]
    residual: np.ndarray | None


@dataclass(frozen=True)
class Site:
    """A problem on one backend, evaluated at points that are NumPy's."""

    problem: Problem
    over: Tree
    backend: str
    dtype: str

    def at(self, theta: Tree) -> Evaluation:
        """Value, gradient and residual; NaN where the model or the lower level fails."""
        prepared = prepare(self.problem, theta, backend=self.backend, dtype=self.dtype)
        try:
            value, gradient, residual = prepared.call(_evaluated, prepared.theta)
        except linalg_errors():
            return Evaluation(math.nan, [np.full_like(x, np.nan) for x in trees.leaves(theta)], None)
        host = prepared.backend.to_numpy
        return Evaluation(float(host(value)), [host(x) for x in gradient], host(residual[0]) if residual else None)

    def vertices(self, theta: Tree, gradient: Sequence[np.ndarray]) -> dict[int, np.ndarray]:
        """The answers of the oracles of all bounded sets to a gradient at theta, by leaf."""
        prepared = prepare(self.problem, theta, over=self.over, backend=self.backend, dtype=self.dtype)
        found = {}
        for i, C in prepared.region.constrained:
            if C.bounded:
                g = event(C, prepared.to_backend(gradient[i]))
                with prepared.backend.scope(self.dtype):
                    v = C.certified(g)[0]
                found[i] = prepared.backend.to_numpy(v).reshape(gradient[i].shape)
        return found


def _evaluated(objective: Objective, theta: Leaves) -> tuple[Any, Leaves, Any]:
    point, gradient = objective.value_and_gradient(theta)
    return point.value, gradient, (point.r,) if trees.is_array(getattr(point, "r", None)) else ()


def distance(a: Tree, b: Tree, size: float = 0.0) -> float:
    """Euclidean distance of a and b, relative to the larger of ``|b|`` and `size`."""
    x, y = flat(a), flat(b)
    size = max(size, float(np.linalg.norm(y)))
    gap = float(np.linalg.norm(x - y))
    return gap / size if size else gap


def apart(a: Tree, b: Tree, start: Tree) -> float:
    """Distance of a from b, relative, in the leaf where it is largest: leaves may have units of their own.

    A leaf that has lost half of its digits since the start counts relative to those.
    """
    leaves = zip(*map(trees.leaves, (a, b, start)), strict=True)
    half = math.sqrt(np.finfo(np.asarray(trees.leaves(b)[0]).dtype).eps)
    found = [distance([x], [y], half * float(np.linalg.norm(to_numpy(x0)))) for x, y, x0 in leaves]
    return math.nan if any(map(math.isnan, found)) else max(found)


def flat(tree: Tree) -> np.ndarray:
    """All leaves as one vector."""
    return np.concatenate([np.ravel(to_numpy(leaf)) for leaf in trees.leaves(tree)])


def inner(a: Sequence[np.ndarray], b: Sequence[np.ndarray]) -> float:
    """``Re <a, b>``."""
    return float(np.real(np.vdot(flat(a), flat(b))))


@dataclass
class Path:
    """A solve on one backend with its iterates by number; they are NumPy's."""

    name: str
    fit: Result
    thetas: Mapping[int, Tree]
    site: Site


class Prediction(Protocol):
    """What rounding explains of two solves."""

    @property
    def predicted(self) -> float:
        """Machine epsilon times the largest condition on the way: the relative error of a gradient."""

    def rounding(self, n: int) -> float:
        """Relative difference of theta at an iteration."""


@dataclass
class Pair:
    """The reference's solve and another one.

    Attributes
    ----------
    solve : callable
        Solves another problem, like the reference, and returns its `Path`.
    known : Prediction
    """

    one: Path
    other: Path
    solve: Callable[[Problem], Path]
    known: Prediction

    def __post_init__(self) -> None:
        self.start = self.one.thetas[0]
        self.eps = float(np.finfo(self.one.site.dtype).eps)

    @cached_property
    def noise(self) -> float:
        """By how much computed objectives near the end differ from rounding; see `Objective.rounding`.

        Where the lower level is badly conditioned it is more, by what both backends are seen to differ by at one point,
        but not more than by the condition.
        """
        theta = self.other.fit.theta
        value, other = (path.site.at(theta).value for path in (self.one, self.other))
        least = 4 * self.eps * (abs(value) + math.sqrt(abs(value) * self.one.fit.recipe.scale))
        return min(least + 2 * abs(other - value), least * max(1.0, self.known.predicted / self.eps))

    # -- the ends ------------------------------------------------------------------------------------------------------

    def relation(self, fault: str = "") -> Relation:
        """How both solves are related; `fault` is what their evaluations at one point showed."""
        reason, wrong = self.reason()
        end, sentence = self.end()
        return Relation(end, self.distance, sentence, self.first_difference, reason, fault or wrong)

    @cached_property
    def distance(self) -> float:
        """Of both ends."""
        return apart(self.other.fit.theta, self.one.fit.theta, self.start)

    def end(self) -> tuple[str, str]:
        """The kind of relation of both ends, and the sentence on it."""
        n = max(self.one.fit.n_iter, self.other.fit.n_iter)
        explained, off = self.known.rounding(n), f"theta {self.distance:.1e} apart"
        if self.distance <= explained:
            return "same", f"theta equal to {self.distance:.1e}, where rounding explains {explained:.1e}"
        thetas = self.one.fit.theta, self.other.fit.theta
        a, b = map(self.one.site.at, thetas)
        size = abs(a.value)
        # a solve that has converged leaves what it was asked to
        tol = self.one.fit.recipe.tol if self.one.fit.status.success and self.other.fit.status.success else 0.0
        level = self.noise + tol * size
        equal = abs(a.value - b.value) <= level
        values = f"objectives equal to {_relative(b.value - a.value, size):.1e}"
        if same := self._indistinguishable(*thetas, level):
            return "indistinguishable", f"{off}, which the problem cannot tell apart: {same}"
        gaps = self.one.fit.gap, self.other.fit.gap
        first = float(np.abs(self.one.fit.trace.gap[0]))
        certified = GRADIENT * self.known.predicted * first + 10 * self.eps * self.one.fit.recipe.scale + tol * size
        if equal and abs(gaps[0] - gaps[1]) <= certified:
            return "two solutions", f"two solutions: {off} with {values} and gaps {gaps[0]:.1e} and {gaps[1]:.1e}"
        moved = max([apart(path.fit.theta, self.one.fit.theta, self.start) for path in self.replays], default=0.0)
        if self.distance <= min(SAFETY * moved, math.sqrt(self.eps)):
            return "rounding", f"{off}, as rounding explains: {self._moves('end', moved)}"
        too = f"; {self._moves('end', moved)}" if self.distance <= SAFETY * moved else ""
        return "different", f"{off}, objectives {_relative(b.value - a.value, size):.1e}{too}"

    def _indistinguishable(self, one: Tree, other: Tree, level: float) -> str:
        """Why no value of the objective tells two thetas apart, up to `level`; empty if one does."""
        half = math.sqrt(self.eps)
        a, b = self.one.site.at(one), self.one.site.at(other)
        if not abs(a.value - b.value) <= level:
            return ""
        if a.residual is not None and b.residual is not None:
            scale = math.sqrt(2 * self.one.fit.recipe.scale)
            off = float(np.linalg.norm(a.residual - b.residual)) / (scale or 1.0)
            if off <= min(GRADIENT * self.known.predicted, half):
                order = distance([np.sort(np.abs(flat(other)))], [np.sort(np.abs(flat(one)))]) <= half
                how = "entries are the same but for order and sign, and " if order else ""
                return f"{how}residuals are equal to {off:.1e} of the target"
        between = [self.one.site.at(_between(one, other, s)).value for s in (0.25, 0.5, 0.75)]
        worst = max(abs(value - a.value) for value in between)
        if all(abs(value - a.value) <= level for value in between):
            size = abs(a.value)
            change, known = _relative(worst, size), _relative(level, size)
            return f"between both the objective changes by {change:.1e}, where rounding and tol leave {known:.1e}"
        return ""

    # -- the way -------------------------------------------------------------------------------------------------------

    @property
    def common(self) -> list[int]:
        """Numbers of the iterates that both paths have."""
        return sorted(set(self.one.thetas) & set(self.other.thetas))

    @cached_property
    def first_difference(self) -> int | None:
        """The first common iterate at which theta differs by more than rounding explains.

        Where none does and the ends do, the iterate after that at which one solve has ended.
        """
        found = next((n for n in self.common if not self._apart(n) <= self.known.rounding(n)), None)
        if found is None and self._one_ended and not self.distance <= self.known.rounding(self.common[-1]):
            return self.common[-1] + 1
        return found

    @property
    def _one_ended(self) -> Path | None:
        """The solve that made fewer iterations."""
        a, b = self.one.fit.n_iter, self.other.fit.n_iter
        return None if a == b else self.one if a < b else self.other

    def _apart(self, n: int) -> float:
        return apart(self.other.thetas[n], self.one.thetas[n], self.start)

    def reason(self) -> tuple[str, str]:
        """Why theta differs from some iterate on, or step sizes do, in words; and which oracle errs."""
        n = self.first_difference
        if n is None:
            k = first_different_step(self.one.fit.trace, self.other.fit.trace)
            said = "" if k is None or k > min(self.one.fit.n_iter, self.other.fit.n_iter) else self.branch(k)
            return said and f"step sizes differ from iteration {k} on: {said}", ""
        before = max((k for k in self.common if k < n), default=0)
        said, wrong = self.tie(before) if before == n - 1 else ("", "")
        if n in self.common:
            at = f"theta {self._apart(n):.1e} apart from iteration {n} on"
            said = said or self.branch(n) or self.amplified(n) or self.flat(n)
        else:
            ended = self._one_ended or self.one
            at = f"{ended.name} ends after iteration {before} with {ended.fit.status.name}"
        unexplained = (
            f"no tie, no branch of a line search and no rounding explains it: {self.other.name} differs from "
            f"{self.one.name}"
        )
        return f"{at}: {said or unexplained}", wrong

    def tie(self, n: int) -> tuple[str, str]:
        """How the vertices differ that the oracles return at iterate `n`, and which oracle errs; empty if they do not.

        Where v is best for a gradient g, and u for h, ``0 <= <g, u - v> <= <g - h, u - v>``: more is an error.
        """
        method = self.one.fit.recipe.algorithm
        if not isinstance(method, Algorithm) or method.needs_projection:
            return "", ""
        theta, half = self.one.thetas[n], math.sqrt(self.eps)
        g, h = (path.site.at(theta).gradient for path in (self.one, self.other))
        mine, others = self.one.site.vertices(theta, g), self.other.site.vertices(theta, h)
        jumped = [i for i, v in mine.items() if distance([others[i]], [v]) > half]
        if not jumped:
            return "", ""
        d, at, turn = [others[i] - mine[i] for i in jumped], [g[i] for i in jumped], [h[i] - g[i] for i in jumped]
        scale = self.eps * float(np.linalg.norm(flat(at)) * np.linalg.norm(flat(d)))
        if not scale:
            return f"a tie between vertices: the gradient at iteration {n} is 0", ""
        worse, turned = inner(at, d) / scale, float(np.linalg.norm(flat(turn)) * np.linalg.norm(flat(d))) / scale
        said = (
            f"at iteration {n} the values of both vertices differ by {abs(worse):.2g} eps and the gradients by "
            f"{turned:.2g} eps"
        )
        if not abs(worse) <= turned + GRADIENT:
            errs = self.other.name if worse > 0 else self.one.name
            return f"another vertex, no tie: {said}", f"the oracle of {errs} does not return the best vertex: {said}"
        again = self.other.site.vertices(theta, g)
        kept = [i for i in jumped if not distance([again[i]], [mine[i]]) <= half]
        if not kept:
            return f"a tie between vertices: {said}; on one gradient both return the same: the tie rule holds", ""
        return f"a tie between vertices: {said}; on one gradient they return different ones: no tie rule holds here", ""

    def branch(self, n: int) -> str:
        """Whether a line search ended with another step, and the margin by which; empty if not."""
        steps = [(p.fit.trace.alpha_A[n], p.fit.trace.alpha_B[n]) for p in (self.one, self.other)]
        if not any(abs(a - b) > self.eps**0.5 * max(a, b) for a, b in zip(*steps, strict=True)):
            return ""
        a, b = map(max, steps)
        said = f"another branch of a line search, steps {a:.3g} and {b:.3g}"
        margin = self._margin(n, a, b)
        if margin is None:
            rounded = self.amplified(n)
            return rounded and f"{said}; {rounded}"
        explained = 2 * self.noise
        passes = f"{said}: the longer one passes by {margin:.1e}, where rounding explains {explained:.1e}"
        return passes if abs(margin) <= explained else f"{passes}: {self.other.name} differs from {self.one.name}"

    def _margin(self, n: int, a: float, b: float) -> float | None:
        """What the decrease after the longer step exceeds that of Armijo's condition by; None for other rules."""
        step = getattr(self.one.fit.recipe.algorithm, "step", None)
        if not isinstance(step, Armijo) or a == b or n - 1 not in self.one.thetas:
            return None
        path, alpha = (self.one, a) if a > 0 else (self.other, b)
        end = self.one.site.at(_between(self.one.thetas[n - 1], path.thetas[n], max(a, b) / alpha))
        trace = self.one.fit.trace
        return float(trace.value[n - 1] - end.value - step.gamma * max(a, b) * trace.gap[n - 1])

    def amplified(self, n: int) -> str:
        """How far the reference's own iterate moves when its data change by one machine epsilon, if that is as far."""
        moved = [apart(path.thetas[n], self.one.thetas[n], self.start) for path in self.replays if n in path.thetas]
        if moved and self._apart(n) <= SAFETY * max(moved):
            return f"rounding, amplified: {self._moves(f'iterate {n}', max(moved))}"
        return ""

    def flat(self, n: int) -> str:
        """Whether rounding alone says which of both iterates is the better one; empty if values do."""
        same = self._indistinguishable(self.one.thetas[n], self.other.thetas[n], self.noise)
        return same and f"rounding, of objectives: {same}"

    def _moves(self, what: str, moved: float) -> str:
        return (
            f"data that are changed by 1 eps move the {what} of {self.one.name} alone by {moved:.1e}; the condition of "
            f"the lower level is {self.known.predicted / self.eps:.1e}"
        )

    @cached_property
    def replays(self) -> list[Path]:
        """The reference's solve of problems whose data and targets are changed by one machine epsilon."""
        with warnings.catch_warnings():
            for category in (DeadUnitsWarning, PrecisionWarning):  # which the first solve gave
                warnings.simplefilter("ignore", category)
            return [self.solve(shaken(self.one.site.problem, self.one.site.dtype, seed)) for seed in range(DRAWS)]


def _between(one: Tree, other: Tree, share: float) -> Tree:
    """The point ``one + share (other - one)``."""
    leaves, treedef = trees.flatten(one)
    pairs = [(to_numpy(x), to_numpy(y)) for x, y in zip(leaves, trees.leaves(other), strict=True)]
    return trees.unflatten(treedef, [(x + share * (y - x)).astype(x.dtype) for x, y in pairs])


def shaken(problem: Problem, dtype: str, seed: int) -> Problem:
    """The problem with all numbers of its data and targets multiplied by one plus or minus a machine epsilon."""
    rng, eps = np.random.default_rng(seed), np.finfo(dtype).eps

    def shake(x: Any) -> Any:
        if not trees.is_inexact(x):
            return x
        host = to_numpy(x)
        return host.astype(np.result_type(host.dtype, dtype)) * (1 + eps * rng.choice([-1.0, 1.0], host.shape))

    def level(given: Any) -> Any:
        return replace(given, y=shake(given.y)) if given is not None and trees.is_array(given.y) else given

    data = trees.map_arrays(shake, problem.data)
    return replace(problem, data=data, lower=level(problem.lower), upper=level(problem.upper))


def contradiction(site: Site, theta: Tree, gradient: Sequence[np.ndarray], along: Sequence[np.ndarray]) -> float:
    """By how much ``<gradient, along>`` differs from a difference quotient of the same backend's values.

    Of fourth order, with the step that balances its error, h^4, and rounding, eps / h.
    """
    leaves, treedef = trees.flatten(theta)
    h = float(np.finfo(site.dtype).eps) ** 0.2

    def value(t: float) -> float:
        return site.at(trees.unflatten(treedef, [x + t * d for x, d in zip(leaves, along, strict=True)])).value

    slope = (8 * (value(h) - value(-h)) - (value(2 * h) - value(-2 * h))) / (12 * h)
    return abs(inner(gradient, along) - slope)


def erring(theta: Tree, one: Path, other: Path) -> str | None:
    """Which of two backends with different gradients at theta contradicts its own values; None where that is open."""
    g, h = (path.site.at(theta).gradient for path in (one, other))
    size = [float(np.linalg.norm(x)) or 1.0 for x in trees.leaves(theta)]
    d = [s * s * (y - x) for s, x, y in zip(size, g, h, strict=True)]
    length = math.sqrt(sum((float(np.linalg.norm(x)) / s) ** 2 for x, s in zip(d, size, strict=True)))
    if not (0 < length < math.inf):
        return None
    along = [(x / length).astype(y.dtype) for x, y in zip(d, trees.leaves(theta), strict=True)]
    wide = abs(inner(h, along) - inner(g, along))
    off = {path.name: contradiction(path.site, theta, x, along) for path, x in ((one, g), (other, h))}
    right = [name for name, x in off.items() if x < wide / 3]
    return other.name if right == [one.name] else one.name if right == [other.name] else None


def first_different_step(one: Trace, other: Trace) -> int | None:
    """First iteration at which two solves took steps of different sizes; None if all are equal, bit for bit."""
    pairs = [(one.alpha_A, other.alpha_A), (one.alpha_B, other.alpha_B)]
    return min((n for a, b in pairs if (n := _first_difference(a, b)) is not None), default=None)


def _first_difference(a: np.ndarray, b: np.ndarray) -> int | None:
    n = min(a.size, b.size)
    different = np.flatnonzero(a[:n] != b[:n])  # NaN differs from itself
    if different.size:
        return int(different[0])
    return None if a.size == b.size else n


def _relative(x: float, size: float) -> float:
    return abs(x) / size if size else abs(x)
