"""The mark of what belongs to single problems of a batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import optree

from xvarpro.backends import exchange
from xvarpro.core.struct import NAMESPACE, REQUIRED, Array, Struct, Tree
from xvarpro.problem.stored import Stored


@final
@dataclass(frozen=True)
class Each(Struct):
    """Marks an array of a batch that has one entry per problem along its first axis.

    In `data` the model function receives the array itself, for the problems that it is called with: those that have
    converged are left out as a solve goes on. What is not marked is shared by all problems. For `many.lifted`, targets,
    weights and ridges are marked too.

    Parameters
    ----------
    array : array, shape (b, ...)
        Of any framework; or not in memory, such as a dataset of Zarr, HDF5 or Dask, anything with a shape, a dtype and
        slices: ``solve_many(..., chunks=)`` reads it chunk by chunk. Mark targets and weights that are stored so.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> data = {"t": xv.Each(np.ones((1000, 64))), "shape": np.ones(64)}
    """

    array: Array = REQUIRED

    def __post_init__(self) -> None:
        object.__setattr__(self, "array", exchange.numbers(Stored.kept(self.array), "xv.Each"))


def is_each(x: Any) -> bool:
    """Whether `x` is marked."""
    return isinstance(x, Each)


def unmarked(x: Any) -> Any:
    """The array that is marked; anything else as it is."""
    return x.array if isinstance(x, Each) else x


def leaves(tree: Tree) -> list[Any]:
    """Leaves of a tree, a marked array being one."""
    return optree.tree_leaves(tree, is_leaf=is_each, namespace=NAMESPACE)


def mapped(fun: Callable[[Any], Any], tree: Tree) -> Tree:
    """`fun` of these leaves, in the structure of the tree."""
    return optree.tree_map(fun, tree, is_leaf=is_each, namespace=NAMESPACE)
