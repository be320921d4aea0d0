"""The evidence of a model by Laplace's method."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from xvarpro import backends
from xvarpro.backends.calculus import hessian_product
from xvarpro.core import trees
from xvarpro.core.struct import Array, Leaves, Tree
from xvarpro.driver.prepare import Prepared, prepare
from xvarpro.errors import ProblemError
from xvarpro.objective.curvature import marginal_hessian
from xvarpro.objective.marginal import Marginal
from xvarpro.results.outcome import Outcome
from xvarpro.sets import Box
from xvarpro.sets.region import Region
from xvarpro.statistics.names import entry_names

AT_BOUND = 1e-8  # of the width of a set: entries nearer to a bound are at it


@dataclass(frozen=True, eq=False)
class Laplace:
    """Laplace's approximation of a posterior density, from `Result.laplace`.

    Attributes
    ----------
    log_evidence : float
        The logarithm of the density of the data, with w and theta integrated out.
    log_density : float
        That at theta, ``log p(y | theta)``.
    covariance : array, shape (p, p)
        Of the entries of theta, in the order of its leaves; zeros for those at a bound.
    theta_stderr : pytree of arrays
        Roots of its diagonal.
    parameters : int
        Entries of theta that a set does not fix.
    active : list of str
        Entries at a bound that the density rises toward.
    effective_parameters : float
        `parameters`, and the amplitudes that the data determine, ``tr H^-1 M^H M``; a complex one counts twice.
    data : int
        Numbers in the target whose weight is not 0; a complex one counts twice.
    flat : bool
        Whether some amplitudes have a flat prior, so that the evidence depends on the scale of the columns of M.
    unscaled : bool
        Whether the noise is unknown under Jeffreys' density, so that the evidence has a factor that is alike only in
        other such models.
    """

    log_evidence: float
    log_density: float
    covariance: np.ndarray
    theta_stderr: Tree
    parameters: int
    active: list[str]
    effective_parameters: float
    data: int
    flat: bool
    unscaled: bool
    target: Any = field(repr=False)  # what models of the same data have alike; None where it is not known

    @property
    def aic(self) -> float:
        """``2 parameters - 2 log_density``: w is integrated out, and theta counted."""
        return 2 * self.parameters - 2 * self.log_density

    @property
    def bic(self) -> float:
        """``log(data) parameters - 2 log_density``."""
        return math.log(self.data) * self.parameters - 2 * self.log_density


def laplace(fit: Outcome, *, prior_theta: Callable[[Tree], Array] | None = None, components: int = 1) -> Laplace:
    """The evidence of the model of a fit of `marginal`, ``log of the integral of p(y | theta) p(theta)``.

    The density is taken for a normal one around theta, with its exact Hessian, in the entries of theta that no bound
    stops. An entry at a bound that the density rises toward, with a slope g, gives ``(1 - exp(-g width)) / g``. A
    maximum near a bound, or of a width like that of the set, is not cut off there.

    Parameters
    ----------
    fit : Result
        Of `marginal`, with all rows in memory, over boxes.
    prior_theta : callable, optional
        The logarithm of the prior density of theta, a function of theta that returns a scalar, normalised over the
        sets. None is the uniform density over these, which must then be bounded.
    components : int
        The number of components that may change places: each order of them is another maximum, and the evidence is
        the factorial of that number times as large.

    Returns
    -------
    Laplace

    Raises
    ------
    ProblemError
        The fit is of another kind, or has not converged; a set is none of bounds, or is unbounded; the data do not
        determine some combination of the entries of theta.

    References
    ----------
    R. E. Kass, A. E. Raftery, Bayes factors, Journal of the American Statistical Association 90 (1995).

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> def M(theta, t):
    ...     xp = xv.array_namespace(theta)
    ...     return xp.exp(-xp.expand_dims(t, axis=1) * theta)
    >>> t = np.linspace(0.0, 2.0, 50)
    >>> y = 2.0 * np.exp(-t) + 0.01 * np.sin(40 * t)
    >>> m = xv.marginal(xv.separable(M, y, data=t, lam=1e-4), noise=0.01)
    >>> one = xv.solve(m, np.array([0.5]), over=xv.sets.Box(0.1, 10.0)).laplace()
    >>> two = xv.solve(m, np.array([0.5, 3.0]), over=xv.sets.Box(0.1, 10.0)).laplace(components=2)
    >>> one.log_evidence > two.log_evidence
    True
    """
    problem = fit.stated
    if problem.noise is None or problem.in_rows:
        found = "rows in chunks" if problem.noise is not None else "a fit of least squares"
        raise ProblemError(f"laplace needs a fit of xv.marginal with all rows in memory; got {found}")
    level: Any = problem.lower
    if callable(level.Omega) or (callable(level.lam) and not level.ridge.square):
        raise ProblemError(
            "laplace needs a ridge whose determinant it can differentiate twice; got an Omega that is a function of "
            "theta, or a lam that is, with an Omega that is not square"
        )
    if not fit.success:
        raise ProblemError(f"laplace needs a fit at a maximum; got one that ended with {fit.status.name}. Solve again")
    if not isinstance(components, int) or components < 1:
        raise ProblemError(f"components must be a whole number >= 1; got {components!r:.80}")
    prepared = prepare(problem, fit.theta, over=fit.recipe.over)
    theta, names = prepared.theta, entry_names(fit.theta)
    lower, upper = _bounds(prepared.region, theta)
    width = upper - lower
    if prior_theta is None and not np.isfinite(width).all():
        raise ProblemError(
            "the uniform density of theta needs bounded sets; got none for "
            f"{', '.join(np.array(names)[~np.isfinite(width)][:6])}. Give bounds in over=, or prior_theta="
        )
    x, value, g, H, amplitudes = _derivatives(prepared, prior_theta)
    log_density, held = -float(fit.value), width == 0
    room = AT_BOUND * np.where(np.isfinite(width), width, np.maximum(np.abs(x), 1.0))
    active = ~held & (((x - lower <= room) & (g > 0)) | ((upper - x <= room) & (g < 0)))
    free = ~(held | active)
    covariance, log_volume = _normal(g[free], H[np.ix_(free, free)], np.array(names)[free])
    rates = np.abs(g[active])
    log_volume += float(np.sum(np.log(-np.expm1(-rates * width[active]) / rates)))
    if prior_theta is None:
        log_volume -= float(np.sum(np.log(width[~held])))
    whole = np.zeros((x.size, x.size))
    whole[np.ix_(free, free)] = covariance
    noise: Any = prepared.problem.noise
    data = round(float(noise.freedom) + noise.flat)
    with prepared.backend.scope(prepared.dtype):
        errors = prepared.backend.asarray(np.sqrt(np.diagonal(whole)), dtype=prepared.dtype, device=prepared.device)
        stderr = prepared.layout.measures(trees.unraveled(errors, theta), prepared.backend)
    y: Any = problem.lower.y
    return Laplace(
        log_evidence=-value + log_volume + math.lgamma(components + 1),
        log_density=log_density,
        covariance=whole,
        theta_stderr=stderr,
        parameters=int(np.sum(~held)),
        active=[name for name, at in zip(names, active, strict=True) if at],
        effective_parameters=float(np.sum(~held)) + amplitudes,
        data=data,
        flat=noise.flat > 0,
        unscaled=noise.sigma is None and not noise.shape,
        target=backends.to_numpy(y) if trees.is_array(y) else None,
    )


def _bounds(region: Region, theta: Leaves) -> tuple[np.ndarray, np.ndarray]:
    """Bounds of all entries, (p,) each."""
    ends = [[np.full(x.shape, s * np.inf) for x in theta] for s in (-1, 1)]
    for i, C in region.constrained:
        if not isinstance(C, Box):
            raise ProblemError(
                f"laplace knows the faces of boxes; got {C!r}. Bound the entries of theta instead, or give a "
                "prior_theta in the place of the set"
            )
        for end, bound in zip(ends, (C.lower, C.upper), strict=True):
            end[i] = np.broadcast_to(np.asarray(backends.to_numpy(bound), dtype=float), theta[i].shape)
    lower, upper = (np.concatenate([x.ravel() for x in end]) for end in ends)
    return lower, upper


def _derivatives(
    prepared: Prepared, prior: Callable[[Tree], Array] | None
) -> tuple[np.ndarray, float, np.ndarray, np.ndarray, float]:
    """Theta, minus the logarithm of the posterior density, its gradient and Hessian, and what the data tell of w."""
    backend, theta = prepared.backend, prepared.theta

    def host(leaves: Leaves) -> np.ndarray:
        return np.concatenate([backend.to_numpy(x).ravel() for x in leaves]).astype(float)

    with backend.scope(prepared.dtype):
        value, slope, amplitudes = prepared.call(_at, theta)
        x, g = host(theta), host(slope)
        found = float(backend.to_floats([value])[0])
        units = [
            trees.unraveled(backend.asarray(e.astype(prepared.dtype), device=prepared.device), theta)
            for e in np.eye(x.size)
        ]
        H = np.stack([host(prepared.call(marginal_hessian, theta, u)) for u in units])
        if prior is not None:
            gradient, product = hessian_product(backend, lambda *leaves: prior(prepared.tree(leaves)), theta)
            found -= float(backend.to_floats([prior(prepared.tree(theta))])[0])
            g, H = g - host(gradient), H - np.stack([host(product(u)) for u in units])
        return x, found, g, 0.5 * (H + H.T), backend.to_floats([amplitudes])[0]


def _at(f: Marginal, theta: Leaves) -> tuple[Array, Leaves, Array]:
    point, slope = f.value_and_gradient(theta)
    _, _, solver, system = f.solved(f.evaluate(theta, f.constants))
    volume: Any = solver.volume(f.backend, system, point.factor)
    return point.value, slope, volume.dof() * (f.noise.parts * f.noise.columns / volume.stack)


def _normal(g: np.ndarray, H: np.ndarray, names: np.ndarray) -> tuple[np.ndarray, float]:
    """The inverse of H, and the logarithm of the integral of ``exp(-g d - d H d / 2)`` over d."""
    if not g.size:
        return H, 0.0
    units = np.sqrt(np.abs(np.diagonal(H)))
    units = np.where(units > 0, units, 1.0)
    bends, vectors = np.linalg.eigh(H / np.outer(units, units))
    if not bends[0] > len(g) * np.finfo(float).eps * bends[-1]:
        found = ", ".join(names[np.abs(vectors[:, 0]) > 0.1][:6])
        raise ProblemError(
            f"laplace needs a density that falls in every direction from its maximum; got one that does not along "
            f"{found}, which the data do not determine. Fix one of them, bound them more closely, or give prior_theta="
        )
    turned = vectors.T @ (g / units)
    covariance = (vectors / bends) @ vectors.T / np.outer(units, units)
    log_det = float(np.sum(np.log(bends)) + 2 * np.sum(np.log(units)))
    return covariance, 0.5 * (len(g) * math.log(2 * math.pi) - log_det + float(np.sum(turned**2 / bends)))
