"""Whole solves: step by step next to twins of most methods, where they end, and where every method ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import combinations
from typing import NamedTuple

import numpy as np

import xvarpro as xv
from xvarpro import algorithms
from xvarpro.algorithms.interface import Algorithm
from xvarpro.core.struct import Array
from xvarpro_conformance import evaluation
from xvarpro_conformance.problems import Data, Reference, held
from xvarpro_conformance.references import dense, faces, twins
from xvarpro_conformance.references.dense import Dense
from xvarpro_conformance.references.twins import Course, Objective, Vector
from xvarpro_conformance.suite import Inapplicable, Measured, Target, check, exported

FEW = 20  # of every method; operation by operation they take a while
ENOUGH = 40  # for the default to arrive
# of the objective where a solve ended, relative: what rounding leaves of it
ENDS = {"float64": 1e-10, "float32": 3e-3}
# of every iterate: values, and gaps and steps, which are differences
VALUES = {"float64": 1e-9, "float32": 1e-4}
DIFFERENCES = {"float64": 1e-6, "float32": 2e-3}
SINGLE = 5  # iterations that take the same decisions in single precision
SLOW = 8  # iterations of a framework that compiles, where it goes operation by operation; --thorough makes all

Twin = Callable[[Objective, Vector, int], Course]


class Pair(NamedTuple):
    """A method, its twin, a problem, and how many iterations no decision depends on rounding."""

    algorithm: Algorithm
    twin: Twin
    make: Callable[[], Dense]
    iterations: int
    compiled: bool = False
    single: int = SINGLE


def pairs() -> dict[str, Pair]:
    """Methods in their regimes; the paper's in one program where the backend compiles, as users run it."""
    armijo, short = xv.steps.Armijo, xv.steps.ShortStep
    paper, strict = algorithms.cr_varpro(), algorithms.cr_varpro(0.25, 0.4)
    warm = algorithms.FrankWolfe(armijo(warm=True), algorithms.Separate())
    accelerated, spectral = algorithms.AcceleratedProjectedGradient(), algorithms.SpectralProjectedGradient()
    blended = algorithms.ActiveSetFrankWolfe()
    pairwise, away = (algorithms.ActiveSetFrankWolfe(c()) for c in (algorithms.Pairwise, algorithms.AwayStep))
    few = algorithms.ActiveSetFrankWolfe(capacity=4)
    marquardt = algorithms.LevenbergMarquardt()
    return {
        **{
            f"cr_varpro {make.__name__}": Pair(paper, twins.cr_varpro, make, 60, compiled=True)
            for make in (dense.exponentials, dense.dictionary, dense.network, dense.wide)
        },
        "warm Armijo, separate network": Pair(warm, twins.warm_separate, dense.network, 60, compiled=True),
        "strict Armijo": Pair(strict, partial(twins.cr_varpro, delta=0.25, gamma=0.4), dense.wide, 40),
        "open loop": Pair(algorithms.FrankWolfe(xv.steps.OpenLoop()), twins.open_loop, dense.wide, 40),
        "short steps": Pair(algorithms.FrankWolfe(short()), twins.short_steps, dense.network, 40),
        "accelerated": Pair(accelerated, twins.accelerated, dense.wide, 12),
        "accelerated in a ball": Pair(accelerated, twins.accelerated, dense.round_, 25),
        "accelerated network": Pair(accelerated, twins.accelerated, dense.network, 25),
        "spectral": Pair(spectral, twins.spectral, dense.exponentials, 12),
        "spectral dictionary": Pair(spectral, twins.spectral, dense.dictionary, 30),
        "monotone spectral": Pair(
            algorithms.SpectralProjectedGradient(memory=1), partial(twins.spectral, memory=1), dense.exponentials, 12
        ),
        "spectral, three values": Pair(
            algorithms.SpectralProjectedGradient(memory=3), partial(twins.spectral, memory=3), dense.network, 28
        ),
        "blended pairwise": Pair(blended, twins.active_set, dense.wide, 30),
        "pairwise": Pair(pairwise, partial(twins.active_set, correction="pairwise"), dense.wide, 30),
        "away steps": Pair(away, partial(twins.active_set, correction="away"), dense.wide, 20),
        "four atoms": Pair(few, partial(twins.active_set, capacity=4), dense.wide, 20),
        "Levenberg-Marquardt": Pair(marquardt, twins.marquardt, dense.exponentials, 11, single=3),
        "Levenberg-Marquardt at a bound": Pair(marquardt, twins.marquardt, dense.bounded, 6, single=3),
        "Levenberg-Marquardt, another start": Pair(marquardt, twins.marquardt, dense.slow, 8, single=3),
        **_in_faces(),
    }


