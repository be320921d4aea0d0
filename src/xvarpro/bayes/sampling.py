"""Draws of theta by independence Metropolis, and exact ones of w and of the noise given theta."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import islice, permutations, product
from numbers import Integral
from typing import Any

import numpy as np

from xvarpro.backends import to_numpy
from xvarpro.bayes.coordinates import Unconstrained
from xvarpro.bayes.draws import Draws
from xvarpro.bayes.evidence import near, orders, reordered, scaled_eigen
from xvarpro.core import trees
from xvarpro.core.checks import described
from xvarpro.core.struct import Array, Leaves, Tree
from xvarpro.driver.prepare import Prepared, prepare
from xvarpro.errors import ProblemError
from xvarpro.objective.interface import Objective
from xvarpro.results.outcome import Outcome
from xvarpro.results.recipe import Opaque

DOF = 5.0  # of the proposals, whose tails are then those of no smooth density with an exponent
BURN_IN = 0.1  # more draws, which are left out
STEPS = 50  # of Newton's method
REACHED = 8.0  # standard deviations to another order, where proposals still are
EITHER = 0.1  # of the density of proposals: where another order has so much, a draw may be of either
MOST = 1000  # orders that are summed over: those of six components, and fewer than of seven
EXACT, ROUGH = 1e-10, 0.1  # twice what the logarithm of the density may still rise


def sample(
    fit: Outcome,
    n: int = 1000,
    *,
    seed: int = 0,
    prior_theta: Callable[[Tree], Array] | None = None,
    components: int = 1,
) -> Draws:
    """Draws of theta, w and the noise given the data, of a fit of a marginal likelihood.

    Independence Metropolis: proposals have Student's t distribution with 5 degrees of freedom in the coordinates of
    `Marginal.unconstrained`, around the maximum there and with the scale of Laplace's approximation. Then ``sigma^2``
    is drawn from its inverse gamma density, where it is not known, and w from its normal one, of covariance
    ``sigma^2 (M^H M + lam Omega^H Omega)^-1``, for every theta: exactly.

    It serves densities with one maximum and few entries of theta, which `Draws.acceptance` shows: 0.5 and more is
    good, below 0.1 another sampler of ``problem.unconstrained(...)`` is better. Of maxima that an exchange of
    components makes it finds that of the fit.

    Parameters
    ----------
    fit : Result
        Of ``xv.solve(xv.marginal(...))``.
    n : int
        Number of draws; the density is evaluated 1.1 n times.
    seed : int
        Of NumPy's generator, which draws on every backend.
    prior_theta : callable, optional
        The log density of theta, ``prior_theta(theta)``, 0-d, written with the namespace of theta; by default theta is
        uniform in its set, which where that has no bound is proper only if the likelihood falls off.
    components : int
        The number of components that may change places, for `Draws.log_evidence`, as for `Result.laplace`, but where
        they overlap every order is counted once, exactly. The draws are of one order of them, unless they overlap.

    Raises
    ------
    ProblemError
        The fit is none of a marginal likelihood, theta is in a set that `Unconstrained` does not take, or the density
        has no maximum near the fit, as where theta is not determined.

    References
    ----------
    L. Tierney, Markov chains for exploring posterior distributions, Annals of Statistics 22 (1994).

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> x = np.linspace(0.0, 1.0, 40)
    >>> y = 2.0 * x**1.5 + 0.05 * np.cos(40 * x)
    >>> m = xv.marginal(xv.separable(lambda theta, x: x[:, None] ** theta, y, data=x), noise=0.05)
    >>> fit = xv.solve(m, np.array([1.0]), over=xv.sets.Box(0.1, 10.0))
    >>> draws = fit.sample(200)
    >>> draws.theta.shape, draws.w.shape, draws.acceptance > 0.5
    ((200, 1), (200, 1), True)
    """
    problem: Any = fit.stated
    if problem.noise is None:
        raise ProblemError(
            "draws need a fit of a marginal likelihood, xv.solve(xv.marginal(problem, noise), ...); got one of least "
            "squares. Its errors are those of fit.statistics() or of xv.statistics.Bootstrap()"
        )
    if not isinstance(n, Integral) or isinstance(n, bool) or n < 1:
        raise ProblemError(f"n must be a whole number >= 1; got {described(n)}")
    if isinstance(over := fit.recipe.over, Opaque):
        raise ProblemError(f"draws need the set of theta, which the file of this fit does not hold; got {over}")
    log_orders, backend = orders(components), fit.provenance["backend"]
    target = Unconstrained(problem, fit.theta, over, prior_theta, backend)
    draw = np.random.default_rng(seed)
    us, logs, acceptance, evidence, mixed = _chain(target, int(n), draw, components)
    volume = (0.0 if prior_theta is not None else sum(c.log_volume for c in target._charts)) - log_orders
    kept, index = np.unique(us, axis=0, return_inverse=True)
    thetas, jacobians = zip(*(target._jacobian(u) for u in kept), strict=True)
    prepared = prepare(replace(problem, compress=False), fit.theta, backend=backend)
    w, sigma = _amplitudes(prepared, [target._moved(leaves) for leaves in thetas], index, draw)
    return Draws(
        theta=trees.unflatten(prepared.layout.treedef, [np.stack(x)[index] for x in zip(*thetas, strict=True)]),
        w=w[..., 0] if prepared.vector else w,
        sigma=sigma,
        log_density=logs - np.array(jacobians, float)[index],
        acceptance=acceptance,
        log_evidence=evidence[0] - volume if math.isfinite(volume) else None,
        log_evidence_error=evidence[1] if math.isfinite(volume) else None,
        _mixed=mixed,
        _fit=fit,
        _layout=prepared.layout,
    )


# -- theta


def _chain(
    target: Unconstrained, n: int, draw: np.random.Generator, components: int
) -> tuple[np.ndarray, np.ndarray, float, tuple[float, float], float]:
    """Points (n, size) of a Markov chain, the logarithms of their densities, and the share of accepted proposals.

    Then the logarithm of the integral of the density, from all proposals, and its standard error; last the share of
    draws that may be of another order.
    """
    mode, root = _laplace(target)
    total, p = n + 1 + math.ceil(BURN_IN * n), target.size
    steps = draw.normal(size=(total, p)) * np.sqrt(DOF / draw.chisquare(DOF, total))[:, None]
    us, toss = mode + steps @ root.T, np.log(draw.uniform(size=total))
    logs = np.array([float(target.log_density(u)) for u in (us if p else us[:1])]) + np.zeros(total)
    weights = logs + 0.5 * (DOF + p) * np.log1p(np.sum(steps**2, axis=1) / DOF)
    path = [int(np.argmax(np.isfinite(weights)))]
    for i in range(1, total):
        path.append(i if toss[i] < weights[i] - weights[path[-1]] else path[-1])
    kept = np.array(path[-n:])
    others, mixed = _orders(target, mode, root, components), 0.0
    if others:  # proposals in any of these orders are of one density, their sum
        inverse, own = np.linalg.inv(root).T, np.log1p(np.sum(steps**2, axis=1) / DOF)
        squares = [np.sum(((us[:, order] - mode) @ inverse) ** 2, axis=1) for order in others]
        ratios = [0.5 * (DOF + p) * (own - np.log1p(square / DOF)) for square in squares]
        weights = weights - np.logaddexp.reduce([0 * own, *ratios])
        mixed = float(np.mean(np.max(ratios, axis=0)[kept] > math.log(EITHER)))
    share = np.exp(weights - (best := weights.max()))
    of_t = math.lgamma((DOF + p) / 2) - math.lgamma(DOF / 2) - 0.5 * p * math.log(DOF * math.pi)
    integral = best + math.log(share.mean()) - of_t + np.linalg.slogdet(root)[1]
    error = share.std() / share.mean() / total**0.5 if len(others) + 1 < MOST else math.inf  # some were left out
    moves = np.diff(np.array(path[-n - 1 :])) != 0
    return us[kept], logs[kept], float(moves.mean()), (integral, error), mixed


def _orders(target: Unconstrained, mode: np.ndarray, root: np.ndarray, components: int) -> list[np.ndarray]:
    """Other orders of the coordinates: all of them, or of many components those that proposals reach."""
    pairs = zip(target._charts, target._prepared.region.shapes, strict=True)
    shapes = [shape if one.size == math.prod(shape) else (1, one.size) for one, shape in pairs]
    inverse, within = np.linalg.inv(root), math.inf if orders(components) < math.log(MOST) else REACHED
    groups, found = near(mode, shapes, components, lambda d: float(np.linalg.norm(inverse @ d)), within), []
    for moved in islice(product(*map(permutations, groups)), 1, MOST):
        order = np.arange(components)
        for group, there in zip(groups, moved, strict=True):
            order[group] = there
        found.append(reordered(shapes, order.tolist()))
    return found


def _laplace(target: Unconstrained) -> tuple[np.ndarray, np.ndarray]:
    """The maximum of the density by Newton's method, and a root of the inverse curvature there."""
    u = target._inner()
    value, slope = _at(target, u)
    for _ in range(STEPS):
        H = _curvature(target, u) if np.isfinite(value) else np.full((u.size, u.size), np.nan)
        if not np.isfinite(H).all():
            break
        bends, V, sizes = scaled_eigen(H)
        root = V / np.sqrt(np.maximum(np.abs(bends), 1e-8)) / sizes[:, None]
        step = root @ (root.T @ slope)
        rise, lengths = float(slope @ step), iter(0.5 ** np.arange(30))
        if rise < EXACT and (bends > 0).all():
            return u, root
        ahead, steeper, t = -np.inf, slope, 0.0
        while not ahead > value and (t := next(lengths, 0.0)):
            ahead, steeper = _at(target, u + t * step)
        if not t and rise < ROUGH and (bends > 0).all():  # as near as rounding lets it come
            return u, root
        if not t:
            break
        u, value, slope = u + t * step, ahead, steeper
    raise ProblemError(
        "draws need a density with a maximum in the coordinates of problem.unconstrained(...); got none near the fit, "
        "as where the data leave an entry of theta open that no bound holds. Bound it, or give prior_theta"
    )


