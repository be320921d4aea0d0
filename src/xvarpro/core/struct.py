"""The common base of everything that plugs into a solve, and the names of its types."""

from __future__ import annotations

import dataclasses
from abc import ABC
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import optree

Array: TypeAlias = Any  # an array of any framework; the array API standard gives it no nominal type
Tree: TypeAlias = Any  # an array or any nesting of dicts, lists, tuples and named tuples of arrays
Leaves: TypeAlias = tuple[Array, ...]

NAMESPACE = "xvarpro"


class Struct(ABC):  # noqa: B024 - what is abstract is its subclasses' to say
    """A frozen dataclass that the package can take apart into arrays and everything else.

    Compiled backends need the arrays of a problem, a set or a rule as arguments and the rest as a hashable key;
    deriving from `Struct` registers the class with optree so that `trees.partition` finds both.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        register: Any = optree.register_pytree_node  # typed for collections, works for any class
        register(cls, _flatten, _unflattener(cls), namespace=NAMESPACE)


def _flatten(obj: Any) -> tuple[tuple[Any, ...], None, tuple[str, ...]]:
    names = tuple(field.name for field in dataclasses.fields(obj))
    return tuple(getattr(obj, name) for name in names), None, names


def _unflattener(cls: type) -> Callable[[None, tuple[Any, ...]], Any]:
    def unflatten(_: None, children: tuple[Any, ...]) -> Any:
        # __init__ validates what a user typed; the children here may be tracers or placeholders
        obj: Any = object.__new__(cls)
        for field, child in zip(dataclasses.fields(cls), children, strict=True):
            object.__setattr__(obj, field.name, child)
        return obj

    return unflatten


class SupportsArrays(Protocol):
    """Anything with a shape and a dtype."""

    shape: tuple[int, ...]
    dtype: Any
