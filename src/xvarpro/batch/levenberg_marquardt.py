"""Levenberg-Marquardt on the reduced residuals of a batch: every problem has a model, a damping and a decision."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, final

from xvarpro.backends import Backend
from xvarpro.batch import _small
from xvarpro.batch.objective import Local
from xvarpro.batch.region import Regions
from xvarpro.core import checks
from xvarpro.core.namespace import device, namespace_of
from xvarpro.core.struct import Array, Struct
from xvarpro.core.trees import select
from xvarpro.errors import ProblemError

# rounds of a step in the face and one across; of gradient steps alone, without faces or without a projection
ROUNDS, ALONE = 60, 200


class Model(NamedTuple):
    """What the method carries of every problem."""

    B: Array  # (b, p, p), of the Hessian
    scale: Array  # (b, p), largest diagonal of a Gauss-Newton matrix so far
    damping: Array  # (b,)
    growth: Array  # (b,), of the damping at the next refusal


@final
@dataclass(frozen=True)
class LevenbergMarquardt(Struct):
    """Projected Levenberg-Marquardt on the reduced residual, with a BFGS end where that does not vanish.

    The model is the Gauss-Newton matrix of the whole Jacobian of variable projection (Golub, Pereyra 1973), or, where a
    step brought less than a fifth of the objective, its BFGS update (Fletcher, Xu 1987): quadratic convergence for
    small residuals and superlinear for large ones. A step minimises the damped model over the set, with a damping that
    follows the ratio of the decrease to the model's (Nielsen 1999). Sets that offer no projection are reached through
    their vertices alone: the model is then minimised roughly, and the last digits take many iterations.

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
            raise ProblemError("LevenbergMarquardt: damping must be > 0, since it grows by factors; got 0")

    def init(self, local: Local) -> Model:
        xp = namespace_of(local.value)
        one = xp.ones_like(local.value)
        return Model(local.curvature, xp.linalg.diagonal(local.curvature), self.damping * one, 2 * one)

    def trial(
        self, backend: Backend, regions: Regions, theta: Array, local: Local, model: Model
    ) -> tuple[Array, Array]:
        """Feasible points to try, (b, p), and the decrease that each model promises, (b,)."""
        xp = namespace_of(theta)
        # entries of theta that the residual does not depend on are held by the largest scale
        largest = xp.max(model.scale, axis=1, keepdims=True)
        least = xp.where(largest > 0, xp.finfo(theta.dtype).eps * largest, xp.ones_like(largest))
        added = xp.expand_dims(model.damping, axis=1) * xp.maximum(model.scale, least)
        B = model.B + xp.expand_dims(added, axis=2) * _eye(model.B)
        return minimise_model(backend, regions, theta, local.grad, B)

    def update(
        self, model: Model, old: Local, new: Local, step: Array, promised: Array, level: Array
    ) -> tuple[Array, Model]:
        """Which trials are accepted, (b,), and the models after that.

        `level` marks trials whose value differs by rounding alone and whose gap is smaller: progress all the same.
        """
        xp = namespace_of(promised)
        brought = old.value - new.value
        better = brought >= 1e-4 * promised
        accepted = xp.isfinite(new.value) & (promised > 0) & (better | level)
        ratio = brought / xp.where(promised > 0, promised, xp.ones_like(promised))
        shrink = xp.minimum(xp.maximum(1 - (2 * ratio - 1) ** 3, xp.full_like(ratio, 0.1)), 2 * xp.ones_like(ratio))
        shrink = xp.where(better, shrink, xp.full_like(ratio, 0.1))
        damping = model.damping * xp.where(accepted, shrink, model.growth)
        growth = xp.where(accepted, 2 * xp.ones_like(ratio), 2 * model.growth)
        B = select(brought >= 0.2 * old.value, new.curvature, _bfgs(model.B, step, new.grad - old.grad))
        scale = xp.maximum(model.scale, xp.linalg.diagonal(new.curvature))
        B, scale = select(accepted, (B, scale), (model.B, model.scale))
        return accepted, Model(B, scale, damping, growth)


def _bfgs(B: Array, s: Array, y: Array) -> Array:
    """The BFGS update of `B`, as it is where the pair has no curvature."""
    xp = namespace_of(B)
    Bs = _times(B, s)
    sy, sBs = xp.vecdot(s, y), xp.vecdot(s, Bs)
    good = (sy > (100 * xp.finfo(B.dtype).eps) * xp.sqrt(xp.vecdot(s, s) * xp.vecdot(y, y))) & (sBs > 0)
    safe = [xp.where(good, x, xp.ones_like(x)) for x in (sy, sBs)]
    change = _outer(y) / safe[0][:, None, None] - _outer(Bs) / safe[1][:, None, None]
    return select(good, B + change, B)


