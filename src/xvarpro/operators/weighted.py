"""A design whose rows are scaled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

from xvarpro.core.namespace import conj, namespace_of
from xvarpro.core.struct import REQUIRED, Array
from xvarpro.core.trees import is_array
from xvarpro.errors import ProblemError
from xvarpro.operators.interface import Dense, Operator, as_gradient, as_operator, drawn


@final
@dataclass(frozen=True)
class Weighted(Operator):
    """``diag(s) M``: the square roots of weights of rows, or of every entry of the target.

    Parameters
    ----------
    M : operator or array, shape (m, n)
    s : array, shape (m, 1) or (m, k)
        With k > 1 columns every right-hand side has a design of its own.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> s = np.array([[1.0, 2.0], [0.0, 3.0]])
    >>> M = xv.operators.Weighted(np.eye(2), s)
    >>> M.columns, M.matvec(np.ones((2, 2)))
    (2, array([[1., 2.],
           [0., 3.]]))
    """

    M: Any = None
    s: Array = REQUIRED

    def __post_init__(self) -> None:
        if self.M is None:
            return
        M, s = as_operator(self.M), self.s
        object.__setattr__(self, "M", M)
        if not is_array(s) or s.ndim != 2 or s.shape[0] != M.shape[0]:
            found = f"an array of shape {tuple(s.shape)}" if is_array(s) else type(s).__name__
            raise ProblemError(f"Weighted needs s of shape ({M.shape[0]}, 1) or ({M.shape[0]}, k), got {found}")
        if s.shape[1] > 1 and M.columns not in (None, s.shape[1]):
            raise ProblemError(f"Weighted: M is made for {M.columns} right-hand sides and s has {s.shape[1]} columns")

    @property
    def shape(self) -> tuple[int, int]:
        return self.M.shape

    @property
    def columns(self) -> int | None:
        return self.s.shape[1] if self.s.shape[1] > 1 else self.M.columns

    def matvec(self, w: Array) -> Array:
        return self.s * self.M.matvec(w)

    def rmatvec(self, r: Array) -> Array:
        return self.M.rmatvec(conj(self.s) * r)

    def outer(self, r: Array, w: Array) -> Weighted:
        g = as_gradient(r * conj(self.M.matvec(w)), self.s)
        if self.s.shape[1] == 1:
            g = namespace_of(g).sum(g, axis=1, keepdims=True)
        return Weighted(self.M.outer(conj(self.s) * r, w), g)

    @property
    def explicit(self) -> bool:
        return self.M.explicit

    def dense(self) -> Array:
        A, xp = self.M.dense(), namespace_of(self.s)
        return (self.s if self.s.shape[1] == 1 else xp.expand_dims(self.s.mT, axis=2)) * A

    @classmethod
    def examples(cls, shape: tuple[int, int]) -> tuple[Operator, ...]:
        m, _ = shape
        A = drawn(*shape)
        return cls(A, 2 + drawn(m, 1)), cls(A, 2 + drawn(m, 3)), cls(Dense(drawn(3, *shape)), 2 + drawn(m, 1))
