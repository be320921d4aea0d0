"""Losses that are no least squares, of parts of a problem: mini-batches."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import xvarpro as xv
from xvarpro.algorithms import AllRows, SameBatch, SecondBatch
from xvarpro.driver.prepare import prepare
from xvarpro.errors import ProblemError
from xvarpro.losses.interface import Times
from xvarpro.objective.mini_batch import some_columns
from xvarpro.problem.problem import Problem

from .support import error, rng, vector

X = np.linspace(-1.0, 1.0, 24)
DRAW = rng(5)
COUNTS = np.asarray(DRAW.poisson(3.0, 24), float)
CLASS = np.asarray(DRAW.uniform(size=24) < 0.5 + 0.4 * X, float)
NOISY = np.exp(-2.0 * X) + np.exp(-0.5 * X) + DRAW.standard_t(3, 24)


def logcosh(mu, y):
    xp = xv.array_namespace(mu)
    return xp.log(xp.exp(mu - y) + xp.exp(y - mu))


LOSSES = {
    "logistic": (xv.losses.Logistic(), CLASS),
    "softmax": (xv.losses.Softmax(), np.eye(3)[np.digitize(X + DRAW.normal(0.0, 0.4, 24), [-0.3, 0.3])]),
    "log_poisson": (xv.losses.LogPoisson(), COUNTS),
    "poisson": (xv.losses.Poisson(), COUNTS),
    "huber": (xv.losses.Huber(0.5), NOISY),
    "soft_l1": (xv.losses.SoftL1(0.5), NOISY),
    "squared_hinge": (xv.losses.SquaredHinge(), 2 * CLASS - 1),
    "quantile": (xv.losses.Quantile(0.7, 0.3), NOISY),
    "custom": (xv.losses.Custom(logcosh), NOISY),
}
START = np.array([0.3, 1.5])
WEIGHTS = rng(1).uniform(0.5, 2.0, 24)


def exponentials(theta, data):
    xp = xv.array_namespace(theta)
    return xp.exp(-xp.expand_dims(data["x"], axis=1) * theta)


# -- mini-batches ------------------------------------------------------------------------------------------------------


def of_batch(f, theta, indices, lower):
    point, gradient = f.restricted(indices, lower).value_and_gradient(theta)
    return point.value, gradient


@pytest.mark.parametrize("name", LOSSES)
def test_batches_of_rows_have_the_value_and_the_gradient_of_all_on_average(name):
    """With w from all rows."""
    loss, y = LOSSES[name]
    for x in (xv.Samples(X), X):
        problem = xv.separable(exponentials, y, data={"x": x}, lam=0.1, weights=WEIGHTS, loss=loss)
        prepared = prepare(problem, START)
        value, gradient = xv.value_and_gradient(problem, START)
        parts = [
            prepared.call(partial(of_batch, lower=AllRows()), prepared.theta, np.arange(i, 24, 4, dtype=np.int32))
            for i in range(4)
        ]
        np.testing.assert_allclose(np.mean([float(x) for x, _ in parts]), value, rtol=1e-9)
        np.testing.assert_allclose(np.mean([g for _, (g,) in parts], axis=0), gradient, rtol=1e-7)


def of_rows(theta, pair, i):
    return exponentials(theta, pair[i])


@pytest.mark.parametrize("name", ["softmax", "huber", "log_poisson"])
def test_a_batch_is_the_problem_of_its_rows(name, backend):
    """Each choice of w against the problem written out; a robust loss scales residuals by the roots of its weights."""
    loss, y = LOSSES[name]
    problem = xv.separable(
        exponentials, y, data={"x": xv.Samples(X)}, lam=0.1, weights=WEIGHTS, loss=loss, solver=xv.lower.QR()
    )
    first, second = [3, 20, 17, 8, 10, 1], [21, 5, 13, 0, 7, 2]
    prepared = prepare(problem, START, backend=backend)

    def level(rows, i):
        more = {"weights": WEIGHTS[rows], "loss": Times(loss, 24 / len(rows))}
        return xv.Level(partial(of_rows, i=i), y[rows], lam=0.1, **more), {"x": X[rows]}

    (lower, below), (upper, above), (every, full) = level(second, 0), level(first, 1), level(range(24), 0)
    same, _ = level(first, 0)
    for choice, drawn, want in (
        (SameBatch(), first, Problem(same, data=(above,))),
        (SecondBatch(), first + second, xv.bilevel(lower=lower, upper=upper, data=(below, above))),
        (AllRows(), first, xv.bilevel(lower=every, upper=upper, data=(full, above))),
    ):
        indices = backend.asarray(np.array(drawn, np.int32))
        value, gradient = prepared.call(partial(of_batch, lower=choice), prepared.theta, indices)
        stated, slope = xv.value_and_gradient(want, START)
        assert vector(value)[0] == pytest.approx(float(stated), rel=1e-9), choice
        assert error(vector(gradient), slope) <= 1e-7, choice


@pytest.mark.parametrize("name", ["logistic", "poisson", "soft_l1"])
def test_right_hand_sides_have_the_average_of_all(name):
    loss, y = LOSSES[name]
    many = np.stack([np.roll(y, i) for i in range(4)], axis=1)
    weights = rng(2).uniform(0.5, 2.0, (24, 4))
    lam = np.array([[0.1, 0.2, 0.3, 0.4]])
    more = {"W": xv.lower.Bounded(0.0, np.linspace(0.3, 2.0, 8).reshape(2, 4))} if name == "poisson" else {}
    for ridge in (lam, lambda theta, data: 0.1 * theta[0] + 0.1):
        problem = xv.separable(exponentials, many, data={"x": X}, lam=ridge, weights=weights, loss=loss, **more)
        parts = [xv.value_and_gradient(some_columns(problem, np.array([i]), 2.0), START) for i in range(4)]
        value, gradient = xv.value_and_gradient(problem, START)
        np.testing.assert_allclose(np.mean([x for x, _ in parts]), value, rtol=1e-9)
        np.testing.assert_allclose(np.mean([x for _, x in parts], axis=0), gradient, rtol=1e-7)


def test_classes_are_no_terms_and_right_hand_sides_of_other_losses_are():
    for name, terms in (("softmax", 24), ("logistic", 3)):
        loss, y = LOSSES[name]
        y = y if y.ndim == 2 else np.stack([y, 1 - y, y], axis=1)
        prepared = prepare(xv.separable(exponentials, y, data={"x": X}, lam=0.1, loss=loss), START)
        assert prepared.assemble(prepared.problem).samples == terms


@pytest.mark.parametrize("name", ["softmax", "huber"])
def test_stochastic_methods_come_to_the_minimum(name):
    loss, y = LOSSES[name]
    problem = xv.separable(exponentials, y, data={"x": xv.Samples(X)}, lam=0.1, loss=loss)
    want = xv.solve(problem, START, xv.sets.Box(0.0, 2.0))
    for method in (
        xv.algorithms.StochasticFrankWolfe(batch=8, lower=AllRows()),
        xv.algorithms.StochasticProjectedGradient(batch=8, lower=AllRows(), update=xv.algorithms.Adam(rate=0.05)),
    ):
        fit = xv.solve(problem, START, xv.sets.Box(0.0, 2.0), algorithm=method, max_iter=60, tol=0.0)
        assert fit.value - want.value <= 0.25 * (fit.trace.value[0] - want.value)


# -- batches of problems -----------------------------------------------------------------------------------------------


def of_each(theta, data):
    xp = xv.array_namespace(theta)
    return xp.exp(-xp.expand_dims(xp.expand_dims(data["x"], axis=0), axis=2) * xp.expand_dims(theta, axis=1))


def later(theta, data):
    return exponentials(theta, {"x": data["x"] + 0.05})


def later_of_each(theta, data):
    return of_each(theta, {"x": data["x"] + 0.05})


def size(theta):
    xp = xv.array_namespace(theta)
    return xp.sum(theta * theta, axis=-1)


def pair(M, above, y, weights, lam, loss, two):
    """One problem, or a batch of them."""
    lower, penalty = {"lam": lam, "loss": loss, "weights": weights}, {"data": {"x": X}, "R": size, "mu": 2.0}
    if isinstance(loss, xv.losses.Poisson | xv.losses.LogPoisson):
        penalty["mu"] = 0.1  # with more, both rates of counts become one
    if not two:
        return xv.separable(M, y, **penalty, **lower)
    return xv.bilevel(lower=xv.Level(M, y, **lower), upper=xv.Level(above, y, lam=0.01, loss=loss), **penalty)


SINGLE = [name for name, (loss, _) in LOSSES.items() if loss.by_entry]


@pytest.mark.parametrize("name", SINGLE)
def test_a_batch_has_the_solutions_of_its_problems(name):
    """With one level and with two, by turns."""
    (loss, y), two = LOSSES[name], SINGLE.index(name) % 2 == 1
    ys, lam = np.stack([y, y, y]), np.array([0.1, 0.3, 0.2])
    weights, starts = rng(6).uniform(0.5, 2.0, (3, 24)), np.stack([START, START + 0.1, START - 0.1])
    found = xv.solve_many(pair(of_each, later_of_each, ys, weights, lam, loss, two), starts, tol=1e-9)
    assert found.success.all()
    for i in range(3):
        alone = pair(exponentials, later, y, weights[i], float(lam[i]), loss, two)
        want, gradient = xv.solve_lower(alone, found.theta[i]), xv.value_and_gradient(alone, found.theta[i])[1]
        np.testing.assert_allclose(found.w[i], want.w, rtol=1e-8, atol=1e-10)
        assert found.value[i] == pytest.approx(float(want.value), rel=1e-12)
        assert np.linalg.norm(gradient) <= 1e-7
    fit = xv.solve(alone, found.theta[2], tol=1e-9)
    np.testing.assert_allclose(found.theta[2], fit.theta, rtol=1e-5, atol=1e-5)


def test_robust_fits_in_single_precision_end_within_a_small_part_of_an_error():
    """Where the target is a thousand times its noise, and rounding of w shows in slopes; alone and in a batch."""
    t, draw = np.linspace(0.0, 2.0, 40), rng(0)
    y = (np.exp(-np.outer(t, [1.1, 4.5])) @ draw.uniform(0.3, 2.0, (2, 16))).T + 1e-3 * draw.standard_t(3, (16, 40))
    given = [np.asarray(x, np.float32) for x in (y, t, np.tile([0.9, 5.0], (16, 1)))]

    def stated(y, t, start):
        loss, W = xv.losses.SoftL1(1.5e-3), xv.lower.Nonnegative()
        return xv.separable(of_each, y, data={"x": t}, loss=loss, W=W), start

    single, double = stated(*given), stated(*(x.astype(float) for x in given))
    exact, found = (xv.solve_many(*stated, tol=1e-9) for stated in (double, single))
    alone = [xv.solve(xv.many.single(single[0], i), single[1][i], tol=1e-9).theta for i in range(8)]
    errors = exact.statistics().theta_stderr
    assert np.max(np.abs(found.theta - exact.theta) / errors) < 4e-3
    assert np.max(np.abs(np.stack(alone) - exact.theta[:8]) / errors[:8]) < 4e-3


@pytest.mark.parametrize(
    ("name", "W", "least"),
    [("logistic", xv.lower.Nonnegative(), 0.0), ("poisson", xv.lower.Bounded(0.2, 0.9), 0.2)],
    ids=["logistic", "poisson"],
)
def test_weights_of_a_batch_with_a_loss_lie_between_bounds(name, W, least, subtests):
    """Minima and errors are those of its problems, each of which has entries of w at bounds or at none."""
    loss, y = LOSSES[name]
    y, starts = np.stack([y, np.roll(y, 5), y[::-1]]), np.stack([START, START + 0.1, START - 0.1])
    two = name == "logistic"
    problem = pair(of_each, later_of_each, y, None, 0.1, loss, two)
    found = xv.solve_many(replace(problem, lower=replace(problem.lower, W=W)), starts, tol=1e-9)
    assert "one problem" not in found.method
    assert found.success.any()
    for i in np.flatnonzero(found.success):  # of kinks in two levels not all
        alone = pair(exponentials, later, y[i], None, 0.1, loss, two)
        alone = replace(alone, lower=replace(alone.lower, W=W))
        with subtests.test(i=i):
            want, gradient = xv.solve_lower(alone, found.theta[i]), xv.value_and_gradient(alone, found.theta[i])[1]
            np.testing.assert_allclose(found.w[i], want.w, rtol=1e-8, atol=1e-10)
            np.testing.assert_array_equal(found.w[i] == least, want.w == least)
            assert np.linalg.norm(gradient) <= 1e-7


@pytest.mark.parametrize("w", [[9.0, 4.0], [9.0, 0.0]])
def test_errors_of_counts_with_nonnegative_weights_are_those_of_single_fits(w):
    t, draw = np.linspace(0.05, 4.0, 64), rng(4)
    y = draw.poisson(np.exp(-np.outer(t, [0.5, 4.0])) @ np.array(w), size=(4, 64)).astype(float)
    problem = xv.separable(of_each, y, data={"x": t}, loss="poisson", W=xv.lower.Nonnegative())
    over = xv.sets.Box([0.05, 1.0], [1.0, 12.0])
    found = xv.solve_many(problem, np.tile([0.5, 4.0], (4, 1)), over, tol=1e-9)
    errors = found.statistics()
    alone = [xv.solve(xv.many.single(problem, i), found.theta[i], over, tol=1e-9) for i in range(4)]
    same = [i for i, fit in enumerate(alone) if np.allclose(fit.theta, found.theta[i], rtol=1e-6)]
    assert len(same) >= 3  # where an amplitude is closed, a single fit may find it open elsewhere
    for i in same:
        single = alone[i].statistics()
        np.testing.assert_allclose(errors.w_stderr[i], single.w_stderr, rtol=1e-5)
        np.testing.assert_allclose(errors.theta_stderr[i], single.theta_stderr, rtol=1e-5)


@pytest.mark.parametrize("shape", ["tall", "wide"])
def test_right_hand_sides_of_a_batch_have_curvatures_weights_and_ridges_of_their_own(shape):
    draw = rng(8)
    y = (draw.uniform(size=(3, 24, 2)) < 0.5).astype(float)
    weights, lam = draw.uniform(0.5, 2.0, (3, 24, 2)), np.array([[[0.1, 0.2]], [[0.3, 0.1]], [[0.2, 0.2]]])
    starts = np.linspace(0.1, 2.0, 3 * 26).reshape(3, 26)[:, [0, 9]]
    if shape == "tall":
        M_of_all, M = of_each, exponentials
    else:
        M_of_all, M = (lambda theta, data, f=f: wide(f(theta, data)) for f in (of_each, exponentials))
    many = xv.separable(M_of_all, y, data={"x": X}, lam=lam, weights=weights, loss="logistic")
    found = xv.solve_many(many, starts, xv.sets.Box(0.0, 2.0), tol=1e-8)
    assert found.success.all()
    for i in range(3):
        alone = xv.separable(M, y[i], data={"x": X}, lam=lam[i], weights=weights[i], loss="logistic")
        fit = xv.solve(alone, starts[i], xv.sets.Box(0.0, 2.0), tol=1e-8)
        assert found.value[i] == pytest.approx(float(fit.value), rel=1e-7)
        np.testing.assert_allclose(found.w[i], xv.solve_lower(alone, found.theta[i]).w, rtol=1e-7, atol=1e-9)


def test_a_batch_of_losses_is_the_same_on_every_backend(backend):
    problem = xv.separable(of_each, np.stack([CLASS, 1 - CLASS]), data={"x": X}, lam=0.1, loss="logistic")
    starts = np.stack([START, START])
    box = xv.sets.Box(0.0, 2.0)
    found, want = (xv.solve_many(problem, starts, box, backend=name, tol=1e-8) for name in (backend.name, "numpy"))
    assert (found.status == want.status).all()
    np.testing.assert_allclose(found.w, want.w, rtol=1e-7)


def test_a_problem_with_a_loss_may_be_lifted():
    """Also by a search of starts."""
    y, weights = np.stack([CLASS, 1 - CLASS]), rng(6).uniform(0.5, 2.0, (2, 24))
    given = {"data": {"x": X}, "lam": 0.1, "loss": "logistic"}
    single = xv.separable(exponentials, xv.Each(y), weights=xv.Each(weights), **given)
    box, starts = xv.sets.Box(0.0, 2.0), np.stack([START, START])
    found = xv.solve_many(xv.many.lifted(single), starts, box, tol=1e-8)
    alone = xv.separable(exponentials, y[1], weights=weights[1], **given)
    fit = xv.solve(alone, START, box, tol=1e-8)
    assert found.value[1] == pytest.approx(float(fit.value), rel=1e-8)
    assert xv.multistart(alone, START, box, starts=4).best.value == pytest.approx(float(fit.value), rel=1e-8)
    with pytest.raises(ProblemError, match=r"marked xv\.Each; got a mark"):
        xv.solve(single, START)


def wide(M):
    """Thirteen times the columns, more than rows."""
    xp = xv.array_namespace(M)
    return xp.concat([M * (1 + 0.3 * xp.cos(i + 9.0 * M)) for i in range(13)], axis=-1)


def test_dependent_columns_of_a_batch_are_said_where_no_ridge_holds_them():
    """One column of two has a ridge; of two equal columns that is enough."""
    y, starts = np.stack([COUNTS, COUNTS]), np.array([[0.3, 1.5], [1.0, 1.0]])
    here = xv.sets.Box(starts[1], starts[1])
    for lam, status in ((0.0, xv.Status.RANK_DEFICIENT), (np.array([[0.1], [0.0]]), xv.Status.CONVERGED)):
        problem = xv.separable(of_each, y, data={"x": X}, lam=lam, loss="log_poisson")
        assert xv.solve_many(problem, np.stack([starts[1]] * 2), here).status.tolist() == [status.code] * 2
        ends = xv.solve_many(problem, np.stack([starts[0]] * 2), xv.sets.Box(starts[0], starts[0]))
        assert ends.status.tolist() == [xv.Status.CONVERGED.code] * 2


def test_a_problem_without_a_best_w_ends_by_itself():
    """Separable classes, NaN in a target, an upper level alone that has a loss."""
    y = np.stack([CLASS, np.asarray(X > 0, float), np.where(X > 0.9, np.nan, CLASS)])
    starts = np.stack([START] * 3)
    box = xv.sets.Box(0.0, 2.0)
    found = xv.solve_many(xv.separable(of_each, y, data={"x": X}, loss="logistic"), starts, box)
    assert found.success.tolist() == [True, False, False]
    assert [xv.Status.of(code).name for code in found.status[1:]] == ["NON_FINITE", "NO_DATA"]
    weighted = xv.separable(of_each, y, data={"x": X}, loss="logistic", lam=0.1, weights=~np.isnan(y) * 1.0)
    assert xv.solve_many(weighted, starts, box).success.all()
    below, above = NOISY[None, :], CLASS[None, :]
    many = xv.bilevel(
        lower=xv.Level(of_each, below, lam=0.1), upper=xv.Level(later_of_each, above, loss="logistic"), data={"x": X}
    )
    alone = xv.bilevel(
        lower=xv.Level(exponentials, NOISY, lam=0.1), upper=xv.Level(later, CLASS, loss="logistic"), data={"x": X}
    )
    found = xv.solve_many(many, START[None, :], box, tol=1e-8)
    assert found.value[0] == pytest.approx(float(xv.solve(alone, START, box, tol=1e-8).value), rel=1e-8)


def test_losses_that_are_not_convex_or_not_of_entries_are_solved_one_after_the_other(subtests):
    classes, both = np.stack([LOSSES["softmax"][1]] * 2), np.stack([NOISY, NOISY + 0.1])
    for y, more in (
        (classes, {"loss": "softmax"}),
        (both, {"loss": xv.losses.Cauchy(1.0)}),
        (both, {"loss": "huber"}),
        (lambda theta, data: 0 * theta[:, :1] + data["x"] ** 2, {"loss": "poisson"}),
        (both**2, {"loss": "poisson", "W": xv.lower.Fixed([0], n=2)}),
    ):
        with subtests.test(repr(more)):
            problem = xv.separable(of_each, y, data={"x": X}, lam=0.1, **more)
            found = xv.solve_many(problem, np.stack([START, START]), xv.sets.Box(0.0, 4.0), tol=1e-8)
            assert "one problem after the other" in found.method
            for i in range(2):
                alone = xv.solve(xv.many.single(problem, i), START, xv.sets.Box(0.0, 4.0), tol=1e-8)
                np.testing.assert_allclose(found.theta[i], alone.theta, rtol=1e-9)
                np.testing.assert_allclose(found.w[i], alone.w, rtol=1e-9)
    with pytest.raises(ProblemError, match="must hold labels 0 and 1"):
        xv.solve_many(xv.separable(of_each, both, data={"x": X}, loss="logistic"), np.stack([START, START]))
