"""Levenberg-Marquardt in `solve`: Kaufman's Jacobian, few iterations, sets, and the same answers in any units."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.optimize

import xvarpro as xv
from xvarpro import algorithms
from xvarpro.algorithms.levenberg_marquardt import REJECTIONS, _bfgs, minimise_model
from xvarpro.backends.numpy import NumPyBackend
from xvarpro.driver.prepare import prepare
from xvarpro.objective.gauss_newton import Local, gauss_newton
from xvarpro.sets.region import resolve

from .support import decays, error, host, rng, send, with_offset

T = np.linspace(0.0, 2.0, 60)
RATES, SPREAD = np.array([1.0, 5.0]), 1e-2


def signal(k=None, seed=0):
    draw = rng(seed)
    w = np.array([2.0, 1.0]) if k is None else draw.uniform(0.5, 2.0, (2, k))
    y = np.exp(-T[:, None] * RATES) @ w
    return y + SPREAD * draw.normal(size=y.shape)


def model_at(problem, theta):
    prepared = prepare(problem, theta)
    return gauss_newton(prepared.assemble(prepared.problem), prepared.theta)


def blocks(of, theta, data):
    """Two data sets: one with a decay of its own, and with the weights of the other or with weights of its own."""
    xp = xv.array_namespace(theta)
    t = data["t"][:, None]
    first, second = xp.exp(-t * theta[:2]), xp.exp(-t[:-5, :] * theta[1:])
    return of([first, xv.operators.BlockDiagonal([second])])


def joined(of):
    """The same design as one array."""
    return lambda theta, data: blocks(of, theta, data).dense()


@pytest.mark.parametrize("of", [xv.operators.BlockDiagonal, xv.operators.Stacked])
def test_designs_in_blocks_have_the_tangents_of_the_array_that_they_make(of):
    theta, t, m = np.array([0.7, 4.0, 2.0]), np.linspace(0.0, 2.0, 30), 55
    draw = rng(0)
    M = blocks(of, theta, {"t": t}).dense()
    y = M @ draw.uniform(1.0, 2.0, (M.shape[1], 3)) + 0.01 * draw.normal(size=(m, 3))
    rows = draw.uniform(0.5, 2.0, m)
    for target, options in (
        (y[:, 0], {}),
        (y, {"lam": 0.2}),
        (y[:, 0] + 1j * y[:, 1], {"weights": rows}),
        (y, {"weights": draw.uniform(0.5, 2.0, (m, 3))}),
    ):
        problems = [xv.separable(M, target, data={"t": t}, **options) for M in (lambda *a: blocks(of, *a), joined(of))]
        (_, slopes, H), (_, want, other) = (model_at(problem, theta) for problem in problems)
        assert error(slopes, want) <= 1e-10
        assert error(H, other) <= 1e-10
        fits = [xv.solve(problem, theta, max_iter=3) for problem in problems]
        assert "LevenbergMarquardt" in fits[0].algorithm
        ours, theirs = (fit.statistics() for fit in fits)
        assert ours.covariance == pytest.approx(theirs.covariance, rel=1e-5, abs=1e-12)
        assert ours.dof == pytest.approx(theirs.dof)


def moving_target(theta, t):
    return signal(2) + (theta[0] * t)[:, None]


def penalty(theta):
    return (theta[0] - 2.0) ** 2 + theta[1] ** 2


def bilevel(**lower):
    levels = xv.Level(decays, signal(2), **lower), xv.Level(with_offset, signal(2, seed=3))
    return xv.bilevel(lower=replace(levels[0], M=with_offset), upper=levels[1], data=T, R=penalty, mu=0.1)


GRADIENTS = {
    "penalty": xv.separable(decays, signal(), data=T, R=penalty, mu=0.3),
    "weights of rows": xv.separable(decays, signal(), data=T, weights=rng(1).uniform(0.5, 2.0, 60)),
    "weights of entries": xv.separable(decays, signal(3), data=T, weights=rng(1).uniform(0.5, 2.0, (60, 3))),
    "target": xv.separable(decays, moving_target, data=T, lam=1e-2),
    "weight set": xv.separable(decays, signal(), data=T, W=xv.lower.Equality(np.array([[1.0, -2.0]]))),
    "affine weights": xv.separable(decays, signal(), data=T, W=xv.lower.Equality(np.array([[1.0, -2.0]]), 0.5)),
    "two levels": bilevel(lam=1e-2),
    "ridge of the lower level": bilevel(lam=lambda theta, t: 1e-2 * theta[0] ** 2),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_problems_of_every_kind_are_solved(name):
    problem, theta = GRADIENTS[name], np.array([0.7, 4.0])
    first = xv.value_and_gradient(problem, theta)[1]
    fit = xv.solve(problem, theta, algorithm=algorithms.LevenbergMarquardt())
    assert np.abs(xv.value_and_gradient(problem, fit.theta)[1]).max() <= 1e-4 * np.abs(first).max()


def test_a_ridge_that_the_objective_measures_is_no_residual():
    problem = xv.separable(decays, signal(), data=T, lam=lambda theta, t: 1e-2 * theta[0] ** 2)
    assert "LevenbergMarquardt" not in xv.solve(problem, np.array([0.7, 4.0]), max_iter=0).algorithm


@pytest.mark.parametrize("over", [xv.sets.Box(0.0, 20.0), xv.sets.Simplex(4.0), xv.sets.Box(0.0, np.inf)])
@pytest.mark.parametrize("p", [2, 6])
def test_a_nearly_singular_model_takes_few_rounds(p, over):
    """Faces are found by steps that end at their bounds, not by zigzagging along a valley."""
    draw, rounds = rng(p), []

    class Counting(NumPyBackend):
        def while_loop(self, going, body, state):
            while bool(going(state)):
                rounds.append(1)
                state = body(state)
            return state

    x = np.full((1, p), 4.0 / p)
    for _ in range(20):
        v = draw.normal(size=(p, p - 1)) * np.array([1.0] + [1e-3] * (p - 2))
        B, g = (v @ v.T + 1e-13 * np.eye(p))[None, ...], draw.normal(size=(1, p))
        regions = resolve(over, x[0])
        y, decrease = minimise_model(Counting(), regions, x, g, B)
        slope = (g + (B @ (y - x)[..., None])[..., 0])[0]
        assert y.min() >= 0
        assert bool(over.contains(y[0], 1e-14))
        d = over.project(y[0] - slope / B[0].diagonal().max()) - y[0]
        assert np.abs(d).max() <= 1e-6 * np.abs(y).max()
        assert decrease[0] >= 0
    assert len(rounds) <= 20 * (p + 2)  # on average


def six(noise=1e-3):
    draw = rng(0)
    t = np.linspace(0.0, 10.0, 900)
    rates = np.array([0.1, 0.4, 1.0, 2.5, 6.0, 15.0])
    y = np.exp(-np.outer(t, rates)) @ draw.normal(size=(6, 50)) + noise * draw.normal(size=(900, 50))
    return xv.separable(decays, y, data=t), rates * np.array([1.5, 1.5, 1.5, 1.4, 1.3, 1.3]), None


def offset():
    return xv.separable(with_offset, signal() + 0.5, data=T), np.array([0.5, 8.0]), None


def simplex():
    t = np.linspace(0.0, 2.0, 200)
    y = np.exp(-np.outer(t, [0.5, 2.5, 9.0])) @ np.array([1.0, -2.0, 3.0]) + 1e-3 * rng(0).normal(size=200)
    return xv.separable(decays, y, data=t, lam=1e-6), np.array([4.0, 4.5, 3.5]), xv.sets.Simplex(12.0)


def bound():
    """The smaller rate is below the bound, and the start is next to two equal rates."""
    return xv.separable(decays, signal(), data=T), np.array([2.0, 2.001]), xv.sets.Box(1.2, 20.0)


def two():
    return xv.separable(decays, signal(), data=T), np.array([0.5, 8.0]), xv.sets.Box(0.0, 10.0)


PROBLEMS = {"six": (six, 15), "offset": (offset, 15), "simplex": (simplex, 15), "bound": (bound, 16), "two": (two, 10)}


@pytest.mark.parametrize("name", PROBLEMS)
def test_few_iterations(name):
    made, most = PROBLEMS[name]
    problem, theta0, over = made()
    fit = xv.solve(problem, theta0, over=over)
    assert "LevenbergMarquardt" in fit.algorithm
    assert fit.status is xv.Status.CONVERGED
    assert fit.n_iter <= most
    other = xv.solve(problem, fit.theta, over=over, algorithm=algorithms.SpectralProjectedGradient(), max_iter=300)
    assert fit.value <= other.value * (1 + 1e-9)


def test_a_minimum_with_a_large_residual_is_reached_fast():
    """A model that fits badly: Gauss-Newton alone is slow there, and the quasi-Newton model takes over."""
    t = np.linspace(0.0, 3.0, 40)
    y = np.sin(6 * t) + 0.3
    problem = xv.separable(decays, y, data=t)
    fit = xv.solve(problem, np.array([0.3, 2.0]), tol=1e-8, algorithm=algorithms.LevenbergMarquardt())
    assert fit.success
    assert fit.n_iter <= 60
    _, gradient = xv.value_and_gradient(problem, fit.theta)
    assert np.abs(gradient).max() <= 1e-6 * fit.value


@pytest.mark.parametrize("unit", [1.0, 2.0**-60, 2.0**60])
def test_the_quasi_newton_matrix_is_that_of_bfgs_in_any_units(unit):
    """Of the objective and of theta; without curvature along the step it stays."""
    draw, units = rng(0), np.array([1.0, 2.0**-40, 2.0**40])
    A = draw.normal(size=(3, 3))
    B, s, y = A @ A.T, draw.normal(size=3), draw.normal(size=3)
    y *= np.sign(s @ y)
    want = B + np.outer(y, y) / (s @ y) - np.outer(B @ s, B @ s) / (s @ B @ s)
    scaled = unit * B * np.outer(units, units)
    root = np.sqrt(np.diagonal(scaled))
    for sign, matrix in ((1, want), (-1, B)):
        found = _bfgs(np, scaled[None], (s / units)[None], (sign * unit * units * y)[None], root[None])[0]
        assert found / unit / np.outer(units, units) == pytest.approx(matrix, rel=1e-12)


class Vertices(xv.sets.Simplex):
    """A simplex that offers neither a projection nor its faces."""

    has_faces = False
    project = xv.sets.Set.project


def test_a_set_of_vertices_alone_is_enough_for_the_minimum():
    """Roughly, as its page says; what is returned is in the set."""
    problem, theta0, over = simplex()
    algorithm = algorithms.LevenbergMarquardt()
    want = xv.solve(problem, theta0, over=over, algorithm=algorithm)
    fit = xv.solve(problem, theta0, over=Vertices(over.radius), algorithm=algorithm, tol=1e-3)
    assert fit.value == pytest.approx(want.value, rel=1e-3)
    assert float(over.violation(fit.theta)) <= 1e-14
    assert error(fit.theta, want.theta) <= 0.1


def test_parts_of_a_set_whose_sizes_are_far_apart_are_all_promised():
    """No gradient step fits both: one part was left where it began, and such a point passed for a minimum."""
    x, goal = np.array([[0.0, 1e-5, 0.0, 0.0]]), np.array([[1e-5, 0.0, 1e5, 0.0]])
    units = np.array([1e5, 1e5, 1e-5, 1e-5])
    B = np.diag(units**2)[None, ...]
    grad = (B @ (x - goal)[..., None])[..., 0]
    over = xv.sets.Product([xv.sets.Simplex(1e-5), xv.sets.L2Ball(1e5)], [2, 2])
    y, decrease = minimise_model(NumPyBackend(), resolve(over, x[0]), x, grad, B)
    assert error(y * units, goal * units) <= 1e-6
    assert decrease[0] == pytest.approx(1.5, rel=1e-6)


@pytest.mark.parametrize("way", [1e-3, 1e-7, 1e-10])
def test_a_bound_is_let_go_for_a_short_way_too(way):
    """One entry leaves its bound, one stays where it is, one is stopped by a bound."""
    x, goal = np.array([[0.0, 0.5, 1.0]]), np.array([[way, 0.5, 1.25]])
    B = np.array([[[2.0, 1.0, 0.0], [1.0, 2.0, 0.0], [0.0, 0.0, 1.0]]])
    grad = (B @ (x - goal)[..., None])[..., 0]
    y, decrease = minimise_model(NumPyBackend(), resolve(xv.sets.Box(), x[0]), x, grad, B)
    assert y[0] == pytest.approx([way, 0.5, 1.0], rel=1e-6, abs=1e-6 * way)
    assert decrease[0] == pytest.approx(way**2, rel=1e-6)


def test_a_slope_across_a_face_does_not_disturb_the_step_within():
    """On a simplex a number may be added to every slope: what rounding leaves of it is no step, and stops none."""
    draw, over = rng(0), xv.sets.Simplex()
    for _ in range(30):
        x, root = draw.dirichlet(np.ones(6))[None, :], draw.normal(size=(6, 6))
        B, grad = (root @ root.T + np.eye(6))[None, ...], 1e-5 * draw.normal(size=(1, 6))
        regions = resolve(over, x[0])
        plain, steep = (minimise_model(NumPyBackend(), regions, x, grad + c, B)[0] for c in (0.0, 1e6))
        assert error(steep - x, plain - x) <= 1e-4


def test_what_bounds_one_problem_does_not_reach_its_neighbours():
    """A problem whose Newton point is feasible is that point to the last bit, alone or next to others."""
    draw, x = rng(0), np.full((3, 2), 0.5)
    grad, root = np.array([[0.01, -0.02], [5.0, 1.0], [0.0, 0.0]]), draw.normal(size=(3, 2, 2))
    B = root @ np.swapaxes(root, 1, 2) + np.eye(2)
    regions = resolve(xv.sets.Box(), x[0])
    together = minimise_model(NumPyBackend(), regions, x, grad, B)
    for i in range(3):
        alone = minimise_model(NumPyBackend(), regions, *(a[i : i + 1] for a in (x, grad, B)))
        assert [host(a)[i].tolist() for a in together] == [host(a)[0].tolist() for a in alone]
    assert error(together[0][0], x[0] - np.linalg.solve(B[0], grad[0])) <= 1e-15
    assert (together[0][1] == [0.0, 0.0]).any()


# sets of one amplitude, whose free value is 3.0038, and the value that it then has
SETS_OF_W = {
    "nonnegative": (xv.lower.Nonnegative(), None),
    "simplex": (xv.lower.Simplex(3.0), 3.0),
    "l1": (xv.lower.L1(1e-12), None),
}


def test_steps_with_amplitudes_in_a_set_know_the_units_of_theta(subtests):
    """Sizes of 1e10 and 1: no step that is not scaled moves both; against SciPy on all parameters."""
    kT = 8.617e-5 * np.linspace(300.0, 400.0, 21)
    y = 3 / (1 + 1e10 * np.exp(-0.7 / kT)) + 0.01 * rng(0).normal(size=21)

    def M(p, kT):
        return (1 / (1 + p["C"] * xv.array_namespace(p["C"]).exp(-p["W"] / kT)))[:, None]

    def residual(q, w):
        return (q[2] if w is None else w) / (1 + np.exp(q[0] - q[1] / kT)) - y

    for name, (W, w) in SETS_OF_W.items():
        with subtests.test(name):
            want = scipy.optimize.least_squares(residual, [np.log(3e9), 0.65, 3.0], args=(w,), xtol=1e-14, ftol=1e-14)
            fit = xv.solve(xv.separable(M, y, data=kT, W=W), {"C": np.array(3e9), "W": np.array(0.65)})
            assert fit.status is xv.Status.CONVERGED
            assert fit.value == pytest.approx(want.cost, rel=1e-6)
            assert fit.n_iter <= 25


ALGORITHMS = {
    "default": None,
    "spectral": algorithms.SpectralProjectedGradient(),
    "quasi-Newton": algorithms.ProjectedQuasiNewton(),
    "accelerated": algorithms.AcceleratedProjectedGradient(),
    "paper": algorithms.cr_varpro(),
}


def peak(theta, x):
    xp = xv.array_namespace(theta)
    return xp.expand_dims(xp.exp(-0.5 * ((x - theta[1]) / theta[0]) ** 2), axis=1)


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_converged_means_a_small_offset(dtype, unit, name):
    """A peak, and a start far from it: the gradient is small there, in most units of theta."""
    x = np.linspace(400.0, 500.0, 51)
    y = 0.4 * np.exp(-0.5 * ((x - 451.5) / 4.1) ** 2) + 1e-3 * rng(0).normal(size=51)
    problem = xv.separable(lambda theta, x: peak(theta * unit, x), y.astype(dtype), data=x.astype(dtype))
    theta0 = (np.array([10.0, 480.0]) / unit).astype(dtype)
    fit = xv.solve(problem, theta0, algorithm=ALGORITHMS[name], max_iter=300)
    if not fit.success:
        assert name != "default"
        return
    theta = np.asarray(fit.theta, np.float64) * unit

    def residual(theta):
        M = np.exp(-0.5 * ((x - theta[1]) / theta[0]) ** 2)[:, None]
        return M @ np.linalg.lstsq(M, y, rcond=None)[0] - y

    h = 1e-6 * np.abs(theta)
    J = np.array(
        [(residual(theta + s * e) - residual(theta - s * e)) / (2 * s) for s, e in zip(h, np.eye(2), strict=True)]
    )
    r = residual(theta)
    Q = np.linalg.qr(J.T)[0]
    offset = np.linalg.norm(Q.T @ r) / np.linalg.norm(r)
    assert offset <= (1e-5 if dtype == "float64" else 3e-2)


def test_targets_that_are_torchs_keep_their_values():
    """Targets far from 1 are scaled inside a solve only."""
    backend = xv.backends.get("torch")
    y = send(backend, 1e30 * signal())
    kept = y.clone()
    fit = xv.solve(xv.separable(decays, y, data=send(backend, T)), send(backend, np.array([0.7, 4.0])))
    assert fit.success
    assert bool((y == kept).all())
    assert fit.w.abs().max() > 1e30


@pytest.mark.frameworks
@pytest.mark.parametrize("method", [None, xv.algorithms.ProjectedQuasiNewton()], ids=["default", "quasi-Newton"])
def test_a_model_with_a_derivative_in_reverse_alone_has_tangents(method):
    """As of `jax.custom_vjp`, which JAX itself does not differentiate forward."""
    jax = pytest.importorskip("jax")

    @jax.custom_vjp
    def decay(x):
        return jax.numpy.exp(-x)

    decay.defvjp(lambda x: (decay(x), decay(x)), lambda value, g: (-value * g,))

    def M(theta, t):
        return decay(jax.numpy.expand_dims(t, axis=1) * theta)

    t = np.linspace(0.0, 2.0, 50)
    problem = xv.separable(M, np.exp(-t) + np.exp(-4 * t), data=t, solver=xv.lower.SVD())
    fit = xv.solve(problem, np.array([0.5, 3.0]), backend="jax", algorithm=method)
    np.testing.assert_allclose(fit.theta, [1.0, 4.0], rtol=1e-6)


class Told:
    """A batch of objectives whose values and gradients at trials are given."""

    backend, problem = xv.backends.get("numpy"), SimpleNamespace(mu=1.0)

    def __init__(self, x, answers):
        self.answers, self.region = iter(answers), resolve(None, x[0])

    def local(self, x):
        value, grad = next(self.answers)
        curvature = np.broadcast_to(np.eye(x.shape[1]), (*x.shape, x.shape[1]))
        return Local(np.array(value), np.array(grad), curvature, np.zeros(len(x), bool))


def first(method, f, x):
    return method.first(f, f.region, x, f.local(x))


def tried(method, f, point, noise):
    trial = method.trial(f, f.region, point)
    return method.after(f, f.region, point, trial, f.local(trial[0]), noise)


def trials(x, *answers):
    f, method = Told(x, answers), algorithms.LevenbergMarquardt()
    point = first(method, f, x)
    assert point.rejected.dtype == np.int32
    return tried(method, f, point, 0 * point.local.value)


def test_problems_of_a_batch_come_to_rest_by_themselves():
    """A refused step below the rounding of theta ends a problem, and that one alone."""
    grad = [[1e-30, 0.0], [1.0, 0.0]]
    for x in (np.ones((2, 2)), -np.ones((2, 2))):
        _, accepted, ended = trials(x, ([1.0, 1.0], grad), ([2.0, 2.0], grad))
        assert accepted.tolist() == [False, False]
        assert ended.tolist() == [True, False]


def test_a_problem_that_is_refused_too_often_has_no_descent():
    x, grad, method = np.ones((2, 2)), [[1.0, 0.0], [1.0, 0.0]], algorithms.LevenbergMarquardt()
    f = Told(x, [([1.0, 1.0], grad), ([2.0, 2.0], grad)])
    point = first(method, f, x)
    point = point._replace(rejected=np.array([REJECTIONS - 1, REJECTIONS], dtype=np.int32))
    after, accepted, ended = tried(method, f, point, 0 * point.local.value)
    assert not accepted.any()
    assert after.rejected.tolist() == [REJECTIONS, REJECTIONS + 1]
    assert ended.tolist() == [False, True]


def peaks(theta, t):
    return xv.array_namespace(theta).exp(-((t[:, None] - theta) ** 2))


@pytest.mark.frameworks
@pytest.mark.parametrize("kind", ["complex", "two columns, a ridge"])
def test_many_tangents_of_a_compiled_program_are_those_of_few(kind):
    """More than a program has the text of each of: one in a loop."""
    jax = xv.backends.get("jax")
    t, centres = np.linspace(0.0, 36.0, 60), 2.0 * np.arange(18) + 0.8
    y, lam = (np.sin(t) + 1j * t / 10, 0.0) if kind == "complex" else (np.stack([np.sin(t) + t / 10, t], axis=1), 0.1)
    problem = xv.separable(peaks, y, data=t, lam=lam)
    _, gradient, H = model_at(problem, centres)
    prepared = prepare(problem, centres, backend="jax")
    with jax.scope("float64"):
        found = gauss_newton(prepared.assemble(prepared.problem), prepared.theta)
    assert error(host(found[1]), gradient) <= 1e-10
    assert error(host(found[2]), H) <= 1e-10


TRIED = algorithms.LevenbergMarquardt(damping=5e-3)  # for points whose damping is 1e-3, as after a step


def after_a_step(point):
    return point._replace(model=point.model._replace(damping=np.full_like(point.model.damping, 1e-3)))


def test_damping_follows_the_ratio_of_the_decrease_to_the_promised_one():
    """Nielsen (1999), with a floor; what rounding hides is accepted for less that is left to gain."""
    grad, shares = np.array([3.0, -4.0]), np.array([1.0, 0.8, 0.5, 0.1, 2e-4, 0.5e-4, 1e-9, -1.0, np.nan, 0.3, 0.3])
    b, noise = len(shares), np.where(np.arange(len(shares)) < 9, 0.0, 1e3)
    x, step = np.ones((b, 2)), -grad / (1 + 1e-3)
    promised = -grad @ step - 0.5 * step @ step
    new = np.tile(0.1 * grad, (b, 1))
    new[-1] = 2 * grad
    f = Told(x, [(100.0 + 0 * shares, np.tile(grad, (b, 1))), (100.0 - shares * promised, new)])
    after, accepted, ended = tried(TRIED, f, after_a_step(first(TRIED, f, x)), noise)
    taken = [True] * 5 + [False] * 4 + [True, False]
    assert accepted.tolist() == taken
    assert not ended.any()
    shrink = np.maximum(1 - (2 * shares - 1) ** 3, 0.1)
    # refused: as much as leaves what the parabola says of the step, where the curvature is 0.15 of that along the step
    left = np.clip(1 / (2 - shares * promised / (0.5 * -grad @ step)), 0.1, 0.5)
    damping = np.where(taken, 1e-3 * shrink, np.where(np.isnan(shares), 1e-3, 0.15 * (1 / left - 1)))
    assert error(after.model.damping, damping) <= 1e-12
    assert after.model.growth.tolist() == np.where(taken | np.isnan(shares), 4.0, 16.0).tolist()
    assert after.rejected.tolist() == np.where(taken, 0, 1).tolist()
    assert error(after.theta, np.where(np.array(taken)[:, None], x + step, x)) <= 1e-15
    # a level trial that gains less than a ten-thousandth of what was promised is damped as little as any
    level, method = Told(x[:1], [([100.0], [grad]), ([100.0], [0.1 * grad])]), algorithms.LevenbergMarquardt()
    after, accepted, _ = tried(method, level, first(method, level, x[:1]), np.array([1.0]))
    assert (accepted.tolist(), after.model.damping.tolist()) == ([True], [pytest.approx(1e-4)])
    # the first damping of all is a guess: it grows fourfold, whatever its trial says
    higher = Told(x[:1], [([100.0], [grad]), ([900.0], [grad])])
    after, accepted, _ = tried(method, higher, first(method, higher, x[:1]), np.zeros(1))
    assert (accepted.tolist(), after.model.damping.tolist()) == ([False], [4e-3])


def test_a_step_to_where_there_is_no_value_is_shortened_once_before_it_is_damped():
    grad, nan = np.array([3.0, -4.0]), np.nan
    x, step, method = np.ones((2, 2)), -grad / (1 + 1e-3), TRIED
    promised = 0.9 * (-grad @ step - 0.5 * step @ step)
    same, less = [grad, grad], [0.1 * grad, 0.1 * grad]
    f = Told(x, [([100.0, 100.0], same), ([nan, nan], same), ([100.0 - promised, nan], less)])
    point = after_a_step(first(method, f, x))
    for want, short, damping in (
        ([False, False], [True, True], [1e-3, 1e-3]),
        ([True, False], [False, True], [1e-4, 0.15 / 0.9]),
    ):
        point, accepted, _ = tried(method, f, point, np.zeros(2))
        assert accepted.tolist() == want
        assert point.model.short.tolist() == short
        assert error(point.model.damping, np.array(damping)) <= 1e-12
    assert error(point.theta, np.stack([x[0] + 0.9 * step, x[1]])) <= 1e-15
    trial, _ = method.trial(f, f.region, point)
    assert error(trial[1], x[1] - 0.9 * grad / (1 + 0.15 / 0.9)) <= 1e-15


def test_refused_steps_are_damped_by_what_they_have_shown():
    """The model's step is far too long: it was refused six times at one value before a trial lay elsewhere."""
    t = np.linspace(0.0, 20.0, 200)
    y = np.exp(-np.outer(t, [0.3, 1.5])) @ [3.0, 2.0] + 0.5 + 0.01 * rng(0).normal(size=200)
    problem = xv.separable(with_offset, y, data=t)
    for over in (None, (0.0, 10.0)):
        fit = xv.solve(problem, np.array([0.5, 2.0]), over=over)
        assert fit.status is xv.Status.CONVERGED
        assert fit.n_iter <= 10


