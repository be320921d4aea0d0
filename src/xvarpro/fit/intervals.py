"""Confidence intervals of a fit, by any of the methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from xvarpro.core.checks import confidence, instance, shown
from xvarpro.errors import ProblemError
from xvarpro.fit.bootstrap import Bootstrap
from xvarpro.fit.profiles import Profile
from xvarpro.problem.parameters import Parameters
from xvarpro.results.outcome import Outcome
from xvarpro.statistics.intervals import IntervalMethod, Intervals, Linear, complex_w
from xvarpro.statistics.names import given_names
from xvarpro.statistics.theory import statistics

METHODS = (Linear, Profile, Bootstrap)  # with those of users, whose names are taken as well


def interval(
    fit: Outcome,
    level: float = 0.95,
    by: IntervalMethod | str | None = None,
    *,
    names: Sequence[str] | Mapping[str, Any] | Parameters | None = None,
    amplitudes: Sequence[str] | None = None,
    absolute_sigma: bool = False,
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
