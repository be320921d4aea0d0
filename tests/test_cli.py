"""The command line: what it prints, what it writes, how it refuses."""

import json
import os
import struct
import subprocess
import sys

import numpy as np
import pytest
import typer
from typer.testing import CliRunner
from xvarpro_experiments import datasets, report
from xvarpro_experiments.dictionary import METHODS

import xvarpro as xv
from xvarpro import cli
from xvarpro.cli import app

SMALL = ["run", "dictionary", "--samples", "80", "--atoms", "4", "--iterations", "10"]


def invoke(*args):
    return CliRunner().invoke(app, [str(a) for a in args], env={"COLUMNS": "120", datasets.VARIABLE: None})


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    out = tmp_path_factory.mktemp("run")
    result = invoke(*SMALL, "--compare", "numpy,torch", "--out", out)
    assert result.exit_code == 0, result.output
    return result, json.loads((out / "summary.json").read_text()), out


def test_the_table_and_the_summary_hold_the_same_numbers(done):
    result, summary, _ = done
    rows = {line.strip().split("  ")[0]: line.split() for line in result.stdout.splitlines()}
    assert [r["method"] for r in summary["methods"]] == [m.name for m in METHODS]
    for r in summary["methods"]:
        row = rows[r["method"]]
        for reading in ("at_equal_seconds", "at_equal_iterations", "objective"):
            assert report.number(r[reading]["median"]) in row
        assert f"{r['relative_gap']['median']:.1e}" in row
        assert f"{r['iterations']['median']:.0f}" in row
    for run in summary["runs"]:
        assert f"{run['live']}/{run['units']}" in rows[run["method"]]


def test_the_summary_says_what_was_run(done):
    _, summary, _ = done
    config = summary["config"]
    assert (config["atoms"], config["samples"]) == (4, 80)
    assert "digits" in config["data"]
    assert summary["provenance"]["backend"] == "numpy"
    assert summary["provenance"]["framework"]["numpy"] == np.__version__
    assert summary["budget"]["iterations"] == 10
    for r in summary["methods"]:
        assert r["objective"]["median"] < summary["start_objective"]["0"]
        assert r["infeasibility"] <= 1e-12


def test_the_same_run_on_two_backends_is_compared(done):
    result, summary, _ = done
    compare = summary["compare"]
    assert compare["agree"] is True
    assert compare["relative_difference"] <= 1e-9
    assert compare["same_step_sizes"] is True
    assert compare["first_different_step"] is None
    assert compare["iterations"] == 10
    assert [b["backend"] for b in compare["backends"]] == ["numpy", "torch"]
    assert compare["verdict"] in " ".join(result.stdout.split())


def test_the_result_file_is_the_best_reduced_method(done):
    _, summary, out = done
    ours = {r["method"]: r["objective"]["median"] for r in summary["methods"] if r["family"] != "rival"}
    fit = xv.Result.load(out / "result.npz")
    assert fit.value == ours[summary["best"]] == min(ours.values())
    assert fit.theta.shape == (64, 4)
    assert fit.w.shape == (4, 80)


def test_figures_are_written_and_named(done):
    result, _, out = done
    for name in ("atoms.png", "convergence.png"):
        assert (out / name).read_bytes().startswith(b"\x89PNG")
        assert name in result.stdout
    assert out.name in result.stdout.replace("\n", "")


def test_a_pipe_gets_no_progress_and_no_warnings(done):
    result, _, _ = done
    assert result.stderr == ""
    assert "\r" not in result.stdout
    assert "\x1b" not in result.stdout
    assert "seed 0, 1/" not in result.stdout


def test_the_fallback_says_so_and_how_to_get_mnist(done):
    text = " ".join(done[0].stdout.split())
    assert "scikit-learn's 8 x 8 digits" in text
    assert f"point --data or {datasets.VARIABLE}" in text


def test_mnist_is_used_where_it_is(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (30, 28, 28), dtype=np.uint8)
    header = struct.pack(">HBB3I", 0, 8, 3, *images.shape)
    (tmp_path / "train-images-idx3-ubyte").write_bytes(header + images.tobytes())
    out = tmp_path / "out"
    args = ("--samples", "20", "--atoms", "3", "--iterations", "2")
    result = invoke("run", "dictionary", *args, "--data", tmp_path, "--out", out)
    assert result.exit_code == 0, result.output
    config = json.loads((out / "summary.json").read_text())["config"]
    assert (config["pixels"], config["samples"]) == (784, 20)
    assert "MNIST, 20 training images" in result.stdout


