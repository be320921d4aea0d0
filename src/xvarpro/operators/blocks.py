"""Designs made of blocks: along the diagonal, or on top of each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

from xvarpro.core.namespace import device, namespace_of
from xvarpro.core.struct import Array
from xvarpro.core.trees import sum_
from xvarpro.errors import ProblemError
from xvarpro.operators._conversion import common_columns, dense_forms, parts_of
from xvarpro.operators.interface import Dense, Operator, divisors, drawn


class _Blocks(Operator):
    """A design whose rows are those of its blocks, one after the other."""

    blocks: Sequence[Any]

    @property
    def columns(self) -> int | None:
        return common_columns(type(self).__name__, self.blocks)

    @property
    def explicit(self) -> bool:
        return all(block.explicit for block in self.blocks)

    def rows(self, x: Array) -> list[Array]:
        """The rows of `x` that belong to each block, for an `x` with as many as M."""
        return cut(x, [b.shape[0] for b in self.blocks])


@final
@dataclass(frozen=True)
class BlockDiagonal(_Blocks):
    """Blocks along the diagonal: data sets with weights of their own, coupled through theta alone.

    For many blocks of one shape and one right-hand side, `Dense` with an array (k, m, n) is the same in one array and
    is solved in one batch.

    Parameters
    ----------
    blocks : sequence of operators or arrays, shapes (m_i, n_i)

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> M = xv.operators.BlockDiagonal([np.ones((2, 1)), np.eye(2)])
    >>> M.shape, M.matvec(np.array([[1.0], [2.0], [3.0]]))[:, 0]
    ((4, 3), array([1., 1., 2., 3.]))
    """

    blocks: Sequence[Any] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "blocks", parts_of("BlockDiagonal", self.blocks))

    @property
    def shape(self) -> tuple[int, int]:
        return sum(b.shape[0] for b in self.blocks), sum(b.shape[1] for b in self.blocks)

    def unknowns(self, w: Array) -> list[Array]:
        """The rows of `w` that belong to each block."""
        return cut(w, [b.shape[1] for b in self.blocks])

    def matvec(self, w: Array) -> Array:
        return namespace_of(w).concat([b.matvec(x) for b, x in zip(self.blocks, self.unknowns(w), strict=True)])

    def rmatvec(self, r: Array) -> Array:
        return namespace_of(r).concat([b.rmatvec(x) for b, x in zip(self.blocks, self.rows(r), strict=True)])

    def outer(self, r: Array, w: Array) -> BlockDiagonal:
        parts = zip(self.blocks, self.rows(r), self.unknowns(w), strict=True)
        return BlockDiagonal(tuple(b.outer(s, x) for b, s, x in parts))

    def dense(self) -> Array:
        blocks = dense_forms(self.blocks)
        xp, width, before, bands = namespace_of(blocks[0]), self.shape[1], 0, []
        for A in blocks:
            *lead, m, n = A.shape
            sides = [xp.zeros((*lead, m, k), dtype=A.dtype, device=device(A)) for k in (before, width - before - n)]
            bands.append(xp.concat([sides[0], A, sides[1]], axis=-1))
            before += n
        return xp.concat(bands, axis=-2)

    @classmethod
    def examples(cls, shape: tuple[int, int]) -> tuple[Operator, ...]:
        m, n = shape
        if min(m, n) < 2:
            return (cls((drawn(m, n),)),)
        tops = (m // 2, n // 2), (m - m // 2, n - n // 2)
        return cls([drawn(*s, seed=i) for i, s in enumerate(tops)]), cls((drawn(*tops[0]), Dense(drawn(2, *tops[1]))))


@final
@dataclass(frozen=True)
class Stacked(_Blocks):
    """Rows on top of each other: data sets that share `w`, each with its own operator.

    Parameters
    ----------
    blocks : sequence of operators or arrays, shapes (m_i, n)

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> M = xv.operators.Stacked([np.ones((1, 2)), xv.operators.Diagonal(np.array([2.0, 3.0]))])
    >>> M.shape, M.matvec(np.ones((2, 1)))[:, 0]
    ((3, 2), array([2., 2., 3.]))
    """

    blocks: Sequence[Any] = ()

    def __post_init__(self) -> None:
        blocks = parts_of("Stacked", self.blocks)
        if len({b.shape[1] for b in blocks}) > 1:
            raise ProblemError(f"Stacked shares w between blocks of one width, got {[tuple(b.shape) for b in blocks]}")
        object.__setattr__(self, "blocks", blocks)

    @property
    def shape(self) -> tuple[int, int]:
        return sum(b.shape[0] for b in self.blocks), self.blocks[0].shape[1] if self.blocks else 0

    def matvec(self, w: Array) -> Array:
        return namespace_of(w).concat([b.matvec(w) for b in self.blocks])

    def rmatvec(self, r: Array) -> Array:
        return sum_(b.rmatvec(s) for b, s in zip(self.blocks, self.rows(r), strict=True))

    def outer(self, r: Array, w: Array) -> Stacked:
        return Stacked(tuple(b.outer(s, w) for b, s in zip(self.blocks, self.rows(r), strict=True)))

    def dense(self) -> Array:
        blocks = dense_forms(self.blocks)
        return namespace_of(blocks[0]).concat(blocks, axis=-2)

    @classmethod
    def examples(cls, shape: tuple[int, int]) -> tuple[Operator, ...]:
        m, n = shape
        top, bottom = divisors(m)
        heights = (m - bottom, bottom) if top > 1 else (m,)
        stacked = [drawn(h, n, seed=i) for i, h in enumerate(heights)]
        return cls(stacked), cls((*stacked[:-1], Dense(drawn(2, heights[-1], n))))


def cut(x: Array, heights: Sequence[int]) -> list[Array]:
    """Consecutive rows of `x`."""
    pieces, start = [], 0
    for h in heights:
        pieces.append(x[start : start + h, ...])
        start += h
    return pieces
