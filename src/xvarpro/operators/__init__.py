"""Designs M(theta) as the lower level sees them."""

from __future__ import annotations

from xvarpro.operators.circulant import Circulant, CirculantPerColumn, StackedCirculant
from xvarpro.operators.convolution import FullConvolution, Toeplitz, ValidConvolution
from xvarpro.operators.dense import Dense
from xvarpro.protocols import Array, Operator

__all__ = [
    "Circulant",
    "CirculantPerColumn",
    "Dense",
    "FullConvolution",
    "Operator",
    "StackedCirculant",
    "Toeplitz",
    "ValidConvolution",
    "as_operator",
]


def as_operator(M: Array | Operator) -> Operator:
    """What a model returned, as an operator: arrays are dense designs."""
    return M if isinstance(M, Operator) else Dense(M)
