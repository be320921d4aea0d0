"""A baseline on the reduced objective: what a user of a deep-learning framework would run once w is eliminated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, final

from xvarpro.algorithms.common import add, certified, start, status
from xvarpro.algorithms.interface import Algorithm, Iterate
from xvarpro.core import checks
from xvarpro.core.namespace import array_namespace
from xvarpro.core.struct import Array, Leaves
from xvarpro.errors import ProblemError


class State(NamedTuple):
    """The iterate, the gradient there, both running means and the iterations done."""

    iterate: Iterate
    grad: Leaves
    first: Leaves
    second: Leaves
    k: Array


@final
@dataclass(frozen=True)
class ReducedAdam(Algorithm):
    """Adam (Kingma, Ba 2015) on the reduced objective, projected after every step; one gradient an iteration.

    It has the exact reduced gradient, as every algorithm of the package has: what differs is the step alone. Not
    monotone: the result is the last iterate.

    Parameters
    ----------
    rate : float
        Learning rate > 0, constant.
    beta1, beta2 : float
        Decay of the two running means, in [0, 1).
    epsilon : float
        Added to the root of the second, > 0, in the units of the gradient.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> from xvarpro_experiments.rivals import ReducedAdam
    >>> def M(theta, t):
    ...     xp = xv.array_namespace(theta)
    ...     return xp.exp(-xp.expand_dims(t, axis=1) * theta)
    >>> t = np.linspace(0.0, 1.0, 50)
    >>> problem, box = xv.separable(M, np.exp(-3.0 * t), data=t, lam=1e-6), xv.sets.Box(0.0, 10.0)
    >>> fit = xv.solve(problem, np.array([1.0]), over=box, algorithm=ReducedAdam(0.1), max_iter=500)
    >>> round(float(fit.theta[0]), 3)
    3.0
    """

    rate: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    needs_projection = True

    def __post_init__(self) -> None:
        for name in ("rate", "epsilon"):
            checks.nonnegative(self, name)
            if not getattr(self, name):
                raise ProblemError(f"ReducedAdam: {name} must be > 0, got 0")
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ProblemError(f"ReducedAdam needs 0 <= {name} < 1, got {getattr(self, name)!r}")

    def init(self, f: Any, region: Any, theta: Leaves) -> State:
        iterate, grad, _ = start(f, region, theta)
        zero = tuple(array_namespace(x).zeros_like(x) for x in theta)
        return State(iterate, grad, zero, zero, 0 * iterate.value)

    def advance(self, f: Any, region: Any, state: State) -> State:
        iterate, grad, _, _, _ = state
        xp, k = array_namespace(state.k), state.k + 1
        first = tuple(self.beta1 * m + (1 - self.beta1) * g for m, g in zip(state.first, grad, strict=True))
        second = tuple(self.beta2 * v + (1 - self.beta2) * (g * g) for v, g in zip(state.second, grad, strict=True))
        unbias1, unbias2 = 1 - self.beta1**k, 1 - self.beta2**k
        theta = region.project(
            tuple(
                x - self.rate * (m / unbias1) / (xp.sqrt(v / unbias2) + self.epsilon)
                for x, m, v in zip(iterate.theta, first, second, strict=True)
            )
        )
        point, grad, direction = certified(f, region, theta)
        rate = xp.full_like(k, self.rate)
        work = add(iterate.counts, values=1, gradients=1, lmos=1, projections=1)
        iterate = Iterate(
            theta, point.value, direction.gap_A, direction.gap_B, rate, rate, status(k), work,
            direction.slack, direction.lower,
        )  # fmt: skip
        return State(iterate, grad, first, second, k)
