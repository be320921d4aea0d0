"""Pull-backs and push-forwards, function by function: against differences, against NumPy, and against each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from xvarpro.backends import Backend
from xvarpro.backends import get as backend_of_name
from xvarpro.conformance.functions import CASES, Case
from xvarpro.conformance.suite import Inapplicable, Measured, Target, check
from xvarpro.core.struct import Array, Leaves
from xvarpro.core.trees import array_namespace

STEP = 2e-4  # extrapolated once, the differences keep eleven digits; a longer step would meet more kinks
DIGITS = 1e-8

DECOMPOSED = tuple(
    f"linalg_{name}"
    for name in ("cholesky", "det", "eigh", "eigvalsh", "inv", "matrix_norm", "pinv", "qr", "slogdet", "svd", "svdvals")
)
# in eps of the gradient's size, where the function is a decomposition or divides by differences of what it finds
ROUNDING = {"linalg_svd": 300.0, "linalg_eigh": 300.0, "linalg_pinv": 300.0, "linalg_qr": 300.0}


@dataclass(frozen=True, eq=False)
class Draw:
    """A signature, the rounding it is allowed in eps, cotangents `u` of its outputs, tangents `v` of its arguments."""

    case: Case
    rounding: float
    args: tuple[np.ndarray, ...]
    u: tuple[np.ndarray, ...]
    v: tuple[np.ndarray, ...]

    @cached_property
    def limits(self) -> tuple[np.ndarray, ...]:
        """The gradients of ``<u, f(args)>`` as limits of differences of NumPy's values, entry by entry."""
        found = []
        for i, x in enumerate(self.args):
            g = np.zeros_like(x)
            for place in np.ndindex(x.shape):
                imaginary = 1j * self._slope(i, place, 1j) if x.dtype.kind == "c" else 0.0
                g[place] = self._slope(i, place, 1.0) + imaginary
            found.append(g)
        return tuple(found)

    def _slope(self, i: int, place: tuple[int, ...], way: complex) -> float:
        def along(t: float) -> float:
            moved = list(self.args)
            moved[i] = moved[i].copy()
            moved[i][place] += t * way
            return inner(self.u, flat(self.case.fun(backend_of_name("numpy").xp, *moved)))

        coarse, fine = ((along(h) - along(-h)) / (2 * h) for h in (STEP, STEP / 2))
        return (4 * fine - coarse) / 3


@cache
def cases() -> dict[str, Draw]:
    """By function, its first signature of real arrays."""
    return _first(lambda case: not any(map(np.iscomplexobj, case.args)))


@cache
def complex_cases() -> dict[str, Draw]:
    """By function, its first signature of complex arrays; without the functions that compile for seconds."""
    found = _first(lambda case: all(map(np.iscomplexobj, case.args)))
    return {name: draw for name, draw in found.items() if name not in DECOMPOSED}


@cache
def short_cases() -> dict[str, Draw]:
    """The real cases of the main namespace: what is an extension is a framework's own in every precision."""
    return {name: draw for name, draw in cases().items() if not name.startswith(("linalg", "fft"))}


def _first(fits: Callable[[Case], bool]) -> dict[str, Draw]:
    found = {}
    for name, signatures in CASES.items():
        for case in signatures:
            if case.smooth and fits(case) and all(a.size and a.dtype.itemsize >= 8 for a in case.args):
                found[name.lstrip("_")] = _draw(case, ROUNDING.get(name, 30.0))
                break
    return found


def _draw(case: Case, rounding: float) -> Draw:
    args = tuple(_short(a) for a in case.args)
    rng = np.random.default_rng(2)
    outputs = flat(case.fun(backend_of_name("numpy").xp, *args))
    return Draw(case, rounding, args, *(tuple(_short(_normal(rng, x)) for x in xs) for xs in (outputs, args)))


def _short(x: np.ndarray) -> np.ndarray:
    """With entries that every precision holds exactly."""
    narrow: Any = {"f": np.float32, "c": np.complex64}.get(x.dtype.kind, x.dtype)
    return x.astype(narrow).astype(x.dtype)


def _normal(rng: np.random.Generator, x: np.ndarray) -> np.ndarray:
    x = np.asarray(x)
    return rng.normal(size=x.shape) + (1j * rng.normal(size=x.shape) if x.dtype.kind == "c" else 0.0)


def flat(outputs: Any) -> tuple[Any, ...]:
    """The outputs of a function as a tuple."""
    return tuple(outputs) if isinstance(outputs, (tuple, list)) else (outputs,)


class Single:
    """A namespace in which a function that asks for double precision gets single."""

    def __init__(self, xp: Any) -> None:
        self._xp = xp

    def __getattr__(self, name: str) -> Any:
        return getattr(self._xp, {"float64": "float32", "complex128": "complex64"}.get(name, name))


