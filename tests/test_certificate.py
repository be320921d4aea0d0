"""`xv.certify`: enclosures that hold, bounds below brute force, and what a search says."""

import itertools
import re

import numpy as np
import pytest

import xvarpro as xv
from xvarpro.certificate.designs import Design
from xvarpro.certificate.enclosures import enclosed
from xvarpro.core import trees
from xvarpro.errors import ProblemError

t = np.linspace(0.05, 1.0, 8)


def shapes(p):
    return trees.flatten(np.zeros(p))[1], [(slice(0, p), (p,))]


def exponentials(theta, t):
    return xv.array_namespace(theta).exp(-t[:, None] * theta)


def waves(theta, t):
    return xv.array_namespace(theta).cos(t[:, None] * theta)


RULES = {
    "arithmetic": lambda xp, a, b: (a - 2 * b) * (b + 3) / (a * b) - a / 3.0,
    "powers": lambda xp, a, b: (a - 1.5) ** 2 + b**-1.5 + xp.sqrt(a) + 2.0**a + a**b + xp.reciprocal(b) + xp.square(b),
    "exp": lambda xp, a, b: xp.exp(a * b) + xp.expm1(-a) + xp.log(a + b) + xp.log1p(a) + xp.logaddexp(3 * a, b * b),
    "waves": lambda xp, a, b: xp.sin(4 * a) * xp.cos(9 * b) + xp.atan(a - b),
    "hyperbolic": lambda xp, a, b: xp.tanh(a) + xp.sinh(a - b) * xp.cosh(b),
    "shapes": lambda xp, a, b: (
        xp.sum(xp.stack([a * b, a]), axis=0) + (xp.stack([a, b], axis=-1) @ xp.asarray([1.0, 2.0]))
    ),
}


@pytest.mark.parametrize("name", RULES)
def test_values_and_derivatives_lie_in_their_enclosures(name):
    rng, h = np.random.default_rng(0), 1e-4
    lower = rng.uniform(0.4, 2.0, (6, 2))
    upper = lower + rng.uniform(0.0, 0.5, (6, 2)) * 10.0 ** -np.arange(6)[:, None]

    def fun(theta, _):
        return (RULES[name](xv.array_namespace(theta), theta[0] * t, theta[1] + t),)

    def at(theta):
        return RULES[name](xv.array_namespace(theta), theta[0] * t, theta[1] + t)

    (found,) = enclosed(fun, lower, upper, None, shapes(2))[1]
    for k, (low, high) in enumerate(zip(lower, upper, strict=True)):
        for share in (0.0, 0.3, 1.0):
            theta = low + share * (high - low)
            e0, e1 = np.eye(2) * h
            second = [at(theta + a + b) - at(theta + a - b) - at(theta - a + b) + at(theta - a - b)
                      for a, b in ((e0, e0), (e0, e1), (e1, e1))]  # fmt: skip
            first = [(at(theta + e) - at(theta - e)) / (2 * h) for e in (e0, e1)]
            exact = np.stack([at(theta), *first, *(x / (4 * h * h) for x in second)])
            a, b = 0.5 * (high - low)  # units of the derivatives
            exact *= np.asarray([1.0, a, b, a * a, a * b, b * b])[:, None]
            slack = np.asarray([0.0, 1e-6, 1e-6, 1e-4, 1e-4, 1e-4])[:, None] * (1 + np.abs(exact))
            assert (exact >= found.lo[:, k] - slack).all()
            assert (exact <= found.hi[:, k] + slack).all()


def least(problem, A):
    """The objective of a design, the least over all faces of the set of w."""
    level, y, n = problem.lower, problem.lower.y, A.shape[1]
    A, y = np.concatenate([A, np.sqrt(level.lam) * np.eye(n)]), np.concatenate([y, np.zeros(n)])
    ends = (-np.inf, np.inf) if level.W is None else (0.0, getattr(level.W, "upper", np.inf))
    best = np.inf
    for face in itertools.product((None, *(e for e in ends if np.isfinite(e))), repeat=n):
        free = np.asarray([end is None for end in face])
        w = np.asarray([0.0 if end is None else end for end in face])
        w[free] = np.linalg.pinv(A[:, free]) @ (y - A[:, ~free] @ w[~free])
        best = min(best, 0.5 * np.sum((A @ np.clip(w, *ends) - y) ** 2))
    return best


