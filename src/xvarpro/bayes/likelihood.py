"""Marginal likelihoods: the amplitudes w integrated out, as a problem for `solve` and as a density for samplers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from xvarpro.backends import Backend, exchange, modules, to_numpy
from xvarpro.bayes.coordinates import Unconstrained, density
from xvarpro.core.checks import described, number
from xvarpro.core.struct import Array, Tree
from xvarpro.core.trees import is_array
from xvarpro.driver.evaluate import evaluated
from xvarpro.driver.prepare import Prepared, prepare
from xvarpro.errors import ProblemError
from xvarpro.problem.column_chunks import ColumnChunks
from xvarpro.problem.noise import InverseGamma, Noise
from xvarpro.problem.problem import Level, Problem
from xvarpro.problem.row_chunks import RowChunks
from xvarpro.problem.whitening import Whitening

Given: TypeAlias = float | InverseGamma | Array | tuple[Callable[[Array], Array], float] | None


@dataclass(frozen=True)
class Marginal(Problem):
    """A problem whose objective is minus the log marginal likelihood, made by `marginal`."""

    def log_density(self, theta: Tree, backend: str | Backend | None = None) -> Array:
        """``log p(y | theta)``, all constants included, 0-d.

        It is computed in theta's framework, on its device and in its precision, or on another `backend`.

        Raises
        ------
        ProblemError
            The density is not finite: w is not unique and has no prior, or the residual is 0 and the noise unknown.

        Examples
        --------
        >>> import numpy as np, xvarpro as xv
        >>> model = xv.separable(lambda theta, t: t[:, None] ** theta, np.array([1.0, 4.1]), data=np.array([1.0, 2.0]))
        >>> float(xv.marginal(model, noise=0.1).log_density(np.array([2.0])).round(6))
        -0.062372
        """
        prepared = self._at(theta, backend)
        return self._finite(prepared, prepared.call(density, prepared.theta))

    def log_density_and_gradient(self, theta: Tree, backend: str | Backend | None = None) -> tuple[Array, Tree]:
        """`log_density`, and its gradient in the structure of theta.

        Examples
        --------
        >>> import numpy as np, xvarpro as xv
        >>> model = xv.separable(lambda theta, t: t[:, None] ** theta, np.array([1.0, 4.1]), data=np.array([1.0, 2.0]))
        >>> value, gradient = xv.marginal(model, noise=0.1).log_density_and_gradient(np.array([2.0]))
        >>> gradient.round(3)
        array([1.017])
        """
        prepared = self._at(theta, backend)
        value, gradient = prepared.call(evaluated, prepared.theta)
        down = prepared.layout.measures(tuple(-x for x in gradient), prepared.backend)
        return self._finite(prepared, value), modules.by_name(down)

    def unconstrained(
        self,
        theta0: Tree,
        over: Tree = None,
        *,
        prior_theta: Callable[[Tree], Array] | None = None,
        backend: str | Backend | None = None,
    ) -> Unconstrained:
        """The density of theta given the data in coordinates that are all real numbers, for any sampler."""
        found = Unconstrained(self, theta0, over, prior_theta, backend)
        _ = found.size  # refuses other sets
        return found

    def _at(self, theta: Tree, backend: Any) -> Prepared:
        """What the last call has prepared, where that fits: samplers ask at many theta."""
        asked, last = vars(self).get("_last", (None, None))
        found = last.at(self, theta, None) if last is not None and asked == backend else None
        found = found or prepare(self, theta, backend=backend)
        vars(self)["_last"] = backend, found
        return found

    def __getstate__(self) -> dict[str, Any]:
        """For pickle and copies, without what a call has prepared."""
        return {name: x for name, x in vars(self).items() if name != "_last"}

    def _finite(self, prepared: Prepared, value: Array) -> Array:
        if not math.isfinite(prepared.backend.to_floats([value])[0]):
            raise ProblemError(
                "the marginal likelihood must have a finite density; got none at theta: there M(theta) is not finite, "
                "or its columns depend on each other and w has no prior, or the residual is 0 and the noise is not "
                "known. Keep theta away from there by its set, or pass lam > 0 or noise="
            )
        return prepared.layout.array(-value, prepared.backend)


def marginal(problem: Problem, noise: Given = None, prior: Array | None = None) -> Marginal:
    """The log marginal likelihood ``log p(y | theta)``: the amplitudes w integrated out, exactly.

    The data are ``y = M(theta) w`` and noise that is normal, of standard deviation sigma, or ``sigma / sqrt(weight)``.
    The ridge of the problem is the prior of w, normal with mean `prior` and covariance
    ``sigma^2 (lam Omega^H Omega)^-1``; with ``lam = 0`` it is flat, and the likelihood is integrated over all w, which
    is that of restricted maximum likelihood (REML), whose value depends on the scale of the columns of M.
    ``docs/mathematics.md`` has the formula. A design that is an operator is made an array, for its determinant.

    Parameters
    ----------
    problem : Problem
        From `separable`, in least squares and without a penalty on theta.
    noise : float, InverseGamma, array or pair, optional
        What is known of the noise.

        - A number: its standard deviation sigma; of complex data that of the real and of the imaginary part.
        - None: sigma is unknown, and integrated out with Jeffreys' density ``1 / sigma^2`` of ``sigma^2``.
        - `InverseGamma`: the same with that density of ``sigma^2``.
        - An array (m, m): the covariance of the noise of each column of y; (m,): its first column where it is a
          Toeplitz matrix, as that of stationary noise is.
        - ``(whiten, log_det)``: a function of matrices (m, k) that returns ``L^-1 x``, for a covariance ``L L^T``,
          written with the namespace of x, and the logarithm of the determinant of the covariance.

        Standard deviations of each number are weights ``1 / sigma^2`` of the problem, with ``noise=1.0``.
    prior : array, shape (n,) or (n, k), optional
        Mean of w where lam > 0; None is 0.

    Returns
    -------
    Marginal
        A `Problem`: `solve` maximises the likelihood over theta, and `Result.value` is minus its logarithm, to which,
        or to half the number of data where that is more, tolerances are relative.

    Raises
    ------
    ProblemError
        The problem is of another kind, such as one whose w lies in a set, where the integral has no closed form. The
        noise is not positive.

    References
    ----------
    D. J. C. MacKay, Bayesian interpolation, Neural Computation 4 (1992).

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> def M(theta, t):
    ...     xp = xv.array_namespace(theta)
    ...     return xp.exp(-xp.expand_dims(t, axis=1) * theta)
    >>> t = np.linspace(0.0, 2.0, 50)
    >>> y = 2.0 * np.exp(-t) + 0.01 * np.sin(40 * t)
    >>> m = xv.marginal(xv.separable(M, y, data=t, lam=1e-4), noise=0.01)
    >>> xv.solve(m, np.array([0.5]), over=xv.sets.Box(0.1, 10.0)).theta.round(2)
    array([1.])
    """
    if not isinstance(problem, Problem) or problem.noise is not None:
        found = "one that is a marginal likelihood" if isinstance(problem, Problem) else type(problem).__name__
        raise ProblemError(f"marginal needs a problem of xv.separable; got {found}")
    level = problem.lower
    if level.W is not None:
        raise ProblemError(
            f"a marginal likelihood needs w without a set, where its integral has a closed form; got W={level.W!r}. "
            "Leave W out; or keep it, solve the problem itself, and take intervals from profiles or a bootstrap: "
            "fit.interval() with xv.statistics.Profile() or xv.statistics.Bootstrap()"
        )
    given = "two levels" if problem.upper is not None else f"loss={level.loss!r}" if level.loss is not None else ""
    if given or problem.mu or isinstance(level.y, ColumnChunks):
        given = given or ("a penalty mu R(theta)" if problem.mu else "ColumnChunks")
        raise ProblemError(
            "a marginal likelihood needs one level of least squares, with no penalty on theta, and y as an array, a "
            f"function or RowChunks; got {given}"
        )
    level, stated = _noise(problem, noise)
    if prior is not None:
        stated["mean"] = exchange.as_array(prior, "prior")
        flat = not callable(level.lam) and not level.ridge.present
        if flat or isinstance(level.y, RowChunks) or not is_array(stated["mean"]):
            found = "lam = 0, which is a flat prior" if flat else type(level.y if is_array(prior) else prior).__name__
            raise ProblemError(
                f"prior must be an array, the mean of w, with lam > 0 and y as an array or a function; got {found}"
            )
    fields = {**vars(problem), "lower": level, "noise": Noise(**stated)}
    if prior is not None:  # every right-hand side has the same one, which those of a compressed target do not
        fields["compress"] = False
    return Marginal(**fields)


def _noise(problem: Problem, noise: Given) -> tuple[Level, dict[str, Any]]:
    """The level with the covariance of its data, and what `Noise` states besides."""
    level = problem.lower
    if noise is None:
        return level, {}
    if isinstance(noise, InverseGamma):
        if not (0 < number(noise.shape) < math.inf and 0 < number(noise.scale) < math.inf):
            raise ProblemError(f"noise: the shape and the scale of an InverseGamma must be > 0; got {noise}")
        return level, {"shape": float(noise.shape), "scale": float(noise.scale)}
    if isinstance(noise, tuple):
        alone = level.weights is None and level.covariance is None and not problem.in_rows
        if not alone or len(noise) != 2 or not callable(noise[0]) or not math.isfinite(number(noise[1])):
            raise ProblemError(
                "noise must be a number, a covariance, or a pair (whiten, log_det) for a target in memory and a "
                f"problem without weights and covariance; got {described(noise)}"
            )
        return replace(level, weights=Whitening(noise[0], -0.5 * number(noise[1]))), {"sigma": 1.0}
    if is_array(noise) and noise.ndim:
        return replace(level, covariance=noise if noise.ndim != 1 else _toeplitz(to_numpy(noise))), {"sigma": 1.0}
    if not 0 < number(noise) < math.inf:
        raise ProblemError(f"noise must be a standard deviation > 0; got {described(noise)}")
    return level, {"sigma": number(noise)}


def _toeplitz(first: np.ndarray) -> np.ndarray:
    C: np.ndarray = first[np.abs(np.subtract.outer(np.arange(first.size), np.arange(first.size)))]
    try:
        np.linalg.cholesky(C)
    except np.linalg.LinAlgError:
        raise ProblemError(
            f"noise of shape ({first.size},) must be the first column of a Toeplitz covariance; got one that is not "
            "positive definite. Standard deviations of each number are weights=1 / sigma**2 of the problem, with "
            "noise=1.0"
        ) from None
    return C
