"""Losses of the residuals of a fit, and the weights under which least squares has the same gradient."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from math import inf
from typing import ClassVar, final

import numpy as np

from xvarpro.core import checks
from xvarpro.core.namespace import namespace_of, positive_or_one
from xvarpro.core.struct import Array, Struct
from xvarpro.errors import ProblemError

__all__ = ["Cauchy", "Huber", "Loss", "Poisson", "SoftL1"]

NORMAL = 1.482602218505602  # standard deviation of normal numbers over the median of their sizes


class Loss(Struct):
    """What a fit pays for an entry of its target, as a function of the model ``mu`` there.

    `mu` and the target `y` are arrays (m, k); `weights` are those of the problem, (m, 1) or (m, k).
    """

    advice: ClassVar[str] = ""  # where the objective is not finite
    likelihood: ClassVar[bool] = False  # whether `value` is a negative log likelihood, up to a constant of the data

    @abstractmethod
    def value(self, mu: Array, y: Array, weights: Array) -> Array:
        """The loss of all entries over ``unit^2``, 0-d."""

    @abstractmethod
    def factor(self, mu: Array, y: Array, weights: Array) -> Array:
        """By what the weights are multiplied, so that ``1/2 factor weights (mu - y)^2`` has the gradient of the loss.

        That is ``value' / (weights (mu - y))``, entry by entry; the factor is held.
        """

    @abstractmethod
    def curvature(self, mu: Array, y: Array, weights: Array) -> Array:
        """What is expected of the second derivative of the loss by `mu`, over the weights: 1 for least squares."""

    @property
    def unit(self) -> float:
        """Residual whose square is the unit of `value`, which has numbers near 1 whatever the units of the target."""
        return 1.0

    @property
    def needs_scale(self) -> bool:
        """Whether residuals are to give a scale."""
        return False

    def scaled_by(self, r: np.ndarray) -> Loss:
        """The loss with the scale that weighted residuals r give."""
        return self

    def first_factor(self, y: Array) -> Array:
        """The factor for a first fit, before there is a model: 1, plain least squares."""
        return namespace_of(y).ones_like(y)

    def check(self, y: np.ndarray) -> None:
        """Refuse a target that the loss is not for."""


class Robust(Loss):
    """``1/2 scale^2 rho((r / scale)^2)`` of ``r = sqrt(weights) (mu - y)``, with a concave rho and ``rho'(0) = 1``."""

    scale: float | None
    tuning: ClassVar[float]  # scale in standard deviations, for 95 % efficiency on normal residuals

    def __post_init__(self) -> None:
        if self.scale is not None:
            checks.above(self, "scale", 0.0)

    @abstractmethod
    def rho(self, z: Array) -> Array:
        """Loss of squares ``z = (r / scale)^2``, as `scipy.optimize.least_squares` has it."""

    @abstractmethod
    def weight(self, z: Array) -> Array:
        """``rho'(z)``: the factor of a weight in reweighted least squares, in (0, 1]."""

    @abstractmethod
    def slope(self, z: Array) -> Array:
        """``psi'(r) = rho'(z) + 2 z rho''(z)``, the second derivative of the loss by its residual."""

    @property
    def unit(self) -> float:
        if self.scale is None:
            raise ProblemError(f"{type(self).__name__}: scale must be a number here; got None. A fit estimates it")
        return self.scale

    def value(self, mu: Array, y: Array, weights: Array) -> Array:
        return 0.5 * namespace_of(mu).sum(self.rho(self._squares(mu, y, weights)))

    def factor(self, mu: Array, y: Array, weights: Array) -> Array:
        return self.weight(self._squares(mu, y, weights))

    def curvature(self, mu: Array, y: Array, weights: Array) -> Array:
        xp, slope = namespace_of(mu), self.slope(self._squares(mu, y, weights))
        used = xp.astype(weights + 0 * slope > 0, slope.dtype)
        mean = xp.sum(used * slope) / xp.sum(used)
        if not mean > 0:
            raise ProblemError(
                f"{type(self).__name__}: standard errors need a loss that bends up, on average over the residuals; got "
                f"a mean second derivative of {float(mean):.2g} with the scale {self.scale:g}. Pass a larger scale"
            )
        return 0 * slope + mean

    @property
    def needs_scale(self) -> bool:
        return self.scale is None

    def scaled_by(self, r: np.ndarray) -> Loss:
        spread = float(np.median(np.abs(r)))
        if not spread > 0:
            raise ProblemError(
                f"{type(self).__name__}: scale=None takes the scale from the residuals, and more than half of them are "
                f"{spread:g}. Pass scale="
            )
        return type(self)(self.tuning * NORMAL * spread)  # type: ignore[call-arg]

    def _squares(self, mu: Array, y: Array, weights: Array) -> Array:
        return weights * ((mu - y) / self.unit) ** 2


