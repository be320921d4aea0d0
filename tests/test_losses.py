"""Losses of a level: derivatives, w by SciPy and scikit-learn, hypergradients to 50 digits, where no w is best."""

import mpmath
import numpy as np
import pytest
import scipy.optimize
from sklearn.linear_model import LogisticRegression

import xvarpro as xv
from xvarpro.errors import ProblemError
from xvarpro.lower.hessian import conjugate_gradients
from xvarpro.lower.newton import Newton
from xvarpro.objective.losses import LossLevel

from .support import central_differences, error, host, rng, send

T = np.linspace(0.05, 2.0, 40)
THETA = np.array([1.3, 0.9])


def softplus(mu, y):
    xp = xv.array_namespace(mu)
    return xp.log1p(xp.exp(mu)) - y * mu


def design(theta, data):
    """Three columns, the second of which is the first but for `e` times another one."""
    xp = xv.array_namespace(theta)
    first = xp.exp(-data["t"] * theta[0])
    second = first + data["e"] * xp.cos(3 * data["t"] * theta[1])
    return xp.stack([first, second, xp.ones_like(first)], axis=1)


LOSSES = {
    "logistic": xv.losses.Logistic(),
    "log_poisson": xv.losses.LogPoisson(),
    "poisson": xv.losses.Poisson(),
    "hinge": xv.losses.SquaredHinge(),
    "quantile": xv.losses.Quantile(0.3, 0.2),
    "huber": xv.losses.Huber(1.0),
    "soft_l1": xv.losses.SoftL1(1.0),
    "cauchy": xv.losses.Cauchy(2.0),
    "custom": xv.losses.Custom(softplus),
    "softmax": xv.losses.Softmax(),
}
every_loss = pytest.mark.parametrize("name", LOSSES)


def target(name, e=1.0, t=T, seed=0):
    draw = rng(seed)
    z = design(THETA, {"t": t, "e": e}) @ np.array([1.0, 0.5, -0.5])
    if name in ("logistic", "custom"):
        return (draw.random(t.size) < 1 / (1 + np.exp(-z))).astype(float)
    if name == "log_poisson":
        return draw.poisson(np.exp(z)).astype(float)
    if name == "poisson":
        return draw.poisson(4 + z).astype(float)
    if name == "hinge":
        return np.where(z + draw.normal(size=t.size) > 0, 1.0, -1.0)
    if name == "softmax":
        scores = np.stack([z, -z, 0 * z], axis=1) + draw.gumbel(size=(t.size, 3))
        return np.eye(3)[np.argmax(scores, axis=1)]
    return z + draw.standard_t(3, size=t.size)


def data(e=1.0, t=T):
    return {"t": t, "e": np.asarray(e)}


def one_level(name, put=np.asarray, **given):
    return xv.separable(
        design, put(target(name)), data={k: put(x) for k, x in data().items()}, loss=LOSSES[name], **given
    )


def half(theta, data):
    return design(theta, data)[::2, :]


def two_levels(name, put=np.asarray, **given):
    lower = xv.Level(design, put(target(name)), loss=LOSSES[name], **given)
    above = np.sin(T[::2])
    upper = xv.Level(half, put(above[:, None] * [1.0, 0.5, 0.0] if name == "softmax" else above))
    return xv.bilevel(lower=lower, upper=upper, data={k: put(x) for k, x in data().items()})


# -- a loss ------------------------------------------------------------------------------------------------------------


@every_loss
def test_derivatives_are_those_of_the_value(name):
    loss, draw = LOSSES[name], rng(1)
    y = target(name).reshape(T.size, -1)[:6]
    mu = 0.3 + draw.random(y.shape) if name == "poisson" else draw.normal(size=y.shape)
    weights, d = draw.uniform(0.5, 2.0, (6, 1)), draw.normal(size=y.shape)
    slope = loss.slope(mu, y, weights)
    by_value = central_differences(lambda mu: float(loss.value(mu, y, weights)), mu) * loss.unit**2
    assert error(slope.ravel(), by_value) < 1e-8
    h = 1e-6
    by_slope = (loss.slope(mu + h * d, y, weights) - loss.slope(mu - h * d, y, weights)) / (2 * h)
    assert error(loss.bend(mu, y, weights)(d), by_slope) < 1e-7
    unit = [np.zeros_like(mu) for _ in range(mu.size)]
    for i, e in enumerate(unit):
        e.flat[i] = 1.0
    diagonal = [loss.bend(mu, y, weights)(e).flat[i] for i, e in enumerate(unit)]
    assert np.allclose(loss.second(mu, y, weights).ravel(), diagonal, rtol=1e-12, atol=1e-14)
    assert np.all(loss.model(mu, y, weights) > 0)


