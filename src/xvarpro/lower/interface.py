"""The interface of a lower-level solver."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, NamedTuple

from xvarpro.backends import Backend
from xvarpro.core.namespace import device, namespace_of
from xvarpro.core.struct import Array, Struct
from xvarpro.core.trees import inner
from xvarpro.lower.ridge import NO_RIDGE, Ridge
from xvarpro.operators.interface import Operator


class System(NamedTuple):
    """The problem of a lower level, ``min 1/2 |M w - y|^2 + 1/2 <Omega w, lam Omega w>``, but for y."""

    M: Operator
    ridge: Ridge = NO_RIDGE


class Adjoint(NamedTuple):
    """The lower level's part of the reduced gradient: ``-<dM w - dy, q> - sum <s, dM v> over (s, v) in pairs``.

    A ridge that depends on theta adds ``-<Omega w, dlam Omega v>``.
    """

    q: Array  # M v, (m, k)
    pairs: tuple[tuple[Array, Array], ...]  # of shapes (m, k) and (n, k)
    v: Array | None = None  # H^-1 c, (n, k); a solver that does not support a ridge chosen by theta leaves it out
    coupling: Array | None = None  # Re <Omega w, Omega v>, 0-d, where products of w and v lose it: in the dual form


class Diagnosis(NamedTuple):
    """Rank, condition and kinks of a lower level; 0-d arrays."""

    deficient: Array  # bool: no unique solution to working precision
    condition: Array  # 2-norm condition of what was factored, columns of length 1 where w does not depend on units
    kinks: Array  # int: weights at which `argmin` is not differentiable, to working precision
    truncated: Array  # bool: `argmin` chose among several solutions; its derivative is then not that of one

    @classmethod
    def of(cls, deficient: Array, condition: Array) -> Diagnosis:
        """Without kinks, and nothing truncated; a condition that is no number where the rank is deficient is inf."""
        xp = namespace_of(condition)
        none = xp.zeros((), dtype=xp.int32, device=device(condition))
        condition = xp.where(deficient & xp.isnan(condition), xp.full_like(condition, xp.inf), condition)
        return cls(deficient, condition, none, none > 0)


class Condensed(NamedTuple):
    """``|M w - y|^2 + lam |Omega w|^2 = |R w - z|^2 + rest`` for every w, R triangular."""

    R: Array  # (n, n)
    z: Array  # (n, k)
    rest: Array  # 0-d

    def argmin(self, backend: Backend) -> Array:
        """``w = R^-1 z``."""
        return backend.solve_triangular(self.R, self.z)

    def energy(self) -> Array:
        """``1/2 |y|^2``."""
        return 0.5 * (inner(self.z, self.z) + self.rest)


class Accumulation(Struct):
    """A way to condense the rows of a level block by block; a state is a tuple of arrays of fixed shapes."""

    @abstractmethod
    def start(self, ridge: Array, zero: Array) -> Any:
        """No rows yet: `ridge` is ``sqrt(lam) Omega``, or zeros, (n, n); `zero` is zeros, (n, k)."""

    @abstractmethod
    def fold(self, backend: Backend, state: Any, A: Array, y: Array) -> Any:
        """With the rows `A`, (m, n), and `y`, (m, k), added."""

    @abstractmethod
    def merge(self, backend: Backend, a: Any, b: Any) -> Any:
        """The state of the rows of two others."""

    @abstractmethod
    def condensed(self, backend: Backend, state: Any) -> Condensed:
        """What is left when all rows are in."""

    @abstractmethod
    def deficient(self, backend: Backend, R: Array, rows: int) -> Array:
        """0-d bool: the columns of the `rows` rows are dependent to working precision."""

    @abstractmethod
    def noise(self, value: Array, energy: Array | float) -> Array:
        """What rounding leaves open of a value, over eps; `energy` is ``1/2 |y|^2``."""


class LowerSolver(Struct):
    """Factors ``H = M^H M + lam Omega^H Omega`` once per theta, and answers from that for w and for the adjoint.

    M is m x n; a target y has shape (m, k), w and a right-hand side c have shape (n, k). A factor is a tree of arrays:
    it may cross a compiled loop. Nothing raises for the values of arrays: what fails is NaN.
    """

    exact: ClassVar[bool] = True  # right to rounding; where not, the error is estimated
    accumulation: ClassVar[Accumulation | None] = None  # how rows in chunks are condensed; None needs all at once

    @abstractmethod
    def factor(self, backend: Backend, system: System) -> Any:
        """What the other methods share; NaN where no ridge makes the solution unique, and it is not."""

    @abstractmethod
    def argmin(self, backend: Backend, system: System, factor: Any, y: Array) -> Array:
        """``w = H^-1 M^H y``."""

    def tangent(self, backend: Backend, system: System, factor: Any, y: Array, w: Array) -> Callable[[Array], Array]:
        """The derivative of `w`, the `argmin` of y, by its target: a linear function of tangents of that, (m, k)."""
        return partial(self.argmin, backend, system, factor)

    def refine(
        self, backend: Backend, system: System, factor: Any, y: Array, w: Array, r: Array
    ) -> tuple[Array, Array]:
        """`w` and ``r = M w - y`` to the accuracy of the gradient, which asks once; trial points of a search do not."""
        return w, r

    @abstractmethod
    def adjoint(self, backend: Backend, system: System, factor: Any, c: Array, y: Array, w: Array, r: Array) -> Adjoint:
        """What the reduced gradient needs of ``v = H^-1 c``; `w` and `r` as from `refine`."""

    def improved(self, backend: Backend, system: System, factor: Any, g: Array, y: Array, w: Array, r: Array) -> Array:
        """`w` after a step by the slope g of the level there, which has the digits of small columns next to a ridge."""
        v = self.adjoint(backend, system, factor, g, y, w, r).v
        return w if v is None else w - v

    @abstractmethod
    def diagnose(self, backend: Backend, system: System, factor: Any, y: Array) -> Diagnosis:
        """Rank, condition and kinks, for the report of a solve."""
