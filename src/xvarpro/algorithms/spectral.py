"""Spectral projected gradient on the reduced objective."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, final

from array_api_compat import array_namespace, device

from xvarpro import checks
from xvarpro.algorithms._common import add, bounded, curvature, feasible_search, moved, spectral_length, start, status
from xvarpro.errors import ProblemError
from xvarpro.protocols import Algorithm, Array, Iterate, Leaves
from xvarpro.trees import axpy, dot, sub


class State(NamedTuple):
    """The iterate, its gradient, the Barzilai-Borwein length and the values that the line search compares with."""

    iterate: Iterate
    grad: Leaves
    length: Array
    recent: Array


@final
@dataclass(frozen=True)
class SpectralProjectedGradient(Algorithm):
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

    memory: int = 10
    gamma: float = 1e-4
    limit: int = 40

    needs_projection = True

    def __post_init__(self) -> None:
        checks.limit(self, self.limit)
        if self.memory < 1:
            raise ProblemError(f"SpectralProjectedGradient needs memory >= 1, got {self.memory!r}")
        if not 0 < self.gamma < 0.5:
            raise ProblemError(f"SpectralProjectedGradient needs 0 < gamma < 1/2, got {self.gamma!r}")

    def init(self, f: Any, region: Any, theta: Leaves) -> State:
        iterate, grad, d = start(f, region, theta)
        L = curvature(f, theta, grad, d)
        xp = array_namespace(L)
        iterate = iterate._replace(counts=add(iterate.counts, values=1, gradients=1))
        recent = xp.full((self.memory,), -xp.inf, dtype=L.dtype, device=device(L))
        return State(iterate, grad, 1 / L, _push(recent, iterate.value))

    def advance(self, f: Any, region: Any, state: State) -> State:
        iterate, grad, length, recent = state
        theta = iterate.theta
        d = sub(region.project(axpy(-length, grad, theta)), theta)
        slope, dd = dot(grad, d), dot(d, d)
        worst = array_namespace(recent).max(recent)
        alpha, point, trials = feasible_search(f, theta, d, slope, iterate.value, worst, self.gamma, self.limit)
        new = f.gradient(point)
        direction = region.blmo(point.theta, new)
        iterate = Iterate(
            point.theta,
            point.value,
            direction.gap_A,
            direction.gap_B,
            alpha,
            alpha,
            status(slope, moved(alpha, dd, theta)),
            add(iterate.counts, values=trials, gradients=1, lmos=1, projections=1),
            direction.slack,
        )
        next_length = spectral_length(alpha, d, dd, sub(new, grad), length)
        return State(iterate, new, bounded(next_length, point.theta, dd, new), _push(recent, point.value))


def _push(recent: Array, value: Array) -> Array:
    xp = array_namespace(recent)
    return xp.concat([recent[1:], xp.reshape(value, (1,))])
