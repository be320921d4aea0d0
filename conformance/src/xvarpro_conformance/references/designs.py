"""Every design as a matrix, entry by entry from its definition, in loops over arrays of numbers of any kind."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from xvarpro.core import trees


def dense(M: Any) -> np.ndarray:
    """The matrix (m, n), or one for each right-hand side, (k, m, n), of a design around NumPy's arrays."""
    if isinstance(M, np.ndarray):
        return np.asarray(M)
    name = type(M).__name__
    if name not in _RULES:
        raise NotImplementedError(f"the suite has no definition of {name}: add one to conformance/references/designs")
    return _RULES[name](trees.map_arrays(np.asarray, M))


def gradient(M: Any, r: np.ndarray, w: np.ndarray) -> list[np.ndarray]:
    """``dRe <r, M w>``, real parts in the direction 1 and imaginary ones in i, by every floating-point array of M.

    M is affine or quadratic in a real or imaginary part of one entry: a central difference of any step is the slope.
    """
    arrays, skeleton = trees.partition(M)

    def slope(i: int, at: tuple[int, ...], unit: complex) -> float:
        def energy(step: complex) -> float:
            moved: list[Any] = list(arrays)
            moved[i] = np.array(arrays[i])
            moved[i][at] += step
            return float(np.vdot(r, times(dense(skeleton.fill(moved)), w)).real)

        return (energy(unit) - energy(-unit)) / 2

    found = []
    for i, x in enumerate(arrays):
        if x.dtype.kind not in "fc":
            continue
        g = np.zeros_like(x)
        for at in np.ndindex(x.shape):
            g[at] = slope(i, at, 1.0) + (1j * slope(i, at, 1j) if x.dtype.kind == "c" else 0.0)
        found.append(g)
    return found


def times(A: np.ndarray, w: np.ndarray) -> np.ndarray:
    """``A w``, or ``A[j] w[:, j]`` in column j."""
    return A @ w if A.ndim == 2 else np.stack([A[j] @ w[:, j] for j in range(len(A))], axis=1)


def adjoint(A: np.ndarray) -> np.ndarray:
    """The conjugate transpose, of each matrix of a stack."""
    return np.conj(A.mT)


# -- one function for each class ---------------------------------------------------------------------------------------


def _entries(m: int, n: int, entry: Callable[[int, int], Any]) -> np.ndarray:
    return np.array([[entry(i, j) for j in range(n)] for i in range(m)])


def _diagonal(d: np.ndarray) -> np.ndarray:
    if d.ndim == 2:
        return np.stack([_diagonal(d[:, j]) for j in range(d.shape[1])])
    return _entries(len(d), len(d), lambda i, j: d[i] if i == j else 0 * d[i])


def _low_rank_plus_diagonal(M: Any) -> np.ndarray:
    n, rank = M.U.shape
    added = _entries(n, n, lambda i, j: sum(M.U[i, a] * M.V[j, a].conjugate() for a in range(rank)))
    return _diagonal(M.d) + added


def _kronecker(M: Any) -> np.ndarray:
    B = np.eye(M.size) if M.B is None else M.B
    (m, n), (p, q) = M.A.shape, B.shape
    return _entries(m * p, n * q, lambda i, j: M.A[i // p, j // q] * B[i % p, j % q])


def _weighted(M: Any) -> np.ndarray:
    A = dense(M.M)
    if M.s.shape[1] == 1:
        return M.s * A
    k = M.s.shape[1]
    return np.stack([M.s[:, j : j + 1] * (A if A.ndim == 2 else A[j]) for j in range(k)])


def _sparse(M: Any) -> np.ndarray:
    A = np.zeros(M.shape, M.data.dtype)
    for x, i, j in zip(M.data, M.row_indices, M.column_indices, strict=True):
        A[i, j] += x
    return A


def _blocks(M: Any, down_and_right: bool) -> np.ndarray:
    parts = [dense(block) for block in M.blocks]
    k = max((A.shape[0] for A in parts if A.ndim == 3), default=0)
    if k:
        return np.stack([_placed([A if A.ndim == 2 else A[j] for A in parts], down_and_right) for j in range(k)])
    return _placed(parts, down_and_right)


def _placed(parts: list[np.ndarray], down_and_right: bool) -> np.ndarray:
    width = sum(A.shape[1] for A in parts) if down_and_right else parts[0].shape[1]
    whole = np.zeros((sum(A.shape[0] for A in parts), width), np.result_type(*parts))
    i = j = 0
    for A in parts:
        m, n = A.shape
        whole[i : i + m, j : j + n] = A
        i, j = i + m, j + n * down_and_right
    return whole


def _periodic(kernel: np.ndarray) -> np.ndarray:
    """``M[i, j] = kernel[i - j]``, indices modulo the grid."""
    places = list(np.ndindex(kernel.shape))
    return _entries(
        len(places),
        len(places),
        lambda i, j: kernel[tuple((a - b) % n for a, b, n in zip(places[i], places[j], kernel.shape, strict=True))],
    )


def _convolution(
    kernel: np.ndarray, rows: tuple[int, ...], grid: tuple[int, ...], first: tuple[int, ...]
) -> np.ndarray:
    """``M[i, j] = kernel[i - j + first]``, 0 where that is no place of the kernel."""
    above, aside = list(np.ndindex(*rows)), list(np.ndindex(*grid))

    def entry(i: int, j: int) -> Any:
        at = tuple(a - b + f for a, b, f in zip(above[i], aside[j], first, strict=True))
        inside = all(0 <= a < size for a, size in zip(at, kernel.shape, strict=True))
        return kernel[at] if inside else 0 * kernel.flat[0]

    return _entries(math.prod(rows), math.prod(grid), entry)


def _one_kernel(M: Any) -> np.ndarray:
    sizes = list(zip(M.signal, M.kernel.shape, strict=True))
    if M.mode == "full":
        return _convolution(M.kernel, tuple(n + p - 1 for n, p in sizes), M.signal, (0,) * len(sizes))
    rows, first = tuple(abs(n - p) + 1 for n, p in sizes), tuple(min(n, p) - 1 for n, p in sizes)
    return _convolution(M.kernel, rows, M.signal, first)


_RULES: dict[str, Callable[[Any], np.ndarray]] = {
    "Dense": lambda M: np.asarray(M.array),
    "Diagonal": lambda M: _diagonal(M.d),
    "LowRankPlusDiagonal": _low_rank_plus_diagonal,
    "Kronecker": _kronecker,
    "Weighted": _weighted,
    "Sparse": _sparse,
    "MatrixFree": lambda M: np.asarray(M.forward(M.p, np.eye(M.shape[1]))),
    "Composition": lambda M: reduce(np.matmul, map(dense, M.factors)),
    "Sum": lambda M: reduce(np.add, map(dense, M.terms)),
    "BlockDiagonal": lambda M: _blocks(M, True),
    "Stacked": lambda M: _blocks(M, False),
    "Circulant": lambda M: _periodic(M.kernel),
    "StackedCirculant": lambda M: np.concatenate([_periodic(kernel) for kernel in M.kernels]),
    "CirculantPerColumn": lambda M: np.stack([_periodic(kernel) for kernel in M.kernels]),
    "Convolution": _one_kernel,
}
