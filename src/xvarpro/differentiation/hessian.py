"""Second derivatives of the reduced objective: the Lagrangian's Hessian and the lower level's factor."""

from __future__ import annotations

from typing import Any

from xvarpro.core import trees
from xvarpro.core.namespace import array_namespace
from xvarpro.core.struct import Array, Leaves
from xvarpro.errors import ProblemError
from xvarpro.objective.reduced import Reduced


class Stationary:
    """Derivatives of second order at one theta: of the gradient of the reduced objective and of w, by theta and data.

    The Lagrangian is stationary in ``z = (w, v)``, or in w alone for a separable problem. When x = (theta, data) moves,
    z follows so that it stays stationary: two triangular systems, one if separable, with the factor of the lower level.
    """

    def __init__(self, f: Reduced, theta: Leaves) -> None:
        backend = f.backend
        parts, solver, low = f.lower_level(theta)
        system, separable = low.system, f.problem.is_separable
        factor = solver.factor(backend, system)
        w = solver.argmin(backend, system, factor, low.y)
        w, r = solver.refine(backend, system, solver.condense(factor), low.y, w, low.residual(w))
        near = solver.near(w)

        def inverse(c: Array) -> Array:
            v = near.adjoint(backend, system, factor, c, low.y, r).v
            if v is None:
                raise ProblemError(f"{solver!r} has no second derivatives here: use xv.lower.QR()")
            return v

        upper = f.levels(parts)[1]
        self.inverse, self.separable = inverse, separable
        self.z: Leaves = (w,) if separable else (w, inverse(upper.slope(w, upper.residual(w))))
        self.kinks = solver.kinks(backend, system, factor, low.y)
        self.lost = solver.truncated(factor)

        data, held = trees.partition(f.problem.data)
        rest, skeleton = trees.partition(trees.changed(f.problem, data=None))
        moving = [i for i, x in enumerate(data) if trees.is_inexact(x)]
        still = tuple(x for i, x in enumerate(data) if i not in moving)
        p, m = len(theta), len(moving)

        def lagrangian(*arrays: Array) -> Array:
            x, y = iter(arrays[p : p + m]), iter(arrays[p + m + len(self.z) :])
            moved = held.fill([next(x if i in moving else y) for i in range(len(data))])
            problem = trees.changed(skeleton.fill(y), data=moved)
            return f.over(problem).lagrangian(arrays[:p], *arrays[p + m : p + m + len(self.z)])

        x = (*theta, *(data[i] for i in moving))
        slopes, self._product = backend.curvature(lagrangian, (*x, *self.z), (*still, *rest))
        self.gradient, self.data_gradient = slopes[:p], slopes[p : p + m]
        self.p, self.m, self.blank = p, m, tuple(array_namespace(y).zeros_like(y) for y in (*x, *self.z))

    def product(self, u: Leaves) -> tuple[Leaves, Leaves]:
        """The gradient of ``<u, grad f>`` with respect to theta, which is H u, and to data."""
        first = self._row(u)
        if self.separable:
            return self._sum(first, self._row(None, -self.inverse(first[1])))
        w = self._row(None, self.inverse(first[2]))
        v = self._row(None, None, self.inverse(first[1] + w[1]))
        return self._sum(first, w, v)

    def bound(self, u: Leaves) -> Array:
        """``|L u|^2`` for the part L of the Lagrangian's Hessian: the curvature without that w follows, no less."""
        row = self._row(u)[0][: self.p]
        return trees.dot(row, row)

    def through_w(self, c: Array) -> tuple[Leaves, Leaves]:
        """The gradient of ``<c, w>`` with respect to theta and data."""
        v = self.inverse(c)
        return self._sum(self._row(None, -v) if self.separable else self._row(None, None, v))

    def _row(self, u: Leaves | None, *z: Array | None) -> tuple[Any, ...]:
        """Product of the Hessian of the Lagrangian with a tangent of theta and of z: by x, then by each of z."""
        p, m = self.p, self.m
        moved = (*z, *(None for _ in range(len(self.z) - len(z))))
        zeros = self.blank
        tangent = (
            *(zeros[:p] if u is None else u),
            *zeros[p : p + m],
            *(zero if t is None else t for t, zero in zip(moved, zeros[p + m :], strict=True)),
        )
        found = self._product(tangent)
        return found[: p + m], *found[p + m :]

    def _sum(self, *rows: tuple[Any, ...]) -> tuple[Leaves, Leaves]:
        """The sum of such products, by theta and by data."""
        total = tuple(trees.sum_(terms) for terms in zip(*(row[0] for row in rows), strict=True))
        return total[: self.p], total[self.p :]
