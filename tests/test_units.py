"""The same problem in other units of theta and y, with its rows in another order: the same solve.

The default and Levenberg-Marquardt take the same steps. Other methods may take other ones, since gradient steps and the
ball of a free block have units: they say CONVERGED at a minimum alone.
"""

from typing import Any, NamedTuple

import numpy as np
import pytest

import xvarpro as xv
from xvarpro import algorithms, sets
from xvarpro.driver.units import targets_near_one, theta_near_one
from xvarpro.sets.region import resolve

from .support import decays, error, host, rng

T = np.linspace(0.0, 3.0, 80)
INF = np.inf


class Case(NamedTuple):
    """A problem in units of 1: ``M(theta, t)``, a target, a start, and the set in other units of theta."""

    M: Any
    y: np.ndarray
    theta0: np.ndarray
    over: Any  # a function of the units
    entrywise: bool  # whether every entry of theta may have units of its own
    keywords: dict[str, Any]


def peaks(theta, t):
    """Two of them on a constant: positions, then widths."""
    xp = xv.array_namespace(theta)
    M = xp.exp(-0.5 * ((xp.expand_dims(t, axis=1) - theta[:2]) / theta[2:]) ** 2)
    return xp.concat([M, xp.ones_like(M[:, :1])], axis=1)


def noisy(M, theta, w, noise=1e-2):
    y = M(np.asarray(theta), T) @ np.asarray(w)
    return y + noise * rng(5).normal(size=y.shape)


def box(lower, upper):
    return lambda units: sets.Box(np.asarray(lower) / units, np.asarray(upper) / units)


def radius(make, size):
    return lambda units: make(size / float(units[0]))


def pull(theta):
    return xv.array_namespace(theta).sum((theta - 2.0) ** 2)


TWO, TWOS = (
    noisy(decays, [1.0, 5.0], [2.0, 1.0]),
    noisy(decays, [1.0, 5.0], np.array([[2.0, 1.0, 3.0], [1.0, -1.0, 0.5]])),
)
OTHER = TWO + 1e-2 * rng(6).normal(size=80)
THREE = noisy(decays, [0.5, 2.5, 9.0], [1.0, -2.0, 3.0], noise=1e-3)
PEAKS = noisy(peaks, [1.0, 2.0, 0.2, 0.3], [1.0, 2.0, 0.5])
START = np.array([0.7, 4.0])
CASES = {
    "free": Case(decays, TWO, START, lambda units: None, True, {}),
    "columns": Case(decays, TWOS, START, lambda units: None, True, {"lam": 1e-3}),
    "box": Case(decays, TWO, START, box([0.0, 0.0], [20.0, 20.0]), True, {}),
    "bound": Case(decays, TWO, START + 1.0, box([1.2, 0.0], [3.0, 20.0]), True, {}),
    "one side": Case(decays, TWO, START + 1.0, box([1.2, -INF], [INF, INF]), True, {}),
    "penalty": Case(decays, TWO, START, lambda units: None, True, {"R": pull, "mu": 1e-3}),
    "two levels": Case(decays, TWO, START, box([0.0, 0.0], [20.0, INF]), True, {"upper": OTHER, "lam": 1e-3}),
    "weights": Case(decays, TWO, START, lambda units: None, True, {"W": xv.lower.Equality(np.array([[1.0, -2.0]]))}),
    "peaks": Case(peaks, PEAKS, np.array([0.9, 2.2, 0.3, 0.2]), lambda units: None, True, {}),
    "peaks in a box": Case(
        peaks, PEAKS, np.array([0.9, 1.8, 0.3, 0.2]), box([0.0, 0.0, 0.01, 0.01], [3.0, 1.95, 1.0, INF]), True, {}
    ),
    "simplex": Case(decays, THREE, np.array([4.0, 4.5, 3.5]), radius(sets.Simplex, 12.0), False, {"lam": 1e-6}),
    "capped": Case(decays, TWO, START, radius(sets.CappedSimplex, 5.0), False, {}),
    "l1": Case(decays, TWO, START, radius(sets.L1Ball, 5.0), False, {}),
    "l2": Case(decays, TWO, START, radius(sets.L2Ball, 4.5), False, {}),
}
METHODS = {
    "default": None,
    "LM": algorithms.LevenbergMarquardt(),
    "quasi-Newton": algorithms.ProjectedQuasiNewton(),
    "spectral": algorithms.SpectralProjectedGradient(),
    "accelerated": algorithms.AcceleratedProjectedGradient(),
    "in face": algorithms.InFaceQuasiNewton(),
    "paper": algorithms.cr_varpro(),
}
EXACT = ("default", "LM")


