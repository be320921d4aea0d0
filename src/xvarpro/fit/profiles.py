"""Confidence intervals by the profile of the objective, each entry of theta held in turn, all in one batch.

An entry is held by one more row of the least-squares problem, ``STIFF s / stderr (theta_j - at)``. A theta that
minimises their sum minimises the objective among all points of the sets with the same theta_j. So it is a point of the
profile, near `at`, whatever the sets are. The row is taken off the value again. Other likelihoods have no place for
such a row: there an entry is held by its bounds, in one solve after the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, NamedTuple, final

import numpy as np

from xvarpro import backends
from xvarpro.batch.lift import lifted
from xvarpro.core import trees
from xvarpro.core.struct import REQUIRED, Struct, Tree
from xvarpro.errors import ProblemError
from xvarpro.fit.many import solve_many
from xvarpro.fit.resampling import like_theta, sent, to_solve_again
from xvarpro.fit.solve import solve_on
from xvarpro.operators.interface import Operator
from xvarpro.problem.problem import Problem
from xvarpro.results.outcome import Outcome
from xvarpro.sets import Box
from xvarpro.sets.each import Each
from xvarpro.statistics import constraints
from xvarpro.statistics.frames import vector
from xvarpro.statistics.intervals import IntervalMethod, Intervals, standard_errors, student, warnings
from xvarpro.statistics.standard_errors import Statistics
from xvarpro.statistics.theory import statistics

STIFF = 10.0  # its square is the curvature of the row that holds an entry over that of the objective
CLOSE = 1e-4  # relative error of a height at the end of an interval
TRIALS = 40  # points of a profile at most
SLACK = 1e-3  # the least of a row
SPREAD = (
    "the noise is taken to be that of the likelihood times the reduced chi2; with absolute_sigma=True it is the "
    "likelihood's"
)
TOL = 1e-8  # of solves with an entry held by its bounds


@final
@dataclass(frozen=True)
class Profile(IntervalMethod):
    """Where the objective, minimised with one entry of theta held, exceeds its minimum by as much as noise may explain.

    With S twice the objective, of a likelihood the deviance, the interval of an entry is where ``(S - S_min) / s^2`` is
    at most the square of Student's quantile, of the normal one if sigma is known. It asks for no linear model, is the
    same for every parametrisation, and respects the sets. Both ends of all entries are searched for together, in one
    batch; of likelihoods one by one. Weights w have no profile. Source: Bates and Watts, Nonlinear Regression Analysis
    and Its Applications (1988), chapter 6.

    Examples
    --------
    >>> import xvarpro as xv
    >>> xv.statistics.Profile()
    Profile()
    """

    def intervals(self, fit: Outcome, s: Statistics, level: float) -> Intervals:
        found = _Profiles(fit, s)
        ends, notes = found.ends(student(s, level))
        lower, upper = ends.reshape(2, -1)
        notes = [*warnings(replace(s, sandwich=False)), *notes]
        notes += [SPREAD] if found.by_likelihood and not s.absolute_sigma else []
        return Intervals(s.names, found.best, lower, upper, level, "profile of the objective", notes)


class Curve(NamedTuple):
    """The profile of one entry of theta, from `profile`, as NumPy arrays.

    Attributes
    ----------
    best, stderr : float
        The estimate, and its standard error by linear theory.
    at : array
        Values of the entry.
    height : array
        ``sqrt((S - S_min) / s^2)``, the square root of by how much the objective rises; negative below the estimate. A
        straight line for a linear model. NaN where a minimisation failed.
    theta : array, shape (points, p)
        The entries of theta that minimise it.
    """

    best: float
    stderr: float
    at: np.ndarray
    height: np.ndarray
    theta: np.ndarray


def profile(
    fit: Outcome, entry: int | str, *, points: int = 21, width: float = 3.0, absolute_sigma: bool | None = None
) -> Curve:
    """The profile of an entry of theta, `width` standard errors to either side of its estimate, within its bounds.

    Parameters
    ----------
    fit : Result
    entry : int or str
        In the order of theta's leaves, or its name in the report, such as ``"theta[0]"``.
    points : int
        At which it is computed, all in one batch.
    width : float
    absolute_sigma : bool
        As for `linear_theory`.

    Returns
    -------
    Curve

    Raises
    ------
    ProblemError
        As `linear_theory`; theta has no such entry; w is complex; the residual is zero to rounding.
    """
    found = _Profiles(fit, statistics(fit, absolute_sigma=absolute_sigma))
    names = found.statistics.names
    entry = names.index(entry) if entry in names else entry
    if not isinstance(entry, Integral) or not 0 <= entry < len(names):
        raise ProblemError(
            f"entry must be one of 0 to {len(names) - 1}, the entries of theta, or a name such as {names[0]!r}; "
            f"got {entry!r}"
        )
    j = np.full(points, entry)
    at = found.best[j] + np.linspace(-width, width, points) * found.step[j]
    at = np.clip(at, found.lower[j], found.upper[j])
    at, height, theta = found.heights(j, at, np.tile(found.best, (points, 1)))
    best, stderr = float(found.best[entry]), float(standard_errors(found.statistics)[entry])
    return Curve(best, stderr, at, np.sign(at - best) * height, theta)


class _Profiles:
    """Profiles of the entries of theta."""

    def __init__(self, fit: Outcome, statistics: Statistics) -> None:
        self.by_likelihood = fit.loss is not None and fit.loss.likelihood
        self.problem = fit.stated if self.by_likelihood else to_solve_again(fit)
        self.fit, self.statistics = fit, statistics
        if statistics.exact and not statistics.absolute_sigma:
            raise ProblemError(
                "a profile measures by the residual how far the objective rises; got one that is zero to rounding. "
                "Give weights 1 / sigma^2 and absolute_sigma=True"
            )
        self.best = vector(fit.theta).astype(float)
        self.lower, self.upper, self.entrywise = constraints.ranges_of_theta(statistics.at)
        if self.by_likelihood and not self.entrywise.all():
            raise ProblemError(
                "profiles of a likelihood hold an entry of theta by its bounds: each entry must be free or in a Box; "
                "got another set. Use the method 'linear'"
            )
        # by how much, at most, the objective of the fit is above its own minimum, for a descent without second order
        self.open = 2 * fit.recipe.tol * fit.value / statistics.variance if self.by_likelihood else 0.0
        self.known: dict[tuple[int, float], Held] = {}
        self.step = self._step()

    def _step(self) -> np.ndarray:
        """By how much to move an entry first: its standard error, or what the residual alone says of it."""
        s = self.statistics
        p = len(self.best)
        size = np.linalg.norm(s.at.X.reshape(p, -1), axis=1)
        own, alone = standard_errors(s)[:p], s.variance**0.5 / np.where(size > 0, size, np.inf)
        step = np.where(np.isfinite(own) & (own > 0), own, alone)
        return np.where(step > 0, step, np.maximum(np.abs(self.best), 1e-3))

    def ends(self, t: float) -> tuple[np.ndarray, list[str]]:
        """Where the height of each entry is t below the estimate, then above it, (2 p,), and what is to be said of it.

        An end that is not found is the nearest point known to be above t: where there is none, the end of the set.
        """
        p = len(self.best)
        j, sign = np.tile(np.arange(p), 2), np.repeat([-1.0, 1.0], p)
        best, bound = self.best[j], np.concatenate([self.lower, self.upper])
        at = _within(best + sign * t * self.step[j], bound, sign)
        inside, low = best.copy(), np.zeros(2 * p)  # the last point below t, and the first one above
        outside, high = np.full(2 * p, np.nan), np.ones(2 * p)
        near, above, failed, slack = np.tile(self.best, (2 * p, 1)), bound.copy(), np.zeros(2 * p, bool), np.ones(2 * p)
        ends, left = at.copy(), at != best
        for trial in range(TRIALS):
            if not left.any():
                break
            reached, height, theta = self.heights(j, at, near, slack)  # of all: a program is compiled for one size
            reached = np.where(np.isnan(height), at, reached)
            off, to_go = np.abs(reached - at), np.abs(at - inside)
            below = left & (height < t)
            beyond = left & ~below
            inside, low = np.where(below, reached, inside), np.where(below, height, low)
            near = np.where(below[:, None], theta, near)
            outside, high = (
                np.where(beyond, reached, outside),
                np.where(beyond & (height < 9 * t), height, np.where(beyond, 9 * t, high)),
            )
            above = np.where(beyond & np.isfinite(height), reached, above)
            failed = np.where(beyond, np.isnan(height), failed)
            there = np.abs(height - t) <= CLOSE * t
            stopped = below & (at == bound) & (off <= CLOSE * np.abs(bound - best))
            slack = np.where(off > 0.1 * to_go, np.maximum(0.1 * slack, SLACK), slack)
            ends = np.where(left & stopped, bound, np.where(left & there, reached, ends))
            left = left & ~there & ~stopped
            share = (t - low) / (high - low) if trial % 3 < 2 else 0.5
            between = inside + (outside - inside) * np.clip(share, 0.02, 0.98)
            further = best + (inside - best) * np.clip(1.05 * t / np.maximum(low, 0.1 * t), 1.3, 4.0)
            at = np.where(left, np.where(np.isnan(outside), _within(further, bound, sign), between), at)
        ends, failed = np.where(left, above, ends), left & failed
        flat = (ends == bound) & ~failed & np.tile(self.lower < self.upper, 2)
        notes = [
            f"the objective does not rise enough to give {self._sides(flat)}: there it is the bound of the set, or inf",
            f"minimisations failed on the way to {self._sides(failed)}: the interval may be too wide",
            "a lower minimum was found on the way: solve again from other starts",
        ]
        said = (flat.any(), failed.any(), self.lowest < -1e-6 - self.open)
        return ends, [note for note, yes in zip(notes, said, strict=True) if yes]

    def _sides(self, ends: np.ndarray) -> str:
        """Some of the ends (2 p,) in words."""
        names = self.statistics.names
        sides = [f"the {side} end of {name}" for side in ("lower", "upper") for name in names]
        return constraints.listed([side for side, yes in zip(sides, ends, strict=True) if yes])

    lowest = 0.0  # rise of the objective that was met, in units of the variance: below 0 there is a better fit

    def heights(
        self, j: np.ndarray, at: np.ndarray, near: np.ndarray, slack: Any = 1.0
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Points of the profiles of entries j near values `at`: the entries (b,), heights (b,), minimisers (b, p).

        Minimisations start from points `near` of the profiles, (b, p); less `slack` brings them nearer to `at`. Heights
        are NaN where one fails.
        """
        held = np.arange(len(self.best)) == j[:, None]
        C, variance = self.statistics.influence.covariance_of_theta(self.statistics.noise), self.statistics.variance
        # the way that linear theory sees the minimum go
        slope = C[j] / np.where(C[j, j] > 0, C[j, j], 1.0)[:, None]
        slope[self.statistics.influence.undetermined_theta[j]] = 0.0
        start = np.where(held, at[:, None], near + slope * (at - near[np.arange(len(j)), j])[:, None])
        start = np.where(self.entrywise, np.clip(start, self.lower, self.upper), near)  # which is in every set
        held_at = self._by_bounds if self.by_likelihood else self._by_rows
        reached, value, ends, success = held_at(j, at, start, slack)
        rise = 2 * (value - self.fit.value) / variance
        self.lowest = min(self.lowest, float(np.min(rise[success], initial=0.0)))
        return reached, np.where(success, np.sqrt(np.maximum(rise, 0.0)), np.nan), ends

    def _by_rows(self, j: np.ndarray, at: np.ndarray, start: np.ndarray, slack: Any) -> Held:
        """All of them in one batch."""
        held, theta, variance = np.arange(len(self.best)) == j[:, None], self.fit.theta, self.statistics.variance
        far = np.maximum(self.step[j], 0.01 * np.abs(at - self.best[j]))  # further off rounding would be all of the row
        stiffness = STIFF * variance**0.5 / (slack * far)
        rows = trees.map_leaves(Each, like_theta(theta, stiffness[:, None] * held))
        target = Each(sent(stiffness * at, trees.leaves(theta)[0]))
        problem = _with_row(self.problem, rows, target)
        found = solve_many(lifted(problem), like_theta(theta, start), self.fit.recipe.over, progress=False)
        ends = np.concatenate([_rows(x, len(j)) for x in trees.leaves(found.theta)], axis=1)
        reached = ends[np.arange(len(j)), j]
        value = _rows(found.value, len(j))[:, 0] - 0.5 * (stiffness * (at - reached)) ** 2
        return Held(reached, value, ends, np.asarray(found.success))

    def _by_bounds(self, j: np.ndarray, at: np.ndarray, start: np.ndarray, slack: Any) -> Held:
        """One after the other, by the loss, at these values exactly; what has been solved is not solved again."""
        for entry, x, theta in zip(j.tolist(), at.tolist(), start, strict=True):
            if (entry, x) not in self.known:
                self.known[entry, x] = self._by_loss(entry, x, theta)
        found = [self.known[place] for place in zip(j.tolist(), at.tolist(), strict=True)]
        return Held(*map(np.array, zip(*found, strict=True)))

    def _by_loss(self, entry: int, x: float, start: np.ndarray) -> Held:
        fit = self.fit
        bounds = np.stack([self.lower, self.upper, start])
        bounds[:, entry] = x
        lower, upper, theta0 = (like_theta(fit.theta, row) for row in bounds)
        pairs = zip(trees.leaves(lower), trees.leaves(upper), strict=True)
        over = trees.unflatten(trees.flatten(fit.theta)[1], [Box(*pair) for pair in pairs])
        found = solve_on(fit.stated, theta0, over, tol=min(TOL, fit.recipe.tol), progress=False)
        return Held(x, found.value, vector(found.theta).astype(float), found.success)


