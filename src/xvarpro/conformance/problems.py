"""Reference problems: small, of every kind, the same bits for every backend and in both precisions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

import xvarpro as xv
from xvarpro.conformance.suite import named
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
    """

    problem: xv.Problem
    theta0: Tree
    over: Any


def held(x: np.ndarray) -> np.ndarray:
    """The nearest numbers that float32 holds too: what is compared is the arithmetic, not the rounding of the data."""
    x = np.asarray(x)
    return x.astype(np.complex64 if np.iscomplexobj(x) else np.float32).astype(x.dtype)


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


def wide() -> Reference:
    """More unknowns than rows: the dual form."""
    rng = np.random.default_rng(3)
    A, Y = held(rng.normal(size=(6, 16))), held(rng.normal(size=(6, 3)))
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


# -- one of every kind, of few shapes ----------------------------------------------------------------------------------

RATES = np.array([0.75, 2.0, 4.5])
BOX = xv.sets.Box(0.0, 10.0)


def _draw(*shape: int, seed: int) -> np.ndarray:
    return held(np.random.default_rng(seed).normal(size=shape))


T = {"lower": held(np.linspace(0.0, 2.0, 24)), "upper": held(np.linspace(0.1, 1.9, 12))}
Y = {"lower": _draw(24, seed=4), "upper": _draw(12, seed=5)}
MANY = {"lower": _draw(24, 4, seed=6), "upper": _draw(12, 4, seed=7)}
OMEGA = held(np.eye(3) + 0.3 * np.random.default_rng(8).normal(size=(3, 3)))


def lower_decays(theta: Array, data: Data) -> Array:
    """Decays at the times of the lower level."""
    return decays(theta, data["lower"])


def upper_decays(theta: Array, data: Data) -> Array:
    """Decays at the times of the upper level."""
    return decays(theta, data["upper"])


def moving(theta: Array, data: Data) -> Array:
    """A target that depends on theta."""
    xp = xv.array_namespace(theta)
    return xp.sin(data["lower"] * xp.sum(theta))


def moving_above(theta: Array, data: Data) -> Array:
    """Another one, of the upper level."""
    xp = xv.array_namespace(theta)
    return xp.cos(data["upper"] * theta[0])


def _separable(y: np.ndarray | Callable[..., Array] = Y["lower"], **keywords: Any) -> Reference:
    return Reference(xv.separable(lower_decays, y, data=T, **keywords), RATES, BOX)


def _bilevel(lower: dict[str, Any], upper: dict[str, Any], **keywords: Any) -> Reference:
    below = xv.Level(lower_decays, **{"y": Y["lower"], "lam": 0.05, **lower})
    above = xv.Level(upper_decays, **{"y": Y["upper"], **upper})
    return Reference(xv.bilevel(lower=below, upper=above, data=T, **keywords), RATES, BOX)


def smoothed() -> Reference:
    """A ridge with an Omega, a penalty on theta, a target that depends on theta."""
    return _separable(moving, lam=0.1, Omega=OMEGA, R=energy, mu=0.02)


def ridge_by_theta(theta: Array, data: Data) -> Array:
    """``exp(-theta_0)``."""
    return xv.array_namespace(theta).exp(-theta[0])


def chosen_ridge() -> Reference:
    """Two levels, of which the upper one chooses the ridge."""
    return _bilevel({"lam": ridge_by_theta}, {})


def weighted() -> Reference:
    """A weight for every entry of the target, and entries that are missing."""
    weights = np.abs(_draw(24, 4, seed=9))
    weights[::5, 1] = 0.0
    y = np.where(weights > 0, MANY["lower"], np.nan)
    return _separable(y, lam=0.1, weights=weights)


def nonnegative() -> Reference:
    """``w >= 0``, active in some columns."""
    return _separable(MANY["lower"], lam=0.1, W=xv.lower.Nonnegative())


def on_a_plane() -> Reference:
    """W in an affine subspace, the paper's section 3.3."""
    return _separable(lam=0.1, W=xv.lower.Affine(held(np.full(3, 1 / 3)), _draw(3, 2, seed=10)))


def unequal_splits() -> Reference:
    """Two levels of different heights; the upper one has no ridge."""
    return _bilevel({}, {})


def two_ridges() -> Reference:
    """Two levels, each with a ridge, one with an Omega, and with targets that depend on theta; a penalty."""
    return _bilevel({"y": moving, "Omega": OMEGA}, {"y": moving_above, "lam": 0.4}, R=energy, mu=0.02)


def waves(theta: Array, data: Data) -> Array:
    """``exp((i omega - rate) t)`` for rates 0.5, 1, 1.5."""
    xp = xv.array_namespace(theta)
    t = xp.expand_dims(data["lower"], axis=1)
    phase = t * theta
    return xp.exp(-t * data["rates"]) * (xp.cos(phase) + 1j * xp.sin(phase))


def complex_waves() -> Reference:
    """A complex design and target, real frequencies."""
    y = Y["lower"] + 1j * _draw(24, seed=11)
    problem = xv.separable(waves, y, data={**T, "rates": np.array([0.5, 1.0, 1.5])}, lam=0.1)
    return Reference(problem, RATES, BOX)


def wide_above(theta: Array, data: Data) -> Array:
    """The upper level of `wide_levels`."""
    xp = xv.array_namespace(theta)
    return xp.cos(data["upper"] * xp.sum(theta))


def wide_below(theta: Array, data: Data) -> Array:
    """The lower level of `wide_levels`: every entry moves with theta."""
    xp = xv.array_namespace(theta)
    return xp.sin(data["lower"] * xp.expand_dims(theta, axis=1))


def wide_levels() -> Reference:
    """A wide lower level below another design: both solves in the dual form."""
    problem = xv.bilevel(
        lower=xv.Level(wide_below, Y["lower"][:4], lam=0.1),
        upper=xv.Level(wide_above, Y["upper"][:6], lam=0.2),
        data={"lower": _draw(4, 12, seed=12), "upper": _draw(6, 12, seed=13)},
    )
    return Reference(problem, np.array([0.5, 1.0, 1.5, 2.0]), BOX)


def periodic(theta: Array, data: object) -> xv.operators.Circulant:
    """Convolution with theta."""
    return xv.operators.Circulant(theta)


def circulant() -> Reference:
    """A circulant design, solved by division of spectra."""
    theta = _draw(12, seed=14)
    problem = xv.separable(periodic, MANY["upper"], lam=0.1)
    return Reference(problem, held(0.9 * theta / np.linalg.norm(theta)), xv.sets.L2Ball(1.0))


def product(theta: Array, data: Data) -> xv.operators.Kronecker:
    """``A(theta) x B(theta)``: decays at two sets of times."""
    return xv.operators.Kronecker(decays(theta, data["left"]), decays(2.0 * theta, data["right"]))


def kronecker() -> Reference:
    """A Kronecker product of two moving factors at two sets of times."""
    times = {name: held(np.linspace(0.0, end, m)) for name, end, m in (("left", 2.0, 6), ("right", 1.0, 5))}
    problem = xv.separable(product, _draw(30, seed=15), data=times, lam=0.05)
    return Reference(problem, np.array([0.75, 2.5]), BOX)


KINDS = (
    smoothed, chosen_ridge, weighted, nonnegative, on_a_plane, unequal_splits, two_ridges, complex_waves, wide_levels,
    circulant, kronecker,
)  # fmt: skip


@cache
def every() -> dict[str, Callable[[], Reference]]:
    """All of them by name."""
    return named((*ALL, *KINDS))
