"""Shared pieces: the stacked matrix, its rank, its condition."""

from __future__ import annotations

import math
from typing import Any

from array_api_compat import array_namespace, device

from xvarpro.protocols import Array


def stacked(A: Array, lam: float, Omega: Array | None) -> Array:
    """``[A; sqrt(lam) Omega]``; the identity for `Omega` None.

    Without a ridge a wide A gets rows of zeros, so that a factorisation of it exists and shows the loss of rank.
    """
    if not lam:
        return padded(A, A.shape[1]) if A.shape[0] < A.shape[1] else A
    xp = array_namespace(A)
    ridge = xp.eye(A.shape[1], dtype=A.dtype, device=device(A)) if Omega is None else Omega
    return xp.concat([A, math.sqrt(lam) * ridge])


def padded(y: Array, rows: int) -> Array:
    """`y` above the zeros that the ridge is fitted to."""
    if rows == y.shape[0]:
        return y
    xp = array_namespace(y)
    return xp.concat([y, xp.zeros((rows - y.shape[0], y.shape[1]), dtype=y.dtype, device=device(y))])


def dependent_column(R: Array) -> Array:
    """Whether a column of ``A = Q R`` lies in the span of those before it, to working precision; 0-d bool.

    ``|r_jj|`` is the distance of column j from that span, ``|R e_j|`` its length: the test does not see units.
    """
    xp = array_namespace(R)
    tiny = rank_tolerance(R)
    distance = xp.abs(xp.linalg.diagonal(R))
    # `not (a > b)` where `a <= b` would let NaN pass
    return ~xp.all(distance > tiny * xp.sqrt(xp.sum(R * R, axis=0)))


def rank_tolerance(R: Array) -> float:
    """Relative distance from a span below which a column is rounding: a few eps for each of the columns before it."""
    return 8 * array_namespace(R).finfo(R.dtype).eps * R.shape[-1]


def condition_of(backend: Any, A: Array) -> Array:
    """2-norm condition number of a small matrix, inf when singular."""
    xp = array_namespace(A)
    s = backend.svd(A)[1]
    return xp.max(s) / xp.min(s)