def _in_faces() -> dict[str, Pair]:
    """Methods that move inside faces."""
    momentum, plain = twins.Accelerated, twins.Spectral
    accelerated = algorithms.AcceleratedProjectedGradient()
    projected, in_face, frank_wolfe = (
        algorithms.ProjectedQuasiNewton, algorithms.InFaceQuasiNewton, algorithms.InFaceFrankWolfe,
    )  # fmt: skip
    late, early = (partial(faces.quasi_newton, memory=3, settle=2), partial(faces.quasi_newton, memory=5, settle=0))
    blended, pairwise, away = (partial(faces.in_face, correction=name) for name in ("blended", "pairwise", "away"))
    return {
        "quasi-Newton": Pair(projected(3, 2), partial(late, plain), dense.exponentials, 18),
        "quasi-Newton on a simplex": Pair(projected(3, 2), partial(late, plain), dense.wide, 9),
        "quasi-Newton network": Pair(
            projected(5, 0, base=accelerated), partial(early, momentum), dense.network, 30, single=3
        ),
        "quasi-Newton in faces": Pair(in_face(3, 2), partial(late, plain, projects=False), dense.bounded, 12),
        "quasi-Newton in faces, momentum": Pair(
            in_face(5, 0, momentum=True), partial(early, momentum, projects=False), dense.network, 30, single=3
        ),
        "quasi-Newton in faces of a simplex": Pair(in_face(5, 0), partial(early, plain, projects=False), dense.wide, 9),
        "in-face gradient": Pair(frank_wolfe(), faces.in_face, dense.bounded, 30),
        "in-face gradient on a simplex": Pair(frank_wolfe(), faces.in_face, dense.wide, 14),
        "in-face blended": Pair(frank_wolfe(algorithms.BlendedPairwise()), blended, dense.wide, 30),
        "in-face pairwise": Pair(frank_wolfe(algorithms.Pairwise()), pairwise, dense.bounded, 30),
        "in-face away steps": Pair(frank_wolfe(algorithms.AwayStep()), away, dense.wide, 30),
    }


@cache
def course(twin: Twin, make: Callable[[], Dense], iterations: int) -> Course:
    """What the twin does, computed once."""
    problem = dense.of(make)
    return twin(problem.f, problem.theta0, iterations)


def first_off(name: str, got: np.ndarray, want: np.ndarray, tolerances: float | np.ndarray) -> Measured:
    """The first row that is off by more than its tolerance, relative to itself; else the worst one."""
    if got.shape != want.shape:
        return Measured(name, got, want)
    tolerance = np.broadcast_to(tolerances, want.shape)
    error = np.abs(got - want) / np.where(want == 0, 1.0, np.abs(want))
    off = ~(error <= tolerance)
    i = int(np.argmax(off)) if off.any() else int(np.argmax(error))
    return Measured(f"{name}, iterate {i}", got[i], want[i], float(tolerance[i]), float(abs(want[i])) or 1.0)


