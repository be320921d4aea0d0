"""The command line: what it prints, what it writes, how it refuses."""

import json
import os
import subprocess
import sys
from importlib.metadata import EntryPoint
from importlib.util import module_from_spec, spec_from_file_location

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

import xvarpro as xv
from xvarpro import cli
from xvarpro.cli.conformance import command as conformance
from xvarpro.errors import pip_install

from .support import CODE, invoke


@pytest.mark.parametrize("module", ["typer", "rich"])
def test_without_its_packages_the_command_says_what_to_install(module, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, module, None)
    spec = spec_from_file_location("xvarpro_cli_again", cli.__file__)
    with pytest.raises(SystemExit) as caught:
        spec.loader.exec_module(module_from_spec(spec))
    assert caught.value.code == 2
    assert capsys.readouterr().err == f"the xvarpro command needs {module}: {pip_install('cli')}\n"


MINE = """
import warnings
from xvarpro.cli import tables
from xvarpro.errors import ProblemError

def command(n: int = 3) -> None:
    if n < 0:
        raise ProblemError(f"n must be >= 0, got {n}")
    if n == 0:
        warnings.warn("n is 0", stacklevel=2)
    print("n is", n)
"""
# the module of the experiment is imported before the command line, which it imports in turn, and then after it
RUNS = """
import json, sys
import mine
from xvarpro.cli import app
from typer.testing import CliRunner

del sys.modules["mine"]
done = [CliRunner().invoke(app, ["run", *args]) for args in json.loads(sys.argv[1])]
print(json.dumps([(x.exit_code, x.stdout, x.stderr) for x in done]))
"""


def test_an_experiment_of_the_users_is_a_subcommand_of_run(tmp_path):
    """Installed as pip would: a folder on the path with the metadata of a distribution."""
    (tmp_path / "mine.py").write_text(MINE)
    info = tmp_path / "mine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[xvarpro.experiments]\nmine = mine:command\nlost = nowhere:command\n")
    lines = [["mine", "--n", "5"], ["mine", "--n", "-1"], ["mine", "--n", "0"], ["lost", "--anything", "1"]]
    command = [sys.executable, "-c", RUNS, json.dumps(lines)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", "")))}
    found = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    said, refused, warned, lost = json.loads(found.stdout)
    assert said == [0, "n is 5\n", ""]
    assert refused == [2, "", "error: n must be >= 0, got -1\n"]
    assert warned == [0, "n is 0\n", "warning: n is 0\n"]
    assert lost[0] == 2
    assert lost[2].startswith("error: experiment 'lost' cannot be loaded from 'nowhere:command': Module")


def test_experiments_are_listed_with_their_help_and_imported_then(monkeypatch):
    entry = EntryPoint("mine", "xvarpro.cli.conformance:command", cli.GROUP)
    app, loaded = typer.Typer(), []
    monkeypatch.setattr(EntryPoint, "load", lambda entry: loaded.append(entry.name) or conformance)
    cli.register(app, [entry])
    assert not loaded
    assert "Check that backends give the right answers" in CliRunner().invoke(app, ["run", "--help"]).stdout
    assert loaded == ["mine"]


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


PROBLEM = CODE.replace("* theta)", '* theta * (1.0 + OFF * ("torch" in xp.__name__)))')
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


def test_frameworks_that_are_not_installed_are_not_compared(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(PROBLEM + "\nOFF = 0.0\n")
    monkeypatch.setattr(cli.registry, "installed", lambda name: name != "jax")
    result = invoke("compare", f"{tmp_path}/mine.py:decays", "--iterations", "3")
    assert result.exit_code == 0, result.output
    assert "torch" in result.stdout
    assert "jax" not in result.stdout


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
        return get(name)

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
