"""Batches of problems with a loss that is no square: Newton's method for the lower levels of all of them at once.

A right-hand side is a problem by itself, and a matrix (m, 1) of what a `Loss` is given.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

from xvarpro.batch import small
from xvarpro.batch.objective import Batch, Linear, Lower, Outputs, grouped, products, rows, stacked, with_held
from xvarpro.core import trees
from xvarpro.core.namespace import device, namespace_of, positive_or_one
from xvarpro.core.struct import Array
from xvarpro.losses.interface import Loss, Squares
from xvarpro.lower.newton import descended, flat, inwards
from xvarpro.problem.problem import Problem


class _Levels(NamedTuple):
    """A level of every problem: its loss with targets and weights as columns, (b, m, 1)."""

    loss: Loss
    y: Array
    weights: Any

    def value(self, z: Array) -> Array:
        """The losses at predictions (b, 1, m), (b,)."""
        terms = self.loss.terms(z.mT, self.y, self.weights)
        return namespace_of(z).sum(terms, axis=(1, 2)) * self.loss.unit**2

    def slope(self, z: Array) -> Array:
        return self.loss.slope(z.mT, self.y, self.weights).mT

    def curvature(self, z: Array, exact: bool) -> Array:
        """Second derivatives, positive by rounding at least, or those of a model for steps of theta."""
        given = z.mT, self.y, self.weights
        return (Loss.model(self.loss, *given) if exact else self.loss.scoring(*given)).mT


class LossBatch(Batch):
    """The reduced objectives of a batch in which a level has a loss of entries, convex, with constant targets."""

    def __init__(self, problem: Problem, *given: Any) -> None:
        super().__init__(problem, *given)
        self._weights = [level.weights for level in problem.levels]
        bare = [trees.changed(level, weights=None) for level in self.problem.levels]
        self.problem = trees.changed(self.problem, **dict(zip(("lower", "upper"), bare, strict=False)))

    def _levels(self, which: int, b: int) -> _Levels:
        level: Any = self.problem.levels[which]
        loss, weights = level.loss or Squares(), self._weights[which]
        return _Levels(loss, self._columns(rows(level.y), b), 1.0 if weights is None else self._columns(weights.mT, b))

    def _columns(self, x: Array, b: int) -> Array:
        """Rows (b / k, k, m), or 1 for either, as columns (b, m, 1)."""
        xp, m = namespace_of(x), x.shape[2]
        return xp.reshape(xp.broadcast_to(x, (b // self.columns, self.columns, m)), (-1, m, 1))

    def energy(self, x: Array) -> Array:
        which = len(self.problem.levels) - 1
        level = self._levels(which, x.shape[0] * self.columns)
        sizes = level.loss.sizes(level.y, level.weights)
        return self._summed(namespace_of(x).sum(sizes, axis=(1, 2)) * level.loss.unit**2)

    def lower(self, outputs: Outputs) -> Lower:
        level: Any = self.problem.lower
        A, low = stacked(outputs.M_L.mT, level.ridge), self._levels(0, outputs.M_L.shape[0])
        m = low.y.shape[1]
        w, free = self._minimum(A, low)
        z, xp = w @ A, namespace_of(w)
        # dependent columns have no w: those of a first prediction say so
        at = xp.where(xp.isfinite(z[..., :m]), z[..., :m], low.loss.start(low.y).mT)
        rows = _scaled(A, low.curvature(at, exact=not self.problem.is_separable))
        f = small.factor(rows)
        lost = self._lost(f, m)
        if level.W is None:
            return Lower(f, w, z, lost, f.R)
        return Lower(small.factor(with_held(rows, free)), w, z, lost, f.R, free)

    def _is_wide(self, M: Array) -> bool:
        return False

    def _separable(self, outputs: Outputs, low: Lower, tangents: list[Outputs]) -> tuple[Array, Array, Array]:
        level, m = self._levels(0, low.w.shape[0]), outputs.M_L.shape[1]
        z, X = low.r[..., :m], self._moved(low, tangents)
        root = namespace_of(z).sqrt(level.curvature(z, exact=False))
        along = small.coefficients(low.factor, root * X)
        J = small.rest(low.factor, root * X, along)
        value, slope = level.value(z) + _half_squares(low.r[..., m:]), level.slope(z)
        r = namespace_of(z).concat([slope / positive_or_one(root), low.r[..., m:]], axis=2)
        # less what X finds in the slope of the level, which is 0 but for the rounding of w
        lost = products(grouped(along, len(tangents)), small.coefficients(low.factor, r))
        return value, products(grouped(X, len(tangents)), slope) - lost, grouped(J, len(tangents))

    def _linear(self, outputs: Outputs, low: Lower, X: Array) -> Linear:
        level, m = self._levels(0, low.w.shape[0]), outputs.M_L.shape[1]
        z, xp = low.r[..., :m], namespace_of(X)
        given = z.mT, level.y, level.weights + xp.zeros_like(level.y)
        # columns of all entries of a problem
        apart = (xp.reshape(x, (-1, self.columns * m, 1)) for x in given)
        root = xp.sqrt(given[2] * xp.reshape(level.loss.curvature(*apart), (-1, m, 1))).mT
        A = stacked(root * outputs.M_L.mT, self.problem.lower.ridge)
        # of a loss that is no likelihood this has no use
        terms = level.loss.terms(*given) - level.loss.saturated(*given[1:])
        slope = level.slope(z) / positive_or_one(root)
        return Linear(A, low.w, slope, root * X, low.free, root, 2 * xp.sum(terms, axis=(1, 2)))

    def _bilevel(self, outputs: Outputs, low: Lower, tangents: list[Outputs]) -> tuple[Array, Array, Array]:
        w, m, p = low.w, outputs.M_L.shape[1], len(tangents)
        below, above = (self._levels(i, w.shape[0]) for i in (0, 1))
        z, X = low.r[..., :m], self._moved(low, tangents)
        xp = namespace_of(X)
        dw = self._answer(low, below.slope(z), xp.sqrt(below.curvature(z, exact=True)) * X, tangents)
        dz = xp.concat([w @ t.M_U.mT for t in tangents], axis=1) + dw @ outputs.M_U.mT
        z = w @ outputs.M_U.mT
        ridge, dridge = self._ridge_below(z[..., :0], w), self._ridge_below(dz[..., :0], dw)
        root = xp.sqrt(above.curvature(z, exact=False))
        grad = products(grouped(xp.concat([dz, dridge], axis=2), p), xp.concat([above.slope(z), ridge], axis=2))
        return above.value(z) + _half_squares(ridge), grad, grouped(xp.concat([root * dz, dridge], axis=2), p)

    def _minimum(self, A: Array, low: _Levels) -> tuple[Array, Array]:
        """The minimisers, (b, 1, n), NaN where none is found, and which entries are at no bound, (b, n)."""
        xp, m, bounded = namespace_of(A), low.y.shape[1], self.problem.lower.W is not None

        def at(w: Array) -> tuple[Array, Array]:
            z = w @ A
            return low.value(z[..., :m]) + _half_squares(z[..., m:]), z

        def step(w: Array, z: Array, _: Array, target: Array, free: Array) -> tuple[Array, Array, Array, Array]:
            g = xp.concat([low.slope(z[..., :m]), z[..., m:]], axis=2) @ A.mT
            R = small.triangle(_scaled(A, low.loss.model(z[..., :m].mT, low.y, low.weights).mT))
            half = small.solve_adjoint(R, g)
            if not bounded:
                return -small.solve_upper(R, half), xp.sum(half * half, axis=(1, 2)), target, free
            target, free = self.within(R, w @ R.mT - half)
            q = (target - w) @ R.mT
            return target - w, xp.sum(q * q, axis=(1, 2)), target, free

        def first(y: Array = low.y) -> Array:
            """Fitted to what the loss makes of the target."""
            z = low.loss.start(y)
            root = xp.sqrt(low.loss.scoring(z, y, low.weights))
            target = root * z - low.loss.slope(z, y, low.weights) / positive_or_one(root)
            f = small.factor(_scaled(A, (root * root).mT))
            c = small.coefficients(f, target.mT)
            if not bounded:
                return small.solve_upper(f.R, c)
            w = self.within(f.R, c)[0]
            if not low.loss.positive:
                return w
            return inwards(
                self.backend, w, lambda: self.within(f.R, level() @ f.R.mT)[0], lambda w: (w @ A[..., :m]).mT, z
            )

        def level() -> Array:
            """All columns with the same weight, but for their signs; predictions add up to the target."""
            w = xp.sign(xp.sum(A[..., :m], axis=2))[:, None, :]
            whole, one = (xp.sum(low.weights * x, axis=1, keepdims=True) for x in (low.y, (w @ A[..., :m]).mT))
            return w * (whole / positive_or_one(one))

        starts: list[Any] = [first]
        if low.loss.positive:
            starts += [*([] if bounded else [level]), partial(first, flat(low.y))]
        blank = xp.zeros_like(A[:, None, :, 0])
        w, _, (target, free) = descended(self.backend, at, step, (), starts, blank, blank[:, 0, :] == 0)
        # at a bound to the last digit
        return xp.where(free[:, None, :] | ~xp.isfinite(w), w, target) if bounded else w, free


def _half_squares(r: Array) -> Array:
    return 0.5 * namespace_of(r).sum(r * r, axis=(1, 2))


def _scaled(A: Array, h: Array) -> Array:
    """``[sqrt(h) M; sqrt(lam) Omega]``, from the rows A of the same without h."""
    xp, short = namespace_of(A), A.shape[2] - h.shape[2]
    root = xp.sqrt(h)
    if short:
        root = xp.concat([root, xp.ones((*h.shape[:2], short), dtype=h.dtype, device=device(h))], axis=2)
    return root * A
