"""The derivative of a solution with respect to the data of its problem, without a look at how it was found.

With ``L(theta, w, v) = f_U - <grad_w f_L, v>`` (`Reduced.lagrangian`) second derivatives of the reduced objective are
products with the Hessian of L and solves with the factorisation of the lower level. A solution is a fixed point
``theta = P(theta - s g)``, g the gradient, P the projection onto the region, s > 0; with J the derivative of P and H
the Hessian of the reduced objective that gives, for the cotangents c of theta and e of the value,

```
(J^+ - I + s H) u = c  on the range of J,      data cotangent = e df/d(data) - d<s u, g>/d(data)
```

a symmetric system, positive definite at a minimum that second derivatives show to be one.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from xvarpro.core import trees
from xvarpro.core.namespace import array_namespace
from xvarpro.core.struct import Array, Leaves, Tree
from xvarpro.differentiation.conjugate_gradients import conjugate_gradients
from xvarpro.differentiation.hessian import Stationary
from xvarpro.differentiation.projection import degenerate, derivative, noise, seen
from xvarpro.driver.prepare import Prepared, prepare
from xvarpro.errors import ProblemError
from xvarpro.objective.least_squares import as_kind, complexified
from xvarpro.objective.reduced import Reduced
from xvarpro.problem.column_chunks import ColumnChunks
from xvarpro.problem.problem import Problem


class DifferentiabilityWarning(UserWarning):
    """A solution has no derivative, or not a unique one, where it was asked for: the message says why."""


class Cotangent(NamedTuple):
    """What a loss makes of a solution: its gradient with respect to theta, w and the value, None for 0.

    Attributes
    ----------
    theta : pytree of arrays, optional
        As theta.
    w : array, optional
        As `Result.w`, shape (n,) or (n, k).
    value : array, 0-d, or float, optional
    """

    theta: Tree = None
    w: Any = None
    value: Any = None


class Sensitivity(NamedTuple):
    """A gradient with respect to `data`, and whether it stands.

    Attributes
    ----------
    data : pytree
        As the problem's `data`: gradients of its floating-point arrays in theta's framework, None for all else.
    degenerate : bool
        A bound is active with a multiplier of 0, or a weight at its bound is: there are derivatives to each side, and
        this is one of them or between them.
    singular : bool
        The objective has no curvature in some direction of the face, or the design lost its rank: the solution is not
        unique nearby. What is given is the least change of it.
    residual : float
        Of the linear system, relative.
    steps : int
        Products with the Hessian that it took.
    """

    data: Tree
    degenerate: bool
    singular: bool
    residual: float
    steps: int

    @property
    def reasons(self) -> list[str]:
        """Why the gradient does not stand, in sentences; empty where it does."""
        return reasons(self.degenerate, self.singular, self.residual)


class Found(NamedTuple):
    """`Sensitivity` as arrays."""

    data: Leaves
    degenerate: Array
    singular: Array
    residual: Array
    steps: Array


TOL = 1e-10  # relative residual of the linear system, where the dtype allows it
UNSOLVED = 1e-3  # above it the system counts as not solved


def reasons(unequal: float, singular: float, residual: float) -> list[str]:
    """Sentences for a gradient that does not stand; the first two are flags."""
    said = []
    if unequal:
        said.append(
            "a constraint is active with a multiplier of zero, so the solution has different derivatives to each side"
        )
    if singular:
        said.append("the solution is not unique nearby, so its least change was taken")
    if not residual <= UNSOLVED:
        said.append(f"the linear system was solved to a relative residual of {residual:.1g} only: raise limit")
    return said


def warn(unequal: float, singular: float, residual: float) -> None:
    """A `DifferentiabilityWarning`, where there is a reason for one."""
    if said := reasons(unequal, singular, residual):
        warnings.warn(
            f"the gradient of a solution does not stand: {'; '.join(said)}", DifferentiabilityWarning, stacklevel=2
        )


def gradient(
    problem: Problem,
    theta: Tree,
    cotangent: Cotangent,
    *,
    over: Tree = None,
    limit: int | None = None,
    backend: Any = None,
    device: Any = None,
    dtype: str | None = None,
) -> Sensitivity:
    """Pull a cotangent of the solution of ``xv.solve(problem, ...)`` back to the problem's `data`.

    Parameters
    ----------
    problem : Problem
        Targets and ridges that are to have a gradient are functions of `data`: ``y=lambda theta, data: data["y"]``.
    theta : pytree of arrays
        The solution, ``Result.theta``. An error of it becomes one of the gradient, of the same relative order.
    cotangent : Cotangent
        Gradient of the loss with respect to theta, w and value.
    over : Set, Free or a tree of them, optional
        As `solve` was given it. Every set needs a projection, or is a polytope with faces.
    limit : int, optional
        Products with the Hessian at most; None is four per entry of theta, and no more than 1000.
    backend, device, dtype : optional
        Where to compute, as for `solve`.

    Returns
    -------
    Sensitivity

    Raises
    ------
    ProblemError
        What `solve` refuses; cotangents that do not fit; a level in chunks; a solver or a set without derivatives.

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
    bars = _bars(prepared, cotangent)
    found = pull(prepared, prepared.theta, bars, limit)
    backend = prepared.backend
    flags = backend.to_floats([backend.xp.astype(x, prepared.theta[0].dtype) for x in found[1:]])
    layout = prepared.layout
    data = unflatten(problem.data, [layout.array(g, backend) for g in found.data])
    return Sensitivity(data, bool(flags[0]), bool(flags[1]), flags[2], int(flags[3]))


