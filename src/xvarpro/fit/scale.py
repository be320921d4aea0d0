"""The scale of a robust loss from the residuals that it leaves."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from xvarpro.backends import to_numpy
from xvarpro.core.struct import Tree
from xvarpro.errors import ProblemError, warn_caller
from xvarpro.fit.result import Result
from xvarpro.problem.problem import Problem

PLAIN = 1000  # iterations at most of a plain fit
INNER = 4  # of a fit with a scale that is not the last one
RESCALINGS = 40  # fits at most from which a scale is estimated
SETTLED = 1e-3  # relative change of a scale that ends these, and their tolerance


def with_scale(
    problem: Problem, theta0: Tree, solve: Callable[..., Result], tol: float, max_iter: int
) -> tuple[Problem, Tree]:
    """The problem whose loss has the scale of the residuals that it leaves itself, and the theta of the last fit.

    Outliers spoil the residuals of the plain fit, and with them a first scale: fits and scales take turns. Theta of
    the plain fit may be theirs alone: of the first fits, from there and from theta0, the one with less loss goes on.
    Where w starts at residuals of outliers' size and theta at its end, the way of w to a small scale may be too long:
    then theta comes from that of the first fit by the loss, and w with it. Where not even the plain fit has residuals
    the scale is 1: the solve says why. Rough fits may settle where a whole one goes on, to other residuals: the last
    turns are by fits as whole as the solve that follows, which starts at their end.
    """
    level, last = problem.lower, math.inf
    loss: Any = level.loss

    def fitted(theta: Tree, max_iter: int, tol: float = SETTLED, **changes: Any) -> Result:
        return solve(replace(problem, lower=replace(level, **changes)), theta, tol=tol, max_iter=max_iter)

    fit = fitted(theta0, PLAIN, loss=None)
    starts, limit, accuracy = [fit.theta, theta0], INNER, SETTLED
    origin: Any = None
    far = whole = False
    for _ in range(RESCALINGS):
        r, y = _weighted(fit)
        if not np.isfinite(r).all():
            if fit.loss is not None:
                raise ProblemError(
                    f"{type(loss).__name__}: scale=None takes the scale from the residuals, and no fit with the "
                    f"{last:.3g} that they give has a finite loss. Pass a larger scale="
                )
            return replace(problem, lower=replace(level, loss=type(loss)(1.0))), theta0
        found = loss.scaled_by(r)
        least = np.finfo(y.dtype).eps ** 0.5 * np.max(np.abs(y))  # below it data are without noise
        settled = abs(found.scale - last) <= SETTLED * found.scale
        if found.scale <= least or (settled and whole):
            break
        if settled:
            whole, limit, accuracy = True, max(limit, min(max_iter, PLAIN)), min(tol, SETTLED)
        last = found.scale
        fit = min((fitted(theta, limit, accuracy, loss=found) for theta in starts), key=_loss)
        if origin is None:
            origin = fit.theta
        elif not far and not math.isfinite(fit.value):
            far, limit = True, PLAIN
            fit = fitted(origin, limit, accuracy, loss=found)
        starts = [origin] if far else [fit.theta]
    else:
        warn_caller(
            f"{type(loss).__name__}: scale=None takes the scale from the residuals, and after {RESCALINGS} fits it "
            f"still changes: {found.scale:.4g} is held, which need not be that of fit.residuals. Pass scale=, or start "
            "elsewhere",
            RuntimeWarning,
        )
    return replace(problem, lower=replace(level, loss=found)), starts[0]


def _loss(fit: Result) -> float:
    return math.inf if math.isnan(fit.value) else fit.value


def _weighted(fit: Result) -> tuple[np.ndarray, np.ndarray]:
    """Residuals and target times the roots of their weights, of those that have one."""
    r, weights = to_numpy(fit.residuals), fit.stated.lower.weights
    y = r + to_numpy(fit.fitted)
    given = np.ones(len(r)) if weights is None else to_numpy(weights)
    root = np.sqrt(given.reshape(r.shape if given.size == r.size else (len(r), 1))).astype(r.dtype)
    used = np.broadcast_to(root > 0, r.shape)
    return (root * r)[used], (root * y)[used]
