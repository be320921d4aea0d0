"""A design for each right-hand side: many small factorisations in one call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, final

from xvarpro.backends import Backend
from xvarpro.core.namespace import namespace_of
from xvarpro.core.struct import Array
from xvarpro.core.trees import adjoint
from xvarpro.lower.interface import Adjoint, Diagnosis, LowerSolver, System
from xvarpro.lower.stack import diagnose_triangle, or_nan, stacked


class BatchedFactor(NamedTuple):
    """Factors ``Q[j] R[j]`` of one matrix per right-hand side."""

    Q: Array
    R: Array


@final
@dataclass(frozen=True)
class BatchedQR(LowerSolver):
    """QR of ``[M[j]; sqrt(lam) Omega]`` for every right-hand side j, in one call."""

    def factor(self, backend: Backend, system: System) -> BatchedFactor:
        Q, R = backend.qr(stacked(system.M.dense(), system.root, system.weight))
        return BatchedFactor(Q, or_nan(backend, system, R, Q.shape[-2]))

    def argmin(self, backend: Backend, system: System, factor: BatchedFactor, y: Array) -> Array:
        Q, R = factor
        return _flat(backend.solve_triangular(R, adjoint(Q[:, : y.shape[0], :]) @ _column(y)))

    def adjoint(
        self, backend: Backend, system: System, factor: BatchedFactor, c: Array, y: Array, w: Array, r: Array
    ) -> Adjoint:
        Q, R = factor
        z = backend.solve_triangular(R, _column(c), transpose=True)
        v = _flat(backend.solve_triangular(R, z))
        return Adjoint(_flat(Q[:, : y.shape[0], :] @ z), ((r, v),), v)

    def diagnose(self, backend: Backend, system: System, factor: BatchedFactor, y: Array) -> Diagnosis:
        return diagnose_triangle(backend, factor.R, factor.Q.shape[-2])


@final
@dataclass(frozen=True)
class BatchedDualQR(LowerSolver):
    """The dual form, as `DualQR`, for every right-hand side in one call."""

    def factor(self, backend: Backend, system: System) -> BatchedFactor:
        N_H = adjoint(system.M.dense())
        if system.weight is not None:
            N_H = namespace_of(N_H).linalg.solve(adjoint(system.weight), N_H)
        Q, R = backend.qr(stacked(N_H, system.root, None))
        return BatchedFactor(Q, or_nan(backend, system, R, Q.shape[-2]))

    def argmin(self, backend: Backend, system: System, factor: BatchedFactor, y: Array) -> Array:
        Q, n = factor.Q, system.M.shape[1]
        z = backend.solve_triangular(factor.R, _column(y), transpose=True)
        return _flat(_unweighed(system, Q[:, :n, :] @ z))

    def refine(
        self, backend: Backend, system: System, factor: BatchedFactor, y: Array, w: Array, r: Array
    ) -> tuple[Array, Array]:
        # the residual is of order lam: a difference would lose it
        return w, -system.lam * _flat(_multiplier(backend, factor.R, y))

    def adjoint(
        self, backend: Backend, system: System, factor: BatchedFactor, c: Array, y: Array, w: Array, r: Array
    ) -> Adjoint:
        (Q, R), n = factor, system.M.shape[1]
        c = _column(c)
        if system.weight is not None:
            c = namespace_of(c).linalg.solve(adjoint(system.weight), c)
        turned = adjoint(Q[:, :n, :]) @ c
        rest = _flat(_unweighed(system, c - Q[:, :n, :] @ turned))
        a = _flat(_multiplier(backend, R, y))
        v = rest / system.lam if system.ridged else None
        return Adjoint(_flat(backend.solve_triangular(R, turned)), ((-a, rest),), v)

    def diagnose(self, backend: Backend, system: System, factor: BatchedFactor, y: Array) -> Diagnosis:
        return diagnose_triangle(backend, factor.R, factor.Q.shape[-2])


def _multiplier(backend: Backend, R: Array, y: Array) -> Array:
    """``(R^H R)^-1 y``."""
    return backend.solve_triangular(R, backend.solve_triangular(R, _column(y), transpose=True))


def _unweighed(system: System, x: Array) -> Array:
    return x if system.weight is None else namespace_of(x).linalg.solve(system.weight, x)


def _column(y: Array) -> Array:
    """(m, k) as k columns (k, m, 1)."""
    return namespace_of(y).expand_dims(y.mT, axis=2)


def _flat(x: Array) -> Array:
    """Inverse of `_column`."""
    return x[:, :, 0].mT
