"""Precision inside, and nothing changed outside: settings, generators, graphs of the caller's."""

from __future__ import annotations

import math
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from typing import Any

import numpy as np

from xvarpro import backends
from xvarpro.backends import adapters
from xvarpro.core.namespace import device
from xvarpro.core.struct import Array
from xvarpro.core.trees import array_namespace
from xvarpro.driver.evaluate import value_and_gradient
from xvarpro.errors import ProblemError, UnsupportedError
from xvarpro.fit.solve import solve
from xvarpro.problem.problem import separable
from xvarpro_conformance import frameworks
from xvarpro_conformance.checks.exchange import START, Y
from xvarpro_conformance.runner import usable
from xvarpro_conformance.suite import Inapplicable, Measured, Target, alternate, check

TINY = 2.0**-40  # lost next to 1 in single precision
SIZE = 64


def beyond_single(x: Array) -> tuple[Array, ...]:
    """What is left of a number that single precision loses, after functions, creation, products and numbers."""
    xp = array_namespace(x)
    here: Any = {"dtype": x.dtype, "device": device(x)}
    one, eye = xp.ones((2, 2), **here), xp.eye(2, **here)
    return (
        (1.0 + x) - 1.0,
        xp.expm1(x),
        (one + x) @ eye - one,
        xp.sum(xp.stack([xp.ones_like(x), x, -xp.ones_like(x)])),
        xp.astype(xp.asarray(1, dtype=xp.int64, device=device(x)), x.dtype) + x - 1.0,
        xp.asarray(1.0 + TINY, **here) - 1.0,
        xp.linspace(0.0, TINY, 2, **here)[1] + 1.0 - 1.0,
    )


@check("numerics scope", dtypes=("float64",))
def double_is_double(target: Target, case: None) -> Iterator[Measured]:
    """Arithmetic, products, sums and new arrays keep all digits of float64, compiled or not."""
    x = np.array(TINY)
    got, kinds = target.typed(beyond_single, x)
    with target.scope():
        alone = tuple(target.host(y) for y in beyond_single(target.send(x)))
    yield Measured("dtypes", set(kinds), {"float64"})
    want = [np.broadcast_to(x, y.shape) for y in got]
    want[1] = np.expm1(x)
    for how, found in (("compiled", got), ("one by one", alone)):
        for i, (y, right) in enumerate(zip(found, want, strict=True)):
            yield Measured(f"result {i}, {how}", y, right, 4 * target.eps)


def products(A: Array, B: Array) -> tuple[Array, ...]:
    """The products that designs are made of."""
    xp = array_namespace(A)
    return A @ B, xp.tensordot(A, B, axes=1), xp.matmul(xp.stack([A, A]), B), xp.matrix_transpose(A) @ A


@check("numerics scope")
def products_at_full_precision(target: Target, case: None) -> Iterator[Measured]:
    """A product with the identity keeps every bit of the mantissa: no shorter format is used in between."""
    rng = np.random.default_rng(0)
    A, eye = rng.uniform(1.0, 2.0, (SIZE, SIZE)), np.eye(SIZE)
    held = target.held(A)
    got, kinds = target.typed(products, A, eye)
    yield Measured("dtypes", set(kinds), {target.dtype})
    for what, x in zip(("A I", "tensordot(A, I)"), got, strict=False):
        yield Measured(what, x, held)
    yield Measured("two A I", got[2], np.stack([held, held]))
    exact = held.T.astype(np.longdouble) @ held.astype(np.longdouble)
    yield Measured("A^T A", got[3], exact.astype(np.float64), 8 * math.sqrt(SIZE) * target.eps)


def states() -> dict[str, dict[str, Any]]:
    """Settings of every framework that is here, by name."""
    return {name: frameworks.hooks(backends.get(name)).settings() for name in usable()}


class Interruption(Exception):  # noqa: N818 - what a user's own code may raise
    """Raised inside, to see that a scope gives back what it took."""


def fails(theta: Array, data: object) -> Array:
    """A model that is interrupted."""
    raise Interruption


