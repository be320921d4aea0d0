"""The script that checks and times the package on a GPU, run through without one."""

import json
import subprocess
import sys
from pathlib import Path

from benchmarks import gpu
from benchmarks.gpu_report import render

SCRIPT = Path(gpu.__file__)


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