@cache
def derived(backend: Backend, dtype: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """What computes values, gradients and push-forwards of a function, one after another."""

    def outputs(*xs: Array) -> tuple[Array, ...]:
        xp = array_namespace(*xs)
        return flat(function(Single(xp) if dtype == "float32" else xp, *xs))

    def fun(args: Leaves, u: Leaves, v: Leaves) -> tuple[Array, ...]:
        values, pullback = backend.vjp(outputs, args)
        return *values, *pullback(u), *backend.linearise(outputs, args)[1](v)

    return fun


def inner(a: tuple[np.ndarray, ...], b: tuple[np.ndarray, ...]) -> float:
    """The real inner product that gradients are taken in."""
    return sum(float(np.sum(np.real(np.conj(x) * y))) for x, y in zip(a, b, strict=True))


@check("derivatives", cases, dtypes=("float64",))
def functions(target: Target, draw: Draw) -> Iterator[Measured]:
    """Gradients equal limits of differences and NumPy's gradients; the push-forward is the pull-back's transpose."""
    yield from _compared(target, draw)


@check("derivatives", complex_cases, dtypes=("float64",))
def complex_functions(target: Target, draw: Draw) -> Iterator[Measured]:
    """The same holds for complex arrays, with gradients dL/dRe + i dL/dIm."""
    yield from _compared(target, draw)


@check("derivatives", short_cases, dtypes=("float32",))
def single_precision(target: Target, draw: Draw) -> Iterator[Measured]:
    """The same holds in single precision, and gradients have the dtype of their argument."""
    yield from _compared(target, draw)


def _compared(target: Target, draw: Draw) -> Iterator[Measured]:
    if reason := draw.case.refused(target.backend.name, target.backend.xp):
        raise Inapplicable(reason)
    reference, given = target.reference, (draw.args, draw.u, draw.v)
    got, dtypes = target.typed(derived(target.backend, target.dtype, draw.case.fun), *given)
    want = reference.compute(derived(reference.backend, reference.dtype, draw.case.fun), *given)
    ends = np.cumsum((0, len(draw.u), len(draw.args), len(draw.u)))
    values, pulled, pushed = (slice(a, b) for a, b in pairwise(ends))
    rounding, sent = draw.rounding * target.eps, size(draw.u)
    floats = {"f": target.dtype, "c": target.complex_dtype}
    yield Measured("dtypes of gradients", dtypes[pulled], tuple(floats[a.dtype.kind] for a in draw.args))
    for what, part in (("value", values), ("gradient", pulled), ("push-forward", pushed)):
        yield from _each(f"{what}, NumPy's", got[part], want[part], rounding, max(size(want[part]), sent))
    scale = max(size(draw.limits), sent)
    yield from _each("gradient, the limit of differences", got[pulled], draw.limits, DIGITS + rounding, scale)
    left, right = inner(draw.u, got[pushed]), inner(got[pulled], draw.v)
    yield Measured("<u, J v>, <J^T u, v>", left, right, rounding, sent * size(got[pushed]))


def _each(
    what: str, got: Sequence[np.ndarray], want: Sequence[np.ndarray], tolerance: float, scale: float
) -> Iterator[Measured]:
    for i, (x, y) in enumerate(zip(got, want, strict=True)):
        yield Measured(f"{what}, {i}", x, y, tolerance, scale)


def size(xs: tuple[np.ndarray, ...]) -> float:
    """Norm of several arrays together."""
    return float(np.sqrt(sum(np.linalg.norm(x) ** 2 for x in xs)))


def of_two(x: Array, Z: Array, c: Array) -> tuple[Array, ...]:
    """Two outputs of two arguments and a constant, and one output that depends on the constant alone."""
    xp = array_namespace(x)
    return xp.sin(x) * xp.sum(Z * Z), Z @ xp.exp(c * x), c + 0.0


def of_one(x: Array, Z: Array, c: Array) -> tuple[Array, ...]:
    """One that does not depend on its second argument."""
    return (x * c,)


def of_none(x: Array, Z: Array, c: Array) -> tuple[Array, ...]:
    """One that depends on a constant alone."""
    return (c * 1.0,)


EDGES = {"several outputs and constants": of_two, "an argument that is not used": of_one, "a constant": of_none}


@check("derivatives", lambda: EDGES)
def edges(target: Target, function: Callable[..., tuple[Array, ...]]) -> Iterator[Measured]:
    """The gradient of an argument that is not used is zero, in its shape; constants are not differentiated."""
    rng = np.random.default_rng(0)
    x, Z, c, dx, dZ = (rng.normal(size=shape) for shape in ((3,), (4, 3), (3,), (3,), (4, 3)))
    n = len(function(x, Z, c))
    u = tuple(rng.normal(size=(4,) if function is of_two and i == 1 else (3,)) for i in range(n))
    given = ((x, Z), (c,), u, (dx, dZ))
    got, want = target.compute(both(target.backend, function), *given), _by_hand(function, x, Z, c, u, dx, dZ)
    yield from _each("gradients and push-forwards", got, want, 100 * target.eps, size(want))


@cache
def both(backend: Backend, function: Callable[..., tuple[Array, ...]]) -> Callable[..., Any]:
    """Gradients and push-forwards."""

    def fun(primals: Leaves, constants: Leaves, u: Leaves, v: Leaves) -> tuple[Array, ...]:
        _, pullback = backend.vjp(function, primals, constants)
        linear = backend.linearise(function, primals, constants)[1]
        return *pullback(u), *linear(v)

    return fun


def _by_hand(
    function: Callable[..., object],
    x: np.ndarray,
    Z: np.ndarray,
    c: np.ndarray,
    u: Sequence[np.ndarray],
    dx: np.ndarray,
    dZ: np.ndarray,
) -> tuple[np.ndarray, ...]:
    if function is of_none:
        return np.zeros_like(x), np.zeros_like(Z), np.zeros_like(x)
    if function is of_one:
        return u[0] * c, np.zeros_like(Z), dx * c
    e, total = np.exp(c * x), np.sum(Z * Z)
    first = np.cos(x) * total * u[0] + c * e * (Z.T @ u[1])
    second = 2 * Z * np.sum(np.sin(x) * u[0]) + np.outer(u[1], e)
    pushed = np.cos(x) * dx * total + np.sin(x) * 2 * np.sum(Z * dZ), dZ @ e + Z @ (c * e * dx), np.zeros_like(c)
    return first, second, *pushed
