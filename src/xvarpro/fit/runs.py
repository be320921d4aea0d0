"""Solves of one problem, compared by their traces and their ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from xvarpro.backends import to_numpy
from xvarpro.core import trees
from xvarpro.core.struct import Tree
from xvarpro.fit.result import Result
from xvarpro.statistics.frames import vector


@dataclass(frozen=True)
class Runs:
    """Solves of one problem by one algorithm from one start, by name; the first is the reference."""

    fits: Mapping[str, Result]

    @property
    def iterations(self) -> int:
        """Number of iterations that all of them made."""
        return min(fit.n_iter for fit in self.fits.values())

    @property
    def _recorded(self) -> np.ndarray:
        """The iterations that all traces hold."""
        return reduce(np.intersect1d, (fit.trace.iteration for fit in self.fits.values()))

    def _columns(self, *names: str) -> np.ndarray:
        """Columns of the traces there, (solves, columns, iterations)."""
        traces = [(fit.trace, np.isin(fit.trace.iteration, self._recorded)) for fit in self.fits.values()]
        return np.stack([[getattr(trace, name)[at] for name in names] for trace, at in traces])

    @property
    def value_difference(self) -> np.ndarray:
        """Largest difference of two objectives at every iteration, relative to the larger; NaN where one is."""
        values = self._columns("value")[:, 0]
        largest = np.max(np.abs(values), axis=0)
        return np.ptp(values, axis=0) / np.where(largest == 0, 1.0, largest)

    @property
    def relative_difference(self) -> float:
        """The largest `value_difference`."""
        return float(np.max(self.value_difference))

    @property
    def first_different_step(self) -> int | None:
        """First iteration at which two took steps of different sizes; None if all are equal, bit for bit."""
        steps = self._columns("alpha_A", "alpha_B")
        different = self._recorded[np.any(steps != steps[0], axis=(0, 1))]
        if different.size:
            return int(different[0])
        return self.iterations + 1 if any(fit.n_iter > self.iterations for fit in self.fits.values()) else None

    @property
    def same_bits(self) -> bool:
        """Whether objectives, gaps, steps and the last theta are equal, bit for bit."""
        columns = self._columns("value", "gap_A", "gap_B", "alpha_A", "alpha_B")
        ends = [(fit.n_iter, [to_numpy(x).tobytes() for x in trees.leaves(fit.theta)]) for fit in self.fits.values()]
        return all(x.tobytes() == columns[0].tobytes() for x in columns) and all(end == ends[0] for end in ends)

    @property
    def verdict(self) -> str:
        """The outcome in one sentence."""
        *names, last = self.fits
        return f"{', '.join(names)} and {last}: {self._path}"

    @property
    def _path(self) -> str:
        n = self.first_different_step
        steps = f"the same {self.iterations} step sizes" if n is None else f"different step sizes from iteration {n} on"
        return f"objectives equal to {self.relative_difference:.1e} relative, {steps}"

    def record(self) -> dict[str, Any]:
        """All of it as JSON types."""
        return {
            "backends": [
                {"backend": name, "objective": fit.value, "iterations": fit.n_iter}
                | {key: getattr(fit, key) for key in ("seconds", "setup_seconds", "provenance")}
                for name, fit in self.fits.items()
            ],
            "iterations": self.iterations,
            "relative_difference": self.relative_difference,
            "first_different_step": self.first_different_step,
            "same_bits": self.same_bits,
            "verdict": self.verdict,
        }


def distance(a: Tree, b: Tree, size: float = 0.0) -> float:
    """Euclidean distance of a and b, relative to the larger of ``|b|`` and `size`."""
    x, y = vector(a), vector(b)
    size = max(size, float(np.linalg.norm(y)))
    gap = float(np.linalg.norm(x - y))
    return gap / size if size else gap


def norm(tree: Tree) -> float:
    """Length of all leaves as one vector."""
    return float(np.linalg.norm(vector(tree)))
