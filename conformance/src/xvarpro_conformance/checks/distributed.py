"""Data that several members of a group hold: the objective of all data, and the same steps in every member."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

import xvarpro as xv
from xvarpro.backends.group import Group
from xvarpro.core.namespace import find_dtype
from xvarpro.core.struct import Array, Leaves
from xvarpro.core.trees import map_arrays
from xvarpro_conformance import evaluation, problems
from xvarpro_conformance.checks import reduced, solves
from xvarpro_conformance.checks.solves import Pair
from xvarpro_conformance.members import Member, together
from xvarpro_conformance.problems import BOX, MANY, OMEGA, RATES, WAVES, Reference, T, Y, held
from xvarpro_conformance.references import dense, twins
from xvarpro_conformance.references.dense import Dense
from xvarpro_conformance.references.twins import Course
from xvarpro_conformance.suite import Measured, Target, check

Make = Callable[[], Reference]
Edges = tuple[int, ...]

# uneven parts, the first with fewer rows than there are unknowns; few shapes, which compile
LOWER, UPPER, COLUMNS = (0, 2, 10, 24), (0, 2, 4, 12), (0, 1, 3, 4)
FIVE = (0, 2, 4, 10, 18, 24)
ROWS = 6  # of a chunk
FEW = 10  # iterations


def own(x: Any, edges: Edges, group: Group, axis: int = 0) -> Any:
    """The rows or columns of a member."""
    part = slice(edges[group.rank], edges[group.rank + 1])
    return x[part] if axis == 0 else x[:, part]


def rows(data: Any, y: Any, edges: Edges, group: Group) -> xv.RowChunks:
    """Times or samples, and targets or a function of them, of which each member has its rows."""
    data = map_arrays(lambda x: own(x, edges, group), data)
    return xv.RowChunks.cut(data, y if callable(y) else own(y, edges, group), ROWS, group)


def columns(y: np.ndarray, edges: Edges, group: Group) -> xv.ColumnChunks:
    """Right-hand sides of which each member has its own, one in a chunk."""
    return xv.ColumnChunks.cut(own(y, edges, group, axis=1), 1, group)


# -- the objective -----------------------------------------------------------------------------------------------------


class Parts(NamedTuple):
    """A problem in one process, and the one that a member states, with its part of the data."""

    whole: Make
    of: Callable[[Group], xv.Problem]
    size: int = 3
    turn: tuple[str, ...] = ()  # the precisions in which it is compiled
    is_complex: bool = False

    def applies(self, target: Target) -> None:
        """Raise where it does not, or is left out."""
        target.represent(self.turn)
        if self.is_complex:
            find_dtype(target.backend.xp, target.complex_dtype)


def _one_level(group: Group, edges: Edges = LOWER, solver: Any = None) -> xv.Problem:
    y = rows(T["lower"], MANY["lower"], edges, group)
    return xv.separable(problems.rows_at, y, lam=0.1, Omega=OMEGA, R=problems.energy, mu=0.02, solver=solver)


def unridged() -> Reference:
    """Decays without a ridge, whose rank has to be that of all rows."""
    return Reference(xv.separable(problems.lower_decays, Y["lower"], data=T), RATES, BOX)


def _unridged(group: Group) -> xv.Problem:
    return xv.separable(problems.rows_at, rows(T["lower"], Y["lower"], LOWER, group))


def _two_levels(group: Group) -> xv.Problem:
    below, above = rows(T["lower"], problems.target_at, LOWER, group), rows(T["upper"], Y["upper"], UPPER, group)
    return xv.bilevel(
        lower=xv.Level(problems.rows_at, below, lam=0.1),
        upper=xv.Level(problems.rows_at, above, lam=0.2, Omega=OMEGA),
    )


def _below_an_array(group: Group) -> xv.Problem:
    below = xv.Level(problems.rows_at, rows(T["lower"], Y["lower"], LOWER, group), lam=0.05)
    return xv.bilevel(lower=below, upper=xv.Level(problems.upper_decays, Y["upper"]), data=T)


def _above_an_array(group: Group) -> xv.Problem:
    above = xv.Level(problems.rows_at, rows(T["upper"], Y["upper"], UPPER, group))
    return xv.bilevel(lower=xv.Level(problems.lower_decays, Y["lower"], lam=0.05), upper=above, data=T)


def _complex_rows(group: Group) -> xv.Problem:
    y: Any = problems.complex_waves().problem.lower.y
    cuts = [slice(a, b) for a, b in pairwise((0, 2, 8, 14, 24))]
    chunks = [({**WAVES, "lower": T["lower"][cut]}, y[cut]) for cut in cuts]
    mine = chunks[:1] if group.rank == 0 else chunks[1:]
    return xv.separable(problems.waves, xv.RowChunks(mine, group=group), lam=0.1)


def _columns(group: Group, compress: bool) -> xv.Problem:
    y = columns(MANY["lower"], COLUMNS, group)
    return xv.separable(
        problems.lower_decays, y, data=T, lam=0.1, Omega=OMEGA, R=problems.energy, mu=0.02, compress=compress
    )


TURNED = MANY["lower"] + 1j * np.roll(MANY["lower"], 1, axis=1)


def levels_of_columns() -> Reference:
    """Two complex levels, each with a ridge, and a penalty."""
    return Reference(_levels(TURNED, MANY["upper"], True), RATES, BOX)


def _levels(y: Any, y_upper: Any, compress: bool) -> xv.Problem:
    return xv.bilevel(
        lower=xv.Level(problems.waves, y, lam=0.1),
        upper=xv.Level(problems.waves_above, y_upper, lam=0.2, Omega=OMEGA),
        data=WAVES,
        R=problems.energy,
        mu=0.02,
        compress=compress,
    )


def _levels_of_columns(group: Group, compress: bool) -> xv.Problem:
    return _levels(columns(TURNED, COLUMNS, group), columns(MANY["upper"], COLUMNS, group), compress)


def parts() -> dict[str, Parts]:
    """Rows and columns, of one level and of two."""
    streamed = problems.streamed
    return {
        "rows": Parts(streamed, _one_level, turn=("float64",)),
        "rows of five": Parts(streamed, partial(_one_level, edges=FIVE), 5, ("float64",)),
        "rows by Cholesky": Parts(streamed, partial(_one_level, solver=xv.lower.Cholesky())),
        "rows without ridge": Parts(unridged, _unridged),
        "rows of two levels": Parts(problems.streamed_levels, _two_levels),
        "rows below an array": Parts(problems.unequal_splits, _below_an_array),
        "rows above an array": Parts(problems.unequal_splits, _above_an_array),
        "complex rows": Parts(problems.complex_waves, _complex_rows, 2, is_complex=True),
        "columns": Parts(streamed, partial(_columns, compress=False)),
        "compressed columns": Parts(streamed, partial(_columns, compress=True)),
        **{
            name: Parts(levels_of_columns, partial(_levels_of_columns, compress=compress), is_complex=True)
            for name, compress in (("columns of two levels", False), ("compressed columns of two levels", True))
        },
    }


def stated(case: Parts, group: Group) -> Reference:
    """The problem of a member, at the start of all."""
    whole = case.whole()
    return Reference(case.of(group), whole.theta0, whole.over)


@check("distributed", parts, against="more digits")
def value_and_gradient(target: Target, case: Parts) -> Iterator[Measured]:
    """Value, weights and gradient in every member are those of all data, in a hundred digits, to the same bits."""
    case.applies(target)
    known = reduced.exact(case.whole)
    found = together(case.size, lambda group: reduced.called(target, stated(case, group), _evaluated))
    (value, energy, gradient, _), *others = found
    tolerance = evaluation.gradient_tolerance(target.eps, known.condition)
    yield Measured("value", value, known.value, evaluation.value_tolerance(target.eps, known.condition))
    yield Measured("1/2 |y|^2", energy, known.energy, 100 * target.eps)
    yield Measured("slopes", known.D.T @ gradient, known.slopes, tolerance)
    for i, other in enumerate(others, 1):
        for what, x, y in zip(("value", "1/2 |y|^2", "gradient"), other, found[0], strict=False):
            yield Measured(f"{what}, member {i}", x, y)
    yield from _weights(known.w, [w for *_, w in found], tolerance)


def _evaluated(f: Any, theta: Leaves) -> Leaves:
    point, (gradient,) = f.value_and_gradient(theta)
    return point.value, f.scale(theta), gradient, f.solve_lower(theta)


def _weights(want: np.ndarray, found: list[np.ndarray], tolerance: float) -> Iterator[Measured]:
    """Of all columns, where a member has its own; else the same in all, turned where the target was compressed."""
    w = np.concatenate(found, axis=1)
    if w.shape != want.shape:
        w = found[0]
        for i, other in enumerate(found[1:], 1):
            yield Measured(f"w, member {i}", other, w)
    if w.shape == want.shape:
        yield Measured("w", w, want, tolerance)
    else:
        yield Measured("w w^H", w @ w.conj().T, want @ want.conj().T, tolerance)


def modelled() -> dict[str, Parts]:
    """Those that have a Gauss-Newton model: of rows, one level."""
    return {name: case for name, case in parts().items() if "rows" not in name or case.whole().problem.is_separable}


@check("distributed", modelled, against="more digits")
def gauss_newton_model(target: Target, case: Parts) -> Iterator[Measured]:
    """The gradient and the matrix of Gauss and Newton in every member are those of all data, to the same bits."""
    case.applies(target)
    known = reduced.exact(case.whole)
    first, *others = together(case.size, lambda group: reduced.called(target, stated(case, group), reduced.model))
    slopes, gram = first
    tolerance = 100 * target.eps * known.condition
    want = (known.jacobian @ known.jacobian.conj().T).real
    yield Measured("slopes", known.D.T @ slopes, known.slopes, tolerance, float(np.linalg.norm(slopes)))
    yield Measured("J J^T", known.D.T @ gram @ known.D, want, tolerance)
    for i, other in enumerate(others, 1):
        for what, x, y in zip(("gradient", "matrix"), other, first, strict=True):
            yield Measured(f"{what}, member {i}", x, y)


# -- solves ------------------------------------------------------------------------------------------------------------


class Steps(NamedTuple):
    """A method with its twin, the problem of a member, and how many rows or columns a value counts for."""

    pair: Pair
    of: Callable[[Group], xv.Problem]
    rows: int
    turn: tuple[str, ...] = ()

    def iterations(self, target: Target) -> int:
        """As many as no rounding decides."""
        return self.pair.single if target.dtype == "float32" else self.pair.iterations


def mixtures() -> Dense:
    """Four mixtures of three decays with noise, in a box, with a small penalty."""
    rng, t = np.random.default_rng(0), T["lower"]
    y = held(np.exp(-np.outer(t, [0.7, 2.0, 7.0])) @ rng.normal(size=(3, 4)) + 1e-2 * rng.normal(size=(24, 4)))
    problem = xv.separable(problems.decays, y, data=t, lam=1e-2, R=problems.energy, mu=1e-5)
    f = twins.Objective(
        dense.decays(t), y, 1e-2, ((slice(None), twins.box(0.0, 10.0)),),
        penalty=lambda theta: (float(np.sum(theta**4)), 4 * theta**3), mu=1e-5,
    )  # fmt: skip
    return Dense(Reference(problem, np.array([0.5, 3.0, 8.0]), BOX), f)


def _mixtures_in_rows(group: Group) -> xv.Problem:
    problem = dense.of(mixtures).reference.problem
    y = rows(problem.data, problem.lower.y, LOWER, group)
    return replace(problem, lower=replace(problem.lower, y=y), data=None)


def _rows_of_network(group: Group) -> xv.Problem:
    problem = problems.network().problem
    levels = zip(problem.levels, ("train", "validation"), ((0, 2, 8, 40), (0, 2, 8, 30)), strict=True)
    below, above = (
        replace(level, y=rows({name: problem.data[name]}, level.y, edges, group)) for level, name, edges in levels
    )
    return replace(problem, lower=below, upper=above, data=None)


def _columns_of(make: Callable[[], Dense], edges: Edges, compress: bool, group: Group) -> xv.Problem:
    problem = dense.of(make).reference.problem
    y = xv.ColumnChunks.cut(own(np.asarray(problem.lower.y), edges, group, axis=1), 30, group)
    return replace(problem, lower=replace(problem.lower, y=y), compress=compress)


@cache
def steps() -> dict[str, Steps]:
    """Rows and columns, by methods that take one evaluation for a step and several."""
    known = solves.pairs()
    marquardt = known["Levenberg-Marquardt"]._replace(make=mixtures, iterations=8)
    network, dictionary = (known[f"cr_varpro {name}"]._replace(iterations=FEW) for name in ("network", "dictionary"))
    wide = (0, 10, 40, 90)
    return {
        "Levenberg-Marquardt, rows": Steps(marquardt, _mixtures_in_rows, 24),
        "Levenberg-Marquardt, columns": Steps(marquardt, partial(_columns_of, mixtures, COLUMNS, False), 4),
        "cr_varpro, rows of two levels": Steps(network, _rows_of_network, 70),
        "cr_varpro, columns": Steps(dictionary, partial(_columns_of, dense.dictionary, wide, False), 90, ("float32",)),
        "cr_varpro, compressed columns": Steps(dictionary, partial(_columns_of, dense.dictionary, wide, True), 20),
    }


def _taken(target: Target, case: Steps) -> list[tuple[xv.Result, np.ndarray]]:
    """What each member finds, and its weights."""
    made = dense.of(case.pair.make).reference

    def solve(group: Group) -> tuple[xv.Result, np.ndarray]:
        part = replace(made, problem=case.of(group))
        fit = evaluation.solve(target, part, case.pair.algorithm, case.iterations(target))
        return fit, np.asarray(fit.w)

    return together(3, solve)


def the_same(fits: list[xv.Result]) -> Iterator[Measured]:
    """Iterates, clocks and ends are those of member 0, to the last bit."""
    first, *others = fits
    columns = ("iteration", *twins.COLUMNS, "rows", "seconds")
    for i, other in enumerate(others, 1):
        yield Measured(f"theta, member {i}", dense.flat(other.theta), dense.flat(first.theta))
        got, want = (np.stack([getattr(fit.trace, name) for name in columns]) for fit in (other, first))
        yield Measured(f"trace, member {i}", got, want)
        got, want = (np.array([f.value, f.gap_A, f.gap_B, f.n_iter, f.seconds]) for f in (other, first))
        yield Measured(f"value, gaps, iterations and seconds, member {i}", got, want)
        yield Measured(f"how it ended, member {i}", other.status.name, first.status.name)


@check("distributed", steps, against="twin")
def step_decisions(target: Target, case: Steps) -> Iterator[Measured]:
    """All iterates are those of a plain text of the method on all data, and have the same bits in every member."""
    target.represent(case.turn)
    fits = [fit for fit, _ in target.once(_taken, case)]
    n = case.iterations(target)
    want = solves.course(case.pair.twin, case.pair.make, case.pair.iterations)
    yield Measured("iterations", fits[0].n_iter, n)
    yield Measured("rows", fits[0].trace.rows, case.rows * fits[0].trace.values)
    yield from solves.step_by_step(
        target, dense.of(case.pair.make).f, fits[0].trace, Course(want.rows[: n + 1], want.thetas[: n + 1])
    )
    yield Measured("theta", dense.flat(fits[0].theta), want.thetas[n], 1e3 * solves.VALUES[target.dtype])
    yield from the_same(fits)


@check("distributed", steps, against="closed form")
def certificates(target: Target, case: Steps) -> Iterator[Measured]:
    """Value, gap, w, violation, condition and dead units are those of all data at theta, by dense algebra."""
    target.represent(case.turn)
    found = target.once(_taken, case)
    made = dense.of(case.pair.make)
    w = np.concatenate([np.reshape(w, (w.shape[0], -1)) for _, w in found], axis=1)
    for i, (fit, own_w) in enumerate(found):
        got = replace(fit, _w=w if w.shape[1] == made.f.y.shape[1] else own_w)
        for measured in solves.certified(target, made.f, dense.flat(fit.theta), got, made.theta0):
            yield replace(measured, what=f"{measured.what}, member {i}")


def _graded(theta: Array, data: dict[str, Array]) -> Array:
    return data["A"] * theta


@check("distributed", against="definition")
def dead_units(target: Target, case: None) -> Iterator[Measured]:
    """A column that is zero in the rows of some members is not dead, one that is zero in all rows is."""
    target.represent(())
    A = held(np.random.default_rng(3).normal(size=(24, 4)))
    A[:2, 0], A[2:, 1] = 0.0, 0.0
    theta0 = np.array([1.0, 0.5, 0.0, 2.0])

    def solve(group: Group) -> xv.Result:
        problem = xv.separable(_graded, rows({"A": A}, Y["lower"], LOWER, group), lam=0.5)
        return evaluation.solve(target, Reference(problem, theta0, BOX), None, 0)

    for i, fit in enumerate(together(3, solve)):
        yield Measured(f"dead units, member {i}", fit.verified.dead_units, 1)
        yield Measured(f"units, member {i}", fit.verified.units, 4)


def methods() -> dict[str, xv.algorithms.Algorithm]:
    """One that takes a single evaluation for a step, and one that searches."""
    steps = xv.algorithms.steps
    return {"model": xv.algorithms.LevenbergMarquardt(), "search": xv.algorithms.FrankWolfe(step=steps.Armijo())}


@check("distributed", methods, against="definition")
def processors_that_round_otherwise(target: Target, algorithm: xv.algorithms.Algorithm) -> Iterator[Measured]:
    """Members whose processors round in other ways take the same steps, down to where rounding decides.

    What stands for rounding is a penalty that is another one in each.
    """
    target.represent(())
    made = dense.of(mixtures).reference

    def solve(group: Group) -> xv.Result:
        def penalty(theta: Array) -> Array:
            return problems.energy(theta) * (1 + 1e-2 * group.rank)

        part = replace(made, problem=replace(_mixtures_in_rows(group), R=penalty, mu=1.0))
        return evaluation.solve(target, part, algorithm, 8)

    fits = together(3, solve)
    yield Measured("iterations, or 5", min(fits[0].n_iter, 5), 5)
    yield from the_same(fits)


def far(dtype: str) -> float:
    """A factor that takes theta out of the range in which its units are left as they are."""
    return float(np.finfo(dtype).max) ** -0.3


@check("distributed", against="definition")
def first_member(target: Target, case: None) -> Iterator[Measured]:
    """Where member 0 starts all do, and they end when its callback says so, whatever theta0 and callback of others."""
    target.represent(())
    made = dense.of(mixtures).reference
    factors = 1.0, 0.5, far(target.dtype)

    def solve(group: Group) -> tuple[np.ndarray, xv.Result]:
        seen = []

        def watch(info: xv.IterationInfo) -> bool:
            seen.append(dense.flat(info.theta))
            return info.iteration == (3 if group.rank == 0 else 1)

        part = replace(made, problem=_mixtures_in_rows(group), theta0=factors[group.rank] * made.theta0)
        fit = evaluation.solve(target, part, None, 6, callback=watch)
        return np.stack(seen), fit

    iterates, fits = zip(*together(3, solve), strict=True)
    value = dense.of(mixtures).f.value(made.theta0)
    yield Measured("value at theta0", fits[0].trace.value[0], value, solves.VALUES[target.dtype])
    yield Measured("iterations", fits[0].n_iter, 3)
    yield Measured("how it ended", fits[0].status.name, "STOPPED")
    for i, other in enumerate(iterates[1:], 1):
        yield Measured(f"what the callback of member {i} saw", other, iterates[0])
    yield from the_same(list(fits))


# -- statistics --------------------------------------------------------------------------------------------------------


@cache
def textbook() -> dict[str, np.ndarray]:
    """Statistics of decays with many right-hand sides at `RATES`, by the formulas of a linear regression."""
    t, y = T["lower"][:, None], MANY["lower"]
    M, (m, k), p = np.exp(-t * RATES), y.shape, RATES.size
    inverse, dM = np.linalg.pinv(M), -t * M
    w = inverse @ y
    r = M @ w - y
    X = np.stack([dM * w[:, j] for j in range(k)])  # tangents of the residual with w held, (k, m, p)
    J = X - M @ (inverse @ X)
    chi2, dof = np.sum(r * r), m * k - w.size - p
    C = chi2 / dof * np.linalg.inv(np.sum(J.mT @ J, axis=0))
    tangents = inverse @ X  # of -w by theta
    variances = chi2 / dof * np.diagonal(inverse @ inverse.T) + np.sum((tangents @ C) * tangents, axis=2)
    return {
        "data and degrees of freedom": np.array([m * k, dof]),
        "chi2": np.array(chi2),
        "1 - R2": chi2 / np.sum((y - y.mean(axis=0)) ** 2),
        "covariance of theta": C,
        "standard errors of w": np.sqrt(variances.T),
        "condition": np.linalg.cond(J.reshape(-1, p)) * np.linalg.cond(M),
    }


@check("distributed", lambda: {"compressed": True, "as they are": False}, against="closed form")
def statistics_of_columns(target: Target, compress: bool) -> Iterator[Measured]:
    """Statistics in every member are those of the right-hand sides of all, and errors of w those of its own."""
    target.represent(("float64",) if compress else ())

    def found(group: Group) -> tuple[dict[str, np.ndarray], np.ndarray]:
        y = columns(MANY["lower"], COLUMNS, group)
        problem = xv.separable(problems.lower_decays, y, data=T, compress=compress)
        s = xv.statistics.linear_theory(
            problem, RATES, backend=target.backend, device=target.device, dtype=target.dtype
        )
        numbers = {
            "data and degrees of freedom": np.array([s.data, s.dof]),
            "chi2": np.array(s.chi2),
            "1 - R2": np.array(1 - s.r_squared),
            "covariance of theta": s.theta_covariance,
        }
        return numbers, np.asarray(s.w_stderr)

    want, members = textbook(), together(3, found)
    tolerance = 10 * target.eps * float(want["condition"])
    for i, (numbers, _) in enumerate(members):
        for what, got in numbers.items():
            yield Measured(f"{what}, member {i}", got, want[what], tolerance)
    w_stderr = np.concatenate([errors for _, errors in members], axis=1)
    yield Measured("standard errors of w", w_stderr, want["standard errors of w"], tolerance)


# -- what goes from member to member -----------------------------------------------------------------------------------

# copies of the data: as many columns as rows are a triangle, and fewer are sent as they are
SENT = {"rows": 1, "columns": 1, "compressed columns": 12}


def _repeated(problem: xv.Problem, copies: int) -> xv.Problem:
    """With all chunks so many times."""
    y: Any = problem.lower.y
    return replace(problem, lower=replace(problem.lower, y=replace(y, source=copies * list(y.source()))))


@check("distributed", lambda: {name: (parts()[name], copies) for name, copies in SENT.items()}, against="definition")
def what_is_sent(target: Target, given: tuple[Parts, int]) -> Iterator[Measured]:
    """Members send as many numbers for few rows or columns as for many, and all the same number of them."""
    case, least = given
    case.applies(target)

    def sent(copies: int, group: Member) -> list[int]:
        made = replace(stated(case, group), problem=_repeated(case.of(group), copies))
        evaluation.evaluate(target, made)
        reduced.called(target, made, reduced.model)
        return group.sent

    few, many = (np.array(together(case.size, partial(sent, copies))) for copies in (least, 3 * least))
    yield Measured("three times the data", many, few)
    yield Measured("by each member", few, np.broadcast_to(few[0], few.shape))


# -- failures ----------------------------------------------------------------------------------------------------------

LOST = "no such sample"


def _broken_model(group: Group) -> xv.Problem:
    def M(theta: Array, t: Array) -> Array:
        if group.rank == 1:
            raise KeyError(LOST)
        return problems.decays(theta, t)

    return xv.separable(M, rows(T["lower"], Y["lower"], LOWER, group))


def _broken(chunks: list[Any], group: Group) -> Iterator[Any]:
    yield chunks[0]
    if group.rank == 1:
        raise OSError(LOST)
    yield from chunks[1:]


def _broken_rows(group: Group) -> xv.Problem:
    whole = rows(T["lower"], Y["lower"], LOWER, group)
    source: Any = whole.source
    return xv.separable(problems.rows_at, replace(whole, source=partial(_broken, list(source()), group)))


def _broken_columns(group: Group) -> xv.Problem:
    whole = columns(MANY["lower"], COLUMNS, group)
    source: Any = whole.source
    y = replace(whole, source=partial(_broken, list(source()), group))
    return xv.separable(problems.lower_decays, y, data=T)


def _other_shape(group: Group) -> xv.Problem:
    return xv.separable(problems.rows_at, rows(T["lower"], MANY["lower"][:, : 1 + group.rank], LOWER, group))


class Failure(NamedTuple):
    """A problem that fails in member 1, and what each member says."""

    of: Callable[[Group], xv.Problem]
    errors: tuple[str, ...]
    says: str = LOST


def failures() -> dict[str, Failure]:
    """Before the first pass, in a pass, while columns are compressed; data that do not fit together."""
    lost = ("GroupError", "ModelError", "GroupError")
    return {
        "a model": Failure(_broken_model, lost),
        "rows": Failure(_broken_rows, ("GroupError", "OSError", "GroupError")),
        "columns": Failure(_broken_columns, ("GroupError", "OSError", "GroupError")),
        "shapes": Failure(_other_shape, ("GroupError",) * 3, "the same shapes and dtype"),
    }


@check("distributed", failures, against="definition")
def failure_of_a_member(target: Target, case: Failure) -> Iterator[Measured]:
    """What one member raises ends all of them, with its message."""
    target.represent(("float64",))

    def fails(group: Group) -> tuple[str, str]:
        try:
            evaluation.evaluate(target, Reference(case.of(group), RATES, BOX))
        except Exception as error:
            return type(error).__name__, str(error)
        return "nothing", ""

    for i, (kind, said) in enumerate(together(3, fails)):
        yield Measured(f"member {i} raises", kind, case.errors[i])
        yield Measured(f"member {i} says {case.says!r}", case.says in said, True)


def _inverts(theta: Array, t: Array) -> Array:
    """Decays, and the inverse of a matrix that is 0 at late times."""
    xp = xv.array_namespace(theta)
    early = xp.astype(t[0] < 1.6, theta.dtype)
    A = early * theta[0] * xp.expand_dims(xp.expand_dims(xp.ones_like(t[0]), axis=0), axis=0)
    return problems.decays(theta, t) + xp.linalg.inv(A)


@check("distributed", against="definition")
def singular_matrix_of_a_member(target: Target, case: None) -> Iterator[Measured]:
    """Where a model inverts a singular matrix in the rows of one member, the value is no number in any of them."""
    target.represent(())

    def value(group: Group) -> np.ndarray:
        problem = xv.separable(_inverts, rows(T["lower"], Y["lower"], LOWER, group))
        return reduced.called(target, Reference(problem, RATES, BOX), _value)[0]

    for i, got in enumerate(together(3, value)):
        yield Measured(f"value, member {i}", got, np.array(np.nan))


def _value(f: Any, theta: Leaves) -> Leaves:
    return (f.point(theta).value,)
