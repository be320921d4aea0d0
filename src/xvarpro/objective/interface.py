"""What an algorithm asks of a reduced objective, whether its rows are in memory or not."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

from xvarpro.backends import Backend
from xvarpro.core.namespace import array_namespace
from xvarpro.core.struct import Array, Leaves
from xvarpro.core.trees import rounding
from xvarpro.problem.problem import Level, Problem


class Objective(ABC):
    """``f(theta) = f_U(w(theta), theta)`` on one backend.

    Parameters
    ----------
    problem : Problem
    backend : Backend
    energy : array, 0-d
        ``1/2 |y|^2``: what the objective is a small difference of, where it fits well. 0 where it is not known yet.
    """

    exact = True  # whether gradients are right to rounding

    def __init__(self, problem: Problem, backend: Backend, energy: Any = 0.0) -> None:
        self.problem = problem
        self.backend = backend
        self.energy = energy
        self.upper: Level = problem.upper or problem.lower

    def rounding(self, value: Array) -> Array:
        """What two computed objectives near `value` may differ by without meaning anything.

        A residual is off by ``eps |y|``, hence its square by ``2 eps |y| |r|``, which is more than ``eps |r|^2``.
        """
        xp = array_namespace(value)
        size = xp.abs(value)
        return rounding(size + xp.sqrt(size) * self.energy**0.5)

    def with_lower_tolerance(self, tol: Array | float) -> Objective:
        """The objective with an inexact lower level solved to a relative residual `tol`.

        0 is as exact as its solver allows, which differences of gradients need; inf is enough for a first look. A
        level that is solved directly has no tolerance.
        """
        return self

    @abstractmethod
    def point(self, theta: Leaves, ahead: bool = False) -> Any:
        """Value at theta, with what the gradient there will want again; `ahead` says that it is likely to be asked."""

    @abstractmethod
    def gradient(self, point: Any) -> Leaves:
        """Gradient at a point."""

    @abstractmethod
    def value_and_gradient(self, theta: Leaves) -> tuple[Any, Leaves]:
        """Point and gradient at theta."""

    @abstractmethod
    def solve_lower(self, theta: Leaves, *y: Array) -> Array:
        """``w`` at theta, for the level's own target or for another one that is given, (n, k)."""

    @abstractmethod
    def scale(self, theta: Leaves) -> Array:
        """``1/2 |y|^2`` of the upper level: the scale of everything the objective is a difference of."""

    @abstractmethod
    def diagnose(self, theta: Leaves) -> tuple[Array, ...]:
        """Of the lower level: whether it is deficient, whether finite, condition, zero columns, all columns, kinks."""

    @property
    @abstractmethod
    def target_shape(self) -> tuple[int, int]:
        """Rows and columns of the target of the upper level."""

    @property
    @abstractmethod
    def samples(self) -> int:
        """Terms that the upper level is a sum of."""

    @abstractmethod
    def restricted(self, indices: Array) -> Objective:
        """The objective in which the terms at `indices`, scaled up, stand for all."""


def zero_columns(top: Array) -> tuple[Array, Array]:
    """Numbers of columns that are exactly zero and of all columns, from the largest absolute entry of each."""
    xp = array_namespace(top)
    dead = xp.sum(xp.astype(top == 0, xp.int32))
    return dead, xp.full_like(dead, top.shape[0])


class LowerError(NamedTuple):
    """What an inexact lower level has left of its residual, and what that does to gradient and gap; 0-d arrays."""

    residual: Array  # relative, of the system for w and of the adjoint one, whichever is larger
    gradient: Array  # estimate of the Euclidean norm of the gradient's error
    slack: Array  # what it may hide of both parts of the gap
    reached: Array  # whether the residual is below the tolerance that was asked for
