"""Pull-backs, push-forwards and second derivatives of what models are made of, against differences."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, reduce
from itertools import pairwise
from typing import Any, cast

import numpy as np

from xvarpro import special
from xvarpro.backends import Backend
from xvarpro.backends import get as backend_of_name
from xvarpro.backends.adapters import TapedBackend
from xvarpro.backends.calculus import directional_derivative, directional_error, hessian_product
from xvarpro.backends.special import evaluate
from xvarpro.core.namespace import device, namespace_of
from xvarpro.core.struct import Array, Leaves
from xvarpro.core.trees import array_namespace, dot
from xvarpro.errors import BackendNotInstalledError
from xvarpro_conformance.checks.exchange import exported
from xvarpro_conformance.problems import held, normal
from xvarpro_conformance.suite import Inapplicable, Measured, Target, alternate, check

STEPS = 8  # of Newton's method for a square root
# of tangents of length 1, in differences of the fourth order. Arguments are 1/2 away from where a function has no
# derivative: there H^4/30 times the fifth of 1/x is 2e-10 and H^4/90 times the sixth 9e-10, and rounding 8 eps/H^2
H = 2.0**-10
DIFFERENCES, SECOND_DIFFERENCES = 1e-9, 1e-7
# roundings of a decomposition, which divides by differences of what it finds, and of what is a few operations long
ROUNDINGS = 300.0

# -- what models are made of -------------------------------------------------------------------------------------------


def elementwise(xp: Any, x: Array, y: Array) -> tuple[Array, ...]:
    """Functions of one entry and of two."""
    return xp.exp(-x * y) + xp.tanh(x) / y, xp.sqrt(y) * xp.log(y), y**3.0 - xp.sin(x) * xp.cos(y)


def products(xp: Any, A: Array, b: Array, C: Array) -> tuple[Array, ...]:
    """Of a stack and a matrix, of vectors, over several axes."""
    return A @ C, A[0, ...] @ b, xp.vecdot(b, b), xp.tensordot(A, C, axes=((2,), (0,))), xp.matrix_transpose(C) @ b


def systems(xp: Any, A: Array, B: Array) -> tuple[Array, ...]:
    """Of equations, and their factor."""
    eye = A @ xp.linalg.inv(A)
    S = xp.conj(xp.matrix_transpose(A)) @ A + eye if _is_complex(xp, A) else xp.matrix_transpose(A) @ A + eye
    return xp.linalg.solve(A, B), xp.linalg.inv(A), xp.linalg.cholesky(S)


def by_qr(xp: Any, A: Array, B: Array) -> tuple[Array, ...]:
    """An orthonormal basis and a triangle."""
    Q, R = xp.linalg.qr(B)
    return Q, R


def by_svd(xp: Any, A: Array, B: Array) -> tuple[Array, ...]:
    """Singular values, and what is made of vectors whose phases are free."""
    U, s, Vh = xp.linalg.svd(B, full_matrices=False)
    return s, (U * xp.astype(s * s, B.dtype)) @ Vh


def by_eigh(xp: Any, A: Array, B: Array) -> tuple[Array, ...]:
    """Eigenvalues, and sizes of the entries of vectors."""
    values, vectors = xp.linalg.eigh(A + xp.matrix_transpose(xp.conj(A) if _is_complex(xp, A) else A))
    return values, xp.abs(vectors) ** 2


def fourier(xp: Any, x: Array, z: Array) -> tuple[Array, ...]:
    """Transforms of real and complex arrays, and a convolution."""
    half = xp.fft.rfft(x, axis=1)
    return half, xp.fft.fft(z), xp.fft.ifft(z, axis=0), xp.fft.irfft(half * half, n=4, axis=1), xp.fft.fftn(z * z)


def complex_products(xp: Any, z: Array, w: Array) -> tuple[Array, ...]:
    """Products, conjugates, moduli and parts."""
    turned = xp.exp(z) * xp.conj(w) / (w + 3.0)
    return turned, z @ xp.matrix_transpose(w), xp.abs(z), xp.real(z * w), xp.imag(z * z), xp.vecdot(z, w), z**2


def _is_complex(xp: Any, x: Array) -> bool:
    return bool(xp.isdtype(x.dtype, "complex floating"))


@dataclass(frozen=True, eq=False)
class Draw:
    """A function at its arguments; cotangents `u` of its outputs, tangents `v` of its arguments.

    `turn` are the precisions in which it is compiled where that takes seconds.
    """

    fun: Callable[..., tuple[Array, ...]]
    args: tuple[np.ndarray, ...]
    turn: tuple[str, ...]

    @cached_property
    def v(self) -> tuple[np.ndarray, ...]:
        drawn = _normal(self.args, 3)
        return tuple(held(v / size(drawn)) for v in drawn)

    @cached_property
    def u(self) -> tuple[np.ndarray, ...]:
        return _normal(self.values[0], 2)

    @cached_property
    def values(self) -> list[tuple[np.ndarray, ...]]:
        """At the arguments, and one and two steps ahead of and behind them, on NumPy."""
        xp, fun = backend_of_name("numpy").xp, cast("Callable[..., tuple[np.ndarray, ...]]", self.fun)
        moved = ([a + t * H * v for a, v in zip(self.args, self.v, strict=True)] for t in (0, 1, -1, 2, -2))
        return [fun(xp, *args) for args in moved]

    @cached_property
    def pushed(self) -> tuple[np.ndarray, ...]:
        """Slopes along `v`: a wrong derivative is wrong along almost every direction."""
        return tuple((8 * (a - b) - (c - d)) / (12 * H) for _, a, b, c, d in zip(*self.values, strict=True))

    @cached_property
    def curvature(self) -> float:
        """The second derivative of ``<u, outputs>`` along `v`."""
        bent = ((16 * (a + b) - (c + d) - 30 * y) / (12 * H * H) for y, a, b, c, d in zip(*self.values, strict=True))
        return float(dot(self.u, tuple(bent)))


@cache
def cases() -> dict[str, Draw]:
    """Functions at real arguments, and at complex ones, decompositions of which compile for seconds."""
    x, y, A, B, z, w, K, L = _arguments()
    real: dict[Callable[..., tuple[Array, ...]], tuple[np.ndarray, ...]] = {
        elementwise: (x, y), products: (np.stack([x, y]), y[0], x.T), systems: (A, B), by_qr: (A, B), by_svd: (A, B),
        by_eigh: (A, B), fourier: (x, z), complex_products: (z, w),
    }  # fmt: skip
    found = {_named(fun): Draw(fun, args, alternate(i)) for i, (fun, args) in enumerate(real.items())}
    of_complex = {f"{_named(fun)}, complex": Draw(fun, (K, L), ()) for fun in (systems, by_qr, by_svd, by_eigh)}
    return found | of_complex


def _named(fun: Callable[..., Any]) -> str:
    return fun.__name__.replace("_", " ")


def _arguments() -> tuple[np.ndarray, ...]:
    """Positive where it is called y, far from ties and kinks, and every precision holds them exactly."""
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(3, 4)), rng.uniform(0.5, 2.0, size=(3, 4))
    A, B = (3 * np.diag([1.0, 1.5, 2.0, 2.5])[:, :n] + 0.25 * rng.normal(size=(4, n)) for n in (4, 3))
    z, w = (a + 1j * rng.uniform(0.5, 1.5, size=a.shape) for a in (x, y))
    K, L = (a + 0.25j * rng.normal(size=a.shape) for a in (A, B))
    return tuple(held(a) for a in (x, y, A, B, z, w, K, L))


def _normal(xs: Sequence[np.ndarray], seed: int) -> tuple[np.ndarray, ...]:
    return tuple(held(normal(np.shape(x), np.iscomplexobj(x), 10 * seed + i)) for i, x in enumerate(xs))


@cache
def called(function: Callable[..., tuple[Array, ...]]) -> Callable[..., tuple[Array, ...]]:
    """A function as one of arrays alone."""
    return lambda *xs: function(array_namespace(*xs), *xs)


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
            return dot(arrays[len(args) :], outputs(*arrays[: len(args)]))

        return hessian_product(backend, total, args, u)[1](v)

    return fun


@check("derivatives", cases)
def functions(target: Target, draw: Draw) -> Iterator[Measured]:
    """Values, gradients dL/dRe + i dL/dIm, push-forwards and Hessian products are those of NumPy's differences."""
    if draw.fun is fourier and not hasattr(target.backend.xp, "fft"):
        raise Inapplicable("the namespace has no Fourier transforms, which the standard allows")
    target.represent(draw.turn)
    given, fun, eps = (draw.args, draw.u, draw.v), called(draw.fun), ROUNDINGS * target.eps
    got, dtypes = target.typed(derived(target.backend, fun), *given)
    ends = np.cumsum((0, len(draw.u), len(draw.args), len(draw.u)))
    values, pulled, pushed = (slice(a, b) for a, b in pairwise(ends))
    floats, sent = {"f": target.dtype, "c": target.complex_dtype}, size(draw.u)
    yield Measured("dtypes of gradients", dtypes[pulled], tuple(floats[a.dtype.kind] for a in draw.args))
    yield Measured("shapes of gradients", [g.shape for g in got[pulled]], [a.shape for a in draw.args])
    yield from _each("value", got[values], draw.values[0], eps, max(size(draw.values[0]), sent))
    slopes, curves = eps + DIFFERENCES, 10 * eps + SECOND_DIFFERENCES
    yield from _each("push-forward", got[pushed], draw.pushed, slopes, max(size(draw.pushed), sent))
    along, scale = dot(got[pulled], draw.v), max(size(got[pulled]), sent) * size(draw.v)
    yield Measured("gradient along a direction", along, dot(draw.u, draw.pushed), slopes, scale)
    if not target.backend.compiled or target.thorough:
        product = target.compute(curved(target.backend, fun), *given)
        scale = max(size(product), sent) * size(draw.v)
        yield Measured("Hessian along a direction", dot(product, draw.v), draw.curvature, curves, scale)