def test_starts_are_repeated_and_a_second_call_finds_what_is_done(tmp_path):
    args = (*SMALL, "--repeat", "2", "--seed", "5", "--out", tmp_path)
    first = invoke(*args)
    assert first.exit_code == 0, first.output
    assert "seeds 5 to 6" in first.stdout
    assert "spread" in first.stdout
    one = json.loads((tmp_path / "summary.json").read_text())
    assert one["seeds"] == [5, 6]
    again = invoke(*args)
    assert again.exit_code == 0, again.output
    assert json.loads((tmp_path / "summary.json").read_text()) == one  # seconds and all


def test_float32_on_torch(tmp_path):
    result = invoke(*SMALL, "--backend", "torch", "--dtype", "float32", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["compare"] is None
    assert summary["provenance"]["dtype"] == "float32"
    assert summary["provenance"]["backend"] == "torch"
    assert all(r["infeasibility"] <= 1e-5 for r in summary["methods"])


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--backend", "foo"], "numpy, torch, jax, cupy"),
        (["--compare", "numpy,foo"], "unknown backend 'foo'"),
        (["--compare", "numpy"], "two or more backends"),
        (["--device", "cuda:0"], "cannot compute on 'cuda:0'"),
        (["--dtype", "float16"], "float64 or float32"),
        (["--data", "nowhere"], "no train-images-idx3-ubyte.gz in nowhere"),
        (["--atoms", "0"], "atoms must be"),
        (["--radius", "-1"], "radius must be"),
        (["--radius", "nan"], "radius must be"),
        (["--ridge", "-1"], "lam must be"),
        (["--iterations", "0"], "iterations must be"),
        (["--time", "0"], "time must be"),
        (["--samples", "0"], "samples must be"),
        (["--seed", "-1"], "seed must be"),
        (["--repeat", "0"], "repeat must be"),
        (["--units", "0"], "units must be"),
    ],
)
def test_a_mistake_is_one_line_before_any_work(tmp_path, args, message):
    result = invoke(*SMALL, "--out", tmp_path / "out", *args)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert message in result.stderr
    assert not (tmp_path / "out").exists()


def test_a_backend_that_is_not_installed_names_its_remedy(tmp_path, monkeypatch):
    monkeypatch.setattr(xv.backends, "installed", lambda name: name != "cupy")
    monkeypatch.setattr(xv.backends, "get", xv.backends.get.__wrapped__)
    result = invoke(*SMALL, "--backend", "cupy", "--out", tmp_path)
    assert result.exit_code == 2
    assert "pip install 'xvarpro[cuda12]'" in result.stderr


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    result = invoke(*SMALL, "--out", tmp_path / "file")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert str(tmp_path / "file") in result.stderr


@pytest.mark.parametrize(("module", "name"), [("matplotlib", "matplotlib"), ("sklearn.datasets", "scikit-learn")])
def test_an_optional_package_that_is_missing_names_its_remedy(tmp_path, monkeypatch, module, name):
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules, "xvarpro.results.plotting", raising=False)
    monkeypatch.delattr(xv, "plotting", raising=False)
    result = invoke(*SMALL, "--out", tmp_path)
    assert result.exit_code == 2
    assert result.stderr == f"error: {name} is not installed: pip install 'xvarpro[cli]'\n"


@pytest.mark.parametrize("module", ["typer", "rich"])
def test_without_its_packages_the_command_says_what_to_install(module):
    code = f"import sys; sys.modules[{module!r}] = None; from xvarpro.cli import app"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == f"the xvarpro command needs {module}: pip install 'xvarpro[cli]'\n"


def test_importing_the_package_imports_nothing_optional():
    code = "import sys, xvarpro; print(*({'typer', 'rich', 'matplotlib', 'sklearn'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_the_package_shows_its_public_names_and_no_others():
    assert dir(xv) == sorted(xv.__all__)
    assert all(hasattr(xv, name) for name in xv.__all__)


MINE = """
from xvarpro.errors import ProblemError

def command(n: int = 3) -> None:
    if n < 0:
        raise ProblemError(f"n must be >= 0, got {n}")
    print("n is", n)
"""


