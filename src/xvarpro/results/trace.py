"""The course of a run, iterate by iterate."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Trace:
    """One entry per iterate, the start included; NumPy arrays of length ``n_iter + 1``, or fewer with `trace_every`.

    Attributes
    ----------
    iteration : array of int
        The iteration of each entry: ``0, 1, ..., n_iter``, where the trace is whole.
    value, gap_A, gap_B : arrays
        Objective and both parts of the gap at the iterate.
    alpha_A, alpha_B : arrays
        Steps that led to it, per block; 0 at the start.
    values, gradients, lmos, projections, rows : arrays
        Cumulative numbers of evaluations, and of the rows on which M was evaluated: see ``Result.counts``.
    seconds : array
        Time since the first iteration began, without set-up and compilation. The iterations of one call of a compiled
        loop share its time evenly.
    """

    iteration: np.ndarray
    value: np.ndarray
    gap_A: np.ndarray
    gap_B: np.ndarray
    alpha_A: np.ndarray
    alpha_B: np.ndarray
    values: np.ndarray
    gradients: np.ndarray
    lmos: np.ndarray
    projections: np.ndarray
    rows: np.ndarray
    seconds: np.ndarray

    @property
    def gap(self) -> np.ndarray:
        """The gap of the whole step, ``gap_A + gap_B``."""
        return self.gap_A + self.gap_B
