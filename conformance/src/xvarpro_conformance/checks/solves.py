"""Whole solves: step by step next to NumPy's, where they end, a known minimum, and the paper's Theorem 1."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cache
from typing import NamedTuple

import numpy as np

import xvarpro as xv
from xvarpro import algorithms
from xvarpro.algorithms import FrankWolfe, cr_varpro
from xvarpro.algorithms.interface import Algorithm
from xvarpro.core.struct import Array, Tree
from xvarpro.core.trees import leaves, map_arrays
from xvarpro_conformance import evaluation, problems
from xvarpro_conformance.evaluation import flat
from xvarpro_conformance.problems import Data, Reference, held
from xvarpro_conformance.references.digits import digits, rounded
from xvarpro_conformance.references.lower import weights
from xvarpro_conformance.suite import NUMPY, Inapplicable, Measured, Target, check, exported

FEW = 20  # of every method; operation by operation they take a while
ENOUGH = 40  # for the default to arrive
# of the objective where a solve ended, relative: what rounding leaves of it
ENDS = {"float64": 1e-10, "float32": 3e-3}
# of every iterate: values, and gaps and steps, which are differences
VALUES = {"float64": 1e-9, "float32": 1e-4}
DIFFERENCES = {"float64": 1e-6, "float32": 2e-3}
COUNTS = ("values", "gradients", "lmos", "projections")
COLUMNS = ("value", "gap_A", "gap_B", "alpha_A", "alpha_B", *COUNTS)
SINGLE = 5  # iterations that take the same decisions in single precision
SLOW = 8  # iterations of a framework that compiles, where it goes operation by operation; --thorough makes all


class Course(NamedTuple):
    """A solve, and every iterate, the start included."""

    fit: xv.Result
    thetas: list[Tree]


# -- step by step ------------------------------------------------------------------------------------------------------


class Way(NamedTuple):
    """A method, a problem, and how many iterations no decision depends on rounding."""

    algorithm: Algorithm
    make: Callable[[], Reference]
    iterations: int
    compiled: bool = False
    single: int = SINGLE


def ways() -> dict[str, Way]:
    """Methods in their regimes; the paper's in one program where the backend compiles, as users run it."""
    paper, strict = algorithms.cr_varpro(), algorithms.cr_varpro(0.25, 0.4)
    warm = algorithms.FrankWolfe(xv.steps.Armijo(warm=True), algorithms.Separate())
    short = algorithms.FrankWolfe(xv.steps.ShortStep())
    accelerated, spectral = algorithms.AcceleratedProjectedGradient(), algorithms.SpectralProjectedGradient()
    pairwise, away = (algorithms.ActiveSetFrankWolfe(c()) for c in (algorithms.Pairwise, algorithms.AwayStep))
    marquardt = algorithms.LevenbergMarquardt()
    projected, in_face, corrected = (
        algorithms.ProjectedQuasiNewton, algorithms.InFaceQuasiNewton, algorithms.InFaceFrankWolfe,
    )  # fmt: skip
    return {
        "cr_varpro network": Way(paper, problems.network, 60, compiled=True),
        "cr_varpro wide": Way(paper, problems.wide, 60, compiled=True),
        "warm Armijo, separate network": Way(warm, problems.network, 60, compiled=True),
        "strict Armijo": Way(strict, problems.wide, 40),
        "short steps": Way(short, problems.network, 40),
        "accelerated": Way(accelerated, problems.network, 25),
        "spectral": Way(spectral, problems.exponentials, 12),
        "blended pairwise": Way(algorithms.ActiveSetFrankWolfe(), problems.wide, 30),
        "pairwise": Way(pairwise, problems.wide, 30),
        "away steps": Way(away, problems.wide, 20),
        "four atoms": Way(algorithms.ActiveSetFrankWolfe(capacity=4), problems.wide, 20),
        "Levenberg-Marquardt": Way(marquardt, problems.exponentials, 11, single=3),
        "Levenberg-Marquardt at a bound": Way(marquardt, problems.bounded, 6, single=3),
        "quasi-Newton": Way(projected(3, 2), problems.exponentials, 18),
        "quasi-Newton network": Way(projected(5, 0, base=accelerated), problems.network, 30, single=3),
        "quasi-Newton in faces": Way(in_face(3, 2), problems.bounded, 12),
        "quasi-Newton in faces, momentum": Way(in_face(5, 0, momentum=True), problems.network, 30, single=3),
        "in-face gradient": Way(corrected(), problems.wide, 14),
        "in-face blended": Way(corrected(algorithms.BlendedPairwise()), problems.wide, 30),
        "in-face pairwise": Way(corrected(algorithms.Pairwise()), problems.bounded, 30),
    }


