"""Trees of arrays, sets, algorithms, losses as JSON and NumPy arrays, and back: no pickle, nothing imported by name."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

import numpy as np

from xvarpro import algorithms, losses, sets
from xvarpro.algorithms import steps
from xvarpro.backends import to_numpy
from xvarpro.core import trees
from xvarpro.core.struct import Struct, Tree
from xvarpro.errors import ProblemError
from xvarpro.results.files import ArrayFile
from xvarpro.results.recipe import Opaque

_EXPORTS = {"sets": sets, "sets.norms": sets.norms, "steps": steps, "algorithms": algorithms, "losses": losses}


def encode(obj: object, name: str, arrays: dict[str, np.ndarray]) -> Any:
    """Sets, algorithms, losses, arrays and numbers in dicts, lists, tuples as JSON; arrays go to `arrays`, by `name`.

    Anything else is stored as its representation, which `decode` returns as an `Opaque`.
    """
    if isinstance(obj, Struct):
        fields = {f.name: getattr(obj, f.name) for f in dataclasses.fields(obj) if f.init}  # type: ignore[arg-type]
        return {"struct": _name(type(obj)), "fields": {k: encode(x, name, arrays) for k, x in fields.items()}}
    if isinstance(obj, Mapping) and all(isinstance(key, str) for key in obj):
        return {"dict": {key: encode(x, name, arrays) for key, x in obj.items()}}
    if isinstance(obj, list | tuple) and type(obj) in (list, tuple):  # a named tuple would lose its class
        return {type(obj).__name__: [encode(x, name, arrays) for x in obj]}
    if obj is None or isinstance(obj, bool | np.bool_ | str):
        return {"value": obj.item() if isinstance(obj, np.bool_) else obj}
    if isinstance(obj, Real):
        number = int(obj) if isinstance(obj, Integral) else float(obj)
        # JSON has no infinity
        return {"value": number} if math.isfinite(number) else {"float": repr(number)}
    if trees.is_array(obj):
        number = sum(key.startswith(f"{name}_") for key in arrays)
        arrays[f"{name}_{number}"] = to_numpy(obj)
        return number
    return {"opaque": obj.what if isinstance(obj, Opaque) else repr(obj)}


def decode(stored: Any, name: str, arrays: Mapping[str, np.ndarray] | ArrayFile) -> Any:
    """Inverse of `encode`, with NumPy arrays; `Opaque` in place of what was not stored or not found.

    Classes are looked up among those that are imported: no code named by a file is run. A ProblemError says what is
    nothing that `encode` returns.
    """
    match stored:
        case bool():
            pass
        case int():
            return arrays[f"{name}_{stored}"]
        case {"value": None | bool() | int() | float() | str() as x}:
            return x
        case {"float": str(x)}:
            return float(x)
        case {"opaque": str(x)}:
            return Opaque(x)
        case {"struct": str(x), "fields": dict(children)}:
            return _struct(x, {key: decode(child, name, arrays) for key, child in children.items()})
        case {"dict": dict(children)}:
            return {key: decode(child, name, arrays) for key, child in children.items()}
        case {"list": list(children)}:
            return [decode(child, name, arrays) for child in children]
        case {"tuple": list(children)}:
            return tuple(decode(child, name, arrays) for child in children)
    raise ProblemError(f"{name} holds {str(stored)[:80]}, which is no value, array, container or class")


def checked(stored: Any, types: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A JSON object with the fields and types that it must have, or a ProblemError; whole numbers become floats."""
    if not isinstance(stored, dict) or stored.keys() != types.keys():
        raise ProblemError(f"{name} must have the fields {', '.join(types)}; got {str(stored)[:200]}")
    for key, kind in types.items():
        x = stored[key]
        if (kind in (int, float) and isinstance(x, bool)) or not isinstance(x, (int, float) if kind is float else kind):
            raise ProblemError(f"{key} of {name} must be of type {getattr(kind, '__name__', kind)}; got {str(x)[:80]}")
    return {key: float(stored[key]) if kind is float else stored[key] for key, kind in types.items()}


def opaque(tree: Tree) -> Opaque | None:
    """The first part of a tree that a file could not store, or None."""
    return next((x for x in trees.leaves(tree) if isinstance(x, Opaque)), None)


def _struct(name: str, fields: dict[str, Any]) -> Any:
    cls, lost = _class(name), opaque(list(fields.values()))
    if cls is None:
        return Opaque(f"{name}, a class that has not been imported")
    return Opaque(f"{cls.__name__} with {lost.what}") if lost else cls(**fields)


def _name(cls: type) -> str:
    """A class of this package by its public name, ``sets.Box``; another's as ``module:class``."""
    for package, exports in _EXPORTS.items():
        if getattr(exports, cls.__name__, None) is cls:
            return f"{package}.{cls.__name__}"
    return f"{cls.__module__}:{cls.__qualname__}"


def _class(name: str) -> type[Struct] | None:
    """The class that `_name` calls so: one that the package exports, or another that is imported."""
    package, _, public = name.rpartition(".")
    own = getattr(_EXPORTS.get(package), public, None)
    if isinstance(own, type) and issubclass(own, Struct):
        return own
    left: list[type[Struct]] = [Struct]
    for cls in left:
        if _name(cls) == name:
            return cls
        left += cls.__subclasses__()
    return None
