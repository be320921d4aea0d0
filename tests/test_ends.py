"""How a solve ends: with the best iterate, a certificate that is true of it, and never in a saddle."""

import pickle
import re
from pathlib import Path

import numpy as np
import pytest
import scipy.optimize

import xvarpro as xv
from xvarpro import algorithms
from xvarpro.core.status import Status
from xvarpro.driver import restarts
from xvarpro.driver.restarts import Curvature
from xvarpro.sets import Box, CappedSimplex, L2Ball, Simplex

from .support import SIGNAL, Quarter, T, decay_problem, decays, error, rng, together, waves

METHODS = {
    "default": None,
    "paper": algorithms.cr_varpro(),
    "Frank-Wolfe": algorithms.FrankWolfe(),
    "open loop": algorithms.FrankWolfe(xv.steps.OpenLoop()),
    "in face": algorithms.InFaceFrankWolfe(),
    "active set": algorithms.ActiveSetFrankWolfe(),
    "spectral": algorithms.SpectralProjectedGradient(),
    "accelerated": algorithms.AcceleratedProjectedGradient(),
    "quasi-Newton": algorithms.ProjectedQuasiNewton(),
    "quasi-Newton in face": algorithms.InFaceQuasiNewton(),
    "reseeded": algorithms.Reseeded(),
    "stochastic": algorithms.StochasticFrankWolfe(),
}
SETS = {
    "free": (None, np.array([0.5, 8.0])),
    "box": (Box(0.0, 10.0), np.array([0.5, 8.0])),
    "bound": (Box(0.0, 3.0), np.array([0.5, 2.0])),
    "simplex": (Simplex(5.0), np.array([1.0, 4.0])),
    "ball": (L2Ball(3.0), np.array([0.5, 2.0])),
}


def applies(name, over):
    return over is not None or name != "active set"


def wave_problem():
    t = np.linspace(0.0, 6.0, 60)
    return xv.separable(waves, np.cos(np.outer(t, [2.0, 5.0])) @ [1.0, 0.5], data=t, lam=1e-3)


def is_the_best(fit, problem, backend="numpy"):
    assert fit.value <= fit.trace.value.min() * (1 + 1e-12)
    at, _ = xv.value_and_gradient(problem, fit.theta, backend=backend)
    assert float(at) == pytest.approx(fit.value, rel=1e-9)


@pytest.mark.parametrize("max_iter", [1, 2, 3, 5, 8, 13, 30])
@pytest.mark.parametrize("name", METHODS)
def test_the_best_iterate_is_returned(name, max_iter):
    for problem, over, start in (
        (wave_problem(), Box(0.1, 9.0), np.array([1.0, 7.0])),
        (decay_problem(noise=0.05, lam=1e-3), Box(0.0, 20.0), np.array([0.1, 15.0])),
    ):
        fit = xv.solve(problem, start, over=over, algorithm=METHODS[name], max_iter=max_iter, tol=1e-9)
        is_the_best(fit, problem)


def test_a_derivative_that_is_not_finite_is_named():
    """That of a power at 0 by its base, of a model with values everywhere; `xp.where` on the argument is the cure."""
    t, start = np.linspace(0.0, 5.0, 30), {"tau": np.array(1.0), "beta": np.array(0.9)}
    over = {"tau": (0.1, 10.0), "beta": (0.2, 2.0)}

    def stretched(theta, t):
        xp = xv.array_namespace(theta["tau"])
        return xp.exp(-((t / theta["tau"]) ** theta["beta"]))[:, None]

    def cured(theta, t):
        xp = xv.array_namespace(theta["tau"])
        return xp.where(t[:, None] > 0, stretched(theta, xp.where(t > 0, t, 1.0)), 1.0)

    y = 3.0 * np.exp(-((t / 1.3) ** 0.7))
    fit = xv.solve(xv.separable(stretched, y, data=t), start, over=over)
    assert fit.status is Status.NON_FINITE
    for kept in (fit, pickle.loads(pickle.dumps(fit))):
        assert "objective is finite at the last iterate, its derivative by theta['tau'] is not" in kept.message
    found = xv.solve(xv.separable(cured, y, data=t), start, over=over)
    assert found.success
    assert [found.theta["tau"], found.theta["beta"]] == pytest.approx([1.3, 0.7], rel=1e-6)


