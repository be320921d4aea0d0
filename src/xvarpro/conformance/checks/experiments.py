"""The paper's experiments at small size, on data that NumPy draws: value, gradient, and a few steps of its method."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import numpy as np

import xvarpro as xv
from xvarpro.algorithms import cr_varpro
from xvarpro.conformance import evaluation
from xvarpro.conformance.problems import Reference, held
from xvarpro.conformance.suite import Measured, Target, alternate, check, named
from xvarpro.experiments import autoencoder, deconvolution, dictionary, edges, fewshot

STEPS = 5
# of the objective, and ten times that of theta, after as many steps
ENDS = {"float64": 1e-10, "float32": 3e-3}


def sparse_autoencoder() -> Reference:
    """Example 1: two levels, a gain for every latent, a network with two layers."""
    X = held(np.random.default_rng(0).normal(size=(24, 6)))
    theta0 = autoencoder.start(6, [4, 3], gain=0.6)
    return Reference(autoencoder.problem(X, 1e-3, 1e-2), theta0, autoencoder.over())


def dictionary_learning() -> Reference:
    """Example 2: nonnegative images of nine pixels, four atoms."""
    X = held(np.abs(np.random.default_rng(1).normal(size=(9, 30))))
    return Reference(dictionary.problem(X, 1e-3), dictionary.start(X, 4), xv.sets.L1Ball(1.0))


def blind_deconvolution() -> Reference:
    """Example 3: signals that share a kernel."""
    Y = held(deconvolution.signals(4, 16).Y)
    return Reference(deconvolution.problem(Y, 1e-2), deconvolution.start(Y), xv.sets.L2Ball(1.0))


def blind_deblurring() -> Reference:
    """Example 3 in two dimensions: edges of an image, a kernel of three by three."""
    g = held(edges.differences(np.random.default_rng(2).normal(size=(10, 9)), taper=2))
    return Reference(edges.problem(g, 3), edges.start(g), xv.sets.L1Ball(1.0))


def few_shots() -> Reference:
    """Example 4: two splits of an example for each of three classes, a wide head below a layer of the network."""
    rng = np.random.default_rng(3)
    Y = fewshot.targets(np.arange(3), 3)
    splits = [fewshot.Split(held(rng.normal(size=(3, 5))), Y) for _ in range(2)]
    theta0 = {"A": held(0.4 * rng.normal(size=(5, 6))), "b": np.zeros(6)}
    return Reference(fewshot.problem(fewshot.layer, splits[0], splits[1], 0.3), theta0, None)


@cache
def cases() -> dict[str, Callable[[], Reference]]:
    """By name."""
    return named((sparse_autoencoder, dictionary_learning, blind_deconvolution, blind_deblurring, few_shots))


@check("experiments", cases)
def small_sizes(target: Target, make: Callable[[], Reference]) -> Iterator[Measured]:
    """Value and gradient of NumPy in double precision, and the paper's method ends where it does there.

    All of it operation by operation: the operations are the same, and a framework compiles each of them once for both.
    """
    target.represent(alternate(list(cases().values()).index(make)))
    yield from evaluation.compared(
        target.eps,
        evaluation.condition(make),
        evaluation.evaluate(target, make(), compiled=False),
        evaluation.right(make),
    )
    got, want = evaluation.solve(target, make(), cr_varpro(), STEPS), wanted(make)
    tolerance = ENDS[target.dtype]
    yield Measured("objective at the end", got.value, want.value, tolerance)
    yield Measured("theta at the end", evaluation.flat(got.theta), evaluation.flat(want.theta), 10 * tolerance)


@cache
def wanted(make: Callable[[], Reference]) -> xv.Result:
    """The solve by NumPy in double precision."""
    return evaluation.solve(evaluation.NUMPY, make(), cr_varpro(), STEPS)
