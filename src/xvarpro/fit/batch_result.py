"""What a batch returns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from xvarpro.backends import to_numpy
from xvarpro.batch.lift import members
from xvarpro.batch.prepare import prepare
from xvarpro.batch.shared import spread
from xvarpro.core import trees
from xvarpro.core.lazy import Method
from xvarpro.core.namespace import namespace_of
from xvarpro.core.status import Status
from xvarpro.core.struct import Array, Tree
from xvarpro.errors import ProblemError
from xvarpro.fit.missing import chosen, filled, without_data
from xvarpro.problem.problem import Problem
from xvarpro.results.outcome import warn_of_lost_digits
from xvarpro.statistics.frames import data_frame, dataset, on_grid
from xvarpro.statistics.names import entry_names, indexed

if TYPE_CHECKING:
    from pandas import DataFrame
    from xarray import Dataset

    from xvarpro.statistics.many import BatchStatistics

NUMBERS = ("theta", "w", "value", "gap_A", "gap_B", "condition")  # fields in theta0's framework
PER_PROBLEM = (*NUMBERS, "status", "n_iter")  # fields with an entry for each


@dataclass(frozen=True, eq=False)
class ManyResult:
    """Result of `solve_many`: one entry per problem in every array.

    Attributes
    ----------
    theta : pytree of arrays
        Leaves (b, ...), in theta0's framework and on its device, as are the next five; NaN for what is NO_DATA.
    w : array, shape (b, n) or (b, n, k)
        The eliminated variables at theta.
    value, gap_A, gap_B : arrays, shape (b,)
        Objectives and both parts of their gaps; NaN for a problem that has none.
    condition : array, shape (b,)
        Condition number of the matrix that was factored, its columns at length 1; a gradient is off by about this
        times the machine epsilon.
    status : NumPy array of int, shape (b,)
        ``Status.code`` of each problem, of which ``Status.of(code)`` is the status.
    n_iter : NumPy array of int, shape (b,)
        Iterations while the problem ran, each one trial point.
    method : str
    provenance : dict
        Backend, device, dtype, versions.
    seconds, setup_seconds : float
        Time in the iterations, compilations included, and before them.
    over, chunks
        As given.
    shared : tuple of str
        The leaves of theta that all problems share, in their own shape: ``("theta['tau']",)``.
    read : int
        Problems whose answers come from the files of an earlier call, by ``checkpoint=``.
    """

    statistics = Method("xvarpro.statistics.many.statistics")
    plot_map = Method("xvarpro.fit.maps.plot_map")

    theta: Tree
    w: Array
    value: Array
    gap_A: Array
    gap_B: Array
    condition: Array
    status: np.ndarray
    n_iter: np.ndarray
    method: str
    provenance: dict[str, Any]
    seconds: float
    setup_seconds: float
    over: Tree = None
    chunks: int | None = None
    shared: tuple[str, ...] = ()
    read: int = 0
    _problem: Problem | None = None
    _prepared: Any = None  # a `batch.prepare.Prepared` at theta, where the solve was one of this process
    _fits: Any = None  # of problems that were solved one after the other, a `Result` each or None

    @property
    def stated(self) -> Problem:
        """The problem; a `ProblemError` where it is not known."""
        if self._problem is None:
            raise ProblemError(
                "statistics need the problem, which a copy or a pickle does not hold; got a result without one. Call "
                "solve_many again, which with the same checkpoint= reads what it has solved, or pass errors=False to "
                "to_frame, to_xarray and columns"
            )
        return self._problem

    def members(self, picked: slice) -> ManyResult:
        """The result of some of the problems, for what follows from it."""
        every = {name: getattr(self, name) for name in PER_PROBLEM} | {"theta": self._feasible}
        arrays = trees.map_leaves(lambda x: x[picked, ...], every)
        anew: dict[str, Any] = {"_problem": members(self.stated, picked), "_prepared": None, "chunks": None}
        anew["over"] = members(self.over, picked)
        return replace(self, **arrays, **anew, _fits=self._fits and self._fits[picked])

    @property
    def prepared(self) -> Any:
        """What statistics compute with."""
        return self._prepared or prepare(self.stated, self._feasible, over=self.over)

    @cached_property
    def _feasible(self) -> Tree:
        """theta, with that of another problem where there is none."""
        return filled(self.theta)

    def __getstate__(self) -> dict[str, Any]:
        """For pickle and copies: what holds functions and the data is left out."""
        return {name: x for name, x in vars(self).items() if not name.startswith("_")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        warn_of_lost_digits(self)

    def __len__(self) -> int:
        return len(self.status)

    @property
    def success(self) -> np.ndarray:
        """Which problems met the tolerance, shape (b,)."""
        return np.isin(self.status, [s.code for s in Status if s.success])

    @property
    def counts(self) -> dict[Status, int]:
        """How many problems ended how, the most frequent status first."""
        return counted(self.status)

    def ended(self, status: Status) -> np.ndarray:
        """Indices of the problems that ended with a status."""
        return np.flatnonzero(self.status == status)

    def spread(self, theta: Tree) -> Tree:
        """A tree like theta with an entry for each problem in every leaf."""
        return spread(theta, self.shared, len(self))

    def _errors(self, errors: bool | BatchStatistics) -> tuple[Tree, Array] | None:
        """Those of theta and of w, None where none are asked for."""
        if not errors:
            return None
        found: BatchStatistics = self.statistics() if isinstance(errors, bool) else errors
        return self.spread(found.theta_stderr), found.w_stderr

    def columns(self, errors: bool | BatchStatistics = True) -> dict[str, np.ndarray]:
        """Entries of theta and w, of their errors as for `to_frame`, and the objective by name, (b,) each."""
        found = self._errors(errors)
        columns = _by_entry(self.spread(self.theta), self.w)
        more = {} if found is None else _by_entry(*found)
        return columns | {f"{name}_stderr": x for name, x in more.items()} | {"value": to_numpy(self.value)}

    def to_frame(self, errors: bool | BatchStatistics = True) -> DataFrame:
        """A data frame of pandas with a row for each problem: theta, w, objective, status and, if asked for, errors.

        A parameter that is called w, value or status is the column ``theta.w``.

        Parameters
        ----------
        errors : bool or BatchStatistics
            Whether to add errors, and which: ``fit.statistics(absolute_sigma=True)``; else `statistics` as it is called
            without arguments.

        Raises
        ------
        ImportError
            Without pandas; it names the pip command.
        """
        status = [Status.of(code).name for code in self.status.tolist()]
        return data_frame(self.columns(errors) | {"status": status}, range(len(self)))

    def to_xarray(self, shape: Sequence[int], dims: Sequence[str], errors: bool | BatchStatistics = True) -> Dataset:
        """Leaves of theta, w, objective, status and errors as a dataset of xarray, in the shape of an image or a cube.

        `errors` is as for `to_frame`.

        Raises
        ------
        ProblemError
            `shape` has another number of problems, or `dims` another number of axes.
        ImportError
            Without xarray; it names the pip command.
        """
        if np.shape(shape) != (len(dims),):
            raise ProblemError(f"dims must name each axis of shape, as ('y', 'x') of (ny, nx); got {dims} of {shape}")
        arrays = _by_leaf(self.spread(self.theta), self.w) | {"value": self.value, "status": self.status}
        if (found := self._errors(errors)) is not None:
            arrays |= {f"{name}_stderr": x for name, x in _by_leaf(*found).items()}
        own = {name: [f"{name.removesuffix('_stderr')}_{i}" for i in range(x.ndim - 1)] for name, x in arrays.items()}
        made = dataset({name: ([*dims, *own[name]], on_grid(to_numpy(x), shape)) for name, x in arrays.items()})
        codes = {status.name: status.code for status in Status}
        made["status"].attrs = {"flag_values": list(codes.values()), "flag_meanings": " ".join(codes)}
        return made

    def __str__(self) -> str:
        n = self.n_iter if len(self) else np.zeros(1, int)
        rate = (len(self) - self.read) / self.seconds if self.seconds > 0 else float("inf")
        took = f"{self.seconds:.3g} s (set-up {self.setup_seconds:.3g} s)"
        solved = f", {len(self) - self.read} of them solved by this call," if self.read else ""
        lines = [f"{len(self)} problems{solved} in {took}, {rate:.3g} per second"]
        for status, count in self.counts.items():
            first = ", ".join(map(str, self.ended(status)[:3]))
            where = "" if status.success else f"  first: {first}"
            lines.append(f"  {status.name:<15} {count}{where}")
        lines.append(f"  iterations      median {np.median(n):g}, at most {n.max()}")
        lines.append(f"  method          {self.method}")
        computed = ", ".join(f"{k} {x}" for k, x in self.provenance.items() if not isinstance(x, dict))
        return "\n".join([*lines, f"  computed        {computed}"])

    def __repr__(self) -> str:
        ends = ", ".join(f"{n} {status.name}" for status, n in self.counts.items())
        return f"ManyResult({len(self)} problems: {ends or 'none'})"


def _by_leaf(theta: Tree, w: Array) -> dict[str, Array]:
    """Leaves of theta and w by name."""
    leaves, treedef = trees.flatten(theta)
    names = entry_names(trees.unflatten(treedef, [0.0] * len(leaves)))
    return dict(zip([*names, "w"], [*leaves, w], strict=True))


def _by_entry(theta: Tree, w: Array) -> dict[str, np.ndarray]:
    """Entries of theta and w by name, (b,) each."""
    found: dict[str, np.ndarray] = {}
    for name, x in _by_leaf(theta, w).items():
        found |= zip(indexed(name, x.shape[1:]), to_numpy(x).reshape(x.shape[0], -1).T, strict=True)
    return found


def blanked(fit: ManyResult) -> ManyResult:
    """The result with NO_DATA and NaN for the problems that have no data to fit."""
    ended = np.isin(fit.status, [Status.NON_FINITE.code, Status.RANK_DEFICIENT.code])
    at = without_data(fit.stated, ended)
    if not at.any():
        return fit

    def blank(x: Array) -> Array:
        return chosen(at, namespace_of(x).full_like(x, np.nan), x)

    leaves, names, treedef = trees.named(fit.theta)
    theta = [x if name in fit.shared else blank(x) for x, name in zip(leaves, names, strict=True)]
    arrays: dict[str, Any] = {name: blank(getattr(fit, name)) for name in NUMBERS[1:]}
    arrays["theta"] = trees.unflatten(treedef, theta)
    status, n_iter = np.where(at, Status.NO_DATA.code, fit.status), np.where(at, 0, fit.n_iter)
    return replace(fit, **arrays, status=status, n_iter=n_iter)


def counted(statuses: np.ndarray) -> dict[Status, int]:
    """How often each status occurs, the most frequent first."""
    return {Status.of(code): n for code, n in Counter(statuses.tolist()).most_common()}
