"""Methods for batches: every iteration evaluates one trial per problem, and every problem judges its own."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple, final

from xvarpro.batch._step import newton_point
from xvarpro.batch.objective import Batch, Local
from xvarpro.batch.region import Regions
from xvarpro.core import checks
from xvarpro.core.namespace import array_namespace, device
from xvarpro.core.struct import Array, Struct
from xvarpro.core.trees import select
from xvarpro.errors import ProblemError

TANGENTS = 16  # entries of theta up to which whole Jacobians are cheaper than more iterations


class Point(NamedTuple):
    """Where every problem is; arrays over the batch. `memory` is the method's own."""

    theta: Array  # (b, p)
    local: Local
    gap_A: Array
    gap_B: Array
    memory: Any


class Method(Struct):
    """How a batch is iterated: a trial from a point, and what its evaluation makes of the point."""

    @property
    def needs_projection(self) -> bool:
        """Whether every set has to offer a projection."""
        return True

    @abstractmethod
    def evaluate(self, f: Batch, theta: Array) -> Local:
        """The objectives with the derivatives that the method uses."""

    @abstractmethod
    def init(self, regions: Regions, theta: Array, local: Local) -> Any:
        """First memory."""

    @abstractmethod
    def trial(self, backend: Any, regions: Regions, point: Point) -> tuple[Array, Any]:
        """Feasible points to try, and what `judge` needs to know of them."""

    @abstractmethod
    def judge(self, point: Point, theta: Array, local: Local, plan: Any, level: Array) -> tuple[Array, Any]:
        """Which trials are accepted, shape (b,), and the memory after that.

        `level` marks trials whose value differs by rounding alone and whose gap is smaller: progress all the same.
        """


class _Damped(NamedTuple):
    B: Array  # model of the Hessian
    scale: Array  # largest diagonal of a Gauss-Newton matrix so far
    damping: Array
    growth: Array


class _Promise(NamedTuple):
    decrease: Array


@final
@dataclass(frozen=True)
class LevenbergMarquardt(Method):
    """Projected Levenberg-Marquardt on the reduced residual, with a BFGS end where that does not vanish.

    The model is the Gauss-Newton matrix of the whole Jacobian of variable projection, or, where a step brought less
    than a fifth of the objective, its BFGS update (Fletcher, Xu 1987): quadratic convergence for small residuals and
    superlinear for large ones. A step minimises the damped model over the set, per problem, with a damping of its own
    (Nielsen 1999).

    Parameters
    ----------
    damping : float
        First damping, > 0, relative to the diagonal of the Gauss-Newton matrix.

    Examples
    --------
    >>> import xvarpro as xv
    >>> xv.many.LevenbergMarquardt()
    LevenbergMarquardt(damping=0.001)
    """

    damping: float = 1e-3

    def __post_init__(self) -> None:
        checks.nonnegative(self, "damping")
        if not self.damping:
            raise ProblemError("LevenbergMarquardt needs damping > 0: it grows by factors")

    def evaluate(self, f: Batch, theta: Array) -> Local:
        return f.second(theta)

    def init(self, regions: Regions, theta: Array, local: Local) -> _Damped:
        xp = array_namespace(theta)
        one, B = xp.ones_like(local.value), local.curvature
        return _Damped(B, xp.linalg.diagonal(B), self.damping * one, 2 * one)

    def trial(self, backend: Any, regions: Regions, point: Point) -> tuple[Array, _Promise]:
        memory = point.memory
        xp = array_namespace(point.theta)
        # entries of theta that the residual does not see at all are held by the largest scale
        largest = xp.max(memory.scale, axis=1, keepdims=True)
        least = xp.where(largest > 0, xp.finfo(point.theta.dtype).eps * largest, xp.ones_like(largest))
        scale = xp.maximum(memory.scale, least)
        added = xp.expand_dims(memory.damping, axis=1) * scale
        B = memory.B + xp.expand_dims(added, axis=2) * _eye(memory.B)
        theta, decrease = newton_point(backend, regions, point.theta, point.local.grad, B)
        return theta, _Promise(decrease)

    def judge(self, point: Point, theta: Array, local: Local, plan: _Promise, level: Array) -> tuple[Array, _Damped]:
        xp = array_namespace(theta)
        memory, value = point.memory, point.local.value
        brought = value - local.value
        better = brought >= 1e-4 * plan.decrease
        accepted = xp.isfinite(local.value) & (plan.decrease > 0) & (better | level)
        ratio = brought / xp.where(plan.decrease > 0, plan.decrease, xp.ones_like(value))
        shrink = xp.minimum(xp.maximum(1 - (2 * ratio - 1) ** 3, xp.full_like(ratio, 0.1)), 2 * xp.ones_like(ratio))
        shrink = xp.where(better, shrink, xp.full_like(ratio, 0.1))
        damping = memory.damping * xp.where(accepted, shrink, memory.growth)
        growth = xp.where(accepted, 2 * xp.ones_like(ratio), 2 * memory.growth)
        much = brought >= 0.2 * value
        updated = _bfgs(memory.B, theta - point.theta, local.grad - point.local.grad)
        B = xp.where(much[:, None, None], local.curvature, updated)
        scale = xp.maximum(memory.scale, xp.linalg.diagonal(local.curvature))
        return accepted, _Damped(select(accepted, B, memory.B), select(accepted, scale, memory.scale), damping, growth)


