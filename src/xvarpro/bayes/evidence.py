"""The evidence of a model by Laplace's method, and models of the same data compared by it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np

from xvarpro import backends
from xvarpro.backends.calculus import hessian_product
from xvarpro.bayes.charts import bounds
from xvarpro.bayes.coordinates import density
from xvarpro.core import trees
from xvarpro.core.struct import Array, Leaves, Tree
from xvarpro.driver.prepare import Prepared, prepare
from xvarpro.errors import ProblemError
from xvarpro.objective.curvature import marginal_hessian
from xvarpro.objective.marginal import Marginal
from xvarpro.results.outcome import Outcome
from xvarpro.sets.region import Region
from xvarpro.statistics.frames import aligned, vector
from xvarpro.statistics.names import entry_names

AT_BOUND = 1e-8  # of the width of a set: entries nearer to a bound are at it
STEPS = np.arange(-4.0, 5.0)  # standard deviations from the maximum: their sum has a normal integral to 1e-4
ONE_MAXIMUM = 2.0  # standard deviations from a maximum to that of another order, below which both are one
NEAR_NORMAL = 0.25  # by how much the logarithm of an integral may differ from that of a normal density


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
    not_normal : list of str
        Entries along which the density is far from a normal one, on lines of four standard deviations to both sides,
        so that `log_evidence` may be far off. With more components than the data have it is too low.
    effective_parameters : float
        `parameters`, and the amplitudes that the data determine, ``tr H^-1 M^H M``; a complex one counts twice.
    data : int
        Numbers in the target whose weight is not 0; a complex one counts twice.
    flat : bool
        Whether some amplitudes have a flat prior, so that the evidence depends on the scale of the columns of M.
    unscaled : bool
        Whether the noise has Jeffreys' density, so that only evidences of other such models are on the same scale.
    """

    log_evidence: float
    log_density: float
    covariance: np.ndarray
    theta_stderr: Tree
    parameters: int
    active: list[str]
    not_normal: list[str]
    effective_parameters: float
    data: int
    flat: bool
    unscaled: bool
    _together: list[list[int]] = field(repr=False)  # components of one maximum
    target: Any = field(repr=False)  # what models of the same data have alike; None where it is not known

    @property
    def aic(self) -> float:
        """``2 parameters - 2 log_density``: w is integrated out, and theta counted."""
        return 2 * self.parameters - 2 * self.log_density

    @property
    def bic(self) -> float:
        """``log(data) parameters - 2 log_density``."""
        return math.log(self.data) * self.parameters - 2 * self.log_density

    def __str__(self) -> str:
        errors = zip(entry_names(self.theta_stderr), vector(self.theta_stderr), strict=True)
        rows = [(name, "at a bound" if name in self.active else f"{error:.4g}") for name, error in errors]
        return "\n".join(
            [
                f"log evidence {self.log_evidence:.2f}: log density {self.log_density:.2f} of {self.data} data by "
                f"{self.effective_parameters:.2f} effective parameters",
                *aligned([("entry", "standard error"), *rows]),
                *self._notes(),
            ]
        )

    def _notes(self) -> list[str]:
        far = ", ".join(self.not_normal[:6])
        said = f"far from a normal density along {far}, so that the evidence and probabilities by it may be far off"
        return [f"{said}. Integrate log_density over the set"] if far else []


