"""``xvarpro fit``: what it reads, fits, prints and writes, and how it refuses."""

import csv
import io
import json
import re
import shlex
import shutil
import sys
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

import xvarpro as xv
from xvarpro.cli import app, columns
from xvarpro.errors import ProblemError

from .support import invoke

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "command_line.md").read_text(encoding="utf-8")
SAMPLES = np.linspace(0.0, 4.0, 41)
Y = ("--x", "t", "--y", "y")
S = ("--start", "slow=1")

MODEL = """
import numpy as np, xvarpro as xv

def decay(t, slow, fast=5.0, *, shift=0.0):
    xp = xv.array_namespace(slow)
    return {"one": xp.exp(-slow * (t - shift)), "two": xp.exp(-fast * t)}

def matrix(t, rates=(1.0, 5.0)):
    return xv.models.exponentials(t, rates)

def vector(t, rate=1.0):
    return xv.array_namespace(t).exp(-rate * t)

def nothing(t):
    return t

def numpys(t, rate=1.0):
    return np.exp(-rate * t)

def broken(t, rate=1.0):
    return t / nowhere

def waves(t, rate=1.0):
    return xv.array_namespace(rate).exp(-1j * rate * t)

def short(t, rate=1.0):
    return xv.array_namespace(rate).exp(-rate * t)[1:]

def text(t, rate=1.0):
    return ["rate"]

def stops(t, rate=1.0):
    raise SystemExit

twice = lambda t, one=1.0: {"one": t * one}
"""
OTHER = """
from __future__ import annotations
import dataclasses
import xvarpro as xv
from beside import FACTOR

@dataclasses.dataclass
class Line:
    factor: float = FACTOR

def decay(t, slow=1.0, fast=5.0, /):
    xp = xv.array_namespace(slow)
    return {"of": xv.models.columns(xp.exp(-slow * t), xp.exp(-fast * t)), "line $": Line().factor * t[:, None]}
"""
TIED = """
import xvarpro as xv

parameters = xv.Parameters()
parameters.add("slow", 1.0, min=0.0, max=3.0)
parameters.add("fast", tie={"slow": 8.0})

def decay(t, fast, slow=9.0):
    xp = xv.array_namespace(slow)
    return [xp.exp(-slow * t), xp.exp(-fast * t)]

def other(t, slow):
    return decay(t, 8.0 * slow, slow)
"""
HELD = """
import xvarpro as xv

parameters = xv.Parameters()
parameters.add("rates", [0.6, 3.0, 9.0], vary=[False, True, True])

def decay(t, rates):
    return xv.models.exponentials(t, rates)
"""


def signal(first=2.0, second=1.0):
    return first * np.exp(-0.5 * SAMPLES) + second * np.exp(-4.0 * SAMPLES)


def table(folder, separator=",", **named):
    """The columns as a CSV file; NaN is an empty cell."""
    rows = ["" if x != x else f"{x:.17g}" for row in zip(*named.values(), strict=True) for x in row]
    lines = [separator.join(named)] + [
        separator.join(rows[i : i + len(named)]) for i in range(0, len(rows), len(named))
    ]
    path = folder / "data.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(MODEL, encoding="utf-8")
    (tmp_path / "tied.py").write_text(TIED, encoding="utf-8")
    (tmp_path / "held.py").write_text(HELD, encoding="utf-8")
    return tmp_path


@pytest.fixture(autouse=True)
def undrawn(request, monkeypatch):
    """Figures are made but not drawn, which takes most of the time of a fit: they are where a test takes `drawn`."""
    if "drawn" not in request.fixturenames:
        monkeypatch.setattr(Figure, "savefig", lambda figure, file, **given: file.write(b"not drawn"))


@pytest.fixture
def drawn():
    """Figures are drawn."""


def fits(*args):
    """A fit, after an end without errors."""
    result = invoke("fit", *args)
    assert result.exit_code == 0, result.output
    return result