def test_a_solve_that_leaves_where_the_model_has_values_returns_a_point_that_has_one():
    def poles(theta, data):
        xp = xv.array_namespace(theta)
        return decays(theta, data) + xp.sqrt(2.0 - theta)

    problem = xv.separable(poles, np.zeros(T.size) - 5.0, data={"t": T}, lam=0.1)
    blind = algorithms.FrankWolfe(Quarter())
    fit = xv.solve(problem, np.array([0.1, 0.2]), over=Box(0.0, 10.0), algorithm=blind)
    assert fit.status is Status.NON_FINITE
    assert not fit.success
    assert 1 <= fit.n_iter < 20
    assert fit.value == np.nanmin(fit.trace.value)
    assert not np.isfinite(fit.trace.value[-1])


# -- statuses ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SETS)
@pytest.mark.parametrize("name", METHODS)
def test_an_end_without_tolerance_is_one_of_rounding(name, kind):
    """At a minimum that no step improves on, the status is a success; elsewhere it is not."""
    over, start = SETS[kind]
    if not applies(name, over):
        return
    problem = decay_problem(noise=0.02)
    best = xv.solve(problem, start, over=over, tol=1e-10)
    assert best.status.success  # which of the two is up to the rounding of the kernel
    fit = xv.solve(problem, best.theta, over=over, algorithm=METHODS[name], tol=0.0, max_iter=60)
    assert fit.status in (Status.CONVERGED, Status.ROUNDING, Status.MAX_ITER)
    assert fit.value <= best.value * (1 + 1e-12)


def gated(seed=11, mu=0.5, lam=1.0):
    """Gates of features, chosen by rows that the weights do not see."""
    draw = np.random.default_rng(seed)
    X, V = draw.normal(size=(40, 6)), draw.normal(size=(30, 6))
    w = np.array([2.0, -1.0, 0.0, 0.0, 0.5, 0.0])
    y, z = X @ w + 0.3 * draw.normal(size=40), V @ w + 0.3 * draw.normal(size=30)
    return xv.bilevel(
        lower=xv.Level(lambda s, d: d["fit"] * s, y, lam=lam),
        upper=xv.Level(lambda s, d: d["choice"] * s, z),
        data={"fit": X, "choice": V},
        R=lambda s: xv.array_namespace(s).sum(s**2),
        mu=mu,
    )


BUDGET, OPEN = CappedSimplex(3.0), np.full(6, 1 / 6)


@pytest.mark.filterwarnings("ignore::xvarpro.DeadUnitsWarning")
def test_gates_on_two_levels_are_not_left_to_a_gauss_newton_matrix(backend):
    fit = xv.solve(gated(), OPEN, over=BUDGET, backend=backend.name)
    assert fit.status is Status.CONVERGED
    assert fit.algorithm == repr(algorithms.choose([BUDGET], 6, jacobian=True, two_levels=True))
    by_matrix = xv.solve(gated(), OPEN, over=BUDGET, algorithm=algorithms.LevenbergMarquardt())
    assert fit.value < 0.95 * by_matrix.value


def test_no_method_is_advised_that_has_just_failed():
    """Levenberg-Marquardt never rises, so that it is never behind its best iterate."""
    assert algorithms.LevenbergMarquardt.monotone
    assert "LevenbergMarquardt" not in Status.NO_DESCENT.advice + Status.NO_DESCENT.sentence


def test_less_than_a_direction_at_a_time_can_show_is_rounding(backend):
    """A good fit of a large target: together the directions promise more than rounding, each of them less."""
    n, draw = 6, rng(3)
    A, x = draw.normal(size=(40, n)), draw.permutation(n).astype(float)
    y = A @ (0.7 * x + 0.3 * (n - 1) / 2) + 0.1 * draw.normal(size=40)

    def column(theta, A):
        return xv.array_namespace(theta).expand_dims(A @ theta, axis=1)

    problem = xv.separable(column, y, data=A, lam=1e-3)
    start, over = np.arange(float(n)), xv.sets.Permutahedron(np.arange(n - 1.0, -1.0, -1.0))
    method = algorithms.ActiveSetFrankWolfe()
    fit = xv.solve(problem, start, over=over, algorithm=method, tol=1e-7, max_iter=4000, backend=backend.name)
    assert fit.status is Status.ROUNDING
    best = xv.solve(problem, start, over=over, tol=1e-7).value
    assert abs(fit.value - best) <= 1e-11 * best


@pytest.mark.parametrize("gate", [0.0, 1e-16])
def test_a_gate_that_is_closed_to_rounding_is_warned_of(gate, backend):
    """The method sees no slope there, and would say CONVERGED."""
    theta = np.array([0.5, 0.5, 0.0, 0.0, 0.0, gate])
    theta[2:5] = 0.25
    with pytest.warns(xv.DeadUnitsWarning, match="1 of 6 .* the status does not speak of them"):
        fit = xv.solve(gated(), theta, over=BUDGET, max_iter=0, backend=backend.name)
    assert fit.verified.dead_units == 1


