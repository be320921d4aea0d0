"""Functions of models that the array API standard lacks, on every backend and with derivatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from xvarpro.backends.external import call
from xvarpro.backends.special import evaluate
from xvarpro.core.struct import Array

__all__ = ["erf", "erfc", "erfcx", "external", "gammaln"]


def erf(x: Array) -> Array:
    """Error function, ``2 / sqrt(pi)`` times the integral of ``exp(-t^2)`` from 0 to x.

    Parameters
    ----------
    x : array of any shape
        float32 or float64; an array of any framework, or what a model function is given.

    Returns
    -------
    array
        In the shape and dtype of `x`, within (-1, 1), to a few eps. Derivatives of every order are exact to a few eps
        times ``1 + x^2``, the condition of ``exp(-x^2)``.

    Raises
    ------
    ModelError
        `x` is no array, or not real floating.
    BackendNotInstalledError
        On NumPy without SciPy: ``pip install 'xvarpro[scipy]'``.

    Notes
    -----
    Values are those of ``scipy.special``, ``cupyx.scipy.special``, ``torch.special`` or ``jax.scipy.special``. Formulas
    are those of the NIST Digital Library of Mathematical Functions, chapter 7.

    Examples
    --------
    A step blurred by a Gaussian whose width is fitted:

    >>> import numpy as np, xvarpro as xv
    >>> def M(theta, t):
    ...     xp = xv.array_namespace(theta)
    ...     return xp.expand_dims(1.0 + xv.special.erf(t / theta[0]), axis=1)
    >>> t = np.linspace(-3.0, 3.0, 50)
    >>> problem = xv.separable(M, 2.0 * (1.0 + xv.special.erf(t / 0.8)), data=t)
    >>> fit = xv.solve(problem, np.array([1.5]), over=xv.sets.Box(0.1, 5.0))
    >>> round(float(fit.theta[0]), 6)
    0.8
    """
    return evaluate(x, "erf")


def erfc(x: Array) -> Array:
    """Complementary error function ``1 - erf(x)``, without the difference where x is large.

    Parameters
    ----------
    x : array of any shape
        As for `erf`.

    Returns
    -------
    array
        In the shape and dtype of `x`, within (0, 2), to a few eps times ``1 + x^2``; it underflows beyond x = 26
        (float32: 9), where `erfcx` does not. Derivatives as those of `erf`.

    Raises
    ------
    ModelError, BackendNotInstalledError
        As `erf`.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> float(xv.special.erfc(np.asarray(0.0)))
    1.0
    """
    return evaluate(x, "erfc")


def erfcx(x: Array) -> Array:
    """Scaled complementary error function ``exp(x^2) erfc(x)``: exponentials convolved with a Gaussian.

    Parameters
    ----------
    x : array of any shape
        As for `erf`.

    Returns
    -------
    array
        In the shape and dtype of `x`, positive: infinite below x = -26.6 (float32: -9.3), near ``1 / (x sqrt(pi))`` for
        large x. Values and derivatives of every order to a few eps for x > 2, and to a few eps times ``1 + x^2`` for
        x < 0, the condition of ``exp(x^2)``; in between values to a few eps, the first derivative to 30 eps, the second
        to 200 eps.

    Raises
    ------
    ModelError, BackendNotInstalledError
        As `erf`.

    Notes
    -----
    A decay ``exp(-k t)`` from t = 0 on, convolved with a Gaussian of width s (its standard deviation), is
    ``1/2 exp(-t^2 / (2 s^2)) erfcx(z)`` with ``z = (k s - t / s) / sqrt(2)``. Where z is very negative, that is 0 times
    infinity: there ``1/2 exp(k^2 s^2 / 2 - k t) erfc(z)`` is the same number, and ``docs/special.md`` has a model that
    chooses.

    From x = 2 on derivatives come from Laplace's continued fraction; W. Gautschi, Computational aspects of three-term
    recurrence relations, SIAM Review 9 (1967).

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> xv.special.erfcx(np.array([0.0, 1e10])) * np.array([1.0, 1e10 * np.sqrt(np.pi)])
    array([1., 1.])
    """
    return evaluate(x, "erfcx")


def external(
    fun: Callable[[np.ndarray], Any],
    x: Array,
    jacobian: Callable[[np.ndarray], Any] | None = None,
    step: float | None = None,
) -> Array:
    """``fun(x)`` for a function of NumPy arrays, such as a solver of SciPy's or an older program, inside of a model.

    Parameters
    ----------
    fun : callable
        ``fun(x)`` -> real array of any shape, always the same, for a NumPy array; called once for a value.
    x : array of any shape
        Real floating; an array of any framework, or what a model function is given.
    jacobian : callable, optional
        ``jacobian(x)`` -> array of the shape of ``fun(x)`` followed by that of `x`. Without it derivatives are central
        differences: two more calls of `fun` for each entry of `x`, and one-sided where one of them is not finite.
    step : float > 0, optional
        Of the differences, relative to each entry (absolute where that is 0); ``eps^(1/3) = 6e-6`` by default, the
        right one for rounding alone. For an error e of `fun`, such as the tolerance of a solver, take ``e^(1/3)``.

    Returns
    -------
    array
        In the shape that `fun` returns, the dtype and framework of `x`.

    Raises
    ------
    ModelError
        `x` is no real floating array; `fun` or `jacobian` returned something else, or another shape.
    UnsupportedError
        On JAX, where functions of models are compiled.

    Notes
    -----
    It has first derivatives, which are all that `solve`, `statistics` and marginal likelihoods need of a model;
    derivatives of a second order leave out its curvature. Differences are right to about ``step^2``, so that a gap at
    the end of a solve is not smaller than that: choose ``tol`` accordingly.

    Examples
    --------
    The speed of a logistic growth, solved by SciPy:

    >>> import numpy as np, xvarpro as xv
    >>> from scipy.integrate import solve_ivp
    >>> t = np.linspace(0.0, 8.0, 30)
    >>> def growth(rate):
    ...     return solve_ivp(lambda t, y: rate * y * (1 - y), (0, 8), [0.05], t_eval=t, rtol=1e-9, atol=1e-12).y.T
    >>> def M(theta, data):
    ...     return xv.special.external(growth, theta, step=1e-3)
    >>> fit = xv.solve(xv.separable(M, 3.0 * growth(1.2)[:, 0]), np.array([0.7]), over=(0.1, 5.0))
    >>> round(float(fit.theta[0]), 4), round(float(fit.w[0]), 4)
    (1.2, 3.0)
    """
    return call(fun, x, jacobian, step)


def gammaln(x: Array) -> Array:
    """Logarithm of the gamma function, for x > 0.

    Parameters
    ----------
    x : array of any shape
        As for `erf`, and > 0; elsewhere values and derivatives are what the framework gives.

    Returns
    -------
    array
        In the shape and dtype of `x`, to a few eps of ``max(1, |gammaln(x)|)``: there are zeros at 1 and 2. Derivatives
        of every order, the polygamma functions; the first to a few eps of ``max(1, |.|)``, the others to a few eps.

    Raises
    ------
    ModelError, BackendNotInstalledError
        As `erf`.

    Notes
    -----
    The derivative of order n > 1 is ``(-1)^n (n - 1)! zeta(n, x)`` with the zeta function of Hurwitz; NIST Digital
    Library of Mathematical Functions, 5.15 and 25.11.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> np.round(np.exp(xv.special.gammaln(np.array([1.0, 2.0, 5.0]))), 9)
    array([ 1.,  1., 24.])
    """
    return evaluate(x, "gammaln")
