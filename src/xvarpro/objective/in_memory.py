"""Objectives with all rows in memory: the user's functions at one theta, their pull-back, and what is read off them."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from xvarpro import lower
from xvarpro.backends import Backend
from xvarpro.backends.failures import model_failures
from xvarpro.backends.group import Group
from xvarpro.backends.interface import linalg_errors
from xvarpro.core.namespace import device, namespace_of, positive_or_one
from xvarpro.core.struct import Array, Leaves
from xvarpro.core.trees import Skeleton, inner, partition, signs, unflatten
from xvarpro.errors import ModelError, ProblemError
from xvarpro.lower.interface import LowerSolver, System
from xvarpro.objective.interface import LowerReport, Objective, dead_columns
from xvarpro.objective.least_squares import EvaluatedLevel, LevelOutputs, evaluate_level, fill
from xvarpro.objective.mini_batch import LowerRows, chosen, mini_batch, rows_evaluated, some_columns
from xvarpro.operators import Weighted
from xvarpro.problem.problem import Level, Problem
from xvarpro.problem.samples import lengths, plain


class ModelOutputs(NamedTuple):
    """What the user's functions return at one theta. A separable problem has no upper part; constants are None."""

    lower: LevelOutputs
    upper: LevelOutputs | None
    R: Array | None


class ModelStructure(NamedTuple):
    """Shapes, dtypes and tree structure of the model's outputs, without values, and what a backend compiles of it."""

    skeleton: Skeleton
    arrays: tuple[tuple[tuple[int, ...], Any], ...]  # shape and dtype of each
    y_ndim: int  # axes of the lower target
    columns: int | None  # number of right-hand sides that have a design or a ridge each; None where all share them
    w_shape: tuple[int, int]
    complex_w: bool
    exact: bool  # whether the lower level is solved directly
    rows: tuple[int, ...] = ()  # of the design of each level
    program: str = ""  # of the user's functions, see `Backend.program`

    def check(self, arrays: Leaves, skeleton: Skeleton) -> None:
        """Check that the outputs at another theta, taken apart by `partition`, have this structure."""
        found = tuple(map(attrgetter("shape", "dtype"), arrays))
        check_same("the model functions", (found, skeleton.treedef), (self.arrays, self.skeleton.treedef))


def check_same(what: str, now: tuple[Any, Any], was: tuple[Any, Any]) -> None:
    """Check that what functions return during a solve is what they returned at its start."""
    if now != was:
        raise ModelError(
            f"{what} must return arrays of the same shapes and dtypes at every theta; got {now[0]} during the solve, "
            f"and {was[0]} at theta0. What depends on theta must not change how much there is: fill columns that are "
            "not used with zeros by xp.where"
        )


COLUMNS = 2**10  # right-hand sides up to which w of a result is improved, which costs as much as to solve for it

Pullback: TypeAlias = Callable[[ModelOutputs], Leaves]
# lower level, upper level, solver of the lower one and what it takes
Solved: TypeAlias = tuple[EvaluatedLevel, EvaluatedLevel, LowerSolver, System]


