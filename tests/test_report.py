"""Reports of fits: what is printed is what the statistics say, and what is not known is said."""

import ast
import html
import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import xvarpro as xv
from xvarpro.errors import ProblemError
from xvarpro.fit import result
from xvarpro.statistics.names import given_names

from .support import RATES, T, decay_problem, decays, rng

Y = np.exp(-np.outer(T, RATES)) @ np.array([2.0, 1.0]) + 0.01 * rng(1).normal(size=T.size)
PROBLEM = xv.separable(decays, Y, data={"t": T})


@cache
def example():
    return xv.solve(PROBLEM, np.array([0.8, 3.0]), over=xv.sets.Box(0.0, 20.0), tol=1e-9)


HELD = xv.solve(PROBLEM, np.array([0.8, 3.0]), over=xv.sets.Box(0.0, np.array([20.0, 3.5])), tol=1e-9)


def line(text, name):
    return next(x for x in text.splitlines() if x.split()[:1] == [name])


def test_a_small_fit_prints_its_parameters_with_their_errors():
    text, s = str(example()), example().statistics()
    for name, value, err in [
        *zip(["theta[0]", "theta[1]"], example().theta, s.theta_stderr, strict=True),
        *zip(["w[0]", "w[1]"], example().w, s.w_stderr, strict=True),
    ]:
        assert line(text, name).split()[1:4] == [f"{value:.8g}", f"{err:.3g}", f"{err / abs(value):.2%}"]
    assert line(text, "chi2").split()[1] == f"{s.chi2:.6g}"
    assert "[0, 20]" in line(text, "theta[0]")
    assert "CONVERGED" in text
    assert "condition" in text
    assert "\nnotes" not in text


def test_names_of_ones_own_and_data_frames():
    given = (["slow", "fast"], ["large", "small"])
    found, s = example().report(*given), example().statistics()
    frame = found.to_frame()
    assert list(frame.index) == ["slow", "fast", "large", "small"]
    np.testing.assert_array_equal(frame["value"], [*example().theta, *example().w])
    np.testing.assert_array_equal(frame["stderr"], [*s.theta_stderr, *s.w_stderr])
    np.testing.assert_array_equal(frame["upper"], [20.0, 20.0, np.inf, np.inf])
    assert line(str(found), "slow")
    assert not example().report(*given, absolute_sigma=True).to_frame().equals(frame)
    assert list(example().report().to_frame().index) == ["theta[0]", "theta[1]", "w[0]", "w[1]"]


def test_bounds_on_one_side_and_equal_ones_are_shown():
    over = xv.sets.Box(np.array([0.0, 3.0]), np.array([np.inf, 3.0]))
    found = xv.solve(PROBLEM, np.array([1.0, 3.0]), over=over).report()
    assert found.parameters[1].limit.note == "fixed"
    assert line(str(found), "theta[0]").endswith("[0, inf]")


def test_correlations_of_a_threshold_and_above_strongest_first():
    C, names = example().statistics().correlation, ["theta[0]", "theta[1]", "w[0]", "w[1]"]
    pairs = {(names[i], names[j]): C[i, j] for i in range(4) for j in range(i)}
    for least in (0.0, abs(float(C[0, 1])), 0.7, 1.0):
        found = example().report(correlation=least).correlations
        assert {frozenset(p[:2]) for p in found} == {frozenset(p) for p, c in pairs.items() if abs(c) >= least}
        assert [abs(p[2]) for p in found] == sorted((abs(c) for c in pairs.values() if abs(c) >= least), reverse=True)


def test_a_report_says_where_the_size_of_the_noise_is_from():
    loss = xv.solve_robust(PROBLEM, example().theta, over=xv.sets.Box(0.0, 20.0), loss=xv.losses.Huber(0.02))
    for fit, absolute, said in (
        (example(), False, "scaled by reduced chi2 (weights are relative)"),
        (example(), True, "from sigma = 1 for all data, as there are no weights (absolute_sigma)"),
        (loss, False, "from each residual (sandwich)"),
        (loss, True, "from the loss as a log likelihood (absolute_sigma)"),
    ):
        found = fit.report(absolute_sigma=absolute)
        assert f"\n  standard errors      {said}\n" in str(found)
        assert f"<td>standard errors</td><td>{said}</td>" in found.to_html()