@cache
def course(way: Way) -> Course:
    """What NumPy does in double precision, computed once."""
    made = way.make()
    thetas = [made.theta0]
    fit = evaluation.solve(
        NUMPY, made, way.algorithm, way.iterations,
        callback=lambda info: thetas.append(map_arrays(np.array, info.theta)),
    )  # fmt: skip
    return Course(fit, thetas)


def first_off(name: str, got: np.ndarray, want: np.ndarray, tolerances: float | np.ndarray) -> Measured:
    """The first row that is off by more than its tolerance, relative to itself; else the worst one."""
    if got.shape != want.shape:
        return Measured(name, got, want)
    tolerance = np.broadcast_to(tolerances, want.shape)
    error = np.abs(got - want) / np.where(want == 0, 1.0, np.abs(want))
    off = ~(error <= tolerance)
    i = int(np.argmax(off)) if off.any() else int(np.argmax(error))
    return Measured(f"{name}, iterate {i}", got[i], want[i], float(tolerance[i]), float(abs(want[i])) or 1.0)


def rounding_of_values(made: Reference, thetas: list[Tree], values: np.ndarray, eps: float) -> np.ndarray:
    """What rounding may change of the objective at every iterate, relative to it.

    A residual r is the difference of the target and a sum of n products, whose w has been solved for: it is off by
    ``dr``, of length ``(n + 1) eps cond |y|``. A step ``J^+ r`` takes that along, and the objective after it is off by
    ``<J^T r, J^+ dr>``, at most ``|r| |dr|`` whatever J is: relative to ``1/2 |r|^2`` that is ``2 |dr| / |r|``, of
    this iterate or of one before.
    """
    n = evaluation.matrix(made, thetas[0]).shape[1]
    lengths = np.sqrt(evaluation.floor(made) / np.abs(values))
    conditions = np.array([evaluation.condition(made, theta) for theta in thetas])
    found: np.ndarray = np.maximum.accumulate(2 * (n + 1) * eps * conditions * lengths)
    return found


@check("solves", ways)
def step_decisions(target: Target, way: Way) -> Iterator[Measured]:
    """Values, gaps, steps and counts of all iterates are those of NumPy in double precision."""
    if target == NUMPY:
        raise Inapplicable("what the others are compared with")
    single = target.dtype == "float32"
    n = min(way.single, way.iterations) if single else way.iterations
    if target.backend.compiled and not (way.compiled or target.thorough):
        n = min(n, SLOW)
    got = evaluation.solve(target, way.make(), way.algorithm, n, compiled=way.compiled and not single)
    want, trace = course(way), got.trace
    values = want.fit.trace.value[: n + 1]
    rounding = rounding_of_values(way.make(), want.thetas[: n + 1], values, target.eps)
    rounding = np.maximum(VALUES[target.dtype], rounding)
    yield Measured("iterations", got.n_iter, n)
    yield Measured("how it ended", got.status.name, "MAX_ITER")
    yield Measured("iterations in the trace", trace.iteration, np.arange(n + 1))
    for name in COLUMNS:
        tolerance = 0.0 if name in COUNTS else rounding if name == "value" else DIFFERENCES[target.dtype]
        yield first_off(name, getattr(trace, name), getattr(want.fit.trace, name)[: n + 1], tolerance)
    end = int(np.argmin(values)) if not way.algorithm.monotone else n
    yield Measured("theta", flat(got.theta), flat(want.thetas[end]), 1e3 * VALUES[target.dtype])


# -- where a solve ends ------------------------------------------------------------------------------------------------


class End(NamedTuple):
    """A method, a problem, a tolerance, and whether a gap below it is all that the method asks for."""

    algorithm: Algorithm
    make: Callable[[], Reference]
    tol: float
    by_gap: bool = False


