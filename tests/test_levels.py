"""Data as it comes: complex numbers, weights, missing entries, several sets, ridges and targets that theta moves."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.optimize

import xvarpro as xv
from xvarpro.errors import ModelError, ProblemError

from .support import BACKENDS, central_differences, error, host, in_turn, no_cuda, rng, vector

T = np.linspace(0.0, 2.0, 14)
LATE = np.linspace(0.1, 1.9, 9)
START = np.array([0.7, 2.0, 4.5])
Y = rng(0).normal(size=(14, 3))
DATA = {"t": T, "late": LATE, "ramp": np.linspace(0.5, 1.5, 14)}


def needs(name):
    if name == "cupy" and (reason := no_cuda("cupy")):
        pytest.skip(reason)


@pytest.fixture(params=BACKENDS)
def name(request):
    needs(request.param)
    return request.param


def decays(theta, data):
    xp = xv.array_namespace(theta)
    return xp.exp(-xp.expand_dims(data["t"], axis=1) * theta)


def late(theta, data):
    return decays(theta, {"t": data["late"]})


def waves(theta, data):
    """Complex exponentials, damped by real rates."""
    xp = xv.array_namespace(theta)
    phase = xp.astype(xp.expand_dims(data["t"], axis=1) * theta, xp.complex128)
    return xp.exp((-0.3 + 1j) * phase)


def late_waves(theta, data):
    return waves(theta, {"t": data["late"]})


def ridge(theta, data):
    xp = xv.array_namespace(theta)
    return 0.1 * xp.exp(0.3 * theta[0])


def other_ridge(theta, data):
    return 0.05 + theta[1] ** 2


def complex_normal(seed, *shape):
    return rng(seed).normal(size=shape) + 1j * rng(seed + 50).normal(size=shape)


COMPLEX = complex_normal(1, 14, 3)
LATER = complex_normal(2, 9, 3)
OMEGA = np.eye(3) + 0.3 * rng(4).normal(size=(3, 3))
DIFFERENCES = np.eye(3) - np.eye(3, k=1)
MASK = rng(5).random(size=(14, 3)) > 0.25
HOLES = np.where(MASK, Y, np.nan)
WEIGHTS = rng(6).uniform(0.2, 3.0, size=14)
SETS = [rng(7).normal(size=(14, 2)), rng(8).normal(size=(9, 2))]


def both(theta, data):
    xp = xv.array_namespace(theta)
    return xp.concat([decays(theta, data), late(theta, data)])


def moving(theta, data):
    xp = xv.array_namespace(theta)
    return xp.sin(data["t"] * xp.sum(theta))


def complex_moving(theta, data):
    xp = xv.array_namespace(theta)
    return xp.exp(1j * xp.astype(data["t"] * theta[0], xp.complex128))


def two(M=decays, N=late, y=Y, z=Y[:9], **options):
    return xv.bilevel(lower=xv.Level(M, y, **options), upper=xv.Level(N, z), data=DATA)


PROBLEMS = {
    "complex": xv.separable(waves, COMPLEX, data=DATA, lam=1e-2),
    "complex, no ridge": xv.separable(waves, COMPLEX[:, 0], data=DATA),
    "complex target alone": xv.separable(decays, COMPLEX, data=DATA),
    "complex, Omega": xv.separable(waves, COMPLEX, data=DATA, lam=1e-2, Omega=OMEGA),
    "complex design, real target": xv.separable(waves, Y, data=DATA, lam=1e-2),
    "real design, complex target": xv.separable(decays, COMPLEX, data=DATA, lam=1e-2, Omega=OMEGA),
    "complex, two levels": two(waves, late_waves, COMPLEX, LATER, lam=1e-2, Omega=OMEGA),
    "complex, wide": xv.bilevel(
        lower=xv.Level(late_waves, LATER[:2], lam=1e-2), upper=xv.Level(waves, COMPLEX), data=DATA | {"late": LATE[:2]}
    ),
    "complex, SVD": two(waves, late_waves, COMPLEX, LATER, solver=xv.lower.SVD()),
    "complex, moving target": xv.separable(waves, complex_moving, data=DATA, lam=1e-2),
    "complex design, moving real target": xv.separable(waves, moving, data=DATA, lam=1e-2),
    "row weights": xv.separable(decays, Y, data=DATA, lam=1e-2, weights=WEIGHTS),
    "row weights, moving target": xv.separable(decays, moving, data=DATA, lam=1e-2, weights=WEIGHTS),
    "row weights, two levels": xv.bilevel(
        lower=xv.Level(decays, Y, lam=1e-2, weights=WEIGHTS),
        upper=xv.Level(late, Y[:9], weights=WEIGHTS[:9]),
        data=DATA,
    ),
    "mask": xv.separable(decays, HOLES, data=DATA, lam=1e-2, weights=MASK),
    "mask, two levels": two(y=HOLES, lam=1e-2, weights=MASK),
    "weights by entry, complex": xv.separable(waves, COMPLEX, data=DATA, lam=1e-2, weights=MASK * 0.5),
    "weights by entry, complex target alone": xv.separable(decays, COMPLEX, data=DATA, weights=0.5 + np.abs(Y)),
    "two sets": xv.separable(both, SETS, data=DATA, lam=1e-2),
    "ridge by theta": xv.separable(decays, Y, data=DATA, lam=ridge),
    "ridge by theta, Omega": xv.separable(decays, Y, data=DATA, lam=ridge, Omega=DIFFERENCES),
    "ridge by theta, two levels": two(lam=ridge, Omega=OMEGA),
    "ridge by theta, complex": two(waves, late_waves, COMPLEX, LATER, lam=ridge),
    "ridge by theta, SVD": two(lam=ridge, solver=xv.lower.SVD()),
    "ridge by theta, wide": xv.bilevel(
        lower=xv.Level(late, Y[:2], lam=ridge, Omega=OMEGA),
        upper=xv.Level(decays, Y, lam=other_ridge, Omega=DIFFERENCES),
        data=DATA | {"late": LATE[:2]},
    ),
}


@in_turn("kind", PROBLEMS)
def test_gradient_is_what_differences_give(kind, backend):
    problem = PROBLEMS[kind]
    _, gradient = xv.value_and_gradient(problem, START, backend=backend.name)
    wanted = central_differences(lambda theta: float(xv.value_and_gradient(problem, theta)[0]), START)
    assert error(gradient, wanted) <= 2e-8


@in_turn("kind", PROBLEMS)
def test_value_is_that_of_dense_algebra(kind):
    """One least-squares problem per right-hand side, of all rows and the ridge, weights included."""
    problem = PROBLEMS[kind]
    low, upper = problem.lower, problem.upper or problem.lower
    M, y, weights, lam = stated(low, problem.data)
    n = M.shape[1]
    Omega = np.eye(n) if low.Omega is None else low.Omega
    w = np.stack(
        [
            np.linalg.lstsq(
                np.vstack([np.sqrt(weights[:, j : j + 1]) * M, np.sqrt(lam) * Omega]),
                np.concatenate([np.sqrt(weights[:, j]) * y[:, j], np.zeros(n)]),
            )[0]
            for j in range(y.shape[1])
        ],
        axis=1,
    )
    N, z, heavy, mu = stated(upper, problem.data)
    over = np.eye(n) if upper.Omega is None else upper.Omega
    value = 0.5 * np.sum(heavy * np.abs(N @ w - z) ** 2) + 0.5 * mu * np.sum(np.abs(over @ w) ** 2)
    assert float(xv.value_and_gradient(problem, START)[0]) == pytest.approx(value, rel=1e-12)
    fit = xv.solve(problem, START, max_iter=0)
    assert error(np.abs(np.reshape(fit.w, w.shape)), np.abs(w)) <= 1e-10
    assert np.iscomplexobj(fit.w) == np.iscomplexobj(w)


def stated(level, data):
    """Design, target, weights of all entries and ridge of a level at the start, as NumPy arrays without holes."""
    M = level.M(START, data)
    y = level.y(START, data) if callable(level.y) else level.y
    y = y[:, None] if y.ndim == 1 else y
    weights = np.ones(y.shape)
    if level.weights is not None:
        weights = weights * (level.weights if level.weights.ndim == 2 else level.weights[:, None])
    lam = level.lam(START, data) if callable(level.lam) else level.lam
    return M, np.where(weights > 0, y, 0.0), weights, lam


@pytest.mark.parametrize("chunked", [False, True])
def test_row_weights_leave_compression_exact(chunked):
    y = rng(9).normal(size=(14, 40))
    target = xv.ColumnChunks([y[:, :25], y[:, 25:]]) if chunked else y
    small, whole = (
        xv.solve(xv.separable(decays, z, data=DATA, lam=1e-2, weights=WEIGHTS, compress=z is target), START, max_iter=3)
        for z in (target, y.copy())
    )
    assert small.provenance["compressed"]
    assert not whole.provenance["compressed"]
    assert error(small.theta, whole.theta) <= 1e-9
    assert error(small.w, whole.w) <= 1e-9


def test_weights_by_entry_are_never_compressed():
    y = rng(9).normal(size=(14, 40))
    problem = xv.separable(decays, y, data=DATA, lam=1e-2, weights=rng(1).random(size=y.shape) > 0.5)
    assert not xv.solve(problem, START, max_iter=1).provenance["compressed"]


@pytest.mark.parametrize("kind", ["complex", "mask", "ridge by theta, two levels"])
def test_solves_descend_on_every_backend(kind, name):
    fit = xv.solve(PROBLEMS[kind], START, over=xv.sets.Box(0.1, 8.0), backend=name, max_iter=10)
    assert fit.status in (xv.Status.CONVERGED, xv.Status.MAX_ITER, xv.Status.NO_DESCENT)
    assert fit.value < fit.trace.value[0]
    assert fit.verified.violation <= 1e-12


def test_the_upper_level_chooses_a_ridge():
    """Weights that noise has spoilt: the second sample wants a ridge, and finds the best one."""
    A, B = rng(0).normal(size=(12, 8)), rng(1).normal(size=(30, 8))
    w = rng(2).normal(size=8)
    y, z = A @ w + rng(3).normal(size=12), B @ w

    def lam(theta, data):
        return xv.array_namespace(theta).exp(theta[0])

    problem = xv.bilevel(
        lower=xv.Level(lambda theta, data: data["A"], y, lam=lam),
        upper=xv.Level(lambda theta, data: data["B"], z),
        data={"A": A, "B": B},
    )
    fit = xv.solve(problem, np.array([0.0]), over=xv.sets.Box(-12.0, 8.0), tol=1e-12)
    grid = np.linspace(-12.0, 8.0, 4001)
    values = [0.5 * np.sum((B @ np.linalg.solve(A.T @ A + np.exp(s) * np.eye(8), A.T @ y) - z) ** 2) for s in grid]
    assert fit.theta[0] == pytest.approx(grid[np.argmin(values)], abs=6e-3)


@in_turn(
    ("options", "message"),
    [
        ({"weights": -WEIGHTS}, "weights of squared residuals must be >= 0"),
        ({"weights": np.where(np.arange(14) == 3, -1.0, WEIGHTS)}, "weights of squared residuals must be >= 0"),
        ({"weights": WEIGHTS + 0j}, "got a negative or a complex one"),
        ({"weights": WEIGHTS[:5]}, r"got weights of shape \(5, 1\) and y of shape \(14, 3\)"),
        ({"weights": np.ones((14, 2))}, "one entry per row of y or one per entry"),
        ({"weights": np.full(14, np.nan)}, "weights must be finite"),
        ({"weights": 3.0}, r"weights must have shape \(m,\) or \(m, k\)"),
        ({"weights": np.ones((2, 2, 2))}, "weights must have shape"),
    ],
)
def test_weights_that_do_not_fit(options, message):
    with pytest.raises(ProblemError, match=message):
        xv.solve(xv.separable(decays, Y, data=DATA, **options), START)


def test_a_hole_that_counts_is_refused():
    with pytest.raises(ProblemError, match="where its weight is not 0"):
        xv.solve(xv.separable(decays, HOLES, data=DATA, weights=np.ones((14, 3))), START)


def test_weights_that_are_all_zero_are_refused():
    with pytest.raises(ProblemError, match="weights must not all be 0"):
        xv.solve(xv.separable(decays, Y, data=DATA, weights=np.zeros(14)), START)


def test_a_ridge_that_is_no_scalar():
    with pytest.raises(ModelError, match="the ridge lam must return a scalar"):
        xv.solve(xv.separable(decays, Y, data=DATA, lam=lambda theta, data: theta), START)


def test_targets_of_different_widths():
    with pytest.raises(ProblemError, match="arrays with the same number of columns"):
        xv.separable(both, [SETS[0], SETS[1][:, :1]], data=DATA)


def test_nothing_given_is_written_to():
    y, weights = HOLES.copy(), MASK.copy()
    xv.solve(xv.separable(decays, y, data=DATA, lam=1e-2, weights=weights), START, max_iter=2)
    assert np.array_equal(y, HOLES, equal_nan=True)
    assert (weights == MASK).all()
    assert vector(host(DATA["t"])).tolist() == T.tolist()


def test_one_ridge_under_weights_in_a_set_is_where_a_line_search_finds_it(subtests):
    """Where faces change the objective has kinks, and its minimum may be one: both slopes show that."""
    draw, x = rng(5), np.linspace(0, 1, 40)[:, None]
    E = np.exp(-0.5 * ((x - np.linspace(0.15, 0.85, 4)) / 0.12) ** 2)
    E = np.concatenate([E, E[:, :2] + 0.02 * draw.normal(size=(40, 2))], axis=1)
    Y = E[:, :4] @ draw.dirichlet(np.ones(4), size=6).T + 0.05 * draw.normal(size=(40, 6))
    for W in (xv.lower.Simplex(), xv.lower.Bounded(0.0, 0.5)):
        with subtests.test(type(W).__name__):
            low = xv.Level(lambda th, D: D["a"], Y[1::2], lam=lambda th, D: xv.array_namespace(th).exp(th[0]), W=W)
            upper = xv.Level(lambda th, D: D["b"], Y[::2])
            problem = xv.bilevel(lower=low, upper=upper, data={"a": E[1::2], "b": E[::2]})
            fit = xv.solve(problem, np.array([-3.0]), over=xv.sets.Box(-12.0, 4.0))

            def value(g, problem=problem):
                return float(xv.solve_lower(problem, np.array([g])).value)

            line = scipy.optimize.minimize_scalar(value, bounds=(-12, 4), method="bounded")
            assert fit.status is xv.Status.CONVERGED
            assert fit.value <= line.fun * (1 + 1e-9)
            assert fit.counts.values <= 2 * line.nfev
