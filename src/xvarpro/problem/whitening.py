"""A covariance of the data, as a linear map after which they have that of independent data of variance 1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np

from xvarpro.backends import to_numpy
from xvarpro.core.namespace import complexified, is_complex
from xvarpro.core.struct import REQUIRED, Array, Struct
from xvarpro.errors import ProblemError
from xvarpro.operators import Composition, Dense
from xvarpro.operators.interface import Operator


@final
@dataclass(frozen=True)
class Whitening(Struct):
    """What a prepared level with a covariance has as its weights: ``P^T P`` is the inverse of that, (m, m)."""

    P: Any = REQUIRED  # triangular, or a function of matrices
    log_det: float | None = None  # log |det P| of a function

    def __call__(self, x: Array) -> Array:
        """``P x``, of a vector, a matrix or a stack."""
        if callable(self.P):
            found: Array = self.P(x) if x.ndim > 1 else self.P(x[:, None])[:, 0]
            return found
        return (complexified(self.P) if is_complex(x) else self.P) @ x

    def design(self, M: Operator) -> Operator:
        """``P M``, as an array where M has one."""
        self.check(M.shape[0])
        return Dense(self(M.dense())) if M.explicit or callable(self.P) else Composition(self.P, M)

    @property
    def log_root(self) -> float:
        """``log |det P|``."""
        if self.log_det is not None:
            return self.log_det
        return float(np.sum(np.log(np.abs(np.diagonal(to_numpy(self.P)).astype(float)))))

    def check(self, rows: int) -> None:
        """Raise `ProblemError` if a design with so many rows has no covariance of that size."""
        if not callable(self.P) and rows != self.P.shape[0]:
            raise ProblemError(f"covariance must have a row for each of the {rows} of M(theta); got {self.P.shape[0]}")
