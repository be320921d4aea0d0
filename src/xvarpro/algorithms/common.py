"""What the algorithms share: iterates, counting, lines to search along, and a first estimate of the curvature."""

from __future__ import annotations

from typing import Any

from xvarpro.algorithms.interface import Counts, Iterate
from xvarpro.algorithms.steps.interface import Line, StepRule
from xvarpro.core.namespace import array_namespace, device
from xvarpro.core.status import Status
from xvarpro.core.struct import Array, Leaves
from xvarpro.core.trees import axpy, dot, sub


def counts(like: Array, values: int = 0, gradients: int = 0, lmos: int = 0, projections: int = 0) -> Counts:
    """Counts as arrays beside `like`, in its dtype: one type for a compiled loop to carry."""
    xp = array_namespace(like)
    return Counts(*(xp.full_like(like, float(n)) for n in (values, gradients, lmos, projections)))


def add(total: Counts, values: Any = 0, gradients: Any = 0, lmos: Any = 0, projections: Any = 0) -> Counts:
    """`total` with the work of one iteration added."""
    return Counts(*(t + n for t, n in zip(total, (values, gradients, lmos, projections), strict=True)))


def status(like: Array, progress: Array | None = None) -> Array:
    """RUNNING, or NO_DESCENT where the iteration did not move."""
    xp = array_namespace(like)
    running = xp.zeros((), dtype=xp.int32, device=device(like))
    if progress is None:
        return running
    return xp.where(progress, running, xp.full_like(running, Status.NO_DESCENT.code))


def moved(alpha: Array, dd: Array, theta: Leaves) -> Array:
    """Whether a step alpha along d, ``dd = |d|^2``, changes theta by more than its rounding; 0 and NaN do not."""
    eps = array_namespace(alpha).finfo(alpha.dtype).eps
    return (alpha * alpha) * dd > (eps * eps) * dot(theta, theta)


def start(f: Any, region: Any, theta: Leaves) -> tuple[Iterate, Leaves, Leaves]:
    """Value and certificate at the start; also its gradient and the direction of Algorithm 2."""
    point, grad, direction = certified(f, region, theta)
    zero = array_namespace(point.value).zeros_like(point.value)
    iterate = Iterate(
        theta, point.value, direction.gap_A, direction.gap_B, zero, zero, status(zero), counts(zero, 1, 1, 1),
        direction.slack, direction.lower,
    )  # fmt: skip
    return iterate, grad, direction.d


def certified(f: Any, region: Any, theta: Leaves, point: Any = None) -> tuple[Any, Leaves, Any]:
    """Point, gradient, and the direction of Algorithm 2 there; `point` is the one at theta, where it is known."""
    if not is_exact(f):
        return f.certified(region, theta, point)
    point, grad = f.value_and_gradient(theta) if point is None else (point, f.gradient(point))
    return point, grad, region.blmo(theta, grad)


def is_exact(f: Any) -> bool:
    """Whether gradients are right to rounding; objectives without a lower level need not say so."""
    return getattr(f, "exact", True)


def along(f: Any, iterate: Iterate, d: Leaves, gap: Array, dd: Array, cap: Array) -> Line:
    """The objective along `d` from the iterate, ``gap = -<grad, d>`` and ``dd = <d, d>``, for steps up to `cap`."""

    def point(alpha: Array) -> Any:
        return f.point(axpy(alpha, d, iterate.theta))

    def slope(point: Any) -> Array:
        return dot(f.gradient(point), d)

    return Line(f.backend, point, iterate.value, gap, dd, cap, slope)


def arrived(
    f: Any, region: Any, iterate: Iterate, point: Any, values: Any, gradients: Any = 0
) -> tuple[Iterate, Leaves, Leaves]:
    """The iterate at a point, with its certificate; the gradient and the direction there; the search's work counted."""
    point, grad, direction = certified(f, region, point.theta, point)
    return at(iterate, point, direction, values, gradients + 1), grad, direction.d


def at(iterate: Iterate, point: Any, direction: Any, values: Any, gradients: Any) -> Iterate:
    """The iterate at a point, with the certificate that a direction of Algorithm 2 carries; the work counted."""
    return iterate._replace(
        theta=point.theta,
        value=point.value,
        gap_A=direction.gap_A,
        gap_B=direction.gap_B,
        slack=direction.slack,
        lower=direction.lower,
        counts=add(iterate.counts, values=values, gradients=gradients, lmos=1),
    )