@pytest.mark.parametrize(("name", "y"), [("logistic", 1.0), ("logistic", 0.0), ("log_poisson", 3.0), ("hinge", 1.0)])
def test_values_far_out_keep_their_digits(name, y):
    mu = np.array([[-700.0], [-40.0], [-1e-9], [1e-9], [40.0], [700.0]])
    exact = {
        "logistic": lambda z: mpmath.log1p(mpmath.exp(z)) - y * z,
        "log_poisson": lambda z: mpmath.exp(z) - y - y * (z - mpmath.log(y)),
        "hinge": lambda z: max(0, 1 - y * z) ** 2 / 2,
    }[name]
    with mpmath.workdps(700):
        for z in mu.ravel():
            found = float(LOSSES[name].value(np.array([[z]]), np.array([[y]]), 1.0))
            assert found == pytest.approx(float(exact(mpmath.mpf(z))), rel=1e-15 * max(1.0, abs(z)))


@pytest.mark.parametrize("y", [0.0, 1.0, 7.0, 3e11])
def test_the_deviance_of_counts_keeps_its_digits(y):
    mu = np.array([1.0, y or 2.0, y * (1 + 1e-9) + 1e-300, y * (1 - 1e-3) + 1e-3, 1e-9 * y + 1e-9, 40.0 * y + 1.0])
    with mpmath.workdps(50):
        for mean in map(mpmath.mpf, mu):
            less = y * mpmath.log(mean / y) if y else mpmath.mpf(0)
            found = float(LOSSES["poisson"].terms(np.array([float(mean)]), np.array([y]), 1.0)[0])
            assert abs(found - (mean - y - less)) <= 4 * np.finfo(float).eps * (abs(mean - y) + abs(less))


# -- the lower level ---------------------------------------------------------------------------------------------------


def test_a_preconditioner_that_is_no_number_gives_none():
    numpy, c = xv.backends.get("numpy"), np.ones((3, 1))
    system = LossLevel(xv.operators.Dense(np.eye(3)), np.zeros((3, 1)), loss=xv.losses.Logistic())
    for tol in (None, 0.1):
        found, _ = conjugate_gradients(numpy, system, lambda d: d, lambda r: np.nan * r, c, tol)
        assert np.isnan(found).all()
        np.testing.assert_allclose(conjugate_gradients(numpy, system, lambda d: d, lambda r: r, c, tol)[0], c)


@pytest.mark.parametrize("seed", [4, 5, 12, 18, 33, 39])
def test_adjoints_of_classes_end_where_their_residual_is_lost_to_rounding(seed):
    """What the loss does not see, one vector added to all columns, was in the residual and made its length negative."""
    A, lam = rng(seed).normal(size=(90, 8)), 10.0 ** -(seed % 7)
    y = np.eye(3)[np.argmax(A[:, :3], axis=1)]
    lower = xv.Level(lambda theta, data: data[:30] * theta, y[:30], lam=lam, loss="softmax")
    upper = xv.Level(lambda theta, data: data[30:] * theta, y[30:], loss="softmax")
    assert np.isfinite(xv.value_and_gradient(xv.bilevel(lower=lower, upper=upper, data=A), np.ones(1))[1])


SETS = {
    "free": (None, {}),
    "nonnegative": (xv.lower.Nonnegative(), {"bounds": [(0, None)] * 3}),
    "bounded": (xv.lower.Bounded(-0.3, 0.5), {"bounds": [(-0.3, 0.5)] * 3}),
    "simplex": (xv.lower.Simplex(1.0), {"bounds": [(0, None)] * 3, "total": 1.0}),
    "equality": (xv.lower.Equality(np.ones((1, 3)), 0.7), {"total": 0.7}),
}


