"""Loops and branches, one by one and compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from xvarpro.backends import Backend, adapters
from xvarpro.core.namespace import dtype_name
from xvarpro.core.struct import Array, Leaves
from xvarpro.core.trees import array_namespace
from xvarpro_conformance.suite import Measured, Target, check


def compiled_or_not(target: Target, fun: Callable[..., Any], *args: Any) -> dict[str, Any]:
    """What a function gives compiled, as in a solve, and by itself, as in a call of a set's projection."""
    with target.scope():
        there = [target.send_tree(x) for x in args]
        alone = fun(*there)
        return {
            "compiled": target.compute(fun, *args),
            "by itself": tuple(target.host(x) for x in alone) if isinstance(alone, tuple) else target.host(alone),
        }


@cache
def countdown(backend: Backend) -> Callable[..., Any]:
    """Half of every column, as often as its own count says, plus a term of its own."""

    def fun(x: Array, counts: Array, terms: Array) -> tuple[Array, Array]:
        def running(state: Leaves) -> Array:
            return state[1] > 0

        def advance(state: Leaves, given: Leaves) -> Leaves:
            xp, (x, left), on = array_namespace(state[0]), state, running(state)
            return xp.where(on, 0.5 * x + given[0], x), left - xp.astype(on, left.dtype)

        return adapters.column_loop(backend, running, advance, (x, counts), (terms,))

    return fun


# how many columns take how many steps: those that are left more than halve again and again
WAVES = {"no columns": (), "one": (3,), "none runs": (0, 0), "three waves": (1,) * 40 + (2,) * 15 + (5,) * 4 + (9, 0)}


@check("control flow", lambda: WAVES)
def columns_in_waves(target: Target, counts: tuple[int, ...]) -> Iterator[Measured]:
    """Columns that end in several waves each keep their place, state and what they are given, which stays as it is."""
    k = len(counts)
    order = np.random.default_rng(0).permutation(k)
    steps = np.array(counts, np.int32)[order]
    x, terms = np.arange(2.0 * k).reshape(2, k) * 512, np.arange(1.0, k + 1)[None, :] * 512
    want = x.copy()
    for i in range(k):
        for _ in range(steps[i]):
            want[:, i] = 0.5 * want[:, i] + terms[0, i]
    x[:, :1] = want[:, :1] = np.nan
    for how, (found, left) in compiled_or_not(target, countdown(target.backend), x, steps, terms).items():
        yield Measured(f"columns, {how}", found, want, target.eps)
        yield Measured(f"steps left, {how}", left, np.zeros(k, np.int32))
    with target.scope():
        given = target.send(x)
        countdown(target.backend)(given, target.send(steps), target.send(terms))
        yield Measured("what was given", target.host(given), target.held(x))


@check("control flow")
def calls(target: Target, case: None) -> Iterator[Measured]:
    """A program is kept under its key, serves other operands, and may be part of one that the caller compiles."""
    backend = target.backend
    inner, traces = getattr(backend, "embedded", lambda: backend)(), []

    def make(operands: tuple[Array, ...]) -> Callable[..., Array]:
        traces.append(1)
        return lambda x: x * operands[0] + operands[1]

    with target.scope():
        key = object()
        found = []
        for factor in (2.0, 3.0):
            operands = tuple(target.send(np.array(v)) for v in (factor, 1.0))
            found.append(target.host(backend.call(make, key)(operands, target.send(np.array([1.0, 2.0])))))
        again = len(traces)
        other = backend.call(lambda operands: lambda x: x - operands[0], object())
        found.append(target.host(other((target.send(np.array(2.0)),), target.send(np.array([1.0, 2.0])))))
        whole = backend.call(lambda operands: lambda x: inner.call(make, make, once=True)(operands, x) + x, object())
        found.append(target.host(whole(operands, target.send(np.array([1.0, 2.0])))))
    yield Measured("values", np.stack(found), np.array([[3.0, 5.0], [4.0, 7.0], [-1.0, 0.0], [5.0, 9.0]]))
    yield Measured("programs made for one key", again, 1 if backend.compiled else 2)


