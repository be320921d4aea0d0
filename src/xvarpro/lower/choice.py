"""The solver of a lower level for which none is given."""

from __future__ import annotations

from xvarpro.core.struct import Array
from xvarpro.errors import ProblemError
from xvarpro.lower._blockwise import Blockwise
from xvarpro.lower._diagonal import Division
from xvarpro.lower._kronecker import Folded, KroneckerQR, KroneckerSVD
from xvarpro.lower._low_rank import LowRankQR
from xvarpro.lower.dual import DualQR
from xvarpro.lower.fourier import FourierDivision
from xvarpro.lower.interface import LowerSolver, is_ridge
from xvarpro.lower.krylov import LSMR
from xvarpro.lower.qr import QR
from xvarpro.operators import (
    BlockDiagonal,
    Circulant,
    CirculantPerColumn,
    Dense,
    Diagonal,
    Kronecker,
    LowRankPlusDiagonal,
    StackedCirculant,
)
from xvarpro.operators.circulant import as_circulant
from xvarpro.operators.interface import Operator


def choose(M: Operator, lam: float | Array, Omega: Array | Operator | None = None) -> LowerSolver:
    """The solver for a design: its own where it has one, else one for its structure, else QR of its dense form.

    A Kronecker product is solved by its factors, blocks along the diagonal one by one, a diagonal by division, and a
    diagonal plus low rank, with a ridge, by a QR of the size of the rank. These need the identity for Omega. Circulant
    designs are solved in Fourier space, with an Omega that is the identity or circulant. Designs that differ from one
    right-hand side to the next are solved in one batch. All else, and every other Omega, takes the dense form: QR, or
    its dual where a ridged design is wide.

    A design that is known through its products only, and would be too large as an array, is solved by LSMR.

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
    if not (own is None or isinstance(own, LowerSolver)):
        raise ProblemError(f"{type(M).__name__}.solver must return a solver of xvarpro.lower or None, got {own!r}")
    fitting = _structured(M, lam, Omega) if own is None else own
    if fitting is not None:
        return fitting
    if not M.explicit:
        return LSMR()
    m, n = M.shape
    wide = n > m and is_ridge(lam)
    return DualQR() if wide else QR()


def _structured(M: Operator, lam: float | Array, Omega: Array | Operator | None) -> LowerSolver | None:
    if isinstance(M, Circulant | CirculantPerColumn | StackedCirculant):
        return FourierDivision() if Omega is None or as_circulant(Omega, M) is not None else None
    if Omega is not None or isinstance(M, Dense):
        return None
    ridged = is_ridge(lam)
    if isinstance(M, BlockDiagonal) and M.explicit:
        return Blockwise(tuple(choose(block, lam) for block in M.blocks))
    if isinstance(M, Kronecker):
        return Folded(choose(Dense(M.A), lam)) if M.B is None else KroneckerSVD() if ridged else KroneckerQR()
    if isinstance(M, Diagonal):
        return Division()
    if isinstance(M, LowRankPlusDiagonal) and ridged:
        return LowRankQR()
    return None
