"""Statistics of a batch: those of each of its problems by itself."""

import copy
import dataclasses
import pickle
import sys
from functools import lru_cache

import numpy as np
import pytest

import xvarpro as xv
from xvarpro.statistics.constraints import uncalibrated

from .support import host, rng, together

T = np.linspace(0.0, 2.0, 40)
B = 6
BOX = xv.sets.Box(0.0, 20.0)
DRAW = rng(11)
RATES = np.stack([DRAW.uniform(0.5, 1.5, B), DRAW.uniform(3.0, 8.0, B)], axis=1)
DESIGNS = np.exp(-RATES[:, None, :] * T[:, None])
Y = DESIGNS @ [2.0, 1.0] + 0.01 * DRAW.normal(size=(B, T.size))
MANY = DESIGNS @ DRAW.uniform(1.0, 2.0, (2, 3)) + 0.01 * DRAW.normal(size=(B, T.size, 3))
MASK = DRAW.uniform(size=Y.shape) > 0.2
KERNEL = np.exp(-np.abs(T[:, None] - T) / 0.05)
ROTATING = DESIGNS * np.exp(3.0j * T)[:, None] + 0.01 * DRAW.normal(size=DESIGNS.shape)


def rotating(theta, data):
    """Decays in a rotating frame."""
    xp, M = xv.array_namespace(theta), together(theta, data)
    return M * (xp.cos(3.0 * data["t"]) + 1j * xp.sin(3.0 * data["t"]))[None, :, None]


# the target, the rest of the problem, the sets of theta, what is asked for
KINDS = {
    "plain": (Y, {}, BOX, {}),
    "at a bound": (Y, {}, xv.sets.Box(0.0, 4.0), {}),
    "large units": (1e6 * Y, {"weights": np.full(T.size, 1e-8)}, BOX, {"absolute_sigma": True}),
    "sandwich": (Y, {}, BOX, {"sandwich": True}),
    "ridges": (Y, {"lam": DRAW.uniform(1e-3, 1e-1, B)}, BOX, {}),
    "nonnegative": (Y - 1.5 * np.exp(-3.0 * T), {"W": xv.lower.Nonnegative()}, xv.sets.Box(0.5, 8.0), {}),
    "mask": (np.where(MASK, Y, np.nan), {"weights": MASK}, BOX, {}),
    "columns": (MANY, {}, BOX, {}),
    "columns between bounds": (MANY, {"W": xv.lower.Bounded(0.0, np.array([[1.3], [1.9]]))}, BOX, {}),
    "columns with weights": (MANY, {"weights": DRAW.uniform(size=MANY.shape)}, BOX, {}),
    "complex": (MANY + 1j * MANY[::-1], {}, BOX, {}),
    "a complex design": (ROTATING @ np.array([2.0 + 1.0j, 1.0]), {"lam": 0.01}, BOX, {}),
    "complex numbers and a real w": (ROTATING @ np.array([2.0, 1.0]), {"W": xv.lower.Nonnegative()}, BOX, {}),
    "a complex design with weights": (ROTATING.real @ np.array([2.0, 1.0]), {"weights": MASK}, BOX, {}),
    "a simplex of weights": (Y, {"W": xv.lower.Simplex(3.0)}, BOX, {}),
    "a penalty on weights": (Y, {"W": xv.lower.L1(0.001)}, BOX, {}),
    "an equation for weights": (Y, {"W": xv.lower.Equality(np.ones((1, 2)), 3.0)}, BOX, {}),
    "cauchy": (Y, {"loss": xv.losses.Cauchy(0.05)}, BOX, {}),
    "covariance": (Y, {"covariance": KERNEL}, BOX, {}),
    "counts": (DRAW.poisson(np.maximum(200 * Y, 1.0)) * 1.0, {"loss": xv.losses.Poisson()}, BOX, {}),
    "huber": (Y, {"loss": xv.losses.Huber(scale=0.01)}, BOX, {}),
    "a set that is no box": (Y, {}, xv.sets.L1Ball(5.0), {}),
}


