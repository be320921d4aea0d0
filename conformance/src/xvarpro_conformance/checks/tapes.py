"""The package's own tape, for backends whose framework has no derivatives: what it records, drops and refuses."""

from __future__ import annotations

import gc
import operator
import weakref
from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np

from xvarpro.backends import TapedBackend
from xvarpro.core.namespace import device
from xvarpro.core.struct import Array
from xvarpro_conformance.suite import Inapplicable, Measured, Target, check

X = np.array([0.5, -1.5, 2.0])
Traced = Any  # what a function sees in the place of an array


def _taped(target: Target) -> TapedBackend:
    if not isinstance(target.backend, TapedBackend):
        raise Inapplicable("the framework has derivatives of its own")
    return target.backend


def _raised(run: Callable[[], object]) -> str:
    """The classes of what is raised, and its words."""
    try:
        run()
    except Exception as error:  # any: which one it is gets compared
        return f"{' '.join(kind.__name__ for kind in type(error).__mro__)}: {error}"
    return "nothing"


def _matrix(x: Traced, xp: Any) -> Traced:
    return xp.stack([x, x * x], axis=1)


# what a function of the traced array and its namespace does; the error; words of the remedy
REFUSED: dict[str, tuple[Callable[[Traced, Any], object], str, str]] = {
    "bool": (lambda x, xp: bool(x[0] > 0), "TypeError", "bool() of a traced array would cut its gradient"),
    "float": (lambda x, xp: float(x[0]), "TypeError", "keep it an array"),
    "int": (lambda x, xp: int(x[0]), "TypeError", "keep it an array"),
    "complex": (lambda x, xp: complex(x[0]), "TypeError", "keep it an array"),
    "index": (lambda x, xp: operator.index(x[0]), "TypeError", "xp.take"),
    "an array of NumPy": (lambda x, xp: np.asarray(x), "TypeError", "call functions of xp"),
    "an assignment": (lambda x, xp: operator.setitem(x, 0, 1.0), "TypeError", "xp.where"),
    "a method": (lambda x, xp: x.sum(), "AttributeError", "xp.sum(x)"),
    "T of a vector": (lambda x, xp: x.T, "ValueError", "x.mT"),
    "len of a number": (lambda x, xp: len(x[0]), "TypeError", "without axes"),
    "a function without a rule": (lambda x, xp: xp.unique_values(x), "AttributeError", "rule for 'unique_values'."),
    "of an extension": (lambda x, xp: xp.linalg.none_such(x), "AttributeError", "rule for 'linalg.none_such'."),
    "a list of traced arrays": (lambda x, xp: xp.asarray([x[0], x[1]]), "TypeError", "xp.stack"),
    "lists of them": (lambda x, xp: xp.asarray([[1.0], (x[1],)]), "TypeError", "xp.stack"),
    "numbers from a traced array": (lambda x, xp: xp.arange(x[0]), "NoRuleError", "'arange' of a traced array"),
    "the same by keyword": (lambda x, xp: xp.linspace(0.0, stop=x[0], num=3), "NoRuleError", "of a traced array"),
    "another device": (lambda x, xp: xp.asarray(x, device="another"), "NoRuleError", "to another"),
    "a key with a list": (lambda x, xp: x[[0, 1]], "TypeError", "integers, slices"),
    "take at a matrix": (lambda x, xp: xp.take(x, xp.asarray([[0]]), axis=0), "ValueError", "x[indices]"),
    "take without an axis": (lambda x, xp: xp.take(_matrix(x, xp), xp.asarray([0])), "ValueError", "needs an axis"),
    "a complete QR": (lambda x, xp: xp.linalg.qr(_matrix(x, xp), mode="complete"), "NoRuleError", "mode='reduced'"),
    "a full SVD": (lambda x, xp: xp.linalg.svd(_matrix(x, xp)), "NoRuleError", "full_matrices=True"),
    "of a stack": (lambda x, xp: xp.linalg.svd(xp.stack([_matrix(x, xp)] * 2)), "NoRuleError", "full_matrices=True"),
    "an unknown norm": (lambda x, xp: xp.linalg.matrix_norm(_matrix(x, xp), ord=3), "NoRuleError", "ord=3"),
    "a number as a result": (lambda x, xp: 1.0, "TypeError", "expected an array, got float"),
}