def written(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def values(folder):
    return {row["name"]: float(row["value"]) for row in written(folder / "parameters.csv")}


def compared(folder, fit, want):
    """Whether values and errors of a file are those of a fit."""
    found = written(folder / "parameters.csv")
    np.testing.assert_allclose([float(row["value"]) for row in found], [*fit.theta, *fit.w], rtol=1e-5)
    np.testing.assert_allclose([float(row["stderr"]) for row in found], [*want.theta_stderr, *want.w_stderr], rtol=1e-4)
    return [row["name"] for row in found]


def test_commands_of_the_page_run_and_print_its_report(tmp_path, monkeypatch, drawn):
    monkeypatch.chdir(tmp_path)
    for name in ("decay.csv", "model.py"):
        shutil.copy(ROOT / "examples" / "fit" / name, tmp_path)
    found = re.findall(r"^```sh\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE)
    assert len(found) == 3
    for line in found:
        result = invoke(*shlex.split(line)[1:])
        assert result.exit_code == 0, result.output
    report = (tmp_path / "xvarpro-out" / "decay-decay" / "report.txt").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```\n(CONVERGED.*?)\n```$", PAGE, flags=re.DOTALL | re.MULTILINE)
    digits = re.compile(r"[+-]?\d+\.\d+")  # whose last ones another version of NumPy may round otherwise
    shown, printed = block.splitlines(), report.splitlines()[: len(block.splitlines())]
    assert [digits.sub("", line).split() for line in shown] == [digits.sub("", line).split() for line in printed]
    numbers = [np.array(digits.findall("\n".join(lines)), dtype=float) for lines in (shown, printed)]
    np.testing.assert_allclose(*numbers, rtol=2e-2)


def test_the_page_shows_the_files_of_the_example():
    model = (ROOT / "examples" / "fit" / "model.py").read_text(encoding="utf-8")
    first, tied = re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE)
    assert first in model
    space = {}
    exec(first + tied, space)
    assert space["parameters"].names == ("slow",)
    lines = (ROOT / "examples" / "fit" / "decay.csv").read_text(encoding="utf-8").splitlines()
    assert "\n".join(lines[:4]) in PAGE


# -- what it fits ------------------------------------------------------------------------------------------------------


def test_a_function_of_the_users_is_fitted_and_all_files_are_written(here, drawn):
    path = table(here, t=SAMPLES, y=signal())
    result = fits("model.py:decay", path, *Y, *S, "--bounds", "slow=0:3", "--bounds", "fast=2:")
    out = here / "xvarpro-out" / "data-decay"
    assert values(out) == pytest.approx({"fast": 4.0, "slow": 0.5, "one": 2.0, "two": 1.0}, rel=1e-5)
    assert written(out / "parameters.csv")[1] | {"value": "", "stderr": ""} == {
        "name": "slow", "value": "", "stderr": "", "lower": "0.0", "upper": "3.0", "active": "", "multiplier": "0.0",
        "unit": "",
    }  # fmt: skip
    rows = written(out / "fitted.csv")
    np.testing.assert_allclose([float(row["y fitted"]) for row in rows], signal(), atol=1e-6)
    np.testing.assert_allclose([float(row["y residual"]) for row in rows], 0.0, atol=1e-6)
    assert (out / "fit.png").read_bytes().startswith(b"\x89PNG")
    assert (out / "report.txt").read_text(encoding="utf-8").strip() in result.stdout
    assert "wrote report.txt, summary.json, parameters.csv, fitted.csv and fit.png" in result.stdout
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    assert (summary["status"], summary["success"], summary["dof"]) == ("CONVERGED", True, len(SAMPLES) - 4)
    assert summary["values"] == pytest.approx({"fast": 4.0, "slow": 0.5, "one": 2.0, "two": 1.0}, rel=1e-5)
    assert summary["stderr"].keys() == summary["values"].keys()


@pytest.mark.parametrize("model", ["exponentials", "model.py:matrix", "xvarpro.models:exponentials"])
def test_models_by_name_and_vectors_of_parameters(here, model):
    fits(model, table(here, t=SAMPLES, y=signal()), *Y, "--start", "rates=1,5", "--out", here / "out")
    found = values(here / "out")
    assert found == pytest.approx({"rates[0]": 0.5, "rates[1]": 4.0, "w[0]": 2.0, "w[1]": 1.0}, rel=1e-5)


def test_a_file_may_import_others_beside_it_and_take_parameters_by_place(here, drawn):
    (here / "folder").mkdir()
    (here / "folder" / "other.py").write_text(OTHER, encoding="utf-8")
    (here / "folder" / "beside.py").write_text("FACTOR = 2.0\n", encoding="utf-8")
    path = table(here, t=SAMPLES, **{"$y_{$": signal() + 3.0 * SAMPLES})
    fits("folder/other.py:decay", path, "--x", "t", "--y", "$y_{$", "--out", here / "out")
    assert "other" not in sys.modules  # where what is pickled by name would be looked for
    want = {"fast": 4.0, "slow": 0.5, "of[0]": 2.0, "of[1]": 1.0, "line $": 1.5}
    assert values(here / "out") == pytest.approx(want, rel=1e-4)


@pytest.mark.parametrize("backend", ["torch", pytest.param("jax", marks=pytest.mark.frameworks)])
def test_other_backends(here, backend):
    path = table(here, t=SAMPLES, y=np.exp(-0.5 * SAMPLES))
    result = fits("model.py:vector", path, *Y, "--backend", backend, "--out", here / "out")
    assert values(here / "out") == pytest.approx({"rate": 0.5, "w[0]": 1.0}, rel=1e-5)
    assert f"backend {backend}," in result.stdout


def test_a_background_is_a_polynomial_over_the_range_of_the_samples(here):
    """Without deviations, errors are those of residuals."""
    t = SAMPLES + 2.0
    y = np.exp(-0.5 * t) + 3.0 + 0.5 * (t - 4.0) / 2.0 + 0.01 * np.random.default_rng(0).normal(size=41)
    args = (*Y, "--background", "1", "--out", here / "out", "--interval", "profile")
    result = fits("model.py:vector", table(here, t=t, y=y), *args)
    report = (here / "out" / "report.txt").read_text(encoding="utf-8")
    assert "0.95 confidence, profile of the objective" in report
    assert report in result.stdout
    found = json.loads((here / "out" / "summary.json").read_text(encoding="utf-8"))
    low, high = (found["interval"][side]["rate"] for side in ("lower", "upper"))  # of parameters alone
    assert low < found["values"]["rate"] < high
    assert f"{low:.6g}" in report

    def design(theta, t):
        return xv.models.columns(xv.models.exponentials(t, theta), xv.models.polynomials(t, 1, (2.0, 6.0)))

    fit = xv.solve(xv.separable(design, y, data=t), np.array([1.0]))
    assert compared(here / "out", fit, fit.statistics()) == ["rate", "w[0]", "background 0", "background 1"]


def test_entries_that_are_fixed_stay_at_their_starts(here):
    """And leave those fixed that are so in the file."""
    path = table(here, t=SAMPLES, y=signal())
    fits("model.py:matrix", path, *Y, "--start", "rates=1,4", "--fix", "rates[1]", "--out", here / "out")
    assert values(here / "out") == pytest.approx({"rates[0]": 0.5, "rates[1]": 4.0, "w[0]": 2.0, "w[1]": 1.0}, rel=1e-5)
    assert values(here / "out")["rates[1]"] == 4.0
    fits("held.py:decay", path, *Y, "--fix", "rates[2]", "--out", here / "out")
    found = values(here / "out")
    assert (found["rates[0]"], found["rates[2]"]) == (0.6, 9.0)
    assert found["rates[1]"] != 3.0


@pytest.mark.parametrize("loss", ["cauchy", "poisson"])
def test_other_losses(loss, here):
    """As `solve_robust`, with the standard errors that it gives of itself."""
    noise = np.random.default_rng(0)
    y = noise.poisson(100 * signal()).astype(float) if loss == "poisson" else signal() + 0.01 * noise.normal(size=41)
    y[7] += 9.0 * (loss == "cauchy")
    path = table(here, t=SAMPLES, y=y, s=np.full(41, 0.5))
    args = ("--sigma", "s", "--loss", loss, "--positive", "--interval", "linear", "--out", here / "out")
    fits("model.py:matrix", path, *Y, *args)
    given = {"data": SAMPLES, "weights": np.full(41, 4.0), "W": xv.lower.Nonnegative()}
    problem = xv.separable(lambda rates, t: xv.models.exponentials(t, rates), y, **given)
    fit = xv.solve_robust(problem, np.array([1.0, 5.0]), loss=loss)
    compared(here / "out", fit, fit.statistics())


@pytest.mark.parametrize("loss", ["log_poisson", "logistic"])
def test_likelihoods_have_their_own_errors_and_tables_of_means(loss, here):
    z, draw = signal(2.0, 1.0) - 1.0, np.random.default_rng(0)
    y = (draw.random(41) < 1 / (1 + np.exp(-z))) if loss == "logistic" else draw.poisson(np.exp(z))
    path = table(here, t=SAMPLES, y=y.astype(float))
    args = ("--background", "0", "--start", "rate=1", "--bounds", "rate=0.1:9", "--loss", loss, "--out", here / "out")
    fits("model.py:vector", path, *Y, *args, "--interval", "profile")

    def M(rate, t):
        xp = xv.array_namespace(rate)
        return xp.stack([xp.exp(-rate[0] * t), xp.ones_like(t)], axis=1)

    problem = xv.separable(M, y.astype(float), data=SAMPLES, loss=loss)
    fit = xv.solve(problem, np.ones(1), over=xv.sets.Box(0.1, 9.0))
    np.testing.assert_allclose([float(row["y fitted"]) for row in written(here / "out" / "fitted.csv")], fit.mean)
    errors = [float(row["stderr"]) for row in written(here / "out" / "parameters.csv")]
    np.testing.assert_allclose(errors, [*fit.statistics().theta_stderr, *fit.statistics().w_stderr], rtol=1e-6)
    assert "profile of the objective" in (here / "out" / "report.txt").read_text(encoding="utf-8")


def test_several_targets_share_the_parameters_and_are_drawn_each(here, drawn):
    holes = signal(0.5, 3.0)
    holes[[3, 9]] = np.nan
    path = table(here, t=SAMPLES, a=signal(), b=holes)
    args = ("--x", "t", "--y", "a", "--y", "b", "--background", "0", "--format", "svg", "--out", here / "out")
    fits("model.py:decay", path, *args, "--start", "slow=1")
    found = values(here / "out")
    assert list(found)[2:] == [f"{w} of {y}" for w in ("one", "two", "background 0") for y in ("a", "b")]
    assert found["two of b"] == pytest.approx(3.0, rel=1e-5)
    assert found["background 0 of a"] == pytest.approx(0.0, abs=1e-6)
    assert (here / "out" / "fit-2.svg").read_text(encoding="utf-8").startswith("<?xml")
    rows = written(here / "out" / "fitted.csv")
    assert (rows[3]["b"], rows[3]["b residual"]) == ("", "")
    assert float(rows[3]["b fitted"]) == pytest.approx(signal(0.5, 3.0)[3], rel=1e-5)


def test_figures_have_the_names_as_they_stand_in_the_file(here, monkeypatch, drawn):
    asked = []

    def plot_fit(fit, plot=xv.Result.plot_fit, **given):
        asked.append(given)
        return plot(fit, **given)

    monkeypatch.setattr(xv.Result, "plot_fit", plot_fit)
    noise = 0.01 * np.random.default_rng(0).normal(size=(2, 41))
    a, b = signal() + noise[0], signal(1.0, 3.0) + noise[1]
    path = table(here, **{"t $": SAMPLES, "a": a, "$b$": b, "s": 0.1 + SAMPLES})
    args = ("--x", "t $", "--y", "a", "--y", "$b$", "--sigma", "s", "--start", "slow=1", "--out", here / "out")
    assert invoke("fit", "model.py:decay", path, *args).exit_code == 0
    names = {"xlabel": r"t \$", "names": ["one", "two"], "absolute_sigma": True}
    assert asked == [{"column": 0, "ylabel": "a", **names}, {"column": 1, "ylabel": r"\$b\$", **names}]
    rows = written(here / "out" / "fitted.csv")
    for name, y in (("a", a), ("$b$", b)):
        fitted, residual = ([float(row[f"{name} {what}"]) for row in rows] for what in ("fitted", "residual"))
        np.testing.assert_allclose(residual, y - fitted, atol=1e-15)
        assert 1e-3 < np.std(residual) < 2e-2


@pytest.mark.parametrize(("option", "absolute"), [((), True), (("--relative-sigma",), False)])
def test_standard_deviations_are_weights_and_give_the_errors(here, option, absolute):
    rng = np.random.default_rng(0)
    sigma = np.where(SAMPLES < 1.0, 0.01, 0.1)
    y = np.exp(-0.5 * SAMPLES) + 0.5 * sigma * rng.normal(size=41)
    missing, lost = sigma.copy(), SAMPLES.copy()
    missing[5], lost[7], y[9] = np.nan, np.nan, np.nan
    path = table(here, t=lost, y=y, s=missing)
    args = (*Y, "--sigma", "s", "--out", here / "out", "--interval", "linear", *option)
    result = fits("model.py:vector", path, *args)
    keep = np.delete(np.arange(41), [5, 7, 9])
    problem = xv.separable(
        lambda theta, t: xv.models.exponentials(t, theta), y[keep], data=SAMPLES[keep], weights=sigma[keep] ** -2
    )
    fit = xv.solve(problem, np.array([1.0]))
    want = fit.statistics(absolute_sigma=absolute)
    assert f"standard errors      {'from the weights as' if absolute else 'scaled by'}" in result.stdout
    row = written(here / "out" / "parameters.csv")[0]
    assert float(row["value"]) == pytest.approx(fit.theta[0], rel=1e-6)
    assert float(row["stderr"]) == pytest.approx(want.theta_stderr[0], rel=1e-4)
    lower = fit.interval(0.95, absolute_sigma=absolute).lower[0]
    line = next(line for line in reversed(result.stdout.splitlines()) if line.startswith("rate "))
    np.testing.assert_allclose([float(x) for x in line.split()[1:3]], [fit.theta[0], lower], rtol=1e-4)
    assert len(written(here / "out" / "fitted.csv")) == 40


def test_positive_amplitudes_fixed_parameters_and_bounds_that_are_reached(here):
    path = table(here, t=SAMPLES, y=signal(2.0, -1.0))
    args = (*Y, "--out", here / "out", "--positive", "--fix", "fast", "--bounds", "slow=:0.4")
    fits("model.py:decay", path, *args, "--start", "slow=0.3", "--start", "fast=4.5")
    found = values(here / "out")
    assert (found["two"], found["fast"]) == (0.0, 4.5)
    active = {row["name"]: row["active"] for row in written(here / "out" / "parameters.csv")}
    assert active == {"slow": active["slow"], "fast": "fixed", "one": "", "two": "at lower bound"}
    path = table(here, t=SAMPLES, y=signal() - 0.3 * SAMPLES - 1.0)  # a background is free
    fits("model.py:matrix", path, *Y, "--positive", "--background", "1", "--out", here / "free")
    assert values(here / "free")["w[0]"] == pytest.approx(2.0, rel=1e-3)


def test_as_many_samples_as_amplitudes_are_enough(here):
    path = table(here, t=SAMPLES[:3], y=signal()[:3])
    result = fits("model.py:decay", path, *Y, "--start", "slow=1", "--background", "0")
    assert "standard errors need more data than parameters; got 3 numbers" in result.stdout


def test_parameters_beside_the_function_are_taken_and_options_go_before_them(here):
    path = table(here, t=SAMPLES, y=signal())
    args = ("tied.py:decay", path, *Y, "--out", here / "out")
    assert invoke("fit", *args).exit_code == 0
    assert values(here / "out") == pytest.approx({"slow": 0.5, "fast": 4.0, "w[0]": 2.0, "w[1]": 1.0}, rel=1e-5)
    assert written(here / "out" / "parameters.csv")[0]["upper"] == "3.0"
    assert invoke("fit", *args, "--start", "slow=6", "--bounds", "slow=:9", "--fix", "slow").exit_code == 2
    for option, upper in ((("--start", "slow=6", "--bounds", "slow=:9"), "9.0"), (("--bounds", "slow=0:2"), "2.0")):
        assert invoke("fit", *args, *option).exit_code == 0
        assert written(here / "out" / "parameters.csv")[0]["upper"] == upper


def test_a_fit_leaves_no_figure_and_no_summary_of_the_one_before(here):
    path, out = table(here, t=SAMPLES, y=signal(), z=signal(1.0, 2.0)), here / "out"
    for more, figures in ((("--y", "z"), {"fit-1.png", "fit-2.png"}), ((), {"fit.png"})):
        fits("model.py:decay", path, *Y, *more, *S, "--out", out)
        assert {file.name for file in out.glob("*.png")} == figures
    assert json.loads((out / "summary.json").read_text(encoding="utf-8"))["data_file"] == str(path)
    assert invoke("fit", "model.py:decay", path, "--x", "t", "--y", "absent", "--out", out).exit_code == 2
    assert not (out / "summary.json").exists()
    assert (out / "fitted.csv").exists()


def test_a_solve_that_does_not_converge_ends_with_status_1(here):
    path = table(here, t=SAMPLES, y=signal())
    args = ("fit", "exponentials", path, *Y, "--start", "rates=1,5", "--max-iter", "1")
    result = invoke(*args, columns=40)
    assert result.exit_code == 1
    head, *_ = result.stdout.splitlines()
    assert head == f"MAX_ITER: {xv.Status.MAX_ITER.sentence} Raise --max-iter, now 1."
    report = (here / "xvarpro-out" / "data-exponentials" / "report.txt").read_text(encoding="utf-8")
    assert result.stdout.startswith(report)  # no line is broken, however narrow the screen
    equal = invoke("fit", "exponentials", path, *Y, "--start", "rates=1,1")
    assert "RANK_DEFICIENT" in equal.stdout
    assert "lam" not in equal.stdout
    with pytest.warns(xv.DeadUnitsWarning, match="no method moves them again: start"):
        far = invoke("fit", "gaussians", path, *Y, "--start", "centres=400", "--start", "widths=1", "--background", "0")
    assert "or one is zero. Start where" in far.stdout


def test_what_was_fitted_is_written_where_an_interval_is_refused(here):
    path, out = table(here, t=SAMPLES, y=np.exp(-0.5 * SAMPLES)), here / "out"
    result = invoke("fit", "model.py:vector", path, *Y, "--out", out, "--interval", "profile")
    assert result.exit_code == 2
    assert "Give --sigma COLUMN" in result.stderr
    assert values(out) == pytest.approx({"rate": 0.5, "w[0]": 1.0}, rel=1e-5)


# -- how it refuses ----------------------------------------------------------------------------------------------------


MISTAKES = [
    (("model.py:lost", *Y), "model.py has no function lost; it has decay, matrix, vector, nothing, numpys, "),
    (("lost.py:decay", *Y), "there is no file lost.py"),
    (("lost", *Y), "a model must be file.py:function, package.module:function or one of decays"),
    (("model.py:nothing", *Y), "model.py:nothing must take x and one parameter or more"),
    (("model.py:numpys", *Y), "In the place of np.exp, write xp.exp"),
    (("model.py:broken", *Y), "broken failed with NameError: name 'nowhere' is not defined ("),
    (("model.py:waves", *Y), "waves must return columns of 41 real numbers: an array, a list of them or a dict; got c"),
    (("model.py:short", *Y), "a list of them or a dict; got float64 of shape (40, 1)"),
    (("model.py:twice", *Y), "parameters and columns of twice must differ in name: rename one 'one'"),
    (("model.py:decay", *Y, *S, "--absolute-sigma"), "--absolute-sigma is for --loss poisson, log_poisson or logistic"),
    (("model.py:text", *Y), "a list of them or a dict. design 0 of columns must be an array of shape (m, n) or (m,)"),
    (("model.py:stops", *Y), "stops ended Python by sys.exit(), before there was a result"),
    (("syntax.py:f", *Y), "syntax.py failed with SyntaxError: expected ':' (syntax.py, line 1)\n"),
    (("builtins:max", *Y), "builtins:max must take x and one parameter or more"),
    (("tied.py:other", *Y), "parameters in tied.py must be those that tied.py:other takes, slow; fast is not"),
    (("tied.py:decay", *Y, "--start", "fast=3"), "fast is tied"),
    (("model.py:decay", *Y), "slow needs a start: add --start slow=NUMBER"),
    (("model.py:decay", *Y, "--start", "k=1"), "decay has no parameter 'k': its parameters are slow, fast"),
    (("model.py:matrix", *Y, "--fix", "rates[2]"), "--fix must name rates or an entry of it, such as rates[1]; got"),
    (("model.py:vector", *Y, "--fix", "rate[0]"), "--fix must name rate or an entry of it, such as rate; got"),
    (("model.py:vector", *Y, "--fix", "rate"), "--fix must leave a parameter that varies; got all there are, rate"),
    (("model.py:vector", *Y, "--loss", "hubber"), "--loss must be one of huber, soft_l1, cauchy, "),
    (("model.py:decay", *Y, "--start", "slow"), "--start must be NAME=..., such as rates=0.5,8; got 'slow'"),
    (("model.py:decay", *Y, "--start", "slow=a"), "--start slow must be a number, or several"),
    (("model.py:decay", *Y, *S, *S), "--start is given twice for slow"),
    (("model.py:decay", *Y, *S, "--bounds", "slow=1"), "--bounds slow must be LOW:HIGH"),
    (("model.py:decay", *Y, *S, "--bounds", "slow=2:3"), "slow: value must lie between min and max, got 1"),
    (("model.py:decay", *Y, *S, "--format", "gif"), "--format must be one of png, pdf, svg; got 'gif'"),
    (("model.py:decay", *Y, *S, "--backend", "lost"), "unknown backend 'lost'"),
    (("model.py:decay", *Y, *S, "--interval", "exact"), "--interval must be one of linear, profile, bootstrap; got"),
    (("model.py:decay", *Y, *S, "--background", "-1"), "degree must be a whole number >= 0"),
    (("model.py:decay", *Y, *S, "--y", "t"), "--x and --y must name different columns; got 't' twice"),
    (("model.py:decay", "--x", "s", "--y", "y", *S), "has no column 's'; its columns are 't', 'y', 'zero', 'none',"),
    (("model.py:decay", *Y, *S, "--sigma", "zero"), "--sigma must name columns of numbers > 0; got 0 where t is 0.0"),
    (("model.py:decay", *Y, *S, "--sigma", "y", "--sigma", "y"), "--sigma must be given once, or once for each of"),
    (("model.py:decay", *Y, *S, "--y", "none"), "has no row with numbers in t, none"),
    (("model.py:decay", *Y, *S, "--y", "one"), "as many rows with numbers as amplitudes are required, 2; got 1"),
    (("model.py:decay", *Y, *S, "--background", "1000000000"), "amplitudes are required, 1000000003; got 41"),
    (("model.py:decay", "--x", "zero", "--y", "y", *S), "--x must name a column of different numbers; got 0 in each"),
    (("model.py:decay", "--x", "y fitted", "--y", "y", *S), "that fitted.csv gives: rename 'y fitted'"),
]


def test_a_mistake_ends_in_one_line_that_names_it(here, subtests):
    zero = np.zeros(41)
    one = np.where(SAMPLES == 1, 2.0, np.nan)
    path = table(here, t=SAMPLES, y=signal(), zero=zero, none=np.full(41, np.nan), one=one, **{"y fitted": zero})
    (here / "syntax.py").write_text("def f(t, rate=1.0)\n", encoding="utf-8")
    for (model, *rest), message in MISTAKES:
        with subtests.test(" ".join((model, *rest))):
            result = invoke("fit", model, path, *rest)
            assert result.exit_code == 2, result.output
            assert message in result.stderr
            assert result.stderr.count("\n") == 1
            assert not (here / "xvarpro-out").exists()


# -- the file ----------------------------------------------------------------------------------------------------------


FORMS = [
    "t,y\n0.5,1\n1,\n",
    "\ufefft,y\r\n0.5,1\r\n1,NA\r\n",
    "# made by hand\n\n t ; y \n0,5;1,0\n1;-\n",
    "t\ty\n0,5\t1\n# in the middle\n1\tNaN\n",
    'y,"t"\n1e0," 0.5"\n,1\n',
    "t;y;\n0.5;1;\n1;;\n",
    '"t";"no, other";y\n0,5;x, y;1\n1;;\n',
    't,"made\nby",y\n0.5,"two\n\n lines",1\n,,\n1,"",\n',
    't, "sample #, by", y\n0.5 , "1, me", 1 \n1 , #2, NA \n , , \n',
    '"made;by",t,y\nx\x0cy\u2028,0.5,1\n#,\n,1,\n',
]


def test_forms_of_one_table(tmp_path, subtests):
    path = tmp_path / "data.csv"
    for text in FORMS:
        with subtests.test(repr(text)):
            path.write_bytes(text.encode())
            found = columns.read(path, ["t", "y"])
            np.testing.assert_array_equal(found["t"], [0.5, 1.0])
            np.testing.assert_array_equal(found["y"], [1.0, np.nan])


NO_TABLES = [
    ("# t,y\n\n", "has no lines but empty ones and comments"),
    ("t,y\n", "has the names t, y and no rows"),
    ("0,1\n1,2\n", "the first line that does not begin with # must hold the names of the columns; got 0, 1"),
    ("t,z\n0,1\n", "has no column 'y'; its columns are 't', 'z'"),
    ("t|y\n0|1\n", "has no column 't'; its columns are 't|y'. The first line has no comma, semicolon, tab or blank"),
    ("t,y\n2026-03-01,1\nMarch,2\n", "line 3, column 't': a date or an empty cell is required; got 'March'"),
    ("t,y,y\n0,1,2\n", "has 2 columns 'y': rename all but one"),
    ("t,y\n0,1\n\n1\n", "line 4: as many cells as names are required, 2; got 1"),
    ("t,y\n0,1,5\n", "line 2: as many cells as names are required, 2; got 3"),
    ("t,y\n0,a\n", "line 2, column 'y': a number or an empty cell is required; got 'a'. A line of units or"),
    ("t,y\n0,1_0\n", "a number or an empty cell is required; got '1_0'"),
    ("t,y\n0,inf\n", "line 2, column 'y': a finite number is required; got 'inf'"),
    ("t;y\n0,5;1.5\n", "must have one decimal sign; got '0,5' in line 2 and '1.5' in line 2"),
    ("t;y\n0,5;1,234,5\n", "got '1,234,5'"),
    ('t,y,by\n0,1,"me\n1,2,me\n', "line 3: cells must be those of a CSV file; got unexpected end of data"),
    ("t,y\n0,1\n1," + "1" * 200000, "line 3: cells must be those of a CSV file; got field larger than"),
    ("t,y\n0,a" + "b" * 10000, f"a number or an empty cell is required; got 'a{'b' * 49}'"),
]


def test_blanks_separate_cells_where_nothing_else_does(tmp_path):
    path = tmp_path / "data.txt"
    path.write_text("# instrument\n  t    y \n 0.5   1e-3\n 1.5   - \n", encoding="utf-8")
    found = columns.read(path, ["t", "y"])
    np.testing.assert_array_equal(found["t"], [0.5, 1.5])
    np.testing.assert_array_equal(found["y"], [1e-3, np.nan])


def test_dates_are_numbers_since_the_first_one(here):
    start = datetime(2026, 3, 1, 14, 30)
    rows = [f"{start + timedelta(hours=x)},{y}" for x, y in zip(SAMPLES.tolist(), signal().tolist(), strict=True)]
    (here / "data.csv").write_text("\n".join(["t,y", *rows]), encoding="utf-8")
    found = invoke("fit", "exponentials", "data.csv", *Y, "--start", "rates=0.5,8", "--out", "out")
    assert "x is t (hours since 2026-03-01T14:30:00)" in found.output
    first = (here / "out" / "fitted.csv").read_text().splitlines()[1]
    assert first.startswith("2026-03-01T14:30:00")


@pytest.mark.parametrize(
    ("model", "start", "named", "expected"),
    [
        ("exponentials", "rates=1,5", ("t [ns]", "y / mV"), {"rates[1]": "1/ns", "w[1]": "mV", "background 0": "mV"}),
        ("exponentials", "rates=1,5", ("t (m/s)", "y"), {"rates[0]": "1/(m/s)", "w[0]": "", "background 0": ""}),
        ("gaussians", "widths=1", ("t (ns)", "y [mV]"), {"centres": "ns", "widths": "ns", "w[0]": "mV ns"}),
        ("gaussians", "widths=1", ("t", "y [mV]"), {"widths": "", "w[0]": "", "background 0": "mV"}),
        ("model.py:decay", "slow=1", ("t (ns)", "y [mV]"), {"slow": "", "one": "", "background 0": "mV"}),
    ],
)
def test_units_of_headers_give_those_that_follow_from_them(model, start, named, expected, here):
    x, y = named
    path = table(here, **{x: SAMPLES, y: signal() + 1.0})
    more = ["--start", "centres=0", "--fix", "centres"] if model == "gaussians" else []
    result = invoke(
        "fit", model, path, "--x", x, "--y", y, "--start", start, *more, "--background", "0", "--out", "out"
    )
    units = {row["name"]: row["unit"] for row in written(here / "out" / "parameters.csv")}
    assert units == units | expected
    assert ("relative   bounds   unit" in result.output) == any(units.values())


def test_a_sum_of_logarithms_has_no_unit(here):
    path = table(here, **{"t (s)": SAMPLES, "y [counts]": np.round(100.0 * signal())})
    fits("exponentials", path, "--x", "t (s)", "--y", "y [counts]", "--start", "rates=1", "--loss", "log_poisson")
    rows = written(here / "xvarpro-out" / "data-exponentials" / "parameters.csv")
    assert [row["unit"] for row in rows] == ["1/s", ""]


def test_what_is_no_table_is_named(tmp_path, subtests):
    path = tmp_path / "data.csv"
    for text, message in NO_TABLES:
        with subtests.test(message):
            path.write_text(text, encoding="utf-8")
            with pytest.raises(ProblemError, match=re.escape(message)):
                columns.read(path, ["t", "y"])


def test_a_line_break_in_a_name_is_a_space(tmp_path):
    path = tmp_path / "data.csv"
    path.write_text('"time\n(ns)",y\n0,1\n', encoding="utf-8")
    assert columns.read(path, ["time (ns)"])["time (ns)"] == [0.0]
    assert columns.read(path, ["time\n(ns)"]).keys() == {"time\n(ns)"}


@pytest.mark.parametrize(("name", "encoding"), [("µ", "cp1252"), ("y", "utf-16"), ("y", "utf-16-le")])
def test_a_file_in_another_encoding_is_named(tmp_path, name, encoding):
    path = tmp_path / "data.csv"
    path.write_bytes(f"t,{name}\n0,1\n".encode(encoding))
    with pytest.raises(ProblemError, match="is no text in UTF-8"):
        columns.read(path, ["t"])


def test_names_that_a_stream_cannot_encode_are_printed_with_question_marks(here, monkeypatch, drawn):
    def status(*args):
        with pytest.raises(SystemExit) as caught:
            app(["fit", *map(str, args)])
        return caught.value.code

    streams = [io.TextIOWrapper(io.BytesIO(), "cp1252") for _ in range(2)]
    monkeypatch.setattr(sys, "stdout", streams[0])
    monkeypatch.setattr(sys, "stderr", streams[1])
    args = ("exponentials", table(here, **{"τ": SAMPLES, "∇": signal()}), "--x", "τ", "--start", "rates=1,5")
    assert status(*args, "--y", "∇") == 0
    assert streams[1].buffer.getvalue() == b""
    assert status(*args, "--y", "∂") == 2
    refused = streams[1].buffer.getvalue()
    assert refused.startswith(b"error: ")
    assert refused.rstrip().endswith(b"has no column '?'; its columns are '?', '?'.")
    assert written(here / "xvarpro-out" / "data-exponentials" / "fitted.csv")[0].keys() == {
        "τ",
        "∇",
        "∇ fitted",
        "∇ residual",
    }