class _Walk(NamedTuple):
    x: Array
    slope: Array  # of the model, at x
    length: Array  # of the next gradient step
    decrease: Array  # of the model, so far
    going: Array
    n: Array


def minimise_model(backend: Backend, regions: Regions, theta: Array, grad: Array, B: Array) -> tuple[Array, Array]:
    """``argmin <grad, x - theta> + 1/2 <x - theta, B (x - theta)>`` over the sets, and by how much it lies below 0.

    Steps of Newton's method inside the smallest face take turns with projected gradient steps, which find the face
    (More, Toraldo 1991); both with the exact step of a parabola, so that every point is feasible and none is worse. One
    round does where no constraint is met. Where a set offers no projection the steps go toward its vertices, as in
    Frank-Wolfe. Shapes (b, p), (b, p), (b, p, p); results (b, p) and (b,).
    """
    xp = namespace_of(theta)
    sets = [C for _, C in regions.region.constrained]
    if not sets:
        d = -_small.solve(B, grad)
        return theta + d, -0.5 * xp.vecdot(grad, d)
    enough = xp.finfo(theta.dtype).eps ** 0.75
    faces = all(C.has_faces and C.has_projection for C in sets)

    def onward(walk: _Walk, target: Array, P: Array | None = None) -> tuple[_Walk, Array, Array, Array]:
        """To the lowest point of the model between x and `target`; P projects on the face of x."""
        d = target - walk.x
        if P is not None:
            # the slope across the face is not small at a minimum, and would multiply the rounding of a step within
            within = _times(P, d)
            out = d - within
            rounding = (1e4 * xp.finfo(d.dtype).eps ** 2) * xp.vecdot(walk.x, walk.x)
            d = select(xp.vecdot(out, out) <= rounding, within, d)
        Bd = _times(B, d)
        down, bend = -xp.vecdot(walk.slope, d), xp.vecdot(d, Bd)
        t = xp.where(bend > 0, down / xp.where(bend > 0, bend, xp.ones_like(bend)), xp.ones_like(down))
        t = xp.where(walk.going & (down > 0), xp.minimum(t, xp.ones_like(t)), xp.zeros_like(t))
        by = xp.expand_dims(t, axis=1)
        gained = walk.decrease + t * (down - 0.5 * t * bend)
        return walk._replace(x=walk.x + by * d, slope=walk.slope + by * Bd, decrease=gained), d, down, bend

    def round_(walk: _Walk) -> _Walk:
        if faces:
            P = regions.tangents(walk.x)
            inside = P @ B @ P
            # the identity outside the face, at the scale of the model
            scale = xp.max(xp.linalg.diagonal(B), axis=1)[:, None, None]
            step = _times(P, _small.solve(inside + scale * (_eye(B) - P), _times(P, walk.slope)))
            walk, *_ = onward(walk, regions.nearest(walk.x - step, walk.slope), P)
        target = regions.nearest(walk.x - xp.expand_dims(walk.length, axis=1) * walk.slope, walk.slope)
        after, d, down, bend = onward(walk, target)
        length = xp.where(bend > 0, xp.vecdot(d, d) / xp.where(bend > 0, bend, xp.ones_like(bend)), walk.length)
        return after._replace(length=length, going=walk.going & (down > enough * after.decrease), n=walk.n + 1)

    def unfinished(walk: _Walk) -> Array:
        return xp.any(walk.going) & (walk.n < (ROUNDS if faces else ALONE))

    slope, zero = xp.vecdot(grad, grad), xp.zeros_like(grad[:, 0])
    bend = xp.vecdot(grad, _times(B, grad))
    length = xp.where(bend > 0, slope / xp.where(bend > 0, bend, xp.ones_like(bend)), xp.ones_like(bend))
    n = xp.zeros((), dtype=xp.int32, device=device(theta))
    last = backend.while_loop(unfinished, round_, _Walk(theta, grad, length, zero, slope > 0, n))
    return last.x, last.decrease


def _times(B: Array, x: Array) -> Array:
    return (B @ namespace_of(x).expand_dims(x, axis=2))[..., 0]


def _outer(a: Array) -> Array:
    xp = namespace_of(a)
    return xp.expand_dims(a, axis=2) * xp.expand_dims(a, axis=1)


def _eye(B: Array) -> Array:
    return namespace_of(B).eye(B.shape[-1], dtype=B.dtype, device=device(B))
