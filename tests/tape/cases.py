"""The cases that every rule is checked on: `CASES[rule]` is a list, and a rule without one fails the suite.

A case is a function of `(xp, *arrays)`, written with the functions of the standard, and the arrays to run it on.
`skip` names the namespaces that refuse the signature, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np


class Case(NamedTuple):
    fun: Callable[..., Any]
    args: tuple[np.ndarray, ...]
    skip: dict[str, str]
    torch: Callable[..., Any] | None  # where array_api_compat.torch has no such function or a different one
    smooth: bool  # False at a tie or a kink: a finite difference does not exist there


CASES: dict[str, list[Case]] = {}
rng = np.random.default_rng(20241201)


def case(
    name: str,
    fun: Callable[..., Any],
    *args: Any,
    skip: dict[str, str] | None = None,
    torch: Callable[..., Any] | None = None,
    smooth: bool = True,
) -> None:
    arrays = tuple(np.asarray(a) for a in args)
    CASES.setdefault(name, []).append(Case(fun, arrays, skip or {}, torch, smooth))


def find(xp: Any, name: str) -> Any:
    for prefix in ("linalg_", "fft_"):
        if name.startswith(prefix):
            return getattr(getattr(xp, prefix[:-1]), name[len(prefix) :])
    return getattr(xp, name)


def each(name: str, signatures: list[dict[str, Any]], *args: Any, **how: Any) -> None:
    """One case per set of keyword arguments."""
    for options in signatures:
        case(name, lambda xp, *xs, name=name, options=options: find(xp, name)(*xs, **options), *args, **how)


def normal(*shape: int) -> np.ndarray:
    return rng.normal(size=shape)


def cnormal(*shape: int) -> np.ndarray:
    return rng.normal(size=shape) + 1j * rng.normal(size=shape)


def spd(*shape: int, make: Callable[..., np.ndarray] = normal) -> np.ndarray:
    A = make(*shape)
    return A @ np.conj(np.swapaxes(A, -1, -2)) + 3 * np.eye(shape[-1])


def hermitian(xp: Any, A: Any) -> Any:
    AH = xp.matrix_transpose(A)
    return 0.5 * (A + (xp.conj(AH) if xp.isdtype(A.dtype, "complex floating") else AH))


def real(xp: Any, *zs: Any) -> Any:
    """Real and imaginary parts as the outputs, so that both are seen."""
    return tuple(part(z) for z in zs for part in (xp.real, xp.imag))


UNIT = rng.uniform(0.2, 0.8, (3, 4))
SIGNED = normal(3, 4) + 0.1
COMPLEX = cnormal(3, 4)
TIES = np.array([[1.0, 2.0, 2.0], [3.0, 3.0, -1.0], [0.5, 0.5, 0.5]])
ZEROS = np.array([[0.0, 2.0, -3.0], [0.0, 0.0, 4.0], [1.5, 2.5, 0.5]])
CUBE = normal(2, 3, 4)

# ------------------------------------------------------------------------------------ elementwise, one array

SMOOTH_REAL = [
    "abs",
    "acos",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "cos",
    "cosh",
    "exp",
    "expm1",
    "log",
    "log10",
    "log1p",
    "log2",
    "negative",
    "positive",
    "reciprocal",
    "sin",
    "sinh",
    "sqrt",
    "square",
    "tan",
    "tanh",
]
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
case("real", lambda xp, x: xp.real(x), SIGNED, skip={"strict": "real of a real array is refused"})
case(
    "imag",
    lambda xp, x: xp.imag(x),
    SIGNED,
    skip={"strict": "imag of a real array is refused", "torch": "imag of a real array is refused"},
    torch=lambda xp, x: 0 * x,
)
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
for _name in [
    "add",
    "subtract",
    "multiply",
    "divide",
    "pow",
    "atan2",
    "hypot",
    "logaddexp",
    "maximum",
    "minimum",
    "remainder",
    "copysign",
]:
    for _a, _b in PAIRS:
        each(_name, [{}], _a, _b)
    # one operand only: a Python number on either side, and a constant of the same namespace
    each_scalar = lambda xp, x, name=_name: (getattr(xp, name)(x, 0.7), getattr(xp, name)(0.7, x))  # noqa: E731
    # Torch has no derivative of a number modulo a tensor
    modulo = lambda xp, x: (x % 0.7, 0.7 - x * xp.floor(0.7 / x))  # noqa: E731
    case(_name, each_scalar, UNIT, torch=modulo if _name == "remainder" else None)
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
case("pow", lambda xp, a, b: xp.pow(a, b), -UNIT, COMPLEX, torch=lambda xp, a, b: xp.pow(a.to(b.dtype), b))
case("remainder", lambda xp, x: x % 0.3, UNIT)
case("maximum", lambda xp, x: xp.maximum(x, x[::1, :]) + xp.maximum(x, 2 * x), SIGNED)
for _name in ("maximum", "minimum"):
    each(_name, [{}], TIES, np.full_like(TIES, 2.0), smooth=False)
    case(
        _name,
        lambda xp, x, name=_name: getattr(xp, name)(x, 0.0),
        ZEROS,
        smooth=False,
        torch=lambda xp, x, name=_name: getattr(xp, name)(x, xp.zeros_like(x)),
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
    torch=lambda xp, x, y: xp.where(xp.abs(x) > 1, x, y.to(x.dtype)),
)
case("clip", lambda xp, x: xp.clip(x, 0.4, 0.6), UNIT)
case("clip", lambda xp, x: xp.clip(x, min=0.4) + xp.clip(x, max=0.6), UNIT)
case("clip", lambda xp, x: xp.clip(x) + xp.clip(x, None, 0.5), UNIT, torch=lambda xp, x: x + xp.clip(x, None, 0.5))
case("clip", lambda xp, x, low, high: xp.clip(x, low, high), UNIT, np.full((3, 4), 0.4), np.full((3, 4), 0.6))
case(
    "clip",
    lambda xp, x, low: xp.clip(x, low, 0.6),
    UNIT,
    np.asarray(0.4),
    torch=lambda xp, x, low: xp.clip(x, low, xp.asarray(0.6, dtype=x.dtype)),
)
case("clip", lambda xp, x: xp.clip(x, 2.0, 3.0), TIES, smooth=False)

# -------------------------------------------------------------------------------------------------- reductions

AXES: list[dict[str, Any]] = [
    {},
    {"axis": 0},
    {"axis": -1, "keepdims": True},
    {"axis": (0, 2)},
    {"axis": (-1, 0), "keepdims": True},
    {"keepdims": True},
]
for _name in ("sum", "mean", "max", "min", "prod", "var", "std"):
    for _options in AXES:
        _oracle = None
        if _name == "prod" and isinstance(_options.get("axis"), tuple):
            _oracle = lambda xp, x, o=_options: x.prod(2, keepdim=o.get("keepdims", False)).prod(  # noqa: E731
                0, keepdim=o.get("keepdims", False)
            )
        each(_name, [_options], CUBE, torch=_oracle)
    each(_name, [{}], np.asarray(0.7) if _name not in ("var", "std") else normal(2))
for _name in ("var", "std"):
    each(_name, [{"axis": 1, "correction": 1}, {"correction": 1.0, "keepdims": True}], SIGNED)
case("std", lambda xp, x: xp.std(x, axis=1), TIES, smooth=False)
for _name in ("sum", "mean", "prod"):
    each(_name, [{}, {"axis": 0}], COMPLEX)
for _name in ("max", "min"):
    each(_name, [{}, {"axis": 1}, {"axis": (0, 1)}], TIES, smooth=False)
each("prod", [{}, {"axis": 0}, {"axis": 1}, {"axis": 1, "keepdims": True}], ZEROS)
case("prod", lambda xp, x: xp.prod(x, axis=()), SIGNED, torch=lambda xp, x: x * 1.0)
case("sum", lambda xp, x: xp.sum(x, axis=()), SIGNED, torch=lambda xp, x: x * 1.0)
SINGLE = SIGNED.astype(np.float32)
for _name in ("sum", "prod", "cumulative_sum", "cumulative_prod"):
    each(_name, [{"axis": 0}], SINGLE, smooth=False)
case("sum", lambda xp, x: xp.sum(x, axis=0, dtype=xp.float64), SINGLE, smooth=False)
case("prod", lambda xp, x: xp.prod(x, axis=0, dtype=xp.float64), SINGLE, smooth=False)
case("cumulative_sum", lambda xp, x: xp.cumulative_sum(x, axis=0, dtype=xp.float64), SINGLE, smooth=False)
case("cumulative_prod", lambda xp, x: xp.cumulative_prod(x, axis=0, dtype=xp.float64), SINGLE, smooth=False)
case("multiply", lambda xp, x, y: x * y, SINGLE, SIGNED, smooth=False)
case(
    "prod",
    lambda xp, x: xp.prod(x, axis=0, dtype=xp.complex128),
    SIGNED,
    skip={"strict": "float to complex in a reduction is refused"},
    torch=lambda xp, x: x.to(xp.complex128).prod(0),
)

for _name in ("cumulative_sum", "cumulative_prod"):
    each(_name, [{"axis": 0}, {"axis": 1}, {"axis": -1}], SIGNED)
    each(_name, [{}], normal(5))
    each(_name, [{"axis": 1, "include_initial": True}], SIGNED)
    each(_name, [{"axis": 0}], COMPLEX)
    each(_name, [{"axis": 1}, {"axis": 0}], ZEROS)
    each(_name, [{"axis": 0, "dtype": None}], normal(1, 2))

# ------------------------------------------------------------------------------------------------------ shapes

case("reshape", lambda xp, x: xp.reshape(x, (4, -1)), CUBE)
case("reshape", lambda xp, x: xp.reshape(x, shape=(24,), copy=True), CUBE)
case("permute_dims", lambda xp, x: xp.permute_dims(x, (2, 0, 1)), CUBE)
case("permute_dims", lambda xp, x: xp.permute_dims(x, axes=(-1, 1, 0)), CUBE)
case("matrix_transpose", lambda xp, x: xp.matrix_transpose(x) * 1.0, CUBE)
case("matrix_transpose", lambda xp, x: x.mT + x[:, :3].T[..., :1], SIGNED[:, :3])
for _axis in (0, 1, -1, (0, 2)):
    case(
        "expand_dims",
        lambda xp, x, a=_axis: xp.expand_dims(x, axis=a),
        CUBE,
        **({} if isinstance(_axis, int) else {"torch": lambda xp, x: x[None, :, None], "skip": {}}),
    )
case("squeeze", lambda xp, x: xp.squeeze(x, axis=1), normal(3, 1, 2, 1))
case("squeeze", lambda xp, x: xp.squeeze(x, axis=(1, -1)), normal(3, 1, 2, 1))
each("flip", [{}, {"axis": 0}, {"axis": (0, -1)}], CUBE)
case("roll", lambda xp, x: xp.roll(x, 2), SIGNED)
case("roll", lambda xp, x: xp.roll(x, -1, axis=1), SIGNED)
case("roll", lambda xp, x: xp.roll(x, shift=(1, 2), axis=(0, 1)), SIGNED)
for _k in (0, 1, -1):
    case("tril", lambda xp, x, k=_k: xp.tril(x, k=k), CUBE)
    case("triu", lambda xp, x, k=_k: xp.triu(x, k=k), CUBE)
case("broadcast_to", lambda xp, x: xp.broadcast_to(x, (5, 3, 4)), SIGNED)
case("broadcast_to", lambda xp, x: xp.broadcast_to(x, (2, 3, 4)), normal(3, 1))
case("broadcast_to", lambda xp, x: xp.broadcast_to(x, (2, 3)), np.asarray(0.3))
case("broadcast_arrays", lambda xp, x, y: tuple(xp.broadcast_arrays(x, y)), normal(3, 1), normal(2, 1, 4))
case("meshgrid", lambda xp, x, y: tuple(xp.meshgrid(x, y, indexing="ij")), normal(3), normal(2))
case("meshgrid", lambda xp, x, y, z: tuple(xp.meshgrid(x, y, z, indexing="xy")), normal(3), normal(2), normal(4))
case("meshgrid", lambda xp, x: tuple(xp.meshgrid(x)), normal(3), torch=lambda xp, x: (x * 1.0,))
case("concat", lambda xp, x, y: xp.concat([x, 2 * y, x], axis=1), SIGNED, normal(3, 2))
case("concat", lambda xp, x, y: xp.concat((x, y)), SIGNED, normal(1, 4))
case("concat", lambda xp, x, y: xp.concat([x, y], axis=None), SIGNED, normal(2))
case("concat", lambda xp, x: xp.concat([xp.zeros((2, 4), dtype=x.dtype), x], axis=-2), SIGNED)
case("concat", lambda xp, x, y: xp.concat([x, y], axis=0), SIGNED, cnormal(2, 4))
case("stack", lambda xp, x, y: xp.stack([x, y, x * x], axis=1), SIGNED, normal(3, 4))
case("stack", lambda xp, x: xp.stack((x, x * x), axis=-1), SIGNED)
case("stack", lambda xp, x: xp.stack([x[0], x[1] * x[2]]), normal(3))
case(
    "unstack",
    lambda xp, x: xp.unstack(x, axis=1)[1] * xp.unstack(x)[0][0],
    SIGNED[:2],
    torch=lambda xp, x: x[:, 1] * x[0, 0],
)
case("unstack", lambda xp, x: tuple(row * row for row in x), SIGNED, skip={"strict": "single-axis indexing"})
case("unstack", lambda xp, x: xp.unstack(x, axis=-1), SIGNED)
case("moveaxis", lambda xp, x: xp.moveaxis(x, 0, 2), CUBE)
case("moveaxis", lambda xp, x: xp.moveaxis(x, (0, -1), (1, 0)), CUBE)
case("tile", lambda xp, x: xp.tile(x, (2, 3)), SIGNED)
case("tile", lambda xp, x: xp.tile(x, (2, 1, 3)), SIGNED)
case("tile", lambda xp, x: xp.tile(x, (2,)), SIGNED)
each("diff", [{}, {"axis": 0}, {"n": 2}, {"n": 0}], SIGNED)
case("diff", lambda xp, x, y: xp.diff(x, axis=0, prepend=y, append=2 * y), SIGNED, normal(1, 4))

# ---------------------------------------------------------------------------------------------------- indexing

PARTIAL = {"strict": "the standard wants a key for every axis, or an ellipsis"}
MIXED = {"strict": "the standard allows integer arrays with integers only"}
case("_getitem", lambda xp, x: x[1, ..., 0] * x[0, ..., 1], CUBE)
case("_getitem", lambda xp, x: x[1:, ::2, -3:-1] * 2.0, CUBE)
case("_getitem", lambda xp, x: x[:, 1:2, :] * x, CUBE)
case("_getitem", lambda xp, x: x[1] * x[0], CUBE, skip=PARTIAL)
case("_getitem", lambda xp, x: x[1, 2] + x[0, 1], CUBE, skip=PARTIAL)
case(
    "_getitem",
    lambda xp, x: x[..., ::-1],
    CUBE,
    skip={"torch": "no negative steps"},
    torch=lambda xp, x: xp.flip(x, axis=-1),
)
case("_getitem", lambda xp, x: x[1, 2, 3], CUBE)
case("_getitem", lambda xp, x: x[...] * x[()], np.asarray(0.4))
case("_getitem", lambda xp, x: x[..., None, 1] * x[:, None, ..., 0], CUBE)
case("_getitem", lambda xp, x: (x[None, ..., None], x[:, None, :, None, :1, None]), CUBE)
case("_getitem", lambda xp, x: x[xp.newaxis], normal(3), skip=PARTIAL)
case("_getitem", lambda xp, x: x[0, ...] * x[-1, ...], COMPLEX)
case("_getitem", lambda xp, x: x[xp.asarray([2, 0, 2, 2])] * xp.asarray([1.0, 2.0, 3.0, 4.0], dtype=x.dtype), normal(3))
case("_getitem", lambda xp, x: x[xp.asarray([0, 1, 0]), xp.asarray([3, 3, 3])], SIGNED)
case("_getitem", lambda xp, x: x[xp.asarray([[0, 1], [2, 0]]), 1], SIGNED)
case("_getitem", lambda xp, x: x[xp.asarray([0, 2, 0])], SIGNED, skip=MIXED)
case("_getitem", lambda xp, x: x[:, xp.asarray([0, 2, 0])], SIGNED, skip=MIXED)
# NumPy moves the axes of the array first, because the integer counts as an array; Torch takes the integer first
case(
    "_getitem",
    lambda xp, x: x[1, ..., xp.asarray([0, 2, 0])],
    CUBE,
    skip={**MIXED, "torch": "another order of axes"},
    torch=lambda xp, x: x[1, ..., xp.asarray([0, 2, 0])].mT,
)
case("_getitem", lambda xp, x: x[:, None, xp.asarray([0, 2, 0]), 1:], CUBE, skip=MIXED)
case("_getitem", lambda xp, x: x[xp.argmax(x)] * x, normal(5))
case("_getitem", lambda xp, x: x[x > 0] ** 2, SIGNED)
for _axis in (0, 1, -1):
    case("take", lambda xp, x, a=_axis: xp.take(x, xp.asarray([1, 0, 1, 1]), axis=a), CUBE)
case("take", lambda xp, x: xp.take(x, xp.asarray([2, 2, 0])), normal(3))
case("take", lambda xp, x: xp.take(x, xp.asarray([2, 2, 0]), axis=0), COMPLEX)
INDICES = np.argsort(normal(3, 4), axis=1)
case("take_along_axis", lambda xp, x: xp.take_along_axis(x, xp.asarray(INDICES.tolist()), axis=1), SIGNED)
case("take_along_axis", lambda xp, x: xp.take_along_axis(x, xp.asarray([[0, 2, 0, 1]] * 2), axis=0), SIGNED)
case("take_along_axis", lambda xp, x: xp.take_along_axis(x, xp.asarray([[0, 0], [3, 1], [2, 2]])), SIGNED)
each("sort", [{}, {"axis": 0}, {"descending": True}, {"axis": 0, "stable": False}], SIGNED)
case("repeat", lambda xp, x: xp.repeat(x, 3, axis=1), SIGNED)
case("repeat", lambda xp, x: xp.repeat(x, 2), SIGNED)
case("repeat", lambda xp, x: xp.repeat(x, xp.asarray([2, 0, 1]), axis=0), SIGNED)