class Held(NamedTuple):
    """Minima with an entry of theta held: its values (b,), objectives, minimisers (b, p), and whether they are such."""

    reached: Any
    value: Any
    theta: Any
    success: Any


def _rows(x: Any, b: int) -> np.ndarray:
    return backends.to_numpy(x).reshape(b, -1).astype(float)


def _within(x: np.ndarray, bound: np.ndarray, sign: np.ndarray) -> np.ndarray:
    """`x`, no further than bounds on the side of the sign."""
    return sign * np.minimum(sign * x, sign * bound)


def _with_row(problem: Problem, row: Tree, target: Each) -> Problem:
    """The problem with ``target - <row, theta>`` as one more residual, to which w does not contribute."""
    level = problem.lower
    y, weights = level.y, level.weights
    given = {"data": problem.data, "row": row, "target": target}
    if not callable(y):
        given["y"] = _without_masked(y, weights)
    if weights is not None:
        xp = trees.array_namespace(weights)
        weights = xp.concat([weights, xp.ones_like(weights[:1])])
    C: Any = level.covariance
    if C is not None:
        C = backends.to_numpy(C)
        C = np.block([[C, np.zeros((len(C), 1))], [np.zeros((1, len(C))), np.ones((1, 1))]])
    with_target = TargetWithRow(y if callable(y) else None)
    level = replace(level, M=DesignWithRow(level.M), y=with_target, weights=weights, covariance=C)
    return replace(problem, lower=level, data=given)


