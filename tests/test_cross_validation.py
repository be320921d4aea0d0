"""The ridge by cross-validation: errors by folds that are left out by hand, and the least of them."""

import numpy as np
import pytest
from matplotlib.figure import Figure

import xvarpro as xv
from xvarpro.errors import ProblemError

from .support import HOST_BACKENDS, host, rng, send

M, N = 40, 30
A = rng(0).normal(size=(M, N))
Y = A @ np.ones((N, 2)) + rng(1).normal(size=(M, 2))
ONE = xv.sets.Box(1.0, 1.0)
LABELS = np.arange(M) // 10


def scaled(theta, data):
    return theta * data


def by_hand(lam, y, weights, nonnegative=False, labels=LABELS):
    """Mean weighted squared error of the rows of each fold, fitted by the others."""
    from scipy.optimize import nnls

    total, y = 0.0, y.reshape(M, -1)
    weights = np.broadcast_to(np.reshape(weights, (M, -1)), y.shape)
    for fold in np.unique(labels):
        for j in range(y.shape[1]):
            root = np.sqrt(weights[:, j] * (labels != fold))
            top = np.concatenate([root[:, None] * A, np.sqrt(lam) * np.eye(N)])
            below = np.concatenate([root * y[:, j], np.zeros(N)])
            w = nnls(top, below)[0] if nonnegative else np.linalg.lstsq(top, below, rcond=None)[0]
            out = labels == fold
            total += np.sum(weights[out, j] * (A[out] @ w - y[out, j]) ** 2)
    return total / np.sum(weights > 0)


# the target, its weights, and whether w is nonnegative
KINDS = {
    "plain": (Y[:, 0], np.ones(M), False),
    "columns": (Y, np.ones(M), False),
    "weights": (Y[:, 0], rng(2).uniform(0.5, 2.0, M), False),
    "mask": (Y, rng(3).random(Y.shape) > 0.2, False),
    "nonnegative": (Y[:, 0], np.ones(M), True),
}


@pytest.mark.parametrize("kind", KINDS)
def test_errors_are_those_of_folds_that_are_left_out(kind):
    y, weights, nonnegative = KINDS[kind]
    given = {"data": A, "weights": weights, "W": xv.lower.Nonnegative() if nonnegative else None}
    y_given = np.where(weights, y, np.nan) if kind == "mask" else y
    cv = xv.statistics.cross_validate(
        xv.separable(scaled, y_given, **given), np.ones(1), ONE, lam=(1e-2, 1e3), folds=LABELS, tol=1e-8
    )
    want = [by_hand(lam, y, weights, nonnegative) for lam in cv.looked]
    np.testing.assert_allclose(cv.errors, want, rtol=1e-9)
    assert cv.looked[[0, -1]] == pytest.approx([1e-2, 1e3])
    least, *around = (by_hand(c * cv.lam, y, weights, nonnegative) for c in (1.0, 0.9, 1.1))
    assert cv.error == pytest.approx(least, rel=1e-9)
    assert cv.error <= min(*around, *want)
    again = xv.solve(xv.separable(scaled, y_given, lam=cv.lam, **given), np.ones(1), ONE)
    np.testing.assert_allclose(cv.fit.w, again.w, rtol=1e-9, atol=1e-12)


def test_wrong_arguments_and_problems_of_other_kinds_are_refused(subtests):
    plain = xv.separable(scaled, Y[:, 0], data=A)
    two = xv.bilevel(lower=xv.Level(scaled, Y[:, 0]), upper=xv.Level(scaled, Y[:, 0]), data=A)
    moving = xv.separable(scaled, lambda theta, data: theta[0] * data[:, 0], data=A)
    for problem, given, why in (
        (two, {}, "two levels"),
        (moving, {}, "y as function"),
        ("text", {}, "must come from xv.separable"),
        (plain, {"lam": (1.0, 0.1)}, "0 < low < high"),
        (plain, {"lam": (0.0, 1.0)}, "0 < low < high"),
        (plain, {"lam": 1.0}, "0 < low < high"),
        (plain, {"folds": 1}, r"folds must be a number in \[2, 40\]"),
        (plain, {"folds": True}, "folds must be"),
        (plain, {"folds": 41}, "folds must be"),
        (plain, {"folds": 0 * LABELS}, "of at least two values"),
        (plain, {"folds": LABELS / 2}, "folds must be"),
    ):
        with subtests.test(str(given)), pytest.raises(ProblemError, match=why):
            xv.statistics.cross_validate(problem, np.ones(1), ONE, **({"lam": (1e-2, 1e2)} | given))