def solved(name, method, backend="numpy", dtype="float64", units=1.0, size=1.0, order=slice(None), **options):
    case = CASES[name]
    units = units * np.ones_like(case.theta0)
    keywords = dict(case.keywords)
    data = {"t": T[order].astype(dtype), "units": units.astype(dtype)}
    if "R" in keywords:
        one = keywords["R"]
        keywords |= {"R": lambda theta: one(theta * _units(theta, units)), "mu": keywords["mu"] * size**2}

    def M(theta, data):
        return case.M(theta * data["units"], data["t"])

    y = (size * case.y[order]).astype(dtype)
    if "upper" in keywords:
        upper = (size * keywords.pop("upper")[order]).astype(dtype)
        problem = xv.bilevel(lower=xv.Level(M, y, **keywords), upper=xv.Level(M, upper), data=data)
    else:
        problem = xv.separable(M, y, data=data, **keywords)
    theta0 = (options.pop("theta0", case.theta0) / units).astype(dtype)
    return xv.solve(problem, theta0, over=case.over(units), algorithm=METHODS[method], backend=backend, **options)


def _units(theta, units):
    return xv.array_namespace(theta).asarray(units, dtype=theta.dtype)


def drawn(seed, entries, entrywise, dtype):
    """Units of theta and of y, and an order of the rows."""
    draw = rng(seed)
    units = 10.0 ** draw.uniform(-8, 8, entries if entrywise else 1) * np.ones(entries)
    size = 10.0 ** (draw.uniform(-80, 80) if dtype == "float64" else draw.uniform(-12, 12))
    return units, size, draw.permutation(len(T))


def check(name, method, backend, dtype, seed):
    case = CASES[name]
    units, size, order = drawn(seed, len(case.theta0), case.entrywise, dtype)
    want = solved(name, method if method in EXACT else "LM", backend, dtype)
    assert want.success
    options = {} if method in EXACT else {"max_iter": 300}
    got = solved(name, method, backend, dtype, units, size, order, **options)
    theta = host(got.theta).astype(np.float64) * units
    eps = np.finfo(dtype).eps
    if method in EXACT:
        assert got.status is want.status
        if (name, method) != ("two levels", "default"):  # whose steps are of gradients, with as many as units ask for
            assert abs(got.n_iter - want.n_iter) <= max(2, want.n_iter / 4)
        bound = max(1e-6 if dtype == "float64" else 2e-3, 10 * eps * want.verified.condition)
        assert error(theta, host(want.theta)) <= bound
        return
    if got.status is xv.Status.CONVERGED:
        again = solved(name, "LM", "numpy", theta0=_inside(case, theta))
        value = solved(name, "LM", "numpy", theta0=_inside(case, theta), max_iter=0).value
        assert value - again.value <= (1e-8 if dtype == "float64" else 1e-3) * again.value


def _inside(case, theta):
    over = case.over(np.ones_like(theta))
    return theta if over is None else np.asarray(xv.project(theta, over))


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("method", EXACT)
@pytest.mark.parametrize("name", CASES)
def test_other_units_are_the_same_solve(name, method, seed):
    check(name, method, "numpy", "float64", seed)


@pytest.mark.frameworks
@pytest.mark.parametrize(("name", "backend"), [("peaks in a box", "torch"), ("simplex", "array-api-strict")])
def test_other_units_are_the_same_solve_elsewhere(name, backend):
    check(name, "LM", backend, "float64", 2)


@pytest.mark.parametrize("name", ["free", "bound"])
def test_other_units_are_the_same_solve_in_single_precision(name):
    check(name, "default", "numpy", "float32", 3)


BOUNDED = {
    "nonnegative": lambda size: xv.lower.Nonnegative(),
    "bounded": lambda size: xv.lower.Bounded(0.0, size * np.array([1.5, INF])),
    "affine": lambda size: xv.lower.Equality(np.ones((1, 2)), size * 3.0),
}


@pytest.mark.parametrize("size", [1e-12, 1e12, 2.0**250])
@pytest.mark.parametrize("name", BOUNDED)
def test_targets_of_any_size_with_w_in_a_set(name, size):
    """The set is multiplied with the targets."""
    dtype = "float32" if size < 1e30 else "float64"

    def fit(size):
        problem = xv.separable(
            decays, (size * TWO).astype(dtype), data=T.astype(dtype), W=BOUNDED[name](np.asarray(size, dtype))
        )
        return xv.solve(problem, START.astype(dtype), over=sets.Box(0.0, 20.0))

    want, got = fit(1.0), fit(size)
    assert got.success
    assert error(got.theta, want.theta) <= (1e-3 if dtype == "float32" else 1e-6)
    assert error(np.asarray(got.w, np.float64) / size, want.w) <= (1e-3 if dtype == "float32" else 1e-6)