def rounding_of_values(f: Objective, course: Course, eps: float) -> np.ndarray:
    """What rounding may change of the objective at every iterate, relative to it.

    A residual r is the difference of the target and a sum of n products, whose w has been solved for: it is off by
    ``dr``, of length ``(n + 1) eps cond |y|``. A step ``J^+ r`` takes that along, and the objective after it is off by
    ``<J^T r, J^+ dr>``, at most ``|r| |dr|`` whatever J is: relative to ``1/2 |r|^2`` that is ``2 |dr| / |r|``, of
    this iterate or of one before.
    """
    n = f.lower.matrix(course.thetas[0]).shape[1]
    lengths = np.sqrt(f.floor(course.thetas[0]) / np.abs(course.column("value")))
    conditions = np.array([twins.condition(f, theta) for theta in course.thetas])
    found: np.ndarray = np.maximum.accumulate(2 * (n + 1) * eps * conditions * lengths)
    return found


def step_by_step(target: Target, f: Objective, trace: xv.Trace, want: Course) -> Iterator[Measured]:
    """Every column of a trace next to the twin's."""
    values = np.maximum(VALUES[target.dtype], rounding_of_values(f, want, target.eps))[: trace.value.size]
    for name in twins.COLUMNS:
        tolerance = 0.0 if name in twins.COUNTS else values if name == "value" else DIFFERENCES[target.dtype]
        got, column = getattr(trace, name), want.column(name)
        if name.startswith("alpha") and not want.column("gap_B").any() and name == "alpha_B":
            continue  # of a block without leaves
        yield first_off(name, got, column[: got.size], tolerance)


@check("solves", pairs, against="twin")
def step_decisions(target: Target, pair: Pair) -> Iterator[Measured]:
    """Values, gaps, steps and counts of all iterates are those of a plain text of the method, from its paper."""
    single = target.dtype == "float32"
    n = min(pair.single, pair.iterations) if single else pair.iterations
    if target.backend.compiled and not (pair.compiled or target.thorough):
        n = min(n, SLOW)
    want = course(pair.twin, pair.make, pair.iterations)
    want = Course(want.rows[: n + 1], want.thetas[: n + 1])
    made = dense.of(pair.make).reference
    got = evaluation.solve(target, made, pair.algorithm, n, compiled=pair.compiled and not single)
    yield Measured("iterations", got.n_iter, n)
    yield Measured("how it ended", got.status.name, "MAX_ITER")
    yield Measured("iterations in the trace", got.trace.iteration, np.arange(n + 1))
    yield from step_by_step(target, dense.of(pair.make).f, got.trace, want)
    end = int(np.argmin(want.column("value"))) if not pair.algorithm.monotone else n
    yield Measured("theta", dense.flat(got.theta), want.thetas[end], 1e3 * VALUES[target.dtype])


# -- where a solve ends ------------------------------------------------------------------------------------------------


class End(NamedTuple):
    """A method, its twin, a problem, a tolerance, and the documented rule by which the twin's course ends."""

    algorithm: Algorithm
    twin: Twin
    make: Callable[[], Dense]
    tol: float
    rule: Callable[[Objective, Course, float], int]


def _last(f: Objective, course: Course, tol: float) -> int:
    return len(course.rows) - 1  # the twin itself has ended there


def ends() -> dict[str, End]:
    """A bound of the gap alone, with the parabolas' promise, and a model's promise."""
    armijo, blended = algorithms.cr_varpro(), algorithms.ActiveSetFrankWolfe()
    accelerated, spectral = algorithms.AcceleratedProjectedGradient(), algorithms.SpectralProjectedGradient()
    marquardt, by_gap, by_promise = algorithms.LevenbergMarquardt(), twins.end_by_gap, twins.end_by_promise
    return {
        "cr_varpro": End(armijo, twins.cr_varpro, dense.wide, 3e-2, by_gap),
        "blended pairwise": End(blended, twins.active_set, dense.wide, 1e-3, by_gap),
        "accelerated": End(accelerated, twins.accelerated, dense.wide, 1e-3, by_promise),
        "spectral": End(spectral, twins.spectral, dense.wide, 1e-3, by_promise),
        "Levenberg-Marquardt": End(marquardt, partial(twins.marquardt, tol=1e-4), dense.exponentials, 1e-4, _last),
        "Levenberg-Marquardt at a bound": End(
            marquardt, partial(twins.marquardt, tol=1e-4), dense.bounded, 1e-4, _last
        ),
    }


