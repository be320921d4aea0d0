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
    T = np.concatenate([H, b.reshape(len(H), -1)], axis=1)
    for i in range(len(T)):
        T[i] = T[i] / T[i, i]
        for j in range(len(T)):
            if j != i:
                T[j] = T[j] - T[j, i] * T[i]
    return T[:, len(T) :].reshape(b.shape)
