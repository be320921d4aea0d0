"""Second derivatives of the reduced objective, by the implicit function theorem.

The Lagrangian ``L(x, z) = f_U - <grad_w f_L, v>`` of `Reduced.lagrangian`, with x = (theta, data) and z = (w, v), or
z = w for a separable problem, is stationary in z at the lower level's solution and the adjoint. A change dx moves z by
``L_zz dz = -L_zx dx``, and the reduced Hessian is the Schur complement (Nocedal and Wright, Numerical Optimization,
chapter 16)

```
H = L_xx - L_xz L_zz^-1 L_zx      L_zz = [[f_U,ww, -H_L], [-H_L, 0]],   L_zz = H_L for a separable problem
```

Solves with L_zz are solves with the factorisation of ``H_L = M_L^T M_L + lam Omega^T Omega``: two, or one.

Of a wide design H_L has eigenvalues lam; where that is small L_xx and the rest would nearly cancel. There z is (a, q)
of `Reduced.dual_lagrangian`, with ``K = M_L M_L^T + lam I`` in the place of H_L; L_zz of a separable problem is -lam K.
"""

from __future__ import annotations

from typing import Any

from xvarpro.backends.calculus import hessian_product
from xvarpro.core import trees
from xvarpro.core.namespace import namespace_of, positive_or_one
from xvarpro.core.struct import Array, Leaves
from xvarpro.errors import ProblemError
from xvarpro.lower.interface import Adjoint
from xvarpro.objective.in_memory import ModelOutputs
from xvarpro.objective.least_squares import EvaluatedLevel, LowerSolution
from xvarpro.objective.reduced import Reduced


