"""The lower level without unknowns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

from xvarpro.backends import Backend
from xvarpro.core.namespace import device, namespace_of
from xvarpro.core.struct import Array
from xvarpro.lower.interface import Adjoint, Diagnosis, LowerSolver, System


@final
@dataclass(frozen=True)
class Nothing(LowerSolver):
    """A design without columns: `InSubspace` of a point has one, for `w` is given."""

    def factor(self, backend: Backend, system: System) -> Any:
        return ()

    def argmin(self, backend: Backend, system: System, factor: Any, y: Array) -> Array:
        return y[:0, :]

    def adjoint(self, backend: Backend, system: System, factor: Any, c: Array, y: Array, w: Array, r: Array) -> Adjoint:
        return Adjoint(namespace_of(y).zeros_like(y), ((r, c),), c)

    def diagnose(self, backend: Backend, system: System, factor: Any, y: Array) -> Diagnosis:
        xp = namespace_of(y)
        one = xp.ones((), dtype=xp.abs(y[:1, :1]).dtype, device=device(y))
        return Diagnosis.of(one < 1, one)