def batch(kind, **options):
    y, rest, over, asked = KINDS[kind]
    start = np.tile([0.7, 4.0], (B, 1))
    M = rotating if "complex design" in kind or "complex numbers" in kind else together
    fit = xv.solve_many(xv.separable(M, y, data={"t": T}, **rest), start, over=over, tol=1e-9, **options)
    return fit, fit.statistics(**asked)


def squared(theta):
    return xv.array_namespace(theta).sum(theta**2, axis=1)


def alone(fit, i, asked):
    """The statistics of one member at the theta of the batch."""
    problem = xv.many.single(fit.stated, i)
    if problem.lower.loss is None:
        return xv.statistics.linear_theory(problem, fit.theta[i], fit.over, **asked)
    return xv.solve(problem, fit.theta[i], over=fit.over, tol=1e-11).statistics(**asked)


@pytest.mark.parametrize("kind", KINDS)
def test_statistics_of_a_batch_are_those_of_its_problems(kind):
    fit, found = batch(kind)
    near = {"rtol": 1e-6 if fit.stated.lower.loss else 1e-9}
    for i in range(B):
        expected = alone(fit, i, KINDS[kind][3])
        np.testing.assert_allclose(found.theta_stderr[i], expected.theta_stderr, **near)
        np.testing.assert_allclose(found.w_stderr[i], expected.w_stderr, **near, atol=1e-12)
        size = np.sqrt(np.diagonal(expected.covariance))
        np.testing.assert_allclose(
            found.covariance[i], expected.covariance, **near, atol=1e-9 * np.max(size[np.isfinite(size)] ** 2)
        )
        for name in ("data", "parameters", "dof", "chi2", "reduced_chi2", "aic"):
            np.testing.assert_allclose(getattr(found, name)[i], getattr(expected, name), **near, err_msg=name)
        said = [why for why, at in found.reasons.items() if i in at]
        held = ["constraints are active: errors are not calibrated"]
        held *= bool(uncalibrated(expected.entries, expected.limits))
        assert sorted(said) == sorted(expected.reasons + held)


@pytest.mark.parametrize("n", [1, 2])
def test_weights_at_a_bound_without_a_multiplier_are_seen_whatever_their_number(n):
    def on_two_columns(theta, data):
        xp = xv.array_namespace(theta)
        decay = xp.exp(-data["t"][None, :, None] * theta[:, None, :])
        return xp.concat([decay, data["others"][None, ...] + 0 * decay], axis=2)

    others, decay = DRAW.normal(size=(T.size, n)), np.exp(-1.3 * T)
    Q = np.linalg.qr(np.column_stack([decay, T * decay, others]))[0]
    y = 2.0 * decay + (np.eye(T.size) - Q @ Q.T) @ (0.01 * DRAW.normal(size=T.size))
    problem = xv.separable(on_two_columns, y[None], data={"t": T, "others": others}, W=xv.lower.Nonnegative())
    found = xv.solve_many(problem, np.full((1, 1), 1.3), over=BOX, tol=1e-12).statistics()
    assert "active with a multiplier of zero" in str(found)