def _each(
    what: str, got: Sequence[np.ndarray], want: Sequence[np.ndarray], tolerance: float, scale: float
) -> Iterator[Measured]:
    for i, (x, y) in enumerate(zip(got, want, strict=True)):
        yield Measured(f"{what}, {i}", x, y, tolerance, scale)


def size(xs: tuple[np.ndarray, ...]) -> float:
    """Norm of several arrays together."""
    return float(np.sqrt(sum(np.linalg.norm(x) ** 2 for x in xs)))


def of_some(x: Array, Z: Array, c: Array) -> tuple[Array, ...]:
    """Outputs of a constant alone before and after one of an argument; the other argument is not used."""
    xp = array_namespace(x)
    return c * 2.0, xp.sin(x) * c, xp.ones_like(c)


def of_none(x: Array, Z: Array, c: Array) -> tuple[Array, ...]:
    """One that depends on a constant alone."""
    return (c * 1.0,)


EDGES = {"several outputs and constants": of_some, "a constant": of_none}


@check("derivatives", lambda: EDGES)
def edges(target: Target, function: Callable[..., tuple[Array, ...]]) -> Iterator[Measured]:
    """The gradient of an argument that is not used is zero, in its shape; constants are not differentiated."""
    rng = np.random.default_rng(0)
    x, Z, c, dx, dZ = (rng.normal(size=shape) for shape in ((3,), (4, 3), (3,), (3,), (4, 3)))
    u = tuple(rng.normal(size=y.shape) for y in function(x, Z, c))
    given = ((x, Z), (c,), u, (dx, dZ))
    got = target.compute(both(target.backend, function), *given)
    slope, zero = np.cos(x) * c, 0 * c
    want = (slope * u[1], 0 * Z, zero, slope * dx, zero) if function is of_some else (zero, 0 * Z, zero)
    twice = target.compute(both(target.backend, function, again=True), *given)
    yield from _each("gradients and push-forwards", got, want, 100 * target.eps, size(want) or 1.0)
    yield from _each("those of a second call", twice, tuple(2.0 * y for y in want), 100 * target.eps, size(want) or 1.0)


