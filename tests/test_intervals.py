"""Confidence intervals: by linear theory, by profiles, by bootstrap, against brute force and solutions one by one."""

from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest
import scipy.optimize
import scipy.stats

import xvarpro as xv
from xvarpro.errors import ProblemError
from xvarpro.fit import profiles
from xvarpro.statistics.intervals import student

from .support import RATES, T, decays, rng, with_offset

Y = np.exp(-np.outer(T, RATES)) @ np.array([2.0, 1.0]) + 0.02 * rng(1).normal(size=T.size)
PROBLEM = xv.separable(decays, Y, data={"t": T})
BOX = xv.sets.Box(0.0, 40.0)


@cache
def example():
    return xv.solve(PROBLEM, np.array([0.8, 3.0]), over=BOX, tol=1e-9)


def test_linear_theory_is_estimate_and_student_times_error():
    for sigma, dof in ((False, T.size - 4), (True, np.inf)):
        found, s = example().interval(0.9, absolute_sigma=sigma), example().statistics(absolute_sigma=sigma)
        width = scipy.stats.t.ppf(0.95, dof) * np.concatenate([s.theta_stderr, s.w_stderr])
        value = np.concatenate([example().theta, example().w])
        np.testing.assert_allclose([found.lower, found.upper], [value - width, value + width], rtol=1e-12)
        np.testing.assert_array_equal(found.value, value)
    assert found.names == ["theta[0]", "theta[1]", "w[0]", "w[1]"]
    assert example().interval(0.9).notes == []


def test_a_variance_that_happens_to_be_one_is_no_known_one():
    s = replace(example().statistics(), variance=1.0)
    assert student(s, 0.95) == pytest.approx(scipy.stats.t.ppf(0.975, s.dof))
    assert student(example().statistics(absolute_sigma=True), 0.95) == pytest.approx(scipy.stats.norm.ppf(0.975))


def squares(theta, y=Y):
    """Sum of squared residuals at rates, w eliminated, by a dense least-squares solver."""
    A = np.exp(-np.outer(T, theta))
    return np.sum((A @ np.linalg.lstsq(A, y)[0] - y) ** 2)


@cache
def brute_end(entry, sign, t):
    """The end of an interval by nested one-dimensional searches."""
    best = squares(example().theta)
    variance = best / (T.size - 4)

    def rise(c):
        def other(x):
            theta = np.array([x, x])
            theta[entry] = c
            return squares(theta)

        around = example().theta[1 - entry]
        low = scipy.optimize.minimize_scalar(other, bounds=(0.3 * around, 3 * around), options={"xatol": 1e-9}).fun
        return (low - best) / variance - t**2

    at, width = example().theta[entry], sign * example().statistics().theta_stderr[entry]
    return scipy.optimize.brentq(rise, at + 0.5 * width, at + 6 * width)


@pytest.mark.parametrize("backend", ["numpy", "array-api-strict", "torch"])
def test_profiles_end_where_the_objective_has_risen(backend):
    to = xv.backends.get(backend)
    fit = xv.solve(PROBLEM, to.asarray(example().theta), over=BOX, tol=1e-9)
    found, t = fit.interval(0.95, PROFILE), scipy.stats.t.ppf(0.975, T.size - 4)
    ends = [[brute_end(j, sign, t) for j in range(2)] for sign in (-1, 1)]
    np.testing.assert_allclose([found.lower, found.upper], ends, rtol=2e-4)


@pytest.mark.parametrize("backend", ["numpy", "jax"])
def test_profiles_in_single_precision(backend):
    start = xv.backends.get(backend).asarray(example().theta.astype("f4"))
    fit = xv.solve(xv.separable(decays, Y.astype("f4"), data={"t": T.astype("f4")}), start, over=BOX)
    np.testing.assert_allclose(profiled(fit), profiled(example()), rtol=1e-2)


def test_profiles_stop_at_bounds_and_say_that_constraints_are_active():
    over = xv.sets.Box(np.array([0.0, 3.9]), np.array([40.0, 4.3]))
    lower, upper = profiled(example())[:, 1]
    assert lower < 3.9 < 4.3 < upper
    np.testing.assert_array_equal(profiled(xv.solve(PROBLEM, np.array([0.8, 4.0]), over=over))[:, 1], [3.9, 4.3])
    held = xv.solve(PROBLEM, np.array([0.8, 3.0]), over=xv.sets.Box(0.0, np.array([40.0, 3.5])), tol=1e-9)
    for by in (xv.statistics.Linear(), PROFILE):
        found = held.interval(0.95, by)
        assert found.upper[1] == 3.5
        assert any("not calibrated" in note for note in found.notes)
    assert found.lower[1] < 3.5