class _Spectral(NamedTuple):
    length: Array  # Barzilai-Borwein's
    alpha: Array  # of the next trial along the direction
    recent: Array  # (b, memory), values that the line search compares with


class _Ahead(NamedTuple):
    d: Array
    slope: Array


@final
@dataclass(frozen=True)
class SpectralGradient(Method):
    """Projected gradient of Barzilai-Borwein length with a nonmonotone line search, a length and a search per problem.

    One VJP per iteration, whatever the number of entries of theta.

    Parameters
    ----------
    memory : int
        A trial has to improve on the worst of the last `memory` values; 1 makes every problem monotone.
    gamma : float
        Share of the predicted decrease that is asked for, in (0, 1/2).

    Examples
    --------
    >>> import xvarpro as xv
    >>> xv.many.SpectralGradient(memory=1)
    SpectralGradient(memory=1, gamma=0.0001)
    """

    memory: int = 10
    gamma: float = 1e-4

    def __post_init__(self) -> None:
        if not isinstance(self.memory, int) or self.memory < 1:
            raise ProblemError(f"SpectralGradient needs memory >= 1, got {self.memory!r}")
        if not 0 < self.gamma < 0.5:
            raise ProblemError(f"SpectralGradient needs 0 < gamma < 1/2, got {self.gamma!r}")

    def evaluate(self, f: Batch, theta: Array) -> Local:
        return f.first(theta)

    def init(self, regions: Regions, theta: Array, local: Local) -> _Spectral:
        xp = array_namespace(theta)
        one = xp.ones_like(local.value)
        size, slope = xp.vecdot(theta, theta), xp.vecdot(local.grad, local.grad)
        # a tenth of the size of theta, or of the direction where theta is 0
        length = 0.1 * xp.sqrt(xp.where(size > 0, size, one) / xp.where(slope > 0, slope, one))
        recent = xp.broadcast_to(xp.expand_dims(local.value, axis=1), (theta.shape[0], self.memory))
        return _Spectral(length, one, recent)

    def trial(self, backend: Any, regions: Regions, point: Point) -> tuple[Array, _Ahead]:
        xp = array_namespace(point.theta)
        length, alpha, _ = point.memory
        d = regions.project(point.theta - xp.expand_dims(length, axis=1) * point.local.grad) - point.theta
        return point.theta + xp.expand_dims(alpha, axis=1) * d, _Ahead(d, xp.vecdot(point.local.grad, d))

    def judge(self, point: Point, theta: Array, local: Local, plan: _Ahead, level: Array) -> tuple[Array, _Spectral]:
        xp = array_namespace(theta)
        (length, alpha, recent), slope = point.memory, plan.slope
        worst = xp.max(recent, axis=1)
        enough = local.value <= worst + self.gamma * alpha * slope
        accepted = (slope < 0) & (enough | level)
        excess = 2 * (local.value - point.local.value - alpha * slope)
        best = -slope * alpha * alpha / xp.where(excess > 0, excess, xp.ones_like(excess))
        shorter = xp.where(excess > 0, xp.minimum(xp.maximum(best, 0.1 * alpha), 0.5 * alpha), 0.5 * alpha)
        s, change = theta - point.theta, local.grad - point.local.grad
        curved, ss = xp.vecdot(s, change), xp.vecdot(s, s)
        curved = xp.where(ss > 0, curved, xp.zeros_like(curved))
        fresh = xp.where(curved > 0, ss / xp.where(curved > 0, curved, xp.ones_like(curved)), 2 * length)
        # where curvature stays negative, doubling must end
        size, steep = xp.vecdot(theta, theta), xp.vecdot(local.grad, local.grad)
        longest = 1e6 * xp.sqrt(xp.maximum(size, ss) / xp.where(steep > 0, steep, xp.ones_like(steep)))
        fresh = xp.where(steep > 0, xp.minimum(fresh, longest), fresh)
        pushed = xp.concat([recent[:, 1:], xp.expand_dims(local.value, axis=1)], axis=1)
        return accepted, _Spectral(
            xp.where(accepted, fresh, length),
            xp.where(accepted, xp.ones_like(alpha), shorter),
            select(accepted, pushed, recent),
        )


