"""The dual form, for designs with more columns than rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, final

from xvarpro.backends import Backend
from xvarpro.core.namespace import namespace_of
from xvarpro.core.struct import Array
from xvarpro.core.trees import adjoint
from xvarpro.lower._refinement import Improve, Refinable, as_factored
from xvarpro.lower.interface import Adjoint, Diagnosis, System
from xvarpro.lower.stack import diagnose_triangle, or_nan, stacked


class DualFactor(NamedTuple):
    """``[N^H; sqrt(lam) I] = Q R`` with ``N = M Omega^-1``, so that ``N N^T + lam I = R^T R``."""

    Q: Array
    R: Array
    Omega: tuple[Array, ...]  # empty for the identity


@final
@dataclass(frozen=True)
class DualQR(Refinable):
    """QR of the m x m dual system for wide M: ``K = M M^T + lam I``, ``w = M^T K^-1 y``.

    In ``grad = grad_theta f_U - <dM w - dy, q> + <K^-1 y, dM (c - M^T q)>`` with ``q = K^-1 M c`` the ridge cancels
    analytically, so that nothing is lost as lam goes to 0, where the n x n system is singular.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> xv.lower.choose(xv.operators.Dense(np.ones((10, 512))), lam=1e-3)
    Refined(solver=DualQR())
    """

    def factor(self, backend: Backend, system: System) -> DualFactor:
        Omega = system.weight
        Q, R = backend.qr(_dual(system))
        return DualFactor(Q, or_nan(backend, system, R, Q.shape[0]), () if Omega is None else (Omega,))

    def argmin(self, backend: Backend, system: System, factor: DualFactor, y: Array) -> Array:
        n = system.M.shape[1]
        return _from_dual(factor, factor.Q[:n, :] @ backend.solve_triangular(factor.R, y, transpose=True))

    def refine(
        self, backend: Backend, system: System, factor: DualFactor, y: Array, w: Array, r: Array
    ) -> tuple[Array, Array]:
        return self.refine_by(as_factored, backend, system, factor, y, w, r)

    def refine_by(
        self, improve: Improve, backend: Backend, system: System, factor: DualFactor, y: Array, w: Array, r: Array
    ) -> tuple[Array, Array]:
        # r is of order lam: a difference would lose it
        x, a = self._multiplier(improve, backend, system, factor, y)
        return _from_dual(factor, x), -system.lam * a

    def adjoint_by(
        self, improve: Improve, backend: Backend, system: System, factor: DualFactor, c: Array, y: Array, r: Array
    ) -> Adjoint:
        Q, R = factor.Q, factor.R
        n = system.M.shape[1]
        c = namespace_of(Q).linalg.solve(adjoint(factor.Omega[0]), c) if factor.Omega else c
        _, a = self._multiplier(improve, backend, system, factor, y)
        q = backend.solve_triangular(R, adjoint(Q[:n, :]) @ c)
        rest = c - Q[:n, :] @ (R @ q)
        rest, q = improve(backend, Q, R, lambda: _dual(system), (c, None), (rest, q))
        rest = _from_dual(factor, rest)
        return Adjoint(q, ((-a, rest),), rest / system.lam if system.ridged else None)

    def _multiplier(
        self, improve: Improve, backend: Backend, system: System, factor: DualFactor, y: Array
    ) -> tuple[Array, Array]:
        """``N^H a`` and ``a = K^-1 y``."""
        Q, R = factor.Q, factor.R
        z = backend.solve_triangular(R, y, transpose=True)
        x, b = Q[: system.M.shape[1], :] @ z, -backend.solve_triangular(R, z)
        x, b = improve(backend, Q, R, lambda: _dual(system), (None, y), (x, b))
        return x, -b

    def diagnose(self, backend: Backend, system: System, factor: DualFactor, y: Array) -> Diagnosis:
        return diagnose_triangle(backend, factor.R, factor.Q.shape[0])


def _dual(system: System) -> Array:
    """``[N^H; sqrt(lam) I]`` with ``N = M Omega^-1``."""
    M_H, Omega = adjoint(system.M.dense()), system.weight
    N_H = M_H if Omega is None else namespace_of(M_H).linalg.solve(adjoint(Omega), M_H)
    return stacked(N_H, system.root, None)


def _from_dual(factor: DualFactor, x: Array) -> Array:
    return namespace_of(x).linalg.solve(factor.Omega[0], x) if factor.Omega else x
