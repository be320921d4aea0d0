"""The same run on several backends: how far apart the objectives are, and whether the steps are the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from xvarpro.result import Result

TOLERANCE = 1e-9  # relative, in float64


@dataclass(frozen=True)
class Agreement:
    """Runs of one method from one start in one precision, by backend.

    Parameters
    ----------
    fits : mapping of str to Result
        At least two.
    """

    fits: Mapping[str, Result]

    @property
    def iterations(self) -> int:
        """The fewest that any backend made."""
        return min(fit.n_iter for fit in self.fits.values())

    @property
    def relative_difference(self) -> float:
        """Largest difference of two objectives at any iterate, relative to the larger; NaN where one is not finite."""
        values = np.stack([fit.trace.value[: self.iterations + 1] for fit in self.fits.values()])
        return float(np.max(np.ptp(values, axis=0) / np.max(np.abs(values), axis=0)))

    @property
    def first_difference(self) -> int | None:
        """First iteration at which two backends took different steps, None where all are equal."""
        traces = [fit.trace.alpha_A for fit in self.fits.values()]
        found = [n for a, b in combinations(traces, 2) if (n := _first_difference(a, b)) is not None]
        return min(found, default=None)

    @property
    def same(self) -> bool:
        """Whether the objectives agree to `TOLERANCE` and all steps are equal."""
        return self.relative_difference <= TOLERANCE and self.first_difference is None

    @property
    def verdict(self) -> str:
        """One sentence."""
        *names, last = self.fits
        who = f"{', '.join(names)} and {last}"
        digits = f"to {self.relative_difference:.1e} relative"
        if self.first_difference is None:
            steps = f"the same {self.iterations} step sizes"
        else:
            steps = f"different step sizes from iteration {self.first_difference} on"
        same = "the same objective" if self.relative_difference <= TOLERANCE else "objectives that are equal only"
        return f"{who}: {same} {digits}, {steps}"

    def record(self) -> dict[str, Any]:
        """For the summary."""
        return {
            "backends": [
                {
                    "backend": name,
                    "objective": fit.value,
                    "iterations": fit.n_iter,
                    "seconds": fit.seconds,
                    "setup_seconds": fit.setup_seconds,
                    "provenance": fit.provenance,
                }
                for name, fit in self.fits.items()
            ],
            "iterations": self.iterations,
            "relative_difference": self.relative_difference,
            "tolerance": TOLERANCE,
            "same_step_sizes": self.first_difference is None,
            "first_different_step": self.first_difference,
            "agree": self.same,
            "verdict": self.verdict,
        }


def _first_difference(a: np.ndarray, b: np.ndarray) -> int | None:
    n = min(a.size, b.size)
    apart = np.flatnonzero(a[:n] != b[:n])  # NaN differs from itself
    if apart.size:
        return int(apart[0])
    return None if a.size == b.size else n
