"""What was doubted once: numbers that might be lost on the way, or be NaN where there is one."""

import numpy as np
import pytest

import xvarpro as xv
from tests.support import host, rng, send
from tests.test_sets import KINDS, examples
from xvarpro import backends
from xvarpro.lower.interface import Ridge, System
from xvarpro.operators import Dense
from xvarpro.sets.region import resolve

N = 65  # matrices of 4,225 entries: XLA takes the largest of 4,096 and more by another way than of fewer


def large(kind):
    """A set of points that are so large, and one of them."""
    shape = (N * N,) if kind.examples((4, 4))[0].event_ndim == 1 else (N, N)
    C = kind.examples(shape)[0]
    return C, np.array(C.center(np.zeros(shape)))


LARGEST = ("LinfBall", "OrderedBox", "GroupL1InfBall", "Box", "Simplex", "SpectralBall")  # whose violation takes it
# whose examples of that size are matrices of 4,225 x 4,225, or hulls of as many points
HUGE = ("ConvexHull", "Ellipsoid", "LinearImage", "Flattened")  # the last takes kernels of four axes
OTHERS = [kind.__name__ for kind in KINDS if kind.__name__ not in HUGE + LARGEST]


@pytest.mark.frameworks
@pytest.mark.parametrize("name", [*LARGEST, *(pytest.param(name, marks=pytest.mark.thorough) for name in OTHERS)])
def test_a_nan_among_thousands_is_a_violation(name):
    C, x = large(getattr(xv.sets, name))
    jax = backends.get("jax")
    with jax.scope("float64"):
        assert float(jax.xp.max(C.violation(send(jax, x)))) < 1e-9
        x.flat[2000] = np.nan
        found = float(resolve(C, x).violation((send(jax, x),)))
        assert not found <= 1.0
        if C.bounded and C.compiles:
            assert np.isnan(host(C.support(send(jax, x)))).any()


@pytest.mark.frameworks
def test_one_of_thousands_of_columns_that_is_nan_is_a_violation():
    x = np.zeros((3, 5000))
    x[1, 77] = np.nan
    jax = backends.get("jax")
    with jax.scope("float64"):
        assert np.isnan(float(resolve(xv.sets.Columns(xv.sets.L1Ball()), x).violation((send(jax, x),))))


def ask_for_a_derivative(name, kinds, subtests):
    backend = backends.get(name)
    cases = [(f"{kind.__name__} {i}", *case) for kind in kinds for i, case in enumerate(examples(kind))]
    for case, C, shape in cases:
        if not (C.bounded and C.compiles):
            continue
        corners = np.zeros(shape), np.ones(shape), np.arange(np.prod(shape)).reshape(shape) - 1.0
        with subtests.test(case), backend.scope("float64"):
            for g in (*corners, rng(3).normal(size=shape)):
                (value,), pullback = backend.vjp(lambda x, C=C: (C.support(x),), (send(backend, g),))
                (slope,) = pullback((backend.xp.ones_like(value),))
                assert np.isfinite(host(slope)).all(), g
            # where one point alone is best, the last, it is that point
            np.testing.assert_allclose(host(slope), host(C.lmo(send(backend, -g))), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["torch", pytest.param("jax", marks=pytest.mark.thorough)])
def test_support_has_a_derivative_everywhere_which_is_a_point_of_the_set(name, subtests):
    ask_for_a_derivative(name, [kind for kind in KINDS if kind is not xv.sets.Flattened], subtests)


@pytest.mark.thorough
def test_support_of_a_flattened_kernel_has_a_derivative_everywhere(subtests):
    """It has none on PyTorch where singular values are zero."""
    ask_for_a_derivative("torch", [xv.sets.Flattened], subtests)


def nearly_dependent(n, condition, seed=0):
    draw = rng(seed)
    U, V = (np.linalg.qr(draw.normal(size=(m, n)))[0] for m in (2 * n, n))
    return U * np.geomspace(1.0, 1 / condition, n) @ V.T, draw.normal(size=(2 * n, 5))


@pytest.mark.parametrize("name", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("lam", [0.0, 1e-6])
@pytest.mark.parametrize("condition", [1e4, 1e6, 1e8, 1e10])
@pytest.mark.parametrize("n", [10, 30, 60])
def test_nonnegative_weights_of_nearly_dependent_columns_are_optimal(n, condition, lam, name):
    nnls = pytest.importorskip("scipy.optimize").nnls
    M, y = nearly_dependent(n, condition)
    backend = backends.get(name)
    solver = xv.lower.Nonnegative().solver(None)
    with backend.scope("float64"):
        system = System(Dense(send(backend, M)), Ridge(lam))
        w = host(solver.argmin(backend, system, solver.factor(backend, system), send(backend, y)))
    assert (w >= 0).all()
    stack, rows = np.vstack([M, lam**0.5 * np.eye(n)]), np.vstack([y, np.zeros((n, 5))])
    for j in range(5):
        least = nnls(stack, rows[:, j], maxiter=10_000)[1]
        assert np.linalg.norm(stack @ w[:, j] - rows[:, j]) <= least * (1 + 1e-9)


def test_weights_between_bounds_of_nearly_dependent_columns_are_optimal():
    lsq_linear = pytest.importorskip("scipy.optimize").lsq_linear
    for seed in range(4):
        M, y = nearly_dependent(30, 1e8, seed)
        box = rng(seed).normal(size=(30, 1)) - [0.5, -0.5]
        solver = xv.lower.Bounded(*box.T).solver(None)
        backend = backends.get("numpy")
        system = System(Dense(M))
        w = solver.argmin(backend, system, solver.factor(backend, system), y)
        for j in range(5):
            least = lsq_linear(M, y[:, j], box.T, method="bvls", tol=1e-14).cost
            assert 0.5 * np.sum((M @ w[:, j] - y[:, j]) ** 2) <= least * (1 + 1e-9)
