"""Functions of the array API standard: elementwise to the last digits, sums to rounding, what moves entries exactly."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from xvarpro.conformance.functions import CASES, Case
from xvarpro.conformance.suite import Inapplicable, Measured, Target, check, reference
from xvarpro.core.struct import Array
from xvarpro.core.trees import array_namespace

numpy_api = reference().backend.xp

POINTS = 2000
ANY, POSITIVE, UNIT = (-10.0, 10.0), (1e-3, 1e3), (-0.999, 0.999)

# where each function is looked at; one interval for each argument
DOMAINS: dict[str, tuple[tuple[float, float], ...]] = {
    "abs": (ANY,), "acos": (UNIT,), "acosh": ((1.01, 100.0),), "asin": (UNIT,), "asinh": (ANY,), "atan": (ANY,),
    "atanh": (UNIT,), "ceil": (ANY,), "cos": (ANY,), "cosh": (ANY,), "exp": ((-50.0, 50.0),), "expm1": (ANY,),
    "floor": (ANY,), "log": (POSITIVE,), "log10": (POSITIVE,), "log1p": ((-0.9, 10.0),), "log2": (POSITIVE,),
    "negative": (ANY,), "positive": (ANY,), "reciprocal": (POSITIVE,), "round": (ANY,), "sign": (ANY,),
    "sin": (ANY,), "sinh": (ANY,), "sqrt": (POSITIVE,), "square": (ANY,), "tan": (ANY,), "tanh": (ANY,),
    "trunc": (ANY,), "add": (POSITIVE, POSITIVE), "atan2": (ANY, ANY), "copysign": (ANY, ANY),
    "divide": (ANY, POSITIVE), "floor_divide": (ANY, (1.0, 3.0)), "hypot": (ANY, ANY),
    "logaddexp": (POSITIVE, POSITIVE), "maximum": (ANY, ANY),
    "minimum": (ANY, ANY), "multiply": (ANY, ANY), "pow": ((0.1, 10.0), (-5.0, 5.0)), "remainder": (ANY, (1.0, 3.0)),
    "subtract": (POSITIVE, (-1e3, -1e-3)),
}  # fmt: skip
COMPLEX = (
    "abs", "acos", "asin", "atan", "conj", "cos", "cosh", "exp", "imag", "log", "negative", "real", "reciprocal", "sin",
    "sinh", "sqrt", "square", "tan", "tanh",
)  # fmt: skip


@cache
def function(name: str) -> Callable[..., Any]:
    """A function of the namespace by its name, extensions with a dot."""

    def fun(*xs: Array) -> Array:
        found = array_namespace(*xs)
        for part in name.split("."):
            found = getattr(found, part)
        return found(*xs)

    return fun


def drawn(domains: tuple[tuple[float, float], ...]) -> list[np.ndarray]:
    """Points that every precision holds exactly, some of them whole and some of them small."""
    rng = np.random.default_rng(0)
    points = []
    for low, high in domains:
        x = rng.uniform(low, high, POINTS).astype(np.float32)
        x[: POINTS // 8] = np.clip(np.round(x[: POINTS // 8]), np.float32(low), np.float32(high))
        if low < 0 < high:
            x[-POINTS // 8 :] *= np.float32(1e-4)
        points.append(x.astype(np.float64))
    return points


def _worst(got: np.ndarray, want: np.ndarray, points: list[np.ndarray], tolerance: float) -> Measured:
    """The point with the largest relative error."""
    with np.errstate(all="ignore"):
        error = np.where(got == want, 0.0, np.abs(got - want) / np.abs(want))
    i = int(np.argmax(np.where(np.isnan(error), np.inf, error)))
    at = ", ".join(repr(x[i].item()) for x in points)
    return Measured(f"value at {at}", got[i], want[i], tolerance)


@check("arithmetic", lambda: {name: name for name in DOMAINS})
def elementwise_functions(target: Target, name: str) -> Iterator[Measured]:
    """Within 8 eps of what longer numbers give, at every point, in the dtype of what went in."""
    points = drawn(DOMAINS[name])
    (got,), (kind,) = target.typed(function(name), *points)
    want = function(name)(*(x.astype(np.longdouble) for x in points))
    yield Measured("dtype", kind, target.dtype)
    yield Measured("shape", got.shape, want.shape)
    yield _worst(got, want.astype(np.float64), points, 8 * target.eps)


@check("arithmetic", lambda: {name: name for name in COMPLEX})
def complex_functions(target: Target, name: str) -> Iterator[Measured]:
    """Within 32 eps of what longer numbers give: a complex function is made of several real ones."""
    x, y = drawn(((-3.0, 3.0), (0.1, 1.4)))  # no zeros of sine or cosine, where any rounding is a large part
    (got,), (kind,) = target.typed(function(name), x + 1j * y)
    want = function(name)((x + 1j * y).astype(np.clongdouble))
    yield Measured("dtype", kind, target.complex_dtype if np.iscomplexobj(want) else target.dtype)
    yield _worst(got, want.astype(np.complex128 if np.iscomplexobj(want) else np.float64), [x, y], 32 * target.eps)


SPECIAL = np.array([0.0, -0.0, 1.0, -1.0, 2.5, -2.5, np.inf, -np.inf, np.nan])
AT_SPECIAL = (
    "abs", "ceil", "floor", "isfinite", "isinf", "isnan", "negative", "round", "sign", "sqrt", "square", "trunc",
)  # fmt: skip
PAIRED = (
    "add", "copysign", "divide", "equal", "greater", "greater_equal", "less", "less_equal", "maximum", "minimum",
    "multiply", "not_equal", "subtract",
)  # fmt: skip


@cache
def several(names: tuple[str, ...]) -> Callable[..., Any]:
    """Several functions of the same arrays."""
    return lambda *xs: tuple(function(name)(*xs) for name in names)


@check("arithmetic", lambda: {"of one array": AT_SPECIAL, "of two arrays": PAIRED})
def special_values(target: Target, names: tuple[str, ...]) -> Iterator[Measured]:
    """Zeros of both signs, infinities and NaN go through as IEEE and the standard say."""
    args = [x.ravel() for x in np.meshgrid(SPECIAL, SPECIAL)] if names is PAIRED else [SPECIAL]
    with np.errstate(all="ignore"):
        want = [np.asarray(x) for x in several(names)(*args)]
    for name, x, y in zip(names, target.compute(several(names), *args), want, strict=True):
        yield Measured(name, x, y, target.eps if y.dtype.kind == "f" else 0.0)


class Reduced(NamedTuple):
    """A reduction: as the namespace computes it, as longer numbers do, and what its rounding is relative to."""

    fun: Callable[[Any, Any], Any]
    size: Callable[[Any], Any]


def _absolute(x: Any) -> Any:
    return np.sum(np.abs(x), axis=1)


REDUCTIONS: dict[str, Reduced] = {
    "sum": Reduced(lambda xp, x: xp.sum(x, axis=1), _absolute),
    "mean": Reduced(lambda xp, x: xp.mean(x, axis=1), lambda x: np.mean(np.abs(x), axis=1)),
    "prod": Reduced(lambda xp, x: xp.prod(1.0 + x / 64.0, axis=1), lambda x: np.prod(1.0 + np.abs(x) / 64.0, axis=1)),
    "var": Reduced(lambda xp, x: xp.var(x, axis=1), lambda x: np.mean(x * x, axis=1)),
    "std": Reduced(lambda xp, x: xp.std(x, axis=1, correction=1), lambda x: np.std(x, axis=1)),
    "cumulative_sum": Reduced(lambda xp, x: xp.cumulative_sum(x, axis=1), lambda x: np.abs(x).sum(axis=1)),
    "vector_norm": Reduced(lambda xp, x: xp.linalg.vector_norm(x, axis=1), lambda x: np.linalg.norm(x, axis=1)),
    "vecdot": Reduced(lambda xp, x: xp.vecdot(x, x[:, ::1]), lambda x: np.sum(x * x, axis=1)),
    "matmul": Reduced(lambda xp, x: x @ xp.matrix_transpose(x), lambda x: np.abs(x) @ np.abs(x).T),
    "tensordot": Reduced(lambda xp, x: xp.tensordot(x, x, axes=((1,), (1,))), lambda x: np.abs(x) @ np.abs(x).T),
    "trace": Reduced(
        lambda xp, x: xp.linalg.trace(x @ xp.matrix_transpose(x)), lambda x: np.sum(np.abs(x) @ np.abs(x).T)
    ),
}


@cache
def reduction(name: str) -> Callable[[Array], Array]:
    """A reduction as a function of the array alone."""
    return lambda x: REDUCTIONS[name].fun(array_namespace(x), x)


@check("arithmetic", lambda: {name: name for name in REDUCTIONS})
def reductions(target: Target, name: str) -> Iterator[Measured]:
    """Within 8 sqrt(n) eps of the sum of magnitudes, in the dtype of what went in."""
    x = np.random.default_rng(1).normal(size=(6, 500)).astype(np.float32)
    (got,), (kind,) = target.typed(reduction(name), x)
    want = np.asarray(_longer(name, x.astype(np.longdouble)), np.float64)
    size = float(np.linalg.norm(REDUCTIONS[name].size(x.astype(np.float64))))
    yield Measured("dtype", kind, target.dtype)
    yield Measured("values", got, want, 8 * math.sqrt(x.shape[1]) * target.eps, size)


def _longer(name: str, x: np.ndarray) -> np.ndarray:
    if name == "vector_norm":  # NumPy's is written for double precision
        return np.sqrt(np.sum(x * x, axis=1))
    if name == "trace":
        return np.sum(x * x)
    return np.asarray(reduction(name)(x))


WHOLE = np.random.default_rng(2).integers(-3, 4, size=(4, 7)).astype(np.float64)
CHOICES: dict[str, Callable[[Any, Any], Any]] = {
    "max, min": lambda xp, x: (xp.max(x, axis=1), xp.min(x, axis=0)),
    "argmax, argmin": lambda xp, x: (xp.argmax(x, axis=1), xp.argmin(x, axis=0)),
    "argsort": lambda xp, x: (xp.argsort(x, axis=1, stable=True), xp.argsort(x, axis=0, stable=True)),
    "sort": lambda xp, x: (xp.sort(x, axis=1), xp.sort(x, axis=0, descending=True)),
    "any, all": lambda xp, x: (xp.any(x > 2, axis=1), xp.all(x > -3, axis=0)),
    "count_nonzero": lambda xp, x: (xp.count_nonzero(x, axis=1), xp.count_nonzero(x)),
    "where": lambda xp, x: (xp.where(x > 0, x, -x), xp.where(x > 0, x, 0.0)),
    "masks": lambda xp, x: ((x > 0) & (x < 2), (x < 0) | (x == 2), xp.logical_not(x == 0), (x > 0) ^ (x > 1)),
    "searchsorted": lambda xp, x: (xp.searchsorted(xp.sort(x[0, :]), x[1, :]),),
    "integers": lambda xp, x: (xp.astype(x, xp.int64) // 2, xp.astype(x, xp.int64) % 3, xp.astype(x, xp.int32) * 2),
    "arange, eye, linspace": lambda xp, x: (
        xp.arange(7, dtype=x.dtype) * x, xp.eye(4, dtype=x.dtype) @ x, xp.linspace(0.0, 3.0, 4, dtype=x.dtype),
    ),
}  # fmt: skip


@cache
def choice(name: str) -> Callable[[Array], Any]:
    """Exact functions of one array of whole numbers."""
    return lambda x: CHOICES[name](array_namespace(x), x)


@check("arithmetic", lambda: {name: name for name in CHOICES})
def choices(target: Target, name: str) -> Iterator[Measured]:
    """Orders, ties, masks and integers are NumPy's exactly: the first of equals is taken."""
    got = target.compute(choice(name), WHOLE)
    want = choice(name)(WHOLE)
    for i, (x, y) in enumerate(zip(got, want, strict=True)):
        yield Measured(f"result {i}", x, np.asarray(y))


