"""Baselines that step in theta and w by turns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, final

from xvarpro.algorithms.common import curvature
from xvarpro.core.namespace import array_namespace
from xvarpro.core.struct import Array, Leaves
from xvarpro.core.trees import axpy, dot, rounding, sub
from xvarpro.errors import ProblemError
from xvarpro.sets.region import Region
from xvarpro_experiments.rivals._common import Periodic, Step, positive, whole
from xvarpro_experiments.rivals.objective import Joint, Point, top

_DICTIONARY, _BILINEAR = (), ((),)  # no arrays: a compiled loop knows which it is by the structure
_SHRINK, _GROW, _LIMIT = 0.8, 2.0, 60  # of a backtracked L, as in the package's accelerated method


class Memory(NamedTuple):
    """The point before, and the estimate of L in theta: a tuple for a bilinear problem, which has a formula."""

    previous: Leaves
    L: Any


@final
@dataclass(frozen=True)
class IPALM(Periodic):
    """Inertial proximal alternating linearised minimisation (Pock, Sabach 2016); PALM without inertia.

    Each block steps with 1/L of its own partial gradient. In w, and in a dictionary, L is the largest eigenvalue of a
    Gram matrix, in convolutions that of a spectrum; in any other theta it is found by backtracking.

    Parameters
    ----------
    inertia : float or None
        Constant extrapolation in [0, 1); None is ``(k - 1)/(k + 2)``.
    scale : float
        Factor on the step lengths that come from an eigenvalue, > 0.
    certify : int
        Iterations between certificates.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> from xvarpro_experiments.rivals import IPALM
    >>> problem = xv.separable(lambda D, _: D, np.eye(3), lam=1e-2)
    >>> D0 = np.diag([0.7, 0.2, 0.1])
    >>> fit = xv.solve(problem, D0, over=xv.sets.L1Ball(1.0), algorithm=IPALM())
    >>> np.round(np.diag(fit.theta), 3), round(fit.value, 4)
    (array([0.333, 0.333, 0.333]), 0.1239)
    """

    inertia: float | None = None
    scale: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.inertia is not None and not 0 <= self.inertia < 1:
            raise ProblemError(f"IPALM needs an inertia in [0, 1) or None, got {self.inertia!r}")
        positive(self, "scale")

    def _memory(self, J: Joint, C: Region, z: Leaves) -> Memory:
        return Memory(z, _first_L(J, z))

    def _step(self, J: Joint, C: Region, z: Leaves, memory: Memory, k: Array) -> Step:
        beta = k / (k + 3) if self.inertia is None else self.inertia + 0 * k
        *ahead, _ = axpy(beta, sub(z, memory.previous), z)
        w, w_old = z[-1], memory.previous[-1]
        L: Any
        alpha: Any
        if isinstance(memory.L, tuple):
            grad = J.slope_theta(tuple(ahead), w)
            alpha, L, trials = self.scale / J.curvature_theta(tuple(ahead), w), memory.L, 1 + 0 * k
            values = 0 * k
            theta = _project(C, axpy(-alpha, grad, tuple(ahead)), w)
        else:
            theta, L, trials = _descend(J, C, *J.by_theta(tuple(ahead), w), memory.L)
            alpha, values = 1 / L, trials + 1
        at = w + beta * (w - w_old)
        slope, L_w = J.by_w(theta, at)
        step = self.scale / L_w
        return Step((*theta, at - step * slope), Memory(z, L), alpha, step, values, 1, trials)


def palm(scale: float = 1.0, certify: int = 20) -> IPALM:
    """PALM (Bolte, Sabach, Teboulle 2014): `IPALM` without inertia.

    Examples
    --------
    >>> from xvarpro_experiments.rivals import palm
    >>> palm().inertia
    0.0
    """
    return IPALM(0.0, scale, certify=certify)


class Sweep(NamedTuple):
    """FISTA in theta: iterations, iterate, extrapolated point, momentum, L, projections."""

    i: Array
    theta: Leaves
    at: Leaves
    t: Array
    L: Array
    trials: Array


@final
@dataclass(frozen=True)
class AlternatingLeastSquares(Periodic):
    """Alternating least squares: FISTA steps in theta at fixed w, then the w that is optimal for it.

    For a dictionary the steps share one Gram matrix of w and one product with the data; for it and for convolutions 1/L
    comes from the largest eigenvalue, and `sweeps` large enough makes them the exact constrained minimum. For any other
    theta L is found by backtracking, and ``sweeps=1`` is one projected gradient step.

    Parameters
    ----------
    sweeps : int
        Steps in theta per iteration, >= 1.
    certify : int
        Iterations between certificates.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> from xvarpro_experiments.rivals import AlternatingLeastSquares
    >>> problem = xv.separable(lambda D, _: D, np.eye(3), lam=1e-2)
    >>> D0 = np.diag([0.7, 0.2, 0.1])
    >>> fit = xv.solve(problem, D0, over=xv.sets.L1Ball(1.0), algorithm=AlternatingLeastSquares(certify=5))
    >>> np.round(np.diag(fit.theta), 3), round(fit.value, 4)
    (array([0.333, 0.333, 0.333]), 0.1239)
    """

    sweeps: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        whole(self, "sweeps")

    def _memory(self, J: Joint, C: Region, z: Leaves) -> Any:
        return _first_L(J, z)

    def _step(self, J: Joint, C: Region, z: Leaves, memory: Any, k: Array) -> Step:
        *theta, w = z
        start = tuple(theta)
        L, one = memory, 1 + 0 * k
        bilinear = isinstance(memory, tuple)
        dictionary = bilinear and memory == _DICTIONARY
        if dictionary:
            gram, data = w @ w.mT, J.problem.lower.y @ w.mT
            L = top(gram)
        elif bilinear:
            L = J.curvature_theta(start, w)

        def forward(at: Leaves, L: Array) -> tuple[Leaves, Array, Array]:
            if dictionary:
                return _project(C, (at[0] - (at[0] @ gram - data) / L,), w), L, one
            if bilinear:
                return _project(C, axpy(-1 / L, J.slope_theta(at, w), at), w), L, one
            return _descend(J, C, *J.by_theta(at, w), L)

        def sweep(state: Sweep) -> Sweep:
            new, L, n = forward(state.at, state.L)
            t = 0.5 * (1 + (1 + 4 * state.t * state.t) ** 0.5)
            ahead = axpy((state.t - 1) / t, sub(new, state.theta), new)
            return Sweep(state.i + 1, new, ahead, t, L, state.trials + n)

        end = J.backend.while_loop(
            lambda state: state.i < self.sweeps, sweep, Sweep(0 * k, start, start, one, L, 0 * k)
        )
        values = 1 if bilinear else end.trials + self.sweeps + 1
        memory = memory if bilinear else end.L
        return Step((*end.theta, J.best_w(end.theta)), memory, 1 / end.L, one, values, self.sweeps, end.trials)


def _first_L(J: Joint, z: Leaves) -> Any:
    """A first estimate of L in theta, from a difference of gradients; structure alone where there is a formula."""
    *theta, w = z
    if J.is_bilinear(z[:-1]):
        return _DICTIONARY if J.is_dictionary(z[:-1]) else _BILINEAR
    grad = J.slope_theta(tuple(theta), w)
    by_theta: Any = _AtW(J, w)
    return curvature(by_theta, tuple(theta), grad, grad)


class _AtW:
    """J as a function of theta alone."""

    exact = True

    def __init__(self, J: Joint, w: Array) -> None:
        self.J, self.w = J, w

    def value_and_gradient(self, theta: Leaves) -> tuple[Point, Leaves]:
        return self.J.by_theta(theta, self.w)


def _project(C: Region, theta: Leaves, w: Array) -> Leaves:
    return C.project((*theta, w))[:-1]


def _descend(J: Joint, C: Region, at: Point, grad: Leaves, L: Array) -> tuple[Leaves, Array, Array]:
    """Projected gradient step in theta from a point; L grows until the quadratic model is an upper bound."""
    *theta, w = at.theta
    slack = rounding(at.value)

    def trial(L: Array, n: Array) -> tuple[Array, Leaves, Array, Array]:
        new = _project(C, axpy(-1 / L, grad, tuple(theta)), w)
        return L, new, J.point((*new, w)).value, n

    def rejected(state: tuple[Array, Leaves, Array, Array]) -> Array:
        L, new, value, n = state
        d = sub(new, tuple(theta))
        return ~(value <= at.value + dot(grad, d) + (0.5 * L) * dot(d, d) + slack) & (n < _LIMIT)

    one = array_namespace(L).ones_like(L)
    L, new, _, n = J.backend.while_loop(rejected, lambda s: trial(s[0] * _GROW, s[3] + 1), trial(L * _SHRINK, one))
    return new, L, n
