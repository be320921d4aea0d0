"""Accuracy of functions of the array API standard; that they are those of the standard is array-api-tests' to check."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from xvarpro.conformance.suite import Inapplicable, Measured, Target, check
from xvarpro.core.struct import Array
from xvarpro.core.trees import array_namespace

POINTS = 2000
ANY, POSITIVE, UNIT = (-10.0, 10.0), (1e-3, 1e3), (-0.999, 0.999)

# the interval of each argument
DOMAINS: dict[str, tuple[tuple[float, float], ...]] = {
    "acos": (UNIT,), "acosh": ((1.01, 100.0),), "asin": (UNIT,), "asinh": (ANY,), "atan": (ANY,), "atanh": (UNIT,),
    "cos": (ANY,), "cosh": (ANY,), "exp": ((-50.0, 50.0),), "expm1": (ANY,), "log": (POSITIVE,), "log10": (POSITIVE,),
    "log1p": ((-0.9, 10.0),), "log2": (POSITIVE,), "reciprocal": (POSITIVE,), "sin": (ANY,), "sinh": (ANY,),
    "sqrt": (POSITIVE,), "square": (ANY,), "tan": (ANY,), "tanh": (ANY,), "add": (POSITIVE, POSITIVE),
    "atan2": (ANY, ANY), "divide": (ANY, POSITIVE), "hypot": (ANY, ANY), "logaddexp": (POSITIVE, POSITIVE),
    "multiply": (ANY, ANY), "pow": ((0.1, 10.0), (-5.0, 5.0)), "remainder": (ANY, (1.0, 3.0)),
    "subtract": (POSITIVE, (-1e3, -1e-3)),
}  # fmt: skip
COMPLEX = (
    "abs", "acos", "asin", "atan", "cos", "cosh", "exp", "log", "reciprocal", "sin", "sinh", "sqrt", "square", "tan",
    "tanh",
)  # fmt: skip


@cache
def function(name: str) -> Callable[..., Array]:
    """A function of the namespace by its name."""

    def fun(*xs: Array) -> Array:
        found: Array = getattr(array_namespace(*xs), name)(*xs)
        return found

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


def _double(x: np.ndarray) -> np.ndarray:
    return x.astype(np.complex128 if np.iscomplexobj(x) else np.float64)


def _dtype(target: Target, want: np.ndarray) -> str:
    return target.complex_dtype if np.iscomplexobj(want) else target.dtype


@check("arithmetic", lambda: {name: name for name in DOMAINS})
def elementwise_functions(target: Target, name: str) -> Iterator[Measured]:
    """Every value is within 8 eps of extended precision, in the dtype of the argument."""
    points = drawn(DOMAINS[name])
    (got,), (kind,) = target.typed(function(name), *points)
    want = np.asarray(function(name)(*(x.astype(np.longdouble) for x in points)))
    yield Measured("dtype", kind, target.dtype)
    yield _worst(got, _double(want), points, 8 * target.eps)


@check("arithmetic", lambda: {name: name for name in COMPLEX})
def complex_functions(target: Target, name: str) -> Iterator[Measured]:
    """Every value is within 32 eps of extended precision: a complex function is a composition of real ones."""
    x, y = drawn(((-3.0, 3.0), (0.1, 1.4)))  # no zeros of sine or cosine, where any rounding is a large part
    (got,), (kind,) = target.typed(function(name), x + 1j * y)
    want = np.asarray(function(name)((x + 1j * y).astype(np.clongdouble)))
    yield Measured("dtype", kind, _dtype(target, want))
    yield _worst(got, _double(want), [x, y], 32 * target.eps)


class Reduced(NamedTuple):
    """A reduction: as the namespace computes it, and the sum of magnitudes that its rounding is relative to."""

    fun: Callable[[Any, Array], Array]
    size: Callable[[np.ndarray], np.ndarray]


REDUCTIONS: dict[str, Reduced] = {
    "sum": Reduced(lambda xp, x: xp.sum(x, axis=1), lambda x: np.sum(np.abs(x), axis=1)),
    "mean": Reduced(lambda xp, x: xp.mean(x, axis=1), lambda x: np.mean(np.abs(x), axis=1)),
    "prod": Reduced(lambda xp, x: xp.prod(1.0 + x / 64.0, axis=1), lambda x: np.prod(1.0 + np.abs(x) / 64.0, axis=1)),
    "var": Reduced(lambda xp, x: xp.var(x, axis=1), lambda x: np.mean(x * x, axis=1)),
    "std": Reduced(lambda xp, x: xp.std(x, axis=1, correction=1), lambda x: np.std(x, axis=1)),
    "cumulative_sum": Reduced(lambda xp, x: xp.cumulative_sum(x, axis=1), lambda x: np.sum(np.abs(x), axis=1)),
    "norm": Reduced(lambda xp, x: xp.sqrt(xp.sum(x * x, axis=1)), lambda x: np.linalg.norm(x, axis=1)),
    "vecdot": Reduced(lambda xp, x: xp.vecdot(x, x), lambda x: np.sum(x * x, axis=1)),
    "matmul": Reduced(lambda xp, x: x @ xp.matrix_transpose(x), lambda x: np.abs(x) @ np.abs(x).T),
    "tensordot": Reduced(lambda xp, x: xp.tensordot(x, x, axes=((1,), (1,))), lambda x: np.abs(x) @ np.abs(x).T),
}


@cache
def reduction(name: str) -> Callable[[Array], Array]:
    """A reduction as a function of the array alone."""
    return lambda x: REDUCTIONS[name].fun(array_namespace(x), x)


@check("arithmetic", lambda: {name: name for name in REDUCTIONS})
def reductions(target: Target, name: str) -> Iterator[Measured]:
    """Sums and products are within 8 sqrt(n) eps of extended precision, relative to the sum of magnitudes."""
    x = np.random.default_rng(1).normal(size=(6, 500)).astype(np.float32)
    (got,), (kind,) = target.typed(reduction(name), x)
    want = _double(np.asarray(reduction(name)(x.astype(np.longdouble))))
    size = float(np.linalg.norm(REDUCTIONS[name].size(x.astype(np.float64))))
    yield Measured("dtype", kind, target.dtype)
    yield Measured("values", got, want, 8 * math.sqrt(x.shape[1]) * target.eps, size)


TRANSFORMS: dict[str, Callable[[Any, Array], Array]] = {
    "fft": lambda xp, z: xp.fft.fft(z, axis=1),
    "ifft": lambda xp, z: xp.fft.ifft(z, axis=0),
    "fftn": lambda xp, z: xp.fft.fftn(z),
    "ifftn": lambda xp, z: xp.fft.ifftn(z, norm="ortho"),
    "rfft": lambda xp, z: xp.fft.rfft(xp.real(z), axis=1),
    "irfft": lambda xp, z: xp.fft.irfft(z, n=10, axis=1),
    "rfftn": lambda xp, z: xp.fft.rfftn(xp.real(z)),
    "irfftn": lambda xp, z: xp.fft.irfftn(z, s=(12, 10), axes=(0, 1)),
}


@cache
def transform(name: str) -> Callable[[Array], Array]:
    """A Fourier transform of a complex matrix."""
    return lambda z: TRANSFORMS[name](array_namespace(z), z)


@check("arithmetic", lambda: {name: name for name in TRANSFORMS})
def fourier_transforms(target: Target, name: str) -> Iterator[Measured]:
    """Transforms are within 8 log2(n) eps of extended precision, in the precision of the argument."""
    if not hasattr(target.backend.xp, "fft"):
        raise Inapplicable("the namespace has no Fourier transforms, which the standard allows")
    rng = np.random.default_rng(3)
    z = (rng.normal(size=(12, 15)) + 1j * rng.normal(size=(12, 15))).astype(np.complex64)
    (got,), (kind,) = target.typed(transform(name), z)
    want = np.asarray(TRANSFORMS[name](np, z.astype(np.clongdouble)))
    yield Measured("dtype", kind, _dtype(target, want))
    yield Measured("values", got, _double(want), 8 * math.log2(z.size) * target.eps)
