"""Roots of monotone functions, one per entry of a batch."""

from __future__ import annotations

import math

from xvarpro.backends import registry
from xvarpro.backends.transformations import Curve, implicit
from xvarpro.core.namespace import device, namespace_of, positive_or_one
from xvarpro.core.struct import Array


def root(fun: Curve, low: Array, high: Array, start: Array, *, close: Array | float, near: Array) -> Array:
    """The roots of continuous functions that do not rise, one per entry of `low`.

    Newton's method inside a bracket. A step that leaves the bracket, or that is not half as long as the step before
    last, is replaced by a bisection (the safeguard of Brent, "Algorithms for minimization without derivatives", 1973,
    chapter 4): a function of any shape takes O(log 1/eps) evaluations, and a piecewise linear one ends on the exact
    root of its last piece.

    Parameters
    ----------
    fun : callable
        t -> value and slope there, in the shape of t; it does not rise.
    low, high : arrays
        ``fun(low) >= 0 >= fun(high)``.
    start : array
        First trial.
    close, near : arrays or floats
        An entry ends with a step of at most `close`, or one rounding of t, or with a value of at most `near`.
    """
    xp = namespace_of(low)
    backend = registry.owner(low)
    info = xp.finfo(low.dtype)
    eps = info.eps
    # halves of the longest bracket, and as many steps between two halves
    budget = 2 * round(math.log2(info.max) - math.log2(eps))
    State = tuple[Array, Array, Array, Array, Array, Array, Array]

    def body(state: State) -> State:
        t, low, high, last, before, active, k = state
        value, slope = fun(t)
        low = xp.where(value > 0, t, low)
        high = xp.where(value < 0, t, high)
        # no division unless its result is short enough to be taken
        steep = (slope < 0) & (2 * xp.abs(value) <= -slope * before)
        step = xp.where(steep, value, xp.zeros_like(value)) / xp.where(steep, -slope, xp.ones_like(slope))
        newton = steep & (t + step >= low) & (t + step <= high)
        new = xp.where(newton, t + step, low + 0.5 * (high - low))
        moved = xp.abs(new - t)
        found = ~(xp.abs(value) > near)  # a NaN ends the search and stays
        settled = ~(moved > xp.maximum(close + xp.zeros_like(t), eps * xp.abs(t)))
        t = xp.where(active & ~found, new, t)
        return t, low, high, moved, last, active & ~found & ~settled, k + 1

    far = 4 * positive_or_one(high - low)
    count = xp.zeros((), dtype=xp.int32, device=device(low))
    state = (start, low, high, far, far, low < high, count)
    t = backend.while_loop(lambda state: xp.any(state[5]) & (state[6] < budget), body, state)[0]
    return implicit(fun, t)