def test_a_step_that_a_bound_cuts_is_made_shorter_than_its_way_to_the_bound():
    """Of one theta: the way to the minimum was a share of the step without the bound, which is much longer."""
    t = np.linspace(0.02, 1.0, 24)
    y = 0.5 * t / (1 + t) - 1.8 + 0.1 * np.sin(9.0 * t)

    def saturation(theta, t):
        return xv.models.columns((t / (t + theta))[:, None], xv.models.polynomials(t, 0))

    problem = xv.separable(saturation, y, data=t, W=xv.lower.L1(0.03))
    for start in (3.0, 4.0):
        fit = xv.solve(problem, np.array([start]), over=(0.05, 5.0))
        assert fit.status is xv.Status.CONVERGED
        assert fit.value == pytest.approx(0.11991907168312751, rel=1e-9)


def test_a_rate_that_may_not_be_zero_does_not_hold_the_others(backend):
    """A decay of rate 0 is the offset: at this bound there is no value, and steps to it did not end elsewhere."""
    t = np.linspace(0.0, 12.0, 300)
    y = np.exp(-np.outer(t, [0.2, 1.0, 6.0])) @ [1.0, 2.0, 1.5] + 0.1 + 0.01 * rng(21).normal(size=300)
    problem = xv.separable(with_offset, y, data=t)
    fit = xv.solve(problem, np.array([1.0, 2.0, 10.0]), over=(0.0, 100.0), backend=backend.name)
    assert fit.status is xv.Status.CONVERGED
    assert fit.value == pytest.approx(0.012001876091589, rel=1e-9)


