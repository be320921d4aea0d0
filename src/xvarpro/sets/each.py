"""The mark of what belongs to single problems of a batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, final

import optree

from xvarpro.backends import exchange
from xvarpro.core import trees
from xvarpro.core.namespace import is_array
from xvarpro.core.struct import NAMESPACE, REQUIRED, Array, Struct, Tree


@dataclass(frozen=True, eq=False)
class Stored:
    """An array that is not in memory, of Zarr, HDF5 or Dask: nothing but `stored.part` reads it."""

    array: Any

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the array."""
        return tuple(self.array.shape)

    @classmethod
    def kept(cls, x: Any) -> Any:
        """`x`, held as it is if it has a shape, a dtype and slices, and is not in memory, nor a column of a table."""
        sliced = all(hasattr(x, name) for name in ("shape", "dtype", "__getitem__")) and len(x.shape) > 0
        here = is_array(x) and not hasattr(x, "__dask_graph__")
        return cls(x) if sliced and not here and not hasattr(x, "iloc") and not hasattr(x, "toarray") else x


@final
@dataclass(frozen=True)
class Each(Struct):
    """Marks an array of a batch that has one entry per problem along its first axis.

    In `data` the model function receives the array itself, for the problems that it is called with: those that have
    converged are left out as a solve goes on. What is not marked is shared by all problems. For `many.lifted`, targets,
    weights and ridges are marked too; in a `Box` bounds of each problem, with the axes of the leaf after the first; and
    leaves of theta0 where problems share the others.

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

    of_problems: ClassVar[bool] = True  # for seams that do not import this one
    array: Array = REQUIRED

    def __post_init__(self) -> None:
        object.__setattr__(self, "array", exchange.numbers(Stored.kept(self.array), "xv.Each"))

    def __rmul__(self, unit: float) -> Each:
        return Each(unit * self.array)


def is_each(x: Any) -> bool:
    """Whether `x` is marked."""
    return isinstance(x, Each)


def unmarked(x: Any) -> Any:
    """The array that is marked; anything else as it is."""
    return x.array if isinstance(x, Each) else x


def leaves(tree: Tree) -> list[Any]:
    """Leaves of a tree, a marked array being one."""
    return optree.tree_leaves(tree, is_leaf=is_each, namespace=NAMESPACE)


def marks(tree: Tree) -> list[bool]:
    """Which arrays of a tree are marked; a list of numbers is one."""
    places = trees.named(tree, whole=(list, tuple))[2].accessors()
    return [bool(place) and place[-1].type is Each for place in places]


def mapped(fun: Callable[[Any], Any], tree: Tree, *whole: type) -> Tree:
    """`fun` of these leaves, in the structure of the tree; objects of the types `whole` are leaves too."""
    return optree.tree_map(fun, tree, is_leaf=lambda x: isinstance(x, (Each, *whole)), namespace=NAMESPACE)


def plain(tree: Tree) -> Tree:
    """A tree without its marks."""
    return mapped(unmarked, tree)


def taken(tree: Tree, take: Callable[[Array], Array]) -> Tree:
    """A tree of some problems; `take` picks them along the first axis."""
    return mapped(lambda x: Each(take(x.array)) if is_each(x) else x, tree)
