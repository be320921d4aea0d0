"""A result looked at again: what it claims, on any backend, and whether the same solve comes to the same end."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from typing import Any

import numpy as np

from xvarpro.algorithms.interface import Algorithm
from xvarpro.backends import to_numpy
from xvarpro.core import trees
from xvarpro.errors import ProblemError
from xvarpro.problem.loading import load
from xvarpro.problem.problem import Problem
from xvarpro.reproducibility.claims import Check, Look
from xvarpro.reproducibility.comparison import TOLERANCE, Comparison
from xvarpro.results.recipe import Recipe
from xvarpro.results.result import Result
from xvarpro.results.serialization import Opaque, opaque


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
        return f"not verified {where}: {first.what}: {first.sentence}{more}"

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
    theta = trees.unflatten(trees.flatten(fit.theta)[1], [to_numpy(x) for x in trees.leaves(fit.theta)])
    look = Look(fit, recipe, given, over, where, tolerance, progress)
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
