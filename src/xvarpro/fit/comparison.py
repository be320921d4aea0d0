"""One solve on several backends: whether theta and w agree, where the iterates part, and why."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from xvarpro.algorithms.interface import Algorithm
from xvarpro.backends import to_numpy
from xvarpro.backends.interface import linalg_errors
from xvarpro.core import trees
from xvarpro.core.lazy import Method
from xvarpro.core.struct import Leaves, Tree
from xvarpro.driver.model_check import check_limits
from xvarpro.driver.prepare import prepare
from xvarpro.driver.run import IterationInfo
from xvarpro.driver.transfer import destination
from xvarpro.errors import ProblemError
from xvarpro.fit.result import Result
from xvarpro.fit.solve import solve
from xvarpro.objective.interface import Objective
from xvarpro.problem.problem import Problem
from xvarpro.statistics.frames import vector

GRADIENT = 30.0  # machine epsilons times the condition number: error of a gradient, relative
MEMORY = 2**28  # bytes of iterates that are kept of one solve
# what is known of the ends of two solves, from the best to the worst
ENDS = {
    "same": "agree",
    "indistinguishable": "agree as far as the problem determines theta and w",
    "other w": "agree about theta, not about w",
    "different": "do not agree",
}


@dataclass(frozen=True)
class Relation:
    """How the solve of one backend is related to the reference's."""

    # "same": theta and w are equal to half of the digits; "indistinguishable": theta is not, but residuals are, and
    # objectives to rounding and `tol`; "other w": theta is, w is not; "different": none of these
    end: str
    theta: float  # distance, relative, in the leaf where it is largest
    w: float
    # the largest difference of objectives, gradients or gaps at one iterate of the reference, in machine epsilons times
    # the condition of the lower level; more than 30 is an error
    excess: float
    first_difference: int | None  # iterate at which theta differs by more than rounding explains, or that one has not
    # "rounding", "tie" of vertices, "branch" of the method; "error" of a backend, also where theta is equal; else empty
    cause: str
    reason: str  # the same in words, with the figures
    iterations: np.ndarray  # the recorded iterates
    differences: np.ndarray  # how far theta is apart there
    rounding: np.ndarray  # how far rounding explains

    @property
    def agrees(self) -> bool:
        """Whether theta and w are equal as far as the problem determines them, and no evaluation shows an error."""
        return self.end in ("same", "indistinguishable") and self.cause != "error"

    def __str__(self) -> str:
        parted = "" if self.first_difference is None else f", parted at iteration {self.first_difference}"
        why = self.cause and f"; {self.cause}: {self.reason}"
        return f"{ENDS[self.end]}, theta {self.theta:.1e} apart, w {self.w:.1e}{parted}{why}"


@dataclass(frozen=True)
class Comparison:
    """Solves by one algorithm from one start in one precision, and how they are related to the first of them.

    Attributes
    ----------
    fits : mapping of str to Result
        By backend; the first is the reference.
    relations : mapping of str to Relation
        By backend, without the reference.
    """

    fits: Mapping[str, Result]
    relations: Mapping[str, Relation]

    plot = Method("xvarpro.fit.plotting.plot_comparison")

    @property
    def agree(self) -> bool:
        """Whether all have found the same theta and w, as far as the problem determines them, and none errs."""
        return all(relation.agrees for relation in self.relations.values())

    @property
    def first_difference(self) -> int | None:
        """First recorded iterate at which theta differs by more than rounding explains; None if none does."""
        found = (relation.first_difference for relation in self.relations.values())
        return min((n for n in found if n is not None), default=None)

    @property
    def verdict(self) -> str:
        """The outcome in one sentence."""
        *names, last = self.fits
        related = self.relations.values()
        errs = any(relation.cause == "error" for relation in related)
        said = "a backend errs" if errs else ENDS[max((r.end for r in related), key=list(ENDS).index)]
        theta, w, excess = (np.max([getattr(r, key) for r in related]) for key in ("theta", "w", "excess"))
        return (
            f"{', '.join(names)} and {last}: {said}; theta {theta:.1e} apart, w {w:.1e}; "
            f"objectives and gradients at one point within {excess:.2g} eps x condition"
        )

    def record(self) -> dict[str, Any]:
        """All of it as JSON types."""
        return {
            "agree": self.agree,
            "first_difference": self.first_difference,
            "verdict": self.verdict,
            "relations": {
                name: {key: x.tolist() if isinstance(x, np.ndarray) else x for key, x in vars(r).items()}
                for name, r in self.relations.items()
            },
        }

    def __str__(self) -> str:
        return "\n".join([self.verdict, *(f"{name}: {relation}" for name, relation in self.relations.items())])


