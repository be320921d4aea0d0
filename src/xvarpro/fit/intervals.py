"""Confidence intervals of a fit by any of the methods; those by bootstrap solve for data made anew in one batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np

from xvarpro import backends
from xvarpro.batch.lift import lifted
from xvarpro.core import checks, trees
from xvarpro.core.checks import confidence, instance, shown
from xvarpro.core.namespace import positive_or_one
from xvarpro.errors import ProblemError
from xvarpro.fit.many import solve_many
from xvarpro.fit.profiles import Profile
from xvarpro.fit.resampling import in_real_numbers, repeated, to_solve_again
from xvarpro.problem.parameters import Parameters
from xvarpro.results.outcome import Outcome
from xvarpro.sets.each import Each
from xvarpro.statistics import prediction
from xvarpro.statistics.intervals import (
    IntervalMethod,
    Intervals,
    Linear,
    complex_w,
    estimates,
    standard_errors,
    warnings,
)
from xvarpro.statistics.names import given_names
from xvarpro.statistics.standard_errors import Statistics
from xvarpro.statistics.theory import statistics


@final
@dataclass(frozen=True)
class Bootstrap(IntervalMethod):
    """Quantiles of the estimates from data made anew: the fit plus residuals drawn with replacement, or Gaussian noise.

    Residuals are centred, and scaled by ``sqrt(data / dof)``, since those of a fit are smaller than the noise. Every
    estimate starts at the fit and stays in the sets. Source: Efron and Tibshirani, An Introduction to the Bootstrap
    (1993), chapters 9 and 13.

    Parameters
    ----------
    samples : int
        Number of data sets, >= 2, which are solved together; 200 for standard errors, 1000 or more for intervals.
    parametric : bool
        Gaussian noise of the estimated variance, or of the weights' own where sigma is known, instead of residuals.
    seed : int
        Of the draws, >= 0.

    Examples
    --------
    >>> import xvarpro as xv
    >>> xv.statistics.Bootstrap(samples=200)
    Bootstrap(samples=200, parametric=False, seed=0)
    """

    samples: int = 1000
    parametric: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        checks.whole(self, "samples", 2)
        checks.whole(self, "seed", 0)
        checks.switch("parametric", self.parametric)

    def intervals(self, fit: Outcome, s: Statistics, level: float) -> Intervals:
        problem = to_solve_again(fit)
        y: Any = problem.lower.y
        if callable(y):
            raise ProblemError("a bootstrap needs a target that is an array; got a function of theta")
        anew = self._drawn(fit, s, backends.to_numpy(y))
        many = lifted(replace(problem, lower=replace(problem.lower, y=Each(anew))))
        ends = solve_many(many, repeated(fit.theta, self.samples), fit.recipe.over, progress=False)
        parts = [backends.to_numpy(x).reshape(self.samples, -1) for x in (*trees.leaves(ends.theta), ends.w)]
        samples = np.concatenate(parts, axis=1).astype(float)[ends.success]
        notes = warnings(s)
        if len(samples) < self.samples:
            left_out = self.samples - len(samples)
            notes.append(f"{left_out} of {self.samples} samples did not converge and are left out")
        if not len(samples):
            raise ProblemError("no sample of the bootstrap converged: look at one of them by xv.solve")
        lower, upper = np.quantile(samples, [(1 - level) / 2, (1 + level) / 2], axis=0)
        lost = np.isinf(standard_errors(s))  # where a solve leaves them says nothing
        lower, upper = np.where(lost, -np.inf, lower), np.where(lost, np.inf, upper)
        kind = "parametric bootstrap" if self.parametric else "bootstrap of residuals"
        return Intervals([*s.names, *s.w_names], estimates(fit), lower, upper, level, kind, notes, samples)

    def _drawn(self, fit: Outcome, s: Statistics, y: np.ndarray) -> np.ndarray:
        """Targets, (samples, m) or (samples, m, k); 0 where they have no weight."""
        rng = np.random.default_rng(self.seed)
        fitted: Any = backends.to_numpy(prediction.fitted(fit.stated, fit.theta, fit.w))
        root = s.at.row_by_row("bootstrap intervals")
        if np.iscomplexobj(fitted):
            fitted, root = in_real_numbers(fitted), np.concatenate([root, root])
        root = root.reshape(y.shape)
        used = root > 0
        if self.parametric:
            noise = s.variance**0.5 * rng.standard_normal((self.samples, *y.shape))
        elif s.dof < 0.5:
            raise ProblemError(
                "a bootstrap of residuals needs more data than parameters; got residuals that say nothing of the fit. "
                "Use Bootstrap(parametric=True) with absolute_sigma=True"
            )
        else:
            left = s.at.whitened(root * (y - fitted))[used]
            # a fit without a constant leaves a mean, which would move all samples one way
            centred = left - np.mean(left)
            left = centred * (np.linalg.norm(left) / positive_or_one(np.linalg.norm(centred)) * (s.data / s.dof) ** 0.5)
            noise = rng.choice(left, (self.samples, *y.shape))
        noise = np.stack([s.at.unwhitened(x) for x in noise])
        return np.where(used, fitted + noise / np.where(used, root, 1.0), 0.0).astype(y.dtype)


METHODS = (Linear, Profile, Bootstrap)  # with those of users, whose names are taken as well


def interval(
    fit: Outcome,
    level: float = 0.95,
    by: IntervalMethod | str | None = None,
    *,
    names: Sequence[str] | Mapping[str, Any] | Parameters | None = None,
    amplitudes: Sequence[str] | None = None,
    absolute_sigma: bool | None = None,
) -> Intervals:
    """Confidence intervals of theta's entries, and of w's.

    Parameters
    ----------
    fit : Result
    level : float
        In (0, 1).
    by : IntervalMethod or str, optional
        ``xv.statistics.Linear()``, the default, ``Profile()`` or ``Bootstrap(samples)``; or "linear", "profile" or
        "bootstrap".
    names, amplitudes : optional
        As for `report`.
    absolute_sigma : bool
        Whether the problem's weights are 1 / sigma^2 of the data.

    Returns
    -------
    Intervals

    Raises
    ------
    ProblemError
        As `linear_theory`; the method is not for this problem; w is complex.
    ImportError
        Quantiles need SciPy.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> x = np.linspace(0.0, 1.0, 20)
    >>> y = 2.0 * x**1.5 + 0.01 * np.cos(30 * x)
    >>> fit = xv.solve(xv.separable(lambda theta, x: x[:, None] ** theta, y, data=x), np.array([1.0]))
    >>> found = fit.interval(0.9, "profile")
    >>> bool(found.lower[0] < 1.5 < found.upper[0])
    True
    """
    confidence(level)
    found = instance(Linear() if by is None else by, IntervalMethod)
    if found is None:
        raise ProblemError(
            "by must be 'linear', 'profile' or 'bootstrap', or one of xv.statistics."
            f"{', '.join(f'{kind.__name__}()' for kind in METHODS)}; got {shown(by)}"
        )
    if not fit.in_columns and complex_w(fit):
        raise ProblemError("intervals need a real w; got a complex one. fit.statistics() has errors of both its parts")
    shape = (fit.verified.units,) if fit.in_columns else tuple(fit.w.shape)
    of_theta, of_w = given_names(fit.theta, shape, names, amplitudes)
    s = replace(statistics(fit, absolute_sigma=absolute_sigma), names=of_theta, w_names=of_w)
    return found.intervals(fit, s, float(level))
