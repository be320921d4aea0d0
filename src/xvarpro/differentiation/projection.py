"""The derivative of the projection onto a region, where there is one, and whether there is.

A solution is a fixed point ``theta = P(theta - s grad f(theta))``, and what it does when the problem changes is that of
P. The derivative J of a projection onto a convex set is symmetric, ``0 <= J <= I``. On a face of a polytope J projects
on the directions in the face; on a curved boundary ``J^+ - I`` on the range of J is s times the curvature that the
boundary adds to the Hessian.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from xvarpro.core import trees
from xvarpro.core.namespace import array_namespace, device
from xvarpro.core.struct import Array, Leaves
from xvarpro.errors import ProblemError
from xvarpro.sets.interface import Set
from xvarpro.sets.region import Region, event

LINEAR = 0.02  # share of a step by which a projection may miss its derivative: a kink misses by a share near 1


def derivative(backend: Any, region: Region, theta: Leaves, q: Leaves) -> Callable[[Leaves], Leaves]:
    """J at q, of which theta is the projection: on a polytope by its face, else by the derivative of `project`."""
    parts: dict[int, Callable[[Array], Array]] = {}
    for i, C in region.constrained:
        if on_faces(C):
            parts[i] = _of_face(C, event(C, _nearest(C, q[i], theta[i])), theta[i].shape)
        elif C.has_projection:
            parts[i] = backend.differential(partial(_nearest, C), q[i])
        else:
            raise ProblemError(
                f"{C!r} has neither a projection nor the faces of a polytope: how its boundary bends is not known, and "
                "the solution cannot be differentiated"
            )
    return lambda d: tuple(parts[i](x) if i in parts else x for i, x in enumerate(d))


def seen(region: Region, J: Callable[[Leaves], Leaves]) -> Callable[[Leaves], Leaves]:
    """The part of a vector that J does not map to 0, where J is a projector; leaves of which that is not known stay."""
    flat = {i for i, C in region.constrained if on_faces(C)}

    def part(d: Leaves) -> Leaves:
        return tuple(x if i in flat else y for i, (x, y) in enumerate(zip(J(d), d, strict=True)))

    return part if flat else lambda d: d


def noise(backend: Any, region: Region, eps: float) -> float:
    """Relative error of J."""
    return eps if all(on_faces(C) for _, C in region.constrained) else eps**backend.digits


def degenerate(region: Region, theta: Leaves, q: Leaves, J: Callable[[Leaves], Leaves]) -> Array:
    """Whether the solution has one derivative to one side and another to the other: a multiplier is 0. 0-d bool.

    A polytope: some vertex that the gradient ``theta - q``, moved a little, would go to lies outside of the face. Any
    other set: its projection, a small step to both sides of q, is not where J says.
    """
    xp = array_namespace(theta[0])
    found = xp.zeros((), dtype=xp.bool, device=device(theta[0]))
    probe = trees.signs(theta)
    along = J(probe)
    for i, C in region.constrained:
        x, z = theta[i], probe[i]
        eps = xp.finfo(x.dtype).eps
        for sign in (1.0, -1.0):
            if on_faces(C):
                x = _nearest(C, q[i], x)
                # a multiplier below that, in units of theta, is none
                g = x - q[i] + (sign * eps**0.5 * xp.max(xp.abs(q[i]))) * z
                way = xp.reshape(C.lmo(event(C, g)), x.shape) - x
                face = xp.reshape(C.tangent(event(C, way), event(C, x)), x.shape)
                found = found | (xp.max(xp.abs(way - face)) > eps**0.5 * xp.max(xp.abs(way)))
            else:
                step = sign * eps ** (1 / 3) * (trees.inner(q[i], q[i]) / trees.inner(z, z)) ** 0.5
                miss = _nearest(C, q[i] + step * z, x) - _nearest(C, q[i], x) - step * along[i]
                found = found | (trees.inner(miss, miss) > LINEAR**2 * step * step * trees.inner(z, z))
    return found


def on_faces(C: Set) -> bool:
    """Whether a set is a polytope that describes its faces."""
    return C.polytope and C.has_faces


def _of_face(C: Set, x: Array, shape: tuple[int, ...]) -> Callable[[Array], Array]:
    return lambda d: array_namespace(d).reshape(C.tangent(event(C, d), x), shape)


def _nearest(C: Set, q: Array, theta: Any = None) -> Array:
    """The projection of q; theta itself where a set has none."""
    return array_namespace(q).reshape(C.project(event(C, q)), q.shape) if C.has_projection else theta
