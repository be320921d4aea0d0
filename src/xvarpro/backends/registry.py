"""The registry of backends. A framework is imported on its first use, or when an array of its type arrives."""

from __future__ import annotations

import copy
import importlib
import sys
from functools import cache, lru_cache
from importlib.util import find_spec
from threading import RLock
from typing import Any, NamedTuple

import numpy as np

from xvarpro.backends import plugin
from xvarpro.backends.interface import Backend, Function, Placement
from xvarpro.core.namespace import dtype_name, namespace_of
from xvarpro.core.struct import Leaves
from xvarpro.errors import BackendNotInstalledError, PluginError, ProblemError, UnknownBackendError, pip_install

ENTRY_POINT_GROUP = plugin.GROUP


class _BuiltIn(NamedTuple):
    target: str  # module:class
    package: str  # what has to be importable
    roots: tuple[str, ...]  # top-level modules of its array types
    install: str  # by which command


_BUILT_IN = {
    "numpy": _BuiltIn("xvarpro.backends.numpy:NumPyBackend", "numpy", ("numpy",), "pip install numpy"),
    "torch": _BuiltIn("xvarpro.backends.torch:TorchBackend", "torch", ("torch",), pip_install("torch")),
    "jax": _BuiltIn("xvarpro.backends.jax:JaxBackend", "jax", ("jax", "jaxlib"), pip_install("jax")),
    "cupy": _BuiltIn("xvarpro.backends.cupy:CuPyBackend", "cupy", ("cupy",), pip_install("cuda12", "cuda13")),
    "array-api-strict": _BuiltIn(
        "xvarpro.backends.strict:StrictBackend",
        "array_api_strict",
        ("array_api_strict",),
        "pip install array-api-strict",
    ),
}
_FAMILY = {root: name for name, built_in in _BUILT_IN.items() for root in built_in.roots}


@lru_cache(maxsize=1)
def _plugins() -> dict[str, Any]:
    from importlib.metadata import entry_points  # as long to import as NumPy's linear algebra

    return {entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP)}


def known() -> tuple[str, ...]:
    """Names of the built-in backends and of the plugins registered under `ENTRY_POINT_GROUP`."""
    return (*_BUILT_IN, *(name for name in _plugins() if name not in _BUILT_IN))


def installed(name: str) -> bool:
    """Whether the framework of a known backend can be imported; imports nothing."""
    return find_spec(_BUILT_IN[name].package) is not None if name in _BUILT_IN else name in _plugins()


def loaded() -> list[Backend]:
    """The backends whose framework has been imported, by whomever."""
    built_in = [name for name, about in _BUILT_IN.items() if about.package in sys.modules]
    plugins = [name for name, entry in _plugins().items() if entry.module in sys.modules and name not in _BUILT_IN]
    return [get(name) for name in (*built_in, *plugins)]


_making = RLock()  # two threads that ask at once get one backend, with one cache of compiled functions


def get(name: str) -> Backend:
    """The backend of that name, imported on first use.

    Raises
    ------
    UnknownBackendError
        No backend has that name; the message lists those there are.
    BackendNotInstalledError
        Its framework is not installed; the message says what to install.
    PluginError
        It comes from another package and its class does not implement `Backend`; the message says where.

    Examples
    --------
    >>> import xvarpro as xv
    >>> list(xv.backends.get("numpy").devices())
    ['cpu']
    """
    if not isinstance(name, str):
        raise UnknownBackendError(f"backend must be one of {', '.join(known())}; got {name!r}")
    with _making:
        return _made(name)


@cache
def _made(name: str) -> Backend:
    if name not in _BUILT_IN:
        if name not in _plugins():
            raise UnknownBackendError(f"unknown backend {name!r}: it must be one of {', '.join(known())}")
        return plugin.load(_plugins()[name])
    built_in = _BUILT_IN[name]
    if not installed(name):
        raise BackendNotInstalledError(
            f"backend {name!r} needs the package {built_in.package!r}, which is not installed: {built_in.install}"
        )
    module, _, attribute = built_in.target.partition(":")
    return getattr(importlib.import_module(module), attribute)()


def owner(x: Any) -> Backend:
    """As `of`, for something that is known to be an array.

    Raises
    ------
    UnknownBackendError
        No backend owns arrays of that type.
    """
    found = of(x)
    if found is None:
        raise UnknownBackendError(f"no backend owns arrays of type {type(x).__module__}.{type(x).__name__}")
    return found


def is_deterministic(backend: Backend) -> bool:
    """Whether the `scope` of a backend gives the same bits from run to run; see `Backend.deterministic`."""
    try:
        return backend.deterministic() is backend
    except ProblemError:
        return False


