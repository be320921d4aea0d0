"""A design held as an array."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from xvarpro.protocols import Array, Operator
from xvarpro.trees import adjoint


@final
@dataclass(frozen=True)
class Dense(Operator):
    """A design matrix.

    Parameters
    ----------
    array : array, shape (m, n)

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> xv.operators.Dense(np.eye(2)).matvec(np.ones((2, 1)))
    array([[1.],
           [1.]])
    """

    array: Array = None

    @property
    def shape(self) -> tuple[int, int]:
        return self.array.shape

    def matvec(self, w: Array) -> Array:
        return self.array @ w

    def residual(self, w: Array, y: Array) -> Array:
        r = self.array @ w
        r -= y  # in place where the framework can: the product is ours, and y may be the largest array there is
        return r

    def rmatvec(self, r: Array) -> Array:
        return adjoint(self.array) @ r

    def outer(self, r: Array, w: Array) -> Dense:
        return Dense(r @ adjoint(w))

    def dense(self) -> Array:
        return self.array
