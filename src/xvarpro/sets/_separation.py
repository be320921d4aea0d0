"""How far a point is at least from a set that is known by its oracle alone."""

from __future__ import annotations

import math
from typing import Any

from xvarpro import backends
from xvarpro.core.namespace import array_namespace, device
from xvarpro.core.struct import Array
from xvarpro.sets.vectors import mask_at, norm

_ROUNDS = 60  # vertices asked for
_ATOMS = 32  # vertices held


def distance_bound(C: Any, x: Array) -> Array:
    """A lower bound on the Euclidean distance of `x` from `C`, batch shape: 0 inside.

    For any direction r, ``(<r, x> - max <r, v>) / |r|`` is one. The directions come from the nearest point of the hull
    of a few vertices, to which the oracle adds the best for the present direction (Wolfe, "Finding the nearest point in
    a polytope", Mathematical Programming 11, 1976). It ends when the bound is within a part in a thousand of the
    distance to that point, when that point is x to the square root of rounding, or after 60 vertices.
    """
    xp, ndim = array_namespace(x), C.event_ndim
    event, batch = x.shape[x.ndim - ndim :], x.shape[: x.ndim - ndim]
    if 0 in batch:
        return xp.sum(xp.abs(x), axis=tuple(range(-ndim, 0)))
    n = math.prod(event)
    point = _real(xp.reshape(x, (*batch, n)))
    k = min(_ATOMS, point.shape[-1] + 2)
    fine = xp.all(xp.isfinite(point), axis=-1, keepdims=True)
    point = xp.where(fine, point, xp.zeros_like(point))
    eps = xp.finfo(point.dtype).eps

    def farthest(r: Array) -> Array:
        """The vertex farthest along r, flat."""
        return _real(xp.reshape(C.lmo(xp.reshape(_as(-r, x), x.shape)), (*batch, n)))

    def residual(atoms: Array, w: Array) -> Array:
        return -xp.sum(xp.expand_dims(w, axis=-1) * (atoms - xp.expand_dims(point, axis=-2)), axis=-2)

    def round_(state: tuple[Array, ...]) -> tuple[Array, ...]:
        *last, count = state
        atoms, w, held, found, settled = last
        r = residual(atoms, w)
        length = norm(r)
        v = farthest(r)
        unit = r / xp.where(length > 0, length, xp.ones_like(length))
        found = xp.maximum(found, xp.sum(unit * (point - v), axis=-1, keepdims=True))
        # into an empty place, or that of the vertex with the least weight
        place = mask_at(w, xp.argmin(xp.where(held, 1 + w, w), axis=-1, keepdims=True))
        atoms = xp.where(xp.expand_dims(place, axis=-1), xp.expand_dims(v, axis=-2), atoms)
        w = xp.where(place, xp.zeros_like(w), w)
        w, held = _nearest(atoms - xp.expand_dims(point, axis=-2), w / xp.sum(w, axis=-1, keepdims=True), held | place)
        near = eps**0.5 * xp.max(xp.maximum(xp.abs(point), xp.abs(v)), axis=-1, keepdims=True)
        done = settled | (found >= 0.999 * length) | (length <= near)
        # a vector that was settled before rests, so that a batch gives what a loop gives
        atoms = xp.where(xp.expand_dims(settled, axis=-1), last[0], atoms)
        w, held, found = (xp.where(settled, old, new) for old, new in zip(last[1:4], (w, held, found), strict=True))
        return atoms, w, held, found, done, count + 1

    first = farthest(point)
    atoms = xp.stack([first] * k, axis=-2)
    none = xp.zeros_like(point[..., :1])
    held = (xp.arange(k, device=device(x)) == 0) & (xp.zeros_like(atoms[..., 0]) == 0)
    w = xp.astype(held, point.dtype)
    start = (atoms, w, held, none, none > 0, xp.zeros_like(none[(0,) * none.ndim]))
    end = backends.owner(x).while_loop(lambda state: xp.any(~state[4]) & (state[5] < _ROUNDS), round_, start)
    # what is not finite has no distance
    return xp.where(fine, end[3], xp.full_like(none, xp.nan))[..., 0]


def _nearest(atoms: Array, w: Array, held: Array) -> tuple[Array, Array]:
    """Weights of the point of the hull of the atoms `held` that is nearest to the origin, from the weights `w`.

    The nearest point of their affine hull, where its weights are positive; otherwise as far towards it as they stay so,
    without the atoms whose weight that ends.
    """
    xp = array_namespace(atoms)
    k = atoms.shape[-2]
    size = xp.max(xp.abs(atoms), axis=(-2, -1), keepdims=True)
    unit = atoms / xp.where(size > 0, size, xp.ones_like(size))
    gram = unit @ xp.matrix_transpose(unit)
    eye = xp.eye(k, dtype=atoms.dtype, device=device(atoms))
    # what is affinely dependent is kept apart by what rounding moves anyway
    gram = gram + (4 * xp.finfo(atoms.dtype).eps * atoms.shape[-1]) * eye
    one = xp.ones_like(w)

    def step(state: tuple[Array, ...]) -> tuple[Array, ...]:
        w, held, done, count = state
        both = xp.expand_dims(held, axis=-1) & xp.expand_dims(held, axis=-2)
        # the stationary point of the weights held is gram^-1 1, scaled to the sum 1
        y = xp.linalg.solve(xp.where(both, gram, eye + xp.zeros_like(gram)), xp.expand_dims(one, axis=-1))[..., 0]
        y = xp.where(held, y, xp.zeros_like(y))
        y = y / xp.sum(y, axis=-1, keepdims=True)
        falls = held & (y <= 0)
        drop = w - y
        ratio = xp.where(falls & (drop > 0), w / xp.where(drop > 0, drop, one), one)
        t = xp.min(ratio, axis=-1, keepdims=True)
        inside = ~xp.any(falls, axis=-1, keepdims=True)
        new = xp.where(inside, y, w + t * (y - w))
        left = held & (inside | ~(falls & (ratio <= t)))
        new = xp.where(left, new, xp.zeros_like(new))
        return xp.where(done, w, new), xp.where(done, held, left), done | inside, count + 1

    none = w[..., :1] > 2
    zero = xp.zeros_like(w[(0,) * w.ndim])
    w, held, _, _ = backends.owner(w).while_loop(
        lambda state: xp.any(~state[2]) & (state[3] < k), step, (w, held, none, zero)
    )
    total = xp.sum(w, axis=-1, keepdims=True)
    return w / xp.where(total > 0, total, xp.ones_like(total)), held


def _real(x: Array) -> Array:
    """A complex vector as a real one of twice the length."""
    xp = array_namespace(x)
    return xp.concat([xp.real(x), xp.imag(x)], axis=-1) if xp.isdtype(x.dtype, "complex floating") else x


def _as(r: Array, x: Array) -> Array:
    """Back again, in the dtype of x."""
    xp = array_namespace(x)
    if not xp.isdtype(x.dtype, "complex floating"):
        return r
    n = r.shape[-1] // 2
    return xp.astype(r[..., :n], x.dtype) + 1j * xp.astype(r[..., n:], x.dtype)