@check("solves", ends, dtypes=("float64",), against="twin")
def converged(target: Target, case: End) -> Iterator[Measured]:
    """A solve has converged at the first iterate that the documented rule accepts, and says so."""
    made = dense.of(case.make)
    whole = course(case.twin, case.make, 300)
    end = case.rule(made.f, whole, case.tol)
    got = evaluation.solve(target, made.reference, case.algorithm, 300, tol=case.tol)
    yield Measured("how it ended", got.status.name, "CONVERGED")
    yield Measured("iterations", got.n_iter, end)
    yield Measured("value", got.value, whole.rows[end]["value"], VALUES[target.dtype])


@check("solves", against="definition")
def rounding_of_the_gap(target: Target, case: None) -> Iterator[Measured]:
    """Without a tolerance a solve ends at the first iterate whose gap is 10 eps of what rounds, and not before."""
    if target.backend.compiled and not target.thorough:
        raise Inapplicable("seventy iterations operation by operation, where it compiles: --thorough makes them")
    made = dense.of(dense.wide)
    got = evaluation.solve(target, made.reference, algorithms.ActiveSetFrankWolfe(), 300)
    floor = 10 * target.eps * made.f.floor(made.theta0)
    yield Measured("how it ended", got.status.name, "CONVERGED")
    yield Measured("gaps below the bound", got.trace.gap_A <= floor, np.arange(got.n_iter + 1) == got.n_iter)


# -- a minimum that is known -------------------------------------------------------------------------------------------

# what is left of the first distance to the minimum after 60 iterations; methods that are not named take all of it away
LEFT = {
    "FrankWolfe": 1e-2, "cr_varpro": 1e-2, "Reseeded": 1e-2, "StochasticFrankWolfe": 1e-1,
    "StochasticProjectedGradient": 1e-1,
}  # fmt: skip


def still(theta: Array, data: Data) -> Array:
    """A design that does not depend on theta."""
    return data["A"] + 0 * theta[0]


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
    """The minimum lies in the face of three of five vertices: of all faces the lowest feasible minimum is taken."""
    rng = np.random.default_rng(5)
    data = {"A": rng.normal(size=(64, 2)), "B": rng.normal(size=(64, 5)), "c": rng.normal(size=64)}
    data["c"] = data["c"] + data["B"] @ [0.5, 0.3, 0.4, -0.2, -0.1]
    data = {name: held(x) for name, x in data.items()}
    Q, _ = np.linalg.qr(data["A"])
    B, c = (x - Q @ (Q.T @ x) for x in (data["B"], data["c"]))

    def value(theta: Vector) -> float:
        return 0.5 * float(np.sum((B @ theta - c) ** 2))

    found = []
    for size in range(1, 6):
        for face in map(list, combinations(range(5), size)):
            # the gradient is the same in all entries of the face, and they sum to 1
            K = np.block([[B[:, face].T @ B[:, face], np.ones((size, 1))], [np.ones((1, size)), np.zeros((1, 1))]])
            theta = np.zeros(5)
            theta[face] = np.linalg.solve(K, np.append(B[:, face].T @ c, 1.0))[:-1]
            if (theta >= 0).all():
                found.append(value(theta))
    theta0 = np.array([0.0, 0.0, 0.0, 0.0, 1.0])
    problem = xv.separable(still, linear, data=data)
    return Convex(Reference(problem, theta0, xv.sets.Simplex()), value(theta0), min(found))


def methods() -> dict[str, Algorithm]:
    """Every method that is exported, the paper's, and one that is wrong where its batches are not drawn anew."""
    found = {name: case.algorithm for name, case in every_method().items() if name != "default, to the end"}
    small = algorithms.StochasticFrankWolfe(batch=4, period=64, estimator=algorithms.Momentum())
    return {**found, "small batches": small}


@check("solves", methods, dtypes=("float64",), against="closed form")
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


class Case(NamedTuple):
    """A method, the problem that it runs on, and for how long."""

    algorithm: Algorithm
    make: Callable[[], Dense]
    iterations: int


