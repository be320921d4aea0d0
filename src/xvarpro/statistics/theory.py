"""Linear theory at a solution: the variance of the noise, and what it makes uncertain."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from xvarpro.backends import Backend
from xvarpro.core import trees
from xvarpro.core.checks import switch
from xvarpro.core.status import Status
from xvarpro.core.struct import Tree
from xvarpro.driver.prepare import Prepared
from xvarpro.errors import ProblemError
from xvarpro.losses.interface import Loss
from xvarpro.losses.robust import Robust
from xvarpro.problem.problem import Problem
from xvarpro.results.outcome import Outcome
from xvarpro.statistics import weighting
from xvarpro.statistics.covariance import Influence
from xvarpro.statistics.linearised import linearised, scattered
from xvarpro.statistics.names import entry_names, indexed
from xvarpro.statistics.standard_errors import OFF, QUIET, Statistics, noise_variance, or_inf


def linear_theory(
    problem: Problem,
    theta: Tree,
    over: Tree = None,
    *,
    absolute_sigma: bool = False,
    sandwich: bool = False,
    backend: str | Backend | None = None,
    device: Any = None,
    dtype: str | None = None,
) -> Statistics:
    """Standard errors and the goodness of a fit at a solution, by linear theory.

    Noise is taken to be independent from one number of the target to the next, with mean 0 and a variance of
    ``variance / weight``. Constraints that are active count as equalities: theta varies in the face of its sets, and w
    in that of its own. Standard errors there are those of linear theory for the face; they are not calibrated.

    Parameters
    ----------
    problem : Problem
        Separable, with a constant `lam` and no penalty on theta.
    theta : pytree of arrays
        A solution, ``Result.theta``.
    over : Set, Free or a tree of them, optional
        As for `solve`.
    absolute_sigma : bool
        Whether weights are 1 / sigma^2 of the data. Otherwise they are relative, and the residual gives the variance.
    sandwich : bool
        Let each residual speak for the noise of its own datum: standard errors that do not rely on the weights (those
        of White, with the factor ``data / dof``: HC1).
    backend, device, dtype : optional
        Where to compute derivatives; theta's own by default. What follows from them is computed in NumPy.

    Returns
    -------
    Statistics

    Raises
    ------
    ProblemError
        The problem is of another kind; there are no more data than parameters and `absolute_sigma` is False; the
        residual is not finite; a set of theta has neither a projection nor faces; `absolute_sigma` and `sandwich` are
        both asked for.

    References
    ----------
    H. White, A heteroskedasticity-consistent covariance matrix estimator, Econometrica 48 (1980).

    Examples
    --------
    A straight line, whose standard errors are those of the textbook:

    >>> import numpy as np, xvarpro as xv
    >>> x = np.array([0.0, 1.0, 2.0, 3.0])
    >>> y = np.array([1.0, 2.9, 5.2, 6.9])
    >>> problem = xv.separable(lambda theta, A: theta * A, y, data=np.stack([x, x**0], axis=1))
    >>> found = xv.statistics.linear_theory(problem, np.ones(1), xv.sets.Box(1.0, 1.0))
    >>> np.round(found.w_stderr, 4)
    array([0.0775, 0.1449])
    """
    place = {"backend": backend, "device": device, "dtype": dtype}
    return theory(problem, theta, over, None, *noise_from(None, False, absolute_sigma, sandwich), None, **place)


def statistics(
    fit: Outcome,
    *,
    absolute_sigma: bool | None = None,
    sandwich: bool | None = None,
    backend: str | Backend | None = None,
) -> Statistics:
    """Standard errors, covariance and goodness of a fit: `linear_theory` at its solution, which has the errors raised.

    Of a fit by a log likelihood the covariance is the inverse of Fisher's information on theta and w. Other losses have
    that of the sandwich formula: neither their curvature nor their size says how large the noise is.

    Parameters
    ----------
    fit : Result
    absolute_sigma, sandwich, backend
        As for `linear_theory`; by default `absolute_sigma` is True for a log likelihood of `solve`, and `sandwich` for
        other losses, and for all of `solve_robust` whose sigma is not known.

    Returns
    -------
    Statistics

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> def M(theta, t):
    ...     xp = xv.array_namespace(theta)
    ...     return xp.exp(-xp.expand_dims(t, axis=1) * theta)
    >>> t = np.linspace(0.0, 1.0, 50)
    >>> fit = xv.solve(xv.separable(M, np.exp(-3.0 * t) + 0.01 * np.sin(40 * t), data=t), np.array([2.0]))
    >>> fit.statistics().theta_stderr.round(3), fit.statistics().dof
    (array([0.015]), 48.0)
    """
    problem, loss = weighting.least_squares(fit), fit.loss
    absolute_sigma, sandwich = noise_from(loss, fit.known_noise, absolute_sigma, sandwich)
    given = (fit.theta, fit.recipe.over, fit._prepared, absolute_sigma, sandwich, weighting.deviance(fit))
    found = theory(problem, *given, backend=backend)
    if loss is not None and not loss.by_entry:
        found = _of_classes(found, fit)
    elif loss is not None and loss.linked:  # its target is none of the data
        found = replace(found, r_squared=math.nan)
    elif not _noisy(loss):
        found = replace(found, r_squared=math.nan, chi2=math.nan, residual_variance=math.nan)
    if loss is not None and loss.by_entry and found.at.w.shape != (shape := tuple(fit.w.shape)) and len(shape) > 1:
        found = replace(found, r_squared=math.nan, w_shape=shape, w_names=indexed("w", shape))
    if not fit.success:
        found.remarks.append(
            f"the solve ended with {fit.status.name}: errors are those of this point, which need not be a minimum"
        )
    # k standard errors raise the objective by k^2 / 2 variances; tol^2 of it may be left, or its rounding
    value, tol = max(fit.value, 0.0), fit.recipe.tol
    if fit.status is Status.ROUNDING:
        tol = max(tol, math.sqrt(np.finfo(fit.provenance["dtype"]).eps))
    left = tol * math.sqrt(2 * value / found.variance) if found.variance > 0 else 0.0
    if found.sandwich:
        with np.errstate(**QUIET):
            same = np.full_like(found.noise, found.variance**0.5)
            errors, alike = (found.influence.errors_of_theta(noise) for noise in (found.noise, same))
        left *= float(np.max(alike[errors > 0] / errors[errors > 0], initial=1.0))
    if left > OFF:
        found.remarks.append(
            f"tol is relative to the objective, {value:.1e}, and leaves theta up to {left:.1g} standard errors "
            "off: solve with a smaller one, or without the ridge or the penalty that outweighs the residual"
        )
    return found


def _noisy(loss: Loss | None) -> bool:
    """Whether the curvature has the size of noise."""
    return loss is None or loss.likelihood or isinstance(loss, Robust)


def noise_from(loss: Loss | None, known: bool, absolute_sigma: bool | None, sandwich: bool | None) -> tuple[bool, bool]:
    """`absolute_sigma` and `sandwich` with their defaults, of a loss that gives errors by these."""
    if absolute_sigma is None:
        absolute_sigma = known and not sandwich
    if sandwich is None:
        sandwich = loss is not None and not absolute_sigma
    if not ((_noisy(loss) or sandwich) and (loss is None or loss.by_entry or absolute_sigma)):
        way = "the likelihood, since entries of a row are not independent" if _noisy(loss) else "the sandwich formula"
        raise ProblemError(
            f"standard errors of a fit by {loss!r} are those of {way}; got absolute_sigma={absolute_sigma} and "
            f"sandwich={sandwich}. Leave both out"
        )
    switch("absolute_sigma", absolute_sigma)
    switch("sandwich", sandwich)
    if absolute_sigma and sandwich:
        raise ProblemError("absolute_sigma and sandwich must not both be True: only the first one trusts the weights")
    return absolute_sigma, sandwich


def _of_classes(s: Statistics, fit: Outcome) -> Statistics:
    """Statistics of one target of all entries as those of its rows, each of which is one datum."""
    n, k = shape = tuple(fit.w.shape)
    rows = s.data // k
    dof = rows * (k - 1) - s.parameters
    numbers: Any = {"data": rows, "dof": dof, "residual_variance": s.chi2 / dof if dof >= 0.5 else math.nan}
    bic = s.aic + (math.log(rows) - 2) * s.parameters
    return replace(s, **numbers, bic=bic, r_squared=math.nan, w_shape=shape, w_names=indexed("w", (n, k)))


def theory(
    problem: Problem,
    theta: Tree,
    over: Tree,
    solved: Prepared | None,
    absolute_sigma: bool,
    sandwich: bool,
    deviance: float | None,
    **place: Any,
) -> Statistics:
    """`linear_theory`; `solved` as for `linearised`, `deviance` that of a fit by a loss."""
    at = linearised(problem, theta, over, solved, **place)
    at, sizes = scattered(at) if sandwich else (at, None)
    prepared, real = at.prepared, at.in_real_numbers
    with np.errstate(**QUIET):
        influence = Influence(real)
    r = real.residual
    data, chi2 = at.data, float(np.sum(r * r))
    dof = data - influence.parameters
    dof = 0.0 if abs(dof) < 1e-9 * data else dof  # by rounding
    enough = dof >= 0.5  # whether the residual says anything of the fit
    lost = influence.undetermined_theta.any() or influence.undetermined_w.any()
    if not enough and not absolute_sigma:
        advice = (
            "Fix or leave out some of those that the data cannot determine, or take more data"
            if lost
            else "Give weights 1 / sigma^2 and absolute_sigma=True, or fix some"
        )
        raise ProblemError(
            f"standard errors need more data than parameters; got {data} numbers in the target and "
            f"{'more' if lost else f'{influence.parameters:.4g}'} parameters. {advice}"
        )
    # data are known to rounding at best: a residual of 0 makes no error 0
    rounding = (float(np.finfo(prepared.dtype).eps) * float(np.linalg.norm(real.y))) ** 2
    with np.errstate(**QUIET):
        variance = 1.0 if absolute_sigma else float(noise_variance(chi2, np.float64(dof), data, rounding))
    noise = np.full(r.shape, variance**0.5)
    if sizes is not None:
        noise = np.maximum(sizes * (data / dof) ** 0.5, (rounding / data) ** 0.5)
    with np.errstate(**QUIET):
        theta_stderr = or_inf(influence.errors_of_theta(noise), influence.undetermined_theta)
    if not enough:
        unlikely = math.nan
    elif deviance is not None:
        unlikely = deviance
    else:
        unlikely = data * math.log(chi2 / data) if chi2 else -math.inf
    errors, backend = prepared.to_backend(theta_stderr), prepared.backend
    with backend.scope(prepared.dtype):
        measured = prepared.layout.measures(trees.unraveled(errors, prepared.theta), backend)
    return Statistics(
        theta_stderr=measured,
        data=data,
        parameters=influence.parameters,
        dof=dof,
        chi2=chi2,
        residual_variance=chi2 / dof if enough else math.nan,
        r_squared=1 - chi2 / at.spread if enough and at.spread > 0 else math.nan,
        aic=unlikely + 2 * influence.parameters,
        bic=unlikely + math.log(data) * influence.parameters,
        variance=variance,
        absolute_sigma=bool(absolute_sigma),
        sandwich=bool(sandwich),
        noise=noise,
        names=entry_names(theta),
        w_names=indexed("w", at.w.shape[: 1 if at.in_columns or prepared.vector else 2]),
        deviance=deviance,
        at=at,
        influence=influence,
    )
