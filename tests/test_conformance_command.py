"""The conformance suite by the command and from Python, on a few checks of milliseconds, and on a plugin's backend."""

import os
import sys
from xml.etree import ElementTree

import numpy as np
import pytest
from typer.testing import CliRunner

from xvarpro import backends as registry
from xvarpro import conformance as cf
from xvarpro.cli import app
from xvarpro.errors import ProblemError, UnknownBackendError
from xvarpro_conformance import runner, suite, test_suite

from . import processes


def right(target, case):
    """Sums are right."""
    if case == "none":
        raise cf.Inapplicable("there is nothing to add")
    yield cf.Measured("sum", target.host(target.send(np.ones(3))).sum(), 3.0, target.eps)


def wrong(target, case):
    """Sums are wrong."""
    yield cf.Measured("sum", np.array([3.0, 4.0]), np.array([3.0, 4.5]), 0.01)


def broken(target, case):
    """Sums raise."""
    raise RuntimeError("no sum today")


FEW = {"a": 1, "none": "none"}


def entered(funs, cases):
    names = ("float64", "float32")
    return [cf.Check("exchange", f.__name__, f, lambda: cases, names) for f in funs]


@pytest.fixture
def suite_of(monkeypatch):
    """Replaces the suite by a few checks."""
    list(suite.every())  # what is imported later would be entered here, and lost
    return lambda *funs, **cases: monkeypatch.setattr(suite, "CHECKS", entered(funs, cases or FEW))


def test_states(suite_of):
    suite_of(right, wrong, broken)
    found = cf.run("numpy")
    states = {f"{o.check}/{o.case}": o.state for o in found if o.dtype == "float64"}
    assert states == {
        "right/a": "passed",
        "right/none": "inapplicable",
        "wrong/a": "failed",
        "wrong/none": "failed",
        "broken/a": "raised",
        "broken/none": "raised",
    }
    assert not found.ok
    assert "RuntimeError: no sum today" in found.failures[-1].note


def test_what_is_asked_for(suite_of):
    suite_of(right, wrong)
    assert [o.address for o in cf.run("numpy", "exchange/right/a")] == ["exchange/right/a"] * 2
    assert len(cf.run(["numpy", cf.targets(["numpy"], dtypes=["float32"])[0]], "exchange/right")) == 6
    assert len(cf.run([registry.get("numpy")], ["*/a", "exchange/wrong"])) == 6
    for address in ("exchanges", "exchange/right/b", "right", "exchange/right/a/b"):
        with pytest.raises(ProblemError, match="must be the address of a check"):
            cf.run("numpy", ["exchange", address])
    with pytest.raises(UnknownBackendError, match="unknown backend 'foo'"):
        cf.run("foo")


def test_a_precision_that_no_check_speaks_about(monkeypatch):
    list(suite.every())
    monkeypatch.setattr(suite, "CHECKS", [cf.Check("solves", "right", right, lambda: {"a": 1}, ("float64",))])
    with pytest.raises(ProblemError, match="must select a check of the precisions"):
        cf.run(cf.targets(["numpy"], dtypes=["float32"]), "solves")


def test_a_backend_without_a_device_is_named_with_its_reason(monkeypatch):
    def driver():
        raise OSError("no driver\nand more")

    monkeypatch.setattr(registry, "known", lambda: ("numpy", "torch"))
    monkeypatch.setattr(registry.get("torch"), "devices", driver)
    assert runner.usable() == ["numpy"]
    with pytest.raises(ProblemError, match="'torch' has none: OSError: no driver"):
        cf.targets(["torch"])


def test_the_quick_part_is_one_case_of_each_class(suite_of):
    """Two of them where everything is compiled, and then in one precision, which takes turns."""
    cases = {f"{kind} {i}": 1 for kind in "abcdefgh" for i in range(3)}
    suite_of(right, wrong, **cases)
    asked = [x.values for name in ("numpy", "jax") for x in test_suite.asked(cf.targets([name]), (), quick=True)]
    checks = {(target.dtype, target.backend.name, check.name): (target, check) for target, check, _ in asked}
    compiled = {where for where in checks if where[1] == "jax"}
    assert compiled == {("float64", "jax", "right"), ("float32", "jax", "wrong")}
    ran = {key: [o.case for o in test_suite.few(*given, cases)] for key, given in checks.items()}
    assert ran["float64", "numpy", "right"] == [f"{kind} 0" for kind in "abcdefgh"]
    assert len(ran["float64", "jax", "right"]) == test_suite.COMPILED
    assert set(ran["float64", "jax", "right"]) < set(ran["float64", "numpy", "right"])


