"""What a result says of its theta and of the way there, on problems on which none of it is 0 or the same twice."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple, TypeAlias

import numpy as np

import xvarpro as xv
from xvarpro import algorithms
from xvarpro.core.struct import Array, Tree
from xvarpro.core.trees import map_arrays
from xvarpro_conformance import evaluation, problems
from xvarpro_conformance.checks.solves import COUNTS, Way, first_off
from xvarpro_conformance.evaluation import flat
from xvarpro_conformance.problems import Reference, held
from xvarpro_conformance.references.sets import known
from xvarpro_conformance.suite import NUMPY, Measured, Target, check

LONG = 2500  # iterations: more than two chunks of a compiled loop
EAGER = 60  # where a loop has no chunks
FEWEST = algorithms.FrankWolfe(xv.steps.Constant())


def at_start(target: Target, reference: Reference) -> xv.Result:
    """The result at theta0, by the method that computes least there; it may warn of what is checked."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return evaluation.solve(target, reference, FEWEST, 0)


# -- verified ----------------------------------------------------------------------------------------------------------


def sums(theta: Tree, A: Array) -> Array:
    """``A theta``: a design of one column, whatever the leaves."""
    xp = xv.array_namespace(A)
    return xp.expand_dims(A @ xp.concat([theta[key] for key in sorted(theta)]), axis=1)


Outside: TypeAlias = tuple[dict[str, xv.sets.Set], Callable[[float], dict[str, np.ndarray]]]


def outside() -> dict[str, Outside]:
    """Sets, and leaves some hundred eps outside: a point of each kind of violation, and two of which one is worse."""
    sets = xv.sets
    return {
        "sum of a simplex": (
            {"a": sets.Simplex(2.0)},
            lambda eps: {"a": np.array([1.0, 0.5, 0.5]) * (1 + 300 * eps)},
        ),
        "box": ({"a": sets.Box(-1.0, 3.0)}, lambda eps: {"a": np.array([-1.0 - 800 * eps, 3.0, 0.5])}),
        "the worse of two leaves": (
            {"a": sets.CappedSimplex(1.0), "b": sets.Box(0.0, 1.0)},
            lambda eps: {"a": np.array([0.5, 0.5 + 100 * eps]), "b": np.array([1.0 + 500 * eps])},
        ),
    }


@check("results", outside)
def violation(target: Target, case: Outside) -> Iterator[Measured]:
    """A point outside of its set by hundreds of eps, which a solve may start from, is reported as that far outside."""
    A = held(np.random.default_rng(0).normal(size=(5, 3)))
    problem = xv.separable(sums, held(np.arange(5.0) + 1), data=A)
    over, theta = case
    made = Reference(problem, theta(target.eps), over)
    got = at_start(target, made)
    parts = {name: target.held(x) for name, x in made.theta0.items()}
    want = max(float(known(over[name], x.shape).outside(x)) for name, x in parts.items())
    yield Measured("outside by more than rounding", want > 50 * target.eps, True)
    yield Measured("violation", got.verified.violation, want, 4 * target.eps, 1.0)


def graded(theta: Array, A: Array) -> Array:
    """``A diag(theta)``."""
    return A * theta


class Dead(NamedTuple):
    """Columns of a small factor, in eps, and whether they contribute nothing under a ridge."""

    columns: tuple[int, ...] = ()
    factor: float = 0.0
    lam: float = 0.5
    counted: bool = True


def dead() -> dict[str, Dead]:
    """Columns that are zero, or rounding: without a ridge the weights of the latter make up for it."""
    return {
        "none": Dead(),
        "the first": Dead((0,)),
        "three": Dead((1, 2, 4)),
        "to rounding": Dead((0, 4), 1 / 16),
        "to rounding, no ridge": Dead((0, 4), 1 / 16, 0.0, False),
    }


