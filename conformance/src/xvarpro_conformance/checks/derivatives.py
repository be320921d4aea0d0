"""Pull-backs, push-forwards and second derivatives of every signature, against differences in 50 digits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial, reduce
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from xvarpro.backends import Backend, TapedBackend
from xvarpro.backends import get as backend_of_name
from xvarpro.backends.calculus import directional_derivative, directional_error, hessian_product
from xvarpro.core.namespace import device, find_dtype
from xvarpro.core.struct import Array, Leaves
from xvarpro.core.trees import array_namespace, sum_
from xvarpro_conformance import digits, frameworks
from xvarpro_conformance.checks.exchange import exported
from xvarpro_conformance.functions import CASES, Case
from xvarpro_conformance.runner import DTYPES
from xvarpro_conformance.suite import Inapplicable, Measured, Target, check

DECOMPOSED = tuple(
    f"linalg_{name}"
    for name in ("cholesky", "det", "eigh", "eigvalsh", "inv", "matrix_norm", "pinv", "qr", "slogdet", "svd", "svdvals")
)
STEPS = 8  # of Newton's method for a square root
# in eps of the gradient's size, where the function is a decomposition or divides by differences of what it finds. The
# backward error of singular values is at worst 6 m u for each of 2 n reflections and 6 u for each of some 4 n (n - 1)
# rotations (Higham, Accuracy and Stability of Numerical Algorithms, 2002, lemmas 19.3 and 19.8): 390 eps of 5 x 5
ROUNDING = {f"linalg_{name}": 300.0 for name in ("eigh", "matrix_norm", "pinv", "qr", "svd", "svdvals")}


class Truth(NamedTuple):
    """What a signature has to give: values, and along a direction the push-forward and the second derivative."""

    values: tuple[np.ndarray, ...]
    pushed: tuple[np.ndarray, ...]
    curvature: float


@dataclass(frozen=True, eq=False)
class Draw:
    """A signature, the rounding it is allowed in eps, cotangents `u` of its outputs, tangents `v` of its arguments.

    `turn` are the precisions in which it stands for the others where a signature is compiled for seconds.
    """

    case: Case
    rounding: float
    args: tuple[np.ndarray, ...]
    u: tuple[np.ndarray, ...]
    v: tuple[np.ndarray, ...]
    turn: tuple[str, ...]

    @cached_property
    def truth(self) -> Truth:
        """From differences along `v`: a wrong derivative is wrong along almost every direction."""
        h, x = digits.STEP, [digits.exact(a) for a in self.args]
        steps = [h * digits.exact(v) for v in self.v]

        def at(t: int) -> list[Any]:
            moved = (digits.exact(a + t * d) for a, d in zip(x, steps, strict=True))
            return [digits.exact(y) for y in flat(self.case.fun(digits.EXACT, *moved))]

        behind, here, ahead = at(-1), at(0), at(1)
        pushed = [(b - a) / (2 * h) for a, b in zip(behind, ahead, strict=True)]
        second = [(a - 2 * y + b) / h**2 for a, y, b in zip(behind, here, ahead, strict=True)]
        values, slopes, curved = (tuple(digits.rounded(y) for y in ys) for ys in (here, pushed, second))
        return Truth(values, slopes, inner(self.u, curved))


@cache
def cases() -> dict[str, Draw]:
    """Every signature of real arrays."""
    return _drawn(lambda case: not any(map(np.iscomplexobj, case.args)))


@cache
def complex_cases() -> dict[str, Draw]:
    """Every signature with complex arrays, of which those of a decomposition compile for seconds."""
    return _drawn(lambda case: any(map(np.iscomplexobj, case.args)))


def _drawn(fits: Callable[[Case], bool]) -> dict[str, Draw]:
    found = {}
    for name, signatures in CASES.items():
        kept = [c for c in signatures if fits(c) and all(a.dtype.itemsize >= 8 for a in c.args)]
        kept.sort(key=lambda c: not plain(c))
        for i, case in enumerate(kept):
            turn: tuple[str, ...] = ()
            if i == 0 and plain(case):
                is_complex = any(map(np.iscomplexobj, case.args))
                long = is_complex or name.startswith(("linalg", "fft"))
                turn = () if is_complex and name in DECOMPOSED else DTYPES[: 1 if long else 2]
            stem = name.lstrip("_")
            found[f"{stem} {i + 1}" if i else stem] = _draw(case, ROUNDING.get(name, 30.0), turn)
    return found


def plain(case: Case) -> bool:
    """Whether there are numbers, and derivatives."""
    return case.smooth and all(a.size for a in case.args)


def _draw(case: Case, rounding: float, turn: tuple[str, ...]) -> Draw:
    args = tuple(_short(a) for a in case.args)
    rng = np.random.default_rng(2)
    with np.errstate(all="ignore"):
        outputs = flat(case.fun(backend_of_name("numpy").xp, *args))  # for their shapes
    u, v = (tuple(_short(_normal(rng, x)) for x in xs) for xs in (outputs, args))
    return Draw(case, rounding, args, u, v, turn)


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


class Placed:
    """A namespace whose new arrays are where an array is."""

    def __init__(self, xp: Any, place: Any) -> None:
        self._xp, self._place = xp, place

    def __getattr__(self, name: str) -> Any:
        if name.startswith("complex"):
            return find_dtype(self._xp, name)  # where there is none, what needs it does not apply
        found = getattr(self._xp, name)
        return partial(found, device=self._place) if name in ("asarray", "zeros") else found


@cache
def called(function: Callable[..., Any], target: Target) -> Callable[..., tuple[Array, ...]]:
    """A signature as a function of arrays alone, in the precision and on the device of a target."""

    def outputs(*xs: Array) -> tuple[Array, ...]:
        xp = Placed(array_namespace(*xs), target.place)
        return flat(function(Single(xp) if target.dtype == "float32" else xp, *xs))

    return outputs


@cache
def derived(backend: Backend, outputs: Callable[..., tuple[Array, ...]]) -> Callable[..., Any]:
    """What computes values, gradients and push-forwards of a function, one after another."""

    def fun(args: Leaves, u: Leaves, v: Leaves) -> tuple[Array, ...]:
        values, pullback = backend.vjp(outputs, args)
        return *values, *pullback(u), *backend.linearise(outputs, args)[1](v)

    return fun


@cache
def curved(backend: Backend, outputs: Callable[..., tuple[Array, ...]]) -> Callable[..., Any]:
    """The Hessian of ``<u, outputs>`` times a direction."""

    def fun(args: Leaves, u: Leaves, v: Leaves) -> tuple[Array, ...]:
        def total(*arrays: Array) -> Array:
            xs, us = arrays[: len(args)], arrays[len(args) :]
            xp = array_namespace(*xs)
            return sum_(xp.sum(real_part(y, c)) for y, c in zip(outputs(*xs), us, strict=True))

        return hessian_product(backend, total, args, u)[1](v)

    return fun


def real_part(y: Array, c: Array) -> Array:
    """The real part of ``conj(c) y``, entry by entry."""
    xp = array_namespace(y)
    return xp.real(xp.conj(c) * y) if xp.isdtype(y.dtype, "complex floating") else c * y


def inner(a: tuple[np.ndarray, ...], b: tuple[np.ndarray, ...]) -> float:
    """The real inner product that gradients are taken in."""
    return sum(float(np.sum(np.real(np.conj(x) * y))) for x, y in zip(a, b, strict=True))


@check("derivatives", cases, against="more digits")
def functions(target: Target, draw: Draw) -> Iterator[Measured]:
    """Values, gradients, push-forwards and Hessian products of every signature equal differences in 50 digits."""
    yield from _compared(target, draw)


@check("derivatives", complex_cases, against="more digits")
def complex_functions(target: Target, draw: Draw) -> Iterator[Measured]:
    """The same holds for complex arrays, with gradients dL/dRe + i dL/dIm."""
    yield from _compared(target, draw)


def _compared(target: Target, draw: Draw) -> Iterator[Measured]:
    if reason := draw.case.refused(target.backend.name, target.backend.xp):
        raise Inapplicable(reason)
    target.represent(draw.turn)
    given, truth = (draw.args, draw.u, draw.v), draw.truth
    fun = called(draw.case.fun, target)
    got, dtypes = target.typed(derived(target.backend, fun), *given)
    ends = np.cumsum((0, len(draw.u), len(draw.args), len(draw.u)))
    values, pulled, pushed = (slice(a, b) for a, b in pairwise(ends))
    rounding, sent = draw.rounding * target.eps, size(draw.u)
    floats = {"f": target.dtype, "c": target.complex_dtype}
    yield Measured("dtypes of gradients", dtypes[pulled], tuple(floats[a.dtype.kind] for a in draw.args))
    yield Measured("shapes of gradients", [g.shape for g in got[pulled]], [a.shape for a in draw.args])
    yield from _each("value", got[values], truth.values, rounding, max(size(truth.values), sent))
    if not draw.case.smooth:  # where frameworks choose a slope each
        yield Measured("gradients are finite", all(bool(np.isfinite(g).all()) for g in got[pulled]), True)
        return
    yield from _each("push-forward", got[pushed], truth.pushed, rounding, max(size(truth.pushed), sent))
    along = inner(got[pulled], draw.v)
    scale = max(size(got[pulled]), sent) * size(draw.v)
    yield Measured("gradient along a direction", along, inner(draw.u, truth.pushed), rounding, scale)
    if not target.backend.compiled or target.thorough:
        product = target.compute(curved(target.backend, fun), *given)
        scale = max(size(product), sent) * size(draw.v)
        yield Measured("Hessian along a direction", inner(product, draw.v), truth.curvature, 10 * rounding, scale)


def _each(
    what: str, got: Sequence[np.ndarray], want: Sequence[np.ndarray], tolerance: float, scale: float
) -> Iterator[Measured]:
    for i, (x, y) in enumerate(zip(got, want, strict=True)):
        yield Measured(f"{what}, {i}", x, y, tolerance, scale)


def size(xs: tuple[np.ndarray, ...]) -> float:
    """Norm of several arrays together."""
    return float(np.sqrt(sum(np.linalg.norm(x) ** 2 for x in xs)))


def of_two(x: Array, Z: Array, c: Array) -> tuple[Array, ...]:
    """Outputs of a constant alone before, between and after two of both arguments."""
    xp = array_namespace(x)
    return c * 2.0, xp.sin(x) * xp.sum(Z * Z), xp.ones_like(c), Z @ xp.exp(c * x), c + 0.0


def of_one(x: Array, Z: Array, c: Array) -> tuple[Array, ...]:
    """One that does not depend on its second argument."""
    return (x * c,)


def of_none(x: Array, Z: Array, c: Array) -> tuple[Array, ...]:
    """One that depends on a constant alone."""
    return (c * 1.0,)


EDGES = {"several outputs and constants": of_two, "an argument that is not used": of_one, "a constant": of_none}


@check("derivatives", lambda: EDGES, against="closed form")
def edges(target: Target, function: Callable[..., tuple[Array, ...]]) -> Iterator[Measured]:
    """The gradient of an argument that is not used is zero, in its shape; constants are not differentiated."""
    rng = np.random.default_rng(0)
    x, Z, c, dx, dZ = (rng.normal(size=shape) for shape in ((3,), (4, 3), (3,), (3,), (4, 3)))
    u = tuple(rng.normal(size=y.shape) for y in function(x, Z, c))
    given = ((x, Z), (c,), u, (dx, dZ))
    got, want = target.compute(both(target.backend, function), *given), _by_hand(function, x, Z, c, u, dx, dZ)
    twice = target.compute(both(target.backend, function, again=True), *given)
    yield from _each("gradients and push-forwards", got, want, 100 * target.eps, size(want))
    yield from _each("those of a second call", twice, tuple(2.0 * y for y in want), 100 * target.eps, 2 * size(want))


@cache
def both(backend: Backend, function: Callable[..., tuple[Array, ...]], again: bool = False) -> Callable[..., Any]:
    """Gradients and push-forwards; with `again` those of twice the argument, after a first call of the same maps."""

    def fun(primals: Leaves, constants: Leaves, u: Leaves, v: Leaves) -> tuple[Array, ...]:
        _, pullback = backend.vjp(function, primals, constants)
        linear = backend.linearise(function, primals, constants)[1]
        found = *pullback(u), *linear(v)
        return (*pullback(tuple(2.0 * x for x in u)), *linear(tuple(2.0 * x for x in v))) if again else found

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
    e, total, zero = np.exp(c * x), np.sum(Z * Z), np.zeros_like(c)
    first = np.cos(x) * total * u[1] + c * e * (Z.T @ u[3])
    second = 2 * Z * np.sum(np.sin(x) * u[1]) + np.outer(u[3], e)
    moved = np.cos(x) * dx * total + np.sin(x) * 2 * np.sum(Z * dZ)
    return first, second, zero, moved, zero, dZ @ e + Z @ (c * e * dx), zero


@cache
def mixed(backend: Backend) -> Callable[..., Any]:
    """The gradient by x of ``sum sin(y) exp(c x)``, and its slopes by c, and by y, where x does not move."""

    def gradient(c: Array, y: Array, x: Array) -> Leaves:
        def value(x: Array, c: Array) -> Leaves:
            xp = array_namespace(c)
            return (xp.sum(xp.sin(y) * xp.exp(c * x) + (y - y * c)),)  # y of the scope around it

        (found,), pullback = backend.vjp(value, (x,), (c,))
        return found, *pullback((array_namespace(found).ones_like(found),))

    def fun(c: Array, y: Array, x: Array, v: Array) -> tuple[Array, ...]:
        (_, g), pullback = backend.vjp(gradient, (c, y), (x,))
        zero = array_namespace(c).zeros_like(v[0])
        moved = backend.linearise(gradient, (c, y), (x,))[1]((v, v))
        back = backend.vjp(lambda u: pullback((zero, u)), (v,))[1]  # one cotangent moves, the other does not
        return g, *pullback((zero, v)), *moved, *back((v, v))

    return fun


@check("derivatives", against="closed form")
def derivatives_of_derivatives(target: Target, case: None) -> Iterator[Measured]:
    """A gradient by what does not move has slopes by what does, constants or variables of the scope around it."""
    c, y, x, v = (np.random.default_rng(i).normal(size=3) for i in range(4))
    got = target.compute(mixed(target.backend), c, y, x, v)
    e = np.exp(c * x)
    s, t = np.sin(y), np.cos(y)
    by_c, by_y = (1 + c * x) * e * s * v, c * e * t * v
    moved = np.asarray(np.sum(x * e * s * v + e * t * v + (1 - c) * v - y * v))
    want = c * e * s, by_c, by_y, moved, by_c + by_y, by_c + by_y
    yield from _each("gradient and its slopes", got, want, 100 * target.eps, size(want))


@check("derivatives", against="closed form")
def derivatives_of_an_author(target: Target, case: None) -> Iterator[Measured]:
    """A function whose derivative in reverse somebody wrote has that one, also along a direction."""
    cubes = frameworks.hooks(target.backend).cubes()
    if not cubes:
        raise Inapplicable("the framework has no derivatives that users write")
    x, v = np.array([1.0, -0.5, 2.0]), np.array([0.5, 1.0, -1.0])
    for what, cube in cubes.items():
        got = target.compute(own(target.backend, cube), x, v)
        want = x**3, 3 * x**2 * v, 3 * x**2 * v, 6 * x * v
        yield from _each(what, got, want, 8 * target.eps, size(want))


@cache
def own(backend: Backend, cube: Callable[[Array], Array]) -> Callable[..., Any]:
    """Value, pull-back and push-forward of a function and, where it has one, the derivative of that."""

    def fun(x: Array, v: Array) -> tuple[Array, ...]:
        def once(x: Array) -> Leaves:
            return (cube(x),)

        values, pullback = backend.vjp(once, (x,))
        slopes = backend.vjp(lambda x: backend.vjp(once, (x,))[1]((v,)), (x,))[1]((array_namespace(x).ones_like(x),))
        return *values, *pullback((v,)), *backend.linearise(once, (x,))[1]((v,)), *slopes

    return fun


def square(x: Array) -> Leaves:
    """The squares."""
    return (x * x,)


@check("derivatives", against="definition")
def derivatives_outside_of_a_scope(target: Target, case: None) -> Iterator[Measured]:
    """Values and gradients are plain arrays, which another framework can take; there is a cotangent for each output."""
    with target.scope():
        x = target.send(np.array([1.0, 2.0]))
    (y,), pullback = target.backend.vjp(square, (x,))
    for what, found, want in (("value", y, 1.0), ("gradient", pullback((x,))[0], 2.0)):
        yield Measured(what, target.host(found), want * np.array([1.0, 4.0]))
        yield Measured(f"{what} in no graph", exported(found), True)
    for cotangents in ((), (x, x)):
        try:
            pullback(cotangents)
            raised = False
        except (TypeError, ValueError):
            raised = True
        yield Measured(f"{len(cotangents)} cotangents for an output are refused", raised, True)


@cache
def second_order(backend: Backend) -> Callable[..., Any]:
    """Gradient and Hessian products of ``exp(c x) . x^2``, and slopes of the root of ``y^2 = 1 + x^2`` from a loop."""

    def total(x: Array, c: Array) -> Array:
        xp = array_namespace(x)
        return xp.sum(xp.exp(c * x) * x * x)

    def root(x: Array) -> Array:
        square = 1.0 + x * x

        def better(y: Array) -> Array:
            return 0.5 * (y + square / y)

        if backend.compiled:  # of a loop without a known length no framework has derivatives in reverse
            return reduce(lambda y, _: better(y), range(STEPS), square)
        n = array_namespace(x).zeros((), dtype=x.dtype, device=device(x))
        return backend.while_loop(lambda s: s[1] < STEPS, lambda s: (better(s[0]), s[1] + 1), (square, n))[0]

    def fun(x: Array, c: Array, v: Array) -> tuple[Array, ...]:
        (gradient,), product = hessian_product(backend, total, (x,), (c,))
        slope, at_zero = (directional_derivative(backend, root, y) for y in (x, 0.0 * x))
        return gradient, *product((v,)), *product((2.0 * v,)), slope(v), slope(1e-3 * v), at_zero(v)

    return fun


@check("derivatives", against="closed form")
def second_derivatives(target: Target, case: None) -> Iterator[Measured]:
    """Hessian products and derivatives along a direction, of loops too, are those of the formula, call after call."""
    x, c, v = np.array([0.0, -1.25, -2.0]), np.array([0.5, -1.0, 0.25]), np.array([0.0, -0.75, -1.0])
    got = target.compute(second_order(target.backend), x, c, v)
    e = np.exp(c * x)
    curved = e * (c * c * x * x + 4 * c * x + 2) * v
    slope = x * v / np.sqrt(1 + x * x)
    want = e * (c * x * x + 2 * x), curved, 2 * curved
    yield from _each("gradient and Hessian products", got[:3], want, 30 * target.eps, size(want))
    error = 10 * directional_error(target.backend, target.eps)
    order = 0.6 if isinstance(target.backend, TapedBackend) else 1.0  # of differences, where loops are not recorded
    yield Measured("promise of slopes", error <= 10 * target.eps**order, True)
    yield Measured("slope at zero", got[5], np.zeros(3), error, 1.0)
    yield Measured("slope", got[3], slope, error)
    yield Measured("slope along a thousandth", got[4], 1e-3 * slope, error)
