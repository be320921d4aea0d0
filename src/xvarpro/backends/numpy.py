"""NumPy: the reference backend and the default."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import array_api_compat.numpy as xp
import numpy as np

from xvarpro.backends.interface import Array
from xvarpro.backends.taped import TapedBackend
from xvarpro.core.namespace import adjoint


class NumPyBackend(TapedBackend):
    """NumPy on the host."""

    name = "numpy"
    package = "numpy"
    roots = ("numpy",)
    extra = ""
    failures = (np.linalg.LinAlgError,)
    reproducible = True  # no operation of NumPy or of its BLAS depends on which thread is first
    xp = xp

    def asarray(self, x: Any, *, dtype: str | None = None, device: Any = None) -> Array:
        x = np.asarray(x, dtype=dtype)
        return x if x.dtype.isnative else x.astype(x.dtype.newbyteorder("="))

    def to_numpy(self, x: Array) -> np.ndarray:
        return np.asarray(x)

    def to_floats(self, scalars: Sequence[Array]) -> list[float]:
        return [float(x) for x in scalars]

    def dtype_name(self, x: Array) -> str:
        return x.dtype.name

    def awkward(self) -> dict[str, Callable[[], tuple[Array, np.ndarray]]]:
        x = np.arange(6.0).reshape(2, 3) / 3  # digits that no shorter format holds

        def frozen() -> np.ndarray:
            y = x.copy()
            y.flags.writeable = False
            return y

        def unaligned() -> np.ndarray:
            return np.frombuffer(bytearray(b"?" + x.tobytes()), offset=1).reshape(2, 3)

        def cast(dtype: str) -> tuple[Array, np.ndarray]:
            return x.astype(dtype), x.astype(dtype)

        casts = ("float32", "float16", "longdouble", "complex64", "complex128", "int64", "int32", "uint8", "bool")
        return {
            "plain": lambda: (x.copy(), x),
            "read-only": lambda: (frozen(), x),
            "negative strides": lambda: (x[::-1, ::-1].copy()[::-1, ::-1], x),
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

    def state(self) -> dict[str, Any]:
        state: Any = np.random.get_state()  # noqa: NPY002 - the caller's, which is only looked at
        # a number tells one state from another
        return {
            "errstate": np.geterr(),
            "random": hash((state[1].tobytes(), *state[2:])),
            "print options": np.get_printoptions(),
        }

    def device_of(self, x: Array) -> Any:
        return "cpu"

    def parse_device(self, device: Any) -> Any:
        if str(device) != "cpu":
            raise ValueError(f"the numpy backend computes on the host: device must be 'cpu', got {device!r}")
        return "cpu"

    def devices(self) -> list[str]:
        return ["cpu"]

    def index_add(self, x: Array, key: Any, v: Array) -> Array:
        out = x.copy()
        np.add.at(out, key, v)
        return out

    # NumPy raises LinAlgError where this protocol promises NaN

    def householder_qr(self, A: Array) -> tuple[Array, Array]:
        return np.linalg.qr(A)

    def qr_r(self, A: Array) -> Array:
        return np.linalg.qr(A, mode="r")

    def svd(self, A: Array) -> tuple[Array, Array, Array]:
        U, s, Vh = self.each(lambda A: np.linalg.svd(A, full_matrices=False), _no_svd, self.numbers(A))
        return U, s, Vh

    def cholesky(self, A: Array) -> Array:
        return self.each(lambda A: (np.linalg.cholesky(A),), lambda A: (np.full_like(A, np.nan),), A)[0]

    def solve_triangular(self, R: Array, B: Array, *, lower: bool = False, transpose: bool = False) -> Array:
        # partial pivoting finds the diagonal of an upper triangular matrix, so its LU is itself: the cost over a
        # substitution is one pass of order n^2 k. SciPy brings a BLAS of its own, whose threads get in the way of
        # NumPy's: all else takes twice as long. A lower one is upper from its last row on; as it stands, rows would be
        # exchanged, by sizes that units of the unknowns decide
        R = adjoint(R) if transpose else R
        if lower != transpose:
            return self.solve_triangular(R[..., ::-1, ::-1], B[..., ::-1, :])[..., ::-1, :]
        return self.each(lambda R, B: (np.linalg.solve(R, B),), lambda R, B: (np.full_like(B, np.nan),), R, B)[0]

    def sparse_product(self, rows: Array, columns: Array, data: Array, shape: tuple[int, int], w: Array) -> Array:
        sparse = _scipy("sparse")
        if sparse is None:
            return super().sparse_product(rows, columns, data, shape, w)
        return sparse.coo_array((data, (rows, columns)), shape=shape) @ w

    @contextmanager
    def scope(self, dtype: str) -> Iterator[None]:
        with np.errstate(all="ignore"):
            yield

    def describe(self) -> dict[str, Any]:
        config: Any = np.show_config(mode="dicts")
        blas = config.get("Build Dependencies", {}).get("blas", {})
        return {
            "numpy": np.__version__,
            "blas": f"{blas.get('name', 'unknown')} {blas.get('version', '')}".strip(),
            "simd": " ".join(config.get("SIMD Extensions", {}).get("found", [])[-1:]) or "baseline",
        }


def _no_svd(A: Array) -> tuple[Array, Array, Array]:
    k, nan = min(A.shape), np.full_like(A, np.nan)
    return nan[:, :k], np.full(k, np.nan, A.real.dtype), nan[:k, :]


@cache
def _scipy(part: str) -> Any:
    """A module of SciPy, where that is installed; loaded when it is first asked for."""
    return import_module(f"scipy.{part}") if find_spec("scipy") else None