class InMemory(Objective):
    """A reduced objective that evaluates the user's functions for all rows at once.

    Parameters
    ----------
    problem : Problem
        With arrays of `backend`, targets of shape (m, k).
    backend : Backend
    treedef : optree.PyTreeSpec
        Structure of theta.
    structure : ModelStructure, optional
        Of what the user's functions return; None before they have been called.
    energy : array, 0-d
        ``1/2 |y|^2``: what the objective is a small difference of, where it fits well. 0 where it is not known yet.
    group : Group, optional
        Processes that each hold some of the right-hand sides.
    """

    def __init__(
        self,
        problem: Problem,
        backend: Backend,
        treedef: Any,
        structure: ModelStructure | None = None,
        energy: Array | float = 0.0,
        group: Group | None = None,
    ) -> None:
        super().__init__(problem, backend, energy)
        self.treedef, self.structure, self.group = treedef, structure, group
        self._counted: list[int] = []
        weights = problem.lower.weights, problem.upper and problem.upper.weights
        self.constants, self._held = partition((plain(problem.data), weights))

    # -- the user's functions

    def evaluate(self, theta: Leaves, constants: Leaves) -> ModelOutputs:
        """Call the user's functions; `theta` and `constants` may be traced."""
        flat = _Flat(self)
        outputs = flat(*theta, *constants)
        return flat.filled(outputs)

    def outputs(self, *theta: Array) -> Leaves:
        """The arrays of `evaluate`."""
        return _Flat(self)(*theta, *self.constants)

    def linearise(self, theta: Leaves) -> tuple[ModelOutputs, Pullback]:
        """Outputs at theta, and the map of cotangents of the outputs to cotangents of theta, good for one use."""
        flat = _Flat(self)
        outputs, pullback = self.backend.vjp(flat, theta, self.constants)
        return flat.filled(outputs), lambda cotangents: pullback(partition(cotangents)[0])

    def tangents(self, theta: Leaves) -> tuple[ModelOutputs, Callable[[Leaves], ModelOutputs]]:
        """Outputs at theta, and the map of tangents of theta to those of the outputs; NaN as in `evaluate_or_nan`."""
        flat = _Flat(self)
        try:
            outputs, push = self.backend.linearise(flat, theta, self.constants)
        except linalg_errors():
            nan, _ = self.evaluate_or_nan(theta)
            return nan, lambda tangent: nan
        return flat.filled(outputs), lambda tangent: flat.filled(push(tangent))

    def evaluate_or_nan(self, theta: Leaves, ahead: bool = False) -> tuple[ModelOutputs, list[Any] | tuple[()]]:
        """Outputs at theta, NaN where a framework raises because a model inverts a singular matrix.

        With `ahead`, unless a loop is compiled, also what `linearise` returns, in a list: it can be used once.
        """
        try:
            if ahead and not self.backend.compiled:
                recorded = self.linearise(theta)
                return recorded[0], [recorded]
            return self.evaluate(theta, self.constants), ()
        except linalg_errors():
            if self.structure is None:
                raise
            xp, nan = namespace_of(theta[0]), float("nan")
            where = device(theta[0])
            arrays = [xp.full(s, nan, dtype=t, device=where) for s, t in self.structure.arrays]
            return self.structure.skeleton.fill(arrays), ()

    # -- the levels

    def levels(self, outputs: ModelOutputs) -> tuple[EvaluatedLevel, EvaluatedLevel]:
        """The lower and the upper level, which are the same for a separable problem."""
        low = _evaluated(self.problem.lower, outputs.lower)._replace(start=self.start)
        upper = self.problem.upper
        return low, low if upper is None or outputs.upper is None else _evaluated(upper, outputs.upper)

    def solver(self, low: EvaluatedLevel) -> LowerSolver:
        """The solver of the lower level: the user's, or the one that fits its structure and shape."""
        level = self.problem.lower
        if level.loss is not None:
            from xvarpro.lower import newton

            if level.W is not None:
                # equations take one design for all columns
                k, apart = low.y.shape[1], level.loss.by_entry and not isinstance(level.W, lower.Affine)
                joined: Any = None if apart or (k == 1 and level.loss.by_entry) else level.W.joined(k)
                within = (joined or level.W).solver(level.solver)
                return newton.Newton(within, constrained=True, coupled=joined is not None)
            inner = level.solver or lower.choose(Weighted(low.M, low.y), low.ridge)
            return newton.Newton(inner, adjoined=not self.problem.is_separable)
        if level.W is not None:
            from xvarpro.lower.weight_sets.blocks import by_blocks

            return by_blocks(level.W.solver(level.solver), low.M, low.ridge)
        return level.solver or lower.choose(low.M, low.ridge)

    def solved(self, outputs: ModelOutputs) -> Solved:
        """Both levels, the solver of the lower one, and what it takes."""
        low, upper = self.levels(outputs)
        return low, upper, self.solver(low), low.system

    def lower_level(self, theta: Leaves) -> tuple[ModelOutputs, LowerSolver, EvaluatedLevel]:
        """Outputs at theta, and the lower level there with its solver."""
        outputs = self.evaluate(theta, self.constants)
        low, _ = self.levels(outputs)
        return outputs, self.solver(low), low

    def solve_lower(self, theta: Leaves, *y: Array) -> Array:
        _, solver, low = self.lower_level(theta)
        factor = solver.factor(self.backend, low.system)
        return solver.argmin(self.backend, low.system, factor, y[0]) if y else self.solution(solver, low, factor)[0]

    def solution(self, solver: LowerSolver, low: EvaluatedLevel, factor: Any) -> tuple[Array, Array]:
        """The solution and its residual, improved by its slope, since factors lose small columns next to a ridge."""
        given = self.backend, low.system, factor
        first = solver.argmin(*given, low.y)
        w, r = solver.refine(*given, low.y, first, low.residual(first))
        refined = w is not first and isinstance(solver, lower.QR | lower.DualQR)
        penalised = low.W is not None and low.W.penalises
        if refined or penalised or not (solver.exact and low.ridge.present) or w.shape[1] > COLUMNS:
            return w, r
        w = solver.improved(*given, low.slope(w, r), low.y, w, r)
        return w, low.residual(w)

    def diagnose(self, theta: Leaves) -> LowerReport:
        _, solver, low = self.lower_level(theta)
        factor = solver.factor(self.backend, low.system)
        deficient, condition, kinks, _ = solver.diagnose(self.backend, low.system, factor, low.y)
        xp = namespace_of(condition)
        finite = [xp.all(xp.isfinite(x)) for x in partition(low.M)[0] if not xp.isdtype(x.dtype, "integral")]
        # a product with a vector of no special direction is as small as the column
        (probe,) = signs((low.y if low.M.columns is not None else low.y[:, :1],))
        sizes = xp.max(xp.abs(low.M.rmatvec(probe)), axis=1)
        w, _ = self.solution(solver, low, factor)
        dead = dead_columns(sizes, low.ridge, w)
        columns = xp.full_like(dead, low.M.shape[1])
        whole = low.y if low.loss is None else low.M.matvec(w)
        terms = xp.max(xp.abs(w) * sizes[:, None]) / positive_or_one(xp.sqrt(inner(whole, whole)))
        return LowerReport(deficient, xp.all(xp.stack(finite)), condition, dead, columns, kinks, w, terms)

    # -- the upper target

    def scale(self, theta: Leaves) -> Array:
        if self.upper.loss is not None:
            return self.summed(self.levels(self.evaluate(theta, self.constants))[1].size)
        y: Any = self.upper.y
        level, structure = self.problem.lower, self.structure
        wide = structure is not None and structure.rows[0] < structure.w_shape[0]
        wide = wide and self.problem.is_separable and level.ridge.present and level.W is None
        if callable(y) or wide:
            low, upper, solver, _ = self.solved(self.evaluate(theta, self.constants))
            y, wide = upper.y, wide and solver.exact and low.ridge.plain
        whole = self.summed(0.5 * inner(y, y))
        return self._scale_of_dual(low, solver, whole) if wide else whole

    def _scale_of_dual(self, low: EvaluatedLevel, solver: LowerSolver, whole: Array) -> Array:
        """``1/2 |M|^2 |r|^2 / lam`` where the solver has the dual form and that is less than the whole, 0-d.

        There r is ``-lam a``, with ``w = M^H a``, and no difference of y. Rounding of M, of size ``eps |M|``, changes a
        by ``eps |M| |a| / s`` for the least singular value s, and the slope ``<r, dM w>`` by ``lam |M| s |a|`` of that.
        """
        given = self.backend, low.system, solver.factor(self.backend, low.system)
        w, back = solver.argmin(*given, low.y), low.M.rmatvec(low.y)
        r = low.residual(w)
        if solver.adjoint(*given, back, low.y, w, r).coupling is None:
            return whole
        size = inner(back, back) / positive_or_one(inner(low.y, low.y) * low.ridge.lam)
        found = self.summed(0.5 * size * inner(r, r))
        return namespace_of(found).where(found < whole, found, whole)

    @property
    def target_shape(self) -> tuple[int, int]:
        return self._shape(-1)

    def _shape(self, which: int) -> tuple[int, int]:
        """Shape of the target of a level."""
        y: Any = self.problem.levels[which].y
        if not callable(y):
            shape = y.shape
        elif self.structure is None:
            raise ProblemError("target_shape needs a prepared problem where y is a function of theta")
        else:
            outputs = self.structure.skeleton.fill(self.structure.arrays)  # each array as its shape and dtype
            shape, _ = (outputs.lower if which == 0 else outputs.upper or outputs.lower).y
        return (shape[0], 1) if len(shape) == 1 else (shape[0], shape[1])

    @property
    def samples(self) -> int:
        """Terms of the upper level: right-hand sides where a separable problem has several, else rows.

        The right-hand sides of a compressed target count as they are after compression, those of a group together.
        """
        return sum(self._counts) if self._by_column else self.target_shape[0]

    @property
    def _counts(self) -> list[int]:
        """How many right-hand sides each process has."""
        if not self._counted:  # no cached_property: its lock is one for all members that are threads
            own = self.target_shape[1]
            self._counted = [own] if self.group is None else [int(n) for n in self.group.numbers([own])[:, 0]]
        return self._counted

    def summed(self, x: Array) -> Array:
        """A sum over right-hand sides, where other processes hold some of them."""
        return x if self.group is None else self.group.total((x,))[0]

    @property
    def _by_column(self) -> bool:
        """Whether the terms of the upper level are right-hand sides."""
        several = self.group is not None or self.target_shape[1] > 1
        loss = self.problem.lower.loss
        apart = several and (loss is None or loss.by_entry)
        return self.problem.is_separable and apart and not lengths(self.problem.data)

    @property
    def rows(self) -> int:
        return self.samples if self._by_column else sum(self._shape(i)[0] for i in range(len(self.problem.levels)))

    def rows_of_batch(self, batch: int, lower: LowerRows | None) -> float:
        return rows_evaluated(self.problem, batch, self.rows, lower, self._by_column)

    def restricted(self, indices: Array, lower: LowerRows | None = None) -> InMemory:
        if self.group is None or not self._by_column:
            problem = mini_batch(self.problem, indices, self.samples, self._by_column, lower)
        else:
            problem = self._own_columns(indices, lower)
        part: Any = type(self)(problem, self.backend, self.treedef, group=self.group)
        return part if self._by_column else part.starting_at(self.start)

    def _own_columns(self, indices: Array, lower: LowerRows | None) -> Problem:
        """The problem of those right-hand sides, numbered from process to process, that this process has."""
        assert self.group is not None
        chosen(self.problem, lower, True)
        before, count = sum(self._counts[: self.group.rank]), self._counts[self.group.rank]
        places = self.backend.to_numpy(indices) - before
        own = places[(places >= 0) & (places < count)]
        # where none is drawn, one of weight 0: not every framework multiplies matrices without columns
        scale, own = ((self.samples / places.size) ** 0.5, own) if own.size else (0.0, np.zeros(1, places.dtype))
        return some_columns(self.problem, self.backend.asarray(own, device=device(indices)), scale)

    def check(self, theta: Leaves) -> None:
        low, _ = self.levels(self.evaluate(theta, self.constants))
        m, n = low.M.shape
        level = self.problem.lower
        n = n if level.W is None else level.W.dimension(n)
        if m < n and not low.ridge.present and level.solver is None:
            raise ProblemError(
                f"the rows of a mini-batch must be as many as unknowns, or w have a ridge; got {m} rows and {n} "
                "unknowns without a ridge, so w is not unique. Take larger batches, or pass lam > 0"
            )


