"""Frank-Wolfe from mini-batches of the upper level: the stochastic variants that the paper leaves to future work.

The terms of that level are its rows, or the right-hand sides of a separable problem that has several: `Reduced.samples`
of them, of which `Reduced.restricted` takes some. The eliminated variable stays the exact minimiser of its level.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any, NamedTuple, final

import numpy as np

from xvarpro.algorithms.common import add, at, certified, start
from xvarpro.algorithms.interface import Algorithm, Iterate
from xvarpro.backends.selection import select
from xvarpro.core import checks
from xvarpro.core.namespace import device, namespace_of
from xvarpro.core.struct import Array, Leaves, Struct
from xvarpro.core.trees import axpy, sub
from xvarpro.errors import ProblemError
from xvarpro.objective.interface import Objective
from xvarpro.sets.region import Region


class Estimate(NamedTuple):
    """A gradient, what the estimator carries on, and the mini-batch gradients that it took, a Python number."""

    grad: Leaves
    memory: Any
    gradients: int


class Estimator(Struct):
    """How mini-batch gradients become the gradient that a step is taken with."""

    @abstractmethod
    def init(self, theta: Leaves, grad: Leaves) -> Any:
        """Memory at the start, from the exact gradient there."""

    @abstractmethod
    def estimate(self, f: Objective, theta: Leaves, k: Array, memory: Any) -> Estimate:
        """The gradient of iteration ``k = 1, 2, ...`` at theta, `f` being the objective on this iteration's batch."""

    def anchor(self, theta: Leaves, grad: Leaves, memory: Any) -> Any:
        """Memory after an exact gradient has been taken at theta, for the certificate."""
        return memory


@final
@dataclass(frozen=True)
class Momentum(Estimator):
    """Averaged gradient ``d <- (1 - rho) d + rho grad_B(theta)``, ``rho = 4/(k + 8)^(2/3)``.

    The noise of a batch of any fixed size averages out at the rate ``k^(-2/3)``, at one mini-batch gradient an
    iteration (Mokhtari, Hassani, Karbasi 2020). The exact gradients of the certificates are not used.

    Notes
    -----
    Estimate : ``(1 - rho) d + rho grad_B``, ``rho = 4 / (k + 8)^(2/3)``
    Per iteration : 1 mini-batch gradient
    When : mini-batch gradients are expensive

    Examples
    --------
    >>> import xvarpro as xv
    >>> xv.algorithms.StochasticFrankWolfe(estimator=xv.algorithms.Momentum()).estimator
    Momentum()
    """

    def init(self, theta: Leaves, grad: Leaves) -> Leaves:
        return grad

    def estimate(self, f: Objective, theta: Leaves, k: Array, memory: Leaves) -> Estimate:
        _, grad = f.value_and_gradient(theta)
        mean = axpy(4 / (k + 8) ** (2 / 3), sub(grad, memory), memory)
        return Estimate(mean, mean, 1)


class Anchor(NamedTuple):
    """A point and a gradient there, exact or estimated."""

    theta: Leaves
    grad: Leaves


@final
@dataclass(frozen=True)
class VarianceReduced(Estimator):
    """``g = g_0 + grad_B(theta) - grad_B(theta_0)``: a batch estimates only the change of the gradient since theta_0.

    Both gradients of an iteration are taken on the same batch, so that the noise goes to 0 with the distance between
    the points. Each certificate starts again from its exact gradient, which costs nothing more.

    Parameters
    ----------
    recursive : bool
        True: theta_0 is the previous iterate and ``g_0`` the estimate there (SPIDER-FW: Yurtsever, Sra, Cevher 2019).
        False: theta_0 is the point of the last certificate and ``g_0`` its exact gradient (SVRF: Hazan, Luo 2016, with
        batches and epochs of fixed length).

    Notes
    -----
    Estimate : ``g_0 + grad_B(theta) - grad_B(theta_0)``
    Per iteration : 2 mini-batch gradients
    When : the default

    Examples
    --------
    >>> import xvarpro as xv
    >>> xv.algorithms.VarianceReduced(recursive=False)
    VarianceReduced(recursive=False)
    """

    recursive: bool = True

    def init(self, theta: Leaves, grad: Leaves) -> Anchor:
        return Anchor(theta, grad)

    def estimate(self, f: Objective, theta: Leaves, k: Array, memory: Anchor) -> Estimate:
        _, here = f.value_and_gradient(theta)
        _, there = f.value_and_gradient(memory.theta)
        grad = axpy(1.0, sub(here, there), memory.grad)
        return Estimate(grad, Anchor(theta, grad) if self.recursive else memory, 2)

    def anchor(self, theta: Leaves, grad: Leaves, memory: Anchor) -> Anchor:
        return Anchor(theta, grad)


class StochasticState(NamedTuple):
    """State of `StochasticFrankWolfe`."""

    iterate: Iterate  # the best certified one
    theta: Leaves  # the running point
    k: Array  # iterations done, 0-d
    batches: Array  # (period, batch), int32: terms of each batch
    memory: Any  # of the estimator


