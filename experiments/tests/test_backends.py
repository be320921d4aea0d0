"""Every experiment at small size, on data that NumPy draws: what NumPy computes, every backend computes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from xvarpro_experiments import autoencoder, deconvolution, dictionary, fewshot

import xvarpro as xv
from tests.support import HOST_BACKENDS


def sparse_autoencoder():
    X = np.random.default_rng(0).normal(size=(24, 6))
    return autoencoder.problem(X, 1e-3, 1e-2), autoencoder.start(6, [4, 3], gain=0.6), autoencoder.over()


def dictionary_learning():
    X = np.abs(np.random.default_rng(1).normal(size=(9, 30)))
    return dictionary.problem(X, 1e-3), dictionary.start(X, 4), xv.sets.L1Ball(1.0)


def blind_deconvolution():
    Y = deconvolution.signals(4, 16).Y
    return deconvolution.problem(Y, 1e-2), deconvolution.start(Y), xv.sets.L2Ball(1.0)


def few_shots():
    rng = np.random.default_rng(3)
    splits = [fewshot.Split(rng.normal(size=(3, 5)), fewshot.targets(np.arange(3), 3)) for _ in range(2)]
    theta0 = {"A": 0.4 * rng.normal(size=(5, 6)), "b": np.zeros(6)}
    return fewshot.problem(fewshot.layer, *splits, 0.3), theta0, None


OTHERS = [pytest.param(name, marks=pytest.mark.frameworks) for name in HOST_BACKENDS[2:]]


@pytest.mark.parametrize("other", ["array-api-strict", *OTHERS])
@pytest.mark.parametrize("case", [sparse_autoencoder, dictionary_learning, blind_deconvolution, few_shots])
def test_the_papers_method_is_the_same_on_every_backend(case, other):
    """Objectives and gradients at one point and the end of five iterations, by the tolerances of `compare`."""
    problem, theta0, over = case()
    if other == "jax" and case is not blind_deconvolution:  # SVD compiles sooner, of matrices that are dense
        problem = replace(problem, lower=replace(problem.lower, solver=xv.lower.SVD()))
    found = xv.compare(
        problem, theta0, over=over, backends=["numpy", other], algorithm=xv.algorithms.cr_varpro(), max_iter=5
    )
    assert found.agree, str(found)
    assert [fit.n_iter for fit in found.fits.values()] == [5, 5]
