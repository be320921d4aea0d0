"""Spectral gradient steps on the reduced objective: projected, or inside the faces of the sets."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, final

from xvarpro import checks
from xvarpro._namespace import array_namespace, device
from xvarpro.algorithms._common import (
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
from xvarpro.algorithms._polish import FirstOrder, InFace, Projecting, worked
from xvarpro.errors import ProblemError
from xvarpro.protocols import Array, Iterate, Leaves
from xvarpro.trees import dot, plus, scaled, select, sub


class State(NamedTuple):
    """The iterate, its gradient, the direction of Algorithm 2 where it is used, the Barzilai-Borwein length, and the
    values that the line search compares with.
    """

    iterate: Iterate
    grad: Leaves
    vertex: Leaves
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

    @abstractmethod
    def kept(self, d: Leaves) -> Leaves:
        """What `direction` needs of Algorithm 2's."""

    def init(self, f: Any, region: Any, theta: Leaves) -> State:
        iterate, grad, d = start(f, region, theta)
        L = curvature(f, theta, grad, d)
        xp = array_namespace(L)
        iterate = iterate._replace(counts=add(iterate.counts, values=1, gradients=1))
        recent = xp.full((self.memory,), -xp.inf, dtype=L.dtype, device=device(L))
        return State(iterate, grad, self.kept(d), 1 / L, _push(recent, iterate.value))

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
        iterate, grad, vertex = arrived(f, region, state.iterate, point, values)
        iterate = iterate._replace(alpha_A=alpha, alpha_B=alpha, status=status(alpha, moved(alpha, dd, before)))
        length = spectral_length(alpha, d, dd, sub(grad, state.grad), state.length)
        length = bounded(length, point.theta, dd, grad)
        return State(iterate, grad, self.kept(vertex), length, _push(state.recent, point.value))

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

    def kept(self, d: Leaves) -> Leaves:
        return ()


@final
@dataclass(frozen=True)
class SpectralInFace(InFace, Spectral):
    """Gradient steps of that length inside the face, or toward vertices, whichever promises more.

    A single vertex seldom lies down the gradient; up to `chase` of them together come close (Combettes, Pokutta 2020).
    """

    chase: int = 20
    aligned: float = 1e-3  # gain of the cosine that one more vertex has to bring

    def kept(self, d: Leaves) -> Leaves:
        return d

    def direction(self, f: Any, region: Any, state: State) -> tuple[Leaves, State]:
        length, grad = state.length, state.grad
        down = self.toward(f, region, scaled(-length, grad), state.iterate.theta)
        if not region.constrained:
            return down, state
        inside, vertex = region.block(down, free=False), region.block(state.vertex, free=False)
        _, most = _parabola(grad, vertex, length)
        _, least = _parabola(grad, inside, length)
        zero = array_namespace(length).zeros_like(length)
        ahead, calls = f.backend.when(most > least, partial(self._chased, f, region, state), (inside, zero))
        return plus(ahead, region.block(down, free=True)), worked(state, lmos=calls)

    def _chased(self, f: Any, region: Any, state: State, _: Any) -> tuple[Leaves, Array]:
        """The step toward vertices, and calls of the LMO: a sum of ways to vertices, over the sum of its weights."""
        theta, grad = state.iterate.theta, region.block(state.grad, free=False)
        vertex = region.block(state.vertex, free=False)
        xp = array_namespace(state.length)
        size = xp.sqrt(dot(grad, grad))

        def cosine(d: Leaves) -> Array:
            return -dot(grad, d) / (size * xp.sqrt(dot(d, d)))

        def more(chase: _Chase) -> _Chase:
            rest = plus(grad, chase.d)
            u = region.block(region.blmo(theta, rest).d, free=False)
            gap, dd = -dot(rest, u), dot(u, u)
            weight = gap / xp.where(dd > 0, dd, xp.ones_like(dd))
            d = plus(chase.d, scaled(weight, u))
            now = cosine(d)
            better = (gap > 0) & (now - chase.cosine >= self.aligned)
            found = _Chase(d, chase.total + weight, now, chase.n + 1, better)
            return select(better, found, chase._replace(n=chase.n + 1, going=better))

        weight = -dot(grad, vertex) / dot(vertex, vertex)
        d = scaled(weight, vertex)
        first = _Chase(d, weight, cosine(d), xp.zeros_like(weight), weight > 0)
        last = f.backend.while_loop(lambda chase: chase.going & (chase.n < self.chase - 1), more, first)
        ahead = scaled(1 / last.total, last.d)
        step, _ = _parabola(state.grad, ahead, state.length)
        return scaled(step, ahead), last.n


class _Chase(NamedTuple):
    d: Leaves
    total: Array  # of the weights
    cosine: Array  # with the way down
    n: Array
    going: Array


def _parabola(grad: Leaves, d: Leaves, length: Array) -> tuple[Array, Array]:
    """The step up to 1 that is best along `d` for a curvature of 1 / length, and the decrease that it promises."""
    xp = array_namespace(length)
    gap, dd = -dot(grad, d), dot(d, d)
    full = length * gap >= dd
    alpha = xp.where(full, xp.ones_like(dd), length * gap / xp.where(dd > 0, dd, xp.ones_like(dd)))
    alpha = xp.where(gap > 0, alpha, xp.zeros_like(alpha))
    return alpha, alpha * gap - 0.5 * alpha * alpha * dd / length


def _push(recent: Array, value: Array) -> Array:
    xp = array_namespace(recent)
    return xp.concat([recent[1:], xp.reshape(value, (1,))])