def laplace(fit: Outcome, *, prior_theta: Callable[[Tree], Array] | None = None, components: int = 1) -> Laplace:
    """The evidence of the model of a fit of `marginal`, ``log of the integral of p(y | theta) p(theta)``.

    The density is taken for a normal one around theta, with its exact Hessian, in the entries of theta that no bound
    stops, and cut off at the bounds of each by itself. An entry at a bound that the density rises toward, with a slope
    g and a curvature h, gives the integral of ``exp(-g d - h d^2 / 2)`` over the width of its set: ``1 / g`` where
    it is steep. This is exact for a normal density with one entry near a bound; `Draws.log_evidence` is for several,
    and `not_normal` has the entries of a density that is far from a normal one.

    Parameters
    ----------
    fit : Result
        Of `marginal`, with all rows in memory, over boxes.
    prior_theta : callable, optional
        The logarithm of the prior density of theta, a function of theta that returns a scalar, normalised over the
        sets. None is the uniform density over these, which must then be bounded.
    components : int
        The number of components that may change places, along the first axis of the leaves of theta that have this
        length: each order of them is another maximum, and the evidence is the factorial of that number times as
        large. Orders of components within two standard deviations of each other are taken for one maximum, and not
        counted: then `not_normal` has their entries.

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
    >>> x = np.linspace(0.0, 1.0, 40)
    >>> y = 2.0 * x**1.5 + 0.05 * np.cos(40 * x)
    >>> m = xv.marginal(xv.separable(lambda theta, x: x[:, None] ** theta, y, data=x), noise=0.05)
    >>> found = xv.solve(m, np.array([1.0]), over=xv.sets.Box(0.1, 10.0)).laplace()
    >>> round(found.log_evidence, 2), found.theta_stderr.round(3)
    (64.96, array([0.031]))
    """
    problem = fit.stated
    if problem.noise is None or problem.in_rows:
        found = "rows in chunks" if problem.noise is not None else "a fit of least squares"
        raise ProblemError(f"laplace needs a fit of xv.marginal with all rows in memory; got {found}")
    if not fit.success:
        raise ProblemError(f"laplace needs a fit at a maximum; got one that ended with {fit.status.name}. Solve again")
    log_orders = orders(components)
    prepared = prepare(problem, fit.theta, over=fit.recipe.over)
    names = np.array(entry_names(fit.theta))
    lower, upper = _bounds(prepared.region)
    width = upper - lower
    if prior_theta is None and not np.isfinite(width).all():
        raise ProblemError(
            "the uniform density of theta needs bounded sets; got none for "
            f"{', '.join(names[~np.isfinite(width)][:6])}. Give bounds in over=, or prior_theta="
        )
    x, value, g, H, amplitudes = _derivatives(prepared, prior_theta)
    room = AT_BOUND * np.where(np.isfinite(width), width, np.maximum(np.abs(x), 1.0))
    held = width == 0
    active = ~held & (((x - lower <= room) & (g > 0)) | ((upper - x <= room) & (g < 0)))
    free = ~(held | active)
    root, log_volume = _normal(x[free], g[free], H[np.ix_(free, free)], lower[free], upper[free], names[free])
    covariance = root @ root.T
    across = H[np.ix_(active, free)]
    bends = np.diagonal(H)[active] - np.sum((across @ covariance) * across, axis=1)
    log_volume += _faces(np.abs(g[active]), bends, width[active])
    if prior_theta is None:
        log_volume -= float(np.sum(np.log(width[~held])))
    whole, axes = np.zeros(H.shape), np.zeros((H.shape[0], root.shape[1]))
    whole[np.ix_(free, free)], axes[free] = covariance, root
    far = [a for a in axes.T if not abs(_excess(prepared, prior_theta, x, a, g @ a, lower, upper)) < NEAR_NORMAL]
    bent = (np.abs(far) > 0.3 * np.sqrt(np.diagonal(whole))).any(axis=0) if far else np.zeros(held.shape, bool)
    shapes = prepared.region.shapes

    def distance(d: np.ndarray) -> float:
        return math.sqrt(max(0.0, d @ H @ d + 2 * np.abs(g) @ np.abs(d))) if not d[held].any() else math.inf

    together = near(x, shapes, components, distance, ONE_MAXIMUM)
    bent = bent | entries(shapes, components, together)
    noise: Any = prepared.problem.noise
    y: Any = problem.lower.y
    return Laplace(
        log_evidence=-value + log_volume + log_orders - sum(math.lgamma(len(group) + 1) for group in together),
        log_density=-float(fit.value),
        covariance=whole,
        theta_stderr=prepared.layout.measures(_leaves(prepared, np.sqrt(np.diagonal(whole))), prepared.backend),
        parameters=int(np.sum(~held)),
        active=names[active].tolist(),
        not_normal=names[bent].tolist(),
        effective_parameters=float(np.sum(~held)) + amplitudes,
        data=round(float(noise.freedom) + noise.flat),
        flat=noise.flat > 0,
        unscaled=noise.sigma is None and not noise.shape,
        _together=together,
        target=backends.to_numpy(y) if trees.is_array(y) else None,
    )


