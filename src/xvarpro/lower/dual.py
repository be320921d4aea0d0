"""The dual form, for designs with more columns than rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from xvarpro.backends import Backend
from xvarpro.core.namespace import namespace_of
from xvarpro.core.struct import Array
from xvarpro.core.trees import adjoint, inner
from xvarpro.errors import ProblemError
from xvarpro.lower.interface import Adjoint, Diagnosis, LowerSolver, Ridge, System, Volume
from xvarpro.lower.stack import QRFactor, as_column, as_columns, eye_like, factored, refine, stacked


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
    >>> from xvarpro.lower.interface import Ridge
    >>> xv.lower.choose(xv.operators.Dense(np.ones((10, 512))), Ridge(1e-3))
    DualQR()
    """

    def factor(self, backend: Backend, system: System) -> QRFactor:
        return factored(backend, system, _dual(backend, system))

    def argmin(self, backend: Backend, system: System, factor: QRFactor, y: Array) -> Array:
        Q, R = factor
        z = backend.solve_triangular(R, as_column(y, R), transpose=True)
        return system.ridge.unweighted(as_columns(Q[..., : system.M.shape[1], :] @ z))

    def refine(
        self, backend: Backend, system: System, factor: QRFactor, y: Array, w: Array, r: Array
    ) -> tuple[Array, Array]:
        # r is of order lam: a difference would lose it
        x, a = _multiplier(backend, system, factor, y)
        return system.ridge.unweighted(x), -system.ridge.lam * a

    def adjoint(
        self, backend: Backend, system: System, factor: QRFactor, c: Array, y: Array, w: Array, r: Array
    ) -> Adjoint:
        (Q, R), n, ridge = factor, system.M.shape[1], system.ridge
        c = ridge.unweighted_back(c)
        _, a = _multiplier(backend, system, factor, y)
        z = adjoint(Q[..., :n, :]) @ as_column(c, R)
        q, rest = as_columns(backend.solve_triangular(R, z)), c - as_columns(Q[..., :n, :] @ z)
        rest, q = refine(backend, factor, lambda: _dual(backend, system), (c, None), (rest, q))
        rest = ridge.unweighted(rest)
        return Adjoint(q, ((-a, rest),), rest / ridge.lam if ridge.present else None, inner(a, q))

    def volume(self, backend: Backend, system: System, factor: QRFactor) -> Volume:
        # d log det K^(1/2) = Re <K^-1 N Omega^-H, dM> and K^-1 N = R^-1 Q^H
        (Q, R), ridge = factor, system.ridge
        n = system.M.shape[1]

        def pair() -> tuple[Array, Array]:
            top = Q[..., :n, :]
            return backend.solve_triangular(R, eye_like(R)), as_column(ridge.unweighted(as_columns(top)), R)

        return Volume(ridge, namespace_of(R).linalg.diagonal(R), pair, dual=True)

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
    ridge = system.ridge
    if not (ridge.uniform and ridge.square):
        raise ProblemError(
            "DualQR needs lam to be one number > 0, and an Omega with an inverse: M Omega^-1 / sqrt(lam) takes the "
            "place of M; got an array, some of whose entries may be 0, or an Omega without one. Leave out solver=, for "
            "a QR of the rows of M and of the ridge"
        )
    return stacked(backend, ridge.unweighted_back(adjoint(system.M.dense())), Ridge(ridge.lam))
