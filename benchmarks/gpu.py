"""The conformance suite and a few timings on a CUDA device, in minutes, with a dated report as JSON and Markdown.

CuPy, PyTorch and JAX run the whole suite in both precisions, side by side; what time is left goes to timings, one after
another, on the device and on the processor. Every part is a process of its own with a time limit, and writes what it
finds as it finds it: a hang or a crash loses itself alone. This file needs nothing but Python.

    python benchmarks/gpu.py [--out FOLDER] [--minutes 7.5] [--wheels FOLDER] [--dry-run]

On a machine without internet, packages that it lacks travel as wheels: `pip download --no-deps -d FOLDER
array-api-compat optree tqdm typing-extensions` where there is internet, for the other machine's Python. The exit status
is 0 if all of the suite ran and passed and no timing crashed, 1 if not, 2 if nothing could run.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

if __package__:
    from benchmarks.gpu_report import render
else:
    from gpu_report import render

HERE = Path(__file__).resolve().parent
DTYPES = ("float64", "float32")
CUDA = (("cupy", "cuda:0"), ("torch", "cuda:0"), ("jax", "cuda:0"))
HOST = (("numpy", "cpu"), ("torch", "cpu"), ("jax", "cpu"))
SUITE_SHARE = 0.7  # of the time: what it leaves goes to timings
LEAST = 15.0  # seconds that a part of timings is started for
DRY_ONLY = ("sets/*/Box 0", "sets/*/L1Ball 0")


@dataclass(frozen=True)
class Part:
    """What one process does."""

    kind: str
    backend: str
    device: str
    dtypes: tuple[str, ...]

    @property
    def name(self) -> str:
        return " ".join((self.kind, self.backend, self.device, *self.dtypes))

    def command(self, file: Path, dry: bool) -> list[str]:
        script = [sys.executable, str(HERE / "gpu_part.py")]
        only = ["--only", *DRY_ONLY] if dry and self.kind == "suite" else []
        tiny = ["--tiny"] if dry else []
        return [*script, self.kind, self.backend, self.device, ",".join(self.dtypes), str(file), *tiny, *only]

    def environment(self, paths: Sequence[Path]) -> dict[str, str]:
        known = [p for p in (os.environ.get("PYTHONPATH"),) if p]
        settings = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}  # several processes share the device
        if self.device == "cpu":
            settings["JAX_PLATFORMS"] = "cpu"
        return {
            **os.environ,
            **settings,
            "PYTHONPATH": os.pathsep.join([*map(str, paths), *known]),
        }


def plan(dry: bool) -> tuple[list[Part], list[Part]]:
    """Parts of the suite, and of the timings, those on the device first."""
    measured, compared = (HOST, ()) if dry else (CUDA, HOST)
    suite = [Part("suite", *place, (dtype,)) for dtype in DTYPES for place in measured]
    return suite, [Part("timings", *place, DTYPES) for place in (*measured, *compared)]


def run(part: Part, command: list[str], file: Path, limit: float, paths: Sequence[Path] = ()) -> dict[str, Any]:
    """What a part found, and how it ended; after `limit` seconds it is ended."""
    began = time.perf_counter()
    log = file.with_suffix(".log")
    with log.open("w") as output:
        # a session of its own, so that what it started ends with it
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=part.environment(paths), start_new_session=True
        )
        try:
            status = process.wait(timeout=max(limit, 0.1))
            state = "done" if status == 0 else f"ended with status {status}"
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            state = f"stopped after {limit:.0f} s"
    return {
        "kind": part.kind,
        "backend": part.backend,
        "device": part.device,
        "dtypes": list(part.dtypes),
        "state": state,
        "seconds": time.perf_counter() - began,
        "said": "" if state == "done" else log.read_text(errors="replace").strip()[-1500:],
        "rows": _rows(file),
    }


def _rows(file: Path) -> list[dict[str, Any]]:
    """Lines that were written whole: the last may have been cut off."""
    text = file.read_text() if file.exists() else ""
    return [json.loads(line) for line in text.split("\n")[:-1]]


def everything(dry: bool, seconds: float, together: int, folder: Path, paths: Sequence[Path]) -> list[dict[str, Any]]:
    """Every part: those of the suite side by side, then the timings while there is time."""
    ends = time.perf_counter() + seconds
    suite_ends = ends - (1 - SUITE_SHARE) * seconds
    suite, timed = plan(dry)

    def started(part: Part, until: float, most: float = float("inf")) -> dict[str, Any]:
        file = folder / f"{part.name.replace(' ', '-').replace(':', '')}.jsonl"
        limit = min(until - time.perf_counter(), most)
        found = run(part, part.command(file, dry), file, limit, paths)
        print(f"{part.name}: {found['state']}, {found['seconds']:.0f} s, {len(found['rows'])} findings", flush=True)
        return found

    with ThreadPoolExecutor(together) as pool:
        found = list(pool.map(lambda part: started(part, suite_ends), suite))
    for i, part in enumerate(timed):
        left = ends - time.perf_counter()
        if left < LEAST:
            print(f"{part.name}: no time left", flush=True)
            found.append(_not_started(part))
            continue
        found.append(started(part, ends, most=max(LEAST, 1.5 * left / (len(timed) - i))))
    return found


def _not_started(part: Part) -> dict[str, Any]:
    place = {"kind": part.kind, "backend": part.backend, "device": part.device, "dtypes": list(part.dtypes)}
    return {**place, "state": "no time left", "seconds": 0.0, "said": "", "rows": []}


def machine() -> dict[str, Any]:
    """Python, system, cores, and what the driver says of the first device."""
    facts: dict[str, Any] = {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "device": None,
    }
    if shutil.which("nvidia-smi"):
        query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
        out = subprocess.run(query, capture_output=True, text=True).stdout.strip()
        if out:
            names = ("device", "driver", "memory")
            facts |= {name: x.strip() for name, x in zip(names, out.splitlines()[0].split(","), strict=True)}
    return facts


def unpacked(wheels: Path, into: Path) -> Path:
    """The wheels of a folder, installed where this Python finds them by PYTHONPATH."""
    files = sorted(map(str, wheels.glob("*.whl")))
    if not files:
        sys.exit(f"error: no wheels in {wheels}")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile"]
    subprocess.run([*pip, "--target", str(into), *files], check=True)
    return into


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("gpu-report"), help="folder of the report")
    parser.add_argument("--minutes", type=float, default=7.5, help="for everything")
    parser.add_argument("--together", type=int, default=6, help="parts of the suite that run side by side")
    parser.add_argument("--wheels", type=Path, help="folder of packages that this machine lacks")
    parser.add_argument("--dry-run", action="store_true", help="the same on the processor, at tiny sizes")
    args = parser.parse_args()
    now = datetime.now(timezone.utc)
    with tempfile.TemporaryDirectory() as scratch:
        paths = [HERE.parent / "src", HERE]
        if args.wheels:
            paths.append(unpacked(args.wheels, Path(scratch) / "site"))
        began = time.perf_counter()
        probe = Part("suite", "numpy", "cpu", ("float64",))
        able = [sys.executable, "-c", "import xvarpro.conformance"]
        if subprocess.run(able, env=probe.environment(paths)).returncode:
            print("error: xvarpro cannot be imported: what it lacks, as above, goes into --wheels", file=sys.stderr)
            return 2
        parts = everything(args.dry_run, 60 * args.minutes, args.together, Path(scratch), paths)
        record = {
            "date": now.isoformat(timespec="seconds"),
            "dry_run": args.dry_run,
            "seconds": time.perf_counter() - began,
            "machine": machine(),
            "parts": parts,
        }
    args.out.mkdir(parents=True, exist_ok=True)
    stem = args.out / f"{'dry-run' if args.dry_run else 'gpu'}-{now:%Y-%m-%d}"
    stem.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n")
    stem.with_suffix(".md").write_text(render(record))
    print(f"wrote {stem}.md and {stem}.json")
    return 0 if passed(record) else 1


def passed(record: dict[str, Any]) -> bool:
    """Whether all of the suite ran, everything that applies passed, and no timing crashed."""
    suite, timed = ([part for part in record["parts"] if part["kind"] == kind] for kind in ("suite", "timings"))
    rows = [row for part in suite for row in part["rows"] if "state" in row]
    whole = all(part["state"] == "done" for part in suite) and not any("status" in part["state"] for part in timed)
    return bool(rows) and whole and all(row["state"] in ("passed", "inapplicable", "left out") for row in rows)


if __name__ == "__main__":
    sys.exit(main())