def _evaluated(level: Level, outputs: LevelOutputs) -> EvaluatedLevel:
    weights: Any = 1.0 if level.weights is None else level.weights
    found = fill(level, outputs)._replace(weights=weights)
    if level.loss is None:
        return found
    from xvarpro.objective.losses import LossLevel

    return LossLevel(*found[:4], level.loss, weights)


class _Flat:
    """The user's functions from the leaves of theta and the constants to plain arrays; keeps the structure of these."""

    filled: Callable[[Leaves], ModelOutputs]

    def __init__(self, f: InMemory) -> None:
        self.f = f

    def __call__(self, *arrays: Array) -> Leaves:
        f, problem, n = self.f, self.f.problem, len(arrays) - len(self.f.constants)
        tree, (data, (low, high)) = unflatten(f.treedef, arrays[:n]), f._held.fill(arrays[n:])
        with model_failures(f.backend, values=linalg_errors):
            R = problem.R(tree) if problem.R is not None and problem.mu else None
            upper = None if problem.upper is None else evaluate_level(problem.upper, tree, data, high)
            outputs, skeleton = partition(ModelOutputs(evaluate_level(problem.lower, tree, data, low), upper, R))
        if f.structure is not None:
            f.structure.check(outputs, skeleton)
        self.filled = skeleton.fill
        return outputs