def ends() -> dict[str, End]:
    """By a bound of the gap alone, with the parabolas' promise, and by a model's promise."""
    accelerated, spectral = algorithms.AcceleratedProjectedGradient(), algorithms.SpectralProjectedGradient()
    marquardt = algorithms.LevenbergMarquardt()
    return {
        "cr_varpro": End(algorithms.cr_varpro(), problems.wide, 3e-2, by_gap=True),
        "blended pairwise": End(algorithms.ActiveSetFrankWolfe(), problems.wide, 1e-3, by_gap=True),
        "accelerated": End(accelerated, problems.wide, 1e-3),
        "spectral": End(spectral, problems.wide, 1e-3),
        "Levenberg-Marquardt": End(marquardt, problems.exponentials, 1e-4),
        "Levenberg-Marquardt at a bound": End(marquardt, problems.bounded, 1e-4),
    }


@cache
def lowest(case: End) -> float:
    """The value where NumPy ends without a tolerance."""
    return evaluation.solve(NUMPY, case.make(), case.algorithm, 300).value


@check("solves", ends, dtypes=("float64",))
def converged(target: Target, case: End) -> Iterator[Measured]:
    """A solve that has converged is as near as its tolerance to the minimum that it heads for.

    Where a gap is all that is asked for, it ends at the first one that is small enough.
    """
    made, tol = case.make(), case.tol
    got = evaluation.solve(target, made, case.algorithm, 300, tol=tol)
    yield Measured("how it ended", got.status.name, "CONVERGED")
    if case.by_gap:
        small = got.trace.gap_A <= tol * got.trace.value
        yield Measured("gaps below the bound", small, np.arange(got.n_iter + 1) == got.n_iter)
    promise = tol if case.by_gap else tol**2
    yield Measured("value", got.value, lowest(case), 2 * promise)
    if target != NUMPY:
        again = evaluation.solve(NUMPY, made, case.algorithm, 300, tol=tol)
        yield Measured("iterations", got.n_iter, again.n_iter)


@check("solves")
def rounding_of_the_gap(target: Target, case: None) -> Iterator[Measured]:
    """Without a tolerance a solve ends at the first iterate whose gap is 10 eps of what rounds, and not before."""
    if target.backend.compiled and not target.thorough:
        raise Inapplicable("many iterations operation by operation, where it compiles: --thorough makes them")
    made = problems.wide(rows=20)  # a wide design has another bound
    got = evaluation.solve(target, made, algorithms.ActiveSetFrankWolfe(), 300)
    floor = 10 * target.eps * evaluation.floor(made)
    yield Measured("how it ended", got.status.name, "CONVERGED")
    yield Measured("gaps below the bound", got.trace.gap_A <= floor, np.arange(got.n_iter + 1) == got.n_iter)


# -- a minimum that is known -------------------------------------------------------------------------------------------

# what is left of the first distance to the minimum after 60 iterations; methods that are not named take all of it away
LEFT = {
    "FrankWolfe": 1e-2, "cr_varpro": 1e-2, "Reseeded": 1e-2, "StochasticFrankWolfe": 1e-1,
    "StochasticProjectedGradient": 1e-1,
}  # fmt: skip


def still(theta: Tree, data: Data) -> Array:
    """A design that does not depend on theta."""
    return data["A"] + 0 * leaves(theta)[0][0]


def linear(theta: Array, data: Data) -> Array:
    """``B theta - c``."""
    return data["B"] @ theta - data["c"]


class Convex(NamedTuple):
    """``1/2 |P (B theta - c)|^2`` on a simplex, P orthogonal to the columns of A, and its least value."""

    reference: Reference
    first: float
    least: float


@cache
def convex() -> Convex:
    """The minimum lies in the face of three of five vertices."""
    rng = np.random.default_rng(5)
    data = {"A": rng.normal(size=(64, 2)), "B": rng.normal(size=(64, 5)), "c": rng.normal(size=64)}
    data["c"] = data["c"] + data["B"] @ [0.5, 0.3, 0.4, -0.2, -0.1]
    data = {name: held(x) for name, x in data.items()}
    Q, _ = np.linalg.qr(data["A"])
    B, c = (x - Q @ (Q.T @ x) for x in (data["B"], data["c"]))

    def value(theta: np.ndarray) -> float:
        return 0.5 * float(np.sum((B @ theta - c) ** 2))

    H, b = (np.asarray(digits(B.T @ x)) for x in (B, c))
    best = rounded(weights(H, b, xv.lower.Simplex(), 0).w)
    theta0 = np.array([0.0, 0.0, 0.0, 0.0, 1.0])
    problem = xv.separable(still, linear, data=data)
    return Convex(Reference(problem, theta0, xv.sets.Simplex()), value(theta0), value(best))


