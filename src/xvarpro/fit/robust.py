"""Fits by a loss that is given with the call, and the scale that residuals give it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

from xvarpro.algorithms.interface import Algorithm
from xvarpro.backends import Backend
from xvarpro.core.struct import Tree
from xvarpro.errors import ProblemError
from xvarpro.fit.result import Result
from xvarpro.fit.scale import PLAIN
from xvarpro.fit.solve import solve
from xvarpro.losses.interface import Loss
from xvarpro.losses.robust import Robust
from xvarpro.problem.problem import Problem, refuse_marginal

FIRST = 0.1  # tolerance of the plain fit from which one by a robust loss starts


@dataclass(frozen=True, repr=False, eq=False)
class RobustResult(Result):
    """Outcome of `solve_robust`: a `Result` whose loss is no likelihood of the noise."""

    @property
    def known_noise(self) -> bool:
        return False


def solve_robust(
    problem: Problem,
    theta0: Tree,
    over: Tree = None,
    *,
    loss: Loss | str,
    algorithm: Algorithm | None = None,
    tol: float = 1e-6,
    max_iter: int = 200,
    backend: str | Backend | None = None,
    device: Any = None,
    dtype: str | None = None,
    deterministic: bool = False,
) -> Result:
    """`solve` of a problem of one level, with a loss in the place of squares, such as Huber's.

    With ``z = weights (M(theta) w - y)^2 / scale^2``, entry by entry, the objective of a robust loss is ``1/2 sum
    scale^2 rho(z) + lam/2 |Omega w|^2 + mu/2 R(theta)``.

    Parameters
    ----------
    problem : Problem
        From `separable`. Its weights, 1/sigma^2, multiply in: a robust loss sees residuals times their roots.
    theta0, over
        As in `solve`. A fit by a robust loss starts from theta0 or from a rough plain fit, whichever has less loss.
    loss : Loss or str
        One of `xvarpro.losses`, or its name, such as "huber", "soft_l1", "cauchy" or "poisson". Without a scale a plain
        fit comes first: the scale is the median size of its weighted residuals times a constant. Fits with this loss
        and new scales take turns until both agree; then the scale is held.
    algorithm, tol, max_iter, backend, device, dtype, deterministic
        As in `solve`.

    Returns
    -------
    Result
        Its standard errors take no loss for the true likelihood: they are those of the sandwich formula, for counts as
        well, unless `absolute_sigma` is asked for.

    Raises
    ------
    ProblemError
        As `solve`; the problem has two levels; half of the residuals that should give a scale are zero, or no fit with
        that scale is found.
    ModelError, ExchangeError, UnknownBackendError, BackendNotInstalledError
        As `solve`.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> def M(theta, data):
    ...     xp = xv.array_namespace(theta)
    ...     return xp.exp(-xp.expand_dims(data["t"], axis=1) * theta)
    >>> t = np.linspace(0.0, 2.0, 100)
    >>> y = 2.0 * np.exp(-3.0 * t) + 1e-3 * np.sin(50 * t)
    >>> y[10] = 5.0
    >>> fit = xv.solve_robust(xv.separable(M, y, data={"t": t}), np.array([1.0]), loss=xv.losses.Huber(1e-3))
    >>> np.round(fit.theta, 2), np.round(fit.w, 2), bool(fit.weights[10] < 1e-3)
    (array([3.]), array([2.]), True)
    """
    if not isinstance(problem, Problem) or not problem.is_separable:
        found = "two levels" if isinstance(problem, Problem) else type(problem).__name__
        raise ProblemError(f"problem must come from xv.separable; got {found}. xv.Level(..., loss=) is for two levels")
    refuse_marginal(problem, "a robust fit is of", "Its noise is normal")
    place: dict[str, Any] = {"backend": backend, "device": device, "dtype": dtype, "deterministic": deterministic}
    fitted: Callable[..., Result] = partial(solve, over=over, algorithm=algorithm, progress=False, **place)
    stated = replace(problem, lower=replace(problem.lower, loss=loss))
    own = stated.lower.loss
    if isinstance(own, Robust) and not own.needs_scale:
        plain = fitted(replace(stated, lower=replace(stated.lower, loss=None)), theta0, tol=FIRST, max_iter=PLAIN)
        starts = plain.theta, theta0
        theta0 = min(starts, key=lambda theta: fitted(stated, theta, tol=FIRST, max_iter=0).value)
    fit = fitted(stated, theta0, tol=tol, max_iter=max_iter)
    return RobustResult(**{field.name: getattr(fit, field.name) for field in fields(Result)})
