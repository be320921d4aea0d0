"""The paper's Theorem 1: the rate, and its lemma on steps."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import numpy as np

import xvarpro as xv
from xvarpro.algorithms import FrankWolfe, cr_varpro
from xvarpro.core.struct import Array
from xvarpro_conformance import evaluation, problems
from xvarpro_conformance.problems import Data, Reference
from xvarpro_conformance.suite import Measured, Target, check

ITERATIONS = 40
DELTA, GAMMA = 0.5, 0.1
MU = 1.0


class Quadratic(NamedTuple):
    """A reduced objective whose constants are known: ``1/2 |P (B theta - c)|^2 + mu/2 <theta, K theta>``.

    The design is constant, P the projection orthogonal to its columns, and only the target moves: ``y = B theta - c``.

    Attributes
    ----------
    reference : Reference
    L : float
        Largest curvature in absolute value.
    diameter : float
        ``sqrt(Delta_A^2 + 1)``.
    lowest : float
        Below all values: the squares are at least 0, and K bends down in the bounded block only.
    """

    reference: Reference
    L: float
    diameter: float
    lowest: float


def still(theta: Data, data: Data) -> Array:
    """A design that does not depend on theta."""
    return data["A"] + 0 * theta["x"][0]


def linear(theta: Data, data: Data) -> Array:
    """``B theta - c``."""
    return data["B"] @ theta["s"] + data["F"] @ theta["x"] - data["c"]


def saddle(theta: Data) -> Array:
    """``<theta, K theta>`` with K = -1 on the bounded block: the objective is not convex."""
    xp = xv.array_namespace(theta["s"])
    return -xp.sum(theta["s"] * theta["s"])


@cache
def quadratic() -> Quadratic:
    """A simplex of 4 and two free variables."""
    rng = np.random.default_rng(0)
    data = {name: problems.held(rng.normal(size=shape)) for name, shape in
            (("A", (12, 3)), ("B", (12, 4)), ("F", (12, 2)), ("c", (12,)))}  # fmt: skip
    radius = 2.0
    problem = xv.separable(still, linear, data=data, R=saddle, mu=MU)
    theta0 = {"s": np.array([radius, 0.0, 0.0, 0.0]), "x": np.zeros(2)}
    over = {"s": xv.sets.Simplex(radius)}
    Q, _ = np.linalg.qr(data["A"])
    moving = np.hstack([data["B"], data["F"]])
    moving = moving - Q @ (Q.T @ moving)
    H = moving.T @ moving - MU * np.diag([1.0] * 4 + [0.0] * 2)
    diameter = radius * math.sqrt(2)
    return Quadratic(
        Reference(problem, theta0, over),
        float(np.abs(np.linalg.eigvalsh(H)).max()),
        math.sqrt(diameter**2 + 1),
        -0.5 * MU * radius**2,
    )


def rules() -> dict[str, tuple[FrankWolfe, float]]:
    """Step rules of the lemma, each with its rho."""
    short = FrankWolfe(xv.steps.ShortStep(L=quadratic().L))
    return {
        "Armijo": (cr_varpro(DELTA, GAMMA), GAMMA * min(1.0, 2 * DELTA * (1 - GAMMA))),
        "short step": (short, 0.5),
    }


def at_most(what: str, got: np.ndarray, bound: np.ndarray, slack: float, scale: float) -> Measured:
    """``got <= bound``, but for `slack` times `scale`."""
    return Measured(what, np.maximum(got, bound), bound, slack, scale)


@check("paper", rules)
def theorem_1(target: Target, rule: tuple[FrankWolfe, float]) -> Iterator[Measured]:
    """Steps and decreases satisfy the lemma of Theorem 1, and after T iterations the least gap satisfies its rate."""
    algorithm, rho = rule
    case = quadratic()
    trace = evaluation.solve(target, case.reference, algorithm, ITERATIONS).trace
    gaps, start = trace.gap[:-1], float(trace.value[0])
    least = np.minimum(1.0, gaps / (case.L * case.diameter**2))
    yield at_most("lemma: min(1, g/(L Delta^2)) against alpha", least, trace.alpha_A[1:], 8 * target.eps, 1.0)
    decrease = trace.value[:-1] - trace.value[1:]
    yield at_most("lemma: rho alpha g against the decrease", rho * least * gaps, decrease, 100 * target.eps, start)
    T, above = np.arange(1, trace.gap.size), start - case.lowest
    rate = np.maximum(np.sqrt(case.L * case.diameter**2 * above / (rho * T)), 2 * above / T)
    yield at_most("rate: least gap against its bound", np.minimum.accumulate(gaps), rate, 0.0, 1.0)