@check("results", dead)
def dead_units(target: Target, case: Dead) -> Iterator[Measured]:
    """Columns that are zero, or with a ridge rounding, are counted, small ones are not, and there is a warning."""
    A = held(np.random.default_rng(1).normal(size=(7, 5)))
    theta = np.array([1.0, 0.5, 2.0, 2.0**12 * target.eps, 1.0])
    theta[list(case.columns)] = case.factor * target.eps
    problem = xv.separable(graded, held(np.arange(7.0)), data=A, lam=case.lam)
    want = len(case.columns) if case.counted else 0
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        got = evaluation.solve(target, Reference(problem, theta, xv.sets.Box(0.0, 2.0)), FEWEST, 0)
    warned = [w for w in seen if issubclass(w.category, xv.DeadUnitsWarning)]
    yield Measured("units", got.verified.units, 5)
    yield Measured("dead units", got.verified.dead_units, want)
    yield Measured("warnings", len(warned), int(bool(want)))


# -- the way there -----------------------------------------------------------------------------------------------------


def ways() -> dict[str, Way]:
    """With a free block, with a gap that rises, with a best iterate that is not the last one."""
    spectral, loop = algorithms.SpectralProjectedGradient(), algorithms.FrankWolfe(xv.steps.OpenLoop())
    return {
        "cr_varpro": Way(algorithms.cr_varpro(), problems.network, 7),
        "blended pairwise": Way(algorithms.ActiveSetFrankWolfe(), problems.wide, 7),
        "spectral": Way(spectral, problems.dictionary, 7),
        "open loop": Way(loop, problems.wide, 7),
    }


@check("results", ways)
def trace(target: Target, case: Way) -> Iterator[Measured]:
    """Value and gaps of each row are those of the theta that a callback saw then, on NumPy."""
    made, n = case.make(), case.iterations
    seen = [made.theta0]

    def watch(info: xv.IterationInfo) -> None:
        seen.append(map_arrays(lambda x: np.array(x, np.float64), info.theta))

    got = evaluation.solve(target, made, case.algorithm, n, callback=watch)
    cond = max(evaluation.condition(made, theta) for theta in seen)
    rows = [evaluation.certified(made, theta)[:3] for theta in seen]
    tolerance = 4 * evaluation.gradient_tolerance(target.eps, cond)
    for name, want in zip(("value", "gap_A", "gap_B"), np.array(rows).T, strict=True):
        found = getattr(got.trace, name)
        yield Measured(f"length of {name}", found.size, n + 1)
        error = np.abs(found - want) / np.abs(np.array(rows)).max()
        i = int(np.argmax(error))
        yield Measured(f"{name}, iterate {i}", found[i], want[i], tolerance, float(np.abs(np.array(rows)).max()))
    yield Measured("iterations", got.trace.iteration, np.arange(n + 1))
    best = int(np.argmin(got.trace.value))  # of methods that are not monotone it need not be the last
    yield Measured("value of the result", got.value, got.trace.value[best])
    yield Measured("theta of the result", flat(got.theta), flat(seen[best]))
    yield Measured("time", bool((np.diff(got.trace.seconds) >= 0).all()), True)
    for name in COUNTS:
        yield Measured(f"{name} of the result", getattr(got.counts, name), int(getattr(got.trace, name)[-1]))


@check("results", dtypes=("float64",))
def long_trace(target: Target, case: None) -> Iterator[Measured]:
    """Of thousands of iterations, several calls of a compiled loop, no row is missing or another's."""
    n = LONG if target.backend.compiled else EAGER
    # in a ball a vertex moves as far as the gradient does: rounding stays what it is
    made = replace(problems.wide(), over=xv.sets.L2Ball(1.0))
    rule = algorithms.FrankWolfe(xv.steps.OpenLoop())
    got = evaluation.solve(target, made, rule, n, compiled=True)
    t = np.arange(n + 1)
    yield Measured("iterations", got.n_iter, n)
    yield Measured("iterations in the trace", got.trace.iteration, t)
    yield Measured("alpha", got.trace.alpha_A[1:], 2 / (t[:-1] + 2), 8 * target.eps)
    for name in ("values", "gradients", "lmos"):
        yield Measured(name, getattr(got.trace, name), t + 1)
    yield Measured("value of the result", got.value, float(got.trace.value.min()))
    first = evaluation.solve(NUMPY, made, rule, EAGER).trace
    for name in ("value", "gap_A"):
        yield first_off(name, getattr(got.trace, name)[: EAGER + 1], getattr(first, name), 1e-6)