def uncompiled(backend: Backend) -> Backend:
    """The same framework with loops that run in Python: around a function that reads from a disk, for example."""
    if not backend.compiled:
        return backend
    other = copy.copy(backend)
    other.compiled = False
    return other


def placed(backend: Backend, placement: Placement) -> Backend:
    """The same framework with arrays elsewhere."""
    if backend.placement == placement:
        return backend
    other = copy.copy(backend)
    other.placement = placement
    return other


def sparse_product(rows: Any, columns: Any, data: Any, shape: tuple[int, int], w: Any) -> Any:
    """`Backend.sparse_product` for arrays of any kind, those that a tape records included."""
    found = of(data)
    if found is not None:
        return found.sparse_product(rows, columns, data, shape, w)
    xp = data.__array_namespace__()
    return xp._add_rows(xp.expand_dims(data, axis=1) * xp.take(w, columns, axis=0), rows, shape[0], 0)


def vmap(fun: Function, mapped: Leaves, shared: tuple[Any, ...] = ()) -> Leaves:
    """`Backend.vmap` for arrays of any kind, those that a tape records included."""
    found, x = of(mapped[0]), mapped[0]
    if found is not None:
        return found.vmap(fun, mapped, shared)
    from xvarpro.backends.eager import batched  # loads the tape, which is there where arrays are recorded

    return batched(namespace_of(x), fun, mapped, shared)


def of(x: Any) -> Backend | None:
    """The backend that owns an array, None if `x` is no array of a known framework. Looks at the type alone.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> xv.backends.of(np.ones(3)).name
    'numpy'
    """
    kind: Any = type(x)
    return _of_type(kind)


def to_numpy(x: Any) -> np.ndarray:
    """A number, or an array of any framework, as a NumPy array, which may share memory with it.

    Examples
    --------
    >>> import xvarpro as xv
    >>> xv.backends.to_numpy(2.0)
    array(2.)
    """
    found = of(x)
    return np.asarray(x if found is None else found.to_numpy(x))


@cache
def _of_type(kind: Any) -> Backend | None:
    """The nearest class that some backend owns decides: an array type may be built on another framework's.

    A plugin is loaded when a type turns up that no built-in backend and not Python itself has made.
    """
    for base in kind.__mro__:
        root = base.__module__.partition(".")[0]
        if root in _FAMILY:
            return get(_FAMILY[root])
        if root in sys.stdlib_module_names or root == __name__.partition(".")[0]:
            continue
        for backend in _usable_plugins():
            if root in backend.roots:
                return backend
    return None


def _usable_plugins() -> list[Backend]:
    found = []
    for name in _plugins():
        if name not in _BUILT_IN:
            try:
                found.append(get(name))
            except BackendNotInstalledError:
                continue  # of a framework that cannot be imported there are no arrays
    return found


def prove(backend: Backend) -> None:
    """Check that arrays go to `backend` and come back, and are known to be its own: for authors of plugins.

    Raises
    ------
    PluginError
        A dtype, a shape or values change on the way, or the arrays are not known to be the backend's.

    Examples
    --------
    >>> import xvarpro as xv
    >>> from xvarpro.backends.adapters import prove
    >>> prove(xv.backends.get("numpy"))
    """
    for dtype in plugin.REQUIRED:
        x = np.array([[0, 1, 2], [3, 4, 5]]).astype(dtype)
        with backend.scope("float64"):
            there = backend.asarray(x, dtype=dtype, device=next(iter(backend.devices().values())))
            name, back = dtype_name(there), backend.to_numpy(there)
        if of(there) is not backend:
            kind = f"{type(there).__module__}.{type(there).__qualname__}"
            raise PluginError(
                f"arrays of backend {backend.name!r} are of type {kind}, and those belong to {_named(of(there))}: put "
                f"{kind.partition('.')[0]!r} into its `roots`, which are {backend.roots}, and register it under the "
                f"entry-point group {ENTRY_POINT_GROUP!r} in an installed package"
            )
        if name != dtype:
            raise PluginError(
                f"asarray of backend {backend.name!r} must keep the dtype {dtype!r}, and str(x.dtype) must end in the "
                f"standard's name: got {name!r}"
            )
        if back.dtype != x.dtype or back.shape != x.shape or not (back == x).all():
            raise PluginError(
                f"to_numpy(asarray(x)) of backend {backend.name!r} must be x, {dtype} of shape {x.shape}: "
                f"got {back.dtype} of shape {back.shape}, {back.tolist()}"
            )


def _named(backend: Backend | None) -> str:
    return "no backend" if backend is None else f"backend {backend.name!r}"
