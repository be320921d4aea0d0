"""Matrix sets for convolution kernels, whose matrix has several axes for a row or a column."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import final

from xvarpro.core import checks
from xvarpro.core.namespace import namespace_of
from xvarpro.core.struct import Array
from xvarpro.errors import ProblemError
from xvarpro.sets._composite import MappedSet, is_set
from xvarpro.sets.balls import L2Ball
from xvarpro.sets.interface import Set
from xvarpro.sets.products import Rows
from xvarpro.sets.singular_values import SpectralBall


@final
@dataclass(frozen=True)
class Flattened(MappedSet):
    """Convolution kernels whose matrix lies in `inner`: a row for each output channel, with all entries of its filter.

    Without it a set of matrices takes the last two axes of a kernel (out, in, h, w), and so bounds its h x w slices one
    by one. Here it bounds the matrix (out, in h w).

    Parameters
    ----------
    inner : Set
        A set of matrices.
    axes : int
        Axes of the kernel, >= 2: 3, 4 and 5 for convolutions in one, two and three dimensions.
    rows : int
        Leading axes that become rows, >= 1 and < `axes`; the others become columns. 1 for PyTorch and Equinox, which
        have the outputs first, ``axes - 1`` for Flax, (h, w, in, out).

    Notes
    -----
    LMO : that of `inner` for the matrix
    Cost : that of `inner`
    Diameter : that of `inner`
    Projection : that of `inner` for the matrix

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> kernel = np.ones((8, 3, 3, 3))
    >>> inside = xv.sets.Flattened(xv.sets.SpectralBall(1.0)).project(kernel)
    >>> round(float(np.linalg.norm(inside.reshape(8, 27), 2)), 6)
    1.0
    """

    inner: Set = field(default_factory=SpectralBall)
    axes: int = 4
    rows: int = 1

    def __post_init__(self) -> None:
        is_set(self, self.inner)
        if self.inner.event_ndim != 2:
            raise ProblemError(
                f"Flattened: inner must be a set of matrices, got {self.inner!r}. One of vectors takes a whole leaf as "
                "it is"
            )
        checks.whole(self, "axes", 2)
        checks.whole(self, "rows", 1)
        if self.rows >= self.axes:
            raise ProblemError(f"Flattened: rows must be < axes, got rows={self.rows} and axes={self.axes}")

    @classmethod
    def examples(cls, shape: tuple[int, ...]) -> tuple[Set, ...]:
        if len(shape) < 3:
            return (cls(),)
        n = len(shape)
        return cls(axes=n), cls(SpectralBall(2.5), n, n - 1), cls(Rows(L2Ball(2.0)), n, 2)

    @property
    def event_ndim(self) -> int:
        return self.axes

    def check(self, shape: tuple[int, ...]) -> None:
        if len(shape) != self.axes:
            raise ProblemError(
                f"Flattened: theta's leaf must have as many axes as axes={self.axes} says, got shape {shape}"
            )
        self.inner.check(self._matrix(shape))

    def _matrix(self, shape: tuple[int, ...]) -> tuple[int, int]:
        return math.prod(shape[: self.rows]), math.prod(shape[self.rows :])

    def _in(self, x: Array) -> Array:
        batch = x.ndim - self.axes
        return namespace_of(x).reshape(x, (*x.shape[:batch], *self._matrix(x.shape[batch:])))

    def _out(self, z: Array, like: Array) -> Array:
        return namespace_of(z).reshape(z, like.shape)

    _along, _back = _in, _out
