"""A diagonal design is solved by division."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, final

from xvarpro.core.namespace import array_namespace
from xvarpro.core.struct import Array
from xvarpro.core.trees import adjoint
from xvarpro.lower.interface import Adjoint, LowerSolver, System


class DivisionFactor(NamedTuple):
    """The diagonal, and the diagonal of R in ``[diag(d); sqrt(lam) I] = Q R``; shapes (n, 1) or (n, k)."""

    d: Array
    size: Array


@final
@dataclass(frozen=True)
class Division(LowerSolver):
    """A `Diagonal` design without Omega: ``w = conj(d) y / (|d|^2 + lam)``."""

    def factor(self, backend: Any, system: System) -> DivisionFactor:
        M: Any = system.M
        xp, d = array_namespace(M.matrix), M.matrix
        size = xp.abs(d)
        return DivisionFactor(d, xp.sqrt(size**2 + system.lam) if system.ridged else size)

    def argmin(self, backend: Any, system: System, factor: DivisionFactor, y: Array) -> Array:
        d, size = factor
        return _conj(d) / size * (y / size) if system.ridged else y / d

    def condense(self, factor: DivisionFactor) -> Array:
        return factor.size

    def refine(
        self, backend: Any, system: System, condensed: Array, y: Array, w: Array, r: Array
    ) -> tuple[Array, Array]:
        # of order lam: a difference would lose it
        return w, -system.lam * (y / condensed / condensed) if system.ridged else array_namespace(r).zeros_like(r)

    def adjoint(self, backend: Any, system: System, factor: DivisionFactor, c: Array, y: Array, r: Array) -> Adjoint:
        d, size = factor
        if not system.ridged:
            q = c / _conj(d)
            return Adjoint(q, ((array_namespace(r).zeros_like(r), q / d),), q / d)
        z = c / size
        v = z / size
        return Adjoint(d / size * z, ((-system.lam * (y / size / size), v),), v)

    def deficient(self, backend: Any, factor: DivisionFactor) -> Array:
        xp = array_namespace(factor.size)
        return ~xp.all((factor.size > 0) & xp.isfinite(factor.size))

    def condition(self, backend: Any, factor: DivisionFactor) -> Array:
        """The largest of the right-hand sides'."""
        xp, size = array_namespace(factor.size), factor.size
        return xp.max(xp.max(size, axis=0) / xp.min(size, axis=0))


def _conj(d: Array) -> Array:
    return adjoint(d).mT
