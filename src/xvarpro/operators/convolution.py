"""Convolution with zeros outside: Toeplitz designs in one or more dimensions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, final

from xvarpro.core.struct import REQUIRED, Array
from xvarpro.errors import ProblemError
from xvarpro.operators.convolutions import Layout, OfKernels, check_kernel, drawn_kernel
from xvarpro.operators.fourier import Grid, fast


@final
@dataclass(frozen=True)
class Convolution(OfKernels):
    """Convolution with one kernel, zero outside of the grid: ``(M w)[i] = sum_j kernel[i - j + first] w[j]``.

    Parameters
    ----------
    kernel : array, shape size
        Real or complex.
    signal : tuple of int
        Shape of a signal, one length >= 1 for each axis of the kernel; a column of `w` is a signal, flattened.
    mode : {"full", "valid"}
        As of `numpy.convolve`. "full" is all of it, with ``first = 0``: M is ``(prod(signal + size - 1),
        prod(signal))``, tall and of full rank for any kernel but 0. "valid" is the part for which no value outside of
        the data counts, with ``first = min(signal, size) - 1`` along each axis: M is ``(prod(|signal - size| + 1),
        prod(signal))``, tall where the kernel is the longer of the two, as known data that an unknown filter `w` is
        fitted to.

    Notes
    -----
    Solver : QR of the dense matrix, its dual where M is wide; for a large one `lower.LSMR`

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> xv.operators.Convolution(np.array([1.0, -1.0]), (3,)).dense()
    array([[ 1.,  0.,  0.],
           [-1.,  1.,  0.],
           [ 0., -1.,  1.],
           [ 0.,  0., -1.]])
    >>> xv.operators.Convolution(np.array([1.0, -1.0]), (3,), "valid").dense()
    array([[-1.,  1.,  0.],
           [ 0., -1.,  1.]])
    """

    kernel: Array = REQUIRED
    signal: Grid = (1,)
    mode: Literal["full", "valid"] = "full"

    def __post_init__(self) -> None:
        check_kernel(self, self.kernel, "of shape size", 1)
        axes = None if self.kernel is None else self.kernel.ndim
        object.__setattr__(self, "signal", checked_grid(self, self.signal, axes))
        if self.mode not in ("full", "valid"):
            raise ProblemError(
                f'Convolution: mode must be "full" or "valid", got {self.mode!r}. SciPy\'s "same" is "full" for data '
                "in a frame of NaN of that size, with weights=isfinite(y)"
            )

    @classmethod
    def examples(cls, shape: tuple[int, int]) -> tuple[Convolution, ...]:
        m, n = shape
        long = cls(drawn_kernel(1, m + n - 1)[0, ...], (n,), "valid")
        other = cls(drawn_kernel(1, abs(m - n) + 1)[0, ...], (n,), "full" if m >= n else "valid")
        return long, other

    @property
    def blocks(self) -> Array:
        return self.kernel[None, ..., None]

    def _holding(self, kernels: Array) -> Convolution:
        return Convolution(kernels[0, ..., 0], self.signal, self.mode)

    @property
    def layout(self) -> Layout:
        sizes = tuple(zip(self.signal, self.kernel.shape, strict=True))
        if self.mode == "full":
            rows = tuple(n + p - 1 for n, p in sizes)
            return Layout(self.signal, rows, tuple(map(fast, rows)), (0,) * len(rows))
        rows, first = tuple(abs(n - p) + 1 for n, p in sizes), tuple(min(n, p) - 1 for n, p in sizes)
        return Layout(self.signal, rows, tuple(fast(max(n, p)) for n, p in sizes), first)


def Toeplitz(diagonals: Array, n: int) -> Convolution:
    """A matrix with constant diagonals, ``M[i, j] = diagonals[i - j + n - 1]``: the valid convolution of a long kernel.

    Parameters
    ----------
    diagonals : array, shape (m + n - 1,)
        From the one in the upper right corner to the one in the lower left: the first row backwards, then what is left
        of the first column. Real or complex.
    n : int
        Columns of M, from 1 to the number of diagonals.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> xv.operators.Toeplitz(np.arange(4.0), 3).dense()
    array([[2., 1., 0.],
           [3., 2., 1.]])
    """
    M = Convolution(diagonals, (n,), "valid")
    if diagonals.shape[0] < n:
        raise ProblemError(f"Toeplitz needs m + n - 1 >= n = {n} diagonals, got shape {tuple(diagonals.shape)}")
    return M


def checked_grid(owner: object, grid: Any, axes: int | None) -> Grid:
    """A shape as a tuple of Python integers, or a `ProblemError`."""
    whole = isinstance(grid, tuple | list) and all(
        isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in grid
    )
    if not whole or (axes is not None and len(grid) != axes):
        wanted = "of lengths >= 1" if axes is None else f"of {axes} lengths >= 1, one for each axis of the kernel"
        raise ProblemError(f"{type(owner).__name__} needs the shape of a signal, a tuple {wanted}, got {grid!r}")
    return tuple(grid)
