"""Accelerated projected gradient on the reduced objective: monotone, with restart and backtracking."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, final

from xvarpro.algorithms._polish import FirstOrder, InFace, Projecting, Way
from xvarpro.algorithms.common import add, at, certified, chosen, curvature, moved, shorter, start, status
from xvarpro.algorithms.interface import Iterate
from xvarpro.algorithms.steps.interface import Point
from xvarpro.core import checks
from xvarpro.core.namespace import namespace_of
from xvarpro.core.struct import Array, Leaves
from xvarpro.core.trees import axpy, dot, sub
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
        L, calls = curvature(f, theta, grad, d)
        iterate = iterate._replace(counts=add(iterate.counts, values=calls, gradients=calls))
        return AcceleratedState(iterate, grad, theta, namespace_of(L).ones_like(L), L)

    def step(self, f: Objective, region: Region, state: AcceleratedState, way: Way | None) -> AcceleratedState:
        iterate, old, _, t, _ = state
        x = iterate.theta
        xp = namespace_of(t)
        point, grad, size, n, calls = self._descend(f, region, state, way)
        point, grad, direction = certified(f, region, point.theta, point, grad)
        # values that differ by rounding cannot say which point is better: there the gradients decide. NaN fails.
        better = point.value <= iterate.value + f.rounding(iterate.value)
        step = sub(point.theta, x)
        progress = better & moved(xp.ones_like(t), dot(step, step), x)
        forward = progress & (dot(grad, step) <= 0)
        restart, alpha = t <= 1, 1 / size
        at_z: Any = 1
        if way is not None:
            forward, restart, at_z = forward & ~way.taken, restart | way.taken, way.instead(1.0, 0.0, t)
            alpha, size = xp.where(way.taken, size, alpha), xp.where(way.taken, state.L, size)
        t_next = 0.5 * (1 + xp.sqrt(1 + 4 * t * t))
        momentum = xp.where(forward, (t - 1) / t_next, 0 * t)
        found = at(iterate, point, direction, n + at_z, 1 + at_z)
        iterate, kept = chosen(better, (found, grad), (iterate._replace(counts=found.counts), old))
        # at t = 1 the step started from the iterate itself: there is nothing left to drop
        outcome = status(t, progress | ~restart)
        counts = add(iterate.counts, **{self.oracle: calls})
        iterate = iterate._replace(alpha_A=alpha, alpha_B=alpha, status=outcome, counts=counts)
        z = axpy(momentum, step, iterate.theta)
        return AcceleratedState(iterate, kept, z, xp.where(forward, t_next, xp.ones_like(t)), size)

    def length(self, state: AcceleratedState) -> Array:
        return 1 / state.L

    def _descend(
        self, f: Objective, region: Region, state: AcceleratedState, way: Way | None
    ) -> tuple[Point, Leaves, Array, Array, Array]:
        """Gradient step from z, feasible from x, for which L grows until the quadratic model is an upper bound.

        Along a way that is taken: a step from x, for which alpha falls until Armijo's rule holds.

        Returns the point, the gradient there, L or alpha, the trials and the calls of the oracle.
        """
        x, z, like = state.iterate.theta, state.z, state.t
        xp = namespace_of(like)
        one, zero = xp.ones_like(like), xp.zeros_like(like)
        share: Any = 1.0
        curved: Any = 0.5
        origin, goal, n, size = z, z, zero, self.shrink * state.L
        if way is not None:
            n, size = way.instead(0.0, 1.0, like), xp.where(way.taken, one, size)
            share, curved = way.instead(1.0, way.gamma, like), way.instead(0.5, 0.0, like)
            origin, goal = way.otherwise(f.backend, lambda _: (z, z), (x, axpy(1.0, way.d, x)))

        def trial(now: _Evaluation) -> tuple[Point, Leaves, Array, _Evaluation]:
            def assess(point: Point) -> tuple[Array, Array]:
                d = sub(now.theta, origin)
                bound = now.value + share * dot(now.grad, d) + (curved * now.size) * dot(d, d) + f.rounding(now.value)
                last = now.n >= self.limit
                last = last if way is None else xp.where(way.taken, now.size <= 0, last)
                final = (now.n > 0) & ((point.value <= bound) | last)
                return (now.n == 0) | (final & f.exact), final

            if not f.backend.compiled:  # the gradient is that of the last trial: to ask for it here is one more read
                point = f.point(now.theta, ahead=True)
                return point, now.grad, assess(point)[1], now
            return *f.probed(now.theta, assess, now.grad), now

        def again(last: tuple[Point, Leaves, Array, _Evaluation]) -> tuple[Point, Leaves, Array, _Evaluation]:
            point, grad, _, now = last
            n, at_z = now.n + 1, now.n == 0
            size = xp.where(at_z, now.size, self.grow * now.size)

            def onward(_: Any) -> tuple[Leaves, Array]:
                return self.nearest(f, region, axpy(-1 / size, grad, z), x)

            if way is None:
                theta, calls = onward(())
            else:
                alpha = shorter(now.size, dot(grad, way.d), point.value - now.value)
                size = xp.where(way.taken, xp.where(n > way.limit, zero, alpha), size)
                theta, calls = way.otherwise(f.backend, onward, (axpy(size, way.d, x), zero))
            value = xp.where(at_z, point.value, now.value)
            return trial(_Evaluation(theta, size, value, grad, n, now.calls + calls))

        first = _Evaluation(goal, size, state.iterate.value, state.grad, n, zero)
        if way is None:  # nothing is to be decided at z
            at_z = f.point(z, ahead=True)
            begun = again((at_z, f.gradient(at_z), zero > 0, first))
        else:
            begun = trial(first)
        point, grad, _, now = f.backend.while_loop(lambda last: ~last[2], again, begun)
        grad = grad if f.backend.compiled or not f.exact else f.gradient(point)
        return point, grad, now.size, now.n, now.calls


class _Evaluation(NamedTuple):
    """Where a step evaluates the objective next."""

    theta: Leaves
    size: Array  # L, or alpha along a way
    value: Array  # where the step starts, once it is known
    grad: Leaves  # there
    n: Array  # trials, this one included; 0 at z
    calls: Array  # of the oracle


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
