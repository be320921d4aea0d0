"""The dual form, for designs with more columns than rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, final

from array_api_compat import array_namespace

from xvarpro.lower._stack import condition_of, dependent_column, stacked
from xvarpro.protocols import Adjoint, Array, LowerSolver, Operator


class DualFactor(NamedTuple):
    """``[N^T; sqrt(lam) I] = [Q; *] R`` with ``N = M Omega^-1``, so that ``N N^T + lam I = R^T R``."""

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
    >>> import xvarpro as xv
    >>> xv.lower.choose((10, 512), lam=1e-3)
    DualQR()
    """

    def factor(self, backend: Any, M: Operator, lam: float, Omega: Array | None) -> DualFactor:
        A = M.dense()
        xp = array_namespace(A)
        N_T = A.mT if Omega is None else xp.linalg.solve(Omega.mT, A.mT)
        Q, R = backend.qr(stacked(N_T, lam, None))
        return DualFactor(Q[: A.shape[1], :], R, () if Omega is None else (Omega,))

    def argmin(self, backend: Any, factor: DualFactor, y: Array) -> Array:
        return _from_dual(factor, factor.Q @ backend.solve_triangular(factor.R, y, transpose=True))

    def adjoint(self, backend: Any, factor: DualFactor, c: Array, y: Array) -> Adjoint:
        Q, R = factor.Q, factor.R
        xp = array_namespace(Q)
        c = xp.linalg.solve(factor.Omega[0].mT, c) if factor.Omega else c
        z = Q.mT @ c
        a = backend.solve_triangular(R, backend.solve_triangular(R, y, transpose=True))
        return Adjoint(backend.solve_triangular(R, z), ((-a, _from_dual(factor, c - Q @ z)),))

    def deficient(self, backend: Any, factor: DualFactor) -> Array:
        return dependent_column(factor.R)

    def condition(self, backend: Any, factor: DualFactor) -> Array:
        return condition_of(backend, factor.R)


def _from_dual(factor: DualFactor, x: Array) -> Array:
    return array_namespace(x).linalg.solve(factor.Omega[0], x) if factor.Omega else x