def _scopes(target: Target) -> None:
    with target.scope(), target.backend.scope("float64"), target.backend.scope("float32"):
        x = target.send(START)
        target.backend.vjp(lambda x: (x * x,), (x,))[1]((x,))
        target.backend.linearise(lambda x: (x * x,), (x,))[1]((x,))
        target.send(np.ones(2)) / target.send(np.zeros(2))
        raise Interruption


def _solve(target: Target) -> None:
    problem = separable(squares, Y, lam=0.1)
    solve(problem, START, backend=target.backend, device=target.place, dtype=target.dtype, max_iter=2)


def _interrupted(target: Target) -> None:
    with target.scope():
        value_and_gradient(separable(fails, Y), target.send(START))


ACTIONS: dict[str, tuple[Callable[[Target], None], str]] = {
    "an error in scopes in scopes": (_scopes, "Interruption"),
    "a solve": (_solve, ""),
    "a model that raises": (_interrupted, "ModelError"),
}


@check("numerics scope", lambda: ACTIONS)
def settings(target: Target, case: tuple[Callable[[Target], None], str]) -> Iterator[Measured]:
    """A scope restores every setting and random generator of every framework, also after an error."""
    (action, raises), before, raised = case, states(), ""
    try:
        action(target)
    except Exception as error:  # the model's own comes back as a ModelError
        raised = type(error).__name__
    yield Measured("raised", raised, raises)
    after = states()
    for name, settings in before.items():
        for what, value in settings.items():
            yield Measured(f"{what} of {name}", after[name][what], value)


def modes() -> dict[str, tuple[str, str, int]]:
    """What callers may have switched on, by framework."""
    there = {name: frameworks.hooks(backends.get(name)).modes() for name in usable()}
    return {f"{name}, {mode}": (name, mode, i) for name, found in there.items() for i, mode in enumerate(found)}


def squares(theta: Array, data: object) -> Array:
    """A design of the squares of the parameters."""
    return theta * theta


@check("numerics scope", modes)
def modes_of_the_caller(target: Target, case: tuple[str, str, int]) -> Iterator[Measured]:
    """Values, gradients and solves inside a caller's own mode are right, and the mode is on afterwards as before."""
    name, mode, position = case
    if name != target.backend.name:
        raise Inapplicable(f"a mode of {name}'s")
    target.represent(alternate(position + 1))
    problem, hooks = separable(squares, Y, lam=0.1), frameworks.hooks(target.backend)
    right, slope = value_and_gradient(problem, START)
    with target.scope():
        outside = target.send(START)
    with hooks.modes()[mode]():
        before, wide = hooks.settings(), _double_digits(target)
        with target.scope():
            inside = target.send(START)
            zero = target.send(np.zeros(()))
            yield Measured("0 / 0", target.host(zero / zero), np.asarray(np.nan))
            yield Measured("1 / 0", target.host((zero + 1.0) / zero), np.asarray(np.inf))
            row = target.send(np.ones((1, 2))) + target.send(np.ones(2))  # axes that are added, in no call of a scope's
            yield Measured("1 + 1", target.host(row), np.full((1, 2), 2.0))
            yield Measured("digits of the caller's float64", _double_digits(target) >= wide, True)
            for where, theta in (("before", outside), ("inside", inside)):
                value, gradient = value_and_gradient(problem, theta)
                yield Measured(f"value, start made {where}", target.host(value), right, 100 * target.eps)
                yield Measured(f"gradient, start made {where}", target.host(gradient), slope, 100 * target.eps)
        fit = solve(problem, START, backend=target.backend, device=target.place, dtype=target.dtype, max_iter=3)
        yield Measured("settings", hooks.settings(), before)
    want, _ = value_and_gradient(problem, np.asarray(fit.theta, np.float64))
    yield Measured("objective of a solve", float(fit.value), float(want), 100 * target.eps)
    yield Measured("less than at the start", fit.value < float(right), True)


