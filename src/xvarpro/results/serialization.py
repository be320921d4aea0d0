"""Trees of arrays, sets and algorithms as JSON and NumPy arrays, and back: no pickle, nothing imported by name."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np

from xvarpro import algorithms, sets
from xvarpro.algorithms import steps
from xvarpro.backends import to_numpy
from xvarpro.core import trees
from xvarpro.core.struct import Struct, Tree

_EXPORTS = {"sets": sets, "sets.norms": sets.norms, "steps": steps, "algorithms": algorithms}


@dataclass(frozen=True)
class Opaque:
    """Placeholder for something that a file cannot store, such as a function.

    Attributes
    ----------
    what : str
        Its representation.
    """

    what: str


def encode(obj: object, name: str, arrays: dict[str, np.ndarray]) -> Any:
    """Encode sets, algorithms, or a tree of them, as JSON; their arrays are added to `arrays`.

    Parameters
    ----------
    obj : Struct, number, str, None, array, or dicts, lists and tuples of them
        Anything else is stored as its representation, which `decode` returns as an `Opaque`.
    name : str
        Name of each array, followed by a number.
    arrays : dict
        Changed in place.

    Examples
    --------
    >>> import xvarpro as xv
    >>> from xvarpro.results.serialization import decode, encode
    >>> arrays = {}
    >>> stored = encode({"s": xv.sets.CappedSimplex(2.0)}, "over", arrays)
    >>> stored["dict"]["s"]["struct"]
    'sets.CappedSimplex'
    >>> decode(stored, "over", arrays)
    {'s': CappedSimplex(radius=2.0)}
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


def decode(stored: Any, name: str, arrays: Mapping[str, np.ndarray]) -> Any:
    """Decode what `encode` returned, with NumPy arrays; `Opaque` in place of what was not stored or not found.

    Classes are looked up among those that are imported: no code named by a file is run.
    """
    if isinstance(stored, int):
        return arrays[f"{name}_{stored}"]
    if "value" in stored:
        return stored["value"]
    if "float" in stored:
        return float(stored["float"])
    if "opaque" in stored:
        return Opaque(stored["opaque"])
    if "struct" in stored:
        return _struct(stored["struct"], {key: decode(x, name, arrays) for key, x in stored["fields"].items()})
    ((kind, children),) = stored.items()
    if kind == "dict":
        return {key: decode(child, name, arrays) for key, child in children.items()}
    parts = [decode(child, name, arrays) for child in children]
    return tuple(parts) if kind == "tuple" else parts


def opaque(tree: Tree) -> Opaque | None:
    """The first part of a tree that a file could not store, or None."""
    return next((x for x in trees.leaves(tree) if isinstance(x, Opaque)), None)


def _struct(name: str, fields: dict[str, Any]) -> Any:
    cls, lost = _classes().get(name), opaque(list(fields.values()))
    if cls is None:
        return Opaque(f"{name}, a class that has not been imported")
    return Opaque(f"{cls.__name__} with {lost.what}") if lost else cls(**fields)


def _name(cls: type) -> str:
    """A class of this package by its public name, ``sets.Box``; another's as ``module:class``."""
    for package, exports in _EXPORTS.items():
        if getattr(exports, cls.__name__, None) is cls:
            return f"{package}.{cls.__name__}"
    return f"{cls.__module__}:{cls.__qualname__}"


def _classes() -> dict[str, type]:
    found, left = {}, [Struct]
    while left:
        for cls in left.pop().__subclasses__():
            found[_name(cls)] = cls
            left.append(cls)
    return found
