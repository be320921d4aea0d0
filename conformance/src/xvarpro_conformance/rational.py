"""Exact linear algebra on arrays of fractions: what a system of a few equations gives without any rounding."""

from __future__ import annotations

from fractions import Fraction

import numpy as np


def fractions(x: np.ndarray) -> np.ndarray:
    """The numbers of an array as they are, shape kept."""
    exact: np.ndarray = np.vectorize(Fraction, otypes=[object])(x)
    return exact


def solution(H: np.ndarray, b: np.ndarray) -> np.ndarray:
    """``H^-1 b`` for a positive definite H, which needs no pivots; b of shape (n,) or (n, k)."""
    n = len(H)
    T = np.concatenate([H, b.reshape(n, -1)], axis=1)
    for i in range(n):
        T[i, i + 1 :] = T[i, i + 1 :] / T[i : i + 1, i]
        others = np.arange(n) != i  # what is left of the next column is never read
        T[others, i + 1 :] = T[others, i + 1 :] - T[others, i : i + 1] * T[i : i + 1, i + 1 :]
    return T[:, n:].reshape(b.shape)


def whole(*arrays: np.ndarray) -> tuple[list[np.ndarray], int]:
    """Numbers times the least power of two that makes all of them whole, and that power.

    Examples
    --------
    >>> whole(np.array([0.75, -2.0]), np.array([[1.5]]))
    ([array([3, -8], dtype=object), array([[6]], dtype=object)], 4)
    """
    exact = [fractions(x) for x in arrays]
    power = max(number.denominator for x in exact for number in x.ravel())
    return [np.vectorize(int, otypes=[object])(x * power) for x in exact], power


def solution_of_whole(H: np.ndarray, b: np.ndarray) -> np.ndarray:
    """As `solution`, for integers, rounded once: all divisions but the last leave nothing, as Bareiss (1968) shows."""
    n, last = len(H), 1
    T = np.concatenate([H, b], axis=1)
    for i in range(n):
        others = np.arange(n) != i
        T[others] = (T[others] * T[i, i] - T[others, i : i + 1] * T[i : i + 1]) // last
        last = T[i, i]
    found: np.ndarray = T[:, n:] / last
    return found