def test_a_profile_leaves_out_what_has_no_weight():
    y, weights = Y.copy(), np.ones(T.size)
    y[3:6], weights[3:6] = np.nan, 0.0
    kept = weights > 0
    masked = xv.solve(xv.separable(decays, y, data={"t": T}, weights=weights), RATES, over=BOX, tol=1e-9)
    short = xv.solve(xv.separable(decays, Y[kept], data={"t": T[kept]}), RATES, over=BOX, tol=1e-9)
    np.testing.assert_allclose(profiled(masked), profiled(short), rtol=1e-4)


def test_a_profile_that_never_rises_has_no_end():
    t = np.linspace(0.0, 1.0, 30)  # a rate that is hardly seen: beyond some size all rates fit alike
    y = 1.0 + 0.5 * np.exp(-200.0 * t) + 0.2 * rng(5).normal(size=30)
    fit = xv.solve(xv.separable(with_offset, y, data=t), np.array([100.0]), over=xv.sets.Box(0.0, np.inf))
    found = fit.interval(0.95, PROFILE)
    assert not np.isfinite(found.upper[0])
    assert any("does not rise enough" in note for note in found.notes)


def test_a_solver_of_the_problems_own_is_left_to_solve():
    """A batch has one for all of its levels."""
    fit = xv.solve(replace(PROBLEM, lower=replace(PROBLEM.lower, solver=xv.lower.QR())), example().theta, over=BOX)
    np.testing.assert_allclose(profiled(fit), profiled(example()), rtol=1e-3)


def test_a_profile_of_a_tree_has_all_entries_of_theta_in_each_row():
    def M(theta, data):
        xp = xv.array_namespace(theta)
        return decays(xp.stack([theta["slow"], theta["fast"]]), data)

    start = {"slow": np.array(0.8), "fast": np.array(3.0)}
    fit = xv.solve(xv.separable(M, Y, data={"t": T}), start, tol=1e-9)
    tree, plain = (f.profile(entry, points=5) for f, entry in ((fit, 1), (example(), 0)))
    assert tree.theta.shape == (5, 2)
    np.testing.assert_allclose(tree.theta, plain.theta[:, ::-1], rtol=1e-5)  # leaves in the order of their names


def test_a_profile_of_an_entry_without_effect_has_no_ends(monkeypatch):
    monkeypatch.setattr(profiles, "TRIALS", 12)  # the ends of the others are found by then
    problem = xv.separable(lambda theta, data: decays(theta[:2], data) + 0 * theta[2], Y, data={"t": T})
    fit = xv.solve(problem, np.array([0.8, 3.0, 0.1]))
    found, sampled = fit.interval(0.95, PROFILE), fit.interval(0.95, xv.statistics.Bootstrap(20))
    assert (found.lower[2], found.upper[2]) == (sampled.lower[2], sampled.upper[2]) == (-np.inf, np.inf)
    np.testing.assert_allclose(found.lower[:2], profiled(example())[0], rtol=1e-3)
    assert np.isfinite(np.delete(sampled.lower, 2)).all()
    assert "the data do not determine theta[2]" in sampled.notes


def product(theta, data):
    xp = xv.array_namespace(theta)
    return xp.exp(-data["t"] * theta[0] * theta[1])[:, None]


def product_fit(upper):
    y = 2.0 * np.exp(-3.0 * T) + 0.05 * rng(9).normal(size=T.size)
    problem = xv.separable(product, y, data={"t": T})
    over = None if upper is None else xv.sets.Box(0.0, upper)
    return xv.solve(problem, np.array([1.0, 2.0]), over=over, tol=1e-9), y


@pytest.mark.parametrize("upper", [5.0, 100.0])
def test_of_rates_of_which_the_product_matters_only_bounds_give_the_profiles(upper):
    """The least of one is the least product that the data allow over the largest value of the other."""
    fit, y = product_fit(upper)
    best, t = float(fit.theta[0] * fit.theta[1]), scipy.stats.t.ppf(0.975, T.size - 2)

    def rise(k):
        M = np.exp(-k * T)
        return (y @ y - (M @ y) ** 2 / (M @ M)) / (2 * fit.value) - 1 - t**2 / (T.size - 2)

    found = fit.interval(by="profile", names=["a", "b"])
    np.testing.assert_allclose(found.lower, scipy.optimize.brentq(rise, 0.5 * best, best) / upper, rtol=2e-4)
    np.testing.assert_array_equal(found.upper, upper)
    assert any("does not rise enough to give the upper end of a, the upper end of b" in note for note in found.notes)


