"""Baselines that step in theta and w at once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple, final

import numpy as np

from xvarpro import backends
from xvarpro.algorithms import AcceleratedProjectedGradient
from xvarpro.algorithms.interface import Algorithm, Iterate
from xvarpro.core.namespace import array_namespace, device, dtype_name
from xvarpro.core.struct import Array, Leaves
from xvarpro.core.trees import dot
from xvarpro.errors import ProblemError
from xvarpro.sets.region import Direction, Region
from xvarpro_experiments.rivals._common import JointMethod, Periodic, Step, positive, whole
from xvarpro_experiments.rivals.objective import Joint, lift


class Spectrum(NamedTuple):
    """The largest eigenvalue L of the Hessian, the last image of the power iteration, and whether its products are
    exact: () where they are, None where they are differences. Structure, so that no compiled loop asks.
    """

    u: Leaves
    L: Array
    exact: tuple[()] | None


@final
@dataclass(frozen=True)
class JointProjectedGradient(Periodic):
    """Simultaneous projected gradient on (theta, w) with one step for both, the paper's baseline.

    Parameters
    ----------
    every : int
        Iterations between refreshes of L, the largest eigenvalue of the joint Hessian by power iteration.
    sweeps : int
        Power iterations per refresh, each one Hessian product; thirty at the start.
    step : float, optional
        Fixed step > 0 instead of 1/L: `tune` finds the best one.
    certify : int
        Iterations between certificates.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> from xvarpro_experiments.rivals import JointProjectedGradient
    >>> problem = xv.separable(lambda D, _: D, np.eye(3), lam=1e-2)
    >>> D0 = np.diag([0.7, 0.2, 0.1])
    >>> fit = xv.solve(problem, D0, over=xv.sets.L1Ball(1.0), algorithm=JointProjectedGradient())
    >>> np.round(np.diag(fit.theta), 3), round(fit.value, 4)
    (array([0.385, 0.324, 0.291]), 0.1293)
    """

    every: int = 10
    sweeps: int = 5
    step: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        whole(self, "every", "sweeps")
        if self.step is not None:
            positive(self, "step")

    def _memory(self, J: Joint, C: Region, z: Leaves) -> Any:
        if self.step is not None:
            return ()
        grad = J.slopes(z)
        noise = tuple(_noise(x, seed) for seed, x in enumerate(z))
        memory = Spectrum(noise, _one(z), () if J.is_bilinear(z[:-1]) else None)
        return _powers(J, z, grad, 30 * memory.L, memory)[1]

    def _step(self, J: Joint, C: Region, z: Leaves, memory: Any, k: Array) -> Step:
        grad = J.slopes(z)
        work = 1 + 0 * k
        if self.step is None:
            due = (k > 0) & (k % self.every == 0)
            xp = array_namespace(k)
            sweeps = xp.where(due, xp.full_like(k, float(self.sweeps)), 0 * k)
            n, memory = _powers(J, z, grad, sweeps, memory)
            L, work = memory.L, work + n
        else:
            L = _one(z) / self.step
        moved = C.project(tuple(x - g / L for x, g in zip(z, grad, strict=True)))
        return Step(moved, memory, 1 / L, 1 / L, gradients=work)


class Moments(NamedTuple):
    """Running means of the gradient and of its square."""

    first: Leaves
    second: Leaves


@final
@dataclass(frozen=True)
class JointAdam(Periodic):
    """Adam (Kingma, Ba 2015) on (theta, w), projected after every step.

    Parameters
    ----------
    rate : float
        Learning rate > 0, constant: `tune` finds the best one.
    beta1, beta2 : float
        Decay of the two running means, in [0, 1).
    epsilon : float
        Added to the root of the second, > 0, in the units of the gradient.
    certify : int
        Iterations between certificates.

    Examples
    --------
    >>> from xvarpro_experiments.rivals import JointAdam
    >>> JointAdam(rate=1e-2).beta2
    0.999
    """

    rate: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "rate", "epsilon")
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ProblemError(f"JointAdam needs 0 <= {name} < 1, got {getattr(self, name)!r}")

    def _memory(self, J: Joint, C: Region, z: Leaves) -> Moments:
        zero = tuple(array_namespace(x).zeros_like(x) for x in z)
        return Moments(zero, zero)

    def _step(self, J: Joint, C: Region, z: Leaves, memory: Moments, k: Array) -> Step:
        grad = J.slopes(z)
        xp = array_namespace(k)
        first = tuple(self.beta1 * m + (1 - self.beta1) * g for m, g in zip(memory.first, grad, strict=True))
        second = tuple(self.beta2 * v + (1 - self.beta2) * (g * g) for v, g in zip(memory.second, grad, strict=True))
        unbias1, unbias2 = 1 - self.beta1 ** (k + 1), 1 - self.beta2 ** (k + 1)
        moved = C.project(
            tuple(
                x - self.rate * (m / unbias1) / (xp.sqrt(v / unbias2) + self.epsilon)
                for x, m, v in zip(z, first, second, strict=True)
            )
        )
        rate = xp.full_like(k, self.rate)
        return Step(moved, Moments(first, second), rate, rate)


class State(NamedTuple):
    """The iterate as theta alone, and the state of the inner algorithm, whose theta has w as its last leaf."""

    iterate: Iterate
    inner: Any


@final
@dataclass(frozen=True)
class Jointly(JointMethod):
    """An algorithm of the package on the joint problem: the same text, nothing eliminated.

    With the default it is FISTA on (theta, w), with restart and backtracking. What it gains on the reduced objective
    over this is the gain of elimination alone.

    Parameters
    ----------
    inner : Algorithm
        It sees w as one more free leaf.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> from xvarpro_experiments.rivals import Jointly
    >>> problem = xv.separable(lambda D, _: D, np.eye(3), lam=1e-2)
    >>> D0 = np.diag([0.7, 0.2, 0.1])
    >>> fit = xv.solve(problem, D0, over=xv.sets.L1Ball(1.0), algorithm=Jointly())
    >>> np.round(np.diag(fit.theta), 3), round(fit.value, 4)
    (array([0.333, 0.333, 0.333]), 0.1239)
    """

    inner: Algorithm = field(default_factory=AcceleratedProjectedGradient)

    def __post_init__(self) -> None:
        if not isinstance(self.inner, Algorithm) or isinstance(self.inner, JointMethod):
            raise ProblemError(f"Jointly runs one of xvarpro.algorithms, got {self.inner!r}")

    def init(self, f: Any, region: Region, theta: Leaves) -> State:
        J: Any = Joint(f)
        settled: Any = _Settled(lift(region, theta))
        return _outer(self.inner.init(J, settled, (*theta, J.best_w(theta))))

    def advance(self, f: Any, region: Region, state: State) -> State:
        J: Any = Joint(f)
        return _outer(self.inner.advance(J, lift(region, state.iterate.theta), state.inner))


class _Settled:
    """The lifted region at the start: w is optimal there, and the direction of its gradient is that of rounding errors,
    other ones in every framework. An inner algorithm that measures curvature along it is given 0 instead.
    """

    def __init__(self, region: Region) -> None:
        self._region = region

    def __getattr__(self, name: str) -> Any:
        return getattr(self._region, name)

    def blmo(self, z: Leaves, grad: Leaves) -> Direction:
        found = self._region.blmo(z, grad)
        return found._replace(d=(*found.d[:-1], array_namespace(*z).zeros_like(z[-1])))


def _outer(inner: Any) -> State:
    return State(inner.iterate._replace(theta=inner.iterate.theta[:-1]), inner)


def _powers(J: Joint, z: Leaves, grad: Leaves, n: Array, memory: Spectrum) -> tuple[Array, Spectrum]:
    """`n` power iterations with the Hessian of J at z."""
    xp = array_namespace(*z)

    def body(state: tuple[Array, Spectrum]) -> tuple[Array, Spectrum]:
        i, (u, _, exact) = state
        length = xp.sqrt(dot(u, u))
        image = J.hessian(z, grad, tuple(x / length for x in u), exact is not None)
        return i + 1, Spectrum(image, xp.sqrt(dot(image, image)), exact)

    return J.backend.while_loop(lambda state: state[0] < n, body, (0 * n, memory))


def _one(z: Leaves) -> Array:
    return array_namespace(*z).ones((), dtype=z[0].dtype, device=device(z[0]))


def _noise(like: Array, seed: int) -> Array:
    backend = backends.owner(like)
    noise = np.random.default_rng(seed).normal(size=tuple(like.shape))
    return backend.asarray(noise, dtype=dtype_name(like), device=device(like))
