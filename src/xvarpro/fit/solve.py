"""`solve`: prepare, choose an algorithm, iterate, return."""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable
from contextvars import ContextVar
from functools import cache, partial
from os import PathLike
from typing import Any

import numpy as np

from xvarpro import algorithms
from xvarpro.algorithms.interface import Algorithm
from xvarpro.backends import Backend
from xvarpro.core.checks import number, switch
from xvarpro.core.status import Bar, Status
from xvarpro.core.struct import Tree
from xvarpro.driver.checkpoint import Checkpoint, Schedule, arguments, continuation, going_on, warn_of_order
from xvarpro.driver.gradient_check import certify_gradient
from xvarpro.driver.model_check import check_compiles, check_limits, check_long_run, check_own_sets, check_unchanged
from xvarpro.driver.outcome import DeadUnitsWarning, outcome, recipe
from xvarpro.driver.prepare import Prepared, prepare
from xvarpro.driver.run import IterationInfo, Run
from xvarpro.errors import ProblemError
from xvarpro.fit.result import Result
from xvarpro.objective.gauss_newton import RIGHT_HAND_SIDES, has_jacobian
from xvarpro.problem.problem import Problem, with_loss

__all__ = ["DeadUnitsWarning", "IterationInfo", "solve"]

_found: ContextVar[bool] = ContextVar("_found", default=False)  # whether theta0 comes from another solve


