"""What a solve was called with, stored with its result so that it can be repeated, and fingerprints of its data."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from xvarpro.algorithms.interface import Algorithm
from xvarpro.backends import to_numpy
from xvarpro.core import trees
from xvarpro.core.struct import Tree
from xvarpro.problem.problem import Problem
from xvarpro.results.serialization import Opaque, decode, encode

_TREES = ("theta0", "over", "algorithm")


@dataclass(frozen=True)
class Recipe:
    """Arguments of a `solve`; backend, device and dtype are in the result's provenance.

    Attributes
    ----------
    theta0 : pytree of NumPy arrays
        The start, in the dtype of the computation.
    over : Set, Free or a tree of them, None or Opaque
        As it was given; `Opaque` if a file could not store it.
    algorithm : Algorithm or Opaque
        The one that ran, the default included.
    tol : float
    max_iter : int
    scale : float
        Size of the objective that rounding is relative to: ``1/2 |y|^2`` of the upper level, or the first objective if
        that is larger.
    fingerprints : mapping of str to str
        Hashes of theta0 and of every array and number of the problem, by the name that a user would write.
    problem : str, optional
        Name of the problem, ``package.module:function`` or ``file.py:function``.
    """

    theta0: Tree
    over: Tree
    algorithm: Algorithm | Opaque
    tol: float
    max_iter: int
    scale: float
    fingerprints: Mapping[str, str]
    problem: str | None = None

    def write(self, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
        """All of it as JSON; its arrays are added to `arrays`."""
        stored = {f.name: getattr(self, f.name) for f in fields(self)}
        return stored | {name: encode(stored[name], name, arrays) for name in _TREES}

    @classmethod
    def read(cls, stored: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Recipe:
        """Inverse of `write`."""
        return cls(**{**stored, **{name: decode(stored[name], name, arrays) for name in _TREES}})


def fingerprints(problem: Problem, theta0: Tree) -> dict[str, str]:
    """Hash theta0 and the arrays and numbers of a problem, by name. Functions have no hash.

    Equal bits have equal hashes in any framework and byte order. Chunks that a function makes are not read.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> from xvarpro.results.recipe import fingerprints
    >>> problem = xv.separable(lambda theta, data: data["t"] * theta, np.ones(3), data={"t": np.ones((3, 1))}, lam=0.5)
    >>> sorted(fingerprints(problem, np.ones(1)))[:4]
    ['compress', "data['t']", 'lower.lam', 'lower.y']
    """
    return hashes(problem, "") | hashes(theta0, "theta0")


def hashes(tree: Tree, root: str) -> dict[str, str]:
    """Hashes of the arrays, numbers and strings of a tree, by name."""
    found = zip(trees.paths(tree, root), trees.leaves(tree), strict=True)
    hashed = (
        (name.lstrip("."), x) for name, x in found if trees.is_array(x) or isinstance(x, bool | int | float | str)
    )
    return {name: _hash(x) for name, x in hashed}


def _hash(x: object) -> str:
    if not trees.is_array(x):
        return hashlib.sha256(repr(x).encode()).hexdigest()[:32]
    host = np.ascontiguousarray(to_numpy(x))
    host = host if host.dtype.isnative and np.little_endian else host.astype(host.dtype.newbyteorder("<"))
    found = hashlib.sha256(f"{host.dtype.name} {tuple(x.shape)}".encode())
    found.update(host.view(np.uint8).data)
    return found.hexdigest()[:32]
