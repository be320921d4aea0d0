"""Mini-batches: the problem in which some terms of the upper level, scaled up, represent all of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from xvarpro.core.namespace import namespace_of
from xvarpro.core.struct import Array, Tree
from xvarpro.errors import ProblemError
from xvarpro.objective.least_squares import as_matrix, evaluate_level
from xvarpro.operators import Dense
from xvarpro.problem.problem import Problem


def mini_batch(problem: Problem, indices: Array, samples: int, by_column: bool) -> Problem:
    """The problem whose upper level has the terms at `indices` only, scaled by ``samples / len(indices)``.

    Averaged over index sets in which every term is equally likely, its value and gradient are those of the whole
    problem. Where `by_column`, a term is a right-hand side of a separable problem, with coefficients of its own; else a
    row of the upper level, while the lower level keeps all of its rows. Ridges and penalty are not scaled.
    """
    upper = problem.upper or problem.lower
    axis = 1 if by_column else 0
    scale = (samples / indices.shape[0]) ** 0.5

    def some(x: Array, axis: int) -> Array:
        return scale * namespace_of(x).take(x, indices, axis=axis)

    def target(theta: Tree, data: Tree) -> Array:
        y: Any = evaluate_level(upper, theta, data, upper.weights).y
        return some(as_matrix(y), axis)

    def design(theta: Tree, data: Tree) -> Any:
        M = evaluate_level(upper, theta, data, upper.weights).M
        if by_column:
            return M
        if not isinstance(M, Dense):
            raise ProblemError(
                f"M must return an array where mini-batches are drawn from rows; got {type(M).__name__}. "
                "Use an algorithm that evaluates all rows"
            )
        return some(M.array, 0)

    constant: Any = upper.y
    y = target if callable(constant) else some(as_matrix(constant), axis)
    W = upper.W.part(indices, scale) if by_column and upper.W is not None else None
    part = replace(upper, M=design, y=y, weights=None, W=W)  # weights are in what the functions return
    return replace(problem, lower=part) if by_column else replace(problem, upper=part)
