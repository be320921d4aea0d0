"""How wrong the answers of an inexact lower level are: by what changes when they are made thirty times better."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple, final

from xvarpro.core.namespace import array_namespace
from xvarpro.core.struct import REQUIRED, Array
from xvarpro.core.trees import inner
from xvarpro.lower.interface import Adjoint, LowerSolver, System
from xvarpro.lower.krylov import LSMR, Iterative
from xvarpro.lower.normal import products

AGAIN = 0.03  # what is left of a residual after the correction


class Answer(NamedTuple):
    """The solution of one system; its residual; lengths of the residual and of the right-hand side, per column."""

    x: Array
    left: Array
    size: Array
    whole: Array


class Watched(LowerSolver):
    """A solver that answers as `solver` does, made for one gradient and then dropped: `seen` is filled on the way."""

    solver: Iterative
    seen: list[Any]

    def factor(self, backend: Any, system: System) -> Any:
        return self.solver.factor(backend, system)

    def argmin(self, backend: Any, system: System, factor: Any, y: Array) -> Array:
        return self.solver.argmin(backend, system, factor, y)

    def condense(self, factor: Any) -> Any:
        return factor

    def deficient(self, backend: Any, factor: Any) -> Array:
        return self.solver.deficient(backend, factor)

    def condition(self, backend: Any, factor: Any) -> Array:
        return self.solver.condition(backend, factor)


@final
@dataclass(frozen=True)
class Sharper(Watched):
    """Corrects what `solver` answered; keeps the answers, with what is left of their residuals.

    `w` and v are linear in their right-hand sides: the error of either solves the same system with the residual there,
    so that to correct it takes no memory of how it was found.
    """

    solver: Iterative = field(default_factory=LSMR)
    v: Array = REQUIRED  # the adjoint to correct
    q: Array = REQUIRED
    seen: list[Any] = field(default_factory=list)

    def refine(self, backend: Any, system: System, condensed: Any, y: Array, w: Array, r: Array) -> tuple[Array, Array]:
        normal = self.solver.normal(system, condensed)
        dv = self._correction(backend, system, condensed, -normal.slope(w, r), y, r)
        w, r = w + dv.v, r + dv.q
        self._note(normal, w, normal.slope(w, r), system.M.rmatvec(y))
        return w, r

    def adjoint(self, backend: Any, system: System, factor: Any, c: Array, y: Array, r: Array) -> Adjoint:
        normal = self.solver.normal(system, factor)
        dv = self._correction(backend, system, factor, c - normal.slope(self.v, self.q), y, r)
        v, q = self.v + dv.v, self.q + dv.q
        self._note(normal, v, c - normal.slope(v, q), c)
        return Adjoint(q, ((r, v),), v)

    def _correction(self, backend: Any, system: System, factor: Any, c: Array, y: Array, r: Array) -> Adjoint:
        return self.solver.to(AGAIN, AGAIN).adjoint(backend, system, factor, c, y, r)

    def _note(self, normal: Any, x: Array, left: Array, whole: Array) -> None:
        self.seen.append(Answer(x, left, normal.size(left), normal.size(whole)))

    def residual(self) -> Array:
        """The largest relative residual of the systems corrected, each over all its columns; 0-d."""
        worst: Any = None
        for answer in self.seen:
            xp = array_namespace(answer.size)
            left, whole = (xp.sqrt(xp.sum(products(x, x))) for x in (answer.size, answer.whole))
            ratio = left / xp.where(whole > 0, whole, xp.ones_like(whole))
            worst = ratio if worst is None else xp.maximum(worst, ratio)
        return worst

    def excess(self) -> Array | None:
        """By how much the upper objective lies above that of the exact w, to second order: ``<v, H (w - w*)>``, 0-d.

        None for a separable problem, where the first order vanishes and the value is an upper bound.
        """
        if len(self.seen) < 2:
            return None
        return inner(self.seen[1].x, self.seen[0].left)


@final
@dataclass(frozen=True)
class Witness(Watched):
    """Keeps the adjoint."""

    solver: Iterative = field(default_factory=LSMR)
    seen: list[Any] = field(default_factory=list)

    def adjoint(self, backend: Any, system: System, factor: Any, c: Array, y: Array, r: Array) -> Adjoint:
        answer = self.solver.adjoint(backend, system, factor, c, y, r)
        self.seen.append(answer)
        return answer
