"""What a loss makes of a fit: weights of residuals, a deviance, the least-squares problem of linear theory."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from xvarpro import backends
from xvarpro.core import trees
from xvarpro.core.namespace import device, positive_or_one
from xvarpro.core.struct import Array
from xvarpro.errors import ProblemError
from xvarpro.objective.least_squares import as_matrix
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
    return 2 * float(fit.loss.value(mu, y, weights) - fit.loss.saturated(y, weights))


def least_squares(fit: Outcome) -> Problem:
    """The problem that Newton's method, or Fisher's scoring, would solve next, which the result solves too.

    Its weights are those of the problem times the curvature of the loss that is expected; its target is the prediction
    minus slope over curvature of the loss, entry by entry.
    """
    problem, loss = fit.stated, fit.loss
    if loss is None or not problem.is_separable:
        return problem
    if not loss.by_entry or not trees.is_array(problem.lower.y):
        kind = f"{loss!r}, whose terms are rows" if not loss.by_entry else "a target that is a function"
        raise ProblemError(f"standard errors need a loss of every entry of an array y; got {kind}")
    mu, y, weights = _at_the_data(fit)
    if not np.isfinite(mu).all():
        raise ProblemError("statistics need w and M(theta) to be finite; got NaN or inf at this theta")
    curvature = loss.curvature(mu, y, weights)
    target = mu - loss.slope(mu, y, weights) / positive_or_one(curvature * weights)
    shape, dtype = problem.lower.y.shape, backends.to_numpy(fit.w).dtype
    parts = {"y": target, "weights": curvature * weights}
    anew: Any = {name: x.astype(dtype).reshape(shape) for name, x in parts.items()}
    return replace(problem, lower=replace(problem.lower, **anew, loss=None), compress=False)


def _at_the_data(fit: Outcome) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Prediction, target and weights as matrices of one shape; the target has the prediction for a gap."""
    level: Any = fit.stated.levels[-1]
    given: Any = np.ones(1) if level.weights is None else backends.to_numpy(level.weights)
    found: Any = (as_matrix(x) for x in (*prediction.on_data(fit.stated, fit.theta, fit.w), given))
    mu, y, weights = (x.astype(float) for x in found)
    weights = np.broadcast_to(weights, mu.shape)
    return mu, np.where(weights > 0, y, mu), weights
