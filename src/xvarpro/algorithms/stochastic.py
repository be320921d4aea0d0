"""Methods from mini-batches of the upper level: the stochastic variants that the paper leaves to future work.

The terms of that level are its rows, or the right-hand sides of a separable problem that has several: `Reduced.samples`
of them, of which `Reduced.restricted` takes some. The eliminated variable is the exact minimiser of its level, on the
rows that `LowerRows` says.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any, NamedTuple, final

import numpy as np

from xvarpro.algorithms.common import add, at, certified, start
from xvarpro.algorithms.interface import Algorithm, Iterate
from xvarpro.algorithms.updates import Adam, Update
from xvarpro.backends.interface import select
from xvarpro.core import checks
from xvarpro.core.namespace import device, namespace_of
from xvarpro.core.struct import Array, Leaves, Struct
from xvarpro.core.trees import axpy, scaled, sub
from xvarpro.errors import ProblemError
from xvarpro.objective.interface import Objective
from xvarpro.objective.mini_batch import LowerRows
from xvarpro.sets.region import Region

PASSES = 4  # between certificates, each of which takes a pass and a half: a quarter of the work


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
    """State of a method that draws mini-batches."""

    iterate: Iterate  # the best certified one
    theta: Leaves  # the running point
    k: Array  # iterations done, 0-d
    batches: Array  # (period, terms), int32: terms of each batch
    memory: Any  # of the estimator or the update
    due: Array  # whether the next iteration ends with a certificate


class Moved(NamedTuple):
    """What an iteration has done; numbers or 0-d arrays but for theta and memory."""

    theta: Leaves
    memory: Any
    alpha: Array
    gradients: int  # on the mini-batch
    lmos: int
    projections: int


@dataclass(frozen=True)
class Stochastic(Algorithm):
    """Steps along mini-batch gradients, with certificates on all terms every so often."""

    batch: int = 64
    lower: LowerRows | None = None
    certify: int | None = None
    seed: int = 0
    period: int = 1024

    certifies_every_iteration = False
    monotone = True

    def __post_init__(self) -> None:
        for name, least in (("batch", 1), ("certify", 1), ("seed", 0), ("period", 1)):
            if getattr(self, name) is not None or name != "certify":
                checks.whole(self, name, least)
        if not (self.lower is None or isinstance(self.lower, LowerRows)):
            raise ProblemError(f"lower must be SameBatch(), SecondBatch(), AllRows() or None, got {self.lower!r}")

    @abstractmethod
    def first(self, f: Objective, theta: Leaves, grad: Leaves) -> Any:
        """Memory at the start, from the exact gradient there."""

    @abstractmethod
    def move(self, f: Objective, part: Objective, region: Region, state: StochasticState) -> Moved:
        """One iteration; `part` is the objective on its batch."""

    def anchor(self, theta: Leaves, grad: Leaves, memory: Any) -> Any:
        """Memory after an exact gradient has been taken at theta, for the certificate."""
        return memory

    def init(self, f: Objective, region: Region, theta: Leaves) -> StochasticState:
        iterate, grad, _ = start(f, region, theta)
        backend, xp = f.backend, namespace_of(iterate.value)
        drawn = self.draws(f.samples) if f.chunks is None else self.turns(f.chunks)
        draws = backend.asarray(drawn, device=device(iterate.status))
        k = xp.zeros_like(iterate.value)
        state = StochasticState(iterate, theta, k, draws, self.first(f, theta, grad), (k + 1) % self._every(f) == 0)
        self._part(f, state).check(theta)
        return state

    @property
    def _needed(self) -> int:
        return self.lower.draws if self.lower is not None else 1

    def draws(self, samples: int) -> np.ndarray:
        """The batches, one per row, as int32; a single one without columns where a batch would take every term.

        Every pass has an order of its own, and so have the several batches of an iteration.
        """
        if self.batch >= samples:
            return np.empty((1, 0), np.int32)
        rng = np.random.default_rng(self.seed)
        each = min(samples // self.batch, self.period)  # what is left of a pass makes no batch
        passes = -(-self.period // each)
        columns = []
        for _ in range(self._needed):
            drawn = [rng.choice(samples, (each, self.batch), replace=False) for _ in range(passes)]
            columns.append(np.concatenate(drawn)[: self.period])
        return np.concatenate(columns, axis=1).astype(np.int32)

    def turns(self, chunks: int) -> np.ndarray:
        """The same of chunks, which come in their own order."""
        if chunks == 1:
            return np.empty((1, 0), np.int32)
        return (np.arange(chunks * self._needed, dtype=np.int32) % chunks).reshape(chunks, -1)

    def rows_of_batch(self, f: Objective) -> float:
        whole = f.chunks == 1 if f.chunks is not None else self.batch >= f.samples
        return f.rows if whole else f.rows_of_batch(self.batch, self.lower)

    def _every(self, f: Objective) -> int:
        """Iterations between certificates; by default as many as make `PASSES` passes."""
        if self.certify is not None:
            return self.certify
        return PASSES * (f.chunks if f.chunks is not None else -(-f.samples // self.batch))

    def advance(self, f: Objective, region: Region, state: StochasticState) -> StochasticState:
        k = state.k + 1
        moved = self.move(f, self._part(f, state), region, state)
        n = moved.gradients
        work = add(
            state.iterate.counts,
            values=n, gradients=n, lmos=moved.lmos, projections=moved.projections, batches=n,
        )  # fmt: skip
        iterate = state.iterate._replace(alpha_A=moved.alpha, alpha_B=moved.alpha, counts=work)
        iterate, memory = f.backend.when(
            state.due,
            lambda s: self._certified(f, region, moved.theta, *s),
            (iterate, moved.memory),
        )
        return StochasticState(iterate, moved.theta, k, state.batches, memory, (k + 1) % self._every(f) == 0)

    def finish(self, f: Objective, region: Region, state: StochasticState) -> StochasticState:
        iterate, memory = f.backend.when(
            state.k % self._every(f) != 0,
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
        return f.restricted(xp.take(state.batches, at, axis=0)[0, :], self.lower)

    def _certified(
        self, f: Objective, region: Region, theta: Leaves, iterate: Iterate, memory: Any
    ) -> tuple[Iterate, Any]:
        point, grad, direction = certified(f, region, theta)
        # written so that NaN is reported, not passed over
        better = ~(point.value > iterate.value)
        found = at(iterate, point, direction, 1, 1)
        best = select(f.backend, better, found, iterate._replace(counts=found.counts))
        return best, self.anchor(theta, grad, memory)


@final
@dataclass(frozen=True)
class StochasticFrankWolfe(Stochastic):
    """Conditional gradient with open-loop steps ``alpha = min(cap, 2/(k + 8))`` along an estimated gradient.

    What is reported is exact. Every `certify` iterations, and at the end, value and gap of the running point are
    computed on all terms; the iterate, and the result, is the best point certified so far. The trace changes at
    certificates only, where its ``values`` rises by more than in other iterations. The tolerance is applied to exact
    gaps.

    If data are marked by `xvarpro.Samples`, or rows come as `xvarpro.RowChunks`, M is evaluated on the batch alone;
    chunks are batches as they come, whatever `batch` says. Without marks M is evaluated on all rows, and a batch saves
    the products with the other rows of the upper level, or with the target's other columns. A compressed target has no
    more columns than rows, and each is a term: mini-batches are for targets that are not compressed.

    Parameters
    ----------
    batch : int
        Terms per mini-batch, >= 1. A pass takes them in a new random order, none twice. All terms where there are no
        more: then every gradient is exact.
    lower : LowerRows, optional
        Rows that determine w: `SameBatch`, `SecondBatch` or `AllRows`; None is the first where M is evaluated on the
        batch alone, else the last. Right-hand sides and bilevel problems determine w by themselves.
    certify : int, optional
        Iterations between certificates, >= 1; None is as many as touch all terms four times.
    seed : int
        Of the draws, >= 0. NumPy makes them for every framework, so that batches are the same everywhere.
    period : int
        Batches drawn, >= 1; then they repeat in the same order.
    estimator : Estimator
        `Momentum` or `VarianceReduced`.
    cap : float
        Largest step, in (0, 1].

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

    certify: int | None = 10
    estimator: Estimator = field(default_factory=VarianceReduced)
    cap: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.share(self, "cap")
        if not isinstance(self.estimator, Estimator):
            raise ProblemError(f"estimator must be Momentum() or VarianceReduced(), got {self.estimator!r}")

    def first(self, f: Objective, theta: Leaves, grad: Leaves) -> Any:
        return self.estimator.init(theta, grad)

    def anchor(self, theta: Leaves, grad: Leaves, memory: Any) -> Any:
        return self.estimator.anchor(theta, grad, memory)

    def move(self, f: Objective, part: Objective, region: Region, state: StochasticState) -> Moved:
        xp = namespace_of(state.k)
        k = state.k + 1
        grad, memory, n = self.estimator.estimate(part, state.theta, k, state.memory)
        alpha = xp.minimum(xp.full_like(k, self.cap), 2 / (k + 8))
        theta = axpy(alpha, region.blmo(state.theta, grad).d, state.theta)
        return Moved(theta, memory, alpha, n, 1, 0)