@pytest.mark.parametrize("where", SETS)
@pytest.mark.parametrize("name", ["logistic", "log_poisson", "quantile", "huber", "cauchy"])
def test_w_in_its_set_is_that_of_scipy(name, where):
    W, given = SETS[where]
    options = dict(given)
    total = options.pop("total", None)
    if total is not None:
        options["constraints"] = [{"type": "eq", "fun": lambda w: np.sum(w) - total}]
    A, y, loss = design(THETA, data()), target(name)[:, None], LOSSES[name]

    def cost(w):
        z = (A @ w)[:, None]
        return float(loss.value(z, y, 1.0)) * loss.unit**2 + 0.05 * w @ w, A.T @ loss.slope(z, y, 1.0)[:, 0] + 0.1 * w

    start = np.full(3, (total or 1.0) / 3)
    found = scipy.optimize.minimize(
        cost, start, jac=True, method="SLSQP", options={"ftol": 1e-15, "maxiter": 500}, **options
    )
    low = xv.solve_lower(one_level(name, lam=0.1, W=W), THETA)
    assert float(low.value) <= found.fun + 1e-12 * abs(found.fun)
    assert np.allclose(low.w, found.x, atol=2e-7)


def test_softmax_is_that_of_scikit_learn():
    draw = rng(2)
    A = draw.normal(size=(300, 5))
    labels = np.argmax(A @ draw.normal(size=(5, 4)) + draw.gumbel(size=(300, 4)), axis=1)
    for lam in (1.0, 1e-3):
        problem = xv.separable(lambda theta, data: data * theta, np.eye(4)[labels], data=A, loss="softmax", lam=lam)
        peer = LogisticRegression(C=1 / lam, fit_intercept=False, solver="newton-cg", tol=1e-12, max_iter=1000)
        low = xv.solve_lower(problem, np.ones(1))
        assert error(low.w, peer.fit(A, labels).coef_.T) < 1e-7
        p = np.exp(A @ low.w) / np.sum(np.exp(A @ low.w), axis=1, keepdims=True)
        assert np.linalg.norm(A.T @ (p - np.eye(4)[labels]) + lam * low.w) < 1e-11


UPPER = np.array([[0.5, 0.2, 0.4]] * 3)
OF_CLASSES = {
    "nonnegative": (xv.lower.Nonnegative(), (0.0, np.inf)),
    "bounded": (xv.lower.Bounded(np.array([-0.3, -0.5, 0.1]), UPPER), (np.array([[-0.3], [-0.5], [0.1]]), UPPER)),
    "equality": (xv.lower.Equality(np.ones((1, 3)), np.array([[0.7, 0.0, -0.2]])), None),
    "fixed": (xv.lower.Fixed(np.array([True, False, False]), 0.3), None),
    "shared": (xv.lower.Shared(np.array([0, 0, 1])), None),
    "affine": (xv.lower.Affine(np.array([1.0, 0.0, 0.0]), np.array([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])), None),
}


@pytest.mark.parametrize("where", OF_CLASSES)
def test_classes_in_a_set_have_no_slope_along_it(backend, where):
    W, bounds = OF_CLASSES[where]
    problem = one_level("softmax", lam=0.1, W=W)
    w = xv.solve_lower(problem, THETA).w
    A = design(THETA, data())
    g = A.T @ LOSSES["softmax"].slope(A @ w, target("softmax"), 1.0) + 0.1 * w
    if bounds is None:
        (B,) = W.directions(w)
        assert np.max(np.abs(B.T @ g)) < 1e-12
    else:
        assert np.max(np.abs(np.clip(w - g, *bounds) - w)) < 1e-12
        assert np.any(np.abs(g) > 1e-2)
        assert np.any(np.abs(g) < 1e-12)
    for build in (one_level, two_levels):
        problem = build("softmax", lam=0.1, W=W)
        value, grad = xv.value_and_gradient(problem, THETA)
        want = central_differences(lambda theta, p=problem: float(xv.value_and_gradient(p, theta)[0]), THETA)
        assert error(grad, want) < 1e-8
        found = xv.value_and_gradient(build("softmax", lambda x: send(backend, x), lam=0.1, W=W), send(backend, THETA))
        assert error([host(x) for x in found], [value, grad]) < 1e-11