MOVES = (
    "_getitem", "broadcast_arrays", "broadcast_to", "concat", "expand_dims", "flip", "linalg_diagonal",
    "matrix_transpose", "meshgrid", "moveaxis", "permute_dims", "repeat", "reshape", "roll", "squeeze", "stack", "take",
    "take_along_axis", "tile", "tril", "triu", "unstack",
)  # fmt: skip


@cache
def moves(cases: tuple[Callable[..., Any], ...]) -> Callable[..., Any]:
    """All signatures of a function that moves entries."""

    def fun(*groups: Any) -> tuple[Array, ...]:
        found: list[Array] = []
        for case, args in zip(cases, groups, strict=True):
            out = case(array_namespace(*args), *args)
            found += out if isinstance(out, (tuple, list)) else [out]
        return tuple(found)

    return fun


@check("arithmetic", lambda: {name.lstrip("_"): name for name in MOVES})
def shapes_and_indices(target: Target, name: str) -> Iterator[Measured]:
    """Whole numbers are moved, repeated and put together as on NumPy, exactly, in every signature."""
    taken: list[Case] = [case for case in CASES[name] if not case.refused(target.backend.name, target.backend.xp)]
    if not taken:
        raise Inapplicable(
            "; ".join(dict.fromkeys(case.refused(target.backend.name, target.backend.xp) for case in CASES[name]))
        )
    fun = moves(tuple(case.fun for case in taken))
    # whole numbers, so that a product of two is exact as well
    args = tuple(tuple(np.round(4 * a) for a in case.args) for case in taken)
    got, want = target.compute(fun, *args), target.reference.compute(fun, *args)
    for i, (x, y) in enumerate(zip(got, want, strict=True)):
        yield Measured(f"result {i}", x, y)