def called(lines, names):
    list(suite.every())
    if names is not None:
        suite.CHECKS[:] = entered([globals()[name] for name in names], FEW)
    return [CliRunner().invoke(app, ["conformance", *line]).exit_code for line in lines]


def invoke(*lines, checks=("right",)):
    """Exit statuses of command lines, one after another in one process."""
    return processes.start(called, [[str(x) for x in line] for line in lines], checks).returned()


def test_without_the_suite_the_command_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "xvarpro_conformance", None)
    monkeypatch.delitem(sys.modules, "xvarpro.conformance")
    result = CliRunner().invoke(app, ["conformance"])
    assert result.exit_code == 2
    assert result.stderr.startswith("error: xvarpro.conformance needs the package 'xvarpro-conformance'")
    assert result.stderr.endswith(": pip install xvarpro-conformance, or in a clone pip install ./conformance\n")


def test_the_table_counts_cases_and_the_status_is_that_of_pytest(tmp_path):
    here = ("--backend", "numpy", "--table", tmp_path / "new" / "a.md")
    assert invoke(here) == [0]
    first, areas = (tmp_path / "new" / "a.md").read_text().split("\n\n")
    version = f"numpy {np.__version__}"
    assert first.splitlines()[2].startswith(f"| numpy cpu | {version} | 1 passed | 1 passed | 1 of 1 | 0 | 20")
    assert areas.splitlines()[2] == "| exchange | 1 passed | 1 passed |"
    assert invoke((*here, "--dtype", "float32"), checks=("right", "wrong")) == [1]
    wrong = (tmp_path / "new" / "a.md").read_text()
    assert f"| numpy cpu | {version} | not run | 2 FAIL of 3 | 0 of 1 | 9.2 | 20" in wrong
    assert invoke((*here, "--only", "*/none")) == [0]
    assert f"| numpy cpu | {version} | not run | not run | 0 of 0 |" in (tmp_path / "new" / "a.md").read_text()


@pytest.mark.frameworks  # a worker imports all of it
def test_several_processes_share_a_table(tmp_path):
    here = ("--backend", "numpy", "--only", "sets/gap", "-q", "--table", tmp_path / "a.md")
    assert invoke((*here, "-n", "1"), checks=None) == [0]
    several = (tmp_path / "a.md").read_text()
    assert invoke(here, checks=None) == [0]
    assert (tmp_path / "a.md").read_text() == several


def test_a_failure_has_both_values_and_the_command_that_runs_it_again(tmp_path):
    only = ("--dtype", "float32", "--only", "*/a", "--junitxml", tmp_path / "a.xml")
    assert invoke(("--backend", "numpy", *only), checks=("right", "wrong", "broken")) == [1]
    texts = [failure.text for failure in ElementTree.parse(tmp_path / "a.xml").iter("failure")]
    wrong = next(text for text in texts if "Sums are wrong." in text)
    assert "got  array([3., 4.])" in wrong
    assert "want array([3. , 4.5])" in wrong
    assert "xvarpro conformance --backend numpy --device cpu --dtype float32 --only exchange/wrong/a" in wrong
    assert any("RuntimeError: no sum today" in text for text in texts)


def test_wrong_use_is_status_4():
    wrong = ["--backend foo", "--device cuda:7", "--dtype float16", "--only left", "--quick --thorough"]
    assert invoke(*(line.split() for line in wrong)) == [4] * len(wrong)


SECOND = [
    "exchange/copies", "exchange/results/jax", "control flow/loops", "control flow/columns in waves",
    "derivatives/functions/products", "factorisations/triangular solves/upper", "sets/oracle/Simplex 0",
    "reduced gradient/kinds of problems/chosen_ridge",
]  # fmt: skip


def on_the_second_device():
    found = cf.run(cf.targets(["jax"], ["cpu:1"], ["float64"]), SECOND)
    return len(found), [(o.address, o.note, [m.what for m in o.failures]) for o in found.failures]


@pytest.mark.frameworks
@pytest.mark.skipif(not registry.installed("jax"), reason="jax is not installed")
def test_jax_on_the_second_of_two_devices():
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"
    count, failures = processes.start(on_the_second_device, XLA_FLAGS=flags, JAX_PLATFORMS="cpu").returned()
    assert count >= len(SECOND)
    assert not failures
