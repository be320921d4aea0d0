"""The point of a compact convex set that is nearest to a given one, from the oracle of the set alone."""

from __future__ import annotations

import math
from collections.abc import Callable

from xvarpro.backends import registry
from xvarpro.core.namespace import device, is_complex, namespace_of, positive_or_one
from xvarpro.core.struct import Array
from xvarpro.sets.interface import Set
from xvarpro.sets.vectors import mask_at, norm, or_one

State = tuple[Array, Array, Array, Array, Array, Array]


def nearest_point(
    farthest: Callable[[Array], Array], x: Array, *, capacity: int, rounds: int, rel: float = 0.0, near: float = 0.0
) -> tuple[Array, Array]:
    """The nearest point p of a set, in the shape of `x`, and a lower bound on its distance, keepdims; NaN for NaN.

    Wolfe, "Finding the nearest point in a polytope", Mathematical Programming 11, 1976. The point p is the combination
    with weights w of a few points of the set, the corral. A major cycle asks for the point v farthest along
    ``r = x - p``: since ``|x - y| >= <r, x - v> / |r|`` for every y of the set, p is the nearest one where
    ``<r, v - p> = 0``. Otherwise v enters the corral, and minor cycles make p the nearest point of its hull.

    Parameters
    ----------
    farthest : callable
        Direction r, shape (..., n) -> ``argmax <r, v>`` over the set, shape (..., n).
    x : array, shape (..., n)
        Real points.
    capacity : int
        Size of the corral. It never needs more than n + 1 points, which are affinely independent, and one that enters;
        in a smaller one a new point takes the place of that with the least weight.
    rounds : int
        Most major cycles.
    rel : float
        The search ends where the bound is within that part of ``|r|``; in any case where rounding ends it.
    near : float
        It ends where ``|r|`` is at most that part of the largest entry of x and v.
    """
    xp, backend = namespace_of(x), registry.owner(x)
    eps = xp.finfo(x.dtype).eps
    fine = xp.all(xp.isfinite(x), axis=-1, keepdims=True)
    x = xp.where(fine, x, xp.zeros_like(x))
    origin = farthest(x)

    def coordinates(atoms: Array) -> tuple[Array, Array, Array]:
        """The corral and x from the first point, in units of the largest distance there, and that unit."""
        V, z = atoms - xp.expand_dims(origin, axis=-2), x - origin
        size = xp.max(norm(V), axis=-2)
        size = or_one(xp.where(size == 0, norm(z), size))  # the first point alone has no size
        z = z / size
        # beyond this distance the direction alone has digits
        far, limit = norm(z), 0.01 / eps
        z = z * xp.where(far > limit, limit / xp.where(far > limit, far, xp.ones_like(far)), xp.ones_like(far))
        return V / xp.expand_dims(size, axis=-1), z, size

    def major(state: State) -> State:
        atoms, w, held, bound, done, count = state
        V, z, size = coordinates(atoms)
        p = _combined(w, V)
        r = z - p
        length = norm(r)
        v = farthest(r)
        bound = xp.maximum(bound, xp.sum(r * (x - v), axis=-1, keepdims=True) / or_one(length))
        gain = xp.sum(r * ((v - origin) / size - p), axis=-1, keepdims=True)
        rounding = xp.full_like(length, 4 * eps)
        reached = near * xp.max(xp.maximum(xp.abs(x), xp.abs(v)), axis=-1, keepdims=True) / size
        found = (gain <= xp.maximum(rel * length, rounding) * length) | (length <= xp.maximum(reached, rounding))
        # p is the nearest point of the corral's hull: a point of the corral can only come again by rounding
        again = held & xp.all(atoms == xp.expand_dims(v, axis=-2), axis=-1)
        found = found | xp.any(again, axis=-1, keepdims=True)
        # into an empty place, or that of the point with the least weight
        place = mask_at(w, xp.argmin(xp.where(held, 1 + w, w), axis=-1, keepdims=True))
        entered = xp.where(xp.expand_dims(place, axis=-1), xp.expand_dims(v, axis=-2), atoms)
        V, z, _ = coordinates(entered)
        kept = xp.where(place, xp.zeros_like(w), w)
        new, left = _minor_cycles(V, z, kept / xp.sum(kept, axis=-1, keepdims=True), held | place)
        # a point that cannot stay: the end of what rounding allows
        found = found | ~xp.any(left & place, axis=-1, keepdims=True)
        rests = done | found
        atoms = xp.where(xp.expand_dims(rests, axis=-1), atoms, entered)
        return atoms, xp.where(rests, w, new), xp.where(rests, held, left), bound, rests, count + 1

    atoms = xp.stack([origin] * capacity, axis=-2)
    held = (xp.arange(capacity, device=device(x)) == 0) & (xp.zeros_like(atoms[..., 0]) == 0)
    none = xp.zeros_like(x[..., :1])
    count = xp.zeros((), dtype=xp.int32, device=device(x))
    start = (atoms, xp.astype(held, x.dtype), held, none, none > 0, count)
    atoms, w, _, bound, _, _ = backend.while_loop(lambda s: xp.any(~s[4]) & (s[5] < rounds), major, start)
    poison = xp.where(fine, none, xp.full_like(none, xp.nan))
    return _combined(w, atoms) + poison, bound + poison


