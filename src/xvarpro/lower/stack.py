"""Shared pieces: the stacked matrix, its rank, its condition."""

from __future__ import annotations

from typing import Any, NamedTuple

from xvarpro.backends import Backend
from xvarpro.core.namespace import device, namespace_of, positive_or_one
from xvarpro.core.struct import Array
from xvarpro.lower.interface import Diagnosis, System
from xvarpro.lower.ridge import Ridge


def stacked(backend: Backend, A: Array, ridge: Ridge) -> Array:
    """``[A; sqrt(lam) Omega]``, for one A or a stack of them; a stack where right-hand sides have ridges of their own.

    Without a ridge a wide A gets rows of zeros, so that a factorisation of it exists and shows the loss of rank.
    """
    if not ridge.present:
        return padded(backend, A, max(A.shape[-2:]))
    below = ridge.dense(A)
    if A.ndim > 2 or below.ndim > 2:
        xp, many = namespace_of(A), max(A.shape[:-2], below.shape[:-2])
        A, below = (xp.broadcast_to(x, (*many, *x.shape[-2:])) for x in (A, below))
    return backend.placement.concat_rows(A, below)


def padded(backend: Backend, y: Array, rows: int) -> Array:
    """`y` above the zeros that the ridge is fitted to."""
    *batch, m, k = y.shape
    if rows == m:
        return y
    zeros = namespace_of(y).zeros((*batch, rows - m, k), dtype=y.dtype, device=device(y))
    return backend.placement.concat_rows(y, zeros)


def units(R: Array) -> Array:
    """R with columns of length 1, so that the units in which each unknown is measured do not count; zeros stay."""
    xp = namespace_of(R)
    # so that squares neither overflow nor vanish
    R = R / positive_or_one(xp.max(xp.abs(R), axis=-2, keepdims=True))
    return R / positive_or_one(xp.sqrt(xp.sum(xp.abs(R) ** 2, axis=-2, keepdims=True)))


def pivots(xp: Any, R: Array) -> Array:
    """``|r_jj|`` over the length of column j of a triangle, (..., n): how far the column is from the span of those
    before it, whatever its units; 0 for a column of zeros.
    """
    d = xp.linalg.diagonal(R)
    none = d == 0
    # in units of the diagonal no square vanishes; one that overflows belongs to a pivot of 0
    square = xp.sum(xp.abs(R / xp.where(none, 1, d)[..., None, :]) ** 2, axis=-2)
    return xp.where(none, 0, 1 / xp.sqrt(xp.where(none, 1, square)))


def deficient(backend: Backend, R: Array, rows: int) -> Array:
    """Whether the columns of ``A = Q R``, A with `rows` rows, are dependent to working precision; 0-d bool.

    Of a stack of matrices, whether those of any of them are. With columns of length 1 ``|r_jj|`` is the distance of
    column j from the span of those before it: where none is small, the rank is full. Small ones may be rounding or
    conditioning; the smallest singular value decides, and is computed only then.
    """
    xp, n = backend.xp, R.shape[-1]
    eps = xp.finfo(R.dtype).eps
    # written so that NaN counts as small
    small = ~xp.all(pivots(xp, R) > 1e4 * eps * n)

    def decide(_: Array) -> Array:
        s = backend.svd(units(R))[1]
        return ~xp.all(xp.min(s, axis=-1) > (eps * max(rows, n)) * xp.max(s, axis=-1))

    return backend.when(small, decide, small)


class QRFactor(NamedTuple):
    """``A = Q R``, of one matrix or of a stack with one for each right-hand side."""

    Q: Array
    R: Array

    def diagnosis(self, backend: Backend) -> Diagnosis:
        """Rank and condition of A; of a stack the worst."""
        return Diagnosis.of(deficient(backend, self.R, self.Q.shape[-2]), singular_ratio(backend, units(self.R)))


def factored(backend: Backend, system: System, A: Array) -> QRFactor:
    """QR of A; R is NaN where no ridge makes the solution unique and it is not, to working precision."""
    Q, R = backend.qr(A)
    if system.ridge.definite:
        return QRFactor(Q, R)
    xp = backend.xp
    return QRFactor(Q, xp.where(deficient(backend, R, Q.shape[-2]), xp.nan, R))


def as_column(y: Array, R: Array) -> Array:
    """What one matrix R is applied to, (m, k), as it is; for a stack of k matrices, (m, k c) as c columns each."""
    if R.ndim == 2:
        return y
    k, xp = R.shape[0], namespace_of(y)
    return xp.permute_dims(xp.reshape(y, (y.shape[0], k, y.shape[1] // k)), (1, 0, 2))


def as_columns(x: Array) -> Array:
    """Inverse of `as_column`."""
    if x.ndim == 2:
        return x
    k, m, c = x.shape
    xp = namespace_of(x)
    return xp.reshape(xp.permute_dims(x, (1, 0, 2)), (m, k * c))


def deficient_gram(L: Array) -> Array:
    """As `deficient`, from the Cholesky factor of ``A^H A``.

    Squared distances of each column from the span of those before it, over squared lengths: rounding of the Gram matrix
    leaves up to some hundred eps of them.
    """
    xp = namespace_of(L)
    tiny = 1e3 * xp.finfo(L.dtype).eps * L.shape[0]
    return ~xp.all(xp.abs(xp.linalg.diagonal(L)) ** 2 > tiny * xp.sum(xp.abs(L) ** 2, axis=1))


def condition_of(backend: Backend, R: Array) -> Array:
    """2-norm condition number of a small matrix, columns scaled to length 1, inf if singular; of a stack the worst."""
    return singular_ratio(backend, units(R))


def singular_ratio(backend: Backend, A: Array) -> Array:
    """The largest singular value over the smallest."""
    xp = namespace_of(A)
    s = backend.svd(A)[1]
    return xp.max(xp.max(s, axis=-1) / xp.min(s, axis=-1))
