"""What a multi-start returns: the best fit, and the minima that its starts have led to."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from xvarpro.backends import to_numpy
from xvarpro.batch.result import ManyResult
from xvarpro.core import trees
from xvarpro.core.status import Status
from xvarpro.core.struct import Array, Tree
from xvarpro.fit.result import Result

if TYPE_CHECKING:
    from pandas import DataFrame

SHOWN = 12  # minima of a table
HEAD = ("objective", "reached", "theta", "ended")


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
    """Result of `multistart`; to print it shows the minima and the report of the best fit.

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
        lines = [f"  {a:<14}{b:>8}  {theta:<40}  {ended}" for a, b, theta, ended in (HEAD, *self._rows())]
        return "\n".join([self._headline, *map(str.rstrip, lines), "", f"best: {self.best}"])

    def _repr_html_(self) -> str:
        from xvarpro.statistics.frames import html_table

        return html_table(self._headline, HEAD, self._rows()) + self.best._repr_html_()

    def to_frame(self) -> DataFrame:
        """The minima as a pandas data frame, the lowest first: objective, how often it was reached, theta's entries.

        Raises
        ------
        ImportError
            pandas is not installed.
        """
        from xvarpro.statistics.frames import data_frame
        from xvarpro.statistics.names import entry_names

        columns: dict[str, Any] = {
            "objective": [found.value for found in self.minima],
            "reached": [found.count for found in self.minima],
        }
        theta = [_entries(found.theta) for found in self.minima]
        for i, name in enumerate(entry_names(self.best.theta)):
            columns[name] = [entries[i] for entries in theta]
        columns["ended"] = [_counted(found.statuses) for found in self.minima]
        return data_frame(columns, range(len(self.minima)))

    @property
    def _headline(self) -> str:
        n, k = len(self.ends), len(self.minima)
        return f"{n} start{'' if n == 1 else 's'} led to {k} minim{'um' if k == 1 else 'a'}"

    def _rows(self) -> list[tuple[str, str, str, str]]:
        rows = []
        for found in self.minima[:SHOWN]:
            entries = [f"{x:.5g}" for x in _entries(found.theta)]
            theta = " ".join([*entries[:6], *(["..."] if entries[6:] else [])])
            rows.append((f"{found.value:.8g}", str(found.count), theta, _counted(found.statuses)))
        if self.minima[SHOWN:]:
            rows.append((f"and {len(self.minima) - SHOWN} more", "", "", ""))
        if self.lost:
            rows.append(("none of these", str(sum(self.lost.values())), "", _counted(self.lost)))
        return rows

    def __repr__(self) -> str:
        return f"Multistart({len(self.ends)} starts: {len(self.minima)} minima, best {self.best.value:.8g})"


def _entries(theta: Tree) -> list[float]:
    return [float(x) for leaf in map(to_numpy, trees.leaves(theta)) for x in leaf.ravel()]


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
