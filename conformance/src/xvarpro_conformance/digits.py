"""The array API over mpmath's numbers, from definitions: references of values and derivatives, with 100 digits.

Arrays are NumPy's, of dtype object; what NumPy does with them is to move entries, and to apply Python's operators.
"""

from __future__ import annotations

import math
from collections import namedtuple
from collections.abc import Callable, Sequence
from functools import cache, cached_property, reduce
from types import SimpleNamespace
from typing import Any

import numpy as np

from xvarpro_conformance.suite import Inapplicable

DIGITS = 100
STEP = 1e-15  # of differences, which keep 20 digits of a second derivative

QR = namedtuple("QR", "Q R")
SVD = namedtuple("SVD", "U S Vh")
Eigh = namedtuple("Eigh", "eigenvalues eigenvectors")
Slogdet = namedtuple("Slogdet", "sign logabsdet")
Matrix = Any  # an array of dtype object with two axes


@cache
def numbers() -> Any:
    """A context of mpmath's of its own: the precision of others stays."""
    try:
        from mpmath import MPContext
    except ImportError as error:
        raise Inapplicable("compared with mpmath, which is not installed: pip install 'xvarpro[cli]'") from error
    context = MPContext()
    context.dps = DIGITS
    return context


def exact(x: Any) -> Any:
    """An array of mpmath's numbers, equal to those given."""
    return _array(np.frompyfunc(numbers().mpmathify, 1, 1)(np.asarray(x).astype(object)))


def rounded(x: Any) -> np.ndarray:
    """The nearest numbers in double precision."""
    flat = [complex(v) for v in np.asarray(x, object).ravel()]
    is_complex = any(isinstance(v, numbers().mpc | complex) for v in np.asarray(x, object).ravel())
    return np.array(flat if is_complex else [v.real for v in flat]).reshape(np.shape(x))


def _array(x: Any) -> Any:
    return np.asarray(x, object)


def _each(fun: Callable[..., Any]) -> Callable[..., Any]:
    def elementwise(*xs: Any) -> Any:
        return _array(np.frompyfunc(fun, len(xs), 1)(*xs))

    return elementwise


def _stacked(fun: Callable[..., Any]) -> Callable[..., Any]:
    """A function of one matrix, or of one and a right-hand side, for stacks of them."""

    def of_stack(A: Any, *rest: Any, **options: Any) -> Any:
        if A.ndim == 2:
            return fun(A, *rest, **options)
        found = [of_stack(a, *rest, **options) for a in A]
        if isinstance(found[0], tuple):
            return type(found[0])(*(np.stack([_array(x) for x in part]) for part in zip(*found, strict=True)))
        return np.stack([_array(x) for x in found])

    return of_stack


def _adjoint(A: Matrix) -> Matrix:
    return np.conj(np.swapaxes(A, -1, -2))


def _eliminate(A: Matrix, B: Matrix) -> tuple[Matrix, Any]:
    """``A^-1 B`` by Gauss and Jordan, with the determinant of A."""
    A, B, det = A.copy(), B.copy(), numbers().mpf(1)
    for k in range(len(A)):
        p = max(range(k, len(A)), key=lambda i: abs(A[i, k]))
        if p != k:
            A[[k, p]], B[[k, p]], det = A[[p, k]], B[[p, k]], -det
        pivot = A[k, k]
        det *= pivot
        A[k], B[k] = A[k] / pivot, B[k] / pivot
        for i in range(len(A)):
            if i != k:
                factor = A[i, k]
                A[i], B[i] = A[i] - factor * A[k], B[i] - factor * B[k]
    return B, det


def _eye(n: int) -> Matrix:
    return exact(np.eye(n))


def _inverse(A: Matrix) -> Matrix:
    return _eliminate(A, _eye(len(A)))[0]


def _solve(A: Any, b: Any) -> Any:
    if b.ndim == 1:
        return np.matmul(_stacked(_inverse)(A), b)
    lead = np.broadcast_shapes(A.shape[:-2], b.shape[:-2])
    return np.matmul(np.broadcast_to(_stacked(_inverse)(A), (*lead, *A.shape[-2:])), b)


def _slogdet(A: Matrix) -> Slogdet:
    det = _eliminate(A, _eye(len(A)))[1]
    return Slogdet(det / abs(det), numbers().log(abs(det)))


