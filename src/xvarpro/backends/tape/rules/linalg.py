"""Linear systems and factorisations. Where a rule has a source it is named; all are batched, all complex.

The rules of `eigh`, `qr` and `svd` hold where the factors are differentiable: distinct eigenvalues or singular
values if the gradient comes through the vectors, full column rank for `qr`. Values alone have no such limit.
"""

from __future__ import annotations

from collections import namedtuple
from functools import reduce
from operator import add
from typing import Any

from xvarpro.backends.tape.errors import NoRuleError
from xvarpro.backends.tape.rules.table import (
    Namespace,
    adjoint,
    composite,
    conj,
    constant,
    primitive,
    unbroadcast,
)
from xvarpro.core.namespace import complex_dtype, device, solve
from xvarpro.core.struct import Array

# named as in the standard
EighResult = namedtuple("EighResult", "eigenvalues eigenvectors")
QRResult = namedtuple("QRResult", "Q R")
SVDResult = namedtuple("SVDResult", "U S Vh")
SlogdetResult = namedtuple("SlogdetResult", "sign logabsdet")


def _scale(xp: Namespace, v: Array) -> Array:
    """Shape one number per matrix so that it multiplies the matrix."""
    return xp.expand_dims(xp.expand_dims(v, axis=-1), axis=-1)


def _identity(xp: Namespace, A: Array) -> Array:
    return xp.eye(A.shape[-1], dtype=A.dtype, device=device(A))


def _hermitian(xp: Namespace, A: Array) -> Array:
    return 0.5 * (A + adjoint(xp, A))


def _total(*terms: Array | None) -> Any:
    """Add up what has come: a factor that the function did not use has sent no gradient."""
    return reduce(add, (term for term in terms if term is not None))


def _from_right(xp: Namespace, B: Array, A: Array) -> Array:
    """B A^-H."""
    return adjoint(xp, xp.linalg.solve(A, adjoint(xp, B)))


# ----------------------------------------------------------------------------------------- systems, determinants


@primitive("linalg_solve", operands=2, forward=solve)
def _solve(xp: Namespace, need: list[int], g: Array, y: Array, A: Array, b: Array) -> list[Array]:
    # one solve with A^H serves both operands; of several matrices a vector is the one column, not a matrix of them
    G, Y = (xp.expand_dims(g, axis=-1), xp.expand_dims(y, axis=-1)) if b.ndim == 1 else (g, y)
    G = solve(xp, adjoint(xp, A), G)
    g = G[..., 0] if b.ndim == 1 else G
    return [unbroadcast(xp, g, b) if i == 1 else unbroadcast(xp, -xp.matmul(G, adjoint(xp, Y)), A) for i in need]


@primitive("linalg_inv")
def _inv(xp: Namespace, g: Array, y: Array, _A: Array) -> Array:
    yH = adjoint(xp, y)
    return -xp.matmul(xp.matmul(yH, g), yH)


@primitive("linalg_det")
def _det(xp: Namespace, g: Array, y: Array, A: Array) -> Array:
    return _scale(xp, g * conj(xp, y)) * adjoint(xp, xp.linalg.inv(A))


@primitive("linalg_slogdet", forward=lambda xp, A: SlogdetResult(*xp.linalg.slogdet(A)))
def _slogdet(xp: Namespace, g: tuple[Array | None, ...], y: tuple[Array, ...], A: Array) -> Array:
    # d log|det| = Re tr(A^-1 dA); a complex sign turns by Im tr(A^-1 dA), a real one does not move
    g_sign, g_log = g
    weight = xp.zeros_like(A[..., 0, 0]) if g_log is None else xp.astype(g_log, A.dtype)
    if g_sign is not None and complex_dtype(A.dtype):
        weight = weight + xp.astype(xp.imag(g_sign * xp.conj(y[0])), A.dtype) * 1j
    return _scale(xp, weight) * adjoint(xp, xp.linalg.inv(A))


@primitive("linalg_pinv")
def _pinv(xp: Namespace, g: Array, y: Array, A: Array, *, rtol: Any = None) -> Array:
    """Golub and Pereyra, The differentiation of pseudo-inverses, SIAM J. Numer. Anal. 10 (1973), eq. (4.12)."""
    P, PH, gH = y, adjoint(xp, y), adjoint(xp, g)
    left = xp.matmul(gH, xp.matmul(P, PH))
    right = xp.matmul(xp.matmul(PH, P), gH)
    left = left - xp.matmul(A, xp.matmul(P, left))
    right = right - xp.matmul(xp.matmul(right, P), A)
    return left + right - xp.matmul(PH, xp.matmul(g, PH))


# ------------------------------------------------------------------------------------------------ factorisations


@primitive("linalg_cholesky")
def _cholesky(xp: Namespace, g: Array, y: Array, _A: Array, *, upper: bool = False) -> Array:
    """Murray, Differentiation of the Cholesky decomposition, arXiv:1602.07527, eq. (10)."""
    LH = y if upper else adjoint(xp, y)
    g = adjoint(xp, g) if upper else g
    P = xp.tril(xp.matmul(LH, g))
    P = P - 0.5 * P * _identity(xp, P)
    return _hermitian(xp, _from_right(xp, xp.linalg.solve(LH, P), LH))


@composite("linalg_eigvalsh")
def _eigvalsh(xp: Namespace, A: Array, /) -> Array:
    # the gradient of an eigenvalue is v v^H: it needs the vectors
    return xp.linalg.eigh(A).eigenvalues


