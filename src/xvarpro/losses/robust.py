"""Losses that grow slower than squares, and the weights under which least squares has the same gradient."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from xvarpro.core import checks
from xvarpro.core.namespace import namespace_of
from xvarpro.core.struct import Array
from xvarpro.errors import ProblemError
from xvarpro.losses.interface import FLAT, Loss, Weights

FAR = 1e3  # times the median of sizes of a target, from which on one is an outlier, whose rounding costs no more
NORMAL = 1.482602218505602  # standard deviation of normal numbers over the median of their sizes


@dataclass(frozen=True)
class Robust(Loss):
    """``1/2 scale^2 rho((r / scale)^2)`` of ``r = sqrt(weights) (mu - y)``, with a concave rho and ``rho'(0) = 1``."""

    scale: float | None = None
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
    def psi_prime(self, z: Array) -> Array:
        """``rho'(z) + 2 z rho''(z)``, the second derivative of the loss by its residual."""

    @property
    def unit(self) -> float:  # type: ignore[override]
        if self.scale is None:
            raise ProblemError(f"{type(self).__name__}: scale must be a number here; got None. A fit estimates it")
        return self.scale

    def terms(self, mu: Array, y: Array, weights: Weights) -> Array:
        return 0.5 * self.rho(self._squares(mu, y, weights))

    def slope(self, mu: Array, y: Array, weights: Weights) -> Array:
        return self.factor(mu, y, weights) * (weights * (mu - y))

    def second(self, mu: Array, y: Array, weights: Weights) -> Array:
        return weights * self.psi_prime(self._squares(mu, y, weights))

    def model(self, mu: Array, y: Array, weights: Weights) -> Array:
        # least squares with the same slope lies above the loss: far out, where it bends down, a step takes that
        xp, factor = namespace_of(mu), self.factor(mu, y, weights)
        least = xp.where(factor < FLAT, factor, FLAT * factor)
        return xp.maximum(self.second(mu, y, weights), weights * least)

    def scoring(self, mu: Array, y: Array, weights: Weights) -> Array:
        # least squares above a loss that bends down everywhere far out leads to fewer of its minima
        return self.model(mu, y, weights) if self.convex else weights * self.factor(mu, y, weights)

    def start(self, y: Array) -> Array:
        return y

    def sizes(self, y: Array, weights: Weights) -> Array:
        xp, size = namespace_of(y), (weights * (y / self.unit) ** 2) ** 0.5
        middle = size.shape[-2] // 2
        far = FAR * xp.sort(size, axis=-2)[..., middle : middle + 1, :]
        return 0.5 * xp.where((far > 0) & (size > far), far, size) ** 2

    def factor(self, mu: Array, y: Array, weights: Weights) -> Array:
        return self.weight(self._squares(mu, y, weights))

    def curvature(self, mu: Array, y: Array, weights: Weights) -> Array:
        xp, slope = namespace_of(mu), self.psi_prime(self._squares(mu, y, weights))
        used = xp.astype(weights + 0 * slope > 0, slope.dtype)
        # one number for all of a problem: of single residuals it would say less
        mean = xp.sum(used * slope, axis=-2, keepdims=True) / xp.sum(used, axis=-2, keepdims=True)
        return 0 * slope + mean

    @property
    def needs_scale(self) -> bool:  # type: ignore[override]
        return self.scale is None

    def in_units(self, unit: float) -> Loss | None:
        return type(self)(unit * self.unit)

    def scaled_by(self, r: np.ndarray) -> Loss:
        """The loss with the scale that weighted residuals r give."""
        spread = float(np.median(np.abs(r)))
        if not spread > 0:
            raise ProblemError(
                f"{type(self).__name__}: scale=None takes the scale from the residuals, and more than half of them are "
                f"{spread:g}. Pass scale="
            )
        return type(self)(self.tuning * NORMAL * spread)

    def _squares(self, mu: Array, y: Array, weights: Weights) -> Array:
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

    tuning = 1.345

    def rho(self, z: Array) -> Array:
        xp = namespace_of(z)
        return xp.where(z > 1, 2 * xp.sqrt(z) - 1, z)

    def weight(self, z: Array) -> Array:
        xp = namespace_of(z)
        return 1 / xp.sqrt(xp.where(z > 1, z, xp.ones_like(z)))

    def psi_prime(self, z: Array) -> Array:
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

    tuning = 1.287

    def rho(self, z: Array) -> Array:
        return 2 * z / (1 + namespace_of(z).sqrt(1 + z))  # without the difference of numbers near 1

    def weight(self, z: Array) -> Array:
        return 1 / namespace_of(z).sqrt(1 + z)

    def psi_prime(self, z: Array) -> Array:
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

    tuning = 2.385
    convex = False
    advice = (
        "The loss bends down so far that no w is a minimum of second order there: pass a larger scale or lam > 0, or "
        "start from another theta."
    )

    def rho(self, z: Array) -> Array:
        return namespace_of(z).log1p(z)

    def weight(self, z: Array) -> Array:
        return 1 / (1 + z)

    def psi_prime(self, z: Array) -> Array:
        return (1 - z) / (1 + z) ** 2
