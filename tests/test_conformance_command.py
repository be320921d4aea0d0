"""The conformance suite run from Python, by the command, and on a backend that registers by entry point."""

import re
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from xvarpro import backends as registry
from xvarpro import conformance as cf
from xvarpro.cli import app
from xvarpro.conformance import markdown, parallel, runner, suite, words
from xvarpro.errors import ProblemError, UnknownBackendError

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


def entered(*funs, **cases):
    return [
        cf.Check("exchange", f.__name__, f, lambda: cases or {"a": 1, "none": "none"}, ("float64", "float32"))
        for f in funs
    ]


@pytest.fixture
def suite_of(monkeypatch):
    """Replaces the suite: a few checks of milliseconds."""
    list(suite.every())  # what is imported later would be entered here, and lost

    def replace(*funs, **cases):
        monkeypatch.setattr(suite, "CHECKS", entered(*funs, **cases))

    return replace


# what a plugin adds
EXEMPT = """
    def describe(self):
        return {"plugin": "1.2.3"}

    from xvarpro.conformance import Exemption
    exemptions = (Exemption(name, "exchange/wrong/*", "float32", 20.0, "rounds sums to halves"),)
"""


def test_states(suite_of):
    suite_of(right, wrong, broken)
    found = cf.run("numpy")
    states = {f"{o.check}/{o.case}": o.state for o in found.outcomes if o.dtype == "float64"}
    assert states == {
        "right/a": "passed",
        "right/none": "inapplicable",
        "wrong/a": "failed",
        "wrong/none": "failed",
        "broken/a": "raised",
        "broken/none": "raised",
    }
    assert found.cell(found.targets[0], "exchange")[:5] == (1, 4, 0, 1, np.inf)
    assert "RuntimeError: no sum today" in found.failures[-1].note


def test_what_is_asked_for(suite_of):
    suite_of(right, wrong)
    assert [o.address for o in cf.run("numpy", "exchange/right/a").outcomes] == ["exchange/right/a"] * 2
    assert len(cf.run(["numpy", cf.targets(["numpy"], dtypes=["float32"])[0]], "exchange/right").outcomes) == 6
    assert cf.run([registry.get("numpy")], ["*/a", "exchange/wrong"]).only == ("*/a", "exchange/wrong")
    for address in ("exchanges", "exchange/right/b", "right", "exchange/right/a/b"):
        with pytest.raises(ProblemError, match="must be the address of a check"):
            cf.run("numpy", ["exchange", address])
    with pytest.raises(UnknownBackendError, match="unknown backend 'foo'"):
        cf.run("foo")


def test_a_plugin_is_run_with_its_exemptions(suite_of, plug):
    suite_of(wrong, a=1)
    name = plug("found", EXEMPT)
    assert name in {o.backend for o in cf.run().outcomes}
    found = cf.run(name)
    assert [o.state for o in found.outcomes] == ["failed", "passed"]  # the exemption is for float32
    (exemption,) = found.record()["exemptions"]
    assert (exemption["reason"], exemption["needed"]) == ("rounds sums to halves", 1)
    assert found.facts == {name: {"plugin": "1.2.3"}}


def test_several_processes_find_what_one_finds(monkeypatch):
    monkeypatch.setattr(parallel, "get_context", lambda method: {"spawn": processes.context()}[method])
    only = ["sets/oracle/L1Ball 0", "steps/decisions/Armijo*"]
    one, two = (cf.run("numpy", only, jobs=n) for n in (1, 2))
    assert [replace(o, seconds=0.0) for o in two.outcomes] == [replace(o, seconds=0.0) for o in one.outcomes]
    assert two.facts == one.facts


def test_processes_there_are_none_of_or_that_cannot_find_the_backend():
    with pytest.raises(ProblemError, match="jobs must be at least 1; got 0"):
        cf.run("numpy", "sets", jobs=0)
    unknown = cf.Target(type(registry.get("numpy"))(), "cpu", "float64")
    with pytest.raises(ProblemError, match=r"every backend must be registered.*'numpy' is not"):
        cf.run(unknown, "sets", jobs=2)