def test_a_target_without_numbers_ends_alone_where_problems_are_solved_one_after_the_other(backend):
    y = np.where(np.arange(B)[:, None] == 2, np.nan, Y)
    problem = xv.separable(together, y, data={"t": T}, W=xv.lower.Simplex(3.0))
    fit = xv.solve_many(problem, np.tile([0.7, 4.0], (B, 1)), over=BOX, backend=backend)
    assert fit.ended(xv.Status.NO_DATA).tolist() == [2]
    assert np.isnan(fit.theta[2]).all()
    assert np.isnan(fit.w[2]).all()
    assert fit.success.sum() == B - 1
    found = fit.statistics()
    assert np.isnan(found.theta_stderr[2]).all()
    assert np.isfinite(np.delete(found.w_stderr, 2, axis=0)).all()
    assert found.covariance.shape == (B, 4, 4)
    assert len(fit.to_frame()) == B
    lowest = xv.solve_many(problem, np.tile([0.7, 4.0], (B, 1)), over=BOX, starts=np.array([[1.0, 9.0]]))
    np.testing.assert_allclose(np.delete(lowest.theta, 2, axis=0), np.delete(fit.theta, 2, axis=0), rtol=1e-3)
    none = xv.solve_many(
        xv.separable(together, 0 * y * np.nan, data={"t": T}, W=xv.lower.Simplex()), fit.theta[:1] + np.zeros((B, 2))
    )
    assert none.counts == {xv.Status.NO_DATA: B}
    assert none.w.shape == fit.w.shape


def test_ctrl_c_keeps_the_problems_that_are_solved():
    calls = []

    def stopping(theta, data):
        calls.append(1)
        if len(calls) == 25:
            raise KeyboardInterrupt
        return together(theta, data)

    problem = xv.separable(stopping, Y, data={"t": T}, W=xv.lower.Simplex(3.0))
    with pytest.raises(KeyboardInterrupt) as caught:
        xv.solve_many(problem, np.tile([0.7, 4.0], (B, 1)), over=BOX)
    found = caught.value.result
    assert found.success[0]
    assert found.ended(xv.Status.INTERRUPTED).tolist()[-1] == B - 1
    assert found.theta.shape == (B, 2)


@pytest.mark.parametrize("kind", ["plain", "a complex design", "complex numbers and a real w"])
def test_every_backend_has_the_same(backend, kind):
    expected = batch(kind)[1]
    found = batch(kind, backend=backend)[1]
    np.testing.assert_allclose(host(found.theta_stderr), expected.theta_stderr, rtol=1e-7)
    np.testing.assert_allclose(host(found.w_stderr), expected.w_stderr, rtol=1e-7)


def test_one_member_is_a_problem_on_every_backend(backend):
    single = xv.many.single(xv.separable(together, Y, data={"t": T}), 1)
    fit = xv.solve(single, np.array([0.7, 4.0]), over=BOX, backend=backend)
    np.testing.assert_allclose(fit.theta, batch("plain")[0].theta[1], rtol=1e-4)


def test_errors_are_the_spread_of_repeated_fits():
    b, sigma = 4000, 0.02
    clean = 2.0 * np.exp(-1.0 * T) + np.exp(-5.0 * T)
    y = clean + sigma * rng(3).normal(size=(b, T.size))
    fit = xv.solve_many(xv.separable(together, y, data={"t": T}), np.tile([1.0, 5.0], (b, 1)))
    found = fit.statistics()
    for spread, errors in ((fit.theta.std(axis=0), found.theta_stderr), (fit.w.std(axis=0), found.w_stderr)):
        np.testing.assert_allclose(np.median(errors, axis=0), spread, rtol=0.15)
    np.testing.assert_allclose(np.mean(found.reduced_chi2), sigma**2, rtol=0.02)


def test_what_a_member_lacks_is_said_of_it_alone():
    y = Y.copy()
    y[1], y[2], y[3] = np.nan, DESIGNS[2] @ [2.0, 1.0], 3.0 * DESIGNS[3][:, 0]
    weights = np.ones(Y.shape)
    weights[4, 3:] = 0.0
    problem = xv.separable(together, y, data={"t": T}, weights=weights)
    found = xv.solve_many(problem, np.tile([0.7, 4.0], (B, 1)), over=BOX).statistics()
    at = {why.split(":")[0][:34]: members.tolist() for why, members in found.reasons.items()}
    assert at["w is NaN or inf"] == [1]
    assert 2 in at["the residual is zero to rounding"]
    assert at["standard errors need more data tha"] == [4]
    assert np.isnan(found.theta_stderr[[1, 4]]).all()
    assert np.isfinite(found.theta_stderr[[0, 5]]).all()
    assert "  problem 1: w is NaN" in repr(found)
    silent = dataclasses.replace(found, w_stderr=np.where(np.isnan(found.w_stderr), np.nan, [0.5, np.inf]))
    assert "  w             0.5, undetermined\n" in repr(silent)


