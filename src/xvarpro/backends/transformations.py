"""Derivatives of what no derivative passes through: a search, a decomposition, a solver on the host.

A backend whose framework has transformations of its own, as JAX's and PyTorch's, derives from `Transforming`. Others
never meet an array that is transformed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeAlias

from xvarpro.backends.calculus import directional_derivative
from xvarpro.backends.registry import owner
from xvarpro.core.namespace import namespace_of
from xvarpro.core.struct import Array

Curve: TypeAlias = Callable[[Array], tuple[Array, Array]]  # t -> value and slope, entry by entry
Slope: TypeAlias = Callable[[Array], Callable[[Array], Array]]  # x -> a linear map of directions


class Transforming(ABC):
    """A mixin for backends: what the functions of this module do under transformations."""

    @abstractmethod
    def push(self, fun: Callable[[Array], Array], x: Array, d: Array) -> Array: ...

    @abstractmethod
    def implicit(self, fun: Curve, t: Array) -> Array: ...

    @abstractmethod
    def with_derivative(self, fun: Callable[[Array], Array], slope: Slope, x: Array) -> Array: ...


def push(fun: Callable[[Array], Array], x: Array, d: Array) -> Array:
    """The derivative of `fun` at x along d."""
    backend = owner(x)
    if isinstance(backend, Transforming):
        return backend.push(fun, x, d)
    return directional_derivative(backend, fun, x)(d)


def implicit(fun: Curve, t: Array) -> Array:
    """The roots t of `fun` with the derivatives of an implicit function: how they were found is not differentiated."""
    backend = owner(t)
    return backend.implicit(fun, t) if isinstance(backend, Transforming) else t


def with_derivative(fun: Callable[[Array], Array], slope: Slope, x: Array) -> Array:
    """``fun(x)``, an array like x, whose derivative is ``slope(x)``, which is its own transpose.

    `fun` and `slope` take leading batch axes.
    """
    backend = owner(x)
    return backend.with_derivative(fun, slope, x) if isinstance(backend, Transforming) else fun(x)


def implicit_root(fun: Curve, t: Array, hold: Callable[[Array], Array]) -> Array:
    """`implicit` by steps of Newton's of which values are 0; `hold` cuts an array off from derivatives.

    The first has the first derivative of the root, the second the second one, too.
    """
    t = hold(t)
    xp = namespace_of(t)
    for _ in range(2):
        value, slope = fun(t)
        change = value - hold(value)
        steep = xp.isfinite(change) & (slope < 0)
        t = t + xp.where(steep, change, xp.zeros_like(t)) / xp.where(steep, -slope, xp.ones_like(t))
    return t
