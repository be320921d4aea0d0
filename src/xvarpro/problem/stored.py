"""Arrays that are not in memory, a slice at a time: files of Zarr and HDF5, and memory maps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from mmap import mmap
from typing import Any

import numpy as np

from xvarpro.backends import exchange
from xvarpro.core.namespace import is_array
from xvarpro.errors import ProblemError
from xvarpro.sets.each import Stored

CHUNK_BYTES = 64 * 2**20  # of a chunk whose size is not given
THREAD_BYTES = 2**21  # of a map that the system has in memory: copied in about the time that a thread takes


def part(x: Any, picked: slice) -> Any:
    """Entries along the first axis; read from its file where `x` is not in memory."""
    if not isinstance(x, Stored | np.memmap):
        return x[picked, ...]
    a, b, _ = picked.indices(x.shape[0])
    return taken(x.array if isinstance(x, Stored) else sliceable(x, 0), a, b, 0, "xv.Each,")


@dataclass(frozen=True, eq=False)
class FileRows:
    """Rows of a read-only memory map, read from its file.

    A process that touches a map holds all of it in the end, as memory that the system may take back but counts as the
    process's; and a file that became shorter ends the process. What is read is held as long as it is used, and a short
    file is an error. It is pickled as the name of the file.
    """

    path: str
    offset: int
    dtype: np.dtype
    shape: tuple[int, ...]

    def __getitem__(self, index: tuple[slice]) -> np.ndarray:
        a, b, _ = index[0].indices(self.shape[0])
        each = math.prod(self.shape[1:])
        found = np.fromfile(self.path, self.dtype, (b - a) * each, offset=self.offset + a * each * self.dtype.itemsize)
        if found.size < (b - a) * each:
            raise EOFError(f"{self.path} has become shorter since it was opened")
        return found.reshape(b - a, *self.shape[1:])


def sliceable(x: Any, axis: int) -> Any:
    """What slices of `x` are taken from: the file of a whole map whose rows follow one another, which it holds."""
    if not (isinstance(x, np.memmap) and isinstance(x.base, mmap) and x.mode == "r" and x.filename is not None):
        return x
    return FileRows(str(x.filename), x.offset, x.dtype, x.shape) if axis == 0 and x.flags.c_contiguous else x


def waits(x: Any, size: int, axis: int) -> bool:
    """Whether slices of so many rows or columns have to be read, for longer than a thread takes to start."""
    mapped = isinstance(x, np.memmap)
    return (mapped and size * _bytes(x, axis) >= THREAD_BYTES) or not is_array(x)


def taken(x: Any, a: int, b: int, axis: int, name: str) -> Any:
    """The slice from `a` to `b` along an axis, in memory."""
    try:
        found = x[(slice(None),) * axis + (slice(a, b),)]
        found = found.compute() if hasattr(found, "compute") else found  # of Dask
        found = np.array(found) if isinstance(x, np.memmap) else exchange.as_array(found, name)
    except ProblemError:
        raise
    except Exception as error:  # each library raises what it likes
        raise ProblemError(
            f"{name} {('rows', 'columns')[axis]} {a} to {b}, could not be read: {type(error).__name__}: {error}"
        ) from error
    if found.shape[axis] != b - a:
        raise ProblemError(
            f"{name} must have {b - a} {('rows', 'columns')[axis]} from {a} to {b}; got shape {tuple(found.shape)}. "
            "The array must stay as it was when it was cut"
        )
    return found


def length(arrays: Sequence[Any], axis: int) -> int:
    """Rows or columns of a chunk of about 64 MB: as many as some stored chunks have, or at least one.

    A stored chunk that lies in two of these is read and decompressed twice. Arrays whose stored chunks differ share
    their least common multiple; where that is too much, the longest decides.
    """
    each = sum(_bytes(x, axis) for x in arrays)
    most = max(CHUNK_BYTES // max(each, 1), 1)
    stored = [_stored(x, axis) or 1 for x in arrays]
    together = math.lcm(*stored)
    unit = together if together <= most else max(stored)
    return max(most // unit, 1) * unit


def _stored(x: Any, axis: int) -> int | None:
    """Rows or columns of a stored chunk; None where the array has none, or unequal ones."""
    found = getattr(x, "chunks", None)
    return found[axis] if found and isinstance(found[axis], int) else None


def _bytes(x: Any, axis: int) -> int:
    """Size of one row or column."""
    return math.prod(x.shape) // max(x.shape[axis], 1) * getattr(getattr(x, "dtype", None), "itemsize", 8)
