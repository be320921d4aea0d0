"""Interval arithmetic on pairs of NumPy arrays (lower, upper), rounded outwards.

After every operation an end moves outwards by a margin: `EPS`, twice the unit roundoff, of its size where the operation
is correctly rounded; `LIBRARY` times that for elementary functions, which NumPy computes to 4 units in the last place;
and `TINY` for underflow. NaN says that nothing is known; it stays NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

EPS, TINY, LIBRARY = 2.0**-52, 1e-300, 4.0

Pair: TypeAlias = tuple[np.ndarray, np.ndarray]


def rounded(lo: np.ndarray, hi: np.ndarray, ulps: float = 1.0) -> Pair:
    """New arrays, moved outwards in place."""
    lo -= np.abs(lo) * (ulps * EPS) + TINY
    hi += np.abs(hi) * (ulps * EPS) + TINY
    return lo, hi


def number(x: float) -> Pair:
    """A number as an interval."""
    value = np.asarray([x])
    return value, value


def add(a: Pair, b: Pair) -> Pair:
    """``a + b``."""
    return rounded(a[0] + b[0], a[1] + b[1])


def neg(a: Pair) -> Pair:
    """``-a``."""
    return -a[1], -a[0]


def mul(a: Pair, b: Pair) -> Pair:
    """``a b``: the products of all ends."""
    if a[0] is a[1]:
        a, b = b, a
    ends = [a[0] * b[0], a[1] * b[0]] + ([] if b[0] is b[1] else [a[0] * b[1], a[1] * b[1]])
    lo, hi = np.minimum(ends[0], ends[1]), np.maximum(ends[0], ends[1])
    for end in ends[2:]:
        np.minimum(lo, end, out=lo), np.maximum(hi, end, out=hi)
    return rounded(lo, hi)


def reciprocal(a: Pair) -> Pair:
    """``1 / a``; unknown where `a` holds 0."""
    unknown = ~((a[0] > 0) | (a[1] < 0))
    lo, hi = rounded(1 / a[1], 1 / a[0])
    lo[unknown] = hi[unknown] = np.nan
    return lo, hi


def rising(fun: Callable[[np.ndarray], np.ndarray]) -> Callable[[Pair], Pair]:
    """A function of the library that does not fall."""
    return lambda a: rounded(fun(a[0]), fun(a[1]), LIBRARY)


def power(a: Pair, b: float) -> Pair:
    """``a^b`` for a number b, other than 0; unknown at a pole, and of a negative base unless b is whole."""
    p, q = a[0] ** b, a[1] ** b
    lo, hi = rounded(np.minimum(p, q), np.maximum(p, q), LIBRARY)
    across = (a[0] <= 0) & (a[1] >= 0)
    unknown = (across & (b < 0)) | ((a[0] < 0) & (not float(b).is_integer()))
    lo[unknown] = hi[unknown] = np.nan
    if b % 2 == 0:
        lo = np.where(across & ~unknown, 0.0, lo)
    return lo, hi


def cosine(a: Pair) -> Pair:
    """``cos a``, with its extrema at multiples of pi, which are looked for in a slightly wider interval."""
    p, q = np.cos(a[0]), np.cos(a[1])
    lo, hi = rounded(np.minimum(p, q), np.maximum(p, q), LIBRARY)
    margin = 4 * EPS * (np.abs(a[0]) + np.abs(a[1]) + 1)
    first, last = (a[0] - margin) / math.pi, (a[1] + margin) / math.pi
    lo[np.floor((last - 1) / 2) >= np.ceil((first - 1) / 2)] = -1.0
    hi[np.floor(last / 2) >= np.ceil(first / 2)] = 1.0
    return lo, hi


def total(a: Pair, axis: int | tuple[int, ...], keepdims: bool = False) -> Pair:
    """Sums along axes; the rounding grows with the number of terms."""
    lo, hi = (np.sum(x, axis=axis, keepdims=keepdims) for x in a)
    margin = np.sum(np.maximum(np.abs(a[0]), np.abs(a[1])), axis=axis, keepdims=keepdims)
    margin *= a[0].size / max(lo.size, 1) * EPS
    return rounded(lo - margin, hi + margin)