@pytest.mark.parametrize("name", ["logistic", "cauchy"])
def test_several_columns_take_equations(name):
    Y, W = np.stack([target(name), target(name, seed=1)], axis=1), xv.lower.Equality(np.ones((1, 3)), 0.7)
    level = xv.Level(design, Y, loss=LOSSES[name], lam=0.1, W=W)
    above = xv.Level(half, np.stack([np.sin(T[::2]), np.cos(T[::2])], axis=1))
    both = xv.bilevel(lower=level, upper=above, data=data())
    given = {"data": data(), "loss": LOSSES[name], "lam": 0.1, "W": W}
    w = np.stack([xv.solve_lower(xv.separable(design, y, **given), THETA).w for y in Y.T], axis=1)
    assert error(xv.solve_lower(both, THETA).w, w) < 1e-10
    want = central_differences(lambda theta: float(xv.value_and_gradient(both, theta)[0]), THETA)
    assert error(xv.value_and_gradient(both, THETA)[1], want) < 1e-7


def test_classes_in_a_set_without_a_ridge_have_many_best_w():
    fit = xv.solve(one_level("softmax", W=xv.lower.Nonnegative()), THETA, xv.sets.Box(0.1, 3.0))
    assert fit.status is xv.Status.RANK_DEFICIENT


def test_columns_that_end_the_solve_of_all_are_named(subtests):
    def M(theta, data):
        return xv.array_namespace(theta).exp(-data[:, None] * theta)

    t, held = np.linspace(0.0, 1.0, 9), {"W": xv.lower.Nonnegative(), "loss": "poisson"}
    y = np.round(20 * np.exp(-t[:, None] * np.ones(5)))
    dark, weights = y.copy(), np.ones(y.shape)
    dark[:, 3] = weights[:, 1::2] = 0.0
    few, sparse = np.ones(y.shape), xv.lower.L1(0.1)
    few[2:, 2] = 0.0

    def three(theta, data):
        return M(theta * np.array([1.0, 2.0, 5.0]), data)

    for match, stated in {
        "Column 3 of y has no entry but 0": xv.separable(M, dark, data=t, **held),
        "2 columns of y, the first 1, 3, have no weight but 0": xv.separable(M, y, data=t, weights=weights),
        "Column 2 of y has fewer data with a weight than the 3": xv.separable(three, y, data=t, weights=few, W=sparse),
    }.items():
        with subtests.test(match):
            fit = xv.solve(stated, np.ones(1))
            assert not fit.success
            assert fit.message.startswith(match)
            with pytest.warns(RuntimeWarning, match=match):
                xv.solve_lower(stated, np.ones(1))
    tied = xv.separable(lambda theta, t: M(theta * np.ones(2), t), y, data=t, W=sparse)
    assert xv.solve(tied, np.ones(1)).message.endswith("Or add a ridge (lam > 0) or a larger one.")
    linked = xv.separable(M, dark, data=t, loss="log_poisson")
    assert "Column 3 of y has no entry but 0" in xv.solve(linked, np.ones(1), over=(0.1, 9.0)).message
    ridged = xv.separable(M, dark, data=t, loss="log_poisson", lam=1.0)
    assert "Column 3" not in xv.solve(ridged, np.ones(1), over=(0.1, 9.0)).message


def test_classes_at_a_bound_are_held_in_the_statistics():
    fit = xv.solve(one_level("softmax", lam=0.1, W=xv.lower.Nonnegative()), THETA, xv.sets.Box(0.1, 3.0))
    errors = fit.statistics().w_stderr
    assert np.any(fit.w == 0)
    assert np.all((np.reshape(errors, fit.w.shape) > 0) == (fit.w > 0))


def test_two_classes_are_the_logistic_loss():
    y = target("logistic")
    alone = xv.solve_lower(one_level("logistic"), THETA)
    both = xv.separable(design, np.stack([1 - y, y], axis=1), data=data(), loss="softmax")
    low = xv.solve_lower(both, THETA)
    assert np.allclose(np.sum(low.w, axis=1), 0.0, atol=1e-12)
    assert np.allclose(low.w[:, 1] - low.w[:, 0], alone.w, rtol=1e-9)
    assert float(low.value) == pytest.approx(float(alone.value), rel=1e-13)


def test_squares_are_least_squares():
    y = target("huber")
    levels = [xv.Level(design, y, lam=0.1, loss=loss) for loss in (None, "squares")]
    assert all(level.loss is None for level in levels)


