"""The traced array: what a model function sees in the place of an array while its derivative is recorded."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from xvarpro.core.namespace import TRACED, device

_KEEP = "keep it an array and use functions of its namespace"


class TracedArray:
    """A value, the tape it is recorded on and its place there (None: a constant, no gradient reaches it)."""

    __slots__ = ("__weakref__", "dtype", "index", "shape", "tape", "value")

    # NumPy's and CuPy's own operators then return NotImplemented, and the reflected ones below run
    __array_ufunc__ = None
    __array_priority__ = 1000

    def __init__(self, value: Any, tape: Any, index: int | None) -> None:
        self.value = value
        self.tape = tape
        self.index = index
        self.shape = value.shape
        self.dtype = value.dtype

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        return self.tape

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of entries."""
        # Torch, where the tape is tested too, has a method of this name
        return math.prod(self.shape)

    @property
    def device(self) -> Any:
        """Where the value lives."""
        return device(self.value)

    @property
    def mT(self) -> TracedArray:
        """Transpose of the last two axes."""
        return self.tape.matrix_transpose(self)

    @property
    def T(self) -> TracedArray:
        """Transpose of a matrix."""
        if self.ndim != 2:
            raise ValueError(f"x.T needs two axes, got shape {self.shape}: use x.mT or xp.permute_dims")
        return self.tape.matrix_transpose(self)

    def __getitem__(self, key: Any) -> TracedArray:
        return self.tape._getitem(self, key)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of an array without axes")
        return self.shape[0]

    def __iter__(self) -> Iterator[TracedArray]:
        return iter(self.tape.unstack(self, axis=0))

    def __repr__(self) -> str:
        kind = "constant" if self.index is None else "traced"
        return f"TracedArray({self.value!r}, {kind})"

    def __setitem__(self, key: Any, value: Any) -> NoReturn:
        raise TypeError("a traced array cannot be assigned to: build the result with xp.where, xp.concat or xp.stack")

    def __array__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError(
            "a traced array cannot become a NumPy array, its gradient would be cut: call functions of "
            "xp = x.__array_namespace__() instead of numpy's"
        )

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"arrays of the array API standard have no attribute {name!r}: if it is a method, call the function "
            f"xp.{name}(x) of xp = xv.array_namespace(x)"
        )


TRACED.add(TracedArray)


def _refusal(what: str, remedy: str) -> Callable[[TracedArray], NoReturn]:
    def refuse(self: TracedArray) -> NoReturn:
        raise TypeError(f"{what} of a traced array would cut its gradient and is not portable: {remedy}")

    return refuse


for _name, _remedy in {
    "bool": "choose between array values with xp.where; branch in Python on shapes and options only",
    "float": _KEEP,
    "int": _KEEP,
    "complex": _KEEP,
    "index": "index with the array itself (x[i]) or with xp.take",
}.items():
    setattr(TracedArray, f"__{_name}__", _refusal(f"{_name}()", _remedy))


def _unary(function: str) -> Callable[[TracedArray], Any]:
    return lambda self: getattr(self.tape, function)(self)


def _binary(function: str) -> Callable[[TracedArray, Any], Any]:
    def operator(self: TracedArray, other: Any) -> Any:
        tape = self.tape
        if type(other) is TracedArray and other.tape is not tape:
            # a constant may be of a trace that has ended
            tape = max((other, self), key=lambda x: (x.tape.level, x.index is not None)).tape
        return getattr(tape, function)(self, other)

    return operator


def _reflected(function: str) -> Callable[[TracedArray, Any], Any]:
    return lambda self, other: getattr(self.tape, function)(other, self)


for _symbol, _function in {"neg": "negative", "pos": "positive", "abs": "abs", "invert": "bitwise_invert"}.items():
    setattr(TracedArray, f"__{_symbol}__", _unary(_function))

for _symbol, _function in {
    "add": "add",
    "sub": "subtract",
    "mul": "multiply",
    "truediv": "divide",
    "floordiv": "floor_divide",
    "mod": "remainder",
    "pow": "pow",
    "matmul": "matmul",
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
    "lshift": "bitwise_left_shift",
    "rshift": "bitwise_right_shift",
}.items():
    setattr(TracedArray, f"__{_symbol}__", _binary(_function))
    setattr(TracedArray, f"__r{_symbol}__", _reflected(_function))

for _symbol, _function in {
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
    "eq": "equal",
    "ne": "not_equal",
}.items():
    setattr(TracedArray, f"__{_symbol}__", _binary(_function))
