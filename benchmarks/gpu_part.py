"""One part of benchmarks/gpu.py, in a process of its own: each finding is a line of JSON, written when it is made.

python benchmarks/gpu_part.py BACKEND DEVICE DTYPE FILE [ADDRESS ..]
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from xvarpro import conformance
from xvarpro_conformance import runner

Row = dict[str, Any]


def suite(name: str, device: str, dtype: str, only: list[str]) -> Iterator[Row]:
    """Every case of the suite."""
    targets = conformance.targets([name], devices=[device], dtypes=[dtype])
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


if __name__ == "__main__":
    backend, device, dtype, file, *only = sys.argv[1:]
    with Path(file).open("w") as out:
        for row in suite(backend, device, dtype, only):
            out.write(json.dumps(row) + "\n")
            out.flush()
