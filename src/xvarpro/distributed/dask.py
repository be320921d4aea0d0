"""Rows on the workers of a Dask cluster: passes go to the chunks, and what comes back is small."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError
from contextlib import contextmanager
from itertools import islice
from queue import Empty, SimpleQueue
from typing import Any

from xvarpro.backends import Backend, registry
from xvarpro.core import trees
from xvarpro.core.checks import described, number
from xvarpro.core.namespace import device, dtype_name
from xvarpro.core.struct import Tree
from xvarpro.driver.transfer import Transfer
from xvarpro.errors import GroupError, ProblemError, needs
from xvarpro.objective.reductions import tree
from xvarpro.problem.row_chunks import Remote, RowChunks

with needs("xv.distributed.dask_rows", "dask"):
    import dask
    from distributed import Client, Future, KilledWorker, default_client
    from distributed.comm import CommClosedError

TIMEOUT = 1800.0  # seconds, as of torch.distributed
ASKING = 10.0  # seconds for an answer of the scheduler that only a message needs


def dask_rows(data: Tree, y: Any, client: Client | None = None, timeout: float | None = TIMEOUT) -> RowChunks:
    """Rows of Dask arrays: every chunk stays on the worker that made it.

    Parameters
    ----------
    data : pytree
        Dask arrays with one row per row of M. The rest is part of every chunk.
    y : dask.array.Array, shape (m,) or (m, k)
        Target. Its chunks of rows are those of the passes; `data` are cut as it is.
    client : distributed.Client, optional
        Of the cluster; the current one by default.
    timeout : float or None
        Seconds without any task ending after which a pass ends in a `GroupError`; None waits for ever.

    Returns
    -------
    RowChunks
        For any backend that the workers have. Chunks that are lost with a worker are made again.

    Raises
    ------
    ProblemError
        There is no cluster, y is no Dask array, arrays have different numbers of rows or unknown ones, or timeout is no
        number > 0.

    Examples
    --------
    >>> import dask.array as da, numpy as np, xvarpro as xv
    >>> from distributed import Client
    >>> def M(theta, t):
    ...     xp = xv.array_namespace(theta)
    ...     return xp.exp(-xp.expand_dims(t, axis=1) * theta)
    >>> t = da.linspace(0.0, 2.0, 4000, chunks=1000)
    >>> with Client(processes=False, dashboard_address=":0") as client:
    ...     problem = xv.separable(M, xv.distributed.dask_rows(t, 2.0 * da.exp(-3.0 * t)))
    ...     fit = xv.solve(problem, np.array([1.0]), over=xv.sets.Box(0.0, 10.0))
    >>> round(float(fit.theta[0]), 4)
    3.0
    """
    if not _is_lazy(y):
        raise ProblemError(f"y must be a Dask array; got {described(y)}. Make it one by dask.array.from_array")
    check_timeout(timeout)
    leaves, treedef = trees.flatten((data, y))
    names = [*trees.paths(data, "data"), "y"]
    rows = {name: x.shape[0] for name, x in zip(names, leaves, strict=True) if _is_lazy(x)}
    if len(set(map(str, rows.values()))) != 1 or y.shape[0] != y.shape[0]:  # the length of a chunk may be unknown: NaN
        listed = ", ".join(f"{name} has {n}" for name, n in rows.items())
        raise ProblemError(
            f"data and y must be Dask arrays with the same, known number of rows; got {listed}. Give each the others' "
            "chunks, or call compute_chunk_sizes()"
        )
    blocks = [_blocks(x, y.chunks[0]) if _is_lazy(x) else [x] * y.numblocks[0] for x in leaves]
    # chunks of which a selection left no row add nothing
    some = [parts for parts, size in zip(zip(*blocks, strict=True), y.chunks[0], strict=True) if size]
    if not some:
        raise ProblemError(f"y must have rows; got {len(y.chunks[0])} chunks without any")
    made = [dask.delayed(_chunk)(treedef, *parts) for parts in some]
    client = client or current()
    return RowChunks(OnWorkers(client.compute(made), client, timeout))


class OnWorkers(Remote):
    """Chunks, pairs (data, y), that the workers of a cluster hold, or make again where they are lost."""

    def __init__(self, chunks: list[Future], client: Client, timeout: float | None) -> None:
        self._chunks, self._client, self._timeout = chunks, client, timeout

    def _check_open(self) -> None:
        if self._client.status == "closed":
            raise ProblemError(
                "the client that these chunks came from is closed: close it later, or attach a problem from a new one"
            )

    def __iter__(self) -> Iterator[tuple[Tree, Any]]:
        self._check_open()
        for _, chunk in ended(self._client, "chunk", iter(self._chunks), 1, self._timeout):
            yield result_of(chunk, self._timeout)

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
        self._check_open()
        client, framework, dtype = self._client, compiler.name, dtype_name(args[0][0])
        # a task and no scattered value: one that is lost with its worker is made again
        given = client.submit(_same, trees.map_arrays(registry.to_numpy, (like, args)), pure=False)
        keys = [chunk.key for chunk in self._chunks]
        with reached():
            places = client.sync(client.scheduler.who_has, keys=keys, callback_timeout=self._timeout)
        found = []
        for i, chunk in enumerate(self._chunks):
            where = places.get(chunk.key)
            there = {"workers": where, "allow_other_workers": True} if where else {}  # else it is on its way
            task = _on_worker, step, f"{name}chunk {i}", framework, dtype, chunk, given
            found.append(client.submit(*task, **there, pure=False))

        def merged(a: Future, b: Future) -> Future:
            return client.submit(_merged, merge, step.accumulation, framework, dtype, a, b, pure=False)

        last = tree(merged, found)
        for _ in ended(client, f"{name}chunk", iter(found), len(found), self._timeout):
            done()
        ((_, last),) = ended(client, f"{name}merge", iter([last]), 1, self._timeout)
        total, rows = result_of(last, self._timeout)
        first = trees.partition(like)[0][0]
        owner, where = registry.owner(first), device(first)
        return trees.map_arrays(lambda x: owner.asarray(x, device=where), total), rows, len(found)


# -- tasks: functions of the module, which are sent by name ------------------------------------------------------------


def _same(x: Any) -> Any:
    return x


def _chunk(treedef: Any, *leaves: Any) -> Any:
    return trees.unflatten(treedef, leaves)


def _on_worker(step: Any, name: str, framework: str, dtype: str, chunk: tuple[Tree, Any], given: Any) -> Any:
    """What a pass finds in one chunk, from a state of zeros, as NumPy's arrays; and the number of rows."""
    backend = registry.get(framework)
    with backend.scope(dtype):
        move = Transfer(backend, dtype, None, warn=False)
        data, y = chunk
        like, args = trees.map_arrays(backend.asarray, given)
        arrays, skeleton = trees.partition(like)
        state = skeleton.fill(trees.scaled(0.0, arrays))
        found, rows = step(move.chunk(step, data, y, "", f" of {name}"), name, backend, state, args)
        return trees.map_arrays(backend.to_numpy, found), rows


