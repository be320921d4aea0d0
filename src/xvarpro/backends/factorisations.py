"""Factorisations as `Backend` promises them, by frameworks that raise where a matrix is singular or take long."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from xvarpro.core.namespace import adjoint, device, namespace_of
from xvarpro.core.trees import map_leaves

# where Cholesky QR is the faster one: columns at least, rows per column, and entries (benchmarks/overhead.py)
NARROW, ASPECT, ENTRIES = 8, 4, 2**14
T = TypeVar("T", bound=Any)  # an array of one framework


def linalg_errors() -> tuple[type[Exception], ...]:
    """What the linear algebra of the frameworks in use raises on a singular or indefinite matrix."""
    torch = sys.modules.get("torch")
    return (np.linalg.LinAlgError,) if torch is None else (np.linalg.LinAlgError, torch.linalg.LinAlgError)


def each_matrix(fun: Callable[..., Any], fail: Callable[..., Any], *stacks: T) -> Any:
    """``fun(*stacks)`` of stacks of matrices; where that raises, one by one, with ``fail`` for those that raise.

    Both return an array, or a tuple of arrays.
    """
    try:
        return fun(*stacks)
    except linalg_errors():
        if stacks[0].ndim == 2:
            return fail(*stacks)
    xp, lead = namespace_of(*stacks), stacks[0].shape[:-2]
    flat = [xp.reshape(x, (-1, *x.shape[-2:])) for x in stacks]
    found = [each_matrix(fun, fail, *(x[i, ...] for x in flat)) for i in range(flat[0].shape[0])]
    return map_leaves(lambda *x: xp.reshape(xp.stack(x), (*lead, *x[0].shape)), *found)


def nan_if_not_finite(A: T) -> T:
    """NaN in place of every matrix with an entry that is not finite: LAPACK's SVD may never return from an inf."""
    xp = namespace_of(A)
    bad = ~xp.all(xp.isfinite(A), axis=(-2, -1), keepdims=True)
    return xp.where(bad, xp.full_like(A, xp.nan), A)


def cholesky_qr(backend: Any, A: T) -> tuple[T, T] | None:
    """Cholesky QR twice where A is tall and not too badly conditioned: products instead of reflections; else None.

    The second pass gives what Householder's gives, Q orthogonal and ``Q R - A`` zero to rounding, if the first left
    ``|Q^T Q - I| < 1`` (Yamamoto, Nakatsukasa, Yanagisawa, Fukaya 2015), which is checked. It is three to five times as
    fast, for Householder's panels are products with vectors.
    """
    m, n = A.shape[-2:]
    if A.ndim > 2 or n < NARROW or m < ASPECT * n or m * n < ENTRIES:
        return None
    xp = namespace_of(A)
    R = adjoint(backend.cholesky(adjoint(A) @ A))
    Q = adjoint(backend.solve_triangular(R, adjoint(A), transpose=True))
    gram = adjoint(Q) @ Q
    eye = xp.eye(n, dtype=A.dtype, device=device(A))
    # written so that NaN, from a Gram matrix that is indefinite or overflowed, fails the test
    if not bool(n * xp.max(xp.abs(gram - eye)) < 0.1):
        return None
    second = adjoint(backend.cholesky(gram))
    # near the identity an inverse is as accurate as a solve, and the product with it leaves Q in row order
    return Q @ backend.solve_triangular(second, eye), second @ R
