"""Backends from other packages: loaded by entry point, and checked at once."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from xvarpro.backends.interface import Backend
from xvarpro.core.namespace import adopt, find_dtype
from xvarpro.errors import BackendNotInstalledError, PluginError, UnsupportedError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "xvarpro.backends"
REQUIRED = ("float32", "float64", "int32", "int64", "bool")


def load(entry: EntryPoint) -> Backend:
    """The backend that an entry point names.

    Raises
    ------
    BackendNotInstalledError
        Its module, or the framework, cannot be imported.
    PluginError
        It is no `Backend`; the message lists what is missing or wrong.
    """
    try:
        kind = entry.load()
    except ImportError as error:
        raise BackendNotInstalledError(
            f"backend {entry.name!r} comes from a plugin, {entry.value}, which cannot be imported: {error}"
        ) from error
    except AttributeError as error:
        raise PluginError(f"the entry point {entry.name} = {entry.value} must name a class: {error}") from error
    _check_class(entry.name, kind)
    if find_spec(kind.roots[0]) is None:
        raise BackendNotInstalledError(
            f"backend {entry.name!r} needs the package {kind.roots[0]!r}, which is not installed"
        )
    backend: Backend = kind()
    _check_namespace(backend)
    for arrays in backend.array_types:
        adopt(arrays, backend.xp, next(iter(backend.devices().values())))
    return backend


def _check_class(name: str, kind: Any) -> None:
    if not (inspect.isclass(kind) and issubclass(kind, Backend)):
        raise PluginError(
            f"backend {name!r} must be a class derived from HostedBackend, TapedBackend or EagerBackend of "
            f"xvarpro.backends.adapters, or from xvarpro.backends.Backend, got {kind!r}"
        )
    lacking = sorted(kind.__abstractmethods__)
    if lacking:
        methods = "\n".join(f"  {method}{_summary(getattr(kind, method))}" for method in lacking)
        raise PluginError(f"backend {name!r}: {kind.__qualname__} has to define {len(lacking)} more:\n{methods}")
    if getattr(kind, "name", None) != name:
        raise PluginError(
            f"{kind.__qualname__}.name must be the name of its entry point, {name!r}, "
            f"got {getattr(kind, 'name', None)!r}"
        )
    roots: Any = getattr(kind, "roots", None)
    if not (isinstance(roots, tuple) and roots and all(isinstance(root, str) for root in roots)):
        raise PluginError(
            f"{kind.__qualname__}.roots must be a tuple of the top-level modules of its array types, such as "
            f"({name!r},), got {roots!r}"
        )


def _summary(method: Callable[..., Any]) -> str:
    signature = inspect.signature(method)
    given = [p.replace(annotation=p.empty) for name, p in signature.parameters.items() if name != "self"]
    first = (method.__doc__ or "").strip().partition("\n")[0]
    return f"{signature.replace(parameters=given, return_annotation=signature.empty)}: {first}"


def _check_namespace(backend: Backend) -> None:
    if getattr(backend, "xp", None) is None:
        raise PluginError(f"{type(backend).__qualname__}.xp must be its array-API namespace")
    for name in REQUIRED:
        try:
            find_dtype(backend.xp, name)
        except UnsupportedError as error:
            raise PluginError(f"backend {backend.name!r} must have {', '.join(REQUIRED)}: {error}") from error
