"""The reduced objective ``f(theta) = f_U(w(theta), theta)`` and its exact gradient (design in README, paper eq. 8).

``w = H^-1 M_L^T y_L`` and the adjoint ``v = H^-1 grad_w f_U`` come from one factorisation; the gradient is one VJP of
the user's functions with w and v held constant. No derivative ever passes through a factorisation or a solve.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any, NamedTuple

from xvarpro import lower
from xvarpro._namespace import device
from xvarpro.backends import Backend
from xvarpro.errors import ProblemError
from xvarpro.lower._sharper import Sharper, Witness
from xvarpro.lower.krylov import Iterative
from xvarpro.operators import Dense, as_operator
from xvarpro.problem import Level, Problem
from xvarpro.protocols import Array, Iterate, Leaves, LowerError, LowerSolver, System
from xvarpro.region import Direction, Region
from xvarpro.trees import Skeleton, array_namespace, dot, inner, partition, rounding, sub, sum_, unflatten


class Parts(NamedTuple):
    """What the user's functions return at one theta. A separable problem has no upper parts; constants are None."""

    M_L: Any
    y_L: Array | None
    M_U: Any
    y_U: Array | None
    R: Array | None


class Blank(NamedTuple):
    """Structure, shapes and dtypes of `Parts`."""

    skeleton: Skeleton
    arrays: tuple[tuple[tuple[int, ...], Any], ...]
    y_ndim: int  # axes of a lower target that is a function of theta; 2 for any other
    exact: bool = True  # whether the lower level is solved directly


class Point(NamedTuple):
    """The reduced objective at one theta, with what the gradient there will want again."""

    theta: Leaves
    value: Array
    w: Array
    r: Array  # residual M_U w - y_U of the upper level
    factor: Any  # of the lower level; condensed where there is no adjoint to solve for


class Assessed(NamedTuple):
    """A point, the gradient there and, where the lower level is inexact, what is known of the error."""

    point: Point
    gradient: Leaves
    change: Leaves | None = None  # of the gradient, when the lower level was solved thirty times better
    residual: Array | None = None  # relative, after that
    reached: Array | None = None  # whether it is below the tolerance


