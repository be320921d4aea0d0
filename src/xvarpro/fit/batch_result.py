"""What a batch returns."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from xvarpro.backends import to_numpy
from xvarpro.batch.lift import members
from xvarpro.batch.prepare import prepare
from xvarpro.core import trees
from xvarpro.core.lazy import Method
from xvarpro.core.namespace import namespace_of
from xvarpro.core.status import Status
from xvarpro.core.struct import Array, Tree
from xvarpro.errors import ProblemError
from xvarpro.fit.missing import broken, chosen, filled, masked
from xvarpro.problem.problem import Problem
from xvarpro.statistics.frames import data_frame, dataset
from xvarpro.statistics.names import entry_names, indexed

if TYPE_CHECKING:
    from pandas import DataFrame
    from xarray import Dataset

PER_PROBLEM = ("w", "value", "gap_A", "gap_B", "condition", "status", "n_iter")  # fields with an entry for each


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
        ``Status.code`` of each problem.
    n_iter : NumPy array of int, shape (b,)
        Iterations while the problem ran, each one trial point.
    method : str
    provenance : dict
        Backend, device, dtype, versions.
    seconds, setup_seconds : float
        Time in the iterations, compilations included, and before them.
    over, chunks
        As given.
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
    _problem: Problem | None = None
    _prepared: Any = None  # a `batch.prepare.Prepared` at theta, where the solve was one of this process
    _fits: Any = None  # of problems that were solved one after the other, a `Result` each or None

    @property
    def stated(self) -> Problem:
        """The problem; a `ProblemError` where it is not known."""
        if self._problem is None:
            raise ProblemError(
                "statistics need the problem, which a pickle does not hold; got a result without one. Solve in this "
                "process"
            )
        return self._problem

    def members(self, picked: slice) -> ManyResult:
        """The result of some of the problems, for what follows from it."""
        arrays = {name: getattr(self, name)[picked, ...] for name in PER_PROBLEM}
        theta = trees.map_leaves(lambda x: x[picked, ...], self._feasible)
        anew: dict[str, Any] = {"_problem": members(self.stated, picked), "_prepared": None, "chunks": None}
        return replace(self, theta=theta, **arrays, **anew, _fits=self._fits and self._fits[picked])

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
        return np.flatnonzero(self.status == status.code)

    def columns(self, errors: bool = True) -> dict[str, np.ndarray]:
        """What a table has of theta and w, entry by entry, with errors if asked for, and the objective, (b,) each."""
        shapes = trees.map_leaves(lambda x: np.empty(x.shape[1:]), self.theta)
        names = [*entry_names(shapes), *indexed("w", self.w.shape[1:])]
        columns = dict(zip(names, _by_entry(self.theta, self.w), strict=True))
        if errors:
            found = self.statistics()
            both = zip(names, _by_entry(found.theta_stderr, found.w_stderr), strict=True)
            columns |= {f"{name}_stderr": x for name, x in both}
        return columns | {"value": to_numpy(self.value)}

    def on_grid(self, x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """An array (b, ...) in the shape of an image or a cube, (*shape, ...)."""
        if math.prod(shape) != len(self):
            raise ProblemError(f"shape must be of {len(self)} problems, such as (ny, nx) of an image; got {shape}")
        return x.reshape(*shape, *x.shape[1:])

    def to_frame(self, errors: bool = True) -> DataFrame:
        """A data frame of pandas with a row for each problem: theta, w, objective, status and, if asked for, errors.

        Raises
        ------
        ImportError
            Without pandas; it names the pip command.
        """
        status = [Status.of(code).name for code in self.status.tolist()]
        return data_frame(self.columns(errors) | {"status": status}, range(len(self)))

    def to_xarray(
        self,
        shape: tuple[int, ...] | None = None,
        dims: Sequence[str] | None = None,
        coords: Mapping[str, Any] | None = None,
        errors: bool = True,
    ) -> Dataset:
        """A dataset of xarray: leaves of theta and w with their errors, objective, iterations and status.

        Parameters
        ----------
        shape : tuple of int, optional
            Of the image or cube whose pixels are the problems; (b,) by default.
        dims, coords : optional
            Names of its axes, and their coordinates, as of ``xarray.Dataset``; ``"axis_0"``, ... by default.
        errors : bool
            Whether standard errors, ``theta_stderr``, are among them.

        Raises
        ------
        ProblemError
            `shape` has another number of problems, or `dims` another number of axes.
        ImportError
            Without xarray; it names the pip command.
        """
        numbers = {"value": self.value, "n_iter": self.n_iter, "status": self.status}
        arrays = _by_leaf(self.theta, self.w) | numbers
        if errors:
            found = self.statistics()
            arrays |= {f"{name}_stderr": x for name, x in _by_leaf(found.theta_stderr, found.w_stderr).items()}
        shape = (len(self),) if shape is None else tuple(shape)
        dims = [f"axis_{i}" for i in range(len(shape))] if dims is None else list(dims)
        if len(dims) != len(shape):
            raise ProblemError(f"dims must name the {len(shape)} axes of shape; got {dims}")

        def variable(name: str, x: np.ndarray) -> tuple[list[str], np.ndarray]:
            own = [f"{name.removesuffix('_stderr')}_{i}" for i in range(x.ndim - 1)]
            return [*dims, *own], self.on_grid(x, shape)

        made = dataset({name: variable(name, to_numpy(x)) for name, x in arrays.items()}, coords)
        codes = {status.name: status.code for status in Status}
        made["status"].attrs = {"flag_values": list(codes.values()), "flag_meanings": " ".join(codes)}
        return made

    def __str__(self) -> str:
        n = self.n_iter if len(self) else np.zeros(1, int)
        rate = len(self) / self.seconds if self.seconds > 0 else float("inf")
        took = f"{self.seconds:.3g} s (set-up {self.setup_seconds:.3g} s)"
        lines = [f"{len(self)} problems in {took}, {rate:.3g} per second"]
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
    names = entry_names(trees.unflatten(treedef, [np.empty(()) for _ in leaves]))
    return dict(zip([*names, "w"], [*leaves, w], strict=True))


def _by_entry(theta: Tree, w: Array) -> np.ndarray:
    """A row for each entry of theta and of w, (q, b)."""
    arrays = map(to_numpy, (*trees.leaves(theta), w))
    return np.concatenate([x.reshape(len(x), -1) for x in arrays], axis=1).T


def joined(parts: list[ManyResult], seconds: float) -> ManyResult:
    """Results of successive problems as one."""

    def along(*arrays: Any) -> Any:
        return namespace_of(arrays[0]).concat(arrays, axis=0)

    arrays: dict[str, Any] = {name: along(*(getattr(part, name) for part in parts)) for name in PER_PROBLEM}
    theta = trees.map_leaves(along, *(part.theta for part in parts))
    return replace(parts[0], theta=theta, **arrays, seconds=seconds, setup_seconds=0.0)


def blanked(fit: ManyResult) -> ManyResult:
    """The result with NO_DATA and NaN for the problems that have no data to fit."""
    problem, at = fit.stated, masked(fit.stated, len(fit))
    ended = np.flatnonzero(np.isin(fit.status, [Status.NON_FINITE.code, Status.RANK_DEFICIENT.code]))
    at[ended] |= broken(problem, len(fit))[ended] if ended.size else False
    if not at.any():
        return fit

    def blank(x: Array) -> Array:
        return chosen(at, namespace_of(x).full_like(x, np.nan), x)

    numbers: dict[str, Any] = {name: blank(getattr(fit, name)) for name in {*PER_PROBLEM} - {"status", "n_iter"}}
    return replace(
        fit,
        theta=trees.map_leaves(blank, fit.theta),
        **numbers,
        status=np.where(at, Status.NO_DATA.code, fit.status),
        n_iter=np.where(at, 0, fit.n_iter),
    )


def counted(statuses: np.ndarray) -> dict[Status, int]:
    """How often each status occurs, the most frequent first."""
    return {Status.of(code): n for code, n in Counter(statuses.tolist()).most_common()}
