"""Lower-level solvers: one factorisation answers for `w`, for the adjoint and for the condition number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from xvarpro.lower import fourier
from xvarpro.lower.cholesky import Cholesky
from xvarpro.lower.dual import DualQR
from xvarpro.lower.fourier import FourierDivision
from xvarpro.lower.preconditioner import circulant_preconditioner
from xvarpro.lower.qr import QR
from xvarpro.lower.svd import SVD
from xvarpro.operators import Circulant, CirculantPerColumn, StackedCirculant
from xvarpro.protocols import Array, LowerSolver, Operator, System

__all__ = ["QR", "SVD", "Cholesky", "DualQR", "FourierDivision", "LowerSolver", "choose", "circulant_preconditioner"]

# what fits the structure of an operator, asked by its type with (M, lam, Omega); None where that ridge does not suit it
FITTING: dict[type[Operator], Callable[[Any, Any, Any], LowerSolver | None]] = {
    Circulant: fourier.fits,
    CirculantPerColumn: fourier.fits,
    StackedCirculant: fourier.fits,
}


def choose(M: Operator, lam: Any, Omega: Array | None = None) -> LowerSolver:
    """The solver for a design: its own or that of its structure, else QR, or its dual when a ridged design is wide.

    Parameters
    ----------
    M : Operator
    lam : float or array, 0-d
        Ridge; an array is taken to be > 0.
    Omega : array or Operator, shape (n, n), optional

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> xv.lower.choose(xv.operators.Dense(np.ones((10, 512))), 1e-3)
    DualQR()
    """
    own = M.solver(lam, Omega)
    if own is None and type(M) in FITTING:
        own = FITTING[type(M)](M, lam, Omega)
    if own is not None:
        return own
    m, n = M.shape
    return DualQR() if n > m and System(M, lam, Omega).ridged else QR()