class Reduced:
    """The reduced objective of a prepared problem on one backend.

    Parameters
    ----------
    problem : Problem
        With arrays of `backend`, targets of shape (m, k).
    backend : Backend
    treedef : optree.PyTreeSpec
        Structure of theta.
    blank : Blank
        What the user's functions return, without its values.
    energy : array, 0-d
        ``1/2 |y|^2``: what the objective is a small difference of, where it fits well. 0 where it is not known yet.
    level : float or array, 0-d
        The relative residual of the lower level that would make the gradient's error as large as the gap: what an
        inexact solver chooses its tolerance by; 0 asks for its tightest.
    """

    def __init__(
        self,
        problem: Problem,
        backend: Backend,
        treedef: Any,
        blank: Blank | None = None,
        energy: Any = 0.0,
        level: Any = 0.0,
    ) -> None:
        self.problem = problem
        self.energy = energy
        self.level = level
        self._instead: LowerSolver | None = None  # of the problem's solver
        self.backend = backend
        self.treedef = treedef
        self.blank = blank
        self.judge: Level = problem.upper or problem.lower
        self._constants, self._data = partition(problem.data)
        # Held until the next one exists, nothing else: were both freed in between, the allocator would return the
        # memory of a large residual to the system and fault it in again, page by page, at every step.
        self._latest: Point | None = None
        self._ahead: tuple[Leaves, Parts, Any] | None = None

    def rounding(self, value: Array) -> Array:
        """What two computed objectives near `value` may differ by without meaning anything.

        A residual is off by ``eps |y|``, hence its square by ``2 eps |y| |r|``, which is more than ``eps |r|^2``.
        """
        xp = array_namespace(value)
        size = xp.abs(value)
        return rounding(size + xp.sqrt(size) * self.energy**0.5)

    def solver(self, M: Any) -> LowerSolver:
        level = self.problem.lower
        if self._instead is not None:
            return self._instead
        chosen = level.solver or lower.choose(M, level.lam, level.Omega)
        return chosen.toward(self.level, self.problem.is_separable)

    @property
    def exact(self) -> bool:
        """Whether the lower level is solved directly, as far as is known: a prepared problem knows."""
        return self.blank is None or self.blank.exact

    def tied(self, iterate: Iterate, small: Array) -> Reduced:
        """The objective as the next step from an iterate wants it: an inexact lower level follows the gap there.

        The error of the gradient is proportional to the residual that was left: that says which one is needed. A gap
        below `small` counts as `small`.
        """
        if iterate.lower == ():
            return self
        xp = array_namespace(iterate.value)
        error = iterate.lower
        wanted = xp.maximum(xp.where(iterate.gap_A > 0, iterate.gap_A, 0 * small) + iterate.gap_B, small)
        level = xp.where(error.slack > 0, error.residual, wanted) * wanted
        return self._with(level=level / xp.where(error.slack > 0, error.slack, wanted))

    def sharp(self) -> Reduced:
        """The objective with the lower level as exact as its solver allows: differences of gradients need it."""
        return self._with(level=0.0)

    def _with(self, level: Any = None, instead: LowerSolver | None = None) -> Reduced:
        other = copy.copy(self)
        other._latest = other._ahead = None
        other.level, other._instead = self.level if level is None else level, instead
        return other

    @property
    def target_shape(self) -> tuple[int, int]:
        """Rows and columns of the target of the level that judges."""
        y = self.judge.y
        if not callable(y):
            shape = y.shape
        elif self.blank is None:
            raise ProblemError("a target that is a function of theta has a shape only once the problem is prepared")
        else:
            parts = self.blank.skeleton.fill(self.blank.arrays)  # each array as its shape and dtype
            shape, _ = parts.y_L if self.problem.is_separable else parts.y_U
        return (shape[0], 1) if len(shape) == 1 else (shape[0], shape[1])

    @property
    def samples(self) -> int:
        """Terms that the judging level is a sum of: right-hand sides where a separable problem has several, else rows.

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
        problem, judge = self.problem, self.judge
        along = 1 if problem.is_separable and self.target_shape[1] > 1 else 0
        scale = (self.samples / indices.shape[0]) ** 0.5

        def some(x: Array, axis: int) -> Array:
            return scale * array_namespace(x).take(x, indices, axis=axis)

        def target(y: Any) -> Any:
            if callable(y):
                return lambda theta, data: some(as_matrix(y(theta, data)), along)
            return some(as_matrix(y), along)

        def design(theta: Any, data: Any) -> Array:
            M = as_operator(judge.M(theta, data))
            if not isinstance(M, Dense):
                raise ProblemError(f"mini-batches of rows need M as an array, got {type(M).__name__}")
            return some(M.array, 0)

        if along:
            part = replace(problem, lower=replace(judge, y=target(judge.y)))
        else:
            part = replace(problem, upper=Level(design, target(judge.y), judge.lam, judge.Omega))
        return Reduced(part, self.backend, self.treedef, level=self.level)

    def evaluate(self, theta: Leaves, constants: Leaves) -> Parts:
        """Call the user's functions; `theta` and `constants` may be traced."""
        problem, tree, data = self.problem, unflatten(self.treedef, theta), self._data.fill(constants)

        def level(level: Level | None) -> tuple[Any, Array | None]:
            if level is None:
                return None, None
            return as_operator(level.M(tree, data)), level.y(tree, data) if callable(level.y) else None

        penalty = problem.R(tree) if problem.R is not None and problem.mu else None
        return Parts(*level(problem.lower), *level(problem.upper), penalty)

    def lower_level(self, theta: Leaves) -> tuple[Parts, LowerSolver, System, Array]:
        """The lower level at theta, stated: what the user's functions returned, how it is solved, its target."""
        parts = self.evaluate(theta, self._constants)
        return parts, *self._lower(parts)

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
            return self.evaluate(theta, self._constants)
        except self.backend.failures:
            if self.blank is None:
                raise
            full = array_namespace(*theta).full
            nan = float("nan")
            return self.blank.skeleton.fill(
                [full(s, nan, dtype=t, device=device(theta[0])) for s, t in self.blank.arrays]
            )

    def _point(self, theta: Leaves, parts: Parts) -> Point:
        solver, system, y = self._lower(parts)
        factor = solver.factor(self.backend, system)
        w = solver.argmin(self.backend, system, factor, y)
        r = self._residual(parts, w)
        value = self._objective(parts, w, r)
        if not system.lam:
            xp = array_namespace(value)
            value = xp.where(solver.deficient(self.backend, factor), xp.asarray(xp.nan, dtype=value.dtype), value)
        self._latest = Point(theta, value, w, r, solver.condense(factor) if self.problem.is_separable else factor)
        return self._latest

    def _lower(self, parts: Parts) -> tuple[LowerSolver, System, Array]:
        level = self.problem.lower
        y = as_matrix(level.y if parts.y_L is None else parts.y_L)
        return self.solver(parts.M_L), System(parts.M_L, level.lam, level.Omega), y

    def _residual(self, parts: Parts, w: Array) -> Array:
        """``M_U w - y_U``."""
        M, y = (parts.M_L, parts.y_L) if self.problem.is_separable else (parts.M_U, parts.y_U)
        return M.residual(w, as_matrix(self.judge.y if y is None else y))

    def _objective(self, parts: Parts, w: Array, r: Array) -> Array:
        judge = self.judge
        value = 0.5 * inner(r, r)
        if judge.lam:
            Ow = w if judge.Omega is None else judge.Omega @ w
            value = value + (0.5 * judge.lam) * inner(Ow, Ow)
        return value if parts.R is None else value + (0.5 * self.problem.mu) * parts.R

    def gradient(self, point: Point) -> Leaves:
        """Gradient at a point: one VJP, and one solve with the point's factor unless the problem is separable."""
        parts, pullback = self.linearise(point.theta)
        return pullback(self._cotangents(point, parts))

    def assessed(self, theta: Leaves, point: Point | None = None) -> Assessed:
        """Gradient at theta, and at the point there what an inexact lower level leaves of its error.

        The answers of an inexact level are improved thirtyfold, and the gradients of both are compared: the change is
        about the error of the first, and the second is returned.
        """
        parts, pullback = self.linearise(theta)
        point = self._point(theta, parts) if point is None else point
        solver = self.solver(parts.M_L)
        if not isinstance(solver, Iterative):
            return Assessed(point, pullback(self._cotangents(point, parts)))
        witness = Witness(solver)
        first = pullback(self._with(instead=witness)._cotangents(point, parts))
        sharper = Sharper(solver, *((witness.seen[0].v, witness.seen[0].q) if witness.seen else ()))
        parts, pullback = self.linearise(theta)
        gradient = pullback(self._with(instead=sharper)._cotangents(point, parts))
        residual, point = sharper.residual(), self._revalued(point, parts, sharper)
        return Assessed(point, gradient, sub(gradient, first), residual, residual <= solver.tol)

    def certified(self, region: Region, theta: Leaves, point: Point | None = None) -> tuple[Point, Leaves, Direction]:
        """Point, gradient, and the direction of Algorithm 2 there, whose slack counts what the lower level leaves open.

        `point` is the one at theta, where it is known; what comes back is better where the lower level is inexact.
        """
        seen = self.assessed(theta, point)
        direction = region.blmo(theta, seen.gradient)
        if seen.change is not None:
            hidden = region.hidden(theta, seen.change)
            error = LowerError(seen.residual, dot(seen.change, seen.change) ** 0.5, hidden, seen.reached)
            direction = direction._replace(slack=direction.slack + hidden, lower=error)
        return seen.point, seen.gradient, direction

    def _revalued(self, point: Point, parts: Parts, sharper: Sharper) -> Point:
        """The point with the better w, and its value without the error that is of first order."""
        w, excess = sharper.seen[0].x, sharper.excess()
        r = self._residual(parts, w)
        value = self._objective(parts, w, r)
        return point._replace(value=value if excess is None else value - excess, w=w, r=r)

    def value_and_gradient(self, theta: Leaves) -> tuple[Point, Leaves]:
        """Both, from one evaluation of the user's functions."""
        parts, pullback = self.linearise(theta)
        point = self._point(theta, parts)
        return point, pullback(self._cotangents(point, parts))

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

        outputs, pullback = self.backend.vjp(flat, theta, self._constants)
        return structure.fill(outputs), lambda parts: pullback(partition(parts)[0])

    def _cotangents(self, point: Point, parts: Parts) -> Parts:
        """Derivative of ``f_U - <grad_w f_L, v>`` with respect to what the user's functions returned."""
        solver, system, y = self._lower(parts)
        R = None
        if parts.R is not None:
            R = array_namespace(parts.R).full_like(parts.R, 0.5 * self.problem.mu)
        if self.problem.is_separable:
            w, r = solver.refine(self.backend, system, point.factor, y, point.w, point.r)
            return Parts(parts.M_L.outer(r, w), _target(-1, r, parts.y_L), None, None, R)
        condensed, r_L = solver.condense(point.factor), parts.M_L.residual(point.w, y)
        w, r_L = solver.refine(self.backend, system, condensed, y, point.w, r_L)
        r = self._residual(parts, w)
        c, judge = parts.M_U.rmatvec(r), self.judge
        if judge.lam:
            c = c + judge.lam * (w if judge.Omega is None else judge.Omega.mT @ (judge.Omega @ w))
        q, pairs, _ = solver.adjoint(self.backend, system, point.factor, c, y, r_L)
        terms = [partition(parts.M_L.outer(-s, v)) for s, v in ((q, w), *pairs)]
        M_L = terms[0][1].fill([sum_(arrays) for arrays in zip(*(arrays for arrays, _ in terms), strict=True)])
        return Parts(M_L, _target(1, q, parts.y_L), parts.M_U.outer(r, w), _target(-1, r, parts.y_U), R)


def as_matrix(y: Array) -> Array:
    """A target of shape (m,) as (m, 1)."""
    return y if y.ndim == 2 else array_namespace(y).expand_dims(y, axis=1)


def _target(sign: int, s: Array, y: Array | None) -> Array | None:
    """The cotangent ``sign * s`` of a target as the user's function returned it; None for one that is constant."""
    return None if y is None else array_namespace(y).reshape(sign * s, y.shape)
