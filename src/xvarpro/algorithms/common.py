"""What methods are written with: iterates and their certificates, counting, lines to search along, line search.

Scalars are 0-d arrays; theta, gradients and directions are `Leaves`, tuples of arrays of one shape each.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from xvarpro.algorithms.interface import Counts, Iterate
from xvarpro.algorithms.steps.interface import Line, Point
from xvarpro.backends import Backend, get
from xvarpro.core.namespace import device, is_host, namespace_of, positive_or_one
from xvarpro.core.status import Status
from xvarpro.core.struct import Array, Leaves
from xvarpro.core.trees import axpy, dot, map_leaves, parts, sub
from xvarpro.objective.interface import Objective
from xvarpro.problem.problem import Problem
from xvarpro.sets.box import Box
from xvarpro.sets.region import Direction, Region


def add(
    total: Counts,
    values: Array | int = 0,
    gradients: Array | int = 0,
    lmos: Array | int = 0,
    projections: Array | int = 0,
    batches: Array | int = 0,
) -> Counts:
    """`total` with the work of one iteration added; numbers or 0-d arrays."""
    work = values, gradients, lmos, projections, batches
    return Counts(*[t if type(n) is int and not n else t + n for t, n in zip(total, work, strict=True)])


def status(like: Array, progress: Array | None = None) -> Array:
    """RUNNING, or NO_DESCENT where `progress` is False; 0-d int32 on the device of `like`."""
    xp = namespace_of(like)
    running = xp.zeros((), dtype=xp.int32, device=device(like))
    if progress is None:
        return running
    return xp.where(progress, running, Status.NO_DESCENT.code)


def moved(alpha: Array, dd: Array, theta: Leaves) -> Array:
    """Whether a step alpha along d, ``dd = |d|^2``, changes theta by more than its rounding; 0 and NaN do not."""
    eps = namespace_of(alpha).finfo(alpha.dtype).eps
    return (alpha * alpha) * dd > (eps * eps) * dot(theta, theta)


def chosen(condition: Array, a: Any, b: Any) -> Any:
    """`select` for a 0-d condition that is not read: the arrays that differ are copied instead."""
    where = namespace_of(condition).where
    return map_leaves(lambda x, y: x if x is y else where(condition, x, y), a, b)


def start(f: Objective, region: Region, theta: Leaves) -> tuple[Iterate, Leaves, Leaves]:
    """The first iterate, with value and certificate; its gradient; the direction d of Algorithm 2 there."""
    point, grad, direction = certified(f, region, theta)
    zero = namespace_of(point.value).zeros_like(point.value)
    blank = Iterate(theta, zero, zero, zero, zero, zero, status(zero), Counts(zero, zero, zero, zero, zero), zero)
    return at(blank, point, direction, 1, 1), grad, direction.d


def certified(
    f: Objective, region: Region, theta: Leaves, point: Point | None = None, grad: Leaves | None = None
) -> tuple[Point, Leaves, Direction]:
    """Point, gradient, and the direction of Algorithm 2 at theta; `point` and `grad` are those there, where known.

    An inexact lower level is solved better there, so that its gradient is computed in any case.
    """
    if not f.exact:
        inexact: Any = f
        return inexact.certified(region, theta, point)
    if point is None:
        point, grad = f.value_and_gradient(theta)
    elif grad is None:
        grad = f.gradient(point)
    return point, grad, region.blmo(theta, grad)


def arrived(
    f: Objective, region: Region, iterate: Iterate, point: Point, values: Array | int, gradients: Array | int = 0
) -> tuple[Iterate, Leaves, Leaves]:
    """The iterate at a point, with its certificate; the gradient and the direction d of Algorithm 2 there.

    `values` and `gradients` are what the search for the point cost; the gradient and the LMO call are added.
    """
    point, grad, direction = certified(f, region, point.theta, point)
    return at(iterate, point, direction, values, gradients + 1), grad, direction.d


def at(
    iterate: Iterate, point: Point, direction: Direction, values: Array | int, gradients: Array | int, lmos: int = 1
) -> Iterate:
    """The iterate at a point, with the certificate that a direction of Algorithm 2 carries; the work counted."""
    return iterate._replace(
        theta=point.theta,
        value=point.value,
        gap_A=direction.gap_A,
        gap_B=direction.gap_B,
        slack=direction.slack,
        lower=direction.lower,
        w=getattr(point, "start", ()),
        counts=add(iterate.counts, values=values, gradients=gradients, lmos=lmos),
    )


def along(f: Objective, iterate: Iterate, d: Leaves, gap: Array, dd: Array, cap: Array) -> Line:
    """The objective along `d` from the iterate, ``gap = -<grad, d>`` and ``dd = <d, d>``, for steps up to `cap`."""

    def point(alpha: Array) -> Point:
        return f.point(axpy(alpha, d, iterate.theta))

    def slope(point: Point) -> Array:
        return dot(f.gradient(point), d)

    return Line(f.backend, point, iterate.value, gap, dd, cap, slope)


def curvature(f: Objective, theta: Leaves, grad: Leaves, d: Leaves) -> tuple[Array, Array]:
    """``|grad(theta + h d) - grad(theta)| / |h d|``, at a small h <= 1: the first estimate of L, from one gradient.

    And the number of gradients: none where d is 0.

    A difference has lost half of its digits or more, to rounding that every framework does its own way. Only powers
    of ``2^(1/4)`` times ``|<grad, d>| / |d|^2`` are returned: the same one everywhere and in all units of f and theta,
    and solves that agree for longer.
    """
    xp = namespace_of(theta[0])
    small = xp.finfo(theta[0].dtype).eps ** (1 / 3)
    size, length = xp.sqrt(dot(theta, theta)), xp.sqrt(dot(d, d))
    ratio = xp.where(size > 0, size, length) / positive_or_one(length)
    h = small * xp.minimum(xp.ones_like(ratio), ratio)

    def difference(grad: Leaves) -> Leaves:
        g = f if f.exact else f.with_lower_tolerance(0.0)
        if not f.exact:
            _, grad = g.value_and_gradient(theta)
        _, other = g.value_and_gradient(axpy(h, d, theta))
        return sub(other, grad)

    moves = length > 0
    change = f.backend.when(moves, difference, grad)
    L = xp.sqrt(dot(change, change)) / (h * length)
    unit = (xp.abs(dot(grad, d)) / length) / length
    unit = positive_or_one(unit)
    # a direction without curvature, or no direction: any L is right, backtracking does the rest. What log2 and pow of a
    # framework are off by is rounding like that of `unit`
    L = xp.where(moves & (L > 0), unit * 2.0 ** (0.25 * xp.round(4 * xp.log2(L / unit))), unit)
    return L, xp.astype(moves, unit.dtype)


def feasible_search(
    f: Objective, theta: Leaves, d: Leaves, slope: Array, value: Array, worst: Array, gamma: Any, limit: Any
) -> tuple[Array, Point, Array]:
    """Armijo's rule ``f(theta + alpha d) <= worst + gamma alpha slope`` from alpha = 1, ``slope = <grad, d>``.

    Returns alpha, the point there and the trials made; alpha is 0, and the point the one at `theta`, where `limit`
    trials found none. The next trial is the minimiser of the parabola through value, slope and the last trial, kept
    within a tenth and a half of the last alpha.
    """
    xp = namespace_of(slope)

    def trial(alpha: Array, n: Array) -> tuple[Array, Point, Array]:
        alpha = xp.where((n > limit) | ~(slope < 0), 0 * alpha, alpha)
        return alpha, f.point(axpy(alpha, d, theta), ahead=True), n

    def rejected(state: tuple[Array, Point, Array]) -> Array:
        alpha, point, _ = state
        return ~(point.value <= worst + gamma * alpha * slope) & (alpha > 0)

    def again(state: tuple[Array, Point, Array]) -> tuple[Array, Point, Array]:
        alpha, point, n = state
        return trial(shorter(alpha, slope, point.value - value), n + 1)

    one = xp.ones_like(slope)
    return f.backend.while_loop(rejected, again, trial(one, one))


def shorter(alpha: Array, slope: Array, rise: Array) -> Array:
    """The minimiser of the parabola with that slope at 0 and that rise at alpha, within a tenth and a half of alpha."""
    xp = namespace_of(alpha)
    excess = 2 * (rise - alpha * slope)
    best = -slope * alpha * alpha / positive_or_one(excess)
    kept = xp.minimum(xp.maximum(best, 0.1 * alpha), 0.5 * alpha)
    return xp.where(excess > 0, kept, 0.5 * alpha)


class Aside(NamedTuple):
    """Where the steps of one problem are computed: those of one on a device by NumPy, if its sets are boxes.

    The device is then read once for each trial, and launches nothing for what has as many numbers as theta.
    """

    f: Any
    problem: Problem
    backend: Backend  # of the steps
    region: Region
    like: Any = None  # an array of the problem's device; None where steps are computed there

    @classmethod
    def of(cls, f: Objective, region: Region, theta: Leaves) -> Aside:
        here = f.backend.compiled or is_host(device(theta[0]))
        if here or not all(isinstance(C, Box) for _, C in region.constrained):
            return cls(f, f.problem, f.backend, region)
        return cls(f, f.problem, get("numpy"), region.on_host, theta[0])

    def down(self, *arrays: Array) -> Leaves:
        """What lies on the device, by one read."""
        return _together(self.f.backend.to_numpy, arrays)

    def up(self, *arrays: Array) -> Leaves:
        """Arrays for the device, in one transfer."""
        return _together(partial(self.f.backend.asarray, device=device(self.like)), arrays)


def _together(send: Callable[[Any], Array], arrays: Leaves) -> Leaves:
    xp = namespace_of(arrays[0])
    return parts(send(xp.concat([xp.reshape(x, (-1,)) for x in arrays])), [tuple(x.shape) for x in arrays])
