"""The interface of a loss."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias, final

import numpy as np

from xvarpro.core.checks import described
from xvarpro.core.namespace import namespace_of
from xvarpro.core.struct import REQUIRED, Array, Struct
from xvarpro.errors import ProblemError

Weights: TypeAlias = Array | float

FLAT = 1e-3  # of the weight of reweighted least squares: the least curvature of a step's model


class Loss(Struct):
    """What a level pays for predictions ``mu = M(theta) w`` of its target, a sum over entries or rows.

    `mu` and the target `y` are arrays (m, k); `weights` are those of the problem, (m, 1), (m, k) or 1.0, and multiply
    the terms of the sum. Derivatives are by `mu`.
    """

    advice: ClassVar[str] = ""  # where the objective is not finite, or no w the best
    likelihood: ClassVar[bool] = False  # whether `value` is a negative log likelihood, up to a constant of the data
    convex: ClassVar[bool] = True
    by_entry: ClassVar[bool] = True  # whether `value` is a sum over entries of mu; else over its rows
    positive: ClassVar[bool] = False  # whether mu has to be positive where an entry has a weight
    linked: ClassVar[bool] = False  # whether mu is another function of what is expected than that itself
    needs_scale: ClassVar[bool] = False  # whether residuals are to give a scale
    unit: ClassVar[float] = 1.0  # residual whose square is the unit of `value`, which is near 1 in any units of y

    @abstractmethod
    def terms(self, mu: Array, y: Array, weights: Weights) -> Array:
        """The terms of the loss over ``unit^2``, (m, k) or (m, 1)."""

    def value(self, mu: Array, y: Array, weights: Weights) -> Array:
        """Their sum, 0-d."""
        return namespace_of(mu).sum(self.terms(mu, y, weights))

    @abstractmethod
    def slope(self, mu: Array, y: Array, weights: Weights) -> Array:
        """The gradient of the loss, (m, k)."""

    @abstractmethod
    def second(self, mu: Array, y: Array, weights: Weights) -> Array:
        """The diagonal of the second derivative of the loss, (m, k)."""

    def bend(self, mu: Array, y: Array, weights: Weights) -> Callable[[Array], Array]:
        """The map from a direction to the second derivative times it, (m, k) both."""
        h = self.second(mu, y, weights)
        return lambda d: h * d

    def model(self, mu: Array, y: Array, weights: Weights) -> Array:
        """Numbers > 0 in the place of `second` for a Newton step, (m, k): of a convex loss the same but for the least.

        A level with these has one solution, and to it the loss falls.
        """
        xp, h = namespace_of(mu), self.second(mu, y, weights)
        eps = xp.finfo(h.dtype).eps
        return xp.maximum(h, eps * xp.max(xp.abs(h), axis=-2, keepdims=True) + xp.finfo(h.dtype).smallest_normal)

    def scoring(self, mu: Array, y: Array, weights: Weights) -> Array:
        """As `model`, for longer steps: those of theta, and the one to a first w."""
        return self.model(mu, y, weights)

    def curvature(self, mu: Array, y: Array, weights: Weights) -> Array:
        """What is expected of `second`, over the weights: 1 for squares. A column has all entries of a problem."""
        return self.model(mu, y, 1.0)

    def factor(self, mu: Array, y: Array, weights: Weights) -> Array:
        """``slope / (weights (mu - y))``: with weights times this, least squares has the slope of the loss, (m, k)."""
        raise ProblemError(
            f"weights are those that a robust loss, or Poisson, gives to residuals; got {type(self).__name__}"
        )

    def mean(self, mu: Array) -> Array:
        """What is expected of the target, in its units, (m, k)."""
        return mu

    def saturated(self, y: Array, weights: Weights) -> Array:
        """The terms of the least value that any prediction has, as `terms`."""
        return 0 * y

    def in_units(self, unit: float) -> Loss | None:
        """The loss of numbers times `unit`, which multiplies it by ``unit^2``; None where there is none."""
        return None

    def start(self, y: Array) -> Array:
        """Predictions from which a first w is fitted, (m, k)."""
        return namespace_of(y).zeros_like(y)

    def sizes(self, y: Array, weights: Weights) -> Array:
        """Terms of what the loss is a small difference of where predictions are right, (m, k); 0 of small terms."""
        return 0 * y

    def check(self, y: np.ndarray) -> None:
        """Refuse a target that the loss is not for."""

    def multiplied(self, factor: float) -> Loss:
        """A multiple of the loss, as that of a mini-batch."""
        return Times(self, factor)

    def on(self, backend: Any) -> Loss:
        """The loss for arrays of a backend, which may be traced."""
        return self


@final
@dataclass(frozen=True)
class Squares(Loss):
    """Half the square of the residual, ``1/2 (mu - y)^2``: what a level has without a loss, and its name for it."""

    def terms(self, mu: Array, y: Array, weights: Weights) -> Array:
        return 0.5 * weights * (mu - y) ** 2

    def slope(self, mu: Array, y: Array, weights: Weights) -> Array:
        return weights * (mu - y)

    def second(self, mu: Array, y: Array, weights: Weights) -> Array:
        return weights + 0 * mu

    def start(self, y: Array) -> Array:
        return y

    def sizes(self, y: Array, weights: Weights) -> Array:
        return 0.5 * weights * y**2


def _times(name: str) -> Any:
    """A method of a multiple: that of the loss, times its factor."""
    return lambda self, *given: self.times * getattr(self.loss, name)(*given)


@final
@dataclass(frozen=True)
class Times(Loss):
    """A multiple of a loss, as that of a mini-batch.

    Weights need not multiply a loss: those of robust ones scale residuals.
    """

    loss: Loss = REQUIRED
    times: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.loss, Loss):
            raise ProblemError(f"Times: loss must be one of xvarpro.losses; got {described(self.loss)}")

    @property
    def by_entry(self) -> bool:  # type: ignore[override]
        return self.loss.by_entry

    @property
    def convex(self) -> bool:  # type: ignore[override]
        return self.loss.convex

    @property
    def unit(self) -> float:  # type: ignore[override]
        return self.loss.unit

    def bend(self, mu: Array, y: Array, weights: Weights) -> Callable[[Array], Array]:
        bend = self.loss.bend(mu, y, weights)
        return lambda d: self.times * bend(d)

    def root(self, mu: Array, y: Array, weights: Weights) -> Any:
        loss: Any = self.loss
        u, p = loss.root(mu, y, weights)
        return self.times**0.5 * u, p

    def start(self, y: Array) -> Array:
        return self.loss.start(y)

    terms, slope, second, model, scoring, sizes = map(_times, ("terms", "slope", "second", "model", "scoring", "sizes"))
