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
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PATHS = [ROOT / "src", ROOT / "conformance" / "src"]
DTYPES = ("float64", "float32")
CUDA = (("jax", "cuda:0"), ("torch", "cuda:0"), ("cupy", "cuda:0"))
HOST = (("numpy", "cpu"), ("torch", "cpu"), ("jax", "cpu"))  # of a dry run
DRY_ONLY = ("sets/*/Box 0", "sets/*/L1Ball 0")
# areas of the suite that are a process each; what takes JAX longest is started first
GROUPS = (
    ("solves",),
    ("reduced gradient",),
    ("lower level",),
    ("results", "paper", "distributed"),
    ("sets", "steps"),
    ("derivatives", "factorisations"),
    ("operators", "exchange", "control flow", "numerics scope"),
)
SHOWN = 30  # failures of a part in the report
# a suite compiles thousands of programs, each for one run: without a search for the fastest kernels
QUICKLY = "--xla_gpu_autotune_level=0 --xla_gpu_disable_gpuasm_optimizations=true"


@dataclass(frozen=True)
class Part:
    """What one process does."""

    backend: str
    device: str
    dtype: str
    areas: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return " ".join((self.backend, self.device, self.dtype, *self.areas))

    def command(self, file: Path, dry: bool) -> list[str]:
        script = [sys.executable, __file__, "--part", self.backend, self.device, self.dtype, str(file)]
        return [*script, *(DRY_ONLY if dry else self.areas)]

    def environment(self, flags: str = "") -> dict[str, str]:
        known = [p for p in (os.environ.get("PYTHONPATH"),) if p]
        settings = {
            "PYTHONPATH": os.pathsep.join([*map(str, PATHS), *known]),
            "OMP_NUM_THREADS": "1",
            "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip(),
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # several processes share the device
            "JAX_COMPILATION_CACHE_DIR": str(Path(tempfile.gettempdir()) / "programs"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }
        return {**os.environ, **settings, **({"JAX_PLATFORMS": "cpu"} if self.device == "cpu" else {})}


def plan(dry: bool, only: Sequence[str] = ()) -> list[Part]:
    """The parts, or those of them whose names have all words of one of `only`."""
    groups: Sequence[tuple[str, ...]] = [("sets",)] if dry else GROUPS
    places = HOST if dry else CUDA
    parts = [Part(*place, dtype, group) for group in groups for place in places for dtype in DTYPES]
    return [p for p in parts if not only or any(set(words.split()) <= set(p.name.split()) for words in only)]


def quickly() -> str:
    """`QUICKLY` where this version of XLA knows it: it ends the process otherwise."""
    known = {**os.environ, "XLA_FLAGS": QUICKLY, "JAX_PLATFORMS": "cpu"}
    probe = [sys.executable, "-c", "import jax; jax.numpy.ones(1)"]
    return "" if subprocess.run(probe, env=known, capture_output=True).returncode else QUICKLY


def run(part: Part, command: list[str], file: Path, limit: float, flags: str = "") -> dict[str, Any]:
    """What a part found, and how it ended; after `limit` seconds it is ended."""
    began = time.perf_counter()
    log = file.with_suffix(".log")
    with log.open("w") as output:
        # a session of its own, so that what it started ends with it
        given: Any = {"stdout": output, "stderr": subprocess.STDOUT, "start_new_session": True}
        process = subprocess.Popen(command, env=part.environment(flags), **given)
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
    return asdict(part) | found | {"rows": list(map(json.loads, whole))}


def everything(
    parts: Sequence[Part], dry: bool, seconds: float, together: int, folder: Path
) -> Iterator[dict[str, Any]]:
    """Every part as it ends, side by side, while there is time."""
    ends = time.perf_counter() + seconds
    flags = quickly() if any(part.backend == "jax" for part in parts) else ""

    def started(part: Part) -> dict[str, Any]:
        limit = ends - time.perf_counter()
        if limit < 0:
            print(f"{part.name}: no time left", flush=True)
            return asdict(part) | {"state": "no time left", "seconds": 0.0, "said": "", "rows": []}
        file = folder / f"{part.name.replace(' ', '-').replace(':', '')}.jsonl"
        found = run(part, part.command(file, dry), file, limit, flags)
        print(f"{part.name}: {found['state']}, {found['seconds']:.0f} s, {len(found['rows'])} findings", flush=True)
        return found

    with ThreadPoolExecutor(together) as pool:
        for ended in as_completed([pool.submit(started, part) for part in parts]):
            yield ended.result()


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
    now = datetime.now(timezone.utc)
    parts = plan(args.dry_run, args.only)
    args.out.mkdir(parents=True, exist_ok=True)
    stem = args.out / f"{'dry-run' if args.dry_run else 'gpu'}-{now:%Y-%m-%d}"
    with tempfile.TemporaryDirectory() as scratch:
        began = time.perf_counter()
        probe = Part("numpy", "cpu", "float64")
        able = [sys.executable, "-c", "import xvarpro_conformance"]
        if subprocess.run(able, env=probe.environment()).returncode:
            print("error: xvarpro cannot be imported: what it lacks is above", file=sys.stderr)
            return 2
        record: dict[str, Any] = {"date": now.isoformat(timespec="seconds"), "dry_run": args.dry_run}
        record |= {"seconds": 0.0, "machine": machine(), "parts": []}
        for part in everything(parts, args.dry_run, 60 * args.minutes, args.together, Path(scratch)):
            record["seconds"] = time.perf_counter() - began
            record["parts"] = sorted([*record["parts"], part], key=_place)
            stem.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n")
            stem.with_suffix(".md").write_text(render(record))
    print(f"wrote {stem}.md and {stem}.json")
    return 0 if passed(record) else 1


def _place(part: dict[str, Any]) -> tuple[int, int]:
    """The order of parts in a report: as they were planned."""
    return [name for name, _ in (*CUDA, *HOST)].index(part["backend"]), DTYPES.index(part["dtype"])


def passed(record: dict[str, Any]) -> bool:
    """Whether all of the suite ran, and everything that applies passed."""
    rows = [row for part in record["parts"] for row in part["rows"] if "state" in row]
    whole = all(part["state"] == "done" for part in record["parts"])
    return bool(rows) and whole and all(row["state"] in ("passed", "inapplicable", "left out") for row in rows)


# -- one part, in a process of its own ---------------------------------------------------------------------------------


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
            print(json.dumps(row | ({} if found.ok else _said(found))), file=out, flush=True)


def _said(found: Any) -> dict[str, Any]:
    return {
        "note": found.note.strip().rpartition("\n")[2],
        "traceback": found.note[-1500:],
        "values": [f"{m.what}: error {m.error:.3g}, allowed {m.tolerance:.3g}" for m in found.failures],
        "command": found.command,
    }


# -- the report --------------------------------------------------------------------------------------------------------


def render(record: dict[str, Any]) -> str:
    """The report as Markdown."""
    blocks = [f"# {'Dry run' if record['dry_run'] else 'xvarpro on a GPU'}, {record['date'][:10]}"]
    if record["dry_run"]:
        blocks.append("**On a processor, with a few checks at tiny sizes: nothing here was measured on a GPU.**")
    facts = {"date": record["date"], "took": f"{record['seconds']:.0f} s", **record["machine"]}
    for row in (row for part in record["parts"] for row in part["rows"]):
        facts |= {name: value for name, value in row.get("facts", {}).items() if name not in facts}
    facts["device"] = facts["device"] or "no NVIDIA device found"
    blocks.append(_table(["", ""], [[name, str(value)] for name, value in facts.items()]))
    blocks.append("Cases that passed; in brackets the worst error in units of its tolerance.")
    head = ["backend", "device", "dtype", "area", "cases", "ended"]
    blocks.append(_table(head, [row for part in record["parts"] for row in _areas(part)]))
    return "\n\n".join([*blocks, *(_wrong(part) for part in record["parts"] if _wrong(part))]) + "\n"


def _areas(part: dict[str, Any]) -> list[list[str]]:
    """A row for each area that was reached."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in part["rows"]:
        if "area" in row:
            found.setdefault(row["area"], []).append(row)
    place = [part["backend"], part["device"], part["dtype"]]
    rows = [[*place, area, _cell(cases), part["state"]] for area, cases in found.items()]
    return rows or [[*place, ", ".join(part["areas"]), "not reached", part["state"]]]


def _cell(rows: list[dict[str, Any]]) -> str:
    passed = sum(row["state"] == "passed" for row in rows)
    wrong = sum(row["state"] in ("failed", "raised") for row in rows)
    worst = max((row["units"] for row in rows if row["units"] is not None), default=None)
    brackets = "" if worst is None else f" ({worst:.2g})"
    return f"**{wrong} of {passed + wrong} fail**{brackets}" if wrong else f"{passed}{brackets}"


def _wrong(part: dict[str, Any]) -> str:
    """What failed, and what a part said that did not end well."""
    lines = [
        f"- `{row['address']}`: {'; '.join(row['values']) or row['note']}. `{row['command']}`"
        for row in part["rows"]
        if row.get("state") in ("failed", "raised")
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
