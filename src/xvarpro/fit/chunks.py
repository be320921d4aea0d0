"""Batches of more problems than memory holds: in chunks, each of which may be kept in a file."""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import replace
from functools import partial
from numbers import Integral
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from xvarpro.backends import get, to_numpy
from xvarpro.backends.registry import owner
from xvarpro.batch.driver import put
from xvarpro.batch.lift import members, single
from xvarpro.batch.prepare import batch_size
from xvarpro.core import trees
from xvarpro.core.checks import pickled
from xvarpro.core.namespace import device, namespace_of
from xvarpro.core.status import Bar
from xvarpro.core.struct import Tree
from xvarpro.driver.evaluate import project
from xvarpro.driver.transfer import destination
from xvarpro.errors import ProblemError
from xvarpro.fit.batch_result import NUMBERS, PER_PROBLEM, ManyResult
from xvarpro.fit.missing import chosen
from xvarpro.fit.solve import solve_on
from xvarpro.problem.problem import Problem
from xvarpro.results.files import reading, write_atomically
from xvarpro.results.recipe import Fingerprints, hashes
from xvarpro.sets import each

TOGETHER = 1000  # problems of a series whose errors are computed together
AHEAD = 2  # chunks for each processor of this machine that are handed out before their turn
WRITER = "solve_many(..., checkpoint=)"
ANEW = "Take another folder for checkpoint=, or remove this one"


def _here(fun: Callable[..., Any], *args: Any, **options: Any) -> Future[Any]:
    """A task that has ended, in this process, when it is handed out."""
    task = Future[Any]()
    task.set_result(fun(*args, **options))
    return task


def in_chunks(
    solve_many: Callable[..., ManyResult],
    problem: Problem,
    theta0: Tree,
    over: Tree,
    size: Any,
    folder: str | PathLike[str] | None,
    executor: Executor | None,
    follow: bool,
    progress: bool | None,
    options: dict[str, Any],
) -> ManyResult:
    """See `solve_many`: what a chunk holds in arrays on disk, such as memory maps, is read when its turn comes."""
    began = time.perf_counter()
    given = destination(theta0, None, None, None)
    b, tasks = batch_size(given.leaves, given.names), deque[Any]()
    whole: Any = None  # the answers on the host, at one place from the start: pieces would lie between what is freed
    start: Tree = None
    last: Any = None
    read, same = 0, False  # problems in files; whether the model has been found to be that of the files
    _check_lengths(problem, b)
    if not isinstance(size, Integral) or isinstance(size, bool) or size < 1:
        raise ProblemError(f"chunks, or order, must be a whole number > 0 of problems; got {size!r}")
    to = destination(theta0, options["backend"], None, options["dtype"])
    where = {"backend": to.backend.name, "dtype": to.dtype}  # which count as they are, however they were asked for
    hand_out, ahead = (executor.submit, AHEAD * (os.cpu_count() or 1)) if executor else (_here, 1)
    if folder is not None:
        Path(folder).mkdir(parents=True, exist_ok=True)

    def begin(picked: slice) -> None:
        nonlocal start, same, read
        _trim()
        part, sets = members(problem, picked), members(over, picked)
        own = trees.map_leaves(lambda x: x[picked, ...], theta0)
        start = _next(last, start, own, sets) if follow and last else own
        kept: Any = None
        if folder is not None:
            stamp = {**Fingerprints(part, start), **hashes(sets, "over")}
            stamp |= {name: repr(x) for name, x in options.items()} | where
            kept = Path(folder) / f"problems_{picked.start:012d}.npz", stamp
        if kept is not None and kept[0].exists():
            path, stamp = kept
            found = _read(path, stamp, start)
            same = same or _is_model(part, sets, found, options, path)
            read += len(found)
            tasks.append((picked, None, _here(lambda: found), bar.skip))
        else:
            tasks.append((picked, kept, hand_out(solve_many, part, start, sets, progress=False, **options), bar.update))

    def finish() -> None:
        """The first of the tasks; one that is done here is written before the next chunk is read."""
        nonlocal whole, last
        picked, kept, task, advance = tasks.popleft()
        with pickled():
            last = replace(task.result(), _problem=None, _prepared=None, _fits=None)
        if kept is not None:
            _write(last, *kept)
        whole = put(whole, picked, {name: getattr(last, name) for name in PER_PROBLEM}, b)
        advance(len(last))

    with Bar(b, progress, "problem") as bar:
        for i in range(0, max(b, 1), int(size)):
            while len(tasks) >= ahead:
                finish()
            begin(slice(i, min(i + int(size), b)))
        while tasks:
            finish()
    layout, host = given.layout, get("numpy")
    whole |= {name: layout.array(whole[name], host) for name in NUMBERS[1:]}
    whole["theta"] = layout.to_caller(tuple(trees.leaves(whole["theta"])), host)
    seconds: Any = {"seconds": time.perf_counter() - began, "setup_seconds": 0.0, "read": read}
    return replace(last, **whole, **seconds, over=over, chunks=max(int(size), follow * TOGETHER), _problem=problem)


