"""QR of the stacked system: error of order cond(M), where normal equations have its square."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from xvarpro.backends import Backend
from xvarpro.core.namespace import namespace_of
from xvarpro.core.struct import Array
from xvarpro.core.trees import MANY, adjoint_product
from xvarpro.lower.accumulation import Gram, Triangle
from xvarpro.lower.interface import Accumulation, Adjoint, Diagnosis, LowerSolver, System, Volume
from xvarpro.lower.stack import QRFactor, affordable, as_column, as_columns, eye_like, factored, refine, stacked


@dataclass(frozen=True)
class QR(LowerSolver):
    """QR factorisation of ``[M; sqrt(lam) Omega]``.

    ``w = R^-1 Q^H y`` and, with ``z = R^-H c``, ``v = R^-1 z`` and ``M v = Q z`` without a product with M. Designs of
    one right-hand side each are factored in one batch. In double precision, from a condition of 300 on, w and v of a
    gradient are refined: their error is then of the order of eps where a factorisation alone leaves ``eps cond``.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> problem = xv.separable(lambda theta, data: theta, np.ones(3), lam=1e-3, solver=xv.lower.QR())
    """

    accumulation: ClassVar[Accumulation] = Triangle()

    def factor(self, backend: Backend, system: System) -> QRFactor:
        return factored(backend, system, _matrix(backend, system))

    def argmin(self, backend: Backend, system: System, factor: QRFactor, y: Array) -> Array:
        Q, R = factor
        if R.ndim > 2:
            return as_columns(backend.solve_triangular(R, adjoint_product(Q[..., : y.shape[0], :], as_column(y, R))))
        return backend.solve_triangular(R, adjoint_product(Q[: y.shape[0], :], y))

    def refine(
        self, backend: Backend, system: System, factor: QRFactor, y: Array, w: Array, r: Array
    ) -> tuple[Array, Array]:
        # of a large target, where a Q of very many rows has few digits in single precision
        few = factor.R.ndim == 2 and y.shape[0] > MANY and namespace_of(w).finfo(w.dtype).eps > 1e-10
        if not few and not affordable(factor.R, y.shape[0], w):
            return w, r
        w, r = _corrected(backend, system, factor.R, w, r)
        top, w = refine(backend, factor, lambda: _matrix(backend, system), (y, None), (-r, w))
        return w, -top

    def adjoint(
        self, backend: Backend, system: System, factor: QRFactor, c: Array, y: Array, w: Array, r: Array
    ) -> Adjoint:
        Q, R = factor
        z = backend.solve_triangular(R, as_column(c, R), transpose=True)
        q, b = as_columns(Q[..., : y.shape[0], :] @ z), -as_columns(backend.solve_triangular(R, z))
        q, b = refine(backend, factor, lambda: _matrix(backend, system), (None, c), (q, b))
        return Adjoint(q, ((r, -b),), -b)

    def volume(self, backend: Backend, system: System, factor: QRFactor) -> Volume:
        Q, R = factor
        m = system.M.shape[0]

        def pair() -> tuple[Array, Array]:
            return Q[..., :m, :], backend.solve_triangular(R, eye_like(R))

        return Volume(system.ridge, namespace_of(R).linalg.diagonal(R), pair)

    def diagnose(self, backend: Backend, system: System, factor: QRFactor, y: Array) -> Diagnosis:
        return factor.diagnosis(backend)


@final
@dataclass(frozen=True)
class Cholesky(QR):
    """Normal equations of rows in chunks: a product with each, where `QR` factors them. For arrays it is `QR`.

    The condition is squared, and the value of an objective is right to ``eps |y|^2`` only.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> chunks = xv.RowChunks([(np.ones((4, 1)), np.ones(4))] * 3)
    >>> problem = xv.separable(lambda theta, data: theta * data, chunks, solver=xv.lower.Cholesky())
    """

    accumulation = Gram()


def _corrected(backend: Backend, system: System, R: Array, w: Array, r: Array) -> tuple[Array, Array]:
    """One correction by the seminormal equations: the error keeps its order, its constant becomes smaller."""
    M, ridge = system
    g = M.rmatvec(r) + ridge.slope(w) if ridge.present else M.rmatvec(r)
    dw = backend.solve_triangular(R, backend.solve_triangular(R, g, transpose=True))
    return w - dw, r - M.matvec(dw)


def _matrix(backend: Backend, system: System) -> Array:
    return stacked(backend, system.M.dense(), system.ridge)