@cache
def every_method() -> dict[str, Case]:
    """Whatever is exported, as it is built without arguments; a newcomer is found by its export."""
    found = {kind.__name__: kind() for kind in exported(algorithms, Algorithm)}
    # its defaults are for more samples than a reference problem has
    found["StochasticFrankWolfe"] = algorithms.StochasticFrankWolfe(batch=8, period=64)
    adam = algorithms.Adam(rate=0.02)
    found["StochasticProjectedGradient"] = algorithms.StochasticProjectedGradient(batch=8, period=64, update=adam)
    found["cr_varpro"] = algorithms.cr_varpro()
    default = algorithms.choose([dense.of(dense.exponentials).reference.over], size=3)
    return {
        **{name: Case(algorithm, dense.atoms, FEW) for name, algorithm in found.items()},
        "default, to the end": Case(default, dense.exponentials, ENOUGH),
    }


@cache
def wanted(case: Case) -> xv.Result:
    """The solve by NumPy in double precision."""
    return evaluation.solve(evaluation.NUMPY, dense.of(case.make).reference, case.algorithm, case.iterations)


def _solved(target: Target, case: Case) -> xv.Result:
    return evaluation.solve(target, dense.of(case.make).reference, case.algorithm, case.iterations)


@check("solves", every_method)
def every_algorithm(target: Target, case: Case) -> Iterator[Measured]:
    """Methods without a twin too: the objective at the end, and ten iterations to rounding, are NumPy's."""
    got, want = target.once(_solved, case), wanted(case)
    yield Measured("objective at the end", got.value, want.value, ENDS[target.dtype])
    if target.dtype == "float64" and case.algorithm.certifies_every_iteration:
        cond, first = max(1.0, want.verified.condition), slice(0, 10)
        yield Measured("first values", got.trace.value[first], want.trace.value[first], 1e3 * target.eps * cond)


@check("solves", every_method, against="closed form")
def certificates(target: Target, case: Case) -> Iterator[Measured]:
    """Value, gap, w, violation, condition and dead units are those of the theta that is returned, by dense algebra."""
    got = target.once(_solved, case)
    f, theta = dense.of(case.make).f, dense.flat(got.theta)
    yield from certified(target, f, theta, got, dense.of(case.make).theta0)


def certified(target: Target, f: Objective, theta: Vector, got: xv.Result, theta0: Vector) -> Iterator[Measured]:
    """Every number of a result that belongs to its theta."""
    cond = twins.condition(f, theta)
    start = f.direction(theta0, f.gradient(theta0))
    _, gap_A, gap_B = f.direction(theta, f.gradient(theta))
    tolerance = 4 * evaluation.gradient_tolerance(target.eps, cond)  # a gap is a sum over the set
    # residuals have the rounding of the target that they are a difference of: a gap has that of a start with such ones
    grown = (f.floor(theta0) / f.value(theta0)) ** 0.5
    yield Measured("value", got.value, f.value(theta), evaluation.value_tolerance(target.eps, cond), f.value(theta0))
    yield Measured("gap_A", got.gap_A, gap_A, tolerance, max(grown * start[1], gap_A))
    yield Measured("gap_B", got.gap_B, gap_B, tolerance, max(grown * start[2], gap_B) or 1.0)
    yield Measured("w", np.asarray(got.w, np.float64).reshape(-1, f.y.shape[1]), f.w(theta), tolerance)
    yield Measured("violation", got.verified.violation, f.violation(theta), 10 * target.eps, 1.0)
    yield Measured("condition", got.verified.condition, cond, tolerance)
    columns = f.lower.matrix(theta)
    yield Measured("units", got.verified.units, columns.shape[1])
    # under a ridge columns that are rounding of the largest contribute nothing
    sizes = np.abs(columns).max(axis=0)
    least = 8 * target.eps * sizes.max() if f.lam else 0.0
    yield Measured("dead units", got.verified.dead_units, int((sizes <= least).sum()))
