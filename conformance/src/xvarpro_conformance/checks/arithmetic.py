"""Accuracy of functions of the array API standard; that they are those of the standard is array-api-tests' to check."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from xvarpro.core.struct import Array
from xvarpro.core.trees import array_namespace
from xvarpro_conformance import digits
from xvarpro_conformance.suite import Inapplicable, Measured, Target, check, held

POINTS = 1000
TURNS = ((-3.0, 3.0), (0.1, 1.4))  # no zeros of sine or cosine, where any rounding is a large part
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
        points.append(x.astype(np.float64) + 0.0)  # no negative zeros, which the reference has not got
    return points


def _worst(got: np.ndarray, want: np.ndarray, points: list[np.ndarray], tolerance: float) -> Measured:
    """The point with the largest relative error."""
    with np.errstate(all="ignore"):
        error = np.where(got == want, 0.0, np.abs(got - want) / np.abs(want))
    i = int(np.argmax(np.where(np.isnan(error), np.inf, error)))
    at = ", ".join(repr(x[i].item()) for x in points)
    return Measured(f"value at {at}", got[i], want[i], tolerance)


def _dtype(target: Target, want: np.ndarray) -> str:
    return target.complex_dtype if np.iscomplexobj(want) else target.dtype


@check("arithmetic", lambda: {name: name for name in DOMAINS}, against="more digits")
def elementwise_functions(target: Target, name: str) -> Iterator[Measured]:
    """Every value is within 8 eps of 50 digits, in the dtype of the argument."""
    points = drawn(DOMAINS[name])
    (got,), (kind,) = target.typed(function(name), *points)
    yield Measured("dtype", kind, target.dtype)
    yield _worst(got, _right(name, False), points, 8 * target.eps)


@check("arithmetic", lambda: {name: name for name in COMPLEX}, against="more digits")
def complex_functions(target: Target, name: str) -> Iterator[Measured]:
    """Every value is within 32 eps of 50 digits: a complex function is a composition of real ones."""
    x, y = drawn(TURNS)
    (got,), (kind,) = target.typed(function(name), x + 1j * y)
    want = _right(name, True)
    yield Measured("dtype", kind, _dtype(target, want))
    yield _worst(got, want, [x, y], 32 * target.eps)


@cache
def _right(name: str, is_complex: bool) -> np.ndarray:
    """Values of a function in 50 digits, rounded once."""
    if is_complex:
        x, y = drawn(TURNS)
        return digits.rounded(getattr(digits.EXACT, name)(digits.exact(x + 1j * y)))
    return digits.rounded(getattr(digits.EXACT, name)(*map(digits.exact, drawn(DOMAINS[name]))))


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


@check("arithmetic", lambda: {name: name for name in REDUCTIONS}, against="more digits")
def reductions(target: Target, name: str) -> Iterator[Measured]:
    """Sums and products are within 8 sqrt(n) eps of 50 digits, relative to the sum of magnitudes."""
    x = np.random.default_rng(1).normal(size=(6, 500)).astype(np.float32)
    (got,), (kind,) = target.typed(reduction(name), x)
    want = _exactly(REDUCTIONS[name].fun, x.tobytes(), x.shape, x.dtype.name)
    size = float(np.linalg.norm(REDUCTIONS[name].size(x.astype(np.float64))))
    yield Measured("dtype", kind, target.dtype)
    yield Measured("values", got, want, 8 * math.sqrt(x.shape[1]) * target.eps, size)


@cache
def _exactly(fun: Callable[[Any, Array], Array], data: bytes, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """A function of an array in 50 digits, rounded once."""
    x = np.frombuffer(data, dtype).reshape(shape)
    return digits.rounded(fun(digits.EXACT, digits.exact(x)))


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


@check("arithmetic", lambda: {name: name for name in TRANSFORMS}, against="more digits")
def fourier_transforms(target: Target, name: str) -> Iterator[Measured]:
    """Transforms are within 8 log2(n) eps of 50 digits, in the precision of the argument."""
    if not hasattr(target.backend.xp, "fft"):
        raise Inapplicable("the namespace has no Fourier transforms, which the standard allows")
    rng = np.random.default_rng(3)
    z = (rng.normal(size=(12, 15)) + 1j * rng.normal(size=(12, 15))).astype(np.complex64)
    (got,), (kind,) = target.typed(transform(name), z)
    want = _exactly(TRANSFORMS[name], z.tobytes(), z.shape, z.dtype.name)
    yield Measured("dtype", kind, _dtype(target, want))
    yield Measured("values", got, want, 8 * math.log2(z.size) * target.eps)


LONG = (0, 1, 5, 8193, 70001)  # entries: none, few, and more than any block of a loop over pieces


def _product(xp: Any, x: Array, y: Array) -> Array:
    return (xp.expand_dims(x, axis=-2) @ xp.expand_dims(y, axis=-1))[..., 0, 0]


def long_sums_of(x: Array, y: Array) -> tuple[Array, ...]:
    """Sums over the last axis."""
    xp = array_namespace(x)
    norms = tuple(xp.linalg.vector_norm(x, axis=-1, ord=p) for p in (1, 2))
    return xp.sum(x, axis=-1), xp.vecdot(x, y), _product(xp, x, y), *norms


@check(
    "arithmetic",
    lambda: {f"{kind}, {n}": (n, kind == "complex") for kind in ("real", "complex") for n in LONG},
    against="rational arithmetic",
)
def long_sums(target: Target, case: tuple[int, bool]) -> Iterator[Measured]:
    """Sums, products and norms of none, few and 70,001 entries, two rows of them, are those of exact sums."""
    x, y, want = _exact_sums(*case)
    got = target.compute(long_sums_of, x, y)
    tolerance = 8 * math.sqrt(case[0] + 1) * target.eps
    for row, sums in enumerate(want):
        for (what, (right, scale)), values in zip(sums.items(), got, strict=True):
            yield Measured(f"{what} of row {row}", values[row], np.asarray(right), tolerance, scale)


@cache
def _exact_sums(n: int, is_complex: bool) -> tuple[np.ndarray, np.ndarray, list[dict[str, tuple[Any, float | None]]]]:
    rng = np.random.default_rng(n)
    x, y = (held(rng.normal(size=(2, n)) + (1j * rng.normal(size=(2, n)) if is_complex else 0.0)) for _ in range(2))
    found = []
    for a, b in zip(x.tolist(), y.tolist(), strict=True):
        most = _size(a) * _size(b)
        found.append(
            {
                "sum": (_exact_sum(a), math.fsum(map(abs, a))),
                "vecdot": (_exact_sum([u.conjugate() * v for u, v in zip(a, b, strict=True)]), most),
                "product": (_exact_sum([u * v for u, v in zip(a, b, strict=True)]), most),
                "l1": (math.fsum(map(abs, a)), None),
                "l2": (_size(a), None),
            }
        )
    return x, y, found


def _exact_sum(values: list[Any]) -> Any:
    """The sum, rounded once: of products in double precision, whose own roundings are small next to the tolerance."""
    if any(isinstance(v, complex) for v in values):
        return complex(math.fsum(v.real for v in values), math.fsum(v.imag for v in values))
    return math.fsum(values)


def _size(values: list[Any]) -> float:
    return math.sqrt(math.fsum(abs(v) ** 2 for v in values))


def chosen(x: Array) -> tuple[Array, ...]:
    """What selects and compares, along the last axis."""
    xp = array_namespace(x)
    first = xp.argmin(x, axis=-1, keepdims=True)
    return (
        xp.sort(x, axis=-1), xp.take_along_axis(x, xp.argsort(x, axis=-1, descending=True), axis=-1),
        xp.max(x, axis=-1), xp.min(x, axis=-1), xp.argmax(x, axis=-1), first[..., 0],
        xp.take_along_axis(x, first, axis=-1)[..., 0], xp.sign(x), xp.maximum(x, -x), xp.clip(x, -0.5, 0.5),
        xp.where(x < 0, -x, x), xp.flip(x, axis=-1),
    )  # fmt: skip


def _chosen(x: list[float]) -> list[Any]:
    return [
        sorted(x), sorted(x, reverse=True), max(x), min(x), x.index(max(x)), x.index(min(x)), min(x),
        [float((v > 0) - (v < 0)) for v in x], [max(v, -v) for v in x], [min(max(v, -0.5), 0.5) for v in x],
        [abs(v) for v in x], x[::-1],
    ]  # fmt: skip


@check("arithmetic", lambda: {str(n): n for n in (1, 5, 5000)}, against="definition")
def choices(target: Target, n: int) -> Iterator[Measured]:
    """Orders, extremes, their first places among ties, signs and bounds are those of a loop over the entries."""
    rng = np.random.default_rng(n)
    x = np.stack([np.round(rng.normal(size=n), 1), rng.normal(size=n), np.zeros(n)])  # ties, none, nothing else
    x = target.held(x)
    got = target.compute(chosen, x)
    rows = [_chosen(row) for row in x.tolist()]
    for i, found in enumerate(got):
        yield Measured(f"result {i}", found, np.array([row[i] for row in rows], found.dtype))


def of_nan(x: Array) -> tuple[Array, ...]:
    """Functions that hand on a NaN."""
    xp = array_namespace(x)
    zero = xp.zeros_like(x)
    return (
        xp.sign(x), xp.abs(x), xp.maximum(x, zero), xp.minimum(zero, x), xp.clip(x, -1.0, 1.0), xp.sqrt(xp.abs(x)),
        xp.sum(x, axis=-1), xp.linalg.vector_norm(x, axis=-1),
    )  # fmt: skip


def extremes(x: Array) -> tuple[Array, ...]:
    """The largest and the least entry of each row."""
    xp = array_namespace(x)
    return xp.max(x, axis=-1), xp.min(x, axis=-1)


@check(
    "arithmetic",
    lambda: {
        f"{what} of {n}": (n, fun)
        for n in (1, 5, 5000)
        for what, fun in {"entries": of_nan, "extremes": extremes}.items()
    },
    against="definition",
)
def what_is_not_a_number(target: Target, case: tuple[int, Callable[[Array], tuple[Array, ...]]]) -> Iterator[Measured]:
    """A NaN among thousands of entries comes out where it went in, and of what reduces its row, and nowhere else."""
    n, fun = case
    x = np.random.default_rng(0).normal(size=(3, n))
    x[0, 0] = x[2, -1] = np.nan
    for i, found in enumerate(target.compute(fun, x)):
        where = np.isnan(x) if found.ndim == 2 else np.array([True, False, True])
        yield Measured(f"NaN of result {i}", 1.0 * np.isnan(found), 1.0 * where, target.eps)


@check("arithmetic", against="definition")
def numbers_on_the_host(target: Target, case: None) -> Iterator[Measured]:
    """Numbers are read from the device with all their digits, in order, NaN, infinities and signs of zeros too."""
    values = [1 / 3, -0.0, 0.0, np.inf, -np.inf, np.nan, 2.0**-60, 1.0 + 2.0**-23, *map(float, range(100))]
    values += [1.0 + 2.0**-52, 1e300, 1e-300] if target.dtype == "float64" else []
    kept = [float(target.held(np.array(v))) for v in values]
    with target.scope():
        got = target.backend.to_floats([target.send(np.array(v)) for v in values])
        none = target.backend.to_floats([])
    yield Measured("numbers", list(map(repr, got)), list(map(repr, kept)))
    yield Measured("none", list(none), [])


@check("arithmetic", lambda: {"real": False, "complex": True}, against="definition")
def scattered_sums(target: Target, is_complex: bool) -> Iterator[Measured]:
    """Sums at places that come again and again add up, and what they are added to stays as it is."""
    if not hasattr(target.backend, "index_add"):
        raise Inapplicable("the framework has derivatives of its own, and no sums at places are asked of it")
    for shape, count in (((0,), 0), ((5,), 0), ((1,), 3), ((5,), 12), ((3000,), 9000), ((5, 3), 12)):
        rng = np.random.default_rng(1)
        x, v = (rng.integers(-9, 9, size=s) * (1.0 + 2j if is_complex else 1.0) for s in (shape, (count, *shape[1:])))
        places = rng.integers(0, max(1, shape[0]), size=count)
        want = x.tolist()
        for place, term in zip(places.tolist(), v.tolist(), strict=True):
            want[place] = [a + b for a, b in zip(want[place], term, strict=True)] if shape[1:] else want[place] + term
        with target.scope():
            given = [target.send(a) for a in (x, places, v)]
            got = target.host(target.backend.index_add(*given))
            after = [target.host(a) for a in given]
        yield Measured(f"sums of {count} in {shape}", got, np.array(want, got.dtype).reshape(shape))
        for what, a, b in zip(("terms", "places", "values"), (x, places, v), after, strict=True):
            yield Measured(f"the {what} given, {count} in {shape}", b, a)
