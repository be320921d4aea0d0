"""Losses of margins and of quantiles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from xvarpro.core import checks
from xvarpro.core.namespace import namespace_of
from xvarpro.core.struct import Array
from xvarpro.errors import ProblemError
from xvarpro.losses.interface import Loss, Weights
from xvarpro.losses.likelihoods import _exponential, _probabilities


@final
@dataclass(frozen=True)
class SquaredHinge(Loss):
    """``1/2 max(0, 1 - y mu)^2`` of labels -1 and 1. Its second derivative has a kink where ``y mu = 1``.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> float(xv.losses.SquaredHinge().value(np.array([[0.5, 2.0]]), np.array([[1.0, 1.0]]), 1.0))
    0.125
    """

    def terms(self, mu: Array, y: Array, weights: Weights) -> Array:
        return 0.5 * weights * self._short(mu, y) ** 2

    def slope(self, mu: Array, y: Array, weights: Weights) -> Array:
        return -weights * (y * self._short(mu, y))

    def second(self, mu: Array, y: Array, weights: Weights) -> Array:
        xp = namespace_of(mu)
        return weights * xp.where(y * mu < 1, y * y, xp.zeros_like(mu))

    def mean(self, mu: Array) -> Array:
        raise ProblemError(
            "SquaredHinge says nothing of probabilities: residuals and a mean are not given. The sign of fit.fitted is "
            "the label"
        )

    def check(self, y: np.ndarray) -> None:
        if not np.all(np.abs(y) == 1):
            raise ProblemError("SquaredHinge: y must hold labels -1 and 1; got others. For labels 0 and 1 pass 2 y - 1")

    def _short(self, mu: Array, y: Array) -> Array:
        """By how much a margin is too small."""
        xp, short = namespace_of(mu), 1 - y * mu
        return xp.where(short > 0, short, xp.zeros_like(mu))


@final
@dataclass(frozen=True)
class Quantile(Loss):
    """The loss of a quantile, smoothed: ``q r + width log(1 + exp(-r / width))`` of the residual ``r = y - mu``.

    For a small width it is ``q r`` above the prediction and ``(q - 1) r`` below it, and a share q of the data lies
    below the prediction.

    Parameters
    ----------
    q : float
        The quantile, in (0, 1).
    width : float
        Residual over which the kink at 0 is rounded off, > 0.

    References
    ----------
    C. Chen, O. L. Mangasarian, A class of smoothing functions for nonlinear and mixed complementarity problems,
    Comput. Optim. Appl. 5 (1996).

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> loss = xv.losses.Quantile(0.9, 1e-3)
    >>> np.round(loss.slope(np.array([[0.0, 0.0]]), np.array([[1.0, -1.0]]), 1.0), 6)
    array([[-0.9,  0.1]])
    """

    q: float = 0.5
    width: float = 1e-2

    def __post_init__(self) -> None:
        checks.between(self, "q", 0.0, 1.0)
        checks.above(self, "width", 0.0)

    def terms(self, mu: Array, y: Array, weights: Weights) -> Array:
        xp, r = namespace_of(mu), y - mu
        positive, e = _exponential(r / self.width)
        return weights * (xp.where(positive, self.q * r, (self.q - 1) * r) + self.width * xp.log1p(e))

    def slope(self, mu: Array, y: Array, weights: Weights) -> Array:
        p, below = _probabilities((y - mu) / self.width)
        return weights * ((1 - self.q) * below - self.q * p)

    def second(self, mu: Array, y: Array, weights: Weights) -> Array:
        p, below = _probabilities((y - mu) / self.width)
        return weights * (p * below) / self.width

    def start(self, y: Array) -> Array:
        return y

    def sizes(self, y: Array, weights: Weights) -> Array:
        xp = namespace_of(y)
        return weights * xp.abs(y)
