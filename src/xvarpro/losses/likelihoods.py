"""Negative log likelihoods of counts and classes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import final

import numpy as np

from xvarpro.core.namespace import namespace_of, positive_or_one
from xvarpro.core.struct import Array
from xvarpro.errors import ProblemError
from xvarpro.losses.interface import FLAT, Loss, Weights

SUM = 1e-6  # by which the probabilities of a row may miss 1, in single precision too


class _Counts(Loss):
    """A negative log likelihood of counts."""

    likelihood = True

    def sizes(self, y: Array, weights: Weights) -> Array:
        return 0.5 * weights * y

    def check(self, y: np.ndarray) -> None:
        if np.any(y < 0):
            raise ProblemError(
                f"{type(self).__name__}: y must hold counts >= 0 where its weight is not 0; got {y.min():g}"
            )


@final
@dataclass(frozen=True)
class Poisson(_Counts):
    """Half the deviance of counts, ``sum mu - y + y log(y / mu)``: the negative log likelihood up to a constant.

    The factor of the weights is ``1 / mu``, which is Fisher's scoring. The model ``mu = M(theta) w`` has to be
    positive: ``W=xv.lower.Nonnegative()`` and a design that is not negative are the usual way. `LogPoisson` is for a
    model of the logarithm.

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

    positive = True
    advice = (
        "The model M(theta) w must be positive where counts have a weight: use W=xv.lower.Nonnegative() with a design "
        "that is not negative, or start from another theta. To counts that are all 0 no positive model fits best."
    )

    def terms(self, mu: Array, y: Array, weights: Weights) -> Array:
        xp = namespace_of(mu)
        mean, count = positive_or_one(mu), positive_or_one(y)
        # y log(mean / y) is this share of mean - y: Kahan's quotient, which has the digits of log1p near 1
        ratio = mean / count
        share = xp.log(ratio) / xp.where(ratio == 1, 1, ratio - 1)
        share = xp.where(y > 0, xp.where(ratio == 1, 1, share), 0 * y)
        terms = weights * (mean - y) * (1 - share)
        return xp.where((weights + xp.zeros_like(mu) > 0) & ~(mu > 0), inf, terms)

    def slope(self, mu: Array, y: Array, weights: Weights) -> Array:
        return weights * (mu - y) / positive_or_one(mu)

    def second(self, mu: Array, y: Array, weights: Weights) -> Array:
        return weights * y / positive_or_one(mu) ** 2

    def model(self, mu: Array, y: Array, weights: Weights) -> Array:
        # Fisher's is there for counts of 0 too
        return namespace_of(mu).maximum(self.second(mu, y, weights), FLAT * weights * self.curvature(mu, y, weights))

    def scoring(self, mu: Array, y: Array, weights: Weights) -> Array:
        return weights * self.factor(mu, y, weights)  # Fisher's, of which counts of 0 have as much as others

    def factor(self, mu: Array, y: Array, weights: Weights) -> Array:
        return 1 / positive_or_one(mu)

    def curvature(self, mu: Array, y: Array, weights: Weights) -> Array:
        # the second derivative, y / mu^2, of a count as large as it is expected to be; not more than that of a
        # prediction of 0 to rounding, next to which no slope of w at a bound would count
        xp = namespace_of(mu)
        return self.factor(xp.maximum(mu, 100 * xp.finfo(mu.dtype).eps * self.start(y)), y, weights)

    def start(self, y: Array) -> Array:
        return 0.5 * (y + namespace_of(y).mean(y, axis=-2, keepdims=True))


@final
@dataclass(frozen=True)
class LogPoisson(_Counts):
    """Half the deviance of counts whose mean is ``exp(mu)``: ``exp(mu) - y - y (mu - log y)``.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> loss = xv.losses.LogPoisson()
    >>> loss.slope(np.array([[0.0]]), np.array([[3.0]]), 1.0)
    array([[-2.]])
    """

    linked = True
    advice = "The mean exp(M(theta) w) has left the range of numbers, as for counts of 0 alone: pass lam > 0."

    def terms(self, mu: Array, y: Array, weights: Weights) -> Array:
        xp = namespace_of(mu)
        more = mu - xp.log(positive_or_one(y))  # than the logarithm of the count, where that is > 0
        terms = xp.where(y > 0, y * (xp.expm1(more) - more), xp.exp(mu))
        return weights * terms

    def slope(self, mu: Array, y: Array, weights: Weights) -> Array:
        return weights * (namespace_of(mu).exp(mu) - y)

    def mean(self, mu: Array) -> Array:
        return namespace_of(mu).exp(mu)

    def second(self, mu: Array, y: Array, weights: Weights) -> Array:
        return weights * namespace_of(mu).exp(mu)

    def start(self, y: Array) -> Array:
        xp = namespace_of(y)
        return xp.log(positive_or_one(0.5 * (y + xp.mean(y, axis=-2, keepdims=True))))


