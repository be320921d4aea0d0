"""What a solve returns: its best iterate, verified, with the trace and where it was computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from xvarpro.algorithms.interface import Iterate
from xvarpro.backends import to_numpy
from xvarpro.core import trees
from xvarpro.core.namespace import namespace_of
from xvarpro.core.status import Status
from xvarpro.core.struct import Array, Leaves, Tree
from xvarpro.driver.gradient_check import gradient
from xvarpro.driver.model_check import negative_ridge
from xvarpro.driver.prepare import Prepared, violation
from xvarpro.driver.run import RECORD, WORK, Record, Run
from xvarpro.driver.weights import coefficients
from xvarpro.errors import warn_caller
from xvarpro.objective.interface import LowerError, LowerReport, Objective
from xvarpro.problem.column_chunks import ColumnChunks
from xvarpro.results.outcome import Counts, Trace, Verified, joined
from xvarpro.results.recipe import Recipe, provenance


class DeadUnitsWarning(UserWarning):
    """Columns of the design are zero at the result, and so are their weights: they never come back."""


ORDINARY = 2**20  # entries of w up to which it is solved for at once where the target was compressed


def recipe(run: Run, over: Tree, max_iter: int) -> Recipe:
    """What a run was called with; copies, for the caller may write to what was passed."""
    over, algorithm = trees.map_arrays(lambda x: np.array(to_numpy(x)), (over, run.algorithm))
    prepared = run.prepared
    return Recipe(prepared.theta0, over, algorithm, run.tol, max_iter, run.scale, prepared.fingerprints)


def outcome(
    run: Run, record: Record, status: Status, setup: float, recipe: Recipe, continuation: Callable[[], Any]
) -> dict[str, Any]:
    """The fields of a result: the best iterate, verified, as the caller's arrays, with the record of the way to it."""
    prepared, found = run.prepared, run.best()[0]
    theta = found.theta
    status, verified, w = _verified(run, status, found)
    value, gap_A, gap_B, *_ = run.row(found)
    if status.success and not np.isfinite(value):  # in the caller's units
        status = Status.NON_FINITE
    columns = ("iteration", "seconds", *RECORD)
    table = {name: np.array(x) for name, x in zip(columns, record.table().T, strict=True) if name != "status"}
    table["iteration"] = table["iteration"].astype(np.int64)
    work = {name: int(table[name][-1]) for name in RECORD[WORK:]}
    return dict(
        theta=prepared.to_caller(theta),
        value=value,
        gap_A=gap_A,
        gap_B=gap_B,
        status=status,
        n_iter=record.done,
        counts=Counts(**work, factorisations=work["values"]),
        trace=Trace(**table),
        verified=verified,
        algorithm=repr(run.algorithm),
        provenance=provenance(prepared.backend, prepared.theta[0], compressed=prepared.compressed),
        seconds=record.seconds,
        setup_seconds=setup,
        recipe=recipe,
        _problem=prepared.original,
        _w=_own_w(prepared, theta, w),
        _weights=lambda: coefficients(prepared, theta),
        _continuation=continuation,
        _prepared=prepared,
        _unknown=_unknown(run) if status is Status.NON_FINITE else (),
        loss=prepared.original.levels[-1].loss,
    )


def _verified(run: Run, status: Status, iterate: Iterate) -> tuple[Status, Verified, Array]:
    prepared, last = run.prepared, run.state.iterate
    near = () if isinstance(iterate.w, tuple) else (iterate.w,)
    report = prepared.call(diagnosed, iterate.theta, *near, once=True)
    if status is Status.NON_FINITE:
        end = report if iterate is last else prepared.call(diagnosed, last.theta, once=True)
        if negative_ridge(prepared.problem, prepared.tree(last.theta)):
            status = Status.NEGATIVE_RIDGE
        elif bool(end.deficient) and bool(end.finite):
            status = Status.RANK_DEFICIENT
    xp = namespace_of(report.w)
    # a value has been found on the way there, and no w; a set of w may leave one solution of columns that depend
    if status.success and bool(report.deficient) and not bool(xp.all(xp.isfinite(report.w))):
        status = Status.RANK_DEFICIENT
    if status in (Status.NO_DESCENT, Status.STALLED) and _ends_at_ridge(prepared, last.theta):
        status = Status.NEGATIVE_RIDGE
    numbers = [report.condition, report.zero_columns, report.columns, report.kinks, report.cancellation]
    condition, dead, units, kinks, cancelled = prepared.backend.to_floats(numbers)
    # a separable objective has a gradient at a kink as well
    if status is Status.NO_DESCENT and kinks and not prepared.problem.is_separable:
        status = Status.KINK
    if dead:
        unsaid = "" if status is Status.RANK_DEFICIENT else ", and the status does not speak of them"
        warn_caller(
            f"{dead:.0f} of {units:.0f} columns of M(theta) are zero to rounding at the result. Their gradient is zero "
            f"whatever they could gain, so no method moves them again{unsaid}: start from other values, inside the "
            "set, and of a peak within its data, or cap the first steps",
            DeadUnitsWarning,
        )
    left = {}
    if isinstance(iterate.lower, LowerError):
        floats = prepared.backend.to_floats([iterate.lower.residual, iterate.lower.gradient])
        left = dict(zip(("lower_residual", "gradient_error"), floats, strict=True))
    outside = float(violation(prepared.compiler, prepared.region, iterate.theta))
    verified = Verified(outside, condition, int(units), int(dead), int(kinks), cancellation=cancelled, **left)
    return status, verified, report.w


def _unknown(run: Run) -> tuple[str, ...]:
    """The leaves of theta by which the last objective, where it is finite itself, has no finite derivative."""
    prepared, last = run.prepared, run.state.iterate
    value, *gaps = run.row(last)[:3]
    if not np.isfinite(value) or np.all(np.isfinite(gaps)):
        return ()
    pairs = zip(trees.paths(prepared.tree(last.theta)), prepared.call(gradient, last.theta, once=True), strict=True)
    return tuple(name for name, g in pairs if not namespace_of(g).all(namespace_of(g).isfinite(g)))


def _ends_at_ridge(prepared: Prepared, theta: Leaves) -> bool:
    """Whether a ridge becomes negative within a step, too short to lower anything, down the slope of the objective."""
    if not any(callable(level.lam) for level in prepared.problem.levels):
        return False
    d = prepared.region.blmo(theta, prepared.call(gradient, theta, once=True)).d
    ahead = trees.axpy(namespace_of(theta[0]).finfo(theta[0].dtype).eps ** 0.5, d, theta)
    return negative_ridge(prepared.problem, prepared.tree(ahead)) < 0


def diagnosed(objective: Objective, theta: Leaves, *near: Array) -> LowerReport:
    """The state of the lower level, solved from a w nearby if one is given, as a function that backends compile."""
    return (objective.starting_at(*near) if near else objective).diagnose(theta)


def _own_w(prepared: Prepared, theta: Leaves, w: Array) -> Array | None:
    """``w`` for the target as given, None where that is large: the memory of the target may have changed later."""
    if prepared.problem.lower.chunks_in_set:
        return None
    if not prepared.compressed:
        return prepared.w_to_caller(w)
    y: Any = prepared.original.lower.y
    if isinstance(y, ColumnChunks) or w.shape[0] * y.shape[1] > ORDINARY:
        return None
    return joined(coefficients(prepared, theta))
