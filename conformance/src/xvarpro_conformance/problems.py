"""Reference problems: small, of every kind, the same bits for every backend and in both precisions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import xvarpro as xv
from xvarpro.core.struct import Array, Tree

Data = Mapping[str, Array]  # arrays by name


@dataclass(frozen=True)
class Reference:
    """A problem, a feasible start, and sets.

    Attributes
    ----------
    problem : Problem
    theta0 : pytree of NumPy arrays
    over : Set or tree of sets
    matrix : callable, optional
        The lower design as a matrix, where the problem's own is an operator that takes no long numbers.
    inner : float
        The condition of what the model itself factorises: its rounding is multiplied by that too.
    """

    problem: xv.Problem
    theta0: Tree
    over: Any
    matrix: Callable[..., Any] | None = None
    inner: float = 1.0


def held(x: np.ndarray) -> np.ndarray:
    """The nearest numbers that float32 holds too: what is compared is the arithmetic, not the rounding of the data."""
    low = {"f": np.float32, "c": np.complex64}.get(x.dtype.kind)
    return x if low is None else x.astype(low).astype(x.dtype)


def normal(shape: tuple[int, ...], is_complex: bool = False, seed: int = 0) -> np.ndarray:
    """Normal numbers, other ones for every shape."""
    draw = np.random.default_rng([seed, *shape])
    x: Any = draw.normal(size=shape)
    return x + 1j * draw.normal(size=shape) if is_complex else x


def decays(theta: Array, t: Array) -> Array:
    """``exp(-t theta)``, a column for every rate."""
    xp = xv.array_namespace(theta)
    return xp.exp(-xp.expand_dims(t, axis=1) * theta)


def itself(theta: Array, data: object) -> Array:
    """``M(theta) = theta``."""
    return theta


def scaled_columns(theta: Array, A: Array) -> Array:
    """``A diag(theta + 1/10)``, of which no column is ever zero."""
    return A * (theta + 0.1)


def energy(theta: Array) -> Array:
    """``sum theta^4``."""
    return xv.array_namespace(theta).sum(theta**4)


# -- four that whole solves run on -------------------------------------------------------------------------------------


def exponentials() -> Reference:
    """Three decays with noise, in a box."""
    t = np.linspace(0.0, 2.0, 60)
    noise = 1e-2 * np.random.default_rng(0).normal(size=60)
    y = np.exp(-np.outer(t, [0.7, 2.0, 7.0])) @ np.array([1.0, -2.0, 3.0]) + noise
    problem = xv.separable(decays, held(y), data=held(t), lam=1e-4)
    return Reference(problem, np.array([0.5, 3.0, 8.0]), xv.sets.Box(0.0, 10.0))


def dictionary() -> Reference:
    """A matrix factor in the l1 ball, with more right-hand sides than rows: they are compressed."""
    rng = np.random.default_rng(1)
    X = np.abs(rng.normal(size=(20, 4))) @ np.abs(rng.normal(size=(4, 90)))
    D = rng.normal(size=(20, 6))
    D = held(0.999999 * D / np.abs(D).sum())  # within the ball in both precisions
    return Reference(xv.separable(itself, held(X), lam=1e-3), D, xv.sets.L1Ball(1.0))


def hidden(theta: Data, X: Array) -> Array:
    """Units of a small network, each with a gain that is never zero: the paper's first full step kills all of them."""
    return xv.array_namespace(X).tanh(X @ theta["A"]) * (theta["s"] + 0.1)


def trained(theta: Data, data: Data) -> Array:
    """The units on the samples of the lower level."""
    return hidden(theta, data["train"])


def validated(theta: Data, data: Data) -> Array:
    """The units on the samples of the upper level."""
    return hidden(theta, data["validation"])


def spread(theta: Data) -> Array:
    """``|A|^2``."""
    return xv.array_namespace(theta["A"]).sum(theta["A"] * theta["A"])


def network() -> Reference:
    """Two levels on two splits, a constrained and a free block, a penalty, a target per level."""
    rng = np.random.default_rng(2)
    data = {"train": held(rng.normal(size=(40, 4))), "validation": held(rng.normal(size=(30, 4)))}
    target = {name: held(np.sin(x @ np.ones((4, 2)))) for name, x in data.items()}
    problem = xv.bilevel(
        lower=xv.Level(trained, target["train"], lam=1e-2),
        upper=xv.Level(validated, target["validation"]),
        data=data,
        R=spread,
        mu=1e-3,
    )
    theta0 = {"A": held(0.5 * rng.normal(size=(4, 5))), "s": held(np.full(5, 0.1999))}
    return Reference(problem, theta0, {"s": xv.sets.CappedSimplex(1.0)})


def wide(rows: int = 6) -> Reference:
    """More unknowns than rows: the dual form."""
    rng = np.random.default_rng(3)
    A, Y = held(rng.normal(size=(rows, 16))), held(rng.normal(size=(rows, 3)))
    problem = xv.separable(scaled_columns, Y, data=A, lam=1e-1)
    return Reference(problem, np.full(16, 1 / 16), xv.sets.Simplex(1.0))


ALL = (exponentials, dictionary, network, wide)


def atoms() -> Reference:
    """A dictionary with a dead atom and a target that is not compressed: what every method can run on."""
    rng = np.random.default_rng(16)
    X = np.abs(rng.normal(size=(6, 2))) @ np.abs(rng.normal(size=(2, 40))) + 0.1 * rng.normal(size=(6, 40))
    D = rng.normal(size=(6, 3)) * np.array([1.0, 1.0, 0.0])
    problem = xv.separable(itself, held(X), lam=1e-2, compress=False)
    return Reference(problem, held(D / np.abs(D).sum() * 0.9), xv.sets.L1Ball(1.0))


def bounded() -> Reference:
    """`exponentials` in a box that the fastest of the three rates would leave."""
    return replace(exponentials(), theta0=np.array([0.5, 3.0, 4.0]), over=xv.sets.Box(0.25, 5.0))
