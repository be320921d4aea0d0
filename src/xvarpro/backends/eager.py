"""Control flow for frameworks that run one operation at a time: a Python loop drives the solver's pure functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from xvarpro.backends.interface import Backend, State
from xvarpro.core.struct import Array, Leaves
from xvarpro.core.trees import leaves


class EagerBackend(Backend):
    """Loops for NumPy, CuPy, Torch and array-api-strict: one read an iteration, of its record and of 0-d booleans."""

    # conditions of the last state, which the next iteration asks for; replaced, not written to: threads share it
    _read: Mapping[int, tuple[Array, bool]] = {}

    def holds(self, condition: Array) -> bool:
        found, answer = self._read.get(id(condition), (None, False))
        return answer if found is condition else bool(condition)

    def while_loop(self, cond: Callable[[State], Array], body: Callable[[State], State], state: State) -> State:
        while bool(cond(state)):
            state = body(state)
        return state

    def when(self, condition: Array, fun: Callable[[State], State], state: State) -> State:
        return fun(state) if (self.holds(condition) if self._read else bool(condition)) else state

    def call(self, make: Callable[[Leaves], Callable[..., Any]], key: object, once: bool = False) -> Callable[..., Any]:
        return lambda operands, *args: make(operands)(*args)

    def loop(
        self,
        make: Callable[[Leaves], Callable[[State], State]],
        record: Callable[[State], Leaves],
        running: Callable[[State], Array],
        key: object,
    ) -> Callable[[Leaves, State, int], tuple[State, list[list[float]]]]:
        step, last, goes_on = None, None, True
        size, conditions = 0, [0]  # of a state: its arrays, and the places of its conditions

        def run(operands: Leaves, state: State, n: int) -> tuple[State, list[list[float]]]:
            nonlocal step, last, goes_on, size, conditions
            step = step or make(operands)
            rows: list[list[float]] = []
            if n and state is not last:  # a later call begins where the one before has ended
                goes_on = bool(running(state))
            while goes_on and len(rows) < n:
                last = state = step(state)
                parts = leaves(state)
                if len(parts) != size:
                    size, kind = len(parts), self.xp.bool
                    conditions = [i for i, x in enumerate(parts) if getattr(x, "dtype", None) == kind and not x.ndim]
                asked = list(map(parts.__getitem__, conditions))
                more, *found = self.to_floats((running(state), *asked, *record(state)))
                self._read = dict(zip(map(id, asked), zip(asked, map(bool, found), strict=False), strict=False))
                goes_on = bool(more)
                rows.append(found[len(asked) :])
            return state, rows

        return run
