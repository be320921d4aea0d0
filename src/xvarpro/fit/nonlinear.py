"""Least squares without a linear unknown: residuals of theta alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from xvarpro.algorithms.interface import Algorithm
from xvarpro.backends import Backend
from xvarpro.core.checks import described
from xvarpro.core.namespace import is_array, namespace_of
from xvarpro.core.struct import Array, Tree
from xvarpro.driver.prepare import prepare
from xvarpro.driver.run import IterationInfo
from xvarpro.errors import ModelError, ProblemError
from xvarpro.fit.result import Result
from xvarpro.fit.solve import solve, takes
from xvarpro.losses.interface import Loss
from xvarpro.lower import Fixed
from xvarpro.problem.problem import separable


def least_squares(
    residual: Callable[..., Array],
    theta0: Tree,
    over: Tree = None,
    *,
    data: Tree = None,
    loss: Loss | str | None = None,
    algorithm: Algorithm | None = None,
    tol: float = 1e-6,
    max_iter: int = 1000,
    callback: Callable[[IterationInfo], bool | None] | None = None,
    progress: bool | None = None,
    backend: str | Backend | None = None,
    device: Any = None,
    dtype: str | None = None,
) -> Result:
    """Minimise ``1/2 |r(theta)|^2`` over the sets of theta: for models in which nothing is linear.

    This is `solve` of the `separable` problem with r as its one column, the target 0 and the weight of the column
    `Fixed` at 1. So the result has r as ``fit.fitted``, and errors of theta alone.

    Parameters
    ----------
    residual : callable
        ``residual(theta, data)`` -> r, real or complex, of any shape; ``residual(theta)`` where there are no data.
        Written as a model is, for any framework. The sign of r does not count. Divided by standard deviations of the
        data it gives errors with ``fit.statistics(absolute_sigma=True)``.
    theta0, over
        As in `solve`. No entry needs to be near 1: parameters may have any units.
    data : pytree, optional
        As in `separable`.
    loss : Loss or str, optional
        Of each entry of a real r in the place of its square, such as ``"soft_l1"``: see `solve_robust`.
    algorithm, tol, max_iter, callback, progress, backend, device, dtype
        As in `solve`.

    Returns
    -------
    Result

    Raises
    ------
    ProblemError, ModelError
        As `solve`.

    Examples
    --------
    The function of Rosenbrock, within bounds:

    >>> import numpy as np, xvarpro as xv
    >>> def residual(theta):
    ...     xp = xv.array_namespace(theta)
    ...     return xp.stack([10.0 * (theta[1] - theta[0] ** 2), 1.0 - theta[0]])
    >>> fit = xv.least_squares(residual, np.array([-1.2, 0.4]), over=(-2.0, 0.5))
    >>> np.round(fit.theta, 6)
    array([0.5 , 0.25])
    """
    if not callable(residual) or not takes(residual, 1 + (data is not None)):
        raise ProblemError(
            "residual must be a function residual(theta) -> array, or residual(theta, data) where data= is given; got "
            f"{described(residual)} {'without' if data is None else 'with'} data="
        )
    column, place = _Column(residual, data is not None), {"backend": backend, "device": device, "dtype": dtype}
    stated = separable(column, lambda theta, data: 0 * column(theta, data)[:, 0], data=data)
    rows = prepare(stated, theta0, over=over, **place).structure.rows[0]
    problem = separable(column, np.zeros(rows, np.float32), data=data, W=Fixed(np.ones(1, bool), 1.0), loss=loss)
    options: dict[str, Any] = {"algorithm": algorithm, "tol": tol, "max_iter": max_iter, **place}
    return solve(problem, theta0, over, callback=callback, progress=progress, **options)


@final
@dataclass(frozen=True)
class _Column:
    """Residuals as a design with one column. No closure: equal ones are compiled once."""

    residual: Callable[..., Array]
    reads: bool

    def __call__(self, theta: Tree, data: Tree) -> Array:
        r = self.residual(theta, data) if self.reads else self.residual(theta)
        if not is_array(r):
            raise ModelError(f"residual must return an array; got {described(r)}. Join parts by xp.stack or xp.concat")
        return namespace_of(r).reshape(r, (-1, 1))