class _Vertex(NamedTuple):
    d: Array
    gap: Array
    dd: Array
    alpha: Array


@final
@dataclass(frozen=True)
class ShortStep(Method):
    """Frank-Wolfe with the short step and an L per problem, estimated on the way (Pedregosa et al. 2020).

    For sets that offer no projection. Sublinear: expect percents of the objective, not digits.

    Examples
    --------
    >>> import xvarpro as xv
    >>> xv.many.ShortStep().needs_projection
    False
    """

    needs_projection = False

    def evaluate(self, f: Batch, theta: Array) -> Local:
        return f.first(theta)

    def init(self, regions: Regions, theta: Array, local: Local) -> Array:
        # so small that the first trial is a whole step
        return array_namespace(theta).zeros_like(local.value)

    def trial(self, backend: Any, regions: Regions, point: Point) -> tuple[Array, _Vertex]:
        xp = array_namespace(point.theta)
        d = regions.toward(point.theta, point.local.grad).d
        gap, dd = -xp.vecdot(point.local.grad, d), xp.vecdot(d, d)
        bend = point.memory * dd
        one = xp.ones_like(gap)
        alpha = xp.where(bend > gap, gap / xp.where(bend > 0, bend, one), one)
        return point.theta + xp.expand_dims(alpha, axis=1) * d, _Vertex(d, gap, dd, alpha)

    def judge(self, point: Point, theta: Array, local: Local, plan: _Vertex, level: Array) -> tuple[Array, Array]:
        xp = array_namespace(theta)
        L, (_, gap, dd, alpha) = point.memory, plan
        bound = point.local.value - alpha * gap + 0.5 * L * alpha * alpha * dd
        # L = 0 promises the whole gap: a step is enough there that brings half of it
        bound = xp.where(L > 0, bound, point.local.value - 0.5 * alpha * gap)
        accepted = (gap > 0) & ((local.value <= bound) | level)
        first = gap / xp.where(dd > 0, dd, xp.ones_like(dd))
        return accepted, xp.where(accepted, 0.9 * L, xp.where(L > 0, 2 * L, first))


def choose(regions: Regions) -> Method:
    """The default: second derivatives for a few parameters, gradients for more, vertices where nothing projects.

    Examples
    --------
    >>> import xvarpro as xv
    >>> from xvarpro.sets.region import Region
    >>> xv.many.choose(xv.many.Regions(Region(), ((2,),)))
    LevenbergMarquardt(damping=0.001)
    """
    if regions.region.without_projection:
        return ShortStep()
    return LevenbergMarquardt() if regions.size <= TANGENTS else SpectralGradient()


def _eye(B: Array) -> Array:
    return array_namespace(B).eye(B.shape[-1], dtype=B.dtype, device=device(B))


def _bfgs(B: Array, s: Array, y: Array) -> Array:
    """The BFGS update of `B`, as it is where the pair has no curvature."""
    xp = array_namespace(B)
    Bs = (B @ xp.expand_dims(s, axis=2))[..., 0]
    sy, sBs = xp.vecdot(s, y), xp.vecdot(s, Bs)
    good = (sy > (100 * xp.finfo(B.dtype).eps) * xp.sqrt(xp.vecdot(s, s) * xp.vecdot(y, y))) & (sBs > 0)
    safe = [xp.where(good, x, xp.ones_like(x)) for x in (sy, sBs)]
    change = _outer(y, y) / safe[0][:, None, None] - _outer(Bs, Bs) / safe[1][:, None, None]
    return select(good, B + change, B)


def _outer(a: Array, b: Array) -> Array:
    xp = array_namespace(a)
    return xp.expand_dims(a, axis=2) * xp.expand_dims(b, axis=1)
