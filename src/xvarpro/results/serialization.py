"""Trees of arrays, sets and methods as JSON and NumPy arrays, and back: no pickle, nothing imported by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np

from xvarpro import algorithms, lower, operators, sets
from xvarpro.algorithms import steps
from xvarpro.backends import to_numpy
from xvarpro.core import trees
from xvarpro.core.struct import Struct, Tree
from xvarpro.errors import ProblemError


@dataclass(frozen=True)
class Opaque:
    """What stood in the place of something that a file cannot keep, such as a function.

    Attributes
    ----------
    what : str
        Its representation.
    """

    what: str


def structure(tree: Tree) -> Any:
    """The containers of a tree as JSON, its leaves numbered in optree's order.

    Raises
    ------
    ProblemError
        A container other than dicts with string keys, lists and tuples.

    Examples
    --------
    >>> from xvarpro.results.serialization import structure
    >>> structure({"b": [1.0, 2.0], "a": 0.5})
    {'dict': {'a': 0, 'b': {'list': [1, 2]}}}
    """
    return _structure(tree, iter(range(len(trees.leaves(tree)))))


def _structure(tree: Tree, index: Iterator[int]) -> Any:
    if isinstance(tree, dict):
        return {"dict": {key: _structure(tree[key], index) for key in _keys(tree)}}
    if type(tree) in (list, tuple):
        return {type(tree).__name__: [_structure(x, index) for x in tree]}
    if trees.is_array(tree) or isinstance(tree, float):
        return next(index)
    raise ProblemError(f"Result.save keeps dicts, lists, tuples and arrays; theta holds a {type(tree).__name__}")


def _keys(tree: dict[Any, Any]) -> list[Any]:
    if not all(isinstance(key, str) for key in tree):
        raise ProblemError("Result.save keeps dicts with string keys only")
    return sorted(tree) if type(tree) is dict else list(tree)


def encode(obj: Any, name: str, arrays: dict[str, np.ndarray]) -> Any:
    """Sets, methods, or a tree of them, as JSON; their arrays are added to `arrays`.

    Parameters
    ----------
    obj : Struct, number, str, None, array, or dicts, lists and tuples of them
        What is none of these becomes a note of what it was: `Opaque` when it is read.
    name : str
        With a number appended, the name of each array.
    arrays : dict
        Added to.

    Examples
    --------
    >>> import xvarpro as xv
    >>> from xvarpro.results.serialization import decode, encode
    >>> arrays = {}
    >>> kept = encode({"s": xv.sets.CappedSimplex(2.0)}, "over", arrays)
    >>> kept["dict"]["s"]["struct"]
    'sets.CappedSimplex'
    >>> decode(kept, "over", arrays)
    {'s': CappedSimplex(radius=2.0)}
    """
    if isinstance(obj, Struct):
        fields = {f.name: getattr(obj, f.name) for f in dataclasses.fields(obj) if f.init}  # type: ignore[arg-type]
        return {"struct": _name(type(obj)), "fields": {k: encode(x, name, arrays) for k, x in fields.items()}}
    if isinstance(obj, Mapping) and all(isinstance(key, str) for key in obj):
        return {"dict": {key: encode(x, name, arrays) for key, x in obj.items()}}
    if type(obj) in (list, tuple):
        return {type(obj).__name__: [encode(x, name, arrays) for x in obj]}
    if obj is None or isinstance(obj, bool | np.bool_ | str):
        return {"value": obj.item() if isinstance(obj, np.bool_) else obj}
    if isinstance(obj, Real):
        return {"value": int(obj) if isinstance(obj, Integral) else float(obj)}
    if trees.is_array(obj):
        number = sum(key.startswith(f"{name}_") for key in arrays)
        arrays[f"{name}_{number}"] = to_numpy(obj)
        return number
    return {"opaque": repr(obj)}


def decode(kept: Any, name: str, arrays: Mapping[str, np.ndarray]) -> Any:
    """What `encode` or `structure` was given, with NumPy's arrays, or `Opaque` where a part of it cannot be had back.

    A class is looked for among those that have been imported: what a file names is not run.
    """
    if isinstance(kept, int):
        return arrays[f"{name}_{kept}"]
    if "value" in kept:
        return kept["value"]
    if "opaque" in kept:
        return Opaque(kept["opaque"])
    if "struct" in kept:
        return _built(kept, name, arrays)
    ((kind, children),) = kept.items()
    if kind == "dict":
        return {key: decode(child, name, arrays) for key, child in children.items()}
    built = [decode(child, name, arrays) for child in children]
    return tuple(built) if kind == "tuple" else built


def opaque(tree: Any) -> Opaque | None:
    """The first part of a tree that a file could not keep; None where there is none."""
    found = (x for x in trees.leaves(tree) if isinstance(x, Opaque))
    return next(found, None)


def _built(kept: Any, name: str, arrays: Mapping[str, np.ndarray]) -> Any:
    cls = _classes().get(kept["struct"])
    fields = {key: decode(child, name, arrays) for key, child in kept["fields"].items()}
    lost = opaque(list(fields.values()))
    if cls is None:
        return Opaque(f"{kept['struct']}, a class that has not been imported")
    return Opaque(f"{cls.__name__} with {lost.what}") if lost else cls(**fields)


_EXPORTS = {
    "sets": sets,
    "sets.norms": sets.norms,
    "steps": steps,
    "algorithms": algorithms,
    "lower": lower,
    "operators": operators,
}


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
