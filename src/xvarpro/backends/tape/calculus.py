"""`vjp`: a function is run on traced arrays, and its pull-back is read from the tape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

from xvarpro.backends.tape import namespace  # noqa: F401  (importing it gives the tape its functions)
from xvarpro.backends.tape.array import TracedArray
from xvarpro.backends.tape.engine import Tape, ground
from xvarpro.backends.tape.rules.table import Namespace
from xvarpro.core.struct import Array

_value, _place, _form = attrgetter("value"), attrgetter("index"), attrgetter("shape", "dtype")


def vjp(
    fun: Callable[..., Any],
    primals: Sequence[Any],
    constants: Sequence[Any] = (),
    *,
    xp: Namespace,
    index_add: Callable[..., Array],
) -> tuple[Any, Pullback]:
    """Evaluate ``fun(*primals, *constants)``, which uses ``xp = primals[0].__array_namespace__()``, and record it.

    The outputs are one array, a tuple or a list of arrays, as `fun` returned them, and the pull-back maps cotangents
    in that structure to one gradient for each primal, as `Backend.vjp`. It may be called again. Gradients may share
    memory with each other and with the cotangents: do not write to them.

    Constants become arrays of the same namespace as the primals, so that the function never mixes two; what is not an
    array is handed over as it is. `xp` is the raw namespace; inside another `vjp`, that of its traced arrays is taken.
    ``index_add(x, key, v)`` is `x`, which must not be changed, with `v` added at a one-dimensional integer key of the
    first axis, where repeated indices accumulate.

    Raises
    ------
    NoRuleError
        If `fun` uses a function that the tape cannot differentiate; the message names it.
    TypeError, ValueError
        If `fun` leaves the traced namespace, or cotangents do not fit the outputs.
    """
    below: Any = xp if isinstance(xp, Tape) else ground(xp, index_add)
    for x in (*primals, *constants):
        if type(x) is TracedArray and x.tape.level > below.level:
            below = x.tape
    tape = Tape(below)
    leaves = list(map(tape._input, primals))
    held = [tape._lift(c) if hasattr(c, "dtype") else c for c in constants]
    returned = fun(*leaves, *held)
    single = not isinstance(returned, (tuple, list))
    outputs = list(map(tape._lift, (returned,) if single else returned))
    values = list(map(_value, outputs))
    found = values[0] if single else values if isinstance(returned, list) else tuple(values)
    return found, Pullback(tape, outputs, list(map(_value, leaves)), single)


class Pullback:
    """The map from cotangents of the outputs that a tape has recorded to gradients of the primals."""

    def __init__(self, tape: Tape, outputs: list[TracedArray], primals: Sequence[Array], single: bool = False) -> None:
        # places, shapes and dtypes only: holding the outputs would keep their arrays as long as the pull-back
        self._places, self._forms = list(map(_place, outputs)), list(map(_form, outputs))
        self._tape, self._primals, self._single = tape, primals, single

    def __call__(self, cotangents: Any) -> tuple[Array, ...]:
        cotangents = (cotangents,) if self._single else tuple(cotangents)
        xp, n = self._tape.below, len(self._forms)
        if len(cotangents) != n:
            raise ValueError(f"one cotangent for each output: {n} outputs, got {len(cotangents)}")
        for g, (shape, dtype) in zip(cotangents, self._forms, strict=True):
            if not hasattr(g, "dtype"):
                raise TypeError(f"a cotangent must be an array, got {type(g).__name__}: use xp.ones_like(output)")
            if g.shape != shape:
                raise ValueError(f"a cotangent must have the shape of its output, {tuple(shape)}, got {tuple(g.shape)}")
            if g.dtype != dtype:
                raise TypeError(f"a cotangent must have the dtype of its output, {dtype}, got {g.dtype}")
            if type(g) is TracedArray and g.tape.level > xp.level:
                xp = g.tape
        return tuple(self._tape._pull(zip(self._places, cotangents, strict=True), xp, self._primals))

    def transposed(self, outputs: Sequence[Array]) -> Pullback:
        """The map from tangents of the primals to those of the outputs, which are given.

        A pull-back is linear: it does not matter where it is recorded.
        """
        tape = Tape(self._tape.below)
        cotangents: Any = list(map(tape._input, outputs))
        moved = self._tape._pull(zip(self._places, cotangents, strict=True), tape, self._primals)
        return Pullback(tape, list(map(tape._lift, moved)), outputs)
