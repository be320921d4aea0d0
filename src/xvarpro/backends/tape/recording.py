"""How a table entry becomes a method of the tape.

A method evaluates the function on the values, appends a node if a gradient may come back, and wraps the result.
A node is `(pull, parents, y, operands, extra, results)`: `pull(xp, g, y, operands, extra)` gives one gradient for
each parent. Only what the rule reads is in it, so intermediate arrays that no rule reads die at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from xvarpro.backends.tape.array import TracedArray
from xvarpro.backends.tape.engine import Tape
from xvarpro.backends.tape.errors import NoRuleError
from xvarpro.backends.tape.rules.table import Composite, Like, Namespace, Primitive
from xvarpro.core.struct import Array

Method = Callable[..., Any]


def primitive_method(name: str, entry: Primitive) -> Method:
    """Make the method of a function that has a rule."""
    rule, operands, reads = entry

    def pull_one(xp: Namespace, g: Any, y: Any, kept: tuple[Array], extra: Any) -> tuple[Array]:
        rest, options, _ = extra
        return (rule(xp, g, y, kept[0], *rest, **options),)

    def pull_several(xp: Namespace, g: Any, y: Any, kept: tuple[Array, ...], extra: Any) -> list[Array]:
        rest, options, need = extra
        return rule(xp, need, g, y, *kept, *rest, **options)

    pull = pull_one if operands == 1 else pull_several
    pull.__name__ = name

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
        return self._record(pull, parents, y, y if reads_result else None, tuple(values), (rest, options, need))

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
            raise NoRuleError(name.replace("_", ".", 1) if name.startswith("fft_") else name, "of a traced array")
        return self._constant(getattr(self.below, name)(*args, **options))

    return method


def plain_method(name: str) -> Method:
    """Make the method of a question about dtypes or shapes: the answer is no array."""

    def method(self: Tape, *args: Any, **options: Any) -> Any:
        return getattr(self.below, name)(*(self._value(x) for x in args), **options)

    return method
