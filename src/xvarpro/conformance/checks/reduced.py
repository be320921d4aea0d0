"""The reduced objective and its gradient: against NumPy, against differences of values, against exact arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import cache
from typing import Any, NamedTuple

import numpy as np

import xvarpro as xv
from xvarpro.conformance import evaluation, problems
from xvarpro.conformance.evaluation import Evaluated
from xvarpro.conformance.problems import Data, Reference
from xvarpro.conformance.rational import fractions, solution
from xvarpro.conformance.suite import Measured, Target, alternate, check
from xvarpro.core import trees
from xvarpro.core.struct import Array

Make = Callable[[], Reference]

STEP = 1e-3
DIRECTIONS = 2


@check("reduced gradient", problems.every)
def kinds_of_problems(target: Target, make: Make) -> Iterator[Measured]:
    """Value and gradient equal NumPy's in double precision."""
    if make in problems.KINDS:
        target.represent(("float64", *alternate(problems.KINDS.index(make))))
    yield from evaluation.compared(
        target.eps, evaluation.condition(make), evaluation.evaluate(target, make()), evaluation.right(make)
    )


@check("reduced gradient", problems.every, dtypes=("float64",))
def derivative_of_the_value(target: Target, make: Make) -> Iterator[Measured]:
    """The gradient equals differences of the backend's own values along random directions."""
    reference = make()
    gradient = evaluation.evaluate(target, reference).gradient
    rng = np.random.default_rng(0)
    slopes, differences = [], []
    for _ in range(DIRECTIONS):
        direction = rng.normal(size=gradient.size)
        direction /= np.linalg.norm(direction)
        ahead = {h: _value(target, reference, h * STEP * direction) for h in (-2, -1, 1, 2)}
        differences.append((8 * (ahead[1] - ahead[-1]) - (ahead[2] - ahead[-2])) / (12 * STEP))
        slopes.append(gradient @ direction)
    yield Measured("slopes", np.array(slopes), np.array(differences), 1e-7, float(np.linalg.norm(gradient)))


def _value(target: Target, reference: Reference, step: np.ndarray) -> float:
    leaves, treedef = trees.flatten(reference.theta0)
    cuts = np.cumsum([x.size for x in leaves])[:-1]
    moved = [x + part.reshape(x.shape) for x, part in zip(leaves, np.split(step, cuts), strict=True)]
    return float(evaluation.evaluate(target, reference, trees.unflatten(treedef, moved)).value)


# -- exact arithmetic --------------------------------------------------------------------------------------------------

THETA = np.array([0.5, -0.75, 1.25])  # few bits: the designs below are exact in every precision
TINY = Fraction(1, 2**100)
LAM = 2.0**-10


class Graded(NamedTuple):
    """Designs ``A + theta_0 D_0 + theta_1 D_1 + theta_2 D_2 + theta_0 theta_1 D_3`` whose numbers have few bits."""

    levels: int
    eps: float  # of the precision that holds all of them

    @property
    def condition(self) -> float:
        """Of the lower design: as much as leaves a third of the digits for its square."""
        return float(self.eps ** (-1 / 3))


def moved(theta: Array, parts: Array) -> Any:
    """The design of a level."""
    A, B, C, D, E = (parts[i, ...] for i in range(5))
    return A + theta[0] * B + theta[1] * C + theta[2] * D + (theta[0] * theta[1]) * E


def moved_below(theta: Array, data: Data) -> Array:
    """The lower design."""
    return moved(theta, data["lower"])


def moved_above(theta: Array, data: Data) -> Array:
    """The upper design."""
    return moved(theta, data["upper"])


@cache
def graded_parts(m: int, n: int, cond: float, bits: int, seed: int) -> np.ndarray:
    """A to D_3, such that singular values of the design at `THETA` go from 1 to 1/cond; shape (5, m, n)."""
    rng = np.random.default_rng(seed)
    U, V = (np.linalg.qr(rng.normal(size=(rows, n)))[0] for rows in (m, n))
    directions = np.round(0.25 * rng.normal(size=(4, m, n)) * 2.0 ** (bits - 3)) / 2.0 ** (bits - 3)
    still = np.concatenate([np.zeros((1, m, n)), directions])
    A = (U * np.logspace(0, -np.log10(cond), n)) @ V.T - moved(THETA, still)
    return np.concatenate([[np.round(A * 2.0**bits) / 2.0**bits], directions])


def graded(case: Graded) -> Reference:
    """The problem of a case."""
    bits = 40 if case.eps < 2.0**-40 else 18
    rng = np.random.default_rng(2)
    data = {
        "lower": graded_parts(12, 4, case.condition, bits, 0),
        "upper": graded_parts(9, 4, 10.0, bits, 1),
    }
    y, y_upper = problems.held(rng.normal(size=12)), problems.held(rng.normal(size=9))
    if case.levels == 1:
        return Reference(xv.separable(moved_below, y, data=data, lam=LAM), THETA, None)
    lower, upper = xv.Level(moved_below, y, lam=LAM), xv.Level(moved_above, y_upper)
    return Reference(xv.bilevel(lower=lower, upper=upper, data=data), THETA, None)


@cache
def exact(case: Graded) -> Evaluated:
    """Value and gradient by rational arithmetic: no rounding, and central differences with a step of 2^-100."""
    problem = graded(case).problem
    parts = {name: fractions(x) for name, x in problem.data.items()}
    y, lam = fractions(np.asarray(problem.lower.y)), Fraction(LAM)

    def value(theta: np.ndarray) -> Fraction:
        M: np.ndarray = moved(theta, parts["lower"])
        w = solution(M.T @ M + lam * np.eye(M.shape[1], dtype=object), M.T @ y)
        M_U, y_U, ridge = M, y, lam
        if problem.upper is not None:
            M_U, y_U, ridge = moved(theta, parts["upper"]), fractions(np.asarray(problem.upper.y)), Fraction(0)
        r = M_U @ w - y_U
        found: Fraction = (r @ r + ridge * (w @ w)) / 2
        return found

    theta = fractions(THETA)
    steps = [TINY * row for row in np.eye(THETA.size, dtype=object)]
    slopes = [float((value(theta + h) - value(theta - h)) / (2 * TINY)) for h in steps]
    return Evaluated(np.asarray(float(value(theta))), np.array(slopes))


@check("reduced gradient", lambda: {"separable": 1, "two levels": 2})
def exact_arithmetic(target: Target, levels: int) -> Iterator[Measured]:
    """Value and gradient of an ill-conditioned problem equal those of rational arithmetic, on NumPy too."""
    case = Graded(levels, target.eps)
    got = evaluation.evaluate(target, graded(case))
    want = exact(case)
    yield Measured("value", got.value, want.value, evaluation.value_tolerance(target.eps, case.condition))
    yield Measured("gradient", got.gradient, want.gradient, evaluation.gradient_tolerance(target.eps, case.condition))