HOSTILE = {
    "plain": lambda xp, theta, x: xp.exp(-x * theta),
    "nearly equal": lambda xp, theta, x: xp.exp(-x * (1 + 1e-6 * theta)),
    "equal": lambda xp, theta, x: xp.exp(-x * (1 + 1e-12 * theta)),
    "cancelling": lambda xp, theta, x: 1e-9 * ((1e4 + xp.exp(x * theta)) - 1e4),
    "poles": lambda xp, theta, x: 1 / (x - theta),
    "quotient": lambda xp, theta, x: xp.exp(-x * theta) / (x - theta[0]),
    "zero somewhere": lambda xp, theta, x: xp.exp(-(((x - theta) * 40) ** 2)),
}


@pytest.mark.parametrize("W", [None, xv.lower.Nonnegative(), xv.lower.Bounded(0.0, 1.0)])
@pytest.mark.parametrize("name", HOSTILE)
def test_no_bound_is_above_brute_force(name, W):
    rng = np.random.default_rng(1)

    def M(theta, x):
        return HOSTILE[name](xv.array_namespace(theta), theta, x[:, None])

    sound, useful = [], 0
    for size in 10.0 ** rng.uniform(-5, 0, 12):
        truth = rng.uniform(0.05, 1.0, 2)
        y = M(truth, t + 1e-3) @ rng.normal(size=2) + 1e-3 * rng.normal(size=8)
        problem = xv.separable(M, y, data=t + 1e-3, W=W, lam=float(rng.choice([0.0, 1e-4])))
        lower = rng.uniform(0.0, 1.0, 2) if size < 0.1 else np.zeros(2)
        upper = lower + size
        grid = [lower + size * np.asarray(s) for s in itertools.product(np.linspace(0, 1, 5), repeat=2)]
        lowest = min(least(problem, A) for A in (M(x, t + 1e-3) for x in grid) if np.isfinite(A).all())
        design = Design(problem, shapes(2), alike=(0, 1))
        bound = design.bounds(lower[None], upper[None], np.sqrt(2 * lowest) * (1 + 1e-12)).lower[0]
        sound.append(bound <= lowest + 1e-14 * np.sum(y**2))
        useful += bound > 0.5 * lowest
    assert all(sound)
    assert useful or name == "zero somewhere"


def test_bounds_come_near_the_objective_with_the_third_power_of_the_box():
    problem = xv.separable(exponentials, np.exp(-3 * t) - 0.3 * t, data=t)
    gaps = []
    for h in (4e-3, 2e-3):
        lower, upper = np.asarray([[1.0 - h, 4.0 - h]]), np.asarray([[1.0 + h, 4.0 + h]])
        ends = itertools.product(*zip(lower[0], upper[0], strict=True))
        found = Design(problem, shapes(2)).bounds(lower, upper, np.inf)
        gaps.append(min(least(problem, exponentials(np.asarray(x), t)) for x in ends) - found.lower[0])
    assert 0 < gaps[1] < gaps[0] / 5


def test_rows_near_a_pole_leave_a_bound():
    x = np.linspace(0.0, 1.0, 41)

    def rational(theta, x):
        return x[:, None] ** np.arange(3.0) / (1 + theta[0] * x)[:, None]

    problem = xv.separable(rational, np.sin(9 * x), data=x)
    for pole in (0.5, 0.51, 0.5 + 1e-5):
        lower = np.asarray([-1 / pole])
        bound = Design(problem, shapes(1)).bounds(lower[None], lower[None] + 1e-3, np.inf).lower[0]
        lowest = min(least(problem, rational(lower + s, x)) for s in np.linspace(1e-6, 1e-3, 20))
        assert 0.1 * lowest < bound <= lowest


@pytest.mark.parametrize("entries", [2, 3])
def test_divided_differences_lie_in_their_enclosures(entries):
    def M(theta, x):
        return xv.array_namespace(theta).concat([x[:, None] ** 0, exponentials(theta, x)], axis=1)

    problem, rng = xv.separable(M, t, data=t), np.random.default_rng(2)
    design, scale = Design(problem, shapes(entries), alike=range(entries)), 10.0 ** -rng.uniform(0, 9, 20)
    lower = rng.uniform(1.0, 3.0, (20, 1)) + scale[:, None] * rng.uniform(0, 1, (20, entries))
    upper = lower + scale[:, None]
    found = design.divided(lower, upper)
    half = 0.5 * (upper.max(1) - lower.min(1))
    for s in (np.zeros(entries), rng.uniform(-1, 1, entries)):
        theta = 0.5 * (lower + upper) + 0.5 * (upper - lower) * s
        nodes, weights = np.polynomial.legendre.leggauss(8)  # of the mean of derivatives, which cancels nothing
        u, share = 0.5 * (nodes + 1), 0.5 * weights
        if entries == 2:
            at = theta[:, :1] + u * (theta[:, 1:] - theta[:, :1])
            exact = -t * np.einsum("q,bqm->bm", share, np.exp(-at[..., None] * t)) * half[:, None]
        else:
            a, b, c = (x[:, None, None] for x in theta.T)
            at = a + u[:, None] * ((b - a) + u * (c - b))
            exact = np.einsum("q,r,bqrm->bm", share * u, share, np.exp(-at[..., None] * t)) * (t * half[:, None]) ** 2
        i, j = np.triu_indices(entries)
        value = np.einsum("k,bkm->bm", [1.0, *s, *(s[i] * s[j])], found.terms[..., entries])
        assert (np.abs(value - exact) <= found.off[..., entries] + 1e-15).all()