TRANSFORMS: dict[str, Callable[[Any, Any], Any]] = {
    "fft": lambda xp, z: xp.fft.fft(z, axis=1),
    "ifft": lambda xp, z: xp.fft.ifft(z, axis=0),
    "fftn": lambda xp, z: xp.fft.fftn(z),
    "ifftn": lambda xp, z: xp.fft.ifftn(z, norm="ortho"),
    "rfft": lambda xp, z: xp.fft.rfft(xp.real(z), axis=1),
    "irfft": lambda xp, z: xp.fft.irfft(z, n=10, axis=1),
    "rfftn": lambda xp, z: xp.fft.rfftn(xp.real(z)),
    "irfftn": lambda xp, z: xp.fft.irfftn(z, s=(12, 10), axes=(0, 1)),
    "fftshift, ifftshift": lambda xp, z: xp.fft.ifftshift(xp.fft.fftshift(z, axes=(0,)), axes=(1,)),
}


@cache
def transform(name: str) -> Callable[[Array], Array]:
    """A Fourier transform of a complex matrix."""
    return lambda z: TRANSFORMS[name](array_namespace(z), z)


@check("arithmetic", lambda: {name: name for name in TRANSFORMS})
def fourier_transforms(target: Target, name: str) -> Iterator[Measured]:
    """Within 8 log2(n) eps of what longer numbers give, in the precision of what went in."""
    if not hasattr(target.backend.xp, "fft"):
        raise Inapplicable("the namespace has no Fourier transforms, which the standard allows")
    rng = np.random.default_rng(3)
    z = (rng.normal(size=(12, 15)) + 1j * rng.normal(size=(12, 15))).astype(np.complex64)
    (got,), (kind,) = target.typed(transform(name), z)
    want = TRANSFORMS[name](np, z.astype(np.clongdouble))
    yield Measured("dtype", kind, target.complex_dtype if np.iscomplexobj(want) else target.dtype)
    wide = np.complex128 if np.iscomplexobj(want) else np.float64
    yield Measured("values", got, want.astype(wide), 8 * math.log2(z.size) * target.eps)