# -- saddles -----------------------------------------------------------------------------------------------------------


def twin_problem(lam=1e-3, **keywords):
    return xv.separable(decays, SIGNAL + 0.02 * rng(1).normal(size=T.size), data={"t": T}, lam=lam, **keywords)


TWINS = {
    "free": (None, np.array([1.3, 1.3])),
    "box": (Box(0.0, 10.0), np.array([1.3, 1.3])),
    "simplex": (Simplex(5.0), np.array([2.5, 2.5])),
    "ball": (L2Ball(3.0), np.array([1.3, 1.3])),
}


def leaves_the_saddle(fit, problem, over):
    best = xv.solve(problem, xv.project(np.array([1.0, 3.0]), over), over=over)
    assert best.success
    assert fit.value <= 1.001 * best.value or not fit.success


@pytest.mark.parametrize("kind", TWINS)
@pytest.mark.parametrize("name", METHODS)
def test_two_equal_rates_are_parted(name, kind):
    over, start = TWINS[kind]
    if applies(name, over):
        fit = xv.solve(twin_problem(), start, over=over, algorithm=METHODS[name], max_iter=100)
        leaves_the_saddle(fit, twin_problem(), over)
        assert fit.success or fit.status in (Status.MAX_ITER, Status.STALLED)


def test_two_equal_rates_without_a_ridge_have_no_unique_weights(subtests):
    for name, method in METHODS.items():
        fit = xv.solve(twin_problem(lam=0.0), np.array([1.3, 1.3]), over=Box(0.0, 10.0), algorithm=method)
        with subtests.test(name):
            assert fit.status is Status.RANK_DEFICIENT


def test_two_equal_rates_whose_weights_are_at_a_bound_are_a_solution():
    t = np.linspace(0.0, 2.0, 25)
    for seed in (0, 3):
        y = 2 * np.exp(-0.5 * t) + 0.05 * rng(seed).standard_t(3, 25)
        problem = xv.separable(decays, y, data={"t": t}, W=xv.lower.Bounded(0.0, 0.6), loss=xv.losses.Huber(0.075))
        fit = xv.solve(problem, np.array([0.7, 4.0]), over=Box(0.0, 20.0), tol=1e-9)
        assert fit.theta[0] == pytest.approx(fit.theta[1], abs=1e-6)
        assert np.all(fit.w == 0.6)
        assert fit.status is Status.CONVERGED


@pytest.mark.parametrize(
    ("backend", "over"),
    [
        ("numpy", None),
        ("numpy", Box(0.0, 10.0)),
        ("numpy", Simplex(5.0)),
        ("torch", Simplex(5.0)),
        pytest.param("jax", None, marks=pytest.mark.thorough),
    ],
)
def test_two_equal_rates_are_parted_in_a_batch(backend, over):
    y = SIGNAL + 0.02 * rng(1).normal(size=(3, T.size))
    problem = xv.separable(together, y, data=T, lam=1e-3)
    apart = xv.solve_many(problem, np.tile([1.0, 4.0], (3, 1)), over=over, backend=backend)
    assert apart.success.all()
    fit = xv.solve_many(problem, np.array([[2.5, 2.5], [1.0, 4.0], [2.5, 2.5]]), over=over, backend=backend)
    assert fit.success.all()
    assert fit.value == pytest.approx(apart.value, rel=1e-6)
    assert fit.n_iter[1] == apart.n_iter[1]


@pytest.mark.parametrize("name", ["default", "spectral"])
def test_a_saddle_is_no_success_where_no_iteration_is_left(name):
    whole = xv.solve(twin_problem(), np.array([1.3, 1.3]), max_iter=100, algorithm=METHODS[name]).trace.value
    at = next(n for n in range(1, len(whole)) if whole[n] < 0.9 * whole[n - 1] and n > 1)  # the step out of the saddle
    fit = xv.solve(twin_problem(), np.array([1.3, 1.3]), max_iter=at - 1, algorithm=METHODS[name])
    assert fit.status is Status.MAX_ITER
    assert fit.n_iter == at - 1
    saddle = xv.solve(twin_problem(), fit.theta, max_iter=0, algorithm=METHODS[name])
    assert saddle.status is Status.MAX_ITER


