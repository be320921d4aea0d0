"""Reference problems: small, of every kind, the same bits for every backend."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import xvarpro as xv


@dataclass(frozen=True)
class Reference:
    problem: xv.Problem
    theta0: Any
    over: Any


def decays(theta, t):
    xp = xv.array_namespace(theta)
    return xp.exp(-xp.expand_dims(t, axis=1) * theta)


def exponentials() -> Reference:
    t = np.linspace(0.0, 2.0, 60)
    noise = 1e-2 * np.random.default_rng(0).normal(size=60)
    y = np.exp(-np.outer(t, [0.7, 2.0, 7.0])) @ np.array([1.0, -2.0, 3.0]) + noise
    return Reference(xv.separable(decays, y, data=t, lam=1e-4), np.array([0.5, 3.0, 8.0]), xv.sets.Box(0.0, 10.0))


def dictionary() -> Reference:
    rng = np.random.default_rng(1)
    X = np.abs(rng.normal(size=(20, 4))) @ np.abs(rng.normal(size=(4, 90)))
    D = rng.normal(size=(20, 6))
    D /= np.abs(D).sum()
    return Reference(xv.separable(lambda D, _: D, X, lam=1e-3), D, xv.sets.L1Ball(1.0))


def network() -> Reference:
    """Two levels on two splits, a constrained and a free block, a penalty, a target per level."""
    rng = np.random.default_rng(2)
    data = {"fit": rng.normal(size=(40, 4)), "judge": rng.normal(size=(30, 4))}
    target = {name: np.sin(x @ np.ones((4, 2))) for name, x in data.items()}

    def level(split: str) -> Callable[[Any, Any], Any]:
        def M(theta, data):
            xp = xv.array_namespace(theta)
            return xp.tanh(data[split] @ theta["A"]) * theta["s"]

        return M

    def R(theta):
        xp = xv.array_namespace(theta)
        return xp.sum(theta["A"] * theta["A"])

    problem = xv.bilevel(
        lower=xv.Level(level("fit"), target["fit"], lam=1e-2),
        upper=xv.Level(level("judge"), target["judge"]),
        data=data,
        R=R,
        mu=1e-3,
    )
    theta0 = {"A": 0.5 * rng.normal(size=(4, 5)), "s": np.full(5, 0.2)}
    return Reference(problem, theta0, {"s": xv.sets.CappedSimplex(1.0)})


def wide() -> Reference:
    """More unknowns than rows: the dual form."""
    rng = np.random.default_rng(3)
    A, y = rng.normal(size=(6, 15)), rng.normal(size=6)
    problem = xv.separable(lambda theta, A: A * theta, y, data=A, lam=1e-1)
    return Reference(problem, np.full(15, 1 / 15), xv.sets.Simplex(1.0))


ALL = (exponentials, dictionary, network, wide)