def test_an_active_bound_has_its_multiplier_in_the_objectives_units():
    assert "constraints are active, theta[1]: errors and intervals are not calibrated" in HELD.report().notes
    assert "constraints are active, fast: errors" in str(HELD.report(["slow", "fast"]))
    row = HELD.report().parameters[1]
    assert row.limit.note == "at upper bound"
    assert row.value == 3.5
    assert row.stderr == 0.0
    h = 1e-5
    ahead, behind = (xv.value_and_gradient(PROBLEM, HELD.theta + np.array([0.0, d]))[0] for d in (h, -h))
    np.testing.assert_allclose(row.limit.multiplier, (behind - ahead) / (2 * h), rtol=1e-6)
    assert "at upper bound, multiplier" in line(str(HELD), "theta[1]")
    assert "held" in line(str(HELD), "theta[1]")


def test_bounds_of_weights_and_their_multipliers():
    y = np.exp(-np.outer(T, RATES)) @ np.array([2.0, -1.0])
    fit = xv.solve(xv.separable(decays, y, data={"t": T}, W=xv.lower.Nonnegative()), RATES, over=xv.sets.Box(1.0, 4.0))
    large, small = fit.report().amplitudes
    assert (large.limit.lower, large.limit.note, small.limit.note) == (0.0, "", "at lower bound")
    column = np.exp(-T * fit.theta[1])
    np.testing.assert_allclose(small.limit.multiplier, abs(column @ fit.residuals), rtol=1e-9)


def at_best(C, target):
    """The report of a fit, linear in theta, whose minimum is near the target or where the set comes near it, and g."""
    target = np.array(target)
    B, A = rng(1).normal(size=(30, target.size)), np.ones((30, 1))
    c = B @ target.ravel() + 0.05 * rng(2).normal(size=30)
    problem = xv.separable(
        lambda theta, data: data["A"] + 0 * xv.array_namespace(theta).sum(theta),
        lambda theta, data: data["c"] - data["B"] @ xv.array_namespace(theta).reshape(theta, (-1,)),
        data={"A": A, "B": B, "c": c},
    )
    fit = xv.solve(problem, C.center(target), over=C, tol=1e-12)
    return fit.report(), xv.value_and_gradient(problem, fit.theta)[1].ravel()


def test_entries_are_held_where_the_face_of_a_set_is_smaller_than_the_set():
    """What all points of a set fulfil, as the sum of a simplex, is no active constraint."""
    sets = xv.sets
    symmetric = np.array([[0.5, 0.1, 0.0], [0.1, 0.3, 0.1], [0.0, 0.1, 0.2]])
    for C, target, held in (
        (sets.Simplex(1.0), [0.2, 0.5, 0.3], []),
        (sets.Simplex(1.0), [0.7, 0.5, -0.3], [2]),
        (sets.Simplex(1.0), [3.0, -1.0, -1.0], [0, 1, 2]),
        (sets.CappedSimplex(5.0), [0.2, 0.5, 0.3], []),
        (sets.LinfBall(1.0), [1.5, 0.9, 0.1], [0]),
        (sets.LinfBall(1.0), [1.5, 1.9, 0.1], [0, 1]),
        (sets.L1Ball(1.0), [0.1, -0.4, 0.02], []),
        (sets.L2Ball(1.0), [0.1, 0.2, 0.3], []),
        (sets.Columns(sets.Simplex(1.0)), [[0.2, 0.9], [0.5, 0.4], [0.3, -0.3]], [5]),
        (sets.Fantope(1), symmetric, []),
    ):
        found, g = at_best(C, target)
        limits = [row.limit for row in found.parameters]
        assert [j for j, limit in enumerate(limits) if limit.note] == held, C
        assert [j for j, limit in enumerate(limits) if limit.held] == held
        assert all(row.cells[2] == "held" for row in found.parameters if row.limit.held)
        assert len(found.notes) == bool(held)
        if isinstance(C, sets.LinfBall):
            np.testing.assert_allclose([limits[j].multiplier for j in held], np.abs(g[held]), rtol=1e-6)
        if isinstance(C, sets.Simplex) and held == [2]:  # the sum moves with the other two
            np.testing.assert_allclose(limits[2].multiplier, g[2] - 0.5 * (g[0] + g[1]), rtol=1e-6)
    assert {row.cells[1] for row in at_best(sets.Simplex(1.0), [3.0, -1.0, -1.0])[0].parameters} == {"0", "1"}


