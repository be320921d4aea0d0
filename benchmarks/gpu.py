"""The conformance suite on a CUDA device, in minutes, with a dated report as JSON and Markdown.

CuPy, PyTorch and JAX run the whole suite in both precisions, side by side, some areas a process. Every part writes what
it finds as it finds it, and the report is written anew after each: a hang or a crash loses itself alone. This file
needs nothing but Python.

    python benchmarks/gpu.py [--out FOLDER] [--minutes 7.5] [--only WORDS ..] [--dry-run]

`--only "jax solves" "torch float32"` runs the parts whose names have all words of one of these: what failed, or what an
earlier run did not reach. Packages that a machine without internet lacks may be in PYTHONPATH: `pip
install --no-deps --target FOLDER array-api-compat optree tqdm typing-extensions` where there is internet, for the other
machine's Python. The exit status is 0 if all of the suite ran and passed, 1 if not, 2 if nothing could run.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PATHS = [str(ROOT / "src"), str(ROOT / "conformance" / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
DTYPES = ("float64", "float32")
CUDA = (("jax", "cuda:0"), ("torch", "cuda:0"), ("cupy", "cuda:0"))
# areas of the suite that are a process each; what takes JAX longest is started first
GROUPS: tuple[tuple[str, ...], ...] = (
    ("solves",),
    ("reduced gradient",),
    ("lower level",),
    ("results", "paper", "distributed"),
    ("sets", "steps"),
    ("derivatives", "factorisations"),
    ("operators", "exchange", "control flow", "numerics scope"),
)
DRY = (("jax", "cpu"), ("torch", "cpu"), ("numpy", "cpu")), (("sets/*/Box 0", "sets/*/L1Ball 0"),)
SHOWN = 30  # failures of a part in the report
# a suite compiles thousands of programs, each for one run: without a search for the fastest kernels
QUICKLY = "--xla_gpu_autotune_level=0 --xla_gpu_disable_gpuasm_optimizations=true"
WRONG = ("failed", "raised")


class Part(NamedTuple):
    """What one process does."""

    backend: str
    device: str
    dtype: str
    areas: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return " ".join((self.backend, self.device, self.dtype, *self.areas))


def environment(device: str, flags: str = "") -> dict[str, str]:
    settings = {
        "PYTHONPATH": os.pathsep.join(PATHS),
        "OMP_NUM_THREADS": "1",
        "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip(),
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # several processes share the device
        "JAX_COMPILATION_CACHE_DIR": str(Path(tempfile.gettempdir()) / "programs"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    return {**os.environ, **settings, **({"JAX_PLATFORMS": "cpu"} if device == "cpu" else {})}


def runs(code: str, flags: str = "") -> bool:
    """Whether a line of Python does, on the processor."""
    return not subprocess.run([sys.executable, "-c", code], env=environment("cpu", flags)).returncode


def run(part: Part, file: Path, limit: float, flags: str) -> dict[str, Any]:
    """What a part found, and how it ended; after `limit` seconds it is ended."""
    if limit < 0:
        return {**part._asdict(), "state": "no time left", "seconds": 0.0, "said": "", "rows": []}
    began, log = time.perf_counter(), file.with_suffix(".log")
    command = [sys.executable, __file__, "--part", part.backend, part.device, part.dtype, str(file), *part.areas]
    with log.open("w") as output:
        # a session of its own, so that what it started ends with it
        given: Any = {"stdout": output, "stderr": subprocess.STDOUT, "start_new_session": True}
        process = subprocess.Popen(command, env=environment(part.device, flags), **given)
        try:
            status = process.wait(timeout=max(limit, 0.1))
            state = "done" if status == 0 else f"ended with status {status}"
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            state = f"stopped after {limit:.0f} s"
    said = "" if state == "done" else log.read_text(errors="replace").strip()[-1500:]
    whole = file.read_text().split("\n")[:-1] if file.exists() else []  # the last line may have been cut off
    found = {"state": state, "seconds": time.perf_counter() - began, "said": said}
    return {**part._asdict(), **found, "rows": list(map(json.loads, whole))}


def everything(parts: Sequence[Part], seconds: float, together: int, folder: Path) -> Iterator[dict[str, Any]]:
    """Every part as it ends, side by side, while there is time."""
    ends, flags = time.perf_counter() + seconds, ""
    # XLA ends a process for a flag that its version does not know
    if any(part.backend == "jax" for part in parts) and runs("import jax; jax.numpy.ones(1)", QUICKLY):
        flags = QUICKLY

    def started(i: int) -> dict[str, Any]:
        found = run(parts[i], folder / f"{i}.jsonl", ends - time.perf_counter(), flags)
        shown = f"{found['state']}, {found['seconds']:.0f} s, {len(found['rows'])} findings"
        print(f"{parts[i].name}: {shown}", flush=True)
        return found

    with ThreadPoolExecutor(together) as pool:
        for ended in as_completed([pool.submit(started, i) for i in range(len(parts))]):
            yield ended.result()


def machine() -> dict[str, Any]:
    """Python, system, cores, and what the driver says of the first device."""
    system = f"{platform.system()} {platform.machine()}"
    facts = {"python": platform.python_version(), "system": system, "cores": os.cpu_count()}
    out = ""
    if shutil.which("nvidia-smi"):
        query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
        out = subprocess.run(query, capture_output=True, text=True).stdout.strip()
    first = out.partition("\n")[0].split(", ") if out else ["no NVIDIA device found"]
    return facts | dict(zip(("device", "driver", "memory"), first, strict=False))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("gpu-report"), help="folder of the report")
    parser.add_argument("--minutes", type=float, default=7.5, help="for everything")
    parser.add_argument("--together", type=int, default=16, help="parts that run side by side")
    parser.add_argument("--only", nargs="+", default=[], help="words of the names of parts")
    parser.add_argument("--dry-run", action="store_true", help="the same on the processor, at tiny sizes")
    parser.add_argument("--part", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part:
        examine(*args.part)
        return 0
    if not runs("import xvarpro_conformance"):
        print("error: xvarpro cannot be imported: what it lacks is above", file=sys.stderr)
        return 2
    places, groups = DRY if args.dry_run else (CUDA, GROUPS)
    parts = [Part(*place, dtype, group) for group in groups for place in places for dtype in DTYPES]
    parts = [p for p in parts if not args.only or any(set(x.split()) <= set(p.name.split()) for x in args.only)]
    began, now = time.perf_counter(), datetime.now(timezone.utc)
    args.out.mkdir(parents=True, exist_ok=True)
    stem = args.out / f"{'dry-run' if args.dry_run else 'gpu'}-{now:%Y-%m-%d}"
    record: dict[str, Any] = {"date": now.isoformat(timespec="seconds"), "dry_run": args.dry_run}
    record |= {"seconds": 0.0, "machine": machine(), "parts": []}
    with tempfile.TemporaryDirectory() as scratch:
        for part in everything(parts, 60 * args.minutes, args.together, Path(scratch)):
            record["seconds"] = time.perf_counter() - began
            planned = [place for place, _ in places]
            record["parts"].append(part)
            record["parts"].sort(key=lambda part: (planned.index(part["backend"]), DTYPES.index(part["dtype"])))
            stem.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n")
            stem.with_suffix(".md").write_text(render(record))
    print(f"wrote {stem}.md and {stem}.json")
    found = [row["state"] for part in record["parts"] for row in part["rows"] if "state" in row]
    whole = all(part["state"] == "done" for part in record["parts"])
    return 0 if found and whole and not set(WRONG) & set(found) else 1


def examine(name: str, device: str, dtype: str, file: str, *only: str) -> None:
    """Every case of the suite: each finding is a line of JSON, written when it is made."""
    from xvarpro import conformance
    from xvarpro_conformance import runner

    targets = conformance.targets([name], devices=[device], dtypes=[dtype])
    with Path(file).open("w") as out:
        print(json.dumps({"facts": targets[0].backend.describe()}), file=out, flush=True)
        for found in runner.outcomes(targets, only):
            units = found.units if math.isfinite(found.units) else None
            row = {"area": found.area, "address": found.address, "state": found.state, "units": units}
            if not found.ok:
                off = [f"{m.what}: error {m.error:.3g}, allowed {m.tolerance:.3g}" for m in found.failures]
                note = found.note.strip().rpartition("\n")[2]
                row |= {"note": note, "traceback": found.note[-1500:], "values": off, "command": found.command}
            print(json.dumps(row), file=out, flush=True)


def render(record: dict[str, Any]) -> str:
    """The report as Markdown."""
    blocks = [f"# {'Dry run' if record['dry_run'] else 'xvarpro on a GPU'}, {record['date'][:10]}"]
    if record["dry_run"]:
        blocks.append("**On a processor, with a few checks at tiny sizes: nothing here was measured on a GPU.**")
    facts = {"date": record["date"], "took": f"{record['seconds']:.0f} s", **record["machine"]}
    for row in (row for part in record["parts"] for row in part["rows"]):
        facts = facts | row.get("facts", {}) | facts  # those of the machine come first, and count
    blocks.append(_table(["", ""], [[name, str(value)] for name, value in facts.items()]))
    blocks.append("Cases that passed; in brackets the worst error in units of its tolerance.")
    head = ["backend", "device", "dtype", "area", "cases", "ended"]
    blocks.append(_table(head, [row for part in record["parts"] for row in _areas(part)]))
    return "\n\n".join([*blocks, *filter(None, map(_wrong, record["parts"]))]) + "\n"


def _areas(part: dict[str, Any]) -> Iterator[list[str]]:
    """A row for each area that was reached."""
    areas: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in part["rows"][1:]:
        areas[row["area"]].append(row)
    cells = {}
    for area, rows in areas.items():
        passed, wrong = (sum(row["state"] in states for row in rows) for states in (("passed",), WRONG))
        worst = max((row["units"] for row in rows if row["units"] is not None), default=None)
        cells[area] = f"**{wrong} of {passed + wrong} fail**" if wrong else f"{passed}"
        cells[area] += "" if worst is None else f" ({worst:.2g})"
    for area, cell in (cells or {", ".join(part["areas"]): "not reached"}).items():
        yield [part["backend"], part["device"], part["dtype"], area, cell, part["state"]]


def _wrong(part: dict[str, Any]) -> str:
    """What failed, and what a part said that did not end well."""
    lines = [
        f"- `{row['address']}`: {'; '.join(row['values']) or row['note']}. `{row['command']}`"
        for row in part["rows"]
        if row.get("state") in WRONG
    ]
    if len(lines) > SHOWN:
        lines[SHOWN:] = [f"- and {len(lines) - SHOWN} more, in the JSON file"]
    if part["said"]:
        lines.append(f"\n```text\n{part['said']}\n```")
    place = ", ".join((part["backend"], part["device"], part["dtype"], *part["areas"]))
    return "\n".join([f"### {place}: {part['state']}", "", *lines]) if lines else ""


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    sys.exit(main())