def solve(
    problem: Problem,
    theta0: Tree,
    over: Tree = None,
    *,
    algorithm: Algorithm | None = None,
    tol: float | None = None,
    max_iter: int = 1000,
    time_limit: float | None = None,
    callback: Callable[[IterationInfo], bool | None] | None = None,
    progress: bool | None = None,
    debug: bool = False,
    backend: str | Backend | None = None,
    device: Any = None,
    dtype: str | None = None,
    deterministic: bool = False,
    checkpoint: str | PathLike[str] | None = None,
    checkpoint_every: float = 60.0,
    resume: str | PathLike[str] | None = None,
    trace_every: int = 1,
) -> Result:
    """Minimise the reduced objective over ``C_A x R^p``.

    Parameters
    ----------
    problem : Problem
        From `separable` or `bilevel`.
    theta0 : array or pytree of arrays, module, or Result
        Feasible start, float32 or float64, all of one framework. It is never written to. From a result of this process
        the solve goes on, to the same bits as one that was not interrupted; `over`, `algorithm`, `tol`, `backend`,
        `device` and `deterministic` are then the result's where they are left out. Of a module (`torch.nn.Module`,
        Flax NNX, Equinox) the trainable parameters are theta, by dotted name; the problem's functions receive a module.
    over : Set, Free, a pair of bounds or a tree of them, optional
        Sets for the leaves of theta, or ``(lower, upper)`` or SciPy's ``Bounds`` for a `Box`; leaves without one are
        free. Keys may be patterns: ``{"*.weight": set}``.
    algorithm : Algorithm, optional
        One of `xvarpro.algorithms`; None chooses one for the sets of the problem, which the result names.
    tol : float, optional
        1e-6 by default. Relative to the objective: the gap of the sets must fall below ``tol * |f|``, and what a
        quadratic model promises in the free leaves below ``tol^2 * |f|``; for `LevenbergMarquardt` a hundredth of the
        latter in all leaves. Neither has the units of theta.
    max_iter : int
        Iterations at most, >= 0, those before `resume` included.
    time_limit : float, optional
        Seconds for the iterations of this call; set-up and compilation do not count.
    callback : callable, optional
        Called with an `IterationInfo` after every iteration; returning True stops the solve. What it raises ends the
        solve and reaches the caller.
    progress : bool, optional
        Progress bar, of the first process of a group; None shows one on a terminal only.
    debug : bool
        Check first what is your own: sets by `sets.check`, the designs at theta0 by `operators.dottest`, the gradient
        near theta0 by differences of the objective along one direction, and that functions return the same when they
        are called again, which is else checked before the first solve with them.
    backend, device, dtype : optional
        Where and in what precision to compute, such as ``"jax"``, ``"cuda:0"``, ``"float64"``; theta0's by default.
    deterministic : bool
        Make the backend return the same bits from run to run, for one version of everything on one kind of processor
        with one number of threads; the result's provenance names the operations for which it cannot.
    checkpoint : path, optional
        File in which the state is kept for `resume`: at times, at the end, and when Ctrl-C interrupts the solve. Of the
        processes of a group the first one writes it, and all read it.
    checkpoint_every : int or float
        Iterations, an int, or seconds, a float, between checkpoints; > 0.
    resume : path, optional
        File of `checkpoint` to go on from, with all else as it was: see ``docs/long_runs.md``.
    trace_every : int
        Iterations between entries of the trace, >= 1. The first and the last iterate have one in any case.

    Returns
    -------
    Result
        The best iterate, as arrays in theta0's framework, on its device, a module as a new one. Its status is a
        statement about that iterate and says what to do next; ``docs/mathematics.md`` has what `CONVERGED` means.

    Raises
    ------
    ProblemError
        Shapes, sets, dtypes or the start do not fit together; a module is in training mode; data contain NaN or inf;
        theta0 is infeasible; a set of your own has a wrong oracle or projection, or iterates leave it; with `debug`,
        the adjoint or gradient of an operator does not belong to its products; with `deterministic`, an operation has
        no deterministic algorithm; `resume` names no checkpoint, or that of another solve.
    KeyboardInterrupt
        Ctrl-C in the iterations; its attribute ``result`` is the best iterate, with the status INTERRUPTED. In a group
        it has none.
    ModelError
        A model function returned no array, or one of another shape, dtype or namespace than required or than at
        theta0; it is no pure function of (theta, data); its rows depend on each other, in chunks or mini-batches; its
        gradient is cut (all of it, on PyTorch that of a parameter; with `debug`, parts); a ridge is negative at theta0.
    FileNotFoundError
        There is no file to resume, or no folder for the checkpoint.
    ExchangeError
        The result cannot be returned in theta0's framework without losing digits.
    UnknownBackendError
        `backend` names no registered backend.
    BackendNotInstalledError
        Its framework is not installed; the message gives the pip command.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> def M(theta, data):
    ...     xp = xv.array_namespace(theta)
    ...     return xp.exp(-xp.expand_dims(data["t"], axis=1) * theta)
    >>> t = np.linspace(0.0, 2.0, 100)
    >>> y = 2.0 * np.exp(-1.0 * t) + np.exp(-5.0 * t)
    >>> problem = xv.separable(M, y, data={"t": t})
    >>> fit = xv.solve(problem, np.array([0.5, 8.0]), over=xv.sets.Box(0.0, 10.0), tol=1e-9)
    >>> np.round(fit.theta, 3), np.round(fit.w, 3)
    (array([1., 5.]), array([2., 1.]))
    """
    began = time.perf_counter()
    _check_options(time_limit, algorithm, callback, progress)
    for name, value in (("debug", debug), ("deterministic", deterministic)):
        switch(name, value)
    checkpoint_every, trace_every = check_long_run(checkpoint_every, trace_every)
    earlier = None
    if isinstance(theta0, Result):
        problem = with_loss(problem, theta0.loss)
        if resume is not None:
            raise ProblemError("resume= and a result in the place of theta0 both say where to go on: leave one out")
        theta0, earlier, had = going_on(theta0)
        over, algorithm = had["over"] if over is None else over, algorithm or had["algorithm"]
        tol = had["tol"] if tol is None else tol
        if backend is None:
            backend, device = had["backend"], had["device"] if device is None else device
    tol, max_iter = check_limits(1e-6 if tol is None else tol, max_iter)
    if isinstance(problem, Problem) and problem.lower.loss is not None and problem.lower.loss.needs_scale:
        from xvarpro.fit.scale import with_scale

        place = {"backend": backend, "device": device, "dtype": dtype, "deterministic": deterministic}
        again = partial(solve, over=over, algorithm=algorithm, progress=False, **place)
        problem, theta0 = with_scale(problem, theta0, again, tol, max_iter)
    prepared = prepare(
        problem,
        theta0,
        over=over,
        backend=backend,
        device=device,
        dtype=dtype,
        progress=progress,
        deterministic=deterministic,
        solving=True,
        units=algorithm is None or not algorithm.has_units,
        debug=debug,
    )
    method = chosen(prepared, algorithm)
    if debug:
        prepared.certify_sets()
        prepared.certify_designs()
        certify_gradient(prepared)
    with prepared.backend.scope(prepared.dtype):
        check_own_sets(prepared.region, prepared.backend, prepared.theta)
        run = Run(prepared, method, tol)
        run.start(trace_every)
        # no gap at all: of a model whose gradient is cut, every point looks like this
        if not any(run.record.row[1:3]) and not _found.get():
            certify_gradient(prepared)
        asked = recipe(run, over, max_iter)
        given = cache(lambda: arguments(problem, asked, run))
        if resume is not None:
            with prepared.together():
                earlier = Checkpoint.load(resume)
        if earlier is not None:
            earlier.restore(run, given())
        elif max_iter == 0:  # the result is at theta0: an inexact lower level is solved tightly there
            run.recheck()

        def found(status: Status) -> Result:
            return Result(**outcome(run, run.record, status, setup, asked, lambda: continuation(run, over, given())))

        def write() -> None:
            parts = given()  # of every process
            if checkpoint is not None and prepared.rank == 0:
                Checkpoint.of(run, parts).save(checkpoint)
                warn_of_order(prepared.problem)

        with prepared.together():  # a first file that cannot be written
            schedule = None if checkpoint is None else Schedule(write, checkpoint_every, run.record.done, run.clock)
        setup = time.perf_counter() - began
        with Bar(max_iter, prepared.progress) as bar:
            bar.update(run.record.done)
            try:
                status = run.iterate(max_iter, time_limit, callback, bar, schedule)
                while run.continues(status, max_iter):
                    status = run.iterate(max_iter, time_limit, callback, bar, schedule)
                with prepared.together():
                    check_unchanged(problem, prepared.fingerprints)
                if schedule is not None:
                    schedule.now()
                return found(run.finish(status))
            except (KeyboardInterrupt, SystemExit) as interrupt:
                run.rewind()
                if schedule is not None:
                    schedule.now()
                # other processes are elsewhere in their work: what this one says now they would take for that
                if prepared.group is None:
                    run.certify()
                    interrupt.result = found(Status.INTERRUPTED)  # type: ignore[union-attr]
                raise


