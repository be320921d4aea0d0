"""Arrays of every framework: they arrive with their values, and results return to the framework of the start."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import numpy as np

from xvarpro import backends
from xvarpro.algorithms import FrankWolfe
from xvarpro.algorithms.steps import OpenLoop
from xvarpro.backends import Backend, adapters, exchange
from xvarpro.core import trees
from xvarpro.core.namespace import device as device_of
from xvarpro.core.namespace import dtype_name
from xvarpro.core.struct import Array, Tree
from xvarpro.core.trees import array_namespace
from xvarpro.driver.evaluate import value_and_gradient
from xvarpro.driver.prepare import prepare
from xvarpro.driver.run import IterationInfo
from xvarpro.driver.transfer import FLOATS
from xvarpro.errors import ExchangeError, ProblemError
from xvarpro.fit.solve import solve
from xvarpro.problem.problem import Problem, separable
from xvarpro_conformance import frameworks
from xvarpro_conformance.runner import usable
from xvarpro_conformance.suite import Inapplicable, Measured, Target, check

Y = np.array([[1.0, -2.0, 0.5], [0.25, 3.0, -1.0]])
START = np.array([[0.5, -1.0, 2.0], [1.5, 0.0, -0.5]])
SHORT = FrankWolfe(step=OpenLoop())  # compiles in the shortest time
DESIGN = np.array([[1.0, 0.25], [-0.5, 2.0]])

# dtypes that a framework may lack; a JAX array is short while the x64 flag is off, as it is in a scope of float32
RARE = ("float16", "bfloat16", exchange.LONGEST, "uint8")
LONG = ("float64", "complex128", "int64")


def owners() -> dict[str, str]:
    """Every framework that there is a backend for."""
    return {name: name for name in backends.known()}


def examples(name: str) -> dict[str, tuple[Array, np.ndarray]]:
    """Every array that a backend offers as an example, plain ones and rare ones, with its values."""
    if name not in usable():
        raise Inapplicable(f"{name} is not installed, or has no device")
    return {what: make() for what, make in frameworks.hooks(backends.get(name)).array_fixtures().items()}


@check("exchange", owners)
def arrays(target: Target, name: str) -> Iterator[Measured]:
    """Every array arrives with its values and dtype, or an error names a remedy; its source is unchanged."""
    for what, (x, values) in examples(name).items():
        for found in _moved(target, backends.get(name), x, values):
            yield replace(found, what=f"{found.what}, {what}")


def _moved(target: Target, owner: Backend, x: Array, values: np.ndarray) -> Iterator[Measured]:
    kind = dtype_name(x)
    if kind != "bfloat16":
        yield Measured("the source on the host", type(owner.to_numpy(x)).__name__, "ndarray")
    with target.scope():
        try:
            y = exchange.move(x, target.backend, device=target.place)
        except ExchangeError as error:
            if kind not in RARE and not (kind in LONG and target.dtype == "float32"):
                raise
            yield Measured("the dtype and a remedy in the error", kind in str(error) and "32" in str(error), True)
        else:
            yield from _arrived(target, y, kind, values)
        if kind in (*FLOATS, *RARE[:3]):
            y = exchange.move(x, target.backend, dtype=target.dtype, device=target.place)
            yield from _arrived(target, y, target.dtype, values.astype(target.dtype))
            if kind == target.dtype:
                yield from _used(target, x, y, values)
        yield Measured("the source afterwards", _values(owner, x), values)


def _used(target: Target, x: Array, y: Array, values: np.ndarray) -> Iterator[Measured]:
    """What has arrived is a constant in a derivative, stays where it is when it is moved again, and is no alias."""
    backend = target.backend
    _, pullback = backend.vjp(lambda t, c: (t * c,), (target.send(np.ones(values.shape)),), (y,))
    (gradient,) = pullback((target.send(np.ones(values.shape)),))
    yield Measured("gradient of a product with it", target.host(gradient), values)
    again = exchange.move(y, backend, device=target.place)
    yield Measured("moved again", exchange.address(again), exchange.address(y))
    yield Measured("a graph of the caller's", exported(y), True)
    if not getattr(getattr(x, "flags", None), "writeable", True) and values.size:
        with suppress(TypeError, ValueError):  # an array that cannot be written to, as its source
            y[...] = 7.0  # type: ignore[index]


def _arrived(target: Target, y: Array, kind: str, values: np.ndarray) -> Iterator[Measured]:
    backend = target.backend
    if kind != "bfloat16":
        host: np.ndarray = backend.to_numpy(y)
        yield Measured("on the host", (type(host).__name__, host.dtype.isnative), ("ndarray", True))
    yield Measured("framework", getattr(backends.of(y), "name", None), backend.name)
    yield Measured("device", str(device_of(y)), str(target.place))
    yield Measured("dtype", dtype_name(y), kind)
    yield Measured("values", _values(backend, y), values)


def _values(backend: Backend, x: Array) -> np.ndarray:
    """Values as NumPy's, of a dtype that NumPy has not got as well."""
    return np.array(exchange.move(x, backends.get("numpy"), dtype=_wide(dtype_name(x))))


def _wide(kind: str) -> str:
    return "float32" if kind in ("bfloat16", "float16") else kind


def exported(x: Array) -> bool:
    """Whether another framework may take an array as it is: one in a graph, or conjugated in name only, is refused."""
    try:
        return x.__dlpack__(max_version=(1, 0)) is not None  # type: ignore[attr-defined]
    except BufferError:
        return False


