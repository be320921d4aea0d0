"""Lower-level solvers: one factorisation answers for `w`, for the adjoint and for the condition number."""

from __future__ import annotations

from typing import Any

from xvarpro.lower._preconditioners import Given, Identity, Jacobi, Preconditioner
from xvarpro.lower.cholesky import Cholesky
from xvarpro.lower.dual import DualQR
from xvarpro.lower.krylov import CG, LSMR, LSQR
from xvarpro.lower.qr import QR
from xvarpro.lower.svd import SVD
from xvarpro.protocols import Array, LowerSolver, Operator, System

__all__ = [
    "CG",
    "LSMR",
    "LSQR",
    "QR",
    "SVD",
    "Cholesky",
    "DualQR",
    "Given",
    "Identity",
    "Jacobi",
    "LowerSolver",
    "Preconditioner",
    "choose",
]


def choose(M: Operator, lam: Any, Omega: Array | None = None) -> LowerSolver:
    """The solver for a design: its own where it has one, else QR, or its dual when a ridged design is wide.

    A design that is known through its products only, and would be dear as an array, is solved by LSMR.

    Parameters
    ----------
    M : Operator
    lam : float or array, 0-d
        Ridge; an array is taken to be > 0.
    Omega : array, shape (n, n), optional

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> xv.lower.choose(xv.operators.Dense(np.ones((10, 512))), 1e-3)
    DualQR()
    """
    own = M.solver(lam, Omega)
    if own is not None:
        return own
    if not M.explicit:
        return LSMR()
    m, n = M.shape
    return DualQR() if n > m and System(M, lam, Omega).ridged else QR()
