"""Pull-backs and push-forwards, function by function: against differences, against NumPy, and against each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np

from xvarpro.backends import Backend
from xvarpro.backends import get as backend_of_name
from xvarpro.conformance.functions import CASES, Case
from xvarpro.conformance.suite import Inapplicable, Measured, Target, check
from xvarpro.protocols import Array
from xvarpro.trees import array_namespace

STEP = 2e-4  # extrapolated once, the differences keep eleven digits; a longer step would meet more kinks
DIGITS = 1e-8

# in eps of the gradient's size, where the function is a decomposition or divides by differences of what it finds
ROUNDING = {"linalg_svd": 300.0, "linalg_eigh": 300.0, "linalg_pinv": 300.0, "linalg_qr": 300.0}


@dataclass(frozen=True, eq=False)
class Draw:
    """A signature, what rounding it is allowed in eps, cotangents `u` of its outputs and tangents `v` of its arguments."""

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
def cases() -> dict[str, tuple[Draw, ...]]:
    """By function: its smooth signatures, the first of every combination of real and complex arguments."""
    found = {}
    for name, signatures in CASES.items():
        kinds: dict[Any, Case] = {}
        for case in signatures:
            if case.smooth and all(a.size and a.dtype.itemsize >= 8 for a in case.args):
                kinds.setdefault(tuple(a.dtype.kind for a in case.args), case)
        found[name.lstrip("_")] = tuple(_draw(case, ROUNDING.get(name, 30.0)) for case in kinds.values())
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
def derived(backend: Backend, dtype: str, functions: tuple[Callable[..., Any], ...]) -> Callable[..., Any]:
    """What computes values, pull-backs and push-forwards: one program for all signatures of a function."""

    def fun(*given: Any) -> tuple[Array, ...]:
        out: list[Array] = []
        for function, (args, u, v) in zip(functions, given, strict=True):

            def outputs(*xs: Array, function: Any = function) -> tuple[Array, ...]:
                xp = array_namespace(*xs)
                return flat(function(Single(xp) if dtype == "float32" else xp, *xs))

            values, pullback = backend.vjp(outputs, args)
            out += [*values, *pullback(u), *backend.jvp(outputs, args, v)[1], *backend.linearise(outputs, args)[1](v)]
        return tuple(out)

    return fun


def inner(a: tuple[np.ndarray, ...], b: tuple[np.ndarray, ...]) -> float:
    """The real inner product that gradients are taken in."""
    return sum(float(np.sum(np.real(np.conj(x) * y))) for x, y in zip(a, b, strict=True))


@check("derivatives", cases)
def functions(target: Target, draws: tuple[Draw, ...]) -> Iterator[Measured]:
    """Gradients are limits of differences and NumPy's to rounding; the push-forward is the pull-back's transpose."""
    name = target.backend.name
    taken = [d for d in draws if not d.case.refused(name)]
    if not taken:
        raise Inapplicable("; ".join(dict.fromkeys(d.case.refused(name) for d in draws)))
    if target.dtype == "float32":  # by the same rules: what may differ is the dtype
        taken = taken[:1]
    given = [(d.args, d.u, d.v) for d in taken]
    kinds = tuple(d.case.fun for d in taken)
    got, dtypes = target.typed(derived(target.backend, target.dtype, kinds), *given)
    reference = target.reference
    want = reference.compute(derived(reference.backend, reference.dtype, kinds), *given)
    start = 0
    for d in taken:
        ends = np.cumsum((start, len(d.u), len(d.args), len(d.u), len(d.u)))
        parts = [slice(a, b) for a, b in zip(ends[:-1], ends[1:], strict=True)]
        yield from _judged(target, d, *((got[p], want[p], dtypes[p]) for p in parts))
        start = int(ends[-1])


def _judged(target: Target, draw: Draw, values: Any, pulled: Any, pushed: Any, linear: Any) -> Iterator[Measured]:
    signature = ", ".join(f"{a.dtype.kind}{list(a.shape)}" for a in draw.args)
    kinds = {"f": target.dtype, "c": target.complex_dtype}
    rounding = draw.rounding * target.eps
    yield Measured(f"dtypes of gradients for {signature}", pulled[2], tuple(kinds[a.dtype.kind] for a in draw.args))
    rows = (("value", values, draw.u), ("gradient", pulled, draw.args), ("push-forward", pushed, draw.u))
    for what, (got, want, _), _ in rows:
        for i, (x, y) in enumerate(zip(got, want, strict=True)):
            yield Measured(f"{what} {i} of {signature}", x, y, rounding, max(size(want), size(draw.u)))
    for i, (x, y) in enumerate(zip(pulled[0], draw.limits, strict=True)):
        scale = max(size(draw.limits), size(draw.u))
        yield Measured(f"gradient {i} of {signature}, limit of differences", x, y, DIGITS + rounding, scale)
    left, right = inner(draw.u, pushed[0]), inner(pulled[0], draw.v)
    yield Measured(f"<u, J v> of {signature}", left, right, rounding, size(draw.u) * size(pushed[1]))
    for i, (x, y) in enumerate(zip(linear[0], pushed[0], strict=True)):
        yield Measured(f"linearised push-forward {i} of {signature}", x, y, rounding, size(pushed[1]))


def size(xs: tuple[np.ndarray, ...]) -> float:
    """Norm of several arrays together."""
    return float(np.sqrt(sum(np.linalg.norm(x) ** 2 for x in xs)))
