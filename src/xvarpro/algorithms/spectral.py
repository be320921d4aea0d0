"""Spectral gradient steps on the reduced objective: projected, or inside the faces of the sets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, final

from xvarpro.algorithms._polish import FirstOrder, InFace, Projecting, Way, push
from xvarpro.algorithms.common import add, arrived, curvature, feasible_search, moved, start, status
from xvarpro.algorithms.interface import Iterate
from xvarpro.core import checks
from xvarpro.core.namespace import device, namespace_of, positive_or_one
from xvarpro.core.struct import Array, Leaves
from xvarpro.core.trees import dot, sub
from xvarpro.objective.interface import Objective
from xvarpro.sets.region import Region


class SpectralState(NamedTuple):
    """State of a method with steps of Barzilai-Borwein length."""

    iterate: Iterate
    grad: Leaves
    length: Array  # of the next gradient step, 0-d
    recent: Array  # (memory,), the values that the line search compares with


@dataclass(frozen=True)
class Spectral(FirstOrder):
    """Steps of Barzilai-Borwein length with a nonmonotone line search."""

    memory: int = 10
    gamma: float = 1e-4
    limit: int = 40

    def __post_init__(self) -> None:
        checks.whole(self, "memory", 1)
        checks.between(self, "gamma", 0, 0.5)
        checks.whole(self, "limit", 1)

    def init(self, f: Objective, region: Region, theta: Leaves) -> SpectralState:
        iterate, grad, d = start(f, region, theta)
        L, calls = curvature(f, theta, grad, d)
        xp = namespace_of(L)
        iterate = iterate._replace(counts=add(iterate.counts, values=calls, gradients=calls))
        recent = xp.full((self.memory,), -xp.inf, dtype=L.dtype, device=device(L))
        return SpectralState(iterate, grad, 1 / L, push(recent, iterate.value))

    def step(self, f: Objective, region: Region, state: SpectralState, way: Way | None) -> SpectralState:
        worst: Array = namespace_of(state.recent).max(state.recent)
        gamma: Any = self.gamma
        limit: Any = self.limit
        if way is None:
            d, state = self.direction(f, region, state)
        else:
            value = state.iterate.value
            d, state = way.otherwise(f.backend, lambda now: self.direction(f, region, now[1]), (way.d, state))
            worst = namespace_of(value).where(way.taken, value + f.rounding(value), worst)
            gamma, limit = way.instead(gamma, way.gamma, value), way.instead(limit, way.limit, value)
        iterate, slope = state.iterate, dot(state.grad, d)
        value, before, dd = iterate.value, iterate.theta, dot(d, d)
        alpha, point, trials = feasible_search(f, before, d, slope, value, worst, gamma, limit)
        iterate, grad, _ = arrived(f, region, iterate, point, trials)
        iterate = iterate._replace(alpha_A=alpha, alpha_B=alpha, status=status(alpha, moved(alpha, dd, before)))
        length = _length(alpha, d, dd, sub(grad, state.grad), state.length)
        length = _bounded(length, point.theta, dd, grad)
        return SpectralState(iterate, grad, length, push(state.recent, point.value))

    def length(self, state: SpectralState) -> Array:
        return state.length


@final
@dataclass(frozen=True)
class SpectralProjectedGradient(Projecting, Spectral):
    """Projected gradient with Barzilai-Borwein lengths and a nonmonotone line search (Birgin, Martinez, Raydan 2000).

    Parameters
    ----------
    memory : int
        The new value has to improve on the worst of the last `memory` values; 1 makes it monotone.
    gamma : float
        Share of the predicted decrease that is asked for, in (0, 1/2).
    limit : int
        Trials after which the line search gives up.

    Notes
    -----
    Oracle : projection; LMO for the certificate
    Per iteration : a value per trial, 1 gradient, 1 LMO, 1 projection
    Memory : a few vectors
    Polytope only : no
    When : few parameters under a set that projects; the objective may rise on the way

    Examples
    --------
    >>> import xvarpro as xv
    >>> xv.algorithms.SpectralProjectedGradient(memory=1).memory
    1
    """


@final
@dataclass(frozen=True)
class SpectralInFace(InFace, Spectral):
    """The same steps without a projection."""


def _length(alpha: Array, d: Leaves, dd: Array, change: Leaves, last: Array) -> Array:
    """``<s, s> / <s, y>`` of the step s = alpha d and the change y of the gradient (Barzilai, Borwein 1988); twice the
    last length where that fails.
    """
    xp = namespace_of(alpha)
    curved = dot(d, change)
    length = alpha * dd / positive_or_one(curved)
    return xp.where((curved > 0) & (length > 0), length, 2 * last)


def _bounded(length: Array, theta: Leaves, dd: Array, grad: Leaves) -> Array:
    """At most a step of a million times the size of theta: where curvature stays negative, doubling must end."""
    xp = namespace_of(length)
    size, slope = xp.maximum(dot(theta, theta), dd), dot(grad, grad)
    return xp.minimum(length, 1e6 * xp.sqrt(size / positive_or_one(slope)))
