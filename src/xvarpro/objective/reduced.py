"""The reduced objective ``f(theta) = f_U(w(theta), theta)`` and its exact gradient (paper, eq. 8).

No derivative passes through a factorisation or a solve: `w` and the adjoint v come from one factorisation, and the
gradient is one vector-Jacobian product (VJP) of the user's functions with both held constant.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from xvarpro.core.namespace import namespace_of
from xvarpro.core.struct import Array, Leaves
from xvarpro.core.trees import inner, unflatten
from xvarpro.objective.in_memory import InMemory, ModelOutputs, Pullback, Solved
from xvarpro.objective.least_squares import EvaluatedLevel, LowerSolution
from xvarpro.problem.problem import Problem


class Point(NamedTuple):
    """The reduced objective at one theta, with what the gradient there uses again."""

    theta: Leaves
    value: Array  # 0-d
    w: Array  # (n, k)
    r: Array  # residual of the upper level, (m, k)
    factor: Any  # of the lower level
    recorded: list[tuple[ModelOutputs, Pullback]] | tuple[()] = ()  # at most one, for one use; () in compiled loops
    start: Any = ()  # w again, where the lower level of the next theta starts from it


class Reduced(InMemory):
    """The reduced objective of a prepared problem on one backend."""

    def point(self, theta: Leaves, ahead: bool = False) -> Point:
        """Value at theta: one evaluation of the user's functions, one factorisation, one product.

        With `ahead` the functions are recorded on the way, so that the gradient does not evaluate them again.
        """
        outputs, recorded = self.evaluate_or_nan(theta, ahead)
        return self.point_of(theta, outputs)._replace(recorded=recorded)

    def probed(
        self, theta: Leaves, assess: Callable[[Point], tuple[Array, Array]], grad: Leaves
    ) -> tuple[Point, Leaves, Array]:
        if not self.backend.compiled:
            return super().probed(theta, assess, grad)
        outputs, pullback = self.linearise(theta)
        point = self.point_of(theta, outputs)
        wanted, verdict = assess(point)

        def gradient(_: Leaves) -> Leaves:
            return pullback(self.slopes(point, outputs))

        grad = self.backend.when(wanted, gradient, grad)
        # a loop need not carry what only the gradient uses, and what improves an inexact lower level
        none: Any = ()
        return point._replace(w=none, r=none, factor=none) if self.exact else point, grad, verdict

    def gradient(self, point: Point) -> Leaves:
        """Gradient at a point, shaped like theta.

        With ``H_L = M_L^H M_L + lam Omega^H Omega``,

        ```
        w    = H_L^-1 M_L^H y_L                         lower level, from one factorisation
        v    = H_L^-1 grad_w f_U(w, theta)              adjoint, from the same factorisation; exactly 0 when separable
        grad = grad_theta [ f_U(w, theta) - <grad_w f_L(w, theta), v> ]     one VJP, with w and v held constant
               where <grad_w f_L, v> = <M_L w - y_L, M_L v> + lam <Omega w, Omega v>
        ```
        """
        outputs, pullback = self.linearised(point)
        return self._total(pullback(self.slopes(point, outputs)))

    def value_and_gradient(self, theta: Leaves) -> tuple[Point, Leaves]:
        """Both, from one evaluation of the user's functions."""
        outputs, pullback = self.linearise(theta)
        point = self.point_of(theta, outputs)
        return point, self._total(pullback(self.slopes(point, outputs)))

    def value_and_w(self, theta: Leaves) -> tuple[Array, Array]:
        outputs, _ = self.evaluate_or_nan(theta)
        low, _, solver, _ = solved = self.solved(outputs)
        point = self.point_of(theta, outputs, solved)
        return point.value, self.solution(solver, low, point.factor)[0]

    def model_of_chunks(self, theta: Leaves) -> Any:
        """What `gauss_newton` returns where right-hand sides come in chunks; None where they are in memory."""
        return None

    def _total(self, gradient: Leaves) -> Leaves:
        return gradient if self.group is None else self.group.total(gradient)

    @property
    def half_mu(self) -> Any:
        """``mu/2``, or the part of it that this process adds to what is `summed`."""
        return 0.5 * self.problem.mu / (1 if self.group is None else self.group.size)

    def lagrangian(self, theta: Leaves, w: Array, *v: Array) -> Array:
        """``f_U(w, theta) - <grad_w f_L(w, theta), v>``, the objective with the lower level as a condition, 0-d.

        Stationary in w and v at ``w(theta)`` and the adjoint v; without a v, the objective itself, which is stationary
        in w where both levels are one. Arrays may be traced, those of the problem as well.
        """
        outputs = self.evaluate(theta, self.constants)
        low, upper = self.levels(outputs)
        value = self.objective(outputs, upper, w, upper.residual(w))
        return value - low.condition(w, *v) if v else value

    def dual_lagrangian(self, theta: Leaves, a: Array, *q: Array, held: Leaves = ()) -> Array:
        """`lagrangian` by ``a = -r / lam``, with ``w = M^H a``, and by ``q = M v``, 0-d.

        Of a wide design with a small ridge r is small, v large, and the derivatives by w nearly cancel. The objective
        of one level is then of order lam, and so would be the difference that is its gradient's derivative by lam: with
        `held`, lam and theta as they are, it is ``held lam / lam(held theta, data)`` times the objective, which has
        the same minima.
        """
        outputs = self.evaluate(theta, self.constants)
        low, upper = self.levels(outputs)
        w = low.M.rmatvec(a)
        lam: Any = low.ridge.lam
        off = low.y - low.M.matvec(w) - lam * a
        if held:
            ridge: Any = self.problem.lower.lam
            at = ridge(unflatten(self.treedef, held[1:]), self._held.fill(self.constants)[0])
            lam = held[0] * (1 + (lam - at) / at)  # without rounding where lam does not depend on theta
        value = self.penalised(outputs, inner(off, *q) if q else 0.5 * lam * inner(a, low.y + off))
        return value + upper.value(w, upper.residual(w)) if q else value

    def with_problem(self, problem: Problem) -> Reduced:
        """The objective of another problem with the same structure and shapes; its arrays may be traced."""
        return type(self)(problem, self.backend, self.treedef, self.structure, group=self.group)

    def point_of(self, theta: Leaves, outputs: ModelOutputs, solved: Solved | None = None) -> Point:
        """The point at theta from what the user's functions return there; `solved` of that, where it is known."""
        low, upper, solver, system = solved or self.solved(outputs)
        factor = solver.factor(self.backend, system)
        w = solver.argmin(self.backend, system, factor, low.y)
        r = upper.residual(w)
        start = () if low.loss is None else w
        return Point(theta, self.objective(outputs, upper, w, r), w, r, factor, start=start)

    def objective(self, outputs: ModelOutputs, upper: EvaluatedLevel, w: Array, r: Array) -> Array:
        """``f_U(w, theta)`` with its penalty, 0-d; `r` is the residual of the upper level at w."""
        return self.summed(self.penalised(outputs, upper.value(w, r)))

    def penalised(self, outputs: ModelOutputs, value: Array) -> Array:
        """A value with the penalty on theta."""
        return value if outputs.R is None else value + self.half_mu * outputs.R

    def lower_solution(self, point: Point, outputs: ModelOutputs, solved: Solved | None = None) -> LowerSolution:
        """Solution of the lower level to the accuracy of the gradient, with the adjoint, from the factor of a point."""
        low, upper, solver, system = solved or self.solved(outputs)
        factor = point.factor
        if outputs.upper is None:
            w, r = solver.refine(self.backend, system, factor, low.y, point.w, point.r)
            return LowerSolution(w, r, r, None)
        w, r = solver.refine(self.backend, system, factor, low.y, point.w, low.residual(point.w))
        upper_r = upper.residual(w)
        adjoint = solver.adjoint(self.backend, system, factor, upper.slope(w, upper_r), low.y, w, r)
        return LowerSolution(w, r, upper_r, adjoint)

    def slopes(self, point: Point, outputs: ModelOutputs) -> ModelOutputs:
        """Derivative of the objective with respect to what the user's functions return, at a point."""
        return self.cotangents(outputs, self.lower_solution(point, outputs))

    def cotangents(self, outputs: ModelOutputs, solution: LowerSolution) -> ModelOutputs:
        """Derivative of ``f_U - <grad_w f_L, v>`` with respect to what the user's functions return, w and v held."""
        low, upper = self.levels(outputs)
        w, r, upper_r, adjoint = solution
        R = None
        if outputs.R is not None:
            R = namespace_of(outputs.R).full_like(outputs.R, self.half_mu)
        if outputs.upper is None or adjoint is None:
            return ModelOutputs(low.value_cotangents(outputs.lower, w, r), None, R)
        return ModelOutputs(
            low.condition_cotangents(outputs.lower, w, adjoint), upper.value_cotangents(outputs.upper, w, upper_r), R
        )

    def linearised(self, point: Point) -> tuple[ModelOutputs, Pullback]:
        """`linearise` at a point, from what was recorded there if it was."""
        return point.recorded.pop() if point.recorded else self.linearise(point.theta)
