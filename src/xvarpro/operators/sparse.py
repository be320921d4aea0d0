"""Sparse designs, in coordinates."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np

from xvarpro.backends import registry
from xvarpro.core.namespace import conj, device, namespace_of
from xvarpro.core.struct import REQUIRED, Array
from xvarpro.errors import ProblemError
from xvarpro.operators.interface import Operator, alike, as_gradient, drawn

LARGEST = 2**22  # entries of a dense form that is made however few are stored


@final
@dataclass(frozen=True)
class Sparse(Operator):
    """A sparse design, ``M[row_indices[i], column_indices[i]] += data[i]``; theta may enter `data`.

    Products go through the framework's own sparse arrays: SciPy's for NumPy where it is installed, torch's, JAX's BCOO,
    CuPy's. The lower level is solved by the dense form where that has at most 4 million entries, or 100 times the
    stored ones; by iteration beyond that.

    Parameters
    ----------
    data : array, shape (p,)
    row_indices, column_indices : arrays of integers, shape (p,)
        From 0 on and below m or n; an index out of range is an error on some frameworks and ignored on others.
    shape : tuple of int
        ``(m, n)``.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> M = xv.operators.Sparse(np.array([1.0, 2.0]), np.array([0, 1]), np.array([1, 0]), (2, 2))
    >>> M.matvec(np.array([[10.0], [1.0]]))[:, 0]
    array([ 1., 20.])
    """

    data: Array = REQUIRED
    row_indices: Array = REQUIRED
    column_indices: Array = REQUIRED
    shape: tuple[int, int] = (0, 0)

    def __post_init__(self) -> None:
        if self.data is None:
            return
        shapes = [tuple(x.shape) for x in (self.data, self.row_indices, self.column_indices)]
        if len(set(shapes)) > 1 or len(shapes[0]) != 1:
            raise ProblemError(f"Sparse needs data, row_indices and column_indices of one shape (p,), got {shapes}")
        for name, x in (("row_indices", self.row_indices), ("column_indices", self.column_indices)):
            if not namespace_of(x).isdtype(x.dtype, "integral"):
                raise ProblemError(f"Sparse needs whole numbers for {name}, got {x.dtype}")
        if len(self.shape) != 2:
            raise ProblemError(f"Sparse needs a shape (m, n), got {self.shape!r}")

    def matvec(self, w: Array) -> Array:
        return self._product(self.row_indices, self.column_indices, self.data, self.shape, w)

    def rmatvec(self, r: Array) -> Array:
        return self._product(self.column_indices, self.row_indices, conj(self.data), self.shape[::-1], r)

    @staticmethod
    def _product(rows: Array, columns: Array, data: Array, shape: tuple[int, int], w: Array) -> Array:
        data, w = alike(data, w)
        return registry.sparse_product(rows, columns, data, shape, w)

    def outer(self, r: Array, w: Array) -> Sparse:
        xp = namespace_of(r)
        r, w = xp.take(r, self.row_indices, axis=0), xp.take(w, self.column_indices, axis=0)
        gradient = as_gradient(xp.sum(r * conj(w), axis=1), self.data)
        return Sparse(gradient, self.row_indices, self.column_indices, self.shape)

    def dense(self) -> Array:
        xp = namespace_of(self.data)
        return self.matvec(xp.eye(self.shape[1], dtype=self.data.dtype, device=device(self.data)))

    @property
    def explicit(self) -> bool:
        # a dense form of fewer entries than a few hundred times the stored ones pays for the iterations it saves
        return math.prod(self.shape) <= max(LARGEST, 100 * self.data.shape[0])

    @classmethod
    def examples(cls, shape: tuple[int, int]) -> tuple[Operator, ...]:
        m, n = shape
        draw = np.random.default_rng([m, n])
        p = 2 * max(m, n)
        # a diagonal keeps the rank, the rest may fall on places that are taken
        places = np.arange(max(m, n)), np.arange(max(m, n))
        rows, columns = (np.concat([i % k, draw.integers(0, k, p)]) for i, k in zip(places, shape, strict=True))
        data = drawn(rows.size)
        data[: max(m, n)] += 4
        return (cls(data, rows, columns, shape),)
