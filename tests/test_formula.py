"""The hand-written cotangents of the reduced gradient against the VJP of its Lagrangian, with any w and v held fixed.

No solver has a part in it: the identity is one of the formula, for every w and v.
"""

from __future__ import annotations

import numpy as np

import xvarpro as xv
from xvarpro.core import trees
from xvarpro.driver.prepare import prepare
from xvarpro.lower.interface import Adjoint
from xvarpro.objective.least_squares import LowerSolution

from . import test_levels, test_reduced
from .support import error, rng

KINDS = test_reduced.CASES | {kind: (problem, test_levels.START) for kind, problem in test_levels.PROBLEMS.items()}
# on frameworks other than NumPy: the formula has none in it
FEW = ("Omega", "bilevel upper ridge Omega", "bilevel operator", "complex, two levels",
          "ridge by theta, two levels", "mask")  # fmt: skip


def by_hand(f, theta, w, v):
    outputs, pullback = f.linearise(theta)
    low, upper = f.levels(outputs)
    r = low.residual(w)
    adjoint = None if f.problem.is_separable else Adjoint(low.M.matvec(v), ((r, v),), v)
    return pullback(f.cotangents(outputs, LowerSolution(w, r, upper.residual(w), adjoint)))


def of_lagrangian(f, theta, w, v):
    fixed, skeleton = trees.partition((f.problem, w, *(() if f.problem.is_separable else (v,))))

    def value(*arrays):
        problem, *held = skeleton.fill(arrays[len(theta) :])
        return (f.with_problem(problem).lagrangian(arrays[: len(theta)], *held),)

    (value,), pullback = f.backend.vjp(value, theta, fixed)
    return pullback((xv.array_namespace(value).ones_like(value),))


def test_cotangents_are_the_vjp_of_the_lagrangian(backend, subtests):
    for kind in KINDS if backend.name == "numpy" else FEW[:: 2 if backend.name == "jax" else 1]:
        with subtests.test(kind):
            assert difference(kind, backend.name) <= 1e-12


def difference(kind, name):
    """Of both ways, for weights and adjoints that are drawn."""
    problem, theta = KINDS[kind]
    prepared = prepare(problem, theta, backend=name)
    draw = rng(3)
    held = [draw.normal(size=prepared.structure.w_shape) for _ in range(2)]
    if prepared.structure.complex_w:
        held = [x + 1j * draw.normal(size=x.shape) for x in held]
    with prepared.backend.scope("float64"):
        w, v = map(prepared.backend.asarray, held)
    got, want = (prepared.call(way, prepared.theta, w, v) for way in (by_hand, of_lagrangian))
    return error(got, want)


def test_the_adjoint_part_is_not_zero():
    """The identity would hold without it, were v of no effect."""
    prepared = prepare(*KINDS["bilevel upper ridge Omega"])
    w, v = (np.ones(prepared.structure.w_shape) * x for x in (1.0, 0.5))
    with_v, without = (prepared.call(by_hand, prepared.theta, w, x) for x in (v, 0 * v))
    assert error(with_v, without) > 1e-3
