"""A diagonal design is solved by division."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, final

from xvarpro.backends import Backend
from xvarpro.core.namespace import conj, namespace_of
from xvarpro.core.struct import Array
from xvarpro.lower.interface import Adjoint, Diagnosis, LowerSolver, System
from xvarpro.operators import Diagonal


class DivisionFactor(NamedTuple):
    """The diagonal, and the diagonal of R in ``[diag(d); sqrt(lam) I] = Q R``; shapes (n, 1) or (n, k)."""

    d: Array
    size: Array


@final
@dataclass(frozen=True)
class Division(LowerSolver):
    """A `Diagonal` design without Omega: ``w = conj(d) y / (|d|^2 + lam)``."""

    def factor(self, backend: Backend, system: System) -> DivisionFactor:
        M = system.M
        assert isinstance(M, Diagonal)
        xp, d = namespace_of(M.matrix), M.matrix
        size = xp.abs(d)
        if system.ridge.present:
            size = xp.sqrt(size**2 + system.ridge.lam)
        if system.ridge.definite:
            return DivisionFactor(d, size)
        return DivisionFactor(d, xp.where(_singular(size), xp.full_like(size, xp.nan), size))

    def argmin(self, backend: Backend, system: System, factor: DivisionFactor, y: Array) -> Array:
        d, size = factor
        return conj(d) / size * (y / size)

    def refine(
        self, backend: Backend, system: System, factor: DivisionFactor, y: Array, w: Array, r: Array
    ) -> tuple[Array, Array]:
        # of order lam: a difference would lose it
        return w, -system.ridge.lam * (y / factor.size / factor.size)

    def adjoint(
        self, backend: Backend, system: System, factor: DivisionFactor, c: Array, y: Array, w: Array, r: Array
    ) -> Adjoint:
        d, size = factor
        z = c / size
        v = z / size
        return Adjoint(d / size * z, ((-system.ridge.lam * (y / size / size), v),), v)

    def diagnose(self, backend: Backend, system: System, factor: DivisionFactor, y: Array) -> Diagnosis:
        """Of the right-hand side with the largest condition."""
        xp, size = namespace_of(factor.size), factor.size
        return Diagnosis.of(_singular(size), xp.max(xp.max(size, axis=0) / xp.min(size, axis=0)))


def _singular(size: Array) -> Array:
    xp = namespace_of(size)
    return ~xp.all((size > 0) & xp.isfinite(size))
