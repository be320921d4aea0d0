"""What `certify` returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from xvarpro.core.status import Status
from xvarpro.core.struct import Array, Tree
from xvarpro.fit.result import Result


class Boxes(NamedTuple):
    """Boxes of theta as vectors, the lowest bound first: `lower` and `upper` (k, p), and the bound of each (k,)."""

    lower: np.ndarray
    upper: np.ndarray
    bound: np.ndarray


@dataclass(frozen=True, eq=False)
class Certificate:
    """Result of `certify`: the lowest minimum that was found, and below which value there is none in the box.

    Attributes
    ----------
    value : float
        Reduced objective at the best theta; inf where no fit has succeeded.
    bound : float
        No theta of the box has a lower objective.
    boxes : Boxes
        Where the minimum may lie: boxes with bounds below `value`, without the last entry of a Simplex.
    status : Status
        ``CONVERGED`` where the gap is as small as was asked for; ``ROUNDING`` where a box is as small as numbers allow;
        ``TIME_LIMIT``; ``INTERRUPTED``.
    n_boxes : int
        How many were bounded.
    seconds : float
    path : NumPy array, shape (rounds, 3)
        Seconds, value and bound after each round.
    fit : Result or None
        The best one, a result of `solve`.
    given : Result or None
        The fit that `certify` started from.
    """

    value: float
    bound: float
    boxes: Boxes
    status: Status
    n_boxes: int
    seconds: float
    path: np.ndarray
    fit: Result | None
    given: Result | None = None
    _sooner: tuple[str, ...] = ()  # what was not given, and would raise the bound

    @property
    def theta(self) -> Tree:
        """That of the best fit."""
        return None if self.fit is None else self.fit.theta

    @property
    def w(self) -> Array | None:
        """That of the best fit."""
        return None if self.fit is None else self.fit.w

    @property
    def gap(self) -> float:
        """``value - bound``, in units of the objective."""
        return self.value - self.bound

    def __repr__(self) -> str:
        return f"Certificate({self.status.name}, value {self.value:.8g}, bound {self.bound:.8g}, {self.n_boxes} boxes)"

    def verdict(self, value: float) -> str:
        """What it says of a fit with this objective, in a sentence."""
        lower = self.value < value * (1 - 1e-6)
        head = f"A lower minimum was found, {self.value:.8g} in the place of {value:.8g}. " if lower else ""
        if self.bound == 0 < self.value:
            return (
                f"{head}Nothing is proven: the bound is still 0, which no sum of squares goes below. It rises sooner "
                f"with {', '.join([*self._sooner, 'a smaller box'])}."
            )
        share = f", {100 * self.gap / self.value:.2g} % of it" if 0 < self.value < np.inf else ""
        return f"{head}No lower minimum in this box than {self.value:.8g} by more than {self.gap:.3g}{share}."

    def __str__(self) -> str:
        lines = [
            f"{self.status.name}: {self.verdict(self.value if self.given is None else float(self.given.value))}",
            f"  bound {self.bound:.8g}, from {self.n_boxes} boxes in {self.seconds:.3g} s; the minimum may lie in "
            f"{len(self.boxes.bound)} of them",
        ]
        return "\n".join([*lines, *([] if self.fit is None else ["", f"best: {self.fit}"])])