@final
@dataclass(frozen=True)
class StochasticFrankWolfe(Algorithm):
    """Conditional gradient with open-loop steps ``alpha = min(cap, 2/(k + 8))`` along an estimated gradient.

    What is reported is exact: every `certify` iterations value and gap of the running point are computed on all terms,
    and the iterate is the best point certified so far. Its theta, value and gap belong together at every time, the
    trace changes at certificates only (where its ``values`` rises by more than in other iterations), the tolerance is
    applied to exact gaps, and the result is a certified point: the end of a solve is certified too.

    A batch saves what depends on the number of terms: the products with the target's columns, or those with the rows
    of the upper level. M(theta) is evaluated as a whole and the lower level factored once per mini-batch gradient. A
    target that was compressed has as few columns as rows, and each is a term: mini-batches are for targets that are
    not.

    Parameters
    ----------
    batch : int
        Terms per mini-batch, >= 1, drawn without replacement. All terms where there are no more: then every gradient
        is exact.
    estimator : Estimator
        `Momentum` or `VarianceReduced`.
    certify : int
        Iterations between certificates, >= 1.
    cap : float
        Largest step, in (0, 1].
    seed : int
        Of the draws, >= 0. NumPy makes them for every framework, so that batches are the same everywhere.
    period : int
        Independent batches drawn, >= 1; then they repeat in the same order.

    Notes
    -----
    Oracle : LMO
    Per iteration : mini-batch gradients by `estimator`, 1 LMO; an exact certificate every `certify` iterations
    Memory : a few vectors, ``batch period`` indices
    Polytope only : no
    When : more terms than an iteration should touch, in a target that was not compressed

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> y = np.random.default_rng(0).normal(size=(5, 400))
    >>> problem = xv.separable(lambda theta, data: theta, y, lam=1.0, compress=False)
    >>> D0 = np.eye(5, 3) / 3
    >>> sfw = xv.algorithms.StochasticFrankWolfe(batch=20, certify=10)
    >>> fit = xv.solve(problem, D0, over=xv.sets.L1Ball(1.0), algorithm=sfw, max_iter=50)
    >>> len(set(fit.trace.value)) <= 6, bool(fit.value < fit.trace.value[0])
    (True, True)
    """

    batch: int = 64
    estimator: Estimator = field(default_factory=VarianceReduced)
    certify: int = 10
    cap: float = 1.0
    seed: int = 0
    period: int = 1024

    certifies_every_iteration = False
    monotone = True

    def __post_init__(self) -> None:
        for name, least in (("batch", 1), ("certify", 1), ("seed", 0), ("period", 1)):
            checks.whole(self, name, least)
        checks.share(self, "cap")
        if not isinstance(self.estimator, Estimator):
            raise ProblemError(f"estimator must be Momentum() or VarianceReduced(), got {self.estimator!r}")

    def init(self, f: Objective, region: Region, theta: Leaves) -> StochasticState:
        iterate, grad, _ = start(f, region, theta)
        backend = f.backend
        draws = backend.asarray(self.draws(f.samples), device=device(iterate.status))
        return StochasticState(iterate, theta, 0 * iterate.value, draws, self.estimator.init(theta, grad))

    def draws(self, samples: int) -> np.ndarray:
        """The batches, one per row, as int32; a single one without columns where a batch would take every term."""
        if self.batch >= samples:
            return np.empty((1, 0), np.int32)
        rng = np.random.default_rng(self.seed)
        rows = [rng.choice(samples, self.batch, replace=False, shuffle=False) for _ in range(self.period)]
        return np.stack(rows).astype(np.int32)

    def advance(self, f: Objective, region: Region, state: StochasticState) -> StochasticState:
        xp = namespace_of(state.k)
        k = state.k + 1
        grad, memory, n = self.estimator.estimate(self._part(f, state), state.theta, k, state.memory)
        alpha = xp.minimum(xp.full_like(k, self.cap), 2 / (k + 8))
        theta = axpy(alpha, region.blmo(state.theta, grad).d, state.theta)
        work = add(state.iterate.counts, values=n, gradients=n, lmos=1)
        iterate = state.iterate._replace(alpha_A=alpha, alpha_B=alpha, counts=work)
        iterate, memory = f.backend.when(
            k % self.certify == 0, lambda s: self._certified(f, region, theta, *s), (iterate, memory)
        )
        return StochasticState(iterate, theta, k, state.batches, memory)

    def finish(self, f: Objective, region: Region, state: StochasticState) -> StochasticState:
        iterate, memory = f.backend.when(
            state.k % self.certify != 0,
            lambda s: self._certified(f, region, state.theta, *s),
            (state.iterate, state.memory),
        )
        return state._replace(iterate=iterate, memory=memory)

    def _part(self, f: Objective, state: StochasticState) -> Objective:
        """The objective on this iteration's batch."""
        period, size = state.batches.shape
        if not size:
            return f
        xp = namespace_of(state.batches)
        at = xp.reshape(xp.astype(state.k % period, state.batches.dtype), (1,))
        return f.restricted(xp.take(state.batches, at, axis=0)[0, :])

    def _certified(
        self, f: Objective, region: Region, theta: Leaves, iterate: Iterate, memory: Any
    ) -> tuple[Iterate, Any]:
        point, grad, direction = certified(f, region, theta)
        # written so that NaN is reported, not passed over
        better = ~(point.value > iterate.value)
        found = at(iterate, point, direction, 1, 1)
        best = select(f.backend, better, found, iterate._replace(counts=found.counts))
        return best, self.estimator.anchor(theta, grad, memory)
