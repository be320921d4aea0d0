"""Whole solves: the decisions of methods that compare, and where every method ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import NamedTuple

import xvarpro as xv
from xvarpro import algorithms
from xvarpro.algorithms.interface import Algorithm
from xvarpro.conformance import evaluation, problems
from xvarpro.conformance.problems import Reference
from xvarpro.conformance.suite import Measured, Target, check, exported
from xvarpro.reproducibility.comparison import Runs

FIRST = 300  # iterations in which every decision is the same
FEW = 20  # of every method; operation by operation they take a while
ENOUGH = 40  # for the default to arrive
# of the objective where a solve ended, relative: what rounding leaves of it
ENDS = {"float64": 1e-10, "float32": 3e-3}


class Case(NamedTuple):
    """A method, the problem that it runs on, and for how long."""

    algorithm: Algorithm
    make: Callable[[], Reference]
    iterations: int


def by_comparisons() -> dict[str, Case]:
    """Methods whose steps are powers of a constant: rounding cannot show before it decides."""
    paper = algorithms.cr_varpro()
    blockwise = algorithms.FrankWolfe(xv.steps.Armijo(warm=True), algorithms.Separate())
    found = {f"cr_varpro {make.__name__}": Case(paper, make, FIRST) for make in problems.ALL}
    return {**found, "warm Armijo, separate network": Case(blockwise, problems.network, FIRST)}


@cache
def every_method() -> dict[str, Case]:
    """Whatever is exported, as it is built without arguments; a newcomer is found by its export."""
    found = {kind.__name__: kind() for kind in exported(algorithms, Algorithm)}
    # its defaults are for more samples than a reference problem has
    found["StochasticFrankWolfe"] = algorithms.StochasticFrankWolfe(batch=8, period=64)
    found["cr_varpro"] = algorithms.cr_varpro()
    default = algorithms.choose([problems.exponentials().over], size=3)
    return {
        **{name: Case(algorithm, problems.atoms, FEW) for name, algorithm in found.items()},
        "default, to the end": Case(default, problems.exponentials, ENOUGH),
    }


@cache
def wanted(case: Case) -> xv.Result:
    """The solve by NumPy in double precision."""
    return evaluation.solve(evaluation.NUMPY, case.make(), case.algorithm, case.iterations)


@check("solves", by_comparisons, dtypes=("float64",))
def step_decisions(target: Target, case: Case) -> Iterator[Measured]:
    """Each of 300 iterations takes NumPy's step, compiled where the backend compiles, and the objectives agree."""
    got = evaluation.solve(target, case.make(), case.algorithm, case.iterations, compiled=True)
    want = wanted(case)
    both = Runs({"reference": want, "target": got})
    yield Measured("first iteration with another step", both.first_different_step, None)
    yield Measured("iterations", got.n_iter, want.n_iter)
    yield Measured("how it ended", got.status.name, want.status.name)
    n = both.iterations + 1
    yield Measured("objective, all along", got.trace.value[:n], want.trace.value[:n], ENDS[target.dtype])
    yield Measured("objective at the end", got.value, want.value, ENDS[target.dtype])
    yield Measured(
        "theta at the end", evaluation.flat(got.theta), evaluation.flat(want.theta), 1e3 * ENDS[target.dtype]
    )


@check("solves", every_method)
def every_algorithm(target: Target, case: Case) -> Iterator[Measured]:
    """The objective equals NumPy's, and value, gap and feasibility are those of the point that is returned."""
    reference = case.make()
    got, want = evaluation.solve(target, reference, case.algorithm, case.iterations), wanted(case)
    yield Measured("objective at the end", got.value, want.value, ENDS[target.dtype])
    here = evaluation.certify(reference, got.theta)
    cond, start = max(1.0, here.verified.condition), evaluation.certify(reference, reference.theta0)
    yield Measured("value there", got.value, here.value, evaluation.value_tolerance(target.eps, cond), start.value)
    yield Measured("gap there", got.gap, here.gap, evaluation.gradient_tolerance(target.eps, cond), start.gap)
    yield Measured("violation", got.verified.violation, 0.0, 10 * target.eps, 1.0)
    if target.dtype == "float64" and case.algorithm.certifies_every_iteration:
        first = slice(0, 10)
        yield Measured("first values", got.trace.value[first], want.trace.value[first], 1e3 * target.eps * cond)
