"""The lower level of a loss: Newton's method, each step of which is a weighted level of least squares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any, NamedTuple, cast, final

from xvarpro.backends import Backend
from xvarpro.backends.interface import either, select
from xvarpro.core.namespace import device, namespace_of, positive_or_one
from xvarpro.core.struct import REQUIRED, Array
from xvarpro.core.trees import adjoint_product, inner, rounding
from xvarpro.losses.interface import Loss, Weights
from xvarpro.lower.interface import NO_RIDGE, Adjoint, Diagnosis, LowerSolver, Ridge, System
from xvarpro.lower.krylov import LSMR
from xvarpro.lower.qr import QR
from xvarpro.lower.stack import as_one, identity, joined
from xvarpro.operators import Dense, Weighted
from xvarpro.operators.interface import Operator

STEPS, SHORTEST = 100, 2.0**-40  # at most, and share of one: of a level that has no minimum w grows without end
SUFFICIENT = 1e-4  # share of the decrease that the slope promises, which a step has to bring
SLOW = 0.25  # ratio of squared Newton decrements above which, once they are small, only rounding is left
# relative residual of systems of conjugate gradients for a step: the error of w, from the first of these to the second,
# to the third for losses of entries, where the inverse of the Hessian is nearly known
ROUGH, COARSE, FINE = 0.1, 1e-4, 1e-6
WORTH = 12  # products of the last step from which on a new preconditioner, which takes some of them, is worth its time
LOST = 1e-11  # relative error up to which adjoints do with a product's inverse: eps times the condition squared
PRODUCTS = 500  # with a Hessian at most, in one system of conjugate gradients; LSMR has a limit of its own


@dataclass(frozen=True)
class Rooted:
    """``B M`` for a loss of rows whose second derivative is ``B^T B``, as `Softmax.root` has it."""

    M: Operator
    u: Array  # (m, k)
    p: Array

    @property
    def columns(self) -> int:
        return self.u.shape[1]

    def root(self, d: Array) -> Array:
        """``B d``."""
        return self.u * (d - namespace_of(d).sum(self.p * d, axis=1, keepdims=True))

    def matvec(self, w: Array) -> Array:
        return self.root(self.M.matvec(w))

    def residual(self, w: Array, y: Array) -> Array:
        return self.matvec(w) - y

    def rmatvec(self, r: Array) -> Array:
        r = self.u * r
        return self.M.rmatvec(r - self.p * namespace_of(r).sum(r, axis=1, keepdims=True))

    @property
    def blocks(self) -> Array:
        """B of every row, (m, k, k)."""
        return self.u[:, :, None] * (identity(self.u) - self.p[:, None, :])


class LossSystem(NamedTuple):
    """The problem of a lower level with a loss, ``min loss(M w, y) + 1/2 <Omega w, lam Omega w>``."""

    M: Operator
    loss: Loss
    y: Array
    ridge: Ridge = NO_RIDGE
    weights: Weights = 1.0
    start: Array | tuple[()] = ()  # a w to begin with, such as that of a theta nearby

    @property
    def rowwise(self) -> Array | None:
        """M where it is one matrix for a loss of rows: sums over these want predictions column by column in memory."""
        return None if self.loss.by_entry or not isinstance(self.M, Dense) or self.M.columns else self.M.array

    def predicted(self, w: Array) -> Array:
        """``M w``."""
        A = self.rowwise
        return self.M.matvec(w) if A is None else (w.mT @ A.mT).mT

    def value(self, w: Array) -> tuple[Array, Array]:
        """The objective of the level, 0-d, and predictions."""
        z = self.predicted(w)
        value = self.loss.value(z, self.y, self.weights) * self.loss.unit**2
        return value + self.ridge.value(w) if self.ridge.present else value, z

    def back(self, s: Array, w: Array) -> Array:
        """``M^T s + Omega^T lam Omega w``, (n, k): its gradient at w, where s is the slope of the loss there."""
        A = self.rowwise
        g = self.M.rmatvec(s) if A is None else adjoint_product(s, A).mT
        return g + self.ridge.slope(w) if self.ridge.present else g

    def squares(self, z: Array, h: Array) -> tuple[System, Array]:
        """Least squares in its place near z, with curvatures h, and the target: the minimiser ends a Newton step.

        Its residual at the w of z is ``slope / root``: that has the gradient of the loss.
        """
        xp = namespace_of(h)
        root = xp.sqrt(h)
        y = root * z - self.loss.slope(z, self.y, self.weights) / xp.where(root > 0, root, 1)
        return System(Weighted(self.M, root), self.ridge), y

    def roots(self, z: Array, curvature: Callable[..., Array]) -> tuple[Array, Array]:
        """Matrices (m, k, k) of rows, B with a second derivative ``B^T B``, and slopes ``B^-T s``, (m, k)."""
        loss, given = cast(Any, self.loss), (z, self.y, self.weights)
        u, p = (namespace_of(z).sqrt(curvature(*given)), 0 * z) if loss.by_entry else loss.root(*given)
        return Rooted(self.M, u, p).blocks, loss.slope(*given) / positive_or_one(u)

    def joined(self, z: Array, curvature: Callable[..., Array]) -> tuple[System, Array]:
        """As `squares`, for one column that has all of w; the rows of the ridge are among the others."""
        (B, s), A, xp = self.roots(z, curvature), self.M.dense(), namespace_of(z)
        rows, y = joined(A, B), as_one((B @ z[:, :, None])[:, :, 0] - s, z.shape[1])
        if self.ridge.present:
            below = joined(self.ridge.dense(A), identity(z))
            rows, y = xp.concat([rows, below]), xp.concat([y, 0 * below[:, :1]])
        return System(Dense(rows)), y


class Minimum(NamedTuple):
    """The w of a level, what its steps had for adjoints, and a place for a factor, which few points are asked for."""

    w: Array
    shared: Any  # the inverse of a Hessian near that at w, () where it does not serve
    kept: list[Any] | tuple[()]  # at most one; () in compiled loops


class Descent(NamedTuple):
    """Where `descended` is: the next trial is ``w + alpha d``."""

    w: Array
    d: Array
    alpha: Array  # this and what follows is 0-d, or (b,) of b problems, whose w are matrices of one array
    value: Array  # inf before the first one
    decrement: Array  # of d, squared
    running: Array  # bool
    failed: Array  # bool
    steps: Array  # int32
    given: tuple[Any, ...]  # to the next step by the last one


@final
@dataclass(frozen=True)
class Newton(LowerSolver):
    """Newton's method for a convex loss, to rounding, with a step halved until the objective falls.

    Near a prediction the loss is a weighted square, and a step one level of least squares for the solvers there are, in
    a set for w too. A loss of rows, such as that of classes, and a design known by its products are solved by conjugate
    gradients, as exactly as a step is worth. The adjoint is that of the Hessian at the w that is returned.

    Parameters
    ----------
    inner : LowerSolver
        Of the weighted levels; of `LSMR` only its preconditioner and limit are used.
    constrained : bool
        Whether it keeps w in a set.
    coupled : bool
        Whether `inner` is of one column that has all of w, row by row.
    adjoined : bool
        Whether an adjoint is asked for with the gradient.

    References
    ----------
    J. Nocedal, S. J. Wright, Numerical Optimization, 2nd ed. (2006), chapters 3 and 7.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> A, y = np.array([[1.0], [1.0], [1.0]]), np.array([1.0, 1.0, 0.0])
    >>> problem = xv.separable(lambda theta, data: theta * data, y, data=A, loss=xv.losses.Logistic())
    >>> np.round(xv.solve_lower(problem, np.ones(1)).w, 6)
    array([0.693147])
    """

    inner: LowerSolver = REQUIRED
    constrained: bool = False
    coupled: bool = False
    adjoined: bool = False

    def factor(self, backend: Backend, system: Any) -> Minimum:
        w, shared = self._minimum(backend, system)
        kept = cast(Any, ((), ()) if backend.compiled else (self._serving(backend, system, shared), []))
        if system.ridge.definite or not (self.inner.exact and self._by_products(system)):
            return Minimum(w, *kept)

        def unique(w: Array) -> Array:
            """NaN where conjugate gradients have found one of several solutions."""
            xp, (near, target) = namespace_of(w), self._near(system, system.M.matvec(w), system.loss.model)
            found = self.inner.argmin(backend, near, self.inner.factor(backend, near), target)
            return xp.where(xp.all(xp.isfinite(found)), w, xp.full_like(w, xp.nan))

        if not system.ridge.present:
            return Minimum(unique(w), *kept)
        lam = system.ridge.lam
        return Minimum(backend.when(~namespace_of(lam).all(lam > 0), unique, w), *kept)

    def argmin(self, backend: Backend, system: Any, factor: Minimum, y: Array) -> Array:
        return factor.w

    def refine(
        self, backend: Backend, system: Any, factor: Minimum, y: Array, w: Array, r: Array
    ) -> tuple[Array, Array]:
        if not (self.adjoined and _is_squares(system.loss) and self._by_products(system)):
            return w, r
        # the digits of the factor that the adjoint needs, where the Hessian of the steps was a product
        g = system.back(system.loss.slope(r, system.y, system.weights), w)
        w = w - self._solved(backend, system, factor, w, r, g)
        return w, system.M.matvec(w)

    def adjoint(
        self, backend: Backend, system: Any, factor: Minimum, c: Array, y: Array, w: Array, r: Array
    ) -> Adjoint:
        v = self._solved(backend, system, factor, w, system.M.matvec(w), c)
        return Adjoint(system.M.matvec(v), (), v)

    def _solved(self, backend: Backend, system: Any, factor: Minimum, w: Array, z: Array, c: Array) -> Array:
        """``H^-1 c``, H the Hessian at w."""
        factored = system.loss.by_entry and self.inner.exact and not factor.shared
        if system.loss.convex and (factored or self.coupled):
            near, target = self._near(system, z, system.loss.second)
            return self._inverse(backend, near, self._hessian(backend, near, factor), target, w, c)
        bend = system.loss.bend(z, system.y, system.weights)
        P = factor.shared or self._preconditioner(backend, system, w, z)
        return _conjugate_gradients(backend, system, bend, P, c, limit=self._limit)[0]

    def improved(self, backend: Backend, system: Any, factor: Minimum, g: Array, y: Array, w: Array, r: Array) -> Array:
        return w

    def diagnose(self, backend: Backend, system: Any, factor: Minimum, y: Array) -> Diagnosis:
        """Of the level of least squares near its w, or near a first prediction where there is no w."""
        xp, loss = namespace_of(y), system.loss
        z = system.M.matvec(factor.w)
        found, h = xp.all(xp.isfinite(z)), loss.second if _is_squares(loss) else loss.model
        z = xp.where(found, z, loss.start(y))
        near, target = self._near(system, z, lambda *given: xp.where(found, h(*given), loss.scoring(*given)))
        return self.inner.diagnose(backend, near, self.inner.factor(backend, near), target)

    # -- steps

    def _minimum(self, backend: Backend, system: Any) -> tuple[Array, Any]:
        """The minimiser, NaN where none is found, and the inverse of a Hessian near it, see `_shared`."""
        first, step = partial(self._first, backend, system), partial(self._step, backend, system)
        w, _, (shared, _) = descended(backend, system.value, step, system.start, first, *self._unshared(system))
        return w, shared

    def _first(self, backend: Backend, system: Any) -> Array:
        """A first w: fitted to what the loss makes of the target; of classes 0."""
        y = system.y
        if not (system.loss.by_entry or self.constrained):
            zeros: Array = namespace_of(y).zeros((system.M.shape[1], y.shape[1]), dtype=y.dtype, device=device(y))
            return zeros
        z = system.loss.start(y)
        near, target = self._near(system, z, system.loss.scoring)
        inner = self.inner.to(ROUGH, ROUGH) if isinstance(self.inner, LSMR) else self.inner
        found: Array = inner.argmin(backend, near, inner.factor(backend, near), target)
        return namespace_of(y).reshape(found, (-1, y.shape[1]))

    def _step(
        self, backend: Backend, system: Any, w: Array, z: Array, error: Array, shared: Any, n: Array
    ) -> tuple[Array, Array, Any, Array]:
        """The Newton step at w, the square of its decrement, its length by the Hessian, 0-d, and what the next takes.

        `error` is that of w, relative, by the last step; `shared` the inverse of a Hessian near that at w, with which
        the last step took n products.
        """
        if self._by_products(system):
            if shared:
                shared = backend.when(n > WORTH, lambda _: self._shared(backend, system, z), shared)
            slope, bend = self._derivatives(system, z)
            g = system.back(slope, w)
            tol = namespace_of(error).clip(error, FINE if system.loss.by_entry else COARSE, ROUGH)
            P = shared or self._preconditioner(backend, system, w, z)
            d, n = _conjugate_gradients(backend, system, bend, P, -g, tol, self._limit)
            return d, -inner(g, d), shared, n
        g = system.back(system.loss.slope(z, system.y, system.weights), w)
        near, target = self._near(system, z, system.loss.model)
        factor = self.inner.factor(backend, near)
        if self.constrained:
            d = namespace_of(w).reshape(self.inner.argmin(backend, near, factor, target), w.shape) - w
        else:
            d = -self._inverse(backend, near, factor, target, w, g)
        # no more than minus the slope along d, which in a set is lost to rounding: g is a multiplier there
        q = near.M.matvec(self._column(d))
        square = inner(q, q)
        return d, square + near.ridge.coupling(d, d) if near.ridge.present else square, shared, n

    def _derivatives(self, system: Any, z: Array) -> tuple[Array, Callable[[Array], Array]]:
        """The slope of the loss and the map of its curvature, those of a step's model."""
        given = z, system.y, system.weights
        if not system.loss.by_entry:
            slope, _, bend = system.loss.derivatives(*given)
            return slope, bend
        h = system.loss.model(*given)
        return system.loss.slope(*given), lambda d: h * d

    def _by_products(self, system: Any) -> bool:
        """Whether steps are solved by products with the Hessian: of one column that takes half the time of a factor."""
        if self.constrained:
            return False
        one = isinstance(self.inner, QR) and system.y.shape[1] == 1
        return one or not (system.loss.by_entry and self.inner.exact)

    def _hessian(self, backend: Backend, near: System, factor: Minimum) -> Any:
        """The factor of the Hessian at w, made when it is first asked for."""
        if not isinstance(factor.kept, list):
            return self.inner.factor(backend, near)
        if not factor.kept:
            factor.kept.append(self.inner.factor(backend, near))
        return factor.kept[0]

    def _unshared(self, system: Any) -> tuple[Any, Array]:
        """What a first step is given: no inverse of a Hessian yet, () where steps have no use for one."""
        y, n = system.y, system.M.shape[1]
        xp, kind = namespace_of(y), {"dtype": y.dtype, "device": device(y)}
        used = self._by_products(system) and not isinstance(self.inner, LSMR) and system.M.columns is None
        shared = _Shared(xp.zeros((n, n), **kind), xp.ones((), **kind)) if used else ()
        return shared, xp.asarray(WORTH + 1 if used else 0, dtype=xp.int32, device=device(y))

    def _shared(self, backend: Backend, system: Any, z: Array) -> Any:
        """The inverse of the Hessian near z with the mean curvature of all columns."""
        return _of_weights(backend, system, self._mean_curvature(system, z))

    def _serving(self, backend: Backend, system: Any, shared: Any) -> Any:
        """The same where adjoints may have it: a factor has twice the digits of a product."""
        if not shared or not system.loss.by_entry:
            return shared
        lost = namespace_of(shared.half).finfo(shared.half.dtype).eps * shared.condition**2
        return shared if system.loss.convex and backend.holds(lost < LOST) else ()

    def _preconditioner(self, backend: Backend, system: Any, w: Array, z: Array) -> Callable[[Array], Array]:
        """The inverse of a Hessian near that at w, on the face of w."""
        if isinstance(self.inner, LSMR):
            near = System(Weighted(system.M, namespace_of(z).sqrt(self._mean_curvature(system, z))), system.ridge)
            return self.inner.normal(near, self.inner.factor(backend, near)).precondition
        if not system.loss.by_entry:
            return self._shared(backend, system, z) if system.M.columns is None else lambda r: r
        near, target = self._near(system, z, system.loss.model)
        return partial(self._inverse, backend, near, self.inner.factor(backend, near), target, w)

    def _mean_curvature(self, system: Any, z: Array) -> Array:
        """The mean curvature of a row of z, (m, 1)."""
        return namespace_of(z).mean(system.loss.model(z, system.y, system.weights), axis=1, keepdims=True)

    @property
    def _limit(self) -> int:
        return self.inner.limit if isinstance(self.inner, LSMR) else PRODUCTS

    def _near(self, system: Any, z: Array, curvature: Callable[..., Array]) -> tuple[System, Array]:
        """The level of least squares near z, and its target."""
        if self.coupled:
            return cast(LossSystem, system).joined(z, curvature)
        return cast(LossSystem, system).squares(z, curvature(z, system.y, system.weights))

    def _column(self, w: Array) -> Array:
        return as_one(w, w.shape[1]) if self.coupled else w

    def _inverse(self, backend: Backend, system: System, factor: Any, y: Array, w: Array, c: Array) -> Array:
        """``H^-1 c`` of a level of least squares; w says on which face of a set."""
        column = self._column(w)
        r = system.M.residual(column, y)
        v: Any = self.inner.adjoint(backend, system, factor, self._column(c), y, column, r).v
        return namespace_of(w).reshape(v, w.shape)


