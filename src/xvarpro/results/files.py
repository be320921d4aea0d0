"""Files that are written whole or not at all, and arrays that are checked when they are read."""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from os import PathLike
from typing import IO, Any

import numpy as np
from numpy.lib.npyio import NpzFile

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
def reading(path: str | bytes | PathLike[Any], writer: str) -> Iterator[ArrayFile]:
    """The arrays of an ``.npz`` file of a writer, for a ``with`` block that parses them.

    An OSError where it cannot be opened; any error of the block is a ProblemError: the file is none of the writer's, or
    it is damaged.
    """
    name = os.fsdecode(path)
    if os.path.exists(name) and not os.path.isfile(name):
        raise ProblemError(f"{name} is not a file that {writer} wrote: it is a folder or a device")
    with open(name, "rb") as handle:
        try:
            with NpzFile(handle) as archive:
                if wrong := archive.zip.testzip():  # a damaged header could hide a part of an array
                    raise ProblemError(f"{wrong} has another checksum")
                yield ArrayFile(archive)
        # zipfile, the parsers of array headers and of JSON, and constructors of what is read have an error of their
        # own for each kind of damage, and document few of them
        except Exception as error:
            reason = str(error) if isinstance(error, ProblemError) else f"{type(error).__name__}: {error}"
            raise ProblemError(f"{name} is not a file that {writer} wrote, or it is damaged: {reason[:500]}") from error


class ArrayFile:
    """Arrays of an ``.npz`` file, read by name; nothing is unpickled, and what is not asked for is not looked at."""

    def __init__(self, archive: NpzFile) -> None:
        self._archive = archive

    def array(self, name: str, kinds: str = NUMBERS, shape: tuple[int | None, ...] | None = None) -> np.ndarray:
        """One array, or a ProblemError: of these ``numpy.dtype.kind``, of this shape, where None is a free length."""
        x = np.asarray(self._archive[name])
        if x.dtype.kind not in kinds:
            raise ProblemError(f"{name} has dtype {x.dtype}")
        want = x.shape if shape is None else shape
        if x.ndim != len(want) or any(k not in (None, n) for n, k in zip(x.shape, want, strict=True)):
            raise ProblemError(f"{name} has shape {x.shape}, and {shape} is required")
        return x.astype(x.dtype.newbyteorder("="), copy=False)

    def __getitem__(self, name: str) -> np.ndarray:
        """An array of numbers, of any shape."""
        return self.array(name)

    def named(self, prefix: str) -> dict[str, np.ndarray]:
        """All arrays of numbers whose names begin so."""
        return {name: self.array(name) for name in self._archive.files if name.startswith(prefix)}

    def text(self, name: str) -> str:
        """A string that was saved as an array."""
        return str(self.array(name, "U", ()))
