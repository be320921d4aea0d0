"""Minimising the quadratic models of a batch over their sets: what a Newton-like step is made of."""

from __future__ import annotations

from typing import Any, NamedTuple

from xvarpro.batch import _small
from xvarpro.batch.region import Regions
from xvarpro.core.namespace import array_namespace, device
from xvarpro.core.struct import Array

# of a step in the face and one across; without faces, of projected gradient steps alone
ROUNDS, ALONE = 60, 200


class _Walk(NamedTuple):
    x: Array
    slope: Array  # of the model, at x
    length: Array  # of the next projected gradient step
    decrease: Array  # of the model, so far
    going: Array
    n: Array


def newton_point(backend: Any, regions: Regions, theta: Array, grad: Array, B: Array) -> tuple[Array, Array]:
    """``argmin <grad, x - theta> + 1/2 <x - theta, B (x - theta)>`` over the set, and by how much it lies below 0.

    Steps of Newton's method inside the smallest face take turns with projected gradient steps, which find the face
    (More, Toraldo 1991); both with the exact step of a parabola, so that every point is feasible and none is worse. One
    round does where no constraint is met. Shapes (b, p), (b, p), (b, p, p); results (b, p) and (b,).
    """
    xp = array_namespace(theta)
    if not regions.constrained:
        d = -_small.solve(B, grad)
        return theta + d, -0.5 * xp.vecdot(grad, d)
    enough = xp.finfo(theta.dtype).eps ** 0.75

    def onward(walk: _Walk, target: Array, P: Array | None = None) -> tuple[_Walk, Array, Array, Array]:
        """To the lowest point of the model between x and `target`; P projects on the face of x."""
        d = target - walk.x
        if P is not None:
            # the slope across the face is not small at a minimum, and would multiply the rounding of a step within
            within = _times(P, d)
            out = d - within
            rounding = (1e4 * xp.finfo(d.dtype).eps ** 2) * xp.vecdot(walk.x, walk.x)
            d = xp.where(xp.expand_dims(xp.vecdot(out, out) <= rounding, axis=1), within, d)
        Bd = _times(B, d)
        down, bend = -xp.vecdot(walk.slope, d), xp.vecdot(d, Bd)
        t = xp.where(bend > 0, down / xp.where(bend > 0, bend, xp.ones_like(bend)), xp.ones_like(down))
        t = xp.where(walk.going & (down > 0), xp.minimum(t, xp.ones_like(t)), xp.zeros_like(t))
        by = xp.expand_dims(t, axis=1)
        gained = walk.decrease + t * (down - 0.5 * t * bend)
        return walk._replace(x=walk.x + by * d, slope=walk.slope + by * Bd, decrease=gained), d, down, bend

    def round_(walk: _Walk) -> _Walk:
        if regions.has_faces:
            P = regions.tangents(walk.x)
            inside = P @ B @ P
            # the identity outside the face, at the scale of the model
            scale = xp.max(xp.linalg.diagonal(B), axis=1)[:, None, None]
            eye = xp.eye(B.shape[-1], dtype=B.dtype, device=device(B))
            step = _times(P, _small.solve(inside + scale * (eye - P), _times(P, walk.slope)))
            walk, *_ = onward(walk, regions.project(walk.x - step), P)
        target = regions.project(walk.x - xp.expand_dims(walk.length, axis=1) * walk.slope)
        after, d, down, bend = onward(walk, target)
        length = xp.where(bend > 0, xp.vecdot(d, d) / xp.where(bend > 0, bend, xp.ones_like(bend)), walk.length)
        return after._replace(length=length, going=walk.going & (down > enough * after.decrease), n=walk.n + 1)

    def unfinished(walk: _Walk) -> Array:
        return xp.any(walk.going) & (walk.n < (ROUNDS if regions.has_faces else ALONE))

    slope, zero = xp.vecdot(grad, grad), xp.zeros_like(grad[:, 0])
    bend = xp.vecdot(grad, _times(B, grad))
    length = xp.where(bend > 0, slope / xp.where(bend > 0, bend, xp.ones_like(bend)), xp.ones_like(bend))
    n = xp.zeros((), dtype=xp.int32, device=device(theta))
    last = backend.while_loop(unfinished, round_, _Walk(theta, grad, length, zero, slope > 0, n))
    return last.x, last.decrease


def _times(B: Array, x: Array) -> Array:
    return (B @ array_namespace(x).expand_dims(x, axis=2))[..., 0]
