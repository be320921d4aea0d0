"""Checkpoints: what a run needs to go on to the same bits, its file, when it is written, and what must not change."""

from __future__ import annotations

import hashlib
import json
import math
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike
from typing import Any

import numpy as np

from xvarpro._version import __version__
from xvarpro.backends import to_numpy
from xvarpro.backends.registry import is_deterministic
from xvarpro.core import trees
from xvarpro.core.checks import described
from xvarpro.core.namespace import copied, dtype_name
from xvarpro.core.struct import Tree
from xvarpro.driver.run import RECORD, WORK, Run
from xvarpro.errors import ProblemError, warn_caller
from xvarpro.problem.problem import Problem
from xvarpro.problem.row_chunks import Stream
from xvarpro.results.outcome import Outcome
from xvarpro.results.recipe import Recipe, hashes

FORMAT = 3


@dataclass(frozen=True)
class Checkpoint:
    """A position of a run, in the memory of the processor."""

    given: dict[str, str]  # what must not change, by name: arrays and numbers as hashes, the rest as text
    leaves: list[np.ndarray]  # the algorithm's state, the best iterate and the size of the objective
    # what a file of NumPy does not keep of each: whether it was an array, NumPy's scalar or a Python number, whose
    # powers are other code
    kinds: list[str]
    table: np.ndarray  # the trace, (n, 13): see `Record`
    numbers: np.ndarray  # work that the state does not count, restarts, the objective at the last one, a callback due

    @classmethod
    def of(cls, run: Run, given: dict[str, str]) -> Checkpoint:
        """The last position of a run."""
        at = run.position
        found = trees.leaves((at.state, run.operands[1]))
        host = [to_numpy(x) if trees.is_array(x) else np.asarray(x) for x in found]
        numbers = np.array([*at.work, at.restarts, at.restarted, at.unseen])
        return cls(given, host, list(map(_kind, found)), run.record.table(at.record), numbers)

    def save(self, path: str | PathLike[str]) -> None:
        """Write it to a file, whole or not at all."""
        from xvarpro.results.files import write_atomically

        arrays = {f"state_{i}": x for i, x in enumerate(self.leaves)} | {"table": self.table, "numbers": self.numbers}
        meta = np.array(json.dumps({"format": FORMAT, "given": self.given, "kinds": self.kinds}))
        write_atomically(path, lambda file: np.savez(file, allow_pickle=False, meta=meta, **arrays))

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Checkpoint:
        """Read a file of `save`; a ProblemError where it is none, is damaged or has another format."""
        from xvarpro.results.files import reading

        with reading(path, "checkpoint=") as file:
            meta = json.loads(file.text("meta"))
            if "recipe" in meta:
                raise ProblemError(
                    "it is a result, a file of Result.save. Start from its theta, with "
                    "xv.solve(problem, xv.Result.load(path, like=theta0).theta, ...)"
                )
            if meta["format"] != FORMAT:
                raise ProblemError(f"it has format {meta['format']}, and this version reads {FORMAT}")
            given = {str(name): str(x) for name, x in meta["given"].items()}
            kinds = [str(kind) for kind in meta["kinds"]]
            leaves = [file.array(f"state_{i}") for i in range(len(kinds))]
            table = file.array("table", "f", (None, 2 + len(RECORD)))
            return cls(given, leaves, kinds, table, file.array("numbers", "f", (3 - WORK,)))

    def restore(self, run: Run, given: dict[str, str]) -> None:
        """Put a run that has started at its theta0 where this one was; a ProblemError for one of another solve."""
        names = {**self.given, **given}
        if self.given.get("backend") != given["backend"]:
            del names["deterministic"]  # which some backends are by themselves
        if changes := [change for name in names if (change := self._change(name, given))]:
            raise ProblemError(
                f"a solve goes on with the arguments that it had, but {'; '.join(changes)}. Pass what it had, or start "
                "a new solve from the theta of its result"
            )
        then, now = self.table[0, 2], run.record.row[0]
        rounding = 1e4 * float(np.finfo(run.prepared.dtype).eps)
        close = math.isclose(then, now, rel_tol=rounding, abs_tol=rounding * run.scale)
        if not close and not (math.isnan(then) and math.isnan(now)):
            raise ProblemError(
                f"a solve goes on with the model functions that it had, but the objective at theta0 is {now:.10g} and "
                f"was {then:.10g}. Start a new solve from the theta of its result"
            )
        fresh, treedef = trees.flatten((run.state, run.operands[1]))
        if [_shape(x) for x in fresh] != [_shape(x) for x in self.leaves]:
            raise ProblemError("the state of the algorithm has other shapes or dtypes than in this solve: start anew")
        made = [_leaf(x, kind, run) for x, kind in zip(self.leaves, self.kinds, strict=True)]
        state, floor = trees.unflatten(treedef, made)
        *work, restarts, restarted, unseen = self.numbers.tolist()
        run.resume(state, floor, self.table, work, int(restarts), restarted, bool(unseen))

    def _change(self, name: str, given: dict[str, str]) -> str:
        then, now = self.given.get(name, "missing"), given.get(name, "missing")
        if then == now:
            return ""
        if _HASH.fullmatch(then) and _HASH.fullmatch(now):
            return f"{name} has other values"
        then, now = ("given" if _HASH.fullmatch(x) else f"{x:.200}" for x in (then, now))
        return f"{name} is {now} and was {then}"


