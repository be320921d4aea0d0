"""The mark of what has one entry per sample, so that a mini-batch is evaluated on its own samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import optree

from xvarpro.backends import exchange
from xvarpro.core.checks import described
from xvarpro.core.namespace import namespace_of
from xvarpro.core.struct import NAMESPACE, REQUIRED, Array, Struct, Tree
from xvarpro.core.trees import is_array
from xvarpro.errors import ProblemError


@final
@dataclass(frozen=True)
class Samples(Struct):
    """Marks an array in `data` that has one entry per sample, which is a row of M and of y, along one axis.

    The model functions receive the array itself. With all samples it is as given; a stochastic algorithm calls them
    with the entries of a mini-batch alone, for which M must return as many rows. What is not marked is the same in
    every batch. In a bilevel problem samples are the rows of the upper level.

    Parameters
    ----------
    x : array
        Such as ``(samples, height, width)``.
    axis : int
        The one of the samples, >= 0: 1 for an array of shape (features, samples).

    Raises
    ------
    ProblemError
        `x` has no such axis. A solve raises it where marked arrays, M and y do not have the same number of samples.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> x = np.linspace(-1.0, 1.0, 500)
    >>> def M(theta, data):
    ...     xp = xv.array_namespace(theta)
    ...     return xp.tanh(xp.expand_dims(data["x"], axis=1) * theta)
    >>> problem = xv.separable(M, np.sin(2.0 * x), data={"x": xv.Samples(x)}, lam=1e-3)
    >>> method = xv.algorithms.StochasticFrankWolfe(batch=8, certify=50)
    >>> fit = xv.solve(problem, np.array([0.5, 1.0]), xv.sets.Box(0.0, 3.0), algorithm=method, max_iter=100)
    >>> fit.counts.rows  # of 100 iterations, two gradients on 8 rows each; and 3 certificates
    3100
    """

    x: Array = REQUIRED
    axis: int = 0

    def __post_init__(self) -> None:
        if self.x is REQUIRED:
            return
        x, axis = exchange.numbers(self.x, "xv.Samples"), self.axis
        object.__setattr__(self, "x", x)
        if not (isinstance(axis, int) and is_array(x) and 0 <= axis < x.ndim):
            raise ProblemError(f"xv.Samples must mark an array that has the axis {axis!r}; got {described(x)}")


def is_samples(x: Any) -> bool:
    """Whether `x` is marked."""
    return isinstance(x, Samples)


def plain(data: Tree) -> Tree:
    """Data as the user's functions receive them."""
    return _mapped(lambda mark: mark.x, data)


def taken(data: Tree, indices: Array) -> Tree:
    """Plain data of the samples at `indices`."""
    return _mapped(lambda mark: namespace_of(mark.x).take(mark.x, indices, axis=mark.axis), data)


def lengths(data: Tree) -> set[int]:
    """Numbers of samples of the marked arrays; empty where none is marked."""
    found = optree.tree_leaves(data, is_leaf=is_samples, namespace=NAMESPACE)
    return {mark.x.shape[mark.axis] for mark in found if is_samples(mark)}


def check_samples(data: Tree, rows: int) -> None:
    """Check that what is marked in `data` has one entry per row of y."""
    if lengths(data) - {rows}:
        raise ProblemError(
            f"xv.Samples must mark arrays with one entry per row of y, {rows}; got {sorted(lengths(data))} entries. "
            "Pass axis= where samples are not along the first axis, and leave unmarked what is no sample"
        )


def _mapped(fun: Callable[[Samples], Array], data: Tree) -> Tree:
    found, treedef = optree.tree_flatten(data, is_leaf=is_samples, namespace=NAMESPACE)
    return optree.tree_unflatten(treedef, [fun(x) if isinstance(x, Samples) else x for x in found])
