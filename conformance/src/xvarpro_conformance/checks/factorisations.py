"""Factorisations and triangular solves, by their invariants: factors themselves are free in phases and signs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np

from xvarpro.backends import Backend, adapters
from xvarpro.core.struct import Array
from xvarpro_conformance.problems import normal
from xvarpro_conformance.suite import Measured, Target, check

CONDITION = 1e3
# shape, whether complex, and condition; the last are tall enough that some backends factor them by products instead
# of reflections, which of itself loses the square of the condition
SHAPES: dict[str, tuple[tuple[int, ...], bool, float]] = {
    "tall": ((7, 3), False, CONDITION),
    "square": ((4, 4), False, CONDITION),
    "wide": ((3, 7), False, CONDITION),
    "one number": ((1, 1), True, CONDITION),
    "one column": ((5, 1), True, CONDITION),
    "stack": ((2, 5, 3), False, CONDITION),
    "complex stack": ((2, 5, 3), True, CONDITION),
    "stack of stacks, complex and wide": ((2, 2, 3, 5), True, CONDITION),
    "very tall": ((700, 25), False, CONDITION),
    "very tall and complex": ((700, 25), True, CONDITION),
    "very tall, of condition 1e7": ((700, 25), False, 1e7),
    "very tall, of condition 1e9": ((700, 25), False, 1e9),
}


@cache
def matrices() -> dict[str, np.ndarray]:
    """Matrices of known singular values."""
    return {name: _matrix(*how) for name, how in SHAPES.items()}


@cache
def small_matrices() -> dict[str, np.ndarray]:
    """Those of `CONDITION`."""
    return {name: A for name, A in matrices().items() if SHAPES[name][2] == CONDITION}


def _matrix(shape: tuple[int, ...], is_complex: bool, condition: float) -> np.ndarray:
    *lead, m, n = shape
    k = min(m, n)
    U, V = (np.linalg.qr(normal((*lead, size, k), is_complex, seed))[0] for seed, size in enumerate((m, n)))
    return (U * np.geomspace(1.0, 1 / condition, k)) @ _adjoint(V)


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
    """Q has orthonormal columns, R is triangular, Q R is the matrix, as it was; R alone has the same Gram matrix."""
    with target.scope():
        sent = target.send(A)
        target.call(member(target.backend, "qr"), sent)
        yield Measured("argument", target.host(sent), target.held(A))
    (Q, R), kinds = target.typed(member(target.backend, "qr"), A)
    (_, alone), (_, kind) = target.typed(member(target.backend, "qr", ("mode", "r")), A)
    A, tolerance = target.held(A), 20 * math.sqrt(A.shape[-1]) * target.eps
    yield Measured("dtypes", (*kinds, kind), (_floats(target, A),) * 3)
    yield _unitary("Q^H Q", Q, tolerance)
    yield Measured("Q R", Q @ R, A, tolerance)
    for what, factor in (("R", R), ("R alone", alone)):
        yield Measured(f"{what} below its diagonal", np.tril(factor, -1), np.zeros_like(factor))
        yield Measured(f"Gram matrix of {what}", _adjoint(factor) @ factor, _adjoint(A) @ A, tolerance)


@check("factorisations", small_matrices)
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


@check("factorisations", small_matrices)
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
    f"{'lower' if lower else 'upper'}{', adjoint' * adjoint}{', complex' * wide}{', stack' * bool(lead)}": (
        lead, wide, lower, adjoint,
    )
    for lower in (False, True)
    for adjoint in (False, True)
    for wide in (False, True)
    for lead in ((), (2, 3))
}  # fmt: skip


@check("factorisations", lambda: TRIANGULAR)
def triangular_solves(target: Target, case: tuple[Any, ...]) -> Iterator[Measured]:
    """Each equation has a residual of a rounding, whatever the units of rows and whatever the other triangle holds."""
    lead, wide, lower, transpose = case
    how = {"lower": lower, "transpose": transpose}
    fun = member(target.backend, "solve_triangular", *((name, on) for name, on in how.items() if on))
    for n, k in ((1, 1), (5, 2), (40, 3)) if not target.backend.compiled or target.thorough else ((5, 2),):
        units = np.geomspace(1.0, 1e6, n)[:, None]
        whole = (normal((*lead, n, n), wide, 0) / n + 3 * np.eye(n)) * (units if lower else 1 / units)
        B = normal((*lead, n, k), wide, 1)
        R = (np.tril if lower else np.triu)(whole)
        (X,), (kind,) = target.typed(fun, np.where(R == 0, np.nan, R), B)
        R, B = target.held(R), target.held(B)
        R = _adjoint(R) if transpose else R
        yield Measured(f"dtype, {n}", kind, _floats(target, B))
        with np.errstate(all="ignore"):
            off = np.max(np.abs(R @ X - B) / (np.abs(R) @ np.abs(X)), initial=0.0)
        yield Measured(f"largest residual, {n}", off, 0.0, 4 * n * target.eps)


@cache
def sparse(backend: Backend) -> Callable[..., Any]:
    """A product with a sparse matrix, and its gradients by entries and by what it is multiplied with."""

    def fun(rows: Array, columns: Array, entries: Array, w: Array, r: Array) -> tuple[Array, ...]:
        def product(entries: Array, w: Array, rows: Array, columns: Array) -> tuple[Array]:
            return (adapters.sparse_product(rows, columns, entries, (4, 3), w),)

        values, pullback = backend.vjp(product, (entries, w), (rows, columns))
        return backend.sparse_product(rows, columns, entries, (4, 3), w), *values, *pullback((r,))

    return fun


@check("factorisations", lambda: {"real": False, "complex": True})
def sparse_products(target: Target, is_complex: bool) -> Iterator[Measured]:
    """Sparse products equal dense ones, repeated entries are summed, and gradients are the transposed products."""
    rows, columns = np.array([0, 3, 3, 1, 0]), np.array([2, 0, 0, 1, 2])  # places come twice, and one row never
    entries, w, r = (normal(shape, is_complex, i) for i, shape in enumerate(((5,), (3, 2), (4, 2))))
    (product, again, by_entry, by_w), kinds = target.typed(sparse(target.backend), rows, columns, entries, w, r)
    entries, w, r = (target.held(x) for x in (entries, w, r))
    M = np.zeros((4, 3), entries.dtype)
    np.add.at(M, (rows, columns), entries)
    yield Measured("dtypes", set(kinds), {_floats(target, w)})
    if (add := getattr(target.backend, "index_add", None)) is not None:
        with target.scope():
            add(x := target.send(0 * entries), target.send(rows), target.send(entries))
            yield Measured("what was added to", target.host(x), 0 * entries)
    for what, got, want in (
        ("M w", product, M @ w),
        ("M w in a derivative", again, M @ w),
        ("gradient by entries", by_entry, np.sum(r[rows] * np.conj(w[columns]), axis=1)),
        ("gradient by w", by_w, _adjoint(M) @ r),
    ):
        yield Measured(what, got, want, 20 * target.eps)


GOOD = np.eye(3) + 0.1
FAILING: dict[str, tuple[str, np.ndarray, np.ndarray, bool]] = {
    "cholesky of an indefinite matrix": ("cholesky", np.diag([1.0, -1.0, 1.0]), GOOD, True),
    "cholesky of NaN": ("cholesky", np.full((3, 3), np.nan), GOOD, True),
    "svd of NaN": ("svd", np.full((1, 3), np.nan), GOOD[:1], True),
    "svd of inf": ("svd", np.vstack([np.full(3, np.inf), GOOD[1:]]), GOOD, True),
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
    given, sound = (np.stack([good, middle, 2 * good]) for middle in (bad, good))
    extra = [np.ones((3, 3, 2))] if name == "solve_triangular" else []
    got, _ = target.typed(member(target.backend, name), given, *extra)
    want, _ = target.typed(member(target.backend, name), sound, *extra)
    finite = [all(bool(np.isfinite(x[i]).all()) for x in got) for i in range(3)]
    yield Measured("which of three are finite", finite, [True, not fails, True])
    for i, (x, y) in enumerate(zip(got, want, strict=True)):
        yield Measured(f"neighbours, factor {i}", x[::2], y[::2], 4 * target.eps)
    alone, _ = target.typed(member(target.backend, name), bad, *(x[0] for x in extra))
    yield Measured("by itself", all(bool(np.isfinite(x).all()) for x in alone), not fails)
    yield Measured("shapes", [x.shape for x in alone], [x.shape[1:] for x in want])
