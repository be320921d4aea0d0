"""The lower level of a loss: Newton's method, each step of which is a weighted level of least squares."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from operator import mul
from typing import Any, NamedTuple, cast, final

from xvarpro.backends import Backend
from xvarpro.backends.interface import either, select
from xvarpro.core.namespace import device, namespace_of, positive_or_one
from xvarpro.core.struct import REQUIRED, Array
from xvarpro.core.trees import inner, rounding
from xvarpro.losses.interface import Loss
from xvarpro.lower.hessian import PRODUCTS, Shared, conjugate_gradients, of_weights
from xvarpro.lower.interface import Adjoint, Diagnosis, LowerSolver, System
from xvarpro.lower.krylov import LSMR
from xvarpro.lower.qr import QR
from xvarpro.lower.stack import as_one
from xvarpro.operators import Weighted

# at most: steps, of a level without a minimum w grows without end; halvings; halvings that count as a step
STEPS, HALVINGS, SEARCH = 100, 40, 10
SUFFICIENT = 1e-4  # share of the decrease that the slope promises, which a step has to bring
# ratios of squared Newton decrements between which, once they are small, only rounding is left: one that grows by more
# is on its way from a bound, near which the curvature of the model is large
SLOW, GROWS = 0.25, 100
# relative residual of systems of conjugate gradients for a step: the error of w, from the first of these to the second,
# to the third for losses of entries, where the inverse of the Hessian is nearly known
ROUGH, COARSE, FINE = 0.1, 1e-4, 1e-6
WORTH = 12  # products of the last step from which on a new preconditioner, which takes some of them, is worth its time
# A prediction that is far too small grows by a factor of 2 in a step. Where a first w, fitted within a set, has such,
# relative to those that it was fitted to, it goes a share towards equal weights, which predict something wherever a
# column does.
THIN, SHARE = 1e-3, 0.1
LOST = 1e-11  # relative error up to which adjoints do with a product's inverse: eps times the condition squared


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
            xp, (near, target) = namespace_of(w), self._near(system, system.residual(w), system.loss.model)
            found = self.inner.argmin(backend, near, self.inner.factor(backend, near), target)
            return xp.where(xp.all(xp.isfinite(found)), w, xp.full_like(w, xp.nan))

        if not (system.ridge.present and system.ridge.square):
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
        w = w - self._solved(backend, system, factor, w, r, system.slope(w, r))
        return w, system.residual(w)

    def adjoint(
        self, backend: Backend, system: Any, factor: Minimum, c: Array, y: Array, w: Array, r: Array
    ) -> Adjoint:
        v = self._solved(backend, system, factor, w, system.residual(w), c)
        return Adjoint(system.M.matvec(v), (), v)

    def _solved(self, backend: Backend, system: Any, factor: Minimum, w: Array, z: Array, c: Array) -> Array:
        """``H^-1 c``, H the Hessian at w."""
        factored = system.loss.by_entry and self.inner.exact and not factor.shared
        if system.loss.convex and (factored or self.coupled):
            near, target = self._near(system, z, system.loss.second)
            return self._inverse(backend, near, self._hessian(backend, near, factor), target, w, c)
        bend = system.loss.bend(z, system.y, system.weights)
        P = factor.shared or self._preconditioner(backend, system, w, z)
        return conjugate_gradients(backend, system, bend, P, c, limit=self._limit)[0]

    def improved(self, backend: Backend, system: Any, factor: Minimum, g: Array, y: Array, w: Array, r: Array) -> Array:
        return w

    def diagnose(self, backend: Backend, system: Any, factor: Minimum, y: Array) -> Diagnosis:
        """Of the level of least squares near its w, or near a first prediction where there is no w."""
        xp, loss = namespace_of(y), system.loss
        z = system.residual(factor.w)
        found, h = xp.all(xp.isfinite(z)), loss.second if _is_squares(loss) else loss.model
        z = xp.where(found, z, loss.start(y))
        near, target = self._near(system, z, lambda *given: xp.where(found, h(*given), loss.scoring(*given)))
        return self.inner.diagnose(backend, near, self.inner.factor(backend, near), target)

    # -- steps

    def _minimum(self, backend: Backend, system: Any) -> tuple[Array, Any]:
        """The minimiser, NaN where none is found, and the inverse of a Hessian near it, see `_shared`."""
        first = [partial(self._first, backend, system)]
        if system.loss.positive:
            level = [] if self.constrained else [partial(_level, system)]
            first += [*level, partial(self._first, backend, system._replace(y=flat(system.y)))]
        step = partial(self._step, backend, system)
        w, _, (shared, _) = descended(backend, system.at, step, system.start, first, *self._unshared(system))
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
        factor, xp = inner.factor(backend, near), namespace_of(y)
        found: Array = xp.reshape(inner.argmin(backend, near, factor, target), (-1, y.shape[1]))
        if not (system.loss.positive and self.constrained):
            return found

        def even() -> Array:
            made = inner.argmin(backend, near, factor, near.M.matvec(self._column(_level(system))))
            return xp.reshape(made, found.shape)

        return inwards(backend, found, even, system.residual, z)

    def _step(
        self, backend: Backend, system: Any, w: Array, z: Array, error: Array, shared: Any, n: Array
    ) -> tuple[Array, Array, Any, Array]:
        """The Newton step at w, the square of its decrement, its length by the Hessian, 0-d, and what the next takes.

        `error` is that of w, relative, by the last step; `shared` the inverse of a Hessian near that at w, with which
        the last step took n products.
        """
        g = system.slope(w, z)
        if self._by_products(system):
            if shared:
                shared = backend.when(n > WORTH, lambda _: self._shared(backend, system, z), shared)
            given, loss = (z, system.y, system.weights), system.loss
            bend = partial(mul, loss.model(*given)) if loss.by_entry else loss.bend(*given)
            tol = namespace_of(error).clip(error, FINE if loss.by_entry else COARSE, ROUGH)
            P = shared or self._preconditioner(backend, system, w, z)
            d, n = conjugate_gradients(backend, system, bend, P, -g, tol, self._limit)
            return d, -inner(g, d), shared, n
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
        shared = Shared(xp.zeros((n, n), **kind), xp.ones((), **kind)) if used else ()
        return shared, xp.asarray(WORTH + 1 if used else 0, dtype=xp.int32, device=device(y))

    def _shared(self, backend: Backend, system: Any, z: Array) -> Any:
        """The inverse of the Hessian near z with the mean curvature of all columns."""
        return of_weights(backend, system, self._mean_curvature(system, z))

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
        found: tuple[System, Array] = (system.joined if self.coupled else system.squares)(z, curvature)
        return found

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
    first: Sequence[Callable[[], Array]],
    *given: Any,
) -> tuple[Array, Array, tuple[Any, ...]]:
    """The minimiser by steps ``d, decrement, *given = step(w, found, error, *given)``, as `Newton` makes them.

    ``value, found = at(w)`` is the objective, and steps are halved until it falls. Where there is no start, or the
    objective is not finite there, `first` makes others, one after the other. With the minimiser, NaN where none is
    found, come the value and what the last step gave.
    """
    none = isinstance(start, tuple)
    w = first[0]() if none else start
    xp, eps = namespace_of(w), namespace_of(w).finfo(w.dtype).eps
    zero = xp.zeros(w.shape[:-2], dtype=w.dtype, device=device(w))
    alpha = zero + (0.5 if none else 1)  # halved with every start
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
            rounded = known & (decrement <= eps**0.5 * size) & (ratio > SLOW) & (ratio < GROWS)
            end = (left <= eps**1.5 * size) | rounded
            steps = now.steps + SEARCH
            lost = ~(decrement >= 0) | ~(end | (steps < SEARCH * STEPS))
            return Descent(w, d, 1 + zero, value, decrement, ~end & ~lost, lost, steps, tuple(given))

        def back() -> Descent:
            known = xp.isfinite(now.value)
            w, begun = now.w, known
            for n, make in enumerate(first):
                fresh = now.running & ~taken & ~known & (now.alpha == 0.5**n)
                w = backend.when(xp.any(fresh), partial(_instead, backend, fresh, make), w)
                begun = begun | fresh
            lost = now.running & ~(begun & (now.alpha > 0.5**HALVINGS) & (now.steps < SEARCH * STEPS))
            running, failed = now.running & ~lost, now.failed | lost
            return now._replace(w=w, alpha=0.5 * now.alpha, running=running, failed=failed, steps=now.steps + 1)

        return cast(Descent, either(backend, taken, onwards, back))

    last = backend.while_loop(lambda state: xp.any(state.running), advance, begin)
    w = select(backend, last.failed, xp.full_like(last.w, xp.nan), last.w + last.d)
    return w, last.value - 0.5 * last.decrement, last.given


def inwards(
    backend: Backend, w: Array, even: Callable[[], Array], predicted: Callable[[Array], Array], z: Array
) -> Array:
    """`w`, where it predicts too little of z a `SHARE` towards `even`, from where no prediction is negative on."""
    xp, mean = namespace_of(w), predicted(w)
    thin = xp.any(mean < THIN * z, axis=-2, keepdims=True)

    def inside(w: Array) -> Array:
        to = even()
        below = xp.maximum(-mean, xp.zeros_like(mean))
        share = xp.max(below / positive_or_one(predicted(to) + below), axis=-2, keepdims=True)
        share = xp.minimum(share, xp.ones_like(share))
        share = share + SHARE * (1 - share)
        return xp.where(thin, (1 - share) * w + share * to, w)

    return cast(Array, backend.when(xp.any(thin), inside, w))


def flat(y: Array) -> Array:
    """The mean of a target in its place: what a background fits, whatever the units of its columns."""
    return namespace_of(y).mean(y, axis=-2, keepdims=True) + 0 * y


def _instead(backend: Backend, where: Array, make: Callable[[], Array], w: Array) -> Array:
    return cast(Array, select(backend, where, make(), w))


def _level(system: Any) -> Array:
    """All columns of the design with the same weight, but for their signs; predictions add up to the target."""
    y, xp = system.y, namespace_of(system.y)
    w = xp.sign(system.M.rmatvec(xp.ones_like(y)))
    whole, one = (xp.sum(system.weights * x, axis=0) for x in (y, system.M.matvec(w)))
    return w * (whole / positive_or_one(one))
