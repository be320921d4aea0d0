"""Normal equations: half the work of QR and the square of its condition number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, final

from xvarpro._namespace import array_namespace, device
from xvarpro.lower._stack import condition_of, deficient_gram
from xvarpro.protocols import Adjoint, Array, LowerSolver, System


class CholeskyFactor(NamedTuple):
    """``M^T M + lam Omega^T Omega = L L^T``, with M itself for the products."""

    A: Array
    L: Array


@final
@dataclass(frozen=True)
class Cholesky(LowerSolver):
    """Cholesky factorisation of ``M^T M + lam Omega^T Omega``.

    The gradient's error grows with the square of cond(M): take it when M has far more rows than columns and
    ``cond(M)`` is known to stay below about 1e4 in float64. In float32 it is rarely accurate enough.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> problem = xv.separable(lambda theta, data: theta, np.ones(3), lam=1e-3, solver=xv.lower.Cholesky())
    """

    def factor(self, backend: Any, system: System) -> CholeskyFactor:
        A, lam, Omega = system.M.dense(), system.lam, system.Omega
        xp = array_namespace(A)
        H = A.mT @ A
        if lam:
            H = H + lam * (xp.eye(A.shape[1], dtype=A.dtype, device=device(A)) if Omega is None else Omega.mT @ Omega)
        return CholeskyFactor(A, backend.cholesky(H))

    def argmin(self, backend: Any, system: System, factor: CholeskyFactor, y: Array) -> Array:
        return _solve(backend, factor.L, factor.A.mT @ y)

    def adjoint(self, backend: Any, system: System, factor: CholeskyFactor, c: Array, y: Array, r: Array) -> Adjoint:
        v = _solve(backend, factor.L, c)
        return Adjoint(factor.A @ v, ((r, v),))

    def deficient(self, backend: Any, factor: CholeskyFactor) -> Array:
        return deficient_gram(factor.L)

    def condition(self, backend: Any, factor: CholeskyFactor) -> Array:
        return condition_of(backend, factor.L)


def _solve(backend: Any, L: Array, b: Array) -> Array:
    return backend.solve_triangular(L, backend.solve_triangular(L, b, lower=True), lower=True, transpose=True)
