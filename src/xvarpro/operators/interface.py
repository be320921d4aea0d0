"""The interface of a design ``M(theta)``, and the design that is held as an array."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from xvarpro.core.namespace import complexified, conj, is_complex, namespace_of
from xvarpro.core.struct import REQUIRED, Array, Struct
from xvarpro.core.trees import adjoint, adjoint_product


class Operator(Struct):
    """A design ``M``, an m x n matrix that may be known through its products only.

    `w` has shape (n, k) and `r` shape (m, k): k right-hand sides.

    Arrays may be complex: then so is `w`, `rmatvec` is the conjugate transpose, and inner products are real parts. The
    arrays that make up an operator are its fields: `theta` reaches it through them alone.
    """

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """``(m, n)``."""

    @property
    def columns(self) -> int | None:
        """How many right-hand sides the operator is made for, each with a matrix of its own; None for one matrix."""
        return None

    @abstractmethod
    def matvec(self, w: Array) -> Array:
        """``M w``, column by column, shape (m, k)."""

    def residual(self, w: Array, y: Array) -> Array:
        """``M w - y``, shape (m, k)."""
        return self.matvec(w) - y

    @abstractmethod
    def rmatvec(self, r: Array) -> Array:
        """``M^H r``, column by column, shape (n, k)."""

    @abstractmethod
    def outer(self, r: Array, w: Array) -> Operator:
        """Gradient of ``Re <r, M w>`` with respect to the arrays that make up M, in the same structure."""

    @property
    def explicit(self) -> bool:
        """Whether `dense` costs no more than a few products; otherwise a level is solved by iteration."""
        return True

    @abstractmethod
    def dense(self) -> Array:
        """M as an array (m, n); as (columns, m, n) where each column has a matrix of its own."""

    def solver(self, lam: float | Array, Omega: Array | Operator | None) -> Struct | None:
        """The `lower.LowerSolver` that fits the structure and the ridge; None leaves the choice to `lower.choose`."""
        return None

    @classmethod
    def examples(cls, shape: tuple[int, int]) -> tuple[Operator, ...]:
        """Instances of exactly that shape around NumPy arrays, one per regime; none where it cannot have the shape.

        What the contract suite tests: a class without examples is not tested.
        """
        return ()


def alike(A: Array, B: Array) -> tuple[Array, Array]:
    """Both complex where one of them is."""
    if A.dtype == B.dtype or is_complex(A) == is_complex(B):
        return A, B
    return complexified(A), complexified(B)


def product(A: Array, B: Array) -> Array:
    """``A @ B``; one may be real and the other complex."""
    A, B = alike(A, B)
    return A @ B


def as_gradient(g: Array, x: Array) -> Array:
    """A gradient `g` with respect to `x`: its real part where `x` is real."""
    return namespace_of(g).real(g) if is_complex(g) and not is_complex(x) else g


def divisors(n: int) -> tuple[int, int]:
    """``n = a b`` with a and b as close as they come, ``a >= b``."""
    b = max(i for i in range(1, math.isqrt(n) + 1) if n % i == 0)
    return n // b, b


def drawn(*shape: int, seed: int = 0) -> Any:
    """Numbers of order 1 for an example."""
    return np.random.default_rng([seed, *shape]).normal(size=shape)


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
        A = self.array
        r = A @ w if A.ndim == 2 and A.dtype == w.dtype else self.matvec(w)
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
