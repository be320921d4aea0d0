"""Batches of problems."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import xvarpro as xv
from xvarpro.core.struct import Array
from xvarpro_conformance.kinds import OMEGA, RATES, T, draw
from xvarpro_conformance.problems import Data, held


@dataclass(frozen=True, eq=False)
class Batch:
    """Problems that differ in theta and in their targets, together and one by one.

    Attributes
    ----------
    problem : Problem
        In batch form; its functions take single problems as well.
    theta0 : array, shape (b, p)
    """

    problem: xv.Problem
    theta0: np.ndarray

    def members(self) -> Iterator[tuple[xv.Problem, np.ndarray]]:
        """Each problem with its theta."""
        for i, theta in enumerate(self.theta0):
            own: dict[str, Any] = {
                name: replace(level, y=level.y[i])
                for name in ("lower", "upper")
                if (level := getattr(self.problem, name)) is not None
            }
            yield replace(self.problem, **own), theta


def lower_each(theta: Array, data: Data) -> Array:
    """Decays at the times of the lower level, for each problem."""
    xp = xv.array_namespace(theta)
    return xp.exp(-xp.expand_dims(data["lower"], axis=1) * xp.expand_dims(theta, axis=-2))


def upper_each(theta: Array, data: Data) -> Array:
    """Decays at the times of the upper level, for each problem."""
    return lower_each(theta, {"lower": data["upper"]})


def energy_each(theta: Array) -> Array:
    """``sum theta^4``, for each problem."""
    return xv.array_namespace(theta).sum(theta**4, axis=-1)


def _batches() -> dict[str, Batch]:
    theta = held(RATES * np.array([[1.0], [0.75], [1.5]]))
    below, above = draw(3, 24, 2, seed=36), draw(3, 12, 2, seed=37)
    one = xv.separable(lower_each, below, data=T, lam=0.1, Omega=OMEGA, R=energy_each, mu=0.02)
    two = xv.bilevel(
        lower=xv.Level(lower_each, below, lam=0.1, Omega=OMEGA), upper=xv.Level(upper_each, above, lam=0.2), data=T
    )
    return {"one level": Batch(one, theta), "two levels": Batch(two, theta)}


BATCHES = _batches()