def _is_squares(loss: Loss) -> bool:
    """Whether a loss is a weighted square to second order."""
    return loss.by_entry and loss.convex


def descended(
    backend: Backend,
    at: Callable[[Array], tuple[Array, Any]],
    step: Callable[..., tuple[Any, ...]],
    start: Any,
    first: Callable[[], Array],
    *given: Any,
) -> tuple[Array, Array, tuple[Any, ...]]:
    """The minimiser by steps ``d, decrement, *given = step(w, found, error, *given)``, as `Newton` makes them.

    ``value, found = at(w)`` is the objective, and steps are halved until it falls. Where there is no start, or the
    objective is not finite there, `first` makes one. With the minimiser, NaN where none is found, come the value and
    what the last step gave.
    """
    none = isinstance(start, tuple)
    w = first() if none else start
    xp, eps = namespace_of(w), namespace_of(w).finfo(w.dtype).eps
    zero = xp.zeros(w.shape[:-2], dtype=w.dtype, device=device(w))
    alpha = zero + (0.5 if none else 1)  # which says that w is a start that was given
    steps = xp.zeros(zero.shape, dtype=xp.int32, device=device(w))
    begin = Descent(w, xp.zeros_like(w), alpha, zero + inf, zero, zero == 0, zero > 0, steps, given)

    def advance(now: Descent) -> Descent:
        w = now.w + now.alpha[..., None, None] * now.d
        value, found = at(w)
        before, known = now.decrement, now.decrement > 0
        falls = value <= now.value - SUFFICIENT * now.alpha * before + rounding(xp, now.value)
        # a small step is taken: values may hide what it brings in the rounding of predictions, where terms cancel
        small = known & (before <= eps**0.5 * xp.abs(now.value))
        taken = now.running & xp.isfinite(value) & (falls | small)

        def onwards() -> Descent:
            size = xp.abs(value)
            error = xp.where(known, (before / positive_or_one(size)) ** 0.5, ROUGH)
            d, decrement, *given = step(w, found, error, *now.given)
            ratio = decrement / positive_or_one(before)
            # a step leaves this share of what it found, or the square of it
            left = decrement * xp.where(known & (ratio < 1), ratio, 1)
            end = (left <= eps**1.5 * size) | (known & (decrement <= eps**0.5 * size) & (ratio > SLOW))
            steps = now.steps + 1
            lost = ~(decrement >= 0) | ~(end | (steps < STEPS))
            return Descent(w, d, 1 + zero, value, decrement, ~end & ~lost, lost, steps, tuple(given))

        def back() -> Descent:
            known = xp.isfinite(now.value)
            fresh = now.running & ~taken & ~known & (now.alpha == 1)
            w = backend.when(xp.any(fresh), lambda w: select(backend, fresh, first(), w), now.w)
            lost = now.running & ~fresh & ~(known & (now.alpha > SHORTEST))
            running, failed = now.running & ~lost, now.failed | lost
            return now._replace(w=w, alpha=0.5 * now.alpha, running=running, failed=failed)

        return cast(Descent, either(backend, taken, onwards, back))

    last = backend.while_loop(lambda state: xp.any(state.running), advance, begin)
    w = select(backend, last.failed, xp.full_like(last.w, xp.nan), last.w + last.d)
    return w, last.value - 0.5 * last.decrement, last.given