@pytest.mark.parametrize("name", HOST_BACKENDS)
def test_frameworks_choose_the_same_ridge(name):
    backend = xv.backends.get(name)
    problem = xv.separable(scaled, Y[:, 0], data=A)
    want = xv.statistics.cross_validate(problem, np.ones(1), ONE, lam=(1e-2, 1e3), tol=1e-9)
    with backend.scope("float64"):
        theta0 = send(backend, np.ones(1))
        found = xv.statistics.cross_validate(problem, theta0, ONE, lam=(1e-2, 1e3), tol=1e-9)
        assert found.lam == pytest.approx(want.lam, rel=1e-5)
        assert type(found.fit.theta) is type(theta0)
        np.testing.assert_allclose(host(found.fit.w), want.fit.w, rtol=1e-5)


def test_theta_is_chosen_with_the_ridge():
    """A rate of a kernel, with the smoothness of what it weights; dealt folds are even and depend on the seed alone."""
    t, r = np.linspace(0.0, 3.0, 90), np.linspace(0.2, 5.0, 30)
    K, p = np.exp(-np.outer(t, r)), np.exp(-0.5 * ((r - 2.0) / 0.5) ** 2)
    y = K @ p * np.exp(-0.3 * t) + 0.05 * rng(4).normal(size=90)

    def kernel(theta, data):
        xp = xv.array_namespace(theta)
        return data["K"] * xp.exp(-theta * xp.expand_dims(data["t"], axis=1))

    Omega = np.diff(np.eye(32), 2, axis=0)[:, 1:-1]
    problem = xv.separable(kernel, y, data={"K": K, "t": t}, Omega=Omega)
    one, same, other = (
        xv.statistics.cross_validate(problem, np.array([0.1]), xv.sets.Box(0.0, 2.0), lam=(1e-4, 1e3), seed=seed)
        for seed in (0, 0, 1)
    )
    assert one.search.success
    assert one.search.recipe.theta0["log_lam"] == np.log(one.looked[np.argmin(one.errors)])
    assert one.lam == same.lam != other.lam
    assert one.error < one.errors.min()
    assert one.fit.recipe.theta0 == pytest.approx(one.search.theta["theta"])
    held = host(one.search._problem.upper.weights) > 0
    assert held.sum(axis=0).tolist() == [18] * 5
    assert held.sum(axis=1).tolist() == [1] * 90


def test_a_wide_design_needs_no_ridge_of_its_own():
    cv = xv.statistics.cross_validate(xv.separable(scaled, Y[:N, 0], data=A.T), np.ones(1), ONE, lam=(1e-2, 1e3))
    assert cv.fit.success
    assert np.isfinite(cv.errors).all()


def test_a_search_that_ends_where_a_unit_is_saturated_keeps_its_fit():
    """The fit by all rows starts where no derivative is left."""
    t = np.concatenate([np.linspace(-1.0, -0.5, 20), np.linspace(0.5, 1.0, 20)])
    step = xv.separable(lambda k, t: xv.array_namespace(k).tanh(t[:, None] * k), 1.0 * (t > 0), data=t, loss="logistic")
    cv = xv.statistics.cross_validate(step, np.full(1, 20.0), xv.sets.Box(0.0, 1e3), lam=(0.1, 10.0), folds=4)
    assert not xv.value_and_gradient(cv.fit.stated, cv.fit.theta)[1].any()
    assert xv.verify(cv.fit, cv.fit.stated).ok
    assert f"twice the mean loss of predictions {cv.error:.4g}" in repr(cv)


def test_what_theta_with_many_entries_has_seen_is_said():
    draw = np.random.default_rng(0)
    X = draw.normal(size=(60, 3))
    noise = xv.separable(lambda theta, X: xv.array_namespace(theta).tanh(X @ theta), draw.normal(size=60), data=X)
    cv = xv.statistics.cross_validate(noise, draw.normal(size=(3, 3)), xv.sets.Box(-3.0, 3.0), lam=(1.0, 10.0), folds=2)
    assert "the 9 entries of theta have seen all 60 rows: the error is too low" in repr(cv)


def test_a_ridge_at_an_end_of_the_range_is_said():
    problem = xv.separable(scaled, Y[:, 0], data=A)
    cv = xv.statistics.cross_validate(problem, np.ones(1), ONE, lam=(1e-6, 1e-4))
    assert "widen it" in repr(cv)
    wide = xv.statistics.cross_validate(problem, np.ones(1), ONE, lam=(1e-2, 1e3))
    assert "widen it" not in repr(wide)
    assert "have seen" not in repr(wide)
    assert f"{wide.lam:.4g}, mean squared error" in repr(wide)
    axes = wide.plot(figure=Figure(layout="constrained").subfigures()).axes[0]
    assert axes.lines[0].get_ydata() == pytest.approx(wide.errors)
    assert (axes.lines[1].get_xdata()[0], axes.lines[1].get_ydata()[0]) == (wide.lam, wide.error)
