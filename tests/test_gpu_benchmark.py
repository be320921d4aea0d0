"""The script that checks and times the package on a GPU, run through without one."""

import json
import subprocess
import sys

import pytest

from benchmarks import gpu


@pytest.mark.thorough
def test_a_dry_run(tmp_path, monkeypatch):
    """Two frameworks in one precision: each part is a process that imports its own."""
    monkeypatch.setattr(gpu, "HOST", gpu.HOST[1:])
    monkeypatch.setattr(gpu, "DTYPES", ("float64",))
    options = ["--dry-run", "--together", "2", "--minutes", "30", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", [gpu.__file__, *options])
    assert gpu.main() == 0
    (file,) = tmp_path.glob("dry-run-*.json")
    written = json.loads(file.read_text())
    assert [p["state"] for p in written["parts"]] == ["done"] * 2
    for part in written["parts"]:
        facts, *found = part["rows"]
        assert set(facts) == {"facts"}
        assert found
    assert file.with_suffix(".md").read_text() == gpu.render(written)


def test_it_is_a_script():
    subprocess.run([sys.executable, gpu.__file__, "--help"], capture_output=True, check=True)
