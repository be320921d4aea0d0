"""One problem from many starts, all together: the best fit and the minima that there are."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from xvarpro import backends
from xvarpro.algorithms.levenberg_marquardt import LevenbergMarquardt
from xvarpro.backends import Backend
from xvarpro.batch.lift import lifted
from xvarpro.core import trees
from xvarpro.core.checks import number
from xvarpro.core.status import Status
from xvarpro.core.struct import Array, Tree
from xvarpro.driver.transfer import destination
from xvarpro.errors import ProblemError
from xvarpro.fit.batch_result import ManyResult, counted
from xvarpro.fit.many import solve_many
from xvarpro.fit.result import Result
from xvarpro.fit.solve import solve_on
from xvarpro.fit.starts import draw, per_leaf
from xvarpro.problem.problem import Problem
from xvarpro.sets import each
from xvarpro.statistics.frames import data_frame, html_table, vector
from xvarpro.statistics.names import entry_names

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
        return html_table(self._headline, HEAD, self._rows()) + self.best._repr_html_()

    def to_frame(self) -> DataFrame:
        """The minima as a pandas data frame, the lowest first: objective, how often it was reached, theta's entries.

        Raises
        ------
        ImportError
            pandas is not installed.
        """
        columns: dict[str, Any] = {
            "objective": [found.value for found in self.minima],
            "reached": [found.count for found in self.minima],
        }
        theta = [vector(found.theta).tolist() for found in self.minima]
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
            entries = [f"{x:.5g}" for x in vector(found.theta).tolist()]
            theta = " ".join([*entries[:6], *(["..."] if entries[6:] else [])])
            rows.append((f"{found.value:.8g}", str(found.count), theta, _counted(found.statuses)))
        if self.minima[SHOWN:]:
            rows.append((f"and {len(self.minima) - SHOWN} more", "", "", ""))
        if self.lost:
            rows.append(("none of these", str(sum(self.lost.values())), "", _counted(self.lost)))
        return rows

    def __repr__(self) -> str:
        return f"Multistart({len(self.ends)} starts: {len(self.minima)} minima, best {self.best.value:.8g})"


def multistart(
    problem: Problem,
    theta0: Tree,
    over: Tree = None,
    *,
    starts: int = 64,
    log: Tree = False,
    scale: Tree = None,
    seed: int = 0,
    canonical: Callable[[Tree], Tree] | None = None,
    same: float = 1e-3,
    method: LevenbergMarquardt | None = None,
    tol: float = 1e-6,
    max_iter: int = 200,
    backend: str | Backend | None = None,
    device: Any = None,
    dtype: str | None = None,
    progress: bool | None = None,
) -> Multistart:
    """Solve one problem from many starts, in one batch, and list the minima that they lead to.

    Starts are theta0 and the points of a scrambled Sobol sequence (Owen 1998), which cover sets more evenly than random
    ones: between the bounds of a `Box`, around theta0 where there are none, and of any other bounded set projections of
    a cube around its centre, or random mixtures of its vertices where it has no projection. The same seed gives the
    same starts on every backend.

    Parameters
    ----------
    problem : Problem
        From `separable` or `bilevel`, as `solve` takes it, of the kinds that `solve_many` takes.
    theta0 : array or pytree of arrays
        A feasible start, float32 or float64: the first of all.
    over : Set, Free or a tree of them, optional
        Sets for the leaves of theta; leaves without one are free.
    starts : int
        How many there are, >= 1; powers of two cover best.
    log : bool or tree of bool
        Leaves that are drawn uniformly in their logarithm, between bounds > 0; in a dict, keys may be left out.
    scale : number, array or tree of them, optional
        How far from theta0, on either side, to draw entries without two bounds, in their own units; needed for these.
    seed : int
        Of the starts, >= 0.
    canonical : callable, optional
        Maps theta, as NumPy's arrays, to the same for all theta that count as one: ``np.sort`` where entries may change
        places. Without it ends that differ by a permutation are two minima.
    same : float
        Two ends are one minimum if no entry differs by more than this share of its size, or of the range of the starts
        where that is smaller. Entries near 0, of leaves that are not drawn by their logarithm, count as of `same` times
        that range in size.
    method, tol, max_iter, backend, device, dtype, progress : optional
        As in `solve_many`.

    Returns
    -------
    Multistart
        The best fit as a result of `solve`, which starts from the lowest end; the minima with how often each was
        reached; starts and ends.

    Raises
    ------
    ProblemError
        As from `solve_many` and `solve`; no scale for entries without bounds; no positive bounds for `log`.
    BackendNotInstalledError
        SciPy is not installed: ``pip install 'xvarpro[scipy]'``.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> def M(theta, t):
    ...     xp = xv.array_namespace(theta)
    ...     return xp.exp(-xp.expand_dims(t, axis=1) * theta)
    >>> t = np.linspace(0.0, 4.0, 60)
    >>> problem = xv.separable(M, 2 * np.exp(-t) + np.exp(-4.0 * t), data=t)
    >>> found = xv.multistart(
    ...     problem, np.array([1.0, 2.0]), xv.sets.Box(0.1, 20.0), starts=16, log=True, canonical=np.sort
    ... )
    >>> len(found.minima), found.minima[0].count
    (1, 16)
    >>> np.round(np.sort(found.best.theta), 4)
    array([1., 4.])
    """
    _check(problem, starts, seed, same, canonical)
    to = destination(theta0, backend, device, dtype)
    treedef = to.layout.treedef
    one = trees.unflatten(treedef, [np.asarray(backends.to_numpy(x), dtype=np.float64) for x in to.leaves])
    drawn = draw(one, to.names, over, int(starts), log=log, scale=scale, seed=int(seed))
    home = to.layout.backend
    with home.scope(to.dtype):
        places = zip(drawn, to.layout.devices, strict=True)
        first = trees.unflatten(treedef, [home.asarray(x.astype(to.dtype), device=place) for x, place in places])
    options: dict[str, Any] = {"tol": tol, "backend": backend, "device": device, "dtype": dtype, "progress": progress}
    ends = solve_many(lifted(problem), first, over, method=method, max_iter=max_iter, **options)
    values = backends.to_numpy(ends.value)
    lowest = int(np.argmin(np.where(np.isfinite(values), values, np.inf)))
    best = solve_on(problem, _entry(ends.theta, lowest), over, **options)
    minima, lost = _minima(ends, first, per_leaf(log, one, "log", False), canonical, same)
    return Multistart(best, minima, lost, first, ends)


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


def _minima(
    ends: ManyResult, starts: Tree, logs: list[Any], canonical: Callable[[Tree], Tree] | None, same: float
) -> tuple[tuple[Minimum, ...], dict[Any, int]]:
    values, success = backends.to_numpy(ends.value), ends.success
    order = np.lexsort((values, ~success))
    theta, begun = (_vectors(tree, canonical) for tree in (ends.theta, starts))
    spread = np.ptp(begun, axis=0)
    sizes = [math.prod(x.shape[1:]) for x in trees.leaves(starts)]
    by_log = np.repeat([bool(y) for y in logs], sizes)
    labels = labelled(theta, order, success, spread, np.where(by_log, 0.0, same * spread), same)
    minima = []
    for label in range(labels.max(initial=-1) + 1):
        reached = np.flatnonzero(labels == label)
        at = next(int(i) for i in order if labels[i] == label)
        where = _entry(ends.theta, at), ends.w[at, ...], float(values[at])
        minima.append(Minimum(*where, reached, counted(ends.status[reached])))
    return tuple(minima), counted(ends.status[labels < 0])


def _entry(tree: Tree, i: int) -> Tree:
    return trees.map_leaves(lambda x: x[i, ...], tree)


def _vectors(tree: Tree, canonical: Callable[[Tree], Tree] | None) -> np.ndarray:
    """Every theta of a batch as a vector, (b, p), in its canonical form."""
    host = trees.map_leaves(lambda x: np.asarray(backends.to_numpy(x), dtype=np.float64), tree)
    plain: Any = trees.raveled(tuple(trees.leaves(host)), rows=1)
    if canonical is None:
        return plain
    rows = []
    for i, before in enumerate(plain):
        row = vector(canonical(_entry(host, i)))
        if row.shape != before.shape:
            raise ProblemError(
                f"canonical must return theta with as many entries as it is given, {before.size}; got {row.size}"
            )
        rows.append(row)
    return np.stack(rows)


def _check(problem: Any, starts: Any, seed: Any, same: Any, canonical: Any) -> None:
    if not isinstance(problem, Problem):
        raise ProblemError(f"problem must come from xv.separable or xv.bilevel; got {type(problem).__name__}")
    if any(map(each.is_each, each.leaves(problem))):
        raise ProblemError(
            "a multi-start is of a single problem, without xv.Each; got a mark. Use xv.solve_many for a batch"
        )
    for name, value, least in (("starts", starts, 1), ("seed", seed, 0)):
        if not (isinstance(value, int | np.integer) and number(value) >= least):
            raise ProblemError(f"{name} must be a whole number >= {least}; got {value!r}")
    if not 0 < number(same) < 1:
        raise ProblemError(f"same must be a number in (0, 1); got {same!r}")
    if not (canonical is None or callable(canonical)):
        raise ProblemError(f"canonical must be a function of theta, such as np.sort, or None; got {canonical!r}")
