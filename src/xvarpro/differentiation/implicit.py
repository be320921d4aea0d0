"""The derivative of a solution with respect to the data of its problem, by the implicit function theorem.

A solution of ``min f(theta, data) over C`` is a fixed point ``theta = P(theta - s g)``, with P the projection onto C, g
the gradient of f and any step s > 0. With J the derivative of P there and H the Hessian of f, the implicit function
theorem gives ``d theta = J (d theta - s H d theta - s dg)`` for a change dg of the gradient by the data. Pulled back,
for cotangents c of theta and e of the value,

```
(J^+ - I + s H) u = c  on the range of J,      data cotangent = e df/d(data) - d<s u, g>/d(data)
```

The system is symmetric, and positive definite where the solution is a strict minimum of second order. How the solution
was computed does not enter. Source: Blondel et al., Efficient and Modular Implicit Differentiation (NeurIPS 2022), the
projected gradient fixed point.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from xvarpro.backends import Backend
from xvarpro.core import trees
from xvarpro.core.namespace import device as device_of
from xvarpro.core.namespace import namespace_of, positive_or_one
from xvarpro.core.struct import Array, Leaves, Tree
from xvarpro.differentiation.conjugate_gradients import CGResult, conjugate_gradients
from xvarpro.differentiation.hessian import ReducedHessian
from xvarpro.driver.prepare import Prepared, prepare
from xvarpro.errors import ProblemError
from xvarpro.objective.reduced import Reduced
from xvarpro.problem.column_chunks import ColumnChunks
from xvarpro.problem.problem import Problem, refuse_marginal
from xvarpro.sets.projection import crossed, degenerate, jacobian, jacobian_error, range_projector
from xvarpro.sets.region import Region

__all__ = ["Cotangent", "DifferentiabilityWarning", "Sensitivity", "gradient"]


class DifferentiabilityWarning(UserWarning):
    """A solution has no derivative, or not a unique one, where it was asked for: the message says why."""


class Cotangent(NamedTuple):
    """Gradient of a loss with respect to a solution; None for 0.

    Attributes
    ----------
    theta : pytree of arrays, optional
        As theta.
    w : array, optional
        As `Result.w`, shape (n,) or (n, k).
    value : array, 0-d, or float, optional
    """

    theta: Tree = None
    w: Array | None = None
    value: Array | float | None = None


class Sensitivity(NamedTuple):
    """A gradient with respect to `data`, and whether it is valid.

    Attributes
    ----------
    data : pytree
        As the problem's `data`: gradients of its floating-point arrays in theta's framework, None for all else.
    degenerate : bool
        A constraint on theta or w is active with multiplier 0: the one-sided derivatives differ, and this is one of
        them or between them.
    singular : bool
        The objective has no curvature in some direction of the face, or the design is rank deficient: the solution is
        not unique nearby, and this is the derivative of least norm.
    residual : float
        Relative residual of the linear system, or the relative rounding of its products, where that is larger.
    steps : int
        Number of products with the Hessian.
    """

    data: Tree
    degenerate: bool
    singular: bool
    residual: float
    steps: int

    @property
    def reasons(self) -> list[str]:
        """Why the gradient may be invalid, in sentences; empty if it is valid."""
        return reasons(self.degenerate, self.singular, self.residual)


Bars: TypeAlias = tuple[Leaves, Array, Array]  # cotangents of theta, w (n, k) and the value

TOL = 1e-10  # relative residual of the linear system, where the dtype allows it
UNSOLVED = 1e-3  # relative residual above which the system counts as not solved


def reasons(degenerate: float, singular: float, residual: float) -> list[str]:
    """Sentences on why a gradient may be invalid; the first two arguments are flags."""
    said = []
    if degenerate:
        said.append(
            "a constraint is active with a multiplier of zero, so the solution has different derivatives to each side"
        )
    if singular:
        said.append(
            "the solution is not unique nearby, or theta runs off, as where units such as tanh saturate, so the "
            "derivative of least norm was taken: bounds (over) or a penalty (mu, R) on theta can make it unique, where "
            "the solve has ended with success"
        )
    if not residual <= UNSOLVED:
        said.append(
            f"the linear system was solved to a relative residual of {residual:.1g} only: raise limit; or lam is small "
            "and M has more columns than rows: leave out Omega and W, as by M Omega^-1 in the place of M"
        )
    return said


def warn(degenerate: float, singular: float, residual: float) -> None:
    """Give a `DifferentiabilityWarning` if there is a reason for one."""
    if said := reasons(degenerate, singular, residual):
        message = f"the gradient of the solution may be invalid: {'; '.join(said)}"
        warnings.warn(message, DifferentiabilityWarning, stacklevel=2)


def gradient(
    problem: Problem,
    theta: Tree,
    cotangent: Cotangent,
    *,
    over: Tree = None,
    limit: int | None = None,
    backend: str | Backend | None = None,
    device: Any = None,
    dtype: str | None = None,
) -> Sensitivity:
    """Pull a cotangent of the solution of ``xv.solve(problem, ...)`` back to the problem's `data`.

    Parameters
    ----------
    problem : Problem
        Targets and ridges to differentiate by are functions of `data`: ``y=lambda theta, data: data["y"]``.
    theta : pytree of arrays
        The solution, ``Result.theta``. Its relative error becomes one of the gradient, larger by as much as curvature
        changes with theta: where single precision ends a solve early, solve in double.
    cotangent : Cotangent
        Gradient of the loss with respect to theta, w and value.
    over : Set, Free or a tree of them, optional
        As for `solve`. Every set needs a projection, or is a polytope with faces.
    limit : int, optional
        Products with the Hessian at most; by default four per entry of theta, and no more than 1000.
    backend, device, dtype : optional
        Where to compute, as for `solve`.

    Returns
    -------
    Sensitivity

    Raises
    ------
    ProblemError
        As `solve`; the cotangents do not fit; a level is in chunks; a solver or a set has no derivative.

    Examples
    --------
    The rate of a decay is proportional to the inverse of the time unit, ``theta(c t) = theta(t) / c``:

    >>> import numpy as np, xvarpro as xv
    >>> def M(theta, data):
    ...     xp = xv.array_namespace(theta)
    ...     return xp.exp(-xp.expand_dims(data["t"], axis=1) * theta)
    >>> t = np.linspace(0.0, 1.0, 20)
    >>> problem = xv.separable(M, np.exp(-3.0 * t), data={"t": t})
    >>> fit = xv.solve(problem, np.array([2.0]), tol=1e-9)
    >>> found = xv.implicit.gradient(problem, fit.theta, xv.implicit.Cotangent(theta=np.array([1.0])))
    >>> round(float(found.data["t"] @ t), 6)
    -3.0
    """
    prepared = ready(problem, theta, over=over, backend=backend, device=device, dtype=dtype)
    with prepared.backend.scope(prepared.dtype):
        by_data, *scalars = pull(prepared, prepared.theta, move(prepared, cotangent), limit)
        flags = numbers(prepared, scalars)
    data = unflatten(problem.data, [prepared.layout.array(g, prepared.backend) for g in by_data])
    return Sensitivity(data, bool(flags[0]), bool(flags[1]), flags[2], int(flags[3]))


def ready(
    problem: Problem,
    theta: Tree,
    *,
    over: Tree = None,
    backend: str | Backend | None = None,
    device: Any = None,
    dtype: str | None = None,
) -> Prepared:
    """`prepare` a problem whose solution is to be differentiated: uncompressed, since w is needed by column."""
    if isinstance(problem, Problem):
        refuse_marginal(problem, "derivatives of a solution are of", "Pass the problem that it was made of")
        if problem.in_rows or any(isinstance(level.y, ColumnChunks) for level in problem.levels):
            raise ProblemError("y must be in memory for derivatives of a solution; got it in chunks. Pass one array")
        problem = trees.changed(problem, compress=False)
    return prepare(problem, theta, over=over, backend=backend, device=device, dtype=dtype)


def pull(prepared: Prepared, theta: Leaves, bars: Bars, limit: int | None = None) -> tuple[Any, ...]:
    """The fields of a `Sensitivity` as arrays, from cotangents of theta, w (n, k) and the value.

    The first of them is the tuple of gradients with respect to the arrays of `differentiable`.
    """
    return _call(_pull, prepared, limit, theta, bars)


def pull_twice(prepared: Prepared, theta: Leaves, bars: Bars, along: Leaves) -> tuple[Leaves, Leaves, Leaves]:
    """Pull a cotangent `along` of the gradients of `pull` back to the data and to `bars`; with the arguments of `warn`.

    The gradient by `bars` is the derivative of the solution along `along`, from one more linear system. The one by the
    data is the derivative of `pull` along `along`, since a Hessian is symmetric: by central differences. Theta at their
    ends is that of the linear model: its error, of second order, is the same at both, so that nothing is solved again.
    """
    return _call(_pull_twice, prepared, None, theta, bars, along)


def _call(fun: Callable[..., Any], prepared: Prepared, limit: int | None, *args: Any) -> Any:
    """``fun(at, problem, *args)``, compiled where the backend compiles; ``at(problem, theta)`` is a `_FixedPoint`."""
    operands, skeleton = trees.partition((prepared.problem, prepared.region))
    assemble: Callable[..., Any] = prepared.assemble  # a `Reduced`: there are no chunks

    def make(operands: Leaves) -> Callable[..., Any]:
        problem, region = skeleton.fill(operands)

        def at(problem: Problem, theta: Leaves) -> _FixedPoint:
            return _FixedPoint(assemble(problem).with_lower_tolerance(0.0), region, limit, theta)

        return partial(fun, at, problem)

    with prepared.backend.scope(prepared.dtype):
        key = fun, skeleton, prepared.layout.treedef, prepared.structure, limit
        return prepared.backend.call(make, key)(operands, *args)


def differentiable(data: Tree) -> list[int]:
    """Which leaves of `data` are arrays of floating-point numbers."""
    return [i for i, x in enumerate(trees.leaves(data)) if trees.is_array(x) and trees.is_inexact(x)]


def unflatten(data: Tree, gradients: Iterable[Array]) -> Tree:
    """Gradients of the differentiable leaves in the structure of `data`, None elsewhere."""
    leaves, treedef = trees.flatten(data)
    by_leaf = dict(zip(differentiable(data), gradients, strict=True))
    return trees.unflatten(treedef, [by_leaf.get(i) for i in range(len(leaves))])


def numbers(prepared: Prepared, scalars: Iterable[Array]) -> list[float]:
    """0-d arrays on the host."""
    on = prepared.backend
    return on.to_floats([on.xp.astype(x, prepared.theta[0].dtype) for x in scalars])


def move(prepared: Prepared, cotangent: Cotangent) -> Bars:
    """A cotangent as arrays of the backend: as theta, (n, k) and 0-d."""
    xp, theta, structure = prepared.backend.xp, prepared.theta, prepared.structure
    bars = tuple(xp.zeros_like(x) for x in theta)
    kind = trees.complexified(bars[0]) if structure.complex_w else bars[0]
    if cotangent.theta is not None:
        leaves, treedef = trees.flatten(cotangent.theta)
        if treedef != prepared.layout.treedef or any(x.shape != y.shape for x, y in zip(leaves, theta, strict=True)):
            shapes = [tuple(x.shape) for x in theta]
            raise ProblemError(
                f"the cotangent of theta must have theta's structure and shapes {shapes}; "
                f"got {[tuple(x.shape) for x in leaves]}"
            )
        bars = tuple(prepared.to_backend(x) for x in leaves)
    n, k = structure.w_shape
    if cotangent.w is None:
        w = xp.zeros((n, k), dtype=kind.dtype, device=device_of(kind))
    elif tuple(cotangent.w.shape) in ((n, k), *([(n,)] if k == 1 else [])):
        w = xp.astype(xp.reshape(prepared.to_backend(cotangent.w), (n, k)), kind.dtype)
    else:
        raise ProblemError(f"the cotangent of w must have shape {(n, k)}; got {tuple(cotangent.w.shape)}")
    value = 0.0 if cotangent.value is None else float(cotangent.value)
    return bars, w, xp.full_like(trees.corner(theta[0]), value)


class _FixedPoint:
    """The projected gradient step at one theta, and what follows from its derivative."""

    def __init__(self, f: Reduced, region: Region, limit: int | None, theta: Leaves) -> None:
        backend = f.backend
        self.hessian = hessian = ReducedHessian(f, theta)
        self.constrained_w = f.problem.lower.W is not None
        # every step s > 0 gives the same derivative; this one scales s H to 1, and so the whole system
        z = trees.signs(theta)
        s = (trees.dot(z, z) / hessian.bound(z)) ** 0.5
        xp = namespace_of(s)
        s = xp.where(xp.isfinite(s), s, xp.ones_like(s))
        q = trees.axpy(-s, hessian.gradient, theta)
        self.s, self.theta, self.region, self.J = s, theta, region, jacobian(backend, region, theta, q)
        self.degenerate = degenerate(region, theta, q, self.J) | (hessian.kinks > 0)
        self.noise = jacobian_error(backend, region, xp.finfo(s.dtype).eps)
        self._solve = partial(
            conjugate_gradients,
            backend,
            self.J,
            range_projector(region, theta, q, self.J),
            lambda u: hessian.product(trees.scaled(s, u)),
            zeros=hessian.data_zeros,
            noise=self.noise,
            limit=min(4 * sum(math.prod(x.shape) for x in theta) + 20, 1000) if limit is None else limit,
        )

    def pull(self, bars: Bars, tol: float) -> tuple[Any, ...]:
        """The fields of a `Sensitivity`, as `pull`."""
        hessian = self.hessian
        theta_bar, w_bar, value_bar = bars
        by_theta, by_data = hessian.pull_w(w_bar)
        solved = self._solve(trees.plus(theta_bar, by_theta), tol=max(tol, 4 * self.noise))
        data = tuple(
            direct + value_bar * slope - indirect
            for direct, slope, indirect in zip(by_data, hessian.data_gradient, solved.image, strict=True)
        )
        return data, *self._flags(solved), solved.steps

    def push(self, along: Leaves) -> tuple[Any, ...]:
        """Derivatives of theta, w and the value along a change of the data, then the arguments of `warn`."""
        hessian = self.hessian
        by_theta, _ = hessian.product(tuple(0 * x for x in hessian.gradient), along)
        solved = self._solve(trees.scaled(-self.s, by_theta), tol=max(TOL, 4 * self.noise))
        change = *solved.u, hessian.push_w(solved.u, along), trees.dot(hessian.data_gradient, along)
        return change, *self._flags(solved)

    def _flags(self, solved: CGResult) -> tuple[Any, Array, Array]:
        """The arguments of `warn`."""
        residual = namespace_of(solved.residual).maximum(solved.residual, self.hessian.rounding)
        return self.degenerate, solved.singular | self.hessian.truncated, residual

    def crossed(self, other: _FixedPoint) -> Array:
        """Whether other constraints are active at a point nearby, 0-d bool."""
        found = crossed(self.region, self.theta, self.J, other.J)
        if self.constrained_w:
            found = found | namespace_of(found).any(self.hessian.free != other.hessian.free)
        return found


At: TypeAlias = Callable[[Problem, Leaves], _FixedPoint]


def _pull(at: At, problem: Problem, theta: Leaves, bars: Bars) -> tuple[Any, ...]:
    return at(problem, theta).pull(bars, TOL)


def _pull_twice(at: At, problem: Problem, theta: Leaves, bars: Bars, along: Leaves) -> tuple[Any, ...]:
    change, *flags = at(problem, theta).push(along)
    arrays, held = trees.partition(problem.data)
    data = tuple(x for x in arrays if trees.is_inexact(x))
    theta_dot = change[: len(theta)]
    h = _step(theta, theta_dot, data, along)

    def nearby(step: Array) -> _FixedPoint:
        supply = iter(trees.axpy(step, along, data))
        moved = held.fill([next(supply) if trees.is_inexact(x) else x for x in arrays])
        return at(trees.changed(problem, data=moved), trees.axpy(step, theta_dot, theta))

    ends = nearby(h), nearby(-h)
    # an error of these systems is divided by the step
    (ahead, *found, _), (behind, *other, _) = (end.pull(bars, tol=0.0) for end in ends)
    kink = flags[0] | found[0] | other[0] | ends[0].crossed(ends[1])
    by_data = tuple((a - b) / (2 * h) for a, b in zip(ahead, behind, strict=True))
    return by_data, change, (kink, flags[1] | found[1] | other[1], flags[2] + found[2] + other[2])


def _step(theta: Leaves, change: Leaves, data: Leaves, along: Leaves) -> Array:
    """The step of the differences, which balances an error of its square with rounding divided by it.

    No array of the data moves by more than ``eps^(1/3)`` of its largest entry, or of 1 if it is 0. Nor does theta where
    that shortens the step to ``eps^(1/8)`` of it at most: a theta near 0 would leave none.
    """
    xp = namespace_of(*theta)
    eps = xp.finfo(theta[0].dtype).eps

    def ratio(x: Array, d: Array) -> Array:
        size, top = xp.max(xp.abs(x)), xp.max(xp.abs(d))
        return xp.where(top > 0, positive_or_one(size) / positive_or_one(top), xp.inf)

    pairs = zip(data, along, strict=True)
    longest = xp.min(xp.stack([ratio(x, d) for x, d in pairs if math.prod(x.shape)]))
    h = xp.maximum(ratio(trees.raveled(theta), trees.raveled(change)), eps ** (1 / 8) * longest)
    h = xp.minimum(h, longest)
    return eps ** (1 / 3) * xp.where(xp.isfinite(h), h, xp.ones_like(h))
