"""The interface of a step rule."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Protocol

from xvarpro.backends import Backend
from xvarpro.core.struct import Array, Leaves, Struct


class Point(Protocol):
    """The objective at one theta, as `Objective.point` returns it; opaque but for these."""

    @property
    def theta(self) -> Leaves: ...
    @property
    def value(self) -> Array: ...  # 0-d; NaN or inf where the objective has none


class Line(NamedTuple):
    """The objective along a feasible direction d from theta, as a step rule sees it. Arrays are 0-d."""

    backend: Backend  # for its `while_loop` and `when`
    phi: Callable[[Array], Point]  # alpha -> the objective at ``theta + alpha d``
    value: Array  # f(theta)
    gap: Array  # -<grad, d>
    dd: Array  # <d, d>
    cap: Array  # largest step allowed, > 0
    slope: Callable[[Point], Array] | None = None  # point -> <grad, d> there; it costs a gradient


class Search(NamedTuple):
    """What a step rule returns. Arrays are 0-d, but for the memory."""

    alpha: Array  # accepted step, 0 if none was found
    point: Any  # the `Point` at the accepted step
    memory: Array  # what the rule carries to the next iteration, such as its last alpha or its estimate of L
    n_values: Array  # trial points evaluated
    n_gradients: Array  # gradients that the rule asked for, near rounding


class StepRule(Struct):
    """A rule for the step size alpha along a feasible direction."""

    monotone: ClassVar[bool] = True  # whether an accepted step never raises the objective by more than its rounding

    @property
    def uses_curvature(self) -> bool:
        """Whether `init` wants a measured L, which costs a gradient."""
        return False

    def of_block(self, free: bool) -> StepRule:
        """The rule for the free block alone, or for the constrained one: itself, unless its parameters differ."""
        return self

    @abstractmethod
    def init(self, L: Array) -> Array:
        """First memory of the rule, of any fixed shape, from an estimate of the curvature along the first direction.

        `L` is 0-d, and 1 unless `uses_curvature`.
        """

    @abstractmethod
    def search(self, line: Line, memory: Array) -> Search:
        """Choose alpha in (0, cap], or 0 with the point at theta where no step is acceptable.

        `memory` is what the rule returned last time; the one that it returns now has the same shape and dtype.
        """
