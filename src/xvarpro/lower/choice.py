"""The solver of a lower level for which none is given."""

from __future__ import annotations

from xvarpro.core.struct import Array
from xvarpro.errors import ProblemError
from xvarpro.lower._blockwise import Blockwise
from xvarpro.lower._diagonal import Division
from xvarpro.lower._kronecker import Folded, KroneckerQR, KroneckerSVD
from xvarpro.lower._low_rank import LowRankQR
from xvarpro.lower.dual import DualQR
from xvarpro.lower.fourier import FourierDivision, is_periodic
from xvarpro.lower.interface import NO_RIDGE, LowerSolver, Ridge
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
from xvarpro.operators.interface import Operator


def choose(M: Operator, lam: Ridge | float | Array = NO_RIDGE, Omega: Array | Operator | None = None) -> LowerSolver:
    """The solver for a design: its own where it has one, else one for its structure, else QR of its dense form.

    A Kronecker product is solved by its factors, blocks along the diagonal one by one, a diagonal by division, and a
    diagonal plus low rank, with a ridge, by a QR of the size of the rank. These need the identity for Omega, and but
    for a diagonal one number lam. Circulant designs are solved in Fourier space, with an Omega that is the identity or
    circulant, and lam the same for all weights. Designs and ridges that differ from one right-hand side to the next are
    solved in one batch. All else takes the dense form: QR, or its dual where a design is wide and lam one
    number > 0.

    A design that is known through its products only, and would be too large as an array, is solved by LSMR.

    Parameters
    ----------
    M : Operator
    lam : Ridge, float or array
        The ridge of the level, or its numbers.
    Omega : array or Operator, shape (n, n), optional
        Of the ridge, where `lam` has the numbers.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> xv.lower.choose(xv.operators.Dense(np.ones((10, 512))), 1e-3)
    DualQR()
    """
    ridge = lam if isinstance(lam, Ridge) else Ridge(lam, Omega)
    own = M.solver(*ridge)
    if not (own is None or isinstance(own, LowerSolver)):
        raise ProblemError(f"{type(M).__name__}.solver must return a solver of xvarpro.lower or None, got {own!r}")
    fitting = own if own is not None or isinstance(M, Dense) else _structured(M, ridge)
    if fitting is not None:
        return fitting
    if not M.explicit:
        return LSMR()
    m, n = M.shape
    inverse = not isinstance(ridge.Omega, Operator)  # which may be singular, such as circulant differences
    return DualQR() if n > m and ridge.definite and inverse else QR()


def _structured(M: Operator, ridge: Ridge) -> LowerSolver | None:
    if isinstance(M, Circulant | CirculantPerColumn | StackedCirculant):
        return FourierDivision() if is_periodic(ridge, M) else None
    if isinstance(M, Diagonal) and ridge.Omega is None:
        return Division()
    if not ridge.plain:
        return None
    if isinstance(M, BlockDiagonal) and M.explicit:
        return Blockwise(tuple(choose(block, ridge) for block in M.blocks))
    if isinstance(M, Kronecker):
        return Folded(choose(Dense(M.A), ridge)) if M.B is None else KroneckerSVD() if ridge.present else KroneckerQR()
    if isinstance(M, LowRankPlusDiagonal) and ridge.present:
        return LowRankQR()
    return None
