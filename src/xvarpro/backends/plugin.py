"""Backends from other packages: loaded by entry point, and told at once what they lack."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np

from xvarpro.backends.interface import Backend
from xvarpro.core import namespace as _namespace
from xvarpro.errors import BackendNotInstalledError, PluginError, UnsupportedError

GROUP = "xvarpro.backends"
REQUIRED = ("float32", "float64", "int32", "int64", "bool")


def load(entry: Any) -> Backend:
    """The backend that an entry point names.

    Raises
    ------
    BackendNotInstalledError
        Its module, or the framework, cannot be imported.
    PluginError
        It does not keep to `Backend`; the message lists what is missing or wrong.
    """
    try:
        kind = entry.load()
    except ImportError as error:
        raise BackendNotInstalledError(
            f"backend {entry.name!r} comes from a plugin, {entry.value}, which cannot be imported: {error}"
        ) from error
    except AttributeError as error:
        raise PluginError(f"the entry point {entry.name} = {entry.value} names nothing: {error}") from error
    _check_class(entry.name, kind)
    if find_spec(kind.package) is None:
        raise BackendNotInstalledError(
            f"backend {entry.name!r} needs the package {kind.package!r}, which is not installed"
        )
    backend: Backend = kind()
    _check_namespace(backend)
    for arrays in backend.array_types:
        _namespace.adopt(arrays, backend.xp, backend.device_of)
    return backend


def _check_class(name: str, kind: Any) -> None:
    if not (inspect.isclass(kind) and issubclass(kind, Backend)):
        raise PluginError(
            f"backend {name!r} must be a class derived from xvarpro.backends.HostedBackend, TapedBackend, EagerBackend "
            f"or Backend, got {kind!r}"
        )
    lacking = sorted(kind.__abstractmethods__)
    if lacking:
        methods = "\n".join(f"  {method}{_says(getattr(kind, method))}" for method in lacking)
        raise PluginError(f"backend {name!r}: {kind.__qualname__} has to define {len(lacking)} more:\n{methods}")
    for attribute in ("name", "package", "autodiff"):
        value = getattr(kind, attribute, None)
        if not isinstance(value, str):
            raise PluginError(f"{kind.__qualname__}.{attribute} must be a string, got {value!r}")
    if kind.name != name:
        raise PluginError(
            f"{kind.__qualname__}.name is {kind.name!r}, and its entry point is called {name!r}: they must be the same"
        )
    roots: Any = getattr(kind, "roots", None)
    if not (isinstance(roots, tuple) and roots and all(isinstance(root, str) for root in roots)):
        raise PluginError(
            f"{kind.__qualname__}.roots must be a tuple of the top-level modules of its array types, such as "
            f"({kind.package!r},), got {roots!r}"
        )


def _says(method: Callable[..., Any]) -> str:
    signature = inspect.signature(method)
    given = [p.replace(annotation=p.empty) for name, p in signature.parameters.items() if name != "self"]
    says = (method.__doc__ or "").strip().partition("\n")[0]
    return f"{signature.replace(parameters=given, return_annotation=signature.empty)}: {says}"


def _check_namespace(backend: Backend) -> None:
    if getattr(backend, "xp", None) is None:
        raise PluginError(f"{type(backend).__qualname__}.xp must be its array-API namespace")
    for name in REQUIRED:
        try:
            backend.dtype(name)
        except UnsupportedError as error:
            raise PluginError(f"backend {backend.name!r} has to have {', '.join(REQUIRED)}: {error}") from error


def prove(backend: Backend, of: Callable[[Any], Backend | None]) -> None:
    """Send arrays there and back: what has to hold before anything else can.

    Raises
    ------
    PluginError
        A dtype, a shape or values change on the way, or the arrays are not known to be the backend's.
    """
    for dtype in REQUIRED:
        x = np.array([[0, 1, 2], [3, 4, 5]]).astype(dtype)
        with backend.scope("float64"):
            there = backend.asarray(x, dtype=dtype, device=backend.parse_device(backend.devices()[0]))
            name, back = backend.dtype_name(there), backend.to_numpy(there)
        if of(there) is not backend:
            kind = f"{type(there).__module__}.{type(there).__qualname__}"
            raise PluginError(
                f"arrays of backend {backend.name!r} are of type {kind}, and those belong to {_named(of(there))}: put "
                f"{kind.partition('.')[0]!r} into its `roots`, which are {backend.roots}, and register it under the "
                f"entry-point group {GROUP!r} in an installed package"
            )
        if name != dtype:
            raise PluginError(
                f"asarray of backend {backend.name!r} made {name} of {dtype}, or dtype_name does not give the "
                f"standard's name: both must be {dtype!r}"
            )
        if back.dtype != x.dtype or back.shape != x.shape or not (back == x).all():
            raise PluginError(
                f"to_numpy(asarray(x)) of backend {backend.name!r} must be x, {dtype} of shape {x.shape}: "
                f"got {back.dtype} of shape {back.shape}, {back.tolist()}"
            )


def _named(backend: Backend | None) -> str:
    return "no backend" if backend is None else f"backend {backend.name!r}"
