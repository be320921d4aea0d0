"""Elementwise functions: arithmetic, the elementary functions, complex parts, selection."""

from __future__ import annotations

import math
from collections.abc import Callable

from xvarpro.backends.tape.rules.table import (
    FORWARD,
    Namespace,
    composite,
    conj,
    constant,
    match,
    nonzero_or_one,
    primitive,
    simple,
    unbroadcast,
)
from xvarpro.core.namespace import complex_dtype, device, inexact_dtype
from xvarpro.core.struct import Array

LN2, LN10 = math.log(2.0), math.log(10.0)

# ---------------------------------------------------------------------------------------------- arithmetic


def _power_base(xp: Namespace, g: Array, _y: Array, a: Array, b: Array) -> Array:
    if not hasattr(b, "dtype"):
        if b == 0:
            return xp.zeros_like(g)
        return g * conj(xp, 2 * a if b == 2 else b * a ** (b - 1))
    # x^0 has slope 0 everywhere, 0^(0-1) must not be formed
    return g * conj(xp, xp.pow(a, xp.where(b == 0, xp.ones_like(b), b - 1)) * b)


def _power_exponent(xp: Namespace, g: Array, y: Array, a: Array, b: Array) -> Array:
    if not hasattr(a, "dtype"):
        a = xp.asarray(a, dtype=y.dtype, device=device(y))
    elif complex_dtype(y.dtype):
        # a negative base has a logarithm then
        a = xp.astype(a, y.dtype)
    b = xp.real(b) if complex_dtype(b.dtype) else b
    # 0^b is constant in b where it is finite
    flat = xp.logical_and(a == 0, b >= 0)
    return g * conj(xp, xp.log(xp.where(flat, xp.ones_like(a), a)) * y)


simple("add", lambda xp, g, _y, _a, _b: g, lambda xp, g, _y, _a, _b: g)
simple("subtract", lambda xp, g, _y, _a, _b: g, lambda xp, g, _y, _a, _b: -g)
simple(
    "multiply",
    lambda xp, g, _y, _a, b: xp.multiply(g, conj(xp, b)),
    lambda xp, g, _y, a, _b: xp.multiply(g, conj(xp, a)),
)
simple("divide", lambda xp, g, _y, _a, b: g / conj(xp, b), lambda xp, g, y, _a, b: -g * conj(xp, y / b))
simple("pow", _power_base, _power_exponent)
simple("remainder", lambda xp, g, _y, _a, _b: g, lambda xp, g, _y, a, b: -g * xp.floor_divide(a, b))
simple("negative", lambda xp, g, _y, _x: -g)
simple("positive", lambda xp, g, _y, _x: g)
simple("square", lambda xp, g, _y, x: g * (2 * conj(xp, x)))
simple("reciprocal", lambda xp, g, y, _x: -g * conj(xp, y * y))
simple("sqrt", lambda xp, g, y, _x: g / (2 * conj(xp, y)))

# ------------------------------------------------------------------------------------ elementary functions

simple("exp", lambda xp, g, y, _x: xp.multiply(g, conj(xp, y)))
simple("expm1", lambda xp, g, y, _x: g * (conj(xp, y) + 1))
simple("log", lambda xp, g, _y, x: g / conj(xp, x))
simple("log1p", lambda xp, g, _y, x: g / (conj(xp, x) + 1))
simple("log2", lambda xp, g, _y, x: g / (conj(xp, x) * LN2))
simple("log10", lambda xp, g, _y, x: g / (conj(xp, x) * LN10))
simple("sin", lambda xp, g, _y, x: g * conj(xp, xp.cos(x)))
simple("cos", lambda xp, g, _y, x: -g * conj(xp, xp.sin(x)))
simple("tan", lambda xp, g, y, _x: g * conj(xp, y * y + 1))
simple("asin", lambda xp, g, _y, x: g / conj(xp, xp.sqrt(1 - x * x)))
simple("acos", lambda xp, g, _y, x: -g / conj(xp, xp.sqrt(1 - x * x)))
simple("atan", lambda xp, g, _y, x: g / conj(xp, x * x + 1))
simple("sinh", lambda xp, g, _y, x: g * conj(xp, xp.cosh(x)))
simple("cosh", lambda xp, g, _y, x: g * conj(xp, xp.sinh(x)))
simple("tanh", lambda xp, g, y, _x: g * conj(xp, 1 - y * y))
simple("asinh", lambda xp, g, _y, x: g / conj(xp, xp.sqrt(x * x + 1)))
# two roots, not sqrt(x^2 - 1): the latter is on the wrong branch in the left half of the complex plane
simple("acosh", lambda xp, g, _y, x: g / conj(xp, xp.sqrt(x - 1) * xp.sqrt(x + 1)))
simple("atanh", lambda xp, g, _y, x: g / conj(xp, 1 - x * x))
simple("atan2", lambda xp, g, _y, a, b: g * b / (a * a + b * b), lambda xp, g, _y, a, b: -g * a / (a * a + b * b))
# hypot is the norm of a pair: its gradient at the origin is 0, as for every norm here
simple(
    "hypot",
    lambda xp, g, y, a, _b: g * a / nonzero_or_one(xp, y),
    lambda xp, g, y, _a, b: g * b / nonzero_or_one(xp, y),
)
simple("logaddexp", lambda xp, g, y, a, _b: g * xp.exp(a - y), lambda xp, g, y, _a, b: g * xp.exp(b - y))

