"""Control flow for frameworks that run one operation at a time: a Python loop drives the solver's pure functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from xvarpro.backends.interface import Backend, State
from xvarpro.core.struct import Array, Leaves


class EagerBackend(Backend):
    """Loops for NumPy, CuPy, Torch and array-api-strict: one read by the host per iteration, of its record."""

    def while_loop(self, cond: Callable[[State], Array], body: Callable[[State], State], state: State) -> State:
        while bool(cond(state)):
            state = body(state)
        return state

    def when(self, condition: Array, fun: Callable[[State], State], state: State) -> State:
        return fun(state) if bool(condition) else state

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

        def run(operands: Leaves, state: State, n: int) -> tuple[State, list[list[float]]]:
            nonlocal step, last, goes_on
            step = step or make(operands)
            rows: list[list[float]] = []
            if n and state is not last:  # a later call begins where the one before has ended
                goes_on = bool(running(state))
            while goes_on and len(rows) < n:
                last = state = step(state)
                *row, more = self.to_floats((*record(state), running(state)))
                goes_on = bool(more)
                rows.append(row)
            return state, rows

        return run
