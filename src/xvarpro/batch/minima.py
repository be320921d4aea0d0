"""What a multi-start returns: the best fit, and the minima that its starts have led to."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from xvarpro.backends import to_numpy
from xvarpro.batch.result import ManyResult
from xvarpro.core import trees
from xvarpro.core.status import Status
from xvarpro.core.struct import Array, Tree
from xvarpro.results.result import Result

SHOWN = 12  # minima of a table


@dataclass(frozen=True, eq=False)
class Minimum:
    """A minimum, at the lowest of the ends that are the same: one has a certificate, or there are two or more.

    Attributes
    ----------
    theta : pytree of arrays
        As theta0.
    w : array, shape (n,) or (n, k)
    value : float
    reached : NumPy array of int
        Which starts have led to it.
    statuses : dict of Status to int
        How these ended.
    """

    theta: Tree
    w: Array
    value: float
    reached: np.ndarray
    statuses: dict[Status, int]

    @property
    def count(self) -> int:
        """How often it was reached."""
        return len(self.reached)


@dataclass(frozen=True, eq=False)
class Multistart:
    """Result of `multistart`; to print it shows the minima.

    Attributes
    ----------
    best : Result
        Of `solve` from the lowest end: certificate, trace and what was verified are its own.
    minima : tuple of Minimum
        The lowest first.
    lost : dict of Status to int
        How starts ended that have led to none of the minima.
    starts : pytree of arrays
        Leaves (starts, ...), theta0 first.
    ends : ManyResult
        One problem per start.
    """

    best: Result
    minima: tuple[Minimum, ...]
    lost: dict[Status, int]
    starts: Tree
    ends: ManyResult

    def __str__(self) -> str:
        n, lost = len(self.ends), sum(self.lost.values())
        minima = "1 minimum" if len(self.minima) == 1 else f"{len(self.minima)} minima"
        lines = [
            f"{n} starts led to {minima}" if n > 1 else f"1 start led to {minima}",
            f"  {'objective':<14}{'reached':>8}  {'theta':<40}  ended",
        ]
        for found in self.minima[:SHOWN]:
            entries = [f"{x:.5g}" for leaf in map(to_numpy, trees.leaves(found.theta)) for x in leaf.ravel()]
            theta = " ".join([*entries[:6], *(["..."] if entries[6:] else [])])
            lines.append(f"  {found.value:<14.8g}{found.count:>8}  {theta:<40}  {_counted(found.statuses)}")
        if self.minima[SHOWN:]:
            lines.append(f"  and {len(self.minima) - SHOWN} more")
        if lost:
            lines.append(f"  none of these {lost:>8}  {'':<40}  {_counted(self.lost)}")
        return "\n".join([*lines, f"best: {self.best!r}"])

    def __repr__(self) -> str:
        return f"Multistart({len(self.ends)} starts: {len(self.minima)} minima, best {self.best.value:.8g})"


def counted(statuses: np.ndarray) -> dict[Status, int]:
    """How often each status occurs, the most frequent first."""
    return {Status.of(code): n for code, n in Counter(statuses.tolist()).most_common()}


def labelled(
    ends: np.ndarray, order: np.ndarray, success: np.ndarray, spread: np.ndarray, least: np.ndarray, same: float
) -> np.ndarray:
    """The number of the minimum that each end (n, p) is, -1 for none, in `order`.

    Minima are ends with `success`, and those that were reached twice: where the model is blind, as along a direction
    that the residuals do not feel to first order, an end may have no certificate. Two ends are the same where every
    entry differs by at most `same` of its size, or of `spread` where that is smaller, or of `least` where both are.
    """

    def near(others: np.ndarray, i: int) -> np.ndarray:
        size = np.clip(np.maximum(np.abs(others), np.abs(ends[i])), least, spread)
        near: np.ndarray = (np.abs(others - ends[i]) <= same * size).all(axis=1)
        return near

    found: list[int] = []
    labels = np.full(len(ends), -1)
    for i in order:
        known = near(ends[found], i)
        if known.any():
            labels[i] = int(np.argmax(known))
        elif success[i] or near(ends, i).sum() > 1:
            labels[i] = len(found)
            found.append(int(i))
    return labels


def _counted(statuses: dict[Status, int]) -> str:
    return ", ".join(f"{n} {status.name}" for status, n in statuses.items())
