"""What an objective says of itself, and what parabolas promise of it: by hand, on problems of a few numbers."""

import numpy as np
import pytest

import xvarpro as xv
from xvarpro.driver.iteration import promised_decrease
from xvarpro.driver.prepare import prepare
from xvarpro.errors import ProblemError
from xvarpro.objective.decrease import MANY, affordable, free_decrease, set_decrease
from xvarpro.objective.gauss_newton import gauss_newton
from xvarpro.objective.in_memory import InMemory
from xvarpro.objective.least_squares import weighted
from xvarpro.operators import Dense, Weighted
from xvarpro.sets import Box, L2Ball, Simplex
from xvarpro.sets.region import resolve

from .support import Quadratic, decays, rng

T = np.linspace(0.0, 2.0, 14)
RATES = np.array([0.7, 2.0])
ONE, TWO = rng(0).normal(size=14), rng(1).normal(size=(9, 5))
EPS = np.finfo(np.float64).eps


def shorter(theta, data):
    return decays(theta, {"t": data["t"][:9]})


def moving(theta, data):
    return xv.array_namespace(theta).sin(data["t"] * theta[0])


def objective(problem, theta=RATES):
    made = prepare(problem, theta)
    return made.assemble(made.problem), made.theta


KINDS = {
    "one column": (xv.separable(decays, ONE, data={"t": T}), ONE, (14, 1)),
    "columns": (xv.separable(shorter, TWO, data={"t": T}), TWO, (9, 5)),
    "a function": (xv.separable(decays, moving, data={"t": T}), np.sin(0.7 * T), (14, 1)),
    "upper level": (
        xv.bilevel(lower=xv.Level(decays, rng(2).normal(size=(14, 5))), upper=xv.Level(shorter, TWO), data={"t": T}),
        TWO,
        (9, 5),
    ),
    "upper level, a function": (
        xv.bilevel(lower=xv.Level(decays, ONE), upper=xv.Level(decays, moving), data={"t": T}),
        np.sin(0.7 * T),
        (14, 1),
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_scale_shape_and_rounding_are_those_of_the_upper_target(kind):
    problem, y, shape = KINDS[kind]
    f, theta = objective(problem)
    assert f.target_shape == shape
    assert float(f.scale(theta)) == pytest.approx(0.5 * np.sum(y * y), rel=1e-14)
    f.energy = 9.0
    assert float(f.rounding(np.asarray(-4.0))) == pytest.approx(4 * EPS * (4 + 2 * 3), rel=1e-14)


@pytest.mark.parametrize("blocks", [False, True])
def test_the_scale_of_a_wide_design_is_that_of_its_dual_form(blocks):
    """``1/2 |M|^2 |r|^2 / lam``; that of the target where rows depend on each other, and r has a part that stays."""
    y, lam = np.array([3.0, 4.0]), 1e-3
    for dependent, want in ((False, 0.5 * lam * np.sum(y**2) * 4 / (4 + lam) ** 2), (True, 12.5)):
        rows = np.array([[2.0, 0, 0, 0], [2.0, 0, 0, 0] if dependent else [0, 0, 2.0, 0]])

        def design(theta, data):
            whole = data + 0 * theta[0]
            return xv.operators.BlockDiagonal([whole]) if blocks else whole

        f, theta = objective(xv.separable(design, y, lam=lam, data=rows))
        assert float(f.scale(theta)) == pytest.approx(want, rel=1e-9)


def test_the_scale_of_rows_in_chunks_is_that_of_its_theta():
    """It is read off the latest point where that is at the same theta."""
    rows = xv.RowChunks.cut({"t": T}, moving, 5)
    f, theta = objective(xv.separable(decays, rows, lam=0.1))
    for rate in (0.7, 2.1):
        here = (np.array([rate, 2.0]),)
        want = 0.5 * np.sum(np.sin(rate * T) ** 2)
        assert float(f.scale(here)) == pytest.approx(want, rel=1e-13)
        f.point(theta)
        assert float(f.scale(here)) == pytest.approx(want, rel=1e-13)
        f.point(here)
        assert float(f.scale(here)) == pytest.approx(want, rel=1e-13)


def test_shape_of_a_target_that_is_a_function_needs_a_prepared_problem():
    f, _ = objective(KINDS["a function"][0])
    with pytest.raises(ProblemError, match="target_shape needs a prepared problem"):
        _ = InMemory.target_shape.fget(type(f)(f.problem, f.backend, f.treedef))


def test_a_tolerance_is_another_objectives():
    problem = xv.separable(decays, ONE, data={"t": T}, lam=0.1, solver=xv.lower.LSMR())
    f, _ = objective(problem)
    loose = f.with_lower_tolerance(0.25)
    assert (float(f.lower_tol), float(loose.lower_tol)) == (0.0, 0.25)
    assert float(loose.restricted(np.arange(7)).lower_tol) == 0.25


def inverted(theta, data):
    """``(A - theta I)^-1``: NumPy raises where theta is an eigenvalue."""
    xp = xv.array_namespace(theta)
    return xp.linalg.inv(data["A"] - theta[0] * xp.eye(2, dtype=theta.dtype))


def test_derivatives_are_recorded_where_they_are_wanted_alone():
    """Trial points of a search want values: the model meets arrays of the framework there."""
    seen = []

    def model(theta, data):
        seen.append(type(theta) is np.ndarray)
        return decays(theta, data)

    f, theta = objective(xv.separable(model, ONE, data={"t": T}))
    del seen[:]
    f.point(theta)
    f.point(theta, ahead=True)
    assert seen == [True, False]


@pytest.mark.parametrize("ahead", [False, True])
def test_a_model_that_inverts_a_singular_matrix_has_no_value_there(ahead):
    data = {"A": np.diag([1.0, 3.0])}
    f, _ = objective(xv.separable(inverted, np.ones(2), data=data, lam=0.1), np.array([0.5]))
    assert np.isfinite(f.point((np.array([0.5]),), ahead).value)
    assert np.isnan(f.point((np.array([1.0]),), ahead).value)
    grad = (np.full(1, 7.0),)
    point, kept, verdict = f.probed(
        (np.ones(1),), lambda point: (np.isfinite(point.value), np.isnan(point.value)), grad
    )
    assert np.isnan(point.value)
    assert kept is grad
    assert verdict
    single = prepare(
        xv.separable(inverted, np.ones(2, np.float32), data={"A": data["A"].astype(np.float32)}, lam=0.1),
        np.array([0.5], np.float32),
    )
    found = single.assemble(single.problem).evaluate_or_nan((np.array([1.0], np.float32),), ahead)[0]
    assert found.lower.M.dense().dtype == np.float32
    assert np.isnan(found.lower.M.dense()).all()


def test_a_design_that_is_an_array_stays_one_under_weights_of_rows():
    """Which methods for few parameters ask for."""
    rows, entries = rng(3).uniform(0.5, 2.0, (9, 1)), rng(4).uniform(0.5, 2.0, (9, 5))
    for weights, kind in ((rows[:, 0], Dense), (entries, Weighted)):
        f, theta = objective(xv.separable(shorter, TWO, data={"t": T}, weights=weights))
        M = f.evaluate(theta, f.constants).lower.M
        assert type(M) is kind
        A = np.exp(-np.outer(T[:9], RATES))
        for j, column in enumerate(np.broadcast_to(weights.reshape(9, -1), (9, 5)).T):
            assert M.matvec(np.ones((2, 5)))[:, j] == pytest.approx(np.sqrt(column) * A.sum(axis=1), rel=1e-14)
    each = weighted(Dense(rng(5).normal(size=(5, 9, 2))), np.sqrt(rows))
    assert type(each) is Weighted


# -- parabolas ---------------------------------------------------------------------------------------------------------


def many(low=1.0):
    """A quadratic of more parameters than a Jacobian is computed for."""
    n = MANY + 1
    Q, _ = np.linalg.qr(rng(0).normal(size=(n, n)))
    return Quadratic((Q * np.linspace(low, 5.0, n)) @ Q.T, rng(1).normal(size=n), offset=10.0), (rng(2).normal(size=n),)


def test_what_a_free_block_promises_is_the_parabola_along_its_gradient():
    f, theta = many()
    region = resolve(None, theta[0])
    assert not affordable(f, theta)
    (g,) = f.gradient(f.point(theta))
    want = 0.5 * (g @ g) ** 2 / (g @ f.H @ g)
    assert float(free_decrease(f, region, theta, (g,))) == pytest.approx(want, rel=1e-8)
    assert float(free_decrease(f, region, theta, (0 * g,))) == 0.0
    down, theta = many(-50.0)
    (g,) = down.gradient(down.point(theta))
    assert g @ down.H @ g < 0
    assert float(free_decrease(down, region, theta, (g,))) == np.inf


def test_what_few_free_parameters_promise_is_the_gauss_newton_model():
    """Also where the gradient of one of them is 0; one that a bound stops is held, and the others move without it."""
    f, theta = objective(xv.separable(decays, ONE, data={"t": T}))
    assert affordable(f, theta)
    _, _, H = gauss_newton(f, theta)
    for g in (np.array([1.0, 0.5]), np.array([1.0, 0.0])):
        found = float(free_decrease(f, resolve(None, theta[0]), theta, (g,)))
        assert found == pytest.approx(0.5 * g @ np.linalg.solve(H, g), rel=1e-10)
    short, at = objective(xv.separable(decays, ONE.astype("f4"), data={"t": T.astype("f4")}), RATES.astype("f4"))
    assert free_decrease(short, resolve(None, at[0]), at, at).dtype == np.float32
    half = Box(np.array([-np.inf, 2.0]), np.inf)
    stopped = np.array([1.0, 0.5])  # up from a lower bound
    found = float(free_decrease(f, resolve(half, theta[0]), theta, (stopped,)))
    assert found == pytest.approx(0.5 / H[0, 0], rel=1e-10)


@pytest.mark.parametrize(("size", "far"), [(3.0, 3.0), (1e-4, 1e-4), (0.0, 1.0)])
def test_a_second_derivative_is_a_difference_of_gradients_next_to_theta(size, far):
    f, (x,) = many()
    x = size * x / np.linalg.norm(x)
    (g,) = f.gradient(f.point((x,)))
    honest, seen = f.value_and_gradient, []

    def watched(theta):
        seen.append(np.linalg.norm(theta[0] - x))
        return honest(theta)

    f.value_and_gradient = watched
    free_decrease(f, resolve(None, x), (x,), (g,))
    assert seen == pytest.approx([EPS ** (1 / 3) * far], rel=1e-6)


def test_what_both_blocks_promise_is_the_sum_of_what_each_does():
    """Each with the other held, the sets along their own part of the direction."""
    n = MANY + 1
    f = Quadratic(np.diag(np.linspace(1.0, 5.0, n + 3)), rng(1).normal(size=n + 3), offset=10.0)
    theta = (rng(2).normal(size=n), np.array([0.2, 0.3, 0.5]))
    region = resolve((xv.sets.Free(), Simplex()), theta)
    g = f.gradient(f.point(theta))
    vertex = Simplex().lmo(g[1]) - theta[1]
    along, none = (-g[0], vertex), 0 * g[0]
    both = free_decrease(f, region, theta, g) + set_decrease(f, region, theta, g, (none, vertex))
    assert float(promised_decrease(f, region, theta, g, along)) == pytest.approx(float(both), rel=1e-9)
    assert set_decrease(f, region, theta, g, along) != set_decrease(f, region, theta, g, (none, vertex))


@pytest.mark.parametrize("low", [1.0, -50.0])
@pytest.mark.parametrize("over", [L2Ball(2.0), Simplex(3.0), Box(-1.0, 1.0)], ids=repr)
def test_what_a_set_promises_is_the_better_of_two_parabolas(over, low):
    """To the vertex, and to the projected gradient step of the curvature met there; steps are at most 1."""
    f, (x,) = many(low)
    x = over.project(0.5 * x)
    (g,) = f.gradient(f.point((x,)))
    d = over.lmo(g) - x

    def least(d):
        slope, bend = -(g @ d), d @ f.H @ d
        alpha = slope / bend if bend > slope else 1.0
        return alpha * slope - 0.5 * alpha**2 * bend

    bend = d @ f.H @ d
    step = over.project(x - (d @ d / bend if bend > 0 else 1.0) * g) - x
    found = float(set_decrease(f, resolve(over, x), (x,), (g,), (d,)))
    assert found == pytest.approx(max(least(d), least(step)), rel=1e-7)
