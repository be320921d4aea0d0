"""NumPy: the reference backend and the default."""

# mypy: disable-error-code="override"
# its methods take NumPy's arrays, not those of any framework

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import array_api_compat.numpy as xp
import numpy as np
from numpy import ndarray

from xvarpro.backends.eager import TapedBackend, each_matrix, nan_if_not_finite
from xvarpro.backends.special import derivative
from xvarpro.core.namespace import adjoint, adopt
from xvarpro.errors import needs

adopt(ndarray, xp, "cpu")

BLOCK, WIDE = 32, 128  # rows of a triangle that are inverted together, from so many right-hand sides on


class NumPyBackend(TapedBackend):
    """NumPy on the host."""

    name = "numpy"
    roots = ("numpy",)
    xp = xp

    def asarray(self, x: Any, *, dtype: str | None = None, device: Any = None) -> ndarray:
        x = np.asarray(x, dtype=dtype)
        return x if x.dtype.isnative else x.astype(x.dtype.newbyteorder("="))

    def to_numpy(self, x: ndarray) -> ndarray:
        return np.asarray(x)

    def to_floats(self, scalars: Sequence[ndarray]) -> list[float]:
        return list(map(float, scalars))

    def devices(self) -> dict[str, Any]:
        return {"cpu": "cpu"}

    def deterministic(self) -> NumPyBackend:
        return self  # no operation of NumPy or of its BLAS depends on which thread is first

    def index_add(self, x: ndarray, key: Any, v: ndarray) -> ndarray:
        out = x.copy()
        np.add.at(out, key, v)
        return out

    def householder_qr(self, A: ndarray, mode: str = "reduced") -> tuple[ndarray, ndarray]:
        if mode == "r":
            R: Any = np.linalg.qr(A, mode="r")
            return A, R
        Q, R = np.linalg.qr(A)
        return Q, R

    def svd(self, A: ndarray) -> tuple[ndarray, ndarray, ndarray]:
        U, s, Vh = each_matrix(lambda A: tuple(np.linalg.svd(A, full_matrices=False)), _no_svd, nan_if_not_finite(A))
        return U, s, Vh

    def cholesky(self, A: ndarray) -> ndarray:
        found: ndarray = each_matrix(np.linalg.cholesky, lambda A: np.full_like(A, np.nan), A)
        return found

    def solve_triangular(self, R: ndarray, B: ndarray, *, lower: bool = False, transpose: bool = False) -> ndarray:
        # SciPy brings a BLAS of its own, whose threads get in the way of NumPy's: all else takes twice as long. A lower
        # triangular matrix is upper from its last row on; unreversed, LU would exchange rows, by sizes that units of
        # the unknowns decide. Partial pivoting finds the diagonal of an upper one, so that its LU is itself
        R, order = adjoint(R) if transpose else R, slice(None, None, -1 if lower != transpose else 1)
        R = np.where(_upper(R.shape[-1]), R[..., order, order], 0.0)  # what the other triangle holds is anybody's
        fun = np.linalg.solve if B.ndim > 2 or B.shape[1] < WIDE else _substituted
        X: ndarray = each_matrix(fun, lambda R, B: np.full_like(B, np.nan), R, B[..., order, :])
        return X[..., order, :]

    def sparse_product(
        self, rows: ndarray, columns: ndarray, data: ndarray, shape: tuple[int, int], w: ndarray
    ) -> ndarray:
        try:
            from scipy.sparse import coo_array
        except ImportError:
            return np.asarray(super().sparse_product(rows, columns, data, shape, w))
        return coo_array((data, (rows, columns)), shape=shape) @ w

    def special(self, x: ndarray, name: str, n: int) -> Any:
        with needs(f"xv.special.{name}", "scipy"):
            import scipy.special
        return derivative(scipy.special, x, name, n)

    @contextmanager
    def scope(self, dtype: str) -> Iterator[None]:
        with np.errstate(all="ignore"):
            yield

    def describe(self) -> dict[str, Any]:
        config: Any = np.show_config(mode="dicts")
        blas = config.get("Build Dependencies", {}).get("blas", {})
        return {
            "numpy": np.__version__,
            "derivatives": "tape",
            "blas": f"{blas.get('name', 'unknown')} {blas.get('version', '')}".strip(),
            "simd": " ".join(config.get("SIMD Extensions", {}).get("found", [])[-1:]) or "baseline",
        }


@cache
def _upper(n: int) -> ndarray:
    mask: ndarray = np.tri(n, dtype=bool).T
    return mask


def _substituted(R: ndarray, B: ndarray) -> ndarray:
    """``R^-1 B`` of an upper triangular R and many right-hand sides.

    LU takes some ten times as long as products: blocks of R are inverted instead, each with a correction, without which
    the residual would be that of an inverse and not that of a substitution; but for blocks of a condition that one
    correction does not make up for (that of Skeel, which units do not change).
    """
    X: ndarray = np.empty(B.shape, np.result_type(R, B))
    for stop in range(len(R), 0, -BLOCK):
        at = slice(max(0, stop - BLOCK), stop)
        D, b = R[at, at], B[at] - R[at, stop:] @ X[stop:]
        inverse = np.linalg.inv(D)
        if np.max(np.abs(inverse) @ np.abs(D)) ** 2 < 1 / np.finfo(R.dtype).eps:
            x = inverse @ b
            X[at] = x + inverse @ (b - D @ x)
        else:
            X[at] = np.linalg.solve(D, b)
    return X


def _no_svd(A: ndarray) -> tuple[ndarray, ndarray, ndarray]:
    k, nan = min(A.shape), np.full_like(A, np.nan)
    return nan[:, :k], np.full(k, np.nan, A.real.dtype), nan[:k, :]
