"""Names of the entries of theta and of w."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from xvarpro.core import trees
from xvarpro.core.struct import Tree


def entry_names(theta: Tree) -> list[str]:
    """A name for each entry of theta, in the order of its leaves.

    Examples
    --------
    >>> import numpy as np
    >>> from xvarpro.statistics.names import entry_names
    >>> entry_names({"shift": np.array(0.1), "rates": np.ones(2)})
    ['rates[0]', 'rates[1]', 'shift']
    >>> entry_names(np.ones((1, 2)))
    ['theta[0, 0]', 'theta[0, 1]']
    """
    return list(each_name(theta))


def each_name(theta: Tree) -> Iterator[str]:
    """The same one by one, for theta of very many entries."""
    leaves, treedef = trees.flatten(theta)
    for place, x in zip(treedef.accessors(), leaves, strict=True):
        keys = [str(step.entry) for step in place]
        yield from each_of(".".join(keys) or "theta", getattr(x, "shape", ()))


def indexed(name: str, shape: tuple[int, ...]) -> list[str]:
    """``name[i, j]`` for each entry of an array, the name alone for a scalar."""
    return list(each_of(name, shape))


def each_of(name: str, shape: tuple[int, ...]) -> Iterator[str]:
    """The same one by one."""
    return (f"{name}{list(at) if at else ''}" for at in itertools.product(*map(range, shape)))
