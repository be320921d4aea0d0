"""Best-first branch and bound over theta: `certify`."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any

import numpy as np
import optree

from xvarpro import backends
from xvarpro.certificate.designs import Design
from xvarpro.certificate.intervals import EPS
from xvarpro.certificate.outcome import Boxes, Certificate
from xvarpro.core import trees
from xvarpro.core.checks import number, shown
from xvarpro.core.status import Bar, Status
from xvarpro.core.struct import NAMESPACE, Array, Tree
from xvarpro.driver.evaluate import project
from xvarpro.errors import ModelError, ProblemError
from xvarpro.fit.multistart import multistart
from xvarpro.fit.result import Result
from xvarpro.fit.solve import solve
from xvarpro.problem.problem import Problem
from xvarpro.sets import Box, CappedSimplex, Simplex
from xvarpro.sets.interface import Set
from xvarpro.sets.region import resolve

ENTRIES = 8  # of theta at most: boxes grow with their power
STARTS = 16


def certify(
    problem: Problem | Result,
    over: Tree = None,
    *,
    within: float = 1e-2,
    time_limit: float = 60.0,
    alike: Sequence[int] = (),
    bounds: Sequence[int] | Callable[[np.ndarray, np.ndarray, Tree], tuple[Array, Array]] | None = None,
    progress: bool | None = None,
) -> Certificate:
    """The lowest minimum over a box of theta, with a proof: no theta in it has an objective below `bound`.

    Branch and bound over theta alone, lowest bounds first, all boxes of a round in one batch, on the host in float64. A
    box is split until its bound is near the lowest value that was found.

    Parameters
    ----------
    problem : Problem or Result
        From `separable`, with one target, w free, `lower.Nonnegative` or `lower.Bounded`, a constant ridge and no loss,
        covariance or penalty R. A `Result`, as in ``fit.certify(...)``, has the first theta to beat.
    over : Box, pair of bounds, Simplex, CappedSimplex or tree of them, optional
        Where theta is searched: at most 8 entries, with finite bounds. Boxes have arrays of theta's shape where a
        problem is given; simplices need a fit, whose leaf is a vector. None takes the sets of the fit.
    within : float
        It ends where ``value - bound <= within * value``; in (0, 1).
    time_limit : float
        Seconds after which it ends with the bound that it has.
    alike : sequence of int, optional
        Entries of theta, numbered through all leaves, that may change places, and w's entries with them, such as rates:
        theta is searched in ascending order of these. Of components with several entries, one of each. A simplex
        counts without its last entry.
    bounds : sequence of 1 and -1, or callable, optional
        In the place of enclosures that follow from M. A sign for each entry of theta says that M's entries, as they are
        computed, do not fall (1) or do not rise (-1) in it. Or ``bounds(lower, upper, data)`` -> two arrays (b, m, n)
        between which M is, for boxes of theta (b, p).
    progress : bool, optional
        Whether a line shows boxes a second and the gap; None where standard error is a terminal.

    Returns
    -------
    Certificate
        ``CONVERGED`` where `within` was reached. Ctrl-C ends it early, with a valid bound.

    Raises
    ------
    ProblemError
        The problem, the box or an option is none of the above; M has a function without enclosures.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> t = np.linspace(0.0, 1.0, 20)
    >>> def M(theta, t):
    ...     return xv.array_namespace(theta).cos(t[:, None] * theta)
    >>> problem = xv.separable(M, 2.0 * np.cos(9.0 * t) + 0.1 * np.cos(40 * t), data=t)
    >>> found = xv.certify(problem, xv.sets.Box(np.array([1.0]), np.array([30.0])))
    >>> np.round(found.theta, 2), found.bound <= found.value <= 1.0101 * found.bound
    (array([9.]), True)
    """
    fit = problem if isinstance(problem, Result) else None
    stated: Any = problem if fit is None else fit.stated
    over = fit.recipe.over if fit is not None and over is None else over
    if not (0 < number(within) < 1 and number(time_limit) > 0):
        raise ProblemError(f"within must be a number in (0, 1), and time_limit one > 0; got {within!r}, {time_limit!r}")
    box, shapes, simplices = _box(over, None if fit is None else fit.theta)
    p = box.lower.size
    if not all(isinstance(i, int | np.integer) and 0 <= i < p for i in alike):
        raise ProblemError(f"alike must be numbers of theta's {p} entries, from 0 on; got {alike!r}")
    search = _Search(stated, over, Design(stated, shapes, bounds, alike, simplices), box, alike, float(within))
    return search.run(fit, float(time_limit), progress)


def _box(over: Tree, theta: Tree) -> tuple[Any, Any, Any]:
    """The box of theta as a vector, how a tree is made of one, and simplices: the sum, and whether all is spent."""
    if theta is None:
        sets, treedef = optree.tree_flatten(over, is_leaf=lambda x: isinstance(x, Set) or _pair(x), namespace=NAMESPACE)
        sets = [Box(*C) if _pair(C) else C for C in sets]
        like: list[Any] = [None] * len(sets)
    else:
        like, treedef = trees.flatten(theta)
        sets = [dict(resolve(over, theta).constrained).get(i) for i in range(len(like))]
    if not sets or not all(isinstance(C, Box | Simplex | CappedSimplex) for C in sets):
        raise ProblemError(f"over must be a Box for each leaf of theta, or a simplex; got {shown(over)}")
    lower, upper, simplices, at = [], [], {}, 0
    parts: list[Any] = []
    for C, x in zip(sets, like, strict=True):
        ends = (C.lower, C.upper) if isinstance(C, Box) else (0.0, float(C.radius))
        low, high = (np.asarray(backends.to_numpy(b), dtype=np.float64) for b in ends)
        shape = np.broadcast_shapes(low.shape, high.shape) if x is None else tuple(x.shape)
        if not (shape or x is not None) or not (np.isfinite(low).all() and np.isfinite(high).all()):
            raise ProblemError(
                "over must have finite bounds, arrays of theta's shape where no fit is given, as (np.array([0.0]), "
                f"np.array([1.0])) for one entry; got {C!r}. A fit knows the shape: fit.certify()"
            )
        if not isinstance(C, Box):
            if len(shape) != 1 or shape[0] < 2:
                raise ProblemError(f"over takes a simplex for a leaf of shape (n,), n > 1; got {shape} and {C!r}")
            simplices[len(parts)] = float(C.radius), isinstance(C, Simplex)
            shape = (shape[0] - isinstance(C, Simplex),)
        lower += np.broadcast_to(low, shape).reshape(-1).tolist()
        upper += np.broadcast_to(high, shape).reshape(-1).tolist()
        parts.append((slice(at, len(lower)), shape))
        at = len(lower)
    if at > ENTRIES:
        raise ProblemError(
            f"certify takes theta of at most {ENTRIES} entries, since boxes grow with their power; got {at}. Hold some "
            "at their estimates, or use xv.multistart, which proves nothing"
        )
    return Box(np.asarray(lower), np.asarray(upper)), (treedef, parts), simplices


def _pair(x: Any) -> bool:
    """Whether it is a lower and an upper bound, which stand for a `Box`."""
    return isinstance(x, list | tuple) and len(x) == 2 and all(isinstance(e, Real) or trees.is_array(e) for e in x)


class _Search:
    """The state of a search: open boxes with their bounds, and the best fit."""

    def __init__(
        self, problem: Problem, over: Tree, design: Design, box: Box, alike: Sequence[int], share: float
    ) -> None:
        self.problem, self.over, self.design, self.alike, self.share = problem, over, design, list(alike), share
        self.lower, self.upper = np.asarray(box.lower), np.asarray(box.upper)
        self.value, self.count = math.inf, 0
        self.fit: Result | None = None
        self.open = Boxes(self.lower[None], self.upper[None], np.asarray([-math.inf]))
        self.parts = self.widths(*self.open[:2])  # by the largest of which a box is split
        self.path: list[tuple[float, float, float]] = []

    @property
    def bound(self) -> float:
        """The lowest of all boxes; 0 at least, as of a sum of squares."""
        return max(0.0, min(self.value, self.open.bound.min(initial=math.inf)))

    def run(self, fit: Result | None, limit: float, progress: bool | None) -> Certificate:
        """Rounds until the gap is small enough, or no box can be split, or for so many seconds."""
        begun, status = time.perf_counter(), Status.TIME_LIMIT
        try:
            self.design.bounds(self.lower[None], self.upper[None], math.inf)  # a model without enclosures is not fitted
            if fit is not None:
                self.take(fit)
            self.descend(0.5 * (self.lower + self.upper), STARTS)
            with Bar(None, progress, "box", f"certify: {len(self.lower)} entries of theta, {limit:g} s") as bar:
                while (seconds := time.perf_counter() - begun) < limit:
                    self.path.append((seconds, self.value, self.bound))
                    if self.open.bound.min(initial=math.inf) >= (1 - self.share) * self.value:
                        status = Status.CONVERGED
                        break
                    before = self.count
                    if not self.round():
                        status = Status.ROUNDING
                        break
                    bar.update(self.count - before, self.value, self.value - self.bound)
        except KeyboardInterrupt:
            status = Status.INTERRUPTED
        found = self.open  # and its bounds, which an interruption leaves as they are
        order = np.argsort(found.bound)
        order = order[found.bound[order] < self.value]
        boxes = Boxes(found.lower[order], found.upper[order], np.maximum(found.bound[order], 0.0))
        path = np.asarray(self.path).reshape(-1, 3)
        ended = time.perf_counter() - begun
        level, alike = self.problem.lower, "alike= for entries that may change places"
        helps = (alike, self.alike), ("W=Nonnegative(), bounds of w", level.W), ("a ridge", level.lam)
        sooner = tuple(words for words, had in helps if not had)
        return Certificate(self.value, float(self.bound), boxes, status, self.count, ended, path, self.fit, fit, sooner)

    def take(self, fit: Result) -> None:
        """Let a fit be the best where it is, and in the box."""
        leaves = zip(trees.leaves(fit.theta), self.design.shapes[1], strict=True)
        theta = np.concatenate([np.reshape(backends.to_numpy(x), -1)[: at.stop - at.start] for x, (at, _) in leaves])
        inside = (theta >= self.lower).all() and (theta <= self.upper).all()
        if inside and float(fit.value) < self.value:
            self.value, self.fit = float(fit.value), fit

    def descend(self, theta: np.ndarray, starts: int = 1) -> None:
        """Fit from a place of the box, or from others too."""
        where = self.problem, project(self.design.tree(theta), self.over), self.over
        try:
            if starts == 1:
                self.take(solve(*where, max_iter=200, progress=False))
            else:
                log = bool((self.lower > 0).all())
                self.take(multistart(*where, starts=starts, log=log, progress=False).best)
        except ModelError:  # rounding hides the gradient from the solver; the bounds need neither
            return

    def round(self) -> bool:
        """Split boxes with the lowest bounds, and bound their halves; False where no number is between their ends."""
        lower, upper, bound = self.open
        order = np.argsort(bound)[: self.design.batch]
        order = order[bound[order] < (1 - self.share) * self.value]
        k = np.argmax(np.where(upper[order] > lower[order], self.parts[order], -1.0), axis=1)
        rows = np.arange(len(order))
        a, b = lower[order, k], upper[order, k]
        with np.errstate(invalid="ignore"):
            middle = np.where((a > 0) & (b > 4 * a), np.sqrt(a * b), 0.5 * (a + b))
        split = (a < middle) & (middle < b)
        if not split.any():
            return False
        low, high = np.repeat(lower[order][None], 2, axis=0), np.repeat(upper[order][None], 2, axis=0)
        high[0, rows, k] = low[1, rows, k] = middle
        for at, radius in self.design.simplices:  # what the lower ends of the others leave
            room = radius - low[..., at].sum(-1, keepdims=True) + low[..., at] + 64 * EPS * radius
            high[..., at] = np.minimum(high[..., at], room)
        ordered = [(low <= high).all(-1)] + [low[..., i] <= high[..., j] for i, j in itertools.pairwise(self.alike)]
        keep = np.logical_and.reduce([*ordered, np.broadcast_to(split, low.shape[:2])])
        low, high, above = low[keep], high[keep], np.broadcast_to(bound[order], keep.shape)[keep]
        parts = np.empty_like(low)
        if len(low):
            found = self.design.bounds(low, high, math.sqrt(2 * self.value) * (1 + 64 * EPS))
            best = int(np.argmin(found.centre))
            theta = 0.5 * (low[best] + high[best])
            outside = any(theta[at].sum() > radius for at, radius in self.design.simplices)
            if found.centre[best] < self.value * (1 - 1e-9) and not outside:
                self.descend(theta)
            above = np.maximum(above, found.lower)
            known = np.isfinite(found.lower) & (found.parts.max(1) > 0)
            parts = np.where(known[:, None], found.parts, self.widths(low, high))
        rest = np.ones(len(bound), dtype=bool)
        rest[order[split]] = False
        useful = above < self.value
        kept = ((lower, low), (upper, high), (bound, above), (self.parts, parts))
        *boxes, self.parts = (np.concatenate([old[rest], new[useful]]) for old, new in kept)
        self.open, self.count = Boxes(*boxes), self.count + len(low)
        return True

    def widths(self, lower: np.ndarray, upper: np.ndarray) -> np.ndarray:
        """Of boxes against the whole box, by logarithms where it spans more than a factor of 4."""
        wide = (self.lower > 0) & (self.upper > 4 * self.lower)
        with np.errstate(all="ignore"):
            logs = np.log(upper / lower) / np.log(self.upper / self.lower)
            plain = (upper - lower) / (self.upper - self.lower)
        return np.nan_to_num(np.where(wide, logs, plain), nan=0.0)
