"""Kronecker products, which are never formed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from xvarpro.core import checks
from xvarpro.core.namespace import device, namespace_of
from xvarpro.core.struct import REQUIRED, Array
from xvarpro.core.trees import adjoint
from xvarpro.errors import ProblemError
from xvarpro.operators.interface import Operator, as_gradient, divisors, drawn, product


@final
@dataclass(frozen=True)
class Kronecker(Operator):
    """``A x B``, or ``A x I``: ``(A x B) vec(W) = vec(A W B^T)`` with rows of W one after the other.

    ``A x I`` is A with the columns of W as right-hand sides, and is solved as that, by what fits A; ``A x B`` is solved
    by factors of A and of B. Both without Omega: with one the dense form is taken.

    Parameters
    ----------
    A : array, shape (mA, nA)
    B : array, shape (mB, nB), optional
        None is the identity.
    size : int
        Rows of that identity, >= 1.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> A, W = np.array([[1.0, 2.0]]), np.array([[1.0, 10.0], [3.0, 30.0]])
    >>> M = xv.operators.Kronecker(A, size=2)
    >>> M.shape, M.matvec(W.reshape(4, 1))[:, 0]
    ((2, 4), array([ 7., 70.]))
    """

    A: Array = REQUIRED
    B: Array | None = None
    size: int = 1

    def __post_init__(self) -> None:
        for name, x in (("A", self.A), ("B", self.B)):
            if x is not None and x.ndim != 2:
                raise ProblemError(f"Kronecker needs matrices, got {name} of shape {tuple(x.shape)}")
        checks.whole(self, "size", 1)
        if self.B is not None and self.size != 1:
            raise ProblemError("Kronecker takes B or the size of an identity in its place, got both")

    @property
    def right(self) -> tuple[int, int]:
        """Shape of the factor on the right."""
        return (self.size, self.size) if self.B is None else (self.B.shape[0], self.B.shape[1])

    @property
    def shape(self) -> tuple[int, int]:
        (m, n), (p, q) = self.A.shape, self.right
        return m * p, n * q

    def matvec(self, w: Array) -> Array:
        return _kron(self.A, self.B, self.right, w)

    def rmatvec(self, r: Array) -> Array:
        B = None if self.B is None else adjoint(self.B)
        return _kron(adjoint(self.A), B, self.right[::-1], r)

    def outer(self, r: Array, w: Array) -> Kronecker:
        xp = namespace_of(r)
        (m, n), (p, q), k = self.A.shape, self.right, w.shape[1]
        R, W = xp.reshape(r, (m, p * k)), xp.reshape(w, (n, q * k))
        if self.B is None:
            return Kronecker(as_gradient(product(R, adjoint(W)), self.A), None, self.size)
        right = _on_right(self.B, xp.reshape(w, (n, q, k)))
        left = _sides(xp.reshape(product(self.A, W), (m, q, k)))
        A = product(R, adjoint(xp.reshape(right, (n, p * k))))
        B = product(_sides(xp.reshape(r, (m, p, k))), adjoint(left))
        return Kronecker(as_gradient(A, self.A), as_gradient(B, self.B))

    def dense(self) -> Array:
        xp, A, B = namespace_of(self.A), self.A, self.B
        if B is None:
            B = xp.eye(self.size, dtype=A.dtype, device=device(A))
        product = xp.reshape(A, (A.shape[0], 1, A.shape[1], 1)) * xp.reshape(B, (1, B.shape[0], 1, B.shape[1]))
        return xp.reshape(product, self.shape)

    @classmethod
    def examples(cls, shape: tuple[int, int]) -> tuple[Operator, ...]:
        (mA, mB), (nA, nB) = map(divisors, shape)
        made = [cls(drawn(mA, nA), drawn(mB, nB, seed=1)), cls(drawn(*shape))]
        if mB == nB > 1:
            made.append(cls(drawn(mA, nA), None, mB))
        if (mB, nB) != (mA, nA):
            made.append(cls(drawn(mB, nA), drawn(mA, nB, seed=1)))
        return tuple(made)


def _kron(A: Array, B: Array | None, right: tuple[int, int], w: Array) -> Array:
    """``(A x B) w``, the cheaper of the two products first."""
    xp = namespace_of(w)
    (m, n), (p, q), k = A.shape, right, w.shape[1]
    if B is None:
        return xp.reshape(product(A, xp.reshape(w, (n, q * k))), (m * p, k))
    if n * p * (q + m) < m * q * (n + p):
        W = _on_right(B, xp.reshape(w, (n, q, k)))
        return xp.reshape(product(A, xp.reshape(W, (n, p * k))), (m * p, k))
    W = product(A, xp.reshape(w, (n, q * k)))
    return xp.reshape(_on_right(B, xp.reshape(W, (m, q, k))), (m * p, k))


def _on_right(B: Array, W: Array) -> Array:
    """``B`` times each of the (q, k) matrices in W, which has shape (i, q, k)."""
    if W.shape[2] > 1:
        return product(B, W)
    return namespace_of(W).expand_dims(product(W[:, :, 0], B.mT), axis=2)


def _sides(W: Array) -> Array:
    """(i, q, k) as (q, i k)."""
    xp = namespace_of(W)
    return xp.reshape(xp.permute_dims(W, (1, 0, 2)), (W.shape[1], -1))