def methods() -> dict[str, Algorithm]:
    """Every method that is exported, the paper's, and one that is wrong where its batches are not drawn anew."""
    found = {name: case.algorithm for name, case in every_method().items() if name != "default, to the end"}
    small = algorithms.StochasticFrankWolfe(batch=4, period=64, estimator=algorithms.Momentum())
    return {**found, "small batches": small}


@check("solves", methods, dtypes=("float64",))
def known_minimum(target: Target, algorithm: Algorithm) -> Iterator[Measured]:
    """On a convex problem every method comes to the minimum that is known, as near as its rate promises."""
    if target.backend.compiled and not target.thorough:
        raise Inapplicable("sixty iterations operation by operation, where it compiles: --thorough makes them")
    case = convex()
    got = evaluation.solve(target, case.reference, algorithm, 60)
    name = "cr_varpro" if algorithm == algorithms.cr_varpro() else type(algorithm).__name__
    yield Measured("value", got.value, case.least, LEFT.get(name, 1e-8), case.first - case.least)
    yield Measured("not below it", bool(got.value >= case.least * (1 - 100 * target.eps)), True)


# -- every method ------------------------------------------------------------------------------------------------------


@cache
def every_method() -> dict[str, Way]:
    """Whatever is exported, as it is built without arguments; a newcomer is found by its export."""
    found = {kind.__name__: kind() for kind in exported(algorithms, Algorithm)}
    # its defaults are for more samples than a reference problem has
    found["StochasticFrankWolfe"] = algorithms.StochasticFrankWolfe(batch=8, period=64)
    adam = algorithms.Adam(rate=0.02)
    found["StochasticProjectedGradient"] = algorithms.StochasticProjectedGradient(batch=8, period=64, update=adam)
    found["cr_varpro"] = algorithms.cr_varpro()
    default = algorithms.choose([problems.exponentials().over], size=3)
    return {
        **{name: Way(algorithm, problems.atoms, FEW) for name, algorithm in found.items()},
        "default, to the end": Way(default, problems.exponentials, ENOUGH),
    }


@cache
def wanted(case: Way) -> xv.Result:
    """The solve by NumPy in double precision."""
    return evaluation.solve(NUMPY, case.make(), case.algorithm, case.iterations)


def _solved(target: Target, case: Way) -> xv.Result:
    return evaluation.solve(target, case.make(), case.algorithm, case.iterations)


@check("solves", every_method)
def every_algorithm(target: Target, case: Way) -> Iterator[Measured]:
    """Of all that are exported, the objective at the end, and ten iterations to rounding, are NumPy's."""
    got = target.once(_solved, case)
    want = got if target == NUMPY else wanted(case)
    yield Measured("objective at the end", got.value, want.value, ENDS[target.dtype])
    if target.dtype == "float64" and case.algorithm.certifies_every_iteration:
        cond, first = max(1.0, want.verified.condition), slice(0, 10)
        yield Measured("first values", got.trace.value[first], want.trace.value[first], 1e3 * target.eps * cond)


@check("solves", every_method)
def certificates(target: Target, case: Way) -> Iterator[Measured]:
    """Value, gap, w, violation, condition and dead units are those of the theta that is returned, on NumPy."""
    made, got = case.make(), target.once(_solved, case)
    theta = np.asarray(got.theta, np.float64)
    cond, start, want = evaluation.condition(made, theta), _certified(case.make), evaluation.certified(made, theta)
    tolerance = 4 * evaluation.gradient_tolerance(target.eps, cond)  # a gap is a sum over the set
    # residuals have the rounding of the target that they are a difference of: a gap has that of a start with such ones
    grown = (evaluation.floor(made) / want.value) ** 0.5
    yield Measured("value", got.value, want.value, evaluation.value_tolerance(target.eps, cond), start.value)
    yield Measured("gap_A", got.gap_A, want.gap_A, tolerance, max(grown * start.gap_A, want.gap_A))
    yield Measured("gap_B", got.gap_B, 0.0)
    yield Measured("w", np.asarray(got.w, np.float64).reshape(want.w.shape), want.w, tolerance)
    yield Measured("violation", got.verified.violation, want.violation, 10 * target.eps, 1.0)
    yield Measured("condition", got.verified.condition, cond, tolerance)
    # under a ridge columns that are rounding of the largest contribute nothing
    sizes = np.abs(evaluation.matrix(made, theta)).max(axis=0)
    yield Measured("units", got.verified.units, sizes.size)
    yield Measured("dead units", got.verified.dead_units, int((sizes <= 8 * target.eps * sizes.max()).sum()))


