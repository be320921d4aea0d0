"""Batches of more problems than memory holds: in chunks, each of which may be kept in a file."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from numbers import Integral
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from xvarpro.backends import owner, to_numpy
from xvarpro.batch.lift import members
from xvarpro.batch.prepare import batch_size
from xvarpro.core import trees
from xvarpro.core.namespace import device
from xvarpro.core.status import Bar
from xvarpro.core.struct import Tree
from xvarpro.driver.transfer import destination
from xvarpro.errors import ProblemError
from xvarpro.fit.batch_result import PER_PROBLEM, ManyResult, joined
from xvarpro.problem.problem import Problem
from xvarpro.results.files import reading, write_atomically
from xvarpro.results.recipe import Fingerprints, hashes

WRITER = "solve_many(..., checkpoint=)"


def in_chunks(
    solve_many: Callable[..., ManyResult],
    problem: Problem,
    theta0: Tree,
    over: Tree,
    size: Any,
    folder: str | PathLike[str] | None,
    progress: bool | None,
    options: dict[str, Any],
) -> ManyResult:
    """See `solve_many`: what a chunk holds in arrays on disk, such as memory maps, is read when its turn comes."""
    began = time.perf_counter()
    given = destination(theta0, None, None, None)
    b, parts = batch_size(given.leaves, given.names), list[ManyResult]()
    if folder is not None:
        Path(folder).mkdir(parents=True, exist_ok=True)
    with Bar(b, progress, "problem") as bar:
        for picked in slices(b, size):
            part, start = members(problem, picked), trees.map_leaves(lambda x, s=picked: x[s, ...], theta0)
            sets = members(over, picked)

            def solved(part: Problem = part, start: Tree = start, sets: Tree = sets) -> ManyResult:
                return solve_many(part, start, sets, progress=False, **options)

            if folder is None:
                found = solved()
            else:
                stamp = {**Fingerprints(part, start), **hashes(sets, "over"), "options": repr(options)}
                found = _kept(Path(folder) / f"problems_{picked.start:012d}.npz", stamp, start, solved)
            parts.append(replace(found, _problem=None, _prepared=None, _fits=None))
            bar.update(picked.stop - picked.start)
    whole = joined(parts, time.perf_counter() - began)
    return replace(whole, over=over, chunks=int(size), _problem=problem)


def slices(b: int, size: Any) -> Iterator[slice]:
    """Of so many problems each, but for the last one."""
    if not isinstance(size, Integral) or isinstance(size, bool) or size < 1:
        raise ProblemError(f"chunks must be a whole number > 0 of problems that are solved together; got {size!r}")
    return (slice(i, min(i + int(size), b)) for i in range(0, b, int(size)))


def _kept(path: Path, stamp: dict[str, str], start: Tree, solved: Callable[[], ManyResult]) -> ManyResult:
    """The result of a chunk, from its file if there is one."""
    if path.exists():
        return _read(path, stamp, start)
    found = solved()
    record = {"stamp": stamp, "method": found.method, "provenance": found.provenance}
    arrays: Any = {name: to_numpy(getattr(found, name)) for name in PER_PROBLEM}
    arrays |= {f"theta_{i}": to_numpy(x) for i, x in enumerate(trees.leaves(found.theta))}
    text = np.array(json.dumps(record, default=str))
    write_atomically(path, lambda file: np.savez(file, record=text, **arrays))
    return found


def _read(path: Path, stamp: dict[str, str], start: Tree) -> ManyResult:
    leaves, treedef = trees.flatten(start)
    backend, place = owner(leaves[0]), device(leaves[0])
    with reading(path, WRITER) as file:
        record = json.loads(file.text("record"))
        theta = [file.array(f"theta_{i}", shape=tuple(x.shape)) for i, x in enumerate(leaves)]
        arrays: dict[str, Any] = {name: file[name] for name in PER_PROBLEM}
        changed = sorted(name for name in {*stamp, *record["stamp"]} if stamp.get(name) != record["stamp"].get(name))
    if changed:
        raise ProblemError(
            f"{path} must be of the same problems, starts and options; got others: {', '.join(changed)}. Take another "
            "folder for checkpoint=, or remove this one"
        )
    for name in {*PER_PROBLEM} - {"status", "n_iter"}:
        arrays[name] = backend.asarray(arrays[name], device=place)
    return ManyResult(
        theta=trees.unflatten(treedef, [backend.asarray(x, device=place) for x in theta]),
        **arrays,
        method=record["method"],
        provenance=record["provenance"],
        seconds=0.0,
        setup_seconds=0.0,
    )