@final
@dataclass(frozen=True)
class StochasticProjectedGradient(Stochastic):
    """Steps of an update rule along mini-batch gradients of the reduced objective, projected onto the sets after each.

    The rule receives the gradient of the mean over the terms, ``f / samples``, so that rates are those of any training.
    Batches, w, certificates and what is reported are as for `StochasticFrankWolfe`; a pass over the terms takes
    ``samples // batch`` iterations, and so many times the epochs is `max_iter`.

    Parameters
    ----------
    batch, lower, certify, seed, period
        As for `StochasticFrankWolfe`.
    update : Update
        `SGD`, `Adam`, or a transformation of Optax in `Optax`. Their steps depend on the units of theta or of f.

    Notes
    -----
    Oracle : projection; LMO for the certificate
    Per iteration : a mini-batch gradient, 1 projection; an exact certificate every `certify` iterations
    Memory : a few vectors, ``batch period`` indices
    Polytope only : no
    When : networks, with free leaves among the constrained, and many rows

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> x = np.linspace(-1.0, 1.0, 400)
    >>> def M(theta, data):
    ...     xp = xv.array_namespace(theta)
    ...     return xp.exp(-xp.expand_dims(data["x"], axis=1) * theta)
    >>> problem = xv.separable(M, np.exp(-2.0 * x), data={"x": xv.Samples(x)}, lam=1e-6)
    >>> method = xv.algorithms.StochasticProjectedGradient(batch=40, update=xv.algorithms.Adam(rate=0.05))
    >>> fit = xv.solve(problem, np.array([0.5]), xv.sets.Box(0.0, 5.0), algorithm=method, max_iter=20 * 10)
    >>> bool(abs(fit.theta[0] - 2.0) < 0.01)
    True
    """

    update: Update = field(default_factory=Adam)

    needs_projection = True
    has_units = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.update, Update):
            raise ProblemError(f"update must be SGD(), Adam() or Optax(transformation), got {self.update!r}")

    def first(self, f: Objective, theta: Leaves, grad: Leaves) -> Any:
        return self.update.init(theta)

    def move(self, f: Objective, part: Objective, region: Region, state: StochasticState) -> Moved:
        _, grad = part.value_and_gradient(state.theta)
        step, memory = self.update.step(scaled(1 / f.samples, grad), state.memory, state.theta, state.k)
        one = namespace_of(state.k).ones_like(state.k)
        return Moved(region.project(axpy(one, step, state.theta)), memory, one, 1, 0, 1)
