"""The choice of a ridge: generalised cross-validation and the L-curve along a path of fits, and cross-validation.

Cross-validation is the upper level of a bilevel problem, which theta and the ridge minimise together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np

from xvarpro import backends
from xvarpro.core import trees
from xvarpro.core.checks import described
from xvarpro.core.lazy import Method
from xvarpro.core.namespace import namespace_of
from xvarpro.core.struct import REQUIRED, Array, Struct, Tree
from xvarpro.driver.evaluate import solve_lower
from xvarpro.errors import ProblemError
from xvarpro.fit.resampling import sent
from xvarpro.fit.result import Result
from xvarpro.fit.solve import solve, solve_on
from xvarpro.problem.problem import Level, Problem, bilevel, refuse_covariance, refuse_marginal
from xvarpro.sets import Box

LOOKED = 13  # ridges that are looked at before cross-validation solves


@dataclass(frozen=True, eq=False, repr=False)
class RidgePath:
    """Fits with one ridge after the other, from `ridge_path`; NumPy arrays with an entry per ridge, largest first.

    Attributes
    ----------
    lam : array
    residual_norm, weight_norm : arrays
        ``|M w - y|``, weighted, and ``|Omega w|``: the axes of the L-curve.
    parameters : array
        That the fit uses, the trace of d(fitted) / d(target).
    gcv : array
        ``N |M w - y|^2 / (N - parameters)^2``, N the numbers in the target.
    fits : list of Result
    """

    lam: np.ndarray
    residual_norm: np.ndarray
    weight_norm: np.ndarray
    parameters: np.ndarray
    gcv: np.ndarray
    fits: list[Result]

    plot = Method("xvarpro.fit.plotting.plot_ridge_path")

    @property
    def best(self) -> int:
        """Where generalised cross-validation is least."""
        return int(np.argmin(self.gcv))

    @property
    def corner(self) -> int:
        """Where the L-curve bends most: the largest curvature of its logarithms, by differences along the path."""
        x, y, s = np.log(self.residual_norm), np.log(self.weight_norm), np.log(self.lam)
        dx, dy = np.gradient(x, s), np.gradient(y, s)
        bend = (dx * np.gradient(dy, s) - dy * np.gradient(dx, s)) / np.maximum((dx**2 + dy**2) ** 1.5, 1e-300)
        inner = np.arange(1, len(s) - 1)  # differences to one side say nothing of curvature
        return int(inner[np.argmax(bend[inner])])

    def __repr__(self) -> str:
        rows = zip(self.lam, self.residual_norm, self.weight_norm, self.parameters, self.gcv, strict=True)
        lines = [f"{'lam':>11} {'|M w - y|':>11} {'|Omega w|':>11} {'parameters':>11} {'GCV':>11}"]
        lines += [" ".join(f"{x:11.4g}" for x in row) for row in rows]
        lines[1 + self.best] += "  least GCV"
        lines[1 + self.corner] += "  corner"
        return "\n".join(lines)


def ridge_path(
    problem: Problem, theta0: Tree, over: Tree = None, *, lam: Sequence[float], tol: float = 1e-6
) -> RidgePath:
    """Fit with each of several ridges, each from the solution of a larger one, for the choice among them.

    Generalised cross-validation needs no estimate of the noise; the corner of the L-curve is the ridge beyond which
    less of it costs much in the size of w and gains little in the residual. `cross_validate` is a third way.

    Parameters
    ----------
    problem : Problem
        Separable, as `linear_theory` takes it; its own `lam` is not used.
    theta0, over, tol
        As for `solve`.
    lam : sequence of float
        At least three ridges, > 0, in any order.

    Returns
    -------
    RidgePath
        From the largest ridge down, whatever the order of `lam`.

    Raises
    ------
    ProblemError
        As `solve` and `linear_theory`; there are fewer than three ridges, or one is not > 0.

    References
    ----------
    G. H. Golub, M. Heath, G. Wahba, Generalized cross-validation as a method for choosing a good ridge parameter,
    Technometrics 21 (1979). P. C. Hansen, Analysis of discrete ill-posed problems by means of the L-curve, SIAM Review
    34 (1992).

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> rng = np.random.default_rng(0)
    >>> A = rng.normal(size=(40, 30))
    >>> y = A @ np.ones(30) + rng.normal(size=40)
    >>> problem = xv.separable(lambda theta, A: theta * A, y, data=A)
    >>> path = xv.statistics.ridge_path(problem, np.ones(1), xv.sets.Box(1.0, 1.0), lam=np.logspace(-3, 3, 13))
    >>> bool(1e-1 < path.lam[path.best] < 1e2)
    True
    """
    ridges = np.sort(np.asarray(lam, dtype=np.float64).ravel())[::-1]
    if ridges.size < 3 or not ((ridges > 0) & (ridges < math.inf)).all():
        raise ProblemError(f"lam must hold at least three finite numbers > 0; got {lam!r:.80}")
    advice = "To choose lam by its likelihood, let lam(theta, data) be a function, and solve the marginal"
    refuse_marginal(problem, "ridge paths are of", advice)
    if isinstance(problem, Problem) and problem.lower.loss is not None:
        raise ProblemError(
            f"ridge paths compare residuals of least squares; got the loss {problem.lower.loss!r}. Use cross_validate, "
            "or let the upper level of two choose lam(theta, data)"
        )
    fits, rows, theta = [], [], theta0
    for ridge in ridges.tolist():
        fit = (solve if theta is theta0 else solve_on)(_with(problem, ridge), theta, over, tol=tol, progress=False)
        s, theta = fit.statistics(absolute_sigma=True), fit.theta
        rows.append((s.chi2**0.5, _norm(problem, fit), s.parameters, s.data * s.chi2 / (s.data - s.parameters) ** 2))
        fits.append(fit)
    residual_norm, weight_norm, parameters, gcv = np.array(rows).T
    return RidgePath(ridges, residual_norm, weight_norm, parameters, gcv, fits)


def _with(problem: Problem, lam: float) -> Problem:
    return replace(problem, lower=replace(problem.lower, lam=lam))


def _norm(problem: Problem, fit: Result) -> float:
    """``|Omega w|``."""
    w, ridge = backends.to_numpy(fit.w), trees.map_arrays(backends.to_numpy, problem.lower.ridge)
    return float(np.linalg.norm(ridge.weighted(w.reshape(len(w), -1))))


@dataclass(frozen=True, eq=False, repr=False)
class CrossValidation:
    """The ridge that predicts best, from `cross_validate`.

    Attributes
    ----------
    lam : float
        Of the least error.
    error : float
        Mean squared error, weighted, of the predictions of rows by w without them; of a loss, twice its mean.
    fit : Result
        With that ridge, by all rows.
    search : Result
        Of the bilevel problem; its theta holds ``"theta"``, shared by all folds, and ``"log_lam"``.
    looked, errors : NumPy arrays
        Ridges at which the error was looked at before, at the theta of a plain fit, and the errors.
    """

    lam: float
    error: float
    fit: Result
    search: Result
    looked: np.ndarray
    errors: np.ndarray

    plot = Method("xvarpro.fit.plotting.plot_cross_validation")

    def __repr__(self) -> str:
        y: Any = self.fit.stated.lower.y
        entries, rows = sum(math.prod(x.shape) for x in trees.leaves(self.fit.theta)), y.shape[0]
        seen = f"; the {entries} entries of theta have seen all {rows} rows: the error is too low"
        at_end = self.lam <= self.looked[0] * (1 + 1e-6) or self.lam >= self.looked[-1] * (1 - 1e-6)
        return (
            f"lam = {self.lam:.4g}, {'mean squared error' if self.fit.loss is None else 'twice the mean loss'} of "
            f"predictions {self.error:.4g}"
            f"{', at an end of the range: widen it' if at_end else ''} ({self.search.status.name}, "
            f"{self.search.n_iter} iterations){seen if 10 * entries > rows else ''}"
        )


def cross_validate(
    problem: Problem,
    theta0: Tree,
    over: Tree = None,
    *,
    lam: tuple[float, float],
    folds: int | Array = 5,
    seed: int = 0,
    tol: float = 1e-6,
) -> CrossValidation:
    """Choose the ridge whose w predicts rows best that it has not seen.

    Rows are dealt into folds, and w is solved for without each fold in turn: one right-hand side per fold, with its own
    weights. The objective of the upper level is the error of all predictions, which theta and the logarithm of the
    ridge minimise together, by the exact gradient: theta has seen all rows. That is harmless for a few rates. With many
    entries, as of a network, the error is too low, and so is the ridge: hold theta by `over`, or fit each fold by
    `solve`. The start is a plain fit with a ridge in the middle of the range, and the best of 13 ridges at its theta.

    Parameters
    ----------
    problem : Problem
        Separable, with an array y in memory; its own `lam` is not used.
    theta0, over
        As for `solve`.
    lam : (float, float)
        The range to look in, ``0 < low < high``.
    folds : int or array of int, shape (m,)
        How many, in [2, m]; or the fold of each row, such as blocks of rows where neighbours share their noise.
    seed : int
        Of the dealing.
    tol : float
        As for `solve`, of the fits; of the search for the ridge, its root.

    Returns
    -------
    CrossValidation

    Raises
    ------
    ProblemError
        As `solve`; the problem is of another kind; a range or folds are not as above.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> rng = np.random.default_rng(0)
    >>> A = rng.normal(size=(40, 30))
    >>> y = A @ np.ones(30) + rng.normal(size=40)
    >>> problem = xv.separable(lambda theta, A: theta * A, y, data=A)
    >>> cv = xv.statistics.cross_validate(problem, np.ones(1), xv.sets.Box(1.0, 1.0), lam=(1e-3, 1e3))
    >>> bool(1e-1 < cv.lam < 1e2)
    True
    """
    low, high = _range(lam)
    held = _folds(problem, folds, seed)
    validated = _validated(problem, held)
    looked = np.geomspace(low, high, LOOKED)
    theta = solve(_with(problem, (low * high) ** 0.5), theta0, over, tol=tol, progress=False).theta
    like = trees.leaves(theta)[0]
    starts: list[Any] = [{"theta": theta, "log_lam": sent(np.log(x), like)} for x in looked]
    count = float(np.sum(backends.to_numpy(validated.upper.weights) > 0))  # type: ignore[union-attr]
    errors = np.array([2 * float(solve_lower(validated, start).value) / count for start in starts])
    best = int(np.argmin(np.where(np.isfinite(errors), errors, np.inf)))
    sets = {"log_lam": Box(math.log(low), math.log(high)), **({} if over is None else {"theta": over})}
    search = solve_on(validated, starts[best], sets, tol=tol**0.5, progress=False)
    chosen = math.exp(float(backends.to_numpy(search.theta["log_lam"])))
    fit = solve_on(_with(problem, chosen), search.theta["theta"], over, tol=tol, progress=False)
    return CrossValidation(chosen, 2 * search.value / count, fit, search, looked, errors)


@final
@dataclass(frozen=True)
class _Inner(Struct):
    """A function of the problem's theta. A dataclass and no closure: equal ones are compiled once."""

    fun: Callable[..., Any] = REQUIRED

    def __call__(self, theta: Tree, *data: Tree) -> Any:
        return self.fun(theta["theta"], *data)