def _cholesky(A: Matrix) -> Matrix:
    L = 0 * A
    for i in range(len(A)):
        for j in range(i + 1):
            rest = A[i, j] - sum(L[i, k] * np.conj(L[j, k]) for k in range(j))
            L[i, j] = numbers().sqrt(numbers().re(rest)) if i == j else rest / L[j, j]
    return L


def _qr(A: Matrix, mode: str = "reduced") -> QR:
    """By Householder's reflections, with LAPACK's signs."""
    (m, n), ctx = A.shape, numbers()
    R, Q = A.copy(), _eye(m)
    for k in range(min(m, n)):
        x = R[k:, k].copy()
        first = x[0]
        if m - k == 1 and not ctx.im(first):
            continue  # nothing to reflect
        length = ctx.sqrt(sum(abs(v) ** 2 for v in x))
        beta = -length if ctx.re(first) >= 0 else length
        # I - tau v v^H maps x to beta e_1, which is real
        tau = (beta - np.conj(first)) / beta
        v = x / (first - beta)
        v[0] = ctx.mpf(1)
        R[k:] = R[k:] - tau * np.outer(v, np.conj(v) @ R[k:])
        Q[:, k:] = Q[:, k:] - np.conj(tau) * np.outer(Q[:, k:] @ v, np.conj(v))
    if mode == "complete":
        return QR(Q, R)
    return QR(Q[:, : min(m, n)], R[: min(m, n)])


def _svd(A: Matrix, full_matrices: bool = True) -> SVD:
    ctx = numbers()
    U, s, Vh = ctx.svd(ctx.matrix(A.tolist()), full_matrices=False)
    return SVD(_array(U.tolist()), _array(list(s)), _array(Vh.tolist()))


def _eigh(A: Matrix) -> Eigh:
    ctx = numbers()
    values, vectors = ctx.eigh(ctx.matrix(A.tolist()))
    return Eigh(_array(list(values)), _array(vectors.tolist()))


def _pinv(A: Matrix) -> Matrix:
    if A.shape[0] < A.shape[1]:
        return _adjoint(_pinv(_adjoint(A)))
    return _inverse(_adjoint(A) @ A) @ _adjoint(A)


def _power(A: Matrix, n: int) -> Matrix:
    return reduce(np.matmul, [_inverse(A) if n < 0 else A] * abs(n), _eye(len(A)))


def _length(x: Any, axis: Any = None, keepdims: bool = False, ord: float = 2) -> Any:
    size = _each(abs)(x)
    if math.isinf(ord):
        return (np.max if ord > 0 else np.min)(size, axis=axis, keepdims=keepdims)
    if ord == 0:
        return np.sum(_array(size != 0), axis=axis, keepdims=keepdims)
    p = numbers().mpf(ord)
    return _each(lambda total: total ** (1 / p) if total else total)(
        np.sum(_each(lambda v: v**p)(size), axis=axis, keepdims=keepdims)
    )


def _matrix_norm(x: Any, keepdims: bool = False, ord: Any = "fro") -> Any:
    if ord in ("nuc", 2, -2):
        s = _stacked(lambda A: _svd(A).S)(x)
        found = np.sum(s, axis=-1) if ord == "nuc" else (np.max if ord > 0 else np.min)(s, axis=-1)
    elif ord == "fro":
        found = _length(x, axis=(-2, -1))
    else:
        sums = np.sum(_each(abs)(x), axis=-2 if abs(ord) == 1 else -1)
        found = (np.max if ord > 0 else np.min)(sums, axis=-1)
    return _array(found)[..., None, None] if keepdims else found


def _vecdot(a: Any, b: Any, axis: int = -1) -> Any:
    return np.sum(np.conj(a) * b, axis=axis)


