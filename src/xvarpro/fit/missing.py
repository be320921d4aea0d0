"""Problems of a batch that have no data to fit, such as dead pixels, and starts that have no numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from xvarpro.backends import to_numpy
from xvarpro.batch.prepare import by_problem
from xvarpro.core import trees
from xvarpro.core.namespace import device, namespace_of
from xvarpro.core.struct import Array, Tree
from xvarpro.problem import each
from xvarpro.problem.problem import Problem


def chosen(at: np.ndarray, x: Array, y: Array) -> Array:
    """`x` for the problems `at`, `y` for the others."""
    xp = namespace_of(y)
    return xp.where(xp.reshape(xp.asarray(at, device=device(y)), (-1, *(1,) * (y.ndim - 1))), x, y)


def filled(theta: Tree) -> Tree:
    """Starts with that of the first problem that has one in the places of those that hold NaN or inf."""
    leaves = trees.leaves(theta)
    if not leaves or not all(trees.is_array(x) and x.ndim and x.shape[0] == leaves[0].shape[0] for x in leaves):
        return theta  # refused later, or of a form without NaN
    lost = np.any([_lost(x) for x in leaves], axis=0)
    if lost.all() or not lost.any():
        return theta
    i = int(np.argmin(lost))
    return trees.map_leaves(lambda x: chosen(lost, x[i : i + 1, ...], x), theta)


def without_data(problem: Problem, b: int) -> np.ndarray:
    """Which problems no solve can be made of, (b,)."""
    return masked(problem, b) | broken(problem, b)


def masked(problem: Problem, b: int) -> np.ndarray:
    """Problems none of whose data has a weight, (b,)."""
    found = [_weights(level) for level in problem.levels]
    return np.any([np.broadcast_to((x == 0).all(axis=(1, 2)), b) for x in found], axis=0)


def broken(problem: Problem, b: int) -> np.ndarray:
    """Problems whose data hold NaN or inf where their weight is not 0, (b,)."""
    at = np.zeros(b, bool)
    for x in filter(each.is_each, each.leaves(problem.data)):
        at |= _lost(x.array)
    for level in problem.levels:
        weights, y = _weights(level), each.unmarked(level.y)
        at |= _lost(weights)
        if trees.is_array(y):
            y = to_numpy(y)
            at |= (~np.isfinite(y.reshape(*y.shape[:2], -1)) & (weights != 0)).any(axis=(1, 2))
    return at


def _weights(level: Any) -> np.ndarray:
    """Weights of a level by problem, row and right-hand side, with 1 where they are the same."""
    weights = each.unmarked(level.weights)
    return to_numpy(by_problem(level, weights)) if trees.is_array(weights) else np.ones((1, 1, 1))


def _lost(x: Array) -> np.ndarray:
    """Which entries along the first axis hold NaN or inf."""
    x = to_numpy(x)
    return ~np.isfinite(x).all(axis=tuple(range(1, x.ndim)))