class ReducedHessian:
    """Second derivatives at one theta, by theta and by the floating-point arrays of the data.

    `gradient` and `data_gradient` are the first ones. `kinks` counts entries of w at a bound with multiplier 0,
    `truncated` says whether the factorisation dropped a direction, and `rounding` is the relative error of products by
    rounding, for a wide design with a small ridge that is not in the dual form. ``pull_w(c)`` is the gradient of
    ``<c, w>`` by theta and data. `zeros` are in the shapes of theta, data and z.
    """

    def __init__(self, f: Reduced, theta: Leaves) -> None:
        backend = f.backend
        parts, solver, low = f.lower_level(theta)
        system = low.system
        factor = solver.factor(backend, system)
        w = solver.argmin(backend, system, factor, low.y)
        w, r = solver.refine(backend, system, factor, low.y, w, low.residual(w))

        def adjoint(c: Array) -> Adjoint:
            found = solver.adjoint(backend, system, factor, c, low.y, w, r)
            if found.v is None:
                raise ProblemError(f"second derivatives need a solver that returns v; got {solver!r}: use lower.QR()")
            return found

        upper = f.levels(parts)[1]
        upper_r, coupled = r, None
        if not f.problem.is_separable:
            upper_r = upper.residual(w)
            coupled = adjoint(upper.slope(w, upper_r))
        self._dual = low.ridge.plain and adjoint(w).coupling is not None
        if self._dual:
            self._z: Leaves = (-r / low.ridge.lam,) if coupled is None else (-r / low.ridge.lam, coupled.q)
        else:
            self._z = (w,) if coupled is None or coupled.v is None else (w, coupled.v)

        def inverse(c: Array) -> Any:
            """``H_L^-1 c``, or ``K^-1 c``, which is a residual, with the sign and the factor of L_zz."""
            if not self._dual:
                return adjoint(c).v
            residual = solver.refine(backend, system, factor, c, w, c)[1]
            return residual / low.ridge.lam**2 if coupled is None else -residual / low.ridge.lam

        *_, self.kinks, self.truncated = solver.diagnose(backend, system, factor, low.y)
        W, n = f.problem.lower.W, w.shape[0]
        wide = low.y.shape[0] < (n if W is None else W.dimension(n))
        self.rounding = _rounding(low, w, wide and not self._dual)

        data, held = trees.partition(f.problem.data)
        rest, skeleton = trees.partition(trees.changed(f.problem, data=None))
        moving = [i for i, x in enumerate(data) if trees.is_inexact(x)]
        still = tuple(x for i, x in enumerate(data) if i not in moving)
        p, m = len(theta), len(moving)
        fixed: Leaves = ()
        if self._dual and coupled is None and parts.lower.lam is not None and parts.R is None:
            fixed = (low.ridge.lam, *theta)

        def at(arrays: Leaves, n: int) -> Reduced:
            """The objective of the data among `arrays`; its other ones are the last, n arrays after these."""
            x, y = iter(arrays[p : p + m]), iter(arrays[p + m + n :])
            moved = held.fill([next(x if i in moving else y) for i in range(len(data))])
            return f.with_problem(trees.changed(skeleton.fill(y), data=moved))

        def lagrangian(*arrays: Array) -> Array:
            n = len(self._z)
            f, z = at(arrays, n), arrays[p + m : p + m + n]
            if not self._dual:
                return f.lagrangian(arrays[:p], *z)
            return f.dual_lagrangian(arrays[:p], *z, held=arrays[len(arrays) - len(fixed) :])

        def part_of_w(*arrays: Array) -> Array:
            """``<s, M^H a>``, of arrays s and a."""
            M = at(arrays, 2).lower_level(arrays[:p])[2].M
            return trees.inner(arrays[p + m], M.rmatvec(arrays[p + m + 1]))

        def push_w(*change: Array) -> Array:
            """The derivative of ``w = M^H a`` along a change of theta, data and a."""
            zero = namespace_of(w).zeros_like(w)
            push = hessian_product(backend, part_of_w, (*x, zero, self._z[0]), (*still, *rest))[1]
            return push((*change[:-1], zero, change[-1]))[-2]

        def outputs(*arrays: Array) -> Leaves:
            return at(arrays, 0).outputs(*arrays[:p])

        def pulled(cotangents: ModelOutputs) -> tuple[Leaves, Leaves]:
            """What the user's functions return, pulled back to theta and data."""
            found = backend.vjp(outputs, x, (*still, *rest))[1](trees.partition(cotangents)[0])
            return found[:p], found[p:]

        def pull_w(c: Array) -> tuple[Leaves, Leaves]:
            zeros = trees.map_arrays(namespace_of(w).zeros_like, (parts.upper, parts.R))
            return pulled(ModelOutputs(low.condition_cotangents(parts.lower, w, adjoint(c)), *zeros))

        x = (*theta, *(data[i] for i in moving))
        # of residuals and of M v as the solver has them: in the dual form both are lost where they are computed again
        self.gradient, self.data_gradient = pulled(f.cotangents(parts, LowerSolution(w, r, upper_r, coupled)))
        self.pull_w, self._push_w, self._inverse = pull_w, push_w, inverse
        _, self._product = hessian_product(backend, lagrangian, (*x, *self._z), (*still, *rest, *fixed))
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
        """``|L_xx u|^2``, an upper estimate of ``|H u|^2``: the Schur complement subtracts; the dual one adds."""
        row = self.product(u)[0] if self._dual else self._row(u)[0][: self._p]
        return trees.dot(row, row)

    def push_w(self, u: Leaves, along: Leaves) -> Array:
        """The derivative of w along a change of theta and of the data."""
        row = self._row((*u, *along))
        moved = -self._inverse(row[1]) if len(self._z) == 1 else self._inverse(row[2])
        return self._push_w(*u, *along, moved) if self._dual else moved

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


def _rounding(low: EvaluatedLevel, w: Array, wide: bool) -> Array:
    """``eps (|M|^2 / |sqrt(lam) Omega|^2)^2``, norms along the fit: H_L^-1 is 1 / lam of what cancels."""
    xp, fitted = namespace_of(w), low.M.matvec(w)
    size = trees.inner(fitted, fitted)
    if not (wide and low.ridge.present):
        return xp.zeros_like(size)
    back = low.M.rmatvec(fitted)
    ridge = low.ridge.coupling(w, w) / positive_or_one(trees.inner(w, w))
    return xp.finfo(w.dtype).eps * (trees.inner(back, back) / positive_or_one(size * ridge)) ** 2
