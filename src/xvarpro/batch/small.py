"""Small dense algebra for thousands of matrices at once: every operation runs along the batch axis.

LAPACK is called once per matrix, which costs more than factoring one of 64 x 2, and a single singular matrix raises for
all of them. Here a loop over the few columns works on whole batches; NaN stays in the problem that it came from.
Vectors lie along the last axis, so that a matrix of columns ``a_j`` is an array (b, n, m) of rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from xvarpro.backends import Backend
from xvarpro.core.namespace import adjoint, conj, device, is_complex, namespace_of
from xvarpro.core.struct import Array


class Factor(NamedTuple):
    """``A = Q R``: rows of `Q` are orthonormal, (b, n, m); R is upper triangular, (b, n, n)."""

    Q: Array
    R: Array
    length: Array  # of the columns of A, (b, n)


def factor(A: Array) -> Factor:
    """Orthogonalise the rows of `A`, shape (b, n, m).

    Modified Gram-Schmidt, twice: the second pass repairs the loss of orthogonality of the first, ``eps cond(A)``, down
    to rounding for as long as that is below 1 (Giraud, Langou, Rozloznik 2005).
    """
    xp = namespace_of(A)
    rows, first = _gram_schmidt(A)
    rows, second = _gram_schmidt(xp.stack(rows, axis=1))
    return Factor(xp.stack(rows, axis=1), second @ first, xp.sqrt(squares(A)))


def triangle(A: Array) -> Array:
    """The R of `factor` by one pass: that of a matrix within rounding of A, however dependent its rows are."""
    return _gram_schmidt(A)[1]


def _gram_schmidt(A: Array) -> tuple[list[Array], Array]:
    xp = namespace_of(A)
    n, rest, rows, triangle = A.shape[1], A, [], []
    for j in range(n):
        a = rest[:, 0, :]
        length = xp.sqrt(squares(a))
        q = a / length[:, None]
        rest = rest[:, 1:, :]
        along = products(rest, q)
        rest = rest - along[:, :, None] * q[:, None, :]
        before = xp.zeros((A.shape[0], j), dtype=A.dtype, device=device(A))
        own = xp.astype(length[:, None], A.dtype)
        triangle.append(xp.concat([before, own, along], axis=1))
        rows.append(q)
    return rows, xp.stack(triangle, axis=1)


def squares(A: Array) -> Array:
    """Squared lengths along the last axis, real."""
    xp = namespace_of(A)
    return xp.real(xp.vecdot(A, A)) if is_complex(A) else xp.vecdot(A, A)


def products(A: Array, q: Array) -> Array:
    """``q^H a`` for all rows a of `A`: shapes (b, n, m) and (b, m), result (b, n)."""
    return (A @ conj(q)[:, :, None])[..., 0]


def deficient(f: Factor, rows: int) -> Array:
    """Whether columns are dependent to working precision, shape (b,); NaN does not count as such."""
    xp = namespace_of(f.R)
    pivots = xp.abs(xp.linalg.diagonal(f.R))
    tiny = (10 * xp.finfo(f.R.dtype).eps * max(rows, f.R.shape[1])) * f.length
    # a column of zeros has no direction: its pivot, and all that follow, are NaN
    return xp.all(xp.isfinite(f.length), axis=1) & ~xp.all(pivots > tiny, axis=1)


def coefficients(f: Factor, X: Array) -> Array:
    """``Q^H x`` for the rows x of `X`, which may be shorter than those of Q: zeros below. Shape (b, k, n)."""
    Q = f.Q if X.shape[-1] == f.Q.shape[-1] else f.Q[..., : X.shape[-1]]
    return X @ adjoint(Q)


def rest(f: Factor, X: Array, along: Array) -> Array:
    """``x - Q Q^H x`` for the rows of `X`, at the length of those of Q; `along` holds their coefficients."""
    xp = namespace_of(X)
    short = f.Q.shape[-1] - X.shape[-1]
    if short:
        X = xp.concat([X, xp.zeros((*X.shape[:-1], short), dtype=X.dtype, device=device(X))], axis=-1)
    return X - along @ f.Q


def solve_upper(R: Array, c: Array) -> Array:
    """``R^-1 c`` for the rows of `c`, shape (b, k, n)."""
    return _substitute(R.mT, c, reversed(range(R.shape[-1])))


def solve_adjoint(R: Array, c: Array) -> Array:
    """``R^-H c`` for the rows of `c`, shape (b, k, n)."""
    return _substitute(conj(R), c, range(R.shape[-1]))


def _substitute(T: Array, c: Array, order: Iterable[int]) -> Array:
    """Solve with the triangular matrix whose columns are the rows of `T`, unknown by unknown."""
    xp = namespace_of(T)
    place = xp.arange(T.shape[-1], device=device(T))
    for j in order:
        x = c[..., j : j + 1] / T[:, j : j + 1, j : j + 1]
        c = xp.where(place == j, x, c - x * T[:, j : j + 1, :])
    return c


def condition(backend: Backend, R: Array) -> Array:
    """2-norm condition numbers, (b,), of matrices with columns of length 1; NaN where one is not finite."""
    xp = namespace_of(R)
    fine = xp.all(xp.isfinite(xp.abs(R)), axis=(1, 2))
    eye = xp.eye(R.shape[-1], dtype=R.dtype, device=device(R))
    # a library's decomposition may raise for all where one holds NaN
    s = backend.svd(xp.where(fine[:, None, None], R, eye))[1]
    ratio = xp.max(s, axis=1) / xp.min(s, axis=1)
    return xp.where(fine, ratio, xp.full_like(ratio, xp.nan))