def _minor_cycles(V: Array, z: Array, w: Array, held: Array) -> tuple[Array, Array]:
    """Weights of the point of the hull of the corral `held` that is nearest to `z`, and what is left of the corral.

    A minor cycle goes towards the nearest point of the affine hull: to it where its weights are positive; otherwise as
    far as they stay so, and the points whose weight that ends leave the corral.
    """
    xp = namespace_of(V)
    k, eps = V.shape[-2], xp.finfo(V.dtype).eps
    gram = V @ xp.matrix_transpose(V)
    pull = _products(V, z)
    eye = xp.eye(k, dtype=V.dtype, device=device(V))

    def affine(held: Array) -> Array:
        """Weights of the nearest point of the affine hull, refined once from its residual."""
        pair = xp.expand_dims(held, axis=-1) & xp.expand_dims(held, axis=-2)
        # the sum of weights is fixed, so its square may be added: that makes the matrix of an affinely independent
        # corral definite; what is dependent all the same is left out by its eigenvalue
        values, vectors = xp.linalg.eigh(xp.where(pair, gram + 1, eye))
        sound = values > k * eps * values[..., -1:]
        inverse = xp.where(sound, 1 / xp.where(sound, values, xp.ones_like(values)), xp.zeros_like(values))
        inside = xp.astype(held, V.dtype)

        def solve(right: Array) -> Array:
            turned = _products(xp.matrix_transpose(vectors), inside * right)
            return inside * _products(vectors, inverse * turned)

        ones = solve(inside)
        ones = ones / xp.sum(ones, axis=-1, keepdims=True)
        y = solve(pull)
        y = y + (1 - xp.sum(y, axis=-1, keepdims=True)) * ones
        more = solve(_products(V, z - _combined(y, V)))
        return y + (more - xp.sum(more, axis=-1, keepdims=True) * ones)

    def minor(state: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        w, held, done, count = state
        target = affine(held)
        low = held & (target <= 0)
        drop = w - target
        ratio = xp.where(low, w / positive_or_one(drop), xp.inf)
        step = xp.min(ratio, axis=-1, keepdims=True)
        inside = ~xp.any(low, axis=-1, keepdims=True)
        left = held & ~(low & (ratio <= step))
        moved = xp.where(inside, target, w - xp.where(inside, xp.ones_like(step), step) * drop)
        moved = xp.where(left & (moved > 0), moved, xp.zeros_like(moved))
        return xp.where(done, w, moved), xp.where(done, held, left), done | inside, count + 1

    count = xp.zeros((), dtype=xp.int32, device=device(w))
    w, held, _, _ = registry.owner(w).while_loop(
        lambda s: xp.any(~s[2]) & (s[3] <= k), minor, (w, held, w[..., :1] > 2, count)
    )
    return w / or_one(xp.sum(w, axis=-1, keepdims=True)), held


def distance_bound(C: Set, x: Array) -> Array:
    """A lower bound on the Euclidean distance of `x` from `C`, batch shape: 0 inside.

    Good to a part in a thousand where 60 vertices are enough, down to the square root of rounding.
    """
    xp, ndim = namespace_of(x), C.event_ndim
    event, batch = x.shape[x.ndim - ndim :], x.shape[: x.ndim - ndim]
    n = math.prod(event)

    def real(y: Array) -> Array:
        y = xp.reshape(y, (*batch, n))
        return xp.concat([xp.real(y), xp.imag(y)], axis=-1) if is_complex(y) else y

    def farthest(r: Array) -> Array:
        if is_complex(x):
            r = xp.astype(r[..., :n], x.dtype) + 1j * xp.astype(r[..., n:], x.dtype)
        return real(C.lmo(-xp.reshape(r, x.shape)))

    point = real(x)
    capacity = min(32, point.shape[-1] + 2)
    _, bound = nearest_point(
        farthest, point, capacity=capacity, rounds=60, rel=1e-3, near=xp.finfo(point.dtype).eps ** 0.5
    )
    return bound[..., 0]


def _combined(w: Array, V: Array) -> Array:
    """``sum_i w_i V_i``, shape (..., n)."""
    xp = namespace_of(w)
    return xp.sum(xp.expand_dims(w, axis=-1) * V, axis=-2)


def _products(V: Array, z: Array) -> Array:
    """``<V_i, z>``, shape (..., k)."""
    xp = namespace_of(z)
    return xp.sum(V * xp.expand_dims(z, axis=-2), axis=-1)
