"""Data that several members of a group hold: the objective of all data, and the same steps in every member."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

import xvarpro as xv
from xvarpro.backends.group import Group
from xvarpro.core.namespace import find_dtype
from xvarpro.core.struct import Array, Leaves
from xvarpro.core.trees import map_arrays
from xvarpro_conformance import evaluation, kinds, problems
from xvarpro_conformance.checks import reduced, solves
from xvarpro_conformance.evaluation import flat
from xvarpro_conformance.kinds import BOX, KINDS, MANY, OMEGA, RATES, WAVY, T, Y
from xvarpro_conformance.members import together
from xvarpro_conformance.problems import Reference
from xvarpro_conformance.suite import NUMPY, Measured, Target, check

Make = Callable[[], Reference]
Edges = tuple[int, ...]

# uneven parts, the first with fewer rows than there are unknowns; few shapes, which compile
LOWER, UPPER, COLUMNS = (0, 2, 10, 24), (0, 2, 4, 12), (0, 1, 3, 4)
ROWS = 6  # of a chunk


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
    turn: tuple[str, ...] = ()  # the precisions in which it is compiled
    is_complex: bool = False
    modelled: bool = True  # whether there is a Gauss-Newton model: of rows, one level

    def applies(self, target: Target) -> None:
        """Raise where it does not, or is left out."""
        target.represent(self.turn)
        if self.is_complex:
            find_dtype(target.backend.xp, target.complex_dtype)


def _one_level(group: Group, solver: Any = None) -> xv.Problem:
    y = rows(T["lower"], MANY["lower"], LOWER, group)
    return xv.separable(problems.decays, y, lam=0.1, Omega=OMEGA, R=problems.energy, mu=0.02, solver=solver)


def _two_levels(group: Group) -> xv.Problem:
    below, above = rows(T["lower"], kinds.swinging, LOWER, group), rows(T["upper"], Y["upper"], UPPER, group)
    return xv.bilevel(
        lower=xv.Level(problems.decays, below, lam=0.1),
        upper=xv.Level(problems.decays, above, lam=0.2, Omega=OMEGA),
    )


def _below_an_array(group: Group) -> xv.Problem:
    below = xv.Level(problems.decays, rows(T["lower"], Y["lower"], LOWER, group), lam=0.05)
    return xv.bilevel(lower=below, upper=xv.Level(kinds.at("upper", problems.decays), Y["upper"]), data=T)


def _complex_rows(group: Group) -> xv.Problem:
    cuts = [slice(a, b) for a, b in pairwise((0, 2, 8, 14, 24))]
    chunks = [(T["lower"][cut], WAVY[cut, 0]) for cut in cuts]
    mine = chunks[:1] if group.rank == 0 else chunks[1:]
    return xv.separable(kinds.waves, xv.RowChunks(mine, group=group), lam=0.1)


def _columns(group: Group, compress: bool) -> xv.Problem:
    y = columns(MANY["lower"], COLUMNS, group)
    return kinds.one(y=y, lam=0.1, Omega=OMEGA, R=problems.energy, mu=0.02, compress=compress).problem


def levels_of_columns(cut: Callable[[np.ndarray], Any] = np.asarray) -> Reference:
    """Two complex levels, each with a ridge, and a penalty; their targets as they are, or cut."""
    below, above = {"y": cut(WAVY), "lam": 0.1}, {"y": cut(MANY["upper"]), "lam": 0.2, "Omega": OMEGA}
    low, high = ({"M": kinds.waves, **level} for level in (below, above))
    return kinds.two(low, high, R=problems.energy, mu=0.02, compress=False)


def parts() -> dict[str, Parts]:
    """Rows and columns, of one level and of two."""
    streamed = KINDS["streamed"]
    return {
        "rows": Parts(streamed, _one_level, ("float64",)),
        "rows by Cholesky": Parts(streamed, partial(_one_level, solver=xv.lower.Cholesky())),
        "rows without ridge": Parts(
            kinds.one, lambda group: xv.separable(problems.decays, rows(T["lower"], Y["lower"], LOWER, group))
        ),
        "rows of two levels": Parts(KINDS["streamed_levels"], _two_levels, modelled=False),
        "rows below an array": Parts(KINDS["unequal_splits"], _below_an_array, modelled=False),
        "complex rows": Parts(KINDS["complex_waves"], _complex_rows, is_complex=True),
        "columns": Parts(streamed, partial(_columns, compress=False)),
        "compressed columns": Parts(streamed, partial(_columns, compress=True)),
        "columns of two levels": Parts(
            levels_of_columns,
            lambda group: levels_of_columns(lambda y: columns(y, COLUMNS, group)).problem,
            is_complex=True,
        ),
    }


@check("distributed", parts)
def value_and_derivatives(target: Target, case: Parts) -> Iterator[Measured]:
    """Value, weights, gradient and Gauss-Newton matrix of every member are those of all data, to the same bits."""
    case.applies(target)
    known = reduced.exact(case.whole)
    found = together(3 if case.whole is not KINDS["complex_waves"] else 2, partial(_found, target, case))
    (value, gradient, *model), *others = ((*first, *rest) for *first, _, rest in found)
    tolerance = evaluation.gradient_tolerance(target.eps, known.condition)
    yield Measured("value", value, known.value, evaluation.value_tolerance(target.eps, known.condition))
    yield Measured("slopes", known.D.T @ gradient, known.slopes, tolerance)
    yield from _weights(known.w, [w for *_, w, _ in found], tolerance)
    if model:
        slopes, gram = model
        want = (known.jacobian @ known.jacobian.conj().T).real
        rounding = 100 * target.eps * known.condition
        yield Measured("slopes of the model", known.D.T @ slopes, known.slopes, rounding, float(np.linalg.norm(slopes)))
        yield Measured("J J^T", known.D.T @ gram @ known.D, want, rounding)
    for i, other in enumerate(others, 1):
        for what, x, y in zip(NAMES, other, (value, gradient, *model), strict=False):
            yield Measured(f"{what}, member {i}", x, y)


NAMES = ("value", "gradient", "slopes of the model", "its matrix")


def _found(target: Target, case: Parts, group: Group) -> tuple[Any, ...]:
    """Value, gradient and weights, and what the model has."""
    made = replace(case.whole(), problem=case.of(group))
    model = reduced.called(target, made, reduced.model) if case.modelled else ()
    return (*reduced.called(target, made, _evaluated), model)


def _evaluated(f: Any, theta: Leaves) -> Leaves:
    point, (gradient,) = f.value_and_gradient(theta)
    return point.value, gradient, f.solve_lower(theta)


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


# -- solves ------------------------------------------------------------------------------------------------------------


def the_same(fits: list[xv.Result]) -> Iterator[Measured]:
    """Iterates, clocks and ends are those of member 0, to the last bit."""
    first, *others = fits
    names = ("iteration", *solves.COLUMNS, "rows", "seconds")
    for i, other in enumerate(others, 1):
        yield Measured(f"theta, member {i}", flat(other.theta), flat(first.theta))
        got, want = (np.stack([getattr(fit.trace, name) for name in names]) for fit in (other, first))
        yield Measured(f"trace, member {i}", got, want)
        got, want = (np.array([f.value, f.gap_A, f.gap_B, f.n_iter, f.seconds]) for f in (other, first))
        yield Measured(f"value, gaps, iterations and seconds, member {i}", got, want)
        yield Measured(f"how it ended, member {i}", other.status.name, first.status.name)


@check("distributed")
def first_member(target: Target, case: None) -> Iterator[Measured]:
    """Where member 0 starts all do, and end when its callback says so, however processors of others round.

    What stands for rounding is a penalty that is another one in each.
    """
    target.represent(())
    made = problems.exponentials()
    given, level = made.problem.data, made.problem.lower
    # the last one takes theta out of the range in which its units are left as they are
    factors = 1.0, 0.5, float(np.finfo(target.dtype).max) ** -0.3

    def solve(group: Group) -> tuple[np.ndarray, xv.Result]:
        seen = []

        def watch(info: xv.IterationInfo) -> bool:
            seen.append(flat(info.theta))
            return info.iteration == (5 if group.rank == 0 else 1)

        def penalty(theta: Array) -> Array:
            return problems.energy(theta) * (1 + 1e-2 * group.rank)

        problem = xv.separable(
            problems.decays, rows(given, level.y, (0, 2, 20, 60), group), lam=1e-4, R=penalty, mu=0.01
        )
        part = replace(made, problem=problem, theta0=factors[group.rank] * made.theta0)
        fit = evaluation.solve(target, part, None, 8, callback=watch)
        return np.stack(seen), fit

    iterates, fits = zip(*together(3, solve), strict=True)
    start = replace(made, problem=replace(made.problem, R=problems.energy, mu=0.01))
    value = evaluation.evaluate(NUMPY, start).value
    yield Measured("value at theta0", fits[0].trace.value[0], value, solves.VALUES[target.dtype])
    yield Measured("iterations", fits[0].n_iter, 5)
    yield Measured("how it ended", fits[0].status.name, "STOPPED")
    for i, other in enumerate(iterates[1:], 1):
        yield Measured(f"what the callback of member {i} saw", other, iterates[0])
    yield from the_same(list(fits))


def _inverts(theta: Array, t: Array) -> Array:
    """Decays, and the inverse of a matrix that is 0 at late times."""
    xp = xv.array_namespace(theta)
    early = xp.astype(t[0] < 1.6, theta.dtype)
    A = early * theta[0] * xp.expand_dims(xp.expand_dims(xp.ones_like(t[0]), axis=0), axis=0)
    return problems.decays(theta, t) + xp.linalg.inv(A)


@check("distributed")
def singular_matrix_of_a_member(target: Target, case: None) -> Iterator[Measured]:
    """Where a model inverts a singular matrix in the rows of one member, the value is no number in any of them."""
    target.represent(())

    def value(group: Group) -> np.ndarray:
        problem = xv.separable(_inverts, rows(T["lower"], Y["lower"], LOWER, group))
        return reduced.called(target, Reference(problem, RATES, BOX), lambda f, theta: (f.point(theta).value,))[0]

    for i, got in enumerate(together(3, value)):
        yield Measured(f"value, member {i}", got, np.array(np.nan))