def _trim() -> None:
    """Return what is freed to the system, where the C library can: its heap keeps holes as large as a chunk or two."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def _next(before: ManyResult, start: Tree, own: Tree, over: Tree) -> Tree:
    """Where a chunk ended, or began where that was without success, as starts of another one, which may be shorter.

    Where each problem has bounds of its own they are brought into those of the problem that starts there.
    """
    ends = trees.map_leaves(partial(chosen, before.success), before.theta, start)
    ends = trees.map_leaves(lambda x, y: x[: y.shape[0], ...], ends, own)
    if not any(map(each.is_each, each.leaves(over))):
        return ends
    b = trees.leaves(ends)[0].shape[0]
    inside = [project(trees.map_leaves(lambda x, i=i: x[i, ...], ends), single(over, i)) for i in range(b)]
    return trees.map_leaves(lambda *x: namespace_of(x[0]).stack(x, axis=0), *inside)


def _check_lengths(problem: Problem, b: int) -> None:
    """Check that what has an entry for each problem has `b`, which a solve of some of them cannot see."""
    marked = [x.array for x in each.leaves(problem) if each.is_each(x)]
    for x in [*marked, *(level.y for level in problem.levels if trees.is_array(level.y))]:
        if not (shape := tuple(getattr(x, "shape", ()))) or shape[0] not in (1, b):
            what = f"y, and what xv.Each marks, must have b = {b} entries, as theta0, or 1 for all"
            raise ProblemError(f"{what}; got shape {shape}")


def _write(found: ManyResult, path: Path, stamp: dict[str, str]) -> None:
    record = {"stamp": stamp, "method": found.method, "provenance": found.provenance}
    arrays: Any = {name: to_numpy(getattr(found, name)) for name in PER_PROBLEM[1:]}
    arrays |= {f"theta_{i}": to_numpy(x) for i, x in enumerate(trees.leaves(found.theta))}
    text = np.array(json.dumps(record, default=str))
    write_atomically(path, lambda file: np.savez(file, record=text, **arrays))


def _is_model(problem: Problem, over: Tree, found: ManyResult, options: dict[str, Any], path: Path) -> bool:
    """Whether functions, which have no fingerprint, give the objective and w that a file has; an error where not.

    By one evaluation, of the best determined problem of a chunk; False where none has an objective.
    """
    value, condition, w = map(to_numpy, (found.value, found.condition, found.w))
    rank = np.where(np.isfinite(value) & np.isfinite(condition), condition, np.inf)
    if not np.isfinite(rank).any():
        return False
    i = int(np.argmin(rank))
    place = {name: options[name] for name in ("backend", "device", "dtype")}
    theta = trees.map_leaves(lambda x: x[i, ...], found.theta)
    now = solve_on(single(problem, i), theta, single(over, i), max_iter=0, progress=False, **place)
    eps, (v, own) = float(np.finfo(w.dtype).eps), map(to_numpy, (now.value, now.w))
    size = max(abs(float(value[i])), abs(float(v)))  # an objective is off by rounding as `Objective.rounding` has it
    close = own.shape == w.shape[1:] and abs(v - value[i]) <= 4e2 * eps * (size + (size * now.recipe.scale) ** 0.5)
    if not close or np.linalg.norm(own - w[i]) > eps**0.5 * rank[i] * np.linalg.norm(w[i]):
        raise ProblemError(
            f"{path} must be of the same model functions; got others: at the theta of its problem {i} there is "
            f"{_end(v, own)}, and it has {_end(value[i], w[i])}. {ANEW}"
        )
    return True


def _end(value: np.ndarray, w: np.ndarray) -> str:
    return f"an objective of {value:.10g} with a w of shape {w.shape} and length {np.linalg.norm(w):.10g}"


def _read(path: Path, stamp: dict[str, str], start: Tree) -> ManyResult:
    leaves, treedef = trees.flatten(start)
    backend, place = owner(leaves[0]), device(leaves[0])
    with reading(path, WRITER, ". Remove this file alone: its problems are solved again") as file:
        record = json.loads(file.text("record"))
        changed = sorted(name for name in {*stamp, *record["stamp"]} if stamp.get(name) != record["stamp"].get(name))
        shapes = [None if changed else tuple(x.shape) for x in leaves]
        theta = [file.array(f"theta_{i}", shape=shape) for i, shape in enumerate(shapes)]
        arrays: dict[str, Any] = {name: file[name] for name in PER_PROBLEM[1:]}
    if changed:
        then, now = arrays["value"].shape[0], leaves[0].shape[0]
        what = ", ".join(changed) if then == now else f"a chunk of {then} problems, where this call has {now}"
        added = then < now and path == max(path.parent.glob("problems_*.npz"))
        raise ProblemError(
            f"{path} must be of the same problems, starts and options, in chunks of the same size; got others: {what}. "
            f"{ANEW}{', or, where problems were added, its last file' if added else ''}"
        )
    return ManyResult(
        theta=trees.unflatten(treedef, [backend.asarray(x, device=place) for x in theta]),
        **arrays,
        method=record["method"],
        provenance=record["provenance"],
        seconds=0.0,
        setup_seconds=0.0,
    )