_HASH = re.compile("[0-9a-f]{32}")


def arguments(problem: Problem, recipe: Recipe, run: Run) -> dict[str, str]:
    """What must not change when a run goes on: see `Checkpoint.given`."""
    functions = zip(trees.paths(problem, ""), trees.leaves(problem), strict=True)
    found = {
        **{name.lstrip("."): getattr(f, "__qualname__", type(f).__name__) for name, f in functions if callable(f)},
        **recipe.fingerprints,
        **hashes(recipe.over, "over"),
        **hashes(recipe.algorithm, "algorithm"),
        "over": _text(recipe.over),
        "algorithm": _text(recipe.algorithm),
        "tol": repr(run.tol),
        "backend": run.prepared.backend.name,
        "deterministic": str(is_deterministic(run.prepared.compiler)),
        "dtype": run.prepared.dtype,
        "xvarpro": __version__,
    }
    group = run.prepared.group
    return found if group is None else _of_all([json.loads(x) for x in group.texts(json.dumps(found))])


def warn_of_order(problem: Problem) -> None:
    """Warn where mini-batches come in another order on every pass: a solve that is resumed takes others."""
    sources = [getattr(level.y, "source", None) for level in problem.levels]
    if any(isinstance(source, Stream) and source.shuffled for source in sources):
        warn_caller(
            "the chunks came in another order on this pass than on the first, as of a loader that shuffles: a solve "
            "that is resumed from the checkpoint takes other mini-batches than this one. For the same bits mark data "
            "in memory xv.Samples, or give chunks in one order",
            RuntimeWarning,
        )


def _of_all(parts: list[dict[str, str]]) -> dict[str, str]:
    """What several processes have: a hash where it differs, such as that of the rows of each."""
    texts = {name: [part.get(name, "") for part in parts] for name in sorted({name for part in parts for name in part})}
    return {
        name: found[0] if len(set(found)) == 1 else hashlib.sha256(repr(found).encode()).hexdigest()[:32]
        for name, found in texts.items()
    }


def continuation(run: Run, over: Tree, given: dict[str, str]) -> tuple[Tree, Checkpoint, dict[str, Any]]:
    """Start and position of a run, and arguments that it had."""
    prepared = run.prepared
    had = {"over": over, "algorithm": run.algorithm, "tol": run.tol}
    had |= {"backend": prepared.compiler, "device": prepared.device}
    return prepared.to_caller(prepared.theta), Checkpoint.of(run, given), had


def going_on(fit: Outcome) -> tuple[Tree, Checkpoint, dict[str, Any]]:
    """The `continuation` of a result, or a ProblemError where it has none."""
    if fit._continuation is None:
        raise ProblemError(
            "a solve goes on from a result of the same process; this one comes from a file or another process. Use "
            "checkpoint= and resume=, or start from its theta"
        )
    return fit._continuation()


def _text(x: object) -> str:
    return re.sub(" at 0x[0-9a-fA-F]+", "", repr(x))  # of functions


def _kind(x: object) -> str:
    # powers of a NumPy scalar and of an array without axes are other code
    return "array" if trees.is_array(x) and not isinstance(x, np.generic) else type(x).__name__


def _shape(x: Any) -> tuple[Any, ...]:
    return (x.shape, dtype_name(x)) if trees.is_array(x) else ((), np.asarray(x).dtype.name)


def _leaf(x: np.ndarray, kind: str, run: Run) -> Any:
    """A leaf as it was; an array in memory of the framework's own, whose address some sums follow."""
    if kind == "array":
        backend = run.prepared.backend
        return copied(backend.asarray(x, device=run.prepared.device))
    if x.ndim or kind not in (x.dtype.name, "bool", "int", "float"):
        raise ProblemError(f"the state of a checkpoint holds a {kind} where its file has {described(x)}")
    return x[()] if kind == x.dtype.name else x.item()


class Schedule:
    """When a run is written: at the start, every so many iterations, an int, or seconds, a float, and at the end.

    Parameters
    ----------
    write : callable
        Called to write.
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
        write: Callable[[], None],
        every: float,
        done: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._write, self._every, self._clock = write, every, clock
        self._done, self._time = done, clock()
        write()

    def left(self, done: int) -> int:
        """Iterations that may pass before the next time."""
        return self._done + self._every - done if isinstance(self._every, int) else sys.maxsize

    def after(self, done: int) -> None:
        """Write if it is time."""
        passed = done - self._done if isinstance(self._every, int) else self._clock() - self._time
        if passed >= self._every:
            self.now()
            self._done, self._time = done, self._clock()

    def now(self) -> None:
        """Write."""
        try:
            self._write()
        except OSError as error:
            warn_caller(f"the checkpoint was not written, and the last one stays: {error}", RuntimeWarning)
