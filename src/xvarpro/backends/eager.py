"""Frameworks that run one operation at a time: control flow, derivatives by the tape, factorisations without errors."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from itertools import takewhile
from typing import Any, TypeVar

from xvarpro.backends import tape
from xvarpro.backends.interface import Backend, Function, Linear, State, linalg_errors, one_by_one
from xvarpro.core.namespace import adjoint, device, is_host, namespace_of
from xvarpro.core.struct import Array, Leaves
from xvarpro.core.trees import leaves, map_leaves


class Guesses:
    """Answers to the steady conditions of a step: those of earlier steps, whose truth is read with its record.

    So a device is not waited for. Where a guess was wrong, the step is made again.
    """

    def __init__(self, before: list[bool], of: type[Backend]) -> None:
        self.before, self.answers, self.asked = before, list[bool](), list[Array]()
        self.of = of  # which backend asks: others answer at once

    def holds(self, condition: Array) -> bool:
        n = len(self.answers)
        if n < len(self.before):
            self.asked.append(condition)
        self.answers.append(self.before[n] if n < len(self.before) else bool(condition))
        return self.answers[n]

    def after(self, earlier: list[bool]) -> list[bool]:
        """What the next step guesses: that upon which this one and an earlier one agree."""
        both = zip(earlier, self.answers, strict=False)
        return [was for was, _ in takewhile(lambda pair: pair[0] == pair[1], both)]


_guesses: ContextVar[Guesses | None] = ContextVar("_guesses", default=None)


class EagerBackend(Backend):
    """Loops for NumPy, CuPy, Torch and array-api-strict: one read an iteration, of its record and of 0-d booleans."""

    # conditions of the last state, which the next iteration asks for; replaced, not written to: threads share it
    _read: Mapping[int, tuple[Array, bool]] = {}

    def holds(self, condition: Array, steady: bool = False) -> bool:
        if steady and (guesses := _guesses.get()) and guesses.of is type(self):
            return guesses.holds(condition)
        found, answer = self._read.get(id(condition), (None, False))
        return answer if found is condition else bool(condition)

    def while_loop(
        self, cond: Callable[[State], Array], body: Callable[[State], State], state: State, steady: bool = False
    ) -> State:
        while self.holds(cond(state), True) if steady and _guesses.get() else bool(cond(state)):
            state = body(state)
        return state

    def when(self, condition: Array, fun: Callable[[State], State], state: State, steady: bool = False) -> State:
        waits = self._read or (steady and _guesses.get())
        return fun(state) if (self.holds(condition, steady) if waits else bool(condition)) else state

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
        before, earlier = list[bool](), list[bool]()  # what is guessed, and the answers of the last step

        def run(operands: Leaves, state: State, n: int) -> tuple[State, list[list[float]]]:
            nonlocal step, last, goes_on, size, conditions, before, earlier
            step = step or make(operands)
            rows: list[list[float]] = []
            if n and state is not last:  # a later call begins where the one before has ended
                goes_on = bool(running(state))
            waits = n and not is_host(device(leaves(state)[0]))
            while goes_on and len(rows) < n:
                guesses = Guesses(before, type(self)) if waits else None
                token = _guesses.set(guesses)
                try:
                    last = step(state)
                finally:
                    _guesses.reset(token)
                parts = leaves(last)
                if len(parts) != size:
                    size, kind = len(parts), self.xp.bool
                    conditions = [i for i, x in enumerate(parts) if getattr(x, "ndim", 1) == 0 and x.dtype == kind]
                asked = list(map(parts.__getitem__, conditions))
                guessed = guesses.asked if guesses else []
                read = self.to_floats((*guessed, running(last), *asked, *record(last)))
                if guesses:
                    if read[: len(guessed)] != before[: len(guessed)]:
                        before = []
                        continue
                    before, earlier = guesses.after(earlier), guesses.answers
                state, (more, *found) = last, read[len(guessed) :]
                self._read = dict(zip(map(id, asked), zip(asked, map(bool, found), strict=False), strict=False))
                goes_on = bool(more)
                rows.append(found[len(asked) :])
            return state, rows

        return run


class TapedBackend(EagerBackend):
    """Base of the backends whose framework has no derivatives, as NumPy, CuPy and array-api-strict."""

    @abstractmethod
    def index_add(self, x: Array, key: Any, v: Array) -> Array:
        """A new array: `x` with `v` added at an integer-array key, where repeated indices accumulate."""

    @abstractmethod
    def householder_qr(self, A: Array, mode: str = "reduced") -> tuple[Array, Array]:
        """The framework's own QR factorisation, as `qr`."""

    def vjp(self, fun: Function, primals: Leaves, constants: Leaves = ()) -> tuple[Leaves, Linear]:
        return tape.vjp(fun, primals, constants, xp=self.xp, index_add=self.index_add)

    def linearise(self, fun: Function, primals: Leaves, constants: Leaves = ()) -> tuple[Leaves, Linear]:
        outputs, pullback = tape.vjp(fun, primals, constants, xp=self.xp, index_add=self.index_add)
        return outputs, pullback.transposed(outputs)

    def vmap(self, fun: Function, mapped: Leaves, shared: tuple[Any, ...] = ()) -> Leaves:
        return batched(tape.ground(self.xp, self.index_add), fun, mapped, shared)

    def sparse_product(self, rows: Array, columns: Array, data: Array, shape: tuple[int, int], w: Array) -> Array:
        xp = self.xp
        terms = xp.expand_dims(data, axis=1) * xp.take(w, columns, axis=0)
        zeros = xp.zeros((shape[0], w.shape[1]), dtype=terms.dtype, device=device(w))
        return self.index_add(zeros, rows, terms)

    def qr(self, A: Array, mode: str = "reduced") -> tuple[Array, Array]:
        return (cholesky_qr(self, A) if mode != "r" else None) or self.householder_qr(A, mode)