def test_a_table_has_a_row_for_each_problem():
    fit, found = batch("plain")
    table = fit.to_frame()
    names = ["theta[0]", "theta[1]", "w[0]", "w[1]"]
    assert list(table) == [*names, *(f"{name}_stderr" for name in names), "value", "status"]
    np.testing.assert_array_equal(table["theta[1]"], fit.theta[:, 1])
    np.testing.assert_array_equal(table["w[0]_stderr"], found.w_stderr[:, 0])
    assert set(table["status"]) == {"CONVERGED"}
    assert list(fit.to_frame(errors=False)) == [*names, "value", "status"]
    known = fit.statistics(absolute_sigma=True)
    np.testing.assert_array_equal(fit.to_frame(known)["w[0]_stderr"], known.w_stderr[:, 0])
    assert not np.allclose(known.w_stderr, found.w_stderr)


def test_parameters_that_are_called_as_other_columns_have_names_of_their_own():
    def M(theta, t):
        xp = xv.array_namespace(theta["w"])
        return xp.exp(-t[:, None] * (theta["w"] * theta["value"])[:, None, None])

    problem, start = xv.separable(M, Y[:2], data=T), {"w": np.array([1.0, 2.0]), "value": np.ones(2)}
    fit = xv.solve_many(problem, start, max_iter=0)
    assert list(fit.columns(errors=False)) == ["theta.value", "theta.w", "w[0]", "value"]
    np.testing.assert_array_equal(fit.columns(errors=False)["theta.w"], start["w"])
    assert set(fit.to_xarray((2,), ["x"], errors=False)) == {"theta.value", "theta.w", "w", "value", "status"}


@lru_cache
def image():
    """6 pixels: 1 and 4 without data, 2 that does not end, 3 whose errors are not determined."""
    y = np.array(Y)
    y[[1, 4]] = np.nan
    y[2] = y[3] = 2.0 * np.exp(-T)
    start = np.tile([0.7, 4.0], (B, 1))
    start[2] = [1.0, 1.0]
    start[3] = [1.0, 9.0]
    problem = xv.separable(lambda theta, data: together(theta["rates"], data), y, data={"t": T})
    return xv.solve_many(problem, {"rates": start}, {"rates": BOX})


HELD = xv.sets.Box(xv.Each(np.zeros((4, 1))), xv.Each(np.array([[2.0], [2.0], [9.0], [9.0]])))