def compare(
    problem: Problem,
    theta0: Tree,
    over: Tree = None,
    *,
    backends: Sequence[str],
    algorithm: Algorithm | None = None,
    max_iter: int = 300,
    tol: float = 0.0,
    dtype: str = "float64",
    progress: bool | None = False,
) -> Comparison:
    """Solve one problem on several backends, each on its default device, and find out whether theta agrees.

    Objectives and gradients are computed again on both backends at a few iterates of the reference: at the start, where
    theta parts, and at the end. Where they differ by more than rounding explains, a backend errs.

    Parameters
    ----------
    problem, theta0, over, progress
        As in `solve`.
    backends : sequence of str
        Two or more; the first is the reference.
    algorithm : Algorithm, optional
        As in `solve`. Algorithms that choose among powers of a constant, such as ``algorithms.cr_varpro()``, take
        identical steps until rounding decides one; those that divide differences of gradients amplify rounding.
    max_iter : int
        Iterations on each.
    tol : float
        As in `solve`; with 0 all backends run to `max_iter`.
    dtype : str
        ``"float64"`` or ``"float32"``, the same for all.

    Returns
    -------
    Comparison

    Raises
    ------
    ProblemError
        Fewer than two backends, or one of them twice; and what `solve` raises.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> def M(theta, t):
    ...     xp = xv.array_namespace(theta)
    ...     return xp.exp(-xp.expand_dims(t, axis=1) * theta)
    >>> t = np.linspace(0.0, 2.0, 50)
    >>> problem = xv.separable(M, np.exp(-t) + np.exp(-5.0 * t), data=t, lam=1e-6)
    >>> found = xv.compare(problem, np.array([0.5, 8.0]), over=xv.sets.Box(0.0, 10.0),
    ...                    backends=["numpy", "array-api-strict"], algorithm=xv.algorithms.cr_varpro(), max_iter=20)
    >>> found.agree, found.first_difference
    (True, None)
    """
    names = list(backends) if isinstance(backends, Sequence) and not isinstance(backends, str) else []
    if len(names) < 2 or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise ProblemError(
            f"backends must be two or more different names, such as ['numpy', 'torch']; got {backends!r}"
        )
    tol, max_iter = check_limits(tol, max_iter)
    given = destination(theta0, None, None, None)
    start = trees.unflatten(given.layout.treedef, [to_numpy(x) for x in given.leaves])
    every = 1 + max_iter * vector(start).nbytes // MEMORY
    options: dict[str, Any] = {"algorithm": algorithm, "tol": tol, "max_iter": max_iter, "progress": progress}

    def run(name: str) -> _Path:
        thetas, where = {0: start}, {"over": over, "backend": name, "dtype": dtype}

        def record(info: IterationInfo) -> None:
            if info.iteration % every == 0:
                thetas[info.iteration] = info.theta

        try:
            fit = solve(problem, start, callback=record, **options, **where)
        except ProblemError as error:
            raise ProblemError(f"on {name}: {error}") from error
        return _Path(name, problem, fit, thetas, where)

    reference, *others = [run(name) for name in names]
    relations = {path.name: _Pair(reference, path).relation() for path in others}
    return Comparison({path.name: path.fit for path in (reference, *others)}, relations)


class _Point(NamedTuple):
    """A problem at one theta, in NumPy's arrays."""

    value: float
    gradient: list[np.ndarray]
    gap: float
    slack: float  # of inexact oracles, which under-estimate the gap by at most as much
    way: list[np.ndarray]  # to the vertices that the oracles return
    residual: np.ndarray | None  # None where rows come in chunks


