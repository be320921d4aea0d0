"""What a result claims, one claim at a time, and how each is looked at."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from xvarpro.backends import to_numpy
from xvarpro.core import trees
from xvarpro.core.status import Status
from xvarpro.core.struct import Tree
from xvarpro.driver.evaluate import project
from xvarpro.driver.run import DeadUnitsWarning
from xvarpro.driver.solve import solve
from xvarpro.driver.transfer import PrecisionWarning
from xvarpro.problem.problem import Problem
from xvarpro.reproducibility.comparison import Apart, Comparison, distance
from xvarpro.results.provenance import alike
from xvarpro.results.recipe import Recipe, fingerprints
from xvarpro.results.result import Result
from xvarpro.sets.region import resolve

FEASIBLE = 1e3  # machine epsilons that a point may violate its set by, relative to its size, as `solve` takes a start
ROUNDING = 10.0  # machine epsilons of 1/2 |y|^2 that count as none of a gap, as in `solve`
DIGITS = 100.0  # machine epsilons of |y| that a residual may be off
GRADIENT = 30.0  # machine epsilons times the condition that two gradients at one point may be apart


@dataclass(frozen=True)
class Check:
    """One claim of a result, looked at.

    Attributes
    ----------
    what : str
    passed : bool
    sentence : str
        What was found.
    difference, tolerance : float
        How far it is off, and how far it may be; NaN where it is a matter of equal or not.
    """

    what: str
    passed: bool
    sentence: str
    difference: float = math.nan
    tolerance: float = math.nan


class Look:
    """A result beside the problem that it is said to be of: every claim of it is a `Check`."""

    def __init__(
        self,
        fit: Result,
        recipe: Recipe,
        problem: Problem,
        over: Any,
        where: Mapping[str, Any],
        tolerance: float,
        progress: bool | None,
    ) -> None:
        self.fit, self.recipe, self.problem, self.over, self.where = fit, recipe, problem, over, where
        self.tolerance, self.progress = tolerance, progress
        self.eps = max(float(np.finfo(dtype).eps) for dtype in (where["dtype"], fit.provenance["dtype"]))
        self.provenance: Mapping[str, Any] = {**fit.provenance, **{k: x for k, x in where.items() if x is not None}}
        self._found = fingerprints(problem, recipe.theta0)

    def same_problem(self) -> Check:
        names = sorted(name for name in {**self.recipe.fingerprints, **self._found} if not name.startswith("theta0"))
        other = self._other(names)
        if other:
            return Check("problem", False, f"this is another problem than the one that was solved: {_listed(other)}")
        return Check("problem", True, f"its {len(names)} arrays and numbers are those that were solved with")

    def same_start(self) -> Check:
        names = sorted(name for name in self._found if name.startswith("theta0"))
        other = self._other(names)
        if other:
            return Check("start", False, f"the start is not the one that the solve began with: {_listed(other)}")
        return Check("start", True, "it is the one that the solve began with")

    def _other(self, names: list[str]) -> list[str]:
        return [name for name in names if self.recipe.fingerprints.get(name) != self._found.get(name)]

    def feasible(self, theta: Tree) -> Check:
        bound = FEASIBLE * float(np.finfo(self.fit.provenance["dtype"]).eps)
        off = self._violation(theta)
        sentence = f"the stored theta violates its set by {off:.1e}, relative to the set's size (at most {bound:.1e})"
        return Check("feasibility", off <= bound, sentence, off, bound)

    def _violation(self, theta: Tree) -> float:
        leaves = trees.leaves(theta)
        region = trees.map_arrays(lambda x: np.asarray(to_numpy(x), leaves[0].dtype), resolve(self.over, theta))
        return float(region.violation(tuple(leaves))) + 0.0  # -0.0 is none

    def claims(self, theta: Tree, algorithm: Any) -> list[Check]:
        """Objective, gap and w at the stored theta."""
        fit, here = self.fit, self._solve(theta, algorithm, tol=0.0, max_iter=0)
        condition = max(fit.verified.condition, here.verified.condition, 1.0)
        # near a minimum a gradient is a small difference of large terms: its error is one of the first gap
        gap = max(self._rounding, GRADIENT * self.eps * condition * float(fit.trace.gap[0]))
        open_ = fit.verified.gradient_error + here.verified.gradient_error
        if open_:
            gap += open_ * resolve(self.over, theta).diameter(tuple(trees.leaves(theta)))
        # of a least-squares solution, where the residual is not small, the condition counts twice
        w = max(self.tolerance, GRADIENT * self.eps * condition**2)
        return [
            self._objective("objective", "here", fit.value, here.value),
            _within("gap", abs(here.gap - fit.gap), gap, f"{fit.gap:.3e} stored, {here.gap:.3e} here, apart"),
            _within("w", distance(here.w, to_numpy(fit.w)), w, "the stored w and that of the stored theta are apart"),
        ]

    def again(self, theta: Tree, algorithm: Any) -> tuple[Comparison, list[Check]]:
        """The same solve, and where it ends."""
        fit, stored = self.fit, self.fit.provenance
        here = self._solve(
            self.recipe.theta0,
            algorithm,
            tol=self.recipe.tol,
            max_iter=fit.n_iter if self._cut else self.recipe.max_iter,
        )
        both = here.n_iter == fit.n_iter
        looked_at = np.asarray([fit.n_iter] if both else [], dtype=int)
        apart = Apart(np.asarray([distance(here.theta, theta)] if both else []), np.full(looked_at.size, math.nan))
        name = f"{self.where['backend']} again"
        found = Comparison(
            {f"{stored['backend']} as stored": replace(fit, theta=theta), name: here},
            looked_at,
            {name: apart},
            np.full(looked_at.size, self.eps * max(fit.verified.condition, 1.0)),
        )
        checks = [self._objective("end", "again", fit.value, here.value)]
        if self._held and alike(here.provenance, stored):
            same = "the same solve gives " + ("the same bits" if found.same_bits else "other bits")
            checks.append(Check("bits", found.same_bits, f"{same} on the same processor, versions and threads"))
        return found, checks

    def told(self, again: Comparison) -> list[str]:
        """What the second solve was like, beside where it ended."""
        stored, here = again.fits.values()
        notes = [again.verdict]
        if here.n_iter == stored.n_iter:
            notes.append(f"theta at the end: {next(iter(again.apart.values())).theta[-1]:.1e} apart, relative")
        if here.n_iter != stored.n_iter or not (self._cut or here.status is stored.status):
            notes.append(
                f"{stored.status.name} after {stored.n_iter} iterations as stored, "
                f"{here.status.name} after {here.n_iter} again"
            )
        return notes

    @property
    def _held(self) -> bool:
        """Whether the backend is held to the same bits: as it was; between two backends it makes no difference."""
        stored = self.fit.provenance
        return stored["determinism"]["held"] and self.where["backend"] == stored["backend"]

    @property
    def _cut(self) -> bool:
        """Whether a clock or a callback ended the solve, which no one can do again."""
        return self.fit.status in (Status.TIME_LIMIT, Status.STOPPED)

    @property
    def _rounding(self) -> float:
        return ROUNDING * self.eps * self.recipe.scale

    def _objective(self, what: str, where: str, stored: float, here: float) -> Check:
        off, size = abs(stored - here), max(abs(stored), abs(here))
        relative = off / size if size else 0.0
        told = f"{stored:.10g} stored, {here:.10g} {where}, {relative:.1e} apart, relative"
        # written so that NaN fails
        # of 1/2 |r|^2, where r is off by this length: a small residual is a difference of terms as large as y
        error = DIGITS * self.eps * math.sqrt(2 * self.recipe.scale)
        noise = error * math.sqrt(2 * size) + error**2 / 2
        passed = off <= self.tolerance * size or off <= noise
        rounding = passed and off > self.tolerance * size
        reason = "rounding of the data" if rounding else f"at most {self.tolerance:.1e}"
        return Check(what, passed, f"{told} ({reason})", relative, self.tolerance)

    def _solve(self, theta: Tree, algorithm: Any, **options: Any) -> Result:
        with warnings.catch_warnings():
            # both were told when it was solved
            warnings.simplefilter("ignore", DeadUnitsWarning)
            warnings.simplefilter("ignore", PrecisionWarning)
            found = solve(
                self.problem,
                self._admitted(theta),
                over=self.over,
                algorithm=algorithm,
                progress=self.progress,
                deterministic=self._held,
                **self.where,
                **options,
            )
        self.provenance = found.provenance
        return found

    def _admitted(self, theta: Tree) -> Tree:
        """Theta in the dtype of the work: what is feasible to a coarser one is brought into the set."""
        leaves, treedef = trees.flatten(theta)
        fine = trees.unflatten(treedef, [np.asarray(x, self.where["dtype"]) for x in leaves])
        if self._violation(fine) <= FEASIBLE * float(np.finfo(self.where["dtype"]).eps):
            return fine
        return project(fine, self.over)


def _within(what: str, off: float, bound: float, told: str) -> Check:
    return Check(what, off <= bound, f"{told} by {off:.1e} (at most {bound:.1e})", off, bound)


def _listed(names: list[str]) -> str:
    shown = names if len(names) <= 3 else [*names[:3], f"{len(names) - 3} more"]
    *head, last = shown
    return f"{', '.join(head)} and {last} differ" if head else f"{last} differs"