def ready(problem: Problem, theta: Tree, **options: Any) -> Prepared:
    """As `prepare`, for a problem whose solution is to be differentiated."""
    if isinstance(problem, Problem):
        if problem.in_rows or any(isinstance(level.y, ColumnChunks) for level in problem.levels):
            raise ProblemError("a level in chunks has no derivative with respect to its data: bring it together")
        problem = trees.changed(problem, compress=False)  # w is asked for by column
    return prepare(problem, theta, **options)


def pull(prepared: Prepared, theta: Leaves, bars: tuple[Leaves, Array, Array], limit: int | None) -> Found:
    """The gradient with respect to the arrays of `differentiable`, from cotangents of theta, w (n, k) and the value."""
    operands, skeleton = trees.partition((prepared.problem, prepared.region))
    assemble: Any = prepared.assemble

    def make(operands: Leaves) -> Callable[..., tuple[Any, ...]]:
        problem, region = skeleton.fill(operands)
        return partial(_pull, assemble(problem).sharp(), region, limit)

    with prepared.backend.scope(prepared.dtype):
        run = prepared.backend.call(make, ("implicit", skeleton, prepared.layout.treedef, limit))
        return Found(*run(operands, theta, bars))


def differentiable(data: Tree) -> list[int]:
    """Which of the leaves of `data` are arrays of floating-point numbers."""
    return [i for i, x in enumerate(trees.leaves(data)) if trees.is_array(x) and trees.is_inexact(x)]


def unflatten(data: Tree, gradients: Any) -> Tree:
    """Gradients of the differentiable leaves in the structure of `data`, None elsewhere."""
    leaves, treedef = trees.flatten(data)
    out: list[Any] = [None] * len(leaves)
    for i, g in zip(differentiable(data), gradients, strict=True):
        out[i] = g
    return trees.unflatten(treedef, out)


def _bars(prepared: Prepared, cotangent: Cotangent) -> tuple[Leaves, Array, Array]:
    """A cotangent as arrays of the backend, shaped like what it belongs to."""
    backend, theta = prepared.backend, prepared.theta
    zeros = tuple(backend.xp.zeros_like(x) for x in theta)
    bars = zeros
    if cotangent.theta is not None:
        leaves, treedef = trees.flatten(cotangent.theta)
        if treedef != prepared.layout.treedef or any(x.shape != y.shape for x, y in zip(leaves, theta, strict=True)):
            raise ProblemError("the cotangent of theta must have the structure and the shapes of theta")
        bars = tuple(prepared.to_backend(x) for x in leaves)
    n, k = prepared.structure.w_shape
    kind = complexified(zeros[0]) if prepared.structure.complex_w else zeros[0]
    if cotangent.w is None:
        w = backend.xp.zeros((n, k), dtype=kind.dtype, device=backend.device_of(kind))
    elif tuple(cotangent.w.shape) in ((n, k), *([(n,)] if k == 1 else [])):
        w = backend.xp.reshape(prepared.to_backend(cotangent.w), (n, k))
        w = backend.xp.astype(w, kind.dtype)
    else:
        raise ProblemError(f"the cotangent of w must have shape {(n, k)}, got {tuple(cotangent.w.shape)}")
    value = 0.0 if cotangent.value is None else float(cotangent.value)
    return bars, w, backend.xp.full_like(trees.corner(theta[0]), value)


def _pull(
    f: Reduced, region: Any, limit: int | None, theta: Leaves, bars: tuple[Leaves, Array, Array]
) -> tuple[Any, ...]:
    backend = f.backend
    theta_bar, w_bar, value_bar = bars
    at = Stationary(f, theta)
    xp = array_namespace(value_bar)
    by_theta, by_data = at.through_w(w_bar)
    c = trees.plus(theta_bar, by_theta)

    # any step is right that brings the system to scale 1: both of its parts grow with it
    z = trees.signs(theta)
    s = (trees.dot(z, z) / at.bound(z)) ** 0.5
    s = xp.where(xp.isfinite(s), s, xp.ones_like(s))

    q = trees.axpy(-s, at.gradient, theta)
    J = derivative(backend, region, theta, q)
    most = min(4 * sum(math.prod(x.shape) for x in theta) + 20, 1000) if limit is None else limit
    eps = xp.finfo(value_bar.dtype).eps
    options = {"tol": max(TOL, 4 * eps), "noise": noise(backend, region, eps), "limit": most}
    blank = tuple(array_namespace(x).zeros_like(x) for x in by_data)
    solved = conjugate_gradients(
        backend, J, seen(region, J), lambda u: at.product(trees.scaled(s, u)), c, blank, **options
    )
    data = tuple(
        direct + as_kind(value_bar, slope) * slope - indirect
        for direct, slope, indirect in zip(by_data, at.data_gradient, solved.beside, strict=True)
    )
    unequal = degenerate(region, theta, q, J) | (at.kinks > 0)
    return data, unequal, solved.singular | at.lost, solved.residual, solved.steps
