"""A covariance of the data, as a linear map after which they have that of independent data of variance 1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from xvarpro.core.namespace import complexified, is_complex
from xvarpro.core.struct import REQUIRED, Array, Struct
from xvarpro.errors import ProblemError
from xvarpro.operators import Composition, Dense
from xvarpro.operators.interface import Operator


@final
@dataclass(frozen=True)
class Whitening(Struct):
    """What a prepared level with a covariance has as its weights: ``P^T P`` is the inverse of that, (m, m)."""

    P: Array = REQUIRED

    def __call__(self, x: Array) -> Array:
        """``P x``, of a vector, a matrix or a stack."""
        return (complexified(self.P) if is_complex(x) else self.P) @ x

    def design(self, M: Operator) -> Operator:
        """``P M``, as an array where M has one."""
        self.check(M.shape[0])
        return Dense(self(M.dense())) if M.explicit else Composition(self.P, M)

    def check(self, rows: int) -> None:
        """Raise `ProblemError` if a design with so many rows has no covariance of that size."""
        if rows != self.P.shape[0]:
            raise ProblemError(f"covariance must have a row for each of the {rows} of M(theta); got {self.P.shape[0]}")
