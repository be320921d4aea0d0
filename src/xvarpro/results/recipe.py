"""What a solve was called with, stored with its result so that it can be repeated, and fingerprints of its data."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from xvarpro.algorithms.interface import Algorithm
from xvarpro.backends import exchange, modules, owner
from xvarpro.core import trees
from xvarpro.core.checks import described
from xvarpro.core.namespace import dtype_name
from xvarpro.core.struct import Tree
from xvarpro.errors import ProblemError
from xvarpro.problem.loading import split_name
from xvarpro.problem.problem import Problem
from xvarpro.results.files import ArrayFile
from xvarpro.results.serialization import Opaque, checked, decode, encode

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
    folder : str
        Where a relative path in that name begins: the folder of the file that the recipe comes from.
    """

    theta0: Tree
    over: Tree
    algorithm: Algorithm | Opaque
    tol: float
    max_iter: int
    scale: float
    fingerprints: Mapping[str, str]
    problem: str | None = None
    folder: str = ""

    def write(self, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
        """All of it but the folder as JSON; its arrays are added to `arrays`."""
        stored = {name: getattr(self, name) for name in _FIELDS} | {"theta0": modules.by_name(self.theta0)}
        return stored | {name: encode(stored[name], name, arrays) for name in _TREES}

    @classmethod
    def read(cls, stored: Any, arrays: ArrayFile, dtype: str, folder: str) -> Recipe:
        """Inverse of `write`, of a solve in a dtype; a ProblemError says what is none of a recipe."""
        read = checked(stored, _FIELDS, "recipe") | {name: decode(stored[name], name, arrays) for name in _TREES}
        if not isinstance(read["algorithm"], Algorithm | Opaque):
            raise ProblemError(f"the algorithm of its recipe is {read['algorithm']!r:.80}")
        if not all(isinstance(x, str) for x in read["fingerprints"].values()):
            raise ProblemError("fingerprints of its recipe must be strings")
        if read["problem"] is not None:
            split_name(read["problem"])
        if read["scale"] < 0:
            raise ProblemError(f"scale of its recipe must be >= 0; got {read['scale']}")
        check_finite(read["theta0"], "theta0", dtype)
        return cls(**read, folder=folder)


_FIELDS = {
    "theta0": object, "over": object, "algorithm": object, "tol": float, "max_iter": int, "scale": float,
    "fingerprints": dict, "problem": str | None,
}  # fmt: skip


def check_finite(tree: Tree, name: str, dtype: str) -> None:
    """Refuse a tree from a file that holds anything but finite arrays of the dtype."""
    for x in trees.leaves(tree):
        if not (isinstance(x, np.ndarray) and x.dtype == dtype and np.isfinite(x).all()):
            kind = f"{described(x)} of {x.dtype}" if isinstance(x, np.ndarray) else described(x)
            raise ProblemError(f"{name} must hold finite arrays of {dtype}; got {kind}")


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
    names = [name.lstrip(".") for name in trees.paths(tree, root)]
    found = zip(names, trees.leaves(tree), strict=True)
    return {name: hashed for name, x in found if (hashed := _hash(exchange.as_array(x, name)))}


def changed(problem: Problem, stored: Mapping[str, str]) -> list[str]:
    """Names of the arrays and numbers of a problem whose fingerprints are other ones than those `stored`."""
    found = [hashed for x in trees.leaves(problem) if (hashed := _hash(exchange.as_array(x, "an array")))]
    if found == list(stored.values())[: len(found)]:
        return []  # names take longer than small arrays
    return [name for name, x in hashes(problem, "").items() if x != stored.get(name)]


def _hash(x: object) -> str:
    """Hash of the bits; empty for what has none: functions, and arrays of objects or of what NumPy cannot hold."""
    if not trees.is_array(x):
        return hashlib.sha256(repr(x).encode()).hexdigest()[:32] if isinstance(x, bool | int | float | str) else ""
    kind = dtype_name(x)
    try:
        backend = owner(x)
        parts = backend.placement.digests(x)
        if parts is None:
            parts = backend.to_numpy(backend.asarray(x, dtype="float32") if kind == "bfloat16" else x)
    except TypeError:
        return ""
    if parts.dtype.hasobject:
        return ""
    host = np.ascontiguousarray(parts)
    host = host if host.dtype.isnative and np.little_endian else host.astype(host.dtype.newbyteorder("<"))
    found = hashlib.sha256(f"{kind} {tuple(x.shape)}".encode())
    found.update(host.view(np.uint8).data)
    return found.hexdigest()[:32]
