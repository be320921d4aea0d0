"""Shared pieces: the stacked matrix, its rank, its condition, and refinement of what its factors give."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from xvarpro.backends import Backend
from xvarpro.backends.powers import power_of_two
from xvarpro.core.namespace import device, namespace_of, positive_or_one
from xvarpro.core.struct import Array
from xvarpro.core.trees import adjoint, is_complex
from xvarpro.lower.interface import Diagnosis, Ridge, System

# entries of a right-hand side up to which refining is worth its six products; larger ones keep eps cond(A)
LARGEST = 2**16
# condition from which on: below it gradients stay within 10 eps cond even where their terms cancel (docs/accuracy.md)
HARD = 300.0


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

    return backend.when(small, decide, small, steady=True)


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


def identity(like: Array) -> Array:
    """That of so many columns, (1, k, k)."""
    xp = namespace_of(like)
    return xp.eye(like.shape[1], dtype=like.dtype, device=device(like))[None, :, :]


def eye_like(R: Array) -> Array:
    """The identity in the shape of a matrix, or of a stack of them."""
    xp = namespace_of(R)
    eye = xp.eye(R.shape[-1], dtype=R.dtype, device=device(R))
    return eye if R.ndim == 2 else xp.broadcast_to(eye, R.shape)


def joined(A: Array, B: Array) -> Array:
    """Rows ``B_i (M_i w)`` as a matrix (m k, n c) of w, (n, c), row by row.

    A is (m, n), or (c, m, n) with one for each column of w, and B (m, k, c), or (1, k, c) for all rows.
    """
    xp = namespace_of(A)
    A = A[:, :, None] if A.ndim == 2 else xp.permute_dims(A, (1, 2, 0))
    rows = B[:, :, None, :] * A[:, None, :, :]
    return xp.reshape(rows, (rows.shape[0] * rows.shape[1], -1))


def as_one(x: Array, k: int) -> Array:
    """An array (n, k), or (n,) or (n, 1) for each of k columns, as one column."""
    xp, x = namespace_of(x), x if x.ndim == 2 else x[:, None]
    return xp.reshape(xp.broadcast_to(x, (x.shape[0], k)), (-1, 1))


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


# -- refinement of the augmented system ``[I A; A^T 0] [a; b] = [f; g]``, from residuals with more digits
#
# Least squares (``f = y, g = 0``: ``b = w`` and ``a`` the residual) and the adjoint (``f = 0, g = c``: ``b = -v``,
# ``a = A v``) are both of this form (Bjorck 1967). A factorisation alone leaves an error of ``eps cond(A)``; one
# refinement multiplies it by about ``eps cond(A)`` again.
#
# The residuals take no wider number type. A matrix is split into a leading half of its digits, on one grid for all
# entries that a product sums over, and the rest. The product of two leading halves is then exact in working precision,
# in any order of summation (Ozaki, Ogita, Oishi, Rump, Numer. Algorithms 59, 2012); the rest of the product is smaller
# by half of the digits. Sums keep the rounding error of every addition (Knuth, The Art of Computer Programming 2,
# 4.2.2, Theorem B: ``s = a + b; t = s - a; e = (a - (s - t)) + (b - t)`` has ``s + e = a + b``).

# (f, g) and (a, b) of an augmented system; None is zero, `f` is zero below its own rows
Targets = tuple[Array | None, Array | None]
Pair = tuple[Array, Array]


def refine(backend: Backend, factor: QRFactor, matrix: Callable[[], Array], targets: Targets, solution: Pair) -> Pair:
    """Improve the first rows of `a`, and `b`, as often as the condition shown by R asks for: not at all if it is good.

    Nor in single precision, for large targets, and for a stack of matrices. `matrix` forms A, where there is something
    to refine. Below the rows of `a` given, at the ridge, ``a = -A b``.
    """
    (Q, R), (top, b) = factor, solution
    m, xp = top.shape[0], backend.xp
    if xp.finfo(R.dtype).eps > 1e-12 or not affordable(R, m, b):
        return solution
    steps = _steps(xp, R)

    def again(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        n, top, b = carry
        A = matrix()
        a = top if A.shape[0] == m else backend.placement.concat_rows(top, -(A[m:, :] @ b))
        da, db = _correction(backend, A, Q, R, targets, a, b)
        return n + 1, top + da[:m, :], b + db

    def improve(solution: Pair) -> Pair:
        found: tuple[Array, ...] = backend.while_loop(
            lambda carry: carry[0] < steps, again, (xp.zeros_like(steps), *solution), steady=True
        )
        return found[1], found[2]

    return backend.when(steps > 0, improve, solution, steady=True)


def affordable(R: Array, m: int, b: Array) -> bool:
    """Whether a target with `m` rows is small enough to be refined; a stack of matrices is not."""
    return R.ndim == 2 and (m + b.shape[0]) * b.shape[1] <= LARGEST


def _steps(xp: Any, R: Array) -> Array:
    """None where the diagonal of R shows a condition below `HARD`, one below eps^-1/2, then three."""
    share = pivots(xp, R)
    condition = xp.max(share) / xp.min(share)
    one = xp.astype(condition > HARD, xp.int32)
    return one + 2 * xp.astype(condition > xp.finfo(R.dtype).eps ** -0.5, xp.int32)


def _correction(backend: Backend, A: Array, Q: Array, R: Array, targets: Targets, a: Array, b: Array) -> Pair:
    f, g = targets
    xp = namespace_of(A)
    # the halves of a product are cut on one grid along the columns, whose units must not matter
    sizes = power_of_two(xp.max(xp.abs(A), axis=0, keepdims=True))
    # zeros that a compiler does not know for such: it takes long over padding
    tops = [] if f is None else [backend.placement.concat_rows(f, 0 * a[f.shape[0] :, :])]
    ahead = _doubled([*tops, -a], A / sizes, b * xp.matrix_transpose(sizes))
    behind = _doubled([] if g is None else [g], adjoint(A), a)
    turned = adjoint(Q) @ ahead - backend.solve_triangular(R, behind, transpose=True)
    return ahead - Q @ turned, backend.solve_triangular(R, turned)


def _doubled(terms: list[Array], A: Array, b: Array) -> Array:
    """The sum of `terms` minus ``A b``: cancellation leaves three halves of the digits where it would leave none.

    The leading halves of A and b have an exact product, which goes into the sum with the rounding error of every
    addition kept (Knuth); what is left of the product is small enough to be rounded. Complex numbers are pairs of real
    ones, and a sum of two products then one product.
    """
    if is_complex(A):
        xp = namespace_of(A)
        real, imaginary = xp.real(A), xp.imag(A)
        pairs = xp.concat([xp.concat([real, -imaginary], axis=1), xp.concat([imaginary, real], axis=1)])
        halves = _doubled([_parts(x) for x in terms], pairs, _parts(b))
        return halves[: A.shape[0], :] + 1j * halves[A.shape[0] :, :]
    A_high, b_high = _leading(A, 1), _leading(b, 0)
    small = A_high @ (b - b_high) + (A - A_high) @ b
    total, *rest = [*terms, -(A_high @ b_high)]
    for term in rest:
        larger = total + term
        shadow = larger - total
        small = small - ((total - (larger - shadow)) + (term - shadow))
        total = larger
    return total - small


def _parts(x: Array) -> Array:
    """The real parts above the imaginary ones."""
    xp = namespace_of(x)
    return xp.concat([xp.real(x), xp.imag(x)])


def _leading(x: Array, axis: int) -> Array:
    """Half of the digits of `x`, on a common grid along the axis that a product will sum over."""
    xp = namespace_of(x)
    bits = 2 - math.frexp(xp.finfo(x.dtype).eps)[1]  # of a number; those of a length, rounded up, are whole as well
    cut = -(-(bits + (x.shape[axis] - 1).bit_length()) // 2)
    grid = math.ldexp(1.5, cut) * power_of_two(xp.max(xp.abs(x), axis=axis, keepdims=True))
    return (x + grid) - grid