@cache
def both(backend: Backend, function: Callable[..., tuple[Array, ...]], again: bool = False) -> Callable[..., Any]:
    """Gradients and push-forwards; with `again` those of twice the argument, after a first call of the same maps."""

    def fun(primals: Leaves, constants: Leaves, u: Leaves, v: Leaves) -> tuple[Array, ...]:
        _, pullback = backend.vjp(function, primals, constants)
        linear = backend.linearise(function, primals, constants)[1]
        found = *pullback(u), *linear(v)
        return (*pullback(tuple(2.0 * x for x in u)), *linear(tuple(2.0 * x for x in v))) if again else found

    return fun


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


@check("derivatives")
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


@check("derivatives")
def derivatives_outside_of_a_scope(target: Target, case: None) -> Iterator[Measured]:
    """Values and gradients are plain arrays, which another framework can take; there is a cotangent for each output."""
    with target.scope():
        x = target.send(np.array([1.0, 2.0]))
    (y,), pullback = target.backend.vjp(lambda x: (x * x,), (x,))
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


@check("derivatives")
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


# -- functions that the standard lacks: values and derivatives against 40 digits ---------------------------------------


ENTIRE = np.concatenate([np.linspace(-3.0, 6.0, 21), [1.999, 2.0, 2.001, 9.0]])
POINTS = {"erf": ENTIRE, "erfc": ENTIRE, "erfcx": np.append(ENTIRE, 400.0), "gammaln": np.logspace(-2, 2, 23)}
# in eps, by the order of the derivative: what the functions promise
LIMITS = {"erf": (3, 3, 3, 3, 3), "erfc": (3, 3, 3, 3, 3), "erfcx": (3, 30, 200, 1000, 4000), "gammaln": (20,) * 5}


