"""Reference problems evaluated and solved on a target, and on NumPy in double precision once for all of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np

import xvarpro as xv
from xvarpro import backends
from xvarpro.algorithms.interface import Algorithm
from xvarpro.core import trees
from xvarpro.core.struct import Array, Leaves, Tree
from xvarpro.driver.prepare import prepare
from xvarpro.objective.interface import Objective
from xvarpro_conformance.problems import Reference
from xvarpro_conformance.suite import Measured, Target

NUMPY = Target(backends.get("numpy"), "cpu", "float64")


class Evaluated(NamedTuple):
    """The reduced objective at a point, on the host.

    Attributes
    ----------
    value : array, 0-d
    gradient : array, shape (entries of theta,)
    w : array, shape (n, k), optional
        Of a compressed target where that is compressed.
    """

    value: np.ndarray
    gradient: np.ndarray
    w: np.ndarray | None = None


def flat(tree: Tree) -> np.ndarray:
    """All numbers of a tree of NumPy arrays, float64."""
    return np.concatenate([np.ravel(np.asarray(x, np.float64)) for x in trees.leaves(tree)])


def evaluate(target: Target, reference: Reference, theta: Tree = None, compiled: bool = True) -> Evaluated:
    """Value, gradient and weights on a target, by default at theta0."""
    prepared = prepare(
        reference.problem,
        reference.theta0 if theta is None else theta,
        backend=target.backend if compiled else backends.uncompiled(target.backend),
        device=target.device,
        dtype=target.dtype,
    )
    value, gradient, w = prepared.call(_evaluated, prepared.theta)
    with target.scope():
        return Evaluated(target.host(value), flat([target.host(x) for x in gradient]), target.host(w))


def _evaluated(objective: Objective, theta: Leaves) -> tuple[Array, Leaves, Array]:
    point, gradient = objective.value_and_gradient(theta)
    return point.value, gradient, point.w


def solve(
    target: Target,
    reference: Reference,
    algorithm: Algorithm | None,
    max_iter: int,
    compiled: bool = False,
    tol: float = 0.0,
    callback: Callable[[xv.IterationInfo], bool | None] | None = None,
) -> xv.Result:
    """A solve of that many iterations from theta0, unless no step improves before.

    Operation by operation unless `compiled`: a framework that compiles takes ten seconds and more for a loop of some
    methods, and the text of a method is the same in both.
    """
    return xv.solve(
        reference.problem,
        reference.theta0,
        over=reference.over,
        algorithm=algorithm,
        tol=tol,
        max_iter=max_iter,
        progress=False,
        callback=callback,
        backend=target.backend if compiled else backends.uncompiled(target.backend),
        device=target.device,
        dtype=target.dtype,
    )


def certify(reference: Reference, theta: Tree) -> xv.Result:
    """Value, gap, violation and condition at a point, by NumPy in double precision."""
    leaves, treedef = trees.flatten(theta)
    theta = trees.unflatten(treedef, [np.asarray(x, np.float64) for x in leaves])
    over = xv.sets.Free() if reference.over is None else reference.over
    return xv.solve(reference.problem, xv.project(theta, over), over=reference.over, max_iter=0, progress=False)


@cache
def condition(make: Callable[[], Reference]) -> float:
    """Of the lower level at theta0: what rounding is multiplied by."""
    reference = make()
    return max(1.0, certify(reference, reference.theta0).verified.condition)


def value_tolerance(eps: float, condition: float) -> float:
    """Of an objective, relative."""
    return max(100 * eps, eps * condition)


def gradient_tolerance(eps: float, condition: float) -> float:
    """Of a gradient, relative to its norm."""
    return 30 * eps * condition


def compared(eps: float, cond: float, got: Evaluated, want: Evaluated) -> tuple[Measured, Measured]:
    """Value and gradient, each in its tolerance."""
    return (
        Measured("value", got.value, want.value, value_tolerance(eps, cond)),
        Measured("gradient", got.gradient, want.gradient, gradient_tolerance(eps, cond)),
    )