@pytest.mark.parametrize("name", ["default", "spectral", "quasi-Newton"])
def test_a_saddle_is_left_where_the_jacobian_is_regular(name):
    """Two peaks in the place of three: steps from a start that is even stay even, and end in a saddle."""
    t = np.linspace(-5.0, 5.0, 101)

    def peaks(theta, data):
        xp = xv.array_namespace(theta)
        return xp.exp(-2.0 * (xp.expand_dims(data, axis=1) - theta) ** 2)

    problem = xv.separable(peaks, peaks(np.array([-2.0, 0.0, 2.0]), t) @ [0.8, 1.0, 0.8], data=t)
    aside = xv.solve(problem, np.array([-0.5, 0.6]))
    fit = xv.solve(problem, np.array([-1.0, 1.0]), algorithm=METHODS[name])
    assert fit.status is Status.CONVERGED
    assert fit.value == pytest.approx(aside.value, rel=1e-6)


@pytest.mark.parametrize("over", [None, Box(0.01, 10.0)], ids=repr)
def test_a_minimum_with_equal_rates_is_one(over):
    """Four decays for three: the Gauss-Newton matrix is singular where two are equal, the Hessian is not."""
    draw, t = rng(7), np.linspace(0.0, 2.0, 60)
    n = draw.integers(1, 4)
    M = np.exp(-np.outer(t, np.sort(draw.uniform(0.2, 8, n))))
    y = M @ draw.uniform(0.5, 2, n) + 10 ** draw.uniform(-6, -1) * draw.normal(size=60)
    start = np.array([2.77373873, 5.99371117, 6.07870995, 7.87928553])
    fit = xv.solve(xv.separable(decays, y, data={"t": t}, lam=1e-6), start, over=over, max_iter=400)
    assert fit.success
    assert np.min(np.diff(np.sort(fit.theta))) < 1e-5


def test_a_minimum_is_not_left(subtests):
    """The same iterations, and the same theta, whether a minimum is looked at again or not."""
    problem = decay_problem(noise=0.02, lam=1e-3)
    best = xv.solve(problem, np.array([0.5, 8.0]), over=Box(0.0, 10.0), tol=1e-9)
    for name, method in METHODS.items():
        again = xv.solve(problem, best.theta, over=Box(0.0, 10.0), algorithm=method, tol=1e-4)
        with subtests.test(name):
            assert again.status is Status.CONVERGED
            assert again.n_iter == 0
            assert (again.theta == best.theta).all()


# -- what a tolerance means -------------------------------------------------------------------------------------------


def affine_column(theta, data):
    return xv.array_namespace(theta).expand_dims(data["B"] @ theta - data["t"], axis=1)


@pytest.mark.parametrize(
    "over",
    [None, xv.sets.Box(-0.1, 0.1), xv.sets.L2Ball(0.5), xv.sets.L2Ball(50.0), xv.sets.Simplex()],
    ids=["free", "box", "ball", "wide ball", "simplex"],
)
@pytest.mark.parametrize("name", ["ProjectedQuasiNewton", "SpectralProjectedGradient", "AcceleratedProjectedGradient"])
def test_a_tolerance_means_as_many_digits_of_theta_on_every_set(name, over):
    """A gap alone leaves half of the digits on a ball, and fewer in a set that is small."""
    draw = rng(0)
    data = {"B": draw.normal(size=(60, 40)) / 8, "t": draw.normal(size=60)}
    problem = xv.separable(affine_column, 3 * rng(1).normal(size=60), data=data, lam=1e-2)
    fit = xv.solve(problem, np.full(40, 1 / 40), over=over, algorithm=getattr(algorithms, name)())
    assert fit.status is Status.CONVERGED
    best = xv.solve(problem, fit.theta, over=over, algorithm=algorithms.ProjectedQuasiNewton(), tol=1e-10)
    assert np.linalg.norm(fit.theta - best.theta) <= 1e-4 * np.linalg.norm(best.theta)


def test_the_page_on_stopping_names_every_status():
    page = (Path(__file__).parents[1] / "docs" / "stopping.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([A-Z_]+)`", page.partition("## ")[0]))
    assert named == {status.name for status in Status if status is not Status.RUNNING}