def test_the_better_one_of_two_models_takes_the_next_step():
    grad, x, method = np.array([3.0, -4.0]), np.ones((2, 2)), TRIED
    f = Told(x, [([9.0, 9.0], [grad, grad])])
    point, step = after_a_step(first(method, f, x)), np.array([[-1.0, 0.5], [-1.0, 0.5]])
    Q = 3 * np.broadcast_to(np.eye(2), (2, 2, 2))
    point = point._replace(model=point.model._replace(Q=Q))
    # one change of the gradient is what Q says, the other lies four tenths of the way there from the identity
    change = np.array([3 * step[0], 1.8 * step[1]])
    new = Local(np.array([8.0, 8.0]), grad + change, point.local.curvature, np.zeros(2, bool))
    one, none = np.ones(2), np.zeros(2, bool)
    accepted = method._accepts(point, new, one, none, none)
    model = method._learned(point, new, step, one)
    assert (accepted.tolist(), model.quasi.tolist()) == ([True, True], [True, False])
    assert error(model.Q[0], Q[0]) <= 1e-14
    assert error((model.Q[1] @ step[1])[None], change[1:]) <= 1e-14
    # refused: the other model first, and only then more damping
    worse = new._replace(value=np.array([10.0, 10.0]))
    quasi = point._replace(model=point.model._replace(quasi=np.array([True, False])))
    accepted, model = method._accepts(quasi, worse, one, none, none), method._refused(quasi, worse, step, one)
    assert (accepted.tolist(), model.quasi.tolist()) == ([False, False], [False, False])
    # along the step the curvature is 6.4, and the parabola has its minimum at 5 / 12
    assert model.damping.tolist() == pytest.approx([1e-3, 0.15 * 6.4 * 1.4])
    assert model.growth.tolist() == [4.0, 16.0]
    # without a value: a shorter step of the same model before that
    both = point._replace(model=point.model._replace(quasi=~none, short=np.array([False, True])))
    model = method._refused(both, new._replace(value=np.full(2, np.nan)), step, one)
    assert (model.short.tolist(), model.quasi.tolist()) == ([True, True], [True, False])
    assert model.damping.tolist() == [1e-3, 1e-3]


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
def test_a_trial_without_a_gradient_is_tried_again_nearer(backend):
    t = np.linspace(0.1, 2.0, 40)

    def M(theta, data):  # has a value at a rate of 0, and no derivative there
        xp = xv.array_namespace(theta)
        rates = xp.concat([theta, 2 * theta[:1] + 0.1])
        return xp.exp(-((xp.expand_dims(data, axis=1) * rates) ** 0.9))

    y = np.exp(-(np.outer(t, [1.0, 6.0, 2.1]) ** 0.9)) @ [2.0, 1.0, -0.5] + 0.01 * rng(3).normal(size=40)
    problem = xv.separable(M, y, data=t)
    fit = xv.solve(problem, np.array([0.5, 3.0]), over=xv.sets.Box(0.0, np.array([10.0, 3.5])), backend=backend)
    assert fit.status is xv.Status.CONVERGED
    assert fit.n_iter < 100  # how often a step is halved on the way to 0, 1 to 38 times seen, is up to rounding
