"""Shared pieces: the stacked matrix, its rank, its condition."""

from __future__ import annotations

from typing import Any

from xvarpro._namespace import array_namespace, device
from xvarpro.protocols import Array


def stacked(A: Array, root: Any, Omega: Array | None) -> Array:
    """``[A; root Omega]``, root the square root of the ridge, None for none; the identity for `Omega` None.

    Without a ridge a wide A gets rows of zeros, so that a factorisation of it exists and shows the loss of rank.
    """
    if root is None:
        return padded(A, A.shape[1]) if A.shape[0] < A.shape[1] else A
    xp = array_namespace(A)
    ridge = xp.eye(A.shape[1], dtype=A.dtype, device=device(A)) if Omega is None else Omega
    return xp.concat([A, root * ridge])


def padded(y: Array, rows: int) -> Array:
    """`y` above the zeros that the ridge is fitted to."""
    if rows == y.shape[0]:
        return y
    xp = array_namespace(y)
    return xp.concat([y, xp.zeros((rows - y.shape[0], y.shape[1]), dtype=y.dtype, device=device(y))])


def deficient(backend: Any, R: Array, rows: int) -> Array:
    """Whether the columns of ``A = Q R``, A with `rows` rows, are dependent to working precision; 0-d bool.

    Of a stack of matrices, whether those of any of them are.

    Columns are scaled to length 1 first, so that units do not count. ``|r_jj|`` is then the distance of column j from
    the span of those before it: where none is small, the rank is full. Small ones may be rounding or conditioning; the
    smallest singular value decides, and is computed only then.
    """
    xp = array_namespace(R)
    eps = xp.finfo(R.dtype).eps
    n = R.shape[-1]
    length = xp.sqrt(xp.sum(xp.abs(R) ** 2, axis=-2, keepdims=True))
    # written so that NaN counts as small
    small = ~xp.all(xp.abs(xp.linalg.diagonal(R)) > (1e4 * eps * n) * length[..., 0, :])

    def decide(_: Array) -> Array:
        s = backend.svd(R / xp.astype(xp.where(length > 0, length, xp.ones_like(length)), R.dtype))[1]
        return ~xp.all(xp.min(s, axis=-1) > (eps * max(rows, n)) * xp.max(s, axis=-1))

    return backend.when(small, decide, small)


def condition_of(backend: Any, A: Array) -> Array:
    """2-norm condition number of a small matrix, inf when singular; the largest of a stack."""
    xp = array_namespace(A)
    s = backend.svd(A)[1]
    return xp.max(xp.max(s, axis=-1) / xp.min(s, axis=-1))
