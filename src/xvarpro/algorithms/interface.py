"""The interface of an optimisation method."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, NamedTuple

from xvarpro.core.struct import Array, Leaves, Struct


class Counts(NamedTuple):
    """Work done so far, 0-d integer arrays."""

    values: Array
    gradients: Array
    lmos: Array
    projections: Array


class Iterate(NamedTuple):
    """What every algorithm reports after every step."""

    theta: Leaves
    value: Array
    gap_A: Array  # -<grad, d> of the constrained block: its Frank-Wolfe gap, but for `slack`
    gap_B: Array  # dual norm of the gradient of the free block, times the radius of its ball
    alpha_A: Array  # the step just taken, per block; 0 where none was found
    alpha_B: Array
    status: Array  # 0 while running, else a `Status.code`
    counts: Counts
    slack: Any = 0.0  # what inexact oracles and lower levels may hide of the gap; reported as part of it
    lower: Any = ()  # `LowerError` where the lower level is solved inexactly


class Algorithm(Struct):
    """An optimisation method as two pure functions of fixed-shape states.

    A state is any named tuple whose field `iterate` is an `Iterate`. Neither function may branch in Python on the value
    of an array: the same text runs eagerly and inside a compiled loop.
    """

    @property
    def needs_projection(self) -> bool:
        """Whether every set of the region must offer a projection."""
        return False

    @property
    def stochastic(self) -> bool:
        """Whether steps are taken along an estimate of the gradient: then none of them is checked for descent."""
        return False

    @abstractmethod
    def init(self, f: Any, region: Any, theta: Leaves) -> Any:
        """State at `theta`, with value and certificate."""

    @abstractmethod
    def advance(self, f: Any, region: Any, state: Any) -> Any:
        """One iteration."""

    def finish(self, f: Any, region: Any, state: Any) -> Any:
        """The state to report when the iterations have ended: for a method that does not certify every one of them."""
        return state