@pytest.mark.parametrize("name", [name for name in LOSSES if name not in ("huber", "soft_l1", "cauchy")])
def test_whole_weights_are_repeated_rows(name):
    counts = np.arange(T.size) % 3  # of 0 too, whose targets may be NaN
    y = target(name)
    gaps = np.where((counts > 0).reshape(-1, *[1] * (y.ndim - 1)), y, np.nan)
    weighted = xv.separable(design, gaps, data=data(), loss=LOSSES[name], lam=0.1, weights=counts.astype(float))
    repeated = xv.separable(
        design, np.repeat(y, counts, axis=0), data=data(t=np.repeat(T, counts)), loss=LOSSES[name], lam=0.1
    )
    for a, b in zip(xv.value_and_gradient(weighted, THETA), xv.value_and_gradient(repeated, THETA), strict=True):
        assert error(a, b) < 1e-10


@pytest.mark.parametrize("name", ["logistic", "log_poisson", "softmax"])
def test_steps_from_a_theta_nearby_are_few(name, monkeypatch):
    steps, solves = [], []
    step, minimum = Newton._step, Newton._minimum
    monkeypatch.setattr(Newton, "_step", lambda *args: steps.append(1) or step(*args))
    monkeypatch.setattr(Newton, "_minimum", lambda *args: solves.append(1) or minimum(*args))
    fit = xv.solve(
        one_level(name, lam=0.1), THETA, xv.sets.Box(0.0, 5.0), algorithm=xv.algorithms.FrankWolfe(), max_iter=30
    )
    assert fit.n_iter == 30
    assert len(steps) <= 4 * len(solves)


# -- the reduced objective ---------------------------------------------------------------------------------------------


@every_loss
@pytest.mark.parametrize("lam", [0.0, 0.1])
def test_gradients_are_those_of_the_value_on_every_framework(backend, name, lam):
    for build in (one_level, two_levels):
        problem = build(name, lam=lam)
        value, grad = xv.value_and_gradient(problem, THETA)
        want = central_differences(lambda theta, p=problem: float(xv.value_and_gradient(p, theta)[0]), THETA)
        assert error(grad, want) < 1e-8
        found = xv.value_and_gradient(build(name, lambda x: send(backend, x), lam=lam), send(backend, THETA))
        assert error([host(x) for x in found], [value, grad]) < 1e-11


@pytest.mark.parametrize("W", [xv.lower.Nonnegative(), xv.lower.Equality(np.ones((1, 3)), 0.7)], ids=repr)
@pytest.mark.parametrize("name", ["logistic", "cauchy"])
def test_adjoints_stay_on_the_face_of_w(name, W):
    problem = two_levels(name, lam=0.1, W=W)
    if name == "logistic" and isinstance(W, xv.lower.Nonnegative):
        assert np.any(xv.solve_lower(problem, THETA).w == 0)
    want = central_differences(lambda theta: float(xv.value_and_gradient(problem, theta)[0]), THETA)
    assert error(xv.value_and_gradient(problem, THETA)[1], want) < 1e-7


SCALAR = {
    "logistic": (lambda z, y: mpmath.log1p(mpmath.exp(z)) - y * z, lambda z, y: 1 / (1 + mpmath.exp(-z)) - y),
    "log_poisson": (lambda z, y: mpmath.exp(z) - y * z, lambda z, y: mpmath.exp(z) - y),
    "soft_l1": (lambda z, y: mpmath.sqrt(1 + (z - y) ** 2) - 1, lambda z, y: (z - y) / mpmath.sqrt(1 + (z - y) ** 2)),
    "squares": (lambda z, y: (z - y) ** 2 / 2, lambda z, y: z - y),
    "poisson": (lambda z, y: z - y + (y * mpmath.log(y / z) if y else 0), lambda z, y: 1 - y / z),
    "cauchy": (lambda z, y: 2 * mpmath.log1p((z - y) ** 2 / 4), lambda z, y: (z - y) / (1 + (z - y) ** 2 / 4)),
    "huber": (
        lambda z, y: (z - y) ** 2 / 2 if abs(z - y) <= 1 else abs(z - y) - mpmath.mpf(0.5),
        lambda z, y: max(min(z - y, 1), -1),
    ),
    "hinge": (lambda z, y: max(0, 1 - y * z) ** 2 / 2, lambda z, y: -y * max(0, 1 - y * z)),
}
FEW = T[::4]


