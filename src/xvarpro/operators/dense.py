"""A design held as an array."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from xvarpro.core.namespace import conj, namespace_of
from xvarpro.core.struct import REQUIRED, Array
from xvarpro.core.trees import adjoint, adjoint_product
from xvarpro.operators.interface import Operator, alike, as_gradient, drawn, product


@final
@dataclass(frozen=True)
class Dense(Operator):
    """A design matrix, or one for each right-hand side.

    Parameters
    ----------
    array : array, shape (m, n) or (k, m, n)
        With three axes, column j of `w` and of the target belong to ``array[j]``, and there are k columns.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> xv.operators.Dense(np.eye(2)).matvec(np.ones((2, 1)))
    array([[1.],
           [1.]])
    >>> two = xv.operators.Dense(np.stack([np.eye(2), 3 * np.eye(2)]))
    >>> two.columns, two.matvec(np.ones((2, 2)))
    (2, array([[1., 3.],
           [1., 3.]]))
    """

    array: Array = REQUIRED

    @property
    def shape(self) -> tuple[int, int]:
        m, n = self.array.shape[-2:]
        return m, n

    @property
    def columns(self) -> int | None:
        return self.array.shape[0] if self.array.ndim == 3 else None

    def matvec(self, w: Array) -> Array:
        A = self.array
        if A.ndim == 2:
            return A @ w if A.dtype == w.dtype else product(A, w)
        return _by_column(A, w)

    def residual(self, w: Array, y: Array) -> Array:
        r = self.matvec(w)
        if r.dtype != y.dtype:
            return r - y
        r -= y  # in place where the framework can: y may be the largest array of the problem
        return r

    def rmatvec(self, r: Array) -> Array:
        if self.array.ndim == 2:
            return adjoint_product(*alike(self.array, r))
        return _by_column(adjoint(self.array), r)

    def outer(self, r: Array, w: Array) -> Dense:
        if self.array.ndim == 2:
            return Dense(as_gradient(product(r, adjoint(w)), self.array))
        xp = namespace_of(r)
        return Dense(as_gradient(xp.expand_dims(r.mT, axis=2) * xp.expand_dims(conj(w).mT, axis=1), self.array))

    def dense(self) -> Array:
        return self.array

    @classmethod
    def examples(cls, shape: tuple[int, int]) -> tuple[Operator, ...]:
        return cls(drawn(*shape)), cls(drawn(3, *shape))


def _by_column(A: Array, w: Array) -> Array:
    """``A[j] w[:, j]`` in column j."""
    return product(A, namespace_of(w).expand_dims(w.mT, axis=2))[:, :, 0].mT


def as_operator(M: Array | Operator) -> Operator:
    """What a model returned, as an operator: arrays are dense designs."""
    return M if isinstance(M, Operator) else Dense(M)
