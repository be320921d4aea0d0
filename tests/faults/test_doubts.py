"""What was doubted once: numbers that might be lost on the way, or be NaN where there is one."""

from __future__ import annotations

import numpy as np
import pytest

import xvarpro as xv
from tests.support import host, rng, send
from tests.test_sets import KINDS, examples
from xvarpro import backends
from xvarpro.sets.region import Region

N = 65  # matrices of 4,225 entries: XLA takes the largest of 4,096 and more by another way than of fewer

# -- NaN is seen, in an array of any size ------------------------------------------------------------------------------


def large(kind):
    """A set of points that are so large, and one of them."""
    shape = (N * N,) if kind.examples((4, 4))[0].event_ndim == 1 else (N, N)
    C = kind.examples(shape)[0]
    return C, np.array(C.center(np.zeros(shape)))


LARGEST = ("LinfBall", "OrderedBox", "GroupL1InfBall", "Box", "Simplex", "SpectralBall")  # whose violation takes it
# whose examples of that size are matrices of 4,225 x 4,225, or hulls of as many points
HUGE = ("ConvexHull", "Ellipsoid", "LinearImage", "Counted")
LARGE = [
    pytest.param(kind, id=kind.__name__, marks=() if kind.__name__ in LARGEST else pytest.mark.thorough)
    for kind in KINDS
    if kind.__name__ not in HUGE
]


@pytest.mark.parametrize("kind", LARGE)
def test_a_nan_among_thousands_is_a_violation(kind):
    C, x = large(kind)
    jax = backends.get("jax")
    with jax.scope("float64"):
        assert float(jax.xp.max(C.violation(send(jax, x)))) < 1e-9
        x.flat[2000] = np.nan
        found = float(Region(((0, C),)).violation((send(jax, x),)))
        assert not found <= 1.0
        if C.bounded and C.compiles:
            assert np.isnan(host(C.support(send(jax, x)))).any()


def test_one_of_thousands_of_columns_that_is_nan_is_a_violation():
    x = np.zeros((3, 5000))
    x[1, 77] = np.nan
    jax = backends.get("jax")
    with jax.scope("float64"):
        assert np.isnan(float(Region(((0, xv.sets.Columns(xv.sets.L1Ball())),)).violation((send(jax, x),))))


# -- derivatives of support functions ----------------------------------------------------------------------------------

CASES = [
    pytest.param(C, shape, id=f"{kind.__name__}-{i}")
    for kind in KINDS
    for i, (C, shape) in enumerate(examples(kind))
    if C.bounded and C.compiles
]


@pytest.mark.parametrize("name", ["torch", "jax"])
@pytest.mark.parametrize(("C", "shape"), CASES)
def test_support_has_a_derivative_everywhere_which_is_a_point_of_the_set(name, C, shape):
    backend = backends.get(name)
    corners = np.zeros(shape), np.ones(shape), np.arange(np.prod(shape)).reshape(shape) - 1.0
    with backend.scope("float64"):
        for g in (*corners, rng(3).normal(size=shape)):
            (value,), pullback = backend.vjp(lambda x: (C.support(x),), (send(backend, g),))
            (slope,) = pullback((backend.xp.ones_like(value),))
            assert np.isfinite(host(slope)).all(), g
        # where one point alone is best, the last, it is that point
        np.testing.assert_allclose(host(slope), host(C.lmo(send(backend, -g))), rtol=1e-6, atol=1e-6)
