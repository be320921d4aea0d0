"""Boxes with infinite bounds: what is asked of them, which methods take them, and SciPy's minima."""

import inspect

import numpy as np
import pytest
import scipy.optimize

import xvarpro as xv
from xvarpro import algorithms, sets
from xvarpro.sets.region import resolve

from .support import decays, error, host, rng, send, together

T = np.linspace(0.0, 2.0, 60)
INF = np.inf
MIXED = sets.Box(np.array([0.0, -INF, -INF, 1.0]), np.array([INF, 5.0, INF, 2.0]))


def signal(slow):
    """Two decays, of which the slow one may grow: a bound of 0 is active then."""
    return np.exp(-T[:, None] * [slow, 5.0]) @ [1.0, 4.0] + 1e-2 * rng(0).normal(size=60)


def scipys(y, start, lower, upper):
    def residual(theta):
        M = np.exp(-T[:, None] * theta)
        return M @ np.linalg.lstsq(M, y, rcond=None)[0] - y

    return scipy.optimize.least_squares(residual, start, bounds=(lower, upper), xtol=1e-13, ftol=1e-13, gtol=1e-13)


PROJECTING = [
    None,
    algorithms.ProjectedQuasiNewton(),
    algorithms.SpectralProjectedGradient(),
    algorithms.AcceleratedProjectedGradient(),
]
BOUNDS = {
    "inactive": (1.0, 0.0, INF),
    "active": (-0.02, 0.0, INF),
    "above": (1.0, -INF, [INF, 4.0]),
    "one entry": (-0.02, [0.0, -INF], INF),
}


@pytest.mark.parametrize("name", BOUNDS)
def test_least_squares_with_infinite_bounds_are_scipys(subtests, name):
    slow, lower, upper = BOUNDS[name]
    y, start = signal(slow), np.array([0.7, 3.9])
    want = scipys(y, start, lower, upper)
    over = sets.Box(np.asarray(lower), np.asarray(upper))
    for method in PROJECTING:
        with subtests.test(repr(method)):
            fit = xv.solve(xv.separable(decays, y, data=T), start, over=over, algorithm=method, max_iter=500)
            assert fit.success
            assert fit.value == pytest.approx(want.cost, rel=1e-10)
            assert error(fit.theta, want.x) <= 1e-4
            assert fit.verified.violation == 0
            assert np.isfinite(fit.trace.gap).all()


def methods():
    exported = (getattr(algorithms, name) for name in algorithms.__all__)
    found = [cls for cls in exported if inspect.isclass(cls) and issubclass(cls, algorithms.Algorithm)]
    return [cls for cls in found if not inspect.isabstract(cls)]


def test_every_method_takes_infinite_bounds_or_refuses_them(subtests):
    problem, start = xv.separable(decays, signal(1.0), data=T), np.array([0.7, 4.0])

    def solve(method):
        return xv.solve(problem, start, over=sets.Box(0.0, INF), algorithm=method, max_iter=3)

    for cls in methods():
        with subtests.test(cls.__name__):
            if cls().takes_unbounded:
                assert np.isfinite(solve(cls()).trace.gap).all()
            else:
                said = rf"{cls.__name__} steps .* bounded sets; got a Box.*inf"
                with pytest.raises(xv.errors.ProblemError, match=said):
                    solve(cls())


def test_a_batch_takes_infinite_bounds():
    y = np.stack([signal(slow) for slow in (1.0, -0.02, 0.5)])

    starts, over = np.tile([0.7, 4.0], (3, 1)), sets.Box(np.array([0.0, -INF]), INF)
    many = xv.solve_many(xv.separable(together, y, data=T), starts, over=over)
    assert many.success.all()
    for i in range(3):
        one = xv.solve(xv.separable(decays, y[i], data=T), starts[i], over=over)
        assert many.n_iter[i] == one.n_iter
        assert error(many.theta[i], one.theta) <= 1e-8
        assert many.gap_A[i] + many.gap_B[i] == pytest.approx(one.gap, rel=1e-3, abs=1e-9)
    assert many.theta[1, 0] == 0