@primitive("linalg_eigh", forward=lambda xp, A: EighResult(*xp.linalg.eigh(A)))
def _eigh(xp: Namespace, g: tuple[Array | None, ...], y: tuple[Array, ...], _A: Array) -> Array:
    """Giles, Collected matrix derivative results, 2008, section 3.1, made Hermitian."""
    (gw, gV), (w, V) = g, y
    VH = adjoint(xp, V)
    of_values = None if gw is None else xp.astype(xp.expand_dims(gw, axis=-2), V.dtype) * V
    of_vectors = None
    if gV is not None:
        one = xp.eye(w.shape[-1], dtype=w.dtype, device=device(w))
        gap = xp.expand_dims(w, axis=-2) - xp.expand_dims(w, axis=-1) + one
        of_vectors = xp.matmul(V, xp.matmul(VH, gV) * xp.astype((1 - one) / gap, V.dtype))
    return _hermitian(xp, xp.matmul(_total(of_vectors, of_values), VH))


@composite("linalg_qr")
def _qr(xp: Namespace, A: Array, /, *, mode: str = "reduced") -> QRResult:
    # a wide matrix is its square part's factors and Q^H times the rest
    m, n = A.shape[-2:]
    if mode == "complete" and m > n:
        raise NoRuleError("linalg.qr", "with mode='complete' and more rows than columns: use mode='reduced'")
    if m >= n:
        return QRResult(*xp._qr(A))
    Q, R = xp._qr(A[..., :m])
    return QRResult(Q, xp.concat([R, xp.matmul(adjoint(xp, Q), A[..., m:])], axis=-1))


@primitive("_qr", forward=lambda xp, A: tuple(xp.linalg.qr(A)))
def _qr_rule(xp: Namespace, g: tuple[Array | None, ...], y: tuple[Array, ...], _A: Array) -> Array:
    """Walter and Lehmann, arXiv:1001.1654, m >= n: (gQ + Q copyltu(M)) R^-H, M = R gR^H - gQ^H Q."""
    (gQ, gR), (Q, R) = g, y
    of_R = None if gR is None else xp.matmul(R, adjoint(xp, gR))
    of_Q = None if gQ is None else -xp.matmul(adjoint(xp, gQ), Q)
    B = xp.matmul(Q, _copy_lower(xp, _total(of_R, of_Q)))
    return _from_right(xp, _total(gQ, B), R)


def _copy_lower(xp: Namespace, M: Array) -> Array:
    """Make the Hermitian matrix with M's strictly lower triangle and the real part of its diagonal."""
    lower = xp.tril(M, k=-1)
    diagonal = M * _identity(xp, M)
    return lower + adjoint(xp, lower) + _hermitian(xp, diagonal)


@composite("linalg_svd")
def _svd(xp: Namespace, A: Array, /, *, full_matrices: bool = True) -> SVDResult:
    if full_matrices and A.shape[-2] != A.shape[-1]:
        raise NoRuleError("linalg.svd", "with full_matrices=True for a matrix that is not square: pass False")
    return SVDResult(*xp._svd(A))


@composite("linalg_svdvals")
def _svdvals(xp: Namespace, A: Array, /) -> Array:
    # the gradient of a singular value is u v^H: it needs the vectors
    return xp._svd(A)[1]


@primitive("_svd", forward=lambda xp, A: tuple(xp.linalg.svd(A, full_matrices=False)))
def _svd_rule(xp: Namespace, g: tuple[Array | None, ...], y: tuple[Array, ...], _A: Array) -> Array:
    """Townsend, Differentiating the singular value decomposition, 2016; the phases of a complex pair: PyTorch."""
    (gU, gS, gVh), (U, S, Vh) = g, y
    row, column = xp.expand_dims(S, axis=-2), xp.expand_dims(S, axis=-1)
    of_values = None if gS is None else xp.astype(xp.expand_dims(gS, axis=-2), U.dtype) * U
    of_vectors = None
    if gU is not None or gVh is not None:
        of_vectors = xp.matmul(U, _turns(xp, gU, gVh, U, S, Vh))
    gA = xp.matmul(_total(of_values, of_vectors), Vh)
    if gU is not None and U.shape[-2] > U.shape[-1]:
        outside = gU - xp.matmul(U, xp.matmul(adjoint(xp, U), gU))
        gA = gA + xp.matmul(outside / row, Vh)
    if gVh is not None and Vh.shape[-1] > Vh.shape[-2]:
        outside = gVh - xp.matmul(xp.matmul(gVh, adjoint(xp, Vh)), Vh)
        gA = gA + xp.matmul(U, outside / column)
    return gA


def _turns(xp: Namespace, gU: Array | None, gVh: Array | None, U: Array, S: Array, Vh: Array) -> Array:
    """Add up what the rotations of U and of V inside their own spans contribute, in the basis of the two."""
    row, column = xp.expand_dims(S, axis=-2), xp.expand_dims(S, axis=-1)
    one = xp.eye(S.shape[-1], dtype=S.dtype, device=device(S))
    inverse_gap = (1 - one) / (row * row - column * column + one)
    of_U = of_V = None
    if gU is not None:
        skew = _skew(xp, xp.matmul(adjoint(xp, U), gU))
        of_U = skew * inverse_gap * row
        if complex_dtype(skew.dtype):
            of_U = of_U + skew * _identity(xp, skew) / (2 * row)
    if gVh is not None:
        of_V = column * (_skew(xp, xp.matmul(Vh, adjoint(xp, gVh))) * inverse_gap)
    return _total(of_U, of_V)


def _skew(xp: Namespace, A: Array) -> Array:
    return A - adjoint(xp, A)


constant("linalg_matrix_rank")
