"""What a solve was called with, and where, stored with its result so that it can be repeated; fingerprints of data."""

from __future__ import annotations

import hashlib
import operator
import os
import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np

from xvarpro._version import __version__
from xvarpro.algorithms.interface import Algorithm
from xvarpro.backends import Backend, exchange, of, to_numpy
from xvarpro.backends.registry import is_deterministic, owner
from xvarpro.core import trees
from xvarpro.core.namespace import device as device_of
from xvarpro.core.namespace import dtype_name
from xvarpro.core.struct import Array, Tree
from xvarpro.problem.problem import Problem

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "MKL_CBWR", "CUBLAS_WORKSPACE_CONFIG")
_CPUS = Path("/proc/cpuinfo")
WRITTEN = "written to after the solve"  # and before its fingerprint was asked for


@dataclass(frozen=True)
class Opaque:
    """Placeholder for something that a file cannot store, such as a function, with its representation."""

    what: str


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
        Hashes of theta0, of every array and number of the problem and of the classes of losses and W, by the name that
        a user would write, made when they are first asked for: see `Fingerprints`.
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


class Fingerprints(Mapping[str, str]):
    """Hashes of theta0 and of the arrays and numbers of a problem, by name. Functions have no hash.

    Equal bits have equal hashes in any framework and byte order. Chunks that a function makes are not read.

    A solve does not wait for them: they are made when they are first asked for, from the arrays themselves. What has
    been written to by then, as its `Backend.checksum` tells, has `WRITTEN` for a fingerprint, which no array has.
    """

    def __init__(self, problem: Problem, theta0: Tree = None) -> None:
        self._leaves, names, _ = trees.named(problem, "")
        self._names, self._theta0 = [name.lstrip(".") for name in names], theta0
        self._classes = _classes(problem)
        self._sums = list(map(_checksum, self._leaves, self._names))

    @cached_property
    def _hashes(self) -> dict[str, str]:
        own = zip(self._names, self._leaves, self._unchanged(), strict=True)
        found = {name: _hash(x, name) if same else WRITTEN for name, x, same in own}
        found |= {name: _hash(x, name) for name, x in self._classes.items()}
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
        return own and _classes(problem) == self._classes and all(self._unchanged())


def _classes(problem: Problem) -> dict[str, str]:
    """Names of the classes of losses and of W, which arrays and numbers do not tell."""
    lower, upper = problem.lower, problem.upper
    named = {"lower.loss": lower.loss, "lower.W": lower.W, "upper.loss": upper and upper.loss}
    return {name: type(x).__name__ for name, x in named.items() if x is not None}


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
    now = hashes(problem, "") | {name: _hash(x, name) for name, x in _classes(problem).items()}
    given = dict(zip(_names(problem, ""), trees.leaves(problem), strict=True))
    return [name + _widened(given.get(name), stored.get(name)) for name, x in now.items() if x != stored.get(name)]


def _widened(x: Any, stored: str | None) -> str:
    """What to say of an array that differs from the one stored by its dtype alone, as whole numbers of a table may."""
    x = exchange.as_array(x, "an array")
    if not trees.is_array(x) or not ("int" in dtype_name(x) or dtype_name(x) == "float32"):
        return ""
    wide = _hash(to_numpy(x).astype("float64"), "")
    return f" of dtype {dtype_name(x)}, which was float64" if wide == stored else ""


def _checksum(x: Any, name: str) -> Any:
    if type(x) in trees.PLAIN:
        return None
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


def provenance(backend: Backend, theta: Array, **more: object) -> dict[str, Any]:
    """Backend, device and dtype of an array, `more` entries, versions, processor and threads, as JSON types."""
    device = device_of(theta)
    held = is_deterministic(backend)
    unpromised = list(backend.nondeterministic_operations(device)) if held else []
    return {
        "xvarpro": __version__,
        "backend": backend.name,
        "device": str(device),
        "dtype": dtype_name(theta),
        **more,
        "framework": backend.describe(),
        "host": _host(),
        "determinism": {"held": held, "unpromised": unpromised},
    }


def _host() -> dict[str, Any]:
    """Processor, system, number of CPUs and the variables that libraries read their number of threads from."""
    affinity = getattr(os, "sched_getaffinity", None)
    return {
        "python": platform.python_version(),
        "system": platform.system(),
        "processor": _processor(),
        "cpus": len(affinity(0)) if affinity else os.cpu_count(),
        **{name: os.environ.get(name, "unset") for name in _THREADS},
    }


@cache
def _processor() -> str:
    """Model of the processor: linear algebra chooses its kernels, and with them the rounding, by it."""
    if _CPUS.is_file():
        for line in _CPUS.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
