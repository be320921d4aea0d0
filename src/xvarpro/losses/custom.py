"""A loss of the user's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from xvarpro.backends import registry
from xvarpro.backends.failures import model_failures
from xvarpro.core.checks import described
from xvarpro.core.namespace import namespace_of
from xvarpro.core.struct import REQUIRED, Array
from xvarpro.errors import ProblemError
from xvarpro.losses.interface import Loss, Weights

CURVED = 1e-9  # of the largest second derivative, by which rounding may leave one below 0


@final
@dataclass(frozen=True)
class Custom(Loss):
    """A function of prediction and target, with the derivatives that the framework takes of it.

    Parameters
    ----------
    fun : callable
        ``fun(z, y)`` -> the loss of every entry by itself, in the shape of both z and y, which may be any; convex and
        twice differentiable in z, written with ``xp = xv.array_namespace(z)``. Whether it is convex is looked at around
        the target.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> def logcosh(z, y):
    ...     xp = xv.array_namespace(z)
    ...     return xp.log(xp.exp(z - y) + xp.exp(y - z))
    >>> loss = xv.losses.Custom(logcosh)
    >>> np.round(loss.slope(np.array([[1.0]]), np.array([[0.0]]), 1.0), 6)
    array([[0.761594]])
    """

    fun: Callable[[Array, Array], Array] = REQUIRED
    backend: Any = None  # of the arrays; None finds that of arrays with values

    def __post_init__(self) -> None:
        if not callable(self.fun):
            raise ProblemError(f"Custom: fun must be a function fun(z, y); got {described(self.fun)}")

    def terms(self, mu: Array, y: Array, weights: Weights) -> Array:
        return weights * self.fun(mu, y)

    def slope(self, mu: Array, y: Array, weights: Weights) -> Array:
        return weights * self._derivative(self.fun, mu, y)

    def second(self, mu: Array, y: Array, weights: Weights) -> Array:
        known = self.on(self.backend or registry.owner(mu))

        def first(mu: Array, y: Array) -> Array:
            return known._derivative(self.fun, mu, y)

        return weights * known._derivative(first, mu, y)

    def check(self, y: np.ndarray) -> None:
        """Refuse a function that bends down, or nowhere, at predictions around the target, or that mixes entries."""
        y, numpy = y.astype(float), registry.owner(y)
        size, bends = max(1.0, float(np.std(y))), y.size == 0
        advice = "Inside it, compute with xp = xv.array_namespace(z)"
        with model_failures(numpy, advice, what="fun of Custom", argument="z"), np.errstate(all="ignore"):
            whole, other = (np.asarray(self.fun(z, y)) for z in (y, np.concatenate([y[:1] + size, y[1:]])))
            if whole.shape == y.shape and not np.array_equal(whole[1:], other[1:], equal_nan=True):
                raise ProblemError(
                    "Custom: fun must take each entry by itself; got others that change with the first of z. Leave out "
                    "means, sums and norms over z: the objective is the sum"
                )
            for far in (-3.0, -1.0, 0.0, 1.0, 3.0):
                mu = y + far * size
                h = np.asarray(self.second(mu, y, 1.0))
                bends = bends or bool(np.any(h > 0))
                if np.any(h < -CURVED * np.max(np.abs(h), initial=0.0)):
                    at = np.unravel_index(np.argmin(h), h.shape)
                    raise ProblemError(
                        f"Custom: fun must be convex in z; got a second derivative of {h[at]:.3g} at z = {mu[at]:.3g}, "
                        f"y = {y[at]:.3g}"
                    )
        if not bends:
            raise ProblemError(
                "Custom: fun must bend up in z; got a second derivative that is 0 or not finite around all of y. "
                "Round off its corners: for abs(z - y) take xv.losses.Quantile(0.5, width)"
            )

    def on(self, backend: Any) -> Custom:
        return Custom(self.fun, backend)

    def _derivative(self, fun: Callable[[Array, Array], Array], mu: Array, y: Array) -> Array:
        """Entry by entry, since no entry depends on another one."""

        def of_arrays(mu: Array, y: Array) -> Any:
            terms = fun(mu, y)
            if tuple(getattr(terms, "shape", ())) != tuple(mu.shape):
                raise ProblemError(
                    f"Custom: fun must return the loss of every entry, in the shape {tuple(mu.shape)} of z; got "
                    f"{described(terms)}. Take no sum or mean"
                )
            return (terms,)

        outputs, pull = (self.backend or registry.owner(mu)).vjp(of_arrays, (mu,), (y,))
        return pull((namespace_of(mu).ones_like(outputs[0]),))[0]