@check("derivatives", lambda: REFUSED, against="definition")
def refused_by_the_tape(target: Target, case: tuple[Callable[[Traced, Any], object], str, str]) -> Iterator[Measured]:
    """What would cut a gradient, or has no rule, raises an error that says what to write instead."""
    backend, (function, kind, words) = _taped(target), case
    with target.scope():
        raised = _raised(
            lambda: backend.vjp(lambda x: (function(x, x.__array_namespace__()),), (target.send(X),))  # type: ignore
        )
    yield Measured("error", kind in raised.partition(":")[0].split(), True)
    yield Measured("its words", words in raised or raised, True)


@check("derivatives", against="definition")
def arguments_of_a_tape(target: Target, case: None) -> Iterator[Measured]:
    """Cotangents have number, shape and dtype of the outputs, and arguments are floating; arrays of two tapes part."""
    backend = _taped(target)
    other = {"float32": "float64", "float64": "float32"}[target.dtype]
    with target.scope():
        x = target.send(X)
        short = target.backend.asarray(X, dtype=other, device=target.place)
        pull = backend.vjp(lambda x: (x * x, 2.0 * x), (x,))[1]
        whole, number = target.send(np.arange(3)), cast(Array, 1.0)
        for what, run, words in (
            ("one cotangent", lambda: pull((x,)), "ValueError 2 outputs, got 1"),
            ("a number", lambda: pull((x, number)), "TypeError must be an array, got float"),
            ("another shape", lambda: pull((x, x[:2])), "ValueError output, (3,), got (2,)"),
            ("another dtype", lambda: pull((short, x)), f"TypeError {target.dtype}"),
            ("integers", lambda: backend.vjp(lambda x: (x,), (whole,)), "TypeError floating-point arrays"),
            ("two tapes", lambda: backend.vjp(lambda z: backend.vjp(lambda y: (y * z,), (x,))[0], (x,)), "TypeError "),
        ):
            raised, (kind, _, said) = _raised(run), words.partition(" ")
            yield Measured(f"{what}: error", kind in raised.partition(":")[0].split(), True)
            yield Measured(f"{what}: its words", said in raised or raised, True)


def _questions(x: Traced) -> tuple[object, ...]:
    return tuple(x.shape), x.ndim, x.size, len(x), len(list(x)), str(x.dtype), str(x.device)


@check("derivatives", against="closed form")
def arrays_of_a_tape(target: Target, case: None) -> Iterator[Measured]:
    """A traced array answers as its value does, and arrays that are made of it have their gradient."""
    backend, other = _taped(target), {"float32": "float64", "float64": "float32"}[target.dtype]
    answers: list[object] = []

    def made(x: Traced) -> tuple[Traced, ...]:
        xp, first = x.__array_namespace__(), x[0]
        answers[:] = [*_questions(x), str(xp.finfo(x.dtype).eps), xp.result_type(x, first) == x.dtype]
        kind, here = getattr(xp, other), {"dtype": x.dtype, "device": x.device}
        return (
            xp.asarray(x, dtype=kind), xp.asarray(x), xp.asarray([3.0, 4.0], **here),
            xp.full((2,), first, dtype=x.dtype), xp.full(2, first), xp.full((2, 1), 3.0, **here),
            xp.full_like(x, first), xp.full_like(x, 2.0), xp.full_like(x, 2.0, dtype=kind),
            xp.full_like(x, 2.0, **here), xp.unstack(xp.asarray([3.0, 4.0], **here))[1],
            xp.expand_dims(x, axis=0).T, xp.expand_dims(x, axis=0).mT,
        )  # fmt: skip

    first, ones = X[0], np.ones(3)
    want = (X, X, np.array([3.0, 4.0]), np.full(2, first), np.full(2, first), np.full((2, 1), 3.0), first * ones,
            2 * ones, 2 * ones, 2 * ones, np.array(4.0), X[:, None], X[:, None])  # fmt: skip
    with target.scope():
        x = target.send(X)
        values, pull = backend.vjp(made, (x,))
        floats = [other if i in (0, 8) else target.dtype for i in range(len(want))]
        (gradient,) = pull(tuple(backend.xp.ones_like(y) for y in values))
        plain = ((3,), 1, 3, 3, 3, str(x.dtype), str(device(x)), str(backend.xp.finfo(x.dtype).eps), True)
        yield Measured("answers", tuple(answers), plain)
        for i, (y, right) in enumerate(zip(values, want, strict=True)):
            yield Measured(f"array {i}", target.host(y), right)
            yield Measured(f"dtype {i}", str(y.dtype).rpartition(".")[2], floats[i])
            yield Measured(f"device {i}", str(device(y)), str(device(x)))
        yield Measured("gradient", target.host(gradient), np.array([4.0 + 2 + 2 + 3, 4.0, 4.0]))
        for kind in (tuple, list):
            found = backend.vjp(lambda x, kind=kind: kind([x, x]), (x,))[0]
            yield Measured(f"results in a {kind.__name__}", type(found).__name__, kind.__name__)
        alone: tuple[Any, Any] = backend.vjp(lambda x: x * x, (x,))
        yield Measured("a result alone", target.host(alone[0]), X * X)
        yield Measured("its gradient", target.host(alone[1](x)[0]), 2 * X * X)


