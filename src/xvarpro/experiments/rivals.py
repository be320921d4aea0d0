"""Joint baselines for dictionary learning: both blocks as variables, nothing eliminated.

They follow the package's `Algorithm` protocol, so that the same driver runs, times and traces them. Their objective is
their own, ``J(D, W) = 1/2 |D W - X|^2 + lam/2 |W|^2`` at their W; ``solve(problem, D, max_iter=0)`` gives the reduced
one, which is never larger.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np
from array_api_compat import array_namespace, device

from xvarpro import backends
from xvarpro.algorithms._common import add, counts, status
from xvarpro.errors import ProblemError
from xvarpro.protocols import Algorithm, Array, Iterate, Leaves
from xvarpro.trees import inner


class State(NamedTuple):
    """Both blocks, their previous values, the iteration, and the step length with the eigenvector behind it."""

    iterate: Iterate
    W: Array
    previous: tuple[Array, Array]
    k: Array
    L: Array
    eigenvector: tuple[Array, Array]


@final
@dataclass(frozen=True)
class JointProjectedGradient(Algorithm):
    """Simultaneous projected gradient on (D, W) with one step 1/L, the paper's baseline.

    Parameters
    ----------
    every : int
        Iterations between refreshes of L, the largest eigenvalue of the joint Hessian by power iteration.
    sweeps : int
        Power iterations per refresh, each one Hessian product.
    certify : int
        Iterations between certificates.
    """

    every: int = 10
    sweeps: int = 5
    certify: int = 20

    def init(self, f: Any, region: Any, theta: Leaves) -> State:
        state = _start(f, region, theta)
        eigenvector = state.eigenvector
        for _ in range(30):
            eigenvector, L = _power(f, theta[0], state.W, eigenvector)
        return state._replace(L=L, eigenvector=eigenvector)

    def advance(self, f: Any, region: Any, state: State) -> State:
        D, W = state.iterate.theta[0], state.W

        def refresh(s: tuple[Array, Array, tuple[Array, Array]]) -> tuple[Array, Array, tuple[Array, Array]]:
            eigenvector, L = _power(f, D, W, s[2])
            return s[0] + 1, L, eigenvector

        xp = array_namespace(D)
        due = (state.k > 0) & (state.k % self.every == 0)
        sweeps = xp.where(due, xp.full_like(state.k, self.sweeps), 0 * state.k)
        _, L, eigenvector = f.backend.while_loop(
            lambda s: s[0] < sweeps, refresh, (0 * state.k, state.L, state.eigenvector)
        )
        E = D @ W - f.problem.lower.y
        (D_next,) = region.project((D - (E @ W.mT) / L,))
        W_next = W - (D.mT @ E + f.problem.lower.lam * W) / L
        return _finish(f, region, state, D_next, W_next, 1 / L, self.certify)._replace(L=L, eigenvector=eigenvector)


@final
@dataclass(frozen=True)
class IPALM(Algorithm):
    """Inertial proximal alternating linearised minimisation (Pock, Sabach 2016); PALM without inertia.

    Each block steps with 1/L of its own partial gradient, L from the largest eigenvalue of a Gram matrix.

    Parameters
    ----------
    inertia : float or None
        Constant extrapolation in [0, 1); None is ``(k - 1)/(k + 2)``.
    scale : float
        Factor on both step lengths, > 0.
    certify : int
        Iterations between certificates.
    """

    inertia: float | None = None
    scale: float = 1.0
    certify: int = 20

    def __post_init__(self) -> None:
        if self.inertia is not None and not 0 <= self.inertia < 1:
            raise ProblemError(f"IPALM needs an inertia in [0, 1) or None, got {self.inertia!r}")
        if not 0 < self.scale < math.inf:
            raise ProblemError(f"IPALM needs scale > 0, got {self.scale!r}")

    def init(self, f: Any, region: Any, theta: Leaves) -> State:
        return _start(f, region, theta)

    def advance(self, f: Any, region: Any, state: State) -> State:
        D, W, (D_old, W_old) = state.iterate.theta[0], state.W, state.previous
        X, lam, k = f.problem.lower.y, f.problem.lower.lam, state.k + 1
        beta = (k - 1) / (k + 2) if self.inertia is None else self.inertia + 0 * k
        Y = D + beta * (D - D_old)
        (D_next,) = region.project((Y - (self.scale / _top(W @ W.mT)) * ((Y @ W - X) @ W.mT),))
        Z = W + beta * (W - W_old)
        step = self.scale / (_top(D_next.mT @ D_next) + lam)
        W_next = Z - step * (D_next.mT @ (D_next @ Z - X) + lam * Z)
        return _finish(f, region, state, D_next, W_next, step, self.certify)


def _start(f: Any, region: Any, theta: Leaves) -> State:
    """From D and the W that is optimal for it."""
    if not f.problem.is_separable or len(theta) != 1:
        raise ProblemError("the joint baselines are written for dictionary learning: M(theta) = theta, one level")
    point, grad = f.value_and_gradient(theta)
    direction = region.blmo(theta, grad)
    zero = 0 * point.value
    iterate = Iterate(
        theta, point.value, direction.gap_A, direction.gap_B, zero, zero, status(zero), counts(zero, 1, 1, 1)
    )
    return State(iterate, point.w, (theta[0], point.w), zero, zero + 1, (_noise(theta[0], 0), _noise(point.w, 1)))


def _finish(f: Any, region: Any, state: State, D: Array, W: Array, step: Array, certify: int) -> State:
    """The next state, with a fresh certificate where one is due."""
    xp = array_namespace(D)
    k, old = state.k + 1, state.iterate

    due = k % certify == 0
    value, gap_A, gap_B = f.backend.when(
        due, lambda _: _certificate(f, region, D, W), (old.value, old.gap_A, old.gap_B)
    )
    n = xp.astype(due, D.dtype)
    work = add(old.counts, values=n, gradients=1, lmos=n, projections=1)
    iterate = Iterate((D,), value, gap_A, gap_B, step, step, status(step), work)
    return state._replace(iterate=iterate, W=W, previous=(old.theta[0], state.W), k=k)


def _certificate(f: Any, region: Any, D: Array, W: Array) -> tuple[Array, Array, Array]:
    """J, its Frank-Wolfe gap in D, and the norm of its gradient in W."""
    lam = f.problem.lower.lam
    E = D @ W - f.problem.lower.y
    direction = region.blmo((D,), (E @ W.mT,))
    slope = D.mT @ E + lam * W
    xp = array_namespace(D)
    J = 0.5 * inner(E, E) + (0.5 * lam) * inner(W, W)
    return J, direction.gap_A, direction.gap_B + xp.sqrt(inner(slope, slope))


def _power(f: Any, D: Array, W: Array, u: tuple[Array, Array]) -> tuple[tuple[Array, Array], Array]:
    """One power iteration with the Hessian of J at (D, W), by its exact product."""
    X, lam = f.problem.lower.y, f.problem.lower.lam
    xp = array_namespace(D)
    length = xp.sqrt(inner(u[0], u[0]) + inner(u[1], u[1]))
    dD, dW = u[0] / length, u[1] / length
    E, dE = D @ W - X, dD @ W + D @ dW
    out = dE @ W.mT + E @ dW.mT, dD.mT @ E + D.mT @ dE + lam * dW
    return out, xp.sqrt(inner(out[0], out[0]) + inner(out[1], out[1]))


def _top(A: Array) -> Array:
    """Largest eigenvalue of a symmetric matrix."""
    xp = array_namespace(A)
    return xp.max(xp.linalg.eigvalsh(A))


def _noise(like: Array, seed: int) -> Array:
    backend = backends.owner(like)
    noise = np.random.default_rng(seed).normal(size=tuple(like.shape))
    return backend.asarray(noise, dtype=backend.dtype_name(like), device=device(like))