def test_a_backend_without_a_device_is_named_with_its_reason(suite_of, monkeypatch):
    def driver():
        raise OSError("no driver\nand more")

    suite_of(right)
    monkeypatch.setattr(registry.get("torch"), "devices", driver)
    assert (
        runner.absent()["torch"] == "ProblemError: a backend must have a device; 'torch' has none: OSError: no driver"
    )
    with pytest.raises(ProblemError, match="'torch' has none: OSError: no driver"):
        cf.targets(["torch"])


# -- the command -------------------------------------------------------------------------------------------------------


def invoke(*args, columns="120"):
    return CliRunner().invoke(app, ["conformance", *(str(a) for a in args)], env={"COLUMNS": columns})


def test_all_is_well(suite_of, tmp_path):
    suite_of(right)
    result = invoke("--backend", "numpy", "--report", tmp_path / "new" / "a.md", "--report", tmp_path / "a.json")
    assert (result.exit_code, result.stderr) == (0, "")  # and no bar in a pipe
    assert re.search(r"exchange\s+1 passed\s+1 passed", result.stdout)
    assert "2  there is nothing to add (exchange/right; all)" in result.stdout
    assert "2 cases passed on 2 targets; 2 do not apply" in result.stdout
    assert cf.read(tmp_path / "a.json")["ok"] is True
    assert (tmp_path / "new" / "a.md").read_text() == markdown.page(cf.read(tmp_path / "a.json"))


@pytest.mark.parametrize(("given", "state"), [((), "left_out"), (("--thorough",), "passed")])
def test_every_example_is_compiled_where_that_is_asked_for(tmp_path, given, state):
    """An example that another one stands for, in a precision that was not its turn."""
    case = "operators/products with the dense form/BlockDiagonal 0, real"
    result = invoke("--backend", "jax", "--dtype", "float32", "--only", case, *given, "--report", tmp_path / "a.json")
    assert result.exit_code == 0, result.stdout
    cell = cf.read(tmp_path / "a.json")["targets"][0]["areas"]["operators"]
    assert cell[state] == 1


@pytest.mark.parametrize("columns", ["120", "60"])
def test_a_failure_is_status_1_with_both_values_and_the_command(suite_of, columns):
    suite_of(right, wrong, broken, a=1)
    result = invoke("--backend", "numpy", "--dtype", "float32", columns=columns)
    assert result.exit_code == 1
    text = " ".join(result.stdout.split())
    assert "1. failed: exchange/wrong 1 failure: exchange/wrong; numpy cpu float32 1 Sums are wrong." in text
    assert "numpy cpu or the reference is wrong" in text
    assert re.search(r"\[1\] 4\.0 4\.5", text)
    assert "2. raised: exchange/broken 1 failure" in text
    assert "RuntimeError: no sum today" in text
    command = "xvarpro conformance --backend numpy --device cpu --dtype float32 --only exchange/wrong/a"
    assert command in result.stdout.splitlines()  # on one line, to be copied
    again = invoke(*command.split()[2:])
    assert again.exit_code == 1
    assert "1 of 1 case failed, by 1 cause on 1 target; of exchange/wrong/a alone" in " ".join(again.stdout.split())


@pytest.mark.parametrize("fun", [right, wrong])
def test_a_report_is_shown_and_rendered_again(suite_of, plug, tmp_path, fun):
    suite_of(fun, a=1)
    found = cf.run(["numpy", plug(f"shown_{fun.__name__}", EXEMPT)])
    found.save(tmp_path / "a.json")
    result = invoke("--from", tmp_path / "a.json", "--report", tmp_path / "a.md")
    assert result.exit_code == int(not found.ok)
    text = " ".join(result.stdout.split())
    assert words.verdict(found.record()) in text
    assert ("20 times as wide, needed by 1 of 1 cases: rounds sums to halves" in text) == (fun is wrong)
    assert (tmp_path / "a.md").read_text() == markdown.page(found.record())