def _without_masked(y: Any, weights: Any) -> Any:
    """Entries without weight, which may be NaN, as zeros."""
    if weights is None:
        return y
    xp = trees.array_namespace(y)
    return xp.where((weights if weights.ndim == y.ndim else weights[:, None]) > 0, y, xp.zeros_like(y))


# dataclasses and no closures: equal ones are compiled once
@final
@dataclass(frozen=True)
class DesignWithRow(Struct):
    """A design and a row of zeros."""

    M: Callable[..., Any] = REQUIRED

    def __call__(self, theta: Tree, data: Tree) -> Any:
        M = self.M(theta, data["data"])
        M = M.dense() if isinstance(M, Operator) else M
        xp = trees.array_namespace(M)
        return xp.concat([M, xp.zeros_like(M[..., :1, :])], axis=-2)


@final
@dataclass(frozen=True)
class TargetWithRow(Struct):
    """A target and the row that holds an entry of theta, shared out among the right-hand sides."""

    y: Callable[..., Any] | None = None

    def __call__(self, theta: Tree, data: Tree) -> Any:
        y = data["y"] if self.y is None else self.y(theta, data["data"])
        xp = trees.array_namespace(y)
        pairs = zip(trees.leaves(data["row"]), trees.leaves(theta), strict=True)
        off = data["target"] - sum(xp.sum(row * x) for row, x in pairs)
        one = xp.ones_like(y[:1])
        return xp.concat([y, one * (off / math.prod(one.shape) ** 0.5)])
