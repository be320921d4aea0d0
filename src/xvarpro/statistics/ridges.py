"""The choice of a ridge: generalised cross-validation and the L-curve along a path of fits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from xvarpro import backends
from xvarpro.core import trees
from xvarpro.core.struct import Tree
from xvarpro.driver.solve import solve
from xvarpro.errors import ProblemError
from xvarpro.problem.problem import Problem
from xvarpro.results.result import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure, FigureBase


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

    def plot(self, *, figure: FigureBase | None = None) -> Figure:
        """The L-curve, and generalised cross-validation against the ridge, in a new figure or the caller's."""
        from xvarpro.results.plotting import COLOURS, blank, legend_above, tidy

        fig = blank(figure, 7.2, 3.0)
        curve, score = fig.subplots(1, 2)
        curve.loglog(self.residual_norm, self.weight_norm, color=COLOURS[0], marker=".")
        curve.set(xlabel="|M w − y|", ylabel="|Ω w|")
        score.loglog(self.lam, self.gcv, color=COLOURS[0], marker=".")
        score.set(xlabel="ridge λ", ylabel="GCV")
        ring = {"markersize": 10.0, "fillstyle": "none", "markeredgewidth": 1.6}  # which both may share
        for i, style, label in (
            (self.best, {"color": COLOURS[1]}, "least GCV"),
            (self.corner, {"color": COLOURS[2], **ring}, "corner"),
        ):
            name = f"{label}, λ = {self.lam[i]:.2g}"
            curve.plot(self.residual_norm[i], self.weight_norm[i], "o", label=name, **style)
            score.plot(self.lam[i], self.gcv[i], "o", **style)
        legend_above(curve, ncols=1)
        tidy(curve)
        tidy(score)
        return fig


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
    fits, rows, theta = [], [], theta0
    for ridge in ridges.tolist():
        fit = solve(replace(problem, lower=replace(problem.lower, lam=ridge)), theta, over, tol=tol, progress=False)
        s, theta = fit.statistics(absolute_sigma=True), fit.theta
        rows.append((s.chi2**0.5, _norm(problem, fit), s.parameters, s.data * s.chi2 / (s.data - s.parameters) ** 2))
        fits.append(fit)
    residual_norm, weight_norm, parameters, gcv = np.array(rows).T
    return RidgePath(ridges, residual_norm, weight_norm, parameters, gcv, fits)


def _norm(problem: Problem, fit: Result) -> float:
    """``|Omega w|``."""
    w, ridge = backends.to_numpy(fit.w), trees.map_arrays(backends.to_numpy, problem.lower.ridge)
    return float(np.linalg.norm(ridge.weighted(w.reshape(len(w), -1))))