def exact_reduced(name, theta, y, e, two):
    """The reduced objective in many digits, by Newton's method with differences of slopes."""
    value, slope = SCALAR[name]
    mp, small = mpmath.mpf, mpmath.mpf(10) ** -30
    rows = [
        (mpmath.exp(-mp(t) * theta[0]), mpmath.exp(-mp(t) * theta[0]) + mp(e) * mpmath.cos(3 * mp(t) * theta[1]), mp(1))
        for t in FEW.tolist()
    ]
    A, w = mpmath.matrix(rows), mpmath.matrix([0, 0, 4 if name == "poisson" else 0])
    for _ in range(100):
        z = A * w
        g = A.T * mpmath.matrix([slope(z[i], y[i]) for i in range(len(y))])
        h = [(slope(z[i] + small, y[i]) - slope(z[i] - small, y[i])) / (2 * small) for i in range(len(y))]
        d = mpmath.lu_solve(A.T * mpmath.diag(h) * A, g)
        length = max(abs(x) for x in A * d)
        w -= d / max(1, length)
        if length < mp(10) ** -45:
            break
    z = A * w
    if two:
        return sum((z[i] - mpmath.sin(mp(float(FEW[i])))) ** 2 for i in range(0, len(y), 2)) / 2
    return sum(value(z[i], y[i]) for i in range(len(y)))


def off(name, e, two):
    """The relative error of a hypergradient."""
    y = 0.2 + 0.6 * target(name, e, FEW) if name == "logistic" else target(name, e, FEW)
    loss = LOSSES.get(name)
    given = {"data": {"t": FEW, "e": np.asarray(e)}}
    if two:
        above = xv.Level(half, np.sin(FEW[::2]))
        problem = xv.bilevel(lower=xv.Level(design, y, loss=loss), upper=above, **given)
    else:
        problem = xv.separable(design, y, loss=loss, **given)
    _, grad = xv.value_and_gradient(problem, THETA)
    with mpmath.workdps(70):
        h, want = mpmath.mpf(10) ** -18, []
        for i in range(2):
            ends = [[mpmath.mpf(float(x)) + s * h * (j == i) for j, x in enumerate(THETA)] for s in (1, -1)]
            up, down = (exact_reduced(name, end, y.tolist(), e, two) for end in ends)
            want.append(float((up - down) / (2 * h)))
    return error(grad, np.array(want))


two_kinds = pytest.mark.parametrize("two", [False, True], ids=["one level", "two levels"])


@two_kinds
@pytest.mark.parametrize("name", SCALAR)
def test_hypergradients_are_those_of_many_digits(name, two):
    assert off(name, 1.0, two) < (1e-10 if name == "cauchy" else 1e-12)  # it is no convex one


@two_kinds
@pytest.mark.parametrize("name", ["logistic", "log_poisson", "soft_l1"])
def test_hypergradients_have_the_digits_of_least_squares(name, two):
    e, condition = 1e-6, 2e6
    # least squares is refined there: a factorisation alone leaves eps times the condition
    assert off(name, e, two) < max(10 * off("squares", e, two), 10 * np.finfo(float).eps * condition)


@every_loss
def test_solves_end_at_the_minimum_of_scipy(name):
    problem, box = one_level(name, lam=0.1), (0.1, 5.0)
    fit = xv.solve(problem, THETA + 0.2, xv.sets.Box(*box), tol=1e-8)
    assert fit.status is xv.Status.CONVERGED

    def both(theta):
        value, grad = xv.value_and_gradient(problem, theta)
        return float(value), grad

    found = scipy.optimize.minimize(
        both, THETA + 0.2, jac=True, bounds=[box] * 2, method="L-BFGS-B", options={"ftol": 1e-15, "gtol": 1e-9}
    )
    assert fit.value <= found.fun * (1 + 1e-9)


def test_two_levels_are_solved_and_end_where_no_step_helps():
    problem = two_levels("softmax", lam=0.1)
    fit = xv.solve(problem, THETA, xv.sets.Box(0.2, 3.0), tol=1e-7)
    assert fit.success
    assert fit.value <= min(float(xv.value_and_gradient(problem, THETA + d)[0]) for d in rng(3).normal(0, 0.1, (20, 2)))


def test_single_precision(backend):
    for name in ("logistic", "softmax", "huber"):
        double = xv.value_and_gradient(two_levels(name, lam=0.1), THETA)
        single = two_levels(name, lambda x: send(backend, x, "float32"), lam=0.1)
        found = xv.value_and_gradient(single, send(backend, THETA, "float32"))
        assert error([host(x) for x in found], list(double)) < 2e-5


# -- where there is no best w, and wrong use ---------------------------------------------------------------------------


ROWS = np.array([[1.0, -2.0], [1.0, -1.0], [1.0, 1.0], [1.0, 2.0]])
APART = np.array([0.0, 0.0, 1.0, 1.0])