def orders(components: int) -> float:
    """The logarithm of their number."""
    if not isinstance(components, int) or components < 1:
        raise ProblemError(f"components must be a whole number >= 1; got {components!r:.80}")
    return math.lgamma(components + 1)


def reordered(shapes: Sequence[tuple[int, ...]], order: Sequence[int]) -> np.ndarray:
    """Indices that bring components into an order, into a vector of leaves."""
    found, at = [], 0
    for shape in shapes:
        i = np.arange(at, at := at + math.prod(shape)).reshape(shape)
        found.append((i[list(order)] if shape[:1] == (len(order),) else i).ravel())
    return np.concatenate(found)


def near(
    x: np.ndarray,
    shapes: Sequence[tuple[int, ...]],
    components: int,
    distance: Callable[[np.ndarray], float],
    within: float,
) -> list[list[int]]:
    """Groups of two or more components whose exchange, one pair after the other, moves x by less than `within`."""
    group = list(range(components))
    for i, j in combinations(range(components) if any(s[:1] == (components,) for s in shapes) else (), 2):
        order = list(range(components))
        order[i], order[j] = j, i
        if distance(x[reordered(shapes, order)] - x) < within:
            group = [group[i] if label == group[j] else label for label in group]
    found = [[i for i, label in enumerate(group) if label == one] for one in sorted(set(group))]
    return [members for members in found if len(members) > 1]


def entries(shapes: Sequence[tuple[int, ...]], components: int, groups: list[list[int]]) -> np.ndarray:
    """Which entries of a vector of leaves belong to components of the groups."""
    order = np.arange(components)
    for members in groups:
        order[members] = np.roll(members, 1)
    moved = reordered(shapes, order.tolist())
    return np.asarray(moved != np.arange(len(moved)))


def _bounds(region: Region) -> np.ndarray:
    """Bounds of all entries, (2, p)."""
    sets, found = dict(region.on_host.constrained), []
    for i, shape in enumerate(region.shapes):
        if (ends := bounds(sets.get(i), shape)) is None:
            raise ProblemError(
                f"laplace needs entries of theta that are free or between bounds; got {sets[i]!r}. Bound them, give "
                "prior_theta= in the place of the set, or for a Simplex take fit.sample().log_evidence"
            )
        found.append(ends)
    return np.concatenate(found, axis=1)


def _leaves(prepared: Prepared, x: np.ndarray) -> Leaves:
    """A vector as leaves of theta."""
    with prepared.backend.scope(prepared.dtype):
        sent = prepared.backend.asarray(x.astype(prepared.dtype), device=prepared.device)
        return trees.unraveled(sent, prepared.theta)


def _derivatives(
    prepared: Prepared, prior: Callable[[Tree], Array] | None
) -> tuple[np.ndarray, float, np.ndarray, np.ndarray, float]:
    """Theta, minus the logarithm of the posterior density, its gradient and Hessian, and what the data tell of w."""
    backend, theta = prepared.backend, prepared.theta

    def host(leaves: Leaves) -> np.ndarray:
        return np.concatenate([backend.to_numpy(x).ravel() for x in leaves]).astype(float)

    slope, amplitudes = prepared.call(_at, theta)
    x, g = host(theta), host(slope)
    units = [_leaves(prepared, e) for e in np.eye(x.size)]
    H = np.stack([host(prepared.call(marginal_hessian, theta, u)) for u in units])
    if prior is not None:
        with backend.scope(prepared.dtype):
            gradient, product = hessian_product(backend, lambda *leaves: prior(prepared.tree(leaves)), theta)
            g, H = g - host(gradient), H - np.stack([host(product(u)) for u in units])
    return x, _posterior(prepared, prior, theta), g, 0.5 * (H + H.T), float(amplitudes)


