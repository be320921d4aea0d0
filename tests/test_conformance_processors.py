"""Processor paths: the kernels that are asked for are in use, or the report says why not."""

import os
import platform
import re
import signal
import sys
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from xvarpro import conformance as cf
from xvarpro.cli import app
from xvarpro.conformance import processors
from xvarpro.conformance.processors import Kernels, Path, Request, in_use, merged, paths, prove
from xvarpro.errors import ProblemError

ONLY = ("sets/oracle/L1Ball 0",)
x86 = pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="kernels of x86-64")
two_cores = pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one core")


def core(name):
    """A path that asks OpenBLAS for a core type and needs nothing of the processor."""
    return Path("numpy", Kernels(name, {"OPENBLAS_CORETYPE": name}, {"OpenBLAS": (name,)}), 1)


def run(path, dtypes=("float64",)):
    return prove(Request(path, dtypes, ONLY))


def test_paths_are_chosen_by_name_or_pattern():
    assert [p.name for p in paths(["numpy", "torch"], ["numpy/Haswell"])] == ["numpy/Haswell/1", "numpy/Haswell/2"]
    assert [p.name for p in paths(["numpy"], ["*well/2"])] == ["numpy/Haswell/2"]
    with pytest.raises(ProblemError, match="must name a processor path; got 'numpy/Pentium'"):
        paths(["numpy"], ["numpy/Haswell", "numpy/Pentium"])


def test_a_path_has_its_own_variables_and_no_others():
    base = {"OPENBLAS_CORETYPE": "Zen", "MKL_CBWR": "AVX", "LANG": "C", "XLA_FLAGS": "--a=1 --xla_cpu_max_isa=AVX --b"}
    by_name = {path.name: path.environment(base) for path in paths(["numpy", "jax", "array-api-strict"])}
    found = by_name["numpy/Haswell/2"]
    assert found["OPENBLAS_CORETYPE"] == "Haswell"
    assert found["OMP_NUM_THREADS"] == found["OPENBLAS_NUM_THREADS"] == found["NPROC"] == "2"
    assert (found["LANG"], found["XLA_FLAGS"]) == ("C", "--a=1 --b")
    assert "MKL_CBWR" not in found
    assert by_name["jax/AVX2/1"]["XLA_FLAGS"] == "--a=1 --b --xla_cpu_max_isa=AVX2"
    assert by_name["array-api-strict/default"] == {"LANG": "C", "XLA_FLAGS": "--a=1 --b"}
    assert "XLA_FLAGS" not in paths(["numpy"])[0].environment({})


@pytest.mark.parametrize("name", ["numpy", "torch", "jax"])
def test_every_backend_says_what_its_paths_are_proven_by(name):
    asked = {key for path in paths([name]) for key in path.kernels.proof}
    assert asked <= set(in_use(name))


@x86
@pytest.mark.frameworks
@pytest.mark.parametrize(
    "name",
    [pytest.param("numpy/Haswell/2", marks=two_cores), "numpy/baseline/1", "torch/ATen-default/1",
     "torch/MKL-compatible/1", pytest.param("jax/SSE4_2/2", marks=two_cores)],
)  # fmt: skip
def test_a_path_runs_with_its_kernels_and_threads(name):
    (path,) = paths([name.partition("/")[0]], [name])
    if obstacle := path.obstacle():
        pytest.skip(obstacle)
    proof, report = run(path, ("float32", "float64"))
    assert (proof.state, proof.reason) == ("proven", "")
    assert f"threads {path.threads}" in proof.kernels
    assert any(o.state == "passed" for o in report.outcomes)
    assert {o.path for o in report.outcomes} == {name}


@x86
def test_an_unknown_core_type_is_not_proven():
    """OpenBLAS takes another in silence."""
    proof, report = run(core("Haswellish"))
    assert (proof.state, report) == ("not proven", None)
    assert re.fullmatch(r"OpenBLAS must be Haswellish; got \w+", proof.reason)
    assert not merged([(proof, report)]).ok


def test_what_the_processor_lacks_is_not_started(monkeypatch):
    monkeypatch.setattr(processors, "_features", lambda: {"AVX2": True})
    monkeypatch.setattr(processors.subprocess, "run", lambda *args, **how: pytest.fail("a process was started"))
    (path,) = paths(["numpy"], ["numpy/Haswell/1"])
    monkeypatch.setattr(processors.platform, "machine", lambda: "x86_64")
    assert run(path)[0].reason == "the processor has no FMA3"
    monkeypatch.setattr(processors.platform, "machine", lambda: "arm64")
    assert run(path)[0].reason == "its kernels are for x86-64 processors; this machine is arm64"
    monkeypatch.setattr(processors.os, "cpu_count", lambda: 1)
    assert run(replace(path, threads=2))[0].reason == "it needs 2 cores; this machine has 1"
    assert run(path)[0].state == "cannot run here"


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize(
    ("last", "state", "reason"),
    [
        (f"os.kill(os.getpid(), {int(signal.SIGILL)})", "cannot run here", "the processor lacks an instruction"),
        ("os.kill(os.getpid(), 9)", "failed", "ended with status -9"),
        ("raise OSError('no library')", "failed", "OSError: no library"),
    ],
    ids=["illegal instruction", "killed", "raises"],
)
def test_a_process_that_ends_early_is_reported(monkeypatch, last, state, reason):
    honest = processors.subprocess.run
    monkeypatch.setattr(
        processors.subprocess, "run", lambda args, **how: honest([args[0], "-c", f"import os; {last}"], **how)
    )
    proof, report = run(core("any") if platform.machine() == "x86_64" else Path("numpy", Kernels()))
    assert (proof.state, report) == (state, None)
    assert reason in proof.reason


def test_the_command_runs_paths_and_reports_them(tmp_path):
    path = "numpy/Prescott/1" if platform.machine() in ("x86_64", "AMD64") else "numpy/default/1"
    args = ["--processors", "--path", path, "--only", *ONLY]
    result = CliRunner().invoke(
        app, ["conformance", *args, "--report", str(tmp_path / "a.json")], env={"COLUMNS": "200"}
    )
    assert result.exit_code == 0, result.output
    assert re.search(rf"{path}\s+proven\s+.*threads 1\s+2\s+0", result.stdout)
    assert "2 cases passed on 2 targets; processor paths: 1 proven; of sets/oracle/L1Ball 0 alone" in result.stdout
    (found,) = cf.read(tmp_path / "a.json")["processors"]
    assert (found["path"], found["state"], found["passed"]) == (path, "proven", 2)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--path", "numpy/default/1"], "--path requires --processors"),
        (["--processors", "--device", "cuda:0"], "--processors requires the cpu; got --device cuda:0"),
        (["--processors", "--backend", "numpy", "--path", "numpy/9"], "must name a processor path; got 'numpy/9'"),
        (
            ["--processors", "--dtype", "float32", "--only", "solves/converged"],
            "only must select a check of the precisions",
        ),
    ],
)
def test_wrong_use_is_status_2(args, message):
    result = CliRunner().invoke(app, ["conformance", *args])
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
