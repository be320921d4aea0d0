"""Reductions and cumulative functions."""

from __future__ import annotations

import math
from typing import Any

from xvarpro.backends.tape.rules.table import (
    Namespace,
    along,
    axes_of,
    composite,
    conj,
    constant,
    match,
    nonzero_or_one,
    primitive,
    spread,
)
from xvarpro.core.struct import Array

Axis = int | tuple[int, ...] | None


def _length(like: Array, axis: Axis) -> int:
    return math.prod(like.shape[i] for i in axes_of(axis, len(like.shape)))


@primitive("sum")
def _sum(
    xp: Namespace, g: Array, _y: Array, _x: Array, *, axis: Axis = None, dtype: Any = None, keepdims: bool = False
) -> Array:
    g = g if g.dtype == _x.dtype else match(xp, g, _x)
    return xp.broadcast_to(spread(xp, g, _x, axis, keepdims), _x.shape)


@primitive("mean")
def _mean(xp: Namespace, g: Array, _y: Array, _x: Array, *, axis: Axis = None, keepdims: bool = False) -> Array:
    return xp.broadcast_to(spread(xp, g / _length(_x, axis), _x, axis, keepdims), _x.shape)


@primitive("var")
def _var(
    xp: Namespace, g: Array, _y: Array, x: Array, *, axis: Axis = None, correction: float = 0.0, keepdims: bool = False
) -> Array:
    slope = spread(xp, g * (2.0 / (_length(x, axis) - correction)), x, axis, keepdims)
    return slope * xp.subtract(x, xp.mean(x, axis=axis, keepdims=True))


@primitive("std")
def _std(xp: Namespace, g: Array, y: Array, x: Array, **options: Any) -> Array:
    # the root of the variance, but for equal numbers: their spread is a norm at the origin, where the gradient is 0
    return _var(xp, g / (2.0 * nonzero_or_one(xp, y)), y, x, **options)


def _extremum(xp: Namespace, g: Array, y: Array, x: Array, *, axis: Axis = None, keepdims: bool = False) -> Array:
    # ties share the gradient, as in Torch's amax and in JAX
    hit = xp.astype(spread(xp, y, x, axis, keepdims) == x, g.dtype)
    return hit * (spread(xp, g, x, axis, keepdims) / xp.sum(hit, axis=axis, keepdims=True))


primitive("max")(_extremum)
primitive("min")(_extremum)


# ------------------------------------------------------------------------------------------------ products


@composite("prod")
def _prod(xp: Namespace, x: Array, /, *, axis: Axis = None, dtype: Any = None, keepdims: bool = False) -> Array:
    # several axes are moved to the end and joined first
    x = x if dtype is None else xp.astype(x, dtype)
    gone = axes_of(axis, x.ndim)
    if not gone:
        return xp.positive(x)
    kept = tuple(i for i in range(x.ndim) if i not in gone)
    shape = tuple(1 if i in gone else n for i, n in enumerate(x.shape)) if keepdims else None
    if len(gone) > 1:
        x = xp.reshape(xp.permute_dims(x, kept + gone), (*(x.shape[i] for i in kept), _length(x, axis)))
    y = xp._prod(x, gone[0] if len(gone) == 1 else x.ndim - 1)
    return y if shape is None else xp.reshape(y, shape)


@primitive("_prod", forward=lambda xp, x, axis: xp.prod(x, axis=axis))
def _prod_rule(xp: Namespace, g: Array, _y: Array, x: Array, axis: int) -> Array:
    # products of the factors before and after each one: right with zeros, where y/x is not
    others = _before(xp, x, axis) * xp.flip(_before(xp, xp.flip(x, axis=axis), axis), axis=axis)
    return xp.expand_dims(g, axis=axis) * conj(xp, others)


def _before(xp: Namespace, x: Array, axis: int) -> Array:
    """Multiply the entries before each one."""
    one = xp.ones_like(x[along(x.ndim, axis, slice(0, 1))])
    return xp.cumulative_prod(xp.concat([one, x[along(x.ndim, axis, slice(0, -1))]], axis=axis), axis=axis)


# ---------------------------------------------------------------------------------------------- cumulative


@primitive("cumulative_sum")
def _cumulative_sum(
    xp: Namespace, g: Array, _y: Array, _x: Array, *, axis: Any = None, dtype: Any = None, include_initial: bool = False
) -> Array:
    axis = 0 if axis is None else axis
    if include_initial:
        g = g[along(g.ndim, axis, slice(1, None))]
    return match(xp, xp.flip(xp.cumulative_sum(xp.flip(g, axis=axis), axis=axis), axis=axis), _x)


@primitive("cumulative_prod")
def _cumulative_prod(
    xp: Namespace, g: Array, _y: Array, x: Array, *, axis: Any = None, dtype: Any = None, include_initial: bool = False
) -> Array:
    # with E_i the product before i, dy_k/dx_i = E_i x_(i+1) ... x_k, so the sum over k is a recurrence in i:
    # s_i = g_i + x_(i+1) s_(i+1), solved by doubling, in log2(n) steps and without a division
    axis = 0 if axis is None else axis
    if include_initial:
        g = g[along(g.ndim, axis, slice(1, None))]
    g = match(xp, g, x)
    factor, s = conj(xp, _ahead(xp, x, axis, 1)), g
    step = 1
    while step < x.shape[axis]:
        s = s + factor * _ahead(xp, s, axis, step)
        factor = factor * _ahead(xp, factor, axis, step)
        step *= 2
    return conj(xp, _before(xp, x, axis)) * s


def _ahead(xp: Namespace, x: Array, axis: int, step: int) -> Array:
    """Put entry i + step at place i, zero past the end."""
    pad = xp.zeros_like(x[along(x.ndim, axis, slice(0, step))])
    return xp.concat([x[along(x.ndim, axis, slice(step, None))], pad], axis=axis)


constant("all any argmax argmin count_nonzero")
