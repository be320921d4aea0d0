"""What circulant designs and Toeplitz designs share: each is a corner of a circulant matrix."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any, NamedTuple

import numpy as np

from xvarpro.core import trees
from xvarpro.core.namespace import device, namespace_of
from xvarpro.core.struct import Array
from xvarpro.errors import ProblemError
from xvarpro.operators.fourier import Grid, backward, forward, resized, rolled
from xvarpro.operators.interface import Operator


class Layout(NamedTuple):
    """Where ``M[i, j] = kernel[i - j + first]`` lies in the circulant matrix of a kernel filled up to `period`.

    Every index is one per axis of the grid; outside of the kernel its entries are 0.
    """

    grid: Grid  # of w
    rows: Grid  # of what one kernel makes of it
    period: Grid
    first: Grid


LARGEST = 2**22  # entries of a dense form that is made where nothing else fits


class OfKernels(Operator):
    """A design of convolutions, held as kernels; a product is a product of transforms.

    Subclasses say what their layout is and how their field becomes an array ``(blocks, *size, columns)``: blocks of
    rows, and columns of the right-hand side, 1 where all share a kernel.
    """

    @property
    @abstractmethod
    def layout(self) -> Layout:
        """Shapes, which do not depend on the kernels' values."""

    @property
    @abstractmethod
    def blocks(self) -> Array:
        """The kernels as ``(blocks, *size, columns)``."""

    @abstractmethod
    def _holding(self, kernels: Array) -> Operator:
        """An operator of this structure around what `blocks` is."""

    @property
    def grid(self) -> Grid:
        """Shape of one column of `w` as a signal."""
        return self.layout.grid

    @property
    def shape(self) -> tuple[int, int]:
        layout = self.layout
        return self.blocks.shape[0] * math.prod(layout.rows), math.prod(layout.grid)

    @property
    def is_real(self) -> bool:
        """Whether the matrix is."""
        return not trees.is_complex(self.blocks)

    def spectrum(self, half: bool) -> Array:
        """Transform of the kernels, shape ``(blocks, *period, columns)``, the last grid axis halved with `half`."""
        return forward(self._circular(), self.layout.period, half)

    @property
    def explicit(self) -> bool:
        return math.prod(self.shape) <= LARGEST

    def matvec(self, w: Array) -> Array:
        layout, half = self.layout, self._half(w)
        product = self.spectrum(half) * forward(signals(w, layout.grid), layout.period, half)
        return flat(resized(backward(product, layout.period, half), layout.rows))

    def rmatvec(self, r: Array) -> Array:
        layout, half = self.layout, self._half(r)
        X, R = self.spectrum(half), forward(signals(r, layout.rows), layout.period, half)
        xp = namespace_of(R)
        correlation = backward(xp.sum(xp.conj(X) * R, axis=0, keepdims=True), layout.period, half)
        return flat(resized(correlation, layout.grid))

    def outer(self, r: Array, w: Array) -> Operator:
        """Correlations of `r` with `w`: ``g[d] = sum_i r[i] conj(w[i - d])`` at the places of the kernel."""
        layout, kernels, half = self.layout, self.blocks, self._half(r, w)
        R, W = (forward(signals(x, grid), layout.period, half) for x, grid in ((r, layout.rows), (w, layout.grid)))
        xp = namespace_of(R)
        G = R * xp.conj(W)
        if kernels.shape[-1] == 1:
            G = xp.sum(G, axis=-1, keepdims=True)
        g = rolled(backward(G, layout.period, half), layout.first)
        g = resized(g, tuple(kernels.shape[1:-1]))
        return self._holding(xp.real(g) if self.is_real and not half else g)

    def dense(self) -> Array:
        layout, circular = self.layout, self._circular()
        xp = namespace_of(circular)
        blocks, columns = circular.shape[0], circular.shape[-1]
        index = xp.zeros((1, 1), dtype=xp.int64 if hasattr(xp, "int64") else xp.int32, device=device(circular))
        for m, n, period in zip(layout.rows, layout.grid, layout.period, strict=True):
            i, j = (xp.arange(size, dtype=index.dtype, device=device(circular)) for size in (m, n))
            along = (xp.expand_dims(i, axis=1) - j + period) % period
            index = xp.reshape(index, (index.shape[0], 1, index.shape[1], 1)) * period
            index = xp.reshape(index + xp.reshape(along, (1, m, 1, n)), (index.shape[0] * m, index.shape[2] * n))
        entries = xp.reshape(circular, (blocks, math.prod(layout.period), columns))
        entries = xp.take(entries, xp.reshape(index, (-1,)), axis=1)
        if self.columns is None:
            return xp.reshape(entries, self.shape)
        return xp.reshape(xp.permute_dims(entries, (2, 0, 1)), (columns, *self.shape))

    def _half(self, *arrays: Array) -> bool:
        return self.is_real and not any(trees.is_complex(x) for x in arrays)

    def _circular(self) -> Array:
        """Kernels of the circulant matrices: the first row of M is made their first row."""
        layout = self.layout
        return rolled(resized(self.blocks, layout.period), tuple(-f for f in layout.first))


def signals(x: Array, grid: Grid) -> Array:
    """Columns of `x` as signals, block by block: ``(blocks, *grid, k)``."""
    return namespace_of(x).reshape(x, (-1, *grid, x.shape[1]))


def flat(x: Array) -> Array:
    """Signals as columns again."""
    return namespace_of(x).reshape(x, (-1, x.shape[-1]))


def drawn_kernel(*shape: int) -> Any:
    """A kernel for an example: random numbers, the first of which keeps every frequency away from zero."""
    kernel = np.random.default_rng(shape).normal(size=shape)
    kernel.reshape(shape[0], -1)[:, 0] += 3 * math.prod(shape[1:]) ** 0.5
    return kernel


def check_kernel(owner: object, kernel: Any, form: str, least: int) -> None:
    """Refuse what is no array of real or complex numbers with at least `least` axes; None is a missing one."""
    if kernel is None:
        return
    name = type(owner).__name__
    if not trees.is_array(kernel):
        raise ProblemError(f"{name} needs an array {form}, got {type(kernel).__name__}")
    if kernel.ndim < least or 0 in kernel.shape:
        raise ProblemError(f"{name} needs an array {form} with no axis of length 0, got shape {tuple(kernel.shape)}")
    if not namespace_of(kernel).isdtype(kernel.dtype, ("real floating", "complex floating")):
        raise ProblemError(f"{name} needs real or complex floating-point numbers, got {kernel.dtype}")
