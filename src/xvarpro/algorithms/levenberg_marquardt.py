"""Levenberg-Marquardt on the reduced residuals of one problem, or of a batch of them with a model each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, final

from xvarpro.algorithms.common import Aside, add, status
from xvarpro.algorithms.interface import Algorithm, Counts, Iterate
from xvarpro.backends import Backend, to_numpy
from xvarpro.backends.interface import either
from xvarpro.core import checks, trees
from xvarpro.core.namespace import device, is_host, namespace_of
from xvarpro.core.status import Status
from xvarpro.core.struct import Array, Leaves
from xvarpro.core.trees import parts, raveled, unraveled
from xvarpro.errors import ProblemError
from xvarpro.objective.gauss_newton import Arrow, Local, diagonal, gauss_newton, plus, solve_scaled, times
from xvarpro.objective.interface import Objective
from xvarpro.problem.problem import Problem
from xvarpro.sets.region import Region

# rounds of a step in the face and one across; of gradient steps alone, without faces or without a projection
ROUNDS, ALONE = 60, 200
SWITCH = 0.25  # squared errors of the two models' last predictions, up to which the quasi-Newton one is preferred
KEEP = 0.99  # and kept, by more than rounding
SHORT = 0.9  # of a step to where there is no value, such as a bound: what the next trials take
LEAST, MOST = 0.1, 0.5  # of a refused step: what the parabola through its values may leave
NEAR = 1e-3  # of a step along a line: how near to its ends the next trial may be
WORTH = 1e-4  # of what the model promises: what a trial must bring
SOFT = 0.15  # of the curvature along a step: that of the soft directions that make it long
REJECTIONS = 60  # in a row, after which a problem has no descent


class Model(NamedTuple):
    """What the method carries of every problem."""

    Q: Any  # (b, p, p), the quasi-Newton matrix; an arrow has none
    quasi: Array  # (b,), whether it is the model of the next step; the Gauss-Newton matrix is otherwise
    scale: Array  # (b, p), largest diagonal of a Gauss-Newton matrix so far
    damping: Array  # (b,)
    growth: Array  # (b,), of the damping at the next refusal
    short: Array  # (b,), whether a trial since the last step had no value: those that follow are a tenth shorter


class Point(NamedTuple):
    """Where every problem is, and its certificate; arrays over the batch."""

    theta: Array  # (b, p)
    local: Local
    gap_A: Array
    gap_B: Array
    decrease: Array  # that the model promises over the whole set, without damping
    model: Model
    rejected: Array  # trials in a row


class Stated(Protocol):
    """The objective of one problem, or those of a batch."""

    @property
    def backend(self) -> Backend: ...
    @property
    def problem(self) -> Problem: ...


def alone(xp: Any, value: Array, grad: Array, H: Array, w: Any = ()) -> Local:
    """What `gauss_newton` has of one problem, as a batch of one."""
    return Local(value[None, ...], grad[None, ...], H[None, ...], xp.isnan(value[None, ...]), w)


class MarquardtState(NamedTuple):
    """State of a solve."""

    iterate: Iterate
    point: Point


@final
@dataclass(frozen=True)
class LevenbergMarquardt(Algorithm):
    """Projected Levenberg-Marquardt on the reduced residual, for few parameters: the default up to 16 of them.

    A step minimises a quadratic model over the sets, with a damping that follows the ratio of the decrease to the one
    predicted (Nielsen 1999), and after a refusal what the value there says of the length. The model has the
    Gauss-Newton matrix of Kaufman's Jacobian (1975). If that predicted the last change of the gradient badly, it has a
    BFGS matrix built upon it (Fletcher, Xu 1987). Convergence is quadratic for small residuals and superlinear for
    large ones. The decrease that the model promises over the whole set certifies an iterate. No step and no status
    depends on the units of free or bounded parameters. For a set without a projection the model is minimised roughly,
    through vertices alone.

    Parameters
    ----------
    damping : float
        First damping, > 0, relative to the diagonal of the Gauss-Newton matrix.

    Notes
    -----
    Oracle : LMO for the gap; projection and faces where the sets have them
    Per iteration : 1 value, 1 gradient, 1 LMO, and a tangent of the model for each entry of theta
    Memory : a few matrices with a row for each entry of theta
    Polytope only : no
    When : few parameters: rates, positions, widths

    Examples
    --------
    >>> import xvarpro as xv
    >>> xv.algorithms.LevenbergMarquardt()
    LevenbergMarquardt(damping=0.001)
    """

    damping: float = 1e-3

    takes_unbounded = True
    monotone = True

    def __post_init__(self) -> None:
        checks.nonnegative(self, "damping")
        if not self.damping:
            raise ProblemError("LevenbergMarquardt: damping must be > 0, since it grows by factors; got 0")

    # -- one problem

    def init(self, f: Objective, region: Region, theta: Leaves) -> MarquardtState:
        aside, x = Aside.of(f, region, theta), raveled(theta)
        x = x if aside.like is None else aside.down(x)[0]
        found = gauss_newton(aside.f, theta)
        local, _ = _local(aside, found)
        point = self.first(aside, aside.region, x[None, :], local)
        zero = f.backend.xp.zeros_like(found[0].value)
        blank = Iterate(theta, zero, zero, zero, zero, zero, status(zero), Counts(zero, zero, zero, zero, zero), zero)
        never = point.local.deficient
        return MarquardtState(_reported(aside, blank, point, never, never), point)

    def advance(self, f: Objective, region: Region, state: MarquardtState) -> MarquardtState:
        aside, before = Aside.of(f, region, state.iterate.theta), state.point
        before = before if aside.like is None else _held(before)
        trial = self.trial(aside, aside.region, before)
        x = trial[0][0, :]
        x = x if aside.like is None else aside.up(x)[0]
        found = gauss_newton(aside.f, parts(x, region.shapes))
        local, noise = _local(aside, found, state.iterate.value)
        point, accepted, lost = self.after(aside, aside.region, before, trial, local, noise)
        return MarquardtState(_reported(aside, state.iterate, point, accepted, lost), point)

    def gauss_newton(self, state: MarquardtState) -> Array:
        return state.point.local.curvature[0, ...]

    def nearer(self, state: MarquardtState) -> MarquardtState:
        model, xp = state.point.model, namespace_of(state.point.theta)
        model = model._replace(damping=xp.maximum(model.damping, xp.ones_like(model.damping)))
        return state._replace(point=state.point._replace(model=model))

    # -- a batch

    def first(self, f: Stated, region: Region, x: Array, local: Local) -> Point:
        """Where every problem starts, at x (b, p)."""
        xp = f.backend.xp
        one = xp.ones_like(local.value)
        scale = diagonal(xp, local.curvature)
        secant = () if isinstance(local.curvature, Arrow) else local.curvature
        model = Model(secant, one < 0, scale, self.damping * one, 4 * one, one < 0)
        rejected = xp.zeros(one.shape, dtype=xp.int32, device=device(x))
        return Point(x, local, *self._certificate(f, region, x, local), model, rejected)

    def after(
        self, f: Stated, region: Region, point: Point, tried: tuple[Array, Array], local: Local, noise: Array
    ) -> tuple[Point, Array, Array]:
        """After one `trial` per problem, and what is there; which were accepted, and which have no descent, (b,).

        `noise` is by how much values may differ from rounding alone: a trial within it is accepted for less that is
        left to gain, and for that alone, since what rounding brings would lead in circles.
        """
        xp, (trial, promised) = f.backend.xp, tried
        step = trial - point.theta
        gap_A, gap_B, decrease = self._certificate(f, region, trial, local)
        # a value without a gradient, as at a bound where the model has none, is none: a shorter step may have both
        nan = xp.full_like(gap_A, xp.nan)
        local = local._replace(value=xp.where(xp.isfinite(gap_A + gap_B), local.value, nan))
        level = xp.abs(local.value - point.local.value) <= noise
        accepted = self._accepts(point, local, promised, level, decrease < point.decrease)
        none, seen = xp.zeros_like(point.rejected), (point, local, step, promised)
        after = either(
            f.backend,
            accepted,
            lambda: Point(trial, local, gap_A, gap_B, decrease, self._learned(*seen), none),
            lambda: point._replace(model=self._refused(*seen), rejected=point.rejected + 1),
        )
        eps = xp.finfo(trial.dtype).eps
        # NaN counts as moved: a shorter step may be better
        still = xp.all(xp.abs(step) <= eps * xp.abs(point.theta), axis=1)
        lost = still | (after.rejected > REJECTIONS)
        if step.shape[1] == 1:  # a minimum between two points whose values are the same
            near = -xp.sum(point.local.grad * step, axis=1) <= noise
            lost = lost | (level & near & (xp.sum(local.grad * step, axis=1) > 0))
        return after, accepted, ~accepted & lost

    def _certificate(self, f: Stated, region: Region, x: Array, local: Local) -> tuple[Array, Array, Array]:
        """Both parts of the gap, and the decrease that the Gauss-Newton model promises over the whole set."""
        gap_A, gap_B = region.gaps(x, local.grad)
        xp = f.backend.xp
        bends = diagonal(xp, local.curvature)
        # a direction of which the model knows nothing promises nothing
        held = plus(xp, local.curvature, xp.where(_moves(xp, bends, x), (10 * xp.finfo(x.dtype).eps) * bends, 1))
        _, decrease = minimise_model(f.backend, region, x, local.grad, held)
        if not f.problem.mu:  # no sum of squares is below 0
            decrease = xp.minimum(decrease, local.value)
        return gap_A, gap_B, decrease

    def trial(self, f: Stated, region: Region, point: Point) -> tuple[Array, Array]:
        """Feasible points to try, (b, p), and the decrease that each model promises, (b,)."""
        model, backend, xp = point.model, f.backend, f.backend.xp
        # entries of theta that the residual does not depend on are held by the largest scale
        largest = xp.max(model.scale, axis=1, keepdims=True)
        held = xp.where(largest > 0, largest, 1)
        added = model.damping[:, None] * xp.where(_moves(xp, model.scale, point.theta), model.scale, held)
        B: Any = point.local.curvature
        B = B if isinstance(B, Arrow) else xp.where(model.quasi[:, None, None], model.Q, B)
        trial, decrease = minimise_model(backend, region, point.theta, point.local.grad, plus(xp, B, added))
        step = trial - point.theta
        # the decrease of the model itself: the damping is no part of the objective
        decrease = decrease + 0.5 * xp.sum(step * (added * step), axis=1)
        trial = xp.where(model.short[:, None], point.theta + SHORT * step, trial)
        return trial, xp.where(model.short, SHORT * decrease, decrease)  # at least

    def _accepts(self, point: Point, new: Local, promised: Array, level: Array, less: Array) -> Array:
        """Which trials are accepted, (b,).

        `level` are trials whose value is the same to rounding, `less` those where less is left to gain.
        """
        xp, better = namespace_of(promised), point.local.value - new.value >= WORTH * promised
        return xp.isfinite(new.value) & (promised > 0) & xp.where(level, less, better)

    def _learned(self, point: Point, new: Local, step: Array, promised: Array) -> Model:
        """The models after trials that are accepted."""
        model, old, xp = point.model, point.local, namespace_of(step)
        brought = old.value - new.value
        ratio = brought / xp.where(promised > 0, promised, 1)
        least = xp.full_like(ratio, 0.1)
        shrink = xp.minimum(xp.maximum(1 - (2 * ratio - 1) ** 3, least), xp.full_like(ratio, 2.0))
        shrink = xp.where(brought >= WORTH * promised, shrink, least)
        root = xp.sqrt(xp.where(model.scale > 0, model.scale, 1))
        model = model._replace(
            scale=xp.maximum(model.scale, diagonal(xp, new.curvature)),
            damping=model.damping * shrink,
            growth=4 * xp.ones_like(ratio),
            short=xp.zeros_like(model.short),
        )
        if isinstance(new.curvature, Arrow):
            return model
        change = new.grad - old.grad
        by_gauss, by_secant = (change - times(old.curvature, step)) / root, (change - times(model.Q, step)) / root
        off_gauss, off_secant = xp.sum(by_gauss * by_gauss, axis=1), xp.sum(by_secant * by_secant, axis=1)
        # what it has learned is kept while it predicts better: where J tends to 0 the curvature is not J's
        learned = (off_secant < KEEP * off_gauss)[:, None, None]
        return model._replace(
            Q=_bfgs(xp, xp.where(learned, model.Q, new.curvature), step, change, root),
            quasi=off_secant < SWITCH * off_gauss,
        )

    def _refused(self, point: Point, new: Local, step: Array, promised: Array) -> Model:
        """The models after trials that are refused."""
        model, old, xp = point.model, point.local, namespace_of(step)
        brought = old.value - new.value
        # before it is damped, a step is made shorter where it had no value, and one of the quasi-Newton model is tried
        # again with the other one
        finite = xp.isfinite(new.value)
        short = ~finite & ~model.short
        again = short | model.quasi
        # where the curvature is c, relative to the scale, a damping of c (1 / alpha - 1) leaves alpha of a step: less
        # than that would be refused again at the same point
        down = -xp.sum(old.grad * step, axis=1)
        over, size = 2 * (down - brought), xp.sum(step * (model.scale * step), axis=1)
        alpha = xp.clip(down / xp.where(over > 0, over, 1), LEAST, MOST)
        size = xp.where(size > 0, size, 1)
        bend = 2 * (down - promised) / size
        least = SOFT * bend * (1 / xp.where(finite, alpha, MOST) - 1)
        # the first damping is a guess: how much too long a step by it is says little of what the next one should be
        damped = model.growth * model.damping
        tried = model.damping != xp.full_like(model.damping, self.damping)
        damped = xp.where(tried, xp.maximum(damped, least), damped)
        if step.shape[1] == 1:
            # on a line the curvature is that of the step, and where slopes at its ends meet is the minimum of a kink
            back = xp.sum(new.grad * step, axis=1)
            over = down + back
            alpha = xp.clip((brought + back) / xp.where(over > 0, over, 1), NEAR, 1 - NEAR)
            damped = xp.where(finite & (back > 0), down / (alpha * size) - bend, damped)
        return model._replace(
            quasi=model.quasi & short,
            damping=xp.where(again, model.damping, damped),
            growth=xp.where(again, model.growth, 4 * model.growth),
            short=model.short | short,
        )


def _held(point: Point) -> Point:
    """A point by NumPy, whose arrays lie on a device where a file has had them; but for w, which stays there."""
    if is_host(device(point.theta)):
        return point
    w = point.local.w
    point = trees.map_arrays(to_numpy, point._replace(local=point.local._replace(w=())))
    return point._replace(local=point.local._replace(w=w))


def _local(aside: Aside, found: tuple[Any, Array, Array], value: Array | None = None) -> tuple[Local, Array]:
    """What was found at a theta, as a batch of one, and by how much values near `value` may differ from rounding."""
    point, *model = found
    numbers = point.value, *model, aside.f.rounding(point.value if value is None else value)
    at, grad, H, noise = numbers if aside.like is None else aside.down(*numbers)
    return alone(aside.backend.xp, at, grad, H, getattr(point, "start", ())), noise


def _reported(aside: Aside, iterate: Iterate, point: Point, accepted: Array, lost: Array) -> Iterate:
    """The iterate of a batch of one, after a trial, and the work of one evaluation."""
    xp, value = aside.backend.xp, point.local.value[0]
    alpha, lost = xp.astype(accepted[0], value.dtype), xp.astype(lost[0], value.dtype)
    numbers = point.theta[0, :], value, point.gap_A[0], point.gap_B[0], point.decrease[0], alpha, lost
    x, value, gap_A, gap_B, decrease, alpha, lost = numbers if aside.like is None else aside.up(*numbers)
    return iterate._replace(
        theta=unraveled(x, iterate.theta),
        value=value,
        gap_A=gap_A,
        gap_B=gap_B,
        decrease=decrease,
        w=point.local.w,
        counts=add(iterate.counts, values=1, gradients=1, lmos=1),
        alpha_A=alpha if aside.region.constrained else 0 * alpha,
        alpha_B=alpha if aside.region.free else 0 * alpha,
        status=aside.f.backend.xp.where(lost > 0, Status.NO_DESCENT.code, 0 * iterate.status),
    )


def _bfgs(xp: Any, B: Array, s: Array, y: Array, root: Array) -> Array:
    """The BFGS update of `B`, as it is where the pair has no curvature; entries of s are measured by 1 / `root`."""
    Bs = times(B, s)
    sy, sBs = xp.sum(s * y, axis=1), xp.sum(s * Bs, axis=1)
    steps, changes = s * root, y / root
    size = xp.sqrt(xp.sum(steps * steps, axis=1) * xp.sum(changes * changes, axis=1))
    good = (sy > (100 * xp.finfo(B.dtype).eps) * size) & (sBs > 0)
    sy, sBs = xp.where(good, sy, 1)[:, None, None], xp.where(good, sBs, 1)[:, None, None]
    change = y[:, :, None] * y[:, None, :] / sy - Bs[:, :, None] * Bs[:, None, :] / sBs
    return xp.where(good[:, None, None], B + change, B)


def _moves(xp: Any, bends: Array, x: Array) -> Array:
    """Which entries move the residual, by their own size, by more than rounding of what others move it by.

    Of a factor of a column, which w takes up, a step would be one rounding over another.
    """
    size = bends * x * x
    return (bends > 0) & ((size > (100 * xp.finfo(x.dtype).eps) ** 2 * xp.max(size, axis=1, keepdims=True)) | (x == 0))


class _Walk(NamedTuple):
    """Points on the way to the minimum of a model; arrays over the batch."""

    x: Array
    slope: Array  # of the model, at x
    length: Array  # of the next gradient step
    decrease: Array  # of the model, so far
    going: Array
    n: Array


def minimise_model(backend: Backend, region: Region, theta: Array, grad: Array, B: Array) -> tuple[Array, Array]:
    """``argmin <grad, x - theta> + 1/2 <x - theta, B (x - theta)>`` over the sets, and by how much it lies below 0.

    Newton's point where that is feasible. Shapes (b, p), (b, p), (b, p, p); results (b, p) and (b,).
    """
    xp = backend.xp
    d = -solve_scaled(xp, B, grad)
    newton = theta + d, -0.5 * xp.sum(grad * d, axis=1)
    if not region.constrained:
        return newton
    met = xp.any(region.nearest(newton[0], grad) != newton[0], axis=1)  # NaN counts as met

    def bounded(newton: tuple[Array, Array]) -> tuple[Array, Array]:
        x, decrease = _in_faces(backend, region, theta, grad, B, met)
        return xp.where(met[:, None], x, newton[0]), xp.where(met, decrease, newton[1])

    return backend.when(xp.any(met), bounded, newton, steady=True)


def _in_faces(backend: Backend, region: Region, theta: Array, grad: Array, B: Array, met: Array) -> tuple[Array, Array]:
    """`minimise_model` where bounds are `met`.

    Steps of Newton's method inside the smallest face, up to the first bound that they meet, and projected gradient
    steps at the minimum of a face, which let bounds go (More, Toraldo 1991); all with the exact step of a parabola, so
    that every point is feasible and none is worse. Where a set offers no projection the steps go toward its vertices,
    as in Frank-Wolfe; where some set has no faces every other step does.
    """
    xp = backend.xp
    enough = xp.finfo(theta.dtype).eps ** 0.75
    # gradient steps in the units of the model: the units of theta have no effect where the sets are bounds
    D = region.evened(diagonal(xp, B))
    D = xp.where(D > 0, D, 1)
    faces = all(C.has_faces and C.has_projection for _, C in region.constrained)
    across = not faces and any(C.has_projection for _, C in region.constrained)

    def onward(
        walk: _Walk, target: Array, P: Callable[[Array], Array] | None = None
    ) -> tuple[_Walk, Array, Array, Array]:
        """To the lowest point of the model between x and `target`; P projects on the face of x."""
        d = target - walk.x
        if P is not None:
            # the slope across the face is not small at a minimum, and would multiply the rounding of a step within
            within = P(d)
            out = d - within
            rounding = (1e4 * xp.finfo(d.dtype).eps ** 2) * xp.sum(walk.x * (D * walk.x), axis=1)
            d = xp.where((xp.sum(out * (D * out), axis=1) <= rounding)[:, None], within, d)
        Bd = times(B, d)
        down, bend = -xp.sum(walk.slope * d, axis=1), xp.sum(d * Bd, axis=1)
        t = xp.where(bend > 0, down / xp.where(bend > 0, bend, 1), 1)
        t = xp.where(walk.going & (down > 0), xp.minimum(t, xp.ones_like(t)), 0)
        by = t[:, None]
        gained = walk.decrease + t * (down - 0.5 * t * bend)
        return walk._replace(x=walk.x + by * d, slope=walk.slope + by * Bd, decrease=gained), d, down, bend

    def round_(walk: _Walk) -> _Walk:
        P, cut = None, xp.zeros_like(walk.going)
        if faces:
            P, inside = _face(xp, region, B, walk.x)
            step, before = -P(solve_scaled(xp, inside, P(walk.slope))), walk.decrease
            # up to the first bound that it meets, which makes the face smaller; problems that share something meet as
            # many as they are, at once
            share = region.reach(step, walk.x)
            end = walk.x + (step if isinstance(B, Arrow) else share[:, None] * step)
            walk, *_ = onward(walk, region.nearest(end, walk.slope), P)
            cut = (share < 1) & (walk.decrease > before)
        target = region.nearest(walk.x - walk.length[:, None] * walk.slope / D, walk.slope)
        # bounds are let go at the minimum of a face alone: before that they would be met again
        target = xp.where(cut[:, None], walk.x, target)
        after, d, down, bend = onward(walk, target, P)
        length = xp.where(bend > 0, xp.sum(d * (D * d), axis=1) / xp.where(bend > 0, bend, 1), walk.length)
        if across:  # parts of a set whose sizes are far apart have no gradient step in common
            before, (after, *_) = after.decrease, onward(after, region.vertices(after.slope, after.x))
            down = xp.maximum(down, after.decrease - before)
        going = walk.going & (cut | (down > enough * after.decrease))
        return after._replace(length=length, going=going, n=walk.n + 1)

    def unfinished(walk: _Walk) -> Array:
        return xp.any(walk.going) & (walk.n < (ROUNDS if faces else ALONE))

    zero = xp.zeros_like(grad[:, 0])
    n = xp.zeros((), dtype=xp.int32, device=device(theta))
    last = backend.while_loop(unfinished, round_, _Walk(theta, grad, zero + 1, zero, met, n))
    # a model function may not be defined a rounding error outside
    return region.nearest(last.x, last.slope) if faces else last.x, last.decrease


def _face(xp: Any, region: Region, B: Any, x: Array) -> tuple[Callable[[Array], Array], Any]:
    """The projection on the smallest face of each point, and the model there, with its own scale outside."""
    scale = xp.max(diagonal(xp, B), axis=1)[:, None]
    if isinstance(B, Arrow):  # between bounds alone
        free = region.join(region.tangent(parts(xp.ones_like(x), region.shapes), parts(x, region.shapes)))
        return lambda d: free * d, plus(xp, B, (1 - free) * scale / xp.finfo(x.dtype).eps)
    P = region.tangents(x)
    eye = xp.eye(x.shape[1], dtype=x.dtype, device=device(x))
    return lambda d: times(P, d), P @ B @ P + scale[:, :, None] * (eye - P)