def _at(target: Unconstrained, u: Any) -> tuple[float, np.ndarray]:
    value, slope = target.log_density_and_gradient(u)
    return float(value), to_numpy(slope)


def _curvature(target: Unconstrained, u: np.ndarray) -> np.ndarray:
    """Minus the matrix of second derivatives, by differences of gradients."""
    h = np.finfo(target._prepared.dtype).eps ** (1 / 3) * (1 + np.abs(u))
    ends = [[_at(target, u + sign * d)[1] for sign in (-1, 1)] for d in np.diag(h)]
    H = np.array([(low - high) / (2 * d) for (low, high), d in zip(ends, h, strict=True)]).reshape(u.size, u.size)
    return 0.5 * (H + H.T)


# -- w


def _conditional(f: Objective, theta: Leaves) -> tuple[Array, Array, Array, Array]:
    marginal: Any = f
    w, R, half = marginal.conditional(theta)
    return w, R, half, 0 * half + marginal.noise.freedom


def _amplitudes(
    prepared: Prepared, thetas: list[Leaves], index: np.ndarray, draw: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Draws of w, (n, rows, k), and of sigma, (n,), for every theta of an index into some."""
    noise: Any = prepared.problem.noise

    def at(theta: Leaves) -> list[np.ndarray]:
        return [to_numpy(x) for x in prepared.call(_conditional, theta)]

    first, _, _, freedom = at(thetas[0])
    gamma: Any = noise.sigma or draw.gamma(noise.shape + 0.5 * float(freedom), size=len(index))
    z = draw.normal(size=(len(index), *first.shape))
    z = z + 1j * draw.normal(size=z.shape) if noise.parts == 2 else z
    w, sigma = np.empty_like(z), np.full(len(index), noise.sigma or 0.0)
    for i, theta in enumerate(thetas):
        rows, (mean, R, half, _) = index == i, at(theta)
        if noise.sigma is None:
            sigma[rows] = np.sqrt((noise.scale + half) / gamma[rows])
        w[rows] = mean + sigma[rows, None, None] * _solved(R.astype(z.dtype), z[rows])
    return w, sigma


def _solved(R: np.ndarray, z: np.ndarray) -> np.ndarray:
    """``R^-1 z``, (q, n, k), R with a positive diagonal: one root of a precision, whatever a factorisation gives."""
    d = np.diagonal(R, axis1=-2, axis2=-1)
    R = (d.conj() / np.abs(d))[..., None] * R
    return np.asarray(np.linalg.solve(R, z.T).T)  # one R, or one for each right-hand side
