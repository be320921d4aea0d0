"""QR of the stacked system: error of order cond(M), where normal equations have its square."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, final

from array_api_compat import array_namespace

from xvarpro.lower._stack import condition_of, dependent_column, stacked
from xvarpro.protocols import Adjoint, Array, LowerSolver, Operator


class QRFactor(NamedTuple):
    """``[M; sqrt(lam) Omega] = [Q; *] R``."""

    Q: Array
    R: Array


@final
@dataclass(frozen=True)
class QR(LowerSolver):
    """QR factorisation of ``[M; sqrt(lam) Omega]``: the default.

    ``w = R^-1 Q^T y`` and, with ``z = R^-T c``, ``v = R^-1 z`` and ``M v = Q z`` without a product with M.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> problem = xv.separable(lambda theta, data: theta, np.ones(3), lam=1e-3, solver=xv.lower.QR())
    """

    def factor(self, backend: Any, M: Operator, lam: float, Omega: Array | None) -> QRFactor:
        Q, R = backend.qr(stacked(M.dense(), lam, Omega))
        return QRFactor(Q[: M.shape[0], :], R)

    def argmin(self, backend: Any, factor: QRFactor, y: Array) -> Array:
        return backend.solve_triangular(factor.R, factor.Q.mT @ y)

    def adjoint(self, backend: Any, factor: QRFactor, c: Array, y: Array) -> Adjoint:
        Q, R = factor
        z = backend.solve_triangular(R, c, transpose=True)
        r = Q @ (Q.mT @ y) - y
        return Adjoint(Q @ z, ((r, backend.solve_triangular(R, z)),))

    def deficient(self, backend: Any, factor: QRFactor) -> Array:
        m, n = factor.R.shape
        if m < n:
            xp = array_namespace(factor.R)
            return xp.asarray(True)
        return dependent_column(factor.R)

    def condition(self, backend: Any, factor: QRFactor) -> Array:
        return condition_of(backend, factor.R)
