"""Update rules: how gradients become steps, with what the rule remembers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, final

from xvarpro.backends.registry import owner
from xvarpro.core import checks
from xvarpro.core.namespace import device, namespace_of
from xvarpro.core.struct import REQUIRED, Array, Leaves, Struct
from xvarpro.core.trees import axpy, is_array, leaves, scaled
from xvarpro.errors import ProblemError

Rate: TypeAlias = float | Callable[[Array], Array]


class Update(Struct):
    """A rule that makes a step of a gradient."""

    @abstractmethod
    def init(self, theta: Leaves) -> Any:
        """Memory at the start: a nested tuple of arrays."""

    @abstractmethod
    def step(self, grad: Leaves, memory: Any, theta: Leaves, k: Array) -> tuple[Leaves, Any]:
        """What is added to theta, and the memory after it; `k`, 0-d, counts the steps before, 0, 1, ..."""


@dataclass(frozen=True)
class _Rated(Update):
    """A rule with a learning rate: a number, or a function of the number of steps before."""

    rate: Rate = 1e-3

    numbers = ("rate",)

    def __post_init__(self) -> None:
        if not callable(self.rate):
            checks.above(self, "rate", 0.0)

    def rate_at(self, k: Array) -> Array:
        """The rate of a step, 0-d."""
        rate: Any = self.rate
        return rate(k) if callable(rate) else rate + 0 * k


@final
@dataclass(frozen=True)
class SGD(_Rated):
    """``v <- momentum v + g``, then a step ``-rate v``, or ``-rate (g + momentum v)`` with Nesterov's momentum.

    Parameters
    ----------
    rate : float or callable
        Learning rate > 0, or ``rate(k)`` of the number of steps before, a 0-d array.
    momentum : float
        In [0, 1).
    nesterov : bool

    Notes
    -----
    Step : ``-rate v``, ``v <- momentum v + g``
    Memory : a vector
    When : a rate and a schedule are known to be good

    Examples
    --------
    >>> import xvarpro as xv
    >>> xv.algorithms.SGD(rate=lambda k: 0.1 / (1 + 0.01 * k), momentum=0.9).momentum
    0.9
    """

    rate: Rate = 1e-2
    momentum: float = 0.9
    nesterov: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= checks.number(self.momentum) < 1:
            raise ProblemError(f"SGD: momentum must be a number with 0 <= momentum < 1, got {self.momentum!r}")
        checks.switch("nesterov", self.nesterov)

    def init(self, theta: Leaves) -> Leaves:
        return scaled(0.0, theta)

    def step(self, grad: Leaves, memory: Leaves, theta: Leaves, k: Array) -> tuple[Leaves, Leaves]:
        v = axpy(self.momentum, memory, grad)
        return scaled(-self.rate_at(k), axpy(self.momentum, v, grad) if self.nesterov else v), v


class Moments(NamedTuple):
    """Averages of gradients and of their squares."""

    first: Leaves
    second: Leaves


@final
@dataclass(frozen=True)
class Adam(_Rated):
    """``-rate m / (sqrt(s) + eps)`` with averages m of gradients and s of their squares (Kingma, Ba 2015).

    Parameters
    ----------
    rate : float or callable
        As for `SGD`.
    beta1, beta2 : float
        What the averages keep of the past, in (0, 1).
    eps : float
        > 0, in units of the gradient of ``f / samples``.

    Notes
    -----
    Step : ``-rate m / (sqrt(s) + eps)``, without the bias of the start
    Memory : two vectors
    When : the default

    Examples
    --------
    >>> import xvarpro as xv
    >>> xv.algorithms.Adam(rate=0.01)
    Adam(rate=0.01, beta1=0.9, beta2=0.999, eps=1e-08)
    """

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.between(self, "beta1", 0, 1)
        checks.between(self, "beta2", 0, 1)
        checks.above(self, "eps", 0.0)

    def init(self, theta: Leaves) -> Moments:
        return Moments(scaled(0.0, theta), scaled(0.0, theta))

    def step(self, grad: Leaves, memory: Moments, theta: Leaves, k: Array) -> tuple[Leaves, Moments]:
        xp = namespace_of(k)
        m = tuple(self.beta1 * m + (1 - self.beta1) * g for m, g in zip(memory.first, grad, strict=True))
        s = tuple(self.beta2 * s + (1 - self.beta2) * g * g for s, g in zip(memory.second, grad, strict=True))
        alpha = -self.rate_at(k) / (1 - self.beta1 ** (k + 1))
        full = 1 - self.beta2 ** (k + 1)
        return tuple(alpha * a / (xp.sqrt(b / full) + self.eps) for a, b in zip(m, s, strict=True)), Moments(m, s)


@final
@dataclass(frozen=True)
class Optax(Update):
    """A gradient transformation of Optax, on JAX: schedules, clipping, weight decay and what else it has.

    Parameters
    ----------
    transformation : optax.GradientTransformation
        Or anything else with ``init(params)`` and ``update(grads, state, params)``, which compute with theta's arrays.
        It is not given the value of the objective, which `optax.lbfgs` and `reduce_on_plateau` need.

    Notes
    -----
    Step : the update of the transformation
    Memory : that of the transformation
    When : JAX, and what Optax has

    Examples
    --------
    >>> import optax, xvarpro as xv
    >>> xv.algorithms.StochasticProjectedGradient(update=xv.algorithms.Optax(optax.adamw(1e-3))).batch
    64
    """

    transformation: Any = REQUIRED

    def __post_init__(self) -> None:
        if self.transformation is not REQUIRED and not (
            callable(getattr(self.transformation, "init", None))
            and callable(getattr(self.transformation, "update", None))
        ):
            raise ProblemError(
                f"transformation must have init(params) and update(grads, state, params), got {self.transformation!r}"
            )

    def init(self, theta: Leaves) -> Any:
        if self.transformation is REQUIRED:
            raise ProblemError("Optax needs a transformation, such as Optax(optax.adam(1e-3)); got none")
        own = namespace_of(*theta)
        # a framework with its double precision off warns of float64
        probe = (own.zeros((1,), dtype=own.float32, device=device(theta[0])),)
        try:
            memory = self.transformation.init(probe)
            step, _ = self.transformation.update(probe, memory, probe)
        except TypeError as error:
            raise _unfit(theta, f"the error '{error}'") from error
        if any(is_array(x) and namespace_of(x) is not own for x in (*leaves(memory), *step)):
            raise _unfit(theta, "arrays of another framework")
        return self.transformation.init(theta)

    def step(self, grad: Leaves, memory: Any, theta: Leaves, k: Array) -> tuple[Leaves, Any]:
        step, memory = self.transformation.update(grad, memory, theta)
        return tuple(step), memory


def _unfit(theta: Leaves, got: str) -> ProblemError:
    return ProblemError(
        "Optax needs a transformation of gradient, state and theta alone that computes with arrays of the "
        f"{owner(theta[0]).name} backend; got {got}. Pass backend='jax' for those of Optax, and one that "
        "needs no value of the objective; or use SGD() or Adam()"
    )
