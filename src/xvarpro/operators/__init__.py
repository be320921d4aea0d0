"""Designs M(theta) as the lower level sees them."""

from __future__ import annotations

from xvarpro.operators.dense import Dense
from xvarpro.operators.weighted import Weighted
from xvarpro.protocols import Array, Operator

__all__ = ["Dense", "Operator", "Weighted", "as_operator"]


def as_operator(M: Array | Operator) -> Operator:
    """What a model returned, as an operator: arrays are dense designs."""
    return M if isinstance(M, Operator) else Dense(M)
