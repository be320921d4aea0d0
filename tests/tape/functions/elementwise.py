"""Elementwise functions of one array and of two, and selection."""

import numpy as np

from tests.tape.functions._table import COMPLEX, SIGNED, TIES, UNIT, ZEROS, case, cnormal, each, normal, rng

SMOOTH_REAL = """
    abs acos asin asinh atan atanh cos cosh exp expm1 log log10 log1p log2 negative positive reciprocal sin sinh sqrt
    square tan tanh
    """.split()  # noqa: SIM905
for _name in SMOOTH_REAL:
    for _x in (UNIT, np.asarray(0.37), rng.uniform(0.2, 0.8, (2, 0))):
        each(_name, [{}], _x)
    each(_name, [{}], COMPLEX * 0.4)
each("acosh", [{}], 1.0 + UNIT)
case("acosh", lambda xp, x: xp.acosh(x), 0.4 + np.abs(COMPLEX.real) + 1j * COMPLEX.imag)
for _name in ("abs", "exp", "sin", "tanh", "square", "negative", "expm1", "sinh", "cosh", "tan", "reciprocal"):
    each(_name, [{}], SIGNED)
case("abs", lambda xp, x: xp.abs(x), ZEROS, smooth=False)
case("abs", lambda xp, x: xp.abs(x), ZEROS * (1 + 2j), smooth=False)
case("abs", lambda xp, x: abs(x), SIGNED)
case("negative", lambda xp, x: -x, SIGNED)
case("positive", lambda xp, x: +x, SIGNED)
case("square", lambda xp, x: xp.square(x) * 3.0, ZEROS)

case("conj", lambda xp, x: xp.conj(x) * x * x, COMPLEX)
case("real", lambda xp, x: xp.real(x * x), COMPLEX)
case("imag", lambda xp, x: xp.imag(x * x), COMPLEX)
case("real", lambda xp, x: xp.real(x), SIGNED, strict=False)
case("imag", lambda xp, x: xp.imag(x), SIGNED, strict=False, oracle=lambda xp, x: 0 * x)
case("sign", lambda xp, x: xp.sign(x) * x, SIGNED)
case("sign", lambda xp, x: xp.sign(x), COMPLEX)
case("astype", lambda xp, x: xp.astype(x, xp.complex128) * (1 + 2j), SIGNED)
case("astype", lambda xp, x: xp.astype(xp.astype(x, xp.int64, copy=False), x.dtype) * x, 3 * SIGNED)
case("astype", lambda xp, x: xp.astype(x > 0, x.dtype) * x, SIGNED)

# ------------------------------------------------------------------------------------ elementwise, two arrays

PAIRS = [
    (UNIT, rng.uniform(0.2, 0.8, (3, 4))),
    (rng.uniform(0.2, 0.8, (3, 1)), rng.uniform(0.2, 0.8, (4,))),
    (rng.uniform(0.2, 0.8, (4,)), rng.uniform(0.2, 0.8, (2, 3, 4))),
    (np.asarray(0.6), UNIT),
    (UNIT, np.asarray(0.45)),
]
OF_TWO = "add subtract multiply divide pow atan2 hypot logaddexp maximum minimum remainder copysign"
for _name in OF_TWO.split():
    for _a, _b in PAIRS:
        each(_name, [{}], _a, _b)
    # one operand only: a Python number on either side, and a constant of the same namespace
    each_scalar = lambda xp, x, name=_name: (getattr(xp, name)(x, 0.7), getattr(xp, name)(0.7, x))  # noqa: E731
    # Torch has no derivative of a number modulo a tensor
    modulo = lambda xp, x: (x % 0.7, 0.7 - x * xp.floor(0.7 / x))  # noqa: E731
    case(_name, each_scalar, UNIT, oracle=modulo if _name == "remainder" else None)
    column = lambda xp, x: xp.asarray(PAIRS[1][0].tolist(), dtype=x.dtype)  # noqa: E731
    case(_name, lambda xp, x, f=_name, c=column: getattr(xp, f)(c(xp, x), x), UNIT)
    case(_name, lambda xp, x, f=_name, c=column: getattr(xp, f)(x, c(xp, x)), UNIT)
