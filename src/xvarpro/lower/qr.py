"""QR of the stacked system: error of order cond(M), where normal equations have its square."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, final

from xvarpro.core.struct import Array
from xvarpro.core.trees import adjoint
from xvarpro.lower._refinement import Augmented, affordable, refine
from xvarpro.lower.interface import Adjoint, LowerSolver, System
from xvarpro.lower.stack import condition_of, deficient, stacked


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
        return QRFactor(*backend.qr(_matrix(system)))

    def argmin(self, backend: Any, system: System, factor: QRFactor, y: Array) -> Array:
        return backend.solve_triangular(factor.R, adjoint(factor.Q[: y.shape[0], :]) @ y)

    def condense(self, factor: QRFactor) -> Array:
        return factor.R

    def refine(
        self, backend: Any, system: System, condensed: Array, y: Array, w: Array, r: Array
    ) -> tuple[Array, Array]:
        if not affordable(y.shape[0], w):
            return w, r
        w, r = _corrected(backend, system, condensed, w, r)

        def state() -> Augmented:
            return Augmented(_matrix(system), *self.factor(backend, system), y, None)

        top, w = refine(backend, condensed, state, -r, w)
        return w, -top

    def adjoint(self, backend: Any, system: System, factor: QRFactor, c: Array, y: Array, r: Array) -> Adjoint:
        Q, R = factor
        z = backend.solve_triangular(R, c, transpose=True)
        q, b = Q[: y.shape[0], :] @ z, -backend.solve_triangular(R, z)
        q, b = refine(backend, R, lambda: Augmented(_matrix(system), *factor, None, c), q, b)
        return Adjoint(q, ((r, -b),), -b)

    def deficient(self, backend: Any, factor: QRFactor) -> Array:
        return deficient(backend, factor.R, factor.Q.shape[0])

    def condition(self, backend: Any, factor: QRFactor) -> Array:
        return condition_of(backend, factor.R)


def _corrected(backend: Any, system: System, R: Array, w: Array, r: Array) -> tuple[Array, Array]:
    """One step of seminormal equations, which a derivative through the solve would take: no digit, but a factor."""
    M, lam, Omega = system.M, system.lam, system.weight
    g = M.rmatvec(r)
    if system.ridged:
        g = g + lam * (w if Omega is None else adjoint(Omega) @ (Omega @ w))
    dw = backend.solve_triangular(R, backend.solve_triangular(R, g, transpose=True))
    return w - dw, r - M.matvec(dw)


def _matrix(system: System) -> Array:
    return stacked(system.M.dense(), system.root, system.weight)
