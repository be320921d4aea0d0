"""The interface of a reduced objective, with all rows in memory or in chunks."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

from xvarpro.backends import Backend
from xvarpro.core.namespace import namespace_of
from xvarpro.core.struct import Array, Leaves
from xvarpro.core.trees import rounding
from xvarpro.lower.interface import Ridge
from xvarpro.objective.mini_batch import LowerRows
from xvarpro.problem.problem import Level, Problem


class Objective(ABC):
    """``f(theta) = f_U(w(theta), theta)`` on one backend; theta is a tuple of leaves.

    Parameters
    ----------
    problem : Problem
    backend : Backend
    energy : array, 0-d
        ``1/2 |y|^2``, of which the objective is a small difference where it fits well. 0 where it is not known yet.
    """

    exact = True  # whether gradients are right to rounding
    start: Any = ()  # a w, of `starting_at`

    def __init__(self, problem: Problem, backend: Backend, energy: Array | float = 0.0) -> None:
        self.problem = problem
        self.backend = backend
        self.energy = energy
        self.upper: Level = problem.upper or problem.lower  # whose residual the objective measures

    def size(self, value: Array) -> Array:
        """What a tolerance is relative to where the objective is `value`, 0-d."""
        return abs(value)

    def rounding(self, value: Array) -> Array:
        """By how much two computed objectives near `value` may differ from rounding alone, 0-d.

        A residual is off by ``eps |y|``, hence its square by ``2 eps |y| |r|``, which is more than ``eps |r|^2``.
        """
        xp, size = self.backend.xp, abs(value)
        return rounding(xp, size + xp.sqrt(size) * self.energy**0.5)

    def with_lower_tolerance(self, tol: Array | float) -> Objective:
        """The objective with an inexact lower level solved to a relative residual `tol`.

        0 is as exact as its solver allows, which differences of gradients need; inf is enough for a first look. A
        level that is solved directly has no tolerance.
        """
        return self

    def starting_at(self, w: Array) -> Objective:
        """The objective with a lower level that starts from this w, where it is solved from a start."""
        other = copy.copy(self)
        other.start = w
        return other

    @abstractmethod
    def point(self, theta: Leaves, ahead: bool = False) -> Any:
        """A point with fields `theta`, `value`, 0-d, and what the gradient there uses again.

        `ahead` announces that the gradient is likely to be asked for next.
        """

    def probed(
        self, theta: Leaves, assess: Callable[[Any], tuple[Array, Array]], grad: Leaves
    ) -> tuple[Any, Leaves, Array]:
        """Point at theta, gradient there where the first of ``assess(point)`` holds, else `grad`, and the second."""
        point = self.point(theta, ahead=True)
        wanted, verdict = assess(point)
        return point, self.backend.when(wanted, lambda _: self.gradient(point), grad), verdict

    @abstractmethod
    def gradient(self, point: Any) -> Leaves:
        """Gradient at a point, shaped like theta."""

    @abstractmethod
    def value_and_gradient(self, theta: Leaves) -> tuple[Any, Leaves]:
        """Point and gradient at theta."""

    @abstractmethod
    def solve_lower(self, theta: Leaves, *y: Array) -> Array:
        """``w`` at theta, (n, k), for the lower target or for another one, (m, k)."""

    def value_and_w(self, theta: Leaves) -> tuple[Array, Array]:
        """The value and ``w`` at theta."""
        return self.point(theta).value, self.solve_lower(theta)

    @abstractmethod
    def scale(self, theta: Leaves) -> Array:
        """``1/2 |y|^2`` of the upper level at theta, 0-d: what the objective is a difference of; less if of nothing."""

    @abstractmethod
    def diagnose(self, theta: Leaves) -> LowerReport:
        """Rank, condition, zero columns, kinks and solution of the lower level at theta."""

    @property
    @abstractmethod
    def target_shape(self) -> tuple[int, int]:
        """Shape (m, k) of the upper target."""

    @property
    @abstractmethod
    def samples(self) -> int:
        """Number of terms of the upper level from which mini-batches are drawn."""

    @property
    def chunks(self) -> int | None:
        """Number of chunks that are the mini-batches, after a pass over them; None where they are drawn from terms."""
        return None

    @property
    @abstractmethod
    def rows(self) -> int:
        """Rows of all levels on which a value evaluates the model; right-hand sides where these are the terms."""

    @abstractmethod
    def rows_of_batch(self, batch: int, lower: LowerRows | None) -> float:
        """As `rows`, for the objective on a mini-batch."""

    @abstractmethod
    def restricted(self, indices: Array, lower: LowerRows | None = None) -> Objective:
        """The objective of the terms at `indices`, int (b,), scaled up to represent all of them (`mini_batch`).

        The batches of a `lower` that needs two are one after the other. Of `chunks` they are the numbers.
        """

    def check(self, theta: Leaves) -> None:  # noqa: B027 - most have nothing to check
        """Raise a ProblemError where the model does not fit a mini-batch that this is the objective of."""


DEAD = 8.0  # machine epsilons of the largest column, up to which one is rounding


def dead_columns(size: Array, ridge: Ridge, w: Array) -> Array:
    """How many columns of M contribute nothing, int32, 0-d, from a size of each, (n,).

    Those that are zero; with a ridge those that are rounding of the largest as well. Without one a weight makes up for
    the size of its column. One whose weight is not 0, as of an Omega or a set that couples weights, has a gradient.
    """
    xp, weight = namespace_of(size), namespace_of(w).max(namespace_of(w).abs(w), axis=1)
    eps = xp.finfo(size.dtype).eps
    least = DEAD * eps * xp.max(size) if ridge.plain and ridge.definite else 0 * xp.max(size)
    dead = (size <= least) & ~(weight > eps**0.5 * xp.max(weight))
    return xp.sum(xp.astype(dead, xp.int32))


class LowerReport(NamedTuple):
    """Diagnosis of a lower level; 0-d arrays but for w."""

    deficient: Array  # bool: no unique solution
    finite: Array  # bool: all entries of M are finite
    condition: Array  # of the matrix that was factored
    zero_columns: Array  # int: columns of M that contribute nothing, see `dead_columns`
    columns: Array  # int
    kinks: Array  # int: entries of w at which it is not differentiable
    w: Array  # (n, k)
    cancellation: Array  # the largest column times its weight, over the target: how far terms cancel; 0 of chunks


class LowerError(NamedTuple):
    """The error that an inexact lower level leaves in gradient and gap; 0-d arrays."""

    residual: Array  # relative, of the system for w and of the adjoint one, whichever is larger
    gradient: Array  # estimate of the Euclidean norm of the gradient's error
    slack: Array  # by how much the gap may be larger than computed
    reached: Array  # bool: the residual is below the solver's tolerance