def _posterior(prepared: Prepared, prior: Callable[[Tree], Array] | None, theta: Leaves) -> float:
    """Minus the logarithm of the posterior density."""
    with prepared.backend.scope(prepared.dtype):
        return float(prepared.call(density, theta)) - (0.0 if prior is None else float(prior(prepared.tree(theta))))


def _at(f: Marginal, theta: Leaves) -> tuple[Leaves, Array]:
    point, slope = f.value_and_gradient(theta)
    _, _, solver, system = f.solved(f.evaluate(theta, f.constants))
    volume: Any = solver.volume(f.backend, system, point.factor)
    return slope, volume.dof() * (f.noise.parts * f.noise.columns / volume.stack)


def _normal(
    x: np.ndarray, g: np.ndarray, H: np.ndarray, lower: np.ndarray, upper: np.ndarray, names: np.ndarray
) -> tuple[np.ndarray, float]:
    """A root of ``H^-1``, and the log of the integral of ``exp(-g d - d H d / 2)`` over d, ``x + d`` in bounds."""
    if not g.size:
        return H, 0.0
    bends, V, sizes = scaled_eigen(H)
    if not bends[0] > len(g) * np.finfo(float).eps * bends[-1]:
        found = ", ".join(names[np.abs(V[:, 0]) > 0.1][:6])
        raise ProblemError(
            f"laplace needs a density that falls in every direction from its maximum; got one that does not along "
            f"{found}, which the data do not determine. Fix one of them, bound them more closely, or give prior_theta="
        )
    root = V / np.sqrt(bends) / sizes[:, None]
    turned, spread = root.T @ g, np.sqrt(2 * np.sum(root**2, axis=1))
    ends = [(end - x + root @ turned) / spread for end in (lower, upper)]
    inside = np.array([0.5 * (math.erf(b) - math.erf(a)) for a, b in zip(*ends, strict=True)])
    if not inside.all():
        found = ", ".join(names[inside == 0][:6])
        raise ProblemError(f"laplace needs a prior_theta whose maximum lies in the set; got another for {found}")
    logs = math.log(2 * math.pi) - np.log(bends) - 2 * np.log(sizes) + turned**2 + 2 * np.log(inside)
    return root, 0.5 * float(np.sum(logs))