@cache
def exact(name: str) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
    """Value and four derivatives at the points, and what an error of each of them is relative to."""
    import mpmath as mp

    functions = {"erf": mp.erf, "erfc": mp.erfc, "erfcx": lambda x: mp.exp(x * x) * mp.erfc(x), "gammaln": mp.loggamma}
    x = held(POINTS[name])
    with mp.workdps(40):
        found = [np.array([float(mp.diff(functions[name], mp.mpf(float(t)), n)) for t in x]) for n in range(5)]
    # the condition of exp(x^2), and the zeros that the functions and their derivatives have
    sizes = {
        "erf": lambda y: (np.abs(y) + np.exp(-x * x)) * (1 + x * x),
        "erfc": lambda y: (np.abs(y) + np.exp(-x * x)) * (1 + x * x),
        "erfcx": lambda y: np.abs(y) * (1 + np.where(x < 0, x * x, 0)),
        "gammaln": lambda y: np.maximum(np.abs(y), 1),
    }
    return tuple(found), np.array([sizes[name](y) for y in found])


@cache
def computed(backend: Backend, name: str) -> Callable[[Array], tuple[Array, ...]]:
    """Value and derivatives, two by a Hessian: functions act on each entry alone, so that it is its diagonal."""

    def values(x: Array) -> tuple[Array, ...]:
        xp, function = namespace_of(x), getattr(special, name)
        gradient, product = hessian_product(backend, lambda t: namespace_of(t).sum(function(t)), (x,))
        return function(x), gradient[0], product((xp.ones_like(x),))[0], evaluate(x, name, 3), evaluate(x, name, 4)

    return values


@check("derivatives", lambda: {name: name for name in POINTS})
def special_functions(target: Target, name: str) -> Iterator[Measured]:
    """Every function of `xv.special` and its first four derivatives are within the digits that it promises."""
    try:
        found: Any = target.typed(computed(target.backend, name), held(POINTS[name]))
    except BackendNotInstalledError as error:
        raise Inapplicable(str(error)) from error
    wanted, sizes = exact(name)
    yield Measured("dtypes", set(found.dtypes), {target.dtype})
    for order, (got, want, size) in enumerate(zip(found.values, wanted, sizes, strict=True)):
        # of the entry that is furthest off, for each has digits of its own
        worst = np.argmax(np.abs(got - want) / size)
        tolerance = LIMITS[name][order] * target.eps
        yield Measured(f"derivative {order}", got[worst], want[worst], tolerance, float(size[worst]))