# -- conjugate gradients -----------------------------------------------------------------------------------------------


def _conjugate_gradients(
    backend: Backend,
    system: Any,
    bend: Callable[[Array], Array],
    precondition: Callable[[Array], Array],
    c: Array,
    tol: Any = None,
    limit: int = PRODUCTS,
) -> tuple[Array, Array]:
    """``H^-1 c`` to a relative residual, or to rounding, NaN where that is not reached, and the number of products.

    It is NaN too where H is not positive. The second derivative of the loss is `bend`. The solution is of the range of
    the preconditioner, such as a face of a set; of classes, what H leaves open has no part in it.
    """
    xp = namespace_of(c)
    least = (4 * xp.finfo(c.dtype).eps if tol is None else tol) ** 2
    c = _seen(system, c)

    def product(v: Array) -> Array:
        found: Array = system.back(bend(system.predicted(v)), v)
        return found

    def solve(v: Array, r: Array, whole: Array) -> tuple[Array, Array]:
        s = _seen(system, precondition(r))
        rho = inner(r, s)
        n = xp.zeros((), dtype=xp.int32, device=device(rho))

        def going(state: tuple[Array, ...]) -> Array:
            return (state[3] > least * whole) & (state[4] < limit)

        def step(state: tuple[Array, ...]) -> tuple[Array, ...]:
            (v, r), p, rho, n = state[:2], *state[2:]
            q = product(p)
            curved = inner(p, q)
            alpha = rho / xp.where(curved > 0, curved, xp.nan)
            r = r - alpha * q
            s = _seen(system, precondition(r))
            fresh = inner(r, s)
            return v + alpha * p, r, s + (fresh / positive_or_one(rho)) * p, fresh, n + 1

        found, *_, rho, n = backend.while_loop(going, step, (v, r, s, rho, n))
        reached = (rho >= 0) & (n < limit) if tol is None else rho >= 0
        return xp.where(reached, found, xp.nan), n

    whole = inner(c, precondition(c))
    v, n = solve(0 * c, c, whole)
    if tol is None:  # residuals that are carried along drift
        v, n = solve(v, c - product(v), whole)
    return _seen(system, v), n


