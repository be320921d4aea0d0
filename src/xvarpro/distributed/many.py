"""Many small problems as batches on the workers of a Dask cluster."""

from __future__ import annotations

import time
from dataclasses import replace
from numbers import Integral
from typing import Any

from distributed import Client

from xvarpro.batch import ManyResult, solve_many
from xvarpro.batch.lift import members
from xvarpro.batch.prepare import batch_size
from xvarpro.batch.shared import separate
from xvarpro.core import trees
from xvarpro.core.status import Bar
from xvarpro.core.struct import Tree
from xvarpro.distributed.dask import TIMEOUT, check_timeout, current, ended, result_of
from xvarpro.driver.transfer import destination
from xvarpro.errors import ProblemError
from xvarpro.fit.batch_result import joined
from xvarpro.problem.problem import Problem

AHEAD = 2  # batches for each thread of the cluster that are sent before their turn


def dask_solve_many(
    problem: Problem,
    theta0: Tree,
    over: Tree = None,
    *,
    size: int = 10_000,
    client: Client | None = None,
    timeout: float | None = TIMEOUT,
    progress: bool | None = None,
    **options: Any,
) -> ManyResult:
    """`xvarpro.solve_many` with batches of problems spread over a cluster.

    Parameters
    ----------
    problem, theta0, over
        As for `xvarpro.solve_many`. Arrays are in this process; a worker gets those of its batch.
    size : int
        Problems in a batch, > 0.
    client : distributed.Client, optional
        Of the cluster; the current one by default.
    timeout : float or None
        Seconds without any batch ending after which a `GroupError` is raised; None waits for ever.
    progress : bool, optional
        Progress bar over batches; None shows one on a terminal only.
    **options
        Further arguments of `xvarpro.solve_many`.

    Returns
    -------
    ManyResult
        Of all problems, in their order, with a status each. Its `seconds` are those until the last batch came back.

    Raises
    ------
    ProblemError
        As `xvarpro.solve_many`; there is no cluster.
    GroupError
        The cluster is lost, or does not answer in time.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> from distributed import Client
    >>> def M(theta, t):
    ...     xp = xv.array_namespace(theta)
    ...     return xp.exp(-xp.expand_dims(theta, axis=1) * t[None, :, None])
    >>> t, rates = np.linspace(0.0, 2.0, 64), np.linspace(1.0, 4.0, 40)[:, None]
    >>> problem = xv.separable(M, np.exp(-rates * t), data=t)
    >>> with Client(processes=False, dashboard_address=":0"):
    ...     fit = xv.distributed.dask_solve_many(problem, np.full((40, 1), 2.0), xv.sets.Box(0.0, 20.0), size=10)
    >>> fit, bool(np.allclose(fit.theta, rates))
    (ManyResult(40 problems: 40 CONVERGED), True)
    """
    if not isinstance(size, Integral) or isinstance(size, bool) or size < 1:
        raise ProblemError(f"size must be a whole number > 0 of problems in a batch; got {size!r}")
    check_timeout(timeout)
    client, began = client or current(), time.perf_counter()
    theta0 = separate(theta0, "workers solve them apart")
    given = destination(theta0, None, None, None)
    b = batch_size(given.leaves, given.names)
    slices = [slice(i, min(i + size, b)) for i in range(0, b, size)]
    parts = (
        (members(problem, s), trees.map_leaves(lambda x, s=s: x[s, ...], theta0), members(over, s)) for s in slices
    )
    found: dict[int, ManyResult] = {}
    tasks = (client.submit(solve_many, *part, progress=False, **options, pure=False) for part in parts)
    with Bar(len(slices), progress, "batch") as bar:
        for i, task in ended(client, "batch", tasks, AHEAD * sum(client.nthreads().values()), timeout):
            found[i] = result_of(task, timeout)
            bar.update()
    whole = joined([found[i] for i in range(len(slices))], time.perf_counter() - began)
    return replace(whole, _problem=problem)
