"""What a solve returns: its best iterate, verified, with the trace and where it was computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from xvarpro.algorithms.interface import Iterate
from xvarpro.core import trees
from xvarpro.core.status import Status
from xvarpro.core.struct import Array, Leaves
from xvarpro.driver.model_check import negative_ridge
from xvarpro.driver.prepare import Prepared, violation
from xvarpro.driver.record import RECORD, WORK
from xvarpro.driver.run import Run
from xvarpro.errors import warn_caller
from xvarpro.objective.interface import LowerError, LowerReport, Objective
from xvarpro.problem.column_chunks import ColumnChunks, columns
from xvarpro.results.provenance import provenance
from xvarpro.results.recipe import Recipe
from xvarpro.results.result import Counts, Result, Verified
from xvarpro.results.trace import Trace


class DeadUnitsWarning(UserWarning):
    """Columns of the design are exactly zero at the result: they have zero gradient and never come back."""


def result(
    run: Run, status: Status, setup: float, recipe: Callable[[], Recipe], continuation: Callable[[], Any]
) -> Result:
    """Verify the best iterate and return it to the caller."""
    prepared, found = run.prepared, run.best()[0]
    theta = found.theta
    status, verified = _verified(run, status, found)
    value, gap_A, gap_B, *_ = run.row(found)
    columns = ("iteration", "seconds", *RECORD)
    table = {name: np.array(x) for name, x in zip(columns, run.record.table().T, strict=True) if name != "status"}
    table["iteration"] = table["iteration"].astype(np.int64)
    work = {name: int(table[name][-1]) for name in RECORD[WORK:]}
    return Result(
        theta=prepared.to_caller(theta),
        value=value,
        gap_A=gap_A,
        gap_B=gap_B,
        status=status,
        n_iter=run.record.done,
        counts=Counts(**work, factorisations=work["values"]),
        trace=Trace(**table),
        verified=verified,
        algorithm=repr(run.algorithm),
        provenance=provenance(
            prepared.backend,
            prepared.theta[0],
            compressed=prepared.compressed,
            exchange=prepared.tally.counts,
        ),
        seconds=run.record.seconds,
        setup_seconds=setup,
        _weights=lambda: coefficients(prepared, theta),
        _recipe=recipe,
        _continuation=continuation,
    )


def _verified(run: Run, status: Status, iterate: Iterate) -> tuple[Status, Verified]:
    prepared, last = run.prepared, run.state.iterate
    report = prepared.call(_diagnose, iterate.theta, once=True)
    if status is Status.NON_FINITE:
        end = report if iterate is last else prepared.call(_diagnose, last.theta, once=True)
        if negative_ridge(prepared.problem, prepared.tree(last.theta)):
            status = Status.NEGATIVE_RIDGE
        elif bool(end.deficient) and bool(end.finite):
            status = Status.RANK_DEFICIENT
    # a separable objective has a gradient at a kink as well
    if status is Status.NO_DESCENT and int(report.kinks) and not prepared.problem.is_separable:
        status = Status.KINK
    dead, units = int(report.zero_columns), int(report.columns)
    if dead:
        warn_caller(
            f"{dead} of {units} columns of M(theta) are exactly zero at the result. Their gradient is zero, so no "
            "method moves them again: start from other values, or cap the first steps",
            DeadUnitsWarning,
        )
    left = {}
    if isinstance(iterate.lower, LowerError):
        floats = prepared.backend.to_floats([iterate.lower.residual, iterate.lower.gradient])
        left = dict(zip(("lower_residual", "gradient_error"), floats, strict=True))
    condition = prepared.backend.to_floats([report.condition])[0]
    outside = float(violation(prepared.compiler, prepared.region, iterate.theta))
    return status, Verified(outside, condition, units, dead, int(report.kinks), **left)


def _diagnose(objective: Objective, theta: Leaves) -> LowerReport:
    return objective.diagnose(theta)


def coefficients(prepared: Prepared, theta: Leaves) -> Iterator[Array]:
    """``w`` at theta as the caller's arrays, a block of columns (n, k_i) at a time, or (n,) for a vector target.

    A compressed target replaces one that may not fit in memory, so that this is another pass over the caller's.
    """
    y = prepared.original.lower.y
    for block in _blocks(prepared, y):
        w = prepared.call(_solve_lower, theta, block, once=True)
        w = w if prepared.y_unit == 1.0 else w / prepared.y_unit
        yield prepared.layout.array(w[:, 0] if prepared.vector else w, prepared.backend)


def _blocks(prepared: Prepared, y: Any) -> Iterator[tuple[Array, ...]]:
    """Blocks of the caller's target, on the backend; () where the objective has the target itself."""
    level = prepared.problem.lower
    if isinstance(y, ColumnChunks):
        yield from ((prepared.target(block),) for block in y)
    elif prepared.compressed:
        yield from ((prepared.target(block),) for block in columns(y, max(y.shape[0], 1024)))
    else:
        yield (level.y,) if trees.is_array(level.y) else ()


def _solve_lower(objective: Objective, theta: Leaves, y: tuple[Array, ...]) -> Array:
    return objective.solve_lower(theta, *y)