def times(theta, data):
    return data * theta


@pytest.mark.parametrize(("loss", "y"), [("logistic", APART), ("softmax", np.stack([1 - APART, APART], axis=1))])
def test_classes_that_are_told_apart_have_no_best_w(loss, y):
    box, batches = xv.sets.Box(0.5, 2.0), xv.algorithms.StochasticProjectedGradient(batch=2)
    whole = xv.separable(times, y, data=ROWS, loss=loss)
    chunks = xv.separable(times, xv.RowChunks.cut(ROWS, y, rows=2), loss=loss)
    for problem, method in (whole, None), (chunks, None), (chunks, batches):
        fit = xv.solve(problem, np.ones(1), box, algorithm=method)
        assert (fit.status, "pass lam > 0" in fit.message) == (xv.Status.NON_FINITE, True)
        with pytest.warns(RuntimeWarning, match="no best w: pass lam > 0"):
            assert np.isnan(xv.solve_lower(problem, np.ones(1)).value)
    assert xv.solve(xv.separable(times, y, data=ROWS, loss=loss, lam=1e-3), np.ones(1), box).success


def test_a_loss_that_bends_down_has_no_adjoint():
    lower = xv.Level(times, np.array([0.0, 50.0]), loss=xv.losses.Cauchy(1.0))  # the first w is half way
    problem = xv.bilevel(lower=lower, upper=xv.Level(times, np.array([1.0, 2.0])), data=np.ones((2, 1)))
    fit = xv.solve(problem, np.ones(1), xv.sets.Box(0.5, 2.0))
    assert fit.status is xv.Status.NON_FINITE
    assert "bends down" in fit.message


@pytest.mark.parametrize(
    ("loss", "y", "match"),
    [
        ("logistic", 2 * APART - 1, r"labels 0 and 1.*pass \(y \+ 1\) / 2"),
        ("squared_hinge", APART, "labels -1 and 1.*pass 2 y - 1"),
        ("poisson", APART - 1, "counts >= 0 where .*; got -1"),
        ("softmax", APART, r"got one column\. .*np.eye\(k\)\[labels\]"),
        ("softmax", np.full((4, 2), 0.7), "sum to 1; got"),
        ("logistic", APART + 0j, "real numbers; got a complex"),
        ("logistik", APART, "one of xvarpro.losses"),
        (abs, APART, "goes into xv.losses.Custom"),
        (xv.losses.Custom(lambda mu, y: (mu - y) ** 2 - 0.1 * (mu - y) ** 4), APART, "convex in z; got .* -8.8 at z"),
        (xv.losses.Custom(lambda mu, y: xv.array_namespace(mu).sum(mu - y)), APART, r"in the shape \(4,\) of z; got"),
        (xv.losses.Custom(lambda z, y: np.log(np.cosh(z - y))), APART, r"fun of Custom.*write xp.exp"),
        (xv.losses.Custom(lambda z, y: abs(z - y)), APART, "a second derivative that is 0 or not finite"),
        (xv.losses.Custom(lambda z, y: (z - y - y.mean() - z[:1]) ** 2), APART, "each entry by itself"),
    ],
)
def test_targets_that_do_not_fit_a_loss(loss, y, match):
    with pytest.raises((ProblemError, xv.errors.ModelError), match=match):
        xv.solve(xv.separable(times, y, data=ROWS, loss=loss, lam=0.1), np.ones(1))


def test_a_class_without_a_row_needs_a_ridge_on_all_of_w():
    """Of one level, which has the values of its rows in chunks then, and of the lower one of two."""
    Y = np.eye(3)[[0, 0, 1, 1]]
    for given in ({}, {"lam": np.array([[1.0], [0.0]])}, {"lam": 1.0, "Omega": np.array([[1.0, -1.0]])}):
        with pytest.raises(ProblemError, match=r"none in column 2 of y\. Leave it out, or give all of w a ridge"):
            xv.solve_lower(xv.separable(times, Y, data=ROWS, loss="softmax", **given), np.ones(1))
    chunks = xv.separable(times, xv.RowChunks.cut(ROWS, Y, rows=2), loss="softmax", lam=0.1)
    want = float(xv.solve_lower(chunks, np.ones(1)).value)
    for lam in (0.1, np.full((1, 3), 0.1), lambda theta, data: 0.1 * theta[0]):
        low = xv.solve_lower(xv.separable(times, Y, data=ROWS, loss="softmax", lam=lam), np.ones(1))
        assert float(low.value) == pytest.approx(want, rel=1e-10)
    other = np.eye(3)[[2, 0, 1, 1]]
    two = xv.bilevel(
        lower=xv.Level(times, other, 0.1, loss="softmax"), upper=xv.Level(times, Y, loss="softmax"), data=ROWS
    )
    z = ROWS @ xv.solve_lower(xv.separable(times, other, data=ROWS, loss="softmax", lam=0.1), np.ones(1)).w
    assert float(xv.solve_lower(two, np.ones(1)).value) == pytest.approx(
        xv.losses.Softmax().value(z, Y, 1.0), rel=1e-10
    )