@check("derivatives", against="definition")
def memory_of_a_tape(target: Target, case: None) -> Iterator[Measured]:
    """What no derivative reads is dropped at once, and all else with the pull-back, without a cycle to collect."""
    backend = _taped(target)
    kept: dict[str, Any] = {}

    def fun(x: Traced, c: Traced) -> tuple[Traced, ...]:
        xp = x.__array_namespace__()
        summed = x + c
        through = xp.tanh(summed)
        doubled = xp.reshape(through * 2.0, (3, 1))
        root = xp.sqrt(doubled * doubled + 1.0)
        factor = xp.exp(root)
        sine = xp.sin(factor)
        for name, array in {
            "sum": summed, "tanh": through, "double": doubled, "root": root, "exponential": factor, "sine": sine,
        }.items():  # fmt: skip
            kept[name] = weakref.ref(array.value)
        w, V = xp.linalg.eigh(xp.eye(3, dtype=x.dtype, device=x.device) * x)
        kept["vectors"], kept["tape"], kept["array"] = weakref.ref(V.value), weakref.ref(x.tape), weakref.ref(w)
        return xp.sum(sine), xp.sum(V * w)

    def alive() -> dict[str, bool]:
        return {name: reference() is not None for name, reference in kept.items()}

    collecting = gc.isenabled()
    gc.disable()
    try:
        with target.scope():
            x: Array = target.send(X)
            values, pull = backend.vjp(fun, (x,), (x,))
            held = alive()
            pull(tuple(backend.xp.ones_like(y) for y in values))
            del pull, values
            left = alive()
    finally:
        if collecting:
            gc.enable()
    read = {"tanh", "double", "root", "exponential", "vectors", "tape"}
    yield Measured("while the pull-back is there", {name for name, is_there in held.items() if is_there}, read)
    yield Measured("afterwards", {name for name, is_there in left.items() if is_there}, set())


@check("derivatives", lambda: {"real": False, "complex": True}, against="definition")
def scattered_sums(target: Target, is_complex: bool) -> Iterator[Measured]:
    """Sums at places that come again and again add up, and what they are added to stays as it is."""
    backend = _taped(target)
    for shape, count in (((0,), 0), ((5,), 0), ((1,), 3), ((5,), 12), ((3000,), 9000), ((5, 3), 12)):
        rng = np.random.default_rng(1)
        x, v = (rng.integers(-9, 9, size=s) * (1.0 + 2j if is_complex else 1.0) for s in (shape, (count, *shape[1:])))
        places = rng.integers(0, max(1, shape[0]), size=count)
        want = x.tolist()
        for place, term in zip(places.tolist(), v.tolist(), strict=True):
            want[place] = [a + b for a, b in zip(want[place], term, strict=True)] if shape[1:] else want[place] + term
        with target.scope():
            given = [target.send(a) for a in (x, places, v)]
            got = target.host(backend.index_add(*given))
            after = [target.host(a) for a in given]
        yield Measured(f"sums of {count} in {shape}", got, np.array(want, got.dtype).reshape(shape))
        for what, a, b in zip(("terms", "places", "values"), (x, places, v), after, strict=True):
            yield Measured(f"the {what} given, {count} in {shape}", b, a)
