"""Marginal likelihoods on ``R^p``: smooth maps onto the set of theta, whose Jacobians count, for samplers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from xvarpro.backends import Backend, exchange, modules, registry
from xvarpro.bayes.charts import Chart, chart
from xvarpro.core import trees
from xvarpro.core.checks import described
from xvarpro.core.namespace import device, dtype_name, namespace_of
from xvarpro.core.struct import Array, Leaves, Tree
from xvarpro.driver.evaluate import evaluated
from xvarpro.driver.prepare import Prepared, prepare
from xvarpro.errors import ProblemError
from xvarpro.objective.interface import Objective
from xvarpro.problem.problem import Problem

FAR = 30.0  # coordinates from which on an entry counts as one at a bound


@dataclass(frozen=True, eq=False)
class Unconstrained:
    """The density of theta given the data in coordinates u that are all real numbers, from `Marginal.unconstrained`.

    An entry between bounds is ``lower + (upper - lower) / (1 + exp(-u))``, one with a lower bound ``lower + exp(u)``,
    with an upper one ``upper - exp(u)``, a free one u; entries whose bounds are equal have no coordinate. `Simplex` has
    stick breaking, one coordinate less than entries. The logarithm of the Jacobian is part of the density: u has the
    distribution of theta. Vectors u have shape (size,), in any framework: results are arrays of it.

    Parameters
    ----------
    theta0 : pytree of arrays
        Any theta in its set, for structure, shapes, framework and precision.
    over : tree of sets, optional
        As for `solve`: `Box`, `LinfBall`, `Simplex` or free.
    prior_theta : callable, optional
        The log density of theta, ``prior_theta(theta)``, 0-d, written with the namespace of theta; by default it is
        uniform, of height 1: the set's volume is not divided by.
    backend : optional
        Where to compute; theta0's own by default.

    Attributes
    ----------
    size : int
        Length of u.

    References
    ----------
    Stan Development Team, Stan Reference Manual, Constraint Transforms.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> model = xv.separable(lambda theta, t: t[:, None] ** theta, np.array([1.0, 4.1]), data=np.array([1.0, 2.0]))
    >>> target = xv.marginal(model, noise=0.1).unconstrained(np.array([2.0]), xv.sets.Box(0.0, np.inf))
    >>> u = target.from_theta(np.array([2.0]))
    >>> density, gradient = target.log_density_and_gradient(u)
    >>> u.round(4), gradient.round(4)
    (array([0.6931]), array([3.0339]))
    """

    problem: Problem
    theta0: Tree
    over: Tree = None
    prior_theta: Callable[[Tree], Array] | None = None
    backend: str | Backend | None = None

    @cached_property
    def size(self) -> int:
        return sum(chart.size for chart in self._charts)

    def log_density(self, u: Array) -> Array:
        """The logarithm of the likelihood, of the density of theta and of the Jacobian, 0-d; -inf where there is none.

        As where two columns of the design are equal, and w has no prior: samplers leave such points. Autograd of
        PyTorch and the transformations of JAX, its compiler among them, take it as one operation, of which they know
        the exact first derivative.
        """

        def value(u: Array) -> Leaves:
            *leaves, extra = self._mapped(u)
            return (self._total(self._prepared.call(density, self._moved(leaves)), extra, u),)

        def pull(inputs: Leaves, _: Leaves, cotangents: tuple[Array | None, ...]) -> tuple[Array | None, ...]:
            bar = cotangents[0]
            return (None if bar is None else bar * self.log_density_and_gradient(*inputs)[1],)

        u = self._vector(u)
        return registry.owner(u).with_pullback(value, pull)(u)[0]

    def log_density_and_gradient(self, u: Array) -> tuple[Array, Array]:
        """`log_density`, and its gradient, (size,); 0 where there is no density."""
        u = self._vector(u)
        (*leaves, extra), pull = registry.owner(u).vjp(self._mapped, (u,))
        value, gradient = self._prepared.call(evaluated, self._moved(leaves))
        xp, total = namespace_of(u), self._total(value, extra, u)
        slope = pull((*(-self._returned(g, u) for g in gradient), xp.ones_like(extra)))[0]
        return total, xp.where(xp.isfinite(total), slope, 0 * u)

    def to_theta(self, u: Array) -> Tree:
        """theta, in the structure, framework and precision of theta0."""
        *leaves, _ = self._mapped(u := self._vector(u))
        return self._prepared.layout.to_caller(tuple(leaves), registry.owner(u))

    def from_theta(self, theta: Tree) -> Array:
        """u, in the framework of theta, which must lie inside its set."""
        leaves, treedef = trees.flatten(modules.taken(theta))
        layout, like = self._prepared.layout, leaves[0]
        if treedef != layout.treedef:
            raise ProblemError(f"theta must have the structure of theta0, {layout.treedef}; got {treedef}")
        u = self._inverse([registry.to_numpy(x) for x in leaves])
        if not np.isfinite(u).all():
            raise ProblemError("theta must lie inside its set to have unconstrained coordinates; got one that does not")
        return registry.owner(like).asarray(u, dtype=dtype_name(like), device=device(like))

    # -- the parts

    @cached_property
    def _prepared(self) -> Prepared:
        return prepare(self.problem, self.theta0, over=self.over, backend=self.backend)

    @cached_property
    def _charts(self) -> list[Chart]:
        region = self._prepared.region.on_host
        held = dict(region.constrained)
        return [chart(held.get(i), shape) for i, shape in enumerate(region.shapes)]

    def __getstate__(self) -> dict[str, Any]:
        """For pickle and copies, without what is prepared."""
        return {name: x for name, x in vars(self).items() if name not in ("_prepared", "_charts")}

    def _inverse(self, theta: list[np.ndarray]) -> np.ndarray:
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.concatenate([c.inverse(x.ravel()) for c, x in zip(self._charts, theta, strict=True)])

    def _inner(self) -> np.ndarray:
        """The coordinates of theta0; where it is at a bound, of a point a thousandth of the way to the centre."""
        region, theta = self._prepared.region.on_host, [registry.to_numpy(x) for x in self._prepared.theta]
        u = self._inverse(theta)
        if (np.abs(u) < FAR).all():
            return u
        for i, C in region.constrained:
            flat: Any = theta[i].reshape(-1) if C.event_ndim == 1 else theta[i]
            theta[i] = theta[i] + 1e-3 * (registry.to_numpy(C.center(flat)).reshape(theta[i].shape) - theta[i])
        return self._inverse(theta)

    def _vector(self, u: Any) -> Array:
        u = exchange.numbers(u, "u")
        if not trees.is_array(u) or tuple(u.shape) != (self.size,):
            raise ProblemError(f"u must have shape ({self.size},), one number per coordinate; got {described(u)}")
        return u

    def _jacobian(self, u: Array) -> tuple[Leaves, Array]:
        """Leaves of theta, and the logarithm of the Jacobian."""
        leaves, total, at = [], 0 * namespace_of(u).sum(u), 0
        for one, shape in zip(self._charts, self._prepared.region.shapes, strict=True):
            x, jacobian = one(u[at : at + one.size])
            leaves.append(namespace_of(u).reshape(x, shape))
            total, at = total + jacobian, at + one.size
        return tuple(leaves), total

    def _mapped(self, u: Array) -> Leaves:
        """Leaves of theta; and last what the density has besides the likelihood."""
        leaves, extra = self._jacobian(u)
        if self.prior_theta is not None:
            extra = extra + self.prior_theta(trees.unflatten(self._prepared.layout.treedef, leaves))
        return *leaves, extra

    def _moved(self, leaves: Any) -> Leaves:
        to = self._prepared
        with to.backend.scope(to.dtype):
            return tuple(exchange.move(x, to.backend, dtype=to.dtype, device=to.device) for x in leaves)

    def _returned(self, x: Array, u: Array) -> Array:
        return exchange.move(x, registry.owner(u), dtype=dtype_name(u), device=device(u))

    def _total(self, value: Array, extra: Array, u: Array) -> Array:
        xp, total = namespace_of(u), extra - self._returned(value, u)
        return xp.where(xp.isfinite(total), total, xp.full_like(total, -xp.inf))


def density(f: Objective, theta: Leaves) -> Array:
    """Minus the log density, 0-d."""
    found: Array = f.point(theta).value
    return found
