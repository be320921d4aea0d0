"""Periodic convolution: circulant designs in one or more dimensions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from xvarpro.core.namespace import namespace_of
from xvarpro.core.struct import REQUIRED, Array
from xvarpro.operators.convolutions import Layout, OfKernels, check_kernel, drawn_kernel
from xvarpro.operators.interface import Operator


class Periodic(OfKernels):
    """A convolution whose rows, columns and period are one grid: the transform diagonalises every block of it."""

    @property
    def layout(self) -> Layout:
        grid = tuple(self.blocks.shape[1:-1])
        return Layout(grid, grid, grid, (0,) * len(grid))


@final
@dataclass(frozen=True)
class Circulant(Periodic):
    """Periodic convolution with one kernel: ``(M w)[i] = sum_j kernel[i - j] w[j]``, indices modulo the grid.

    M is square, (D, D) with ``D = prod(grid)``; a column of `w` is a signal on the grid, flattened row by row.

    Parameters
    ----------
    kernel : array, shape grid
        Real or complex, of the shape of the image, with its origin at the first entry: `numpy.roll` brings it there.

    See Also
    --------
    StackedCirculant : rows for many kernels.
    CirculantPerColumn : a kernel for each column of `w`.

    Notes
    -----
    Solver : `lower.FourierDivision`, O(D log D)

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> shift = xv.operators.Circulant(np.array([0.0, 1.0, 0.0]))
    >>> shift.matvec(np.array([[1.0], [2.0], [3.0]])).ravel().round(12) + 0.0
    array([3., 1., 2.])
    """

    kernel: Array = REQUIRED

    def __post_init__(self) -> None:
        check_kernel(self, self.kernel, "of shape grid", 1)

    @classmethod
    def examples(cls, shape: tuple[int, int]) -> tuple[Circulant, ...]:
        m, n = shape
        flat = (cls(drawn_kernel(1, n)[0, ...]),) if m == n else ()
        return (*flat, cls(drawn_kernel(1, 2, n // 2)[0, ...])) if flat and n % 2 == 0 else flat

    @property
    def blocks(self) -> Array:
        return self.kernel[None, ..., None]

    def _holding(self, kernels: Array) -> Circulant:
        return Circulant(kernels[0, ..., 0])


@final
@dataclass(frozen=True)
class StackedCirculant(Periodic):
    """Circulant matrices on top of each other, ``M = [circ(kernels[0]); circ(kernels[1]); ...]``, (N D, D).

    Convolution commutes, so this is the design of a kernel `w` that N signals are blurred with: blind deconvolution is
    ``M(theta) = StackedCirculant(theta)``, theta the signals.

    Parameters
    ----------
    kernels : array, shape (N, *grid)
        Real or complex. Rows of M, and of a target, are those of the first, then those of the second.

    Notes
    -----
    Solver : `lower.FourierDivision`, O(N D log D)

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> signals = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    >>> M = xv.operators.StackedCirculant(signals)
    >>> M.shape
    (6, 3)
    >>> M.matvec(np.array([[1.0], [2.0], [3.0]])).ravel().round(12) + 0.0
    array([1., 2., 3., 3., 1., 2.])
    """

    kernels: Array = REQUIRED

    def __post_init__(self) -> None:
        check_kernel(self, self.kernels, "of shape (N, *grid)", 2)

    @classmethod
    def examples(cls, shape: tuple[int, int]) -> tuple[StackedCirculant, ...]:
        m, n = shape
        return (cls(drawn_kernel(m // n, n)),) if m % n == 0 else ()

    @property
    def blocks(self) -> Array:
        return self.kernels[..., None]

    def _holding(self, kernels: Array) -> StackedCirculant:
        return StackedCirculant(kernels[..., 0])


@final
@dataclass(frozen=True)
class CirculantPerColumn(Periodic):
    """A circulant matrix of its own for each column: ``(M w)[:, j] = circ(kernels[j]) w[:, j]``.

    Parameters
    ----------
    kernels : array, shape (k, *grid)
        Real or complex; targets and `w` have k columns.

    Notes
    -----
    Solver : `lower.FourierDivision`, O(k D log D)

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> M = xv.operators.CirculantPerColumn(np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]))
    >>> M.shape, M.columns
    ((3, 3), 2)
    >>> M.matvec(np.array([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]])).round(12) + 0.0
    array([[1., 3.],
           [2., 1.],
           [3., 2.]])
    """

    kernels: Array = REQUIRED

    def __post_init__(self) -> None:
        check_kernel(self, self.kernels, "of shape (k, *grid)", 2)

    @classmethod
    def examples(cls, shape: tuple[int, int]) -> tuple[CirculantPerColumn, ...]:
        m, n = shape
        return (cls(drawn_kernel(3, n)),) if m == n else ()

    @property
    def columns(self) -> int:
        return self.kernels.shape[0]

    @property
    def blocks(self) -> Array:
        axes = range(1, self.kernels.ndim)
        return namespace_of(self.kernels).permute_dims(self.kernels, (*axes, 0))[None, ...]

    def _holding(self, kernels: Array) -> CirculantPerColumn:
        first = kernels[0, ...]
        axes = range(first.ndim - 1)
        return CirculantPerColumn(namespace_of(first).permute_dims(first, (first.ndim - 1, *axes)))


def as_circulant(Omega: Array | Operator | None, M: Operator) -> Circulant | None:
    """A ridge's Omega where it is a circulant on the grid of the design; None otherwise."""
    return Omega if isinstance(Omega, Circulant) and Omega.grid == getattr(M, "grid", None) else None
