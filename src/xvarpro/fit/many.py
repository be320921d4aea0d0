"""Thousands of independent problems, solved together."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial, reduce
from operator import attrgetter
from os import PathLike
from typing import Any

import numpy as np

from xvarpro.algorithms.levenberg_marquardt import LevenbergMarquardt
from xvarpro.backends import Backend, to_numpy
from xvarpro.backends.exchange import as_array
from xvarpro.backends.interface import loops
from xvarpro.batch.driver import Run
from xvarpro.batch.lift import members, single
from xvarpro.batch.prepare import StackedDesignsError, batch_size, together
from xvarpro.batch.shared import prepare_shared, separate
from xvarpro.core import trees
from xvarpro.core.namespace import device as device_of
from xvarpro.core.namespace import namespace_of
from xvarpro.core.status import Bar, Status
from xvarpro.core.struct import Array, Tree
from xvarpro.driver.model_check import check_compiles, check_limits, check_unchanged
from xvarpro.driver.transfer import destination
from xvarpro.errors import ModelError, ProblemError, warn_caller
from xvarpro.fit.batch_result import PER_PROBLEM, ManyResult, blanked
from xvarpro.fit.chunks import in_chunks
from xvarpro.fit.missing import chosen, filled, without_data
from xvarpro.fit.result import Result
from xvarpro.fit.solve import solve
from xvarpro.problem.problem import Problem
from xvarpro.sets import each
from xvarpro.sets.each import Stored


def solve_many(
    problem: Problem,
    theta0: Tree,
    over: Tree = None,
    *,
    starts: Tree = None,
    order: int | None = None,
    chunks: int | None = None,
    checkpoint: str | PathLike[str] | None = None,
    executor: Executor | None = None,
    method: LevenbergMarquardt | None = None,
    tol: float = 1e-6,
    max_iter: int = 200,
    backend: str | Backend | None = None,
    device: Any = None,
    dtype: str | None = None,
    progress: bool | None = None,
) -> ManyResult:
    """Solve thousands of independent problems together: pixels, voxels, spectra, bootstrap samples.

    Functions are given leaves (b, ...) of theta, and return designs (b, m, n); targets are (b, m), or (b, m, k) for k
    right-hand sides, with a first axis of length 1 where all problems share them. `many.lifted` makes this form of a
    problem that is stated for one. ``M[i]`` may depend on ``theta[i]`` alone, and on the i-th entry of what `Each`
    marks in `data`: functions are called with some of the problems, too. The first ones are evaluated alone and
    together with others, and an error is raised where they differ.

    Parameters
    ----------
    problem : Problem
        From `separable` or `bilevel`, in batch form. ``lam`` is a number, (b,), (b, n, k), or (n, k) for all problems,
        with 1 for n or k where weights or right-hand sides share one; ``R`` returns (b,); `Omega`, `covariance` and
        `W` are shared; `weights` are (m,) or (m, k), or have a first axis for the problems: (b, m) with targets (b, m),
        else (b, m, k) or (b, m, 1). Solved one after the other are problems with a `W` that is neither
        `lower.Nonnegative` nor `lower.Bounded`, or a `loss` that is not convex or one of rows, has no scale or is next
        to a `W`, or designs (b, k, m, n), one for each right-hand side.
    theta0 : array or pytree of arrays
        Feasible starts, leaves (b, ...), float32 or float64. One with NaN is that of the first problem without NaN. If
        some leaves are marked, ``xv.Each(array)``, these are of problems, and the others, in their own shape, are
        shared by all: see Notes.
    over : Set, Free or a tree of them, optional
        Sets for the leaves of one problem; each problem has its own point in them. What is not named is free. Bounds of
        each problem are marked: ``Box(xv.Each(lower), xv.Each(upper))`` with arrays shaped like the leaf of theta0.
    starts : array or pytree of arrays, optional
        More starts for all problems, in the structure of theta0, leaves (s, ...): each problem keeps the lowest end.
    order : int, optional
        Problem i starts where problem i - order ended, or the last success before it, and the first ones at theta0: 1
        is for a series, nx for the rows of an image. So many are solved together, as in chunks.
    chunks : int, optional
        Problems that are solved together, chunk after chunk: arrays in memory maps, Zarr, HDF5 or Dask that `Each`
        marks, targets and weights too, are read a chunk at a time, in memory that a chunk bounds, and the answers.
    checkpoint : path, optional
        A folder that keeps the result of each chunk: a call that was killed, made again, goes on after the last one.
    executor : concurrent.futures.Executor, optional
        Where chunks are solved, such as a ``ProcessPoolExecutor(2)`` or ``client.get_executor(pure=False)`` of Dask; in
        this process by default.
    method : LevenbergMarquardt, optional
        For a damping of one's own. It has matrices of (b, p, p) entries: for problems of many parameters a loop over
        `xv.solve` is faster.
    tol : float
        Per problem, the decrease that its model promises over the sets must fall below ``tol^2/100 * |f|``, or
        ``tol^2 * |f|`` where a set offers no projection.
    max_iter : int
        Iterations per problem at most, one trial point each.
    backend, device, dtype : optional
        Where and in what precision to compute; theta0's by default.
    progress : bool, optional
        A progress bar; by default on a terminal only.

    Returns
    -------
    ManyResult
        With a status per problem. One whose data hold NaN or inf, or have no weight, is NO_DATA and has NaN for
        answers; the others are as without it.

    Raises
    ------
    ProblemError
        Shapes, sets or starts that do not fit together, an infeasible start, problems that depend on one another.
    ModelError
        A model function returned the wrong thing or left its array namespace.
    KeyboardInterrupt
        Ctrl-C in the iterations; its attribute ``result`` has the points so far, INTERRUPTED where they had not ended.
    UnknownBackendError
        `backend` names no registered backend.
    BackendNotInstalledError
        Its framework is not installed; the message gives the pip command.
    ExchangeError
        An array cannot be moved to the backend.

    Notes
    -----
    Problems that share leaves of theta are one problem, the sum of theirs: Levenberg-Marquardt takes one step for all,
    for which each problem's own entries are eliminated, in time and memory proportional to b. Functions get shared
    leaves as (b, ...), too. Gaps, status and iterations are those of the whole, in every entry; problems without data
    are left out of the sum. Leaves must be free or in a `Box`.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> def M(theta, data):
    ...     xp = xv.array_namespace(theta)
    ...     return xp.exp(-xp.expand_dims(theta, axis=1) * data["t"][None, :, None])
    >>> t, rates = np.linspace(0.0, 2.0, 64), np.array([[1.0, 5.0], [0.5, 3.0], [2.0, 9.0]])
    >>> y = np.exp(-rates[:, None, :] * t[:, None]) @ np.array([2.0, 1.0])
    >>> problem = xv.separable(M, y, data={"t": t})
    >>> fit = xv.solve_many(problem, np.tile([0.7, 4.0], (3, 1)), over=xv.sets.Box(0.0, 20.0))
    >>> np.round(fit.theta, 3)
    array([[1. , 5. ],
           [0.5, 3. ],
           [2. , 9. ]])
    >>> fit
    ManyResult(3 problems: 3 CONVERGED)
    """
    theta0 = separate(theta0, "" if chunks is None and order is None else "chunks= and order= take them apart")
    place = {"backend": backend, "device": device, "dtype": dtype}
    options: dict[str, Any] = {"method": method, "tol": tol, "max_iter": max_iter, **place}
    theta0 = filled(theta0)
    if order is not None and (chunks is not None or executor is not None):
        raise ProblemError("order must be given without chunks and executor: each of its steps waits for another")
    if chunks is not None or order is not None:
        options["starts"] = starts
        size, follow = order if chunks is None else chunks, order is not None
        return in_chunks(solve_many, problem, theta0, over, size, checkpoint, executor, follow, progress, options)
    if checkpoint is not None or executor is not None:
        raise ProblemError("checkpoint and executor need chunks=, the number of problems in a file; got none")
    if any(isinstance(x, Stored) for x in trees.leaves(problem)):
        problem = members(problem, slice(None))
    if starts is not None:
        every = (solve_many(problem, theta, over, progress=progress, **options) for theta in _each(theta0, starts))
        return reduce(_lower, every)
    began = time.perf_counter()
    tol, max_iter = check_limits(tol, max_iter)
    if not (method is None or isinstance(method, LevenbergMarquardt)):
        raise ProblemError(f"method must be xv.algorithms.LevenbergMarquardt(...) or None; got {method!r}")
    alone = {"algorithm": method, "tol": tol, "max_iter": max_iter, **place}
    if isinstance(problem, Problem) and not together(problem):
        return _one_by_one(problem, theta0, over, progress, alone)
    try:
        prepared = prepare_shared(problem, theta0, over=over, **place)
    except StackedDesignsError:
        return _one_by_one(problem, theta0, over, progress, alone)
    check_compiles(prepared.region, prepared.backend)
    with prepared.backend.scope(prepared.dtype), loops() as reasons:
        run = Run(prepared, method or LevenbergMarquardt(), tol)
        setup = time.perf_counter() - began

        def found(unended: Status) -> ManyResult:
            fields: Any = run.found(unended) | {"seconds": time.perf_counter() - began - setup, "setup_seconds": setup}
            if reasons:
                fields["method"] += f", functions called for one problem after the other ({reasons[0]})"
            return blanked(ManyResult(**fields, over=over, _problem=problem))

        with Bar(prepared.theta.shape[0], progress, "problem") as bar:
            run.start()
            try:
                run.to_end(max_iter, bar)
                check_unchanged(problem, prepared.fingerprints)
                if words := run.steps():
                    if not (run.state.n_iter.any() or np.nan_to_num(run.state.point.local.grad).any()):
                        raise ModelError(words)  # as of one problem
                    warn_caller(words, UserWarning)
                return found(Status.MAX_ITER)
            except (KeyboardInterrupt, SystemExit) as interrupt:
                interrupt.result = found(Status.INTERRUPTED)  # type: ignore[union-attr]
                raise


def _one_by_one(
    problem: Problem, theta0: Tree, over: Tree, progress: bool | None, options: dict[str, Any]
) -> ManyResult:
    """The problems one after the other, by `solve`; one without data ends as in a batch."""
    theta0 = separate(theta0, "this W, loss or design is solved one problem at a time")
    began = time.perf_counter()
    given = destination(theta0, None, None, None)
    b, ends = batch_size(given.leaves, given.names), list[Result | Status]()

    def found() -> ManyResult:
        return blanked(_stacked(problem, theta0, over, ends, time.perf_counter() - began))

    try:
        with Bar(b, progress, "problem") as bar:
            for i in range(b):
                one, start = single(problem, i), trees.map_leaves(lambda x, i=i: x[i, ...], theta0)
                try:
                    ends.append(solve(one, start, single(over, i), progress=False, **options))
                except ProblemError:
                    if not without_data(members(problem, slice(i, i + 1)), np.array([True])):
                        raise
                    ends.append(Status.NON_FINITE)
                bar.update()
    except (KeyboardInterrupt, SystemExit) as interrupt:
        some = any(isinstance(end, Result) for end in ends)
        ends += [Status.INTERRUPTED] * (b - len(ends))
        interrupt.result = found() if some else None  # type: ignore[union-attr]
        raise
    if not any(isinstance(end, Result) for end in ends):  # whatever W and loss are, the answers are NaN
        bare = replace(problem, lower=replace(problem.lower, W=None, loss=None), noise=None)
        place = {name: options[name] for name in ("backend", "device", "dtype")}
        return solve_many(bare, theta0, over, progress=False, **place)
    return found()


def _stacked(problem: Problem, theta0: Tree, over: Tree, ends: list[Result | Status], seconds: float) -> ManyResult:
    """Results of single problems as those of a batch; a status stands for one that has no point but its start."""
    known = next(end for end in ends if isinstance(end, Result))
    fits = [end if isinstance(end, Result) else None for end in ends]

    def stacked(get: Callable[[Result], Any], like: Array) -> Array:
        xp, place = namespace_of(like), {"dtype": like.dtype, "device": device_of(like)}
        found = [np.nan if fit is None else get(fit) for fit in fits]
        return xp.stack([x if trees.is_array(x) else xp.full(like.shape, x, **place) for x in found], axis=0)

    leaves, treedef = trees.flatten(theta0)
    starts = ([x[i, ...] for x in leaves] for i in range(len(fits)))
    points = (start if fit is None else trees.leaves(fit.theta) for fit, start in zip(fits, starts, strict=True))
    theta = [namespace_of(x[0]).stack(x, axis=0) for x in map(list, zip(*points, strict=True))]
    number = namespace_of(leaves[0]).zeros((), dtype=leaves[0].dtype, device=device_of(leaves[0]))
    paths = {name: name for name in ("value", "gap_A", "gap_B")} | {"condition": "verified.condition"}
    numbers: dict[str, Any] = {name: stacked(attrgetter(path), number) for name, path in paths.items()}
    return ManyResult(
        theta=trees.unflatten(treedef, theta),
        w=stacked(attrgetter("w"), known.w),
        **numbers,
        status=np.array([end.code if isinstance(end, Status) else end.status.code for end in ends]),
        n_iter=np.array([0 if fit is None else fit.n_iter for fit in fits]),
        method=f"{known.algorithm}, one problem after the other",
        provenance=known.provenance,
        seconds=seconds,
        setup_seconds=0.0,
        over=over,
        _problem=problem,
        _fits=fits,
    )


def _each(theta0: Tree, starts: Tree) -> Iterator[Tree]:
    """Starts of all problems: theta0, and each of those that they share."""
    yield theta0
    own, names, _ = trees.named(each.plain(theta0), "theta0")
    treedef, marks = trees.flatten(theta0)[1], each.marks(theta0)
    more = [as_array(x, "starts") for x in trees.leaves(starts)]
    shapes = [tuple(getattr(x, "shape", ())) for x in more]
    wanted = [tuple(x.shape[mark or not any(marks) :]) for x, mark in zip(own, marks, strict=True)]
    if [shape[1:] for shape in shapes] != wanted or len({shape[:1] for shape in shapes}) != 1:
        shown = ", ".join(f"(s, {', '.join(map(str, shape))})" for shape in wanted)
        raise ProblemError(
            f"starts must be s starts that all problems share, in leaves of shape {shown} for {', '.join(names)}; "
            f"got {shapes}"
        )
    for i in range(shapes[0][0]):
        spread = [namespace_of(y).broadcast_to(y[i, ...], x.shape) for x, y in zip(own, more, strict=True)]
        yield trees.unflatten(treedef, spread)


def _lower(a: ManyResult, b: ManyResult) -> ManyResult:
    """Of each problem that end of two solves which is lower; of those that share theta the lower of all."""
    before, after = map(to_numpy, (a.value, b.value))
    effort = {name: getattr(a, name) + getattr(b, name) for name in ("n_iter", "seconds", "setup_seconds")}
    if a.shared:
        return replace(b if np.nansum(after) < np.nansum(before) else a, **effort)
    better = (after < before) | ~np.isfinite(before)
    fits = a._fits and [y if lower else x for x, y, lower in zip(a._fits, b._fits, better, strict=True)]
    found: dict[str, Any] = {"_prepared": None, "_fits": fits}
    for name in PER_PROBLEM:
        found[name] = trees.map_leaves(partial(chosen, better), getattr(b, name), getattr(a, name))
    return replace(a, **found | effort)
