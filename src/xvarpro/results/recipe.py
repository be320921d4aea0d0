"""What a solve was asked for, kept with its result so that it can be done again, and what it was done to."""

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
from xvarpro.results.serialization import Opaque, decode, encode, structure


@dataclass(frozen=True)
class Recipe:
    """What `solve` was asked for; backend, device and dtype are in the result's provenance.

    Attributes
    ----------
    theta0 : pytree of NumPy arrays
        The start, in the dtype of the work.
    over : Set, Free or a tree of them, None or Opaque
        As it was given; `Opaque` where a file could not keep it.
    algorithm : Algorithm or Opaque
        The one that ran, chosen by the caller or for them.
    tol : float
    max_iter : int
    scale : float
        What rounding is relative to: ``1/2 |y|^2`` of the level that judges, or the first objective if that is larger.
    fingerprints : mapping of str to str
        Of theta0 and of every array and number of the problem as it was given, by the names that a user would write.
    problem : str, optional
        How the problem is named, ``package.module:function`` or ``file.py:function``.
    """

    theta0: Tree
    over: Any
    algorithm: Algorithm | Opaque
    tol: float
    max_iter: int
    scale: float
    fingerprints: Mapping[str, str]
    problem: str | None = None

    def write(self, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
        """All of it as JSON; its arrays are added to `arrays`."""
        arrays |= {f"theta0_{i}": x for i, x in enumerate(trees.leaves(self.theta0))}
        return {
            "theta0": structure(self.theta0),
            "over": _again(self.over, "over", arrays),
            "algorithm": _again(self.algorithm, "algorithm", arrays),
            **{name: getattr(self, name) for name in _PLAIN},
            "fingerprints": dict(self.fingerprints),
        }

    @classmethod
    def read(cls, kept: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Recipe:
        """What `write` gave."""
        parts = {name: decode(kept[name], name, arrays) for name in ("theta0", "over", "algorithm")}
        return cls(**{f.name: kept[f.name] for f in fields(cls)} | parts)


_PLAIN = ("tol", "max_iter", "scale", "problem")


def _again(part: Any, name: str, arrays: dict[str, np.ndarray]) -> Any:
    """`encode`, or the note that a file had for it already."""
    return {"opaque": part.what} if isinstance(part, Opaque) else encode(part, name, arrays)


def fingerprints(problem: Problem, theta0: Tree) -> dict[str, str]:
    """Hashes of theta0 and of the arrays and numbers of a problem, by name. Functions have none.

    The same for equal bits in any framework and either order of bytes. Chunks that a function makes are not read.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> from xvarpro.results.recipe import fingerprints
    >>> problem = xv.separable(lambda theta, data: data["t"] * theta, np.ones(3), data={"t": np.ones((3, 1))}, lam=0.5)
    >>> sorted(fingerprints(problem, np.ones(1)))[:4]
    ['compress', "data['t']", 'lower.lam', 'lower.y']
    """
    names = [*(name.lstrip(".") for name in trees.paths(problem, "")), *trees.paths(theta0, "theta0")]
    found = zip(names, [*trees.leaves(problem), *trees.leaves(theta0)], strict=True)
    return {name: _hash(x) for name, x in found if trees.is_array(x) or isinstance(x, bool | int | float | str)}


def _hash(x: Any) -> str:
    if not trees.is_array(x):
        return hashlib.sha256(repr(x).encode()).hexdigest()[:32]
    host = np.ascontiguousarray(to_numpy(x))
    host = host if host.dtype.isnative and np.little_endian else host.astype(host.dtype.newbyteorder("<"))
    found = hashlib.sha256(f"{host.dtype.name} {tuple(x.shape)}".encode())
    found.update(host.view(np.uint8).data)
    return found.hexdigest()[:32]
