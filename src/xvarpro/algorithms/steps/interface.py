"""The interface of a step rule."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

from xvarpro.core.struct import Array, Struct


class Line(NamedTuple):
    """The objective along a feasible direction d from theta, as a step rule sees it.

    A `separable` rule takes gap, dd and cap of shape (blocks,), and gives `phi` an alpha of that shape.
    """

    backend: Any  # for its `while_loop` and `when`
    phi: Callable[[Array], Any]  # alpha -> the objective's `Point` at ``theta + alpha d``
    value: Array  # f(theta)
    gap: Array  # -<grad, d>
    dd: Array  # <d, d>
    cap: Array  # largest step allowed, > 0
    slope: Callable[[Any], Array] | None = None  # `Point` -> <grad, d> there, shaped like `gap`; it costs a gradient


class Search(NamedTuple):
    """What a step rule returns."""

    alpha: Array  # accepted step, 0 if none was found
    point: Any  # the objective's `Point` at the accepted step
    memory: Array  # what the rule carries to the next iteration: its last alpha, its estimate of L, its clock
    n_values: Array  # trial points evaluated
    n_gradients: Array  # gradients that the rule asked for, near rounding


class StepRule(Struct):
    """A rule for the step size alpha along a feasible direction."""

    monotone: ClassVar[bool] = True  # whether an accepted step never raises the objective by more than its rounding
    separable: ClassVar[bool] = False  # whether `search` takes a vector of steps, one per block

    @property
    def uses_curvature(self) -> bool:
        """Whether `init` wants a measured L, which costs a gradient."""
        return False

    def of_block(self, free: bool) -> StepRule:
        """The rule for the free block alone, or for the constrained one: itself, unless its parameters differ."""
        return self

    @abstractmethod
    def init(self, L: Array) -> Array:
        """First memory of the rule, from an estimate `L` of the curvature along the first direction."""

    @abstractmethod
    def search(self, line: Line, memory: Array) -> Search:
        """Choose alpha in (0, cap]; `memory` is what the rule returned last time."""
