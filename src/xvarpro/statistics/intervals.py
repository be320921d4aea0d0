"""Confidence intervals of theta and w, and those of linear theory."""

from __future__ import annotations

import html
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np

from xvarpro import backends
from xvarpro.errors import needs
from xvarpro.results.outcome import Outcome
from xvarpro.statistics import constraints
from xvarpro.statistics.frames import data_frame, html_table, vector
from xvarpro.statistics.standard_errors import IN_CHUNKS, Statistics

if TYPE_CHECKING:
    from pandas import DataFrame


HEAD = ("value", "lower", "upper")


@dataclass(frozen=True, eq=False, repr=False)
class Intervals:
    """Confidence intervals, from `Result.interval`: one row per entry of theta, then of w unless it comes in chunks.

    Attributes
    ----------
    names : list of str
    value, lower, upper : NumPy arrays
        Estimates and the ends of their intervals; inf where neither the data nor a set give one.
    level : float
    method : str
    notes : list of str
        What to know before they are believed; empty where nothing is.
    samples : NumPy array or None
        Estimates of a bootstrap, a row per sample.
    """

    names: list[str]
    value: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    level: float
    method: str
    notes: list[str]
    samples: np.ndarray | None = None

    def __str__(self) -> str:
        rows = [("", *HEAD), *self._rows()]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(x.ljust(n) for x, n in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join([f"{self.level:.6g} confidence, {self.method}", *lines, *self.notes])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        title = f"{self.level:.6g} confidence, {self.method}"
        notes = "".join(f"<li>{html.escape(note)}</li>" for note in self.notes)
        return html_table(title, ("name", *HEAD), self._rows()) + (f"<ul>{notes}</ul>" if notes else "")

    def _rows(self) -> list[tuple[str, ...]]:
        numbers = zip(self.value, self.lower, self.upper, strict=True)
        return [(name, *(f"{x:.6g}" for x in row)) for name, row in zip(self.names, numbers, strict=True)]

    def to_frame(self) -> DataFrame:
        """As a pandas data frame, indexed by name."""
        return data_frame({"value": self.value, "lower": self.lower, "upper": self.upper}, self.names)


class IntervalMethod(ABC):
    """A way to confidence intervals."""

    @abstractmethod
    def intervals(self, fit: Outcome, s: Statistics, level: float) -> Intervals:
        """Intervals of a fit at a level in (0, 1); its statistics have the names that notes are to use."""


@final
@dataclass(frozen=True)
class Linear(IntervalMethod):
    """``estimate +- t stderr``, with t the quantile of Student's distribution, of the normal one if sigma is known.

    Exact for linear models with Gaussian noise, and close to it where the model is nearly linear over an interval.
    """

    def intervals(self, fit: Outcome, s: Statistics, level: float) -> Intervals:
        value, notes, names = estimates(fit), warnings(s), s.entries
        width = student(s, level) * standard_errors(s)
        kink = np.array([limit.kink for limit in s.limits], bool)
        low, high = (np.array([limit[i] for limit in s.limits]) for i in (0, 1))
        lower, upper = np.where(kink, low, value - width), np.where(kink, high, value + width)
        if kink.any():
            notes.append(
                "where the multiplier is zero, linear theory gives no ends: they are those of the set, if known"
            )
        held = np.array([limit.held for limit in s.limits], bool)
        outside = np.isfinite(width) & ~held & ((lower < low) | (upper > high))
        if outside.any():
            named = constraints.listed([name for name, x in zip(names, outside, strict=True) if x])
            if fit.loss is None:
                other = "; Bootstrap() respects them, and Profile() those of theta"
            else:
                other = "; Profile() respects those of theta" if fit.loss.likelihood else ""
            notes.append(f"intervals leave the bounds of {named}{other}")
        notes += [IN_CHUNKS] if fit.in_columns else []
        return Intervals(names, value, lower, upper, level, "linear theory", notes)


def quantile(p: Any, dof: float = math.inf) -> Any:
    """Quantiles of Student's distribution, of the normal one for infinite `dof`."""
    with needs("a quantile", "scipy"):
        from scipy.special import ndtri, stdtrit
    return ndtri(p) if dof == math.inf else stdtrit(dof, p)


def student(s: Statistics, level: float) -> float:
    """The multiple of a standard error that an interval of that level extends to either side."""
    return float(quantile(0.5 + level / 2, math.inf if s.absolute_sigma else s.dof))


def complex_w(fit: Outcome) -> bool:
    """Whether w has an imaginary part: bounds, where it has any, make it real."""
    W = fit.stated.lower.W
    return np.iscomplexobj(backends.to_numpy(fit.w)) and (W is None or not W.real)


# -- entries of theta, then of w, as vectors ---------------------------------------------------------------------------


def estimates(fit: Outcome) -> np.ndarray:
    """Values of theta's entries and, unless right-hand sides come in chunks, of w's."""
    return vector([fit.theta, *([] if fit.in_columns else [fit.w])]).real.astype(float)


def standard_errors(s: Statistics) -> np.ndarray:
    """Their standard errors."""
    return vector(s.errors).real.astype(float)


def warnings(s: Statistics) -> list[str]:
    """What limits the meaning of intervals: what the statistics say, and constraints that are active."""
    return [*s.reasons, *constraints.uncalibrated(s.entries, s.limits)]
