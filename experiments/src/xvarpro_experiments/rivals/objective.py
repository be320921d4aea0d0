"""The joint objective ``J(theta, w)``: both blocks as variables, nothing eliminated.

For a separable problem J is its one level, ``1/2 |M w - y|^2 + lam/2 |Omega w|^2 + mu/2 R``. A bilevel problem has no
joint form: its baselines see both splits pooled, ``J = f_L + f_U``, as a user without the second level would run them.
A point of J is a flat tuple, theta's leaves and then w.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from xvarpro import lower
from xvarpro.core.namespace import array_namespace, device
from xvarpro.core.struct import Array, Leaves
from xvarpro.core.trees import adjoint, inner, partition, sum_
from xvarpro.errors import ProblemError
from xvarpro.lower.interface import System
from xvarpro.objective.in_memory import ModelOutputs
from xvarpro.objective.least_squares import EvaluatedLevel
from xvarpro.objective.reduced import Reduced
from xvarpro.operators import Dense
from xvarpro.operators.convolutions import Convolution, spread
from xvarpro.operators.fourier import forward
from xvarpro.sets import Free
from xvarpro.sets.region import Region


class Point(NamedTuple):
    """J at one point, with the residual of every level."""

    theta: Leaves  # w included, as the last leaf
    value: Array
    r: tuple[Array, ...]
    recorded: Any = ()  # as that of `objective.reduced.Point`


class Joint:
    """J of a prepared problem, with what an algorithm asks of an objective: `point`, `gradient` and both at once.

    Any algorithm of the package runs on it beside `lift`, which makes w a free leaf of the region.

    Parameters
    ----------
    f : Reduced
    """

    exact = True

    def __init__(self, f: Reduced) -> None:
        if f.problem.lower.W is not None:
            raise ProblemError("rivals move w freely: they have no part in a problem that keeps it in a set W")
        self.f, self.backend, self.problem = f, f.backend, f.problem
        self.rounding = f.rounding

    # -- both blocks ---------------------------------------------------------------------------------------------------

    def point(self, z: Leaves, ahead: bool = False) -> Point:
        """J at `z`."""
        parts, recorded = self.f.evaluate_or_nan(z[:-1], ahead)
        return self._point(parts, z)._replace(recorded=recorded)

    def gradient(self, point: Point) -> Leaves:
        """Gradient at a point: one VJP of the user's functions, and products with M for w."""
        parts, pullback = point.recorded.pop() if point.recorded else self.f.linearise(point.theta[:-1])
        return self._gradient(parts, pullback, point.theta[-1], point.r)

    def value_and_gradient(self, z: Leaves) -> tuple[Point, Leaves]:
        """Both, from one evaluation of the user's functions."""
        parts, pullback = self.f.linearise(z[:-1])
        point = self._point(parts, z)
        return point, self._gradient(parts, pullback, z[-1], point.r)

    def slopes(self, z: Leaves) -> Leaves:
        """The gradient at `z`, for a method that does not ask for J: its sums are a pass over the data."""
        parts, pullback = self.f.linearise(z[:-1])
        return self._gradient(parts, pullback, z[-1], self._residuals(parts, z[-1]))

    # -- one block -----------------------------------------------------------------------------------------------------

    def by_theta(self, theta: Leaves, w: Array) -> tuple[Point, Leaves]:
        """J and its gradient in theta."""
        parts, pullback = self.f.linearise(theta)
        point = self._point(parts, (*theta, w))
        return point, pullback(self._cotangents(parts, w, point.r))

    def slope_theta(self, theta: Leaves, w: Array) -> Leaves:
        """The gradient in theta alone."""
        parts, pullback = self.f.linearise(theta)
        return pullback(self._cotangents(parts, w, self._residuals(parts, w)))

    def by_w(self, theta: Leaves, w: Array) -> tuple[Array, Array]:
        """Gradient in w, and its Lipschitz constant: the largest eigenvalue of ``M^T M`` and the ridge."""
        parts = self.f.lower_level(theta)[0]
        return self._slope(parts, w, self._residuals(parts, w)), self._curvature(parts)

    def best_w(self, theta: Leaves) -> Array:
        """The w that minimises J at theta."""
        parts, solver, side = self.f.lower_level(theta)
        system, y = (side.system, side.y) if parts.upper is None else self._pooled(parts)
        solver = solver if parts.upper is None else lower.QR()
        return solver.argmin(self.backend, system, solver.factor(self.backend, system), y)

    # -- bilinear problems ---------------------------------------------------------------------------------------------

    def is_bilinear(self, theta: Leaves) -> bool:
        """Whether the design is a linear function of theta, its array being theta itself, and nothing else depends on
        theta: J is then quadratic in each block, with a Hessian that is known. Read off the user's function, which
        hands back what it was given; that costs a call of it, so a method asks once and keeps the answer in the
        structure of its memory.
        """
        problem = self.problem
        given = (problem.lower.y, problem.lower.lam)
        if len(theta) > 1 or not problem.is_separable or any(map(callable, given)) or (problem.R and problem.mu):
            return False
        M = self.f.lower_level(theta)[2].M
        arrays = partition(M)[0]
        return isinstance(M, Dense | Convolution) and len(arrays) == 1 and arrays[0] is theta[0]

    def is_dictionary(self, theta: Leaves) -> bool:
        """Whether the design is theta itself: the Hessian in theta is then the Gram matrix of w."""
        return self.is_bilinear(theta) and isinstance(self.f.lower_level(theta)[2].M, Dense)

    def curvature_theta(self, theta: Leaves, w: Array) -> Array:
        """The largest eigenvalue of the Hessian in theta of a bilinear problem; for convolutions that are not periodic,
        the bound that the circulant matrix around them gives.
        """
        M = self.f.lower_level(theta)[2].M
        if not isinstance(M, Convolution):
            return top(w @ w.mT)
        W = forward(spread(w, M.grid), M.layout.period, M.is_real)
        xp = array_namespace(W)
        return xp.max(xp.sum(xp.abs(W) ** 2, axis=-1))

    def hessian(self, z: Leaves, grad: Leaves, u: Leaves, bilinear: bool) -> Leaves:
        """Product with the Hessian of J: exact for a bilinear problem, else a difference of gradients.

        The two blocks may differ by many orders of magnitude in size: the difference moves each of them by little.
        """
        xp = array_namespace(*z)
        if bilinear:
            w, (dX, dw) = z[-1], u
            side = self.f.lower_level(z[:-1])[2]
            M, dM = side.M, partition(side.M)[1].fill([dX])
            E, dE = side.residual(w), dM.matvec(w) + M.matvec(dw)
            dtheta = sum_(partition(M.outer(r, x))[0][0] for r, x in ((dE, w), (E, dw)))
            return dtheta, M.rmatvec(dE) + dM.rmatvec(E) + side.ridge(dw)
        small = xp.finfo(z[0].dtype).eps ** (1 / 3)
        one = xp.ones((), dtype=z[0].dtype, device=device(z[0]))
        h = xp.full_like(one, xp.inf)
        for x, d in zip(z, u, strict=True):
            size, length = xp.sqrt(inner(x, x)), xp.sqrt(inner(d, d))
            bound = size / xp.where(length > 0, length, one)
            h = xp.where((length > 0) & (size > 0), xp.minimum(h, bound), h)
        h = small * xp.where(xp.isfinite(h), h, one)
        there = self.slopes(tuple(x + h * d for x, d in zip(z, u, strict=True)))
        return tuple((b - a) / h for a, b in zip(grad, there, strict=True))

    # -- certificate ---------------------------------------------------------------------------------------------------

    def certificate(self, region: Region, z: Leaves) -> tuple[Array, Array, Array]:
        """J, its Frank-Wolfe gap in theta's sets, and the gap of what is free, w included; `region` is lifted."""
        point, grad = self.value_and_gradient(z)
        direction = region.blmo(z, grad)
        return point.value, direction.gap_A, direction.gap_B

    # -- pieces --------------------------------------------------------------------------------------------------------

    def _sides(self, parts: ModelOutputs) -> list[EvaluatedLevel]:
        low, upper = self.f.levels(parts)
        return [low] if upper is low else [low, upper]

    def _point(self, parts: ModelOutputs, z: Leaves) -> Point:
        sides, w = self._sides(parts), z[-1]
        r = self._residuals(parts, w)
        value = sum_(side.value(w, x) for side, x in zip(sides, r, strict=True))
        if parts.R is not None:
            value = value + (0.5 * self.problem.mu) * parts.R
        return Point(z, value, r)

    def _residuals(self, parts: ModelOutputs, w: Array) -> tuple[Array, ...]:
        return tuple(side.residual(w) for side in self._sides(parts))

    def _gradient(self, parts: ModelOutputs, pullback: Any, w: Array, r: tuple[Array, ...]) -> Leaves:
        return (*pullback(self._cotangents(parts, w, r)), self._slope(parts, w, r))

    def _slope(self, parts: ModelOutputs, w: Array, r: tuple[Array, ...]) -> Array:
        return sum_(side.slope(w, x) for side, x in zip(self._sides(parts), r, strict=True))

    def _cotangents(self, parts: ModelOutputs, w: Array, r: tuple[Array, ...]) -> ModelOutputs:
        stated = [parts.lower] + ([] if parts.upper is None else [parts.upper])
        pulled = [side.value_cotangents(own, w, x) for side, own, x in zip(self._sides(parts), stated, r, strict=True)]
        R = parts.R
        if R is not None:
            R = array_namespace(R).full_like(R, 0.5 * self.problem.mu)
        return ModelOutputs(pulled[0], pulled[1] if len(pulled) > 1 else None, R)

    def _curvature(self, parts: ModelOutputs) -> Array:
        """The largest eigenvalue of the Hessian in w, or the bound of `curvature_theta`."""
        sides = self._sides(parts)
        flat = sum_(side.lam for side in sides if side.Omega is None) if any(s.Omega is None for s in sides) else 0.0
        (m, n), single = sides[0].M.shape, len(sides) == 1 and sides[0].Omega is None
        if single and isinstance(M := sides[0].M, Convolution):
            X = M.spectrum(M.is_real)
            xp = array_namespace(X)
            return xp.max(xp.sum(xp.abs(X) ** 2, axis=0)) + flat
        A = sides[0].M.dense()
        if single and n > m:
            return top(A @ adjoint(A)) + flat
        grams = [adjoint(side.M.dense()) @ side.M.dense() for side in sides]
        weights = [(s.lam, s.system.weight) for s in sides if s.Omega is not None]
        grams += [lam * (adjoint(weight) @ weight) for lam, weight in weights]
        return top(sum_(grams)) + flat

    def _pooled(self, parts: ModelOutputs) -> tuple[System, Array]:
        """The least-squares problem of w at one theta, both levels and both ridges stacked."""
        sides = self._sides(parts)
        xp = array_namespace(sides[0].y)
        rows, targets = [side.M.dense() for side in sides], [side.y for side in sides]
        n, like = rows[0].shape[1], rows[0]
        for side in (side for side in sides if side.system.ridged):
            Omega = xp.eye(n, dtype=like.dtype, device=device(like)) if side.Omega is None else side.system.weight
            rows.append(side.lam**0.5 * Omega)
            targets.append(xp.zeros((n, targets[0].shape[1]), dtype=like.dtype, device=device(like)))
        return System(Dense(xp.concat(rows)), 0.0, None), xp.concat(targets)


def lift(region: Region, theta: Leaves) -> Region:
    """The region of ``(*theta, w)``: w is one more free leaf, with the ball of the paper."""
    return Region(region.constrained, (*region.free, ((len(theta),), Free())))


def top(A: Array) -> Array:
    """Largest eigenvalue of a symmetric matrix."""
    xp = array_namespace(A)
    return xp.max(xp.linalg.eigvalsh(A))
