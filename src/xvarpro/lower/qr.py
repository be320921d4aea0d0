"""QR of the stacked system: error of order cond(M), where normal equations have its square."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, final

from xvarpro.lower._refinement import LARGEST, Augmented, refine
from xvarpro.lower._stack import condition_of, deficient, padded, stacked
from xvarpro.protocols import Adjoint, Array, LowerSolver, System


class QRFactor(NamedTuple):
    """``[M; sqrt(lam) Omega] = Q R``."""

    Q: Array
    R: Array


@final
@dataclass(frozen=True)
class QR(LowerSolver):
    """QR factorisation of ``[M; sqrt(lam) Omega]``: the default.

    ``w = R^-1 Q^T y`` and, with ``z = R^-T c``, ``v = R^-1 z`` and ``M v = Q z`` without a product with M. Where the
    condition asks for it and the target is not large, what the gradient is made of is refined (`lower._refinement`).

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> problem = xv.separable(lambda theta, data: theta, np.ones(3), lam=1e-3, solver=xv.lower.QR())
    """

    def factor(self, backend: Any, system: System) -> QRFactor:
        Q, R = backend.qr(stacked(system.M.dense(), system.lam, system.Omega))
        return QRFactor(Q, R)

    def argmin(self, backend: Any, system: System, factor: QRFactor, y: Array) -> Array:
        return backend.solve_triangular(factor.R, factor.Q[: y.shape[0], :].mT @ y)

    def refine(
        self, backend: Any, system: System, factor: QRFactor, y: Array, w: Array, r: Array
    ) -> tuple[Array, Array]:
        m = y.shape[0]
        if factor.Q.shape[0] * y.shape[1] > LARGEST:
            return w, r
        A = stacked(system.M.dense(), system.lam, system.Omega)
        f = padded(y, A.shape[0])
        a, w = refine(backend, Augmented(A, *factor, f, None), f - A @ w, w)
        return w, -a[:m, :]

    def adjoint(self, backend: Any, system: System, factor: QRFactor, c: Array, y: Array, r: Array) -> Adjoint:
        Q, R = factor
        z = backend.solve_triangular(R, c, transpose=True)
        A = stacked(system.M.dense(), system.lam, system.Omega)
        q, b = refine(backend, Augmented(A, Q, R, None, c), Q @ z, -backend.solve_triangular(R, z))
        return Adjoint(q[: y.shape[0], :], ((r, -b),))

    def deficient(self, backend: Any, factor: QRFactor) -> Array:
        return deficient(backend, factor.R, factor.Q.shape[0])

    def condition(self, backend: Any, factor: QRFactor) -> Array:
        return condition_of(backend, factor.R)
