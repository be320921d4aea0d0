"""Diagonal designs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from xvarpro.core.namespace import conj, device, namespace_of
from xvarpro.core.struct import REQUIRED, Array
from xvarpro.errors import ProblemError
from xvarpro.operators.interface import Operator, as_gradient, drawn


@final
@dataclass(frozen=True)
class Diagonal(Operator):
    """``diag(d)``, or one diagonal for each right-hand side.

    Parameters
    ----------
    d : array, shape (n,) or (n, k)

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> xv.operators.Diagonal(np.array([1.0, 2.0])).matvec(np.ones((2, 1)))[:, 0]
    array([1., 2.])
    """

    d: Array = REQUIRED

    def __post_init__(self) -> None:
        if self.d is not None and self.d.ndim not in (1, 2):
            raise ProblemError(f"Diagonal needs d of shape (n,) or (n, k), got {tuple(self.d.shape)}")

    @property
    def shape(self) -> tuple[int, int]:
        return self.d.shape[0], self.d.shape[0]

    @property
    def columns(self) -> int | None:
        return self.d.shape[1] if self.d.ndim == 2 else None

    @property
    def matrix(self) -> Array:
        """`d` with a column for each right-hand side, or with one for all."""
        return self.d if self.d.ndim == 2 else namespace_of(self.d).expand_dims(self.d, axis=1)

    def matvec(self, w: Array) -> Array:
        return self.matrix * w

    def rmatvec(self, r: Array) -> Array:
        return conj(self.matrix) * r

    def outer(self, r: Array, w: Array) -> Diagonal:
        g = as_gradient(r * conj(w), self.d)
        return Diagonal(g if self.d.ndim == 2 else namespace_of(g).sum(g, axis=1))

    def dense(self) -> Array:
        xp, d = namespace_of(self.d), self.d.mT if self.d.ndim == 2 else self.d
        return xp.expand_dims(d, axis=-1) * xp.eye(self.d.shape[0], dtype=d.dtype, device=device(d))

    @classmethod
    def examples(cls, shape: tuple[int, int]) -> tuple[Operator, ...]:
        n = shape[1]
        return (cls(2 + drawn(n)), cls(3 + drawn(n, 2))) if shape[0] == n else ()