@cache
def _certified(make: Callable[[], Reference]) -> evaluation.Certified:
    made = make()
    return evaluation.certified(made, made.theta0)


# -- the paper's Theorem 1: the rate, and its lemma on steps -----------------------------------------------------------


ITERATIONS = 40
DELTA, GAMMA = 0.5, 0.1
MU = 1.0


class Quadratic(NamedTuple):
    """A reduced objective whose constants are known: ``1/2 |P (B theta - c)|^2 + mu/2 <theta, K theta>``.

    The design is constant, P the projection orthogonal to its columns, and only the target moves: ``y = B theta - c``.

    Attributes
    ----------
    reference : Reference
    L : float
        Largest curvature in absolute value.
    diameter : float
        ``sqrt(Delta_A^2 + 1)``.
    lowest : float
        Below all values: the squares are at least 0, and K bends down in the bounded block only.
    """

    reference: Reference
    L: float
    diameter: float
    lowest: float


def linear_in_blocks(theta: Data, data: Data) -> Array:
    """``B theta - c``."""
    return data["B"] @ theta["s"] + data["F"] @ theta["x"] - data["c"]


def saddle(theta: Data) -> Array:
    """``<theta, K theta>`` with K = -1 on the bounded block: the objective is not convex."""
    xp = xv.array_namespace(theta["s"])
    return -xp.sum(theta["s"] * theta["s"])


@cache
def quadratic() -> Quadratic:
    """A simplex of 4 and two free variables."""
    rng = np.random.default_rng(0)
    data = {name: problems.held(rng.normal(size=shape)) for name, shape in
            (("A", (12, 3)), ("B", (12, 4)), ("F", (12, 2)), ("c", (12,)))}  # fmt: skip
    radius = 2.0
    problem = xv.separable(still, linear_in_blocks, data=data, R=saddle, mu=MU)
    theta0 = {"s": np.array([radius, 0.0, 0.0, 0.0]), "x": np.zeros(2)}
    over = {"s": xv.sets.Simplex(radius)}
    Q, _ = np.linalg.qr(data["A"])
    moving = np.hstack([data["B"], data["F"]])
    moving = moving - Q @ (Q.T @ moving)
    H = moving.T @ moving - MU * np.diag([1.0] * 4 + [0.0] * 2)
    diameter = radius * math.sqrt(2)
    return Quadratic(
        Reference(problem, theta0, over),
        float(np.abs(np.linalg.eigvalsh(H)).max()),
        math.sqrt(diameter**2 + 1),
        -0.5 * MU * radius**2,
    )


def rules_of_the_lemma() -> dict[str, tuple[FrankWolfe, float]]:
    """Step rules of the lemma, each with its rho."""
    short = FrankWolfe(xv.steps.ShortStep(L=quadratic().L))
    return {
        "Armijo": (cr_varpro(DELTA, GAMMA), GAMMA * min(1.0, 2 * DELTA * (1 - GAMMA))),
        "short step": (short, 0.5),
    }


def at_most(what: str, got: np.ndarray, bound: np.ndarray, slack: float, scale: float) -> Measured:
    """``got <= bound``, but for `slack` times `scale`."""
    return Measured(what, np.maximum(got, bound), bound, slack, scale)


@check("paper", rules_of_the_lemma)
def theorem_1(target: Target, rule: tuple[FrankWolfe, float]) -> Iterator[Measured]:
    """Steps and decreases satisfy the lemma of Theorem 1, and after T iterations the least gap satisfies its rate."""
    algorithm, rho = rule
    case = quadratic()
    trace = evaluation.solve(target, case.reference, algorithm, ITERATIONS).trace
    gaps, start = trace.gap[:-1], float(trace.value[0])
    least = np.minimum(1.0, gaps / (case.L * case.diameter**2))
    yield at_most("lemma: min(1, g/(L Delta^2)) against alpha", least, trace.alpha_A[1:], 8 * target.eps, 1.0)
    decrease = trace.value[:-1] - trace.value[1:]
    yield at_most("lemma: rho alpha g against the decrease", rho * least * gaps, decrease, 100 * target.eps, start)
    T, above = np.arange(1, trace.gap.size), start - case.lowest
    rate = np.maximum(np.sqrt(case.L * case.diameter**2 * above / (rho * T)), 2 * above / T)
    yield at_most("rate: least gap against its bound", np.minimum.accumulate(gaps), rate, 0.0, 1.0)