def test_the_boundary_that_entries_share_is_described():
    found, g = at_best(xv.sets.L2Ball(1.0), [1.1, 0.2, 0.3])
    for row in found.parameters:
        assert row.limit.note.startswith("on the boundary of L2Ball(radius=1.0")
        assert row.stderr > 0
        np.testing.assert_allclose(row.limit.multiplier, np.linalg.norm(g), rtol=1e-4)
    found, _ = at_best(xv.sets.L1Ball(1.0), [1.1, -0.4, 0.02])
    assert [row.limit.note.split(" L1")[0] for row in found.parameters] == ["on the boundary of"] * 2 + ["held by"]
    found, _ = at_best(xv.sets.Columns(xv.sets.L2Ball(0.8)), [[0.2, 0.9], [0.1, 0.4], [0.3, -0.3]])
    assert [bool(row.limit.note) for row in found.parameters] == [False, True] * 3


def test_constraints_of_each_set_of_weights_are_named():
    A = rng(3).normal(size=(40, 4))
    y = A @ np.array([1.0, 0.5, -0.4, 0.02]) + 0.05 * rng(4).normal(size=40)
    lower = xv.lower

    def rows(W):
        fit = xv.solve(xv.separable(lambda th, A: th[0] * A, y, data=A, W=W), np.ones(1), over=xv.sets.Box(1.0, 1.0))
        found = fit.report()
        return found.amplitudes, found.notes, A.T @ (A @ fit.w - y), fit.w

    shares, notes, slope, w = rows(lower.Simplex(1.0))
    held = w == 0
    assert held.any()
    assert [row.limit.held for row in shares] == held.tolist()
    np.testing.assert_allclose(
        [row.limit.multiplier for row in shares], np.where(held, slope - slope[~held].mean(), 0.0), rtol=1e-9
    )
    assert "not calibrated" in notes[0]
    sparse, notes, slope, w = rows(lower.L1(2.0))
    assert w.tolist().count(0.0) == 1
    assert [row.limit.note for row in sparse] == ["", "", "", "held at 0"]
    np.testing.assert_allclose(sparse[3].limit.multiplier, 2.0 - abs(slope[3]), rtol=1e-9)
    assert any("a penalty biases w" in note for note in notes)
    known, notes, _, _ = rows(lower.Fixed(np.array([True, False, False, False]), 0.9))
    assert [row.limit.note for row in known] == ["fixed", "", "", ""]
    assert known[0].cells[1:3] == ("0.9", "held")
    assert notes == []
    (alone, *others), _, _, _ = rows(lower.Simplex(0.1))
    assert (alone.limit.note, alone.limit.multiplier, alone.limit.kink) == ("at upper bound", 0.0, False)
    assert all(row.limit.note == "at lower bound" for row in others)


def test_names_of_a_theta_with_keys_are_by_key():
    """Leaves have sorted keys: a list in the order in which a dict was written would name the wrong ones."""

    def M(theta, data):
        xp = xv.array_namespace(theta["slow"])
        return decays(xp.concat([xp.reshape(theta["slow"], (1,)), theta["others"]]), data)

    start = {"slow": np.array(0.5), "others": np.array([8.0])}
    fit = xv.solve(xv.separable(M, Y, data={"t": T}), start)
    frame = fit.report({"slow": "k_slow", "others": "k"}).to_frame()
    assert frame["value"]["k_slow"] == pytest.approx(float(fit.theta["slow"]))
    assert frame["value"]["k[0]"] == pytest.approx(float(fit.theta["others"][0]))
    assert fit.interval(names={"others": "k", "slow": "k_slow"}).names[:2] == ["k[0]", "k_slow"]
    with pytest.raises(ProblemError, match=r"must be a dict with the same keys, such as \{'slow': 'a name', 'others'"):
        fit.report(["k_slow", "k"])
    with pytest.raises(ProblemError, match=r"names must have the keys of theta, \['slow', 'others'\]; got \{'slo"):
        fit.report({"slo": "k_slow", "others": "k"})
    with pytest.raises(ProblemError, match="must be a dict with the same keys"):
        given_names({"rates": start}, (1,), ["k_slow", "k"])
    assert given_names({"rates": start}, (1,), {"rates": {"slow": "k_slow", "others": "k"}})[0] == ["k[0]", "k_slow"]
    assert given_names(dict(sorted(start.items())), (1,), ["k", "k_slow"])[0] == ["k", "k_slow"]


