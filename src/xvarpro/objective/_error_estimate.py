"""How wrong the answers of an inexact lower level are: by what changes when they are made thirty times better."""

from __future__ import annotations

from typing import Any, NamedTuple

from xvarpro.backends import Backend
from xvarpro.core.namespace import namespace_of
from xvarpro.core.struct import Array
from xvarpro.core.trees import inner
from xvarpro.lower.interface import Adjoint
from xvarpro.lower.krylov import LSMR
from xvarpro.lower.normal import norms
from xvarpro.objective.least_squares import EvaluatedLevel, LowerSolution

AGAIN = 0.03  # what is left of a residual after the correction


class Remainder(NamedTuple):
    """What a correction has left; 0-d arrays."""

    residual: Array  # the largest relative residual of the systems corrected, each over all its columns
    # by how much the upper objective lies above that of the exact w, to second order: <v, H (w - w*)>; None for a
    # separable problem, where the first order vanishes and the value is an upper bound
    excess: Array | None


def corrected(
    backend: Backend, solver: LSMR, low: EvaluatedLevel, upper: EvaluatedLevel, factor: Any, first: LowerSolution
) -> tuple[LowerSolution, Remainder]:
    """A solution of the lower level, and its adjoint, with errors thirty times smaller.

    `w` and v are linear in their right-hand sides: the error of either solves the same system with the residual there,
    so that to correct it takes no memory of how it was found.
    """
    system, y = low.system, low.y
    normal, again = solver.normal(system, factor), solver.to(AGAIN, AGAIN)

    def solved(c: Array, w: Array, r: Array) -> Adjoint:
        return again.adjoint(backend, system, factor, c, y, w, r)

    def relative(left: Array, whole: Array) -> Array:
        xp = namespace_of(left)
        left, whole = (norms((normal.size(x).mT,)) for x in (left, whole))
        return (left / xp.where(whole > 0, whole, xp.ones_like(whole)))[0, 0]

    w, r = first.w, first.r
    change = solved(-normal.slope(w, r), w, r)
    assert change.v is not None
    w, r = w + change.v, r + change.q
    left = normal.slope(w, r)
    residual = relative(left, system.M.rmatvec(y))
    if first.adjoint is None:
        return LowerSolution(w, r, r, None), Remainder(residual, None)
    v, q = first.adjoint.v, first.adjoint.q
    assert v is not None
    upper_r = upper.residual(w)
    c = upper.slope(w, upper_r)
    change = solved(c - normal.slope(v, q), w, r)
    assert change.v is not None
    v, q = v + change.v, q + change.q
    worst = namespace_of(residual).maximum(residual, relative(c - normal.slope(v, q), c))
    return LowerSolution(w, r, upper_r, Adjoint(q, ((r, v),), v)), Remainder(worst, inner(v, left))