@pytest.mark.parametrize("upper", [None, np.inf])
def test_an_end_that_nothing_gives_is_infinite_or_the_bound_and_said(upper, monkeypatch):
    monkeypatch.setattr(profiles, "TRIALS", 5)  # more of them find no more
    monkeypatch.setattr(profiles, "solve_many", partial(profiles.solve_many, max_iter=50))
    fit, _ = product_fit(upper)
    found = fit.interval(by="profile")
    np.testing.assert_array_equal(found.upper, np.inf)
    np.testing.assert_array_equal(found.lower, -np.inf if upper is None else 0.0)
    for side in ("lower", "upper"):
        assert any(f"the {side} end of theta[0], " in note for note in found.notes)


def test_a_profile_of_data_without_noise_needs_to_know_sigma():
    clean = np.exp(-np.outer(T, RATES)) @ np.array([2.0, 1.0])
    problem = xv.separable(decays, clean, data={"t": T}, weights=np.full(T.size, 1e4))
    fit = xv.solve(problem, np.array([0.8, 3.0]), tol=1e-9)
    for ask in (lambda: fit.interval(0.95, PROFILE), lambda: fit.profile(0)):
        with pytest.raises(ProblemError, match="zero to rounding"):
            ask()
    found, linear = fit.interval(0.95, PROFILE, absolute_sigma=True), fit.interval(0.95, absolute_sigma=True)
    np.testing.assert_allclose(found.lower[:2], linear.lower[:2], rtol=0.05)


def test_heights_of_many_right_hand_sides_are_those_of_the_minimisers():
    """What holds an entry counts once, whatever their number."""
    y = np.exp(-np.outer(T, RATES)) @ rng(6).normal(size=(2, 5)) + 0.02 * rng(7).normal(size=(T.size, 5))
    fit = xv.solve(xv.separable(decays, y, data={"t": T}), RATES, over=BOX, tol=1e-9)
    curve = fit.profile(1, points=5, width=2.0)
    rises = [squares(theta, y) - squares(fit.theta, y) for theta in curve.theta]
    want = np.sqrt(np.maximum(rises, 0.0) / fit.statistics().residual_variance)
    np.testing.assert_allclose(np.abs(curve.height), want, rtol=1e-4, atol=1e-3)


def test_a_design_for_each_right_hand_side_has_what_blocks_have():
    def stacked(theta, data):
        return xv.array_namespace(theta).stack([decays(theta, {"t": data["t"][:, i]}) for i in range(2)])

    y, data = np.reshape(Y, (-1, 2)), {"t": np.reshape(T, (-1, 2))}
    blocks = xv.separable(lambda *given: xv.operators.BlockDiagonal(list(stacked(*given))), y.T.ravel(), data=data)
    problems = [xv.separable(stacked, y, data=data), blocks]
    np.testing.assert_allclose(*(profiled(xv.solve(p, RATES, over=BOX, tol=1e-9)) for p in problems), rtol=1e-4)
    found = [xv.multistart(problem, RATES, BOX, starts=4, canonical=np.sort).minima for problem in problems]
    np.testing.assert_allclose(*([minimum.value for minimum in minima] for minima in found), rtol=1e-6)


def shares(theta, data):
    return data["A"] @ theta[:, None]