def test_a_map_has_values_and_errors_with_failures_hollow_and_dead_pixels_blank():
    fit = image()
    assert [xv.Status.of(fit.status[i]).name for i in (1, 2, 4)] == ["NO_DATA", "RANK_DEFICIENT", "NO_DATA"]
    figure = fit.plot_map("rates[0]", shape=(2, 3), label="rate (1/s)")
    values, errors = (ax for ax in figure.axes if ax.images)
    for ax, x in ((values, fit.theta["rates"][:, 0]), (errors, fit.statistics().theta_stderr["rates"][:, 0])):
        shown = np.where(fit.success & np.isfinite(x), x, np.nan)
        np.testing.assert_array_equal(ax.images[0].get_array().filled(np.nan).ravel(), shown)
        (hollow,) = ax.collections
        centres = [tuple(path.vertices[:4].mean(axis=0)) for path in hollow.get_paths()]
        assert centres == [(i % 3, i // 3) for i in np.flatnonzero(np.isnan(shown)) if i not in (1, 4)]
        assert (hollow.get_hatch(), hollow.get_facecolor().size) == ("/////", 0)
    assert sum(map(bool, (ax.images for ax in fit.plot_map("rates[0]", shape=(2, 3), errors=False).axes))) == 1
    figure.draw_without_rendering()
    assert [ax.get_ylabel() for ax in figure.axes if not ax.images] == ["rate (1/s)", "standard error of rate (1/s)"]
    assert "2 without data" in [text.get_text() for text in figure.legends[0].get_texts()]
    assert sum(map(bool, (ax.images for ax in fit.plot_map("value", shape=(3, 2)).axes))) == 1
    for name, shape, match in (
        ("theta[0]", (2, 3), r"one of rates\[0\], rates\[1\], w\[0\]"),
        ("value", (2, 2), "of 6 problems"),
        ("value", (1, 2, 3), r"\(rows, columns\) of an image; got \(1, 2, 3\)"),
        ("value", 6, r"\(rows, columns\) of an image; got 6"),
        (1 / fit.value, (2, 3), r"such as 'w\[0\]'; got .* x.reshape"),
    ):
        with pytest.raises(xv.errors.ProblemError, match=match):
            fit.plot_map(name, shape=shape)


def test_a_map_has_no_error_of_what_a_bound_holds():
    fit = xv.solve_many(
        xv.separable(together, np.exp(-3.0 * T) * np.ones((4, 1)), data={"t": T}), np.ones((4, 1)), HELD
    )
    errors = next(
        ax for ax in fit.plot_map("theta[0]", shape=(2, 2)).axes if ax.images and ax.collections[0].get_paths()
    )
    assert errors.images[0].get_array().mask.ravel().tolist() == [True, True, False, False]


def test_a_dataset_has_the_shape_of_the_image(monkeypatch):
    fit, found = image(), image().to_xarray((2, 3), ("y", "x"))
    errors = fit.statistics()
    for name, x in (
        ("rates", fit.theta["rates"]), ("rates_stderr", errors.theta_stderr["rates"]), ("w", fit.w),
        ("w_stderr", errors.w_stderr), ("value", fit.value), ("status", fit.status),
    ):  # fmt: skip
        np.testing.assert_array_equal(found[name], x.reshape(2, 3, *x.shape[1:]), err_msg=name)
    assert found["rates"].dims == ("y", "x", "rates_0")
    flags = dict(zip(found["status"].flag_meanings.split(), found["status"].flag_values, strict=True))
    assert found["status"].values[0, 1] == flags["NO_DATA"]
    np.testing.assert_array_equal(fit.to_xarray((6,), ["pixel"], errors)["w_stderr"], errors.w_stderr)
    assert set(fit.to_xarray((6,), ["pixel"], errors=False)) == {"rates", "w", "value", "status"}
    for dims, said in (("yx", "shape must be of 6 problems"), ("y", "dims must name each axis")):
        with pytest.raises(xv.errors.ProblemError, match=said):
            fit.to_xarray((2, 2), dims)
    monkeypatch.setitem(sys.modules, "xarray", None)
    with pytest.raises(ImportError, match=r"pip install 'xvarpro\[xarray\]'"):
        fit.to_xarray((6,), ["pixel"])


def test_a_copy_has_its_problem_no_more():
    fit = batch("plain")[0]
    with pytest.raises(xv.errors.ProblemError, match=r"a copy or a pickle does not hold.* with the same checkpoint="):
        copy.copy(fit).statistics()
    found = fit.statistics()
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(found)).covariance, found.covariance)


def test_problems_of_other_kinds_have_no_errors():
    start = np.tile([0.7, 4.0], (B, 1))
    penalty = xv.separable(together, Y, data={"t": T}, mu=1e-3, R=squared)
    with pytest.raises(xv.errors.ProblemError, match="without a penalty"):
        xv.solve_many(penalty, start).statistics()
    fit = batch("plain")[0]
    with pytest.raises(xv.errors.ProblemError, match="must not both be True"):
        fit.statistics(absolute_sigma=True, sandwich=True)