def test_what_changed_decides_the_status(suite_of, tmp_path):
    here = ("--backend", "numpy", "--dtype", "float32")
    suite_of(right, wrong, a=1)
    assert invoke(*here, "--report", tmp_path / "before.json").exit_code == 1
    again = invoke(*here, "--since", tmp_path / "before.json", "--report", tmp_path / "a.md")
    assert again.exit_code == 0  # what fails is known
    assert "nothing fails, passes or is gone that did not before" in again.stdout
    assert "nothing fails, passes or is gone that did not before" in (tmp_path / "a.md").read_text()
    suite_of(right, wrong, broken, a=1)
    worse = invoke(*here, "--since", tmp_path / "before.json", "--report", tmp_path / "after.json")
    assert worse.exit_code == 1
    assert "newly failing; exchange/broken: a; all" in worse.stdout
    assert cf.read(tmp_path / "after.json")["since"]["failing"][0]["address"] == "exchange/broken/a"
    shown = invoke("--from", tmp_path / "before.json", "--since", tmp_path / "after.json")
    assert shown.exit_code == 1
    assert "gone; exchange/broken: a" in shown.stdout


CASES = {f"{kind} {i}": 1 for kind in "abcdefgh" for i in range(3)}


def test_the_quick_part_is_the_same_each_time_and_says_what_it_left_out(suite_of, tmp_path):
    suite_of(right, wrong, **CASES)
    given = ("--quick", "--backend", "numpy,jax", "--only", "exchange/right", "--report", tmp_path / "a.json")
    result = invoke(*given)
    assert result.exit_code == 0
    first = cf.read(tmp_path / "a.json")
    ran = {f"{t['backend']} {t['dtype']}": list(t["seconds"]) for t in first["targets"]}
    one_of_each = [f"exchange/right/{kind} 0" for kind in "abcdefgh"]
    assert ran["numpy float64"] == ran["numpy float32"] == one_of_each
    assert len(ran["jax float64"]) == runner.COMPILED  # and the next check in single
    assert ran["jax float32"] == []
    assert set(ran["jax float64"]) < set(one_of_each)
    assert first["quick"] is True
    assert f"{8 * 2 + runner.COMPILED} cases passed on 4 targets" in result.stdout
    assert "left out by --quick" in result.stdout
    invoke(*given)
    assert [list(t["seconds"]) for t in cf.read(tmp_path / "a.json")["targets"]] == [*ran.values()]
    second = cf.run(cf.targets(["jax"], quick=True), "exchange/wrong")
    assert {o.dtype for o in second.outcomes if o.ran} == {"float32"}


def test_a_case_that_does_not_apply_does_not_stand_for_others(suite_of):
    suite_of(right, **{"a 0": "none", "a 1": 1})
    found = cf.run(cf.targets(["numpy"], dtypes=["float64"], quick=True))
    assert [o.state for o in found.outcomes] == ["inapplicable", "passed"]


def test_the_suite_is_listed(suite_of):
    suite_of(right, wrong)
    result = invoke("--list")
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "exchange/right  (2 cases)", "    Sums are right.", "exchange/wrong  (2 cases)", "    Sums are wrong."
    ]  # fmt: skip
    assert "    exchange/wrong/a" in invoke("--list", "--only", "*/wrong/*").stdout.splitlines()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--backend", "foo"], "unknown backend 'foo'"),
        (["--backend", ","], "a name, or several with commas, is required"),
        (["--backend", "numpy", "--device", "cuda:7"], "device must be one of a backend's; got cuda:7"),
        (["--backend", "numpy", "--dtype", "float16"], "dtype must be float64 or float32; got 'float16'"),
        (["--backend", "numpy", "--only", "exchange/left"], "must be the address of a check; got 'exchange/left'"),
        (["--list", "--only", "left"], "must be the address of a check; got 'left'"),
        (["--report", "report.pdf"], "must end in .md or .json"),
        (["--from", "nowhere.json"], "No such file or directory: nowhere.json"),
        (["--quick", "--thorough"], "--quick leaves out what --thorough adds"),
        (["--since", "nowhere.json"], "No such file or directory: nowhere.json"),
        (["--from", "nowhere.json", "--only", "sets"], "--from shows a report as it was written"),
    ],
)
def test_wrong_use_is_status_2_in_one_line(suite_of, args, message):
    suite_of(right)
    result = invoke(*args)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert message in result.stderr


def test_a_mistake_in_a_precision_that_no_check_speaks_about(suite_of, monkeypatch):
    suite_of(right)
    monkeypatch.setattr(suite, "CHECKS", [cf.Check("solves", "right", right, lambda: {"a": 1}, ("float64",))])
    result = invoke("--backend", "numpy", "--dtype", "float32", "--only", "solves")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "must select a check of the precisions" in result.stderr
