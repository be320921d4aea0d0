"""Lower-level solvers: one factorisation answers for `w`, for the adjoint and for the condition number."""

from __future__ import annotations

from xvarpro.lower.cholesky import Cholesky
from xvarpro.lower.dual import DualQR
from xvarpro.lower.qr import QR
from xvarpro.lower.svd import SVD
from xvarpro.protocols import LowerSolver

__all__ = ["QR", "SVD", "Cholesky", "DualQR", "LowerSolver", "choose"]


def choose(shape: tuple[int, int], lam: float) -> LowerSolver:
    """The solver for a design of that shape: QR, or its dual when a ridged design is wide.

    Examples
    --------
    >>> import xvarpro as xv
    >>> xv.lower.choose((10, 512), 1e-3)
    DualQR()
    """
    m, n = shape
    return DualQR() if n > m and lam > 0 else QR()