def measured(rule: StepRule, f: Any, grad: Leaves, d: Leaves, iterate: Iterate) -> tuple[Array, Iterate]:
    """An estimate of L along `d`, for a rule that wants one, and the iterate with the work counted."""
    if not rule.uses_curvature:
        return array_namespace(iterate.value).ones_like(iterate.value), iterate
    L = curvature(f, iterate.theta, grad, d)
    return L, iterate._replace(counts=add(iterate.counts, values=1, gradients=1))


def curvature(f: Any, theta: Leaves, grad: Leaves, d: Leaves) -> Array:
    """``|grad(theta + h d) - grad(theta)| / |h d|``, at a small h <= 1: the first estimate of L, from one gradient.

    A difference has lost half of its digits or more, to rounding that every framework does its own way. Only powers
    of ``2^(1/4)`` times ``|<grad, d>| / |d|^2`` are returned: the same one everywhere and in all units of f and theta,
    and solves that agree for longer.
    """
    xp = array_namespace(theta[0])
    small = xp.finfo(theta[0].dtype).eps ** (1 / 3)
    size, length = xp.sqrt(dot(theta, theta)), xp.sqrt(dot(d, d))
    ratio = xp.where(size > 0, size, length) / xp.where(length > 0, length, xp.ones_like(length))
    h = small * xp.minimum(xp.ones_like(ratio), ratio)
    if not is_exact(f):
        f = f.sharp()
        _, grad = f.value_and_gradient(theta)
    _, other = f.value_and_gradient(axpy(h, d, theta))
    change = sub(other, grad)
    L = xp.sqrt(dot(change, change)) / (h * length)
    unit = (xp.abs(dot(grad, d)) / length) / length
    unit = xp.where(unit > 0, unit, xp.ones_like(unit))
    # a direction without curvature, or no direction: any L is right, backtracking does the rest
    return xp.where(L > 0, unit * 2.0 ** (0.25 * xp.round(4 * xp.log2(L / unit))), unit)


def feasible_search(
    f: Any, theta: Leaves, d: Leaves, slope: Array, value: Array, worst: Array, gamma: float, limit: int
) -> tuple[Array, Any, Array]:
    """Armijo's rule against `worst` along a feasible direction, from alpha = 1, with the parabola's next trial.

    Returns alpha, the point there and the trials; alpha is 0, and the point the one at `theta`, where none was found.
    """
    xp = array_namespace(slope)

    def trial(alpha: Array, n: Array) -> tuple[Array, Any, Array]:
        alpha = xp.where((n > limit) | ~(slope < 0), 0 * alpha, alpha)
        return alpha, f.point(axpy(alpha, d, theta), ahead=True), n

    def rejected(state: tuple[Array, Any, Array]) -> Array:
        alpha, point, _ = state
        return ~(point.value <= worst + gamma * alpha * slope) & (alpha > 0)

    def again(state: tuple[Array, Any, Array]) -> tuple[Array, Any, Array]:
        # minimiser of the parabola through value, slope and the trial, kept within a tenth and a half
        alpha, point, n = state
        excess = 2 * (point.value - value - alpha * slope)
        best = -slope * alpha * alpha / xp.where(excess > 0, excess, xp.ones_like(excess))
        kept = xp.minimum(xp.maximum(best, 0.1 * alpha), 0.5 * alpha)
        return trial(xp.where(excess > 0, kept, 0.5 * alpha), n + 1)

    one = xp.ones_like(slope)
    return f.backend.while_loop(rejected, again, trial(one, one))


def spectral_length(alpha: Array, d: Leaves, dd: Array, change: Leaves, last: Array) -> Array:
    """``<s, s> / <s, y>`` of the step s = alpha d and the change y of the gradient; twice the last where that fails."""
    xp = array_namespace(alpha)
    curved = dot(d, change)
    length = alpha * dd / xp.where(curved > 0, curved, xp.ones_like(curved))
    return xp.where((curved > 0) & (length > 0), length, 2 * last)


def bounded(length: Array, theta: Leaves, dd: Array, grad: Leaves) -> Array:
    """At most a step of a million times the size of theta: where curvature stays negative, doubling must end."""
    xp = array_namespace(length)
    size, slope = xp.maximum(dot(theta, theta), dd), dot(grad, grad)
    longest = 1e6 * xp.sqrt(size / xp.where(slope > 0, slope, xp.ones_like(slope)))
    return xp.where(slope > 0, xp.minimum(length, longest), length)
