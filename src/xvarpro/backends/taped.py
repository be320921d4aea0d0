"""Derivatives for frameworks that have none: the package's own tape over their array-API namespace."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from xvarpro.backends import tape
from xvarpro.backends.eager import EagerBackend
from xvarpro.backends.factorisations import cholesky_qr
from xvarpro.backends.interface import Function, Linear
from xvarpro.core.namespace import device
from xvarpro.core.struct import Array, Leaves


class TapedBackend(EagerBackend):
    """Base of the backends whose framework has no derivatives, as NumPy, CuPy and array-api-strict."""

    @abstractmethod
    def index_add(self, x: Array, key: Any, v: Array) -> Array:
        """A new array: `x` with `v` added at an integer-array key, where repeated indices accumulate."""

    @abstractmethod
    def householder_qr(self, A: Array, mode: str = "reduced") -> tuple[Array, Array]:
        """The framework's own QR factorisation, as `qr`."""

    def vjp(self, fun: Function, primals: Leaves, constants: Leaves = ()) -> tuple[Leaves, Linear]:
        return tape.vjp(fun, primals, constants, xp=self.xp, index_add=self.index_add)

    def linearise(self, fun: Function, primals: Leaves, constants: Leaves = ()) -> tuple[Leaves, Linear]:
        outputs, pullback = tape.vjp(fun, primals, constants, xp=self.xp, index_add=self.index_add)
        return outputs, pullback.transposed(outputs)

    def sparse_product(self, rows: Array, columns: Array, data: Array, shape: tuple[int, int], w: Array) -> Array:
        xp = self.xp
        terms = xp.expand_dims(data, axis=1) * xp.take(w, columns, axis=0)
        zeros = xp.zeros((shape[0], w.shape[1]), dtype=terms.dtype, device=device(w))
        return self.index_add(zeros, rows, terms)

    def qr(self, A: Array, mode: str = "reduced") -> tuple[Array, Array]:
        return (cholesky_qr(self, A) if mode != "r" else None) or self.householder_qr(A, mode)
