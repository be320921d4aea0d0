"""What an objective can still lose by a quadratic model of it: a decrease, which has no units of theta."""

from __future__ import annotations

import math
from typing import Any

from xvarpro.core.namespace import device, namespace_of, positive_or_one
from xvarpro.core.struct import Array, Leaves
from xvarpro.core.trees import axpy, dot, raveled, scaled, sub
from xvarpro.objective.gauss_newton import gauss_newton, has_jacobian, solve_scaled
from xvarpro.objective.interface import Objective
from xvarpro.objective.reduced import Reduced
from xvarpro.sets.region import Region

MANY = 64  # entries of theta up to which a Jacobian is affordable


def affordable(f: Objective, theta: Leaves) -> bool:
    """Whether the Jacobian of the residual can be had, for few parameters; it does not know how a penalty bends."""
    if sum(math.prod(x.shape) for x in theta) > MANY or not isinstance(f, Reduced) or f.structure is None:
        return False
    return not f.problem.mu and has_jacobian(f.problem, f.structure)


def free_decrease(f: Objective, region: Region, theta: Leaves, grad: Leaves) -> Array:
    """The decrease that a quadratic model of the objective promises where no bound stops it, the rest held; 0-d.

    For few parameters the model is that of Gauss and Newton, ``1/2 g^T (J J^T)^-1 g``: over the objective it is the
    square of the relative offset of Bates and Watts (1981). Else it is the parabola along the gradient, whose
    curvature a difference of gradients gives; inf where that bends down.
    """
    g = region.outward(grad, theta)
    xp = namespace_of(*g)
    if affordable(f, theta):
        reduced: Any = f
        _, _, H = gauss_newton(reduced, theta)
        v = raveled(g)
        free = raveled(region.block(tuple(xp.ones_like(x) for x in theta), free=True))
        kept = xp.where(v != 0, 1, free)
        H = kept[:, None] * H * kept
        held = xp.linalg.diagonal(H)
        # what the residual does not depend on, and what is held, promises nothing
        eps = xp.finfo(H.dtype).eps
        H = H + xp.eye(H.shape[0], dtype=H.dtype, device=device(H)) * xp.where(held > 0, 10 * eps * held, 1)
        return 0.5 * v @ solve_scaled(xp, H[None, ...], v[None, :])[0, :]
    length = dot(g, g)
    bend = _bend(f, theta, grad, scaled(-1.0, g))
    found = 0.5 * length * length / positive_or_one(bend)
    return xp.where(length > 0, xp.where(bend > 0, found, xp.inf), 0 * found)


def set_decrease(f: Objective, region: Region, theta: Leaves, grad: Leaves, d: Leaves) -> Array:
    """The decrease that parabolas promise in the constrained leaves, the others held; 0-d.

    Along `d`, which leads to a vertex, and along the projection of the gradient step that the curvature met there
    suggests, where every set projects.
    """
    found, bend = _within_one(f, theta, grad, d)
    if region.without_projection:
        return found
    xp, dd = namespace_of(found), dot(d, d)
    length = xp.where(bend > 0, dd / positive_or_one(bend), 1)
    step = sub(region.project(axpy(-length, region.block(grad, free=False), theta)), theta)
    return xp.maximum(found, _within_one(f, theta, grad, step)[0])


def line_decrease(f: Objective, region: Region, theta: Leaves) -> Array:
    """What a single entry of theta can still gain where slopes on both sides of it lead back, as at a kink; 0-d.

    inf where they do not. A bound has no other side.
    """
    x = raveled(theta)[0]
    xp = namespace_of(x)
    h = xp.finfo(x.dtype).eps ** 0.5 * positive_or_one(xp.abs(x))
    found = 0 * x
    for sign in (1, -1):
        there = region.moved(tuple(sign * h + 0 * y for y in theta), theta)
        away = sign * raveled(sub(there, theta))[0]
        rise = sign * raveled(f.value_and_gradient(there)[1])[0]
        found = xp.maximum(found, xp.where(away > 0, xp.where(rise >= 0, away * rise, xp.inf), 0))
    return found


def _within_one(f: Objective, theta: Leaves, grad: Leaves, d: Leaves) -> tuple[Array, Array]:
    """The largest decrease of the parabola along `d` for steps of at most 1, and its second derivative."""
    slope, bend = -dot(grad, d), _bend(f, theta, grad, d)
    xp = namespace_of(slope)
    alpha = xp.where(bend > slope, slope / positive_or_one(bend), 1)
    return xp.where(slope > 0, alpha * (slope - 0.5 * alpha * bend), 0 * slope), bend


def _bend(f: Objective, theta: Leaves, grad: Leaves, d: Leaves) -> Array:
    """``<d, H d>`` with the Hessian H at theta, from a difference of gradients, not computed where d is 0; 0-d."""
    xp = namespace_of(*theta)
    length, size = xp.sqrt(dot(d, d)), xp.sqrt(dot(theta, theta))
    one = xp.ones_like(length)
    h = xp.finfo(length.dtype).eps ** (1 / 3) * xp.where(size > 0, size, one) / xp.where(length > 0, length, one)
    other = f.backend.when(length > 0, lambda _: f.value_and_gradient(axpy(h, d, theta))[1], grad)
    return dot(sub(other, grad), d) / h
