"""Iterative refinement, around a solver that factors its stacked matrix by QR."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, final

from xvarpro.backends import Backend
from xvarpro.core.struct import Array
from xvarpro.errors import ProblemError
from xvarpro.lower._refinement import Refinable, refine
from xvarpro.lower.interface import Adjoint, Diagnosis, LowerSolver, System
from xvarpro.lower.qr import QR


@final
@dataclass(frozen=True)
class Refined(LowerSolver):
    """Refines w and the adjoint, where the condition requires it and the target is not large: the default.

    Values are those of `solver`. A gradient takes a few products with M more, and has an error of the order of eps for
    conditions at which a factorisation alone leaves ``eps cond``.

    Parameters
    ----------
    solver : QR or DualQR

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> xv.lower.choose(xv.operators.Dense(np.ones((10, 3))))
    Refined(solver=QR())
    """

    solver: Refinable = field(default_factory=QR)

    def __post_init__(self) -> None:
        if not isinstance(self.solver, Refinable):
            raise ProblemError(f"Refined needs xv.lower.QR() or xv.lower.DualQR(), got {self.solver!r}")

    def factor(self, backend: Backend, system: System) -> Any:
        return self.solver.factor(backend, system)

    def argmin(self, backend: Backend, system: System, factor: Any, y: Array) -> Array:
        return self.solver.argmin(backend, system, factor, y)

    def refine(
        self, backend: Backend, system: System, factor: Any, y: Array, w: Array, r: Array
    ) -> tuple[Array, Array]:
        return self.solver.refine_by(refine, backend, system, factor, y, w, r)

    def adjoint(self, backend: Backend, system: System, factor: Any, c: Array, y: Array, w: Array, r: Array) -> Adjoint:
        return self.solver.adjoint_by(refine, backend, system, factor, c, y, r)

    def diagnose(self, backend: Backend, system: System, factor: Any, y: Array) -> Diagnosis:
        return self.solver.diagnose(backend, system, factor, y)
