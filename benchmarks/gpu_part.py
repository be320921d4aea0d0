"""One part of benchmarks/gpu.py, in a process of its own: each finding is a line of JSON, written when it is made.

python benchmarks/gpu_part.py suite|timings BACKEND DEVICE DTYPE[,DTYPE] FILE [--tiny] [--only ADDRESS ..]
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import overhead

import xvarpro as xv
from xvarpro import conformance
from xvarpro_conformance import runner

Row = dict[str, Any]
METHODS = {"cr_varpro": xv.algorithms.cr_varpro(overhead.DELTA, overhead.GAMMA), "default": None}


def suite(name: str, device: str, dtypes: list[str], only: list[str]) -> Iterator[Row]:
    """Every case of the suite."""
    targets = conformance.targets([name], devices=[device], dtypes=dtypes)
    yield {"facts": targets[0].backend.describe()}
    for found in runner.outcomes(targets, only):
        yield {
            "area": found.area,
            "address": found.address,
            "state": found.state,
            "units": found.units if math.isfinite(found.units) else None,
            **({} if found.ok else _wrong(found)),
        }


def _wrong(found: Any) -> Row:
    return {
        "note": found.note.strip().rpartition("\n")[2],
        "traceback": found.note[-1500:],
        "values": [f"{m.what}: error {m.error:.3g}, allowed {m.tolerance:.3g}" for m in found.failures],
        "command": found.command,
    }


def timings(name: str, device: str, dtypes: list[str], tiny: bool) -> Iterator[Row]:
    """Milliseconds of an iteration of the dictionary problem."""
    backend = xv.backends.get(name)
    yield {"facts": backend.describe()}
    for dtype in dtypes:
        for compress in (False, True):
            case = overhead.dictionary(dtype, compress, columns=160 if tiny else 3000)
            for method, algorithm in METHODS.items():
                solve = partial(overhead.solved, case, name, algorithm, device)
                solve()  # compiles, and wakes the device
                fit = min((solve() for _ in range(1 if tiny else 3)), key=lambda fit: fit.seconds)
                what = f"iteration of {case.name.removesuffix(' compressed').removesuffix(dtype).strip()}"
                yield _row(f"{what}{', compressed' if compress else ''}, {method}", dtype, fit.seconds / fit.n_iter)


def _row(what: str, dtype: str, seconds: float) -> Row:
    return {"what": what, "dtype": dtype, "milliseconds": 1e3 * seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=["suite", "timings"])
    parser.add_argument("backend")
    parser.add_argument("device")
    parser.add_argument("dtypes", type=lambda text: text.split(","))
    parser.add_argument("file", type=Path)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--only", nargs="+", default=[])
    args = parser.parse_args()
    place = args.backend, args.device, args.dtypes
    rows = suite(*place, args.only) if args.kind == "suite" else timings(*place, args.tiny)
    with args.file.open("w") as file:
        for row in rows:
            file.write(json.dumps(row) + "\n")
            file.flush()


if __name__ == "__main__":
    main()