class Iterate(NamedTuple):
    """What a loop's state holds, of which backends take the dtype of the record."""

    value: Array
    steps: Array


class State(NamedTuple):
    """The state of a loop."""

    iterate: Iterate


def record(state: State) -> tuple[Array, ...]:
    """A row of the value and of an integer."""
    return state.iterate.value, state.iterate.steps


def count(operands: tuple[Array, ...]) -> Callable[[State], State]:
    """One more step, and a value that says how many."""
    (unit,) = operands

    def step(state: State) -> State:
        value, steps = state.iterate
        return State(Iterate(value + unit, steps + 1))

    return step


def below(state: State) -> Array:
    """Fewer than 2,500 steps."""
    return state.iterate.steps < 2500


LOOPS = {"two chunks": 1025, "no steps": 0, "cut off": 5, "a chunk": 1024, "to its end": 4000}


@check("control flow", lambda: LOOPS)
def loops(target: Target, n: int) -> Iterator[Measured]:
    """A loop, called until it has taken n steps, has a row for each, in order, and goes on from where it ended."""
    backend = target.backend
    rows: list[list[float]] = []
    with target.scope():
        run = backend.loop(count, record, below, (count, "conformance"))
        state = State(Iterate(target.send(np.array(0.0)), target.send(np.array(0, np.int32))))
        operands = (target.send(np.array(0.5)),)
        while True:
            state, more = run(operands, state, n - len(rows))
            rows += more
            if not more or len(rows) == n:
                break
        value, steps = target.host(state.iterate.value), int(target.host(state.iterate.steps))
        kind = dtype_name(state.iterate.value)
        after = run(operands, state, 3)[1]
    taken, last = min(n, 2500), min(n + 3, 2500)
    want = np.array([[0.5 * i, float(i)] for i in range(1, last + 1)])
    yield Measured("rows", np.array(rows).reshape(-1, 2), want[:taken])
    yield Measured("value", value, np.array(0.5 * taken))
    yield Measured("steps", steps, taken)
    yield Measured("dtype", kind, target.dtype)
    yield Measured(
        "rows afterwards", np.array(after).reshape(-1, 2), want[taken:] if taken < 2500 else np.zeros((0, 2))
    )


@cache
def nested(backend: Backend) -> Callable[..., Any]:
    """The sum of (i + 1)(j + 1) over j < i < n, j not 1, and how many there are: a loop in a loop, with a branch."""

    def fun(unit: Array, n: Array) -> Leaves:
        zero = array_namespace(n).zeros_like(n)

        def outer(state: Leaves) -> Leaves:
            i, total, count = state

            def inner(state: Leaves) -> Leaves:
                j, *sums = state
                term = unit * array_namespace(unit).astype((i + 1) * (j + 1), unit.dtype)
                return j + 1, *backend.when(j != 1, lambda s: (s[0] + term, s[1] + 1), tuple(sums))

            return i + 1, *backend.while_loop(lambda s: s[0] < i, inner, (zero, total, count))[1:]

        return backend.while_loop(lambda s: s[0] < n, outer, (zero, 0.0 * unit, zero))[1:]

    return fun


GIVEN = np.array(1.0), np.array(6, np.int32)


@check("control flow", lambda: {"in loops": GIVEN, "not at all": (GIVEN[0], 0 * GIVEN[1])})
def while_loops(target: Target, given: tuple[np.ndarray, ...]) -> Iterator[Measured]:
    """Loops take no step too many and nest, with branches and variables of the scopes around them, on mixed states."""
    pairs = [(i + 1) * (j + 1) for i in range(int(given[1])) for j in range(i) if j != 1]
    for how, (total, count) in compiled_or_not(target, nested(target.backend), *given).items():
        yield Measured(f"sum, {how}", total, np.array(float(sum(pairs))))
        yield Measured(f"steps, {how}", int(count), len(pairs))
