"""The script that checks and times the package on a GPU: what it plans, what survives a hang, what it reports."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from benchmarks import gpu
from benchmarks.gpu_report import render

SCRIPT = Path(gpu.__file__)
PART = gpu.Part("suite", "cupy", "cuda:0", ("float64",))


def test_the_suite_runs_on_every_framework_in_both_precisions_and_timings_have_a_processor_beside_them():
    suite, timed = gpu.plan(dry=False)
    assert {(p.backend, p.dtypes) for p in suite} == {(b, (d,)) for b in ("cupy", "torch", "jax") for d in gpu.DTYPES}
    assert all(p.device == "cuda:0" for p in suite)
    assert [p.device for p in timed] == ["cuda:0"] * 3 + ["cpu"] * 3, "on the device first: time may run out"
    suite, timed = gpu.plan(dry=True)
    assert {p.device for p in (*suite, *timed)} == {"cpu"}


def test_processes_share_the_device_and_find_the_package(monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONPATH", "mine")
    found = PART.environment([tmp_path])
    assert found["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"
    assert found["PYTHONPATH"] == f"{tmp_path}{os.pathsep}mine"
    assert "JAX_PLATFORMS" not in found
    assert gpu.Part("timings", "jax", "cpu", gpu.DTYPES).environment([])["JAX_PLATFORMS"] == "cpu"


def child(tmp_path, code, limit):
    file = tmp_path / "part.jsonl"
    return gpu.run(PART, [sys.executable, "-c", code, str(file)], file, limit)


WRITES = 'import sys, os, time; f = open(sys.argv[1], \'w\'); f.write(\'{"area": "sets"}\\n{"are\'); f.flush(); '


def test_a_hang_costs_its_own_time_only_and_keeps_what_was_found(tmp_path):
    began = time.perf_counter()
    found = child(tmp_path, WRITES + "time.sleep(60)", limit=2.0)
    assert found["state"] == "stopped after 2 s"
    assert found["rows"] == [{"area": "sets"}]
    assert time.perf_counter() - began < 30


def test_a_crash_is_told_with_its_last_words(tmp_path):
    found = child(tmp_path, WRITES + "print('no kernel', flush=True); os.abort()", limit=60.0)
    assert found["state"] == "ended with status -6"
    assert found["said"].endswith("no kernel")
    assert found["rows"] == [{"area": "sets"}]


def record(**changes):
    case = {"area": "sets", "address": "sets/oracle/Box 0", "state": "passed", "units": 0.25, "note": "", "values": []}
    off = {**case, "address": "sets/oracle/L1Ball 0", "state": "failed", "units": 7.5, "values": ["vertices: error 1"]}
    none = {**case, "state": "inapplicable", "units": None}
    command = {"command": "xvarpro conformance --backend torch"}
    place = {"kind": "suite", "device": "cuda:0", "dtypes": ["float64"], "seconds": 9.0, "said": "", "state": "done"}
    timing = {"what": "iteration", "dtype": "float64", "milliseconds": 1.2345}
    return {
        "date": "2026-11-21T10:00:00+00:00",
        "dry_run": False,
        "seconds": 400.0,
        "machine": {"python": "3.12.3", "device": "Some GPU", "driver": "580.1"},
        "parts": [
            {**place, "backend": "cupy", "rows": [{"facts": {"cupy": "14.2.0"}}, case, none]},
            {**place, "backend": "torch", "rows": [{**case, **command}, {**off, **command}]},
            {**place, "backend": "jax", "rows": [], "state": "stopped after 300 s", "said": "compiling"},
            {
                **place,
                "kind": "timings",
                "backend": "cupy",
                "dtypes": list(gpu.DTYPES),
                "rows": [{"facts": {"cupy": "later"}}, timing],
            },
            {**place, "kind": "timings", "backend": "jax", "dtypes": list(gpu.DTYPES), "rows": []},
        ],
        **changes,
    }


def test_the_report_says_what_passed_what_failed_and_what_was_not_reached():
    text = render(record())
    assert text.startswith("# xvarpro on a GPU, 2026-11-21\n")
    assert "| device | Some GPU |" in text
    assert "| cupy | 14.2.0 |" in text
    assert "| sets | 1 (0.25) | **1 of 2 fail** (7.5) | not reached |" in text
    assert "| ended | done | done | stopped after 300 s |" in text
    assert "- `sets/oracle/L1Ball 0`: vertices: error 1. `xvarpro conformance --backend torch`" in text
    assert "compiling" in text
    assert "| iteration | 1.23 | - |" in text
    assert "Dry run" not in text


def test_a_dry_run_says_that_it_is_one():
    text = render(record(dry_run=True, machine={"device": None}))
    assert text.startswith("# Dry run")
    assert "nothing here was measured on a GPU" in text
    assert "no NVIDIA device found" in text


def test_success_is_never_assumed():
    parts = record()["parts"]
    assert gpu.passed(record(parts=parts[:1]))
    assert not gpu.passed(record(parts=parts[:2])), "a failure"
    assert not gpu.passed(record(parts=[parts[0], parts[2]])), "a part that was stopped"
    assert not gpu.passed(record(parts=parts[3:])), "nothing ran"
    assert gpu.passed(record(parts=[parts[0], parts[3]]))
    assert gpu.passed(record(parts=[parts[0], {**parts[3], "state": "no time left"}]))
    assert not gpu.passed(record(parts=[parts[0], {**parts[3], "state": "ended with status -11"}])), "a crash"


def test_without_the_package_it_says_what_to_bring(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['optree'] = None")
    out = subprocess.run(
        [sys.executable, str(SCRIPT), "--dry-run", "--out", str(tmp_path / "out")],
        env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True,
    )  # fmt: skip
    assert out.returncode == 2
    assert "--wheels" in out.stderr
    assert not (tmp_path / "out").exists()


def test_a_dry_run(tmp_path):
    command = [sys.executable, str(SCRIPT), "--dry-run", "--together", "2", "--minutes", "30", "--out", str(tmp_path)]
    out = subprocess.run(command, capture_output=True, text=True)
    assert out.returncode == 0, out.stdout + out.stderr
    (file,) = tmp_path.glob("dry-run-*.json")
    written = json.loads(file.read_text())
    assert [p["state"] for p in written["parts"]] == ["done"] * 9
    for part in written["parts"]:
        facts, *found = part["rows"]
        assert set(facts) == {"facts"}
        assert found if part["kind"] == "suite" else len(found) == 8
    assert file.with_suffix(".md").read_text() == render(written)
