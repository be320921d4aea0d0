"""The common base of everything that plugs into a solve, and the names of its types."""

from __future__ import annotations

import dataclasses
from abc import ABC
from collections.abc import Callable
from functools import cache
from itertools import repeat
from typing import Any, ClassVar, Protocol, TypeAlias

import optree

from xvarpro.errors import ProblemError


class Array(Protocol):
    """An array of any framework, as the array API standard describes it: the standard gives it no nominal type."""

    @property
    def dtype(self) -> Any: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def ndim(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def T(self) -> Array: ...
    @property
    def mT(self) -> Array: ...
    def __getitem__(self, key: Any, /) -> Array: ...
    def __neg__(self) -> Array: ...
    def __abs__(self) -> Array: ...
    def __invert__(self) -> Array: ...
    def __len__(self) -> int: ...
    def __bool__(self) -> bool: ...
    def __float__(self) -> float: ...
    def __int__(self) -> int: ...
    def __eq__(self, other: object, /) -> Array: ...  # type: ignore[override]
    def __ne__(self, other: object, /) -> Array: ...  # type: ignore[override]
    def __add__(self, other: Any, /) -> Array: ...
    def __radd__(self, other: Any, /) -> Array: ...
    def __sub__(self, other: Any, /) -> Array: ...
    def __rsub__(self, other: Any, /) -> Array: ...
    def __mul__(self, other: Any, /) -> Array: ...
    def __rmul__(self, other: Any, /) -> Array: ...
    def __truediv__(self, other: Any, /) -> Array: ...
    def __rtruediv__(self, other: Any, /) -> Array: ...
    def __floordiv__(self, other: Any, /) -> Array: ...
    def __mod__(self, other: Any, /) -> Array: ...
    def __pow__(self, other: Any, /) -> Array: ...
    def __rpow__(self, other: Any, /) -> Array: ...
    def __matmul__(self, other: Any, /) -> Array: ...
    def __rmatmul__(self, other: Any, /) -> Array: ...
    def __and__(self, other: Any, /) -> Array: ...
    def __or__(self, other: Any, /) -> Array: ...
    def __xor__(self, other: Any, /) -> Array: ...
    def __lt__(self, other: Any, /) -> Array: ...
    def __le__(self, other: Any, /) -> Array: ...
    def __gt__(self, other: Any, /) -> Array: ...
    def __ge__(self, other: Any, /) -> Array: ...


Tree: TypeAlias = Any  # an array or any nesting of dicts, lists, tuples and named tuples of arrays
Leaves: TypeAlias = tuple[Array, ...]

NAMESPACE = "xvarpro"

# The default of a field that every use has to set: a class that needs arguments could not be found by contract suites.
REQUIRED: Any = None


class Struct(ABC):  # noqa: B024 - what is abstract is its subclasses' to say
    """A frozen dataclass that the package can take apart into arrays and everything else.

    Compiled backends need the arrays of a problem, a set or a rule as arguments and the rest as a hashable key;
    deriving from `Struct` registers the class with optree so that `trees.partition` finds both.

    Attributes
    ----------
    numbers : tuple of str, or None
        Fields whose positive numbers may be arrays of compiled functions too: another number then compiles nothing.
        None keeps those of all that the object holds as they are.
    """

    numbers: ClassVar[tuple[str, ...] | None] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        register: Any = optree.register_pytree_node  # typed for collections, works for any class
        register(cls, _flatten, _unflattener(cls), namespace=NAMESPACE)


@cache
def _names(cls: Any) -> tuple[str, ...]:
    """Of its fields; a class has them only after its registration."""
    if not dataclasses.is_dataclass(cls):
        raise ProblemError(
            f"{cls.__name__} must be a frozen dataclass, which says what its fields are; got a plain class. Write "
            f"@dataclass(frozen=True) in the line above 'class {cls.__name__}'"
        )
    return tuple(field.name for field in dataclasses.fields(cls))


def _flatten(obj: Any) -> tuple[list[Any], None, tuple[str, ...]]:
    cls: Any = type(obj)
    names = _names(cls)
    return list(map(getattr, repeat(obj), names)), None, names


def _unflattener(cls: type) -> Callable[[None, tuple[Any, ...]], Any]:
    def unflatten(_: None, children: tuple[Any, ...]) -> Any:
        # __init__ validates what a user typed; the children here may be tracers or placeholders
        obj: Any = object.__new__(cls)
        for name, child in zip(_names(cls), children, strict=True):
            object.__setattr__(obj, name, child)
        return obj

    return unflatten
