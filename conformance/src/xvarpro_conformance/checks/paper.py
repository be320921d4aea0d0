"""The paper's statements: the rate of Theorem 1, its lemma on steps, collapsed = bilevel, the gradient's formula."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import numpy as np

import xvarpro as xv
from xvarpro.algorithms import FrankWolfe, cr_varpro
from xvarpro.core.struct import Array
from xvarpro_conformance import evaluation, kinds, problems
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


@check("paper", rules, against="closed form")
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


# -- two levels --------------------------------------------------------------------------------------------------------


def once_more(theta: Array, data: Data) -> Array:
    """The design of the lower level, as another function: nothing tells that the levels are equal."""
    return kinds.lower_decays(theta, data)


def coinciding() -> Reference:
    """Two levels that are the same function, but do not say so: the adjoint is computed, and is 0."""
    lower = xv.Level(kinds.lower_decays, kinds.Y["lower"], lam=0.1)
    upper = xv.Level(once_more, kinds.Y["lower"], lam=0.1)
    return Reference(xv.bilevel(lower=lower, upper=upper, data=kinds.T), kinds.RATES, kinds.BOX)


def collapsed() -> Reference:
    """The same problem as one level."""
    problem = xv.separable(kinds.lower_decays, kinds.Y["lower"], data=kinds.T, lam=0.1)
    return Reference(problem, kinds.RATES, kinds.BOX)


@check("paper", against="definition")
def collapsed_is_bilevel(target: Target, case: None) -> Iterator[Measured]:
    """One level has the value and the gradient of two equal ones, whose coupling term vanishes."""
    got, want = (evaluation.evaluate(target, reference) for reference in (collapsed(), coinciding()))
    yield from evaluation.compared(target.eps, evaluation.condition(collapsed), got, want)


@check("paper", against="closed form")
def implicit_formula(target: Target, case: None) -> Iterator[Measured]:
    """w, value and gradient equal equation (3), written out with dense matrices and their derivatives."""
    reference = kinds.unequal_splits()
    w, want = written_out(reference)
    cond = evaluation.condition(kinds.unequal_splits)
    yield from evaluation.compared(target.eps, cond, evaluation.evaluate(target, reference), want)
    fit = evaluation.solve(target, reference, cr_varpro(), 0)
    yield Measured("w", np.asarray(fit.w, np.float64), w, evaluation.gradient_tolerance(target.eps, cond))


def written_out(reference: Reference) -> tuple[np.ndarray, evaluation.Evaluated]:
    """``grad_theta f_U - (d/dtheta grad_w f_L)^T (grad^2_ww f_L)^-1 grad_w f_U``, and the w it is at."""
    theta, data = reference.theta0, reference.problem.data
    levels: tuple[Any, ...] = reference.problem.levels
    (M_L, M_U), (y_L, y_U) = (
        (np.exp(-np.outer(data[name], theta)) for name in ("lower", "upper")),
        (level.y for level in levels),
    )
    # column j of a design depends on theta_j alone
    slope_L, slope_U = (-data[name][:, None] * M for name, M in (("lower", M_L), ("upper", M_U)))
    H = M_L.T @ M_L + levels[0].lam * np.eye(theta.size)
    root = np.sqrt(levels[0].lam) * np.eye(theta.size)
    w = np.linalg.lstsq(np.vstack([M_L, root]), np.concatenate([y_L, np.zeros(theta.size)]), rcond=None)[0]
    r_L, r_U = M_L @ w - y_L, M_U @ w - y_U
    crossed = np.diag(slope_L.T @ r_L) + M_L.T @ (slope_L * w)
    gradient = (slope_U.T @ r_U) * w - crossed.T @ np.linalg.solve(H, M_U.T @ r_U)
    return w, evaluation.Evaluated(np.asarray(0.5 * r_U @ r_U), gradient)