def _merged(merge: Any, accumulation: Any, framework: str, dtype: str, *parts: tuple[Any, int]) -> Any:
    backend = registry.get(framework)
    with backend.scope(dtype):
        states = [trees.map_arrays(backend.asarray, state) for state, _ in parts]
        found = merge(backend, accumulation, *states)
        return trees.map_arrays(backend.to_numpy, found), sum(rows for _, rows in parts)


# -- what may happen to a cluster --------------------------------------------------------------------------------------


def check_timeout(timeout: float | None) -> None:
    """Check seconds, or None."""
    if not (timeout is None or number(timeout) > 0):
        raise ProblemError(f"timeout must be seconds > 0, or None to wait for ever; got {timeout!r}")


def ended(
    client: Client, what: str, tasks: Iterator[Future], ahead: int, timeout: float | None
) -> Iterator[tuple[int, Future]]:
    """Tasks as they end, with their numbers: so many are taken first, and one for each that has ended."""
    numbered, waiting = enumerate(tasks), dict[Future, int]()
    back: SimpleQueue[Future] = SimpleQueue()

    def take(count: int) -> None:
        for i, task in islice(numbered, count):
            waiting[task] = i
            task.add_done_callback(back.put)

    take(ahead)
    while waiting:
        try:
            task = back.get(timeout=timeout)
        except Empty:
            raise GroupError(
                f"no {what} came back within {timeout:g} s: {_places(client, what, waiting)}. Restart workers "
                "that hang or are gone, make smaller chunks, or give timeout= more seconds"
            ) from None
        yield waiting.pop(task), task
        take(1)


def _places(client: Client, what: str, waiting: Mapping[Future, int]) -> str:
    """Where tasks are, as far as the scheduler knows."""
    try:
        found = client.sync(client.scheduler.processing, workers=None, callback_timeout=ASKING)
    except Exception as error:
        return f"the scheduler does not answer ({type(error).__name__})"
    keys = {key: worker for worker, keys in found.items() for key in keys}
    by_place: dict[str, list[str]] = {}
    for task, i in sorted(waiting.items(), key=lambda item: item[1]):
        place = keys.get(task.key, "no worker (all are gone, or paused since their memory and disks are full)")
        by_place.setdefault(place, []).append(str(i))
    return "; ".join(f"{what} {', '.join(numbers)} on {place}" for place, numbers in by_place.items())


def result_of(future: Future, timeout: float | None) -> Any:
    """What a task returned; what it raised is raised here."""
    with reached(future):
        return future.result(timeout)


@contextmanager
def reached(task: Future | None = None) -> Iterator[None]:
    """Say of a cluster that is lost what to do."""
    try:
        yield
    except KilledWorker as error:
        raise GroupError(
            f"workers of the cluster died again and again in the same task, perhaps for want of memory: {error}. Make "
            "smaller chunks, or give workers more memory"
        ) from error
    except (CancelledError, CommClosedError, TimeoutError) as error:
        if task is not None and task.status == "error":  # of its own
            raise
        reason = str(error).partition("\n")[0] or "it does not answer"
        raise GroupError(
            f"the connection to the cluster was lost ({type(error).__name__}: {reason}). Connect a client and make the "
            "problem anew; resume= goes on from a checkpoint"
        ) from error


def _is_lazy(x: Any) -> bool:
    return hasattr(x, "__dask_graph__") and hasattr(x, "chunks")


def _blocks(x: Any, rows: tuple[int, ...]) -> list[Any]:
    """Delayed blocks of these numbers of rows."""
    whole = {axis: -1 for axis in range(1, x.ndim)}
    return list(x.rechunk({0: rows, **whole}).to_delayed().ravel())


def current() -> Client:
    """The client of the cluster at hand."""
    try:
        return default_client()
    except ValueError as error:
        raise ProblemError(
            "Dask arrays need a cluster; got none. Start one by client = distributed.Client(), which takes the address "
            "of a scheduler too"
        ) from error