def test_an_experiment_of_the_users_is_a_subcommand_of_run(tmp_path):
    """Installed as pip would: a folder on the path with the metadata of a distribution."""
    (tmp_path / "mine.py").write_text(MINE)
    info = tmp_path / "mine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[xvarpro.experiments]\nmine = mine:command\nlost = nowhere:command\n")

    def run(*args):
        code = "import sys; from xvarpro.cli import app; app(sys.argv[1:])"
        environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
        return subprocess.run(
            [sys.executable, "-c", code, "run", *args], capture_output=True, text=True, check=False, env=environment
        )

    assert run("mine", "--n", "5").stdout == "n is 5\n"
    refused = run("mine", "--n", "-1")
    assert (refused.returncode, refused.stderr) == (2, "error: n must be >= 0, got -1\n")
    lost = run("lost", "--anything", "1")
    assert lost.returncode == 2
    assert lost.stderr.startswith("error: experiment 'lost' cannot be loaded from 'nowhere:command': Module")


@pytest.mark.parametrize("args", [(), ("dictionary", "--atoms", "4")])
def test_without_experiments_run_says_how_to_get_one(args):
    empty = typer.Typer()
    cli.register(empty, [])
    empty.command("other")(lambda: None)
    result = CliRunner().invoke(empty, ["run", *args])
    assert result.exit_code == 2
    assert "pip install xvarpro-experiments" in result.stderr
    assert '[project.entry-points."xvarpro.experiments"] NAME = "package.module:function"' in result.stderr
    assert result.stderr.count("\n") == 1


PROBLEM = """
import numpy as np, xvarpro as xv

def M(theta, t):
    xp = xv.array_namespace(theta)
    return xp.exp(-xp.expand_dims(t, axis=1) * theta * (1.0 + OFF * ("torch" in xp.__name__)))

def decays():
    t = np.linspace(0.0, 2.0, 50)
    y = np.exp(-t) + np.exp(-5.0 * t)
    return xv.separable(M, y, data=t, lam=1e-6), np.array([0.5, 8.0]), xv.sets.Box(0.0, 10.0)

def wrong():
    return 3
"""
COMPARE = ("compare", "--backends", "numpy,torch", "--iterations", "10")


@pytest.mark.parametrize("off", [0.0, 1e-3])
def test_a_problem_of_the_users_is_compared_between_backends(tmp_path, off):
    (tmp_path / "mine.py").write_text(PROBLEM + f"\nOFF = {off}\n")
    result = invoke(*COMPARE, f"{tmp_path}/mine.py:decays", "--out", tmp_path)
    assert result.exit_code == int(off > 0), result.output
    record = json.loads((tmp_path / "comparison.json").read_text())
    assert record["agree"] is (off == 0)
    assert " ".join(record["verdict"].split()) in " ".join(result.stdout.split())
    assert (tmp_path / "comparison.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing", "file.py:function"),
        ("nowhere.at.all:decays", "no module nowhere.at.all"),
        ("{0}/other.py:decays", "no file"),
        ("{0}/mine.py:other", "no function other"),
        ("{0}/mine.py:wrong", "must return (problem, theta0)"),
    ],
)
def test_a_name_that_is_no_problem_is_one_line(tmp_path, name, message):
    (tmp_path / "mine.py").write_text(PROBLEM)
    result = invoke(*COMPARE, name.format(tmp_path))
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def rows_of(result):
    assert result.exit_code == 0, result.output
    return {line.split()[0]: line for line in result.stdout.splitlines() if line.strip()}


def test_backends_are_listed_with_versions_and_capabilities():
    rows = rows_of(invoke("backends"))
    assert set(xv.backends.known()) <= set(rows)
    assert np.__version__ in rows["numpy"]
    assert rows["numpy"].split()[-4:] == ["cpu", "tape", "no", "yes"]
    assert rows["jax"].split()[-2:] == ["yes", "yes"]


def test_an_absent_or_broken_backend_is_a_row_and_not_a_crash(monkeypatch):
    get, installed = xv.backends.get, xv.backends.installed

    def broken(name):
        if name == "torch":
            raise OSError("libtorch.so: cannot open shared object file\nand more")
        return get.__wrapped__(name) if name == "cupy" else get(name)

    def no_device():
        raise RuntimeError("no driver")

    monkeypatch.setattr(xv.backends, "installed", lambda name: name != "cupy" and installed(name))
    monkeypatch.setattr(xv.backends, "get", broken)
    monkeypatch.setattr(get("jax"), "devices", no_device)
    rows = rows_of(invoke("backends"))
    assert "not installed" in rows["cupy"]
    assert "pip install 'xvarpro[cuda12]'" in rows["cupy"]
    assert "broken" in rows["torch"]
    assert "OSError: libtorch.so" in rows["torch"]
    assert "RuntimeError: no driver" in rows["jax"]