@pytest.mark.parametrize("backend", ["numpy", "jax"])
def test_profiles_stay_in_a_simplex(backend):
    """Theta is the shares of three components, y their mixture of unknown size; the brute profile holds one share."""
    A = np.stack([np.exp(-T), np.exp(-4 * T), T], axis=1)
    y = A @ np.array([1.2, 0.6, 0.1]) + 0.02 * rng(8).normal(size=T.size)
    problem, C = xv.separable(shares, y, data={"A": A}), xv.sets.Simplex(1.0)
    fit = xv.solve(problem, np.full(3, 1 / 3), over=C, tol=1e-10, backend=backend)
    found = fit.interval(0.95, xv.statistics.Profile())
    t, s = scipy.stats.t.ppf(0.975, fit.statistics().dof), fit.statistics()

    def rise(x, j):
        """Of the profile over `t^2`, with share j held at x: the least over the segment of the other two."""
        others = [i for i in range(3) if i != j]

        def value(part):
            theta = np.zeros(3)
            theta[[j, *others]] = x, part * (1 - x), (1 - part) * (1 - x)
            M = A @ theta
            return y @ y - (M @ y) ** 2 / (M @ M)

        low = scipy.optimize.minimize_scalar(value, bounds=(0.0, 1.0), options={"xatol": 1e-10}).fun
        return (low - 2 * fit.value) / s.residual_variance - t**2

    theta = np.asarray(fit.theta)
    for j in range(3):
        lower = scipy.optimize.brentq(rise, 0.0, theta[j], args=(j,)) if rise(0.0, j) > 0 else 0.0
        np.testing.assert_allclose(found.lower[j], lower, rtol=2e-4, atol=1e-12)
        np.testing.assert_allclose(found.upper[j], scipy.optimize.brentq(rise, theta[j], 1.0, args=(j,)), rtol=2e-4)


@pytest.mark.parametrize(
    ("case", "parametric"), [("vector", True), ("vector", False), ("columns", False), ("nested theta", True)]
)
def test_a_bootstrap_spreads_as_linear_theory_says(parametric, case):
    if case == "columns":
        y = np.exp(-np.outer(T, RATES)) @ rng(6).normal(size=(2, 3)) + 0.005 * rng(7).normal(size=(T.size, 3))
        fit = xv.solve(xv.separable(decays, y, data={"t": T}), RATES, over=BOX, tol=1e-9)
    elif case == "nested theta":
        problem = xv.separable(lambda th, data: decays(th["rates"], data), Y, data={"t": T})
        fit = xv.solve(problem, {"rates": RATES}, over={"rates": BOX}, tol=1e-9)
    else:
        fit = example()
    by = xv.statistics.Bootstrap(400, parametric=parametric, seed=3)
    found, linear = fit.interval(0.95, by), fit.interval(0.95)
    widths = (found.upper - found.lower) / (linear.upper - linear.lower)
    assert np.all(np.abs(widths - 1) < 0.25)
    assert found.samples.shape == (400, found.value.size)
    np.testing.assert_allclose(found.samples.std(axis=0), (linear.upper - linear.value) / 2.0, rtol=0.2)
    if case == "columns":
        np.testing.assert_array_equal(fit.interval(0.95, by).samples, found.samples)


@pytest.mark.parametrize("masked", [np.nan, 1e3])
def test_a_bootstrap_draws_residuals_of_data_that_have_a_weight(masked):
    """And the estimates spread as linear theory of the others says."""
    weights = np.where(np.arange(T.size) % 2 == 0, 0.0, 4.0)
    y = np.where(weights > 0, Y, masked)
    fit = xv.solve(xv.separable(decays, y, data={"t": T}, weights=weights), RATES, over=BOX, tol=1e-9)
    by = xv.statistics.Bootstrap(100, seed=3)
    found, s, used = fit.interval(0.95, by), fit.statistics(), weights > 0
    assert found.samples.shape == (100, 4)
    np.testing.assert_allclose(found.samples.std(axis=0), [*s.theta_stderr, *s.w_stderr], rtol=0.25)
    left = (Y - fit.fitted)[used]
    centred = left - left.mean()
    left = centred * (np.sum(left**2) / np.sum(centred**2) * s.data / s.dof) ** 0.5
    drawn = by._drawn(fit, s, y)
    assert not drawn[:, ~used].any()
    assert np.all(np.min(np.abs((drawn - fit.fitted)[:, used, None] - left), axis=-1) < 1e-12)


def test_samples_of_a_bootstrap_lie_around_the_fit():
    """Also where residuals have a mean, as those of a peak without a background do."""
    x = np.linspace(0.0, 10.0, 100)
    y = 3.0 * np.exp(-((x - 5.0) ** 2)) + 0.05 * rng(1).normal(size=100) + 0.02
    fit = xv.solve(xv.separable(lambda c, x: xv.models.gaussians(x, c, 1.2), y, data=x), [4.5], over=(0.0, 10.0))
    off = fit.interval(0.95, xv.statistics.Bootstrap(1000)).samples[:, 1].mean() - fit.w[0]
    assert abs(off) < 0.15 * fit.statistics().w_stderr[0] < abs(fit.residuals.mean())


