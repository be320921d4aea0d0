"""Targets with many right-hand sides: chunks of columns, and exact compression.

With one design for k right-hand sides the objective sees y only through ``y y^T``: multiplying y on the right by an
orthogonal matrix V turns w into ``w V`` and changes no residual norm. The V of a QR factorisation of ``y^T`` leaves an
m x m triangle and k - m columns of zeros, which cost nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import numpy as np

from xvarpro.backends import exchange, registry
from xvarpro.backends.group import Group
from xvarpro.core.checks import described
from xvarpro.core.namespace import device, dtype_name, in_double, is_array, namespace_of, positive_or_one
from xvarpro.core.struct import Array, Struct
from xvarpro.core.trees import adjoint
from xvarpro.errors import ProblemError
from xvarpro.problem.read_ahead import Reader, check_source
from xvarpro.problem.stored import length, sliceable, taken, waits

WIDTH = 8  # columns of a block of a target in memory, per row
NO_COLUMNS = "source of ColumnChunks must yield at least one row and one column; got none"


@final
@dataclass(frozen=True)
class ColumnChunks(Struct):
    """A target given as blocks of columns, of which one at a time is in memory.

    Parameters
    ----------
    source : callable or sequence
        A function without arguments that starts a fresh pass over arrays of shape (m, k_i), or a list of them. A solve
        takes one pass at its start, or one for each value where W is a set that is no subspace; `Result.w` and
        `Result.w_chunks` take another, of as many columns.
    group : Group, optional
        Processes that each hold columns of their own, such as `xvarpro.distributed.TorchGroup`: value and gradient are
        those of the columns of all of them, and w is that of the own ones.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> y = xv.ColumnChunks(lambda: (np.full((2, 3), float(i)) for i in range(4)))
    >>> xv.compress(y).shape
    (2, 2)
    """

    source: Callable[[], Iterable[Array]] | Iterable[Array]
    group: Group | None = None

    def __post_init__(self) -> None:
        check_chunks(self)

    @classmethod
    def cut(cls, y: Any, columns: int | None = None, group: Group | None = None) -> ColumnChunks:
        """An array that is not in memory, or is, a number of columns at a time.

        Parameters
        ----------
        y : array, shape (m, k)
            An array of Zarr or HDF5, a memory map, or anything else with a shape whose slices are arrays. What is not
            in memory is read while the chunk before is in use: two are in memory then.
        columns : int, optional
            Columns per chunk; the last may have fewer. By default about 64 MB, in whole stored chunks.
        group : Group, optional
            As for `ColumnChunks`; the array is the columns of this process.

        Returns
        -------
        ColumnChunks

        Raises
        ------
        ProblemError
            The array has another number of axes.

        Examples
        --------
        >>> import numpy as np, xvarpro as xv
        >>> y = np.random.default_rng(0).normal(size=(3, 1000))
        >>> L = xv.compress(xv.ColumnChunks.cut(y, columns=300))
        >>> bool(np.allclose(L @ L.T, y @ y.T))
        True
        """
        check_length("columns", columns)
        if len(getattr(y, "shape", ())) != 2:
            cube = ". Of a cube (ny, nx, m) give cube.reshape(ny * nx, m).T, of one that is stored as an array of Dask"
            raise ProblemError(f"y must be an array (m, k); got {described(y)}{cube if np.ndim(y) == 3 else ''}")
        width = columns or length([y], axis=1)
        source = partial(_slices, sliceable(y, axis=1), y.shape[1], width)
        return cls(partial(_ahead, source) if waits(y, width, axis=1) else source, group)

    def __iter__(self) -> Iterator[Array]:
        rows = None
        blocks = self.source() if callable(self.source) else self.source
        if not isinstance(blocks, Iterable):
            raise ProblemError(f"source of ColumnChunks must return an iterable of arrays; got {described(blocks)}")
        for i, block in enumerate(blocks):
            block = exchange.numbers(block, f"y, chunk {i},")
            if not is_array(block):
                raise ProblemError(f"y, chunk {i}, must be an array ({rows or 'm'}, k_i); got {described(block)}")
            if block.ndim != 2 or (rows is not None and block.shape[0] != rows):
                raise ProblemError(f"y, chunk {i}, must have shape ({rows or 'm'}, k_i); got {tuple(block.shape)}")
            rows = block.shape[0]
            yield block


@dataclass
class Passes:
    """Passes over chunks that must have as many rows as M, and as many columns together as on the pass before."""

    chunks: ColumnChunks
    rows: int
    columns: int = 0  # of a whole pass; 0 before the first one

    def __call__(self) -> Iterator[Array]:
        passed = 0
        for i, block in enumerate(self.chunks):
            if block.shape[0] != self.rows:
                raise ProblemError(
                    f"M(theta) and y must have the same number of rows; got {self.rows} and y, chunk {i}, of shape "
                    f"{tuple(block.shape)}"
                )
            passed += block.shape[1]
            yield block
        check_same_columns(self.columns, passed)
        if not passed:
            raise ProblemError(NO_COLUMNS)
        self.columns = passed


def check_same_columns(before: int, now: int) -> None:
    """Check the columns of a pass against those of the one before, 0 if there was none."""
    if before not in (0, now):
        raise ProblemError(
            f"source of ColumnChunks must yield the same columns on every pass; got {now} of them on this pass and "
            f"{before} before"
        )


def _slices(y: Any, total: int, columns: int) -> Iterator[Array]:
    """Blocks of so many columns; no closure, which could not be pickled."""
    for i, a in enumerate(range(0, total, columns)):
        yield taken(y, a, min(a + columns, total), 1, f"y, chunk {i},")


def _ahead(source: Callable[[], Iterator[Array]]) -> Iterator[Array]:
    return Reader(source())


def check_chunks(chunks: Any) -> None:
    """Check the source and the group of chunks of rows or of columns."""
    name = type(chunks).__name__
    if not (chunks.group is None or isinstance(chunks.group, Group)):
        raise ProblemError(
            f"group of {name} must be a Group such as xv.distributed.TorchGroup(); got {described(chunks.group)}"
        )
    check_source(name, chunks.source)


def check_length(name: str, given: Any) -> None:
    """Check how many rows or columns a chunk is asked to have; None leaves it open."""
    if not (given is None or (isinstance(given, int) and not isinstance(given, bool) and given > 0)):
        raise ProblemError(f"{name} must be a whole number > 0 per chunk; got {given!r}")


def compress(y: Array | ColumnChunks, backend: Any = None) -> Array:
    """Equivalent m x m target of a target with k columns: ``L`` with ``L L^H = y y^H``.

    Parameters
    ----------
    y : array, shape (m, k), or ColumnChunks
        Chunks are folded in one at a time.
    backend : Backend, optional
        Where to compute; the arrays' own by default.

    Returns
    -------
    array, shape (m, r), r <= min(m, k)
        ``r = m`` for a full y with k >= m, and lower triangular, unless its rows are dependent in single precision.
        Rows of a y in memory that are zero, such as the border pixels of images, cost no column.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> y = np.random.default_rng(0).normal(size=(3, 1000))
    >>> L = xv.compress(y)
    >>> bool(np.allclose(L @ L.T, y @ y.T))
    True
    """
    if isinstance(y, ColumnChunks):
        return _fold(y, backend) if y.group is None else _across(y, y.group, backend)
    if not is_array(y) or y.ndim != 2 or 0 in y.shape:
        raise ProblemError(f"y must be a matrix (m, k) with entries, or ColumnChunks; got {described(y)}")
    backend = backend or registry.owner(y)
    xp = namespace_of(y)
    live = np.flatnonzero(backend.to_numpy(xp.any(y != 0, axis=1)))
    if live.size in (0, y.shape[0]):
        return _fold(columns(y, WIDTH * y.shape[0]), backend)
    L = _fold(columns(xp.take(y, _indices(backend, y, live), axis=0), WIDTH * live.size), backend)
    row = np.full(y.shape[0], live.size)  # for each row of y its row of L, or the one of zeros below
    row[live] = np.arange(live.size)
    padded = xp.concat([L, xp.zeros_like(L[:1, :])])
    return xp.take(padded, _indices(backend, y, row), axis=0)


def _indices(backend: Any, like: Array, values: np.ndarray) -> Array:
    return backend.asarray(values.astype(np.int32), device=device(like))


def _fold(blocks: Iterable[Array], backend: Any) -> Array:
    """A factor (m, min(m, k)) of the blocks' columns, one block in memory at a time.

    From the QR factorisation of each with what came before; of single precision from the Gram matrix in double, which
    has half of its digits, those that single holds, at a quarter of the time.
    """
    triangle = gram = dtype = None
    k = 0
    for block in blocks:
        backend = backend or registry.owner(block)
        dtype, rows = block.dtype, in_double(adjoint(block))
        k = k + rows.shape[0]
        if rows.dtype != dtype:
            gram = adjoint(rows) @ rows if gram is None else gram + adjoint(rows) @ rows
            continue
        rows = rows if triangle is None else namespace_of(rows).concat([triangle, rows])
        triangle = backend.qr(rows, mode="r")[1]
    if gram is not None:
        triangle = _root(backend, gram, k)
    if triangle is None or not math.prod(triangle.shape):
        raise ProblemError(NO_COLUMNS)
    return namespace_of(triangle).astype(adjoint(triangle), dtype)


def _root(backend: Any, gram: Array, k: int) -> Array:
    """Rows (min(m, k), m) with the Gram matrix of k rows: a triangle, or eigenvectors where these are dependent."""
    xp, m = namespace_of(gram), gram.shape[0]
    L: Array = backend.cholesky(gram)
    definite = k >= m and bool(xp.all(xp.isfinite(L)))
    if definite or not bool(xp.all(xp.isfinite(gram))):
        return adjoint(L)[: min(m, k), :]
    size = positive_or_one(xp.sqrt(xp.real(xp.linalg.diagonal(gram))))
    squares, V = xp.linalg.eigh(gram / size[:, None] / size)  # in ascending order
    roots = xp.sqrt(xp.where(squares > 0, squares, 0))
    return (roots[:, None] * adjoint(V) * size)[max(m - k, 0) :, :]


def _across(y: ColumnChunks, group: Group, backend: Any) -> Array:
    """The triangle of the columns of all processes, from that of each."""
    with group.together():
        L = _fold(y, backend)
    xp, (m, r) = namespace_of(L), L.shape
    group.check_same("number of rows and dtype of y", f"{m} in {dtype_name(L)}")
    widest = int(group.numbers([r]).max())
    alike = xp.concat([L, xp.zeros((m, widest - r), dtype=L.dtype, device=device(L))], axis=1)
    return _fold((part for (part,) in group.gather((alike,))), backend)


def columns(y: Array, width: int) -> Iterator[Array]:
    """Blocks of `width` columns; the standard does not define slices beyond the end, hence the minimum.

    `WIDTH` times as wide as tall, folding them costs 9/8 of one large QR, in bounded memory. What is spread over
    devices stays whole, since they work on it together.
    """
    k = y.shape[1]
    width = k if exchange.is_spread(y) else width
    return (y[:, i : min(i + width, k)] for i in range(0, k, width))