def test_free_w_where_columns_are_equal_and_where_rows_have_poles():
    problem = xv.separable(exponentials, np.exp(-3 * t) - t**2, data=t)
    found = xv.certify(problem, xv.sets.Box(np.full(2, 0.5), np.full(2, 8.0)), within=0.5, alike=(0, 1))
    assert found.status is xv.Status.CONVERGED
    x = np.linspace(0.0, 1.0, 41)

    def rational(theta, x):
        return x[:, None] ** np.arange(3.0) / (1 + theta[0] * x + theta[1] * x**2)[:, None]

    problem = xv.separable(rational, np.sin(9 * x), data=x)
    found = xv.certify(problem, xv.sets.Box(np.full(2, -9.0), np.full(2, 9.0)), within=0.5)
    assert found.status is xv.Status.CONVERGED
    assert found.n_boxes < 1000


@pytest.mark.parametrize(
    "over", [xv.sets.Simplex(1.0), pytest.param(xv.sets.CappedSimplex(1.0), marks=pytest.mark.thorough)]
)
def test_theta_in_a_simplex(over):
    def M(theta, x):
        xp = xv.array_namespace(theta)
        return xp.stack([xp.exp(-3 * x * theta[0] - 9 * x**2 * theta[1]), xp.cos(9 * x * theta[2])], axis=1)

    problem = xv.separable(M, np.exp(-t) + 0.5 * np.sin(20 * t), data=t, W=xv.lower.Nonnegative())
    found = xv.solve(problem, np.asarray([0.2, 0.3, 0.5]), over).certify(within=0.5)
    assert found.status is xv.Status.CONVERGED
    assert float(over.violation(found.theta)) < 1e-9
    grid = (np.asarray(x) for x in itertools.product(np.linspace(0, 1, 11), repeat=3))
    lowest = min(least(problem, M(x, t)) for x in grid if over.violation(x) < 1e-9)
    assert found.bound <= found.value <= lowest * (1 + 1e-12)  # which is on the grid, but for rounding


def test_equal_columns_of_nonnegative_w_and_what_a_report_says():
    problem = xv.separable(exponentials, np.exp(-3 * t) + 0.1 * t, data=t, W=xv.lower.Nonnegative())
    fit = xv.solve(problem, np.asarray([1.0, 6.0]), xv.sets.Box(np.full(2, 0.5), np.full(2, 8.0)))
    found = fit.certify(within=0.2, alike=(0, 1))
    assert found.status is xv.Status.CONVERGED
    assert "No lower minimum in this box" in str(found.fit.report(certificate=found))
    other = xv.solve(problem, np.asarray([3.0, 3.1]), max_iter=0)
    assert "A lower minimum was found" in str(other.report(certificate=found))
    with pytest.raises(ProblemError, match="got a bound above the objective"):
        xv.solve(xv.separable(exponentials, np.exp(-3 * t), data=t), np.ones(1)).report(certificate=found)


@pytest.fixture(scope="module")
def problem():
    x = np.linspace(0.0, 1.0, 20)
    return xv.separable(waves, 2.0 * np.cos(9.0 * x) + 0.1 * np.cos(40 * x), data=x)


BOX = xv.sets.Box(np.asarray([1.0]), np.asarray([30.0]))


def test_a_fit_at_another_minimum_is_replaced(problem):
    fit = xv.solve(problem, np.asarray([20.0]), (1.0, 30.0))  # a pair of bounds is a box
    found = fit.certify()
    assert found.status is xv.Status.CONVERGED
    assert found.value < 0.5 * fit.value
    assert "A lower minimum was found" in str(found)
    assert "No lower minimum in this box" in str(found)
    assert 0.99 * found.value <= found.bound <= found.value
    lower, upper, bound = found.boxes
    assert any((a <= found.theta).all() and (found.theta <= b).all() for a, b in zip(lower, upper, strict=True))
    assert (bound >= found.bound).all()
    again = xv.certify(found.fit, within=0.5)
    assert again.value == found.value
    assert "No lower minimum in this box" in str(again)


