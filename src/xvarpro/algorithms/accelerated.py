"""Accelerated projected gradient on the reduced objective: monotone, with restart and backtracking."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, final

from xvarpro.algorithms._polish import FirstOrder, InFace, Projecting
from xvarpro.algorithms.common import add, arrived, at, certified, curvature, moved, start, status
from xvarpro.algorithms.interface import Iterate
from xvarpro.algorithms.steps.interface import Point
from xvarpro.core import checks
from xvarpro.core.namespace import namespace_of
from xvarpro.core.struct import Array, Leaves
from xvarpro.core.trees import axpy, dot, select, sub
from xvarpro.objective.interface import Objective
from xvarpro.sets.region import Region


class AcceleratedState(NamedTuple):
    """State of an accelerated gradient method."""

    iterate: Iterate
    grad: Leaves
    z: Leaves  # the extrapolated point
    t: Array  # momentum parameter, 0-d
    L: Array  # estimate of the Lipschitz constant, 0-d


@dataclass(frozen=True)
class Accelerated(FirstOrder):
    """FISTA, monotone, with restart and backtracking."""

    shrink: float = 0.8
    grow: float = 2.0
    limit: int = 60

    monotone = True

    def __post_init__(self) -> None:
        checks.whole(self, "limit", 1)
        checks.share(self, "shrink")
        checks.above(self, "grow", 1)

    def init(self, f: Objective, region: Region, theta: Leaves) -> AcceleratedState:
        iterate, grad, d = start(f, region, theta)
        L = curvature(f, theta, grad, d)
        iterate = iterate._replace(counts=add(iterate.counts, values=1, gradients=1))
        return AcceleratedState(iterate, grad, theta, namespace_of(L).ones_like(L), L)

    def advance(self, f: Objective, region: Region, state: AcceleratedState) -> AcceleratedState:
        iterate, old, z, t, _ = state
        x = iterate.theta
        xp = namespace_of(t)
        point, alpha, L, trials, calls = self._descend(f, region, z, x, state.L)
        point, grad, direction = certified(f, region, point.theta, point)
        # values that differ by rounding cannot say which point is better: there the gradients decide. NaN fails.
        better = point.value <= iterate.value + f.rounding(iterate.value)
        step = sub(point.theta, x)
        progress = better & moved(xp.ones_like(t), dot(step, step), x)
        forward = progress & (dot(grad, step) <= 0)
        t_next = 0.5 * (1 + xp.sqrt(1 + 4 * t * t))
        momentum = xp.where(forward, (t - 1) / t_next, 0 * t)
        found = at(iterate, point, direction, trials + 1, 2)
        iterate, kept = select(better, (found, grad), (iterate._replace(counts=found.counts), old))
        # at t = 1 the step started from the iterate itself: there is nothing left to drop
        outcome = status(t, progress | (t > 1))
        counts = add(iterate.counts, **{self.oracle: calls})
        iterate = iterate._replace(alpha_A=alpha, alpha_B=alpha, status=outcome, counts=counts)
        z = axpy(momentum, step, iterate.theta)
        return AcceleratedState(iterate, kept, z, xp.where(forward, t_next, xp.ones_like(t)), L)

    def length(self, state: AcceleratedState) -> Array:
        return 1 / state.L

    def resumed(
        self,
        f: Objective,
        region: Region,
        state: AcceleratedState,
        d: Leaves,
        alpha: Array,
        point: Point,
        values: Array,
    ) -> AcceleratedState:
        before = state.iterate.theta
        iterate, grad, _ = arrived(f, region, state.iterate, point, values)
        iterate = iterate._replace(alpha_A=alpha, alpha_B=alpha, status=status(alpha, moved(alpha, dot(d, d), before)))
        return AcceleratedState(iterate, grad, point.theta, namespace_of(alpha).ones_like(alpha), state.L)

    def _descend(
        self, f: Objective, region: Region, z: Leaves, x: Leaves, L: Array
    ) -> tuple[Point, Array, Array, Array, Array]:
        """Gradient step from z, feasible from x; L grows until the quadratic model is an upper bound."""
        xp = namespace_of(L)
        at_z, grad = f.value_and_gradient(z)
        slack = f.rounding(at_z.value)

        def trial(L: Array, n: Array, calls: Array) -> tuple[Array, Point, Array, Array]:
            end, more = self.nearest(f, region, axpy(-1 / L, grad, z), x)
            return L, f.point(end, ahead=True), n, calls + more

        def rejected(state: tuple[Array, Point, Array, Array]) -> Array:
            L, point, n, _ = state
            d = sub(point.theta, z)
            bound = at_z.value + dot(grad, d) + (0.5 * L) * dot(d, d) + slack
            return ~(point.value <= bound) & (n < self.limit)

        L, point, n, calls = f.backend.while_loop(
            rejected,
            lambda s: trial(s[0] * self.grow, s[2] + 1, s[3]),
            trial(L * self.shrink, xp.ones_like(L), xp.zeros_like(L)),
        )
        return point, 1 / L, L, n, calls


@final
@dataclass(frozen=True)
class AcceleratedProjectedGradient(Projecting, Accelerated):
    """FISTA (Beck, Teboulle 2009) made monotone: a step that raises the objective is dropped and momentum restarts.

    Momentum restarts as well where the gradient at the new iterate points against the step (O'Donoghue, Candes 2015);
    that gradient is there anyway, for the certificate.

    Parameters
    ----------
    shrink, grow : float
        Change of the estimate of L between iterations and between trials, in (0, 1] and > 1.
    limit : int
        Trials after which an iteration gives up.

    Notes
    -----
    Oracle : projection; LMO for the certificate
    Per iteration : a value and a projection per trial, 1 more value, 2 gradients, 1 LMO
    Memory : a few vectors
    Polytope only : no
    When : large theta under a set that projects: dictionaries, networks

    Examples
    --------
    >>> import xvarpro as xv
    >>> xv.algorithms.AcceleratedProjectedGradient().grow
    2.0
    """


@final
@dataclass(frozen=True)
class AcceleratedInFace(InFace, Accelerated):
    """The same steps without a projection."""