def _double_digits(target: Target) -> int:
    """How many bits a number of float64 keeps here, as far as it matters."""
    x = target.backend.asarray(np.array(1.0 + TINY), device=target.place)
    return 52 if float(target.host(x)) == 1.0 + TINY else 23


def _beginning(x: np.ndarray, by: int) -> np.ndarray:
    """A copy that begins `by` bytes beyond a multiple of 64."""
    raw = np.empty(x.nbytes + 128, np.uint8)
    first = -raw.ctypes.data % 64 + by
    out = raw[first : first + x.nbytes].view(x.dtype).reshape(x.shape)
    out[...] = x
    return out


@check("numerics scope")
def deterministic_backends(target: Target, case: None) -> Iterator[Measured]:
    """Settings are on until the outermost scope ends, then as before, after an error too; the same bits come out.

    No bit of a product depends on the addresses of arrays, and a host leaves no gap.
    """
    try:
        backend = target.backend.deterministic()
    except ProblemError as error:
        raise Inapplicable(str(error)) from error
    yield Measured("one of its own", backend.deterministic() is backend is target.backend.deterministic(), True)
    yield Measured("known as one", adapters.is_deterministic(backend), True)
    hooks, found, rng = frameworks.hooks(backend), [], np.random.default_rng(0)
    A, b = rng.normal(size=(501, 7)).astype(target.dtype), rng.normal(size=501).astype(target.dtype)
    before = hooks.settings()
    with target.scope():
        yield Measured("on in a plain scope", hooks.settings().get("deterministic"), before.get("deterministic"))
    with backend.scope(target.dtype):
        inside = hooks.settings()
        yield Measured("on", inside.get("deterministic", True), True)
        with suppress(ArithmeticError), backend.scope(target.dtype):
            raise ArithmeticError
        yield Measured("after an inner scope", hooks.settings(), inside)
        run = backend.call(lambda operands: lambda A, b: (b @ b, A @ A[0, :], b @ A), (_beginning, "conformance"))
        for by in (0, 8, 24):
            there = (backend.asarray(_beginning(x, by), dtype=target.dtype, device=target.place) for x in (A, b))
            found.append([backend.to_numpy(y).tobytes() for y in run((), *there)])
    yield Measured("after the outer scope", hooks.settings(), before)
    for i, bits in enumerate(zip(*found, strict=True)):
        yield Measured(f"bits of product {i}", len(set(bits)), 1)
    if target.device == "cpu":
        yield Measured("what is not covered", backend.nondeterministic_operations(target.place), ())


@check("numerics scope", lambda: {"as it is": "", **{case: case for case in modes()}}, dtypes=("float64",))
def forked_processes(target: Target, case: str) -> Iterator[Measured]:
    """A process that is forked computes, or refuses to where it would wait for threads that it does not have."""
    if sys.platform != "linux":
        raise Inapplicable("processes are forked on Linux alone")
    if target.device.startswith("cuda"):
        raise Inapplicable("no process that is forked after CUDA was used can use it")
    hooks = frameworks.hooks(target.backend)
    name, mode, _ = modes().get(case, (target.backend.name, "", 0))
    if name != target.backend.name:
        raise Inapplicable(f"a mode of {name}'s")
    x = np.array([1.0, 2.0])
    with hooks.modes()[mode]() if mode else nullcontext():
        computes = hooks.survives_fork()
        pid = os.fork()
        if not pid:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(30)  # ends what waits for ever
            os._exit(_in_child(target, x))
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    ended = ENDS[code] if 0 <= code < len(ENDS) else f"ended with {code}"
    yield Measured("how it ended", ended, "computed" if computes else "refused")


ENDS = ("computed", "refused", "raised", "wrong")


def _in_child(target: Target, x: np.ndarray) -> int:
    try:
        with target.scope():
            y = target.send(x)
            return ENDS.index("computed" if (target.host(y + y) == x + x).all() else "wrong")
    except UnsupportedError as error:
        return ENDS.index("refused" if "spawn" in str(error) and "for ever" in str(error) else "raised")
    except BaseException:  # whatever it is, the process ends here
        return ENDS.index("raised")