for _name in ["add", "subtract", "multiply", "divide", "pow"]:
    each(_name, [{}], COMPLEX, cnormal(4))
    each(_name, [{}], COMPLEX, rng.uniform(0.2, 0.8, 4))
    each(_name, [{}], rng.uniform(0.2, 0.8, (3, 1)), COMPLEX)
for _name in ("remainder", "atan2", "hypot", "logaddexp", "maximum", "copysign"):
    each(_name, [{}], SIGNED, 0.3 + np.abs(normal(3, 4)))
for _x in (SIGNED, COMPLEX):
    case("add", lambda xp, x: (x + x[0, ...]) + (1.5 + x), _x)
    case("subtract", lambda xp, x: (x - 2.0) - (1.5 - x) - (x[:, :1] - x), _x)
    case("multiply", lambda xp, x: (x * 2.0) * (1.5 * x), _x)
    case("divide", lambda xp, x: (x / 2.0) / (1.5 / x), _x)
case("multiply", lambda xp, x: (1 - 2j) * x * x, COMPLEX)
case("add", lambda xp, x: x + (1 + 2j), np.asarray(COMPLEX[0, 0]))
case("pow", lambda xp, x: x**3 + x**2 + x**1 + x**0 + x**-1 + x**-2.5 + 2.0**x, UNIT)
case("pow", lambda xp, x: x**3 + x**2 + x**1 + x**0, ZEROS)
case("pow", lambda xp, x: (0.5 + 1j) ** x + x**2, COMPLEX)
# at 0^0 and 0^b the slopes are Torch's
each("pow", [{}], np.array([0.0, 2.0, 0.0]), np.array([2.0, 0.0, 0.0]), smooth=False)
case(
    "pow", lambda xp, b: xp.pow(xp.asarray([0.0, 0.0, 2.0], dtype=b.dtype), b), np.array([2.0, 1.0, 0.0]), smooth=False
)
case("pow", lambda xp, a, b: xp.pow(a, b), -UNIT, COMPLEX, oracle=lambda xp, a, b: xp.pow(a.to(b.dtype), b))
case("remainder", lambda xp, x: x % 0.3, UNIT)
case("maximum", lambda xp, x: xp.maximum(x, x[::1, :]) + xp.maximum(x, 2 * x), SIGNED)
for _name in ("maximum", "minimum"):
    each(_name, [{}], TIES, np.full_like(TIES, 2.0), smooth=False)
    case(
        _name,
        lambda xp, x, name=_name: getattr(xp, name)(x, 0.0),
        ZEROS,
        smooth=False,
        oracle=lambda xp, x, name=_name: getattr(xp, name)(x, xp.zeros_like(x)),
    )

# --------------------------------------------------------------------------------------------------- selection

case("where", lambda xp, x: xp.where(x > 0, x * x, -x), SIGNED)
case("where", lambda xp, x, y: xp.where(x > y, x, xp.exp(y)), SIGNED, normal(4))
case("where", lambda xp, x: xp.where(x > 0, x, 0.0) + xp.where(x > 0, 1.0, x * x), SIGNED)
case("where", lambda xp, x: xp.where(x > 0, xp.log(xp.where(x > 0, x, xp.ones_like(x))), x), SIGNED)
case(
    "where",
    lambda xp, x, y: xp.where(xp.abs(x) > 1, x, y),
    COMPLEX,
    normal(3, 1),
    oracle=lambda xp, x, y: xp.where(xp.abs(x) > 1, x, y.to(x.dtype)),
)
case("clip", lambda xp, x: xp.clip(x, 0.4, 0.6), UNIT)
case("clip", lambda xp, x: xp.clip(x, min=0.4) + xp.clip(x, max=0.6), UNIT)
case("clip", lambda xp, x: xp.clip(x) + xp.clip(x, None, 0.5), UNIT, oracle=lambda xp, x: x + xp.clip(x, None, 0.5))
case("clip", lambda xp, x, low, high: xp.clip(x, low, high), UNIT, np.full((3, 4), 0.4), np.full((3, 4), 0.6))
case(
    "clip",
    lambda xp, x, low: xp.clip(x, low, 0.6),
    UNIT,
    np.asarray(0.4),
    oracle=lambda xp, x, low: xp.clip(x, low, xp.asarray(0.6, dtype=x.dtype)),
)
case("clip", lambda xp, x: xp.clip(x, 2.0, 3.0), TIES, smooth=False)