def test_notes_figures_and_intervals_use_the_names_that_are_given():
    p = xv.Parameters()
    p.add("k", [1.0, 2.0], min=0.1, max=20.0)

    def M(parameters, data):  # the product of the rates is all that matters
        xp, t = xv.array_namespace(parameters), data["t"][:, None]
        one = xp.exp(-t * parameters["k"][0] * parameters["k"][1])
        return xp.concat([one, one], axis=1)

    fit = xv.solve(xv.separable(p.model(M), Y, data={"t": T}, solver=xv.lower.SVD()), p.theta0, over=p.over)
    said = "the data do not determine slow, fast, a, b"
    assert said in fit.report(["slow", "fast"], ["a", "b"]).notes
    assert said in fit.interval(names=["slow", "fast"], amplitudes=["a", "b"]).notes
    assert "the data do not determine k[0], k[1], w[0], w[1]" in fit.report(p).notes
    labels = fit.plot_correlation(p, ["a", "b"]).axes[0].get_yticklabels()
    assert [label.get_text() for label in labels] == ["k[0]", "k[1]", "a", "b"]


def test_right_hand_sides_have_names_of_two_indices():
    y = np.exp(-np.outer(T, RATES)) @ rng(2).normal(size=(2, 20)) + 0.01 * rng(3).normal(size=(T.size, 20))
    fit = xv.solve(xv.separable(decays, y, data={"t": T}), RATES, over=xv.sets.Box(0.0, 20.0))
    found = fit.report()
    assert [row.name for row in found.amplitudes[:2]] == ["w[0, 0]", "w[0, 1]"]
    np.testing.assert_array_equal([row.value for row in found.amplitudes], fit.w.ravel())
    np.testing.assert_array_equal([row.stderr for row in found.amplitudes], fit.statistics().w_stderr.ravel())
    assert "\n  w[1, 9] " in str(found)
    assert "\n  w[1, 10]" not in str(found)
    assert "and 10 more" in str(found)
    assert fit.report(amplitudes=["a", "b"]).amplitudes[21].name == "b[1]"


def test_complex_amplitudes_print_both_parts():
    fit = xv.solve(xv.separable(decays, Y * (1 + 1j), data={"t": T}), RATES, over=xv.sets.Box(0.0, 20.0))
    found = fit.report()
    assert f"{found.amplitudes[0].value:.8g}" in str(found)
    assert isinstance(found.amplitudes[0].stderr, complex)
    assert found.correlations == []


def test_notebooks_show_tables_and_no_text_of_the_users_as_markup():
    found = example().report(["<slow>", "fast"])._repr_html_()
    assert "<slow>" not in found
    assert html.escape("<slow>") in found
    assert found.count("<table>") == found.count("</table>") == 4
    rows = re.findall(r"<tr>(.*?)</tr>", found)
    assert all(row.count("<td>") == row.count("</td>") for row in rows)
    assert example()._repr_html_() == example().report()._repr_html_() == example().report().to_html()
    assert example().report().to_html().startswith("<div")


def test_what_has_no_standard_errors_says_why():
    problem = xv.bilevel(lower=xv.Level(decays, Y), upper=xv.Level(decays, Y), data={"t": T})
    fit = xv.solve(problem, RATES, over=xv.sets.Box(0.0, 20.0))
    found = fit.report()
    assert found.statistics is None
    assert [row.stderr for row in found.parameters] == [None, None]
    assert "no standard errors: statistics need one level; got two" in str(fit)
    assert np.isnan(found.to_frame()["stderr"]).all()
    failed = xv.solve(PROBLEM, np.array([1.0, 1.0]), over=xv.sets.Box(0.0, 20.0))  # equal rates: w is not unique
    assert not failed.success
    assert "no standard errors" in str(failed)


