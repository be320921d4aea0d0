"""What figures of fits draw along x: abscissae, and the fit with its components between the samples too."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from datetime import date, timezone
from typing import Any, NamedTuple

import numpy as np

from xvarpro import backends
from xvarpro.core import trees
from xvarpro.core.namespace import is_array
from xvarpro.core.struct import Array, Tree
from xvarpro.errors import ModelError, ProblemError
from xvarpro.problem.samples import plain
from xvarpro.results.figures import date2num
from xvarpro.results.outcome import Outcome
from xvarpro.statistics.bands import errors_of_parts, joined
from xvarpro.statistics.prediction import components, sensitivities
from xvarpro.statistics.standard_errors import Statistics

KINDS = "biufM"  # of dtypes that are drawn along x: numbers and dates


class Abscissae(NamedTuple):
    """Abscissae of the rows of a fit."""

    at: np.ndarray  # (m,)
    label: str
    sets: list[np.ndarray]  # the rows of each data set
    dates: bool  # whether the numbers stand for dates, as Matplotlib counts
    places: list[int]  # leaves of the problem's data that hold those of each data set, where some do


class Curve(NamedTuple):
    """The fit of a data set along x."""

    at: np.ndarray  # (q,)
    fitted: np.ndarray
    parts: np.ndarray  # of each column of the design, (n, q)
    stderr: np.ndarray


def abscissae(fit: Outcome, x: Array | Sequence[Any] | None, m: int) -> Abscissae:
    """Those given, else the only array of m numbers in the problem's data, or the only list of arrays of m together.

    Else they are the index. Where they are given as one array a list in the data may still say what the sets are.
    """
    data = plain(fit.stated.data)
    leaves, (name, places) = trees.leaves(data), _in_data(data, m)
    pieces = [_vector(leaves[i]) for i in places] or [np.arange(m)]
    if x is not None:
        given = [_vector(part) for part in x] if isinstance(x, list | tuple) and x and np.ndim(x[0]) else [_vector(x)]
        name, pieces = "x", given if len(given) > 1 else np.split(given[0], _ends(pieces))
    if sum(map(len, pieces)) != m:
        raise ProblemError(f"x must hold {m} numbers, one per row of the fit; got {sum(map(len, pieces))}")
    at = np.concatenate(pieces)
    if not (at == at).all():
        raise ProblemError("x must hold a number or a date for every row of the fit; got NaN")
    dates = at.dtype.kind == "M"
    return Abscissae(date2num(at) if dates else at, name, np.split(np.arange(m), _ends(pieces)), dates, places)


def finer(
    fit: Outcome, column: int, along: Abscissae, parts: np.ndarray, s: Statistics | None, points: int
) -> list[Curve] | None:
    """The fit between the samples too, with `points` or more; None where it is not known what the model says there.

    Each sample stands in another row there, among other neighbours. Where its components stay what they are, `parts`, a
    row depends on its own abscissa alone.
    """
    leaves, treedef = trees.flatten(plain(fit.stated.data))
    own = [_vector(leaves[i]) for i in along.places]
    sizes = [len(rows) for rows in along.sets]
    if fit.stated.in_rows or max(sizes) >= points or [len(u) for u in own] != sizes:
        return None
    found = [_line(u, along.at[rows]) for u, rows in zip(own, along.sets, strict=True)]
    lines = [line for line in found if line is not None]
    if len(lines) < len(own):
        return None
    if s is not None and (s.influence.undetermined_theta.any() or s.influence.undetermined_w.any()):
        return None  # errors at the samples say nothing of what is between them
    grids = [_between(u, points) for u in own]
    for i, grid in zip(along.places, grids, strict=True):
        leaves[i] = grid.reshape([-1 if n == max(leaves[i].shape) else n for n in leaves[i].shape])
    data, ends = [trees.unflatten(treedef, leaves)], _ends(grids)
    try:
        values = backends.to_numpy(components(fit.stated, fit.theta, fit.w, column, data))
    except (ModelError, ProblemError):  # it holds arrays with a row for each sample
        return None
    if len(values) != sum(map(len, grids)):
        return None
    pieces = np.split(values, ends)
    rounding = np.finfo(parts.dtype).eps ** 0.5 * np.max(np.abs(parts))
    for u, rows, grid, value in zip(own, along.sets, grids, pieces, strict=True):
        if not np.all(np.abs(value[np.searchsorted(grid, u)] - parts[:, rows].T) <= rounding):
            return None
    stderr = np.full(len(values), np.nan)
    if s is not None:
        stderr = joined(errors_of_parts(fit, s, *sensitivities(fit.stated, fit.theta, fit.w, column, data), column))
    drawn = zip(lines, grids, pieces, np.split(stderr, ends), strict=True)
    return [Curve(line(grid), np.sum(x, axis=1), x.T, error) for line, grid, x, error in drawn]


def _line(u: np.ndarray, at: np.ndarray) -> Callable[[np.ndarray], np.ndarray] | None:
    """The linear function that takes abscissae of the model, floats, to those drawn; None where there is none."""
    first, last = np.argmin(u), np.argmax(u)
    if u.dtype.kind != "f" or u[first] == u[last]:
        return None
    slope = (at[last] - at[first]) / (u[last] - u[first])

    def line(x: np.ndarray) -> np.ndarray:
        return at[first] + slope * (x - u[first])

    return line if np.all(np.abs(line(u) - at) <= 1e-6 * abs(at[last] - at[first])) else None


def _between(u: np.ndarray, points: int) -> np.ndarray:
    """Samples and points between them, in order: as many in each gap, and more in a wide one."""
    u = np.unique(u)
    gaps = np.diff(u)
    pieces = np.ceil(points * np.maximum(1 / len(gaps), gaps / (u[-1] - u[0]))).astype(int)
    shares = np.concatenate([np.arange(k) / k for k in pieces])
    return np.append(np.repeat(u[:-1], pieces) + shares * np.repeat(gaps, pieces), u[-1])


def _in_data(data: Tree, m: int) -> tuple[str, list[int]]:
    """The name and the places of the only leaf of m numbers, or list of leaves of m numbers together."""
    found: dict[str, list[int]] = {}
    paths, leaves = trees.paths(data, "data"), trees.leaves(data)
    for i, (path, leaf) in enumerate(zip(paths, leaves, strict=True)):
        if is_array(leaf) and math.prod(leaf.shape) == max(leaf.shape, default=0) and _kind(leaf) in KINDS:
            for owner in {path, re.sub(r"\[\d+\]$", "", path)}:
                found.setdefault(owner, []).append(i)
    fits = [
        (path, places)
        for path, places in found.items()
        if sum(math.prod(leaves[i].shape) for i in places) == m and (len(places) > 1 or path in paths)
    ]
    flat = [(path, places) for path, places in fits if all(leaves[i].ndim == 1 for i in places)]
    fits = flat if len(fits) > 1 else fits  # next to columns (m, 1) of a design
    if len(fits) != 1:
        return "index", []
    path, places = fits[0]
    name = path.rpartition("[")[2].strip("]'")
    return "x" if name == "data" or name.isdigit() else name, places


def _kind(x: Array) -> str:
    return backends.to_numpy(x).dtype.kind


def _vector(x: Any) -> np.ndarray:
    found = np.ravel(backends.to_numpy(x) if is_array(x) else np.asarray(x))
    if found.dtype == object and all(isinstance(day, date) for day in found):
        found = np.array([_without_zone(day) for day in found], dtype="datetime64[us]")
    if found.dtype.kind not in KINDS:
        raise ProblemError(f"x must hold numbers or dates; got dtype {found.dtype}")
    return found


def _without_zone(day: Any) -> Any:
    """In universal time, where it has a zone."""
    return day.astimezone(timezone.utc).replace(tzinfo=None) if getattr(day, "tzinfo", None) else day


def _ends(pieces: list[np.ndarray]) -> np.ndarray:
    return np.cumsum([len(piece) for piece in pieces])[:-1]
