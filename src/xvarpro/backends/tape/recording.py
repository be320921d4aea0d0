"""How a table entry becomes a method of the tape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from xvarpro.backends.tape.array import TracedArray
from xvarpro.backends.tape.engine import Node, Tape, public_name
from xvarpro.backends.tape.errors import NoRuleError
from xvarpro.backends.tape.rules.table import Composite, Like, Primitive

Method = Callable[..., Any]


def primitive_method(name: str, entry: Primitive) -> Method:
    """Make the method of a function that has a rule."""
    rule, operands, reads = entry

    def method(self: Tape, *args: Any, **options: Any) -> Any:
        count = len(args) if operands is None else operands
        values: list[Any] = []
        need, parents = [], []
        for i, x in enumerate(args[:count]):
            if type(x) is TracedArray and x.tape is self:
                values.append(x.value)
                if x.index is not None:
                    need.append(i)
                    parents.append(x.index)
            else:
                values.append(self._operand(x))
        rest = args[count:]
        y = getattr(self.below, name)(*values, *rest, **options)
        if not parents:
            return self._constant(y)
        reads_result, *reads_operand = reads(tuple(need))
        for i, x in enumerate(values):
            if not reads_operand[min(i, len(reads_operand) - 1)] and hasattr(x, "dtype"):
                values[i] = Like(x)

        def pull(xp: Any, g: Any, y: Any, kept: tuple[Any, ...]) -> Any:
            if operands == 1:
                return (rule(xp, g, y, *kept, *rest, **options),)
            return rule(xp, need, g, y, *kept, *rest, **options)

        results = len(y) if isinstance(y, (tuple, list)) else None
        return self._record(Node(name, pull, parents, y if reads_result else None, tuple(values), results), y)

    return method


def composite_method(entry: Composite) -> Method:
    """Make the method of a function written with others; its arrays are lifted, so that operators are ours."""
    definition, operands = entry
    if operands == 0:
        return definition

    def method(self: Tape, *args: Any, **options: Any) -> Any:
        return definition(self, *(self._lift(x) for x in args[:operands]), *args[operands:], **options)

    return method


def constant_method(name: str) -> Method:
    """Make the method of a function that is constant between its steps: evaluated on values, never recorded."""

    def method(self: Tape, *args: Any, **options: Any) -> Any:
        args = tuple(self._value(x) for x in args)
        options = {k: self._value(x) for k, x in options.items()}
        return self._constant(getattr(self.below, name)(*args, **options))

    return method


def creation_method(name: str) -> Method:
    """Make the method of a function that makes arrays from numbers."""

    def method(self: Tape, *args: Any, **options: Any) -> TracedArray:
        if any(type(x) is TracedArray for x in (*args, *options.values())):
            raise NoRuleError(public_name(name), "of a traced array")
        return self._constant(getattr(self.below, name)(*args, **options))

    return method


def plain_method(name: str) -> Method:
    """Make the method of a question about dtypes or shapes: the answer is no array."""

    def method(self: Tape, *args: Any, **options: Any) -> Any:
        return getattr(self.below, name)(*(self._value(x) for x in args), **options)

    return method