def _mean(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    total = np.sum(x, axis=axis, keepdims=keepdims)
    return total / numbers().mpf(x.size // max(1, _array(total).size))


def _var(x: Any, axis: Any = None, correction: float = 0, keepdims: bool = False) -> Any:
    off = x - _array(_mean(x, axis, keepdims=True))
    total = np.sum(off * off, axis=axis, keepdims=keepdims)
    return total / (numbers().mpf(x.size // _array(total).size) - correction)


def _std(x: Any, **options: Any) -> Any:
    return _each(numbers().sqrt)(_var(x, **options))


def _cumulative(fun: Any, first: float) -> Callable[..., Any]:
    def cumulative(x: Any, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> Any:
        axis = 0 if axis is None else axis
        if include_initial:
            shape = list(x.shape)
            shape[axis] = 1
            x = np.concatenate([exact(np.full(shape, first)), x], axis=axis)
        return fun.accumulate(x, axis=axis)

    return cumulative


def _clip(x: Any, low: Any = None, high: Any = None, *, min: Any = None, max: Any = None) -> Any:
    low, high = low if min is None else min, high if max is None else max
    x = x if low is None else np.maximum(x, low)
    return x if high is None else np.minimum(x, high)


def _sort(x: Any, axis: int = -1, descending: bool = False, stable: bool = True) -> Any:
    return np.flip(np.sort(x, axis=axis), axis=axis) if descending else np.sort(x, axis=axis)


def _unstack(x: Any, axis: int = 0) -> tuple[Any, ...]:
    return tuple(np.moveaxis(x, axis, 0))


def _asarray(x: Any, dtype: Any = None) -> Any:
    return np.asarray(x) if dtype is None else exact(x)


# -- Fourier transforms, by their sums


def _resized(x: Any, n: int, axis: int) -> Any:
    x = np.moveaxis(_array(x), axis, -1)
    missing = exact(np.zeros((*x.shape[:-1], max(0, n - x.shape[-1]))))
    return np.concatenate([x[..., :n], missing], axis=-1)


def _scale(norm: str, n: int, inverse: bool) -> Any:
    n = numbers().mpf(n)
    return 1 / numbers().sqrt(n) if norm == "ortho" else 1 / n if inverse == (norm == "backward") else numbers().mpf(1)


@cache
def _waves(n: int, sign: int) -> Any:
    ctx = numbers()
    roots = [ctx.expjpi(ctx.mpf(2 * sign * k) / n) for k in range(n)]
    return _array([[roots[j * k % n] for k in range(n)] for j in range(n)])


def _transform(inverse: bool) -> Callable[..., Any]:
    def fft(x: Any, n: int | None = None, axis: int = -1, norm: str = "backward") -> Any:
        n = n or x.shape[axis]
        y = _resized(x, n, axis) @ _waves(n, 1 if inverse else -1) * _scale(norm, n, inverse)
        return np.moveaxis(y, -1, axis)

    return fft


def _rfft(x: Any, n: int | None = None, axis: int = -1, norm: str = "backward") -> Any:
    whole = np.moveaxis(_transform(False)(x, n, axis, norm), axis, -1)
    return np.moveaxis(whole[..., : whole.shape[-1] // 2 + 1], -1, axis)


def _irfft(x: Any, n: int | None = None, axis: int = -1, norm: str = "backward") -> Any:
    n = n or 2 * (x.shape[axis] - 1)
    half = _resized(x, n // 2 + 1, axis)
    # a real signal: the other half is conjugate, and what is its own conjugate is real
    twice = exact([1.0] + [2.0] * ((n - 1) // 2) + [1.0] * (n > 1 and n % 2 == 0))
    y = _real((half * twice) @ _waves(n, 1)[: n // 2 + 1]) * _scale(norm, n, True)
    return np.moveaxis(y, -1, axis)


def _hfft(x: Any, n: int | None = None, axis: int = -1, norm: str = "backward") -> Any:
    n = n or 2 * (x.shape[axis] - 1)
    return _irfft(np.conj(x), n, axis, norm) / _scale(norm, n, True) * _scale(norm, n, False)


def _ihfft(x: Any, n: int | None = None, axis: int = -1, norm: str = "backward") -> Any:
    n = n or x.shape[axis]
    return np.conj(_rfft(x, n, axis, norm)) / _scale(norm, n, False) * _scale(norm, n, True)


def _several(last: Callable[..., Any], others: Callable[..., Any], backwards: bool) -> Callable[..., Any]:
    def fftn(x: Any, s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: str = "backward") -> Any:
        axes = range(x.ndim) if axes is None else axes
        sizes: Sequence[int | None] = [None] * len(axes) if s is None else s
        passes = [*zip([others] * (len(axes) - 1), sizes, axes, strict=False), (last, sizes[-1], axes[-1])]
        for fun, n, axis in passes if backwards else passes[::-1]:
            x = fun(x, n, axis, norm)
        return x

    return fftn


def _real(x: Any) -> Any:
    return _each(numbers().re)(x)


class Exact:
    """The namespace; `float64` and every other float dtype is that of mpmath's numbers."""

    newaxis = None
    float32 = float64 = complex64 = complex128 = np.dtype(object)
    int64 = np.dtype(np.int64)

    def __getattr__(self, name: str) -> Any:
        return self.own[name] if name in self.own else _each(getattr(numbers(), name))

    @cached_property
    def own(self) -> dict[str, Any]:
        """What is no function of mpmath's by the same name, applied entry by entry."""
        ctx = numbers()
        entrywise = {
            "abs": abs,
            "add": lambda x, y: x + y,
            "subtract": lambda x, y: x - y,
            "multiply": lambda x, y: x * y,
            "divide": lambda x, y: x / y,
            "pow": lambda x, y: ctx.mpmathify(x) ** y,
            "negative": lambda x: -x,
            "positive": lambda x: x,
            "reciprocal": lambda x: 1 / x,
            "square": lambda x: x * x,
            "log2": lambda x: ctx.log(x) / ctx.log(2),
            "log10": lambda x: ctx.log(x) / ctx.log(10),
            "real": ctx.re,
            "imag": ctx.im,
            "logaddexp": lambda x, y: ctx.log(ctx.exp(x) + ctx.exp(y)),
            "maximum": max,
            "minimum": min,
            "remainder": lambda x, y: x - y * ctx.floor(ctx.mpmathify(x) / y),
            "copysign": lambda x, y: abs(ctx.mpmathify(x)) * (-1 if y < 0 else 1),
            "sign": lambda x: x / abs(x) if x else 0 * x,
        }
        moved = (
            "argmax", "broadcast_arrays", "broadcast_to", "diff", "expand_dims", "flip", "matmul", "max", "meshgrid",
            "min", "moveaxis", "prod", "repeat", "roll", "squeeze", "stack", "sum", "take", "tensordot", "tile",
            "tril", "triu", "where", "zeros", "conj",
        )  # fmt: skip
        fft, ifft = _transform(False), _transform(True)
        return {
            **{name: _each(fun) for name, fun in entrywise.items()},
            **{name: getattr(np, name) for name in moved},
            "asarray": _asarray,
            "astype": lambda x, dtype, copy=True: _each(int)(x) if dtype == self.int64 else exact(x),
            "clip": _clip,
            "concat": np.concatenate,
            "cumulative_sum": _cumulative(np.add, 0.0),
            "cumulative_prod": _cumulative(np.multiply, 1.0),
            "isdtype": lambda dtype, kind: True,
            "matrix_transpose": lambda x: np.swapaxes(x, -1, -2),
            "mean": _mean,
            "ones_like": lambda x: exact(np.ones(x.shape)),
            "permute_dims": np.transpose,
            "reshape": lambda x, shape, copy=None: np.reshape(x, shape),
            "sort": _sort,
            "std": _std,
            "take_along_axis": lambda x, indices, axis=-1: np.take_along_axis(x, indices, axis),
            "unstack": _unstack,
            "var": _var,
            "vecdot": _vecdot,
            "fft": SimpleNamespace(
                fft=fft, ifft=ifft, rfft=_rfft, irfft=_irfft, hfft=_hfft, ihfft=_ihfft,
                fftn=_several(fft, fft, True), ifftn=_several(ifft, ifft, True),
                rfftn=_several(_rfft, fft, False), irfftn=_several(_irfft, ifft, True),
                fftshift=np.fft.fftshift, ifftshift=np.fft.ifftshift,
            ),
            "linalg": SimpleNamespace(
                cholesky=_stacked(lambda A, upper=False: _adjoint(_cholesky(A)) if upper else _cholesky(A)),
                cross=np.cross,
                det=_stacked(lambda A: _eliminate(A, _eye(len(A)))[1]),
                diagonal=lambda A, offset=0: np.diagonal(A, offset, -2, -1),
                eigh=_stacked(_eigh),
                eigvalsh=_stacked(lambda A: _eigh(A).eigenvalues),
                inv=_stacked(_inverse),
                matmul=np.matmul,
                matrix_norm=_matrix_norm,
                matrix_power=_stacked(_power),
                matrix_transpose=lambda x: np.swapaxes(x, -1, -2),
                outer=np.outer,
                pinv=_stacked(_pinv),
                qr=_stacked(_qr),
                slogdet=_stacked(_slogdet),
                solve=_solve,
                svd=_stacked(_svd),
                svdvals=_stacked(lambda A: _svd(A).S),
                tensordot=np.tensordot,
                trace=lambda A, offset=0: np.sum(np.diagonal(A, offset, -2, -1), axis=-1),
                vecdot=_vecdot,
                vector_norm=_length,
            ),
        }  # fmt: skip


EXACT = Exact()