# --------------------------------------------------------------- functions given with all their derivatives


@primitive("_smooth", forward=lambda xp, x, fun, n: fun(x, n=n))
def _smooth(xp: Namespace, g: Array, _y: Array, x: Array, fun: Callable[..., Array], n: int) -> Array:
    """``fun(x, n)`` is the n-th derivative of a real function of each entry."""
    return g * xp._smooth(x, fun, n + 1)


# ------------------------------------------------------------------------------------------- complex parts


def _abs(xp: Namespace, g: Array, y: Array, x: Array) -> Array:
    return g * x / nonzero_or_one(xp, y) if complex_dtype(x.dtype) else g * xp.sign(x)


def _imag(xp: Namespace, g: Array, _y: Array, _x: Array) -> Array:
    return xp.astype(g, _x.dtype) * 1j if complex_dtype(_x.dtype) else xp.zeros_like(g)


simple("abs", _abs)
simple("conj", lambda xp, g, _y, _x: conj(xp, g))
primitive("real")(lambda xp, g, _y, _x: xp.astype(g, _x.dtype))
primitive("imag")(_imag)


@composite("sign")
def _sign(xp: Namespace, x: Array, /) -> Array:
    # steps on the real line, but z/|z| turns with z in the complex plane
    return x / nonzero_or_one(xp, xp.abs(x)) if complex_dtype(x.dtype) else xp._sign(x)


# ----------------------------------------------------------------------------------------------- selection


def _share(xp: Namespace, g: Array, wins: Array, ties: Array) -> Array:
    # the winner takes the gradient; at a tie both take half, as in Torch and JAX
    return xp.where(wins, g, xp.where(ties, 0.5 * g, 0.0))


def _slope_of_copysign(xp: Namespace, g: Array, y: Array, a: Array, _b: Array) -> Array:
    return xp.where(a == 0, 0.0, xp.where(xp.signbit(a) == xp.signbit(y), g, -g))


simple(
    "maximum",
    lambda xp, g, _y, a, b: _share(xp, g, a > b, a == b),
    lambda xp, g, _y, a, b: _share(xp, g, a < b, a == b),
)
simple(
    "minimum",
    lambda xp, g, _y, a, b: _share(xp, g, a < b, a == b),
    lambda xp, g, _y, a, b: _share(xp, g, a > b, a == b),
)
simple("copysign", _slope_of_copysign, None)


@primitive("where", operands=3)
def _where(xp: Namespace, need: list[int], g: Array, _y: Array, condition: Array, _a: Array, _b: Array) -> list[Array]:
    zero = xp.zeros_like(g)
    chosen = {1: (g, zero), 2: (zero, g)}
    like = {1: _a, 2: _b}
    return [unbroadcast(xp, xp.where(condition, *chosen[i]), like[i]) for i in need]


@composite("clip")
def _clip(xp: Namespace, x: Array, /, min: Array | None = None, max: Array | None = None) -> Array:
    # both bounds may be traced; an absent bound is an infinite one
    if min is None and max is None:
        return xp.positive(x)
    low = -math.inf if min is None else min
    high = math.inf if max is None else max
    return xp._clip(x, low, high)


def _clip_forward(xp: Namespace, x: Array, low: Array, high: Array) -> Array:
    # an infinite Python float is no bound at all, and the standard refuses it for integers
    bounds = (None if isinstance(b, float) and math.isinf(b) else b for b in (low, high))
    return xp.clip(x, *bounds)


@primitive("_clip", operands=3, forward=_clip_forward)
def _clip_rule(xp: Namespace, need: list[int], g: Array, _y: Array, x: Array, low: Array, high: Array) -> list[Array]:
    # on a bound the gradient passes to x, as in Torch
    operands = (x, low, high)
    return [unbroadcast(xp, xp.where(_passes(xp, i, *operands), g, 0.0), operands[i]) for i in need]


def _passes(xp: Namespace, i: int, x: Array, low: Array, high: Array) -> Array:
    if i == 0:
        return xp.logical_and(x >= low, x <= high)
    return xp.logical_and(x < low, low < high) if i == 1 else xp.logical_or(x > high, high < low)


# --------------------------------------------------------------------------------------------------- dtypes


@composite("astype")
def _astype(xp: Namespace, x: Array, dtype: object, /, *, copy: bool = True) -> Array:
    # a cast to integers or booleans has steps only
    return xp._cast(x, dtype) if inexact_dtype(dtype) else xp._cast_to_steps(x, dtype)


@primitive("_cast", forward=lambda xp, x, dtype: xp.astype(x, dtype))
def _cast(xp: Namespace, g: Array, _y: Array, _x: Array, dtype: object) -> Array:
    return match(xp, g, _x)


FORWARD["_sign"] = lambda xp, x: xp.sign(x)
FORWARD["_cast_to_steps"] = lambda xp, x, dtype: xp.astype(x, dtype)
constant(
    """
    ceil floor round trunc floor_divide signbit _sign _cast_to_steps
    equal not_equal less less_equal greater greater_equal isfinite isinf isnan
    logical_and logical_or logical_not logical_xor
    bitwise_and bitwise_or bitwise_xor bitwise_invert bitwise_left_shift bitwise_right_shift
    """
)
