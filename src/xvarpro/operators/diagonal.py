"""Diagonal designs, and what a few columns add to one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from xvarpro.core.namespace import conj, device, namespace_of
from xvarpro.core.struct import REQUIRED, Array
from xvarpro.core.trees import adjoint, is_complex
from xvarpro.errors import ProblemError
from xvarpro.operators.interface import Operator, as_gradient, drawn, product


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


@final
@dataclass(frozen=True)
class LowRankPlusDiagonal(Operator):
    """``diag(d) + U V^H``.

    With a ridge and no Omega it is solved by a QR of (n + r) x r: order ``n r^2``. Other levels take the dense form.

    Parameters
    ----------
    U : array, shape (n, r)
    d : array, shape (n,)
    V : array, shape (n, r)
        All three real, or all three complex.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> one = np.ones((3, 1))
    >>> xv.operators.LowRankPlusDiagonal(one, np.array([1.0, 2.0, 3.0]), one).dense()
    array([[2., 1., 1.],
           [1., 3., 1.],
           [1., 1., 4.]])
    """

    U: Array = REQUIRED
    d: Array = REQUIRED
    V: Array = REQUIRED

    def __post_init__(self) -> None:
        U, d, V = self.U, self.d, self.V
        if d is None:
            return
        if d.ndim != 1 or U.ndim != 2 or U.shape != V.shape or U.shape[0] != d.shape[0]:
            shapes = ", ".join(str(tuple(x.shape)) for x in (U, d, V))
            raise ProblemError(f"LowRankPlusDiagonal needs U (n, r), d (n,), V (n, r), got {shapes}")
        if len({is_complex(x) for x in (U, d, V)}) > 1:
            raise ProblemError("LowRankPlusDiagonal needs U, d and V all real or all complex")

    @property
    def shape(self) -> tuple[int, int]:
        return self.d.shape[0], self.d.shape[0]

    def matvec(self, w: Array) -> Array:
        return Diagonal(self.d).matvec(w) + product(self.U, product(adjoint(self.V), w))

    def rmatvec(self, r: Array) -> Array:
        return Diagonal(self.d).rmatvec(r) + product(self.V, product(adjoint(self.U), r))

    def outer(self, r: Array, w: Array) -> LowRankPlusDiagonal:
        U, V = product(r, product(adjoint(w), self.V)), product(w, product(adjoint(r), self.U))
        return LowRankPlusDiagonal(as_gradient(U, self.U), Diagonal(self.d).outer(r, w).d, as_gradient(V, self.V))

    def dense(self) -> Array:
        return Diagonal(self.d).dense() + self.U @ adjoint(self.V)

    @classmethod
    def examples(cls, shape: tuple[int, int]) -> tuple[Operator, ...]:
        n = shape[1]
        if shape[0] != n:
            return ()
        return (cls(drawn(n, 2), 3 + drawn(n), drawn(n, 2, seed=1)), cls(drawn(n, n), drawn(n), drawn(n, n, seed=1)))
