"""NumPy: the reference backend and the default."""

# mypy: disable-error-code="override"
# its methods take NumPy's arrays, not those of any framework

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import array_api_compat.numpy as xp
import numpy as np
from numpy import ndarray

from xvarpro.backends.factorisations import each_matrix, nan_if_not_finite
from xvarpro.backends.special import derivative
from xvarpro.backends.taped import TapedBackend
from xvarpro.backends.testing import Fixture, SuiteHooks
from xvarpro.core.namespace import adjoint, adopt
from xvarpro.errors import BackendNotInstalledError

adopt(ndarray, xp, "cpu")


class NumPyBackend(SuiteHooks, TapedBackend):
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
        return [float(x) for x in scalars]

    def devices(self) -> dict[str, Any]:
        return {"cpu": "cpu"}

    def deterministic(self) -> NumPyBackend:
        return self  # no operation of NumPy or of its BLAS depends on which thread is first

    def array_fixtures(self) -> dict[str, Fixture]:
        x = np.arange(6.0).reshape(2, 3) / 3  # digits that no shorter format holds

        def frozen() -> ndarray:
            y = x.copy()
            y.flags.writeable = False
            return y

        def unaligned() -> ndarray:
            return np.frombuffer(bytearray(b"?" + x.tobytes()), offset=1).reshape(2, 3)

        def cast(dtype: str) -> tuple[ndarray, ndarray]:
            return x.astype(dtype), x.astype(dtype)

        longest = ("longdouble",) if np.dtype(np.longdouble).itemsize > 8 else ()
        casts = ("float32", "float16", *longest, "complex64", "complex128", "int64", "int32", "uint8", "bool")
        return {
            "plain": lambda: (x.copy(), x),
            "read-only": lambda: (frozen(), x),
            "negative strides": lambda: (x[::-1, ::-1].copy()[::-1, ::-1], x),
            "rows backwards": lambda: (x[::-1].copy()[::-1], x),
            "every other entry": lambda: (np.repeat(x, 2, axis=1)[:, ::2], x),
            "column order": lambda: (np.asfortranarray(x), x),
            "zero strides": lambda: (np.broadcast_to(x[1], (2, 3)), x[[1, 1]]),
            "big-endian": lambda: (x.astype(">f8"), x),
            "big-endian float32": lambda: (x.astype(">f4"), x.astype("float32")),
            "unaligned": lambda: (unaligned(), x),
            "masked": lambda: (np.ma.masked_array(x.copy()), x),
            "0-d": lambda: (np.array(1.5), np.array(1.5)),
            "scalar": lambda: (np.float64(1.5), np.array(1.5)),
            "empty": lambda: (np.zeros((0, 3)), np.zeros((0, 3))),
            **{name: partial(cast, name) for name in casts},
        }

    def settings(self) -> dict[str, object]:
        state: Any = np.random.get_state()  # noqa: NPY002 - the caller's, which is only read
        return {
            "errstate": np.geterr(),
            "random": hash((state[1].tobytes(), *state[2:])),
            "print options": np.get_printoptions(),
        }

    def modes(self) -> dict[str, Any]:
        return {"errors": partial(np.errstate, all="raise")}

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
        U, s, Vh = each_matrix(lambda A: np.linalg.svd(A, full_matrices=False), _no_svd, nan_if_not_finite(A))
        return U, s, Vh

    def cholesky(self, A: ndarray) -> ndarray:
        return each_matrix(lambda A: (np.linalg.cholesky(A),), lambda A: (np.full_like(A, np.nan),), A)[0]

    def solve_triangular(self, R: ndarray, B: ndarray, *, lower: bool = False, transpose: bool = False) -> ndarray:
        # partial pivoting finds the diagonal of an upper triangular matrix, so its LU is itself: the cost over a
        # substitution is one pass of order n^2 k. SciPy brings a BLAS of its own, whose threads get in the way of
        # NumPy's: all else takes twice as long. A lower one is upper from its last row on; unreversed, rows would be
        # exchanged, by sizes that units of the unknowns decide
        R = adjoint(R) if transpose else R
        if lower != transpose:
            return self.solve_triangular(R[..., ::-1, ::-1], B[..., ::-1, :])[..., ::-1, :]
        R = np.where(_upper(R.shape[-1]), R, 0.0)  # what the other triangle holds is anybody's
        return each_matrix(lambda R, B: (np.linalg.solve(R, B),), lambda R, B: (np.full_like(B, np.nan),), R, B)[0]

    def sparse_product(
        self, rows: ndarray, columns: ndarray, data: ndarray, shape: tuple[int, int], w: ndarray
    ) -> ndarray:
        try:
            from scipy.sparse import coo_array
        except ImportError:
            return np.asarray(super().sparse_product(rows, columns, data, shape, w))
        return coo_array((data, (rows, columns)), shape=shape) @ w

    def special(self, x: ndarray, name: str, n: int) -> Any:
        try:
            import scipy.special
        except ImportError as error:
            raise BackendNotInstalledError(
                f"xv.special.{name} needs the package 'scipy', which is not installed: pip install 'xvarpro[scipy]'"
            ) from error
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


def _no_svd(A: ndarray) -> tuple[ndarray, ndarray, ndarray]:
    k, nan = min(A.shape), np.full_like(A, np.nan)
    return nan[:, :k], np.full(k, np.nan, A.real.dtype), nan[:k, :]
