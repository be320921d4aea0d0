"""Blocks along the diagonal, each by the solver that fits it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, final

from xvarpro.backends import Backend
from xvarpro.core.namespace import namespace_of
from xvarpro.core.struct import Array
from xvarpro.core.trees import sum_
from xvarpro.lower.interface import Adjoint, Diagnosis, LowerSolver, System
from xvarpro.operators import BlockDiagonal


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

    def factor(self, backend: Backend, system: System) -> tuple[Any, ...]:
        return tuple(s.factor(backend, level) for s, level in self._levels(system))

    def argmin(self, backend: Backend, system: System, factor: Any, y: Array) -> Array:
        M = _design(system)
        parts = zip(self._levels(system), factor, M.rows(y), strict=True)
        return _concat(s.argmin(backend, level, f, t) for (s, level), f, t in parts)

    def tangent(self, backend: Backend, system: System, factor: Any, y: Array, w: Array) -> Callable[[Array], Array]:
        M = _design(system)
        parts = zip(self._levels(system), factor, M.rows(y), M.unknowns(w), strict=True)
        of_blocks = [s.tangent(backend, level, f, t, x) for (s, level), f, t, x in parts]
        return lambda dy: _concat(of_block(t) for of_block, t in zip(of_blocks, M.rows(dy), strict=True))

    def refine(
        self, backend: Backend, system: System, factor: Any, y: Array, w: Array, r: Array
    ) -> tuple[Array, Array]:
        M = _design(system)
        parts = zip(self._levels(system), factor, M.rows(y), M.unknowns(w), M.rows(r), strict=True)
        found = [s.refine(backend, level, f, t, x, e) for (s, level), f, t, x, e in parts]
        return _concat(x for x, _ in found), _concat(e for _, e in found)

    def adjoint(self, backend: Backend, system: System, factor: Any, c: Array, y: Array, w: Array, r: Array) -> Adjoint:
        M = _design(system)
        xp = namespace_of(c)
        parts = zip(self._levels(system), factor, M.unknowns(c), M.rows(y), M.unknowns(w), M.rows(r), strict=True)
        found = [s.adjoint(backend, level, f, g, t, x, e) for (s, level), f, g, t, x, e in parts]
        pairs = []
        for pair in zip_longest(*(a.pairs for a in found)):
            # a block that has fewer pairs than another has none here
            blanks = ((xp.zeros_like(a.q), xp.zeros_like(a.pairs[0][1])) for a in found)
            filled = [blank if p is None else p for p, blank in zip(pair, blanks, strict=True)]
            pairs.append((_concat(s for s, _ in filled), _concat(v for _, v in filled)))
        vs = [a.v for a in found if a.v is not None]
        couplings = [a.coupling for a in found if a.coupling is not None]
        v, coupling = (
            fun(parts) if len(parts) == len(found) else None for fun, parts in ((_concat, vs), (sum_, couplings))
        )
        return Adjoint(_concat(a.q for a in found), tuple(pairs), v, coupling)

    def diagnose(self, backend: Backend, system: System, factor: Any, y: Array) -> Diagnosis:
        """The worst of the blocks: each is solved by itself, and their units do not meet."""
        M = _design(system)
        parts = zip(self._levels(system), factor, M.rows(y), strict=True)
        found = [s.diagnose(backend, level, f, t) for (s, level), f, t in parts]
        xp = namespace_of(y)
        deficient, condition, kinks, truncated = (xp.stack(x) for x in zip(*found, strict=True))
        return Diagnosis(xp.any(deficient), xp.max(condition), xp.sum(kinks), xp.any(truncated))

    def _levels(self, system: System) -> Iterator[tuple[LowerSolver, System]]:
        blocks = _design(system).blocks
        return ((s, System(b, system.ridge)) for s, b in zip(self.solvers, blocks, strict=True))


def _design(system: System) -> BlockDiagonal:
    assert isinstance(system.M, BlockDiagonal)
    return system.M


def _concat(parts: Iterable[Array]) -> Array:
    arrays = list(parts)
    return namespace_of(arrays[0]).concat(arrays)
