"""Reference problems evaluated and solved on a target, and on NumPy in double precision once for all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

import xvarpro as xv
from xvarpro.algorithms.interface import Algorithm
from xvarpro.backends import adapters
from xvarpro.core import trees
from xvarpro.core.struct import Array, Leaves, Tree
from xvarpro.driver.prepare import prepare
from xvarpro.objective.interface import Objective
from xvarpro_conformance.problems import Reference
from xvarpro_conformance.references.sets import known
from xvarpro_conformance.suite import NUMPY, Target


class Evaluated(NamedTuple):
    """The reduced objective at a point, on the host.

    Attributes
    ----------
    value : array, 0-d
    gradient : array, shape (entries of theta,)
    w : array, shape (n, k)
        Of a compressed target where that is compressed.
    """

    value: np.ndarray
    gradient: np.ndarray
    w: np.ndarray


def flat(tree: Tree) -> np.ndarray:
    """All numbers of a tree of NumPy arrays, float64."""
    return np.concatenate([np.ravel(np.asarray(x, np.float64)) for x in trees.leaves(tree)])


def evaluate(target: Target, reference: Reference, theta: Tree = None, compiled: bool = True) -> Evaluated:
    """Value, gradient and weights on a target, by default at theta0."""
    prepared = prepare(
        reference.problem,
        reference.theta0 if theta is None else theta,
        backend=target.backend if compiled else adapters.uncompiled(target.backend),
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
        backend=target.backend if compiled else adapters.uncompiled(target.backend),
        device=target.device,
        dtype=target.dtype,
    )


def matrix(reference: Reference, theta: Tree) -> np.ndarray:
    """The lower design, by NumPy."""
    return np.asarray(reference.problem.lower.M(theta, reference.problem.data))


def condition(reference: Reference, theta: Tree) -> float:
    """Of what a QR factors, with columns of length 1: ``[M; sqrt(lam) I]``, or of a wide M ``[M^T; sqrt(lam) I]``."""
    M, lam = matrix(reference, theta), float(np.asarray(reference.problem.lower.lam))
    M = M.T if M.shape[0] < M.shape[1] and lam else M
    K = np.vstack([M, lam**0.5 * np.eye(M.shape[1])])
    return float(np.linalg.cond(K / np.linalg.norm(K, axis=0)))


def floor(reference: Reference) -> float:
    """What rounding of the objective is relative to: the larger of |f| at the start and ``1/2 |y|^2``."""
    y = np.asarray(reference.problem.levels[-1].y)
    return max(float(evaluate(NUMPY, reference).value), 0.5 * float(np.sum(y * y)))


class Certified(NamedTuple):
    """What a result says of a theta, of both blocks."""

    value: float
    gap_A: float
    gap_B: float
    w: np.ndarray
    violation: float


def certified(reference: Reference, theta: Tree) -> Certified:
    """At a theta, by the objective of NumPy in double precision and by the definition of the set."""
    here, blocks = evaluate(NUMPY, reference, theta), theta if isinstance(theta, dict) else {"": theta}
    over = reference.over if isinstance(reference.over, dict) else {"": reference.over}
    names, gap_A, gap_B, off = sorted(blocks), 0.0, 0.0, 0.0
    parts = np.split(here.gradient, np.cumsum([blocks[name].size for name in names])[:-1])
    for name, g in zip(names, parts, strict=True):
        if name not in over:
            gap_B = float(np.linalg.norm(g))
            continue
        of, x = known(over[name], g.shape), np.ravel(blocks[name])
        gap_A, off = float(g @ x + of.support(-g)), float(of.outside(x))
    return Certified(float(here.value), gap_A, gap_B, here.w, off)


def value_tolerance(eps: float, condition: float) -> float:
    """Of an objective, relative."""
    return max(100 * eps, eps * condition)


def gradient_tolerance(eps: float, condition: float) -> float:
    """Of a gradient, relative to its norm."""
    return 30 * eps * condition