EXTREMES = [("float32", 1e-25), ("float32", 1e25), ("float64", 1e-200), ("float64", 1e200)]


@pytest.mark.parametrize(("dtype", "size"), EXTREMES)
@pytest.mark.parametrize(
    ("name", "method"),
    [(name, "default") for name in ("free", "one side", "penalty", "two levels", "l2")]
    + [("free", "quasi-Newton"), ("penalty", "in face"), ("l2", "quasi-Newton")],
)
def test_squares_of_theta_may_leave_the_range_of_the_precision(name, method, dtype, size):
    """Results and callbacks are in the units of theta0 even so."""
    seen = []
    want = solved(name, "LM")
    got = solved(name, method, dtype=dtype, units=size, callback=lambda info: seen.append(info.theta))
    assert got.success
    assert error(host(got.theta).astype(np.float64) * size, host(want.theta)) <= (2e-3 if dtype == "float32" else 1e-5)
    assert np.array_equal(seen[-1], got.theta)


def test_a_ridge_of_theta_whose_squares_leave_the_range():
    def M(theta, data):
        return decays(theta[:2] * data["units"], data["t"])

    def lam(theta, data):
        return 0.01 + (theta[2] * data["units"]) ** 2

    def solve(units):
        data = {"t": T, "units": np.asarray(units)}
        problem = xv.bilevel(lower=xv.Level(M, TWO, lam=lam), upper=xv.Level(M, OTHER), data=data)
        fit = xv.solve(problem, np.array([0.7, 4.0, 0.3]) / units)
        assert fit.success  # though a Gauss-Newton model promises much where the derivative of the ridge vanishes
        return fit.theta * units

    assert error(solve(1e200)[:2], solve(1.0)[:2]) <= 1e-4


@pytest.mark.parametrize(("dtype", "size"), EXTREMES)
def test_squares_of_theta_may_leave_the_range_in_a_batch(dtype, size):
    def M(theta, data):
        xp = xv.array_namespace(theta)
        return xp.exp(-xp.expand_dims(theta * data["units"], axis=1) * data["t"][None, :, None])

    data = {"t": T.astype(dtype), "units": np.asarray(size, dtype)}
    problem = xv.separable(M, np.stack([TWO, OTHER]).astype(dtype), data=data)
    fit = xv.solve_many(problem, np.tile(START / size, (2, 1)).astype(dtype), over=sets.Box(0.0, 20.0 / size))
    assert fit.success.all()
    want = host(solved("box", "LM").theta)
    assert error(fit.theta[0].astype(np.float64) * size, want) <= (2e-3 if dtype == "float32" else 1e-6)


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("box", "paper"), ("l1", "spectral"), ("peaks", "quasi-Newton"), ("l1", "in face"), ("box", "accelerated"),
        ("peaks", "spectral"),
    ],
)  # fmt: skip
def test_other_methods_end_honestly(name, method):
    check(name, method, "numpy", "float64", 4)


def test_a_leaf_whose_steps_have_a_length_of_their_own_keeps_its_units():
    theta = {"a": np.array([3e-120]), "b": np.array([7e150])}
    region, leaves = resolve({"a": sets.Free(radius=2.0)}, theta), tuple(theta.values())
    problem = xv.separable(lambda theta, data: np.ones((4, 1)), np.ones(4))
    _, _, near, units = theta_near_one(problem, region, leaves, xv.backends.get("numpy"), "float64")
    assert units[0] == 1.0 != units[1]
    assert near[0].tolist() == theta["a"].tolist()


def test_both_targets_of_two_levels_have_one_unit():
    y = noisy(decays, [1.0, 5.0], [2.0, 1.0])

    def solved(unit):
        level = [xv.Level(lambda theta, t, i=i: decays(theta, t[i::2]), unit * y[i::2]) for i in (0, 1)]
        problem = xv.bilevel(lower=level[0], upper=level[1], data=T)
        return xv.solve(problem, np.array([0.5, 8.0]), sets.Box(0.0, 20.0)).theta

    np.testing.assert_allclose(solved(2.0**40), solved(1.0), rtol=1e-9)


def test_a_penalty_follows_the_square_of_the_unit_of_the_targets():
    """By powers of two: nothing is rounded."""
    problem = xv.separable(lambda theta, t: theta * t[:, None], 3e9 * np.ones(3), data=np.ones(3), R=sum, mu=0.1)
    scaled, unit = targets_near_one(problem, xv.backends.get("numpy"), "float64")
    assert np.frexp(unit)[0] == 0.5
    assert scaled.mu == 0.1 * unit**2
    assert scaled.lower.y.tolist() == (unit * problem.lower.y).tolist()
