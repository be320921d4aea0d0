"""Chunks that a thread reads while the one before is in use."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any, final

from xvarpro.errors import ProblemError

_END = object()


@final
@dataclass(frozen=True, eq=False)
class ReadAhead:
    """A source of chunks whose next chunk is read while one is in use: for those that wait for a disk or decompress.

    It takes the place of a source in `RowChunks`. Two chunks are in memory then: the one that is in use, and the next
    one.

    Parameters
    ----------
    source : callable or sequence
        As for `RowChunks`.

    Notes
    -----
    The source runs in other threads than the solve, one at a time: connections that belong to a thread, as those of
    sqlite3, have to allow that. `RowChunks.cut` reads ahead where arrays are not in memory; mini-batches are read when
    they are due. An interrupted solve ends when the chunk that is being read has come.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> def source():
    ...     for part in range(4):
    ...         t = part + np.linspace(0.0, 1.0, 50)  # read it from a file here
    ...         yield t, 2.0 * t
    >>> problem = xv.separable(lambda theta, t: theta * t[:, None], xv.RowChunks(xv.ReadAhead(source)))
    >>> value, gradient = xv.value_and_gradient(problem, np.array([1.0]))
    >>> bool(value < 1e-25)
    True
    """

    source: Callable[[], Iterable[Any]] | Iterable[Any]

    def __post_init__(self) -> None:
        check_source("ReadAhead", self.source)

    def __iter__(self) -> Iterator[Any]:
        """A pass without a thread: for those that do not know in which scope one would have to read."""
        return iter(self.source() if callable(self.source) else self.source)


def check_source(name: str, source: Any) -> None:
    """Check that a source of chunks can be passed over more than once."""
    if isinstance(source, Iterator) or not (callable(source) or isinstance(source, Iterable)):
        raise ProblemError(
            f"source of {name} must be a list of chunks or a function that starts a fresh pass over them; got "
            f"{type(source).__name__}, which allows one pass at most. Pass a function, such as "
            f"{name}(lambda: (load(i) for i in range(10)))"
        )


class Reader(Iterator[Any]):
    """What `supply` yields, the next item taken by a thread from when one is handed out.

    An item is there before it is handed out, so that `supply` is never entered twice. The thread takes items in a
    context manager that `scope` makes: settings of a framework that belong to a thread.
    """

    def __init__(self, supply: Iterator[Any], scope: Callable[[], AbstractContextManager[Any]] = nullcontext) -> None:
        self._supply, self._scope = supply, scope
        self._pool = ThreadPoolExecutor(1, "xvarpro reads a chunk")
        self._next: Future[Any] | None = None

    def __next__(self) -> Any:
        item = self._take() if self._next is None else self._next.result()
        self._next = None
        if item is _END:
            self.close()
            raise StopIteration
        self._next = self._pool.submit(copy_context().run, self._take)
        return item

    def close(self) -> None:
        """End the pass; waits for the item that is being taken."""
        if self._next is not None:
            wait([self._next])  # where an interrupted join would take the thread for ended: CPython's gh-89455
        self._pool.shutdown()
        self._next = None
        if isinstance(self._supply, Generator):
            self._supply.close()

    def _take(self) -> Any:
        with self._scope():
            return next(self._supply, _END)