def total(leaves: list[Array], like: Array) -> Array:
    """The sum of all entries, whatever their dtype and shape, in the dtype of `like`."""
    xp = array_namespace(like)
    parts = [xp.real(x) + xp.imag(x) if trees.is_complex(x) else xp.astype(x, like.dtype) for x in leaves]
    return sum(xp.sum(xp.astype(x, like.dtype)) for x in parts)


def shifted(theta: Tree, data: Tree) -> Array:
    """A design whose entries are the sum of all of theta, and constants that keep its columns apart."""
    leaves = trees.leaves(theta)
    return total(leaves, leaves[0]) / 16.0 + data


@check("exchange", owners)
def results(target: Target, name: str) -> Iterator[Measured]:
    """A solve returns arrays in the framework, device, dtype and shape of theta0, in memory of their own."""
    given, owner = examples(name), backends.get(name)
    problem = separable(shifted, Y, data=DESIGN, lam=0.1)
    start, values = {}, {}
    for what, (x, right) in given.items():
        if dtype_name(x) == target.dtype and right.size:
            start[what], values[what] = x, np.array(right, target.dtype)
        elif dtype_name(x) not in FLOATS:
            yield Measured(f"{what} as a start", _refused_or_doubles(target, problem, x), True)
    if not start:
        return
    with owner.scope(target.dtype):
        fit = solve(
            problem,
            start,
            backend=adapters.uncompiled(target.backend),
            device=target.place,
            algorithm=SHORT,
            max_iter=1,
        )
        want = solve(problem, values, algorithm=SHORT, max_iter=1)
        rounding = 100 * target.eps * fit.verified.condition
        for what, x in start.items():
            theta = fit.theta[what]
            yield Measured(f"framework, {what}", getattr(backends.of(theta), "name", None), name)
            yield Measured(f"device, {what}", str(device_of(theta)), str(device_of(x)))
            yield Measured(f"dtype, {what}", dtype_name(theta), target.dtype)
            yield Measured(f"theta, {what}", _values(owner, theta), want.theta[what], rounding)
            yield Measured(f"outside of any graph, {what}", exported(theta), True)
            yield Measured(f"memory of its own, {what}", exchange.address(theta) != exchange.address(x), True)
            yield Measured(f"the source afterwards, {what}", _values(owner, x), values[what])
        yield Measured("w", _values(owner, fit.w), want.w, rounding)


def _refused_or_doubles(target: Target, problem: Problem, x: Array) -> bool:
    """Whether theta0 is refused for its dtype, or whole numbers are taken as doubles."""
    try:
        found = solve(problem, x, backend=adapters.uncompiled(target.backend), algorithm=SHORT, max_iter=0)
    except ProblemError as error:
        return "float32 or float64" in str(error)
    return "int" in dtype_name(x) and dtype_name(found.theta) == "float64"


def product(theta: Tree, data: Tree) -> Array:
    """A design that is the parameter, scaled by the sum of the data."""
    (leaf,) = trees.leaves(theta)
    return leaf * (1.0 + total([x for x in trees.leaves(data) if trees.is_array(x)], leaf) / 64.0)


@check("exchange", owners)
def data(target: Target, name: str) -> Iterator[Measured]:
    """Data of any framework, dtype and layout gives the objective that the same numbers give on NumPy."""
    given = examples(name)
    long = {exchange.LONGEST, "int64"} if target.dtype == "float32" else {exchange.LONGEST}
    kept, right = {}, {}
    for what, (x, values) in given.items():
        if dtype_name(x) not in long:
            kept[what] = x
            right[what] = values.astype(np.complex128 if np.iscomplexobj(values) else np.float64)
    with target.scope():
        value, gradient = value_and_gradient(separable(product, Y, data=kept, lam=0.1), target.send(START))
        value, gradient = target.host(value), target.host(gradient)
    want, slope = value_and_gradient(separable(product, Y, data=right, lam=0.1), START)
    yield Measured("objective", value, want, 1e3 * target.eps)
    yield Measured("gradient", gradient, slope, 1e3 * target.eps)
    for what, (x, values) in given.items():
        yield Measured(f"the source afterwards, {what}", _values(backends.get(name), x), values)


@check("exchange")
def mixtures(target: Target, case: None) -> Iterator[Measured]:
    """theta0 and data may come from different frameworks; a callback receives arrays of theta0's framework."""
    here = [backends.get(name) for name in usable()]
    pieces = {backend.name: np.full((2,), 1.0 + i) for i, backend in enumerate(here)}
    data = {b.name: exchange.move(pieces[b.name].astype(np.float32), b, dtype="float32") for b in here}
    want = solve(separable(product, Y, data=pieces, lam=0.1), START, algorithm=SHORT, max_iter=3)
    for owner in here:
        with owner.scope(target.dtype):
            seen: list[str] = []

            def look(moment: IterationInfo, seen: list[str] = seen) -> None:
                seen.append(getattr(backends.of(moment.theta["a"]), "name", ""))

            theta0 = {"a": exchange.move(START.astype(target.dtype), owner)}
            problem = separable(product, Y, data=data, lam=0.1)
            fit = solve(
                problem, theta0, backend=target.backend, device=target.place, algorithm=SHORT, max_iter=3, callback=look
            )
            yield Measured(f"theta of {owner.name}", _values(owner, fit.theta["a"]), want.theta, 1e3 * target.eps)
            yield Measured(f"what a callback sees from {owner.name}", set(seen), {owner.name})


@check("exchange")
def copies(target: Target, case: None) -> Iterator[Measured]:
    """A start is copied: later changes of the caller's do not reach a solve."""
    with target.scope():
        start = target.send(START)
        found = prepare(separable(product, Y, lam=0.1), start).theta[0]
        place = exchange.address(start)
    yield Measured("a start that is shared", place is not None and exchange.address(found) == place, False)


@check("exchange")
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