def test_fixed_and_tied_parameters_are_listed_with_the_errors_of_those_they_follow():
    p = xv.Parameters()
    p.add("k", 0.8, min=0.0, max=20.0)
    p.add("fast", tie={"k": 4.0}, offset=0.5)
    p.add("shift", 0.0, vary=False)

    def M(parameters, data):
        xp = xv.array_namespace(parameters)
        rates = xp.stack([parameters["k"], parameters["fast"]])
        return xp.exp(-(xp.expand_dims(data["t"], axis=1) - parameters["shift"]) * rates)

    fit = xv.solve(xv.separable(p.model(M), Y, data={"t": T}), p.theta0, over=p.over)
    found = fit.report(p)
    own, *others = found.parameters
    assert [row.name for row in others] == ["fast", "shift"]
    assert [row.limit.note for row in others] == ["tied", "fixed"]
    np.testing.assert_allclose(others[0].value, 4 * own.value + 0.5)
    np.testing.assert_allclose(others[0].stderr, 4 * own.stderr)
    assert others[1].value == others[1].stderr == 0.0
    assert line(str(found), "fast").split()[-1] == "tied"


def test_a_report_of_columns_in_chunks_lists_theta_alone():
    y = np.exp(-np.outer(T, RATES)) @ rng(2).uniform(1, 2, size=(2, 300)) + 0.05 * rng(3).normal(size=(T.size, 300))
    problem = xv.separable(decays, xv.ColumnChunks.cut(y, 100), data={"t": T})
    fit = xv.solve(problem, np.array([0.8, 3.0]), over=xv.sets.Box(0.0, 20.0))
    whole = xv.solve(xv.separable(decays, y, data={"t": T}), fit.theta, over=xv.sets.Box(0.0, 20.0)).statistics()
    found = fit.report(["slow", "fast"], ["large", "small"])
    text = str(found)
    assert found.amplitudes == []
    assert line(text, "fast").split()[2] == f"{whole.theta_stderr[1]:.3g}"
    assert line(text, "slow,").split()[2] == f"{whole.correlation[0, 1]:+.3f}"
    assert "w comes in chunks of columns, fit.w_chunks()" in text
    assert "amplitudes" not in text.lower()
    assert "Amplitudes" not in found._repr_html_()
    interval = fit.interval(names=["slow", "fast"])
    assert interval.names == ["slow", "fast"]
    half = xv.statistics.intervals.student(whole, 0.95) * whole.theta_stderr
    np.testing.assert_allclose(interval.upper, fit.theta + half, rtol=1e-6)
    assert "w comes in chunks" in str(interval)
    assert fit._w is None
    with pytest.raises(ProblemError, match="amplitudes must hold 2 names"):
        fit.report(amplitudes=["large"])


def test_every_fit_prints_its_parameters(tmp_path):
    """Also without a problem, of many right-hand sides, of many parameters, of columns in chunks."""
    example().save(tmp_path / "fit.npz")
    back = str(xv.Result.load(tmp_path / "fit.npz"))
    assert line(back, "theta[1]").split() == ["theta[1]", f"{example().theta[1]:.8g}"]
    assert "Use result.attach(problem)" in back
    y = np.exp(-np.outer(T, RATES)) @ rng(2).normal(size=(2, 51)) + 0.01 * rng(3).normal(size=(T.size, 51))
    many = xv.solve(xv.separable(decays, y, data={"t": T}), RATES, over=xv.sets.Box(0.0, 20.0))
    assert line(str(many), "theta[1]").split()[2] == f"{many.statistics().theta_stderr[1]:.3g}"
    problem = xv.separable(decays, xv.ColumnChunks(lambda: iter([y[:, :20], y[:, 20:]])), data={"t": T})
    chunked = xv.solve(problem, RATES, over=xv.sets.Box(0.0, 20.0))
    assert line(str(chunked), "theta[1]").split() == ["theta[1]", f"{chunked.theta[1]:.8g}"]
    assert chunked._w is None
    A = rng(5).normal(size=(20, 8))
    fit = xv.solve(xv.separable(lambda theta, data: theta, A @ rng(6).normal(size=(8, 30)), lam=0.1), A, max_iter=1)
    text = str(fit)
    assert f"theta[3, 5]   {fit.theta[3, 5]:.8g}\n" in text
    assert f"w[0, 29]     {fit.w[0, 29]:.8g}\n" in text
    assert "and 130 more" in text
    assert "fit.report(), which may take long" in text
    assert "and 210 more" in text
    assert text.splitlines()[-1] == repr(fit).splitlines()[-1]
    problem = xv.separable(lambda x, _: xv.operators.Circulant(x), np.ones(144), lam=0.1)
    fit = xv.solve(problem, np.eye(12), max_iter=0)  # too many entries for a report
    said = [[x.strip(" -") for x in str(r).splitlines() if "standard errors:" in x] for r in (fit, fit.report())]
    assert said[0] == said[1]
    assert "no standard errors: statistics need a design that is an array" in said[0][0]


