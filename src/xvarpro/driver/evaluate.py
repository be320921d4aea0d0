"""The reduced objective at one point, w there, and the nearest feasible point."""

from __future__ import annotations

from typing import Any, NamedTuple

from xvarpro.backends import Backend, modules
from xvarpro.core import trees
from xvarpro.core.namespace import dtype_name
from xvarpro.core.struct import Array, Leaves, Tree
from xvarpro.driver.model_check import check_unchanged, check_value
from xvarpro.driver.outcome import diagnosed
from xvarpro.driver.prepare import Prepared, prepare
from xvarpro.driver.weights import coefficients
from xvarpro.errors import ProblemError, warn_caller
from xvarpro.objective.interface import Objective
from xvarpro.problem.problem import Problem
from xvarpro.results.outcome import dependence, empty_columns, joined
from xvarpro.sets.region import resolve


def value_and_gradient(
    problem: Problem,
    theta: Tree,
    backend: str | Backend | None = None,
    *,
    device: Any = None,
    dtype: str | None = None,
) -> tuple[Array, Tree]:
    """Reduced objective and its exact gradient at theta.

    Parameters
    ----------
    problem : Problem
    theta : pytree of arrays, or a module
        float32 or float64, all of one framework.
    backend, device, dtype
        Where to compute; theta's own by default.

    Returns
    -------
    value : array, 0-d
    gradient : pytree of arrays
        Both in theta's framework and on its device; that of a module is a dict by dotted name.

    Raises
    ------
    ProblemError, ModelError, ExchangeError
        As `solve`.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> def M(theta, data):
    ...     xp = xv.array_namespace(theta)
    ...     return xp.exp(-xp.expand_dims(data, axis=1) * theta)
    >>> t = np.linspace(0.0, 1.0, 20)
    >>> problem = xv.separable(M, np.exp(-2.0 * t), data=t)
    >>> value, gradient = xv.value_and_gradient(problem, np.array([2.0]))
    >>> bool(value < 1e-25), bool(abs(gradient[0]) < 1e-12)
    (True, True)
    """
    prepared = prepare(problem, theta, backend=backend, device=device, dtype=dtype)
    value, gradient = prepared.call(evaluated, prepared.theta)
    check_value(value, prepared.dtype)
    check_unchanged(problem, prepared.fingerprints)
    layout = prepared.layout
    return layout.array(value, prepared.backend), modules.by_name(layout.measures(gradient, prepared.backend))


def evaluated(objective: Objective, theta: Leaves) -> tuple[Array, Leaves]:
    """The value, 0-d, and the gradient."""
    point, gradient = objective.value_and_gradient(theta)
    return point.value, gradient


class LowerFit(NamedTuple):
    """The lower level solved at one theta.

    Attributes
    ----------
    w : array, shape (n,) or (n, k)
        Its solution for the target as given.
    value : array, 0-d
        The reduced objective.
    """

    w: Array
    value: Array


def solve_lower(
    problem: Problem,
    theta: Tree,
    backend: str | Backend | None = None,
    *,
    device: Any = None,
    dtype: str | None = None,
) -> LowerFit:
    """The weights w at a given theta, such as codes of new data for a dictionary that is known, and the objective.

    Parameters
    ----------
    problem : Problem
    theta : pytree of arrays
        float32 or float64, all of one framework. It need not be a solution.
    backend, device, dtype
        Where to compute; theta's own by default.

    Returns
    -------
    LowerFit
        w and the value, in theta's framework and on its device.

    Raises
    ------
    ProblemError, ModelError, ExchangeError
        As `solve`.

    Warns
    -----
    RuntimeWarning
        w is not finite; the message says why.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> problem = xv.separable(lambda theta, data: theta * data, np.array([1.0, 2.0]), data=np.array([[1.0], [1.0]]))
    >>> xv.solve_lower(problem, np.array([0.5]))
    LowerFit(w=array([3.]), value=array(0.25))
    """
    prepared = prepare(problem, theta, backend=backend, device=device, dtype=dtype)
    value, w = prepared.call(_value_and_w, prepared.theta)
    check_value(value, prepared.dtype)
    value = prepared.layout.array(value, prepared.backend)
    with prepared.backend.scope(prepared.dtype):
        finite = bool(prepared.backend.xp.all(prepared.backend.xp.isfinite(w)))
    if not finite:
        warn_caller(f"w is not finite. {_why_not(prepared, w)}", RuntimeWarning)
    if prepared.compressed:
        return LowerFit(joined(coefficients(prepared, prepared.theta)), value)
    check_unchanged(problem, prepared.fingerprints)
    return LowerFit(prepared.w_to_caller(w), value)


def _why_not(prepared: Prepared, w: Array) -> str:
    if said := empty_columns(prepared.original.lower):
        return said
    report = prepared.call(diagnosed, prepared.theta, once=True)
    if bool(report.deficient) and bool(report.finite):
        return dependence(prepared.original.lower, w.shape[0])
    found = "M(theta) or the target is not, or the search in W has not ended."
    return " ".join(prepared.problem.advice) or found


def _value_and_w(objective: Objective, theta: Leaves) -> tuple[Array, Array]:
    return objective.value_and_w(theta)


def project(theta: Tree, over: Tree) -> Tree:
    """Nearest feasible point of theta, leaf by leaf, as `solve` understands `over`.

    Parameters
    ----------
    theta : pytree of arrays
    over : Set, Free or a tree of them

    Returns
    -------
    pytree of arrays

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> xv.project({"a": np.array([7.0]), "s": np.array([3.0, 1.0])}, {"s": xv.sets.CappedSimplex(2.0)})
    {'a': array([7.]), 's': array([2., 0.])}
    """
    theta = modules.taken(theta)
    leaves, names, treedef = trees.named(theta)
    for x, name in zip(leaves, names, strict=True):
        if not trees.is_array(x):
            raise ProblemError(f"{name} must be an array; got {type(x).__name__}")
        if not trees.is_inexact(x):
            raise ProblemError(f"{name} must hold floating-point numbers; got dtype {dtype_name(x)}. Convert it")
    region = resolve(over, theta)
    for i, C in region.constrained:
        if trees.is_complex(leaves[i]) and not C.takes_complex:
            raise ProblemError(f"{names[i]} must be real to be projected onto {C!r}; got dtype {dtype_name(leaves[i])}")
    return modules.own(trees.unflatten(treedef, region.project(tuple(leaves))))
