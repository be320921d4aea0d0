"""The loop of methods that repeat a step: on any backend, compiled where it compiles; the clock counts steps alone."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

import xvarpro as xv
from xvarpro.errors import ProblemError
from xvarpro_experiments.checks import whole
from xvarpro_experiments.trees import Array, Tree, arrays, mapped, partition

SPACING = 1.3  # of the iterates that are kept, in the logarithm of their number

# (given, k, state, fed) -> state: what stays, iteration k from 1, what is iterated, what every iteration gets anew
Step: TypeAlias = Callable[[Tree, Array, Tree, Tree], Tree]


@dataclass(frozen=True)
class Budget:
    """Limits of a run, the same for every method; set-up and compilation do not count."""

    iterations: int | None = None  # >= 1; None for as many as the time allows
    seconds: float = 20.0  # > 0
    spacing: float = SPACING  # ratio of the numbers of iterations at which an iterate is kept, > 1

    def __post_init__(self) -> None:
        whole(iterations=self.iterations)
        if not 0 < self.seconds < math.inf:
            raise ProblemError(f"time must be a finite number of seconds > 0, got {self.seconds}")

    @property
    def max_iter(self) -> int:
        """A number that `xvarpro.solve` takes."""
        return 10**9 if self.iterations is None else self.iterations

    @property
    def limits(self) -> dict[str, Any]:
        """Arguments of `xvarpro.solve`."""
        return {"max_iter": self.max_iter, "time_limit": self.seconds}

    def following(self, n: int) -> int:
        """The next iteration to keep after iteration n."""
        return max(n + 1, math.ceil(self.spacing * n))


class Point(NamedTuple):
    """An iterate that was kept: NumPy arrays. `w` is given by a method whose measures are to be taken at its own w."""

    iteration: int
    seconds: float
    theta: Tree
    w: np.ndarray | None = None


@dataclass(frozen=True)
class Machine:
    """Where a method computes, and in which dtype."""

    name: str | None
    device: str | None
    dtype: str

    @property
    def backend(self) -> xv.backends.Backend:
        """The framework; NumPy by default."""
        return xv.backends.get(self.name or "numpy")

    @property
    def place(self) -> Any:
        """The device, as the framework names it; None for its default."""
        if self.device is None:
            return None
        known = self.backend.devices()
        found = known.get(self.device, known.get(f"{self.device}:0"))
        if found is None:
            raise ProblemError(f"device must be one of {', '.join(known)} on {self.backend.name}, got {self.device!r}")
        return found

    def scope(self) -> AbstractContextManager[None]:
        """The numerical settings of a solve."""
        return self.backend.scope(self.dtype)

    def to_backend(self, tree: Tree) -> Tree:
        """A tree of NumPy arrays on the backend; real numbers in the dtype."""
        backend, place = self.backend, self.place

        def move(x: np.ndarray) -> Array:
            return backend.asarray(
                np.asarray(x), dtype=self.dtype if x.dtype.kind == "f" else str(x.dtype), device=place
            )

        with self.scope():
            return mapped(move, tree)

    def to_caller(self, tree: Tree) -> Tree:
        """A tree of arrays of the backend as NumPy's."""
        return mapped(lambda x: np.array(self.backend.to_numpy(x)), tree)

    def wait(self, tree: Tree) -> None:
        """Until a framework that computes in the background has computed a tree."""
        first = arrays(tree)[0]
        self.backend.to_floats([first[(0,) * first.ndim]])

    def compiled(self, fun: Callable[..., Tree], *trees: Tree) -> Callable[..., tuple[Array, ...]]:
        """`fun`, as a function of the arrays of such trees, with the arrays of what it returns; compiled once."""
        _, rest = partition(trees)
        return self.backend.call(lambda fixed: lambda *x: arrays(fun(*rest.fill((*fixed, *x)))), (fun, rest))

    def iterate(
        self,
        step: Step,
        state: Tree,
        given: Tree,
        budget: Budget,
        read: Callable[[Tree], tuple[Tree, Array | None]],
        feed: Callable[[float], Tree] = lambda _: (),
        compiled: bool = True,
        seconds: float = 0.0,
    ) -> Descent:
        """Repeat a step until either limit of the budget.

        `read` takes theta, and a w of the method's own or None, from a state. `feed` makes what an iteration gets anew
        from the share of the budget that is used. `seconds` were spent before.
        """
        backend, (x, rest), (fixed, _) = self.backend, partition(state), partition(given)
        began = time.perf_counter()
        with self.scope():
            one = backend.asarray(np.ones(()), dtype=self.dtype, device=self.place)
            fed = feed(0.0)
            if compiled:
                call = self.compiled(step, given, one, state, fed)
            else:

                def call(_: Any, k: Array, *moving: Array) -> tuple[Array, ...]:
                    return arrays(step(given, k, rest.fill(moving[: len(x)]), partition(fed)[1].fill(moving[len(x) :])))

            warm = x
            for _ in range(2 if backend.compiled else 0):  # what the first call returns may be compiled for once more
                warm = call(fixed, 1 * one, *warm, *arrays(fed))
                self.wait(warm)
            setup = time.perf_counter() - began

            def point(n: int) -> Point:
                theta, w = read(rest.fill(x))
                return Point(n, seconds, self.to_caller(theta), None if w is None else self.to_caller(w))

            points, due, n = [point(0)], 1, 0
            while n != budget.iterations and seconds < budget.seconds:
                began = time.perf_counter()
                used = max(seconds / budget.seconds, n / budget.max_iter)
                n += 1
                x = call(fixed, n * one, *x, *arrays(feed(used)))
                self.wait(x)
                seconds += time.perf_counter() - began
                if n >= due:
                    due = budget.following(n)
                    points.append(point(n))
            if n != points[-1].iteration:
                points.append(point(n))
        return Descent(points, rest.fill(x), setup)


class Descent(NamedTuple):
    """What a repeated step came to: iterates that were kept, the last state on its backend, seconds of set-up."""

    points: list[Point]
    state: Tree
    setup_seconds: float


def adam(
    x: Tree, grad: Tree, memory: Tree, k: Array, rate: Array | float, epsilon: float = 1e-8
) -> tuple[Tree, Tree]:  # fmt: skip
    """Iteration k of Adam (Kingma, Ba 2015) from x: where it leads, and the running means."""
    rule, (own, rest) = xv.algorithms.Adam(rate=lambda k: rate + 0 * k, eps=epsilon), partition(x)
    steps, memory = rule.step(arrays(grad), memory, own, k - 1)
    return rest.fill(a + d for a, d in zip(own, steps, strict=True)), memory


def means(x: Tree) -> Tree:
    """Adam's running means at the start."""
    return xv.algorithms.Adam().init(arrays(x))
