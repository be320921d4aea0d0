"""The same problem on every backend, against NumPy in float64: values, gradients, and whole solves step by step."""

from __future__ import annotations

import numpy as np
import optree
import pytest

import xvarpro as xv
from conformance import problems

# the paper's full steps to a vertex zero columns: that is the method, and not what is compared here
pytestmark = pytest.mark.filterwarnings("ignore::xvarpro.DeadUnitsWarning")

ALGORITHMS = (
    xv.algorithms.cr_varpro(),
    xv.algorithms.FrankWolfe(blocks=xv.algorithms.Separate()),
    xv.algorithms.AcceleratedProjectedGradient(),
    xv.algorithms.SpectralProjectedGradient(),
    xv.algorithms.ProjectedQuasiNewton(base=xv.algorithms.AcceleratedProjectedGradient()),
)


def flat(tree):
    return np.concatenate([np.ravel(x) for x in optree.tree_leaves(tree)])


@pytest.fixture(params=problems.ALL, ids=lambda make: make.__name__)
def reference(request):
    return request.param()


def test_value_and_gradient(backend, reference):
    f, g = xv.value_and_gradient(reference.problem, reference.theta0)
    f_there, g_there = xv.value_and_gradient(reference.problem, reference.theta0, backend=backend)
    assert abs(f - f_there) <= 1e-12 * abs(f)
    assert np.max(np.abs(flat(g) - flat(g_there))) <= 1e-11 * np.max(np.abs(flat(g)))


def test_value_and_gradient_in_single_precision(backend, reference):
    f, g = xv.value_and_gradient(reference.problem, reference.theta0)
    with pytest.warns(xv.PrecisionWarning, match="float64"):
        f_there, g_there = xv.value_and_gradient(reference.problem, reference.theta0, backend=backend, dtype="float32")
    assert str(f_there.dtype) == "float32"
    assert abs(f - f_there) <= 1e-4 * abs(f)
    assert np.max(np.abs(flat(g) - flat(g_there))) <= 1e-2 * np.max(np.abs(flat(g)))


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda a: type(a).__name__)
def test_whole_solves(backend, reference, algorithm):
    """The first iterations step by step, and the same objective after fifty."""
    # a two-point step length divides one difference by another: rounding grows tenfold in some iterations
    spectral = isinstance(algorithm, xv.algorithms.SpectralProjectedGradient)
    iterations, rtol = (10, 1e-7) if spectral else (50, 1e-9)
    here, there = (
        xv.solve(
            reference.problem,
            reference.theta0,
            over=reference.over,
            algorithm=algorithm,
            tol=0.0,
            max_iter=iterations,
            backend=b,
        )
        for b in ("numpy", backend)
    )
    common = min(20, here.n_iter, there.n_iter)
    for field in ("value", "alpha_A", "alpha_B"):
        a, b = getattr(here.trace, field), getattr(there.trace, field)
        np.testing.assert_allclose(b[:common], a[:common], rtol=rtol)
    assert abs(here.value - there.value) <= rtol * here.value


def test_armijo_takes_identical_steps(backend, reference):
    """Powers of delta have no rounding: the paper's method decides alike, bit for bit."""
    algorithm = xv.algorithms.cr_varpro()
    here, there = (
        xv.solve(
            reference.problem,
            reference.theta0,
            over=reference.over,
            algorithm=algorithm,
            tol=0.0,
            max_iter=50,
            backend=b,
        )
        for b in ("numpy", backend)
    )
    assert np.array_equal(here.trace.alpha_A, there.trace.alpha_A)