def scaled_eigen(H: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """``H = D V diag(bends) V^T D`` with D a diagonal of sizes, so that units do not count: bends, V and sizes."""
    sizes = np.sqrt(np.abs(np.diagonal(H)))
    sizes = np.where(sizes > 0, sizes, 1.0)
    return *np.linalg.eigh(H / np.outer(sizes, sizes)), sizes


def _excess(
    prepared: Prepared,
    prior: Callable[[Tree], Array] | None,
    x: np.ndarray,
    axis: np.ndarray,
    slope: float,
    lower: np.ndarray,
    upper: np.ndarray,
) -> float:
    """The logarithm of the integral of the density on a line through x in the bounds, over that of the normal one."""
    line = x + STEPS[:, None] * axis
    inside = ((lower <= line) & (line <= upper)).all(axis=1) | (STEPS == 0)
    steps = STEPS[inside]
    found = np.array([_posterior(prepared, prior, _leaves(prepared, there)) for there in line[inside]])
    normal = found[steps == 0] + slope * steps + 0.5 * steps**2
    return float(np.logaddexp.reduce(-found) - np.logaddexp.reduce(-normal))


def _faces(g: np.ndarray, h: np.ndarray, width: np.ndarray) -> float:
    """The sum of logarithms of the integrals of ``exp(-g d - h d^2 / 2)`` over d from 0 to width, g > 0, by Gauss."""
    h = np.maximum(h, 0.0)
    reach = np.minimum(width, 1 / np.maximum(g / 40, np.sqrt(h) / 9))[:, None]  # beyond it there is nothing
    nodes, weights = np.polynomial.legendre.leggauss(64)
    d = 0.5 * reach * (1 + nodes)
    return float(np.sum(np.log(0.5 * reach[:, 0] * (np.exp(-g[:, None] * d - 0.5 * h[:, None] * d**2) @ weights))))


@dataclass(frozen=True, eq=False)
class ModelComparison:
    """Models of the same data, from `compare_models`; prints as a table.

    Attributes
    ----------
    names : list of str
    models : list of Laplace
    """

    names: list[str]
    models: list[Laplace]

    @property
    def best(self) -> str:
        """The name of the model with the largest evidence."""
        return self.names[int(np.argmax([m.log_evidence for m in self.models]))]

    @property
    def probabilities(self) -> np.ndarray:
        """Of the models, if they were equally probable before the data."""
        logs = np.array([m.log_evidence for m in self.models])
        odds = np.exp(logs - np.max(logs))
        return np.asarray(odds / np.sum(odds))

    def __str__(self) -> str:
        rows: list[tuple[str, ...]] = [("model", "log evidence", "probability", "AIC", "BIC", "effective parameters")]
        for name, m, p in zip(self.names, self.models, self.probabilities, strict=True):
            numbers = f"{m.log_evidence:.2f} {p:.3g} {m.aic:.2f} {m.bic:.2f} {m.effective_parameters:.2f}"
            rows.append((name, *numbers.split()))
        notes = [f"{name}: {x}" for name, m in zip(self.names, self.models, strict=True) for x in m._notes()]
        return "\n".join([*aligned(rows), *notes])


def compare_models(models: Sequence[Outcome | Laplace] | Mapping[str, Outcome | Laplace]) -> ModelComparison:
    """A table of models of the same data: log evidence, AIC, BIC, effective parameters.

    Parameters
    ----------
    models : sequence or dict of Result or Laplace
        Fits of `marginal`, of which `Result.laplace` is taken, or what that has returned, as with ``components=``. The
        keys of a dict name them.

    Raises
    ------
    ProblemError
        They are of different data, or of a target that is a function; amplitudes have a flat prior; the noise has
        Jeffreys' density in some only; or as from `Result.laplace`.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> t = np.linspace(0.1, 2.0, 40)
    >>> y = 2.0 * t**1.5 + 0.01 * np.sin(40 * t)
    >>> def fit(*powers):
    ...     def M(theta, t):
    ...         xp = xv.array_namespace(theta)
    ...         return xp.stack([t**theta[0], *(t**p for p in powers)], axis=1)
    ...     m = xv.marginal(xv.separable(M, y, data=t, lam=1e-4), noise=0.01)
    ...     return xv.solve(m, np.array([1.2]), over=xv.sets.Box(0.5, 3.0))
    >>> xv.compare_models({"power": fit(), "power and constant": fit(0)}).best
    'power'
    """
    named = dict(models) if isinstance(models, Mapping) else {f"model {i}": m for i, m in enumerate(models)}
    found = {name: m if isinstance(m, Laplace) else laplace(m) for name, m in named.items()}
    if not found:
        raise ProblemError("compare_models needs one model or more; got none")
    first, *_ = found
    for name, m in found.items():
        if m.flat:
            raise ProblemError(
                "models are compared with proper priors of w: with a flat one the evidence depends on the scale of "
                f"the columns of M; got amplitudes without a prior in {name}. Pass lam > 0, and an Omega of full rank"
            )
        if m.unscaled is not found[first].unscaled:
            raise ProblemError(
                "models with Jeffreys' density of the noise, noise=None, are compared with each other alone: it has no "
                f"normalisation; got it in one of {first} and {name}. Give all of them one noise="
            )
        alike = m.target is not None and np.array_equal(m.target, found[first].target, equal_nan=True)
        if not alike or m.data != found[first].data:
            raise ProblemError(
                f"models are compared on the same data, in arrays y; got another target in {name} than in {first}, or "
                "one that is a function. Fit them to one array, with the same weights of 0"
            )
    return ModelComparison(list(found), list(found.values()))
