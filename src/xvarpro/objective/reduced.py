"""The reduced objective ``f(theta) = f_U(w(theta), theta)`` and its exact gradient (design in README, paper eq. 8).

``w = H^-1 M_L^T y_L`` and the adjoint ``v = H^-1 grad_w f_U`` come from one factorisation; the gradient is one VJP of
the user's functions with w and v held constant. No derivative ever passes through a factorisation or a solve.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from xvarpro import lower
from xvarpro.backends import Backend
from xvarpro.core.namespace import device
from xvarpro.core.struct import Array, Leaves
from xvarpro.core.trees import Skeleton, array_namespace, inner, partition, unflatten
from xvarpro.errors import ProblemError
from xvarpro.lower.interface import LowerSolver
from xvarpro.objective.interface import Objective
from xvarpro.objective.least_squares import (
    EvaluatedLevel,
    LevelOutputs,
    LowerSolution,
    as_matrix,
    fill,
    like_target,
    outers,
    state,
)
from xvarpro.operators import Dense
from xvarpro.problem.problem import Problem


class Parts(NamedTuple):
    """What the user's functions return at one theta. A separable problem has no upper part; constants are None."""

    lower: LevelOutputs
    upper: LevelOutputs | None
    R: Array | None


class ModelStructure(NamedTuple):
    """Structure, shapes and dtypes of `Parts`."""

    skeleton: Skeleton
    arrays: tuple[tuple[tuple[int, ...], Any], ...]
    y_ndim: int  # axes of a lower target that is a function of theta; 2 for any other
    columns: int | None  # right-hand sides that a design of their own is made for
    w_shape: tuple[int, int]
    complex_w: bool
    exact: bool  # whether the lower level is solved directly


class Point(NamedTuple):
    """The reduced objective at one theta, with what the gradient there will want again."""

    theta: Leaves
    value: Array
    w: Array
    r: Array  # residual of the upper level
    factor: Any  # of the lower level