@final
@dataclass(frozen=True)
class Huber(Robust):
    """Squares of residuals up to the scale, absolute values beyond: ``rho(z) = z``, and ``2 sqrt(z) - 1`` for z > 1.

    Parameters
    ----------
    scale : float, optional
        Residual, times the root of its weight, at which the loss becomes linear, > 0: ``f_scale`` of
        `scipy.optimize.least_squares`. None is 1.345 robust standard deviations of the residuals that
        the fit leaves.

    References
    ----------
    P. J. Huber, Robust estimation of a location parameter, Ann. Math. Statist. 35 (1964).

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> loss = xv.losses.Huber(1.0)
    >>> loss.rho(np.array([0.25, 4.0])), loss.weight(np.array([0.25, 4.0]))
    (array([0.25, 3.  ]), array([1. , 0.5]))
    """

    scale: float | None = None

    tuning = 1.345

    def rho(self, z: Array) -> Array:
        xp = namespace_of(z)
        return xp.where(z > 1, 2 * xp.sqrt(z) - 1, z)

    def weight(self, z: Array) -> Array:
        xp = namespace_of(z)
        return 1 / xp.sqrt(xp.where(z > 1, z, xp.ones_like(z)))

    def slope(self, z: Array) -> Array:
        xp = namespace_of(z)
        return xp.where(z > 1, xp.zeros_like(z), xp.ones_like(z))


@final
@dataclass(frozen=True)
class SoftL1(Robust):
    """A smooth Huber loss: ``rho(z) = 2 (sqrt(1 + z) - 1)``.

    Parameters
    ----------
    scale : float, optional
        As in `Huber`. None is 1.287 robust standard deviations of the residuals that the fit leaves.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> loss = xv.losses.SoftL1(1.0)
    >>> loss.rho(np.array([3.0])), loss.weight(np.array([3.0]))
    (array([2.]), array([0.5]))
    """

    scale: float | None = None

    tuning = 1.287

    def rho(self, z: Array) -> Array:
        return 2 * z / (1 + namespace_of(z).sqrt(1 + z))  # without the difference of numbers near 1

    def weight(self, z: Array) -> Array:
        return 1 / namespace_of(z).sqrt(1 + z)

    def slope(self, z: Array) -> Array:
        return (1 + z) ** -1.5


@final
@dataclass(frozen=True)
class Cauchy(Robust):
    """A loss that forgets outliers: ``rho(z) = log(1 + z)``. It is not convex: where a solve ends depends on its start.

    Parameters
    ----------
    scale : float, optional
        As in `Huber`. None is 2.385 robust standard deviations of the residuals that the fit leaves.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> xv.losses.Cauchy(1.0).weight(np.array([0.0, 3.0]))
    array([1.  , 0.25])
    """

    scale: float | None = None

    tuning = 2.385

    def rho(self, z: Array) -> Array:
        return namespace_of(z).log1p(z)

    def weight(self, z: Array) -> Array:
        return 1 / (1 + z)

    def slope(self, z: Array) -> Array:
        return (1 - z) / (1 + z) ** 2


@final
@dataclass(frozen=True)
class Poisson(Loss):
    """Half the deviance of counts, ``sum mu - y + y log(y / mu)``: the negative log likelihood up to a constant.

    The factor of the weights is ``1 / mu``, which is Fisher's scoring. The model ``mu = M(theta) w`` has to be
    positive: ``W=xv.lower.Nonnegative()`` and a design that is not negative are the usual way.

    References
    ----------
    P. McCullagh, J. A. Nelder, Generalized Linear Models, 2nd ed. (1989), chapters 2 and 6.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> loss = xv.losses.Poisson()
    >>> mu, y, weights = np.array([2.0, 1.0]), np.array([2.0, 0.0]), np.ones(2)
    >>> float(loss.value(mu, y, weights)), loss.factor(mu, y, weights)
    (1.0, array([0.5, 1. ]))
    """

    likelihood = True
    advice = (
        "The model M(theta) w must be positive where counts have a weight: use W=xv.lower.Nonnegative() with a design "
        "that is not negative, or start from another theta. To counts that are all 0 no positive model fits best."
    )

    def value(self, mu: Array, y: Array, weights: Array) -> Array:
        xp = namespace_of(mu)
        mean, count = positive_or_one(mu), positive_or_one(y)
        more = mean - y
        # near the count log1p has the digits of the difference; far below it the difference has none of the mean's
        near = mean > 0.5 * y
        log = xp.where(near, xp.log1p(xp.where(near, more, 0 * y) / count), xp.log(mean) - xp.log(count))
        terms = weights * (more - y * log)
        return xp.sum(xp.where((weights > 0) & ~(mu > 0), inf, terms))

    def factor(self, mu: Array, y: Array, weights: Array) -> Array:
        return 1 / positive_or_one(mu)

    curvature = factor  # the second derivative, y / mu^2, of a count as large as it is expected to be

    def first_factor(self, y: Array) -> Array:
        # counts of 0 have no weight of their own
        return 2 / positive_or_one(y + namespace_of(y).mean(y, axis=0, keepdims=True))

    def check(self, y: np.ndarray) -> None:
        if np.any(y < 0):
            raise ProblemError(f"Poisson: y must hold counts >= 0; got {y.min():g}")
