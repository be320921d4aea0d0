"""Trees of arrays, through optree: the states of methods, and their structure, under which compiled steps are kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import optree

import xvarpro as xv

Array: TypeAlias = Any  # of any framework
Tree: TypeAlias = Any  # an array, or any nesting of containers and of xvarpro's classes around arrays

_NAMESPACE = "xvarpro"  # under which problems, sets and operators are registered with optree


@dataclass(frozen=True)
class Rest:
    """A tree without its arrays; equal ones make the same program."""

    treedef: Any
    static: tuple[Any, ...]

    def fill(self, arrays: Iterable[Array]) -> Tree:
        """The tree around these arrays."""
        supply = iter(arrays)
        return optree.tree_unflatten(self.treedef, [next(supply) if s is Rest else s for s in self.static])


def partition(tree: Tree) -> tuple[tuple[Array, ...], Rest]:
    """The arrays of a tree, and the tree without them."""
    leaves, treedef = optree.tree_flatten(tree, none_is_leaf=True, namespace=_NAMESPACE)
    arrays = tuple(x for x in leaves if is_array(x))
    return arrays, Rest(treedef, tuple(Rest if is_array(x) else x for x in leaves))


def arrays(tree: Tree) -> tuple[Array, ...]:
    """The arrays of a tree."""
    return partition(tree)[0]


def mapped(fun: Callable[..., Array], first: Tree, *others: Tree) -> Tree:
    """`fun` of the arrays of trees with one structure."""
    own, rest = partition(first)
    return rest.fill(fun(*x) for x in zip(own, *map(arrays, others), strict=True))


def is_array(x: Any) -> bool:
    """Whether a leaf is an array; NumPy's scalars count, since its sums return them."""
    return hasattr(x, "shape") and hasattr(x, "dtype")


def is_finite(tree: Tree) -> bool:
    """Whether all entries of NumPy arrays are finite."""
    return all(bool(np.all(np.isfinite(x))) for x in arrays(tree))


def size(tree: Tree) -> int:
    """Number of entries of all arrays."""
    return sum(int(x.size) for x in arrays(tree))


def dot(a: Tree, b: Tree) -> Array:
    """Inner product of two trees of real arrays."""
    return sum(xv.array_namespace(x).sum(x * y) for x, y in zip(arrays(a), arrays(b), strict=True))


def axpy(alpha: Array | float, x: Tree, y: Tree) -> Tree:
    """``alpha x + y``."""
    return mapped(lambda x, y: alpha * x + y, x, y)
