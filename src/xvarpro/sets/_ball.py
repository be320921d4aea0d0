"""Base classes of sets whose size is one radius."""

from __future__ import annotations

from abc import abstractmethod

from xvarpro.core import checks
from xvarpro.core.struct import Array
from xvarpro.sets.interface import Set
from xvarpro.sets.vectors import excess


class RadiusSet(Set):
    """A set whose size is its `radius`, >= 0."""

    radius: float

    numbers = ("radius",)

    def __post_init__(self) -> None:
        checks.nonnegative(self, "radius")


class NormBall(RadiusSet):
    """Ball ``{size(x) <= radius}`` of a norm."""

    @abstractmethod
    def _size(self, x: Array) -> Array:
        """The norm of x, (*batch, n), shape batch."""

    def violation(self, x: Array) -> Array:
        return excess(self._size(x), self.radius)
