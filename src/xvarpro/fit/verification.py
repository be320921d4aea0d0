"""A saved result checked against its problem: value, gap and w at its theta, and the outcome of a second solve."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from typing import Any, NamedTuple

import numpy as np

from xvarpro.algorithms.interface import Algorithm
from xvarpro.backends import modules, to_numpy
from xvarpro.core import trees
from xvarpro.core.namespace import named_dtype
from xvarpro.core.status import Status
from xvarpro.core.struct import Tree
from xvarpro.driver.evaluate import project
from xvarpro.driver.iteration import ROUNDING
from xvarpro.driver.model_check import FEASIBLE
from xvarpro.driver.outcome import DeadUnitsWarning
from xvarpro.driver.transfer import PrecisionWarning
from xvarpro.errors import ProblemError
from xvarpro.fit.comparison import GRADIENT, distance
from xvarpro.fit.result import Result
from xvarpro.fit.serialization import opaque
from xvarpro.fit.solve import solve_on
from xvarpro.problem.loading import load
from xvarpro.problem.problem import Problem, with_loss
from xvarpro.results.recipe import WRITTEN, Fingerprints, Opaque, Recipe
from xvarpro.sets.region import resolve

# of two objectives, relative: in float64 what rounding leaves after hundreds of iterations of a method that does not
# amplify it; in float32 as much more as its epsilon is larger
TOLERANCE = {"float64": 1e-9, "float32": 1e-2}
RESIDUAL = 100.0  # machine epsilons of |y|: error of a residual


class Check(NamedTuple):
    """One property of a result, whether it was confirmed, and what was found; an error and its bound, or NaN."""

    what: str
    passed: bool
    sentence: str
    difference: float = math.nan
    tolerance: float = math.nan


@dataclass(frozen=True)
class Verification:
    """Outcome of `verify`.

    Attributes
    ----------
    checks : tuple of Check
    rerun : Result or None
        Of a second solve; None if that was not asked for, or the problem or the start is another one.
    notes : tuple of str
        Further observations, which do not affect `ok`.
    provenance : mapping
        Where the checks were computed.
    """

    checks: tuple[Check, ...]
    rerun: Result | None
    notes: tuple[str, ...]
    provenance: Mapping[str, Any]

    @property
    def ok(self) -> bool:
        """Whether every check passed."""
        return not self.failures

    @property
    def failures(self) -> tuple[Check, ...]:
        """The checks that did not pass."""
        return tuple(check for check in self.checks if not check.passed)

    @property
    def verdict(self) -> str:
        """The outcome in one sentence."""
        where = f"on {self.provenance['backend']} in {self.provenance['dtype']}"
        if self.ok:
            return f"verified {where}: all {len(self.checks)} checks passed"
        first, *rest = self.failures
        more = f"; and {', '.join(check.what for check in rest)}" if rest else ""
        return f"not verified {where}: {first.what}: {first.sentence}{more}"

    def record(self) -> dict[str, Any]:
        """All of it as JSON types; None for numbers that a check does not have."""
        return {
            "ok": self.ok,
            "verdict": self.verdict,
            "checks": [{name: None if x != x else x for name, x in check._asdict().items()} for check in self.checks],
            "notes": list(self.notes),
            "provenance": dict(self.provenance),
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
    trust: bool = False,
    backend: str | None = None,
    device: Any = None,
    dtype: str | None = None,
    rerun: bool = True,
    tolerance: float | None = None,
    progress: bool | None = False,
) -> Verification:
    """Check a result: evaluate objective, gap and w at its theta, and repeat the solve from its start.

    Fingerprints of all arrays and numbers decide whether the problem is the one that was solved. Functions have none:
    a changed function shows in the values.

    Parameters
    ----------
    result : Result or path
        Of `solve` or `solve_robust`, or a file of `Result.save`.
    problem : Problem or str, optional
        The problem, with the loss of the result or without one; or its name, ``package.module:function`` or
        ``file.py:function``, whose module is imported and whose function is called.
    trust : bool
        Where `problem` is None: run the function that the result names. It is code that who wrote the file chose, and
        is not run otherwise. A relative path begins in the folder of the file.
    backend, device, dtype : optional
        Where to compute; by default on the backend and in the dtype of the result, on the backend's default device.
    rerun : bool
        Whether to repeat the solve. A solve that its time limit or callback ended is repeated for as many iterations.
    tolerance : float, optional
        Relative tolerance of objectives; by default 1e-9, or 1e-2 where one of the two dtypes is float32.
    progress : bool, optional
        As in `solve`.

    Returns
    -------
    Verification

    Raises
    ------
    ProblemError
        `problem` is missing, and the file does not name it or is not trusted; the file
        lacks a set or an algorithm that cannot be stored; and what `Result.load` and `solve` raise.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> def M(theta, t):
    ...     xp = xv.array_namespace(theta)
    ...     return xp.exp(-xp.expand_dims(t, axis=1) * theta)
    >>> t = np.linspace(0.0, 2.0, 50)
    >>> problem = xv.separable(M, np.exp(-t) + np.exp(-5.0 * t), data=t, lam=1e-6)
    >>> fit = xv.solve(problem, np.array([0.5, 8.0]), over=xv.sets.Box(0.0, 10.0))
    >>> found = xv.verify(fit, problem)
    >>> found.ok, found.rerun.n_iter == fit.n_iter
    (True, True)
    """
    fit = result if isinstance(result, Result) else Result.load(result)
    if not (tolerance is None or (isinstance(tolerance, int | float) and 0 <= tolerance < math.inf)):
        raise ProblemError(f"tolerance must be a finite number >= 0; got {tolerance!r}")
    if rerun and isinstance(fit.recipe.algorithm, Opaque):
        raise ProblemError(
            f"a second solve needs the algorithm, and the file does not store {fit.recipe.algorithm.what}: pass "
            "rerun=False (--no-run), or the Result itself"
        )
    given, over, notes, start = _problem(fit.recipe, problem, trust)
    given = with_loss(given, fit.loss)
    if modules.architectures(start):
        fit = fit.like(start)
    stored = fit.provenance
    where = {
        "backend": backend or stored["backend"],
        "device": device,
        "dtype": stored["dtype"] if dtype is None else named_dtype(dtype),
    }
    if tolerance is None:
        tolerance = max(TOLERANCE[stored["dtype"]], TOLERANCE[where["dtype"]])
    checker = ResultChecker(fit, given, over, where, tolerance, progress)
    checks = [checker.fingerprints(), checker.feasibility()]
    if checks[1].passed:
        checks += checker.evaluation()
    again = None
    if rerun and checks[0].passed:
        again, more = checker.rerun()
        checks += more
        notes += checker.summary(again)
    return Verification(tuple(checks), again, tuple(notes), checker.provenance)


def _problem(recipe: Recipe, given: Problem | str | None, trust: bool) -> tuple[Problem, Tree, list[str], Tree]:
    """The problem, the sets, notes on how the named function differs from what was solved, and the start it returns."""
    named, folder, over, notes = recipe.problem if given is None else given, "", recipe.over, list[str]()
    like = None
    if named is None:
        raise ProblemError(
            "verify needs the problem, and the result does not name it: pass the problem, or the name of a function "
            "that returns it (--problem file.py:function)"
        )
    if given is None:
        if not trust:
            raise ProblemError(
                f"the result names its problem, {named}, which is code that verify would run: pass trust=True "
                "(--trust) if you trust who wrote the file, or the problem or a name of your own (--problem)"
            )
        folder = recipe.folder
        notes.append(f"{named} was run, as the file names it and was trusted")
    if isinstance(named, str):
        loaded = load(named, folder)
        over = loaded.over if opaque(over) else over
        like = modules.taken(loaded.theta0)
        # by name: a module's parameters have an order of their own
        here, start = (dict(zip(trees.paths(x), trees.leaves(x), strict=True)) for x in (like, recipe.theta0))
        if here.keys() != start.keys():
            raise ProblemError(
                f"the problem must be that of the result, whose theta has {', '.join(start)}; got {named}, whose "
                f"theta0 has {', '.join(here)}. Name the function that was solved"
            )
        if not all(np.array_equal(np.asarray(to_numpy(here[name]), x.dtype), x) for name, x in start.items()):
            notes.append(f"{named} returns another theta0; the stored start is used")
        named = loaded.problem
    if (lost := opaque(over)) is not None:
        raise ProblemError(
            f"verify needs the sets, and the file does not store {lost.what}: name the problem by a function that "
            "returns (problem, theta0, over)"
        )
    return named, over, notes, like


class ResultChecker:
    """Compares what a result states with what its problem gives, computed `where` (backend, device and dtype)."""

    def __init__(
        self, fit: Result, problem: Problem, over: Tree, where: Mapping[str, Any], tolerance: float, progress: Any
    ) -> None:
        self.fit, self.problem, self.over, self.where, self.recipe = fit, problem, over, where, fit.recipe
        self.tolerance, self.progress, stored = tolerance, progress, fit.provenance
        self.theta = trees.unflatten(trees.flatten(fit.theta)[1], [to_numpy(x) for x in trees.leaves(fit.theta)])
        self.eps = max(float(np.finfo(dtype).eps) for dtype in (where["dtype"], stored["dtype"]))
        self.provenance: Mapping[str, Any] = {**stored, **{k: x for k, x in where.items() if x is not None}}
        # between two backends determinism makes no difference
        self.deterministic = stored["determinism"]["held"] and where["backend"] == stored["backend"]

    def fingerprints(self) -> Check:
        """Whether the problem and the start are those that were solved."""
        stored, found = self.recipe.fingerprints, Fingerprints(self.problem, self.recipe.theta0)
        other = sorted(name for name in {**stored, **found} if stored.get(name) != found.get(name))
        named = (f"{name} ({WRITTEN})" if stored.get(name) == WRITTEN else name for name in other)
        sentence = f"differ: {', '.join(named)}" if other else f"all {len(found)} agree"
        return Check("fingerprints", not other, sentence)

    def feasibility(self) -> Check:
        """Whether theta lies in its set."""
        bound = FEASIBLE * float(np.finfo(self.fit.provenance["dtype"]).eps)
        off = self._violation(self.theta)
        sentence = f"theta violates its set by {off:.1e}, relative to the set's size (at most {bound:.1e})"
        return Check("feasibility", off <= bound, sentence, off, bound)

    def evaluation(self) -> list[Check]:
        """Whether objective, gap and w are those of theta."""
        fit, found = self.fit, self._solve(self.theta, tol=0.0, max_iter=0)
        condition = max(fit.verified.condition, found.verified.condition, 1.0)
        # near a minimum the gradient is a small difference of large terms: its error is relative to the first gap
        gap = max(ROUNDING * self.eps * self.recipe.scale, GRADIENT * self.eps * condition * float(fit.trace.gap[0]))
        if inexact := fit.verified.gradient_error + found.verified.gradient_error:
            gap += inexact * resolve(self.over, self.theta).diameter(tuple(trees.leaves(self.theta)))
        # the condition number enters a least-squares solution squared where the residual is not small
        w = max(self.tolerance, GRADIENT * self.eps * condition * condition)
        return [
            self._objective("objective", fit.value, found.value),
            _bounded("gap", f"{fit.gap:.3e} stored, {found.gap:.3e} found, difference", abs(found.gap - fit.gap), gap),
            _bounded("w", "stored and found, relative difference", distance(found.w, to_numpy(fit.w)), w),
        ]

    def rerun(self) -> tuple[Result, list[Check]]:
        """The same solve again, and whether it ends at the same objective, with the same bits where promised."""
        fit, recipe = self.fit, self.recipe
        max_iter = fit.n_iter if self._cut else recipe.max_iter
        found = self._solve(recipe.theta0, tol=recipe.tol, max_iter=max_iter)
        checks = [self._objective("end", fit.value, found.value)]
        if self.deterministic and _alike(found.provenance, fit.provenance):
            same = _same_bits(fit, found)
            bits = "the same bits" if same else "other bits"
            checks.append(Check("bits", same, f"{bits} on the same processor, versions and threads"))
        return found, checks

    def summary(self, found: Result) -> list[str]:
        """Notes on how the two solves differ."""
        ends = (f"{fit.status.name} after {fit.n_iter} iterations" for fit in (self.fit, found))
        return [" stored, ".join(ends) + f" found; theta to {distance(found.theta, self.theta):.1e}"]

    @property
    def _cut(self) -> bool:
        """Whether the time limit or the callback ended the solve, which cannot be repeated."""
        return self.fit.status in (Status.TIME_LIMIT, Status.STOPPED, Status.INTERRUPTED)

    def _objective(self, what: str, stored: float, found: float) -> Check:
        off, size = abs(stored - found), max(abs(stored), abs(found))
        # 1/2 |r|^2 with an error of this length in r: a small residual is a difference of terms as large as y
        error = RESIDUAL * self.eps * math.sqrt(2 * self.recipe.scale)
        bound = max(self.tolerance * size, error * math.sqrt(2 * size) + error**2 / 2)
        relative = off / size if size else 0.0
        reason = "rounding of the data" if self.tolerance * size < off <= bound else f"at most {self.tolerance:.1e}"
        sentence = f"{stored:.10g} stored, {found:.10g} found, relative difference {relative:.1e} ({reason})"
        return Check(what, off <= bound, sentence, relative, self.tolerance)

    def _solve(self, theta: Tree, **options: Any) -> Result:
        algorithm = self.recipe.algorithm
        with warnings.catch_warnings():
            for category in (DeadUnitsWarning, PrecisionWarning):  # which the first solve gave
                warnings.simplefilter("ignore", category)
            found = solve_on(
                self.problem,
                self._admitted(theta),
                over=self.over,
                algorithm=algorithm if isinstance(algorithm, Algorithm) else None,
                progress=self.progress,
                deterministic=self.deterministic,
                **self.where,
                **options,
            )
        self.provenance = found.provenance
        return found

    def _admitted(self, theta: Tree) -> Tree:
        """Theta in the dtype of the check, projected where it is feasible only to the precision of a coarser dtype."""
        dtype = self.where["dtype"]
        leaves, treedef = trees.flatten(theta)
        fine = trees.unflatten(treedef, [np.asarray(x, dtype) for x in leaves])
        return fine if self._violation(fine) <= FEASIBLE * float(np.finfo(dtype).eps) else project(fine, self.over)

    def _violation(self, theta: Tree) -> float:
        leaves = trees.leaves(theta)
        region = trees.map_arrays(lambda x: np.asarray(to_numpy(x), leaves[0].dtype), resolve(self.over, theta))
        return float(region.violation(tuple(leaves))) + 0.0  # -0.0 is none


def _bounded(what: str, sentence: str, off: float, bound: float) -> Check:
    return Check(what, off <= bound, f"{sentence} {off:.1e} (at most {bound:.1e})", off, bound)


def _same_bits(first: Result, second: Result) -> bool:
    """Whether objectives, gaps and steps of the iterates in both traces, and the last theta, are equal."""
    common = np.intersect1d(first.trace.iteration, second.trace.iteration)

    def bits(fit: Result) -> list[bytes]:
        rows = np.isin(fit.trace.iteration, common)
        columns = [getattr(fit.trace, name)[rows] for name in ("value", "gap_A", "gap_B", "alpha_A", "alpha_B")]
        return [x.tobytes() for x in (*columns, *map(to_numpy, trees.leaves(fit.theta)))]

    return first.n_iter == second.n_iter and bits(first) == bits(second)


def _alike(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Whether two provenances promise the same bits: equal, nothing excepted."""
    return first == second and not first["determinism"]["unpromised"]
