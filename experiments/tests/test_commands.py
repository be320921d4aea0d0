"""``xvarpro run``: what it prints, what it writes, how it refuses."""

import json
import struct
import sys

import numpy as np
import pytest
from matplotlib.figure import Figure
from typer.testing import CliRunner
from xvarpro_experiments import datasets, dictionary, report
from xvarpro_experiments.methods import OURS
from xvarpro_experiments.rivals import RIVALS

import xvarpro as xv
from xvarpro.cli import app

SMALL = ["run", "dictionary", "--samples", "60", "--atoms", "4", "--iterations", "6"]


def invoke(*args):
    return CliRunner().invoke(app, [str(a) for a in args], env={"COLUMNS": "120", datasets.VARIABLE: None})


def png_alone(figure, path, save=Figure.savefig, **given):
    """SVG and PDF of the same figures take a second."""
    save(figure, path, **given) if path.suffix == ".png" else path.write_bytes(b"not drawn")


@pytest.fixture(scope="module")
def done(tmp_path_factory, less_tuned):
    out = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dictionary, "RIVALS", less_tuned(RIVALS))
        patch.setattr(Figure, "savefig", png_alone)
        result = invoke(*SMALL, "--compare", "numpy,torch", "--out", out)
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    assert not {"\r", "\x1b"} & set(result.stdout)  # a pipe gets plain lines
    assert result.stdout.index("at most, set-up") < result.stdout.index("seed 0, 1/")  # a log says what it waits for
    return result, json.loads((out / "summary.json").read_text()), out


def test_the_table_and_the_summary_hold_the_same_numbers(done):
    result, summary, _ = done
    rows = {line.strip().split("  ")[0]: line.split() for line in result.stdout.splitlines()}
    assert [r["method"] for r in summary["methods"]] == [m.name for m in (*OURS, *RIVALS)]
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
    config, provenance = summary["config"], summary["provenance"]
    assert (config["atoms"], config["samples"]) == (4, 60)
    assert "digits" in config["data"]
    assert (provenance["backend"], provenance["framework"]["numpy"]) == ("numpy", np.__version__)
    assert summary["budget"]["iterations"] == 6
    for r in summary["methods"]:
        assert r["objective"]["median"] < summary["start_objective"]["0"]
        assert r["infeasibility"] <= 1e-12


def test_the_same_run_on_two_backends_is_compared(done):
    result, summary, _ = done
    compare = summary["compare"]
    assert (compare["agree"], compare["first_difference"]) == (True, None)
    assert compare["relations"]["torch"]["iterations"] == list(range(7))
    assert compare["verdict"] in " ".join(result.stdout.split())


def test_the_result_file_is_the_best_reduced_method(done):
    _, summary, out = done
    ours = {r["method"]: r["objective"]["median"] for r in summary["methods"] if r["family"] != "rival"}
    fit = xv.Result.load(out / "result.npz")
    assert fit.value == ours[summary["best"]] == min(ours.values())
    assert fit.theta.shape == (64, 4)
    assert fit.w.shape == (4, 60)


def test_figures_are_written_and_named(done):
    result, _, out = done
    for name in ("atoms.png", "convergence.png"):
        assert (out / name).read_bytes().startswith(b"\x89PNG")
        assert name in result.stdout
    assert out.name in result.stdout.replace("\n", "")


def test_the_fallback_says_so_and_how_to_get_mnist(done):
    text = " ".join(done[0].stdout.split())
    assert "scikit-learn's 8 x 8 digits" in text
    assert f"point --data or {datasets.VARIABLE}" in text


@pytest.fixture
def few(monkeypatch):
    """Two methods, of the package and a rival, neither tuned, and figures that are not drawn."""
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **given: path.write_bytes(b"not drawn"))
    monkeypatch.setattr(dictionary, "OURS", OURS[:1])
    monkeypatch.setattr(dictionary, "RIVALS", RIVALS[:1])


def test_mnist_is_used_where_it_is(tmp_path, few):
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


def test_starts_are_repeated_and_a_second_call_finds_what_is_done(tmp_path, few):
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


@pytest.mark.thorough
def test_float32_on_torch(tmp_path):
    result = invoke(*SMALL, "--backend", "torch", "--dtype", "float32", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["compare"] is None
    assert [summary["provenance"][key] for key in ("backend", "dtype")] == ["torch", "float32"]
    assert all(r["infeasibility"] <= 1e-5 for r in summary["methods"])


MISTAKES = [
    (["--compare", "numpy,foo"], "unknown backend 'foo'"),
    (["--compare", "numpy"], "two or more backends"),
    (["--device", "cuda:0"], "cannot compute on 'cuda:0'"),
    (["--dtype", "float16"], "float64 or float32"),
    (["--atoms", "0"], "atoms must be"),
    (["--atoms", "100000"], "atoms must be at most 64"),
    (["--radius", "nan"], "radius must be"),
    (["--ridge", "-1"], "lam must be"),
    (["--iterations", "0"], "iterations must be"),
    (["--time", "0"], "time must be"),
    (["--samples", "0"], "samples must be"),
    (["--seed", "-1"], "seed must be"),
    (["--repeat", "0"], "repeat must be"),
    (["--units", "0"], "units must be"),
]


def test_a_mistake_is_one_line_before_any_work(tmp_path, subtests):
    for args, message in MISTAKES:
        with subtests.test(" ".join(args)):
            result = invoke(*SMALL, "--out", tmp_path / "out", *args)
            assert result.exit_code == 2
            assert result.stdout == ""
            assert result.stderr.startswith("error: ")
            assert result.stderr.count("\n") == 1
            assert message in result.stderr
            assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["autoencoder", "deconvolution", "dictionary", "fewshot"])
def test_data_of_a_folder_that_is_not_there_is_a_mistake(name, tmp_path):
    result = invoke("run", name, "--data", tmp_path / "nowhere", "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert "data must be a folder that exists" in result.stderr
    assert not (tmp_path / "out").exists()


def test_a_backend_that_is_not_installed_names_its_remedy(tmp_path, monkeypatch):
    monkeypatch.setattr(xv.backends, "installed", lambda name: name != "cupy")
    result = invoke(*SMALL, "--backend", "cupy", "--out", tmp_path)
    assert result.exit_code == 2
    assert "pip install 'xvarpro[cuda12]'" in result.stderr


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    result = invoke(*SMALL, "--out", tmp_path / "file")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert str(tmp_path / "file") in result.stderr


def test_a_package_that_is_missing_names_its_remedy(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    result = invoke(*SMALL, "--out", tmp_path)
    assert result.exit_code == 2
    assert result.stderr == "error: scikit-learn is not installed: pip install scikit-learn\n"