@final
@dataclass(frozen=True)
class Logistic(Loss):
    """Cross-entropy of two classes, ``log(1 + exp(mu)) - y mu``, with labels 0 and 1 or the probability of 1.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> loss = xv.losses.Logistic()
    >>> loss.slope(np.array([[0.0]]), np.array([[1.0]]), 1.0)
    array([[-0.5]])
    """

    likelihood = True
    linked = True
    advice = "Classes that M(theta) w tells apart without an error have no best w: pass lam > 0."

    def terms(self, mu: Array, y: Array, weights: Weights) -> Array:
        xp, (positive, e) = namespace_of(mu), _exponential(mu)
        return weights * (xp.log1p(e) + xp.where(positive, (1 - y) * mu, -y * mu))

    def slope(self, mu: Array, y: Array, weights: Weights) -> Array:
        p, q = _probabilities(mu)
        return weights * ((1 - y) * p - y * q)

    def mean(self, mu: Array) -> Array:
        return _probabilities(mu)[0]

    def saturated(self, y: Array, weights: Weights) -> Array:
        return weights * (_entropy(y) + _entropy(1 - y))

    def second(self, mu: Array, y: Array, weights: Weights) -> Array:
        p, q = _probabilities(mu)
        return weights * (p * q)

    def check(self, y: np.ndarray) -> None:
        if not np.all((y >= 0) & (y <= 1)):
            raise ProblemError(
                f"Logistic: y must hold labels 0 and 1, or probabilities; got numbers from {y.min():g} to {y.max():g}. "
                "For labels -1 and 1 pass (y + 1) / 2"
            )


@final
@dataclass(frozen=True)
class Softmax(Loss):
    """Cross-entropy of k classes, ``log sum_a exp(mu_a) - sum_a y_a mu_a`` of every row.

    The target has shape (m, k): a 1 in the column of the class, or the probabilities of the classes. w has a column for
    each class. What the data leave open, one vector added to all columns, is 0 where the ridge leaves it open too: the
    columns of w then sum to 0.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> loss, y = xv.losses.Softmax(), np.array([[1.0, 0.0]])
    >>> loss.slope(np.zeros((1, 2)), y, 1.0)
    array([[-0.5,  0.5]])
    """

    likelihood = True
    linked = True
    by_entry = False
    advice = "Classes that M(theta) w tells apart without an error have no best w: pass lam > 0."

    def terms(self, mu: Array, y: Array, weights: Weights) -> Array:
        below, log = _logarithms(mu)
        return weights * y * (log - below)

    def slope(self, mu: Array, y: Array, weights: Weights) -> Array:
        return weights * (namespace_of(y).sum(y, axis=1, keepdims=True) * _shares(mu) - y)

    def second(self, mu: Array, y: Array, weights: Weights) -> Array:
        h, p = self._weighted(mu, y, weights)
        return h * (1 - p)

    def bend(self, mu: Array, y: Array, weights: Weights) -> Callable[[Array], Array]:
        h, p = self._weighted(mu, y, weights)
        return lambda d: h * (d - namespace_of(d).sum(p * d, axis=1, keepdims=True))

    def root(self, mu: Array, y: Array, weights: Weights) -> tuple[Array, Array]:
        """Arrays u and p, (m, k): the second derivative is ``B^T B``, with ``B d = u (d - sum p d)`` in every row."""
        h, p = self._weighted(mu, y, weights)
        return namespace_of(h).sqrt(h), p

    def _weighted(self, mu: Array, y: Array, weights: Weights) -> tuple[Array, Array]:
        """The probabilities of the classes with the weights of rows, and without; rounding may leave one below 0."""
        p = _shares(mu)
        return weights * namespace_of(y).sum(y, axis=1, keepdims=True) * p, p

    def mean(self, mu: Array) -> Array:
        return _shares(mu)

    def saturated(self, y: Array, weights: Weights) -> Array:
        return weights * _entropy(y)

    def check(self, y: np.ndarray) -> None:
        if y.ndim != 2 or y.shape[1] < 2:
            raise ProblemError(
                "Softmax: y must have shape (m, k) for k >= 2 classes, with a 1 in the column of the class; got one "
                "column. Of labels 0, 1, 2, ... it is np.eye(k)[labels]; for two classes see Logistic"
            )
        sums = y.sum(axis=1)
        if np.any(y < 0) or np.any(np.abs(sums - 1) > SUM * y.shape[1]):
            raise ProblemError(
                "Softmax: every row of y must hold a 1, or probabilities >= 0 that sum to 1; got entries from "
                f"{y.min():g} and sums from {sums.min():g} to {sums.max():g}"
            )
        if empty := np.flatnonzero(~y.any(axis=0)).tolist():
            raise ProblemError(
                f"Softmax: every class must have a row; got none in column {empty[0]} of y. Leave it out, or give all "
                "of w a ridge, lam > 0"
            )


def _entropy(p: Array) -> Array:
    return -p * namespace_of(p).log(positive_or_one(p))


def _exponential(mu: Array) -> tuple[Array, Array]:
    """Where mu >= 0, and ``exp(-|mu|)`` with the derivative of that side at 0."""
    xp, positive = namespace_of(mu), mu >= 0
    return positive, xp.exp(xp.where(positive, -mu, mu))


def _probabilities(mu: Array) -> tuple[Array, Array]:
    """``1 / (1 + exp(-mu))``, and 1 less that, both with all their digits."""
    xp, (positive, e) = namespace_of(mu), _exponential(mu)
    high, low = 1 / (1 + e), e / (1 + e)
    return xp.where(positive, high, low), xp.where(positive, low, high)


def _logarithms(mu: Array) -> tuple[Array, Array]:
    """Mu less its largest entry of the row, and the logarithm of the sum of exponentials of that, (m, 1)."""
    xp = namespace_of(mu)
    below = mu - xp.max(mu, axis=1, keepdims=True)
    return below, xp.log(xp.sum(xp.exp(below), axis=1, keepdims=True))


def _shares(mu: Array) -> Array:
    """The probabilities of the classes."""
    below, log = _logarithms(mu)
    return namespace_of(mu).exp(below - log)