def chosen(prepared: Prepared, algorithm: Algorithm | None) -> Algorithm:
    """The algorithm, or the default for the sets of the problem; a ProblemError where it cannot run over them."""
    size = sum(math.prod(x.shape) for x in prepared.theta)
    region = prepared.region
    without = region.without_projection
    jacobian = has_jacobian(prepared.problem, prepared.structure)
    sets = [C for _, C in region.constrained]
    default = algorithms.choose(sets, size, bool(region.free), jacobian, not prepared.problem.is_separable)
    method, endless = algorithm or default, [C for C in sets if not C.bounded]
    taken = not endless or default.takes_unbounded
    other = f"{'L' if taken else 'Give finite bounds and l'}eave algorithm= out, for {type(default).__name__}"
    if isinstance(method, algorithms.LevenbergMarquardt) and not jacobian:
        raise ProblemError(
            "LevenbergMarquardt needs designs that are arrays, a lower level that is solved directly, a constant ridge "
            f"in the measured level, and of rows in chunks one level with at most {RIGHT_HAND_SIDES} right-hand sides; "
            f"got a problem without one of these. {other}"
        )
    if method.needs_projection and without:
        raise ProblemError(
            f"{type(method).__name__} projects onto every set; got {without[0]!r}, which has no projection. {other}"
        )
    if endless and not method.takes_unbounded:
        raise ProblemError(
            f"{type(method).__name__} steps toward minima of linear functions and needs bounded sets; got a "
            f"{type(endless[0]).__name__} with an infinite bound. Give finite bounds"
            f"{', or leave algorithm= out' if taken else ''}"
        )
    check_compiles(region, prepared.backend)
    return method


def solve_on(*args: Any, **options: Any) -> Result:
    """`solve` from a theta that another solve has found: that units have saturated there is no error of the model."""
    token = _found.set(True)
    try:
        return solve(*args, **options)
    finally:
        _found.reset(token)


def takes(function: Callable[..., object], count: int = 1) -> bool:
    """Whether a function can be called with `count` arguments, as far as it says what it takes."""
    try:
        inspect.signature(function).bind(*[None] * count)
    except TypeError:
        return False
    except ValueError:  # it does not say
        return True
    return True


def _check_options(time_limit: object, algorithm: object, callback: object, progress: object) -> None:
    if not (time_limit is None or number(time_limit) >= 0):
        raise ProblemError(f"time_limit must be seconds >= 0 or None; got {time_limit!r}")
    if not (algorithm is None or isinstance(algorithm, Algorithm)):
        from xvarpro.algorithms.updates import Update

        rule = ""
        if isinstance(algorithm, Update):
            rule = f", an update rule: pass StochasticProjectedGradient(update={type(algorithm).__name__}(...))"
        raise ProblemError(f"algorithm must be one of xvarpro.algorithms or None; got {algorithm!r}{rule}")
    if not (callback is None or (callable(callback) and takes(callback))):
        raise ProblemError(f"callback must be a function of one IterationInfo or None; got {callback!r}")
    if not (progress is None or isinstance(progress, bool | np.bool_)):
        raise ProblemError(f"progress must be True, False or None; got {progress!r}")
