"""How a table entry becomes a method of the tape.

Functions of one or two arrays without options are most of what a model calls, and have methods of their own: through
that of all other functions a small solve takes a sixth longer.

A method evaluates the function on the values, appends a node if a gradient may come back, and wraps the result.
A node is `(rules, parents, y, operands, options, extra, results)`. Either `rules` has one rule for each parent, and
``rule(xp, g, y, *operands, **options)`` is its gradient, which `extra` says the shape and dtype of where the result has
others; or it is a single one for all of them, whose operands `extra` counts. Only what the rules
read is in it, so intermediate arrays that no rule reads die at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from xvarpro.backends.tape.engine import Tape, TracedArray, public_name, several
from xvarpro.backends.tape.errors import NoRuleError
from xvarpro.backends.tape.rules.table import Composite, Like, Primitive, reads_of
from xvarpro.core.struct import Array

Method = Callable[..., Any]
NONE: dict[str, Any] = {}


def unary_method(name: str, derivative: Callable[..., Array]) -> Method:
    """Make the method of a function of one array."""
    reads_y, reads_x = reads_of(derivative)[2:4]
    rules, likes = (derivative,), (None,)

    def method(self: Tape, x: Any, /) -> TracedArray:
        if type(x) is not TracedArray or x.tape is not self:
            x = self._lift(x)
        value = x.value
        y = getattr(self.below, name)(value)
        if x.index is None:
            return TracedArray(y, self, None)
        nodes = self.nodes
        kept = (value if reads_x else None,)
        nodes.append((rules, (x.index,), y if reads_y else None, kept, NONE, likes, 1))
        return TracedArray(y, self, len(nodes) - 1)

    return method


def binary_method(name: str, left: Callable[..., Array], right: Callable[..., Array] | None) -> Method:
    """Make the method of a function of two arrays that broadcast.

    It records the rules of the operands that need a gradient.
    """
    left_y, left_a, left_b = _reads(left)
    right_y, right_a, right_b = _reads(right)
    both_y, both_a, both_b = left_y or right_y, left_a or right_a, left_b or right_b
    of_left, of_right, of_both = (left,), (right,), (left, right)

    def method(self: Tape, a: Any, b: Any, /) -> TracedArray:
        i = j = None
        if type(a) is TracedArray and a.tape is self:
            a, i = a.value, a.index
        elif type(a) is TracedArray or not hasattr(a, "dtype"):
            a = self._operand(a)
        if type(b) is TracedArray and b.tape is self:
            b, j = b.value, b.index
        elif type(b) is TracedArray or not hasattr(b, "dtype"):
            b = self._operand(b)
        y = getattr(self.below, name)(a, b)
        if j is None or right is None:
            if i is None:
                return TracedArray(y, self, None)
            kept = (a if left_a else None, b if left_b else None)
            node: tuple[Any, ...] = (of_left, (i,), y if left_y else None, kept, NONE, (_like(a, y),), 1)
        elif i is None:
            kept = (a if right_a else None, b if right_b else None)
            node = (of_right, (j,), y if right_y else None, kept, NONE, (_like(b, y),), 1)
        else:
            kept = (a if both_a else None, b if both_b else None)
            likes = (_like(a, y), _like(b, y))
            node = (of_both, (i, j), y if both_y else None, kept, NONE, likes, 1)
        nodes = self.nodes
        nodes.append(node)
        return TracedArray(y, self, len(nodes) - 1)

    return method


def _like(x: Array, y: Array) -> Like | None:
    return None if x.shape == y.shape and x.dtype == y.dtype else Like(x.shape, x.dtype)


def _reads(derivative: Callable[..., Array] | None) -> tuple[bool, ...]:
    return (False, False, False) if derivative is None else tuple(reads_of(derivative)[2:5])


def primitive_method(name: str, entry: Primitive) -> Method:
    """Make the method of a function whose rule has the function's own signature."""
    rule, operands, keeps_result, keeps, keeps_rest = entry
    rules = (rule,) if operands == 1 else rule

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
        for i, x in enumerate(values):
            if not (keeps[i] if i < len(keeps) else keeps_rest) and hasattr(x, "dtype"):
                values[i] = Like(x.shape, x.dtype)
        nodes, results = self.nodes, len(y) if isinstance(y, (tuple, list)) else 0
        extra = (None,) if operands == 1 else need
        # each result has a place for its gradient; on the way back the last is reached first, and then all are known
        first = len(nodes)
        nodes.extend([None] * (results - 1))
        kept = (*values, *rest)
        nodes.append((rules, parents, y if keeps_result else None, kept, options, extra, results or 1))
        if not results:
            return TracedArray(y, self, first)
        return several(y, [TracedArray(v, self, first + i) for i, v in enumerate(y)])

    return method


def composite_method(entry: Composite) -> Method:
    """Make the method of a function written with others; its arrays are lifted, so that operators are ours."""
    definition, operands = entry
    if operands == 0:
        return definition

    def method(self: Tape, *args: Any, **options: Any) -> Any:
        return definition(self, *map(self._lift, args[:operands]), *args[operands:], **options)

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
        if any(isinstance(x, TracedArray) for x in (*args, *options.values())):
            raise NoRuleError(public_name(name), "of a traced array")
        return self._constant(getattr(self.below, name)(*args, **options))

    return method


def plain_method(name: str) -> Method:
    """Make the method of a question about dtypes or shapes: the answer is no array."""

    def method(self: Tape, *args: Any, **options: Any) -> Any:
        return getattr(self.below, name)(*(self._value(x) for x in args), **options)

    return method
