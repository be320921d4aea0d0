"""The interface of a lower-level solver."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, NamedTuple

from xvarpro.core.namespace import array_namespace, device
from xvarpro.core.struct import Array, Struct
from xvarpro.operators.interface import Operator


class System(NamedTuple):
    """What a lower level has to solve: ``min 1/2 |M w - y|^2 + lam/2 |Omega w|^2``; None is the identity."""

    M: Operator
    lam: Any  # a number, or a 0-d array > 0 where the upper level chooses it
    Omega: Any  # an array, an `Operator`, or None

    @property
    def ridged(self) -> bool:
        """Whether there is a ridge, which does not depend on theta."""
        return not isinstance(self.lam, int | float) or self.lam > 0

    @property
    def root(self) -> Any:
        """``sqrt(lam)``; None without a ridge."""
        return self.lam**0.5 if self.ridged else None

    @property
    def weight(self) -> Array | None:
        """Omega as an array."""
        return self.Omega.dense() if isinstance(self.Omega, Operator) else self.Omega


class LowerSolver(Struct):
    """Factors ``H = M^T M + lam Omega^T Omega`` once; answers every question about the lower level from that.

    A factor is a tuple of arrays, so that it can cross a compiled loop.
    """

    exact: ClassVar[bool] = True  # whether answers are right to rounding; what others leave has to be estimated

    @abstractmethod
    def factor(self, backend: Any, system: System) -> Any:
        """Factor the stacked matrix ``[M; sqrt(lam) Omega]``. Never raises: a failure shows as NaN."""

    @abstractmethod
    def argmin(self, backend: Any, system: System, factor: Any, y: Array) -> Array:
        """``w = H^-1 M^T y``."""

    def condense(self, factor: Any) -> Any:
        """The part of a factor that `refine` asks for: a line search carries it from trial to trial."""
        return ()

    def refine(self, backend: Any, system: System, condensed: Any, y: Array, w: Array, r: Array) -> tuple[Array, Array]:
        """`w` and the residual ``r = M w - y`` to the accuracy that the gradient is to have."""
        return w, r

    def near(self, w: Array) -> LowerSolver:
        """The same solver, told the solution or something near it: where that saves work."""
        return self

    @abstractmethod
    def adjoint(self, backend: Any, system: System, factor: Any, c: Array, y: Array, r: Array) -> Adjoint:
        """What the reduced gradient needs of ``v = H^-1 c``; `r` is the lower residual."""

    @abstractmethod
    def deficient(self, backend: Any, factor: Any) -> Array:
        """0-d bool: the lower level has no unique solution to working precision."""

    def truncated(self, factor: Any) -> Array | bool:
        """Whether `argmin` chose among several solutions; its derivative is then not that of one. 0-d bool."""
        return False

    @abstractmethod
    def condition(self, backend: Any, factor: Any) -> Array:
        """2-norm condition number of the matrix that was factored, columns scaled to length 1 where `w` does not depend
        on their units, 0-d.
        """

    def kinks(self, backend: Any, system: System, factor: Any, y: Array) -> Array:
        """Weights at which `argmin` is not differentiable, to working precision; 0-d, whole."""
        xp = array_namespace(y)
        return xp.zeros((), dtype=xp.int32, device=device(y))

    def toward(self, level: Any, separable: bool) -> LowerSolver:
        """The solver for an outer iterate; an inexact one chooses its tolerance by it (`lower.krylov.Iterative`)."""
        return self

    def diagnosis(self, backend: Any, system: System, y: Array) -> Diagnosis:
        """What a report tells of the level: whoever factors nothing needs products with M for it."""
        factor = self.factor(backend, system)
        kinks = self.kinks(backend, system, factor, y)
        return Diagnosis(self.deficient(backend, factor), self.condition(backend, factor), kinks)


class Diagnosis(NamedTuple):
    """Whether the lower level has no unique solution, the condition number, and weights at a kink; 0-d."""

    deficient: Array
    condition: Array
    kinks: Array


class Adjoint(NamedTuple):
    """The lower level's part of the reduced gradient: ``-<dM w - dy, q> - sum <s, dM v> over (s, v) in pairs``.

    A ridge that depends on theta adds ``-dlam <Omega w, Omega v>``.
    """

    q: Array  # M v
    pairs: tuple[tuple[Array, Array], ...]
    v: Array | None = None  # H^-1 c; a solver that does not support a ridge chosen by theta leaves it out