class _Path(NamedTuple):
    """A solve on one backend, and its iterates by number."""

    name: str
    problem: Problem
    fit: Result
    thetas: Mapping[int, Tree]
    where: Mapping[str, Any]  # sets, backend and dtype

    def at(self, theta: Tree) -> _Point:
        """The problem at any theta; NaN where the model or the lower level fails."""
        prepared = prepare(self.problem, theta, **self.where)
        try:
            value, gradient, residual = prepared.call(_evaluated, prepared.theta)
            with prepared.backend.scope(prepared.dtype):
                way = prepared.region.blmo(prepared.theta, gradient)
        except linalg_errors():
            nan = [np.full_like(x, np.nan) for x in trees.leaves(theta)]
            return _Point(math.nan, nan, math.nan, 0.0, nan, None)
        host = prepared.backend.to_numpy
        value, gap, slack = (float(host(x)) for x in (value, way.gap_A + way.gap_B, way.slack))
        arrays = ([host(x) for x in leaves] for leaves in (gradient, way.d))
        return _Point(value, next(arrays), gap, slack, next(arrays), host(residual[0]) if residual else None)


def _evaluated(objective: Objective, theta: Leaves) -> tuple[Any, Leaves, Any]:
    point, gradient = objective.value_and_gradient(theta)
    return point.value, gradient, (point.r,) if trees.is_array(getattr(point, "r", None)) else ()


class _Both(NamedTuple):
    """Both backends at one iterate of the reference."""

    excess: float  # the largest difference, in units of what follows
    explained: float  # relative error of a gradient: machine epsilon times the condition of the lower level
    sentence: str
    jump: float  # distance of the vertices