def test_the_headline_of_a_success_gives_no_advice():
    heads = {str(example()).splitlines()[0], repr(example()).splitlines()[0]}
    assert heads == {f"CONVERGED: {xv.Status.CONVERGED.sentence}"}
    cut = xv.solve(PROBLEM, np.array([0.8, 3.0]), max_iter=0)
    assert str(cut).splitlines()[0].endswith(xv.Status.MAX_ITER.advice)


def test_wrong_arguments_are_refused(subtests):
    for given, why in (
        ({"names": "ab"}, "names must hold 2 names"),
        ({"amplitudes": ["a", "b", "c"]}, "amplitudes must hold 2 names, one per row of w"),
        ({"correlation": 1.5}, r"in \[0, 1\]"),
        ({"correlation": float("nan")}, r"in \[0, 1\]"),
        ({"absolute_sigma": "yes"}, "absolute_sigma"),
    ):
        with subtests.test(str(given)), pytest.raises(ProblemError, match=why):
            example().report(**given)
    fit = xv.solve(PROBLEM, np.array([0.8, 3.0]))
    named = xv.solve(xv.separable(lambda q, data: decays(q["k"], data), Y, data={"t": T}), {"k": fit.theta})
    with pytest.raises(ProblemError, match="names must be the Parameters of this fit, of which k vary; got some of"):
        named.report(xv.Parameters.from_dict({"a": 1.0, "b": 2.0}))


def test_what_is_undefined_is_no_number_of_a_report():
    """R2 of a target that does not vary, criteria of a residual of zero, weights that could not be solved for."""
    for y in (0 * Y, 0 * Y + 1.0):
        fit = xv.solve(xv.separable(decays, y, data={"t": T}), np.array([0.5]))
        text = str(fit.report())
        assert not [word for word in (" nan", "inf", "R2") if word in text]
        assert np.isnan(fit.statistics().r_squared)
        assert y.any() or "-0" not in text.split("fit")[0]
    alike = xv.solve(PROBLEM, np.array([2.0, 2.0]), max_iter=0)
    assert line(str(alike.report()), "w[0]").split() == ["w[0]", "undefined"]


def test_methods_of_a_result_are_the_functions_that_type_checkers_take_them_for():
    """They are named twice in the class: as functions for type checkers, by strings for what is imported on a call."""
    (cls,) = (x for x in ast.parse(Path(result.__file__).read_text()).body if isinstance(x, ast.ClassDef))
    (both,) = (x for x in cls.body if isinstance(x, ast.If))
    typed, named = ({x.id: y.value for y in part for x in y.targets} for part in (both.body, both.orelse))
    assert len(typed) > 10
    assert {key: ast.unparse(x) for key, x in typed.items()} == {
        key: ".".join(x.args[0].value.rsplit(".", 2)[1:]) for key, x in named.items()
    }


def test_a_small_result_of_torch_prints_its_report():
    """Sizes of tensors are a method."""
    torch = pytest.importorskip("torch", exc_type=ImportError)
    fit = xv.solve(decay_problem(noise=0.01), torch.tensor([0.5, 5.0], dtype=torch.float64))
    assert "amplitudes" in str(fit)
