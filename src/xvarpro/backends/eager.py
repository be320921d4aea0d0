"""Control flow for frameworks that run one operation at a time: a Python loop drives the solver's pure functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import optree

from xvarpro.backends.interface import Array, Backend
from xvarpro.core.namespace import device, is_complex
from xvarpro.core.powers import signed_power

_PIECE = 4096  # entries added up by themselves


class EagerBackend(Backend):
    """Loops for NumPy, CuPy, Torch and array-api-strict: one host read per iteration, the status."""

    def while_loop(self, cond: Callable[[Any], Array], body: Callable[[Any], Any], state: Any) -> Any:
        while bool(cond(state)):
            state = body(state)
        return state

    def settle(
        self, running: Callable[[Any], Array], advance: Callable[[Any, Any], Any], state: Any, given: Any
    ) -> Any:
        """On the columns that still run, once they are less than half of those at hand."""
        held, treedef = optree.tree_flatten(state)
        whole, index = [self.xp.asarray(x, copy=True) for x in held], None
        while True:
            on = running(state)
            (left,) = self.xp.nonzero(on)
            if left.shape[0] == 0 or 2 * left.shape[0] < on.shape[0]:
                # state -> whole, then state shrinks
                for x, part in zip(whole, optree.tree_leaves(state), strict=True):
                    x[(..., slice(None) if index is None else index)] = part
                if left.shape[0] == 0:
                    return optree.tree_unflatten(treedef, whole)
                index = left if index is None else index[left]
                state, given = self._some((state, given), left)
            state = advance(state, given)

    def _some(self, tree: Any, index: Array) -> Any:
        return optree.tree_map(lambda x: self.xp.take(x, index, axis=-1), tree)

    def when(self, condition: Array, fun: Callable[[Any], Any], state: Any) -> Any:
        return fun(state) if bool(condition) else state

    def each(
        self, fun: Callable[..., tuple[Array, ...]], fail: Callable[..., tuple[Array, ...]], *stacks: Array
    ) -> tuple[Array, ...]:
        """``fun(*stacks)`` for a stack of matrices; where that raises, one by one, with `fail` for those that raise."""
        try:
            return tuple(fun(*stacks))
        except self.failures:
            if stacks[0].ndim == 2:
                return fail(*stacks)
        xp, lead = self.xp, stacks[0].shape[:-2]
        flat = [xp.reshape(x, (-1, *x.shape[-2:])) for x in stacks]
        found = [self.each(fun, fail, *(x[i, ...] for x in flat)) for i in range(flat[0].shape[0])]
        return tuple(xp.reshape(xp.stack(x), (*lead, *x[0].shape)) for x in zip(*found, strict=True))

    def numbers(self, A: Array) -> Array:
        """NaN in place of every matrix with an entry that is not finite: LAPACK's SVD may never return from an inf."""
        xp = self.xp
        bad = ~xp.all(xp.isfinite(A), axis=(-2, -1), keepdims=True)
        return xp.where(bad, xp.full_like(A, xp.nan), A) if bool(xp.any(bad)) else A

    def divided(self, x: Array, divisor: Array) -> Array:
        x /= divisor
        return x

    def either(self, condition: Array, this: Callable[[], Array], that: Callable[[], Array]) -> Array:
        if bool(self.xp.all(condition)):
            return this()
        return super().either(condition, this, that) if bool(self.xp.any(condition)) else that()

    def norm(self, x: Array, order: int = 2) -> Array:
        # in pieces: one float32 sum of millions of squares keeps three digits
        n = x.shape[-1]
        if n < 2 * _PIECE:
            return super().norm(x, order)
        pieces = super().norm(self.units(x, _PIECE), order)[..., 0]
        rest = super().norm(x[..., n - n % _PIECE :], order)
        return super().norm(self.xp.concat([pieces, rest], axis=-1), order)

    def piecewise(self, fun: Callable[..., Array], *arrays: Array, unit: int = 1) -> Array:
        like, spans = arrays[0], self.spans(arrays[0], unit)
        if len(spans) < 2:
            return super().piecewise(fun, *arrays, unit=unit)
        # glibc gives the memory of pieces back after every step, to fault when it is next used, which takes longer than
        # the arithmetic, until a larger block has once been freed
        self.xp.empty(4 * self.cached, dtype=like.dtype, device=device(like))
        first = fun(*(x[..., spans[0]] for x in arrays))
        shape = (*first.shape[:-1], like.shape[-1] // unit)
        out = self.xp.empty(shape, dtype=first.dtype, device=device(first))
        for span in spans:
            start, end = span.start // unit, span.stop // unit
            if start < end:
                out[..., start:end] = fun(*(x[..., span] for x in arrays)) if start else first
        return out

    def signed_power(self, x: Array, p: float, unit: int, scale: Array | None = None) -> tuple[Array, Array]:
        def both(x: Array, out: Array | None = None, spare: Array | None = None) -> tuple[Array, Array]:
            x = x if scale is None else self.into(spare, self.xp.divide, x, scale)
            y = signed_power(x, p, partial(self.into, None if is_complex(x) else out))
            return y, self.products(x, y, unit, spare)

        spans = self.spans(x, unit)
        if len(spans) < 2:
            return both(x)
        out, spare, sums = self.xp.empty_like(x), self.xp.empty_like(x[..., spans[0]]), []
        for span in spans:
            buffer = out[..., span]
            y, some = both(x[..., span], buffer, spare[..., : buffer.shape[-1]])
            sums.append(some)
            if y is not buffer:
                out[..., span] = y
        return out, self.xp.concat(sums, axis=-1)

    def spans(self, x: Array, unit: int) -> list[slice]:
        """Spans of the last axis, of as many units at a time as a cache holds: all of it where pieces do not pay."""
        n, lead = x.shape[-1], math.prod(x.shape[:-1])
        length = max(1, self.cached // (unit * max(1, lead))) * unit
        if not self.cached or n < 2 * length:
            return [slice(0, n)]
        return [slice(start, min(start + length, n)) for start in range(0, n, length)]

    def call(self, make: Callable[[tuple[Array, ...]], Callable[..., Any]], key: Any) -> Callable[..., Any]:
        return lambda operands, *args: make(operands)(*args)

    def loop(
        self,
        make: Callable[[tuple[Array, ...]], Callable[[Any], Any]],
        record: Callable[[Any], tuple[Array, ...]],
        running: Callable[[Any], Array],
        key: Any,
    ) -> Callable[[tuple[Array, ...], Any, int], tuple[Any, list[list[float]]]]:
        step = None

        def run(operands: tuple[Array, ...], state: Any, n: int) -> tuple[Any, list[list[float]]]:
            nonlocal step
            step = step or make(operands)
            rows = []
            for _ in range(n):
                if not bool(running(state)):
                    break
                state = step(state)
                rows.append(self.to_floats(record(state)))
            return state, rows

        return run
