"""Projections onto a simplex and onto slices of a box: one threshold."""

from __future__ import annotations

from xvarpro.backends import Backend, registry
from xvarpro.backends.transformations import Curve, implicit
from xvarpro.core.namespace import device, namespace_of, positive_or_one
from xvarpro.core.struct import Array
from xvarpro.sets._root_finding import root
from xvarpro.sets.vectors import positive_part

PASSES = 40  # each takes as many digits as the precision has


def onto_simplex(x: Array, radius: float) -> Array:
    """Projection onto ``{x >= 0, sum x = radius}`` along the last axis."""
    xp, backend = namespace_of(x), registry.owner(x)
    top = xp.max(x, axis=-1, keepdims=True)
    y = xp.maximum(x - top, xp.full_like(top, -radius))  # entries further down are 0
    if backend.compiled:  # where passes are fused and nothing is read, while a sort is slow
        t = _climbed(backend, y, radius)
    else:
        t = level(xp.sort(y, axis=-1, descending=True, stable=False), radius)
    return positive_part(y - implicit(_excess(y, radius), t))


def level(falling: Array, total: Array | float) -> Array:
    """The t with ``sum max(falling - t, 0) = total`` for entries in that order along the last axis, keepdims.

    The first k entries alone have the root ``(their sum - total) / k``, and the largest one of these is that of all
    (Held, Wolfe, Crowder, Mathematical Programming 6, 1974). A step of Newton's makes up for the rounding of sums.
    """
    xp = namespace_of(falling)
    count = xp.arange(1, falling.shape[-1] + 1, dtype=falling.dtype, device=device(falling))
    t = xp.max((xp.cumulative_sum(falling, axis=-1) - total) / count, axis=-1, keepdims=True)
    return t + _newton(_excess(falling, total), t)


def _climbed(backend: Backend, y: Array, radius: float) -> Array:
    """`level` of entries in any order, the largest of them 0: Newton's steps from the left rise to the root, for the
    function is convex (Michelot 1986; Condat, Mathematical Programming 158, 2016).
    """
    xp, excess = namespace_of(y), _excess(y, radius)
    smallest = xp.finfo(y.dtype).eps * radius
    start = xp.mean(y, axis=-1, keepdims=True) - radius / y.shape[-1]

    def body(state: tuple[Array, Array]) -> tuple[Array, Array]:
        rise = _newton(excess, state[0])
        return state[0] + positive_part(rise), rise

    first = start, xp.full_like(start, xp.inf)
    return backend.while_loop(lambda state: xp.any(state[1] > smallest), body, first)[0]


def _newton(fun: Curve, t: Array) -> Array:
    value, slope = fun(t)
    return value / positive_or_one(-slope)


def _excess(y: Array, total: Array | float) -> Curve:
    """The function ``sum max(y - t, 0) - total`` of t with its slope, keepdims."""
    xp = namespace_of(y)

    def excess(t: Array) -> tuple[Array, Array]:
        above = y - t
        active = xp.astype(above > 0, y.dtype)
        value = xp.sum(active * above, axis=-1, keepdims=True) - total
        return value, -xp.sum(active, axis=-1, keepdims=True)

    return excess


def onto_slice(y: Array, weights: Array, upper: Array | None, total: Array | float) -> Array:
    """Projection onto ``{0 <= x <= upper, <weights, x> = total}`` along the last axis.

    For ``weights > 0`` and ``0 <= total <= <weights, upper>``. A root is as exact as a rounding of y, which may be far
    from the set: the search is repeated from its own result until the rounding is that of the set.
    """
    xp = namespace_of(y)
    size = 8 * xp.finfo(y.dtype).eps * total / xp.max(weights)
    State = tuple[Array, Array, Array]

    def again(state: State) -> State:
        y, _, k = state
        t = _threshold(y, weights, upper, total)
        return y - t * weights, t, k + 1

    def going(state: State) -> Array:
        return xp.any(xp.abs(state[1]) > size) & (state[2] < PASSES)

    count = xp.zeros((), dtype=xp.int32, device=device(y))
    end, t, _ = registry.owner(y).while_loop(going, again, (y, xp.full_like(y[..., :1], xp.inf), count))
    # y moved to the end; what is left to search there is 0, with the derivative of all of it
    y = implicit(lambda end: (y - end, 0 * end - 1), end)
    y = y - implicit(_surplus(y, weights, upper, total), 0 * t) * weights
    # what meets a bound stays there: at a vertex no entry moves
    y = xp.where(y <= 0, xp.zeros_like(y), y)
    return y if upper is None else xp.where(y >= upper, xp.zeros_like(y) + upper, y)


def _threshold(y: Array, weights: Array, upper: Array | None, total: Array | float) -> Array:
    """The t with ``<weights, clip(y - t weights, 0, upper)> = total``, keepdims, sought from 0."""
    xp = namespace_of(y)
    total = xp.zeros_like(y[..., :1]) + total
    near = xp.finfo(y.dtype).eps * total
    high = xp.max(y / weights, axis=-1, keepdims=True)
    if upper is None:
        low = xp.max((y - total / weights) / weights, axis=-1, keepdims=True)
    else:
        low = xp.min((y - upper) / weights, axis=-1, keepdims=True)
    first = xp.minimum(xp.maximum(xp.zeros_like(low), low), high)
    return root(_surplus(y, weights, upper, total), low, high, first, close=near / xp.sum(weights * weights), near=near)


def _surplus(y: Array, weights: Array, upper: Array | None, total: Array | float) -> Curve:
    """The function ``<weights, clip(y - t weights, 0, upper)> - total`` of t with its slope, keepdims."""
    xp = namespace_of(y)
    squares = weights * weights

    def surplus(t: Array) -> tuple[Array, Array]:
        z = y - t * weights
        inside = z > 0 if upper is None else (z > 0) & (z < upper)
        z = positive_part(z) if upper is None else xp.minimum(positive_part(z), upper)
        rate = xp.sum(squares * xp.astype(inside, z.dtype), axis=-1, keepdims=True)
        return xp.sum(weights * z, axis=-1, keepdims=True) - total, -rate

    return surplus
