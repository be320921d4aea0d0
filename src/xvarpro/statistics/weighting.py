"""What a loss makes of a fit: weights of residuals, a deviance, the least-squares problem of linear theory."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np

from xvarpro import backends
from xvarpro.core import trees
from xvarpro.core.namespace import device, positive_or_one
from xvarpro.core.struct import REQUIRED, Array, Struct, Tree
from xvarpro.errors import ProblemError
from xvarpro.lower import Equality
from xvarpro.lower.hessian import Rooted
from xvarpro.lower.stack import joined
from xvarpro.objective.least_squares import as_matrix
from xvarpro.operators import as_operator
from xvarpro.problem.problem import Problem
from xvarpro.results.outcome import Outcome
from xvarpro.statistics import prediction


def factors(fit: Outcome) -> Array:
    """See `Result.weights`."""
    if fit.loss is None:
        raise ProblemError("weights are those that a robust loss gives to residuals; got a fit of least squares")
    fitted: Any = prediction.fitted(fit.stated, fit.theta, fit.w)
    found: Any = fit.loss.factor(*_at_the_data(fit))
    owner, dtype = backends.owner(fitted), backends.to_numpy(fitted).dtype
    with owner.scope(dtype.name):
        return owner.asarray(found.reshape(fitted.shape).astype(dtype), device=device(fitted))


def deviance(fit: Outcome) -> float | None:
    """See `Result.deviance`."""
    if fit.loss is None:
        return None
    if not fit.loss.likelihood:
        return math.nan
    mu, y, weights = _at_the_data(fit)
    saturated: Any = fit.loss.saturated(y, weights)
    return 2 * float(fit.loss.value(mu, y, weights) - np.sum(saturated))


def least_squares(fit: Outcome) -> Problem:
    """The problem that Newton's method, or Fisher's scoring, would solve next, which the result solves too.

    Its weights are those of the problem times the curvature of the loss that is expected; its target is the prediction
    minus slope over curvature of the loss, entry by entry.
    """
    problem, loss = fit.stated, fit.loss
    if loss is None or not problem.is_separable:
        return problem
    if not trees.is_array(problem.lower.y):
        raise ProblemError(
            "standard errors of a fit by a loss need an array y; got a target that is a function, or chunks"
        )
    mu, y, weights = _at_the_data(fit)
    if not np.isfinite(mu).all():
        raise ProblemError("statistics need w and M(theta) to be finite; got NaN or inf at this theta")
    if not loss.by_entry:
        return _of_rows(fit, mu, y, weights)
    bends: Any = loss.curvature(*(x.reshape(-1, 1) for x in (mu, y, weights)))
    curvature = bends.reshape(mu.shape)
    if not np.min(curvature) > 0:
        raise ProblemError(
            f"standard errors need a loss that bends up, on average over the residuals; got {loss!r} and a mean second "
            f"derivative of {np.min(curvature):.2g}. Pass a larger scale"
        )
    target = mu - loss.slope(mu, y, weights) / positive_or_one(curvature * weights)
    shape, dtype = problem.lower.y.shape, backends.to_numpy(fit.w).dtype
    parts = {"y": target, "weights": curvature * weights}
    anew: Any = {name: x.astype(dtype).reshape(shape) for name, x in parts.items()}
    return replace(problem, lower=replace(problem.lower, **anew, loss=None), compress=False)


def _of_rows(fit: Outcome, mu: np.ndarray, y: np.ndarray, weights: np.ndarray) -> Problem:
    """As `least_squares`, for a loss of classes: one target of all entries, and the rows of w one after the other.

    With a root A of the second derivative in each row of the target, its rows are A times those of the design.
    """
    loss: Any = fit.loss
    level: Any = fit.stated.lower
    w: Any = fit.w
    (n, k), dtype = w.shape, backends.to_numpy(w).dtype
    u, p = loss.root(mu, y, weights)
    A: Any = Rooted(level.M, u, p).blocks
    target = ((A @ mu[:, :, None])[:, :, 0] - loss.slope(mu, y, weights) / positive_or_one(u)).ravel()
    lam, Omega = level.lam, level.Omega
    shared = not trees.is_array(lam) or lam.shape[1] == 1
    # what the loss does not see, one vector added to all columns, has no part in w unless ridges of classes differ
    W = Equality(np.kron(np.eye(n), np.ones((1, k))), np.zeros(n)) if shared else None
    W = W if level.W is None else level.W.joined(k)
    lam = np.broadcast_to(backends.to_numpy(lam), (n, k)).reshape(-1, 1) if trees.is_array(lam) else lam
    if Omega is not None:
        Omega = np.kron(backends.to_numpy(as_operator(Omega).dense()), np.eye(k))
    used = np.repeat(weights[:, 0] > 0, k).astype(dtype)
    anew: Any = {"M": _Stacked(level.M), "y": target.astype(dtype), "lam": lam, "Omega": Omega, "W": W}
    lower = replace(level, **anew, weights=used, loss=None)
    return replace(fit.stated, lower=lower, data={"data": fit.stated.data, "root": A.astype(dtype)}, compress=False)


@final
@dataclass(frozen=True)
class _Stacked(Struct):
    """A design whose rows are multiplied by matrices of the classes. No closure: equal ones are compiled once."""

    M: Callable[..., Any] = REQUIRED

    def __call__(self, theta: Tree, data: Tree) -> Array:
        M, A = as_operator(self.M(theta, data["data"])).dense(), data["root"]
        return joined(M, A)


def _at_the_data(fit: Outcome) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Prediction, target and weights as matrices of one shape; the target has the prediction for a gap."""
    level: Any = fit.stated.levels[-1]
    given: Any = np.ones(1) if level.weights is None else backends.to_numpy(level.weights)
    found: Any = (as_matrix(x) for x in (*prediction.on_data(fit.stated, fit.theta, fit.w), given))
    mu, y, weights = (x.astype(float) for x in found)
    weights = np.broadcast_to(weights, mu.shape)
    return mu, np.where(weights > 0, y, mu), weights
