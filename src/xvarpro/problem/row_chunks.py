"""Levels whose rows are not in memory at once: the passes over them, and the checks that every pass is the same."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, final

from xvarpro.backends import Backend, exchange
from xvarpro.backends.group import Group
from xvarpro.core import checks, trees
from xvarpro.core.namespace import copied, dtype_name, namespace_of
from xvarpro.core.struct import Array, Struct, Tree
from xvarpro.errors import ProblemError
from xvarpro.problem.column_chunks import check_chunks, check_length
from xvarpro.problem.read_ahead import ReadAhead, Reader
from xvarpro.problem.stored import length, sliceable, taken, waits

_END = object()


@final
@dataclass(frozen=True)
class RowChunks(Struct):
    """A target and its data as chunks of rows, of which one at a time is in memory.

    M is called with the data of a chunk as its second argument, instead of the problem's, and returns the rows of that
    chunk. Value and gradient are those of all rows at once.

    Parameters
    ----------
    source : callable or sequence
        A function without arguments that starts a fresh pass over pairs ``(data, y)``, or a list of them, or any
        other iterable that can be passed over again, such as a DataLoader of PyTorch: `data` a pytree like the
        problem's, `y` of shape (rows of the chunk,) or (rows, k). Every pass gives the same rows; how many a chunk has
        is free, and so is their order; one without rows is passed over.
    y : callable, optional
        ``y(theta, data)`` -> target of a chunk, for one that depends on theta: then `source` gives `data` alone.
    group : Group, optional
        Processes that each hold chunks of their own, such as `xvarpro.distributed.TorchGroup`: value and gradient are
        those of the rows of all of them.

    Notes
    -----
    Stochastic algorithms take a chunk as a mini-batch: the next one of a pass in each iteration, apart from the passes
    of the certificates. Which one it is follows from the number of the iteration, so that a solve can be resumed; to
    the same bits where every pass has one order.

    A value takes one pass and a gradient one more, over both levels of a bilevel problem. A solve ends with a pass that
    verifies the result and solves for w. The data of a chunk may also hold arrays that are not rows, the
    same in every chunk.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> def M(theta, t):
    ...     xp = xv.array_namespace(theta)
    ...     return xp.exp(-xp.expand_dims(t, axis=1) * theta)
    >>> def source():
    ...     for i in range(10):
    ...         t = (i + np.linspace(0.0, 1.0, 50)) / 10
    ...         yield t, np.exp(-3.0 * t)
    >>> fit = xv.solve(xv.separable(M, xv.RowChunks(source)), np.array([1.0]), over=xv.sets.Box(0.0, 10.0))
    >>> round(float(fit.theta[0]), 4)
    3.0
    """

    source: Callable[[], Iterable[Any]] | Iterable[Any]
    y: Callable[[Tree, Tree], Array] | None = None
    group: Group | None = None

    def __post_init__(self) -> None:
        check_chunks(self)
        if not (self.y is None or callable(self.y)):
            raise ProblemError(
                f"y of RowChunks must be a function y(theta, data); got {type(self.y).__name__}. Yield an array y with "
                "its chunk, (data, y), or use RowChunks.cut(data, y, rows)"
            )

    def __iter__(self) -> Iterator[tuple[Tree, Any]]:
        """Data and target, or its function, of each chunk as given."""
        chunks = iter(self.source() if callable(self.source) else self.source)
        return chunks if self.y is None else ((data, self.y) for data in chunks)

    @classmethod
    def cut(cls, data: Tree, y: Any, rows: int | None = None, group: Group | None = None) -> RowChunks:
        """Arrays that are not in memory, or are, a number of rows at a time.

        Parameters
        ----------
        data : pytree
            Arrays with one row per row of M: of Zarr or HDF5, memory maps, or anything else with a shape whose slices
            are arrays. The rest is part of every chunk. What is not in memory is read ahead, as by `ReadAhead`.
        y : array or callable
            Target, shape (m,) or (m, k), or ``y(theta, data)``.
        rows : int, optional
            Rows per chunk; the last may have fewer. By default about 64 MB, in whole stored chunks of the arrays.
        group : Group, optional
            As for `RowChunks`; the arrays are the rows of this process.

        Returns
        -------
        RowChunks

        Raises
        ------
        ProblemError
            The arrays have different numbers of rows, or there is none.

        Examples
        --------
        >>> import numpy as np, xvarpro as xv
        >>> t = np.linspace(0.0, 1.0, 1000)
        >>> problem = xv.separable(lambda theta, t: theta * t[:, None], xv.RowChunks.cut(t, 2.0 * t, rows=300))
        >>> value, gradient = xv.value_and_gradient(problem, np.array([1.0]))
        >>> bool(value < 1e-25)
        True
        """
        check_length("rows", rows)
        y_is_function = callable(y)
        data, y = _arrays(data, "data"), y if y_is_function else _arrays(y, "y")
        leaves, treedef = trees.flatten(data if y_is_function else (data, y))
        names = trees.paths(data, "data") + ([] if y_is_function else trees.paths(y, "y"))
        cut = {name: x for name, x in zip(names, leaves, strict=True) if _has_rows(x)}
        found = {name: x.shape[0] for name, x in cut.items()}
        if len(set(found.values())) != 1:
            listed = ", ".join(f"{path} has {n} rows" for path, n in found.items()) or "no array"
            raise ProblemError(f"data and y must hold arrays with the same number of rows; got {listed}")
        total = next(iter(found.values()))
        rows = rows or length(list(cut.values()), axis=0)
        parts = [
            (name, sliceable(x, axis=0)) if name in cut else ("", x) for name, x in zip(names, leaves, strict=True)
        ]
        source = partial(_slices, treedef, parts, total, rows)

        ahead = any(waits(x, rows, axis=0) for x in cut.values())
        return cls(ReadAhead(source) if ahead else source, y if y_is_function else None, group)


def _arrays(tree: Tree, name: str) -> Tree:
    """Lists of numbers and columns of tables as arrays; what has slices that are arrays is not read here."""
    leaves, names, treedef = trees.named(tree, name, whole=(list,))
    for x, n in zip(leaves, names, strict=True):
        if hasattr(type(x), "keys") and not hasattr(type(x), "iloc"):
            raise ProblemError(
                f"{n} must be a tree of arrays; got a {type(x).__name__}, whose arrays have names. Pass those that M "
                "reads, such as {'t': file['t']}"
            )
    given = zip(leaves, names, strict=True)
    found = [exchange.numbers(x, n) if isinstance(x, list) or hasattr(type(x), "iloc") else x for x, n in given]
    return trees.unflatten(treedef, found)


def _slices(treedef: Any, parts: list[tuple[str, Any]], total: int, rows: int) -> Iterator[Any]:
    """Trees of so many rows at a time of what has a name, and of all of the rest; no closure, which has no pickle."""
    for i, a in enumerate(range(0, total, rows)):
        b = min(a + rows, total)
        # nothing holds a chunk here
        yield trees.unflatten(treedef, [taken(x, a, b, 0, f"{name}, chunk {i},") if name else x for name, x in parts])


def _has_rows(x: Any) -> bool:
    return len(getattr(x, "shape", ())) > 0


class Chunk(NamedTuple):
    """Some rows of a level, on the backend; `y` is None where a function of theta gives it."""

    data: Tree
    y: Array | None
    weights: Array | None = None  # (m, 1) or (m, k)


def leading(chunk: Chunk) -> int:
    """Number of rows of a chunk; where y is a function of theta, that of the first array of its data."""
    return int(_of_rows(chunk.data, chunk.y).shape[0])


def _leading(data: Tree, y: Array | None) -> int | None:
    found = _of_rows(data, y)
    return None if found is None else int(found.shape[0])


def _of_rows(data: Tree, y: Array | None) -> Any:
    """The target of a chunk; where that is a function of theta, the first array of its data."""
    return y if y is not None else next((x for x in trees.leaves(data) if _has_rows(x)), None)


def _beginning(chunk: Chunk) -> Array:
    """A copy of a few rows: nothing holds a chunk."""
    x = _of_rows(chunk.data, chunk.y)
    return copied(x[: min(64, x.shape[0]), ...])


def _equal(x: Array, y: Array) -> bool:
    return x.shape == y.shape and bool(namespace_of(x).all(x == y))


class _Kind(NamedTuple):
    """What all chunks of a level have in common."""

    treedef: Any
    dtypes: dict[str, str]  # by path
    y: tuple[int, ...]  # trailing axes of the target: () or (k,)


class Remote(ABC):
    """A source whose chunks other processes hold: a pass goes to them. Iterating fetches them here."""

    @abstractmethod
    def __iter__(self) -> Iterator[Any]:
        """Chunks, as of any source."""

    @abstractmethod
    def walk(
        self,
        step: Any,
        merge: Any,
        name: str,
        compiler: Backend,
        like: Any,
        args: tuple[Any, ...],
        done: Callable[[], None],
    ) -> tuple[Any, int, int]:
        """The state of a pass that begins with zeros in the place of `like`; the numbers of rows and of chunks.

        ``step(chunk, name, backend, state, args)`` adds a chunk to a state, ``merge(backend, step.accumulation, a, b)``
        joins two, and both are called where the chunks are. `done` is called for each chunk.
        """


class Drawn:
    """The source of a mini-batch: a chunk that stands for all rows of this process, times the factor `scale`."""

    remote = None

    def __init__(self, name: str, scale: float, chunk: Chunk) -> None:
        self.name, self.scale, self._chunk = name, scale, chunk
        self.found: tuple[int, int] | None = None
        self.own: tuple[int, int] | None = None

    def __call__(self) -> Generator[Chunk, None, None]:
        """One pass."""
        yield self._chunk

    def confirm(self, rows: int, chunks: int) -> None:
        """Note what a pass found."""
        self.found = (rows, chunks)


class Stream:
    """Passes over the rows of one level: each chunk is checked, moved to the backend and counted.

    `name` is the prefix of messages, "", "lower " or "upper ". ``move(data, y, name, where, check)`` makes a
    chunk of the backend's arrays; `first` makes the first one, and may warn. `scope` makes the context manager of
    everything that is computed: what belongs to a thread in it holds in one that reads ahead.
    """

    def __init__(
        self,
        rows: RowChunks,
        name: str,
        first: Callable[..., Chunk],
        move: Callable[..., Chunk],
        scope: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        self.name = name
        self.found: tuple[int, int] | None = None  # rows of a whole pass, and chunks, in the process with most of them
        self.own: tuple[int, int] | None = None  # rows and chunks that this process waits for
        self.scale = 1.0
        self.shuffled = False  # whether passes that `chunk` began have begun with another chunk than `first`
        self._first: Array | None = None
        self._rows, self._move_first, self._move, self._scope = rows, first, move, scope
        self._kind: _Kind | None = None
        self._supply: Any = None
        self._under_way: Generator[Chunk, None, None] | None = None  # of `chunk`
        self._next = 0  # the number of its next chunk

    @property
    def remote(self) -> Remote | None:
        """The source, where other processes hold its chunks."""
        return self._rows.source if isinstance(self._rows.source, Remote) else None

    def __call__(self) -> Generator[Chunk, None, None]:
        """One pass."""
        return self._pass(self._move, ahead=True)

    def first(self) -> Chunk:
        """The first chunk, with which the others must agree."""
        with closing(self._pass(self._move_first)) as chunks:
            found = next(chunks)
        self._first = _beginning(found)
        return found

    def _pass(self, move: Callable[..., Chunk], ahead: bool = False) -> Generator[Chunk, None, None]:
        """One pass; holds no chunk while the next one is made. With `ahead` the source may be read ahead."""
        supply, i, found = self._start(ahead), 0, False
        try:
            while (item := next(supply, _END)) is not _END:
                item = self._moved(item, i, move)
                if item is not None:
                    found = True
                    yield item
                item = None
                i += 1
        finally:
            if isinstance(supply, Generator | Reader):
                supply.close()
        if not found:
            got = f"{i} without rows" if i else "none"
            raise ProblemError(f"the {self.name}source must yield at least one chunk with rows; got {got}")

    def chunk(self, i: int) -> Chunk:
        """Chunk i of a pass: the next one of the pass under way, or of a fresh one that is taken so far."""
        if self._under_way is None or self._next != i:
            self._under_way, self._next = self._pass(self._move), 0
        while True:
            found = next(self._under_way, None)
            if found is None:
                raise ProblemError(
                    f"the {self.name}source must yield as many chunks on every pass; got {self._next} and more before"
                )
            if self._next == 0 and self._first is not None and not self.shuffled:
                self.shuffled = not _equal(_beginning(found), self._first)
            self._next += 1
            if self._next > i:
                return found

    def drawn(self, i: int) -> Drawn:
        """Chunk i as a mini-batch; begins again after the last one, where other processes have more."""
        assert self.own is not None  # an algorithm begins with a certificate
        rows, chunks = self.own
        chunk = self.chunk(i % chunks)
        return Drawn(self.name, (rows / leading(chunk)) ** 0.5, chunk)

    def confirm(self, rows: int, chunks: int) -> None:
        """Check, at the end of a pass, that it yielded as many rows as the passes before."""
        if self.found is not None and self.found[0] != rows:
            raise ProblemError(
                f"the {self.name}source must yield the same rows on every pass; got {rows} rows in {chunks} chunks "
                f"on this pass and {self.found[0]} in {self.found[1]} before"
            )
        self.found = (rows, chunks)

    def _start(self, ahead: bool) -> Iterator[Any]:
        source = self._rows.source
        ahead = ahead and isinstance(source, ReadAhead)
        source = source.source if isinstance(source, ReadAhead) else source
        given = source() if callable(source) else source
        if not isinstance(given, Iterable):
            raise ProblemError(f"the {self.name}source must return an iterable of chunks; got {type(given).__name__}")
        supply = iter(given)
        if supply is self._supply:
            kept = getattr(given, "persistent_workers", False)
            raise ProblemError(
                f"the {self.name}source must start a fresh pass whenever it is called; got the same "
                f"{type(supply).__name__} twice{'. Make the DataLoader with persistent_workers=False' if kept else ''}"
            )
        self._supply = supply
        return Reader(supply, self._scope) if ahead else supply

    def _moved(self, item: Any, i: int, move: Callable[..., Chunk]) -> Chunk | None:
        """A chunk on the backend, None where it has no rows: it adds nothing, and nothing need be like in others."""
        data, y = self._split(item, i)
        data = exchange.arrays(data, f"{self.name}data of chunk {i}")
        if _leading(data, y) == 0:
            return None
        self._check(data, y, i)
        return move(data, y, self.name, f", chunk {i},", self.found is None)

    def _split(self, item: Any, i: int) -> tuple[Tree, Array | None]:
        if self._rows.y is not None:
            return item, None
        if not (isinstance(item, tuple | list) and len(item) == 2):
            raise ProblemError(f"{self.name}chunk {i} must be a pair (data, y); got {checks.described(item)}")
        data, y = item[0], exchange.numbers(item[1], f"{self.name}y, chunk {i},")
        if not (trees.is_array(y) and y.ndim in (1, 2)):
            raise ProblemError(
                f"{self.name}chunk {i}: y must be an array of shape (rows,) or (rows, k); got {checks.described(y)}"
            )
        return data, y

    def _check(self, data: Tree, y: Array | None, i: int) -> None:
        kind = _kind(data, y)
        if self._kind is None:
            self._kind = kind
        want, where = self._kind, f"{self.name}chunk {i}"
        if kind.treedef != want.treedef or set(kind.dtypes) != set(want.dtypes):
            raise ProblemError(
                f"{where}: data must have the structure of chunk 0, {list(want.dtypes)}; got {list(kind.dtypes)}"
            )
        for path, dtype in kind.dtypes.items():
            if dtype != want.dtypes[path]:
                raise ProblemError(
                    f"{where}: {path} must be {want.dtypes[path]}, as in chunk 0; got {dtype}. Convert all chunks to "
                    "one float dtype: where a file has whole numbers alone, they are read as integers"
                )
        if y is not None and kind.y != want.y:
            shape = str(("rows", *want.y)).replace("'", "")
            raise ProblemError(f"{where}: y must have shape {shape}, as in chunk 0; got {tuple(y.shape)}")


def _kind(data: Tree, y: Array | None) -> _Kind:
    leaves, treedef = trees.flatten(data)
    named = dict(zip(trees.paths(data, "data"), leaves, strict=True)) | ({} if y is None else {"y": y})
    dtypes = {path: dtype_name(x) for path, x in named.items() if trees.is_array(x)}
    return _Kind(treedef, dtypes, () if y is None else tuple(y.shape[1:]))
