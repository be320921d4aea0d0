"""Norms for the unit ball in which a free block takes its step."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from xvarpro.core.namespace import namespace_of
from xvarpro.core.struct import Array, Leaves, Struct
from xvarpro.core.trees import raveled, sum_, unraveled
from xvarpro.sets.spectra import polar
from xvarpro.sets.vectors import unit, vertex

__all__ = ["L1", "L2", "ColumnNorm", "Norm", "RowNorm", "Sign", "Spectral"]


class Norm(Struct):
    """A norm on a group of arrays of any shapes, given by its dual norm."""

    @abstractmethod
    def dual(self, g: Leaves) -> tuple[Leaves, Array]:
        """The u of norm 1 with ``<g, u> = |g|_*``, shaped as g, and the dual norm ``|g|_*``, 0-d; 0 where g is 0."""


@final
@dataclass(frozen=True)
class L2(Norm):
    """Euclidean norm of all arrays of the group together (the paper's choice).

    Notes
    -----
    Dual norm : ``|g|_2`` of all arrays
    Direction : ``u = g / |g|_2``
    Cost : O(n)

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> (u,), size = xv.sets.norms.L2().dual((np.array([3.0, 4.0]),))
    >>> u, float(size)
    (array([0.6, 0.8]), 5.0)
    """

    def dual(self, g: Leaves) -> tuple[Leaves, Array]:
        u, length = unit(raveled(g))
        return unraveled(u, g), length[0]


@final
@dataclass(frozen=True)
class Sign(Norm):
    """Largest absolute entry; its steps are signs.

    Notes
    -----
    Dual norm : ``|g|_1`` of all arrays
    Direction : ``u = sign(g)``, 0 where g is
    Cost : O(n)

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> (u,), size = xv.sets.norms.Sign().dual((np.array([3.0, -4.0]),))
    >>> u, float(size)
    (array([ 1., -1.]), 7.0)
    """

    def dual(self, g: Leaves) -> tuple[Leaves, Array]:
        xp = namespace_of(*g)
        return tuple(xp.sign(x) for x in g), sum_(xp.sum(xp.abs(x)) for x in g)


@final
@dataclass(frozen=True)
class L1(Norm):
    """Sum of the absolute entries of all arrays of the group; a step moves the one entry with the steepest slope.

    Where several tie it is the first, in the order of the arrays.

    Notes
    -----
    Dual norm : ``max |g|`` of all arrays
    Direction : ``u = sign(g_i) e_i``, ``i = argmax |g|``; first index, 0 for g = 0
    Cost : O(n)

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> (u,), size = xv.sets.norms.L1().dual((np.array([3.0, -4.0]),))
    >>> u, float(size)
    (array([ 0., -1.]), 4.0)
    """

    def dual(self, g: Leaves) -> tuple[Leaves, Array]:
        xp, flat = namespace_of(*g), raveled(g)
        first = xp.argmax(xp.abs(flat), axis=-1, keepdims=True)
        steepest = xp.take_along_axis(flat, first, axis=-1)
        return unraveled(vertex(flat, first, xp.sign(steepest)), g), xp.abs(steepest)[0]


@final
@dataclass(frozen=True)
class ColumnNorm(Norm):
    """Longest column of any matrix of the group; arrays with fewer than two axes count by their l2 norm.

    Every column of a step has length 1, except where the gradient's is 0. Leading axes hold more matrices.

    Notes
    -----
    Dual norm : sum of the lengths of the columns
    Direction : ``u_j = g_j / |g_j|_2`` for every column
    Cost : O(n)

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> (u,), size = xv.sets.norms.ColumnNorm().dual((np.array([[3.0, 0.0], [4.0, 0.0]]),))
    >>> u, float(size)
    (array([[0.6, 0. ],
           [0.8, 0. ]]), 5.0)
    """

    def dual(self, g: Leaves) -> tuple[Leaves, Array]:
        return _by_matrix(lambda x: unit(x, -2), g)


@final
@dataclass(frozen=True)
class RowNorm(Norm):
    """Longest row of any matrix of the group; arrays with fewer than two axes count by their l2 norm.

    Every row of a step has length 1, except where the gradient's is 0. Leading axes hold more matrices.

    Notes
    -----
    Dual norm : sum of the lengths of the rows
    Direction : ``u_i = g_i / |g_i|_2`` for every row
    Cost : O(n)

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> (u,), size = xv.sets.norms.RowNorm().dual((np.array([[3.0, 4.0], [0.0, 0.0]]),))
    >>> u, float(size)
    (array([[0.6, 0.8],
           [0. , 0. ]]), 5.0)
    """

    def dual(self, g: Leaves) -> tuple[Leaves, Array]:
        return _by_matrix(lambda x: unit(x, -1), g)


@final
@dataclass(frozen=True)
class Spectral(Norm):
    """Largest singular value of any matrix of the group; arrays with fewer than two axes count by their l2 norm.

    The direction is the polar factor from a singular value decomposition, so the certificate is exact; Newton-Schulz
    iterations would leave the ball.

    Notes
    -----
    Dual norm : sum of the singular values
    Direction : ``u = U V^H`` of ``g = U S V^H``, 0 on null directions
    Cost : SVD

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> (u,), size = xv.sets.norms.Spectral().dual((np.diag([3.0, 0.0]),))
    >>> float(abs(u - np.diag([1.0, 0.0])).max()), float(size)
    (0.0, 3.0)
    """

    def dual(self, g: Leaves) -> tuple[Leaves, Array]:
        return _by_matrix(polar, g)


def _by_matrix(dual: Callable[[Array], tuple[Array, Array]], g: Leaves) -> tuple[Leaves, Array]:
    """`dual` of arrays with two or more axes, and that of the l2 norm of the others."""
    parts = [dual(x) if x.ndim > 1 else unit(raveled((x,))) for x in g]
    u = tuple(namespace_of(x).reshape(u, x.shape) for (u, _), x in zip(parts, g, strict=True))
    return u, sum_(namespace_of(size).sum(size) for _, size in parts)
