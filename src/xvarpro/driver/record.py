"""The record of a run, a row of numbers for every iterate or for one in so many, and when a run is written."""

from __future__ import annotations

import sys
import time
from array import array
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from xvarpro.errors import warn_caller

RECORD = (
    "value", "gap_A", "gap_B", "alpha_A", "alpha_B", "status", "values", "gradients", "lmos", "projections", "rows",
)  # fmt: skip
WORK = -5  # where the counts begin in a row of RECORD
Mark: TypeAlias = tuple[int, list[float]]  # how many numbers are kept, and the last row


class Record:
    """Rows ``(iteration, seconds, *RECORD)``: the first, those of every so many iterations, and the last.

    Parameters
    ----------
    table : array (n, 13)
        The rows so far, one or more.
    every : int
        Iterations between the rows that are kept from here on.
    """

    done: int  # number of iterations
    seconds: float  # time of the last iterate
    row: list[float]  # the last iterate's numbers, as `RECORD` names them

    def __init__(self, table: np.ndarray, every: int) -> None:
        self.every = every
        self._kept = array("d", table[:-1].tobytes())  # a tenth of the memory of lists of floats
        self.rewind((len(self._kept), table[-1].tolist()))

    def add(self, row: Sequence[float], seconds: float) -> None:
        """The row of the next iterate."""
        if self.done % self.every == 0:
            self._kept.extend((self.done, self.seconds, *self.row))
        self.done, self.seconds, self.row = self.done + 1, seconds, list(row)

    def mark(self) -> Mark:
        """What `rewind` and `table` take to return to this row."""
        return len(self._kept), [self.done, self.seconds, *self.row]

    def rewind(self, mark: Mark) -> None:
        """Forget the rows since a mark."""
        n, (done, self.seconds, *self.row) = mark
        self.done = int(done)
        del self._kept[n:]

    def table(self, mark: Mark | None = None) -> np.ndarray:
        """All rows, or those up to a mark, (n, 13)."""
        n, last = mark or self.mark()
        return np.append(np.array(self._kept[:n]), last).reshape(-1, len(last))


class Schedule:
    """When a run is written: at the start, every so many iterations, an int, or seconds, a float, and at the end.

    Parameters
    ----------
    write : callable or None
        Called to write; None never writes.
    every : int or float
    done : int
        Iterations before this one.
    clock : callable
        Seconds; several processes that write together must agree on them.

    Raises
    ------
    OSError
        The first file cannot be written. Later this is a warning: the work goes on, and the last file stays.
    """

    def __init__(
        self,
        write: Callable[[], None] | None,
        every: float,
        done: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._write, self._every, self._clock = write, every, clock
        self._done, self._time = done, 0.0 if write is None else clock()
        if write is not None:
            write()

    def left(self, done: int) -> int:
        """Iterations that may pass before the next time."""
        counted = self._write is not None and isinstance(self._every, int)
        return self._done + int(self._every) - done if counted else sys.maxsize

    def after(self, done: int) -> None:
        """Write if it is time."""
        if self._write is None:
            return
        passed = done - self._done if isinstance(self._every, int) else self._clock() - self._time
        if passed >= self._every:
            self.now()
            self._done, self._time = done, self._clock()

    def now(self) -> None:
        """Write."""
        try:
            if self._write is not None:
                self._write()
        except OSError as error:
            warn_caller(f"the checkpoint was not written, and the last one stays: {error}", RuntimeWarning)
