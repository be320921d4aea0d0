"""Second derivatives of the reduced objective, by the implicit function theorem.

The Lagrangian ``L(x, z) = f_U - <grad_w f_L, v>`` of `Reduced.lagrangian`, with x = (theta, data) and z = (w, v), or
z = w for a separable problem, is stationary in z at the lower level's solution and the adjoint. A change dx moves z by
``L_zz dz = -L_zx dx``, and the reduced Hessian is the Schur complement (Nocedal and Wright, Numerical Optimization,
chapter 16)

```
H = L_xx - L_xz L_zz^-1 L_zx      L_zz = [[f_U,ww, -H_L], [-H_L, 0]],   L_zz = H_L for a separable problem
```

Solves with L_zz are solves with the factorisation of ``H_L = M_L^T M_L + lam Omega^T Omega``: two, or one.
"""

from __future__ import annotations

from typing import Any

from xvarpro.backends.calculus import hessian_product
from xvarpro.core import trees
from xvarpro.core.namespace import namespace_of
from xvarpro.core.struct import Array, Leaves
from xvarpro.errors import ProblemError
from xvarpro.objective.reduced import Reduced


class ReducedHessian:
    """Second derivatives at one theta, by theta and by the floating-point arrays of the data.

    Attributes
    ----------
    gradient, data_gradient : tuple of arrays
        First derivatives of the reduced objective.
    kinks, truncated : array, 0-d
        Number of entries of w at a bound with multiplier 0; whether the factorisation dropped a direction.
    zeros : tuple of arrays
        Zeros in the shapes of theta, data and z.
    """

    def __init__(self, f: Reduced, theta: Leaves) -> None:
        backend = f.backend
        parts, solver, low = f.lower_level(theta)
        system = low.system
        factor = solver.factor(backend, system)
        w = solver.argmin(backend, system, factor, low.y)
        w, r = solver.refine(backend, system, factor, low.y, w, low.residual(w))

        def inverse(c: Array) -> Array:
            v = solver.adjoint(backend, system, factor, c, low.y, w, r).v
            if v is None:
                raise ProblemError(f"second derivatives need a solver that returns v; got {solver!r}: use lower.QR()")
            return v

        upper = f.levels(parts)[1]
        self._inverse = inverse  # H_L^-1
        self._z: Leaves = (w,) if f.problem.is_separable else (w, inverse(upper.slope(w, upper.residual(w))))
        *_, self.kinks, self.truncated = solver.diagnose(backend, system, factor, low.y)

        data, held = trees.partition(f.problem.data)
        rest, skeleton = trees.partition(trees.changed(f.problem, data=None))
        moving = [i for i, x in enumerate(data) if trees.is_inexact(x)]
        still = tuple(x for i, x in enumerate(data) if i not in moving)
        p, m = len(theta), len(moving)

        def lagrangian(*arrays: Array) -> Array:
            x, y = iter(arrays[p : p + m]), iter(arrays[p + m + len(self._z) :])
            moved = held.fill([next(x if i in moving else y) for i in range(len(data))])
            problem = trees.changed(skeleton.fill(y), data=moved)
            return f.with_problem(problem).lagrangian(arrays[:p], *arrays[p + m : p + m + len(self._z)])

        x = (*theta, *(data[i] for i in moving))
        slopes, self._product = hessian_product(backend, lagrangian, (*x, *self._z), (*still, *rest))
        self.gradient, self.data_gradient = slopes[:p], slopes[p : p + m]
        self._p, self._m = p, m
        self.zeros: Leaves = tuple(namespace_of(y).zeros_like(y) for y in (*x, *self._z))

    @property
    def data_zeros(self) -> Leaves:
        """Zeros in the shapes of the data."""
        return self.zeros[self._p : self._p + self._m]

    def product(self, u: Leaves, along: Leaves = ()) -> tuple[Leaves, Leaves]:
        """``H u`` and the gradient of ``<u, grad f>`` with respect to data; of both for a change of the data, too."""
        first = self._row((*u, *along))
        if len(self._z) == 1:
            return self._sum(first, self._row(None, -self._inverse(first[1])))
        dw = self._row(None, self._inverse(first[2]))
        dv = self._row(None, None, self._inverse(first[1] + dw[1]))
        return self._sum(first, dw, dv)

    def bound(self, u: Leaves) -> Array:
        """``|L_xx u|^2``, an upper estimate of ``|H u|^2``: the Schur complement subtracts curvature."""
        row = self._row(u)[0][: self._p]
        return trees.dot(row, row)

    def pull_w(self, c: Array) -> tuple[Leaves, Leaves]:
        """The gradient of ``<c, w>`` with respect to theta and data."""
        v = self._inverse(c)
        return self._sum(self._row(None, -v) if len(self._z) == 1 else self._row(None, None, v))

    def push_w(self, u: Leaves, along: Leaves) -> Array:
        """The derivative of w along a change of theta and of the data."""
        row = self._row((*u, *along))
        return -self._inverse(row[1]) if len(self._z) == 1 else self._inverse(row[2])

    @property
    def free(self) -> Array:
        """Which entries of w move with a target: those on no bound."""
        return self._inverse(trees.signs(self._z[:1])[0]) != 0

    def _row(self, u: Leaves | None, *dz: Array | None) -> tuple[Any, ...]:
        """The Hessian of L times a change of x, or its first arrays, and of z, None for 0: its part in x, then in z."""
        n = self._p + self._m
        change = list(self.zeros)
        if u is not None:
            change[: len(u)] = u
        for i, d in enumerate(dz):
            change[n + i] = change[n + i] if d is None else d
        found = self._product(tuple(change))
        return found[:n], *found[n:]

    def _sum(self, *rows: tuple[Any, ...]) -> tuple[Leaves, Leaves]:
        """The sum of the parts in x, by theta and by data."""
        total = tuple(trees.sum_(terms) for terms in zip(*(row[0] for row in rows), strict=True))
        return total[: self._p], total[self._p :]