def test_the_certificate_is_the_slope_along_the_direction():
    """``gap_A + gap_B = -<g, d>``, x + d feasible, and both parts 0 at a stationary point alone."""
    region = resolve(MIXED, np.zeros(4))
    draw = rng(1)
    for _ in range(20):
        x, g = MIXED.random_point(np.zeros(4), int(draw.integers(99))), draw.normal(size=4)
        found = region.blmo((x,), (g,))
        assert float(found.gap_A) >= 0
        assert float(found.gap_A + found.gap_B) == pytest.approx(-g @ found.d[0], rel=1e-12)
        assert MIXED.contains(x + found.d[0])
    corner, outward = np.array([0.0, 5.0, 3.0, 1.0]), np.array([1.0, -1.0, 0.0, 2.0])
    still = region.blmo((corner,), (outward,))
    assert (float(still.gap_A), float(still.gap_B)) == (0.0, 0.0)
    assert float(region.blmo((corner,), (-outward,)).gap_B) > 0


def test_the_way_to_finite_bounds_is_that_to_the_vertex():
    """Of ties too; and of entries at infinite bounds there is none down the slope."""
    lower, upper = np.array([-1.0, 0.0, 2.0, 0.0]), np.array([1.0, 3.0, 5.0, 0.5])
    x, g = np.array([0.5, 1.0, 4.0, 0.25]), np.array([0.0, -2.0, 3.0, -0.0])
    way, rest = sets.Box(lower, upper).ahead(g, x)
    assert (x + way).tolist() == sets.Box(lower, upper).lmo(g).tolist()
    assert not rest.any()
    way, rest = sets.Box(lower, INF).ahead(g, x)
    assert (x + way).tolist() == [-1.0, 1.0, 2.0, 0.0]
    assert rest.tolist() == [0.0, -2.0, 0.0, 0.0]


def test_random_points_have_the_precision_that_is_asked_for():
    single, double = (MIXED.random_point(np.zeros(4, dtype), 3) for dtype in (np.float32, np.float64))
    assert single.dtype == np.float32
    assert single == pytest.approx(double, rel=1e-6)


def test_what_a_set_says_of_infinite_bounds(backend):
    x = send(backend, np.array([-1.0, 7.0, -9.0, 1.5]))
    nearest = MIXED.project(x)
    assert host(nearest).tolist() == [0.0, 5.0, -9.0, 1.5]
    assert float(MIXED.violation(nearest)) == 0
    assert float(MIXED.violation(x)) == 1.0
    for bad in (np.nan, INF, -INF):
        assert not bool(MIXED.contains(send(backend, np.array([1.0, 0.0, bad, 1.5]))))
    inside = MIXED.center(x)
    assert bool(MIXED.contains(inside))
    assert host(MIXED.tangent(x, inside)).tolist() == host(x).tolist()
    assert host(MIXED.tangent(x, nearest)).tolist() == [0.0, 0.0, -9.0, 1.5]
    assert float(MIXED.reach(x, inside)) == pytest.approx((2.0 - 1.5) / 1.5)
    assert bool(MIXED.contains(MIXED.random_point(x)))
    assert MIXED.diameter(x) == INF
    assert not MIXED.polytope
    assert not MIXED.bounded


@pytest.mark.parametrize("slow", [1.0, -0.02])
def test_derivatives_of_solutions_are_those_of_wide_bounds(slow):
    problem = xv.separable(decays, signal(slow), data=T)
    start, cotangent = np.array([0.7, 4.0]), xv.implicit.Cotangent(theta=np.array([1.0, -2.0]))
    wide, endless = sets.Box(0.0, 50.0), sets.Box(0.0, INF)
    theta = xv.solve(problem, start, over=endless, tol=1e-10).theta
    found, want = (xv.implicit.gradient(problem, theta, cotangent, over=over) for over in (endless, wide))
    assert error(found.data, want.data) <= 1e-8