def test_an_interruption_leaves_a_bound(problem, monkeypatch):
    whole, calls, bounds = xv.certify(problem, BOX, within=1e-3), [], Design.bounds

    def interrupted(self, *args):
        calls.append(0)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return bounds(self, *args)

    monkeypatch.setattr(Design, "bounds", interrupted)
    found = xv.certify(problem, BOX, within=1e-3)
    assert found.status is xv.Status.INTERRUPTED
    assert found.bound <= whole.value
    assert (found.boxes.lower <= whole.theta).all(axis=1).any()
    monkeypatch.undo()
    for alike in ((), (0,)):
        late = xv.certify(problem, (BOX.lower, BOX.upper), within=1e-6, time_limit=1e-9, alike=alike)
        assert late.status is xv.Status.TIME_LIMIT
        assert late.bound == 0
        assert "Nothing is proven" in str(late)
        assert ("alike= for entries that may change places" in str(late)) == (not alike)  # what was given is no advice
        assert "a ridge, a smaller box" in str(late)


def test_theta_in_a_dict_weights_a_target_of_theta_and_entries_alike():
    def M(theta, x):
        xp = xv.array_namespace(theta["rates"])
        return xp.exp(-x[:, None] * theta["rates"])

    def target(theta, x):
        return xv.array_namespace(theta["shift"]).exp(-x) + theta["shift"][0] * x - 0.2 * x

    weights = np.where(t > 0.5, 2.0, 1.0)
    problem = xv.separable(M, target, data=t, weights=weights, lam=1.0, W=xv.lower.Bounded(0.0, 3.0))
    over = {"rates": xv.sets.Box(np.full(2, 0.1), np.full(2, 3.0)), "shift": xv.sets.Box(np.zeros(1), np.ones(1))}
    found = xv.certify(problem, over, within=0.1, alike=(0, 1))
    assert found.status is xv.Status.CONVERGED
    assert (found.boxes.lower[:, 0] <= found.boxes.upper[:, 1]).all()
    assert 0 < found.bound <= found.value


def test_bounds_of_the_user():
    def monotone(lower, upper, x):
        return np.exp(-x[:, None] * upper[:, None]), np.exp(-x[:, None] * lower[:, None])

    other = xv.separable(exponentials, 0.5 + 0 * t, data=t, W=xv.lower.Nonnegative())
    box = xv.sets.Box(np.ones(1), np.full(1, 3.0))
    found = xv.certify(other, box, within=0.1, bounds=monotone)
    assert found.status is xv.Status.CONVERGED
    assert found.bound <= xv.certify(other, box).value
    assert xv.certify(other, box, within=0.1, bounds=[-1]).bound == found.bound


def test_what_is_refused(problem):
    def unknown(theta, x):
        return xv.array_namespace(theta).floor(x[:, None] * theta)

    def wide(theta, x):
        return waves(theta, x)[:1] * theta

    y = problem.lower.y
    refused = {
        "at most 8 entries": (problem, xv.sets.Box(np.zeros(9), np.ones(9)), {}),
        "finite bounds": (problem, xv.sets.Box(0.0, 1.0), {}),
        "a Box for each leaf": (problem, xv.sets.L2Ball(), {}),
        "number in (0, 1)": (problem, BOX, {"within": 0}),
        "theta's 1 entries": (problem, BOX, {"alike": (0, 1)}),
        "bounds must be a function": (problem, BOX, {"bounds": 1}),
        "1 or -1 for each entry": (problem, BOX, {"bounds": [1, -1]}),
        "shape (n,), n > 1": (xv.solve(problem, np.ones(1)), xv.sets.Simplex(), {}),
        "xp.floor": (xv.separable(unknown, y, data=problem.data), BOX, {"time_limit": 1e-9}),
        "the loss": (xv.separable(waves, y, data=problem.data, loss="huber"), BOX, {}),
        "one column is certified at a time": (xv.separable(waves, y[:, None], data=problem.data), BOX, {}),
        "(np.array([0.0]), np.array([1.0])) for one entry": (problem, (0.0, 1.0), {}),
        "xv.separable": (1, BOX, {}),
    }
    for words, (what, over, options) in refused.items():
        with pytest.raises(ProblemError, match=re.escape(words)):
            xv.certify(what, over, **options)
