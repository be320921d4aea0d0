"""Files that are written whole or not at all, and arrays that are checked before they are read."""

from __future__ import annotations

import contextlib
import errno
import glob
import math
import os
import secrets
import shutil
import time
import zipfile
from collections.abc import Callable, Iterator
from os import PathLike
from typing import IO, Any

import numpy as np

from xvarpro.errors import ProblemError

NUMBERS = "biufc"  # kinds of dtypes: booleans, integers, real and complex numbers
ABANDONED = 3600.0  # seconds since a file was last written to, after which its writer has ended


def write_atomically(path: str | bytes | PathLike[Any], write: Callable[[IO[bytes]], object]) -> None:
    """Write a file by ``write(file)``: it then holds all of its content, or what it held before.

    The content goes to a file of its own in the same folder, which takes the name when it is on the disk. So a process
    that is killed, a full disk and several writers at once leave the old file or a new one, never a part of one; only
    a killed process leaves a file ``.NAME....part``, which a later writer removes once it is an hour old. A symbolic
    link is followed; a device or a pipe, which nothing can replace, is written to directly.
    """
    name = os.fsdecode(path)
    target = os.path.realpath(name)
    if os.path.exists(target) and not os.path.isfile(target):
        with open(name, "wb") as file:  # a folder ends here
            write(file)
        return
    if os.path.isfile(target) and not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), name)
    folder, short = os.path.split(target)
    _remove_abandoned(os.path.join(glob.escape(folder), f".{glob.escape(short[:40])}.*.part"))
    part = os.path.join(folder, f".{short[:40]}.{secrets.token_hex(8)}.part")
    try:
        with open(part, "xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        if os.path.isfile(target):
            shutil.copymode(target, part)
        os.replace(part, target)
    except BaseException as error:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part)
        if isinstance(error, OSError) and error.errno and error.filename in (None, part):
            raise OSError(error.errno, error.strerror, name) from error
        raise


def _remove_abandoned(pattern: str) -> None:
    """Parts that no writer can still be at work on."""
    for part in glob.glob(pattern):
        with contextlib.suppress(OSError):  # as where another writer was quicker
            if time.time() - os.stat(part).st_mtime > ABANDONED:
                os.unlink(part)


@contextlib.contextmanager
def reading(path: str | bytes | PathLike[Any], writer: str, advice: str = "") -> Iterator[ArrayFile]:
    """The arrays of an ``.npz`` file of a writer, for a ``with`` block that parses them.

    An OSError where it cannot be opened; any error of the block is a ProblemError: the file is none of the writer's, or
    it is damaged.
    """
    if not isinstance(path, str | bytes | PathLike):
        raise ProblemError(f"a file that {writer} wrote must be given by its path; got {path!r}")
    name = os.fsdecode(path)
    if os.path.exists(name) and not os.path.isfile(name):
        raise ProblemError(f"{name} is not a file that {writer} wrote: it is a folder or a device")
    with open(name, "rb") as handle:
        try:
            with zipfile.ZipFile(handle) as archive:
                yield ArrayFile(archive, os.fstat(handle.fileno()).st_size)
        # zipfile, the parsers of array headers and of JSON, and constructors of what is read have an error of their
        # own for each kind of damage, and document few of them
        except Exception as error:
            reason = str(error) if isinstance(error, ProblemError) else f"{type(error).__name__}: {error}"
            what = f"{name} is not a file that {writer} wrote, or it is damaged"
            raise ProblemError(f"{what}: {reason[:500]}{advice}") from error


class ArrayFile:
    """Arrays of an ``.npz`` file that was not compressed, read by name; all together have at most `size` bytes.

    No array is read before its header, its size in the file and what the caller requires agree, so that memory is
    taken for no more than the file holds. Nothing is unpickled, and what is not asked for is not looked at.
    """

    def __init__(self, archive: zipfile.ZipFile, size: int) -> None:
        self._archive, self._left = archive, size

    def array(self, name: str, kinds: str = NUMBERS, shape: tuple[int | None, ...] | None = None) -> np.ndarray:
        """One array, or a ProblemError: of these ``numpy.dtype.kind``, of this shape, where None is a free length."""
        info = self._archive.NameToInfo.get(f"{name}.npy")
        if info is None:
            raise ProblemError(f"it has no array {name}")
        if info.compress_type != zipfile.ZIP_STORED:
            raise ProblemError(f"{name} is compressed, which hides how large it is")
        self._left -= info.file_size
        if self._left < 0:
            raise ProblemError("its arrays claim more bytes than it has")
        with self._archive.open(info) as stream:
            if np.lib.format.read_magic(stream) != (1, 0):
                raise ProblemError(f"{name} is of another version of NumPy's format")
            found, _, dtype = np.lib.format.read_array_header_1_0(stream)
            if dtype.kind not in kinds:  # an array of objects, or of records of them, would be unpickled
                raise ProblemError(f"{name} has dtype {dtype}")
            want = found if shape is None else shape
            if len(found) != len(want) or any(n < 0 or k not in (None, n) for n, k in zip(found, want, strict=True)):
                raise ProblemError(f"{name} has shape {found}" + (f", and {shape} is required" if shape else ""))
            holds = info.file_size - stream.tell()
            if math.prod(found) * dtype.itemsize != holds:
                raise ProblemError(f"{name} has shape {found} of {dtype}, and the file holds {holds} bytes of it")
            stream.seek(0)
            x: np.ndarray = np.lib.format.read_array(stream, allow_pickle=False)
        return x.astype(dtype.newbyteorder("="), copy=False)

    def __getitem__(self, name: str) -> np.ndarray:
        """An array of numbers, of any shape."""
        return self.array(name)

    def named(self, prefix: str) -> dict[str, np.ndarray]:
        """All arrays of numbers whose names begin so."""
        names = [name.removesuffix(".npy") for name in self._archive.NameToInfo if name.startswith(prefix)]
        return {name: self.array(name) for name in names}

    def text(self, name: str) -> str:
        """A string that was saved as an array."""
        return str(self.array(name, "U", ()))