class _Shared(NamedTuple):
    """The inverse of a Hessian that all columns of w share."""

    half: Array  # its root
    condition: Array  # of the root, by pivots, 0-d

    def __call__(self, r: Array) -> Array:
        found: Array = self.half.mT @ (self.half @ r)
        return found


def _of_weights(backend: Backend, system: Any, h: Array) -> _Shared:
    """The inverse of a Hessian with the same curvatures h for all columns, (m, 1)."""
    ridge, xp = system.ridge, namespace_of(h)
    A = system.M.dense()
    rows = xp.sqrt(h) * A
    G = rows.mT @ rows
    n, eps = G.shape[0], xp.finfo(G.dtype).eps
    if ridge.present:
        below = ridge.dense(A)
        G = G + (below.mT @ below if below.ndim == 2 else xp.mean(below.mT @ below, axis=0))
    size = xp.sqrt(positive_or_one(xp.linalg.diagonal(G)))[:, None]
    eye = xp.eye(n, dtype=G.dtype, device=device(G))
    L = backend.cholesky(G / (size * size.mT) + 10 * n * eps * eye)
    share = xp.linalg.diagonal(L)
    # products with the inverse are good enough here, and not every framework has a substitution of one vector
    return _Shared(backend.solve_triangular(L, eye, lower=True) / size.mT, xp.max(share) / xp.min(share))


def _seen(system: Any, v: Array) -> Array:
    """Without what the loss of classes does not see: one vector added to all columns, which is 0 in w.

    A ridge of its own for each class sees that.
    """
    ridge = system.ridge
    if system.loss.by_entry or ridge.columns is not None:
        return v
    return v - namespace_of(v).mean(v, axis=1, keepdims=True)
