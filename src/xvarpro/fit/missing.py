"""Problems of a batch that have no data to fit, such as dead pixels, and starts that have no numbers."""

from __future__ import annotations

import numpy as np

from xvarpro.backends import exchange, to_numpy
from xvarpro.batch.prepare import by_problem
from xvarpro.core import trees
from xvarpro.core.namespace import device, namespace_of
from xvarpro.core.struct import Array, Tree
from xvarpro.problem.problem import Problem
from xvarpro.sets import each


def chosen(at: np.ndarray, x: Array, y: Array) -> Array:
    """`x` for the problems `at`, `y` for the others."""
    xp = namespace_of(y)
    return xp.where(xp.reshape(xp.asarray(at, device=device(y)), (-1, *(1,) * (y.ndim - 1))), x, y)


def filled(theta: Tree) -> Tree:
    """Starts with that of the first problem that has one in the places of those that hold NaN or inf."""
    leaves, names, _ = trees.named(theta)
    if not all(trees.is_array(x) and x.ndim and x.shape[0] == leaves[0].shape[0] for x in leaves):
        return theta  # refused later
    for x, name in zip(leaves, names, strict=True):
        exchange.check_dense(x, name)
    lost = np.any([_lost(x) for x in leaves], axis=0)
    if lost.all() or not lost.any():
        return theta
    i = int(np.argmin(lost))
    return trees.map_leaves(lambda x: chosen(lost, x[i : i + 1, ...], x), theta)


def without_data(problem: Problem, ended: np.ndarray) -> np.ndarray:
    """Problems none of whose data has a weight, (b,); of those that `ended` badly, what data hold NaN or inf, too."""
    masked, broken = np.zeros((2, len(ended)), bool)
    for x in filter(each.is_each, each.leaves(problem.data) if ended.any() else ()):
        broken |= _lost(x.array)
    for level in problem.levels:
        y, given = each.unmarked(level.y), each.unmarked(level.weights)
        weights = to_numpy(by_problem(level, given)) if trees.is_array(given) else np.ones((1, 1, 1))
        masked |= np.all(weights == 0, axis=(1, 2))
        if trees.is_array(y) and ended.any():
            columns = to_numpy(y)[..., None] if y.ndim == 2 else to_numpy(y)
            broken |= _lost(weights) | np.any(~np.isfinite(columns) & (weights != 0), axis=(1, 2))
    return masked | (broken & ended)


def _lost(x: Array) -> np.ndarray:
    """Which entries along the first axis hold NaN or inf."""
    return np.any(~np.isfinite(to_numpy(x)), axis=tuple(range(1, x.ndim)))
