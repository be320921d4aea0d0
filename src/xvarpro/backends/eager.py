"""Control flow for frameworks that run one operation at a time: a Python loop drives the solver's pure functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import optree

from xvarpro.backends.interface import Array, Backend


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