class _Pair:
    """The reference's solve and another one."""

    def __init__(self, one: _Path, other: _Path) -> None:
        self.one, self.other, self.start, self.scale = one, other, one.thetas[0], one.fit.recipe.scale
        self.eps = float(np.finfo(one.where["dtype"]).eps)
        self.half = math.sqrt(self.eps)  # of the digits

    def relation(self) -> Relation:
        """Both ends, the iterate where theta parts, and why."""
        one, other = self.one, self.other
        common = sorted(one.thetas.keys() & other.thetas.keys())
        differences = np.asarray([apart(other.thetas[n], one.thetas[n], self.start) for n in common])
        both = {n: self._both(n) for n in (0, common[-1])}
        # each step is off by as much as its gradient, relative, and the errors of steps add up
        worst = max(found.explained for found in both.values())
        rounding = np.minimum(GRADIENT * (np.asarray(common) + 1) * worst, self.half)
        theta, w = apart(other.fit.theta, one.fit.theta, self.start), distance(other.fit.w, one.fit.w)
        first = next((n for n, x, bound in zip(common, differences, rounding, strict=True) if not x <= bound), None)
        if first is None and not theta <= rounding[-1]:
            first = common[-1] + 1
        cause, reason = "", ""
        if first is not None:
            before = max(n for n in common if n < first)
            both |= {n: self._both(n) for n in {before, first} & {*common} - {*both}}
            cause, reason = self.cause(before, first, both[before].jump)
        most = max(both.values())
        if most.excess > GRADIENT:
            cause, reason = "error", most.sentence
        end = self._end(theta, w)
        return Relation(end, theta, w, most.excess, first, cause, reason, np.asarray(common), differences, rounding)

    def _both(self, n: int) -> _Both:
        theta = self.one.thetas[n]
        here, there = (path.at(theta) for path in (self.one, self.other))
        # near a minimum a gradient is a small difference of large terms, whose length is no scale for its error
        size = max(norm(here.gradient), self.scale / (norm(theta) or math.inf)) or 1.0
        verified = solve(self.one.problem, theta, max_iter=0, progress=False, **self.one.where).verified
        explained = self.eps * max(verified.condition, 1.0) + verified.gradient_error / size
        # <g, v> of the best vertex v is off by as much as g, whichever of those that tie is taken
        gaps = max(abs(there.gap - here.gap) - here.slack - there.slack, 0.0)
        off = {
            "gradients": norm([x - y for x, y in zip(there.gradient, here.gradient, strict=True)]) / size,
            "objectives": abs(there.value - here.value) / self._spread(here.value),
            "gaps, of the best vertices,": gaps / (size * (norm(here.way) + norm(theta)) or 1.0),
        }
        off = {what: math.inf if math.isnan(x) else x for what, x in off.items()}
        what = max(off, key=lambda what: off[what])
        said = f"at iterate {n} of {self.one.name} both {what} differ by {off[what]:.1e} relative"
        said += f", where rounding explains {GRADIENT * explained:.1e}"
        return _Both(off[what] / explained, explained, said, apart(there.way, here.way, theta))

    def _spread(self, value: float) -> float:
        """What the rounding of an objective is relative to: half the square of a difference of terms as large as y."""
        return abs(value) + math.sqrt(abs(value) * self.scale) + self.eps * self.scale or 1.0

    def _end(self, theta: float, w: float) -> str:
        """Of `ENDS`, from the distances of theta and w."""
        if theta <= self.half:
            return "same" if w <= self.half else "other w"
        a, b = (self.one.at(path.fit.theta) for path in (self.one, self.other))
        converged = self.one.fit.success and self.other.fit.success
        left = self.one.fit.recipe.tol * abs(a.value) if converged else 0.0
        equal = abs(b.value - a.value) <= GRADIENT * self.eps * self._spread(a.value) + left
        if not equal or a.residual is None or b.residual is None:
            return "different"
        alike = norm(b.residual - a.residual) <= self.half * math.sqrt(2 * self.scale) + math.sqrt(2 * left)
        return "indistinguishable" if alike else "different"

    def cause(self, before: int, first: int, jump: float) -> tuple[str, str]:
        """Why theta parts between two iterates, where both backends compute the same; vertices differ by `jump`."""
        one, other, method = self.one, self.other, self.one.fit.recipe.algorithm
        if first not in one.thetas or first not in other.thetas:
            ends = (
                f"{path.name} ends after iteration {path.fit.n_iter}, {path.fit.status.name}" for path in (one, other)
            )
            return "branch", ", ".join(ends)
        traces = [path.fit.trace for path in (one, other)]
        a, b = (np.maximum(trace.alpha_A, trace.alpha_B)[before + 1 : first + 1] for trace in traces)
        off = apart(other.thetas[first], one.thetas[first], self.start)
        at_once = off > math.sqrt(self.half) * float(np.max(a))  # a quarter of the digits of a step
        if at_once and jump > self.half and isinstance(method, Algorithm) and not method.needs_projection:
            return "tie", f"steps to other vertices, of the same value, lead to theta {off:.1e} apart"
        for n in np.flatnonzero(~(np.abs(a - b) <= self.half * np.maximum(a, b))):
            return "branch", f"steps {a[n]:.3g} and {b[n]:.3g} in iteration {before + 1 + n}"
        return ("branch" if at_once else "rounding"), f"the same steps lead to theta {off:.1e} apart"


def apart(a: Tree, b: Tree, start: Tree) -> float:
    """Distance of a from b, relative, in the leaf where it is largest: leaves may have units of their own.

    A leaf that has lost half of its digits since the start counts relative to those.
    """
    leaves = [*zip(*map(trees.leaves, (a, b, start)), strict=True)]
    half = math.sqrt(np.finfo(to_numpy(leaves[0][1]).dtype).eps)
    return float(np.max([distance([x], [y], half * norm([x0])) for x, y, x0 in leaves]))


def distance(a: Tree, b: Tree, size: float = 0.0) -> float:
    """Euclidean distance of a and b, relative to the larger of ``|b|`` and `size`."""
    x, y = vector(a), vector(b)
    gap = float(np.linalg.norm(x - y))
    return gap / (max(size, float(np.linalg.norm(y))) or 1.0)


def norm(tree: Tree) -> float:
    """Length of all leaves as one vector."""
    return float(np.linalg.norm(vector(tree)))
