"""Spectral gradient steps on the reduced objective: projected, or inside the faces of the sets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, final

from xvarpro.algorithms._polish import FirstOrder, InFace, Projecting
from xvarpro.algorithms.common import (
    add,
    arrived,
    bounded,
    curvature,
    feasible_search,
    moved,
    spectral_length,
    start,
    status,
)
from xvarpro.algorithms.interface import Iterate
from xvarpro.core import checks
from xvarpro.core.namespace import array_namespace, device
from xvarpro.core.struct import Array, Leaves
from xvarpro.core.trees import dot, sub
from xvarpro.errors import ProblemError


class State(NamedTuple):
    """The iterate, its gradient, the Barzilai-Borwein length, and the values that the line search compares with."""

    iterate: Iterate
    grad: Leaves
    length: Array
    recent: Array


@dataclass(frozen=True)
class Spectral(FirstOrder):
    """Steps of Barzilai-Borwein length with a nonmonotone line search."""

    memory: int = 10
    gamma: float = 1e-4
    limit: int = 40

    def __post_init__(self) -> None:
        name = type(self).__name__
        checks.limit(self, self.limit)
        if self.memory < 1:
            raise ProblemError(f"{name} needs memory >= 1, got {self.memory!r}")
        if not 0 < self.gamma < 0.5:
            raise ProblemError(f"{name} needs 0 < gamma < 1/2, got {self.gamma!r}")

    def init(self, f: Any, region: Any, theta: Leaves) -> State:
        iterate, grad, d = start(f, region, theta)
        L = curvature(f, theta, grad, d)
        xp = array_namespace(L)
        iterate = iterate._replace(counts=add(iterate.counts, values=1, gradients=1))
        recent = xp.full((self.memory,), -xp.inf, dtype=L.dtype, device=device(L))
        return State(iterate, grad, 1 / L, _push(recent, iterate.value))

    def advance(self, f: Any, region: Any, state: State) -> State:
        d, state = self.direction(f, region, state)
        iterate = state.iterate
        worst = array_namespace(state.recent).max(state.recent)
        alpha, point, trials = feasible_search(
            f, iterate.theta, d, dot(state.grad, d), iterate.value, worst, self.gamma, self.limit
        )
        return self.resumed(f, region, state, d, alpha, point, trials)

    def resumed(self, f: Any, region: Any, state: State, d: Leaves, alpha: Array, point: Any, values: Any) -> State:
        before, dd = state.iterate.theta, dot(d, d)
        iterate, grad, _ = arrived(f, region, state.iterate, point, values)
        iterate = iterate._replace(alpha_A=alpha, alpha_B=alpha, status=status(alpha, moved(alpha, dd, before)))
        length = spectral_length(alpha, d, dd, sub(grad, state.grad), state.length)
        length = bounded(length, point.theta, dd, grad)
        return State(iterate, grad, length, _push(state.recent, point.value))

    def length(self, state: State) -> Array:
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


def _push(recent: Array, value: Array) -> Array:
    xp = array_namespace(recent)
    return xp.concat([recent[1:], xp.reshape(value, (1,))])
