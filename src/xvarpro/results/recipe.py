"""What a solve was called with, stored with its result so that it can be repeated, and fingerprints of its data."""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from xvarpro.algorithms.interface import Algorithm
from xvarpro.backends import exchange, modules, of, owner
from xvarpro.core import trees
from xvarpro.core.checks import described
from xvarpro.core.namespace import dtype_name
from xvarpro.core.struct import Tree
from xvarpro.errors import ProblemError
from xvarpro.problem.loading import split_name
from xvarpro.problem.problem import Problem
from xvarpro.results.serialization import Opaque, checked, decode, encode

if TYPE_CHECKING:
    from xvarpro.results.files import ArrayFile

_TREES = ("theta0", "over", "algorithm")
WRITTEN = "written to after the solve"  # and before its fingerprint was asked for


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
        Hashes of theta0 and of every array and number of the problem, by the name that a user would write, made when
        they are first asked for: see `Fingerprints`.
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
        stored = {name: getattr(self, name) for name in _FIELDS} | {
            "theta0": modules.by_name(self.theta0), "fingerprints": dict(self.fingerprints),
        }  # fmt: skip
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


class Fingerprints(Mapping[str, str]):
    """Hashes of theta0 and of the arrays and numbers of a problem, by name. Functions have no hash.

    Equal bits have equal hashes in any framework and byte order. Chunks that a function makes are not read.

    A solve does not wait for them: they are made when they are first asked for, from the arrays themselves. What has
    been written to by then, as its `Backend.checksum` tells, has `WRITTEN` for a fingerprint, which no array has.

    Parameters
    ----------
    problem : Problem
    theta0 : pytree of NumPy arrays that nothing writes to, optional

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> from xvarpro.results.recipe import Fingerprints
    >>> t = np.ones((3, 1))
    >>> problem = xv.separable(lambda theta, data: data["t"] * theta, np.ones(3), data={"t": t}, lam=0.5)
    >>> found = Fingerprints(problem, np.ones(1))
    >>> t[0] = 2.0
    >>> found.hold(problem)
    False
    >>> sorted(found)[:4]
    ['compress', "data['t']", 'lower.lam', 'lower.y']
    """

    def __init__(self, problem: Problem, theta0: Tree = None) -> None:
        self._leaves, self._names, self._theta0 = trees.leaves(problem), _names(problem, ""), theta0
        self._sums = list(map(_checksum, self._leaves, self._names))

    @cached_property
    def _hashes(self) -> dict[str, str]:
        own = zip(self._names, self._leaves, self._unchanged(), strict=True)
        found = {name: _hash(x, name) if same else WRITTEN for name, x, same in own}
        return {name: hashed for name, hashed in found.items() if hashed} | hashes(self._theta0, "theta0")

    def __getitem__(self, name: str) -> str:
        return self._hashes[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._hashes)

    def __len__(self) -> int:
        return len(self._hashes)

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (self._hashes,)

    def _unchanged(self) -> list[bool]:
        now = map(_checksum, self._leaves, self._names)
        return [was is None or bool(x == was) for x, was in zip(now, self._sums, strict=True)]

    def hold(self, problem: Problem) -> bool:
        """Whether a problem consists of the same arrays and numbers, and none has been written to."""
        found = trees.leaves(problem)
        own = len(found) == len(self._leaves) and all(map(operator.is_, found, self._leaves))
        return own and all(self._unchanged())


def _names(tree: Tree, root: str) -> list[str]:
    return [name.lstrip(".") for name in trees.paths(tree, root)]


def hashes(tree: Tree, root: str) -> dict[str, str]:
    """Hashes of the arrays, numbers and strings of a tree, by name."""
    found = zip(_names(tree, root), trees.leaves(tree), strict=True)
    return {name: hashed for name, x in found if (hashed := _hash(x, name))}


def changed(problem: Problem, stored: Mapping[str, str]) -> list[str]:
    """Names of the arrays and numbers of a problem whose fingerprints are other ones than those `stored`."""
    if isinstance(stored, Fingerprints) and stored.hold(problem):
        return []
    return [name for name, x in hashes(problem, "").items() if x != stored.get(name)]


def _checksum(x: Any, name: str) -> Any:
    x = exchange.as_array(x, name)
    backend = of(x) if trees.is_array(x) else None
    return None if backend is None else backend.checksum(x)


def _hash(x: Any, name: str) -> str:
    """Hash of the bits; empty for what has none: functions, and arrays of objects or of what NumPy cannot hold."""
    x = exchange.as_array(x, name)
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
