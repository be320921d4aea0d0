"""What a loss makes of a fit: weights of residuals, a deviance, the least-squares problem of linear theory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, final

import numpy as np

from xvarpro.backends import registry
from xvarpro.core import trees
from xvarpro.core.namespace import device, positive_or_one
from xvarpro.core.struct import REQUIRED, Array, Struct, Tree
from xvarpro.errors import ProblemError
from xvarpro.losses.robust import Robust
from xvarpro.lower.hessian import Rooted
from xvarpro.lower.stack import joined
from xvarpro.objective.least_squares import as_matrix
from xvarpro.objective.losses import apart
from xvarpro.operators import Dense
from xvarpro.operators.interface import as_operator
from xvarpro.problem.problem import Problem
from xvarpro.problem.row_chunks import RowChunks
from xvarpro.problem.samples import plain
from xvarpro.results.outcome import Outcome
from xvarpro.statistics import prediction

GIVEN = itemgetter("weights")  # of the data of a chunk; one function, for which a pass is compiled once


def factors(fit: Outcome) -> Array:
    """See `Result.weights`."""
    loss: Any = fit.loss
    if loss is None:
        raise ProblemError("weights are those that a robust loss gives to residuals; got a fit of least squares")
    fitted: Any = prediction.fitted(fit.stated, fit.theta, fit.w)
    found = np.concatenate([loss.factor(*given) for _, *given in _parts(fit)])
    owner, dtype = registry.owner(fitted), registry.to_numpy(fitted).dtype
    with owner.scope(dtype.name):
        return owner.asarray(found.reshape(fitted.shape).astype(dtype), device=device(fitted))


def deviance(fit: Outcome) -> float | None:
    """See `Result.deviance`."""
    loss: Any = fit.loss
    if loss is None:
        return None
    if not loss.likelihood:
        return math.nan
    (found,) = _summed(fit, ((loss.value(*x) - np.sum(loss.saturated(*x[1:])),) for _, *x in _parts(fit)))
    return 2 * found


def least_squares(fit: Outcome) -> Problem:
    """The problem that Newton's method, or Fisher's scoring, would solve next, which the result solves too.

    Its weights are those of the problem times the curvature of the loss that is expected; its target is the prediction
    minus slope over curvature of the loss, entry by entry. Of classes, and of rows in chunks, all entries are one
    target, and the rows of w one column: see `Stacked`.
    """
    problem, loss = fit.stated, fit.loss
    if loss is None or not problem.is_separable:
        return problem
    level: Any = problem.lower
    if not trees.is_array(level.y) and (not problem.in_rows or level.y.y):
        raise ProblemError(
            "standard errors of a fit by a loss need an array y, or chunks of rows with theirs; got a target that is a "
            "function, or chunks of columns"
        )
    curvature = _curvature(fit)
    if problem.in_rows or not loss.by_entry:
        return _stacked(fit, curvature)
    dtype = registry.to_numpy(fit.w).dtype
    ((_, *given),) = _parts(fit)
    y, weights = (x.astype(dtype).reshape(level.y.shape) for x in _near(fit, given, curvature)[1:])
    return replace(problem, lower=replace(level, y=y, weights=weights, loss=None), compress=False)


def _curvature(fit: Outcome) -> float | None:
    """The curvature of a robust loss that is expected, one number for all of a problem; None of other losses."""
    loss: Any = fit.loss
    if not isinstance(loss, Robust):
        return None
    columns = ([x.reshape(-1, 1) for x in given] for _, *given in _parts(fit) if np.any(given[2] > 0))
    counted = ((np.sum(x[2] > 0), loss.curvature(*x)[0, 0]) for x in columns)
    total, rows = _summed(fit, ((n * bend, n) for n, bend in counted))
    if (found := total / rows) <= 0:
        raise ProblemError(
            f"standard errors need a loss that bends up, on average over the residuals; got {loss!r} and a mean second "
            f"derivative of {found:.2g}. Pass a larger scale"
        )
    return found


def _near(fit: Outcome, given: Any, curvature: float | None) -> tuple[np.ndarray | None, np.ndarray, np.ndarray]:
    """Roots of the second derivative in rows of classes, (m, k, k), and target and weights of entries, (m, k)."""
    loss: Any = fit.loss
    mu, _, weights = given
    if not np.isfinite(mu).all():
        raise ProblemError("statistics need w and M(theta) to be finite; got NaN or inf at this theta")
    if loss.by_entry:
        bends: Any = curvature or loss.curvature(*(x.reshape(-1, 1) for x in given)).reshape(mu.shape)
        return None, mu - loss.slope(*given) / positive_or_one(bends * weights), bends * weights
    u, p = loss.root(*given)
    A: Any = Rooted(Dense(mu), u, p).blocks
    return A, (A @ mu[:, :, None])[:, :, 0] - loss.slope(*given) / positive_or_one(u), weights > 0


def _stacked(fit: Outcome, curvature: float | None) -> Problem:
    """As `least_squares`, of entries as one target; rows of classes are multiplied by the roots."""
    level: Any = fit.stated.lower
    w = registry.to_numpy(fit.w)
    (n, k), lam, Omega = as_matrix(w).shape, level.lam, level.Omega
    shared = level.W is None and not (trees.is_array(lam) and lam.shape[1] > 1)
    V: Any = apart(fit.loss, as_matrix(w)) if shared else np.eye(k)

    def parts() -> Iterator[tuple[Tree, np.ndarray]]:
        for data, *given in _parts(fit):
            A, y, weights = _near(fit, given, curvature)
            A = np.broadcast_to(V, (len(y), *V.shape)) if A is None else A @ V
            held = {"root": A.astype(w.dtype), "weights": weights.ravel().astype(w.dtype)}
            yield {"data": plain(data), **held}, y.reshape((-1, *w.shape[1:]) if k == 1 else -1).astype(w.dtype)

    if fit.stated.in_rows:
        data, anew = None, {"y": RowChunks(parts, group=level.y.group), "weights": GIVEN}
    else:
        ((data, y),) = parts()
        anew = {"y": y, "weights": data["weights"]}
    if trees.is_array(lam):
        lam = np.broadcast_to(registry.to_numpy(lam), (level.ridge.height(n), V.shape[1])).reshape(-1, 1)
    if Omega is not None and not callable(Omega):
        Omega = np.kron(registry.to_numpy(as_operator(Omega).dense()), np.eye(V.shape[1]))
    W = None if level.W is None else level.W.joined(k)
    lower = replace(level, **anew, M=Stacked(level.M, V), lam=lam, Omega=Omega, W=W, loss=None)
    return replace(fit.stated, lower=lower, data=data, compress=False)


@final
@dataclass(frozen=True)
class Stacked(Struct):
    """A design whose rows are multiplied by matrices of the columns of w. No closure: equal ones are compiled once.

    Its w has the rows of the w of a fit times V one after the other, (n c, 1): of classes c is one less than k, since a
    vector added to all columns is none that the loss sees.
    """

    M: Callable[..., Any] = REQUIRED
    V: Any = None  # (k, c)

    def __call__(self, theta: Tree, data: Tree) -> Array:
        M, A = as_operator(self.M(theta, data["data"])).dense(), data["root"]
        return joined(M, A)


def _summed(fit: Outcome, terms: Iterator[tuple[Any, ...]]) -> list[float]:
    """Sums over the parts, those of other processes with them."""
    sums, group = [float(sum(column)) for column in zip(*terms, strict=True)], fit.stated.group
    return sums if group is None else group.numbers(sums).sum(axis=0).tolist()


def _parts(fit: Outcome) -> Iterator[tuple[Any, ...]]:
    """Data, prediction, target and weights of all rows, or of one chunk after the other."""
    return prediction.by_parts(fit.stated, fit.theta, fit.w)