@pytest.mark.parametrize(("k", "at"), [(1, 0), (2, 0), (1, 2)])
def test_a_level_of_counts_starts_inside_where_a_fit_of_squares_is_negative(k, at, backend):
    """Counts that bend upwards: the line of squares is below 0 at x = 0, where one has been counted."""
    x, y = np.arange(10.0), np.array([1.0, 0, 1, 2, 4, 8, 12, 18, 25, 33])
    A, y = backend.asarray(np.stack([x - at, -np.ones(10)], axis=1)), np.stack([y, 2 * y], axis=1)[:, :k]
    problem = xv.separable(lambda theta, A: theta * A, backend.asarray(y), data=A, loss=xv.losses.Poisson())
    w = backend.to_numpy(xv.solve_lower(problem, backend.asarray(np.ones(1))).w)
    mean = backend.to_numpy(A) @ w
    assert mean.min() > 0
    np.testing.assert_allclose(backend.to_numpy(A).T @ (1 - y / mean), 0, atol=1e-11)


@pytest.mark.parametrize(("dark", "low"), [(0.0, 0.0), (1.0, 0.0), (1.0, -np.inf)])
def test_counts_where_one_column_alone_predicts_any(dark, low, backend):
    """A background that a fit of squares leaves out has the counts before a pulse to itself: w is still the best."""
    draw, t = rng(3), 0.1 * np.arange(64)
    decay = np.asarray(xv.models.decays(t, np.array([0.5]), 1.5, 0.12))  # 1e-34 at t = 0
    A = np.concatenate([decay, np.ones((64, 1))], axis=1)
    y = np.asarray(draw.poisson(A @ np.array([[6.0], [0.1]]), (64, 40)), float)
    y[:14] = 0
    y[0] = dark  # 1: all counts before the pulse are in the first channel
    W = xv.lower.Bounded(np.array([0.0, low]), np.inf)  # far bounds let fits of squares be negative there
    problem = xv.separable(lambda theta, A: theta * A, backend.asarray(y), data=A, loss=xv.losses.Poisson(), W=W)
    alone = backend.to_numpy(xv.solve_lower(problem, backend.asarray(np.ones(1))).w)
    batch = xv.separable(lambda theta, A: theta[:, :, None] * A, y.T, data=A, loss=xv.losses.Poisson(), W=W)
    many = xv.solve_many(batch, np.ones((40, 1)), (1.0, 1.0), max_iter=0, backend=backend.name).w.T
    for w in (alone, many):
        mean = A @ w
        slope = A.T @ (1 - y / mean)
        assert np.all(w[1] > 0) == bool(dark)
        np.testing.assert_allclose(np.where(w > 0, slope, np.minimum(slope, 0)), 0, atol=1e-6)


def test_the_w_of_a_result_is_the_one_that_its_solve_has_followed():
    """At the end no start from the data is inside: the penalty has taken the column that predicts at x = 0."""
    x, y = np.arange(10.0), np.array([1.0, 16, 25, 29, 33, 41, 40, 46, 47, 52])

    def M(theta, data):
        xp = xv.array_namespace(theta)
        return xp.stack([data + theta[0], data**0.5 - 0.1], axis=1)

    def R(theta):
        return theta[0] ** 2

    problem = xv.separable(M, y, data=x, loss=xv.losses.Poisson(), R=R, mu=1e3)
    fit = xv.solve(problem, np.array([1.0]), over=(0.0, 1.0))
    assert fit.success
    assert np.all(M(fit.theta, x) @ fit.w > 0)
    with pytest.warns(RuntimeWarning, match="w is not finite"):
        xv.solve_lower(problem, fit.theta)