def promoted(x: Array, n: Array) -> dict[str, Array]:
    """What models mix: an array with numbers, whole ones, masks and what is made of it."""
    xp = array_namespace(x)
    return {
        "x + 1": x + 1,
        "2.5 * x": 2.5 * x,
        "x / 3": x / 3,
        "x ** 2": x**2,
        "-x": -x,
        "sum": xp.sum(x),
        "mean": xp.mean(x),
        "x - mean": x - xp.mean(x),
        "max": xp.max(x),
        "cumulative_sum": xp.cumulative_sum(x),
        "where with a number": xp.where(x > 0, x, 0.0),
        "maximum of arrays": xp.maximum(x, xp.zeros_like(x)),
        "x * mask": x * xp.astype(x > 0, x.dtype),
        "x * integers": x * xp.astype(n, x.dtype),
        "x times 0-d": x * xp.asarray(2.0, dtype=x.dtype),
        "arange": xp.arange(3, dtype=x.dtype) * x,
        "clip": xp.clip(x, 0.0, 1.0),
        "exp": xp.exp(x),
        "norm": xp.linalg.vector_norm(x),
    }


@cache
def promotion() -> Callable[[Array, Array], tuple[Array, ...]]:
    """The values of `promoted`."""
    return lambda x, n: tuple(promoted(x, n).values())


@check("arithmetic")
def dtypes(target: Target, case: None) -> Iterator[Measured]:
    """Numbers, masks and whole numbers do not widen an array, nor narrow it: a model stays in the dtype of theta."""
    x, n = np.array([0.5, -1.0, 2.0]), np.array([1, 2, 3], np.int32)
    got, kinds = target.typed(promotion(), x, n)
    want = promoted(x, n)
    for (what, y), value, kind in zip(want.items(), got, kinds, strict=True):
        yield Measured(f"dtype of {what}", kind, target.dtype)
        yield Measured(what, value, np.asarray(y), 8 * target.eps)
