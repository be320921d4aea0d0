"""The dual form, for designs with more columns than rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, final

from xvarpro._namespace import array_namespace
from xvarpro.lower._refinement import Augmented, refine
from xvarpro.lower._stack import condition_of, deficient, stacked
from xvarpro.operators import as_operator
from xvarpro.protocols import Adjoint, Array, LowerSolver, System


class DualFactor(NamedTuple):
    """``[N^T; sqrt(lam) I] = Q R`` with ``N = M Omega^-1``, so that ``N N^T + lam I = R^T R``."""

    Q: Array
    R: Array
    Omega: tuple[Array, ...]  # empty for the identity


@final
@dataclass(frozen=True)
class DualQR(LowerSolver):
    """QR of the m x m dual system for wide M: ``K = M M^T + lam I``, ``w = M^T K^-1 y``.

    In ``grad = grad_theta f_U - <dM w - dy, q> + <K^-1 y, dM (c - M^T q)>`` with ``q = K^-1 M c`` the ridge cancels
    analytically, so that nothing is lost as lam goes to 0, where the n x n system is singular.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> xv.lower.choose(xv.operators.Dense(np.ones((10, 512))), lam=1e-3)
    DualQR()
    """

    def factor(self, backend: Any, system: System) -> DualFactor:
        Omega = None if system.Omega is None else as_operator(system.Omega).dense()
        Q, R = backend.qr(_dual(system))
        return DualFactor(Q, R, () if Omega is None else (Omega,))

    def argmin(self, backend: Any, system: System, factor: DualFactor, y: Array) -> Array:
        n = system.M.shape[1]
        return _from_dual(factor, factor.Q[:n, :] @ backend.solve_triangular(factor.R, y, transpose=True))

    def condense(self, factor: DualFactor) -> Array:
        return factor.R

    def refine(
        self, backend: Any, system: System, condensed: Array, y: Array, w: Array, r: Array
    ) -> tuple[Array, Array]:
        factor = self.factor(backend, system)
        x, a = self._multiplier(backend, system, factor, y)
        return _from_dual(factor, x), -system.lam * a

    def adjoint(self, backend: Any, system: System, factor: DualFactor, c: Array, y: Array, r: Array) -> Adjoint:
        Q, R = factor.Q, factor.R
        n = system.M.shape[1]
        c = array_namespace(Q).linalg.solve(factor.Omega[0].mT, c) if factor.Omega else c
        _, a = self._multiplier(backend, system, factor, y)
        q = backend.solve_triangular(R, Q[:n, :].mT @ c)
        rest = c - Q[:n, :] @ (R @ q)
        rest, q = refine(backend, R, lambda: Augmented(_dual(system), Q, R, c, None), rest, q)
        return Adjoint(q, ((-a, _from_dual(factor, rest)),))

    def _multiplier(self, backend: Any, system: System, factor: DualFactor, y: Array) -> tuple[Array, Array]:
        """``N^T a`` and ``a = K^-1 y``."""
        Q, R = factor.Q, factor.R
        z = backend.solve_triangular(R, y, transpose=True)
        x, b = Q[: system.M.shape[1], :] @ z, -backend.solve_triangular(R, z)
        x, b = refine(backend, R, lambda: Augmented(_dual(system), Q, R, None, y), x, b)
        return x, -b

    def deficient(self, backend: Any, factor: DualFactor) -> Array:
        return deficient(backend, factor.R, factor.Q.shape[0])

    def condition(self, backend: Any, factor: DualFactor) -> Array:
        return condition_of(backend, factor.R)


def _dual(system: System) -> Array:
    """``[N^T; sqrt(lam) I]`` with ``N = M Omega^-1``."""
    M_T = system.M.dense().mT
    Omega = None if system.Omega is None else as_operator(system.Omega).dense()
    N_T = M_T if Omega is None else array_namespace(M_T).linalg.solve(Omega.mT, M_T)
    return stacked(N_T, system.lam, None)


def _from_dual(factor: DualFactor, x: Array) -> Array:
    return array_namespace(x).linalg.solve(factor.Omega[0], x) if factor.Omega else x
