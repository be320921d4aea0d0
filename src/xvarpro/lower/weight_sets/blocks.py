"""Sets of weights on designs of blocks along the diagonal: block by block, or all blocks in one batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from xvarpro.backends import Backend
from xvarpro.core.namespace import namespace_of
from xvarpro.core.struct import REQUIRED, Array
from xvarpro.lower._blockwise import Blockwise
from xvarpro.lower.interface import Adjoint, Diagnosis, LowerSolver, Ridge, System
from xvarpro.lower.stack import QRFactor, padded
from xvarpro.lower.weight_sets._faces import OnFace
from xvarpro.operators import BlockDiagonal, Dense
from xvarpro.operators.interface import Operator


def by_blocks(solver: LowerSolver, M: Operator, ridge: Ridge) -> LowerSolver:
    """The solver of a set of weights for a design: block by block where neither the set nor a ridge couples them.

    Blocks of one width are solved in one batch, with zeros below the shorter ones unless they would be most of it.
    """
    if not ridge.plain or not isinstance(M, BlockDiagonal) or M.columns is not None:
        return solver
    if not isinstance(solver, OnFace) or not solver.separable:
        return solver
    heights, widths = zip(*(b.shape for b in M.blocks), strict=True)
    if len(set(widths)) == 1 and max(heights) * len(heights) <= 2 * sum(heights):
        return BlocksOnFaces(solver)

    def of_block(i: int) -> LowerSolver:
        return solver.of_rows(lambda x: M.unknowns(x)[i])

    return Blockwise(tuple(map(of_block, range(len(widths)))))


@final
@dataclass(frozen=True)
class BlocksOnFaces(LowerSolver):
    """A `BlockDiagonal` design with blocks of one width, without Omega, and a set that does not couple them: one batch.

    The blocks are a stack of matrices, with rows of zeros below the shorter ones, and their targets side by side.

    Parameters
    ----------
    solver : OnFace
        Of the whole design.
    """

    solver: OnFace = REQUIRED

    def factor(self, backend: Backend, system: System) -> QRFactor:
        M = _design(system)
        m = max(b.shape[0] for b in M.blocks)
        arrays = [padded(backend, b.dense(), m) for b in M.blocks]
        stack = Dense(namespace_of(arrays[0]).stack(arrays))
        return self.solver.factor(backend, System(stack, system.ridge))

    def argmin(self, backend: Backend, system: System, factor: QRFactor, y: Array) -> Array:
        M = _design(system)
        w = self._of_columns(M, y).argmin(backend, system, factor, _side_by_side(backend, M.rows(y)))
        return _stacked(w, [b.shape[1] for b in M.blocks])

    def tangent(
        self, backend: Backend, system: System, factor: QRFactor, y: Array, w: Array
    ) -> Callable[[Array], Array]:
        M = _design(system)
        parts = (_side_by_side(backend, x) for x in (M.rows(y), M.unknowns(w)))
        of_columns, widths = (
            self._of_columns(M, y).tangent(backend, system, factor, *parts),
            [b.shape[1] for b in M.blocks],
        )
        return lambda dy: _stacked(of_columns(_side_by_side(backend, M.rows(dy))), widths)

    def adjoint(
        self, backend: Backend, system: System, factor: QRFactor, c: Array, y: Array, w: Array, r: Array
    ) -> Adjoint:
        M = _design(system)
        parts = (_side_by_side(backend, x) for x in (M.unknowns(c), M.rows(y), M.unknowns(w), M.rows(r)))
        q, ((_, v),), *_ = self._of_columns(M, y).adjoint(backend, system, factor, *parts)
        v = _stacked(v, [b.shape[1] for b in M.blocks])
        return Adjoint(_stacked(q, [b.shape[0] for b in M.blocks]), ((r, v),), v)

    def diagnose(self, backend: Backend, system: System, factor: QRFactor, y: Array) -> Diagnosis:
        M = _design(system)
        return self._of_columns(M, y).diagnose(backend, system, factor, _side_by_side(backend, M.rows(y)))

    def _of_columns(self, M: BlockDiagonal, y: Array) -> OnFace:
        """The solver of the weights of all blocks side by side."""

        def columns(x: Array) -> Array:
            xp = namespace_of(x)
            return xp.concat(M.unknowns(xp.broadcast_to(x, (x.shape[0], y.shape[1]))), axis=1)

        return self.solver.of_rows(columns)


def _side_by_side(backend: Backend, parts: list[Array]) -> Array:
    """Side by side, with zeros below the shorter ones."""
    m = max(part.shape[0] for part in parts)
    return namespace_of(parts[0]).concat([padded(backend, part, m) for part in parts], axis=1)


def _stacked(x: Array, heights: list[int]) -> Array:
    """Inverse of `_side_by_side`."""
    c = x.shape[1] // len(heights)
    return namespace_of(x).concat([x[:h, c * i : c * (i + 1)] for i, h in enumerate(heights)])


def _design(system: System) -> BlockDiagonal:
    assert isinstance(system.M, BlockDiagonal)
    return system.M
