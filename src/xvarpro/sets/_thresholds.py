"""Projections onto a simplex and onto slices of a box: one threshold, found without sorting."""

from __future__ import annotations

from xvarpro import backends
from xvarpro.backends.transformations import Curve, implicit
from xvarpro.core.namespace import device, namespace_of
from xvarpro.core.struct import Array
from xvarpro.sets._root_finding import root

PASSES = 40  # each takes as many digits as the precision has


def onto_simplex(x: Array, radius: float) -> Array:
    """Projection onto ``{x >= 0, sum x = radius}`` along the last axis.

    Newton's method on ``sum max(x - tau, 0) = radius``, from the left: the function is convex, decreasing and piecewise
    linear, so the iterates rise to the root in finitely many steps (Michelot 1986; Condat, Mathematical Programming
    158, 2016). Some ten passes over the data cost less than a sort.
    """
    xp = namespace_of(x)
    backend = backends.owner(x)
    y = x - xp.max(x, axis=-1, keepdims=True)
    smallest = xp.finfo(x.dtype).eps * radius
    tau = xp.maximum(xp.full_like(y[..., :1], -radius), (xp.sum(y, axis=-1, keepdims=True) - radius) / x.shape[-1])

    def surplus(tau: Array) -> tuple[Array, Array]:
        above = y - tau
        active = above > 0
        excess = xp.sum(xp.where(active, above, xp.zeros_like(above)), axis=-1, keepdims=True) - radius
        return excess, -xp.sum(xp.astype(active, x.dtype), axis=-1, keepdims=True)

    def body(state: tuple[Array, Array]) -> tuple[Array, Array]:
        tau, _ = state
        excess, slope = surplus(tau)
        rise = excess / xp.maximum(-slope, xp.ones_like(slope))
        return xp.where(rise > 0, tau + rise, tau), rise

    tau, _ = backend.while_loop(lambda state: xp.any(state[1] > smallest), body, (tau, xp.full_like(tau, xp.inf)))
    tau = implicit(surplus, tau)
    above = y - tau
    # a NaN of x stays one
    return xp.where(above < 0, xp.zeros_like(above), above)


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
        t = threshold(y, weights, upper, total, xp.zeros_like(y[..., :1]))
        return y - t * weights, t, k + 1

    def going(state: State) -> Array:
        return xp.any(xp.abs(state[1]) > size) & (state[2] < PASSES)

    t = threshold(y, weights, upper, total)
    count = xp.zeros((), dtype=xp.int32, device=device(y))
    backend = backends.owner(y)
    end, _, _ = backend.while_loop(going, again, (y - t * weights, t, count))
    # y moved to the end; what is left to search there is 0, with the derivative of all of it
    y = implicit(lambda end: (y - end, 0 * end - 1), end)
    y = y - implicit(_surplus(y, weights, upper, total), 0 * t) * weights
    # what meets a bound stays there: at a vertex no entry moves
    y = xp.where(y <= 0, xp.zeros_like(y), y)
    return y if upper is None else xp.where(y >= upper, xp.zeros_like(y) + upper, y)


def threshold(y: Array, weights: Array, upper: Array | None, total: Array | float, start: Array | None = None) -> Array:
    """The t with ``<weights, clip(y - t weights, 0, upper)> = total``, keepdims."""
    xp = namespace_of(y)
    weights = xp.broadcast_to(weights, (y.shape[-1],))
    total = xp.zeros_like(y[..., :1]) + total
    near = xp.finfo(y.dtype).eps * total
    high = xp.max(y / weights, axis=-1, keepdims=True)
    if upper is None:
        low = xp.max((y - total / weights) / weights, axis=-1, keepdims=True)
        first = low
    else:
        low = xp.min((y - upper) / weights, axis=-1, keepdims=True)
        first = low + 0.5 * (high - low)

    first = first if start is None else xp.minimum(xp.maximum(start, low), high)
    return root(_surplus(y, weights, upper, total), low, high, first, close=near / xp.sum(weights * weights), near=near)


def _surplus(y: Array, weights: Array, upper: Array | None, total: Array | float) -> Curve:
    """The function ``<weights, clip(y - t weights, 0, upper)> - total`` of t with its slope, keepdims."""
    xp = namespace_of(y)
    squares = weights * weights

    def surplus(t: Array) -> tuple[Array, Array]:
        z = y - t * weights
        inside = z > 0 if upper is None else (z > 0) & (z < upper)
        z = xp.where(z < 0, xp.zeros_like(z), z)
        z = z if upper is None else xp.where(z > upper, xp.zeros_like(z) + upper, z)
        rate = xp.sum(xp.where(inside, squares, xp.zeros_like(z)), axis=-1, keepdims=True)
        return xp.sum(weights * z, axis=-1, keepdims=True) - total, -rate

    return surplus