def batched(below: Any, fun: Function, mapped: Leaves, shared: tuple[Any, ...]) -> Leaves:
    """`Backend.vmap` over a namespace that is raw, `tape.ground`, or a tape; a loop where a function has no rule."""
    from xvarpro.backends.tape.batching import vmap  # few programs use it

    try:
        return vmap(below, fun, mapped, shared)
    except tape.NoBatchError as error:
        reason = str(error)
    return one_by_one(fun, mapped, shared, reason)


# where Cholesky QR is the faster one: columns at least, rows per column, and entries
NARROW, ASPECT, ENTRIES = 8, 4, 2**14
T = TypeVar("T", bound=Any)  # an array of one framework


def each_matrix(fun: Callable[..., Any], fail: Callable[..., Any], *stacks: T) -> Any:
    """``fun(*stacks)`` of stacks of matrices; where that raises, one by one, with ``fail`` for those that raise.

    Both return an array, or a tuple of arrays.
    """
    try:
        return fun(*stacks)
    except linalg_errors():
        if stacks[0].ndim == 2:
            return fail(*stacks)
    xp, lead = namespace_of(*stacks), stacks[0].shape[:-2]
    flat = [xp.reshape(x, (-1, *x.shape[-2:])) for x in stacks]
    found = [each_matrix(fun, fail, *(x[i, ...] for x in flat)) for i in range(flat[0].shape[0])]
    return map_leaves(lambda *x: xp.reshape(xp.stack(x), (*lead, *x[0].shape)), *found)


def nan_if_not_finite(A: T) -> T:
    """NaN in place of every matrix with an entry that is not finite: LAPACK's SVD may never return from an inf."""
    xp = namespace_of(A)
    bad = ~xp.all(xp.isfinite(A), axis=(-2, -1), keepdims=True)
    return xp.where(bad, xp.full_like(A, xp.nan), A)


def cholesky_qr(backend: Any, A: T) -> tuple[T, T] | None:
    """Cholesky QR twice where A is tall and not too badly conditioned: products instead of reflections; else None.

    The second pass gives what Householder's gives, Q orthogonal and ``Q R - A`` zero to rounding, if the first left
    ``|Q^T Q - I| < 1`` (Yamamoto, Nakatsukasa, Yanagisawa, Fukaya 2015), which is checked. It is three to five times as
    fast, for Householder's panels are products with vectors.
    """
    m, n = A.shape[-2:]
    if A.ndim > 2 or n < NARROW or m < ASPECT * n or m * n < ENTRIES:
        return None
    xp = namespace_of(A)
    R = adjoint(backend.cholesky(adjoint(A) @ A))
    Q = adjoint(backend.solve_triangular(R, adjoint(A), transpose=True))
    gram = adjoint(Q) @ Q
    eye = xp.eye(n, dtype=A.dtype, device=device(A))
    # written so that NaN, from a Gram matrix that is indefinite or overflowed, fails the test
    if not backend.holds(n * xp.max(xp.abs(gram - eye)) < 0.1, steady=True):
        return None
    second = adjoint(backend.cholesky(gram))
    # near the identity an inverse is as accurate as a solve, and the product with it leaves Q in row order
    return Q @ backend.solve_triangular(second, eye), second @ R