class Reduced(Objective):
    """The reduced objective of a prepared problem on one backend.

    Parameters
    ----------
    problem : Problem
        With arrays of `backend`, targets of shape (m, k).
    backend : Backend
    treedef : optree.PyTreeSpec
        Structure of theta.
    structure : ModelStructure
        What the user's functions return, without its values.
    energy : array, 0-d
        ``1/2 |y|^2``: what the objective is a small difference of, where it fits well. 0 where it is not known yet.
    """

    def __init__(
        self,
        problem: Problem,
        backend: Backend,
        treedef: Any,
        structure: ModelStructure | None = None,
        energy: Any = 0.0,
    ) -> None:
        super().__init__(problem, backend, energy)
        self.treedef = treedef
        self.structure = structure
        weights = [None if level is None else level.weights for level in (problem.lower, problem.upper)]
        self.constants, self._held = partition((problem.data, weights))
        # Held until the next one exists, nothing else: were both freed in between, the allocator would return the
        # memory of a large residual to the system and fault it in again, page by page, at every step.
        self._latest: Point | None = None
        self._ahead: tuple[Leaves, Parts, Any] | None = None

    def solver(self, side: EvaluatedLevel) -> LowerSolver:
        level = self.problem.lower
        if level.W is not None:
            return level.W.solver(level.solver)
        return level.solver or lower.choose(side.M, side.lam, side.Omega)

    @property
    def target_shape(self) -> tuple[int, int]:
        """Rows and columns of the target of the upper level."""
        y: Any = self.upper.y
        if not callable(y):
            shape = y.shape
        elif self.structure is None:
            raise ProblemError("a target that is a function of theta has a shape only once the problem is prepared")
        else:
            parts = self.structure.skeleton.fill(self.structure.arrays)  # each array as its shape and dtype
            shape, _ = (parts.upper or parts.lower).y
        return (shape[0], 1) if len(shape) == 1 else (shape[0], shape[1])

    @property
    def samples(self) -> int:
        """Terms that the upper level is a sum of: right-hand sides where a separable problem has several, else rows.

        The right-hand sides of a compressed target are those that stand for the ones given.
        """
        rows, columns = self.target_shape
        return columns if self.problem.is_separable and columns > 1 else rows

    def restricted(self, indices: Array) -> Reduced:
        """The objective in which the terms at `indices`, scaled by ``samples / len(indices)``, stand for all.

        Over index sets in which every term is equally likely its value and gradient have the full ones for a mean. The
        weights stay the minimiser of the whole lower level: right-hand sides have weights of their own, and where rows
        are left out the lower level keeps all of its own. Ridges and penalty are not scaled.
        """
        problem, upper = self.problem, self.upper
        along = 1 if problem.is_separable and self.target_shape[1] > 1 else 0
        scale = (self.samples / indices.shape[0]) ** 0.5

        def some(x: Array, axis: int) -> Array:
            return scale * array_namespace(x).take(x, indices, axis=axis)

        def target(theta: Any, data: Any) -> Any:
            y: Any = state(upper, theta, data, upper.weights).y
            return some(as_matrix(y), along)

        def design(theta: Any, data: Any) -> Any:
            M = state(upper, theta, data, upper.weights).M
            if along:
                return M
            if not isinstance(M, Dense):
                raise ProblemError(f"mini-batches of rows need M as an array, got {type(M).__name__}")
            return some(M.array, 0)

        # weights are in what the functions return
        constant: Any = upper.y
        y = target if callable(constant) else some(as_matrix(constant), along)
        W = upper.W.part(indices, scale) if along and upper.W is not None else upper.W
        part = replace(upper, M=design, y=y, weights=None, W=W if along else None)
        made = replace(problem, lower=part) if along else replace(problem, upper=part)
        return type(self)(made, self.backend, self.treedef)

    def over(self, problem: Problem) -> Reduced:
        """The objective of a problem that differs in the values of its arrays only; these may be traced."""
        return type(self)(problem, self.backend, self.treedef, self.structure)

    def evaluate(self, theta: Leaves, constants: Leaves) -> Parts:
        """Call the user's functions; `theta` and `constants` may be traced."""
        problem, tree = self.problem, unflatten(self.treedef, theta)
        data, (low, high) = self._held.fill(constants)

        penalty = problem.R(tree) if problem.R is not None and problem.mu else None
        upper = None if problem.upper is None else state(problem.upper, tree, data, high)
        return Parts(state(problem.lower, tree, data, low), upper, penalty)

    def lower_level(self, theta: Leaves) -> tuple[Parts, LowerSolver, EvaluatedLevel]:
        """The lower level at theta: what the user's functions returned, how it is solved, and what is solved."""
        parts = self.evaluate(theta, self.constants)
        side, _ = self.levels(parts)
        return parts, self.solver(side), side

    def point(self, theta: Leaves, ahead: bool = False) -> Point:
        """Value at theta: one factorisation, one product.

        With `ahead` the gradient there is likely to be asked for next, and the user's functions are recorded on the
        way: evaluated once for both, unless a compiled loop lies between.
        """
        return self._point(theta, self.evaluate_or_nan(theta, ahead))

    def evaluate_or_nan(self, theta: Leaves, ahead: bool = False) -> Parts:
        """A model that inverts a singular matrix at a trial point has no value there, whatever its framework raises."""
        self._ahead = None
        try:
            if ahead and not self.backend.compiled:
                self._ahead = (theta, *self.linearise(theta))
                return self._ahead[1]
            return self.evaluate(theta, self.constants)
        except self.backend.failures:
            if self.structure is None:
                raise
            full = array_namespace(*theta).full
            nan = float("nan")
            return self.structure.skeleton.fill(
                [full(s, nan, dtype=t, device=device(theta[0])) for s, t in self.structure.arrays]
            )

    def _point(self, theta: Leaves, parts: Parts) -> Point:
        low, upper = self.levels(parts)
        solver, system = self.solver(low), low.system
        factor = solver.factor(self.backend, system)
        w = solver.argmin(self.backend, system, factor, low.y)
        r = upper.residual(w)
        value = self.objective(parts, upper, w, r)
        self._latest = Point(theta, value, w, r, factor)
        return self._latest

    def objective(self, parts: Parts, upper: EvaluatedLevel, w: Array, r: Array) -> Array:
        """The objective at w, of which `r` is the residual of the upper level."""
        value = upper.value(w, r)
        return value if parts.R is None else value + (0.5 * self.problem.mu) * parts.R

    def lagrangian(self, theta: Leaves, w: Array, *v: Array) -> Array:
        """``f_U(w, theta) - <grad_w f_L(w, theta), v>``, the objective with the lower level as a condition, 0-d.

        Stationary in w and v at ``w(theta)`` and the adjoint v; without a v, the objective itself, which is stationary
        in w where both levels are one. Arrays may be traced, those of the problem as well.
        """
        parts = self.evaluate(theta, self.constants)
        low, upper = self.levels(parts)
        value = self.objective(parts, upper, w, upper.residual(w))
        for multiplier in v:
            value = value - inner(low.residual(w), low.M.matvec(multiplier))
            if low.system.ridged:
                value = value - low.lam * low.coupling(w, multiplier)
        return value

    def levels(self, parts: Parts) -> tuple[EvaluatedLevel, EvaluatedLevel]:
        """The lower level and the one that judges, which is the same for a separable problem."""
        low = fill(self.problem.lower, parts.lower)
        upper = self.problem.upper
        return low, low if upper is None or parts.upper is None else fill(upper, parts.upper)

    def gradient(self, point: Point) -> Leaves:
        """Gradient at a point: one VJP, and one solve with the point's factor unless the problem is separable."""
        parts, pullback = self.linearise(point.theta)
        return pullback(self._cotangents(parts, self.lower_solution(point, parts)))

    def value_and_gradient(self, theta: Leaves) -> tuple[Point, Leaves]:
        """Both, from one evaluation of the user's functions."""
        parts, pullback = self.linearise(theta)
        point = self._point(theta, parts)
        return point, pullback(self._cotangents(parts, self.lower_solution(point, parts)))

    def linearise(self, theta: Leaves) -> tuple[Parts, Any]:
        """What the user's functions return at theta, and the pull-back from `Parts` of cotangents to theta."""
        if self._ahead is not None and all(x is y for x, y in zip(theta, self._ahead[0], strict=True)):
            _, *recorded = self._ahead
            self._ahead = None  # a pull-back can be used once
            return tuple(recorded)
        structure: Any = None

        def flat(*arrays: Array) -> Leaves:
            nonlocal structure
            outputs, structure = partition(self.evaluate(arrays[: len(theta)], arrays[len(theta) :]))
            return outputs

        outputs, pullback = self.backend.vjp(flat, theta, self.constants)
        return structure.fill(outputs), lambda parts: pullback(partition(parts)[0])

    def solve_lower(self, theta: Leaves, *y: Array) -> Array:
        _, solver, side = self.lower_level(theta)
        factor = solver.factor(self.backend, side.system)
        return solver.argmin(self.backend, side.system, factor, y[0] if y else side.y)

    def scale(self, theta: Leaves) -> Array:
        y: Any = self.upper.y
        if callable(y):
            parts = self.evaluate(theta, self.constants)
            y = (parts.upper or parts.lower).y
        return 0.5 * inner(y, y)

    def diagnose(self, theta: Leaves) -> tuple[Array, ...]:
        _, solver, side = self.lower_level(theta)
        factor = solver.factor(self.backend, side.system)
        deficient, condition, kinks, _ = solver.diagnose(self.backend, side.system, factor, side.y)
        xp = array_namespace(condition)
        finite = [xp.all(xp.isfinite(x)) for x in partition(side.M)[0] if not xp.isdtype(x.dtype, "integral")]
        sizes, n = side.M.sizes(), side.M.shape[1]
        # an operator that would not tell has none that is known to be dead
        empty = xp.full_like(deficient, False) if sizes is None else xp.sum(xp.reshape(sizes, (-1, n)), axis=0) == 0
        dead = xp.sum(xp.astype(empty, xp.int32))
        return deficient, xp.all(xp.stack(finite)), condition, dead, xp.full_like(dead, n), kinks

    def lower_solution(self, point: Point, parts: Parts) -> LowerSolution:
        """The solution and the adjoint of the lower level, from the factor of a point."""
        low, upper = self.levels(parts)
        solver, system, factor = self.solver(low), low.system, point.factor
        if parts.upper is None:
            w, r = solver.refine(self.backend, system, factor, low.y, point.w, point.r)
            return LowerSolution(w, r, r, None)
        w, r = solver.refine(self.backend, system, factor, low.y, point.w, low.residual(point.w))
        upper_r = upper.residual(w)
        adjoint = solver.adjoint(self.backend, system, factor, upper.slope(w, upper_r), low.y, w, r)
        return LowerSolution(w, r, upper_r, adjoint)

    def _cotangents(self, parts: Parts, solution: LowerSolution) -> Parts:
        """Derivative of ``f_U - <grad_w f_L, v>`` with respect to what the user's functions returned."""
        low, upper = self.levels(parts)
        w, adjoint = solution.w, solution.adjoint
        R = None
        if parts.R is not None:
            R = array_namespace(parts.R).full_like(parts.R, 0.5 * self.problem.mu)
        if parts.upper is None or adjoint is None:
            return Parts(low.pull(parts.lower, w, solution.r), None, R)
        q, pairs, v = adjoint
        M = outers(low.M, (-q, w), *((-s, x) for s, x in pairs))
        lam = None
        if parts.lower.lam is not None:
            if v is None:
                raise ProblemError(
                    f"a ridge that depends on theta needs a solver that supports it, got {self.solver(low)!r}: use "
                    "xv.lower.QR()"
                )
            lam = -low.coupling(w, v)
        lower = LevelOutputs(M, like_target(q, parts.lower.y), lam)
        return Parts(lower, upper.pull(parts.upper, w, solution.upper_r), R)
