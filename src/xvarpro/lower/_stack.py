"""Shared pieces: the stacked matrix, its rank, its condition."""

from __future__ import annotations

import math
from typing import Any

from array_api_compat import array_namespace, device

from xvarpro.protocols import Array


def stacked(A: Array, lam: float, Omega: Array | None) -> Array:
    """``[A; sqrt(lam) Omega]``; the identity for `Omega` None."""
    if not lam:
        return A
    xp = array_namespace(A)
    ridge = xp.eye(A.shape[1], dtype=A.dtype, device=device(A)) if Omega is None else Omega
    return xp.concat([A, math.sqrt(lam) * ridge])


def dependent_column(R: Array) -> Array:
    """Whether a column of ``A = Q R`` lies in the span of those before it, to working precision; 0-d bool.

    ``|r_jj|`` is the distance of column j from that span, ``|R e_j|`` its length: the test does not see units.
    """
    xp = array_namespace(R)
    tiny = xp.finfo(R.dtype).eps * max(R.shape)
    distance = xp.abs(xp.linalg.diagonal(R))
    # `not (a > b)` where `a <= b` would let NaN pass
    return ~xp.all(distance > tiny * xp.sqrt(xp.sum(R * R, axis=0)))


def condition_of(backend: Any, A: Array) -> Array:
    """2-norm condition number of a small matrix, inf when singular."""
    xp = array_namespace(A)
    s = backend.svd(A)[1]
    return xp.max(s) / xp.min(s)
