"""Derivatives for frameworks that have none: the package's own tape over their array-API namespace."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from xvarpro.backends import tape
from xvarpro.backends.eager import EagerBackend
from xvarpro.backends.interface import Function, Linear
from xvarpro.backends.tape.errors import StrayArrayError
from xvarpro.core.namespace import adjoint, device
from xvarpro.core.struct import Array, Leaves
from xvarpro.errors import ModelError

# where Cholesky QR is the faster one: columns at least, rows per column, and entries (benchmarks/overhead.py)
NARROW, ASPECT, ENTRIES = 8, 4, 2**14


class TapedBackend(EagerBackend):
    """Base of the backends whose framework has no derivatives, as NumPy, CuPy and array-api-strict."""

    @abstractmethod
    def index_add(self, x: Array, key: Any, v: Array) -> Array:
        """A new array: `x` with `v` added at an integer-array key, where repeated indices accumulate."""

    @abstractmethod
    def householder_qr(self, A: Array, mode: str = "reduced") -> tuple[Array, Array]:
        """The framework's own QR factorisation, as `qr`."""

    def vjp(self, fun: Function, primals: Leaves, constants: Leaves = ()) -> tuple[Leaves, Linear]:
        try:
            return tape.vjp(fun, primals, constants, xp=self.xp, index_add=self.index_add)
        except StrayArrayError as error:
            raise ModelError(str(error)) from error

    def sparse_product(self, rows: Array, columns: Array, data: Array, shape: tuple[int, int], w: Array) -> Array:
        xp = self.xp
        terms = xp.expand_dims(data, axis=1) * xp.take(w, columns, axis=0)
        zeros = xp.zeros((shape[0], w.shape[1]), dtype=terms.dtype, device=device(w))
        return self.index_add(zeros, rows, terms)

    def qr(self, A: Array, mode: str = "reduced") -> tuple[Array, Array]:
        """Cholesky QR twice where A is tall and not too badly conditioned: products instead of reflections.

        The second pass gives what Householder's gives, Q orthogonal and ``Q R - A`` zero to rounding, if the first left
        ``|Q^T Q - I| < 1`` (Yamamoto, Nakatsukasa, Yanagisawa, Fukaya 2015), which is checked. It is three to five
        times as fast, for Householder's panels are products with vectors.
        """
        m, n = A.shape[-2:]
        if mode == "r" or A.ndim > 2 or n < NARROW or m < ASPECT * n or m * n < ENTRIES:
            return self.householder_qr(A, mode)
        xp = self.xp
        R = adjoint(self.cholesky(adjoint(A) @ A))
        Q = adjoint(self.solve_triangular(R, adjoint(A), transpose=True))
        gram = adjoint(Q) @ Q
        eye = xp.eye(n, dtype=A.dtype, device=device(A))
        # written so that NaN, from a Gram matrix that is indefinite or overflowed, fails the test
        if not bool(n * xp.max(xp.abs(gram - eye)) < 0.1):
            return self.householder_qr(A)
        second = adjoint(self.cholesky(gram))
        # near the identity an inverse is as accurate as a solve, and the product with it leaves Q in row order
        return Q @ self.solve_triangular(second, eye), second @ R
