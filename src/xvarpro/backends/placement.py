"""Where arrays lie: each on one device of one process, unless a framework spreads them over several."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from xvarpro.core.namespace import device, namespace_of
from xvarpro.core.struct import Array


class Placement:
    """Where the arrays of a backend lie, and what depends on it; here each lies on one device.

    Attributes
    ----------
    several : bool
        Whether arrays may be spread over several devices.
    """

    several: ClassVar[bool] = False

    def of(self, targets: Mapping[str, Any], others: Mapping[str, Any]) -> Placement:
        """That of targets and other arrays, by name.

        Raises
        ------
        ProblemError
            They are spread over devices in ways that do not fit together.
        """
        return self

    def place(self, x: Array) -> Any:
        """Where an array lies, as `Backend.asarray` takes it to put another of its shape there."""
        return device(x)

    def concat_rows(self, A: Array, B: Array) -> Array:
        """``[A; B]`` for A (..., m, n), which may be spread over devices, and a B (..., l, n) of few rows."""
        return namespace_of(A).concat([A, B], axis=-2)

    def agree(self, value: float) -> float:
        """A number that differs from process to process, such as the clock, as the first of them has it.

        That is where several processes run one program on arrays that they hold together; else the number itself.
        """
        return value

    def digests(self, x: Array) -> np.ndarray | None:
        """What tells an array that does not lie in one process from another; None of one that does."""
        return None
