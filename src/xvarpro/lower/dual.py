"""The dual form, for designs with more columns than rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from xvarpro.backends import Backend
from xvarpro.core.namespace import namespace_of, solve
from xvarpro.core.struct import Array
from xvarpro.core.trees import adjoint, inner
from xvarpro.lower._refinement import refine
from xvarpro.lower.interface import Adjoint, Diagnosis, LowerSolver, System
from xvarpro.lower.stack import QRFactor, as_column, as_columns, factored, stacked


@final
@dataclass(frozen=True)
class DualQR(LowerSolver):
    """QR of the m x m dual system for wide M: ``K = M M^T + lam I``, ``w = M^T K^-1 y``.

    In ``grad = grad_theta f_U - <dM w - dy, q> + <K^-1 y, dM (c - M^T q)>`` with ``q = K^-1 M c`` the ridge cancels
    analytically, so that nothing is lost as lam goes to 0, where the n x n system is singular. With an Omega M is
    ``N = M Omega^-1``, and what is factored ``[N^H; sqrt(lam) I] = Q R``, so that ``K = R^H R``. Refined as `QR` is.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> xv.lower.choose(xv.operators.Dense(np.ones((10, 512))), lam=1e-3)
    DualQR()
    """

    def factor(self, backend: Backend, system: System) -> QRFactor:
        return factored(backend, system, _dual(backend, system))

    def argmin(self, backend: Backend, system: System, factor: QRFactor, y: Array) -> Array:
        Q, R = factor
        z = backend.solve_triangular(R, as_column(y, R), transpose=True)
        return _from_dual(system, as_columns(Q[..., : system.M.shape[1], :] @ z))

    def refine(
        self, backend: Backend, system: System, factor: QRFactor, y: Array, w: Array, r: Array
    ) -> tuple[Array, Array]:
        # r is of order lam: a difference would lose it
        x, a = _multiplier(backend, system, factor, y)
        return _from_dual(system, x), -system.lam * a

    def adjoint(
        self, backend: Backend, system: System, factor: QRFactor, c: Array, y: Array, w: Array, r: Array
    ) -> Adjoint:
        (Q, R), n, Omega = factor, system.M.shape[1], system.weight
        c = c if Omega is None else solve(namespace_of(c), adjoint(Omega), c)
        _, a = _multiplier(backend, system, factor, y)
        z = adjoint(Q[..., :n, :]) @ as_column(c, R)
        q, rest = as_columns(backend.solve_triangular(R, z)), c - as_columns(Q[..., :n, :] @ z)
        rest, q = refine(backend, factor, lambda: _dual(backend, system), (c, None), (rest, q))
        rest = _from_dual(system, rest)
        return Adjoint(q, ((-a, rest),), rest / system.lam if system.ridged else None, inner(a, q))

    def diagnose(self, backend: Backend, system: System, factor: QRFactor, y: Array) -> Diagnosis:
        return factor.diagnosis(backend)


def _multiplier(backend: Backend, system: System, factor: QRFactor, y: Array) -> tuple[Array, Array]:
    """``N^H a`` and ``a = K^-1 y``."""
    Q, R = factor
    z = backend.solve_triangular(R, as_column(y, R), transpose=True)
    x, b = as_columns(Q[..., : system.M.shape[1], :] @ z), -as_columns(backend.solve_triangular(R, z))
    x, b = refine(backend, factor, lambda: _dual(backend, system), (None, y), (x, b))
    return x, -b


def _dual(backend: Backend, system: System) -> Array:
    """``[N^H; sqrt(lam) I]`` with ``N = M Omega^-1``."""
    M_H, Omega = adjoint(system.M.dense()), system.weight
    N_H = M_H if Omega is None else solve(namespace_of(M_H), adjoint(Omega), M_H)
    return stacked(backend, N_H, system.root, None)


def _from_dual(system: System, x: Array) -> Array:
    """``Omega^-1 x``."""
    Omega = system.weight
    return x if Omega is None else solve(namespace_of(x), Omega, x)
