"""Shared pieces: the stacked matrix, its rank, its condition."""

from __future__ import annotations

import math
from typing import Any

from xvarpro._namespace import array_namespace, device
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


def deficient(backend: Any, R: Array, rows: int) -> Array:
    """Whether the columns of ``A = Q R``, A with `rows` rows, are dependent to working precision; 0-d bool.

    Columns are scaled to length 1 first, so that units do not count. ``|r_jj|`` is then the distance of column j from
    the span of those before it: where none is small, the rank is full. Small ones may be rounding or conditioning; the
    smallest singular value decides, and is computed only then.
    """
    xp = array_namespace(R)
    eps = xp.finfo(R.dtype).eps
    length = xp.sqrt(xp.sum(R * R, axis=0))
    # written so that NaN counts as small
    small = ~xp.all(xp.abs(xp.linalg.diagonal(R)) > (1e4 * eps * R.shape[0]) * length)

    def decide(_: Array) -> Array:
        s = backend.svd(R / xp.where(length > 0, length, xp.ones_like(length)))[1]
        return ~(xp.min(s) > (eps * max(rows, R.shape[0])) * xp.max(s))

    return backend.when(small, decide, small)


def deficient_gram(L: Array) -> Array:
    """As `deficient`, from the Cholesky factor of ``A^H A``.

    Squared distances of each column from the span of those before it, over squared lengths: rounding of the Gram matrix
    leaves up to some hundred eps of them.
    """
    xp = array_namespace(L)
    tiny = 1e3 * xp.finfo(L.dtype).eps * L.shape[0]
    return ~xp.all(xp.abs(xp.linalg.diagonal(L)) ** 2 > tiny * xp.sum(xp.abs(L) ** 2, axis=1))


def condition_of(backend: Any, A: Array) -> Array:
    """2-norm condition number of a small matrix, inf when singular."""
    xp = array_namespace(A)
    s = backend.svd(A)[1]
    return xp.max(s) / xp.min(s)
