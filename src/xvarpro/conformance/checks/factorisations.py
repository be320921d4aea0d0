"""Factorisations and triangular solves, by their invariants: factors themselves are free in phases and signs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np

from xvarpro import backends
from xvarpro.backends import Backend
from xvarpro.conformance.suite import Measured, Target, check
from xvarpro.core.struct import Array

CONDITION = 1e3
# the last is tall enough that some backends factor it by products instead of reflections
SHAPES: dict[str, tuple[tuple[int, ...], bool]] = {
    "tall": ((7, 3), False),
    "square": ((4, 4), False),
    "wide": ((3, 7), False),
    "stack": ((2, 5, 3), False),
    "complex stack": ((2, 5, 3), True),
    "very tall": ((700, 25), False),
}


@cache
def matrices() -> dict[str, np.ndarray]:
    """Matrices of known singular values, of `CONDITION`."""
    return {name: _matrix(shape, wide) for name, (shape, wide) in SHAPES.items()}


def _matrix(shape: tuple[int, ...], is_complex: bool) -> np.ndarray:
    *lead, m, n = shape
    k = min(m, n)
    U, V = (_orthonormal((*lead, size, k), is_complex, seed) for seed, size in enumerate((m, n)))
    return (U * np.geomspace(1.0, 1 / CONDITION, k)) @ _adjoint(V)


def _orthonormal(shape: tuple[int, ...], is_complex: bool, seed: int) -> np.ndarray:
    return np.linalg.qr(_normal(shape, is_complex, seed))[0]


def _normal(shape: tuple[int, ...], is_complex: bool, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=shape)
    return x + 1j * rng.normal(size=shape) if is_complex else x


def _adjoint(A: np.ndarray) -> np.ndarray:
    return np.conj(np.swapaxes(A, -1, -2))


@cache
def member(backend: Backend, name: str, *options: tuple[str, Any]) -> Callable[..., Any]:
    """A member of a backend with its keyword arguments, as a function that compiles once."""
    return lambda *arrays: getattr(backend, name)(*arrays, **dict(options))


def _floats(target: Target, A: np.ndarray) -> str:
    return target.complex_dtype if np.iscomplexobj(A) else target.dtype


def _unitary(what: str, Q: np.ndarray, tolerance: float) -> Measured:
    eye = np.broadcast_to(np.eye(Q.shape[-1]), (*Q.shape[:-2], Q.shape[-1], Q.shape[-1]))
    return Measured(what, _adjoint(Q) @ Q, eye, tolerance)


@check("factorisations", matrices)
def qr(target: Target, A: np.ndarray) -> Iterator[Measured]:
    """Q has orthonormal columns, R is triangular, and Q R is the matrix; R alone has the same Gram matrix."""
    (Q, R), kinds = target.typed(member(target.backend, "qr"), A)
    (_, alone), (_, kind) = target.typed(member(target.backend, "qr", ("mode", "r")), A)
    A, tolerance = target.held(A), 20 * math.sqrt(A.shape[-1]) * target.eps
    yield Measured("dtypes", (*kinds, kind), (_floats(target, A),) * 3)
    yield _unitary("Q^H Q", Q, tolerance)
    yield Measured("Q R", Q @ R, A, tolerance)
    for what, factor in (("R", R), ("R alone", alone)):
        yield Measured(f"{what} below its diagonal", np.tril(factor, -1), np.zeros_like(factor))
        yield Measured(f"Gram matrix of {what}", _adjoint(factor) @ factor, _adjoint(A) @ A, tolerance)


@check("factorisations", matrices)
def svd(target: Target, A: np.ndarray) -> Iterator[Measured]:
    """The factors are orthonormal, their product is the matrix, and the singular values descend."""
    (U, s, Vh), kinds = target.typed(member(target.backend, "svd"), A)
    A, tolerance = target.held(A), 20 * math.sqrt(max(A.shape[-2:])) * target.eps
    yield Measured("dtypes", kinds, (_floats(target, A), target.dtype, _floats(target, A)))
    yield _unitary("U^H U", U, tolerance)
    yield _unitary("V^H V", _adjoint(Vh), tolerance)
    yield Measured("U s V^H", (U * s[..., None, :]) @ Vh, A, tolerance)
    want = np.broadcast_to(np.geomspace(1.0, 1 / CONDITION, s.shape[-1]), s.shape)
    yield Measured("singular values", s, want, tolerance)


@check("factorisations", matrices)
def cholesky(target: Target, A: np.ndarray) -> Iterator[Measured]:
    """The factor is lower triangular, and its product with its adjoint is the matrix."""
    gram = A @ _adjoint(A) if A.shape[-2] < A.shape[-1] else _adjoint(A) @ A
    gram = gram + np.eye(gram.shape[-1]) / CONDITION
    (L,), (kind,) = target.typed(member(target.backend, "cholesky"), gram)
    yield Measured("dtype", kind, _floats(target, A))
    tolerance = 20 * math.sqrt(gram.shape[-1]) * target.eps
    yield Measured("L L^H", L @ _adjoint(L), target.held(gram), tolerance)
    yield Measured("L above its diagonal", np.triu(L, 1), np.zeros_like(L))
    yield Measured("diagonal of L", np.all(np.real(np.diagonal(L, axis1=-2, axis2=-1)) > 0).item(), True)


TRIANGULAR = {
    f"{'lower' if lower else 'upper'}{', adjoint' if transpose else ''}{', complex' * wide}{' stack' * bool(lead)}": (
        (*lead, 5, 5), wide, lower, transpose,
    )
    for lower in (False, True)
    for transpose in (False, True)
    for lead, wide in (((), False), ((3,), True))
}  # fmt: skip


@check("factorisations", lambda: TRIANGULAR)
def triangular_solves(target: Target, case: tuple[Any, ...]) -> Iterator[Measured]:
    """Solutions have residuals of a rounding, whatever the other triangle holds."""
    shape, wide, lower, transpose = case
    whole = _normal(shape, wide, 0) + 3 * np.eye(shape[-1])
    B = _normal((*shape[:-1], 2), wide, 1)
    R = (np.tril if lower else np.triu)(whole)
    fun = member(target.backend, "solve_triangular", ("lower", lower), ("transpose", transpose))
    (X,), (kind,) = target.typed(fun, R, B)
    R, B = target.held(R), target.held(B)
    size = float(np.linalg.norm(R) * np.linalg.norm(X))
    yield Measured("dtype", kind, _floats(target, B))
    yield Measured("R X", (_adjoint(R) if transpose else R) @ X, B, 10 * target.eps, size)


def _sparse_parts(is_complex: bool) -> tuple[np.ndarray, ...]:
    """Rows and columns, of which one place comes twice and one row never; entries; what is multiplied; a cotangent."""
    rows, columns = np.array([0, 3, 3, 1, 0]), np.array([2, 0, 0, 1, 2])
    return rows, columns, *(_normal(shape, is_complex, i) for i, shape in enumerate(((5,), (3, 2), (4, 2))))


@cache
def sparse(backend: Backend) -> Callable[..., Any]:
    """A product with a sparse matrix, and its gradients by entries and by what it is multiplied with."""

    def fun(rows: Array, columns: Array, entries: Array, w: Array, r: Array) -> tuple[Array, ...]:
        def product(entries: Array, w: Array, rows: Array, columns: Array) -> tuple[Array]:
            return (backends.sparse_product(rows, columns, entries, (4, 3), w),)

        values, pullback = backend.vjp(product, (entries, w), (rows, columns))
        return backend.sparse_product(rows, columns, entries, (4, 3), w), *values, *pullback((r,))

    return fun


@check("factorisations", lambda: {"real": False, "complex": True})
def sparse_products(target: Target, is_complex: bool) -> Iterator[Measured]:
    """Sparse products equal dense ones, repeated entries are summed, and gradients are the transposed products."""
    rows, columns, entries, w, r = _sparse_parts(is_complex)
    (product, again, by_entry, by_w), kinds = target.typed(sparse(target.backend), rows, columns, entries, w, r)
    entries, w, r = (target.held(x) for x in (entries, w, r))
    M = np.zeros((4, 3), entries.dtype)
    np.add.at(M, (rows, columns), entries)
    yield Measured("dtypes", set(kinds), {_floats(target, w)})
    for what, got, want in (
        ("M w", product, M @ w),
        ("M w in a derivative", again, M @ w),
        ("gradient by entries", by_entry, np.sum(r[rows] * np.conj(w[columns]), axis=1)),
        ("gradient by w", by_w, _adjoint(M) @ r),
    ):
        yield Measured(what, got, want, 20 * target.eps)


def _stacks(bad: np.ndarray, good: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.stack([good, bad, 2 * good]), np.stack([good, good, 2 * good])


GOOD = np.eye(3) + 0.1
FAILING: dict[str, tuple[str, np.ndarray, np.ndarray, bool]] = {
    "cholesky of an indefinite matrix": ("cholesky", np.diag([1.0, -1.0, 1.0]), GOOD, True),
    "cholesky of NaN": ("cholesky", np.full((3, 3), np.nan), GOOD, True),
    "svd of NaN": ("svd", np.full((3, 3), np.nan), GOOD, True),
    "svd of inf": ("svd", np.diag([1.0, np.inf, 1.0]), GOOD, True),
    "qr of NaN": ("qr", np.full((3, 3), np.nan), GOOD, True),
    "qr of inf": ("qr", np.diag([1.0, np.inf, 1.0]), GOOD, True),
    "qr of a matrix without rank": ("qr", np.ones((3, 3)), GOOD, False),
    "a triangular solve with 0 on the diagonal": ("solve_triangular", np.diag([1.0, 0.0, 1.0]), np.triu(GOOD), True),
    "a triangular solve with NaN": ("solve_triangular", np.triu(np.full((3, 3), np.nan)), np.triu(GOOD), True),
}


@check("factorisations", lambda: FAILING)
def failures(target: Target, case: tuple[str, np.ndarray, np.ndarray, bool]) -> Iterator[Measured]:
    """A factorisation that fails gives numbers that are not finite, and leaves the rest of a stack as it is."""
    name, bad, good, fails = case
    given, sound = _stacks(bad, good)
    extra = [np.ones((3, 3, 2))] if name == "solve_triangular" else []
    got, _ = target.typed(member(target.backend, name), given, *extra)
    want, _ = target.typed(member(target.backend, name), sound, *extra)
    finite = [all(bool(np.isfinite(x[i]).all()) for x in got) for i in range(3)]
    yield Measured("which of three are finite", finite, [True, not fails, True])
    for i, (x, y) in enumerate(zip(got, want, strict=True)):
        yield Measured(f"neighbours, factor {i}", x[::2], y[::2], 4 * target.eps)
    alone, _ = target.typed(member(target.backend, name), bad, *(x[0] for x in extra))
    yield Measured("by itself", all(bool(np.isfinite(x).all()) for x in alone), not fails)