def test_samples_of_a_bootstrap_are_solutions_for_their_data():
    by = xv.statistics.Bootstrap(3, seed=5)
    samples = example().interval(0.5, by).samples
    for y, sample in zip(by._drawn(example(), example().statistics(), Y), samples, strict=True):
        alone = xv.solve(xv.separable(decays, y, data={"t": T}), example().theta, over=BOX, tol=1e-9)
        np.testing.assert_allclose(sample, np.concatenate([alone.theta, alone.w]), rtol=1e-4)


def test_an_end_of_linear_theory_outside_of_the_bounds_is_said():
    y = np.exp(-np.outer(T, RATES)) @ np.array([2.0, 0.02]) + 0.02 * rng(1).normal(size=T.size)
    near = xv.solve(xv.separable(decays, y, data={"t": T}, W=xv.lower.Nonnegative()), np.array([0.8, 3.0]), over=BOX)
    found = near.interval()
    left = [name for name, low in zip(found.names, found.lower, strict=True) if low < 0]
    assert f"intervals leave the bounds of {', '.join(left)}; Bootstrap() respects them" in found.notes[-1]


def test_what_intervals_are_not_for(subtests):
    moving = xv.separable(decays, lambda theta, data: data["y"] + 0 * theta[0], data={"t": T, "y": Y})
    fits = [xv.solve(p, RATES, over=BOX) for p in (xv.separable(decays, 1j * Y, data={"t": T}), moving)]
    for message, call in (
        (r"level must be a number in \(0, 1\)", lambda: example().interval(95)),
        ("need a real w", fits[0].interval),
        ("target that is an array", lambda: fits[1].interval(0.95, xv.statistics.Bootstrap(2))),
        ("entry must be one of 0 to 1", lambda: example().profile(2)),
        ("samples", lambda: xv.statistics.Bootstrap(samples=1)),
        ("seed", lambda: xv.statistics.Bootstrap(seed=-1)),
        ("parametric", lambda: xv.statistics.Bootstrap(parametric="no")),
        ("amplitudes must hold 2 names, one per row of w; got 1", lambda: example().interval(amplitudes=["a"])),
    ):
        with subtests.test(message), pytest.raises(ProblemError, match=message):
            call()


def test_intervals_print_and_show_as_tables_with_the_names_of_a_report():
    found = example().interval(0.9, names=["slow", "fast"], amplitudes=["<a>", "b"])
    assert found.names == ["slow", "fast", "<a>", "b"]
    assert example().interval(by="profile", names=["slow", "fast"]).names == ["slow", "fast"]
    assert str(found).startswith("0.9 confidence, linear theory\n")
    assert f"{found.lower[1]:.6g}" in str(found)
    np.testing.assert_array_equal(found.to_frame().loc["<a>", ["lower", "upper"]], [found.lower[2], found.upper[2]])
    table = found._repr_html_()
    assert table.count("<tr>") == 5
    assert "<td>&lt;a&gt;</td>" in table
    assert f"<td>{found.upper[0]:.6g}</td>" in table


def test_methods_by_name_and_by_class_are_those_of_the_objects():
    for by, method in (("linear", xv.statistics.Linear()), (xv.statistics.Profile, xv.statistics.Profile())):
        np.testing.assert_array_equal(example().interval(by=by).lower, example().interval(by=method).lower)
    assert example().interval(by="profile").method == "profile of the objective"
    for by in ("bayes", np.ones(5000)):
        with pytest.raises(ProblemError, match="by must be 'linear', 'profile' or 'bootstrap'") as caught:
            example().interval(by=by)
        assert len(str(caught.value)) < 200


def test_a_lower_minimum_on_the_way_is_said():
    """A frequency of which the profile passes by a better one."""
    t = np.linspace(0.0, 6.0, 60)

    def M(theta, t):
        xp = xv.array_namespace(theta)
        return xp.stack([xp.cos(theta[0] * t), xp.sin(theta[0] * t)], axis=1)

    problem = xv.separable(M, np.cos(3 * t) + 0.8 * rng(0).normal(size=60), data=t)
    for start, lower in ((2.5, False), (4.5, True)):
        fit = xv.solve(problem, np.array([start]), over=(0.0, 8.0))
        notes = fit.interval(0.95, "profile").notes
        assert any("a lower minimum was found on the way: solve again" in note for note in notes) == lower


PROFILE = xv.statistics.Profile()


def profiled(fit, level=0.95):
    """Lower and upper ends by profiles."""
    found = fit.interval(level, PROFILE)
    return np.stack([found.lower, found.upper])