def _ridge(theta: Tree, data: Tree) -> Array:
    s = theta["log_lam"]
    return namespace_of(s).exp(s)


def _validated(problem: Problem, held: np.ndarray) -> Problem:
    """The bilevel problem of the folds: a right-hand side for each, or one for each of those of the problem."""
    level: Any = problem.lower
    y = backends.to_numpy(level.y).reshape(len(held), -1)
    given = np.ones(len(held)) if level.weights is None else backends.to_numpy(level.weights)
    weights = np.broadcast_to(given.reshape(len(held), -1), y.shape)
    labels = np.unique(held)
    targets = np.tile(y, (1, len(labels)))
    inside = np.concatenate([(held == j)[:, None] * weights for j in labels], axis=1).astype(y.real.dtype)
    outside = np.concatenate([(held != j)[:, None] * weights for j in labels], axis=1).astype(y.real.dtype)
    M = _Inner(level.M)
    lower = replace(level, M=M, y=targets, lam=_ridge, weights=outside)
    upper = Level(M, targets, weights=inside, loss=level.loss)
    R = None if problem.R is None else _Inner(problem.R)
    return bilevel(lower=lower, upper=upper, R=R, mu=problem.mu, data=problem.data)


def _folds(problem: Problem, folds: Any, seed: int) -> np.ndarray:
    """The fold of each row."""
    if not isinstance(problem, Problem):
        raise ProblemError(f"problem must come from xv.separable; got {type(problem).__name__}")
    refuse_marginal(problem, "cross-validation is of", "Pass the problem that it was made of")
    refuse_covariance(problem, "cross-validation", "Choose lam by the L-curve")
    y: Any = problem.lower.y
    if not problem.is_separable or not trees.is_array(y):
        kind = f"y as {type(y).__name__}" if problem.is_separable else "two levels"
        raise ProblemError(f"cross-validation needs a separable problem with an array y in memory; got {kind}")
    if problem.lower.loss is not None and not problem.lower.loss.by_entry:
        raise ProblemError(
            f"cross-validation needs a loss of every entry of y; got {problem.lower.loss!r}. Let the upper level of "
            "two, on other rows, choose lam(theta, data)"
        )
    return dealt(folds, y.shape[0], seed)


def dealt(folds: Any, m: int, seed: int = 0) -> np.ndarray:
    """The fold of each of m rows: by a number of folds at random, or as they were given."""
    if isinstance(folds, int) and not isinstance(folds, bool) and 2 <= folds <= m:
        return np.random.default_rng(seed).permutation(np.arange(m) % folds)
    labels = backends.to_numpy(folds) if trees.is_array(folds) else np.zeros(0)
    if labels.shape != (m,) or labels.dtype.kind not in "iu" or len(np.unique(labels)) < 2:
        raise ProblemError(
            f"folds must be a number in [2, {m}], or an integer for each of the {m} rows, of at least two values; got "
            f"{described(folds)}"
        )
    return labels


def _range(lam: Any) -> tuple[float, float]:
    ends = np.asarray(lam, dtype=np.float64).ravel()
    if ends.size != 2 or not 0 < ends[0] < ends[1] < math.inf:
        raise ProblemError(f"lam must be a range (low, high) with 0 < low < high; got {lam!r:.80}")
    return float(ends[0]), float(ends[1])