def test_curvature_is_looked_at_where_a_few_gradients_show_all_of_it(monkeypatch):
    """Not of many parameters, of rows in chunks or of a lower level that is solved by iteration."""
    looked = []

    def watched(probe, scale, eps):
        looked.append(scale.size)
        return Curvature([], 0.0, 0.0)

    monkeypatch.setattr(restarts, "curvature", watched)
    t = np.linspace(0.0, 2.0, 90)
    y = np.exp(-np.outer(t, [1.0, 4.0])) @ np.ones(2)

    def two(theta, t):
        xp = xv.array_namespace(theta)
        return xp.exp(-xp.expand_dims(t, axis=1) * theta[:2])

    few, many = np.array([0.5, 6.0]), np.concatenate([[0.5, 6.0], np.zeros(80)])
    rows = xv.RowChunks.cut(t, y, 40)
    spectral = {"algorithm": xv.algorithms.SpectralProjectedGradient(), "tol": 1e-6, "max_iter": 300}
    for problem, theta0 in (
        (xv.separable(two, y, data=t), many),
        (xv.separable(two, rows), few),
        (xv.separable(two, y, data=t, solver=xv.lower.LSMR()), few),
    ):
        assert xv.solve(problem, theta0, **spectral).success
        assert looked == []
    assert xv.solve(xv.separable(two, y, data=t), few, **spectral).success
    assert looked == [2]


def test_a_start_from_which_two_peaks_collapse_is_tried_again_with_shorter_steps():
    """Two peaks at one place have amplitudes of opposite signs that no step makes smaller again."""
    x = np.linspace(0, 100, 100)

    def M(p, x):
        return xv.models.columns(xv.models.gaussians(x, p[:2], p[2:]), xv.models.polynomials(x, 0))

    truth, start = np.array([42.6, 60.0, 3.0, 6.26]), np.array([35.0, 60.0, 4.0, 6.0])
    y = M(truth, x) @ [42.0, 50.0, 0.3] + 0.02 * rng(0).normal(size=100)
    fit = xv.solve(xv.separable(M, y, data=x), start, over=(0.5, 100.0))
    assert fit.status is Status.CONVERGED
    assert error(fit.theta, truth) <= 1e-3
    stopped = xv.solve(xv.separable(M, y, data=x), np.array([51.26, 51.2601, 6.0, 6.0]), over=(0.5, 100.0), max_iter=0)
    assert "terms of opposite signs cancel: |w| |M| is" in repr(stopped)
    assert "cancel" not in repr(fit)


def test_a_component_that_is_closed_is_looked_for_elsewhere():
    """A peak where the data are below 0 has weight 0, and its place no slope: over the bounds there is a better one."""
    x = np.linspace(0.0, 100.0, 51)
    y = xv.models.gaussians(x, np.array([30.0, 70.0, 50.0]), 4.0) @ [1.0, 0.5, -0.3]
    problem = xv.separable(lambda c, x: xv.models.gaussians(x, c, 4.0), y, data=x, W=xv.lower.Nonnegative())
    fit = xv.solve(problem, np.array([31.0, 50.0]), over=(0.0, 100.0))
    assert fit.status is Status.CONVERGED
    assert np.abs(fit.theta - [30.0, 70.0]).max() <= 0.5


def test_an_end_where_a_weight_opens_is_looked_at_from_both_sides():
    """At the kink the matrix of the closed side promises rounding, and the other side leads on."""
    t = np.linspace(0.0, 2.0, 40)

    def wave(theta, t):
        xp, (rate, omega) = xv.array_namespace(theta), (theta[..., j, None] for j in (0, 1))
        return xp.stack([xp.exp(-rate * t) * xp.cos(omega * t), 1 + 0 * rate * t], axis=-1)

    y = 1.1 * np.exp(-t) * np.cos(0.7 * t) + 0.1 * np.random.default_rng(3).normal(size=40)
    best = xv.solve(xv.separable(wave, y, data=t), [1.0, 0.7])
    y, (rate, omega) = y - best.w[1] + 4e-3, best.theta

    def offset(rate):
        return np.linalg.lstsq(wave(np.array([rate, omega]), t), y)[0][1]

    kink = scipy.optimize.brentq(offset, rate - 0.3, rate)
    starts = np.array([[kink * (1 + i * 6e-8), omega] for i in range(-6, 7)], dtype=np.float32)
    y, given = np.tile(y, (13, 1)).astype(np.float32), {"data": t.astype(np.float32), "W": xv.lower.Nonnegative()}
    many = xv.solve_many(xv.separable(wave, y, **given), starts, over=(0.0, 20.0), tol=1e-9)
    alone = [xv.solve(xv.separable(wave, y[0], **given), x, over=(0.0, 20.0), tol=1e-9) for x in starts]
    for found in (many.theta[:, 0], [fit.theta[0] for fit in alone]):
        np.testing.assert_allclose(found, rate, rtol=1e-4)
