"""Blocks along the diagonal, each by the solver that fits it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, final

from xvarpro.core.namespace import array_namespace
from xvarpro.core.struct import Array
from xvarpro.lower.interface import Adjoint, LowerSolver, System


@final
@dataclass(frozen=True)
class Blockwise(LowerSolver):
    """A `BlockDiagonal` design without Omega, block by block.

    Parameters
    ----------
    solvers : tuple of LowerSolver
        One for each block.
    """

    solvers: tuple[LowerSolver, ...] = ()

    def factor(self, backend: Any, system: System) -> tuple[Any, ...]:
        return tuple(s.factor(backend, level) for s, level in self._levels(system))

    def argmin(self, backend: Any, system: System, factor: Any, y: Array) -> Array:
        M: Any = system.M
        parts = zip(self._levels(system), factor, M.rows(y), strict=True)
        return _concat(s.argmin(backend, level, f, t) for (s, level), f, t in parts)

    def condense(self, factor: Any) -> tuple[Any, ...]:
        return tuple(s.condense(f) for s, f in zip(self.solvers, factor, strict=True))

    def refine(self, backend: Any, system: System, condensed: Any, y: Array, w: Array, r: Array) -> tuple[Array, Array]:
        M: Any = system.M
        parts = zip(self._levels(system), condensed, M.rows(y), M.unknowns(w), M.rows(r), strict=True)
        found = [s.refine(backend, level, f, t, x, e) for (s, level), f, t, x, e in parts]
        return _concat(x for x, _ in found), _concat(e for _, e in found)

    def adjoint(self, backend: Any, system: System, factor: Any, c: Array, y: Array, r: Array) -> Adjoint:
        M: Any = system.M
        xp = array_namespace(c)
        parts = zip(self._levels(system), factor, M.unknowns(c), M.rows(y), M.rows(r), strict=True)
        found = [s.adjoint(backend, level, f, g, t, e) for (s, level), f, g, t, e in parts]
        pairs = []
        for pair in zip_longest(*(a.pairs for a in found)):
            # a block that has fewer pairs than another has none here
            blanks = ((xp.zeros_like(a.q), xp.zeros_like(a.pairs[0][1])) for a in found)
            filled = [blank if p is None else p for p, blank in zip(pair, blanks, strict=True)]
            pairs.append((_concat(s for s, _ in filled), _concat(v for _, v in filled)))
        vs = [a.v for a in found if a.v is not None]
        v = _concat(vs) if len(vs) == len(found) else None
        return Adjoint(_concat(a.q for a in found), tuple(pairs), v)

    def deficient(self, backend: Any, factor: Any) -> Array:
        xp, found = self._ask(factor, lambda s, f: s.deficient(backend, f))
        return xp.any(found)

    def condition(self, backend: Any, factor: Any) -> Array:
        """The largest of the blocks': each is solved by itself, and their units do not meet."""
        xp, found = self._ask(factor, lambda s, f: s.condition(backend, f))
        return xp.max(found)

    def _levels(self, system: System) -> Iterator[tuple[LowerSolver, System]]:
        M: Any = system.M
        return ((s, System(b, system.lam, None)) for s, b in zip(self.solvers, M.blocks, strict=True))

    def _ask(self, factor: Any, question: Callable[[LowerSolver, Any], Array]) -> tuple[Any, Array]:
        answers = [question(s, f) for s, f in zip(self.solvers, factor, strict=True)]
        xp = array_namespace(answers[0])
        return xp, xp.stack(answers)


def _concat(parts: Any) -> Array:
    arrays = list(parts)
    return array_namespace(arrays[0]).concat(arrays)
