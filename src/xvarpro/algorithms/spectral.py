"""Spectral projected gradient on the reduced objective."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, final

from array_api_compat import array_namespace, device

from xvarpro import checks
from xvarpro.algorithms._common import add, curvature, moved, start, status
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

    Examples
    --------
    >>> import xvarpro as xv
    >>> xv.algorithms.SpectralProjectedGradient(memory=1).memory
    1
    """

    memory: int = 10
    gamma: float = 1e-4
    limit: int = 40

    needs_projection: ClassVar[bool] = True

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
        alpha, point, trials = self._search(f, theta, d, slope, iterate.value, recent)
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
        )
        next_length = _spectral_length(alpha, d, dd, sub(new, grad), length)
        return State(iterate, new, _bounded(next_length, point.theta, dd, new), _push(recent, point.value))

    def _search(
        self, f: Any, theta: Leaves, d: Leaves, slope: Array, value: Array, recent: Array
    ) -> tuple[Array, Any, Array]:
        xp = array_namespace(slope)
        worst = xp.max(recent)

        def trial(alpha: Array, n: Array) -> tuple[Array, Any, Array]:
            alpha = xp.where((n > self.limit) | ~(slope < 0), 0 * alpha, alpha)
            return alpha, f.point(axpy(alpha, d, theta)), n

        def rejected(state: tuple[Array, Any, Array]) -> Array:
            alpha, point, _ = state
            return ~(point.value <= worst + self.gamma * alpha * slope) & (alpha > 0)

        def again(state: tuple[Array, Any, Array]) -> tuple[Array, Any, Array]:
            # minimiser of the parabola through value, slope and the trial, kept within a tenth and a half
            alpha, point, n = state
            excess = 2 * (point.value - value - alpha * slope)
            best = -slope * alpha * alpha / xp.where(excess > 0, excess, xp.ones_like(excess))
            kept = xp.minimum(xp.maximum(best, 0.1 * alpha), 0.5 * alpha)
            return trial(xp.where(excess > 0, kept, 0.5 * alpha), n + 1)

        one = xp.ones_like(slope)
        return f.backend.while_loop(rejected, again, trial(one, one))


def _spectral_length(alpha: Array, d: Leaves, dd: Array, change: Leaves, last: Array) -> Array:
    """``<s, s> / <s, y>`` of the step s = alpha d and the change y of the gradient; twice the last where that fails."""
    xp = array_namespace(alpha)
    curved = dot(d, change)
    length = alpha * dd / xp.where(curved > 0, curved, xp.ones_like(curved))
    return xp.where((curved > 0) & (length > 0), length, 2 * last)


def _bounded(length: Array, theta: Leaves, dd: Array, grad: Leaves) -> Array:
    """At most a step of a million times the size of theta: where curvature stays negative, doubling must end."""
    xp = array_namespace(length)
    size, slope = xp.maximum(dot(theta, theta), dd), dot(grad, grad)
    longest = 1e6 * xp.sqrt(size / xp.where(slope > 0, slope, xp.ones_like(slope)))
    return xp.where(slope > 0, xp.minimum(length, longest), length)


def _push(recent: Array, value: Array) -> Array:
    xp = array_namespace(recent)
    return xp.concat([recent[1:], xp.reshape(value, (1,))])
