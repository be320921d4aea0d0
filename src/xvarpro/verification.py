"""A result looked at again: what it claims, on any backend, and whether the same solve comes to the same end."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any

import numpy as np

from xvarpro import trees
from xvarpro.comparison import TOLERANCE, Apart, Comparison, distance
from xvarpro.errors import ProblemError
from xvarpro.evaluate import project
from xvarpro.moving import PrecisionWarning
from xvarpro.problem import Problem
from xvarpro.protocols import Algorithm, Tree
from xvarpro.recipe import Recipe, fingerprints
from xvarpro.region import resolve
from xvarpro.result import Result
from xvarpro.run import DeadUnitsWarning
from xvarpro.solve import solve
from xvarpro.stated import load
from xvarpro.status import Status
from xvarpro.stored import Opaque, opaque, to_numpy

FEASIBLE = 1e3  # machine epsilons that a point may violate its set by, relative to its size, as `solve` takes a start
ROUNDING = 10.0  # machine epsilons of 1/2 |y|^2 that count as none of an objective or of a gap, as in `solve`
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


@dataclass(frozen=True)
class Verification:
    """What became of a result that was looked at again.

    Attributes
    ----------
    checks : tuple of Check
    rerun : Comparison or None
        The result and the same solve done again; None where that was not asked for, or the problem is another one.
    notes : tuple of str
        What a reader should know, and what decides nothing.
    provenance : mapping
        Where it was looked at.
    """

    checks: tuple[Check, ...]
    rerun: Comparison | None
    notes: tuple[str, ...]
    provenance: Mapping[str, Any]

    @property
    def ok(self) -> bool:
        """Whether every check passed."""
        return all(check.passed for check in self.checks)

    @property
    def failures(self) -> tuple[Check, ...]:
        """The checks that did not pass."""
        return tuple(check for check in self.checks if not check.passed)

    @property
    def verdict(self) -> str:
        """One sentence."""
        where = f"on {self.provenance['backend']} in {self.provenance['dtype']}"
        again = "" if self.rerun is None else ", and so is what the same solve comes to"
        if self.ok:
            return f"verified {where}: what the result claims is true{again}"
        first, *rest = self.failures
        more = f"; and {', '.join(check.what for check in rest)}" if rest else ""
        return f"not verified {where}: {first.sentence}{more}"

    def record(self) -> dict[str, Any]:
        """Everything as JSON takes it."""
        return {
            "ok": self.ok,
            "verdict": self.verdict,
            "checks": [dict(vars(check)) for check in self.checks],
            "notes": list(self.notes),
            "provenance": dict(self.provenance),
            "rerun": None if self.rerun is None else self.rerun.record(),
        }

    def __str__(self) -> str:
        width = max(len(check.what) for check in self.checks)
        lines = [f"{'ok' if c.passed else 'FAILED':<6}  {c.what:<{width}}  {c.sentence}" for c in self.checks]
        lines += [f"{'note':<6}  {note}" for note in self.notes]
        return "\n".join([*lines, self.verdict])


def verify(
    result: Result | str | PathLike[str],
    problem: Problem | str | None = None,
    *,
    backend: str | None = None,
    device: Any = None,
    dtype: str | None = None,
    rerun: bool = True,
    tolerance: float | None = None,
    progress: bool | None = False,
) -> Verification:
    """Look at a result again: evaluate what it claims at its theta, and do the same solve from the same start.

    That the problem is the one that was solved is seen by the fingerprints of its arrays and numbers; its functions
    have none, and show in what they give.

    Parameters
    ----------
    result : Result or path
        Of `solve`, or a file of `Result.save`.
    problem : Problem or str, optional
        The problem, or its name, ``package.module:function`` or ``file.py:function``; by default the name that the file
        was saved with. The module that is named is imported, and the function called.
    backend, device, dtype : optional
        Where to look; by default on the backend and in the dtype of the result, on its default device.
    rerun : bool
        Whether the solve is done again. A solve that a clock or a callback ended is done as far as it went.
    tolerance : float, optional
        Of objectives, relative; by default that of `compare` for the coarser of the two dtypes.
    progress : bool, optional
        As in `solve`.

    Returns
    -------
    Verification

    Raises
    ------
    ProblemError
        The result does not say what it is of, or how it came about; and what `solve` raises.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> def M(theta, t):
    ...     xp = xv.array_namespace(theta)
    ...     return xp.exp(-xp.expand_dims(t, axis=1) * theta)
    >>> t = np.linspace(0.0, 2.0, 50)
    >>> problem = xv.separable(M, np.exp(-t) + np.exp(-5.0 * t), data=t, lam=1e-6)
    >>> fit = xv.solve(problem, np.array([0.5, 8.0]), over=xv.sets.Box(0.0, 10.0), algorithm=xv.algorithms.cr_varpro())
    >>> found = xv.verify(fit, problem)
    >>> found.ok, found.rerun.same_bits
    (True, True)
    """
    fit = result if isinstance(result, Result) else Result.load(result)
    recipe = fit.recipe
    if recipe is None:
        raise ProblemError(
            "this file is of an earlier version, which kept neither the start nor the sets nor the method: "
            "solve again and save"
        )
    if not (tolerance is None or (isinstance(tolerance, int | float) and 0 <= tolerance < math.inf)):
        raise ProblemError(f"tolerance must be a finite number >= 0, got {tolerance!r}")
    given, over, notes = _stated(recipe, problem)
    stored = fit.provenance
    where = {"backend": backend or stored["backend"], "device": device, "dtype": dtype or stored["dtype"]}
    tolerance = max(TOLERANCE[stored["dtype"]], TOLERANCE[where["dtype"]]) if tolerance is None else tolerance
    algorithm = _method(recipe, rerun)
    theta = trees.unflatten(trees.flatten(fit.theta)[1], [np.asarray(to_numpy(x)) for x in trees.leaves(fit.theta)])
    look = _Look(fit, recipe, given, over, where, tolerance, progress)
    checks = [look.same_problem(), look.same_start()]
    feasible = look.feasible(theta)
    checks.append(feasible)
    if feasible.passed:
        checks += look.claims(theta, algorithm)
    again = None
    if rerun and checks[0].passed and checks[1].passed:
        again, found = look.again(theta, algorithm)
        checks += found
        notes += look.told(again)
    seen = look.provenance
    if seen["backend"] == stored["backend"] and seen["device"] != stored["device"]:
        notes.append(f"solved on {stored['device']}, looked at on {seen['device']}")
    return Verification(tuple(checks), again, tuple(notes), seen)


def _method(recipe: Recipe, rerun: bool) -> Algorithm | None:
    """The algorithm that ran; None, for whatever fits the sets, where a file could not keep it and nothing runs."""
    if not isinstance(recipe.algorithm, Opaque):
        return recipe.algorithm
    if rerun:
        raise ProblemError(
            f"the solve cannot be done again, since a file does not keep {recipe.algorithm.what}: pass rerun=False "
            "(--no-run), or the Result itself"
        )
    return None


def _stated(recipe: Recipe, problem: Problem | str | None) -> tuple[Problem, Any, list[str]]:
    """The problem, the sets, and how what a function states differs from what the result was solved with."""
    named, notes = problem if problem is not None else recipe.problem, list[str]()
    if named is None:
        raise ProblemError(
            "the result does not say which problem it is of: pass the problem, or the name of a function that returns "
            "it (--problem file.py:function)"
        )
    if isinstance(named, Problem):
        given, over = named, recipe.over
    else:
        stated = load(named)
        given = stated.problem
        over = stated.over if opaque(recipe.over) else recipe.over
        dtype = trees.leaves(recipe.theta0)[0].dtype
        start = [np.asarray(to_numpy(x), dtype=dtype) for x in trees.leaves(stated.theta0)]
        if not _same(start, trees.leaves(recipe.theta0)):
            notes.append(f"{named} states another start than the one that was solved from, which is used")
    if (lost := opaque(over)) is not None:
        raise ProblemError(
            f"a file does not keep {lost.what}: name the problem by a function that returns (problem, theta0, over)"
        )
    return given, over, notes


def _same(a: list[Any], b: list[Any]) -> bool:
    return len(a) == len(b) and all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


class _Look:
    """A result beside the problem that it is said to be of."""

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
            self._objective("objective", "at the stored theta", fit.value, here.value),
            _within("gap", abs(here.gap - fit.gap), gap, f"{fit.gap:.3e} stored, {here.gap:.3e} here, apart"),
            _within("w", distance(here.w, to_numpy(fit.w)), w, "the stored w and that of the stored theta are apart"),
        ]

    def again(self, theta: Tree, algorithm: Any) -> tuple[Comparison, list[Check]]:
        """The same solve, and where it ends."""
        fit, stored = self.fit, self.fit.provenance
        cut = fit.status in (Status.TIME_LIMIT, Status.STOPPED)
        held = stored["determinism"]["held"] and self.where["backend"] == stored["backend"]
        here = self._solve(
            self.recipe.theta0,
            algorithm,
            tol=self.recipe.tol,
            max_iter=fit.n_iter if cut else self.recipe.max_iter,
            deterministic=held,
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
        checks = [self._objective("end", "where the same solve ends", fit.value, here.value)]
        if here.provenance == stored and held and not stored["determinism"]["unpromised"]:
            same = "the same solve gives " + ("the same bits" if found.same_bits else "other bits")
            checks.append(Check("bits", found.same_bits, f"{same} on the same processor, versions and threads"))
        return found, checks

    def told(self, again: Comparison) -> list[str]:
        """What the second solve was like, beside where it ended."""
        stored, here = again.fits.values()
        notes = [again.verdict]
        if here.n_iter == stored.n_iter:
            notes.append(f"theta at the end: {next(iter(again.apart.values())).theta[-1]:.1e} apart, relative")
        if here.status is not stored.status or here.n_iter != stored.n_iter:
            notes.append(
                f"{stored.status.name} after {stored.n_iter} iterations as stored, "
                f"{here.status.name} after {here.n_iter} again"
            )
        return notes

    @property
    def _rounding(self) -> float:
        return ROUNDING * self.eps * self.recipe.scale

    def _objective(self, what: str, where: str, stored: float, here: float) -> Check:
        off, size = abs(stored - here), max(abs(stored), abs(here))
        relative = off / size if size else 0.0
        told = f"{where} {stored:.12g} stored, {here:.12g} here: {relative:.1e} apart, relative"
        # written so that NaN fails
        passed = off <= self.tolerance * size or off <= self._rounding
        rounding = self.tolerance * size < off <= self._rounding
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
